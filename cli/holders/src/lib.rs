//! Finds what keeps GPU memory alive: for each block, the shortest path of references from a root of the process.
//!
//! ```text
//! source ──► copy ──┬─► modules ─► native ─┐
//! /proc,     pages  │                      ├─► walk ──► garbage ──► classes ──► paths ──► culeak::snapshot::Holders
//! core file         └─► python ────────────┘   graph    cycles      one per     names,
//!                                                                   block       dominators
//! ```
//!
//! The memory of the process is copied in large batches, without stopping it and without running code in it. The walk goes
//! forward from the roots (Python's modules, frames and threads; then globals of libraries and stacks), because a backward
//! search for the pointers to a block joins unrelated memory. Each block gets exactly one
//! [`Class`](culeak::snapshot::Class).
//!
//! A copy of a running process is inconsistent: arrays and the objects that refer to them are copied at different times. So
//! a block that one copy does not explain is searched for in further copies ([`Options::copies`]), objects that look like
//! garbage are read again, and each path is read again before it is reported.
//!
//! * `request`: the blocks, the options and the errors of a search
//! * [`source`]: a process or a core file: regions, pages, threads
//! * [`copy`]: the copied pages, addressed as in the process
//! * [`modules`]: the ELF files in it: globals and their symbols
//! * [`demangle`]: names of C++ and Rust
//! * [`native`]: heap chunks, classes of C++ objects, native roots
//! * [`python`]: objects of CPython and the references between them
//! * [`pytorch`], [`xla`], [`objects`]: the blocks of a process that was never recorded
//! * [`graph`]: nodes and edges in a few bytes each
//! * `blocks`: the block that an address belongs to
//! * `bits`: a bit for each of many numbers
//! * `parallel`: work that several threads share
//! * `budget`: how much a search reads before it stops
//! * `walk`: the breadth-first search
//! * [`garbage`]: what only refers to itself
//! * `evidence`: pointers in the whole copy, to what the walk does not explain
//! * `records`: pointers to blocks that PyTorch's allocator keeps itself
//! * [`findings`]: what the search of one copy found
//! * [`classes`]: the class of each block, over all copies
//! * `counted`: references that the counts of C++ objects do not contain
//! * `host`: host memory of holders, and of the whole process
//! * `groups`: objects of Python and C++ that only own each other
//! * `variables`: variables of native code that hold blocks
//! * [`paths`]: paths in the user's words; dominators and retained bytes
//!
//! Deliberately absent: which blocks exist, call sites, and text for terminals. Device memory, pinned memory and managed
//! memory are not searched.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "ranges of addresses are values here, not sequences"
)]

mod bits;
mod blocks;
mod budget;
pub mod classes;
pub mod copy;
mod counted;
pub mod demangle;
mod evidence;
pub mod findings;
pub mod garbage;
pub mod graph;
mod groups;
mod host;
pub mod modules;
pub mod native;
pub mod objects;
mod parallel;
pub mod paths;
pub mod python;
pub mod pytorch;
mod records;
mod request;
pub mod source;
mod variables;
mod walk;
pub mod xla;

#[cfg(test)]
mod process_tests;

use culeak::snapshot::Holders;

pub use crate::budget::Deadline;
pub use crate::copy::Stopped;
pub(crate) use crate::request::starts_with_one;
pub use crate::request::{Block, DebugFiles, Error, LIMIT, Map, Options, Set, StillLive};
use crate::source::Source;

/// Finds the holders of these blocks, which are sorted by address.
///
/// # Errors
/// The memory cannot be read at all, or the process runs an interpreter whose structures are not known.
pub fn search(source: &dyn Source, blocks: &[Block], options: &Options) -> Result<Holders, Error> {
    classes::search(source, None, blocks, options)
}

/// As [`search`], in one copy that was made while the process was stopped. [`Options::copies`] has no effect.
///
/// # Errors
/// The process runs an interpreter whose structures are not known.
pub fn search_stopped(stopped: Stopped, blocks: &[Block], options: &Options) -> Result<Holders, Error> {
    classes::search(stopped.copy.source(), Some(stopped), blocks, options)
}
