//! The state of a process at any time that the log covers, as a snapshot.

use foldhash::HashMap;

use super::live::{Block, Classes};
use super::{Op, Timeline, UNIT, Unknown};
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::at::unknown_thread;
use crate::snapshot::{Allocation, Allocations, AtPeak, Call, Counter, DevicePeak, Gathering, Snapshot};

impl Timeline {
    /// The snapshot as it would have been at `time_ns`, in nanoseconds since the recording began. `snapshot` is the final
    /// state, which [`crate::reader::read_timeline`] returned together with this timeline.
    ///
    /// Memory that is still live in the final state has all its attributes. Memory that was freed after the time has the
    /// lowest 48 bits of its address, neither context nor stream nor pool, and no size requested beyond its bytes. Peaks and
    /// their sets are those up to the time, as far as the log reaches back. `totals` is left empty.
    ///
    /// # Errors
    /// The state at that time is not known.
    pub fn state_at(&self, snapshot: &Snapshot, time_ns: u64) -> Result<Snapshot, Unknown> {
        let at_ns = self.known(time_ns)?;
        let classes = Classes::of(&self.sites);
        let live = self.live_at(snapshot, &classes, at_ns);
        let mut state = snapshot.clone();
        state.taken.point = Some(Point::Time(time_ns));
        // Rows are exact to the nanosecond, and none is younger than the snapshot.
        state.taken.lasted_ns.get_or_insert(state.taken.at_ns);
        state.taken.at_ns = at_ns;
        state.taken.at_unix_ns = snapshot.process.started_unix_ns.saturating_add(at_ns);
        state.taken.events_during_read = 0;
        state.taken.in_flight = 0;
        state.losses.lost_events = self.lost;
        state.allocations = self.allocations(&mut state, snapshot, &classes, &live.absent, &live.freed_later);
        state.end = snapshot.end.filter(|end| end.time_ns <= at_ns);
        match state.end {
            None => state.freed_after_end = Allocations::default(),
            Some(_) => {
                let still: std::collections::HashSet<_> = state.allocations.iter().map(same).collect();
                state.freed_after_end.retain(|row| !still.contains(&same(row)));
            }
        }
        state.objects = self.objects_at(snapshot, &mut state.threads, at_ns);
        state.objects_freed_after_end = Allocations::default();
        self.segments_at(&mut state, snapshot, at_ns);
        state.failed.retain(|failed| failed.first_ns <= at_ns);
        state.marks.retain(|mark| mark.time_ns <= at_ns);
        let phases = state.phases.partition_point(|phase| phase.begin_ns <= at_ns);
        state.phases.truncate(phases);
        for phase in &mut state.phases {
            phase.end_ns = phase.end_ns.filter(|&end| end <= at_ns);
        }
        // What frameworks and the driver reported is not in the log.
        state.allocators.clear();
        state.usage = None;
        state.totals.clear();
        self.count_back(&mut state, at_ns);
        self.peaks_until(&mut state, snapshot, time_ns)?;
        Ok(state)
    }

    /// The rows at the time: those of the final state, and those of blocks that were freed later.
    fn allocations(
        &self,
        state: &mut Snapshot,
        snapshot: &Snapshot,
        classes: &Classes,
        absent: &[u32],
        freed_later: &[Block],
    ) -> Allocations {
        let mut known: HashMap<_, Vec<Allocation>> = HashMap::default();
        for row in &snapshot.freed_after_end {
            let place = classes.place_of_row(row.call, row.address);
            place
                .into_iter()
                .for_each(|place| known.entry(place).or_default().push(row));
        }
        let mut gathered = Gathering::default();
        let mut absent = absent.iter().peekable();
        for (number, row) in (0..).zip(&snapshot.allocations) {
            if absent.next_if(|&&next| next == number).is_none() {
                gathered.add(row);
            }
        }
        let mut calls: HashMap<(u32, Option<u32>), Call> = HashMap::default();
        for block in freed_later {
            // The record of memory that was freed after the end has all attributes.
            let candidates = known.get(&classes.place_of_block(block));
            let same = |row: &&Allocation| row.bytes == block.bytes && block.may_begin_at(row.time_ns & !UNIT);
            if let Some(row) = candidates.and_then(|rows| rows.iter().find(same)) {
                gathered.add(*row);
                continue;
            }
            let site = &self.sites[block.site as usize];
            let call = calls
                .entry((block.site, block.thread))
                .or_insert_with(|| site.call(thread(state, block.thread)));
            gathered.add(Allocation {
                address: block.address,
                bytes: block.bytes,
                requested: block.bytes,
                time_ns: block.allocated_ns,
                stack: site.stack,
                call,
            });
        }
        gathered.finish()
    }

