//! Frees of every kind: through another function than expected, failing, repeated, unknown; and failed requests.

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::{Outcome, fake_driver, library, profile};

#[test]
fn stream_ordered_memory_may_be_freed_as_device_memory() {
    profile("frees")
        .arg("async_freed_as_device")
        .run()
        .only_snapshot()
        .expect_clean();
}

#[test]
fn device_memory_may_be_freed_in_stream_order() {
    profile("frees")
        .arg("device_freed_as_async")
        .run()
        .only_snapshot()
        .expect_clean();
}

#[test]
fn managed_memory_may_be_freed_as_device_memory() {
    profile("frees")
        .arg("managed_freed_as_device")
        .run()
        .only_snapshot()
        .expect_clean();
}

#[test]
fn memory_of_the_version_1_functions_may_be_freed_by_the_newer_ones() {
    profile("frees")
        .arg("v1_freed_as_v2")
        .run()
        .only_snapshot()
        .expect_clean();
}

#[test]
fn memory_of_a_pool_may_be_freed_as_device_memory() {
    profile("frees")
        .arg("from_pool_freed_as_device")
        .run()
        .only_snapshot()
        .expect_clean();
}

#[test]
fn memory_freed_on_another_thread_is_not_a_leak() {
    profile("frees").arg("elsewhere").run().only_snapshot().expect_clean();
}

/// Fails if a record is withdrawn after the real free instead of before it.
#[test]
fn an_address_given_to_another_thread_before_its_free_returns_is_that_threads() {
    let outcome = profile("frees").tiny_driver().arg("address_given_away").run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 1, 200);
    assert_eq!((snapshot.losses.vanished, snapshot.losses.unknown_frees), (0, 0));
    assert_eq!(snapshot.counted(Device).freed_count, 1);
}

#[test]
fn memory_whose_free_failed_is_a_leak() {
    let outcome = profile("frees").arg("fails_once").failing("cuMemFree_v2:1:700").run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 1, 700);
    assert_eq!(snapshot.losses.failed_frees, 1);
    assert_eq!(snapshot.only(Device).api, "cuMemAlloc_v2");
}

#[test]
fn a_failed_free_that_is_repeated_frees() {
    let outcome = profile("frees")
        .arg("fails_then_frees")
        .failing("cuMemFree_v2:1:700")
        .run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks();
    assert_eq!((snapshot.losses.failed_frees, snapshot.losses.unknown_frees), (1, 0));
    assert_eq!(
        snapshot.counted(Device).total_count,
        1,
        "restoring a record does not count as an allocation"
    );
}

#[test]
fn memory_freed_while_the_driver_shuts_down_counts_as_freed() {
    let failing = "cuMemFree_v2:*:4,cuMemFreeAsync:*:4,cuMemFreeHost:*:4";
    let outcome = profile("frees").arg("at_teardown").failing(failing).run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks();
    assert_eq!((snapshot.losses.teardown_frees, snapshot.losses.failed_frees), (3, 0));
}

/// A host and a plugin whose calls are not recorded.
fn with_blind_spot(behaviour: &str) -> Outcome {
    let flags = ["-DLEAKS=hidden", "-DBYTES=111"];
    let hidden = library("plugin", "libhidden.so", &flags, &[fake_driver()]);
    let outcome = profile("plugin_host").arg(behaviour).arg(hidden).run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome
}

#[test]
fn frees_of_unknown_memory_are_counted_and_change_nothing() {
    // Memory allocated in a blind spot and freed by recorded code.
    let outcome = with_blind_spot("freed_for_a_blind_spot");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 1, 5);
    assert_eq!((snapshot.losses.unknown_frees, snapshot.losses.failed_frees), (1, 0));
}

#[test]
fn invalid_frees_change_nothing() {
    let outcome = profile("frees").arg("unknown").run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome.only_snapshot().expect_live(Device, 1, 10);
    assert_eq!(outcome.only_snapshot().counted(Device).freed_count, 1);
}

#[test]
fn a_failed_request_is_recorded_as_failed_and_is_never_live() {
    let outcome = profile("frees").arg("no_memory").failing("cuMemAlloc_v2:1:2").run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks();
    let [failed] = &snapshot.failed[..] else {
        panic!("{:#?}", snapshot.failed)
    };
    assert_eq!((failed.bytes, failed.count, failed.error), (64 << 40, 1, 2));
    assert_eq!((failed.kind, failed.api.as_str()), (Device, "cuMemAlloc_v2"));
    assert_eq!(failed.device.map(|index| snapshot.devices[index].ordinal), Some(0));
    assert!(failed.stack.is_some());
    assert_eq!(snapshot.counted(Device).failed_count, 1);
    assert_eq!(
        snapshot.counted(Device).total_count,
        1,
        "a failed request is not an allocation"
    );
}

