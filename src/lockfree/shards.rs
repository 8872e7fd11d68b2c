//! Shards: counters and free records that a thread has to itself, and some that threads share.
//!
//! A locked instruction takes twenty cycles also where no other thread wants the word; without the lock it takes one. So
//! a thread owns a shard as long as it lives, and changes the shard's words by instructions without the lock ([`Alone`]):
//! still one instruction each, so that a signal handler of the thread comes before it or after it. Readers in other
//! processes see whole words either way.
//!
//! ```text
//! 0 … 47   own      │ tid, thread row │   claimed by a swap; passed on when the thread is found to be gone
//! 48 … 63  shared   for threads that find no shard to own, and for whoever does not know its shard: locked instructions
//! ```
//!
//! Nothing tells when a thread ends (a destructor of the thread's would, at a time when it may still allocate). So an
//! owner is asked for when the shards have run out, by its number: when the kernel knows it no more, all that it wrote
//! has long been written. A thread with the number of one that is gone takes over what that one had.

use std::sync::atomic::Ordering::*;

use crate::format::{SHARDS, pack};
use crate::lockfree::sync::{Alone, AtomicU64};

/// How many shards have one thread each.
pub const OWN: usize = if cfg!(loom) { 1 } else { 48 };
const SHARED: u32 = (SHARDS - OWN) as u32;

/// Whose counters and free records to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard(u8);

impl Shard {
    /// One of those that threads share; `any` number will do, best one per thread.
    pub const fn shared(any: u32) -> Shard {
        Shard(OWN as u8 + (any % SHARED) as u8)
    }

    /// Tests see to it themselves that one thread at a time uses it.
    #[cfg(test)]
    pub const fn first_own() -> Shard {
        Shard(0)
    }

    #[inline]
    pub const fn number(self) -> usize {
        self.0 as usize % SHARDS
    }

    /// Whether the calling thread has it to itself.
    #[inline]
    pub const fn is_own(self) -> bool {
        (self.0 as usize) < OWN
    }

    /// As `fetch_add`, on a word of this shard.
    #[inline]
    pub fn add(self, word: &AtomicU64, amount: u64) {
        if self.is_own() {
            word.add_alone(amount);
        } else {
            word.fetch_add(amount, Relaxed);
        }
    }
}

impl From<u32> for Shard {
    fn from(any: u32) -> Shard {
        Shard::shared(any)
    }
}

/// Who owns which shard: tid in the low half, thread row in the high half. All zeros: nobody any.
#[repr(C)]
pub struct Owners([AtomicU64; OWN]);

impl Owners {
    /// A shard for the calling thread, which has this number and row and asks once. `is_alive` says of another thread's
    /// number whether there is such a thread.
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
            // SeqCst: after the last owner's end, which the kernel has told.
            may(seen) && owner.compare_exchange(seen, me, SeqCst, Relaxed).is_ok()
        })?;
        Some(Shard(place as u8))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn nobody() -> Owners {
        // SAFETY: documented: all zeros is a value.
        unsafe { std::mem::zeroed() }
    }

    #[test]
    fn every_thread_has_a_shard_of_its_own_until_there_are_too_many() {
        let owners = nobody();
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
    fn the_shard_of_a_thread_that_is_gone_is_passed_on() {
        let owners = nobody();
        for row in 0..OWN as u32 {
            owners.claim(100 + row, row, |_| true);
        }
        assert_eq!(owners.claim(7, 90, |tid| tid != 105), Shard(5));
        assert_eq!(owners.claim(8, 91, |_| true), Shard::shared(91));
        // The number of a thread that is gone, used again.
        assert_eq!(owners.claim(110, 92, |_| true), Shard(10));
    }

    #[test]
    fn both_ways_of_counting_count() {
        let words = [AtomicU64::new(5), AtomicU64::new(5)];
        Shard(0).add(&words[0], 3);
        Shard::shared(0).add(&words[1], 3);
        Shard(0).add(&words[0], 1u64.wrapping_neg());
        assert_eq!([words[0].load(Relaxed), words[1].load(Relaxed)], [7, 8]);
        assert_eq!(words[0].swap_alone(7, 9), Ok(()));
        assert_eq!(words[0].swap_alone(7, 1), Err(9));
    }
}
