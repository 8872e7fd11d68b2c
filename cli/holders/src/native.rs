//! Native memory: heap chunks, the classes of C++ objects, and native roots.
//!
//! * [`pages`]: who owns each page, and where chunks start
//! * [`glibc`], [`pools`], `mimalloc`: the chunks of glibc's malloc and of CPython's allocators
//! * [`rtti`]: classes by their virtual tables; [`kinds`]: what is known about them
//! * [`roots`]: static memory, stacks, thread-local variables
//! * [`locals`]: which file a thread-local variable is of
//! * [`counts`]: reference counts of C++ objects
//! * `owners`: whose memory pages are, and how much of it is resident
//! * [`driver`]: what belongs to the CUDA driver and so holds nothing

use std::ops::Range;

use culeak::analysis::words;

use crate::bits::Bits;
use crate::copy::selection::{containing, is_anonymous};
use crate::copy::{Image, PAGE};
use crate::modules::{Module, Modules, Role};
use crate::parallel;

use driver::Driver;
use glibc::Heaps;
use locals::Blocks;
use pages::Pages;
use roots::Stack;
use rtti::Classes;

pub mod counts;
pub mod driver;
pub mod glibc;
mod keys;
pub mod kinds;
mod locals;
mod mimalloc;
mod owners;
pub mod pages;
pub mod pools;
pub mod roots;
pub mod rtti;
pub mod vectors;

pub use pages::{Chunk, Heap, Owner};
pub use roots::{NativeRoot, RootSort};
pub use rtti::ClassId;

/// The allocator other than glibc's that this library is.
fn allocator_of(file_name: &str) -> Option<&'static str> {
    const ALLOCATORS: [&str; 5] = ["tcmalloc", "mimalloc", "jemalloc", "snmalloc", "scudo"];
    let name = file_name.strip_prefix("lib")?;
    let name = name.strip_prefix("clang_rt.").unwrap_or(name);
    ALLOCATORS.into_iter().find(|allocator| name.starts_with(allocator))
}

/// The native memory of a copy.
#[derive(Default)]
pub struct Native {
    pages: Pages,
    /// Classes of C++ objects. [`Classes::chunk`] finds the class of a chunk.
    pub classes: Classes,
    heaps: Heaps,
    stacks: Vec<Stack>,
    thread_local_blocks: Blocks,
    /// 1 if there are none, 0 if Python's allocator is mimalloc.
    pool_bytes: u64,
    driver: Driver,
    /// All roots but registers, by address.
    root_ranges: Vec<Range<u64>>,
    /// What could not be searched, in sentences.
    pub limits: Vec<String>,
    /// The loaded allocator whose chunks are not known.
    allocator: Option<&'static str>,
    /// Of its memory, by half a granule: some pointer leads here.
    starts: Bits,
}

/// How much of unknown heap memory a pointer leads to.
const WINDOW: u64 = 256;

