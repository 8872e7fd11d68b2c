//! Groups live records into rows, and sorts the rows.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use super::places::{HOST_MEMORY, device_name, place_name, stream_name};
use super::rows::{CALLERS_KEPT, Row, RowCaller, RowForward, RowStack, STACKS_KEPT};
use crate::analysis::callers;
use crate::analysis::categories::{Categories, Sorter};
use crate::analysis::estimate::{Errors, Estimate};
use crate::analysis::filter::{Filter, Filtering};
use crate::analysis::groups::{Group, Groups, Level};
use crate::analysis::opaque::OpaquePool;
use crate::analysis::site::{CallStack, CallStacks, Fingerprint, Frame, NO_STACK, file_name, python_line};
use crate::analysis::why::modules;
use crate::kind::{Kind, Place};
use crate::named;
use crate::snapshot::{Snapshot, Stream, gradient_of};
use crate::tally::Tally;

named! {
    /// What the records of a row have in common.
    #[derive(Default, serde::Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum By {
        /// The call site.
        #[default]
        Site = "site",
        Stack = "stack",
        Kind = "kind",
        Device = "device",
        Stream = "stream",
        Thread = "thread",
        Api = "api",
        /// The module of PyTorch that is in no other and owns the memory: a model.
        Module = "module",
        /// The library of the site, or its file if it is a Python line.
        File = "file",
        /// The innermost Python line that the user wrote.
        PythonLine = "python-line",
        /// The line of the forward pass that the memory is a gradient of.
        Forward = "forward",
        /// The CUDA library that requested the memory.
        Library = "library",
        /// What the memory is for, by the rules for categories.
        Category = "category",
        /// The exact size.
        Size = "size",
        /// The kind of an object without an address: the rows are of objects, not of memory.
        ObjectKind = "object-kind",
    }

    /// The order of rows.
    #[derive(Default, serde::Serialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum Sort {
        #[default]
        Bytes = "bytes",
        Count = "count",
        /// Oldest first.
        Age = "age",
    }
}

impl By {
    /// Whether stacks decide which row a record is in.
    pub const fn is_of_stacks(self) -> bool {
        match self {
            By::Site | By::Stack | By::File | By::PythonLine | By::Forward | By::Library | By::Category => true,
            By::Kind | By::Device | By::Stream | By::Thread | By::Api | By::Size | By::Module | By::ObjectKind => false,
        }
    }

    /// What objects without an address are grouped by: none of them is a gradient.
    pub fn of_objects(self) -> By {
        match self {
            By::Forward => By::Site,
            by => by,
        }
    }
}

impl Sort {
    /// Sorts rows; equal ones by label, so that the output is deterministic.
    pub fn apply(self, rows: &mut [Row]) {
        let key = |row: &Row| match self {
            Sort::Bytes => (row.bytes, row.count),
            Sort::Count => (row.count, row.bytes),
            Sort::Age => (row.oldest_age_ns, row.bytes),
        };
        let first = |row: &Row| row.stacks.first().map(|stack| stack.stack.fingerprint);
        rows.sort_by(|a, b| {
            key(b)
                .cmp(&key(a))
                .then_with(|| a.label.cmp(&b.label))
                .then_with(|| first(a).cmp(&first(b)))
        });
    }
}

/// What records must have in common to be in one row.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    /// A fingerprint, and whether a caching allocator holds the memory: one line may cause both.
    Print(Fingerprint, bool),
    Number(u64),
    /// Host memory, or that of a device.
    Device(bool, Option<usize>),
    Stream(bool, Option<usize>, Option<Stream>),
    Text(&'a str),
    Line(Option<(Option<&'a str>, Option<u32>, Option<&'a str>)>),
}

