//! `culeak export`: the memory that a process holds, in formats of other tools.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use culeak::analysis::filter::{Filter, only_objects};
use culeak::analysis::profile::{Options, Profile};
use culeak::kind::Kind;
use culeak::point::Point;

use crate::document::Document;
use crate::errors::{Failure, USAGE};
use crate::export::folded::Cost;
use crate::export::{self, Ability, FORMATS, Format, Input, window};
use crate::load::{self, Loaded, Place, Several};
use crate::options::between::BetweenArgs;
use crate::options::categories::CategoryArgs;
use crate::options::rules::suppressions_if_any;
use crate::options::{NameArgs, kind_parser, parse_point};
use crate::output::{self, Overwrite};
use crate::text::parts;

/// Write the memory that a process holds in the format of another tool
#[derive(Debug, Args)]
#[command(after_help = "\
docs/formats.md describes what each format can hold.

Examples:
  culeak export 4711 --format pprof -o gpu.pb.gz         then: pprof -http=: gpu.pb.gz
  culeak export 4711 --format parquet -o gpu.parquet     then: duckdb, pandas, Polars
  culeak export 4711 --objects --format pprof -o objects.pb.gz
  culeak export rank-*.culeak --format perfetto -o job.pftrace
  culeak export 4711 --format folded -o - | flamegraph.pl > gpu.svg")]
pub struct ExportArgs {
    /// Process ids, recordings, snapshots, folders of them, patterns, or - for a snapshot or a list. Several inputs become one file,
    /// except in memory_viz
    #[arg(required = true, value_name = "PID|RECORDING|SNAPSHOT")]
    pub inputs: Vec<OsString>,
    /// Output format [default: by the name of the output file: .pb.gz, .folded, .pftrace, .csv, .parquet, .pickle, .html]
    #[arg(short, long, value_name = "FORMAT", value_parser = format_parser())]
    pub format: Option<&'static dyn Format>,
    /// Output file; -: standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Write the memory at this point in time: end, peak, exit, mark:NAME, or a time such as 12.5s [default: end for a Python
    /// script that ended; otherwise exit, or now]
    #[arg(long, value_name = "POINT", value_parser = parse_point)]
    pub at: Option<Point>,
    /// Include only this kind of memory; repeatable
    #[arg(long, value_name = "KIND", value_parser = kind_parser(), hide_possible_values = true)]
    pub kind: Vec<Kind>,
    /// Write objects without an address (streams, events, modules, graphs …) instead of memory; they have counts and no bytes.
    /// For pprof, folded, csv and parquet
    #[arg(long, conflicts_with = "between")]
    pub objects: bool,
    /// Exclude stacks that match a rule in this file or a built-in rule (as in check), and print their total; repeatable
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,
    /// Apply only the rules in the files of --suppressions
    #[arg(long, requires = "suppressions")]
    pub no_builtin_suppressions: bool,
    /// folded: meaning of the number in each line
    #[arg(long, default_value = "bytes")]
    pub cost: Cost,
    /// Also include frames inside the CUDA runtime and below main
    #[arg(long)]
    pub full_stacks: bool,
    /// folded, speedscope, firefox: one frame for each line of a function, not for each function. pprof has lines in
    /// any case: pprof -lines
    #[arg(long)]
    pub lines: bool,
    #[command(flatten)]
    pub categories: CategoryArgs,
    #[command(flatten)]
    pub between: BetweenArgs,
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

fn format_parser() -> impl TypedValueParser<Value = &'static dyn Format> {
    let values = FORMATS
        .iter()
        .map(|format| PossibleValue::new(format.name()).help(format.about()));
    let named = |name: String| FORMATS.iter().copied().find(|format| format.name() == name);
    PossibleValuesParser::new(values).try_map(move |name| named(name).ok_or("no such format"))
}

impl ExportArgs {
    /// The format that is named, else the one that the name of the output file ends in.
    fn format(&self) -> Result<&'static dyn Format, Failure> {
        let name = self.output.to_string_lossy();
        let is_named = |format: &&&dyn Format| format.endings().iter().any(|ending| name.ends_with(ending));
        let by_name = || FORMATS.iter().find(is_named).copied();
        self.format.or_else(by_name).ok_or_else(|| {
            let names: Vec<&str> = FORMATS.iter().map(|format| format.name()).collect();
            Failure::new(format!(
                "{name}: no format is chosen, and the name does not end as one format's files do; add --format with one of {}",
                names.join(", ")
            ))
        })
    }

    /// Refuses what the format cannot hold, and options that exclude each other.
    fn check(&self, format: &dyn Format) -> Result<(), Failure> {
        let is_window = self.between.points().is_some();
        let lacks = |ability| !format.has(ability);
        let refusals = [
            (
                self.at == Some(Point::Peak) && lacks(Ability::Stacks),
                format!(
                    "--at peak: the memory at a peak is recorded by stack, but this format lists single blocks; use {}",
                    export::names_with(Ability::Stacks)
                ),
            ),
            (
                self.objects && lacks(Ability::Objects),
                format!(
                    "--objects: this format shows bytes, which objects do not have; use {}",
                    export::names_with(Ability::Objects)
                ),
            ),
            (
                self.objects && self.cost.is_made(),
                "--objects: destroyed objects are not recorded by stack; use --cost count".to_owned(),
            ),
            (
                !self.objects && only_objects(&self.kind),
                "--kind: objects without an address are no memory; add --objects to export them".to_owned(),
            ),
            (
                is_window && format.has(Ability::Times),
                "perfetto, memory_viz and html show all times; --between is for the other formats".to_owned(),
            ),
            (
                is_window && self.at.is_some(),
                "--between names its end itself; leave out --at".to_owned(),
            ),
        ];
        if let Some((_, reason)) = refusals.into_iter().find(|(applies, _)| *applies) {
            return Err(Failure::new(reason));
        }
        let without_segments = [
            (lacks(Ability::Segments), "this format"),
            (self.objects, "--objects"),
            (is_window, "--between"),
        ];
        let mut without_segments = without_segments.into_iter().filter(|(applies, _)| *applies);
        without_segments.try_for_each(|(_, what)| load::segments::refuse(&self.kind, what))
    }
}

