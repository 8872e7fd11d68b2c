//! Whatever happens to the disk, the limits or the descriptors: the program runs on unchanged, and what was lost is
//! counted and said once.

use std::fs;
use std::path::Path;
use std::process::Command;

use culeak::kind::Kind::*;
use tempfile::TempDir;

use crate::support::claims::Claims;
use crate::support::profile::folder;
use crate::support::{Outcome, Preload, Profile, is_root, library, profile};

/// What `grow` in `victims/limits.c` allocates.
const GROWN: u64 = 4096 + 60_000;

/// The program did not notice.
#[track_caller]
fn expect_unharmed(outcome: &Outcome) {
    outcome.expect_success().expect_same_output_as_bare();
}

/// Lines about losses, the summary at the end aside.
fn said(outcome: &Outcome) -> Vec<&str> {
    let told = |line: &&str| {
        ["cannot", "could not", "not recorded", "lost", "full"]
            .iter()
            .any(|word| line.contains(word))
    };
    outcome.our_lines().into_iter().filter(told).collect()
}

/// Every allocation is in the recording or counted as lost, and a loss was said exactly once.
#[track_caller]
fn expect_all_accounted_for(outcome: &Outcome, allocations: u64) {
    let snapshot = outcome.only_snapshot();
    let kept = snapshot.of_kind(Device).len() as u64;
    assert_eq!(
        kept + snapshot.losses.lost_allocations,
        allocations,
        "{:#?}",
        snapshot.losses
    );
    let lost = snapshot.losses.lost_allocations + snapshot.losses.lost_stacks + snapshot.losses.lost_details;
    let lines = said(outcome);
    if lost == 0 {
        assert!(lines.is_empty(), "{lines:?}");
    } else {
        assert_eq!(lines.len(), 1, "{}", outcome.stderr);
    }
}

/// There may be no recording at all, but then that was said.
#[track_caller]
fn expect_told_without_recording(outcome: &Outcome) {
    assert!(
        outcome.snapshots.iter().all(|s| s.allocations.is_empty()),
        "{:#?}",
        outcome.snapshots
    );
    assert_eq!(said(outcome).len(), 1, "{}", outcome.everything());
}

#[test]
fn a_recording_grows_as_far_as_it_must() {
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
    assert!(said(&outcome).is_empty(), "{}", outcome.stderr);
}

#[test]
fn a_limit_on_file_sizes_costs_records_and_nothing_else() {
    for bytes in ["200000", "1000000", "3000000"] {
        let outcome = profile("limits").arg("file_size").arg(bytes).run();
        expect_unharmed(&outcome);
        expect_all_accounted_for(&outcome, GROWN);
        assert!(
            outcome.only_snapshot().losses.lost_allocations > 0,
            "{bytes} bytes were to be too few"
        );
    }
}

#[test]
fn no_file_may_have_any_size_at_all() {
    for bytes in ["0", "1", "4096"] {
        let outcome = profile("limits").arg("file_size").arg(bytes).run();
        expect_unharmed(&outcome);
        expect_told_without_recording(&outcome);
    }
}

#[test]
fn a_limit_set_later_keeps_what_was_recorded_before() {
    let outcome = profile("limits").arg("file_size_later").run();
    expect_unharmed(&outcome);
    expect_all_accounted_for(&outcome, GROWN + 1);
    assert_eq!(outcome.only_snapshot().allocations.at(0).bytes, 100);
}

#[test]
fn no_descriptor_is_left_for_the_recording() {
    let outcome = profile("limits").arg("no_descriptors").run();
    expect_unharmed(&outcome);
    expect_told_without_recording(&outcome);
}

#[test]
fn no_descriptor_is_left_for_its_growth() {
    let outcome = profile("limits").arg("no_descriptors_later").run();
    expect_unharmed(&outcome);
    expect_all_accounted_for(&outcome, GROWN + 1);
}

#[test]
fn a_program_that_closes_every_descriptor_loses_nothing() {
    let outcome = profile("limits").arg("closes_everything").run();
    expect_unharmed(&outcome);
    outcome
        .only_snapshot()
        .expect_live(Device, GROWN as usize + 1, GROWN * 16 + 100)
        .expect_nothing_lost();
}

#[test]
fn a_program_that_uses_every_descriptor_itself_loses_nothing() {
    let outcome = profile("limits").arg("takes_every_number").run();
    expect_unharmed(&outcome);
    outcome
        .only_snapshot()
        .expect_live(Device, GROWN as usize + 1, GROWN * 16 + 100)
        .expect_nothing_lost();
}

#[test]
fn a_program_that_changes_its_folder_loses_nothing() {
    let outcome = profile("limits").arg("changes_folder").run();
    expect_unharmed(&outcome);
    outcome
        .only_snapshot()
        .expect_live(Device, GROWN as usize + 1, GROWN * 16 + 100)
        .expect_nothing_lost();
}

