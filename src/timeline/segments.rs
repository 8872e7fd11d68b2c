//! What the kernel driver had given to the process at a time.
//!
//! Each piece of memory has its events in the log, as memory of the program has. There are few of them, so the sums before
//! each event are found by undoing the later ones, from the final state on.

use super::{Event, Log, Op, Site, Timeline};
use crate::kind::{Kind, Place};
use crate::snapshot::{Allocations, AtPeak, Counter, Snapshot};

/// The request by which a process opens memory again, or that of another process.
const DUPLICATED: &str = "NV_ESC_RM_DUP_OBJECT";

/// The highest sum of a device up to a time.
struct Highest {
    bytes: u64,
    time_ns: u64,
}

impl Timeline {
    /// Sets the segments of `state` to those at `at_ns`, and their sums and peaks to those up to then. `snapshot` is the final
    /// state.
    pub(super) fn segments_at(&self, state: &mut Snapshot, snapshot: &Snapshot, at_ns: u64) {
        let log = &self.segments;
        state.segments = self.segments_then(state, snapshot, at_ns);
        state.segments_freed_after_end = Allocations::default();
        let (objects, segments): (Vec<Counter>, _) =
            (state.object_counters.drain(..)).partition(|counter| counter.kind.place() == Place::Object);
        let (mut objects, mut segments): (_, Vec<Counter>) = (objects, segments);
        self.objects.count_back(&mut objects, &state.objects, at_ns);
        log.count_back(&mut segments, &state.segments, at_ns);
        for counter in segments.iter_mut().filter(|counter| counter.peak_ns > at_ns) {
            let last = snapshot.object_counters.iter();
            let mut last = last.filter(|last| (last.device, last.kind) == (counter.device, counter.kind));
            let last_bytes = last.next().map_or(0, |last| last.live_bytes);
            let highest = log.highest(counter, last_bytes, self.since_ns, at_ns);
            (counter.peak_bytes, counter.peak_ns) = (highest.bytes, highest.time_ns);
            if counter.kind == Kind::Segment {
                state.segments_at_peaks.retain(|sum| sum.device != counter.device);
                let then = self.segments_then(state, snapshot, self.known(highest.time_ns).unwrap_or(at_ns));
                state.segments_at_peaks.extend(sums_of(&then, counter.device));
            }
        }
        state.segments_at_peaks.sort_by(AtPeak::by_size);
        let mut totals = std::mem::take(&mut state.segment_totals);
        for event in log.after(at_ns).filter(|event| event.op == Op::Allocated) {
            let site = &log.sites[event.site as usize];
            let mut same = totals.iter_mut();
            let same =
                same.find(|total| (total.stack, total.kind, total.device) == (site.stack, site.kind, site.device));
            if let Some(total) = same {
                total.bytes = total.bytes.saturating_sub(event.bytes);
                total.count = total.count.saturating_sub(1);
            }
        }
        totals.retain(|total| total.count > 0);
        state.segment_totals = totals;
        let used = |counter: &Counter| (counter.total_count, counter.failed_count) != (0, 0);
        state.object_counters = objects.into_iter().chain(segments).filter(used).collect();
    }

    fn segments_then(&self, state: &mut Snapshot, snapshot: &Snapshot, at_ns: u64) -> Allocations {
        // Whether a duplicate that is gone was one of another process's memory is not in the log.
        let takes_memory = |site: &Site, event: &Event| event.bytes > 0 || site.api != DUPLICATED;
        self.segments
            .rows_at(&snapshot.segments, &mut state.threads, at_ns, takes_memory)
    }
}

impl Log {
    /// The highest sum of a counter's memory up to `at_ns`, and when it was reached first. `last_bytes`: the sum in the final
    /// state. The log has no events from before `since_ns`.
    fn highest(&self, counter: &Counter, last_bytes: u64, since_ns: u64, at_ns: u64) -> Highest {
        let mut highest = Highest {
            bytes: 0,
            time_ns: since_ns,
        };
        let mut sum = last_bytes;
        let mut reached = |sum: u64, time_ns: u64| {
            if sum >= highest.bytes && time_ns <= at_ns {
                highest = Highest { bytes: sum, time_ns };
            }
        };
        for event in self.events.iter().rev().map(|event| event.event()) {
            let site = &self.sites[event.site as usize];
            if (site.device, site.kind) != (counter.device, counter.kind) {
                continue;
            }
            reached(sum, event.time_ns);
            sum = match event.op {
                Op::Freed => sum.saturating_add(event.bytes),
                Op::Allocated | Op::Restored => sum.saturating_sub(event.bytes),
            };
        }
        reached(sum, since_ns);
        highest
    }
}

/// The segments of a device by stack.
fn sums_of(segments: &Allocations, device: Option<usize>) -> Vec<AtPeak> {
    let mut sums: Vec<AtPeak> = Vec::new();
    for row in segments
        .iter()
        .filter(|row| row.kind == Kind::Segment && row.device == device)
    {
        let same = |sum: &&mut AtPeak| sum.stack == row.stack && sum.api == row.call.api;
        if let Some(sum) = sums.iter_mut().find(same) {
            sum.bytes = sum.bytes.saturating_add(row.bytes);
            sum.count += 1;
            continue;
        }
        sums.push(AtPeak {
            stack: row.stack,
            kind: row.kind,
            device,
            domain: None,
            api: row.call.api.clone(),
            bytes: row.bytes,
            count: 1,
        });
    }
    sums
}
