//! Nodes and edges, in a few bytes each: a process has tens of millions.
//!
//! ```text
//! node ─ address, kind, parent, edge of the parent       30 bytes; the parents form the tree of shortest paths
//!   └──► targets                                          4 bytes per edge, all that were found, in the order of the scan
//! granule of the copy (16 bytes) ─► node                  4 bytes; other addresses are in a map
//! block ─► block edges                                    which nodes point to it
//! ```
//!
//! Node 0 is a placeholder. A node exists from the first reference to it; its parent may improve until it is scanned.

pub mod dominators;
mod split;

use crate::bits::Bits;
use crate::copy::{Image, prefetch};
use crate::native::NativeRoot;
use crate::{Map, Set};

/// Where the walk begins in Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PythonRoot {
    /// `sys.modules`, `sys`, `builtins`, the interpreter's dictionary.
    Interpreter(&'static str),
    /// Of a thread.
    Thread { thread: u64, main: bool, part: ThreadPart },
    /// The function that handles this signal.
    Signal(u32),
}

/// What of a thread a root is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadPart {
    /// From 3.11 on frames are not objects (`Rooted::is_frame`).
    Frame,
    Locals,
    Context,
    Exception,
    State,
    /// The function of `sys.settrace` or `sys.setprofile`.
    Hook(&'static str),
}

/// What refers: which field of an object, and its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Edge(u32);

/// What an edge is. The index is a position in an array, a field's offset, or a number of a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum EdgeKind {
    /// Element of a list, tuple or deque.
    Item = 1,
    /// Value of a dictionary; the index is that of its entry.
    Value,
    /// Key of a dictionary.
    Key,
    /// Element of a set.
    Member,
    /// A field with a name; the index depends on the type.
    Field,
    /// The instance dictionary.
    Dictionary,
    /// An attribute stored in the object; the index is that of its name.
    Attribute,
    /// A local variable of a frame.
    Local,
    /// The value stack of a frame.
    Stack,
    /// The object's class.
    Class,
    /// A word of a C object or of native memory; the index is its offset in words.
    Word,
    /// From a root.
    Root,
}

const INDEX_BITS: u32 = 27;

impl Edge {
    /// Indices beyond 2^27 - 1 are stored as that.
    pub fn new(kind: EdgeKind, index: u64) -> Edge {
        let index = index.min((1 << INDEX_BITS) - 1) as u32;
        Edge((kind as u32) << INDEX_BITS | index)
    }

    /// From the word at this place of an object or of native memory.
    pub fn word(place: u64) -> Edge {
        Edge::new(EdgeKind::Word, place)
    }

    pub fn kind(self) -> EdgeKind {
        use EdgeKind::*;
        const KINDS: [EdgeKind; 12] = [
            Item, Value, Key, Member, Field, Dictionary, Attribute, Local, Stack, Class, Word, Root,
        ];
        KINDS[((self.0 >> INDEX_BITS) as usize).saturating_sub(1).min(KINDS.len() - 1)]
    }

    pub fn index(self) -> u64 {
        u64::from(self.0 & ((1 << INDEX_BITS) - 1))
    }
}

/// Number of a node; 0 means that there is no node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct NodeId(pub u32);

impl NodeId {
    pub const NONE: NodeId = NodeId(0);

    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    fn place(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum NodeKind {
    /// Its address is meaningless.
    #[default]
    Root,
    /// A Python object.
    Python,
    /// An `_PyInterpreterFrame`.
    Frame,
    /// A heap chunk; the address is its start.
    Native,
}

/// What a path begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    Python(PythonRoot),
    /// The index of an edge from it is that of a word of its range; for registers, that of the register.
    Native(NativeRoot),
    /// Its targets are objects that only refer to each other.
    Garbage,
    /// Its targets are objects whose reference count exceeds the references to them.
    Counted,
    /// Memory of an allocator that is not known; nothing was found that points to it.
    Heap,
}

/// How far the search had come when a node or a block was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum Phase {
    /// Seen, but not reached yet.
    #[default]
    None,
    /// From the roots of Python.
    Python,
    /// From globals and thread-local variables of native code.
    Globals,
    /// From objects that only refer to each other.
    Garbage,
    /// From Python objects whose count exceeds the references to them.
    Counted,
    /// From stacks and registers.
    Stacks,
    /// From the interpreter's state, or through native memory that may be stale: long chains of unnamed chunks, large
    /// unnamed chunks.
    Rest,
}

/// A node that points to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockEdge {
    /// Index into the blocks.
    pub block: u32,
    pub node: NodeId,
    pub edge: Edge,
    /// It points into the block, not to its start.
    pub interior: bool,
    /// It does not hold the block for certain: a stale word, or a record of an allocator.
    pub weak: bool,
    /// Such blocks are usually pointed to from elsewhere, so the word may be stale: what frees the block is not known.
    pub unusual: bool,
}

/// References from one node to another that are asked for often. Few nodes have one.
#[derive(Default)]
pub struct Pairs {
    /// The nodes that they begin at.
    from: Bits,
    all: Set<(NodeId, NodeId)>,
}

