//! The format of a recording: what lies where in the file.
//!
//! ```text
//! 0        ┌────────────────────────────┐
//!          │ Header                     │  process, start time, losses, number of elements of each section
//! 4 KiB    ├────────────────────────────┤
//!          │ directory: 1024 × Extent   │  section, extent number, element size, offset, bytes
//! 36 KiB   ├────────────────────────────┤
//!          │ extent │ extent │ …        │  a section grows by whole extents, appended to the file
//! end      └────────────────────────────┘
//! ```
//!
//! A section is an array of equal elements, cut into extents. Extent *k* of a section holds twice as many elements as
//! extent *k*-1, up to a limit, so an element never moves and its place follows from its number (see `segmented.rs`).
//! The directory holds the element size of every extent: a reader of this version skips sections that it does not know
//! and the unknown tail of elements that became larger.
//!
//! The file is complete at every instant. An element counts once its section's count covers it and, for records, once its
//! state word is `Live`; a process that is killed in between leaves zeros behind, which readers skip. All numbers are
//! little-endian. The file holds no pointers and changes only through atomics, since another process may be reading it.
//!
//! Each section is one row of `sections!` below and each type of element one row of `rows!` (`format/rows.rs`): the writer's
//! atomics, the reader's plain values, sizes and the list of sections come from there.

mod events;
mod header;
mod rows;

pub use events::*;
pub use header::{Header, Loss, LossCounters, Reason};
pub use rows::*;

use std::sync::atomic::AtomicU8;

use crate::numbered::numbered;

pub const MAGIC: [u8; 8] = *b"CULEAK\r\n";
/// Increases whenever a reader of another version would misread a file. Readers accept this version only.
pub const VERSION: u32 = 5;
/// Reads back with its bytes swapped on a machine of the other byte order.
pub const BYTE_ORDER: u32 = 0x0102_0304;
pub const DIRECTORY_OFFSET: usize = 4096;
pub const DIRECTORY_CAPACITY: usize = 1024;
pub const HEADER_BYTES: usize = DIRECTORY_OFFSET + DIRECTORY_CAPACITY * size_of::<Extent>();

/// The extents in the directory of a header that was read from a file.
pub fn extents(header: &[u8]) -> impl Iterator<Item = ExtentValues> {
    let rows = header[DIRECTORY_OFFSET..HEADER_BYTES].chunks_exact(size_of::<Extent>());
    rows.map(Extent::read).filter(|extent| extent.section != 0)
}

/// The length of a file that has all extents of this header.
pub fn recorded_bytes(header: &[u8]) -> u64 {
    let ends = extents(header).map(|extent| extent.offset.saturating_add(extent.bytes));
    ends.max().unwrap_or(0).max(HEADER_BYTES as u64)
}

/// "No such row" in every 32-bit reference.
pub const NONE: u32 = u32::MAX;
/// Parent of a stack's outermost frame if the walk reached the end of the stack.
pub const ROOT: u32 = u32::MAX;
/// Parent of a stack's outermost frame if the walk was cut off.
pub const CUT: u32 = u32::MAX - 1;

/// The stack of a block that sampling left out ([`crate::sampling`]).
pub const UNSAMPLED: u32 = u32::MAX - 2;

/// The number of shards; each has its own counters and its own free list.
pub const SHARDS: usize = if cfg!(loom) { 2 } else { 64 };

macro_rules! sections {
    ($( $name:ident = $number:literal: $element:ty, $first:expr, $most:expr; )*) => {
        numbered! {
            /// The arrays of a recording.
            pub enum Section: u32 { $( $name = $number, )* }
        }

        impl Section {
            /// Elements of the section's first extent, and of its largest: powers of two.
            pub const fn extent_sizes(self) -> (usize, usize) {
                match self { $( Section::$name => ($first, $most), )* }
            }

            /// Bytes of an element in this version.
            pub const fn element_bytes(self) -> usize {
                match self { $( Section::$name => size_of::<$element>(), )* }
            }
        }

        $( const _: () = assert!($number < SECTIONS && ($first as usize).is_power_of_two() && ($most as usize).is_power_of_two()); )*
    };
}

