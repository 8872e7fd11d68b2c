//! Free lists: one per shard, with a local part for the shard's owner and shared magazines for all threads.
//!
//! The owner of a shard takes and releases records by unlocked instructions, since no other thread changes the head of its
//! local list. When the local list is full, it becomes a magazine, by one swap; any thread may take a magazine:
//!
//! ```text
//! local      ● ─► ○ ─► ○               the owner's; at most 32 records, then it becomes a magazine
//! magazines  ● ─► ○ ─► ○ ─► ○          shared: to the right within a magazine (lower half of the record's `address`),
//!            ▼                         down to the next magazine (upper half)
//!            ● ─► ○
//! ```
//!
//! In shards that several threads share, every free record is a magazine of one.
//!
//! Only the thread that took a record changes it. The head of the magazines carries a tag that changes with every push and
//! pop, so a stale head equals the current one only after 2^32 of them (ABA). The head of a local list carries one because of
//! signal handlers. A fresh record is handed out once: the count that fresh records come from is only decreased over records that
//! were never handed out.

use std::sync::atomic::Ordering::*;

use super::{Record, TableIn};
use crate::format::{SHARDS, Section, halves, pack};
use crate::lockfree::sync::{Alone, AtomicU64};
use crate::system::{Errno, aside, cold_path};

/// Fresh records are taken in batches of this size, so that neighbours in memory belong to one shard.
const BATCH: u32 = if cfg!(loom) { 4 } else { 16 };
const _: () = assert!(
    Section::Records.extent_sizes().0.is_multiple_of(BATCH as usize),
    "a batch lies in one extent"
);

/// Capacity of a local list and of a magazine.
const MAGAZINE: u32 = if cfg!(loom) { 2 } else { 32 };

/// The free records of one shard.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct FreeList {
    /// Shared magazines: tag in the high half, first record of the first magazine + 1 in the low half.
    pub(super) magazines: AtomicU64,
    /// The local list of the shard's owner: [`Note`] in the high half, first record + 1 in the low half.
    pub(super) local: AtomicU64,
    /// Records never used: the next in the low half, the end in the high half.
    pub(super) batch: AtomicU64,
}

/// A tag, and an upper bound of the number of records.
#[derive(Clone, Copy)]
pub struct Note(u32);

impl Note {
    const COUNT: u32 = 0xff;

    const fn count(self) -> u32 {
        self.0 & Note::COUNT
    }

    /// The next tag, with this count.
    const fn with(self, count: u32) -> u32 {
        (self.0 & !Note::COUNT).wrapping_add(Note::COUNT + 1) | count
    }
}

impl<'a> TableIn<'a> {
    /// Takes a free record: one that this shard freed, one of its batch, one that another shard freed, or the first of a new
    /// batch.
    #[inline(always)]
    pub(super) fn take(&self) -> Result<(u32, &'a Record), Errno> {
        match self.take_local(self.free_list(0)) {
            Some(record) => Ok(record),
            None => aside(self).take_elsewhere(),
        }
    }

    #[inline(never)]
    fn take_elsewhere(self) -> Result<(u32, &'a Record), Errno> {
        let list = self.free_list(0);
        let found = self
            .take_magazine(list)
            .or_else(|| self.take_fresh(list))
            .or_else(|| (1..SHARDS).find_map(|step| self.take_magazine(self.free_list(step))));
        if let Some(record) = found {
            return Ok(record);
        }
        if let Some(error) = self.table.records.trouble(self.backing, self.fresh) {
            return Err(error);
        }
        let first = self.fresh.fetch_add(BATCH.into(), Relaxed);
        let taken = u32::try_from(first)
            .ok()
            .filter(|&first| first < u32::MAX - BATCH)
            .ok_or(Errno(libc::EFBIG))
            .and_then(|first| Ok((first, self.table.records.ensure(self.backing, first)?)));
        match taken {
            // If another thread of this shard stored a batch meanwhile, the rest of that batch stays unused.
            Ok((first, _)) => list.batch.store(pack(first + 1, first + BATCH), Release),
            // Otherwise the count would run far ahead of the records while the disk is full.
            Err(_) => {
                let _ = self
                    .fresh
                    .compare_exchange(first + u64::from(BATCH), first, Relaxed, Relaxed);
            }
        }
        taken
    }

