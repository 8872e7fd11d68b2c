//! What is read of the inputs: the same options in every command that reads memory.

use clap::Args;
use culeak::analysis::boundaries::times;
use culeak::analysis::categories::{Categories, Category};
use culeak::analysis::filter::{Filter, Location};
use culeak::analysis::job;
use culeak::analysis::suppressions::Pattern;
use culeak::analysis::words::quoted;
use culeak::kind::Kind;
use culeak::point::Point;

use super::{one_of, parse_moment, parse_pattern, parsed, rows_shown};
use crate::errors::Failure;
use crate::load::Loaded;
use crate::text::units::parse_size;

/// Which memory is read, and how much of it is shown. Every form of an answer, totals included, is of this memory.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Selection")]
pub struct Selection {
    /// Show the memory at this point in time: end, peak, exit, mark:NAME, or a time such as 12.5s [default: end for a Python
    /// script that ended; otherwise exit, or now]
    #[arg(long, value_name = "POINT", value_parser = parsed::<Point>)]
    pub at: Vec<Point>,
    /// Show what was allocated between two moments and was live at the second: times such as 12.5s, mark:NAME, start, end,
    /// exit; needs a recording made with --timeline
    #[arg(long, num_args = 2, value_names = ["A", "B"], value_parser = parse_moment)]
    pub between: Option<Vec<Point>>,
    /// Show only memory allocated after this mark (culeak_mark)
    #[arg(long, value_name = "MARK")]
    pub since: Option<String>,
    /// Show only this kind of memory; repeatable
    #[arg(long, value_name = "KIND", hide_possible_values = true,
        value_parser = one_of(Kind::ALL.iter().map(|kind| kind.name()), Kind::from_name))]
    pub kind: Vec<Kind>,
    /// Show only memory on this GPU (its ordinal in the process) or on the host; repeatable
    #[arg(long, value_name = "N|host", value_parser = parse_location)]
    pub device: Vec<Location>,
    /// Show only stacks with a matching function, file, line (train.py:88) or module (*, ^ and $ as in suppressions); repeatable
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    pub focus: Vec<Pattern>,
    /// Hide stacks with a matching function, file or module; repeatable
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    pub ignore: Vec<Pattern>,
    /// Show only tensors of this category (culeak help by-category); repeatable
    #[arg(long, value_name = "CATEGORY", hide_possible_values = true,
        value_parser = one_of(Category::ALL.iter().map(|category| category.name()), Category::from_name))]
    pub category: Vec<Category>,
    /// Hide rows smaller than SIZE, e.g. 4096, 1MB, 2GiB
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = parse_size)]
    pub min_bytes: u64,
    /// Show at most N rows; 0: all [default: 20; all in JSON and HTML]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
}

impl Selection {
    pub fn filter(&self, rules: &Categories) -> Filter {
        Filter {
            kinds: self.kind.clone(),
            devices: self.device.clone(),
            focus: self.focus.clone(),
            ignore: self.ignore.clone(),
            since: self.since.clone(),
            categories: self.category.clone(),
            category_rules: rules.clone(),
        }
    }

    /// These options again, for a command to type next: ` --at peak --kind device`, or nothing.
    pub fn again(&self) -> String {
        let at = self
            .at
            .iter()
            .map(|point| format!(" --at {}", quoted(&point.to_string())));
        at.collect::<String>() + &self.filter(&Categories::none()).options()
    }

    /// How the rows of a job are cut; `in_text`: as text is.
    pub fn of_job(&self, in_text: bool) -> job::Options {
        job::Options {
            top: rows_shown(self.top, in_text),
            min_bytes: self.min_bytes,
            ..job::Options::default()
        }
    }

    /// The only point in time.
    pub fn point(&self) -> Option<&Point> {
        self.at.first()
    }

    /// The window of time.
    pub fn window(&self) -> Option<[&Point; 2]> {
        match self.between.as_deref() {
            Some([from, to]) => Some([from, to]),
            _ => None,
        }
    }

    /// # Errors
    /// The process never set the mark of `--since`; the message names those that it set.
    pub fn knows_mark(&self, item: &Loaded) -> Result<(), Failure> {
        let times = self
            .since
            .iter()
            .try_for_each(|name| times(&item.snapshot, name).map(drop));
        times.map_err(|unknown| Failure::new(format!("{}: --since: {unknown}", item.source)))
    }

    /// # Errors
    /// The process never used the GPUs of `--device`, or set the mark of `--since`.
    pub fn suits(&self, item: &Loaded) -> Result<(), Failure> {
        self.knows_mark(item)?;
        match self.filter(&Categories::none()).unused(&item.snapshot) {
            Some(unused) => Err(Failure::new(format!("{}: {unused}", item.source))),
            None => Ok(()),
        }
    }
}

fn parse_location(text: &str) -> Result<Location, String> {
    let gpu = || text.parse().ok().filter(|&ordinal| ordinal >= 0).map(Location::Gpu);
    let location = (text == "host").then_some(Location::Host).or_else(gpu);
    location.ok_or_else(|| "expected the ordinal of a GPU, such as 0, or host".to_owned())
}
