//! The command line: the list of commands, the global options, and hints for misspelled commands.
//!
//! The options of a command are in that command's own file, beside the code that they configure.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};
use std::path::Path;

use clap::builder::{PossibleValuesParser, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use culeak::table;

use crate::commands::check::CheckArgs;
use crate::commands::demo::DemoArgs;
use crate::commands::diff::DiffArgs;
use crate::commands::doctor::{self, DoctorArgs, ProbeRankArgs};
use crate::commands::export::ExportArgs;
use crate::commands::help::{self, HelpArgs};
use crate::commands::live::LiveArgs;
use crate::commands::mcp::McpArgs;
use crate::commands::report::ReportArgs;
use crate::commands::run::RunArgs;
use crate::commands::setup::SetupArgs;
use crate::commands::shim_path::ShimPathArgs;
use crate::commands::snapshot::SnapshotArgs;
use crate::commands::trend::TrendArgs;
use crate::commands::watch::WatchArgs;
use crate::commands::whatif::WhatIfArgs;
use crate::commands::why::WhyArgs;
use crate::escape::Escaped;
use crate::launch::preload;
use crate::options::config::ConfigArgs;
use crate::options::display::DisplayArgs;
use crate::options::refusals::{self, Asked};
use crate::text::parts::BOLD;
use crate::text::units::when;
use crate::usage::ProbeUsageArgs;
use crate::{probe, symbolize, usage};

/// Shown by `culeak --help`. Every command returns one of these codes.
const EXIT_CODES: &str = "\
Exit codes:
  0        success
  1        check: leak over the limit; trend --fail-on: growth; demo, doctor: failure
  2        wrong usage or environment, or a file that cannot be read or written
  126,127  run, live, check: the program cannot be executed, or was not found
  other    run, live, check: the program's own exit code, or 128+N if signal N ended it

First steps:
  culeak demo                          a tour on a program with known leaks
  culeak run -- python train.py        record a program, then report what it leaked
  culeak help quickstart               from installation to a named line, in C++ and Python
  LD_PRELOAD=$(culeak shim-path) app   record without `culeak run`; report the recording later

`culeak help` lists the guides; `culeak help COMMAND` shows the options of a command, and its guide.";

/// Help texts are wrapped at this width on wider terminals.
const WIDEST: usize = 120;

/// Find the GPU memory that a CUDA program never frees, and the code that allocated it.
#[derive(Debug, Parser)]
#[command(name = "culeak", version, after_help = EXIT_CODES, max_term_width = WIDEST, disable_help_subcommand = true)]
pub struct Arguments {
    #[command(flatten)]
    pub display: DisplayArgs,
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one value, for the whole life of the process"
)]
pub enum Command {
    Run(RunArgs),
    Report(ReportArgs),
    Why(WhyArgs),
    Snapshot(SnapshotArgs),
    Live(LiveArgs),
    Diff(DiffArgs),
    Trend(TrendArgs),
    #[command(name = "whatif")]
    WhatIf(WhatIfArgs),
    Check(CheckArgs),
    Export(ExportArgs),
    Watch(WatchArgs),
    Mcp(McpArgs),
    Demo(DemoArgs),
    Doctor(DoctorArgs),
    Help(HelpArgs),
    // Hidden, because it is typed once into a script, but not a part of `setup`: `LD_PRELOAD=$(culeak shim-path)` is a way to
    // record, and its place is in job scripts, units and container files.
    #[command(hide = true)]
    ShimPath(ShimPathArgs),
    #[command(hide = true)]
    Setup(SetupArgs),
    /// The program that the demo records
    #[command(hide = true)]
    DemoProgram,
    /// Query the CUDA driver and print the answers as JSON
    #[command(name = probe::COMMAND, hide = true)]
    Probe,
    /// Look up function names in module files; requests arrive on standard input
    #[command(name = symbolize::COMMAND, hide = true)]
    Symbolize,
    /// Query NVML about devices and print the answers as JSON
    #[command(name = usage::COMMAND, hide = true)]
    ProbeUsage(ProbeUsageArgs),
    /// Print what a launcher gave to this process as JSON
    #[command(name = doctor::PROBE_COMMAND, hide = true)]
    ProbeRank(ProbeRankArgs),
}

