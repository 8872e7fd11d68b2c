//! A process may be killed at any instant: every call that had returned by then is in the recording, and nothing that did
//! not happen.

use std::collections::HashMap;
use std::fs;

use culeak::snapshot::{Allocation, Snapshot};

use crate::support::profile::folder;
use crate::support::{Profile, profile};

const EVENTS: usize = 2000;

/// As in `victims/killed.c`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Said {
    Nothing,
    Allocating,
    Live,
    Freeing,
    Freed,
}

struct Told {
    said: Said,
    bytes: u64,
    address: u64,
}

fn told(page: &[u8]) -> Vec<Told> {
    let words: Vec<u64> = page
        .chunks_exact(8)
        .map(|eight| u64::from_le_bytes(eight.try_into().expect("eight bytes")))
        .collect();
    let said = |number| match number {
        0 => Said::Nothing,
        1 => Said::Allocating,
        2 => Said::Live,
        3 => Said::Freeing,
        4 => Said::Freed,
        other => panic!("the victim said {other}"),
    };
    words
        .chunks_exact(3)
        .map(|three| Told {
            said: said(three[0]),
            bytes: three[1],
            address: three[2],
        })
        .collect()
}

/// What one child said against what its recording says. Returns how many calls had returned.
fn compare(pid: u32, told: &[Told], snapshot: Option<&Snapshot>) -> usize {
    let mut recorded: HashMap<u64, Allocation> = HashMap::new();
    for allocation in snapshot.iter().flat_map(|snapshot| &snapshot.allocations) {
        let twice = recorded.insert(allocation.bytes, allocation);
        assert!(twice.is_none(), "{pid}: {} bytes recorded twice", allocation.bytes);
    }
    let mut returned = 0;
    for one in told.iter().filter(|one| one.said != Said::Nothing) {
        let record = recorded.remove(&one.bytes);
        returned += usize::from(matches!(one.said, Said::Live | Said::Freed));
        match one.said {
            Said::Live => assert!(record.is_some(), "{pid}: {} bytes are not recorded", one.bytes),
            Said::Freed => assert!(record.is_none(), "{pid}: {} bytes were freed", one.bytes),
            // Under way: before or after.
            _ => {}
        }
        if let Some(record) = record.filter(|_| one.said != Said::Allocating) {
            assert_eq!(record.address, one.address, "{pid}: the address of {} bytes", one.bytes);
        }
    }
    assert!(recorded.is_empty(), "{pid}: nobody allocated {:?}", recorded.keys());
    returned
}

/// Kills so many children of so many threads each.
fn kill(profile: Profile, kills: usize, threads: usize) {
    let folder = folder();
    let pages = folder.path().join("pages");
    fs::create_dir(&pages).expect("made");
    let outcome = profile
        .arg("killed")
        .arg(kills.to_string())
        .arg(threads.to_string())
        .arg(&pages)
        .leaving_hooks_halfway()
        .run_in(folder);
    outcome.expect_success();
    let snapshots: HashMap<u32, &Snapshot> = outcome.snapshots.iter().map(|s| (s.process.pid, s)).collect();
    let (mut seen, mut returned, mut halfway) = (0, 0, 0);
    for file in fs::read_dir(&pages).expect("the pages").flatten() {
        let name = file.file_name().into_string().expect("a number");
        let pid: u32 = name.strip_suffix(".said").expect("a page").parse().expect("a number");
        let told = told(&fs::read(file.path()).expect("a page"));
        assert_eq!(told.len(), EVENTS * threads);
        // Without a recording it was killed before the first call had returned.
        seen += 1;
        returned += compare(pid, &told, snapshots.get(&pid).copied());
        let under_way = |one: &Told| matches!(one.said, Said::Allocating | Said::Freeing);
        halfway += usize::from(told.iter().any(under_way));
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
    // How many depends on what else the machine does: every second one when idle.
    assert!(
        halfway * 50 > kills,
        "only {halfway} of {kills} were in a call: nothing was tried"
    );
}

fn killed() -> Profile {
    profile("killed").tiny_driver().setting("CULEAK_QUIET", "1")
}

#[test]
fn of_500_processes_killed_at_random_every_one_left_a_true_recording() {
    kill(killed(), 250, 1);
    kill(killed().env("TINY_RECYCLES", "1"), 250, 1);
}

#[test]
fn of_500_processes_of_four_threads_killed_at_random_every_one_left_a_true_recording() {
    kill(killed(), 250, 4);
    kill(killed().env("TINY_RECYCLES", "1"), 250, 4);
}

/// That the claims above can fail: on a program that nobody records.
#[test]
#[should_panic(expected = "bytes are not recorded")]
fn what_was_not_recorded_is_missed() {
    kill(killed().bare(), 8, 1);
}
