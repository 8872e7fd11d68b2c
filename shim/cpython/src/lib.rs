//! Reads the calling thread's Python stack from the interpreter's memory, for a few loads a frame.
//!
//! ```text
//! thread state ──▶ frame ──▶ frame ──▶ … ──▶ boundary ──▶ frame ──▶ … ──▶ boundary ──▶ none
//!                    │         │                 │
//!                    ▼         ▼                 └ an address in the C frame of the interpreter call that runs the frames
//!                  code      code                  before it: their place in the native stack
//!                    └ file, function, line table
//! ```
//!
//! Only the thread itself changes its chain of frames, and while it is in a CUDA call it is not running Python. Every frame
//! keeps its code object alive, and names and line tables never change; in free-threaded builds the collector stops all threads
//! that run Python, and takes what the frames of the others refer to as used. So the chain can be read without the GIL, without
//! allocating and without running any Python code. Offsets differ between versions and are checked against the
//! running interpreter before they are used. If a check fails there are no Python frames, and [`Status`] has the reason.
//!
//! This crate runs inside other programs: but for [`ending`], it takes no lock, waits for nothing, allocates nothing, never panics and preserves `errno`. Memory
//! is read so that the worst outcome of a wrong pointer is [`End::Lost`].
//!
//! An address alone does not identify a code object: a new one is soon allocated where another was freed. So a frame also
//! has a stamp: the version number that CPython 3.12 and later give every code object, and before that a digest of its
//! contents.
//!
//! * [`chain`]: the walk along a thread's frames
//! * [`chains`]: knows a thread's frames again by the words that their walk read
//! * [`stamp`]: identifies a code object together with its address
//! * [`code`]: file, function and line table of a code object
//! * [`interpreter`]: the interpreter of this process, and the thread's state in it
//! * [`examine`]: whether the interpreter is one whose structures are known
//! * [`direct`]: when a thread without the GIL may read its frames by plain loads
//! * [`ending`]: calls a function when a script has ended; the only part that changes the interpreter, and only on request
//! * [`layout`]: the offsets in each version's structures
//! * [`memory`]: reads of memory that may be freed at any time
//! * [`sync`]: the atomics of [`direct`], and how it waits
//!
//! Deliberately absent: decoding of line tables (`src/reader/python_line.rs`) and everything else that can be done later, in
//! another process; other threads' stacks; locals and values of any kind.

mod chain;
mod chains;
mod code;
mod direct;
mod ending;
mod examine;
mod interpreter;
mod layout;
mod memory;
mod stamp;
mod sync;

pub use chain::{BEFORE_FIRST, End, Frame, Seen, reads_by_kernel};
pub use chains::Chains;
pub use code::Described;
pub use ending::{call_at_end, is_wanted as is_end_wanted};
pub use interpreter::{
    Status, code_address, has_script_ended, hides_end, is_finalizing, may_be_ending, native_eval, prepare, status,
};

/// Calls `see` with the calling thread's frames, at most `limit` of them, and the boundaries between them.
#[inline]
#[unsafe(link_section = ".text.culeak_events")]
pub fn walk(limit: usize, see: impl FnMut(Seen)) -> End {
    match interpreter::ready() {
        Some(interpreter) => chain::walk(interpreter, limit, see),
        None => End::Nothing,
    }
}

/// Whether the process has an interpreter whose frames can be read.
#[inline(always)]
pub fn is_ready() -> bool {
    interpreter::ready().is_some()
}

/// Names and line table of a code object that a walk has just reported. The result borrows `buffer`.
pub fn describe(frame: Frame, buffer: &mut [u8]) -> Option<Described<'_>> {
    code::describe(interpreter::ready()?, frame, buffer)
}

/// In a forked child: the parent's other threads do not exist here.
pub fn forked() {
    interpreter::forked();
    direct::GATE.forked();
    ending::forked();
}
