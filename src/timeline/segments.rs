//! What the kernel driver had given to the process at a time.
//!
//! Each piece of memory has its events in the log, as memory of the program has, and its sums are those of a window.

use foldhash::HashMap;

use super::{Event, Log, Op, Site, Timeline};
use crate::kind::{self, Kind};
use crate::snapshot::{Allocations, AtPeak, Counter, Snapshot, Total};
use crate::tally::Tally;

/// The request by which a process opens memory again, or that of another process.
const DUPLICATED: &str = "NV_ESC_RM_DUP_OBJECT";

/// Device and kind.
type Place = (Option<usize>, Kind);

impl Timeline {
    /// Sets the segments of `state` to those at `at_ns`, and their sums and peaks to those up to then. `snapshot` is the final
    /// state.
    pub(super) fn segments_at(&self, state: &mut Snapshot, snapshot: &Snapshot, at_ns: u64) {
        let log = &self.segments;
        // Whether a duplicate that is gone was one of another process's memory is not in the log.
        let takes_memory = |site: &Site, event: &Event| event.bytes > 0 || site.api != DUPLICATED;
        let last = [&snapshot.segments, &Allocations::default()];
        state.segments = log.rows_at(at_ns, last, &mut state.threads, takes_memory);
        state.segments_freed_after_end = Allocations::default();
        let is_object = |counter: &Counter| counter.kind.place() == kind::Place::Object;
        let (mut objects, mut segments): (Vec<Counter>, Vec<Counter>) = std::mem::take(&mut state.object_counters)
            .into_iter()
            .partition(is_object);
        self.objects.count_back(&mut objects, &state.objects, at_ns);
        for counter in &mut objects {
            counter.total_count = counter.total_count.max(counter.live_count);
            counter.freed_count = counter.total_count - counter.live_count;
        }
        log.count_back(&mut segments, &state.segments, at_ns);
        let is_later = |counter: &Counter| counter.peak_ns > at_ns;
        if segments.iter().any(is_later) {
            let sums = log.sums_between(&snapshot.segments, self.since_ns, at_ns);
            for counter in segments.iter_mut().filter(|counter| is_later(counter)) {
                let mut sums = sums.iter();
                let sum = sums.find(|sum| (sum.device, sum.kind) == (counter.device, Some(counter.kind)));
                (counter.peak_bytes, counter.peak_ns) =
                    sum.map_or((0, self.since_ns), |sum| (sum.peak_bytes, sum.peak_ns));
                if counter.kind == Kind::Segment {
                    state.segments_at_peaks.retain(|sum| sum.device != counter.device);
                    let at_peak = sum.into_iter().flat_map(|sum| &sum.at_peak);
                    state.segments_at_peaks.extend(at_peak.cloned());
                }
            }
            state.segments_at_peaks.sort_by(AtPeak::by_size);
        }
        state.segment_totals = log.totals_until(&snapshot.segment_totals, at_ns);
        let used = |counter: &Counter| (counter.total_count, counter.failed_count) != (0, 0);
        state.object_counters = objects.into_iter().chain(segments).filter(used).collect();
    }
}

impl Log {
    /// The totals by stack without the events after `at_ns`.
    fn totals_until(&self, totals: &[Total], at_ns: u64) -> Vec<Total> {
        let mut later: HashMap<(Option<usize>, Place), Tally> = HashMap::default();
        for event in self.after(at_ns).filter(|event| event.op == Op::Allocated) {
            let site = &self.sites[event.site as usize];
            later
                .entry((site.stack, (site.device, site.kind)))
                .or_default()
                .add(event.bytes);
        }
        let until = totals.iter().map(|total| {
            let later = later.get(&(total.stack, (total.device, total.kind)));
            let later = later.copied().unwrap_or_default();
            Total {
                bytes: total.bytes.saturating_sub(later.bytes),
                count: total.count.saturating_sub(later.count),
                ..*total
            }
        });
        until.filter(|total| total.count > 0).collect()
    }
}
