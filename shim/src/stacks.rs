//! Where an allocation came from: native frames and Python's in between, stored once, every frame tied to its module or
//! its function.
//!
//! A stack met before costs a walk, a hash and one look-up: of native frames the hash takes the addresses, of Python's
//! the code objects and where they are in them. Only for a new stack is it worked out how the two belong together
//! ([`merge`]). It is stored frame by frame, outermost first, as (module, address in the module) or (function, instruction),
//! so that it still means something after the module or the function is gone and another lies in its place.
//!
//! Frames are return addresses; their names are the CLI's work. Python's have names, which are gone when the process is,
//! so they are written down on first sight ([`python`]).

mod merge;
mod modules;
mod python;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

use culeak_walker::{self as walker, End, Registers, Trail};

use crate::resolve::real::{self, GENERATION};
use crate::settings::DEPTH_MAX;
use culeak::format::{CUT, Loss, NONE, ROOT, SHARDS};
use culeak::lockfree::index::mix;
use culeak::lockfree::shards::Shard;
use culeak::recording::Recording;
use culeak::system::{Uncancelled, anonymous};

pub use modules::{Closing, are_closing, is_closing_here};
pub use python::prepare;

static DEPTH: AtomicUsize = AtomicUsize::new(128);

static LIBGCC: AtomicBool = AtomicBool::new(false);

/// One per shard, in memory that is touched where used.
static TRAILS: [Trail; SHARDS] = [const { Trail::new() }; SHARDS];

/// How many frames of a stack are kept, and whether libgcc shall find them, from now on.
pub fn configure(depth: usize, libgcc: bool) {
    DEPTH.store(depth, Relaxed);
    LIBGCC.store(libgcc, Relaxed);
}

/// What the innermost native frames of the calling thread come to, without our own. None of them is kept: a stack is
/// usually known, and a new one is walked again.
struct Native {
    count: usize,
    /// At most so many are wanted.
    limit: usize,
    /// There were more, or the walk could not go on.
    cut: bool,
    /// Two shards in turn, since a multiplication waits for the one before.
    hash: [u64; 2],
    ours: (u64, u64),
}

impl Native {
    #[inline(always)]
    fn none(depth: usize) -> Native {
        Native {
            count: 0,
            limit: depth,
            cut: false,
            hash: [GENERATION.load(Acquire), 0],
            ours: real::own_bounds(),
        }
    }

    /// By our own walker: a few loads a frame.
    #[inline(always)]
    fn walk(&mut self, at: Registers) {
        let walked = walker::walk_each(at, |place, address, _| {
            if place == 0 {
                self.clear();
            }
            self.add(address)
        });
        self.cut = walked.end != End::Root;
    }

    /// By libgcc: the portable way, and the judge of the other.
    #[cold]
    #[inline(never)]
    fn unwind(&mut self) {
        self.cut = unwind(|address, _| self.add(address));
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
        self.count += 1;
        let [first, second] = self.hash;
        self.hash = [second, step(first, address)];
        true
    }

    fn clear(&mut self) {
        self.count = 0;
        self.hash = [GENERATION.load(Acquire), 0];
    }
}

#[inline(always)]
fn step(hash: u64, word: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    (hash.rotate_left(29) ^ word).wrapping_mul(ODD)
}

/// In a forked child.
pub fn forked() {
    for trail in &TRAILS {
        trail.forked();
    }
    python::forked();
}

/// Shows libgcc's frames to `keep`, code address and stack pointer, until it says no: whether it did.
fn unwind(mut keep: impl FnMut(u64, u64) -> bool) -> bool {
    let mut refused = false;
    let visit = |frame: &backtrace::Frame| {
        let address = frame.ip() as u64;
        refused = address != 0 && !keep(address, frame.sp() as u64);
        address != 0 && !refused
    };
    // SAFETY: "unsynchronized" concerns the crate's symbolizer, which is not used here: the walk itself
    // (_Unwind_Backtrace over _dl_find_object) keeps no shared state.
    unsafe { backtrace::trace_unsynchronized(visit) };
    refused
}

