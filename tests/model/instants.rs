//! A recording is complete at every instant: the process is stopped after each of its stores to the recording (`support/traced.rs`), and
//! the file of that instant is read as that of a process that was killed there. It must be what the model says before or after the line
//! that the process was running: what both have is there, or the file says that a call was under way, and what neither has is not.

use std::collections::BTreeSet;
use std::fs;

use culeak::format::Section;
use culeak::reader;
use nix::libc;

use super::{MODES, Mode, number, program};
use crate::interpreters::interpreters;
use crate::support::claims::Claims;
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::script::{self, Script};
use crate::support::traced::{self, Calls, Event};
use crate::support::{Preload, fake_driver, invariants, library, program as program_at, sources};
use compare::compare;
use trace::{CALLS, is_recording, trace, trace_with};

mod compare;
mod trace;

/// A script of these lines.
pub fn script_of<L: AsRef<str>>(lines: impl IntoIterator<Item = L>) -> Script {
    let numbered = |(index, line): (usize, L)| match line.as_ref().split_once(' ') {
        Some((thread, rest)) => format!("{} {thread} {} {rest}", index + 1, index % 12),
        None => panic!("a thread and a verb"),
    };
    let lines: Vec<String> = lines.into_iter().enumerate().map(numbered).collect();
    lines.join("\n").parse().expect("a script")
}

/// From the first store to the last one, with children.
#[test]
#[ignore = "needs ptrace"]
fn a_recording_is_complete_after_each_store_from_its_creation_to_its_end() {
    let script = script_of([
        "0 primary 0",
        "0 alloc 100",
        "0 stream 0",
        "0 async 4096 3",
        "0 mark loaded",
        "0 free 2 0",
        "0 alloc 1099511627776",
        "0 snapshot named",
        "0 fork",
        "0 alloc 300",
        "0 mark child",
        "0 done",
        "0 spawn",
        "0 primary 0",
        "0 alloc 500",
        "0 quit 2",
        "0 done",
        "0 freeasync 4 3",
    ]);
    let trace = trace(&script, Mode::Plain, |_| true);
    // Of the two, that of the failed request is the first.
    assert!(
        trace.snapshots[0] > 10 && trace.snapshots[1] == 2,
        "{:?}",
        trace.snapshots
    );
    let counts = compare(&script, Mode::Plain, trace);
    assert_eq!(counts.processes, 3);
    assert!(
        counts.unfinished > 3000 && counts.complete > 400 && counts.under_way > 100,
        "{counts:?}"
    );
}

/// What makes one of each kind, on the first device.
const KINDS: [&str; 19] = [
    "primary 0",
    "alloc 64",
    "pitch 64 4 4",
    "managed 64",
    "host 64",
    "array 4 4 1",
    "mipmap 4 4 2",
    "async 64 0",
    "pool 0",
    "physical 2097152 1 0",
    "graph",
    "context 0",
    "stream 0",
    "event",
    "module",
    "library",
    "texture",
    "userobject 1",
    "external 65536",
];

