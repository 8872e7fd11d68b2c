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
pub struct Frames {
    addresses: [u64; DEPTH_MAX + OURS],
    count: usize,
    /// There were more, or the walk could not go on.
    cut: bool,
}

/// Room for our own frames, which are left out.
const OURS: usize = 16;

impl Frames {
    #[inline(never)]
    pub fn of_this_thread(depth: usize) -> Frames {
        let depth = depth.min(DEPTH_MAX);
        let mut frames = Frames {
            addresses: [0; DEPTH_MAX + OURS],
            count: 0,
            cut: false,
        };
        if LIBGCC.load(Relaxed) {
            frames.unwind(depth);
        } else {
            frames.walk(depth);
        }
        frames
    }

    /// By our own walker: a few loads a frame.
    fn walk(&mut self, depth: usize) {
        let walked = walker::walk(Registers::here(), &mut self.addresses[..depth + OURS]);
        let (start, end) = real::own_bounds();
        // Ours stand at the start, and where a runtime hook stood around the driver's.
        for place in 0..walked.count {
            let address = self.addresses[place];
            if !(start..end).contains(&address) {
                self.addresses[self.count] = address;
                self.count += 1;
            }
        }
        self.cut = walked.end != End::Root || self.count > depth;
        self.count = self.count.min(depth);
    }

    /// By libgcc: the portable way, and the judge of the other.
    #[cold]
    fn unwind(&mut self, depth: usize) {
        let visit = |frame: &backtrace::Frame| {
            let address = frame.ip() as u64;
            if address == 0 {
                return false;
            }
            if real::is_ours(address) {
                return true;
            }
            if self.count == depth {
                self.cut = true;
                return false;
            }
            self.addresses[self.count] = address;
            self.count += 1;
            true
        };
        // SAFETY: "unsynchronized" concerns the crate's symbolizer, which is not used here: the walk itself
        // (_Unwind_Backtrace over _dl_find_object) keeps no shared state.
        unsafe { backtrace::trace_unsynchronized(visit) };
    }

    fn addresses(&self) -> &[u64] {
        &self.addresses[..self.count]
    }

    fn hash(&self) -> u64 {
        let start = mix(GENERATION.load(Acquire) ^ u64::from(self.cut) << 63);
        self.addresses()
            .iter()
            .fold(start, |hash, &address| mix(hash ^ address))
    }
}

/// Stores the calling thread's stack and returns its number, or `NONE`.
pub fn stack(recording: &Recording) -> u32 {
    let frames = Frames::of_this_thread(DEPTH.load(Relaxed));
    if frames.count == 0 {
        return NONE;
    }
    let closing = CLOSING.load(Acquire) != 0;
    let hash = frames.hash();
    if !closing && let Some(known) = recording.stack(hash) {
        return known;
    }
    // A new stack is rare enough to look whether the thread has been given a name meanwhile.
    crate::recorder::refresh_thread_name(recording);
    let mut parent = if frames.cut { CUT } else { ROOT };
    for &address in frames.addresses().iter().rev() {
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
    if !closing {
        recording.remember_stack(hash, parent);
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
