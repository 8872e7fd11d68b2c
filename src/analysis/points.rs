//! Points in time: what a process held at its end and at its exit, and the call sites of its peaks.
//!
//! A report shows the rows of one point and states the sums of the others. They are computed from the whole snapshot,
//! before [`Snapshot::at`] reduces it to one point. A byte counts once, as in a report's totals (see `groups`). Peaks are
//! an exception: each level has its own peak, at its own instant, so a device's peak includes the pools that tensors lie in.
//!
//! Deliberately absent: filters and suppressions, which do not apply to these sums.

use std::cmp::Reverse;
use std::collections::HashSet;

use serde::Serialize;

use crate::analysis::estimate::Errors;
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::report::{By, Row, Tally, place_name, rows_by};
use crate::analysis::site::{CallStacks, Fingerprint};
use crate::analysis::words;
use crate::kind::{Kind, Place};
use crate::point::Point;
use crate::snapshot::{EndOf, Phase, ProcessState, Snapshot};

/// Sums at the end, at exit and at the peaks.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Points {
    /// The end of the program's own work; `None` if it has none, or the snapshot shows another point.
    pub end: Option<AtEnd>,
    /// The last state: at exit, or when the snapshot was taken; `None` if the snapshot shows another point.
    pub exit: Option<AtExit>,
    pub peak: Vec<Peak>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AtEnd {
    pub of: EndOf,
    pub time_ns: u64,
    /// Memory in use, without pools.
    pub held: Tally,
    /// The part of it that was freed afterwards.
    pub freed: Tally,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AtExit {
    pub time_ns: u64,
    /// Memory in use, without pools.
    pub held: Tally,
    /// The part of it that was allocated after the end.
    pub allocated_after_end: Tally,
}

/// The peak of one sum.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Peak {
    /// `GPU 0`, or `host memory`.
    pub place: String,
    /// All memory of the driver on the device, or the kind that the sum is of.
    pub level: &'static str,
    /// Exact.
    pub bytes: u64,
    /// Blocks of all call sites.
    pub count: u64,
    pub time_ns: u64,
    /// The phases that enclose this time, outermost first.
    pub phase: Option<String>,
    /// Bytes of all call sites minus `bytes`: events of other threads at that instant. 0 if stacks were sampled: the sum of
    /// estimates differs by chance.
    pub difference: i128,
    /// The largest call sites; empty if the snapshot lacks them.
    pub sites: Vec<PeakSite>,
    /// The memory of all other call sites, and their number.
    pub others: Tally,
    pub other_sites: usize,
}

/// A call site's memory at a peak.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct PeakSite {
    pub label: String,
    /// File and line.
    pub place: Option<String>,
    pub bytes: u64,
    pub count: u64,
    /// The two numbers are an estimate from sampled stacks; `None`: they are exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated: Option<Errors>,
    /// A caching allocator holds at least a part of it.
    pub pool: bool,
    pub allocator: Option<&'static str>,
    pub library: Option<&'static str>,
    pub site_fingerprint: Fingerprint,
}

/// [`Peak::level`] of all memory of the driver on a device.
pub const DRIVER: &str = "driver";
/// Call sites listed for each peak.
const SITES: usize = 5;

impl Points {
    pub fn of(snapshot: &Snapshot) -> Points {
        let stacks = CallStacks::of(snapshot);
        let groups = Groups::of(snapshot, &stacks);
        Points::with(snapshot, &stacks, &groups)
    }

    /// As [`Points::of`], if the groups of the snapshot are known already.
    pub fn with(snapshot: &Snapshot, stacks: &CallStacks, groups: &Groups) -> Points {
        let held = held(groups);
        let mut points = Points {
            peak: peaks(snapshot, stacks),
            ..Points::default()
        };
        if matches!(snapshot.taken.point, None | Some(Point::Exit)) {
            let time_ns = snapshot.taken.at_ns;
            let later = allocated_after_end(snapshot, stacks, groups);
            points.exit = Some(AtExit {
                time_ns,
                held,
                allocated_after_end: later,
            });
            points.end = at_end(snapshot, stacks, held, later);
        }
        points
    }

    /// What held memory at the end differs from that at exit.
    pub fn changed_after_end(&self) -> bool {
        match (&self.end, &self.exit) {
            (Some(end), Some(exit)) => end.freed.count > 0 || end.held != exit.held,
            _ => false,
        }
    }
}

fn held(groups: &Groups) -> Tally {
    let held = groups.all.iter().filter(|group| group.level == Level::Held);
    Tally::total(held.map(Group::tally))
}

fn allocated_after_end(snapshot: &Snapshot, stacks: &CallStacks, groups: &Groups) -> Tally {
    let Some(end) = snapshot.end else {
        return Tally::default();
    };
    let later = snapshot.allocations.iter().filter(|row| row.time_ns > end.time_ns);
    let held = later.filter(|row| groups.level(row, stacks) == Level::Held);
    Tally::total(held.map(|row| Tally::new(row.bytes, 1)))
}

