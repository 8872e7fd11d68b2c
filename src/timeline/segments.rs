//! What the kernel driver had given to the process at a time.
//!
//! Each piece of memory has its events in the log, as memory of the program has. There are few of them, so the sums before
//! each event are found by undoing the later ones, from the final state on.

use foldhash::HashMap;

use super::{Event, Log, Op, Site, Timeline};
use crate::analysis::tally::Tally;
use crate::kind::{self, Kind};
use crate::snapshot::{Allocation, Allocations, AtPeak, Counter, Snapshot, Total};

/// The request by which a process opens memory again, or that of another process.
const DUPLICATED: &str = "NV_ESC_RM_DUP_OBJECT";

/// Device and kind.
type Place = (Option<usize>, Kind);

/// The highest sum of a place up to a time, and when it was reached first.
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
        if segments.iter().any(|counter| counter.peak_ns > at_ns) {
            let highest = log.highest(&snapshot.object_counters, self.since_ns, at_ns);
            for counter in segments.iter_mut().filter(|counter| counter.peak_ns > at_ns) {
                let Some(highest) = highest.get(&(counter.device, counter.kind)) else {
                    continue;
                };
                (counter.peak_bytes, counter.peak_ns) = (highest.bytes, highest.time_ns);
                if counter.kind == Kind::Segment {
                    state.segments_at_peaks.retain(|sum| sum.device != counter.device);
                    let then_ns = self.known(highest.time_ns).unwrap_or(at_ns);
                    let then = self.segments_then(state, snapshot, then_ns);
                    state.segments_at_peaks.extend(sums_of(&then, counter.device));
                }
            }
            state.segments_at_peaks.sort_by(AtPeak::by_size);
        }
        state.segment_totals = log.totals_until(&snapshot.segment_totals, at_ns);
        let used = |counter: &Counter| (counter.total_count, counter.failed_count) != (0, 0);
        state.object_counters = objects.into_iter().chain(segments).filter(used).collect();
    }

    fn segments_then(&self, state: &mut Snapshot, snapshot: &Snapshot, at_ns: u64) -> Allocations {
        // Whether a duplicate that is gone was one of another process's memory is not in the log.
        let takes_memory = |site: &Site, event: &Event| event.bytes > 0 || site.api != DUPLICATED;
        let last = [&snapshot.segments, &Allocations::default()];
        self.segments.rows_at(at_ns, last, &mut state.threads, takes_memory)
    }
}

impl Log {
    /// The highest sums up to `at_ns`. `last`: the counters of the final state. The log has no events from before `since_ns`.
    fn highest(&self, last: &[Counter], since_ns: u64, at_ns: u64) -> HashMap<Place, Highest> {
        let mut sums: HashMap<Place, (u64, Highest)> = HashMap::default();
        let nothing = || Highest {
            bytes: 0,
            time_ns: since_ns,
        };
        for counter in last {
            sums.insert((counter.device, counter.kind), (counter.live_bytes, nothing()));
        }
        let reached = |(sum, highest): &mut (u64, Highest), time_ns: u64| {
            if *sum >= highest.bytes && time_ns <= at_ns {
                *highest = Highest { bytes: *sum, time_ns };
            }
        };
        for event in self.events().rev() {
            let site = &self.sites[event.site as usize];
            let Some(of_place) = sums.get_mut(&(site.device, site.kind)) else {
                continue;
            };
            reached(of_place, event.time_ns);
            of_place.0 = match event.op {
                Op::Freed => of_place.0.saturating_add(event.bytes),
                Op::Allocated | Op::Restored => of_place.0.saturating_sub(event.bytes),
            };
        }
        for of_place in sums.values_mut() {
            reached(of_place, since_ns);
        }
        sums.into_iter().map(|(place, (_, highest))| (place, highest)).collect()
    }

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

/// The segments of a device by stack.
fn sums_of(segments: &Allocations, device: Option<usize>) -> Vec<AtPeak> {
    let mut sums: HashMap<(Option<usize>, &str), Tally> = HashMap::default();
    let of_device = |row: &Allocation| row.kind == Kind::Segment && row.device == device;
    for row in segments.iter().filter(of_device) {
        sums.entry((row.stack, row.api())).or_default().add(row.bytes);
    }
    let sum = |((stack, api), Tally { bytes, count }): ((Option<usize>, &str), Tally)| AtPeak {
        stack,
        kind: Kind::Segment,
        device,
        domain: None,
        api: api.to_owned(),
        bytes,
        count,
    };
    sums.into_iter().map(sum).collect()
}
