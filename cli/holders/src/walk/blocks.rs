//! Pointers to blocks.

use super::{Later, Pointer, Target, Walk};
use crate::Block;
use crate::graph::{BlockEdge, Edge, EdgeKind, NodeId, NodeKind, Phase, Root};
use crate::native::kinds::Kind;
use crate::native::{RootSort, vectors};
use crate::{Map, Set};

/// Any number may lead into a block of that many bytes, such as a pool that is most of the device's memory.
const WIDE: u64 = 1 << 30;

/// In memory of the heap, so may two small numbers side by side, into a block below this address: CUDA's pools begin at 12 GiB.
const LOW: u64 = 1 << 36;

/// Edges to one block that are kept.
const EDGES_PER_BLOCK: u16 = 4096;

/// Pointers to the start of a reserved range that count as pointers to each block in it.
const EDGES_PER_RANGE: usize = 64;

impl Walk<'_, '_> {
    pub(super) fn block(&mut self, from: NodeId, edge: Edge, block: usize, interior: bool) {
        if self.only_missing && self.found[block].is_some() {
            return;
        }
        if self.is_tail {
            let to = Target::Block(block, interior);
            return self.tails.push(Later { from, edge, to });
        }
        let unusual = self.is_unusual_of_block(from, edge, block);
        if self.phase < Phase::Rest && unusual {
            return self.put_off(from, edge, Target::Block(block, interior));
        }
        let holds = !self.index.is_of_torch(block)
            || match self.graph.kind(from) {
                NodeKind::Python | NodeKind::Frame => true,
                NodeKind::Native => self.kind_of(self.graph.address(from)) == Kind::Storage,
                NodeKind::Root => false,
            };
        let is_end = holds && !interior && self.may_be_end(from, edge, block);
        let is_in_chunk = self.graph.kind(from) != NodeKind::Root;
        let may_lead = |of: &Block| of.bytes >= WIDE || is_in_chunk && of.address < LOW;
        let is_chance = interior && edge.kind() == EdgeKind::Word && may_lead(self.index.block(block));
        let weak = self.graph.is_weak(from) || is_end || is_chance;
        let pointer = Pointer {
            node: from,
            edge,
            interior,
            phase: self.phase,
            weak,
        };
        self.add_block_edge(BlockEdge {
            block: block as u32,
            node: from,
            edge,
            interior,
            weak: weak || !holds,
            unusual,
        });
        if is_end {
            self.ends[block].get_or_insert(pointer);
            return;
        }
        let known = if holds { self.found[block] } else { self.records[block] };
        let is_better = match known {
            Some(known) if known.phase == self.phase => self.doubts(&pointer) < self.doubts(&known),
            // What may be stale gives way, whenever it was found.
            Some(known) => known.weak && !weak,
            None => true,
        };
        if is_better {
            let best = if holds { &mut self.found } else { &mut self.records };
            best[block] = Some(pointer);
        }
    }

    /// Why a pointer may hold no block: it may be stale, or a word of native memory that equals an address by chance, as words that
    /// lead into a block do more often than others.
    fn doubts(&mut self, pointer: &Pointer) -> (bool, bool, bool) {
        let is_native = self.graph.kind(pointer.node) == NodeKind::Native;
        let is_unnamed = match self.graph.root(pointer.node) {
            // A variable is better, although it may lead there through memory without a class.
            Some(Root::Native(root)) => root.sort == RootSort::Stored,
            _ => is_native && self.kind_of(self.graph.address(pointer.node)) == Kind::Unnamed,
        };
        (pointer.weak, is_unnamed, is_native && pointer.interior)
    }

    fn add_block_edge(&mut self, edge: BlockEdge) {
        let edges = &mut self.block_edges[edge.block as usize];
        if *edges < EDGES_PER_BLOCK {
            *edges += 1;
            self.graph.add_block_edge(edge);
        }
    }

    /// A pointer to a block that has none, and which may be stale.
    pub(super) fn stale_block(&mut self, from: NodeId, edge: Edge, block: usize, interior: bool) {
        self.block(from, edge, block, interior);
        if let Some(pointer) = &mut self.found[block] {
            pointer.weak = true;
        }
    }

    /// Gives what points to a reserved range to the blocks in it, and forgets the ranges. Returns the blocks that such a pointer
    /// holds: no other one does, or it is better.
    pub fn share_ranges(&mut self) -> Set<usize> {
        let (index, mut held) = (self.index, Set::default());
        let asked = index.asked().len();
        let mut edges: Map<usize, Vec<BlockEdge>> = Map::default();
        if asked < index.len() {
            self.graph.block_edges.retain(|edge| {
                let block = edge.block as usize;
                if block >= asked {
                    edges.entry(block).or_default().push(*edge);
                }
                block < asked
            });
        }
        for (range, blocks) in index.in_reserved() {
            // Memory elsewhere in the range is unmapped by another address.
            let end = self.ends[range].map(|end| Pointer { weak: true, ..end });
            let pointer = self.found[range].or(end).map(|pointer| Pointer {
                weak: pointer.weak || pointer.interior,
                ..pointer
            });
            let order = |pointer: &Pointer| (pointer.weak, pointer.phase, pointer.interior);
            for block in blocks.clone() {
                self.numbers[block] = self.numbers[block].or(self.numbers[range]);
                if let Some(pointer) = pointer
                    && self.found[block].is_none_or(|own| order(&pointer) < order(&own))
                {
                    self.found[block] = Some(pointer);
                    held.insert(block);
                }
            }
            let edges = edges.remove(&range).unwrap_or_default();
            let (inner, outer): (Vec<BlockEdge>, Vec<BlockEdge>) = edges.into_iter().partition(|edge| edge.interior);
            let is_first = |edge: &BlockEdge| pointer.is_some_and(|it| (it.node, it.edge) == (edge.node, edge.edge));
            let inner = inner.into_iter().find(is_first);
            for edge in outer.into_iter().take(EDGES_PER_RANGE).chain(inner) {
                // The words that lead to a block at the start have edges to it.
                let has_edge = |block: &usize| index.block(*block).address == index.block(range).address;
                for block in blocks.clone().filter(|block| match edge.interior {
                    true => held.contains(block),
                    false => !has_edge(block),
                }) {
                    self.graph.add_block_edge(BlockEdge {
                        block: block as u32,
                        weak: edge.weak || edge.interior,
                        ..edge
                    });
                }
            }
        }
        self.found.truncate(asked);
        held
    }

