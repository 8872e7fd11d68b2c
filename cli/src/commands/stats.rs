//! `culeak stats`: temporary allocations, lifetimes, churn and reuse, by call site.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use culeak::analysis::stats::{Options, Sort, Stats};
use culeak::point::Point;

use crate::commands::report::FilterArgs;
use crate::document;
use crate::errors::Failure;
use crate::load::timeline::{WithTimeline, one_with_timeline, time_of};
use crate::options::categories::CategoryArgs;
use crate::options::{NameArgs, parse_moment, rows_shown};
use crate::text;

/// Show which call sites allocate often, for a short time, or the same again; needs `run --timeline`
#[derive(Debug, Args)]
#[command(after_help = "\
An allocation is temporary if it was freed before its thread allocated again. It is reused if the same call site had just freed a \
block of this size at this address; a cache could have kept that block. A lifetime is the time from an allocation to its free; blocks \
that were not freed have none. An event counts at the call site that allocated the memory.

Examples:
  culeak run --timeline -- python train.py
  culeak stats python.host.4711.culeak                     most allocations first
  culeak stats python.host.4711.culeak --sort temporary    most temporary allocations first
  culeak stats 4711 --between 10s 12.5s --kind tensor      a part of a running program
  culeak stats python.host.4711.culeak --json > stats.json")]
pub struct StatsArgs {
    /// Process id, or a recording made with --timeline
    #[arg(value_name = "PID|RECORDING")]
    pub input: OsString,
    /// Sort rows by number of temporary allocations, of allocations, by median lifetime (shortest first), or by bytes allocated
    #[arg(long, default_value = "churn", value_parser = sort_parser())]
    pub sort: Sort,
    /// site: one row per call site; stack: one row per stack
    #[arg(long, default_value = "site", value_parser = ["site", "stack"])]
    pub by: String,
    /// Show at most N rows; 0: all [default: 20; all with --json]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Count only the events between two moments: times such as 12.5s, mark:NAME, start, end, exit
    #[arg(long, num_args = 2, value_names = ["A", "B"], value_parser = parse_moment)]
    pub between: Option<Vec<Point>>,
    #[command(flatten)]
    pub filter: FilterArgs,
    #[command(flatten)]
    pub categories: CategoryArgs,
    /// Show whole stacks: also frames inside the CUDA runtime and below main, and each frame of a library
    #[arg(long)]
    pub full_stacks: bool,
    /// Print the statistics as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub names: NameArgs,
}

fn sort_parser() -> impl TypedValueParser<Value = Sort> {
    let names = Sort::ALL.iter().map(|sort| sort.name());
    PossibleValuesParser::new(names).map(|name| Sort::from_name(&name).unwrap_or_default())
}

pub fn execute(args: &StatsArgs) -> Result<ExitCode, Failure> {
    let WithTimeline { mut item, timeline } = one_with_timeline(&args.input)?;
    args.filter.suits(&item)?;
    let failed = |reason: String| Failure::new(format!("{}: {reason}", item.source));
    let between = match args.between.as_deref() {
        Some([from, to]) => {
            let time = |point| time_of(&item.snapshot, &timeline, point).map_err(failed);
            Some((time(from)?, time(to)?))
        }
        _ => None,
    };
    let categories = args.categories.read()?;
    let options = Options {
        sort: args.sort,
        by_stack: args.by == "stack",
        top: rows_shown(args.top, !args.json),
        filter: args.filter.filter(&categories),
        between,
        source: item.source.clone(),
    };
    args.names.name_frames(&mut item);
    let stats = Stats::of(&item.snapshot, &timeline, &options)
        .map_err(|unknown| Failure::new(format!("{}: {unknown}", item.source)))?;
    match args.json {
        true => text::print_json(&stats)?,
        false => document::print(|| text::stats::page(&stats, args.full_stacks))?,
    }
    Ok(ExitCode::SUCCESS)
}
