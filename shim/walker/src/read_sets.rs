//! Knows a thread's stacks again by the words that their walks loaded.
//!
//! A program allocates from the same hundreds of stacks again and again. A walk looks up each frame, and each look-up
//! depends on the one before; comparing the words that the walk loaded is a row of independent loads.
//!
//! ```text
//!  entry   ┌ pc, sp, fp, top, key ┬ value, next ┐   a line of the cache: where the walk began, its result
//!          ├ 6 words, 6 offsets from sp         ┤   the read set: return addresses, and what rules used
//!          ├ …                                  ┤
//!
//!  find    next of the entry found before ─▶ the same start and every word as it was? ─▶ value
//!                         └─ no ─▶ the entries of the set of (pc, sp, key) ─▶ the same question
//!                                     └─ no ─▶ the caller walks, and asks by the value: found_again
//! ```
//!
//! **Correctness.** A walk is a function of the three registers it begins with, of the rules of the table, of the
//! stack's top, and of the words that it loads. The rules do not change within an epoch
//! ([`Table::epoch`](crate::table::Table::epoch)), and entries of another epoch are void. All else is compared. By
//! induction along the walk: the first rule is the same, so the same words are loaded, which are equal, so the second
//! frame is the same, and so on to the end. A frame pointer that no later rule uses leads nowhere, and is not compared.
//! A step that is not one of the table's rules is not remembered. So whatever happened to the stack in between, also by
//! another thread that has it now, an entry whose words hold has the value that a walk would give.
//!
//! **Readable.** All words of an entry lie in [sp, top). The calling thread's stack has this top, and reaches down to
//! this sp ([`crate::stack`]).
//!
//! **Memory.** Entries lie in a ring, in the order in which they were remembered, and are named by their position
//! since the last time that all became void. The ring never holds a position that is further behind its end than
//! [`LIVE`], so a name leads to the entry that it was made for or nowhere. The ring is mapped when a thread's first
//! stack is remembered, and is never unmapped: the next thread of the same shard uses it.
//!
//! One walk at a time uses a thread's read sets. A walk that finds them in use, by the code that its signal handler
//! interrupted, proceeds without. If that code never continues, they are not used again. In a forked child neither: the
//! fork may have come from that handler.
//!
//! The key is asked for only where what the caller keeps beside the expected entry does not imply it.
//!
//! The caller remembers a stack at its second sighting. A program that has more stacks than fit would remember each in
//! vain: each costs a credit, which a stack found earns, and without credit one of [`FEW`] is remembered.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering::*, compiler_fence};

use crate::Registers;
use crate::cursor::{Cursor, TABLE, load};
use crate::rule::Base;
use crate::stack::{self, Bounds};

/// 512 KiB for each thread.
const LINES: u32 = 8192;
/// The most lines of an entry: 378 words.
const ENTRY_MAX: u32 = 64;
/// Entries within this distance of the end are whole: the next entry is written to the lines before.
const LIVE: u32 = LINES - ENTRY_MAX;
/// Positions begin here, so that 0 names no entry.
const FIRST: u32 = LINES;
const SETS: usize = 256;
const WAYS: usize = 4;
const VALUES: usize = 1024;
/// Words in a line.
const WORDS: usize = 6;
const CREDIT: u32 = 4096;
/// With no credit left, one of this many stacks is remembered.
const FEW: u32 = 16;

/// Stacks of one thread at a time.
#[repr(C, align(64))]
pub struct ReadSets {
    taken: AtomicBool,
    state: UnsafeCell<State>,
}

// SAFETY: `state` is accessed only by the walk that set `taken`, of one thread at a time, as callers promise.
unsafe impl Sync for ReadSets {}
// SAFETY: as above; the ring is their own.
unsafe impl Send for ReadSets {}

struct State {
    /// Null: not mapped yet.
    ring: *mut Ring,
    /// The table's when the entries were remembered.
    epoch: u64,
    /// Position of the entry that was found or remembered last.
    last: u32,
    end: u32,
    spent: u32,
    poor: u32,
}

#[repr(C)]
struct Ring {
    /// Positions of entries, the newest first.
    sets: [[u32; WAYS]; SETS],
    /// Positions by value and sp.
    values: [u32; VALUES],
    lines: [Line; LINES as usize],
}

