//! The end of `run`: a report of every process that used CUDA, and a verdict with `--check`.
//!
//! The tag in their names identifies the recordings of this run. All output goes to stderr or to a file, since stdout belongs
//! to the program. Deliberately absent: waiting for processes that outlive the program, except a second for those that are about to
//! end; they are reported as running.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use culeak::analysis::check::{Rules, of_running_process, other_point, point_of};
use culeak::analysis::report::{Options, Report, shell_word};
use culeak::snapshot::ProcessState;

use super::check::conclude;
use crate::errors::{Failure, LEAK, USAGE};
use crate::escape::Escaped;
use crate::launch::environment;
use crate::launch::proof::{Gap, Proof};
use crate::load::{self, Loaded};
use crate::options::format::{self, Format};
use crate::options::rules::{RULE_OPTIONS, RuleArgs};
use crate::options::{NameArgs, rows_shown};
use crate::output::{self, Overwrite};
use crate::text::units;
use crate::{html, progress, text};

/// The options for what follows the run.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("limits")
    .args(RULE_OPTIONS)
    .multiple(true)
    .requires("check"))]
pub struct AfterArgs {
    /// Record only; print no report
    #[arg(long)]
    pub no_report: bool,

    /// Write the report to FILE instead of standard error
    #[arg(long, value_name = "FILE", conflicts_with = "no_report")]
    pub report_file: Option<PathBuf>,

    /// Also write the report of all processes as an HTML page
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,

    /// Show at most N call sites per process; 0: all [default: 20]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,

    /// Exit with code 1 if the program succeeded but leaked more than allowed; child processes without the preload library
    /// (no LD_PRELOAD, static, setuid) are not recorded
    #[arg(long)]
    pub check: bool,

    /// Exit with code 2 if no process was recorded, even if none requested memory from CUDA, or if one that should be was not;
    /// child processes without the preload library are not recorded
    #[arg(long)]
    pub require_recording: bool,

    /// Format of the verdict of --check [default: text]
    #[arg(long, value_enum, requires = "check")]
    pub format: Option<Format>,

    /// Write the verdict to FILE instead of after the report
    #[arg(long, value_name = "FILE", requires = "check")]
    pub verdict_file: Option<PathBuf>,

    #[command(flatten)]
    pub rules: RuleArgs,

    #[command(flatten)]
    pub overwrite: Overwrite,
}

impl AfterArgs {
    /// Checks output files and rules, so that mistakes are reported before the program runs.
    ///
    /// # Errors
    /// See [`RuleArgs::rules`] and [`output::check`].
    pub fn examine(&self) -> Result<(), Failure> {
        for path in [&self.report_file, &self.html, &self.verdict_file]
            .into_iter()
            .flatten()
        {
            if output::is_standard_output(path) {
                return Err(Failure::new(format!(
                    "{}: standard output belongs to the program; name a file for the report, the page or the verdict",
                    path.display()
                )));
            }
            output::check(path, self.overwrite)?;
        }
        // Verdicts are written as soon as each recording is read.
        if self.check && self.rules.rules()?.limits.outliers {
            return Err(Failure::new(
                "--fail-on outlier compares processes, whose recordings must be complete; run culeak check FOLDER --fail-on outlier \
                 afterwards",
            ));
        }
        Ok(())
    }
}

/// What else is known about the run.
pub struct Started<'a> {
    pub proof: Option<&'a Proof>,
    /// The pattern of programs that are recorded; `None`: all.
    pub only: Option<&'a str>,
    pub follows_children: bool,
}

/// Writes the report and the verdict; `given` is the output folder as the user named it. Returns the exit code of `run` for a
/// program that succeeded.
///
/// # Errors
/// A report, page or verdict cannot be written.
pub fn report(
    args: &AfterArgs,
    folder: &Path,
    given: Option<&Path>,
    tag: &str,
    gap: Option<&Gap>,
    run: &Started,
) -> Result<u8, Failure> {
    let left_running = match run.proof {
        Some(proof) if args.check && run.follows_children && args.rules.at.is_none() => {
            proof.left_running(&environment::tag_part(tag), run.only)
        }
        _ => Vec::new(),
    };
    // Afterwards: a process that has ended meanwhile has its recording here.
    let recordings = environment::recordings(folder, tag);
    let missing = match run.proof.map_or(0, |proof| proof.missing(recordings.len())) {
        0 => None,
        count => Some(Gap::Missing(count)),
    };
    let gap = missing.as_ref().or(gap);
    if recordings.is_empty() {
        let code = nothing_recorded(args, folder, gap);
        let is_left = code == 0 && lacks(args, &still_run(&left_running));
        return Ok(if is_left { USAGE } else { code });
    }
    let named = recordings
        .iter()
        .map(|name| given.unwrap_or(Path::new("")).join(name).display().to_string());
    let named: Vec<String> = named.collect();
    if args.no_report && !args.check && args.html.is_none() {
        progress::note(format_args!("recorded {}", Escaped(&named.join(", "))));
        let is_missing = lacks(args, &unrecorded(folder, gap, run));
        return Ok(if is_missing { USAGE } else { 0 });
    }
    let rules = if args.check {
        args.rules.rules()?
    } else {
        Rules::default()
    };
    let paths = recordings.iter().map(|name| folder.join(name));
    let paths: Vec<(PathBuf, String)> = paths.zip(named).collect();
    let mut loaded = Vec::new();
    let code = write_to_destination(args, &rules, &paths, &mut loaded);
    let code = code.and_then(|code| write_files(args, &rules, &loaded).map(|()| code));
    let code = code.map_err(|failure| {
        let message = format!("{}; the recordings are complete", failure.message);
        Failure { message, ..failure }
    })?;
    if paths.len() > 1 && !args.no_report {
        let command = format!("culeak report {}", shell_word(&job_of(folder, given, tag, paths.len())));
        progress::note(format_args!(
            "to compare these {} processes: {}",
            paths.len(),
            Escaped(&command)
        ));
    }
    let missing = [unrecorded(folder, gap, run), still_run(&left_running)].concat();
    let is_missing = lacks(args, &missing);
    Ok(match (args.check, code) {
        (true, LEAK) => code,
        _ if is_missing => USAGE,
        (true, _) => code,
        (false, _) => 0,
    })
}

