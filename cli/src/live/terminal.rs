//! The screen, keys and signals.
//!
//! The terminal is restored when [`Screen`] is dropped, and by a panic hook before the panic message is printed. A thread
//! waits for SIGTERM, SIGHUP and similar signals and ends the view in order. They are blocked before the first thread
//! starts, so that only SIGKILL can leave the terminal in raw mode.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::{panic, process, thread};

use crossterm::cursor::{Hide, Show};
use crossterm::terminal::{
    self, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{event, execute};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};

use super::Message;
use super::state::State;
use super::view;
use crate::errors::Failure;

/// Checks that standard input and output are a usable terminal.
///
/// # Errors
/// The message names what is missing and an alternative.
pub fn examine() -> Result<(), Failure> {
    let missing = match (io::stdout().is_terminal(), io::stdin().is_terminal()) {
        (true, true) if std::env::var_os("TERM").is_some_and(|term| term == "dumb") => {
            "this terminal (TERM=dumb) cannot show a full-screen view"
        }
        (true, true) => return Ok(()),
        (false, _) => "standard output is not a terminal",
        (_, false) => "standard input is not a terminal",
    };
    Err(Failure::new(format!(
        "live: {missing}; without a terminal use `culeak report` or `culeak snapshot`"
    )))
}

/// The signals that the view handles.
const AWAITED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// Blocks the signals in this thread and those it starts, and returns the previous mask.
///
/// # Errors
/// The kernel's error.
pub fn hold_signals() -> io::Result<SigSet> {
    let awaited: SigSet = AWAITED.into_iter().collect();
    Ok(awaited.thread_swap_mask(SigmaskHow::SIG_BLOCK)?)
}

/// Starts the threads that wait for signals and keys.
pub fn listen(messages: &Sender<Message>) {
    let signals = messages.clone();
    thread::spawn(move || {
        let awaited: SigSet = AWAITED.into_iter().collect();
        while let Ok(signal) = awaited.wait() {
            if signals.send(Message::Signal(signal)).is_err() {
                break;
            }
        }
    });
    let input = messages.clone();
    thread::spawn(move || {
        while let Ok(event) = event::read() {
            if input.send(Message::Input(event)).is_err() {
                return;
            }
        }
        let _ = input.send(Message::InputEnded);
    });
}

/// Ends this process by the signal's default action.
pub fn die_of(signal: Signal) -> ! {
    // SAFETY: SIG_DFL installs no handler, so no code of ours runs in signal context.
    let _ = unsafe { nix::sys::signal::signal(signal, nix::sys::signal::SigHandler::SigDfl) };
    let _ = SigSet::from(signal).thread_unblock();
    let _ = raise(signal);
    process::exit(128 + signal as i32)
}

/// The alternate screen in raw mode, until dropped.
pub struct Screen {
    colours: bool,
    /// What it shows.
    shown: Vec<String>,
}

impl Screen {
    /// # Errors
    /// The terminal cannot be switched.
    pub fn enter(colours: bool) -> Result<Screen, Failure> {
        put_back_on_panic();
        let shown = Vec::new();
        match take() {
            Ok(()) => Ok(Screen { colours, shown }),
            Err(error) => {
                put_back();
                Err(Failure::new(format!(
                    "live: the terminal cannot be switched to the live view ({error}); use `culeak report` instead"
                )))
            }
        }
    }

    /// Writes the lines that have changed.
    pub fn draw(&mut self, state: &mut State) -> io::Result<()> {
        let (columns, rows) = terminal::size()?;
        let lines = view::screen(state, [columns.into(), rows.into()], self.colours);
        let mut text = Hide.to_string();
        if lines.len() != self.shown.len() {
            // A screen of another size.
            text += "\x1b[2J";
            self.shown = vec![String::new(); lines.len()];
        }
        for (nth, (line, shown)) in lines.iter().zip(&self.shown).enumerate() {
            if line != shown {
                let _ = write!(text, "\x1b[{};1H\x1b[0m\x1b[2K{line}\x1b[0m", nth + 1);
            }
        }
        self.shown = lines;
        stdout().write_all(text.as_bytes())?;
        stdout().flush()
    }

    /// Makes the next drawing repaint the whole screen.
    pub fn forget(&mut self) {
        self.shown.clear();
    }

    /// Returns the terminal to the shell, stops the process, and takes the terminal again when continued.
    pub fn suspend(&mut self) -> io::Result<()> {
        put_back();
        raise(Signal::SIGSTOP)?;
        self.take_again()
    }

    /// Takes the terminal after another process had it.
    pub fn take_again(&mut self) -> io::Result<()> {
        // crossterm still counts raw mode as on, so switch it off first.
        disable_raw_mode()?;
        take()?;
        self.forget();
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        put_back();
    }
}

/// Whether the view owns the terminal. Leaving the alternate screen twice would move the cursor back over later output.
static TAKEN: AtomicBool = AtomicBool::new(false);

fn take() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, DisableLineWrap, Hide)
}

/// Restores the terminal. Errors are ignored: there is no other way to restore it.
fn put_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), Show, EnableLineWrap, LeaveAlternateScreen);
    let _ = stdout().flush();
}

/// Prints panic messages on the restored screen. A panic in a helper thread ends the process, because the view would wait
/// for that thread forever.
fn put_back_on_panic() {
    let before = panic::take_hook();
    let main = thread::current().id();
    panic::set_hook(Box::new(move |info| {
        put_back();
        before(info);
        if thread::current().id() != main {
            process::exit(101);
        }
    }));
}
