//! The live allocations of a snapshot: millions of rows, in 40 bytes each.
//!
//! ```text
//! row     address, bytes, requested, time, stack, call          one per allocation
//! call    kind, domain, function, device, context, stream, …    shared by all allocations that were requested alike
//! ```
//!
//! A program requests memory in a few hundred ways, however often it does so. What allocations have in common is
//! therefore stored once, as a [`Call`]. An [`Allocation`] is a row together with its call, so `allocation.bytes` and
//! `allocation.kind` read alike. In JSON, rows are arrays of numbers whose names are in `columns`.
//!
//! Deliberately absent: sums, and any order other than that of the rows.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::{Stream, is_default};
use crate::kind::Kind;
use crate::reader::progress::{Progress, Unit};

pub(super) mod json;

/// The fields that allocations have in common if they were requested in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Call {
    pub kind: Kind,
    /// For kinds that lie within other memory, the allocator that owns the block: `pytorch`, `xla`, or a name that the
    /// program chose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The function that the program called: `cudaMalloc`, `cuMemAlloc_v2`, …
    pub api: String,
    /// Index into `devices`.
    pub device: Option<usize>,
    /// Index into `contexts`.
    pub context: Option<usize>,
    pub stream: Option<Stream>,
    /// Memory pool handle; `None` if the call names no pool and the device's pool was never changed. Of memory that was taken while a
    /// CUDA graph was captured, and is of no memory pool: the number of the capture.
    pub pool: Option<u64>,
    /// The number of the IPC handle: of memory that was exported, and of the handle that another process has opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<u64>,
    /// Index into `threads`.
    pub thread: usize,
    /// With sampled stacks: the mean distance in bytes by which the thread chose it, if larger than [`Sampling::bytes`].
    ///
    /// [`Sampling::bytes`]: crate::snapshot::Sampling::bytes
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_bytes: Option<u64>,
    /// VMM: references to the handle. IPC: times opened. User object: references of the program.
    #[serde(default, skip_serializing_if = "is_default")]
    pub references: u32,
    /// VMM: mappings of the handle.
    #[serde(default, skip_serializing_if = "is_default")]
    pub mappings: u32,
    /// Executable graph: nodes of the graph, without those of child graphs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u64>,
    /// Module, library: the kernel that was looked up in it first. Segment: the kernel whose code it was taken for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

impl Call {
    /// A call of which no more than this is known.
    pub fn new(kind: Kind, api: impl Into<String>, device: Option<usize>, thread: usize) -> Call {
        Call {
            kind,
            domain: None,
            api: api.into(),
            device,
            context: None,
            stream: None,
            pool: None,
            shared: None,
            thread,
            sample_bytes: None,
            references: 0,
            mappings: 0,
            nodes: None,
            kernel: None,
        }
    }
}

/// A live allocation. It dereferences to its [`Call`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Allocation<'a> {
    /// Address, or the handle for arrays, pools, VMM handles and external memory.
    pub address: u64,
    /// Memory that this record holds. 0 for mappings, address ranges, pools and imports, which hold none.
    pub bytes: u64,
    /// The size requested by the call (pitched memory: width × height), or the span of a mapping.
    pub requested: u64,
    pub time_ns: u64,
    pub stack: Option<usize>,
    pub call: &'a Call,
}

impl<'a> Allocation<'a> {
    pub fn api(&self) -> &'a str {
        &self.call.api
    }

    pub fn domain(&self) -> Option<&'a str> {
        self.call.domain.as_deref()
    }
}

impl Deref for Allocation<'_> {
    type Target = Call;

    fn deref(&self) -> &Call {
        self.call
    }
}

/// An allocation as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub address: u64,
    pub bytes: u64,
    pub requested: u64,
    pub time_ns: u64,
    /// [`NO_STACK`] if the stack was not recorded.
    pub stack: u32,
    pub call: u32,
}
const _: () = assert!(size_of::<Row>() == 40, "10 million of them in 400 MB");

pub(crate) const NO_STACK: u32 = u32::MAX;

/// The stack of a row as an index.
pub(crate) fn stack_of(number: u32) -> Option<usize> {
    (number != NO_STACK).then_some(number as usize)
}

#[derive(Clone, Default)]
pub struct Allocations {
    pub(crate) calls: Vec<Call>,
    pub(crate) rows: Vec<Row>,
    /// The number of blocks of each row, if rows are sums. Empty: each row is one block.
    pub(crate) counts: Vec<u64>,
}

