//! How much a search reads before it stops.
//!
//! Each word of a process belongs to one object, so a search reads about as many references as the copy has words. In a
//! damaged or hostile heap, thousands of objects can share an array; reading it for each of them takes hours and more memory
//! than there is.

use std::time::Instant;

use crate::copy::Copy;

/// Why a search stopped before it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The time limit was reached.
    Time,
    /// The objects have more references than fit into the memory of the process.
    Size,
}

/// References, words and objects that may still be read.
pub(crate) struct Budget {
    left: u64,
    /// Until the clock is read again.
    until_look: u64,
    deadline: Instant,
    stop: Option<Stop>,
}

/// References per word of the copy. Native memory and Python objects may be read by both of their readers.
const PER_WORD: u64 = 4;
/// For small copies.
const LEAST: u64 = 1 << 20;
/// What is read in about a millisecond.
const LOOK: u64 = 1 << 17;

impl Budget {
    pub fn new(copy: &Copy, deadline: Instant) -> Budget {
        Budget::of(LEAST + copy.copied_bytes() / 8 * PER_WORD, deadline)
    }

    fn of(left: u64, deadline: Instant) -> Budget {
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

    #[cold]
    fn look(&mut self, count: u64) -> bool {
        self.until_look = LOOK;
        if count > self.left {
            self.stop(Stop::Size);
        } else if Instant::now() > self.deadline {
            self.stop(Stop::Time);
        }
        self.left = self.left.saturating_sub(count);
        self.stop.is_none()
    }

    /// Reads the clock; false if the search must stop.
    pub fn has_time(&mut self) -> bool {
        if Instant::now() > self.deadline {
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_search_stops_for_the_first_reason() {
        let later = Instant::now() + Duration::from_secs(3600);
        let mut budget = Budget::of(10, later);
        assert!(budget.spend(4) && budget.spend(6));
        assert!(!budget.spend(1) && !budget.spend(1));
        assert_eq!(budget.stopped(), Some(Stop::Size));
        let mut budget = Budget::of(10, Instant::now() - Duration::from_secs(1));
        assert!(!budget.spend(1));
        assert_eq!(budget.stopped(), Some(Stop::Time));
    }
}
