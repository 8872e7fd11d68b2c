//! Knows a thread's Python frames again by the words that their walk read, so that they need no hash.
//!
//! ```text
//!  thread state ─▶ frame ───── previous ─────▶ frame ───── previous ─────▶ … ─▶ none
//!                  same words?  │ code          same words?  │ code
//!                               └─▶ same words?              └─▶ same words?
//!  chain ────────▶ node ────── outer ────────▶ node ────── outer ────────▶ … ─▶ 0
//! ```
//!
//! **Correctness.** What a walk reports is a function of the words that it reads ([`chain`](crate::chain)): of each frame its code,
//! caller, instruction, owner and copy, and of its code the type, size, first traceable instruction, version and first line. All
//! of them are compared, from the thread state outwards. By induction along the chain: the address of the first frame is the same, so a
//! walk would read the same words, which are equal, so it would read the same code and caller, and so on to the end. So
//! frames that hold have the hash that a walk would give. The address of a copy of the instructions is known by the code, its version and
//! the number of the copy, of which the walk keeps it ([`first_of_copy`](crate::chain)).
//!
//! **Readable.** Only on a thread that may read directly ([`directly`]), and only addresses that a walk has read there: an address is
//! compared before what is at it is read. As for a walk, a page that was unmapped since could only be met in an inconsistent chain.
//!
//! **Memory.** A node is shared by all chains that go on as it does. It is never changed: when no more fit, all chains are
//! forgotten together. The nodes are mapped when a thread's first chain is remembered, and never unmapped.
//!
//! Deliberately absent: code objects without a version, of CPython before 3.12. Their stamp is a digest of names and line tables, which
//! would have to be read and compared each time.

use std::cell::UnsafeCell;

use crate::chain::{Link, Start, directly};
use crate::interpreter::{Interpreter, ready};
use crate::layout::{Chain, OBJECT_SIZE, OBJECT_TYPE};
use crate::memory::{Direct, Memory, View, read_before};
use culeak_walker::{mapped, mix_in};

/// 128 KiB for each thread.
const NODES: usize = 2048;
/// A look-up ends early at three quarters.
const FULL: u32 = 3 * NODES as u32 / 4;
/// The most frames of a chain.
const LONGEST: usize = 256;

/// Chains of one thread at a time. Null: none yet.
pub struct Chains(UnsafeCell<*mut Table>);

// SAFETY: used by one walk at a time, as callers promise.
unsafe impl Sync for Chains {}

/// Zeros are a table without nodes.
#[repr(C)]
struct Table {
    /// Of open addressing. The first is not used, so that 0 names no chain.
    nodes: [Node; NODES],
    /// A chain that is being read, innermost first.
    read: [Node; LONGEST],
    count: u32,
}

/// What a walk reads of a frame, and the node of its caller. Zeros are none.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
struct Node {
    frame: u64,
    code: u64,
    instruction: u64,
    outer: u32,
    copy: u32,
    parts: Parts,
    owner: u8,
}

/// What a walk reads of a code object; zeros of a frame that runs no Python code.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Parts {
    size: u64,
    first_traceable: u32,
    version: u32,
    first_line: u32,
}

const _: () = assert!(size_of::<Node>() == 64, "a line of the cache");

impl Parts {
    /// `None` if there is no code object.
    #[inline(always)]
    fn of(interpreter: &Interpreter, object: View) -> Option<Parts> {
        let layout = &interpreter.layout;
        (object.word(OBJECT_TYPE + layout.head) == interpreter.code_type).then(|| Parts {
            size: object.word(OBJECT_SIZE + layout.head),
            first_traceable: object.half(layout.code.first_traceable),
            version: object.half(layout.code.version),
            first_line: object.half(layout.code.first_line),
        })
    }
}

impl Chains {
    pub const fn none() -> Chains {
        Chains(UnsafeCell::new(std::ptr::null_mut()))
    }

    /// Whether the calling thread's frames are those of a chain.
    ///
    /// # Safety
    /// The chain was remembered since the last `clear`, and no other walk uses these chains meanwhile.
    #[inline(always)]
    pub unsafe fn hold(&self, chain: u32) -> bool {
        // SAFETY: as promised.
        ready().is_some_and(|interpreter| unsafe { self.hold_in(interpreter, chain) })
    }

    /// # Safety
    /// As of `hold`.
    #[inline(always)]
    unsafe fn hold_in(&self, interpreter: &Interpreter, chain: u32) -> bool {
        // SAFETY: mapped, since a chain was remembered.
        let nodes = unsafe { &(**self.0.get()).nodes };
        let holds = |thread| holds(interpreter, thread, nodes, chain);
        directly(interpreter, interpreter.this_thread(), holds) == Some(true)
    }

