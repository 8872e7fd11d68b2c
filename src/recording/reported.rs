//! Tensors of which an allocator reports each under its own lock: with sampled stacks, the way of those without one is short.
//!
//! PyTorch's allocator holds the lock of the tensor's device while it reports, so events of a device never overlap, and what is here
//! for a device is changed by plain loads and stores ([`Guarded`]). Records, sums and peaks are the same as those of all other
//! memory: readers see no difference, and nothing of a tensor is left out but its stack.
//!
//! It is for the code of one library on each device: another one may have another lock. What is rare takes a way that all memory takes,
//! and its record is here all the same: a tensor with a stack, and what happens after an end.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

use super::Recording;
use super::allocations::Counter;
use crate::cuda_functions::Api;
use crate::format::*;
use crate::kind::Kind;
use crate::lockfree::peak::LocalCredit;
use crate::lockfree::shards::Shard;
use crate::lockfree::table::{Attributes, Entry, Guarded, Key, Slots, Space, Withdrawn};
use crate::system::cold_path;

/// As many as the section of devices holds.
pub const DEVICES: usize = Section::Devices.extent_sizes().0;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// The tensors on one device, in two pages: a child finds the first one's words 0, and those of the second as they were, since an event
/// may go on in it after a fork by a signal handler. All zeros: it is not known whether there are any.
#[repr(C, align(64))]
pub struct Reported {
    /// Where the code of the allocator's library is; the bytes are 0 until all else is known, or for ever.
    code: AtomicU64,
    code_bytes: AtomicU64,
    /// A place in the library's code that reports frees, and one that reports allocations; 0: none is known.
    callers: [AtomicU64; 2],
    /// Others' words: devices have places one cache line apart.
    _others: [AtomicU64; PAGE / 8 - 4],
    records: Guarded,
    counter: AtomicPtr<CounterRow>,
    allocator: AtomicPtr<AllocatorRow>,
    /// For the caller, as long as a caller is known: where its function goes on.
    next: AtomicU64,
}

const _: () = assert!(size_of::<Reported>() == PAGE + 64, "a cache line in each page");

/// What the allocator reports: how its live bytes have changed, and its totals afterwards.
#[derive(Clone, Copy)]
pub struct TensorEvent {
    pub address: u64,
    pub change: i64,
    pub live: u64,
    pub reserved: u64,
}

/// What has become of an event without a stack.
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Nothing has changed: it is to take the usual way.
    Rare,
    /// The sum of tensors takes longer. An allocation is recorded but for that and the report, a free is not:
    /// [`Recording::finish_tensor`].
    NotSummed,
    /// All is recorded, and the allocator reports another sum than expected: as above.
    Mismatched,
    Recorded,
}

impl Reported {
    /// Whether [`Reported::know`] was told this caller. It is of the library then.
    #[inline(always)]
    pub fn is_known(&self, allocates: bool, caller: u64) -> bool {
        self.callers[usize::from(allocates)].load(Acquire) == caller
    }

    /// Whether [`Reported::know`] was told a caller.
    pub fn knows_any(&self, allocates: bool) -> bool {
        !self.is_known(allocates, 0)
    }

