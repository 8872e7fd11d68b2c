//! Remembers a thread's last walk, and walks only the frames that have changed since.
//!
//! Successive stacks of a thread mostly share their outer frames. Looking up a frame in the table costs a cache line, and
//! each look-up depends on the one before; comparing a remembered frame costs two independent loads.
//!
//! ```text
//!  steps   ┌─ free ─┬─ innermost ─────────────────────── outermost ─┐      a step: code address, sp and fp in a frame,
//!          0     first                                             ROOM     and the rule that leads to the next
//!
//!  new walk    a ─▶ b ─▶ c ─▶ d equals step k: same address, sp and fp
//!                             └─▶ steps k, k+1, … : does memory still hold the words that led from each to the next?
//!                                 in all steps: the walk is complete.  otherwise: walk on from the first changed step
//! ```
//!
//! Correctness: the next frame of a walk depends only on the frame's three registers, the rule of its code address, and
//! the one to three words that the rule loads. All of these are compared. So a step that compares equal leads where it
//! led before, whatever happened to the stack in between. Rules do not change as long as no module is unloaded, which
//! [`Table::epoch`](crate::table::Table::epoch) tracks. Words are read within the bounds of the stack that the thread runs
//! on now.
//!
//! The hash of a stack is computed from its outermost frame inwards and kept at every step, so it too is computed only for
//! new frames.
//!
//! One walk at a time uses a trail. A walk that finds it in use, by the code that its signal handler interrupted or by
//! another thread that shares the trail, proceeds without. So does a walk that meets a frame without an ordinary rule.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering::*, compiler_fence};

use crate::cursor::{Cursor, load};
use crate::rule::Packed;
use crate::stack::{self, Bounds};
use crate::{Registers, TABLE, machine};

/// The most frames of a remembered stack; deeper stacks are walked without a trail.
const ROOM: usize = 192;
/// After a walk that could not be remembered, this many walks do not try.
const REST: u32 = 64;

/// All zeros is an empty trail. What every walk reads besides the steps is in the first cache line.
#[repr(C, align(64))]
pub struct Trail {
    taken: AtomicBool,
    path: UnsafeCell<Path>,
}

// SAFETY: `path` is accessed only by the walk that set `taken`.
unsafe impl Sync for Trail {}

const _: () = assert!((std::mem::offset_of!(Trail, path) + std::mem::offset_of!(Path, steps)).is_multiple_of(64));

/// A stack reduced to a hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// From the outermost frame inwards, over code addresses outside `without`; see [`mix_in`].
    pub hash: u64,
    /// The number of those addresses.
    pub count: u32,
}

#[derive(Clone, Copy)]
struct Step {
    pc: u64,
    sp: u64,
    fp: u64,
    /// Leads to the next step. The last step has [`Packed::ROOT`], also if its code address is 0.
    rule: Packed,
}

#[repr(C)]
struct Path {
    /// The table's epoch and the caller's seed when the steps were taken.
    epoch: u64,
    seed: u64,
    top: u64,
    /// The lowest address known to be readable at every step: no word that led to a step lies below.
    low: u64,
    /// Place of the innermost step + 1; 0: there are no steps.
    first_plus_one: usize,
    rest: u32,
    /// So that the steps, of half a cache line each, begin at the start of one.
    _unused: u64,
    steps: [Step; ROOM],
    sums: [Summary; ROOM],
    new: [Step; ROOM],
}

/// Adds a word to a hash, such as the code address of the next inner frame.
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
                _unused: 0,
                steps: [NOWHERE; ROOM],
                sums: [Summary { hash: 0, count: 0 }; ROOM],
                new: [NOWHERE; ROOM],
            }),
        }
    }

    /// The whole stack from `start` outwards, without the code addresses in `without`. `seed` is mixed into the hash.
    /// `alone`: no other thread uses this trail. `None`: the trail cannot be used, and the caller walks without it.
    #[inline]
    pub fn follow(&self, start: Registers, without: (u64, u64), seed: u64, alone: bool) -> Option<Summary> {
        // Acquire: pairs with the Release below, so one walk's accesses to `path` happen before the next one's. Without other
        // threads a load and a store suffice: a signal handler that runs between them releases the trail before it returns.
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
        // SAFETY: `taken` was false, so no other walk uses `path`, including one that this signal handler interrupted.
        let path = unsafe { &mut *self.path.get() };
        let summary = path.follow(start, without, seed);
        self.taken.store(false, Release);
        summary
    }

    /// In a forked child: the thread that had taken the trail may not exist here.
    pub fn forked(&self) {
        // Read first: a page that was never written is not copied.
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
        // The readable range only grows. If it ever shrank, remembered steps could lie outside.
        if self.low < bounds.low {
            self.first_plus_one = 0;
        }
        self.low = bounds.low;
        let Some((joined, new)) = self.walk(start, bounds).filter(|(joined, new)| new <= joined) else {
            self.first_plus_one = 0;
            self.rest = REST;
            return None;
        };
        // From the outermost of the new steps inwards.
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

    /// Writes the new frames to `new`. Returns the place of the first remembered step that is still valid, and the number of
    /// new frames.
    #[inline]
    fn walk(&mut self, start: Registers, bounds: Bounds) -> Option<(usize, usize)> {
        let mut old = self.first_plus_one.wrapping_sub(1).min(ROOM);
        let mut new = 0;
        let mut at = Cursor::at(start);
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

    /// The first step from `place` on whose words have changed; the last step if none have.
    ///
    /// Half of a warm walk is spent here, so it is a function of its own: inlined, it would keep its variables in memory.
    #[inline(never)]
    #[unsafe(link_section = ".text.culeak_events")]
    fn unchanged_until(&self, place: usize, bounds: Bounds) -> usize {
        let steps = &self.steps[place..];
        let pairs = steps.iter().zip(&steps[1..]);
        let changed = pairs.enumerate().find(|(_, (step, next))| {
            let rule = step.rule;
            // SAFETY: at least a word below the CFA, which is the next frame's stack pointer. That was within this stack when
            // the step was taken, and the top has not changed. Not below the range that was readable then and still is (`low`).
            if machine::code_address(unsafe { load(next.sp - rule.ra() * 8) }) != next.pc {
                return true;
            }
            let fp_at = if rule.is_fp_at_frame() { step.fp } else { next.sp - rule.fp() * 8 };
            // SAFETY: as above; a frame pointer through which a step was taken points into the stack.
            if rule.fp() != 0 && unsafe { load(fp_at) } != next.fp {
                return true;
            }
            if !rule.is_saved() {
                return false;
            }
            let saved = step.fp.wrapping_add(rule.offset() as u64);
            // SAFETY: a word within the stack.
            !bounds.contain_word(saved) || unsafe { load(saved) } != next.sp
        });
        changed.map_or(ROOM - 1, |(index, _)| place + index)
    }
}
