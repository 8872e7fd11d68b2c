//! `culeak export`: the memory that a process holds, in formats of other tools, as figures, as a dataset, or to a server.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use culeak::analysis::categories::Categories;
use culeak::analysis::filter::only_objects;
use culeak::analysis::profile::{Options, Profile};
use culeak::point::Point;
use culeak::table;

use super::dataset::{self, DatasetArgs, Wanted};
use super::send;
use crate::document::Document;
use crate::errors::{Failure, USAGE};
use crate::export::folded::Cost;
use crate::export::{self, Ability, FORMATS, Format, Input, window};
use crate::load::{self, Loaded, NameArgs, Place, Several, Sources};
use crate::monitor;
use crate::options::categories::CategoryArgs;
use crate::options::rules::SuppressionArgs;
use crate::options::selection::Selection;
use crate::options::server::ServerArgs;
use crate::output::{self, Overwrite};
use crate::text::parts;

/// Write the memory that processes hold in the format of another tool, or send it to a server
#[derive(Debug, Args)]
#[command(after_help = "\
docs/formats.md describes what each format can hold, docs/fleet.md the metrics, what is sent to a server, and the tables of a \
dataset. culeak watch does the last three again and again.

Examples:
  culeak export 4711 -o gpu.pb.gz                        then: pprof -http=: gpu.pb.gz
  culeak export 4711 -o gpu.parquet                      then: duckdb, pandas, Polars
  culeak export 4711 --objects -o objects.pb.gz
  culeak export rank-*.culeak -o job.pftrace
  culeak export 4711 --format folded -o - | flamegraph.pl > gpu.svg
  culeak export runs/ --format openmetrics               figures for Prometheus
  culeak export runs/ --format dataset -o dataset        then: cd dataset && duckdb -init duckdb.sql
  culeak export runs/ --to https://pyroscope.example --header-file headers")]
pub struct ExportArgs {
    #[arg(required = true, value_name = "PID|RECORDING|SNAPSHOT", help = inputs_help())]
    pub inputs: Vec<OsString>,
    #[arg(short, long, value_name = "FORMAT", value_parser = format_parser(), conflicts_with = "to", help = format_help())]
    pub format: Option<Target>,
    /// Output file; -: standard output, as without it for openmetrics; for a dataset its folder, created if it is missing
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["format", "to"], conflicts_with = "to")]
    pub output: Option<PathBuf>,
    #[arg(long, help = objects_help())]
    pub objects: bool,
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
    pub suppressions: SuppressionArgs,
    #[command(flatten)]
    pub categories: CategoryArgs,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub names: NameArgs,
    /// The job: the label job_id of figures, or the column of a dataset [default, but for openmetrics: what its launcher calls it]
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    #[command(flatten)]
    pub table: DatasetArgs,
    #[command(flatten)]
    pub overwrite: Overwrite,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// What is written.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    File(&'static Format),
    /// Figures, as `culeak watch` serves them.
    Figures,
    Dataset,
}

const FIGURES: &str = "openmetrics";
const DATASET: &str = "dataset";

fn inputs_help() -> String {
    let of_one = export::names(|format| !format.has(Ability::Processes), "or");
    format!(
        "Process ids, recordings, snapshots, folders of them, patterns, or - for a snapshot or a list. Several inputs become one file, \
         except in {of_one}"
    )
}

fn format_help() -> String {
    let endings = FORMATS.iter().filter_map(|format| format.endings.first().copied());
    let endings: Vec<&str> = endings.chain([".prom"]).collect();
    let endings = endings.join(", ");
    format!("Output format [default: by the name of the output file: {endings}]")
}

fn objects_help() -> String {
    let formats = export::names(|format| format.has(Ability::Objects), "and");
    format!(
        "Write objects without an address (streams, events, modules, graphs …) instead of memory; they have counts and no bytes. \
         For {formats}"
    )
}

fn format_parser() -> impl TypedValueParser<Value = Target> {
    let values = FORMATS
        .iter()
        .map(|format| PossibleValue::new(format.name).help(format.about));
    let others = [
        PossibleValue::new(FIGURES).help("Figures of each process, for Prometheus"),
        PossibleValue::new(DATASET)
            .help("A folder of Parquet files with the facts of many processes, for DuckDB and Spark"),
    ];
    PossibleValuesParser::new(values.chain(others)).try_map(move |name| match name.as_str() {
        FIGURES => Ok(Target::Figures),
        DATASET => Ok(Target::Dataset),
        name => {
            let named = FORMATS.iter().find(|format| format.name == name);
            named.map(Target::File).ok_or("no such format")
        }
    })
}

impl ExportArgs {
    /// The format that is named, else the one that the name of the output file ends in.
    fn target(&self) -> Result<Target, Failure> {
        let name = self
            .output
            .as_deref()
            .unwrap_or_else(|| Path::new("-"))
            .to_string_lossy();
        let is_named = |format: &&Format| format.endings.iter().any(|ending| name.ends_with(ending));
        let by_name = || match name.ends_with(".prom") {
            true => Some(Target::Figures),
            false => FORMATS.iter().find(is_named).map(Target::File),
        };
        self.format.or_else(by_name).ok_or_else(|| {
            let names = FORMATS.iter().map(|format| format.name);
            let names: Vec<&str> = names.chain([FIGURES, DATASET]).collect();
            Failure::new(format!(
                "{name}: no format is chosen, and the name does not end as one format's files do; add --format with one of {}; \
                 pages are written by culeak report -o FILE.html",
                names.join(", ")
            ))
        })
    }

