//! Whether native code has a pointer to an object whose reference count is not explained.
//!
//! A word that equals the object's address counts as such a pointer if it lies in static memory, in a thread-local variable
//! or in an allocated chunk, unless
//! * it is a field of a Python object that the collector tracks: these are counted already, or borrowed (weak references). A field of
//!   another object counts, if that object was not found;
//! * it lies in an array of an object that refers to it;
//! * it lies in memory that the object itself points to: that points back to its owner. PyTorch sets the lowest bit of such a
//!   word if it is the other way round, and the tensor owns its Python object;
//! * it lies in an interpreter's state, which keeps stale pointers.
//!
//! Stacks do not count: their dead slots keep pointers to objects that were used a while ago.

use std::ops::Range;

use culeak::snapshot::Class;

use crate::Map;
use crate::blocks::BlockIndex;
use crate::copy::Image;
use crate::findings::Explanation;
use crate::garbage::Unreached;
use crate::graph::Graph;
use crate::native::Heap;
use crate::python::Python;
use crate::walk::{Walk, object_in};

/// Addresses of words that are kept for one target.
const KEPT: usize = 256;

const NOT_TRACKED: &str = "an object that Python's collector does not track refers to it";

const NOT_SEARCHED: &str = "memory that was not searched may refer to it";

const IN_RAW_MEMORY: &str = "raw memory of Python's allocator may refer to it";

/// Words of the copy that point to blocks or objects which the walk does not explain.
#[derive(Default)]
pub(crate) struct Evidence {
    /// Addresses of words that point to a block or into it, by the block's index.
    pub to_blocks: Words<usize>,
    /// Address of a native pointer to an object, or of the field of an object that the collector does not track.
    pointers: Map<u64, (u64, Option<&'static str>)>,
    /// Objects that may have an owner: more words point to them than are kept, or one in memory that nothing points to.
    doubtful: Map<u64, &'static str>,
}

impl Evidence {
    /// `found`: by the index of the block. `statics`: static and thread-local memory.
    pub fn find(
        walk: &mut Walk,
        unreached: &Unreached,
        found: &[Option<Explanation>],
        statics: &[Range<u64>],
    ) -> Evidence {
        let wanted: Vec<bool> = (found.iter().zip(&walk.records).zip(&walk.done))
            .map(|((found, record), is_done)| found.is_none() && record.is_none() && !is_done)
            .collect();
        let by_native = (found.iter().flatten()).filter(|found| found.class == Class::NativeHolder);
        let first = by_native.filter_map(|found| walk.graph.first_object(found.last.0));
        let mut objects: Vec<u64> = first.map(|object| walk.graph.address(object)).collect();
        objects.sort_unstable();
        objects.dedup();
        if objects.is_empty() && !wanted.contains(&true) {
            return Evidence::default();
        }
        let (to_blocks, to_objects) = words(walk.copy, walk.index, &wanted, &objects);
        let referrers = unreached.referrers(&objects);
        let mut pointers = Map::default();
        let is_cut = |object: &&u64| to_objects[*object].len() == KEPT;
        let mut doubtful: Map<u64, _> = objects
            .iter()
            .filter(is_cut)
            .map(|object| (*object, NOT_SEARCHED))
            .collect();
        for object in objects {
            let referrers = referrers.get(&object).map_or(&[][..], Vec::as_slice);
            let mut ranges =
                |only_untracked| ranges_of(walk.copy, walk.python.as_deref_mut(), referrers, only_untracked);
            let explained = ranges(false);
            let untracked = if unreached.is_pinned(object) {
                ranges(true)
            } else {
                Vec::new()
            };
            if let Some(address) = to_objects[&object].iter().copied().find(|at| is_in(&untracked, *at)) {
                pointers.insert(object, (address, Some(NOT_TRACKED)));
                continue;
            }
            let mut others = to_objects[&object].clone();
            others.retain(|address| !is_in(&explained, *address));
            let native = |address: &&u64| is_native_pointer(walk, statics, **address, object);
            if let Some(address) = others.iter().find(native) {
                pointers.insert(object, (*address, None));
            } else if let Some(address) = others.iter().find(|address| is_in_untracked(walk, **address)) {
                pointers.insert(object, (*address, Some(NOT_TRACKED)));
            } else if others.iter().any(|address| is_in_raw_memory(walk, *address)) {
                doubtful.entry(object).or_insert(IN_RAW_MEMORY);
            }
        }
        Evidence {
            to_blocks,
            pointers,
            doubtful,
        }
    }

