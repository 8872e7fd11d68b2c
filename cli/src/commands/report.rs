//! `culeak report`: memory that is held or leaked, by call site.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use culeak::analysis::categories::{Categories, Category};
use culeak::analysis::estimate;
use culeak::analysis::filter::{Filter, Location, only_objects};
use culeak::analysis::profile::tree::{Limits, Tree};
use culeak::analysis::profile::{self, Profile};
use culeak::analysis::report::{By, Options, Report, Sort};
use culeak::analysis::suppressions::{Pattern, Suppressions};
use culeak::kind::Kind;
use culeak::point::Point;
use serde::ser::{SerializeSeq, Serializer};

use crate::document::Document;
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::export::flamegraph;
use crate::export::folded::Cost;
use crate::html::{self, Item};
use crate::load::{self, Loaded, Place};
use crate::options::categories::{CategoryArgs, category_parser};
use crate::options::rules::suppressions_if_any;
use crate::options::{NameArgs, kind_parser, parse_moment, parse_pattern, parse_point, rows_shown};
use crate::output::{self, Overwrite};
use crate::progress::{self, Progress, Unit};
use crate::text::names::Detail;
use crate::{json, text, usage};

/// Show the memory that a process holds or leaked, by call site
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  culeak report app.host.4711.culeak            leaks of a finished program
  culeak report app.host.4711.culeak --at peak  memory at the peak, in full
  culeak report app.host.4711.culeak --between mark:warm exit    allocated since then and still live
  culeak report 4711 --by kind                  memory held by a running program
  culeak report 4711 --kind pinned --focus loader.py     pinned memory from loader.py only
  culeak report 4711 --kind segment             what the kernel driver gave, by the lines that caused it
  culeak report 4711 --by category              parameters, gradients, activations, caches …
  culeak report 4711 --why                      what holds the memory of each call site
  culeak report 4711 --tree                     call stacks as a tree
  culeak report app.host.4711.culeak --phases   memory by phase (NVTX ranges)
  culeak report 4711 --flamegraph gpu.svg       call stacks as a flame graph
  culeak report runs/                           all ranks of a job: which of them differs, and at which line
  culeak report runs/ --json > job.json         the same as JSON
  culeak report runs/ --per-process             one report for each recording in a folder
  culeak report runs/ --html report.html        a self-contained HTML page")]
