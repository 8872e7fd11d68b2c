//! The table of live allocations: lock-free, in the recording file, keyed by (address space, address).
//!
//! ```text
//! index (private)             records (in the file)
//! hash(space, address) ─────► │ state │ address │ bytes │ … │      64 bytes each, never moved
//!                             │ state │ …                          free records are linked, see `free_list.rs`
//!
//!                 insert                 withdraw               commit
//!         Free ──────────► Writing ───► Live ──────► Withdrawn ──────► Free, generation + 1
//!                                        ▲               │ │   retain
//!                                        └── restore ────┘ └──────► FreedAfterScript, FreedAfterMain: not used again
//! ```
//!
//! *Frees first*: a record is withdrawn before the real free, because the driver may give the address to another thread
//! before the free returns; it is committed when the free succeeded and restored when it failed.
//!
//! Why it is correct:
//! - The state word holds the generation and is changed by compare-and-swap. Of two threads that free one address,
//!   one wins Live → Withdrawn; a stale index entry fails on the generation.
//! - Only the thread that took a Free record writes to it, and no other thread can take the same record (`free_list.rs`).
//! - Only the thread that withdrew a record removes its entry from the index or inserts it again (except for physical
//!   memory, whose key can be removed). So while the entry's word names the record, no other thread changes it, and it is
//!   cleared by a plain store.
//! - A reader in another process accepts a record whose state is Live, with the same generation, before and after it
//!   reads the fields. They did not change in between, since they change only in Writing (and the address in Free, where
//!   it is a link), and a release fence separates every such change of state from the first field written after it:
//!
//!   ```text
//!   writer   state := Free or Writing ── fence(Release) ── fields := …          ── state := Live (Release)
//!   reader                               state? (Acquire) ── fields? ── fence(Acquire) ── state?
//!                                        any new field seen ⇒ the second load of the state sees what preceded it
//!   ```
//! - Records of `guarded.rs` are found through no index of this table, so no other thread than their caller's changes them. Fields of
//!   its plain ones are also written in Free, after a fence that follows the change to Free.
//! - A thread that dies in the middle loses at most the one record it was changing, and the free records it was moving.
//!
//! `loom_models` checks this in every interleaving of small tables, with every ordering weakened, every tag and
//! generation ignored in turn, and with a thread dying before each of its operations (docs/internals/proofs.md).

mod free_list;
mod guarded;
mod record;

pub use guarded::{Guarded, Plain, Room, Slots};
pub use record::*;

use std::sync::atomic::Ordering::*;

use crate::format::{SHARDS, Section, halves, pack};
use crate::lockfree::index::{Index, Rest};
use crate::lockfree::segmented::{Backing, SegmentedArray};
use crate::lockfree::shards::Shard;
use crate::lockfree::sync::{AtomicU64, fence, prefetch};
use crate::system::{Errno, aside, cold_path};
use free_list::FreeList;

impl Record {
    fn is(&self, key: Key) -> Option<State> {
        // Acquire: pairs with the Release that made it Live, so the fields belong to this state.
        let state = State::of(self.state.load(Acquire))?;
        let same = state.status == Status::Live
            && self.address.load(Relaxed) == key.address
            && Attributes::parts(self.attributes.load(Relaxed)).space == key.space as u8;
        same.then_some(state)
    }

    /// Fills in a record that the caller took, and makes it live. Returns its generation.
    #[inline(always)]
    fn publish(&self, key: Key, entry: &Entry) -> u32 {
        let generation = halves(self.state.load(Relaxed)).1;
        let state = |status| State { status, generation }.word();
        self.state.store(state(Status::Writing), Relaxed);
        // Release fence: a reader that sees any field written below also sees the record as Writing.
        fence(Release);
        self.write(key, entry);
        // Release: pairs with the Acquire in `is` and with readers, which read the fields of Live records only.
        self.state.store(state(Status::Live), Release);
        generation
    }

    /// The caller may use the address as a link from now on.
    #[inline(always)]
    fn set_free(&self, generation: u32) {
        let state = State {
            status: Status::Free,
            generation: generation.wrapping_add(1),
        };
        self.state.store(state.word(), Relaxed);
        // Release fence: a reader that sees the link written later also sees the record as Free.
        fence(Release);
    }
}

