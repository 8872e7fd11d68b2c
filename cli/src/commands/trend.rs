//! `culeak trend`: growth of call sites over many snapshots.

use std::process::ExitCode;

use culeak::analysis::job::{self, trend::Job};
use culeak::analysis::report::shell_word;
use culeak::analysis::trend::{Options, POINTS_NEEDED, Summary, Trend, lineages, programs};

use crate::document::counted;
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::options::output::Form;
use crate::progress::{self, Progress, Unit};
use crate::text;
use args::Axis;

mod args;
mod inputs;
mod watch;

pub use args::TrendArgs;

/// Exit code for growth under `--fail-on growing`.
const GROWTH: u8 = 1;

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
        return of_job(args, lineages, &options, unreadable, form);
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

/// Judges each process, and prints what they have in common.
///
/// # Errors
/// `--fail-on` is given, and no process can be judged.
fn of_job(
    args: &TrendArgs,
    lineages: Vec<Summary>,
    options: &Options,
    unreadable: usize,
    form: Form,
) -> Result<ExitCode, Failure> {
    // Only the rows of the job are cut.
    let each = Options {
        top: None,
        min_bytes: 0,
        ..options.clone()
    };
    let mut job = Job::default();
    let mut judgement = Judgement::default();
    let progress = Progress::over("judging", lineages.len() as u64, Unit::Of("processes"));
    for lineage in lineages {
        let trend = Trend::of(&lineage, &each);
        judgement.add(&trend);
        job.add(&trend);
        progress.advance(1);
    }
    drop(progress);
    let trend = job.finish(&job::Options {
        top: options.top,
        min_bytes: options.min_bytes,
        ..job::Options::default()
    });
    args.output.page(form, "culeak trend: job", &trend, || {
        text::job::trend::page(&trend, &args.selection.again())
    })?;
    judgement.verdict(args, unreadable).map(ExitCode::from)
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
struct Judgement {
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
    fn add(&mut self, trend: &Trend) {
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
    fn verdict(&self, args: &TrendArgs, unreadable: usize) -> Result<u8, Failure> {
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
