//! Converts memory snapshots of PyTorch (`torch.cuda.memory._dump_snapshot`) to snapshots of culeak.
//!
//! ```text
//! segment                     → device memory, allocated by PyTorch's caching allocator
//!   is_expandable             → the same as physical memory, and its mapping
//!   block, active_allocated   → tensor, with its stack if PyTorch recorded one
//! device_traces: alloc        → time of that tensor's allocation, and what the program said about it, as a frame
//!                annotate     → what the program said about it later
//!                oom          → a failed request
//! external_annotations        → marks
//! ```
//!
//! The allocators of PyTorch for other devices write the same format. [`Reader::package`] recognizes them.
//!
//! PyTorch does not record the memory of other libraries, the process, its peak, or the allocation time of blocks that have
//! left its history; a report of such a file says so. A freed block that waits for a stream is not a tensor; it counts as
//! cached.
//!
//! The file is untrusted. It is read by [`crate::pickle`], which runs no code, and each part may be used only once, since a
//! small file could otherwise cause unbounded work.

use std::collections::{BTreeMap, HashMap, HashSet};

use culeak::analysis::whatif::VARIABLE;
use culeak::kind::Kind;
use culeak::snapshot::{
    Allocation, Allocator, BY_BACKENDS, BY_PYTORCH, Call, Capture, Counter, Device, Gathering, Language, Location,
    Process, Snapshot, Stack, Stream, Symbol, Thread,
};

use crate::pickle::{self, Id, Pickle};

mod history;

use history::History;
pub use history::{COMPILED, REPLACED, SAID};

/// The innermost frame of a segment's stack, since Python's frames alone do not show that the allocator holds the memory.
pub(super) const CACHE: &str = "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::(a segment)";
/// The variable with the settings of the allocators for all devices; that for CUDA has [`VARIABLE`].
const ANY_DEVICE: &str = "PYTORCH_ALLOC_CONF";
/// Packages with an allocator of their own, its name, and texts that only their snapshots contain.
const PACKAGES: [(&str, &str, &[&str]); 3] = [
    (BY_BACKENDS[0], "XPUCachingAllocator", &["c10::xpu::", "/torch/xpu/"]),
    (
        BY_BACKENDS[1],
        "NPUCachingAllocator",
        &[
            "c10_npu::",
            "/torch_npu/",
            "PYTORCH_NPU_ALLOC_CONF",
            "workspace_snapshot",
        ],
    ),
    (
        BY_BACKENDS[2],
        "NeuronCachingAllocator",
        &["/torch_neuronx/", "NeuronCachingAllocator"],
    ),
];
/// More GPUs than any machine has; a higher ordinal means a damaged file.
const DEVICES: u64 = 1024;

/// Reads the bytes of such a file.
///
/// # Errors
/// A description of what is wrong with the file.
pub fn read(bytes: &[u8], shown: &str) -> Result<Snapshot, String> {
    let pickle = pickle::read(bytes)
        .map_err(|error| format!("a damaged pickle, or not a memory snapshot: {error}; take it again"))?;
    let mut reader = Reader {
        pickle: &pickle,
        used: HashSet::new(),
        snapshot: empty(shown),
        gathering: Gathering::default(),
        devices: BTreeMap::new(),
        locations: HashMap::new(),
        frames: HashMap::new(),
        stacks: HashMap::new(),
        lists: HashMap::new(),
        cache: None,
        cached: HashMap::new(),
        package: None,
        labelled: 0,
    };
    reader.all()?;
    Ok(reader.finish())
}

struct Reader<'p, 'i> {
    pickle: &'p Pickle<'i>,
    /// Lists and dictionaries that have been read.
    used: HashSet<Id>,
    snapshot: Snapshot,
    gathering: Gathering,
    /// Index of the device in the snapshot, by ordinal.
    devices: BTreeMap<u64, usize>,
    locations: HashMap<(&'i str, &'i str, u64), usize>,
    /// The location of a frame, and the stack of a list of frames; PyTorch writes equal values once.
    frames: HashMap<Id, usize>,
    stacks: HashMap<Vec<usize>, usize>,
    lists: HashMap<Id, Option<usize>>,
    /// The location of the caching allocator, and its stacks by the stack that called it.
    cache: Option<usize>,
    cached: HashMap<Option<Id>, usize>,
    /// The package of the allocator, if its memory is not CUDA's.
    package: Option<&'static str>,
    /// Frames of stacks with labels.
    labelled: usize,
}

