//! `culeak live`: what to watch, the threads that watch it, and the terminal they share.

mod event_loop;

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::{ArgGroup, Args};
use nix::sys::signal::Signal;

use event_loop::View;

use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::launch::preload::NOT_EXECUTABLE;
use crate::launch::{self, RecordArgs};
use crate::live::state::State;
use crate::live::terminal::{self, Screen};
use crate::live::watch::{self, Source};
use crate::live::{program, view};
use crate::load::NameArgs;
use crate::load::incomplete::tag_part;
use crate::text::units;
use crate::{load, progress, text};

/// Watch the memory that a running program holds, by call site
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").args(["source", "command"]).required(true))]
#[command(group = ArgGroup::new("recording").args(launch::ids::<RecordArgs>()).multiple(true).conflicts_with("source"))]
#[command(override_usage = "\
culeak live [OPTIONS] <PID|RECORDING|FOLDER>
       culeak live [OPTIONS] -- <COMMAND>...")]
#[command(after_help = "\
The view reads the recording of the process, which is neither stopped nor modified. Child processes are included. \
If the recording does not exist yet, the view waits for it. Press ? for help on keys.

With -- COMMAND, the program's output goes to a file, PROGRAM.RUN.output beside the recordings. \
Quitting the view does not end the program.

Exit code: 0; with -- COMMAND the program's own, 126 if it cannot be executed, 127 if it is not found; 2 without a terminal, \
or if there is nothing to watch.

Examples:
  culeak live 4711
  culeak live 4711 --once                print once, as plain text
  culeak live runs/                      all processes that record to this folder, one row each; enter opens one
  culeak live -o runs -- python train.py")]
pub struct LiveArgs {
    /// Process id, recording, or folder of recordings
    #[arg(value_name = "PID|RECORDING|FOLDER")]
    pub source: Option<OsString>,

    /// Print the current state as plain text and exit; needs no terminal
    #[arg(long, conflicts_with = "command")]
    pub once: bool,

    /// Time between refreshes, from 50ms to 1h
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = interval)]
    pub every: Duration,

    #[command(flatten)]
    pub names: NameArgs,

    #[command(flatten, next_help_heading = "With -- COMMAND")]
    pub record: RecordArgs,

    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text)?;
    let allowed = Duration::from_millis(50)..=Duration::from_secs(3600);
    allowed
        .contains(&time)
        .then_some(time)
        .ok_or_else(|| "expected a time from 50ms to 1h".to_owned())
}

pub fn execute(args: &LiveArgs) -> Result<ExitCode, Failure> {
    if args.once {
        return once(args);
    }
    terminal::examine()?;
    // Errors are detected before the view takes the terminal.
    let prepared = match args.command.as_slice() {
        [] => None,
        command => Some(launch::prepare(&args.record, command, false)?),
    };
    let source = match (&args.source, &prepared) {
        (Some(source), _) => named_source(source)?,
        (None, Some(prepared)) => Source::Run {
            folder: prepared.folder.clone(),
            mark: tag_part(&prepared.tag),
        },
        (None, None) => {
            return Err(Failure::new(
                "live: nothing to watch; name a process, a recording or a folder",
            ));
        }
    };
    let mask =
        terminal::hold_signals().map_err(|error| format!("live: cannot wait for signals ({error}); use --once"))?;
    let (messages, inbox) = mpsc::channel();
    let program = match prepared {
        None => None,
        Some(prepared) => {
            let name = Path::new(&args.command[0]).file_name().unwrap_or_default();
            let output = format!("{}{}output", name.to_string_lossy(), tag_part(&prepared.tag));
            let output = prepared.folder.join(output);
            let messages = messages.clone();
            Some(program::start(
                prepared.command,
                output,
                mask,
                NOT_EXECUTABLE,
                messages,
            )?)
        }
    };
    if matches!(source, Source::Process(pid) if load::has_no_library(pid)) {
        // The view shows what is said when such a process is read.
        progress::choose_messages(true, false);
    }
    let (choose, chosen) = mpsc::channel();
    let (watched, interval, names, outlet) = (source.clone(), args.every, args.names.clone(), messages.clone());
    thread::spawn(move || watch::serve(&watched, interval, names, &outlet, &chosen));
    let screen = Screen::enter(text::wants_color()).inspect_err(|_| {
        if let Some(program) = &program {
            program.signal(Signal::SIGTERM);
        }
    })?;
    terminal::listen(&messages);
    let mut state = State::new(source.waiting());
    state.list_opens = match &source {
        Source::Path(path) => path.is_dir(),
        Source::Run { .. } => true,
        Source::Process(_) => false,
    };
    let mut view = View {
        state,
        screen,
        names: args.names.clone(),
        chosen: choose,
        messages,
        program: None,
    };
    let end = view.run(&inbox);
    let ended = view.program;
    // Restores the terminal.
    drop(view);
    event_loop::finish(&end, program, ended, &inbox)
}

/// Prints the current state of every process.
fn once(args: &LiveArgs) -> Result<ExitCode, Failure> {
    let source = named_source(args.source.as_deref().unwrap_or_default())?;
    let states = watch::once(&source, args.names.clone());
    if states.is_empty() {
        return Err(Failure::new(format!(
            "live: nothing to show: {}; leave out --once to wait for it",
            source.waiting()
        )));
    }
    let several = states.len() > 1;
    let width = match crossterm::terminal::size() {
        Ok((columns, _)) if stdout().is_terminal() => columns.into(),
        _ => WIDTH_WITHOUT_TERMINAL,
    };
    let few = states.len() <= EACH;
    text::print(|out| {
        if several {
            out.write_all(view::list_as_text(&states, width).as_bytes())?;
        }
        for state in states.iter().filter(|_| few) {
            if several {
                let recording = state.processes[0].recording.display().to_string();
                writeln!(out, "\n== {} ==", Escaped(&recording))?;
            }
            out.write_all(view::as_text(state, width).as_bytes())?;
        }
        Ok(())
    })?;
    let unreadable = states.iter().any(|state| state.reading().is_none());
    Ok(ExitCode::from(if unreadable { USAGE } else { 0 }))
}

/// The most processes whose call sites are printed.
const EACH: usize = 10;

/// The width of rows with all columns.
const WIDTH_WITHOUT_TERMINAL: usize = 120;

/// What to watch: a process id, or a path that may not exist yet.
fn named_source(argument: &OsStr) -> Result<Source, Failure> {
    if let Some(pid) = load::as_pid(argument) {
        if !load::process_lives(pid) {
            // Returns the error for a process that does not exist.
            load::recording_of(pid)?;
        }
        return Ok(Source::Process(pid));
    }
    let path = PathBuf::from(argument);
    if path.is_file() {
        load::must_be_recording(&path)?;
    }
    Ok(Source::Path(path))
}
