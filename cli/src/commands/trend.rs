//! `culeak trend`: growth of call sites over many snapshots.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use culeak::analysis::report::{By, shell_word};
use culeak::analysis::trend::{Against, Options, POINTS_NEEDED, Summary, Trend, lineages, programs};
use culeak::kind::Kind;

use crate::errors::{Failure, USAGE};
use crate::options::{NameArgs, kind_parser, rows_shown};
use crate::output::{self, Overwrite};
use crate::{html, load, text};

mod inputs;
mod watch;

/// Exit code for growth under `--fail-on growing`.
const GROWTH: u8 = 1;

/// Show which call sites grow over many snapshots, how fast, and with what confidence
#[derive(Debug, Args)]
#[command(mut_arg("force", |force| force.help("Treat snapshots of different programs as one program, and replace existing files")))]
#[command(after_help = "\
Inputs are snapshots (JSON), recordings, automatic snapshots beside them (--snapshot-every, --snapshot-at-mark), or folders of \
these. They are sorted by time; concurrent processes are judged separately.

Exit codes: 0 done, 1 growth (with --fail-on growing), 2 wrong usage, unreadable input, or too few snapshots or no marks for --fail-on.

Examples:
  culeak trend --pid 4711 --every 30s --for 10m      take snapshots, then report
  culeak trend monday.json tuesday.json …            snapshots taken earlier
  culeak run -o runs --snapshot-every 30s -- ./serve take automatic snapshots; afterwards:
  culeak trend runs --fail-on growing
  culeak trend runs --only serve                     one of several programs in the folder
  culeak trend runs --per-process                    each rank of a job by itself")]
pub struct TrendArgs {
    /// Snapshots, recordings, automatic snapshots, or folders of them
    #[arg(value_name = "FILE|FOLDER", required_unless_present = "pid")]
    pub inputs: Vec<OsString>,
    /// Use only snapshots of this program, e.g. serve, train.py, 'python *'; * and ? are wildcards
    #[arg(long, value_name = "PATTERN", conflicts_with = "pid")]
    pub only: Option<String>,
    /// Take snapshots of this process now, without stopping it
    #[arg(long, value_name = "PID", conflicts_with = "inputs")]
    pub pid: Option<u32>,
    /// Interval between snapshots, e.g. 500ms, 30s, 10m
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "pid", value_parser = text::units::parse_duration)]
    pub every: Duration,
    /// Stop after TIME [default: when the process ends or at Ctrl-C; both report the snapshots taken]
    #[arg(long = "for", value_name = "TIME", requires = "pid", value_parser = text::units::parse_duration)]
    pub lasting: Option<Duration>,
    /// Measure growth against time, or against marks that the program sets (culeak_mark)
    #[arg(long, value_enum, default_value = "time")]
    pub against: Axis,
    /// site: one row per call site; stack: one row per stack
    #[arg(long, default_value = "site", value_parser = ["site", "stack"])]
    pub by: String,
    /// Show only this kind of memory; repeatable
    #[arg(long, value_name = "KIND", value_parser = kind_parser(), hide_possible_values = true)]
    pub kind: Vec<Kind>,
    /// Show at most N rows; 0: all [default: 20; all with --json or --html]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Hide call sites that never held SIZE
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = text::units::parse_size)]
    pub min_bytes: u64,
    /// Also show call sites that never changed
    #[arg(long)]
    pub all: bool,
    /// Exit with code 1 if a call site is growing
    #[arg(long, value_enum, value_name = "CLASS")]
    pub fail_on: Option<FailOn>,
    /// Print the trend as JSON; with --per-process, an array if there are several concurrent processes
    #[arg(long)]
    pub json: bool,
    /// Show each of several concurrent processes by itself, not all as one job; implied by --html
    #[arg(long)]
    pub per_process: bool,
    /// Write the trend as a self-contained HTML page with charts; -: standard output
    #[arg(long, value_name = "FILE.html", conflicts_with = "json")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Axis {
    Time,
    Marks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    Growing,
}

