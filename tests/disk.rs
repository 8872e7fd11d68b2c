//! Full disks, limits and missing descriptors: the program runs on unchanged, and losses are counted and reported once.

use std::fs;
use std::path::Path;
use std::process::Command;

use culeak::kind::Kind::*;
use tempfile::TempDir;

use crate::support::claims::Claims;
use crate::support::profile::folder;
use crate::support::{Outcome, Preload, Profile, expect_root, library, profile};

/// The number of blocks that `grow` in `victims/limits.c` allocates.
const GROWN: u64 = 4096 + 60_000;

/// The program behaves as without the recorder.
#[track_caller]
fn expect_unharmed(outcome: &Outcome) {
    outcome.expect_success().expect_same_output_as_bare();
}

/// The recorder's messages about losses, without the summary at the end.
fn loss_messages(outcome: &Outcome) -> Vec<&str> {
    let about_losses = |line: &&str| {
        ["cannot", "could not", "not recorded", "lost", "full"]
            .iter()
            .any(|word| line.contains(word))
    };
    outcome.our_lines().into_iter().filter(about_losses).collect()
}

/// Every allocation is recorded or counted as lost, and losses are reported exactly once.
#[track_caller]
fn expect_all_accounted_for(outcome: &Outcome, allocations: u64) {
    let snapshot = outcome.only_snapshot();
    let recorded = snapshot.of_kind(Device).len() as u64;
    assert_eq!(
        recorded + snapshot.losses.lost_allocations,
        allocations,
        "{:#?}",
        snapshot.losses
    );
    let lost = snapshot.losses.lost_allocations + snapshot.losses.lost_stacks + snapshot.losses.lost_details;
    let lines = loss_messages(outcome);
    if lost == 0 {
        assert!(lines.is_empty(), "{lines:?}");
    } else {
        assert_eq!(lines.len(), 1, "{}", outcome.stderr);
    }
}

/// The behaviour allocates 100 bytes, then grows: all of it is recorded.
#[track_caller]
fn expect_all_recorded(behaviour: &str) {
    let outcome = profile("limits").arg(behaviour).run();
    expect_unharmed(&outcome);
    outcome
        .only_snapshot()
        .expect_live(Device, GROWN as usize + 1, GROWN * 16 + 100)
        .expect_nothing_lost();
}

/// There may be no usable recording, but that is reported once.
#[track_caller]
fn expect_reported_without_recording(outcome: &Outcome) {
    assert!(
        outcome.snapshots.iter().all(|s| s.allocations.is_empty()),
        "{:#?}",
        outcome.snapshots
    );
    assert_eq!(loss_messages(outcome).len(), 1, "{}", outcome.everything());
}

#[test]
fn a_recording_grows_as_needed() {
    let outcome = profile("limits").arg("grows").run();
    expect_unharmed(&outcome);
    let snapshot = outcome.only_snapshot();
    snapshot
        .expect_live(Device, GROWN as usize, GROWN * 16)
        .expect_nothing_lost();
    assert_eq!(
        snapshot.stacks.len(),
        4096 + 1,
        "one stack for each path, one for the loop"
    );
    assert!(snapshot.allocations.iter().all(|a| a.stack.is_some()));
    assert!(loss_messages(&outcome).is_empty(), "{}", outcome.stderr);
}

#[test]
fn a_file_size_limit_loses_records_and_nothing_else() {
    for bytes in ["200000", "1000000", "3000000"] {
        let outcome = profile("limits").arg("file_size").arg(bytes).run();
        expect_unharmed(&outcome);
        expect_all_accounted_for(&outcome, GROWN);
        assert!(
            outcome.only_snapshot().losses.lost_allocations > 0,
            "{bytes} bytes were expected to be too few"
        );
    }
}

/// A test harness learns that a test was not measured.
#[test]
fn an_interval_that_lost_allocations_cannot_be_read() {
    let outcome = profile("limits").arg("interval").env("CULEAK_INTERVALS", "1").run();
    outcome.expect_success();
    assert_eq!(outcome.stdout, "before: 1\nfull: 0\ndone\n");
    assert!(outcome.only_snapshot().losses.lost_allocations > 0);
}

#[test]
fn without_room_for_any_file_the_program_runs_unrecorded() {
    for bytes in ["0", "1", "4096"] {
        let outcome = profile("limits").arg("file_size").arg(bytes).run();
        expect_unharmed(&outcome);
        expect_reported_without_recording(&outcome);
    }
}

