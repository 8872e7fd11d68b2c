//! Random programs, compared with a model of what a recording means (`support/model.rs`).
//!
//! `victims/script.c` runs a script and writes what the driver answered to each line. The model reads both and says what is live, the sums,
//! and what was live at each mark; the recordings must say the same. A script that fails is shortened as long as it fails, and printed: stored
//! in `data/scripts`, it is a test.
//!
//!     CULEAK_MODEL_PROGRAMS=10000 CULEAK_MODEL_SEED=1 cargo test -p culeak-cli --test main model::random

mod commands;
mod compare;
#[cfg(target_arch = "x86_64")]
mod faults;
#[cfg(target_arch = "x86_64")]
mod instants;
mod relations;
mod views;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use culeak::reader;
use culeak::snapshot::Snapshot;

use crate::interpreters::interpreters;
use crate::support::model::Model;
use crate::support::outcome::recordings_in;
use crate::support::script::{self, Answer, Line, Script};
use crate::support::{Lookup, Outcome, Profile, invariants, profile, victim};
use crate::tensors::{tensors, torch};
use compare::{compare, compare_log, compare_snapshots};

/// How a program is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Plain,
    Logged,
    Sampled,
    /// Read as anything that the library can group and filter by.
    Views,
    /// With a log and, if that suffices, without one, read by one of the commands.
    Command(usize),
    /// With a log, answers about it compared with each other.
    Relation(usize),
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
        Mode::Logged | Mode::Command(_) | Mode::Relation(_) => program
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

/// Runs a script, and compares.
fn check(script: &Script, mode: Mode) {
    let (outcome, processes) = run(script, mode);
    if let Mode::Command(number) = mode {
        let is_asked_of_both = number < commands::WITHOUT_LOG;
        let (again, others) = run(script, if is_asked_of_both { Mode::Plain } else { mode });
        for (process, other) in processes.iter().zip(&others) {
            if let (Some(path), Some(path_of_other)) = (&process.recording, &other.recording) {
                commands::ALL[number](process, path_of_other, &processes);
                if is_asked_of_both {
                    commands::ALL[number](other, path, &others);
                }
            }
        }
        drop((outcome, again));
        return;
    }
    if let Mode::Relation(number) = mode {
        let Some(relation) = relations::OF_RECORDINGS.get(number) else {
            return relations::OF_SCRIPTS[number - relations::OF_RECORDINGS.len()](script);
        };
        let (again, others) = run(script, mode);
        for (process, other) in processes.iter().zip(&others) {
            if let (Some(one), Some(again)) = (&process.recording, &other.recording) {
                relation(&relations::Runs { one, again });
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

const RELATIONS: usize = relations::OF_RECORDINGS.len() + relations::OF_SCRIPTS.len();

/// So many failing programs are shortened, by each of two threads.
const SHORTENED: u64 = 2;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

#[test]
fn random_programs_are_recorded_as_the_model_says() {
    let (first, programs) = (number("CULEAK_MODEL_SEED", 1), number("CULEAK_MODEL_PROGRAMS", 100));
    // How many programs there are for each that a command reads; 1: commands read all.
    let every = number("CULEAK_MODEL_COMMANDS", 4);
    // `Command`, for example, to ask commands alone.
    let only = std::env::var("CULEAK_MODEL_ONLY").unwrap_or_default();
    let wanted = |mode: Mode| format!("{mode:?}").starts_with(&only);
    let most_shortened = number("CULEAK_MODEL_SHORTENED", SHORTENED);
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
                // Each asks some fifty commands.
                let related = seed.is_multiple_of(8 * every);
                let relation = (seed / every / 8 * 3) as usize % RELATIONS;
                let relation = related.then_some(Mode::Relation(relation));
                let modes = MODES
                    .into_iter()
                    .chain(views)
                    .chain(command)
                    .chain(relation)
                    .filter(|mode| wanted(*mode));
                let why = modes.into_iter().find_map(|mode| Some((mode, failure(&script, mode)?)));
                let Some((mode, why)) = why else { continue };
                let short = match (failed.len() as u64) < most_shortened {
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

/// Pools, tensors, stacks of Python and what a script holds at its end. By day each program gets two relations.
#[test]
fn relations_hold_for_a_python_script_and_for_tensors() {
    let python = &interpreters()[0];
    let script = crate::support::program(&python.command)
        .arg("-B")
        .arg(crate::support::sources().join("victims/ends.py"))
        .arg("model");
    let programs = [script, tensors("leaks", &torch(1, &[]))];
    let stride = if number("CULEAK_MODEL_PROGRAMS", 100) < 1000 {
        6
    } else {
        1
    };
    for (nth, program) in programs.into_iter().enumerate() {
        let program = program.setting("CULEAK_TIMELINE", "64MiB");
        let outcomes = [program.clone().run(), program.run()];
        let [one, again] = outcomes.each_ref().map(|outcome| &outcome.recordings[0]);
        for relation in relations::OF_RECORDINGS.iter().skip(nth).step_by(stride) {
            relation(&relations::Runs { one, again });
        }
    }
    // Others, with logs, such as those of programs on a GPU: `CULEAK_MODEL_RECORDINGS=FOLDER:FOLDER`.
    let folders = std::env::var_os("CULEAK_MODEL_RECORDINGS");
    for folder in folders.iter().flat_map(std::env::split_paths) {
        let recordings = recordings_in(&folder);
        assert!(!recordings.is_empty(), "{}: no recordings", folder.display());
        for one in &recordings {
            let (_, log) = reader::read_timeline(one).expect("readable");
            assert!(
                log.is_some(),
                "{}: it has no log; record with --timeline",
                one.display()
            );
            println!("{}", one.display());
            let runs = relations::Runs { one, again: one };
            relations::OF_RECORDINGS.iter().for_each(|relation| relation(&runs));
        }
    }
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
