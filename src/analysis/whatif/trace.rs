//! The requests of a run to PyTorch's allocator on one device, and what it had reserved after each, from the event log.
//!
//! ```text
//! log      segment of 20 MiB   tensor at +0   tensor at +4 MiB   free   segment freed
//! steps                        allocate       allocate           free   release          what the model replays
//! reserved                     20 MiB         20 MiB             20     0                what it must reproduce
//! ```
//!
//! The log has the address of each block, so the free ranges of each segment at any time are known. It has no streams. Blocks
//! of two streams, or of a private pool and another one, never lie in one segment, and a segment that did not serve a request for
//! which it had room is not of the segment's stream that did. So segments get classes such that no two with such a conflict have
//! the same, and those in which the blocks of one line lie do, if the line has no conflict. Which conflicts are real (a block that
//! waits for another stream looks like one) is found by what reproduces the recorded memory best. Segments that were taken while a
//! graph was captured have classes of their own.
//!
//! Blocks that lie in no segment are left out: they are of a `MemPool` with an allocator of its own, such as NCCL's.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::take;

use foldhash::{HashMap, HashSet};
use serde::Serialize;

use super::layout::Layout;
use super::model::{PAGE, SMALL, SMALLEST};
use super::plan::planned;
use super::settings::Settings;
use crate::analysis::site::CallStacks;
use crate::format::ADDRESS;
use crate::kind::{Kind, Place};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{Allocations, Failed, Snapshot};
use crate::timeline::lives::{Change, Life, Lives};
use crate::timeline::{Op, Site, Timeline};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The number of the life.
    pub block: u32,
    pub bytes: u64,
    /// The recorded segment that it lies in.
    pub segment: u32,
    /// It fills a free range, so it may have been up to 1 MiB smaller.
    pub is_whole: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Allocate(Request),
    /// Of the block with this number.
    Free(u32),
    /// The allocator gave segments back. `by_force`: because the driver had no more.
    Release {
        by_force: bool,
    },
    /// The program set a mark: an index into [`Trace::marks`].
    Mark(usize),
    /// The last request to the allocator that failed for lack of memory.
    Failed(u64),
    /// What the process has on the device beside the allocator's segments, from here on.
    OtherMemory(u64),
}

/// How segments got their classes, by how much it explains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conflicts {
    None,
    /// A request got a new segment although another one had room.
    NewSegments,
    /// Or it was served from a larger free range than another one.
    All,
}

/// What is recorded of PyTorch's allocator on a device.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Recorded {
    pub allocations: u64,
    /// Blocks in memory of another allocator (a `MemPool`, such as NCCL's), which are not replayed.
    pub elsewhere: u64,
    pub recorded_peak_bytes: u64,
    pub recorded_end_bytes: u64,
    /// What comes after this time is not replayed: a segment was freed while blocks in it were live.
    pub cut_off_ns: Option<u64>,
    /// No allocator reserves less: the most bytes in live blocks.
    pub peak_live_bytes: u64,
    /// What a plan in one range of memory needs that knows when each block is freed.
    pub planned_bytes: u64,
    /// The most that the process had on the device at any time beside PyTorch's segments.
    pub other_peak_bytes: u64,
    /// What the driver takes for itself (contexts, libraries) is in it.
    pub other_is_complete: bool,
    /// The last request that failed did so although the driver refused nothing: the program limits its memory.
    pub limited_by_program: bool,
}

