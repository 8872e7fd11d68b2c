//! What a recording of a script means: a list of what is live, and sums. Deliberately plain, and without concurrency.
//!
//! It is told what the driver answered to each line, and says what follows from it: what is live, the sums by kind and device, and what
//! was live at each mark. Whether a call may succeed is the driver's business.

use std::collections::{BTreeMap, BTreeSet};

use culeak::kind::{Kind, Place};

use super::script::{Answer, Line};
use verbs::{STEP, freeing, making};

mod begins;
mod ends;
mod pages;
mod verbs;

/// Where an address or handle is unique.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Space {
    Pointer,
    Registered,
    Array,
    Pool,
    Reserved,
    Physical,
    Mapping,
    External,
    /// Of an allocator of the program.
    Block(String),
    Object(Kind),
}

/// Something that is live.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The number of the line that made it, and among those of the line.
    pub made: usize,
    pub space: Space,
    pub address: u64,
    pub kind: Kind,
    pub bytes: u64,
    pub requested: u64,
    pub device: Option<i32>,
    pub context: u64,
    pub site: u64,
    pub thread: u32,
    pub api: &'static str,
    pub domain: Option<String>,
    /// One call made several.
    pub is_of_several: bool,
    pub stream: Option<u64>,
    pub pool: Option<u64>,
    /// Of physical memory.
    pub references: u32,
    pub mappings: u32,
    /// Of a mapping: the line that made the memory behind it.
    behind: Option<usize>,
}

/// Sums of a kind on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sums {
    pub live_bytes: u64,
    pub live_count: u64,
    pub peak_bytes: u64,
    pub total_bytes: u64,
    pub total_count: u64,
    pub freed_count: u64,
    pub failed_count: u64,
}

/// A kind of memory on a device. The device of host memory is that of the context.
pub type Key = (Option<i32>, Kind);

#[derive(Debug, Clone)]
pub struct Point {
    pub name: String,
    pub live: Vec<Record>,
    pub sums: BTreeMap<Key, Sums>,
    /// Live bytes and their peak, by device.
    pub devices: BTreeMap<i32, (u64, u64)>,
    /// The number of changes before it.
    pub changes: usize,
}

/// A phase: the numbers of the changes at its begin and end.
#[derive(Debug, Clone)]
pub struct Phase {
    pub name: String,
    pub begin: usize,
    pub end: Option<usize>,
    pub parent: Option<usize>,
    id: u64,
    thread: u32,
}

/// A record begins or ends to be live.
#[derive(Debug, Clone)]
pub struct Change {
    pub is_free: bool,
    pub record: Record,
}

#[derive(Debug, Clone, Default)]
pub struct Losses {
    pub failed_frees: u64,
    pub unknown_frees: u64,
    pub unknown_blocks: u64,
    pub implicit_frees: u64,
    /// Blocks that were handed out again without a free.
    pub vanished: u64,
}

/// A pool of pages, or an owner in one.
#[derive(Debug, Clone)]
pub struct Pages {
    id: u64,
    pub name: String,
    pub page_bytes: u64,
    /// Live, reclaimable, waiting, free.
    pub pages: [u64; 4],
    pub has_ended: bool,
    /// How many owners have begun.
    pub begun: u64,
    pub owners: Vec<Pages>,
}

/// A request that failed: site, kind, device, bytes, error.
pub type Failure = (u64, Kind, Option<i32>, u64, i32);

#[derive(Debug, Clone, Default)]
struct Graph {
    steps: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    Allocates(Record),
    Frees(u64),
}

#[derive(Debug, Clone, Default)]
pub struct Model {
    pub live: Vec<Record>,
    pub sums: BTreeMap<Key, Sums>,
    /// Live bytes and their peak, by device.
    pub devices: BTreeMap<i32, (u64, u64)>,
    /// What was live when a device's memory was at its peak.
    pub at_peaks: BTreeMap<i32, Vec<Record>>,
    pub losses: Losses,
    pub failed: BTreeMap<Failure, u64>,
    pub marks: Vec<Point>,
    pub snapshots: Vec<Point>,
    pub phases: Vec<Phase>,
    /// What intervals measured, and what they should have: bytes left, and their peak.
    pub measured: Vec<[(u64, u64); 2]>,
    /// The number of the current interval, and that of the changes before it.
    interval: Option<(u64, usize)>,
    pub changes: Vec<Change>,
    /// Functions that the driver returned and that have no hook.
    pub unhooked: BTreeSet<String>,
    pub page_pools: Vec<Pages>,
    graphs: BTreeMap<u64, Graph>,
    execs: BTreeMap<u64, Vec<Step>>,
    /// The stream and the graph of its capture.
    captures: BTreeMap<u64, Vec<Step>>,
    /// How many captures have begun.
    captured: u64,
    pools: BTreeMap<i32, u64>,
    /// By device: the primary context.
    primaries: BTreeMap<i32, u64>,
    attached: BTreeMap<u64, u64>,
    values: BTreeMap<u64, u64>,
    line: usize,
    pub is_recording: bool,
}

