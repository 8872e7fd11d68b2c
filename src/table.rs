//! The table of live allocations: lock-free, in the recording file, keyed by (address space, address).
//!
//! ```text
//! index (private)             records (in the file)
//! hash(space, address) ─────► │ state │ address │ bytes │ … │      64 bytes each, never moved
//!                             │ state │ …                          free ones are chained, see below
//!
//!                 insert                 withdraw               commit
//!         Free ──────────► Writing ───► Live ──────► Withdrawn ──────► Free, generation + 1
//!                                        ▲               │
//!                                        └── restore ────┘
//! ```
//!
//! *Frees first*: a record is withdrawn before the real free, because the driver may hand the address to another
//! thread before the free returns; it is committed when the free succeeded and restored when it failed.
//!
//! Why it is right:
//! - The state word holds the generation and is changed by compare-and-swap. Of two threads that free one address,
//!   one wins Live → Withdrawn; a stale index entry fails on the generation.
//! - Only the owner of a Free record popped from a chain, or of a fresh one, writes it. Chain heads carry a tag that
//!   changes with every push and pop, so a head seen long ago cannot be mistaken for today's (ABA). Fresh ones are
//!   handed out once each: the count they come from never goes back over one that was used.
//! - Whoever has withdrawn a record is the only one to remove its entry from the index, or to enter it again (but for
//!   physical memory, whose key can be taken from it). So as long as the entry's word names the record it stays so, and
//!   is cleared by a plain store.
//! - A reader in another process takes a record whose state is Live, with the same generation, before and after it
//!   read the fields: they did not change in between, since they change only in Writing (and the address in Free, where
//!   it is a link), and a release fence stands between every such change of state and the first field written after it:
//!
//!   ```text
//!   writer   state := Free or Writing ── fence(Release) ── fields := …          ── state := Live (Release)
//!   reader                               state? (Acquire) ── fields? ── fence(Acquire) ── state?
//!                                        any new field seen ⇒ the second look at the state sees what preceded it
//!   ```
//! - A thread that dies in the middle loses at most the one record it was changing, and the free ones it had in hand.
//!
//! Free records. A thread with a lane of its own gives and takes by unlocked instructions, since nobody else changes the
//! head of its chain. What it has too many of, it passes on as a bundle, by one swap, and from there anybody may take:
//!
//! ```text
//! own      ● ─► ○ ─► ○                 one thread's; at most 32, then all of them become a bundle
//! bundles  ● ─► ○ ─► ○ ─► ○            anybody's: to the right within a bundle (lower half of the record's `address`),
//!          ▼                           down to the next bundle (upper half)
//!          ● ─► ○
//! ```
//!
//! In lanes that threads share every free record is a bundle of one.
//!
//! `loom_models` tries all of this in every interleaving of small tables, with every ordering weakened, every tag and
//! generation ignored in turn, and with a thread dying before each of its operations (docs/proofs.md).

use std::sync::atomic::Ordering::*;

use crate::file::Errno;
use crate::growing::{Backing, Growing};
use crate::index::{Index, mix};
use crate::kind::Kind;
use crate::lanes::Lane;
use crate::layout::{LANES, Section, extent_sizes, halves, pack};
use crate::sync::{Alone, AtomicU64, fence, prefetch};

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
    fn hash(self) -> u64 {
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
    pub what: What,
}

/// The small fields of an entry; one word in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct What {
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