pub fn execute(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let format = args.format()?;
    #[cfg(not(feature = "parquet"))]
    if format.name() == "parquet" {
        return Err(Failure::new(crate::errors::not_in_this_build("cannot write Parquet")));
    }
    output::check(&args.output, args.overwrite)?;
    args.check(format)?;
    let of_segments = load::segments::are_wanted(&args.kind)?;
    let suppressions = suppressions_if_any(&args.suppressions, args.no_builtin_suppressions)?;
    if !format.has(Ability::Suppressions) && !suppressions.is_empty() {
        return Err(Failure::new(
            "perfetto holds counters per device without stacks, so suppressions do not apply; leave out --suppressions",
        ));
    }
    let categories = args.categories.read()?;
    let Several {
        mut items, unreadable, ..
    } = match format.has(Ability::Times) || args.between.points().is_some() {
        true => load::all_by(&args.inputs, Place::load_with_timeline)?,
        false => load::all_by(&args.inputs, Place::load_with_totals)?,
    };
    if items.len() > 1 && !format.has(Ability::Processes) {
        return Err(Failure::new(format!(
            "{} processes or snapshots, but this format holds one; name one, or choose another format",
            items.len()
        )));
    }
    if !format.has(Ability::Snapshots) {
        each_once(&items)?;
    }
    if let Some(points) = args.between.points() {
        items.iter_mut().try_for_each(|item| restrict(item, points))?;
    }
    let unreported = items
        .iter()
        .find(|item| item.snapshot.totals.is_empty() && !item.snapshot.allocations.is_empty());
    if let (true, Some(item)) = (args.cost.is_made(), unreported) {
        return Err(Failure::new(format!(
            "{}: contains no freed memory; use --cost bytes or count, or export the recording itself",
            item.source
        )));
    }
    for item in &mut items {
        match args.between.points() {
            Some(_) => args.names.name_frames(item),
            None if of_segments => load::segments::show(item, args.at.as_ref(), &args.names)?,
            None => load::at::show(item, args.at.as_ref(), &args.names)?,
        }
        if args.objects {
            show_objects(item)?;
        }
    }
    let input = Input {
        items: &items,
        options: Options {
            full_stacks: args.full_stacks,
            filter: Filter {
                kinds: args.kind.clone(),
                ..Filter::default()
            },
            suppressions,
            categories,
            ..Options::default()
        },
        objects: args.objects,
        cost: args.cost,
        lines: args.lines,
    };
    output::create(&args.output, args.overwrite, |out| format.write(&input, out))?;
    if !input.options.suppressions.is_empty() && !format.has(Ability::Suppressed) {
        print_suppressed(&input);
    }
    Ok(ExitCode::from(if unreadable > 0 { USAGE } else { 0 }))
}

/// Refuses several snapshots of one process, whose memory would count several times.
fn each_once(items: &[Loaded]) -> Result<(), Failure> {
    let mut known: HashMap<(&str, u32, u64), &str> = HashMap::new();
    for item in items {
        let process = &item.snapshot.process;
        let key = (process.host.as_str(), process.pid, process.started_unix_ns);
        // Snapshots that PyTorch took of itself have no process id.
        let Some(other) = known.insert(key, &item.source).filter(|_| process.pid != 0) else {
            continue;
        };
        return Err(Failure::new(format!(
            "{other} and {} are of one process, whose memory would count twice; name one of them, or use perfetto, which shows several \
             snapshots over time",
            item.source
        )));
    }
    Ok(())
}

/// Puts the objects of an input in the place of its memory.
fn show_objects(item: &mut Loaded) -> Result<(), Failure> {
    if !item.snapshot.objects_known {
        return Err(Failure::new(format!(
            "{}: has no record of objects at this point; choose another with --at, or record again with this version of culeak",
            item.source
        )));
    }
    item.snapshot = std::mem::take(&mut item.snapshot).into_objects();
    Ok(())
}

/// Reduces an input to a window of time.
fn restrict(item: &mut Loaded, points: [&Point; 2]) -> Result<(), Failure> {
    let failure = |reason: &str| Failure::new(format!("{}: {reason}", item.source));
    let logged = item
        .timeline
        .as_ref()
        .ok_or_else(|| failure("has no event log; record with `culeak run --timeline`"))?;
    item.snapshot = window::of(&item.snapshot, &logged.timeline, points).map_err(|reason| failure(&reason))?;
    Ok(())
}

/// Prints the total of the suppressed stacks, which are not in the file.
fn print_suppressed(input: &Input) {
    for item in input.items {
        let profile = Profile::of(&item.snapshot, &input.options);
        let (mut memory, mut objects, mut rules) = (profile.suppressed, 0, profile.suppressions);
        if input.objects {
            objects = std::mem::take(&mut memory).count;
            for rule in &mut rules {
                rule.objects = std::mem::take(&mut rule.suppressed).count;
            }
        }
        let mut page = Document::default();
        parts::suppressions(memory, objects, &rules, item.snapshot.sampling.is_some(), &mut page);
        let _ = page.text(&mut anstream::stderr());
    }
}
