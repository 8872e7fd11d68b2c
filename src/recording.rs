//! The recording from the writer's side: every section, and the operations with which the shim fills them.
//!
//! There is one per process, in memory that is never unmapped: threads may be using it when the process ends or forks. No
//! operation allocates from the heap or fails the caller. None waits, except for an extent of the file that another thread
//! is adding, and that for a limited time. What cannot be stored is counted as a loss.
//!
//! Deliberately absent: calls to CUDA, the loader or the unwinder. The shim makes them; this module stores the results.
//!
//! ```text
//! recording     the file and its header, texts, names, frames and stacks
//! allocations   allocations (`allocated_at`), frees (`withdraw`, `commit`, `restore`), failed requests
//! cells         where each shard's counters are
//! totals        total allocations of each stack, and what was live at the peak
//! ends          the end of the program's own work
//! events        the event log
//! details       devices, contexts, threads, modules
//! python        functions of Python, with their line tables
//! reported      tensors of which an allocator reports each under its own lock
//! frameworks    domains of framework allocators, their totals, marks
//! phases        ranges of time that the program names
//! pages         pages of the program's pools, by state and owner
//! dump          automatic snapshots
//! ```

mod allocations;
mod cells;
mod details;
pub mod dump;
mod ends;
mod events;
mod frameworks;
mod kernels;
mod pages;
mod phases;
mod python;
mod reported;
mod totals;

pub use kernels::KERNEL_NAME_MAX;
pub use pages::PagesId;
pub use phases::{NewPhase, PHASE_NAME_MAX, beginning, hash_of};
pub use python::CodeSeen;
pub use reported::{DEVICES, Outcome, PAGE, Reported, TensorEvent};

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::*};

use crate::cuda_functions::Api;
use crate::file::File;
use crate::file::spool::Folders;
use crate::format::*;
use crate::lockfree::index::{Entry, Index, mix};
use crate::lockfree::intervals::Intervals;
use crate::lockfree::segmented::{Backing, Element, SegmentedArray, extent_capacity, locate};
use crate::lockfree::shards::Owners;
use crate::lockfree::table::Table;
pub use crate::system::monotonic_ns;
use crate::system::{Errno, anonymous, unix_ns};
use cells::{Cells, LastUsed};
use events::Log;

/// The longest text stored, in bytes (a command line, for example); longer texts are truncated.
const TEXT_MAX: usize = 8 << 10;

/// The process, as the header describes it.
pub struct Session<'a> {
    pub pid: u32,
    pub parent_pid: u32,
    pub depth: u32,
    pub process_start_ticks: u64,
    /// Inodes of the process's namespaces; 0: unknown.
    pub pid_namespace: u64,
    pub time_namespace: u64,
    pub executable: &'a [u8],
    /// Arguments, each terminated by a zero byte.
    pub command_line: &'a [u8],
    pub host: &'a [u8],
    pub ranks: [Option<&'a [u8]>; RANK_VARIABLES.len()],
}

/// A loaded module, as the shim found it.
pub struct ModuleSeen<'a> {
    pub path: &'a [u8],
    pub build_id: &'a [u8],
    pub bias: u64,
    pub start: u64,
    pub end: u64,
}

/// What most events read, in one cache line. Private to the process.
#[repr(C, align(64))]
struct Often {
    /// The counter rows by device, kind and shard.
    cells: Cells,
    last_used: LastUsed,
    /// The file's header.
    header: AtomicPtr<Header>,
    /// As in the header.
    started_monotonic_ns: u64,
    /// As in the header.
    sample_bytes: AtomicU64,
    /// The status of records of memory that is freed after the end; 0: the end has not been reached.
    ended: AtomicU64,
    /// How many of these two are enabled: the event log, intervals.
    observers: AtomicU64,
}

const _: () = assert!(size_of::<Often>() == 64, "one cache line");

