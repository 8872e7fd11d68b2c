//! Threads created and gone, many at once, with small stacks and destructors.

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::profile;

#[test]
fn a_thousand_threads_come_and_go_and_no_record_with_them() {
    let outcome = profile("threads").arg("created_and_gone").run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 1000, 8000).expect_nothing_lost();
}

#[test]
fn eight_threads_at_once_lose_nothing() {
    let outcome = profile("threads").arg("at_once").run();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Device, 800, 800 * 64).expect_nothing_lost();
    assert_eq!(snapshot.counted(Device).total_count, 40_000);
    let threads: std::collections::HashSet<_> = snapshot.allocations.iter().map(|a| a.thread).collect();
    assert_eq!(threads.len(), 8);
}

#[test]
fn threads_keep_their_counters_where_a_filter_hides_which_threads_are_alive() {
    let outcome = profile("threads").tiny_driver().arg("without_tgkill").run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_no_leaks().expect_nothing_lost();
    assert_eq!(snapshot.counted(Device).total_count, 120 * 3000 * 8);
}

#[test]
fn memory_freed_by_a_thread_that_is_ending_is_freed() {
    // Key destructors run when thread-local storage of libraries is gone already.
    profile("threads")
        .tiny_driver()
        .arg("key_destructor")
        .run()
        .only_snapshot()
        .expect_no_leaks()
        .expect_nothing_lost();
}

#[test]
fn a_thread_with_a_small_stack_survives() {
    profile("threads")
        .arg("small_stack")
        .run()
        .only_snapshot()
        .expect_live(Device, 1, 9);
}
