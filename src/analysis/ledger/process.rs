//! What the kernel driver gave to the process on a device, line by line.
//!
//! ```text
//! memory from the kernel driver  =  recorded blocks
//!                                 + rounding to pages, of blocks from cuMemAlloc
//!                                 + CUDA's pools and arrays, without their blocks
//!                                 + local memory, code, streams, graphs … and the context itself
//! ```
//!
//! Each segment belongs to one line, by the driver call that took it. Blocks lie in segments, so a line that has blocks contains
//! the rest of its segments. The sum of all lines is the sum of the segments, which is what the driver counts for the process.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::caches::LedgerTally;
use super::driver_calls::{DriverCall, Purpose};
use super::pages::{PAGE, PagedBlock, Pages};
use super::{Line, LineKind};
use crate::analysis::site::CallStacks;
use crate::kind::Kind;
use crate::point::Point;
use crate::snapshot::{Allocation, Context, ProcessState, Snapshot, Thread};
use crate::tally::Tally;

mod memory_pools;
mod parts;
mod sorted;

pub use memory_pools::{MemoryPool, PoolOf};
pub use parts::Part;
use parts::{Parts, by_binary, by_site};
use sorted::{DEVICE_HEAP, GivenBack, Segment, Sorted, count, sum};

/// The segments of one purpose when the process had most of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AtPeakOfProcess {
    pub purpose: Purpose,
    pub bytes: u64,
    pub count: u64,
}

/// The sum that the driver should count for the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessSum {
    /// Sum of the segments.
    pub bytes: i128,
    pub segments: u64,
    /// The largest sum since the recording began, and when it was reached.
    pub peak_bytes: u64,
    pub peak_ns: u64,
    /// The lines are those of the peak.
    pub is_peak: bool,
    /// By purpose, largest first; empty if it is not known.
    pub at_peak: Vec<AtPeakOfProcess>,
    /// What the driver counts; `None` if it was not asked, or does not know the process.
    pub driver_bytes: Option<u64>,
    /// `driver_bytes` minus `bytes`.
    pub difference: Option<i128>,
    /// Segments that the recording lacks, on all devices.
    pub lost_segments: u64,
    /// Memory of other processes that this one has open. The driver counts it for the exporter while that holds it, and
    /// for this process afterwards. Bytes are 0 where the size is not known.
    pub imported: Tally,
}

/// The process's lines of one device.
pub(super) struct ProcessSide<'a> {
    pub lines: Vec<Line<'a>>,
    pub sum: ProcessSum,
    /// Contexts that exist.
    pub contexts: u64,
    /// Their channels; `None` if the recording has none.
    pub channels: Option<u64>,
}

fn add<'a>(lines: &mut Vec<Line<'a>>, what: LineKind, bytes: i128, count: u64, exact: bool, parts: Vec<Part<'a>>) {
    if bytes != 0 || count > 0 {
        lines.push(Line {
            parts,
            ..Line::new(what, None, bytes, count, exact)
        });
    }
}

/// As [`add`], of segments by their call sites.
fn add_segments<'a>(lines: &mut Vec<Line<'a>>, what: LineKind, list: &[Segment<'_, 'a>], exact: bool) {
    add(lines, what, sum(list), count(list), exact, by_site(list));
}

/// Whether segments of devices were recorded.
pub(super) fn has_segments(snapshot: &Snapshot) -> bool {
    let mut calls = snapshot.segments.calls().iter();
    let mut counters = snapshot.object_counters.iter();
    calls.any(|call| call.kind == Kind::Segment)
        || counters.any(|counter| counter.kind == Kind::Segment && counter.total_count > 0)
}

/// Whether the snapshot shows the process before it ended. At exit, the driver gives back everything, and blocks that were not freed remain.
fn is_before_end(snapshot: &Snapshot) -> bool {
    match &snapshot.taken.point {
        Some(Point::End) => snapshot.end.is_some(),
        Some(Point::Mark(_) | Point::Time(_)) => snapshot.end.is_none_or(|end| snapshot.taken.at_ns <= end.time_ns),
        _ => snapshot.process.state == ProcessState::Running,
    }
}

