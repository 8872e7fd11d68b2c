//! A snapshot: what one process held at one instant, as plain data that any reader can use.
//!
//! It is what `culeak snapshot` writes as JSON (schema: `docs/snapshot.schema.json`) and what every report, diff and
//! check works on. Tables refer to each other by index (`stack`, `module`, `device` …), as in other profile formats,
//! so that 100,000 allocations with the same stack store that stack once. All times are nanoseconds since the
//! recording began (monotonic clock); all sizes are bytes.
//!
//! Deliberately absent: sums. A report computes them, so that they cannot disagree with the rows.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use crate::format::Reason;
use crate::kind::Kind;

pub(crate) mod allocations;
pub mod rows_apart;

pub use allocations::{Allocation, Allocations, Call, Gathering};

/// The value of [`Snapshot::format`].
pub const FORMAT: &str = "culeak-snapshot";
/// The value of [`Taken::by`] for what PyTorch's allocator told of itself, read as a snapshot of ours. Process, host and
/// everything beside that allocator are not known then, and the pid is 0.
pub const BY_PYTORCH: &str = "PyTorch";
/// The version that this build writes, and the only one that it reads.
pub const VERSION: u32 = 2;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Always [`FORMAT`].
    pub format: String,
    /// Version of this schema; readers refuse a newer one.
    pub version: u32,
    pub taken: Taken,
    pub process: Process,
    pub devices: Vec<Device>,
    pub contexts: Vec<Context>,
    pub threads: Vec<Thread>,
    pub modules: Vec<Module>,
    pub locations: Vec<Location>,
    pub stacks: Vec<Stack>,
    /// Live allocations, oldest first.
    pub allocations: Allocations,
    pub failed: Vec<Failed>,
    pub counters: Vec<Counter>,
    /// What was asked for at each stack since the recording began, largest first. Empty when nobody asked for it: it
    /// names stacks that hold nothing any more.
    #[serde(default)]
    pub totals: Vec<Total>,
    /// Exact peak per device, over all kinds that live on it.
    pub device_peaks: Vec<DevicePeak>,
    /// What PyTorch's caching allocator says of itself, beside what was recorded of it.
    #[serde(default)]
    pub allocators: Vec<Allocator>,
    /// Moments the program has named.
    #[serde(default)]
    pub marks: Vec<Mark>,
    /// What the driver said about the devices at the same moment, asked from outside; absent when nobody asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    pub losses: Losses,
}

/// When and how the snapshot was taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    /// Version of the culeak that took it.
    pub by: String,
    /// Wall clock, nanoseconds since 1970.
    pub at_unix_ns: u64,
    /// On the recording's own clock; ages are measured from here. For a finished process this is when it ended, if known.
    pub at_ns: u64,
    /// Events recorded while the snapshot was read. 0: exact. Otherwise the rows are those that were live during the whole read.
    pub events_during_read: u64,
    /// Records that were being freed when the process stopped or the snapshot was taken (withdrawn, outcome unknown).
    pub in_flight: u64,
    /// Why the recorder itself kept this snapshot while the program ran; absent for one that somebody asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic: Option<Automatic>,
}

/// A snapshot kept on disk by the recorder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Automatic {
    pub reason: Reason,
    /// As the program called the moment.
    pub name: Option<String>,
    /// Out of memory: index into `refused`, the request that failed.
    pub failed: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Its number where the snapshot was taken, if it runs there and has another one: it is in a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_here: Option<u32>,
    pub parent_pid: u32,
    pub executable: String,
    pub command_line: Vec<String>,
    pub host: String,
    /// RANK, LOCAL_RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK, PMI_RANK: those that were set.
    pub ranks: BTreeMap<String, String>,
    pub started_unix_ns: u64,
    pub state: ProcessState,
    /// Frames kept per stack at most.
    pub depth: u32,
    /// The recording this was read from.
    pub recording: String,
    /// The Python interpreter of the process; `None` when none was seen at an allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<Python>,
}

