//! What the commands print of a recording with a log: it agrees with the model.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use culeak::kind::{Kind, Place};
use culeak::reader;
use culeak::snapshot::Snapshot;
use serde_json::Value;

use super::{Process, same};
use crate::support::culeak;
use crate::support::model::{Model, Point, Record};

/// Commands that are compared, each with a function; a program has one of them, by its number.
pub const ALL: [fn(&Process, &Path, &[Process]); 15] = [
    report,
    job,
    metrics,
    speedscope,
    report_at_marks,
    report_parts,
    report_at_peak,
    diff,
    check,
    csv,
    folded,
    snapshot,
    trend,
    churn,
    window,
];

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

fn diff(process: &Process, other: &Path, _: &[Process]) {
    // The same program, run once more.
    let other = other.to_str().expect("a path");
    let none = json(&["diff", other, path(process), "--by", "site"]);
    same!(
        none["rows"].as_array().map(Vec::len),
        Some(0),
        "the differences of two runs: {}",
        none["rows"]
    );
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

fn csv(process: &Process, _: &Path, _: &[Process]) {
    let text = text(&["export", path(process), "-f", "csv", "-o", "-"]);
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let column = |name: &str| {
        header
            .iter()
            .position(|other| *other == name)
            .unwrap_or_else(|| panic!("{name}: {header:?}"))
    };
    let (kind, bytes, address) = (column("kind"), column("bytes"), column("address"));
    let mut rows: Vec<(String, u64, u64)> = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').map(|field| field.trim_matches('"')).collect();
        let number = |at: usize| {
            fields[at]
                .trim_start_matches("0x")
                .parse::<u64>()
                .or_else(|_| u64::from_str_radix(fields[at].trim_start_matches("0x"), 16))
        };
        rows.push((
            fields[kind].to_owned(),
            number(bytes).expect("bytes"),
            number(address).expect("an address"),
        ));
    }
    rows.sort();
    let live = process
        .model
        .live
        .iter()
        .filter(|record| record.kind.place().is_memory());
    let mut modelled: Vec<_> = live
        .map(|record| (record.kind.name().to_owned(), record.bytes, record.address))
        .collect();
    modelled.sort();
    same!(rows, modelled, "export -f csv");
}

/// The bytes of all stacks of an input.
pub fn folded_sum(input: &str, words: &[&str]) -> u64 {
    let text = text(&[&["export", input, "-f", "folded", "-o", "-"], words].concat());
    let numbers = text
        .lines()
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    numbers.sum()
}

fn folded(process: &Process, _: &Path, _: &[Process]) {
    for (cost, wanted) in [
        ("bytes", sum(process.model.last().held()).0),
        ("count", sum(process.model.last().held()).1),
    ] {
        let text = text(&["export", path(process), "-f", "folded", "--cost", cost, "-o", "-"]);
        let numbers = text.lines().map(|line| {
            line.rsplit(' ')
                .next()
                .and_then(|number| number.parse::<u64>().ok())
                .expect("a number")
        });
        let all: u64 = numbers.sum();
        if cost == "bytes" {
            same!(all, wanted, "export -f folded --cost {cost}");
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

fn metrics(process: &Process, _: &Path, _: &[Process]) {
    let text = text(&["export", path(process), "-f", "openmetrics", "-o", "-"]);
    let value = |line: &str| {
        line.rsplit(' ')
            .next()
            .and_then(|number| number.parse::<f64>().ok())
            .expect("a number")
    };
    let lines = text.lines().filter(|line| line.starts_with("culeak_held_bytes{"));
    let held: f64 = lines.map(value).sum();
    same!(held as u64, sum(process.model.last().held()).0, "export -f openmetrics");
}

fn speedscope(process: &Process, _: &Path, _: &[Process]) {
    let profile = text(&["export", path(process), "-f", "speedscope", "-o", "-"]);
    let profile: Value = serde_json::from_str(&profile).expect("JSON");
    let bytes = profile["profiles"]
        .as_array()
        .expect("profiles")
        .iter()
        .filter(|profile| {
            profile["name"]
                .as_str()
                .is_some_and(|name| name.ends_with("live bytes"))
        })
        .flat_map(|profile| {
            profile["weights"]
                .as_array()
                .expect("weights")
                .iter()
                .map(number)
                .collect::<Vec<_>>()
        });
    same!(
        bytes.sum::<u64>(),
        sum(process.model.last().held()).0,
        "export -f speedscope"
    );
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
    let is_new = |record: &&Record| {
        !before
            .iter()
            .any(|other| (other.made, other.address, &other.space) == (record.made, record.address, &record.space))
    };
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
