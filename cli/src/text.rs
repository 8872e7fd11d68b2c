//! The pages: reports, diffs, trends and verdicts as documents, and printing them.
//!
//! `anstream` removes the styles where they are not wanted (a pipe, NO_COLOR). Deliberately absent: decisions on what to
//! show, which the analysis makes, and widths, which [`crate::document`] knows.

pub mod categories;
pub mod check;
pub mod diff;
pub mod host;
pub mod job;
pub mod ledger;
pub mod markdown;
pub mod objects;
pub mod pager;
pub mod pages;
pub mod parts;
pub mod phases;
pub mod report;
pub mod segments;
pub mod stats;
pub mod tree;
pub mod trend;
pub mod units;
pub mod whatif;
pub mod why;

use std::cell::RefCell;
use std::io::{self, Write};
use std::{env, process};

use crate::document::{columns, wrap};
use crate::errors::Failure;
use crate::{json, output};

/// Sets the colour choice of this process. `auto`: colours on a terminal, unless NO_COLOR or CLICOLOR_FORCE is set.
pub fn choose_color(choice: clap::ColorChoice) {
    let choice = match choice {
        clap::ColorChoice::Auto => anstream::ColorChoice::Auto,
        clap::ColorChoice::Always => anstream::ColorChoice::Always,
        clap::ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// Whether to use colours on a terminal that supports them.
pub fn wants_color() -> bool {
    match anstream::ColorChoice::global() {
        anstream::ColorChoice::Never => false,
        anstream::ColorChoice::Auto => env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        anstream::ColorChoice::Always | anstream::ColorChoice::AlwaysAnsi => true,
    }
}

/// Passes the choice to a child culeak process.
pub fn pass_color_on(command: &mut process::Command) {
    match anstream::ColorChoice::global() {
        anstream::ColorChoice::Auto => command,
        anstream::ColorChoice::Never => command.env("NO_COLOR", "1").env_remove("CLICOLOR_FORCE"),
        anstream::ColorChoice::Always | anstream::ColorChoice::AlwaysAnsi => {
            command.env("CLICOLOR_FORCE", "1").env_remove("NO_COLOR")
        }
    };
}

thread_local! {
    /// What is printed, if it is an answer of `culeak mcp`.
    static TAKEN: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Runs a command, and takes what it would print, without styles.
pub fn taken<T>(run: impl FnOnce() -> T) -> (T, String) {
    TAKEN.set(Some(Vec::new()));
    let result = run();
    let printed = TAKEN.take().unwrap_or_default();
    (result, String::from_utf8_lossy(&printed).into_owned())
}

/// Prints to standard output, through a pager if the text is longer than the terminal. A closed pipe (`| head`) is not an
/// error.
pub fn print(render: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    if TAKEN.with_borrow(Option::is_some) {
        let mut plain = anstream::StripStream::new(Vec::new());
        // Memory is always writable.
        let _ = render(&mut plain);
        TAKEN.with_borrow_mut(|taken| taken.get_or_insert_default().extend(plain.into_inner()));
        return Ok(());
    }
    output::check_standard_output()?;
    if pager::may_be_used() {
        return print_or_page(render);
    }
    print_directly(render)
}

fn print_or_page(render: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let choice = anstream::AutoStream::choice(&io::stdout());
    columns::fitting(io::stdout(), || {
        let mut text = anstream::AutoStream::new(Vec::new(), choice);
        // Memory is always writable.
        let _ = render(&mut text);
        let text = text.into_inner();
        match pager::show(&text) {
            true => Ok(()),
            false => print_directly(|out| out.write_all(&text)),
        }
    })
}

fn print_directly(render: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(Whole(anstream::stdout().lock()));
    match columns::fitting(io::stdout(), || render(&mut out)).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            // Discards the buffer, because dropping the writer would try to write it again.
            let _ = out.into_parts();
            Ok(())
        }
        Err(error) => Err(Failure::new(format!(
            "standard output: cannot be written ({error}); redirect it elsewhere"
        ))),
    }
}

/// Writes all or fails. A stream that removes colours writes a text in parts, and forgets the parts that it has written when a signal
/// interrupts it, so its text would be written twice.
struct Whole<W>(W);

impl<W: Write> Write for Whole<W> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.write_all(text)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints lines to standard output as [`print`] does; on a terminal, lines that are too wide continue below.
pub fn print_lines(render: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    print(|out| wrap::lines(out, render))
}

/// Prints to standard error, of a command whose program has standard output.
pub fn to_stderr(render: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(Whole(anstream::stderr()));
    let written = columns::fitting(io::stderr(), || render(&mut out));
    written.and_then(|()| out.flush()).map_err(|error| {
        Failure::new(format!(
            "standard error: the report cannot be written: {error}; redirect it elsewhere"
        ))
    })
}

/// Prints a value as JSON, indented, with a line break at the end.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    print(|out| write_json(value, out))
}

/// Writes a value as JSON in the same format.
pub fn write_json(value: &impl serde::Serialize, out: &mut dyn Write) -> io::Result<()> {
    json::write_pretty(&mut *out, value)?;
    writeln!(out)
}

#[cfg(test)]
#[path = "../../tests/support/sample.rs"]
pub mod sample;
#[cfg(test)]
#[path = "../../tests/support/timeline.rs"]
pub mod timeline;

#[cfg(test)]
mod tests;