/// Each section that a program without Python can make grow, but the names of functions within the driver.
#[test]
#[ignore = "needs ptrace"]
fn a_recording_is_complete_after_each_store_while_its_sections_grow() {
    let mut lines = vec!["0 primary 0".to_owned()];
    lines.extend((0..800).map(|nth| format!("0 mark a-name-of-thirty-characters-{nth:04}")));
    lines.extend((0..70).flat_map(|nth| ["0 begin phase".to_owned(), format!("0 end {}", 802 + 2 * nth)]));
    lines.extend((0..70).map(|nth| format!("0 alloc {}", (1u64 << 40) + nth)));
    // Contexts, and counters of each kind in the shards of four threads.
    lines.extend((0..70).flat_map(|_| ["0 context 0", "0 alloc 16"]).map(str::to_owned));
    lines.extend((0..4).flat_map(|on| {
        KINDS
            .map(|verb| format!("{on} {verb}"))
            .into_iter()
            .chain([format!("{on} register {} 4096", on * 4096)])
    }));
    lines.extend(
        (0..45)
            .flat_map(|_| (1..4).flat_map(|on| ["primary 0", "alloc 16", "ends"].map(|verb| format!("{on} {verb}")))),
    );
    lines.extend((0..150).map(|path| format!("0 deep 32 {path}")));
    lines.extend((0..150).map(|_| "0 alloc 64".to_owned()));
    lines.extend((0..70).map(|nth| format!("0 lookup {nth} 1")));
    let pool = lines.len() + 1;
    lines.push("0 pagepool cache 4096".to_owned());
    lines.extend((0..70).map(|nth| format!("0 owner request-{nth} {pool}")));
    // Each through another library.
    let copies = folder();
    let pass = library("pass", "libpass.so", &[], &[fake_driver()]);
    for nth in 0..70 {
        fs::copy(&pass, copies.path().join(format!("{nth}.so"))).expect("copied");
        lines.push(format!("0 pass 16 {nth}"));
    }
    let mut script = script_of(lines);
    let copies = copies.path().display().to_string();
    script.environment.push(("CULEAK_TEST_COPIES".to_owned(), copies));
    let grew = trace(&script, Mode::Plain, |_| false).grew;
    let counts = compare(
        &script,
        Mode::Plain,
        trace(&script, Mode::Plain, |line| grew.contains(&line)),
    );
    for section in [
        Section::Text,
        Section::Contexts,
        Section::Threads,
        Section::Frames,
        Section::Records,
        Section::Failures,
        Section::Counters,
        Section::Marks,
        Section::Totals,
        Section::Phases,
        Section::Modules,
        Section::Unhooked,
        Section::Pages,
    ] {
        assert!(counts.grew.contains(&section), "{section:?} did not grow: {counts:?}");
    }
}

/// Names of Python's functions: the program says which blocks are live, and each was allocated by a function of its own.
#[test]
#[ignore = "needs ptrace"]
fn a_recording_of_python_is_complete_after_each_store_while_its_code_grows() {
    let mut grew = BTreeSet::new();
    let mut read = 0;
    for is_watching in [false, true] {
        let folder = folder();
        let said = folder.path().join("said");
        let python = program_at(&interpreters()[0].command)
            .arg("-B")
            .arg(sources().join("victims/codes.py"))
            .arg(&said)
            .setting("CULEAK_QUIET", "1");
        let mut last = 0;
        let mut recording = None;
        let status = traced::run(
            &mut python.command(folder.path()),
            Calls::Only(&CALLS),
            is_recording,
            |at, event| match event {
                Event::Left(call)
                    if call.number == libc::SYS_write && at.file(call.arguments[0]).as_ref() == Some(&said) =>
                {
                    last += 1;
                    at.watch(is_watching && grew.contains(&(last + 1)));
                }
                Event::Left(call) if call.number == libc::SYS_fallocate && !is_watching => {
                    let path = at.file(call.arguments[0]);
                    recording = path.filter(|path| last > 0 && is_recording(path)).or(recording.take());
                    if last > 0 {
                        grew.insert(last + 1);
                    }
                }
                Event::Stored(path) => {
                    read += 1;
                    let snapshot = reader::read(path).expect("readable");
                    invariants::check(&snapshot, false);
                    let rows: Vec<_> = snapshot.allocations.iter().collect();
                    let mut sizes: Vec<u64> = rows.iter().map(|row| row.bytes).collect();
                    sizes.sort_unstable();
                    let all: Vec<u64> = (1..=sizes.len() as u64).collect();
                    assert!(
                        sizes == all && (last..=last + 1).contains(&(all.len() as u64)),
                        "after {last} blocks: {sizes:?}"
                    );
                    for row in rows {
                        let own = format!("function_{}", row.bytes);
                        let functions = snapshot.functions(row);
                        assert!(functions.contains(&own), "{own} is not in {functions:?}");
                    }
                    recording = Some(path.to_owned());
                }
                _ => {}
            },
        );
        assert!(status.success(), "{status}");
        let header = fs::read(recording.expect("it grew")).expect("readable");
        let sections = culeak::format::extents(&header).map(|extent| Section::from_number(extent.section));
        let codes = sections.filter(|section| *section == Some(Section::Codes));
        assert_eq!(codes.count(), 2);
    }
    println!("{read} instants of Python, in lines {grew:?}");
    assert!(read > 100, "{read}");
}

