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
use crate::lockfree::peak::{LocalCredit, Sum};
use crate::lockfree::shards::Shard;
use crate::lockfree::sync::Alone;
use crate::lockfree::table::{Attributes, Entry, Guarded, Key, Space, Withdrawn};
use crate::system::cold_path;

/// As many as the section of devices holds.
pub const DEVICES: usize = Section::Devices.extent_sizes().0;

/// The tensors on one device. All zeros: it is not known whether there are any.
#[repr(C, align(64))]
pub struct Reported {
    /// Where the code of the allocator's library is; the bytes are 0 until all else is known, or for ever.
    code: AtomicU64,
    code_bytes: AtomicU64,
    counter: AtomicPtr<CounterRow>,
    peak: AtomicPtr<PeakRow>,
    allocator: AtomicPtr<AllocatorRow>,
    records: Guarded,
    /// For the caller: a word that is valid in one state of its own. Used under the allocator's lock.
    known: [AtomicU64; 2],
}

const _: () = assert!(size_of::<Reported>() == 64, "one cache line");

/// What the allocator reports: how its live bytes have changed, and its totals afterwards.
#[derive(Clone, Copy)]
pub struct TensorEvent {
    pub address: u64,
    pub change: i64,
    pub live: u64,
    pub reserved: u64,
}

impl TensorEvent {
    #[inline(always)]
    fn key(&self) -> Key {
        Key {
            space: Space::Tensor,
            address: self.address,
        }
    }
}

impl Reported {
    /// What [`Reported::know`] stored in this state, which is not 0. 0: nothing.
    #[inline(always)]
    pub fn known_in(&self, state: u64) -> u64 {
        let [known, of] = &self.known;
        if of.load(Relaxed) == state {
            known.load(Relaxed)
        } else {
            0
        }
    }

    pub fn know(&self, state: u64, word: u64) {
        let [known, of] = &self.known;
        known.store(word, Relaxed);
        of.store(state, Relaxed);
    }

    #[inline(always)]
    fn row<'a, T>(&'a self, row: &AtomicPtr<T>) -> &'a T {
        // SAFETY: in an extent that is never unmapped, and stored before `code_bytes`, without which `Recording::reported`, from which all
        // callers have this, does not return it.
        unsafe { &*row.load(Relaxed) }
    }

    /// Changes the sum of tensors on the device. False: nothing has changed, since the credit of this counter does not suffice.
    #[inline(always)]
    fn changes<const GROWS: bool>(&self, counter: &CounterRow, bytes: u64) -> bool {
        let sum = Sum {
            central: &self.row(&self.peak).credit,
            local: LocalCredit {
                word: &counter.credit[0],
                hint: &counter.hints[0],
            },
            // Not asked for.
            shards: std::iter::empty,
        };
        sum.change_alone(bytes, GROWS)
    }
}

impl Recording {
    /// The tensors of this device that the code at `caller` reports; `None`: take the usual way.
    #[inline(always)]
    pub fn reported(&self, device: i32, caller: u64) -> Option<&Reported> {
        let of = self.reported.get(device as usize)?;
        // Acquire: pairs with the Release in `begin_reported`, after all else.
        let code_bytes = of.code_bytes.load(Acquire);
        (caller.wrapping_sub(of.code.load(Relaxed)) < code_bytes).then_some(of)
    }

    /// Whether [`Recording::begin_reported`] has not been called for this device.
    #[inline]
    pub fn may_begin_reported(&self, device: i32) -> bool {
        let of = self.reported.get(device as usize);
        of.is_some_and(|of| of.code.load(Relaxed) == 0)
    }

