//! A program that is recorded to its end, for `run` and for `check -- PROGRAM`.
//!
//! The program keeps its stdin, stdout, stderr, signals and terminal. Only its environment gains `LD_PRELOAD` and the
//! `CULEAK_…` settings, which its children inherit. All messages go to stderr, so the program's output can still be piped.
//! The tag in their names identifies the recordings of this run. Deliberately absent: changes to this process's own environment, and
//! waiting for processes that outlive the program, except a second for those that are about to end.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use culeak::analysis::check::Unseen;
use culeak::analysis::report::shell_word;
use culeak::point::Point;

use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::launch::environment::{self, SNAPSHOT_AT_MARK};
use crate::launch::holds::{LIMIT, Served, Serving};
use crate::launch::proof::Gap;
use crate::launch::{self, RecordArgs, preload, spooled, supervise};
use crate::load::incomplete;
use crate::load::{self, in_folder};
use crate::options::rules::RuleArgs;
use crate::progress;
use crate::text::{ledger, units};
use crate::usage;

/// How a program is recorded that is waited for.
#[derive(Debug, Default, Args)]
pub struct ProgramArgs {
    #[command(flatten)]
    pub record: RecordArgs,

    /// Search for what holds the memory, at the end of each process and when memory runs out
    ///
    /// The process waits until its memory is copied
    #[arg(long)]
    pub why: bool,

    /// Let a process continue after TIME, even if its memory is not copied [default: 10s]
    #[arg(long, value_name = "TIME", requires = "why", value_parser = units::parse_duration)]
    pub why_limit: Option<Duration>,

    /// Stop the search of a process's copied memory after TIME; its answer says what was not searched [default: 1m]
    #[arg(long, value_name = "TIME", requires = "why", value_parser = units::parse_duration)]
    pub why_search_limit: Option<Duration>,

    /// Exit with code 2 if no process was recorded, even if none requested memory from CUDA, or if one that should be was not;
    /// child processes without the preload library (no LD_PRELOAD, static, setuid) are not recorded
    #[arg(long)]
    pub require_recording: bool,
}

/// A program that has ended.
pub struct Ended<'a> {
    args: &'a ProgramArgs,
    /// What a check of it allows; `None`: it is not judged.
    rules: Option<&'a RuleArgs>,
    code: u8,
    /// Absolute.
    folder: PathBuf,
    tag: String,
    /// As the user can name them.
    recordings: Vec<OsString>,
    gap: Option<Gap>,
    /// Processes that have no recording, or do not end, in sentences.
    missing: Vec<String>,
}