/// The hash of the calling thread's native stack; `None` for an empty one. Where it is whole and not too deep, only what
/// changed since the thread's last one is walked.
#[inline(always)]
fn native_hash(at: Registers, depth: usize, shard: Shard) -> Option<u64> {
    let libgcc = LIBGCC.load(Relaxed);
    if !libgcc
        && let trail = &TRAILS[shard.number()]
        && let Some(whole) = trail.follow(at, real::own_bounds(), GENERATION.load(Acquire), shard.is_own())
        && whole.count as usize <= depth
    {
        return (whole.count > 0).then(|| mix(whole.hash ^ u64::from(whole.count)));
    }
    let mut native = Native::none(depth);
    if libgcc {
        native.unwind();
    } else {
        native.walk(at);
    }
    (native.count > 0).then(|| native.hash())
}

/// The number of the calling thread's stack from the frame `at` outwards, which is stored if it is new; or `NONE`.
/// `shard`: where the thread works.
#[inline(never)]
pub fn stack(recording: &Recording, at: Registers, shard: Shard) -> u32 {
    let depth = DEPTH.load(Relaxed).min(DEPTH_MAX);
    let Some(native) = native_hash(at, depth, shard) else {
        return NONE;
    };
    let closing = modules::are_closing();
    let hash = python::hash(native, depth);
    if !closing && let Some(known) = recording.stack(hash) {
        return known;
    }
    let stack = with_scratch(|scratch| store(recording, scratch, at, depth, closing)).flatten();
    match stack {
        Some(stack) if !closing => recording.remember_stack(hash, stack),
        Some(_) => {}
        None => recording.add(Loss::Stacks, 1),
    }
    stack.unwrap_or(NONE)
}

/// What storing a new stack needs, kept off the stack, which may be the small one of a signal handler. All zeros is a
/// value.
#[repr(C)]
struct Scratch {
    merged: merge::Merged,
    python: python::Frames,
    text: [u8; python::TEXT],
}

fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> Option<R> {
    let _uncancelled = Uncancelled::new();
    let memory = anonymous(size_of::<Scratch>()).ok()?;
    // SAFETY: mapped just now with this size, zeroed, which is a value of it, and ours alone until it is unmapped.
    let result = work(unsafe { &mut *memory.cast::<Scratch>() });
    // SAFETY: mapped above; nothing borrows it any more.
    unsafe { libc::munmap(memory.cast(), size_of::<Scratch>()) };
    Some(result)
}

/// Walks the stack once more, this time for everything, and stores it outermost first.
#[cold]
#[inline(never)]
fn store(recording: &Recording, scratch: &mut Scratch, at: Registers, depth: usize, closing: bool) -> Option<u32> {
    // A new stack is rare enough to look whether the thread has been given a name meanwhile, or the process Python.
    crate::recorder::refresh_thread_name(recording);
    let merged = &mut scratch.merged;
    if LIBGCC.load(Relaxed) {
        merged.unwind(at, depth);
    } else {
        merged.walk(at, depth);
    }
    if python::is_absent() {
        // An interpreter that was loaded meanwhile is noticed by its module on the stack.
        merged.addresses().for_each(|address| {
            modules::module_of(recording, address, closing);
        });
    }
    python::note(recording);
    if !scratch.python.walk(depth) {
        recording.add(Loss::Python, 1);
    }
    merged.merge(&scratch.python, depth);
    let mut parent = if merged.cut { CUT } else { ROOT };
    for frame in merged.frames().iter().rev() {
        parent = match frame {
            merge::Frame::Native(address) => {
                let (module, bias) = match modules::module_of(recording, *address, closing) {
                    Some((module, bias)) => (Some(module), bias),
                    None => (None, 0),
                };
                recording.frame(parent, module, address.wrapping_sub(bias))?
            }
            merge::Frame::Python(frame) => match python::code(recording, *frame, &mut scratch.text) {
                Some(code) => recording.python_frame(parent, code, frame.offset)?,
                None => {
                    recording.add(Loss::Python, 1);
                    parent
                }
            },
        };
    }
    Some(parent)
}
