//! Phases: ranges and marks of NVTX, and phases of the client API.

use culeak::snapshot::{Phase, Snapshot};

use crate::cudart::cudart;
use crate::support::compile::executable;
use crate::support::outcome::{Outcome, recordings_in};
use crate::support::{Profile, culeak, fake_driver, profile, program, shim};

fn with_nvtx(behaviour: &str) -> Profile {
    profile("phases").arg(behaviour).env("NVTX_INJECTION64_PATH", shim())
}

/// The names from the outermost enclosing phase on, each with its domain if it has one.
fn path(snapshot: &Snapshot, phase: &Phase) -> String {
    let parent = phase.parent.map(|parent| &snapshot.phases[parent]);
    let domain = phase.domain.as_ref().map(|domain| format!("{domain}:"));
    let outer = parent.map(|parent| format!("{} > ", path(snapshot, parent)));
    outer.unwrap_or_default() + &domain.unwrap_or_default() + &phase.name
}

fn paths(snapshot: &Snapshot) -> Vec<String> {
    let phases = snapshot.phases.iter();
    phases.map(|phase| path(snapshot, phase)).collect()
}

fn mark_names(snapshot: &Snapshot) -> Vec<&str> {
    snapshot.marks.iter().map(|mark| mark.name.as_str()).collect()
}

/// Whether a phase was open when something happened.
fn contains(phase: &Phase, time_ns: u64) -> bool {
    phase.begin_ns <= time_ns && phase.end_ns.is_none_or(|end| time_ns <= end)
}

fn expect_ranges(outcome: &Outcome) {
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    assert_eq!(
        paths(snapshot),
        [
            "epoch",
            "epoch > step",
            "epoch > step",
            "epoch > step",
            "epoch > data:batch",
            "epoch > data:batch > 訓練",
            "epoch > ",
            "epoch > wide",
        ]
    );
    assert!(snapshot.phases.iter().all(|phase| phase.end_ns.is_some()));
    assert_eq!(mark_names(snapshot), ["asleep", "awake", "awake"]);
    let (batch, training) = (&snapshot.phases[4], &snapshot.phases[5]);
    assert!(batch.end_ns < training.end_ns, "each domain has a stack of its own");
    let of_bytes = |bytes: u64| snapshot.allocations.iter().filter(move |row| row.bytes == bytes);
    for (row, step) in of_bytes(10).zip(&snapshot.phases[1..4]) {
        assert!(contains(step, row.time_ns) && contains(&snapshot.phases[0], row.time_ns));
    }
    for row in of_bytes(7) {
        assert!(contains(training, row.time_ns) && !contains(batch, row.time_ns));
    }
    assert_eq!((of_bytes(10).count(), of_bytes(7).count()), (3, 1));
    assert_eq!(snapshot.losses.lost_phases, 0);
}

#[test]
fn nvtx_ranges_are_phases_and_its_marks_are_marks() {
    let outcome = with_nvtx("ranges").run();
    expect_ranges(&outcome);
    outcome.expect_same_output_as_bare();
}

#[test]
fn without_the_variable_there_are_no_phases() {
    let outcome = profile("phases").arg("ranges").run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    assert!(snapshot.phases.is_empty() && snapshot.marks.is_empty());
}

#[test]
fn a_range_of_the_process_ends_on_another_thread_and_belongs_to_no_range() {
    let outcome = with_nvtx("threads").run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    let mut found = paths(snapshot);
    found.sort();
    let expected = [
        "main",
        "main > inner",
        "main > never popped",
        "never ended",
        "server:request",
        "worker",
    ];
    assert_eq!(found, expected);
    let phase = |name: &str| snapshot.phases.iter().find(|phase| phase.name == name).unwrap();
    assert_ne!(phase("worker").thread, phase("main").thread);
    assert_eq!(phase("request").thread, phase("main").thread);
    assert!(phase("request").end_ns.is_some_and(|end| contains(phase("main"), end)));
    for open in ["main", "never popped", "never ended"] {
        assert_eq!(phase(open).end_ns, None, "{open}");
    }
}

