//! What was allocated since a moment, what of it is left, and how high it rose: for harnesses that judge a program piece
//! by piece, as pytest does test by test.
//!
//! An interval counts the allocations made in it and nothing else: whatever is older may be freed meanwhile, and the sum
//! does not care. So at its end the sum is what the interval left behind, and the peak is what it needed. What belongs
//! to an interval is decided by an allocation's own time, which its record keeps until the free.
//!
//! ```text
//! began ──┐                        one for all slots
//!         ▼
//! slot    left   round │ bytes     changed by one compare-and-swap an event: every value it ever had is seen by
//!         peak   round │ bytes     whoever put it there, and the peak is raised to it
//!         count  round │ records
//!         held           bytes     in use now, whenever allocated
//! ```
//!
//! Why it is right:
//! - A sum that every event changes in one step has all its values seen, so its peak is exact. The recording's own peaks
//!   do without such a word for the sake of speed ([`crate::lockfree::peak`]); this one is only there when asked for.
//! - A word carries the number of its interval. An event that read the word before another interval began fails its
//!   swap, and decides anew; one that reads it afterwards sees that interval's beginning, which was written before.
//! - Events under way while an interval begins or is read count on one side or the other; what they add, their own free
//!   takes away again on the same side.
//!
//! Deliberately absent: several intervals at once. The one that began last is the one that counts, and whoever reads an
//! earlier one is told that it is gone. Numbers of intervals wrap after 65,535.

use std::sync::atomic::Ordering::*;

use crate::lockfree::sync::AtomicU64;

/// Devices there can be (rows of the recording), and two more: all of them together, and the host.
pub const SLOTS: usize = 34;
/// All devices together.
pub const ALL: usize = 0;
/// Page-locked host memory.
pub const HOST: usize = SLOTS - 1;

/// The slot of a device row.
pub const fn slot_of(row: u8) -> Option<usize> {
    let slot = row as usize + 1;
    if slot < HOST { Some(slot) } else { None }
}

const AMOUNT_BITS: u32 = 48;
const AMOUNT: u64 = (1 << AMOUNT_BITS) - 1;
const ROUNDS: u64 = 1 << (64 - AMOUNT_BITS);

/// The number of an interval in the upper bits, an amount below.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    const fn new(round: u64, amount: u64) -> Word {
        Word(round << AMOUNT_BITS | if amount < AMOUNT { amount } else { AMOUNT })
    }

    const fn round(self) -> u64 {
        self.0 >> AMOUNT_BITS
    }

    const fn amount(self) -> u64 {
        self.0 & AMOUNT
    }
}

#[repr(C)]
#[cfg_attr(loom, derive(Default))]
struct Slot {
    left: AtomicU64,
    peak: AtomicU64,
    count: AtomicU64,
    held: AtomicU64,
}

/// What a slot says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reading {
    /// Allocated in the interval and not freed.
    pub left_bytes: u64,
    pub left_count: u64,
    /// The most that `left_bytes` ever was.
    pub peak_bytes: u64,
    /// In use, whenever it was allocated.
    pub held_bytes: u64,
}

/// One allocation or free, as intervals see it.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    pub slot: Option<usize>,
    /// When the memory was allocated.
    pub time_ns: u64,
    pub bytes: u64,
    /// Whether it counts for [`ALL`] too.
    pub on_device: bool,
}

/// All zeros: nobody has asked for intervals.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Intervals {
    watching: AtomicU64,
    /// PyTorch's allocator does not tell of its tensors, which are allocations of CUDA's then.
    unreported: AtomicU64,
    round: AtomicU64,
    began_ns: AtomicU64,
    /// The interval may need so much; 0: any amount, or it was exceeded already.
    limit: AtomicU64,
    /// It was exceeded, and nobody has asked yet.
    exceeded: AtomicU64,
    #[cfg(not(loom))]
    slots: [Slot; SLOTS],
    /// loom follows every word there is.
    #[cfg(loom)]
    slots: [Slot; 1],
}

impl Intervals {
    /// From the beginning of a recording on, or never: the sums are those of what was seen. `tensors_are_told`: PyTorch's
    /// allocator, if there is one, keeps a cache and tells what it hands out of it.
    pub fn watch(&self, tensors_are_told: bool) {
        self.unreported.store(u64::from(!tensors_are_told), Relaxed);
        self.watching.store(1, Relaxed);
    }

    #[inline]
    pub fn watching(&self) -> bool {
        self.watching.load(Relaxed) != 0
    }

