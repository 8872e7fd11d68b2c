//! The event log, if it is enabled: each shard writes to a segment of its own, and a full log reuses the segment
//! that was closed first.
//!
//! ```text
//! shard 0 ──► segment 7    open: slots are taken by one instruction, words written, the first word last
//! shard 1 ──► segment 3
//!             segment 0…   closed: full; the first of them is emptied and reused when the log is at its limit
//! ```
//!
//! A segment that is reused may be younger than one that a rarely used shard still has open.
//! No thread waits for another; see [`crate::lockfree::event_segment`] for how a segment is written and reused.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

use super::Recording;
use crate::format::*;
use crate::kind::Kind;
use crate::lockfree::shards::Shard;
use crate::lockfree::table::{Entry, Key};
use crate::system::anonymous;

/// Thread rows from here on are not distinguished.
const THREADS: u32 = u16::MAX as u32;

/// What the process needs to write events. All zeros: events are not logged.
#[repr(C)]
pub struct Log {
    /// The most segments; 0: events are not logged.
    limit: AtomicU64,
    /// The closed segments in the order in which they were closed: a ring of `ring_mask + 1` words, each with the number of a
    /// segment + 1 in the low half and the place at which it was added in the high half.
    ring: AtomicPtr<AtomicU64>,
    ring_mask: AtomicU64,
    first_closed: AtomicU64,
    closed: AtomicU64,
    /// The segment that each shard writes to.
    open: [AtomicPtr<EventSegment>; SHARDS],
}

impl Recording {
    /// Logs events from now on, in at most this number of bytes. Called before the recording is shared.
    pub fn enable_timeline(&self, bytes: u64) {
        let segments = bytes.max(TIMELINE_MIN) / size_of::<EventSegment>() as u64;
        // A segment is in the ring once, or twice if it was reused without being taken from it.
        let places = 2 * segments.next_power_of_two();
        let Ok(ring) = anonymous(places as usize * size_of::<AtomicU64>()) else {
            return self.add(Loss::TimelineEvents, 1);
        };
        self.log.ring.store(ring.cast(), Relaxed);
        self.log.ring_mask.store(places - 1, Relaxed);
        self.file.header().timeline_segments.store(segments, Relaxed);
        self.log.limit.store(segments, Relaxed);
        self.often.observers.fetch_add(1, Relaxed);
    }

    #[inline]
    pub(super) fn logs_events(&self) -> bool {
        self.log.limit.load(Relaxed) != 0
    }

    /// Logs an event of this memory. `site`: its row of totals; `None` if there was no room for one.
    #[inline]
    pub(super) fn log_event(&self, shard: Shard, key: Key, entry: &Entry, op: Op, site: Option<u32>, time_ns: u64) {
        let Some(site) = site else {
            return self.add(Loss::TimelineEvents, 1);
        };
        let event = StoredEvent {
            op,
            time_ns,
            address: match entry.attributes.kind {
                // The key of a buffer is its handle; `extra` is its address.
                Kind::Buffer if entry.extra != 0 => entry.extra,
                _ => key.address,
            },
            bytes: entry.bytes,
            site,
            detail: match op {
                Op::Freed => lifetime_code(time_ns.saturating_sub(entry.time_ns)),
                _ => entry.thread.min(THREADS) as u16,
            },
        };
        self.write_event(shard, &event);
    }

    #[inline]
    fn write_event(&self, shard: Shard, event: &StoredEvent) {
        let open = &self.log.open[shard.number()];
        loop {
            // Acquire: pairs with the Release in `open_segment`, so the segment is empty and has its time.
            // SAFETY: null, or a segment in an extent that is never unmapped.
            let segment = unsafe { open.load(Acquire).as_ref() };
            let is_open = || std::ptr::eq(open.load(SeqCst), segment.map_or(std::ptr::null(), std::ptr::from_ref));
            if segment.is_some_and(|segment| segment.write(shard, event, is_open)) {
                return;
            }
            // Otherwise another thread of the shard, or a signal handler, has opened one: nothing is emptied for this event.
            if is_open() && self.open_segment(open, segment, event.time_ns).is_none() {
                return self.add(Loss::TimelineEvents, 1);
            }
        }
    }

