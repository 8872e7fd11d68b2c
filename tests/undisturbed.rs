//! Signals, descriptors and the stack of the program are not touched.

use crate::support::profile::folder;
use crate::support::{Outcome, Preload, library, profile};

fn undisturbed(behaviour: &str) -> Outcome {
    let outcome = profile("undisturbed").arg(behaviour).run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome
}

#[test]
fn a_closed_reader_of_stderr_raises_no_signal() {
    undisturbed("stderr_without_reader");
}

#[test]
fn a_log_at_the_file_size_limit_raises_no_signal() {
    undisturbed("stderr_at_its_limit");
}

#[test]
fn a_full_stderr_pipe_does_not_block_the_program() {
    undisturbed("stderr_without_room");
}

/// On a slow disk, so that the descriptor of the recording stays open for a while.
#[test]
fn writes_to_a_closed_stderr_do_not_reach_the_recording() {
    let disk = library("slow_disk", "libslow_disk.so", &[], &[]);
    let run = profile("undisturbed")
        .with_preload(Preload::AfterCuleak, disk)
        .env("SLOW_DISK_MS", "20");
    let outcome = run.arg("stderr_closed").run();
    outcome.expect_success();
    assert_eq!(outcome.stdout, "written 0\ndone\n");
    assert_eq!(outcome.only_snapshot().allocations.len(), 20_000);
}

#[test]
fn the_recorder_holds_no_descriptor_below_64() {
    undisturbed("lists_descriptors");
}

/// The bytes of stack that the first event of a process uses.
fn stack_of(event: &str, recorded: bool) -> u64 {
    let run = profile("undisturbed").tiny_driver().arg("stack_of").arg(event);
    let run = if recorded { run } else { run.bare() };
    let outcome = run.run_in(folder());
    outcome.expect_success();
    let bytes = outcome.stdout.lines().find_map(|line| line.strip_prefix("bytes "));
    bytes
        .and_then(|bytes| bytes.parse().ok())
        .unwrap_or_else(|| panic!("{}", outcome.everything()))
}

#[test]
fn the_first_event_of_a_process_uses_at_most_16_kib_of_stack() {
    for event in ["allocates", "initializes", "fails", "keeps_snapshot", "ends"] {
        let (bare, recorded) = (stack_of(event, false), stack_of(event, true));
        assert!(
            recorded <= bare + 16 * 1024,
            "{event}: {recorded} bytes of stack instead of {bare}"
        );
    }
}
