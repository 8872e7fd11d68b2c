//! What keeps the blocks of a snapshot alive.
//!
//! ```text
//! block ──► path:  root ─ step ─ step ─ …      one per shape: __main__.keep[*] → Tensor → storage
//!   │
//!   └─────► retainer ─► retainer ─► …           the dominator tree: dropping a retainer frees what is below it
//! ```
//!
//! Deliberately absent: sums by path, root or call site. See `analysis::why`.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::is_default;
use crate::named;
use crate::point::Point;

/// The result of a search for holders.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Holders {
    pub search: Search,
    /// Distinct shapes of paths.
    pub paths: Vec<HolderPath>,
    /// Holders by the memory that they alone keep alive; parents precede children. Holders of little memory are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retainers: Vec<Retainer>,
    /// Modules of PyTorch that own blocks, and those around them; parents precede children.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<OwnerModule>,
    /// What tensors of PyTorch are; each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<HeldTensor>,
    /// In order of addresses.
    pub blocks: Vec<HeldBlock>,
    /// Objects without an address whose handles were searched for and are held. Their `bytes` are 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<HeldBlock>,
}

impl Holders {
    /// Leaves out blocks, and what their retainers keep alive of them.
    pub fn retain(&mut self, mut keeps: impl FnMut(&HeldBlock) -> bool) {
        let retainers = &mut self.retainers;
        self.blocks.retain(|block| {
            let kept = keeps(block);
            if !kept {
                change_retained(retainers, block.retainer, -i128::from(block.bytes), -1);
            }
            kept
        });
    }

    /// Takes the paths of these blocks away: they were freed, or their holders changed, while they were searched for.
    pub fn change(&mut self, mut is_changed: impl FnMut(&HeldBlock) -> bool) {
        let mut changed = self.paths.iter().position(|path| path.changed);
        for block in &mut self.blocks {
            if self.paths.get(block.path).is_some_and(|path| path.changed) || !is_changed(block) {
                continue;
            }
            change_retained(&mut self.retainers, block.retainer, -i128::from(block.bytes), -1);
            block.retainer = None;
            block.path = *changed.get_or_insert_with(|| {
                self.paths.push(HolderPath::unknown());
                self.paths.len() - 1
            });
            self.search.changed += 1;
        }
    }
}

/// Changes the bytes and the number of blocks that a retainer and those around it keep alive.
pub fn change_retained(retainers: &mut [Retainer], innermost: Option<usize>, bytes: i128, count: i64) {
    let mut at = innermost;
    while let Some(index) = at.filter(|&index| index < retainers.len()) {
        let retainer = &mut retainers[index];
        let changed = i128::from(retainer.bytes) + bytes;
        retainer.bytes = u64::try_from(changed.max(0)).unwrap_or(u64::MAX);
        retainer.count = retainer.count.saturating_add_signed(count);
        // Parents precede children, so this ends.
        at = retainer.parent.filter(|&parent| parent < index);
    }
}

/// How the holders were searched for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Search {
    /// On the recording's clock; 0 if unknown.
    pub at_ns: u64,
    /// The point of the recording whose memory was searched, if a process was held there; absent: that of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<Point>,
    /// How long the search took.
    pub took_ns: u64,
    /// How long the first copy took.
    pub copy_ns: u64,
    pub copies: u32,
    pub copied_bytes: u64,
    /// Objects and pieces of memory that were visited.
    pub visited: u64,
    /// How long the process was stopped; 0: it was not.
    #[serde(default, skip_serializing_if = "is_default")]
    pub paused_ns: u64,
    /// The version of CPython, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Blocks whose path was not there any more when it was read again: their holders changed, or they were freed. What holds
    /// them is not known ([`HolderPath::changed`]).
    #[serde(default, skip_serializing_if = "is_default")]
    pub changed: u64,
    /// References that led to no live object, because the memory changed while it was copied.
    #[serde(default, skip_serializing_if = "is_default")]
    pub torn: u64,
    /// Why the search stopped before it was done; absent: it was done. Blocks that it had not reached have no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stop>,
    /// What could not be searched, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
    /// What the resident memory of the process was used for; absent: it was not asked for, or of a core file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostMemory>,
}

