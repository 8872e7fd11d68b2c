//! The trace of a timeline: every allocation and free, as PyTorch's recorder writes them.
//!
//! The viewer starts from the segments at the end and undoes the trace event by event, and fails if a block lies in no segment
//! at that time. So the trace is made by following the segments: a block appears when memory that contains it does, and
//! disappears when that memory does, perhaps several times. Blocks that never lay in known memory are left out and counted.
//!
//! The log does not contain the size of a mapping that has ended. It is taken from the physical memory created last before
//! it, since PyTorch maps each handle right after creating it.

use std::collections::BTreeMap;

use culeak::kind::{Kind, Place};
use culeak::named;
use culeak::snapshot::Snapshot;
use culeak::timeline::lives::{Life, Lives};
use culeak::timeline::{Site, Timeline};
use foldhash::HashMap;

/// The viewer has a list indexed by ordinal.
pub const DEVICES: i32 = 1024;

named! {
    pub enum Action {
        Alloc = "alloc",
        FreeRequested = "free_requested",
        FreeCompleted = "free_completed",
        SegmentAlloc = "segment_alloc",
        SegmentFree = "segment_free",
        SegmentMap = "segment_map",
        SegmentUnmap = "segment_unmap",
        OutOfMemory = "oom",
        Annotate = "annotate",
    }
}

/// An entry of a trace.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub time_ns: u64,
    pub action: Action,
    pub address: u64,
    pub size: u64,
    /// The log has none: 0.
    pub stream: u64,
    pub stack: Path,
    /// Which of the labels in the stack the entry has.
    pub label: usize,
}

/// The frames of an entry.
#[derive(Debug, Clone, Copy)]
pub enum Path {
    OfProfile(u32),
    /// Index into the snapshot's stacks.
    OfStack(Option<u32>),
}

pub struct Traces {
    /// By CUDA's ordinal, in order of time.
    pub of_devices: Vec<Vec<Entry>>,
    /// Blocks that lay in no known memory.
    pub left_out: u64,
}

/// A row's segment in the final layout: its ordinal and whether blocks lie in it.
pub type Final = HashMap<u32, (Option<u16>, bool)>;

impl Traces {
    /// `wanted`: by site. `last`: the segments of the final state, by row.
    pub fn of(snapshot: &Snapshot, timeline: &Timeline, lives: &Lives, wanted: &[bool], last: &Final) -> Traces {
        let memory = Memory::of_lives(snapshot, lives, wanted, last);
        let mut writer = Writer {
            lives,
            memory,
            segments: BTreeMap::new(),
            blocks: BTreeMap::new(),
            waiting: BTreeMap::new(),
            traces: Traces {
                of_devices: Vec::new(),
                left_out: 0,
            },
        };
        writer.begin();
        for (nth, change, _) in lives.changes() {
            if let Some(life) = change.life() {
                writer.follow(life as u32, change.is_free(), timeline.memory.time_ns(nth));
            }
        }
        let never = writer.waiting.values().filter(|waiting| !waiting.appeared);
        writer.traces.left_out += never.count() as u64;
        writer.traces.add_failures(snapshot, timeline.since_ns);
        writer.traces
    }

    fn push(&mut self, ordinal: u16, entry: Entry) {
        let ordinal = ordinal as usize;
        if self.of_devices.len() <= ordinal {
            self.of_devices.resize_with(ordinal + 1, Vec::new);
        }
        self.of_devices[ordinal].push(entry);
    }

    fn add_failures(&mut self, snapshot: &Snapshot, since_ns: u64) {
        for failed in snapshot.failed.iter().filter(|failed| failed.first_ns >= since_ns) {
            if let Some(ordinal) = ordinal(snapshot, failed.device) {
                self.push(
                    ordinal,
                    Entry {
                        time_ns: failed.first_ns,
                        action: Action::OutOfMemory,
                        address: 0,
                        size: failed.bytes,
                        stream: 0,
                        stack: Path::OfStack(failed.stack.map(|stack| stack as u32)),
                        label: 0,
                    },
                );
            }
        }
        for trace in &mut self.of_devices {
            trace.sort_by_key(|entry| entry.time_ns);
        }
    }
}