// Name and number of the section, type of its elements, elements of the first extent and of the largest.
sections! {
    Text = 1: AtomicU8, 16 << 10, 1 << 20;
    Devices = 2: DeviceRow, 32, 32;
    Contexts = 3: ContextRow, 64, 4096;
    Threads = 4: ThreadRow, 128, 1 << 16;
    Modules = 5: ModuleRow, 64, 4096;
    Frames = 6: FrameRow, 1024, 1 << 18;
    Records = 7: Record, 256, 1 << 18;
    Failures = 8: FailureRow, 64, 1 << 14;
    Counters = 9: CounterRow, 64, 1 << 12;
    Apis = 10: NameRow, 512, 512;
    Unhooked = 11: NameRow, 64, 1024;
    Domains = 12: NameRow, DOMAINS as usize + 1, DOMAINS as usize + 1;
    Marks = 13: MarkRow, 64, 1 << 14;
    Allocators = 14: AllocatorRow, 32, 32;
    Peaks = 15: PeakRow, COUNTER_STRIDE * 4, COUNTER_STRIDE * 4;
    Totals = 16: TotalRow, 64, 1 << 16;
    Codes = 17: CodeRow, 256, 1 << 14;
    Interpreters = 18: InterpreterRow, 16, 16;
    Phases = 19: PhaseRow, 64, 1 << 14;
    Events = 20: EventSegment, 16, 256;
    FrameNames = 21: FrameNameRow, 64, 1024;
    Variables = 22: VariableRow, 64, 64;
    Pages = 23: PagesRow, 64, 1024;
}

/// Room for sections in [`Header::counts`].
pub const SECTIONS: usize = 32;

/// A byte string in the text section. Zero bytes: no text. [`Text::MISSING`] where an empty text has a meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Text {
    pub offset: u32,
    pub bytes: u32,
}

impl Text {
    pub const EMPTY: Text = Text { offset: 0, bytes: 0 };
    /// There is no text, not even an empty one.
    pub const MISSING: Text = Text { offset: 0, bytes: NONE };

    /// As one word: the offset in the low half.
    pub const fn to_word(self) -> u64 {
        pack(self.offset, self.bytes)
    }

    pub const fn from_word(word: u64) -> Text {
        let (offset, bytes) = halves(word);
        Text { offset, bytes }
    }

    /// The beginning of it, for readers of files in which a text may have any length.
    pub const fn at_most(self, bytes: usize) -> Text {
        match (self.bytes as usize) <= bytes {
            true => self,
            false => Text {
                bytes: bytes as u32,
                ..self
            },
        }
    }

    /// `None` for [`Text::MISSING`].
    pub fn present(self) -> Option<Text> {
        (self.bytes != NONE).then_some(self)
    }
}

/// The variables of the environment in the header, in its order. Others that name a part of a job are in the section
/// `Variables`.
pub const RANK_VARIABLES: [&str; 5] = ["RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// The most names of allocators ("domains"). Blocks of different allocators may lie at one address (one allocator inside a
/// block of another), so the key of a block holds the number of its domain above its address.
pub const DOMAINS: u8 = 127;
const DOMAIN_SHIFT: u32 = 57;

/// The address in a block's key: domain and address. `None` if no GPU or CPU has such an address.
pub const fn block_address(domain: u8, address: u64) -> Option<u64> {
    if address >> DOMAIN_SHIFT == 0 {
        Some(address | (domain as u64) << DOMAIN_SHIFT)
    } else {
        None
    }
}

/// Domain and address of a block, from the address in its key.
pub const fn block_parts(address: u64) -> (u8, u64) {
    ((address >> DOMAIN_SHIFT) as u8, address & ((1 << DOMAIN_SHIFT) - 1))
}

/// Packs two 32-bit halves into a word.
pub const fn pack(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// The halves of a word made by [`pack`]: low, high.
pub const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
