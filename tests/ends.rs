//! The end of the program's own work: what was live then stays known, although it is freed afterwards.

use std::collections::BTreeSet;

use culeak::kind::Kind;
use culeak::point::Point;
use culeak::snapshot::{EndOf, Snapshot};

use crate::interpreters::{Python, recorded};
use crate::support::{Outcome, Profile, profile, program, sources};
use crate::tensors::torch;

fn ends(python: &Python, case: &str) -> Outcome {
    let profile = program(&python.command);
    let outcome = profile.arg("-B").arg(sources().join("victims/ends.py")).arg(case).run();
    let code = match case {
        "sys_exit" => 3,
        "exception" => 1,
        _ => 0,
    };
    assert_eq!(outcome.status.code(), Some(code), "{}", outcome.everything());
    outcome
}

/// The addresses that were live when the script ended, and the one that an atexit callback frees.
fn printed(outcome: &Outcome) -> (BTreeSet<u64>, u64) {
    serde_json::from_str(outcome.stdout.trim()).unwrap_or_else(|error| panic!("{error}: {}", outcome.everything()))
}

fn live(snapshot: &Snapshot) -> BTreeSet<u64> {
    snapshot.allocations.iter().map(|a| a.address).collect()
}

fn live_at_end(snapshot: &Snapshot) -> BTreeSet<u64> {
    let end = snapshot.end.expect("an end");
    let still = snapshot.allocations.iter().filter(|a| a.time_ns <= end.time_ns);
    still.chain(&snapshot.freed_after_end).map(|a| a.address).collect()
}

#[track_caller]
fn expect_end_of_script(snapshot: &Snapshot, expected: &BTreeSet<u64>, python: &Python) {
    assert_eq!(
        snapshot.end.map(|end| end.of),
        Some(EndOf::Script),
        "{}",
        python.version
    );
    assert_eq!(&live_at_end(snapshot), expected, "{}", python.version);
    let stays: Vec<u64> = snapshot.allocations.iter().map(|a| a.bytes).collect();
    assert!(stays.contains(&8000), "{stays:?}");
    assert!(
        snapshot.freed_after_end.len() >= 3,
        "{}: the interpreter's shutdown frees cycles, not {:?}",
        python.version,
        snapshot.freed_after_end
    );
}

#[test]
fn memory_that_the_interpreter_frees_while_it_finalizes_is_known() {
    for python in recorded() {
        for case in ["hold", "in_thread", "sys_exit", "exception"] {
            let outcome = ends(python, case);
            let (expected, _) = printed(&outcome);
            expect_end_of_script(outcome.only_recording(), &expected, python);
        }
    }
}

/// All tensors have a stack, or none, or some.
#[test]
fn tensors_that_the_interpreter_frees_while_it_finalizes_are_known_without_stacks_too() {
    let libraries = torch(1, &[]);
    for python in recorded() {
        for mean in ["0", "1TiB", "4KiB"] {
            let profile = program(&python.command)
                .arg("-B")
                .arg(sources().join("victims/ends.py"));
            let profile = libraries.iter().fold(profile.arg("tensors"), Profile::arg);
            let outcome = profile.setting("CULEAK_SAMPLE", mean).run();
            outcome.expect_success();
            let (expected, _) = printed(&outcome);
            let snapshot = outcome.only_snapshot();
            let end = snapshot.end.expect("an end");
            assert_eq!(end.of, EndOf::Script, "{}, {mean}", python.version);
            let still = snapshot.allocations.iter().filter(|a| a.time_ns <= end.time_ns);
            let all = still.chain(&snapshot.freed_after_end);
            let tensors: BTreeSet<u64> = all.filter(|a| a.kind == Kind::Tensor).map(|a| a.address).collect();
            assert_eq!(tensors, expected, "{}, {mean}", python.version);
            assert!(snapshot.freed_after_end.len() >= 3, "{}, {mean}", python.version);
            assert_eq!(snapshot.losses.unknown_blocks, 0, "{}, {mean}", python.version);
        }
    }
}

