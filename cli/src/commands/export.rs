//! `culeak export`: what a process holds, in the format of another tool.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use culeak::kind::Kind;
use culeak::profile::{self, Profile};

use crate::errors::Failure;
use crate::export::folded::{self, Cost};
use crate::export::names::Detail;
use crate::load;
use crate::output::{self, Overwrite};

/// Write what a process holds in the format of another tool
#[derive(Debug, Args)]
#[command(after_help = "\
What each format can show, and what it cannot: docs/formats.md.

Examples:
  culeak export 4711 --format pprof -o gpu.pb.gz         then: pprof -http=: gpu.pb.gz
  culeak export 4711 --format folded -o - | flamegraph.pl > gpu.svg")]
pub struct ExportArgs {
    /// Process id, recording or snapshot
    #[arg(value_name = "PID|RECORDING|SNAPSHOT")]
    pub input: String,
    #[arg(short, long, value_name = "FORMAT")]
    pub format: Format,
    /// Where to write; - for standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Only this kind of memory; repeatable
    #[arg(long, value_name = "KIND", value_parser = super::parse_kind)]
    pub kind: Vec<Kind>,
    /// folded: what the number of a line counts
    #[arg(long, default_value = "bytes")]
    pub cost: Cost,
    /// Frames inside the CUDA runtime and below main too
    #[arg(long)]
    pub full_stacks: bool,
    /// Also look for debug files here; repeatable
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// One line per stack, for flamegraph.pl, inferno and speedscope
    Folded,
}

pub fn execute(args: &ExportArgs) -> Result<ExitCode, Failure> {
    output::check(&args.output, args.overwrite)?;
    let mut item = load::one(&args.input)?;
    super::name_frames(&mut item, &args.debug_dir);
    let options = profile::Options {
        full_stacks: args.full_stacks,
        kinds: args.kind.clone(),
        ..profile::Options::default()
    };
    let detail = Detail {
        signatures: args.full_stacks,
        lines: true,
    };
    let snapshot = &item.snapshot;
    output::create(&args.output, args.overwrite, |out| match args.format {
        Format::Folded => folded::write(&Profile::of(snapshot, &options), detail, args.cost, out),
    })?;
    Ok(ExitCode::SUCCESS)
}
