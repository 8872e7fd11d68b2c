//! Signals: hooks are interrupted, entered again from handlers, and left by `siglongjmp`.
//!
//! These run on a driver without locks, so that whatever hangs or crashes is the recorder.

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::{Outcome, profile};

fn signals(behaviour: &str) -> Outcome {
    let outcome = profile("signals").tiny_driver().arg(behaviour).run();
    outcome.expect_success();
    outcome
}

#[test]
fn hooks_interrupted_a_thousand_times_a_second_record_on() {
    let outcome = signals("interrupted");
    outcome.only_snapshot().expect_live(Device, 1, 65).expect_nothing_lost();
}

#[test]
fn memory_taken_inside_a_signal_handler_is_recorded() {
    let outcome = signals("allocated_in_handler");
    assert!(outcome.stdout.contains("kept 300"), "{}", outcome.stdout);
    let snapshot = outcome.only_snapshot();
    let told = &snapshot.losses;
    let found = snapshot.of_kind(Device).iter().filter(|a| a.bytes == 32).count() as u64;
    // In the middle of recording, the handler's own block may be impossible to record: then it is counted as lost.
    assert_eq!(found + told.lost_allocations, 300, "{told:#?}");
    assert!(found > 0);
}

#[test]
fn a_handler_on_its_own_stack_is_recorded() {
    let outcome = signals("on_alternate_stack");
    outcome
        .only_snapshot()
        .expect_live(Device, 11, 351)
        .expect_nothing_lost();
}

#[test]
fn hooks_left_by_siglongjmp_stop_nothing() {
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
        "recording goes on afterwards"
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
        "recording goes on afterwards"
    );
}

#[test]
fn the_programs_handlers_and_masks_stay_its_own() {
    for behaviour in ["interrupted", "on_alternate_stack"] {
        signals(behaviour).expect_same_output_as_bare();
    }
}