impl Process {
    /// The number by which to name it where the snapshot was taken.
    pub fn number(&self) -> u32 {
        self.pid_here.unwrap_or(self.pid)
    }
}

/// A CPython interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Python {
    /// `3.12.1`.
    pub version: String,
    /// Why stacks hold no Python frames; `None`: they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_frames: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// Still alive on this host.
    Running,
    /// Ran its exit handlers.
    Exited,
    /// Gone without exit handlers: `_exit`, a signal, exec, the OOM killer.
    Ended,
    /// Recorded on another host or in a container beside this one, whose processes are not visible here.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// CUDA's ordinal in that process (after CUDA_VISIBLE_DEVICES).
    pub ordinal: i32,
    /// `GPU-…` or `MIG-…` as nvidia-smi prints it; empty when the driver did not say.
    pub uuid: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Context {
    pub handle: u64,
    pub device: Option<usize>,
    pub primary: bool,
    pub first_seen_ns: u64,
    pub destroyed_ns: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Thread {
    pub tid: u32,
    pub name: String,
    pub first_seen_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Module {
    pub path: String,
    /// Lower-case hex; empty when the file has none.
    pub build_id: String,
    /// Load bias: runtime address minus the address in the ELF file.
    pub bias: u64,
    /// Lowest and one past the highest runtime address.
    pub start: u64,
    pub end: u64,
    pub first_seen_ns: u64,
    pub unloaded_ns: Option<u64>,
}

/// One code address. `symbols` is empty until someone resolved it; several entries are inlined calls, innermost first.
/// Python's frames need no resolving: they have no module and exactly one symbol, with file and line.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location {
    pub module: Option<usize>,
    /// The return address as an address in the module's ELF file (runtime address minus bias); without a module, the runtime address.
    /// Of a Python frame: the offset of the instruction in its function.
    pub address: u64,
    #[serde(default)]
    pub symbols: Vec<Symbol>,
    #[serde(default, skip_serializing_if = "Language::is_native")]
    pub language: Language,
}

/// What a frame's code was written for: the machine, or an interpreter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    #[default]
    Native,
    Python,
}

impl Language {
    pub fn is_native(&self) -> bool {
        *self == Language::Native
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Symbol {
    /// Demangled.
    pub function: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// True for a call the compiler inlined into the next entry.
    pub inlined: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stack {
    /// Indices into `locations`, innermost (nearest the CUDA call) first.
    pub frames: Vec<usize>,
    /// The walk stopped before the thread's first function: depth limit or missing unwind information.
    pub truncated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// The NULL stream with legacy semantics.
    LegacyDefault,
    /// The NULL stream of a per-thread-default-stream build, or CU_STREAM_PER_THREAD.
    PerThreadDefault,
    Handle(u64),
}

/// Allocation calls that failed. Equal ones are one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    pub bytes: u64,
    pub count: u64,
    pub kind: Kind,
    pub api: String,
    pub device: Option<usize>,
    /// The CUresult, e.g. 2 for CUDA_ERROR_OUT_OF_MEMORY.
    pub error: i32,
    pub thread: usize,
    pub stack: Option<usize>,
    pub first_ns: u64,
    pub last_ns: u64,
}

/// What was asked for at one stack, of one kind on one device, since the recording began: freed since or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    pub stack: Option<usize>,
    pub kind: Kind,
    pub device: Option<usize>,
    pub bytes: u64,
    pub count: u64,
}

/// What happened to one kind of memory on one device since the recording began, freed memory included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    pub device: Option<usize>,
    pub kind: Kind,
    pub live_bytes: u64,
    pub live_count: u64,
    pub peak_bytes: u64,
    pub total_bytes: u64,
    pub total_count: u64,
    pub freed_count: u64,
    pub failed_count: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DevicePeak {
    pub device: usize,
    pub peak_bytes: u64,
}

/// A framework's allocator on one device, by its own account. It tells its sums with every block it hands out or takes
/// back, so what was recorded can be checked against them each time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocator {
    pub domain: String,
    pub device: Option<usize>,
    /// Bytes in live blocks, as it said last.
    pub live_bytes: u64,
    /// Bytes it held from the driver, as it said last: live blocks and cached memory.
    pub reserved_bytes: u64,
    /// Blocks handed out or taken back.
    pub events: u64,
    /// Events after which the recorded bytes and its own differed.
    pub mismatches: u64,
    /// Bytes in blocks it had handed out before the first event seen.
    pub unseen_bytes: u64,
}

