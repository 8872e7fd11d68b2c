//! Random programs, compared with a model of what a recording means (`support/model.rs`).
//!
//! `victims/script.c` runs a script and writes what the driver answered to each line. The model reads both and says what is live, the sums,
//! and what was live at each mark; the recordings must say the same. A script that fails is shortened as long as it fails, and printed: stored
//! in `data/scripts`, it is a test.
//!
//!     CULEAK_MODEL_PROGRAMS=10000 CULEAK_MODEL_SEED=1 cargo test -p culeak-cli --test main model::random

mod commands;
#[cfg(target_arch = "x86_64")]
mod faults;
#[cfg(target_arch = "x86_64")]
mod instants;
mod views;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use culeak::kind::Kind;
use culeak::reader;
use culeak::snapshot::{Allocation, Snapshot, Stream};
use culeak::timeline::Timeline;

use crate::support::model::{Key, Model, Point, Record, Sums};
use crate::support::script::{self, Answer, Line, Script};
use crate::support::{Lookup, Outcome, Profile, invariants, profile, victim};

/// How a program is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Plain,
    Logged,
    Sampled,
    /// Read as anything that the library can group and filter by.
    Views,
    /// With a log, read by one of the commands.
    Command(usize),
}

const MODES: [Mode; 3] = [Mode::Plain, Mode::Logged, Mode::Sampled];

/// A process of a program: its recording, if it has one, and what the model says.
struct Process {
    recording: Option<PathBuf>,
    model: Model,
}

/// The victim that runs a script, which lies in `folder`, as does its transcript.
fn program(script: &Script, mode: Mode, folder: &Path) -> Profile {
    let (text, transcript) = (folder.join("script"), folder.join("transcript"));
    fs::write(&text, script.to_string()).expect("the script is written");
    let program = profile("script").arg(&text).arg(&transcript);
    // Intervals need the stack of every block.
    let program = match mode {
        Mode::Plain | Mode::Views => program.setting("CULEAK_INTERVALS", "1"),
        Mode::Logged | Mode::Command(_) => program
            .setting("CULEAK_INTERVALS", "1")
            .setting("CULEAK_TIMELINE", "64MiB"),
        Mode::Sampled => program.setting("CULEAK_SAMPLE", "64KiB"),
    };
    let settings = script.environment.iter();
    settings.fold(program, |program, (name, value)| program.env(name, value))
}

fn run(script: &Script, mode: Mode) -> (Outcome, Vec<Process>) {
    let folder = crate::support::profile::folder();
    let outcome = program(script, mode, folder.path()).run_in(folder);
    // A program may end itself.
    let ended = outcome.status.success() || outcome.status.signal() == Some(9);
    assert!(ended, "{}", outcome.everything());
    assert!(outcome.unreadable.is_empty(), "{:?}", outcome.unreadable);
    let answers = Answer::all(&fs::read_to_string(outcome.folder().join("transcript")).unwrap_or_default());
    let models = models(script, &answers, |_, _| ());
    let recordings: BTreeMap<u32, PathBuf> = outcome
        .snapshots
        .iter()
        .zip(&outcome.recordings)
        .map(|(snapshot, path)| (snapshot.process.pid, path.clone()))
        .collect();
    assert!(
        answers.is_empty() || recordings.keys().all(|pid| models.contains_key(pid)),
        "a process that the script does not have: {:?}",
        recordings.keys()
    );
    let process = |(pid, model): (u32, Model)| Process {
        recording: recordings.get(&pid).cloned(),
        model,
    };
    (outcome, models.into_iter().map(process).collect())
}

/// What a recording says that it lacks.
fn not_recorded(snapshot: &Snapshot) -> [u64; 7] {
    let lost = &snapshot.losses;
    [
        lost.lost_allocations,
        lost.lost_stacks,
        lost.lost_details,
        lost.lost_events,
        lost.lost_phases,
        lost.lost_marks,
        lost.lost_snapshots,
    ]
}

