//! Native memory: heap chunks, the classes of C++ objects, and native roots.

use std::ops::Range;

use crate::copy::Copy;
use crate::modules::Modules;

/// An allocated piece of heap memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    pub start: u64,
    pub bytes: u64,
    pub heap: Heap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heap {
    /// An allocated chunk of glibc's malloc.
    Glibc,
    /// A block of CPython's small-object allocator.
    Python,
    /// jemalloc, tcmalloc or another allocator, whose structures show the limits of the piece.
    Other,
    /// Heap memory of an allocator that is not known: a window at exactly this address.
    Window,
}

/// Where the native walk begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NativeRoot {
    /// Static memory of a loaded file.
    Globals { file: String, range: Range<u64> },
    /// From the stack pointer to the end of the stack. `sure`: the stack pointer is known.
    Stack {
        thread: u32,
        name: String,
        range: Range<u64>,
        sure: bool,
    },
    /// A thread's registers.
    Registers {
        thread: u32,
        name: String,
        values: Vec<u64>,
    },
    /// Thread-local variables.
    ThreadLocals {
        thread: u32,
        name: String,
        range: Range<u64>,
    },
}

/// The native memory of a copy.
#[derive(Default)]
pub struct Native {}

impl Native {
    /// `pool_bytes`: the size of a pool of CPython's allocator; `None` without Python.
    pub fn find(copy: &Copy, modules: &Modules, pool_bytes: Option<u64>) -> Native {
        let _ = (copy, modules, pool_bytes);
        Native {}
    }

    /// The allocated chunk that contains this address. `None`: free, an allocator's own memory, or not heap memory.
    #[inline]
    pub fn chunk(&self, copy: &Copy, address: u64) -> Option<Chunk> {
        let _ = (copy, address);
        None
    }

    /// All allocated chunks that are known, those of Python's allocator included.
    pub fn each_chunk(&self, copy: &Copy, see: &mut dyn FnMut(Chunk)) {
        let _ = (copy, see);
    }

    /// The C++ class of the object at the beginning of a chunk, by its virtual table: `c10::TensorImpl`. Also that of an
    /// object behind a shared pointer's counts.
    pub fn class(&mut self, copy: &Copy, chunk: u64) -> Option<&str> {
        let _ = (copy, chunk);
        None
    }

    /// Native roots: globals of every file but the recorder, libc and the loader; then stacks.
    pub fn roots(&self, copy: &Copy, modules: &Modules) -> Vec<NativeRoot> {
        let _ = (copy, modules);
        Vec::new()
    }

    /// What to call a word of a root: `g_cache in libext.so`, `stack of thread 4711 (loader), in fill`.
    pub fn describe(&mut self, copy: &Copy, modules: &mut Modules, root: &NativeRoot, address: u64) -> String {
        let _ = (copy, modules, root);
        format!("{address:#x}")
    }
}
