//! CPython's objects and the references between them, read from a copy.
//!
//! Structures come from a table per minor version. They are checked against the interpreter's own description where there
//! is one (3.13 and later) and against known objects. An unknown layout is refused.
//!
//! * [`find`]: the interpreter, its version, and the checks
//! * [`types`]: what is known about each type: where its instances keep references
//! * [`references`]: the references of an object
//! * [`containers`]: dictionaries, sets and the like, whose references lie outside the object
//! * [`frames`]: frames and generators: variables, value stack, current line
//! * [`roots`]: where the walk begins
//! * [`signals`]: the handlers of signals
//! * [`threads`]: the names of threads
//! * [`tracked`]: the collector's lists, and its header in front of objects
//! * [`text`]: Python's strings
//! * [`names`]: what to call objects and references
//!
//! Deliberately absent: debug builds, which keep other headers in front of objects.

use crate::copy::Image;
use crate::graph::Edge;
use crate::python::types::Types;
pub use crate::python::types::{Number, Sort, TypeId};
use culeak::cpython::Offsets;

pub(crate) use signals::name as signal_name;

mod containers;
mod details;
mod find;
mod frames;
mod names;
mod references;
mod roots;
mod signals;
mod text;
mod threads;
mod tracked;
mod types;

/// A reference that an object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    pub edge: Edge,
    pub target: u64,
    pub sort: Sort,
}

/// What a root leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rooted {
    pub target: u64,
    /// The target is an `_PyInterpreterFrame`, to be read with [`Python::frame_references`].
    pub is_frame: bool,
    pub sort: Sort,
}

impl Rooted {
    fn to(target: u64, sort: Sort) -> Rooted {
        let is_frame = false;
        Rooted { target, is_frame, sort }
    }
}

/// The interpreter of a process.
pub struct Python {
    /// `0x030c03f0` is 3.12.3.
    version: u32,
    /// The version as the interpreter has it: `3.12.3`.
    version_text: String,
    /// The address of `_PyRuntime`.
    runtime: u64,
    offsets: Offsets,
    types: Types,
    /// The address of the type of code objects.
    code_type: u64,
    /// The table of the handlers of signals.
    signal_handlers: Option<u64>,
    /// Before 3.11: the look-up function of dictionaries that have only texts as keys.
    plain_lookup: u64,
    /// The interpreter's state has other offsets than the table where it describes them, so those that it does not describe
    /// are not used.
    is_state_shifted: bool,
}

impl Python {
    /// `3.12.3`; `3.14.7t` if it is free-threaded.
    pub fn version(&self) -> String {
        self.version_text.clone()
    }

    /// The 12 of 3.12.
    fn minor(&self) -> u32 {
        self.version >> 16 & 0xff
    }

    /// Bytes of a pool of its allocator; 0: it has none, since its allocator is mimalloc.
    pub fn pool_bytes(&self) -> u64 {
        match self.minor() {
            _ if self.offsets.is_free_threaded() => 0,
            10.. => 16 << 10,
            _ => 4 << 10,
        }
    }

    /// Bytes of the head of each object.
    pub fn head(&self) -> u64 {
        self.offsets.head()
    }

    /// The type of the object at this address; `None` if no live object is there.
    #[inline]
    pub fn object(&mut self, copy: &Image, address: u64) -> Option<TypeId> {
        if address & 7 != 0 || !copy.has(address) || !self.is_counted(copy, address) {
            return None;
        }
        self.types
            .get(copy, &self.offsets, copy.word(address + self.head() - 8))
    }

    /// Whether the words in front of an object's type can be its count.
    #[inline]
    pub fn is_counted(&self, copy: &Image, address: u64) -> bool {
        if self.offsets.is_free_threaded() {
            let words = copy.word(address + LOCAL);
            // Pointers have neither.
            let (flags, lock) = (words & 0xffff, words >> 16 & 0xff);
            return flags < 16 && lock < 4 && (words >> 32 != 0 || copy.word(address + SHARED) > SHARED_FLAGS);
        }
        let word = copy.word(address);
        // From 3.14 on the topmost 16 bits hold flags.
        let rest = if self.minor() >= 14 {
            word << 16 >> 48
        } else {
            word >> 32
        };
        word as u32 != 0 && rest == 0
    }