#[test]
fn ranges_that_are_open_when_the_recording_starts_begin_with_it() {
    let outcome = with_nvtx("early").run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    assert_eq!(paths(snapshot), ["early:program", "early:program > load"]);
    for phase in &snapshot.phases {
        assert_eq!(phase.begin_ns, 0);
        assert!(
            phase
                .end_ns
                .is_some_and(|end| snapshot.allocations.at(0).time_ns <= end)
        );
    }
}

#[test]
fn ranges_alone_start_no_recording() {
    with_nvtx("without_cuda").run().expect_success().expect_no_file();
}

#[test]
fn a_million_ranges_are_kept_and_the_others_are_counted() {
    let outcome = with_nvtx("many").run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    let named = |name: &str| snapshot.phases.iter().filter(|phase| phase.name == name).count();
    assert_eq!(
        (named("small"), named("deep"), named("beyond")),
        // The last quarter is for phases without a parent.
        ((1 << 20) - 100, 1, 99)
    );
    assert_eq!(snapshot.losses.lost_phases, 16 + 64);
    assert!(snapshot.phases.iter().all(|phase| phase.end_ns.is_some()));
    assert_eq!(mark_names(snapshot), ["end"]);
    let recording = std::fs::metadata(&snapshot.process.recording);
    // The file is gone if the test's folder is; a phase takes 64 bytes, and equal names are stored once.
    if let Ok(recording) = recording {
        assert!(recording.len() < 100 << 20, "{} bytes", recording.len());
    }
}

#[test]
fn a_forked_child_has_its_own_phases() {
    let outcome = with_nvtx("forks").run();
    outcome.expect_success();
    let (child, parent): (Vec<&Snapshot>, Vec<&Snapshot>) = outcome
        .snapshots
        .iter()
        .partition(|snapshot| mark_names(snapshot) == ["child"]);
    assert_eq!(paths(child[0]), ["both:registered by the parent"]);
    assert_eq!(paths(parent[0]), ["parent", "started by the parent"]);
    for snapshot in &outcome.snapshots {
        assert!(snapshot.phases.iter().all(|phase| phase.end_ns.is_some()));
    }
}

#[test]
fn phases_of_the_client_api_nest_with_ranges() {
    let outcome = with_nvtx("client").run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    assert_eq!(
        paths(snapshot),
        [
            "all",
            "all > load",
            "all > load > read",
            "all > elsewhere",
            "all > after"
        ]
    );
    assert!(snapshot.phases.iter().all(|phase| phase.end_ns.is_some()));
    let bare = profile("phases").arg("client").run();
    assert_eq!(paths(bare.only_snapshot()), ["all", "all > load", "all > elsewhere"]);
    profile("phases").arg("client").bare().run().expect_success();
}

#[test]
#[ignore = "needs pip"]
fn ranges_through_nvidias_own_header_are_phases() {
    let include = format!("-I{}", cudart().join("nvtx/include").display());
    let victim = executable("phases", &["-DREAL_HEADER", &include], &[fake_driver()]);
    let run = |behaviour: &str| {
        let run = program(&victim).arg(behaviour);
        run.env("NVTX_INJECTION64_PATH", shim()).run()
    };
    expect_ranges(&run("ranges"));
    let early = run("early");
    assert_eq!(paths(early.only_snapshot()), ["early:program", "early:program > load"]);
}

/// What `culeak` prints about the only recording.
fn culeak_text(outcome: &Outcome, words: &str) -> String {
    let mut words = words.split(' ');
    let output = std::process::Command::new(culeak())
        .args(words.next())
        .args(recordings_in(&outcome.out()))
        .args(words)
        .env("CULEAK_CACHE_DIR", "")
        .output()
        .expect("culeak starts");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `culeak` on the only recording, and returns its exit code and what it printed, as JSON if it passed or failed.
fn culeak_json(outcome: &Outcome, words: &str) -> (i32, serde_json::Value, String) {
    let recordings = recordings_in(&outcome.out());
    assert_eq!(recordings.len(), 1, "{recordings:?}");
    let mut words = words.split(' ');
    let output = std::process::Command::new(culeak())
        .args(words.next())
        .arg(&recordings[0])
        .args(words)
        .arg("--json")
        .env("CULEAK_CACHE_DIR", "")
        .output()
        .expect("culeak starts");
    let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("no signal"), json, errors)
}

