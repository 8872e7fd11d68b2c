//! What a recording of a script means: a list of what is live, and sums. Deliberately plain, and without concurrency.
//!
//! It is told what the driver answered to each line, and says what follows from it: what is live, the sums by kind and device, and what
//! was live at each mark. Whether a call may succeed is the driver's business.

use std::collections::BTreeMap;

use culeak::kind::{Kind, Place};

use super::script::{Answer, Line};

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
    graphs: BTreeMap<u64, Graph>,
    execs: BTreeMap<u64, Vec<Step>>,
    /// The stream and the graph of its capture.
    captures: BTreeMap<u64, Vec<Step>>,
    pools: BTreeMap<i32, u64>,
    /// By device: the primary context.
    primaries: BTreeMap<i32, u64>,
    attached: BTreeMap<u64, u64>,
    values: BTreeMap<u64, u64>,
    line: usize,
    pub is_recording: bool,
}

/// The function that each verb calls, what it makes, and where.
fn making(verb: &str) -> Option<(Kind, Space, &'static str)> {
    use Kind::*;
    let object = |kind| Space::Object(kind);
    Some(match verb {
        "alloc" | "deep" => (Device, Space::Pointer, "cuMemAlloc_v2"),
        "alloc32" => (Device, Space::Pointer, "cuMemAlloc"),
        "pitch" => (Pitched, Space::Pointer, "cuMemAllocPitch_v2"),
        "managed" => (Managed, Space::Pointer, "cuMemAllocManaged"),
        "host" => (HostPinned, Space::Pointer, "cuMemHostAlloc"),
        "hostv2" => (HostPinned, Space::Pointer, "cuMemAllocHost_v2"),
        "register" => (HostRegistered, Space::Registered, "cuMemHostRegister_v2"),
        "array" => (Array, Space::Array, "cuArrayCreate_v2"),
        "array3d" => (Array, Space::Array, "cuArray3DCreate_v2"),
        "mipmap" => (Mipmapped, Space::Array, "cuMipmappedArrayCreate"),
        "async" => (Async, Space::Pointer, "cuMemAllocAsync"),
        "asyncptsz" => (Async, Space::Pointer, "cuMemAllocAsync_ptsz"),
        "frompool" => (Async, Space::Pointer, "cuMemAllocFromPoolAsync"),
        "pool" => (Pool, Space::Pool, "cuMemPoolCreate"),
        "reserve" => (Reserved, Space::Reserved, "cuMemAddressReserve"),
        "physical" => (Physical, Space::Physical, "cuMemCreate"),
        "map" => (Mapping, Space::Mapping, "cuMemMap"),
        "import" => (Imported, Space::Physical, "cuMemImportFromShareableHandle"),
        "multicast" => (Multicast, Space::Physical, "cuMulticastCreate"),
        "external" => (External, Space::External, "cuImportExternalMemory"),
        "external_map" => (ExternalMapping, Space::Pointer, "cuExternalMemoryGetMappedBuffer"),
        "graph" => (GraphObject, object(GraphObject), "cuGraphCreate"),
        "endcapture" => (GraphObject, object(GraphObject), "cuStreamEndCapture"),
        "instantiate" => (GraphExec, object(GraphExec), "cuGraphInstantiateWithFlags"),
        "context" => (Context, object(Context), "cuCtxCreate_v2"),
        "stream" => (Stream, object(Stream), "cuStreamCreate"),
        "event" => (Event, object(Event), "cuEventCreate"),
        "module" => (Module, object(Module), "cuModuleLoadData"),
        "library" => (Library, object(Library), "cuLibraryLoadData"),
        "userobject" => (UserObject, object(UserObject), "cuUserObjectCreate"),
        "texture" => (Texture, object(Texture), "cuTexObjectCreate"),
        _ => return None,
    })
}

/// What each verb frees whose first argument is an address or handle.
fn freeing(verb: &str) -> Option<Space> {
    use Kind::*;
    Some(match verb {
        "free" | "freehost" => Space::Pointer,
        "unregister" => Space::Registered,
        "freearray" | "freemipmap" => Space::Array,
        "freepool" => Space::Pool,
        "unreserve" => Space::Reserved,
        "freeexternal" => Space::External,
        "freestream" => Space::Object(Stream),
        "freeevent" => Space::Object(Event),
        "unload" => Space::Object(Module),
        "unloadlibrary" => Space::Object(Library),
        "freetexture" => Space::Object(Texture),
        "freeexec" => Space::Object(GraphExec),
        "freegraph" => Space::Object(GraphObject),
        _ => return None,
    })
}

const STEP: u64 = 512;
const OUT_OF_MEMORY: i32 = 2;
const PER_THREAD: u64 = 2;

