//! What a report shows, and what that leaves out.

use super::{By, Sort};
use crate::analysis::categories::Categories;
use crate::analysis::filter::Filter;
use crate::analysis::points::Points;
use crate::analysis::suppressions::Suppressions;

/// What to show.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub by: By,
    pub sort: Sort,
    /// The most rows to list.
    pub top: Option<usize>,
    /// Rows with fewer bytes are cut off.
    pub min_bytes: u64,
    /// The input as named on the command line, for the next command.
    pub source: String,
    /// The input is a file that `culeak snapshot` wrote.
    pub is_of_snapshot: bool,
    /// The process of a snapshot no longer runs here: its recording, or empty if that is not here either.
    pub left: Option<String>,
    /// Rows and totals include only records that pass.
    pub filter: Filter,
    /// Rows exclude the records that match; totals include them.
    pub suppressions: Suppressions,
    /// The most stacks per row, in place of [`STACKS_KEPT`](super::STACKS_KEPT).
    pub stacks_kept: Option<usize>,
    /// The points of the whole snapshot, if it was reduced to one of them.
    pub points: Option<Points>,
    /// The rules for categories.
    pub categories: Categories,
    /// The most rows of objects.
    pub top_objects: Option<usize>,
    /// Sum up the categories even if the rows are not by category.
    pub categorized: bool,
    /// By call site or stack without a filter: rows of pools in host memory that are not in use are in [`Report::pools`](super::Report::pools), and those of
    /// which no search found a sure holder, if all of a pool are below 1 MiB together. Unless all rows are asked for, those without
    /// memory are cut off beside others.
    pub without_minor_rows: bool,
}

/// Number of rows that were cut off, by option.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    pub below_min: usize,
    pub beyond_top: usize,
}

impl Cut {
    pub fn rows(self) -> usize {
        self.below_min + self.beyond_top
    }

    #[must_use]
    pub fn and(self, other: Cut) -> Cut {
        Cut {
            below_min: self.below_min + other.below_min,
            beyond_top: self.beyond_top + other.beyond_top,
        }
    }

    /// Takes those that are not `enough` out of the rows, and those beyond the most, and returns them, too.
    pub fn off<T>(rows: &mut Vec<T>, enough: impl FnMut(&T) -> bool, top: Option<usize>) -> (Cut, Vec<T>) {
        let (shown, mut out): (Vec<T>, Vec<T>) = std::mem::take(rows).into_iter().partition(enough);
        *rows = shown;
        let below_min = out.len();
        out.extend(rows.split_off(top.unwrap_or(usize::MAX).min(rows.len())));
        let beyond_top = out.len() - below_min;
        (Cut { below_min, beyond_top }, out)
    }
}
