//! Reports, diffs and phases, by the library, of what was recorded: they agree with the model and with each other.

use std::collections::BTreeMap;

use culeak::analysis::diff::{self, Diff};
use culeak::analysis::filter::{Filter, Location};
use culeak::analysis::phases::{self, Layer, Phases};
use culeak::analysis::report::{By, Options, Report, Tally};
use culeak::kind::{Kind, Place};
use culeak::snapshot::{Snapshot, Total};
use culeak::timeline::Timeline;

use super::{same, site};
use crate::support::model::{Model, Phase, Point, Record};

fn tally<'a>(records: impl Iterator<Item = &'a Record>) -> Tally {
    records.fold(Tally::default(), |mut sum, record| {
        sum.add(record.bytes);
        sum
    })
}

fn report<'a>(snapshot: &'a Snapshot, by: By, filter: Filter) -> Report<'a> {
    let options = Options {
        by,
        filter,
        ..Options::default()
    };
    Report::of(snapshot, &options)
}

/// Totals of reports, by what they sum up and whatever is selected.
pub fn reports(snapshot: &Snapshot, point: &Point, is_thorough: bool, what: &str) {
    let whole = report(snapshot, By::Site, Filter::default());
    let held = point.held();
    let of_place = |place: Place| tally(held.iter().copied().filter(|record| record.kind.place() == place));
    let expected = [Place::Within, Place::Device, Place::Managed, Place::Host].map(of_place);
    let totals = &whole.totals;
    let of_report = [
        totals.held.blocks,
        totals.held.device,
        totals.held.managed,
        totals.held.host,
    ];
    same!(
        of_report,
        expected,
        "{what}: held blocks, device memory, managed and host memory"
    );
    let mut claims: BTreeMap<&str, u64> = BTreeMap::new();
    for record in point.live.iter().filter(|record| record.kind.place() == Place::Nowhere) {
        *claims.entry(record.kind.name()).or_default() += 1;
    }
    // Mappings in which blocks lie are listed as little as other memory behind blocks.
    let claims_of_report: BTreeMap<&str, u64> = totals.claims.clone();
    same!(claims_of_report, claims, "{what}: claims");
    let of_memory = |sums: &dyn Fn(&crate::support::model::Sums) -> u64| -> u64 {
        let all = point.sums.iter().filter(|((_, kind), _)| kind.place().is_memory());
        all.map(|(_, of)| sums(of)).sum()
    };
    same!(
        (totals.allocated, totals.freed),
        (of_memory(&|of| of.total_count), of_memory(&|of| of.freed_count)),
        "{what}: allocated and freed"
    );
    all_parts(snapshot, Tally::total(expected), is_thorough, what);
}

/// The rows by anything, and the values of any filter, add up to all memory that is held. Not thorough: by one thing only.
fn all_parts(snapshot: &Snapshot, all: Tally, is_thorough: bool, what: &str) {
    let several = [
        By::Site,
        By::Stack,
        By::Kind,
        By::Device,
        By::Stream,
        By::Thread,
        By::Api,
        By::File,
        By::PythonLine,
        By::Library,
        By::Category,
        By::Size,
    ];
    let chosen = (snapshot.taken.at_ns % several.len() as u64) as usize;
    let several = if is_thorough {
        &several[..]
    } else {
        &several[chosen..=chosen]
    };
    for &by in several {
        let rows = report(snapshot, by, Filter::default());
        let sum = Tally::total(
            rows.rows
                .iter()
                .map(|row| Tally::new(row.bytes, row.count - row.claims))
                .chain([rows.hidden]),
        );
        // Sampled stacks are estimates.
        if snapshot.sampling.is_none() || !by.is_of_stacks() {
            same!(sum, all, "{what}: the rows by {by:?}");
        }
        same!(rows.totals.held.total(), all, "{what}: the total by {by:?}");
    }
    if !is_thorough {
        return;
    }
    // What a filter lets through and what it leaves out are all there is, as are all its values together.
    let held_by = |filter: Filter| report(snapshot, By::Site, filter).totals.held.total();
    let parts = |filters: &[Filter]| Tally::total(filters.iter().cloned().map(held_by));
    let kinds: Vec<Filter> = Kind::of_memory().map(|kind| Filter::of_kinds(&[kind])).collect();
    same!(parts(&kinds), all, "{what}: the parts by kind");
    let place = |device: Location| Filter {
        devices: vec![device],
        ..Filter::default()
    };
    let places = [Location::Host, Location::Gpu(0), Location::Gpu(1)].map(place);
    same!(parts(&places), all, "{what}: the parts by device");
    let filtered = report(snapshot, By::Kind, Filter::of_kinds(&[Kind::Device, Kind::HostPinned]));
    let left_out = filtered
        .filter
        .as_ref()
        .map_or(Tally::default(), |filter| filter.left_out);
    same!(
        Tally::total([filtered.totals.held.total(), left_out]),
        all,
        "{what}: a filter and what it leaves out"
    );
}

