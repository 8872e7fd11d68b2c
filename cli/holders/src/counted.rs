//! References that the counts of C++ objects do not contain.
//!
//! Objects of PyTorch count the pointers that own them. Native memory has further words with their addresses: weak pointers,
//! and what previous owners of the memory left in fields that are not used. If the words of certain fields are as
//! many as an object's count, then all other words with its address hold nothing.
//!
//! Which fields are certain follows from the counts, so no layout has to be known: a *field* is a class and an offset in it, or the vector
//! that a node of autograd's graph has. It is certain if more objects are counted right with it than without.
//!
//! ```text
//! MulBackward0 ─ vector ─► AccumulateGrad (count 1)      count = words:   the field owns its object
//! MulBackward0 ─ vector ─► MulBackward0 (count 1)        count < words:   one of both does not …
//! ExpBackward0 ─ +0x1c8 ──┘                               … and this field has never owned one: the word is stale
//! ```
//!
//! Classes of nodes share no fields here: at an offset at which one class owns a tensor, another one may have memory that it
//! does not use.
//!
//! An object whose certain words are fewer than its count keeps all references, and so does one with more.

use std::ops::Range;

use crate::bits::Bits;
use crate::copy::Image;
use crate::findings::Findings;
use crate::graph::{Edge, NodeId, NodeKind, Pairs, Phase};
use crate::native::counts::{self, Count};
use crate::native::kinds::Kind;
use crate::native::vectors::bytes_of_vector;
use crate::native::{Chunk, ClassId, Heap};
use crate::python::TypeId;
use crate::{Map, Set};

mod circles;

/// What owns a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Class(ClassId),
    Type(TypeId),
    /// The vector that a node of autograd's graph has.
    Vector,
}

type Field = (Owner, u64);

/// A reference to an object with a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Mention {
    to: NodeId,
    from: NodeId,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The number of the field.
    Field(u32),
    /// It may be counted, but its field is not known: a global variable, a stack, memory without a class.
    Other,
    /// It is not counted: a pointer into the object, or without the counts beside it.
    Uncounted,
}

/// Gives each node to which a stale word led a parent that refers to it, if one was reached in the same phase.
pub(crate) fn mend(stale: &Pairs, searched: &mut Findings) {
    /// References to one node that are compared.
    const MOST: usize = 64;
    /// Nodes and references that are looked at.
    const STEPS: u64 = 20_000_000;
    let mut steps = STEPS;
    let graph = &searched.graph;
    let is_wrong = |node: &NodeId| graph.parent(*node).is_some_and(|(parent, _)| stale.has(parent, *node));
    let wrong: Vec<NodeId> = graph.nodes().filter(is_wrong).collect();
    if wrong.is_empty() {
        return;
    }
    let mut others: Map<NodeId, Vec<NodeId>> = wrong.iter().map(|node| (*node, Vec::new())).collect();
    let mut see = |from: NodeId, to: NodeId| {
        if graph.kind(from) != NodeKind::Root
            && let Some(known) = others.get_mut(&to)
            && known.len() < MOST
            && graph.phase(from) == graph.phase(to)
            && from != to
            && !stale.has(from, to)
        {
            known.push(from);
        }
    };
    graph.references().for_each(|(from, to)| see(from, to));
    for node in wrong {
        let mut others = others.remove(&node).unwrap_or_default();
        others.sort_unstable_by_key(|from| (searched.graph.is_weak(*from), *from));
        for from in others {
            if !searched.graph.is_below(from, node, &mut steps)
                && let Some(edge) = edge(searched, from, node, &mut steps)
            {
                searched.graph.set_parent(node, from, edge);
                break;
            }
        }
    }
}

/// Finds the references of the graph that hold nothing. Also the objects that own each other, with all that these own.
pub(crate) fn stale(searched: &mut Findings) -> (Pairs, Set<NodeId>) {
    let mut search = Find {
        searched,
        counts: Map::default(),
        fields: Map::default(),
        mentions: Vec::new(),
    };
    search.find_counts();
    search.find_mentions();
    search.judge()
}

/// The number of words that own an object.
#[derive(Debug, Clone, Copy)]
enum Owned {
    Counted(Count),
    /// One word owns it.
    Once,
}

struct Find<'a, 'c, 's> {
    searched: &'a mut Findings<'c, 's>,
    counts: Map<NodeId, Owned>,
    fields: Map<Field, u32>,
    mentions: Vec<Mention>,
}

/// Larger memory without a class is not read.
const LARGEST: u64 = 64 << 10;

