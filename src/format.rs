//! The recording file: what lies where.
//!
//! ```text
//! 0        ┌────────────────────────────┐
//!          │ Header                     │  who, since when, losses, how many elements each section has
//! 4 KiB    ├────────────────────────────┤
//!          │ directory: 1024 × Extent   │  section, extent number, element size, offset, bytes
//! 36 KiB   ├────────────────────────────┤
//!          │ extent │ extent │ …        │  sections grow by whole extents, wherever the file ended at that moment
//! end      └────────────────────────────┘
//! ```
//!
//! A section is an array of equal elements, cut into extents. Extent *k* of a section holds twice as many elements as
//! extent *k*-1, up to a limit, so an element never moves and its place follows from its number (see `segmented.rs`).
//! The directory names the element size of every extent: a reader of this version can skip sections it does not know
//! and read the known part of elements that grew.
//!
//! The file is complete at every instant. An element counts once its section's count covers it and, for records, once
//! its state word says so; whoever is killed in between leaves zeros behind, which readers skip. Everything is
//! little-endian, without pointers, and changed only through atomics, since another process may be reading.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire};

use crate::lockfree::peak::CentralCredit;

pub const MAGIC: [u8; 8] = *b"CULEAK\r\n";
/// Changes when an older reader would misread a file.
pub const VERSION: u32 = 1;
/// Reads back swapped on a machine of the other byte order.
pub const BYTE_ORDER: u32 = 0x0102_0304;
pub const DIRECTORY_OFFSET: usize = 4096;
pub const DIRECTORY_CAPACITY: usize = 1024;
pub const HEADER_BYTES: usize = DIRECTORY_OFFSET + DIRECTORY_CAPACITY * size_of::<Extent>();

/// "No such row" in every 32-bit reference.
pub const NONE: u32 = u32::MAX;
/// Parent of a stack's outermost frame when the walk ended there of itself.
pub const ROOT: u32 = u32::MAX;
/// Parent of a stack's outermost frame when the walk was cut off.
pub const CUT: u32 = u32::MAX - 1;

/// The arrays of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Section {
    Text = 1,
    Devices = 2,
    Contexts = 3,
    Threads = 4,
    Modules = 5,
    Frames = 6,
    Records = 7,
    Failures = 8,
    Counters = 9,
    Apis = 10,
    Unhooked = 11,
    Domains = 12,
    Marks = 13,
    Allocators = 14,
    Peaks = 15,
    Totals = 16,
    Codes = 20,
    Interpreters = 21,
}

pub const SECTIONS: usize = 32;

/// A byte string in the text section: byte offset and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Text {
    pub offset: u32,
    pub bytes: u32,
}

