//! Pictures kept on disk while the program runs: read like any recording, and as it was at that moment.

use std::fs;
use std::path::PathBuf;

use culeak::kind::Kind::*;
use culeak::reader;
use culeak::snapshot::{ProcessState, Snapshot, Why};

use crate::support::claims::Claims;
use crate::support::{Outcome, invariants, profile};

/// What was kept beside the recording, by name.
fn kept(outcome: &Outcome) -> Vec<(String, Snapshot)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(outcome.out())
        .expect("readable")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "culeak-kept"))
        .collect();
    paths.sort();
    let name = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        // PROGRAM.HOST.PID.WHAT.culeak-kept
        name.trim_end_matches(".culeak-kept")
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

fn names(pictures: &[(String, Snapshot)]) -> Vec<&str> {
    pictures.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_request_that_fails_for_lack_of_memory_is_kept_once_per_stack_and_three_times_in_all() {
    let outcome = profile("told").arg("runs_out").run();
    outcome.expect_success().expect_same_output_as_bare();
    let pictures = kept(&outcome);
    assert_eq!(
        names(&pictures),
        ["out-of-memory-1", "out-of-memory-2", "out-of-memory-3"]
    );
    for (_, picture) in &pictures {
        picture.expect_live(Device, 1, 4321);
        let why = picture.taken.kept.as_ref().expect("a reason");
        assert_eq!(why.why, Why::OutOfMemory);
        let failed = &picture.refused[why.refused.expect("the request that failed")];
        assert!(failed.bytes >= 1 << 50 && failed.stack.is_some(), "{failed:#?}");
        assert_eq!(picture.process.state, ProcessState::Running);
        assert_eq!(picture.taken.events_during_read, 0);
    }
    assert_eq!(
        pictures[0].1.refused.len(),
        1,
        "it shows the moment, not what came later"
    );
    let said: Vec<&str> = outcome
        .our_lines()
        .into_iter()
        .filter(|line| line.contains("out of memory"))
        .collect();
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(
        said[0].starts_with("culeak: out of memory: cuMemAlloc_v2 of 1024 TiB was refused"),
        "{said:?}"
    );
    assert_eq!(outcome.only_snapshot().honesty.lost_pictures, 0);
}

#[test]
fn pictures_of_failed_requests_can_be_switched_off_and_limited() {
    let none = profile("told")
        .arg("runs_out")
        .setting("CULEAK_OOM_SNAPSHOTS", "0")
        .run();
    assert_eq!(kept(&none).len(), 0);
    assert!(!none.stderr.contains("out of memory"), "{}", none.stderr);
    let one = profile("told")
        .arg("runs_out")
        .setting("CULEAK_OOM_SNAPSHOTS", "1")
        .run();
    assert_eq!(names(&kept(&one)), ["out-of-memory-1"]);
}

#[test]
fn the_program_can_ask_for_pictures_and_marks_make_them_when_told_to() {
    let asked = profile("told").arg("moments").run();
    let pictures = kept(&asked);
    assert_eq!(names(&pictures), ["snapshot-1"]);
    let picture = &pictures[0].1;
    picture.expect_live(Device, 2, 3000);
    let why = picture.taken.kept.as_ref().expect("a reason");
    assert_eq!((why.why, why.name.as_deref()), (Why::Requested, Some("after warm-up")));

    let marked = profile("told")
        .arg("moments")
        .setting("CULEAK_SNAPSHOT_AT_MARK", "1")
        .run();
    let pictures = kept(&marked);
    assert_eq!(names(&pictures), ["mark-1", "mark-3", "snapshot-2"]);
    pictures[1].1.expect_live(Device, 3, 7000);
    assert_eq!(
        pictures[1].1.taken.kept.as_ref().and_then(|kept| kept.name.as_deref()),
        Some("epoch 2 \u{e9}")
    );
}

#[test]
fn the_highest_peak_is_kept_in_one_file() {
    let outcome = profile("told")
        .arg("peaks")
        .setting("CULEAK_SNAPSHOT_AT_PEAK", "1MB")
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    let pictures = kept(&outcome);
    assert_eq!(names(&pictures), ["peak-0"]);
    let (_, picture) = &pictures[0];
    assert_eq!(picture.taken.kept.as_ref().map(|kept| kept.why), Some(Why::Peak));
    // 4 MiB; the last thousand bytes were less than a step.
    picture.expect_live(Device, 3, 4 << 20);
}

#[test]
fn a_picture_is_kept_each_time_the_time_has_passed() {
    let outcome = profile("told")
        .arg("goes_on")
        .setting("CULEAK_SNAPSHOT_EVERY", "20ms")
        .run();
    let pictures = kept(&outcome);
    assert!(pictures.len() > 1, "{:?}", names(&pictures));
    let mut before = 0;
    for (name, picture) in &pictures {
        assert!(name.starts_with("every-"), "{name}");
        assert!(picture.taken.at_ns >= 20_000_000);
        assert_eq!(picture.taken.kept.as_ref().map(|kept| kept.why), Some(Why::Every));
    }
    let mut by_time: Vec<_> = pictures
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
fn pytorch_giving_up_makes_one_picture_though_the_driver_refused_it_first() {
    let outcome = crate::tensors::tensors("runs_out", &crate::tensors::torch(1, &[])).run();
    outcome.expect_success().expect_same_output_as_bare();
    let pictures = kept(&outcome);
    // Two calls, one stack each; what the driver refused was PyTorch's own asking.
    assert_eq!(names(&pictures), ["out-of-memory-1", "out-of-memory-2"]);
    for (_, picture) in &pictures {
        let why = picture.taken.kept.as_ref().and_then(|kept| kept.refused);
        assert_eq!(picture.refused[why.expect("the request that failed")].kind, Tensor);
        picture.expect_live(Tensor, 1, 1024);
    }
}

#[test]
fn the_highest_peak_of_tensors_is_kept_too() {
    let torch = crate::tensors::torch(1, &[]);
    let outcome = crate::tensors::tensors("leaks", &torch)
        .setting("CULEAK_SNAPSHOT_AT_PEAK", "100000")
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    let pictures = kept(&outcome);
    assert_eq!(names(&pictures), ["peak-0", "peak-of-tensors-0"]);
    pictures[1].1.expect_live(Tensor, 4, 1024 + 5120 + 2048 + 100_352);
}

#[test]
fn nothing_is_kept_unless_asked_for() {
    let outcome = profile("told").arg("peaks").run();
    assert_eq!(kept(&outcome).len(), 0);
}

#[test]
fn a_full_disk_costs_the_picture_and_nothing_else() {
    // The recording fits below this file-size limit, and then grows no more; nor does anything else.
    let outcome = profile("told")
        .arg("runs_out")
        .wrapped_in(&["sh", "-c", "ulimit -f 640; exec \"$@\"", "sh"])
        .run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    assert_eq!(kept(&outcome).len() as u64 + snapshot.honesty.lost_pictures, 3);
    let left = fs::read_dir(outcome.out()).expect("readable").count();
    assert_eq!(left, 1 + kept(&outcome).len(), "nothing half made is left behind");
}

#[test]
fn culeak_run_passes_the_wishes_on_and_says_what_was_kept() {
    let folder = crate::support::profile::folder();
    let victim = crate::support::victim("told", crate::support::Door::Linked);
    let driver = crate::support::profile::fake_driver_folder();
    let mut run = std::process::Command::new(crate::support::culeak());
    run.args(["run", "--no-report", "--snapshot-at-mark", "--no-pool", "-o"])
        .arg(folder.path())
        .arg("--")
        .arg(victim)
        .arg("moments")
        .env("LD_LIBRARY_PATH", driver)
        .env("TF_GPU_ALLOCATOR", "mine");
    let output = run.output().expect("culeak starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("kept 3 automatic snapshots in"), "{said}");
    assert!(said.contains("PYTORCH_NO_CUDA_MEMORY_CACHING=1"), "{said}");
    assert!(said.contains("TF_GPU_ALLOCATOR stays as you set it: mine"), "{said}");
    let words: Vec<&str> = said
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
fn the_moment_when_an_interval_needs_more_than_it_may_is_kept_once() {
    let outcome = profile("told").arg("intervals").env("CULEAK_INTERVALS", "1").run();
    let pictures = kept(&outcome);
    assert_eq!(names(&pictures), ["exceeded-1"]);
    let picture = &pictures[0].1;
    let since = picture.marks.last().expect("the interval").time_ns;
    let mut bytes: Vec<u64> = picture
        .allocations
        .iter()
        .filter(|a| a.time_ns >= since)
        .map(|a| a.bytes)
        .collect();
    bytes.sort();
    assert_eq!(bytes, [1500, 2000], "the moment, with the allocation that went too far");
}