impl Command {
    /// Whether it reads a config file. The other commands must work beside a file with a mistake.
    pub fn reads_config(&self) -> bool {
        // Each question of `mcp` does.
        !matches!(
            self,
            Command::Mcp(_)
                | Command::Demo(_)
                | Command::Doctor(_)
                | Command::ShimPath(_)
                | Command::Setup(_)
                | Command::Help(_)
                | Command::DemoProgram
                | Command::Probe
                | Command::Symbolize
                | Command::ProbeUsage(_)
                | Command::ProbeRank(_)
        )
    }
}

/// Commands of other tools, and the hint that each gets.
const HINTS: [(&str, &str); 9] = table! {
    "attach", "culeak cannot attach to a running program; start it with 'culeak run -- PROGRAM'";
    "top", "did you mean 'culeak live'?";
    "record", "did you mean 'culeak run'?";
    "ps", "did you mean 'culeak snapshot --list'?";
    "list", "did you mean 'culeak snapshot --list'?";
    "compare", "did you mean 'culeak diff'?";
    "stats", "did you mean 'culeak report --view churn'?";
    "metrics", "did you mean 'culeak watch', or 'culeak export --format openmetrics'?";
    "flamegraph", "did you mean 'culeak report -o FILE.svg'?";
};

const FOLDER_OF_CHECK: &str = "--output is the folder in which culeak check -- PROGRAM records; for a page of an input: culeak report INPUT -o \
                               FILE.html; for a verdict in a file: culeak check INPUT --format FORMAT > FILE";

/// Options of no command, and what to type instead.
const INSTEAD: [(&str, &str); 9] = table! {
    "--html", "-o FILE.html";
    "--flamegraph", "-o FILE.svg";
    "--tree", "--view tree";
    "--stacks", "--view stacks";
    "--ledger", "--view ledger";
    "--losses", "--view losses";
    "--phases", "--view phases";
    "--objects", "--view objects";
    "--version", "culeak --version";
};

/// Parses a command line.
///
/// # Errors
/// The command line is wrong, or asks for help or the version.
pub fn parse(words: &[OsString]) -> Result<(Arguments, Asked), clap::Error> {
    let mut command = command();
    if words.iter().take_while(|word| *word != "--").any(|word| word == "-h") {
        command = shortened(command);
    }
    let matches = command.try_get_matches_from_mut(words)?;
    let asked = matches.subcommand().and_then(|(name, matches)| {
        let command = command.find_subcommand(name)?;
        Some(Asked::of(command, matches))
    });
    Ok((Arguments::from_arg_matches(&matches)?, asked.unwrap_or_default()))
}

/// The command line; options that a command never has are hidden.
pub fn command() -> clap::Command {
    let mut whole = Arguments::command();
    let names: Vec<String> = whole
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    for name in names {
        whole = whole.mut_subcommand(&name, |command| {
            let hide = |command: clap::Command, option: &'static str| {
                command.mut_arg(option.replace('-', "_"), |argument| argument.hide(true))
            };
            refusals::absent(&name).fold(command, hide)
        });
    }
    grouped(whole)
}

/// What to type instead of a command that does not exist.
fn no_command(word: &str) -> String {
    let whole = public();
    let near = help::nearest(word, whole.get_subcommands().map(clap::Command::get_name));
    let hint = match HINTS.iter().find(|(name, _)| *name == word) {
        Some((_, hint)) => (*hint).to_owned(),
        None if help::guides().any(|name| name == word) => format!("to read this guide: culeak help {word}"),
        None if !near.is_empty() => format!("did you mean {}?", near.join(" or ")),
        None if preload::examine(word.as_ref(), &[]).is_ok() => {
            format!("to record this program: culeak run -- {} …", Escaped(word))
        }
        None => "culeak help lists all".to_owned(),
    };
    format!("culeak has no command {}; {hint}", Escaped(word))
}

