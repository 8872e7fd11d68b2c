//! Stacks: native frames with Python frames in between. Each distinct stack is stored once.
//!
//! A stack that its thread has seen twice is known by the words that led through its native frames, and by those of its Python
//! frames ([`culeak_cpython::Chains`]) or the hash of them and of what is beyond it ([`culeak_walker::ReadSets`]). Any other
//! known stack costs a walk, a hash and one look-up. The hash covers the addresses of native frames, and of Python frames the code object and the
//! position in it. Only for a new stack are the two merged. It is stored frame by frame, outermost first, as (module,
//! address in the module) or (function, instruction), so that it stays valid after another module or function is loaded
//! at the same address.
//!
//! Native frames are return addresses, which the CLI symbolizes. Names of Python functions do not outlive the process,
//! so they are stored when a function is first seen, with its line table: the reader computes lines from it
//! (`culeak::reader::python_line`).
//!
//! ```text
//! modules      the modules that addresses belong to, and what happens when they are unloaded
//! merge        native and Python frames as one stack
//! python       Python frames
//! native       the native stack, as a hash
//! driver_call  the name of the driver's function on a stack
//! backward     where the backward pass was started that a thread works for
//! forward      the forward operator that a block is a gradient of
//! ```

pub mod backward;
mod driver_call;
pub mod forward;
mod merge;
mod modules;
mod native;
mod python;

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::*};

use culeak_walker::Registers;

use crate::resolve::closing;
use crate::settings::{DEPTH_MAX, Frames};
use culeak::format::{CUT, Loss, NONE, ROOT};
use culeak::lockfree::index::mix;
use culeak::lockfree::shards::Shard;
use culeak::recording::Recording;
use culeak::system::{Spares, Uncancelled, aside};
use culeak::variables::DEPTH_DEFAULT;

pub use modules::{Closing, unloaded};
pub use python::{
    WATCHES_END, call_at_end, has_script_ended, hides_end, is_end_wanted, is_finalizing as is_interpreter_finalizing,
    may_be_ending, prepare,
};

#[unsafe(link_section = ".data.culeak_events")]
static DEPTH: AtomicUsize = AtomicUsize::new(DEPTH_DEFAULT);
/// A [`Frames`] as a number.
#[unsafe(link_section = ".data.culeak_events")]
static FRAMES: AtomicU8 = AtomicU8::new(Frames::Both as u8);

impl Frames {
    #[inline]
    fn now() -> Frames {
        match FRAMES.load(Relaxed) {
            1 => Frames::Python,
            2 => Frames::Native,
            _ => Frames::Both,
        }
    }
}

/// Sets how many frames of a stack are kept and which, and whether libgcc unwinds instead of the walker.
pub fn configure(depth: usize, frames: Frames, libgcc: bool) {
    DEPTH.store(depth, Relaxed);
    FRAMES.store(frames as u8, Relaxed);
    native::set_libgcc(libgcc);
}

/// In a forked child.
pub fn forked() {
    native::forked();
    python::forked();
    backward::forked();
    forward::forked();
}

/// The number of the calling thread's stack from the frame `at` outwards, which is stored if it is new; `NONE` if it is
/// empty or cannot be stored. `thread` is its row and shard; `before_store` runs before a new stack is stored, which is
/// rare. `is_of_framework`: of a block that a framework handed out.
#[inline(never)]
#[unsafe(link_section = ".text.culeak_events")]
pub fn stack(
    recording: &Recording,
    at: Registers,
    (thread, shard): (u32, Shard),
    is_of_framework: bool,
    before_store: fn(&Recording),
) -> u32 {
    let depth = DEPTH.load(Relaxed).min(DEPTH_MAX);
    let wanted = Frames::now();
    let mut walk = Walk {
        at,
        depth,
        python: (wanted == Frames::Native).then_some(None),
        beyond: Beyond::now(thread, is_of_framework),
        shard,
        is_alone: wanted == Frames::Python && is_of_framework,
    };
    let stack = match walk.known() {
        Some(known) => known,
        None => aside(&walk).stack(recording, wanted, before_store),
    };
    if is_of_framework {
        forward::note(stack);
    }
    stack
}

/// A stack to be taken.
#[derive(Clone, Copy)]
struct Walk {
    at: Registers,
    depth: usize,
    /// The hash of the Python frames, once it is known whether there are some.
    python: Option<Option<u64>>,
    beyond: Beyond,
    shard: Shard,
    /// The Python frames are the stack, if there are some.
    is_alone: bool,
}

impl Walk {
    #[inline(always)]
    fn python(&mut self) -> Option<u64> {
        let hash = || python::is_ready().then(|| python::hash(self.depth)).flatten();
        *self.python.get_or_insert_with(hash)
    }

    /// All that the stack's number depends on beside the native frames.
    #[inline(always)]
    fn key(&mut self) -> u64 {
        let python = self.python().unwrap_or(0);
        self.beyond.mixed_into(python)
    }

    #[inline(always)]
    fn known(&mut self) -> Option<u32> {
        if self.is_alone && self.python().is_some() {
            return None;
        }
        let (at, shard, is_python_key) = (self.at, self.shard, self.is_python_key());
        native::known(at, is_python_key, || self.key(), shard)
    }

