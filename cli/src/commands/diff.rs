//! `culeak diff`: what changed between two snapshots.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use culeak::analysis::diff::{Diff, Options, same_process};
use culeak::analysis::filter::Filter;
use culeak::analysis::profile::tree::{Limits, Tree};
use culeak::analysis::profile::{self, Profile};
use culeak::analysis::program::Program;
use culeak::analysis::report::{By, Sort};
use culeak::kind::Kind;

use super::NameArgs;
use crate::errors::Failure;
use crate::export::flamegraph;
use crate::export::folded::Cost;
use crate::load::Loaded;
use crate::output::{self, Overwrite};
use crate::text::names::{self, Detail};
use crate::{html, load, text};

/// Show what grew, shrank, came and went between two snapshots, by call site
#[derive(Debug, Args)]
#[command(mut_arg("force", |force| force.help("Compare different programs, and replace files that exist")))]
#[command(after_help = "\
Rows are matched by module, function and line, so two runs or two machines can be compared.

Examples:
  culeak snapshot 4711 -o before.json     … some time later …
  culeak diff before.json 4711            what the process gained since
  culeak diff main.culeak branch.culeak   what a change costs
  culeak diff before.json 4711 --tree     who asked for it, from main inwards
  culeak diff before.json 4711 --flamegraph grown.svg")]
pub struct DiffArgs {
    /// The earlier process, recording or snapshot
    #[arg(value_name = "BEFORE")]
    pub before: OsString,
    /// The later one
    #[arg(value_name = "AFTER")]
    pub after: OsString,
    /// stack: one row per way to a call site; site: one row per call site
    #[arg(long, default_value = "stack", value_parser = ["stack", "site"])]
    pub by: String,
    /// What comes first: the largest change of bytes or of count
    #[arg(long, default_value = "bytes", value_parser = ["bytes", "count"])]
    pub sort: String,
    /// Show at most N rows (0: all) [default: 20, with --json or --html all]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Leave out rows that changed by less than this
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = text::units::parse_size)]
    pub min_bytes: u64,
    /// Only this kind of memory; repeatable
    #[arg(long, value_name = "KIND", value_parser = super::kind_parser(), hide_possible_values = true)]
    pub kind: Vec<Kind>,
    /// Show unchanged rows too
    #[arg(long)]
    pub all: bool,
    /// Show each row's stack
    #[arg(long)]
    pub stacks: bool,
    /// Show frames inside the CUDA runtime and below main too (implies --stacks)
    #[arg(long)]
    pub full_stacks: bool,
    /// Print the diff as JSON
    #[arg(long)]
    pub json: bool,
    /// Print what changed as a tree, from main inwards, with the stacks that changed most (--top, --min-bytes)
    #[arg(long, conflicts_with_all = ["json", "by", "sort", "stacks", "flamegraph", "html"])]
    pub tree: bool,
    /// Write a flame graph of the later one, coloured by what has changed, and no rows
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["json", "by", "sort", "top", "min_bytes", "all", "stacks"])]
    pub flamegraph: Option<PathBuf>,
    /// Write the diff as a page for a browser (-: to standard output), what grew in red; loads nothing
    #[arg(long, value_name = "FILE.html", conflicts_with_all = ["json", "flamegraph"])]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

pub fn execute(args: &DiffArgs) -> Result<ExitCode, Failure> {
    if let Some(path) = args.flamegraph.as_ref().or(args.html.as_ref()) {
        output::check(path, args.overwrite)?;
    }
    let mut before = load::one(&args.before)?;
    let mut after = load::one(&args.after)?;
    if !args.overwrite.force {
        of_one_program(&before, &after)?;
    }
    args.names.name_frames(&mut before);
    args.names.name_frames(&mut after);
    if let Some(path) = &args.flamegraph {
        return write_flamegraph(args, &before, &after, path);
    }
    let default = (!args.json && args.html.is_none()).then_some(20);
    let options = Options {
        by: By::from_name(&args.by).unwrap_or(By::Stack),
        sort: Sort::from_name(&args.sort).unwrap_or_default(),
        top: args.top.map_or(default, |top| (top > 0).then_some(top)),
        min_bytes: args.min_bytes,
        all: args.all,
        kinds: args.kind.clone(),
    };
    if let Some(path) = &args.html {
        output::create(path, args.overwrite, |out| {
            html::write_diff(&before.snapshot, &after.snapshot, &options, args.full_stacks, out)
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let diff = Diff::of(&before.snapshot, &after.snapshot, &options);
    if args.tree {
        print_tree(args, &options, &before, &after, &diff)?;
    } else if args.json {
        text::print_json(&diff)?;
    } else {
        text::print(|out| text::diff::write(&diff, args.stacks || args.full_stacks, args.full_stacks, out))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What differs between two programs is everything, which helps nobody.
fn of_one_program(before: &Loaded, after: &Loaded) -> Result<(), Failure> {
    let (old, new) = (Program::of(&before.snapshot), Program::of(&after.snapshot));
    if old.is_like(&new) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} is of {old}, but {} is of {new}; different programs tally no call sites; compare them anyway with --force",
        before.source, after.source
    )))
}

/// Both sides, and how frames are named.
fn profiles<'l>(args: &DiffArgs, before: &'l Loaded, after: &'l Loaded) -> (Profile<'l>, Profile<'l>, Detail) {
    let options = profile::Options {
        full_stacks: args.full_stacks,
        filter: Filter {
            kinds: args.kind.clone(),
            ..Filter::default()
        },
        ..profile::Options::default()
    };
    let detail = Detail {
        signatures: args.full_stacks,
        // Within one process no line of code moves.
        lines: same_process(&before.snapshot, &after.snapshot),
    };
    let (old, new) = (
        Profile::of(&before.snapshot, &options),
        Profile::of(&after.snapshot, &options),
    );
    (old, new, detail)
}

fn print_tree(args: &DiffArgs, options: &Options, before: &Loaded, after: &Loaded, diff: &Diff) -> Result<(), Failure> {
    let (old, new, detail) = profiles(args, before, after);
    let limits = Limits {
        top: options.top,
        min_bytes: options.min_bytes,
        all: args.all,
    };
    let (tree, frames) = Tree::of_difference(&old, &new, |frame| names::frame(frame, detail), &limits);
    text::print(|out| {
        text::diff::write_around(diff, out, |out| {
            text::tree::write_difference(&frames, &tree, detail, out)
        })
    })
}

fn write_flamegraph(args: &DiffArgs, before: &Loaded, after: &Loaded, path: &Path) -> Result<ExitCode, Failure> {
    let (old, new, detail) = profiles(args, before, after);
    output::create(path, args.overwrite, |out| {
        flamegraph::write_difference(&old, &new, detail, Cost::Bytes, out)
    })?;
    Ok(ExitCode::SUCCESS)
}
