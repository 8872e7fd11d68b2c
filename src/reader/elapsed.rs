//! How long ago a recording began, by the clocks of the machine that reads it.
//!
//! A recording measures time with its process's CLOCK_MONOTONIC, which is meaningless on another host or in another time
//! namespace: there the recording seems to begin in the future, or all its events seem to lie in the future.
//! CLOCK_REALTIME is the same everywhere but may be set. So the monotonic clock is used only if both clocks agree.

use std::mem::offset_of;

use super::Bytes;
use crate::format::Header;
use crate::system::{monotonic_ns, unix_ns};

/// The largest difference between clocks that agree.
const TOLERANCE_NS: u64 = 1_000_000_000;

/// Time since a recording began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elapsed {
    /// On the recording's own clock.
    Exact(u64),
    /// By CLOCK_REALTIME, since the monotonic clocks cannot be compared.
    Rough(u64),
}

impl Elapsed {
    pub fn since_start(header: &Bytes) -> Elapsed {
        let started_ns = header.field(offset_of!(Header, started_monotonic_ns));
        let started_unix_ns = header.field(offset_of!(Header, started_unix_ns));
        Elapsed::between((started_ns, started_unix_ns), (monotonic_ns(), unix_ns()))
    }

    /// Both arguments are (monotonic time, real time) in nanoseconds.
    fn between(start: (u64, u64), now: (u64, u64)) -> Elapsed {
        let real_ns = now.1.saturating_sub(start.1);
        match now.0.checked_sub(start.0) {
            Some(monotonic_ns) if monotonic_ns.abs_diff(real_ns) <= TOLERANCE_NS => Elapsed::Exact(monotonic_ns),
            _ => Elapsed::Rough(real_ns),
        }
    }

    pub fn ns(self) -> u64 {
        match self {
            Elapsed::Exact(ns) | Elapsed::Rough(ns) => ns,
        }
    }

    /// Events with a later time happened after now. `u64::MAX` if the clocks cannot be compared.
    pub fn latest_ns(self) -> u64 {
        match self {
            Elapsed::Exact(ns) => ns,
            Elapsed::Rough(_) => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_monotonic_clock_is_used_if_both_clocks_agree() {
        let start = (500 * SECOND, 9_000 * SECOND);
        let elapsed = Elapsed::between(start, (510 * SECOND, 9_010 * SECOND + 7));
        assert_eq!(
            (elapsed, elapsed.latest_ns()),
            (Elapsed::Exact(10 * SECOND), 10 * SECOND)
        );
    }

    #[test]
    fn a_monotonic_clock_of_another_host_or_namespace_is_ignored() {
        let start = (500 * SECOND, 9_000 * SECOND);
        // Ahead of the reader's, behind it, and a recording from the future by both clocks.
        for (monotonic, unix, expected) in [(20, 9_010, 10), (90_000, 9_010, 10), (20, 8_000, 0)] {
            let elapsed = Elapsed::between(start, (monotonic * SECOND, unix * SECOND));
            assert_eq!(elapsed, Elapsed::Rough(expected * SECOND));
            assert_eq!(elapsed.latest_ns(), u64::MAX);
        }
    }
}