impl<'i> Reader<'_, 'i> {
    fn all(&mut self) -> Result<(), String> {
        let root = self.pickle.root();
        let (segments, traces) = match self.pickle.get(root, "segments") {
            Some(segments) => (segments, self.pickle.get(root, "device_traces")),
            // Older snapshots consist of the list of segments.
            None if self.pickle.items(root).is_some() => (root, None),
            None => {
                return Err(
                    "a pickle, but not a memory snapshot of PyTorch (it has no `segments`); \
                            torch.cuda.memory._dump_snapshot writes one"
                        .to_owned(),
                );
            }
        };
        // It decides about the size of pages.
        let settings = self.pickle.get(root, "allocator_settings");
        for variable in [VARIABLE, ANY_DEVICE] {
            if let Some(text) = settings.and_then(|settings| self.text(settings, variable)) {
                let ranks = &mut self.snapshot.process.ranks;
                ranks.insert(variable.to_owned(), shortened(text));
            }
        }
        self.package = self.package(settings);
        let made = self.history(traces)?;
        if let Some(annotations) = self.pickle.get(root, "external_annotations") {
            self.annotations(annotations)?;
        }
        for segment in self.list(segments, "segments")? {
            self.segment(segment, &made)?;
        }
        Ok(())
    }

    /// The items of a list, which may be read only once.
    fn list(&mut self, id: Id, what: &str) -> Result<Vec<Id>, String> {
        let items = self
            .pickle
            .items(id)
            .ok_or_else(|| format!("a damaged memory snapshot: `{what}` is not a list; take it again"))?;
        let items = items.to_vec();
        self.once(id, what)?;
        Ok(items)
    }

    fn once(&mut self, id: Id, what: &str) -> Result<(), String> {
        let first = self.used.insert(id);
        first
            .then_some(())
            .ok_or_else(|| format!("a damaged memory snapshot: it contains the same `{what}` twice; take it again"))
    }

    fn number(&self, record: Id, name: &str) -> Option<u64> {
        self.pickle.number(self.pickle.get(record, name)?)
    }

    fn needed(&self, record: Id, name: &str, what: &str) -> Result<u64, String> {
        let found = self.number(record, name);
        found.ok_or_else(|| format!("a damaged memory snapshot: a {what} without `{name}`; take it again"))
    }

    fn text(&self, record: Id, name: &str) -> Option<&'i str> {
        self.pickle.text(self.pickle.get(record, name)?)
    }

    /// The package that took the snapshot, which the format does not name; `None`: PyTorch's own, of CUDA's memory.
    fn package(&self, settings: Option<Id>) -> Option<&'static str> {
        let has = |name| settings.is_some_and(|settings| self.pickle.get(settings, name).is_some());
        match (has(VARIABLE), has(ANY_DEVICE)) {
            (true, _) => None,
            (_, true) => Some(PACKAGES[0].0),
            _ => self.pickle.texts().find_map(|text| {
                let is_of = |part: &&str| text.contains(part);
                PACKAGES
                    .iter()
                    .find(|(_, _, parts)| parts.iter().any(is_of))
                    .map(|package| package.0)
            }),
        }
    }

    fn allocator(&self) -> &'static str {
        let found = PACKAGES.iter().find(|package| Some(package.0) == self.package);
        found.map_or("CUDACachingAllocator", |package| package.1)
    }

    fn device(&mut self, ordinal: u64) -> Result<usize, String> {
        if ordinal >= DEVICES {
            return Err(format!(
                "a damaged memory snapshot: it names GPU {ordinal}; take it again"
            ));
        }
        let devices = &mut self.snapshot.devices;
        Ok(*self.devices.entry(ordinal).or_insert_with(|| {
            devices.push(Device {
                ordinal: ordinal as i32,
                uuid: String::new(),
                name: String::new(),
            });
            devices.len() - 1
        }))
    }

    fn segment(&mut self, segment: Id, made: &History) -> Result<(), String> {
        self.once(segment, "segment")?;
        let ordinal = self.number(segment, "device").unwrap_or(0);
        let device = self.device(ordinal)?;
        let address = self.needed(segment, "address", "segment")?;
        let bytes = self.needed(segment, "total_size", "segment")?;
        let stack = self.cache_stack(segment)?;
        let call = Call {
            stream: self.stream(segment).or(Some(Stream::LegacyDefault)),
            pool: self.pool(segment),
            ..Call::new(Kind::Device, self.allocator(), Some(device), 0)
        };
        let tensor = Call {
            kind: Kind::Tensor,
            domain: Some("pytorch".to_owned()),
            ..call.clone()
        };
        let is_expandable = self.pickle.get(segment, "is_expandable");
        let calls = match is_expandable.and_then(|id| self.pickle.boolean(id)) {
            Some(true) => expandable(&call).into(),
            _ => vec![call],
        };
        for call in &calls {
            self.gathering.add(Allocation {
                address,
                bytes,
                requested: bytes,
                time_ns: 0,
                stack: Some(stack),
                call,
            });
        }
        let mut at = address;
        let blocks = self.pickle.get(segment, "blocks");
        let blocks = blocks.ok_or("a damaged memory snapshot: a segment without `blocks`; take it again")?;
        for block in self.list(blocks, "blocks")? {
            at = self.block(block, at, &tensor, ordinal, made)?;
        }
        Ok(())
    }

    /// A block that begins here, as releases that write no addresses have it; returns where the next one does.
    fn block(&mut self, block: Id, at: u64, tensor: &Call, ordinal: u64, made: &History) -> Result<u64, String> {
        self.once(block, "block")?;
        let size = self.needed(block, "size", "block")?;
        let address = self.number(block, "address").unwrap_or(at);
        let end = address.saturating_add(size);
        if self.text(block, "state") != Some("active_allocated") {
            return Ok(end);
        }
        let known = made.get(&(ordinal, address));
        let stack = match known.map_or(&[][..], |made| made.labels.as_slice()) {
            [] => self.stack_of(block)?,
            labels => self.labelled(block, labels)?,
        };
        self.gathering.add(Allocation {
            address,
            bytes: size,
            requested: self.number(block, "requested_size").unwrap_or(size),
            time_ns: known.map_or(0, |made| self.since_the_first(made.time_us.saturating_mul(1000))),
            stack,
            call: tensor,
        });
        Ok(end)
    }

    /// The stream of a segment, or of a request.
    fn stream(&self, record: Id) -> Option<Stream> {
        Some(match self.number(record, "stream")? {
            0 => Stream::LegacyDefault,
            handle => Stream::Handle(handle),
        })
    }

    /// The pool of a segment; 0: that of all requests outside private pools.
    fn pool(&self, segment: Id) -> Option<u64> {
        let [first, second] = self.pickle.items(self.pickle.get(segment, "segment_pool_id")?)? else {
            return None;
        };
        let number = |id: &Id| self.pickle.number(*id);
        Some(number(first)? << 32 | number(second)?)
    }

    /// The stack of a record, if PyTorch recorded one.
    fn stack_of(&mut self, record: Id) -> Result<Option<usize>, String> {
        match self.frames_of(record) {
            Some(frames) => self.stack(frames),
            None => Ok(None),
        }
    }

    /// The list of frames; before PyTorch 2.0 it is in the block's history.
    fn frames_of(&self, record: Id) -> Option<Id> {
        let old = || {
            let history = self.pickle.items(self.pickle.get(record, "history")?)?;
            self.pickle.get(*history.first()?, "frames")
        };
        self.pickle.get(record, "frames").or_else(old)
    }

    fn stack(&mut self, frames: Id) -> Result<Option<usize>, String> {
        if let Some(&known) = self.lists.get(&frames) {
            return Ok(known);
        }
        let locations = self.locations(frames)?;
        let stack = (!locations.is_empty()).then(|| self.interned(locations));
        self.lists.insert(frames, stack);
        Ok(stack)
    }

    fn locations(&mut self, frames: Id) -> Result<Vec<usize>, String> {
        let frames = self
            .pickle
            .items(frames)
            .ok_or("a damaged memory snapshot: `frames` is not a list; take it again")?;
        frames.iter().map(|&frame| self.location(frame)).collect()
    }

    fn interned(&mut self, frames: Vec<usize>) -> usize {
        let stacks = &mut self.snapshot.stacks;
        *self.stacks.entry(frames).or_insert_with_key(|frames| {
            stacks.push(Stack {
                frames: frames.clone(),
                truncated: false,
            });
            stacks.len() - 1
        })
    }

    /// A segment's stack, with the caching allocator as the innermost frame.
    fn cache_stack(&mut self, segment: Id) -> Result<usize, String> {
        let cache = *self.cache.get_or_insert_with(|| {
            self.snapshot.locations.push(named(CACHE, "", 0));
            self.snapshot.locations.len() - 1
        });
        let rest = self.frames_of(segment);
        if let Some(&known) = self.cached.get(&rest) {
            return Ok(known);
        }
        let mut frames = vec![cache];
        if let Some(rest) = rest {
            frames.extend(self.locations(rest)?);
        }
        let stack = self.interned(frames);
        self.cached.insert(rest, stack);
        Ok(stack)
    }

    fn location(&mut self, frame: Id) -> Result<usize, String> {
        if let Some(&known) = self.frames.get(&frame) {
            return Ok(known);
        }
        let (Some(name), Some(file)) = (self.text(frame, "name"), self.text(frame, "filename")) else {
            return Err("a damaged memory snapshot: a frame without `name` and `filename`; take it again".to_owned());
        };
        let line = self.number(frame, "line").unwrap_or(0);
        let locations = &mut self.snapshot.locations;
        let location = *self.locations.entry((name, file, line)).or_insert_with(|| {
            locations.push(named(name, file, line));
            locations.len() - 1
        });
        self.frames.insert(frame, location);
        Ok(location)
    }

    /// Makes times relative to the first event, and computes sums.
    fn finish(mut self) -> Snapshot {
        let snapshot = &mut self.snapshot;
        let began = snapshot.process.started_unix_ns;
        let since = |time: &mut u64| *time = time.saturating_sub(began);
        snapshot.taken.at_ns = snapshot.taken.at_unix_ns.saturating_sub(began);
        snapshot.marks.iter_mut().for_each(|mark| since(&mut mark.time_ns));
        for failed in &mut snapshot.failed {
            since(&mut failed.first_ns);
            since(&mut failed.last_ns);
        }
        snapshot.allocations = self.gathering.finish();
        if let Some(package) = self.package {
            let is_native =
                |location: &Location| location.language.is_native() && location.symbols[0].function != CACHE;
            let with = if snapshot.locations.iter().any(is_native) {
                "with"
            } else {
                "without"
            };
            snapshot.taken.by = format!("{package}, {with} native stacks");
        }
        sum_up(snapshot);
        self.snapshot
    }
}

