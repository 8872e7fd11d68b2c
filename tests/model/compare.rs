//! Compares a recording with what the model says of its process.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use culeak::kind::Kind;
use culeak::reader;
use culeak::snapshot::{Allocation, Pages, Snapshot, Stream};
use culeak::timeline::Timeline;

use super::{Mode, not_recorded, same, site, views};
use crate::support::model::{Key, Model, Pages as Modelled, Point, Record, Sums};

/// What is compared of something live.
pub type Row = (Kind, u64, u64, u64, Option<i32>, Option<u64>, String, Option<String>);

pub fn row(snapshot: &Snapshot, row: &Allocation, with_site: bool) -> Row {
    let device = row.device.map(|device| snapshot.devices[device].ordinal);
    let site = if with_site { site(snapshot, row.stack) } else { None };
    (
        row.kind,
        row.address,
        row.bytes,
        row.requested,
        device,
        site,
        row.call.api.clone(),
        row.call.domain.clone(),
    )
}

pub fn modelled_row(record: &Record, with_site: bool) -> Row {
    let site = with_site.then_some(record.site);
    (
        record.kind,
        record.address,
        record.bytes,
        record.requested,
        record.device,
        site,
        record.api.to_owned(),
        record.domain.clone(),
    )
}

pub fn sorted<T: Ord>(rows: impl Iterator<Item = T>) -> Vec<T> {
    let mut rows: Vec<T> = rows.collect();
    rows.sort();
    rows
}

/// The differences between two lists, shortened.
pub fn only_in<T: PartialEq + std::fmt::Debug>(these: &[T], those: &[T]) -> String {
    let rows: Vec<&T> = these.iter().filter(|row| !those.contains(row)).take(5).collect();
    format!("{rows:?}")
}

fn same_rows(recorded: &[Row], modelled: &[Row], what: &str) {
    assert!(
        recorded == modelled,
        "{what}\n only recorded: {}\n only in the model: {}",
        only_in(recorded, modelled),
        only_in(modelled, recorded)
    );
}

pub fn is_memory(record: &&Record) -> bool {
    record.kind.place().is_memory()
}

/// The state of a recording at its end.
pub fn compare(snapshot: &Snapshot, model: &Model, mode: Mode) {
    let with_sites = mode != Mode::Sampled;
    same_rows(
        &sorted(snapshot.allocations.iter().map(|each| row(snapshot, &each, with_sites))),
        &sorted(
            model
                .live
                .iter()
                .filter(is_memory)
                .map(|record| modelled_row(record, with_sites)),
        ),
        "live memory",
    );
    same_rows(
        &sorted(snapshot.objects.iter().map(|each| row(snapshot, &each, with_sites))),
        &sorted(
            model
                .live
                .iter()
                .filter(|record| !is_memory(record))
                .map(|record| modelled_row(record, with_sites)),
        ),
        "objects",
    );
    compare_details(snapshot, model);
    let device = |device: Option<usize>| device.map(|device| snapshot.devices[device].ordinal);
    compare_sums(snapshot, &model.sums, &model.devices, true, "at the end");
    let lost = &snapshot.losses;
    let of_model = &model.losses;
    same!(
        [
            lost.failed_frees,
            lost.unknown_frees,
            lost.unknown_blocks,
            lost.implicit_frees,
            lost.vanished
        ],
        [
            of_model.failed_frees,
            of_model.unknown_frees,
            of_model.unknown_blocks,
            of_model.implicit_frees,
            of_model.vanished
        ],
        "frees: failed, unknown, of unknown blocks, implicit; vanished"
    );
    same!(not_recorded(snapshot), [0; 7], "losses");
    let failed = snapshot.failed.iter().map(|failed| {
        (
            (
                site(snapshot, failed.stack).unwrap_or(99),
                failed.kind,
                device(failed.device),
                failed.bytes,
                failed.error,
            ),
            failed.count,
        )
    });
    let mut by_request = BTreeMap::new();
    failed.for_each(|(request, count)| *by_request.entry(request).or_insert(0) += count);
    same!(by_request, model.failed.clone(), "failed requests");
    let marks: Vec<&str> = snapshot.marks.iter().map(|mark| &*mark.name).collect();
    same!(
        marks,
        model.marks.iter().map(|mark| &*mark.name).collect::<Vec<_>>(),
        "marks"
    );
    same!(
        sorted(lost.unhooked.iter()),
        model.unhooked.iter().collect::<Vec<_>>(),
        "functions without a hook"
    );
    let owner = |name: &str, pages: &Pages, has_ended: bool| {
        (
            name.to_owned(),
            [pages.live, pages.reclaimable, pages.waiting, pages.free],
            has_ended,
        )
    };
    let pools = snapshot.page_pools.iter().map(|pool| {
        let owners = pool.owners.iter();
        let owners: Vec<_> = owners
            .map(|of| owner(&of.name, &of.pages, of.end_ns.is_some()))
            .collect();
        (
            owner(&pool.domain, &pool.pages, false),
            pool.page_bytes,
            pool.owners_begun,
            owners,
        )
    });
    let modelled = model.page_pools.iter().map(|pool| {
        let owner = |of: &Modelled| (of.name.clone(), of.pages, of.has_ended);
        (
            owner(pool),
            pool.page_bytes,
            pool.begun,
            pool.owners.iter().map(owner).collect::<Vec<_>>(),
        )
    });
    same!(
        pools.collect::<Vec<_>>(),
        modelled.collect::<Vec<_>>(),
        "pools of pages"
    );
    let phases: Vec<_> = snapshot
        .phases
        .iter()
        .map(|phase| (&*phase.name, phase.parent, phase.end_ns.is_some()))
        .collect();
    same!(
        phases,
        model
            .phases
            .iter()
            .map(|phase| (&*phase.name, phase.parent, phase.end.is_some()))
            .collect::<Vec<_>>(),
        "phases: name, parent, ended"
    );
}