/// What to type instead, where clap's own message names only an argument. `words`: those of the command line.
pub fn sentence(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let texts = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    if let Some(word) = texts(ContextKind::InvalidSubcommand).first() {
        return Some(no_command(word));
    }
    let named = texts(ContextKind::InvalidArg);
    let first = named.first()?;
    let bare = |argument: &str| argument.split([' ', '[', '=']).next().unwrap_or_default().to_owned();
    match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            let usage = match error.get(ContextKind::Usage) {
                Some(ContextValue::StyledStr(usage)) => usage.to_string(),
                _ => return None,
            };
            let mut usages = usage.lines().map(|line| line.trim_start_matches("Usage:").trim());
            let usage = usages.next()?;
            let others: String = usages.map(|line| format!(", or {line}")).collect();
            let verb = if named.len() == 1 { "is" } else { "are" };
            let missing: Vec<&str> = named.iter().map(|name| name.trim_end_matches("...")).collect();
            let example = example(
                usage.split(' ').nth(1)?,
                missing.first().copied().unwrap_or_default(),
                words,
            );
            let example = example.map(|example| format!("; for example: {example}"));
            let swallowed =
                swallowed(usage.split(' ').nth(1)?, words).filter(|_| named.iter().any(|name| name.starts_with('<')));
            let swallowed = swallowed.map(|text| format!("{text}; ")).unwrap_or_default();
            Some(format!(
                "{swallowed}{} {verb} missing; type: {usage}{others}{}",
                missing.join(" and "),
                example.unwrap_or_default()
            ))
        }
        ErrorKind::UnknownArgument => {
            let usage = error.get(ContextKind::Usage)?.to_string();
            let usage = usage.lines().next()?.trim_start_matches("Usage:").trim();
            if !first.starts_with('-') {
                return Some(format!("{} is one argument too many; type: {usage}", Escaped(first)));
            }
            let is_number = |word: &str| word.starts_with(&**first) && word.parse::<f64>().is_ok();
            if let Some(number) = words
                .iter()
                .filter_map(|word| word.to_str())
                .find(|word| is_number(word))
            {
                return Some(format!("{number}: no value of an option is below 0"));
            }
            let command = usage.split(' ').nth(1).filter(|word| !word.starts_with('['));
            Some(unknown(command, first, &texts(ContextKind::SuggestedArg)))
        }
        ErrorKind::ValueValidation => {
            let source = error.source()?;
            let range = source.to_string();
            let range = range
                .split_once(" is not in ")
                .and_then(|(_, range)| range.split_once("..="));
            let why = match (range, source.downcast_ref::<ParseIntError>()) {
                (Some((least, most)), _) => format!("expected a whole number from {least} to {most}"),
                (None, Some(error)) => not_a_number(error).to_owned(),
                (None, None) => source.to_string(),
            };
            let option = when(first.starts_with('-'), || format!("{} ", bare(first)));
            let value = texts(ContextKind::InvalidValue).concat();
            Some(format!("{option}{}: {why}", Escaped(&value)))
        }
        ErrorKind::ArgumentConflict => {
            let mut others = texts(ContextKind::PriorArg);
            // Of a group of options, those that were typed.
            if others.len() > 1 {
                others.retain(|other| is_typed(&bare(other), words));
            }
            let all = [first]
                .into_iter()
                .chain(&others)
                .map(|argument| match argument.starts_with('-') {
                    true => bare(argument),
                    false => argument.clone(),
                });
            let all: Vec<String> = all.collect();
            let is_check = words.get(1).is_some_and(|word| word == "check");
            if is_check && all.iter().any(|one| one == "--output") && all.iter().any(|one| !one.starts_with('-')) {
                return Some(FOLDER_OF_CHECK.to_owned());
            }
            (!others.is_empty()).then(|| format!("{} exclude each other; leave out one of them", all.join(" and ")))
        }
        ErrorKind::InvalidValue if texts(ContextKind::InvalidValue).iter().all(String::is_empty) => {
            let values = texts(ContextKind::ValidValue);
            let values = when(!values.is_empty(), || format!("; the values are {}", values.join(", ")));
            Some(format!("{} needs a value; type: {first}{values}", bare(first)))
        }
        ErrorKind::InvalidValue => {
            let (typed, values) = (
                texts(ContextKind::InvalidValue).concat(),
                texts(ContextKind::ValidValue),
            );
            let near = texts(ContextKind::SuggestedValue);
            let instead = match near.is_empty() {
                true => format!("the values are {}", values.join(", ")),
                false => format!("did you mean {}?", near.join(" or ")),
            };
            Some(format!("{} {}: no such value; {instead}", bare(first), Escaped(&typed)))
        }
        ErrorKind::WrongNumberOfValues | ErrorKind::TooFewValues => {
            Some(format!("{} needs more values, or fewer; type: {first}", bare(first)))
        }
        _ => None,
    }
}

