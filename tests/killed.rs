//! A process may be killed at any instant: every call that had returned by then is in the recording, and nothing else is.

use std::collections::HashMap;
use std::fs;

use culeak::kind::Kind;
use culeak::snapshot::{Allocation, Snapshot};

use crate::support::profile::folder;
use crate::support::{Profile, profile};
use crate::tensors::torch;

const EVENTS: usize = 2000;

/// As in `victims/killed.c`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Progress {
    NotStarted,
    Allocating,
    Live,
    Freeing,
    Freed,
}

struct Call {
    progress: Progress,
    bytes: u64,
    address: u64,
}

fn calls(page: &[u8]) -> Vec<Call> {
    let words: Vec<u64> = page
        .chunks_exact(8)
        .map(|eight| u64::from_le_bytes(eight.try_into().expect("eight bytes")))
        .collect();
    let progress = |number| match number {
        0 => Progress::NotStarted,
        1 => Progress::Allocating,
        2 => Progress::Live,
        3 => Progress::Freeing,
        4 => Progress::Freed,
        other => panic!("the victim wrote {other}"),
    };
    words
        .chunks_exact(3)
        .map(|three| Call {
            progress: progress(three[0]),
            bytes: three[1],
            address: three[2],
        })
        .collect()
}

/// Compares one child's notes with its recording. Returns how many calls had returned.
fn compare(pid: u32, calls: &[Call], snapshot: Option<&Snapshot>, kind: Kind) -> usize {
    let mut recorded: HashMap<u64, Allocation> = HashMap::new();
    let allocations = snapshot.iter().flat_map(|snapshot| &snapshot.allocations);
    for allocation in allocations.filter(|allocation| allocation.kind == kind) {
        let twice = recorded.insert(allocation.bytes, allocation);
        assert!(twice.is_none(), "{pid}: {} bytes recorded twice", allocation.bytes);
    }
    let mut returned = 0;
    for one in calls.iter().filter(|one| one.progress != Progress::NotStarted) {
        let record = recorded.remove(&one.bytes);
        returned += usize::from(matches!(one.progress, Progress::Live | Progress::Freed));
        match one.progress {
            Progress::Live => assert!(record.is_some(), "{pid}: {} bytes are not recorded", one.bytes),
            Progress::Freed => assert!(record.is_none(), "{pid}: {} bytes were freed", one.bytes),
            // In progress: recorded or not.
            _ => {}
        }
        if let Some(record) = record.filter(|_| one.progress != Progress::Allocating) {
            assert_eq!(record.address, one.address, "{pid}: the address of {} bytes", one.bytes);
        }
    }
    assert!(
        recorded.is_empty(),
        "{pid}: recorded but never allocated: {:?}",
        recorded.keys()
    );
    returned
}

/// Kills `kills` children with `threads` threads each, and compares their recordings with their own notes.
fn kill(profile: Profile, kills: usize, threads: usize) {
    kill_of(Kind::Device, profile, kills, threads);
}

fn kill_of(kind: Kind, profile: Profile, kills: usize, threads: usize) {
    let tensors = (kind == Kind::Tensor).then(|| torch(1, &[])[0].clone());
    let folder = folder();
    let pages = folder.path().join("pages");
    fs::create_dir(&pages).expect("made");
    let profile = profile
        .arg("killed")
        .arg(kills.to_string())
        .arg(threads.to_string())
        .arg(&pages)
        .leaving_hooks_halfway();
    let outcome = tensors.into_iter().fold(profile, Profile::arg).run_in(folder);
    outcome.expect_success();
    let snapshots: HashMap<u32, &Snapshot> = outcome.snapshots.iter().map(|s| (s.process.pid, s)).collect();
    let (mut seen, mut returned, mut halfway) = (0, 0, 0);
    for file in fs::read_dir(&pages).expect("the pages").flatten() {
        let name = file.file_name().into_string().expect("a number");
        let pid: u32 = name.strip_suffix(".calls").expect("a page").parse().expect("a number");
        let calls = calls(&fs::read(file.path()).expect("a page"));
        assert_eq!(calls.len(), EVENTS * threads);
        // Without a recording, it was killed before its first call returned.
        seen += 1;
        returned += compare(pid, &calls, snapshots.get(&pid).copied(), kind);
        let under_way = |one: &Call| matches!(one.progress, Progress::Allocating | Progress::Freeing);
        halfway += usize::from(calls.iter().any(under_way));
        if let Some(snapshot) = snapshots.get(&pid) {
            assert_eq!(snapshot.losses.unknown_frees, 0, "{pid}");
            assert!(
                snapshot.taken.in_flight <= threads as u64,
                "{pid}: {:?}",
                snapshot.taken
            );
        }
    }
    println!("{seen} kills, {halfway} of them in a call, {returned} allocations had returned");
    assert_eq!(seen, kills);
    // How many depends on the load of the machine: about half when idle.
    assert!(
        halfway * 50 > kills,
        "only {halfway} of {kills} were in a call: the test is void"
    );
}

fn killed() -> Profile {
    profile("killed").tiny_driver().setting("CULEAK_QUIET", "1")
}

#[test]
fn of_500_processes_killed_at_random_all_leave_a_correct_recording() {
    kill(killed(), 250, 1);
    kill(killed().env("TINY_RECYCLES", "1"), 250, 1);
}

#[test]
fn of_500_processes_with_four_threads_killed_at_random_all_leave_a_correct_recording() {
    kill(killed(), 250, 4);
    kill(killed().env("TINY_RECYCLES", "1"), 250, 4);
}

/// They are reported under a lock, which most of the processes hold when they are killed.
#[test]
fn of_500_processes_killed_with_tensors_without_stacks_all_leave_a_correct_recording() {
    // Some of them have one.
    let tensors = |threads| kill_of(Kind::Tensor, killed().setting("CULEAK_SAMPLE", "8MiB"), 250, threads);
    tensors(1);
    tensors(4);
}

/// Shows that the claims above can fail: on processes that are not recorded.
#[test]
#[should_panic(expected = "bytes are not recorded")]
fn an_unrecorded_process_fails_the_comparison() {
    kill(killed().bare(), 8, 1);
}
