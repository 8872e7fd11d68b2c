//! The cells of a table: values with a type, which each format writes in its own way.

use culeak::analysis::estimate::Errors;
use culeak::analysis::function_name::plain;
use culeak::analysis::site::Frame;
use culeak::analysis::words::{self, bytes};

use super::{Chart, Style, Text};
use crate::escape::Escaped;

/// A call site in a table: names are aligned, places and marks follow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Site {
    pub name: String,
    pub place: String,
    /// Two spaces and text, or nothing: `  [pool]`.
    pub mark: String,
}

impl Site {
    /// A label and the place of its frame.
    pub fn of(label: &str, frame: Option<&Frame>, mark: impl Into<String>) -> Site {
        Site::at(label, frame.and_then(Frame::short_place).as_deref(), mark)
    }

    pub fn at(label: &str, place: Option<&str>, mark: impl Into<String>) -> Site {
        Site {
            name: Escaped(&plain(label)).to_string(),
            place: Escaped(place.unwrap_or_default()).to_string(),
            mark: mark.into(),
        }
    }
}

/// The value of a cell. Numbers are aligned at the right.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    Size(u64),
    Count(u64),
    /// A change of bytes; with errors if it is an estimate.
    Delta(i128, Option<Errors>),
    /// Bytes that may be fewer than none.
    Balance(i128),
    /// Nanoseconds.
    Time(u64),
    /// Bytes; with errors if they are an estimate.
    Estimate(u64, Option<Errors>),
    /// A number of things, and its text: `12 blocks`.
    Things(u64, String),
    /// A number as text: `98 %`, `8/8`.
    Number(String),
    /// The part of bytes that is in use.
    Part(u64, u64),
    Text(Text),
    Site(Site),
    Chart(Chart),
    Styled(Style, Box<Cell>),
}

impl Cell {
    pub fn styled(self, style: Style) -> Cell {
        Cell::Styled(style, Box::new(self))
    }

    pub(super) fn is_number(&self) -> bool {
        match self {
            Cell::Text(_) | Cell::Site(_) | Cell::Chart(_) | Cell::Part(..) => false,
            Cell::Styled(_, cell) => cell.is_number(),
            _ => true,
        }
    }

    pub(super) fn text(&self) -> Text {
        match self {
            Cell::Size(size) => bytes(*size).into(),
            Cell::Count(count) => words::count(*count).into(),
            Cell::Delta(delta, None) => words::signed_bytes(*delta).into(),
            Cell::Delta(delta, Some(errors)) => {
                format!("≈ {} ± {}", words::signed_bytes(*delta), bytes(errors.bytes_error)).into()
            }
            Cell::Balance(size) => balance(*size).into(),
            Cell::Time(ns) => words::duration(*ns).into(),
            Cell::Estimate(size, errors) => estimate(*size, *errors).into(),
            Cell::Number(text) | Cell::Things(_, text) => text.as_str().into(),
            Cell::Part(part, all) => bar(*part, *all).into(),
            Cell::Text(text) => text.clone(),
            Cell::Site(site) => format!("{}  {}{}", site.name, site.place, site.mark).into(),
            Cell::Chart(chart) => chart.characters().into(),
            Cell::Styled(style, cell) => Text(cell.text().0.into_iter().map(|(_, text)| (*style, text)).collect()),
        }
    }
}

impl<T: Into<Text>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::Text(text.into())
    }
}

impl From<Site> for Cell {
    fn from(site: Site) -> Cell {
        Cell::Site(site)
    }
}

/// `1.1 GiB`, or `-1.1 GiB`. Totals of a damaged file may exceed 64 bits; they are capped.
pub fn balance(size: i128) -> String {
    let sign = if size < 0 { "-" } else { "" };
    format!(
        "{sign}{}",
        bytes(u64::try_from(size.unsigned_abs()).unwrap_or(u64::MAX))
    )
}

/// `1.1 GiB`; `≈ 1.1 GiB ± 20 MiB` if it is an estimate from sampled stacks, `at most 20 MiB` if no block was chosen.
pub fn estimate(size: u64, errors: Option<Errors>) -> String {
    match errors {
        None => bytes(size),
        Some(errors) if size == 0 => format!("at most {}", bytes(errors.bytes_error)),
        Some(errors) => format!("≈ {} ± {}", bytes(size), bytes(errors.bytes_error)),
    }
}

/// `3 blocks`, `1 process`.
pub fn counted(n: impl TryInto<u64>, noun: &str) -> String {
    let many = match noun.ends_with("ss") || noun.ends_with("ch") {
        true => format!("{noun}es"),
        false => format!("{noun}s"),
    };
    words::plural(n.try_into().unwrap_or(u64::MAX), noun, &many)
}

/// A number of things in a table; the singular is as wide as the plural. `about`: in front of an estimate.
pub fn things_about(about: &str, n: u64, noun: &str) -> Cell {
    Cell::Things(
        n,
        format!("{about}{}{}", counted(n, noun), if n == 1 { " " } else { "" }),
    )
}

pub fn things(n: u64, noun: &str) -> Cell {
    things_about("", n, noun)
}

/// A bar of 20 characters. It is empty or full only if the part is nothing or all.
pub fn bar(part: u64, all: u64) -> String {
    const LONG: u64 = 20;
    let share = (u128::from(part) * u128::from(LONG))
        .checked_div(all.into())
        .unwrap_or(0) as u64;
    let full = match part {
        0 => 0,
        _ if part >= all => LONG,
        _ => share.clamp(1, LONG - 1),
    };
    "█".repeat(full as usize) + &"░".repeat((LONG - full) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_empty_or_full_only_when_its_part_is() {
        assert_eq!(bar(0, 100), "░".repeat(20));
        assert_eq!(bar(100, 100), "█".repeat(20));
        assert_eq!(bar(1, 1 << 40).matches('█').count(), 1);
        assert_eq!(bar((1 << 40) - 1, 1 << 40).matches('█').count(), 19);
        assert_eq!(bar(50, 100).matches('█').count(), 10);
    }
}
