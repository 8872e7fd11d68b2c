//! `culeak export`: the memory that a process holds, in formats of other tools.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use culeak::analysis::filter::{Filter, only_objects};
use culeak::analysis::profile::{self, Profile};
use culeak::analysis::report;
use culeak::analysis::words;
use culeak::kind::Kind;
use culeak::point::Point;
use culeak::snapshot::Snapshot;
use culeak::timeline::Timeline;

use crate::document::Document;
use crate::errors::{Failure, USAGE};
use crate::export::folded::{self, Cost};
#[cfg(feature = "parquet")]
use crate::export::parquet;
use crate::export::records::Rows;
use crate::export::{self, csv, firefox, memory_viz, perfetto, pprof, speedscope, window};
use crate::html;
use crate::load::{self, Loaded, Several};
use crate::options::between::BetweenArgs;
use crate::options::categories::CategoryArgs;
use crate::options::rules::suppressions_if_any;
use crate::options::{NameArgs, kind_parser, parse_point};
use crate::output::{self, Overwrite};
use crate::progress;
use crate::text::names::Detail;
use crate::text::parts::{self, tally};

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
    #[arg(short, long, value_name = "FORMAT")]
    pub format: Option<Format>,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Gzipped protobuf for pprof
    Pprof,
    /// JSON for speedscope
    Speedscope,
    /// One line per stack, for flamegraph.pl, inferno and speedscope
    Folded,
    /// Trace with counters over time, for ui.perfetto.dev
    Perfetto,
    /// Processed profile, for profiler.firefox.com
    Firefox,
    /// One row per live allocation
    Csv,
    /// One row per live allocation, typed and compressed
    Parquet,
    /// PyTorch memory snapshot, for pytorch.org/memory_viz
    #[value(name = "memory_viz")]
    MemoryViz,
    /// Self-contained HTML page, as from `report --html`
    Html,
}

impl Format {
    fn has_a_row_per_block(self) -> bool {
        use Format::*;
        matches!(self, Perfetto | Firefox | Csv | Parquet | MemoryViz)
    }

    /// Whether it shows the events of a recording that has them.
    fn shows_time(self) -> bool {
        matches!(self, Format::Perfetto | Format::MemoryViz | Format::Html)
    }
}

/// Endings of file names that belong to one format; `.json` belongs to several.
const ENDINGS: [(&str, Format); 11] = [
    (".pb.gz", Format::Pprof),
    (".pprof", Format::Pprof),
    (".speedscope.json", Format::Speedscope),
    (".folded", Format::Folded),
    (".pftrace", Format::Perfetto),
    (".csv", Format::Csv),
    (".parquet", Format::Parquet),
    (".pickle", Format::MemoryViz),
    (".pkl", Format::MemoryViz),
    (".html", Format::Html),
    (".htm", Format::Html),
];

impl ExportArgs {
    /// The format that is named, else the one that the name of the output file ends in.
    fn format(&self) -> Result<Format, Failure> {
        let name = self.output.to_string_lossy();
        let by_name = || ENDINGS.iter().find(|(ending, _)| name.ends_with(ending));
        self.format.or_else(|| Some(by_name()?.1)).ok_or_else(|| {
            let names: Vec<String> = Format::value_variants()
                .iter()
                .filter_map(|format| Some(format.to_possible_value()?.get_name().to_owned()))
                .collect();
            Failure::new(format!(
                "{name}: no format is chosen, and the name does not end as one format's files do; add --format with one of {}",
                names.join(", ")
            ))
        })
    }
}

