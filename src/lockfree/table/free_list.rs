//! Records that nobody has, and how threads come by them.
//!
//! A thread with a shard of its own gives and takes by unlocked instructions, since nobody else changes the
//! head of its chain. What it has too many of, it passes on as a bundle, by one swap, and from there anybody may take:
//!
//! ```text
//! own      ● ─► ○ ─► ○                 one thread's; at most 32, then all of them become a bundle
//! bundles  ● ─► ○ ─► ○ ─► ○            anybody's: to the right within a bundle (lower half of the record's `address`),
//!          ▼                           down to the next bundle (upper half)
//!          ● ─► ○
//! ```
//!
//! In shards that threads share every free record is a bundle of one.
//!
//! Whoever has taken a record is the only one to change it. The heads of bundles carry a tag that changes with every push
//! and pop, so a head seen long ago cannot be mistaken for today's (ABA); that of an owner's chain carries one because of
//! signal handlers. Fresh records are handed out once each: the count they come from never goes back over one that was
//! used.

use std::sync::atomic::Ordering::*;

use super::{Record, State, Status, TableIn};
use crate::format::{SHARDS, Section, extent_sizes, halves, pack};
use crate::lockfree::sync::{Alone, AtomicU64, fence};
use crate::system::Errno;

/// Fresh records are taken so many at a time, so that neighbours in memory belong to one shard.
const BATCH: u32 = if cfg!(loom) { 4 } else { 16 };
const _: () = assert!(
    extent_sizes(Section::Records).0.is_multiple_of(BATCH as usize),
    "a batch lies in one extent"
);

/// An owner keeps so many free records for itself.
const BUNDLE: u32 = if cfg!(loom) { 2 } else { 32 };

/// Where a shard (a thread, or a few) finds records that nobody has.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct FreeList {
    /// Bundles of free records, for everybody: tag in the high half, first record of the first one + 1 in the low half.
    pub(super) bundles: AtomicU64,
    /// Free records of the shard's owner: [`Note`] in the high half, first record + 1 in the low half.
    pub(super) own: AtomicU64,
    /// Records never used: the next in the low half, the end in the high half.
    pub(super) batch: AtomicU64,
}

/// A tag and a number of records, never less than there are.
#[derive(Clone, Copy)]
pub struct Note(u32);

impl Note {
    const COUNT: u32 = 0xff;

    const fn count(self) -> u32 {
        self.0 & Note::COUNT
    }

    /// With the next tag.
    const fn with(self, count: u32) -> u32 {
        (self.0 & !Note::COUNT).wrapping_add(Note::COUNT + 1) | count
    }
}

impl<'a> TableIn<'a> {
    /// A record nobody else has: one that this shard freed, one of its fresh ones, one that another shard freed, or the
    /// first of a new batch.
    pub(super) fn take(&self) -> Result<(u32, &'a Record), Errno> {
        let list = self.free_list(0);
        let found = self
            .take_own(list)
            .or_else(|| self.take_bundle(list))
            .or_else(|| self.take_fresh(list))
            .or_else(|| (1..SHARDS).find_map(|step| self.take_bundle(self.free_list(step))));
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
            // What is left of an older batch, which another thread of this shard put there meanwhile, stays unused.
            Ok((first, _)) => list.batch.store(pack(first + 1, first + BATCH), Release),
            // Without this a full disk would let the count run far beyond the records there are.
            Err(_) => {
                let _ = self
                    .fresh
                    .compare_exchange(first + u64::from(BATCH), first, Relaxed, Relaxed);
            }
        }
        taken
    }

    /// What the shard `step` places after this one has.
    pub(super) fn free_list(&self, step: usize) -> &'a FreeList {
        &self.table.free[(self.shard.number() + step) % SHARDS]
    }

    /// One that the shard's owner keeps; none in a shard that threads share.
    #[inline]
    pub(super) fn take_own(&self, list: &FreeList) -> Option<(u32, &'a Record)> {
        let mut head = list.own.load(Relaxed);
        while let (link @ 1.., note) = halves(head) {
            let number = link - 1;
            let record = self.record(number)?;
            let (next, _) = halves(record.address.load(Relaxed));
            let note = Note(note);
            let left = pack(next, note.with(note.count().saturating_sub(1)));
            match list.own.swap_alone(head, left) {
                Ok(()) => return Some((number, record)),
                Err(other) => head = other,
            }
        }
        None
    }

    /// The first of a bundle. The others go to this shard: to its owner if it has one, else to everybody.
    pub(super) fn take_bundle(&self, list: &FreeList) -> Option<(u32, &'a Record)> {
        // Acquire: pairs with the Release in `pass_on`, so the links below were written.
        let mut head = list.bundles.load(Acquire);
        while let (link @ 1.., tag) = halves(head) {
            let number = link - 1;
            let record = self.record(number)?;
            let (rest, next_bundle) = halves(record.address.load(Relaxed));
            match list
                .bundles
                .compare_exchange_weak(head, pack(next_bundle, tag.wrapping_add(1)), AcqRel, Acquire)
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

    /// Keeps the records from `link` on, which nobody else has.
    fn keep(&self, link: u32) {
        if link == 0 {
            return;
        }
        let own = &self.free_list(0).own;
        // Empty, unless a signal handler of this thread has freed something since it was looked at.
        let (first, note) = halves(own.load(Relaxed));
        let kept = self.shard.is_own()
            && first == 0
            && own
                .swap_alone(pack(first, note), pack(link, Note(note).with(BUNDLE - 1)))
                .is_ok();
        if !kept {
            self.pass_on(link);
        }
    }

    #[inline]
    pub(super) fn take_fresh(&self, list: &FreeList) -> Option<(u32, &'a Record)> {
        // Acquire: pairs with the Release in `take`: the extent was mapped before.
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

    pub(super) fn give(&self, number: u32, generation: u32) {
        let Some(record) = self.record(number) else { return };
        let state = State {
            status: Status::Free,
            generation: generation.wrapping_add(1),
        };
        record.state.store(state.word(), Relaxed);
        // Release fence: a reader that sees the links written below also sees the record as Free.
        fence(Release);
        if !self.shard.is_own() {
            record.address.store(0, Relaxed);
            return self.pass_on(number + 1);
        }
        let own = &self.free_list(0).own;
        let mut head = own.load(Relaxed);
        loop {
            let (first, note) = halves(head);
            let note = Note(note);
            let enough = note.count() >= BUNDLE;
            let new = if enough {
                pack(0, note.with(0))
            } else {
                record.address.store(first.into(), Relaxed);
                pack(number + 1, note.with(note.count() + 1))
            };
            match own.swap_alone(head, new) {
                Ok(()) if enough => {
                    self.pass_on(first);
                    head = own.load(Relaxed);
                }
                Ok(()) => return,
                Err(other) => head = other,
            }
        }
    }

    /// Gives the records from `link` on, which nobody else has, to everybody as a bundle.
    fn pass_on(&self, link: u32) {
        let Some(record) = link.checked_sub(1).and_then(|number| self.record(number)) else {
            return;
        };
        let (rest, _) = halves(record.address.load(Relaxed));
        let bundles = &self.free_list(0).bundles;
        let mut head = bundles.load(Relaxed);
        loop {
            let (next_bundle, tag) = halves(head);
            record.address.store(pack(rest, next_bundle), Relaxed);
            // Release: pairs with the Acquire in `take_bundle`.
            match bundles.compare_exchange_weak(head, pack(link, tag.wrapping_add(1)), Release, Relaxed) {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }
}
