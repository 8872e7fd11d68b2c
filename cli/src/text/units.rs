//! Sizes, counts and times: the library's formatters and parsers, with errors as text for the command line.

use std::time::Duration;

pub use culeak::analysis::words::{bytes, count, duration, plural, signed_bytes, signed_count};
use culeak::quantities;

/// Parses `500ms`, `30s`, `10m`, `2h`, `1d`; a bare number means seconds.
///
/// # Errors
/// The text is not a duration; the message has the expected form.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = quantities::time(text).map_err(|error| error.to_string())?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// Parses `4096`, `1MB` (10^6), `2GiB` or `2G` (2^31), `1.5 GiB`.
///
/// # Errors
/// The text is not a size; the message has the expected form.
pub fn parse_size(text: &str) -> Result<u64, String> {
    quantities::size(text).map_err(|error| error.to_string())
}

/// A part of a sentence, or nothing.
pub fn when(is_said: bool, text: impl FnOnce() -> String) -> String {
    if is_said { text() } else { String::new() }
}

/// As [`when`], of a number other than 0.
pub fn unless_zero<N: Copy + Default + PartialEq>(number: N, text: impl FnOnce(N) -> String) -> String {
    when(number != N::default(), || text(number))
}
