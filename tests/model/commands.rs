//! What the commands print of a recording with a log: it agrees with the model.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use culeak::analysis::phases::Layer;
use culeak::kind::{Kind, Place};
use culeak::reader;
use culeak::snapshot::Snapshot;
use serde_json::Value;

use super::{Process, same, views};
use crate::support::culeak;
use crate::support::model::{Model, Point, Record};

pub mod exports;

/// Commands that are compared, each with a function; a program has one of them, by its number. Those that need no log are asked of a
/// recording without one, too.
pub const ALL: [fn(&Process, &Path, &[Process]); 19] = [
    report,
    job,
    exports::metrics,
    exports::speedscope,
    report_parts,
    report_at_peak,
    objects,
    phases,
    runs,
    check,
    exports::csv,
    exports::folded,
    snapshot,
    trend,
    report_at_marks,
    report_at_times,
    diff,
    churn,
    window,
];
pub const WITHOUT_LOG: usize = 14;

pub fn run(words: &[&str]) -> Output {
    run_with(words, Stdio::null())
}

/// With this standard input.
pub fn run_with(words: &[&str], input: impl Into<Stdio>) -> Output {
    let mut command = Command::new(culeak());
    command
        .args(words)
        .env("CULEAK_CACHE_DIR", "")
        .env_remove("CULEAK_CONFIG")
        .stdin(input);
    command.output().expect("culeak runs")
}

pub fn text(words: &[&str]) -> String {
    let output = run(words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

pub fn json(words: &[&str]) -> Value {
    serde_json::from_str(&text(&[words, &["--json"]].concat())).expect("JSON")
}

fn path(process: &Process) -> &str {
    process
        .recording
        .as_deref()
        .and_then(Path::to_str)
        .expect("a recording")
}

/// Bytes and count.
pub type Sum = (u64, u64);

fn sum<'a>(records: impl IntoIterator<Item = &'a Record>) -> Sum {
    records
        .into_iter()
        .fold((0, 0), |sum, record| (sum.0 + record.bytes, sum.1 + 1))
}

pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("a number: {value}"))
}

pub fn tally(value: &Value) -> Sum {
    (number(&value["bytes"]), number(&value["count"]))
}

pub fn add(sums: impl Iterator<Item = Sum>) -> Sum {
    sums.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1))
}

pub fn held(report: &Value) -> Sum {
    let held = report["totals"]["held"].as_object().expect("sums");
    add(held.values().map(tally))
}

/// What is held by the functions of the victim.
fn by_function(point: &Point) -> BTreeMap<String, Sum> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for record in point.held() {
        let sum = sums.entry(function(record)).or_default();
        *sum = (sum.0 + record.bytes, sum.1 + 1);
    }
    sums
}

/// The innermost function of the victim on the stack of a record.
fn function(record: &Record) -> String {
    match record.api {
        "cuGraphAddMemAllocNode" => "add_allocation".to_owned(),
        "cuMemImportFromShareableHandle" => "import".to_owned(),
        "culeak_alloc" if record.is_of_several => "allocate_pages".to_owned(),
        _ => format!("site_{}", record.site % 4),
    }
}

/// The function in the label of a row, without its file.
fn function_of(row: &Value) -> &str {
    let label = row["label"].as_str().expect("a label");
    label.split(' ').next().unwrap_or_default()
}

fn rows_by_label(report: &Value) -> BTreeMap<String, Sum> {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for row in report["rows"].as_array().expect("rows") {
        let label = function_of(row);
        let (bytes, count) = tally(row);
        let sum = sums.entry(label.to_owned()).or_default();
        *sum = (sum.0 + bytes, sum.1 + count - number(&row["claims"]));
    }
    sums.retain(|_, sum| *sum != (0, 0));
    sums
}

fn compare(report: &Value, point: &Point, what: &str) {
    same!(held(report), sum(point.held()), "{what}: held");
    same!(rows_by_label(report), by_function(point), "{what}: rows");
}

fn report(process: &Process, _: &Path, _: &[Process]) {
    let report = json(&["report", path(process)]);
    compare(&report, &process.model.last(), "report");
    let failed = add(process
        .model
        .failed
        .iter()
        .map(|((.., bytes, _), count)| (bytes * count, *count)));
    same!(tally(&report["totals"]["failed"]), failed, "failed requests");
}

fn report_at_marks(process: &Process, _: &Path, _: &[Process]) {
    let marks = process.model.marks.iter().map(|mark| (&*mark.name, mark));
    let last: BTreeMap<&str, &Point> = marks.collect();
    for (name, point) in last {
        let what = format!("report --at mark:{name}");
        compare(
            &json(&["report", path(process), "--at", &format!("mark:{name}")]),
            point,
            &what,
        );
    }
}

