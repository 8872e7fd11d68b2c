//! What no record of a segment has: frees at the kernel driver that have begun and have not returned, duplicates, and what was lost.
//!
//! Frees in flight are in fixed numbers of slots. If there are more of them at a time, the others are not known here.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Segments that the recording lacks: those before it began, for example.
pub static LOST: AtomicU64 = AtomicU64::new(0);
/// Sizes in a row that cannot be.
pub static IMPLAUSIBLE: AtomicU32 = AtomicU32::new(0);
/// How many duplicates take no bytes because their original does, by a hash of the original: the free of memory without
/// duplicates looks at no other record. Originals that share a number, and duplicates that were freed with their parent, cost a
/// search that finds nothing.
pub static DUPLICATES: [AtomicU32; 1024] = [const { AtomicU32::new(0) }; 1024];

/// Handles whose free is in flight; 0: an empty slot.
static HANDLES: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];
/// When frees of parents began; 0: an empty slot.
static PARENTS: [AtomicU64; 32] = [const { AtomicU64::new(0) }; 32];

/// A free, until [`InFlight::end`].
pub struct InFlight {
    handle: Option<&'static AtomicU64>,
    parent: Option<&'static AtomicU64>,
}

impl InFlight {
    /// The free of a handle, from before its record is withdrawn until it is removed or restored. `parent_at`: it is a parent, and
    /// this is the time, which was read before.
    pub fn begin(handle: u64, parent_at: Option<u64>) -> InFlight {
        InFlight {
            handle: take(&HANDLES, handle),
            parent: parent_at.and_then(|time_ns| take(&PARENTS, time_ns.max(1))),
        }
    }

    /// The handle's record is removed or restored.
    pub fn end_handle(&mut self) {
        if let Some(slot) = self.handle.take() {
            // Release: pairs with the Acquire in `is_being_freed`. A thread that does not find this finds a record that was restored.
            slot.store(0, Release);
        }
    }

    /// What was below the parent is removed, or its free has failed.
    pub fn end(mut self) {
        self.end_handle();
        if let Some(slot) = self.parent {
            slot.store(0, SeqCst);
        }
    }
}

fn take(slots: &'static [AtomicU64], word: u64) -> Option<&'static AtomicU64> {
    // SeqCst: includes Release, which pairs with the Acquire in `is_being_freed`: a thread that finds no record finds this. It also
    // stands before the parent's next look at the clock for `time_of_change`.
    let is_taken = |slot: &&AtomicU64| slot.compare_exchange(0, word, SeqCst, Relaxed).is_ok();
    slots.iter().find(is_taken)
}

pub fn is_being_freed(handle: u64) -> bool {
    HANDLES.iter().any(|slot| slot.load(Acquire) == handle)
}

/// The time for a record that is changed now. `now` was read before. While parents are being freed it is the time at which the first
/// of these frees began, since a free removes only records that are older than it, and this one is.
pub fn time_of_change(now: u64) -> u64 {
    // SeqCst: either this finds the free, or the free reads the clock after `now` was read.
    let begun = PARENTS.iter().map(|slot| slot.load(SeqCst)).filter(|&begun| begun != 0);
    begun.fold(now, u64::min)
}

/// In a forked child: what was lost, duplicated and being freed is the parent's.
pub fn forked() {
    LOST.store(0, Relaxed);
    DUPLICATES.iter().for_each(|count| count.store(0, Relaxed));
    HANDLES.iter().chain(&PARENTS).for_each(|slot| slot.store(0, Relaxed));
    IMPLAUSIBLE.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_during_the_free_of_a_parent_is_older_than_the_free() {
        let free = InFlight::begin(7, Some(100));
        assert!(is_being_freed(7));
        assert_eq!((time_of_change(90), time_of_change(150)), (90, 100));
        let nested = InFlight::begin(8, Some(120));
        assert_eq!(time_of_change(150), 100);
        free.end();
        assert_eq!(
            (time_of_change(150), is_being_freed(7), is_being_freed(8)),
            (120, false, true)
        );
        nested.end();
        assert_eq!((time_of_change(150), is_being_freed(8)), (150, false));
    }
}
