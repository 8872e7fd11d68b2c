//! Native memory: heap chunks, the classes of C++ objects, and native roots.
//!
//! * [`pages`]: who owns each page, and where chunks start
//! * [`glibc`], [`pools`]: the chunks of glibc's malloc and of CPython's allocator
//! * [`jemalloc`], [`tcmalloc`]: those of other allocators, with [`tree`] and [`slabs`] for what both have in common
//! * [`rtti`]: classes by their virtual tables
//! * [`roots`]: static memory, stacks, thread-local variables
//! * [`locals`]: which file a thread-local variable is of
//! * [`coroutines`]: stacks that the program made itself
//! * [`counts`]: reference counts of C++ objects
//! * [`driver`]: what belongs to the CUDA driver and so holds nothing

use std::ops::Range;

use culeak::analysis::words;

use crate::copy::selection::{is_anonymous, is_recorder, merged};
use crate::copy::{Copy, PAGE};
use crate::modules::{Module, Modules};
use crate::parallel;

use coroutines::Coroutine;
use driver::Driver;
use glibc::Heaps;
use locals::Blocks;
use pages::{Kind, Pages};
use roots::Stack;
use rtti::Classes;
use slabs::Slabs;

pub mod coroutines;
pub mod counts;
pub mod driver;
pub mod glibc;
pub mod jemalloc;
pub mod locals;
pub mod pages;
pub mod pools;
pub mod roots;
pub mod rtti;
pub mod slabs;
pub mod tcmalloc;
pub mod tree;
pub mod vectors;

pub use rtti::ClassId;

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
    /// A piece in use of jemalloc or tcmalloc.
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

impl NativeRoot {
    /// Where its words are; `None` for registers.
    pub fn range(&self) -> Option<Range<u64>> {
        match self {
            NativeRoot::Globals { range, .. }
            | NativeRoot::Stack { range, .. }
            | NativeRoot::ThreadLocals { range, .. } => Some(range.clone()),
            NativeRoot::Registers { .. } => None,
        }
    }

    /// A part of it; registers have none.
    pub(crate) fn part(&self, part: Range<u64>) -> NativeRoot {
        let mut root = self.clone();
        match &mut root {
            NativeRoot::Globals { range, .. }
            | NativeRoot::Stack { range, .. }
            | NativeRoot::ThreadLocals { range, .. } => *range = part,
            NativeRoot::Registers { .. } => {}
        }
        root
    }
}

/// The native memory of a copy.
#[derive(Default)]
pub struct Native {
    pages: Pages,
    classes: Classes,
    heaps: Heaps,
    slabs: Slabs,
    stacks: Vec<Stack>,
    coroutines: Vec<Coroutine>,
    thread_local_blocks: Blocks,
    /// 1 if there are none, so that the size can be divided by.
    pool_bytes: u64,
    driver: Driver,
    /// All roots but registers, by address.
    root_ranges: Vec<Range<u64>>,
    limits: Vec<String>,
}

/// How much of unknown heap memory a pointer leads to.
const WINDOW: u64 = 256;

/// In place of the number of the thread that uses a stack: none does.
const NO_THREAD: u32 = 0;

