//! The state of a process at any time that the log covers, as a snapshot.

use super::{Timeline, Unknown};
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::{Allocation, Allocations, AtPeak, Counter, DevicePeak, Snapshot};

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
        let mut state = snapshot.clone();
        state.taken.point = Some(Point::Time(time_ns));
        // Rows are exact to the nanosecond, and none is younger than the snapshot.
        state.taken.lasted_ns.get_or_insert(state.taken.at_ns);
        state.taken.at_ns = at_ns;
        state.taken.at_unix_ns = snapshot.process.started_unix_ns.saturating_add(at_ns);
        state.taken.events_during_read = 0;
        state.taken.in_flight = 0;
        state.losses.lost_events = self.lost;
        let rows = [&snapshot.allocations, &snapshot.freed_after_end];
        state.allocations = self.memory.rows_at(at_ns, rows, &mut state.threads, |_, _| true);
        state.end = snapshot.end.filter(|end| end.time_ns <= at_ns);
        match state.end {
            None => state.freed_after_end = Allocations::default(),
            Some(_) => {
                let still: std::collections::HashSet<_> = state.allocations.iter().map(same).collect();
                state.freed_after_end.retain(|row| !still.contains(&same(row)));
            }
        }
        let rows = [&snapshot.objects, &Allocations::default()];
        state.objects = self.objects.rows_at(at_ns, rows, &mut state.threads, |_, _| true);
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
        state.page_pools.clear();
        state.usage = None;
        state.totals.clear();
        self.memory.count_back(&mut state.counters, &state.allocations, at_ns);
        self.peaks_until(&mut state, snapshot, time_ns)?;
        Ok(state)
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