pub fn ordinal(snapshot: &Snapshot, device: Option<usize>) -> Option<u16> {
    let ordinal = snapshot.devices[device?].ordinal;
    (0..DEVICES).contains(&ordinal).then_some(ordinal as u16)
}

/// What a life is to the viewer.
#[derive(Debug, Clone, Copy)]
enum Memory {
    /// It cannot be represented, or is not wanted.
    No,
    Block {
        ordinal: u16,
    },
    Segment(Segment),
}

#[derive(Debug, Clone, Copy)]
struct Segment {
    ordinal: u16,
    size: u64,
    mapped: bool,
    carries: bool,
}

impl Memory {
    fn of_lives(snapshot: &Snapshot, lives: &Lives, wanted: &[bool], last: &Final) -> Vec<Memory> {
        // Size and device of the physical memory created last.
        let mut physical: Option<(u64, Option<u16>)> = None;
        let memory = lives.lives.iter().map(|life| {
            let site = &lives.sites[life.site as usize];
            let own = ordinal(snapshot, site.device);
            if site.kind == Kind::Physical {
                physical = Some((life.bytes, own));
            }
            if !wanted[life.site as usize] {
                return Memory::No;
            }
            let known = life.row().and_then(|row| last.get(&row)).copied();
            let carries = known.map_or(life.behind, |(_, carries)| carries);
            let ordinal = own.or(known.and_then(|(ordinal, _)| ordinal));
            match site.kind {
                kind if kind.place() == Place::Within => {
                    ordinal.map_or(Memory::No, |ordinal| Memory::Block { ordinal })
                }
                Kind::Mapping => {
                    let of_row = life.row().map(|row| snapshot.allocations.at(row as usize).requested);
                    let size = of_row.or(physical.map(|(bytes, _)| bytes)).unwrap_or(0);
                    let ordinal = ordinal.or(physical.and_then(|(_, ordinal)| ordinal));
                    // Mapped memory is listed for its handle; here it is at its addresses.
                    segment(ordinal, size, true, known.is_none_or(|(_, carries)| carries))
                }
                Kind::Device | Kind::Pitched | Kind::Async | Kind::Graph | Kind::Managed => {
                    segment(ordinal, life.bytes, false, carries)
                }
                _ => Memory::No,
            }
        });
        memory.collect()
    }
}

fn segment(ordinal: Option<u16>, size: u64, mapped: bool, carries: bool) -> Memory {
    let segment = |ordinal| {
        Memory::Segment(Segment {
            ordinal,
            size,
            mapped,
            carries,
        })
    };
    ordinal.filter(|_| size > 0).map_or(Memory::No, segment)
}

#[derive(Clone, Copy)]
struct Waiting {
    life: u32,
    /// It had memory around it before.
    appeared: bool,
}

struct Writer<'l> {
    lives: &'l Lives,
    memory: Vec<Memory>,
    /// Live segments: the end and the life of each, by address.
    segments: BTreeMap<u64, (u64, u32)>,
    /// Live blocks in segments, by address.
    blocks: BTreeMap<u64, u32>,
    /// Live blocks without memory around them, by address.
    waiting: BTreeMap<u64, Waiting>,
    traces: Traces,
}

