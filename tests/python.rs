//! Python frames in the stacks, under every installed interpreter.

use std::collections::HashMap;
use std::fmt::Write;
use std::process::Command;

use crate::interpreters::{Python, recorded};
use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::{Outcome, Profile, culeak, fake_driver, program, sources};
use culeak::kind::Kind::*;
use culeak::snapshot::{Language, Location, Snapshot};

fn train(python: &Python) -> Profile {
    let profile = program(&python.command);
    profile.arg("-B").arg(sources().join("victims/train.py"))
}

/// Function, file and line.
type Frame = (String, String, u32);

/// What the program printed about an allocation: the case, the address, and its frames.
type Line = (String, u64, Vec<Frame>);

fn lines(outcome: &Outcome) -> Vec<Line> {
    let lines = outcome.stdout.lines().map(|line| {
        let value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
        let frame = |frame: &serde_json::Value| {
            let line = frame[2].as_u64().expect("a line") as u32;
            (text(&frame[1]), text(&frame[0]), line)
        };
        let frames = value[2].as_array().expect("frames").iter().map(frame);
        let address = value[1].as_u64().expect("an address");
        (text(&value[0]), address, frames.collect())
    });
    lines.collect()
}

/// Case and frames by address, as the program printed them.
fn expected_frames(outcome: &Outcome) -> HashMap<u64, (String, Vec<Frame>)> {
    let lines = lines(outcome).into_iter();
    lines.map(|(case, address, frames)| (address, (case, frames))).collect()
}

fn locations(snapshot: &Snapshot, stack: Option<usize>) -> Vec<&Location> {
    let stack = &snapshot.stacks[stack.expect("a stack")];
    stack.frames.iter().map(|&frame| &snapshot.locations[frame]).collect()
}

fn python_frames(locations: &[&Location]) -> Vec<Frame> {
    let python = locations
        .iter()
        .filter(|location| location.language == Language::Python);
    python
        .map(|location| {
            let symbol = &location.symbols[0];
            let (file, line) = (symbol.file.clone().expect("a file"), symbol.line.expect("a line"));
            (symbol.function.clone(), file, line)
        })
        .collect()
}

/// `P` for a Python frame, `n` for a native one, innermost first.
fn shape(locations: &[&Location]) -> String {
    let letter = |location: &&Location| {
        if location.language == Language::Python {
            'P'
        } else {
            'n'
        }
    };
    locations.iter().map(letter).collect()
}

fn stack_text(snapshot: &Snapshot, stack: Option<usize>) -> String {
    locations(snapshot, stack)
        .iter()
        .fold(String::new(), |mut text, location| {
            let symbol = location.symbols.last();
            let _ = writeln!(text, "  {:?} {symbol:?}", location.language);
            text
        })
}

#[test]
fn every_allocation_names_the_python_lines_that_requested_it() {
    for python in recorded() {
        let outcome = train(python).run();
        outcome.expect_success();
        let snapshot = outcome.symbolized();
        snapshot.expect_nothing_lost();
        assert_eq!(snapshot.losses.lost_python, 0, "{}", python.version);
        let known = snapshot.process.python.as_ref().expect("an interpreter");
        assert_eq!(known.no_frames, None);
        assert_eq!(known.version, python.version.trim_end_matches('t'));
        let expected_frames = expected_frames(&outcome);
        assert_eq!(expected_frames.len(), snapshot.allocations.len());
        for allocation in &snapshot.allocations {
            let (case, expected) = &expected_frames[&allocation.address];
            let locations = locations(&snapshot, allocation.stack);
            let mut frames = python_frames(&locations);
            let cut = snapshot.stacks[allocation.stack.expect("a stack")].truncated;
            assert_eq!(cut, case == "deep recursion", "{} {case}", python.version);
            if cut {
                assert!(frames.len() >= 20, "{} {case}: {}", python.version, frames.len());
                frames.extend_from_slice(&expected[frames.len()..]);
            }
            let all = stack_text(&snapshot, allocation.stack);
            assert_eq!(&frames, expected, "{} {case}:\n{all}", python.version);
        }
    }
}

