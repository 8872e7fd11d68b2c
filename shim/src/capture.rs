//! Where an allocation came from: the native stack, stored once, with every frame tied to its module.
//!
//! A stack met before costs one hash and one look-up. A new one is stored frame by frame, outermost first, as (module,
//! address in the module), so that it still means something after the module is gone and another lies in its place.
//!
//! Frames are return addresses; their names are the CLI's work.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};

use culeak_walker::{self as walker, End, Registers};

use crate::loader::{self, Loaded};
use crate::real::{self, GENERATION};
use crate::settings::DEPTH_MAX;
use culeak::file::{Uncancelled, anonymous};
use culeak::index::mix;
use culeak::layout::{CUT, Loss, NONE, ROOT};
use culeak::recording::{ModuleSeen, Recording};

/// How many calls of dlclose are under way: meanwhile nothing that was cached by address is believed.
static CLOSING: AtomicU32 = AtomicU32::new(0);

static DEPTH: AtomicUsize = AtomicUsize::new(128);

static LIBGCC: AtomicBool = AtomicBool::new(false);

/// How many frames of a stack are kept, and whether libgcc shall find them, from now on.
pub fn configure(depth: usize, libgcc: bool) {
    DEPTH.store(depth, Relaxed);
    LIBGCC.store(libgcc, Relaxed);
}

/// The innermost frames of the calling thread, without our own, and what they come to.
pub struct Frames<const ROOM: usize> {
    addresses: [MaybeUninit<u64>; ROOM],
    count: usize,
    /// At most so many are wanted.
    limit: usize,
    /// There were more, or the walk could not go on.
    cut: bool,
    /// Two lanes in turn, since a multiplication waits for the one before.
    hash: [u64; 2],
    ours: (u64, u64),
}

/// Enough for most stacks.
const USUAL: usize = 64;

impl<const ROOM: usize> Frames<ROOM> {
    #[inline(always)]
    fn none(depth: usize) -> Self {
        Frames {
            addresses: [const { MaybeUninit::uninit() }; ROOM],
            count: 0,
            limit: depth.min(ROOM),
            cut: false,
            hash: [GENERATION.load(Acquire), 0],
            ours: real::own_bounds(),
        }
    }

    /// By our own walker: a few loads a frame. False when there is not enough room.
    #[inline(always)]
    fn walk(&mut self, at: Registers, depth: usize) -> bool {
        let walked = walker::walk_each(at, |place, address, _| {
            if place == 0 {
                self.clear();
            }
            self.add(address)
        });
        self.cut = walked.end != End::Root;
        walked.end != End::Full || self.limit == depth
    }

    /// By libgcc: the portable way, and the judge of the other.
    fn unwind(&mut self) {
        let visit = |frame: &backtrace::Frame| {
            let address = frame.ip() as u64;
            if address == 0 {
                return false;
            }
            let more = self.add(address);
            self.cut |= !more;
            more
        };
        // SAFETY: "unsynchronized" concerns the crate's symbolizer, which is not used here: the walk itself
        // (_Unwind_Backtrace over _dl_find_object) keeps no shared state.
        unsafe { backtrace::trace_unsynchronized(visit) };
    }

    fn addresses(&self) -> &[u64] {
        // SAFETY: the first `count` were written by `add`.
        unsafe { std::slice::from_raw_parts(self.addresses.as_ptr().cast(), self.count) }
    }

    /// All 64 bits count: a stack is known by its hash.
    fn hash(&self) -> u64 {
        mix(mix(self.hash[0]) ^ self.hash[1] ^ (u64::from(self.cut) << 32 | self.count as u64))
    }

    /// One frame more; false: no more are wanted, this one included.
    #[inline(always)]
    fn add(&mut self, address: u64) -> bool {
        // Ours stand at the start, and where a runtime hook stood around the driver's.
        if (self.ours.0..self.ours.1).contains(&address) {
            return true;
        }
        if self.count == self.limit {
            return false;
        }
        self.addresses[self.count].write(address);
        self.count += 1;
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let [first, second] = self.hash;
        self.hash = [second, (first.rotate_left(29) ^ address).wrapping_mul(ODD)];
        true
    }

    fn clear(&mut self) {
        self.count = 0;
        self.hash = [GENERATION.load(Acquire), 0];
    }
}

/// Stores the calling thread's stack, from the frame `at` outwards, and returns its number, or `NONE`.
#[inline(never)]
pub fn stack(recording: &Recording, at: Registers) -> u32 {
    let depth = DEPTH.load(Relaxed).min(DEPTH_MAX);
    let mut frames = Frames::<USUAL>::none(depth);
    if LIBGCC.load(Relaxed) || !frames.walk(at, depth) {
        return deep_stack(recording, at, depth);
    }
    number(recording, &frames)
}