/// What the model says of each process. `see` gets it before the first line of each process, and after each of its answers.
fn models(script: &Script, answers: &[Answer], mut see: impl FnMut(u32, &Model)) -> BTreeMap<u32, Model> {
    let Some(first) = answers.first() else {
        return BTreeMap::new();
    };
    // The main process answers last of all if its first line is a child.
    let main = answers.last().map_or(first.pid, |last| last.pid);
    let mut done = BTreeMap::new();
    let answer = |pid: u32, line: &Line| {
        answers
            .iter()
            .find(|answer| answer.pid == pid && answer.id == line.id)
            .copied()
    };
    let mut parent = Model::started();
    see(main, &parent);
    let mut child: Option<(u32, Model)> = None;
    let lines = script.lines.iter();
    for line in lines {
        if line.verb == "done" {
            done.extend(child.take());
        } else if let Some((pid, model)) = &mut child {
            if let Some(answer) = answer(*pid, line) {
                model.step(line, answer);
                see(*pid, model);
            }
        } else if let Some(answer) = answer(main, line) {
            parent.step(line, answer);
            see(main, &parent);
            let model = match &*line.verb {
                "fork" => parent.forked(),
                "spawn" => Model::started(),
                _ => continue,
            };
            see(answer.value as u32, &model);
            child = Some((answer.value as u32, model));
        }
    }
    done.extend(child);
    done.insert(main, parent);
    done
}

/// The functions of the victim that tell which site a stack is of: start, end, name.
fn functions() -> &'static [(u64, u64, String)] {
    static FUNCTIONS: OnceLock<Vec<(u64, u64, String)>> = OnceLock::new();
    FUNCTIONS.get_or_init(|| {
        let listed = Command::new("nm")
            .arg("-S")
            .arg(victim("script", Lookup::Linked))
            .output()
            .expect("nm runs");
        let function = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [start, size, _, name] = words[..] else { return None };
            let is_wanted = name.starts_with("site_") || name.starts_with("through_");
            let number = |text| u64::from_str_radix(text, 16).expect("a number");
            is_wanted.then(|| (number(start), number(start) + number(size), name.to_owned()))
        };
        let found: Vec<_> = String::from_utf8_lossy(&listed.stdout)
            .lines()
            .filter_map(function)
            .collect();
        assert_eq!(found.len(), 7, "{found:?}");
        found
    })
}

/// The site of a stack.
fn site(snapshot: &Snapshot, stack: Option<usize>) -> Option<u64> {
    let names = snapshot.stacks[stack?].frames.iter().filter_map(|&frame| {
        let location = &snapshot.locations[frame];
        let module = location.module.map(|module| &snapshot.modules[module].path)?;
        let address = location.address - 1;
        let found = functions()
            .iter()
            .find(|(start, end, _)| (*start..*end).contains(&address));
        found
            .filter(|_| module.ends_with("/script"))
            .map(|(_, _, name)| name.as_str())
    });
    let names: Vec<&str> = names.collect();
    let leaf = names.first()?.strip_prefix("site_")?.parse::<u64>().ok()?;
    let through = names.last()?.strip_prefix("through_")?.parse::<u64>().ok()?;
    Some(leaf + 4 * through)
}

macro_rules! same {
    ($recorded:expr, $modelled:expr, $($what:tt)*) => {{
        let (recorded, modelled) = ($recorded, $modelled);
        assert!(recorded == modelled, "{}\n recorded {recorded:?}\n   model  {modelled:?}", format!($($what)*));
    }};
}

use same;

/// What is compared of something live.
type Row = (Kind, u64, u64, u64, Option<i32>, Option<u64>, String, Option<String>);

fn row(snapshot: &Snapshot, row: &Allocation, with_site: bool) -> Row {
    let device = row.device.map(|device| snapshot.devices[device].ordinal);
    let site = if with_site { site(snapshot, row.stack) } else { None };
    (
        row.kind,
        row.address,
        row.bytes,
        row.requested,
        device,
        site,
        row.call.api.clone(),
        row.call.domain.clone(),
    )
}

