//! `culeak setup`: the files that a package installs beside the command.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::completions::{self, CompletionsArgs};
use super::man::{self, ManArgs};
use crate::errors::Failure;

/// Print or write the completions of a shell, or the manual pages
#[derive(Debug, Args)]
pub struct SetupArgs {
    #[command(subcommand)]
    pub part: Part,
}

#[derive(Debug, Subcommand)]
pub enum Part {
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// `whole`: the command line that the files describe.
///
/// # Errors
/// A file cannot be written.
pub fn execute(args: &SetupArgs, whole: clap::Command) -> Result<ExitCode, Failure> {
    match &args.part {
        Part::Completions(args) => completions::execute(args, whole),
        Part::Man(args) => man::execute(args, whole),
    }
}