#[cold]
#[inline(never)]
fn deep_stack(recording: &Recording, at: Registers, depth: usize) -> u32 {
    let mut frames = Frames::<DEPTH_MAX>::none(depth);
    if LIBGCC.load(Relaxed) {
        frames.unwind();
    } else {
        frames.walk(at, depth);
    }
    number(recording, &frames)
}

/// The number of a stack, which is stored if it is new.
#[inline]
fn number<const ROOM: usize>(recording: &Recording, frames: &Frames<ROOM>) -> u32 {
    if frames.count == 0 {
        return NONE;
    }
    let closing = CLOSING.load(Acquire) != 0;
    let hash = frames.hash();
    if !closing && let Some(known) = recording.stack(hash) {
        return known;
    }
    let stack = store(recording, frames.addresses(), frames.cut, closing);
    if !closing && stack != NONE {
        recording.remember_stack(hash, stack);
    }
    stack
}

/// Stores a stack frame by frame, outermost first.
#[cold]
#[inline(never)]
fn store(recording: &Recording, addresses: &[u64], cut: bool, closing: bool) -> u32 {
    // A new stack is rare enough to look whether the thread has been given a name meanwhile.
    crate::recorder::refresh_thread_name(recording);
    let mut parent = if cut { CUT } else { ROOT };
    for &address in addresses.iter().rev() {
        let (module, bias) = match module_of(recording, address, closing) {
            Some((module, bias)) => (Some(module), bias),
            None => (None, 0),
        };
        match recording.frame(parent, module, address.wrapping_sub(bias)) {
            Some(row) => parent = row,
            None => {
                recording.add(Loss::Stacks, 1);
                return NONE;
            }
        }
    }
    parent
}

/// The row and load bias of the module that contains an address.
fn module_of(recording: &Recording, address: u64, ask_loader: bool) -> Option<(u32, u64)> {
    if !ask_loader && let Some(known) = recording.loaded_module_at(address) {
        return Some(known);
    }
    identify(recording, address)
}

/// Asks the loader, and registers the module on first sight. Its buffers are kept off the stack, which may be the small
/// one of a signal handler.
#[cold]
#[inline(never)]
fn identify(recording: &Recording, address: u64) -> Option<(u32, u64)> {
    let _uncancelled = Uncancelled::new();
    let scratch = anonymous(SCRATCH).ok()?;
    // SAFETY: mapped just now with this length, zeroed, and ours alone until it is unmapped.
    let buffer = unsafe { std::slice::from_raw_parts_mut(scratch, SCRATCH) };
    let found = loader::find_containing(address, |loaded| {
        let (start, end) = loaded.bounds();
        let path = path_of(loaded, start, buffer);
        let seen = ModuleSeen {
            path,
            build_id: loaded.build_id(),
            bias: loaded.bias(),
            start,
            end,
        };
        let row = recording.module(&seen).or_else(|| recording.add_module(&seen));
        row.map(|row| (row, seen.bias))
    })
    .flatten();
    // SAFETY: mapped above; nothing borrows it any more.
    unsafe { libc::munmap(scratch.cast(), SCRATCH) };
    found
}

const SCRATCH: usize = 16 << 10;

/// An absolute path: the loader's name where it is one, else what the kernel says is mapped there.
fn path_of<'a>(loaded: &'a Loaded, start: u64, buffer: &'a mut [u8]) -> &'a [u8] {
    let name = loaded.name();
    if name.first() == Some(&b'/') || name.starts_with(b"linux-vdso") {
        return name;
    }
    match loader::mapped_path(start, buffer) {
        b"" => name,
        path => path,
    }
}

/// A `dlclose` under way.
pub struct Closing {
    unloads: u64,
}

impl Closing {
    pub fn begin() -> Closing {
        // AcqRel: captures that begin from now on see it.
        CLOSING.fetch_add(1, AcqRel);
        walker::closing_began();
        Closing {
            unloads: loader::unloads(),
        }
    }

    /// After the real call: modules that are gone get their end, and a new generation voids what was cached.
    pub fn end(self) {
        if loader::unloads() != self.unloads {
            if let Some(recording) = crate::recorder::running() {
                end_unloaded_modules(recording);
            }
            GENERATION.fetch_add(1, AcqRel);
            walker::generation_changed();
        }
        walker::closing_ended();
        CLOSING.fetch_sub(1, AcqRel);
    }
}

fn end_unloaded_modules(recording: &Recording) {
    // One bit per module row. Rows beyond would keep their module loaded, until something else lands in its place.
    let mut present = [0u64; 64];
    loader::find_loaded(|loaded| {
        let bounds = loaded.bounds();
        recording.for_each_loaded_module(|row, start, end| {
            if (start, end) == bounds
                && let Some(bits) = present.get_mut(row as usize / 64)
            {
                *bits |= 1 << (row % 64);
            }
        });
        None::<()>
    });
    recording.for_each_loaded_module(|row, _, _| {
        if present
            .get(row as usize / 64)
            .is_some_and(|bits| bits & 1 << (row % 64) == 0)
        {
            recording.module_unloaded(row);
        }
    });
}