#[derive(Clone, Copy)]
union Line {
    head: Head,
    words: Words,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Head {
    pc: u64,
    sp: u64,
    fp: u64,
    /// All ones if a rule uses `fp`; else 0.
    fp_matters: u64,
    top: u64,
    key: u64,
    value: u32,
    /// Position of the entry that was found after this one the last time.
    next: u32,
    lines: u32,
    /// What else was remembered, which the caller compares; 0: nothing.
    beside: u32,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Words {
    values: [u64; WORDS],
    /// From sp, in words.
    offsets: [u16; WORDS],
}

const _: () = assert!(
    size_of::<ReadSets>() == 64 && size_of::<Line>() == 64,
    "lines of the cache"
);

/// In use by the calling walk.
pub struct InUse<'a>(&'a ReadSets);

/// A stack that was walked and can be remembered.
pub struct Kept<'a> {
    sets: InUse<'a>,
    head: Head,
}

impl ReadSets {
    pub const fn new() -> ReadSets {
        ReadSets {
            taken: AtomicBool::new(false),
            state: UnsafeCell::new(State {
                ring: std::ptr::null_mut(),
                epoch: 0,
                last: 0,
                end: FIRST,
                spent: 0,
                poor: 0,
            }),
        }
    }

    /// The value of the stack that begins with these registers, if it was remembered with this key. The key of the stack that is
    /// expected is not asked for if `holds` says that what is beside it implies its key.
    ///
    /// # Safety
    /// No other thread uses these read sets meanwhile.
    #[inline(always)]
    pub unsafe fn find(
        &self,
        start: Registers,
        holds: impl FnOnce(u32) -> bool,
        key: impl FnOnce() -> u64,
    ) -> Option<u32> {
        let mut sets = self.take()?;
        let epoch = TABLE.epoch()?;
        let top = stack::bounds(start.rsp).top;
        sets.state().find(start, top, epoch, holds, key)
    }

    /// Whether the stack, which a walk has just found to have this value, was remembered: `find` expects it next time
    /// after the stack that was found before. A set is too small for the stacks that differ only further out.
    ///
    /// # Safety
    /// As of `find`.
    pub unsafe fn found_again(&self, start: Registers, key: u64, value: u32) -> bool {
        let Some(mut sets) = self.take() else {
            return false;
        };
        let Some(epoch) = TABLE.epoch() else {
            return false;
        };
        let top = stack::bounds(start.rsp).top;
        sets.state().found_again(start, key, top, epoch, value)
    }

    /// Walks the stack once more and keeps the words that the walk loads. `keep` as in [`crate::walk_each`]. `None` if
    /// the stack cannot be remembered.
    ///
    /// # Safety
    /// No other thread uses these read sets until the result is dropped.
    #[cold]
    #[inline(never)]
    pub unsafe fn walk(&self, start: Registers, keep: impl FnMut(u64) -> bool) -> Option<Kept<'_>> {
        let mut sets = self.take()?;
        let epoch = TABLE.epoch()?;
        let bounds = stack::bounds(start.rsp);
        let head = sets.state().walk(start, bounds, epoch, keep)?;
        Some(Kept { sets, head })
    }

    /// Called by one thread at a time, and by its signal handlers.
    #[inline(always)]
    fn take(&self) -> Option<InUse<'_>> {
        // A handler that runs between the load and the store releases them before it returns. Acquire: pairs with the
        // Release in `drop`.
        if self.taken.load(Acquire) {
            return None;
        }
        self.taken.store(true, Relaxed);
        compiler_fence(SeqCst);
        Some(InUse(self))
    }

    /// In a forked child, whose recording has other values. If they are in use, they stay so: by a thread that does not
    /// exist here, or by the code that continues when the signal handler that forked returns.
    pub fn forked(&self) {
        if let Some(mut sets) = self.take() {
            sets.state().epoch = u64::MAX;
        }
    }
}

impl Default for ReadSets {
    fn default() -> ReadSets {
        ReadSets::new()
    }
}

impl InUse<'_> {
    #[inline(always)]
    fn state(&mut self) -> &mut State {
        // SAFETY: `taken` was false, so no other walk uses the state, including one that this signal handler
        // interrupted.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Drop for InUse<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.taken.store(false, Release);
    }
}

impl Kept<'_> {
    /// Forgets all stacks. What is beside them is of no use from now on.
    pub fn forget_all(&mut self) {
        self.sets.state().epoch = u64::MAX;
    }

    pub fn remember(mut self, key: u64, value: u32, beside: u32) {
        let head = Head {
            key,
            value,
            beside,
            ..self.head
        };
        self.sets.state().insert(head);
    }
}

