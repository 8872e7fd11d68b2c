//! The table of live allocations: lock-free, in the recording file, keyed by (address space, address).
//!
//! ```text
//! index (private)             records (in the file)
//! hash(space, address) ─────► │ state │ address │ bytes │ … │      64 bytes each, never moved
//!                             │ state │ …                          free ones are chained, see `free_list.rs`
//!
//!                 insert                 withdraw               commit
//!         Free ──────────► Writing ───► Live ──────► Withdrawn ──────► Free, generation + 1
//!                                        ▲               │
//!                                        └── restore ────┘
//! ```
//!
//! *Frees first*: a record is withdrawn before the real free, because the driver may hand the address to another
//! thread before the free returns; it is committed when the free succeeded and restored when it failed.
//!
//! Why it is right:
//! - The state word holds the generation and is changed by compare-and-swap. Of two threads that free one address,
//!   one wins Live → Withdrawn; a stale index entry fails on the generation.
//! - Only whoever has taken a Free record writes it, and nobody else has taken it (`free_list.rs`).
//! - Whoever has withdrawn a record is the only one to remove its entry from the index, or to enter it again (but for
//!   physical memory, whose key can be taken from it). So as long as the entry's word names the record it stays so, and
//!   is cleared by a plain store.
//! - A reader in another process takes a record whose state is Live, with the same generation, before and after it
//!   read the fields: they did not change in between, since they change only in Writing (and the address in Free, where
//!   it is a link), and a release fence stands between every such change of state and the first field written after it:
//!
//!   ```text
//!   writer   state := Free or Writing ── fence(Release) ── fields := …          ── state := Live (Release)
//!   reader                               state? (Acquire) ── fields? ── fence(Acquire) ── state?
//!                                        any new field seen ⇒ the second look at the state sees what preceded it
//!   ```
//! - A thread that dies in the middle loses at most the one record it was changing, and the free ones it had in hand.
//!
//! `loom_models` tries all of this in every interleaving of small tables, with every ordering weakened, every tag and
//! generation ignored in turn, and with a thread dying before each of its operations (docs/proofs.md).

mod free_list;
mod record;

pub use record::*;

use std::sync::atomic::Ordering::*;

use crate::format::{SHARDS, halves, pack};
use crate::lockfree::index::Index;
use crate::lockfree::segmented::{Backing, SegmentedArray};
use crate::lockfree::shards::Shard;
use crate::lockfree::sync::{AtomicU64, fence, prefetch};
use crate::system::Errno;
use free_list::FreeList;

impl Record {
    fn is(&self, key: Key) -> Option<State> {
        // Acquire: pairs with the Release of whoever made it Live, so the fields belong to this state.
        let state = State::of(self.state.load(Acquire))?;
        let same = state.status == Status::Live
            && self.address.load(Relaxed) == key.address
            && Attributes::parts(self.attributes.load(Relaxed)).1 == key.space as u8;
        same.then_some(state)
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

/// The table with what it grows by: the file, and the count that tells readers how far to look.
#[derive(Clone, Copy)]
pub struct TableIn<'a> {
    pub table: &'a Table,
    pub backing: Backing<'a>,
    /// Records handed out so far.
    pub fresh: &'a AtomicU64,
    /// Where free records are sought first.
    pub shard: Shard,
}

/// Names one record at one time of its life: a link to a record that was freed since leads nowhere.
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

    /// A link that leads nowhere.
    pub const NOWHERE: Link = Link {
        number: u32::MAX,
        generation: 0,
    };
}

/// A record on its way out. Must be committed or restored; if neither happens the reader shows it as in flight.
#[must_use]
pub struct Withdrawn {
    number: u32,
    generation: u32,
    key: Key,
    pub entry: Entry,
}

/// A record on its way out without what it says, which lies in the record until then: small enough for registers.
#[must_use]
#[derive(Clone, Copy)]
pub struct Claim {
    number: u32,
    generation: u32,
    key: Key,
}

