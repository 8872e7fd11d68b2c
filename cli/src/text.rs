//! Reports, diffs and verdicts as text: aligned, coloured, and safe to print whatever a recording contains.
//!
//! Renderers write styled text to any `Write`; `anstream` takes the styles out again where nobody can see them (a
//! pipe, NO_COLOR). Deliberately absent: decisions; what is shown was decided when the value was computed.

pub mod check;
pub mod columns;
pub mod diff;
pub mod inert;
pub mod ledger;
pub mod parts;
pub mod report;
pub mod tree;
pub mod trend;
pub mod units;

use std::io::{self, Write};

use crate::errors::Failure;
use crate::{json, output};

/// Prints to standard output. A reader that closed the pipe (`| head`) has seen enough, which is no failure.
pub fn print(render: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    output::check_standard_output()?;
    let mut out = io::BufWriter::new(anstream::stdout().lock());
    match columns::fitting(io::stdout(), || render(&mut out)).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            // What is left in the buffer has no reader; dropping the writer normally would try once more.
            let _ = out.into_parts();
            Ok(())
        }
        Err(error) => Err(Failure::new(format!("standard output: cannot be written ({error})"))),
    }
}

/// Prints a value as JSON, indented, with a line break at the end.
pub fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    print(|out| {
        json::write_pretty(&mut *out, value)?;
        writeln!(out)
    })
}

#[cfg(test)]
#[path = "../../src/sample.rs"]
pub mod sample;

#[cfg(test)]
mod tests;