/// `at_exit`: memory in use at exit; `later`: the part of it that was allocated after the end.
fn at_end(snapshot: &Snapshot, stacks: &CallStacks, at_exit: Tally, later: Tally) -> Option<AtEnd> {
    let end = snapshot.end?;
    // There may be millions of rows, and nearly all programs free nothing after the end.
    if snapshot.freed_after_end.is_empty() {
        return Some(AtEnd {
            of: end.of,
            time_ns: end.time_ns,
            held: at_exit.less(later),
            freed: Tally::default(),
        });
    }
    let view = snapshot.at(&Point::End).ok()?;
    let groups = Groups::of(&view, stacks);
    let mut freed = Tally::default();
    for allocation in &snapshot.freed_after_end {
        if groups.level(&allocation, stacks) == Level::Held {
            freed.add(allocation.bytes);
        }
    }
    Some(AtEnd {
        of: end.of,
        time_ns: end.time_ns,
        held: held(&groups),
        freed,
    })
}

/// The peaks of devices, then those of frameworks' blocks, then those of host memory.
fn peaks(snapshot: &Snapshot, stacks: &CallStacks) -> Vec<Peak> {
    let sum = |device, kind, bytes, time_ns| PeakSum {
        device,
        kind,
        bytes,
        time_ns,
    };
    let of_devices = snapshot.device_peaks.iter().filter(|peak| peak.peak_bytes > 0);
    let of_devices = of_devices.map(|peak| sum(Some(peak.device), None, peak.peak_bytes, peak.time_ns));
    let counters = snapshot.counters.iter().filter(|counter| counter.peak_bytes > 0);
    let of_kinds = counters.filter(|counter| matches!(counter.kind.place(), Place::Within | Place::Host));
    let of_kinds = of_kinds.map(|of| sum(of.device, Some(of.kind), of.peak_bytes, of.peak_ns));
    let mut sums: Vec<PeakSum> = of_devices.chain(of_kinds).collect();
    sums.sort_by_key(|sum| {
        let place = sum.kind.map_or(Place::Device, Kind::place);
        let ordinal = sum.device.map(|device| snapshot.devices[device].ordinal);
        (place == Place::Host, ordinal, place, Reverse(sum.bytes))
    });
    if snapshot.at_peaks.is_empty() {
        return sums.into_iter().map(|sum| sum.peak(snapshot, Vec::new())).collect();
    }
    // Whichever point the snapshot shows, its memory at the peaks is the same. The stacks are those of the snapshot.
    let tables = Snapshot {
        devices: snapshot.devices.clone(),
        contexts: snapshot.contexts.clone(),
        threads: snapshot.threads.clone(),
        counters: snapshot.counters.clone(),
        allocators: snapshot.allocators.clone(),
        domains: snapshot.domains.clone(),
        sampling: snapshot.sampling,
        at_peaks: snapshot.at_peaks.clone(),
        ..Snapshot::empty()
    };
    let Ok(view) = tables.into_at(&Point::Peak) else {
        return Vec::new();
    };
    let groups = Groups::of(&view, stacks).by_stack();
    let of_sum = |sum: PeakSum| {
        let members = groups.all.iter().filter(|group| sum.includes(group));
        let rows = rows_by(&view, stacks, members, By::Site);
        sum.peak(snapshot, rows)
    };
    sums.into_iter().map(of_sum).collect()
}

/// A sum that has a peak: all memory on a device, or one kind.
struct PeakSum {
    device: Option<usize>,
    kind: Option<Kind>,
    bytes: u64,
    time_ns: u64,
}

impl PeakSum {
    fn includes(&self, group: &Group) -> bool {
        let call = group.call;
        call.device == self.device
            && match self.kind {
                Some(kind) => call.kind == kind,
                None => call.kind.place().on_device(),
            }
    }

    fn peak(self, snapshot: &Snapshot, rows: Vec<Row>) -> Peak {
        let all = Tally::total(rows.iter().map(Row::tally));
        let (shown, others) = rows.split_at(rows.len().min(SITES));
        let difference = i128::from(all.bytes) - i128::from(self.bytes);
        Peak {
            place: place_name(snapshot, self.kind.unwrap_or(Kind::Device), self.device),
            level: self.kind.map_or(DRIVER, Kind::name),
            bytes: self.bytes,
            count: all.count,
            time_ns: self.time_ns,
            phase: phase_at(&snapshot.phases, self.time_ns),
            difference: match rows.is_empty() || snapshot.sampling.is_some() {
                true => 0,
                false => difference,
            },
            sites: shown.iter().map(PeakSite::of).collect(),
            others: Tally::total(others.iter().map(Row::tally)),
            other_sites: others.len(),
        }
    }
}

impl PeakSite {
    fn of(row: &Row) -> PeakSite {
        let stack = row.stacks.first().map(|stack| &stack.stack);
        PeakSite {
            label: row.label.clone(),
            place: row.site().and_then(|site| site.short_place()),
            bytes: row.bytes,
            count: row.count,
            estimated: row.estimated,
            pool: row.pool,
            allocator: row.allocator,
            library: row.library,
            site_fingerprint: stack.map_or(Fingerprint(0), |stack| stack.site_fingerprint),
        }
    }
}

