//! A sum against a plain one, step by step; and threads with a known peak.

use super::*;
use proptest::prelude::*;

#[derive(Default)]
struct Shard {
    word: AtomicU64,
    hint: AtomicU32,
}

struct Owned {
    central: CentralCredit,
    shards: Vec<Shard>,
}

type Words<'a> = std::iter::Map<std::slice::Iter<'a, Shard>, fn(&'a Shard) -> &'a AtomicU64>;

impl Owned {
    fn new(shards: usize) -> Owned {
        let word = || AtomicU64::new(0);
        Owned {
            central: CentralCredit {
                word: word(),
                issued: word(),
            },
            shards: (0..shards).map(|_| Shard::default()).collect(),
        }
    }

    fn shard<'a>(&'a self, shard: usize) -> Sum<'a, impl Fn() -> Words<'a> + Copy> {
        let local = &self.shards[shard];
        Sum {
            central: &self.central,
            local: LocalCredit {
                word: &local.word,
                hint: &local.hint,
            },
            shards: || self.words(),
        }
    }

    fn words(&self) -> Words<'_> {
        self.shards.iter().map(|shard| &shard.word)
    }

    fn live(&self) -> u64 {
        live(&self.central, self.words())
    }

    fn stage(&self) -> Stage {
        Word(self.central.word.load(Relaxed)).stage()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn without_concurrency_peak_and_sum_are_those_of_a_plain_sum(
        steps in prop::collection::vec((0usize..5, any::<bool>(), 1u64..100), 1..if cfg!(miri) { 60 } else { 2000 })
    ) {
        let owned = Owned::new(5);
        let (mut held, mut sum, mut peak) = (Vec::new(), 0u64, 0u64);
        for (shard, grows, amount) in steps {
            if grows {
                owned.shard(shard).grow(amount);
                held.push(amount);
                sum += amount;
                peak = peak.max(sum);
            } else if let Some(amount) = held.pop() {
                owned.shard(shard).shrink(amount);
                sum -= amount;
            }
            prop_assert_eq!(owned.live(), sum);
            prop_assert_eq!(owned.central.peak(), peak);
        }
    }
}

#[test]
fn a_program_below_its_peak_leaves_the_central_credit_alone() {
    let owned = Owned::new(2);
    owned.shard(0).grow(1000);
    owned.shard(0).shrink(1000);
    for _ in 0..=CALM {
        owned.shard(0).grow(10);
        owned.shard(0).shrink(10);
    }
    assert_eq!(owned.stage(), Stage::Open);
    owned.shard(1).grow(10);
    owned.shard(1).shrink(10);
    let before = owned.central.word.load(Relaxed);
    for _ in 0..1000 {
        owned.shard(1).grow(10);
        owned.shard(1).shrink(10);
    }
    assert_eq!(owned.central.word.load(Relaxed), before);
    assert_eq!((owned.live(), owned.central.peak()), (0, 1000));
}

#[test]
fn the_stage_opens_after_a_number_of_events_without_a_new_peak() {
    let owned = Owned::new(1);
    let event = |number: u32| {
        owned.shard(0).change(10, number % 2 == 1);
    };
    for peak in [1000, 2000] {
        owned.shard(0).grow(peak - owned.live());
        owned.shard(0).shrink(100);
        // The event above has seen the new peak, and is not counted.
        for number in 1..CALM {
            event(number);
            assert_eq!(owned.stage(), Stage::Shared, "event {number} after the peak {peak}");
        }
    }
    event(CALM);
    assert_eq!(owned.stage(), Stage::Open);
}

#[test]
fn credit_returned_in_another_shard_is_used_before_new_credit_is_issued() {
    let owned = Owned::new(3);
    owned.shard(0).grow(1000);
    owned.shard(0).shrink(900);
    for _ in 0..=CALM {
        owned.shard(0).grow(1);
        owned.shard(0).shrink(1);
    }
    // All unused credit moves to shard 1, in small pieces.
    for _ in 0..90 {
        owned.shard(0).grow(10);
        owned.shard(1).shrink(10);
    }
    assert!(!owned.shard(2).grow(900), "900 are unused, in another shard");
    assert_eq!((owned.live(), owned.central.peak()), (1000, 1000));
    assert!(owned.shard(2).grow(1));
    assert_eq!(owned.central.peak(), 1001);
}

