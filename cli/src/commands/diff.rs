//! `culeak diff`: changes between two snapshots, by call site.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use culeak::analysis::categories::Categories;
use culeak::analysis::diff::{Diff, Options, same_process};
use culeak::analysis::ledger::LedgerDiff;
use culeak::analysis::profile::tree::{Limits, Tree};
use culeak::analysis::profile::{self, Profile};
use culeak::analysis::program::Program;
use culeak::analysis::report::{By, Sort};
use culeak::analysis::words::quoted;
use culeak::snapshot::BY_READING;

use crate::document::Document;
use crate::errors::Failure;
use crate::export::flamegraph;
use crate::load::{Loaded, NameArgs, Place, holders};
use crate::names::{self, Detail};
use crate::options::output::{Form, OutputArgs};
use crate::options::refusals::{self, JOB};
use crate::options::rows_shown;
use crate::options::selection::Selection;
use crate::options::view::{Shape, View};
use crate::text::diff::RowStack;
use crate::{load, text};

/// Of `--at`.
const AT: &str = "Compare the memory at this point in time: end, peak, exit, mark:NAME, or a time such as 12.5s. If given twice: first for \
                  BEFORE, then for AFTER [default: end for a Python script that ended; otherwise exit, or now]";

/// Show changes between two snapshots, by call site
#[derive(Debug, Args)]
#[command(mut_arg("force", |force| force.help("Compare different programs, and replace existing files")))]
#[command(mut_arg("at", |at| at.help(AT)))]
#[command(after_help = "\
Rows are matched by module, function and line, so snapshots from different runs or machines can be compared; if libraries have other
versions, by the program's own lines.

Examples:
  culeak snapshot 4711 -o before.json     … some time later …
  culeak diff before.json 4711            changes since then
  culeak diff main.culeak branch.culeak   the effect of a code change
  culeak diff a.culeak --at mark:start --at end    what a program gained between two points
  culeak diff a.culeak --at mark:loaded --at mark:captured --view ledger    … by what took it: weights, KV cache, graphs, code
  culeak diff runs/monday/ runs/tuesday/  what grew, at which line, on which rank of a job
  culeak diff before.json 4711 --view tree    the changes as a tree of call stacks
  culeak diff before.json 4711 -o grown.svg    as a flame graph")]
pub struct DiffArgs {
    /// Earlier process, recording or snapshot; a folder or a pattern with several of them is a job
    #[arg(value_name = "BEFORE")]
    pub before: OsString,
    /// Later process, recording or snapshot; for a job, a folder or a pattern, whose processes are compared by rank
    /// [default: BEFORE, at the second of two points]
    #[arg(value_name = "AFTER")]
    pub after: Option<OsString>,
    /// Also compare host memory, by holder, type and arena: of processes, and of snapshots that snapshot --why --host took
    #[arg(long)]
    pub host: bool,
    /// Also show unchanged rows
    #[arg(long)]
    pub all: bool,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub view: View,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub names: NameArgs,
    /// The command line.
    #[arg(skip)]
    pub words: Vec<OsString>,
}

