//! `culeak run`: records a program, then reports what it leaked.
//!
//! All output goes to stderr or to a file, since stdout belongs to the program.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use culeak::analysis::report::{Options, Report, shell_word};

use super::program::{self, Ended, ProgramArgs};
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::load::{self, Loaded};
use crate::options::{NameArgs, groups, rows_shown};
use crate::output::{self, Overwrite};
use crate::{html, progress, text};

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
    let mut read = Read::default();
    let written = write_to_destination(args, recordings, &mut read);
    let written = written.and_then(|()| write_page(args, &read.loaded));
    written.map_err(|failure| {
        let message = format!("{}; the recordings are complete", failure.message);
        Failure { message, ..failure }
    })?;
    if recordings.len() > 1 && !args.no_report {
        let command = format!("culeak report {}", shell_word(&ended.job()));
        progress::note(format_args!(
            "to compare these {} processes: {}",
            recordings.len(),
            Escaped(&command)
        ));
    }
    Ok(if read.has_failed { USAGE } else { 0 })
}

/// The recordings that were read.
#[derive(Default)]
struct Read {
    /// Those that the page needs.
    loaded: Vec<Loaded>,
    /// One could not be read.
    has_failed: bool,
}

/// Writes to the file that the user named, else to standard error.
fn write_to_destination(args: &RunArgs, recordings: &[OsString], read: &mut Read) -> Result<(), Failure> {
    let Some(path) = &args.report_file else {
        return text::to_stderr(|out| write(args, recordings, read, out));
    };
    output::create_plain(path, args.overwrite, |out| write(args, recordings, read, out))
}

fn write_page(args: &RunArgs, loaded: &[Loaded]) -> Result<(), Failure> {
    let Some(path) = args.html.as_ref().filter(|_| !loaded.is_empty()) else {
        return Ok(());
    };
    let items = loaded.iter().map(|item| html::Item {
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

/// Reads a recording, with its events if they were logged and are wanted.
fn load(recording: &OsString, events: bool) -> Result<Loaded, Failure> {
    let place = load::Place::File(PathBuf::from(recording));
    let mut item = match events {
        true => place.load_with_timeline()?,
        false => place.load()?,
    };
    load::at::show(&mut item, None, &NameArgs::default())?;
    Ok(item)
}

/// Writes the report of each process; those that cannot be read are reported.
fn write(args: &RunArgs, recordings: &[OsString], read: &mut Read, out: &mut dyn Write) -> io::Result<()> {
    let mut gap = "";
    for recording in recordings {
        let item = match load(recording, args.html.is_some()) {
            Ok(item) => item,
            Err(failure) => {
                out.flush()?;
                progress::fail(&failure);
                read.has_failed = true;
                continue;
            }
        };
        if !args.no_report {
            if recordings.len() > 1 {
                writeln!(out, "{gap}== {} ==", Escaped(&item.source))?;
                gap = "\n";
            }
            let options = Options {
                top: rows_shown(args.top, true),
                source: item.source.clone(),
                points: item.points.clone(),
                ..Options::default()
            };
            let report = Report::of(&item.snapshot, &options);
            text::report::page(&report, text::report::Extent::default()).text(out)?;
        }
        if args.html.is_some() {
            read.loaded.push(item);
        }
    }
    out.flush()
}
