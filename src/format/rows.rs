//! The elements of the sections, each declared once: `rows!` makes a struct of atomics for the writer, which maps the file,
//! and a struct of plain values for the reader, which decodes a copy.

use std::mem::offset_of;
use std::sync::atomic::Ordering::Acquire;

use super::{Text, halves, pack};
use crate::lockfree::peak::CentralCredit;
use crate::lockfree::sync::{AtomicU32, AtomicU64, Element};
use crate::numbered::numbered;

/// A type of field.
pub trait Field: Sized {
    /// The type in the mapped file.
    type Shared;

    /// Decodes the field at the beginning of `bytes`; 0 if they are too short.
    fn read(bytes: &[u8]) -> Self;
}

impl Field for u32 {
    type Shared = AtomicU32;

    fn read(bytes: &[u8]) -> u32 {
        bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }
}

impl Field for u64 {
    type Shared = AtomicU64;

    #[inline]
    fn read(bytes: &[u8]) -> u64 {
        bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

impl<T: Field, const N: usize> Field for [T; N] {
    type Shared = [T::Shared; N];

    fn read(bytes: &[u8]) -> [T; N] {
        std::array::from_fn(|index| T::read(bytes.get(index * size_of::<T>()..).unwrap_or_default()))
    }
}

impl Field for Text {
    /// [`Text::to_word`].
    type Shared = AtomicU64;

    fn read(bytes: &[u8]) -> Text {
        Text::from_word(u64::read(bytes))
    }
}

/// The values of a [`CentralCredit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    pub unused: u64,
    pub peak: u64,
}

impl Field for Credit {
    type Shared = CentralCredit;

    fn read(bytes: &[u8]) -> Credit {
        let [unused, peak] = Field::read(bytes);
        Credit { unused, peak }
    }
}

/// An element with named fields.
pub trait Row: Element {
    /// The same fields as plain values.
    type Values;

