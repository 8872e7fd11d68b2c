//! The event log of real processes: states at marks, windows and statistics.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use culeak::kind::Kind;
use culeak::reader::{read, read_timeline};
use culeak::snapshot::{Reason, Snapshot};
use serde_json::Value;

use crate::support::outcome::recordings_in;
use crate::support::{Outcome, culeak, profile};

pub const LOGGED: (&str, &str) = ("CULEAK_TIMELINE", "64MiB");

const MIB: u64 = 1 << 20;

/// Marks the end of each step, in which it leaks 1 MiB, replaces a batch and keeps a block until the end.
fn steps(settings: &[(&str, &str)]) -> Outcome {
    let program = profile("grows").arg("steps");
    let outcome = settings
        .iter()
        .fold(program, |program, (name, value)| program.setting(name, value))
        .run();
    outcome.expect_success();
    outcome
}

pub fn recording(outcome: &Outcome) -> PathBuf {
    recordings_in(&outcome.out()).pop().expect("a recording")
}

pub fn run(words: &[&str], recording: &Path) -> Output {
    let mut command = Command::new(culeak());
    command.args(&words[..1]).arg(recording).args(&words[1..]);
    command.arg("--no-symbol-cache").env_remove("CULEAK_CONFIG");
    command.output().expect("culeak runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn json(words: &[&str], recording: &Path) -> Value {
    let output = run(words, recording);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

pub fn refused(words: &[&str], recording: &Path) -> String {
    let output = run(words, recording);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    text(&output.stderr)
}

fn rows(snapshot: &Snapshot) -> Vec<(u64, u64, u64, Kind)> {
    // Events are exact to 8 ns, and have the lowest 48 bits of an address.
    let row =
        |row: culeak::snapshot::Allocation| (row.time_ns >> 3, row.address & ((1 << 48) - 1), row.bytes, row.kind);
    let mut rows: Vec<_> = snapshot.allocations.iter().map(row).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn the_state_rebuilt_from_the_log_equals_every_automatic_snapshot() {
    let outcome = steps(&[LOGGED, ("CULEAK_SNAPSHOT_AT_MARK", "1")]);
    let (end, timeline) = read_timeline(&recording(&outcome)).expect("readable");
    let timeline = timeline.expect("a log");
    assert_eq!((timeline.since_ns, timeline.lost), (0, 0));
    let mut compared = 0;
    for entry in std::fs::read_dir(outcome.out()).expect("a folder").flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "culeak-snapshot") {
            continue;
        }
        let kept = read(&path).expect("readable");
        assert_eq!(kept.taken.automatic.as_ref().map(|a| a.reason), Some(Reason::Mark));
        let rebuilt = timeline.state_at(&end, kept.taken.at_ns).expect("it is in the log");
        rebuilt.validate().expect("every index is in range");
        assert_eq!(rows(&rebuilt), rows(&kept));
        assert_eq!(rebuilt.device_peaks[0].peak_bytes, kept.device_peaks[0].peak_bytes);
        assert_eq!(rebuilt.counters[0].total_count, kept.counters[0].total_count);
        assert_eq!(rebuilt.counters[0].freed_count, kept.counters[0].freed_count);
        compared += 1;
    }
    assert!(compared > 5, "{compared} automatic snapshots");
}

#[test]
fn the_peak_of_a_replay_is_the_recorded_one() {
    let outcome = steps(&[LOGGED]);
    let (end, timeline) = read_timeline(&recording(&outcome)).expect("readable");
    let timeline = timeline.expect("a log");
    let window = timeline.window(&end, 0, timeline.until_ns).expect("the whole log");
    let of_device = window.sums.iter().find(|sum| sum.kind.is_none()).expect("a device");
    assert_eq!(of_device.peak_bytes, end.device_peaks[0].peak_bytes);
    let on_device: Vec<_> = end
        .at_peaks
        .iter()
        .filter(|at| at.kind.place().on_device())
        .cloned()
        .collect();
    assert_eq!(of_device.at_peak, on_device);
}

#[test]
fn a_report_shows_any_time_and_any_window_of_the_log() {
    let outcome = steps(&[LOGGED]);
    let file = recording(&outcome);
    let held = |words: &[&str]| {
        let report = json(words, &file);
        let held = &report["totals"]["held"]["device"];
        (
            held["bytes"].as_u64().expect("bytes"),
            report["finished"].as_bool().expect("a flag"),
        )
    };
    let at_mark = held(&["report", "--json", "--at", "mark:step 2"]);
    let time = read(&file).expect("readable").marks[2].time_ns;
    let seconds = format!("{}s", (time + 8) as f64 / 1e9);
    assert_eq!(held(&["report", "--json", "--at", &seconds]), at_mark);
    // Of each of three steps a lost, a cached and a kept block, and the batch of the last one.
    assert_eq!(at_mark, ((64 + 3 * (1 + 2 + 3) + 3) * MIB, false));
    let between = ["report", "--between", "mark:step 10", "mark:step 14"];
    let json_of = [&between[..], &["--json"]].concat();
    let report = json(&json_of, &file);
    // Of each of four steps a lost and a kept block, and the batch of the last one; nothing that is older.
    assert_eq!(
        report["totals"]["held"]["device"]["bytes"],
        (4 * (1 + 3) + 3) * MIB,
        "{report}"
    );
    let events = ["allocated", "freed"].map(|name| report["totals"][name].as_u64());
    assert_eq!(events, [Some(12), Some(4)]);
    assert_eq!(report["finished"], false);
    let shown = text(&run(&between, &file).stdout);
    assert!(
        shown.contains(": memory that was allocated in it and was live at its end"),
        "{shown}"
    );
    assert!(shown.contains("next: culeak report"), "{shown}");
    for words in [
        &["check", "--at", "mark:step 2", "--allow", "0"][..],
        &["check", "--at", "mark:step 2"],
    ] {
        assert_eq!(run(words, &file).status.code(), Some(1), "{words:?}");
    }
    assert_eq!(
        run(&["export", "--at", "mark:step 2", "-f", "folded", "-o", "-"], &file)
            .status
            .code(),
        Some(0)
    );
}

#[test]
fn statistics_count_temporary_allocations_by_call_site() {
    let outcome = steps(&[LOGGED]);
    let file = recording(&outcome);
    let stats = json(&["report", "--view", "churn", "--json"], &file);
    assert_eq!(
        (&stats["format"], &stats["since_ns"]),
        (&"culeak-stats".into(), &0.into())
    );
    let count = |row: &Value, sum: &str| row[sum]["count"].as_u64().expect("a count");
    // The model, six caches, and in each of 24 steps a batch, a lost and a kept block, which is freed at the end.
    let all = &stats["driver"];
    assert_eq!((count(all, "allocated"), count(all, "freed")), (1 + 6 + 24 * 3, 24 * 2));
    // Of these only the last kept block is freed without another allocation in between.
    assert_eq!(count(all, "temporary"), 1);
    let by_stack = json(&["report", "--view", "churn", "--json", "--by", "stack"], &file);
    let row = |name: &str| {
        let mut rows = by_stack["rows"].as_array().expect("rows").iter();
        let found = rows.find(|row| row["stack"]["frames"][1]["function"] == name);
        found.unwrap_or_else(|| panic!("{name}: {by_stack}"))
    };
    let batch = row("batch");
    assert_eq!((count(batch, "allocated"), count(batch, "freed")), (24, 24));
    assert_eq!(batch["lifetimes"]["count"], 24);
    assert_eq!((count(row("model"), "freed"), count(row("forgotten"), "freed")), (0, 0));
    let some = json(
        &[
            "report",
            "--view",
            "churn",
            "--json",
            "--between",
            "mark:step 10",
            "mark:step 14",
        ],
        &file,
    );
    assert_eq!(count(&some["driver"], "allocated"), 12);
    let shown = text(
        &run(
            &[
                "report", "--view", "churn", "--by", "stack", "--sort", "lifetime", "--top", "1",
            ],
            &file,
        )
        .stdout,
    );
    assert!(
        shown.contains("--top 0 shows all") && shown.contains("lifetimes "),
        "{shown}"
    );
}

#[test]
fn a_recording_without_a_log_and_times_outside_of_it_are_refused() {
    let without = steps(&[]);
    let file = recording(&without);
    let asked = "has no event log; record one with: culeak run --timeline -- PROGRAM";
    for words in [
        &["report", "--view", "churn"][..],
        &["report", "--at", "10ms"],
        &["report", "--between", "start", "exit"],
    ] {
        let error = refused(words, &file);
        assert!(error.contains(asked), "{words:?}: {error}");
    }
    let logged = steps(&[LOGGED]);
    let file = recording(&logged);
    for (words, expected) in [
        (&["report", "--at", "100h"][..], "is after the last recorded moment"),
        (
            &["report", "--between", "exit", "mark:step 2"],
            "name the earlier time first",
        ),
        (
            &["report", "--view", "churn", "--between", "mark:nowhere", "exit"],
            "the program set no mark \"nowhere\"; it set \"step 0\"",
        ),
        (
            &["report", "--view", "churn", "--between", "peak", "exit"],
            "expected a time since the start such as 12.5s",
        ),
    ] {
        let error = refused(words, &file);
        assert!(error.contains(expected), "{words:?}: {error}");
    }
}