pub struct ReportArgs {
    /// Process ids, recordings, snapshots, folders of recordings or snapshots, patterns such as runs/*.culeak, or - for a
    /// snapshot or a list of these on standard input
    #[arg(required = true, value_name = "PID|RECORDING|SNAPSHOT")]
    pub inputs: Vec<OsString>,
    /// Group rows by this property
    #[arg(long, default_value = "site", value_parser = by_parser())]
    pub by: By,
    /// Show the memory at this point in time: end, peak, exit, mark:NAME, or a time such as 12.5s [default: end for a Python
    /// script that ended; otherwise exit, or now]
    #[arg(long, value_name = "POINT", value_parser = parse_point)]
    pub at: Option<Point>,
    /// Show what was allocated between two moments and was live at the second: times such as 12.5s, mark:NAME, start, end,
    /// exit; needs a recording made with --timeline
    #[arg(long, num_args = 2, value_names = ["A", "B"], value_parser = parse_moment, conflicts_with = "at")]
    pub between: Option<Vec<Point>>,
    /// Sort rows by this property; age: oldest first
    #[arg(long, default_value = "bytes", value_parser = sort_parser())]
    pub sort: Sort,
    /// Show at most N rows; 0: all [default: 20; all with --json or --html]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Hide rows smaller than SIZE, e.g. 4096, 1MB, 2GiB
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = text::units::parse_size)]
    pub min_bytes: u64,
    /// Show the stacks of each row, and its kinds, devices, streams and threads
    #[arg(long, conflicts_with_all = ["tree", "flamegraph", "html", "json"])]
    pub stacks: bool,
    /// Show the ledger of each device, which divides all memory that the driver counts, and all totals and peaks
    #[arg(long, conflicts_with_all = ["tree", "flamegraph", "html", "json"])]
    pub ledger: bool,
    /// Show whole stacks: also frames inside the CUDA runtime and below main, and each frame of a library
    #[arg(long)]
    pub full_stacks: bool,
    /// List all counts of losses, including zeros
    #[arg(long, conflicts_with_all = ["tree", "flamegraph", "html", "json"])]
    pub losses: bool,
    /// List objects without an address too, by call site: streams, events, modules, graphs …
    #[arg(long, conflicts_with_all = ["tree", "flamegraph", "phases"])]
    pub objects: bool,
    /// Search the memory of running processes for what holds their memory, and show it for each call site (as culeak why)
    #[arg(long, conflicts_with_all = ["tree", "flamegraph", "at", "between", "phases"])]
    pub why: bool,
    /// Print the report as JSON; with --per-process, an array if there are several inputs
    #[arg(long)]
    pub json: bool,
    /// Print one report for each process instead of one for the job; options that the report of a job lacks imply this
    #[arg(long)]
    pub per_process: bool,
    /// Show what each phase of the program (NVTX range, culeak_phase_begin) held, allocated and left behind; with a name, each
    /// phase of this name
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "",
          conflicts_with_all = ["by", "sort", "min_bytes", "full_stacks", "losses", "tree", "flamegraph", "html", "suppressions", "at", "between", "since"])]
    pub phases: Option<String>,
    /// Print call stacks as a tree with main at its root; --top and --min-bytes limit its branches
    #[arg(long, conflicts_with_all = ["json", "by", "sort"])]
    pub tree: bool,
    /// Write a flame graph of live bytes instead of a report; one input only
    #[arg(long, value_name = "FILE.svg", conflicts_with_all = ["json", "tree", "by", "sort", "top", "min_bytes"])]
    pub flamegraph: Option<PathBuf>,
    /// With --flamegraph: one frame for each line of a function, not for each function
    #[arg(long, requires = "flamegraph")]
    pub lines: bool,
    /// Write the report as a self-contained HTML page; -: standard output
    #[arg(long, value_name = "FILE.html", conflicts_with_all = ["json", "tree", "flamegraph"])]
    pub html: Option<PathBuf>,
    /// Hide stacks that match a rule in this file or a built-in rule (as in check), and show their total; repeatable
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,
    /// Apply only the rules in the files of --suppressions
    #[arg(long, requires = "suppressions")]
    pub no_builtin_suppressions: bool,
    #[command(flatten)]
    pub categories: CategoryArgs,
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    pub overwrite: Overwrite,
}

/// The rules of a report, read from their files.
pub struct Rules {
    pub suppressions: Suppressions,
    pub categories: Categories,
}

/// Which memory the report covers. Every form of the report, totals included, is filtered and shows what is left out.
#[derive(Debug, Clone, Default, Args)]
pub struct FilterArgs {
    /// Show only this kind of memory; repeatable
    #[arg(long, value_name = "KIND", value_parser = kind_parser(), hide_possible_values = true)]
    pub kind: Vec<Kind>,
    /// Show only memory on this GPU (its ordinal in the process) or on the host; repeatable
    #[arg(long, value_name = "N|host", value_parser = parse_location)]
    pub device: Vec<Location>,
    /// Show only stacks with a matching function, file or module (*, ^ and $ as in suppressions); repeatable
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    pub focus: Vec<Pattern>,
    /// Hide stacks with a matching function, file or module; repeatable
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    pub ignore: Vec<Pattern>,
    /// Show only memory allocated after this mark (culeak_mark)
    #[arg(long, value_name = "MARK")]
    pub since: Option<String>,
    /// Show only tensors of this category (`culeak categories`); repeatable
    #[arg(long, value_name = "CATEGORY", value_parser = category_parser(), hide_possible_values = true)]
    pub category: Vec<Category>,
}

impl FilterArgs {
    pub fn filter(&self, rules: &Categories) -> Filter {
        Filter {
            kinds: self.kind.clone(),
            devices: self.device.clone(),
            focus: self.focus.clone(),
            ignore: self.ignore.clone(),
            since: self.since.clone(),
            categories: self.category.clone(),
            category_rules: rules.clone(),
        }
    }
}

impl FilterArgs {
    /// # Errors
    /// The process never used the GPUs of `--device`.
    pub fn suits(&self, item: &Loaded) -> Result<(), Failure> {
        let filter = self.filter(&Categories::none());
        match filter.unused(&item.snapshot) {
            Some(unused) => Err(Failure::new(format!("{}: {unused}", item.source))),
            None => Ok(()),
        }
    }
}

fn parse_location(text: &str) -> Result<Location, String> {
    let gpu = || text.parse().ok().filter(|&ordinal| ordinal >= 0).map(Location::Gpu);
    let location = (text == "host").then_some(Location::Host).or_else(gpu);
    location.ok_or_else(|| "expected the ordinal of a GPU, such as 0, or host".to_owned())
}

