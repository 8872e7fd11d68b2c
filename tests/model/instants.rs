//! A recording is complete at every instant: the process is stopped after each of its stores to the recording (`support/traced.rs`), and
//! the file of that instant is read as that of a process that was killed there. It must be what the model says before or after the line
//! that the process was running: what both have is there, or the file says that a call was under way, and what neither has is not.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

use culeak::format::{HEADER_BYTES, Section};
use culeak::reader::{self, ReadError};
use culeak::snapshot::Snapshot;
use culeak::timeline::Timeline;
use nix::libc::{self, c_long};

use super::faults::is_exhaustive;
use super::{
    MODES, Mode, Row, compare_point, is_memory, modelled_row, models, not_recorded, number, program, row, sorted,
};
use crate::support::model::{Model, Sums};
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::script::{self, Answer, Script};
use crate::support::traced::{self, Calls, Event};
use crate::support::{Preload, invariants, library};

/// How a recording differs from that of the instant before.
struct Instant {
    /// How many lines the process had answered.
    answered: usize,
    length: u64,
    offset: u64,
    bytes: Vec<u8>,
}

/// The recording of a process, as it has been seen so far.
#[derive(Default)]
struct Seen {
    path: Option<PathBuf>,
    answered: usize,
    /// Stores in the line that it runs.
    stores: usize,
    bytes: Vec<u8>,
    instants: VecDeque<Instant>,
    /// Instants at which it had no complete header.
    unfinished: usize,
}

impl Seen {
    /// The process has stored something. A segment of the log that is used again is emptied by 8,184 equal stores: of so many, some.
    fn stored(&mut self) {
        const ALL: usize = 400;
        self.stores += 1;
        if self.stores < ALL || self.instants.is_empty() || self.stores.is_multiple_of(331) {
            self.look();
        }
    }

    /// The process is stopped.
    fn look(&mut self) {
        let bytes = match self.path.as_ref().map(fs::read) {
            Some(Ok(bytes)) if bytes != self.bytes => bytes,
            _ => return,
        };
        let was_complete = !self.instants.is_empty();
        if !reader::is_recording(&bytes) {
            let refused = reader::read(self.path.as_ref().expect("known")).expect_err("it has no header");
            let is_said = matches!(refused, ReadError::Unfinished(_) | ReadError::Empty(_));
            assert!(is_said && !was_complete, "{refused}");
            self.unfinished += 1;
            self.bytes = bytes;
            return;
        }
        let old = if was_complete { &self.bytes[..] } else { &[] };
        let changed = changed(old, &bytes);
        self.instants.push_back(Instant {
            answered: self.answered,
            length: bytes.len() as u64,
            offset: changed.start as u64,
            bytes: bytes[changed].to_vec(),
        });
        self.bytes = bytes;
    }
}

/// From the first byte that differs to the last one. The older file ends with zeros.
fn changed(old: &[u8], new: &[u8]) -> Range<usize> {
    const PIECE: usize = 4096;
    let old_piece = |at: usize| &old[at.min(old.len())..(at + PIECE).min(old.len())];
    let differs = |at: &usize| {
        let (old, new) = (old_piece(*at), &new[*at..(at + PIECE).min(new.len())]);
        !new.starts_with(old) || new[old.len()..].iter().any(|byte| *byte != 0)
    };
    let pieces: Vec<usize> = (0..new.len()).step_by(PIECE).filter(differs).collect();
    let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else {
        return 0..0;
    };
    let byte_differs = |at: &usize| new[*at] != old.get(*at).copied().unwrap_or(0);
    let start = (*first..new.len()).find(byte_differs).expect("the piece differs");
    let end = (*last..(last + PIECE).min(new.len())).rev().find(byte_differs);
    start..end.expect("the piece differs") + 1
}

/// What was seen of a script.
struct Trace {
    answers: Vec<Answer>,
    seen: BTreeMap<u32, Seen>,
    /// Lines during which a recording grew.
    grew: BTreeSet<u64>,
    /// Automatic snapshots after each write: how many were refused as unfinished, and how many were read.
    snapshots: [usize; 2],
}

