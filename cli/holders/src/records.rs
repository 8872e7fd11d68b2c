//! The records of PyTorch's caching allocator, which point to every block and hold none.
//!
//! ```text
//! record:    … size of the block … its address … previous, next record        one per block, all of one size
//! table:     key: address of the block, value: its record
//! DataPtr:   address, function that frees it, context                          holds the block
//! ```
//!
//! A storage holds a block by a `DataPtr`. So does C++ code that has one of its own: workspaces of libraries, buffers of
//! communication. Everything that points to a block and is no record holds it.
//!
//! Records have the form (size of the chunk, place of the address in it) of which nearly every block has one, with the size of the
//! block beside the address. Records of neighbours are linked, which decides if there are several such forms.

use crate::copy::Image;
use crate::graph::{BlockEdge, NodeKind, Phase, Root};
use crate::native::{Chunk, Heap};
use crate::walk::{Pointer, Walk};
use crate::{Map, Set};

/// Larger chunks are tables.
const LARGEST: u64 = 1024;
/// The most words between the address of a block and its size.
const NEAR: u64 = 6;
/// The allocator rounds sizes up by less than this, and large ones by an eighth.
const ROUNDED: u64 = 2 << 20;
/// The part of the blocks that a form must cover, as a fraction.
const COVERED: (usize, usize) = (3, 4);

/// The size of a chunk, and the place of the address in it.
type Form = (u64, u64);

/// Which pointers to blocks of the allocator are its own.
#[derive(Default)]
pub(crate) struct Records {
    form: Option<Form>,
    /// All pointers that the walk found, by block.
    edges: Map<usize, Vec<BlockEdge>>,
}

/// What the chunks of one form have in common.
#[derive(Default)]
struct Votes {
    blocks: Set<usize>,
    members: usize,
    with_size: usize,
    linked: usize,
}

impl Records {
    /// `wanted`: blocks without a holder.
    pub fn find(walk: &mut Walk, wanted: &[bool]) -> Records {
        if !wanted.contains(&true) {
            return Records::default();
        }
        let mut edges: Map<usize, Vec<BlockEdge>> = Map::default();
        for edge in &walk.graph.block_edges {
            if wanted[edge.block as usize] {
                edges.entry(edge.block as usize).or_default().push(*edge);
            }
        }
        let form = form(walk);
        Records { form, edges }
    }

    /// The best pointer to a block that is not the allocator's own.
    pub fn holder(&self, walk: &mut Walk, block: usize) -> Option<Pointer> {
        let mut best: Option<Pointer> = None;
        for edge in self.edges.get(&block).into_iter().flatten() {
            let is_data = match walk.graph.kind(edge.node) {
                NodeKind::Root => match walk.graph.root(edge.node) {
                    Some(Root::Native(root)) => is_data_pointer(walk.copy, root.range.start + edge.edge.index() * 8),
                    _ => false,
                },
                NodeKind::Native => {
                    let Some(chunk) = walk.native.chunk(walk.copy, walk.graph.address(edge.node)) else {
                        continue;
                    };
                    let place = chunk.start + edge.edge.index() * 8;
                    let is_data = is_data_pointer(walk.copy, place);
                    if !is_data && (self.is_record(chunk, place) || self.is_of_table(walk, block, place)) {
                        continue;
                    }
                    is_data
                }
                NodeKind::Python | NodeKind::Frame => false,
            };
            let pointer = Pointer {
                node: edge.node,
                edge: edge.edge,
                interior: edge.interior,
                phase: walk.graph.phase(edge.node),
                weak: !is_data || walk.graph.is_weak(edge.node),
            };
            // What frees a block has its start, and a stale word seldom equals that.
            let is_late = |of: Pointer| !matches!(of.phase, Phase::Python | Phase::Globals);
            let order = |of: Pointer| (of.weak, of.interior, is_late(of), of.phase);
            if best.is_none_or(|best| order(pointer) < order(best)) {
                best = Some(pointer);
            }
        }
        best
    }

    fn is_record(&self, chunk: Chunk, place: u64) -> bool {
        self.form == Some((chunk.bytes, place - chunk.start))
    }