#[derive(Debug, Clone, Default)]
pub struct Trace {
    pub of: Recorded,
    /// Each step, and the bytes that the allocator had reserved after it.
    pub steps: Vec<(Step, u64)>,
    /// Segments, or pages of expandable ones, that were taken (1) or given back (-1): before which step, and their size.
    pub changed: Vec<(usize, u64, i64)>,
    pub marks: Vec<String>,
    /// Addresses of segments, by size, in the order in which they were taken.
    pub addresses: HashMap<u64, VecDeque<u64>>,
    pub expandable: bool,
    /// Segments that were idle when a request for which they have room got new memory, and since then: their addresses.
    pub passed_over: HashSet<u64>,
    /// Idle segments that are too small, or too large to be split, for a later request that got new memory: their addresses.
    pub unfit: HashSet<u64>,
    /// Sizes of blocks that were cut from larger free ranges: what such a block has is what was requested.
    pub cut_sizes: HashSet<u64>,
    /// The last request to the allocator that failed for lack of memory.
    pub failed_bytes: Option<u64>,
    /// The driver had no more memory, and the cache was given back.
    pub was_forced: bool,
    /// Segments, or of expandable ones the ranges of addresses of the pool that has more of them.
    pub segments: u32,
    /// Those that were taken while a graph was captured, with the number of the capture.
    pub of_graphs: BTreeMap<u32, u64>,
    /// The segments that the blocks of each site lay in, with the stack of the site.
    pub sites: BTreeMap<(u32, Option<usize>), BTreeSet<u32>>,
    conflicts: BTreeSet<(u32, u32, Conflicts)>,
}

/// Other segments that are compared with the one that served a request.
const COMPARED: usize = 16;

/// What of a site matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Block,
    Segment,
    /// Memory whose stack does not show who requested it: a segment if a tensor lies in it.
    Unknown,
    /// Memory of an expandable segment.
    Pages,
    /// Addresses of one.
    Addresses,
    OtherAddresses,
}

impl Trace {
    /// Of each device of the snapshot, up to and including a time. `own`: the settings of the run.
    ///
    /// # Errors
    /// The reason why the log does not have all requests.
    pub fn of_devices(
        snapshot: &Snapshot,
        last: &Allocations,
        timeline: &Timeline,
        stacks: &CallStacks,
        own: &Settings,
        until_ns: u64,
    ) -> Result<Vec<Trace>, String> {
        if timeline.since_ns > 0 || timeline.lost > 0 {
            return Err("the event log lacks the oldest events or lost some, and each request counts; record again with a larger log \
                        (culeak run --timeline=SIZE)"
                .to_owned());
        }
        if snapshot.losses.lost_allocations > 0 {
            return Err("some allocations could not be recorded, and each request counts; free disk space for the recording, and record \
                        again"
                .to_owned());
        }
        let lives = Lives::of(&timeline.memory, timeline.since_ns, last);
        let only = (snapshot.devices.len() == 1).then_some(0);
        let role = |site: &Site| {
            let of = stacks.get(site.stack);
            // Memory of NCCL for a `MemPool` is no segment.
            match (site.kind, of.allocator.filter(|_| of.library.is_none())) {
                (Kind::Tensor, _) => Some(Role::Block),
                (Kind::Device, Some("PyTorch")) => Some(Role::Segment),
                (Kind::Device, None) => Some(Role::Unknown),
                (Kind::Physical, Some("PyTorch")) => Some(Role::Pages),
                (Kind::Reserved, Some("PyTorch")) => Some(Role::Addresses),
                (Kind::Reserved, _) => Some(Role::OtherAddresses),
                _ => None,
            }
        };
        let roles: Vec<Option<Role>> = lives.sites.iter().map(role).collect();
        let failed = |device, is_tensor: bool| {
            let all = snapshot.failed.iter().filter(move |of| of.device == Some(device));
            all.filter(move |of| of.error == OUT_OF_MEMORY && (of.kind == Kind::Tensor) == is_tensor)
        };
        let is_ours = |failed: &&Failed| stacks.get(failed.stack).allocator.is_none_or(|name| name == "PyTorch");
        // Without the requests of the driver to the kernel, what the program itself requested.
        let of_segments = snapshot.device_of_segments();
        let mut given = timeline.segments.events().peekable();
        let has_given = given.len() > 0 && snapshot.losses.lost_segments == 0;
        let builder = |device| Builder {
            own: own.clone(),
            of_graphs: of_graphs(last, u64::MAX).collect(),
            failed_calls: failed(device, false).filter(is_ours).collect(),
            failed_request: failed(device, true).max_by_key(|of| of.last_ns),
            ..Builder::default()
        };
        let mut builders: Vec<Builder> = (0..snapshot.devices.len()).map(builder).collect();
        let end_ns = snapshot.end.map_or(u64::MAX, |end| end.time_ns).min(until_ns);
        let mut marks = snapshot.marks.iter().peekable();
        let progress = Progress::over("following requests", timeline.memory.len() as u64, Unit::Of("events"));
        for (nth, change, life) in lives.changes() {
            progress.tick(nth);
            let time_ns = timeline.memory.time_ns(nth);
            if time_ns > end_ns {
                break;
            }
            while let Some(mark) = marks.next_if(|mark| mark.time_ns <= time_ns) {
                builders.iter_mut().for_each(|builder| builder.mark(&mark.name));
            }
            while let Some(event) = given.next_if(|event| event.time_ns <= time_ns) {
                let site = &timeline.segments.sites[event.site as usize];
                if let Some(device) = site.device.or(of_segments)
                    && has_given
                    && site.kind == Kind::Segment
                {
                    builders[device].given(event.bytes, event.op == Op::Freed);
                }
            }
            let site = &lives.sites[life.site as usize];
            let role = roles[life.site as usize];
            // The device of addresses is not always known.
            let devices = match site.device.or(only) {
                Some(device) => device..device + 1,
                None if site.kind == Kind::Reserved => 0..builders.len(),
                None => continue,
            };
            for builder in &mut builders[devices] {
                if !has_given && site.kind.place() == Place::Device {
                    builder.given(life.bytes, change.is_free());
                }
                if let Some(role) = role {
                    builder.event(role, change, life, site.stack, time_ns);
                }
            }
        }
        Ok(builders.into_iter().map(|builder| builder.finish(has_given)).collect())
    }

