//! The words of native memory.

use std::ops::Range;

use super::rules::{FIRST_BYTES, is_place_of_object, is_short_text};
use super::{Later, Target, UNNAMED, WORD, Walk};
use crate::copy::PAGE;
use crate::graph::{Edge, NodeId, NodeKind, Phase, Root};
use crate::native::counts::{self, Count};
use crate::native::kinds::Kind;
use crate::native::{Chunk, Heap, RootSort, vectors};
use crate::python::TypeId;

/// Words that are looked at before those that they lead to have been loaded.
const AHEAD: usize = 8;

/// Larger chunks without a class are buffers more often than objects.
const LARGE: u64 = 64 << 10;

impl Walk<'_, '_> {
    /// Where the last words of chunks lead to: half of them are stale, so they come after all that is certain. What they lead
    /// to belongs to the phase in which the chunk was reached. `to_counted`: only to tensors that nothing has led to, which have owners,
    /// since they count them.
    pub fn search_tails(&mut self, to_counted: bool) {
        let mut others = Vec::new();
        while !self.tails.is_empty() && self.budget.stopped().is_none() {
            let mut tails = std::mem::take(&mut self.tails);
            if to_counted {
                // What may not own now does not later: more was reached then.
                let (owners, mut rest): (Vec<Later>, Vec<Later>) =
                    tails.into_iter().partition(|tail| self.may_own(tail));
                tails = owners;
                others.append(&mut rest);
            }
            tails.sort_by_key(|tail| self.graph.phase(tail.from));
            for Later { from, edge, to } in tails {
                let phase = self.graph.phase(from);
                if phase != self.phase {
                    self.run();
                    self.phase = phase;
                }
                match to {
                    Target::Block(block, interior) if self.found[block].is_none() => {
                        self.stale_block(from, edge, block, interior);
                    }
                    Target::Block(block, interior) => self.tail_to_block(from, edge, block, interior),
                    Target::Node(id, unnamed) => {
                        let address = self.graph.address(id);
                        // A stale word that leads to the driver's memory would lead to every block. But the driver's tables also
                        // lead to memory of the program.
                        match self.native.is_driver_although_reached(self.copy, address) {
                            true => self.put_off(from, edge, to),
                            false => self.offer(id, from, edge, WORD, true, unnamed),
                        }
                    }
                }
            }
            self.run();
        }
        others.append(&mut self.tails);
        self.tails = others;
    }

    /// Whether the pointer leads to the start of a tensor that counts its owners, was not reached, and is not owned by its Python object.
    fn may_own(&mut self, tail: &Later) -> bool {
        let Target::Node(id, _) = tail.to else { return false };
        let start = self.graph.address(id);
        self.graph.phase(id) == Phase::None
            && self.copy.word(self.graph.address(tail.from) + tail.edge.index() * 8) == start
            && matches!(self.kind_of(start), Kind::Tensor | Kind::PlainTensor)
            && matches!(counts::of(self.copy, start), Some(Count::Intrusive(_)))
            && !self.is_owned_by_object(start)
    }

    /// Whether the Python object of this tensor owns it, and not the other way round.
    fn is_owned_by_object(&mut self, start: u64) -> bool {
        let Some(chunk) = self.native.chunk(self.copy, start) else {
            return false;
        };
        self.word_to_object(chunk)
            .is_some_and(|(_, word)| !counts::is_kept(self.copy, start, word))
    }

