//! Automatic snapshots: written while the program runs, read like any recording, and exact for the time they were taken.

use std::fs;
use std::path::{Path, PathBuf};

use culeak::kind::Kind::*;
use culeak::reader;
use culeak::snapshot::{ProcessState, Reason, Snapshot};

use crate::disk::Mounted;
use crate::support::claims::Claims;
use crate::support::outcome::{read, recordings_in};
use crate::support::{Outcome, invariants, profile};

/// The automatic snapshots beside the recording, each with the part of its file name that gives its reason.
fn automatic_snapshots(outcome: &Outcome) -> Vec<(String, Snapshot)> {
    snapshots_in(&outcome.out())
}

pub fn snapshots_in(folder: &Path) -> Vec<(String, Snapshot)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("readable")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "culeak-snapshot"))
        .collect();
    paths.sort();
    let name = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        // PROGRAM.HOST.PID.WHAT.culeak-snapshot
        name.trim_end_matches(".culeak-snapshot")
            .rsplit('.')
            .next()
            .unwrap_or_default()
            .to_string()
    };
    let read = |path: &PathBuf| reader::read(path).unwrap_or_else(|error| panic!("{error}"));
    paths
        .iter()
        .map(|path| (name(path), read(path)))
        .inspect(|(_, snapshot)| invariants::check(snapshot, false))
        .collect()
}

