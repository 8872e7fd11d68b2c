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
//! the same, and those in which the blocks of one line lie do, if the line has no conflict. Which conflicts are real (a block that waits for another stream looks like one) is found by what reproduces the
//! recorded memory best.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foldhash::{HashMap, HashSet};

use super::model::{PAGE, SMALL, SMALLEST};
use super::settings::Settings;
use crate::analysis::site::CallStacks;
use crate::kind::{Kind, Place};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{Allocations, Failed, Snapshot};
use crate::timeline::lives::{Life, Lives};
use crate::timeline::{Op, Timeline};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// `block`: the number of the life. `segment`: the recorded segment that it lies in. `is_whole`: it fills a free range, so
    /// its request may have been up to 1 MiB smaller.
    Allocate {
        block: u32,
        bytes: u64,
        segment: u32,
        is_whole: bool,
    },
    Free {
        block: u32,
    },
    /// The allocator gave segments back. `by_force`: because the driver had no more.
    Release {
        by_force: bool,
    },
    /// The program set a mark: an index into [`Trace::marks`].
    Mark(usize),
    /// The last request to the allocator that failed for lack of memory.
    Failed {
        bytes: u64,
    },
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

#[derive(Debug, Clone, Default)]
pub struct Trace {
    /// Each step, and the bytes that the allocator had reserved after it.
    pub steps: Vec<(Step, u64)>,
    pub marks: Vec<String>,
    /// Addresses of segments, by size, in the order in which they were taken.
    pub addresses: HashMap<u64, VecDeque<u64>>,
    pub expandable: bool,
    pub peak_reserved: u64,
    pub end_reserved: u64,
    pub peak_live: u64,
    /// The most pages of 2 MiB that the live blocks of each pool would fill.
    pub peak_pages: u64,
    pub allocations: u64,
    /// Segments that were idle when a request for which they have room got new memory, and since then: their addresses.
    pub passed_over: HashSet<u64>,
    /// Sizes of blocks that were cut from larger free ranges: what such a block has is what was requested.
    pub cut_sizes: HashSet<u64>,
    /// The last request to the allocator that failed for lack of memory.
    pub failed_bytes: Option<u64>,
    /// The driver had no more memory, and the cache was given back.
    pub was_forced: bool,
    /// The most that the process had beside the segments, and whether what the driver takes for itself is in it.
    pub peak_other: u64,
    pub other_is_known: bool,
    /// From this time on, so many requests are left out: a segment was freed while blocks in it were live.
    pub cut_off: Option<(u64, u64)>,
    /// Segments, or of expandable ones the ranges of addresses of the pool that has more of them.
    pub segments: u32,
    conflicts: BTreeSet<(u32, u32, Conflicts)>,
    /// The segments that the blocks of each line lay in.
    segments_of_sites: Vec<BTreeSet<u32>>,
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
}

struct Segment {
    end: u64,
    number: u32,
    is_small: bool,
    is_fresh: bool,
    live: u64,
}

/// The free ranges of segments at a time.
#[derive(Default)]
struct Layout {
    segments: BTreeMap<u64, Segment>,
    /// Free ranges: their ends.
    runs: BTreeMap<u64, u64>,
    /// The same by pool and size.
    by_size: [BTreeSet<(u64, u64)>; 2],
}

impl Layout {
    fn segment(&mut self, address: u64) -> Option<(u64, &mut Segment)> {
        let (&start, segment) = self.segments.range_mut(..=address).next_back()?;
        (address < segment.end).then_some((start, segment))
    }

    fn add_run(&mut self, is_small: bool, start: u64, end: u64) {
        if start < end {
            self.runs.insert(start, end);
            self.by_size[usize::from(is_small)].insert((end - start, start));
        }
    }

    fn remove_run(&mut self, is_small: bool, start: u64) -> Option<u64> {
        let end = self.runs.remove(&start)?;
        self.by_size[usize::from(is_small)].remove(&(end - start, start));
        Some(end)
    }

    /// Takes a block out of its free range. Returns the number of its segment, and whether the segment was new; and the size of the
    /// range.
    fn allocate(&mut self, address: u64, bytes: u64) -> Option<(u32, bool, u64)> {
        let (_, segment) = self.segment(address)?;
        let (number, is_small, was_fresh) = (segment.number, segment.is_small, segment.is_fresh);
        (segment.is_fresh, segment.live) = (false, segment.live + 1);
        let run = self
            .runs
            .range(..=address)
            .next_back()
            .filter(|&(_, &end)| address < end);
        let Some((&start, &end)) = run else {
            return Some((number, was_fresh, 0));
        };
        self.remove_run(is_small, start);
        self.add_run(is_small, start, address);
        self.add_run(is_small, address.saturating_add(bytes), end);
        Some((number, was_fresh, end - start))
    }

