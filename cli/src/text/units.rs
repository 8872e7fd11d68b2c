//! Sizes, counts and times as people write and read them; the writing is the model's, whose sentences hold numbers too.

use std::time::Duration;

pub use culeak::analysis::words::{bytes, count, duration, plural, signed_bytes, signed_count};
use culeak::quantities;

/// Reads `500ms`, `30s`, `10m`, `2h`, `1d`; a bare number means seconds.
///
/// # Errors
/// Says what was expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let nanoseconds = quantities::time(text).map_err(|error| error.to_string())?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// Reads `4096`, `1MB` (10^6), `2GiB` or `2G` (2^31), `1.5 GiB`.
///
/// # Errors
/// Says what was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    quantities::size(text).map_err(|error| error.to_string())
}
