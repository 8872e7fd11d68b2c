//! What the table holds: keys, what is known of an allocation, and the record it is kept in.

use std::sync::atomic::Ordering::Relaxed;

use crate::format::{halves, pack};
use crate::kind::Kind;
use crate::lockfree::index::mix;
use crate::lockfree::sync::AtomicU64;

/// Which numbers a key's address is one of: handles may equal addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Space {
    /// Device and CUDA-allocated host addresses: one virtual address space for both.
    Pointer = 1,
    /// Array and mipmapped-array handles.
    Array = 2,
    Pool = 3,
    /// VMM handles.
    Physical = 4,
    /// Start of a mapped VMM range.
    Mapping = 5,
    /// Start of a reserved address range.
    Reserved = 6,
    External = 7,
    /// Host memory of the program's own, registered with CUDA.
    Registered = 8,
    /// PyTorch's blocks, within what [`Space::Pointer`] or [`Space::Mapping`] holds.
    Tensor = 9,
    /// XLA's buffers, by handle.
    Buffer = 10,
    /// Blocks of named domains; see `layout::block_address`.
    Block = 11,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    pub space: Space,
    pub address: u64,
}

impl Key {
    #[inline]
    pub(super) fn hash(self) -> u64 {
        mix(self.address ^ (self.space as u64) << 56)
    }
}

/// Everything a record says, as plain data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub bytes: u64,
    pub requested: u64,
    pub time_ns: u64,
    /// Stream handle, or references and mappings (`pack`) for physical memory and IPC.
    pub extra: u64,
    pub pool: u64,
    /// Frame row of the innermost frame, or `NONE`.
    pub stack: u32,
    pub thread: u32,
    pub attributes: Attributes,
}

/// The small fields of an entry; one word in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    pub kind: Kind,
    pub space: Space,
    pub flags: u8,
    /// Device row, or 255.
    pub device: u8,
    /// Number in the list of CUDA functions.
    pub api: u16,
    /// Context row, or 65535.
    pub context: u16,
}

impl Attributes {
    /// The bits of `flags` that are flags; the others say a record's [`Form`].
    const FLAGS: u8 = 0x3f;
    pub const NO_DEVICE: u8 = u8::MAX;
    pub const NO_CONTEXT: u16 = u16::MAX;
    /// `extra` is a stream.
    pub const HAS_STREAM: u8 = 1;
    /// `pool` is set.
    pub const HAS_POOL: u8 = 2;
    /// Recorded by a runtime hook, since the driver layer saw nothing.
    pub const BACKED_UP: u8 = 4;
    /// `extra` counts references and mappings.
    pub const COUNTS: u8 = 8;
    /// A block whose domain stands in the lowest byte of `pool`, below the number of its heap, and not in its key.
    pub const IN_HEAP: u8 = 16;

    pub const fn to_word(self) -> u64 {
        self.kind as u64
            | (self.space as u64) << 8
            | (self.flags as u64) << 16
            | (self.device as u64) << 24
            | (self.api as u64) << 32
            | (self.context as u64) << 48
    }

    /// The fields of a word, with kind and space still numbers: a reader checks them, a writer knows them.
    pub const fn parts(word: u64) -> (u8, u8, u8, u8, u16, u16) {
        (
            word as u8,
            (word >> 8) as u8,
            (word >> 16) as u8 & Attributes::FLAGS,
            (word >> 24) as u8,
            (word >> 32) as u16,
            (word >> 48) as u16,
        )
    }

    fn from_word(word: u64) -> Option<Attributes> {
        let (kind, space, flags, device, api, context) = Attributes::parts(word);
        let space = match space {
            1 => Space::Pointer,
            2 => Space::Array,
            3 => Space::Pool,
            4 => Space::Physical,
            5 => Space::Mapping,
            6 => Space::Reserved,
            7 => Space::External,
            8 => Space::Registered,
            9 => Space::Tensor,
            10 => Space::Buffer,
            11 => Space::Block,
            _ => return None,
        };
        Some(Attributes {
            kind: Kind::from_number(kind)?,
            space,
            flags,
            device,
            api,
            context,
        })
    }
}

/// What sums need to know of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    pub bytes: u64,
    pub kind: Kind,
    /// Device row, or 255.
    pub device: u8,
}

impl Entry {
    pub fn counts(&self) -> Counts {
        Counts {
            bytes: self.bytes,
            kind: self.attributes.kind,
            device: self.attributes.device,
        }
    }
}