/// All zeros is an empty table.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Table {
    records: SegmentedArray<Record>,
    index: Index,
    free: [FreeList; SHARDS],
}

/// The table together with its storage and the caller's shard.
///
/// What an allocation and a free call is inlined into them. What is rare takes `self` by value, [`aside`].
#[derive(Clone, Copy)]
pub struct TableIn<'a> {
    pub table: &'a Table,
    pub backing: Backing<'a>,
    /// The number of records handed out so far: readers read up to it.
    pub fresh: &'a AtomicU64,
    /// The shard whose free list is searched first.
    pub shard: Shard,
}

/// A reference to a record in one generation; dangling once that record is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    number: u32,
    generation: u32,
}

impl Link {
    pub const fn to_word(self) -> u64 {
        pack(self.number, self.generation)
    }

    pub const fn from_word(word: u64) -> Link {
        let (number, generation) = halves(word);
        Link { number, generation }
    }

    /// A link to no record.
    pub const NOWHERE: Link = Link {
        number: u32::MAX,
        generation: 0,
    };
}

/// A record whose free is under way. Commit or restore it; until then readers report it as in flight.
#[must_use]
pub struct Withdrawn<'a> {
    record: &'a Record,
    number: u32,
    generation: u32,
}

impl Withdrawn<'_> {
    /// The contents of the record, which stay in it until it is committed. `None` if they are no valid entry, which a writer
    /// never produces.
    pub fn entry(&self) -> Option<Entry> {
        self.record.entry()
    }

    /// The record, for functions out of line.
    #[inline]
    pub fn record(&self) -> &Record {
        self.record
    }

    /// The part of `entry` that sums depend on.
    #[inline]
    pub fn summed(&self) -> Option<Summed> {
        self.record.summed()
    }

    /// The key under which the record was found.
    #[inline]
    pub fn key(&self) -> Option<Key> {
        self.record.key()
    }
}

/// The place of a key.
struct Located<'a> {
    place: crate::lockfree::index::Entry<'a>,
    record: &'a Record,
    state: State,
}

