//! The breadth-first search from the roots.
//!
//! ```text
//! cost   reference                                          queue: one per cost, modulo 16
//!    0   a field, an element, a local variable              nodes of the lowest cost are scanned first, in the order
//!    1   a word of a C object or of native memory           in which they were found
//!    8   globals of functions, classes, previous frames,
//!        stack slots of an executing frame
//! late   chains of unnamed chunks, large unnamed chunks     scanned only when all else is done
//! ```
//!
//! Words that may be stale lead to a Python object only if its reference count shows that something outside of Python's own
//! references holds it. That is known only after all of those have been followed, so such words wait until then.
//!
//! Each target is checked before it becomes a node: a Python object has a valid type and a count, native memory is an
//! allocated chunk. Chunks that contain a Python object are never entered, except at the object: otherwise the links of the
//! collector's lists would join everything to everything.
//!
//! Nothing here recurses, each node and each large array is scanned once, and the number of references is limited, so the
//! time is bounded by the size of the copy.

mod apart;
mod blocks;
mod fields;
mod numbers;
mod records;
mod roots;
pub(crate) mod rules;
mod usual;
mod words;

use std::collections::VecDeque;
use std::ops::Range;

use crate::Set;
use crate::blocks::BlockIndex;
use crate::budget::{Budget, Deadline, LeftOut};
use crate::copy::Image;
use crate::copy::selection::without;
use crate::garbage::Unreached;
use crate::graph::{Edge, EdgeKind, Graph, NodeId, NodeKind, Phase, State};
use crate::native::kinds::Kind;
use crate::native::{Chunk, Heap, Native};
use crate::python::{Python, Reference, Sort};

pub(crate) use apart::InApart;
use records::Records;
pub(crate) use rules::{FIRST_BYTES, object_in};
use rules::{is_place_of_object, points_into};
pub(crate) use usual::UsualPlaces;

const COSTS: u8 = 16;
const WORD: u8 = 1;
const CONTEXT: u8 = 8;
/// An unnamed chunk in a process with PyTorch or JAX, whose classes have names: its words are often stale.
const UNNAMED: u8 = 4;

/// The first pointer to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub node: NodeId,
    pub edge: Edge,
    pub interior: bool,
    pub phase: Phase,
    pub weak: bool,
}

/// A reference that is put off.
struct Later {
    from: NodeId,
    edge: Edge,
    to: Target,
}

#[derive(Clone, Copy)]
enum Target {
    /// The index, and whether the reference leads into the block, not to its start.
    Block(usize, bool),
    /// With the unnamed chunks in a row that the path has then.
    Node(NodeId, u8),
}

