//! `culeak run`: records a program, then reports what it leaked: each process, or the ranks of a job together.
//!
//! All output goes to stderr or to a file, since stdout belongs to the program.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use culeak::analysis::job::identity::rank_of;
use culeak::analysis::report::shell_word;
use culeak::reader;

use super::program::{self, Ended, ProgramArgs};
use super::report::{self, ReportArgs};
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::options::groups;
use crate::options::output::{Form, OutputArgs};
use crate::options::selection::Selection;
use crate::output::{self, Overwrite};
use crate::progress;

/// Run a program, record its GPU memory, and report what it leaked
#[derive(Debug, Args)]
#[command(mut_args(groups::sort))]
#[command(after_help = "\
Recordings are named PROGRAM.RUN.HOST.PID.culeak; RUN is four random characters. \
A recording can be read at any time, however the process ends.

Exit code: the program's own, or 128+N if signal N ended it; 126 if it cannot be executed; 127 if it is not found. \
If the program succeeded: 2 if culeak could not record or report it, else 0; culeak check -- COMMAND fails if it leaked.

Examples:
  culeak run -- python train.py
  culeak run --why -- python train.py
  culeak run -o runs --timeline -- ./app
  culeak run --html report.html -- ./app
  culeak run -o runs --only 'python*' -- ./pipeline.sh
  culeak run --record nvtx,jax -- python train.py
  culeak run --snapshot peak:64MiB,every:30s -- ./serve")]
pub struct RunArgs {
    #[command(flatten)]
    pub program: ProgramArgs,

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

    #[command(flatten)]
    pub overwrite: Overwrite,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

pub fn execute(args: &RunArgs) -> Result<ExitCode, Failure> {
    // Mistakes are reported before the program runs.
    for path in [&args.report_file, &args.html].into_iter().flatten() {
        output::check_beside_program(path, args.overwrite)?;
    }
    let ended = program::record(&args.program, &args.command, None)?;
    ended.finish(|recordings| report(args, &ended, recordings))
}

/// Writes the report of every process that used CUDA.
fn report(args: &RunArgs, ended: &Ended, recordings: &[OsString]) -> Result<u8, Failure> {
    if args.no_report && args.html.is_none() {
        program::mention(recordings);
        return Ok(0);
    }
    let mut is_complete = true;
    let is_job = is_job(recordings);
    let text = (!args.no_report).then_some((Form::Text, &args.report_file, args.top));
    let page = args.html.is_some().then_some((Form::Html, &args.html, None));
    for (form, file, top) in text.into_iter().chain(page) {
        let report = ReportArgs {
            inputs: recordings.to_vec(),
            per_process: !is_job || form == Form::Html,
            selection: Selection {
                top,
                ..Selection::default()
            },
            output: OutputArgs {
                output: file.clone(),
                overwrite: args.overwrite,
                on_stderr: true,
                ..OutputArgs::default()
            },
            ..ReportArgs::default()
        };
        let written = report::execute_as(&report, form);
        let kept = |failure: Failure| match file {
            Some(_) => Failure::with_exit(format!("{}; the recordings are kept", failure.message), failure.exit),
            None => failure,
        };
        is_complete &= written.map_err(kept)? == ExitCode::SUCCESS;
    }
    if recordings.len() > 1 && !args.no_report {
        let (what, option) = match is_job {
            true => ("report each of", " --per-process"),
            false => ("compare", ""),
        };
        let command = format!("culeak report {}{option}", shell_word(&ended.job()));
        progress::note(format_args!(
            "to {what} these {} processes: {}",
            recordings.len(),
            Escaped(&command)
        ));
    }
    Ok(if is_complete { 0 } else { USAGE })
}

/// Whether the program started several ranks, so one report of all says more than one of each.
fn is_job(recordings: &[OsString]) -> bool {
    let rank = |recording: &OsString| rank_of(&reader::identity(Path::new(recording)).ok()?.ranks);
    recordings.iter().filter_map(rank).collect::<BTreeSet<_>>().len() > 1
}