impl<'a> Key<'a> {
    fn of_line(line: Option<&Frame<'a>>) -> Key<'a> {
        Key::Line(line.map(|frame| (frame.file, frame.line, frame.function)))
    }
}

/// The rows of the selected kinds of memory, for comparisons of snapshots.
pub struct RowsOfKinds<'a> {
    /// Largest first.
    pub rows: Vec<Row<'a>>,
    /// Their memory, from [`Groups::total`]: rows from sampled stacks need not add up to it.
    pub total: (Tally, Option<Errors>),
    /// All groups by stack, also those that are in no row.
    pub groups: Groups<'a>,
    /// Pools among the rows whose blocks were not recorded.
    pub opaque_pools: Vec<OpaquePool>,
}

impl<'a> RowsOfKinds<'a> {
    pub fn of(snapshot: &'a Snapshot, stacks: &CallStacks<'a>, filter: &Filter, by: By) -> RowsOfKinds<'a> {
        let filtering = RefCell::new(Filtering::new(filter, snapshot));
        let groups = Groups::split_at(snapshot, stacks, filtering.borrow().since_ns());
        let wanted = |group: &Group| {
            let mut filtering = filtering.borrow_mut();
            filtering.passes(group.call, group.stack, group.oldest_ns, stacks)
        };
        let total = groups.total(wanted);
        let opaque_pools = OpaquePool::among(groups.all.iter().filter(|group| wanted(group)), stacks);
        let exact = match filter.is_of_stacks() {
            true => Exact::of(snapshot, groups.all.iter()),
            false => Exact::of(snapshot, groups.all.iter().filter(|group| wanted(group))),
        };
        let groups = groups.by_stack();
        let mut rows = rows_by(snapshot, stacks, groups.listed().filter(|group| wanted(group)), by);
        exact.limit(&mut rows);
        Sort::Bytes.apply(&mut rows);
        RowsOfKinds {
            rows,
            total,
            groups,
            opaque_pools,
        }
    }
}

/// The exact sums that rows from sampled stacks are parts of, by kind and by place; whether pools are included. An estimate may be
/// above them.
#[derive(Default)]
pub struct Exact(HashMap<(bool, String), Tally>);

impl Exact {
    /// `groups`: not by stack. The sums of a peak are estimates themselves, and below the peaks of their counters.
    pub fn of<'b, 'a: 'b>(snapshot: &Snapshot, groups: impl Iterator<Item = &'b Group<'a>>) -> Exact {
        let mut exact = Exact::default();
        if snapshot.sampling.is_none() {
            return exact;
        }
        if snapshot.allocations.is_summed() {
            for counter in &snapshot.counters {
                let most = Tally::new(counter.peak_bytes, u64::MAX);
                exact.add(snapshot, (counter.kind, counter.device), most, &[false, true]);
            }
            return exact;
        }
        for group in groups {
            let with_pools: &[bool] = if group.level == Level::Held {
                &[false, true]
            } else {
                &[true]
            };
            exact.add(
                snapshot,
                (group.call.kind, group.call.device),
                group.tally(),
                with_pools,
            );
        }
        exact
    }

    fn add(&mut self, snapshot: &Snapshot, (kind, device): (Kind, Option<usize>), tally: Tally, with_pools: &[bool]) {
        for name in [kind.name().to_owned(), place_name(snapshot, kind, device)] {
            for &with_pools in with_pools {
                self.0.entry((with_pools, name.clone())).or_default().join(tally);
            }
        }
    }

    /// The most that a row may be.
    fn most(&self, row: &Row) -> Tally {
        let sum = |names: &mut dyn Iterator<Item = String>| {
            Tally::total(names.filter_map(|name| self.0.get(&(row.pool, name)).copied()))
        };
        let of_kinds = sum(&mut row.kinds.keys().map(|name| (*name).to_owned()));
        let of_places = sum(&mut row.devices.keys().cloned());
        of_kinds.within(of_places)
    }

    /// Lowers estimates to these sums, with all parts of a row.
    pub fn limit(&self, rows: &mut [Row]) {
        for row in rows.iter_mut().filter(|row| row.estimated.is_some()) {
            // Records that hold no memory are no part of the sums.
            let from = Tally::new(row.bytes, row.count.saturating_sub(row.claims));
            let to = from.within(self.most(row));
            if to == from {
                continue;
            }
            let part = |of: u64, to: u64, from: u64| (u128::from(of) * u128::from(to) / u128::from(from.max(1))) as u64;
            let lower = |tally: &mut Tally| {
                if tally.bytes == 0 {
                    return;
                }
                *tally = Tally::new(
                    part(tally.bytes, to.bytes, from.bytes),
                    part(tally.count, to.count, from.count),
                );
            };
            (row.bytes, row.count) = (to.bytes, to.count + row.claims);
            row.kinds.values_mut().for_each(lower);
            row.apis.values_mut().for_each(lower);
            [&mut row.devices, &mut row.streams, &mut row.threads]
                .into_iter()
                .flat_map(BTreeMap::values_mut)
                .for_each(lower);
            row.by_stack.iter_mut().for_each(|(_, tally, _)| lower(tally));
            row.stacks.iter_mut().for_each(|stack| lower(&mut stack.tally));
            row.callers.iter_mut().for_each(|caller| lower(&mut caller.tally));
        }
    }
}

