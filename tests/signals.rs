//! Signals: hooks are interrupted, reentered from handlers, and left by `siglongjmp`.
//!
//! The driver here has no locks, so any hang or crash is the recorder's.

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::{Outcome, profile};

fn signals(behaviour: &str) -> Outcome {
    let outcome = profile("signals").tiny_driver().arg(behaviour).run();
    outcome.expect_success();
    outcome
}

#[test]
fn hooks_interrupted_a_thousand_times_a_second_keep_recording() {
    let outcome = signals("interrupted");
    outcome.only_snapshot().expect_live(Device, 1, 65).expect_nothing_lost();
}

#[test]
fn memory_allocated_inside_a_signal_handler_is_recorded() {
    let outcome = signals("allocated_in_handler");
    assert!(outcome.stdout.contains("kept 300"), "{}", outcome.stdout);
    let snapshot = outcome.only_snapshot();
    let losses = &snapshot.losses;
    let found = snapshot.of_kind(Device).iter().filter(|a| a.bytes == 32).count() as u64;
    // A handler that interrupts the recorder may be unable to record its own block; the block is then counted as lost.
    assert_eq!(found + losses.lost_allocations, 300, "{losses:#?}");
    assert!(found > 0);
}

#[test]
fn a_handler_on_an_alternate_stack_is_recorded() {
    let outcome = signals("on_alternate_stack");
    outcome
        .only_snapshot()
        .expect_live(Device, 11, 351)
        .expect_nothing_lost();
}

#[test]
fn recording_continues_after_siglongjmp_out_of_a_hook() {
    let outcome = profile("signals")
        .tiny_driver()
        .leaving_hooks_halfway()
        .arg("jumps_out")
        .run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    assert_eq!(
        snapshot.of_kind(Device).iter().filter(|a| a.bytes == 17).count(),
        1,
        "recording continues afterwards"
    );
}

#[test]
fn threads_cancelled_while_they_allocate_finish_the_call() {
    let outcome = signals("cancelled");
    assert!(outcome.stdout.contains("rounds"), "{}", outcome.stdout);
    outcome.only_snapshot().expect_nothing_lost();
    let snapshot = outcome.only_snapshot();
    assert_eq!(
        snapshot.of_kind(Device).iter().filter(|a| a.bytes == 17).count(),
        1,
        "recording continues afterwards"
    );
}

#[test]
fn the_programs_signal_handlers_and_masks_are_unchanged() {
    for behaviour in ["interrupted", "on_alternate_stack"] {
        signals(behaviour).expect_same_output_as_bare();
    }
}