impl What {
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
            (word >> 16) as u8 & What::FLAGS,
            (word >> 24) as u8,
            (word >> 32) as u16,
            (word >> 48) as u16,
        )
    }

    fn from_word(word: u64) -> Option<What> {
        let (kind, space, flags, device, api, context) = What::parts(word);
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
        Some(What {
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
            kind: self.what.kind,
            device: self.what.device,
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
    pub what: AtomicU64,
}
const _: () = assert!(
    size_of::<Record>() == 64,
    "a cache line: an event touches one, and two threads never the same; 10 million live allocations in 640 MB"
);

/// Bytes, bytes requested and pool are three numbers, of which no record needs more than two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Form {
    /// `amount` was requested and is held, `other` is the pool.
    Plain = 0,
    /// `amount` is the span of what holds nothing, `other` the pool.
    Claim = 1,
    /// `amount` is held, `other` was requested; no pool.
    Rounded = 2,
}

/// Bytes, bytes requested, pool.
pub type Amounts = (u64, u64, u64);

impl Form {
    /// The upper two bits of the flags.
    const SHIFT: u32 = 16 + 6;

    const fn of_word(what: u64) -> Form {
        match what >> Form::SHIFT & 3 {
            1 => Form::Claim,
            2 => Form::Rounded,
            _ => Form::Plain,
        }
    }

    /// The word `what` without the form, which tells of the other words only.
    pub const fn erased(what: u64) -> u64 {
        what & !(3 << Form::SHIFT)
    }

    /// The three numbers of a record, from its words `amount`, `other` and `what`.
    pub const fn amounts(amount: u64, other: u64, what: u64) -> Amounts {
        match Form::of_word(what) {
            Form::Plain => (amount, amount, other),
            Form::Claim => (0, amount, other),
            Form::Rounded => (amount, other, 0),
        }
    }

    /// The words `amount` and `other`. Where all three numbers differ, what was requested is given up.
    const fn words((bytes, requested, pool): Amounts) -> (Form, u64, u64) {
        if bytes == requested || bytes != 0 && pool != 0 {
            (Form::Plain, bytes, pool)
        } else if bytes == 0 {
            (Form::Claim, requested, pool)
        } else {
            (Form::Rounded, bytes, requested)
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
    const fn word(self) -> u64 {
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
    fn write(&self, key: Key, entry: &Entry) {
        self.address.store(key.address, Relaxed);
        let (form, amount, other) = Form::words((entry.bytes, entry.requested, entry.pool));
        self.amount.store(amount, Relaxed);
        self.other.store(other, Relaxed);
        self.time_ns.store(entry.time_ns, Relaxed);
        self.extra.store(entry.extra, Relaxed);
        self.place.store(pack(entry.stack, entry.thread), Relaxed);
        self.what
            .store(entry.what.to_word() | (form as u64) << Form::SHIFT, Relaxed);
    }

    /// What sums need to know of it.
    #[inline]
    fn counts(&self) -> Option<Counts> {
        let what = self.what.load(Relaxed);
        let (kind, _, _, device, _, _) = What::parts(what);
        let holds = Form::of_word(what) != Form::Claim;
        Some(Counts {
            bytes: if holds { self.amount.load(Relaxed) } else { 0 },
            kind: Kind::from_number(kind)?,
            device,
        })
    }

    fn read(&self) -> Option<Entry> {
        let (stack, thread) = halves(self.place.load(Relaxed));
        let what = self.what.load(Relaxed);
        let (bytes, requested, pool) = Form::amounts(self.amount.load(Relaxed), self.other.load(Relaxed), what);
        Some(Entry {
            bytes,
            requested,
            time_ns: self.time_ns.load(Relaxed),
            extra: self.extra.load(Relaxed),
            pool,
            stack,
            thread,
            what: What::from_word(what)?,
        })
    }

    fn is(&self, key: Key) -> Option<State> {
        // Acquire: pairs with the Release of whoever made it Live, so the fields belong to this state.
        let state = State::of(self.state.load(Acquire))?;
        let same = state.status == Status::Live
            && self.address.load(Relaxed) == key.address
            && What::parts(self.what.load(Relaxed)).1 == key.space as u8;
        same.then_some(state)
    }
}

/// Fresh records are taken so many at a time, so that neighbours in memory belong to one lane.
const BATCH: u32 = if cfg!(loom) { 4 } else { 16 };
const _: () = assert!(
    extent_sizes(Section::Records).0.is_multiple_of(BATCH as usize),
    "a batch lies in one extent"
);

/// An owner keeps so many free records for itself.
const BUNDLE: u32 = if cfg!(loom) { 2 } else { 32 };

/// Where a lane (a thread, or a few) finds records that nobody has.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
struct Spare {
    /// Bundles of free records, for everybody: tag in the high half, first record of the first one + 1 in the low half.
    bundles: AtomicU64,
    /// Free records of the lane's owner: [`Note`] in the high half, first record + 1 in the low half.
    own: AtomicU64,
    /// Records never used: the next in the low half, the end in the high half.
    batch: AtomicU64,
}

/// A tag and a number of records, never less than there are.
#[derive(Clone, Copy)]
struct Note(u32);

impl Note {
    const COUNT: u32 = 0xff;

    const fn count(self) -> u32 {
        self.0 & Note::COUNT
    }

    /// With the next tag.
    const fn with(self, count: u32) -> u32 {
        (self.0 & !Note::COUNT).wrapping_add(Note::COUNT + 1) | count
    }
}

/// All zeros is an empty table.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Table {
    records: Growing<Record>,
    index: Index,
    spare: [Spare; LANES],
}

/// The table with what it grows by: the file, and the count that tells readers how far to look.
#[derive(Clone, Copy)]
pub struct TableIn<'a> {
    pub table: &'a Table,
    pub backing: Backing<'a>,
    /// Records handed out so far.
    pub fresh: &'a AtomicU64,
    /// Where free records are sought first.
    pub lane: Lane,
}

/// Names one record at one time of its life: a link to a record that was freed since leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    number: u32,
    generation: u32,
}

impl Link {
    pub const fn to_word(self) -> u64 {
        pack(self.number, self.generation)
    }

    pub const fn from_word(word: u64) -> Link {
        let (number, generation) = halves(word);
        Link { number, generation }
    }

    /// A link that leads nowhere.
    pub const NOWHERE: Link = Link {
        number: u32::MAX,
        generation: 0,
    };
}

/// A record on its way out. Must be committed or restored; if neither happens the reader shows it as in flight.
#[must_use]
pub struct Withdrawn {
    number: u32,
    generation: u32,
    key: Key,
    pub entry: Entry,
}

/// A record on its way out without what it says, which lies in the record until then: small enough for registers.
#[must_use]
#[derive(Clone, Copy)]
pub struct Claim {
    number: u32,
    generation: u32,
    key: Key,
}

impl Withdrawn {
    #[inline]
    pub fn into_claim(self) -> Claim {
        Claim {
            number: self.number,
            generation: self.generation,
            key: self.key,
        }
    }
}

/// Where a key was found.
struct Located<'a> {
    place: crate::index::Entry<'a>,
    record: &'a Record,
    state: State,
}

