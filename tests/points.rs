//! Reports and checks at points in time, on recordings of real processes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::interpreters::{Python, interpreters};
use crate::support::outcome::recordings_in;
use crate::support::{Outcome, culeak, profile, program, sources};

fn script(python: &Python, case: &str) -> Outcome {
    let profile = program(&python.command);
    let outcome = profile.arg("-B").arg(sources().join("victims/ends.py")).arg(case).run();
    outcome.expect_success();
    outcome
}

fn recording(outcome: &Outcome) -> PathBuf {
    recordings_in(&outcome.out()).pop().expect("a recording")
}

fn run(words: &[&str], recording: &Path) -> Output {
    let mut command = Command::new(culeak());
    command
        .args(&words[..1])
        .arg(recording)
        .args(&words[1..])
        .arg("--no-symbol-cache");
    command.env_remove("CULEAK_CONFIG").output().expect("culeak runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(words: &[&str], recording: &Path) -> Value {
    let output = run(words, recording);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

#[track_caller]
fn expect_code(code: i32, words: &[&str], recording: &Path) -> String {
    let output = run(words, recording);
    let all = text(&output.stdout) + &text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {all}");
    all
}

fn held(report: &Value) -> u64 {
    let held = report["totals"]["held"].as_object().expect("sums");
    held.values().map(|tally| tally["bytes"].as_u64().expect("bytes")).sum()
}

/// What the script `model` holds at its end.
const MODEL: u64 = 20 * 1000;
/// What it held before.
const PEAK: u64 = MODEL + 30_000;

#[test]
fn a_report_of_a_script_shows_its_end_and_what_shutdown_freed() {
    let python = &interpreters()[0];
    let outcome = script(python, "model");
    let file = recording(&outcome);
    let report = json(&["report", "--json"], &file);
    assert_eq!((held(&report), &report["taken"]["point"]), (MODEL, &"end".into()));
    assert_eq!(report["finished"], false);
    let points = &report["points"];
    assert_eq!(points["end"]["of"], "script");
    assert_eq!(points["end"]["held"]["bytes"], MODEL);
    assert_eq!(points["end"]["freed"]["bytes"], MODEL);
    assert_eq!(points["exit"]["held"]["bytes"], 0);
    assert_eq!(points["peak"][0]["bytes"], PEAK);
    assert_eq!(points["peak"][0]["difference"], 0);
    let shown = expect_code(0, &["report"], &file);
    assert!(
        shown.contains("held when the script ended: 19.5 KiB in 20 blocks; exit callbacks and the interpreter's shutdown freed all of it"),
        "{shown}"
    );

    let exit = json(&["report", "--json", "--at", "exit"], &file);
    assert_eq!((held(&exit), &exit["finished"]), (0, &true.into()));
    assert_eq!(exit["points"], *points);
    let peak = json(&["report", "--json", "--at", "peak"], &file);
    assert_eq!((held(&peak), &peak["points"]), (PEAK, points));
    let tree = expect_code(0, &["report", "--view", "tree", "--at", "peak"], &file);
    assert!(tree.contains("48.8 KiB 100.0%"), "{tree}");
}

#[test]
fn memory_that_a_global_holds_fails_a_check_with_a_limit_only() {
    let python = &interpreters()[0];
    let outcome = script(python, "model");
    let file = recording(&outcome);
    let passed = expect_code(0, &["check"], &file);
    assert!(
        passed.contains("not judged: 19.5 KiB in 20 blocks held when the script ended"),
        "{passed}"
    );
    expect_code(0, &["check", "--allow", "20KB"], &file);
    let failed = expect_code(1, &["check", "--allow", "19KB"], &file);
    assert!(failed.contains("held when the script ended, allowed"), "{failed}");
    expect_code(1, &["check", "--at", "end"], &file);
    expect_code(0, &["check", "--at", "exit", "--allow", "0"], &file);
    expect_code(0, &["check", "--at", "peak", "--allow", "50KB"], &file);
    expect_code(1, &["check", "--at", "peak", "--allow", "49KB"], &file);
}

#[test]
fn a_baseline_is_compared_at_its_own_point_only() {
    let python = &interpreters()[0];
    let outcome = script(python, "model");
    let file = recording(&outcome);
    let baseline = outcome.work().join("leaks.json");
    let baseline = baseline.to_str().expect("text");
    expect_code(0, &["check", "--baseline", baseline, "--update-baseline"], &file);
    let written: Value = serde_json::from_slice(&std::fs::read(baseline).expect("read")).expect("json");
    assert_eq!(
        (&written["at"][0], &written["sites"][0]["bytes"]),
        (&"end".into(), &MODEL.into())
    );
    expect_code(0, &["check", "--baseline", baseline], &file);
    let refused = expect_code(2, &["check", "--baseline", baseline, "--at", "exit"], &file);
    assert!(
        refused.contains("taken at the point end, but exit is judged"),
        "{refused}"
    );
    // A recording is a baseline too, at the point that is judged.
    let other = script(python, "model");
    let recorded = recording(&other);
    let recorded = recorded.to_str().expect("text");
    expect_code(0, &["check", "--baseline", recorded], &file);
    expect_code(0, &["check", "--baseline", recorded, "--at", "peak"], &file);
}

#[test]
fn a_native_program_is_shown_at_exit_with_what_its_exit_handlers_freed() {
    let outcome = profile("endings").arg("frees_in_destructor").run();
    let file = recording(&outcome);
    let report = json(&["report", "--json"], &file);
    assert_eq!((held(&report), &report["finished"]), (101, &true.into()));
    let end = &report["points"]["end"];
    assert_eq!(
        (&end["of"], &end["held"]["bytes"], &end["freed"]["bytes"]),
        (&"main".into(), &201.into(), &100.into())
    );
    let shown = expect_code(0, &["report"], &file);
    assert!(
        shown.contains(
            "held when main returned: 201 B in 2 blocks; exit handlers freed 100 B of it; 101 B was never freed"
        ),
        "{shown}"
    );
    assert_eq!(held(&json(&["report", "--json", "--at", "end"], &file)), 201);
}

#[test]
fn two_points_of_a_process_are_compared() {
    let python = &interpreters()[0];
    let outcome = script(python, "model");
    let file = recording(&outcome);
    let path = file.to_str().expect("text");
    let diff = json(&["diff", path, "--at", "peak", "--at", "end", "--json"], &file);
    assert_eq!(diff["totals"]["before"]["bytes"], PEAK);
    assert_eq!(diff["totals"]["after"]["bytes"], MODEL);
    let refused = expect_code(2, &["diff", path, "--at", "peak", "--at", "end", "--at", "exit"], &file);
    assert!(refused.contains("more than twice"), "{refused}");
}

#[test]
fn points_that_a_recording_lacks_are_refused_with_what_to_do() {
    let outcome = profile("endings").arg("frees_in_destructor").run();
    let file = recording(&outcome);
    for (point, what) in [
        ("mark:none", "the program set no mark \"none\""),
        ("1s", "culeak run --timeline"),
        ("soon", "end, peak, exit, mark:NAME"),
    ] {
        let refused = expect_code(2, &["report", "--at", point], &file);
        assert!(refused.contains(what), "{refused}");
    }
    let refused = expect_code(2, &["report", "--at", "peak", "--by", "size"], &file);
    assert!(refused.contains("recorded by stack"), "{refused}");
    let csv = outcome.work().join("a.csv");
    let csv = csv.to_str().expect("text");
    let refused = expect_code(2, &["export", "--at", "peak", "-o", csv, "--format", "csv"], &file);
    assert!(refused.contains("use pprof"), "{refused}");
    let pprof = outcome.work().join("a.pb.gz");
    let pprof = pprof.to_str().expect("text");
    expect_code(0, &["export", "--at", "peak", "-o", pprof, "--format", "pprof"], &file);
}

#[test]
fn a_mark_is_shown_from_the_snapshot_that_was_taken_at_it() {
    let marked = profile("client_api").arg("marks");
    let marked = marked.setting("CULEAK_SNAPSHOT_AT_MARK", "1").run();
    let file = recording(&marked);
    let first = json(&["report", "--json", "--at", "mark:epoch 1"], &file);
    assert_eq!((held(&first), &first["taken"]["point"]), (1000, &"mark:epoch 1".into()));
    assert_eq!(first["finished"], false);
    let text = expect_code(0, &["report", "--at", "mark:epoch 2 é"], &file);
    assert!(
        text.contains(" held 6.8 KiB on GPU 0 (peak 6.8 KiB) at the mark epoch 2 é"),
        "{text}"
    );
    expect_code(1, &["check", "--at", "mark:epoch 1", "--allow", "999"], &file);
    expect_code(0, &["check", "--at", "mark:epoch 1", "--allow", "1000"], &file);

    let without = profile("client_api").arg("marks").run();
    let refused = expect_code(2, &["report", "--at", "mark:epoch 1"], &recording(&without));
    assert!(refused.contains("--snapshot mark"), "{refused}");
}

#[test]
fn a_program_is_judged_as_its_recording() {
    let python = &interpreters()[0];
    let run = |limits: &[&str]| {
        let folder = crate::support::profile::folder();
        let mut run = Command::new(culeak());
        run.args(["check", "--no-config"])
            .args(limits)
            .arg("-o")
            .arg(folder.path());
        run.arg("--")
            .arg(&python.command)
            .arg("-B")
            .arg(sources().join("victims/ends.py"))
            .arg("model");
        let output = run
            .env("LD_LIBRARY_PATH", crate::support::profile::fake_driver_folder())
            .output();
        let output = output.expect("culeak starts");
        (output.status.code(), text(&output.stderr))
    };
    let (code, shown) = run(&[]);
    assert_eq!(code, Some(0), "{shown}");
    assert!(
        shown.contains("not judged: 19.5 KiB in 20 blocks held when the script ended"),
        "{shown}"
    );
    assert!(shown.contains("passed: 0 B in 0 blocks leaked"), "{shown}");
    let (code, shown) = run(&["--allow", "19KB"]);
    assert_eq!(code, Some(1), "{shown}");
    assert!(
        shown.contains("failed: 19.5 KiB in 20 blocks held when the script ended, allowed"),
        "{shown}"
    );
    let (code, shown) = run(&["--at", "exit", "--allow", "0"]);
    assert_eq!(code, Some(0), "{shown}");
}