/// Those that map files, change them or end a line.
const CALLS: [c_long; 8] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_pwrite64,
    libc::SYS_write,
    libc::SYS_rename,
    libc::SYS_unlink,
];

fn is_recording(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "culeak")
}

/// Runs a script. The process is stopped after each store while it runs lines that are `watched`; 0: all before its first answer.
fn trace(script: &Script, mode: Mode, watched: impl Fn(u64) -> bool) -> Trace {
    let folder = folder();
    let program = program(script, mode, folder.path()).setting("CULEAK_QUIET", "1");
    let transcript = folder.path().join("transcript");
    let mut seen: BTreeMap<u32, Seen> = BTreeMap::new();
    let (mut grew, mut snapshots) = (BTreeSet::new(), [0; 2]);
    let mut last = 0;
    let status = traced::run(
        &mut program.command(folder.path()),
        Calls::Only(&CALLS),
        is_recording,
        |at, event| {
            let of_process = seen.entry(at.pid).or_default();
            at.watch(watched(if of_process.answered == 0 { 0 } else { last + 1 }));
            match event {
                Event::Entered(_) => {}
                Event::Stored(path) => {
                    assert_eq!(
                        of_process.path.as_deref(),
                        Some(path),
                        "the recording of another process"
                    );
                    of_process.stored();
                }
                Event::Left(call) if call.number == libc::SYS_write => {
                    if at.file(call.arguments[0]).as_ref() != Some(&transcript) {
                        return;
                    }
                    of_process.answered += 1;
                    of_process.stores = 0;
                    let text = fs::read_to_string(&transcript).expect("a transcript");
                    let line = text.lines().next_back().and_then(|line| line.split(' ').nth(1));
                    last = line.and_then(|id| id.parse().ok()).expect("the number of a line");
                    at.watch(watched(last + 1));
                }
                Event::Left(call) => {
                    let descriptor = match call.number {
                        libc::SYS_fallocate | libc::SYS_ftruncate | libc::SYS_pwrite64 => call.arguments[0],
                        libc::SYS_mmap => call.arguments[4],
                        _ => return,
                    };
                    let Some(path) = at.file(descriptor) else { return };
                    if path.extension().is_some_and(|ending| ending == "culeak-snapshot") {
                        match reader::read(&path) {
                            Ok(_) => snapshots[1] += 1,
                            Err(ReadError::Unfinished(_) | ReadError::Empty(_)) => snapshots[0] += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    if !is_recording(&path) {
                        return;
                    }
                    if call.number == libc::SYS_fallocate && of_process.answered > 0 {
                        grew.insert(last + 1);
                    }
                    of_process.path = Some(path);
                    if at.is_watched() {
                        of_process.look();
                    }
                }
            }
        },
    );
    assert!(status.success() || status.signal() == Some(libc::SIGKILL), "{status}");
    let answers = Answer::all(&fs::read_to_string(&transcript).unwrap_or_default());
    Trace {
        answers,
        seen,
        grew,
        snapshots,
    }
}

/// What was compared.
#[derive(Debug, Default)]
struct Counts {
    processes: usize,
    /// Instants without a complete header.
    unfinished: usize,
    complete: usize,
    /// Those that lack something of the line, or say that a call is under way.
    under_way: usize,
    /// Sections that got another extent.
    grew: Vec<Section>,
    /// Events of the log were overwritten.
    wrapped: usize,
}

/// Compares what was seen with what the model says.
fn compare(script: &Script, mode: Mode, trace: Trace) -> Counts {
    let folder = folder();
    let mut nth = 0usize;
    let mut counts = Counts::default();
    let mut seen = trace.seen;
    let lines: BTreeSet<(u32, usize)> = seen
        .iter()
        .flat_map(|(pid, seen)| seen.instants.iter().map(|instant| (*pid, instant.answered)))
        .collect();
    let paths: BTreeMap<u32, (PathBuf, File)> = seen
        .keys()
        .map(|pid| {
            let path = folder.path().join(format!("killed-{pid}.culeak"));
            let file = File::create(&path).expect("created");
            (*pid, (path, file))
        })
        .collect();
    let mut until = |pid: u32, answered: usize, before: &Model, after: &Model| {
        let Some(of_process) = seen.get_mut(&pid) else { return };
        let (path, file) = &paths[&pid];
        let mut extents = 0;
        while of_process
            .instants
            .front()
            .is_some_and(|instant| instant.answered < answered)
        {
            let instant = of_process.instants.pop_front().expect("there is one");
            file.set_len(instant.length).expect("set");
            file.write_all_at(&instant.bytes, instant.offset).expect("written");
            // With a full log it takes half a second to read a file: of those, some.
            nth += 1;
            let is_large = instant.length > 4 << 20 && !is_exhaustive();
            if is_large && !nth.is_multiple_of(8) {
                continue;
            }
            let what = format!(
                "{mode:?}, process {pid}, line {}, a store at {:#x} of {} bytes",
                instant.answered + 1,
                instant.offset,
                instant.bytes.len()
            );
            let read = match mode {
                Mode::Logged if !is_large || nth.is_multiple_of(32) => reader::read_timeline(path),
                _ => reader::read(path).map(|snapshot| (snapshot, None)),
            };
            let (snapshot, timeline) = read.unwrap_or_else(|error| panic!("{what}: {error}"));
            counts.complete += 1;
            counts.under_way += usize::from(check(&snapshot, [before, after], mode, &what));
            if let Some(timeline) = timeline {
                counts.wrapped += usize::from(timeline.since_ns > 0);
                check_log(&snapshot, &timeline, [before, after], &what);
            }
            let mut header = vec![0; HEADER_BYTES];
            File::open(path)
                .and_then(|file| file.read_exact_at(&mut header, 0))
                .expect("a header");
            let now: Vec<_> = culeak::format::extents(&header).collect();
            if extents > 0 {
                let new = now.iter().skip(extents).filter(|extent| extent.number > 0);
                counts
                    .grew
                    .extend(new.filter_map(|extent| Section::from_number(extent.section)));
            }
            extents = now.len();
        }
    };
    // Before the line that a process runs, if it was seen in it.
    let mut before: BTreeMap<u32, (usize, Option<Model>)> = BTreeMap::new();
    let last = models(script, &trace.answers, |pid, model| {
        let (answered, earlier) = before
            .remove(&pid)
            .map_or((0, None), |(answered, model)| (answered + 1, model));
        if let Some(earlier) = earlier {
            until(pid, answered, &earlier, model);
        }
        let is_seen = lines.contains(&(pid, answered));
        before.insert(pid, (answered, is_seen.then(|| model.clone())));
    });
    for (pid, model) in &last {
        until(*pid, usize::MAX, model, model);
    }
    counts.processes = seen.len();
    for (pid, seen) in &seen {
        assert!(
            seen.instants.is_empty(),
            "a process that the script does not have: {pid}"
        );
        counts.unfinished += seen.unfinished;
    }
    println!("{counts:?}");
    counts
}

/// What is in both, each as often as in both.
fn common(these: &[Row], those: &[Row]) -> Vec<Row> {
    let mut those = those.to_vec();
    let taken = |one: &&Row| {
        let at = those.iter().position(|other| other == *one);
        at.map(|at| those.swap_remove(at)).is_some()
    };
    these.iter().filter(taken).cloned().collect()
}

/// What is in `these` and not in `those`.
fn without(these: &[Row], those: &[Row]) -> Vec<Row> {
    let mut those = those.to_vec();
    let is_left = |one: &&Row| {
        let at = those.iter().position(|other| other == *one);
        at.map(|at| those.swap_remove(at)).is_none()
    };
    these.iter().filter(is_left).cloned().collect()
}

/// Compares the recording of an instant with the model before and after the line. Returns whether a call was under way.
fn check(snapshot: &Snapshot, [before, after]: [&Model; 2], mode: Mode, what: &str) -> bool {
    invariants::check(snapshot, false);
    let with_sites = mode != Mode::Sampled;
    let live = |model: &Model, memory: bool| -> Vec<Row> {
        let records = model.live.iter().filter(|record| is_memory(record) == memory);
        sorted(records.map(|record| modelled_row(record, with_sites)))
    };
    let recorded = [
        sorted(snapshot.allocations.iter().map(|each| row(snapshot, &each, with_sites))),
        sorted(snapshot.objects.iter().map(|each| row(snapshot, &each, with_sites))),
    ];
    let (mut missing, mut is_half) = (0, false);
    for (rows, memory) in recorded.iter().zip([true, false]) {
        let (old, new) = (live(before, memory), live(after, memory));
        let both = common(&old, &new);
        let invented = without(&without(rows, &old), &new);
        assert!(invented.is_empty(), "{what}: not in the model: {invented:?}");
        let gone = without(&both, rows);
        missing += gone.len();
        assert!(
            missing as u64 <= snapshot.taken.in_flight,
            "{what}: not in the recording: {gone:?}, {} in flight",
            snapshot.taken.in_flight
        );
        is_half |= *rows != new;
    }
    let device = |device: Option<usize>| device.map(|device| snapshot.devices[device].ordinal);
    for counter in snapshot.counters.iter().chain(&snapshot.object_counters) {
        let key = (device(counter.device), counter.kind);
        let of = |model: &Model| model.sums.get(&key).copied().unwrap_or_default();
        let (old, new) = (of(before), of(after));
        // A free that is under way counts, and fails or not.
        let in_flight = snapshot.taken.in_flight;
        let field = |name: &str, recorded: u64, of: fn(&Sums) -> u64| {
            let range = of(&old)..=of(&new) + if name == "frees" { in_flight } else { 0 };
            assert!(
                range.contains(&recorded),
                "{what}: {name} of {key:?}: {recorded}, not in {range:?}"
            );
        };
        field("all bytes", counter.total_bytes, |sums| sums.total_bytes);
        field("allocations", counter.total_count, |sums| sums.total_count);
        field("frees", counter.freed_count, |sums| sums.freed_count);
        field("failures", counter.failed_count, |sums| sums.failed_count);
        field("peak", counter.peak_bytes, |sums| sums.peak_bytes);
    }
    // A sum without a counter is one of nothing yet.
    for (key, old) in before.sums.iter().filter(|(_, sums)| **sums != Sums::default()) {
        let counters = snapshot.counters.iter().chain(&snapshot.object_counters);
        let is_there = counters
            .into_iter()
            .any(|counter| (device(counter.device), counter.kind) == *key);
        assert!(is_there, "{what}: no counter of {key:?}, {old:?}");
    }
    for peak in &snapshot.device_peaks {
        let of = |model: &Model| {
            let ordinal = snapshot.devices[peak.device].ordinal;
            model.devices.get(&ordinal).map_or(0, |(_, peak)| *peak)
        };
        let range = of(before)..=of(after);
        assert!(
            range.contains(&peak.peak_bytes),
            "{what}: peak {}, not in {range:?}",
            peak.peak_bytes
        );
    }
    let marks: Vec<&str> = snapshot.marks.iter().map(|mark| &*mark.name).collect();
    let named = |model: &Model| -> bool { model.marks.iter().map(|mark| &*mark.name).eq(marks.iter().copied()) };
    assert!(named(before) || named(after), "{what}: marks {marks:?}");
    let phases: Vec<_> = snapshot
        .phases
        .iter()
        .map(|phase| (phase.name.clone(), phase.parent, phase.end_ns.is_some()))
        .collect();
    let modelled = |model: &Model| -> Vec<_> {
        let of = model.phases.iter();
        of.map(|phase| (phase.name.clone(), phase.parent, phase.end.is_some()))
            .collect()
    };
    assert!(
        phases == modelled(before) || phases == modelled(after),
        "{what}: phases {phases:?}, modelled {:?} and {:?}",
        modelled(before),
        modelled(after)
    );
    let mut failed = BTreeMap::new();
    for request in &snapshot.failed {
        let site = super::site(snapshot, request.stack).unwrap_or(99);
        let key = (site, request.kind, device(request.device), request.bytes, request.error);
        *failed.entry(key).or_insert(0) += request.count;
    }
    for (key, count) in &failed {
        let of = |model: &Model| model.failed.get(key).copied().unwrap_or(0);
        let range = of(before)..=of(after);
        assert!(
            range.contains(count),
            "{what}: failed {key:?}: {count}, not in {range:?}"
        );
    }
    for (key, count) in &before.failed {
        assert!(
            failed.get(key).copied().unwrap_or(0) >= *count,
            "{what}: failed {key:?} is gone"
        );
    }
    let lost = &snapshot.losses;
    assert_eq!(not_recorded(snapshot), [0; 7], "{what}: losses");
    let of_model = |model: &Model| {
        let losses = &model.losses;
        [
            losses.failed_frees,
            losses.unknown_frees,
            losses.unknown_blocks,
            losses.implicit_frees,
            losses.vanished,
        ]
    };
    let counted = [
        lost.failed_frees,
        lost.unknown_frees,
        lost.unknown_blocks,
        lost.implicit_frees,
        lost.vanished,
    ];
    let ranges = of_model(before).into_iter().zip(of_model(after));
    let fits = counted
        .iter()
        .zip(ranges)
        .all(|(count, (old, new))| (old..=new).contains(count));
    assert!(
        fits,
        "{what}: frees: {counted:?}, modelled {:?} and {:?}",
        of_model(before),
        of_model(after)
    );
    snapshot.taken.in_flight > 0 || is_half
}

/// The log of an instant has the past as it was, and ends with what is live.
fn check_log(snapshot: &Snapshot, timeline: &Timeline, [before, after]: [&Model; 2], what: &str) {
    // The event of a call that is under way.
    assert!(timeline.lost <= 1, "{what}: {} events", timeline.lost);
    let marks = snapshot.marks.iter().zip(&before.marks).rev();
    for (mark, point) in marks.filter(|(mark, _)| mark.time_ns >= timeline.since_ns).take(1) {
        let state = timeline.state_at(snapshot, mark.time_ns).expect("it is in the log");
        compare_point(&state, point, &format!("{what}: at mark {}", mark.name));
    }
    let logged = timeline
        .state_at(snapshot, snapshot.taken.at_ns)
        .expect("the end is in the log");
    let address = |(kind, address, bytes, ..): &Row| (*kind, address & ((1 << 48) - 1), *bytes);
    let rows = |model: &Model| -> Vec<_> {
        let records = model.live.iter().filter(is_memory);
        records.map(|record| address(&modelled_row(record, false))).collect()
    };
    let (old, new) = (rows(before), rows(after));
    let logged: Vec<_> = logged
        .allocations
        .iter()
        .map(|each| address(&row(&logged, &each, false)))
        .collect();
    let invented: Vec<_> = logged
        .iter()
        .filter(|row| !old.contains(row) && !new.contains(row))
        .collect();
    assert!(
        invented.is_empty(),
        "{what}: live in the log, but not in the model: {invented:?}"
    );
    let both = old.iter().filter(|row| new.contains(row));
    let gone: Vec<_> = both.filter(|row| !logged.contains(row)).collect();
    assert!(
        gone.len() as u64 <= snapshot.taken.in_flight,
        "{what}: not live in the log: {gone:?}"
    );
}

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

/// Each section that a program without Python and without a hundred libraries can make grow.
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
    let script = script_of(lines);
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
    ] {
        assert!(counts.grew.contains(&section), "{section:?} did not grow: {counts:?}");
    }
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
