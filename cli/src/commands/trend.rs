//! `culeak trend`: growth of call sites over many snapshots.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use culeak::analysis::categories::Categories;
use culeak::analysis::report::shell_word;
use culeak::analysis::trend::{Against, Options, POINTS_NEEDED, Summary, Trend, lineages, programs};

use crate::document::counted;
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::load::Loaded;
use crate::options::output::{Form, OutputArgs};
use crate::options::selection::Selection;
use crate::options::view::View;
use crate::options::{NameArgs, rows_shown};
use crate::{progress, text, usage};

mod inputs;
mod watch;

/// Exit code for growth under `--fail-on growing`.
const GROWTH: u8 = 1;

/// Show which call sites grow over many snapshots, how fast, and with what confidence
#[derive(Debug, Args)]
#[command(mut_arg("force", |force| force.help("Treat snapshots of different programs as one program, and replace existing files")))]
#[command(after_help = "\
Inputs are snapshots (JSON), recordings, automatic snapshots beside them (--snapshot every:TIME,mark), or folders of \
these. They are sorted by time; concurrent processes are judged separately.

Exit codes: 0 done, 1 growth (with --fail-on growing), 2 wrong usage, unreadable input, or too few snapshots or no marks for --fail-on, or \
something else that it did not judge.

Examples:
  culeak trend --pid 4711 --every 30s --for 10m      take snapshots, then report
  culeak trend monday.json tuesday.json …            snapshots taken earlier
  culeak run -o runs --snapshot every:30s -- ./serve take automatic snapshots; afterwards:
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
    /// Also show call sites that never changed
    #[arg(long)]
    pub all: bool,
    /// Exit with code 1 if a call site is growing, or grew until the program ended and freed it only at exit
    #[arg(long, value_enum, value_name = "CLASS")]
    pub fail_on: Option<FailOn>,
    /// With --fail-on, pass although something was not judged, such as a process with too few snapshots
    #[arg(long, requires = "fail_on")]
    pub allow_losses: bool,
    /// Show each of several concurrent processes by itself, not all as one job; implied by -o FILE.html
    #[arg(long)]
    pub per_process: bool,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub view: View,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub names: NameArgs,
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
    let form = args.output.form()?;
    let options = args.options(form);
    let (mut summaries, unreadable) = match args.pid {
        Some(pid) => watch::summaries(pid, args, &options)?,
        None => inputs::summaries(args, &options)?,
    };
    unify_programs(&mut summaries, args.output.overwrite.force)?;
    let lineages = lineages(summaries);
    if lineages.len() > 1 && !args.per_process && form != Form::Html {
        return super::job_trend::execute(args, lineages, &options, unreadable, form);
    }
    let trends: Vec<Trend> = lineages.iter().map(|lineage| Trend::of(lineage, &options)).collect();
    let title = match trends.as_slice() {
        [one] => format!("culeak trend: {}", one.program),
        several => format!("culeak trend: {} processes", several.len()),
    };
    // In text, each names its program itself.
    let name = |trend: &Trend| match form {
        Form::Html => trend.program.to_string(),
        _ => String::new(),
    };
    let named: Vec<(String, Trend)> = trends.into_iter().map(|trend| (name(&trend), trend)).collect();
    let selected = args.selection.again();
    let page = |trend: &Trend| text::trend::page(trend, form == Form::Html, &selected);
    args.output.pages(form, &title, &named, page)?;
    let mut judgement = Judgement::default();
    named.iter().for_each(|(_, trend)| judgement.add(trend));
    judgement.verdict(args, unreadable).map(ExitCode::from)
}

impl TrendArgs {
    fn summary(&self, mut item: Loaded, options: &Options) -> Summary {
        usage::ask_driver(&mut item);
        self.names.name_frames(&mut item);
        Summary::of(&item.snapshot, item.source, options)
    }

