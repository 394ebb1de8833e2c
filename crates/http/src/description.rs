//! The description of the API, made from its routes and types.
//!
//! Owns the list of both, and the answer that is this description. Never answers anything else. Invariant:
//! docs/openapi.json is what it says (a test).

use super::{api, disks, hot_sets, locks, nodes, recordings, ssd};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use undercroft_api::body::{KsmChangeBody, NodeChangeBody, StoreChangeBody};
use undercroft_api::hot_set::{HotSet, Warming};
use undercroft_api::ranges::{RangeBody, RangeListBody};
use undercroft_api::record::{RecordBody, RecordingStatus};
use undercroft_api::ssd::{
    SsdChangeBody, SsdClass, SsdClasses, SsdCounters, SsdDeviceStatus, SsdDiskStatus, SsdStatus, SsdWritten,
};
use undercroft_api::status::{
    CacheStatus, DiskCounters, DiskLatency, DiskState, DiskStatus, FrontendKind, FrontendStatus, KsmStatus,
    LatencyBucket, LatencySnapshot, LogStatus, NbdDataStatus, NbdListenerStatus, PressureDirection, PressureStatus,
    ReloadReport, SharingDomainStatus, SharingStatus, Status, StoreStatus, VersionInfo,
};
use undercroft_api::{
    BlockStatus, ContainerRanges, Dropped, ErrorBody, LockStatus, MissedBlock, MissesStatus, NextStatus, NodeChanged,
    NodeSettings, NodeSsdStatus, NodeStatus, OnlineStatus, PinsStatus, ProfileTaken, RangesStatus, RangesTaken,
    ShareEvent, SharesStatus, VictimBufferStatus,
};
use undercroft_config::DiskSpec;
use undercroft_hostmem::ksm::{Numbers, Settings};
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Undercroft control API",
        version = "1",
        description = "Served over the control socket of `undercroft serve`: `curl --unix-socket \
            /run/undercroft/control.sock http://localhost/v1/status`.",
        license(name = "Apache-2.0"),
    ),
    paths(
        api::get_status,
        disks::get_disks,
        disks::post_disk,
        disks::get_disk,
        disks::patch_disk,
        disks::delete_disk,
        disks::drop_cache,
        hot_sets::get_hot_set,
        hot_sets::post_warm,
        locks::get_pins,
        locks::put_pins,
        locks::put_lock_profile,
        locks::get_block,
        locks::get_misses,
        locks::get_node_misses,
        nodes::get_shares,
        nodes::get_node,
        nodes::patch_node,
        nodes::put_node,
        nodes::get_node_events,
        nodes::get_ranges,
        nodes::put_ranges,
        api::patch_store,
        ssd::get_ssd,
        ssd::patch_ssd,
        ssd::drop_ssd,
        api::patch_ksm,
        recordings::get_recordings,
        recordings::post_recording,
        recordings::get_recording,
        recordings::delete_recording,
        api::reload,
        api::upgrade,
        api::stop,
        api::version,
        api::get_metrics,
        openapi_json
    ),
    components(schemas(
        Status,
        StoreStatus,
        SsdStatus,
        SsdDeviceStatus,
        SsdDiskStatus,
        SsdWritten,
        SsdCounters,
        SsdClasses,
        SsdClass,
        SsdChangeBody,
        PressureStatus,
        PressureDirection,
        KsmStatus,
        NbdDataStatus,
        NbdListenerStatus,
        Settings,
        Numbers,
        SharingDomainStatus,
        SharingStatus,
        DiskStatus,
        DiskState,
        LogStatus,
        FrontendStatus,
        FrontendKind,
        CacheStatus,
        LockStatus,
        VictimBufferStatus,
        OnlineStatus,
        PinsStatus,
        ProfileTaken,
        BlockStatus,
        MissesStatus,
        MissedBlock,
        DiskCounters,
        DiskLatency,
        LatencySnapshot,
        LatencyBucket,
        SharesStatus,
        NodeStatus,
        NodeSsdStatus,
        NextStatus,
        ShareEvent,
        NodeChangeBody,
        NodeSettings,
        NodeChanged,
        RangeListBody,
        RangeBody,
        RangesStatus,
        ContainerRanges,
        RangesTaken,
        RecordingStatus,
        RecordBody,
        ReloadReport,
        VersionInfo,
        StoreChangeBody,
        KsmChangeBody,
        DiskSpec,
        ErrorBody,
        Dropped,
        HotSet,
        Warming
    ))
)]
struct Description;

/// The description of the API, as it is committed in docs/openapi.json.
pub fn openapi() -> String {
    // Serialising what the macro made cannot fail; were it to, the drift test would show it.
    let mut text = Description::openapi().to_pretty_json().unwrap_or_default();
    text.push('\n');
    text
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", tag = "api", responses((status = 200, content_type = "application/json")))]
pub(super) async fn openapi_json() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use undercroft_api::API_VERSION;

    #[test]
    fn the_committed_description_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == openapi(),
            "docs/openapi.json is out of date: run `undercroft openapi > docs/openapi.json`"
        );
    }

    #[test]
    fn the_description_has_the_version_of_the_api() {
        assert_eq!(Description::openapi().info.version, API_VERSION);
    }
}