/// What a recording that cannot grow lacks is counted, whenever its process is killed.
#[test]
#[ignore = "needs ptrace"]
fn what_has_no_room_is_counted_as_lost_after_each_store() {
    let lines = (0..300).map(|nth| format!("0 alloc {}", 16 + nth));
    let script = script_of(["0 primary 0".to_owned()].into_iter().chain(lines));
    let grew = trace_with(&script, Mode::Plain, |_| false, true).grew;
    let first = *grew.first().expect("it should have grown");
    let watched = |line: u64| (first - 1..first + 16).contains(&line);
    let counts = compare(&script, Mode::Plain, trace_with(&script, Mode::Plain, watched, true));
    assert!(counts.complete > 50 && counts.lost > 10, "{counts:?}");
}

/// Another extent of the log, and the first events that are overwritten.
#[test]
#[ignore = "needs ptrace"]
fn a_recording_is_complete_after_each_store_while_its_log_wraps() {
    // The first extent has 16 segments, and the smallest log 128, of 2728 events each.
    let until = |events: usize| (events / 2 - 2).to_string();
    let few = [
        "0 alloc 100",
        "0 alloc 100",
        "0 free 3 0",
        "0 alloc 100",
        "0 alloc 100",
        "0 alloc 100",
        "0 alloc 100",
    ];
    let fill = [
        format!("0 churn cache {}", until(16 * 2728)),
        format!("0 churn cache {}", until(112 * 2728)),
    ];
    let lines = ["0 primary 0", "0 mark first", &fill[0]]
        .into_iter()
        .chain(few)
        .chain([&*fill[1]])
        .chain(few);
    let mut script = script_of(lines);
    script
        .environment
        .push(("CULEAK_TIMELINE".to_owned(), "8MiB".to_owned()));
    let is_watched = |line: u64| (4..11).contains(&line) || line > 11;
    let counts = compare(&script, Mode::Logged, trace(&script, Mode::Logged, is_watched));
    assert!(
        counts.grew.contains(&Section::Events) && counts.wrapped > 2,
        "{counts:?}"
    );
}

/// A recording that is elsewhere until its process ends is at its destination at each instant of the copy.
#[test]
#[ignore = "needs ptrace"]
fn a_spooled_recording_can_be_read_after_each_system_call() {
    let folder = folder();
    let (out, spool) = (folder.path().join("out"), folder.path().join("spool"));
    fs::create_dir(&spool).expect("created");
    let script = script_of(["0 primary 0", "0 alloc 100", "0 alloc 200", "0 free 2 0"]);
    let program = program(&script, Mode::Plain, folder.path())
        .with_preload(Preload::AfterCuleak, library("odd_disk", "libodd_disk.so", &[], &[]))
        .env("ODD_DISK", &out)
        .env("ODD_DISK_IS", "network")
        .setting("CULEAK_SPOOL", &spool);
    let transcript = folder.path().join("transcript");
    // How often it was read: through its note, and at its destination.
    let mut read = [0; 2];
    let status = traced::run(
        &mut program.command(folder.path()),
        Calls::Only(&CALLS),
        is_recording,
        |_, event| {
            let answers = fs::read_to_string(&transcript).unwrap_or_default();
            if !matches!(event, Event::Left(_)) || answers.lines().count() < 4 {
                return;
            }
            let recordings = recordings_in(&out);
            let snapshot = reader::read(&recordings[0]).expect("it can be read");
            let bytes: Vec<u64> = snapshot.allocations.iter().map(|each| each.bytes).collect();
            assert_eq!(bytes, [200]);
            read[usize::from(recordings_in(&spool).is_empty())] += 1;
        },
    );
    assert!(status.success(), "{status}");
    assert!(read[0] > 10 && read[1] > 0, "{read:?}");
}

/// `CULEAK_MODEL_INSTANTS` programs from the seed `CULEAK_MODEL_SEED` on, and all that have failed.
#[test]
#[ignore = "needs ptrace"]
fn random_programs_are_recorded_completely_after_each_of_their_stores() {
    let first = number("CULEAK_MODEL_SEED", 1);
    let programs = (first..first + number("CULEAK_MODEL_INSTANTS", 2)).map(|seed| {
        let script = script::random(seed, 40);
        (format!("seed {seed}"), script, MODES[seed as usize % 3])
    });
    for (name, script, mode) in programs {
        println!("{name}");
        compare(&script, mode, trace(&script, mode, |line| line > 0));
    }
}
