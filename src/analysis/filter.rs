//! A filter: which of the live records a report is about, by kind, device, stack and time.
//!
//! A record passes if it meets every condition that is set. Conditions of one sort are alternatives, as in `grep -e A -e B`:
//! two kinds let both pass. Stacks are matched by the patterns of suppressions. What a filter leaves out is always added
//! up, so that a filtered report can say so. Deliberately absent: the ledger, peaks and counters; those of a part of the
//! memory are not known, so they are of everything.

use std::collections::HashMap;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Pattern;
use crate::analysis::tally::Tally;
use crate::kind::Kind;
use crate::snapshot::{Call, Snapshot};

/// The conditions; an empty list lets everything pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Filter {
    pub kinds: Vec<Kind>,
    pub devices: Vec<Location>,
    /// Only stacks that match one of these.
    pub focus: Vec<Pattern>,
    /// No stack that matches one of these.
    pub ignore: Vec<Pattern>,
    /// Only what was allocated after the mark of this name; the last one, if several have it.
    pub since: Option<String>,
}

/// Where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    Host,
    /// By CUDA's ordinal in the process.
    Gpu(i32),
}

/// A filter that was set, and what it left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Filtered {
    #[serde(flatten)]
    pub filter: Filter,
    /// Memory that is held or cached, and in no row or total.
    pub left_out: Tally,
}

impl Filter {
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }
}

impl fmt::Display for Location {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Host => out.write_str("host"),
            Location::Gpu(ordinal) => write!(out, "GPU {ordinal}"),
        }
    }
}

impl Serialize for Location {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

/// When the program named this mark, the last time if there were several.
pub fn mark_time(snapshot: &Snapshot, name: &str) -> Option<u64> {
    let marks = snapshot.marks.iter().filter(|mark| mark.name == name);
    marks.map(|mark| mark.time_ns).max()
}

/// A filter at work on one snapshot. Several groups share a stack, so patterns are tried once per stack.
pub struct Filtering<'f> {
    filter: &'f Filter,
    since_ns: u64,
    /// By the snapshot's devices.
    ordinals: Vec<i32>,
    by_stack: HashMap<Option<usize>, bool>,
}

impl<'f> Filtering<'f> {
    pub fn new(filter: &'f Filter, snapshot: &Snapshot) -> Filtering<'f> {
        let since = filter.since.as_deref();
        Filtering {
            filter,
            since_ns: since.and_then(|name| mark_time(snapshot, name)).unwrap_or(0),
            ordinals: snapshot.devices.iter().map(|device| device.ordinal).collect(),
            by_stack: HashMap::new(),
        }
    }

    /// Records made before this do not pass; [`Groups::parted`] keeps them in groups of their own.
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Whether records of this call and stack pass, if they were made at this time.
    pub fn passes(&mut self, call: &Call, stack: Option<usize>, time_ns: u64, stacks: &CallStacks) -> bool {
        let filter = self.filter;
        (filter.kinds.is_empty() || filter.kinds.contains(&call.kind))
            && (filter.devices.is_empty() || filter.devices.contains(&self.location(call.kind, call.device)))
            && time_ns >= self.since_ns
            && self.stack_passes(stack, stacks)
    }

    /// The same for the sum of what a stack has ever asked for, which has no time.
    pub fn passes_at_any_time(
        &mut self,
        kind: Kind,
        device: Option<usize>,
        stack: Option<usize>,
        stacks: &CallStacks,
    ) -> bool {
        let filter = self.filter;
        (filter.kinds.is_empty() || filter.kinds.contains(&kind))
            && (filter.devices.is_empty() || filter.devices.contains(&self.location(kind, device)))
            && self.stack_passes(stack, stacks)
    }

    /// The groups that pass, and what of held and cached memory does not.
    pub fn split<'c, 'a>(&mut self, groups: &'c Groups<'a>, stacks: &CallStacks) -> (Vec<&'c Group<'a>>, Tally) {
        let (passing, others): (Vec<_>, Vec<_>) = groups
            .all
            .iter()
            .partition(|group| self.passes(group.call, group.stack, group.oldest_ns, stacks));
        let others = others
            .iter()
            .filter(|group: &&&Group| matches!(group.level, Level::Held | Level::Cached));
        (passing, Tally::total(others.map(|group| group.tally())))
    }

    /// The filter with what it left out; `None` if no condition is set.
    pub fn filtered(&self, left_out: Tally) -> Option<Filtered> {
        (!self.filter.is_empty()).then(|| Filtered {
            filter: self.filter.clone(),
            left_out,
        })
    }

    fn location(&self, kind: Kind, device: Option<usize>) -> Location {
        let counts_against = kind.place().counts_against(device);
        counts_against.map_or(Location::Host, |device| Location::Gpu(self.ordinals[device]))
    }

    fn stack_passes(&mut self, stack: Option<usize>, stacks: &CallStacks) -> bool {
        let Filter { focus, ignore, .. } = self.filter;
        if focus.is_empty() && ignore.is_empty() {
            return true;
        }
        *self.by_stack.entry(stack).or_insert_with(|| {
            let matches = |pattern: &Pattern| pattern.matches_stack(stacks.get(stack));
            (focus.is_empty() || focus.iter().any(matches)) && !ignore.iter().any(matches)
        })
    }
}
