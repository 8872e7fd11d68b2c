//! Every interleaving of two threads that allocate and free while an interval begins.

use super::*;
use crate::lockfree::sync::modelled::{Proof, models, with_stores_in_order};
use ::loom::thread::spawn;

fn intervals() -> &'static Intervals {
    with_stores_in_order();
    Box::leak(Box::default())
}

fn event(time_ns: u64, bytes: u64) -> Event {
    Event {
        slot: None,
        time_ns,
        bytes,
        on_device: true,
    }
}

fn all(intervals: &Intervals, round: u64) -> Reading {
    intervals.read(round, ALL).expect("the last one")
}

fn the_peak_is_that_of_one_order_or_another() {
    let intervals = intervals();
    let round = intervals.begin(1, 0);
    let other = spawn(|| intervals.allocated(&event(1, 5)));
    intervals.allocated(&event(1, 3));
    intervals.freed(&event(1, 3));
    other.join().unwrap();
    let all = all(intervals, round);
    assert_eq!((all.left_bytes, all.left_count, all.held_bytes), (5, 1, 5));
    assert!([5, 8].contains(&all.peak_bytes), "{all:?}");
}

fn two_that_stay_are_the_peak() {
    let intervals = intervals();
    let round = intervals.begin(1, 0);
    let other = spawn(|| intervals.allocated(&event(1, 5)));
    intervals.allocated(&event(1, 3));
    other.join().unwrap();
    let all = all(intervals, round);
    assert_eq!((all.left_bytes, all.peak_bytes), (8, 8));
}

/// An allocation from before the interval does not change it, whenever its two events happen.
fn an_older_allocation_leaves_no_trace() {
    let intervals = intervals();
    intervals.begin(1, 0);
    let other = spawn(|| {
        intervals.allocated(&event(1, 5));
        intervals.freed(&event(1, 5));
    });
    let round = intervals.begin(2, 0);
    other.join().unwrap();
    let all = all(intervals, round);
    assert_eq!((all.left_bytes, all.left_count, all.held_bytes), (0, 0, 0));
}

/// One allocation while the interval begins, and another afterwards, which every sum includes.
fn after_a_beginning_everything_counts() {
    let intervals = intervals();
    intervals.begin(1, 0);
    let other = spawn(|| intervals.allocated(&event(2, 5)));
    let round = intervals.begin(2, 0);
    other.join().unwrap();
    intervals.allocated(&event(3, 3));
    let all = all(intervals, round);
    assert!([3, 8].contains(&all.left_bytes), "{all:?}");
    assert_eq!(all.peak_bytes, all.left_bytes);
    assert_eq!(all.held_bytes, 8);
}

const PROOF: Proof = Proof {
    files: &["src/lockfree/intervals.rs"],
    models: models![
        the_peak_is_that_of_one_order_or_another,
        two_that_stay_are_the_peak,
        an_older_allocation_leaves_no_trace,
        after_a_beginning_everything_counts,
    ],
    harmless: &[],
};

#[test]
fn loom_intervals_hold_and_every_mistake_in_them_is_noticed() {
    PROOF.check();
}