/// Runs a program to its end. `rules`: of the check that follows.
///
/// # Errors
/// The rules cannot be judged by what will be recorded, or the program cannot be started.
pub fn record<'a>(
    args: &'a ProgramArgs,
    command: &[OsString],
    rules: Option<&'a RuleArgs>,
) -> Result<Ended<'a>, Failure> {
    if let Some(rules) = rules {
        will_show(args, rules)?;
    }
    let mut prepared = launch::prepare(&args.record, command, args.why)?;
    let serving = match prepared.proof.as_ref().filter(|_| args.why) {
        Some(proof) => {
            let limit = args.why_limit.unwrap_or(LIMIT);
            Some(Serving::start(proof.path(), limit, args.why_search_limit)?)
        }
        None => None,
    };
    note(&prepared, &[incomplete::RUNNING.to_owned()]);
    let ended = supervise::run(&mut prepared.command).map_err(|error| {
        note(&prepared, &[]);
        let shown = prepared.executable.display();
        Failure::with_exit(
            format!("{shown}: cannot be executed: {error}; check its path and its permissions"),
            preload::NOT_EXECUTABLE,
        )
    })?;
    progress::show();
    let served = serving.map(Serving::finish);
    spooled::deliver(&prepared.folder, &prepared.tag);
    let recorded = prepared.proof.as_ref().map_or(0, |proof| proof.missing(0));
    let gap = match &prepared.proof {
        _ if prepared.blind => Some(Gap::Obstacle),
        Some(proof) => proof.gap(ended.name.as_deref()),
        None => Some(Gap::Unknown),
    };
    if let Some(served) = &served {
        mention_holds(served, recorded);
    }
    let RecordArgs {
        output,
        only,
        no_follow_children,
        ..
    } = &args.record;
    let left_running = match &prepared.proof {
        Some(proof) if !no_follow_children => proof.left_running(&incomplete::tag_part(&prepared.tag), only.as_deref()),
        _ => Vec::new(),
    };
    // Afterwards: a process that has ended meanwhile has its recording here.
    let names = environment::recordings(&prepared.folder, &prepared.tag);
    let lost = prepared.proof.as_ref().map_or(0, |proof| proof.missing(names.len()));
    let gap = if lost > 0 { Some(Gap::Missing(lost)) } else { gap };
    let given = output.as_deref().unwrap_or(Path::new(""));
    let prevents_verdict = |gap: &&Gap| match gap {
        Gap::NotCreated(_) | Gap::Disabled | Gap::Bypassed | Gap::Missing(_) => true,
        Gap::NotChosen => only.is_none() && !no_follow_children,
        _ => false,
    };
    let unrecorded = gap.as_ref().filter(prevents_verdict);
    let unrecorded = unrecorded.map(|gap| gap.sentence(&prepared.folder));
    let left_running = still_run(&left_running);
    let code = supervise::shell_code(ended.status);
    let failed = (code != 0).then(|| failed(code));
    let lacks: Vec<String> = unrecorded.iter().chain(&left_running).chain(&failed).cloned().collect();
    note(&prepared, &lacks);
    if !lacks.is_empty() && rules.is_none() {
        let file = given.join(format!("{}.{}", prepared.tag, incomplete::ENDING));
        eprintln!(
            "culeak: wrote {}: {}; checks of this folder have no verdict until you remove the file",
            Escaped(&file.display().to_string()),
            Escaped(&lacks.join("; "))
        );
    }
    // Without any recording, the gap is the reason for that; and to judge what is held now, no process need end.
    let unrecorded = unrecorded.filter(|_| !names.is_empty());
    let is_now = rules.is_some_and(|rules| rules.at == Some(Point::Exit));
    let left_running = left_running.into_iter().filter(|_| !is_now);
    Ok(Ended {
        args,
        rules,
        code,
        recordings: names.iter().map(|name| given.join(name).into_os_string()).collect(),
        missing: unrecorded.into_iter().chain(left_running).collect(),
        folder: prepared.folder,
        tag: prepared.tag,
        gap,
    })
}

impl Ended<'_> {
    /// Lets `read` report or judge the recordings, and returns the exit code: the program's own if it failed, else that of `read`, or
    /// that of a check without a verdict if something was not recorded.
    ///
    /// # Errors
    /// Those of `read`, if the program succeeded.
    pub fn finish(&self, read: impl FnOnce(&[OsString]) -> Result<u8, Failure>) -> Result<ExitCode, Failure> {
        let code = match self.recordings.as_slice() {
            [] => Ok(self.nothing_recorded()),
            recordings => read(recordings),
        };
        let is_incomplete = code.is_ok() && self.rules.is_none() && self.requires_more();
        mention_auto_snapshots(&self.folder, &self.tag);
        match code {
            _ if self.code != 0 => {
                code.inspect_err(progress::fail).ok();
                Ok(ExitCode::from(self.code))
            }
            Ok(0) if is_incomplete => Ok(ExitCode::from(USAGE)),
            Ok(0) if self.rules.is_none() => Ok(ExitCode::from(self.exit_of_gap())),
            code => code.map(ExitCode::from),
        }
    }

    /// Prints why nothing was recorded, and returns the exit code: without a recording a check does not pass.
    fn nothing_recorded(&self) -> u8 {
        match &self.gap {
            Some(gap) => eprintln!("culeak: nothing recorded: {}", Escaped(&gap.sentence(&self.folder))),
            None => eprintln!(
                "culeak: nothing recorded: no process with the preload library requested memory from CUDA; child processes \
                 without LD_PRELOAD are not recorded; if you expected a recording, run culeak doctor"
            ),
        }
        let judged = self
            .rules
            .filter(|rules| !rules.allow_losses && !self.missing.is_empty());
        for what in self.missing.iter().filter(|_| judged.is_some()) {
            eprintln!("culeak: {}", Escaped(what));
        }
        if self.args.require_recording || (self.rules.is_some() && self.gap.is_some()) || judged.is_some() {
            eprintln!("culeak: no verdict, since there is no recording to judge");
            return USAGE;
        }
        self.exit_of_gap()
    }

    /// The exit code of a program that succeeded and whose processes should have been recorded, but were not.
    fn exit_of_gap(&self) -> u8 {
        match &self.gap {
            Some(Gap::NotCreated(_) | Gap::Missing(_) | Gap::Bypassed) => USAGE,
            // Its children may have been recorded.
            Some(Gap::Obstacle) if self.recordings.is_empty() => USAGE,
            _ => 0,
        }
    }

    /// What a verdict on the recordings lacks.
    pub fn unrecorded(&self) -> Vec<Unseen> {
        let unseen = |sentence: &String| {
            let (what, next) = sentence.rsplit_once("; ").unwrap_or((sentence, "record it too"));
            match self.args.require_recording {
                true => Unseen::all("--require-recording", what, next),
                false => Unseen::part("", what, next),
            }
        };
        let failed = (self.code != 0).then(|| Unseen::part("", failed(self.code), "let it succeed"));
        self.missing.iter().map(unseen).chain(failed).collect()
    }

    /// Says what the run lacks, and returns whether it may not.
    fn requires_more(&self) -> bool {
        for what in self.missing.iter().filter(|_| self.args.require_recording) {
            eprintln!(
                "culeak: --require-recording: a process was not recorded: {}",
                Escaped(what)
            );
        }
        self.args.require_recording && !self.missing.is_empty()
    }

    /// The folder of the recordings as an input, or a pattern if it has recordings of other runs.
    pub fn job(&self) -> String {
        job_of(
            &self.folder,
            self.args.record.output.as_deref(),
            &self.tag,
            self.recordings.len(),
        )
    }
}