fn modelled_row(record: &Record, with_site: bool) -> Row {
    let site = with_site.then_some(record.site);
    (
        record.kind,
        record.address,
        record.bytes,
        record.requested,
        record.device,
        site,
        record.api.to_owned(),
        record.domain.clone(),
    )
}

fn sorted<T: Ord>(rows: impl Iterator<Item = T>) -> Vec<T> {
    let mut rows: Vec<T> = rows.collect();
    rows.sort();
    rows
}

/// The differences between two lists, shortened.
fn only_in<T: PartialEq + std::fmt::Debug>(these: &[T], those: &[T]) -> String {
    let rows: Vec<&T> = these.iter().filter(|row| !those.contains(row)).take(5).collect();
    format!("{rows:?}")
}

fn same_rows(recorded: &[Row], modelled: &[Row], what: &str) {
    assert!(
        recorded == modelled,
        "{what}\n only recorded: {}\n only in the model: {}",
        only_in(recorded, modelled),
        only_in(modelled, recorded)
    );
}

fn is_memory(record: &&Record) -> bool {
    record.kind.place().is_memory()
}

/// The state of a recording at its end.
fn compare(snapshot: &Snapshot, model: &Model, mode: Mode) {
    let with_sites = mode != Mode::Sampled;
    same_rows(
        &sorted(snapshot.allocations.iter().map(|each| row(snapshot, &each, with_sites))),
        &sorted(
            model
                .live
                .iter()
                .filter(is_memory)
                .map(|record| modelled_row(record, with_sites)),
        ),
        "live memory",
    );
    same_rows(
        &sorted(snapshot.objects.iter().map(|each| row(snapshot, &each, with_sites))),
        &sorted(
            model
                .live
                .iter()
                .filter(|record| !is_memory(record))
                .map(|record| modelled_row(record, with_sites)),
        ),
        "objects",
    );
    compare_details(snapshot, model);
    let device = |device: Option<usize>| device.map(|device| snapshot.devices[device].ordinal);
    compare_sums(snapshot, &model.sums, &model.devices, true, "at the end");
    let lost = &snapshot.losses;
    let of_model = &model.losses;
    same!(
        [
            lost.failed_frees,
            lost.unknown_frees,
            lost.unknown_blocks,
            lost.implicit_frees,
            lost.vanished
        ],
        [
            of_model.failed_frees,
            of_model.unknown_frees,
            of_model.unknown_blocks,
            of_model.implicit_frees,
            of_model.vanished
        ],
        "frees: failed, unknown, of unknown blocks, implicit; vanished"
    );
    same!(not_recorded(snapshot), [0; 7], "losses");
    let failed = snapshot.failed.iter().map(|failed| {
        (
            (
                site(snapshot, failed.stack).unwrap_or(99),
                failed.kind,
                device(failed.device),
                failed.bytes,
                failed.error,
            ),
            failed.count,
        )
    });
    let mut by_request = BTreeMap::new();
    failed.for_each(|(request, count)| *by_request.entry(request).or_insert(0) += count);
    same!(by_request, model.failed.clone(), "failed requests");
    let marks: Vec<&str> = snapshot.marks.iter().map(|mark| &*mark.name).collect();
    same!(
        marks,
        model.marks.iter().map(|mark| &*mark.name).collect::<Vec<_>>(),
        "marks"
    );
    let phases: Vec<_> = snapshot
        .phases
        .iter()
        .map(|phase| (&*phase.name, phase.parent, phase.end_ns.is_some()))
        .collect();
    same!(
        phases,
        model
            .phases
            .iter()
            .map(|phase| (&*phase.name, phase.parent, phase.end.is_some()))
            .collect::<Vec<_>>(),
        "phases: name, parent, ended"
    );
}