#[test]
fn a_relative_path_stays_where_it_began() {
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
fn a_program_that_gives_up_its_user_or_its_root_loses_nothing() {
    if !is_root() {
        return eprintln!("not root: no user and no root to give up");
    }
    for behaviour in ["drops_user", "changes_root"] {
        let outcome = profile("limits").arg(behaviour).run();
        expect_unharmed(&outcome);
        let snapshot = outcome.only_snapshot();
        snapshot
            .expect_live(Device, GROWN as usize + 1, GROWN * 16 + 100)
            .expect_nothing_lost();
    }
}

#[test]
fn a_recording_whose_folder_is_moved_goes_on() {
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
fn a_recording_that_nothing_leads_to_any_more_says_so() {
    let folder = folder();
    let (out, moved) = (folder.path().join("out"), folder.path().join("moved"));
    let run = profile("limits").arg("moves_folder_and_closes").arg(&out).arg(&moved);
    let outcome = run.run_in(folder);
    outcome.expect_success();
    let lines = said(&outcome);
    assert_eq!(lines.len(), 1, "{}", outcome.everything());
    assert!(lines[0].contains("its folder was moved"), "{}", lines[0]);
    let snapshot = crate::support::outcome::read(&crate::support::outcome::recordings_in(&moved)[0]);
    let kept = snapshot.of_kind(Device).len() as u64;
    assert_eq!(kept + snapshot.losses.lost_allocations, GROWN + 1);
}

#[test]
fn a_program_that_may_open_no_more_files_loses_nothing() {
    let outcome = profile("limits").arg("may_open_no_files").run();
    expect_unharmed(&outcome);
    let snapshot = outcome.only_snapshot();
    snapshot
        .expect_live(Device, GROWN as usize + 1, GROWN * 16 + 100)
        .expect_nothing_lost();
}

#[test]
fn a_program_that_may_not_extend_files_says_why_records_are_lost() {
    let outcome = profile("limits").arg("may_not_extend_files").run();
    expect_unharmed(&outcome);
    expect_all_accounted_for(&outcome, GROWN + 1);
    assert!(said(&outcome)[0].contains("permission denied"), "{}", outcome.stderr);
}

/// A disk that takes this long to make room, and has only so much of it.
fn on_slow_disk(behaviour: &str, settings: &[(&str, &str)]) -> Profile {
    let disk = library("slow_disk", "libslow_disk.so", &[], &[]);
    let run = profile("limits")
        .with_preload(Preload::AfterCuleak, disk)
        .arg(behaviour);
    settings.iter().fold(run, |run, (name, value)| run.env(name, value))
}

#[test]
fn a_full_disk_is_not_tried_again_at_every_allocation() {
    let folder = folder();
    let log = folder.path().join("log");
    let settings = [
        ("SLOW_DISK_ROOM", "1000000"),
        ("SLOW_DISK_LOG", log.to_str().expect("a path")),
    ];
    let outcome = on_slow_disk("grows", &settings).run_in(folder);
    expect_all_accounted_for(&outcome, GROWN);
    let text = fs::read_to_string(log).expect("the disk tells what it was asked for");
    let (failed, milliseconds) = text.split_once(' ').expect("two numbers");
    let (failed, milliseconds): (u64, u64) = (failed.parse().unwrap(), milliseconds.parse().unwrap());
    // Each section by itself: once, and again after each second.
    let sections = 21;
    assert!(failed > 0);
    assert!(
        failed <= sections * (1 + milliseconds / 1000),
        "{failed} attempts in {milliseconds} ms"
    );
}

#[test]
fn a_disk_that_has_room_again_is_noticed() {
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
fn threads_that_come_while_the_recording_is_created_wait_for_it() {
    let outcome = on_slow_disk("begins_on_eight_threads", &[("SLOW_DISK_MS", "400")]).run();
    expect_unharmed(&outcome);
    outcome
        .only_snapshot()
        .expect_live(Device, 32, 32 * 16)
        .expect_nothing_lost();
}

#[test]
fn threads_that_do_not_wait_for_the_recording_are_counted() {
    let outcome = on_slow_disk("begins_on_eight_threads", &[("SLOW_DISK_MS", "1500")]).run();
    expect_unharmed(&outcome);
    let snapshot = outcome.only_snapshot();
    let kept = snapshot.of_kind(Device).len() as u64;
    assert_eq!(kept + snapshot.losses.lost_allocations, 32, "{:#?}", snapshot.losses);
    assert!(snapshot.losses.lost_allocations > 0, "{:#?}", snapshot.losses);
    assert_eq!(said(&outcome).len(), 1, "{}", outcome.stderr);
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
fn a_recording_removed_meanwhile_harms_nobody() {
    let folder = folder();
    let out = folder.path().join("out");
    let outcome = profile("limits").arg("recording_removed").arg(out).run_in(folder);
    expect_unharmed(&outcome);
    outcome.expect_no_file();
}

#[test]
fn a_program_short_of_address_space_runs_on() {
    let outcome = profile("limits").tiny_driver().arg("little_address_space").run();
    expect_unharmed(&outcome);
    expect_all_accounted_for(&outcome, GROWN + 1);
}

#[test]
fn an_output_folder_that_does_not_exist_is_made_or_told() {
    let outcome = profile("endings").output("{}/not/there/%p.culeak").arg("returns").run();
    expect_unharmed(&outcome);
    let made = crate::support::outcome::recordings_in(&outcome.out().join("not/there"));
    assert!(made.len() == 1 || said(&outcome).len() == 1, "{}", outcome.everything());
}

#[test]
fn an_output_folder_that_cannot_exist_is_told() {
    for pattern in ["/proc/not-here/%p.culeak", "/dev/null/%p.culeak"] {
        let outcome = profile("endings").output(pattern).arg("returns").run();
        expect_unharmed(&outcome);
        expect_told_without_recording(&outcome);
    }
}

/// A file system of its own, where tests may mount one: gone with the test.
struct Mounted(TempDir);

impl Mounted {
    fn on_out_with(options: &str) -> Mounted {
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

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // In use or gone: the folder of this run is tidied up by a later one.
        let _ = Command::new("umount").arg("-l").arg(self.0.path().join("out")).status();
    }
}

/// The victim in a folder that stays with its mount.
fn run_on(mounted: &Mounted, behaviour: &str) -> Outcome {
    let inside = folder();
    let pattern = format!("{}/out/%p.culeak", mounted.path().display());
    let outcome = profile("limits").output(&pattern).arg(behaviour).run_in(inside);
    expect_unharmed(&outcome);
    outcome
}

#[test]
fn a_full_disk_costs_records_and_nothing_else() {
    if !is_root() {
        // Mounting needs root; the limits on file sizes above fail in the same place, with EFBIG for ENOSPC.
        return eprintln!("not root: no small file system to fill");
    }
    for size in ["4k", "64k", "512k", "1m", "2m", "4m"] {
        let mounted = Mounted::on_out_with(&format!("size={size}"));
        let outcome = run_on(&mounted, "grows");
        let recordings = crate::support::outcome::recordings_in(&mounted.path().join("out"));
        assert_eq!(said(&outcome).len(), 1, "{size}: {}", outcome.stderr);
        let read = recordings.first().and_then(|path| culeak::reader::read(path).ok());
        let Some(snapshot) = read else { continue };
        crate::support::invariants::check(&snapshot, true);
        let kept = snapshot.of_kind(Device).len() as u64;
        assert_eq!(
            kept + snapshot.losses.lost_allocations,
            GROWN,
            "{size}: {:#?}",
            snapshot.losses
        );
        assert!(kept < GROWN, "{size} was to be too small");
    }
}

#[test]
fn a_disk_without_free_files_is_told() {
    if !is_root() {
        return eprintln!("not root: no file system without inodes");
    }
    let mounted = Mounted::on_out_with("size=1m,nr_inodes=1");
    let outcome = run_on(&mounted, "grows");
    assert_eq!(said(&outcome).len(), 1, "{}", outcome.stderr);
}

#[test]
fn a_folder_where_nothing_may_be_executed_is_as_good_as_any() {
    if !is_root() {
        return eprintln!("not root: no file system without execution");
    }
    let mounted = Mounted::on_out_with("size=64m,noexec,nosuid,nodev");
    let outcome = run_on(&mounted, "grows");
    assert!(said(&outcome).is_empty(), "{}", outcome.stderr);
    let recordings = crate::support::outcome::recordings_in(&mounted.path().join("out"));
    crate::support::outcome::read(&recordings[0])
        .expect_live(Device, GROWN as usize, GROWN * 16)
        .expect_nothing_lost();
}

#[test]
fn a_read_only_folder_is_told() {
    if is_root() {
        let mounted = Mounted::on_out_with("size=1m,ro");
        let outcome = run_on(&mounted, "grows");
        assert_eq!(said(&outcome).len(), 1, "{}", outcome.stderr);
    } else {
        let folder = folder();
        let out = folder.path().join("out");
        fs::create_dir(&out).expect("made");
        fs::set_permissions(&out, std::os::unix::fs::PermissionsExt::from_mode(0o555)).expect("changed");
        let outcome = profile("limits").arg("grows").run_in(folder);
        expect_unharmed(&outcome);
        expect_told_without_recording(&outcome);
    }
}