/// Rows made of these groups, largest first, for checks and comparisons.
pub fn rows_by<'a: 'b, 'b>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    groups: impl Iterator<Item = &'b Group<'a>>,
    by: By,
) -> Vec<Row<'a>> {
    let categories = Categories::default();
    let sorter = Sorter::new(&categories, snapshot);
    let mut rows = rows(snapshot, stacks, groups, by, &sorter, STACKS_KEPT);
    Sort::Bytes.apply(&mut rows);
    rows
}

pub(super) fn rows<'a: 'b, 'b>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    groups: impl Iterator<Item = &'b Group<'a>>,
    by: By,
    sorter: &Sorter,
    stacks_kept: usize,
) -> Vec<Row<'a>> {
    let mut members: HashMap<Key, Vec<&Group>> = HashMap::new();
    for group in groups {
        members.entry(key(stacks, group, by, sorter)).or_default().push(group);
    }
    members
        .into_values()
        .map(|members| {
            let label = label(snapshot, stacks, members[0], by, sorter);
            row(snapshot, stacks, &members, label, (by, stacks_kept))
        })
        .collect()
}

fn key<'a>(stacks: &CallStacks<'a>, group: &Group<'a>, by: By, sorter: &Sorter) -> Key<'a> {
    let stack = stacks.get(group.stack);
    let call = group.call;
    let on_host = call.kind.place() == Place::Host;
    match by {
        By::Site => Key::Print(stack.site_fingerprint, stacks.is_pool(call.kind, group.stack)),
        By::Stack => Key::Print(stack.fingerprint, stacks.is_pool(call.kind, group.stack)),
        By::Kind | By::ObjectKind => Key::Number(call.kind as u64),
        By::Device => Key::Device(on_host, call.kind.place().counts_against(call.device)),
        // Handles are unique within a context only.
        By::Stream => match call.stream {
            None if on_host => Key::Stream(on_host, None, None),
            stream => Key::Stream(false, call.context, stream),
        },
        By::Thread => Key::Number(call.thread as u64),
        By::Api => Key::Text(&call.api),
        By::File => Key::Text(stack.site().map_or("", module_of)),
        By::Module => Key::Number(group.apart >> 1),
        By::PythonLine => Key::of_line(stack.python_line()),
        By::Forward => Key::of_line(stack.gradient()),
        By::Library => Key::Text(origin(stack)),
        By::Category => Key::Text(sorter.category(group.stack, call, stacks).name()),
        // The records of a group have the same size here.
        By::Size => Key::Number(group.largest),
    }
}

