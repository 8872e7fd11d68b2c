//! `culeak categories`: the built-in rules for the categories of tensors, as a file that a user can change.

use std::process::ExitCode;

use clap::Args;
use culeak::analysis::categories::BUILT_IN;

use crate::errors::Failure;
use crate::text;

/// Print the rules that decide what a tensor is for: a parameter, a gradient, an activation …
#[derive(Debug, Args)]
#[command(after_help = "\
The first rule that matches a stack decides. docs/categories.md explains the rules, and when stacks cannot tell.

Examples:
  culeak report 4711 --by category               the memory of each category, and the rules that decided
  culeak report 4711 --category kv-cache         the call sites of one category
  culeak report 4711 --by category --categories mine.txt
  culeak categories > mine.txt                   a copy to change, for --no-builtin-categories")]
pub struct CategoriesArgs {}

pub fn execute(_args: &CategoriesArgs) -> Result<ExitCode, Failure> {
    text::print(|out| write!(out, "{BUILT_IN}"))?;
    Ok(ExitCode::SUCCESS)
}