impl State {
    #[inline(always)]
    fn find(
        &mut self,
        start: Registers,
        top: u64,
        epoch: u64,
        is_beside: impl FnOnce(u32) -> bool,
        key: impl FnOnce() -> u64,
    ) -> Option<u32> {
        // SAFETY: null, or mapped by `walk` and never unmapped; only this walk uses it.
        let ring = unsafe { self.ring.as_mut() }?;
        if self.epoch != epoch {
            self.void(epoch);
            return None;
        }
        let predicted = if self.is_live(self.last) {
            ring.head(self.last).next
        } else {
            0
        };
        let is_live = self.is_live(predicted);
        let &mut Head { beside, key: its, .. } = ring.head(predicted);
        let is_implied = is_live && beside != 0 && ring.holds(predicted, start, its, top) && is_beside(beside);
        let key = if is_implied { its } else { key() };
        let holds = |ring: &Ring, position: u32| self.is_live(position) && ring.holds(position, start, key, top);
        if is_implied || holds(ring, predicted) {
            self.last = predicted;
            self.spent = self.spent.saturating_sub(1);
            return Some(ring.head(predicted).value);
        }
        let found = *ring.sets[set_of(start, key)].iter().find(|&&at| holds(ring, at))?;
        let value = ring.head(found).value;
        self.follow_with(found);
        self.spent = self.spent.saturating_sub(1);
        Some(value)
    }

    fn found_again(&mut self, start: Registers, key: u64, top: u64, epoch: u64, value: u32) -> bool {
        // SAFETY: as in `find`.
        let Some(ring) = unsafe { self.ring.as_mut() }.filter(|_| self.epoch == epoch) else {
            return false;
        };
        let position = ring.values[place_of(start, value)];
        let found =
            self.is_live(position) && ring.head(position).value == value && ring.holds(position, start, key, top);
        if found {
            self.follow_with(position);
            self.spent = self.spent.saturating_sub(1);
        }
        found
    }

    #[inline(always)]
    fn is_live(&self, position: u32) -> bool {
        self.end.wrapping_sub(position).wrapping_sub(1) < LIVE
    }

    /// This entry was found after the last one.
    #[inline(always)]
    fn follow_with(&mut self, position: u32) {
        if self.is_live(self.last) {
            // SAFETY: as in `find`; a live position is of a mapped ring.
            unsafe { &mut *self.ring }.head(self.last).next = position;
        }
        self.last = position;
    }

    #[cold]
    #[inline(never)]
    fn void(&mut self, epoch: u64) {
        // SAFETY: as in `find`.
        if let Some(ring) = unsafe { self.ring.as_mut() } {
            ring.sets = [[0; WAYS]; SETS];
            ring.values = [0; VALUES];
        }
        (self.epoch, self.end, self.last) = (epoch, FIRST, 0);
    }

    /// Writes the words to the lines after the end, but for the first line, which it returns.
    fn walk(
        &mut self,
        start: Registers,
        bounds: Bounds,
        epoch: u64,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Option<Head> {
        if !bounds.hold(start.rsp) {
            return None;
        }
        if self.spent >= CREDIT {
            self.poor = self.poor.wrapping_add(1);
            if !self.poor.is_multiple_of(FEW) {
                return None;
            }
        }
        self.spent = (self.spent + 1).min(CREDIT);
        if self.ring.is_null() {
            self.ring = mapped()?;
        }
        if self.epoch != epoch || self.end > u32::MAX - 2 * LINES {
            self.void(epoch);
        }
        // An entry lies in one piece.
        if self.end % LINES > LIVE {
            self.end = self.end.next_multiple_of(LINES);
        }
        // SAFETY: as in `find`.
        let ring = unsafe { &mut *self.ring };
        let from = (self.end % LINES) as usize;
        let mut read = NewSet {
            lines: &mut ring.lines[from + 1..][..ENTRY_MAX as usize - 1],
            count: 0,
            sp: start.rsp,
            top: bounds.top,
        };
        let mut fp = FramePointer::AtStart;
        let mut fp_matters = 0;
        let mut at = Cursor::at(start);
        while at.pc != 0 && keep(at.pc) {
            if !at.is_code() {
                return None;
            }
            let rule = TABLE.find(at.pc - at.back)?;
            if rule.is_root() {
                break;
            }
            let base = rule.base()?;
            if base != Base::Stack {
                match std::mem::replace(&mut fp, FramePointer::IsRead) {
                    FramePointer::AtStart => fp_matters = u64::MAX,
                    FramePointer::LiesAt(address) => read.push(address)?,
                    FramePointer::IsRead => {}
                }
            }
            let before = at;
            if !at.step(rule, bounds) {
                return None;
            }
            if base == Base::Saved {
                read.push(before.fp.wrapping_add(rule.offset() as u64))?;
            }
            read.push(at.sp - rule.ra() * 8)?;
            if rule.is_fp_at_frame() {
                fp = FramePointer::LiesAt(before.fp);
            } else if rule.fp() != 0 {
                fp = FramePointer::LiesAt(at.sp - rule.fp() * 8);
            }
        }
        Some(Head {
            pc: start.rip,
            sp: start.rsp,
            fp: start.rbp,
            fp_matters,
            top: bounds.top,
            key: 0,
            value: 0,
            next: 0,
            beside: 0,
            lines: read.finish(),
        })
    }

    /// Adds the entry whose words `walk` has written.
    fn insert(&mut self, head: Head) {
        let position = self.end;
        // SAFETY: as in `find`.
        let ring = unsafe { &mut *self.ring };
        ring.lines[(position % LINES) as usize] = Line { head };
        let start = Registers {
            rip: head.pc,
            rsp: head.sp,
            rbp: head.fp,
        };
        let set = &mut ring.sets[set_of(start, head.key)];
        set.copy_within(..WAYS - 1, 1);
        set[0] = position;
        ring.values[place_of(start, head.value)] = position;
        self.follow_with(position);
        self.end += 1 + head.lines;
    }
}

#[inline(always)]
fn set_of(start: Registers, key: u64) -> usize {
    let mixed = (start.rip ^ start.rsp.rotate_left(32) ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - SETS.ilog2())) as usize
}

