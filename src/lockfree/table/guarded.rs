//! Records that a lock of their caller guards: PyTorch's allocator reports each tensor under the lock of the tensor's device.
//!
//! They are records as all others, in the same section, so readers know no difference. Only the way to them is another one: an
//! index and a list of free records that one thread at a time uses, by plain loads and stores.
//!
//! ```text
//! index     │ mask, count, first free record │ word │ word │ word │ …      open addressing; at most half of the words are in use
//! word      ┌─ tag: a hash of the address ─┬─ record number + 1 ─┐         0: free
//! ```
//!
//! The first place of a word follows from its tag, so a word is moved without a look at its record: where one is removed, those
//! behind it close the gap, and there are no tombstones. Free records are linked as in `free_list.rs`. An index that became too small is
//! copied and stays mapped. Records that became free here are used again for tensors of this device alone.
//!
//! If the caller's lock did not hold what it promises, records could get lost. Every place and every number that is read is valid even
//! so: a mask is stored with its words, and a search ends after as many steps as there are words.

use std::sync::atomic::Ordering::*;

use super::{Entry, Key, Record, State, Status, TableIn, Withdrawn};
use crate::format::{UNSAMPLED, halves, pack};
use crate::lockfree::sync::{AtomicPtr, AtomicU64, elements};
use crate::system::{Errno, cold_path};

/// Words of the first index.
const FIRST: u64 = 1024;
/// Free records that are taken from the table together.
const BATCH: usize = 16;

/// Null: no index yet.
#[repr(transparent)]
#[cfg_attr(loom, derive(Default))]
pub struct Guarded(AtomicPtr<AtomicU64>);

/// What is in front of the words, in a cache line.
#[repr(C, align(64))]
struct Head {
    /// One less than the number of places.
    mask: AtomicU64,
    /// Words in use.
    count: AtomicU64,
    /// The first free record + 1; 0: none.
    free: AtomicU64,
}

const HEAD: usize = size_of::<Head>() / size_of::<AtomicU64>();

/// An index.
#[derive(Clone, Copy)]
struct Words<'a> {
    head: &'a Head,
    mask: u64,
}

impl<'a> Words<'a> {
    /// The word at a place, of which only the bits of the mask count.
    #[inline(always)]
    fn at(&self, place: u64) -> &'a AtomicU64 {
        let first = std::ptr::from_ref(self.head).cast::<AtomicU64>();
        // SAFETY: behind its head an index has a word for each value of the mask, and is never unmapped.
        unsafe { &*first.add(HEAD + (place & self.mask) as usize) }
    }

    /// Where a new word of this tag goes. `None`: there is one of the same tag.
    #[inline(always)]
    fn place(&self, tag: u64) -> Option<&'a AtomicU64> {
        for place in tag..tag + self.mask + 1 {
            let word = self.at(place);
            match word.load(Relaxed) {
                0 => return Some(word),
                other if other >> 32 == tag => break,
                _ => {}
            }
        }
        cold_path();
        None
    }

    /// Removes the word at a place.
    #[inline(always)]
    fn remove(&self, mut place: u64) {
        for next in place + 1..place + self.mask + 1 {
            let word = self.at(next).load(Relaxed);
            if word == 0 {
                break;
            }
            // It may not move to a place before its first one.
            let distance = |from: u64| next.wrapping_sub(from) & self.mask;
            if distance(word >> 32) >= distance(place) {
                self.at(place).store(word, Relaxed);
                place = next;
            }
        }
        self.at(place).store(0, Relaxed);
    }

    #[inline(always)]
    fn has_room(&self) -> bool {
        2 * self.head.count.load(Relaxed) < self.mask
    }
}

/// 32 bits of a hash.
#[inline(always)]
const fn tag(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// A record, and the place of its word.
struct Found<'a> {
    words: Words<'a>,
    place: u64,
    number: u32,
    record: &'a Record,
}