    fn free(&mut self, address: u64, bytes: u64) {
        let Some((first, segment)) = self.segment(address) else {
            return;
        };
        segment.live = segment.live.saturating_sub(1);
        let (is_small, last) = (segment.is_small, segment.end);
        let (mut start, mut end) = (address, address.saturating_add(bytes).min(last));
        let before = self
            .runs
            .range(..address)
            .next_back()
            .map(|(&start, &end)| (start, end));
        if let Some((before, _)) = before.filter(|&(before, until)| until == address && before >= first) {
            self.remove_run(is_small, before);
            start = before;
        }
        if end < last
            && let Some(after) = self.remove_run(is_small, end)
        {
            end = after;
        }
        self.add_run(is_small, start, end);
    }
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
        let role = |site: &crate::timeline::Site| match (site.kind, stacks.get(site.stack).allocator) {
            (Kind::Tensor, _) => Some(Role::Block),
            (Kind::Device, Some("PyTorch")) => Some(Role::Segment),
            (Kind::Device, None) => Some(Role::Unknown),
            (Kind::Physical, Some("PyTorch")) => Some(Role::Pages),
            (Kind::Reserved, Some("PyTorch")) => Some(Role::Addresses),
            _ => None,
        };
        let roles: Vec<Option<Role>> = lives.sites.iter().map(role).collect();
        let failed = |device| {
            let of_device = snapshot
                .failed
                .iter()
                .filter(move |failed| failed.device == Some(device));
            of_device.filter(|failed| failed.error == OUT_OF_MEMORY)
        };
        let is_ours = |failed: &&Failed| stacks.get(failed.stack).allocator.is_none_or(|name| name == "PyTorch");
        // Without the requests of the driver to the kernel, what the program itself requested.
        let of_segments = snapshot.device_of_segments();
        let mut given = timeline.segments.events().peekable();
        let has_given = given.len() > 0 && snapshot.losses.lost_segments == 0;
        let builder = |device| Builder {
            own: own.clone(),
            failed_calls: failed(device)
                .filter(|of| of.kind != Kind::Tensor)
                .filter(is_ours)
                .collect(),
            failed_request: failed(device)
                .filter(|of| of.kind == Kind::Tensor)
                .max_by_key(|of| of.last_ns),
            trace: Trace {
                other_is_known: has_given,
                ..Trace::default()
            },
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
            let (number, is_free) = (change.life().unwrap_or_default() as u32, change.is_free());
            let role = roles[life.site as usize];
            // The device of addresses is not always known.
            let devices = match site.device.or(only) {
                Some(device) => device..device + 1,
                None if role == Some(Role::Addresses) => 0..builders.len(),
                None => continue,
            };
            for builder in &mut builders[devices] {
                if !has_given && site.kind.place() == Place::Device {
                    builder.given(life.bytes, is_free);
                }
                if let Some(role) = role {
                    builder.event(role, is_free, number, life, time_ns);
                }
            }
        }
        Ok(builders.into_iter().map(Builder::finish).collect())
    }

    /// The class of each segment.
    pub fn classes(&self, by: Conflicts) -> Vec<u32> {
        // Each reserved range of addresses is of one class.
        if self.expandable {
            return (0..self.segments).collect();
        }
        let mut groups = Groups::new(self.segments as usize);
        for &(a, b, _) in self.conflicts.iter().filter(|conflict| conflict.2 <= by) {
            groups.conflicts[a as usize].insert(b);
            groups.conflicts[b as usize].insert(a);
        }
        // A line whose blocks never lie in two segments with a conflict runs on one stream.
        let is_of_one = |segments: &&BTreeSet<u32>| {
            let mut all = segments.iter();
            all.all(|&segment| segments.is_disjoint(&groups.conflicts[segment as usize]))
        };
        let lines: Vec<&BTreeSet<u32>> = self.segments_of_sites.iter().filter(is_of_one).collect();
        for segments in lines {
            let pairs = segments.iter().zip(segments.iter().skip(1));
            pairs.for_each(|(&a, &b)| groups.join(a, b));
        }
        groups.classes()
    }
}

/// Segments that have the same class, as far as it is known. The first segment stands for its group.
struct Groups {
    first: Vec<u32>,
    /// By the first segment of a group, the segments of other classes.
    conflicts: Vec<BTreeSet<u32>>,
}

impl Groups {
    fn new(segments: usize) -> Groups {
        Groups {
            first: (0..segments as u32).collect(),
            conflicts: vec![BTreeSet::new(); segments],
        }
    }

    fn first(&self, mut segment: u32) -> u32 {
        while self.first[segment as usize] != segment {
            segment = self.first[segment as usize];
        }
        segment
    }