    /// The free list of the shard `step` places after this one.
    pub(super) fn free_list(&self, step: usize) -> &'a FreeList {
        &self.table.free[(self.shard.number() + step) % SHARDS]
    }

    /// Takes a record of the owner's local list, which is empty in a shard that threads share.
    #[inline(always)]
    pub(super) fn take_local(&self, list: &FreeList) -> Option<(u32, &'a Record)> {
        let mut head = list.local.load(Relaxed);
        while let (link @ 1.., note) = halves(head) {
            let number = link - 1;
            let record = self.record(number)?;
            let (next, _) = halves(record.address.load(Relaxed));
            let note = Note(note);
            let left = pack(next, note.with(note.count().saturating_sub(1)));
            match list.local.swap_alone(head, left) {
                Ok(()) => return Some((number, record)),
                Err(other) => {
                    cold_path();
                    head = other;
                }
            }
        }
        None
    }

    /// Takes the first record of a magazine. The others go to this shard: into its local list if it has an owner, otherwise
    /// into its magazines.
    pub(super) fn take_magazine(&self, list: &FreeList) -> Option<(u32, &'a Record)> {
        // Acquire: pairs with the Release in `share`, so the links below were written.
        let mut head = list.magazines.load(Acquire);
        while let (link @ 1.., tag) = halves(head) {
            let number = link - 1;
            let record = self.record(number)?;
            let (rest, next_magazine) = halves(record.address.load(Relaxed));
            match list
                .magazines
                .compare_exchange_weak(head, pack(next_magazine, tag.wrapping_add(1)), AcqRel, Acquire)
            {
                Ok(_) => {
                    self.keep(rest);
                    return Some((number, record));
                }
                Err(other) => head = other,
            }
        }
        None
    }

    /// Adds the records from `link` on, which this thread took, to this shard.
    fn keep(&self, link: u32) {
        if link == 0 {
            return;
        }
        let local = &self.free_list(0).local;
        // Empty, unless a signal handler of this thread has released a record since it was loaded.
        let (first, note) = halves(local.load(Relaxed));
        let stored = self.shard.is_own()
            && first == 0
            && local
                .swap_alone(pack(first, note), pack(link, Note(note).with(MAGAZINE - 1)))
                .is_ok();
        if !stored {
            self.share(link);
        }
    }

    /// Takes a record of this shard's batch.
    #[inline]
    pub(super) fn take_fresh(&self, list: &FreeList) -> Option<(u32, &'a Record)> {
        // Acquire: pairs with the Release in `take_elsewhere`, so the extent is mapped.
        let mut batch = list.batch.load(Acquire);
        while let (next, end) = halves(batch)
            && next < end
        {
            let left = pack(next + 1, end);
            let swapped = if self.shard.is_own() {
                list.batch.swap_alone(batch, left)
            } else {
                let swapped = list.batch.compare_exchange_weak(batch, left, AcqRel, Acquire);
                swapped.map(|_| ())
            };
            match swapped {
                Ok(()) => return Some((next, self.record(next)?)),
                Err(other) => batch = other,
            }
        }
        None
    }

    /// Makes record `number` free, which the caller has withdrawn or could not publish.
    #[inline(always)]
    pub(super) fn release(&self, number: u32, record: &Record, generation: u32) {
        record.set_free(generation);
        if !self.shard.is_own() {
            cold_path();
            record.address.store(0, Relaxed);
            return aside(self).share(number + 1);
        }
        let local = &self.free_list(0).local;
        let head = local.load(Relaxed);
        let (first, note) = halves(head);
        let note = Note(note);
        if note.count() < MAGAZINE {
            record.address.store(first.into(), Relaxed);
            if local
                .swap_alone(head, pack(number + 1, note.with(note.count() + 1)))
                .is_ok()
            {
                return;
            }
        }
        aside(self).release_to_full_list(number, record);
    }

    #[cold]
    #[inline(never)]
    pub(super) fn release_out_of_line(self, number: u32, record: &Record, generation: u32) {
        self.release(number, record, generation);
    }

    /// The local list is a full magazine, or a signal handler of this thread has changed it.
    #[cold]
    #[inline(never)]
    fn release_to_full_list(self, number: u32, record: &Record) {
        let local = &self.free_list(0).local;
        let mut head = local.load(Relaxed);
        loop {
            let (first, note) = halves(head);
            let note = Note(note);
            let full = note.count() >= MAGAZINE;
            let new = if full {
                pack(0, note.with(0))
            } else {
                record.address.store(first.into(), Relaxed);
                pack(number + 1, note.with(note.count() + 1))
            };
            match local.swap_alone(head, new) {
                Ok(()) if full => {
                    self.share(first);
                    head = local.load(Relaxed);
                }
                Ok(()) => return,
                Err(other) => head = other,
            }
        }
    }

    /// Makes the records from `link` on, which this thread took, a magazine of this shard.
    #[inline(never)]
    fn share(self, link: u32) {
        let Some(record) = link.checked_sub(1).and_then(|number| self.record(number)) else {
            return;
        };
        let (rest, _) = halves(record.address.load(Relaxed));
        let magazines = &self.free_list(0).magazines;
        let mut head = magazines.load(Relaxed);
        loop {
            let (next_magazine, tag) = halves(head);
            record.address.store(pack(rest, next_magazine), Relaxed);
            // Release: pairs with the Acquire in `take_magazine`.
            match magazines.compare_exchange_weak(head, pack(link, tag.wrapping_add(1)), Release, Relaxed) {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }
}