impl Guarded {
    #[inline(always)]
    fn words(&self) -> Option<Words<'_>> {
        // Acquire: pairs with the Release in `enlarge`, where no lock orders them.
        // SAFETY: null, or an index that is never unmapped.
        let head = unsafe { self.0.load(Acquire).cast::<Head>().as_ref() }?;
        let mask = head.mask.load(Relaxed);
        Some(Words { head, mask })
    }

    #[inline(always)]
    fn find<'a>(&'a self, table: &TableIn<'a>, key: Key) -> Option<Found<'a>> {
        let words = self.words()?;
        let tag = tag(key.address);
        for place in tag..tag + words.mask + 1 {
            let word = words.at(place).load(Relaxed);
            if word == 0 {
                break;
            }
            let number = (word as u32).wrapping_sub(1);
            if word >> 32 == tag
                && let Some(record) = table.record(number)
                && record.address.load(Relaxed) == key.address
            {
                return Some(Found {
                    words,
                    place,
                    number,
                    record,
                });
            }
        }
        cold_path();
        None
    }

    /// Publishes a live record. False: nothing has changed, since [`Guarded::make_room`] must be called first, or there may be a record
    /// of this key.
    #[inline(always)]
    pub fn insert(&self, table: &TableIn, key: Key, entry: &Entry) -> bool {
        let Some(words) = self.words() else { return false };
        let Head { count, free, .. } = words.head;
        let (link, tag) = (free.load(Relaxed) as u32, tag(key.address));
        if link == 0 || !words.has_room() {
            cold_path();
            return false;
        }
        let (Some(word), Some(record)) = (words.place(tag), table.record(link - 1)) else {
            cold_path();
            return false;
        };
        free.store(halves(record.address.load(Relaxed)).0.into(), Relaxed);
        record.publish(key, entry);
        word.store(pack(link, tag as u32), Relaxed);
        count.store(count.load(Relaxed) + 1, Relaxed);
        true
    }

    /// Enlarges the index if it is too small, and takes free records of the table if there are none here.
    ///
    /// # Errors
    /// Why there is no room.
    #[cold]
    #[inline(never)]
    pub fn make_room(&self, table: &TableIn) -> Result<(), Errno> {
        let free = match self.words() {
            Some(words) if words.has_room() => &words.head.free,
            old => &self.enlarge(old)?.head.free,
        };
        if free.load(Relaxed) != 0 {
            return Ok(());
        }
        for _ in 0..BATCH {
            let (number, record) = match table.take() {
                Err(error) if free.load(Relaxed) == 0 => return Err(error),
                Err(_) => break,
                Ok(taken) => taken,
            };
            record.address.store(free.load(Relaxed), Relaxed);
            free.store(u64::from(number) + 1, Relaxed);
        }
        Ok(())
    }

    fn enlarge(&self, old: Option<Words>) -> Result<Words<'_>, Errno> {
        let before = self.0.load(Relaxed);
        let places = old.map_or(FIRST, |old| 2 * (old.mask + 1));
        let memory = elements::<AtomicU64>(HEAD + places as usize)?;
        // SAFETY: a head and a word for each place, mapped just now at a page's begin; zeros are valid.
        let head = unsafe { &*memory.cast::<Head>() };
        let new = Words { head, mask: places - 1 };
        head.mask.store(new.mask, Relaxed);
        if let Some(old) = old {
            head.free.store(old.head.free.load(Relaxed), Relaxed);
            for place in 0..old.mask + 1 {
                let word = old.at(place).load(Relaxed);
                let mut to = (word >> 32..).map(|place| new.at(place));
                if word != 0
                    && let Some(free) = to.find(|free| free.load(Relaxed) == 0)
                {
                    free.store(word, Relaxed);
                    head.count.store(head.count.load(Relaxed) + 1, Relaxed);
                }
            }
        }
        // Release: pairs with the Acquire in `words`.
        let published = self.0.compare_exchange(before, memory, Release, Relaxed);
        published.map(|_| new).map_err(|_| Errno(libc::EBUSY))
    }

    /// Frees the record of a block without a stack. `count` gets its bytes, before the record can be used again. False: there is no such
    /// record, or it has a stack.
    #[inline(always)]
    pub fn free_unsampled(&self, table: &TableIn, key: Key, count: impl FnOnce(u64)) -> bool {
        let Some(found) = self.find(table, key) else {
            return false;
        };
        if halves(found.record.place.load(Relaxed)).0 != UNSAMPLED {
            cold_path();
            return false;
        }
        let free = &found.words.head.free;
        let Withdrawn {
            record,
            number,
            generation,
        } = found.withdraw();
        count(record.amount.load(Relaxed));
        record.set_free(generation);
        record.address.store(free.load(Relaxed), Relaxed);
        free.store(u64::from(number) + 1, Relaxed);
        true
    }

    /// As [`TableIn::withdraw`]. A record that is committed becomes one of the table's free ones.
    #[inline(never)]
    pub fn withdraw<'a>(&'a self, table: &TableIn<'a>, key: Key) -> Option<Withdrawn<'a>> {
        self.find(table, key).map(Found::withdraw)
    }
}

impl<'a> Found<'a> {
    #[inline(always)]
    fn withdraw(self) -> Withdrawn<'a> {
        let Found {
            words, record, number, ..
        } = self;
        let generation = halves(record.state.load(Relaxed)).1;
        let state = State {
            status: Status::Withdrawn,
            generation,
        };
        record.state.store(state.word(), Relaxed);
        words.remove(self.place);
        let count = &words.head.count;
        count.store(count.load(Relaxed).saturating_sub(1), Relaxed);
        Withdrawn {
            record,
            number,
            generation,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
