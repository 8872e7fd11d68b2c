//! A walk with a trail gives the same result as a walk without, however the stack changed in between.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use culeak_walker::{End, Registers, Summary, Trail, mix_in, walk};

const SEED: u64 = 7;
const NOTHING: (u64, u64) = (0, 0);

/// The result of a walk without a trail.
fn expected(start: Registers, without: (u64, u64)) -> Summary {
    let mut addresses = [0; 512];
    let walked = walk(start, &mut addresses);
    assert_eq!(walked.end, End::Root);
    let kept = |address: &&u64| !(without.0..without.1).contains(address);
    let addresses = addresses[..walked.count].iter().rev().filter(kept);
    addresses.fold(Summary { hash: SEED, count: 0 }, |sum, &address| Summary {
        hash: mix_in(sum.hash, address),
        count: sum.count + 1,
    })
}

struct Checker {
    trail: Trail,
    followed: u32,
    not_followed: u32,
}

impl Checker {
    fn new() -> Checker {
        Checker {
            trail: Trail::new(),
            followed: 0,
            not_followed: 0,
        }
    }

    #[inline(never)]
    fn check(&mut self) {
        self.check_without(NOTHING);
    }

    #[inline(always)]
    fn check_without(&mut self, without: (u64, u64)) {
        let here = Registers::here();
        match self.trail.follow(here, without, SEED, true) {
            Some(summary) => {
                assert_eq!(summary, expected(here, without));
                self.followed += 1;
            }
            None => {
                // The walk without a trail inserts the missing rules.
                expected(here, without);
                self.not_followed += 1;
            }
        }
    }
}

fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    *state >> 33
}

/// Frames of many shapes: small, large, and aligned at run time.
#[inline(never)]
fn narrow(depth: u64, state: &mut u64, checker: &mut Checker) -> u64 {
    descend(depth, state, checker) + 1
}

#[inline(never)]
fn wide(depth: u64, state: &mut u64, checker: &mut Checker) -> u64 {
    let mut room = [depth; 40];
    black_box(&mut room);
    descend(depth, state, checker) + black_box(room[7])
}

#[inline(never)]
fn aligned(depth: u64, state: &mut u64, checker: &mut Checker) -> u64 {
    #[repr(align(128))]
    struct Aligned([u64; 16]);
    let mut room = Aligned([depth; 16]);
    black_box(&mut room);
    let below = descend(depth, state, checker);
    below + black_box(room.0[3])
}

#[inline(never)]
fn twice(depth: u64, state: &mut u64, checker: &mut Checker) -> u64 {
    let first = descend(depth.saturating_sub(3), state, checker);
    first + descend(depth, state, checker)
}

#[inline(never)]
fn descend(depth: u64, state: &mut u64, checker: &mut Checker) -> u64 {
    if depth == 0 {
        checker.check();
        return 0;
    }
    match random(state) % 9 {
        0..3 => narrow(depth - 1, state, checker),
        3..6 => wide(depth - 1, state, checker),
        6..8 => aligned(depth - 1, state, checker),
        _ => {
            checker.check();
            twice(depth - 1, state, checker)
        }
    }
}

#[test]
fn stacks_that_change_anywhere_give_the_same_result_as_without_a_trail() {
    let mut checker = Checker::new();
    let mut state = 1;
    for round in 0..20_000 {
        black_box(descend(2 + round % 25, &mut state, &mut checker));
    }
    assert!(
        checker.followed > 5 * checker.not_followed && checker.followed > 20_000,
        "{} followed, {} not",
        checker.followed,
        checker.not_followed
    );
}

#[test]
fn another_caller_further_out_is_noticed() {
    #[inline(never)]
    fn left(checker: &mut Checker) -> u64 {
        middle(checker) + 1
    }
    #[inline(never)]
    fn right(checker: &mut Checker) -> u64 {
        middle(checker) + 2
    }
    #[inline(never)]
    fn middle(checker: &mut Checker) -> u64 {
        checker.check();
        black_box(0)
    }
    let mut checker = Checker::new();
    for round in 0..1000 {
        black_box(if round % 2 == 0 {
            left(&mut checker)
        } else {
            right(&mut checker)
        });
    }
    assert!(checker.followed > 800, "{} followed", checker.followed);
}

#[test]
fn excluded_code_is_neither_counted_nor_hashed() {
    let mut checker = Checker::new();
    let middle = stacks_that_change_anywhere_give_the_same_result_as_without_a_trail as *const () as usize as u64;
    for _ in 0..200 {
        checker.check_without((middle & !0xffff, (middle & !0xffff) + 0x20000));
    }
    assert!(checker.followed > 100);
}

#[test]
fn stacks_deeper_than_the_trail_are_not_followed() {
    #[inline(never)]
    fn deep(depth: u32, checker: &mut Checker) -> u32 {
        if depth == 0 {
            checker.check();
            return black_box(0);
        }
        deep(depth - 1, checker) + 1
    }
    let mut checker = Checker::new();
    for _ in 0..300 {
        black_box(deep(300, &mut checker));
    }
    assert_eq!((checker.followed, checker.not_followed), (0, 300));
    for _ in 0..300 {
        black_box(deep(50, &mut checker));
    }
    assert!(checker.followed > 200, "{} followed", checker.followed);
}

#[test]
fn threads_that_share_a_trail_get_their_own_stack_or_none() {
    static SHARED: Trail = Trail::new();
    // Counted for all threads together: one that is suspended while it holds the trail may block all others.
    static FOLLOWED: AtomicU32 = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let here = Registers::here();
                    let expected = expected(here, NOTHING);
                    if let Some(summary) = SHARED.follow(here, NOTHING, SEED, false) {
                        assert_eq!(summary, expected);
                        FOLLOWED.fetch_add(1, Relaxed);
                    }
                }
            });
        }
    });
    assert!(FOLLOWED.load(Relaxed) > 0);
}