pub fn execute(args: &DiffArgs) -> Result<ExitCode, Failure> {
    let (form, at) = (args.output.form()?, &args.selection.at);
    if at.len() > 2 {
        return Err(Failure::new(
            "--at: given more than twice; give it once for both sides, or twice: of BEFORE and of AFTER",
        ));
    }
    let Some(other) = args.after.as_ref().or((at.len() == 2).then_some(&args.before)) else {
        return Err(Failure::new(
            "AFTER is missing; name what to compare with, or two points of BEFORE, such as --at mark:loaded --at end",
        ));
    };
    let sides = [load::places(&args.before), load::places(other)];
    if sides.iter().any(|side| side.places.len() > 1) {
        refusals::check_input(JOB)?;
        return super::job_diff::execute(args, sides, form);
    }
    let [before, after] = sides;
    let places = [before.single(&args.before)?, after.single(other)?];
    let [mut before, mut after] = held(args, &places, form)?;
    if !args.output.overwrite.force {
        check_programs(&before, &after)?;
    }
    [&before, &after]
        .into_iter()
        .try_for_each(|item| args.selection.knows_mark(item))?;
    let show = match load::segments::are_wanted(&args.selection.kind)? {
        true => load::segments::show,
        false => load::at::show,
    };
    show(&mut before, at.first(), &args.names)?;
    show(&mut after, at.last(), &args.names)?;
    let shape = args.view.shape();
    if *shape == Shape::Ledger {
        let change = LedgerDiff::of(&before.snapshot, &after.snapshot, &Categories::default());
        let page = || text::ledger::change::page(&change);
        args.output.page(form, "culeak diff: ledger", &change, page)?;
        return Ok(ExitCode::SUCCESS);
    }
    if form == Form::Svg {
        write_flamegraph(args, &before, &after)?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = args.options(form);
    if form == Form::Html {
        let full = args.view.full_stacks;
        let sides = [&before, &after].map(|side| (&side.snapshot, side.timeline.as_ref()));
        let write = |out: &mut dyn Write| text::diff::write_html(sides, &options, full, out);
        args.output.write(form, write)?;
        return Ok(ExitCode::SUCCESS);
    }
    let diff = Diff::of(&before.snapshot, &after.snapshot, &options);
    let full = args.view.full_stacks;
    args.output.page(form, "culeak diff", &diff, || match shape {
        Shape::Tree => tree(args, &options, &before, &after, &diff),
        _ => {
            let stacks = full || *shape == Shape::Stacks;
            let mut page = text::diff::page(&diff, stacks, full);
            if form == Form::Text && !stacks && diff.rows.iter().any(|row| row.bytes_delta > 0) {
                page.next(with_stacks(&args.words));
            }
            page
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Reads both sides. Without a recording there are no lines, so such sides are compared by holder if both are known.
fn held(args: &DiffArgs, places: &[Place; 2], form: Form) -> Result<[Loaded; 2], Failure> {
    let load = match form {
        Form::Html => Place::load_with_timeline,
        _ => Place::load,
    };
    let read = |place| holders::read(place, args.host, load);
    let mut sides = [read(&places[0])?, read(&places[1])?];
    let are_unrecorded = sides.iter().all(|side| side.snapshot.taken.by == BY_READING);
    let by_holder = are_unrecorded && sides.iter().any(|side| side.snapshot.holders.is_some());
    for (side, place) in sides.iter_mut().zip(places) {
        if matches!(place, Place::Process(_)) && (args.host || by_holder) {
            // Names decide which memory belongs to a caching allocator.
            args.names.name_frames(side);
            holders::of_place(side, place, args.host)?;
        }
        let host = side
            .snapshot
            .holders
            .as_ref()
            .is_some_and(|holders| holders.search.host.is_some());
        if args.host && !host {
            return Err(Failure::new(format!(
                "{}: its host memory was not searched; name a process, or a snapshot that `culeak snapshot --why --host` took",
                side.source
            )));
        }
    }
    if are_unrecorded && sides.iter().all(|side| side.snapshot.holders.is_some()) {
        sides
            .iter_mut()
            .for_each(|side| load::name_by_holder(&mut side.snapshot));
    }
    Ok(sides)
}

impl DiffArgs {
    fn options(&self, form: Form) -> Options {
        let sort = self.view.sort.as_deref().and_then(Sort::from_name);
        Options {
            by: self.view.by.unwrap_or(By::Stack),
            sites_across_libraries: self.view.by.is_none() && *self.view.shape() == Shape::Table,
            sort: sort.unwrap_or_default(),
            top: rows_shown(self.selection.top, !matches!(form, Form::Json | Form::Html)),
            min_bytes: self.selection.min_bytes,
            all: self.all,
            filter: self.selection.filter(&Categories::none()),
        }
    }
}

/// This command again, with whole stacks.
fn with_stacks(words: &[OsString]) -> String {
    let words = words.iter().skip(1).map(|word| quoted(&word.to_string_lossy()));
    format!("culeak {} --view stacks", words.collect::<Vec<_>>().join(" "))
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
        full_stacks: args.view.full_stacks,
        filter: args.selection.filter(&Categories::none()),
        ..profile::Options::default()
    };
    let detail = Detail {
        signatures: args.view.full_stacks,
        // Line numbers do not change within one process.
        lines: same_process(&before.snapshot, &after.snapshot),
    };
    let (old, new) = (
        Profile::of(&before.snapshot, &options),
        Profile::of(&after.snapshot, &options),
    );
    (old, new, detail)
}

fn tree(args: &DiffArgs, options: &Options, before: &Loaded, after: &Loaded, diff: &Diff) -> Document {
    let (old, new, detail) = profiles(args, before, after);
    let limits = Limits {
        top: options.top,
        min_bytes: options.min_bytes,
        all: args.all,
    };
    let (tree, frames) = Tree::of_difference(&old, &new, |frame| names::frame(frame, detail), &limits);
    text::diff::page_around(diff, RowStack::Callers, |page| {
        text::tree::write_difference(&frames, &tree, detail, page);
    })
}

fn write_flamegraph(args: &DiffArgs, before: &Loaded, after: &Loaded) -> Result<(), Failure> {
    let (old, new, detail) = profiles(args, before, after);
    let detail = Detail {
        lines: detail.lines && args.view.lines,
        ..detail
    };
    let write = |out: &mut dyn Write| flamegraph::write_difference(&old, &new, detail, out);
    args.output.write(Form::Svg, write)
}