#[test]
fn a_limit_set_later_leaves_earlier_records_intact() {
    let outcome = profile("limits").arg("file_size_later").run();
    expect_unharmed(&outcome);
    expect_all_accounted_for(&outcome, GROWN + 1);
    assert_eq!(outcome.only_snapshot().allocations.at(0).bytes, 100);
}

#[test]
fn without_a_free_descriptor_the_program_runs_unrecorded() {
    let outcome = profile("limits").arg("no_descriptors").run();
    expect_unharmed(&outcome);
    expect_reported_without_recording(&outcome);
}

#[test]
fn without_a_free_descriptor_the_recording_still_counts_every_loss() {
    let outcome = profile("limits").arg("no_descriptors_later").run();
    expect_unharmed(&outcome);
    expect_all_accounted_for(&outcome, GROWN + 1);
}

#[test]
fn a_program_that_closes_every_descriptor_loses_nothing() {
    expect_all_recorded("closes_everything");
}

#[test]
fn a_program_that_uses_every_descriptor_itself_loses_nothing() {
    expect_all_recorded("takes_every_number");
}

#[test]
fn a_program_that_changes_its_folder_loses_nothing() {
    expect_all_recorded("changes_folder");
}

#[test]
fn a_relative_path_is_resolved_once_at_start() {
    let outcome = profile("limits")
        .output("relative-%p.culeak")
        .arg("changes_folder")
        .run();
    expect_unharmed(&outcome);
    assert_eq!(
        crate::support::outcome::recordings_in(&outcome.work()).len(),
        1,
        "{}",
        outcome.everything()
    );
}

#[test]
#[ignore = "needs root"]
fn a_program_that_drops_its_user_or_changes_its_root_loses_nothing() {
    expect_root("drops its user and changes its root");
    expect_all_recorded("drops_user");
    expect_all_recorded("changes_root");
}

#[test]
fn a_recording_whose_folder_is_moved_keeps_growing() {
    let folder = folder();
    let (out, moved) = (folder.path().join("out"), folder.path().join("moved"));
    let outcome = profile("limits")
        .arg("moves_folder")
        .arg(&out)
        .arg(&moved)
        .run_in(folder);
    outcome.expect_success();
    let recordings = crate::support::outcome::recordings_in(&moved);
    assert_eq!(recordings.len(), 1, "{}", outcome.everything());
    crate::support::outcome::read(&recordings[0])
        .expect_live(Device, GROWN as usize + 1, GROWN * 16 + 100)
        .expect_nothing_lost();
}

#[test]
fn a_recording_that_can_no_longer_be_reopened_is_reported() {
    let folder = folder();
    let (out, moved) = (folder.path().join("out"), folder.path().join("moved"));
    let run = profile("limits").arg("moves_folder_and_closes").arg(&out).arg(&moved);
    let outcome = run.run_in(folder);
    outcome.expect_success();
    let lines = loss_messages(&outcome);
    assert_eq!(lines.len(), 1, "{}", outcome.everything());
    assert!(lines[0].contains("its folder was moved"), "{}", lines[0]);
    let snapshot = crate::support::outcome::read(&crate::support::outcome::recordings_in(&moved)[0]);
    let recorded = snapshot.of_kind(Device).len() as u64;
    assert_eq!(recorded + snapshot.losses.lost_allocations, GROWN + 1);
}

#[test]
fn a_program_that_can_open_no_more_files_loses_nothing() {
    expect_all_recorded("may_open_no_files");
}

#[test]
fn a_program_that_cannot_extend_files_gets_the_reason_for_lost_records() {
    let outcome = profile("limits").arg("may_not_extend_files").run();
    expect_unharmed(&outcome);
    expect_all_accounted_for(&outcome, GROWN + 1);
    assert!(
        loss_messages(&outcome)[0].contains("permission denied"),
        "{}",
        outcome.stderr
    );
}

/// A disk whose writes take this long and which has limited space; see `victims/slow_disk.c`.
fn on_slow_disk(behaviour: &str, settings: &[(&str, &str)]) -> Profile {
    let disk = library("slow_disk", "libslow_disk.so", &[], &[]);
    let run = profile("limits")
        .with_preload(Preload::AfterCuleak, disk)
        .arg(behaviour);
    settings.iter().fold(run, |run, (name, value)| run.env(name, value))
}