/// Refuses rules about what the recording will not have, before the program runs.
fn will_show(args: &ProgramArgs, rules: &RuleArgs) -> Result<(), Failure> {
    if !args.why && !rules.classes().is_empty() {
        return Err(Failure::new(
            "--fail-on lost, cycle, native-holder and over-counted judge what holds the memory; add --why, which finds it",
        ));
    }
    let Some(at) = &rules.at else { return Ok(()) };
    // Settings in the environment count, too.
    let given =
        |option: bool, variable: &str| option || std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let has_log = given(args.record.timeline.is_some(), "CULEAK_TIMELINE");
    let at_marks = args.record.snapshot.iter().any(|(name, _)| *name == SNAPSHOT_AT_MARK);
    let has_marks = given(at_marks, SNAPSHOT_AT_MARK);
    let remedy = match at {
        Point::Mark(_) if !has_log && !has_marks => "--timeline or --snapshot mark",
        Point::Time(_) if !has_log => "--timeline",
        _ => return Ok(()),
    };
    Err(Failure::new(format!(
        "--at {at}: without {remedy}, the recording will not show what was held then, so the check could not judge it; add \
         {remedy}"
    )))
}

/// Notes beside the recordings what this run did not record.
fn note(prepared: &launch::Prepared, lacks: &[String]) {
    if let Err(error) = incomplete::leave(&prepared.folder, &prepared.tag, lacks) {
        let shown = prepared.folder.display().to_string();
        eprintln!(
            "culeak: {}: what this run does not record could not be noted: {error}; a check of the folder will not know it",
            Escaped(&shown)
        );
    }
}

/// What a failed program leaves is not what it leaves when it succeeds.
fn failed(code: u8) -> String {
    format!("the program failed with exit code {code}")
}

/// Descendants of the program that may still use CUDA.
fn still_run(processes: &[String]) -> Vec<String> {
    const SHOWN: usize = 8;
    let one = "process of the program still runs and may use CUDA";
    let count = units::plural(
        processes.len() as u64,
        one,
        "processes of the program still run and may use CUDA",
    );
    let more = if processes.len() > SHOWN { " …" } else { "" };
    let names = processes[..processes.len().min(SHOWN)].join(", ");
    let what = format!("{count}: {names}{more}; let the program wait for its end");
    if processes.is_empty() { Vec::new() } else { vec![what] }
}

