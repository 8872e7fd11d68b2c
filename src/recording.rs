//! The recording as its writer sees it: every section, and the few operations by which the shim fills them.
//!
//! One per process, in memory of its own that is never given back: threads may be in the middle of it when the
//! process ends or forks. No operation waits, allocates from the heap or fails the caller: what cannot be kept is
//! counted as a loss.
//!
//! Deliberately absent: anything that asks CUDA, the loader or the unwinder. The shim asks; this module keeps.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::*};

use crate::cuda_functions::Api;
use crate::file::{Errno, File, anonymous};
use crate::growing::{Backing, Element, Growing, extent_capacity, locate};
use crate::index::{Index, mix};
use crate::kind::Kind;
use crate::layout::*;
use crate::table::{Entry, Key, Link, Table, TableIn, What, Withdrawn};

/// Longest text kept (a command line, say); longer ones are cut.
const TEXT_MAX: usize = 8 << 10;

/// What the header says about the process.
pub struct Beginning<'a> {
    pub pid: u32,
    pub parent_pid: u32,
    pub depth: u32,
    pub process_start_ticks: u64,
    pub executable: &'a [u8],
    /// Arguments, each ended by a zero byte.
    pub command_line: &'a [u8],
    pub host: &'a [u8],
    pub ranks: [Option<&'a [u8]>; RANK_VARIABLES.len()],
}

/// A loaded file as the shim saw it.
pub struct ModuleSeen<'a> {
    pub path: &'a [u8],
    pub build_id: &'a [u8],
    pub bias: u64,
    pub start: u64,
    pub end: u64,
}

// All zeros is valid for every field but the file.
#[repr(C)]
pub struct Recording {
    file: File,
    text: Growing<AtomicU8>,
    devices: Growing<DeviceRow>,
    contexts: Growing<ContextRow>,
    threads: Growing<ThreadRow>,
    modules: Growing<ModuleRow>,
    frames: Growing<FrameRow>,
    refusals: Growing<RefusalRow>,
    counters: Growing<CounterRow>,
    apis: Growing<NameRow>,
    unhooked: Growing<NameRow>,
    table: Table,
    frame_index: Index,
    stack_index: Index,
    refusal_index: Index,
    /// Full hash of the stack that ends in each frame row, so that a hash met again is trusted on all 64 bits.
    stack_hashes: Growing<AtomicU64>,
}

