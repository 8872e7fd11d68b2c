//! The loop that handles every message of the live view, and what follows it.

use std::io;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::sync::mpsc::{Receiver, Sender};

use culeak::analysis::report::shell_word;
use nix::sys::signal::Signal;
use ratatui::crossterm::event::{Event, KeyEventKind};

use crate::errors::Failure;
use crate::escape::Escaped;
use crate::launch::supervise::shell_code;
use crate::live::Message;
use crate::live::ask::Question;
use crate::live::program::{self, Running};
use crate::live::state::{Action, State};
use crate::live::terminal::{self, Screen};

/// Why the view ended.
pub enum End {
    /// The user asked for it, or the terminal is gone.
    Quit,
    Signal(Signal),
}

/// What keys make other threads do.
pub struct Senders {
    /// The recording that is on the screen.
    pub chosen: Sender<PathBuf>,
    pub questions: Sender<Question>,
}

struct View<'a> {
    state: &'a mut State,
    screen: &'a mut Screen,
    senders: Senders,
    /// How the program ended.
    program: Option<ExitStatus>,
}

/// Draws and handles messages until the view ends; also returns how the program ended, if it did.
pub fn run(
    state: &mut State,
    screen: &mut Screen,
    senders: Senders,
    inbox: &Receiver<Message>,
) -> (End, Option<ExitStatus>) {
    let mut view = View {
        state,
        screen,
        senders,
        program: None,
    };
    (view.run(inbox), view.program)
}

impl View<'_> {
    fn run(&mut self, inbox: &Receiver<Message>) -> End {
        loop {
            if self.screen.draw(self.state).is_err() {
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

    /// Asks what the open page needs.
    fn ask_next(&mut self) {
        if let Some(question) = self.state.next_question() {
            let _ = self.senders.questions.send(question);
        }
    }

    fn take(&mut self, message: Message) -> Option<End> {
        match message {
            Message::Reading(reading) => {
                self.state.add_reading(*reading);
                self.ask_next();
            }
            Message::Unreadable(recording, why) => self.state.unreadable(&recording, why),
            Message::Used(recording, used) => self.state.used(&recording, used),
            Message::Waiting(text) => self.state.waiting = text,
            Message::Names(names, notes) => self.state.named(names, notes),
            Message::Answer(question, answer) => self.state.answered(&question, answer),
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
            // Drawing asks for the size, so a resize needs nothing here.
            Message::Input(_) => {}
        }
        None
    }

    fn act(&mut self, action: Action) -> Option<End> {
        match action {
            Action::Quit => return Some(End::Quit),
            Action::Suspend => return unless_drawn(self.screen.suspend()),
            Action::Redraw => return unless_drawn(self.screen.forget()),
            Action::Ask(question) => drop(self.senders.questions.send(question)),
            Action::Choose(recording) => {
                // The receiving thread lives as long as this one.
                let _ = self.senders.chosen.send(recording);
                self.ask_next();
            }
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
