//! Call sites: which frame of a stack is the user's own, and a name for stacks that survives a restart.
//!
//! A stack under `cudaMalloc` begins inside the CUDA runtime and ends in the loader. What a reader wants is the line
//! of their own program that asked: the *site*. Every frame therefore gets a [`Role`]; the default view shows the
//! frames between the runtime and `main`, and the site is the innermost of them that is not a mere wrapper.
//!
//! ```text
//! 0x7f.. libcudart.so.13         Runtime      hidden
//! cudaMalloc                     Runtime      hidden
//! thrust::device_vector::…       Wrapper      shown
//! Trainer::step  train.cu:212    User         shown, the site
//! main           main.cu:12      User         shown
//! __libc_start_main              BelowMain    hidden
//! ```
//!
//! Two runs of one program are compared by [`Fingerprint`]s: hashes over module file name, function and line of the
//! shown frames, so that address space randomization, another machine or another install path change nothing.
//! Deliberately absent: names of symbols; they were written into the snapshot by whoever symbolized it.

use std::fmt;

use serde::Serialize;

use crate::cuda_functions::Api;
use crate::function_name::{plain, without_hash};
use crate::snapshot::{Allocation, Location, Snapshot};

/// What a frame is to the person who reads the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Inside CUDA or culeak.
    Runtime,
    /// Generic code between the user's code and CUDA: shown, but never a site while a user's frame is there.
    Wrapper,
    User,
    /// What called `main` or the thread's function.
    BelowMain,
}

/// One line of a stack: a code address, or a call the compiler inlined into one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Frame<'a> {
    pub function: Option<&'a str>,
    pub file: Option<&'a str>,
    pub line: Option<u32>,
    pub inlined: bool,
    /// Path of the module; empty when the address was in none.
    pub module: &'a str,
    /// Address in the module's file, or in the process when there is no module.
    pub address: u64,
    pub role: Role,
}

impl<'a> Frame<'a> {
    /// File name of the module.
    pub fn module_name(&self) -> &'a str {
        file_name(self.module)
    }

    /// The function, or `module+0xoffset` where no symbol is known.
    pub fn name(&self) -> String {
        match self.function {
            Some(function) => function.to_owned(),
            None if self.module.is_empty() => format!("{:#x}", self.address),
            None => format!("{}+{:#x}", self.module_name(), self.address),
        }
    }

    /// `train.cu:212`, when debug information says so.
    pub fn short_place(&self) -> Option<String> {
        self.place_with(file_name)
    }

    /// The same with the whole path.
    pub fn place(&self) -> Option<String> {
        self.place_with(|file| file)
    }

    fn place_with(&self, shorten: impl Fn(&'a str) -> &'a str) -> Option<String> {
        let file = shorten(self.file?);
        Some(
            self.line
                .map_or_else(|| file.to_owned(), |line| format!("{file}:{line}")),
        )
    }

    fn shown(&self) -> bool {
        matches!(self.role, Role::User | Role::Wrapper)
    }
}

/// A name for a stack or a site that is the same in every run of the same program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub u64);

impl fmt::Display for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

/// One stack of a snapshot, read as a person would.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallStack<'a> {
    /// Over module, function and line of every shown frame.
    pub fingerprint: Fingerprint,
    /// The same without lines: edits elsewhere in the file leave it alone.
    pub loose_fingerprint: Fingerprint,
    /// Over the site's frame alone.
    pub site_fingerprint: Fingerprint,
    /// A caching allocator stands between the site and CUDA, so the memory may be free for reuse.
    pub pool: bool,
    pub truncated: bool,
    /// Index of the site in `frames`; `None` for an allocation recorded without its stack.
    pub site: Option<usize>,
    /// Innermost first.
    pub frames: Vec<Frame<'a>>,
}

impl<'a> CallStack<'a> {
    fn of(snapshot: &'a Snapshot, stack: usize) -> CallStack<'a> {
        let stack = &snapshot.stacks[stack];
        let mut frames = Vec::with_capacity(stack.frames.len());
        for &location in &stack.frames {
            expand(snapshot, &snapshot.locations[location], &mut frames);
        }
        fold_below_main(&mut frames);
        CallStack::new(frames, stack.truncated)
    }

    /// The stack of an allocation that was recorded without one.
    fn unknown() -> CallStack<'a> {
        CallStack::new(Vec::new(), true)
    }