fn by_parser() -> impl TypedValueParser<Value = By> {
    let names = By::ALL.iter().map(|by| by.name());
    PossibleValuesParser::new(names).map(|name| By::from_name(&name).unwrap_or_default())
}

fn sort_parser() -> impl TypedValueParser<Value = Sort> {
    let names = Sort::ALL.iter().map(|sort| sort.name());
    PossibleValuesParser::new(names).map(|name| Sort::from_name(&name).unwrap_or_default())
}

impl ReportArgs {
    fn profile_options(&self, rules: &Rules) -> profile::Options {
        profile::Options {
            full_stacks: self.full_stacks,
            filter: self.filter.filter(&rules.categories),
            suppressions: rules.suppressions.clone(),
            categories: rules.categories.clone(),
            ..profile::Options::default()
        }
    }

    /// The memory at a peak is recorded by stack.
    ///
    /// # Errors
    /// The user asks for what is not known at a peak.
    fn suits_point(&self) -> Result<(), Failure> {
        let is_of_blocks = matches!(self.by, By::Size | By::Stream | By::Thread) || self.sort == Sort::Age;
        if self.at == Some(Point::Peak) && (is_of_blocks || self.filter.since.is_some()) {
            return Err(Failure::new(
                "--at peak: the memory at a peak is recorded by stack, without sizes, streams, threads and times of single \
                 blocks; leave out --since, --by size, stream or thread, and --sort age",
            ));
        }
        if only_objects(&self.filter.kind) && (self.tree || self.flamegraph.is_some()) {
            return Err(Failure::new(
                "--tree and --flamegraph show bytes, which objects without an address do not have; use --objects, or culeak \
                 export --objects",
            ));
        }
        let others = [
            ("--between", self.between.is_some()),
            ("--objects", self.objects),
            ("--by object-kind", self.by == By::ObjectKind),
            ("--why", self.why),
            ("--category", !self.filter.category.is_empty()),
        ];
        let given = others.iter().find(|(_, given)| *given);
        if let (Some((option, _)), true) = (given, load::segments::are_wanted(&self.filter.kind)?) {
            return Err(Failure::new(format!(
                "{option} does not apply to memory from the kernel driver; leave it out, or leave out --kind"
            )));
        }
        Ok(())
    }

    /// Whether several inputs are one job: no option asks for what only the report of a process has.
    fn shows_job(&self) -> bool {
        let of_rows = self.by == By::Site && self.sort == Sort::Bytes && !self.full_stacks;
        let of_process = self.losses || self.objects || self.why || self.tree || self.between.is_some();
        // The sums of a job are of memory that programs requested.
        let of_others = matches!(load::segments::are_wanted(&self.filter.kind), Ok(true) | Err(_))
            || only_objects(&self.filter.kind);
        of_rows && !of_process && !of_others && !self.per_process
    }

    /// Reads an input, with names, at the point or in the window that the report shows.
    fn load(&self, place: &Place) -> Result<Loaded, Failure> {
        if let Some([from, to]) = self.between.as_deref() {
            let mut item = load::timeline::left_between(place, from, to)?;
            self.names.name_frames(&mut item);
            return Ok(item);
        }
        // The page also shows the events.
        let mut item = match self.html {
            Some(_) => place.load_with_timeline()?,
            None => place.load()?,
        };
        let are_segments = load::segments::are_wanted(&self.filter.kind)?;
        if !are_segments {
            self.filter.suits(&item)?;
        }
        match are_segments {
            true => load::segments::show(&mut item, self.at.as_ref(), &self.names)?,
            false => load::at::show(&mut item, self.at.as_ref(), &self.names)?,
        }
        if self.why {
            load::holders::of_place(&mut item, place)?;
        }
        Ok(item)
    }

    /// How to report one of the inputs.
    pub fn options(&self, source: String, categories: &Categories) -> Options {
        Options {
            by: self.by,
            sort: self.sort,
            top: rows_shown(self.top, !self.json && self.html.is_none()),
            min_bytes: self.min_bytes,
            filter: self.filter.filter(categories),
            categories: categories.clone(),
            categorized: self.json,
            top_objects: rows_shown(self.top, !self.json && self.html.is_none()),
            source,
            ..Options::default()
        }
    }
}