/// The driver's own account of the devices. No recording holds it: whoever took the snapshot of a running process asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Who was asked: `NVML 580.65.06`.
    pub source: String,
    pub devices: Vec<DeviceUsage>,
    /// Why a device is missing above, or all are, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUsage {
    pub device: usize,
    pub total_bytes: u64,
    /// In use by anybody, without what the driver keeps for itself.
    pub used_bytes: u64,
    /// What the driver keeps for itself.
    pub reserved_bytes: u64,
    /// What the driver counts for this process; `None` when it does not know the process by its number (containers).
    pub process_bytes: Option<u64>,
    /// What it counts for all other processes, and how many they are; `None` when it does not say of each.
    pub others: Option<OtherProcesses>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherProcesses {
    pub bytes: u64,
    pub count: u64,
}

/// A moment the program has named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    pub time_ns: u64,
    pub name: String,
    pub thread: usize,
}

/// What the recorder could not see or keep. Every field is printed, zeros too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// Allocations that could not be recorded (full disk, quota, file-size limit).
    pub lost_allocations: u64,
    /// Allocations recorded without their stack.
    pub lost_stacks: u64,
    /// Stacks of which some or all Python frames could not be read or kept.
    #[serde(default)]
    pub lost_python: u64,
    /// Modules, threads, devices or contexts that could not be recorded.
    pub lost_details: u64,
    /// Frees of pointers never seen allocated.
    pub unknown_frees: u64,
    /// Addresses handed out again without a free we saw.
    pub vanished: u64,
    /// Frees the driver refused; the record was restored.
    pub failed_frees: u64,
    /// Frees answered with error 4 (driver shutting down): counted as freed.
    pub teardown_frees: u64,
    /// Records freed implicitly (context destroyed, device reset, auto-free relaunch).
    pub implicit_frees: u64,
    /// Allocation nodes captured into graphs that were never launched (0 bytes live).
    pub captured_not_launched: u64,
    /// Private driver tables asked for (cuGetExportTable); what flows through them is invisible.
    pub export_tables: u64,
    /// Allocator-like driver functions handed to the program unhooked.
    pub unhooked: Vec<String>,
    /// Frees of framework blocks never seen handed out.
    #[serde(default)]
    pub unknown_blocks: u64,
    /// Snapshots that should have been kept on disk and could not be (no space, or one was being written).
    #[serde(default)]
    pub lost_snapshots: u64,
    /// Time spent in the recorder, estimated from a sample.
    pub recorder_ns: u64,
    /// Allocations and frees seen.
    pub events: u64,
}

/// A longer stack than any program has; what reads them may take time and memory for each frame.
pub(crate) const FRAMES_MAX: usize = 1 << 16;
/// All stacks of a snapshot together, inlined calls too. A small file could say that a million stacks share a long one.
pub(crate) const FRAMES_IN_ALL: usize = if cfg!(test) { 1 << 18 } else { 1 << 25 };
/// Inlined calls of an address, on average over all stacks, where there are very many.
const INLINED: usize = 6;
/// Where the average does not matter yet.
const FEW: usize = 1 << 18;

