//! The blocks, the options and the errors of a search, and the maps of all its parts.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::FixedState;

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
    /// Memory that is not searched: device, pinned and managed blocks.
    pub excluded: Vec<Range<u64>>,
    /// Reserved ranges of addresses, sorted, in which blocks are mapped: a pointer to the start of one holds all of these. One into it
    /// possibly holds those that nothing else does.
    pub reserved: Vec<Range<u64>>,
    /// Stop searching this long after the first copy was made; what is found until then is reported. What takes a time in proportion to
    /// the memory of the process, as the copy does, is done in any case.
    pub limit: Duration,
    /// Asked before a process is copied again, so that blocks that were freed meanwhile cost no further copy.
    pub still_live: Option<StillLive>,
    /// Where names of variables are, beside the loaded files.
    pub debug_files: Option<DebugFiles>,
    /// Sum up host memory, too: that of each holder, and what the resident memory is used for.
    pub host: bool,
    /// With `host`: the blocks that are host memory, pinned or registered, which counts for their holders. Indices into the blocks.
    pub host_blocks: Vec<usize>,
    /// Report the concrete path of each of these blocks (`[3]`), not only its shape (`[*]`). Indices into the blocks.
    pub concrete: Vec<usize>,
}

/// A search that takes longer stops, unless more is allowed.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Says for each of these blocks whether it still exists.
#[derive(Clone)]
pub struct StillLive(pub Arc<AreLive>);

type AreLive = dyn Fn(&[Block]) -> Vec<bool> + Send + Sync;

/// Finds the separate debug file of a file that can be opened under this path and has this build id, in lower-case hexadecimal.
#[derive(Clone)]
pub struct DebugFiles(pub Arc<FindDebugFile>);

type FindDebugFile = dyn Fn(&Path, &str) -> Option<PathBuf> + Send + Sync;

impl Default for Options {
    fn default() -> Options {
        Options {
            copies: 4,
            excluded: Vec::new(),
            reserved: Vec::new(),
            limit: LIMIT,
            still_live: None,
            debug_files: None,
            host: false,
            host_blocks: Vec::new(),
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
