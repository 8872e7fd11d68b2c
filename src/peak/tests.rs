//! The sum against a plain one, step by step; and threads whose peak is known.

use super::*;
use proptest::prelude::*;

struct Owned {
    pot: Pot,
    lanes: Vec<Lane>,
}

impl Owned {
    fn new(lanes: usize) -> Owned {
        let word = || AtomicU64::new(0);
        Owned {
            pot: Pot {
                word: word(),
                minted: word(),
            },
            lanes: (0..lanes)
                .map(|_| Lane {
                    word: word(),
                    calm: word(),
                    seen: word(),
                })
                .collect(),
        }
    }

    fn lane<'a>(&'a self, lane: usize) -> Sum<'a, impl Fn() -> std::slice::Iter<'a, Lane>> {
        Sum {
            pot: &self.pot,
            own: &self.lanes[lane],
            lanes: || self.lanes.iter(),
        }
    }

    fn live(&self) -> u64 {
        live(&self.pot, self.lanes.iter())
    }

    fn stage(&self) -> Stage {
        Word(self.pot.word.load(Relaxed)).stage()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_after_the_other_peak_and_sum_are_those_of_a_plain_sum(
        steps in prop::collection::vec((0usize..5, any::<bool>(), 1u64..100), 1..if cfg!(miri) { 60 } else { 2000 })
    ) {
        let owned = Owned::new(5);
        let (mut held, mut sum, mut peak) = (Vec::new(), 0u64, 0u64);
        for (lane, take, amount) in steps {
            if take {
                owned.lane(lane).take(amount);
                held.push(amount);
                sum += amount;
                peak = peak.max(sum);
            } else if let Some(amount) = held.pop() {
                owned.lane(lane).give(amount);
                sum -= amount;
            }
            prop_assert_eq!(owned.live(), sum);
            prop_assert_eq!(owned.pot.peak(), peak);
        }
    }
}

#[test]
fn a_program_below_its_peak_leaves_the_pot_alone() {
    let owned = Owned::new(2);
    owned.lane(0).take(1000);
    owned.lane(0).give(1000);
    for _ in 0..=CALM {
        owned.lane(0).take(10);
        owned.lane(0).give(10);
    }
    assert_eq!(owned.stage(), Stage::Open);
    owned.lane(1).take(10);
    owned.lane(1).give(10);
    let before = owned.pot.word.load(Relaxed);
    for _ in 0..1000 {
        owned.lane(1).take(10);
        owned.lane(1).give(10);
    }
    assert_eq!(owned.pot.word.load(Relaxed), before);
    assert_eq!((owned.live(), owned.pot.peak()), (0, 1000));
}

#[test]
fn tokens_freed_in_another_lane_are_found_before_new_ones_are_minted() {
    let owned = Owned::new(3);
    owned.lane(0).take(1000);
    owned.lane(0).give(900);
    for _ in 0..=CALM {
        owned.lane(0).take(1);
        owned.lane(0).give(1);
    }
    // Everything that is free moves to lane 1, in small pieces.
    for _ in 0..90 {
        owned.lane(0).take(10);
        owned.lane(1).give(10);
    }
    assert!(!owned.lane(2).take(900), "900 are free, in another lane");
    assert_eq!((owned.live(), owned.pot.peak()), (1000, 1000));
    assert!(owned.lane(2).take(1));
    assert_eq!(owned.pot.peak(), 1001);
}

#[test]
fn amounts_no_machine_holds_are_cut_and_cancel_out() {
    let owned = Owned::new(1);
    owned.lane(0).take(u64::MAX);
    assert_eq!(owned.live(), LARGEST);
    owned.lane(0).give(u64::MAX);
    assert_eq!((owned.live(), owned.pot.peak()), (0, LARGEST));
}

/// Every thread holds its share at once, again and again, with small blocks in between: the peak is the sum of shares.
#[test]
fn threads_that_all_hold_their_share_at_once_reach_exactly_the_sum_of_shares() {
    const THREADS: usize = 4;
    let owned = Owned::new(THREADS);
    let barrier = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (owned, barrier) = (&owned, &barrier);
            scope.spawn(move || {
                let sum = owned.lane(thread);
                let share = 1000 + thread as u64;
                for round in 0..if cfg!(miri) { 2 } else { 200 } {
                    for step in 0..50 {
                        sum.take(1 + (step * 7 + round) % share);
                        sum.give(1 + (step * 7 + round) % share);
                    }
                    sum.take(share);
                    barrier.wait();
                    let total: u64 = (0..THREADS as u64).map(|thread| 1000 + thread).sum();
                    assert_eq!(owned.pot.peak(), total);
                    assert_eq!(owned.live(), total);
                    barrier.wait();
                    sum.give(share);
                }
            });
        }
    });
    assert_eq!(owned.live(), 0);
}