const HASHES: Backing = Backing::Private(1024, 1 << 18);

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec.
    unsafe { libc::clock_gettime(which, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Recording {
    /// Creates the file and everything behind it.
    ///
    /// # Errors
    /// The errno of what failed: see [`File::create`].
    pub fn create(path: &CStr, begin: &Beginning) -> Result<&'static Recording, Errno> {
        let memory = anonymous(size_of::<Recording>())?.cast::<Recording>();
        let mut file = match File::create(path) {
            Ok(file) => file,
            Err(error) => {
                // SAFETY: mapped above with this length; nothing refers to it.
                unsafe { libc::munmap(memory.cast(), size_of::<Recording>()) };
                return Err(error);
            }
        };
        let header = file.header_mut();
        header.version = VERSION;
        header.byte_order = BYTE_ORDER;
        header.header_bytes = HEADER_BYTES as u32;
        header.directory_capacity = DIRECTORY_CAPACITY as u32;
        header.pid = begin.pid;
        header.parent_pid = begin.parent_pid;
        header.depth = begin.depth;
        header.process_start_ticks = begin.process_start_ticks;
        header.started_unix_ns = clock(libc::CLOCK_REALTIME);
        header.started_monotonic_ns = monotonic_ns();
        // SAFETY: `memory` is fresh, zeroed and large enough; every field but `file` is documented to be valid as zeros.
        let recording = unsafe {
            std::ptr::addr_of_mut!((*memory).file).write(file);
            &mut *memory
        };
        // Text 0 is never handed out for a name, so that an all-zero `Text` means "none".
        let _ = recording.text(b"\0");
        let executable = recording.text(begin.executable);
        let command_line = recording.text(begin.command_line);
        let host = recording.text(begin.host);
        let ranks = begin.ranks.map(|rank| match rank {
            Some(value) => recording.text(value),
            None => Text { offset: 0, bytes: NONE },
        });
        let header = recording.file.header_mut();
        (header.executable, header.command_line, header.host, header.ranks) = (executable, command_line, host, ranks);
        for api in 0..Api::COUNT {
            recording.name(Section::Apis, &recording.apis, Api(api as u16).name().as_bytes());
        }
        // Last: a file with the magic has a whole header.
        recording.file.header_mut().magic = MAGIC;
        Ok(recording)
    }

    pub fn path(&self) -> &CStr {
        self.file.path()
    }

    /// Time since the recording began.
    #[inline]
    pub fn now(&self) -> u64 {
        monotonic_ns().saturating_sub(self.file.header().started_monotonic_ns)
    }

    /// The next sequence number.
    #[inline]
    pub fn next_sequence(&self) -> u64 {
        self.file.header().sequence.fetch_add(1, Relaxed)
    }

    pub fn add(&self, loss: Loss, amount: u64) {
        self.file.header().losses[loss as usize].fetch_add(amount, Relaxed);
    }

    pub fn loss(&self, loss: Loss) -> u64 {
        self.file.header().losses[loss as usize].load(Relaxed)
    }

    /// The exit handlers are running.
    pub fn end(&self) {
        self.file.header().ended_ns.store(self.now().max(1), Release);
    }

    fn count(&self, section: Section) -> &AtomicU64 {
        &self.file.header().counts[section as usize]
    }

    fn backing(&self, section: Section) -> Backing<'_> {
        Backing::File(&self.file, section)
    }

    /// A fresh row of a section, or `None` (and a loss) when there is no room.
    fn row<'a, T: Element>(&'a self, section: Section, rows: &'a Growing<T>) -> Option<(u32, &'a T)> {
        let number = self.count(section).fetch_add(1, Relaxed);
        let row = u32::try_from(number).ok().and_then(|number| {
            let row = rows.ensure(self.backing(section), number).ok()?;
            Some((number, row))
        });
        if row.is_none() {
            let _ = self
                .count(section)
                .compare_exchange(number + 1, number, Relaxed, Relaxed);
        }
        row
    }

    /// Keeps a byte string; an empty one when there is no room.
    pub fn text(&self, bytes: &[u8]) -> Text {
        let nothing = Text { offset: 0, bytes: 0 };
        let bytes = &bytes[..bytes.len().min(TEXT_MAX)];
        if bytes.is_empty() {
            return nothing;
        }
        let (first, limit) = extent_sizes(Section::Text);
        let count = self.count(Section::Text);
        let mut end = count.load(Relaxed);
        let start = loop {
            // A text lies within one extent.
            let (extent, place) = locate(end as usize, first, limit);
            let room = extent_capacity(extent, first, limit) - place;
            let start = if bytes.len() <= room { end } else { end + room as u64 };
            if start + bytes.len() as u64 > u64::from(NONE) {
                return nothing;
            }
            match count.compare_exchange(end, start + bytes.len() as u64, Relaxed, Relaxed) {
                Ok(_) => break start as u32,
                Err(other) => end = other,
            }
        };
        for (index, byte) in bytes.iter().enumerate() {
            let Ok(element) = self.text.ensure(self.backing(Section::Text), start + index as u32) else {
                self.add(Loss::Details, 1);
                return nothing;
            };
            element.store(*byte, Relaxed);
        }
        Text {
            offset: start,
            bytes: bytes.len() as u32,
        }
    }

    fn name(&self, section: Section, rows: &Growing<NameRow>, name: &[u8]) {
        let text = self.text(name);
        match self.row(section, rows) {
            // Release: the bytes are there before the row points to them.
            Some((_, row)) => row.text.store(pack(text.offset, text.bytes), Release),
            None => self.add(Loss::Details, 1),
        }
    }

    /// Notes an allocator-like function handed to the program without a hook. Once per name.
    pub fn unhooked(&self, name: &[u8]) {
        let count = self.count(Section::Unhooked).load(Relaxed).min(1000) as u32;
        for number in 0..count {
            let row = self.unhooked.get(self.backing(Section::Unhooked), number);
            if row.is_some_and(|row| self.text_is(row.text.load(Acquire), name)) {
                return;
            }
        }
        if count < 1000 {
            self.name(Section::Unhooked, &self.unhooked, name);
        }
    }

    fn text_is(&self, word: u64, name: &[u8]) -> bool {
        let (offset, bytes) = halves(word);
        bytes as usize == name.len()
            && name.iter().enumerate().all(|(index, byte)| {
                let element = self.text.get(self.backing(Section::Text), offset + index as u32);
                element.is_some_and(|element| element.load(Relaxed) == *byte)
            })
    }

    /// The device row with this ordinal, if it was ever registered.
    pub fn device(&self, ordinal: i32) -> Option<u8> {
        let count = self
            .count(Section::Devices)
            .load(Relaxed)
            .min(u64::from(What::NO_DEVICE)) as u32;
        (0..count).find_map(|number| {
            let row = self.devices.get(self.backing(Section::Devices), number)?;
            (row.ordinal_plus_one.load(Acquire) as i32 == ordinal + 1).then_some(number as u8)
        })
    }

    /// Registers a device: at most 32 of them.
    pub fn add_device(&self, ordinal: i32, uuid: Option<(bool, [u8; 16])>, name: &[u8]) -> u8 {
        let (_, limit) = extent_sizes(Section::Devices);
        let row = if self.count(Section::Devices).load(Relaxed) < limit as u64 {
            self.row(Section::Devices, &self.devices)
        } else {
            None
        };
        let Some((number, row)) = row else {
            self.add(Loss::Details, 1);
            return What::NO_DEVICE;
        };
        if let Some((mig, bytes)) = uuid {
            row.uuid_kind.store(1 + u32::from(mig), Relaxed);
            store_bytes(&row.uuid, &bytes);
        }
        store_bytes(&row.name, name);
        // Release: pairs with the Acquire in `device` and in readers.
        row.ordinal_plus_one.store((ordinal + 1) as u32, Release);
        number as u8
    }

    /// The row of a context that is alive.
    pub fn context(&self, handle: u64) -> Option<u16> {
        let count = self
            .count(Section::Contexts)
            .load(Relaxed)
            .min(u64::from(What::NO_CONTEXT)) as u32;
        (0..count).find_map(|number| {
            let row = self.context_row(number)?;
            let alive = row.seen_plus_one.load(Acquire) != 0
                && row.handle.load(Relaxed) == handle
                && row.destroyed_plus_one.load(Relaxed) == 0;
            alive.then_some(number as u16)
        })
    }

    fn context_row(&self, number: u32) -> Option<&ContextRow> {
        self.contexts.get(self.backing(Section::Contexts), number)
    }

    /// Registers a context; `created`: by cuCtxCreate, as opposed to a primary context.
    pub fn add_context(&self, handle: u64, device: u8, created: bool) -> u16 {
        match self.row(Section::Contexts, &self.contexts) {
            Some((number, row)) if number < u32::from(What::NO_CONTEXT) => {
                row.handle.store(handle, Relaxed);
                row.device.store(
                    if device == What::NO_DEVICE {
                        NONE
                    } else {
                        u32::from(device)
                    },
                    Relaxed,
                );
                row.created.store(created.into(), Relaxed);
                // Release: pairs with the Acquire in `context` and in readers.
                row.seen_plus_one.store(self.now() + 1, Release);
                number as u16
            }
            _ => {
                self.add(Loss::Details, 1);
                What::NO_CONTEXT
            }
        }
    }

    pub fn context_device(&self, context: u16) -> u8 {
        let device = self
            .context_row(context.into())
            .map_or(NONE, |row| row.device.load(Relaxed));
        u8::try_from(device).unwrap_or(What::NO_DEVICE)
    }

    /// Living primary contexts of a device, as rows.
    pub fn primary_contexts(&self, device: u8) -> impl Iterator<Item = u16> + '_ {
        let count = self
            .count(Section::Contexts)
            .load(Relaxed)
            .min(u64::from(What::NO_CONTEXT)) as u32;
        (0..count).filter_map(move |number| {
            let row = self.context_row(number)?;
            let primary = row.seen_plus_one.load(Acquire) != 0
                && row.created.load(Relaxed) == 0
                && row.device.load(Relaxed) == u32::from(device)
                && row.destroyed_plus_one.load(Relaxed) == 0;
            primary.then_some(number as u16)
        })
    }

    pub fn context_destroyed(&self, context: u16) {
        if let Some(row) = self.context_row(context.into()) {
            row.destroyed_plus_one.store(self.now() + 1, Release);
        }
    }

    /// Registers a thread; `NONE` when there is no room.
    pub fn add_thread(&self, tid: u32, name: &[u8; 16]) -> u32 {
        let Some((number, row)) = self.row(Section::Threads, &self.threads) else {
            self.add(Loss::Details, 1);
            return NONE;
        };
        store_bytes(&row.name, name);
        row.seen_ns.store(self.now(), Relaxed);
        // Release: pairs with the reader's Acquire.
        row.tid.store(tid, Release);
        number
    }

    pub fn rename_thread(&self, thread: u32, name: &[u8; 16]) {
        if let Some(row) = self.threads.get(self.backing(Section::Threads), thread) {
            store_bytes(&row.name, name);
        }
    }

    /// The row of a module that is loaded and has these bounds and this build id.
    pub fn module(&self, seen: &ModuleSeen) -> Option<u32> {
        let mut id = [0u64; 5];
        fill_words(&mut id, seen.build_id);
        let count = self.count(Section::Modules).load(Relaxed) as u32;
        (0..count).rev().find(|&number| {
            self.modules
                .get(self.backing(Section::Modules), number)
                .is_some_and(|row| {
                    row.seen_plus_one.load(Acquire) != 0
                        && row.unloaded_plus_one.load(Relaxed) == 0
                        && (row.start.load(Relaxed), row.end.load(Relaxed)) == (seen.start, seen.end)
                        && row
                            .build_id
                            .iter()
                            .zip(id)
                            .all(|(word, wanted)| word.load(Relaxed) == wanted)
                        && self.text_is(row.path.load(Relaxed), seen.path)
                })
        })
    }

    /// Registers a module. Rows it overlaps were unloaded without our noticing and are marked so.
    pub fn add_module(&self, seen: &ModuleSeen) -> Option<u32> {
        self.for_each_loaded_module(|number, start, end| {
            if start < seen.end && seen.start < end {
                self.module_unloaded(number);
            }
        });
        let Some((number, row)) = self.row(Section::Modules, &self.modules) else {
            self.add(Loss::Details, 1);
            return None;
        };
        let path = self.text(seen.path);
        row.bias.store(seen.bias, Relaxed);
        row.start.store(seen.start, Relaxed);
        row.end.store(seen.end, Relaxed);
        row.path.store(pack(path.offset, path.bytes), Relaxed);
        row.build_id_bytes
            .store(seen.build_id.len().min(BUILD_ID_MAX) as u64, Relaxed);
        store_bytes(&row.build_id, seen.build_id);
        // Release: pairs with the Acquire in `module` and in readers.
        row.seen_plus_one.store(self.now() + 1, Release);
        Some(number)
    }

    /// Number, start and end of every module not yet unloaded.
    pub fn for_each_loaded_module(&self, mut each: impl FnMut(u32, u64, u64)) {
        for number in 0..self.count(Section::Modules).load(Relaxed) as u32 {
            let Some(row) = self.modules.get(self.backing(Section::Modules), number) else {
                continue;
            };
            if row.seen_plus_one.load(Acquire) != 0 && row.unloaded_plus_one.load(Relaxed) == 0 {
                each(number, row.start.load(Relaxed), row.end.load(Relaxed));
            }
        }
    }

    /// Row and load bias of the loaded module whose bounds contain an address.
    pub fn loaded_module_at(&self, address: u64) -> Option<(u32, u64)> {
        (0..self.count(Section::Modules).load(Relaxed) as u32)
            .rev()
            .find_map(|number| {
                let row = self.modules.get(self.backing(Section::Modules), number)?;
                let inside = row.seen_plus_one.load(Acquire) != 0
                    && row.unloaded_plus_one.load(Relaxed) == 0
                    && (row.start.load(Relaxed)..row.end.load(Relaxed)).contains(&address);
                inside.then(|| (number, row.bias.load(Relaxed)))
            })
    }

    pub fn module_unloaded(&self, number: u32) {
        if let Some(row) = self.modules.get(self.backing(Section::Modules), number) {
            row.unloaded_plus_one.store(self.now() + 1, Release);
        }
    }

    /// The stack with this hash, if it was stored.
    #[inline]
    pub fn stack(&self, hash: u64) -> Option<u32> {
        let same = |row| {
            self.stack_hashes
                .get(HASHES, row)
                .is_some_and(|full| full.load(Relaxed) == hash)
        };
        self.stack_index.find(hash, same).map(|entry| entry.row)
    }

    /// Remembers that `hash` stands for the stack that ends in frame row `stack`.
    pub fn remember_stack(&self, hash: u64, stack: u32) {
        if let Ok(full) = self.stack_hashes.ensure(HASHES, stack) {
            full.store(hash, Relaxed);
            let same = |row| {
                self.stack_hashes
                    .get(HASHES, row)
                    .is_some_and(|full| full.load(Relaxed) == hash)
            };
            let _ = self.stack_index.intern(hash, stack, same);
        }
    }

    /// The row of the edge `parent` → (module, address), stored once.
    pub fn frame(&self, parent: u32, module: Option<u32>, address: u64) -> Option<u32> {
        let parent_module = pack(parent, module.map_or(0, |module| module + 1));
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
        // Release: readers take a row with an address as written; the index publishes it to other threads.
        row.address.store(address, Release);
        Some(self.frame_index.intern(hash, number, same).unwrap_or(number))
    }

    /// The table of live allocations; `lane` is any number, best one per thread.
    #[inline]
    pub fn table(&self, lane: u32) -> TableIn<'_> {
        TableIn {
            table: &self.table,
            backing: self.backing(Section::Records),
            fresh: self.count(Section::Records),
            lane,
        }
    }

    /// The sums of one kind on one device; kind `None`: the device's total.
    fn counter(&self, device: u8, kind: Option<Kind>) -> Option<&CounterRow> {
        let slot = if device == What::NO_DEVICE {
            0
        } else {
            device as usize + 1
        };
        let number = slot * COUNTER_STRIDE + kind.map_or(0, |kind| kind as usize);
        let counter = self
            .counters
            .ensure(self.backing(Section::Counters), number as u32)
            .ok()?;
        self.count(Section::Counters)
            .fetch_max(((slot + 1) * COUNTER_STRIDE) as u64, Relaxed);
        Some(counter)
    }

    /// Publishes an allocation and counts it. Whatever was recorded under this key before is gone and counted so.
    pub fn allocated(&self, key: Key, entry: &Entry) -> bool {
        let table = self.table(entry.thread);
        if let Some(stale) = table.withdraw(key) {
            self.uncount(&stale.entry);
            table.commit(stale);
            self.add(Loss::Vanished, 1);
        }
        if table.insert(key, entry).is_err() {
            self.add(Loss::Allocations, 1);
            return false;
        }
        let on_device = entry.what.kind.place().on_device();
        for (kind, wanted) in [(Some(entry.what.kind), true), (None, on_device)] {
            let Some(counter) = wanted.then(|| self.counter(entry.what.device, kind)).flatten() else {
                continue;
            };
            let live = counter
                .live_bytes
                .fetch_add(entry.bytes, Relaxed)
                .wrapping_add(entry.bytes);
            // Exact: the largest of all the values the sum ever had.
            if live > counter.peak_bytes.load(Relaxed) {
                counter.peak_bytes.fetch_max(live, Relaxed);
            }
            counter.live_count.fetch_add(1, Relaxed);
            counter.total_bytes.fetch_add(entry.bytes, Relaxed);
            counter.total_count.fetch_add(1, Relaxed);
        }
        true
    }

    /// Takes an allocation out of sight and out of the sums, for a free that is about to happen.
    pub fn withdraw(&self, key: Key, lane: u32) -> Option<Withdrawn> {
        let withdrawn = self.table(lane).withdraw(key)?;
        self.uncount(&withdrawn.entry);
        Some(withdrawn)
    }

    /// The free succeeded.
    pub fn commit(&self, withdrawn: Withdrawn, lane: u32) -> Entry {
        self.table(lane).commit(withdrawn)
    }

    /// The free failed: back into sight and into the sums.
    pub fn restore(&self, withdrawn: Withdrawn, lane: u32) {
        let entry = withdrawn.entry;
        if self.table(lane).restore(withdrawn).is_err() {
            self.add(Loss::Allocations, 1);
        }
        let on_device = entry.what.kind.place().on_device();
        for (kind, wanted) in [(Some(entry.what.kind), true), (None, on_device)] {
            let Some(counter) = wanted.then(|| self.counter(entry.what.device, kind)).flatten() else {
                continue;
            };
            counter.live_bytes.fetch_add(entry.bytes, Relaxed);
            counter.live_count.fetch_add(1, Relaxed);
            counter.freed_count.fetch_sub(1, Relaxed);
        }
    }

    fn uncount(&self, entry: &Entry) {
        let on_device = entry.what.kind.place().on_device();
        for (kind, wanted) in [(Some(entry.what.kind), true), (None, on_device)] {
            let Some(counter) = wanted.then(|| self.counter(entry.what.device, kind)).flatten() else {
                continue;
            };
            counter.live_bytes.fetch_sub(entry.bytes, Relaxed);
            counter.live_count.fetch_sub(1, Relaxed);
            counter.freed_count.fetch_add(1, Relaxed);
        }
    }

    /// As `withdraw`, through a link.
    pub fn withdraw_linked(&self, link: Link, lane: u32) -> Option<Withdrawn> {
        let withdrawn = self.table(lane).withdraw_linked(link)?;
        self.uncount(&withdrawn.entry);
        Some(withdrawn)
    }

    /// Frees every record that `wanted` accepts; for what a destroyed context takes with it.
    pub fn free_all(&self, lane: u32, wanted: impl Fn(&Entry) -> bool) {
        let table = self.table(lane);
        table.withdraw_all(wanted, |withdrawn| {
            self.uncount(&withdrawn.entry);
            table.commit(withdrawn);
            self.add(Loss::ImplicitFrees, 1);
        });
    }

    /// Sum of live bytes on devices, and of live records there, for the line at exit.
    pub fn live_on_devices(&self) -> (u64, u64) {
        let slots = self.count(Section::Counters).load(Relaxed) as usize / COUNTER_STRIDE;
        (0..slots).fold((0, 0), |(bytes, count), slot| {
            let row = self
                .counters
                .get(self.backing(Section::Counters), (slot * COUNTER_STRIDE) as u32);
            row.map_or((bytes, count), |row| {
                (
                    bytes + row.live_bytes.load(Relaxed),
                    count + row.live_count.load(Relaxed),
                )
            })
        })
    }

    /// Counts an allocation call that failed. `entry.bytes` is what was asked for.
    pub fn refused(&self, entry: &Entry, error: i32) {
        if let Some(counter) = self.counter(entry.what.device, Some(entry.what.kind)) {
            counter.refused_count.fetch_add(1, Relaxed);
        }
        let what = entry.what.to_word();
        let hash = mix(mix(what ^ entry.bytes.rotate_left(17)) ^ pack(entry.stack, error as u32));
        let backing = self.backing(Section::Refusals);
        let same = |row| {
            self.refusals.get(backing, row).is_some_and(|row: &RefusalRow| {
                row.bytes.load(Relaxed) == entry.bytes
                    && row.what.load(Relaxed) == what
                    && halves(row.place.load(Relaxed)).0 == entry.stack
                    && row.error.load(Relaxed) == error as u32 as u64
            })
        };
        let known = self.refusal_index.find(hash, same).map(|entry| entry.row);
        if let Some(row) = known.and_then(|number| self.refusals.get(backing, number)) {
            row.last_ns.fetch_max(entry.time_ns, Relaxed);
            row.count.fetch_add(1, Release);
            return;
        }
        let Some((number, row)) = self.row(Section::Refusals, &self.refusals) else {
            self.add(Loss::Details, 1);
            return;
        };
        row.bytes.store(entry.bytes, Relaxed);
        row.first_ns.store(entry.time_ns, Relaxed);
        row.last_ns.store(entry.time_ns, Relaxed);
        row.what.store(what, Relaxed);
        row.place.store(pack(entry.stack, entry.thread), Relaxed);
        row.error.store(error as u32 as u64, Relaxed);
        // Release: pairs with the reader's Acquire.
        row.count.store(1, Release);
        let _ = self.refusal_index.intern(hash, number, |_| false);
    }
}

/// Packs bytes into words, cut or filled up with zeros.
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
