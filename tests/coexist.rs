//! Other tools in the same process: each receives the calls that it receives without culeak, and the program's output is
//! the same.
//!
//! `victims/wrapper.c` stands in for an interposer and counts the calls that reach it; `victims/routes.c` is a program
//! that reaches CUDA by every route. Every claim compares with the other tool alone, so it holds for what that tool does
//! without culeak, sensible or not. Limits, disks and descriptors are in `disk.rs`, sanitizers in `without_cuda.rs`, hooks
//! of `dlsym` in `lookup.rs`.

use std::fs;
use std::path::PathBuf;

use culeak::kind::Kind::*;
use serde_json::Value;

use crate::support::claims::Claims;
use crate::support::compile::{executable, run_folder};
use crate::support::{Outcome, Preload, Profile, culeak, fake_driver, library, program};

/// How a wrapper finds the function that it forwards to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// `dlsym(RTLD_NEXT, …)`; the wrapper is linked with the libraries that it wraps.
    Next,
    /// The same, but not linked with them: behind a library opened with RTLD_LOCAL it finds nothing.
    NextUnlinked,
    /// The libraries' own handles.
    Handle,
    /// It exports its own `dlsym`, which returns its functions.
    Dlsym,
    /// The same, but the functions themselves are not exported.
    HiddenDlsym,
}

fn runtime() -> PathBuf {
    let script = run_folder().join("coexist-libcudart.map");
    fs::write(&script, "libcudart.so.12 { global: cuda*; local: *; };\n").expect("written");
    let script = format!("-Wl,--version-script={}", script.display());
    library("runtime", "libcudart.so.12", &["-DCOPY=\"the runtime\"", &script], &[])
}

fn wrapper(way: Way, bound_to_itself: bool) -> PathBuf {
    let (mut flags, libraries) = match way {
        Way::Next => (vec!["-DBY_NEXT"], vec![runtime(), fake_driver()]),
        Way::NextUnlinked => (vec!["-DBY_NEXT"], vec![]),
        Way::Handle => (vec!["-DBY_HANDLE"], vec![]),
        Way::Dlsym => (vec!["-DBY_DLSYM"], vec![]),
        Way::HiddenDlsym => (vec!["-DBY_DLSYM", "-DHIDDEN"], vec![]),
    };
    // The wrapper names none of their functions, and some linkers drop libraries that are not referenced.
    flags.push("-Wl,--no-as-needed");
    if bound_to_itself {
        flags.push("-Wl,-Bsymbolic");
    }
    library("wrapper", "libwrapper.so", &flags, &libraries)
}

/// One program for each route to CUDA.
fn routes() -> Vec<(&'static str, Profile)> {
    let linked = executable("routes", &["-DLINKED"], &[runtime(), fake_driver()]);
    let host = executable("routes", &[], &[]);
    let plugin = library("routes", "libroutes.so", &["-DPLUGIN"], &[runtime(), fake_driver()]);
    let mut routes = vec![("linked", program(linked).arg("linked"))];
    for (route, opened) in [
        ("local_plugin", &plugin),
        ("global_plugin", &plugin),
        ("default_scope", &runtime()),
        ("handle", &runtime()),
        ("proc_address", &runtime()),
    ] {
        routes.push((route, program(&host).arg(route).arg(opened)));
    }
    routes
}