/// The sums of each kind, and the peaks of devices.
fn compare_sums(
    snapshot: &Snapshot,
    sums: &BTreeMap<Key, Sums>,
    devices: &BTreeMap<i32, (u64, u64)>,
    is_last: bool,
    what: &str,
) {
    let device = |device: Option<usize>| device.map(|device| snapshot.devices[device].ordinal);
    // Those of objects and of failed requests are known at the end only.
    let objects = snapshot.object_counters.iter().filter(|_| is_last);
    let recorded = snapshot.counters.iter().chain(objects).map(|counter| {
        let key = (device(counter.device), counter.kind);
        let sums = Sums {
            live_bytes: counter.live_bytes,
            live_count: counter.live_count,
            peak_bytes: counter.peak_bytes,
            total_bytes: counter.total_bytes,
            total_count: counter.total_count,
            freed_count: counter.freed_count,
            failed_count: if is_last { counter.failed_count } else { 0 },
        };
        (key, sums)
    });
    let modelled = sums
        .iter()
        .filter(|((_, kind), _)| is_last || kind.place().is_memory())
        .map(|(key, sums)| {
            let failed_count = if is_last { sums.failed_count } else { 0 };
            (*key, Sums { failed_count, ..*sums })
        });
    let is_used = |(_, sums): &(Key, Sums)| *sums != Sums::default();
    let recorded: BTreeMap<Key, Sums> = recorded.filter(is_used).collect();
    let modelled: BTreeMap<Key, Sums> = modelled.filter(is_used).collect();
    let (recorded, modelled): (Vec<_>, Vec<_>) = (recorded.into_iter().collect(), modelled.into_iter().collect());
    assert!(
        recorded == modelled,
        "{what}: sums\n recorded {}\n   model  {}",
        only_in(&recorded, &modelled),
        only_in(&modelled, &recorded)
    );
    let peaks = snapshot
        .device_peaks
        .iter()
        .map(|peak| (snapshot.devices[peak.device].ordinal, peak.peak_bytes));
    let modelled = devices.iter().map(|(device, (_, peak))| (*device, *peak));
    same!(
        sorted(peaks.filter(|(_, bytes)| *bytes > 0)),
        modelled.filter(|(_, peak)| *peak > 0).collect::<Vec<_>>(),
        "{what}: peaks of devices"
    );
}

