//! `culeak live`: the loop that everything reports to, and what is said when it is over.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use clap::{ArgGroup, Args};
use culeak::analysis::report::shell_word;
use nix::sys::signal::Signal;
use ratatui::crossterm::{
    self,
    event::{Event, KeyEventKind},
};

use super::NameArgs;
use super::record::{self, RECORD_OPTIONS, RecordArgs};
use crate::config::ConfigArgs;
use crate::errors::{Failure, USAGE};
use crate::escape::Escaped;
use crate::live::Message;
use crate::live::names::{self, Unnamed};
use crate::live::program::{self, Running};
use crate::live::state::{Action, State};
use crate::live::terminal::{self, Screen};
use crate::live::usage;
use crate::live::view::{self, Palette};
use crate::live::watch::{self, Outlets, Source};
use crate::preload::NOT_EXECUTABLE;
use crate::supervise::shell_code;
use crate::text::units;
use crate::{environment, load, text};

/// Watch what a running program holds, by call site, refreshed twice a second
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").args(["source", "command"]).required(true))]
#[command(group = ArgGroup::new("recording").args(RECORD_OPTIONS).multiple(true).conflicts_with("source"))]
#[command(override_usage = "\
culeak live [OPTIONS] <PID|RECORDING|FOLDER>
       culeak live [OPTIONS] -- <COMMAND>...")]
#[command(after_help = "\
The process is not stopped or touched: the view reads its recording. Processes that it starts appear by themselves.
If the recording does not exist yet, the view waits for it. Press ? for the keys.

With -- COMMAND the program's output goes to a file, PROGRAM.RUN.output beside the recordings, and its exit code becomes \
ours. Leaving the view does not end the program.

Exit code: 0; the program's own after -- COMMAND, 126 when it cannot be executed, 127 when there is no such program; 2 \
without a terminal, or when there is nothing to watch.

Examples:
  culeak live 4711
  culeak live 4711 --once                one reading, as plain text
  culeak live runs/                      all processes that record into this folder
  culeak live -o runs -- python train.py")]
pub struct LiveArgs {
    /// Process id, recording, or folder of recordings
    #[arg(value_name = "PID|RECORDING|FOLDER")]
    pub source: Option<OsString>,

    /// Print what there is now as plain text, and exit; needs no terminal
    #[arg(long, conflicts_with = "command")]
    pub once: bool,