/// Differences between two points.
pub fn diffs(before: &Snapshot, after: &Snapshot, points: [&Point; 2], what: &str) {
    let options = diff::Options {
        by: By::Site,
        ..diff::Options::default()
    };
    let diff = Diff::of(before, after, &options);
    // Claims count too.
    let claims = |point: &Point| {
        point
            .live
            .iter()
            .filter(|record| record.kind.place() == Place::Nowhere)
            .count() as u64
    };
    let [old, new] = points.map(|point| {
        let held = tally(point.held().into_iter());
        Tally::new(held.bytes, held.count + claims(point))
    });
    same!(
        [diff.totals.before, diff.totals.after],
        [old, new],
        "{what}: before and after"
    );
    let delta = (
        i128::from(new.bytes) - i128::from(old.bytes),
        i128::from(new.count) - i128::from(old.count),
    );
    same!(
        (diff.totals.bytes_delta, diff.totals.count_delta),
        delta,
        "{what}: the change"
    );
    let rows = diff
        .rows
        .iter()
        .fold((0, 0), |sum, row| (sum.0 + row.bytes_delta, sum.1 + row.count_delta));
    same!(rows, delta, "{what}: the changes of rows");
    let reverse = Diff::of(after, before, &options);
    same!(
        (-reverse.totals.bytes_delta, -reverse.totals.count_delta),
        delta,
        "{what}: the reverse"
    );
    let none = Diff::of(after, after, &options);
    assert!(
        none.rows.is_empty(),
        "{what}: a snapshot differs from itself: {:?}",
        none.rows
    );
}

/// Everything that was requested at each site.
pub fn totals(snapshot: &Snapshot, model: &Model) {
    let mut recorded: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    for &Total {
        stack,
        kind,
        device,
        bytes,
        count,
    } in &snapshot.totals
    {
        let device = device.map(|device| snapshot.devices[device].ordinal);
        let sum = recorded.entry((site(snapshot, stack), kind, device)).or_default();
        *sum = (sum.0 + bytes, sum.1 + count);
    }
    let mut modelled: BTreeMap<_, (u64, u64)> = BTreeMap::new();
    let began = model
        .changes
        .iter()
        .filter(|change| !change.is_free)
        .map(|change| &change.record);
    for record in began.filter(|record| record.kind.place().is_memory()) {
        let sum = modelled
            .entry((Some(record.site), record.kind, record.device))
            .or_default();
        *sum = (sum.0 + record.bytes, sum.1 + 1);
    }
    same!(recorded, modelled, "totals by site, kind and device");
}

