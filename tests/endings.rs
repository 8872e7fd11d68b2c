//! A recording is complete however its process ends.

use std::io::{BufRead, BufReader, Write};
use std::process::Command;

use culeak::kind::Kind::*;
use culeak::reader;
use culeak::snapshot::{ProcessState, Snapshot};

use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::outcome::{recordings_in, symbolize};
use crate::support::profile::folder;
use crate::support::{Outcome, culeak, fake_driver, profile, program};

fn ending(behaviour: &str) -> Outcome {
    profile("endings").arg(behaviour).run()
}

#[track_caller]
fn expect_complete(outcome: &Outcome, state: ProcessState) {
    let snapshot = outcome.only_recording();
    snapshot.expect_live(Device, 1, 100).expect_nothing_lost();
    assert_eq!(snapshot.process.state, state);
}

#[test]
fn returning_from_main_and_exit_leave_a_complete_recording() {
    expect_complete(&ending("returns"), ProcessState::Exited);
    let outcome = ending("exits");
    outcome.expect_exit(7);
    expect_complete(&outcome, ProcessState::Exited);
}

#[test]
fn leaving_without_exit_handlers_leaves_a_complete_recording() {
    for behaviour in ["leaves_at_once", "quick"] {
        let outcome = ending(behaviour);
        outcome.expect_exit(7);
        expect_complete(&outcome, ProcessState::Ended);
    }
}

#[test]
fn dying_by_a_signal_leaves_a_complete_recording_and_the_same_signal() {
    for (behaviour, signal) in [("aborts", 6), ("crashes", 11), ("terminated", 15)] {
        let outcome = ending(behaviour);
        outcome.expect_signal(signal);
        expect_complete(&outcome, ProcessState::Ended);
    }
}

#[test]
fn the_output_is_the_same_for_every_ending() {
    for behaviour in [
        "returns",
        "exits",
        "leaves_at_once",
        "quick",
        "aborts",
        "terminated",
        "frees_in_destructor",
    ] {
        ending(behaviour).expect_same_output_as_bare();
    }
}

#[test]
fn every_allocation_acknowledged_before_sigkill_is_in_the_recording() {
    for kill_after in [1, 10, 500, 1000] {
        let folder = folder();
        let mut running = profile("endings").arg("acknowledges").start_in(folder.path());
        let lines = BufReader::new(running.stdout()).lines();
        let acknowledged: Vec<u64> = lines
            .take(kill_after)
            .map(|line| line.unwrap().parse().unwrap())
            .collect();
        running.kill();
        running.finish();
        let [recording] = &recordings_in(&folder.path().join("out"))[..] else {
            panic!("one recording")
        };
        let snapshot = crate::support::outcome::read(recording);
        let found: Vec<u64> = snapshot.of_kind(Device).iter().map(|a| a.bytes).collect();
        assert_eq!(found[..acknowledged.len()], acknowledged);
        assert_eq!(snapshot.process.state, ProcessState::Ended);
        snapshot.expect_nothing_lost();
        assert!(snapshot.allocations.iter().all(|a| a.stack.is_some()));
    }
}

/// Starts a behaviour that prints "ready", and calls `look` with its recording while it runs.
fn while_running(behaviour: &str, look: impl FnOnce(&std::path::Path, &crate::support::process::Started)) {
    let folder = folder();
    let mut running = profile("endings").arg(behaviour).start_in(folder.path());
    let mut line = String::new();
    BufReader::new(running.stdout())
        .read_line(&mut line)
        .expect("the victim prints a line");
    assert_eq!(line, "ready\n");
    let [recording] = &recordings_in(&folder.path().join("out"))[..] else {
        panic!("one recording")
    };
    look(recording, &running);
    running.kill();
    running.finish();
}

#[test]
fn a_running_process_can_be_read_from_outside() {
    while_running("waits", |recording, running| {
        let snapshot = reader::read(recording).expect("readable");
        snapshot.expect_live(Device, 1, 4096);
        assert_eq!(snapshot.process.state, ProcessState::Running);
        assert_eq!(snapshot.process.pid, running.child.id());
        assert_eq!(snapshot.taken.events_during_read, 0);
        let named = symbolize(recording);
        assert!(named.functions(named.only(Device)).contains(&"waits".to_owned()));
    });
}

#[test]
fn a_busy_process_can_be_read_repeatedly() {
    while_running("restless", |recording, _| {
        for _ in 0..200 {
            let snapshot = reader::read(recording).expect("readable");
            snapshot.validate().expect("every index is in range");
            let steady = |a: &culeak::snapshot::Allocation| a.bytes == 12345;
            assert_eq!(
                snapshot.allocations.iter().filter(steady).count(),
                1,
                "{:#?}",
                snapshot.allocations
            );
            assert!(snapshot.allocations.len() <= 2, "{:#?}", snapshot.allocations);
        }
    });
}

#[test]
fn a_running_process_is_found_by_its_pid() {
    while_running("waits", |_, running| {
        let pid = running.child.id().to_string();
        let json = folder();
        let file = json.path().join("now.json");
        let result = Command::new(culeak())
            .args(["snapshot", &pid, "-o"])
            .arg(&file)
            .output()
            .expect("the CLI starts");
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        let snapshot: Snapshot = serde_json::from_slice(&std::fs::read(&file).unwrap()).expect("valid JSON");
        snapshot.expect_live(Device, 1, 4096);
    });
}

#[test]
fn a_waiting_process_continues_after_it_was_read() {
    let folder = folder();
    let mut running = profile("endings").arg("waits").start_in(folder.path());
    let mut from = BufReader::new(running.stdout());
    let mut line = String::new();
    from.read_line(&mut line).expect("the victim prints a line");
    let recording = recordings_in(&folder.path().join("out")).remove(0);
    for _ in 0..20 {
        reader::read(&recording).expect("readable");
    }
    running
        .child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"go on")
        .expect("its stdin is open");
    line.clear();
    from.read_line(&mut line).expect("the victim prints a line");
    assert_eq!(line, "done\n");
    assert!(running.finish().status.success());
}

#[test]
fn static_destructors_and_exit_handlers_may_free_after_cuda_is_gone() {
    let outcome = ending("frees_in_destructor");
    outcome.expect_same_output_as_bare();
    // The driver answers 0 or 4; neither is a leak.
    outcome.only_snapshot().expect_live(Device, 1, 101);

    let outcome = ending("frees_in_atexit");
    outcome.expect_same_output_as_bare();
    outcome.only_snapshot().expect_no_leaks();
}

#[test]
fn memory_allocated_by_an_exit_handler_is_recorded() {
    let outcome = profile("endings").tiny_driver().arg("allocates_in_atexit").run();
    outcome.expect_same_output_as_bare();
    outcome.only_snapshot().expect_live(Device, 1, 111);
}

#[test]
fn memory_allocated_before_main_is_recorded() {
    let outcome = program(executable("before_main", &[], &[fake_driver()])).run();
    outcome.expect_same_output_as_bare();
    outcome.only_snapshot().expect_live(Device, 1, 100);
}
