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
use crate::lockfree::table::{Attributes, Entry, Key, Link, Summed, TableIn, Withdrawn};
use crate::sampling;
use crate::system::{aside, cold_path};

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
        let cells = self.often.cells.of_device(slot)?;
        let of_kind = &cells[kind as usize];
        let place = &of_kind.rows[shard.number()];
        // SAFETY: null, or a row in an extent that is never unmapped.
        let row = match unsafe { place.load(SeqCst).as_ref() } {
            Some(row) => row,
            None => {
                let kind_number = kind as u32;
                let key = CounterKey {
                    slot,
                    kind: kind_number,
                };
                self.add_counter(key, kind, place)?
            }
        };
        Some(Counter { row, of_kind, cells })
    }

    #[cold]
    #[inline(never)]
    pub(super) fn add_counter(
        &self,
        key: CounterKey,
        kind: Kind,
        place: &AtomicPtr<CounterRow>,
    ) -> Option<&CounterRow> {
        let of_device = CounterKey { kind: 0, ..key };
        for key in [Some(key), kind.place().on_device().then_some(of_device)]
            .into_iter()
            .flatten()
        {
            let number = key.number() as u32;
            let peak = self.peaks.ensure(self.backing(Section::Peaks), number).ok()?;
            // Release: pairs with the Acquire in `Cell::central`. All threads store the same address.
            let cell = self.often.cells.of(key)?;
            cell.peak.store(std::ptr::from_ref(peak).cast_mut(), Release);
            self.elements(Section::Peaks).fetch_max(u64::from(number) + 1, Relaxed);
        }
        let (_, row) = self.row(Section::Counters, &self.counters)?;
        // SeqCst, both: the row exists and can be found before its shard loads a central word (see `peak.rs`).
        self.often.cells.of(of_device)?.kinds.fetch_or(1 << key.kind, SeqCst);
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
    #[inline(always)]
    pub fn prepare(&self, shard: Shard, key: Key) {
        self.table(shard).prepare(key);
    }

    /// As [`Recording::allocated_at`], for callers without a shard.
    pub fn allocated(&self, key: Key, entry: &Entry) -> bool {
        self.allocated_at(entry.thread.into(), key, entry)
    }

    /// As [`Recording::allocated_at`], for callers that are not on the path of most events.
    #[inline(never)]
    pub fn allocated_out_of_line(&self, shard: Shard, key: Key, entry: &Entry) -> bool {
        self.allocated_at(shard, key, entry)
    }

    /// Publishes an allocation and counts it. An older record with this key is removed and counted as vanished. Returns false
    /// if there is no room.
    ///
    /// Inlined into the one function that records most allocations, as is `withdraw` into that of frees: they are worth a tenth
    /// of an event. Other callers use `allocated_out_of_line`.
    #[inline(always)]
    pub fn allocated_at(&self, shard: Shard, key: Key, entry: &Entry) -> bool {
        let table = self.table(shard);
        if table.may_contain(key) {
            self.remove_stale(key, shard, &aside(entry));
        }
        if table.insert(key, entry).is_err() {
            self.lose(&aside(entry));
            return false;
        }
        self.count(key, entry, shard, Op::Allocated);
        true
    }

    /// If there is a live record of the address that was handed out for `entry`, its memory was freed before.
    #[cold]
    #[inline(never)]
    pub(super) fn remove_stale(&self, key: Key, shard: Shard, entry: &Entry) {
        if let Some(stale) = self.table(shard).withdraw(key) {
            self.forget_stale(stale, key, shard, entry);
        }
    }

    pub(super) fn forget_stale(&self, stale: Withdrawn, key: Key, shard: Shard, entry: &Entry) {
        self.uncount(Some(key), &stale, shard, Some(entry.time_ns));
        self.commit(stale, shard);
        // The driver's private tables destroy objects too.
        if entry.attributes.kind.place() != Place::Object {
            self.add(Loss::Vanished, 1);
        }
    }

    /// There is no room for a record.
    #[cold]
    fn lose(&self, entry: &Entry) {
        let loss = match entry.attributes.kind.place() {
            Place::Segment => Loss::Segments,
            _ => {
                self.intervals.lose();
                Loss::Allocations
            }
        };
        self.add(loss, 1);
    }

    /// Withdraws an allocation and subtracts it from the sums, for a free that is about to happen.
    #[inline(always)]
    pub fn withdraw(&self, key: Key, shard: impl Into<Shard>) -> Option<Withdrawn<'_>> {
        let shard = shard.into();
        let withdrawn = self.table(shard).withdraw(key)?;
        self.uncount(Some(key), &withdrawn, shard, None);
        Some(withdrawn)
    }

    /// As [`Recording::withdraw`], for callers that are not on the path of most events.
    #[inline(never)]
    pub fn withdraw_out_of_line(&self, key: Key, shard: impl Into<Shard>) -> Option<Withdrawn<'_>> {
        self.withdraw(key, shard)
    }

    /// The free succeeded. The record of memory that was live at the end stays, marked as freed after it.
    #[inline(always)]
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
        // First: of a process that is killed in between, readers would take the free and the live record for two allocations.
        if let (Some(key), Some(entry)) = (key, &entry) {
            self.count(key, entry, shard, Op::Restored);
        }
        if self.table(shard).restore(withdrawn).is_err()
            && let Some(entry) = &entry
        {
            self.lose(entry);
        }
    }

    /// Adds an entry to the sums of its stack, of its kind and, if its memory is on a device, of that device.
    #[inline(always)]
    pub(super) fn count(&self, key: Key, entry: &Entry, shard: Shard, op: Op) {
        let summed = Summed::of(entry);
        let time_ns = if op == Op::Restored { self.now() } else { entry.time_ns };
        let counter = self.counter(summed.device(), summed.kind, shard);
        let mut total = None;
        if summed.stack != UNSAMPLED {
            // Before the other sums: their peak includes this memory, and so must the sum of its stack.
            let peak = counter.as_ref().map_or(0, |counter| counter.peak_bytes(summed.kind));
            total = self.total_of(&summed, key, shard, peak);
        }
        if let Some(total) = total {
            let (bytes, count) = self.weight_in_totals(&summed, key, || Some(entry.time_ns));
            match op {
                Op::Restored => {
                    let (bytes, count) = (bytes.wrapping_neg(), count.wrapping_neg());
                    shard.add_both(&total.freed_bytes, bytes, &total.freed_count, count);
                }
                _ => shard.add_both(&total.bytes, bytes, &total.count, count),
            }
        }
        if let Some(counter) = counter {
            if op == Op::Restored {
                shard.add(&counter.row.freed_count, 1u64.wrapping_neg());
            } else {
                shard.add_both(&counter.row.total_bytes, entry.bytes, &counter.row.total_count, 1);
            }
            counter.change::<true>(summed.kind, summed.bytes, time_ns);
        } else {
            self.add(Loss::Details, 1);
        }
        if self.is_observed() {
            cold_path();
            self.observe_allocation(shard, key, &aside(entry), op, total, time_ns);
        }
    }

    /// Out of line, as is `observe_free`: the code of most events should be on few cache lines.
    #[cold]
    #[inline(never)]
    fn observe_allocation(
        &self,
        shard: Shard,
        key: Key,
        entry: &Entry,
        op: Op,
        total: Option<&TotalRow>,
        time_ns: u64,
    ) {
        if self.intervals.watching() {
            self.note_allocation(entry);
        }
        if self.logs_events() {
            let site = total.map(|total| total.number.load(Relaxed));
            self.log_event(shard, key, entry, op, site, time_ns);
        }
    }

    /// Subtracts an entry from the sums. `time_ns`: when it was freed, if not now.
    #[inline(always)]
    pub(super) fn uncount(&self, key: Option<Key>, withdrawn: &Withdrawn, shard: Shard, time_ns: Option<u64>) {
        let (Some(key), Some(summed)) = (key, withdrawn.summed()) else {
            cold_path();
            return;
        };
        let counter = self.counter(summed.device(), summed.kind, shard);
        if let Some(counter) = &counter {
            shard.add(&counter.row.freed_count, 1);
            counter.change::<false>(summed.kind, summed.bytes, 0);
        } else {
            self.add(Loss::Details, 1);
        }
        let mut total = None;
        if summed.stack != UNSAMPLED {
            // After the other sums: at their peak, the stacks' sums include at least this memory.
            let peak = counter.as_ref().map_or(0, |counter| counter.peak_bytes(summed.kind));
            total = self.total_of(&summed, key, shard, peak);
        }
        if let Some(total) = total {
            let (bytes, count) = self.weight_in_totals(&summed, key, || Some(withdrawn.entry()?.time_ns));
            shard.add_both(&total.freed_bytes, bytes, &total.freed_count, count);
        }
        if self.is_observed() {
            cold_path();
            self.observe_free(shard, key, withdrawn.record(), total, time_ns);
        }
    }

    #[cold]
    #[inline(never)]
    fn observe_free(&self, shard: Shard, key: Key, withdrawn: &Record, total: Option<&TotalRow>, time_ns: Option<u64>) {
        if self.intervals.watching()
            && let Some(entry) = withdrawn.entry()
        {
            self.note_free(&entry);
        }
        if self.logs_events()
            && let Some(entry) = withdrawn.entry()
        {
            let site = total.map(|total| total.number.load(Relaxed));
            let time_ns = time_ns.unwrap_or_else(|| self.now());
            self.log_event(shard, key, &entry, Op::Freed, site, time_ns);
        }
    }

    /// Whether the event log or intervals are enabled.
    #[inline(always)]
    fn is_observed(&self) -> bool {
        self.often.observers.load(Relaxed) != 0
    }

    /// Measurements of intervals; unused unless enabled.
    pub fn intervals(&self) -> &Intervals {
        &self.intervals
    }

    /// As [`Intervals::watch`].
    pub fn enable_intervals(&self, tensors_reported: bool) {
        self.intervals.watch(tensors_reported);
        self.often.observers.fetch_add(1, Relaxed);
    }

    /// As [`Intervals::was_exceeded`].
    #[inline]
    pub fn interval_was_exceeded(&self) -> bool {
        if !self.is_observed() {
            return false;
        }
        cold_path();
        self.intervals.was_exceeded()
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
            Place::Nowhere | Place::Segment | Place::Object => return None,
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
        self.uncount(withdrawn.key(), &withdrawn, shard, None);
        Some(withdrawn)
    }

    /// Frees every record that `wanted` accepts: the memory that a destroyed context frees.
    pub fn free_all(&self, shard: impl Into<Shard>, wanted: impl Fn(&Entry) -> bool) {
        let shard = shard.into();
        let table = self.table(shard);
        table.withdraw_all(wanted, |withdrawn| {
            self.uncount(withdrawn.key(), &withdrawn, shard, None);
            // Objects and segments are no memory of the program.
            let place = withdrawn.entry().map(|entry| entry.attributes.kind.place());
            self.commit(withdrawn, shard);
            let is_counted = !matches!(place, Some(Place::Object | Place::Segment));
            self.add(Loss::ImplicitFrees, u64::from(is_counted));
        });
    }

    /// Replaces the entry of every record that `wanted` accepts by what `change` returns for it, with the time from which on it
    /// holds. It counts as neither freed nor allocated again. Scans all records.
    ///
    /// Not exact: a free that begins while its record is withdrawn here finds none, and the record is then inserted for good. The
    /// free cannot wait for this thread, and may be over before the record is inserted.
    pub fn change_all(
        &self,
        shard: impl Into<Shard>,
        wanted: impl Fn(&Entry) -> bool,
        mut change: impl FnMut(Key, &Entry) -> Entry,
    ) {
        let shard = shard.into();
        let table = self.table(shard);
        table.withdraw_all(wanted, |withdrawn| {
            let (key, entry) = (withdrawn.key(), withdrawn.entry());
            let (Some(key), Some(entry)) = (key, entry) else {
                return table.commit(withdrawn);
            };
            self.uncount(Some(key), &withdrawn, shard, None);
            let changed = change(key, &entry);
            let is_moved = changed.attributes.device != entry.attributes.device;
            if is_moved {
                self.forget_totals(key, &entry, shard);
            }
            // What was live at the end stays as it was then.
            self.commit(withdrawn, shard);
            // Meanwhile the handle was freed and given out again: then it stays counted as freed.
            if table.get(key).is_some() {
                return;
            }
            match table.insert(key, &changed) {
                Ok(_) if is_moved => self.count(key, &changed, shard, Op::Allocated),
                Ok(_) => self.count(key, &changed, shard, Op::Restored),
                Err(_) => self.lose(&changed),
            }
        });
    }

    /// Undoes what [`Recording::count`] and `uncount` have added to the totals for an entry, which is counted elsewhere. Its row
    /// may be another shard's, so the sums in this one's may wrap.
    fn forget_totals(&self, key: Key, entry: &Entry, shard: Shard) {
        let summed = Summed::of(entry);
        let one = 1u64.wrapping_neg();
        let bytes = entry.bytes.wrapping_neg();
        let mut peak = 0;
        if let Some(counter) = self.counter(summed.device(), summed.kind, shard) {
            shard.add_both(&counter.row.total_bytes, bytes, &counter.row.total_count, one);
            shard.add(&counter.row.freed_count, one);
            peak = counter.peak_bytes(summed.kind);
        }
        if summed.stack != UNSAMPLED
            && let Some(total) = self.total_of(&summed, key, shard, peak)
        {
            let (bytes, count) = self.weight_in_totals(&summed, key, || Some(entry.time_ns));
            let (bytes, count) = (bytes.wrapping_neg(), count.wrapping_neg());
            shard.add_both(&total.bytes, bytes, &total.count, count);
            shard.add_both(&total.freed_bytes, bytes, &total.freed_count, count);
        }
    }

    /// What a block with a stack adds to the sums of its stack: itself, or what it stands for if stacks are sampled. `time_ns`:
    /// of its allocation, as its record has it.
    #[inline(always)]
    fn weight_in_totals(&self, summed: &Summed, key: Key, time_ns: impl FnOnce() -> Option<u64>) -> (u64, u64) {
        match self.sample_bytes() {
            0 => (summed.bytes, 1),
            // The time too, since a program may use the same address again and again.
            mean => sampled_weight(&aside(summed), key, mean, time_ns),
        }
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
            let cell = self.often.cells.of(CounterKey { slot, kind }).filter(|_| on_device);
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

#[cold]
#[inline(never)]
fn sampled_weight(summed: &Summed, key: Key, mean: u64, time_ns: impl FnOnce() -> Option<u64>) -> (u64, u64) {
    let mean = sampling::mean_of(mean, Attributes::parts(summed.attributes).raised);
    let key = mix(key.address) ^ time_ns().unwrap_or(0);
    match sampling::may_be_left_out(summed.kind, summed.bytes) {
        true => sampling::whole_weight(summed.bytes, mean, key),
        false => (summed.bytes, 1),
    }
}

/// One shard's counter of a kind on a device, and the cells of the two sums it belongs to.
pub(super) struct Counter<'a> {
    pub row: &'a CounterRow,
    pub of_kind: &'a Cell,
    /// The cells of all kinds on the device; the first is the device's.
    pub cells: &'a [Cell; COUNTER_STRIDE],
}