impl Snapshot {
    /// Checks every index, so that code behind this can use them without looking, and that stacks are no larger than any
    /// program's.
    ///
    /// # Errors
    /// Names the first row that points outside its table, or what is too large.
    pub fn validate(&self) -> Result<(), String> {
        let within = |what: &str, row: usize, index: usize, len: usize| {
            if index < len {
                Ok(())
            } else {
                Err(format!("{what} of row {row} is {index}, but that table has {len} rows"))
            }
        };
        let optional = |what: &str, row: usize, index: Option<usize>, len: usize| {
            index.map_or(Ok(()), |index| within(what, row, index, len))
        };
        for (row, context) in self.contexts.iter().enumerate() {
            optional("contexts: device", row, context.device, self.devices.len())?;
        }
        for (row, location) in self.locations.iter().enumerate() {
            optional("locations: module", row, location.module, self.modules.len())?;
            if location.language == Language::Python && (location.module.is_some() || location.symbols.len() != 1) {
                return Err(format!(
                    "locations: row {row} is Python and has a module, or not exactly one symbol"
                ));
            }
        }
        let (mut in_all, mut addresses) = (0, 0);
        for (row, stack) in self.stacks.iter().enumerate() {
            let mut frames = 0;
            for &frame in &stack.frames {
                within("stacks: frame", row, frame, self.locations.len())?;
                frames += self.locations[frame].symbols.len().max(1);
            }
            in_all += frames;
            addresses += stack.frames.len();
            if frames > FRAMES_MAX {
                return Err(format!(
                    "stacks: row {row} has {frames} frames, more than any program's"
                ));
            }
            if in_all > FRAMES_IN_ALL {
                return Err(format!("stacks: more than {FRAMES_IN_ALL} frames in all"));
            }
        }
        // An address is a few bytes of a file, and could stand for thousands of calls.
        if in_all > FEW + INLINED * addresses {
            return Err(format!(
                "stacks: {addresses} addresses stand for {in_all} frames, more inlined calls than any program's"
            ));
        }
        for (row, call) in self.allocations.calls.iter().enumerate() {
            optional("calls: device", row, call.device, self.devices.len())?;
            optional("calls: context", row, call.context, self.contexts.len())?;
            within("calls: thread", row, call.thread, self.threads.len())?;
        }
        let calls = self.allocations.calls.len();
        for (row, a) in self.allocations.rows.iter().enumerate() {
            within("allocations: call", row, a.call as usize, calls)?;
            optional(
                "allocations: stack",
                row,
                allocations::stack_of(a.stack),
                self.stacks.len(),
            )?;
        }
        for (row, r) in self.failed.iter().enumerate() {
            optional("refused: device", row, r.device, self.devices.len())?;
            optional("refused: stack", row, r.stack, self.stacks.len())?;
            within("refused: thread", row, r.thread, self.threads.len())?;
        }
        for (row, c) in self.counters.iter().enumerate() {
            optional("counters: device", row, c.device, self.devices.len())?;
        }
        for (row, t) in self.totals.iter().enumerate() {
            optional("totals: device", row, t.device, self.devices.len())?;
            optional("totals: stack", row, t.stack, self.stacks.len())?;
        }
        for (row, a) in self.allocators.iter().enumerate() {
            optional("allocators: device", row, a.device, self.devices.len())?;
        }
        for (row, usage) in self.usage.iter().flat_map(|usage| &usage.devices).enumerate() {
            within("usage: device", row, usage.device, self.devices.len())?;
        }
        for (row, mark) in self.marks.iter().enumerate() {
            within("marks: thread", row, mark.thread, self.threads.len())?;
        }
        let failed = self.taken.automatic.as_ref().and_then(|kept| kept.failed);
        optional("taken.automatic: failed", 0, failed, self.failed.len())?;
        for (row, p) in self.device_peaks.iter().enumerate() {
            within("device_peaks: device", row, p.device, self.devices.len())?;
        }
        Ok(())
    }
}