impl Model {
    /// A process that has called cuInit, and so has a recording.
    pub fn started() -> Model {
        Model {
            is_recording: true,
            ..Model::default()
        }
    }

    /// A forked child: it knows the addresses of its parent, and has a recording once it records something.
    pub fn forked(&self) -> Model {
        Model {
            values: self.values.clone(),
            ..Model::default()
        }
    }

    /// A line that was run, and what the driver answered.
    pub fn step(&mut self, line: &Line, answer: Answer) {
        self.line += 1;
        self.take(line, answer);
    }

    /// The value of an argument that names a line.
    fn value(&self, line: &Line, index: usize) -> u64 {
        let id = line.arguments.get(index).copied().unwrap_or(0) as u64;
        self.values.get(&id).copied().unwrap_or(0)
    }

    fn take(&mut self, line: &Line, answer: Answer) {
        let number = |index: usize| line.arguments.get(index).copied().unwrap_or(0) as u64;
        let succeeded = answer.result == 0;
        self.is_recording |= [
            "mark", "begin", "snapshot", "interval", "block", "blocks", "churn", "pagepool",
        ]
        .contains(&&*line.verb);
        if line.verb == "primary" && answer.value != 0 {
            self.primaries.insert(number(0) as i32, answer.value);
        }
        match &*line.verb {
            "block" | "blocks" => self.allocate_blocks(line, answer),
            "freeblock" => self.free_block(&line.name, answer.value),
            "freeblocks" => {
                let base = self.value(line, 0);
                (0..number(1)).for_each(|nth| self.free_block(&line.name, base + nth * STEP));
            }
            "churn" => {
                let what = (Kind::Block, Space::Block(line.name.clone()), "culeak_alloc");
                let record = self.record(line, answer, what, STEP, STEP);
                let (key, domain) = ((record.device, Kind::Block), Some(line.name.clone()));
                self.begin(Record { domain, ..record });
                self.end(self.live.len() - 1);
                // The others change the sums alone: nothing in a phase or an interval may depend on them.
                let (others, sums) = (number(0) - 1, self.sums.entry(key).or_default());
                sums.total_bytes += others * STEP;
                sums.total_count += others;
                sums.freed_count += others;
            }
            "node" if succeeded => {
                let record = self.record(
                    line,
                    answer,
                    (Kind::Graph, Space::Pointer, "cuGraphAddMemAllocNode"),
                    number(1),
                    number(1),
                );
                let record = Record {
                    device: Some(number(2) as i32),
                    ..record
                };
                let graph = self.value(line, 0);
                self.add_step(graph, Step::Allocates(record));
            }
            "freenode" if succeeded => self.add_step(self.value(line, 0), Step::Frees(self.value(line, 1))),
            "child" if succeeded => {
                let child = self.graphs.remove(&self.value(line, 1)).unwrap_or_default();
                let parent = self.graphs.entry(self.value(line, 0)).or_default();
                parent.steps.extend(child.steps);
            }
            "capture" if succeeded => {
                self.captured += 1;
                self.captures.insert(self.value(line, 0), Vec::new());
            }
            "launch" if succeeded => self.launch(self.value(line, 0)),
            "retainobject" if succeeded => {
                let object = self.find(&Space::Object(Kind::UserObject), self.value(line, 0));
                object
                    .into_iter()
                    .for_each(|object| self.live[object].references += number(1) as u32);
            }
            "releaseobject" => self.give_up(self.value(line, 0), number(1), succeeded),
            // With 1, the graph gets the program's references.
            "giveobject" if number(3) == 1 => self.give_up(self.value(line, 1), number(2), succeeded),
            "close" => self.close(self.value(line, 0), succeeded),
            "lookup" => {
                for nth in number(0)..number(0) + number(1) {
                    self.unhooked.insert(format!("cuNewerAlloc{nth}"));
                }
            }
            "pagepool" | "owner" | "setpages" | "endowner" => self.take_pages(line, answer.value),
            "release" => self.release(self.value(line, 0), succeeded),
            "retain" if succeeded => self.retain(answer.value),
            "unmap" if succeeded => self.unmap(answer.value, number(2)),
            "freeasync" => self.free_async(line, succeeded),
            "setpool" if succeeded => drop(self.pools.insert(number(0) as i32, self.value(line, 1))),
            "attach" if succeeded => *self.attached.entry(answer.value).or_default() += 1,
            "detach" => {
                let context = self.value(line, 0);
                match self.attached.get_mut(&context).filter(|count| **count > 0) {
                    Some(count) => *count -= 1,
                    None => self.destroy_context(context, succeeded),
                }
            }
            "freecontext" => self.destroy_context(self.value(line, 0), succeeded),
            "reset" if succeeded => self.reset(number(0) as i32),
            "releaseprimary" if succeeded && answer.detail == 0 => self.reset(number(0) as i32),
            "mark" => {
                let point = self.point(&line.name);
                self.marks.push(point);
            }
            "snapshot" => {
                let point = self.point(&line.name);
                self.snapshots.push(point);
            }
            // 0: intervals are off.
            "interval" if answer.value == 0 => {}
            "interval" => {
                let point = self.point(&line.name);
                self.marks.push(point);
                self.interval = Some((answer.value, self.changes.len()));
            }
            "measure" if succeeded => {
                let interval = self.interval.filter(|(number, _)| *number == self.value(line, 0));
                let since = interval.map_or(self.changes.len(), |(_, since)| since);
                let modelled = self.measure(since, line.arguments[1] as i32);
                self.measured.push([(answer.value, answer.detail), modelled]);
            }
            "begin" => {
                let open = |phase: &&Phase| phase.thread == answer.thread && phase.end.is_none();
                let parent = self.phases.iter().filter(open).map(|phase| phase.id).next_back();
                let parent = parent.and_then(|id| self.phases.iter().position(|phase| phase.id == id));
                self.phases.push(Phase {
                    name: line.name.clone(),
                    begin: self.changes.len(),
                    end: None,
                    parent,
                    id: answer.value,
                    thread: answer.thread,
                });
            }
            "end" => {
                let (id, now) = (self.value(line, 0), self.changes.len());
                let open = self
                    .phases
                    .iter_mut()
                    .filter(|phase| phase.id == id && phase.end.is_none());
                open.for_each(|phase| phase.end = Some(now));
            }
            verb => {
                if let Some(space) = freeing(verb) {
                    let address = self.value(line, 0) + if verb == "free" { number(1) } else { 0 };
                    self.free(space, address, succeeded);
                } else if let Some(what) = making(verb) {
                    self.allocate(line, answer, what);
                }
            }
        }
        if succeeded {
            match &*line.verb {
                "freeexec" => drop(self.execs.remove(&self.value(line, 0))),
                "freegraph" => drop(self.graphs.remove(&self.value(line, 0))),
                "freepool" => {
                    // The default pool becomes current.
                    let pool = self.value(line, 0);
                    self.pools.retain(|_, current| *current != pool);
                }
                _ => {}
            }
            self.values.insert(line.id, answer.value);
        }
    }