    /// The word may be a second holder, without which the first one does not retain the block.
    pub(super) fn tail_to_block(&mut self, from: NodeId, edge: Edge, block: usize, interior: bool) {
        let unusual = self.is_unusual_of_block(from, edge, block);
        self.add_block_edge(BlockEdge {
            block: block as u32,
            node: from,
            edge,
            interior,
            weak: true,
            unusual,
        });
    }

    /// Whether most pointers to such blocks are elsewhere. One of memory without a class is unusual, too, if objects of the class that has
    /// the memory usually point to their blocks from elsewhere.
    fn is_unusual_of_block(&mut self, from: NodeId, edge: Edge, block: usize) -> bool {
        if self.graph.kind(from) != NodeKind::Native || self.index.is_of_torch(block) {
            return false;
        }
        let owner = self.graph.address(from);
        let class = self.native.classes.chunk(self.copy, owner);
        self.usual.is_unusual_of_block(owner, class, edge.index(), block)
            || class.is_none() && (self.is_unused(from, edge) || self.is_unusual_in_object(from, edge))
    }

    /// Whether other memory of objects of a class usually has their pointers to blocks than this word of memory without a class.
    /// Only for words of which [`Walk::is_unused`] is false.
    fn is_unusual_in_object(&mut self, from: NodeId, edge: Edge) -> bool {
        let owner = self.graph.parent(from);
        let Some((owner, field)) = owner.filter(|(owner, _)| self.graph.kind(*owner) == NodeKind::Native) else {
            return false;
        };
        let owner = self.graph.address(owner);
        let Some(class) = self.native.classes.chunk(self.copy, owner) else {
            return false;
        };
        self.usual.fields.is_unusual(class, field.index(), edge.index()) && {
            // The elements of a vector are alike, and their number varies.
            let place = owner + field.index() * 8;
            let chunk = self.native.chunk(self.copy, self.graph.address(from));
            chunk.is_none_or(|chunk| vectors::bytes_of_vector(self.copy, place, &chunk).is_none())
        }
    }

    /// Whether the word that equals the start of this block may be the end of the block before it: the beginning of that one is
    /// beside it, as in a `std::span`, and it is not in an array of blocks or of pairs with a block, or an element of a vector. (Vectors of
    /// spans are rare.)
    fn may_be_end(&self, from: NodeId, edge: Edge, block: usize) -> bool {
        let Some(before) = self.index.adjacent(block) else {
            return false;
        };
        if self.is_in_vector(from, edge) {
            return false;
        }
        let memory = match self.graph.root(from) {
            _ if edge.kind() != EdgeKind::Word || self.index.is_of_torch(block) => return false,
            Some(Root::Native(root)) if root.sort == RootSort::Registers => return false,
            Some(Root::Python(_)) => return false,
            Some(Root::Native(root)) => root.range.clone(),
            _ => {
                let start = self.graph.address(from);
                let chunk = self.native.chunk(self.copy, start);
                start..chunk.map_or(u64::MAX, |chunk| chunk.start.saturating_add(chunk.bytes))
            }
        };
        let at = memory.start.wrapping_add(edge.index() * 8);
        let pointed = |words: i64| {
            let place = at.wrapping_add_signed(words * 8);
            let is_inside = memory.contains(&place);
            is_inside.then(|| self.index.find(self.copy.word(place))).flatten()
        };
        let is_other =
            |pointed: Option<(usize, bool)>| pointed.is_some_and(|(other, _)| other != before && other != block);
        match (pointed(-2), pointed(-1)) {
            (further, Some((near, false))) if near == before => !is_other(further) && !is_other(pointed(1)),
            // Between the two is a place in the first block, or that of a limit.
            (Some((further, false)), near) if further == before => {
                let around = [near, pointed(1), pointed(2), pointed(-4)];
                !around.into_iter().any(is_other)
            }
            _ => false,
        }
    }

    /// Whether the word is one of the elements of a `std::vector`, in native memory or in a variable.
    fn is_in_vector(&self, from: NodeId, edge: Edge) -> bool {
        if self.graph.kind(from) != NodeKind::Native || edge.kind() != EdgeKind::Word {
            return false;
        }
        let Some(place) = self.place(from) else { return false };
        let chunk = self.native.chunk(self.copy, self.graph.address(from));
        let used = chunk.and_then(|chunk| vectors::bytes_of_vector(self.copy, place, &chunk));
        used.is_some_and(|used| edge.index() * 8 < used)
    }
}
