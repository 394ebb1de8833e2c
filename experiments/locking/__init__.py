"""`make lab-locking`: processor caches with locked lines and victim buffers (docs/processor-caches.md)."""
