//! The live view: what a running program holds, refreshed from its recording, without touching the program.
//!
//! ```text
//! watch.rs   a thread: which processes there are, reads their recordings in turn ─► look.rs, tally.rs   numbers by stack
//! names.rs   a thread: names for stacks that are new                             ─► Names
//! usage.rs   a thread: how full the devices are          ─► by device
//! program.rs a thread: waits for the program that was started for the view
//! terminal.rs  a thread each for keys and for signals; the screen, put back whatever happens
//!      │
//!      └── all of them send a `Message` to the one loop in commands/live.rs ──► state.rs, rows.rs, history.rs ──► view.rs
//! ```
//!
//! The loop never waits for a file: it draws what it has. State knows no terminal, drawing knows no keys, so both are
//! tested with looks made by hand and a terminal in memory.

pub mod history;
pub mod names;
pub mod program;
pub mod reading;
pub mod rows;
pub mod state;
pub mod sums;
pub mod terminal;
pub mod usage;
pub mod view;
pub mod watch;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use ratatui::crossterm::event::Event;

use names::Names;
use reading::Reading;
use usage::Used;

/// Everything that can happen.
pub enum Message {
    Reading(Box<Reading>),
    /// A recording could not be read, and why.
    Unreadable(PathBuf, String),
    /// What is said while there is no process to show.
    Waiting(String),
    /// Names that were found, and notes on what was not.
    Names(Names, Vec<String>),
    /// How full the devices of a process are, by ordinal.
    Used(PathBuf, Vec<(i32, Used)>),
    Input(Event),
    /// Nobody can type any more.
    InputEnded,
    Signal(Signal),
    /// The program that was started for the view is over.
    Ended(ExitStatus),
}
