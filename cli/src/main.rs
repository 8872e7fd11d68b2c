//! `culeak`: records the GPU memory of CUDA programs and reports leaks, by the code that allocated the memory.
//!
//! This file is the contents page. Modules use what is below them in this list:
//!
//! ```text
//! args            the command line: the list of commands and the global options
//! commands/       one file per command: its options and its steps
//! options/        option groups that several commands share: selection, rules, categories, formats, the config file
//!
//! live/           the live view
//! verdict/        verdicts for CI: JUnit, SARIF, GitHub annotations, Markdown
//! push/           requests to Pyroscope and OpenTelemetry receivers
//! export/         formats of other tools: pprof, Perfetto, Firefox Profiler, Parquet and more
//!
//! launch          a program prepared for recording: its options and its environment
//!   preload         whether a library can be preloaded into the program
//!   shim            the preload library, unpacked for this user
//!   environment     the variables that the program gets
//!   no_pool         the variables that switch off caching allocators
//!   proof           why a run has no recording
//!   holds           processes that wait until their memory is copied, for `run --why`
//!   supervise       a program run to its end, with signals forwarded
//!   spooled         recordings that killed processes left in a local folder
//!
//! monitor         recordings read again and again, for `watch`
//!
//! usage           the memory in use on each device, queried through NVML
//! nvml            the NVML functions that `usage` calls
//! probe           queries in a child process, with a time limit
//!
//! text/           the pages: each makes a document of what the analysis found
//! html/           documents as HTML pages, with graphs of stacks
//! document/       a document and its renderers: text, as wide as the terminal, Markdown and HTML
//! load            arguments to snapshots: process ids, recordings, snapshot files, pipes, folders
//! pickle          Python's pickle format, for memory snapshots of PyTorch
//! symbolize       names for code addresses
//!
//! output          files written completely or not at all
//! progress        the progress bar and messages on stderr
//! signals         SIGINT, SIGTERM and SIGHUP as events
//! json            JSON that is safe to print, of values that `culeak::analysis` returns
//! errors          how a command fails: one sentence and an exit code
//! names           names of frames for graphs, trees and the formats of other tools
//! escape          text from a recording, made safe to print
//! ```

/// Prints a line to stderr. Unlike the standard macro it does not panic if nothing reads it any more: a message that is
/// lost must not change an exit code.
macro_rules! eprintln {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arguments)*);
    }};
}

mod args;
mod commands;
mod document;
mod errors;
mod escape;
mod export;
#[cfg(test)]
#[path = "../../tests/fuzz/main.rs"]
mod fuzz;
mod html;
mod json;
mod launch;
mod live;
mod load;
mod monitor;
mod names;
mod nvml;
mod options;
mod output;
mod pickle;
mod probe;
mod progress;
#[cfg(feature = "push")]
mod push;
mod signals;
mod symbolize;
mod text;
mod usage;
mod verdict;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use args::{Arguments, Command};
use clap::error::ErrorKind;
use errors::Failure;
use options::config::{self, ConfigArgs, Defaults};
use options::display::DisplayArgs;
use options::refusals::{self, Asked};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let (arguments, asked) = match args::parse(&words) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&error, &words),
    };
    progress::choose_messages(arguments.display.quiet, arguments.display.verbose);
    // The live view has the screen to itself, and so has a program that runs.
    let has_screen = match &arguments.command {
        Command::Live(_) | Command::Run(_) | Command::Mcp(_) => true,
        Command::Check(check) => !check.command.is_empty(),
        _ => false,
    };
    if !has_screen {
        progress::show();
    }
    run(words, arguments, asked).unwrap_or_else(|failure| {
        progress::fail(&failure);
        ExitCode::from(failure.exit)
    })
}

/// Runs a command line of `culeak mcp`, which was started with these options.
fn answer(words: &[OsString], config: &ConfigArgs) -> Result<ExitCode, Failure> {
    let (mut arguments, asked) = args::parse(words).map_err(|error| {
        let sentence = args::sentence(&error, words);
        sentence.map_or_else(|| errors::of_clap(&error), Failure::new)
    })?;
    arguments.config = config.clone();
    run(words.to_vec(), arguments, asked)
}

