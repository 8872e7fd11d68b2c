//! Shards: counters and free lists, each owned by one thread or shared by several.
//!
//! An uncontended `lock`-prefixed instruction still costs about 20 cycles; without the prefix it costs one. So a thread owns a
//! shard as long as it lives, and changes the shard's words by unlocked instructions ([`Alone`]): a single instruction each,
//! so that a signal handler of the thread runs before it or after it. Readers in other processes see whole words in either
//! case.
//!
//! ```text
//! 0 … 47   owned    │ tid, thread row │   claimed by a swap; reused when the owner no longer exists
//! 48 … 63  shared   for threads that find no shard to own, and for callers without a shard: locked instructions
//! ```
//!
//! No event marks the end of a thread (a thread-local destructor would run at a time when the thread may still allocate). So
//! when no shard is free, the kernel is asked whether the owners' thread ids still exist: once the kernel no longer knows a
//! thread, everything it wrote has long been written. A thread with the tid of a former owner takes over that shard.

use std::sync::atomic::Ordering::*;

use crate::format::{SHARDS, pack};
use crate::lockfree::sync::{Alone, AtomicU64};
use crate::system::cold_path;

/// The number of shards that are owned by one thread each.
pub const OWN: usize = if cfg!(loom) { 1 } else { 48 };
const SHARED: u32 = (SHARDS - OWN) as u32;

/// The number of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard(u8);

impl Shard {
    /// A shared shard. `any` may be any number, preferably one per thread.
    pub const fn shared(any: u32) -> Shard {
        Shard(OWN as u8 + (any % SHARED) as u8)
    }

    /// For tests, which ensure that only one thread at a time uses it.
    #[cfg(test)]
    pub const fn first_own() -> Shard {
        Shard(0)
    }

    /// For tests: as above, with any number.
    #[cfg(all(test, feature = "read"))]
    pub const fn for_test(number: u8) -> Shard {
        Shard(number)
    }

    #[inline]
    pub const fn number(self) -> usize {
        self.0 as usize % SHARDS
    }

    /// Whether a single thread owns it.
    #[inline]
    pub const fn is_own(self) -> bool {
        (self.0 as usize) < OWN
    }

    /// Adds to a word of this shard, as `fetch_add` does.
    #[inline]
    pub fn add(self, word: &AtomicU64, amount: u64) {
        if self.is_own() {
            word.add_alone(amount);
        } else {
            cold_path();
            word.fetch_add(amount, Relaxed);
        }
    }
}

impl Shard {
    /// Adds to two words of this shard.
    #[inline]
    pub fn add_both(self, first: &AtomicU64, amount: u64, second: &AtomicU64, other: u64) {
        if self.is_own() {
            first.add_alone(amount);
            second.add_alone(other);
        } else {
            cold_path();
            first.fetch_add(amount, Relaxed);
            second.fetch_add(other, Relaxed);
        }
    }
}

impl From<u32> for Shard {
    fn from(any: u32) -> Shard {
        Shard::shared(any)
    }
}

/// The owners of the shards: tid in the low half, thread row in the high half. All zeros: no shard is owned.
#[repr(C)]
pub struct Owners([AtomicU64; OWN]);

impl Owners {
    /// Returns a shard for the calling thread, which has this tid and row and calls this once. `is_alive` returns whether a
    /// thread with a given tid exists.
    pub fn claim(&self, tid: u32, row: u32, is_alive: impl Fn(u32) -> bool) -> Shard {
        let me = pack(tid, row);
        let namesake = |seen: u64| seen != 0 && seen as u32 == tid;
        let gone = |seen: u64| seen != 0 && !is_alive(seen as u32);
        self.take(me, namesake)
            .or_else(|| self.take(me, |seen| seen == 0))
            .or_else(|| self.take(me, gone))
            .unwrap_or(Shard::shared(row))
    }

    fn take(&self, me: u64, may: impl Fn(u64) -> bool) -> Option<Shard> {
        let place = self.0.iter().position(|owner| {
            let seen = owner.load(Relaxed);
            // SeqCst: after the end of the previous owner, which the kernel reported.
            may(seen) && owner.compare_exchange(seen, me, SeqCst, Relaxed).is_ok()
        })?;
        Some(Shard(place as u8))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn unowned() -> Owners {
        // SAFETY: documented: all zeros is a value.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn every_thread_owns_a_shard_until_there_are_too_many() {
        let owners = unowned();
        let shards: Vec<Shard> = (0..OWN as u32 + 2)
            .map(|row| owners.claim(100 + row, row, |_| true))
            .collect();
        let mut numbers: Vec<usize> = shards.iter().map(|shard| shard.number()).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), OWN + 2);
        assert!(shards[..OWN].iter().all(|shard| shard.is_own()));
        assert!(shards[OWN..].iter().all(|shard| !shard.is_own()));
    }

    #[test]
    fn the_shard_of_a_thread_that_ended_is_reused() {
        let owners = unowned();
        for row in 0..OWN as u32 {
            owners.claim(100 + row, row, |_| true);
        }
        assert_eq!(owners.claim(7, 90, |tid| tid != 105), Shard(5));
        assert_eq!(owners.claim(8, 91, |_| true), Shard::shared(91));
        // The tid of a thread that ended, reused.
        assert_eq!(owners.claim(110, 92, |_| true), Shard(10));
    }

    #[test]
    fn owned_and_shared_shards_add_alike() {
        let words = [AtomicU64::new(5), AtomicU64::new(5)];
        Shard(0).add(&words[0], 3);
        Shard::shared(0).add(&words[1], 3);
        Shard(0).add(&words[0], 1u64.wrapping_neg());
        assert_eq!([words[0].load(Relaxed), words[1].load(Relaxed)], [7, 8]);
        for shard in [Shard(0), Shard::shared(0)] {
            let [first, second] = [AtomicU64::new(5), AtomicU64::new(6)];
            shard.add_both(&first, 2, &second, 1u64.wrapping_neg());
            assert_eq!([first.load(Relaxed), second.load(Relaxed)], [7, 5]);
        }
        assert_eq!(words[0].swap_alone(7, 9), Ok(()));
        assert_eq!(words[0].swap_alone(7, 1), Err(9));
    }
}
