//! Keys, entries and records: what the table stores about an allocation, and how it is encoded.

use std::sync::atomic::Ordering::Relaxed;

pub use crate::format::Record;
use crate::format::{halves, pack};
use crate::kind::Kind;
use crate::lockfree::index::mix;
use crate::numbered::numbered;

numbered! {
    /// The address space of a key: a handle may equal an address.
    #[derive(Hash)]
    pub enum Space: u8 {
        /// Device addresses and addresses of CUDA's host memory, which share one virtual address space.
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
        /// The program's own host memory, registered with CUDA.
        Registered = 8,
        /// PyTorch's blocks, inside memory of [`Space::Pointer`] or [`Space::Mapping`].
        Tensor = 9,
        /// XLA's buffers, by handle.
        Buffer = 10,
        /// Blocks of named domains; see `format::block_address`.
        Block = 11,
        /// Memory that the kernel driver gave to the process, by client and object.
        Segment = 12,
        // Handles of objects.
        Stream = 13,
        Event = 14,
        Module = 15,
        Library = 16,
        GraphObject = 17,
        GraphExec = 18,
        GreenContext = 19,
        Texture = 20,
        Surface = 21,
        ExternalSemaphore = 22,
        UserObject = 23,
        Linker = 24,
        Context = 25,
        GraphicsResource = 26,
    }
}

impl Space {
    /// The space of the handles of a kind of object.
    ///
    /// # Panics
    /// The kind is not one of an object ([`crate::kind::Place::Object`]).
    pub const fn of_object(kind: Kind) -> Space {
        match kind {
            Kind::Stream => Space::Stream,
            Kind::Event => Space::Event,
            Kind::Module => Space::Module,
            Kind::Library => Space::Library,
            Kind::GraphObject => Space::GraphObject,
            Kind::GraphExec => Space::GraphExec,
            Kind::GreenContext => Space::GreenContext,
            Kind::Texture => Space::Texture,
            Kind::Surface => Space::Surface,
            Kind::ExternalSemaphore => Space::ExternalSemaphore,
            Kind::UserObject => Space::UserObject,
            Kind::Linker => Space::Linker,
            Kind::Context => Space::Context,
            Kind::GraphicsResource => Space::GraphicsResource,
            _ => panic!("not an object"),
        }
    }
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

/// The contents of a record as plain data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub bytes: u64,
    pub requested: u64,
    pub time_ns: u64,
    /// Stream handle, the name of a module's first kernel, references and mappings (`pack`) for physical memory and IPC, or the
    /// number of the IPC handle of linear memory.
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
    /// How many times the mean distance of sampled stacks was raised for it: [`crate::sampling::mean_of`]. At most 7.
    pub raised: u8,
}

impl Attributes {
    /// The bits of the byte `space` that are the space; the upper three hold `raised`.
    const SPACE: u8 = 0x1f;
    /// The bits of `flags` that are flags; the other two hold a record's [`SizeEncoding`].
    const FLAGS: u8 = 0x3f;
    pub const NO_DEVICE: u8 = u8::MAX;
    pub const NO_CONTEXT: u16 = u16::MAX;
    /// `extra` is a stream.
    pub const HAS_STREAM: u8 = 1;
    /// `pool` is set; of a segment, `extra` is the pool.
    pub const HAS_POOL: u8 = 2;
    /// Recorded by a runtime hook, since no driver hook ran.
    pub const BACKED_UP: u8 = 4;
    /// `extra` counts references and mappings.
    pub const COUNTS: u8 = 8;
    /// A block whose domain is in the lowest byte of `pool`, below the number of its heap, and not in its key.
    pub const IN_HEAP: u8 = 16;
    /// `extra` is a text: the kernel whose code a segment was taken for.
    pub const NAMED: u8 = 32;

    pub const fn to_word(self) -> u64 {
        self.kind as u64
            | (self.space as u64 | (self.raised as u64) << 5) << 8
            | (self.flags as u64) << 16
            | (self.device as u64) << 24
            | (self.api as u64) << 32
            | (self.context as u64) << 48
    }

    /// The fields of a word. Kind and space remain numbers, since a file may hold any.
    pub const fn parts(word: u64) -> AttributeParts {
        AttributeParts {
            kind: word as u8,
            space: (word >> 8) as u8 & Attributes::SPACE,
            raised: (word >> 13) as u8 & 7,
            flags: (word >> 16) as u8 & Attributes::FLAGS,
            device: (word >> 24) as u8,
            api: (word >> 32) as u16,
            context: (word >> 48) as u16,
        }
    }

    fn from_word(word: u64) -> Option<Attributes> {
        let parts = Attributes::parts(word);
        Some(Attributes {
            kind: Kind::from_number(parts.kind)?,
            space: Space::from_number(parts.space)?,
            flags: parts.flags,
            device: parts.device,
            api: parts.api,
            context: parts.context,
            raised: parts.raised,
        })
    }
}

/// The fields of [`Attributes`], unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttributeParts {
    pub kind: u8,
    pub space: u8,
    pub flags: u8,
    pub device: u8,
    pub api: u16,
    pub context: u16,
    pub raised: u8,
}

/// The part of an entry that sums depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summed {
    pub bytes: u64,
    pub kind: Kind,
    /// As in [`Entry::stack`].
    pub stack: u32,
    /// [`Attributes::to_word`], perhaps with a size encoding.
    pub attributes: u64,
    /// As in [`Entry::pool`].
    pub pool: u64,
}