impl Withdrawn {
    #[inline]
    pub fn into_claim(self) -> Claim {
        Claim {
            number: self.number,
            generation: self.generation,
            key: self.key,
        }
    }
}

/// Where a key was found.
struct Located<'a> {
    place: crate::lockfree::index::Entry<'a>,
    record: &'a Record,
    state: State,
}

impl<'a> TableIn<'a> {
    /// The claim with what the record says. `None`: it no longer says anything (never, as long as the claim is good).
    pub fn redeem(&self, claim: Claim) -> Option<Withdrawn> {
        Some(Withdrawn {
            number: claim.number,
            generation: claim.generation,
            key: claim.key,
            entry: self.record(claim.number)?.read()?,
        })
    }

    /// As `commit`.
    #[inline]
    pub fn commit_claim(&self, claim: Claim) {
        self.give(claim.number, claim.generation);
    }

    #[inline]
    fn record(&self, number: u32) -> Option<&'a Record> {
        self.table.records.get(self.backing, number)
    }

    /// Asks for the cache lines that `insert` will write.
    #[inline]
    pub fn prepare(&self, key: Key) {
        self.table.index.prepare(key.hash());
        let (link, _) = halves(self.free_list(0).own.load(Relaxed));
        if let Some(record) = link.checked_sub(1).and_then(|number| self.record(number)) {
            prefetch(record);
        }
    }

    /// Publishes a live record. Any older one with this key must have been withdrawn before.
    ///
    /// # Errors
    /// Why there is no room: the file or the address space is full.
    pub fn insert(&self, key: Key, entry: &Entry) -> Result<u32, Errno> {
        let (number, record) = self.take()?;
        let generation = halves(record.state.load(Relaxed)).1;
        record.state.store(
            State {
                status: Status::Writing,
                generation,
            }
            .word(),
            Relaxed,
        );
        // Release fence: a reader that sees any field written below also sees the record as Writing.
        fence(Release);
        record.write(key, entry);
        // Release: pairs with the Acquire in `is` and with readers, who look at the fields of Live records only.
        record.state.store(
            State {
                status: Status::Live,
                generation,
            }
            .word(),
            Release,
        );
        if let Err(error) = self.table.index.insert(key.hash(), number) {
            self.give(number, generation);
            return Err(error);
        }
        Ok(number)
    }

    /// The live record of this key, the state it was found in, and its entry in the index.
    #[inline]
    fn locate(&self, key: Key) -> Option<Located<'a>> {
        let mut found = None;
        let place = self.table.index.find(key.hash(), |number| {
            found = self.record(number).and_then(|record| Some((record, record.is(key)?)));
            found.is_some()
        })?;
        let (record, state) = found?;
        Some(Located { place, record, state })
    }

    /// What is recorded for this key.
    pub fn get(&self, key: Key) -> Option<Entry> {
        let Located {
            record, state: before, ..
        } = self.locate(key)?;
        let entry = record.read()?;
        // The fields belong together if the record is still in the state in which we began.
        fence(Acquire);
        (State::of(record.state.load(Relaxed)) == Some(before)).then_some(entry)
    }

    /// Takes the record of this key out of sight, for a free that is about to happen.
    pub fn withdraw(&self, key: Key) -> Option<Withdrawn> {
        let (claim, record) = self.take_out(key)?;
        let entry = record.read()?;
        Some(Withdrawn {
            number: claim.number,
            generation: claim.generation,
            key,
            entry,
        })
    }

    /// As `withdraw`, but what the record says stays there but for its counts.
    #[inline]
    pub fn claim(&self, key: Key) -> Option<(Claim, Counts)> {
        let (claim, record) = self.take_out(key)?;
        Some((claim, record.counts()?))
    }

    #[inline]
    fn take_out(&self, key: Key) -> Option<(Claim, &'a Record)> {
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
                let claim = Claim {
                    number: place.row,
                    generation: state.generation,
                    key,
                };
                return Some((claim, record));
            }
        }
    }

    /// Removes the entry of a record that was withdrawn just now.
    #[inline]
    fn forget(&self, key: Key, place: crate::lockfree::index::Entry<'a>) {
        if key.space == Space::Physical {
            place.remove();
        } else if !place.clear() {
            // Seen long ago: the record was freed meanwhile and served the same key again, entered elsewhere.
            let number = place.row;
            if let Some(place) = self.table.index.find(key.hash(), |row| row == number) {
                place.clear();
            }
        }
    }

    /// The free succeeded: the record may serve another allocation.
    pub fn commit(&self, withdrawn: Withdrawn) -> Entry {
        self.give(withdrawn.number, withdrawn.generation);
        withdrawn.entry
    }

    /// The free failed: the allocation is still there.
    ///
    /// # Errors
    /// When the index has no room any more; the record then stays visible to readers but cannot be freed.
    pub fn restore(&self, withdrawn: Withdrawn) -> Result<(), Errno> {
        let Some(record) = self.record(withdrawn.number) else {
            return Ok(());
        };
        let state = State {
            status: Status::Live,
            generation: withdrawn.generation,
        };
        // Release: as in `insert`; the fields never changed.
        record.state.store(state.word(), Release);
        self.table.index.insert(withdrawn.key.hash(), withdrawn.number)
    }

    /// Changes the `extra` word of a live record (reference counts); returns the new one.
    pub fn update_extra(&self, key: Key, change: impl Fn(u64) -> u64) -> Option<u64> {
        self.update_extra_of(self.link(key)?, change)
    }

    /// A reference to the live record of this key that outlasts the key.
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

    /// Makes a live record of physical memory unreachable by its key, which may now name something else; links still
    /// reach it.
    pub fn unkey(&self, key: Key) -> bool {
        self.locate(key).is_some_and(|found| found.place.remove())
    }

    /// Makes a live record reachable by its key again.
    pub fn rekey(&self, link: Link) {
        let Some(record) = self.linked(link) else { return };
        let Some(entry) = record.read() else { return };
        let key = Key {
            space: entry.attributes.space,
            address: record.address.load(Relaxed),
        };
        let _ = self
            .table
            .index
            .intern(key.hash(), link.number, |number| number == link.number);
    }

    /// As `withdraw`, through a link.
    pub fn withdraw_linked(&self, link: Link) -> Option<Withdrawn> {
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
        let entry = record.read()?;
        let key = Key {
            space: entry.attributes.space,
            address: record.address.load(Relaxed),
        };
        if let Some(place) = self.table.index.find(key.hash(), |number| number == link.number) {
            self.forget(key, place);
        }
        Some(Withdrawn {
            number: link.number,
            generation: link.generation,
            key,
            entry,
        })
    }

    /// Every live record that `wanted` accepts, withdrawn one by one. Looks at all records: for rare events.
    pub fn withdraw_all(&self, wanted: impl Fn(&Entry) -> bool, mut each: impl FnMut(Withdrawn)) {
        let count = self.fresh.load(Acquire).min(u64::from(u32::MAX)) as u32;
        for number in 0..count {
            let Some(record) = self.record(number) else { continue };
            let Some(State {
                status: Status::Live, ..
            }) = State::of(record.state.load(Acquire))
            else {
                continue;
            };
            let Some(entry) = record.read() else { continue };
            if wanted(&entry) {
                let key = Key {
                    space: entry.attributes.space,
                    address: record.address.load(Relaxed),
                };
                // By key, so that a record which changed hands meanwhile is judged anew.
                if let Some(withdrawn) = self.withdraw(key) {
                    if wanted(&withdrawn.entry) {
                        each(withdrawn);
                    } else {
                        let _ = self.restore(withdrawn);
                    }
                }
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
