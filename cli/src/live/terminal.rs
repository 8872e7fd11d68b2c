//! The screen, the keys and the signals: taken when the view begins, put back whatever ends it.
//!
//! The terminal is put back when [`Screen`] is dropped, and by a hook when anything panics, before the message is
//! printed. SIGTERM, SIGHUP and the like are waited for on a thread and end the view in order; they are blocked before the
//! first thread starts, so that none of them can end the process with the terminal still in raw mode. Only SIGKILL can.

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

/// A view needs somebody who looks and types.
///
/// # Errors
/// Says which of the two is missing, and what to use instead.
pub fn examine() -> Result<(), Failure> {
    let missing = match (io::stdout().is_terminal(), io::stdin().is_terminal()) {
        (true, true) if std::env::var_os("TERM").is_some_and(|term| term == "dumb") => {
            "this terminal (TERM=dumb) can show no pages"
        }
        (true, true) => return Ok(()),
        (false, _) => "standard output is not a terminal",
        (_, false) => "standard input is not a terminal",
    };
    Err(Failure::new(format!(
        "live: {missing}; without a terminal use `culeak report` or `culeak snapshot`"
    )))
}

/// The signals that the view answers itself.
const AWAITED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// Blocks the signals in this thread and those it starts, and returns what was blocked before.
///
/// # Errors
/// Whatever the kernel says.
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

/// Ends this process as the signal would have done.
pub fn die_of(signal: Signal) -> ! {
    // SAFETY: the default action is no handler of ours.
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

    /// Draws everything the next time, whatever stands on the screen.
    pub fn forget(&mut self) -> io::Result<()> {
        // Its own way of clearing asks the terminal where the cursor is, and the answer would come to whoever reads keys.
        let mut backend = CrosstermBackend::new(stdout());
        backend.clear()?;
        self.terminal = Terminal::new(backend)?;
        Ok(())
    }

    /// Gives the terminal to the shell, stops, and takes it again when continued.
    pub fn suspend(&mut self) -> io::Result<()> {
        put_back();
        raise(Signal::SIGSTOP)?;
        self.take_again()
    }

    /// Takes the terminal after somebody else had it.
    pub fn take_again(&mut self) -> io::Result<()> {
        // Raw mode is remembered as being on, so it is switched off first.
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

/// Whether the terminal is ours. Giving it back twice would put the cursor where it was before the last words.
static TAKEN: AtomicBool = AtomicBool::new(false);

fn take() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, Hide)
}

/// As it was. Nothing can be done about what fails here.
fn put_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), Show, LeaveAlternateScreen);
    let _ = stdout().flush();
}

/// The message of a panic must stand on a screen that stays; and a view whose helper is gone would wait for ever.
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
