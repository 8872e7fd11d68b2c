//! The screen, keys and signals.
//!
//! The terminal is restored when [`Screen`] is dropped, and by a panic hook before the panic message is printed. A thread
//! waits for SIGTERM, SIGHUP and similar signals and ends the view in order. They are blocked before the first thread
//! starts, so that only SIGKILL can leave the terminal in raw mode.

use std::io::{self, IsTerminal, Stdout, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::{panic, process, thread};

use nix::sys::signal::{SigSet, SigmaskHow, Signal, raise};
use ratatui::Terminal;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::crossterm::{event, execute};

use super::Message;
use super::state::State;
use super::view::{self, Palette};
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
    terminal: Terminal<CrosstermBackend<Stdout>>,
    palette: Palette,
}

impl Screen {
    /// # Errors
    /// The terminal cannot be switched.
    pub fn enter(palette: Palette) -> Result<Screen, Failure> {
        put_back_on_panic();
        let terminal = take().and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        match terminal {
            Ok(terminal) => Ok(Screen { terminal, palette }),
            Err(error) => {
                put_back();
                Err(Failure::new(format!(
                    "live: the terminal cannot be switched to the live view ({error}); use `culeak report` instead"
                )))
            }
        }
    }

    pub fn draw(&mut self, state: &mut State) -> io::Result<()> {
        let palette = self.palette;
        self.terminal.draw(|frame| view::draw(state, &palette, frame))?;
        Ok(())
    }

    /// Makes the next drawing repaint the whole screen.
    pub fn forget(&mut self) -> io::Result<()> {
        // `Terminal::clear` queries the cursor position, and the thread that reads keys would get the answer.
        let mut backend = CrosstermBackend::new(stdout());
        backend.clear()?;
        self.terminal = Terminal::new(backend)?;
        Ok(())
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
        self.forget()
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
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// Restores the terminal. Errors are ignored: there is no other way to restore it.
fn put_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), Show, LeaveAlternateScreen);
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