#[inline(always)]
fn place_of(start: Registers, value: u32) -> usize {
    let mixed = (start.rsp ^ u64::from(value) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - VALUES.ilog2())) as usize
}

/// Room for a `T`, of zeros, that is never unmapped.
#[cold]
pub fn mapped<T>() -> Option<*mut T> {
    // SAFETY: new memory at an address of the kernel's choice.
    let room = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<T>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    (room != libc::MAP_FAILED).then_some(room.cast())
}

impl Ring {
    /// Of a live position.
    #[inline(always)]
    fn head(&mut self, position: u32) -> &mut Head {
        // SAFETY: integers, of which every value is valid; positions name lines that begin an entry.
        unsafe { &mut self.lines[(position % LINES) as usize].head }
    }

    /// Whether a walk with this start would load the words of this live entry.
    #[inline(always)]
    fn holds(&self, position: u32, start: Registers, key: u64, top: u64) -> bool {
        let from = (position % LINES) as usize;
        // SAFETY: as in `head`.
        let head = unsafe { &self.lines[from].head };
        let differs = (head.pc ^ start.rip)
            | (head.sp ^ start.rsp)
            | (head.fp ^ start.rbp) & head.fp_matters
            | (head.top ^ top)
            | (head.key ^ key);
        // SAFETY: integers; an entry's other lines are words.
        let words = |line: &Line| unsafe { line.words.hold(start.rsp) };
        differs == 0 && self.lines[from + 1..][..head.lines as usize].iter().all(words)
    }
}

impl Words {
    /// # Safety
    /// The stack from `sp` to the top with which the words were read is readable.
    #[inline(always)]
    unsafe fn hold(&self, sp: u64) -> bool {
        let mut differs = 0;
        for (value, offset) in self.values.iter().zip(self.offsets) {
            // SAFETY: `push` found that the word lies between `sp` and the top.
            differs |= unsafe { load(sp + u64::from(offset) * 8) } ^ value;
        }
        differs == 0
    }
}

/// Where the frame pointer of the walk is from.
enum FramePointer {
    AtStart,
    /// Not in the read set yet.
    LiesAt(u64),
    IsRead,
}

struct NewSet<'a> {
    lines: &'a mut [Line],
    count: usize,
    sp: u64,
    top: u64,
}

impl NewSet<'_> {
    /// Adds a word that the walk has loaded.
    fn push(&mut self, address: u64) -> Option<()> {
        let offset = address.wrapping_sub(self.sp);
        let is_within = address >= self.sp && address < self.top && self.top - address >= 8;
        if !is_within || !offset.is_multiple_of(8) {
            return None;
        }
        let line = self.lines.get_mut(self.count / WORDS)?;
        // SAFETY: integers, of which every value is valid.
        let words = unsafe { &mut line.words };
        words.offsets[self.count % WORDS] = u16::try_from(offset / 8).ok()?;
        // SAFETY: the step that the walk has just made loaded it.
        words.values[self.count % WORDS] = unsafe { load(address) };
        self.count += 1;
        Some(())
    }

    /// Fills the last line with copies of its first word. Returns the number of lines.
    fn finish(&mut self) -> u32 {
        let lines = self.count.div_ceil(WORDS);
        if let Some(line) = lines.checked_sub(1).and_then(|last| self.lines.get_mut(last)) {
            // SAFETY: as above.
            let words = unsafe { &mut line.words };
            for place in (self.count - 1) % WORDS + 1..WORDS {
                (words.values[place], words.offsets[place]) = (words.values[0], words.offsets[0]);
            }
        }
        lines as u32
    }
}

#[cfg(test)]
mod tests;
