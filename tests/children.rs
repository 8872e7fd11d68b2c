//! fork, vfork, exec: which process records what.

use std::io::{BufRead, BufReader};

use culeak::kind::Kind::*;
use culeak::reader;
use culeak::snapshot::ProcessState;

use crate::support::claims::Claims;
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::{Outcome, profile};

fn children(behaviour: &str) -> Outcome {
    let outcome = profile("children").arg(behaviour).run();
    outcome.expect_success();
    assert!(
        !outcome.stdout.contains("child status"),
        "a child failed: {}",
        outcome.stdout
    );
    outcome
}

/// Live device bytes of each recording, smallest first.
fn live(outcome: &Outcome) -> Vec<u64> {
    assert!(outcome.unreadable.is_empty(), "{:?}", outcome.unreadable);
    let of = |snapshot: &culeak::snapshot::Snapshot| snapshot.of_kind(Device).iter().map(|a| a.bytes).sum();
    let mut all: Vec<u64> = outcome.snapshots.iter().map(of).collect();
    all.sort_unstable();
    all
}

#[test]
fn parent_and_child_that_both_use_cuda_have_a_recording_each() {
    let outcome = children("fork_before");
    assert_eq!(live(&outcome), [100, 200]);
    let pids: Vec<_> = outcome
        .snapshots
        .iter()
        .map(|s| (s.process.pid, s.process.parent_pid))
        .collect();
    assert!(
        pids[0].0 == pids[1].1 || pids[1].0 == pids[0].1,
        "one is the other's parent: {pids:?}"
    );
}

#[test]
fn what_a_child_inherits_is_not_its_leak() {
    assert_eq!(live(&children("fork_after")), [201]);
}

#[test]
fn a_child_that_uses_cuda_after_fork_leaves_the_parents_recording_intact() {
    let outcome = children("fork_after_and_use");
    outcome.expect_same_output_as_bare();
    let parent = outcome
        .snapshots
        .iter()
        .find(|s| s.process.parent_pid == std::process::id())
        .expect("the parent's");
    parent.expect_live(Device, 1, 100).expect_nothing_lost();
}

#[test]
fn children_forked_while_threads_allocate_leave_the_recording_intact() {
    let outcome = children("fork_among_threads");
    outcome.only_snapshot().expect_live(Device, 1, 50).expect_nothing_lost();
}

#[test]
fn vfork_and_exec_leave_the_parents_recording_intact() {
    let outcome = children("vfork_exec");
    outcome
        .only_snapshot()
        .expect_live(Device, 2, 201)
        .expect_nothing_lost();
    let outcome = children("vfork_and_leave");
    outcome
        .only_snapshot()
        .expect_live(Device, 2, 201)
        .expect_nothing_lost();
    assert_eq!(outcome.only_snapshot().process.state, ProcessState::Exited);
}

#[test]
fn spawned_programs_have_their_own_recordings() {
    assert_eq!(live(&children("spawned")), [7, 100]);
}

#[test]
fn a_program_started_by_exec_has_a_new_recording() {
    let outcome = children("exec_self");
    assert_eq!(live(&outcome), [7, 100]);
    let pids: Vec<_> = outcome.snapshots.iter().map(|s| s.process.pid).collect();
    assert_eq!(pids[0], pids[1], "one process, two programs");
    let replaced = outcome
        .snapshots
        .iter()
        .find(|s| s.process.command_line[1..] == ["exec_self"])
        .expect("the first");
    assert_eq!(replaced.process.state, ProcessState::Ended);
}

#[test]
fn a_program_replaced_by_exec_has_ended_although_its_process_runs() {
    let folder = folder();
    let mut running = profile("children").arg("exec_and_wait").start_in(folder.path());
    let mut line = String::new();
    let read = BufReader::new(running.stdout()).read_line(&mut line);
    assert_eq!((read.expect("the victim prints a line"), line.as_str()), (6, "ready\n"));
    let [recording] = &recordings_in(&folder.path().join("out"))[..] else {
        panic!("one recording")
    };
    let replaced = reader::read(recording).expect("readable");
    assert_eq!(replaced.process.state, ProcessState::Ended);
    replaced.expect_live(Device, 1, 100);
    running.kill();
    running.finish();
}

#[test]
fn exec_of_a_program_without_cuda_leaves_the_recording_intact() {
    let outcome = children("exec_other");
    outcome.expect_same_output_as_bare();
    outcome.only_snapshot().expect_live(Device, 1, 100);
    assert_eq!(outcome.only_snapshot().process.state, ProcessState::Ended);
}

#[test]
fn of_a_thousand_short_lived_children_those_that_use_cuda_leave_recordings() {
    let outcome = children("thousand");
    let mut expected = vec![7; 10];
    expected.push(100);
    assert_eq!(live(&outcome), expected);
}

#[test]
fn a_thousand_forked_children_leave_one_recording() {
    let outcome = children("thousand_forks");
    outcome
        .only_snapshot()
        .expect_live(Device, 2, 201)
        .expect_nothing_lost();
}

#[test]
fn a_child_that_outlives_its_parent_is_recorded() {
    let outcome = children("orphan");
    assert_eq!(live(&outcome), [100, 200]);
}
