//! The CUDA driver's own records, which hold nothing.
//!
//! The driver keeps a record of each block, in heap memory like that of everybody else. If that counted, no block would
//! ever be lost. So its static memory is no root, and what can be reached from there belongs to the driver:
//!
//! ```text
//! libcuda's globals ─► chunk ─► chunk ─► block        all of these chunks are the driver's
//! program's globals ─► context's handle ─┘            so this path holds nothing, either
//! ```
//!
//! The search stops at objects that are clearly not the driver's: those of Python, and those of classes that other
//! files define. It also stops at chunks that Python's objects or other chunks refer to: the driver does not clear its
//! memory, so words that others left there lead to their chunks. The recorder is treated like the driver.

use std::ops::Range;

use crate::copy::{Copy, PAGE};
use crate::modules::Modules;

use super::pages::{Bits, Kind};
use super::{Chunk, Heap, Native};

/// What a loaded file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It may hold blocks.
    Program,
    /// libc, the loader, and other allocators: they know all memory and hold none.
    System,
    /// The CUDA driver, its runtime, and the recorder.
    Driver,
}

impl Role {
    pub fn of(path: &str) -> Role {
        let name = path.rsplit('/').next().unwrap_or(path);
        // `libc.so.6`, `libc-2.31.so`
        let is = |library: &str| {
            name.strip_prefix(library)
                .is_some_and(|rest| rest.starts_with(".so") || rest.starts_with("-2."))
        };
        const SYSTEM: [&str; 15] = [
            "libc",
            "libpthread",
            "libdl",
            "libm",
            "librt",
            "ld",
            "ld-linux-x86-64",
            "ld-linux-aarch64",
            "libresolv",
            "libjemalloc",
            "libtcmalloc",
            "libtcmalloc_minimal",
            "libtcmalloc_minimal_debug",
            "libmimalloc",
            "libasan",
        ];
        const DRIVER: [&str; 4] = ["libcuda", "libcudart", "libcudadebugger", "libcupti"];
        if DRIVER.into_iter().any(is) || name.starts_with("libnvidia-") || name.starts_with("libculeak") {
            Role::Driver
        } else if SYSTEM.into_iter().any(is) || path.starts_with("[v") {
            Role::System
        } else {
            Role::Program
        }
    }
}

/// More chunks than this are not all the driver's: then nothing is.
const MOST_SHARE: u64 = 2;

/// The granules of the copy that belong to the driver.
///
/// # Errors
/// How much would belong to it: so much that it is not credible.
pub fn memory(copy: &Copy, modules: &Modules, native: &mut Native) -> Result<Bits, u64> {
    let suspected = reached(copy, modules, native, &Bits::default())?;
    let shared = referred_to(copy, native, &suspected);
    reached(copy, modules, native, &shared)
}

/// What the driver's static memory leads to, other than through these chunks.
fn reached(copy: &Copy, modules: &Modules, native: &mut Native, not: &Bits) -> Result<Bits, u64> {
    let mut found = Bits::new(copy.granules());
    let mut open: Vec<Chunk> = Vec::new();
    let mut bytes = 0;
    for module in modules.all() {
        if Role::of(&module.path) == Role::Driver {
            for range in &module.globals {
                enter(copy, native, not, &mut found, &mut open, range.clone(), &mut bytes);
            }
        }
    }
    while let Some(chunk) = open.pop() {
        let range = chunk.start..chunk.start + chunk.bytes;
        enter(copy, native, not, &mut found, &mut open, range, &mut bytes);
    }
    let heap = native.heap_bytes();
    if bytes > heap / MOST_SHARE && bytes > LARGE {
        return Err(bytes);
    }
    Ok(found)
}

/// Chunks among these to whose start Python's objects or other chunks refer. Static memory does not count: handles of
/// contexts are there.
fn referred_to(copy: &Copy, native: &Native, suspected: &Bits) -> Bits {
    let mut found = Bits::new(copy.granules());
    let is_suspected = |address: u64| copy.granule(address).is_some_and(|granule| suspected.get(granule));
    let mut see = |range: Range<u64>, is_heap: bool| {
        for place in range.step_by(8) {
            let word = copy.word(place);
            if word < PAGE || !word.is_multiple_of(16) || !is_suspected(word) {
                continue;
            }
            let counts = !is_heap
                || native
                    .chunk(copy, place)
                    .is_some_and(|chunk| !is_suspected(chunk.start));
            if let Some(granule) = copy
                .granule(word)
                .filter(|granule| counts && native.pages.is_start(*granule))
            {
                found.set(granule);
            }
        }
    };
    for page in native.pages.addresses(0..u64::MAX) {
        match native.pages.kind_at(copy, page) {
            Kind::Pool => see(page..page + PAGE, false),
            Kind::Glibc => see(page..page + PAGE, true),
            _ => {}
        }
    }
    found
}

/// Less than this may well be all the driver's.
const LARGE: u64 = 64 << 20;

/// Adds all chunks that these words lead to.
fn enter(
    copy: &Copy,
    native: &mut Native,
    not: &Bits,
    found: &mut Bits,
    open: &mut Vec<Chunk>,
    range: Range<u64>,
    bytes: &mut u64,
) {
    let present: Vec<Range<u64>> = native.pages.present(range.clone()).collect();
    let places = present
        .into_iter()
        .flat_map(|part| part.start.max(range.start)..part.end);
    for place in places.step_by(8) {
        let word = copy.word(place);
        if word < PAGE {
            continue;
        }
        let Some(chunk) = native.chunk(copy, word) else {
            continue;
        };
        if copy.granule(chunk.start).is_some_and(|granule| not.get(granule)) {
            continue;
        }
        if chunk.heap == Heap::Python || is_python_object(copy, chunk.start) || is_of_program(copy, native, chunk.start)
        {
            continue;
        }
        let mut is_new = false;
        let present: Vec<Range<u64>> = native.pages.present(chunk.start..chunk.start + chunk.bytes).collect();
        for part in present {
            let from = part.start.max(chunk.start & !15);
            for place in (from..part.end).step_by(16) {
                is_new |= copy.granule(place).is_some_and(|granule| found.set(granule));
            }
        }
        if is_new {
            *bytes += chunk.bytes;
            open.push(chunk);
        }
    }
}

/// An object of a class that a file other than the driver's defines.
fn is_of_program(copy: &Copy, native: &mut Native, start: u64) -> bool {
    native.classes.object(copy, start).is_some()
        && copy
            .region(copy.word(start))
            .is_some_and(|region| Role::of(&region.name) != Role::Driver)
}

/// Python's objects refer to their type, types to theirs, and the type of all types to itself.
fn is_python_object(copy: &Copy, start: u64) -> bool {
    // Objects begin after the header for the collector and attributes, if they have these.
    [0, 16, 32].into_iter().any(|before| {
        let of = copy.word(start + before + 8);
        let of_type = copy.word(of.wrapping_add(8));
        of_type > PAGE && of.is_multiple_of(8) && copy.word(of_type.wrapping_add(8)) == of_type
    })
}