/// The rank variables kept from the environment, in header order.
pub const RANK_VARIABLES: [&str; 5] = ["RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];

#[repr(C)]
pub struct Header {
    pub magic: [u8; 8],
    pub version: u32,
    pub byte_order: u32,
    pub header_bytes: u32,
    pub directory_capacity: u32,
    pub pid: u32,
    pub parent_pid: u32,
    pub depth: u32,
    pub reserved: u32,
    /// Field 22 of /proc/PID/stat: tells this process from a later one with its number.
    pub process_start_ticks: u64,
    pub started_unix_ns: u64,
    /// CLOCK_MONOTONIC at the start; all times in the file count from here.
    pub started_monotonic_ns: u64,
    pub executable: Text,
    pub command_line: Text,
    pub host: Text,
    /// `bytes` is `NONE` for a variable that was not set.
    pub ranks: [Text; RANK_VARIABLES.len()],
    /// 0 until the exit handlers ran.
    pub ended_ns: AtomicU64,
    /// Elements in use per section; slots may lie in it that were never published.
    pub counts: [AtomicU64; SECTIONS],
    /// In a copy kept by `recording/dump.rs`: when it was made + 1. 0 in the recording itself.
    pub dumped_plus_one: AtomicU64,
    /// `dump::Reason`, and the row of the request that failed + 1.
    pub dump_reason: AtomicU64,
    /// As [`Text`]: what the program calls the moment.
    pub dump_name: AtomicU64,
    /// Events while the copy was made.
    pub dump_events: AtomicU64,
    /// Inode of the recording as its process made it, which a copy of the file has not; 0: not known.
    pub file_number: u64,
    /// Inodes of /proc/self/ns/pid, in which `pid` counts, and of /proc/self/ns/time, which moves `process_start_ticks`; 0:
    /// not known.
    pub pid_namespace: u64,
    pub time_namespace: u64,
    /// In lines of their own: the counts are read at every event.
    pub losses: LossCounters,
}

/// Why the recorder kept an automatic snapshot; in the low half of `Header::dump_reason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "read", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "read", serde(rename_all = "snake_case"))]
pub enum Reason {
    /// A request failed for lack of memory.
    OutOfMemory = 1,
    /// More memory of a device was in use than ever before.
    Peak = 2,
    /// The program passed a mark (`culeak_mark`).
    Mark = 3,
    /// The program asked for it (`culeak_snapshot`).
    Requested = 4,
    /// `CULEAK_SNAPSHOT_EVERY` had passed.
    Every = 5,
}

impl Reason {
    pub fn from_number(number: u32) -> Option<Reason> {
        use Reason::*;
        [OutOfMemory, Peak, Mark, Requested, Every]
            .into_iter()
            .find(|reason| *reason as u32 == number)
    }
}

#[repr(C, align(64))]
pub struct LossCounters(pub [AtomicU64; LOSSES]);

/// Threads are dealt out over so many shards, each with its own counters and its own free records.
pub const SHARDS: usize = if cfg!(loom) { 2 } else { 64 };

const LOSSES: usize = 32;
const _: () = assert!(size_of::<Header>() <= DIRECTORY_OFFSET);

/// Places in [`Header::losses`]. Named as in `snapshot::Losses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Loss {
    Allocations = 0,
    Stacks = 1,
    Details = 2,
    UnknownFrees = 3,
    Vanished = 4,
    FailedFrees = 5,
    TeardownFrees = 6,
    ImplicitFrees = 7,
    CapturedNodes = 8,
    LaunchedNodes = 9,
    ExportTables = 10,
    RecorderNs = 11,
    Events = 12,
    UnknownBlocks = 13,
    Snapshots = 14,
    Python = 16,
}

/// One row of the directory. `section` is written last; 0 means unused.
#[repr(C)]
pub struct Extent {
    pub section: AtomicU32,
    pub number: AtomicU32,
    pub element_bytes: AtomicU32,
    pub reserved: AtomicU32,
    pub offset: AtomicU64,
    pub bytes: AtomicU64,
}
const _: () = assert!(size_of::<Extent>() == 32);

/// How many elements the first extent of each section holds, and the most any extent holds: powers of two. Part of the
/// format.
pub const fn extent_sizes(section: Section) -> (usize, usize) {
    match section {
        Section::Text => (16 << 10, 1 << 20),
        Section::Devices => (32, 32),
        Section::Contexts => (64, 4096),
        Section::Threads => (128, 1 << 16),
        Section::Modules => (64, 4096),
        Section::Frames => (1024, 1 << 18),
        Section::Records => (256, 1 << 18),
        Section::Failures => (64, 1 << 14),
        Section::Counters => (64, 1 << 12),
        Section::Peaks => (COUNTER_STRIDE * 4, COUNTER_STRIDE * 4),
        Section::Totals => (64, 1 << 16),
        Section::Apis => (256, 256),
        Section::Unhooked => (64, 1024),
        Section::Domains => (DOMAINS as usize + 1, DOMAINS as usize + 1),
        Section::Marks => (64, 1 << 14),
        Section::Allocators => (32, 32),
        Section::Codes => (256, 1 << 14),
        Section::Interpreters => (16, 16),
    }
}

#[repr(C)]
pub struct DeviceRow {
    /// Ordinal + 1; 0: not published. Written last.
    pub ordinal_plus_one: AtomicU32,
    /// 0: no UUID, 1: GPU, 2: MIG.
    pub uuid_kind: AtomicU32,
    pub uuid: [AtomicU64; 2],
    pub name: [AtomicU64; 13],
}
const _: () = assert!(size_of::<DeviceRow>() == 128);

#[repr(C)]
pub struct ContextRow {
    pub handle: AtomicU64,
    /// Index into devices, or `NONE`.
    pub device: AtomicU32,
    /// 1: created by cuCtxCreate; 0: a primary context.
    pub created: AtomicU32,
    /// Time + 1; 0: not published. Written last.
    pub seen_plus_one: AtomicU64,
    /// Time + 1; 0: not destroyed.
    pub destroyed_plus_one: AtomicU64,
}
const _: () = assert!(size_of::<ContextRow>() == 32);

