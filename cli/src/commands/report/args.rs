//! What a report is of: its options, and the rules of their files.

use std::ffi::OsString;

use clap::Args;
use culeak::analysis::categories::Categories;
use culeak::analysis::filter::only_objects;
use culeak::analysis::report::{By, Options, Sort};
use culeak::analysis::suppressions::Suppressions;
use culeak::snapshot::BY_READING;

use crate::errors::Failure;
use crate::load::{self, Loaded, NameArgs, Place};
use crate::options::categories::CategoryArgs;
use crate::options::output::{Form, OutputArgs};
use crate::options::refusals::{self, SEVERAL};
use crate::options::rows_shown;
use crate::options::rules::SuppressionArgs;
use crate::options::selection::Selection;
use crate::options::view::{Shape, View};

/// Show the memory that a process holds or leaked, by call site
#[derive(Debug, Default, Args)]
#[command(after_help = "\
Examples:
  culeak report app.host.4711.culeak            leaks of a finished program
  culeak report 4711 --by kind                  memory held by a running program
  culeak report runs/ -o report.html            all ranks of a job, as a self-contained HTML page
  culeak report app.host.4711.culeak --at peak  memory at the peak, in full
  culeak report app.host.4711.culeak --between mark:warm exit    allocated since then and still live
  culeak report 4711 --kind pinned --focus loader.py     pinned memory from loader.py only
  culeak report 4711 --kind segment             what the kernel driver gave, by the lines that caused it
  culeak report 4711 --by module                the layers of a PyTorch model, if their holders are known
  culeak report 4711 --by category              parameters, gradients, activations, caches …
  culeak report 4711 --why                      what holds the memory of each call site
  culeak report 4711 --view tree                call stacks as a tree
  culeak report app.host.4711.culeak --view phases    memory by phase (NVTX ranges)
  culeak report app.host.4711.culeak --view churn     temporary allocations and lifetimes, of run --timeline
  culeak report 4711 --view segments            why memory is reserved and not used, and which lines keep it
  culeak report 4711 -o gpu.svg                 call stacks as a flame graph
  culeak report runs/ --json > job.json         which rank differs from the others, as JSON
  culeak report runs/ --per-process             one report for each recording in a folder")]
pub struct ReportArgs {
    /// Process ids, recordings, snapshots, folders of recordings or snapshots, patterns such as runs/*.culeak, or - for a
    /// snapshot or a list of these on standard input
    #[arg(required = true, value_name = "PID|RECORDING|SNAPSHOT")]
    pub inputs: Vec<OsString>,
    /// Search the memory of running processes for what holds their memory, and show it for each call site (as culeak why)
    #[arg(long)]
    pub why: bool,
    /// Of a Python process that was started without culeak: switch PyTorch's own allocation history on in it, or off, so that blocks that it
    /// allocates from now on have lines. Runs Python code in the process, and asks before
    #[arg(long, value_name = "on|off", num_args = 0..=1, default_missing_value = "on", require_equals = true, value_parser = ["on", "off"])]
    pub trace: Option<String>,
    /// Do not ask before --trace runs code in the process
    #[arg(long, requires = "trace")]
    pub yes: bool,
    /// Print one report for each process instead of one for the job; options that the report of a job lacks imply this
    #[arg(long)]
    pub per_process: bool,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub view: View,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub suppressions: SuppressionArgs,
    #[command(flatten)]
    pub categories: CategoryArgs,
    #[command(flatten)]
    pub names: NameArgs,
}

/// The rules of a report, read from their files.
pub struct Rules {
    pub suppressions: Suppressions,
    pub categories: Categories,
}

impl ReportArgs {
    /// Whether several inputs are one job: no option asks for what only the report of a process has.
    pub fn shows_job(&self) -> bool {
        let view = &self.view;
        let of_rows =
            matches!(view.by, None | Some(By::Site | By::Forward)) && self.sort() == Sort::Bytes && !view.full_stacks;
        let of_process =
            *view.shape() != Shape::Table || self.why || self.trace.is_some() || self.selection.between.is_some();
        // The sums of a job are of memory that programs requested.
        let kinds = &self.selection.kind;
        let of_others = matches!(load::segments::are_wanted(kinds), Ok(true) | Err(_)) || only_objects(kinds);
        of_rows && !of_process && !of_others && !self.per_process
    }

    fn sort(&self) -> Sort {
        let named = self.view.sort.as_deref().and_then(Sort::from_name);
        named.unwrap_or_default()
    }

    /// Reads an input, with names, at the point or in the window that the report shows.
    pub fn load(&self, place: &Place, form: Form) -> Result<Loaded, Failure> {
        let selection = &self.selection;
        if let Some([from, to]) = selection.window() {
            let mut item = load::timeline::left_between(place, from, to)?;
            self.names.name_frames(&mut item);
            return Ok(item);
        }
        // The page also shows the events.
        let mut item = match form {
            _ if self.trace.is_some() => self.traced(place)?,
            Form::Html => place.load_with_timeline()?,
            _ => place.load()?,
        };
        match load::segments::are_wanted(&selection.kind)? {
            true => load::segments::show(&mut item, selection.point(), &self.names)?,
            false => {
                selection.suits(&item)?;
                load::at::show(&mut item, selection.point(), &self.names)?;
            }
        }
        // Without a recording there are no lines, so holders are all that a reader can go by.
        let is_unrecorded = item.snapshot.taken.by == BY_READING && matches!(place, Place::Process(_));
        if self.why || is_unrecorded || self.view.by == Some(By::Module) {
            load::holders::of_place(&mut item, place, false)?;
        }
        Ok(item)
    }

    fn traced(&self, place: &Place) -> Result<Loaded, Failure> {
        match place {
            Place::Process(pid) => load::traced(*pid, self.trace.as_deref() == Some("on"), self.yes),
            _ => Err(Failure::new("--trace is for a running process; name its id")),
        }
    }

    /// How to report one of the inputs.
    pub fn options(&self, source: String, categories: &Categories, form: Form) -> Options {
        let in_text = matches!(form, Form::Text | Form::Markdown);
        let top = rows_shown(self.selection.top, in_text);
        Options {
            by: self.view.by.unwrap_or_default(),
            sort: self.sort(),
            top,
            min_bytes: self.selection.min_bytes,
            filter: self.selection.filter(categories),
            categories: categories.clone(),
            categorized: form == Form::Json,
            without_minor_rows: in_text,
            top_objects: top,
            source,
            ..Options::default()
        }
    }

    /// The only input, where there can be no other.
    pub fn input(&self) -> Result<&OsString, Failure> {
        if let [input] = self.inputs.as_slice() {
            return Ok(input);
        }
        refusals::check_input(SEVERAL)?;
        Err(Failure::new("this shows one process; name one input"))
    }
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
            "--view tree",
            "--kind segment",
            "--kind host-segment --kind channel",
            "--kind stream",
            "--kind graph-exec --kind event",
        ] {
            assert!(!shows_job(words), "{words}");
        }
    }
}