/// Says what a run lacks, and returns whether that prevents a verdict.
fn lacks(args: &AfterArgs, missing: &[String]) -> bool {
    let accepts = args.check && args.rules.allow_losses && !args.require_recording;
    let result = match args.check {
        _ if accepts => "warning",
        true => "no verdict, since a process was not recorded",
        false => "--require-recording: a process was not recorded",
    };
    let accept = if args.check && !accepts {
        ", or accept it with --allow-losses"
    } else {
        ""
    };
    if missing.is_empty() || !(args.check || args.require_recording) {
        return false;
    }
    for what in missing {
        eprintln!("culeak: {result}: {}{accept}", Escaped(what));
    }
    !accepts
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

/// Why one process has a recording and another has none.
fn unrecorded(folder: &Path, gap: Option<&Gap>, run: &Started) -> Vec<String> {
    let prevents_verdict = |gap: &&Gap| match gap {
        Gap::NotCreated(_) | Gap::Disabled | Gap::Bypassed | Gap::Missing(_) => true,
        Gap::NotChosen => run.only.is_none() && run.follows_children,
        _ => false,
    };
    gap.filter(prevents_verdict)
        .map(|gap| gap.sentence(folder))
        .into_iter()
        .collect()
}

/// The folder of this run's recordings as an input, or a pattern if it has recordings of other runs.
fn job_of(folder: &Path, given: Option<&Path>, tag: &str, ours: usize) -> String {
    let given = given
        .filter(|given| !given.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let all = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "culeak"));
    match all.count() == ours {
        true => given.display().to_string(),
        false => given
            .join(format!("*{}*.culeak", environment::tag_part(tag)))
            .display()
            .to_string(),
    }
}

/// Prints why nothing was recorded, and returns the exit code: without a recording a check does not pass.
fn nothing_recorded(args: &AfterArgs, folder: &Path, gap: Option<&Gap>) -> u8 {
    match gap {
        Some(gap) => eprintln!("culeak: nothing recorded: {}", Escaped(&gap.sentence(folder))),
        None => eprintln!(
            "culeak: nothing recorded: no process with the preload library requested memory from CUDA; child processes \
             without LD_PRELOAD are not recorded; if you expected a recording, run culeak doctor"
        ),
    }
    if args.require_recording || (args.check && gap.is_some()) {
        eprintln!("culeak: no verdict, since there is no recording to judge");
        return USAGE;
    }
    0
}

/// Writes to the file that the user named, else to standard error.
fn write_to_destination(
    args: &AfterArgs,
    rules: &Rules,
    recordings: &[(PathBuf, String)],
    loaded: &mut Vec<Finished>,
) -> Result<u8, Failure> {
    let Some(path) = &args.report_file else {
        let mut out = io::BufWriter::new(anstream::stderr());
        let code = crate::document::columns::fitting(io::stderr(), || write(args, rules, recordings, loaded, &mut out));
        let code = code.and_then(|code| out.flush().map(|()| code));
        return code.map_err(|error| Failure::new(format!("standard error: the report cannot be written: {error}")));
    };
    let mut code = 0;
    output::create(path, args.overwrite, |out| {
        let mut plain = anstream::StripStream::new(Vec::new());
        code = write(args, rules, recordings, loaded, &mut plain)?;
        out.write_all(&plain.into_inner())
    })?;
    Ok(code)
}