/// Reports every input that can be read; any other input makes the exit code 2.
pub fn execute(args: &ReportArgs) -> Result<ExitCode, Failure> {
    if args.phases.is_some() {
        load::segments::refuse(&args.filter.kind, "--phases")?;
    }
    if let Some(name) = &args.phases {
        return super::phases::execute(args, name);
    }
    if let Some(path) = args.flamegraph.as_ref().or(args.html.as_ref()) {
        output::check(path, args.overwrite)?;
    }
    args.suits_point()?;
    let rules = Rules {
        suppressions: suppressions_if_any(&args.suppressions, args.no_builtin_suppressions)?,
        categories: args.categories.read()?,
    };
    if let Some(path) = &args.flamegraph {
        return write_flamegraph(args, &rules, path);
    }
    let mut inputs = Inputs::new(args)?;
    if inputs.only.is_none() && args.shows_job() {
        return super::job::execute(args, &rules, inputs);
    }
    if let Some(path) = &args.html {
        let items: Vec<Loaded> = inputs.only.take().into_iter().chain(&mut inputs).collect();
        // An empty page would hide that no input could be read.
        if !items.is_empty() {
            write_html(args, &rules, &items, path)?
        }
    } else if args.json {
        print_json(args, &rules, &mut inputs)?
    } else {
        print_text(args, &rules, &mut inputs)?
    }
    Ok(ExitCode::from(if inputs.unreadable > 0 { USAGE } else { 0 }))
}

/// The inputs, read one at a time and dropped before the next, since there may be thousands.
pub struct Inputs<'a> {
    args: &'a ReportArgs,
    /// A single input, read before anything is written.
    only: Option<Loaded>,
    pub places: std::vec::IntoIter<Place>,
    pub unreadable: usize,
    progress: Option<Progress>,
}

impl<'a> Inputs<'a> {
    /// # Errors
    /// The single input cannot be read.
    fn new(args: &'a ReportArgs) -> Result<Inputs<'a>, Failure> {
        let (mut places, mut unreadable) = (Vec::new(), 0);
        for input in &args.inputs {
            let mut found = load::places(input);
            let is_nothing = args.inputs.len() == 1 && found.places.is_empty();
            if let Some(last) = found.failures.pop_if(|_| is_nothing) {
                found.failures.iter().for_each(progress::fail);
                return Err(last);
            }
            load::warn_of(&found.left_out);
            unreadable += found.failures.len();
            found.failures.iter().for_each(progress::fail);
            places.extend(found.places);
        }
        let places = load::once(places);
        let mut inputs = Inputs {
            args,
            only: None,
            places: Vec::new().into_iter(),
            unreadable,
            progress: None,
        };
        match places.as_slice() {
            [place] if unreadable == 0 || args.inputs.len() == 1 => inputs.only = Some(inputs.load(place)?),
            several => {
                // Reports that scroll by on a terminal already show the progress.
                let invisible = args.html.is_some() || !io::stdout().is_terminal();
                let progress = || Progress::over("reading", several.len() as u64, Unit::Of("files"));
                // The reader of a job has its own bar.
                inputs.progress = (invisible && !args.shows_job()).then(progress);
                inputs.places = places.into_iter();
            }
        }
        Ok(inputs)
    }

    fn load(&self, place: &Place) -> Result<Loaded, Failure> {
        let mut item = self.args.load(place)?;
        if item.snapshot.taken.point.is_none() {
            usage::ask_driver(&mut item);
        }
        Ok(item)
    }
}

impl Iterator for Inputs<'_> {
    type Item = Loaded;

    fn next(&mut self) -> Option<Loaded> {
        loop {
            let place = self.places.next()?;
            let loaded = self.load(&place);
            if let Some(progress) = &self.progress {
                progress.advance(1);
            }
            match loaded {
                Ok(item) => return Some(item),
                Err(failure) => {
                    self.unreadable += 1;
                    progress::fail(&failure);
                }
            }
        }
    }
}

fn write_html(args: &ReportArgs, rules: &Rules, loaded: &[Loaded], path: &Path) -> Result<(), Failure> {
    let items = loaded.iter().map(|item| Item {
        snapshot: &item.snapshot,
        timeline: item.timeline.as_ref(),
        options: suppressing(args, rules, item),
        full_stacks: args.full_stacks,
    });
    let items: Vec<Item> = items.collect();
    output::create(path, args.overwrite, |out| html::write_report(&items, out))
}

