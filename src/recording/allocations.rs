//! What comes and goes: allocations published, withdrawn, restored; their sums; and requests that were refused.

use std::sync::atomic::{AtomicPtr, Ordering::*};

use super::Recording;
use super::cells::Cell;
use crate::format::*;
use crate::kind::{Kind, Place};
use crate::lockfree::index::mix;
use crate::lockfree::intervals::{self, Event, Intervals};
use crate::lockfree::peak::{Own, Sum, live};
use crate::lockfree::shards::Shard;
use crate::lockfree::table::{Attributes, Claim, Counts, Entry, Key, Link, TableIn, Withdrawn};

impl Recording {
    /// The table of live allocations; `shard` is the calling thread's, or any number, best one per thread.
    #[inline]
    pub fn table(&self, shard: impl Into<Shard>) -> TableIn<'_> {
        TableIn {
            table: &self.table,
            backing: self.backing(Section::Records),
            fresh: self.elements(Section::Records),
            shard: shard.into(),
        }
    }

    /// What `shard` counts of a kind on a device. The row is made on first use.
    #[inline]
    fn counter(&self, device: u8, kind: Kind, shard: Shard) -> Option<Counter<'_>> {
        let slot = u32::from(device.wrapping_add(1));
        let sums = Sums {
            slot,
            kind: kind as u32,
        };
        let of_kind = self.cells.of(sums)?;
        let of_device = self.cells.of(Sums { slot, kind: 0 })?;
        let own = &of_kind.rows[shard.number()];
        // SAFETY: null, or a row in an extent that is never unmapped.
        let row = match unsafe { own.load(SeqCst).as_ref() } {
            Some(row) => row,
            None => self.add_counter(device, kind, own)?,
        };
        Some(Counter {
            row,
            of_kind,
            of_device,
            slot: self.cells.of_device(slot)?,
        })
    }

    #[cold]
    #[inline(never)]
    fn add_counter(&self, device: u8, kind: Kind, own: &AtomicPtr<CounterRow>) -> Option<&CounterRow> {
        let slot = u32::from(device.wrapping_add(1));
        let sums = Sums {
            slot,
            kind: kind as u32,
        };
        let of_device = Sums { slot, kind: 0 };
        for sums in [Some(sums), kind.place().on_device().then_some(of_device)]
            .into_iter()
            .flatten()
        {
            let number = sums.number() as u32;
            let peak = self.peaks.ensure(self.backing(Section::Peaks), number).ok()?;
            // Release: pairs with the Acquire in `pot`. All who come here store the same.
            let cell = self.cells.of(sums)?;
            cell.peak.store(std::ptr::from_ref(peak).cast_mut(), Release);
            self.elements(Section::Peaks).fetch_max(u64::from(number) + 1, Relaxed);
        }
        let (_, row) = self.row(Section::Counters, &self.counters)?;
        // SeqCst, both: the row is there, and can be found, before its shard looks at a pot (see `peak.rs`).
        self.cells.of(of_device)?.kinds.fetch_or(1 << sums.kind, SeqCst);
        match own.compare_exchange(std::ptr::null_mut(), std::ptr::from_ref(row).cast_mut(), SeqCst, SeqCst) {
            Ok(_) => {
                // Release: pairs with readers. A row that lost the race below stays unpublished.
                row.of_plus_one.store(sums.to_word() + 1, Release);
                Some(row)
            }
            // SAFETY: as in `counter`.
            Err(other) => unsafe { other.as_ref() },
        }
    }

    /// An allocation under this key is about to be published: brings what that will write into the cache, while its stack
    /// is taken.
    #[inline]
    pub fn prepare(&self, shard: Shard, key: Key) {
        self.table(shard).prepare(key);
    }

    /// As [`Recording::allocated_at`], for whoever does not know its shard.
    pub fn allocated(&self, key: Key, entry: &Entry) -> bool {
        self.allocated_at(entry.thread.into(), key, entry)
    }

    /// Publishes an allocation and counts it. Whatever was recorded under this key before is gone and counted so.
    #[inline]
    pub fn allocated_at(&self, shard: Shard, key: Key, entry: &Entry) -> bool {
        let table = self.table(shard);
        if let Some(stale) = table.withdraw(key) {
            self.uncount(&stale.entry, shard);
            table.commit(stale);
            self.add(Loss::Vanished, 1);
        }
        if table.insert(key, entry).is_err() {
            self.add(Loss::Allocations, 1);
            return false;
        }
        self.count(entry, shard, |counter| {
            shard.add(&counter.total_bytes, entry.bytes);
            shard.add(&counter.total_count, 1);
        });
        self.count_at_stack(entry, shard);
        true
    }

    /// Takes an allocation out of sight and out of the sums, for a free that is about to happen.
    pub fn withdraw(&self, key: Key, shard: impl Into<Shard>) -> Option<Withdrawn> {
        let shard = shard.into();
        let withdrawn = self.table(shard).withdraw(key)?;
        self.uncount(&withdrawn.entry, shard);
        Some(withdrawn)
    }

    /// As `withdraw`, for whoever need not know what the record says.
    #[inline]
    pub fn claim(&self, key: Key, shard: Shard) -> Option<Claim> {
        let table = self.table(shard);
        let (claim, counts) = table.claim(key)?;
        self.uncount_sums(counts, shard);
        if self.intervals.watching()
            && let Some(withdrawn) = table.redeem(claim)
        {
            self.note_departure(&withdrawn.entry);
        }
        Some(claim)
    }

    /// The free succeeded.
    pub fn commit(&self, withdrawn: Withdrawn, shard: impl Into<Shard>) -> Entry {
        self.table(shard).commit(withdrawn)
    }

    /// The free succeeded.
    #[inline]
    pub fn commit_claim(&self, claim: Claim, shard: Shard) {
        self.table(shard).commit_claim(claim);
    }

    /// The free failed.
    #[cold]
    pub fn restore_claim(&self, claim: Claim, shard: Shard) {
        if let Some(withdrawn) = self.table(shard).redeem(claim) {
            self.restore(withdrawn, shard);
        }
    }

    /// The free failed: back into sight and into the sums.
    pub fn restore(&self, withdrawn: Withdrawn, shard: impl Into<Shard>) {
        let shard = shard.into();
        let entry = withdrawn.entry;
        if self.table(shard).restore(withdrawn).is_err() {
            self.add(Loss::Allocations, 1);
        }
        self.count(&entry, shard, |counter| {
            shard.add(&counter.freed_count, 1u64.wrapping_neg());
        });
    }

    /// The bytes of an entry are live, on its device too if it lives there; `more` is counted of its kind.
    #[inline]
    fn count(&self, entry: &Entry, shard: Shard, more: impl FnOnce(&CounterRow)) {
        let counts = entry.counts();
        if let Some(counter) = self.counter(counts.device, counts.kind, shard) {
            more(counter.row);
            counter.change(counts, true);
        }
        if self.intervals.watching() {
            self.note_arrival(entry);
        }
    }

    fn uncount(&self, entry: &Entry, shard: Shard) {
        self.uncount_sums(entry.counts(), shard);
        if self.intervals.watching() {
            self.note_departure(entry);
        }
    }

    #[inline]
    fn uncount_sums(&self, counts: Counts, shard: Shard) {
        if let Some(counter) = self.counter(counts.device, counts.kind, shard) {
            shard.add(&counter.row.freed_count, 1);
            counter.change(counts, false);
        }
    }

    /// What is in use since a moment; idle unless somebody has asked for it ([`Intervals::watch`]).
    pub fn intervals(&self) -> &Intervals {
        &self.intervals
    }

    #[cold]
    fn note_arrival(&self, entry: &Entry) {
        if let Some(event) = self.event(entry) {
            self.intervals.came(&event);
        }
    }

    #[cold]
    fn note_departure(&self, entry: &Entry) {
        if let Some(event) = self.event(entry) {
            self.intervals.went(&event);
        }
    }

    /// What an entry is to an interval: each byte in use counts once. Of PyTorch these are the tensors, and the segments
    /// that it keeps for them are not; of all others, whose blocks the recorder need not know, what the driver handed out.
    /// The same for the free as for the allocation: it follows from the entry alone.
    fn event(&self, entry: &Entry) -> Option<Event> {
        let Attributes { device, kind, .. } = entry.attributes;
        let (slot, bytes) = match kind.place() {
            Place::Nowhere => return None,
            Place::Host => (Some(intervals::HOST), entry.bytes),
            Place::Device | Place::Managed if self.is_segment(entry) => return None,
            Place::Device | Place::Managed => (intervals::slot_of(device), entry.bytes),
            Place::Within if kind == Kind::Tensor => (intervals::slot_of(device), entry.bytes),
            // Part of what counts already; but a record that may be left.
            Place::Within => (intervals::slot_of(device), 0),
        };
        Some(Event {
            slot,
            time_ns: entry.time_ns,
            bytes,
            on_device: kind.place() != Place::Host,
        })
    }

    /// Memory that PyTorch's caching allocator takes to cut tensors from.
    fn is_segment(&self, entry: &Entry) -> bool {
        matches!(entry.attributes.kind, Kind::Device | Kind::Physical)
            && self.intervals.tensors_are_told()
            && self.passes_through(entry.stack, b"libc10_cuda")
    }

    /// As `withdraw`, through a link.
    pub fn withdraw_linked(&self, link: Link, shard: impl Into<Shard>) -> Option<Withdrawn> {
        let shard = shard.into();
        let withdrawn = self.table(shard).withdraw_linked(link)?;
        self.uncount(&withdrawn.entry, shard);
        Some(withdrawn)
    }

    /// Frees every record that `wanted` accepts; for what a destroyed context takes with it.
    pub fn free_all(&self, shard: impl Into<Shard>, wanted: impl Fn(&Entry) -> bool) {
        let shard = shard.into();
        let table = self.table(shard);
        table.withdraw_all(wanted, |withdrawn| {
            self.uncount(&withdrawn.entry, shard);
            table.commit(withdrawn);
            self.add(Loss::ImplicitFrees, 1);
        });
    }

    /// The most bytes of a kind that ever lived on a device; kind `None`: of all that lives there.
    pub fn peak_bytes(&self, device: u8, kind: Option<Kind>) -> u64 {
        let sums = Sums {
            slot: u32::from(device.wrapping_add(1)),
            kind: kind.map_or(0, |kind| kind as u32),
        };
        let row = self.peaks.get(self.backing(Section::Peaks), sums.number() as u32);
        row.map_or(0, |row| row.pot.peak())
    }

    /// Sum of live bytes on devices, and of live records there, for the line at exit.
    pub fn live_on_devices(&self) -> (u64, u64) {
        let rows = self.elements(Section::Peaks).load(Relaxed) as u32;
        let (mut bytes, mut count) = (0, 0);
        for number in 0..rows {
            let (slot, kind) = (number / COUNTER_STRIDE as u32, number % COUNTER_STRIDE as u32);
            let on_device = Kind::from_number(kind as u8).is_some_and(|kind| kind.place().on_device());
            let cell = self.cells.of(Sums { slot, kind }).filter(|_| on_device);
            let Some((cell, pot)) = cell.and_then(|cell| Some((cell, cell.pot()?))) else {
                continue;
            };
            bytes += live(pot, cell.rows().map(|row| &row.credit[0]));
            for row in cell.rows() {
                count += row
                    .total_count
                    .load(Relaxed)
                    .wrapping_sub(row.freed_count.load(Relaxed)) as i64;
            }
        }
        (bytes, count.max(0) as u64)
    }

    /// Counts an allocation call that failed, and says in which row. `entry.bytes` is what was asked for.
    pub fn failed(&self, entry: &Entry, error: i32) -> Option<u32> {
        if let Some(counter) = self.counter(entry.attributes.device, entry.attributes.kind, entry.thread.into()) {
            counter.row.failed_count.fetch_add(1, Relaxed);
        }
        let what = entry.attributes.to_word();
        let hash = mix(mix(what ^ entry.bytes.rotate_left(17)) ^ pack(entry.stack, error as u32));
        let backing = self.backing(Section::Failures);
        let same = |row| {
            self.refusals.get(backing, row).is_some_and(|row: &FailureRow| {
                row.bytes.load(Relaxed) == entry.bytes
                    && row.attributes.load(Relaxed) == what
                    && halves(row.place.load(Relaxed)).0 == entry.stack
                    && row.error.load(Relaxed) == error as u32 as u64
            })
        };
        let known = self.refusal_index.find(hash, same).map(|entry| entry.row);
        if let Some(row) = known.and_then(|number| self.refusals.get(backing, number)) {
            row.last_ns.fetch_max(entry.time_ns, Relaxed);
            row.count.fetch_add(1, Release);
            return known;
        }
        let Some((number, row)) = self.row(Section::Failures, &self.refusals) else {
            self.add(Loss::Details, 1);
            return None;
        };
        row.bytes.store(entry.bytes, Relaxed);
        row.first_ns.store(entry.time_ns, Relaxed);
        row.last_ns.store(entry.time_ns, Relaxed);
        row.attributes.store(what, Relaxed);
        row.place.store(pack(entry.stack, entry.thread), Relaxed);
        row.error.store(error as u32 as u64, Relaxed);
        // Release: pairs with the reader's Acquire.
        row.count.store(1, Release);
        let _ = self.refusal_index.intern(hash, number, |_| false);
        Some(number)
    }
}