    #[inline(always)]
    pub fn next(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Stores a caller, which [`Reported::is_of`] has accepted, and where it goes on. `is_so`: that it may be known, asked when it is.
    pub fn know(&self, allocates: bool, caller: u64, next: u64, is_so: impl FnOnce() -> bool) {
        self.next.store(next, Relaxed);
        // AcqRel: either this follows the store in `forget`, whose caller has changed before that what is asked now, or is undone by it.
        self.callers[usize::from(allocates)].swap(caller, AcqRel);
        if !is_so() {
            self.forget();
        }
    }

    /// From now on no caller is known.
    pub fn forget(&self) {
        for caller in &self.callers {
            caller.swap(0, AcqRel);
        }
    }

    /// In a forked child, where the kernel may not have wiped it: these are the parent's.
    pub fn forked(&self) {
        self.forget();
        self.code_bytes.store(0, Release);
        self.code.store(0, Release);
    }

    /// Whether the code at `caller` reports these tensors.
    #[inline(always)]
    pub fn is_of(&self, caller: u64) -> bool {
        // Acquire: pairs with the Release in `begin_reported`, after all else.
        let code_bytes = self.code_bytes.load(Acquire);
        caller.wrapping_sub(self.code.load(Relaxed)) < code_bytes
    }

    /// Whether [`Recording::begin_reported`] has not been called for it.
    #[inline]
    pub fn may_begin(&self) -> bool {
        self.code.load(Relaxed) == 0
    }

    /// The index of its records, of which [`Slots::counts_down`] is for one event in many, whose cost is to be measured.
    #[inline(always)]
    pub fn slots(&self) -> Slots<'_> {
        // SAFETY: done before `code_bytes` was stored; callers have seen that by `is_of`, or a caller that was known after it.
        unsafe { self.records.begun() }
    }

    #[inline(always)]
    fn counter(&self) -> &CounterRow {
        // SAFETY: in an extent that is never unmapped, and stored as above.
        unsafe { &*self.counter.load(Relaxed) }
    }

    #[inline(always)]
    fn allocator(&self) -> &AllocatorRow {
        // SAFETY: as above.
        unsafe { &*self.allocator.load(Relaxed) }
    }

    /// Changes the sum of tensors on the device. False: nothing has changed, since the credit of this counter does not suffice.
    #[inline(always)]
    fn changes<const GROWS: bool>(counter: &CounterRow, bytes: u64) -> bool {
        let local = LocalCredit {
            word: &counter.credit[0],
            hint: &counter.hints[0],
        };
        local.change_alone(bytes, GROWS)
    }

    #[inline(always)]
    fn report(&self, event: &TensorEvent) -> Outcome {
        match self.allocator().report(event.change, event.live, event.reserved) {
            true => Outcome::Recorded,
            false => Outcome::Mismatched,
        }
    }

    /// Records a tensor without a stack, of at most [`crate::lockfree::peak::LARGEST`] bytes and not of 0. `now`: on the clock of
    /// [`crate::system::monotonic_ns`]. `place`: as in [`crate::lockfree::table::Room::publish`]. `noted`: called if it is recorded.
    #[inline(always)]
    pub fn allocated(&self, slots: Slots, now: u64, place: u64, event: &TensorEvent, noted: impl FnOnce()) -> Outcome {
        let bytes = event.change as u64;
        let Some(room) = slots.room(event.address) else {
            return Outcome::Rare;
        };
        noted();
        room.publish(event.address, bytes, now.saturating_sub(slots.started_ns()), place);
        let counter = self.counter();
        add_guarded(&counter.total_bytes, bytes);
        add_guarded(&counter.total_count, 1);
        if !Self::changes::<true>(counter, bytes) {
            cold_path();
            return Outcome::NotSummed;
        }
        self.report(event)
    }

    /// Records the free of a tensor without a stack.
    #[inline(always)]
    pub fn freed(&self, slots: Slots, event: &TensorEvent) -> Outcome {
        let Some(plain) = slots.plain(event.address) else {
            return Outcome::Rare;
        };
        // As `withdraw`: who reads a recording that ends between the two knows that the sum may or may not have it.
        plain.begin_free();
        // Then the sum, while the record has its bytes.
        let counter = self.counter();
        if !Self::changes::<false>(counter, plain.bytes()) {
            cold_path();
            return Outcome::NotSummed;
        }
        add_guarded(&counter.freed_count, 1);
        plain.free();
        self.report(event)
    }
}

