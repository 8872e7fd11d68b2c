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
//! the same. Which conflicts are real (a block that waits for another stream looks like one) is found by what reproduces the
//! recorded memory best.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foldhash::{HashMap, HashSet};

use super::model::{PAGE, SMALL, SMALLEST};
use super::settings::Settings;
use crate::analysis::lives;
use crate::analysis::site::CallStacks;
use crate::kind::Kind;
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{Allocations, Failed, Snapshot};
use crate::timeline::Timeline;
use crate::timeline::lives::Life;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// `block`: the number of the life. `segment`: the recorded segment that it lies in.
    Allocate {
        block: u32,
        bytes: u64,
        segment: u32,
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
    /// The request that failed.
    Failed {
        bytes: u64,
    },
}

/// How segments got their classes.
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
    /// The driver refused memory, and the cache was given back.
    pub was_forced: bool,
    segments: u32,
    conflicts: BTreeSet<(u32, u32, Conflicts)>,
}

/// Other segments that are compared with the one that served a request.
const COMPARED: usize = 16;

/// What of a site matters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Block,
    Segment,
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
    /// `own`: the settings of the run. `failed`: a request whose fit is of interest.
    ///
    /// # Errors
    /// The reason why the log does not have all requests.
    pub fn of(
        snapshot: &Snapshot,
        last: &Allocations,
        timeline: &Timeline,
        stacks: &CallStacks,
        device: usize,
        own: &Settings,
        failed: Option<&Failed>,
    ) -> Result<Trace, String> {
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
        let lives = lives::of(snapshot, last, timeline, stacks);
        let only = snapshot.devices.len() == 1;
        let role = |site: &crate::timeline::Site| {
            let is_here = site.device == Some(device) || site.device.is_none() && only;
            let allocator = stacks.get(site.stack).allocator;
            match site.kind {
                _ if !is_here => None,
                Kind::Tensor => Some(Role::Block),
                Kind::Device if allocator.is_none_or(|name| name == "PyTorch") => Some(Role::Segment),
                Kind::Physical if allocator == Some("PyTorch") => Some(Role::Pages),
                Kind::Reserved if allocator == Some("PyTorch") => Some(Role::Addresses),
                _ => None,
            }
        };
        let roles: Vec<Option<Role>> = lives.sites.iter().map(role).collect();
        let role = |life: &Life| match roles[life.site as usize] {
            // Memory of the program, in which no tensor lies.
            Some(Role::Segment) if !life.behind => None,
            role => role,
        };
        let end_ns = snapshot.end.map_or(u64::MAX, |end| end.time_ns);
        let mut marks = snapshot.marks.iter().peekable();
        let mut failed = failed.map(|failed| (failed.last_ns, failed.bytes));
        let refused: Vec<&Failed> = (snapshot.failed.iter())
            .filter(|failed| failed.kind != Kind::Tensor && failed.device == Some(device) && failed.error == 2)
            .collect();
        let mut builder = Builder {
            own: own.clone(),
            ..Builder::default()
        };
        let mut last_ns = 0;
        let progress = Progress::over("following requests", timeline.memory.len() as u64, Unit::Of("events"));
        for (nth, change, life) in lives.changes() {
            progress.tick(nth);
            let time_ns = timeline.memory.time_ns(nth);
            if time_ns > end_ns {
                break;
            }
            while let Some(mark) = marks.next_if(|mark| mark.time_ns <= time_ns) {
                builder.mark(&mark.name);
            }
            if let Some((_, bytes)) = failed.take_if(|failed| failed.0 < time_ns) {
                builder.step(Step::Failed { bytes });
            }
            let Some((number, role)) = change.life().zip(role(life)) else {
                continue;
            };
            // A refused request stands between the block before and the segments that were given back for it.
            let is_refused = || (refused.iter()).any(|failed| failed.last_ns >= last_ns && failed.first_ns <= time_ns);
            let goes_on = match (role, change.is_free()) {
                (Role::Block, false) => builder.allocate(number as u32, life),
                (Role::Block, true) => builder.free(number as u32, life),
                (Role::Segment, false) => builder.add_segment(life),
                (Role::Segment, true) => builder.remove_segment(life, is_refused()),
                (Role::Pages, is_free) => builder.pages(life, is_free, is_free && is_refused()),
                (Role::Addresses, false) => builder.add_addresses(life),
                (Role::Addresses, true) => true,
            };
            if !goes_on {
                break;
            }
            if role == Role::Block {
                last_ns = time_ns;
            }
        }
        if let Some((_, bytes)) = failed {
            builder.step(Step::Failed { bytes });
        }
        Ok(builder.finish())
    }

    /// The class of each segment.
    pub fn classes(&self, by: Conflicts) -> Vec<u32> {
        let mut classes: Vec<u32> = Vec::with_capacity(self.segments as usize);
        let mut earlier: HashMap<u32, Vec<u32>> = HashMap::default();
        for &(a, b, _) in self.conflicts.iter().filter(|conflict| conflict.2 <= by) {
            earlier.entry(a.max(b)).or_default().push(a.min(b));
        }
        for segment in 0..self.segments {
            let others = earlier.get(&segment).into_iter().flatten();
            let taken: BTreeSet<u32> = others.map(|&other| classes[other as usize]).collect();
            classes.push((0..).find(|class| !taken.contains(class)).unwrap_or(0));
        }
        // Each reserved range of addresses is of one class.
        match self.expandable {
            true => (0..self.segments).collect(),
            false => classes,
        }
    }
}