/// The largest sum of the segments of a device, and its time.
fn peak(snapshot: &Snapshot, device: usize) -> (u64, u64) {
    let only = snapshot.device_of_segments();
    let counters = snapshot.object_counters.iter();
    let of_device = counters.filter(|of| of.kind == Kind::Segment && of.device.or(only) == Some(device));
    of_device
        .map(|of| (of.peak_bytes, of.peak_ns))
        .max()
        .unwrap_or_default()
}

impl ProcessSum {
    /// Of these segments. `driver_bytes`: what the driver counts for the process.
    fn of(
        snapshot: &Snapshot,
        device: usize,
        stacks: &CallStacks,
        (taken, imported): (&[Segment], Tally),
        driver_bytes: Option<u64>,
    ) -> ProcessSum {
        let (peak_bytes, peak_ns) = peak(snapshot, device);
        ProcessSum {
            bytes: sum(taken),
            segments: count(taken),
            peak_bytes,
            peak_ns,
            is_peak: snapshot.segments.is_summed(),
            at_peak: at_peak(snapshot, device, stacks),
            driver_bytes,
            difference: driver_bytes.map(|bytes| i128::from(bytes) - sum(taken)),
            lost_segments: snapshot.losses.lost_segments,
            imported,
        }
    }
}

impl<'a> ProcessSide<'a> {
    /// What the process had when it had most of the device. `None`: it is not known.
    pub fn at_peak(snapshot: &'a Snapshot, device: usize, stacks: &CallStacks<'a>) -> Option<ProcessSide<'a>> {
        let (taken, imported) = taken(snapshot, device, stacks);
        if taken.is_empty() {
            return None;
        }
        let sum_at_peak = ProcessSum::of(snapshot, device, stacks, (&taken, imported), None);
        let contexts = contexts(snapshot, device, sum_at_peak.peak_ns);
        let mut lines = Vec::new();
        if taken.iter().all(|taken| taken.call.function.is_none()) {
            add_segments(&mut lines, LineKind::UnnamedCalls, &taken, true);
        } else {
            let has_graphs = snapshot.counters.iter().any(|counter| counter.kind == Kind::Graph);
            let heaps = heaps(snapshot, device, sum_at_peak.peak_ns, contexts);
            let mut sorted = Sorted::new(&taken, contexts, has_graphs, heaps, &GivenBack::default());
            for (purpose, of) in [
                (Purpose::Linear, "cuMemAlloc"),
                (Purpose::Physical, "cuMemCreate"),
                (Purpose::Pool, "pools"),
                (Purpose::Array, "arrays"),
            ] {
                let list = sorted.take(purpose);
                if !list.is_empty() {
                    lines.push(Line {
                        parts: by_site(&list),
                        ..Line::new(LineKind::ForBlocks, Some(of), sum(&list), count(&list), true)
                    });
                }
            }
            driver_lines(&mut lines, &mut sorted, &GivenBack::default(), contexts, |_| (0, 0));
        }
        Some(ProcessSide {
            lines,
            sum: sum_at_peak,
            contexts,
            channels: None,
        })
    }

    /// `driver_bytes`: what the driver counts for the process. `None`: no segment of this device was recorded.
    pub fn of(
        snapshot: &'a Snapshot,
        device: usize,
        stacks: &CallStacks<'a>,
        driver_bytes: Option<u64>,
    ) -> Option<ProcessSide<'a>> {
        let (taken, imported) = taken(snapshot, device, stacks);
        let of_process = ProcessSum::of(snapshot, device, stacks, (&taken, imported), driver_bytes);
        let peak_bytes = of_process.peak_bytes;
        if taken.is_empty() && imported.count == 0 && peak_bytes == 0 {
            return None;
        }
        let contexts = contexts(snapshot, device, snapshot.taken.at_ns);
        let mut blocks = BlockSums::of(snapshot, device);
        let given_back = GivenBack::of(snapshot, device, stacks);
        let heaps = heaps(snapshot, device, snapshot.taken.at_ns, contexts);
        let mut sorted = Sorted::new(&taken, contexts, blocks.has_graphs, heaps, &given_back);
        let mut lines = Vec::new();
        let side = |lines| ProcessSide {
            lines,
            sum: of_process,
            contexts,
            channels: channels(snapshot, device),
        };
        if taken.iter().all(|taken| taken.call.function.is_none()) {
            let rest = sum(&taken) - blocks.bytes();
            let what = if rest >= 0 {
                LineKind::UnnamedCalls
            } else if taken.is_empty()
                && i128::from(peak_bytes) + rest >= 0
                && is_before_end(snapshot)
                && snapshot.losses.lost_segments == 0
            {
                LineKind::Checkpointed
            } else {
                LineKind::Unrecorded
            };
            add(&mut lines, what, rest, count(&taken), true, by_site(&taken));
            return Some(side(lines));
        }
        let mut unrecorded = 0;
        let pages = blocks.pages(snapshot, stacks);
        unrecorded += sorted.bytes(Purpose::Linear) - pages.0.bytes();
        let rounding = pages.0.bytes() - blocks.linear_bytes;
        let partly_used = pages.0.kept.values().map(|kept| kept.pages).sum();
        add(&mut lines, LineKind::Rounding, rounding, partly_used, true, pages.1);

        for (purpose, what, held) in [
            (Purpose::Pool, LineKind::CudaPools, blocks.pools),
            (Purpose::Array, LineKind::Arrays, blocks.arrays),
            (Purpose::Physical, LineKind::Unrecorded, blocks.physical),
        ] {
            let (list, bytes) = (sorted.take(purpose), sorted.bytes(purpose));
            let rest = bytes - held.bytes;
            if what == LineKind::Unrecorded || rest < 0 {
                unrecorded += rest;
            } else {
                let count = if what == LineKind::Arrays {
                    held.count
                } else {
                    count(&list)
                };
                add(&mut lines, what, rest, count, true, by_site(&list));
                if purpose == Purpose::Pool
                    && memory_pools::are_known(snapshot, device, &list)
                    && let Some(line) = lines.last_mut().filter(|line| line.what == what)
                {
                    line.pools = memory_pools::of(snapshot, device, &list, stacks);
                }
            }
        }
        driver_lines(&mut lines, &mut sorted, &given_back, contexts, |kind| {
            (objects(snapshot, device, kind), destroyed(snapshot, device, kind))
        });
        add(&mut lines, LineKind::Unrecorded, unrecorded, 0, true, Vec::new());
        Some(side(lines))
    }
}

