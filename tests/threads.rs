//! Threads: many over time, many at once, with small stacks, and in their destructors.

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::{profile, program, shim};

#[test]
fn records_of_a_thousand_finished_threads_remain() {
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
fn counters_are_exact_where_a_seccomp_filter_hides_live_threads() {
    let outcome = profile("threads").tiny_driver().arg("without_tgkill").run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_clean();
    assert_eq!(snapshot.counted(Device).total_count, 120 * 3000 * 8);
}

#[test]
fn memory_freed_by_a_thread_that_is_ending_is_freed() {
    // Key destructors run after thread-local storage of libraries was destroyed.
    profile("threads")
        .tiny_driver()
        .arg("key_destructor")
        .run()
        .only_snapshot()
        .expect_clean();
}

#[test]
fn a_thread_with_a_small_stack_does_not_overflow() {
    profile("threads")
        .arg("small_stack")
        .run()
        .only_snapshot()
        .expect_live(Device, 1, 9);
}

#[test]
fn a_library_that_is_opened_later_records_threads_that_run_already() {
    let victim = executable("opened_later", &["-pthread"], &[]);
    let outcome = program(victim).arg(shim()).bare().env("CULEAK_OUTPUT", "../out/").run();
    outcome.expect_success();
    let snapshot = outcome.only_recording();
    let mut bytes: Vec<u64> = snapshot.of_kind(Device).iter().map(|record| record.bytes).collect();
    bytes.sort();
    assert_eq!(bytes, [100, 200]);
}
