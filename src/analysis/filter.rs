//! A filter selects the live records that a report is about, by kind, device, stack, category and time.
//!
//! A record passes if it meets all conditions that are set. Several values of one condition are alternatives, as in
//! `grep -e A -e B`: two kinds let both pass. Stacks are matched with the patterns of suppressions. The records that do
//! not pass are added up, so a filtered report can state how much it leaves out. Deliberately absent: the ledger, peaks
//! and counters. They are not known for a part of the memory, so a filter does not apply to them.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use serde::{Serialize, Serializer};

use crate::analysis::categories::{Categories, Category, Request, Sorter};
use crate::analysis::groups::Group;
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Pattern;
use crate::analysis::words::quoted;
use crate::kind::{Kind, Place};
use crate::snapshot::{Call, Snapshot};
use crate::tally::Tally;
use crate::timeline::Site;

/// The conditions; an empty list lets everything pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Filter {
    /// Only these kinds.
    pub kinds: Vec<Kind>,
    /// Only on these devices.
    pub devices: Vec<Location>,
    /// Accept only stacks that match one of these.
    pub focus: Vec<Pattern>,
    /// Reject stacks that match one of these.
    pub ignore: Vec<Pattern>,
    /// Accept only allocations made after the mark of this name; the last one, if several have it.
    pub since: Option<String>,
    /// Only these categories.
    pub categories: Vec<Category>,
    /// The rules for `categories`.
    #[serde(skip)]
    pub category_rules: Categories,
}

/// Where memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    Host,
    /// By CUDA's ordinal in the process.
    Gpu(i32),
}

/// A filter, and the memory that it left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Filtered {
    #[serde(flatten)]
    pub filter: Filter,
    /// Held and cached memory that did not pass.
    pub left_out: Tally,
}

impl Filter {
    /// One that lets memory of these kinds pass; all if there are none.
    pub fn of_kinds(kinds: &[Kind]) -> Filter {
        Filter {
            kinds: kinds.to_vec(),
            ..Filter::default()
        }
    }

    /// Whether stacks decide what passes.
    pub fn is_of_stacks(&self) -> bool {
        !self.focus.is_empty() || !self.ignore.is_empty() || !self.categories.is_empty()
    }

    pub fn is_empty(&self) -> bool {
        let Filter {
            kinds,
            devices,
            focus,
            ignore,
            since,
            categories,
            category_rules: _,
        } = self;
        (kinds.is_empty() && devices.is_empty() && categories.is_empty())
            && (focus.is_empty() && ignore.is_empty() && since.is_none())
    }

    /// The options of a command that have this effect: ` --kind device --focus train.py`, or nothing.
    pub fn options(&self) -> String {
        let device = |location: &Location| match location {
            Location::Host => "host".to_owned(),
            Location::Gpu(ordinal) => ordinal.to_string(),
        };
        let text = |pattern: &Pattern| pattern.text().to_owned();
        let each: [(&str, Vec<String>); 6] = [
            ("kind", self.kinds.iter().map(|kind| kind.name().to_owned()).collect()),
            ("device", self.devices.iter().map(device).collect()),
            ("focus", self.focus.iter().map(text).collect()),
            ("ignore", self.ignore.iter().map(text).collect()),
            ("since", self.since.iter().cloned().collect()),
            (
                "category",
                self.categories.iter().map(|of| of.name().to_owned()).collect(),
            ),
        ];
        let each = each
            .iter()
            .flat_map(|(option, values)| values.iter().map(move |value| (option, value)));
        each.map(|(option, value)| format!(" --{option} {}", quoted(value)))
            .collect()
    }

    /// Whether it may let memory of this process pass: false if it selects GPUs and the process has used none of them.
    pub fn concerns(&self, snapshot: &Snapshot) -> bool {
        let used = used(snapshot);
        let selected = |location: &Location| match location {
            Location::Host => true,
            Location::Gpu(ordinal) => used.contains(ordinal),
        };
        self.devices.is_empty() || self.devices.iter().any(selected)
    }

    /// That the process used none of the GPUs that the filter selects, and which it used.
    pub fn unused(&self, snapshot: &Snapshot) -> Option<String> {
        if self.concerns(snapshot) {
            return None;
        }
        let names = |locations: &mut dyn Iterator<Item = Location>| {
            let names: Vec<String> = locations.map(|location| location.to_string()).collect();
            names.join(", ")
        };
        let wanted = names(&mut self.devices.iter().copied());
        let used = names(&mut used(snapshot).into_iter().map(Location::Gpu));
        Some(match used.is_empty() {
            true => format!("the process used no memory on {wanted}, nor on any other GPU; leave out --device"),
            false => format!("the process used no memory on {wanted}; it used {used}"),
        })
    }
}

/// The ordinals of the GPUs on which the process ever had memory.
fn used(snapshot: &Snapshot) -> BTreeSet<i32> {
    let counters = snapshot.counters.iter().filter(|counter| counter.total_count > 0);
    let devices = counters.filter_map(|counter| counter.device);
    devices.map(|device| snapshot.devices[device].ordinal).collect()
}