    /// Time between two refreshes, from 50ms to 1h
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = interval)]
    pub interval: Duration,

    #[command(flatten)]
    pub names: NameArgs,

    #[command(flatten)]
    pub config: ConfigArgs,

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
    // What can be wrong is found out while errors can still be read.
    let prepared = match args.command.as_slice() {
        [] => None,
        command => Some(record::prepare(&args.record, command)?),
    };
    let source = match (&args.source, &prepared) {
        (Some(source), _) => named_source(source)?,
        (None, Some(prepared)) => Source::Run {
            folder: prepared.folder.clone(),
            mark: environment::mark(&prepared.tag),
        },
        (None, None) => {
            return Err(Failure::new(
                "live: nothing to watch; name a process, a recording or a folder",
            ));
        }
    };
    let mask = terminal::hold_signals()
        .map_err(|error| Failure::new(format!("live: signals cannot be waited for ({error})")))?;
    let (messages, inbox) = mpsc::channel();
    let program = match prepared {
        None => None,
        Some(prepared) => {
            let name = Path::new(&args.command[0]).file_name().unwrap_or_default();
            let output = format!("{}{}output", name.to_string_lossy(), environment::mark(&prepared.tag));
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
    let chosen = start_watching(&source, args, &messages);
    let screen = Screen::enter(Palette::new(text::wants_color()));
    let mut screen = match screen {
        Ok(screen) => screen,
        Err(failure) => {
            end_program(program.as_ref());
            return Err(failure);
        }
    };
    terminal::listen(&messages);
    let nanoseconds = u64::try_from(args.interval.as_nanos()).unwrap_or(u64::MAX);
    let mut state = State::new(source.waiting(), nanoseconds);
    let mut view = View {
        state: &mut state,
        screen: &mut screen,
        chosen,
        program: None,
    };
    let end = view.run(&inbox);
    let ended = view.program;
    drop(screen);
    finish(&end, program, ended, &inbox)
}

/// Prints every process that there is, one after the other.
fn once(args: &LiveArgs) -> Result<ExitCode, Failure> {
    let source = named_source(args.source.as_deref().unwrap_or_default())?;
    let mut states = watch::once(&source, |root| args.names.places(root));
    if states.is_empty() {
        return Err(Failure::new(format!(
            "live: nothing to show: {}; leave out --once to wait for it",
            source.waiting()
        )));
    }
    let several = states.len() > 1;
    let width = crossterm::terminal::size().map_or(WIDTH_WITHOUT_TERMINAL, |(columns, _)| columns);
    let width = match stdout().is_terminal() {
        true => width,
        false => WIDTH_WITHOUT_TERMINAL,
    };
    text::print(|out| {
        for (number, state) in states.iter_mut().enumerate() {
            if several {
                let gap = if number > 0 { "\n" } else { "" };
                let recording = state.processes[0].recording.display().to_string();
                writeln!(out, "{gap}== {} ==", Escaped(&recording))?;
            }
            out.write_all(view::as_text(state, width).as_bytes())?;
        }
        Ok(())
    })?;
    let unreadable = states.iter().any(|state| state.reading_shown().is_none());
    Ok(ExitCode::from(if unreadable { USAGE } else { 0 }))
}

/// As wide as the rows with all columns are.
const WIDTH_WITHOUT_TERMINAL: u16 = 120;

/// Without a terminal nobody can watch it, or end it.
fn end_program(program: Option<&Running>) {
    if let Some(program) = program {
        program.signal(Signal::SIGTERM);
    }
}

/// A number is a process; anything else is a path, which may not exist yet.
fn named_source(argument: &OsStr) -> Result<Source, Failure> {
    if let Some(pid) = load::as_pid(argument) {
        if !load::process_lives(pid) {
            // Says what to do instead.
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

/// Starts the threads that read and name; the result tells the first of them what is on the screen.
fn start_watching(source: &Source, args: &LiveArgs, messages: &Sender<Message>) -> Sender<PathBuf> {
    let (choose, chosen) = mpsc::channel();
    let (unnamed, to_name): (Sender<Unnamed>, _) = mpsc::channel();
    let (usage, to_ask) = mpsc::channel();
    let outlets = Outlets {
        messages: messages.clone(),
        unnamed,
        usage,
    };
    let (source, interval) = (source.clone(), args.interval);
    thread::spawn(move || watch::serve(&source, interval, &outlets, &chosen));
    let (answers, name_args) = (messages.clone(), args.names.clone());
    thread::spawn(move || names::serve(&to_name, &answers, |root| name_args.places(root)));
    let answers = messages.clone();
    thread::spawn(move || usage::serve(&to_ask, &answers));
    choose
}

/// Why the view is over.
enum End {
    /// Somebody asked for it, or nobody can any more.
    Quit,
    Signal(Signal),
}

struct View<'a> {
    state: &'a mut State,
    screen: &'a mut Screen,
    chosen: Sender<PathBuf>,
    /// How the program ended.
    program: Option<ExitStatus>,
}

impl View<'_> {
    fn run(&mut self, inbox: &Receiver<Message>) -> End {
        loop {
            if self.screen.draw(self.state).is_err() {
                return End::Quit;
            }
            panic_if_told_to();
            let Ok(message) = inbox.recv() else { return End::Quit };
            // Everything that has come by now, before it is drawn.
            let mut next = Some(message);
            while let Some(message) = next {
                if let Some(end) = self.take(message) {
                    return end;
                }
                next = inbox.try_recv().ok();
            }
        }
    }

    fn take(&mut self, message: Message) -> Option<End> {
        let drawn = match message {
            Message::Reading(reading) => {
                self.state.add_reading(*reading);
                Ok(())
            }
            Message::Unreadable(recording, why) => {
                self.state.unreadable(&recording, why);
                Ok(())
            }
            Message::Used(recording, used) => {
                self.state.used(&recording, used);
                Ok(())
            }
            Message::Waiting(text) => {
                self.state.waiting = text;
                Ok(())
            }
            Message::Names(names, notes) => {
                self.state.named(names, notes);
                Ok(())
            }
            Message::Ended(status) => {
                self.program = Some(status);
                self.state.ended = Some(program::in_words(status));
                Ok(())
            }
            Message::InputEnded => return Some(End::Quit),
            Message::Signal(Signal::SIGTSTP) => self.screen.suspend(),
            Message::Signal(Signal::SIGCONT) => self.screen.take_again(),
            Message::Signal(signal) => return Some(End::Signal(signal)),
            Message::Input(Event::Key(key)) if key.kind != KeyEventKind::Release => match self.state.key(key) {
                None => Ok(()),
                Some(Action::Quit) => return Some(End::Quit),
                Some(Action::Suspend) => self.screen.suspend(),
                Some(Action::Redraw) => self.screen.forget(),
                Some(Action::Choose(recording)) => {
                    // The thread that is told lives as long as this one.
                    let _ = self.chosen.send(recording);
                    Ok(())
                }
            },
            // A new size is asked for when drawing.
            Message::Input(_) => Ok(()),
        };
        drawn.is_err().then_some(End::Quit)
    }
}

/// What is said and returned once the terminal is the user's again.
fn finish(
    end: &End,
    program: Option<Running>,
    ended: Option<ExitStatus>,
    inbox: &Receiver<Message>,
) -> Result<ExitCode, Failure> {
    let Some(program) = program else {
        return match end {
            End::Signal(signal) => terminal::die_of(*signal),
            End::Quit => Ok(ExitCode::SUCCESS),
        };
    };
    let output = program.output.display().to_string();
    let output = Escaped(&output);
    let status = match ended {
        Some(status) => status,
        None => {
            match end {
                End::Signal(signal) => program.signal(*signal),
                End::Quit => eprintln!(
                    "culeak: the program is still running, and its output goes to {output}; waiting for its end (Ctrl-C stops it)"
                ),
            }
            wait_for(&program, inbox)?
        }
    };
    eprintln!("culeak: {}; its output is in {output}", program::in_words(status));
    if let Some(folder) = program.output.parent() {
        let mark = program.output.file_name().unwrap_or_default().to_string_lossy();
        let mark = mark.rsplit('.').nth(1).unwrap_or_default();
        // The stars are for the shell, so they stand outside the quotes.
        let folder = shell_word(&folder.join("").display().to_string());
        eprintln!(
            "culeak: next: culeak report {}*.{}.*.culeak",
            Escaped(&folder),
            Escaped(mark)
        );
    }
    Ok(ExitCode::from(shell_code(status)))
}

fn wait_for(program: &Running, inbox: &Receiver<Message>) -> Result<ExitStatus, Failure> {
    loop {
        match inbox.recv() {
            Ok(Message::Ended(status)) => return Ok(status),
            Ok(Message::Signal(Signal::SIGTSTP)) => {
                let _ = nix::sys::signal::raise(Signal::SIGSTOP);
            }
            Ok(Message::Signal(Signal::SIGCONT)) => {}
            Ok(Message::Signal(signal)) => program.signal(signal),
            Ok(_) => {}
            Err(_) => {
                return Err(Failure::new(
                    "live: the thread that waits for the program has stopped; the program may still be running",
                ));
            }
        }
    }
}

/// For the test that a panic leaves the terminal as it was; builds for users have no such thing.
fn panic_if_told_to() {
    if cfg!(debug_assertions) && std::env::var_os("CULEAK_TEST_PANIC").is_some() {
        panic!("told to by CULEAK_TEST_PANIC");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    #[test]
    fn every_option_of_recording_is_in_the_list() {
        let whole = args::public();
        let command = whole.find_subcommand("live").expect("a command");
        let of_recording = |argument: &&clap::Arg| argument.get_help_heading() == Some("With -- COMMAND");
        let options: Vec<&str> = command
            .get_arguments()
            .filter(of_recording)
            .map(|argument| argument.get_id().as_str())
            .filter(|&option| option != "command")
            .collect();
        assert_eq!(options, RECORD_OPTIONS);
    }
}