    fn options(&self, form: Form) -> Options {
        Options {
            by: self.view.by.unwrap_or_default(),
            against: match self.against {
                Axis::Time => Against::Time,
                Axis::Marks => Against::Marks,
            },
            filter: self.selection.filter(&Categories::none()),
            top: rows_shown(self.selection.top, !matches!(form, Form::Json | Form::Html)),
            min_bytes: self.selection.min_bytes,
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

/// What `--fail-on` needs to know of all trends.
#[derive(Default)]
pub(super) struct Judgement {
    growing: bool,
    /// A process has enough snapshots.
    enough: bool,
    /// A process has enough snapshots, and after enough marks if those are compared.
    enough_marks: bool,
    most_points: usize,
    processes: usize,
    /// Processes with too few snapshots or marks.
    short: usize,
    /// What else was not judged, each with a file of the process.
    unjudged: Vec<String>,
}

impl Judgement {
    pub(super) fn add(&mut self, trend: &Trend) {
        // What a process left at its end is not compared.
        let points =
            (trend.processes.iter()).map(|process| process.points.saturating_sub(usize::from(process.finished)));
        self.growing |= trend.is_growing();
        self.enough |= !trend.too_few;
        self.enough_marks |= !trend.too_few && !trend.too_few_marks;
        self.most_points = self.most_points.max(points.max().unwrap_or(0));
        self.processes += trend.processes.len();
        self.short += trend.short_processes;
        let source = trend.points.last().map_or("", |point| &point.source);
        let unjudged = trend.unjudged.iter();
        self.unjudged
            .extend(unjudged.map(|sentence| format!("{source}: {sentence}")));
    }

    /// The exit code. Without a judgement `--fail-on` does not pass.
    pub(super) fn verdict(&self, args: &TrendArgs, unreadable: usize) -> Result<u8, Failure> {
        if args.fail_on.is_some() && self.growing {
            return Ok(GROWTH);
        }
        if unreadable > 0 {
            return Ok(USAGE);
        }
        if args.fail_on.is_some() && !self.enough {
            return Err(Failure::new(format!(
                "--fail-on needs {POINTS_NEEDED} snapshots of a process, but no process has more than {}; \
                 take snapshots more often or for longer (--every, --for; culeak run --snapshot every:TIME)",
                self.most_points
            )));
        }
        if args.fail_on.is_some() && !self.enough_marks {
            return Err(Failure::new(format!(
                "--fail-on with --against marks needs snapshots after {POINTS_NEEDED} different marks of a process (culeak_mark), \
                 but no process has as many; set more marks and take snapshots at them (culeak run --snapshot mark), or \
                 leave out --against marks"
            )));
        }
        Ok(args.fail_on.map_or(0, |_| self.unless_unjudged(args)))
    }

    /// Says what was not judged. It prevents a pass, unless the user accepts it.
    fn unless_unjudged(&self, args: &TrendArgs) -> u8 {
        /// A sentence for each of a thousand processes does not help.
        const SENTENCES: usize = 10;
        let short = (self.short > 0).then(|| {
            let unit = if args.against == Axis::Marks { "marks" } else { "snapshots" };
            format!(
                "{} of {} processes have fewer than {POINTS_NEEDED} {unit}, so their growth was not judged; take more, or name the \
                 files of the other processes",
                self.short, self.processes
            )
        });
        let all: Vec<&String> = short.iter().chain(&self.unjudged).collect();
        let rest = all.len().saturating_sub(SENTENCES);
        let rest = (rest > 0).then(|| {
            let rest = counted(rest, "more sentence");
            format!("{rest} of this kind are not shown; name the files of fewer processes to see them")
        });
        for sentence in all.iter().copied().take(SENTENCES).chain(&rest) {
            match args.allow_losses {
                true => progress::say(format_args!("warning: {} (--allow-losses)", Escaped(sentence))),
                false => progress::fail(&Failure::new(format!(
                    "--fail-on growing: {sentence}, or accept it with --allow-losses"
                ))),
            }
        }
        match all.is_empty() || args.allow_losses {
            true => 0,
            false => USAGE,
        }
    }
}