impl<'a> TableIn<'a> {
    /// The claim with what the record says. `None`: it no longer says anything (never, as long as the claim is good).
    pub fn redeem(&self, claim: Claim) -> Option<Withdrawn> {
        Some(Withdrawn {
            number: claim.number,
            generation: claim.generation,
            key: claim.key,
            entry: self.record(claim.number)?.read()?,
        })
    }

    /// As `commit`.
    #[inline]
    pub fn commit_claim(&self, claim: Claim) {
        self.give(claim.number, claim.generation);
    }

    #[inline]
    fn record(&self, number: u32) -> Option<&'a Record> {
        self.table.records.get(self.backing, number)
    }

    /// Asks for the cache lines that `insert` will write.
    #[inline]
    pub fn prepare(&self, key: Key) {
        self.table.index.prepare(key.hash());
        let (link, _) = halves(self.spare(0).own.load(Relaxed));
        if let Some(record) = link.checked_sub(1).and_then(|number| self.record(number)) {
            prefetch(record);
        }
    }

    /// Publishes a live record. Any older one with this key must have been withdrawn before.
    ///
    /// # Errors
    /// Why there is no room: the file or the address space is full.
    pub fn insert(&self, key: Key, entry: &Entry) -> Result<u32, Errno> {
        let (number, record) = self.take()?;
        let generation = halves(record.state.load(Relaxed)).1;
        record.state.store(
            State {
                status: Status::Writing,
                generation,
            }
            .word(),
            Relaxed,
        );
        // Release fence: a reader that sees any field written below also sees the record as Writing.
        fence(Release);
        record.write(key, entry);
        // Release: pairs with the Acquire in `is` and with readers, who look at the fields of Live records only.
        record.state.store(
            State {
                status: Status::Live,
                generation,
            }
            .word(),
            Release,
        );
        if let Err(error) = self.table.index.insert(key.hash(), number) {
            self.give(number, generation);
            return Err(error);
        }
        Ok(number)
    }

    /// The live record of this key, the state it was found in, and its entry in the index.
    #[inline]
    fn locate(&self, key: Key) -> Option<Located<'a>> {
        let mut found = None;
        let place = self.table.index.find(key.hash(), |number| {
            found = self.record(number).and_then(|record| Some((record, record.is(key)?)));
            found.is_some()
        })?;
        let (record, state) = found?;
        Some(Located { place, record, state })
    }

    /// What is recorded for this key.
    pub fn get(&self, key: Key) -> Option<Entry> {
        let Located {
            record, state: before, ..
        } = self.locate(key)?;
        let entry = record.read()?;
        // The fields belong together if the record is still in the state in which we began.
        fence(Acquire);
        (State::of(record.state.load(Relaxed)) == Some(before)).then_some(entry)
    }

    /// Takes the record of this key out of sight, for a free that is about to happen.
    pub fn withdraw(&self, key: Key) -> Option<Withdrawn> {
        let (claim, record) = self.take_out(key)?;
        let entry = record.read()?;
        Some(Withdrawn {
            number: claim.number,
            generation: claim.generation,
            key,
            entry,
        })
    }

    /// As `withdraw`, but what the record says stays there but for its counts.
    #[inline]
    pub fn claim(&self, key: Key) -> Option<(Claim, Counts)> {
        let (claim, record) = self.take_out(key)?;
        Some((claim, record.counts()?))
    }

    #[inline]
    fn take_out(&self, key: Key) -> Option<(Claim, &'a Record)> {
        loop {
            let Located { place, record, state } = self.locate(key)?;
            let gone = State {
                status: Status::Withdrawn,
                ..state
            };
            // Acquire: the fields that are read next were written before it went Live.
            if record
                .state
                .compare_exchange(state.word(), gone.word(), Acquire, Relaxed)
                .is_ok()
            {
                self.forget(key, place);
                let claim = Claim {
                    number: place.row,
                    generation: state.generation,
                    key,
                };
                return Some((claim, record));
            }
        }
    }

    /// Removes the entry of a record that was withdrawn just now.
    #[inline]
    fn forget(&self, key: Key, place: crate::index::Entry<'a>) {
        if key.space == Space::Physical {
            place.remove();
        } else if !place.clear() {
            // Seen long ago: the record was freed meanwhile and served the same key again, entered elsewhere.
            let number = place.row;
            if let Some(place) = self.table.index.find(key.hash(), |row| row == number) {
                place.clear();
            }
        }
    }

    /// The free succeeded: the record may serve another allocation.
    pub fn commit(&self, withdrawn: Withdrawn) -> Entry {
        self.give(withdrawn.number, withdrawn.generation);
        withdrawn.entry
    }

    /// The free failed: the allocation is still there.
    ///
    /// # Errors
    /// When the index has no room any more; the record then stays visible to readers but cannot be freed.
    pub fn restore(&self, withdrawn: Withdrawn) -> Result<(), Errno> {
        let Some(record) = self.record(withdrawn.number) else {
            return Ok(());
        };
        let state = State {
            status: Status::Live,
            generation: withdrawn.generation,
        };
        // Release: as in `insert`; the fields never changed.
        record.state.store(state.word(), Release);
        self.table.index.insert(withdrawn.key.hash(), withdrawn.number)
    }

    /// Changes the `extra` word of a live record (reference counts); returns the new one.
    pub fn update_extra(&self, key: Key, change: impl Fn(u64) -> u64) -> Option<u64> {
        self.update_extra_of(self.link(key)?, change)
    }

    /// A reference to the live record of this key that outlasts the key.
    pub fn link(&self, key: Key) -> Option<Link> {
        let Located { place, state, .. } = self.locate(key)?;
        Some(Link {
            number: place.row,
            generation: state.generation,
        })
    }

    fn linked(&self, link: Link) -> Option<&'a Record> {
        let record = self.record(link.number)?;
        let live = State {
            status: Status::Live,
            generation: link.generation,
        };
        (State::of(record.state.load(Acquire)) == Some(live)).then_some(record)
    }

    /// As `update_extra`, through a link.
    pub fn update_extra_of(&self, link: Link, change: impl Fn(u64) -> u64) -> Option<u64> {
        let record = self.linked(link)?;
        record
            .extra
            .fetch_update(AcqRel, Acquire, |extra| Some(change(extra)))
            .ok()
            .map(&change)
    }

    /// Makes a live record of physical memory unreachable by its key, which may now name something else; links still
    /// reach it.
    pub fn unkey(&self, key: Key) -> bool {
        self.locate(key).is_some_and(|found| found.place.remove())
    }

    /// Makes a live record reachable by its key again.
    pub fn rekey(&self, link: Link) {
        let Some(record) = self.linked(link) else { return };
        let Some(entry) = record.read() else { return };
        let key = Key {
            space: entry.what.space,
            address: record.address.load(Relaxed),
        };
        let _ = self
            .table
            .index
            .intern(key.hash(), link.number, |number| number == link.number);
    }

    /// As `withdraw`, through a link.
    pub fn withdraw_linked(&self, link: Link) -> Option<Withdrawn> {
        let record = self.linked(link)?;
        let live = State {
            status: Status::Live,
            generation: link.generation,
        };
        let gone = State {
            status: Status::Withdrawn,
            ..live
        };
        // Acquire: as in `withdraw`.
        record
            .state
            .compare_exchange(live.word(), gone.word(), Acquire, Relaxed)
            .ok()?;
        let entry = record.read()?;
        let key = Key {
            space: entry.what.space,
            address: record.address.load(Relaxed),
        };
        if let Some(place) = self.table.index.find(key.hash(), |number| number == link.number) {
            self.forget(key, place);
        }
        Some(Withdrawn {
            number: link.number,
            generation: link.generation,
            key,
            entry,
        })
    }

    /// Every live record that `wanted` accepts, withdrawn one by one. Looks at all records: for rare events.
    pub fn withdraw_all(&self, wanted: impl Fn(&Entry) -> bool, mut each: impl FnMut(Withdrawn)) {
        let count = self.fresh.load(Acquire).min(u64::from(u32::MAX)) as u32;
        for number in 0..count {
            let Some(record) = self.record(number) else { continue };
            let Some(State {
                status: Status::Live, ..
            }) = State::of(record.state.load(Acquire))
            else {
                continue;
            };
            let Some(entry) = record.read() else { continue };
            if wanted(&entry) {
                let key = Key {
                    space: entry.what.space,
                    address: record.address.load(Relaxed),
                };
                // By key, so that a record which changed hands meanwhile is judged anew.
                if let Some(withdrawn) = self.withdraw(key) {
                    if wanted(&withdrawn.entry) {
                        each(withdrawn);
                    } else {
                        let _ = self.restore(withdrawn);
                    }
                }
            }
        }
    }

    /// A record nobody else has: one that this lane freed, one of its fresh ones, one that another lane freed, or the
    /// first of a new batch.
    fn take(&self) -> Result<(u32, &'a Record), Errno> {
        let spare = self.spare(0);
        let found = self
            .take_own(spare)
            .or_else(|| self.take_bundle(spare))
            .or_else(|| self.take_fresh(spare))
            .or_else(|| (1..LANES).find_map(|step| self.take_bundle(self.spare(step))));
        if let Some(record) = found {
            return Ok(record);
        }
        let first = self.fresh.fetch_add(BATCH.into(), Relaxed);
        let taken = u32::try_from(first)
            .ok()
            .filter(|&first| first < u32::MAX - BATCH)
            .ok_or(Errno(libc::EFBIG))
            .and_then(|first| Ok((first, self.table.records.ensure(self.backing, first)?)));
        match taken {
            // What is left of an older batch, which another thread of this lane put there meanwhile, stays unused.
            Ok((first, _)) => spare.batch.store(pack(first + 1, first + BATCH), Release),
            // Without this a full disk would let the count run far beyond the records there are.
            Err(_) => {
                let _ = self
                    .fresh
                    .compare_exchange(first + u64::from(BATCH), first, Relaxed, Relaxed);
            }
        }
        taken
    }

    /// What the lane `step` places after this one has.
    fn spare(&self, step: usize) -> &'a Spare {
        &self.table.spare[(self.lane.number() + step) % LANES]
    }

    /// One that the lane's owner keeps; none in a lane that threads share.
    #[inline]
    fn take_own(&self, spare: &Spare) -> Option<(u32, &'a Record)> {
        let mut head = spare.own.load(Relaxed);
        while let (link @ 1.., note) = halves(head) {
            let number = link - 1;
            let record = self.record(number)?;
            let (next, _) = halves(record.address.load(Relaxed));
            let note = Note(note);
            let left = pack(next, note.with(note.count().saturating_sub(1)));
            match spare.own.swap_alone(head, left) {
                Ok(()) => return Some((number, record)),
                Err(other) => head = other,
            }
        }
        None
    }

    /// The first of a bundle. The others go to this lane: to its owner if it has one, else to everybody.
    fn take_bundle(&self, spare: &Spare) -> Option<(u32, &'a Record)> {
        // Acquire: pairs with the Release in `pass_on`, so the links below were written.
        let mut head = spare.bundles.load(Acquire);
        while let (link @ 1.., tag) = halves(head) {
            let number = link - 1;
            let record = self.record(number)?;
            let (rest, next_bundle) = halves(record.address.load(Relaxed));
            match spare
                .bundles
                .compare_exchange_weak(head, pack(next_bundle, tag.wrapping_add(1)), AcqRel, Acquire)
            {
                Ok(_) => {
                    self.keep(rest);
                    return Some((number, record));
                }
                Err(other) => head = other,
            }
        }
        None
    }

    /// Keeps the records from `link` on, which nobody else has.
    fn keep(&self, link: u32) {
        if link == 0 {
            return;
        }
        let own = &self.spare(0).own;
        // Empty, unless a signal handler of this thread has freed something since it was looked at.
        let (first, note) = halves(own.load(Relaxed));
        let kept = self.lane.is_own()
            && first == 0
            && own
                .swap_alone(pack(first, note), pack(link, Note(note).with(BUNDLE - 1)))
                .is_ok();
        if !kept {
            self.pass_on(link);
        }
    }

    #[inline]
    fn take_fresh(&self, spare: &Spare) -> Option<(u32, &'a Record)> {
        // Acquire: pairs with the Release in `take`: the extent was mapped before.
        let mut batch = spare.batch.load(Acquire);
        while let (next, end) = halves(batch)
            && next < end
        {
            let left = pack(next + 1, end);
            let swapped = if self.lane.is_own() {
                spare.batch.swap_alone(batch, left)
            } else {
                let swapped = spare.batch.compare_exchange_weak(batch, left, AcqRel, Acquire);
                swapped.map(|_| ())
            };
            match swapped {
                Ok(()) => return Some((next, self.record(next)?)),
                Err(other) => batch = other,
            }
        }
        None
    }

    fn give(&self, number: u32, generation: u32) {
        let Some(record) = self.record(number) else { return };
        let state = State {
            status: Status::Free,
            generation: generation.wrapping_add(1),
        };
        record.state.store(state.word(), Relaxed);
        // Release fence: a reader that sees the links written below also sees the record as Free.
        fence(Release);
        if !self.lane.is_own() {
            record.address.store(0, Relaxed);
            return self.pass_on(number + 1);
        }
        let own = &self.spare(0).own;
        let mut head = own.load(Relaxed);
        loop {
            let (first, note) = halves(head);
            let note = Note(note);
            let enough = note.count() >= BUNDLE;
            let new = if enough {
                pack(0, note.with(0))
            } else {
                record.address.store(first.into(), Relaxed);
                pack(number + 1, note.with(note.count() + 1))
            };
            match own.swap_alone(head, new) {
                Ok(()) if enough => {
                    self.pass_on(first);
                    head = own.load(Relaxed);
                }
                Ok(()) => return,
                Err(other) => head = other,
            }
        }
    }

    /// Gives the records from `link` on, which nobody else has, to everybody as a bundle.
    fn pass_on(&self, link: u32) {
        let Some(record) = link.checked_sub(1).and_then(|number| self.record(number)) else {
            return;
        };
        let (rest, _) = halves(record.address.load(Relaxed));
        let bundles = &self.spare(0).bundles;
        let mut head = bundles.load(Relaxed);
        loop {
            let (next_bundle, tag) = halves(head);
            record.address.store(pack(rest, next_bundle), Relaxed);
            // Release: pairs with the Acquire in `take_bundle`.
            match bundles.compare_exchange_weak(head, pack(link, tag.wrapping_add(1)), Release, Relaxed) {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