    fn new(frames: Vec<Frame<'a>>, truncated: bool) -> CallStack<'a> {
        let site = [Role::User, Role::Wrapper]
            .iter()
            .find_map(|role| frames.iter().position(|frame| frame.role == *role))
            .or(if frames.is_empty() { None } else { Some(0) });
        let any_shown = frames.iter().any(Frame::shown);
        let mut exact = Hasher::new();
        let mut loose = Hasher::new();
        for frame in frames.iter().filter(|frame| frame.shown() || !any_shown) {
            exact.frame(frame, true);
            loose.frame(frame, false);
        }
        let mut at_site = Hasher::new();
        if let Some(site) = site {
            at_site.frame(&frames[site], true);
        }
        CallStack {
            fingerprint: exact.finish(),
            loose_fingerprint: loose.finish(),
            site_fingerprint: at_site.finish(),
            pool: frames.iter().any(|frame| in_caching_allocator(frame)),
            truncated,
            site,
            frames,
        }
    }

    pub fn site(&self) -> Option<&Frame<'a>> {
        self.site.map(|site| &self.frames[site])
    }

    /// The frames of the default view; all of them when nothing else is left.
    pub fn shown(&self) -> impl Iterator<Item = &Frame<'a>> {
        let any = self.frames.iter().any(Frame::shown);
        self.frames.iter().filter(move |frame| frame.shown() || !any)
    }
}

/// All stacks of a snapshot, read once.
pub struct CallStacks<'a> {
    stacks: Vec<CallStack<'a>>,
    unknown: CallStack<'a>,
}

impl<'a> CallStacks<'a> {
    pub fn of(snapshot: &'a Snapshot) -> CallStacks<'a> {
        CallStacks {
            stacks: (0..snapshot.stacks.len())
                .map(|stack| CallStack::of(snapshot, stack))
                .collect(),
            unknown: CallStack::unknown(),
        }
    }

    pub fn get(&self, stack: Option<usize>) -> &CallStack<'a> {
        stack.map_or(&self.unknown, |stack| &self.stacks[stack])
    }

    /// Whether this record is a caching allocator's: a pool object, or memory asked for by such an allocator.
    pub fn is_pool(&self, allocation: &Allocation) -> bool {
        allocation.kind == crate::kind::Kind::Pool || self.get(allocation.stack).pool
    }
}

/// The part of a path behind the last slash.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn expand<'a>(snapshot: &'a Snapshot, location: &'a Location, frames: &mut Vec<Frame<'a>>) {
    let module = location
        .module
        .map_or("", |module| snapshot.modules[module].path.as_str());
    let bare = Frame {
        function: None,
        file: None,
        line: None,
        inlined: false,
        module,
        address: location.address,
        role: Role::User,
    };
    let first = frames.len();
    frames.extend(location.symbols.iter().map(|symbol| Frame {
        function: Some(&symbol.function),
        file: symbol.file.as_deref(),
        line: symbol.line,
        inlined: symbol.inlined,
        ..bare
    }));
    if frames.len() == first {
        frames.push(bare);
    }
    for frame in &mut frames[first..] {
        frame.role = role(frame);
    }
}

/// Libraries whose inside is nobody's business here.
const RUNTIME_MODULES: &[&str] = &[
    "libcuda.so",
    "libcudart.so",
    "libcudart-",
    "libculeak",
    "libnvidia-",
    "libcudadebugger",
];
/// Name spaces of code that passes requests on.
const WRAPPERS: &[&str] = &[
    "thrust::",
    "cub::",
    "cuda::",
    "rmm::",
    "std::",
    "__gnu_cxx::",
    "core::",
    "alloc::",
    "cudarc::",
    "cust::",
    "operator new",
];

fn role(frame: &Frame) -> Role {
    let module = frame.module_name();
    if RUNTIME_MODULES.iter().any(|start| module.starts_with(start)) {
        return Role::Runtime;
    }
    let Some(function) = frame.function else {
        return Role::User;
    };
    let name = plain(function);
    if is_cuda_call(&name, frame.file) || is_static_cudart(&name) {
        Role::Runtime
    } else if is_wrapper(&name) || frame.file.is_some_and(is_library_source) {
        Role::Wrapper
    } else {
        Role::User
    }
}

fn is_wrapper(name: &str) -> bool {
    let name = name.strip_prefix('<').unwrap_or(name);
    WRAPPERS.iter().any(|start| name.starts_with(start))
}

/// Sources of the standard libraries: DWARF often names functions inlined from there without their name space.
fn is_library_source(file: &str) -> bool {
    [
        "/include/c++/",
        "/c++/v1/",
        "/rustc/",
        "/include/thrust/",
        "/include/cub/",
        "/include/cuda/std/",
    ]
    .iter()
    .any(|part| file.contains(part))
}

