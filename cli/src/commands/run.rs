//! `culeak run`: a program under the preload library, then the report of what it left behind.
//!
//! Everything the program sees stays as it was (stdin, stdout, stderr, signals, terminal); it gets two more things in
//! its environment, `LD_PRELOAD` and the `CULEAK_…` settings, and so do its children. Our own words go to stderr, so
//! that the program's output can still be piped. Deliberately absent: changes to our own environment.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use culeak::analysis::report::shell_word;

use super::after_run::{self, AfterArgs};
use super::record::{self, RecordArgs};
use crate::config::ConfigArgs;
use crate::errors::Failure;
use crate::escape::Escaped;
use crate::proof::Gap;
use crate::text::units;
use crate::{environment, preload, progress, supervise};

/// Run a program, record its GPU memory, and report what is left when it ends
#[derive(Debug, Args)]
#[command(after_help = "\
The recordings are named PROGRAM.RUN.HOST.PID.culeak, with four random characters for RUN. \
They are complete at every instant, whatever ends the process.

Exit code: the program's own, or 128+N when signal N ended it; 126 when it cannot be executed, 127 when there is no such \
program. If it succeeded: 1 when --check found a leak, 2 when culeak itself failed, or when --check has no recording to judge \
although CUDA was or may have been used.

Examples:
  culeak run -- python train.py
  culeak run -o runs --only 'python*' -- ./pipeline.sh
  culeak run --html report.html -- ./app
  culeak run --check --max-leaked 1MiB --report-file leaks.txt -- ./tests
  culeak run --check --format junit --verdict-file leaks.xml -- ./tests")]
pub struct RunArgs {
    #[command(flatten)]
    pub record: RecordArgs,

    #[command(flatten)]
    pub after: AfterArgs,

    #[command(flatten)]
    pub config: ConfigArgs,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

pub fn execute(args: &RunArgs) -> Result<ExitCode, Failure> {
    args.after.examine()?;
    let mut prepared = record::prepare(&args.record, &args.command)?;
    let ended = supervise::run(&mut prepared.command).map_err(|error| {
        let shown = prepared.executable.display();
        Failure::with_exit(format!("{shown}: cannot be executed: {error}"), preload::NOT_EXECUTABLE)
    })?;
    let code = supervise::shell_code(ended.status);
    let gap = match &prepared.proof {
        _ if prepared.blind => Some(Gap::Obstacle),
        Some(proof) => proof.gap(ended.name.as_deref()),
        None => Some(Gap::Unknown),
    };
    let verdict = after_run::look(
        &args.after,
        &prepared.folder,
        args.record.output.as_deref(),
        &prepared.tag,
        gap.as_ref(),
        &after_run::Started {
            proof: prepared.proof.as_ref(),
            chooses: args.record.only.is_some() || args.record.no_follow_children,
        },
    );
    name_auto_snapshots(&prepared.folder, &prepared.tag);
    match verdict {
        // What the program says about itself comes first.
        _ if code != 0 => {
            verdict.inspect_err(progress::fail).ok();
            Ok(ExitCode::from(code))
        }
        verdict => verdict.map(ExitCode::from),
    }
}

/// Snapshots kept while the program ran are no recordings of a process, so they are named and not reported.
fn name_auto_snapshots(folder: &Path, tag: &str) {
    let mark = environment::mark(tag);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names
        .filter(|name| name.contains(&mark) && name.ends_with(".culeak-snapshot"))
        .collect();
    names.sort();
    if let Some(first) = names.first() {
        let snapshots = units::plural(names.len() as u64, "automatic snapshot", "automatic snapshots");
        let shown = folder.display().to_string();
        let first = shell_word(&folder.join(first).display().to_string());
        eprintln!(
            "culeak: kept {snapshots} in {}; see: culeak report {}",
            Escaped(&shown),
            Escaped(&first)
        );
    }
}
