//! Compares the recording of each instant with the model before and after the line that the process was running.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use culeak::format::{HEADER_BYTES, Section};
use culeak::reader;
use culeak::snapshot::Snapshot;
use culeak::timeline::Timeline;

use super::trace::Trace;
use crate::model::compare::{Row, compare_point, is_memory, modelled_row, row, sorted};
use crate::model::faults::is_exhaustive;
use crate::model::{Mode, models, not_recorded, site};
use crate::support::invariants;
use crate::support::model::{Model, Sums};
use crate::support::profile::folder;
use crate::support::script::Script;

/// What was compared.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) processes: usize,
    /// Instants without a complete header.
    pub(super) unfinished: usize,
    pub(super) complete: usize,
    /// Those that lack something of the line, or say that a call is under way.
    pub(super) under_way: usize,
    /// Sections that got another extent.
    pub(super) grew: Vec<Section>,
    /// Events of the log were overwritten.
    pub(super) wrapped: usize,
    /// The most allocations that a recording says it lost.
    pub(super) lost: u64,
}

/// Compares what was seen with what the model says.
pub(super) fn compare(script: &Script, mode: Mode, trace: Trace) -> Counts {
    let folder = folder();
    let mut nth = 0usize;
    let mut counts = Counts::default();
    let mut seen = trace.seen;
    let lines: BTreeSet<(u32, usize)> = seen
        .iter()
        .flat_map(|(pid, seen)| seen.instants.iter().map(|instant| (*pid, instant.answered)))
        .collect();
    let paths: BTreeMap<u32, (PathBuf, File)> = seen
        .keys()
        .map(|pid| {
            let path = folder.path().join(format!("killed-{pid}.culeak"));
            let file = File::create(&path).expect("created");
            (*pid, (path, file))
        })
        .collect();
    let mut until = |pid: u32, answered: usize, before: &Model, after: &Model| {
        let Some(of_process) = seen.get_mut(&pid) else { return };
        let (path, file) = &paths[&pid];
        let mut extents = 0;
        while of_process
            .instants
            .front()
            .is_some_and(|instant| instant.answered < answered)
        {
            let instant = of_process.instants.pop_front().expect("there is one");
            file.set_len(instant.length).expect("set");
            file.write_all_at(&instant.bytes, instant.offset).expect("written");
            // With a full log it takes half a second to read a file: of those, some.
            nth += 1;
            let is_large = instant.length > 4 << 20 && !is_exhaustive();
            if is_large && !nth.is_multiple_of(8) {
                continue;
            }
            let what = format!(
                "{mode:?}, process {pid}, line {}, a store at {:#x} of {} bytes",
                instant.answered + 1,
                instant.offset,
                instant.bytes.len()
            );
            let read = match mode {
                Mode::Logged if !is_large || nth.is_multiple_of(32) => reader::read_timeline(path),
                _ => reader::read(path).map(|snapshot| (snapshot, None)),
            };
            let (snapshot, timeline) = read.unwrap_or_else(|error| panic!("{what}: {error}"));
            counts.complete += 1;
            counts.under_way += match trace.is_full {
                true => usize::from(check_lost(&snapshot, [before, after], &what)),
                false => usize::from(check(&snapshot, [before, after], mode, &what)),
            };
            counts.lost = counts.lost.max(snapshot.losses.lost_allocations);
            if let Some(timeline) = timeline {
                counts.wrapped += usize::from(timeline.since_ns > 0);
                check_log(&snapshot, &timeline, [before, after], &what);
            }
            let mut header = vec![0; HEADER_BYTES];
            File::open(path)
                .and_then(|file| file.read_exact_at(&mut header, 0))
                .expect("a header");
            let now: Vec<_> = culeak::format::extents(&header).collect();
            if extents > 0 {
                let new = now.iter().skip(extents).filter(|extent| extent.number > 0);
                counts
                    .grew
                    .extend(new.filter_map(|extent| Section::from_number(extent.section)));
            }
            extents = now.len();
        }
    };
    // Before the line that a process runs, if it was seen in it.
    let mut before: BTreeMap<u32, (usize, Option<Model>)> = BTreeMap::new();
    let last = models(script, &trace.answers, |pid, model| {
        let (answered, earlier) = before
            .remove(&pid)
            .map_or((0, None), |(answered, model)| (answered + 1, model));
        if let Some(earlier) = earlier {
            until(pid, answered, &earlier, model);
        }
        let is_seen = lines.contains(&(pid, answered));
        before.insert(pid, (answered, is_seen.then(|| model.clone())));
    });
    for (pid, model) in &last {
        until(*pid, usize::MAX, model, model);
    }
    counts.processes = seen.len();
    for (pid, seen) in &seen {
        assert!(
            seen.instants.is_empty(),
            "a process that the script does not have: {pid}"
        );
        counts.unfinished += seen.unfinished;
    }
    println!("{counts:?}");
    counts
}