impl Pairs {
    #[inline]
    pub fn has(&self, from: NodeId, to: NodeId) -> bool {
        self.from.get(from.0 as usize) && self.all.contains(&(from, to))
    }

    pub fn add(&mut self, from: NodeId, to: NodeId) {
        self.from.grow(from.0 as usize + 1);
        self.from.set(from.0 as usize);
        self.all.insert((from, to));
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Node {
    address: u64,
    parent: NodeId,
    edge: Edge,
    /// Place of its targets.
    first: u32,
    count: u32,
}

const _: () = assert!(size_of::<Node>() == 24, "a process has tens of millions of objects");

/// What a node is, and where it is in the search.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct State {
    pub kind: NodeKind,
    pub phase: Phase,
    /// The path may be stale.
    pub is_weak: bool,
    pub is_waiting: bool,
    /// Of the path, modulo 16.
    pub cost: u8,
    /// Unnamed chunks in a row that the path ends with, the node included; at most 15.
    pub unnamed: u8,
}

const _: () = assert!(size_of::<State>() == 6, "a process has tens of millions of objects");

/// All nodes and edges that the search of one copy found.
#[derive(Default)]
pub struct Graph {
    nodes: Vec<Node>,
    states: Vec<State>,
    targets: Vec<NodeId>,
    /// The node whose targets are added.
    scanning: NodeId,
    /// References that are not among [`Graph::targets`], because they were followed after their node had been scanned.
    pub(crate) late: Vec<(NodeId, NodeId)>,
    /// Words that point to a Python object, and slots of executing frames: the words may be stale. Among the other references, too.
    pub(crate) doubtful: Vec<(NodeId, NodeId)>,
    /// The parts of native roots that have become roots, each of one variable.
    parts: Map<NodeId, Vec<split::Part>>,
    variables: Vec<NodeId>,
    /// Numbers of nodes. Memory of zeros costs nothing until it is written.
    by_granule: Vec<u32>,
    elsewhere: Map<u64, NodeId>,
    /// The best first.
    pub(crate) roots: Vec<(NodeId, Root)>,
    /// In the order in which they were found.
    pub(crate) block_edges: Vec<BlockEdge>,
}

impl Graph {
    pub fn new(copy: &Image) -> Graph {
        Graph {
            nodes: vec![Node::default()],
            states: vec![State::default()],
            by_granule: vec![0; copy.granules()],
            ..Graph::default()
        }
    }

    /// Starts to load what [`Graph::find`] reads of this granule into the processor's cache.
    #[inline]
    pub(crate) fn prefetch(&self, granule: usize) {
        prefetch(self.by_granule.as_ptr().wrapping_add(granule));
    }

    /// The numbers of all nodes.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (1..self.nodes.len() as u32).map(NodeId)
    }