/// Adds to a word that the allocator's lock guards.
#[inline(always)]
fn add_guarded(word: &AtomicU64, amount: u64) {
    word.store(word.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl Recording {
    /// From now on tensors of the device that code in this range reports are here. `None`: there is no such code. `api`: of what they are
    /// recorded as. Only the first call for a device counts.
    #[cold]
    #[inline(never)]
    pub fn begin_reported(&self, of: &Reported, device: u8, api: Api, code: Option<(u64, u64)>) {
        let (start, end) = code.unwrap_or((1, 1));
        if of.code.compare_exchange(0, start, Relaxed, Relaxed).is_err() {
            return;
        }
        let key = CounterKey {
            slot: u32::from(device) + 1,
            kind: Kind::Tensor as u32,
        };
        let found = || {
            let of_kind = self.often.cells.of(key)?;
            let counter = self.add_counter(key, Kind::Tensor, of_kind.rows.last()?)?;
            let allocator = self.add_allocator(device)?;
            let attributes = Attributes {
                kind: Kind::Tensor,
                space: Space::Tensor,
                flags: 0,
                device,
                api: api.0,
                context: Attributes::NO_CONTEXT,
                raised: 0,
            };
            of.records.begin(attributes, self.often.started_monotonic_ns).ok()?;
            Some((counter, allocator))
        };
        if let Some((counter, allocator)) = found() {
            of.counter.store(std::ptr::from_ref(counter).cast_mut(), Relaxed);
            of.allocator.store(std::ptr::from_ref(allocator).cast_mut(), Relaxed);
            // Release: pairs with the Acquire in `is_of`.
            of.code_bytes.store(end - start, Release);
        }
    }

    /// Does what is left of an event without a stack, which was recorded as far as `outcome` says.
    #[cold]
    #[inline(never)]
    pub fn finish_tensor(&self, of: &Reported, device: u8, event: &TensorEvent, mut outcome: Outcome) {
        if outcome == Outcome::NotSummed {
            let plain = of.slots().plain(event.address);
            if let Some(plain) = &plain
                && let Some(cells) = self.often.cells.of_device(u32::from(device) + 1)
            {
                let of_kind = &cells[Kind::Tensor as usize];
                let row = of.counter();
                let counter = Counter { row, of_kind, cells };
                match event.change > 0 {
                    true => counter.change::<true>(Kind::Tensor, plain.bytes(), plain.time_ns()),
                    false => counter.change::<false>(Kind::Tensor, plain.bytes(), 0),
                }
            }
            if let Some(plain) = plain.filter(|_| event.change < 0) {
                add_guarded(&of.counter().freed_count, 1);
                plain.free();
            }
            outcome = of.report(event);
        }
        if outcome == Outcome::Mismatched {
            of.allocator().correct(event.change, event.live);
        }
    }

    /// As [`Recording::allocated_at`], of any tensor.
    #[inline(never)]
    pub fn any_tensor_allocated(&self, of: &Reported, shard: Shard, key: Key, entry: &Entry) -> bool {
        let table = self.table(shard);
        if let Some(stale) = of.records.withdraw(&table, key.address) {
            self.forget_stale(stale, key, shard, entry);
        }
        if table.may_contain(key) {
            self.remove_stale(key, shard, entry);
        }
        if of.records.make_room(&table, key.address).is_err() || !of.records.insert(&table, key, entry) {
            return self.allocated_out_of_line(shard, key, entry);
        }
        self.count(key, entry, shard, Op::Allocated);
        true
    }

    /// As [`Recording::withdraw`], of any tensor.
    #[inline(never)]
    pub fn withdraw_any_tensor<'a>(&'a self, of: &'a Reported, key: Key, shard: Shard) -> Option<Withdrawn<'a>> {
        match of.records.withdraw(&self.table(shard), key.address) {
            Some(withdrawn) => {
                self.uncount(Some(key), &withdrawn, shard, None);
                Some(withdrawn)
            }
            None => self.withdraw_out_of_line(key, shard),
        }
    }
}
