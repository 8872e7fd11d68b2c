//! `culeak run`: runs a program with the preload library, then reports what it leaked.
//!
//! The program keeps its stdin, stdout, stderr, signals and terminal. Only its environment gains `LD_PRELOAD` and the
//! `CULEAK_…` settings, which its children inherit. All messages go to stderr, so the program's output can still be piped.
//! Deliberately absent: changes to this process's own environment.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use culeak::analysis::report::shell_word;
use culeak::point::Point;

use super::after_run::{self, AfterArgs};
use crate::errors::Failure;
use crate::escape::Escaped;
use crate::launch::holds::{LIMIT, Served, Serving};
use crate::launch::proof::Gap;
use crate::launch::{self, RecordArgs, environment, preload, spooled, supervise};
use crate::progress;
use crate::text::units;

/// Run a program, record its GPU memory, and report what it leaked
#[derive(Debug, Args)]
#[command(after_help = "\
Recordings are named PROGRAM.RUN.HOST.PID.culeak; RUN is four random characters. \
A recording can be read at any time, however the process ends.

Exit code: the program's own, or 128+N if signal N ended it; 126 if it cannot be executed; 127 if it is not found. \
If the program succeeded: 1 if --check found a leak; 2 if culeak itself failed, or if --check has no recording to judge \
although CUDA was or may have been used.

Examples:
  culeak run -- python train.py
  culeak run -o runs --only 'python*' -- ./pipeline.sh
  culeak run --html report.html -- ./app
  culeak run --why -- python train.py
  culeak run --check --max-leaked 1MiB --report-file leaks.txt -- ./tests
  culeak run --check --format junit --verdict-file leaks.xml -- ./tests")]
pub struct RunArgs {
    #[command(flatten)]
    pub record: RecordArgs,

    /// Search for what holds the memory, at the end of each process and when memory runs out. The process waits until its memory is
    /// copied
    #[arg(long)]
    pub why: bool,

    /// Let a process continue after TIME, even if its memory is not copied [default: 10s]
    #[arg(long, value_name = "TIME", requires = "why", value_parser = units::parse_duration)]
    pub why_limit: Option<Duration>,

    /// Stop the search of a process's copied memory after TIME; its answer says what was not searched [default: 1m]
    #[arg(long, value_name = "TIME", requires = "why", value_parser = units::parse_duration)]
    pub why_search_limit: Option<Duration>,

    #[command(flatten)]
    pub after: AfterArgs,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

pub fn execute(args: &RunArgs) -> Result<ExitCode, Failure> {
    args.after.examine()?;
    suits_point(args)?;
    if !args.why && !args.after.rules.classes().is_empty() {
        return Err(Failure::new(
            "--fail-on lost, cycle, native-holder and over-counted judge what holds the memory; add --why, which finds it",
        ));
    }
    let mut prepared = launch::prepare(&args.record, &args.command, args.why)?;
    let serving = match prepared.proof.as_ref().filter(|_| args.why) {
        Some(proof) => {
            let limit = args.why_limit.unwrap_or(LIMIT);
            Some(Serving::start(proof.path(), limit, args.why_search_limit)?)
        }
        None => None,
    };
    let ended = supervise::run(&mut prepared.command).map_err(|error| {
        let shown = prepared.executable.display();
        Failure::with_exit(format!("{shown}: cannot be executed: {error}"), preload::NOT_EXECUTABLE)
    })?;
    let code = supervise::shell_code(ended.status);
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
    let verdict = after_run::report(
        &args.after,
        &prepared.folder,
        args.record.output.as_deref(),
        &prepared.tag,
        gap.as_ref(),
        &after_run::Started {
            proof: prepared.proof.as_ref(),
            only: args.record.only.as_deref(),
            follows_children: !args.record.no_follow_children,
        },
    );
    mention_auto_snapshots(&prepared.folder, &prepared.tag);
    match verdict {
        // The program's own exit code takes precedence.
        _ if code != 0 => {
            verdict.inspect_err(progress::fail).ok();
            Ok(ExitCode::from(code))
        }
        verdict => verdict.map(ExitCode::from),
    }
}

/// Refuses a point that the recording will not have, before the program runs.
fn suits_point(args: &RunArgs) -> Result<(), Failure> {
    let Some(at) = args.after.rules.at.as_ref().filter(|_| args.after.check) else {
        return Ok(());
    };
    let settings = &args.record.auto_snapshots;
    // Settings in the environment count, too.
    let given =
        |option: bool, variable: &str| option || std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    let has_log = given(settings.timeline.is_some(), "CULEAK_TIMELINE");
    let has_marks = given(settings.snapshot_at_mark, "CULEAK_SNAPSHOT_AT_MARK");
    let remedy = match at {
        Point::Mark(_) if !has_log && !has_marks => "--timeline or --snapshot-at-mark",
        Point::Time(_) if !has_log => "--timeline",
        _ => return Ok(()),
    };
    Err(Failure::new(format!(
        "--at {at}: without {remedy}, the recording will not show what was held then, so the check could not judge it; add \
         {remedy}"
    )))
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
    let part = environment::tag_part(tag);
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
        let input = shell_word(&folder.join(most_telling).display().to_string());
        progress::note(format_args!(
            "{snapshots} in {}; next: culeak report {}",
            Escaped(&shown),
            Escaped(&input)
        ));
    }
}

/// How the names of automatic snapshots end.
const AUTO_SNAPSHOT: &str = ".culeak-snapshot";

/// What to report first, of snapshots in order of time: the last one taken when memory ran out, else the recording of the
/// last one.
fn most_telling(names: &[&str]) -> Option<String> {
    let out_of_memory = names.iter().rev().find(|name| name.contains(".out-of-memory-"));
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
}