impl Allocations {
    /// Rows that are sums over several blocks, with their numbers of blocks.
    pub fn summed<'c>(sums: impl Iterator<Item = (Allocation<'c>, u64)>) -> Allocations {
        let mut gathering = Gathering::default();
        for (allocation, count) in sums {
            gathering.add(allocation);
            gathering.gathered.counts.push(count);
        }
        gathering.gathered
    }

    /// Whether rows are sums over several blocks: they have no address, no time and no size of a single block.
    pub fn is_summed(&self) -> bool {
        !self.counts.is_empty()
    }

    /// The number of blocks of the row at this index.
    pub fn count(&self, index: usize) -> u64 {
        self.counts.get(index).copied().unwrap_or(1)
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// All allocations in the order of the snapshot, oldest first.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            rows: self.rows.iter(),
            calls: &self.calls,
        }
    }

    pub fn get(&self, index: usize) -> Option<Allocation<'_>> {
        self.rows.get(index).map(|row| row.with(&self.calls))
    }

    /// The allocation at this index, which must be in range.
    pub fn at(&self, index: usize) -> Allocation<'_> {
        self.rows[index].with(&self.calls)
    }

    /// All indices, oldest allocation first, even if a file has them in another order.
    pub fn order_of_time(&self) -> impl Iterator<Item = usize> {
        let sorted = self.rows.is_sorted_by_key(|row| row.time_ns);
        let mut order: Vec<u32> = Vec::new();
        if !sorted {
            order.extend(0..self.rows.len() as u32);
            order.sort_by_key(|&row| self.rows[row as usize].time_ns);
        }
        (0..self.rows.len()).map(move |nth| order.get(nth).map_or(nth, |&row| row as usize))
    }

    /// The calls that rows refer to.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// The same, to change names in them.
    pub fn calls_mut(&mut self) -> &mut [Call] {
        &mut self.calls
    }

    /// The index into [`Allocations::calls`] of the allocation at this index.
    pub fn call_of(&self, index: usize) -> usize {
        self.rows[index].call as usize
    }

    /// Appends an allocation. Searches all calls, so use [`Gathering`] for many allocations.
    pub fn push(&mut self, allocation: Allocation) {
        let known = self.calls.iter().position(|call| call == allocation.call);
        let call = known.unwrap_or_else(|| {
            self.calls.push(allocation.call.clone());
            self.calls.len() - 1
        });
        self.rows.push(Row::of(&allocation, call as u32));
    }

    /// Keeps the allocations for which `wanted` is true.
    pub fn retain(&mut self, wanted: impl Fn(Allocation) -> bool) {
        let calls = &self.calls;
        let mut rows = self.rows.iter();
        self.counts
            .retain(|_| rows.next().is_some_and(|row| wanted(row.with(calls))));
        self.rows.retain(|row| wanted(row.with(calls)));
    }

    /// Moves the allocations whose call `wanted` accepts to another table.
    pub(crate) fn split_off(&mut self, wanted: impl Fn(&Call) -> bool) -> Allocations {
        let is_wanted: Vec<bool> = self.calls.iter().map(wanted).collect();
        let mut others = Allocations::default();
        if is_wanted.contains(&true) {
            let calls = &self.calls;
            let (moved, kept) = (self.rows.drain(..)).partition::<Vec<Row>, _>(|row| is_wanted[row.call as usize]);
            self.rows = kept;
            let mut gathering = Gathering::default();
            moved.iter().for_each(|row| gathering.add(row.with(calls)));
            others = gathering.gathered;
        }
        others
    }

    pub fn truncate(&mut self, len: usize) {
        self.rows.truncate(len);
        self.counts.truncate(len);
    }

    /// Adds the allocations of another table, which also has one row per block, and sorts all of them.
    pub(crate) fn join(&mut self, other: &Allocations) {
        let mut numbers: HashMap<&Call, u32> = HashMap::new();
        let known = self.calls.clone();
        for (number, call) in known.iter().enumerate() {
            numbers.insert(call, number as u32);
        }
        let numbers = other.calls.iter().map(|call| {
            numbers.get(call).copied().unwrap_or_else(|| {
                self.calls.push(call.clone());
                self.calls.len() as u32 - 1
            })
        });
        let numbers: Vec<u32> = numbers.collect();
        let rows = other.rows.iter().map(|row| Row {
            call: numbers[row.call as usize],
            ..*row
        });
        self.rows.extend(rows);
        self.sort();
    }

    /// Calls `change` on each allocation with its index. As slow as [`Allocations::push`].
    pub fn change(&mut self, mut change: impl FnMut(usize, &mut Allocation, &mut Call)) {
        let mut before = std::mem::take(self);
        self.counts = std::mem::take(&mut before.counts);
        for (index, mut allocation) in before.iter().enumerate() {
            let mut call = allocation.call.clone();
            change(index, &mut allocation, &mut call);
            self.push(Allocation {
                call: &call,
                ..allocation
            });
        }
    }

    /// Calls `change` on the last allocation, if there is one.
    pub fn change_last(&mut self, change: impl FnOnce(&mut Allocation, &mut Call)) {
        let Some(row) = self.rows.pop() else { return };
        let mut call = self.calls[row.call as usize].clone();
        let before = self.calls.clone();
        let mut allocation = row.with(&before);
        change(&mut allocation, &mut call);
        self.push(Allocation {
            call: &call,
            ..allocation
        });
    }

    /// Sorts by time, then by address. Sums have neither.
    pub(crate) fn sort(&mut self) {
        if self.is_summed() {
            return;
        }
        let key = |row: &Row| (row.time_ns, row.address);
        if !self.rows.is_sorted_by_key(key) {
            let _progress = Progress::over("sorting", self.rows.len() as u64, Unit::Of("records"));
            in_two_threads(
                &mut self.rows,
                &|rows| rows.sort_unstable_by_key(key),
                &|rows, middle| {
                    rows.select_nth_unstable_by_key(middle, key);
                },
            );
        }
    }
}

