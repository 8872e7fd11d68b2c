//! A snapshot: the memory that one process held at one instant, as plain tables.
//!
//! `culeak snapshot` writes it as JSON (schema: `docs/snapshot.schema.json`), and every report, diff and check is
//! computed from it. Tables refer to each other by index (`stack`, `module`, `device` …), as in other profile formats,
//! so 100,000 allocations with the same stack store that stack once. All times are nanoseconds since the recording
//! began (monotonic clock). All sizes are bytes.
//!
//! Deliberately absent: sums. A report computes them, so they cannot contradict the rows.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use crate::format::Reason;
use crate::kind::Kind;
use crate::named;
use crate::point::Point;

pub(crate) mod allocations;
mod as_memory;
pub(crate) mod at;
mod code;
mod holders;
mod losses;
mod object_counters;
mod pages;
pub mod streaming;
mod usage;
mod validate;

pub use allocations::{Allocation, Allocations, Call, Gathering};
pub use at::PointError;
pub use code::{GRADIENT_NEAR, GRADIENT_OF, Language, Location, Module, Stack, Symbol, gradient_of};
pub use holders::{
    Class, HeldBlock, HeldTensor, HolderPath, Holders, HostMemory, HostRow, OwnerModule, Retainer, RootKind, Search,
    Step, Stop, change_retained,
};
pub use losses::Losses;
pub use pages::{PageOwner, PagePool, Pages};
pub use usage::{DeviceUsage, GroupLimits, OtherProcesses, Usage};
pub(crate) use validate::FRAMES_IN_ALL;

/// The value of [`Snapshot::format`].
pub const FORMAT: &str = "culeak-snapshot";
/// The value of [`Capture::by`] for a snapshot that PyTorch took of its own allocator and that was converted. It covers
/// only that allocator: process and host are unknown, and the pid is 0.
pub const BY_PYTORCH: &str = "PyTorch";
/// The values of [`Capture::by`] for such a snapshot of memory that is not CUDA's begin with one of these: the package that took it. Behind
/// it is whether the stacks have native frames.
pub const BY_BACKENDS: [&str; 3] = ["torch.xpu", "torch_npu", "torch_neuronx"];
/// The value of [`Capture::by`] for a process that was never recorded: the allocators of frameworks in it were read. It covers only the live blocks of
/// these, without stacks and times.
pub const BY_READING: &str = "the allocators of frameworks, read while they ran";
/// These frameworks.
pub const READABLE: &str = "PyTorch, JAX, CuPy, numba and RMM";
/// As above, of a process whose PyTorch was asked to keep its own history: of its allocator only, with the stacks of newer blocks.
pub const BY_HISTORY: &str = "PyTorch's own history, in a process that runs";
/// The version that this build writes, and the only one that it reads.
pub const VERSION: u32 = 2;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Snapshot {
    /// Always [`FORMAT`].
    pub format: String,
    /// Version of this schema; readers refuse any other.
    pub version: u32,
    pub taken: Capture,
    pub process: Process,
    /// GPUs that the process used.
    pub devices: Vec<Device>,
    /// CUDA contexts.
    pub contexts: Vec<Context>,
    /// Threads that requested memory.
    pub threads: Vec<Thread>,
    /// Executables and libraries.
    pub modules: Vec<Module>,
    /// Code addresses, and their names once they are symbolized.
    pub locations: Vec<Location>,
    /// Call stacks.
    pub stacks: Vec<Stack>,
    /// Live allocations, oldest first.
    pub allocations: Allocations,
    /// Objects without an address that exist, oldest first: streams, events, modules, graphs and others.
    #[serde(default, skip_serializing_if = "Allocations::is_empty")]
    pub objects: Allocations,
    /// Whether `objects` are all that the recorder knows; false if none were recorded, or none are known at this point.
    #[serde(default, skip_serializing_if = "is_default")]
    pub objects_known: bool,
    /// Objects that existed at [`Snapshot::end`] and were destroyed afterwards, oldest first.
    #[serde(default, skip_serializing_if = "Allocations::is_empty")]
    pub objects_freed_after_end: Allocations,
    /// Memory that the kernel driver gave to the process, oldest first.
    #[serde(default, skip_serializing_if = "Allocations::is_empty")]
    pub segments: Allocations,
    /// The same that was live at [`Snapshot::end`] and was given back afterwards, oldest first.
    #[serde(default, skip_serializing_if = "Allocations::is_empty")]
    pub segments_freed_after_end: Allocations,
    /// All memory on devices that the kernel driver gave at each stack since the recording began, largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segment_totals: Vec<Total>,
    /// The part that the process had when it had most of a device, largest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub segments_at_peaks: Vec<AtPeak>,
    /// Memory that was live at [`Snapshot::end`] and was freed afterwards, oldest first.
    #[serde(default, skip_serializing_if = "Allocations::is_empty")]
    pub freed_after_end: Allocations,
    /// If this shows the end: memory and objects that were allocated afterwards and never freed. Files do not have them.
    #[serde(skip)]
    pub allocated_after_end: Allocations,
    /// The end of the program's own work; `None` if the process has not reached it or ended without one (`_exit`, a
    /// signal, exec).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    pub failed: Vec<Failed>,
    /// How stacks were sampled; `None`: each allocation has its stack, unless that was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// Totals per device and kind, including freed memory.
    pub counters: Vec<Counter>,
    /// The same for objects and segments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub object_counters: Vec<Counter>,
    /// Everything requested at each stack since the recording began, largest first. Includes stacks that hold nothing
    /// any more. Empty unless the caller requested it.
    #[serde(default)]
    pub totals: Vec<Total>,
    /// Exact peak per device, over all kinds that live on it.
    pub device_peaks: Vec<DevicePeak>,
    /// The memory that was live at the peaks, largest first.
    #[serde(default)]
    pub at_peaks: Vec<AtPeak>,
    /// Named ranges of time, in order of their begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// The statistics that frameworks' allocators keep themselves, to compare the recorded blocks with.
    #[serde(default)]
    pub allocators: Vec<Allocator>,
    /// Pools of pages that the program reported by state, oldest first. They are not known at points before the end of its work.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub page_pools: Vec<PagePool>,
    /// The allocators that have reported blocks of their own, those without a live block included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
    /// Points in time that the program named.
    #[serde(default)]
    pub marks: Vec<Mark>,
    /// What the driver reported about the devices when the snapshot was taken; absent if it was not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// What keeps the allocations alive; absent unless it was searched for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holders: Option<Holders>,
    pub losses: Losses,
}