#[test]
fn a_full_disk_is_not_retried_at_every_allocation() {
    let folder = folder();
    let log = folder.path().join("log");
    let settings = [
        ("SLOW_DISK_ROOM", "1000000"),
        ("SLOW_DISK_LOG", log.to_str().expect("a path")),
    ];
    let outcome = on_slow_disk("grows", &settings).run_in(folder);
    expect_all_accounted_for(&outcome, GROWN);
    let [failed, milliseconds, _] = logged(&log);
    // Each section retries by itself: at once, and then at most once a second.
    let sections = 21;
    assert!(failed > 0);
    assert!(
        failed <= sections * (1 + milliseconds / 1000),
        "{failed} attempts in {milliseconds} ms"
    );
}

/// The numbers that `victims/slow_disk.c` writes.
fn logged(log: &Path) -> [u64; 3] {
    let text = fs::read_to_string(log).expect("the disk logs its requests");
    let numbers: Vec<_> = text
        .split(' ')
        .map(|number| number.parse().expect("a number"))
        .collect();
    numbers.try_into().expect("three numbers")
}

#[test]
fn modules_that_cannot_be_stored_are_not_identified_at_every_allocation() {
    let mut all = 0;
    // For the header of a recording and some sections.
    for room in ["48000", "60000", "75000"] {
        let folder = folder();
        let log = folder.path().join("log");
        let settings = [
            ("SLOW_DISK_ROOM", room),
            ("SLOW_DISK_LOG", log.to_str().expect("a path")),
        ];
        let outcome = on_slow_disk("grows", &settings).run_in(folder);
        let [failed, milliseconds, lists] = logged(&log);
        expect_unharmed(&outcome);
        assert!(failed > 0, "{room}");
        // Of each module that is stored, and of one in each attempt to store another, at most once a second.
        let most = 16 + milliseconds / 1000;
        assert!(
            lists <= most,
            "{room}: {lists} lists of the mappings in {milliseconds} ms"
        );
        all += lists;
    }
    assert!(all > 0, "no list of the mappings was counted");
}

#[test]
fn recording_resumes_when_the_disk_has_room_again() {
    let settings = [("SLOW_DISK_ROOM", "1000000"), ("SLOW_DISK_FAILS", "1")];
    let outcome = on_slow_disk("disk_is_full_for_a_while", &settings).run();
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    let losses = &snapshot.losses;
    assert!(
        losses.lost_allocations + losses.lost_details + losses.lost_stacks > 0,
        "{losses:#?}"
    );
    let last = snapshot.allocations.iter().find(|a| a.bytes == 777);
    assert!(last.is_some_and(|last| last.stack.is_some()), "{losses:#?}");
}

#[test]
fn threads_that_start_while_the_recording_is_created_wait_for_it() {
    let outcome = on_slow_disk("begins_on_eight_threads", &[("SLOW_DISK_MS", "400")]).run();
    expect_unharmed(&outcome);
    outcome
        .only_snapshot()
        .expect_live(Device, 32, 32 * 16)
        .expect_nothing_lost();
}

#[test]
fn allocations_of_threads_that_stop_waiting_are_counted_as_lost() {
    let outcome = on_slow_disk("begins_on_eight_threads", &[("SLOW_DISK_MS", "1500")]).run();
    expect_unharmed(&outcome);
    let snapshot = outcome.only_snapshot();
    let recorded = snapshot.of_kind(Device).len() as u64;
    assert_eq!(
        recorded + snapshot.losses.lost_allocations,
        32,
        "{:#?}",
        snapshot.losses
    );
    assert!(snapshot.losses.lost_allocations > 0, "{:#?}", snapshot.losses);
    assert_eq!(loss_messages(&outcome).len(), 1, "{}", outcome.stderr);
}

#[test]
fn threads_on_a_slow_disk_share_each_extent() {
    let outcome = on_slow_disk(
        "grows_on_four_threads",
        &[("SLOW_DISK_MS", "1000"), ("SLOW_DISK_FROM", "1000000")],
    )
    .run();
    expect_unharmed(&outcome);
    outcome
        .only_snapshot()
        .expect_live(Device, 40_000, 640_000)
        .expect_nothing_lost();
    let bytes = fs::read(&outcome.recordings[0]).expect("readable");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let rows = (4096..36 << 10).step_by(32).filter(|&row| word(row) as u32 != 0);
    let used: u64 = rows.map(|row| word(row + 24)).sum();
    assert_eq!(used + (36 << 10), bytes.len() as u64, "every byte belongs to an extent");
}

