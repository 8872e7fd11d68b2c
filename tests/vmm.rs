//! Virtual memory management: physical memory is live while its handle or a mapping of it exists.

use culeak::analysis::handles::Handles;
use culeak::kind::Kind::*;
use culeak::tally::Tally;

use crate::support::claims::Claims;
use crate::support::{Outcome, profile};

const CHUNK: u64 = 2 << 20;

fn vmm(behaviour: &str) -> Outcome {
    profile("vmm").args(behaviour).run()
}

#[test]
fn a_complete_life_cycle_leaves_nothing() {
    vmm("whole_life").only_snapshot().expect_clean();
}

/// The handle was released, and one mapping keeps the memory alive.
#[track_caller]
fn expect_mapped_once(outcome: &Outcome) {
    let snapshot = outcome.only_snapshot();
    snapshot
        .expect_live(Physical, 1, CHUNK)
        .expect_live(Mapping, 1, 0)
        .expect_live(Reserved, 1, 0);
    let physical = snapshot.only(Physical);
    assert_eq!((physical.references, physical.mappings), (0, 1));
    let handles = Handles::of(snapshot).expect("a handle");
    assert_eq!((handles.released.count, handles.mapped.count), (1, 0));
}

#[test]
fn memory_released_while_mapped_is_live() {
    expect_mapped_once(&vmm("released_while_mapped"));
}

#[test]
fn memory_unmapped_but_not_released_is_live() {
    let outcome = vmm("unmapped_but_held");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Physical, 1, CHUNK).expect_kinds(&[Physical]);
    assert_eq!(
        (snapshot.only(Physical).references, snapshot.only(Physical).mappings),
        (1, 0)
    );
    let one = Tally::new(CHUNK, 1);
    let expected = Handles {
        created: 1,
        unmapped: one,
        ..Handles::default()
    };
    assert_eq!(Handles::of(snapshot), Some(expected));
    let report = outcome.report();
    let line = "handles  1 without a mapping (2 MiB); 1 of physical memory created, 0 freed";
    assert!(report.contains(line), "{report}");
}

#[test]
fn a_retained_handle_keeps_the_memory() {
    let outcome = vmm("retained");
    outcome
        .only_snapshot()
        .expect_live(Physical, 1, CHUNK)
        .expect_kinds(&[Physical]);
    assert_eq!(outcome.only_snapshot().only(Physical).references, 1);
}

#[test]
fn a_retained_handle_released_as_often_leaves_nothing() {
    vmm("retained_and_released").only_snapshot().expect_clean();
}

#[test]
fn memory_mapped_twice_is_not_leaked_twice() {
    let outcome = vmm("mapped_twice");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Physical, 1, CHUNK).expect_live(Mapping, 2, 0);
    assert_eq!(snapshot.only(Physical).mappings, 2);
}

#[test]
fn a_mapping_is_on_the_device_of_its_memory_and_not_of_the_thread() {
    let outcome = vmm("mapped_without_context");
    let snapshot = outcome.only_snapshot();
    let (memory, mapping) = (snapshot.only(Physical), snapshot.only(Mapping));
    assert_eq!(mapping.context, None, "no context was current");
    assert_eq!((memory.device, mapping.device), (Some(0), Some(0)));
}

#[test]
fn memory_mapped_twice_and_unmapped_once_is_live() {
    expect_mapped_once(&vmm("mapped_twice_unmapped_once"));
}

#[test]
fn one_unmap_may_cover_several_mappings() {
    vmm("unmapped_together").only_snapshot().expect_clean();
}

#[test]
fn a_reused_handle_number_is_new_memory() {
    let outcome = vmm("handle_reused");
    let snapshot = outcome.only_snapshot();
    snapshot
        .expect_live(Physical, 1, CHUNK)
        .expect_live(Mapping, 1, 0)
        .expect_nothing_lost();
    assert_eq!(snapshot.counted(Physical).total_count, 101);
}

#[test]
fn a_release_and_an_unmap_that_fail_change_nothing() {
    let outcome = profile("vmm")
        .arg("release_fails")
        .failing("cuMemRelease:1:700,cuMemUnmap:1:700")
        .run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Physical, 1, CHUNK).expect_live(Mapping, 1, 0);
    assert_eq!(
        (snapshot.only(Physical).references, snapshot.only(Physical).mappings),
        (1, 1)
    );
    assert_eq!(Handles::of(snapshot).expect("a handle").failed_releases, 1);
}

#[test]
fn a_handle_released_twice_is_a_failed_release_and_frees_nothing_more() {
    let outcome = vmm("released_twice mapped");
    expect_mapped_once(&outcome);
    let (snapshot, freed) = (outcome.only_snapshot(), vmm("released_twice"));
    freed.only_snapshot().expect_no_leaks();
    for snapshot in [snapshot, freed.only_snapshot()] {
        assert_eq!(Handles::of(snapshot).expect("a handle").failed_releases, 1);
        assert_eq!(snapshot.losses.unknown_frees, 0);
    }
    let report = freed.report();
    assert!(report.contains("1 release failed"), "{report}");
}

#[test]
fn a_map_that_fails_maps_nothing() {
    profile("vmm")
        .arg("map_fails")
        .failing("cuMemMap:1:700")
        .run()
        .only_snapshot()
        .expect_no_leaks();
}

#[test]
fn an_imported_handle_counts_0_bytes() {
    let outcome = vmm("imported");
    let snapshot = outcome.only_snapshot();
    let held: u64 = snapshot.allocations.iter().map(|a| a.bytes).sum();
    assert_eq!(
        held, CHUNK,
        "memory counts once, however many handles exist: {:#?}",
        snapshot.allocations
    );
    vmm("imported free").only_snapshot().expect_clean();
}
