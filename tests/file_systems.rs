//! Recordings in folders whose file system cannot hold a mapped file: they are in a local folder while the process runs.
//!
//! A preloaded library answers as such file systems do (`victims/odd_disk.c`). `file_systems/run.sh` mounts real ones.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use culeak::kind::Kind::*;
use culeak::reader;
use culeak::snapshot::ProcessState;
use tempfile::TempDir;

use crate::support::claims::Claims;
use crate::support::outcome::recordings_in;
use crate::support::process::Started;
use crate::support::profile::{fake_driver_folder, folder};
use crate::support::{Lookup, Preload, Profile, culeak, expect_root, library, profile, victim};

/// The number of blocks that `grows` in `victims/limits.c` allocates.
const GROWN: usize = 4096 + 60_000;

/// The user that gets files which are not this user's.
const OTHER_USER: u32 = 65_534;

/// A folder whose `out` is on a file system of this kind, and whose `spool` is a local one.
struct Disk {
    folder: TempDir,
    kind: &'static str,
}

impl Disk {
    fn new(kind: &'static str) -> Disk {
        let folder = folder();
        for name in ["out", "spool"] {
            fs::create_dir(folder.path().join(name)).expect("made");
        }
        Disk { folder, kind }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn profile(&self, name: &str, behaviour: &str) -> Profile {
        profile(name)
            .arg(behaviour)
            .with_preload(Preload::AfterCuleak, odd_disk())
            .env("ODD_DISK", self.at("out"))
            .env("ODD_DISK_IS", self.kind)
            .setting("CULEAK_SPOOL", self.at("spool"))
    }

    fn spools(&self) -> Vec<PathBuf> {
        recordings_in(&self.at("spool"))
    }

    /// A process that has one block, and waits.
    fn waits(&self) -> Started {
        let mut running = self.profile("endings", "waits").start_in(self.folder.path());
        let mut line = String::new();
        BufReader::new(running.stdout())
            .read_line(&mut line)
            .expect("the victim prints a line");
        running
    }

    /// `culeak run` on such a file system.
    fn run(&self, arguments: &[&str], name: &str, behaviour: &str) -> Output {
        Command::new(culeak())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("LC_ALL", "C")
            .env("HOME", self.folder.path())
            .env("LD_LIBRARY_PATH", fake_driver_folder())
            .env("LD_PRELOAD", odd_disk())
            .env("ODD_DISK", self.at("out"))
            .env("ODD_DISK_IS", self.kind)
            .env("CULEAK_SPOOL", self.at("spool"))
            .env("CULEAK_CACHE_DIR", "")
            .args(["run", "-o"])
            .arg(self.at("out"))
            .args(arguments)
            .arg("--")
            .arg(victim(name, Lookup::Linked))
            .arg(behaviour)
            .output()
            .expect("culeak runs")
    }
}

#[test]
fn the_doctor_says_that_recordings_are_elsewhere_while_they_are_written() {
    for (kind, says) in [("network", true), ("", false)] {
        let disk = Disk::new(kind);
        let output = Command::new(culeak())
            .arg("doctor")
            .current_dir(disk.at("out"))
            .env("LD_PRELOAD", odd_disk())
            .env("ODD_DISK", disk.at("out"))
            .env("ODD_DISK_IS", kind)
            .output()
            .expect("culeak runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            text.contains("in a local folder until its process ends"),
            says,
            "{text}"
        );
        assert!(text.contains("writable"), "{text}");
    }
}

fn odd_disk() -> PathBuf {
    library("odd_disk", "libodd_disk.so", &[], &[])
}

fn only(mut paths: Vec<PathBuf>) -> PathBuf {
    assert_eq!(paths.len(), 1, "{paths:?}");
    paths.remove(0)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("readable").flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn a_recording_is_copied_to_its_folder_when_the_process_ends() {
    for kind in ["network", "unmapped", "over btrfs", "over zfs"] {
        let disk = Disk::new(kind);
        let spool = disk.at("spool");
        let outcome = disk.profile("limits", "grows").run_in(disk.folder);
        outcome.expect_success();
        outcome
            .only_snapshot()
            .expect_live(Device, GROWN, GROWN as u64 * 16)
            .expect_nothing_lost();
        assert_eq!(names_in(&spool), Vec::<String>::new(), "{kind}");
        assert_eq!(names_in(&outcome.out()).len(), 1, "{kind}");
        let lines = outcome.our_lines();
        let out = outcome.out().display().to_string();
        assert!(lines[0].contains("until the process ends, it is in"), "{lines:?}");
        assert!(
            lines[0].contains(&out) && lines[0].contains("/culeak-spool-"),
            "{lines:?}"
        );
        assert!(lines[1].contains(&format!("culeak report {out}")), "{lines:?}");
        assert_eq!(lines.len(), 2, "{lines:?}");
    }
}

#[test]
fn on_an_overlayfs_over_ext4_it_is_written_in_place() {
    let disk = Disk::new("over ext4");
    let running = disk.waits();
    assert_eq!(disk.spools(), Vec::<PathBuf>::new());
    let recording = only(recordings_in(&disk.at("out")));
    assert_eq!(reader::spooled(&recording), None);
    reader::read(&recording).expect("readable").expect_live(Device, 1, 4096);
    running.finish();
}

#[test]
fn it_can_be_read_at_its_destination_while_the_process_runs_and_after_it_was_killed() {
    let disk = Disk::new("network");
    let running = disk.waits();
    let (note, spool) = (only(recordings_in(&disk.at("out"))), only(disk.spools()));
    for path in [&note, &spool] {
        let snapshot = reader::read(path).expect("readable");
        snapshot.expect_live(Device, 1, 4096);
        assert_eq!(snapshot.process.state, ProcessState::Running, "{path:?}");
    }
    let pid = running.child.id().to_string();
    let by_pid = Command::new(culeak()).args(["snapshot", &pid, "-o", "-"]).output();
    let by_pid: culeak::snapshot::Snapshot =
        serde_json::from_slice(&by_pid.expect("a snapshot").stdout).expect("valid JSON");
    by_pid.expect_live(Device, 1, 4096);
    running.kill();
    running.finish();
    let snapshot = reader::read(&note).expect("readable");
    snapshot.expect_live(Device, 1, 4096);
    assert_ne!(snapshot.process.state, ProcessState::Running);
    // Another host has no such file.
    fs::remove_file(&spool).expect("removed");
    let error = reader::read(&note).expect_err("a note alone").to_string();
    assert!(error.contains(&spool.display().to_string()), "{error}");
    assert!(
        error.contains("on host") && error.contains("read it on that host"),
        "{error}"
    );
}

#[test]
fn culeak_run_copies_the_recording_of_a_killed_process() {
    for behaviour in ["aborts", "leaves_at_once"] {
        let disk = Disk::new("network");
        let ended = disk.run(&[], "endings", behaviour);
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert!(stderr.contains("CULEAK_SPOOL names another local folder"), "{stderr}");
        assert!(stderr.contains("100 B"), "{behaviour}: {stderr}");
        assert_eq!(disk.spools(), Vec::<PathBuf>::new(), "{stderr}");
        let recording = only(recordings_in(&disk.at("out")));
        assert_eq!(reader::spooled(&recording), None);
        reader::read(&recording).expect("readable").expect_live(Device, 1, 100);
    }
}

#[test]
fn a_copy_that_fails_is_reported_and_the_recording_stays_readable() {
    for (error, reason) in [
        (nix::libc::ENOSPC, "no space left on device"),
        (nix::libc::EDQUOT, "disk quota exceeded"),
        (nix::libc::EIO, "input/output error"),
        (nix::libc::ESTALE, "another file has taken its name"),
    ] {
        let disk = Disk::new("network");
        let spools = disk.at("spool");
        let run = disk
            .profile("endings", "returns")
            .env("ODD_DISK_ERROR", error.to_string());
        let outcome = run.run_in(disk.folder);
        outcome.expect_success();
        let spool = only(recordings_in(&spools)).display().to_string();
        let lines = outcome.our_lines();
        let line = lines
            .iter()
            .find(|line| line.contains("cannot be copied"))
            .expect("it is reported");
        assert!(line.contains(reason) && line.contains(&spool), "{line}");
        outcome.only_snapshot().expect_live(Device, 1, 100);
        assert_eq!(names_in(&outcome.out()).len(), 1, "no half copy is left");
    }
}

#[test]
fn without_its_note_the_recording_stays_where_it_is() {
    for moved in [false, true] {
        let disk = Disk::new("network");
        let (out, elsewhere) = (disk.at("out"), disk.at("elsewhere"));
        let running = disk.waits();
        let (note, pid) = (only(recordings_in(&out)), running.child.id());
        if moved {
            fs::rename(&out, &elsewhere).expect("moved");
        } else {
            fs::remove_file(&note).expect("removed");
        }
        let ended = running.finish();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        let spool = only(disk.spools());
        reader::read(&spool).expect("readable").expect_live(Device, 1, 4096);
        for part in [
            "was moved or removed",
            "it is complete in",
            &spool.display().to_string(),
        ] {
            assert!(stderr.contains(part), "{part}: {stderr}");
        }
        if moved {
            // What is left is what a killed process leaves.
            fs::rename(&elsewhere, &out).expect("moved back");
            let mut half = note.clone().into_os_string();
            half.push(format!(".{pid:x}.part"));
            fs::write(half, "half a copy").expect("written");
            let spooled = reader::spooled(&note).expect("a note");
            assert!(spooled.deliver(&note).expect("copied"));
            reader::read(&note).expect("readable").expect_live(Device, 1, 4096);
            assert_eq!(names_in(&disk.at("spool")), Vec::<String>::new());
            assert_eq!(names_in(&out).len(), 1);
        }
    }
}

#[test]
fn a_spool_that_was_removed_is_not_called_complete() {
    let disk = Disk::new("network");
    let running = disk.waits();
    fs::remove_file(only(disk.spools())).expect("removed");
    let ended = running.finish();
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(stderr.contains("it could not be read in"), "{stderr}");
    assert!(!stderr.contains("it is complete in"), "{stderr}");
}

#[test]
fn a_name_of_the_greatest_length_is_copied_too() {
    let disk = Disk::new("network");
    let path = disk.at("out").join(format!("{}.culeak", "n".repeat(248)));
    let spool = disk.at("spool");
    let run = disk.profile("endings", "returns").setting("CULEAK_OUTPUT", &path);
    let outcome = run.run_in(disk.folder);
    outcome.expect_success();
    assert_eq!(names_in(&spool), Vec::<String>::new());
    assert_eq!(reader::spooled(&path), None);
    reader::read(&path).expect("readable").expect_live(Device, 1, 100);
}

#[test]
#[ignore = "needs root"]
fn only_a_recording_of_the_user_and_the_host_is_copied_for_a_note() {
    expect_root("gives files to another user");
    type Change = fn(&Path, &Path);
    let change_host: Change = |note, _| {
        let text = fs::read(note).expect("readable");
        let rest = &text[text.iter().position(|&byte| byte == 0).expect("a host")..];
        fs::write(note, [b"CULEAK>\nanother", rest].concat()).expect("written");
    };
    let fifo: Change = |_, spool| {
        fs::rename(spool, spool.with_extension("kept")).expect("moved");
        nix::unistd::mkfifo(spool, nix::sys::stat::Mode::S_IRWXU).expect("made");
    };
    let link: Change = |_, spool| {
        let kept = spool.with_extension("kept");
        fs::rename(spool, &kept).expect("moved");
        std::os::unix::fs::symlink(&kept, spool).expect("made");
    };
    let others_note: Change = |note, _| chown(note, Some(OTHER_USER), None).expect("changed");
    let others_spool: Change = |_, spool| chown(spool, Some(OTHER_USER), None).expect("changed");
    let mostly_missing: Change = |_, spool| {
        let file = fs::File::options().write(true).open(spool).expect("writable");
        file.set_len(1 << 42).expect("extended");
        // The last row of the directory: an extent of 4 TiB.
        let row = culeak::format::HEADER_BYTES as u64 - 32;
        let words = [1u32, 1 << 20, 1, 1].map(u32::to_le_bytes).concat();
        let words = [words, vec![0; 8], (1u64 << 42).to_le_bytes().to_vec()].concat();
        file.write_all_at(&words, row).expect("written");
    };
    let cases = [
        (change_host, "on host another"),
        (fifo, "no regular file"),
        (link, "symbolic link"),
        (mostly_missing, "damaged"),
        (others_note, "belongs to user"),
        (others_spool, "belongs to user"),
    ];
    for (change, reason) in cases {
        let disk = Disk::new("network");
        let running = disk.waits();
        running.kill();
        running.finish();
        let (note, spool) = (only(recordings_in(&disk.at("out"))), only(disk.spools()));
        change(&note, &spool);
        let (note_before, spools_before) = (fs::read(&note).expect("readable"), names_in(&disk.at("spool")));
        let spooled = reader::spooled(&note).expect("a note");
        let error = spooled.deliver(&note).expect_err(reason).to_string();
        assert!(error.contains(reason), "{reason}: {error}");
        assert_eq!(fs::read(&note).expect("readable"), note_before);
        assert_eq!(names_in(&disk.at("out")).len(), 1, "{reason}");
        assert_eq!(names_in(&disk.at("spool")), spools_before);
    }
}

#[test]
fn a_file_that_has_taken_the_name_is_left_alone() {
    let disk = Disk::new("network");
    let running = disk.waits();
    let note = only(recordings_in(&disk.at("out")));
    fs::write(&note, "mine").expect("written");
    let ended = running.finish();
    assert_eq!(fs::read(&note).expect("readable"), b"mine");
    reader::read(&only(disk.spools()))
        .expect("readable")
        .expect_live(Device, 1, 4096);
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert!(stderr.contains("another file has taken its name"), "{stderr}");
}

#[test]
fn without_fallocate_space_is_allocated_by_writing_zeros() {
    let disk = Disk::new("unallocated");
    let outcome = disk.profile("limits", "grows").run_in(disk.folder);
    outcome.expect_success();
    outcome
        .only_snapshot()
        .expect_live(Device, GROWN, GROWN as u64 * 16)
        .expect_nothing_lost();
    let file = fs::metadata(&outcome.recordings[0]).expect("there");
    assert!(
        file.blocks() * 512 >= file.len(),
        "{} of {}",
        file.blocks() * 512,
        file.len()
    );
}

#[test]
fn without_any_suitable_folder_nothing_is_recorded_and_that_is_reported() {
    let disk = Disk::new("network");
    let run = disk.profile("endings", "returns").env("ODD_DISK", "/");
    let outcome = run.run_in(folder());
    outcome.expect_success().expect_no_file();
    assert_eq!(disk.spools(), Vec::<PathBuf>::new());
    assert!(
        outcome.stderr.contains("name one in CULEAK_SPOOL"),
        "{}",
        outcome.stderr
    );
}