impl Native {
    /// `pool_bytes`: the size of a pool of CPython's allocator; `None` without Python.
    pub fn find(copy: &Copy, modules: &Modules, pool_bytes: Option<u64>) -> Native {
        let mut pages = Pages::new(copy);
        let (mut memory, mut brk): (Vec<Range<u64>>, Vec<Range<u64>>) = Default::default();
        let mut was_writable = true;
        for region in copy.regions().iter().filter(|region| region.readable && !region.shared) {
            let list = match region.name.as_str() {
                "[heap]" => &mut brk,
                _ if is_anonymous(region) => &mut memory,
                _ => {
                    let is_module = || modules.all().iter().any(|module| module.path == region.name);
                    if region.name.starts_with('/') && !is_module() {
                        pages.set_kind(copy, region.range.clone(), Kind::Unknown);
                    }
                    continue;
                }
            };
            match list.last_mut() {
                // A program that makes pages of a heap read-only cuts its mapping.
                Some(last) if last.end == region.range.start && !(region.writable && was_writable) => {
                    last.end = region.range.end;
                }
                _ => list.push(region.range.clone()),
            }
            was_writable = region.writable;
        }
        for range in memory.iter().chain(&brk) {
            pages.set_kind(copy, range.clone(), Kind::Unknown);
        }
        let stacks = roots::stacks(copy, &pages, &memory);
        roots::exclude(copy, modules, &stacks, &mut pages);
        let mut slabs = Slabs::default();
        let all: Vec<Range<u64>> = memory.iter().chain(&brk).cloned().collect();
        let locals: Vec<Range<u64>> = stacks.iter().filter_map(|stack| stack.locals.clone()).collect();
        jemalloc::find(copy, modules, &mut pages, &all, &locals, &mut slabs);
        tcmalloc::find(copy, modules, &mut pages, &all, &mut slabs);
        let heaps = glibc::find(copy, modules, &mut pages, &memory, &brk);
        if let Some(bytes) = pool_bytes {
            pools::find(copy, &mut pages, &memory, bytes);
        }
        glibc::find_mapped(copy, &mut pages, &memory);
        pages.finish(copy, |start| start + glibc::usable(copy, start));
        let mut native = Native {
            driver: Driver::default(),
            root_ranges: Vec::new(),
            pages,
            classes: Classes::new(copy),
            heaps,
            slabs,
            stacks,
            coroutines: Vec::new(),
            thread_local_blocks: Blocks::of(copy, modules),
            pool_bytes: pool_bytes.unwrap_or(1),
            limits: Vec::new(),
        };
        native.find_coroutines(copy, modules);
        native.root_ranges = native
            .roots(copy, modules)
            .iter()
            .filter_map(NativeRoot::range)
            .collect();
        native.root_ranges.sort_by_key(|range| range.start);
        native.driver = Driver::find(copy, modules, &native);
        native.note_limits(modules);
        native
    }

    /// The allocated chunk that a pointer to this address leads to. `None`: free, an allocator's own memory, the CUDA
    /// driver's, or not heap memory.
    ///
    /// Pointers to blocks of CPython's allocator count only at their start: links of its collector point into them. So
    /// do those of malloc's free lists into the last word of a chunk, which does not count, either.
    #[inline]
    pub fn chunk(&self, copy: &Copy, address: u64) -> Option<Chunk> {
        let Some(granule) = copy.granule(address) else {
            let chunk = self.absent(copy, address)?;
            // Of the chunks of jemalloc and tcmalloc, the driver has none.
            let is_driver = |start| copy.granule(start).is_some_and(|granule| self.driver.owns(granule));
            return (chunk.heap == Heap::Other || !is_driver(chunk.start)).then_some(chunk);
        };
        let chunk = self.present(copy, granule, address)?;
        (!self.driver.owns(granule)).then_some(chunk)
    }

    /// As [`Native::chunk`], those of the CUDA driver included.
    fn chunk_of_any(&self, copy: &Copy, address: u64) -> Option<Chunk> {
        match copy.granule(address) {
            Some(granule) => self.present(copy, granule, address),
            None => self.absent(copy, address),
        }
    }

    /// The chunk with an address whose page exists.
    #[inline]
    fn present(&self, copy: &Copy, granule: usize, address: u64) -> Option<Chunk> {
        let chunk = match self.pages.kind(granule) {
            Kind::None => return None,
            Kind::Extent => self.piece(copy, address)?,
            Kind::Glibc => match self.glibc_chunk(copy, granule, address) {
                None if self.heaps.in_gap(address) => self.window(copy, address)?,
                chunk => chunk?,
            },
            Kind::Pool => {
                if !address.is_multiple_of(16) || !self.pages.is_start(granule) {
                    return None;
                }
                Chunk {
                    start: address,
                    bytes: pools::block_bytes(copy, address, self.pool_bytes),
                    heap: Heap::Python,
                }
            }
            Kind::Unknown => self.window(copy, address)?,
        };
        match self.coroutines.is_empty() {
            true => Some(chunk),
            false => self.outside_stacks(chunk, address),
        }
    }

    /// The chunk whose page with this address does not exist: most of a large array may never have been used.
    fn absent(&self, copy: &Copy, address: u64) -> Option<Chunk> {
        if let Some(piece) = self.piece(copy, address) {
            return Some(piece);
        }
        let start = self.pages.start_of_absent(address)?;
        Some(Chunk {
            start,
            bytes: glibc::usable(copy, start),
            heap: Heap::Glibc,
        })
    }