pub(crate) struct Walk<'w, 's> {
    pub copy: &'w Image<'s>,
    pub python: Option<&'w mut Python>,
    pub native: &'w mut Native,
    pub graph: Graph,
    pub index: &'w BlockIndex,
    /// By the index of the block: the best pointer to it.
    pub found: Vec<Option<Pointer>>,
    /// Blocks that need no answer.
    pub done: Vec<bool>,
    /// Pointers that hold no block of PyTorch's allocator: those of its own records, for example.
    pub records: Vec<Option<Pointer>>,
    /// Numbers in Python that equal an address in the block. They hold it only if nothing else does.
    pub numbers: Vec<Option<Pointer>>,
    /// Words that equal the start of the block, but may be the end of the block before it. They are named if nothing else holds it, or a
    /// stack alone.
    pub ends: Vec<Option<Pointer>>,
    /// What was found in memory that is not part of the copy.
    pub apart: InApart,
    pub torn: u64,
    /// What may still be scanned.
    pub budget: Budget,
    left_out: LeftOut,
    /// Large arrays of objects that were read; torn objects may share one.
    arrays: Set<u64>,
    /// Words that are stale more often than not, those of native memory and the value stack of an executing frame, lead to objects whose
    /// reference count is not explained: all others are reached from these, or are garbage. `None`: to what is reached already.
    pub counted: Option<&'w Unreached>,
    phase: Phase,
    queues: [VecDeque<NodeId>; COSTS as usize],
    cost: u8,
    /// What is followed when all else is done: among others, pointers to blocks from places where the pointers to most blocks are not.
    late: Vec<Later>,
    /// Objects whose destructor has begun.
    destroyed: Vec<NodeId>,
    /// References to chunks that usually have others, but were not reached by these.
    pub unusual: Vec<(NodeId, NodeId)>,
    /// Where the pointers to most blocks are.
    pub usual: UsualPlaces,
    /// References that last only as long as another object lives.
    waiting: Records,
    /// Pointers between nodes of autograd that are followed if nothing else leads there.
    shortcuts: Vec<(NodeId, NodeId, Edge)>,
    /// Words that may be stale and equal the address of an object which nothing else in Python leads to. After
    /// [`Walk::search_entries`], those that were refused.
    entries: Vec<(u64, NodeId, Edge, Sort)>,
    /// Unnamed chunks in a row that a path may contain.
    unnamed: u8,
    block_edges: Vec<u16>,
    /// The word that is being scanned.
    value: u64,
    /// The word behind it; 0: not known.
    behind: u64,
    /// A word of the chunk that is being scanned which is no reference; 0: none.
    borrowed: u64,
    /// Python objects that words of the chunk lead to are those of an earlier owner.
    has_no_objects: bool,
    /// Where the chunk ends is not known: it is scanned up to the next one that was reached.
    is_window: bool,
    /// The word that is being scanned may lie behind what the program requested.
    is_tail: bool,
    /// Where such words lead to.
    tails: Vec<Later>,
    /// Only pointers to blocks that have none so far count.
    only_missing: bool,
    references: Vec<Reference>,
    /// Of Python, by address.
    thread_states: Vec<Range<u64>>,
    copied: Range<u64>,
}

impl<'w, 's> Walk<'w, 's> {
    /// `has_classes`: most native objects are of classes with a name, so chains of unnamed chunks are stale more often than not.
    pub fn new(
        copy: &'w Image<'s>,
        python: Option<&'w mut Python>,
        native: &'w mut Native,
        index: &'w BlockIndex,
        has_classes: bool,
        deadline: Deadline,
    ) -> Walk<'w, 's> {
        let has_python = python.is_some();
        let runs = copy.runs();
        let copied = runs.first().map_or(0, |run| run.start)..runs.last().map_or(0, |run| run.end);
        Walk {
            copy,
            python,
            native,
            graph: Graph::new(copy),
            index,
            found: vec![None; index.len()],
            done: vec![false; index.len()],
            records: vec![None; index.len()],
            numbers: vec![None; index.len()],
            ends: vec![None; index.len()],
            apart: InApart::new(copy),
            torn: 0,
            budget: Budget::new(copy, deadline),
            left_out: LeftOut::default(),
            arrays: Set::default(),
            counted: None,
            phase: Phase::Python,
            queues: Default::default(),
            cost: 0,
            late: Vec::new(),
            destroyed: Vec::new(),
            unusual: Vec::new(),
            usual: UsualPlaces::default(),
            waiting: Records::default(),
            shortcuts: Vec::new(),
            entries: Vec::new(),
            unnamed: match (has_classes, has_python) {
                (true, _) => 1,
                (false, true) => 3,
                (false, false) => u8::MAX,
            },
            block_edges: vec![0; index.len()],
            value: 0,
            behind: 0,
            borrowed: 0,
            has_no_objects: false,
            is_window: false,
            is_tail: false,
            tails: Vec::new(),
            only_missing: false,
            references: Vec::new(),
            thread_states: Vec::new(),
            copied,
        }
    }

    /// What was found before that and is not scanned any more.
    pub fn left_out(&self) -> LeftOut {
        let nodes = self.late.iter().filter(|later| matches!(later.to, Target::Node(..)));
        LeftOut {
            objects: self.left_out.objects + nodes.count() as u64,
            ..self.left_out
        }
    }