/// A CUDA function itself, or its typed twin in a CUDA header, but not a user's function of that name.
fn is_cuda_call(name: &str, file: Option<&str>) -> bool {
    Api::find(name.as_bytes()).is_some() && file.is_none_or(|file| file_name(file).starts_with("cuda"))
}

/// The statically linked runtime keeps its internal names, or what the vendor left of them.
fn is_static_cudart(name: &str) -> bool {
    ["cudart::", "libcudart_static_", "__cudart"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Caching allocators: in the function's name, or in the module's path when the function is unknown. Names are those of
/// the caching part alone: PyTorch's allocator with caching off, or XLA's others, hand out what they get.
const POOLS: &[(&str, &str)] = &[
    ("CUDACachingAllocator::Native::DeviceCachingAllocator::", ""),
    ("CUDACachingAllocator::DeviceCachingAllocator::", ""),
    ("CachingHostAllocator", ""),
    ("BFCAllocator", ""),
    ("MemoryPool", "cupy/cuda/memory"),
    ("rmm::mr::pool_memory_resource", ""),
    ("rmm::mr::arena_memory_resource", ""),
];

fn in_caching_allocator(frame: &Frame) -> bool {
    POOLS.iter().any(|(name, module)| match frame.function {
        // "MemoryPool" alone is anybody's word, so CuPy's needs its module too.
        Some(function) => function.contains(name) && (*name != "MemoryPool" || frame.module.contains(module)),
        None => !module.is_empty() && frame.module.contains(module),
    })
}

fn fold_below_main(frames: &mut [Frame]) {
    let mut keep = frames.len();
    let name = |frame: &Frame| {
        frame
            .function
            .map(|function| plain(function).into_owned())
            .unwrap_or_default()
    };
    if let Some(main) = frames.iter().rposition(|frame| name(frame) == "main") {
        keep = main + 1;
    }
    if let Some(start) = frames[..keep]
        .iter()
        .position(|frame| starts_a_thread(&name(frame), frame.module_name()))
    {
        keep = start;
    }
    // `_start` of a stripped program, called by nobody: its caller's frames in libc give it away.
    if keep == frames.len()
        && keep >= 2
        && frames[keep - 1].function.is_none()
        && is_libc(frames[keep - 2].module_name())
    {
        keep -= 1;
    }
    while keep > 0 && is_system(frames[keep - 1].module_name()) {
        keep -= 1;
    }
    // Generic code at the outer end only passed the thread's function on.
    while 0 < keep && keep < frames.len() && frames[keep - 1].role == Role::Wrapper {
        keep -= 1;
    }
    if frames[..keep].iter().any(Frame::shown) {
        for frame in &mut frames[keep..] {
            frame.role = Role::BelowMain;
        }
    }
}

fn is_libc(module: &str) -> bool {
    ["libc.so", "libc-", "libc.musl", "libpthread", "ld-linux", "ld-musl"]
        .iter()
        .any(|start| module.starts_with(start))
}

/// Libraries that call `main` and thread functions, and nothing else that could stand at the end of a stack.
fn is_system(module: &str) -> bool {
    is_libc(module) || module.starts_with("libstdc++.so") || module.starts_with("libc++")
}

/// Everything outside such a frame belongs to the system.
fn starts_a_thread(name: &str, module: &str) -> bool {
    match name {
        "_start" | "execute_native_thread_routine" | "__libc_start_main" | "__libc_start_call_main" => true,
        "start_thread" | "clone" | "clone3" | "__clone" | "__clone3" => is_libc(module),
        _ => {
            name.contains("__rust_begin_short_backtrace")
                || name.starts_with("std::rt::lang_start")
                || (name.starts_with("std::sys::") && name.ends_with("::thread_start"))
                || name.starts_with("__libc_start_main")
        }
    }
}

/// FNV-1a, 64 bits: stable for ever, and the same in any other language.
struct Hasher(u64);

impl Hasher {
    fn new() -> Hasher {
        Hasher(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn frame(&mut self, frame: &Frame, lines: bool) {
        self.bytes(frame.module_name().as_bytes());
        self.bytes(&[0]);
        match frame.function {
            Some(function) => self.bytes(without_hash(function).as_bytes()),
            // Offsets in a file are the same in every run; addresses outside all files are not.
            None if lines && !frame.module.is_empty() => self.bytes(&frame.address.to_le_bytes()),
            None => {}
        }
        self.bytes(&[0]);
        if lines && let Some(line) = frame.line {
            self.bytes(&line.to_le_bytes());
        }
        self.bytes(&[1]);
    }

    fn finish(self) -> Fingerprint {
        Fingerprint(self.0)
    }
}

#[cfg(test)]
mod tests;
