//! Allocations (published, withdrawn, committed, restored), their sums, and failed requests.

use std::sync::atomic::{AtomicPtr, Ordering::*};

use super::Recording;
use super::cells::Cell;
use crate::format::*;
use crate::kind::{Kind, Place};
use crate::lockfree::index::mix;
use crate::lockfree::intervals::{self, Event, Intervals};
use crate::lockfree::peak::{CentralCredit, LocalCredit, Sum, live};
use crate::lockfree::shards::Shard;
use crate::lockfree::table::{Attributes, Counts, Entry, Key, Link, TableIn, Withdrawn};

impl Recording {
    /// The table of live allocations. `shard` is the calling thread's shard, or any number, preferably one per thread.
    #[inline]
    pub fn table(&self, shard: impl Into<Shard>) -> TableIn<'_> {
        TableIn {
            table: &self.table,
            backing: self.backing(Section::Records),
            fresh: self.elements(Section::Records),
            shard: shard.into(),
        }
    }

    /// The counter of a kind on a device in `shard`. Its row is added on first use.
    #[inline]
    fn counter(&self, device: u8, kind: Kind, shard: Shard) -> Option<Counter<'_>> {
        let slot = u32::from(device.wrapping_add(1));
        let key = CounterKey {
            slot,
            kind: kind as u32,
        };
        let of_kind = self.cells.of(key)?;
        let of_device = self.cells.of(CounterKey { slot, kind: 0 })?;
        let place = &of_kind.rows[shard.number()];
        // SAFETY: null, or a row in an extent that is never unmapped.
        let row = match unsafe { place.load(SeqCst).as_ref() } {
            Some(row) => row,
            None => self.add_counter(key, kind, place)?,
        };
        Some(Counter {
            row,
            of_kind,
            of_device,
            peaking: if kind.place().on_device() { of_device } else { of_kind },
            slot: self.cells.of_device(slot)?,
        })
    }

    #[cold]
    #[inline(never)]
    fn add_counter(&self, key: CounterKey, kind: Kind, place: &AtomicPtr<CounterRow>) -> Option<&CounterRow> {
        let of_device = CounterKey { kind: 0, ..key };
        for key in [Some(key), kind.place().on_device().then_some(of_device)]
            .into_iter()
            .flatten()
        {
            let number = key.number() as u32;
            let peak = self.peaks.ensure(self.backing(Section::Peaks), number).ok()?;
            // Release: pairs with the Acquire in `Cell::central`. All threads store the same address.
            let cell = self.cells.of(key)?;
            cell.peak.store(std::ptr::from_ref(peak).cast_mut(), Release);
            self.elements(Section::Peaks).fetch_max(u64::from(number) + 1, Relaxed);
        }
        let (_, row) = self.row(Section::Counters, &self.counters)?;
        // SeqCst, both: the row exists and can be found before its shard loads a central word (see `peak.rs`).
        self.cells.of(of_device)?.kinds.fetch_or(1 << key.kind, SeqCst);
        match place.compare_exchange(std::ptr::null_mut(), std::ptr::from_ref(row).cast_mut(), SeqCst, SeqCst) {
            Ok(_) => {
                // Release: pairs with readers. A row that lost the race stays unpublished.
                row.key_plus_one.store(key.to_word() + 1, Release);
                Some(row)
            }
            // SAFETY: as in `counter`.
            Err(other) => unsafe { other.as_ref() },
        }
    }

    /// Prefetches the memory that publishing this key will write, to be called before its stack is taken.
    #[inline]
    pub fn prepare(&self, shard: Shard, key: Key) {
        self.table(shard).prepare(key);
    }

    /// As [`Recording::allocated_at`], for callers without a shard.
    pub fn allocated(&self, key: Key, entry: &Entry) -> bool {
        self.allocated_at(entry.thread.into(), key, entry)
    }

    /// Publishes an allocation and counts it. An older record with this key is removed and counted as vanished. Returns false
    /// if there is no room.
    #[inline]
    pub fn allocated_at(&self, shard: Shard, key: Key, entry: &Entry) -> bool {
        let table = self.table(shard);
        if let Some(stale) = table.withdraw(key) {
            self.uncount(&stale, shard);
            table.commit(stale);
            self.add(Loss::Vanished, 1);
        }
        if table.insert(key, entry).is_err() {
            self.add(Loss::Allocations, 1);
            return false;
        }
        self.count(key, entry, shard, Op::Allocated);
        true
    }

    /// Withdraws an allocation and subtracts it from the sums, for a free that is about to happen.
    #[inline]
    pub fn withdraw(&self, key: Key, shard: impl Into<Shard>) -> Option<Withdrawn<'_>> {
        let shard = shard.into();
        let withdrawn = self.table(shard).withdraw(key)?;
        self.uncount(&withdrawn, shard);
        Some(withdrawn)
    }

    /// The free succeeded. The record of memory that was live at the end stays, marked as freed after it.
    #[inline]
    pub fn commit(&self, withdrawn: Withdrawn, shard: impl Into<Shard>) {
        let table = self.table(shard);
        match self.freed_after(&withdrawn) {
            None => table.commit(withdrawn),
            Some(status) => table.retain(withdrawn, status),
        }
    }

    /// The free failed: publishes the allocation again and adds it to the sums.
    #[cold]
    pub fn restore(&self, withdrawn: Withdrawn, shard: impl Into<Shard>) {
        let shard = shard.into();
        let (key, entry) = (withdrawn.key(), withdrawn.entry());
        if self.table(shard).restore(withdrawn).is_err() {
            self.add(Loss::Allocations, 1);
        }
        if let (Some(key), Some(entry)) = (key, entry) {
            self.count(key, &entry, shard, Op::Restored);
        }
    }

    /// Adds an entry to the sums of its stack, of its kind and, if its memory is on a device, of that device.
    #[inline]
    fn count(&self, key: Key, entry: &Entry, shard: Shard, op: Op) {
        let counts = entry.counts();
        let counter = self.counter(counts.device, counts.kind, shard);
        // Before the other sums: their peak includes this memory, and so must the sum of its stack.
        let peak = counter.as_ref().map_or(0, Counter::peak_bytes);
        let total = self.count_at_stack(key, entry, shard, op, peak);
        if let Some(counter) = counter {
            if op == Op::Restored {
                shard.add(&counter.row.freed_count, 1u64.wrapping_neg());
            } else {
                shard.add(&counter.row.total_bytes, entry.bytes);
                shard.add(&counter.row.total_count, 1);
            }
            counter.change(counts, true, entry.time_ns);
        }
        if self.intervals.watching() {
            self.note_allocation(entry);
        }
        if let Some(total) = total
            && self.logs_events()
        {
            let time_ns = if op == Op::Restored { self.now() } else { entry.time_ns };
            self.log_allocation(shard, key, entry, op, total, time_ns);
        }
    }

    #[inline]
    fn uncount(&self, withdrawn: &Withdrawn, shard: Shard) {
        let (Some(key), Some(entry)) = (withdrawn.key(), withdrawn.entry()) else {
            return;
        };
        let counts = entry.counts();
        let mut peak = 0;
        if let Some(counter) = self.counter(counts.device, counts.kind, shard) {
            shard.add(&counter.row.freed_count, 1);
            counter.change(counts, false, 0);
            peak = counter.peak_bytes();
        }
        // After the other sums: at their peak, the stacks' sums include at least this memory.
        let total = self.count_at_stack(key, &entry, shard, Op::Freed, peak);
        if self.intervals.watching() {
            self.note_free(&entry);
        }
        if let Some(total) = total
            && self.logs_events()
        {
            self.log_free(shard, key, &entry, total);
        }
    }

    /// Measurements of intervals; unused unless enabled ([`Intervals::watch`]).
    pub fn intervals(&self) -> &Intervals {
        &self.intervals
    }

    #[cold]
    fn note_allocation(&self, entry: &Entry) {
        if let Some(event) = self.event(entry) {
            self.intervals.allocated(&event);
        }
    }

    #[cold]
    fn note_free(&self, entry: &Entry) {
        if let Some(event) = self.event(entry) {
            self.intervals.freed(&event);
        }
    }

    /// The event of an entry for intervals, in which each byte in use counts once. For PyTorch, tensors count and the segments
    /// that hold them do not; for all other allocators, whose blocks may be unknown, the memory from the driver counts.
    /// The result is the same for the allocation and its free, since it depends on the entry alone.
    fn event(&self, entry: &Entry) -> Option<Event> {
        let Attributes { device, kind, .. } = entry.attributes;
        let (slot, bytes) = match kind.place() {
            Place::Nowhere => return None,
            Place::Host => (Some(intervals::HOST), entry.bytes),
            Place::Device | Place::Managed if self.is_segment(entry) => return None,
            Place::Device | Place::Managed => (intervals::slot_of(device), entry.bytes),
            Place::Within if kind == Kind::Tensor => (intervals::slot_of(device), entry.bytes),
            // Its bytes count already, but its record may be left over.
            Place::Within => (intervals::slot_of(device), 0),
        };
        Some(Event {
            slot,
            time_ns: entry.time_ns,
            bytes,
            on_device: kind.place() != Place::Host,
        })
    }

    /// Whether this is memory from which PyTorch's caching allocator allocates tensors.
    fn is_segment(&self, entry: &Entry) -> bool {
        matches!(entry.attributes.kind, Kind::Device | Kind::Physical)
            && self.intervals.tensors_reported()
            && self.passes_through(entry.stack, b"libc10_cuda")
    }

    /// As `withdraw`, through a link.
    pub fn withdraw_linked(&self, link: Link, shard: impl Into<Shard>) -> Option<Withdrawn<'_>> {
        let shard = shard.into();
        let withdrawn = self.table(shard).withdraw_linked(link)?;
        self.uncount(&withdrawn, shard);
        Some(withdrawn)
    }

    /// Frees every record that `wanted` accepts: the memory that a destroyed context frees.
    pub fn free_all(&self, shard: impl Into<Shard>, wanted: impl Fn(&Entry) -> bool) {
        let shard = shard.into();
        let table = self.table(shard);
        table.withdraw_all(wanted, |withdrawn| {
            self.uncount(&withdrawn, shard);
            self.commit(withdrawn, shard);
            self.add(Loss::ImplicitFrees, 1);
        });
    }

    /// The peak in bytes of a kind on a device; kind `None`: of all memory on the device.
    pub fn peak_bytes(&self, device: u8, kind: Option<Kind>) -> u64 {
        let key = CounterKey {
            slot: u32::from(device.wrapping_add(1)),
            kind: kind.map_or(0, |kind| kind as u32),
        };
        let row = self.peaks.get(self.backing(Section::Peaks), key.number() as u32);
        row.map_or(0, |row| row.credit.peak())
    }

    /// Live bytes on all devices, and the number of their records, for the message at exit.
    pub fn live_on_devices(&self) -> (u64, u64) {
        let rows = self.elements(Section::Peaks).load(Relaxed) as u32;
        let (mut bytes, mut count) = (0, 0);
        for number in 0..rows {
            let (slot, kind) = (number / COUNTER_STRIDE as u32, number % COUNTER_STRIDE as u32);
            let on_device = Kind::from_number(kind as u8).is_some_and(|kind| kind.place().on_device());
            let cell = self.cells.of(CounterKey { slot, kind }).filter(|_| on_device);
            let Some((cell, central)) = cell.and_then(|cell| Some((cell, cell.central()?))) else {
                continue;
            };
            bytes += live(central, cell.rows().map(|row| &row.credit[0]));
            for row in cell.rows() {
                count += row
                    .total_count
                    .load(Relaxed)
                    .wrapping_sub(row.freed_count.load(Relaxed)) as i64;
            }
        }
        (bytes, count.max(0) as u64)
    }

    /// Counts a failed allocation call and returns its row. `entry.bytes` is the size requested.
    pub fn failed(&self, entry: &Entry, error: i32) -> Option<u32> {
        if let Some(counter) = self.counter(entry.attributes.device, entry.attributes.kind, entry.thread.into()) {
            counter.row.failed_count.fetch_add(1, Relaxed);
        }
        let attributes = entry.attributes.to_word();
        let hash = mix(mix(attributes ^ entry.bytes.rotate_left(17)) ^ pack(entry.stack, error as u32));
        let backing = self.backing(Section::Failures);
        let same = |row| {
            self.failures.get(backing, row).is_some_and(|row: &FailureRow| {
                row.bytes.load(Relaxed) == entry.bytes
                    && row.attributes.load(Relaxed) == attributes
                    && halves(row.place.load(Relaxed)).0 == entry.stack
                    && row.error.load(Relaxed) == error as u32 as u64
            })
        };
        let known = self.failure_index.find(hash, same).map(|entry| entry.row);
        if let Some(row) = known.and_then(|number| self.failures.get(backing, number)) {
            row.last_ns.fetch_max(entry.time_ns, Relaxed);
            row.count.fetch_add(1, Release);
            return known;
        }
        let Some((number, row)) = self.row(Section::Failures, &self.failures) else {
            self.add(Loss::Details, 1);
            return None;
        };
        row.bytes.store(entry.bytes, Relaxed);
        row.first_ns.store(entry.time_ns, Relaxed);
        row.last_ns.store(entry.time_ns, Relaxed);
        row.attributes.store(attributes, Relaxed);
        row.place.store(pack(entry.stack, entry.thread), Relaxed);
        row.error.store(error as u32 as u64, Relaxed);
        // Release: pairs with readers, which accept a row with a count.
        row.count.store(1, Release);
        let _ = self.failure_index.intern(hash, number, |_| false);
        Some(number)
    }
}