    /// Python objects that words of native memory lead to, although their counts show no such reference.
    pub fn refused(&self) -> impl Iterator<Item = u64> + '_ {
        let words = self.entries.iter().filter(|(.., sort)| *sort == Sort::Word);
        words.map(|(object, ..)| *object)
    }

    pub fn unexplained(&self) -> bool {
        (self.found.iter().zip(&self.done)).any(|(found, is_done)| found.is_none() && !is_done)
    }

    fn run(&mut self) {
        loop {
            while let Some(node) = self.next() {
                match self.budget.spend(1) {
                    true => self.scan(node),
                    false => self.leave_out(node),
                }
            }
            if !self.take_shortcuts() {
                return;
            }
        }
    }

    #[cold]
    fn leave_out(&mut self, node: NodeId) {
        match self.graph.kind(node) {
            NodeKind::Native => {
                let chunk = self.native.chunk(self.copy, self.graph.address(node));
                self.left_out.bytes += chunk.map_or(0, |chunk| chunk.bytes);
            }
            _ => self.left_out.objects += 1,
        }
    }

    fn next(&mut self) -> Option<NodeId> {
        for ahead in 0..COSTS {
            let cost = (self.cost + ahead) % COSTS;
            while let Some(node) = self.queues[usize::from(cost)].pop_front() {
                if self.graph.waits_at(node) == Some(cost) {
                    self.cost = cost;
                    self.prefetch_next();
                    return Some(node);
                }
            }
        }
        None
    }

    /// Most time goes into waiting for memory, so the nodes that are scanned soon are loaded beforehand.
    #[inline]
    fn prefetch_next(&self) {
        /// First the object, then what its first fields lead to: arrays and attributes.
        const OBJECT: usize = 6;
        const FIELDS: usize = 3;
        let queue = &self.queues[usize::from(self.cost)];
        if let Some(node) = queue.get(OBJECT) {
            self.copy.prefetch(self.graph.address(*node));
        }
        if let Some(node) = queue.get(FIELDS)
            && self.graph.kind(*node) == NodeKind::Python
        {
            let address = self.graph.address(*node);
            for field in [16, 24, 32] {
                self.copy.prefetch(self.copy.word(address + field));
            }
        }
    }

    #[inline]
    fn prefetch(&self, target: u64) {
        if self.copied.contains(&target)
            && let Some(granule) = self.copy.prefetch(target)
        {
            self.graph.prefetch(granule);
        }
    }

    fn scan(&mut self, node: NodeId) {
        let address = self.graph.address(node);
        self.graph.begin_scan(node);
        let mut references = std::mem::take(&mut self.references);
        references.clear();
        match (self.graph.kind(node), self.python.as_deref_mut()) {
            (NodeKind::Python, Some(python)) => {
                let of = python.object(self.copy, address);
                let array = of.and_then(|of| python.large_array(self.copy, address, of));
                if array.is_some_and(|array| !self.arrays.insert(array)) {
                    self.torn += 1;
                } else if let Some(of) = of {
                    python.references(self.copy, address, of, &mut references);
                    self.keep_records(node, of, &mut references);
                }
            }
            (NodeKind::Frame, Some(python)) => python.frame_references(self.copy, address, &mut references),
            (NodeKind::Native, _) => {
                if let Some(chunk) = self.native.chunk(self.copy, address) {
                    let kind = self.kind_of(chunk.start);
                    self.borrowed = self.object_of(node, chunk, kind);
                    self.has_no_objects = matches!(
                        kind,
                        Kind::PlainTensor | Kind::TensorMeta | Kind::AutogradNode | Kind::LeafNode | Kind::Storage
                    );
                    // Pointers to an object of the other classes lead to its fields, too.
                    self.is_window = chunk.heap == Heap::Unknown && !kind.is_counted() && kind != Kind::TensorMeta;
                    match kind {
                        Kind::Leaf => {}
                        kind if kind != Kind::Unnamed && self.native.classes.is_destroyed(self.copy, chunk.start) => {
                            self.destroyed.push(node);
                        }
                        // The words of a state are roots.
                        _ if self.has_thread_state(chunk) => {
                            for part in without(&(chunk.start..chunk.start + chunk.bytes), &self.thread_states) {
                                self.words(node, part);
                            }
                        }
                        Kind::Storage => self.storage(node, chunk),
                        Kind::Unnamed => self.words_and_tail(node, chunk),
                        _ => self.words(node, chunk.start..chunk.start + chunk.bytes),
                    }
                    self.borrowed = 0;
                    self.has_no_objects = false;
                    if std::mem::take(&mut self.is_window) {
                        self.keep_cut(node, chunk);
                    }
                }
            }
            _ => {}
        }
        if !self.budget.spend(references.len() as u64) {
            references.clear();
        }
        for reference in &references {
            self.prefetch(reference.target);
        }
        for reference in &references {
            self.refer(node, reference.edge, reference.target, reference.sort);
        }
        self.references = references;
        self.graph.end_scan(node);
    }

    /// Memory of an unknown allocator ends where the next pointer leads to, which may be a member of the same object. That is put
    /// off, in case that nothing else leads there.
    fn keep_cut(&mut self, node: NodeId, chunk: Chunk) {
        let end = chunk.start + chunk.bytes;
        if self.native.is_noted(self.copy, end)
            && self.native.may_be_member(self.copy, end)
            && let Some((id, _)) = self.pointed(end)
        {
            self.put_off(node, Edge::word(chunk.bytes / 8), Target::Node(id, 0));
        }
    }

    fn frame(&mut self, from: NodeId, edge: Edge, address: u64) {
        let known = self.graph.find(self.copy, address);
        let Some(id) = known.or_else(|| self.graph.add(self.copy, address, NodeKind::Frame)) else {
            return;
        };
        self.graph.add_target(from, id);
        self.offer(id, from, edge, 0, false, 0);
    }

    /// A reference of a Python object or a root.
    #[inline]
    fn refer(&mut self, from: NodeId, edge: Edge, target: u64, sort: Sort) {
        let (cost, weak) = match sort {
            Sort::Word => {
                self.behind = 0;
                return self.word(from, edge, target);
            }
            Sort::Named => (0, false),
            Sort::Context => (CONTEXT, false),
            Sort::Possible => (CONTEXT, true),
        };
        if let Some(id) = self.graph.find(self.copy, target) {
            self.graph.add_reference(from, id, weak);
            self.offer(id, from, edge, cost, weak, 0);
            return;
        }
        let Some(python) = self.python.as_deref_mut() else {
            return;
        };
        match python.object(self.copy, target) {
            Some(of) if python.is_leaf(of) => self.number(from, edge, target, of),
            Some(_) if weak && !self.may_enter(target) => {
                if self.phase == Phase::Python {
                    self.entries.push((target, from, edge, sort));
                }
            }
            Some(of) => {
                self.number(from, edge, target, of);
                self.add_object(from, edge, target, cost, weak, weak);
            }
            None => self.torn += u64::from(!weak && target != 0),
        }
    }

    fn add_object(&mut self, from: NodeId, edge: Edge, target: u64, cost: u8, weak: bool, doubtful: bool) {
        if let Some(id) = self.graph.add(self.copy, target, NodeKind::Python) {
            self.graph.add_reference(from, id, doubtful);
            self.offer(id, from, edge, cost, weak, 0);
        }
    }

    /// A word that may be a pointer to a block, to a Python object or to native memory.
    #[inline]
    fn word(&mut self, from: NodeId, edge: Edge, value: u64) {
        if let Some((range, interior)) = self.index.find_reserved(value) {
            self.block(from, edge, range, interior);
        }
        if let Some((block, interior)) = self.index.find(value) {
            return self.block(from, edge, block, interior);
        }
        self.value = value;
        if !self.copied.contains(&value) {
            return;
        }
        if self.copy.granule(value).is_none() {
            return self.apart.note(from, edge, self.phase, value);
        }
        if value & 7 != 0 {
            return self.doubtful(from, edge, value);
        }
        if let Some(id) = self.graph.find(self.copy, value) {
            if self.graph.kind(id) == NodeKind::Native {
                self.chunk(from, edge, id, value);
            } else if !self.has_no_objects && !self.is_sibling(from, value) {
                self.graph.add_reference(from, id, true);
                self.offer(id, from, edge, WORD, false, 0);
            }
            return;
        }
        if let Some(python) = self.python.as_deref_mut()
            && let Some(of) = python.object(self.copy, value)
            && is_place_of_object(self.copy, python, self.native, value, of)
        {
            if python.is_leaf(of) {
                if self.graph.kind(from) == NodeKind::Python {
                    self.number(from, edge, value, of);
                }
                return;
            }
            if self.has_no_objects {
                return;
            }
            if self.has_counted_words(from, value) || self.may_enter(value) || self.is_explained_by(from, value) {
                self.add_object(from, edge, value, WORD, false, true);
            } else if self.phase <= Phase::Globals {
                self.entries.push((value, from, edge, Sort::Word));
            }
            return;
        }
        match self.pointed(value) {
            Some((id, start)) => self.chunk(from, edge, id, start),
            None => self.doubtful(from, edge, value),
        }
    }

    /// Puts off a word that is a pointer less often than not: programs put flags into the low bits of some, and few refer to
    /// the last word of a chunk.
    fn doubtful(&mut self, from: NodeId, edge: Edge, value: u64) {
        let Some(chunk) = self.native.around(self.copy, value & !7) else {
            return;
        };
        let is_last = chunk.heap == Heap::Glibc && (value & !7) + 8 == chunk.start + chunk.bytes;
        if (value & 7 != 0 || is_last)
            && let Some((id, _)) = self.pointed(chunk.start)
            && !self.native.is_driver_although_reached(self.copy, chunk.start)
        {
            self.put_off(from, edge, Target::Node(id, 0));
        }
    }

    /// Follows a reference later, if nothing has led there by then.
    fn put_off(&mut self, from: NodeId, edge: Edge, to: Target) {
        let is_reached = matches!(to, Target::Node(id, _) if self.graph.phase(id) != Phase::None);
        if !is_reached {
            self.late.push(Later { from, edge, to });
        }
    }

    /// The node of the chunk that a word points to or into, and where the chunk starts; `None` if it may not be entered there.
    #[inline]
    fn pointed(&mut self, value: u64) -> Option<(NodeId, u64)> {
        let chunk = self.native.chunk(self.copy, value)?;
        if !points_into(chunk, value) {
            return None;
        }
        let id = match self.graph.find(self.copy, chunk.start) {
            Some(id) => id,
            None if self.contains_object(chunk) => return None,
            None => self.graph.add(self.copy, chunk.start, NodeKind::Native)?,
        };
        (self.graph.kind(id) == NodeKind::Native).then_some((id, chunk.start))
    }

    /// Puts a node into the tree, if it is not there or has a worse place.
    #[inline]
    fn offer(&mut self, id: NodeId, from: NodeId, edge: Edge, cost: u8, weak: bool, unnamed: u8) {
        if self.is_tail {
            let to = Target::Node(id, unnamed);
            return self.tails.push(Later { from, edge, to });
        }
        let cost = (self.cost + cost) % COSTS;
        let weak = weak || self.graph.is_weak(from);
        if self.graph.phase(id) != Phase::None {
            let Some(waits) = self.graph.waits_at(id) else { return };
            let ahead = |cost: u8| (cost + COSTS - self.cost) % COSTS;
            let is_better = ahead(cost) < ahead(waits) || cost == waits && self.graph.is_weak(id) && !weak;
            if !is_better {
                return;
            }
        } else if self.graph.kind(id) == NodeKind::Root {
            return;
        }
        let state = State {
            phase: self.phase,
            is_weak: weak,
            cost,
            unnamed,
            ..State::default()
        };
        self.graph.place(id, from, edge, state);
        self.queues[usize::from(cost)].push_back(id);
    }

    /// Whether a word that may be stale can lead to this object.
    fn may_enter(&self, object: u64) -> bool {
        self.counted.is_some_and(|unreached| unreached.may_enter(object))
    }

    /// Whether the words of this object explain the count of the other one: then they are references, and nothing else leads there.
    fn is_explained_by(&self, from: NodeId, object: u64) -> bool {
        let is_object = self.graph.kind(from) == NodeKind::Python;
        let unreached = self.counted.filter(|_| is_object);
        unreached.is_some_and(|unreached| unreached.explains(self.graph.address(from), object))
    }

    fn kind_of(&mut self, start: u64) -> Kind {
        self.native.kind(self.copy, start)
    }

    pub fn contains_object(&mut self, chunk: Chunk) -> bool {
        let python = self.python.as_deref_mut();
        python.is_some_and(|python| object_in(self.copy, python, chunk).is_some())
    }
}