    /// Everything that was put off.
    pub fn search_late(&mut self) {
        self.phase = Phase::Rest;
        self.search_destroyed();
        // Blocks cost nothing, so also if the budget is spent.
        let is_block = |later: &Later| matches!(later.to, Target::Block(..));
        let (blocks, nodes): (Vec<Later>, Vec<Later>) = std::mem::take(&mut self.late).into_iter().partition(is_block);
        self.late = nodes;
        for Later { from, edge, to } in blocks {
            if let Target::Block(block, interior) = to
                && self.found[block].is_none()
            {
                self.stale_block(from, edge, block, interior);
            }
        }
        while !self.late.is_empty() && self.budget.stopped().is_none() {
            for Later { from, edge, to } in std::mem::take(&mut self.late) {
                let Target::Node(target, _) = to else { continue };
                let is_new = self.graph.phase(target) == Phase::None;
                if is_new && self.is_unusual(from, edge, self.graph.address(target)) {
                    self.unusual.push((from, target));
                }
                self.offer(target, from, edge, WORD, true, 0);
                if is_new && self.graph.phase(target) != Phase::None {
                    self.graph.add_target(from, target);
                }
            }
            self.run();
        }
    }

    /// Puts off what objects point to whose destructor has begun: if it still runs, its members may hold what nothing else does.
    fn search_destroyed(&mut self) {
        for node in std::mem::take(&mut self.destroyed) {
            let Some(chunk) = self.native.chunk(self.copy, self.graph.address(node)) else {
                continue;
            };
            if !self.budget.spend(chunk.bytes / 8) {
                return;
            }
            let copy = self.copy;
            for (at, value) in copy.words(chunk.start..chunk.start + chunk.bytes) {
                let edge = Edge::word((at - chunk.start) / 8);
                if let Some((block, interior)) = self.index.find(value) {
                    self.put_off(node, edge, Target::Block(block, interior));
                } else if let Some((id, _)) = self.pointed(value) {
                    self.put_off(node, edge, Target::Node(id, 0));
                }
            }
        }
    }

    /// Adds what remains: blocks that have a holder, to which the last words of chunks point, too.
    pub fn keep_tails(&mut self) {
        for tail in std::mem::take(&mut self.tails) {
            if let Target::Block(block, interior) = tail.to {
                self.tail_to_block(tail.from, tail.edge, block, interior);
            }
        }
    }

    /// Whether a state of a Python thread lies in this chunk.
    pub(super) fn has_thread_state(&self, chunk: Chunk) -> bool {
        let next = (self.thread_states).partition_point(|state| state.start < chunk.start);
        (self.thread_states.get(next)).is_some_and(|state| state.start < chunk.start + chunk.bytes)
    }

    /// Whether the words of this object that lead to another one are references for certain. Objects that the collector does
    /// not track may be made of memory that is not cleared.
    pub(super) fn has_counted_words(&mut self, from: NodeId, object: u64) -> bool {
        let Some(of) = self.type_of(from) else { return false };
        let (copy, address) = (self.copy, self.graph.address(from));
        let python = self.python.as_deref_mut();
        python.is_some_and(|python| python.is_tracked(copy, address, of)) && !self.is_sibling(from, object)
    }

    /// The type of the Python object that this node is; `None` if it is something else.
    fn type_of(&mut self, node: NodeId) -> Option<TypeId> {
        if self.graph.kind(node) != NodeKind::Python {
            return None;
        }
        let address = self.graph.address(node);
        self.python.as_deref_mut()?.object(self.copy, address)
    }

    /// Whether both are neighbours in a list of all objects of a type, which holds none of them: each points to the other one.
    pub(super) fn is_sibling(&mut self, from: NodeId, object: u64) -> bool {
        let Some(of) = self.type_of(from) else { return false };
        let address = self.graph.address(from);
        let Some(python) = self.python.as_deref_mut() else {
            return false;
        };
        address != object
            && python.object(self.copy, object) == Some(of)
            && python.words_of(self.copy, object, of).any(|word| word == address)
    }