/// Whether a field has the value that it has when it is absent.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Stacks were taken for blocks chosen by chance ([`crate::sampling`]). `totals` and `at_peaks` are estimates then; counters and
/// peaks are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Sampling {
    /// The mean distance in bytes from one stack to the next.
    pub bytes: u64,
    /// The largest mean distance that a thread had, whose stacks would have been too many otherwise; 0: `bytes`.
    #[serde(default)]
    pub most_bytes: u64,
    /// Index into `stacks`: the empty stack of all allocations that were not chosen; `None`: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<usize>,
}

impl Sampling {
    /// The largest mean distance in bytes.
    pub fn most(&self) -> u64 {
        self.bytes.max(self.most_bytes)
    }

    /// The mean distance in bytes by which a block was chosen.
    pub fn of(&self, call: &Call) -> u64 {
        call.sample_bytes.unwrap_or(self.bytes)
    }
}

/// When and how the snapshot was taken.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Capture {
    /// Version of the culeak that took it.
    pub by: String,
    /// Wall clock, nanoseconds since 1970.
    pub at_unix_ns: u64,
    /// On the recording's own clock; ages are measured from here. For a finished process this is when it ended, if
    /// known.
    pub at_ns: u64,
    /// Events recorded while the snapshot was read. 0: the rows are exact. Otherwise they are the allocations that were
    /// live during the whole read.
    pub events_during_read: u64,
    /// Records that were being freed when the process stopped or the snapshot was taken (withdrawn, outcome unknown).
    pub in_flight: u64,
    /// How long the process had run when its recording was read, if the rows are of an earlier point.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasted_ns: Option<u64>,
    /// The point in time that the rows describe, if it is not that of `at_ns`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// The rows are only those that were allocated after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ns: Option<u64>,
    /// Why the recorder took this snapshot by itself; absent if a user requested it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic: Option<Automatic>,
}

impl Capture {
    /// What lies outside the allocators of frameworks is not known.
    pub fn covers_allocators_only(&self) -> bool {
        self.is_by_pytorch() || self.is_of_unrecorded()
    }

