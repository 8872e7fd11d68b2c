//! What `run` says once the program has ended: the report of every process that used CUDA, and the verdict if asked.
//!
//! Recordings of this run are known by the tag in their names. Everything goes to stderr or to a file, since stdout is
//! the program's. Deliberately absent: waiting for processes that outlive the program; they are reported as running.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use culeak::analysis::check::{Rules, verdict};
use culeak::analysis::report::Report;

use super::NameArgs;
use super::check::{self, Format};
use super::report::ReportArgs;
use super::rules::{RULE_OPTIONS, RuleArgs};
use crate::environment;
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::html;
use crate::load::{self, Loaded};
use crate::output::{self, Overwrite};
use crate::progress;
use crate::proof::{Gap, Proof};
use crate::text;

/// Exit code for a leak over the limit.
const LEAK: u8 = 1;

/// What happens after the run.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limits")
    .args(RULE_OPTIONS)
    .multiple(true)
    .requires("check"))]
pub struct AfterArgs {
    /// Only record; print no report at the end
    #[arg(long)]
    pub no_report: bool,

    /// Write the report here instead of standard error
    #[arg(long, value_name = "FILE", conflicts_with = "no_report")]
    pub report_file: Option<PathBuf>,

    /// Write the report of all processes as a page for a browser, too
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,

    /// Show at most N call sites per process (0: all) [default: 20]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,

    /// Exit with code 1 when the program itself succeeded, but leaked more than allowed; a child that is started without
    /// the preload library (no LD_PRELOAD, static, setuid) is not seen
    #[arg(long)]
    pub check: bool,

    /// Exit with code 2 when nothing was recorded, also when no process asked CUDA for memory; one recorded process is
    /// enough, and a child that is started without the preload library is not seen
    #[arg(long)]
    pub require_recording: bool,

    /// How to write the verdict of --check [default: text]
    #[arg(long, value_enum, requires = "check")]
    pub format: Option<Format>,

    /// Write the verdict here instead of behind the report
    #[arg(long, value_name = "FILE", requires = "check")]
    pub verdict_file: Option<PathBuf>,

    #[command(flatten)]
    pub rules: RuleArgs,

    #[command(flatten)]
    pub overwrite: Overwrite,
}

impl AfterArgs {
    /// Looks at what will be needed, so that a mistake in it is told before the program runs.
    ///
    /// # Errors
    /// As [`RuleArgs::rules`] and [`output::check`].
    pub fn examine(&self) -> Result<(), Failure> {
        for path in [&self.report_file, &self.html, &self.verdict_file]
            .into_iter()
            .flatten()
        {
            if output::is_standard_output(path) {
                return Err(Failure::new(
                    "-: standard output is the program's; name a file for the report, the page or the verdict",
                ));
            }
            output::check(path, self.overwrite)?;
        }
        if self.check {
            self.rules.rules()?;
        }
        Ok(())
    }
}

/// What else is known of the run.
pub struct Started<'a> {
    pub proof: Option<&'a Proof>,
    /// Its own options leave processes out.
    pub chooses: bool,
}

/// Reports and judges; `given` is the output folder as the user named it. The result is the exit code of `run` in case
/// the program itself succeeded.
///
/// # Errors
/// When a report was asked for and cannot be written.
pub fn look(
    args: &AfterArgs,
    folder: &Path,
    given: Option<&Path>,
    tag: &str,
    gap: Option<&Gap>,
    run: &Started,
) -> Result<u8, Failure> {
    let recordings = recordings(folder, tag);
    let missing = match run.proof.map_or(0, |proof| proof.missing(recordings.len())) {
        0 => None,
        count => Some(Gap::Missing(count)),
    };
    let gap = missing.as_ref().or(gap);
    if recordings.is_empty() {
        return Ok(nothing_recorded(args, folder, gap));
    }
    let named = recordings
        .iter()
        .map(|name| given.unwrap_or(Path::new("")).join(name).display().to_string());
    let named: Vec<String> = named.collect();
    if args.no_report && !args.check && args.html.is_none() {
        eprintln!("culeak: recorded {}", Escaped(&named.join(", ")));
        return Ok(0);
    }
    let rules = if args.check {
        args.rules.rules()?
    } else {
        Rules::default()
    };
    let paths = recordings.iter().map(|name| folder.join(name));
    let paths: Vec<(PathBuf, String)> = paths.zip(named).collect();
    let mut kept = Vec::new();
    let code = write_where_asked(args, &rules, &paths, &mut kept);
    let code = code.and_then(|code| write_files(args, &rules, &kept).map(|()| code));
    let code = code.map_err(|failure| {
        let message = format!("{}; the recordings themselves are complete", failure.message);
        Failure { message, ..failure }
    })?;
    // One process has a recording, another one has none.
    let is_open = |gap: &&Gap| match gap {
        Gap::NotCreated(_) | Gap::Disabled | Gap::Missing(_) => true,
        Gap::NotChosen => !run.chooses,
        _ => false,
    };
    if let (true, Some(gap)) = (args.check, gap.filter(is_open)) {
        let why = gap.sentence(folder);
        eprintln!("culeak: no verdict on all processes: {}", Escaped(&why));
        return Ok(USAGE);
    }
    Ok(if args.check { code } else { 0 })
}