#[test]
fn a_word_of_an_open_stage_is_changed_alone_as_far_as_its_credit_goes() {
    let owned = Owned::new(1);
    let local = owned.shard(0).local;
    owned.shard(0).grow(1000);
    owned.shard(0).shrink(300);
    assert!(!local.change_alone(10, true), "the stage is shared");
    for _ in 0..CALM {
        owned.shard(0).grow(10);
        owned.shard(0).shrink(10);
    }
    assert_eq!(owned.stage(), Stage::Open);
    owned.shard(0).shrink(50);
    let (before, credit) = (owned.live(), Word(local.word.load(Relaxed)).amount());
    assert!(local.change_alone(20, true) && local.change_alone(5, false));
    assert_eq!(owned.live(), before + 15);
    assert!(!local.change_alone(credit - 14, true), "one more than is left");
    assert!(local.change_alone(credit - 15, true));
    assert_eq!((owned.live(), owned.central.peak()), (before + credit, 1000));
}

#[test]
fn amounts_beyond_the_largest_are_limited_and_cancel_out() {
    let owned = Owned::new(1);
    owned.shard(0).grow(u64::MAX);
    assert_eq!(owned.live(), LARGEST);
    owned.shard(0).shrink(u64::MAX);
    assert_eq!((owned.live(), owned.central.peak()), (0, LARGEST));
}

/// All threads hold their amounts at once, repeatedly, with small blocks in between: the peak is the sum of the amounts.
#[test]
fn threads_that_hold_their_amounts_at_once_reach_exactly_the_sum() {
    const THREADS: usize = 4;
    let owned = Owned::new(THREADS);
    let barrier = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (owned, barrier) = (&owned, &barrier);
            scope.spawn(move || {
                let sum = owned.shard(thread);
                let amount = 1000 + thread as u64;
                for round in 0..if cfg!(miri) { 2 } else { 200 } {
                    for step in 0..50 {
                        sum.grow(1 + (step * 7 + round) % amount);
                        sum.shrink(1 + (step * 7 + round) % amount);
                    }
                    sum.grow(amount);
                    barrier.wait();
                    let total: u64 = (0..THREADS as u64).map(|thread| 1000 + thread).sum();
                    assert_eq!(owned.central.peak(), total);
                    assert_eq!(owned.live(), total);
                    barrier.wait();
                    sum.shrink(amount);
                }
            });
        }
    });
    assert_eq!(owned.live(), 0);
}

/// Two kinds on one device, each used by many threads: all threads pause when the peaks are reached.
#[test]
fn two_sums_changed_by_each_event_keep_both_peaks() {
    const THREADS: usize = 4;
    #[derive(Default)]
    struct Sums {
        kinds: [CentralCredit; 2],
        device: CentralCredit,
        /// The local words of each thread, for its kind and the device.
        words: [[AtomicU64; 2]; THREADS],
        hints: [[AtomicU32; 2]; THREADS],
    }
    let sums = Sums::default();
    let barrier = std::sync::Barrier::new(THREADS);
    let change = |thread: usize, amount: u64, more: bool| {
        let kind = thread % 2;
        let local = |place: usize| LocalCredit {
            word: &sums.words[thread][place],
            hint: &sums.hints[thread][place],
        };
        let one = Sum {
            central: &sums.kinds[kind],
            local: local(0),
            shards: || sums.words[kind..].iter().step_by(2).map(|words| &words[0]),
        };
        let other = Sum {
            central: &sums.device,
            local: local(1),
            shards: || sums.words.iter().map(|words| &words[1]),
        };
        one.change(amount, more);
        other.change(amount, more);
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (barrier, change, sums) = (&barrier, &change, &sums);
            scope.spawn(move || {
                let amount = 1000 + thread as u64;
                for round in 0..if cfg!(miri) { 2 } else { 200 } {
                    for step in 0..50 {
                        change(thread, 1 + (step * 7 + round) % amount, true);
                        change(thread, 1 + (step * 7 + round) % amount, false);
                    }
                    change(thread, amount, true);
                    barrier.wait();
                    assert_eq!(sums.kinds.each_ref().map(CentralCredit::peak), [2002, 2004]);
                    assert_eq!(sums.device.peak(), 4006);
                    barrier.wait();
                    change(thread, amount, false);
                }
            });
        }
    });
    let live_on_device = live(&sums.device, sums.words.iter().map(|words| &words[1]));
    assert_eq!(live_on_device, 0);
}
