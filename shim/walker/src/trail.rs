//! Remembers the last walk of a thread, and walks only where the stack has changed since.
//!
//! Two stacks that a thread shows one after the other mostly share their outer frames. Looking a frame up in the table
//! of rules costs a cache line each and a chain of waiting; comparing a remembered frame costs two loads that wait for
//! nothing.
//!
//! ```text
//!  steps   ┌─ free ─┬─ innermost ─────────────────────── outermost ─┐      a step: code address, sp and fp in a frame,
//!          0     first                                             ROOM     and the rule that leads to the next
//!
//!  new walk    a ─▶ b ─▶ c ─▶ d equals step k: same address, sp and fp
//!                             └─▶ steps k, k+1, … : does memory still hold the words that led from each to the next?
//!                                 all of them: the walk is over.  not one of them: on from there in the ordinary way
//! ```
//!
//! Why it is right: where a walk goes from a frame depends on the three registers of that frame, on the rule of its
//! code address, and on the one to three words that the rule loads, and on nothing else. All of these are compared. So a
//! step that compares equal leads where it led before, whatever happened to the stack in between; stale words that the
//! stack has long left behind can do no harm. Rules are the same as long as nothing was unloaded, which the table of
//! rules knows ([`Table::epoch`]). Words are read within the bounds of the stack which the thread runs on now.
//!
//! The hash of a stack is taken from its outermost frame inwards, and kept at every step, so that it too is only worked
//! out for frames that are new.
//!
//! A thread needs a trail for itself while it walks: whoever finds it taken, by a signal handler's host or by another
//! thread that shares it, walks without. So does who meets a frame that is not covered by the three ordinary rules.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering::*, compiler_fence};

use crate::machine;
use crate::rule::{Base, Packed};
use crate::stack::{self, Bounds};
use crate::{Cursor, Registers, TABLE, load};

/// Deeper stacks are walked without a trail.
const ROOM: usize = 192;
/// After a walk that could not be remembered, so many are not even tried.
const REST: u32 = 64;

/// All zeros is an empty one.
pub struct Trail {
    taken: AtomicBool,
    path: UnsafeCell<Path>,
}

// SAFETY: `path` is only touched by whoever set `taken`.
unsafe impl Sync for Trail {}

/// What a stack comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// From the outermost frame inwards, over code addresses outside `without`; see [`mix_in`].
    pub hash: u64,
    /// How many those are.
    pub count: u32,
}

#[derive(Clone, Copy)]
struct Step {
    pc: u64,
    sp: u64,
    fp: u64,
    /// Leads to the next step; that of the last one is [`Packed::ROOT`], also when its code address is 0.
    rule: Packed,
}

struct Path {
    /// Of the rule table and of the caller when the steps were taken.
    epoch: u64,
    seed: u64,
    top: u64,
    /// Below none of the words that the steps were found by: the lowest that was known to be readable at any of them.
    low: u64,
    /// Where the innermost step lies, + 1; 0: there are none.
    first_plus_one: usize,
    rest: u32,
    steps: [Step; ROOM],
    sums: [Summary; ROOM],
    new: [Step; ROOM],
}