/// Sorts the lower and the upper half at the same time, after `split` has partitioned them.
pub(crate) fn in_two_threads<T: Send>(
    rows: &mut [T],
    sort: &(impl Fn(&mut [T]) + Sync),
    split: &impl Fn(&mut [T], usize),
) {
    /// Below this, a thread costs more than it saves.
    const MANY: usize = 1 << 16;
    if rows.len() < MANY {
        return sort(rows);
    }
    let middle = rows.len() / 2;
    split(rows, middle);
    let (lower, upper) = rows.split_at_mut(middle);
    std::thread::scope(|scope| {
        scope.spawn(|| sort(lower));
        sort(upper);
    });
}

/// Collects allocations from another source, any number in any order.
#[derive(Debug, Default)]
pub struct Gathering {
    known: HashMap<Call, u32>,
    gathered: Allocations,
}

impl Gathering {
    pub fn add(&mut self, allocation: Allocation) {
        let next = self.gathered.calls.len() as u32;
        let call = match self.known.get(allocation.call) {
            Some(&known) => known,
            None => {
                self.gathered.calls.push(allocation.call.clone());
                self.known.insert(allocation.call.clone(), next);
                next
            }
        };
        self.gathered.rows.push(Row::of(&allocation, call));
    }

    /// The collected allocations, oldest first.
    pub fn finish(mut self) -> Allocations {
        self.gathered.sort();
        self.gathered
    }
}

impl Row {
    fn of(allocation: &Allocation, call: u32) -> Row {
        Row {
            address: allocation.address,
            bytes: allocation.bytes,
            requested: allocation.requested,
            time_ns: allocation.time_ns,
            stack: allocation.stack.map_or(NO_STACK, |stack| stack as u32),
            call,
        }
    }

    #[inline]
    fn with<'a>(&self, calls: &'a [Call]) -> Allocation<'a> {
        Allocation {
            address: self.address,
            bytes: self.bytes,
            requested: self.requested,
            time_ns: self.time_ns,
            stack: stack_of(self.stack),
            call: &calls[self.call as usize],
        }
    }
}

/// See [`Allocations::iter`].
#[derive(Clone)]
pub struct Iter<'a> {
    rows: std::slice::Iter<'a, Row>,
    calls: &'a [Call],
}

impl<'a> Iterator for Iter<'a> {
    type Item = Allocation<'a>;

    #[inline]
    fn next(&mut self) -> Option<Allocation<'a>> {
        self.rows.next().map(|row| row.with(self.calls))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rows.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.rows.next_back().map(|row| row.with(self.calls))
    }
}

impl<'a> IntoIterator for &'a Allocations {
    type Item = Allocation<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Equal if the allocations are equal and in the same order; the numbers of their calls may differ.
impl PartialEq for Allocations {
    fn eq(&self, other: &Allocations) -> bool {
        self.counts == other.counts && self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Allocations {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self).finish()
    }
}
