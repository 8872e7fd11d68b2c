//! `culeak check`: a verdict for scripts and CI.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use culeak::check::{Limits, verdict};
use culeak::kind::Kind;

use crate::errors::Failure;
use crate::{load, text};

/// Exit code for a leak over the limit.
const LEAK: u8 = 1;

/// Fail when a process leaked more than allowed
#[derive(Debug, Args)]
#[command(after_help = "\
Without --max-leaked and --max-count any leak fails; with one of them the other is unlimited.
Exit codes: 0 clean, 1 leak over the limit, 2 wrong usage or unreadable input.

Examples:
  culeak check app.culeak
  culeak check app.culeak --max-leaked 64MiB --kind device")]
pub struct CheckArgs {
    /// Process id, recording, snapshot, folder of recordings, or - for a snapshot on standard input
    #[arg(value_name = "FILE")]
    pub input: String,
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Print the verdict as JSON
    #[arg(long)]
    pub json: bool,
    /// Also look for debug files here; repeatable
    #[arg(long, value_name = "DIR")]
    pub debug_dir: Vec<PathBuf>,
}

/// What is allowed.
#[derive(Debug, Clone, Default, Args)]
pub struct LimitArgs {
    /// Allow this much, e.g. 0, 64MiB
    #[arg(long, value_name = "SIZE", value_parser = text::units::parse_size)]
    pub max_leaked: Option<u64>,
    /// Allow this many blocks
    #[arg(long, value_name = "N")]
    pub max_count: Option<u64>,
    /// Judge only this kind of memory; repeatable [default: all that hold memory]
    #[arg(long, value_name = "KIND", value_parser = super::parse_kind)]
    pub kind: Vec<Kind>,
    /// Judge too what caching allocators (XLA, CuPy, RMM) hold for reuse; the tensors of PyTorch are judged in any case
    #[arg(long)]
    pub judge_pools: bool,
    /// Judge a recording that lost allocations by what it has, instead of failing
    #[arg(long)]
    pub allow_losses: bool,
}

impl LimitArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            max_leaked: self.max_leaked,
            max_count: self.max_count,
            kinds: self.kind.clone(),
            judge_pools: self.judge_pools,
            allow_losses: self.allow_losses,
        }
    }
}

pub fn execute(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let passed = judge(&args.input, &args.limits.limits(), args.json, &args.debug_dir)?;
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(LEAK)
    })
}

/// Prints the verdict on every process in the input, and says whether all passed.
pub fn judge(input: &str, limits: &Limits, json: bool, debug_dirs: &[PathBuf]) -> Result<bool, Failure> {
    let mut loaded = load::all(input)?;
    for item in &mut loaded {
        super::name_frames(item, debug_dirs);
    }
    let verdicts: Vec<_> = loaded.iter().map(|item| verdict(&item.snapshot, limits)).collect();
    if json {
        match verdicts.as_slice() {
            [one] => text::print_json(one)?,
            several => text::print_json(&several)?,
        }
    } else {
        text::print(|out| {
            for (item, verdict) in loaded.iter().zip(&verdicts) {
                if loaded.len() > 1 {
                    writeln!(out, "== {} ==", text::inert::Inert(&item.source))?;
                }
                text::check::write(verdict, &item.source, out)?;
            }
            Ok(())
        })?;
    }
    Ok(verdicts.iter().all(|verdict| verdict.passed))
}