    /// Joins the groups of two segments unless there is a conflict between them.
    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.first(a), self.first(b));
        let (a, b) = (a.min(b), a.max(b));
        if a == b || self.conflicts[a as usize].iter().any(|&other| self.first(other) == b) {
            return;
        }
        self.first[b as usize] = a;
        let conflicts = std::mem::take(&mut self.conflicts[b as usize]);
        self.conflicts[a as usize].extend(conflicts);
    }

    /// Each group has the lowest class that none of its conflicts has.
    fn classes(&self) -> Vec<u32> {
        let mut classes: Vec<Option<u32>> = vec![None; self.first.len()];
        for segment in 0..self.first.len() as u32 {
            let first = self.first(segment);
            let taken = self.conflicts[first as usize].iter();
            let taken: BTreeSet<u32> = taken.filter_map(|&other| classes[self.first(other) as usize]).collect();
            let class = classes[first as usize].or_else(|| (0..).find(|class| !taken.contains(class)));
            classes[segment as usize] = class;
        }
        classes.into_iter().map(Option::unwrap_or_default).collect()
    }
}

const OUT_OF_MEMORY: i32 = 2;

#[derive(Default)]
struct Builder<'a> {
    own: Settings,
    trace: Trace,
    layout: Layout,
    /// Memory in which no tensor lay yet.
    unknown: BTreeMap<u64, Life>,
    /// Starts of the address ranges of expandable segments, with their classes once a block lay in them.
    ranges: BTreeMap<u64, Option<u32>>,
    /// Classes of ranges of the large and the small pool.
    classes: [u32; 2],
    reserved: u64,
    live: u64,
    /// Live bytes of the large and the small pool.
    live_of: [u64; 2],
    /// Requests of the allocator to the driver that failed.
    failed_calls: Vec<&'a Failed>,
    failed_request: Option<&'a Failed>,
    /// The time of the last block that was allocated or freed.
    last_ns: u64,
    /// What the process has from the driver; since the last block, the most of it beside the segments, and whether these changed.
    given: u64,
    other: u64,
    segments_changed: bool,
    /// Of the last step that has it.
    noted: u64,
}