/// What the resident memory of a process is used for, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostMemory {
    /// The sum of all others.
    pub resident_bytes: u64,
    /// Blocks of CPython's allocator for small objects, in use and free.
    pub python_bytes: u64,
    pub python_free_bytes: u64,
    /// Memory of glibc's malloc, in use and free.
    pub malloc_bytes: u64,
    pub malloc_free_bytes: u64,
    /// Pinned and managed memory of a recording.
    #[serde(default)]
    pub pinned_bytes: u64,
    pub stacks_bytes: u64,
    /// Files that are mapped: the program and its libraries.
    pub files_bytes: u64,
    /// Mapped devices and memory of devices, such as the CUDA driver's and pinned memory that was not recorded; and shared memory.
    pub devices_bytes: u64,
    /// Other anonymous memory, such as that of other allocators.
    pub other_bytes: u64,
    /// What Python's heap and malloc are used for, largest first: types of Python and C++, each with the arrays of its objects.
    #[serde(default)]
    pub types: Vec<HostRow>,
    /// The arenas of malloc.
    #[serde(default)]
    pub arenas: Vec<HostRow>,
}

/// Host memory of one type or arena.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HostRow {
    /// `dict`, `c10::TensorImpl`; `malloc: main arena`.
    pub name: String,
    /// In use.
    pub bytes: u64,
    /// Objects of a type; chunks of an arena.
    pub count: u64,
    /// Of an arena: resident and not in use.
    #[serde(default, skip_serializing_if = "is_default")]
    pub free_bytes: u64,
}

impl HostMemory {
    /// The parts with their names.
    pub fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("Python's heap", self.python_bytes),
            ("free in Python's heap", self.python_free_bytes),
            ("malloc", self.malloc_bytes),
            ("free in malloc", self.malloc_free_bytes),
            ("pinned or managed", self.pinned_bytes),
            ("stacks", self.stacks_bytes),
            ("mapped files", self.files_bytes),
            ("devices", self.devices_bytes),
            ("other", self.other_bytes),
        ]
    }

    /// All resident memory by what allocates it, largest first: the arenas of malloc, Python's heap, and mappings.
    pub fn by_arena(&self) -> Vec<HostRow> {
        let of_malloc = |name: &str| name.contains("malloc");
        let named = self
            .named()
            .into_iter()
            .filter(|(name, _)| self.arenas.is_empty() || !of_malloc(name));
        let mut rows: Vec<HostRow> = self.arenas.clone();
        for (name, bytes) in named.filter(|(_, bytes)| *bytes > 0) {
            match rows.last_mut() {
                Some(heap) if name == "free in Python's heap" && heap.name == "Python's heap" => {
                    heap.free_bytes = bytes
                }
                _ => rows.push(HostRow {
                    name: name.to_owned(),
                    bytes,
                    ..HostRow::default()
                }),
            }
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.bytes.saturating_add(row.free_bytes)));
        rows
    }
}

/// Why a search was not done to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The time limit was reached.
    Time,
    /// The objects have more references than fit into the memory of the process.
    Size,
    /// The stack of a thread was not found.
    Stack,
}

named! {
    /// Why a block is alive; each block has exactly one class.
    #[derive(Default, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[cfg_attr(test, derive(schemars::JsonSchema))]
    #[serde(rename_all = "snake_case")]
    pub enum Class {
        /// A path of references leads to it from a root.
        #[default]
        Held = "held",
        /// Only objects that refer to each other hold it, of Python or C++. `gc.collect()` frees it, unless [`HolderPath::note`] says that
        /// it does not.
        Cycle = "cycle",
        /// A Python object holds it whose reference count is higher than the references found in Python; native code has a
        /// pointer to the object.
        NativeHolder = "native-holder",
        /// As [`Class::NativeHolder`], but nothing points to the object: a reference was never released.
        OverCounted = "over-counted",
        /// No pointer to it or into it is left, or only memory points to it that nothing points to.
        Lost = "lost",
    }
}

/// What a path begins with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RootKind {
    /// A global variable of a Python module.
    #[default]
    Module,
    /// A local variable of a running function.
    Frame,
    ThreadLocal,
    /// A context variable.
    Context,
    /// An exception that is being handled.
    Exception,
    /// The interpreter's own state.
    Interpreter,
    /// A global variable of native code.
    Global,
    /// A thread's native stack or registers.
    Stack,
    /// Heap memory whose own holder was not found.
    Heap,
    /// There is no root: the path begins with a member of the cycle, or with the object that is over-counted.
    None,
}

/// A path from a root to a block, with indices and keys replaced by `*`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HolderPath {
    pub class: Class,
    pub root: RootKind,
    /// The named beginning of the path, by which paths are grouped: `__main__.keep`, `g_cache in libext.so`,
    /// `frame of main, train.py:62, local t`, `cycle Node.o → Node.o`. Empty if the block is lost.
    pub origin: String,
    /// What the origin is: `list of 60`, `std::vector`. May be empty.
    pub origin_type: String,
    /// From the origin on. The last one refers to the block.
    pub steps: Vec<Step>,
    /// A part of the path may be stale: an unnamed piece of memory, a slot of a running frame. Of a lost block: memory that was not
    /// searched may have a pointer to it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub possibly: bool,
    /// The last reference points into the block, not to its start.
    #[serde(default, skip_serializing_if = "is_default")]
    pub interior: bool,
    /// A remark for the reader: `gc is disabled`, `only the caching allocator's records point to it`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// This is no path: the blocks were freed, or their holders changed, while they were searched for. Their class means
    /// nothing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub changed: bool,
}