    /// Replaces the full segment of a shard. `None` if there is no room.
    #[cold]
    #[inline(never)]
    fn open_segment(&self, open: &AtomicPtr<EventSegment>, full: Option<&EventSegment>, time_ns: u64) -> Option<()> {
        let segment = self.fresh_segment().or_else(|| self.reused_segment())?;
        segment.open(time_ns);
        let before = full.map_or(std::ptr::null_mut(), |full| std::ptr::from_ref(full).cast_mut());
        let new = std::ptr::from_ref(segment).cast_mut();
        // Release: pairs with the Acquire in `write_event`.
        let replaced = match open.compare_exchange(before, new, Release, Relaxed) {
            Ok(_) => full,
            // A signal handler, or a thread that shares the shard, has opened another one.
            Err(_) => Some(segment),
        };
        if let Some(replaced) = replaced {
            replaced.close();
            self.log.add_closed(replaced.number());
        }
        Some(())
    }

    fn fresh_segment(&self) -> Option<&EventSegment> {
        if self.elements(Section::Events).load(Relaxed) >= self.log.limit.load(Relaxed) {
            return None;
        }
        let (number, segment) = self.row(Section::Events, &self.events)?;
        segment.set_number(number);
        Some(segment)
    }

    /// Empties the segment that was closed first, or any closed one if that is just being added to the ring.
    fn reused_segment(&self) -> Option<&EventSegment> {
        let count = self.elements(Section::Events).load(Relaxed) as u32;
        let at = |number| self.events.get(self.backing(Section::Events), number);
        let (segment, latest) = (0..count)
            .map_while(|_| self.log.take_closed())
            .find_map(|number| {
                let segment: &EventSegment = at(number)?;
                let claimed = segment.claim();
                if claimed.is_none() && segment.is_closed() {
                    // A thread has not written its event yet.
                    self.log.add_closed(number);
                }
                Some((segment, claimed?))
            })
            .or_else(|| {
                (0..count).find_map(|number| at(number).and_then(|segment| Some((segment, segment.claim()?))))
            })?;
        // Before the events disappear: a reader that misses some of them sees that the log begins later.
        self.file.header().timeline_since_ns.fetch_max(latest, SeqCst);
        segment.empty();
        Some(segment)
    }
}

impl Log {
    fn place(&self, at: u64) -> Option<&AtomicU64> {
        let ring = self.ring.load(Relaxed);
        let place = (at & self.ring_mask.load(Relaxed)) as usize;
        // SAFETY: null, or a ring of `ring_mask + 1` words that is never unmapped.
        (!ring.is_null()).then(|| unsafe { &*ring.add(place) })
    }

    /// Adds a closed segment, which is not in the ring.
    fn add_closed(&self, number: u32) {
        let at = self.closed.fetch_add(1, Relaxed);
        if let Some(place) = self.place(at) {
            // Release: pairs with the Acquire in `take_closed`.
            place.store(pack(number + 1, at as u32), Release);
        }
    }

    /// Takes the segment that was closed first. `None` if the ring is empty, or if another thread is adding it.
    fn take_closed(&self) -> Option<u32> {
        let mut first = self.first_closed.load(Relaxed);
        loop {
            let (number_plus_one, at) = halves(self.place(first)?.load(Acquire));
            // A word of an earlier round of the ring: the segment of this place was not added yet.
            let number = number_plus_one.checked_sub(1).filter(|_| at == first as u32)?;
            match self.first_closed.compare_exchange(first, first + 1, Relaxed, Relaxed) {
                Ok(_) => return Some(number),
                Err(now) => first = now,
            }
        }
    }
}
