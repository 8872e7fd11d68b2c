//! How much a search reads before it stops.
//!
//! Each word of a process belongs to one object, so a search reads about as many references as the copy has words. In a
//! damaged or hostile heap, thousands of objects can share an array; reading it for each of them takes hours and more memory
//! than there is.

use std::time::{Duration, Instant};

use culeak::snapshot::Stop;

use crate::copy::Image;

/// When a search stops.
#[derive(Debug, Clone, Copy)]
pub enum Deadline {
    /// `None`: never.
    At(Option<Instant>),
    /// After the clock was read this often.
    #[cfg(test)]
    Looks(u32),
}

impl Deadline {
    pub fn after(limit: Duration) -> Deadline {
        Deadline::At(Instant::now().checked_add(limit))
    }

    /// Reads the clock.
    pub fn is_over(&mut self) -> bool {
        match self {
            Deadline::At(at) => at.is_some_and(|at| Instant::now() >= at),
            #[cfg(test)]
            Deadline::Looks(0) => true,
            #[cfg(test)]
            Deadline::Looks(left) => {
                *left -= 1;
                false
            }
        }
    }
}

/// What was found and not searched when a search stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Of native memory.
    pub bytes: u64,
    pub objects: u64,
}

/// References, words and objects that may still be read.
pub(crate) struct Budget {
    left: u64,
    /// Until the clock is read again.
    until_look: u64,
    deadline: Deadline,
    stop: Option<Stop>,
}

/// References per word of the copy. Native memory and Python objects may be read by both of their readers.
const PER_WORD: u64 = 4;
/// For small copies.
const LEAST: u64 = 1 << 20;
/// What the reader of an allocator says if it stops.
pub(crate) const UNFINISHED: &str =
    "not all of them were read within the limits of size and time (`culeak why --pause --limit TIME` sets the latter)";
/// What is read in a millisecond to some tens of them.
pub(crate) const LOOK: u64 = 1 << 17;

impl Budget {
    pub fn new(copy: &Image, deadline: Deadline) -> Budget {
        Budget::of(LEAST + copy.copied_bytes() / 8 * PER_WORD, deadline)
    }

    fn of(left: u64, deadline: Deadline) -> Budget {
        Budget {
            left,
            until_look: 0,
            deadline,
            stop: None,
        }
    }

    /// Pays for this many; false if the search must stop.
    #[inline]
    pub fn spend(&mut self, count: u64) -> bool {
        if count <= self.until_look && count <= self.left {
            self.until_look -= count;
            self.left -= count;
            return true;
        }
        self.look(count)
    }

    /// As [`Budget::spend`].
    ///
    /// # Errors
    /// Why the search must stop.
    pub fn pay(&mut self, count: u64) -> Result<(), Stop> {
        match self.spend(count) {
            true => Ok(()),
            false => Err(self.stop.unwrap_or(Stop::Size)),
        }
    }

    /// This many that were paid for were not read.
    pub fn refund(&mut self, count: u64) {
        self.left += count;
    }

    #[cold]
    fn look(&mut self, count: u64) -> bool {
        self.until_look = LOOK;
        if count > self.left {
            self.stop(Stop::Size);
        } else if self.deadline.is_over() {
            self.stop(Stop::Time);
        }
        self.left = self.left.saturating_sub(count);
        self.stop.is_none()
    }

    /// Reads the clock; false if the search must stop.
    pub fn has_time(&mut self) -> bool {
        if self.deadline.is_over() {
            self.stop(Stop::Time);
        }
        self.stop.is_none()
    }

    /// The first reason is kept.
    pub fn stop(&mut self, why: Stop) {
        self.stop.get_or_insert(why);
        (self.left, self.until_look) = (0, 0);
    }

    pub fn stopped(&self) -> Option<Stop> {
        self.stop
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_stops_for_the_first_reason() {
        let mut budget = Budget::of(10, Deadline::At(None));
        assert!(budget.spend(4) && budget.spend(6));
        assert!(!budget.spend(1) && !budget.spend(1));
        assert_eq!(budget.stopped(), Some(Stop::Size));
        let mut budget = Budget::of(10, Deadline::after(Duration::ZERO));
        assert!(!budget.spend(1));
        assert_eq!(budget.stopped(), Some(Stop::Time));
    }

    #[test]
    fn the_clock_is_read_once_in_many_references_and_at_large_ones() {
        let mut budget = Budget::of(u64::MAX, Deadline::Looks(3));
        let mut spent = 0;
        while budget.spend(1 << 10) {
            spent += 1 << 10;
        }
        assert_eq!((spent, budget.stopped()), (3 * (LOOK + (1 << 10)), Some(Stop::Time)));
        let mut budget = Budget::of(u64::MAX, Deadline::Looks(2));
        assert!(budget.spend(LOOK + 1) && budget.spend(LOOK + 1) && !budget.spend(LOOK + 1));
    }

    #[test]
    fn a_limit_longer_than_the_clock_goes_is_none() {
        assert!(!Deadline::after(Duration::MAX).is_over());
    }
}