    /// A pointer to or into a chunk that may be entered.
    pub(super) fn chunk(&mut self, from: NodeId, edge: Edge, id: NodeId, start: u64) {
        let is_unusual = self.is_unusual(from, edge, start);
        if self.phase < Phase::Rest && (is_unusual || self.is_stale(from, edge, start)) {
            return self.put_off(from, edge, Target::Node(id, 0));
        }
        // A stale word that leads to the driver's memory would lead to every block, so it is followed when the others have been. The
        // driver's tables lead to memory of the program, too.
        if self.phase == Phase::Rest
            && self.graph.is_weak(from)
            && self.native.is_driver_although_reached(self.copy, start)
        {
            return self.put_off(from, edge, Target::Node(id, 0));
        }
        self.graph.add_target(from, id);
        if is_unusual {
            self.unusual.push((from, id));
        }
        if self.graph.phase(id) != Phase::None && self.graph.waits_at(id).is_none() {
            return;
        }
        if self.is_shortcut(from, start) {
            return self.shortcuts.push((id, from, edge));
        }
        let is_unnamed = self.kind_of(start) == Kind::Unnamed;
        let chunk = self.native.chunk(self.copy, start);
        let unnamed = match (is_unnamed, self.graph.kind(from)) {
            (false, _) => 0,
            (true, NodeKind::Native) => self.graph.unnamed(from) + 1,
            // Raw memory of Python's allocator is a part of the object that has it.
            (true, NodeKind::Python) if chunk.is_some_and(|chunk| chunk.heap == Heap::Python) => 0,
            (true, _) => 1,
        };
        let is_buffer = is_unnamed && self.python.is_some() && chunk.is_some_and(|chunk| chunk.bytes > LARGE);
        let is_window = chunk.is_some_and(|chunk| chunk.heap == Heap::Unknown) && !self.is_sure_object(start);
        let is_late = is_buffer || unnamed > self.unnamed;
        if is_late && self.phase < Phase::Rest {
            return self.put_off(from, edge, Target::Node(id, 0));
        }
        let cost = if is_unnamed && self.unnamed == 1 { UNNAMED } else { WORD };
        self.offer(id, from, edge, cost, is_late || is_window, unnamed.min(15));
    }

    /// Whether an object with a class is at this place in memory of an unknown allocator, as its count shows.
    fn is_sure_object(&mut self, start: u64) -> bool {
        match self.kind_of(start) {
            Kind::TensorMeta => true,
            kind => kind.is_counted() && counts::of(self.copy, start).is_some(),
        }
    }

    /// Whether most references to such a chunk are elsewhere.
    fn is_unusual(&mut self, from: NodeId, edge: Edge, start: u64) -> bool {
        if self.graph.kind(from) != NodeKind::Native {
            return false;
        }
        let owner = self.graph.address(from);
        let class = self.native.classes.chunk(self.copy, owner);
        self.usual.is_unusual(owner, class, edge.index(), start) || class.is_none() && self.is_unused(from, edge)
    }

    /// Whether the word lies outside the elements of a vector or a deque, in the part of its memory that is not in use.
    pub(super) fn is_unused(&self, from: NodeId, edge: Edge) -> bool {
        let chunk = self.native.chunk(self.copy, self.graph.address(from));
        let (Some(place), Some(chunk)) = (self.place(from), chunk) else {
            return false;
        };
        let used = (vectors::bytes_of_vector(self.copy, place, &chunk))
            .or_else(|| vectors::bytes_of_inlined_vector(self.copy, place, &chunk));
        let used = (used.map(|used| 0..used)).or_else(|| vectors::used_of_deque(self.copy, place, &chunk));
        used.is_some_and(|used| !used.contains(&(edge.index() * 8)))
    }