impl Find<'_, '_, '_> {
    fn copy(&self) -> &Image<'_> {
        self.searched.copy
    }

    fn class(&mut self, start: u64) -> Option<(ClassId, Kind)> {
        let native = &mut self.searched.native;
        let class = native.classes.chunk(self.searched.copy, start)?;
        Some((class, native.classes.kind(class)))
    }

    /// The objects with a count, and the memory that one of these owns.
    fn find_counts(&mut self) {
        let mut nodes = Vec::new();
        for node in self.searched.graph.nodes() {
            let graph = &self.searched.graph;
            if graph.kind(node) != NodeKind::Native || graph.phase(node) == Phase::None {
                continue;
            }
            let start = graph.address(node);
            let Some((_, kind)) = self.class(start) else { continue };
            let owned = match kind {
                Kind::TensorMeta => Some(Owned::Once),
                kind if kind.is_counted() => {
                    if kind.is_node() && !self.searched.native.classes.is_destroyed(self.searched.copy, start) {
                        nodes.push(start);
                    }
                    counts::of(self.copy(), start).map(Owned::Counted)
                }
                _ => None,
            };
            if let Some(owned) = owned {
                self.counts.insert(node, owned);
            }
        }
        for start in nodes {
            let Some(chunk) = self.searched.native.chunk(self.copy(), start) else {
                continue;
            };
            for place in (start..start + chunk.bytes).step_by(8) {
                if let Some((buffer, _)) = self.vector(place)
                    && let Some(node) = self.searched.graph.find(self.copy(), buffer.start)
                {
                    self.counts.insert(node, Owned::Once);
                }
            }
        }
    }

    /// The memory without a class that a `std::vector` here has (first, end, limit), and how much of it is in use.
    fn vector(&mut self, place: u64) -> Option<(Chunk, u64)> {
        let chunk = self.searched.native.chunk(self.copy(), self.copy().word(place))?;
        let used = bytes_of_vector(self.copy(), place, &chunk).filter(|used| *used > 0)?;
        self.class(chunk.start).is_none().then_some((chunk, used))
    }

    fn find_mentions(&mut self) {
        if self.counts.is_empty() {
            return;
        }
        let graph = &self.searched.graph;
        let counted = Bits::of(graph.len(), self.counts.keys().map(|node| node.0 as usize));
        // The dominators ignore the others.
        let may_hold = |from: NodeId, to: NodeId| graph.phase(from) < Phase::Rest || graph.phase(to) == Phase::Rest;
        let is_wanted =
            |(from, to): &(NodeId, NodeId)| counted.get(to.0 as usize) && from != to && may_hold(*from, *to);
        let mut references: Vec<(NodeId, NodeId)> = graph.references().filter(is_wanted).collect();
        references.sort_unstable();
        references.dedup();
        for references in references.chunk_by(|a, b| a.0 == b.0) {
            let from = references[0].0;
            let targets: Vec<NodeId> = references.iter().map(|(_, to)| *to).collect();
            let before = self.mentions.len();
            if let Some((owner, range)) = self.owner(from) {
                self.read(from, owner, range, &targets);
            }
            let seen: Set<NodeId> = self.mentions[before..].iter().map(|mention| mention.to).collect();
            // A word that was not found counts as one that may own the object.
            for to in targets.into_iter().filter(|to| !seen.contains(to)) {
                let place = Place::Other;
                self.mentions.push(Mention { to, from, place });
            }
        }
    }

    /// What the words of a node belong to, and where they are. `None`: this is not known.
    fn owner(&mut self, node: NodeId) -> Option<(Option<Owner>, Range<u64>)> {
        let graph = &self.searched.graph;
        let start = graph.address(node);
        match graph.kind(node) {
            NodeKind::Python => {
                let copy = self.searched.copy;
                let python = self.searched.python.as_mut()?;
                let of = python.object(copy, start)?;
                let range = python.extent(copy, start, of);
                (range.end.saturating_sub(start) < LARGEST).then_some((Some(Owner::Type(of)), start..range.end))
            }
            NodeKind::Native => {
                let parent = graph.parent(node);
                let chunk = self.searched.native.chunk(self.copy(), start)?;
                let whole = chunk.start..chunk.start + chunk.bytes;
                if let Some((class, _)) = self.class(start) {
                    let is_known = chunk.bytes < LARGEST && chunk.heap != Heap::Unknown;
                    return is_known.then_some((Some(Owner::Class(class)), whole));
                }
                if let Some((parent, edge)) = parent
                    && self.searched.graph.kind(parent) == NodeKind::Native
                    && let from = self.searched.graph.address(parent)
                    && let Some((_, kind)) = self.class(from)
                    && kind.is_node()
                    && let Some((vector, used)) = self.vector(from + edge.index() * 8)
                    && vector.start == start
                {
                    return Some((Some(Owner::Vector), start..start + used));
                }
                (chunk.bytes < LARGEST).then_some((None, whole))
            }
            NodeKind::Root | NodeKind::Frame => None,
        }
    }

    /// Adds the words in this memory that lead to these nodes, which are in order.
    fn read(&mut self, from: NodeId, owner: Option<Owner>, range: Range<u64>, targets: &[NodeId]) {
        let in_vector = owner == Some(Owner::Vector);
        for place in range.clone().step_by(8) {
            let value = self.copy().word(place);
            let Some(chunk) = self.searched.native.chunk(self.copy(), value) else {
                continue;
            };
            let Some(to) = self.searched.graph.find(self.copy(), chunk.start) else {
                continue;
            };
            if targets.binary_search(&to).is_err() {
                continue;
            }
            let behind = self.copy().word(place.wrapping_add(8));
            let is_counted = match self.counts[&to] {
                Owned::Counted(Count::Shared(counts, _)) if value == counts && behind != counts => continue,
                Owned::Counted(Count::Shared(counts, _)) => behind == counts,
                // A Python object that borrows the tensor it belongs to says so in the word before.
                Owned::Counted(Count::Intrusive(_)) => {
                    let is_borrowed =
                        matches!(owner, Some(Owner::Type(_))) && self.copy().word(place.wrapping_sub(8)) == 1;
                    value == chunk.start && !is_borrowed
                }
                Owned::Once => value == chunk.start,
            };
            let place = match owner {
                _ if !is_counted => Place::Uncounted,
                None => Place::Other,
                Some(owner) => {
                    let next = self.fields.len() as u32;
                    let offset = if in_vector { 0 } else { place - range.start };
                    Place::Field(*self.fields.entry((owner, offset)).or_insert(next))
                }
            };
            self.mentions.push(Mention { to, from, place });
        }
    }

    fn judge(mut self) -> (Pairs, Set<NodeId>) {
        /// Each decides more fields.
        const PASSES: usize = 4;
        self.mentions.sort_unstable();
        let mut certain = vec![false; self.fields.len()];
        for _ in 0..PASSES {
            let next = self.certain(&certain);
            if next == certain {
                break;
            }
            certain = next;
        }
        let mut stale = Pairs::default();
        let mut owns = Vec::new();
        for mentions in self.mentions.chunk_by(|a, b| a.to == b.to) {
            let count = self.count(mentions[0].to);
            let is_explained = number(mentions, &certain) == count;
            if !is_explained && counted(mentions) != count {
                continue;
            }
            for of_one in mentions.chunk_by(|a, b| a.from == b.from) {
                let Mention { from, to, .. } = of_one[0];
                match number(of_one, &certain) {
                    0 if is_explained => stale.add(from, to),
                    0 => {}
                    _ => owns.push((from, to)),
                }
            }
        }
        (stale, circles::circles(&owns))
    }

    fn count(&self, node: NodeId) -> u64 {
        match self.counts.get(&node) {
            Some(Owned::Counted(count)) => count.number(),
            Some(Owned::Once) | None => 1,
        }
    }

    /// The fields that own what they point to, given those of which that is known.
    fn certain(&self, known: &[bool]) -> Vec<bool> {
        let (mut right, mut wrong) = (vec![0u32; known.len()], vec![0u32; known.len()]);
        for mentions in self.mentions.chunk_by(|a, b| a.to == b.to) {
            let count = self.count(mentions[0].to);
            let (all, of_known) = (counted(mentions), number(mentions, known));
            for mention in mentions {
                let Place::Field(field) = mention.place else { continue };
                let field = field as usize;
                if all == count || of_known == count && known[field] {
                    right[field] += 1;
                } else if of_known >= count {
                    wrong[field] += 1;
                }
            }
        }
        right.iter().zip(wrong).map(|(right, wrong)| *right > wrong).collect()
    }
}