/// The sums of each kind, and the peaks of devices.
fn compare_sums(
    snapshot: &Snapshot,
    sums: &BTreeMap<Key, Sums>,
    devices: &BTreeMap<i32, (u64, u64)>,
    is_last: bool,
    what: &str,
) {
    let device = |device: Option<usize>| device.map(|device| snapshot.devices[device].ordinal);
    // Those of objects and of failed requests are known at the end only.
    let objects = snapshot.object_counters.iter().filter(|_| is_last);
    let recorded = snapshot.counters.iter().chain(objects).map(|counter| {
        let key = (device(counter.device), counter.kind);
        let sums = Sums {
            live_bytes: counter.live_bytes,
            live_count: counter.live_count,
            peak_bytes: counter.peak_bytes,
            total_bytes: counter.total_bytes,
            total_count: counter.total_count,
            freed_count: counter.freed_count,
            failed_count: if is_last { counter.failed_count } else { 0 },
        };
        (key, sums)
    });
    let modelled = sums
        .iter()
        .filter(|((_, kind), _)| is_last || kind.place().is_memory())
        .map(|(key, sums)| {
            let failed_count = if is_last { sums.failed_count } else { 0 };
            (*key, Sums { failed_count, ..*sums })
        });
    let is_used = |(_, sums): &(Key, Sums)| *sums != Sums::default();
    let recorded: BTreeMap<Key, Sums> = recorded.filter(is_used).collect();
    let modelled: BTreeMap<Key, Sums> = modelled.filter(is_used).collect();
    let (recorded, modelled): (Vec<_>, Vec<_>) = (recorded.into_iter().collect(), modelled.into_iter().collect());
    assert!(
        recorded == modelled,
        "{what}: sums\n recorded {}\n   model  {}",
        only_in(&recorded, &modelled),
        only_in(&modelled, &recorded)
    );
    let peaks = snapshot
        .device_peaks
        .iter()
        .map(|peak| (snapshot.devices[peak.device].ordinal, peak.peak_bytes));
    let modelled = devices.iter().map(|(device, (_, peak))| (*device, *peak));
    same!(
        sorted(peaks.filter(|(_, bytes)| *bytes > 0)),
        modelled.filter(|(_, peak)| *peak > 0).collect::<Vec<_>>(),
        "{what}: peaks of devices"
    );
}

/// Thread, context, stream, pool and counts of each record.
fn compare_details(snapshot: &Snapshot, model: &Model) {
    let rows = snapshot.allocations.iter().chain(snapshot.objects.iter());
    let recorded = sorted(rows.map(|row| {
        let call = row.call;
        let stream = call.stream.as_ref().map(|stream| match stream {
            Stream::LegacyDefault => 0,
            Stream::PerThreadDefault => 2,
            Stream::Handle(handle) => *handle,
        });
        let context = call.context.map_or(0, |context| snapshot.contexts[context].handle);
        let counts = if row.kind == Kind::GraphExec {
            [0, 0]
        } else {
            [call.references, call.mappings]
        };
        (
            row.kind,
            row.address,
            snapshot.threads[call.thread].tid,
            context,
            stream,
            call.pool,
            counts,
        )
    }));
    let modelled = sorted(model.live.iter().map(|record| {
        let counts = [record.references, record.mappings];
        (
            record.kind,
            record.address,
            record.thread,
            record.context,
            record.stream,
            record.pool,
            counts,
        )
    }));
    assert!(
        recorded == modelled,
        "kind, address, thread, context, stream, pool, counts of what is live\n only recorded: {}\n only in the model: {}",
        only_in(&recorded, &modelled),
        only_in(&modelled, &recorded)
    );
}