    pub fn tensors_are_told(&self) -> bool {
        self.unreported.load(Relaxed) == 0
    }

    /// Begins an interval at `now_ns`, on the clock of the records, and says its number, which is not 0.
    pub fn begin(&self, now_ns: u64, limit: u64) -> u64 {
        let round = self.round.load(Relaxed) % (ROUNDS - 1) + 1;
        self.began_ns.store(now_ns, Relaxed);
        self.exceeded.store(0, Relaxed);
        self.limit.store(limit, Relaxed);
        for slot in &self.slots {
            slot.peak.store(Word::new(round, 0).0, Relaxed);
            for sum in [&slot.count, &slot.left] {
                // Release: whoever adds to the new sum knows when the interval began, and raises its peak.
                sum.swap(Word::new(round, 0).0, Release);
            }
        }
        self.round.store(round, Relaxed);
        round
    }

    /// What a slot says of the interval with this number; `None` when another one has begun.
    pub fn read(&self, round: u64, slot: usize) -> Option<Reading> {
        let slot = self.slots.get(slot)?;
        let words = [&slot.left, &slot.count, &slot.peak].map(|word| Word(word.load(Relaxed)));
        let [left, count, peak] = words.map(Word::amount);
        // 0 stands for no interval, and for words that none has touched.
        let is_ours = round != 0 && words.iter().all(|word| word.round() == round);
        is_ours.then(|| Reading {
            left_bytes: left,
            left_count: count,
            // An event between its two steps has not raised it yet.
            peak_bytes: peak.max(left),
            held_bytes: slot.held.load(Relaxed),
        })
    }

    /// Memory was allocated, or a free of it has failed.
    pub fn came(&self, event: &Event) {
        for (number, slot) in self.slots_of(event) {
            slot.held.fetch_add(event.bytes, Relaxed);
            self.change(&slot.count, event, |count| count.saturating_add(1));
            let Some(now) = self.change(&slot.left, event, |left| left.saturating_add(event.bytes)) else {
                continue;
            };
            slot.raise(now);
            if number == ALL {
                self.compare(now.amount());
            }
        }
    }

    /// Memory was freed.
    pub fn went(&self, event: &Event) {
        for (_, slot) in self.slots_of(event) {
            slot.held.fetch_sub(event.bytes, Relaxed);
            self.change(&slot.count, event, |count| count.saturating_sub(1));
            self.change(&slot.left, event, |left| left.saturating_sub(event.bytes));
        }
    }

    fn slots_of(&self, event: &Event) -> impl Iterator<Item = (usize, &Slot)> {
        let of_all = event.on_device.then_some(ALL);
        let numbers = of_all.into_iter().chain(event.slot);
        numbers.filter_map(|number| Some((number, self.slots.get(number)?)))
    }

    /// Changes a sum if the memory belongs to its interval, and says what it then was.
    fn change(&self, sum: &AtomicU64, event: &Event, change: impl Fn(u64) -> u64) -> Option<Word> {
        loop {
            // Acquire: pairs with the Release in `begin`, so the beginning below is that of this interval or a later one.
            let seen = Word(sum.load(Acquire));
            // 0: no interval has begun yet.
            if seen.round() == 0 || event.time_ns < self.began_ns.load(Relaxed) {
                return None;
            }
            let new = Word::new(seen.round(), change(seen.amount()));
            // The order of the load is that of the swap: what it replaces is what was loaded.
            if sum.compare_exchange(seen.0, new.0, Relaxed, Relaxed).is_ok() {
                return Some(new);
            }
        }
    }

    fn compare(&self, now: u64) {
        let limit = self.limit.load(Relaxed);
        if limit > 0 && now > limit && self.limit.compare_exchange(limit, 0, Relaxed, Relaxed).is_ok() {
            self.exceeded.store(1, Relaxed);
        }
    }

    /// Whether the interval's limit was exceeded; said once.
    #[inline]
    pub fn was_exceeded(&self) -> bool {
        self.watching() && self.exceeded.load(Relaxed) != 0 && self.exceeded.swap(0, Relaxed) != 0
    }
}

impl Slot {
    /// The sum of the interval was `now`.
    fn raise(&self, now: Word) {
        loop {
            let seen = Word(self.peak.load(Relaxed));
            if seen.round() != now.round() || seen.amount() >= now.amount() {
                return;
            }
            if self.peak.compare_exchange(seen.0, now.0, Relaxed, Relaxed).is_ok() {
                return;
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