    /// One more than the largest number of a node.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.len() <= 1
    }

    pub fn address(&self, node: NodeId) -> u64 {
        self.nodes[node.place()].address
    }

    pub fn kind(&self, node: NodeId) -> NodeKind {
        self.states[node.place()].kind
    }

    /// The phase in which it was reached; [`Phase::None`] if it was not, so has no parent.
    pub fn phase(&self, node: NodeId) -> Phase {
        self.states[node.place()].phase
    }

    /// A part of the path to it may be stale.
    pub fn is_weak(&self, node: NodeId) -> bool {
        self.states[node.place()].is_weak
    }

    /// The number of unnamed chunks in a row that the path to it ends with.
    pub(crate) fn unnamed(&self, node: NodeId) -> u8 {
        self.states[node.place()].unnamed
    }

    /// The previous node on the shortest path to it, and which field of that refers to it; `None` for a root.
    pub fn parent(&self, node: NodeId) -> Option<(NodeId, Edge)> {
        let node = &self.nodes[node.place()];
        (!node.parent.is_none()).then_some((node.parent, node.edge))
    }

    /// The nodes on the shortest path to this one, from itself to the root.
    pub(crate) fn way_up(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(node), |node| self.parent(*node).map(|parent| parent.0))
    }

    /// Whether the shortest path to it goes through the other node, or is longer than the number of steps left.
    pub(crate) fn is_below(&self, node: NodeId, other: NodeId, steps: &mut u64) -> bool {
        for at in self.way_up(node) {
            if *steps == 0 || at == other {
                return true;
            }
            *steps -= 1;
        }
        false
    }

    /// The first Python object on the path to this node, the node included.
    pub(crate) fn first_object(&self, node: NodeId) -> Option<NodeId> {
        let is_object = |node: &NodeId| matches!(self.kind(*node), NodeKind::Python | NodeKind::Frame);
        self.way_up(node).filter(is_object).last()
    }

    /// Replaces the parent of a node that has one. The new parent is not below it.
    pub(crate) fn set_parent(&mut self, node: NodeId, parent: NodeId, edge: Edge) {
        let node = &mut self.nodes[node.place()];
        (node.parent, node.edge) = (parent, edge);
    }

    /// Everything that it was found to refer to, in the order of its fields; repetitions are possible.
    pub fn targets(&self, node: NodeId) -> &[NodeId] {
        let node = &self.nodes[node.place()];
        let first = node.first as usize;
        &self.targets[first..first + node.count as usize]
    }

    /// All references.
    pub fn references(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        let targets = |from| self.targets(from).iter().map(move |to| (from, *to));
        self.nodes().flat_map(targets).chain(self.late.iter().copied())
    }

    pub fn root(&self, node: NodeId) -> Option<&Root> {
        let place = self.roots.binary_search_by_key(&node, |root| root.0).ok()?;
        Some(&self.roots[place].1)
    }

    /// The node at this address.
    #[inline]
    pub fn find(&self, copy: &Image, address: u64) -> Option<NodeId> {
        let node = match copy.granule(address) {
            Some(granule) if address & 15 == 0 => NodeId(*self.by_granule.get(granule)?),
            _ => *self.elsewhere.get(&address)?,
        };
        (!node.is_none()).then_some(node)
    }

    /// As above, if it was reached.
    #[inline]
    pub(crate) fn reached(&self, copy: &Image, address: u64) -> Option<NodeId> {
        self.find(copy, address).filter(|node| self.phase(*node) != Phase::None)
    }

    pub(crate) fn add_root(&mut self, root: Root, phase: Phase) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(Node::default());
        let kind = NodeKind::Root;
        self.states.push(State {
            kind,
            phase,
            ..State::default()
        });
        self.roots.push((id, root));
        id
    }

    /// The paths from this root may be stale.
    pub(crate) fn mark_weak(&mut self, root: NodeId) {
        self.states[root.place()].is_weak = true;
    }

    /// A node without a parent; `None` if there are too many.
    pub(crate) fn add(&mut self, copy: &Image, address: u64, kind: NodeKind) -> Option<NodeId> {
        let id = NodeId(u32::try_from(self.nodes.len()).ok()?);
        match copy.granule(address) {
            Some(granule) if address & 15 == 0 => self.by_granule[granule] = id.0,
            _ => {
                self.elsewhere.insert(address, id);
            }
        }
        self.nodes.push(Node {
            address,
            ..Node::default()
        });
        self.states.push(State {
            kind,
            ..State::default()
        });
        Some(id)
    }

    /// Gives the node a parent, and a place in the search. It waits until it is scanned, see [`Graph::begin_scan`].
    pub(crate) fn place(&mut self, id: NodeId, parent: NodeId, edge: Edge, state: State) {
        let node = &mut self.nodes[id.place()];
        (node.parent, node.edge) = (parent, edge);
        self.states[id.place()] = State {
            kind: self.states[id.place()].kind,
            is_waiting: true,
            ..state
        };
    }

    /// The cost of its path, if it waits to be scanned.
    #[inline]
    pub(crate) fn waits_at(&self, node: NodeId) -> Option<u8> {
        let state = self.states[node.place()];
        state.is_waiting.then_some(state.cost)
    }

    /// The following targets of this node are in order.
    pub(crate) fn begin_scan(&mut self, node: NodeId) {
        self.scanning = node;
        self.states[node.place()].is_waiting = false;
        self.nodes[node.place()].first = self.targets.len() as u32;
    }

    #[inline]
    pub(crate) fn add_target(&mut self, from: NodeId, target: NodeId) {
        if from != self.scanning {
            self.late.push((from, target));
        } else if self.targets.len() < u32::MAX as usize {
            self.targets.push(target);
        }
    }

    /// As [`Graph::add_target`], to a Python object. `is_doubtful`: by a word that may be stale.
    #[inline]
    pub(crate) fn add_reference(&mut self, from: NodeId, target: NodeId, is_doubtful: bool) {
        self.add_target(from, target);
        if is_doubtful {
            self.doubtful.push((from, target));
        }
    }

    pub(crate) fn end_scan(&mut self, node: NodeId) {
        self.scanning = NodeId::NONE;
        let node = &mut self.nodes[node.place()];
        node.count = self.targets.len() as u32 - node.first;
    }

    pub(crate) fn add_block_edge(&mut self, edge: BlockEdge) {
        self.block_edges.push(edge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_followed_after_the_scan_are_kept_apart() {
        let mut graph = Graph {
            nodes: vec![Node::default()],
            states: vec![State::default()],
            ..Graph::default()
        };
        let [a, b, c] = [0; 3].map(|_| graph.add_root(Root::Heap, Phase::Rest));
        graph.begin_scan(a);
        graph.add_target(a, b);
        graph.end_scan(a);
        graph.add_target(a, c);
        assert_eq!((graph.targets(a), &graph.late[..]), (&[b][..], &[(a, c)][..]));
    }

    #[test]
    fn an_edge_keeps_its_kind_and_index() {
        for (kind, index) in [
            (EdgeKind::Item, 0),
            (EdgeKind::Stack, 77),
            (EdgeKind::Root, (1 << 27) - 1),
        ] {
            let edge = Edge::new(kind, index);
            assert_eq!((edge.kind(), edge.index()), (kind, index));
        }
    }
}