/// The state at each mark, from the log.
fn compare_log(snapshot: &Snapshot, timeline: &Timeline, model: &Model) {
    same!((timeline.since_ns, timeline.lost), (0, 0), "the log");
    let mut before: Option<(Snapshot, &Point)> = None;
    let count = model.marks.len();
    for (nth, (mark, point)) in snapshot.marks.iter().zip(&model.marks).enumerate() {
        let state = timeline.state_at(snapshot, mark.time_ns).expect("it is in the log");
        state.validate().expect("every index is in range");
        let what = format!("at mark {}", mark.name);
        compare_point(&state, point, &what);
        compare_sums(&state, &point.sums, &point.devices, false, &what);
        // Of these, the last ones suffice.
        if nth + 2 < count {
            continue;
        }
        views::reports(&state, point, false, &what);
        let what = format!("from {what} to the end");
        views::diffs(&state, snapshot, [point, &model.last()], &what);
        if let Some((other, earlier)) = &before {
            views::diffs(other, &state, [earlier, point], "between two marks");
        }
        before = Some((state, point));
    }
    views::phases(snapshot, timeline, model);
}

fn compare_point(state: &Snapshot, point: &Point, what: &str) {
    let with_sites = state.sampling.is_none();
    let without_details = |(kind, address, bytes, _, device, site, api, domain): Row| {
        let address = address & ((1 << 48) - 1);
        (kind, address, bytes, device, site, api, domain)
    };
    let recorded = sorted(
        state
            .allocations
            .iter()
            .map(|each| without_details(row(state, &each, with_sites))),
    );
    let modelled = sorted(
        point
            .live
            .iter()
            .filter(is_memory)
            .map(|record| without_details(modelled_row(record, with_sites))),
    );
    assert!(
        recorded == modelled,
        "{what}\n only recorded: {}\n only in the model: {}",
        only_in(&recorded, &modelled),
        only_in(&modelled, &recorded)
    );
}

/// Runs a script, and compares.
fn check(script: &Script, mode: Mode) {
    let (outcome, processes) = run(script, mode);
    if let Mode::Command(number) = mode {
        let (again, others) = run(script, mode);
        for (process, other) in processes.iter().zip(&others) {
            if let (Some(_), Some(other)) = (&process.recording, &other.recording) {
                commands::ALL[number](process, other, &processes);
            }
        }
        drop((outcome, again));
        return;
    }
    processes.iter().for_each(|process| check_process(process, mode));
    drop(outcome);
}

fn check_process(process: &Process, mode: Mode) {
    let Some(path) = &process.recording else {
        assert!(!process.model.is_recording, "{mode:?}: no recording");
        return;
    };
    let (snapshot, timeline) = reader::read_timeline(path).expect("readable");
    invariants::check(&snapshot, true);
    compare(&snapshot, &process.model, mode);
    views::reports(&snapshot, &process.model.last(), mode == Mode::Views, "at the end");
    assert_eq!(timeline.is_some(), mode == Mode::Logged);
    if let Some(timeline) = timeline {
        compare_log(&snapshot, &timeline, &process.model);
    }
    for [recorded, modelled] in &process.model.measured {
        same!(recorded, modelled, "an interval: bytes left, and their peak");
    }
    compare_snapshots(path, &snapshot, &process.model);
    if mode == Mode::Plain {
        let snapshot = reader::read_with_totals(path).expect("readable");
        views::totals(&snapshot, &process.model);
        views::peaks(&snapshot, &process.model);
    }
}

/// The automatic snapshots that the program asked for.
fn compare_snapshots(recording: &Path, last: &Snapshot, model: &Model) {
    let folder = recording.parent().expect("a folder");
    let files = fs::read_dir(folder)
        .expect("readable")
        .flatten()
        .map(|entry| entry.path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "culeak-snapshot"));
    let mut found = 0;
    for snapshot in files.map(|path| reader::read(&path).expect("readable")) {
        let automatic = snapshot.taken.automatic.clone().expect("the reason");
        let named = automatic
            .name
            .filter(|_| snapshot.process.pid == last.process.pid && automatic.failed.is_none());
        let Some(point) = model.snapshots.iter().find(|point| Some(&point.name) == named.as_ref()) else {
            continue;
        };
        compare_point(&snapshot, point, &format!("in the snapshot {}", point.name));
        found += 1;
    }
    same!(found, model.snapshots.len(), "snapshots");
}