#[test]
fn without_process_vm_readv_the_python_frames_are_the_same() {
    let forbids = executable("forbids", &[], &[]);
    for python in recorded() {
        let outcome = train(python).wrapped_in(&[forbids.to_str().expect("a path")]).run();
        let (snapshot, expected_frames) = (outcome.only_snapshot(), expected_frames(&outcome));
        snapshot.expect_nothing_lost();
        for allocation in &snapshot.allocations {
            let (case, expected) = &expected_frames[&allocation.address];
            let frames = python_frames(&locations(snapshot, allocation.stack));
            assert!(
                case == "deep recursion" || frames == *expected,
                "{} {case}: {frames:?}",
                python.version
            );
        }
    }
}

#[test]
fn native_frames_between_python_frames_stay_where_they_are() {
    for python in recorded() {
        let outcome = train(python).run();
        let snapshot = outcome.symbolized();
        let expected_frames = expected_frames(&outcome);
        for allocation in &snapshot.allocations {
            let (case, _) = &expected_frames[&allocation.address];
            let locations = locations(&snapshot, allocation.stack);
            let (shape, all) = (shape(&locations), stack_text(&snapshot, allocation.stack));
            // Python functions call ctypes or are called by other functions; the process begins in C.
            assert!(shape.starts_with('n'), "{} {case}: {shape}\n{all}", python.version);
            if case == "deep recursion" {
                continue;
            }
            assert!(shape.ends_with('n'), "{} {case}: {shape}\n{all}", python.version);
            let groups = shape.split('n').filter(|group| !group.is_empty()).count();
            // From 3.11 on, Python functions call each other without C frames in between.
            if python.minor >= 11 && case != "thread" {
                let expected = match case.as_str() {
                    "mapped" | "generator" | "made" => 2,
                    "called back" => 5,
                    _ => 1,
                };
                assert_eq!(groups, expected, "{} {case}: {shape}\n{all}", python.version);
            }
            let loops = locations.iter().flat_map(|location| &location.symbols);
            let loops = loops.filter(|symbol| symbol.function.starts_with("_PyEval_EvalFrameDefault"));
            assert_eq!(loops.count(), 0, "{} {case}: {shape}\n{all}", python.version);
        }
    }
}

#[test]
fn equal_stacks_are_one_stack() {
    for python in recorded() {
        let outcome = train(python).run();
        let (snapshot, expected_frames) = (outcome.only_snapshot(), expected_frames(&outcome));
        let of = |case: &str| {
            let rows = snapshot
                .allocations
                .iter()
                .filter(|a| expected_frames[&a.address].0 == case);
            let mut stacks: Vec<_> = rows.map(|a| a.stack).collect();
            stacks.dedup();
            stacks.len()
        };
        assert_eq!((of("step again"), of("made")), (1, 300), "{}", python.version);
    }
}

#[test]
fn a_forked_child_records_its_own_frames() {
    for python in recorded() {
        let outcome = train(python).arg("forks").run();
        outcome.expect_success();
        assert_eq!(outcome.snapshots.len(), 2, "{}", outcome.everything());
        let (parent, child) = match &outcome.snapshots[..] {
            [a, b] if a.allocations.len() > b.allocations.len() => (a, b),
            [a, b] => (b, a),
            _ => unreachable!("counted above"),
        };
        assert!(child.process.python.is_some() && parent.process.python == child.process.python);
        let lines = lines(&outcome);
        let of_child: Vec<_> = lines.iter().filter(|line| line.0 == "child").collect();
        assert_eq!((of_child.len(), child.allocations.len()), (1, 1));
        let frames = python_frames(&locations(child, child.allocations.at(0).stack));
        assert_eq!(frames, of_child[0].2, "{}", python.version);
    }
}

/// Freed memory is overwritten, so that a late read finds garbage.
#[test]
fn daemon_threads_at_work_while_the_interpreter_ends_are_safe() {
    for python in recorded() {
        let profile = program(&python.command)
            .arg("-B")
            .arg(sources().join("victims/daemons.py"));
        let (name, value) = python.frees_at_once();
        let outcome = profile.env("MALLOC_PERTURB_", "85").env(name, value).run();
        let snapshot = outcome.only_snapshot();
        assert!(snapshot.counted(Device).total_count > 100, "{}", outcome.everything());
        assert!(snapshot.process.python.is_some());
    }
}

#[cfg(target_arch = "x86_64")]
const SIGSYS: i32 = 31;