fn not_a_number(error: &ParseIntError) -> &'static str {
    match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "expected a smaller number",
        _ => "expected a whole number",
    }
}

/// Where an option belongs that this command, or `culeak` itself, does not have.
fn unknown(command: Option<&str>, option: &str, similar: &[String]) -> String {
    let command = command.map(|command| format!(" {command}")).unwrap_or_default();
    let refused = format!("culeak{command} has no {}", Escaped(option));
    let instead = INSTEAD.iter().find(|(name, _)| *name == option);
    if let Some((_, instead)) = instead {
        return format!("{refused}; type: {instead}");
    }
    let whole = public();
    let has_it = |command: &&clap::Command| {
        let mut shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        shown.any(|argument| names(argument).any(|name| name == option))
    };
    let others = whole.get_subcommands().filter(has_it);
    let others: Vec<String> = others.map(|command| format!("culeak {}", command.get_name())).collect();
    if !others.is_empty() {
        return format!("{refused}; it is an option of {}", others.join(", "));
    }
    let near = when(!similar.is_empty(), || {
        format!("did you mean {}? ", similar.join(" or "))
    });
    format!("{refused}; {near}culeak help{command} lists all")
}

/// `--output` and `-o`.
fn names(argument: &clap::Arg) -> impl Iterator<Item = String> {
    let long = argument.get_long().map(|name| format!("--{name}"));
    long.into_iter()
        .chain(argument.get_short().map(|name| format!("-{name}")))
}

/// Whether an option, or its short form in any command, is in the command line; other arguments are.
fn is_typed(option: &str, words: &[OsString]) -> bool {
    let whole = public();
    let arguments = whole.get_subcommands().flat_map(clap::Command::get_arguments);
    let same = arguments.filter(|argument| names(argument).any(|name| name == option));
    let all: BTreeSet<String> = same.flat_map(names).collect();
    let is_one = |word: &OsString| {
        word.to_str()
            .and_then(|word| word.split('=').next())
            .is_some_and(|word| all.contains(word))
    };
    all.is_empty() || words.iter().any(is_one)
}

/// The first example in the help of a command that starts it and has the missing option; without one, the options that were typed.
fn example(command: &str, missing: &str, words: &[OsString]) -> Option<String> {
    let whole = public();
    let typed: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let missing = missing.split(' ').next().filter(|name| name.starts_with('-'));
    let wanted: Vec<String> = (whole.find_subcommand(command)?.get_arguments().map(names))
        .map(Iterator::collect::<Vec<_>>)
        .filter(|names| match missing {
            Some(missing) => names.iter().any(|name| name == missing),
            None => names.iter().any(|name| typed.contains(&&**name)),
        })
        .flatten()
        .collect();
    let help = whole.find_subcommand(command)?.get_after_help()?.to_string();
    let start = format!("culeak {command} ");
    let lines: Vec<&str> = help
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with(&start))
        .collect();
    let has_it = |line: &&&str| line.split(' ').any(|word| wanted.iter().any(|name| name == word));
    let line = match wanted.is_empty() {
        true => lines.first(),
        false => lines.iter().find(has_it),
    }?;
    Some(line.split("  ").next().unwrap_or(line).to_owned())
}

/// `--output took app.culeak as its FILE`, if an option took what looks like the input.
fn swallowed(command: &str, words: &[OsString]) -> Option<String> {
    let whole = public();
    let command = whole.find_subcommand(command)?;
    let is_input = |word: &str| {
        let path = Path::new(word);
        let extension = path.extension().unwrap_or_default();
        extension == "culeak" || extension == "culeak-snapshot" || path.is_dir() || word.parse::<u32>().is_ok()
    };
    words.windows(2).find_map(|pair| {
        let (option, value) = (pair[0].to_str()?, pair[1].to_str()?);
        let is_it =
            |argument: &&clap::Arg| argument.get_action().takes_values() && names(argument).any(|name| name == option);
        let argument = command.get_arguments().find(is_it).filter(|_| is_input(value))?;
        let name = argument.get_value_names()?.first()?;
        // Other values may be numbers.
        name.starts_with("FILE")
            .then(|| format!("{option} took {} as its {name}", Escaped(value)))
    })
}

