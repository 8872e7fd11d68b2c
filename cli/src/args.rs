//! The command line, as clap sees it: the list of commands and what is true for all of them.
//!
//! The options of a command stand in that command's own file, beside the code they steer.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ColorChoice, CommandFactory, Parser, Subcommand};

use crate::commands::check::CheckArgs;
use crate::commands::completions::CompletionsArgs;
use crate::commands::demo::DemoArgs;
use crate::commands::diff::DiffArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::environment::EnvironmentArgs;
use crate::commands::export::ExportArgs;
use crate::commands::live::LiveArgs;
use crate::commands::man::ManArgs;
use crate::commands::report::ReportArgs;
use crate::commands::run::RunArgs;
use crate::commands::shim_path::ShimPathArgs;
use crate::commands::snapshot::SnapshotArgs;
use crate::commands::trend::TrendArgs;
use crate::usage::ProbeUsageArgs;

/// Shown under `culeak --help`; every command returns one of these.
const EXIT_CODES: &str = "\
Exit codes:
  0        success
  1        check, run --check: a leak over the limit; trend --fail-on: growth; demo, doctor: something does not work
  2        wrong usage or environment, or input that cannot be read
  126,127  run, live: the program cannot be executed, or was not found
  other    run, live: the program's own exit code; 128+N when signal N ended it

First steps:
  culeak demo                          a tour on a program with known leaks
  culeak run -- python train.py        record a program, then report what it left behind
  LD_PRELOAD=$(culeak shim-path) app   the same without this program; the recording stays behind";

/// Finds the GPU memory that a CUDA program never frees, and the lines of code that asked for it.
#[derive(Debug, Parser)]
#[command(name = "culeak", version, after_help = EXIT_CODES, max_term_width = 120)]
pub struct Arguments {
    /// When to colour the output; auto: on a terminal, unless NO_COLOR is set, and if CLICOLOR_FORCE is
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        help_heading = "Global options"
    )]
    pub color: ColorChoice,
    #[command(subcommand)]
    pub command: Command,
}

/// How `probe` calls this program.
pub const PROBE: &str = "__probe-driver";
/// How `symbolize` calls this program.
pub const SYMBOLIZE: &str = "__symbolize";
/// How `usage` calls this program.
pub const PROBE_USAGE: &str = "__probe-usage";

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunArgs),
    Report(ReportArgs),
    Snapshot(SnapshotArgs),
    Live(LiveArgs),
    Diff(DiffArgs),
    Trend(TrendArgs),
    Check(CheckArgs),
    Export(ExportArgs),
    Demo(DemoArgs),
    Doctor(DoctorArgs),
    ShimPath(ShimPathArgs),
    Environment(EnvironmentArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    /// The program that the demo watches
    #[command(hide = true)]
    DemoProgram,
    /// Ask the CUDA driver and print its answers as JSON
    #[command(name = PROBE, hide = true)]
    Probe,
    /// Look up names of functions in module files, as requests on standard input say
    #[command(name = SYMBOLIZE, hide = true)]
    Symbolize,
    /// Ask NVML about devices and print its answers as JSON
    #[command(name = PROBE_USAGE, hide = true)]
    ProbeUsage(ProbeUsageArgs),
}

/// What people type who know another tool, and what they look for.
const HINTS: [(&str, &str); 8] = [
    (
        "attach",
        "culeak cannot attach to a running program; start it with 'culeak run -- PROGRAM'",
    ),
    ("top", "did you mean 'culeak live'?"),
    ("watch", "did you mean 'culeak live'?"),
    ("record", "did you mean 'culeak run'?"),
    ("ps", "did you mean 'culeak snapshot --list'?"),
    ("list", "did you mean 'culeak snapshot --list'?"),
    ("compare", "did you mean 'culeak diff'?"),
    ("flamegraph", "did you mean 'culeak report --flamegraph FILE.svg'?"),
];

/// The command line of this process.
///
/// # Errors
/// It is wrong, or only asks for help.
pub fn parse() -> Result<Arguments, clap::Error> {
    Arguments::try_parse().map_err(with_hint)
}

fn with_hint(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    if let Some(&(_, hint)) = HINTS.iter().find(|(name, _)| name == word) {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(
            ContextKind::Suggested,
            ContextValue::StyledStrs(vec![StyledStr::from(hint)]),
        );
    }
    error
}

/// The command line without what only this program itself calls, for completions and manual pages.
pub fn public() -> clap::Command {
    let whole = Arguments::command();
    let commands = whole.get_subcommands().filter(|command| !command.is_hide_set());
    let commands: Vec<_> = commands.cloned().collect();
    let mut public = clap::Command::new("culeak")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .args(
            whole
                .get_arguments()
                .filter(|argument| !argument.is_hide_set())
                .cloned(),
        )
        .subcommands(commands);
    if let Some(about) = whole.get_about() {
        public = public.about(about.clone());
    }
    public.after_help(EXIT_CODES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands in a page's examples, without prompt, comment, redirection and what stands before `culeak`.
    fn commands(page: &str) -> Vec<Vec<&str>> {
        let example =
            |line: &&str| line.starts_with("    ") || line.trim_start().starts_with("- ") || line.starts_with("  run:");
        let lines = page.lines().filter(example);
        let found = lines.filter_map(|line| {
            let line = line
                .trim_start()
                .trim_start_matches(['-', '$', ' '])
                .trim_start_matches("run: ");
            let end = ["  #", " > ", " >> ", " | "]
                .iter()
                .filter_map(|end| line.find(end))
                .min();
            let words: Vec<_> = line[..end.unwrap_or(line.len())].split_whitespace().collect();
            (words.first() == Some(&"culeak")).then_some(words)
        });
        found
            .map(|words| words.into_iter().map(|word| word.trim_matches('\'')).collect())
            .collect()
    }

    #[test]
    fn what_to_record_is_refused_where_nothing_is_started() {
        let understood = |words: &str| Arguments::try_parse_from(words.split(' ')).is_ok();
        assert!(understood("culeak live 4711 --interval 2"));
        assert!(understood("culeak live 4711 --interval 500ms"));
        assert!(understood("culeak live -o runs --snapshot-at-mark -- ./app --its own"));
        assert!(!understood("culeak live -o runs 4711"));
        assert!(!understood("culeak live --snapshot-at-mark 4711"));
        assert!(!understood("culeak live 4711 -- ./app"));
        assert!(!understood("culeak live"));
        assert!(!understood("culeak live 4711 --interval 0"));
    }

    #[test]
    fn every_command_in_the_readme_and_the_pages_is_understood() {
        let pages = [
            include_str!("../../README.md"),
            include_str!("../../docs/ci.md"),
            include_str!("../../docs/environment.md"),
            include_str!("../../docs/formats.md"),
            include_str!("../../docs/frameworks.md"),
            include_str!("../../docs/live.md"),
            include_str!("../../docs/reports.md"),
            include_str!("../../docs/snapshots.md"),
        ];
        let commands: Vec<_> = pages.into_iter().flat_map(commands).collect();
        assert!(commands.len() > 10, "{commands:?}");
        assert!(commands.iter().any(|words| words.contains(&"junit")), "{commands:?}");
        for words in commands {
            if let Err(error) = Arguments::try_parse_from(&words) {
                panic!("{words:?}: {error}");
            }
        }
    }
}
