//! Records that a lock of their caller guards: PyTorch's allocator reports each tensor under the lock of the tensor's device.
//!
//! They are records as all others, in the same section, so readers know no difference. Only the way to them is another one: an
//! index and a list of free records that one thread at a time uses, by plain loads and stores.
//!
//! ```text
//! index     … │ free record │ free record │ head │ slot │ slot │ slot │ … │ end
//! slot      address, 0: free │ the address of the record, + 1 if it is a plain one
//! ```
//!
//! Open addressing; at most half of the slots are in use. Slots behind the last first place take what does not fit in front of them, so a
//! search never starts again at the first slot: it ends at a free slot, or at the end, whose address no block has. Where a slot becomes
//! free, those behind it close the gap, and there are no tombstones. An index that became too small is copied and stays mapped.
//!
//! A *plain* record is one without a stack, of which all but address, bytes, time and thread is the same as in all others. It is prepared
//! once and used again for tensors of this device alone, so an event stores only what differs. The others come from the table and return
//! to it.
//!
//! If the caller's lock did not hold what it promises, records could get lost. Every address that is read is valid even so: a slot and a
//! place of the list hold nothing but addresses of records, a mask is stored with its slots, and the end is never overwritten.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::*};

use super::{Attributes, Entry, Key, Record, State, Status, TableIn, Withdrawn};
use crate::format::{UNSAMPLED, halves, pack};
use crate::lockfree::peak::LARGEST;
use crate::lockfree::sync::{AtomicU64, elements, fence};
use crate::system::{Errno, cold_path};

/// First places of the first index.
const FIRST: usize = 1024;
/// Slots behind the last first place.
const BEYOND: usize = 64;
/// Free records that are taken from the table together.
const BATCH: u64 = 16;
/// The address in the slot that is the end.
const END: u64 = u64::MAX;

/// Null: no index yet.
#[repr(transparent)]
#[cfg_attr(loom, derive(Default))]
pub struct Guarded(AtomicPtr<Head>);

/// What is in front of the slots, in a cache line.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
struct Head {
    /// The place of the list behind its last one: always null.
    no_record: AtomicPtr<Record>,
    /// The number of free records, negative: that of the one that is used next is so many places in front of the head.
    free: AtomicU64,
    /// Of the bytes between the first slot and the first place of an address.
    mask: AtomicU64,
    /// The most records there may be, as negative as `free`: half of the first places.
    most: AtomicU64,
    /// Records that are free here or in a slot.
    owned: AtomicU64,
    /// The attributes of plain records.
    attributes: AtomicU64,
    /// For the caller.
    countdown: AtomicU64,
    /// For the caller.
    started_ns: AtomicU64,
}

#[repr(C)]
#[cfg_attr(loom, derive(Default))]
struct Slot {
    address: AtomicU64,
    record: AtomicPtr<Record>,
}

/// The slots that the head takes the place of.
const HEAD: usize = size_of::<Head>().div_ceil(size_of::<Slot>());

/// An index.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    head: *const Head,
    of: PhantomData<&'a Head>,
}