    /// The class of each segment, from 0 on. Those of graphs come last.
    pub fn classes(&self, by: Conflicts) -> Vec<u32> {
        // Each reserved range of addresses is of one class.
        if self.expandable {
            return (0..self.segments).collect();
        }
        let mut conflicts = vec![BTreeSet::new(); self.segments as usize];
        for &(a, b, _) in self.conflicts.iter().filter(|conflict| conflict.2 <= by) {
            conflicts[a as usize].insert(b);
            conflicts[b as usize].insert(a);
        }
        // A line whose blocks never lie in two segments with a conflict runs on one stream.
        let is_of_one = |segments: &&BTreeSet<u32>| {
            let mut all = segments.iter();
            all.all(|&segment| segments.is_disjoint(&conflicts[segment as usize]))
        };
        let lines: Vec<&BTreeSet<u32>> = self.sites.values().filter(is_of_one).collect();
        // The first segment stands for its group, and has the conflicts of all.
        let mut first: Vec<u32> = (0..self.segments).collect();
        let find = |first: &[u32], mut of: u32| {
            while first[of as usize] != of {
                of = first[of as usize];
            }
            of
        };
        let is_of_graph = |segment: u32| self.of_graphs.contains_key(&segment);
        for (&a, &b) in lines.iter().flat_map(|of| of.iter().zip(of.iter().skip(1))) {
            let (a, b) = (find(&first, a), find(&first, b));
            let (a, b) = (a.min(b), a.max(b));
            let is_apart = conflicts[a as usize].iter().any(|&other| find(&first, other) == b);
            if a != b && !is_apart && is_of_graph(a) == is_of_graph(b) {
                first[b as usize] = a;
                let more = take(&mut conflicts[b as usize]);
                conflicts[a as usize].extend(more);
            }
        }
        // Each group has the lowest class that none of its conflicts has.
        let (mut classes, mut count) = (vec![None; self.segments as usize], 0);
        for of_graphs in [false, true] {
            let lowest = count;
            for segment in (0..self.segments).filter(|&segment| is_of_graph(segment) == of_graphs) {
                let group = find(&first, segment) as usize;
                let others = conflicts[group].iter();
                let taken: BTreeSet<u32> = others
                    .filter_map(|&other| classes[find(&first, other) as usize])
                    .collect();
                let class = classes[group].or_else(|| (lowest..).find(|class| !taken.contains(class)));
                classes[segment as usize] = class;
                count = count.max(class.unwrap_or_default() + 1);
            }
        }
        classes.into_iter().map(Option::unwrap_or_default).collect()
    }
}

