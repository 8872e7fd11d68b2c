//! `culeak why`: what keeps memory alive, and what would be freed with it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use culeak::analysis::why::{Options, Selector, Unanswered, Why};
use culeak::snapshot::{Class, Holders};

use crate::errors::Failure;
use crate::load::holders::{self, Wanted};
use crate::load::{self, Loaded, NameArgs, Place};
use crate::options::categories::CategoryArgs;
use crate::options::output::{Form, OutputArgs};
use crate::options::selection::Selection;
use crate::options::{parsed, rows_shown};
use crate::{html, text};

/// Show what keeps memory alive: the path from a variable to each block, and what would be freed with it
#[derive(Debug, Args)]
#[command(after_help = "\
The memory of a process is copied while it runs, without running code in it, and searched for references to its blocks: from \
Python's modules, frames and threads, then from global variables and stacks of native code. Each block has one class: held by a \
variable; an uncollected cycle of Python objects; held by native code through a Python object; over-counted, if a reference was \
never released; lost, if nothing points to it any more. Device memory is not searched.

Examples:
  culeak why 4711                            what holds the memory of a running process
  culeak why 4711 train.py:212               memory that this line allocated
  culeak why 4711 0x7f5a20000000             the whole path to one block
  culeak why 4711 --class cycle              memory that gc.collect() would free
  culeak why 4711 --by module                the layers of a PyTorch model
  culeak why 4711 --host                     host memory beside that of the GPU
  culeak why 4711 --host --by type           host memory by type of its objects
  culeak run --why -- python train.py        search at the end and when memory runs out; afterwards:
  culeak why python.host.4711.culeak
  culeak why runs/                           all ranks of a job, by the shape of the path
  culeak why --core core.4711 python.host.4711.culeak
  culeak why 4711 -o why.html                a page with the tree of holders")]
pub struct WhyArgs {
    /// Process id, recording of run --why, or snapshot of snapshot --why; or a folder, a pattern or - with a list of these, whose
    /// answers are merged. With --core: the recording of the process
    #[arg(value_name = "PID|RECORDING|SNAPSHOT", required_unless_present = "core")]
    pub input: Option<OsString>,
    /// Show only the memory of this call site, such as train.py:212 or a part of a function's name (*, ^ and $ as in
    /// suppressions). If no call site matches: of this holder, such as __main__.cache. Or the block at this address
    #[arg(value_name = "SITE|HOLDER|ADDRESS", value_parser = parsed::<Selector>)]
    pub selector: Option<Selector>,
    /// Show only memory of this class
    #[arg(long, value_parser = class_parser())]
    pub class: Option<Class>,
    /// Show the memory by module of PyTorch, with sums up the tree, instead of by holder; with --host, what is resident by type of its
    /// objects, or by arena: of malloc, Python's heap, mappings
    #[arg(long, value_name = "WHAT", value_parser = ["holder", "module", "type", "arena"])]
    pub by: Option<String>,
    /// Search this core file instead of a running process
    #[arg(long, value_name = "FILE")]
    pub core: Option<PathBuf>,
    /// Stop the process while its memory is copied, so that the copy is consistent
    #[arg(long, conflicts_with = "core")]
    pub pause: bool,
    /// Copy the memory of a running process until each block is explained, or N copies in a row explain no further block [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64), conflicts_with = "core")]
    pub copies: Option<u32>,
    /// Stop searching after TIME; the answer says what was not searched [default: 1m]
    #[arg(long, value_name = "TIME", value_parser = text::units::parse_duration)]
    pub limit: Option<Duration>,
    /// Show the host memory that each holder keeps, too, and rank by it; of a running process or a core file
    #[arg(long)]
    pub host: bool,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub categories: CategoryArgs,
    #[command(flatten)]
    pub names: NameArgs,
}

fn class_parser() -> impl TypedValueParser<Value = Class> {
    // JSON has names with underscores.
    let names = Class::ALL
        .iter()
        .map(|class| PossibleValue::new(class.name()).alias(class.name().replace('-', "_")));
    PossibleValuesParser::new(names).map(|name| Class::from_name(&name.replace('_', "-")).unwrap_or_default())
}

/// Rows of one holder that a page lists at most.
const ROWS_OF_A_HOLDER: usize = 200;

pub fn execute(args: &WhyArgs) -> Result<ExitCode, Failure> {
    let form = args.output.form()?;
    if let (Some(by @ ("type" | "arena")), false) = (args.by.as_deref(), args.host) {
        return Err(Failure::new(format!("--by {by} is about host memory; add --host")));
    }
    if let Some(core) = &args.core {
        return answer(args, of_core(core, args)?, form);
    }
    let input = args.input.as_deref().unwrap_or_default();
    let found = load::places(input);
    if found.places.len() > 1 {
        if let Some(by @ ("module" | "type" | "arena")) = args.by.as_deref() {
            return Err(Failure::new(format!("--by {by} shows one process; name one input")));
        }
        return super::job_why::execute(args, &found.places, found.failures, form);
    }
    answer(args, load_place(args, &found.single(input)?)?, form)
}