fn row<'a>(
    snapshot: &'a Snapshot,
    stacks: &CallStacks<'a>,
    members: &[&Group<'a>],
    label: String,
    (by, stacks_kept): (By, usize),
) -> Row<'a> {
    let now = snapshot.taken.at_ns;
    let mut row = Row {
        label,
        library: shared(members.iter().map(|group| stacks.get(group.stack).library)),
        smallest: smallest(members),
        largest: members.iter().map(|group| group.largest).max().unwrap_or(0),
        newest_age_ns: u64::MAX,
        ..Row::default()
    };
    let mut estimate: Option<Estimate> = None;
    // With the number of claims.
    let mut per_stack: HashMap<Fingerprint, (Tally, Option<usize>, u64)> = HashMap::new();
    let mut devices: HashMap<String, Tally> = HashMap::new();
    let mut streams: HashMap<Option<Stream>, Tally> = HashMap::new();
    let mut threads: HashMap<usize, Tally> = HashMap::new();
    for group in members {
        let (call, tally) = (group.call, group.tally());
        row.bytes = row.bytes.saturating_add(tally.bytes);
        row.count += tally.count;
        row.oldest_age_ns = row.oldest_age_ns.max(now.saturating_sub(group.oldest_ns));
        row.newest_age_ns = row.newest_age_ns.min(now.saturating_sub(group.newest_ns));
        let claims = if call.kind.place() == Place::Nowhere {
            tally.count
        } else {
            0
        };
        row.claims += claims;
        let stack = stacks.get(group.stack);
        if stacks.is_pool(call.kind, group.stack) {
            row.pool = true;
            row.allocator = row.allocator.or(stack.allocator);
        }
        row.kinds.entry(call.kind.name()).or_default().join(tally);
        row.apis.entry(&call.api).or_default().join(tally);
        let place = place_name(snapshot, call.kind, call.device);
        devices.entry(place).or_default().join(tally);
        streams.entry(call.stream).or_default().join(tally);
        threads.entry(call.thread).or_default().join(tally);
        // Of memory without its stack only the sums are known.
        if group.is_left_out {
            continue;
        }
        if let Some(of_group) = group.estimate.filter(|_| by.is_of_stacks()) {
            estimate.get_or_insert_default().join(&of_group);
        }
        let of_stack = per_stack
            .entry(stack.fingerprint)
            .or_insert((Tally::default(), group.stack, 0));
        of_stack.0.join(group.at_stack());
        of_stack.2 += claims;
    }
    row.estimated = estimate.and_then(|estimate| estimate.errors());
    row.devices = devices.into_iter().collect();
    row.streams = merge(streams, stream_name);
    row.threads = merge(threads, |thread| thread_name(snapshot, thread));
    row.stacks_in_all = per_stack.len();
    let mut ranked: Vec<_> = per_stack.into_iter().collect();
    ranked.sort_by_key(|(fingerprint, (tally, ..))| (std::cmp::Reverse(*tally), *fingerprint));
    row.by_stack = ranked
        .into_iter()
        .map(|(_, (tally, stack, claims))| (stack, tally, claims))
        .collect();
    if matches!(by, By::Site | By::Stack) {
        let blocks = row.by_stack(row.has_blocks());
        let blocks: Vec<_> = blocks.map(|(stack, tally)| (stacks.get(stack), tally)).collect();
        if by == By::Site {
            row.forward = forward(&blocks);
        }
        name_callers(&mut row, blocks);
    }
    let kept = row.by_stack.iter().take(stacks_kept);
    row.stacks = kept
        .map(|&(stack, tally, _)| RowStack {
            tally,
            stack: stacks.get(stack).clone(),
        })
        .collect();
    row
}

/// Adds the callers that all stacks share, and the shares of those at which they part. `blocks`: by stack, without claims unless the row has
/// nothing else.
fn name_callers<'a>(row: &mut Row<'a>, blocks: Vec<(&CallStack<'a>, Tally)>) {
    let (shared, mut shares) = callers::shares(&blocks, true, |sum: &mut Tally, more| sum.join(more));
    shares.sort_by_key(|(_, tally)| std::cmp::Reverse(*tally));
    (row.shared_callers, row.callers_in_all) = (shared, shares.len());
    shares.truncate(CALLERS_KEPT);
    let caller = |(caller, tally)| RowCaller { tally, caller };
    row.callers = shares.into_iter().map(caller).collect();
}