/// Says why, and with which exit code that ends: a gate does not pass on nothing.
fn nothing_recorded(args: &AfterArgs, folder: &Path, gap: Option<&Gap>) -> u8 {
    match gap {
        Some(gap) => eprintln!("culeak: nothing recorded: {}", Escaped(&gap.sentence(folder))),
        None => eprintln!(
            "culeak: nothing recorded: no process that ran under the recorder asked CUDA for memory; children started \
             without LD_PRELOAD are not seen; if one should have: culeak doctor"
        ),
    }
    if args.require_recording || (args.check && gap.is_some()) {
        eprintln!("culeak: no verdict, since there is no recording to judge");
        return USAGE;
    }
    0
}

/// File names of this run's recordings, in order.
fn recordings(folder: &Path, tag: &str) -> Vec<OsString> {
    let mark = environment::mark(tag);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_ours = |name: &OsString| {
        let name = name.to_string_lossy();
        name.contains(&mark) && name.ends_with(".culeak")
    };
    let mut names: Vec<OsString> = entries.map(|entry| entry.file_name()).filter(is_ours).collect();
    names.sort();
    names
}

/// To the file that was named, else to standard error, since stdout is the program's.
fn write_where_asked(
    args: &AfterArgs,
    rules: &Rules,
    recordings: &[(PathBuf, String)],
    kept: &mut Vec<Loaded>,
) -> Result<u8, Failure> {
    let Some(path) = &args.report_file else {
        let mut out = io::BufWriter::new(anstream::stderr());
        let code = text::columns::fitting(io::stderr(), || write(args, rules, recordings, kept, &mut out));
        let code = code.and_then(|code| out.flush().map(|()| code));
        return code.map_err(|error| Failure::new(format!("standard error: the report cannot be written: {error}")));
    };
    let mut code = 0;
    output::create(path, args.overwrite, |out| {
        let mut plain = anstream::StripStream::new(Vec::new());
        code = write(args, rules, recordings, kept, &mut plain)?;
        out.write_all(&plain.into_inner())
    })?;
    Ok(code)
}

/// The files that hold all processes at once.
fn write_files(args: &AfterArgs, rules: &Rules, kept: &[Loaded]) -> Result<(), Failure> {
    if let Some(path) = &args.verdict_file {
        output::create(path, args.overwrite, |out| {
            let mut plain = anstream::StripStream::new(Vec::new());
            write_verdicts(args, rules, kept, &mut plain)?;
            out.write_all(&plain.into_inner())
        })?;
    }
    let Some(path) = args.html.as_ref().filter(|_| !kept.is_empty()) else {
        return Ok(());
    };
    let options = ReportArgs {
        html: args.html.clone(),
        ..ReportArgs::of(Vec::new())
    };
    let items = kept.iter().map(|item| html::Item {
        snapshot: &item.snapshot,
        options: options.options(item.source.clone()),
        full_stacks: false,
    });
    let items: Vec<_> = items.collect();
    output::create(path, args.overwrite, |out| html::write_report(&items, out))
}

fn write_verdicts(args: &AfterArgs, rules: &Rules, kept: &[Loaded], out: &mut dyn Write) -> io::Result<()> {
    let verdicts = kept
        .iter()
        .map(|item| (item.source.as_str(), verdict(&item.snapshot, rules)));
    let verdicts: Vec<_> = verdicts.collect();
    check::write(args.format.unwrap_or(Format::Text), &verdicts, None, out)
}

/// Prints what was asked for, one process after the other, and says with which exit code it ends if all must pass. What
/// goes into one document with others is kept for it.
fn write(
    args: &AfterArgs,
    rules: &Rules,
    recordings: &[(PathBuf, String)],
    kept: &mut Vec<Loaded>,
    out: &mut dyn Write,
) -> io::Result<u8> {
    let one_document = args.verdict_file.is_some() || args.format.is_some_and(|format| format != Format::Text);
    let options = ReportArgs {
        top: args.top,
        ..ReportArgs::of(Vec::new())
    };
    let (mut passed, mut written, mut unreadable) = (true, 0, 0);
    for (path, source) in recordings {
        let item = match load::one(path) {
            Ok(mut item) => {
                item.source.clone_from(source);
                NameArgs::default().name_frames(&mut item);
                item
            }
            Err(failure) => {
                out.flush()?;
                progress::fail(&failure);
                unreadable += 1;
                continue;
            }
        };
        if recordings.len() > 1 && !(args.no_report && (one_document || !args.check)) {
            let gap = if written > 0 { "\n" } else { "" };
            writeln!(out, "{gap}== {} ==", Escaped(&item.source))?;
        }
        if !args.no_report {
            let report = Report::of(&item.snapshot, &options.options(item.source.clone()));
            text::report::write(&report, false, out)?;
        }
        if args.check {
            let verdict = verdict(&item.snapshot, rules);
            if !one_document {
                text::check::write(&verdict, &item.source, out)?;
            }
            passed &= verdict.passed;
        }
        written += 1;
        if args.html.is_some() || args.check && one_document {
            kept.push(item);
        }
    }
    if args.check && one_document && args.verdict_file.is_none() {
        write_verdicts(args, rules, kept, out)?;
    }
    Ok(match (unreadable, passed) {
        (0, true) => 0,
        (0, false) => LEAK,
        _ => USAGE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_runs_recordings_are_its_own() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [
            "app.k3f9.host.7.culeak",
            "app.abcd.host.7.culeak",
            "app.k3f9.host.7.json",
            "a.k3f9.h.8.culeak",
        ] {
            fs::write(folder.path().join(name), b"").expect("written");
        }
        assert_eq!(
            recordings(folder.path(), "k3f9"),
            ["a.k3f9.h.8.culeak", "app.k3f9.host.7.culeak"]
        );
        assert!(recordings(Path::new("/nonexistent"), "k3f9").is_empty());
    }
}