    /// Decodes an element; fields beyond the end of `bytes` are 0.
    fn read(bytes: &[u8]) -> Self::Values;
}

macro_rules! rows {
    ($( $(#[$meta:meta])* $row:ident as $values:ident, $bytes:literal bytes {
        $( $(#[$field_meta:meta])* $field:ident: $type:ty, )*
    } )*) => { $(
        $(#[$meta])*
        #[repr(C)]
        #[cfg_attr(loom, derive(Default))]
        pub struct $row { $( $(#[$field_meta])* pub $field: <$type as Field>::Shared, )* }

        #[doc = concat!("The values of a [`", stringify!($row), "`].")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $values { $( $(#[$field_meta])* pub $field: $type, )* }

        // SAFETY: every field is an atomic or consists of atomics.
        unsafe impl Element for $row {}

        impl Row for $row {
            type Values = $values;

            #[inline]
            fn read(bytes: &[u8]) -> $values {
                $values { $( $field: Field::read(bytes.get(offset_of!($row, $field)..).unwrap_or_default()), )* }
            }
        }

        // loom's atomics have other sizes.
        const _: () = assert!(cfg!(loom) || size_of::<$row>() == $bytes);
    )* };
}

/// Capacity of [`ModuleRow::build_id`] in bytes.
pub const BUILD_ID_MAX: usize = 40;

/// Module half of a Python frame, whose address names a code object and an instruction.
pub const PYTHON: u32 = u32::MAX;

/// Module half of a frame that is none: the stack whose number follows is of the operator that this stack computes the gradient of.
/// Its address is the number + 1, with [`NEAR`] if the stack is only of the next operator whose stack is known.
pub const GRADIENT: u32 = u32::MAX - 1;
pub const NEAR: u64 = 1 << 32;

/// The most rows of frame names, and the longest name in bytes.
pub const FRAME_NAMES_MAX: usize = 4096;
pub const FRAME_NAME_BYTES: usize = 128;

/// Room for kinds in each device's part of the peaks.
pub const COUNTER_STRIDE: usize = 64;

rows! {
    /// One row of the directory.
    Extent as ExtentValues, 32 bytes {
        /// Written last; 0: unused.
        section: u32,
        number: u32,
        element_bytes: u32,
        reserved: u32,
        offset: u64,
        bytes: u64,
    }

    DeviceRow as DeviceValues, 128 bytes {
        /// Ordinal + 1; 0: not published. Written last.
        ordinal_plus_one: u32,
        /// 0: no UUID, 1: GPU, 2: MIG.
        uuid_kind: u32,
        uuid: [u64; 2],
        name: [u64; 13],
    }

    ContextRow as ContextValues, 40 bytes {
        handle: u64,
        /// Row of the device, or `NONE`.
        device: u32,
        /// 1: created by cuCtxCreate; 0: a primary context.
        created: u32,
        /// Time + 1; 0: not published. Written last.
        seen_plus_one: u64,
        /// Time + 1; 0: not destroyed.
        destroyed_plus_one: u64,
        /// The size that the program set for the heap of `malloc` in kernels; 0: it set none.
        heap_limit: u64,
    }

    ThreadRow as ThreadValues, 32 bytes {
        /// 0: not published. Written last.
        tid: u32,
        reserved: u32,
        name: [u64; 2],
        seen_ns: u64,
    }

    ModuleRow as ModuleValues, 96 bytes {
        /// Time + 1; 0: not published. Written last.
        seen_plus_one: u64,
        /// Time + 1; 0: still loaded.
        unloaded_plus_one: u64,
        bias: u64,
        start: u64,
        end: u64,
        path: Text,
        build_id_bytes: u64,
        build_id: [u64; 5],
    }

    /// One edge of the stack trie: this frame, called from `parent`. A stack is the number of its innermost frame.
    FrameRow as FrameValues, 16 bytes {
        /// Parent in the low half, module + 1 in the high half; the module half is 0 for code outside any module.
        parent_module: u64,
        /// Return address minus load bias (without a module: the return address). 0: not published. Written last.
        /// With [`PYTHON`]: offset of the instruction in the low half, row of the code + 1 in the high half.
        address: u64,
    }

    /// The exported function of the CUDA driver that contains a frame, as the loaded library named it.
    FrameNameRow as FrameNameValues, 24 bytes {
        /// Row of the module + 1.
        module_plus_one: u64,
        /// As [`FrameRow::address`].
        address: u64,
        /// Zero bytes: not published. Written last.
        name: Text,
    }

    /// A live allocation, or a free element. Two threads never write to one cache line, and an event touches one line;
    /// 10 million live allocations take 640 MB.
    Record as RecordValues, 64 bytes {
        /// Status in the low half, generation in the high half.
        state: u64,
        /// The key's address; in a free record the next free one + 1, and in the upper half the next magazine's first + 1.
        address: u64,
        amount: u64,
        /// The `SizeEncoding` in `attributes` defines this and `amount`.
        other: u64,
        time_ns: u64,
        extra: u64,
        /// Stack in the low half, thread in the high half.
        place: u64,
        attributes: u64,
    }

    /// Failed allocation calls; equal ones share a row.
    FailureRow as FailureValues, 64 bytes {
        bytes: u64,
        /// 0: not published. Written last.
        count: u64,
        first_ns: u64,
        last_ns: u64,
        /// As [`Record::attributes`].
        attributes: u64,
        /// Stack in the low half, thread in the high half.
        place: u64,
        error: u64,
        reserved: u64,
    }

    /// What one shard (a thread, or a few) counted of one kind on one device; readers add up all rows with the same kind and
    /// device. Live bytes and counts follow from the records. A cache line: no two shards write to one.
    CounterRow as CounterValues, 64 bytes {
        /// [`CounterKey`] as a word + 1; 0: not published. Written last.
        key_plus_one: u64,
        /// The shard's hints for the two elements of `credit`.
        hints: [u32; 2],
        /// The shard's local credit in the sum of this kind and device, and in the sum of this device; the central credit of
        /// both is in `Peaks`.
        credit: [u64; 2],
        total_bytes: u64,
        total_count: u64,
        freed_count: u64,
        failed_count: u64,
    }

    /// The exact peak of one kind on one device. Row [`CounterKey::number`].
    PeakRow as PeakValues, 64 bytes {
        credit: Credit,
        /// When the peak was reached.
        time_ns: u64,
        reserved: [u64; 5],
    }

    /// What one shard allocated and freed at one stack, of one kind on one device, since the recording began; readers add up
    /// all rows with the same stack, kind and device. A shard frees memory that another one allocated, so a row's live bytes
    /// (`bytes - freed_bytes`) may be negative: they wrap. A cache line: no two shards write to one.
    TotalRow as TotalValues, 64 bytes {
        /// [`TotalKey`] as a word + 1; 0: not published. Written first, so that the row can be found by it.
        key_plus_one: u64,
        bytes: u64,
        count: u64,
        freed_bytes: u64,
        freed_count: u64,
        /// The peak, in bytes, for which `saved_bytes` and `saved_count` are valid: the row's live bytes and count at that
        /// peak. If it is not the current peak, the row has not changed since the current peak.
        saved_peak: u64,
        saved_bytes: u64,
        saved_count: u32,
        /// The row's own number.
        number: u32,
    }

    /// A range of time that the program named: an NVTX range or `culeak_phase`.
    PhaseRow as PhaseValues, 64 bytes {
        /// Begin + 1; 0: not published. Written last.
        begin_plus_one: u64,
        /// End + 1; 0: it has not ended.
        end_plus_one: u64,
        name: Text,
        /// Missing: the default domain.
        domain: Text,
        thread: u32,
        /// Row of the enclosing phase of the same thread + 1; 0: none.
        parent_plus_one: u32,
        /// How the phase was reported: a [`PhaseSource`].
        source: u32,
        reserved: [u32; 5],
    }

    /// The pages of a pool, or of an owner in a pool. The row is used again once these are gone.
    PagesRow as PagesValues, 192 bytes {
        /// A [`PagesState`] in the low half, the row's generation in the high half. Written last.
        state: u64,
        /// The pool: its row + 1 in the low half, its generation in the high half. 0: this is a pool.
        pool: u64,
        begin_ns: u64,
        /// End + 1; 0: it has not ended.
        end_plus_one: u64,
        page_bytes: u64,
        /// Live, reclaimable, waiting, free.
        pages: [u64; 4],
        /// Of a pool: how many owners have begun in it.
        owners: u64,
        /// Name of the owner; of a pool, that of its allocator. Ends with its first zero byte.
        name: [u64; 14],
    }

    /// The name of a CUDA function, an unhooked function or a domain. Zero bytes: not published.
    NameRow as NameValues, 8 bytes {
        text: Text,
    }

    /// A variable of the environment that names a part of a job ([`crate::job_variables`]).
    VariableRow as VariableValues, 16 bytes {
        /// Zero bytes: not published. Written last.
        name: Text,
        value: Text,
    }

    /// A mark: a point in time that the program named.
    MarkRow as MarkValues, 32 bytes {
        /// Time + 1; 0: not published. Written last.
        time_plus_one: u64,
        name: Text,
        thread: u64,
        reserved: u64,
    }

    /// What PyTorch's allocator reports about itself, one row per device. Named as in `snapshot::Allocator`.
    AllocatorRow as AllocatorValues, 64 bytes {
        live_bytes: u64,
        reserved_bytes: u64,
        /// 0: it never reported anything.
        events: u64,
        mismatches: u64,
        unseen_bytes: u64,
        reserved: [u64; 3],
    }

    /// A Python function, as its code object describes it.
    CodeRow as CodeValues, 32 bytes {
        file: Text,
        function: Text,
        /// CPython's line table; missing if it could not be stored.
        line_table: Text,
        /// First line in the low half, the interpreter's minor version, which decides the format of the line table, in the
        /// high half. 0: not published. Written last.
        first_line_minor: u64,
    }

    /// The state of the process's Python interpreter; the last row counts.
    InterpreterRow as InterpreterValues, 16 bytes {
        /// `0x030c01f0` for 3.12.1, 0 if unknown, plus bit 32. 0: not published. Written last.
        version: u64,
        /// Why stacks lack its frames; empty if they have them.
        no_frames: Text,
    }
}

numbered! {
    /// How a phase was reported; in [`PhaseRow::source`].
    pub enum PhaseSource: u32 {
        /// An NVTX range of a thread (push, pop).
        NvtxPush = 1,
        /// An NVTX range of the process (start, end).
        NvtxStart = 2,
        /// `culeak_phase_begin`.
        Client = 3,
    }
}

numbered! {
    /// Whether a [`PagesRow`] is used.
    pub enum PagesState: u32 {
        Unused = 0,
        /// A thread is writing it.
        Written = 1,
        Used = 2,
    }
}

/// The subject of a sum: a kind of memory on a device. Kind 0: all memory on the device, of which only the peak is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterKey {
    /// Device row + 1; 0: no device.
    pub slot: u32,
    pub kind: u32,
}

impl CounterKey {
    pub const fn to_word(self) -> u64 {
        pack(self.kind, self.slot)
    }

    pub const fn from_word(word: u64) -> CounterKey {
        let (kind, slot) = halves(word);
        CounterKey { slot, kind }
    }

    /// Row in `Peaks`.
    pub const fn number(self) -> usize {
        self.slot as usize * COUNTER_STRIDE + self.kind as usize
    }
}

impl TotalRow {
    /// Whether the row belongs to this [`TotalKey`].
    #[inline]
    pub fn is(&self, key: u64) -> bool {
        // Acquire: pairs with the Release that gives a new row its key.
        self.key_plus_one.load(Acquire) == key + 1
    }
}

/// The subject of a [`TotalRow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TotalKey {
    /// Stack, or `NONE`.
    pub stack: u32,
    pub kind: u8,
    /// Device row + 1; 0: no device.
    pub slot: u8,
    pub shard: u8,
    /// The number of the function that allocated; for kind `Block`, of its domain.
    pub name: u16,
}

impl TotalKey {
    const KIND_BITS: u32 = 6;
    const SLOT_BITS: u32 = 6;
    const SHARD_BITS: u32 = 6;

    pub const fn to_word(self) -> u64 {
        let name = self.name as u32;
        let shard = name << Self::SHARD_BITS | self.shard as u32;
        let slot = shard << Self::SLOT_BITS | self.slot as u32;
        pack(self.stack, slot << Self::KIND_BITS | self.kind as u32)
    }

    pub const fn from_word(word: u64) -> TotalKey {
        const fn lowest(bits: u32) -> u32 {
            (1 << bits) - 1
        }
        let (stack, kind) = halves(word);
        let slot = kind >> Self::KIND_BITS;
        let shard = slot >> Self::SLOT_BITS;
        TotalKey {
            stack,
            kind: (kind & lowest(Self::KIND_BITS)) as u8,
            slot: (slot & lowest(Self::SLOT_BITS)) as u8,
            shard: (shard & lowest(Self::SHARD_BITS)) as u8,
            name: (shard >> Self::SHARD_BITS) as u16,
        }
    }
}
const _: () = assert!(COUNTER_STRIDE <= 1 << TotalKey::KIND_BITS && super::SHARDS <= 1 << TotalKey::SHARD_BITS);
