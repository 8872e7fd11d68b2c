//! The CUDA driver's own records, which hold nothing.
//!
//! The driver keeps several records of each block, in heap memory like that of everybody else. If they counted, no block
//! would ever be lost: a context's handle, which every program has, leads to all of them.
//!
//! ```text
//! libcuda's globals ─► tables, trees ─► record ─► block
//! program's globals ─► handle ─► context ─┘
//! ```
//!
//! So the driver's static memory is no root, and its records are recognised by what they contain:
//!
//! * *Marked* memory points to the driver's static memory, or to functions that it does not export, in a thirty-second of
//!   its words: contexts, lists of functions. Programs have pointers to exported functions only.
//! * *Records* of blocks: see [`records`].
//!
//! What can be reached from the driver's static memory is no criterion: its larger tables contain what was in the memory
//! before, so they lead to most of the program's objects.

use std::ops::Range;
use std::sync::OnceLock;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol, ReadCache};

use crate::copy::{Image, PAGE, SEARCHED, pieces};
use crate::modules::{Module, Modules, Role};
use crate::parallel;
use crate::source::Region;

use super::pages::{Chunk, Heap};
use super::{Native, WINDOW};
use crate::bits::Bits;
use crate::{Map, Set};

pub mod records;

/// The driver's heap memory, by granules of the copy.
#[derive(Default)]
pub struct Driver {
    /// Objects to which handles lead. As the records, they are no chunks for the walk.
    marked: Bits,
    records: Bits,
    /// Its static memory.
    statics: Vec<Range<u64>>,
    /// What that leads to; found when it is first asked for, because few searches need it. Memory of unknown allocators up to the
    /// next pointer, which may be memory of the program, and only the beginning of it.
    reached: [OnceLock<Bits>; 2],
}

impl Driver {
    #[inline]
    pub fn owns(&self, granule: usize) -> bool {
        self.marked.get(granule) || self.records.get(granule)
    }

    /// Whether the memory is the driver's if nothing of the program leads to it; or if words that may be stale do.
    pub fn may_own(&self, copy: &Image, native: &Native, granule: usize, is_reached: bool) -> bool {
        let window = if is_reached { WINDOW } else { PAGE };
        let reached = || reached(copy, &self.statics, native, window).unwrap_or_default();
        self.owns(granule) || self.reached[usize::from(is_reached)].get_or_init(reached).get(granule)
    }

    /// Finds marked memory.
    pub fn find(copy: &Image, modules: &Modules, native: &Native) -> Driver {
        let mut driver = Driver {
            marked: Bits::new(copy.granules()),
            records: Bits::new(copy.granules()),
            statics: Vec::new(),
            reached: Default::default(),
        };
        let Some(files) = Files::find(copy, modules) else {
            return Driver::default();
        };
        let mut program = OfProgram::default();
        for chunk in native.chunks_where(copy, &[Heap::Glibc], |chunk| is_marked(copy, &files, *chunk)) {
            if !program.has(copy, native, chunk.start) {
                set(copy, native, &mut driver.marked, chunk);
            }
        }
        for chunk in native.chunks_of_locals_without_holders(copy, modules) {
            set(copy, native, &mut driver.marked, chunk);
        }
        let is_driver = |module: &&Module| Role::of(&module.path) == Role::Driver;
        let own = modules.all().iter().filter(is_driver);
        driver.statics = own.flat_map(|module| &module.globals).cloned().collect();
        driver
    }

    fn add(&mut self, copy: &Image, native: &Native, chunk: Chunk) {
        set(copy, native, &mut self.records, chunk);
    }

    pub fn has(&self, copy: &Image, chunk: &Chunk) -> bool {
        copy.granule(chunk.start).is_some_and(|granule| self.owns(granule))
    }

    fn has_record(&self, copy: &Image, chunk: &Chunk) -> bool {
        copy.granule(chunk.start)
            .is_some_and(|granule| self.records.get(granule))
    }
}

/// The driver's mapped files.
struct Files {
    /// Around all of them.
    span: Range<u64>,
    /// Static memory and tables of functions.
    data: Vec<Range<u64>>,
    code: Vec<Range<u64>>,
    exported: Vec<u64>,
}

impl Files {
    fn find(copy: &Image, modules: &Modules) -> Option<Files> {
        let (mut data, mut code, mut addresses) = (Vec::new(), Vec::new(), Vec::new());
        let is_driver = |module: &&Module| Role::of(&module.path) == Role::Driver;
        for module in modules.all().iter().filter(is_driver) {
            data.extend(module.globals.iter().cloned());
            let regions = copy.regions();
            let of_module = |(_, region): &(usize, &Region)| region.name == module.path;
            for (place, region) in regions.iter().enumerate().filter(of_module) {
                // Tables of functions become read-only once the loader has written them.
                let was_written = regions.get(place + 1).is_some_and(|next| {
                    next.range.start == region.range.end && next.writable && next.name == region.name
                });
                if region.executable {
                    code.push(region.range.clone());
                } else if region.writable || was_written {
                    data.push(region.range.clone());
                }
            }
            match exported(copy, &module.path) {
                Some(exported) => addresses.extend(exported.iter().map(|at| at.wrapping_add(module.bias))),
                None => code.clear(),
            }
        }
        addresses.sort_unstable();
        let all = || data.iter().chain(&code);
        let start = all().map(|range| range.start).min()?;
        let end = all().map(|range| range.end).max()?;
        Some(Files {
            span: start..end,
            data,
            code,
            exported: addresses,
        })
    }