/// Addresses of segments that were taken while a graph was captured, until this time, and are still there: they are of the private
/// pools of graphs. With the number of the capture.
pub fn of_graphs(last: &Allocations, until_ns: u64) -> impl Iterator<Item = (u64, u64)> {
    let devices = last
        .iter()
        .filter(move |row| row.kind == Kind::Device && row.time_ns <= until_ns);
    devices.filter_map(|row| Some((row.address & ADDRESS, row.call.pool?)))
}

const OUT_OF_MEMORY: i32 = 2;

#[derive(Default)]
struct Builder<'a> {
    own: Settings,
    trace: Trace,
    layout: Layout,
    /// Memory in which no tensor lay yet.
    unknown: BTreeMap<u64, Life>,
    /// Addresses of segments of graphs that are still there, with the number of the capture.
    of_graphs: HashMap<u64, u64>,
    /// Starts of address ranges, whose sizes the log does not have: whether they are of expandable segments, and their classes once a
    /// block lay in them.
    ranges: BTreeMap<u64, (bool, Option<u32>)>,
    /// Classes of ranges of the large and the small pool.
    classes: [u32; 2],
    reserved: u64,
    live: u64,
    /// Blocks that lie in no segment.
    elsewhere: HashSet<u32>,
    /// Requests of the allocator to the driver that failed.
    failed_calls: Vec<&'a Failed>,
    failed_request: Option<&'a Failed>,
    /// Requests of more than 1 MiB that got new memory, with the number of steps before.
    new_memory: Vec<(usize, u64)>,
    /// The time of the last block that was allocated or freed.
    last_ns: u64,
    /// What the process has from the driver, and since the last block, the most of it beside the segments.
    given: u64,
    other: u64,
    /// Of the last step that has it.
    noted: u64,
}