impl HolderPath {
    /// In place of a path that is not there any more.
    pub fn unknown() -> HolderPath {
        HolderPath {
            root: RootKind::None,
            origin: "holders that changed while they were read".to_owned(),
            possibly: true,
            changed: true,
            ..HolderPath::default()
        }
    }
}

/// One reference on a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Step {
    /// How the previous holder refers: `[*]`, `.store`, `.grad_fn`, `local t`.
    pub via: String,
    /// What it refers to: `Tensor`, `ExpBackward0`, `c10::StorageImpl`, `cell`. Empty for the block itself.
    pub holder: String,
}

/// A holder in the dominator tree.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Retainer {
    /// `trainer.history (list of 12)`.
    pub name: String,
    /// Names of other references to it. Dropping one of them frees nothing; dropping all frees the memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// The number of other references to it that are not named.
    #[serde(default, skip_serializing_if = "is_default")]
    pub also_unnamed: u64,
    pub root: RootKind,
    /// Index of the holder that dominates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// GPU memory that would be freed with it, including that of its children. Sums of `blocks`.
    pub bytes: u64,
    pub count: u64,
    /// Host memory that would be freed with it, at least; 0: none, or it was not asked for ([`Search::host`]).
    #[serde(default, skip_serializing_if = "is_default")]
    pub host_bytes: u64,
}

impl Retainer {
    /// Other references hold it too, so that dropping it alone frees nothing.
    pub fn is_shared(&self) -> bool {
        !self.also.is_empty() || self.also_unnamed > 0
    }
}

/// A block and what holds it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeldBlock {
    pub address: u64,
    /// Of the allocation; identifies the block together with its address.
    pub time_ns: u64,
    pub bytes: u64,
    /// Index into `paths`.
    pub path: usize,
    /// Index into `retainers`: the innermost one that dominates the block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retainer: Option<usize>,
    /// Index into `modules`: the innermost one that owns the block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<usize>,
    /// Index into `tensors`: a tensor that leads to the block, if it is understood. Others may lead to it, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<usize>,
}

/// The type and the sizes of a tensor of PyTorch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct HeldTensor {
    /// `float32`.
    pub dtype: String,
    pub shape: Vec<u64>,
}

impl fmt::Display for HeldTensor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// A `torch.nn.Module`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct OwnerModule {
    /// `3` for the module `layers.3`, as `named_modules()` spells it. A module that is in no other has the name of its variable:
    /// `__main__.model`.
    pub name: String,
    /// `Linear`.
    pub class: String,
    /// Index of the module around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// The number of other modules that have it too, or a tensor of it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub also: u64,
}

impl Holders {
    /// Checks that every index is within its table, and that parents precede children.
    ///
    /// # Errors
    /// The row that is wrong.
    pub fn validate(&self) -> Result<(), String> {
        let wrong = |what: &str, row: usize, index: usize, len: usize| {
            Err(format!(
                "holders: {what} of row {row} is {index}, but it must be below {len}"
            ))
        };
        for (row, retainer) in self.retainers.iter().enumerate() {
            if let Some(parent) = retainer.parent.filter(|&parent| parent >= row) {
                return wrong("the parent of a retainer", row, parent, row);
            }
        }
        for (row, module) in self.modules.iter().enumerate() {
            if let Some(parent) = module.parent.filter(|&parent| parent >= row) {
                return wrong("the parent of a module", row, parent, row);
            }
        }
        for (row, block) in self.blocks.iter().chain(&self.objects).enumerate() {
            if let Some(module) = block.module.filter(|&module| module >= self.modules.len()) {
                return wrong("the module of a block", row, module, self.modules.len());
            }
            if let Some(tensor) = block.tensor.filter(|&tensor| tensor >= self.tensors.len()) {
                return wrong("the tensor of a block", row, tensor, self.tensors.len());
            }
            if block.path >= self.paths.len() {
                return wrong("the path of a block", row, block.path, self.paths.len());
            }
            if let Some(retainer) = block.retainer.filter(|&retainer| retainer >= self.retainers.len()) {
                return wrong("the retainer of a block", row, retainer, self.retainers.len());
            }
        }
        Ok(())
    }
}
