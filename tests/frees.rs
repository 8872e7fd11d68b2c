//! Memory given back in another way than it was taken, in vain, twice, or never taken at all; and requests refused.

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::{fake_driver, library, profile};

#[test]
fn stream_ordered_memory_may_be_freed_as_device_memory() {
    profile("frees")
        .arg("async_freed_as_device")
        .run()
        .only_snapshot()
        .expect_no_leaks()
        .expect_nothing_lost();
}

#[test]
fn device_memory_may_be_freed_in_stream_order() {
    // The fake driver may refuse this as a driver might; then the memory stays.
    let outcome = profile("frees").arg("device_freed_as_async").run();
    outcome.expect_same_output_as_bare();
    if outcome.status.success() {
        outcome.only_snapshot().expect_no_leaks();
    } else {
        outcome.only_recording().expect_live(Device, 1, 100);
    }
}

#[test]
fn managed_memory_may_be_freed_as_device_memory() {
    profile("frees")
        .arg("managed_freed_as_device")
        .run()
        .only_snapshot()
        .expect_no_leaks()
        .expect_nothing_lost();
}

#[test]
fn memory_of_the_32_bit_functions_may_be_freed_by_the_newer_ones() {
    profile("frees")
        .arg("v1_freed_as_v2")
        .run()
        .only_snapshot()
        .expect_no_leaks()
        .expect_nothing_lost();
}

#[test]
fn memory_of_a_pool_may_be_freed_as_device_memory() {
    profile("frees")
        .arg("from_pool_freed_as_device")
        .run()
        .only_snapshot()
        .expect_no_leaks()
        .expect_nothing_lost();
}

#[test]
fn memory_freed_on_another_thread_is_not_a_leak() {
    profile("frees")
        .arg("elsewhere")
        .run()
        .only_snapshot()
        .expect_no_leaks()
        .expect_nothing_lost();
}

#[test]
fn a_free_that_fails_leaves_the_memory_a_leak() {
    let outcome = profile("frees").arg("refused_once").failing("cuMemFree_v2:1:700").run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 1, 700);
    assert_eq!(snapshot.losses.failed_frees, 1);
    assert_eq!(snapshot.only(Device).api, "cuMemAlloc_v2");
}

#[test]
fn a_free_that_fails_and_is_repeated_is_a_free() {
    let outcome = profile("frees")
        .arg("refused_then_freed")
        .failing("cuMemFree_v2:1:700")
        .run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks();
    assert_eq!((snapshot.losses.failed_frees, snapshot.losses.unknown_frees), (1, 0));
    assert_eq!(
        snapshot.counted(Device).total_count,
        1,
        "restoring a record is no new allocation"
    );
}

#[test]
fn a_free_while_the_driver_goes_down_counts_as_freed() {
    let failing = "cuMemFree_v2:*:4,cuMemFreeAsync:*:4,cuMemFreeHost:*:4";
    let outcome = profile("frees").arg("at_teardown").failing(failing).run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks();
    assert_eq!((snapshot.losses.teardown_frees, snapshot.losses.failed_frees), (3, 0));
}

#[test]
fn frees_of_memory_nobody_knew_are_counted_and_change_nothing() {
    // Memory that came through a blind spot, freed in plain sight.
    let hidden = library(
        "plugin",
        "libhidden.so",
        &["-DLEAKS=hidden", "-DBYTES=111"],
        &[fake_driver()],
    );
    let outcome = profile("plugin_host").arg("freed_for_a_blind_spot").arg(hidden).run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 1, 5);
    assert_eq!((snapshot.losses.unknown_frees, snapshot.losses.failed_frees), (1, 0));
}

#[test]
fn frees_that_the_driver_refuses_change_nothing() {
    let outcome = profile("frees").arg("unknown").run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome.only_snapshot().expect_live(Device, 1, 10);
    assert_eq!(outcome.only_snapshot().counted(Device).freed_count, 1);
}

#[test]
fn a_refused_allocation_is_told_as_refused_and_is_never_live() {
    let outcome = profile("frees").arg("no_memory").failing("cuMemAlloc_v2:1:2").run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks();
    let [refused] = &snapshot.failed[..] else {
        panic!("{:#?}", snapshot.failed)
    };
    assert_eq!((refused.bytes, refused.count, refused.error), (64 << 40, 1, 2));
    assert_eq!((refused.kind, refused.api.as_str()), (Device, "cuMemAlloc_v2"));
    assert_eq!(refused.device.map(|index| snapshot.devices[index].ordinal), Some(0));
    assert!(refused.stack.is_some());
    assert_eq!(snapshot.counted(Device).failed_count, 1);
    assert_eq!(
        snapshot.counted(Device).total_count,
        1,
        "what was refused was never allocated"
    );
}

#[test]
fn refusals_of_every_kind_are_told_with_their_bytes() {
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
    let told: Vec<_> = snapshot
        .failed
        .iter()
        .map(|row| (row.api.as_str(), row.kind, row.bytes))
        .collect();
    let asked = [
        ("cuMemAllocPitch_v2", Pitched, 3000),
        ("cuMemAllocManaged", Managed, 200),
        ("cuMemHostAlloc", HostPinned, 300),
        ("cuArrayCreate_v2", Array, 32768),
        ("cuMemAllocAsync", Async, 400),
        ("cuMemCreate", Physical, 2 << 20),
    ];
    for row in asked {
        assert!(told.contains(&row), "{row:?} is missing in {told:#?}");
    }
    assert_eq!(told.len(), asked.len(), "{told:#?}");
}

#[test]
fn equal_refusals_are_one_row_with_a_count() {
    let outcome = profile("frees")
        .arg("no_memory_again_and_again")
        .failing("cuMemAlloc_v2:*:2")
        .run();
    let snapshot = outcome.only_snapshot();
    let [refused] = &snapshot.failed[..] else {
        panic!("{:#?}", snapshot.failed)
    };
    assert_eq!((refused.bytes, refused.count), (1 << 50, 50));
    assert!(refused.first_ns < refused.last_ns);
}

#[test]
fn a_failing_driver_writes_nothing_and_the_recorder_reads_nothing() {
    let failing = "cuMemAlloc_v2:*:2,cuMemAllocPitch_v2:*:2,cuMemAllocAsync:*:2";
    profile("frees")
        .arg("nowhere_to_write")
        .failing(failing)
        .run()
        .only_snapshot()
        .expect_no_leaks();
}

#[test]
fn errno_stays_as_the_program_left_it() {
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
fn memory_taken_and_given_back_over_and_over_costs_no_room() {
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
fn memory_given_back_unseen_is_replaced_when_its_address_comes_again() {
    let hidden = library(
        "plugin",
        "libhidden.so",
        &["-DLEAKS=hidden", "-DBYTES=111"],
        &[fake_driver()],
    );
    let outcome = profile("plugin_host").arg("freed_by_a_blind_spot").arg(hidden).run();
    outcome.expect_success().expect_same_output_as_bare();
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