fn suppressing(args: &ReportArgs, rules: &Rules, item: &Loaded) -> Options {
    Options {
        suppressions: rules.suppressions.clone(),
        points: item.points.clone(),
        ..args.options(item.source.clone(), &rules.categories)
    }
}

fn print_text(args: &ReportArgs, rules: &Rules, inputs: &mut Inputs) -> Result<(), Failure> {
    text::print_lines(|out| {
        if let Some(item) = inputs.only.take() {
            return print_item(args, rules, &item, out);
        }
        for (index, item) in inputs.enumerate() {
            let gap = if index > 0 { "\n" } else { "" };
            writeln!(out, "{gap}== {} ==", Escaped(&item.source))?;
            print_item(args, rules, &item, out)?;
        }
        Ok(())
    })
}

fn print_item(args: &ReportArgs, rules: &Rules, item: &Loaded, out: &mut dyn Write) -> io::Result<()> {
    if args.tree {
        return print_tree(args, rules, item, out);
    }
    let report = Report::of(&item.snapshot, &suppressing(args, rules, item));
    let extent = text::report::Extent {
        stacks: args.stacks || args.full_stacks,
        ledger: args.ledger,
        full_stacks: args.full_stacks,
        all_losses: args.losses,
        objects: args.objects || only_objects(&args.filter.kind),
    };
    text::report::page(&report, extent).text(out)
}

/// How frames are named in trees, with lines, and in flame graphs.
fn detail(args: &ReportArgs, lines: bool) -> Detail {
    Detail {
        signatures: args.full_stacks,
        lines,
    }
}

fn print_tree(args: &ReportArgs, rules: &Rules, item: &Loaded, out: &mut dyn Write) -> io::Result<()> {
    let profile = Profile::of(&item.snapshot, &args.profile_options(rules));
    let options = args.options(item.source.clone(), &rules.categories);
    let limits = Limits {
        top: options.top,
        min_bytes: options.min_bytes,
        all: true,
    };
    let mut page = Document::default();
    text::tree::write(&profile, &Tree::of(&profile, &limits), detail(args, true), &mut page);
    if let Some(filter) = &profile.filter {
        page.line(format!("filter: {}", text::parts::filter(filter, 0)));
    }
    let sampling = item.snapshot.sampling;
    text::parts::suppressions(
        profile.suppressed,
        0,
        &profile.suppressions,
        sampling.is_some(),
        &mut page,
    );
    page.warnings(sampling.map(|sampling| estimate::sampled("of this recording", sampling)));
    page.text(out)
}

fn write_flamegraph(args: &ReportArgs, rules: &Rules, path: &Path) -> Result<ExitCode, Failure> {
    let [input] = args.inputs.as_slice() else {
        return Err(Failure::new(format!(
            "--flamegraph shows one input, not {}; name one",
            args.inputs.len()
        )));
    };
    let item = args.load(&load::single(input)?)?;
    let profile = Profile::of(&item.snapshot, &args.profile_options(rules));
    output::create(path, args.overwrite, |out| {
        flamegraph::write(&profile, detail(args, args.lines), Cost::Bytes, out)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn print_json(args: &ReportArgs, rules: &Rules, inputs: &mut Inputs) -> Result<(), Failure> {
    if let Some(item) = inputs.only.take() {
        return text::print_json(&Report::of(&item.snapshot, &suppressing(args, rules, &item)));
    }
    text::print(|out| {
        let mut json = json::pretty(&mut *out);
        let mut list = json.serialize_seq(None)?;
        for item in inputs {
            list.serialize_element(&Report::of(&item.snapshot, &suppressing(args, rules, &item)))?;
        }
        list.end()?;
        writeln!(out)
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ReportArgs,
    }

    #[test]
    fn options_that_the_report_of_a_job_lacks_imply_per_process() {
        let shows_job = |words: &str| {
            let words = ["report", "runs"].into_iter().chain(words.split_whitespace());
            Line::try_parse_from(words).expect("valid options").args.shows_job()
        };
        for words in [
            "",
            "--at peak",
            "--kind pinned",
            "--kind pinned --kind stream",
            "--json",
            "--top 3",
        ] {
            assert!(shows_job(words), "{words}");
        }
        for words in [
            "--per-process",
            "--by kind",
            "--why",
            "--tree",
            "--kind segment",
            "--kind host-segment --kind channel",
            "--kind stream",
            "--kind graph-exec --kind event",
        ] {
            assert!(!shows_job(words), "{words}");
        }
    }
}