impl Native {
    /// `pool_bytes`: the size of a pool of CPython's allocator, 0 if that is mimalloc; `None` without Python.
    pub fn find(copy: &Image, modules: &Modules, pool_bytes: Option<u64>) -> Native {
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
                        pages.set_kind(copy, region.range.clone(), Heap::Unknown);
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
            pages.set_kind(copy, range.clone(), Heap::Unknown);
        }
        let stacks = roots::stacks(copy, &pages, &memory);
        roots::exclude(copy, modules, &stacks, &mut pages);
        let heaps = glibc::find(copy, modules, &mut pages, &memory, &brk);
        if let Some(bytes) = pool_bytes {
            pools::find(copy, &mut pages, &memory, bytes);
        }
        glibc::find_mapped(copy, &mut pages, &memory);
        pages.finish(copy, |start| start + glibc::usable(copy, start));
        let mut native = Native {
            pages,
            classes: Classes::new(copy),
            heaps,
            stacks,
            thread_local_blocks: Blocks::of(copy, modules),
            pool_bytes: pool_bytes.unwrap_or(1),
            allocator: (modules.all().iter()).find_map(|module| allocator_of(module.file_name())),
            ..Native::default()
        };
        if native.allocator.is_some() {
            native.note_starts(copy);
        }
        // The chunk in which a program made a stack is its stack.
        for number in 0..native.stacks.len() {
            let own = native.stacks[number].own.clone();
            let chunk = own.and_then(|own| native.around(copy, own.start));
            if let Some(chunk) = chunk.filter(|chunk| chunk.heap == Heap::Glibc)
                && let Some(own) = &mut native.stacks[number].own
            {
                own.end = own.end.min(chunk.start + chunk.bytes);
            }
        }
        native.root_ranges = native.roots(modules).into_iter().map(|root| root.range).collect();
        native.root_ranges.retain(|range| !range.is_empty());
        native.root_ranges.sort_by_key(|range| range.start);
        native.driver = Driver::find(copy, modules, &native);
        native.note_limits();
        native
    }

    /// The allocated chunk that a pointer to this address leads to. `None`: free, an allocator's own memory, the CUDA
    /// driver's, or not heap memory.
    ///
    /// Pointers to blocks of CPython's allocator count only at their start: links of its collector point into them. So
    /// do those of malloc's free lists into the last word of a chunk, which does not count, either.
    #[inline]
    pub fn chunk(&self, copy: &Image, address: u64) -> Option<Chunk> {
        let Some(granule) = copy.granule(address) else {
            let chunk = self.absent(copy, address)?;
            let is_driver = |start| copy.granule(start).is_some_and(|granule| self.driver.owns(granule));
            return (!is_driver(chunk.start)).then_some(chunk);
        };
        let chunk = self.present(copy, granule, address)?;
        (!self.driver.owns(granule)).then_some(chunk)
    }

    /// As [`Native::chunk`], those of the CUDA driver included.
    fn chunk_of_any(&self, copy: &Image, address: u64) -> Option<Chunk> {
        match copy.granule(address) {
            Some(granule) => self.present(copy, granule, address),
            None => self.absent(copy, address),
        }
    }

    /// The chunk with an address whose page exists.
    #[inline]
    fn present(&self, copy: &Image, granule: usize, address: u64) -> Option<Chunk> {
        match self.pages.kind(granule) {
            Heap::None => None,
            Heap::Glibc => match self.glibc_chunk(copy, granule, address) {
                None if self.heaps.in_gap(address) => self.window(copy, address),
                chunk => chunk,
            },
            Heap::Python => {
                let is_start = address.is_multiple_of(16) && self.pages.is_start(granule);
                is_start.then(|| self.starting(copy, address, Heap::Python))
            }
            Heap::Unknown => self.window(copy, address),
        }
    }

    /// The chunk whose page with this address does not exist: most of a large array may never have been used.
    fn absent(&self, copy: &Image, address: u64) -> Option<Chunk> {
        let start = self.pages.start_of_absent(address)?;
        Some(self.starting(copy, start, Heap::Glibc))
    }

    /// The chunk of glibc or of Python's allocator that starts here.
    #[inline]
    fn starting(&self, copy: &Image, start: u64, heap: Heap) -> Chunk {
        let bytes = match heap {
            Heap::Python => pools::block_bytes(copy, start, self.pool_bytes),
            _ => glibc::usable(copy, start),
        };
        Chunk { start, bytes, heap }
    }

    /// The allocated chunk whose memory contains this address, the last word and the CUDA driver's included.
    pub fn around(&self, copy: &Image, address: u64) -> Option<Chunk> {
        let Some(granule) = copy.granule(address) else {
            return self.absent(copy, address);
        };
        match self.pages.kind(granule) {
            Heap::None => None,
            Heap::Glibc => {
                let chunk = self.starting(copy, self.pages.start_before(granule, address)?, Heap::Glibc);
                (address - chunk.start < chunk.bytes).then_some(chunk)
            }
            Heap::Python => {
                let start = pools::block_around(copy, address, self.pool_bytes)?;
                let is_used = copy.granule(start).is_some_and(|granule| self.pages.is_start(granule));
                is_used.then(|| self.starting(copy, start, Heap::Python))
            }
            Heap::Unknown => self.window(copy, address & !7),
        }
    }

    #[inline]
    fn glibc_chunk(&self, copy: &Image, granule: usize, address: u64) -> Option<Chunk> {
        let chunk = self.starting(copy, self.pages.start_before(granule, address)?, Heap::Glibc);
        (address - chunk.start + 8 < chunk.bytes).then_some(chunk)
    }

    /// Whether the word at `place` with this value may be the end or the limit of a `std::vector` (first, end, limit) in memory of an
    /// unknown allocator: what the word before it points to ends there.
    #[inline]
    pub fn is_end(&self, copy: &Image, place: u64, value: u64) -> bool {
        let before = |words: u64| copy.word(place.wrapping_sub(words * 8));
        let ends_here = |start: u64| {
            let is_near = start < value && value - start <= PAGE;
            let chunk = is_near.then(|| self.chunk(copy, start)).flatten();
            let chunk = chunk.filter(|chunk| chunk.heap == Heap::Unknown);
            chunk.is_some_and(|chunk| chunk.start + chunk.bytes == value)
        };
        self.is_noted(copy, value) && (ends_here(before(1)) || before(1) == value && ends_here(before(2)))
    }

    /// Bytes of the chunk that the program requested at least. What follows may be left from an earlier owner.
    pub fn requested(&self, chunk: &Chunk) -> u64 {
        match chunk.heap {
            // malloc rounds up to 8 more than a multiple of 16.
            Heap::Glibc if chunk.bytes % 16 == 8 && chunk.bytes > 8 => chunk.bytes - 8,
            _ => chunk.bytes,
        }
    }

    fn window(&self, copy: &Image, address: u64) -> Option<Chunk> {
        if !address.is_multiple_of(8) {
            return None;
        }
        let bytes = if self.allocator.is_some() { PAGE } else { WINDOW };
        let page_end = (address & !(PAGE - 1)) + PAGE;
        let goes_on = self.pages.kind_at(copy, page_end) == self.pages.kind_at(copy, address);
        let end = if goes_on {
            address + bytes
        } else {
            page_end.min(address + bytes)
        };
        let class = self.classes.known(copy, address).flatten();
        let kind = class.map(|class| self.classes.kind(class));
        // Other pointers to an object of these classes lead to its fields.
        let is_whole = kind.is_some_and(|kind| kind.is_counted() || kind == kinds::Kind::TensorMeta);
        let is_next = |at: u64| !is_whole || self.classes.may_be_table(copy.word(at));
        // Only chunks of 8 bytes do not start at a multiple of 16, and an object with a class has more than its table.
        let is_place = |at: u64| at.is_multiple_of(16) || at == address + 8 && class.is_none();
        let is_start = |at: &u64| is_place(*at) && self.is_noted(copy, *at) && is_next(*at);
        let next = |_| (address + 8..end).step_by(8).find(is_start);
        Some(Chunk {
            start: address,
            bytes: self.allocator.and_then(next).unwrap_or(end) - address,
            heap: Heap::Unknown,
        })
    }

    /// Whether some pointer leads to this place in memory of an unknown allocator.
    #[inline]
    pub fn is_noted(&self, copy: &Image, at: u64) -> bool {
        let number = |granule| granule * 2 + (at >> 3 & 1) as usize;
        copy.granule(at).is_some_and(|granule| self.starts.get(number(granule)))
    }

    /// Whether what is here may be a member of the object before it, although pointers lead here: what it refers to refers back,
    /// as the nodes of lists and trees do, and the buckets of a hash table.
    pub fn may_be_member(&self, copy: &Image, at: u64) -> bool {
        const MOST: u64 = 1024;
        let is_here = |place: u64| copy.word(place) == at;
        let fields = [0, 8, 16].map(|field| copy.word(at + field));
        let refers_back = |target: u64| [0, 8, 16].into_iter().any(|field| is_here(target.wrapping_add(field)));
        let [buckets, count] = [16, 8].map(|before| copy.word(at.wrapping_sub(before)));
        fields.into_iter().any(|target| target >= PAGE && refers_back(target))
            || copy.has(buckets) && (0..count.min(MOST)).any(|bucket| is_here(buckets.wrapping_add(bucket * 8)))
    }

    /// All allocated chunks that are known and for which this holds, those of the CUDA driver not; in pages of glibc and of
    /// Python's allocator, only those in pages of these kinds.
    pub fn chunks_where(&self, copy: &Image, heaps: &[Heap], is_wanted: impl Fn(&Chunk) -> bool + Sync) -> Vec<Chunk> {
        let absent = self.pages.absent_starts(copy);
        let mut found: Vec<Chunk> = absent.map(|start| self.starting(copy, start, Heap::Glibc)).collect();
        found.retain(|chunk| is_wanted(chunk));
        let pieces = copy.pieces();
        for heap in heaps {
            found.extend(parallel::flat_map(&pieces, |piece| {
                let mut chunks = self.chunks_in(copy, piece, *heap);
                chunks.retain(|chunk| !self.driver.has(copy, chunk) && is_wanted(chunk));
                chunks
            }));
        }
        found
    }

    /// Finds the CUDA driver's records of these blocks, which hold nothing: afterwards they are no chunks.
    pub fn find_records(&mut self, copy: &Image, blocks: &[u64]) {
        let mut driver = std::mem::take(&mut self.driver);
        driver::records::find(&mut driver, copy, self, blocks);
        self.driver = driver;
    }

    /// Whether memory that nothing of the program leads to belongs to the CUDA driver.
    pub fn is_driver(&self, copy: &Image, address: u64) -> bool {
        copy.granule(address)
            .is_some_and(|granule| self.driver.may_own(copy, self, granule, false))
    }

    /// As above, of memory to which a word of the program leads that may be stale.
    pub fn is_driver_although_reached(&self, copy: &Image, address: u64) -> bool {
        copy.granule(address)
            .is_some_and(|granule| self.driver.may_own(copy, self, granule, true))
    }

    /// The C++ class of the object at the beginning of a chunk, by its virtual table: `c10::TensorImpl`. Also that of an
    /// object behind a shared pointer's counts.
    pub fn class(&mut self, copy: &Image, chunk: u64) -> Option<&str> {
        let class = self.classes.chunk(copy, chunk)?;
        Some(self.classes.name(class)).filter(|name| !name.is_empty())
    }

    /// What is known about the class of the object at the beginning of a chunk.
    pub fn kind(&mut self, copy: &Image, chunk: u64) -> kinds::Kind {
        let class = self.classes.chunk(copy, chunk);
        class.map_or(kinds::Kind::Unnamed, |class| self.classes.kind(class))
    }

    /// Native roots: globals of every file but the recorder, the CUDA driver, libc and the loader; then threads.
    pub fn roots(&self, modules: &Modules) -> Vec<NativeRoot> {
        roots::all(modules, &self.stacks)
    }

    /// Whether this is static memory of the program, or part of a stack in use.
    fn is_root(&self, address: u64) -> bool {
        containing(&self.root_ranges, address, Range::clone).is_some()
    }

    /// Notes where pointers to memory of an unknown allocator lead: an object ends before the next one. Short strings and
    /// empty lists and maps of libstdc++ point to themselves.
    fn note_starts(&mut self, copy: &Image) {
        let pages = &self.pages;
        let is_pointer = |value: u64| value.is_multiple_of(8) && value >= PAGE;
        let is_own = |place: u64, value: u64| {
            let buffer = || [0, 8].map(|offset| copy.word(value + offset));
            let is_twice = || {
                [place - 8, place + 8]
                    .into_iter()
                    .any(|beside| copy.word(beside) == value)
            };
            value == place + 16 && vectors::is_text(&buffer(), copy.word(place + 8))
                || place.wrapping_sub(value) <= 24 && is_twice()
        };
        let starts = copy.search(is_pointer, |place, value| {
            let granule = copy
                .granule(value)
                .filter(|granule| pages.kind(*granule) == Heap::Unknown && !is_own(place, value))?;
            Some(granule * 2 + (value >> 3 & 1) as usize)
        });
        self.starts = Bits::of(copy.granules() * 2, starts);
    }

    /// That the stack of a thread was not found, as a sentence: what only that points to looks lost. `is_live`: of a process that can
    /// be read again.
    pub fn missing_stacks(&self, is_live: bool) -> Option<String> {
        let missing: Vec<u32> = self.stacks.iter().filter_map(Stack::missing).collect();
        let (which, them) = match missing[..] {
            [] => return None,
            [only] => (format!("the stack of thread {only} was"), "it"),
            [first, ..] => (
                format!("the stacks of {} threads, such as {first}, were", missing.len()),
                "them",
            ),
        };
        let runs = |stack: &Stack| stack.missing().is_some() && stack.thread.stack_pointer.is_none();
        let advice = match is_live && self.stacks.iter().any(runs) {
            true => format!("; --pause finds {them}"),
            false => String::new(),
        };
        Some(format!(
            "{which} not found, so what holds a block to which nothing else points is not known{advice}"
        ))
    }

    fn note_limits(&mut self) {
        let gaps: u64 = self.heaps.gaps.iter().map(|gap| self.pages.bytes(gap.clone())).sum();
        if gaps > 0 {
            self.limits.push(format!(
                "{} of malloc's heaps are damaged or changed while they were copied: pointers into them are followed for \
                 {WINDOW} bytes",
                words::bytes(gaps)
            ));
        }
        if roots::are_locals_missing(&self.stacks) {
            self.limits.push(
                "thread-local variables were not found, because only those of glibc on x86-64 are known: blocks that only \
                 they hold are reported as lost"
                    .to_owned(),
            );
        }
        if let Some(name) = self.allocator {
            self.limits.push(format!(
                "the chunks of {name} are not known: what {} of its memory hold is held possibly",
                words::bytes(self.pages.bytes_of(Heap::Unknown))
            ));
        }
    }

    /// What to call a word of a root: `g_cache in libext.so`, `stack of thread 4711 (loader)`.
    pub fn describe(&mut self, modules: &Modules, root: &NativeRoot, address: u64) -> String {
        let NativeRoot { thread, name, .. } = root;
        let of_thread = |what: &str| match name.as_str() {
            _ if *thread == 0 => format!("{what} of a thread that has ended"),
            "" => format!("{what} of thread {thread}"),
            _ => format!("{what} of thread {thread} ({name})"),
        };
        match root.sort {
            RootSort::Globals | RootSort::Library => match modules.variable_at(address) {
                Some((variable, _)) => format!("{variable} in {name}"),
                None => {
                    let bias = modules.with_global(address).map_or(0, |module| module.bias);
                    format!("{name}+{:#x}", address.wrapping_sub(bias))
                }
            },
            RootSort::Stack | RootSort::WholeStack => of_thread("stack"),
            RootSort::Registers => of_thread("registers"),
            RootSort::Stored => of_thread("thread-specific data, perhaps of CUDA's runtime,"),
            RootSort::ThreadLocals | RootSort::Descriptor => match self.thread_local(modules, address) {
                Some((variable, module, _)) => {
                    let file = modules.all().get(module).map_or("", Module::file_name);
                    of_thread(&format!("thread-local variable {variable} in {file}"))
                }
                None => of_thread("thread-local variable"),
            },
        }
    }

    /// The addresses of the variable that contains this word of static or thread-local memory, if it has a symbol.
    pub fn extent(&self, modules: &Modules, root: &NativeRoot, address: u64) -> Option<Range<u64>> {
        match root.sort {
            RootSort::Globals | RootSort::Library => modules.variable(address).map(|(_, range)| range),
            RootSort::ThreadLocals => self.thread_local(modules, address).map(|(.., range)| range),
            RootSort::Descriptor | RootSort::Stored | RootSort::Stack | RootSort::WholeStack | RootSort::Registers => {
                None
            }
        }
    }

    /// The thread-local memory of the preload library, of CUDA's driver, runtime and libraries, and of allocators: what they note of
    /// blocks and of free memory holds none.
    pub fn locals_without_holders(&self, copy: &Image, modules: &Modules) -> Vec<Range<u64>> {
        let blocks = &self.thread_local_blocks;
        let whole = self.without_holders(modules);
        let whole = whole.filter_map(|(module, base)| blocks.of_module(base, module));
        let of_runtime = blocks.programs_at_start(modules).flat_map(|module| {
            let offsets = modules.thread_locals_of_runtime(module);
            let starts = self
                .thread_pointers()
                .filter_map(move |base| blocks.of_module(base, module));
            starts.flat_map(move |block| {
                let variable = |offsets: &Range<u64>| block.start + offsets.start..block.start + offsets.end;
                offsets.iter().map(variable).collect::<Vec<_>>()
            })
        });
        let stored = keys::of_cuda(copy, modules, self.thread_pointers());
        whole.chain(of_runtime).chain(stored).collect()
    }

    /// As above, where it is in chunks.
    fn chunks_of_locals_without_holders(&self, copy: &Image, modules: &Modules) -> Vec<Chunk> {
        let blocks = &self.thread_local_blocks;
        let places = (self.without_holders(modules))
            .filter_map(|(module, base)| blocks.of_module_loaded_later(copy, base, module));
        let chunks = places.filter_map(|place| self.around(copy, place));
        chunks.filter(|chunk| chunk.heap == Heap::Glibc).collect()
    }

    /// The modules whose thread-local memory holds nothing, each with the thread pointer of each thread.
    fn without_holders(&self, modules: &Modules) -> impl Iterator<Item = (usize, u64)> {
        let is_one = |module: &Module| matches!(Role::of(&module.path), Role::System | Role::Driver | Role::Library);
        let all = modules
            .all()
            .iter()
            .enumerate()
            .filter(move |(_, module)| is_one(module));
        all.flat_map(move |(module, _)| self.thread_pointers().map(move |base| (module, base)))
    }

    fn thread_pointers(&self) -> impl Iterator<Item = u64> {
        self.stacks.iter().filter_map(|stack| stack.descriptor)
    }

    /// The thread-local variable at this address, its module, and its addresses.
    fn thread_local(&self, modules: &Modules, address: u64) -> Option<(String, usize, Range<u64>)> {
        let contains = |stack: &&Stack| stack.locals.as_ref().is_some_and(|locals| locals.contains(&address));
        let base = self.stacks.iter().find(contains)?.descriptor?;
        let (module, start) = self.thread_local_blocks.find(base, address)?;
        let (name, offsets) = modules.thread_local(module, address - start)?;
        Some((name, module, start + offsets.start..start + offsets.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_library_is_an_allocator() {
        assert_eq!(allocator_of("libjemalloc.so.2"), Some("jemalloc"));
        assert_eq!(allocator_of("libclang_rt.scudo_standalone.so"), Some("scudo"));
        assert_eq!(allocator_of("my_jemalloc_bench"), None);
        assert_eq!(allocator_of("libmy_mimalloc_tools.so"), None);
    }
}