/// The lines of memory that no memory of the program lies in. `objects`: how many objects of a kind exist, and how many were
/// destroyed.
fn driver_lines<'a>(
    lines: &mut Vec<Line<'a>>,
    sorted: &mut Sorted<'_, 'a>,
    given_back: &GivenBack,
    contexts: u64,
    objects: impl Fn(Kind) -> (u64, u64),
) {
    let local = std::mem::take(&mut sorted.local);
    let mut parts: Vec<Part> = local
        .iter()
        .flat_map(|taken| by_site(std::slice::from_ref(taken)))
        .collect();
    if let ([part], [taken]) = (&mut parts[..], &local[..])
        && taken.call.purpose != Purpose::Context
    {
        part.replaced_bytes = given_back.replaced(part.bytes);
    }
    let (bytes, is_exact) = (sum(&local), !sorted.estimated);
    add(lines, LineKind::LocalMemory, bytes, count(&local), is_exact, parts);
    let heap = std::mem::take(&mut sorted.heap);
    add_segments(lines, LineKind::DeviceHeap, &heap, false);
    let code = sorted.take_all([Purpose::Load, Purpose::Launch, Purpose::GraphLaunch]);
    let (bytes, is_exact) = (sum(&code), is_exact && heap.is_empty());
    add(lines, LineKind::Code, bytes, count(&code), is_exact, by_binary(&code));
    if let Some(line) = lines.last_mut().filter(|line| line.what == LineKind::Code) {
        let loads: Vec<_> = (code.into_iter())
            .filter(|taken| taken.call.purpose == Purpose::Load)
            .collect();
        line.loads = by_site(&loads);
    }
    for (purpose, what, kind) in [
        (Purpose::Stream, LineKind::Streams, Kind::Stream),
        (Purpose::GraphExec, LineKind::GraphExecs, Kind::GraphExec),
        (Purpose::GreenContext, LineKind::GreenContexts, Kind::GreenContext),
    ] {
        let list = sorted.take(purpose);
        if !list.is_empty() {
            let (existing, destroyed) = objects(kind);
            lines.push(Line {
                destroyed: Some(destroyed),
                parts: by_site(&list),
                ..Line::new(what, None, sum(&list), existing, true)
            });
        }
    }
    let other = sorted.take_all([Purpose::Other, Purpose::Host]);
    add_segments(lines, LineKind::OtherCalls, &other, true);
    let context = sorted.take_all([Purpose::Context, Purpose::Limit]);
    if !context.is_empty() {
        let (bytes, parts) = (sum(&context), by_site(&context));
        add(lines, LineKind::Context, bytes, contexts, true, parts);
    }
}