#[repr(C)]
pub struct ThreadRow {
    /// 0: not published. Written last.
    pub tid: AtomicU32,
    pub reserved: AtomicU32,
    pub name: [AtomicU64; 2],
    pub seen_ns: AtomicU64,
}
const _: () = assert!(size_of::<ThreadRow>() == 32);

#[repr(C)]
pub struct ModuleRow {
    /// Time + 1; 0: not published. Written last.
    pub seen_plus_one: AtomicU64,
    /// Time + 1; 0: still loaded.
    pub unloaded_plus_one: AtomicU64,
    pub bias: AtomicU64,
    pub start: AtomicU64,
    pub end: AtomicU64,
    /// A [`Text`]: offset in the low half.
    pub path: AtomicU64,
    pub build_id_bytes: AtomicU64,
    pub build_id: [AtomicU64; 5],
}
const _: () = assert!(size_of::<ModuleRow>() == 96);
pub const BUILD_ID_MAX: usize = 40;

/// In the module half of a frame: it is Python's, and its address says which code and where in it.
pub const PYTHON: u32 = u32::MAX;

/// One edge of the stack trie: this frame, called from `parent`. A stack is the number of its innermost frame.
#[repr(C)]
pub struct FrameRow {
    /// `parent` in the low half, module + 1 in the high half; the module half is 0 for code outside any module.
    pub parent_module: AtomicU64,
    /// Return address minus load bias (without a module: the return address). Never 0.
    /// With [`PYTHON`]: offset of the instruction in the low half, row of the code + 1 in the high half.
    pub address: AtomicU64,
}
const _: () = assert!(size_of::<FrameRow>() == 16);

/// A Python function, as its code object described itself.
#[repr(C)]
pub struct CodeRow {
    /// Both are a [`Text`]: offset in the low half.
    pub file: AtomicU64,
    pub function: AtomicU64,
    /// The bytes that say which instruction belongs to which line; `bytes` is `NONE` if they could not be kept.
    pub line_table: AtomicU64,
    /// First line in the low half; in the high half the interpreter's minor version, which decides how the table is read.
    /// Written last; 0: not published.
    pub first_line_minor: AtomicU64,
}
const _: () = assert!(size_of::<CodeRow>() == 32);

/// What was found out about the Python interpreter of the process; the last row counts.
#[repr(C)]
pub struct InterpreterRow {
    /// `0x030c01f0` for 3.12.1, 0 if unknown, and bit 32. Written last; 0: not published.
    pub version: AtomicU64,
    /// Why its frames are not in the stacks, as [`Text`]; 0: they are.
    pub no_frames: AtomicU64,
}
const _: () = assert!(size_of::<InterpreterRow>() == 16);

/// Failed allocation calls, equal ones counted in one row.
#[repr(C)]
pub struct FailureRow {
    pub bytes: AtomicU64,
    /// Written last; 0: not published.
    pub count: AtomicU64,
    pub first_ns: AtomicU64,
    pub last_ns: AtomicU64,
    /// Packed like `Record::what`.
    pub attributes: AtomicU64,
    /// Stack in the low half, thread in the high half.
    pub place: AtomicU64,
    pub error: AtomicU64,
    pub reserved: AtomicU64,
}
const _: () = assert!(size_of::<FailureRow>() == 64);

/// What one shard (a thread, or a few) counted of one kind on one device: readers add up all rows with the same kind and
/// device. How many are live, the records say.
#[repr(C)]
pub struct CounterRow {
    /// [`Sums`] as a word + 1; 0: not published. Written last.
    pub of_plus_one: AtomicU64,
    /// Of the shard, for `credit`'s two sums.
    pub hints: [AtomicU32; 2],
    /// Belongs to the rows of `Peaks` with this kind and device, and with this device.
    pub credit: [AtomicU64; 2],
    pub total_bytes: AtomicU64,
    pub total_count: AtomicU64,
    pub freed_count: AtomicU64,
    pub failed_count: AtomicU64,
}
const _: () = assert!(size_of::<CounterRow>() == 64, "a cache line: no two shards tally one");

/// What a sum is about: a kind of memory on a device; kind 0: all that lives on the device, of which only the peak is
/// kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sums {
    /// Device row + 1; 0: no device.
    pub slot: u32,
    pub kind: u32,
}