#[test]
fn failed_requests_of_every_kind_are_recorded_with_their_bytes() {
    let functions = [
        "cuMemAllocPitch_v2",
        "cuMemAllocManaged",
        "cuMemHostAlloc",
        "cuArrayCreate_v2",
        "cuMemAllocAsync",
        "cuMemCreate",
    ];
    let failing = functions.map(|name| format!("{name}:1:2")).join(",");
    let outcome = profile("frees").arg("no_memory_of_any_kind").failing(&failing).run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks();
    let rows: Vec<_> = snapshot
        .failed
        .iter()
        .map(|row| (row.api.as_str(), row.kind, row.bytes))
        .collect();
    let requested = [
        ("cuMemAllocPitch_v2", Pitched, 3000),
        ("cuMemAllocManaged", Managed, 200),
        ("cuMemHostAlloc", HostPinned, 300),
        ("cuArrayCreate_v2", Array, 32768),
        ("cuMemAllocAsync", Async, 400),
        ("cuMemCreate", Physical, 2 << 20),
    ];
    for row in requested {
        assert!(rows.contains(&row), "{row:?} is missing in {rows:#?}");
    }
    assert_eq!(rows.len(), requested.len(), "{rows:#?}");
}

#[test]
fn equal_failed_requests_are_one_row_with_a_count() {
    let outcome = profile("frees")
        .arg("no_memory_again_and_again")
        .failing("cuMemAlloc_v2:*:2")
        .run();
    let snapshot = outcome.only_snapshot();
    let [failed] = &snapshot.failed[..] else {
        panic!("{:#?}", snapshot.failed)
    };
    assert_eq!((failed.bytes, failed.count), (1 << 50, 50));
    assert!(failed.first_ns < failed.last_ns);
}

#[test]
fn outputs_of_failed_calls_are_not_read() {
    let failing = "cuMemAlloc_v2:*:2,cuMemAllocPitch_v2:*:2,cuMemAllocAsync:*:2";
    profile("frees")
        .arg("nowhere_to_write")
        .failing(failing)
        .run()
        .only_snapshot()
        .expect_no_leaks();
}

#[test]
fn errno_is_unchanged() {
    profile("frees")
        .arg("keeps_errno")
        .run()
        .only_snapshot()
        .expect_no_leaks();
}

#[test]
fn of_twenty_thousand_blocks_the_odd_ones_are_left_in_order() {
    let outcome = profile("frees").arg("many").run();
    let snapshot = outcome.only_snapshot();
    let odd = (0..20_000).filter(|i| i % 2 == 1).map(|i| 16 + i);
    let left: Vec<u64> = snapshot.of_kind(Device).iter().map(|a| a.bytes).collect();
    assert!(
        left.iter().copied().eq(odd),
        "{} rows, first {:?}",
        left.len(),
        &left[..left.len().min(10)]
    );
    snapshot.expect_nothing_lost();
    let counted = snapshot.counted(Device);
    assert_eq!((counted.total_count, counted.freed_count), (20_000, 10_000));
}

#[test]
fn repeated_allocating_and_freeing_does_not_grow_the_recording() {
    let outcome = profile("frees").arg("churn").run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 1, 257).expect_nothing_lost();
    assert_eq!(snapshot.counted(Device).freed_count, 200_000);
    assert_eq!(snapshot.counted(Device).peak_bytes, 257);
    let size = std::fs::metadata(&outcome.recordings[0])
        .expect("the recording is there")
        .len();
    assert!(size < 4 << 20, "a recording of one live block takes {size} bytes");
}

#[test]
fn memory_freed_in_a_blind_spot_is_replaced_when_its_address_is_reused() {
    let outcome = with_blind_spot("freed_by_a_blind_spot");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 1, 512);
    assert_eq!(snapshot.losses.vanished, 1);
}

#[test]
fn the_peak_is_the_most_that_was_live_at_once() {
    let outcome = profile("frees").arg("peak").run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 2, 150);
    assert_eq!(snapshot.counted(Device).peak_bytes, 300);
    assert_eq!(
        snapshot
            .device_peaks
            .iter()
            .map(|peak| peak.peak_bytes)
            .collect::<Vec<_>>(),
        [300]
    );
    assert_eq!(snapshot.counted(Device).total_bytes, 500);
}