    /// Whether a word of this node that leads to this chunk is no reference, as far as the classes of PyTorch show.
    fn is_stale(&mut self, from: NodeId, edge: Edge, start: u64) -> bool {
        let to = self.kind_of(start);
        let owner = match self.graph.kind(from) {
            NodeKind::Native => self.kind_of(self.graph.address(from)),
            _ => Kind::Named,
        };
        match (owner, to) {
            (Kind::PlainTensor | Kind::Tensor, Kind::Storage | Kind::TensorMeta) => edge.index() >= FIRST_BYTES / 8,
            (Kind::PlainTensor, _) | (_, Kind::TensorMeta) | (Kind::TensorMeta, Kind::LeafNode) => true,
            (_, Kind::Storage) => self.graph.kind(from) == NodeKind::Native,
            (_, to) if to.is_node() => {
                self.is_tail
                    || match counts::of(self.copy, start) {
                        Some(Count::Intrusive(_)) => self.value != start,
                        _ => self.behind != 0 && !self.is_count(self.behind, start),
                    }
            }
            _ => false,
        }
    }

    /// Whether these are the counts of a shared pointer to this chunk, or to an object in it.
    fn is_count(&mut self, address: u64, start: u64) -> bool {
        let chunk = self.native.chunk(self.copy, address);
        chunk.is_some_and(|chunk| chunk.start == address) && counts::is_of(self.copy, address, start)
    }

    /// Whether this is a pointer between nodes of autograd outside of the vector that each of them has. What it leads to is
    /// most often in that vector, too, or the pointer is stale.
    fn is_shortcut(&mut self, from: NodeId, start: u64) -> bool {
        self.graph.kind(from) == NodeKind::Native
            && self.kind_of(start).is_node()
            && self.kind_of(self.graph.address(from)) == Kind::AutogradNode
    }

