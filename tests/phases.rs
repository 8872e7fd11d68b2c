//! Phases: ranges and marks of NVTX, and phases of the client API.

use culeak::snapshot::{Phase, Snapshot};

use crate::support::compile::executable;
use crate::support::outcome::Outcome;
use crate::support::{Profile, fake_driver, profile, program, shim};

fn with_nvtx(behaviour: &str) -> Profile {
    profile("phases")
        .arg(behaviour)
        .env("NVTX_INJECTION64_PATH", shim())
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
        assert!(phase.end_ns.is_some_and(|end| snapshot.allocations.at(0).time_ns <= end));
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
    assert_eq!((named("small"), named("deep"), named("beyond")), ((1 << 20) - 100, 64, 36));
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
        ["all", "all > load", "all > load > read", "all > elsewhere", "all > after"]
    );
    assert!(snapshot.phases.iter().all(|phase| phase.end_ns.is_some()));
    let bare = profile("phases").arg("client").run();
    assert_eq!(paths(bare.only_snapshot()), ["all", "all > load", "all > elsewhere"]);
    profile("phases").arg("client").bare().run().expect_success();
}

/// `CULEAK_NVTX_INCLUDE`: the folder that holds `nvtx3/`, as Python's package nvidia-nvtx installs it.
#[test]
#[ignore = "needs NVIDIA's header: pip download nvidia-nvtx, unpack it, then CULEAK_NVTX_INCLUDE=…/include cargo test -p culeak-cli --test main -- --ignored nvidias_own"]
fn ranges_through_nvidias_own_header_are_phases() {
    let folder = std::env::var("CULEAK_NVTX_INCLUDE").expect("CULEAK_NVTX_INCLUDE names the folder that holds nvtx3/");
    let include = format!("-I{folder}");
    let victim = executable("phases", &["-DREAL_HEADER", &include], &[fake_driver()]);
    let run = |behaviour: &str| {
        let run = program(&victim).arg(behaviour);
        run.env("NVTX_INJECTION64_PATH", shim()).run()
    };
    expect_ranges(&run("ranges"));
    let early = run("early");
    assert_eq!(paths(early.only_snapshot()), ["early:program", "early:program > load"]);
}