pub fn execute(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let format = args.format()?;
    #[cfg(not(feature = "parquet"))]
    if format == Format::Parquet {
        return Err(Failure::new(crate::errors::not_in_this_build("cannot write Parquet")));
    }
    output::check(&args.output, args.overwrite)?;
    if args.at == Some(Point::Peak) && format.has_a_row_per_block() {
        return Err(Failure::new(
            "--at peak: the memory at a peak is recorded by stack, but this format lists single blocks; use pprof, \
             speedscope, folded or html",
        ));
    }
    if args.objects && !matches!(format, Format::Pprof | Format::Folded | Format::Csv | Format::Parquet) {
        return Err(Failure::new(
            "--objects: this format shows bytes, which objects do not have; use pprof, folded, csv or parquet",
        ));
    }
    if args.objects && args.cost.is_made() {
        return Err(Failure::new(
            "--objects: destroyed objects are not recorded by stack; use --cost count",
        ));
    }
    if !args.objects && only_objects(&args.kind) {
        return Err(Failure::new(
            "--kind: objects without an address are no memory; add --objects to export them",
        ));
    }
    let of_segments = load::segments::are_wanted(&args.kind)?;
    if matches!(format, Format::Perfetto | Format::Firefox | Format::MemoryViz) {
        load::segments::refuse(&args.kind, "this format")?;
    }
    if args.objects || args.between.points().is_some() {
        load::segments::refuse(&args.kind, if args.objects { "--objects" } else { "--between" })?;
    }
    let suppressions = suppressions_if_any(&args.suppressions, args.no_builtin_suppressions)?;
    if format == Format::Perfetto && !suppressions.is_empty() {
        return Err(Failure::new(
            "perfetto holds counters per device without stacks, so suppressions do not apply; leave out --suppressions",
        ));
    }
    let categories = args.categories.read()?;
    let shows_time = format.shows_time();
    if shows_time && args.between.points().is_some() {
        return Err(Failure::new(
            "perfetto, memory_viz and html show all times; --between is for the other formats",
        ));
    }
    if args.at.is_some() && args.between.points().is_some() {
        return Err(Failure::new("--between names its end itself; leave out --at"));
    }
    let Several {
        mut items, unreadable, ..
    } = match shows_time || args.between.points().is_some() {
        true => load::all_with_timelines(&args.inputs)?,
        false => load::all_with_totals(&args.inputs)?,
    };
    if items.len() > 1 && format == Format::MemoryViz {
        return Err(Failure::new(format!(
            "{} processes or snapshots, but this format holds one; name one, or choose another format",
            items.len()
        )));
    }
    if !matches!(format, Format::Perfetto | Format::Html) {
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
    let options = profile::Options {
        full_stacks: args.full_stacks,
        filter: Filter {
            kinds: args.kind.clone(),
            ..Filter::default()
        },
        suppressions,
        categories,
        ..profile::Options::default()
    };
    output::create(&args.output, args.overwrite, |out| {
        write(args, format, &options, &items, out)
    })?;
    // The page shows suppressions itself.
    if !options.suppressions.is_empty() && format != Format::Html {
        print_suppressed(&items, &options, args.objects);
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
fn print_suppressed(items: &[Loaded], options: &profile::Options, of_objects: bool) {
    for item in items {
        let profile = Profile::of(&item.snapshot, options);
        let (mut memory, mut objects, mut rules) = (profile.suppressed, 0, profile.suppressions);
        if of_objects {
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

fn write(
    args: &ExportArgs,
    format: Format,
    options: &profile::Options,
    items: &[Loaded],
    out: &mut dyn Write,
) -> io::Result<()> {
    let with_made = profile::Options {
        made: true,
        ..options.clone()
    };
    let detail = Detail {
        signatures: args.full_stacks,
        lines: true,
    };
    // Graphs have a frame for each function, as those of pprof.
    let of_graph = Detail {
        lines: args.lines,
        ..detail
    };
    let snapshots: Vec<&Snapshot> = items.iter().map(|item| &item.snapshot).collect();
    let &[snapshot, ..] = snapshots.as_slice() else {
        return Ok(());
    };
    let named = || {
        let name = |snapshot: &Snapshot| (snapshots.len() > 1).then(|| export::called(snapshot));
        snapshots.iter().map(move |&snapshot| (name(snapshot), snapshot))
    };
    let rows = snapshots.iter().map(|snapshot| Rows::of(snapshot, options, detail));
    match format {
        Format::Pprof => pprof::write_all(&snapshots, options, out),
        Format::Speedscope => {
            let profiles = named().map(|(name, snapshot)| (name, Profile::of(snapshot, &with_made)));
            speedscope::write_all(profiles, of_graph, out)
        }
        Format::Folded => {
            let cost = if args.objects { Cost::Count } else { args.cost };
            named().try_for_each(|(name, snapshot)| {
                folded::write_below(name.as_deref(), &Profile::of(snapshot, &with_made), of_graph, cost, out)
            })
        }
        Format::Perfetto => {
            let inputs = items.iter().map(|item| (&item.snapshot, item.timeline.as_ref()));
            perfetto::write(&inputs.collect::<Vec<_>>(), &args.kind, out)
        }
        Format::Firefox => firefox::write_all(&named().collect::<Vec<_>>(), options, of_graph, out),
        Format::Csv => csv::write_all(rows, out),
        #[cfg(feature = "parquet")]
        Format::Parquet => parquet::write_all(rows, out),
        #[cfg(not(feature = "parquet"))]
        Format::Parquet => Err(io::Error::other(crate::errors::not_in_this_build(
            "cannot write Parquet",
        ))),
        Format::Html => {
            let page = |item: &'_ Loaded| report::Options {
                source: item.source.clone(),
                filter: options.filter.clone(),
                suppressions: options.suppressions.clone(),
                points: item.points.clone(),
                ..report::Options::default()
            };
            let pages = items.iter().map(|item| html::Item {
                snapshot: &item.snapshot,
                timeline: item.timeline.as_ref(),
                options: page(item),
                full_stacks: args.full_stacks,
            });
            html::write_report(&pages.collect::<Vec<_>>(), out)
        }
        Format::MemoryViz => {
            let timeline = events_until(&items[0]);
            let (left_out, not_traced) = memory_viz::write(snapshot, timeline.as_ref(), options, detail, out)?;
            if not_traced > 0 {
                progress::note(format_args!(
                    "note: {} in no known memory are left out of the trace",
                    words::plural(not_traced, "block", "blocks")
                ));
            }
            if left_out.count > 0 {
                progress::note(format_args!(
                    "note: {} without a device address (host memory, arrays, pools) is left out: this format cannot hold it",
                    tally(left_out)
                ));
            }
            Ok(())
        }
    }
}

/// The events of an input up to the state that its snapshot describes. `None`: they are not known, or lead to another state.
fn events_until(item: &Loaded) -> Option<Timeline> {
    let timeline = &item.timeline.as_ref()?.timeline;
    match item.snapshot.taken.point {
        None | Some(Point::Exit) => Some(timeline.clone()),
        Some(Point::End) => item.snapshot.end.map(|end| timeline.until(end.time_ns)),
        Some(_) => None,
    }
}
