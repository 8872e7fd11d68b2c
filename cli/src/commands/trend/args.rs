//! The options of trends.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueEnum};
use culeak::analysis::categories::Categories;
use culeak::analysis::trend::{Against, Options, Summary};

use crate::load::{Loaded, NameArgs};
use crate::options::output::{Form, OutputArgs};
use crate::options::rows_shown;
use crate::options::selection::Selection;
use crate::options::view::View;
use crate::text::units::parse_duration;
use crate::usage;

/// Show which call sites grow over many snapshots, how fast, and with what confidence
#[derive(Debug, Args)]
#[command(mut_arg("force", |force| force.help("Treat snapshots of different programs as one program, and replace existing files")))]
#[command(after_help = "\
Inputs are snapshots (JSON), recordings, automatic snapshots beside them (--snapshot every:TIME,mark), or folders of \
these. They are sorted by time; concurrent processes are judged separately.

Exit codes: 0 done, 1 growth (with --fail-on growing), 2 wrong usage, unreadable input, or too few snapshots or no marks for --fail-on, or \
something else that it did not judge.

Examples:
  culeak trend --pid 4711 --every 30s --for 10m      take snapshots, then report
  culeak trend monday.json tuesday.json …            snapshots taken earlier
  culeak run -o runs --snapshot every:30s -- ./serve take automatic snapshots; afterwards:
  culeak trend runs --fail-on growing
  culeak trend runs --only serve                     one of several programs in the folder
  culeak trend runs --per-process                    each rank of a job by itself")]
pub struct TrendArgs {
    /// Snapshots, recordings, automatic snapshots, or folders of them
    #[arg(value_name = "FILE|FOLDER", required_unless_present = "pid")]
    pub inputs: Vec<OsString>,
    /// Use only snapshots of this program, e.g. serve, train.py, 'python *'; * and ? are wildcards
    #[arg(long, value_name = "PATTERN", conflicts_with = "pid")]
    pub only: Option<String>,
    /// Take snapshots of this process now, without stopping it
    #[arg(long, value_name = "PID", conflicts_with = "inputs")]
    pub pid: Option<u32>,
    /// Interval between snapshots, e.g. 500ms, 30s, 10m
    #[arg(long, value_name = "TIME", default_value = "30s", requires = "pid", value_parser = parse_duration)]
    pub every: Duration,
    /// Stop after TIME [default: when the process ends or at Ctrl-C; both report the snapshots taken]
    #[arg(long = "for", value_name = "TIME", requires = "pid", value_parser = parse_duration)]
    pub lasting: Option<Duration>,
    /// Measure growth against time, or against marks that the program sets (culeak_mark)
    #[arg(long, value_enum, default_value = "time")]
    pub against: Axis,
    /// Also show call sites that never changed
    #[arg(long)]
    pub all: bool,
    /// Exit with code 1 if a call site is growing, or grew until the program ended and freed it only at exit
    #[arg(long, value_enum, value_name = "CLASS")]
    pub fail_on: Option<FailOn>,
    /// With --fail-on, pass although something was not judged, such as a process with too few snapshots
    #[arg(long, requires = "fail_on")]
    pub allow_losses: bool,
    /// Show each of several concurrent processes by itself, not all as one job; implied by -o FILE.html
    #[arg(long)]
    pub per_process: bool,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub view: View,
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(flatten)]
    pub names: NameArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Axis {
    Time,
    Marks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    Growing,
}

impl TrendArgs {
    pub fn summary(&self, mut item: Loaded, options: &Options) -> Summary {
        usage::ask_driver(&mut item);
        self.names.name_frames(&mut item);
        Summary::of(&item.snapshot, item.source, options)
    }

    pub fn options(&self, form: Form) -> Options {
        Options {
            by: self.view.by.unwrap_or_default(),
            against: match self.against {
                Axis::Time => Against::Time,
                Axis::Marks => Against::Marks,
            },
            filter: self.selection.filter(&Categories::none()),
            top: rows_shown(self.selection.top, !matches!(form, Form::Json | Form::Html)),
            min_bytes: self.selection.min_bytes,
            all: self.all,
        }
    }
}