    /// Whether the Python frames alone make the key.
    #[inline(always)]
    fn is_python_key(&self) -> bool {
        self.python != Some(None) && self.beyond.is_nothing()
    }

    #[inline(never)]
    #[unsafe(link_section = ".text.culeak_events")]
    fn stack(&mut self, recording: &Recording, wanted: Frames, before_store: fn(&Recording)) -> u32 {
        let &mut Walk {
            at,
            depth,
            beyond,
            shard,
            ..
        } = self;
        let (hash, frames, native) = match self.python() {
            Some(python) if self.is_alone => (python, Frames::Python, None),
            python => {
                let Some(native) = native::hash(at, depth) else {
                    return NONE;
                };
                let whole = python.map_or(native, |python| mix(native ^ python.rotate_left(1)));
                let native_alone = wanted == Frames::Native;
                (whole, if native_alone { wanted } else { Frames::Both }, Some(native))
            }
        };
        let hash = beyond.mixed_into(hash);
        let closing = closing::is_running();
        if !closing && let Some(known) = recording.stack(hash) {
            if let Some(native) = native {
                native::remember(at, depth, native, (self.key(), self.is_python_key()), shard, known);
            }
            return known;
        }
        before_store(recording);
        let stack = {
            let _uncancelled = Uncancelled::begin();
            // SAFETY: all zeros is a value of each part, as the parts state.
            let buffers = unsafe { BUFFERS.take() }.ok();
            buffers.and_then(|mut buffers| store(recording, &mut buffers, at, (depth, beyond), frames, closing))
        };
        match stack {
            Some(stack) if !closing => recording.remember_stack(hash, stack),
            Some(_) => {}
            None => recording.add(Loss::Stacks, 1),
        }
        stack.unwrap_or(NONE)
    }
}

/// What a stack has beside the thread's own frames: the stack that continues it, and the one that it computes the
/// gradient of.
#[derive(Clone, Copy)]
struct Beyond {
    outer: u32,
    /// As the address of a row; 0: none.
    forward: u64,
}

impl Beyond {
    #[inline(always)]
    fn now(thread: u32, is_of_framework: bool) -> Beyond {
        let pass = backward::continuing(thread);
        Beyond {
            outer: pass.unwrap_or(NONE),
            forward: match pass {
                Some(_) if is_of_framework => forward::of_gradient(),
                _ => 0,
            },
        }
    }

    #[inline(always)]
    fn is_nothing(self) -> bool {
        (self.outer, self.forward) == (NONE, 0)
    }

    #[inline(always)]
    fn mixed_into(self, hash: u64) -> u64 {
        match (self.outer, self.forward) {
            (NONE, 0) => hash,
            (outer, forward) => mix(hash.wrapping_add(mix(mix(forward) ^ u64::from(outer)))),
        }
    }
}

/// More threads than this rarely store a new stack at the same time.
static BUFFERS: Spares<Buffers, 8> = Spares::new();

/// Buffers for storing a new stack, too large for the stack of a signal handler. All zeros is a value.
struct Buffers {
    merged: merge::Merged,
    python: python::Frames,
    text: [u8; python::TEXT],
}

/// Walks the stack again, this time keeping the frames, and stores it outermost first, with what is beyond it.
#[cold]
#[inline(never)]
fn store(
    recording: &Recording,
    buffers: &mut Buffers,
    at: Registers,
    (depth, beyond): (usize, Beyond),
    frames: Frames,
    closing: bool,
) -> Option<u32> {
    let merged = &mut buffers.merged;
    merged.clear();
    buffers.python.clear();
    if frames == Frames::Python {
        // The buffer is empty.
    } else if native::uses_libgcc() {
        merged.unwind(at, depth);
    } else {
        merged.walk(at, depth);
    }
    if python::is_absent() {
        // An interpreter that was loaded meanwhile is detected by its module on the stack.
        merged.addresses().for_each(|address| {
            modules::module_of(recording, address, closing);
        });
    }
    python::record_interpreter(recording, frames == Frames::Native);
    if python::reads_by_kernel() || python::hides_end() {
        python::watch_end();
    }
    if frames != Frames::Native && !buffers.python.walk(depth) {
        recording.add(Loss::Python, 1);
    }
    merged.merge(&buffers.python, depth);
    driver_call::store_name(recording, merged.frames(), closing);
    let mut parent = match beyond.outer {
        NONE if merged.cut => CUT,
        NONE => ROOT,
        outer => outer,
    };
    for frame in merged.frames().iter().rev() {
        parent = match frame {
            merge::Frame::Native(address) => {
                let (module, bias) = match modules::module_of(recording, *address, closing) {
                    Some((module, bias)) => (Some(module), bias),
                    None => (None, 0),
                };
                recording.frame(parent, module, address.wrapping_sub(bias))?
            }
            merge::Frame::Python(frame) => match python::code(recording, *frame, &mut buffers.text) {
                Some(code) => recording.python_frame(parent, code, frame.offset)?,
                None => {
                    recording.add(Loss::Python, 1);
                    parent
                }
            },
        };
    }
    match beyond.forward {
        0 => Some(parent),
        forward => recording.gradient_frame(parent, forward),
    }
}