/// At times that are no marks: begins and ends of phases.
fn report_at_times(process: &Process, _: &Path, _: &[Process]) {
    let recorded = reader::read(Path::new(path(process))).expect("readable");
    for (recorded, phase) in recorded.phases.iter().zip(&process.model.phases) {
        for (ns, changes) in [
            (Some(recorded.begin_ns), Some(phase.begin)),
            (recorded.end_ns, phase.end),
        ] {
            let (Some(ns), Some(changes)) = (ns, changes) else {
                continue;
            };
            let point = Point {
                live: process.model.live_at(changes),
                ..process.model.last()
            };
            let time = format!("{}.{:09}s", ns / 1_000_000_000, ns % 1_000_000_000);
            let report = json(&["report", path(process), "--at", &time]);
            compare(&report, &point, &format!("report --at {time}"));
        }
    }
}

/// Of each kind: how many are live, and were created and destroyed.
fn objects(process: &Process, _: &Path, _: &[Process]) {
    let objects = &json(&["report", path(process), "--view", "objects"])["objects"];
    let mut recorded: BTreeMap<String, [u64; 3]> = BTreeMap::new();
    for kind in objects["kinds"].as_array().expect("kinds") {
        let counts = ["live", "created", "destroyed"].map(|count| number(&kind[count]));
        recorded.insert(kind["kind"].as_str().expect("a kind").to_owned(), counts);
    }
    let mut modelled: BTreeMap<String, [u64; 3]> = BTreeMap::new();
    for ((_, kind), sums) in &process.model.sums {
        if kind.is_object() && sums.total_count > 0 {
            let counts = modelled.entry(kind.name().to_owned()).or_default();
            let more = [sums.live_count, sums.total_count, sums.freed_count];
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
    }
    same!(recorded, modelled, "objects: live, created, destroyed");
    let mut rows: BTreeMap<(String, String), u64> = BTreeMap::new();
    for row in objects["rows"].as_array().expect("rows") {
        let (kind, label) = (row["kind"].as_str().expect("a kind"), function_of(row));
        *rows.entry((kind.to_owned(), label.to_owned())).or_default() += number(&row["count"]);
    }
    let mut modelled = BTreeMap::new();
    for record in process.model.live.iter().filter(|record| record.kind.is_object()) {
        *modelled
            .entry((record.kind.name().to_owned(), function(record)))
            .or_default() += 1;
    }
    same!(rows, modelled, "rows of objects");
}

/// What happened in each phase; without a log only when.
fn phases(process: &Process, _: &Path, _: &[Process]) {
    let modelled = &process.model.phases;
    if modelled.is_empty() {
        return;
    }
    let document = json(&["report", path(process), "--view", "phases:*"]);
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let chosen = list(&document["chosen"]);
    let named = chosen.iter().map(|phase| {
        (
            phase["name"].as_str().expect("a name").to_owned(),
            phase["end_ns"].is_u64(),
        )
    });
    let wanted = modelled.iter().map(|phase| (phase.name.clone(), phase.end.is_some()));
    same!(
        named.collect::<Vec<_>>(),
        wanted.collect::<Vec<_>>(),
        "phases: name, ended"
    );
    let in_rows = list(&document["rows"])
        .iter()
        .map(|row| number(&row["count"]))
        .sum::<u64>();
    same!(in_rows, modelled.len() as u64, "phases in rows");
    for (chosen, phase) in chosen.iter().zip(modelled) {
        for (series, figures) in list(&document["series"]).iter().zip(list(&chosen["figures"])) {
            let layer = match series["layer"].as_str() {
                Some("driver") => Layer::Driver,
                Some("blocks") => Layer::Blocks,
                _ => continue,
            };
            let ordinal = series["place"]
                .as_str()
                .and_then(|place| place.strip_prefix("GPU ")?.parse().ok());
            let Some(wanted) = ordinal.and_then(|ordinal| views::of_phase(&process.model, phase, layer, ordinal))
            else {
                continue;
            };
            let held = ["held_at_begin", "held_at_end", "high_water"].map(|figure| (number(&figures[figure]), 0));
            let changed = ["allocated", "freed", "freed_within", "left_behind"].map(|figure| tally(&figures[figure]));
            let figures: Vec<Sum> = held.into_iter().chain(changed).collect();
            let wanted: Vec<Sum> = wanted.map(|tally| (tally.bytes, tally.count)).to_vec();
            same!(figures, wanted, "phase {}, {series}", phase.name);
        }
    }
}

/// The stacks with a function and those without it are all.
fn report_parts(process: &Process, _: &Path, _: &[Process]) {
    let last = process.model.last();
    let with = json(&["report", path(process), "--focus", "^site_1$", "--by", "kind"]);
    let without = json(&["report", path(process), "--ignore", "^site_1$", "--by", "thread"]);
    let of_site = |wanted: bool| {
        sum(last
            .held()
            .into_iter()
            .filter(|record| (record.site % 4 == 1) == wanted))
    };
    same!(held(&with), of_site(true), "report --focus site_1");
    same!(held(&without), of_site(false), "report --ignore site_1");
    same!(
        tally(&with["filter"]["left_out"]),
        of_site(false),
        "what --focus leaves out"
    );
}

/// The rows at the peak are what was live then, and each byte is in one row.
fn report_at_peak(process: &Process, _: &Path, _: &[Process]) {
    let report = json(&["report", path(process), "--at", "peak", "--by", "kind"]);
    for device in report["devices"].as_array().expect("devices") {
        let ordinal = device["ordinal"].as_i64().expect("an ordinal") as i32;
        let peak = process.model.devices.get(&ordinal).map_or(0, |(_, peak)| *peak);
        same!(number(&device["peak_bytes"]), peak, "peak of GPU {ordinal}");
        same!(
            number(&device["live"]["bytes"]),
            peak,
            "live at the peak of GPU {ordinal}"
        );
    }
}

/// The same program, run once more.
fn runs(process: &Process, other: &Path, _: &[Process]) {
    let other = other.to_str().expect("a path");
    let none = json(&["diff", other, path(process), "--by", "site"]);
    same!(
        none["rows"].as_array().map(Vec::len),
        Some(0),
        "the differences of two runs: {}",
        none["rows"]
    );
}

fn diff(process: &Process, _: &Path, _: &[Process]) {
    let Some(mark) = process.model.marks.last() else { return };
    let point = format!("mark:{}", mark.name);
    let diff = json(&["diff", path(process), "--at", &point, "--at", "exit", "--by", "site"]);
    let change = |point: &Point, sign: i64| {
        by_function(point)
            .into_iter()
            .map(move |(name, sum)| (name, sign * sum.0 as i64))
            .collect::<Vec<_>>()
    };
    let mut modelled: BTreeMap<String, i64> = BTreeMap::new();
    for (name, bytes) in change(mark, -1).into_iter().chain(change(&process.model.last(), 1)) {
        *modelled.entry(name).or_default() += bytes;
    }
    modelled.retain(|_, bytes| *bytes != 0);
    let mut recorded: BTreeMap<String, i64> = BTreeMap::new();
    for row in diff["rows"].as_array().expect("rows") {
        let label = function_of(row);
        *recorded.entry(label.to_owned()).or_default() += row["bytes_delta"].as_i64().expect("a number");
    }
    recorded.retain(|_, bytes| *bytes != 0);
    same!(recorded, modelled, "diff from {point} to the end");
}

/// A limit just below what is held fails, one just above passes.
fn check(process: &Process, _: &Path, _: &[Process]) {
    let held = sum(process.model.last().held()).0;
    let code = |limit: u64| {
        run(&["check", path(process), "--allow", &limit.to_string()])
            .status
            .code()
    };
    let is_complete = {
        let losses = &process.model.losses;
        losses.failed_frees + losses.unknown_frees + losses.unknown_blocks + losses.vanished == 0
    };
    if held > 0 {
        same!(code(held - 1), Some(1), "check --allow {}", held - 1);
    }
    // With losses there may be no verdict, nor if a limit is below memory which only the program says is a pool.
    if is_complete {
        let of_memory = |record: &&Record| {
            matches!(
                record.kind.place(),
                Place::Device | Place::Managed | Place::Host | Place::Within
            )
        };
        let with_pools = sum(process.model.live.iter().filter(of_memory)).0;
        let limit = match code(held) {
            Some(2) => with_pools,
            _ => held,
        };
        same!(code(limit), Some(0), "check --allow {limit}");
    }
    for place in [Place::Device, Place::Host] {
        let kinds = process
            .model
            .live
            .iter()
            .map(|record| record.kind)
            .filter(|kind| kind.place() == place);
        let Some(kind) = kinds.max() else { continue };
        let held = sum(process
            .model
            .last()
            .held()
            .into_iter()
            .filter(|record| record.kind == kind))
        .0;
        let code = |limit: u64| {
            run(&["check", path(process), "--allow", &format!("{}={limit}", kind.name())])
                .status
                .code()
        };
        if held > 0 {
            same!(code(held - 1), Some(1), "check --allow {}={}", kind.name(), held - 1);
        }
    }
}

/// A snapshot of the recording says what the recording says.
fn snapshot(process: &Process, _: &Path, _: &[Process]) {
    let file = Path::new(path(process)).with_extension("json");
    let name = file.to_str().expect("a path");
    text(&["snapshot", path(process), "-o", name]);
    let written: Snapshot = serde_json::from_slice(&fs::read(&file).expect("readable")).expect("a snapshot");
    let recorded = reader::read_with_totals(Path::new(path(process))).expect("readable");
    same!(written.allocations.len(), recorded.allocations.len(), "rows");
    same!(written.counters, recorded.counters, "counters");
    same!(written.losses.failed_frees, recorded.losses.failed_frees, "losses");
    compare(&json(&["report", name]), &process.model.last(), "report of a snapshot");
    let none = json(&["diff", path(process), name]);
    same!(
        none["rows"].as_array().map(Vec::len),
        Some(0),
        "a recording and its snapshot: {}",
        none["rows"]
    );
}

/// The points of a trend are what was held at each snapshot.
fn trend(process: &Process, other: &Path, _: &[Process]) {
    let trend = json(&[
        "trend",
        path(process),
        other.to_str().expect("a path"),
        "--all",
        "--per-process",
    ]);
    let all = match trend.as_array() {
        Some(all) => all.clone(),
        None => vec![trend],
    };
    let held = sum(process.model.last().held()).0;
    for point in all.iter().flat_map(|trend| trend["points"].as_array().expect("points")) {
        // Others are automatic snapshots.
        if point["at_end"] == true {
            same!(number(&point["held"]["bytes"]), held, "trend");
        }
    }
}

/// A job holds what its processes hold.
fn job(process: &Process, _: &Path, all: &[Process]) {
    let folder = Path::new(path(process))
        .parent()
        .and_then(Path::to_str)
        .expect("a folder");
    let recorded: Vec<&Process> = all.iter().filter(|process| process.recording.is_some()).collect();
    if recorded.len() < 2 {
        return;
    }
    let report = json(&["report", folder]);
    let bytes = recorded
        .iter()
        .map(|process| sum(process.model.last().held()).0)
        .sum::<u64>();
    same!(number(&report["held"]["bytes"]), bytes, "report of a job");
    let of_sites = report["sites"]
        .as_array()
        .expect("sites")
        .iter()
        .map(|site| number(&site["sum"]))
        .sum::<u64>();
    same!(of_sites, bytes, "the sites of a job");
}

fn churn(process: &Process, _: &Path, _: &[Process]) {
    let churn = json(&["report", path(process), "--view", "churn"]);
    for (sums, is_counted) in [
        ("driver", is_of_driver as fn(&Record) -> bool),
        ("blocks", |record| record.kind == Kind::Block),
    ] {
        let of = |is_free: bool| {
            let changes = process.model.changes.iter().filter(|change| change.is_free == is_free);
            sum(changes.map(|change| &change.record).filter(|record| is_counted(record)))
        };
        same!(tally(&churn[sums]["allocated"]), of(false), "churn, {sums}: allocated");
        same!(tally(&churn[sums]["freed"]), of(true), "churn, {sums}: freed");
    }
}

/// Claims count, with 0 bytes.
fn is_of_driver(record: &Record) -> bool {
    record.kind.place().is_memory() && record.kind != Kind::Block
}

/// What was allocated between two marks and is left at the second.
fn window(process: &Process, _: &Path, _: &[Process]) {
    let Some([from, to]) = two_marks(&process.model) else {
        return;
    };
    let between = [from, to].map(|point| format!("mark:{}", point.name));
    let report = json(&[
        "report",
        path(process),
        "--between",
        &between[0],
        &between[1],
        "--by",
        "kind",
    ]);
    let before = &from.live;
    let is_new = |record: &&Record| !before.iter().any(|other| other.is(record));
    let left = sum(to.held().into_iter().filter(is_new));
    same!(held(&report), left, "report --between {between:?}");
}

/// Two different marks, each the last of its name.
fn two_marks(model: &Model) -> Option<[&Point; 2]> {
    let is_last = |point: &&Point| {
        let same = |other: &&Point| other.name == point.name;
        model
            .marks
            .iter()
            .filter(same)
            .all(|other| other.changes <= point.changes)
    };
    let mut last: Vec<&Point> = model.marks.iter().filter(is_last).collect();
    last.dedup_by(|a, b| a.name == b.name);
    let [.., from, to] = last[..] else { return None };
    (from.name != to.name).then_some([from, to])
}
