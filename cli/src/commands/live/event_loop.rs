//! The loop that handles every message of the live view, and what follows it.

use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, Sender};
use std::{io, thread};

use crossterm::event::{Event, KeyEventKind};
use culeak::analysis::report::shell_word;
use nix::sys::signal::Signal;

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::launch::supervise::shell_code;
use crate::live::program::{self, Running};
use crate::live::state::{Action, State};
use crate::live::terminal::{self, Screen};
use crate::live::{Message, holders};
use crate::load::NameArgs;

/// Why the view ended.
pub enum End {
    /// The user asked for it, or the terminal is gone.
    Quit,
    Signal(Signal),
}

pub struct View {
    pub state: State,
    pub screen: Screen,
    pub names: NameArgs,
    /// Receives the recording that is on the screen.
    pub chosen: Sender<PathBuf>,
    /// Of the threads that search.
    pub messages: Sender<Message>,
    /// How the program ended.
    pub program: Option<ExitStatus>,
}

impl View {
    /// Draws and handles messages until the view ends.
    pub fn run(&mut self, inbox: &Receiver<Message>) -> End {
        loop {
            if self.screen.draw(&mut self.state).is_err() {
                return End::Quit;
            }
            panic_on_request();
            let Ok(message) = inbox.recv() else { return End::Quit };
            // Handle every message that has arrived before drawing again.
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
        match message {
            Message::Reading(reading) => self.state.add_reading(reading),
            Message::Unreadable(recording, why) => self.state.unreadable(&recording, why),
            Message::Waiting(text) => self.state.waiting = text,
            Message::Notes(notes) => self.state.notes.extend(notes),
            Message::Holders(recording, answer) => self.state.found(&recording, answer),
            Message::Ended(status) => {
                self.program = Some(status);
                self.state.ended = Some(program::in_words(status));
            }
            Message::InputEnded => return Some(End::Quit),
            Message::Signal(Signal::SIGTSTP) => return unless_drawn(self.screen.suspend()),
            Message::Signal(Signal::SIGCONT) => return unless_drawn(self.screen.take_again()),
            Message::Signal(signal) => return Some(End::Signal(signal)),
            Message::Input(Event::Key(key)) if key.kind != KeyEventKind::Release => {
                let action = self.state.key(key)?;
                return self.act(action);
            }
            // The terminal has dropped what did not fit meanwhile. Drawing asks for the size.
            Message::Input(Event::Resize(..)) => self.screen.forget(),
            Message::Input(_) => {}
        }
        None
    }

    fn act(&mut self, action: Action) -> Option<End> {
        match action {
            Action::Quit => return Some(End::Quit),
            Action::Suspend => return unless_drawn(self.screen.suspend()),
            Action::Redraw => self.screen.forget(),
            Action::Search(recording, pid) => {
                let (messages, names) = (self.messages.clone(), self.names.clone());
                thread::spawn(move || {
                    let answer = holders::search(pid, &names).map_err(|failure| failure.to_string());
                    // The view may have ended.
                    let _ = messages.send(Message::Holders(recording, answer));
                });
            }
            // The receiving thread lives as long as this one.
            Action::Choose(recording) => drop(self.chosen.send(recording)),
        }
        None
    }
}

/// The terminal is gone if it cannot be drawn on.
fn unless_drawn(drawn: io::Result<()>) -> Option<End> {
    drawn.is_err().then_some(End::Quit)
}

/// Waits for the program if there is one, reports how it ended, and returns its exit code. The terminal must be restored.
///
/// # Errors
/// The thread that waits for the program has stopped.
pub fn finish(
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
        let tag = program.output.file_name().unwrap_or_default().to_string_lossy();
        let tag = tag.rsplit('.').nth(1).unwrap_or_default();
        // The shell expands the stars, so they are outside the quotes.
        let folder = shell_word(&folder.join("").display().to_string());
        eprintln!(
            "culeak: next: culeak report {}*.{}.*.culeak",
            Escaped(&folder),
            Escaped(tag)
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

/// For the test that a panic restores the terminal; absent from release builds.
fn panic_on_request() {
    if cfg!(debug_assertions) && std::env::var_os("CULEAK_TEST_PANIC").is_some() {
        panic!("requested by CULEAK_TEST_PANIC");
    }
}