pub fn execute(args: &TrendArgs) -> Result<ExitCode, Failure> {
    if let Some(path) = &args.html {
        output::check(path, args.overwrite)?;
    }
    load::segments::refuse(&args.kind, "culeak trend")?;
    let options = args.options();
    let (mut summaries, unreadable) = match args.pid {
        Some(pid) => (watch::summaries(pid, args, &options)?, 0),
        None => inputs::summaries(args, &options)?,
    };
    unify_programs(&mut summaries, args.overwrite.force)?;
    let lineages = lineages(summaries);
    if lineages.len() > 1 && !args.per_process && args.html.is_none() {
        return super::job_trend::execute(args, lineages, &options, unreadable);
    }
    let trends: Vec<Trend> = lineages.iter().map(|lineage| Trend::of(lineage, &options)).collect();
    if let Some(path) = &args.html {
        let title = match trends.as_slice() {
            [one] => format!("culeak trend: {}", one.program),
            several => format!("culeak trend: {} processes", several.len()),
        };
        let page = |trend: &Trend| (trend.program.to_string(), text::trend::page(trend, true));
        let pages = trends.iter().map(page).collect();
        output::create(path, args.overwrite, |out| html::write(&title, pages, out))?;
    } else if args.json {
        match trends.as_slice() {
            [one] => text::print_json(one)?,
            several => text::print_json(&several)?,
        }
    } else {
        text::print_lines(|out| {
            for (nth, trend) in trends.iter().enumerate() {
                if nth > 0 {
                    writeln!(out)?;
                }
                text::trend::page(trend, false).text(out)?;
            }
            Ok(())
        })?;
    }
    verdict(args, &trends, unreadable).map(ExitCode::from)
}

impl TrendArgs {
    fn options(&self) -> Options {
        Options {
            by: By::from_name(&self.by).unwrap_or(By::Site),
            against: match self.against {
                Axis::Time => Against::Time,
                Axis::Marks => Against::Marks,
            },
            kinds: self.kind.clone(),
            top: rows_shown(self.top, !self.json && self.html.is_none()),
            min_bytes: self.min_bytes,
            all: self.all,
        }
    }
}

/// Refuses snapshots of different programs, whose growth has no meaning; with `force`, treats them as one program.
fn unify_programs(summaries: &mut [Summary], force: bool) -> Result<(), Failure> {
    if force {
        let mut instants: Vec<_> = summaries.iter_mut().flat_map(|summary| &mut summary.instants).collect();
        let program = instants
            .first()
            .map(|first| first.member.program.clone())
            .unwrap_or_default();
        for instant in &mut instants {
            instant.member.program = program.clone();
        }
        return Ok(());
    }
    let names: Vec<String> = programs(summaries).iter().map(ToString::to_string).collect();
    if names.len() > 1 {
        return Err(Failure::new(format!(
            "snapshots of different programs: {}; choose one with --only {}, or treat them as one with --force",
            names.join(", "),
            shell_word(&names[0])
        )));
    }
    Ok(())
}

/// The exit code. Without a judgement `--fail-on` does not pass.
fn verdict(args: &TrendArgs, trends: &[Trend], unreadable: usize) -> Result<u8, Failure> {
    let points = trends
        .iter()
        .flat_map(|trend| &trend.processes)
        .map(|process| process.points);
    let judgement = Judgement {
        growing: trends.iter().any(Trend::is_growing),
        too_few: trends.iter().all(|trend| trend.too_few),
        too_few_marks: trends.iter().all(|trend| trend.too_few || trend.too_few_marks),
        most_points: points.max().unwrap_or(0),
    };
    judgement.verdict(args, unreadable)
}

/// What `--fail-on` needs to know of all trends.
pub(super) struct Judgement {
    pub growing: bool,
    /// No process has enough snapshots.
    pub too_few: bool,
    /// No process has enough snapshots, or after enough marks if those are compared.
    pub too_few_marks: bool,
    pub most_points: usize,
}

impl Judgement {
    pub(super) fn verdict(&self, args: &TrendArgs, unreadable: usize) -> Result<u8, Failure> {
        if args.fail_on.is_some() && self.growing {
            return Ok(GROWTH);
        }
        if unreadable > 0 {
            return Ok(USAGE);
        }
        if args.fail_on.is_some() && self.too_few {
            return Err(Failure::new(format!(
                "--fail-on needs {POINTS_NEEDED} snapshots of a process, but no process has more than {}; \
                 take snapshots more often or for longer (--every, --for; culeak run --snapshot-every TIME)",
                self.most_points
            )));
        }
        if args.fail_on.is_some() && self.too_few_marks {
            return Err(Failure::new(format!(
                "--fail-on with --against marks needs snapshots after {POINTS_NEEDED} different marks of a process (culeak_mark), \
                 but no process has as many; set more marks and take snapshots at them (culeak run --snapshot-at-mark), or \
                 leave out --against marks"
            )));
        }
        Ok(0)
    }
}