impl Builder<'_> {
    fn step(&mut self, step: Step) {
        self.trace.steps.push((step, self.reserved));
    }

    fn mark(&mut self, name: &str) {
        if self.trace.cut_off.is_some() {
            return;
        }
        let known = self.trace.marks.iter().position(|known| known == name);
        let mark = known.unwrap_or_else(|| {
            self.trace.marks.push(name.to_owned());
            self.trace.marks.len() - 1
        });
        self.step(Step::Mark(mark));
    }

    fn fail(&mut self, failed: &Failed) {
        self.trace.failed_bytes = Some(failed.bytes);
        self.step(Step::Failed { bytes: failed.bytes });
    }

    fn given(&mut self, bytes: u64, is_free: bool) {
        self.given = match is_free {
            true => self.given.saturating_sub(bytes),
            false => self.given.saturating_add(bytes),
        };
        self.other = self.other.max(self.given.saturating_sub(self.reserved));
    }

    fn event(&mut self, role: Role, is_free: bool, number: u32, life: &Life, time_ns: u64) {
        if let Some((_, left_out)) = &mut self.trace.cut_off {
            *left_out += u64::from(role == Role::Block && !is_free);
            return;
        }
        if let Some(failed) = self.failed_request.take_if(|failed| failed.last_ns < time_ns) {
            self.fail(failed);
        }
        match (role, is_free) {
            (Role::Block, _) => self.block(number, life, is_free),
            (Role::Segment, false) => self.add_segment(life, time_ns),
            (Role::Unknown, false) => drop(self.unknown.insert(life.address, *life)),
            (Role::Unknown, true) if self.unknown.remove(&life.address).is_some() => {}
            (Role::Segment | Role::Unknown, true) => self.remove_segment(life, time_ns),
            (Role::Pages, false) => self.reserve(life.bytes, time_ns),
            (Role::Pages, true) => self.release(life.bytes, time_ns),
            (Role::Addresses, false) => drop(self.ranges.insert(life.address, None)),
            (Role::Addresses, true) => {}
        }
        self.trace.expandable |= role == Role::Pages;
        if role == Role::Block {
            self.last_ns = time_ns;
        }
    }

    /// Notes what the process has besides. The driver's events and those of segments alternate, so while the latter change, only
    /// the end counts.
    fn note_other(&mut self) {
        let now = self.given.saturating_sub(self.reserved);
        let most = if self.segments_changed {
            now
        } else {
            self.other.max(now)
        };
        if most != self.noted {
            self.step(Step::OtherMemory(most));
        }
        self.trace.peak_other = self.trace.peak_other.max(most);
        (self.noted, self.other, self.segments_changed) = (most, now, false);
    }

    fn add_segment(&mut self, life: &Life, time_ns: u64) {
        let number = self.trace.segments;
        self.trace.segments += 1;
        self.trace
            .addresses
            .entry(life.bytes)
            .or_default()
            .push_back(life.address);
        let is_small = life.bytes == PAGE;
        let end = life.address.saturating_add(life.bytes);
        let segment = Segment {
            end,
            number,
            is_small,
            is_fresh: true,
            live: 0,
        };
        self.layout.segments.insert(life.address, segment);
        self.layout.add_run(is_small, life.address, end);
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
        self.reserved += bytes;
        self.segments_changed = true;
        self.trace.peak_reserved = self.trace.peak_reserved.max(self.reserved);
    }

    fn remove_segment(&mut self, life: &Life, time_ns: u64) {
        if let Some(segment) = self.layout.segments.remove(&life.address) {
            if segment.live > 0 {
                self.trace.cut_off = Some((time_ns, 0));
                return;
            }
            self.layout.remove_run(segment.is_small, life.address);
        }
        self.trace.passed_over.remove(&life.address);
        self.release(life.bytes, time_ns);
    }

    fn release(&mut self, bytes: u64, time_ns: u64) {
        self.reserved = self.reserved.saturating_sub(bytes);
        self.segments_changed = true;
        if let Some((Step::Release { .. }, reserved)) = self.trace.steps.last_mut() {
            *reserved = self.reserved;
            return;
        }
        // The call that failed stands between the block before and the segments that were given back for it.
        let span = self.last_ns..=time_ns;
        let is_between = |of: &&Failed| span.contains(&of.first_ns) || span.contains(&of.last_ns);
        let by_force = self.failed_calls.iter().any(is_between);
        self.trace.was_forced |= by_force;
        self.step(Step::Release { by_force });
    }

    fn block(&mut self, block: u32, life: &Life, is_free: bool) {
        let (address, bytes) = (life.address, life.bytes);
        if is_free {
            self.note_other();
            self.layout.free(address, bytes);
            self.count(bytes, true);
            return self.step(Step::Free { block });
        }
        let around = self.unknown.range(..=address).next_back();
        if let Some((&start, &life)) = around.filter(|(_, of)| address - of.address < of.bytes) {
            self.unknown.remove(&start);
            self.add_segment(&life, self.last_ns);
        }
        self.note_other();
        let placed = self.layout.allocate(address, bytes);
        let (mut requested, mut is_whole) = (bytes, false);
        let segment = match placed {
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
                if let Some((start, _)) = self.layout.segment(address) {
                    self.trace.passed_over.remove(&start);
                }
                segment
            }
            None => self.class_of_range(address, bytes),
        };
        self.trace.segments = self.trace.segments.max(segment + 1);
        let site = life.site as usize;
        let known = self.trace.segments_of_sites.len().max(site + 1);
        self.trace.segments_of_sites.resize_with(known, BTreeSet::new);
        self.trace.segments_of_sites[site].insert(segment);
        self.trace.allocations += 1;
        self.count(bytes, false);
        self.step(Step::Allocate {
            block,
            bytes: requested,
            segment,
            is_whole,
        });
    }

    /// Of several ranges that begin before a block, the nearest one.
    fn class_of_range(&mut self, address: u64, bytes: u64) -> u32 {
        let Some((_, class)) = self.ranges.range_mut(..=address).next_back() else {
            return 0;
        };
        let next = &mut self.classes[usize::from(bytes <= SMALL)];
        *class.get_or_insert_with(|| {
            *next += 1;
            *next - 1
        })
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
            if other.number == segment || !self.own.accepts(bytes, length) {
                continue;
            }
            self.trace.conflicts.insert((segment, other.number, by));
            if is_new && first + length == other.end {
                self.trace.passed_over.insert(first);
            }
        }
    }

    fn count(&mut self, bytes: u64, is_free: bool) {
        let of_pool = &mut self.live_of[usize::from(bytes <= SMALL)];
        match is_free {
            false => (*of_pool, self.live) = (*of_pool + bytes, self.live + bytes),
            true => (*of_pool, self.live) = (of_pool.saturating_sub(bytes), self.live.saturating_sub(bytes)),
        }
        let pages = self.live_of.iter().map(|live| live.next_multiple_of(PAGE)).sum();
        self.trace.peak_live = self.trace.peak_live.max(self.live);
        self.trace.peak_pages = self.trace.peak_pages.max(pages);
    }

    fn finish(mut self) -> Trace {
        if let Some(failed) = self.failed_request.filter(|_| self.trace.cut_off.is_none()) {
            self.fail(failed);
        }
        self.trace.end_reserved = self.reserved;
        self.trace
    }
}
