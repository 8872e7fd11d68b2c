//! How a command fails: one sentence for the user, and an exit code for scripts.
//!
//! The sentence says what was tried, on what, why it failed and what to do next. Deliberately absent: error types per cause,
//! since the caller only prints the failure.

use std::fmt;

use culeak::analysis::check::Outcome;

use crate::escape::Escaped;

/// Exit code for a leak over the limit.
pub const LEAK: u8 = 1;
/// Exit code for wrong usage, input that cannot be read, or a check without a verdict.
pub const USAGE: u8 = 2;

/// The command that installs all of culeak, in a clone of its repository. The documentation has the same line.
pub const INSTALL: &str = "cargo install --locked --path cli --features full";

/// Why a command that is a feature of the build does not work: `cannot send to servers`.
#[cfg_attr(all(feature = "parquet", feature = "push"), allow(dead_code))]
pub fn not_in_this_build(cannot: &str) -> String {
    format!(
        "this build {cannot}, because it was made without all features; install all of culeak, in a clone of its repository: {INSTALL}"
    )
}

/// What clap says of a mistake, on one line and without the usage.
pub fn of_clap(error: &clap::Error) -> Failure {
    let whole = error.to_string();
    let first = whole.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.trim_start_matches("error: ").split_whitespace().collect();
    Failure::new(words.join(" "))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub message: String,
    pub exit: u8,
}

/// The exit code of a check.
pub fn exit_of(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Passed => 0,
        Outcome::Failed => LEAK,
        Outcome::NoVerdict => USAGE,
    }
}

impl Failure {
    /// A failure with the usual exit code.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure::with_exit(message, USAGE)
    }

    pub fn with_exit(message: impl Into<String>, exit: u8) -> Failure {
        Failure {
            message: message.into(),
            exit,
        }
    }
}

/// So that `?` turns the sentence of a `map_err` into a failure.
impl<S: Into<String>> From<S> for Failure {
    fn from(message: S) -> Failure {
        Failure::new(message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The message may contain paths from a recording.
        write!(out, "{}", Escaped(&self.message))
    }
}
