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
pub mod source;
mod variables;
mod walk;
pub mod xla;

#[cfg(test)]
mod process_tests;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use culeak::snapshot::Holders;
use foldhash::fast::FixedState;

pub use crate::budget::Deadline;
use crate::copy::Image;
use crate::source::Source;

/// A map that hashes its keys fast, in the same way in each run.
pub type Map<K, V> = HashMap<K, V, FixedState>;
/// As [`Map`], of values.
pub type Set<T> = HashSet<T, FixedState>;

/// Whether a text begins with one of these.
pub(crate) fn starts_with_one(text: &str, of: &[&str]) -> bool {
    of.iter().any(|start| text.starts_with(start))
}

/// A block of GPU memory whose holders are searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub address: u64,
    /// At least 1. Blocks do not overlap.
    pub bytes: u64,
    /// Time of the allocation, which identifies the block in a recording together with its address.
    pub time_ns: u64,
    /// A block of PyTorch's caching allocator. The allocator's own records point to all of them, so other pointers to it than
    /// those of a `StorageImpl` or a Python object are examined.
    pub of_torch: bool,
    /// No memory, but the handle of an object. It is searched for in one copy.
    pub is_handle: bool,
}

/// What to search, and how much to spend.
#[derive(Clone)]
pub struct Options {
    /// A process that runs on is copied again until this many copies in succession explain no further block.
    pub copies: u32,
    /// Stop the process while its memory is copied.
    pub pause: bool,
    /// Memory that is not searched: device, pinned and managed blocks.
    pub excluded: Vec<Range<u64>>,
    /// Stop searching this long after the first copy was made; what is found until then is reported. What takes a time in proportion to
    /// the memory of the process, as the copy does, is done in any case.
    pub limit: Duration,
    /// Asked before a process is copied again, so that blocks that were freed meanwhile cost no further copy.
    pub still_live: Option<StillLive>,
    /// Sum up host memory, too: that of each holder, and what the resident memory is used for.
    pub host: bool,
    /// Report the concrete path of each of these blocks (`[3]`), not only its shape (`[*]`). Indices into the blocks.
    pub concrete: Vec<usize>,
}

/// A search that takes longer stops, unless more is allowed.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Says for each of these blocks whether it still exists.
#[derive(Clone)]
pub struct StillLive(pub Arc<AreLive>);

type AreLive = dyn Fn(&[Block]) -> Vec<bool> + Send + Sync;

impl Default for Options {
    fn default() -> Options {
        Options {
            copies: 4,
            pause: false,
            excluded: Vec::new(),
            limit: LIMIT,
            still_live: None,
            host: false,
            concrete: Vec::new(),
        }
    }
}

/// Why the holders cannot be searched for.
#[derive(Debug)]
pub enum Error {
    /// What cannot be read, and why.
    Read(String, std::io::Error),
    /// The interpreter or its build is not supported: its name and the reason.
    Unsupported(String),
    /// The core file is damaged or lacks something.
    Core(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Read(what, error) => write!(f, "{what}: {error}"),
            Error::Unsupported(reason) | Error::Core(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for Error {}

/// Finds the holders of these blocks, which are sorted by address.
///
/// # Errors
/// The memory cannot be read at all, or the process runs an interpreter whose structures are not known.
pub fn search(source: &dyn Source, blocks: &[Block], options: &Options) -> Result<Holders, Error> {
    classes::search(source, None, blocks, options)
}

/// As [`search`], in one copy that was made while the process was stopped. [`Options::pause`] and [`Options::copies`] have no
/// effect.
///
/// # Errors
/// The process runs an interpreter whose structures are not known.
pub fn search_stopped(stopped: Stopped, blocks: &[Block], options: &Options) -> Result<Holders, Error> {
    let options = Options {
        pause: true,
        ..options.clone()
    };
    classes::search(stopped.copy.source(), Some(stopped), blocks, &options)
}

/// A copy of a process that was stopped while it was made.
pub struct Stopped<'s> {
    pub copy: Image<'s>,
    /// How long the copy took.
    pub copied: Duration,
    /// How long the process was stopped.
    pub paused: Duration,
}