/// 32 bits of a hash.
#[inline(always)]
const fn hash(address: u64) -> u64 {
    address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

impl<'a> Slots<'a> {
    #[inline(always)]
    fn head(self) -> &'a Head {
        // SAFETY: of an index, which is never unmapped.
        unsafe { &*self.head }
    }

    /// The first place of an address.
    #[inline(always)]
    fn first(self, address: u64) -> &'a Slot {
        let offset = hash(address) & self.head().mask.load(Relaxed);
        // SAFETY: behind its head an index has a slot for each value of the mask.
        unsafe { &*self.head.add(1).byte_add(offset as usize).cast() }
    }

    /// The slot behind one that is not the end.
    #[inline(always)]
    fn next(self, slot: &'a Slot) -> &'a Slot {
        let offset = ptr::from_ref(slot).addr() - self.head.addr() + size_of::<Slot>();
        // SAFETY: there is a slot behind each but the end.
        unsafe { &*self.head.byte_add(offset).cast() }
    }

    /// The place of a free record; the number is one of `Head::free`.
    #[inline(always)]
    fn free_at(self, number: u64) -> &'a AtomicPtr<Record> {
        // SAFETY: in front of the head are as many places as the index has records, and the first word of the head is one, too.
        unsafe {
            &*self
                .head
                .cast::<AtomicPtr<Record>>()
                .offset(number.cast_signed() as isize)
        }
    }

    /// The slot of this address. That of 0 and of `END` has no record.
    #[inline(always)]
    fn find(self, address: u64) -> Option<&'a Slot> {
        let mut slot = self.first(address);
        loop {
            match slot.address.load(Relaxed) {
                seen if seen == address => return Some(slot),
                0 | END => break,
                _ => slot = self.next(slot),
            }
        }
        cold_path();
        None
    }

    /// Where a new block of this address goes. `None`: there is one, or no free slot.
    #[inline(always)]
    fn place(self, address: u64) -> Option<&'a Slot> {
        let mut slot = self.first(address);
        loop {
            match slot.address.load(Relaxed) {
                0 => return Some(slot),
                seen if seen == address || seen == END => break,
                _ => slot = self.next(slot),
            }
        }
        cold_path();
        None
    }

    /// Frees a slot.
    #[inline(always)]
    fn remove(self, slot: &'a Slot) {
        let (mut free, mut next) = (slot, self.next(slot));
        loop {
            let address = next.address.load(Relaxed);
            if address == 0 {
                break;
            }
            if address == END {
                cold_path();
                break;
            }
            // It may not move in front of its first place.
            if ptr::from_ref(self.first(address)) <= ptr::from_ref(free) {
                free.record.store(next.record.load(Relaxed), Relaxed);
                free.address.store(address, Relaxed);
                free = next;
            }
            next = self.next(next);
        }
        free.address.store(0, Relaxed);
        free.record.store(ptr::null_mut(), Relaxed);
    }

    /// Room for a plain record of this address. `None`: [`Guarded::make_room`] must be called first, or there is a record of it.
    #[inline(always)]
    pub fn room(self, address: u64) -> Option<Room<'a>> {
        let free = self.head().free.load(Relaxed);
        // SAFETY: null, or a record in an extent that is never unmapped.
        let record = unsafe { self.free_at(free).load(Relaxed).as_ref() };
        let (Some(record), 1..) = (record, address.cast_signed()) else {
            cold_path();
            return None;
        };
        let slot = self.place(address)?;
        Some(Room {
            slots: self,
            slot,
            record,
            free,
        })
    }

    /// The plain record of this address.
    #[inline(always)]
    pub fn plain(self, address: u64) -> Option<Plain<'a>> {
        let slot = self.find(address)?;
        let record = slot.record.load(Relaxed);
        if record.addr() & 1 == 0 {
            cold_path();
            return None;
        }
        // SAFETY: the address of a plain record, in an extent that is never unmapped, + 1.
        let record = unsafe { &*record.wrapping_byte_sub(1) };
        Some(Plain {
            slots: self,
            slot,
            record,
        })
    }

    /// Counts down, and says whether 0 was passed.
    #[inline(always)]
    pub fn counts_down(self) -> bool {
        let countdown = &self.head().countdown;
        let left = countdown.load(Relaxed).wrapping_sub(1);
        countdown.store(left, Relaxed);
        left.cast_signed() < 0
    }

    /// As [`Slots::counts_down`], for an event that may not have called it. Behind its end it begins again at `from`.
    pub fn has_counted_down(self, from: u64) -> bool {
        let countdown = &self.head().countdown;
        let (has_ended, left) = match countdown.load(Relaxed) {
            left if left.cast_signed() <= 0 => (true, from),
            left => (false, left - 1),
        };
        countdown.store(left, Relaxed);
        has_ended
    }

    /// As [`Guarded::begin`] was told.
    #[inline(always)]
    pub fn started_ns(self) -> u64 {
        self.head().started_ns.load(Relaxed)
    }

    fn has_room_for(self, more: u64) -> bool {
        let head = self.head();
        head.owned.load(Relaxed) + more <= head.most.load(Relaxed).wrapping_neg()
    }
}

