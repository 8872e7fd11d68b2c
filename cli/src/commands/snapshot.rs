//! `culeak snapshot`: one instant of a process as a JSON file that needs neither the process nor its binaries.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::NameArgs;
use crate::errors::Failure;
use crate::output::{self, Overwrite};
use crate::{json, load, usage};

/// Write what a process holds right now to a JSON file, without stopping it
#[derive(Debug, Args)]
#[command(after_help = "\
The format is described by docs/snapshot.schema.json. Like a recording, the file can be read by its owner alone.

Examples:
  culeak snapshot --list                 which processes can be looked at
  culeak snapshot 4711 -o before.json
  culeak snapshot 4711 -o - | ssh desk culeak report -")]
pub struct SnapshotArgs {
    /// Process id, recording or snapshot
    #[arg(value_name = "PID|RECORDING", required_unless_present = "list")]
    pub input: Option<OsString>,
    /// Where to write; - for standard output
    #[arg(short, long, value_name = "FILE.json", required_unless_present = "list")]
    pub output: Option<PathBuf>,
    /// Keep addresses only; names can be looked up later where the binaries are
    #[arg(long)]
    pub no_symbols: bool,
    #[command(flatten)]
    pub names: NameArgs,
    /// List the processes of this user that are being recorded
    #[arg(long, conflicts_with_all = ["input", "output"])]
    pub list: bool,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

pub fn execute(args: &SnapshotArgs) -> Result<ExitCode, Failure> {
    let (Some(input), Some(path)) = (&args.input, &args.output) else {
        return super::list::execute();
    };
    output::check(path, args.overwrite)?;
    let mut loaded = load::one_with_totals(input)?;
    usage::ask_driver(&mut loaded);
    if !args.no_symbols {
        args.names.name_frames(&mut loaded);
    }
    output::create_private(path, args.overwrite, |out| {
        json::write(&mut *out, &loaded.snapshot)?;
        writeln!(out)
    })?;
    Ok(ExitCode::SUCCESS)
}
