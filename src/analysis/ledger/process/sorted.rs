//! Segments by purpose: by the driver call that took them, and where it does not decide, by size.
//!
//! The pool for local memory is recognized without knowledge of the chip. A context takes it when it is created, or a later call
//! replaces it. So it is the largest segment of the creation; if the creation has none, it is what `cuCtxSetLimit` took, or the
//! largest segment that a launch, a load or a call of unknown purpose took. The last one is an estimate, unless the sums by stack
//! show that the context gave its pool back, and only one segment can have replaced it. Segments of which only the sum is known
//! have no size that could be recognized.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::super::driver_calls::{DriverCall, Purpose};
use crate::analysis::site::{CallStack, CallStacks};
use crate::kind::Kind;
use crate::snapshot::Snapshot;
use crate::tally::Tally;

const MIB: u64 = 1 << 20;
/// Smaller pools for local memory are part of the context's line: they cannot be told from its other segments.
const SMALLEST_LOCAL_POOL: u64 = 100 * MIB;
/// Chunks for the allocations of graphs are multiples of this.
const GRAPH_CHUNK: u64 = 32 * MIB;
/// What the first launch of a kernel with `malloc` takes, unless the program changed the limit: 8 MiB, and 2 MiB more.
pub(super) const DEVICE_HEAP: u64 = 10 * MIB;

/// Memory that the kernel driver gave, with the call that took it.
#[derive(Clone, Copy)]
pub(super) struct Segment<'s, 'a> {
    pub call: DriverCall<'a>,
    pub stack: &'s CallStack<'a>,
    pub bytes: u64,
    /// The pool of the allocation that took it, if the program created that pool.
    pub pool: Option<u64>,
    /// The kernel whose code it was taken for.
    pub kernel: Option<&'a str>,
    /// It was given back after the time that the snapshot shows. The event log has neither pool nor kernel.
    pub is_gone: bool,
    /// Number of segments; 1 unless only their sum is known.
    pub count: u64,
}

impl Segment<'_, '_> {
    pub fn tally(&self) -> Tally {
        Tally::new(self.bytes, self.count)
    }
}

pub(super) fn count(list: &[Segment]) -> u64 {
    list.iter().map(|taken| taken.count).fold(0, u64::saturating_add)
}

pub(super) fn sum(list: &[Segment]) -> i128 {
    list.iter().map(|taken| i128::from(taken.bytes)).sum()
}

/// The pools for local memory that were given back, as far as sums by stack show them.
#[derive(Default)]
pub(super) struct GivenBack {
    /// Pools that contexts took when they were created.
    pools_of_contexts: usize,
    /// Their sizes, and those of pools that later calls took and gave back; not known if a limit was set.
    sizes: Option<Vec<u64>>,
}

impl GivenBack {
    pub fn of(snapshot: &Snapshot, device: usize, stacks: &CallStacks) -> GivenBack {
        let mut live: HashMap<Option<usize>, Tally> = HashMap::new();
        for segment in snapshot.segments.iter().filter(|segment| segment.kind == Kind::Segment) {
            live.entry(segment.stack).or_default().add(segment.bytes);
        }
        let (mut pools_of_contexts, mut sizes, mut has_limits) = (0, Vec::new(), false);
        let totals = snapshot.segment_totals.iter();
        for total in totals.filter(|total| total.device.is_none_or(|of| of == device)) {
            let left = live.get(&total.stack).copied().unwrap_or_default();
            let count = total.count.saturating_sub(left.count);
            let size = total.bytes.saturating_sub(left.bytes).checked_div(count).unwrap_or(0);
            let purpose = DriverCall::of(stacks.get(total.stack)).purpose;
            has_limits |= purpose == Purpose::Limit;
            let is_call = matches!(
                purpose,
                Purpose::Context | Purpose::Load | Purpose::Launch | Purpose::GraphLaunch | Purpose::Other
            );
            if is_call && size >= SMALLEST_LOCAL_POOL {
                sizes.push(size);
                if purpose == Purpose::Context {
                    pools_of_contexts = usize::saturating_add(pools_of_contexts, count as usize);
                }
            }
        }
        GivenBack {
            pools_of_contexts,
            sizes: (!has_limits).then_some(sizes),
        }
    }

    /// The size of the pool that one of this size replaced: later pools are larger.
    pub fn replaced(&self, bytes: u64) -> Option<u64> {
        let smaller = self.sizes.as_ref()?.iter().filter(|&&size| size < bytes);
        smaller.max().copied().filter(|_| self.pools_of_contexts == 1)
    }
}

/// Whether these are chunks for the allocations of graphs.
fn are_chunks(taken: &Segment) -> bool {
    taken.bytes > 0 && taken.bytes.is_multiple_of(GRAPH_CHUNK) && taken.bytes >= taken.count.saturating_mul(GRAPH_CHUNK)
}

