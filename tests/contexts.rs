//! Which memory a context takes with it when it ends, and which outlives it.

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::{Outcome, profile};

fn contexts(behaviour: &str) -> Outcome {
    profile("contexts").args(behaviour).run()
}

/// Pool and VMM memory outlive a context; everything else that `fill` allocated is freed with it.
#[track_caller]
fn expect_only_pool_and_vmm_memory(outcome: &Outcome) {
    let snapshot = outcome.only_snapshot();
    snapshot
        .expect_kinds(&[Async, Physical])
        .expect_live(Async, 1, 4000)
        .expect_live(Physical, 1, 2 << 20);
    assert_eq!(
        snapshot.losses.implicit_frees, 5,
        "device, pitched, managed, pinned, array"
    );
    assert_eq!(snapshot.losses.unknown_frees, 0);
}

#[test]
fn destroying_a_context_frees_all_but_pool_and_vmm_memory() {
    expect_only_pool_and_vmm_memory(&contexts("destroyed"));
}

#[test]
fn the_first_version_of_cu_ctx_destroy_frees_too() {
    contexts("destroyed_v1").only_snapshot().expect_no_leaks();
}

#[test]
fn a_failed_destroy_leaves_the_contexts_memory_live() {
    let outcome = profile("contexts")
        .arg("destroy_fails")
        .failing("cuCtxDestroy_v2:1:700")
        .run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 1, 1000);
    assert_eq!(snapshot.losses.implicit_frees, 0);
}

#[test]
fn a_new_context_under_a_reused_handle_keeps_its_memory_until_its_own_end() {
    let run = |words: &str| profile("contexts").tiny_driver().args(words).run();
    let outcome = run("handle_used_again");
    outcome.expect_success();
    outcome.only_snapshot().expect_live(Device, 1, 200);
    let outcome = run("handle_used_again destroyed");
    outcome.expect_success();
    outcome.only_snapshot().expect_clean();
}

#[test]
fn an_attached_context_ends_with_its_last_detach() {
    contexts("detached").only_snapshot().expect_live(Device, 1, 1000);
    contexts("detached twice").only_snapshot().expect_no_leaks();
}

#[test]
fn releasing_the_primary_context_frees_all_but_pool_and_vmm_memory() {
    expect_only_pool_and_vmm_memory(&contexts("primary_released"));
    contexts("primary_released_v1").only_snapshot().expect_no_leaks();
}

#[test]
fn a_primary_context_retained_twice_and_released_once_is_alive() {
    contexts("primary_still_retained")
        .only_snapshot()
        .expect_live(Device, 1, 1000);
}

#[test]
fn a_reset_frees_all_but_pool_and_vmm_memory() {
    expect_only_pool_and_vmm_memory(&contexts("reset"));
    expect_only_pool_and_vmm_memory(&contexts("reset_v1"));
}

#[test]
fn pool_memory_outlives_a_reset_and_can_be_freed_after_it() {
    contexts("pool_memory_outlives_reset")
        .only_snapshot()
        .expect_live(Async, 1, 4000);
    contexts("pool_memory_outlives_reset free")
        .only_snapshot()
        .expect_clean();
}

#[test]
fn destroying_one_of_two_contexts_frees_its_memory_alone() {
    let outcome = contexts("two");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 2, 600);
    let rows = snapshot.of_kind(Device);
    let ordinals: Vec<_> = rows
        .iter()
        .map(|a| a.device.map(|index| snapshot.devices[index].ordinal))
        .collect();
    assert_eq!(ordinals, [Some(0), Some(1)]);
    let contexts: Vec<_> = rows.iter().map(|a| a.context.expect("the context is known")).collect();
    assert_ne!(contexts[0], contexts[1]);
    assert!(
        contexts
            .iter()
            .all(|&index| snapshot.contexts[index].destroyed_ns.is_none())
    );
    let first = u64::from_str_radix(
        outcome
            .stdout
            .split_whitespace()
            .next()
            .unwrap()
            .trim_start_matches("0x"),
        16,
    );
    let destroyed = snapshot
        .contexts
        .iter()
        .find(|context| Ok(context.handle) == first)
        .expect("the first context");
    assert!(destroyed.destroyed_ns.is_some());
}

#[test]
fn memory_may_be_freed_under_another_context() {
    contexts("freed_under_another")
        .only_snapshot()
        .expect_live(Device, 1, 200)
        .expect_nothing_lost();
}

#[test]
fn primary_contexts_are_marked_as_such() {
    let outcome = contexts("primary_still_retained");
    let snapshot = outcome.only_snapshot();
    assert!(snapshot.contexts[snapshot.only(Device).context.expect("known")].primary);
    let outcome = contexts("freed_under_another");
    let snapshot = outcome.only_snapshot();
    assert!(!snapshot.contexts[snapshot.only(Device).context.expect("known")].primary);
}

#[test]
fn devices_have_the_uuid_that_the_driver_reports() {
    let outcome = contexts("uuids");
    let snapshot = outcome.only_snapshot();
    let uuids: Vec<String> = outcome
        .stdout
        .lines()
        .filter(|line| line.len() == 32)
        .map(str::to_owned)
        .collect();
    assert_eq!(uuids.len(), 2, "{}", outcome.stdout);
    for row in snapshot.of_kind(Device) {
        let device = &snapshot.devices[row.device.expect("the device is known")];
        let plain: String = device
            .uuid
            .trim_start_matches("GPU-")
            .chars()
            .filter(|c| *c != '-')
            .collect();
        assert_eq!(plain, uuids[device.ordinal as usize]);
        assert!(device.uuid.starts_with("GPU-"), "{}", device.uuid);
    }
    assert_eq!(snapshot.device_peaks.len(), 2, "{:?}", snapshot.device_peaks);
}

#[test]
fn requests_for_private_driver_tables_are_counted() {
    let outcome = contexts("private_table");
    outcome.expect_same_output_as_bare();
    assert!(outcome.only_snapshot().losses.export_tables >= 1);
    assert_eq!(contexts("reset").only_snapshot().losses.export_tables, 0);
}