/// The innermost phase that encloses a time, and the phases around it: `epoch 3 / backward`. Of several threads, the one
/// whose phase began last.
fn phase_at(phases: &[Phase], time_ns: u64) -> Option<String> {
    let encloses = |phase: &Phase| phase.begin_ns <= time_ns && phase.end_ns.is_none_or(|end| time_ns <= end);
    let enclosing = phases.iter().enumerate().filter(|(_, phase)| encloses(phase));
    let mut at = enclosing.max_by_key(|(number, phase)| (phase.begin_ns, *number))?.0;
    let mut names = Vec::new();
    let mut seen = HashSet::new();
    while seen.insert(at) {
        names.push(phases[at].name.as_str());
        match phases[at].parent {
            Some(parent) => at = parent,
            None => break,
        }
    }
    names.reverse();
    Some(names.join(" / "))
}

/// The point that a snapshot shows, in words: `when the script ended`. `None`: its last state, which it left by itself.
pub fn when(snapshot: &Snapshot) -> Option<String> {
    if snapshot.taken.after_ns.is_some() {
        return Some("at the end of the window".to_owned());
    }
    let of = snapshot.end.map(|end| end.of);
    let is_cut_off = snapshot.process.state == ProcessState::Ended && snapshot.taken.automatic.is_none();
    Some(match snapshot.taken.point.as_ref().unwrap_or(&Point::Exit) {
        Point::Exit if is_cut_off => "when the process ended".to_owned(),
        Point::Exit => return None,
        Point::End => match of {
            Some(EndOf::Script) => "when the script ended".to_owned(),
            Some(EndOf::Main) => "when main returned".to_owned(),
            None => "when the process ended".to_owned(),
        },
        Point::Peak => "at the peak".to_owned(),
        Point::Mark(name) => format!("at the mark {name}"),
        Point::Time(ns) => format!("{} after the start", words::duration(*ns)),
    })
}

/// The points that the rows of a snapshot show. A process without an end has its last state as its end.
pub fn shown_points(snapshot: &Snapshot) -> Vec<Point> {
    match &snapshot.taken.point {
        None | Some(Point::Exit | Point::End) if snapshot.end.is_none() => vec![Point::End, Point::Exit],
        None => vec![Point::Exit],
        Some(point) => vec![point.clone()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{MIB, leaky, shut_down};

    #[test]
    fn the_end_is_what_was_freed_and_what_was_not() {
        let points = Points::of(&shut_down());
        let (end, exit) = (points.end.expect("an end"), points.exit.expect("an exit"));
        let tally = |bytes, count| Tally { bytes, count };
        assert_eq!(end.held, tally(42 * MIB, 4));
        assert_eq!(end.freed, tally(8 * MIB, 2));
        // One more block was allocated after the end.
        assert_eq!(exit.held, tally(35 * MIB, 3));
        assert_eq!(exit.allocated_after_end, tally(MIB, 1));
        assert!(points.changed_after_end());
        assert!(!Points::of(&leaky()).changed_after_end());
    }

    #[test]
    fn each_level_has_its_peak_with_call_sites_time_and_phase() {
        let snapshot = shut_down();
        let points = Points::of(&snapshot);
        let levels: Vec<_> = points
            .peak
            .iter()
            .map(|peak| (peak.place.as_str(), peak.level))
            .collect();
        assert_eq!(
            levels,
            [("GPU 0", "driver"), ("GPU 0", "tensor"), ("host memory", "pinned")]
        );
        let [driver, tensors, pinned] = &points.peak[..] else {
            panic!("{points:?}")
        };
        assert_eq!((driver.bytes, driver.count, driver.difference), (64 * MIB, 8, 0));
        assert_eq!(
            driver.sites.iter().map(|site| site.bytes).collect::<Vec<_>>(),
            [32 * MIB, 20 * MIB, 12 * MIB]
        );
        assert_eq!(driver.phase.as_deref(), Some("epoch 3 / backward"));
        assert!(driver.sites[1].pool, "the segment of the tensors");
        assert_eq!((tensors.bytes, tensors.difference), (12 * MIB, -4096));
        assert_eq!((pinned.bytes, pinned.count, pinned.difference), (MIB, 0, 0));
        assert_eq!(points.peak, Points::of(&snapshot.at(&Point::End).expect("an end")).peak);
        assert_eq!(
            points.peak,
            Points::of(&snapshot.at(&Point::Peak).expect("a peak")).peak
        );
    }

    #[test]
    fn phases_that_refer_to_themselves_end() {
        let mut snapshot = shut_down();
        snapshot.phases[0].parent = Some(1);
        assert_eq!(
            phase_at(&snapshot.phases, 40_000_000_000).as_deref(),
            Some("epoch 3 / backward")
        );
        assert_eq!(phase_at(&snapshot.phases, 60_000_000_000), None);
    }
}