    /// The allocated chunk whose memory contains this address, the last word and the CUDA driver's included.
    pub fn around(&self, copy: &Copy, address: u64) -> Option<Chunk> {
        let Some(granule) = copy.granule(address) else {
            return self.absent(copy, address);
        };
        match self.pages.kind(granule) {
            _ if self.is_of_coroutine(address) => None,
            Kind::None => None,
            Kind::Extent => self.piece(copy, address),
            Kind::Glibc => {
                let start = self.pages.start_before(granule, address)?;
                let bytes = glibc::usable(copy, start);
                let heap = Heap::Glibc;
                (address - start < bytes).then_some(Chunk { start, bytes, heap })
            }
            Kind::Pool => {
                let (start, bytes) = pools::block_around(copy, address, self.pool_bytes)?;
                let is_used = copy.granule(start).is_some_and(|granule| self.pages.is_start(granule));
                let heap = Heap::Python;
                is_used.then_some(Chunk { start, bytes, heap })
            }
            Kind::Unknown => self.window(copy, address & !7),
        }
    }

    #[inline]
    fn glibc_chunk(&self, copy: &Copy, granule: usize, address: u64) -> Option<Chunk> {
        let start = self.pages.start_before(granule, address)?;
        let bytes = glibc::usable(copy, start);
        (address - start + 8 < bytes).then_some(Chunk {
            start,
            bytes,
            heap: Heap::Glibc,
        })
    }

    fn piece(&self, copy: &Copy, address: u64) -> Option<Chunk> {
        let piece = self.slabs.piece(copy, address)?;
        Some(Chunk {
            start: piece.start,
            bytes: piece.bytes,
            heap: Heap::Other,
        })
    }

    /// Bytes of the chunk that the program requested at least. What follows may be left from an earlier owner.
    pub fn requested(&self, copy: &Copy, chunk: &Chunk) -> u64 {
        match chunk.heap {
            // malloc rounds up to 8 more than a multiple of 16.
            Heap::Glibc if chunk.bytes % 16 == 8 && chunk.bytes > 8 => chunk.bytes - 8,
            Heap::Other => (self.slabs.piece(copy, chunk.start)).map_or(chunk.bytes, |piece| piece.requested),
            _ => chunk.bytes,
        }
    }

    /// Whether the word at `place` with this value is the end of what the words around it point to, and so no pointer to
    /// the chunk that starts there: (first, end, limit) of a `std::vector`, or (current, first, end) of an iterator.
    #[inline]
    pub fn is_end(&self, copy: &Copy, place: u64, value: u64) -> bool {
        !self.slabs.is_empty() && self.is_end_of_piece(copy, place, value)
    }

    fn is_end_of_piece(&self, copy: &Copy, place: u64, value: u64) -> bool {
        let chunk = |address| self.chunk(copy, address).filter(|chunk| chunk.heap == Heap::Other);
        if chunk(value).is_none_or(|chunk| chunk.start != value) {
            return false;
        }
        let around = [-16_i64, -8, 8].map(|offset| copy.word(place.wrapping_add_signed(offset)));
        let [second, first, next] = around;
        let begins =
            |start: u64| chunk(start).is_some_and(|chunk| chunk.start == start && start + chunk.bytes == value);
        let is_inside = |start: u64, address: u64| (start..=value).contains(&address);
        begins(first) && (next == value || is_inside(first, second)) || begins(second) && is_inside(second, first)
    }

    fn window(&self, copy: &Copy, address: u64) -> Option<Chunk> {
        if !address.is_multiple_of(8) {
            return None;
        }
        let page_end = (address & !(PAGE - 1)) + PAGE;
        let goes_on = self.pages.kind_at(copy, page_end) == self.pages.kind_at(copy, address);
        let end = if goes_on { address + WINDOW } else { page_end };
        Some(Chunk {
            start: address,
            bytes: WINDOW.min(end - address),
            heap: Heap::Window,
        })
    }

    /// All allocated chunks that are known, those of Python's allocator included, those of the CUDA driver not.
    pub fn each_chunk(&self, copy: &Copy, see: &mut dyn FnMut(Chunk)) {
        self.each_of_others(copy, see);
        for kind in [Kind::Glibc, Kind::Pool] {
            self.each_in(copy, &copy.runs(), kind, see);
        }
    }

    /// All allocated chunks that are known and for which this holds, those of the CUDA driver not; in pages of glibc and of
    /// Python's allocator, only those in pages of these kinds.
    pub fn chunks_where(&self, copy: &Copy, kinds: &[Kind], is_wanted: impl Fn(&Chunk) -> bool + Sync) -> Vec<Chunk> {
        let mut found = Vec::new();
        self.each_of_others(copy, &mut |chunk| {
            if is_wanted(&chunk) {
                found.push(chunk);
            }
        });
        let pieces = copy.pieces();
        for kind in kinds {
            found.extend(parallel::flat_map(&pieces, |piece| {
                let mut found = Vec::new();
                self.each_in(copy, piece, *kind, &mut |chunk| {
                    if is_wanted(&chunk) {
                        found.push(chunk);
                    }
                });
                found
            }));
        }
        found
    }