/// What was live when the memory of a device was at its peak.
pub fn peaks(snapshot: &Snapshot, model: &Model) {
    for (&ordinal, live) in &model.at_peaks {
        let mut recorded: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for at in snapshot.at_peaks.iter().filter(|at| at.kind.place().on_device()) {
            if at.device.map(|device| snapshot.devices[device].ordinal) == Some(ordinal) {
                let sum = recorded
                    .entry((site(snapshot, at.stack), at.kind, at.api.clone()))
                    .or_default();
                *sum = (sum.0 + at.bytes, sum.1 + at.count);
            }
        }
        let mut modelled: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for record in live
            .iter()
            .filter(|record| record.kind.place().on_device() && record.device == Some(ordinal))
        {
            let sum = modelled
                .entry((Some(record.site), record.kind, record.api.to_owned()))
                .or_default();
            *sum = (sum.0 + record.bytes, sum.1 + 1);
        }
        let without_empty = |sums: BTreeMap<_, (u64, u64)>| -> Vec<_> {
            sums.into_iter().filter(|(_, (bytes, _))| *bytes > 0).collect()
        };
        let (recorded, modelled) = (without_empty(recorded), without_empty(modelled));
        same!(recorded, modelled, "live at the peak of GPU {ordinal}");
    }
}

/// What happened in each phase to the memory of each device, as the driver handed it out.
pub fn phases(snapshot: &Snapshot, timeline: &Timeline, model: &Model) {
    let options = phases::Options {
        name: Some("*".to_owned()),
        ..phases::Options::default()
    };
    let phases = Phases::of(snapshot, Some(timeline), &options);
    same!(phases.chosen.len(), model.phases.len(), "phases");
    for (number, (chosen, phase)) in phases.chosen.iter().zip(&model.phases).enumerate() {
        for (series, figures) in phases.series.iter().zip(&chosen.figures) {
            let Some(Location::Gpu(ordinal)) = series.location else {
                continue;
            };
            let Some(modelled) = of_phase(model, phase, series.layer, ordinal) else {
                continue;
            };
            let recorded = [
                Tally::new(figures.held_at_begin, 0),
                Tally::new(figures.held_at_end, 0),
                Tally::new(figures.high_water, 0),
                figures.allocated,
                figures.freed,
                figures.freed_within,
                figures.left_behind,
            ];
            same!(
                recorded,
                modelled,
                "phase {number} ({}), {series:?}: held at begin and end, high water, allocated, freed, freed within, left behind",
                phase.name
            );
        }
    }
}

/// Held at begin and end, high water, allocated, freed, freed within, left behind; `None`: not of this layer.
pub fn of_phase(model: &Model, phase: &Phase, layer: Layer, ordinal: i32) -> Option<[Tally; 7]> {
    let counts = |record: &Record| match layer {
        Layer::Driver => record.kind.place().on_device() && record.device == Some(ordinal),
        _ => record.kind == Kind::Block && record.device == Some(ordinal),
    };
    let end = phase.end.unwrap_or(model.changes.len());
    matches!(layer, Layer::Driver | Layer::Blocks).then(|| figures_of(model, phase.begin, end, counts))
}

fn figures_of(model: &Model, begin: usize, end: usize, counts: impl Fn(&Record) -> bool) -> [Tally; 7] {
    let (mut held, mut at_begin, mut high) = (0, 0, 0);
    let [mut allocated, mut freed, mut within] = [Tally::default(); 3];
    let mut inside: Vec<&Record> = Vec::new();
    for (number, change) in model.changes[..end].iter().enumerate() {
        if number == begin {
            (at_begin, high) = (held, held);
        }
        let record = &change.record;
        if !counts(record) {
            continue;
        }
        if change.is_free {
            held -= record.bytes;
        } else {
            held += record.bytes;
        }
        if number < begin {
            continue;
        }
        high = high.max(held);
        if !change.is_free {
            allocated.add(record.bytes);
            inside.push(record);
            continue;
        }
        freed.add(record.bytes);
        if let Some(own) = inside.iter().position(|other| other.is(record)) {
            inside.remove(own);
            within.add(record.bytes);
        }
    }
    if begin >= end {
        (at_begin, high) = (held, held);
    }
    [
        Tally::new(at_begin, 0),
        Tally::new(held, 0),
        Tally::new(high, 0),
        allocated,
        freed,
        within,
        tally(inside.into_iter()),
    ]
}
