//! A segment of the event log: written by the threads of one shard, closed when it is full, and emptied by any thread.
//!
//! ```text
//!         open                    close               claim            open
//! Unused ──────► Open, round 1 ──────────► Closed ──────────► Emptying ──────► Open, round 2 …
//! ```
//!
//! - A slot is taken by an unlocked instruction in an owned shard and by a locked one in a shared shard, so no two threads, and
//!   no signal handler, write to one slot. The first word of an event is stored last; until then the slot is empty for readers.
//! - A closed segment with a slot that was taken but not written yet is not emptied: [`EventSegment::claim`] looks at every
//!   slot that was taken. Once all are written, no thread writes to the segment, since its cursor is past the end.
//! - A thread of a shared shard, or a thread that a signal handler interrupts, may be stopped between finding its shard's segment
//!   and taking a slot, and meanwhile the segment may be closed, emptied and opened for another shard. So after it has taken a slot it checks again whose segment this is, and
//!   marks a slot of another shard as void. A segment with a taken slot is not emptied, so the check stays valid.
//! - A reader in another process that finds the same round before and after reading a segment, which was not being emptied, has
//!   read the events of that round.

use std::sync::atomic::Ordering::*;

use crate::format::{EVENTS, EventSegment, SegmentState, StoredEvent, Use};
use crate::lockfree::shards::Shard;
use crate::lockfree::sync::{Alone, AtomicU64};

/// The first word of a slot without an event: no [`Op`](crate::format::Op) has this number.
const VOID: u64 = 7;

/// How long a segment stays open: 20 days.
const OPEN_NS_MAX: u64 = 20 * 86_400 * 1_000_000_000;

impl EventSegment {
    fn state(&self) -> Option<SegmentState> {
        // Acquire: pairs with the Release of the thread that set it.
        SegmentState::from_word(self.state.load(Acquire))
    }

    /// The segment's number in the log.
    pub fn number(&self) -> u32 {
        self.reserved[0].load(Relaxed) as u32
    }

    pub fn set_number(&self, number: u32) {
        self.reserved[0].store(number.into(), Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        self.state().is_some_and(|state| state.used == Use::Closed)
    }

    /// Makes an empty segment, which no other thread has, ready for writing.
    pub fn open(&self, time_ns: u64) {
        let round = self.state().map_or(0, |state| state.round).wrapping_add(1);
        // Release: pairs with the SeqCst addition in `take`. A late writer that takes a slot after this sees in which shard the
        // segment was replaced.
        self.cursor.store(0, Release);
        self.opened_ns.store(time_ns, Relaxed);
        let open = SegmentState { used: Use::Open, round };
        // Release: pairs with readers, which expect the time of an open segment.
        self.state.store(open.to_word(), Release);
    }

    /// Writes an event. False if the segment is full, or is not the shard's any more. `is_open` returns whether the segment is
    /// the one that the shard writes to.
    #[inline]
    pub fn write(&self, shard: Shard, event: &StoredEvent, is_open: impl Fn() -> bool) -> bool {
        // Times are decoded relative to the opening: see `StoredEvent::from_words`.
        if event.time_ns.saturating_sub(self.opened_ns.load(Relaxed)) > OPEN_NS_MAX {
            return false;
        }
        let Some(slot) = self.take(shard) else { return false };
        if !is_open() {
            // Its owner may have taken the same slot, and its event stays.
            let _ = slot[0].compare_exchange(0, VOID, Relaxed, Relaxed);
            return false;
        }
        let [first, second, third] = event.to_words();
        slot[1].store(second, Relaxed);
        slot[2].store(third, Relaxed);
        // Release: pairs with the Acquire in `claim` and with readers, which accept an event with a first word.
        slot[0].store(first, Release);
        true
    }

    /// A slot that no other thread has; `None` if the segment is full.
    #[inline]
    fn take(&self, shard: Shard) -> Option<&[AtomicU64; 3]> {
        let mut next = self.cursor.load(Relaxed);
        if shard.is_own() {
            while next < EVENTS as u64 {
                match self.cursor.swap_alone(next, next + 1) {
                    Ok(()) => return Some(&self.events[next as usize]),
                    Err(now) => next = now,
                }
            }
            return None;
        }
        if next >= EVENTS as u64 {
            return None;
        }
        // SeqCst: before the caller checks whether the segment is still the shard's.
        next = self.cursor.fetch_add(1, SeqCst);
        self.events.get(next as usize)
    }

    /// Called by the thread that replaced the segment in its shard.
    pub fn close(&self) {
        if let Some(SegmentState { used: Use::Open, round }) = self.state() {
            // Release: pairs with the Acquire in `state`.
            let closed = SegmentState {
                used: Use::Closed,
                round,
            };
            self.state.store(closed.to_word(), Release);
        }
    }

    /// Claims a closed segment for emptying, and returns the time of its latest event. `None` if it is in use.
    pub fn claim(&self) -> Option<u64> {
        let closed = self.state().filter(|state| state.used == Use::Closed)?;
        let opened = self.opened_ns.load(Relaxed);
        // A segment that was closed before it was used has none.
        let taken = (self.cursor.load(Relaxed) as usize).min(EVENTS);
        let latest = self.events[..taken].iter().try_fold(opened, |latest, slot| {
            // Acquire: pairs with the Release that wrote the event.
            let words = [slot[0].load(Acquire), slot[1].load(Relaxed), slot[2].load(Relaxed)];
            let time_ns = StoredEvent::from_words(words, opened).map_or(0, |event| event.time_ns);
            // 0: a thread has taken the slot and not written it yet.
            (words[0] != 0).then_some(latest.max(time_ns))
        })?;
        let emptying = SegmentState {
            used: Use::Emptying,
            ..closed
        };
        // The round has not changed: what was loaded above is the segment's content.
        self.state
            .compare_exchange(closed.to_word(), emptying.to_word(), Relaxed, Relaxed)
            .ok()
            .map(|_| latest)
    }

    pub fn empty(&self) {
        for word in self.events.iter().flatten() {
            word.store(0, Relaxed);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