impl Builder<'_> {
    fn step(&mut self, step: Step) {
        if self.trace.of.cut_off_ns.is_none() {
            self.trace.steps.push((step, self.reserved));
        }
    }

    fn mark(&mut self, name: &str) {
        let known = self.trace.marks.iter().position(|known| known == name);
        let mark = known.unwrap_or_else(|| {
            self.trace.marks.push(name.to_owned());
            self.trace.marks.len() - 1
        });
        self.step(Step::Mark(mark));
    }

    fn fail(&mut self, failed: &Failed) {
        let span = self.last_ns..=failed.last_ns;
        self.trace.of.limited_by_program = !self.failed_calls.iter().any(|of| span.contains(&of.last_ns));
        self.trace.failed_bytes = Some(failed.bytes);
        self.step(Step::Failed(failed.bytes));
    }

    fn given(&mut self, bytes: u64, is_free: bool) {
        self.given = match is_free {
            true => self.given.saturating_sub(bytes),
            false => self.given.saturating_add(bytes),
        };
        self.other = self.other.max(self.given.saturating_sub(self.reserved));
    }

    fn event(&mut self, role: Role, change: Change, life: &Life, stack: Option<usize>, time_ns: u64) {
        let is_free = change.is_free();
        if self.trace.of.cut_off_ns.is_some() {
            return;
        }
        if let Some(failed) = self.failed_request.take_if(|failed| failed.last_ns < time_ns) {
            self.fail(failed);
        }
        let block = change.life().unwrap_or_default() as u32;
        match (role, is_free) {
            (Role::Block, false) => self.allocate(block, life, stack),
            (Role::Block, true) => self.free(block, life),
            (Role::Segment, false) => self.add_segment(life, time_ns),
            (Role::Unknown, false) => drop(self.unknown.insert(life.address, *life)),
            (Role::Unknown, true) if self.unknown.remove(&life.address).is_some() => {}
            (Role::Segment | Role::Unknown, true) => self.remove_segment(life, time_ns),
            (Role::Pages, false) => self.reserve(life.bytes, time_ns),
            (Role::Pages, true) => self.release(life.bytes, time_ns),
            (Role::Addresses | Role::OtherAddresses, false) => {
                self.ranges.insert(life.address, (role == Role::Addresses, None));
            }
            (Role::Addresses | Role::OtherAddresses, true) => drop(self.ranges.remove(&life.address)),
        }
        self.trace.expandable |= role == Role::Pages;
        if role == Role::Block {
            self.last_ns = time_ns;
        }
    }

    /// Notes what the process has besides.
    fn note_other(&mut self) {
        let now = self.given.saturating_sub(self.reserved);
        let most = self.other.max(now);
        if most != self.noted {
            self.step(Step::OtherMemory(most));
        }
        (self.noted, self.other) = (most, now);
        let of = &mut self.trace.of;
        of.other_peak_bytes = of.other_peak_bytes.max(most);
    }

    fn add_segment(&mut self, life: &Life, time_ns: u64) {
        let number = self.trace.segments;
        self.trace.segments += 1;
        let of_size = self.trace.addresses.entry(life.bytes).or_default();
        of_size.push_back(life.address);
        let capture = self.of_graphs.get(&life.address).filter(|_| life.row().is_some());
        self.trace.of_graphs.extend(capture.map(|&capture| (number, capture)));
        let end = life.address.saturating_add(life.bytes);
        self.layout.add_segment(life.address, end, number, life.bytes == PAGE);
        self.reserve(life.bytes, time_ns);
    }

    fn reserve(&mut self, bytes: u64, time_ns: u64) {
        // Of equal calls that failed, only the first and the last time are known. After one between, the call is made again.
        let is_again =
            |of: &&Failed| of.count > 2 && of.bytes == bytes && (of.first_ns..=of.last_ns).contains(&time_ns);
        if let Some((Step::Release { by_force }, _)) = self.trace.steps.last_mut()
            && self.failed_calls.iter().any(is_again)
        {
            (*by_force, self.trace.was_forced) = (true, true);
        }
        self.trace.changed.push((self.trace.steps.len(), bytes, 1));
        // The driver's events and those of segments alternate, so only what is there afterwards counts.
        (self.reserved, self.other) = (self.reserved + bytes, 0);
        let of = &mut self.trace.of;
        of.recorded_peak_bytes = of.recorded_peak_bytes.max(self.reserved);
    }

    fn remove_segment(&mut self, life: &Life, time_ns: u64) {
        if let Some(segment) = self.layout.segments.remove(&life.address) {
            if segment.live > 0 {
                self.trace.of.cut_off_ns = Some(time_ns);
                return;
            }
            self.layout.remove_run(segment.is_small, life.address);
        }
        self.trace.passed_over.remove(&life.address);
        self.release(life.bytes, time_ns);
    }

    fn release(&mut self, bytes: u64, time_ns: u64) {
        (self.reserved, self.other) = (self.reserved.saturating_sub(bytes), 0);
        let steps = self.trace.steps.len();
        if let Some((Step::Release { .. }, reserved)) = self.trace.steps.last_mut() {
            self.trace.changed.push((steps - 1, bytes, -1));
            *reserved = self.reserved;
            return;
        }
        self.trace.changed.push((steps, bytes, -1));
        // The call that failed stands between the block before and the segments that were given back for it.
        let span = self.last_ns..=time_ns;
        let is_between = |of: &&Failed| span.contains(&of.first_ns) || span.contains(&of.last_ns);
        let by_force = self.failed_calls.iter().any(is_between);
        self.trace.was_forced |= by_force;
        self.step(Step::Release { by_force });
    }

    fn free(&mut self, block: u32, life: &Life) {
        if self.elsewhere.contains(&block) {
            return;
        }
        self.note_other();
        self.layout.free(life.address, life.bytes, self.trace.steps.len());
        self.live = self.live.saturating_sub(life.bytes);
        self.step(Step::Free(block));
    }

    fn allocate(&mut self, block: u32, life: &Life, stack: Option<usize>) {
        let (address, bytes) = (life.address, life.bytes);
        let around = self.unknown.range(..=address).next_back();
        if let Some((&start, &life)) = around.filter(|(_, of)| address - of.address < of.bytes) {
            self.unknown.remove(&start);
            self.add_segment(&life, self.last_ns);
        }
        self.note_other();
        let (mut requested, mut is_whole) = (bytes, false);
        let segment = match self.layout.allocate(address, bytes) {
            Some((segment, is_new, run)) => {
                // A block of just this size that got new memory, although one that may serve it was free, was requested smaller.
                is_whole = bytes >= run;
                if !is_whole {
                    self.trace.cut_sizes.insert(bytes);
                }
                let is_near = (self.own.max_split..self.own.max_split.saturating_add(SMALL)).contains(&bytes);
                let mut larger = self.layout.by_size[0].range((bytes, 0)..);
                if is_new && is_near && larger.any(|&(length, _)| self.own.accepts(bytes, length)) {
                    requested = self.own.max_split - SMALLEST;
                }
                self.compare(segment, requested, if is_new { u64::MAX } else { run });
                if is_new && bytes > SMALL && !self.trace.of_graphs.contains_key(&segment) {
                    self.new_memory.push((self.trace.steps.len(), requested));
                }
                if let Some((start, _)) = self.layout.segment(address) {
                    self.trace.passed_over.remove(&start);
                }
                segment
            }
            None => match self.class_of_range(address, bytes) {
                Some(class) => class,
                None => {
                    self.elsewhere.insert(block);
                    return;
                }
            },
        };
        self.trace.segments = self.trace.segments.max(segment + 1);
        self.trace.sites.entry((life.site, stack)).or_default().insert(segment);
        self.live += bytes;
        let of = &mut self.trace.of;
        (of.allocations, of.peak_live_bytes) = (of.allocations + 1, of.peak_live_bytes.max(self.live));
        let bytes = requested;
        self.step(Step::Allocate(Request {
            block,
            bytes,
            segment,
            is_whole,
        }));
    }

    /// Of several ranges that begin before a block, the nearest one.
    fn class_of_range(&mut self, address: u64, bytes: u64) -> Option<u32> {
        let (_, (is_ours, class)) = self.ranges.range_mut(..=address).next_back()?;
        is_ours.then_some(())?;
        let next = &mut self.classes[usize::from(bytes <= SMALL)];
        Some(*class.get_or_insert_with(|| {
            *next += 1;
            *next - 1
        }))
    }

    /// Notes the segments that would have served a request better than the one that did, had they been of its class.
    fn compare(&mut self, segment: u32, bytes: u64, run: u64) {
        let is_new = run == u64::MAX;
        let by = if is_new { Conflicts::NewSegments } else { Conflicts::All };
        let by_size = &self.layout.by_size[usize::from(bytes <= SMALL)];
        for &(length, start) in by_size.range((bytes, 0)..(run, 0)).take(COMPARED) {
            let Some((&first, other)) = self.layout.segments.range(..=start).next_back() else {
                continue;
            };
            let are_apart =
                self.trace.of_graphs.contains_key(&segment) != self.trace.of_graphs.contains_key(&other.number);
            if other.number == segment || are_apart || !self.own.accepts(bytes, length) {
                continue;
            }
            self.trace.conflicts.insert((segment, other.number, by));
            if is_new && first + length == other.end {
                self.trace.passed_over.insert(first);
            }
        }
    }

    fn finish(mut self, other_is_complete: bool) -> Trace {
        self.trace.unfit = self.layout.unfit(&self.new_memory, &self.own).into_iter().collect();
        if let Some(failed) = self
            .failed_request
            .take()
            .filter(|_| self.trace.of.cut_off_ns.is_none())
        {
            self.fail(failed);
        }
        let of = &mut self.trace.of;
        of.planned_bytes = planned(&self.trace.steps).max(of.peak_live_bytes);
        (of.recorded_end_bytes, of.elsewhere) = (self.reserved, self.elsewhere.len() as u64);
        of.other_is_complete = other_is_complete;
        self.trace
    }
}
