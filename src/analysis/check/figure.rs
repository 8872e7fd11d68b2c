//! A figure that may not be known exactly, and how it compares with what is allowed.
//!
//! ```text
//!          least ──── found ──── most        the truth is in this range
//! allowed ─┘ a breach                        whatever else was not seen
//!             └─ allowed ─┘ not decided      no verdict
//!                                └─ allowed  kept
//! ```

use super::limits::Measure;
use crate::analysis::estimate::CERTAIN;

/// A figure and the range in which the truth is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figure {
    pub found: u64,
    pub least: u64,
    pub most: u64,
}

/// How a figure compares with what is allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Kept,
    Undecided,
    /// By what was found, or by what is certain: an estimate may be lower than that.
    Broken(u64),
}

impl Figure {
    pub fn exact(found: u64) -> Figure {
        Figure {
            found,
            least: found,
            most: found,
        }
    }

    /// The range of an estimate with this error, which may lack `unseen`, within the range that is certain. Estimates that are too
    /// low have errors that are too low: `unseen` makes up for them.
    pub(super) fn narrowed(self, error: Option<u64>, unseen: u64) -> Figure {
        let range = CERTAIN.saturating_mul(error.unwrap_or(u64::MAX));
        let (low, high) = (self.found.saturating_sub(range), self.found.saturating_add(range));
        Figure {
            least: low.clamp(self.least, self.most),
            most: high.saturating_add(unseen).clamp(self.least, self.most),
            ..self
        }
    }

    pub(super) fn against(&self, allowed: u64) -> Judgement {
        match allowed {
            _ if self.least > allowed => Judgement::Broken(self.found.max(self.least)),
            _ if self.most > allowed => Judgement::Undecided,
            _ => Judgement::Kept,
        }
    }

    /// `1 MiB to 3 MiB`.
    pub(super) fn range(&self, measure: Measure) -> String {
        let least = measure.words(self.least);
        match self.most {
            u64::MAX => format!("{least} or more"),
            most => format!("{least} to {}", measure.words(most)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a figure compares with a limit. The truth is below `most` for certain.
    fn judge(found: u64, error: Option<u64>, most: u64, limit: u64) -> Judgement {
        let figure = Figure {
            found,
            least: found.min(1),
            most,
        };
        figure.narrowed(error, 0).against(limit)
    }

    #[test]
    fn exact_figures_are_always_decided() {
        assert_eq!(judge(0, Some(0), 0, 0), Judgement::Kept);
        assert_eq!(judge(100, Some(0), 100, 100), Judgement::Kept);
        assert_eq!(judge(101, Some(0), 101, 100), Judgement::Broken(101));
    }

    #[test]
    fn estimates_break_a_limit_beyond_three_errors() {
        assert_eq!(judge(1000, Some(100), 5000, 699), Judgement::Broken(1000));
        assert_eq!(judge(1000, Some(100), 5000, 700), Judgement::Undecided);
        assert_eq!(judge(1000, Some(100), 5000, 1299), Judgement::Undecided);
        assert_eq!(judge(1000, Some(100), 5000, 1300), Judgement::Kept);
        // All that there is keeps the limit.
        assert_eq!(judge(1000, Some(100), 1200, 1200), Judgement::Kept);
    }

    #[test]
    fn a_chosen_block_exists_and_others_may() {
        assert_eq!(judge(300, Some(300), 900, 0), Judgement::Broken(300));
        // The error is not known.
        assert_eq!(judge(300, None, 900, 200), Judgement::Undecided);
        let none = Figure {
            found: 0,
            least: 0,
            most: 900,
        };
        let unseen = |unseen| none.narrowed(Some(0), unseen).most;
        assert_eq!([unseen(500), unseen(5000)], [500, 900]);
    }
}