/// The options that `-h` shows of each command; `--help` shows all.
const USUAL: &[(&str, &[&str])] = &[
    ("run", &["output", "why", "timeline", "record", "snapshot"]),
    ("live", &["once", "every", "output", "child_pids", "no_follow_children"]),
    ("report", &["by", "at", "kind", "view", "output"]),
    ("why", &["class", "core", "pause", "top", "output"]),
    ("diff", &["at", "by", "kind", "view", "output"]),
    ("trend", &["only", "pid", "every", "fail_on", "output"]),
    ("whatif", &["settings", "device_memory", "oom", "output"]),
    ("check", &["allow", "baseline", "suppressions", "at", "format"]),
    ("export", &["format", "output", "at", "kind", "to"]),
    ("watch", &["listen", "textfile", "to", "dataset", "every"]),
];

/// The command line with the usual options and three examples of each command.
fn shortened(mut whole: clap::Command) -> clap::Command {
    for (name, usual) in USUAL {
        whole = whole.mut_subcommand(name, |command| {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = help.lines().skip_while(|line| *line != "Examples:");
            let examples: Vec<&str> = examples.take(4).collect();
            command
                .after_help(format!("{}\n\nAll options: culeak {name} --help", examples.join("\n")))
                .mut_args(
                    |argument| match usual.contains(&argument.get_id().as_str()) || argument.is_positional() {
                        true => short(argument),
                        false => argument.hide(true),
                    },
                )
                .disable_help_flag(true)
                .arg(
                    clap::Arg::new("help")
                        .short('h')
                        .long("help")
                        .action(ArgAction::Help)
                        .hide(true),
                )
        });
    }
    whole.mut_args(|argument| match argument.is_global_set() {
        true => argument.hide(true),
        false => argument,
    })
}

/// An option with the first part of its help.
fn short(argument: clap::Arg) -> clap::Arg {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let ends = ["; ", ": ", " [", " (", ", e.g.", ". "];
    let end = ends.iter().filter_map(|end| help.find(end)).min().unwrap_or(help.len());
    let takes_values = argument.get_action().takes_values();
    argument
        .help(help[..end].to_owned())
        .hide_possible_values(takes_values)
        .hide_default_value(takes_values)
        .help_heading(None::<&str>)
}

/// The commands, as `culeak --help` lists them.
const GROUPS: &[(&str, &[&str])] = &[
    ("Record", &["run", "live"]),
    ("Read", &["report", "why", "diff", "trend", "whatif"]),
    ("Gate", &["check"]),
    ("Share", &["export", "watch", "mcp"]),
    ("Set up", &["doctor", "demo", "snapshot", "help"]),
];

/// The command line, whose help lists the commands in groups.
fn grouped(whole: clap::Command) -> clap::Command {
    use std::fmt::Write as _;
    let mut list = StyledStr::new();
    for (title, names) in GROUPS {
        let _ = writeln!(list, "{BOLD}{title}:{BOLD:#}");
        for name in *names {
            let about = whole.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let end = [": ", ", or"].iter().filter_map(|end| about.find(end)).min();
            let _ = writeln!(list, "  {name:9} {}", &about[..end.unwrap_or(about.len())]);
        }
        list.push_str("\n");
    }
    whole
        .before_help(list)
        .help_template("{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}")
}

/// The command line without hidden commands, for completions and manual pages.
pub fn public() -> clap::Command {
    let whole = command();
    let commands = whole.get_subcommands().filter(|command| !command.is_hide_set());
    let mut commands: Vec<_> = commands.cloned().collect();
    let names: BTreeSet<String> = commands
        .iter()
        .map(|command| command.get_name().to_owned())
        .chain(help::guides().map(str::to_owned))
        .collect();
    if let Some(help) = commands.iter_mut().find(|command| command.get_name() == "help") {
        let subjects = PossibleValuesParser::new(&names);
        *help = help
            .clone()
            .mut_arg("subject", |subject| subject.value_parser(subjects));
    }
    let mut public = clap::Command::new("culeak")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .max_term_width(WIDEST)
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
    grouped(public.after_help(EXIT_CODES))
}

#[cfg(test)]
mod tests;