fn run(words: Vec<OsString>, arguments: Arguments, asked: Asked) -> Result<ExitCode, Failure> {
    let (mut command, display) = (arguments.command, arguments.display);
    if let Command::Diff(diff) = &mut command {
        diff.words = words;
    }
    if let Command::Check(check) = &command {
        commands::check::remove_older_verdict(check);
    }
    let defaults = match command.reads_config() {
        true => config::read(&arguments.config),
        false => Ok(Defaults::default()),
    };
    apply(refusals::check(asked).and(defaults)?, &display, &mut command);
    match command {
        Command::Run(args) => commands::run::execute(&args),
        Command::Report(args) => commands::report::execute(&args),
        Command::Why(args) => commands::why::execute(&args),
        Command::Snapshot(args) => commands::snapshot::execute(&args),
        Command::Live(args) => commands::live::execute(&args),
        Command::Diff(args) => commands::diff::execute(&args),
        Command::Trend(args) => commands::trend::execute(&args),
        Command::WhatIf(args) => commands::whatif::execute(&args),
        Command::Check(args) => commands::check::execute(&args),
        Command::Watch(args) => commands::watch::execute(&args),
        Command::Mcp(args) => {
            let config = arguments.config.absolute()?;
            commands::mcp::execute(&args, args::public(), &|words| answer(words, &config))
        }
        Command::Export(args) => commands::export::execute(&args),
        Command::Demo(args) => commands::demo::execute(&args),
        Command::Doctor(args) => commands::doctor::execute(&args),
        Command::Setup(args) => commands::setup::execute(&args, args::public()),
        Command::Help(args) => commands::help::execute(&args, args::public()),
        Command::ShimPath(args) => commands::shim_path::execute(&args),
        Command::DemoProgram => culeak_driver::demo_program::execute()
            .map(|()| ExitCode::SUCCESS)
            .map_err(|error| Failure::with_exit(format!("the demo program: {error}"), 1)),
        Command::Probe => probe::answer(),
        Command::ProbeUsage(args) => usage::answer(&args),
        Command::ProbeRank(args) => commands::doctor::answer_probe(&args),
        Command::Symbolize => symbolize::answer(),
    }
}

/// Fills in defaults from the config file, for options that the command line does not set.
fn apply(defaults: Defaults, display: &DisplayArgs, command: &mut Command) {
    text::choose_color(defaults.color(display.color));
    text::pager::choose(!display.no_pager && defaults.pager());
    load::names::set_debug_dirs(defaults.debug_dirs());
    culeak::analysis::site::set_wrappers(defaults.wrappers());
    match command {
        Command::Run(run) => defaults.fill(None, Some(&mut run.program.record)),
        Command::Check(check) => {
            let record = (!check.command.is_empty()).then_some(&mut check.program.record);
            defaults.fill(Some(&mut check.rules), record);
        }
        Command::Live(live) if !live.command.is_empty() => defaults.fill(None, Some(&mut live.record)),
        _ => {}
    }
}

/// Prints an error in the command line, with the prefix of all messages, or the requested help or version.
fn refuse(error: &clap::Error, words: &[OsString]) -> ExitCode {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = write!(anstream::stderr(), "{}", error.render().ansi());
    } else if let Some(sentence) = args::sentence(error, words) {
        progress::fail(&Failure::new(sentence));
    } else if error.use_stderr() {
        let _ = write!(anstream::stderr(), "culeak: {}", error.render().ansi());
    } else {
        // The options that choose it were not parsed, and help reads no config file.
        text::pager::choose(!words.iter().any(|word| word == "--no-pager"));
        // Standard output may be closed, or full.
        let _ = text::print(|out| write!(out, "{}", error.render().ansi()));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(errors::USAGE))
}
