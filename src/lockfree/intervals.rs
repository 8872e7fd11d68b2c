//! Intervals: what was allocated since a point in time, how much of it is left, and its peak; for test harnesses that judge a
//! program piece by piece, as pytest does test by test.
//!
//! An interval counts its own allocations only: older memory may be freed meanwhile, which does not change the sum. So at the
//! end of the interval the sum is what the interval left behind, and the peak is what it needed. Whether an allocation
//! belongs to an interval follows from its time, which its record holds until the free.
//!
//! ```text
//! began ──┐                        one for all slots
//!         ▼
//! slot    left   round │ bytes     changed by one compare-and-swap per event, so every value is seen by the thread
//!         peak   round │ bytes     that stored it, which raises the peak to it
//!         count  round │ records
//!         held           bytes     in use now, whenever allocated
//! ```
//!
//! Why it is correct:
//! - A sum that every event changes in one step has all its values seen, so its peak is exact. The recording's own peaks
//!   avoid such a word because it is slower ([`crate::lockfree::peak`]); intervals are used only when enabled.
//! - A word carries the number of its interval. An event that loaded the word before another interval began fails its swap
//!   and retries; one that loads it afterwards sees the beginning of that interval, which was stored before.
//! - An event that overlaps the beginning or a read of an interval counts on one side or the other, and the free of that
//!   memory counts on the same side.
//!
//! Deliberately absent: several intervals at once. The newest interval counts; reading an earlier one returns `None`. Numbers
//! of intervals wrap after 65,535.

use std::sync::atomic::Ordering::*;

use crate::lockfree::sync::AtomicU64;

/// The largest number of devices (rows of the recording), plus two: all devices together, and the host.
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

/// The number of an interval in the upper 16 bits, an amount below.
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

/// The values of a slot; `struct culeak_interval` of culeak.h.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Reading {
    /// Allocated in the interval and not freed.
    pub left_bytes: u64,
    pub left_count: u64,
    /// The peak of `left_bytes`.
    pub peak_bytes: u64,
    /// In use, whenever it was allocated.
    pub held_bytes: u64,
}

/// One allocation or free.
#[derive(Debug, Clone, Copy)]
pub struct Event {
    pub slot: Option<usize>,
    /// When the memory was allocated.
    pub time_ns: u64,
    pub bytes: u64,
    /// Whether it also counts for [`ALL`].
    pub on_device: bool,
}

/// All zeros: not enabled.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Intervals {
    watching: AtomicU64,
    /// 1: PyTorch's allocator does not report its tensors, each of which is then an allocation of CUDA's.
    unreported: AtomicU64,
    round: AtomicU64,
    began_ns: AtomicU64,
    /// The limit of the interval in bytes; 0: none, or it was already exceeded.
    limit: AtomicU64,
    /// The last interval in which an allocation was lost.
    incomplete: AtomicU64,
    /// 1: the limit was exceeded, and `was_exceeded` has not returned that yet.
    exceeded: AtomicU64,
    #[cfg(not(loom))]
    slots: [Slot; SLOTS],
    /// One, since loom tracks every word.
    #[cfg(loom)]
    slots: [Slot; 1],
}

impl Intervals {
    /// Enables intervals, at the beginning of a recording: the sums must include every event. `tensors_reported`: PyTorch's
    /// allocator, if it is used, caches memory and reports the tensors that it allocates from it.
    pub fn watch(&self, tensors_reported: bool) {
        self.unreported.store(u64::from(!tensors_reported), Relaxed);
        self.watching.store(1, Relaxed);
    }

    #[inline]
    pub fn watching(&self) -> bool {
        self.watching.load(Relaxed) != 0
    }

    pub fn tensors_reported(&self) -> bool {
        self.unreported.load(Relaxed) == 0
    }

    /// Begins an interval at `now_ns`, on the clock of the records, and returns its number, which is not 0.
    pub fn begin(&self, now_ns: u64, limit: u64) -> u64 {
        let round = self.round.load(Relaxed) % (ROUNDS - 1) + 1;
        self.began_ns.store(now_ns, Relaxed);
        self.exceeded.store(0, Relaxed);
        self.limit.store(limit, Relaxed);
        for slot in &self.slots {
            slot.peak.store(Word::new(round, 0).0, Relaxed);
            for sum in [&slot.count, &slot.left] {
                // Release: pairs with the Acquire in `change`, so an event that adds to the new sum sees when the interval began.
                sum.swap(Word::new(round, 0).0, Release);
            }
        }
        self.round.store(round, Relaxed);
        round
    }

    /// An allocation could not be recorded, so nothing is known of its interval.
    pub fn lose(&self) {
        self.incomplete.store(self.round.load(Relaxed), Relaxed);
    }

    /// The values of a slot in the interval with this number; `None` if another one has begun, or if an allocation was lost in it.
    pub fn read(&self, round: u64, slot: usize) -> Option<Reading> {
        let slot = self.slots.get(slot)?;
        if self.incomplete.load(Relaxed) == round {
            return None;
        }
        let words = [&slot.left, &slot.count, &slot.peak].map(|word| Word(word.load(Relaxed)));
        let [left, count, peak] = words.map(Word::amount);
        // 0: no interval, or a word that no interval has set.
        let is_ours = round != 0 && words.iter().all(|word| word.round() == round);
        is_ours.then(|| Reading {
            left_bytes: left,
            left_count: count,
            // An event may have changed `left` and not raised the peak yet.
            peak_bytes: peak.max(left),
            held_bytes: slot.held.load(Relaxed),
        })
    }

    /// Memory was allocated, or a free of it failed.
    pub fn allocated(&self, event: &Event) {
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
    pub fn freed(&self, event: &Event) {
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

    /// Changes a sum if the memory belongs to its interval, and returns the new value.
    fn change(&self, sum: &AtomicU64, event: &Event, change: impl Fn(u64) -> u64) -> Option<Word> {
        loop {
            // Acquire: pairs with the Release in `begin`, so the beginning loaded below is that of this interval or a later one.
            let seen = Word(sum.load(Acquire));
            // 0: no interval has begun yet.
            if seen.round() == 0 || event.time_ns < self.began_ns.load(Relaxed) {
                return None;
            }
            let new = Word::new(seen.round(), change(seen.amount()));
            // Relaxed: the swap succeeds only on the value that was acquired above.
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

    /// Whether the interval's limit was exceeded; true once per interval.
    #[inline]
    pub fn was_exceeded(&self) -> bool {
        self.watching() && self.exceeded.load(Relaxed) != 0 && self.exceeded.swap(0, Relaxed) != 0
    }
}

impl Slot {
    /// Raises the peak to `now`, if it belongs to the same interval.
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