/// Memory that the kernel driver gave on a device, and memory of other processes that this one has open.
fn taken<'s, 'a>(snapshot: &'a Snapshot, device: usize, stacks: &'s CallStacks<'a>) -> (Vec<Segment<'s, 'a>>, Tally) {
    let only = snapshot.device_of_segments();
    let mut calls: HashMap<Option<usize>, DriverCall> = HashMap::new();
    let (mut taken, mut imported) = (Vec::new(), Tally::default());
    for (row, segment) in snapshot.segments.iter().enumerate() {
        if segment.kind != Kind::Segment || segment.device.or(only) != Some(device) {
            continue;
        }
        // A duplicate takes no bytes while its original does.
        if segment.bytes == 0 {
            imported.count += u64::from(segment.requested == 0);
            continue;
        }
        let stack = stacks.get(segment.stack);
        let call = *calls.entry(segment.stack).or_insert_with(|| DriverCall::of(stack));
        taken.push(Segment {
            call,
            stack,
            bytes: segment.bytes,
            pool: segment.pool,
            kernel: segment.call.kernel.as_deref(),
            is_gone: snapshot
                .threads
                .get(segment.call.thread)
                .is_some_and(Thread::is_unknown),
            count: snapshot.segments.count(row),
        });
    }
    if imported.count > 0 {
        let opened = snapshot.allocations.iter();
        let opened = opened.filter(|row| row.device == Some(device) && matches!(row.kind, Kind::Ipc | Kind::Imported));
        imported.bytes = opened.fold(0, |sum, row| sum.saturating_add(row.requested));
    }
    (taken, imported)
}

/// The channels on a device.
fn channels(snapshot: &Snapshot, device: usize) -> Option<u64> {
    let is_channel = |row: &Allocation| row.kind == Kind::Channel && row.device.is_none_or(|of| of == device);
    let channels = snapshot.segments.iter().filter(is_channel).count() as u64;
    (channels > 0).then_some(channels)
}

/// What a launch takes for the heap of `malloc` in kernels, in each of these contexts: its limit, and a page more.
fn heaps(snapshot: &Snapshot, device: usize, at_ns: u64, contexts: u64) -> Vec<u64> {
    let of_device = snapshot
        .contexts
        .iter()
        .filter(|context| context.device == Some(device));
    let limits = of_device
        .filter(|context| existed(context, at_ns))
        .filter_map(|context| context.heap_limit);
    let mut sizes: Vec<u64> = limits
        .filter_map(|limit| limit.checked_next_multiple_of(PAGE)?.checked_add(PAGE))
        .collect();
    // The others have the usual one.
    sizes.extend((sizes.len() as u64..contexts).map(|_| DEVICE_HEAP));
    sizes
}

fn existed(context: &Context, at_ns: u64) -> bool {
    let is_gone = context.destroyed_ns.is_some_and(|time_ns| time_ns <= at_ns);
    !is_gone && context.first_seen_ns <= at_ns
}