/// Segments by purpose, and those that only their sizes tell apart.
#[derive(Default)]
pub(super) struct Sorted<'s, 'a> {
    by_purpose: BTreeMap<Purpose, Vec<Segment<'s, 'a>>>,
    sums: BTreeMap<Purpose, i128>,
    /// The pools for local memory.
    pub local: Vec<Segment<'s, 'a>>,
    pub heap: Vec<Segment<'s, 'a>>,
    /// A pool for local memory is known by its size alone.
    pub estimated: bool,
}

impl<'s, 'a> Sorted<'s, 'a> {
    /// `heaps`: the sizes of heaps of `malloc` in kernels, as far as there are any.
    pub fn new(
        all: &[Segment<'s, 'a>],
        contexts: u64,
        has_graphs: bool,
        heaps: Vec<u64>,
        given_back: &GivenBack,
    ) -> Sorted<'s, 'a> {
        let mut sorted = Sorted::default();
        for taken in all {
            let purpose = match taken.call.purpose {
                Purpose::GraphLaunch if has_graphs && are_chunks(taken) => Purpose::Pool,
                purpose => purpose,
            };
            sorted.by_purpose.entry(purpose).or_default().push(*taken);
        }
        // A heap may be as large as a pool for local memory.
        sorted.find_heap(heaps);
        sorted.find_local_memory(contexts as usize, given_back);
        for (purpose, list) in &sorted.by_purpose {
            sorted.sums.insert(*purpose, sum(list));
        }
        sorted
    }

    fn find_local_memory(&mut self, contexts: usize, given_back: &GivenBack) {
        self.take_largest(&[Purpose::Context], contexts, SMALLEST_LOCAL_POOL);
        if self.local.is_empty() && !self.by_purpose.contains_key(&Purpose::Context) {
            return;
        }
        self.take_largest(&[Purpose::Limit], contexts, 0);
        let known = self.local.len();
        let later = [Purpose::Load, Purpose::Launch, Purpose::GraphLaunch, Purpose::Other];
        let is_large = |taken: &&Segment| taken.count == 1 && taken.bytes >= SMALLEST_LOCAL_POOL;
        let candidates = later
            .iter()
            .filter_map(|purpose| self.by_purpose.get(purpose))
            .flatten();
        let candidates = candidates.filter(is_large).count();
        self.take_largest(&later, contexts, SMALLEST_LOCAL_POOL);
        // The context gave its pool back, and nothing else is large enough to have replaced it.
        let is_certain = given_back.pools_of_contexts == contexts && candidates == contexts - known;
        self.estimated = self.local.len() > known && !is_certain;
    }

    /// Moves the largest segments of these purposes to local memory, until there is one for each context.
    fn take_largest(&mut self, purposes: &[Purpose], contexts: usize, least: u64) {
        let mut found: Vec<(u64, Purpose, usize)> = Vec::new();
        for (&purpose, list) in self.by_purpose.iter().filter(|(of, _)| purposes.contains(of)) {
            let single = list.iter().enumerate().filter(|(_, taken)| taken.count == 1);
            let sizes = single.map(|(nth, taken)| (taken.bytes, purpose, nth));
            found.extend(sizes.filter(|(bytes, ..)| *bytes >= least));
        }
        found.sort_unstable_by_key(|&(bytes, purpose, nth)| (Reverse(bytes), purpose, nth));
        found.truncate(contexts.saturating_sub(self.local.len()));
        // From behind, so numbers stay valid.
        found.sort_unstable_by_key(|&(_, purpose, nth)| (purpose, Reverse(nth)));
        for (_, purpose, nth) in found {
            if let Some(list) = self.by_purpose.get_mut(&purpose) {
                self.local.push(list.remove(nth));
            }
        }
        self.local.sort_by_key(|taken| Reverse(taken.bytes));
    }

    fn find_heap(&mut self, mut sizes: Vec<u64>) {
        for purpose in [Purpose::Launch, Purpose::GraphLaunch] {
            let Some(list) = self.by_purpose.get_mut(&purpose) else {
                continue;
            };
            list.retain(|taken| {
                let size = sizes.iter().position(|&size| taken.count == 1 && taken.bytes == size);
                if let Some(size) = size {
                    sizes.swap_remove(size);
                    self.heap.push(*taken);
                }
                size.is_none()
            });
        }
    }

    /// The sum of the segments of a purpose, before they were taken.
    pub fn bytes(&self, purpose: Purpose) -> i128 {
        self.sums.get(&purpose).copied().unwrap_or(0)
    }

    pub fn take(&mut self, purpose: Purpose) -> Vec<Segment<'s, 'a>> {
        self.by_purpose.remove(&purpose).unwrap_or_default()
    }

    pub fn take_all<const N: usize>(&mut self, purposes: [Purpose; N]) -> Vec<Segment<'s, 'a>> {
        purposes.into_iter().flat_map(|purpose| self.take(purpose)).collect()
    }
}