/// One shard's counter of a kind on a device, and the cells of the two sums it belongs to.
struct Counter<'a> {
    row: &'a CounterRow,
    of_kind: &'a Cell,
    of_device: &'a Cell,
    /// One of the two above.
    peaking: &'a Cell,
    /// The cells of all kinds on the device.
    slot: &'a [Cell],
}

impl Counter<'_> {
    /// The peak of the sum in which a stack's memory counts: the device's for memory on a device, otherwise the kind's.
    #[inline]
    fn peak_bytes(&self) -> u64 {
        self.peaking.central().map_or(0, CentralCredit::peak)
    }

    /// Adds bytes to the sum of the kind and, if the memory is on a device, of the device; or subtracts them. The device's
    /// sum grows first and shrinks last: the sum of a kind never exceeds it.
    #[inline(always)]
    fn change(&self, counts: Counts, grows: bool, time_ns: u64) {
        let (row, of_kind, slot) = (self.row, self.of_kind, self.slot);
        let local = |sum: usize| LocalCredit {
            word: &row.credit[sum],
            hint: &row.hints[sum],
        };
        let change_device = || {
            let Some(central) = self.of_device.central() else {
                return;
            };
            let kinds = &self.of_device.kinds;
            let shards = || {
                // SeqCst: as in `add_counter`.
                let kinds = kinds.load(SeqCst);
                let cells = slot.iter().enumerate().filter(move |(kind, _)| kinds >> kind & 1 != 0);
                cells.flat_map(|(_, cell)| cell.rows()).map(|row| &row.credit[1])
            };
            let local = local(1);
            if (Sum { central, local, shards }).change(counts.bytes, grows) {
                self.of_device.peak_reached(time_ns);
            }
        };
        let on_device = counts.kind.place().on_device();
        if grows && on_device {
            change_device();
        }
        if let Some(central) = of_kind.central() {
            let shards = || of_kind.rows().map(|row| &row.credit[0]);
            let local = local(0);
            if (Sum { central, local, shards }).change(counts.bytes, grows) {
                of_kind.peak_reached(time_ns);
            }
        }
        if !grows && on_device {
            change_device();
        }
    }
}