/// The contexts of a device that existed at this time, at least one. A green context lies in the primary one, and is among those
/// that `cuCtxCreate` did not create if the program made it current.
fn contexts(snapshot: &Snapshot, device: usize, at_ns: u64) -> u64 {
    let of_device = |of: &Option<usize>| of.is_none_or(|of| of == device);
    let contexts = snapshot.contexts.iter();
    let existing = contexts.filter(|context| existed(context, at_ns) && of_device(&context.device));
    let (primary, created): (Vec<_>, Vec<_>) = existing.partition(|context| context.primary);
    (created.len() as u64 + u64::from(!primary.is_empty())).max(1)
}

/// The objects of a kind that exist on a device.
fn objects(snapshot: &Snapshot, device: usize, kind: Kind) -> u64 {
    let is_wanted = |row: &Allocation| row.kind == kind && row.device.is_none_or(|of| of == device);
    snapshot.objects.iter().filter(is_wanted).count() as u64
}

/// The objects of a kind that were destroyed on a device.
fn destroyed(snapshot: &Snapshot, device: usize, kind: Kind) -> u64 {
    let counters = snapshot.object_counters.iter();
    let counters = counters.filter(|of| of.kind == kind && of.device.is_none_or(|of| of == device));
    counters.fold(0, |sum, counter| sum.saturating_add(counter.freed_count))
}

/// The segments of a device at the peak of their sum.
fn at_peak(snapshot: &Snapshot, device: usize, stacks: &CallStacks) -> Vec<AtPeakOfProcess> {
    let only = snapshot.device_of_segments();
    let mut sums: BTreeMap<Purpose, Tally> = BTreeMap::new();
    let rows = snapshot.segments_at_peaks.iter();
    for row in rows.filter(|row| row.device.or(only) == Some(device)) {
        let purpose = DriverCall::of(stacks.get(row.stack)).purpose;
        sums.entry(purpose).or_default().join(Tally::new(row.bytes, row.count));
    }
    let sums = sums
        .into_iter()
        .map(|(purpose, Tally { bytes, count })| AtPeakOfProcess { purpose, bytes, count });
    let mut sums: Vec<_> = sums.collect();
    sums.sort_by_key(|sum| Reverse(sum.bytes));
    sums
}

/// The recorded blocks of a device, by the calls that made them.
#[derive(Default)]
struct BlockSums {
    linear: Vec<PagedBlock>,
    linear_bytes: i128,
    pools: LedgerTally,
    arrays: LedgerTally,
    physical: LedgerTally,
    has_graphs: bool,
}

impl BlockSums {
    fn of(snapshot: &Snapshot, device: usize) -> BlockSums {
        let mut sums = BlockSums {
            has_graphs: snapshot.counters.iter().any(|counter| counter.kind == Kind::Graph),
            ..BlockSums::default()
        };
        let blocks = snapshot.allocations.iter().enumerate();
        for (row, block) in blocks.filter(|(_, block)| block.device == Some(device)) {
            let sum = match block.kind {
                Kind::Device | Kind::Pitched => {
                    sums.linear_bytes += i128::from(block.bytes);
                    sums.linear.push(PagedBlock {
                        address: block.address,
                        bytes: block.bytes,
                        number: row as u32,
                    });
                    continue;
                }
                Kind::Async | Kind::Graph => &mut sums.pools,
                Kind::Array | Kind::Mipmapped => &mut sums.arrays,
                Kind::Physical => &mut sums.physical,
                _ => continue,
            };
            sum.join(block.bytes.into(), 1);
            sums.has_graphs |= block.kind == Kind::Graph;
        }
        sums
    }

    fn bytes(&self) -> i128 {
        self.linear_bytes + self.pools.bytes + self.arrays.bytes + self.physical.bytes
    }

    /// The pages of linear blocks, and the call sites whose blocks keep pages that are not full.
    fn pages<'a>(&mut self, snapshot: &Snapshot, stacks: &CallStacks<'a>) -> (Pages, Vec<Part<'a>>) {
        let pages = Pages::of(&mut self.linear);
        let mut parts = Parts::default();
        for (&number, kept) in &pages.kept {
            let (name, place) = stacks.get(snapshot.allocations.at(number as usize).stack).site_names();
            let tally = Tally::new(kept.free_bytes, 1);
            parts.add(name, place, None, tally, true);
        }
        (pages, parts.finish())
    }
}

#[cfg(test)]
mod tests;