const LAST: &str = "check --at mark:asleep --same-as-last";

#[test]
fn a_round_that_leaves_memory_fails_its_check() {
    for (leaked, source) in [
        ("5000", ("CULEAK_TIMELINE", "16777216")),
        ("0", ("CULEAK_TIMELINE", "16777216")),
        ("5000", ("CULEAK_SNAPSHOT_AT_MARK", "1")),
        ("0", ("CULEAK_SNAPSHOT_AT_MARK", "1")),
    ] {
        let outcome = profile("phases")
            .args("rounds")
            .arg(leaked)
            .env(source.0, source.1)
            .run();
        outcome.expect_success();
        let bytes: u64 = leaked.parse().expect("a number");
        let (code, verdict, errors) = culeak_json(&outcome, LAST);
        assert_eq!(code, i32::from(bytes > 0), "{leaked} {source:?}: {errors}");
        assert_eq!(verdict["judged"]["bytes"], bytes, "{source:?}");
        assert_eq!(verdict["boundary"]["count"], 3, "{source:?}");
        assert_eq!(
            verdict["ignored"]["bytes"],
            (1 << 20) + 2 * bytes,
            "the first mebibyte, and earlier rounds"
        );
        let (code, ..) = culeak_json(&outcome, "check --at mark:asleep --same-as-last --allow 5KB");
        assert_eq!(code, 0, "5000 bytes are allowed");

        let (code, verdict, errors) = culeak_json(&outcome, "check --at mark:asleep --not-above 1MiB");
        assert_eq!(code, i32::from(bytes > 0), "{errors}");
        let held: Vec<u64> = verdict["boundary"]["held"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|held| held["bytes"].as_u64().expect("a number"))
            .collect();
        assert_eq!(held, [1, 2, 3].map(|round| (1 << 20) + round * bytes), "{source:?}");
    }
}

#[test]
fn a_buffer_that_is_replaced_each_round_passes_unless_it_grows() {
    for source in [("CULEAK_TIMELINE", "16777216"), ("CULEAK_SNAPSHOT_AT_MARK", "1")] {
        for growth in ["0", "4096"] {
            let run = profile("phases").args("replaces").arg(growth).env(source.0, source.1);
            let outcome = run.run();
            let (code, verdict, errors) = culeak_json(&outcome, LAST);
            assert_eq!(code, i32::from(growth != "0"), "{source:?}: {errors}");
            assert_eq!(verdict["judged"]["bytes"].to_string(), growth, "{source:?}");
            let shown = culeak_text(&outcome, LAST);
            let expected = match growth {
                "0" => "passed: the last mark \"asleep\" holds no more than the previous one\n",
                _ => {
                    "failed: the last mark \"asleep\" holds 4 KiB in 1 block that the previous one did not hold, allowed none\n"
                }
            };
            assert!(shown.starts_with(expected), "{shown}");
        }
    }
}

#[test]
fn the_next_command_after_not_above_shows_the_highest_mark() {
    let run = profile("phases").args("rounds 5000").env("CULEAK_TIMELINE", "16777216");
    let outcome = run.run();
    let shown = culeak_text(&outcome, "check --at mark:asleep --not-above 1MiB");
    let next = shown.lines().last().expect("a line");
    let (_, point) = next.rsplit_once(" --at ").expect("a point");
    assert!(
        point.ends_with('s') && point.parse::<culeak::point::Point>().is_ok(),
        "{next}"
    );
    let (code, report, errors) = culeak_json(&outcome, &format!("report --at {point}"));
    assert_eq!(code, 0, "{errors}");
    assert_eq!(report["totals"]["held"]["device"]["bytes"], (1 << 20) + 3 * 5000);
}

