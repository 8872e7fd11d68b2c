//! Where an allocation came from: the native stack, stored once, with every frame tied to its module.
//!
//! A stack met before costs one hash and one look-up. A new one is stored frame by frame, outermost first, as (module,
//! address in the module), so that it still means something after the module is gone and another lies in its place.
//!
//! Frames are return addresses; their names are the CLI's work.

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

/// The innermost frames of the calling thread, without our own.
pub struct Frames<const ROOM: usize> {
    addresses: [u64; ROOM],
    count: usize,
    /// There were more, or the walk could not go on.
    cut: bool,
}

/// Room for our own frames, which are left out.
const OURS: usize = 16;
/// Enough for most stacks: clearing room for the deepest would cost as much as walking one of these.
const USUAL: usize = 64;
const DEEPEST: usize = DEPTH_MAX + OURS;

impl<const ROOM: usize> Frames<ROOM> {
    fn none() -> Self {
        Frames {
            addresses: [0; ROOM],
            count: 0,
            cut: false,
        }
    }

    /// By our own walker: a few loads a frame. `None` when there is not enough room.
    #[inline(always)]
    fn walked(depth: usize) -> Option<Self> {
        let mut frames = Self::none();
        let room = ROOM.min(depth + OURS);
        let walked = walker::walk(Registers::here(), &mut frames.addresses[..room]);
        if walked.end == End::Full && room < depth + OURS {
            return None;
        }
        let (start, end) = real::own_bounds();
        // Ours stand at the start, and where a runtime hook stood around the driver's.
        for place in 0..walked.count {
            let address = frames.addresses[place];
            if !(start..end).contains(&address) {
                frames.addresses[frames.count] = address;
                frames.count += 1;
            }
        }
        frames.cut = walked.end != End::Root || frames.count > depth;
        frames.count = frames.count.min(depth);
        Some(frames)
    }

    /// By libgcc: the portable way, and the judge of the other.
    fn unwound(depth: usize) -> Self {
        let mut frames = Self::none();
        let visit = |frame: &backtrace::Frame| {
            let address = frame.ip() as u64;
            if address == 0 {
                return false;
            }
            if real::is_ours(address) {
                return true;
            }
            if frames.count == depth {
                frames.cut = true;
                return false;
            }
            frames.addresses[frames.count] = address;
            frames.count += 1;
            true
        };
        // SAFETY: "unsynchronized" concerns the crate's symbolizer, which is not used here: the walk itself
        // (_Unwind_Backtrace over _dl_find_object) keeps no shared state.
        unsafe { backtrace::trace_unsynchronized(visit) };
        frames
    }

    fn addresses(&self) -> &[u64] {
        &self.addresses[..self.count]
    }

    /// All 64 bits count: a stack is known by its hash. Two lanes, since a multiplication waits for the one before.
    fn hash(&self) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let step = |hash: u64, address: u64| (hash.rotate_left(29) ^ address).wrapping_mul(ODD);
        let mut lanes = [GENERATION.load(Acquire), u64::from(self.cut) << 32 | self.count as u64];
        let mut pairs = self.addresses().chunks_exact(2);
        for pair in &mut pairs {
            lanes = [step(lanes[0], pair[0]), step(lanes[1], pair[1])];
        }
        for &address in pairs.remainder() {
            lanes[0] = step(lanes[0], address);
        }
        mix(mix(lanes[0]) ^ lanes[1])
    }
}

/// Stores the calling thread's stack and returns its number, or `NONE`.
#[inline(never)]
pub fn stack(recording: &Recording) -> u32 {
    let depth = DEPTH.load(Relaxed).min(DEPTH_MAX);
    if LIBGCC.load(Relaxed) {
        return deep_stack(recording, depth, true);
    }
    match Frames::<USUAL>::walked(depth) {
        Some(frames) => number(recording, &frames),
        None => deep_stack(recording, depth, false),
    }
}

#[cold]
#[inline(never)]
fn deep_stack(recording: &Recording, depth: usize, libgcc: bool) -> u32 {
    let walked = if libgcc { None } else { Frames::<DEEPEST>::walked(depth) };
    number(recording, &walked.unwrap_or_else(|| Frames::unwound(depth)))
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