    /// Whether the value behind the address is the record of the same block.
    fn is_of_table(&self, walk: &Walk, block: usize, place: u64) -> bool {
        let Some((bytes, offset)) = self.form else { return false };
        let value = walk.copy.word(place + 8);
        let chunk = walk.native.around(walk.copy, value);
        chunk.is_some_and(|chunk| {
            let found = || walk.index.find(walk.copy.word(value + offset));
            (chunk.start, chunk.bytes) == (value, bytes) && found().is_some_and(|found| found.0 == block)
        })
    }
}

/// Whether the word at this place begins a `DataPtr`, or is its context. Of a `std::unique_ptr` with a function, libstdc++ has the
/// function first.
fn is_data_pointer(copy: &Image, place: u64) -> bool {
    let is_code = |address: u64| {
        let region = copy.region(address);
        region.is_some_and(|region| region.executable && region.name.starts_with('/'))
    };
    let word = |nth: u64, start: u64| copy.word(start.wrapping_add(8 * nth));
    let in_libcxx = |start: u64| word(1, start) != 0 && is_code(word(2, start));
    // An address of code follows many words of stacks, but the allocator's context is the address of the block.
    let in_libstdcxx = |start: u64| is_code(word(1, start)) && word(2, start) == word(0, start);
    let [before, second_before] = [8, 16].map(|bytes| place.wrapping_sub(bytes));
    in_libcxx(place)
        || in_libstdcxx(place)
        || in_libcxx(before) && copy.word(before) == copy.word(place)
        || in_libstdcxx(second_before)
}

/// The form of the records. `None`: no form is like that.
fn form(walk: &Walk) -> Option<Form> {
    let copy = walk.copy;
    let mut forms: Map<Form, Votes> = Map::default();
    let index = walk.index;
    let span = index.span();
    let words = copy.search(
        |value| span.contains(&value),
        |place, value| {
            let block = index.find(value).filter(|(_, is_interior)| !is_interior)?.0;
            index.is_of_torch(block).then_some((block, place))
        },
    );
    for (block, place) in words {
        let Some(chunk) = walk.native.around(copy, place) else {
            continue;
        };
        if chunk.bytes > LARGEST || chunk.heap == Heap::Python || chunk.heap == Heap::Unknown {
            continue;
        }
        let offset = place - chunk.start;
        let votes = forms.entry((chunk.bytes, offset)).or_default();
        votes.blocks.insert(block);
        votes.members += 1;
        if let Some(size) = size_beside(walk, chunk, place, block) {
            votes.with_size += 1;
            votes.linked += usize::from(is_linked(walk, chunk, offset, size));
        }
    }
    let is_of_torch = |block: &usize| walk.index.is_of_torch(*block);
    let all = (0..walk.index.len()).filter(is_of_torch).count();
    let most = |part: usize, of: usize| part * COVERED.1 >= of * COVERED.0;
    forms
        .into_iter()
        .filter(|(_, votes)| most(votes.blocks.len(), all) && most(votes.with_size, votes.members))
        .max_by_key(|(form, votes)| (votes.linked, votes.blocks.len(), *form))
        .map(|(form, _)| form)
}

/// The size of the block near its address.
fn size_beside(walk: &Walk, chunk: Chunk, place: u64, block: usize) -> Option<u64> {
    let bytes = walk.index.block(block).bytes;
    let is_size = |size: &u64| (bytes..=bytes.saturating_add(ROUNDED.max(bytes / 8))).contains(size);
    let from = chunk.start.max(place.saturating_sub(NEAR * 8));
    let to = (place + NEAR * 8).min(chunk.start + chunk.bytes - 8);
    let near = (from..=to).step_by(8).filter(|near| *near != place);
    near.map(|near| walk.copy.word(near)).find(is_size)
}

/// Whether the chunk leads to one of the same form whose block begins where this one ends.
fn is_linked(walk: &Walk, chunk: Chunk, offset: u64, size: u64) -> bool {
    let end = walk.copy.word(chunk.start + offset).wrapping_add(size);
    let places = (chunk.start..chunk.start + chunk.bytes).step_by(8);
    let mut others = places
        .map(|place| walk.copy.word(place))
        .filter(|other| *other != chunk.start);
    others.any(|other| {
        let is_chunk = |chunk: Chunk| (chunk.start, chunk.bytes);
        walk.native.chunk(walk.copy, other).map(is_chunk) == Some((other, chunk.bytes))
            && walk.copy.word(other + offset) == end
    })
}