/// The lines of the forward pass that these stacks compute gradients of; `None`: no line is known.
fn forward<'a>(blocks: &[(&CallStack<'a>, Tally)]) -> Option<RowForward<'a>> {
    let mut lines: HashMap<Key, (Frame<'a>, Tally)> = HashMap::new();
    for (stack, tally) in blocks {
        let Some(line) = stack.gradient() else { continue };
        // A line and what is only near it are one line.
        let bare = Frame {
            function: line.function.and_then(gradient_of),
            ..*line
        };
        let (named, sum) = lines
            .entry(Key::of_line(Some(&bare)))
            .or_insert((*line, Tally::default()));
        named.function = named.function.max(line.function);
        sum.join(*tally);
    }
    let (lines_in_all, tally) = (lines.len(), Tally::total(lines.values().map(|(_, tally)| *tally)));
    let first = |line: &Frame<'a>| std::cmp::Reverse((line.file, line.line, line.function));
    let (line, _) = lines.into_values().max_by_key(|(line, tally)| (*tally, first(line)))?;
    Some(RowForward {
        line,
        lines_in_all,
        tally,
    })
}

/// The smallest block; 0 of claims alone, which hold no memory.
fn smallest(members: &[&Group]) -> u64 {
    let blocks = members.iter().filter(|group| group.call.kind.place() != Place::Nowhere);
    blocks.map(|group| group.smallest).min().unwrap_or(0)
}

/// Combines entries with equal names, such as two threads with the same number.
fn merge<K>(tallies: HashMap<K, Tally>, name: impl Fn(K) -> String) -> BTreeMap<String, Tally> {
    let mut named: BTreeMap<String, Tally> = BTreeMap::new();
    for (key, tally) in tallies {
        named.entry(name(key)).or_default().join(tally);
    }
    named
}

fn thread_name(snapshot: &Snapshot, thread: usize) -> String {
    let thread = &snapshot.threads[thread];
    if thread.name.is_empty() {
        format!("thread {}", thread.tid)
    } else {
        format!("thread {} {}", thread.tid, thread.name)
    }
}

fn label(snapshot: &Snapshot, stacks: &CallStacks, group: &Group, by: By, sorter: &Sorter) -> String {
    let (call, site) = (group.call, stacks.get(group.stack).site());
    match by {
        By::Site | By::Stack => site.map_or_else(|| NO_STACK.to_owned(), Frame::name),
        By::Kind | By::ObjectKind => call.kind.name().to_owned(),
        By::Device => place_name(snapshot, call.kind, call.device),
        By::Stream => match call.device {
            _ if call.stream.is_none() && call.kind.place() == Place::Host => HOST_MEMORY.to_owned(),
            Some(_) => format!("{} of {}", stream_name(call.stream), device_name(snapshot, call.device)),
            None => stream_name(call.stream),
        },
        By::Thread => thread_name(snapshot, call.thread),
        By::Api => call.api.clone(),
        By::Module => modules::label(snapshot, group.apart >> 1),
        By::File => match site.map_or("", module_of) {
            "" => "(no module)".to_owned(),
            module => file_name(module).to_owned(),
        },
        By::PythonLine => stacks
            .get(group.stack)
            .python_line()
            .map_or_else(|| "(no line of Python)".to_owned(), python_line),
        By::Forward => stacks.get(group.stack).forward_label(),
        By::Library => origin(stacks.get(group.stack)).to_owned(),
        By::Category => sorter.category(group.stack, call, stacks).name().to_owned(),
        By::Size => format!("{} bytes", group.largest),
    }
}

fn module_of<'a>(frame: &Frame<'a>) -> &'a str {
    if frame.is_python() {
        frame.file.unwrap_or_default()
    } else {
        frame.module
    }
}

fn origin(stack: &CallStack) -> &'static str {
    stack.library.or(stack.allocator).unwrap_or("(the program itself)")
}

/// The common value, if all are equal.
fn shared<T: PartialEq>(mut each: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = each.next()??;
    each.all(|other| other.as_ref() == Some(&first)).then_some(first)
}
