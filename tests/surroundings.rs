//! Unusual surroundings: other allocators, sandboxes, namespaces and file systems. The program's output is the same as
//! without culeak, and the totals are exact or the losses are counted.
//!
//! Full and read-only disks and limits are in `disk.rs`, sanitizers in `without_cuda.rs`, exec and fork in `children.rs`.
//! Claims that mount or enter a namespace need root and fail without it.

use std::fs;
use std::path::Path;

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::outcome::{read, recordings_in};
use crate::support::profile::folder;
use crate::support::{Outcome, Preload, fake_driver, installed, library, profile, program, shim};

const ORDERS: [Preload; 2] = [Preload::BeforeCuleak, Preload::AfterCuleak];
/// How many blocks `grows` of `victims/surroundings.c` leaves.
const GROWN: usize = 3000;

#[track_caller]
fn expect_undisturbed_by_allocator(soname: &str) {
    let allocator = installed(soname);
    let victim = executable("sanitized", &[], &[fake_driver()]);
    for place in ORDERS {
        let outcome = program(&victim).with_preload(place, allocator.clone()).run();
        outcome.expect_success().expect_same_output_as_bare();
        let snapshot = outcome.only_snapshot();
        snapshot.expect_live(Device, 1, 100).expect_nothing_lost();
        assert_eq!(snapshot.counted(Device).total_count, 801, "{place:?}");
    }
}

#[test]
#[ignore = "needs jemalloc, tcmalloc and mimalloc"]
fn a_program_on_jemalloc_is_recorded_exactly() {
    expect_undisturbed_by_allocator("libjemalloc.so.2");
}

#[test]
#[ignore = "needs jemalloc, tcmalloc and mimalloc"]
fn a_program_on_tcmalloc_is_recorded_exactly() {
    expect_undisturbed_by_allocator("libtcmalloc_minimal.so.4");
}

#[test]
fn of_two_preloaded_copies_of_culeak_the_one_behind_the_client_api_records() {
    let copy = folder();
    let second = copy.path().join("libculeak-other.so");
    fs::copy(shim(), &second).expect("copied");
    for place in ORDERS {
        let outcome = profile("surroundings")
            .with_preload(place, second.clone())
            .arg("grows")
            .run();
        outcome.expect_success();
        assert_eq!(outcome.stdout, "done\n", "{}", outcome.everything());
        let snapshot = outcome.only_snapshot();
        snapshot
            .expect_live(Device, GROWN, GROWN as u64 * 16)
            .expect_nothing_lost();
        let marks: Vec<&str> = snapshot.marks.iter().map(|mark| mark.name.as_str()).collect();
        assert_eq!(marks, ["grown"], "{place:?}");
    }
}

#[test]
fn a_program_that_closes_every_descriptor_at_once_is_recorded_to_its_end() {
    let outcome = profile("surroundings").arg("closes_a_range").run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome
        .only_snapshot()
        .expect_live(Device, GROWN + 1, GROWN as u64 * 16 + 100)
        .expect_nothing_lost();
}

#[test]
fn a_sandbox_without_tgkill_and_process_vm_readv_loses_nothing() {
    let outcome = profile("surroundings").arg("sandboxed").run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.symbolized();
    snapshot.expect_live(Device, 1, 16).expect_nothing_lost();
    assert_eq!(snapshot.counted(Device).total_count, 70 * 3 * 2000 + 1);
    let functions = snapshot.functions(snapshot.only(Device));
    assert_eq!(functions[0], "leak");
    assert_eq!(
        functions.iter().filter(|name| *name == "grow").count(),
        6,
        "{functions:?}"
    );
    assert!(functions.contains(&"main".to_owned()), "{functions:?}");
}

#[test]
fn on_a_slow_file_system_every_allocation_is_recorded_or_counted() {
    let slow = library("slow_disk", "libslow_disk.so", &[], &[]);
    for behaviour in ["begins_on_many_threads", "grows"] {
        let outcome = profile("surroundings")
            .with_preload(Preload::BeforeCuleak, slow.clone())
            .env("SLOW_DISK_MS", "30")
            .arg(behaviour)
            .run();
        outcome.expect_success().expect_same_output_as_bare();
        let snapshot = outcome.only_snapshot();
        let made = if behaviour == "grows" { GROWN as u64 } else { 800 };
        let saved = snapshot.of_kind(Device).len() as u64;
        assert_eq!(
            saved + snapshot.losses.lost_allocations,
            made,
            "{behaviour}: {:#?}",
            snapshot.losses
        );
    }
}

/// Runs `grows` in new namespaces, after the shell command `before`, in which `$out` is the folder of the recording. The
/// recordings are copied at the end, since a mount disappears with its namespace.
#[track_caller]
fn in_namespaces(flags: &[&str], before: &str) -> Outcome {
    let place = folder();
    let out = place.path().join("mounted");
    let saved = place.path().join("saved");
    for made in [&out, &saved] {
        fs::create_dir(made).expect("made");
    }
    let script = format!(
        "out={} saved={}; {before} || exit 90; \"$@\"; code=$?; cp -p \"$out\"/* \"$saved\" || exit 91; exit $code",
        out.display(),
        saved.display()
    );
    let mut wrapper = vec!["unshare"];
    wrapper.extend(flags);
    wrapper.extend(["sh", "-c", script.as_str(), "sh"]);
    let pattern = format!("{}/%p.culeak", out.display());
    let outcome = profile("surroundings")
        .wrapped_in(&wrapper)
        .output(&pattern)
        .arg("grows")
        .run();
    assert!(
        outcome.status.success(),
        "namespaces need root, and a kernel that has them\n{}",
        outcome.everything()
    );
    assert_eq!(outcome.stdout, "done\n", "{}", outcome.everything());
    expect_grown(&saved);
    outcome
}

#[track_caller]
fn expect_grown(folder: &Path) {
    let recordings = recordings_in(folder);
    let [recording] = &recordings[..] else {
        panic!("{recordings:?}")
    };
    read(recording)
        .expect_live(Device, GROWN, GROWN as u64 * 16)
        .expect_nothing_lost();
}

#[test]
#[ignore = "needs root"]
fn a_mount_namespace_with_a_noexec_file_system_holds_recordings() {
    in_namespaces(
        &["--mount"],
        "mount -t tmpfs -o noexec,nosuid,nodev culeak-test \"$out\"",
    );
}

#[test]
#[ignore = "needs root"]
fn a_process_in_its_own_pid_namespace_is_recorded_exactly() {
    in_namespaces(&["--pid", "--fork", "--mount-proc"], "true");
}

#[test]
#[ignore = "needs root"]
fn a_process_in_a_pid_namespace_without_its_own_proc_is_recorded_exactly() {
    // /proc shows the outer processes, so what it lists under our pid is another process.
    in_namespaces(&["--pid", "--fork"], "true");
}

#[test]
#[ignore = "needs root"]
fn a_process_whose_clock_is_ahead_is_recorded_exactly() {
    in_namespaces(&["--time", "--monotonic", "1000000", "--fork"], "true");
}