fn is_freed_with_context(kind: Kind) -> bool {
    use Kind::*;
    let survives = [
        UserObject,
        Async,
        Physical,
        HostPhysical,
        Graph,
        Pool,
        Reserved,
        Mapping,
        Imported,
        Multicast,
        Library,
        GraphObject,
        GraphExec,
        Context,
        Block,
    ];
    !survives.contains(&kind)
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
        self.is_recording |=
            ["mark", "begin", "snapshot", "interval", "block", "blocks", "churn"].contains(&&*line.verb);
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
            "capture" if succeeded => drop(self.captures.insert(self.value(line, 0), Vec::new())),
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

    fn record(
        &self,
        line: &Line,
        answer: Answer,
        (kind, space, api): (Kind, Space, &'static str),
        bytes: u64,
        requested: u64,
    ) -> Record {
        Record {
            made: self.line,
            space,
            address: answer.value,
            kind,
            bytes,
            requested,
            device: answer.device,
            // A context that was destroyed may still be current.
            context: answer.device.map_or(0, |_| answer.context),
            site: line.site,
            thread: answer.thread,
            api,
            domain: None,
            is_of_several: line.verb == "blocks",
            stream: None,
            pool: None,
            references: 0,
            mappings: 0,
            behind: None,
        }
    }

    fn allocate(&mut self, line: &Line, answer: Answer, what: (Kind, Space, &'static str)) {
        let number = |index: usize| line.arguments.get(index).copied().unwrap_or(0) as u64;
        let succeeded = answer.result == 0;
        let known = succeeded || answer.result == OUT_OF_MEMORY;
        let texels = |levels: u64| -> u64 {
            let at = |size: u64, level: u64| (size >> level).max(1);
            let longest = number(0).max(number(1)).max(1);
            let levels = levels.clamp(1, u64::from(longest.ilog2()) + 1);
            (0..levels)
                .map(|level| at(number(0), level) * at(number(1), level))
                .sum()
        };
        let (bytes, requested) = match &*line.verb {
            "pitch" if succeeded => (answer.detail * number(1), number(0) * number(1)),
            "pitch" => (number(0) * number(1), number(0) * number(1)),
            "array" if known => (texels(1) * 4 * number(2), texels(1) * 4 * number(2)),
            "array3d" if known => {
                let bytes = [number(0), number(1), number(2)]
                    .map(|side| side.max(1))
                    .iter()
                    .product();
                (bytes, bytes)
            }
            "mipmap" if known => (texels(number(2)) * 4, texels(number(2)) * 4),
            "array" | "array3d" | "mipmap" => (0, 0),
            "reserve" | "multicast" if known => (0, number(0)),
            "external" if known => (0, number(0)),
            "external_map" if known => (0, number(1)),
            "map" => (0, number(2)),
            "register" => (number(1), number(1)),
            "alloc" | "alloc32" | "deep" | "managed" | "host" | "hostv2" | "async" | "asyncptsz" | "frompool"
            | "physical" => (number(0), number(0)),
            _ => (0, 0),
        };
        let (kind, space, api) = what;
        let kind = match kind {
            Kind::Physical if known && number(1) != 1 => Kind::HostPhysical,
            kind => kind,
        };
        let mut record = self.record(line, answer, (kind, space, api), bytes, requested);
        match &*line.verb {
            "reserve" | "multicast" => record.device = None,
            "physical" => record.device = (known && number(1) == 1).then_some(number(2) as i32),
            "pool" => record.device = known.then_some(number(0) as i32),
            "context" => record.device = Some(number(0) as i32),
            "async" | "asyncptsz" | "frompool" => {
                let stream = self.value(line, 1);
                record.stream = Some(if stream == 0 && line.verb == "asyncptsz" {
                    PER_THREAD
                } else {
                    stream
                });
                let pool = match &*line.verb {
                    "frompool" => self.value(line, 2),
                    _ => answer
                        .device
                        .and_then(|device| self.pools.get(&device).copied())
                        .unwrap_or(0),
                };
                record.pool = Some(pool).filter(|pool| *pool != 0);
                let of_pool = self.find(&Space::Pool, pool);
                if let Some(of_pool) = of_pool {
                    record.device = self.live[of_pool].device;
                }
                if let Some(steps) = self
                    .captures
                    .get_mut(&stream)
                    .filter(|_| succeeded && answer.value != 0)
                {
                    let record = Record {
                        kind: Kind::Graph,
                        stream: None,
                        pool: None,
                        device: answer.device,
                        ..record
                    };
                    steps.push(Step::Allocates(record));
                    return;
                }
            }
            _ => {}
        }
        if !succeeded {
            if line.verb == "endcapture" {
                self.captures.remove(&self.value(line, 0));
            }
            // The detail of an import: nothing was exported, so nothing was to be imported.
            if line.verb != "map"
                && answer.detail == 0
                && (kind.place() != Place::Object || answer.result == OUT_OF_MEMORY)
            {
                self.is_recording = true;
                *self
                    .failed
                    .entry((record.site, kind, record.device, bytes, answer.result))
                    .or_default() += 1;
                self.sums.entry((record.device, kind)).or_default().failed_count += 1;
            }
            return;
        }
        if answer.value == 0 {
            return;
        }
        match &*line.verb {
            "physical" | "multicast" => record.references = 1,
            "userobject" => record.references = number(0) as u32,
            "import" => {
                if let Some(known) = self.physical(answer.value) {
                    self.live[known].references += 1;
                    return;
                }
                record.references = 1;
            }
            "map" => {
                if let Some(memory) = self.mapped(self.value(line, 3)) {
                    self.live[memory].mappings += 1;
                    record.device = self.live[memory].device;
                    record.behind = Some(self.live[memory].made);
                }
            }
            "endcapture" => {
                let steps = self.captures.remove(&self.value(line, 0)).unwrap_or_default();
                self.graphs.insert(answer.value, Graph { steps });
            }
            "instantiate" => {
                let graph = self.graphs.get(&self.value(line, 0));
                self.execs
                    .insert(answer.value, graph.map_or(Vec::new(), |graph| graph.steps.clone()));
            }
            "graph" => drop(self.graphs.insert(answer.value, Graph::default())),
            _ => {}
        }
        self.begin(record);
    }

    fn allocate_blocks(&mut self, line: &Line, answer: Answer) {
        let number = |index: usize| line.arguments.get(index).copied().unwrap_or(0) as u64;
        let (count, bytes) = if line.verb == "blocks" {
            (number(1), number(2))
        } else {
            (1, number(2))
        };
        for nth in 0..count {
            let address = answer.value + nth * STEP;
            let space = Space::Block(line.name.clone());
            // The allocator handed it out again: it was freed before.
            if let Some(stale) = self.find(&space, address) {
                self.end(stale);
                self.losses.vanished += 1;
            }
            let record = self.record(line, answer, (Kind::Block, space, "culeak_alloc"), bytes, bytes);
            self.begin(Record {
                address,
                domain: Some(line.name.clone()),
                stream: Some(0),
                ..record
            });
        }
    }

    fn free_block(&mut self, domain: &str, address: u64) {
        match self.find(&Space::Block(domain.to_owned()), address) {
            Some(live) => self.end(live),
            None => self.losses.unknown_blocks += u64::from(self.is_recording),
        }
    }

    /// A record of this address.
    pub fn find(&self, space: &Space, address: u64) -> Option<usize> {
        self.live
            .iter()
            .position(|record| record.space == *space && record.address == address)
    }

    /// Physical memory whose handle the program may use.
    fn physical(&self, handle: u64) -> Option<usize> {
        let fits =
            |record: &Record| record.space == Space::Physical && record.address == handle && record.references > 0;
        self.live.iter().position(fits)
    }

    /// Physical memory with this handle, which may have been released while it is mapped.
    fn mapped(&self, handle: u64) -> Option<usize> {
        self.find(&Space::Physical, handle)
    }

    fn begin(&mut self, record: Record) {
        // Private tables of the driver destroy objects too, so a handle that is handed out again is that of another object.
        let is_object = matches!(record.space, Space::Object(_));
        if let Some(gone) = self.find(&record.space, record.address).filter(|_| is_object) {
            self.end(gone);
        }
        let sums = self.sums.entry((record.device, record.kind)).or_default();
        sums.total_bytes += record.bytes;
        sums.total_count += 1;
        sums.live_bytes += record.bytes;
        sums.live_count += 1;
        sums.peak_bytes = sums.peak_bytes.max(sums.live_bytes);
        let on_device = record.device.filter(|_| record.kind.place().on_device());
        self.changes.push(Change {
            is_free: false,
            record: record.clone(),
        });
        let bytes = record.bytes;
        self.live.push(record);
        if let Some(device) = on_device {
            let (live, peak) = self.devices.entry(device).or_default();
            *live += bytes;
            if *live > *peak {
                *peak = *live;
                self.at_peaks.insert(device, self.live.clone());
            }
        }
    }

    fn end(&mut self, index: usize) {
        let record = self.live.remove(index);
        let sums = self.sums.entry((record.device, record.kind)).or_default();
        sums.freed_count += 1;
        sums.live_bytes -= record.bytes;
        sums.live_count -= 1;
        if let Some(device) = record.device.filter(|_| record.kind.place().on_device()) {
            self.devices.entry(device).or_default().0 -= record.bytes;
        }
        self.changes.push(Change { is_free: true, record });
    }

    fn free(&mut self, space: Space, address: u64, succeeded: bool) {
        let is_object = matches!(space, Space::Object(_));
        match (self.find(&space, address), succeeded) {
            (Some(live), true) => self.end(live),
            _ if !self.is_recording => {}
            (Some(_), false) => self.losses.failed_frees += 1,
            // Objects are created by private tables, too.
            (None, _) if is_object => {}
            (None, true) if address != 0 => self.losses.unknown_frees += 1,
            (None, true) => {}
            (None, false) => self.losses.failed_frees += 1,
        }
    }

    fn free_async(&mut self, line: &Line, succeeded: bool) {
        let (address, stream) = (self.value(line, 0), self.value(line, 1));
        match self.captures.get_mut(&stream) {
            Some(steps) if succeeded && address != 0 => steps.push(Step::Frees(address)),
            Some(_) => {}
            None => self.free(Space::Pointer, address, succeeded),
        }
    }

    fn add_step(&mut self, graph: u64, step: Step) {
        self.graphs.entry(graph).or_default().steps.push(step);
    }

    /// What the graph allocates and does not free is allocated, then what it frees and does not allocate is freed.
    fn launch(&mut self, exec: u64) {
        let steps = self.execs.get(&exec).cloned().unwrap_or_default();
        let mut left: Vec<Record> = Vec::new();
        let mut freed: Vec<u64> = Vec::new();
        for step in steps {
            match step {
                Step::Allocates(record) => left.push(record),
                Step::Frees(address) => match left.iter().position(|record| record.address == address) {
                    Some(own) => drop(left.remove(own)),
                    None => freed.push(address),
                },
            }
        }
        for record in left {
            // A relaunch frees what the last one left.
            if let Some(live) = self.find(&Space::Pointer, record.address) {
                self.end(live);
                self.losses.implicit_frees += 1;
            }
            self.begin(Record {
                made: self.line,
                ..record
            });
        }
        for address in freed {
            if let Some(live) = self.find(&Space::Pointer, address) {
                self.end(live);
            }
        }
    }

    fn release(&mut self, handle: u64, succeeded: bool) {
        match (self.physical(handle), succeeded) {
            (Some(memory), true) => {
                self.live[memory].references -= 1;
                self.end_unused(memory);
            }
            _ if !self.is_recording => {}
            (_, false) => self.losses.failed_frees += 1,
            (None, true) => self.losses.unknown_frees += 1,
        }
    }

    /// The program gives up references to a user object.
    fn give_up(&mut self, handle: u64, count: u64, succeeded: bool) {
        let Some(object) = self.find(&Space::Object(Kind::UserObject), handle) else {
            return;
        };
        let left = self.live[object].references.saturating_sub(count as u32);
        if succeeded && left > 0 {
            self.live[object].references = left;
        } else if left == 0 {
            self.free(Space::Object(Kind::UserObject), handle, succeeded);
        }
    }

    fn retain(&mut self, handle: u64) {
        if let Some(memory) = self.mapped(handle) {
            self.live[memory].references += 1;
        }
    }

    fn unmap(&mut self, address: u64, bytes: u64) {
        let range = address..address + bytes;
        let fits = |record: &Record| record.space == Space::Mapping && range.contains(&record.address);
        if !self.live.iter().any(fits) {
            self.losses.unknown_frees += 1;
        }
        while let Some(mapping) = self.live.iter().position(fits) {
            let behind = self.live[mapping].behind;
            self.end(mapping);
            if let Some(memory) = self.live.iter().position(|record| Some(record.made) == behind) {
                self.live[memory].mappings -= 1;
                self.end_unused(memory);
            }
        }
    }

    fn end_unused(&mut self, memory: usize) {
        if self.live[memory].references == 0 && self.live[memory].mappings == 0 {
            self.end(memory);
        }
    }

    fn destroy_context(&mut self, context: u64, succeeded: bool) {
        self.free(Space::Object(Kind::Context), context, succeeded);
        if succeeded {
            self.attached.remove(&context);
            self.end_context(context);
        }
    }

    /// The references of the primary context stay.
    fn reset(&mut self, device: i32) {
        if let Some(&context) = self.primaries.get(&device) {
            self.end_context(context);
        }
    }

    fn end_context(&mut self, context: u64) {
        let fits = |record: &Record| record.context == context && is_freed_with_context(record.kind);
        while let Some(live) = self.live.iter().position(fits) {
            self.losses.implicit_frees += u64::from(self.live[live].kind.place() != Place::Object);
            self.end(live);
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

    /// The state at the end, as a point.
    pub fn last(&self) -> Point {
        self.point("")
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
