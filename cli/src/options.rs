//! Option groups that several commands share, and the config file that supplies defaults for some of them.
//!
//! This file contains the value parsers; the options for names are in [`crate::load::names`]. A command flattens a group into its own arguments.
//! Deliberately absent: options of a single command; they are in that command's file, unless a module below the commands reads
//! them, as [`server`].

pub mod categories;
pub mod config;
pub mod display;
pub mod format;
pub mod groups;
pub mod output;
pub mod refusals;
pub mod rules;
pub mod selection;
pub mod server;
pub mod view;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use culeak::analysis::suppressions::Pattern;
use culeak::kind::Kind;
use culeak::point::Point;

use crate::text::units;

fn names(kinds: impl Iterator<Item = Kind>) -> String {
    kinds.map(Kind::name).collect::<Vec<_>>().join(", ")
}

/// Reads one of these names.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    names: impl Iterator<Item = &'static str>,
    from_name: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(move |name| from_name(&name).ok_or("no such value"))
}

/// Parses a pattern for stacks, as in suppressions.
///
/// # Errors
/// The pattern is invalid; the message names the column.
pub fn parse_pattern(text: &str) -> Result<Pattern, String> {
    Pattern::parse(text).map_err(|(column, reason)| format!("column {column}: {reason}"))
}

/// Reads a point in time, or what else is read from text.
///
/// # Errors
/// A sentence of its reader.
pub fn parsed<T: FromStr<Err = String>>(text: &str) -> Result<T, String> {
    text.parse()
}

/// Parses a moment: a time since the start, a mark, `start`, `end` or `exit`.
///
/// # Errors
/// The text is something else; the message lists what is allowed.
pub fn parse_moment(text: &str) -> Result<Point, String> {
    match text {
        "start" | "0" | "0s" => return Ok(Point::Time(0)),
        _ => {}
    }
    match text.parse() {
        Ok(Point::Peak) | Err(_) => {
            Err("expected a time since the start such as 12.5s, mark:NAME, start, end or exit".to_owned())
        }
        Ok(point) => Ok(point),
    }
}

/// Parses a time between two readings.
///
/// # Errors
/// The text is no time, or one that is not allowed.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text)?;
    let allowed = Duration::from_millis(100)..=Duration::from_secs(86_400);
    (allowed.contains(&time).then_some(time)).ok_or_else(|| "expected a time from 100ms to 1d".to_owned())
}

/// Reads a file of rules; larger files than any person writes are refused.
///
/// # Errors
/// The file cannot be read or is too large.
pub fn read_rules(path: &Path) -> io::Result<String> {
    const MOST: u64 = 16 << 20;
    let mut text = String::new();
    let read = File::open(path)?.take(MOST + 1).read_to_string(&mut text)?;
    if read as u64 > MOST {
        return Err(io::Error::other("it is larger than 16 MiB; name a file of rules"));
    }
    Ok(text)
}

/// How many rows `--top` allows: 0 allows all; without it, text is limited to 20 rows and everything else is not.
pub fn rows_shown(top: Option<usize>, in_text: bool) -> Option<usize> {
    const ROWS_IN_TEXT: usize = 20;
    match top {
        None => in_text.then_some(ROWS_IN_TEXT),
        Some(top) => (top > 0).then_some(top),
    }
}