/// Thread, context, stream, pool and counts of each record.
fn compare_details(snapshot: &Snapshot, model: &Model) {
    let rows = snapshot.allocations.iter().chain(snapshot.objects.iter());
    let recorded = sorted(rows.map(|row| {
        let call = row.call;
        let stream = call.stream.as_ref().map(|stream| match stream {
            Stream::LegacyDefault => 0,
            Stream::PerThreadDefault => 2,
            Stream::Handle(handle) => *handle,
        });
        let context = call.context.map_or(0, |context| snapshot.contexts[context].handle);
        let counts = if row.kind == Kind::GraphExec {
            [0, 0]
        } else {
            [call.references, call.mappings]
        };
        (
            row.kind,
            row.address,
            snapshot.threads[call.thread].tid,
            context,
            stream,
            call.pool,
            counts,
        )
    }));
    let modelled = sorted(model.live.iter().map(|record| {
        let counts = [record.references, record.mappings];
        (
            record.kind,
            record.address,
            record.thread,
            record.context,
            record.stream,
            record.pool,
            counts,
        )
    }));
    assert!(
        recorded == modelled,
        "kind, address, thread, context, stream, pool, counts of what is live\n only recorded: {}\n only in the model: {}",
        only_in(&recorded, &modelled),
        only_in(&modelled, &recorded)
    );
}

/// The state at each mark, from the log.
pub fn compare_log(snapshot: &Snapshot, timeline: &Timeline, model: &Model) {
    same!((timeline.since_ns, timeline.lost), (0, 0), "the log");
    let mut before: Option<(Snapshot, &Point)> = None;
    let count = model.marks.len();
    for (nth, (mark, point)) in snapshot.marks.iter().zip(&model.marks).enumerate() {
        let state = timeline.state_at(snapshot, mark.time_ns).expect("it is in the log");
        state.validate().expect("every index is in range");
        let what = format!("at mark {}", mark.name);
        compare_point(&state, point, &what);
        compare_sums(&state, &point.sums, &point.devices, false, &what);
        // Of these, the last ones suffice.
        if nth + 2 < count {
            continue;
        }
        views::reports(&state, point, false, &what);
        let what = format!("from {what} to the end");
        views::diffs(&state, snapshot, [point, &model.last()], &what);
        if let Some((other, earlier)) = &before {
            views::diffs(other, &state, [earlier, point], "between two marks");
        }
        before = Some((state, point));
    }
    views::phases(snapshot, timeline, model);
}

pub fn compare_point(state: &Snapshot, point: &Point, what: &str) {
    let with_sites = state.sampling.is_none();
    let without_details = |(kind, address, bytes, _, device, site, api, domain): Row| {
        let address = address & ((1 << 48) - 1);
        (kind, address, bytes, device, site, api, domain)
    };
    let recorded = sorted(
        state
            .allocations
            .iter()
            .map(|each| without_details(row(state, &each, with_sites))),
    );
    let modelled = sorted(
        point
            .live
            .iter()
            .filter(is_memory)
            .map(|record| without_details(modelled_row(record, with_sites))),
    );
    assert!(
        recorded == modelled,
        "{what}\n only recorded: {}\n only in the model: {}",
        only_in(&recorded, &modelled),
        only_in(&modelled, &recorded)
    );
}

/// The automatic snapshots that the program asked for.
pub fn compare_snapshots(recording: &Path, last: &Snapshot, model: &Model) {
    let folder = recording.parent().expect("a folder");
    let files = fs::read_dir(folder)
        .expect("readable")
        .flatten()
        .map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "culeak-snapshot"));
    let mut found = 0;
    for snapshot in files.map(|path| reader::read(&path).expect("readable")) {
        let automatic = snapshot.taken.automatic.clone().expect("the reason");
        let named = automatic
            .name
            .filter(|_| snapshot.process.pid == last.process.pid && automatic.failed.is_none());
        let Some(point) = model.snapshots.iter().find(|point| Some(&point.name) == named.as_ref()) else {
            continue;
        };
        compare_point(&snapshot, point, &format!("in the snapshot {}", point.name));
        found += 1;
    }
    same!(found, model.snapshots.len(), "snapshots");
}
