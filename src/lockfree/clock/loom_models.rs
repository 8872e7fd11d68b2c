//! Every interleaving of a thread that stores readings of the clock with one that uses them.

use super::*;
use crate::lockfree::sync::modelled::{Mistake, Proof, models, with_stores_in_order};
use ::loom::thread::spawn;

/// A counter that begins at 0 and ticks once a nanosecond; the clock is this much later.
const BEGIN_NS: u64 = 5_000_000_000;

fn clock() -> &'static Clock {
    with_stores_in_order();
    let clock: &'static Clock = Box::leak(Box::default());
    clock.begin(0, BEGIN_NS);
    clock
}

fn learn_at(clock: &Clock, ticks: u64) {
    clock.learn(ticks, BEGIN_NS + ticks);
}

fn assert_true_at(clock: &Clock, ticks: u64) {
    if let Some(ns) = clock.at(ticks, 1) {
        assert_eq!(ns, BEGIN_NS + ticks);
    }
}

/// The second reading shows a clock that is ahead: a mixture of both would be neither.
fn no_event_gets_half_a_reading() {
    let clock = clock();
    learn_at(clock, BASE_NS);
    let later = BASE_NS + WINDOW_NS;
    let other = spawn(move || clock.learn(later, BEGIN_NS + later + 1_000));
    let at = later + 1;
    if let Some(ns) = clock.at(at, 1) {
        assert_eq!(ns, BEGIN_NS + at + 1_000);
    }
    other.join().unwrap();
}

/// Two threads learn one after the other, or one of them does not.
fn two_that_learn_leave_one_reading() {
    let clock = clock();
    let other = spawn(|| learn_at(clock, BASE_NS));
    learn_at(clock, BASE_NS + 7);
    assert_true_at(clock, BASE_NS + 8);
    other.join().unwrap();
    assert_true_at(clock, BASE_NS + 8);
    assert!(clock.at(BASE_NS + 8, 1).is_some());
}

/// One thread finds that the counter has another rate; a thread that learns after it does not use the counter again.
fn what_one_found_the_next_one_knows() {
    let clock = clock();
    learn_at(clock, BASE_NS);
    let other = spawn(|| clock.learn(3 * BASE_NS, BEGIN_NS + 2 * BASE_NS));
    learn_at(clock, BASE_NS + 9);
    other.join().unwrap();
    // Unless they met, both have learned, in one order or the other.
    if clock.version.load(Relaxed) == 6 {
        assert!(clock.at(BASE_NS + 9, 1).is_none());
    }
}

const PROOF: Proof = Proof {
    files: &["src/lockfree/clock.rs"],
    models: models![
        no_event_gets_half_a_reading,
        two_that_learn_leave_one_reading,
        what_one_found_the_next_one_knows,
    ],
    harmless: &[(
        Mistake::HalfCompared,
        "compare_exchange",
        "a version comes back after 2^32 changes, which take weeks",
    )],
};

#[test]
fn loom_no_time_is_wrong_and_every_mistake_in_the_clock_is_noticed() {
    PROOF.check();
}