    /// From now on tensors of the device that code in this range reports are here. `None`: there is no such code. Only the first call
    /// for a device counts.
    #[cold]
    #[inline(never)]
    pub fn begin_reported(&self, device: u8, code: Option<(u64, u64)>) {
        let Some(of) = self.reported.get(usize::from(device)) else {
            return;
        };
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
            let peak = of_kind.peak.load(Acquire);
            let allocator = self.add_allocator(device)?;
            (!peak.is_null()).then_some((counter, peak, allocator))
        };
        if let Some((counter, peak, allocator)) = found() {
            of.counter.store(std::ptr::from_ref(counter).cast_mut(), Relaxed);
            of.peak.store(peak, Relaxed);
            of.allocator.store(std::ptr::from_ref(allocator).cast_mut(), Relaxed);
            // Release: pairs with the Acquire in `reported`.
            of.code_bytes.store(end - start, Release);
        }
    }

    /// As [`Counter::change`], of the sum of tensors on the device.
    #[cold]
    #[inline(never)]
    fn change_tensors<const GROWS: bool>(&self, device: u8, row: &CounterRow, bytes: u64, time_ns: u64) {
        let cells = self.often.cells.of_device(u32::from(device) + 1);
        if let Some(cells) = cells {
            let of_kind = &cells[Kind::Tensor as usize];
            Counter { row, of_kind, cells }.change::<GROWS>(Kind::Tensor, bytes, time_ns);
        }
    }

    /// Records a tensor without a stack. `now`: on the clock of [`crate::system::monotonic_ns`]. False: nothing was recorded, and the usual way
    /// is to be taken.
    #[inline(always)]
    pub fn tensor_allocated(
        &self,
        of: &Reported,
        device: u8,
        api: Api,
        thread: u32,
        now: u64,
        event: &TensorEvent,
    ) -> bool {
        let counter = of.row(&of.counter);
        let bytes = event.change as u64;
        let entry = Entry {
            bytes,
            requested: bytes,
            time_ns: self.since_start(now),
            extra: 0,
            pool: 0,
            stack: UNSAMPLED,
            thread,
            attributes: Attributes {
                kind: Kind::Tensor,
                space: Space::Tensor,
                flags: 0,
                device,
                api: api.0,
                context: Attributes::NO_CONTEXT,
                raised: 0,
            },
        };
        if !of.records.insert(&self.table(0), event.key(), &entry) {
            cold_path();
            return false;
        }
        counter.total_bytes.add_alone(bytes);
        counter.total_count.add_alone(1);
        if !of.changes::<true>(counter, bytes) {
            self.change_tensors::<true>(device, counter, bytes, entry.time_ns);
        }
        of.row(&of.allocator).report(event.change, event.live, event.reserved);
        true
    }

    /// Records the free of a tensor without a stack. As [`Recording::tensor_allocated`].
    #[inline(always)]
    pub fn tensor_freed(&self, of: &Reported, device: u8, event: &TensorEvent) -> bool {
        // What was live at an end stays.
        if self.has_ended() {
            cold_path();
            return false;
        }
        let counter = of.row(&of.counter);
        let count = |bytes| {
            counter.freed_count.add_alone(1);
            if !of.changes::<false>(counter, bytes) {
                self.change_tensors::<false>(device, counter, bytes, 0);
            }
        };
        if !of.records.free_unsampled(&self.table(0), event.key(), count) {
            cold_path();
            return false;
        }
        of.row(&of.allocator).report(event.change, event.live, event.reserved);
        true
    }

    /// As [`Recording::allocated_at`], of any tensor.
    #[inline(never)]
    pub fn any_tensor_allocated(&self, of: &Reported, shard: Shard, key: Key, entry: &Entry) -> bool {
        let table = self.table(shard);
        if let Some(stale) = of.records.withdraw(&table, key) {
            self.forget_stale(stale, key, shard, entry);
        }
        if table.may_contain(key) {
            self.remove_stale(key, shard, entry);
        }
        if of.records.make_room(&table).is_err() || !of.records.insert(&table, key, entry) {
            return self.allocated_out_of_line(shard, key, entry);
        }
        self.count(key, entry, shard, Op::Allocated);
        true
    }

    /// As [`Recording::withdraw`], of any tensor.
    #[inline(never)]
    pub fn withdraw_any_tensor<'a>(&'a self, of: &'a Reported, key: Key, shard: Shard) -> Option<Withdrawn<'a>> {
        match of.records.withdraw(&self.table(shard), key) {
            Some(withdrawn) => {
                self.uncount(Some(key), &withdrawn, shard, None);
                Some(withdrawn)
            }
            None => self.withdraw_out_of_line(key, shard),
        }
    }
}