    /// Follows the shortcuts to what nothing else leads to. Returns whether there are any.
    pub(super) fn take_shortcuts(&mut self) -> bool {
        for (id, from, edge) in std::mem::take(&mut self.shortcuts) {
            if self.graph.phase(id) == Phase::None {
                self.offer(id, from, edge, WORD, false, 0);
            }
        }
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// The place of the word that leads to the Python object of what begins this chunk, and the word.
    fn word_to_object(&mut self, chunk: Chunk) -> Option<(u64, u64)> {
        const MOST: u64 = 1024;
        let start = chunk.start;
        let python = self.python.as_deref_mut()?;
        let words = (0..chunk.bytes.min(MOST) / 8).map(|place| (place, self.copy.word(start + place * 8)));
        let mut words = words.filter(|(_, word)| {
            let object = word & !1;
            let may_be_object = object >= PAGE && object & 7 == 0 && self.copied.contains(&object);
            may_be_object && self.copy.has(object) && counts::refers_back(self.copy, object, start)
        });
        words.find(|(_, word)| {
            let object = word & !1;
            let of = python.object(self.copy, object);
            of.is_some_and(|of| is_place_of_object(self.copy, python, self.native, object, of))
        })
    }

    /// The Python object of a tensor, a storage or a node of autograd. It refers back to its owner. If the owner keeps it,
    /// this is a reference; otherwise it is borrowed. Returns the word, which is not to be followed.
    pub(super) fn object_of(&mut self, from: NodeId, chunk: Chunk, kind: Kind) -> u64 {
        let start = chunk.start;
        let may_have_one = match kind {
            Kind::Tensor | Kind::PlainTensor | Kind::Storage => true,
            // A node that a shared pointer owns has another kind of reference to its Python object.
            Kind::AutogradNode | Kind::LeafNode => matches!(counts::of(self.copy, start), Some(Count::Intrusive(_))),
            _ => false,
        };
        if !may_have_one {
            return 0;
        }
        if let Some((place, word)) = self.word_to_object(chunk) {
            let object = word & !1;
            if counts::is_kept(self.copy, start, word) {
                let edge = Edge::word(place);
                match self.graph.find(self.copy, object) {
                    Some(id) => {
                        self.graph.add_target(from, id);
                        self.offer(id, from, edge, WORD, false, 0);
                    }
                    None => self.add_object(from, edge, object, WORD, false, false),
                }
            }
            return word;
        }
        0
    }

    /// The last words of a chunk may be what its previous owner left there.
    pub(super) fn words_and_tail(&mut self, from: NodeId, chunk: Chunk) {
        let tail = chunk.start + self.native.requested(&chunk);
        let end = chunk.start + chunk.bytes;
        self.words(from, chunk.start..tail);
        self.behind = 0;
        let copy = self.copy;
        for (at, value) in copy.words(tail..end) {
            self.tail_word(from, Edge::word((at - chunk.start) / 8), value);
        }
    }

    fn tail_word(&mut self, from: NodeId, edge: Edge, value: u64) {
        self.is_tail = true;
        self.word(from, edge, value);
        self.is_tail = false;
    }

    pub(super) fn storage(&mut self, from: NodeId, chunk: Chunk) {
        for place in 0..chunk.bytes.min(FIRST_BYTES) / 8 {
            let value = self.copy.word(chunk.start + place * 8);
            for (block, interior) in [self.index.find(value), self.index.find_reserved(value)]
                .into_iter()
                .flatten()
            {
                self.block(from, Edge::word(place), block, interior);
            }
        }
    }

    /// Where the word is through which this node was reached, in native memory or in a variable.
    pub(super) fn place(&self, of: NodeId) -> Option<u64> {
        let (owner, field) = self.graph.parent(of)?;
        let start = match self.graph.root(owner) {
            Some(Root::Native(root)) if root.sort == RootSort::Registers => return None,
            Some(Root::Native(root)) => root.range.start,
            None if self.graph.kind(owner) == NodeKind::Native => self.graph.address(owner),
            _ => return None,
        };
        Some(start.wrapping_add(field.index() * 8))
    }

    /// Whether memory of an unknown allocator that begins here was reached.
    fn is_reached(&self, at: u64) -> bool {
        self.native.is_noted(self.copy, at) && self.graph.reached(self.copy, at).is_some()
    }

    pub(super) fn words(&mut self, from: NodeId, range: Range<u64>) {
        let copy = self.copy;
        let start = range.start.next_multiple_of(8);
        let mut page = start & !(PAGE - 1);
        while page < range.end {
            if let Some(words) = copy.page(page) {
                let bytes = range.end.min(page + PAGE).saturating_sub(page.max(start));
                if !self.budget.spend(bytes.div_ceil(8)) {
                    self.left_out.bytes += range.end.saturating_sub(page.max(start));
                    return;
                }
                // All others lead nowhere. Without a branch for each word, this is as fast as memory is read.
                let (copied, blocks) = (self.copied.clone(), self.index.span());
                let (copied_bytes, block_bytes) = (copied.end - copied.start, blocks.end - blocks.start);
                let may_lead = |value: u64| {
                    (value.wrapping_sub(copied.start) < copied_bytes) | (value.wrapping_sub(blocks.start) < block_bytes)
                };
                if !words.iter().fold(false, |any, value| any | may_lead(*value)) {
                    page += PAGE;
                    continue;
                }
                let first = (start.max(page) - page) / 8;
                let last = (range.end.min(page + PAGE) - page) / 8;
                for place in first..last {
                    if let Some(ahead) = words.get(place as usize + AHEAD) {
                        self.prefetch(*ahead);
                    }
                    if self.is_window && page + place * 8 > start && self.is_reached(page + place * 8) {
                        self.budget.refund(last - place);
                        return;
                    }
                    let value = words[place as usize];
                    if may_lead(value) && value >= PAGE && value != self.borrowed {
                        let at = page + place * 8;
                        if is_short_text(words, first as usize, place as usize, page) {
                            continue;
                        }
                        self.behind = match words.get(place as usize + 1) {
                            Some(behind) => *behind,
                            None => copy.word(at + 8),
                        };
                        let edge = Edge::word((at - start) / 8);
                        if self.native.is_end(copy, at, value) {
                            self.tail_word(from, edge, value);
                        } else {
                            self.word(from, edge, value);
                        }
                    }
                }
            }
            page += PAGE;
        }
    }
}
