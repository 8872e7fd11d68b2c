//! `culeak diff`: changes between two snapshots, by call site.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use culeak::analysis::categories::Categories;
use culeak::analysis::diff::{Diff, Options, same_process};
use culeak::analysis::filter::{Filter, only_objects};
use culeak::analysis::ledger::LedgerDiff;
use culeak::analysis::profile::tree::{Limits, Tree};
use culeak::analysis::profile::{self, Profile};
use culeak::analysis::program::Program;
use culeak::analysis::report::{By, Sort};
use culeak::kind::Kind;
use culeak::point::Point;

use crate::document;
use crate::errors::Failure;
use crate::export::flamegraph;
use crate::export::folded::Cost;
use crate::load::Loaded;
use crate::options::{NameArgs, kind_parser, parse_point, rows_shown};
use crate::output::{self, Overwrite};
use crate::text::diff::RowStack;
use crate::text::names::{self, Detail};
use crate::{html, load, text};

/// Show changes between two snapshots, by call site
#[derive(Debug, Args)]
#[command(mut_arg("force", |force| force.help("Compare different programs, and replace existing files")))]
#[command(after_help = "\
Rows are matched by module, function and line, so snapshots from different runs or machines can be compared.

Examples:
  culeak snapshot 4711 -o before.json     … some time later …
  culeak diff before.json 4711            changes since then
  culeak diff main.culeak branch.culeak   the effect of a code change
  culeak diff a.culeak --at mark:start --at end    what a program gained between two points
  culeak diff a.culeak --at mark:loaded --at mark:captured --ledger    … by what took it: weights, KV cache, graphs, code
  culeak diff runs/monday/ runs/tuesday/  what grew, at which line, on which rank of a job
  culeak diff before.json 4711 --tree     the changes as a tree of call stacks
  culeak diff before.json 4711 --flamegraph grown.svg")]