/// One slot, as it lies in the file.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Record {
    /// Status in the low half, generation in the high half.
    pub state: AtomicU64,
    /// The key's address; in a free record the next free one + 1, and in the upper half the next bundle's first + 1.
    pub address: AtomicU64,
    pub amount: AtomicU64,
    /// What this and `amount` mean, the [`Form`] in `what` says.
    pub other: AtomicU64,
    pub time_ns: AtomicU64,
    pub extra: AtomicU64,
    /// Stack in the low half, thread in the high half.
    pub place: AtomicU64,
    pub attributes: AtomicU64,
}
const _: () = assert!(
    size_of::<Record>() == 64,
    "a cache line: an event touches one, and two threads never the same; 10 million live allocations in 640 MB"
);

/// Bytes, bytes requested and pool are three numbers, of which no record needs more than two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SizeEncoding {
    /// `amount` was requested and is held, `other` is the pool.
    Plain = 0,
    /// `amount` is the span of what holds nothing, `other` the pool.
    Claim = 1,
    /// `amount` is held, `other` was requested; no pool.
    Rounded = 2,
}

/// Bytes, bytes requested, pool.
pub type Amounts = (u64, u64, u64);

impl SizeEncoding {
    /// The upper two bits of the flags.
    const SHIFT: u32 = 16 + 6;

    const fn of_word(attributes: u64) -> SizeEncoding {
        match attributes >> SizeEncoding::SHIFT & 3 {
            1 => SizeEncoding::Claim,
            2 => SizeEncoding::Rounded,
            _ => SizeEncoding::Plain,
        }
    }

    /// The word `what` without the form, which tells of the other words only.
    pub const fn erased(attributes: u64) -> u64 {
        attributes & !(3 << SizeEncoding::SHIFT)
    }

    /// The three numbers of a record, from its words `amount`, `other` and `what`.
    pub const fn amounts(amount: u64, other: u64, attributes: u64) -> Amounts {
        match SizeEncoding::of_word(attributes) {
            SizeEncoding::Plain => (amount, amount, other),
            SizeEncoding::Claim => (0, amount, other),
            SizeEncoding::Rounded => (amount, other, 0),
        }
    }

    /// The words `amount` and `other`. Where all three numbers differ, what was requested is given up.
    const fn words((bytes, requested, pool): Amounts) -> (SizeEncoding, u64, u64) {
        if bytes == requested || bytes != 0 && pool != 0 {
            (SizeEncoding::Plain, bytes, pool)
        } else if bytes == 0 {
            (SizeEncoding::Claim, requested, pool)
        } else {
            (SizeEncoding::Rounded, bytes, requested)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    Free = 0,
    Writing = 1,
    Live = 2,
    Withdrawn = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    pub status: Status,
    pub generation: u32,
}

impl State {
    pub(super) const fn word(self) -> u64 {
        pack(self.status as u32, self.generation)
    }

    /// `None` for a status this version does not know.
    pub const fn of(word: u64) -> Option<State> {
        let (status, generation) = halves(word);
        let status = match status {
            0 => Status::Free,
            1 => Status::Writing,
            2 => Status::Live,
            3 => Status::Withdrawn,
            _ => return None,
        };
        Some(State { status, generation })
    }
}

impl Record {
    pub(super) fn write(&self, key: Key, entry: &Entry) {
        self.address.store(key.address, Relaxed);
        let (form, amount, other) = SizeEncoding::words((entry.bytes, entry.requested, entry.pool));
        self.amount.store(amount, Relaxed);
        self.other.store(other, Relaxed);
        self.time_ns.store(entry.time_ns, Relaxed);
        self.extra.store(entry.extra, Relaxed);
        self.place.store(pack(entry.stack, entry.thread), Relaxed);
        self.attributes.store(
            entry.attributes.to_word() | (form as u64) << SizeEncoding::SHIFT,
            Relaxed,
        );
    }

    /// What sums need to know of it.
    #[inline]
    pub(super) fn counts(&self) -> Option<Counts> {
        let what = self.attributes.load(Relaxed);
        let (kind, _, _, device, _, _) = Attributes::parts(what);
        let holds = SizeEncoding::of_word(what) != SizeEncoding::Claim;
        Some(Counts {
            bytes: if holds { self.amount.load(Relaxed) } else { 0 },
            kind: Kind::from_number(kind)?,
            device,
        })
    }

    pub(super) fn read(&self) -> Option<Entry> {
        let (stack, thread) = halves(self.place.load(Relaxed));
        let what = self.attributes.load(Relaxed);
        let (bytes, requested, pool) = SizeEncoding::amounts(self.amount.load(Relaxed), self.other.load(Relaxed), what);
        Some(Entry {
            bytes,
            requested,
            time_ns: self.time_ns.load(Relaxed),
            extra: self.extra.load(Relaxed),
            pool,
            stack,
            thread,
            attributes: Attributes::from_word(what)?,
        })
    }
}