/// The memory of an expandable segment, and its mapping.
pub(super) fn expandable(call: &Call) -> [Call; 2] {
    let of = |kind, mappings| Call {
        kind,
        mappings,
        ..call.clone()
    };
    [of(Kind::Physical, 1), of(Kind::Mapping, 0)]
}

/// The maximum length of a function name. A small file may refer to one name millions of times.
const LONGEST_NAME: usize = 1000;

/// A name, cut at the maximum length.
fn shortened(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}…", &name[..end]),
    }
}

/// A frame as a location. PyTorch does not record module and address.
pub(super) fn named(function: &str, file: &str, line: u64) -> Location {
    let python = file.ends_with(".py") || file.starts_with('<');
    // PyTorch writes "??" for an unknown file.
    let file = Some(file).filter(|file| !file.is_empty() && *file != "??");
    Location {
        module: None,
        address: 0,
        symbols: vec![Symbol {
            function: shortened(function),
            file: file.map(shortened),
            line: u32::try_from(line).ok().filter(|&line| line > 0 && file.is_some()),
            inlined: false,
        }],
        language: if python { Language::Python } else { Language::Native },
    }
}

/// Computes counters and PyTorch's sums from the live records.
fn sum_up(snapshot: &mut Snapshot) {
    let mut counters: BTreeMap<(Option<usize>, Kind), Counter> = BTreeMap::new();
    let mut allocators: BTreeMap<Option<usize>, Allocator> = BTreeMap::new();
    for allocation in &snapshot.allocations {
        let (device, kind, bytes) = (allocation.device, allocation.kind, allocation.bytes);
        let counter = counters.entry((device, kind)).or_insert_with(|| Counter {
            device,
            kind,
            live_bytes: 0,
            live_count: 0,
            peak_bytes: 0,
            peak_ns: 0,
            total_bytes: 0,
            total_count: 0,
            freed_count: 0,
            failed_count: 0,
        });
        for sum in [
            &mut counter.live_bytes,
            &mut counter.peak_bytes,
            &mut counter.total_bytes,
        ] {
            *sum = sum.saturating_add(bytes);
        }
        counter.live_count += 1;
        counter.total_count += 1;
        let allocator = allocators.entry(device).or_insert_with(|| Allocator {
            domain: "pytorch".to_owned(),
            device,
            live_bytes: 0,
            reserved_bytes: 0,
            events: 0,
            mismatches: 0,
            unseen_bytes: 0,
        });
        let sum = match kind {
            Kind::Tensor => &mut allocator.live_bytes,
            Kind::Mapping => continue,
            _ => &mut allocator.reserved_bytes,
        };
        *sum = sum.saturating_add(bytes);
    }
    snapshot.counters = counters.into_values().collect();
    snapshot.allocators = allocators.into_values().collect();
}

fn empty(shown: &str) -> Snapshot {
    Snapshot {
        taken: Capture {
            by: BY_PYTORCH.to_owned(),
            ..Capture::default()
        },
        process: Process {
            recording: shown.to_owned(),
            ..Process::default()
        },
        threads: vec![Thread::default()],
        ..Snapshot::empty()
    }
}

#[cfg(test)]
mod tests;