impl Writer<'_> {
    /// What is live at the begin of the log.
    fn begin(&mut self) {
        let lives = self.lives;
        for (life, &Life { address, .. }) in lives.at_begin() {
            if let Memory::Segment(Segment { size, .. }) = self.memory[life] {
                self.segments
                    .insert(address, (address.saturating_add(size), life as u32));
            }
        }
        for (life, of) in lives.at_begin() {
            if let Memory::Block { .. } = self.memory[life] {
                if self.covers(of) {
                    self.blocks.insert(of.address, life as u32);
                } else {
                    self.wait(life as u32, false);
                }
            }
        }
    }

    fn follow(&mut self, number: u32, is_free: bool, time_ns: u64) {
        let life = &self.lives.lives[number as usize];
        match (self.memory[number as usize], is_free) {
            (Memory::No, _) => {}
            (Memory::Block { .. }, true) => {
                if self.blocks.get(&life.address) == Some(&number) {
                    self.end_block(number, time_ns);
                } else if let Some(waiting) = self.waiting.get(&life.address).filter(|waiting| waiting.life == number) {
                    self.traces.left_out += u64::from(!waiting.appeared);
                    self.waiting.remove(&life.address);
                }
            }
            (Memory::Block { .. }, _) if self.covers(life) => self.begin_block(number, time_ns),
            (Memory::Block { .. }, _) => self.wait(number, false),
            (Memory::Segment(segment), true) => self.end_segment(number, segment, time_ns),
            (Memory::Segment(segment), _) => self.begin_segment(number, segment, time_ns),
        }
    }

    fn wait(&mut self, life: u32, appeared: bool) {
        let address = self.lives.lives[life as usize].address;
        self.waiting.insert(address, Waiting { life, appeared });
    }

    /// Whether contiguous live segments contain the block.
    fn covers(&self, block: &Life) -> bool {
        let end = block.address.saturating_add(block.bytes);
        let first = self.segments.range(..=block.address).next_back();
        let Some((_, &(mut reached, _))) = first else {
            return false;
        };
        while reached < end && reached > block.address {
            match self.segments.get(&reached) {
                Some(&(next, _)) => reached = next,
                None => return false,
            }
        }
        reached >= end && reached > block.address
    }

    fn push(&mut self, number: u32, action: Action, size: u64, time_ns: u64) {
        let life = &self.lives.lives[number as usize];
        let site: &Site = &self.lives.sites[life.site as usize];
        let (Memory::Block { ordinal } | Memory::Segment(Segment { ordinal, .. })) = self.memory[number as usize]
        else {
            return;
        };
        self.traces.push(
            ordinal,
            Entry {
                time_ns,
                action,
                address: life.address,
                size,
                stream: 0,
                stack: Path::OfStack(site.stack.map(|stack| stack as u32)),
                label: 0,
            },
        );
    }

    fn begin_block(&mut self, number: u32, time_ns: u64) {
        let life = &self.lives.lives[number as usize];
        self.push(number, Action::Alloc, life.bytes, time_ns);
        self.blocks.insert(life.address, number);
    }

    fn end_block(&mut self, number: u32, time_ns: u64) {
        let life = &self.lives.lives[number as usize];
        self.blocks.remove(&life.address);
        self.push(number, Action::FreeRequested, life.bytes, time_ns);
        self.push(number, Action::FreeCompleted, life.bytes, time_ns);
    }

    fn begin_segment(&mut self, number: u32, segment: Segment, time_ns: u64) {
        let Segment {
            size, mapped, carries, ..
        } = segment;
        let start = self.lives.lives[number as usize].address;
        let end = start.saturating_add(size);
        let [plain, map] = [Action::SegmentAlloc, Action::SegmentMap];
        self.push(number, if mapped { map } else { plain }, size, time_ns);
        self.segments.insert(start, (end, number));
        if !carries {
            self.push(number, Action::Alloc, size, time_ns);
        }
        let lives = self.lives;
        let within: Vec<u32> = self.waiting.range(..end).map(|(_, waiting)| waiting.life).collect();
        for life in within {
            if self.covers(&lives.lives[life as usize]) {
                self.waiting.remove(&lives.lives[life as usize].address);
                self.begin_block(life, time_ns);
            }
        }
    }

    fn end_segment(&mut self, number: u32, segment: Segment, time_ns: u64) {
        let Segment {
            size, mapped, carries, ..
        } = segment;
        let start = self.lives.lives[number as usize].address;
        if self.segments.get(&start).is_none_or(|&(_, life)| life != number) {
            return;
        }
        let lives = self.lives;
        // A block may begin in the memory before.
        let before = self
            .blocks
            .range(..start)
            .next_back()
            .filter(|&(&address, &life)| address.saturating_add(lives.lives[life as usize].bytes) > start);
        let ends = self.blocks.range(start..start.saturating_add(size)).chain(before);
        let ends: Vec<u32> = ends.map(|(_, &life)| life).collect();
        for life in ends {
            self.end_block(life, time_ns);
            self.wait(life, true);
        }
        if !carries {
            self.push(number, Action::FreeRequested, size, time_ns);
            self.push(number, Action::FreeCompleted, size, time_ns);
        }
        let [plain, unmap] = [Action::SegmentFree, Action::SegmentUnmap];
        self.push(number, if mapped { unmap } else { plain }, size, time_ns);
        self.segments.remove(&start);
    }
}