/// The folder of this run's recordings as an input, or a pattern if it has recordings of other runs.
fn job_of(folder: &Path, given: Option<&Path>, tag: &str, ours: usize) -> String {
    let given = given
        .filter(|given| !given.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    match in_folder(folder, |name| name.ends_with(".culeak")).len() == ours {
        true => given.display().to_string(),
        false => given
            .join(format!("*{}*.culeak", incomplete::tag_part(tag)))
            .display()
            .to_string(),
    }
}

/// Names the recordings.
pub fn mention(recordings: &[OsString]) {
    let names: Vec<_> = recordings
        .iter()
        .map(|path| Path::new(path).display().to_string())
        .collect();
    progress::note(format_args!("recorded {}", Escaped(&names.join(", "))));
}

/// Prints which processes could not be searched, or that none waited although there are recordings.
fn mention_holds(served: &[Served], recorded: u32) {
    for (process, reason) in served
        .iter()
        .filter_map(|served| Some((&served.process, served.failure.as_ref()?)))
    {
        let failure = format!("{process}: {reason}");
        eprintln!("culeak: --why: {}", Escaped(&failure));
    }
    if served.is_empty() && recorded > 0 {
        eprintln!(
            "culeak: --why: no process with a recording reached its end: it was killed, or replaced itself by exec; name a running \
             process with culeak why PID"
        );
    }
}

/// Prints how many automatic snapshots were taken, and a command for one of them; the report covers recordings only.
fn mention_auto_snapshots(folder: &Path, tag: &str) {
    let part = incomplete::tag_part(tag);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_ours = |name: &str| name.contains(&part) && name.ends_with(AUTO_SNAPSHOT);
    let mut snapshots: Vec<(Option<SystemTime>, String)> = entries
        .map(|entry| {
            let written = entry.metadata().and_then(|metadata| metadata.modified());
            (written.ok(), entry.file_name().to_string_lossy().into_owned())
        })
        .filter(|(_, name)| is_ours(name))
        .collect();
    snapshots.sort();
    let names: Vec<&str> = snapshots.iter().map(|(_, name)| name.as_str()).collect();
    if let Some(most_telling) = most_telling(&names) {
        let snapshots = units::plural(names.len() as u64, "automatic snapshot", "automatic snapshots");
        let shown = folder.display().to_string();
        let input = shell_word(&folder.join(&most_telling).display().to_string());
        progress::note(format_args!(
            "{snapshots} in {}{}; next: culeak report {}",
            Escaped(&shown),
            own_limits(&folder.join(&most_telling)).unwrap_or_default(),
            Escaped(&input)
        ));
    }
}

/// The limits of the control group of a program that ran out of memory: it inherits those of this command.
fn own_limits(snapshot: &Path) -> Option<String> {
    if !snapshot.to_string_lossy().contains(OUT_OF_MEMORY) {
        return None;
    }
    let item = load::Place::File(snapshot.to_owned()).load().ok()?;
    usage::limits(&item.snapshot, std::process::id()).map(ledger::limits)
}

/// In the names of snapshots that were taken when memory ran out.
const OUT_OF_MEMORY: &str = ".out-of-memory-";
/// How the names of automatic snapshots end.
const AUTO_SNAPSHOT: &str = ".culeak-snapshot";

/// What to report first, of snapshots in order of time: the last one taken when memory ran out, else the recording of the
/// last one.
fn most_telling(names: &[&str]) -> Option<String> {
    let out_of_memory = names.iter().rev().find(|name| name.contains(OUT_OF_MEMORY));
    let recording = || {
        // NAME.WHY-N.culeak-snapshot is beside NAME.culeak.
        let (name, _) = names.last()?.strip_suffix(AUTO_SNAPSHOT)?.rsplit_once('.')?;
        Some(format!("{name}.culeak"))
    };
    out_of_memory.map(|name| (*name).to_owned()).or_else(recording)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_out_of_memory_snapshot_is_reported_first_else_the_recording() {
        let (first, last) = (
            "app.k3f9.h.7.out-of-memory-1.culeak-snapshot",
            "app.k3f9.h.7.out-of-memory-2.culeak-snapshot",
        );
        let peak = "app.k3f9.h.7.peak-3.culeak-snapshot";
        assert_eq!(most_telling(&[first, last, peak]).as_deref(), Some(last));
        assert_eq!(most_telling(&[peak]).as_deref(), Some("app.k3f9.h.7.culeak"));
        assert_eq!(most_telling(&[]), None);
    }

    #[test]
    fn a_run_of_several_processes_is_named_as_one_input() {
        let folder = tempfile::tempdir().expect("a folder");
        let touch = |name: &str| fs::write(folder.path().join(name), b"").expect("written");
        ["app.k3f9.host.7.culeak", "app.k3f9.host.8.culeak"]
            .into_iter()
            .for_each(touch);
        let named = |given: Option<&str>| job_of(folder.path(), given.map(Path::new), "k3f9", 2);
        assert_eq!(named(Some("runs")), "runs");
        assert_eq!(named(None), ".");
        touch("app.abcd.host.7.culeak");
        let pattern = named(Some("runs"));
        assert!(pattern.starts_with("runs/*") && pattern.contains("k3f9"), "{pattern}");
        let matches = |name: &&str| culeak::wildcard::matches(&pattern.as_bytes()["runs/".len()..], name.as_bytes());
        let names = [
            "app.k3f9.host.7.culeak",
            "app.k3f9.host.8.culeak",
            "app.abcd.host.7.culeak",
        ];
        assert_eq!(names.into_iter().filter(matches).count(), 2, "{pattern}");
    }
}
