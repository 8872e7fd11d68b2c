//! A walk along a trail comes to what an ordinary walk comes to, whatever the stack did in between.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use culeak_walker::{End, Registers, Summary, Trail, mix_in, walk};

const SEED: u64 = 7;
const NOBODY: (u64, u64) = (0, 0);

/// What the ordinary walk says.
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

struct Tally {
    trail: Trail,
    followed: u32,
    refused: u32,
}

impl Tally {
    fn new() -> Tally {
        Tally {
            trail: Trail::new(),
            followed: 0,
            refused: 0,
        }
    }

    #[inline(never)]
    fn check(&mut self) {
        self.check_without(NOBODY);
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
                // Rules are entered by the ordinary walk.
                expected(here, without);
                self.refused += 1;
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

/// Frames of many shapes: some keep little, some much, some an amount only known at run time.
#[inline(never)]
fn narrow(depth: u64, state: &mut u64, tally: &mut Tally) -> u64 {
    descend(depth, state, tally) + 1
}

#[inline(never)]
fn wide(depth: u64, state: &mut u64, tally: &mut Tally) -> u64 {
    let mut room = [depth; 40];
    black_box(&mut room);
    descend(depth, state, tally) + black_box(room[7])
}

#[inline(never)]
fn aligned(depth: u64, state: &mut u64, tally: &mut Tally) -> u64 {
    #[repr(align(128))]
    struct Aligned([u64; 16]);
    let mut room = Aligned([depth; 16]);
    black_box(&mut room);
    let below = descend(depth, state, tally);
    below + black_box(room.0[3])
}

#[inline(never)]
fn twice(depth: u64, state: &mut u64, tally: &mut Tally) -> u64 {
    let first = descend(depth.saturating_sub(3), state, tally);
    first + descend(depth, state, tally)
}

#[inline(never)]
fn descend(depth: u64, state: &mut u64, tally: &mut Tally) -> u64 {
    if depth == 0 {
        tally.check();
        return 0;
    }
    match random(state) % 9 {
        0..3 => narrow(depth - 1, state, tally),
        3..6 => wide(depth - 1, state, tally),
        6..8 => aligned(depth - 1, state, tally),
        _ => {
            tally.check();
            twice(depth - 1, state, tally)
        }
    }
}

#[test]
fn stacks_that_change_anywhere_come_to_what_an_ordinary_walk_says() {
    let mut tally = Tally::new();
    let mut state = 1;
    for round in 0..20_000 {
        black_box(descend(2 + round % 25, &mut state, &mut tally));
    }
    assert!(
        tally.followed > 5 * tally.refused && tally.followed > 20_000,
        "{} followed, {} refused",
        tally.followed,
        tally.refused
    );
}

#[test]
fn the_same_place_on_the_stack_with_another_caller_further_out_is_another_stack() {
    #[inline(never)]
    fn left(tally: &mut Tally) -> u64 {
        middle(tally) + 1
    }
    #[inline(never)]
    fn right(tally: &mut Tally) -> u64 {
        middle(tally) + 2
    }
    #[inline(never)]
    fn middle(tally: &mut Tally) -> u64 {
        tally.check();
        black_box(0)
    }
    let mut tally = Tally::new();
    for round in 0..1000 {
        black_box(if round % 2 == 0 {
            left(&mut tally)
        } else {
            right(&mut tally)
        });
    }
    assert!(tally.followed > 800, "{} followed", tally.followed);
}

#[test]
fn code_that_is_left_out_is_not_counted_and_changes_no_hash() {
    let mut tally = Tally::new();
    let middle = stacks_that_change_anywhere_come_to_what_an_ordinary_walk_says as *const () as usize as u64;
    for _ in 0..200 {
        tally.check_without((middle & !0xffff, (middle & !0xffff) + 0x20000));
    }
    assert!(tally.followed > 100);
}

#[test]
fn stacks_deeper_than_the_trail_are_left_to_the_ordinary_walk() {
    #[inline(never)]
    fn deep(depth: u32, tally: &mut Tally) -> u32 {
        if depth == 0 {
            tally.check();
            return black_box(0);
        }
        deep(depth - 1, tally) + 1
    }
    let mut tally = Tally::new();
    for _ in 0..300 {
        black_box(deep(300, &mut tally));
    }
    assert_eq!((tally.followed, tally.refused), (0, 300));
    for _ in 0..300 {
        black_box(deep(50, &mut tally));
    }
    assert!(tally.followed > 200, "{} followed", tally.followed);
}

#[test]
fn threads_that_share_a_trail_get_their_own_stacks_or_none() {
    static SHARED: Trail = Trail::new();
    // Of all together: one that is stopped with the trail in its hands may leave nothing to the others.
    static FOLLOWED: AtomicU32 = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let here = Registers::here();
                    let expected = expected(here, NOBODY);
                    if let Some(summary) = SHARED.follow(here, NOBODY, SEED, false) {
                        assert_eq!(summary, expected);
                        FOLLOWED.fetch_add(1, Relaxed);
                    }
                }
            });
        }
    });
    assert!(FOLLOWED.load(Relaxed) > 0);
}
