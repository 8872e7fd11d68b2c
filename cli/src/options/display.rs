//! The options of every command: colours, the pager, and how much is said on standard error.

use clap::{Args, ColorChoice};

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct DisplayArgs {
    /// When to use colour; auto: on a terminal unless NO_COLOR is set or TERM is dumb, and always if CLICOLOR_FORCE is set
    /// [default: auto]
    #[arg(long, global = true, value_name = "WHEN", value_enum)]
    pub color: Option<ColorChoice>,
    /// Never show text in a pager; by default, text that is longer than the terminal is shown in CULEAK_PAGER, PAGER or less
    #[arg(long, global = true)]
    pub no_pager: bool,
    /// Print no notes and no progress on standard error; errors, warnings, reports and verdicts remain
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Also print what is used: config file, preload library, variables of the program, debug files
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
}