// All zeros is valid for every field but the file.
#[repr(C)]
pub struct Recording {
    often: Often,
    file: File,
    text: SegmentedArray<AtomicU8>,
    devices: SegmentedArray<DeviceRow>,
    contexts: SegmentedArray<ContextRow>,
    threads: SegmentedArray<ThreadRow>,
    modules: SegmentedArray<ModuleRow>,
    frames: SegmentedArray<FrameRow>,
    failures: SegmentedArray<FailureRow>,
    counters: SegmentedArray<CounterRow>,
    peaks: SegmentedArray<PeakRow>,
    totals: SegmentedArray<TotalRow>,
    apis: SegmentedArray<NameRow>,
    unhooked: SegmentedArray<NameRow>,
    domains: SegmentedArray<NameRow>,
    marks: SegmentedArray<MarkRow>,
    phases: SegmentedArray<PhaseRow>,
    allocators: SegmentedArray<AllocatorRow>,
    codes: SegmentedArray<CodeRow>,
    interpreters: SegmentedArray<InterpreterRow>,
    events: SegmentedArray<EventSegment>,
    frame_names: SegmentedArray<FrameNameRow>,
    variables: SegmentedArray<VariableRow>,
    pages: SegmentedArray<PagesRow>,
    /// Private to the process.
    log: Log,
    /// Names of kernels that were stored. Private to the process.
    kernel_names: AtomicU64,
    /// Where to look for an unused row of pages. Private to the process.
    next_pages: AtomicU32,
    /// Private to the process, and unused unless enabled.
    intervals: Intervals,
    /// Private to the process.
    owners: Owners,
    table: Table,
    frame_index: Index,
    stack_index: Index,
    failure_index: Index,
    domain_index: Index,
    code_index: Index,
    total_index: Index,
    /// Names of phases, marks and kernels, by their place in the text section.
    text_index: Index,
    /// Full hash of each code row.
    code_hashes: SegmentedArray<AtomicU64>,
    /// Full hash of the stack that ends in each frame row: the index alone compares 32 bits.
    stack_hashes: SegmentedArray<AtomicU64>,
}

const HASHES: Backing = Backing::Private(1024, 1 << 18);