    /// Says which of both it is: a native holder, or a reference that was never released; possibly, unless all memory was searched.
    pub fn judge(&self, graph: &Graph, found: &mut Explanation, is_whole: bool) {
        let object = graph.first_object(found.last.0).map(|object| graph.address(object));
        match object.and_then(|object| self.pointers.get(&object)) {
            Some((address, note)) => {
                found.pointer = Some(*address);
                found.note = note.or(found.note);
            }
            None => {
                found.class = Class::OverCounted;
                let doubt = object.and_then(|object| self.doubtful.get(&object)).copied();
                if let Some(doubt) = doubt.or((!is_whole).then_some(NOT_SEARCHED)) {
                    (found.possibly, found.note) = (true, found.note.or(Some(doubt)));
                }
            }
        }
    }
}

/// Addresses of words, by what they point to.
type Words<T> = Map<T, Vec<u64>>;

/// The words of the whole copy that point to the blocks that are `wanted` or into them, and to these objects; their lowest bit may be
/// set then.
fn words(copy: &Image, index: &BlockIndex, wanted: &[bool], objects: &[u64]) -> (Words<usize>, Words<u64>) {
    let mut to_blocks = Words::default();
    let mut to_objects: Words<u64> = objects.iter().map(|object| (*object, Vec::new())).collect();
    let first = objects.first().copied().unwrap_or(u64::MAX);
    let object_bytes = objects.last().map_or(0, |last| last - first + 2);
    let blocks = index.span();
    let block_bytes = blocks.end - blocks.start;
    let is_near =
        |value: u64| (value.wrapping_sub(blocks.start) < block_bytes) | (value.wrapping_sub(first) < object_bytes);
    let found = copy.search(is_near, |address, value| {
        let own = index.find(value).map(|(block, _)| block).filter(|block| wanted[*block]);
        let range = || index.find_reserved(value).filter(|(_, is_inside)| !is_inside);
        // A block may begin where its range does.
        let block = range().map(|(range, _)| range).or(own);
        (block.is_some() || to_objects.contains_key(&(value & !1))).then_some((address, value, block))
    });
    for (address, value, block) in found {
        let known = match block {
            Some(block) => to_blocks.entry(block).or_default(),
            None => to_objects.entry(value & !1).or_default(),
        };
        if known.len() < KEPT {
            known.push(address);
        }
    }
    for (range, blocks) in index.in_reserved() {
        let Some(words) = to_blocks.remove(&range) else {
            continue;
        };
        for block in blocks.filter(|block| wanted[*block]) {
            let of_block: &mut Vec<u64> = to_blocks.entry(block).or_default();
            of_block.extend(words.iter().take(KEPT.saturating_sub(of_block.len())));
        }
    }
    (to_blocks, to_objects)
}

fn is_in(ranges: &[Range<u64>], address: u64) -> bool {
    ranges.iter().any(|range| range.contains(&address))
}

fn is_native_pointer(walk: &mut Walk, statics: &[Range<u64>], address: u64, object: u64) -> bool {
    let is_tagged = walk.copy.word(address) & 1 != 0;
    if is_in(statics, address) {
        return !is_tagged;
    }
    // Pointers to the last word of a chunk are none, but the word belongs to it.
    let chunk = |address| walk.native.chunk(walk.copy, address);
    let Some(chunk) = chunk(address).or_else(|| chunk(address.wrapping_sub(8))) else {
        return false;
    };
    let node = |address| walk.graph.find(walk.copy, address);
    let is_own = match (node(object), node(chunk.start)) {
        (Some(object), Some(chunk)) => walk.graph.targets(object).contains(&chunk),
        _ => false,
    };
    is_own == is_tagged && !walk.contains_object(chunk)
}

/// Whether the word lies in a block of Python's allocator that is in use and is no object.
fn is_in_raw_memory(walk: &mut Walk, address: u64) -> bool {
    let chunk = walk.native.around(walk.copy, address);
    chunk.is_some_and(|chunk| chunk.heap == Heap::Python && !walk.contains_object(chunk))
}

/// Whether the word is a field of a Python object that the collector does not track.
fn is_in_untracked(walk: &mut Walk, address: u64) -> bool {
    let Some(chunk) = walk.native.around(walk.copy, address) else {
        return false;
    };
    let Some(python) = walk.python.as_deref_mut() else {
        return false;
    };
    let copy = walk.copy;
    let object = object_in(copy, python, chunk).and_then(|object| Some((object, python.object(copy, object)?)));
    object.is_some_and(|(object, of)| {
        let is_field = python.extent(copy, object, of).contains(&address) && address >= object + python.head();
        is_field && !python.is_leaf(of) && !python.is_tracked(copy, object, of)
    })
}

/// The memory of these objects with their arrays; or without, of those that the collector does not track.
fn ranges_of(copy: &Image, python: Option<&mut Python>, objects: &[u64], only_untracked: bool) -> Vec<Range<u64>> {
    let Some(python) = python else { return Vec::new() };
    let mut ranges = Vec::new();
    for object in objects {
        let Some(of) = python.object(copy, *object) else {
            continue;
        };
        if !only_untracked {
            ranges.extend(python.arrays(copy, *object, of));
        } else if python.is_tracked(copy, *object, of) {
            continue;
        }
        ranges.push(python.extent(copy, *object, of));
    }
    ranges
}