    /// Undoes the later events in the counters, and sets the live sums to those of the rows.
    fn count_back(&self, state: &mut Snapshot, at_ns: u64) {
        let mut numbers: HashMap<(Option<usize>, Kind), usize> = HashMap::default();
        for (number, counter) in state.counters.iter().enumerate() {
            numbers.insert((counter.device, counter.kind), number);
        }
        let of_sites: Vec<Option<usize>> = self
            .sites
            .iter()
            .map(|site| numbers.get(&(site.device, site.kind)).copied())
            .collect();
        let counters = &mut state.counters;
        for event in self.between(at_ns, u64::MAX).rev() {
            let Some(counter) = of_sites[event.site as usize].map(|number| &mut counters[number]) else {
                continue;
            };
            match event.op {
                Op::Allocated => {
                    counter.total_bytes = counter.total_bytes.saturating_sub(event.bytes);
                    counter.total_count = counter.total_count.saturating_sub(1);
                }
                // A free that failed is undone first.
                Op::Freed => counter.freed_count = counter.freed_count.saturating_sub(1),
                Op::Restored => counter.freed_count += 1,
            }
        }
        let mut live: HashMap<(Option<usize>, Kind), (u64, u64)> = HashMap::default();
        for row in &state.allocations {
            let sums = live.entry((row.device, row.kind)).or_default();
            *sums = (sums.0.saturating_add(row.bytes), sums.1 + 1);
        }
        for counter in counters {
            let place = (counter.device, counter.kind);
            (counter.live_bytes, counter.live_count) = live.get(&place).copied().unwrap_or_default();
        }
    }

    /// Replaces the peaks that were reached later, and what was live at them, by those up to the time.
    fn peaks_until(&self, state: &mut Snapshot, snapshot: &Snapshot, time_ns: u64) -> Result<(), Unknown> {
        let at_ns = state.taken.at_ns;
        let later = |peak_ns: u64| peak_ns > at_ns;
        let any = state.counters.iter().any(|counter| later(counter.peak_ns))
            || state.device_peaks.iter().any(|peak| later(peak.time_ns));
        if any {
            let window = self.window(snapshot, self.since_ns.min(time_ns), time_ns)?;
            for sum in window.sums {
                let (changed, of_sum): (bool, fn(Kind) -> bool) = match sum.kind {
                    Some(kind) => {
                        let same = |counter: &&mut Counter| (counter.device, counter.kind) == (sum.device, kind);
                        let counter = state.counters.iter_mut().find(same);
                        let counter = counter.filter(|counter| later(counter.peak_ns));
                        let changed = counter.is_some() && !kind.place().on_device();
                        if let Some(counter) = counter {
                            (counter.peak_bytes, counter.peak_ns) = (sum.peak_bytes, sum.peak_ns);
                        }
                        (changed, |kind| !kind.place().on_device())
                    }
                    None => {
                        let same = |peak: &&mut DevicePeak| Some(peak.device) == sum.device;
                        let peak = state.device_peaks.iter_mut().find(same);
                        let peak = peak.filter(|peak| later(peak.time_ns));
                        let changed = peak.is_some();
                        if let Some(peak) = peak {
                            (peak.peak_bytes, peak.time_ns) = (sum.peak_bytes, sum.peak_ns);
                        }
                        (changed, |kind| kind.place().on_device())
                    }
                };
                if changed {
                    let counts = |at: &AtPeak| {
                        at.device == sum.device && of_sum(at.kind) && sum.kind.is_none_or(|kind| kind == at.kind)
                    };
                    state.at_peaks.retain(|at| !counts(at));
                    state.at_peaks.extend(sum.at_peak);
                }
            }
            // Peaks of sums that were empty until then.
            for counter in state.counters.iter_mut().filter(|counter| later(counter.peak_ns)) {
                (counter.peak_bytes, counter.peak_ns) = (0, 0);
            }
            state
                .device_peaks
                .retain(|peak| !later(peak.time_ns) && peak.peak_bytes > 0);
            let (counters, devices) = (&state.counters, &state.device_peaks);
            let known = |at: &AtPeak| match at.kind.place().on_device() {
                true => devices.iter().any(|peak| Some(peak.device) == at.device),
                false => counters
                    .iter()
                    .any(|counter| (counter.device, counter.kind) == (at.device, at.kind) && counter.peak_bytes > 0),
            };
            state.at_peaks.retain(known);
            state.at_peaks.sort_by(AtPeak::by_size);
        }
        for counter in &mut state.counters {
            // A process that was stopped in between counted less than its rows.
            counter.peak_bytes = counter.peak_bytes.max(counter.live_bytes);
            counter.total_bytes = counter.total_bytes.max(counter.peak_bytes);
            counter.total_count = counter
                .total_count
                .max(counter.live_count.saturating_add(counter.freed_count));
        }
        let used = |counter: &Counter| (counter.peak_bytes, counter.total_count, counter.failed_count) != (0, 0, 0);
        state.counters.retain(used);
        Ok(())
    }
}

/// The identity of a row.
fn same(row: Allocation) -> (Kind, u64, u64, u64) {
    (row.kind, row.address, row.bytes, row.time_ns)
}

/// The thread of a block, or one that stands for all unknown ones.
fn thread(state: &mut Snapshot, number: Option<u32>) -> usize {
    let known = number.map(|number| number as usize);
    known.unwrap_or_else(|| unknown_thread(&mut state.threads))
}