    #[inline]
    fn contain(&self, address: u64) -> bool {
        self.span.contains(&address) && self.are_marks(address)
    }

    fn are_marks(&self, address: u64) -> bool {
        let within = |ranges: &[Range<u64>]| ranges.iter().any(|range| range.contains(&address));
        within(&self.data) || within(&self.code) && self.exported.binary_search(&address).is_err()
    }
}

/// Addresses of the exported functions in a file.
fn exported(copy: &Image, path: &str) -> Option<Vec<u64>> {
    let path = copy.source().file(path.as_ref());
    let cache = ReadCache::new(std::fs::File::open(path).ok()?);
    let file: ElfFile64<object::Endianness, _> = ElfFile64::parse(&cache).ok()?;
    Some(file.dynamic_symbols().map(|symbol| symbol.address()).collect())
}

fn is_marked(copy: &Image, files: &Files, chunk: Chunk) -> bool {
    // Larger chunks are tables of many things.
    const LARGEST: u64 = 64 << 10;
    const SHARE: u64 = 32;
    if chunk.bytes > LARGEST {
        return false;
    }
    let words = copy.words(chunk.start..chunk.start + chunk.bytes);
    let marks = words.filter(|(_, word)| files.contain(*word)).count() as u64;
    marks > 0 && marks * SHARE * 8 >= chunk.bytes
}

/// The granules of a chunk that are present. Returns whether one of them is new.
fn set(copy: &Image, native: &Native, bits: &mut Bits, chunk: Chunk) -> bool {
    let mut is_new = false;
    for part in native.pages.present(chunk.start..chunk.start + chunk.bytes) {
        let from = part.start.max(chunk.start & !15);
        for place in (from..part.end).step_by(16) {
            is_new |= copy.granule(place).is_some_and(|granule| bits.set(granule));
        }
    }
    is_new
}

/// What the driver's static memory leads to; `None` if that is more than the driver can own.
fn reached(copy: &Image, statics: &[Range<u64>], native: &Native, window: u64) -> Option<Bits> {
    const MOST: u64 = 64 << 20;
    let mut found = Bits::new(copy.granules());
    let mut open = statics.to_vec();
    let mut bytes = 0;
    while !open.is_empty() {
        let present = open.iter().flat_map(|range| {
            let parts = native.pages.present(range.clone());
            parts.map(|part| part.start.max(range.start)..part.end)
        });
        let targets = parallel::flat_map(&pieces(present, SEARCHED), |piece| {
            new_targets(copy, native, &found, piece, window)
        });
        open.clear();
        for chunk in targets {
            if set(copy, native, &mut found, chunk) {
                bytes += chunk.bytes;
                open.push(chunk.start..chunk.start + chunk.bytes);
            }
        }
        if bytes > MOST {
            return None;
        }
    }
    Some(found)
}

/// The chunks that these words lead to and that are not known, without objects of Python and of the program's classes.
fn new_targets(copy: &Image, native: &Native, known: &Bits, ranges: &[Range<u64>], window: u64) -> Vec<Chunk> {
    let mut program = OfProgram::default();
    let mut seen: Set<u64> = Set::default();
    let mut found = Vec::new();
    for place in ranges.iter().flat_map(|range| range.clone().step_by(8)) {
        let word = copy.word(place);
        if word < PAGE {
            continue;
        }
        let Some(mut chunk) = native.chunk_of_any(copy, word) else {
            continue;
        };
        if chunk.heap == Heap::Unknown {
            chunk.bytes = chunk.bytes.min(window);
        }
        let is_known = copy.granule(chunk.start).is_some_and(|granule| known.get(granule));
        if is_known && chunk.heap != Heap::Unknown
            || chunk.heap == Heap::Python
            || !seen.insert(chunk.start)
            || is_python_object(copy, chunk.start)
            || program.has(copy, native, chunk.start)
        {
            continue;
        }
        found.push(chunk);
    }
    found
}

/// Objects of a class that a file other than the driver's defines, by their virtual tables.
#[derive(Default)]
struct OfProgram {
    known: Map<u64, bool>,
}

impl OfProgram {
    fn has(&mut self, copy: &Image, native: &Native, start: u64) -> bool {
        native.classes.is_of(copy, start, &mut self.known, |region| {
            Role::of(&region.name) != Role::Driver
        })
    }
}

/// Python's objects refer to their type, types to theirs, and the type of all types to itself.
fn is_python_object(copy: &Image, start: u64) -> bool {
    // Objects begin after the header for the collector and attributes, if they have these.
    [0, 16, 32].into_iter().any(|before| {
        let of = copy.word(start + before + 8);
        if !of.is_multiple_of(8) || !copy.has(of) {
            return false;
        }
        let of_type = copy.word(of.wrapping_add(8));
        of_type > PAGE && copy.has(of_type) && copy.word(of_type.wrapping_add(8)) == of_type
    })
}