#[test]
fn a_check_at_a_point_that_will_not_be_recorded_does_not_run_the_program() {
    for (at, option, refused) in [
        ("mark:x", None, true),
        ("0.1s", None, true),
        ("0.1s", Some("--snapshot=mark"), true),
        ("exit", None, false),
    ] {
        let mut command = std::process::Command::new(culeak());
        command
            .args(["check", "--at", at])
            .args(option)
            .args(["--", "echo", "ran"]);
        command
            .env_remove("CULEAK_TIMELINE")
            .env_remove("CULEAK_SNAPSHOT_AT_MARK");
        let output = command.output().expect("culeak starts");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.stdout.is_empty(), refused, "{at}: {errors}");
        if refused {
            assert_eq!(output.status.code(), Some(2), "{errors}");
            assert!(errors.contains("--timeline"), "{errors}");
        }
    }
}

#[test]
fn marks_of_one_run_are_compared_without_a_baseline_of_another_and_without_limits_of_objects() {
    let outcome = profile("phases")
        .args("rounds 1")
        .env("CULEAK_TIMELINE", "16777216")
        .run();
    for option in ["--same-as-last", "--not-above 1MiB"] {
        let words = format!("check --at mark:asleep {option} --baseline leaks.json");
        let (code, _, errors) = culeak_json(&outcome, &words);
        assert!(code == 2 && errors.contains("of another run"), "{errors}");
        let words = format!("check --at mark:asleep {option} --allow stream=0");
        let (code, _, errors) = culeak_json(&outcome, &words);
        assert!(code == 2 && errors.contains("in a check of their own"), "{errors}");
    }
}

#[test]
fn a_mark_that_cannot_be_judged_is_an_error_that_names_the_remedy() {
    let with = profile("phases")
        .args("rounds 1")
        .env("CULEAK_TIMELINE", "16777216")
        .run();
    let without = profile("phases").args("rounds 1").run();
    for (outcome, words, expected) in [
        (&with, "check --at mark:once --same-as-last", "only once"),
        (
            &with,
            "check --at mark:dreaming --same-as-last",
            "it set \"asleep\", \"once\"",
        ),
        (&with, "check --at end --same-as-last", "--at mark:NAME"),
        (&without, LAST, "culeak run --timeline"),
        (&without, "check --at mark:asleep --not-above 1", "--snapshot mark"),
    ] {
        let (code, _, errors) = culeak_json(outcome, words);
        assert_eq!(code, 2, "{words}: {errors}");
        assert!(errors.contains(expected), "{words}: {errors}");
    }
}

#[test]
fn a_report_by_phase_has_what_each_phase_allocated_and_left() {
    let outcome = with_nvtx("ranges").env("CULEAK_TIMELINE", "16777216").run();
    let (code, report, errors) = culeak_json(&outcome, "report --view phases:step");
    assert_eq!(code, 0, "{errors}");
    let chosen = report["chosen"].as_array().expect("a list");
    assert_eq!(chosen.len(), 3);
    for (number, step) in (0..).zip(chosen) {
        let figures = &step["figures"][0];
        assert_eq!(step["within"][0], "epoch");
        assert_eq!(figures["held_at_begin"], 100 + 10 * number);
        assert_eq!(figures["high_water"], 1100 + 10 * number);
        assert_eq!(figures["freed_within"]["bytes"], 1000);
        assert_eq!(figures["left_behind"]["bytes"], 10);
        assert_eq!(step["left_behind"][0]["bytes"], 10);
    }
    let row = |name: &str| {
        let rows = report["rows"].as_array().expect("a list");
        rows.iter().find(|row| row["name"] == name).cloned().expect("a row")
    };
    assert_eq!(
        (row("step")["count"].as_u64(), row("epoch")["count"].as_u64()),
        (Some(3), Some(1))
    );
    assert_eq!(row("epoch")["figures"][0]["left_behind"]["max"], 37);
    let (code, _, errors) = culeak_json(&outcome, "report --view phases:nope");
    assert!(
        code == 2 && errors.contains("has no phase \"nope\"; it has \"epoch\", \"step\""),
        "{errors}"
    );
    let (code, _, errors) = culeak_json(&outcome, "report --view phases --between 0s exit");
    assert!(code == 2 && errors.contains("--between"), "{errors}");
    let without = with_nvtx("ranges").run();
    let (code, report, _) = culeak_json(&without, "report --view phases");
    assert_eq!((code, report["log"].is_null()), (0, true));
    assert_eq!(report["rows"][0]["figures"].as_array().map(Vec::len), Some(0));
}