    /// Remembers the calling thread's frames as a chain, if they can be.
    ///
    /// # Safety
    /// No other walk uses these chains meanwhile.
    pub unsafe fn remember(&self) -> Option<u32> {
        // SAFETY: as promised.
        unsafe { self.remember_in(ready()?) }
    }

    /// # Safety
    /// As of `remember`.
    #[cold]
    unsafe fn remember_in(&self, interpreter: &Interpreter) -> Option<u32> {
        if interpreter.layout.chain != Chain::EntryFrame {
            return None;
        }
        // SAFETY: no other walk uses the table, as promised; it is never unmapped, and any bytes are a valid table.
        let table = unsafe {
            let table = &mut *self.0.get();
            if table.is_null() {
                *table = mapped()?;
            }
            &mut **table
        };
        directly(interpreter, interpreter.this_thread(), |thread| {
            let count = read(interpreter, thread, &mut table.read)?;
            (0..count).rev().try_fold(0, |outer, place| table.node(place, outer))
        })?
    }

    /// Whether no more nodes fit.
    ///
    /// # Safety
    /// As of `remember`.
    pub unsafe fn is_full(&self) -> bool {
        // SAFETY: as in `remember_in`.
        unsafe { (*self.0.get()).as_ref() }.is_some_and(|table| table.count >= FULL)
    }

    /// Forgets all chains, of which there are some.
    ///
    /// # Safety
    /// As of `remember`.
    pub unsafe fn clear(&self) {
        // SAFETY: as in `remember_in`.
        unsafe { (*self.0.get()).write_bytes(0, 1) };
    }
}

#[inline(always)]
fn holds(interpreter: &Interpreter, thread: u64, nodes: &[Node; NODES], chain: u32) -> bool {
    let Some(Start { mut frame, .. }) = Start::of(interpreter, thread, &mut Direct::new()) else {
        return false;
    };
    let layout = &interpreter.layout;
    let mut at = chain;
    while at != 0 {
        let node = &nodes[at as usize % NODES];
        if node.frame != frame {
            return false;
        }
        // SAFETY: a walk has read this frame.
        let link = Link::read(&layout.frame, unsafe { read_before(frame, layout.frame.bytes) }, frame);
        let differs =
            (link.code ^ node.code) | (link.instruction ^ node.instruction) | u64::from(link.copy ^ node.copy);
        if link.owner != node.owner || link.is_python() && differs != 0 {
            return false;
        }
        if link.is_python() {
            // SAFETY: a walk has read the code object at the address that has just been compared.
            let object = unsafe { read_before(link.code, layout.code.bytes) };
            if Parts::of(interpreter, object) != Some(node.parts) {
                return false;
            }
        }
        (frame, at) = (link.previous, node.outer);
    }
    frame == 0
}

/// Reads a thread's frames. Returns their number; `None` if they are too many, lead to something else or have no version.
fn read(interpreter: &Interpreter, thread: u64, nodes: &mut [Node; LONGEST]) -> Option<usize> {
    let (mut frames, mut codes) = (Direct::new(), Direct::new());
    let Start { mut frame, .. } = Start::of(interpreter, thread, &mut frames)?;
    let mut count = 0;
    while frame != 0 {
        let link = Link::of(interpreter, &mut frames, frame)?;
        let mut parts = Parts::default();
        if link.is_python() {
            parts = Parts::of(interpreter, codes.object(link.code, interpreter.layout.code.bytes)?)?;
            if parts.version == 0 {
                return None;
            }
        }
        *nodes.get_mut(count)? = Node {
            frame,
            code: link.code,
            instruction: link.instruction,
            outer: 0,
            copy: link.copy,
            parts,
            owner: link.owner,
        };
        (frame, count) = (link.previous, count + 1);
    }
    Some(count)
}

impl Table {
    /// The node of the frame that was read at this place, whose caller has the node `outer`.
    fn node(&mut self, place: usize, outer: u32) -> Option<u32> {
        let mut node = self.read[place];
        node.outer = outer;
        let mixed = mix_in(mix_in(node.frame, node.instruction), u64::from(outer));
        let mut at = (mixed >> (64 - NODES.ilog2())) as usize;
        while at == 0 || self.nodes[at].frame != 0 && self.nodes[at] != node {
            at = (at + 1) % NODES;
        }
        if self.nodes[at].frame == 0 {
            self.count = Some(self.count + 1).filter(|&count| count <= FULL)?;
            self.nodes[at] = node;
        }
        Some(at as u32)
    }
}

#[cfg(test)]
mod tests;
