//! A stack that is found is the one that a walk finds, and libgcc, however the stack changed in between.

mod support;

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Mutex;

use culeak_walker::{End, ReadSets, Registers, walk, walk_each};

/// The stack that a walk finds, and why it ends.
fn expected(start: Registers) -> (Vec<u64>, End) {
    let mut addresses = [0; 512];
    let walked = walk(start, &mut addresses);
    (addresses[..walked.count].to_vec(), walked.end)
}

/// The table of rules is the process's.
static ALONE: Mutex<()> = Mutex::new(());

struct Checker {
    sets: ReadSets,
    /// By stack.
    numbers: HashMap<Vec<u64>, u32>,
    found: u32,
    walked: u32,
    /// The innermost code addresses of the last stack.
    last: Vec<u64>,
}

impl Checker {
    fn new() -> Checker {
        Checker {
            sets: ReadSets::new(),
            numbers: HashMap::new(),
            found: 0,
            walked: 0,
            last: vec![],
        }
    }

    #[inline(never)]
    fn check(&mut self) {
        let here = Registers::here();
        // SAFETY: no other thread has the checker.
        let found = unsafe { self.sets.find(here, |_| false, || 0) };
        let (addresses, end) = expected(here);
        if (self.found + self.walked).is_multiple_of(16) {
            support::compare();
        }
        self.last.clone_from(&addresses);
        if let Some(found) = found {
            assert_eq!(self.numbers.get(&addresses), Some(&found), "{end:?}");
            self.found += 1;
            return;
        }
        self.walked += 1;
        // SAFETY: as above.
        if let Some(&number) = self.numbers.get(&addresses)
            // SAFETY: as above.
            && unsafe { self.sets.found_again(here, 0, number) }
        {
            return;
        }
        // SAFETY: as above.
        if let Some(kept) = unsafe { self.sets.walk(here, |_| true) } {
            assert_eq!(end, End::Root);
            let next = self.numbers.len() as u32;
            kept.remember(0, *self.numbers.entry(addresses).or_insert(next), 0);
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
fn stacks_that_change_anywhere_are_found_as_a_walk_finds_them() {
    let _alone = ALONE.lock();
    let mut checker = Checker::new();
    for round in 0..40_000 {
        // Each of some hundred stacks again and again.
        let mut state = 1 + round * 7 % 40;
        black_box(descend(2 + state % 14, &mut state, &mut checker));
    }
    let Checker { found, walked, .. } = checker;
    assert!(found > 50 * walked && walked > 100, "{found} found, {walked} walked");
    support::expect_no_difference();
}

/// All of them begin with the same registers, as those of a loop do that calls one function from hundreds of places.
#[test]
fn a_loop_over_hundreds_of_stacks_is_walked_at_most_ten_times_in_a_thousand() {
    let _alone = ALONE.lock();
    #[inline(never)]
    fn path(bits: u32, left: u32, checker: &mut Checker) -> u32 {
        if left == 0 {
            checker.check();
            0
        } else if bits & 1 == 0 {
            black_box(path(bits >> 1, left - 1, checker)) + 1
        } else {
            black_box(path(bits >> 1, left - 1, checker)) ^ 5
        }
    }
    let mut checker = Checker::new();
    for round in 0..30 {
        if round == 2 {
            (checker.found, checker.walked) = (0, 0);
        }
        for stack in 0..300 {
            black_box(path(stack * 7, 12, &mut checker));
        }
    }
    assert_eq!(checker.numbers.len(), 300);
    assert!(checker.walked * 100 <= checker.found, "{} walked", checker.walked);
}

#[test]
fn another_caller_further_out_is_noticed() {
    let _alone = ALONE.lock();
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
    assert_eq!(checker.numbers.len(), 2);
    assert!(checker.found > 990, "{} found", checker.found);
}

/// A return address that is overwritten in place by that of another call in the same function.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_return_address_that_changes_in_place_is_noticed() {
    let _alone = ALONE.lock();
    #[inline(never)]
    fn caller(right: bool, put: Option<u64>, checker: &mut Checker) -> u64 {
        if right {
            black_box(inner(put, checker)) + 1
        } else {
            black_box(inner(put, checker)) ^ 5
        }
    }
    #[inline(never)]
    fn inner(put: Option<u64>, checker: &mut Checker) -> u64 {
        let mut returns_at = None;
        walk_each(Registers::here(), |place, _, sp| {
            if place == 1 {
                returns_at = Some((sp - 8) as *mut u64);
            }
            place < 1
        });
        let word = returns_at.unwrap();
        // SAFETY: this function's own return address, which is put back before it returns.
        let before = unsafe { word.read_volatile() };
        if let Some(put) = put {
            // SAFETY: as above.
            unsafe { word.write_volatile(put) };
        }
        checker.check();
        // SAFETY: as above.
        unsafe { word.write_volatile(before) };
        before
    }
    let mut checker = Checker::new();
    let [left, right] = [false, true].map(|right| {
        caller(right, None, &mut checker);
        *checker
            .last
            .iter()
            .find(|&&pc| pc.wrapping_sub(caller as *const () as u64) < 256)
            .unwrap()
    });
    assert_ne!(left, right);
    for round in 0..100 {
        let found = checker.found;
        caller(false, None, &mut checker);
        assert!(checker.last.contains(&left) && (checker.found > found || round == 0));
        caller(false, Some(right), &mut checker);
        assert!(checker.last.contains(&right) && !checker.last.contains(&left));
    }
    assert_eq!(checker.numbers.len(), 4);
}

/// A frame pointer that a callee saved, by which the walk goes on in a realigned frame.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_saved_frame_pointer_that_changes_in_place_is_noticed() {
    let _alone = ALONE.lock();
    #[repr(align(128))]
    struct Aligned([u64; 16]);

    #[inline(never)]
    fn outer(change: u64, checker: &mut Checker) -> u64 {
        let mut room = Aligned([change; 16]);
        black_box(&mut room);
        inner(Registers::here().rbp, change, checker) + black_box(room.0[3])
    }
    #[inline(never)]
    fn inner(frame: u64, change: u64, checker: &mut Checker) -> u64 {
        let mut room = Aligned([change; 16]);
        black_box(&mut room);
        let here = Registers::here();
        assert!(here.rbp < frame && frame - here.rbp < 4096);
        // rbp is the first word that a function saves, and this one's leads to it.
        let saved = here.rbp as *mut u64;
        // SAFETY: this function's own frame; the word is put back before it returns.
        unsafe {
            assert_eq!(saved.read_volatile(), frame);
            saved.write_volatile(frame + change);
        }
        // SAFETY: no other thread has the read sets.
        let found = unsafe { checker.sets.find(Registers::here(), |_| false, || 0) };
        if change == 0 {
            checker.check();
        } else {
            // Where a walk ends depends on the words that the pointer then leads to.
            assert_eq!(found, None);
        }
        // SAFETY: as above.
        unsafe { saved.write_volatile(frame) };
        black_box(room.0[3])
    }
    let mut checker = Checker::new();
    for _ in 0..10 {
        outer(0, &mut checker);
        outer(8, &mut checker);
        outer(1 << 40, &mut checker);
    }
    assert!(
        checker.found >= 9 && checker.numbers.len() == 1,
        "{} found",
        checker.found
    );
}

/// Code of GCC that realigns its frame in the middle of a function.
#[test]
fn a_realigned_frame_is_remembered() {
    let _alone = ALONE.lock();
    thread_local! {
        static CHECKER: std::cell::RefCell<Checker> = std::cell::RefCell::new(Checker::new());
    }
    extern "C" fn check() {
        CHECKER.with_borrow_mut(Checker::check);
    }
    let path = support::folder().join("librealigned.so");
    support::compile(&support::source("frame.c"), &path, &["-O2", "-DSIZE=100"]);
    let library = support::Library::open(&path, libc::RTLD_NOW);
    // SAFETY: the library's function of this type.
    let realigned: extern "C" fn(extern "C" fn(), i32) = unsafe { std::mem::transmute(library.symbol("realigned")) };
    for _ in 0..100 {
        realigned(check, 100);
    }
    CHECKER.with_borrow(|checker| assert_eq!((checker.walked, checker.found), (1, 99)));
    std::fs::remove_file(path).ok();
}

#[test]
fn a_stack_deeper_than_an_entry_is_walked() {
    let _alone = ALONE.lock();
    #[inline(never)]
    fn deep(depth: u32, checker: &mut Checker) -> u32 {
        if depth == 0 {
            checker.check();
            return black_box(0);
        }
        deep(depth - 1, checker) + 1
    }
    let mut checker = Checker::new();
    for _ in 0..100 {
        black_box(deep(400, &mut checker));
    }
    assert_eq!(checker.found, 0);
    for _ in 0..100 {
        black_box(deep(50, &mut checker));
    }
    assert_eq!(checker.found, 99);
}

/// Each thread has the stack that the one before it had, and the read sets that the one before it left.
#[test]
fn threads_that_use_read_sets_one_after_the_other_find_their_own_stacks() {
    let _alone = ALONE.lock();
    let mut checker = Checker::new();
    for round in 0..40 {
        checker = std::thread::spawn(move || {
            for seed in 1..20 + round {
                let mut state = seed;
                black_box(descend(2 + seed % 9, &mut state, &mut checker));
            }
            checker
        })
        .join()
        .unwrap();
    }
    assert!(checker.found > 100, "{} found", checker.found);
}

#[test]
fn nothing_is_found_during_a_close_or_from_before_it() {
    let _alone = ALONE.lock();
    let mut checker = Checker::new();
    for round in 0..30 {
        // The walk of a first check inserts the rules.
        for _ in 0..3 {
            checker.check();
        }
        assert!(checker.found > 0);
        let found = checker.found;
        culeak_walker::closing_began();
        checker.check();
        culeak_walker::generation_changed();
        checker.check();
        culeak_walker::closing_ended();
        checker.check();
        assert_eq!(checker.found, found, "round {round}");
    }
}

#[test]
fn a_signal_handler_inside_a_walk_and_a_child_find_nothing() {
    let _alone = ALONE.lock();
    let sets = ReadSets::new();
    let here = Registers::here();
    // SAFETY: no other thread has the read sets.
    let find = || unsafe { sets.find(here, |_| false, || 0) };
    expected(here);
    let keep = |_| {
        assert_eq!(find(), None);
        // SAFETY: as above.
        assert!(unsafe { sets.walk(here, |_| true) }.is_none());
        sets.forked();
        true
    };
    // SAFETY: as above.
    unsafe { sets.walk(here, keep) }.unwrap().remember(0, 7, 0);
    assert_eq!(find(), Some(7));
    sets.forked();
    assert_eq!(find(), None);
}
