//! The live view: what a running program holds, read from its recording without touching the program.
//!
//! ```text
//! watch.rs     thread: finds processes and reads their recordings  ─► reading.rs, sums.rs   tallies by stack
//! names.rs     thread: names new stacks                            ─► Names
//! usage.rs     thread: asks the driver how full the devices are    ─► Used
//! ask.rs       thread: searches for what holds the memory, adds up the ledger ─► Answer
//! program.rs   thread: waits for the program that the view started
//! terminal.rs  two threads: keys and signals; owns the screen and restores it
//!      │
//!      └── each sends a `Message` to the loop in commands/live.rs ──► state.rs, rows.rs, history.rs ──► view.rs
//! ```
//!
//! The loop never waits for a file: it draws the data it has. State does not depend on the terminal, and drawing does not
//! depend on keys, so tests use handmade readings and a terminal in memory.

pub mod ask;
pub mod history;
pub mod names;
pub mod processes;
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

use ask::{Answer, Question};
use names::Names;
use reading::Reading;
use usage::Used;

/// Everything that the loop reacts to.
pub enum Message {
    Reading(Box<Reading>),
    /// A recording that could not be read, and why.
    Unreadable(PathBuf, String),
    /// Text to show while there is no process.
    Waiting(String),
    /// Names of stacks, and notes on modules without symbols.
    Names(Names, Vec<String>),
    /// How full the devices of a process are, by ordinal.
    Used(PathBuf, Vec<(i32, Used)>),
    /// What holds the memory of a process or its ledger, or why that is unknown.
    Answer(Question, Result<Answer, String>),
    Input(Event),
    /// Standard input was closed.
    InputEnded,
    Signal(Signal),
    /// The program that the view started has ended.
    Ended(ExitStatus),
}