impl Counter<'_> {
    /// The peak of the sum in which a stack's memory counts: the device's for memory on a device, otherwise the kind's.
    #[inline]
    fn peak_bytes(&self, kind: Kind) -> u64 {
        let on_device = kind.on_device();
        let cell = if on_device { &self.cells[0] } else { self.of_kind };
        cell.central().map_or(0, CentralCredit::peak)
    }

    /// Adds bytes to the sum of the kind and, if the memory is on a device, of the device; or subtracts them. The device's
    /// sum grows first and shrinks last: the sum of a kind never exceeds it.
    #[inline(always)]
    pub fn change<const GROWS: bool>(&self, kind: Kind, bytes: u64, time_ns: u64) {
        let on_device = kind.on_device();
        if !GROWS {
            self.change_kind::<GROWS>(bytes, time_ns);
        }
        if on_device {
            self.change_device::<GROWS>(bytes, time_ns);
        }
        if GROWS {
            self.change_kind::<GROWS>(bytes, time_ns);
        }
    }

    #[inline(always)]
    fn change_kind<const GROWS: bool>(&self, bytes: u64, time_ns: u64) {
        let Some(central) = self.of_kind.central() else { return };
        let shards = || self.of_kind.rows().map(|row| &row.credit[0]);
        let local = self.local(0);
        if (Sum { central, local, shards }).change(bytes, GROWS) {
            self.of_kind.peak_reached(time_ns);
        }
    }

    #[inline(always)]
    fn change_device<const GROWS: bool>(&self, bytes: u64, time_ns: u64) {
        let of_device = &self.cells[0];
        let Some(central) = of_device.central() else { return };
        let shards = || {
            // SeqCst: as in `add_counter`.
            let kinds = of_device.kinds.load(SeqCst);
            let cells = self.cells.iter().enumerate();
            let used = cells.filter(move |(kind, _)| kinds >> kind & 1 != 0);
            used.flat_map(|(_, cell)| cell.rows()).map(|row| &row.credit[1])
        };
        let local = self.local(1);
        if (Sum { central, local, shards }).change(bytes, GROWS) {
            of_device.peak_reached(time_ns);
        }
    }

    fn local(&self, sum: usize) -> LocalCredit<'_> {
        LocalCredit {
            word: &self.row.credit[sum],
            hint: &self.row.hints[sum],
        }
    }
}
