//! A line of the ledger, and what it is about.

use serde::Serialize;

use super::{MemoryPool, Part};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Line<'a> {
    pub what: LineKind,
    /// The framework or library that the line is about.
    pub of: Option<&'a str>,
    pub bytes: i128,
    /// Number of blocks, records, pages, segments, objects, contexts or processes; 0 if they cannot be counted.
    pub count: u64,
    /// Whether the bytes are counted, not estimated.
    pub exact: bool,
    /// Objects that were destroyed, of a line of objects: the driver keeps their memory for reuse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destroyed: Option<u64>,
    /// Largest first; empty for lines without further parts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part<'a>>,
    /// The pools of [`LineKind::CudaPools`], largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<MemoryPool>,
    /// Of [`LineKind::Code`]: the call sites that loaded modules, largest first, without what launches took.
    #[serde(skip)]
    pub loads: Vec<Part<'a>>,
}

impl<'a> Line<'a> {
    pub(super) fn new(what: LineKind, of: Option<&'a str>, bytes: i128, count: u64, exact: bool) -> Line<'a> {
        Line {
            what,
            of,
            bytes,
            count,
            exact,
            destroyed: None,
            parts: Vec::new(),
            pools: Vec::new(),
            loads: Vec::new(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LineKind {
    /// Live tensors and buffers.
    Blocks,
    /// A caching allocator's memory without its live blocks.
    Cached,
    /// A caching allocator's memory, if its blocks were not recorded.
    Pool,
    Library,
    Program,
    /// Memory that the program's own memory lies in, whole: at the peak. `of` says which: blocks from `cuMemAlloc`, from
    /// `cuMemCreate`, CUDA's pools, or arrays. Parts: the call sites that took it.
    ForBlocks,
    /// Pages that blocks from `cuMemAlloc` touch, without the blocks. Parts: call sites whose blocks keep the pages.
    Rounding,
    /// Chunks of CUDA's memory pools, without live blocks. Parts: call sites that took the chunks. Has pools.
    CudaPools,
    /// Memory of arrays beyond their elements.
    Arrays,
    /// Pools for local memory and stacks of kernels. Parts: the call sites that took or enlarged them.
    LocalMemory,
    /// The heap of `malloc` in kernels.
    DeviceHeap,
    /// Code, globals and constants of modules, and memory for launches from kernels. Parts: binaries.
    Code,
    /// Memory taken for streams, existing and destroyed ones.
    Streams,
    GraphExecs,
    GreenContexts,
    /// Memory taken in other driver calls.
    OtherCalls,
    /// All that the kernel driver gave beyond recorded blocks, if no function of the driver has a name: an older recording has
    /// none, and the driver's library is not on this machine, or is another version.
    UnnamedCalls,
    /// The contexts; without segments, all that the driver counts for the process beyond records.
    Context,
    /// Memory taken for blocks that were not recorded; negative: blocks whose memory was not.
    Unrecorded,
    /// Blocks whose memory a checkpoint has moved to the host. Negative: the process has none of the device's memory until it is
    /// restored.
    Checkpointed,
    OtherProcesses,
    /// The driver's own memory for each context.
    DriverContexts,
    /// The driver's own memory for the device.
    DriverDevice,
    /// Page tables of pinned memory.
    PageTables,
}

impl LineKind {
    /// Whether the driver counts the memory for this process.
    pub fn is_of_process(self) -> bool {
        self < LineKind::OtherProcesses
    }
}