/// The inode number of a file; 0 if `stat` fails.
pub fn inode(path: &CStr) -> u64 {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a C string, and room for the result.
    if unsafe { libc::stat(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return 0;
    }
    // SAFETY: the call succeeded, so it initialized `found`.
    unsafe { found.assume_init_ref() }.st_ino
}

impl Recording {
    /// Creates the file and its header.
    ///
    /// # Errors
    /// The errno of the call that failed: see [`File::create`].
    pub fn create(path: &CStr, session: &Session) -> Result<&'static Recording, Errno> {
        Recording::create_or_spool(path, [None; 4], session)
    }

    /// As [`Recording::create`]; where `path` cannot hold a recording, one of the folders does until the process ends.
    ///
    /// # Errors
    /// As [`Recording::create`].
    pub fn create_or_spool(path: &CStr, spools: Folders, session: &Session) -> Result<&'static Recording, Errno> {
        let memory = anonymous(size_of::<Recording>())?.cast::<Recording>();
        // SAFETY: fresh memory, large enough for a recording and so for its file.
        let place = unsafe { &mut *std::ptr::addr_of_mut!((*memory).file).cast::<MaybeUninit<File>>() };
        let file = match File::create(place, path, spools) {
            Ok(file) => file,
            Err(error) => {
                // SAFETY: mapped above with this length; nothing refers to it.
                unsafe { libc::munmap(memory.cast(), size_of::<Recording>()) };
                return Err(error);
            }
        };
        let number = inode(file.mapped_path());
        let header = file.header_mut();
        header.version = VERSION;
        header.byte_order = BYTE_ORDER;
        header.header_bytes = HEADER_BYTES as u32;
        header.directory_capacity = DIRECTORY_CAPACITY as u32;
        header.pid = session.pid;
        header.parent_pid = session.parent_pid;
        header.depth = session.depth;
        header.process_start_ticks = session.process_start_ticks;
        header.started_unix_ns = unix_ns();
        header.pid_namespace = session.pid_namespace;
        header.time_namespace = session.time_namespace;
        header.file_number = number;
        let now = monotonic_ns();
        header.started_monotonic_ns = now;
        // SAFETY: `memory` is zeroed and large enough; `file` is initialized, and zeros are valid for every other field.
        let recording = unsafe { &mut *memory };
        recording.often.started_monotonic_ns = now;
        *recording.often.header.get_mut() = std::ptr::from_mut(recording.file.header_mut());
        // Byte 0 of the section belongs to no name, so that an all-zero `Text` means "no text".
        let _ = recording.text(b"\0");
        let executable = recording.text(session.executable);
        let command_line = recording.text(session.command_line);
        let host = recording.text(session.host);
        let ranks = session.ranks.map(|rank| match rank {
            Some(value) => recording.text(value),
            None => Text::MISSING,
        });
        let header = recording.file.header_mut();
        (header.executable, header.command_line, header.host, header.ranks) = (executable, command_line, host, ranks);
        for api in 0..Api::COUNT {
            recording.name(Section::Apis, &recording.apis, Api(api as u16).name().as_bytes());
        }
        // Last: a file with the magic has a complete header.
        recording.file.header_mut().magic = MAGIC;
        Ok(recording)
    }

    /// Where users find the recording.
    pub fn path(&self) -> &CStr {
        self.file.path()
    }

    /// The file that holds the recording until the process ends, if it is not the one at [`Recording::path`].
    pub fn spool(&self) -> Option<&CStr> {
        self.file.spool()
    }

    /// Copies a spooled recording to its destination.
    ///
    /// # Errors
    /// As [`crate::file::spool::deliver`]; the spooled file is still there.
    pub fn deliver(&self) -> Result<(), Errno> {
        self.file.deliver()
    }

    /// Whether the file that holds the recording is there and can be read.
    pub fn is_readable(&self) -> bool {
        self.file.is_readable()
    }

    /// Whether this is the recorded process. A child that shares its memory, or was made without the fork handlers, is not.
    pub fn is_of_this_process(&self) -> bool {
        // SAFETY: no preconditions.
        self.file.header().pid == unsafe { libc::getpid() } as u32
    }

    /// The error of the last attempt to extend the file, if it failed.
    pub fn trouble(&self) -> Option<Errno> {
        self.file.trouble()
    }

    /// Called in a forked child: the recording belongs to the parent.
    pub fn forked(&self) {
        self.file.forked();
    }

    /// Nanoseconds since the recording began.
    #[inline]
    pub fn now(&self) -> u64 {
        self.since_start(monotonic_ns())
    }

    #[inline]
    fn since_start(&self, now: u64) -> u64 {
        now.saturating_sub(self.often.started_monotonic_ns)
    }

    /// Stacks are taken once in this many bytes on average, or less often where a thread has raised the distance. To be called
    /// before the first event.
    pub fn enable_sampling(&self, bytes: u64) {
        self.file.header().sample_bytes.store(bytes, Relaxed);
        self.often.sample_bytes.store(bytes, Relaxed);
    }

    /// A thread has raised its mean distance this many times.
    pub fn sampling_raised(&self, times: u8) {
        self.file.header().sample_raised.fetch_max(times.into(), Relaxed);
    }

    /// The mean distance of sampled stacks; 0: each block has its stack.
    #[inline]
    fn sample_bytes(&self) -> u64 {
        self.often.sample_bytes.load(Relaxed)
    }

    pub fn add(&self, loss: Loss, amount: u64) {
        self.file.header().losses.0[loss as usize].fetch_add(amount, Relaxed);
    }

    pub fn loss(&self, loss: Loss) -> u64 {
        self.file.header().losses.0[loss as usize].load(Relaxed)
    }

    /// Segments are no longer recorded. The first reason stays: a word of [`crate::rm::Unknown`].
    pub fn end_segments(&self, why: u64) {
        let reason = &self.file.header().losses.0[Loss::SegmentsEnded as usize];
        let _ = reason.compare_exchange(0, why, Relaxed, Relaxed);
    }

    /// Called by the exit handlers: the process ends.
    pub fn end(&self) {
        self.file.header().ended_ns.store(self.now().max(1), Release);
    }

    pub(crate) fn elements(&self, section: Section) -> &AtomicU64 {
        // SAFETY: the header's address since the recording was created, of a mapping that is never unmapped; counts are atomics.
        unsafe { &(*self.often.header.load(Relaxed)).counts[section as usize] }
    }

    fn backing(&self, section: Section) -> Backing<'_> {
        Backing::File(&self.file, section)
    }

    /// False for a second after no row could be added.
    #[inline(never)]
    fn has_room<T: Element>(&self, section: Section, rows: &SegmentedArray<T>) -> bool {
        rows.trouble(self.backing(section), self.elements(section)).is_none()
    }

    /// A fresh row of a section, or `None` if there is no room.
    fn row<'a, T: Element>(&'a self, section: Section, rows: &'a SegmentedArray<T>) -> Option<(u32, &'a T)> {
        if rows.trouble(self.backing(section), self.elements(section)).is_some() {
            return None;
        }
        let number = self.elements(section).fetch_add(1, Relaxed);
        let row = u32::try_from(number).ok().and_then(|number| {
            let row = rows.ensure(self.backing(section), number).ok()?;
            Some((number, row))
        });
        if row.is_none() {
            let _ = self
                .elements(section)
                .compare_exchange(number + 1, number, Relaxed, Relaxed);
        }
        row
    }

    /// Stores a byte string of at most `TEXT_MAX` bytes; empty if there is no room.
    pub fn text(&self, bytes: &[u8]) -> Text {
        self.whole_text(&bytes[..bytes.len().min(TEXT_MAX)])
    }

    /// The same, for any length.
    fn whole_text(&self, bytes: &[u8]) -> Text {
        if bytes.is_empty() {
            return Text::EMPTY;
        }
        let (first, limit) = Section::Text.extent_sizes();
        let (backing, count) = (self.backing(Section::Text), self.elements(Section::Text));
        if self.text.trouble(backing, count).is_some() {
            self.add(Loss::Details, 1);
            return Text::EMPTY;
        }
        let mut end = count.load(Relaxed);
        let start = loop {
            // A text that fits into one extent lies within one.
            let (extent, place) = locate(end as usize, first, limit);
            let room = extent_capacity(extent, first, limit) - place;
            let start = if bytes.len() <= room { end } else { end + room as u64 };
            if start + bytes.len() as u64 > u64::from(NONE) {
                return Text::EMPTY;
            }
            match count.compare_exchange(end, start + bytes.len() as u64, Relaxed, Relaxed) {
                Ok(_) => break start as u32,
                Err(other) => end = other,
            }
        };
        for (index, byte) in bytes.iter().enumerate() {
            let Ok(element) = self.text.ensure(backing, start + index as u32) else {
                // As in `row`: the count must not run ahead of the elements.
                let _ = count.compare_exchange(u64::from(start) + bytes.len() as u64, end, Relaxed, Relaxed);
                self.add(Loss::Details, 1);
                return Text::EMPTY;
            };
            element.store(*byte, Relaxed);
        }
        Text {
            offset: start,
            bytes: bytes.len() as u32,
        }
    }

    fn name(&self, section: Section, rows: &SegmentedArray<NameRow>, name: &[u8]) {
        let text = self.text(name);
        match self.row(section, rows) {
            // Release: the bytes are written before the row refers to them.
            Some((_, row)) => row.text.store(text.to_word(), Release),
            None => self.add(Loss::Details, 1),
        }
    }

    /// Stores a variable of the environment that names a part of a job.
    pub fn variable(&self, name: &[u8], value: &[u8]) {
        let (name, value) = (self.text(name), self.text(value));
        match self.row(Section::Variables, &self.variables) {
            Some((_, row)) => {
                row.value.store(value.to_word(), Relaxed);
                // Release: readers see a value whose name they see.
                row.name.store(name.to_word(), Release);
            }
            None => self.add(Loss::Details, 1),
        }
    }

    /// Records that the program looked up an allocating function for which there is no hook. Each name is stored once.
    pub fn unhooked(&self, name: &[u8]) {
        let count = self.elements(Section::Unhooked).load(Relaxed).min(1000) as u32;
        for number in 0..count {
            let row = self.unhooked.get(self.backing(Section::Unhooked), number);
            if row.is_some_and(|row| self.text_is(Text::from_word(row.text.load(Acquire)), name)) {
                return;
            }
        }
        if count < 1000 {
            self.name(Section::Unhooked, &self.unhooked, name);
        }
    }

    fn text_is(&self, text: Text, name: &[u8]) -> bool {
        if text.bytes as usize != name.len() {
            return false;
        }
        // Only a text that is longer than an extent lies in several.
        match self.text.get_all(self.backing(Section::Text), text.offset, name.len()) {
            Some(stored) => stored
                .iter()
                .zip(name)
                .all(|(stored, byte)| stored.load(Relaxed) == *byte),
            None => name.iter().enumerate().all(|(index, byte)| {
                let element = self.text.get(self.backing(Section::Text), text.offset + index as u32);
                element.is_some_and(|element| element.load(Relaxed) == *byte)
            }),
        }
    }

    /// The stack with this hash, if it is stored.
    #[inline]
    pub fn stack(&self, hash: u64) -> Option<u32> {
        let same = |row| {
            self.stack_hashes
                .get(HASHES, row)
                .is_some_and(|full| full.load(Relaxed) == hash)
        };
        self.stack_index.find(hash, same).map(|entry| entry.row)
    }

    /// Stores `hash` as the hash of the stack that ends in frame row `stack`, replacing its previous hash: that one was
    /// computed before a module was unloaded and is never looked up again.
    pub fn remember_stack(&self, hash: u64, stack: u32) {
        let Ok(full) = self.stack_hashes.ensure(HASHES, stack) else {
            return;
        };
        let before = full.swap(hash, Relaxed);
        if before != hash {
            self.forget_hash(before, stack);
        }
        let same = |row| {
            self.stack_hashes
                .get(HASHES, row)
                .is_some_and(|full| full.load(Relaxed) == hash)
        };
        let _ = self.stack_index.intern(hash, stack, same);
        // Another thread may have replaced this hash before its entry existed and could be removed.
        if full.load(Relaxed) != hash {
            self.forget_hash(hash, stack);
        }
    }

    fn forget_hash(&self, hash: u64, stack: u32) {
        let entry = || self.stack_index.find(hash, |row| row == stack);
        while entry().is_some_and(Entry::remove) {}
    }

    /// The row of the edge `parent` → (module, address). Equal edges share a row.
    pub fn frame(&self, parent: u32, module: Option<u32>, address: u64) -> Option<u32> {
        self.edge(pack(parent, module.map_or(0, |module| module + 1)), address)
    }

    fn edge(&self, parent_module: u64, address: u64) -> Option<u32> {
        let hash = mix(mix(parent_module).wrapping_add(address));
        let backing = self.backing(Section::Frames);
        let same = |row| {
            self.frames.get(backing, row).is_some_and(|row: &FrameRow| {
                row.address.load(Relaxed) == address && row.parent_module.load(Relaxed) == parent_module
            })
        };
        if let Some(entry) = self.frame_index.find(hash, same) {
            return Some(entry.row);
        }
        let (number, row) = self.row(Section::Frames, &self.frames)?;
        row.parent_module.store(parent_module, Relaxed);
        // Release: pairs with readers, which accept a row with an address; the index publishes it to other threads.
        row.address.store(address, Release);
        Some(self.frame_index.intern(hash, number, same).unwrap_or(number))
    }
}

/// Packs bytes into words, truncated or padded with zeros.
fn fill_words(words: &mut [u64], bytes: &[u8]) {
    for (word, chunk) in words.iter_mut().zip(bytes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..chunk.len()].copy_from_slice(chunk);
        *word = u64::from_le_bytes(eight);
    }
}

fn store_bytes<const N: usize>(words: &[AtomicU64; N], bytes: &[u8]) {
    let mut values = [0; N];
    fill_words(&mut values, bytes);
    for (word, value) in words.iter().zip(values) {
        word.store(value, Relaxed);
    }
}

#[cfg(all(test, feature = "read"))]
mod tests;