    /// Objects of this type hold nothing that the walk could follow: numbers, texts.
    #[inline]
    pub fn is_leaf(&self, of: TypeId) -> bool {
        self.types[of].is_leaf
    }

    /// Where the value of such an object is, if it may be an address.
    #[inline]
    pub fn number(&self, of: TypeId) -> Option<Number> {
        self.types[of].number
    }

    /// An entry of `weakref.finalize`: what it refers to is used when another object is freed.
    pub fn is_finalizer(&self, of: TypeId) -> bool {
        let info = &self.types[of];
        info.is_heap && &*info.name == "_Info"
    }

    /// The object that a weak reference refers to, unless it was freed.
    pub fn referent(&mut self, copy: &Image, address: u64) -> Option<u64> {
        let of = self.object(copy, address)?;
        let info = &self.types[of];
        let is_reference = !info.is_heap && matches!(&*info.name, "ReferenceType" | "weakref");
        let referent = copy.word(address + self.head());
        let object = self.object(copy, referent).filter(|_| is_reference);
        object
            .is_some_and(|of| self.type_name(of) != "NoneType")
            .then_some(referent)
    }

    pub fn is_dict(&self, of: TypeId) -> bool {
        matches!(self.types[of].kind, types::Kind::Dict | types::Kind::OrderedDict)
    }

    /// A class, whose references from instances are [`Sort::Context`].
    pub fn is_class(&self, of: TypeId) -> bool {
        self.types[of].kind == types::Kind::Type
    }

    /// Without its module: `Tensor`.
    pub fn type_name(&self, of: TypeId) -> &str {
        &self.types[of].name
    }

    /// The reference count of an object; [`IMMORTAL`] if it is never freed, or counted elsewhere, too.
    pub fn count(&self, copy: &Image, address: u64) -> u64 {
        if self.offsets.is_free_threaded() {
            let local = copy.word(address.wrapping_add(LOCAL)) >> 32;
            // References from frames, and from instances to their class, may be counted elsewhere.
            let is_deferred = self.gc_bits(copy, address) & DEFERRED != 0;
            if local == u64::from(u32::MAX) || is_deferred || self.types.is_class(copy, &self.offsets, address) {
                return IMMORTAL;
            }
            // It is negative if the last references to objects of other threads are not settled yet.
            let shared = copy.word(address.wrapping_add(SHARED)) as i64 >> SHARED_FLAGS.count_ones();
            return (local as i64 + shared).max(0) as u64;
        }
        let count = copy.word(address);
        match count as u32 {
            _ if self.minor() < 12 => count,
            immortal if immortal >> 31 == 1 => IMMORTAL,
            count => count.into(),
        }
    }
}

/// The reference count of objects that are never freed: more than any number of references.
pub const IMMORTAL: u64 = u64::MAX;

/// The bit of the collector: the object has counts elsewhere, too, in free-threaded builds.
const DEFERRED: u64 = 64;
/// Where the head of an object has, in free-threaded builds: 16 bits of flags, 8 of a lock, 8 of the collector, 32 of the count of
/// its own thread; and the count of all other threads, above 2 bits of flags.
const LOCAL: u64 = 8;
const SHARED: u64 = 16;
const SHARED_FLAGS: u64 = 3;

/// The name of a reference.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Label {
    pub concrete: String,
    /// With indices and keys replaced by `*`.
    pub shape: String,
    /// The reference is an implementation detail and is left out if the next one has a name: `.__dict__` before `['a']`.
    pub hidden: bool,
}

impl Label {
    /// The same in all paths of a shape.
    pub(crate) fn same(text: String) -> Label {
        Label {
            shape: text.clone(),
            concrete: text,
            hidden: false,
        }
    }
}