fn names(snapshots: &[(String, Snapshot)]) -> Vec<&str> {
    snapshots.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_request_that_runs_out_of_memory_is_snapshotted_once_per_stack_and_three_times_at_most() {
    let outcome = profile("client_api").arg("runs_out").run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshots = automatic_snapshots(&outcome);
    assert_eq!(
        names(&snapshots),
        ["out-of-memory-1", "out-of-memory-2", "out-of-memory-3"]
    );
    for (_, snapshot) in &snapshots {
        snapshot.expect_live(Device, 1, 4321);
        let why = snapshot.taken.automatic.as_ref().expect("a reason");
        assert_eq!(why.reason, Reason::OutOfMemory);
        let failed = &snapshot.failed[why.failed.expect("the request that failed")];
        assert!(failed.bytes >= 1 << 50 && failed.stack.is_some(), "{failed:#?}");
        assert_eq!(snapshot.process.state, ProcessState::Running);
        assert_eq!(snapshot.taken.events_during_read, 0);
    }
    assert_eq!(snapshots[0].1.failed.len(), 1, "it does not include later failures");
    let messages: Vec<&str> = outcome
        .our_lines()
        .into_iter()
        .filter(|line| line.contains("out of memory"))
        .collect();
    assert_eq!(messages.len(), 3, "{messages:?}");
    assert!(
        messages[0].starts_with("culeak: out of memory: cuMemAlloc_v2 of 1 PiB failed"),
        "{messages:?}"
    );
    assert_eq!(outcome.only_snapshot().losses.lost_snapshots, 0);
}

#[test]
fn snapshots_of_failed_requests_can_be_switched_off_and_limited() {
    let none = profile("client_api")
        .arg("runs_out")
        .setting("CULEAK_OOM_SNAPSHOTS", "0")
        .run();
    assert_eq!(automatic_snapshots(&none).len(), 0);
    assert!(!none.stderr.contains("out of memory"), "{}", none.stderr);
    let one = profile("client_api")
        .arg("runs_out")
        .setting("CULEAK_OOM_SNAPSHOTS", "1")
        .run();
    assert_eq!(names(&automatic_snapshots(&one)), ["out-of-memory-1"]);
}

#[test]
fn a_program_can_request_snapshots_and_marks_take_them_on_request() {
    let requested = profile("client_api").arg("marks").run();
    let snapshots = automatic_snapshots(&requested);
    assert_eq!(names(&snapshots), ["snapshot-1"]);
    let snapshot = &snapshots[0].1;
    snapshot.expect_live(Device, 2, 3000);
    let why = snapshot.taken.automatic.as_ref().expect("a reason");
    assert_eq!(
        (why.reason, why.name.as_deref()),
        (Reason::Requested, Some("after warm-up"))
    );

    let marked = profile("client_api")
        .arg("marks")
        .setting("CULEAK_SNAPSHOT_AT_MARK", "1")
        .run();
    let snapshots = automatic_snapshots(&marked);
    assert_eq!(names(&snapshots), ["mark-1", "mark-3", "snapshot-2"]);
    snapshots[1].1.expect_live(Device, 3, 7000);
    assert_eq!(
        snapshots[1]
            .1
            .taken
            .automatic
            .as_ref()
            .and_then(|automatic| automatic.name.as_deref()),
        Some("epoch 2 \u{e9}")
    );
}

#[test]
fn the_highest_peak_is_stored_in_one_file() {
    let outcome = profile("client_api")
        .arg("peaks")
        .setting("CULEAK_SNAPSHOT_AT_PEAK", "1MB")
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshots = automatic_snapshots(&outcome);
    assert_eq!(names(&snapshots), ["peak-0"]);
    let (_, snapshot) = &snapshots[0];
    assert_eq!(
        snapshot.taken.automatic.as_ref().map(|automatic| automatic.reason),
        Some(Reason::Peak)
    );
    // 4 MiB; the last thousand bytes are less than a step.
    snapshot.expect_live(Device, 3, 4 << 20);
}

#[test]
fn a_snapshot_is_taken_at_every_interval() {
    let outcome = profile("client_api")
        .arg("goes_on")
        .setting("CULEAK_SNAPSHOT_EVERY", "20ms")
        .run();
    let snapshots = automatic_snapshots(&outcome);
    assert!(snapshots.len() > 1, "{:?}", names(&snapshots));
    let mut before = 0;
    for (name, snapshot) in &snapshots {
        assert!(name.starts_with("every-"), "{name}");
        assert!(snapshot.taken.at_ns >= 20_000_000);
        assert_eq!(
            snapshot.taken.automatic.as_ref().map(|automatic| automatic.reason),
            Some(Reason::Every)
        );
    }
    let mut by_time: Vec<_> = snapshots
        .iter()
        .map(|(_, p)| (p.taken.at_ns, p.allocations.len()))
        .collect();
    by_time.sort();
    for (_, live) in by_time {
        assert!(live > before, "each shows more than the one before");
        before = live;
    }
}

#[test]
fn an_allocation_that_fails_in_the_driver_and_in_pytorch_makes_one_snapshot() {
    let outcome = crate::tensors::tensors("runs_out", &crate::tensors::torch(1, &[])).run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshots = automatic_snapshots(&outcome);
    // Two calls with one stack each. The driver's failures happened on behalf of PyTorch's.
    assert_eq!(names(&snapshots), ["out-of-memory-1", "out-of-memory-2"]);
    for (_, snapshot) in &snapshots {
        let why = snapshot.taken.automatic.as_ref().and_then(|automatic| automatic.failed);
        assert_eq!(snapshot.failed[why.expect("the request that failed")].kind, Tensor);
        snapshot.expect_live(Tensor, 1, 1024);
    }
}

#[test]
fn the_highest_peak_of_tensors_is_stored_too() {
    let torch = crate::tensors::torch(1, &[]);
    let outcome = crate::tensors::tensors("leaks", &torch)
        .setting("CULEAK_SNAPSHOT_AT_PEAK", "100000")
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshots = automatic_snapshots(&outcome);
    assert_eq!(names(&snapshots), ["peak-0", "peak-of-tensors-0"]);
    snapshots[1].1.expect_live(Tensor, 4, 1024 + 5120 + 2048 + 100_352);
}

#[test]
fn no_snapshot_is_taken_unless_requested() {
    let outcome = profile("client_api").arg("peaks").run();
    assert_eq!(automatic_snapshots(&outcome).len(), 0);
}

#[test]
#[ignore = "needs root"]
fn a_full_disk_loses_snapshots_and_nothing_else() {
    // Room for the recording and one snapshot of the same size.
    let mounted = Mounted::on_out_with("size=256k");
    let out = mounted.path().join("out");
    let pattern = format!("{}/%p.culeak", out.display());
    let outcome = profile("client_api").arg("runs_out").output(&pattern).run();
    outcome.expect_success().expect_same_output_as_bare();
    let [recording] = &recordings_in(&out)[..] else {
        panic!("{}", outcome.everything())
    };
    let snapshot = read(recording);
    snapshot.expect_live(Device, 2, 5555).expect_nothing_lost();
    assert_eq!((snapshots_in(&out).len(), snapshot.losses.lost_snapshots), (1, 2));
    let files = fs::read_dir(&out).expect("readable").count();
    assert_eq!(files, 2, "no incomplete file is left behind");
}

#[test]
fn culeak_run_passes_its_options_on_and_reports_the_snapshots() {
    let folder = crate::support::profile::folder();
    let victim = crate::support::victim("client_api", crate::support::Lookup::Linked);
    let driver = crate::support::profile::fake_driver_folder();
    let mut run = std::process::Command::new(crate::support::culeak());
    run.args(["run", "--no-report", "--snapshot", "mark", "--no-pool", "-o"])
        .arg(folder.path())
        .arg("--")
        .arg(victim)
        .arg("marks")
        .env("LD_LIBRARY_PATH", driver)
        .env("TF_GPU_ALLOCATOR", "mine");
    let output = run.output().expect("culeak starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("culeak: 3 automatic snapshots in"), "{stderr}");
    assert!(stderr.contains("PYTORCH_NO_CUDA_MEMORY_CACHING=1"), "{stderr}");
    assert!(stderr.contains("TF_GPU_ALLOCATOR keeps your value: mine"), "{stderr}");
    let words: Vec<&str> = stderr
        .split("culeak report ")
        .nth(1)
        .expect("a command")
        .split_whitespace()
        .collect();
    let report = std::process::Command::new(crate::support::culeak())
        .args(["report", words[0]])
        .output();
    let report = report.expect("culeak starts");
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
}

#[test]
fn an_interval_that_exceeds_its_limit_is_snapshotted_once() {
    let outcome = profile("client_api")
        .arg("intervals")
        .env("CULEAK_INTERVALS", "1")
        .run();
    let snapshots = automatic_snapshots(&outcome);
    assert_eq!(names(&snapshots), ["exceeded-1"]);
    let snapshot = &snapshots[0].1;
    let since = snapshot.marks.last().expect("the interval").time_ns;
    let mut bytes: Vec<u64> = snapshot
        .allocations
        .iter()
        .filter(|a| a.time_ns >= since)
        .map(|a| a.bytes)
        .collect();
    bytes.sort();
    assert_eq!(
        bytes,
        [1500, 2000],
        "at the allocation that exceeded the limit, that one included"
    );
}
