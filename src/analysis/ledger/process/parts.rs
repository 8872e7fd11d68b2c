//! The parts of a line: call sites, or binaries.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use super::sorted::Segment;
use crate::tally::Tally;

/// A part of a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Part<'a> {
    /// The function of the call site, the binary, or the state of objects.
    pub name: String,
    /// File and line of the call site.
    pub place: Option<String>,
    /// The exported function of the driver that took the memory.
    pub call: Option<&'a str>,
    pub bytes: u64,
    /// Number of segments, or of blocks that keep pages.
    pub count: u64,
    pub exact: bool,
    /// Bytes of the pool for local memory that this one replaced, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced_bytes: Option<u64>,
}

/// Sums by name, place and driver call.
#[derive(Default)]
pub(super) struct Parts<'a>(BTreeMap<PartKey<'a>, (Tally, bool)>);

/// Name, place and driver call.
type PartKey<'a> = (String, Option<String>, Option<&'a str>);

impl<'a> Parts<'a> {
    pub fn add(&mut self, name: String, place: Option<String>, call: Option<&'a str>, tally: Tally, exact: bool) {
        let part = self.0.entry((name, place, call)).or_insert((Tally::default(), exact));
        part.0.join(tally);
    }

    /// Largest first.
    pub fn finish(self) -> Vec<Part<'a>> {
        let parts = self.0.into_iter().map(|((name, place, call), (tally, exact))| Part {
            name,
            place,
            call,
            bytes: tally.bytes,
            count: tally.count,
            exact,
            replaced_bytes: None,
        });
        let mut parts: Vec<Part> = parts.collect();
        parts.sort_by_key(|part| Reverse(part.bytes));
        parts
    }
}

pub(super) fn by_site<'a>(list: &[Segment<'_, 'a>]) -> Vec<Part<'a>> {
    let mut parts = Parts::default();
    for taken in list {
        let (name, place) = taken.stack.site_names();
        parts.add(name, place, taken.call.function, taken.tally(), true);
    }
    parts.finish()
}

/// A segment may contain code of several binaries and kernels: it counts for the first one. A part that names a kernel has a place
/// and a call.
pub(super) fn by_binary<'a>(list: &[Segment<'_, 'a>]) -> Vec<Part<'a>> {
    let of_kernels = list.iter().any(|taken| taken.kernel.is_some());
    let binaries: HashSet<&str> = list.iter().map(|taken| taken.call.binary).collect();
    let mut parts = Parts::default();
    for taken in list {
        if let Some(kernel) = taken.kernel {
            let (_, place) = taken.stack.site_names();
            let is_exact = list.len() == 1;
            parts.add(kernel.to_owned(), place, taken.call.function, taken.tally(), is_exact);
            continue;
        }
        let name = match taken.call.binary {
            "" => "an unknown binary".to_owned(),
            binary => binary.to_owned(),
        };
        parts.add(name, None, None, taken.tally(), binaries.len() == 1 && !of_kernels);
    }
    parts.finish()
}