/// One frame more, inwards.
#[inline(always)]
pub const fn mix_in(hash: u64, address: u64) -> u64 {
    (hash.rotate_left(29) ^ address).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Trail {
    pub const fn new() -> Trail {
        const NOWHERE: Step = Step {
            pc: 0,
            sp: 0,
            fp: 0,
            rule: Packed::NONE,
        };
        Trail {
            taken: AtomicBool::new(false),
            path: UnsafeCell::new(Path {
                epoch: 0,
                seed: 0,
                top: 0,
                low: 0,
                first_plus_one: 0,
                rest: 0,
                steps: [NOWHERE; ROOM],
                sums: [Summary { hash: 0, count: 0 }; ROOM],
                new: [NOWHERE; ROOM],
            }),
        }
    }

    /// The stack from `start` on, to its very end, without the code addresses in `without`. `seed` is mixed into the
    /// hash. `alone`: no other thread uses this trail. `None`: to be walked in the ordinary way.
    #[inline]
    pub fn follow(&self, start: Registers, without: (u64, u64), seed: u64, alone: bool) -> Option<Summary> {
        // Acquire, Release below: one after the other. Where there are only signal handlers of this thread, a load and a
        // store do: a handler that comes between them has given the trail back when it returns.
        let taken = if alone {
            self.taken.load(Acquire) || {
                self.taken.store(true, Relaxed);
                compiler_fence(SeqCst);
                false
            }
        } else {
            self.taken.swap(true, Acquire)
        };
        if taken {
            return None;
        }
        // SAFETY: `taken` was false, so nobody else is in here, this thread's interrupted code included.
        let path = unsafe { &mut *self.path.get() };
        let summary = path.follow(start, without, seed);
        self.taken.store(false, Release);
        summary
    }

    /// In a forked child: whoever had taken it does not exist here.
    pub fn forked(&self) {
        // Looked at first: a page that was never used stays so.
        if self.taken.load(Relaxed) {
            self.taken.store(false, Relaxed);
        }
    }
}

impl Default for Trail {
    fn default() -> Trail {
        Trail::new()
    }
}

impl Path {
    #[inline]
    fn follow(&mut self, start: Registers, without: (u64, u64), seed: u64) -> Option<Summary> {
        if self.rest > 0 {
            self.rest -= 1;
            return None;
        }
        let epoch = TABLE.epoch()?;
        let bounds = stack::bounds(start.rsp);
        if (self.epoch, self.seed, self.top) != (epoch, seed, bounds.top) {
            self.first_plus_one = 0;
            (self.epoch, self.seed, self.top) = (epoch, seed, bounds.top);
            self.low = bounds.low;
        }
        // What is known to be readable grows. Should it ever not, steps may lie outside.
        if self.low < bounds.low {
            self.first_plus_one = 0;
        }
        self.low = bounds.low;
        let Some((joined, new)) = self.walk(start, bounds).filter(|(joined, new)| new <= joined) else {
            self.first_plus_one = 0;
            self.rest = REST;
            return None;
        };
        // Outermost of the new steps first.
        let mut sum = self
            .sums
            .get(joined)
            .copied()
            .unwrap_or(Summary { hash: seed, count: 0 });
        for place in (0..new).rev() {
            let step = self.new[place];
            if step.pc != 0 && !(without.0..without.1).contains(&step.pc) {
                sum.hash = mix_in(sum.hash, step.pc);
                sum.count += 1;
            }
            let place = joined - new + place;
            self.steps[place] = step;
            self.sums[place] = sum;
        }
        self.first_plus_one = joined - new + 1;
        Some(sum)
    }

    /// Puts the frames that are new into `new`: (place of the first step that is not, how many are).
    #[inline]
    fn walk(&mut self, start: Registers, bounds: Bounds) -> Option<(usize, usize)> {
        let mut old = self.first_plus_one.wrapping_sub(1).min(ROOM);
        let mut new = 0;
        let mut at = Cursor {
            pc: start.rip,
            sp: start.rsp,
            fp: start.rbp,
            back: 1,
        };
        loop {
            while old < ROOM && self.steps[old].sp < at.sp {
                old += 1;
            }
            if let Some(step) = self.steps.get(old)
                && (step.sp, step.pc, step.fp) == (at.sp, at.pc, at.fp)
            {
                let last = self.unchanged_until(old, bounds);
                if last == ROOM - 1 {
                    return Some((old, new));
                }
                let room = self.new.get_mut(new..new + last - old)?;
                room.copy_from_slice(&self.steps[old..last]);
                new += last - old;
                let step = self.steps[last];
                (at.pc, at.sp, at.fp) = (step.pc, step.sp, step.fp);
                old = last + 1;
            }
            let rule = if at.pc == 0 {
                Packed::ROOT
            } else if at.is_code() {
                TABLE.find(at.pc - 1)?
            } else {
                return None;
            };
            *self.new.get_mut(new)? = Step {
                pc: at.pc,
                sp: at.sp,
                fp: at.fp,
                rule,
            };
            new += 1;
            if rule.is_root() {
                return Some((ROOM, new));
            }
            if !at.step(rule, bounds) {
                return None;
            }
        }
    }

    /// The first step from `place` on whose words are not as they were; the last step when all are.
    #[inline]
    fn unchanged_until(&self, place: usize, bounds: Bounds) -> usize {
        let mut steps = self.steps[place..].iter();
        let mut last = place;
        let Some(mut step) = steps.next() else { return last };
        for next in steps {
            let rule = step.rule;
            // SAFETY: at least a word below the CFA, which is the next frame's stack pointer; that was found to be within
            // this stack when the step was taken, and the top is the same today. Not below what was known to be readable
            // then, which still is (`low`).
            if machine::code_address(unsafe { load(next.sp - rule.ra() * 8) }) != next.pc {
                break;
            }
            // SAFETY: as above.
            if rule.fp() != 0 && unsafe { load(next.sp - rule.fp() * 8) } != next.fp {
                break;
            }
            if rule.base() == Some(Base::Saved) {
                let saved = step.fp.wrapping_add(rule.offset() as u64);
                // SAFETY: a word within the stack.
                if !bounds.contain_word(saved) || unsafe { load(saved) } != next.sp {
                    break;
                }
            }
            last += 1;
            step = next;
        }
        last
    }
}