impl Sums {
    pub const fn to_word(self) -> u64 {
        pack(self.kind, self.slot)
    }

    pub const fn from_word(word: u64) -> Sums {
        let (kind, slot) = halves(word);
        Sums { slot, kind }
    }

    /// Row in `Peaks`.
    pub const fn number(self) -> usize {
        self.slot as usize * COUNTER_STRIDE + self.kind as usize
    }
}

/// The exact peak of one kind on one device. Row [`Sums::number`].
#[repr(C)]
pub struct PeakRow {
    pub pot: CentralCredit,
    pub reserved: [AtomicU64; 6],
}
const _: () = assert!(size_of::<PeakRow>() == 64);
/// Kinds a device has room for.
pub const COUNTER_STRIDE: usize = 32;

/// What one shard asked for at one stack, of one kind on one device, since the recording began: readers add up all rows
/// with the same stack, kind and device.
#[repr(C)]
pub struct TotalRow {
    /// [`TotalOf`] as a word + 1; 0: not published. Written first, so that a row is known by it.
    pub of_plus_one: AtomicU64,
    pub bytes: AtomicU64,
    pub count: AtomicU64,
    pub reserved: [AtomicU64; 5],
}
const _: () = assert!(size_of::<TotalRow>() == 64, "a cache line: no two shards tally one");

impl TotalRow {
    /// Whether it is about this [`TotalOf`].
    #[inline]
    pub fn is(&self, of: u64) -> bool {
        // Acquire: pairs with the Release by which a fresh row is named.
        self.of_plus_one.load(Acquire) == of + 1
    }
}

/// What a [`TotalRow`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TotalOf {
    /// Stack, or `NONE`.
    pub stack: u32,
    pub kind: u8,
    /// Device row + 1; 0: no device.
    pub slot: u8,
    pub shard: u8,
}

impl TotalOf {
    pub const fn to_word(self) -> u64 {
        pack(
            self.stack,
            self.kind as u32 | (self.slot as u32) << 8 | (self.shard as u32) << 16,
        )
    }

    pub const fn from_word(word: u64) -> TotalOf {
        let (stack, rest) = halves(word);
        TotalOf {
            stack,
            kind: rest as u8,
            slot: (rest >> 8) as u8,
            shard: (rest >> 16) as u8,
        }
    }
}

/// A name as [`Text`], for function numbers and unhooked functions; 0 bytes: not published.
#[repr(C)]
pub struct NameRow {
    pub text: AtomicU64,
}

/// A moment the program has named.
#[repr(C)]
pub struct MarkRow {
    /// Time + 1; 0: not published. Written last.
    pub time_plus_one: AtomicU64,
    /// A [`Text`]: offset in the low half.
    pub name: AtomicU64,
    pub thread: AtomicU64,
    pub reserved: AtomicU64,
}
const _: () = assert!(size_of::<MarkRow>() == 32);

/// What PyTorch's allocator says of itself, one row per device row. Named as in `snapshot::Allocator`.
#[repr(C)]
pub struct AllocatorRow {
    pub live_bytes: AtomicU64,
    pub reserved_bytes: AtomicU64,
    /// 0: nothing was ever told.
    pub events: AtomicU64,
    pub mismatches: AtomicU64,
    pub unseen_bytes: AtomicU64,
    pub reserved: [AtomicU64; 3],
}
const _: () = assert!(size_of::<AllocatorRow>() == 64);

/// How many names of allocators there can be: blocks of different ones may lie at one address (one allocator in a block
/// of another), so a record keeps the number of its domain above its address.
pub const DOMAINS: u8 = 127;
const DOMAIN_SHIFT: u32 = 57;

/// The key's address of a block: its address and whose it is. `None` for what is no address of any GPU or CPU.
pub const fn block_address(domain: u8, address: u64) -> Option<u64> {
    if address >> DOMAIN_SHIFT == 0 {
        Some(address | (domain as u64) << DOMAIN_SHIFT)
    } else {
        None
    }
}

/// Domain and address of a block, from its key's.
pub const fn block_parts(address: u64) -> (u8, u64) {
    ((address >> DOMAIN_SHIFT) as u8, address & ((1 << DOMAIN_SHIFT) - 1))
}

/// Packs two 32-bit halves into a word.
pub const fn pack(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The halves of a word made by [`pack`].
pub const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