/// As autograd's thread of each GPU, which has a Python thread state and does not hold the GIL.
#[cfg(target_arch = "x86_64")]
#[test]
fn an_event_on_a_thread_without_the_gil_makes_no_system_call() {
    for python in recorded() {
        let profile = program(&python.command)
            .arg("-B")
            .arg(sources().join("victims/calls_nothing.py"));
        let outcome = profile.clone().run();
        outcome.expect_success();
        let snapshot = outcome.only_snapshot();
        assert_eq!(snapshot.counted(Device).total_count, 900, "{}", python.version);
        // Where the end of the interpreter is not announced, the kernel reads the frames, and the filter notices it.
        profile.arg("unannounced").run().expect_signal(SIGSYS);
    }
}

#[test]
fn an_unsupported_interpreter_is_left_alone_and_the_reason_is_reported() {
    let pretender = executable("pretender", &["-DLOOKUP_LINKED", "-rdynamic"], &[fake_driver()]);
    for (arguments, version, reason) in [
        ("031000f0", "3.16.0", "not known"),
        ("030712f0", "3.7.18", "not known"),
        ("030f00b1", "3.15.0", "pre-release"),
        ("030f00f0 t", "3.15.0", "free-threaded"),
        ("030d00f0 t", "3.13.0", "description of its own structures"),
        ("030d00f0", "3.13.0", "description of its own structures"),
        ("030c01f0", "3.12.1", "code objects"),
    ] {
        let outcome = program(&pretender).args(arguments).run();
        let snapshot = outcome.only_snapshot();
        snapshot.expect_live(Device, 1, 100).expect_nothing_lost();
        let python = snapshot.process.python.as_ref().expect("an interpreter");
        let why = python.no_frames.as_deref().unwrap_or_default();
        assert!(
            python.version == version && why.contains(reason),
            "{arguments}: {python:?}"
        );
        let report = Command::new(culeak())
            .arg("report")
            .arg(&outcome.recordings[0])
            .output();
        let report = String::from_utf8_lossy(&report.expect("a report").stdout).into_owned();
        // It may be wrapped over lines.
        let words: Vec<&str> = report.split_whitespace().collect();
        assert!(words.join(" ").contains(reason), "{report}");
    }
}

#[test]
fn libgcc_as_the_unwinder_gives_the_same_stacks() {
    let python = &recorded()[0];
    let shapes = |profile: Profile| {
        let outcome = profile.run();
        let (snapshot, expected_frames) = (outcome.only_snapshot(), expected_frames(&outcome));
        let rows = snapshot
            .allocations
            .iter()
            .filter(|a| expected_frames[&a.address].0 != "deep recursion");
        rows.map(|a| {
            (
                expected_frames[&a.address].0.clone(),
                shape(&locations(snapshot, a.stack)),
            )
        })
        .collect::<Vec<_>>()
    };
    let other = train(python).setting("CULEAK_UNWINDER", "libgcc");
    assert_eq!(shapes(train(python)), shapes(other));
}

#[test]
fn a_report_adds_up_by_line_of_python_and_shows_no_interpreter() {
    for python in recorded() {
        let outcome = train(python).run();
        let expected_frames = expected_frames(&outcome);
        let recording = crate::support::outcome::recordings_in(&outcome.out()).remove(0);
        let report = |by: &str| {
            let mut command = std::process::Command::new(crate::support::culeak());
            let output = command
                .arg("report")
                .arg(&recording)
                .args(["--json", "--by", by])
                .output();
            let report: serde_json::Value =
                serde_json::from_slice(&output.expect("the CLI starts").stdout).expect("JSON");
            report["rows"].as_array().expect("rows").clone()
        };
        // Every allocation of the script goes through one line of one function.
        let (function, file, line) = &expected_frames.values().next().expect("it allocates").1[0];
        let file = file.rsplit('/').next().expect("a name");
        let lines: Vec<_> = report("python-line")
            .iter()
            .map(|row| (row["label"].clone(), row["count"].clone()))
            .collect();
        assert_eq!(
            lines,
            [(format!("{function} {file}:{line}").into(), expected_frames.len().into())],
            "{}",
            python.version
        );
        let sites = report("site");
        assert_eq!(
            (sites.len(), &sites[0]["label"]),
            (1, &serde_json::Value::from(function.as_str()))
        );
        for stack in sites[0]["stacks"].as_array().expect("stacks") {
            let frames = stack["frames"].as_array().expect("frames").iter();
            let shown = frames.filter(|frame| matches!(frame["role"].as_str(), Some("user" | "wrapper" | "library")));
            for frame in shown {
                assert_eq!(frame["language"], "python", "{}: {frame:#}", python.version);
            }
        }
    }
}
