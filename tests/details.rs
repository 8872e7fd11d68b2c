//! What a row holds besides its bytes: thread, order, time, stack.

use culeak::kind::Kind::*;
use culeak::snapshot::ProcessState;

use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::{Lookup, fake_driver, profile, program};

#[test]
fn a_row_names_its_thread_by_number_and_name() {
    let outcome = profile("threads").arg("named").run();
    let snapshot = outcome.only_snapshot();
    let printed = |word: &str| -> u32 {
        let line = outcome
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix(word))
            .expect("the victim prints it");
        line.parse().expect("a number")
    };
    let thread_of = |bytes: u64| {
        let row = snapshot
            .of_kind(Device)
            .into_iter()
            .find(|a| a.bytes == bytes)
            .expect("the block is live");
        &snapshot.threads[row.thread]
    };
    assert_eq!(
        (thread_of(70).tid, thread_of(70).name.as_str()),
        (printed("tid "), "loader-7")
    );
    assert_eq!(
        (thread_of(71).tid, thread_of(71).name.as_str()),
        (printed("main "), "threads")
    );
}

#[test]
fn rows_are_in_the_order_of_the_calls_and_of_time() {
    let outcome = profile("pools").arg("streams").run();
    let snapshot = outcome.only_snapshot();
    let bytes: Vec<u64> = snapshot.allocations.iter().map(|a| a.bytes).collect();
    assert_eq!(bytes, [100, 101, 102, 103, 104, 105]);
    assert!(snapshot.allocations.iter().is_sorted_by_key(|a| a.time_ns));
}

#[test]
fn the_recording_describes_its_process() {
    let outcome = profile("frees").arg("fails_once").failing("cuMemFree_v2:1:700").run();
    let process = &outcome.only_snapshot().process;
    assert!(process.executable.ends_with("/frees"), "{}", process.executable);
    assert_eq!(process.command_line[1..], ["fails_once"]);
    assert_eq!(process.state, ProcessState::Exited);
    assert_eq!(process.parent_pid, std::process::id());
    assert!(process.ranks.is_empty());
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970")
        .as_nanos() as u64;
    assert!(
        now - process.started_unix_ns < 3_600_000_000_000,
        "started within the hour"
    );
}

#[test]
fn the_stack_reaches_from_the_call_to_main_for_every_lookup() {
    for lookup in Lookup::ALL {
        let snapshot = profile("endings").lookup(lookup).arg("returns").run().symbolized();
        let functions = snapshot.functions(snapshot.only(Device));
        let ours: Vec<&str> = functions
            .iter()
            .map(String::as_str)
            .filter(|name| !name.starts_with('_'))
            .collect();
        assert_eq!(
            ours[..4],
            ["leak", "returns", "behave", "main"],
            "{lookup:?}: {functions:?}"
        );
        let stack = &snapshot.stacks[snapshot.only(Device).stack.expect("a stack")];
        assert!(!stack.truncated, "{lookup:?}");
    }
}

#[test]
fn source_lines_are_found() {
    let snapshot = profile("endings").arg("returns").run().symbolized();
    let row = snapshot.only(Device);
    let stack = &snapshot.stacks[row.stack.expect("a stack")];
    let symbols = stack
        .frames
        .iter()
        .flat_map(|&frame| &snapshot.locations[frame].symbols);
    let returns = symbols
        .into_iter()
        .find(|symbol| symbol.function == "returns")
        .expect("a frame of the victim");
    assert!(
        returns
            .file
            .as_deref()
            .is_some_and(|file| file.ends_with("victims/endings.c")),
        "{returns:?}"
    );
    assert!(returns.line.is_some());
}

#[test]
fn equal_stacks_are_stored_once() {
    let outcome = profile("threads").arg("created_and_gone").run();
    let snapshot = outcome.only_snapshot();
    assert!(
        snapshot.stacks.len() <= 4,
        "1,000 leaks of one call site have {} stacks: {:#?} at {:#?}",
        snapshot.stacks.len(),
        snapshot.stacks,
        snapshot.locations
    );
}

#[test]
fn a_stack_deeper_than_the_limit_is_cut_and_marked_as_truncated() {
    let outcome = profile("threads")
        .args("from_deep 300")
        .setting("CULEAK_DEPTH", "5")
        .run();
    let snapshot = outcome.only_snapshot();
    assert_eq!(snapshot.process.depth, 5);
    let stack = &snapshot.stacks[snapshot.only(Device).stack.expect("a stack")];
    assert_eq!((stack.frames.len(), stack.truncated), (5, true));
}

/// As lld links programs. From glibc 2.35 on the loader names the segment of the code only, without the unwind tables.
#[test]
fn the_stack_of_a_program_with_gaps_between_its_segments_is_complete() {
    let flags = ["-Wl,-z,max-page-size=0x200000,-z,separate-code"];
    let victim = executable("threads", &flags, &[fake_driver()]);
    let outcome = program(victim).args("from_deep 100").run();
    let snapshot = outcome.symbolized();
    let row = snapshot.only(Device);
    let stack = &snapshot.stacks[row.stack.expect("a stack")];
    assert!(!stack.truncated);
    let functions = snapshot.functions(row);
    assert_eq!(
        functions.iter().filter(|name| *name == "deep").count(),
        101,
        "{functions:?}"
    );
    assert!(functions.iter().any(|name| name == "main"), "{functions:?}");
}

#[test]
fn the_default_limit_is_128_frames() {
    let outcome = profile("threads").args("from_deep 300").run();
    let snapshot = outcome.only_snapshot();
    let stack = &snapshot.stacks[snapshot.only(Device).stack.expect("a stack")];
    assert_eq!(
        (stack.frames.len(), stack.truncated, snapshot.process.depth),
        (128, true, 128)
    );

    let outcome = profile("threads").args("from_deep 100").run();
    let snapshot = outcome.only_snapshot();
    let stack = &snapshot.stacks[snapshot.only(Device).stack.expect("a stack")];
    assert!(
        stack.frames.len() > 100 && !stack.truncated,
        "{} frames",
        stack.frames.len()
    );
}

#[test]
fn an_invalid_depth_is_reported_and_ignored() {
    for depth in ["0", "-1", "many", "999999999999", ""] {
        let outcome = profile("endings").arg("returns").setting("CULEAK_DEPTH", depth).run();
        let snapshot = outcome.only_snapshot();
        snapshot.expect_live(Device, 1, 100);
        assert_eq!(snapshot.process.depth, 128);
        let message = format!("culeak: CULEAK_DEPTH={depth} is ignored; allowed: a whole number from 1 to 256");
        let times = outcome.our_lines().iter().filter(|&&line| line == message).count();
        assert_eq!(times, usize::from(!depth.is_empty()), "{}", outcome.stderr);
    }
}