/// What is in both, each as often as in both.
fn common<T: Clone + PartialEq>(these: &[T], those: &[T]) -> Vec<T> {
    let mut those = those.to_vec();
    let taken = |one: &&T| {
        let at = those.iter().position(|other| other == *one);
        at.map(|at| those.swap_remove(at)).is_some()
    };
    these.iter().filter(taken).cloned().collect()
}

/// What is in `these` and not in `those`.
fn without<T: Clone + PartialEq>(these: &[T], those: &[T]) -> Vec<T> {
    let mut those = those.to_vec();
    let is_left = |one: &&T| {
        let at = those.iter().position(|other| other == *one);
        at.map(|at| those.swap_remove(at)).is_none()
    };
    these.iter().filter(is_left).cloned().collect()
}

/// Compares the recording of an instant with the model before and after the line. Returns whether a call was under way.
fn check(snapshot: &Snapshot, [before, after]: [&Model; 2], mode: Mode, what: &str) -> bool {
    invariants::check(snapshot, false);
    let with_sites = mode != Mode::Sampled;
    let live = |model: &Model, memory: bool| -> Vec<Row> {
        let records = model.live.iter().filter(|record| is_memory(record) == memory);
        sorted(records.map(|record| modelled_row(record, with_sites)))
    };
    let recorded = [
        sorted(snapshot.allocations.iter().map(|each| row(snapshot, &each, with_sites))),
        sorted(snapshot.objects.iter().map(|each| row(snapshot, &each, with_sites))),
    ];
    let (mut missing, mut is_half) = (0, false);
    for (rows, memory) in recorded.iter().zip([true, false]) {
        let (old, new) = (live(before, memory), live(after, memory));
        let both = common(&old, &new);
        let invented = without(&without(rows, &old), &new);
        assert!(invented.is_empty(), "{what}: not in the model: {invented:?}");
        let gone = without(&both, rows);
        missing += gone.len();
        assert!(
            missing as u64 <= snapshot.taken.in_flight,
            "{what}: not in the recording: {gone:?}, {} in flight",
            snapshot.taken.in_flight
        );
        is_half |= *rows != new;
    }
    let device = |device: Option<usize>| device.map(|device| snapshot.devices[device].ordinal);
    for counter in snapshot.counters.iter().chain(&snapshot.object_counters) {
        let key = (device(counter.device), counter.kind);
        let of = |model: &Model| model.sums.get(&key).copied().unwrap_or_default();
        let (old, new) = (of(before), of(after));
        // A free that is under way counts, and fails or not.
        let in_flight = snapshot.taken.in_flight;
        let field = |name: &str, recorded: u64, of: fn(&Sums) -> u64| {
            let range = of(&old)..=of(&new) + if name == "frees" { in_flight } else { 0 };
            assert!(
                range.contains(&recorded),
                "{what}: {name} of {key:?}: {recorded}, not in {range:?}"
            );
        };
        field("all bytes", counter.total_bytes, |sums| sums.total_bytes);
        field("allocations", counter.total_count, |sums| sums.total_count);
        field("frees", counter.freed_count, |sums| sums.freed_count);
        field("failures", counter.failed_count, |sums| sums.failed_count);
        field("peak", counter.peak_bytes, |sums| sums.peak_bytes);
    }
    // A sum without a counter is one of nothing yet.
    for (key, old) in before.sums.iter().filter(|(_, sums)| **sums != Sums::default()) {
        let counters = snapshot.counters.iter().chain(&snapshot.object_counters);
        let is_there = counters
            .into_iter()
            .any(|counter| (device(counter.device), counter.kind) == *key);
        assert!(is_there, "{what}: no counter of {key:?}, {old:?}");
    }
    for peak in &snapshot.device_peaks {
        let of = |model: &Model| {
            let ordinal = snapshot.devices[peak.device].ordinal;
            model.devices.get(&ordinal).map_or(0, |(_, peak)| *peak)
        };
        let range = of(before)..=of(after);
        assert!(
            range.contains(&peak.peak_bytes),
            "{what}: peak {}, not in {range:?}",
            peak.peak_bytes
        );
    }
    let marks: Vec<&str> = snapshot.marks.iter().map(|mark| &*mark.name).collect();
    let named = |model: &Model| -> bool { model.marks.iter().map(|mark| &*mark.name).eq(marks.iter().copied()) };
    assert!(named(before) || named(after), "{what}: marks {marks:?}");
    let phases: Vec<_> = snapshot
        .phases
        .iter()
        .map(|phase| (phase.name.clone(), phase.parent, phase.end_ns.is_some()))
        .collect();
    let modelled = |model: &Model| -> Vec<_> {
        let of = model.phases.iter();
        of.map(|phase| (phase.name.clone(), phase.parent, phase.end.is_some()))
            .collect()
    };
    assert!(
        phases == modelled(before) || phases == modelled(after),
        "{what}: phases {phases:?}, modelled {:?} and {:?}",
        modelled(before),
        modelled(after)
    );
    let mut failed = BTreeMap::new();
    for request in &snapshot.failed {
        let site = site(snapshot, request.stack).unwrap_or(99);
        let key = (site, request.kind, device(request.device), request.bytes, request.error);
        *failed.entry(key).or_insert(0) += request.count;
    }
    for (key, count) in &failed {
        let of = |model: &Model| model.failed.get(key).copied().unwrap_or(0);
        let range = of(before)..=of(after);
        assert!(
            range.contains(count),
            "{what}: failed {key:?}: {count}, not in {range:?}"
        );
    }
    for (key, count) in &before.failed {
        assert!(
            failed.get(key).copied().unwrap_or(0) >= *count,
            "{what}: failed {key:?} is gone"
        );
    }
    let lost = &snapshot.losses;
    assert_eq!(not_recorded(snapshot), [0; 7], "{what}: losses");
    // Pools of pages and their owners, and functions without a hook.
    let names = |model: &Model| -> Vec<String> {
        let pools = model.page_pools.iter();
        let pools = pools.flat_map(|pool| [pool].into_iter().chain(&pool.owners));
        pools.map(|of| of.name.clone()).chain(model.unhooked.clone()).collect()
    };
    let named = snapshot.page_pools.iter().flat_map(|pool| {
        let owners = pool.owners.iter().map(|owner| &owner.name);
        [&pool.domain].into_iter().chain(owners)
    });
    let named: Vec<String> = named.chain(&lost.unhooked).cloned().collect();
    let (old, new) = (names(before), names(after));
    let invented = without(&without(&named, &old), &new);
    let gone = without(&common(&old, &new), &named);
    assert!(
        invented.is_empty() && gone.is_empty(),
        "{what}: pools, owners and functions: not in the model {invented:?}, not in the recording {gone:?}"
    );
    let of_model = |model: &Model| {
        let losses = &model.losses;
        [
            losses.failed_frees,
            losses.unknown_frees,
            losses.unknown_blocks,
            losses.implicit_frees,
            losses.vanished,
        ]
    };
    let counted = [
        lost.failed_frees,
        lost.unknown_frees,
        lost.unknown_blocks,
        lost.implicit_frees,
        lost.vanished,
    ];
    let ranges = of_model(before).into_iter().zip(of_model(after));
    let fits = counted
        .iter()
        .zip(ranges)
        .all(|(count, (old, new))| (old..=new).contains(count));
    assert!(
        fits,
        "{what}: frees: {counted:?}, modelled {:?} and {:?}",
        of_model(before),
        of_model(after)
    );
    snapshot.taken.in_flight > 0 || is_half
}

