//! What a user asks for: which memory (a block, a line, or call sites), and how much to show of it.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use super::Retained;
use crate::analysis::filter::Filter;
use crate::analysis::site::{CallStack, Frame};
use crate::analysis::suppressions::Pattern;
use crate::snapshot::{Allocation, Class, HolderPath};

/// Which memory, and how much to show.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The input as named on the command line, for the next command.
    pub source: String,
    /// The core file that was searched.
    pub core: Option<String>,
    pub selector: Option<Selector>,
    pub class: Option<Class>,
    pub filter: Filter,
    /// The most origins, and the most retainers.
    pub top: Option<usize>,
    /// The most rows of one origin.
    pub rows: Option<usize>,
    /// Origins and retainers with fewer bytes are cut off.
    pub min_bytes: u64,
    /// Rank holders by the host memory that they keep.
    pub host: bool,
}

impl Options {
    /// By what a holder is ranked.
    pub(super) fn size(&self, retained: &Retained) -> u64 {
        if self.host {
            retained.host_bytes
        } else {
            retained.tally.bytes
        }
    }

    pub(super) fn selects_all(&self) -> bool {
        self.selector.is_none() && self.class.is_none() && self.filter.is_empty()
    }
}

/// What a user names on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// The block that contains this address.
    Address(u64),
    /// The call site in this file and line: `train.py:212`.
    Line(String, u32),
    /// Call sites whose function, file or module matches; if there are none, holders whose text matches; if there are none,
    /// stacks with a frame that matches, as for a line.
    Site(Pattern),
}

/// What a selector names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Matched {
    /// Blocks by their call site or their address.
    Site,
    /// What holds them, since no call site matches: the origin of the path.
    Holder,
    /// Another frame of their stacks, since neither matches.
    Caller,
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Selector, String> {
        if let Some(digits) = text.strip_prefix("0x") {
            let address = u64::from_str_radix(digits, 16);
            return address
                .map(Selector::Address)
                .map_err(|error| format!("{text:?} is not an address: {error}"));
        }
        if let Some((file, line)) = text.rsplit_once(':')
            && let Ok(line) = line.parse()
            && !file.is_empty()
        {
            return Ok(Selector::Line(file.to_owned(), line));
        }
        Pattern::parse(text)
            .map(Selector::Site)
            .map_err(|(column, reason)| format!("column {column}: {reason}"))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selector::Address(address) => write!(out, "{address:#x}"),
            Selector::Line(file, line) => write!(out, "{file}:{line}"),
            Selector::Site(pattern) => out.write_str(pattern.text()),
        }
    }
}

impl Selector {
    pub(super) fn selects(
        &self,
        block: &Allocation,
        stack: &CallStack,
        path: Option<&HolderPath>,
        matched: Matched,
    ) -> bool {
        let matches = |frame: &Frame| match self {
            Selector::Address(_) => false,
            Selector::Line(file, line) => {
                frame.line == Some(*line) && frame.file.is_some_and(|known| ends_with_path(known, file))
            }
            Selector::Site(pattern) => pattern.matches_frame(frame),
        };
        match (self, matched) {
            (Selector::Address(address), _) => contains(block, *address),
            (_, Matched::Site) => stack.site().is_some_and(matches),
            (Selector::Site(pattern), Matched::Holder) => path.is_some_and(|path| pattern.matches(&path.origin)),
            (Selector::Line(..), Matched::Holder) => false,
            (_, Matched::Caller) => stack.frames.iter().any(matches),
        }
    }
}

fn contains(block: &Allocation, address: u64) -> bool {
    block.address == address || block.address < address && address - block.address < block.bytes
}

/// Whether the path is this one, or ends with it after a slash.
fn ends_with_path(path: &str, end: &str) -> bool {
    path.strip_suffix(end)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('/') || end.starts_with('/'))
}
