//! What comes and goes: allocations published, withdrawn, restored; their sums; and requests that were refused.

use std::sync::atomic::Ordering::*;

use super::Recording;
use crate::index::mix;
use crate::kind::Kind;
use crate::layout::*;
use crate::table::{Entry, Key, Link, TableIn, What, Withdrawn};

impl Recording {
    /// The table of live allocations; `lane` is any number, best one per thread.
    #[inline]
    pub fn table(&self, lane: u32) -> TableIn<'_> {
        TableIn {
            table: &self.table,
            backing: self.backing(Section::Records),
            fresh: self.count(Section::Records),
            lane,
        }
    }

    /// The sums of one kind on one device; kind `None`: the device's total.
    fn counter(&self, device: u8, kind: Option<Kind>) -> Option<&CounterRow> {
        let slot = if device == What::NO_DEVICE {
            0
        } else {
            device as usize + 1
        };
        let number = slot * COUNTER_STRIDE + kind.map_or(0, |kind| kind as usize);
        let counter = self
            .counters
            .ensure(self.backing(Section::Counters), number as u32)
            .ok()?;
        // Looked at before it is changed: every event comes through here, and rarely is it the first of its device.
        let rows = ((slot + 1) * COUNTER_STRIDE) as u64;
        if self.count(Section::Counters).load(Relaxed) < rows {
            self.count(Section::Counters).fetch_max(rows, Relaxed);
        }
        Some(counter)
    }

    /// Publishes an allocation and counts it. Whatever was recorded under this key before is gone and counted so.
    pub fn allocated(&self, key: Key, entry: &Entry) -> bool {
        let table = self.table(entry.thread);
        if let Some(stale) = table.withdraw(key) {
            self.uncount(&stale.entry);
            table.commit(stale);
            self.add(Loss::Vanished, 1);
        }
        if table.insert(key, entry).is_err() {
            self.add(Loss::Allocations, 1);
            return false;
        }
        if let Some(counter) = self.counter(entry.what.device, Some(entry.what.kind)) {
            add_live(counter, entry.bytes);
            counter.total_bytes.fetch_add(entry.bytes, Relaxed);
            counter.total_count.fetch_add(1, Relaxed);
        }
        if let Some(total) = self.device_total(entry) {
            add_live(total, entry.bytes);
        }
        true
    }

    /// Takes an allocation out of sight and out of the sums, for a free that is about to happen.
    pub fn withdraw(&self, key: Key, lane: u32) -> Option<Withdrawn> {
        let withdrawn = self.table(lane).withdraw(key)?;
        self.uncount(&withdrawn.entry);
        Some(withdrawn)
    }

    /// The free succeeded.
    pub fn commit(&self, withdrawn: Withdrawn, lane: u32) -> Entry {
        self.table(lane).commit(withdrawn)
    }

    /// The free failed: back into sight and into the sums.
    pub fn restore(&self, withdrawn: Withdrawn, lane: u32) {
        let entry = withdrawn.entry;
        if self.table(lane).restore(withdrawn).is_err() {
            self.add(Loss::Allocations, 1);
        }
        if let Some(counter) = self.counter(entry.what.device, Some(entry.what.kind)) {
            counter.live_bytes.fetch_add(entry.bytes, Relaxed);
            counter.freed_count.fetch_sub(1, Relaxed);
        }
        if let Some(total) = self.device_total(&entry) {
            total.live_bytes.fetch_add(entry.bytes, Relaxed);
        }
    }

    fn uncount(&self, entry: &Entry) {
        if let Some(counter) = self.counter(entry.what.device, Some(entry.what.kind)) {
            counter.live_bytes.fetch_sub(entry.bytes, Relaxed);
            counter.freed_count.fetch_add(1, Relaxed);
        }
        if let Some(total) = self.device_total(entry) {
            total.live_bytes.fetch_sub(entry.bytes, Relaxed);
        }
    }

    /// As `withdraw`, through a link.
    pub fn withdraw_linked(&self, link: Link, lane: u32) -> Option<Withdrawn> {
        let withdrawn = self.table(lane).withdraw_linked(link)?;
        self.uncount(&withdrawn.entry);
        Some(withdrawn)
    }

    /// Frees every record that `wanted` accepts; for what a destroyed context takes with it.
    pub fn free_all(&self, lane: u32, wanted: impl Fn(&Entry) -> bool) {
        let table = self.table(lane);
        table.withdraw_all(wanted, |withdrawn| {
            self.uncount(&withdrawn.entry);
            table.commit(withdrawn);
            self.add(Loss::ImplicitFrees, 1);
        });
    }

    /// The sums of all kinds together, where the entry's kind lives on its device.
    fn device_total(&self, entry: &Entry) -> Option<&CounterRow> {
        let on_device = entry.what.kind.place().on_device();
        on_device.then(|| self.counter(entry.what.device, None)).flatten()
    }

    /// Sum of live bytes on devices, and of live records there, for the line at exit.
    pub fn live_on_devices(&self) -> (u64, u64) {
        let rows = self.count(Section::Counters).load(Relaxed) as u32;
        let backing = self.backing(Section::Counters);
        let on_device = |row: &u32| {
            Kind::from_number((row % COUNTER_STRIDE as u32) as u8).is_some_and(|kind| kind.place().on_device())
        };
        (0..rows)
            .filter(on_device)
            .filter_map(|row| self.counters.get(backing, row))
            .fold((0, 0), |sum, row| {
                let count = row
                    .total_count
                    .load(Relaxed)
                    .saturating_sub(row.freed_count.load(Relaxed));
                (sum.0 + row.live_bytes.load(Relaxed), sum.1 + count)
            })
    }

    /// Counts an allocation call that failed. `entry.bytes` is what was asked for.
    pub fn refused(&self, entry: &Entry, error: i32) {
        if let Some(counter) = self.counter(entry.what.device, Some(entry.what.kind)) {
            counter.refused_count.fetch_add(1, Relaxed);
        }
        let what = entry.what.to_word();
        let hash = mix(mix(what ^ entry.bytes.rotate_left(17)) ^ pack(entry.stack, error as u32));
        let backing = self.backing(Section::Refusals);
        let same = |row| {
            self.refusals.get(backing, row).is_some_and(|row: &RefusalRow| {
                row.bytes.load(Relaxed) == entry.bytes
                    && row.what.load(Relaxed) == what
                    && halves(row.place.load(Relaxed)).0 == entry.stack
                    && row.error.load(Relaxed) == error as u32 as u64
            })
        };
        let known = self.refusal_index.find(hash, same).map(|entry| entry.row);
        if let Some(row) = known.and_then(|number| self.refusals.get(backing, number)) {
            row.last_ns.fetch_max(entry.time_ns, Relaxed);
            row.count.fetch_add(1, Release);
            return;
        }
        let Some((number, row)) = self.row(Section::Refusals, &self.refusals) else {
            self.add(Loss::Details, 1);
            return;
        };
        row.bytes.store(entry.bytes, Relaxed);
        row.first_ns.store(entry.time_ns, Relaxed);
        row.last_ns.store(entry.time_ns, Relaxed);
        row.what.store(what, Relaxed);
        row.place.store(pack(entry.stack, entry.thread), Relaxed);
        row.error.store(error as u32 as u64, Relaxed);
        // Release: pairs with the reader's Acquire.
        row.count.store(1, Release);
        let _ = self.refusal_index.intern(hash, number, |_| false);
    }
}

fn add_live(counter: &CounterRow, bytes: u64) {
    let live = counter.live_bytes.fetch_add(bytes, Relaxed).wrapping_add(bytes);
    // Exact: the largest of all the values the sum ever had.
    if live > counter.peak_bytes.load(Relaxed) {
        counter.peak_bytes.fetch_max(live, Relaxed);
    }
}
