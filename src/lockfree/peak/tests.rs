//! The sum against a plain one, step by step; and threads whose peak is known.

use super::*;
use proptest::prelude::*;

#[derive(Default)]
struct Shard {
    word: AtomicU64,
    hint: AtomicU32,
}

struct Owned {
    pot: CentralCredit,
    shards: Vec<Shard>,
}

type Words<'a> = std::iter::Map<std::slice::Iter<'a, Shard>, fn(&'a Shard) -> &'a AtomicU64>;

impl Owned {
    fn new(shards: usize) -> Owned {
        let word = || AtomicU64::new(0);
        Owned {
            pot: CentralCredit {
                word: word(),
                minted: word(),
            },
            shards: (0..shards).map(|_| Shard::default()).collect(),
        }
    }

    fn shard<'a>(&'a self, shard: usize) -> Sum<'a, impl Fn() -> Words<'a>> {
        let own = &self.shards[shard];
        Sum {
            pot: &self.pot,
            own: Own {
                word: &own.word,
                hint: &own.hint,
            },
            shards: || self.words(),
        }
    }

    fn words(&self) -> Words<'_> {
        self.shards.iter().map(|shard| &shard.word)
    }

    fn live(&self) -> u64 {
        live(&self.pot, self.words())
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
        for (shard, take, amount) in steps {
            if take {
                owned.shard(shard).take(amount);
                held.push(amount);
                sum += amount;
                peak = peak.max(sum);
            } else if let Some(amount) = held.pop() {
                owned.shard(shard).give(amount);
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
    owned.shard(0).take(1000);
    owned.shard(0).give(1000);
    for _ in 0..=CALM {
        owned.shard(0).take(10);
        owned.shard(0).give(10);
    }
    assert_eq!(owned.stage(), Stage::Open);
    owned.shard(1).take(10);
    owned.shard(1).give(10);
    let before = owned.pot.word.load(Relaxed);
    for _ in 0..1000 {
        owned.shard(1).take(10);
        owned.shard(1).give(10);
    }
    assert_eq!(owned.pot.word.load(Relaxed), before);
    assert_eq!((owned.live(), owned.pot.peak()), (0, 1000));
}

#[test]
fn tokens_freed_in_another_shard_are_found_before_new_ones_are_minted() {
    let owned = Owned::new(3);
    owned.shard(0).take(1000);
    owned.shard(0).give(900);
    for _ in 0..=CALM {
        owned.shard(0).take(1);
        owned.shard(0).give(1);
    }
    // Everything that is free moves to shard 1, in small pieces.
    for _ in 0..90 {
        owned.shard(0).take(10);
        owned.shard(1).give(10);
    }
    assert!(!owned.shard(2).take(900), "900 are free, in another shard");
    assert_eq!((owned.live(), owned.pot.peak()), (1000, 1000));
    assert!(owned.shard(2).take(1));
    assert_eq!(owned.pot.peak(), 1001);
}

#[test]
fn amounts_no_machine_holds_are_cut_and_cancel_out() {
    let owned = Owned::new(1);
    owned.shard(0).take(u64::MAX);
    assert_eq!(owned.live(), LARGEST);
    owned.shard(0).give(u64::MAX);
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
                let sum = owned.shard(thread);
                let tally = 1000 + thread as u64;
                for round in 0..if cfg!(miri) { 2 } else { 200 } {
                    for step in 0..50 {
                        sum.take(1 + (step * 7 + round) % tally);
                        sum.give(1 + (step * 7 + round) % tally);
                    }
                    sum.take(tally);
                    barrier.wait();
                    let total: u64 = (0..THREADS as u64).map(|thread| 1000 + thread).sum();
                    assert_eq!(owned.pot.peak(), total);
                    assert_eq!(owned.live(), total);
                    barrier.wait();
                    sum.give(tally);
                }
            });
        }
    });
    assert_eq!(owned.live(), 0);
}

/// Two kinds on one device, each of many threads: their peaks and the device's are those of moments when all hold still.
#[test]
fn two_sums_changed_by_each_event_keep_both_peaks() {
    const THREADS: usize = 4;
    #[derive(Default)]
    struct Pots {
        kinds: [CentralCredit; 2],
        device: CentralCredit,
        /// Of a thread, for its kind and the device.
        words: [[AtomicU64; 2]; THREADS],
        hints: [[AtomicU32; 2]; THREADS],
    }
    let pots = Pots::default();
    let barrier = std::sync::Barrier::new(THREADS);
    let change = |thread: usize, amount: u64, more: bool| {
        let kind = thread % 2;
        let own = |place: usize| Own {
            word: &pots.words[thread][place],
            hint: &pots.hints[thread][place],
        };
        let one = Sum {
            pot: &pots.kinds[kind],
            own: own(0),
            shards: || pots.words[kind..].iter().step_by(2).map(|words| &words[0]),
        };
        let other = Sum {
            pot: &pots.device,
            own: own(1),
            shards: || pots.words.iter().map(|words| &words[1]),
        };
        if more {
            one.take(amount);
            other.take(amount);
        } else {
            one.give(amount);
            other.give(amount);
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (barrier, change, pots) = (&barrier, &change, &pots);
            scope.spawn(move || {
                let tally = 1000 + thread as u64;
                for round in 0..if cfg!(miri) { 2 } else { 200 } {
                    for step in 0..50 {
                        change(thread, 1 + (step * 7 + round) % tally, true);
                        change(thread, 1 + (step * 7 + round) % tally, false);
                    }
                    change(thread, tally, true);
                    barrier.wait();
                    assert_eq!(pots.kinds.each_ref().map(CentralCredit::peak), [2002, 2004]);
                    assert_eq!(pots.device.peak(), 4006);
                    barrier.wait();
                    change(thread, tally, false);
                }
            });
        }
    });
    let live_on_device = live(&pots.device, pots.words.iter().map(|words| &words[1]));
    assert_eq!(live_on_device, 0);
}
