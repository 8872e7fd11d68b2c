//! CPython's objects and the references between them, read from a copy.
//!
//! Structures come from a table per minor version. They are checked against the interpreter's own description where there
//! is one (3.13 and later) and against known objects. An unknown layout is refused.

use crate::Error;
use crate::copy::Copy;
use crate::graph::Edge;
use crate::modules::Modules;

/// Index of a type in [`Python`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TypeId(pub u16);

/// A reference that an object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    pub edge: Edge,
    pub target: u64,
    pub sort: Sort,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// A counted reference to a Python object.
    Named,
    /// As above, but no one thinks of it as holding: `__globals__`, classes, bases, `f_back`.
    Context,
    /// A slot that may be stale: the value stack of an executing frame.
    Possible,
    /// A word in the body of an object of a C extension: it may point to a Python object, to native memory, to a block, or
    /// be a number.
    Word,
}

/// Where the walk begins in Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PythonRoot {
    /// `sys.modules`, `sys`, `builtins`, the interpreter's dictionary.
    Interpreter(&'static str),
    /// A frame of a thread; from 3.11 on frames are not objects ([`PythonRoot::is_frame`]).
    Frame {
        thread: u64,
        main: bool,
    },
    ThreadLocals {
        thread: u64,
        main: bool,
    },
    Context {
        thread: u64,
        main: bool,
    },
    Exception {
        thread: u64,
        main: bool,
    },
    ThreadState {
        thread: u64,
        main: bool,
    },
}

/// What a root leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rooted {
    pub target: u64,
    /// The target is an `_PyInterpreterFrame`, to be read with [`Python::frame_references`].
    pub is_frame: bool,
    pub sort: Sort,
}

/// The reference count of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    Exactly(u64),
    Immortal,
}

/// The interpreter of a process.
pub struct Python {}

impl Python {
    /// `None` without Python in the process.
    ///
    /// # Errors
    /// The interpreter is not supported: an unknown version, a free-threaded or a debug build, or a failed check.
    pub fn find(copy: &Copy, modules: &Modules) -> Result<Option<Python>, Error> {
        let _ = (copy, modules);
        Ok(None)
    }

    /// `3.12.3`.
    pub fn version(&self) -> String {
        String::new()
    }

    /// Bytes of a pool of its allocator.
    pub fn pool_bytes(&self) -> u64 {
        0
    }

    /// The type of the live object at this address; `None` if there is none.
    #[inline]
    pub fn object(&mut self, copy: &Copy, address: u64) -> Option<TypeId> {
        let _ = (copy, address);
        None
    }

    /// Objects of this type hold nothing that the walk could follow: numbers, texts, code.
    #[inline]
    pub fn is_leaf(&self, of: TypeId) -> bool {
        let _ = of;
        true
    }

    /// A class, whose references from instances are [`Sort::Context`].
    pub fn is_class(&self, of: TypeId) -> bool {
        let _ = of;
        false
    }

    pub fn type_name(&self, of: TypeId) -> &str {
        let _ = of;
        ""
    }

    /// The object's memory: from before its header for the collector to its end.
    pub fn extent(&self, copy: &Copy, address: u64, of: TypeId) -> std::ops::Range<u64> {
        let _ = (copy, of);
        address..address
    }

    /// Appends everything that the object refers to. Each counted reference occurs exactly once, so that their number can be
    /// compared with the count.
    pub fn references(&mut self, copy: &Copy, address: u64, of: TypeId, found: &mut Vec<Reference>) {
        let _ = (copy, address, of, found);
    }

    /// As above, for an `_PyInterpreterFrame`.
    pub fn frame_references(&mut self, copy: &Copy, frame: u64, found: &mut Vec<Reference>) {
        let _ = (copy, frame, found);
    }

    /// Ranges other than the object itself that its references are read from: the array of a list, the keys of a
    /// dictionary.
    pub fn arrays(&mut self, copy: &Copy, address: u64, of: TypeId) -> Vec<std::ops::Range<u64>> {
        let _ = (copy, address, of);
        Vec::new()
    }

    pub fn count(&self, copy: &Copy, address: u64) -> Count {
        let _ = (copy, address);
        Count::Immortal
    }

    /// Calls `see` with everything that the roots lead to, best roots first.
    pub fn roots(&mut self, copy: &Copy, see: &mut dyn FnMut(&PythonRoot, Rooted)) {
        let _ = (copy, see);
    }

    /// Objects that the collector tracks: its lists as far as they can be walked.
    pub fn tracked(&mut self, copy: &Copy, see: &mut dyn FnMut(u64)) {
        let _ = (copy, see);
    }

    /// The tracked object in a chunk, if it contains one.
    pub fn tracked_in(&mut self, copy: &Copy, start: u64, bytes: u64) -> Option<u64> {
        let _ = (copy, start, bytes);
        None
    }

    /// The interpreter's state, which is searched for words last.
    pub fn states(&self, copy: &Copy) -> Vec<std::ops::Range<u64>> {
        let _ = copy;
        Vec::new()
    }

    /// What to call an object: `list of 60`, `Cache`, `function f`, `frame of gen, train.py:62`.
    pub fn name(&mut self, copy: &Copy, address: u64, of: TypeId) -> String {
        let _ = (copy, address, of);
        String::new()
    }

    pub fn frame_name(&mut self, copy: &Copy, frame: u64) -> String {
        let _ = (copy, frame);
        String::new()
    }

    /// What to call a reference of the object: `[3]`, `['a']`, `.store`, `local t`, `.__closure__`; and its shape: `[*]`.
    pub fn label(&mut self, copy: &Copy, address: u64, is_frame: bool, edge: Edge) -> Label {
        let _ = (copy, address, is_frame, edge);
        Label::default()
    }
}

/// The name of a reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Label {
    pub concrete: String,
    /// With indices and keys replaced by `*`.
    pub shape: String,
    /// The reference is an implementation detail and is left out if the next one has a name: `.__dict__` before `['a']`.
    pub hidden: bool,
}