impl<'a> TableIn<'a> {
    #[inline(always)]
    fn record(&self, number: u32) -> Option<&'a Record> {
        // The file's section is that of records. `get` would look its sizes up.
        const SIZES: (usize, usize) = Section::Records.extent_sizes();
        match self.backing {
            Backing::File(..) => self.table.records.get_sized(SIZES, number),
            Backing::Private(..) => aside(self).private_record(number),
        }
    }

    /// The number of one of its records.
    fn number_of(&self, record: &Record) -> Option<u32> {
        self.table.records.number_of(self.backing, record)
    }

    /// Of a table without a file, as tests have.
    #[cold]
    #[inline(never)]
    fn private_record(self, number: u32) -> Option<&'a Record> {
        self.table.records.get(self.backing, number)
    }

    /// Prefetches the cache lines that `insert` will write.
    #[inline(always)]
    pub fn prepare(&self, key: Key) {
        self.table.index.prepare(key.hash());
        let (link, _) = halves(self.free_list(0).local.load(Relaxed));
        if let Some(record) = link.checked_sub(1).and_then(|number| self.record(number)) {
            prefetch(record);
        }
    }

    /// Publishes a live record. The caller must have withdrawn any older record with this key.
    ///
    /// # Errors
    /// Why there is no room: the file or the address space is full.
    #[inline(always)]
    pub fn insert(&self, key: Key, entry: &Entry) -> Result<u32, Errno> {
        let (number, record) = self.take()?;
        let generation = record.publish(key, entry);
        if let Err(error) = self.table.index.insert(key.hash(), number) {
            aside(self).release_out_of_line(number, record, generation);
            return Err(error);
        }
        Ok(number)
    }

    /// The live record of this key, the state it was found in, and its entry in the index.
    #[inline(always)]
    fn locate(&self, key: Key) -> Option<Located<'a>> {
        let mut found = None;
        let (place, rest) = self.table.index.find_first(key.hash(), |number| {
            found = self.record(number).and_then(|record| Some((record, record.is(key)?)));
            found.is_some()
        });
        match (place, found) {
            (Some(place), Some((record, state))) => Some(Located { place, record, state }),
            _ if rest.is_empty() => None,
            _ => aside(self).locate_in_rest(key, rest),
        }
    }

    #[inline(never)]
    fn locate_in_rest(self, key: Key, rest: Rest) -> Option<Located<'a>> {
        let mut found = None;
        let place = self.table.index.find_in_rest(rest, key.hash(), |number| {
            found = self.record(number).and_then(|record| Some((record, record.is(key)?)));
            found.is_some()
        })?;
        let (record, state) = found?;
        Some(Located { place, record, state })
    }

    /// The contents of the record of this key.
    pub fn get(&self, key: Key) -> Option<Entry> {
        let Located { record, state, .. } = self.locate(key)?;
        self.entry_in(record, state)
    }

    /// As [`TableIn::get`], through a link.
    pub fn get_linked(&self, link: Link) -> Option<Entry> {
        let live = State {
            status: Status::Live,
            generation: link.generation,
        };
        self.entry_in(self.linked(link)?, live)
    }

    fn entry_in(&self, record: &Record, before: State) -> Option<Entry> {
        let entry = record.entry()?;
        // The fields belong together if the record is still in the state in which the read began.
        fence(Acquire);
        (State::of(record.state.load(Relaxed)) == Some(before)).then_some(entry)
    }

    /// Returns false only if there is no live record of this key. Takes less time than [`TableIn::get`].
    #[inline(always)]
    pub fn may_contain(&self, key: Key) -> bool {
        self.table.index.may_contain(key.hash())
    }

    /// Withdraws the record of this key, for a free that is about to happen.
    #[inline(always)]
    pub fn withdraw(&self, key: Key) -> Option<Withdrawn<'a>> {
        loop {
            let Located { place, record, state } = self.locate(key)?;
            let gone = State {
                status: Status::Withdrawn,
                ..state
            };
            // Acquire: the fields that are read next were written before it went Live.
            if record
                .state
                .compare_exchange(state.word(), gone.word(), Acquire, Relaxed)
                .is_ok()
            {
                self.forget(key, place);
                return Some(Withdrawn {
                    record,
                    number: place.row,
                    generation: state.generation,
                });
            }
            cold_path();
        }
    }

    #[inline(never)]
    fn withdraw_out_of_line(self, key: Key) -> Option<Withdrawn<'a>> {
        self.withdraw(key)
    }

    /// Removes the index entry of a record that the caller has just withdrawn.
    #[inline(always)]
    fn forget(&self, key: Key, place: crate::lockfree::index::Entry<'a>) {
        if key.space == Space::Physical {
            place.remove();
        } else if !place.clear() {
            aside(self).forget_elsewhere(key, place.row);
        }
    }

    /// The entry that was found is stale: meanwhile the record was freed and used for the same key again, with an entry
    /// elsewhere.
    #[cold]
    #[inline(never)]
    fn forget_elsewhere(self, key: Key, number: u32) {
        if let Some(place) = self.table.index.find(key.hash(), |row| row == number) {
            place.clear();
        }
    }

    /// The free succeeded: the record becomes free.
    #[inline(always)]
    pub fn commit(&self, withdrawn: Withdrawn) {
        self.release(withdrawn.number, withdrawn.record, withdrawn.generation);
    }

    /// The free succeeded, and the record stays: `status` says when it was freed.
    pub fn retain(&self, withdrawn: Withdrawn, status: Status) {
        let state = State {
            status,
            generation: withdrawn.generation,
        };
        // Release: as in `insert`; the fields never changed.
        withdrawn.record.state.store(state.word(), Release);
    }

    /// The free failed: the record becomes live again.
    ///
    /// # Errors
    /// The index has no room; the record is then visible to readers but cannot be freed.
    pub fn restore(&self, withdrawn: Withdrawn) -> Result<(), Errno> {
        let Withdrawn {
            record,
            number,
            generation,
        } = withdrawn;
        let key = record.key();
        let state = State {
            status: Status::Live,
            generation,
        };
        // Release: as in `insert`; the fields never changed.
        record.state.store(state.word(), Release);
        key.map_or(Ok(()), |key| self.table.index.insert(key.hash(), number))
    }

    /// Changes the `extra` word of a live record (reference counts); returns the new value.
    pub fn update_extra(&self, key: Key, change: impl Fn(u64) -> u64) -> Option<u64> {
        self.update_extra_of(self.link(key)?, change)
    }

    /// A link to the live record of this key; it stays valid if the key is removed.
    pub fn link(&self, key: Key) -> Option<Link> {
        let Located { place, state, .. } = self.locate(key)?;
        Some(Link {
            number: place.row,
            generation: state.generation,
        })
    }

    fn linked(&self, link: Link) -> Option<&'a Record> {
        let record = self.record(link.number)?;
        let live = State {
            status: Status::Live,
            generation: link.generation,
        };
        // Acquire: as in `is`.
        (State::of(record.state.load(Acquire)) == Some(live)).then_some(record)
    }

    /// As `update_extra`, through a link.
    pub fn update_extra_of(&self, link: Link, change: impl Fn(u64) -> u64) -> Option<u64> {
        let record = self.linked(link)?;
        record
            .extra
            .fetch_update(AcqRel, Acquire, |extra| Some(change(extra)))
            .ok()
            .map(&change)
    }

    /// Removes the key of a live record of physical memory, since the handle may be reused; links still reach the record.
    pub fn unkey(&self, key: Key) -> bool {
        self.locate(key).is_some_and(|found| found.place.remove())
    }

    /// Adds the key of a live record again.
    pub fn rekey(&self, link: Link) {
        let Some(record) = self.linked(link) else { return };
        let Some(key) = record.key() else { return };
        let _ = self
            .table
            .index
            .intern(key.hash(), link.number, |number| number == link.number);
    }

    /// As `withdraw`, through a link.
    pub fn withdraw_linked(&self, link: Link) -> Option<Withdrawn<'a>> {
        let record = self.linked(link)?;
        let live = State {
            status: Status::Live,
            generation: link.generation,
        };
        let gone = State {
            status: Status::Withdrawn,
            ..live
        };
        // Acquire: as in `withdraw`.
        record
            .state
            .compare_exchange(live.word(), gone.word(), Acquire, Relaxed)
            .ok()?;
        let key = record.key()?;
        if let Some(place) = self.table.index.find(key.hash(), |number| number == link.number) {
            self.forget(key, place);
        }
        Some(Withdrawn {
            record,
            number: link.number,
            generation: link.generation,
        })
    }

    /// The live records with a key that `wanted` accepts, whether the index has the key or not. Scans all records: for rare events.
    pub fn scan(&self, wanted: impl Fn(Key) -> bool) -> impl Iterator<Item = (Key, Link)> {
        let count = self.fresh.load(Acquire).min(u64::from(u32::MAX)) as u32;
        (0..count).filter_map(move |number| {
            // Acquire: as in `is`.
            let state =
                State::of(self.record(number)?.state.load(Acquire)).filter(|state| state.status == Status::Live)?;
            let generation = state.generation;
            let key = self.record(number)?.key().filter(|key| wanted(*key))?;
            Some((key, Link { number, generation }))
        })
    }

    /// Withdraws every live record that `wanted` accepts, one by one. Scans all records: for rare events.
    pub fn withdraw_all(&self, wanted: impl Fn(&Entry) -> bool, mut each: impl FnMut(Withdrawn<'a>)) {
        let count = self.fresh.load(Acquire).min(u64::from(u32::MAX)) as u32;
        for number in 0..count {
            let Some(record) = self.record(number) else { continue };
            let live = State::of(record.state.load(Acquire)).is_some_and(|state| state.status == Status::Live);
            let Some(key) = record
                .key()
                .filter(|_| live && record.entry().is_some_and(|entry| wanted(&entry)))
            else {
                continue;
            };
            // By key, since the record may have been freed and used again: `wanted` then decides on the new contents.
            if let Some(withdrawn) = self.withdraw_out_of_line(key) {
                if withdrawn.entry().is_some_and(|entry| wanted(&entry)) {
                    each(withdrawn);
                } else {
                    let _ = self.restore(withdrawn);
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