    /// Those whose first page does not exist, and those of jemalloc and tcmalloc.
    fn each_of_others(&self, copy: &Copy, see: &mut dyn FnMut(Chunk)) {
        for start in self.pages.absent_starts(copy) {
            let bytes = glibc::usable(copy, start);
            let heap = Heap::Glibc;
            see(Chunk { start, bytes, heap });
        }
        self.slabs.each(&mut |start, bytes| {
            let heap = Heap::Other;
            if !copy.granule(start).is_some_and(|granule| self.driver.owns(granule)) {
                see(Chunk { start, bytes, heap });
            }
        });
    }

    /// Those in pages of this kind in these ranges.
    fn each_in(&self, copy: &Copy, ranges: &[Range<u64>], kind: Kind, see: &mut dyn FnMut(Chunk)) {
        self.pages.each_start_in(copy, ranges, kind, &mut |start, granule| {
            if !self.driver.owns(granule) {
                let (bytes, heap) = match kind {
                    Kind::Pool => (pools::block_bytes(copy, start, self.pool_bytes), Heap::Python),
                    _ => (glibc::usable(copy, start), Heap::Glibc),
                };
                see(Chunk { start, bytes, heap });
            }
        });
    }

    /// Finds the CUDA driver's records of these blocks, which hold nothing: afterwards they are no chunks.
    pub fn find_records(&mut self, copy: &Copy, blocks: &[u64]) {
        let mut driver = std::mem::take(&mut self.driver);
        driver.find_records(copy, self, blocks);
        self.driver = driver;
    }

    /// Whether memory that nothing of the program leads to belongs to the CUDA driver.
    pub fn is_driver(&self, copy: &Copy, address: u64) -> bool {
        copy.granule(address)
            .is_some_and(|granule| self.driver.may_own(copy, self, granule))
    }

    /// The C++ class of the object at the beginning of a chunk, by its virtual table: `c10::TensorImpl`. Also that of an
    /// object behind a shared pointer's counts.
    pub fn class(&mut self, copy: &Copy, chunk: u64) -> Option<&str> {
        let class = self.class_id(copy, chunk)?;
        Some(self.class_name(class)).filter(|name| !name.is_empty())
    }

    /// As above. Equal classes have equal numbers.
    #[inline]
    pub fn class_id(&mut self, copy: &Copy, chunk: u64) -> Option<ClassId> {
        self.classes.chunk(copy, chunk)
    }

    /// Whether this chunk has an object whose destructor has begun.
    pub fn is_destroyed(&mut self, copy: &Copy, chunk: u64) -> bool {
        self.classes.is_destroyed(copy, chunk)
    }

    /// As [`Native::class_id`], of chunks that were asked for before; `None` if this one was not.
    pub fn known_class_id(&self, copy: &Copy, chunk: u64) -> Option<Option<ClassId>> {
        self.classes.known(copy, chunk)
    }

    /// All classes that were found.
    pub fn class_ids(&self) -> impl Iterator<Item = ClassId> + use<> {
        self.classes.all()
    }

    /// Empty if it cannot be demangled.
    pub fn class_name(&self, class: ClassId) -> &str {
        self.classes.name(class)
    }

    /// It contains all identifiers of the name.
    pub fn mangled_class_name(&self, class: ClassId) -> &str {
        self.classes.mangled_name(class)
    }

    /// Native roots: globals of every file but the recorder, the CUDA driver, libc and the loader; then threads.
    pub fn roots(&self, _copy: &Copy, modules: &Modules) -> Vec<NativeRoot> {
        let stacks = self.coroutines.iter().map(|coroutine| coroutine.memory.clone());
        let left_out = self.slabs.records.iter().cloned().chain(stacks).collect();
        roots::all(modules, &self.stacks, &self.coroutines, &merged(left_out))
    }

    /// Whether this is static memory of the program, or part of a stack in use.
    fn is_root(&self, address: u64) -> bool {
        let place = self.root_ranges.partition_point(|range| range.end <= address);
        self.root_ranges.get(place).is_some_and(|range| range.start <= address)
    }

    /// What could not be searched, in sentences.
    pub fn limits(&self) -> &[String] {
        &self.limits
    }