/// Writes the files that cover all processes.
fn write_files(args: &AfterArgs, rules: &Rules, loaded: &[Finished]) -> Result<(), Failure> {
    if let Some(path) = &args.verdict_file {
        output::create(path, args.overwrite, |out| {
            let mut plain = anstream::StripStream::new(Vec::new());
            write_verdicts(args, rules, loaded, &mut plain)?;
            out.write_all(&plain.into_inner())
        })?;
    }
    let Some(path) = args.html.as_ref().filter(|_| !loaded.is_empty()) else {
        return Ok(());
    };
    let items = loaded.iter().map(|Finished { item, .. }| html::Item {
        snapshot: &item.snapshot,
        timeline: item.timeline.as_ref(),
        options: Options {
            top: None,
            source: item.source.clone(),
            points: item.points.clone(),
            ..Options::default()
        },
        full_stacks: false,
    });
    let items: Vec<_> = items.collect();
    output::create(path, args.overwrite, |out| html::write_report(&items, out))
}

fn write_verdicts(args: &AfterArgs, rules: &Rules, loaded: &[Finished], out: &mut dyn Write) -> io::Result<()> {
    let verdicts = loaded
        .iter()
        .map(|process| (process.item.source.as_str(), process.judged().verdict(rules)));
    let verdicts: Vec<_> = verdicts.collect();
    format::write(args.format.unwrap_or(Format::Text), &verdicts, None, out)
}

/// A process of the run.
struct Finished {
    /// At the point in time that reports show.
    item: Loaded,
    /// What the check judges, if it is at another point.
    judged: Option<Loaded>,
}

impl Finished {
    /// Reads a recording, with its events if they were logged and are wanted. `rules`: those of the check, if there is one.
    fn load(path: &Path, source: &str, rules: Option<&Rules>, events: bool) -> Result<Finished, Failure> {
        let names = NameArgs::default();
        let place = load::Place::File(path.to_path_buf());
        let mut item = match events {
            true => place.load_with_timeline()?,
            false => place.load()?,
        };
        source.clone_into(&mut item.source);
        let shown = item.snapshot.usual_point();
        let mut judged = None;
        if let Some(rules) = rules.filter(|rules| point_of(&item.snapshot, rules) != shown) {
            let mut other = load::one(path)?;
            source.clone_into(&mut other.source);
            load::at::judge(&mut other, rules, &names)?;
            judged = Some(other);
        }
        load::at::show(&mut item, None, &names)?;
        if let (Some(rules), None) = (rules, &judged)
            && let Some(reason) = other_point(&item.snapshot, rules)
        {
            return Err(Failure::new(format!("{source}: {reason}")));
        }
        if item.snapshot.process.state == ProcessState::Running && rules.is_some_and(|rules| rules.at.is_none()) {
            judged.as_mut().unwrap_or(&mut item).unseen.push(of_running_process());
        }
        let unseen = load::of_early_copy(path).filter(|_| rules.is_some());
        judged.as_mut().unwrap_or(&mut item).unseen.extend(unseen);
        Ok(Finished { item, judged })
    }

    fn judged(&self) -> &Loaded {
        self.judged.as_ref().unwrap_or(&self.item)
    }
}

/// Writes the report and the verdict of each process, and returns the exit code if all must pass. Snapshots that a document
/// about all processes needs are added to `loaded`.
fn write(
    args: &AfterArgs,
    rules: &Rules,
    recordings: &[(PathBuf, String)],
    loaded: &mut Vec<Finished>,
    out: &mut dyn Write,
) -> io::Result<u8> {
    let one_document = args.verdict_file.is_some() || args.format.is_some_and(|format| format != Format::Text);
    let (mut outcomes, mut written, mut unreadable) = (Vec::new(), 0, 0);
    for (path, source) in recordings {
        let process = match Finished::load(path, source, args.check.then_some(rules), args.html.is_some()) {
            Ok(process) => process,
            Err(failure) => {
                out.flush()?;
                progress::fail(&failure);
                unreadable += 1;
                continue;
            }
        };
        let item = &process.item;
        if recordings.len() > 1 && !(args.no_report && (one_document || !args.check)) {
            let gap = if written > 0 { "\n" } else { "" };
            writeln!(out, "{gap}== {} ==", Escaped(&item.source))?;
        }
        if !args.no_report {
            let options = Options {
                top: rows_shown(args.top, true),
                source: item.source.clone(),
                points: item.points.clone(),
                ..Options::default()
            };
            let report = Report::of(&item.snapshot, &options);
            text::report::page(&report, text::report::Extent::default()).text(out)?;
        }
        if args.check {
            let verdict = process.judged().verdict(rules);
            if !one_document {
                text::check::page(&verdict, &item.source).text(out)?;
            }
            outcomes.push(verdict.outcome);
        }
        written += 1;
        if args.html.is_some() || args.check && one_document {
            loaded.push(process);
        }
    }
    if args.check && one_document && args.verdict_file.is_none() {
        write_verdicts(args, rules, loaded, out)?;
    }
    out.flush()?;
    Ok(match args.check {
        true => conclude(outcomes.into_iter(), unreadable),
        false => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