    /// PyTorch took it of its own allocator.
    pub fn is_by_pytorch(&self) -> bool {
        self.by == BY_PYTORCH || BY_BACKENDS.iter().any(|package| self.by.starts_with(package))
    }

    /// The process runs and was never recorded.
    pub fn is_of_unrecorded(&self) -> bool {
        self.by == BY_READING || self.by == BY_HISTORY
    }
}

/// An automatic snapshot: the recorder wrote it while the program ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Automatic {
    pub reason: Reason,
    /// The name of the mark, if a mark is the reason.
    pub name: Option<String>,
    /// Index into `failed`: the request that ran out of memory, if that is the reason.
    pub failed: Option<usize>,
    /// Of the device of that request, as NVML said later; absent if it was not asked.
    #[serde(flatten)]
    pub limits: GroupLimits,
}

/// The end of the program's own work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct End {
    pub of: EndOf,
    pub time_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndOf {
    /// The Python interpreter began to finalize.
    Script,
    /// The handlers of `exit` began to run: `main` returned, or the program called `exit`.
    Main,
}

/// Memory of one stack, kind and device that was live when the sum that it counts towards was at its peak: the sum of its
/// device for memory on a device, otherwise the sum of its kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AtPeak {
    pub stack: Option<usize>,
    pub kind: Kind,
    pub device: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    pub api: String,
    pub bytes: u64,
    pub count: u64,
}

impl AtPeak {
    /// Largest first; equal ones in a fixed order.
    pub(crate) fn by_size(a: &AtPeak, b: &AtPeak) -> std::cmp::Ordering {
        let key = |at: &AtPeak| (std::cmp::Reverse((at.bytes, at.count)), at.stack, at.kind, at.device);
        key(a)
            .cmp(&key(b))
            .then_with(|| (&a.api, &a.domain).cmp(&(&b.api, &b.domain)))
    }
}

/// A range of time that the program named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Phase {
    pub name: String,
    /// The NVTX domain; `None`: the default one, or the client API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    pub thread: usize,
    pub begin_ns: u64,
    /// `None`: it had not ended when the snapshot was taken.
    pub end_ns: Option<u64>,
    /// The enclosing phase of the same thread, which begins earlier in the list.
    pub parent: Option<usize>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Process {
    pub pid: u32,
    /// The pid in the namespace where the snapshot was taken, if it differs: the process runs in a container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_here: Option<u32>,
    pub parent_pid: u32,
    pub executable: String,
    pub command_line: Vec<String>,
    pub host: String,
    /// The variables of launchers ([`crate::job_variables`]) that were set.
    pub ranks: BTreeMap<String, String>,
    pub started_unix_ns: u64,
    pub state: ProcessState,
    /// The most frames recorded per stack.
    pub depth: u32,
    /// Path of the recording that the snapshot was read from.
    pub recording: String,
    /// The Python interpreter of the process; `None` if no allocation was made under one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<Python>,
    /// The versions of the packages of Python whose files are in the stacks or loaded, by name, as far as they were installed when the
    /// names of frames were looked up and had not changed since the process started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, String>,
}

impl Process {
    /// The pid to use on the machine where the snapshot was taken.
    pub fn number(&self) -> u32 {
        self.pid_here.unwrap_or(self.pid)
    }
}

/// A CPython interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Python {
    /// `3.12.1`.
    pub version: String,
    /// Why stacks contain no Python frames; `None` if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_frames: Option<String>,
}

named! {
    #[derive(Default, Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum ProcessState {
        /// Still alive on this host.
        Running = "running",
        /// Ran its exit handlers.
        Exited = "exited",
        /// Ended without exit handlers: `_exit`, a signal, exec, the OOM killer.
        Ended = "ended",
        /// Recorded on another host or in another container, whose processes are not visible here.
        #[default]
        Unknown = "unknown",
    }
}