    fn note_limits(&mut self, modules: &Modules) {
        let gaps: u64 = self.heaps.gaps.iter().map(|gap| self.pages.bytes(gap.clone())).sum();
        if gaps > 0 {
            self.limits.push(format!(
                "{} of malloc's heaps are damaged or changed while they were copied: pointers into them are followed for \
                 {WINDOW} bytes",
                words::bytes(gaps)
            ));
        }
        let missing: Vec<u32> = self.stacks.iter().filter_map(Stack::missing).collect();
        if let Some(first) = missing.first() {
            self.limits.push(format!(
                "the stacks of {} running threads were not found, the first is {first}: --pause finds them",
                missing.len()
            ));
        }
        if roots::are_locals_missing(&self.stacks) {
            self.limits.push(
                "thread-local variables were not found, because only those of glibc on x86-64 are known: blocks that only \
                 they hold are reported as lost"
                    .to_owned(),
            );
        }
        const ALLOCATORS: [&str; 5] = ["tcmalloc", "mimalloc", "jemalloc", "snmalloc", "scudo"];
        let is_loaded = |name: &&str| modules.all().iter().any(|module| module.file_name().contains(name));
        let unknown = self.pages.bytes_of(Kind::Unknown);
        let is_unknown = |name: &&&str| is_loaded(name) && !self.slabs.names.contains(name);
        if let Some(name) = ALLOCATORS.iter().find(is_unknown) {
            self.limits.push(format!(
                "the chunks of {name} are not known: pointers into {} of its memory are followed for {WINDOW} bytes",
                words::bytes(unknown)
            ));
        }
    }

    /// What to call a word of a root: `g_cache in libext.so`, `stack of thread 4711 (loader)`.
    pub fn describe(&mut self, _copy: &Copy, modules: &mut Modules, root: &NativeRoot, address: u64) -> String {
        let of_thread = |what: &str, thread: &u32, name: &str| match name {
            "" => format!("{what} of thread {thread}"),
            _ => format!("{what} of thread {thread} ({name})"),
        };
        match root {
            NativeRoot::Globals { file, .. } => match modules.variable_at(address) {
                Some((variable, _)) => format!("{variable} in {file}"),
                None => {
                    let bias = modules.with_global(address).map_or(0, |module| module.bias);
                    format!("{file}+{:#x}", address.wrapping_sub(bias))
                }
            },
            NativeRoot::Stack { thread: NO_THREAD, .. } => "stack of a coroutine".to_owned(),
            NativeRoot::Stack { thread, name, .. } => of_thread("stack", thread, name),
            NativeRoot::Registers { thread, name, .. } => of_thread("registers", thread, name),
            NativeRoot::ThreadLocals { thread, name, .. } => match self.thread_local(modules, address) {
                Some((variable, module, _)) => {
                    let file = modules.all().get(module).map_or("", Module::file_name);
                    of_thread(&format!("thread-local variable {variable} in {file}"), thread, name)
                }
                None => of_thread("thread-local variable", thread, name),
            },
        }
    }

    /// The addresses of the variable that contains this word of static or thread-local memory, if it has a symbol.
    pub fn extent(&self, modules: &mut Modules, root: &NativeRoot, address: u64) -> Option<Range<u64>> {
        match root {
            NativeRoot::Globals { .. } => modules.variable(address).map(|(_, range)| range),
            NativeRoot::ThreadLocals { .. } => self.thread_local(modules, address).map(|(.., range)| range),
            NativeRoot::Stack { .. } | NativeRoot::Registers { .. } => None,
        }
    }

    /// The thread-local memory of the preload library: what it notes of blocks holds none.
    pub fn locals_of_recorder(&self, modules: &Modules) -> Vec<Range<u64>> {
        let Some(recorder) = modules.all().iter().position(|module| is_recorder(&module.path)) else {
            return Vec::new();
        };
        let bases = self.stacks.iter().filter_map(|stack| stack.descriptor);
        bases
            .filter_map(|base| self.thread_local_blocks.of_module(base, recorder))
            .collect()
    }

    /// The thread-local variable at this address, its module, and its addresses.
    fn thread_local(&self, modules: &mut Modules, address: u64) -> Option<(String, usize, Range<u64>)> {
        let contains = |stack: &&Stack| stack.locals.as_ref().is_some_and(|locals| locals.contains(&address));
        let base = self.stacks.iter().find(contains)?.descriptor?;
        let (module, start) = self.thread_local_blocks.find(base, address)?;
        let (name, offsets) = modules.thread_local(module, address - start)?;
        Some((name, module, start + offsets.start..start + offsets.end))
    }
}