    /// Refuses what the format cannot hold.
    fn check(&self, format: &Format) -> Result<(), Failure> {
        let selection = &self.selection;
        let is_window = selection.window().is_some();
        let of_segments = load::segments::are_wanted(&selection.kind)?;
        let of_part = selection.filter(&Categories::none()).is_of_stacks()
            || selection.since.is_some()
            || !selection.device.is_empty();
        let lacks = |ability| !format.has(ability);
        let of_device = "it holds counters per device without stacks";
        let refusals = table! {
            "--at peak", selection.point() == Some(&Point::Peak), Ability::Stacks,
                "it lists single blocks, and the memory at a peak is recorded by stack";
            "--objects", self.objects, Ability::Objects, "it shows bytes, which objects do not have";
            "--kind of the kernel driver", of_segments, Ability::Segments, "it does not show memory from the kernel driver";
            "--suppressions", !self.suppressions.suppressions.is_empty(), Ability::Suppressions, of_device;
            "--device, --focus, --ignore, --category and --since", of_part, Ability::Suppressions, of_device;
        };
        if let Some((option, _, ability, why)) = refusals
            .into_iter()
            .find(|(_, given, ability, _)| *given && lacks(*ability))
        {
            return Err(Failure::new(format!(
                "{option} does not apply to {}: {why}; use {}",
                format.name,
                export::names(|format| format.has(ability), "or")
            )));
        }
        if is_window && format.has(Ability::Times) {
            return Err(Failure::new(format!(
                "--between does not apply to {}: it shows all times; leave it out",
                format.name
            )));
        }
        if !self.objects && only_objects(&selection.kind) {
            return Err(Failure::new(
                "--kind: objects without an address are no memory; add --objects to export them",
            ));
        }
        Ok(())
    }
}

pub fn execute(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let wanted = Wanted {
        inputs: &args.inputs,
        every: None,
        job: args.job.as_deref(),
        top: args.selection.top,
        at: args.selection.point(),
        with_blocks: !args.table.no_blocks,
        categories: args.categories.read()?,
        names: &args.names,
    };
    if let Some(to) = &args.server.to {
        return send::execute(to, &args.server, &wanted);
    }
    match (args.target()?, &args.output) {
        (Target::Figures, path) => {
            let settings = monitor::settings(args.job.as_deref(), args.selection.top);
            let path = path.as_deref().unwrap_or_else(|| Path::new("-"));
            let is_complete = monitor::export(&args.inputs, settings, &args.names, path, args.overwrite)?;
            Ok(ExitCode::from(if is_complete { 0 } else { USAGE }))
        }
        (Target::Dataset, Some(folder)) => dataset::write(folder, wanted),
        (Target::File(format), Some(path)) => write(args, format, path),
        (_, None) => Err(Failure::new(
            "-o is missing; name the file, -o - for standard output, or with --format dataset the folder",
        )),
    }
}

/// Writes a file of one format.
fn write(args: &ExportArgs, format: &Format, path: &Path) -> Result<ExitCode, Failure> {
    #[cfg(not(feature = "parquet"))]
    if format.name == "parquet" {
        return Err(Failure::new(crate::errors::not_in_this_build("cannot write Parquet")));
    }
    output::check(path, args.overwrite)?;
    args.check(format)?;
    let of_segments = load::segments::are_wanted(&args.selection.kind)?;
    let suppressions = args.suppressions.read()?;
    let categories = args.categories.read()?;
    let load = match format.has(Ability::Times) || args.selection.window().is_some() {
        true => Place::load_with_timeline,
        false => Place::load_with_totals,
    };
    let Several {
        mut items, unreadable, ..
    } = Sources::of_all(&args.inputs).load(load)?;
    if items.len() > 1 && !format.has(Ability::Processes) {
        return Err(Failure::new(format!(
            "{} processes or snapshots, but this format holds one; name one, or choose another format",
            items.len()
        )));
    }
    if !format.has(Ability::Snapshots) {
        each_once(&items)?;
    }
    if let Some(points) = args.selection.window() {
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
        args.selection.knows_mark(item)?;
        match args.selection.window() {
            Some(_) => _ = args.names.name_frames(item),
            None if of_segments => load::segments::show(item, args.selection.point(), &args.names)?,
            None => load::at::show(item, args.selection.point(), &args.names)?,
        }
        if args.objects {
            show_objects(item)?;
        }
    }
    let input = Input {
        items: &items,
        options: Options {
            full_stacks: args.full_stacks,
            filter: args.selection.filter(&categories),
            suppressions,
            categories,
            ..Options::default()
        },
        objects: args.objects,
        cost: args.cost,
        lines: args.lines,
    };
    output::create(path, args.overwrite, |out| (format.write)(&input, out))?;
    if !input.options.suppressions.is_empty() {
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