pub struct DiffArgs {
    /// Earlier process, recording or snapshot; a folder or a pattern with several of them is a job
    #[arg(value_name = "BEFORE")]
    pub before: OsString,
    /// Later process, recording or snapshot; for a job, a folder or a pattern, whose processes are compared by rank
    /// [default: BEFORE, at the second of two points]
    #[arg(value_name = "AFTER")]
    pub after: Option<OsString>,
    /// Compare the memory at this point in time: end, peak, exit, mark:NAME, or a time such as 12.5s. If given twice:
    /// first for BEFORE, then for AFTER [default: end for a Python script that ended; otherwise exit, or now]
    #[arg(long, value_name = "POINT", value_parser = parse_point)]
    pub at: Vec<Point>,
    /// stack: one row per stack; site: one row per call site
    #[arg(long, default_value = "stack", value_parser = ["stack", "site"])]
    pub by: String,
    /// Sort rows by the change of this property
    #[arg(long, default_value = "bytes", value_parser = ["bytes", "count"])]
    pub sort: String,
    /// Show at most N rows; 0: all [default: 20; all with --json or --html]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Hide rows that changed by less than SIZE
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = text::units::parse_size)]
    pub min_bytes: u64,
    /// Show only this kind of memory; repeatable
    #[arg(long, value_name = "KIND", value_parser = kind_parser(), hide_possible_values = true)]
    pub kind: Vec<Kind>,
    /// Compare what holds each byte of the devices instead of call sites: blocks by category, caches, libraries, code, contexts,
    /// graphs, and other memory that the driver took for itself
    #[arg(long, conflicts_with_all = ["by", "sort", "top", "min_bytes", "kind", "all", "stacks", "full_stacks", "tree", "flamegraph"])]
    pub ledger: bool,
    /// Also show unchanged rows
    #[arg(long)]
    pub all: bool,
    /// Show the stack of each row
    #[arg(long)]
    pub stacks: bool,
    /// Show whole stacks: also frames inside the CUDA runtime and below main, and each frame of a library; implies --stacks
    #[arg(long)]
    pub full_stacks: bool,
    /// Print the diff as JSON
    #[arg(long)]
    pub json: bool,
    /// Print the changes as a tree with main at its root; --top and --min-bytes limit its branches
    #[arg(long, conflicts_with_all = ["json", "by", "sort", "stacks", "flamegraph", "html"])]
    pub tree: bool,
    /// Write a flame graph of AFTER, coloured by change, instead of rows
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["json", "by", "sort", "top", "min_bytes", "all", "stacks"])]
    pub flamegraph: Option<PathBuf>,
    /// With --flamegraph: one frame for each line of a function, not for each function, if both are of one process
    #[arg(long, requires = "flamegraph")]
    pub lines: bool,
    /// Write the diff as a self-contained HTML page; -: standard output
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
    if args.at.len() > 2 {
        return Err(Failure::new(
            "--at: given more than twice; give it once for both sides, or twice: of BEFORE and of AFTER",
        ));
    }
    if only_objects(&args.kind) && (args.tree || args.flamegraph.is_some()) {
        return Err(Failure::new(
            "--tree and --flamegraph show bytes, which objects without an address do not have; leave them out",
        ));
    }
    let Some(other) = args.after.as_ref().or((args.at.len() == 2).then_some(&args.before)) else {
        return Err(Failure::new(
            "AFTER is missing: name what to compare with, or two points of BEFORE, such as --at mark:loaded --at end",
        ));
    };
    let sides = [load::places(&args.before), load::places(other)];
    if sides.iter().any(|side| side.places.len() > 1) {
        if args.ledger {
            return Err(Failure::new(
                "--ledger compares two processes, or one process at two points, and no folders with several; name two recordings",
            ));
        }
        return super::job_diff::execute(args, sides);
    }
    let [before, after] = sides;
    let mut before = before.single(&args.before)?.load()?;
    let mut after = after.single(other)?.load()?;
    if !args.overwrite.force {
        check_programs(&before, &after)?;
    }
    let show = match load::segments::are_wanted(&args.kind)? {
        true => load::segments::show,
        false => load::at::show,
    };
    show(&mut before, args.at.first(), &args.names)?;
    show(&mut after, args.at.last(), &args.names)?;
    if args.ledger {
        let change = LedgerDiff::of(&before.snapshot, &after.snapshot, &Categories::default());
        let page = || text::ledger::change::page(&change);
        match &args.html {
            Some(path) => output::create(path, args.overwrite, |out| {
                let name = format!("process {}", change.after.process.pid);
                html::write("culeak diff: ledger", vec![(name, page())], out)
            })?,
            None if args.json => text::print_json(&change)?,
            None => document::print(page)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.flamegraph {
        return write_flamegraph(args, &before, &after, path);
    }
    let options = Options {
        by: By::from_name(&args.by).unwrap_or(By::Stack),
        sort: Sort::from_name(&args.sort).unwrap_or_default(),
        top: rows_shown(args.top, !args.json && args.html.is_none()),
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
        document::print(|| text::diff::page(&diff, args.stacks || args.full_stacks, args.full_stacks))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses snapshots of different programs, in which every row would differ.
fn check_programs(before: &Loaded, after: &Loaded) -> Result<(), Failure> {
    let (old, new) = (Program::of(&before.snapshot), Program::of(&after.snapshot));
    if old.is_like(&new) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} is from {old}, but {} is from {new}; different programs share no call sites; compare them anyway with --force",
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
        // Line numbers do not change within one process.
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
    document::print(|| {
        text::diff::page_around(diff, RowStack::Callers, |page| {
            text::tree::write_difference(&frames, &tree, detail, page);
        })
    })
}

fn write_flamegraph(args: &DiffArgs, before: &Loaded, after: &Loaded, path: &Path) -> Result<ExitCode, Failure> {
    let (old, new, detail) = profiles(args, before, after);
    let detail = Detail {
        lines: detail.lines && args.lines,
        ..detail
    };
    output::create(path, args.overwrite, |out| {
        flamegraph::write_difference(&old, &new, detail, Cost::Bytes, out)
    })?;
    Ok(ExitCode::SUCCESS)
}
