//! A row of a report: live records that have something in common, with their largest stacks.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::estimate::Errors;
use crate::analysis::site::{CallStack, Frame};
use crate::kind::Kind;
use crate::snapshot::is_default;
use crate::tally::Tally;

/// Live records that have something in common.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Row<'a> {
    /// What the records have in common, as text.
    pub label: String,
    pub bytes: u64,
    pub count: u64,
    /// Number of records that hold no memory.
    pub claims: u64,
    /// A caching allocator holds at least a part of it.
    pub pool: bool,
    /// The owner of that allocator.
    pub allocator: Option<&'static str>,
    /// The CUDA library that requested all of it.
    pub library: Option<&'static str>,
    pub kinds: BTreeMap<&'static str, Tally>,
    pub devices: BTreeMap<String, Tally>,
    pub streams: BTreeMap<String, Tally>,
    pub threads: BTreeMap<String, Tally>,
    pub apis: BTreeMap<&'a str, Tally>,
    pub smallest: u64,
    pub largest: u64,
    /// Age of the oldest record when the snapshot was taken.
    pub oldest_age_ns: u64,
    pub newest_age_ns: u64,
    /// The largest stacks, largest first; at most [`STACKS_KEPT`], unless another number is asked for.
    pub stacks: Vec<RowStack<'a>>,
    /// Number of all stacks.
    pub stacks_in_all: usize,
    /// All stacks, by their numbers in the snapshot, largest first, each with its number of claims.
    #[serde(skip)]
    pub(super) by_stack: Vec<(Option<usize>, Tally, u64)>,
    /// The number of callers nearest to the call site that all of its stacks share, if rows are call sites or stacks.
    #[serde(skip)]
    pub shared_callers: usize,
    /// The nearest callers at which the stacks part, largest first; at most [`CALLERS_KEPT`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<RowCaller<'a>>,
    /// Number of all these callers.
    #[serde(skip_serializing_if = "is_default")]
    pub callers_in_all: usize,
    /// The line of the forward pass that the most memory is a gradient of, if rows are call sites.
    #[serde(skip)]
    pub forward: Option<RowForward<'a>>,
    /// The row is an estimate from sampled stacks, with these standard errors; `None`: it is exact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated: Option<Errors>,
    /// The row is of objects without an address, of one kind; it has 0 bytes.
    #[serde(flatten)]
    pub objects: Option<OfObjects<'a>>,
}

/// The most stacks per row.
pub const STACKS_KEPT: usize = 5;
/// The most callers per row.
pub const CALLERS_KEPT: usize = 32;

/// What a call site holds through one of its callers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RowCaller<'a> {
    /// Without claims, unless the row has nothing else.
    #[serde(flatten)]
    pub tally: Tally,
    /// `None`: the stacks that end where the others have a caller.
    pub caller: Option<Frame<'a>>,
}

/// What a call site's memory is a gradient of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowForward<'a> {
    /// The line of the most memory.
    pub line: Frame<'a>,
    /// Number of all lines.
    pub lines_in_all: usize,
    /// The memory of all lines.
    pub tally: Tally,
}

/// One stack of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct RowStack<'a> {
    #[serde(flatten)]
    pub tally: Tally,
    #[serde(flatten)]
    pub stack: CallStack<'a>,
}

/// Names of kernels in a row.
pub const KERNELS: usize = 3;

/// What a row of objects has besides their number.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OfObjects<'a> {
    pub kind: Kind,
    /// Executable graphs: the nodes of the smallest and of the largest.
    pub nodes: Option<(u64, u64)>,
    /// Modules and libraries: the kernels that were looked up in them first, by name; at most [`KERNELS`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kernels: Vec<&'a str>,
    /// What holds the handles of most of those that were searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
}

impl<'a> Row<'a> {
    pub fn tally(&self) -> Tally {
        let Row { bytes, count, .. } = *self;
        Tally { bytes, count }
    }

    /// Some of the records hold memory.
    pub(in crate::analysis) fn has_blocks(&self) -> bool {
        self.claims < self.count
    }

    /// What each stack holds; without claims: stacks that have nothing else are left out.
    pub(in crate::analysis) fn by_stack(&self, without_claims: bool) -> impl Iterator<Item = (Option<usize>, Tally)> {
        self.by_stack.iter().filter_map(move |&(stack, tally, claims)| {
            let claims = if without_claims { claims } else { 0 };
            let blocks = Tally::new(tally.bytes, tally.count.saturating_sub(claims));
            (claims == 0 || blocks.count > 0).then_some((stack, blocks))
        })
    }

    /// `None`: it is of memory.
    pub fn kind_of_objects(&self) -> Option<Kind> {
        self.objects.as_ref().map(|of| of.kind)
    }

    /// The largest stack.
    pub fn stack(&self) -> &CallStack<'a> {
        &self.stacks[0].stack
    }

    /// The call site of the row's largest stack.
    pub fn site(&self) -> Option<&Frame<'a>> {
        self.stacks.first().and_then(|stack| stack.stack.site())
    }
}