/// Why a script fails; `None`: it does not.
fn failure(script: &Script, mode: Mode) -> Option<String> {
    let text = |payload: Box<dyn std::any::Any + Send>| match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload
            .downcast::<&str>()
            .map_or("a panic".to_owned(), |text| (*text).to_owned()),
    };
    catch_unwind(AssertUnwindSafe(|| check(script, mode))).err().map(text)
}

/// Removes lines as long as the script fails, and says why the rest does.
fn shortened(mut script: Script, mode: Mode) -> String {
    let mut piece = script.lines.len().div_ceil(2);
    let mut why = String::new();
    loop {
        let mut start = 0;
        let mut removed = false;
        while start < script.lines.len() {
            let mut shorter = script.clone();
            shorter.lines.drain(start..(start + piece).min(script.lines.len()));
            if let Some(still) = failure(&shorter, mode) {
                (script, why) = (shorter, still);
                removed = true;
            } else {
                start += piece;
            }
        }
        match piece {
            1 if !removed => return format!("{mode:?}: {why}\n{script}"),
            1 => {}
            _ => piece = piece.div_ceil(2),
        }
    }
}

/// So many failing programs are shortened, by each of two threads.
const SHORTENED: usize = 2;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

#[test]
fn random_programs_are_recorded_as_the_model_says() {
    let (first, programs) = (number("CULEAK_MODEL_SEED", 1), number("CULEAK_MODEL_PROGRAMS", 200));
    // How many programs there are for each that a command reads; 1: commands read all.
    let every = number("CULEAK_MODEL_COMMANDS", 4);
    let only_commands = std::env::var_os("CULEAK_MODEL_ONLY_COMMANDS").is_some();
    let wanted = |mode: Mode| !only_commands || matches!(mode, Mode::Command(_));
    let next = AtomicU64::new(first);
    let failed: Vec<String> = std::thread::scope(|scope| {
        let work = || {
            let mut failed = Vec::new();
            loop {
                let seed = next.fetch_add(1, Relaxed);
                if seed >= first + programs {
                    return failed;
                }
                let script = script::random(seed, [60, 120, 120, 250][seed as usize % 4]);
                let is_commanded = seed.is_multiple_of(every);
                let number = (seed / every) as usize % commands::ALL.len();
                let command = is_commanded.then_some(Mode::Command(number));
                let views = is_commanded.then_some(Mode::Views);
                let modes = MODES
                    .into_iter()
                    .chain(views)
                    .chain(command)
                    .filter(|mode| wanted(*mode));
                let why = modes.into_iter().find_map(|mode| Some((mode, failure(&script, mode)?)));
                let Some((mode, why)) = why else { continue };
                let short = match failed.len() < SHORTENED {
                    true => shortened(script, mode),
                    false => format!("not shortened: {why}"),
                };
                failed.push(format!("seed {seed}, {short}"));
            }
        };
        let workers = [(); 2].map(|()| scope.spawn(work));
        workers
            .into_iter()
            .flat_map(|worker| worker.join().expect("it ends"))
            .collect()
    });
    assert!(
        failed.is_empty(),
        "{} of {programs} programs from seed {first} on:\n\n{}",
        failed.len(),
        failed.join("\n\n")
    );
}

#[test]
fn scripts_that_have_failed_do_not_fail_again() {
    let folder = crate::support::sources().join("data/scripts");
    let mut found = 0;
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        check_file(&entry.path());
        found += 1;
    }
    assert!(found > 0);
}

fn check_file(path: &Path) {
    let script: Script = fs::read_to_string(path).expect("readable").parse().expect("a script");
    for mode in MODES.into_iter().chain([Mode::Views]) {
        if let Some(why) = failure(&script, mode) {
            panic!("{}, {mode:?}: {why}", path.display());
        }
    }
}