/// Without room for another extent, what is missing is counted as lost, and no more than that. Of a script without frees.
fn check_lost(snapshot: &Snapshot, [before, after]: [&Model; 2], what: &str) -> bool {
    invariants::check(snapshot, false);
    let live = |model: &Model| {
        sorted(
            model
                .live
                .iter()
                .filter(is_memory)
                .map(|record| modelled_row(record, false)),
        )
    };
    let (old, new) = (live(before), live(after));
    let rows = sorted(snapshot.allocations.iter().map(|each| row(snapshot, &each, false)));
    let invented = without(&rows, &new);
    assert!(invented.is_empty(), "{what}: not in the model: {invented:?}");
    let (lost, in_flight) = (snapshot.losses.lost_allocations, snapshot.taken.in_flight);
    let gone = without(&old, &rows).len() as u64;
    let missing = gone..=without(&new, &rows).len() as u64;
    assert!(
        gone <= lost + in_flight && lost <= *missing.end(),
        "{what}: {missing:?} are missing, {lost} counted, {in_flight} in flight"
    );
    in_flight > 0
}

/// The log of an instant has the past as it was, and ends with what is live.
fn check_log(snapshot: &Snapshot, timeline: &Timeline, [before, after]: [&Model; 2], what: &str) {
    // The event of a call that is under way.
    assert!(timeline.lost <= 1, "{what}: {} events", timeline.lost);
    // While a free is under way, its record is no row any more, and the log may not have it yet.
    let is_whole = snapshot.taken.in_flight == 0;
    let marks = snapshot.marks.iter().zip(&before.marks).rev().filter(|_| is_whole);
    for (mark, point) in marks.filter(|(mark, _)| mark.time_ns >= timeline.since_ns).take(1) {
        let state = timeline.state_at(snapshot, mark.time_ns).expect("it is in the log");
        compare_point(&state, point, &format!("{what}: at mark {}", mark.name));
    }
    let logged = timeline
        .state_at(snapshot, snapshot.taken.at_ns)
        .expect("the end is in the log");
    let address = |(kind, address, bytes, ..): &Row| (*kind, address & ((1 << 48) - 1), *bytes);
    let rows = |model: &Model| -> Vec<_> {
        let records = model.live.iter().filter(is_memory);
        records.map(|record| address(&modelled_row(record, false))).collect()
    };
    let (old, new) = (rows(before), rows(after));
    let logged: Vec<_> = logged
        .allocations
        .iter()
        .map(|each| address(&row(&logged, &each, false)))
        .collect();
    let invented: Vec<_> = logged
        .iter()
        .filter(|row| !old.contains(row) && !new.contains(row))
        .collect();
    assert!(
        invented.is_empty(),
        "{what}: live in the log, but not in the model: {invented:?}"
    );
    let both = old.iter().filter(|row| new.contains(row));
    let gone: Vec<_> = both.filter(|row| !logged.contains(row)).collect();
    assert!(
        gone.len() as u64 <= snapshot.taken.in_flight,
        "{what}: not live in the log: {gone:?}"
    );
}
