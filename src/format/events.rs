//! The event log: every allocation and free in 24 bytes, in segments of one shard each.
//!
//! ```text
//! segment   state │ opened │ cursor │ …  │ event │ event │ … 2728        64 KiB
//! event     word 0   op 3 │ time 49 │ bytes, upper 12 bits                 stored last; 0: not written
//!           word 1   address 48 │ thread row, or lifetime 16
//!           word 2   row of totals 32 │ bytes, lower 32 bits
//! ```
//!
//! The row of totals names stack, kind, device and function. Times are in units of 8 ns and wrap after 52 days; the time at
//! which the segment was opened resolves them. A full log reuses its oldest closed segment.

use crate::lockfree::sync::{AtomicU64, Element};
use crate::numbered::numbered;

/// The largest log in bytes: a recording has room for this number of extents.
pub const TIMELINE_MAX: u64 = 4 << 30;

/// The smallest log: each shard may have a segment open, and some must be closed for one to be reused.
pub const TIMELINE_MIN: u64 = 2 * super::SHARDS as u64 * size_of::<EventSegment>() as u64;

/// Events of a segment.
pub const EVENTS: usize = if cfg!(loom) { 2 } else { 2728 };

/// A segment of the log. All zeros: never used.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct EventSegment {
    /// [`SegmentState`] as a word.
    pub state: AtomicU64,
    /// When it was opened, on the recording's clock.
    pub opened_ns: AtomicU64,
    /// Events taken, at most; it may exceed [`EVENTS`].
    pub cursor: AtomicU64,
    /// The first is the segment's own number.
    pub reserved: [AtomicU64; 5],
    pub events: [[AtomicU64; 3]; EVENTS],
}
const _: () = assert!(cfg!(loom) || size_of::<EventSegment>() == 64 << 10);

// SAFETY: every field consists of atomics.
unsafe impl Element for EventSegment {}

numbered! {
    pub enum Use: u32 {
        Unused = 0,
        /// A shard writes to it.
        Open = 1,
        /// Full: it may be reused.
        Closed = 2,
        /// A thread empties it.
        Emptying = 3,
    }
}

/// Use in the low half, the number of times it was opened in the high half.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentState {
    pub used: Use,
    pub round: u32,
}

impl SegmentState {
    pub const fn to_word(self) -> u64 {
        super::pack(self.used as u32, self.round)
    }

    /// `None` for a use that this version does not know.
    pub const fn from_word(word: u64) -> Option<SegmentState> {
        let (used, round) = super::halves(word);
        match Use::from_number(used) {
            Some(used) => Some(SegmentState { used, round }),
            None => None,
        }
    }
}

numbered! {
    /// What an event did.
    pub enum Op: u8 {
        Allocated = 1,
        Freed = 2,
        /// A free failed: the memory is live again.
        Restored = 3,
    }
}

/// An event as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredEvent {
    pub op: Op,
    /// On the recording's clock; in the file, a multiple of 8.
    pub time_ns: u64,
    /// The lowest 48 bits.
    pub address: u64,
    /// Below 2^44.
    pub bytes: u64,
    /// Row of totals.
    pub site: u32,
    /// Of a free: [`lifetime_code`]. Otherwise the row of the thread, or 65535 if it is higher.
    pub detail: u16,
}

const TIME_BITS: u32 = 49;
const TIME: u64 = (1 << TIME_BITS) - 1;
const TIME_UNIT: u32 = 3;
/// The part of an address that an event has.
pub const ADDRESS: u64 = (1 << 48) - 1;
const BYTES: u64 = (1 << 44) - 1;

impl StoredEvent {
    #[inline(always)]
    pub const fn to_words(self) -> [u64; 3] {
        let bytes = if self.bytes > BYTES { BYTES } else { self.bytes };
        [
            self.op as u64 | (self.time_ns >> TIME_UNIT & TIME) << 3 | bytes >> 32 << 52,
            self.address & ADDRESS | (self.detail as u64) << 48,
            self.site as u64 | bytes << 32,
        ]
    }

    /// Decodes an event of a segment that was opened at `opened_ns`. `None`: it was not written.
    #[inline]
    pub const fn from_words(words: [u64; 3], opened_ns: u64) -> Option<StoredEvent> {
        let Some(op) = Op::from_number((words[0] & 7) as u8) else {
            return None;
        };
        // Events are up to 26 days later than the opening of their segment, and a little earlier if threads share it.
        let opened = opened_ns >> TIME_UNIT;
        let ahead = (words[0] >> 3).wrapping_sub(opened) & TIME;
        let units = if ahead > TIME / 2 {
            opened.saturating_sub(TIME + 1 - ahead)
        } else {
            opened + ahead
        };
        Some(StoredEvent {
            op,
            time_ns: units << TIME_UNIT,
            address: words[1] & ADDRESS,
            bytes: words[0] >> 52 << 32 | words[2] >> 32,
            site: words[2] as u32,
            detail: (words[1] >> 48) as u16,
        })
    }
}

/// Nanoseconds as a floating-point number of 6 bits of exponent and 10 of mantissa: exact to 0.1 %.
#[inline]
pub const fn lifetime_code(ns: u64) -> u16 {
    let bits = u64::BITS - ns.leading_zeros();
    let shift = bits.saturating_sub(11);
    (shift << 10) as u16 + (ns >> shift) as u16
}

/// The smallest lifetime with this code, in nanoseconds.
pub const fn lifetime_ns(code: u16) -> u64 {
    let code = code as u64;
    if code < 2048 {
        return code;
    }
    let shift = (code >> 10) - 1;
    (code & 1023 | 1024) << shift
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_event_survives_its_encoding() {
        let opened = 3 << 60;
        for (time_ns, bytes) in [(opened, 0), (opened + 8_000, (1 << 44) - 1), (opened - 80_000, 5 << 30)] {
            let event = StoredEvent {
                op: Op::Freed,
                time_ns,
                address: 0x7f12_3456_7890,
                bytes,
                site: u32::MAX - 1,
                detail: 0xabcd,
            };
            assert_eq!(StoredEvent::from_words(event.to_words(), opened), Some(event));
        }
        assert_eq!(StoredEvent::from_words([0; 3], opened), None);
    }

    #[test]
    fn lifetimes_are_exact_to_a_thousandth() {
        let mut before = 0;
        for ns in (0..5000).chain((13..63).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) * 3 / 2])) {
            let code = lifetime_code(ns);
            let found = lifetime_ns(code);
            assert!(found <= ns && ns - found <= ns / 1000, "{ns}: {found}");
            assert!(code >= before || ns < 5000, "{ns}");
            before = code;
        }
    }
}