/// A free plain record and a slot for it: what [`Room::publish`] changes.
pub struct Room<'a> {
    slots: Slots<'a>,
    slot: &'a Slot,
    record: &'a Record,
    free: u64,
}

impl Room<'_> {
    /// Publishes a live record of the address that there was asked room for. `place`: [`UNSAMPLED`] and the thread.
    #[inline(always)]
    pub fn publish(self, address: u64, bytes: u64, time_ns: u64, place: u64) {
        let record = self.record;
        self.slots.head().free.store(self.free.wrapping_add(1), Relaxed);
        record.publish_plain(address, bytes, time_ns, place);
        self.slot
            .record
            .store(ptr::from_ref(record).cast_mut().wrapping_byte_add(1), Relaxed);
        self.slot.address.store(address, Relaxed);
    }
}

/// A plain record that is not free: what [`Plain::free`] changes.
pub struct Plain<'a> {
    slots: Slots<'a>,
    slot: &'a Slot,
    record: &'a Record,
}

impl Plain<'_> {
    #[inline(always)]
    pub fn bytes(&self) -> u64 {
        self.record.amount.load(Relaxed)
    }

    #[inline(always)]
    pub fn time_ns(&self) -> u64 {
        self.record.time_ns.load(Relaxed)
    }

    /// From now on it is no live record, but one on its way to free.
    #[inline(always)]
    pub fn begin_free(&self) {
        const WITHDRAWN: u64 = pack(Status::Withdrawn as u32 - Status::Live as u32, 0);
        let state = &self.record.state;
        state.store(state.load(Relaxed).wrapping_add(WITHDRAWN), Relaxed);
    }

    /// Frees the record, after [`Plain::begin_free`].
    #[inline(always)]
    pub fn free(self) {
        self.slots.remove(self.slot);
        self.record.free_plain();
        let head = self.slots.head();
        let free = head.free.load(Relaxed);
        // Always, if the caller's lock holds what it promises.
        if free != head.most.load(Relaxed) {
            let free = free.wrapping_sub(1);
            self.slots
                .free_at(free)
                .store(ptr::from_ref(self.record).cast_mut(), Relaxed);
            head.free.store(free, Relaxed);
        }
    }
}

impl Record {
    /// Everything that plain records have in common.
    fn prepare(&self, attributes: u64) {
        // Release fence: as in `publish`.
        fence(Release);
        self.other.store(0, Relaxed);
        self.extra.store(0, Relaxed);
        self.attributes.store(attributes, Relaxed);
    }

    #[inline(always)]
    fn publish_plain(&self, address: u64, bytes: u64, time_ns: u64, place: u64) {
        // Release fence: a reader that sees any field written below also sees that the record was free before.
        fence(Release);
        self.address.store(address, Relaxed);
        self.amount.store(bytes, Relaxed);
        self.time_ns.store(time_ns, Relaxed);
        self.place.store(place, Relaxed);
        const LIVE: u64 = pack(Status::Live as u32 - Status::Free as u32, 0);
        // Release: pairs with readers, which read the fields of Live records only.
        self.state.store(self.state.load(Relaxed).wrapping_add(LIVE), Release);
    }

    #[inline(always)]
    fn free_plain(&self) {
        const FREE: u64 = pack(0, 1).wrapping_sub(pack(Status::Withdrawn as u32 - Status::Free as u32, 0));
        // The fence that readers need follows in `publish_plain` and `prepare`.
        self.state.store(self.state.load(Relaxed).wrapping_add(FREE), Relaxed);
    }
}