#[test]
fn removing_the_recording_does_not_affect_the_program() {
    let folder = folder();
    let out = folder.path().join("out");
    let outcome = profile("limits").arg("recording_removed").arg(out).run_in(folder);
    expect_unharmed(&outcome);
    outcome.expect_no_file();
}

#[test]
fn a_program_short_of_address_space_keeps_running() {
    let outcome = profile("limits").tiny_driver().arg("little_address_space").run();
    expect_unharmed(&outcome);
    expect_all_accounted_for(&outcome, GROWN + 1);
}

#[test]
fn a_missing_output_folder_is_reported() {
    let outcome = profile("endings").output("{}/not/there/%p.culeak").arg("returns").run();
    expect_unharmed(&outcome);
    expect_reported_without_recording(&outcome);
}

#[test]
fn an_output_folder_that_cannot_exist_is_reported() {
    for pattern in ["/proc/not-here/%p.culeak", "/dev/null/%p.culeak"] {
        let outcome = profile("endings").output(pattern).arg("returns").run();
        expect_unharmed(&outcome);
        expect_reported_without_recording(&outcome);
    }
}

/// A temporary file system, mounted on the output folder and unmounted with the test.
pub struct Mounted(TempDir);

impl Mounted {
    pub fn on_out_with(options: &str) -> Mounted {
        expect_root("mounts a file system");
        let folder = folder();
        let out = folder.path().join("out");
        fs::create_dir(&out).expect("made");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "culeak-test"])
            .arg(&out)
            .output();
        let mount = mount.expect("mount runs");
        assert!(mount.status.success(), "{}", String::from_utf8_lossy(&mount.stderr));
        Mounted(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // It may be busy; the next test run removes the folder.
        let _ = Command::new("umount").arg("-l").arg(self.0.path().join("out")).status();
    }
}

/// Runs the victim in its own folder, with the recording on the mounted file system.
fn run_on(mounted: &Mounted, behaviour: &str) -> Outcome {
    let inside = folder();
    let pattern = format!("{}/out/%p.culeak", mounted.path().display());
    let outcome = profile("limits").output(&pattern).arg(behaviour).run_in(inside);
    expect_unharmed(&outcome);
    outcome
}

#[test]
#[ignore = "needs root"]
fn a_full_disk_loses_records_and_nothing_else() {
    for size in ["4k", "64k", "512k", "1m", "2m", "4m"] {
        let mounted = Mounted::on_out_with(&format!("size={size}"));
        let outcome = run_on(&mounted, "grows");
        let recordings = crate::support::outcome::recordings_in(&mounted.path().join("out"));
        assert_eq!(loss_messages(&outcome).len(), 1, "{size}: {}", outcome.stderr);
        // Too small for the header of a recording.
        if size == "4k" {
            assert!(recordings.iter().all(|path| culeak::reader::read(path).is_err()));
            continue;
        }
        let snapshot = culeak::reader::read(&recordings[0]).expect("readable");
        crate::support::invariants::check(&snapshot, true);
        let recorded = snapshot.of_kind(Device).len() as u64;
        assert_eq!(
            recorded + snapshot.losses.lost_allocations,
            GROWN,
            "{size}: {:#?}",
            snapshot.losses
        );
        assert!(recorded < GROWN, "{size} was expected to be too small");
    }
}

#[test]
#[ignore = "needs root"]
fn a_disk_without_free_inodes_is_reported() {
    let mounted = Mounted::on_out_with("size=1m,nr_inodes=1");
    let outcome = run_on(&mounted, "grows");
    assert_eq!(loss_messages(&outcome).len(), 1, "{}", outcome.stderr);
}

#[test]
#[ignore = "needs root"]
fn a_file_system_mounted_noexec_holds_recordings() {
    let mounted = Mounted::on_out_with("size=64m,noexec,nosuid,nodev");
    let outcome = run_on(&mounted, "grows");
    assert!(loss_messages(&outcome).is_empty(), "{}", outcome.stderr);
    let recordings = crate::support::outcome::recordings_in(&mounted.path().join("out"));
    crate::support::outcome::read(&recordings[0])
        .expect_live(Device, GROWN as usize, GROWN * 16)
        .expect_nothing_lost();
}

#[test]
#[ignore = "needs root"]
fn a_read_only_folder_is_reported() {
    let mounted = Mounted::on_out_with("size=1m,ro");
    let outcome = run_on(&mounted, "grows");
    assert_eq!(loss_messages(&outcome).len(), 1, "{}", outcome.stderr);
}