/// Shows what holds the memory of one input.
fn answer(args: &WhyArgs, item: Loaded, form: Form) -> Result<ExitCode, Failure> {
    args.selection.suits(&item)?;
    let categories = args.categories.read()?;
    let top_named = args.selection.top;
    let (top, rows) = match form {
        Form::Json => (rows_shown(top_named, false), None),
        Form::Html => (
            rows_shown(top_named.or(Some(html::ROWS)), false),
            Some(ROWS_OF_A_HOLDER),
        ),
        _ => (rows_shown(top_named, true), Some(text::why::ROWS_SHOWN)),
    };
    let modules = (args.by.as_deref() == Some("module")).then(|| top.unwrap_or(usize::MAX));
    let options = Options {
        source: item.source.clone(),
        core: args.core.as_ref().map(|path| path.display().to_string()),
        selector: args.selector.clone(),
        class: args.class,
        filter: args.selection.filter(&categories),
        top,
        rows: rows.filter(|_| top_named != Some(0)),
        min_bytes: args.selection.min_bytes,
        host: args.host,
    };
    let was_asked = |holders: &Holders| holders.search.host.is_some() || args.core.is_some();
    if args.host && !item.snapshot.holders.as_ref().is_some_and(was_asked) {
        let source = &item.source;
        return Err(Failure::new(format!(
            "{source}: --host reads the memory of a running process or of a core file; name the process id, a core file with --core, \
             or a snapshot that `culeak snapshot --why --host` took"
        )));
    }
    let why = Why::of(&item.snapshot, &options).map_err(|unanswered| failure(&unanswered, args, &item))?;
    let title = format!("culeak why: {}", text::parts::process(&why.process));
    args.output
        .page(form, &title, &why, || match (args.by.as_deref(), &why.search.host) {
            (Some("type"), Some(host)) => text::host::page(&why, &host.types, top),
            (Some("arena"), Some(host)) => text::host::page(&why, &host.by_arena(), top),
            _ => text::why::page(&why, modules),
        })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the recording of a core file's process, and searches the core file for what holds its memory.
fn of_core(path: &Path, args: &WhyArgs) -> Result<Loaded, Failure> {
    let (mut core, mut item) = holders::open_core(path, args.input.as_deref())?;
    args.names.name_frames(&mut item);
    holders::attach(&mut item.snapshot, &mut core, &wanted(args))?;
    Ok(item)
}

fn wanted(args: &WhyArgs) -> Wanted {
    Wanted {
        copies: args.copies,
        limit: args.limit,
        host: args.host,
        names: args.names.clone(),
        concrete: match args.selector {
            Some(Selector::Address(address)) => vec![address],
            _ => Vec::new(),
        },
        ..Wanted::default()
    }
}

/// As [`load`], for one of the inputs.
pub(super) fn load_place(args: &WhyArgs, place: &Place) -> Result<Loaded, Failure> {
    let wanted = wanted(args);
    if let (Place::Process(pid), true) = (place, args.pause) {
        return holders::of_stopped(*pid, &wanted, |item| _ = args.names.name_frames(item));
    }
    let of_process = [("--pause", args.pause), ("--copies", args.copies.is_some())];
    if let (false, Some((option, _))) = (
        matches!(place, Place::Process(_)),
        of_process.iter().find(|(_, is_given)| *is_given),
    ) {
        return Err(Failure::new(format!(
            "{place}: {option} is about the search of a running process, and the holders in a file were searched for before; leave it out"
        )));
    }
    let mut item = holders::read(place, args.host, Place::load)?;
    if let Place::Process(pid) = place {
        args.names.name_frames(&mut item);
        holders::of_process(&mut item, *pid, &wanted)?;
    } else {
        load::at::show(&mut item, None, &args.names)?;
    }
    Ok(item)
}

/// Whether it is a recording or a snapshot, by its name.
fn is_input(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    path.is_file() && matches!(ending, Some("culeak" | "json"))
}

pub(super) fn failure(unanswered: &Unanswered, args: &WhyArgs, item: &Loaded) -> Failure {
    let source = &item.source;
    Failure::new(match unanswered {
        Unanswered::NotSearched => holders::not_searched(item),
        Unanswered::IsPeak => format!(
            "{source}: shows the peak, which is recorded by stack, without the addresses of blocks; name another snapshot"
        ),
        Unanswered::NothingSelected(sites) => {
            let nothing = match &args.selector {
                Some(Selector::Address(address)) => format!("no live block contains the address {address:#x}"),
                Some(Selector::Line(file, line)) => format!("no live memory was allocated at {file}:{line}"),
                // A pattern of the shell has named two recordings.
                Some(Selector::Site(pattern)) if is_input(Path::new(pattern.text())) => {
                    format!(
                        "{:?} is a file; name one input, or a folder of recordings",
                        pattern.text()
                    )
                }
                Some(Selector::Site(pattern)) => {
                    format!(
                        "no call site, holder or caller of live memory matches {:?}",
                        pattern.text()
                    )
                }
                None => "no live memory".to_owned(),
            };
            match sites.as_slice() {
                [] => format!("{source}: {nothing}; no call site has live memory"),
                sites => format!("{source}: {nothing}; there is memory of {}", sites.join(", ")),
            }
        }
    })
}