/// Whether these kinds are of objects without an address only.
pub fn only_objects(kinds: &[Kind]) -> bool {
    !kinds.is_empty() && kinds.iter().all(|kind| kind.place() == Place::Object)
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

/// When the program set this mark; the last time, if it did so several times.
pub fn mark_time(snapshot: &Snapshot, name: &str) -> Option<u64> {
    let marks = snapshot.marks.iter().filter(|mark| mark.name == name);
    marks.map(|mark| mark.time_ns).max()
}

/// That the program set no mark of this name, and what follows: which marks it set, or how to set one.
pub fn no_mark(snapshot: &Snapshot, name: &str) -> (String, String) {
    const SHOWN: usize = 10;
    let mut known: Vec<&str> = Vec::new();
    for mark in &snapshot.marks {
        if !known.contains(&mark.name.as_str()) && known.len() <= SHOWN {
            known.push(&mark.name);
        }
    }
    let more = if known.len() > SHOWN { " …" } else { "" };
    let names: Vec<String> = known.iter().take(SHOWN).map(|name| format!("{name:?}")).collect();
    match names.as_slice() {
        [] => (
            format!("the program set no mark {name:?}, and no others"),
            "set marks with culeak_mark, or with NVTX under culeak run --record nvtx".to_owned(),
        ),
        names => (
            format!("the program set no mark {name:?}"),
            format!("it set {}{more}", names.join(", ")),
        ),
    }
}

/// A filter applied to one snapshot. Several groups may share a stack, so patterns are matched once per stack.
pub struct Filtering<'f> {
    filter: &'f Filter,
    since_ns: u64,
    /// By the snapshot's devices.
    ordinals: Vec<i32>,
    by_stack: HashMap<Option<usize>, bool>,
    sorter: Sorter<'f>,
}

impl<'f> Filtering<'f> {
    pub fn new(filter: &'f Filter, snapshot: &'f Snapshot) -> Filtering<'f> {
        let since = filter.since.as_deref();
        Filtering {
            filter,
            since_ns: since.and_then(|name| mark_time(snapshot, name)).unwrap_or(0),
            ordinals: snapshot.devices.iter().map(|device| device.ordinal).collect(),
            by_stack: HashMap::new(),
            sorter: Sorter::new(&filter.category_rules, snapshot),
        }
    }

    /// Records made before this time do not pass. [`split_at`](crate::analysis::groups::Groups::split_at) puts them into separate groups.
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Whether records of this call, stack and time pass.
    pub fn passes(&mut self, call: &Call, stack: Option<usize>, time_ns: u64, stacks: &CallStacks) -> bool {
        time_ns >= self.since_ns && self.passes_at_any_time(call.into(), call.device, stack, stacks)
    }

    /// Whether memory of a site of the event log passes, if its time does. `thread`: of the site's allocations, if it is one.
    pub fn passes_site(&mut self, site: &Site, thread: Option<usize>, stacks: &CallStacks) -> bool {
        let request = Request {
            kind: site.kind,
            domain: site.domain.as_deref(),
            thread,
        };
        self.passes_at_any_time(request, site.device, site.stack, stacks)
    }

    /// Whether records of this request, device and stack pass if their time does.
    pub fn passes_at_any_time(
        &mut self,
        request: Request,
        device: Option<usize>,
        stack: Option<usize>,
        stacks: &CallStacks,
    ) -> bool {
        let (filter, kind) = (self.filter, request.kind);
        self.is_of(kind, device)
            && self.stack_passes(stack, stacks)
            && (filter.categories.is_empty()
                || filter
                    .categories
                    .contains(&self.sorter.category(stack, request, stacks)))
    }

    /// Whether counters of this kind and device pass; `None`: they are of all stacks and times, and the filter selects a part.
    pub fn counters_pass(&self, kind: Kind, device: Option<usize>) -> Option<bool> {
        let filter = self.filter;
        (!filter.is_of_stacks() && filter.since.is_none()).then(|| self.is_of(kind, device))
    }

    /// Whether kind and device pass.
    fn is_of(&self, kind: Kind, device: Option<usize>) -> bool {
        let filter = self.filter;
        (filter.kinds.is_empty() || filter.kinds.contains(&kind))
            && (filter.devices.is_empty() || filter.devices.contains(&self.location(kind, device)))
    }

    /// The groups that pass, and the held and cached memory that does not.
    pub fn split<'c, 'a>(&mut self, groups: &'c [Group<'a>], stacks: &CallStacks) -> (Vec<&'c Group<'a>>, Tally) {
        let (passing, others): (Vec<_>, Vec<_>) = groups
            .iter()
            .partition(|group| self.passes(group.call, group.stack, group.oldest_ns, stacks));
        let others = others.iter().filter(|group: &&&Group| group.level.is_counted());
        (passing, Tally::total(others.map(|group| group.tally())))
    }

    /// The filter with the memory that it left out; `None` if no condition is set.
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