    /// Bytes that were allocated since then and are live, and their peak; device -1: on all devices, -2: on the host.
    fn measure(&self, since: usize, device: i32) -> (u64, u64) {
        let counts = |record: &Record| match record.kind.place() {
            Place::Host => device == -2,
            place => place.on_device() && (device == -1 || record.device == Some(device)),
        };
        let (mut left, mut peak) = (0, 0);
        let mut own: Vec<(usize, u64)> = Vec::new();
        for Change { is_free, record } in self.changes[since..].iter().filter(|change| counts(&change.record)) {
            let name = (record.made, record.address);
            if !is_free {
                own.push(name);
                left += record.bytes;
                peak = peak.max(left);
            } else if own.contains(&name) {
                left -= record.bytes;
            }
        }
        (left, peak)
    }

    fn point(&self, name: &str) -> Point {
        Point {
            name: name.to_owned(),
            live: self.live.clone(),
            sums: self.sums.clone(),
            devices: self.devices.clone(),
            changes: self.changes.len(),
        }
    }

    /// What was live before the change with this number.
    pub fn live_at(&self, changes: usize) -> Vec<Record> {
        let mut live: Vec<Record> = Vec::new();
        for Change { is_free, record } in &self.changes[..changes] {
            if *is_free {
                live.retain(|other| !other.is(record));
            } else {
                live.push(record.clone());
            }
        }
        live
    }

    /// The state at the end, as a point.
    pub fn last(&self) -> Point {
        self.point("")
    }
}

impl Record {
    /// Whether this is the other one, at another time.
    pub fn is(&self, other: &Record) -> bool {
        (self.made, self.address, &self.space) == (other.made, other.address, &other.space)
    }
}

impl Point {
    /// Memory that is held, each byte once: the memory in which blocks of the program's allocators lie is not added to them.
    pub fn held(&self) -> Vec<&Record> {
        let is_behind = |record: &Record| {
            let range = record.address..record.address + record.bytes;
            // A block is no older than the memory that it lies in.
            let is_block = |block: &Record| {
                block.kind == Kind::Block && range.contains(&block.address) && block.made > record.made
            };
            let may_carry =
                [Kind::Device, Kind::Pitched, Kind::Async, Kind::Graph, Kind::Managed].contains(&record.kind);
            may_carry && self.live.iter().any(is_block)
        };
        let of_memory = self.live.iter().filter(|record| match record.kind.place() {
            Place::Device | Place::Managed => !is_behind(record),
            Place::Host | Place::Within => true,
            Place::Nowhere | Place::Segment | Place::Object => false,
        });
        of_memory.collect()
    }
}
