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
use culeak_walker::mix_in;

/// 128 KiB for each thread.
const NODES: usize = 2048;
/// A look-up ends early at three quarters.
const FULL: u32 = 3 * NODES as u32 / 4;
/// The most frames of a chain.
const LONGEST: usize = 256;

/// Chains of one thread at a time.
pub struct Chains(UnsafeCell<State>);

// SAFETY: used by one walk at a time, as callers promise.
unsafe impl Sync for Chains {}

struct State {
    /// Null: not mapped yet.
    table: *mut Table,
    count: u32,
}

#[repr(C)]
struct Table {
    /// Of open addressing. The first is not used, so that 0 names no chain.
    nodes: [Node; NODES],
    /// A chain that is being read, innermost first.
    read: [Node; LONGEST],
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
    pub const fn new() -> Chains {
        Chains(UnsafeCell::new(State {
            table: std::ptr::null_mut(),
            count: 0,
        }))
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
        // SAFETY: the table is mapped, since a chain was remembered.
        let nodes = unsafe { &(*(*self.0.get()).table).nodes };
        directly(interpreter, interpreter.this_thread(), |thread| {
            holds(interpreter, thread, nodes, chain)
        }) == Some(true)
    }

    /// Remembers the calling thread's frames as a chain; 0 if they cannot be.
    ///
    /// # Safety
    /// No other walk uses these chains meanwhile.
    #[cold]
    #[inline(never)]
    pub unsafe fn remember(&self) -> u32 {
        // SAFETY: as promised.
        ready()
            .and_then(|interpreter| unsafe { self.remember_in(interpreter) })
            .unwrap_or(0)
    }

    /// # Safety
    /// As of `remember`.
    unsafe fn remember_in(&self, interpreter: &Interpreter) -> Option<u32> {
        if interpreter.layout.chain != Chain::EntryFrame {
            return None;
        }
        // SAFETY: the caller's promise.
        let state = unsafe { &mut *self.0.get() };
        let chain = directly(interpreter, interpreter.this_thread(), |thread| {
            let table = state.table()?;
            let count = read(interpreter, thread, &mut table.read)?;
            (0..count).rev().try_fold(0, |outer, place| state.node(place, outer))
        });
        chain.flatten()
    }

    /// Whether no more nodes fit.
    ///
    /// # Safety
    /// As of `remember`.
    pub unsafe fn is_full(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { (*self.0.get()).count >= FULL }
    }

    /// # Safety
    /// As of `remember`; the names of all chains are forgotten.
    #[cold]
    pub unsafe fn clear(&self) {
        // SAFETY: the caller's promise; null, or mapped and never unmapped. Zeros are no nodes.
        unsafe {
            let state = &mut *self.0.get();
            if let Some(table) = state.table.as_mut() {
                std::ptr::write_bytes(&raw mut table.nodes, 0, 1);
            }
            state.count = 0;
        }
    }
}

impl Default for Chains {
    fn default() -> Chains {
        Chains::new()
    }
}

#[inline(always)]
fn holds(interpreter: &Interpreter, thread: u64, nodes: &[Node; NODES], chain: u32) -> bool {
    let Some(Start { mut frame, .. }) = Start::of(interpreter, thread, &mut Direct::new()) else {
        return false;
    };
    let mut at = chain;
    while at != 0 {
        let node = &nodes[at as usize % NODES];
        if node.frame != frame {
            return false;
        }
        // SAFETY: a walk has read this frame.
        let here = unsafe { read_before(frame, interpreter.layout.frame.bytes) };
        let link = Link::read(&interpreter.layout.frame, here, frame);
        let differs =
            (link.code ^ node.code) | (link.instruction ^ node.instruction) | u64::from(link.copy ^ node.copy);
        if link.owner != node.owner || link.is_python() && differs != 0 {
            return false;
        }
        if link.is_python() {
            // SAFETY: a walk has read the code object at the address that has just been compared.
            let object = unsafe { read_before(link.code, interpreter.layout.code.bytes) };
            if Parts::of(interpreter, object) != Some(node.parts) {
                return false;
            }
        }
        (frame, at) = (link.previous, node.outer);
    }
    frame == 0
}

/// Reads the frames of a thread that has some. Returns their number; `None` if they are too many, lead to something else or have no
/// version.
fn read(interpreter: &Interpreter, thread: u64, nodes: &mut [Node; LONGEST]) -> Option<usize> {
    let (mut frames, mut codes) = (Direct::new(), Direct::new());
    let Start { mut frame, .. } = Start::of(interpreter, thread, &mut frames)?;
    let mut count = 0;
    while frame != 0 {
        let link = Link::of(interpreter, &mut frames, frame)?;
        let parts = match link.is_python() {
            true => Parts::of(interpreter, codes.object(link.code, interpreter.layout.code.bytes)?)?,
            false => Parts::default(),
        };
        if link.is_python() && parts.version == 0 {
            return None;
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
        count += 1;
        frame = link.previous;
    }
    Some(count)
}

impl State {
    fn table(&mut self) -> Option<&mut Table> {
        if self.table.is_null() {
            self.table = culeak_walker::mapped()?;
        }
        // SAFETY: mapped and never unmapped; integers, of which every value is valid.
        Some(unsafe { &mut *self.table })
    }

    /// The node of the frame that was read at this place, whose caller has the node `outer`.
    fn node(&mut self, place: usize, outer: u32) -> Option<u32> {
        let is_full = self.count >= FULL;
        let table = self.table()?;
        let node = Node {
            outer,
            ..table.read[place]
        };
        let mixed = mix_in(mix_in(node.frame, node.instruction), u64::from(outer));
        let mut at = (mixed >> (64 - NODES.ilog2())) as usize;
        loop {
            match table.nodes.get_mut(at).filter(|_| at != 0) {
                Some(known) if *known == node => return Some(at as u32),
                Some(free) if free.frame == 0 => {
                    if is_full {
                        return None;
                    }
                    *free = node;
                    self.count += 1;
                    return Some(at as u32);
                }
                _ => at = (at + 1) % NODES,
            }
        }
    }
}

#[cfg(test)]
mod tests;
