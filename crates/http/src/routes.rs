//! The routes of the API.
//!
//! Owns paths, methods and how long a body may be. Never answers a request: what is routed to does. Invariant: what
//! the API has is described (`description.rs`).

use super::answer::{not_found, wrong_method};
use super::api::{get_metrics, get_status, patch_ksm, patch_store, reload, stop, upgrade, version};
use super::description::openapi_json;
use super::{Daemon, disks, hot_sets, locks, nodes, recordings, ssd};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, patch, post, put};
use std::sync::Arc;
use undercroft_api::body::BODY_BYTES_MAX;
use undercroft_api::{hot_set, ranges};

/// Every route, over a daemon.
pub(crate) fn router(daemon: Arc<dyn Daemon>) -> Router {
    Router::new()
        .route("/v1/status", get(get_status))
        .route("/v1/disks", get(disks::get_disks).post(disks::post_disk))
        .route("/v1/disks/{name}", get(disks::get_disk).patch(disks::patch_disk).delete(disks::delete_disk))
        .route("/v1/disks/{name}/drop-cache", post(disks::drop_cache))
        .route("/v1/disks/{name}/hot-set", get(hot_sets::get_hot_set))
        .route("/v1/disks/{name}/warm", post(hot_sets::post_warm).layer(DefaultBodyLimit::max(hot_set::BODY_BYTES_MAX)))
        .route(
            "/v1/disks/{name}/pins",
            get(locks::get_pins).put(locks::put_pins).layer(DefaultBodyLimit::max(hot_set::BODY_BYTES_MAX)),
        )
        .route(
            "/v1/disks/{name}/lock-profile",
            put(locks::put_lock_profile).layer(DefaultBodyLimit::max(hot_set::BODY_BYTES_MAX)),
        )
        .route("/v1/disks/{name}/blocks/{offset}", get(locks::get_block))
        .route("/v1/disks/{name}/misses", get(locks::get_misses))
        .route("/v1/nodes/{name}/misses", get(locks::get_node_misses))
        .route("/v1/shares", get(nodes::get_shares))
        .route("/v1/nodes/{name}", get(nodes::get_node).patch(nodes::patch_node).put(nodes::put_node))
        .route("/v1/nodes/{name}/events", get(nodes::get_node_events))
        .route("/v1/disks/{name}/ranges", get(nodes::get_ranges))
        .route("/v1/ranges", put(nodes::put_ranges).layer(DefaultBodyLimit::max(ranges::BODY_BYTES_MAX)))
        .route("/v1/store", patch(patch_store))
        .route("/v1/ssd", get(ssd::get_ssd).patch(ssd::patch_ssd))
        .route("/v1/ssd/drop", post(ssd::drop_ssd))
        .route("/v1/ksm", patch(patch_ksm))
        .route("/v1/recordings", get(recordings::get_recordings).post(recordings::post_recording))
        .route("/v1/recordings/{id}", get(recordings::get_recording).delete(recordings::delete_recording))
        .route("/v1/reload", post(reload))
        .route("/v1/upgrade", post(upgrade))
        .route("/v1/stop", post(stop))
        .route("/v1/version", get(version))
        .route("/metrics", get(get_metrics))
        .route("/openapi.json", get(openapi_json))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(daemon)
}

/// Metrics alone, for the TCP listener.
pub(crate) fn metrics_router(daemon: Arc<dyn Daemon>) -> Router {
    Router::new()
        .route("/metrics", get(get_metrics))
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(0))
        .with_state(daemon)
}
