//! Takes the calling thread's Python stack out of the interpreter's own memory, for a few loads a frame.
//!
//! ```text
//! thread state ──▶ frame ──▶ frame ──▶ … ──▶ mark ──▶ frame ──▶ … ──▶ mark ──▶ none
//!                    │         │               │
//!                    ▼         ▼               └ lies in the C frame of the interpreter call that runs the frames
//!                  code      code                before it: this is where they belong in the native stack
//!                    └ file, function, line table
//! ```
//!
//! A thread's chain of frames is changed by that thread alone, and while it is in a CUDA call it is not running Python.
//! Every frame keeps its code object alive, and names and line tables never change. So the chain can be read without
//! the GIL, without allocating and without asking the interpreter to do anything ([`chain`]). What lies where differs
//! from version to version ([`layout`]) and is checked against the running interpreter before anything is believed
//! ([`interpreter`]): if it does not check out there are no Python frames, and a reason that can be shown.
//!
//! It lives in other people's processes: no lock, no heap, no panic, `errno` as it was. Memory that may not be what it
//! seems is read so that the worst outcome is [`End::Lost`] ([`memory`]).
//!
//! An address alone does not name a code object, since a new one soon lies where another was freed. With the address
//! goes a stamp: the version number that CPython 3.12 and later give every code object, before that a digest of its
//! contents.
//!
//! Deliberately absent: decoding of line tables and everything else that can be done later, in another process; other
//! threads' stacks; locals and values of any kind.

mod chain;
mod code;
mod interpreter;
mod layout;
mod memory;

pub use code::Described;
pub use interpreter::{Status, code_address, forked, native_eval, prepare, status};

/// One Python call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Address of the code object.
    pub code: u64,
    /// Tells apart code objects that had the same address one after the other.
    pub stamp: u64,
    /// Of the instruction being executed, in bytes from the first; [`BEFORE_FIRST`] if there is none yet.
    pub offset: u32,
}

/// The frame has not begun: its line is the function's first.
pub const BEFORE_FIRST: u32 = u32::MAX;

/// What a walk meets, innermost first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    Frame(Frame),
    /// The frames since the last mark are those of one interpreter call, in whose C frame this address lies. 0: it leaves
    /// nothing there (before 3.10), so it is known by its code ([`native_eval`]).
    Mark(u64),
}

/// Why a stack has no more frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The thread has no Python stack, or it cannot be had.
    Nothing,
    /// All were seen.
    Root,
    /// There are more.
    Full,
    /// The chain leads to something that is no frame.
    Lost,
}

/// Shows the calling thread's frames to `see`, at most `limit` of them.
#[inline]
pub fn walk(limit: usize, see: impl FnMut(Seen)) -> End {
    match interpreter::ready() {
        Some(interpreter) => chain::walk(interpreter, limit, see),
        None => End::Nothing,
    }
}

/// Names and line table of a code object that a walk has just shown, in `buffer`.
pub fn describe(frame: Frame, buffer: &mut [u8]) -> Option<Described<'_>> {
    code::describe(interpreter::ready()?, frame, buffer)
}