/// By which field a node refers to another one.
pub(crate) fn edge(searched: &mut Findings, from: NodeId, to: NodeId, steps: &mut u64) -> Option<Edge> {
    let (copy, graph) = (searched.copy, &searched.graph);
    let (start, target) = (graph.address(from), graph.address(to));
    let native = &searched.native;
    let leads_there = |word: u64| {
        word == target || word & !1 == target || native.chunk(copy, word).is_some_and(|chunk| chunk.start == target)
    };
    if graph.kind(from) == NodeKind::Native {
        let chunk = native.chunk(copy, start)?;
        let mut places = (0..chunk.bytes.min(LARGEST) / 8).filter(|place| leads_there(copy.word(start + place * 8)));
        return places.next().map(Edge::word);
    }
    let python = searched.python.as_mut()?;
    let references = python.references_of(copy, start, graph.kind(from) == NodeKind::Frame);
    *steps = steps.saturating_sub(references.len() as u64);
    let found = references.iter().find(|reference| leads_there(reference.target));
    found.map(|reference| reference.edge)
}

/// How many of these may own the object.
fn counted(mentions: &[Mention]) -> u64 {
    (mentions.iter().filter(|mention| mention.place != Place::Uncounted)).count() as u64
}

/// How many of these are words of certain fields.
fn number(mentions: &[Mention], certain: &[bool]) -> u64 {
    let is_certain = |mention: &&Mention| matches!(mention.place, Place::Field(field) if certain[field as usize]);
    mentions.iter().filter(is_certain).count() as u64
}