impl ProcessState {
    pub fn has_ended(self) -> bool {
        matches!(self, ProcessState::Exited | ProcessState::Ended)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Device {
    /// CUDA's ordinal in that process (after CUDA_VISIBLE_DEVICES).
    pub ordinal: i32,
    /// `GPU-…` or `MIG-…` as nvidia-smi prints it; empty if the driver did not report it.
    pub uuid: String,
    pub name: String,
}

/// A device's UUID as nvidia-smi prints it, with `GPU` or `MIG` in front.
pub fn uuid_text(kind: &str, bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let groups = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("{kind}-{}", groups.join("-"))
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Context {
    pub handle: u64,
    pub device: Option<usize>,
    pub primary: bool,
    pub first_seen_ns: u64,
    pub destroyed_ns: Option<u64>,
    /// The size that the program set last for the heap of `malloc` in kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap_limit: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Thread {
    pub tid: u32,
    pub name: String,
    pub first_seen_ns: u64,
}

impl Thread {
    /// Whether this row stands for threads that are not known.
    pub fn is_unknown(&self) -> bool {
        self.tid == 0 && self.name == "?"
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// The NULL stream with legacy semantics.
    LegacyDefault,
    /// The NULL stream of a per-thread-default-stream build, or CU_STREAM_PER_THREAD.
    PerThreadDefault,
    Handle(u64),
}

/// Allocation calls that failed, with equal calls in one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// The stream for which memory was requested. Only PyTorch's own snapshots have it.
    pub stream: Option<Stream>,
    pub first_ns: u64,
    pub last_ns: u64,
}

/// Everything requested at one stack, of one kind on one device, since the recording began, including memory that was
/// freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Total {
    pub stack: Option<usize>,
    pub kind: Kind,
    pub device: Option<usize>,
    pub bytes: u64,
    pub count: u64,
}

/// What happened to one kind of memory on one device since the recording began, including memory that was freed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Counter {
    pub device: Option<usize>,
    pub kind: Kind,
    pub live_bytes: u64,
    pub live_count: u64,
    pub peak_bytes: u64,
    /// When the peak was reached.
    #[serde(default)]
    pub peak_ns: u64,
    pub total_bytes: u64,
    pub total_count: u64,
    pub freed_count: u64,
    pub failed_count: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DevicePeak {
    pub device: usize,
    pub peak_bytes: u64,
    /// When the peak was reached.
    #[serde(default)]
    pub time_ns: u64,
}

/// A framework's allocator on one device, by its own statistics. It reports them with each block that it hands out or
/// takes back, so the recorded blocks are compared with them each time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Allocator {
    pub domain: String,
    pub device: Option<usize>,
    /// Bytes in live blocks, as last reported.
    pub live_bytes: u64,
    /// Bytes it held from the driver, as last reported: live blocks and cached memory.
    pub reserved_bytes: u64,
    /// Blocks handed out or taken back.
    pub events: u64,
    /// Events after which the recorded bytes differed from the reported ones.
    pub mismatches: u64,
    /// Bytes in blocks that it had handed out before the first recorded event.
    pub unseen_bytes: u64,
}

/// A point in time that the program named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Mark {
    pub time_ns: u64,
    pub name: String,
    pub thread: usize,
}

impl Snapshot {
    /// Whether memory of this kind was ever recorded, even if none is live any more.
    pub fn ever_had(&self, kind: Kind) -> bool {
        let mut counters = self.counters.iter();
        counters.any(|counter| counter.kind == kind && counter.total_count > 0)
    }

    /// Whether nothing that a report counts is missing. A new count of losses is missing memory unless it is excepted here.
    pub fn is_complete(&self) -> bool {
        let losses = Losses {
            teardown_frees: 0,
            implicit_frees: 0,
            captured_not_launched: 0,
            export_tables: 0,
            segments_ended: None,
            recorder_ns: 0,
            events: 0,
            ..self.losses.clone()
        };
        let taken = &self.taken;
        let agrees = |allocator: &Allocator| allocator.mismatches == 0 && allocator.unseen_bytes == 0;
        losses == Losses::default()
            && (taken.in_flight, taken.events_during_read) == (0, 0)
            && !taken.is_by_pytorch()
            && self.allocators.iter().all(agrees)
    }

    /// A snapshot of an unknown process, with empty tables.
    pub fn empty() -> Snapshot {
        Snapshot {
            format: FORMAT.to_owned(),
            version: VERSION,
            ..Snapshot::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_look_as_nvidia_smi_prints_them() {
        let bytes: [u8; 16] = std::array::from_fn(|index| index as u8);
        assert_eq!(uuid_text("GPU", &bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(uuid_text("MIG", &bytes), "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