/// One shard's counter of a kind on a device, and what it takes to keep the peaks of both.
struct Counter<'a> {
    row: &'a CounterRow,
    of_kind: &'a Cell,
    of_device: &'a Cell,
    /// The cells of all kinds on the device.
    slot: &'a [Cell],
}

impl Counter<'_> {
    /// So many bytes more are live, or fewer: of the kind, and on the device if they live there.
    #[inline(always)]
    fn change(&self, counts: Counts, more: bool) {
        let (row, of_kind, slot) = (self.row, self.of_kind, self.slot);
        let Some(pot) = of_kind.pot() else { return };
        let kind = Sum {
            pot,
            own: Own {
                word: &row.credit[0],
                hint: &row.hints[0],
            },
            shards: || of_kind.rows().map(|row| &row.credit[0]),
        };
        if counts.kind.place().on_device()
            && let Some(pot) = self.of_device.pot()
        {
            let kinds = &self.of_device.kinds;
            let device = Sum {
                pot,
                own: Own {
                    word: &row.credit[1],
                    hint: &row.hints[1],
                },
                shards: || {
                    // SeqCst: as in `add_counter`.
                    let kinds = kinds.load(SeqCst);
                    let cells = slot.iter().enumerate().filter(move |(kind, _)| kinds >> kind & 1 != 0);
                    cells.flat_map(|(_, cell)| cell.rows()).map(|row| &row.credit[1])
                },
            };
            if more {
                device.take(counts.bytes);
            } else {
                device.give(counts.bytes);
            }
        }
        if more {
            kind.take(counts.bytes);
        } else {
            kind.give(counts.bytes);
        }
    }
}