impl Summed {
    #[inline]
    pub fn of(entry: &Entry) -> Summed {
        Summed {
            bytes: entry.bytes,
            kind: entry.attributes.kind,
            stack: entry.stack,
            attributes: entry.attributes.to_word(),
            pool: entry.pool,
        }
    }

    /// Device row, or 255.
    #[inline]
    pub fn device(&self) -> u8 {
        Attributes::parts(self.attributes).device
    }
}

numbered! {
    /// How a record's words `amount` and `other` encode bytes, bytes requested and pool: no record needs more than two of
    /// the three.
    pub enum SizeEncoding: u8 {
        /// `amount` was requested and is held; `other` is the pool.
        Plain = 0,
        /// `amount` is the size of something that holds no memory; `other` is the pool.
        Claim = 1,
        /// `amount` is held; `other` was requested; no pool.
        Rounded = 2,
    }
}

/// Bytes, bytes requested, pool.
pub type Amounts = (u64, u64, u64);

impl SizeEncoding {
    /// The upper two bits of the flags.
    const SHIFT: u32 = 16 + 6;
    const MASK: u64 = 3 << SizeEncoding::SHIFT;

    const fn of_word(attributes: u64) -> SizeEncoding {
        match SizeEncoding::from_number((attributes >> SizeEncoding::SHIFT & 3) as u8) {
            Some(encoding) => encoding,
            None => SizeEncoding::Plain,
        }
    }

    /// The word `attributes` without the size encoding.
    pub const fn erased(attributes: u64) -> u64 {
        attributes & !SizeEncoding::MASK
    }

    /// The three numbers of a record, from its words `amount`, `other` and `attributes`.
    #[inline]
    pub const fn amounts(amount: u64, other: u64, attributes: u64) -> Amounts {
        // Nearly always; and the test of one value needs no table.
        if attributes & SizeEncoding::MASK == 0 {
            return (amount, amount, other);
        }
        SizeEncoding::other_amounts(amount, other, attributes)
    }

    #[cold]
    #[inline(never)]
    const fn other_amounts(amount: u64, other: u64, attributes: u64) -> Amounts {
        match SizeEncoding::of_word(attributes) {
            SizeEncoding::Plain => (amount, amount, other),
            SizeEncoding::Claim => (0, amount, other),
            SizeEncoding::Rounded => (amount, other, 0),
        }
    }

    /// The words `amount` and `other`. If three numbers would be needed, the size requested is dropped.
    #[inline(always)]
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

numbered! {
    pub enum Status: u32 {
        Free = 0,
        Writing = 1,
        Live = 2,
        Withdrawn = 3,
        /// Freed after the Python interpreter began to finalize; the record stays.
        FreedAfterScript = 4,
        /// Freed by a handler of `exit`; the record stays.
        FreedAfterMain = 5,
    }
}

impl Status {
    /// Whether the memory was live at an end and was freed after it.
    pub fn is_after_end(self) -> bool {
        matches!(self, Status::FreedAfterScript | Status::FreedAfterMain)
    }
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

    /// `None` for a status that this version does not know.
    pub const fn of(word: u64) -> Option<State> {
        let (status, generation) = halves(word);
        match Status::from_number(status) {
            Some(status) => Some(State { status, generation }),
            None => None,
        }
    }
}

impl Record {
    #[inline(always)]
    pub(super) fn write(&self, key: Key, entry: &Entry) {
        self.address.store(key.address, Relaxed);
        let (encoding, amount, other) = SizeEncoding::words((entry.bytes, entry.requested, entry.pool));
        self.amount.store(amount, Relaxed);
        self.other.store(other, Relaxed);
        self.time_ns.store(entry.time_ns, Relaxed);
        self.extra.store(entry.extra, Relaxed);
        self.place.store(pack(entry.stack, entry.thread), Relaxed);
        self.attributes.store(
            entry.attributes.to_word() | (encoding as u64) << SizeEncoding::SHIFT,
            Relaxed,
        );
    }

    /// The key, of a record that holds an entry.
    pub(super) fn key(&self) -> Option<Key> {
        let parts = Attributes::parts(self.attributes.load(Relaxed));
        Some(Key {
            space: Space::from_number(parts.space)?,
            address: self.address.load(Relaxed),
        })
    }

    #[inline]
    pub(super) fn summed(&self) -> Option<Summed> {
        let attributes = self.attributes.load(Relaxed);
        let (amount, other) = (self.amount.load(Relaxed), self.other.load(Relaxed));
        let (bytes, _, pool) = SizeEncoding::amounts(amount, other, attributes);
        Some(Summed {
            bytes,
            kind: Kind::from_number(Attributes::parts(attributes).kind)?,
            stack: halves(self.place.load(Relaxed)).0,
            attributes,
            pool,
        })
    }

    pub fn entry(&self) -> Option<Entry> {
        let (stack, thread) = halves(self.place.load(Relaxed));
        let attributes = self.attributes.load(Relaxed);
        let (amount, other) = (self.amount.load(Relaxed), self.other.load(Relaxed));
        let (bytes, requested, pool) = SizeEncoding::amounts(amount, other, attributes);
        Some(Entry {
            bytes,
            requested,
            time_ns: self.time_ns.load(Relaxed),
            extra: self.extra.load(Relaxed),
            pool,
            stack,
            thread,
            attributes: Attributes::from_word(attributes)?,
        })
    }
}
