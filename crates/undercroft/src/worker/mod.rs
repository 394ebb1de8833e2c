//! PLACEHOLDER: workers.
