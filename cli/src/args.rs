//! The command line, as clap sees it: the list of commands and what is true for all of them.
//!
//! The options of a command stand in that command's own file, beside the code they steer.

use clap::{Parser, Subcommand};

use crate::commands::run::RunArgs;
use crate::commands::shim_path::ShimPathArgs;

/// Shown under `culeak --help`; every command returns one of these.
const EXIT_CODES: &str = "\
Exit codes:
  0        nothing to complain about
  1        a leak over the limit (check, run --check), or a check of doctor or demo that failed
  2        wrong usage, or input that cannot be read
  126,127  run: the program cannot be executed, or was not found
  other    run: the program's own exit code; 128+N when signal N ended it

Without this program, the preload library works alone and leaves its recording behind:
  LD_PRELOAD=$(culeak shim-path) ./app";

/// Finds the GPU memory a CUDA program never gives back, and the lines of code that asked for it.
#[derive(Debug, Parser)]
#[command(name = "culeak", version, after_help = EXIT_CODES, max_term_width = 120)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunArgs),
    /// Print the path of the preload library, unpacked for this user
    ShimPath(ShimPathArgs),
}
