//! The live view: what a running program holds, read from its recording without touching the program.
//!
//! ```text
//! watch.rs     thread: finds processes, reads and names their recordings ─► reading.rs   the report of each as rows
//! driver.rs    thread of watch.rs for each question to the driver
//! holders.rs   thread for each search for what holds the memory, at the key `w`
//! program.rs   thread: waits for the program that the view started
//! terminal.rs  two threads: keys and signals; owns the screen and restores it
//!      │
//!      └── each sends a `Message` to the loop in commands/live/event_loop.rs ──► state.rs ──► view.rs   documents
//! ```
//!
//! The loop never waits for a file: it draws the data it has. State does not depend on the terminal, and drawing does not
//! depend on keys, so tests use handmade readings and a screen that is a list of lines.

mod driver;
pub mod holders;
pub mod program;
pub mod reading;
pub mod state;
pub mod terminal;
pub mod view;
pub mod watch;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;

use crossterm::event::Event;
use nix::sys::signal::Signal;

use holders::Holders;
use reading::Reading;

/// Everything that the loop reacts to.
pub enum Message {
    Reading(Arc<Reading>),
    /// A recording that could not be read, and why.
    Unreadable(PathBuf, String),
    /// Text to show while there is no process.
    Waiting(String),
    /// Notes, for example on modules without symbols.
    Notes(Vec<String>),
    /// What holds the memory of a process, or why that is unknown.
    Holders(PathBuf, Result<Holders, String>),
    Input(Event),
    /// Standard input was closed.
    InputEnded,
    Signal(Signal),
    /// The program that the view started has ended.
    Ended(ExitStatus),
}