impl Entry {
    /// Whether a plain record with these attributes has the same contents.
    fn is_plain(&self, attributes: u64) -> bool {
        let plain = Entry {
            requested: self.bytes,
            extra: 0,
            pool: 0,
            stack: UNSAMPLED,
            ..*self
        };
        *self == plain && self.attributes.to_word() == attributes && (1..=LARGEST).contains(&self.bytes)
    }
}

impl Guarded {
    #[inline(always)]
    fn slots(&self) -> Option<Slots<'_>> {
        // Acquire: pairs with the Release in `enlarge`, where no lock orders them.
        let head = self.0.load(Acquire).cast_const();
        (!head.is_null()).then_some(Slots { head, of: PhantomData })
    }

    /// The index, which there is.
    ///
    /// # Safety
    /// [`Guarded::begin`] has succeeded, and the caller sees what it did.
    #[inline(always)]
    pub unsafe fn begun(&self) -> Slots<'_> {
        let head = self.0.load(Acquire).cast_const();
        Slots { head, of: PhantomData }
    }

    /// Publishes a live record. False: nothing has changed, since [`Guarded::make_room`] must be called first, or there is a record
    /// of this key, or it has none.
    #[inline(never)]
    pub fn insert(&self, table: &TableIn, key: Key, entry: &Entry) -> bool {
        let Some(slots) = self.slots() else { return false };
        let head = slots.head();
        if entry.is_plain(head.attributes.load(Relaxed)) {
            let room = slots.room(key.address);
            return room
                .map(|room| room.publish(key.address, entry.bytes, entry.time_ns, pack(UNSAMPLED, entry.thread)))
                .is_some();
        }
        let place = Some(key.address).filter(|address| address.cast_signed() > 0 && slots.has_room_for(1));
        let Some((slot, Ok((_, record)))) = place
            .and_then(|address| slots.place(address))
            .map(|slot| (slot, table.take()))
        else {
            return false;
        };
        record.publish(key, entry);
        slot.record.store(ptr::from_ref(record).cast_mut(), Relaxed);
        slot.address.store(key.address, Relaxed);
        head.owned.store(head.owned.load(Relaxed) + 1, Relaxed);
        true
    }

    /// The first index. `attributes`: those of plain records. `started_ns`: what the caller's times are counted from.
    ///
    /// # Errors
    /// Why there is no room.
    pub fn begin(&self, attributes: Attributes, started_ns: u64) -> Result<(), Errno> {
        self.enlarge(None, attributes.to_word(), started_ns).map(|_| ())
    }

    /// Makes room for a record of this address: enlarges the index if it is too small, and takes free records of the table if there are
    /// none here.
    ///
    /// # Errors
    /// Why there is no room.
    #[cold]
    #[inline(never)]
    pub fn make_room(&self, table: &TableIn, address: u64) -> Result<(), Errno> {
        let old = self.slots().ok_or(Errno(libc::ENOENT))?;
        let has_place = old.place(address).is_some() || old.find(address).is_some();
        let slots = match old.has_room_for(BATCH) && has_place {
            true => old,
            false => self.enlarge(Some(old), old.head().attributes.load(Relaxed), old.started_ns())?,
        };
        let head = slots.head();
        if head.free.load(Relaxed) != 0 {
            return Ok(());
        }
        for _ in 0..BATCH {
            // Never, if the caller's lock holds what it promises.
            if head.free.load(Relaxed) == head.most.load(Relaxed) {
                break;
            }
            let record = match table.take() {
                Err(error) if head.free.load(Relaxed) == 0 => return Err(error),
                Err(_) => break,
                Ok((_, record)) => record,
            };
            record.prepare(head.attributes.load(Relaxed));
            let free = head.free.load(Relaxed).wrapping_sub(1);
            slots.free_at(free).store(ptr::from_ref(record).cast_mut(), Relaxed);
            head.free.store(free, Relaxed);
            head.owned.store(head.owned.load(Relaxed) + 1, Relaxed);
        }
        Ok(())
    }

    fn enlarge(&self, old: Option<Slots>, attributes: u64, started_ns: u64) -> Result<Slots<'_>, Errno> {
        let before = self.0.load(Relaxed);
        let places = old.map_or(FIRST, |old| {
            2 * (old.head().mask.load(Relaxed) as usize / size_of::<Slot>() + 1)
        });
        let most = places / 2;
        // A slot is as large as two places of the list.
        let memory = elements::<Slot>(most / 2 + HEAD + places + BEYOND + 1)?;
        // SAFETY: behind the list of memory that was mapped just now, at a page's begin; zeros are valid.
        let head = unsafe { memory.add(most / 2) }.cast::<Head>();
        let new = Slots { head, of: PhantomData };
        // SAFETY: the last slot.
        let end: &Slot = unsafe { &*new.head.add(1).cast::<Slot>().add(places + BEYOND) };
        end.address.store(END, Relaxed);
        let copied = new.head();
        copied.mask.store(((places - 1) * size_of::<Slot>()) as u64, Relaxed);
        copied.most.store((most as u64).wrapping_neg(), Relaxed);
        copied.attributes.store(attributes, Relaxed);
        copied.started_ns.store(started_ns, Relaxed);
        for slot in old.iter().flat_map(|old| old.all()) {
            // No place: the slots in front of the end are full. Its record is lost.
            if let Some(free) = new.place(slot.address.load(Relaxed)) {
                free.record.store(slot.record.load(Relaxed), Relaxed);
                free.address.store(slot.address.load(Relaxed), Relaxed);
                copied.owned.store(copied.owned.load(Relaxed) + 1, Relaxed);
            }
        }
        if let Some(old) = old {
            let free = old.head().free.load(Relaxed);
            for number in 1..=free.wrapping_neg() {
                let number = number.wrapping_neg();
                new.free_at(number).store(old.free_at(number).load(Relaxed), Relaxed);
            }
            copied.free.store(free, Relaxed);
            copied
                .owned
                .store(copied.owned.load(Relaxed).wrapping_sub(free), Relaxed);
            copied.countdown.store(old.head().countdown.load(Relaxed), Relaxed);
        }
        // Release: pairs with the Acquire in `slots`.
        let published = self.0.compare_exchange(before, head, Release, Relaxed);
        published.map(|_| new).map_err(|_| Errno(libc::EBUSY))
    }

    /// As [`TableIn::withdraw`]. A record that is committed becomes one of the table's free ones.
    #[inline(never)]
    pub fn withdraw<'a>(&'a self, table: &TableIn<'a>, address: u64) -> Option<Withdrawn<'a>> {
        let slots = self.slots()?;
        let slot = slots.find(address)?;
        let record = slot.record.load(Relaxed).map_addr(|address| address & !1);
        // SAFETY: null, or the address of a record in an extent that is never unmapped.
        let record: &Record = unsafe { record.as_ref() }?;
        let number = table.number_of(record)?;
        let generation = halves(record.state.load(Relaxed)).1;
        let state = State {
            status: Status::Withdrawn,
            generation,
        };
        record.state.store(state.word(), Relaxed);
        slots.remove(slot);
        let owned = &slots.head().owned;
        owned.store(owned.load(Relaxed).saturating_sub(1), Relaxed);
        Some(Withdrawn {
            record,
            number,
            generation,
        })
    }
}

impl<'a> Slots<'a> {
    /// The slots in use.
    fn all(self) -> impl Iterator<Item = &'a Slot> {
        // SAFETY: the first slot.
        let mut slot: &Slot = unsafe { &*self.head.add(1).cast() };
        std::iter::from_fn(move || {
            loop {
                let this = slot;
                match this.address.load(Relaxed) {
                    END => return None,
                    address => {
                        slot = self.next(this);
                        if address != 0 {
                            return Some(this);
                        }
                    }
                }
            }
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