#[test]
fn objects_that_callbacks_destroy_exist_at_the_end() {
    for python in recorded() {
        let outcome = ends(python, "objects");
        let end = outcome.only_snapshot().at(&Point::End);
        let streams = |snapshot: &Snapshot| snapshot.objects.iter().filter(|row| row.kind == Kind::Stream).count();
        let (held, streams) = end.map_or((0, 0), |end| (end.allocations.len(), streams(&end)));
        assert_eq!((held, streams), (1, 3), "{}", python.version);
    }
}

#[test]
fn memory_that_only_a_finalizer_frees_is_held_at_the_end() {
    for python in recorded() {
        for case in ["finalizes_early", "finalizes_late"] {
            let outcome = ends(python, case);
            let (expected, _) = printed(&outcome);
            let snapshot = outcome.only_snapshot();
            assert_eq!(live_at_end(snapshot), expected, "{case}, {}", python.version);
            assert_eq!(snapshot.freed_after_end.len(), 1, "{case}, {}", python.version);
        }
    }
}

#[test]
fn the_end_of_a_script_is_known_if_its_shutdown_frees_nothing() {
    for python in recorded() {
        let outcome = ends(python, "forget");
        let (expected, _) = printed(&outcome);
        let snapshot = outcome.only_snapshot();
        let end = snapshot.end.map(|end| end.of);
        assert_eq!(end, Some(EndOf::Script), "{}", python.version);
        assert_eq!(live_at_end(snapshot), expected, "{}", python.version);
        assert!(snapshot.freed_after_end.is_empty(), "{}", python.version);
    }
}

#[test]
fn memory_allocated_while_the_interpreter_finalizes_is_not_the_scripts() {
    for python in recorded() {
        let outcome = ends(python, "allocates_late");
        let snapshot = outcome.only_snapshot();
        let end = snapshot.end.expect("an end");
        assert_eq!(end.of, EndOf::Script, "{}", python.version);
        let at_end: Vec<u64> = snapshot.allocations.iter().map(|a| a.bytes).collect();
        assert_eq!(at_end, [1000, 77], "{}", python.version);
        let late: Vec<bool> = snapshot.allocations.iter().map(|a| a.time_ns > end.time_ns).collect();
        assert_eq!(late, [false, true], "{}", python.version);
    }
}

#[test]
fn a_script_that_leaves_at_once_has_no_end_but_its_last_state() {
    for python in recorded() {
        let outcome = ends(python, "leave_at_once");
        let (expected, _) = printed(&outcome);
        let snapshot = outcome.only_snapshot();
        assert_eq!((snapshot.end, snapshot.freed_after_end.len()), (None, 0));
        assert_eq!(live(snapshot), expected, "{}", python.version);
    }
}

#[test]
fn processes_of_multiprocessing_keep_what_they_held() {
    for python in recorded() {
        for method in ["forked", "spawn", "forkserver"] {
            let outcome = ends(python, method);
            let (expected, early) = printed(&outcome);
            let worker = outcome
                .snapshots
                .iter()
                .find(|snapshot| snapshot.allocations.iter().any(|a| a.bytes == 8000));
            let worker = worker.unwrap_or_else(|| panic!("{method}: {}", outcome.everything()));
            // Workers of fork and forkserver leave by `os._exit`.
            if worker.end.is_some() {
                expect_end_of_script(worker, &expected, python);
            } else {
                // Since 3.13 they call `atexit` callbacks first.
                let mut live = live(worker);
                live.insert(early);
                assert_eq!(live, expected, "{method}, {}", python.version);
            }
            assert_eq!(
                worker.end.is_some(),
                method != "forkserver",
                "{method}, {}",
                python.version
            );
        }
    }
}

#[test]
fn memory_that_exit_handlers_free_was_live_when_main_returned() {
    let outcome = profile("endings").arg("frees_in_destructor").run();
    let snapshot = outcome.only_snapshot();
    assert_eq!(snapshot.end.map(|end| end.of), Some(EndOf::Main));
    let freed: Vec<u64> = snapshot.freed_after_end.iter().map(|a| a.bytes).collect();
    assert_eq!(freed, [100]);
    let left: Vec<u64> = snapshot.allocations.iter().map(|a| a.bytes).collect();
    assert_eq!(left, [101]);
}
