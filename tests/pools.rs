//! Stream-ordered memory, its pools and streams, and memory of other processes.

use culeak::kind::Kind::*;
use culeak::snapshot::Stream;

use crate::support::claims::Claims;
use crate::support::{Outcome, profile};

fn pools(words: &str) -> Outcome {
    profile("pools").args(words).run()
}

/// The number that the victim printed after a word.
fn printed(outcome: &Outcome, word: &str) -> u64 {
    let line = outcome
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix(word))
        .expect("the victim prints it");
    line.trim().parse().expect("a number")
}

#[test]
fn default_streams_differ_from_each_other_and_from_handles() {
    let outcome = pools("streams");
    let stream = Stream::Handle(printed(&outcome, "stream "));
    let snapshot = outcome.only_snapshot();
    let found: Vec<_> = snapshot
        .of_kind(Async)
        .iter()
        .map(|a| (a.bytes, a.stream.expect("known")))
        .collect();
    use Stream::{LegacyDefault, PerThreadDefault};
    let expected = [
        (100, LegacyDefault),
        (101, LegacyDefault),
        (102, PerThreadDefault),
        (103, stream),
        (104, PerThreadDefault),
        (105, LegacyDefault),
    ];
    assert_eq!(found, expected);
}

#[test]
fn memory_of_a_named_pool_names_the_pool() {
    let outcome = pools("named_pool");
    let snapshot = outcome.only_snapshot();
    assert_eq!(snapshot.only(Async).pool, Some(printed(&outcome, "pool ")));
    assert_eq!(snapshot.only(Pool).address, printed(&outcome, "pool "));
}

#[test]
fn memory_of_the_devices_pool_names_the_pool_after_the_program_replaced_it() {
    for behaviour in ["current_pool", "current_pool_of_location"] {
        let outcome = pools(behaviour);
        let found: Vec<_> = outcome
            .only_snapshot()
            .of_kind(Async)
            .iter()
            .map(|a| (a.bytes, a.pool))
            .collect();
        let expected = [(100, None), (200, Some(printed(&outcome, "pool ")))];
        assert_eq!(found, expected, "{behaviour}");
    }
}

#[test]
fn memory_outlives_the_destruction_of_its_pool() {
    let outcome = pools("destroyed_with_memory");
    outcome
        .only_snapshot()
        .expect_live(Async, 1, 100)
        .expect_kinds(&[Async]);
    pools("destroyed_with_memory free").only_snapshot().expect_clean();
}

#[test]
fn memory_of_a_pool_in_host_memory_is_pinned_and_on_no_device() {
    let outcome = pools("pool_on_host");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(HostPinned, 1, 100);
    assert_eq!(snapshot.only(HostPinned).device, None);
}

#[test]
fn memory_of_a_devices_default_pool_is_on_that_device() {
    let outcome = pools("pool_elsewhere");
    let snapshot = outcome.only_snapshot();
    let device = snapshot.only(Async).device.map(|index| snapshot.devices[index].ordinal);
    assert_eq!(device, Some(1));
}

#[test]
fn pages_retained_by_a_pool_are_no_leak() {
    pools("trimmed").only_snapshot().expect_clean();
}

#[test]
fn an_imported_pool_and_its_pointers_count_0_bytes() {
    let outcome = pools("imported");
    let snapshot = outcome.only_snapshot();
    let held: u64 = snapshot.allocations.iter().map(|a| a.bytes).sum();
    assert_eq!(held, 100, "{:#?}", snapshot.allocations);
    snapshot.expect_live(PoolImport, 2, 0);
    pools("imported free").only_snapshot().expect_clean();
}

#[test]
fn memory_opened_from_another_process_counts_for_its_owner() {
    let outcome = profile("sharing").arg("owner").run();
    outcome.expect_success();
    outcome
        .recording_of("owner")
        .expect_live(Device, 1, 4096)
        .expect_kinds(&[Device]);
    let opener = outcome.recording_of("opener");
    opener.expect_live(Ipc, 1, 0).expect_kinds(&[Ipc]);
    assert_eq!(opener.only(Ipc).references, 1, "opened twice, closed once");
    assert_eq!(opener.only(Ipc).requested, 4096, "the size of the owner's block");
}

#[test]
fn memory_opened_and_closed_leaves_nothing() {
    let outcome = profile("sharing").arg("polite_owner").run();
    outcome.expect_success();
    outcome.recording_of("polite_owner").expect_clean();
    outcome.recording_of("polite_opener").expect_clean();
}