#[derive(Default)]
struct Builder {
    own: Settings,
    trace: Trace,
    layout: Layout,
    /// Starts of the address ranges of expandable segments, with their numbers.
    ranges: BTreeMap<u64, u32>,
    reserved: u64,
    live: u64,
    /// Live bytes of the large and the small pool.
    live_of: [u64; 2],
}

impl Builder {
    fn step(&mut self, step: Step) {
        self.trace.steps.push((step, self.reserved));
    }

    fn mark(&mut self, name: &str) {
        let known = self.trace.marks.iter().position(|known| known == name);
        let mark = known.unwrap_or_else(|| {
            self.trace.marks.push(name.to_owned());
            self.trace.marks.len() - 1
        });
        self.step(Step::Mark(mark));
    }

    fn add_segment(&mut self, life: &Life) -> bool {
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
        self.reserve(life.bytes);
        true
    }

    fn reserve(&mut self, bytes: u64) {
        self.reserved += bytes;
        self.trace.peak_reserved = self.trace.peak_reserved.max(self.reserved);
    }

    /// `false`: a segment with live blocks is gone, because its context is.
    fn remove_segment(&mut self, life: &Life, by_force: bool) -> bool {
        if let Some(segment) = self.layout.segments.remove(&life.address) {
            if segment.live > 0 {
                return false;
            }
            self.layout.remove_run(segment.is_small, life.address);
        }
        self.trace.passed_over.remove(&life.address);
        self.released(life.bytes, by_force);
        true
    }

    fn released(&mut self, bytes: u64, by_force: bool) {
        self.reserved = self.reserved.saturating_sub(bytes);
        self.trace.was_forced |= by_force;
        match self.trace.steps.last_mut() {
            Some((Step::Release { .. }, reserved)) => *reserved = self.reserved,
            _ => self.step(Step::Release { by_force }),
        }
    }

    fn pages(&mut self, life: &Life, is_free: bool, by_force: bool) -> bool {
        self.trace.expandable = true;
        match is_free {
            false => self.reserve(life.bytes),
            true => self.released(life.bytes, by_force),
        }
        true
    }

    fn add_addresses(&mut self, life: &Life) -> bool {
        self.ranges.insert(life.address, self.trace.segments);
        self.trace.segments += 1;
        true
    }

    fn allocate(&mut self, block: u32, life: &Life) -> bool {
        let (address, bytes) = (life.address, life.bytes);
        let placed = self.layout.allocate(address, bytes);
        let mut requested = bytes;
        let segment = match placed {
            Some((segment, is_new, run)) => {
                // A block of just this size that got new memory, although one that may serve it was free, was requested smaller.
                let is_near = (self.own.max_split..self.own.max_split.saturating_add(SMALL)).contains(&bytes);
                let mut larger = self.layout.by_size[0].range((bytes, 0)..);
                if is_new && is_near && larger.any(|&(length, _)| self.own.accepts(bytes, length)) {
                    requested = self.own.max_split - SMALLEST;
                }
                self.compare(segment, requested, if is_new { u64::MAX } else { run });
                self.used(address);
                segment
            }
            // Of several ranges that begin before it, the nearest one.
            None => self
                .ranges
                .range(..=address)
                .next_back()
                .map_or(0, |(_, &number)| number),
        };
        self.trace.segments = self.trace.segments.max(1);
        self.trace.allocations += 1;
        self.count(bytes, true);
        self.step(Step::Allocate {
            block,
            bytes: requested,
            segment,
        });
        true
    }

    fn used(&mut self, address: u64) {
        if let Some((start, _)) = self.layout.segment(address) {
            self.trace.passed_over.remove(&start);
        }
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

    fn count(&mut self, bytes: u64, is_more: bool) {
        let of_pool = &mut self.live_of[usize::from(bytes <= SMALL)];
        match is_more {
            true => (*of_pool, self.live) = (*of_pool + bytes, self.live + bytes),
            false => (*of_pool, self.live) = (of_pool.saturating_sub(bytes), self.live.saturating_sub(bytes)),
        }
        let pages = self.live_of.iter().map(|live| live.next_multiple_of(PAGE)).sum();
        self.trace.peak_live = self.trace.peak_live.max(self.live);
        self.trace.peak_pages = self.trace.peak_pages.max(pages);
    }

    fn free(&mut self, block: u32, life: &Life) -> bool {
        self.layout.free(life.address, life.bytes);
        self.count(life.bytes, false);
        self.step(Step::Free { block });
        true
    }

    fn finish(mut self) -> Trace {
        self.trace.end_reserved = self.reserved;
        self.trace
    }
}