/// How many allocations the program reports as made and as live, and the live bytes.
fn accounted(outcome: &Outcome) -> Option<[u64; 3]> {
    let line = outcome.stdout.lines().find(|line| line.starts_with("made "))?;
    let mut numbers = line.split_whitespace().filter_map(|word| word.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

/// What culeak recorded, in the same terms.
fn recorded(outcome: &Outcome) -> [u64; 3] {
    // A program whose allocations all failed leaves no recording.
    let Some(snapshot) = outcome.snapshots.first() else {
        return [0; 3];
    };
    let counter = snapshot.counted(Device);
    [counter.total_count, counter.live_count, counter.live_bytes]
}

/// How `profile` with the other tool and culeak differs from the other tool alone.
fn difference(profile: &Profile) -> Option<String> {
    let bare = profile.clone().bare().run();
    let outcome = profile.clone().run();
    let theirs = |outcome: &Outcome| -> Vec<String> {
        let lines = outcome.stderr.lines().filter(|line| !line.starts_with("culeak"));
        lines.map(str::to_owned).collect()
    };
    let result = |outcome: &Outcome| (outcome.status, outcome.stdout.clone(), theirs(outcome));
    if result(&outcome) != result(&bare) {
        return Some(format!(
            "bare {:?}\n  with culeak {:?}",
            result(&bare),
            result(&outcome)
        ));
    }
    if !outcome.unreadable.is_empty() || outcome.snapshots.len() > 1 {
        return Some(format!("{:?}, {:?}", outcome.recordings, outcome.unreadable));
    }
    let made = accounted(&outcome)?;
    (recorded(&outcome) != made).then(|| {
        format!(
            "made, live, live bytes: the program printed {made:?}, recorded were {:?}",
            recorded(&outcome)
        )
    })
}

/// Every route, with a wrapper on either side of culeak, with and without `-Bsymbolic`.
#[track_caller]
fn expect_undisturbed(way: Way) {
    let mut differences = Vec::new();
    for bound_to_itself in [false, true] {
        let wrapper = wrapper(way, bound_to_itself);
        for place in ORDERS {
            for (route, profile) in routes() {
                if let Some(difference) = difference(&profile.with_preload(place, wrapper.clone())) {
                    let bound = if bound_to_itself { ", -Bsymbolic" } else { "" };
                    differences.push(format!("{route}, {place:?}{bound}: {difference}"));
                }
            }
        }
    }
    assert!(
        differences.is_empty(),
        "{way:?}: {} of 24\n{}",
        differences.len(),
        differences.join("\n")
    );
}

#[test]
fn the_routes_reach_the_wrapper_without_culeak() {
    // Otherwise the comparisons below would prove nothing.
    for (way, reached) in [
        (Way::Next, 4),
        (Way::NextUnlinked, 4),
        (Way::Handle, 4),
        (Way::Dlsym, 6),
        (Way::HiddenDlsym, 3),
    ] {
        let wrapper = wrapper(way, false);
        let outcomes = routes()
            .into_iter()
            .map(|(_, profile)| profile.with_preload(Preload::AfterCuleak, wrapper.clone()).bare().run());
        let outcomes: Vec<Outcome> = outcomes.collect();
        let counting = outcomes
            .iter()
            .filter(|outcome| outcome.stderr.contains("wrapper: cudaMalloc 2"));
        assert_eq!(counting.count(), reached, "{way:?}");
        for outcome in &outcomes {
            let expected = match way {
                Way::NextUnlinked => continue,
                _ => Some([4, 2, 1500]),
            };
            assert_eq!(accounted(outcome), expected, "{way:?}: {}", outcome.everything());
        }
    }
}

#[test]
fn a_wrapper_by_rtld_next_sees_what_it_sees_alone() {
    expect_undisturbed(Way::Next);
}

#[test]
fn a_wrapper_whose_rtld_next_finds_nothing_still_finds_nothing() {
    expect_undisturbed(Way::NextUnlinked);
}

#[test]
fn a_wrapper_by_handle_sees_what_it_sees_alone() {
    expect_undisturbed(Way::Handle);
}

#[test]
fn a_wrapper_with_its_own_dlsym_sees_what_it_sees_alone() {
    expect_undisturbed(Way::Dlsym);
}

#[test]
fn a_wrapper_reached_only_through_its_dlsym_sees_what_it_sees_alone() {
    expect_undisturbed(Way::HiddenDlsym);
}

#[test]
fn culeak_between_two_wrappers_disturbs_neither() {
    let first = wrapper(Way::Next, false);
    let last = library(
        "wrapper",
        "liblast_wrapper.so",
        &["-DBY_NEXT", "-Wl,--no-as-needed"],
        &[runtime(), fake_driver()],
    );
    let differences: Vec<String> = routes()
        .into_iter()
        .filter_map(|(route, profile)| {
            let both = profile
                .with_preload(Preload::BeforeCuleak, first.clone())
                .with_preload(Preload::AfterCuleak, last.clone());
            difference(&both).map(|difference| format!("{route}: {difference}"))
        })
        .collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

const MIB: u64 = 1 << 20;
const ORDERS: [Preload; 2] = [Preload::BeforeCuleak, Preload::AfterCuleak];

/// A stand-in for PyTorch under a preloaded library that can release its memory for a while, up to one phase.
fn sleeper(phase: &str, place: Preload) -> Outcome {
    let c10 = library("libc10", "libc10.so", &["-DCOPY=1"], &[]);
    let allocator = library(
        "libc10_cuda",
        "libc10_cuda.so",
        &["-DOVER_RUNTIME"],
        &[c10, runtime(), fake_driver()],
    );
    let saver = library(
        "saver",
        "libsaver.so",
        &["-Wl,--no-as-needed"],
        &[runtime(), fake_driver()],
    );
    let outcome = program(executable("sleeper", &[], &[fake_driver()]))
        .arg(phase)
        .arg(allocator)
        .with_preload(place, saver)
        .run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome.only_snapshot().expect_nothing_lost();
    outcome
}

/// `report --json` of the only recording.
fn report(outcome: &Outcome) -> Value {
    let output = std::process::Command::new(culeak())
        .env("CULEAK_CACHE_DIR", "")
        .arg("report")
        .arg(&outcome.recordings[0])
        .arg("--json")
        .output()
        .expect("the CLI starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// `what`, owner and bytes of the lines that are not 0.
fn ledger(report: &Value) -> Vec<(String, Option<String>, u64)> {
    let lines = report["ledger"]["devices"][0]["lines"].as_array().expect("lines");
    let lines = lines.iter().map(|line| {
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        (
            text("what").expect("a word"),
            text("of"),
            line["bytes"].as_u64().expect("bytes"),
        )
    });
    lines.filter(|line| line.2 > 0).collect()
}

#[test]
fn a_memory_saver_releases_as_much_under_culeak_as_alone() {
    for place in ORDERS {
        let asleep = sleeper("asleep", place);
        assert!(
            asleep.stdout.contains("released 2097152 bytes of 1 block"),
            "{}",
            asleep.stdout
        );
        asleep.only_snapshot().expect_live(Physical, 0, 0);
        for phase in ["awake", "awake_again"] {
            let outcome = sleeper(phase, place);
            outcome.only_snapshot().expect_live(Physical, 1, 2 * MIB);
        }
        sleeper("freed", place)
            .only_snapshot()
            .expect_live(Physical, 0, 0)
            .expect_live(Mapping, 0, 0)
            .expect_live(Device, 1, 100);
    }
}

#[test]
fn memory_mapped_again_after_a_pause_is_pytorchs_again() {
    let own = |what: &str, bytes| (what.to_owned(), Some("PyTorch".to_owned()), bytes);
    let program = ("program".to_owned(), None, 100);
    for place in ORDERS {
        for phase in ["awake", "awake_again"] {
            let report = report(&sleeper(phase, place));
            assert_eq!(
                ledger(&report),
                [own("blocks", MIB), own("cached", MIB), program.clone()],
                "{phase}, {place:?}"
            );
            assert_eq!(
                report["ledger"]["devices"][0]["outside"]["bytes"], 0,
                "{phase}, {place:?}"
            );
        }
        let report = report(&sleeper("asleep", place));
        assert_eq!(ledger(&report), std::slice::from_ref(&program), "{place:?}");
        // The tensor is still PyTorch's, but no physical memory is behind it.
        assert_eq!(report["ledger"]["devices"][0]["outside"]["bytes"], MIB, "{place:?}");
    }
}

#[test]
fn what_a_memory_saver_leaves_on_the_device_is_named_by_line() {
    for place in ORDERS {
        let outcome = sleeper("asleep_beside_others", place);
        let report = report(&outcome);
        let rows = report["rows"].as_array().expect("rows").iter();
        let mut left: Vec<(&str, u64)> = rows
            // The tensor has no memory behind it, and a pool is an object.
            .filter(|row| row["kinds"].get("tensor").is_none() && row["bytes"] != 0)
            .map(|row| {
                (
                    row["label"].as_str().expect("text"),
                    row["bytes"].as_u64().expect("bytes"),
                )
            })
            .collect();
        left.sort_unstable();
        assert_eq!(
            left,
            [("captured", 6000), ("leak", 100), ("pooled", 3000)],
            "{report:#}"
        );
        let output = std::process::Command::new(culeak())
            .args(["report", "--view", "objects"])
            .arg(&outcome.recordings[0])
            .output()
            .expect("the CLI starts");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("1 graph-exec  captured  sleeper.c:"), "{text}");
    }
}

/// How often the program's loop walked the loader's list of libraries.
#[track_caller]
fn look_ups(outcome: &Outcome) -> u64 {
    outcome.expect_success();
    let line = outcome.stdout.lines().find_map(|line| line.strip_suffix(" look-ups"));
    let number = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("{}", outcome.everything()))
}

#[test]
fn each_call_site_is_looked_up_once() {
    // More call sites than a small cache by address can hold: in such a cache some of them would keep evicting each other,
    // depending on where the loader maps things.
    let counts = library("counts_look_ups", "libcounts_look_ups.so", &[], &[]);
    let c10 = library("libc10", "libc10.so", &["-DCOPY=1"], &[]);
    let copies = (0..10).map(|copy| {
        let copy = format!("libc10_cuda-{copy}.so");
        library("libc10_cuda", &copy, &[], &[c10.clone(), fake_driver()])
    });
    let tensors = program(executable("call_sites", &[], &[fake_driver()])).arg("tensors");
    let tensors = copies.fold(tensors, |program, copy| program.arg(copy));
    let runtime = library("runtime", "libcudart.so.12", &["-DCOPY=\"quiet\"", "-DQUIET"], &[]);
    let runtime = program(executable("call_sites", &["-DRUNTIME"], &[runtime, fake_driver()])).arg("runtime");
    for program in [tensors, runtime] {
        let outcome = program.with_preload(Preload::BeforeCuleak, counts.clone()).run();
        outcome.only_snapshot().expect_nothing_lost();
        assert_eq!(look_ups(&outcome), 0, "{}", outcome.stdout);
    }
}
