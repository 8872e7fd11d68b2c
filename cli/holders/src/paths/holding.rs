//! The graph with the blocks behind its nodes, without references that are known to be stale.
//!
//! A word of native memory, of a C object or of an executing frame may be what a previous owner left there. If the count of a
//! Python object equals the references that are certain, such words are no references to it.

use culeak::snapshot::Class;

use crate::bits::Bits;
use crate::findings::{Explanation, Findings};
use crate::graph::dominators::Links;
use crate::graph::{BlockEdge, Graph, NodeId, NodeKind, Pairs, Phase, Root};
use crate::{Block, Map, Set};

/// Finds the objects to which only certain references lead, and adds the other references to them to those that are stale.
pub(super) fn explained(searched: &mut Findings) -> Set<NodeId> {
    let graph = &searched.graph;
    let Some(python) = searched.python.as_ref().filter(|_| !graph.doubtful.is_empty()) else {
        return Set::default();
    };
    let is_root = |node: NodeId| graph.kind(node) == NodeKind::Root;
    // Certain references, apart from those of roots, which may be borrowed.
    let mut certain: Map<NodeId, u64> = Map::default();
    let mut wanted = Bits::new(graph.len());
    for &(_, to) in &graph.doubtful {
        certain.insert(to, 0);
        wanted.set(to.0 as usize);
    }
    for (_, to) in graph.references().filter(|(from, _)| !is_root(*from)) {
        if wanted.get(to.0 as usize)
            && let Some(count) = certain.get_mut(&to)
        {
            *count += 1;
        }
    }
    let mut pairs: Map<(NodeId, NodeId), u64> = Map::default();
    for &(from, to) in &graph.doubtful {
        *pairs.entry((from, to)).or_default() += 1;
        if let Some(count) = certain.get_mut(&to).filter(|_| !is_root(from)) {
            *count = count.saturating_sub(1);
        }
    }
    let count = |to: NodeId| python.count(searched.copy, graph.address(to));
    certain.retain(|to, certain| *certain >= count(*to));
    pairs.retain(|(_, to), _| certain.contains_key(to));
    // A frame may refer to an object by a variable and by a slot.
    let sources: Set<NodeId> = pairs.keys().map(|(from, _)| *from).collect();
    let of_sources = (sources.into_iter()).flat_map(|from| graph.targets(from).iter().map(move |to| (from, *to)));
    for pair in of_sources.chain(graph.late.iter().copied()) {
        if let Some(rest) = pairs.get_mut(&pair) {
            *rest = rest.wrapping_sub(1);
        }
    }
    for ((from, to), _) in pairs.into_iter().filter(|(_, rest)| *rest == 0) {
        searched.stale.add(from, to);
    }
    certain.into_keys().collect()
}

/// The graph with the blocks behind its nodes.
pub(super) struct Holding<'g> {
    graph: &'g Graph,
    /// References that hold nothing.
    stale: &'g Pairs,
    /// What is garbage is garbage for certain.
    is_sure: bool,
    nodes: usize,
    blocks: usize,
    /// The nodes with edges.
    holds: Bits,
    /// For a node, where its part of the edges begins.
    firsts: Map<u32, u32>,
    /// Blocks, and what was followed late; sorted by node.
    edges: Vec<(u32, u32)>,
}

impl<'g> Holding<'g> {
    pub fn new(searched: &'g Findings, blocks: &[Block]) -> Holding<'g> {
        let (graph, found, stale) = (&searched.graph, &searched.found, &searched.stale);
        let nodes = graph.len();
        let mut holds = Bits::new(nodes);
        // The records of an allocator point to all of its blocks.
        let is_holder = |edge: &BlockEdge| found[edge.block as usize].last == (edge.node, edge.edge);
        let is_record = |edge: &BlockEdge| edge.weak && blocks[edge.block as usize].of_torch && !is_holder(edge);
        let is_sure = searched.garbage.is_stable;
        let is_stale = |edge: &BlockEdge| is_late(graph.phase(edge.node), found[edge.block as usize].phase, is_sure);
        let doubtful = doubtful(searched, blocks);
        // What frees a block has its start; a word of native memory leads into it by chance more often.
        let is_inner = |edge: &BlockEdge| {
            let found = &found[edge.block as usize];
            edge.interior && !found.interior && !found.possibly && graph.kind(edge.node) == NodeKind::Native
        };
        let is_noted = |edge: &BlockEdge| {
            let is_certain = edge.weak && !found[edge.block as usize].possibly;
            is_certain && is_noted_by_libraries(graph, edge.node)
        };
        let holds_nothing =
            |edge: &BlockEdge| edge.unusual || is_record(edge) || is_stale(edge) || is_inner(edge) || is_noted(edge);
        let counts = |edge: &&BlockEdge| !holds_nothing(edge) && !doubtful[edge.block as usize];
        let to_blocks = graph.block_edges.iter().filter(counts);
        let mut edges: Vec<(u32, u32)> = to_blocks.map(|edge| (edge.node.0, nodes as u32 + edge.block)).collect();
        let is_stale = |from: NodeId, to: NodeId| leads_back(graph, from, to, is_sure) || stale.has(from, to);
        let late = graph.late.iter().filter(|(from, to)| !is_stale(*from, *to));
        edges.extend(late.map(|(from, to)| (from.0, to.0)));
        edges.sort_unstable();
        // Of a root, each word is a variable.
        edges.dedup_by(|a, b| a == b && graph.kind(NodeId(a.0)) != NodeKind::Root);
        let mut firsts = Map::default();
        for (place, (node, _)) in edges.iter().enumerate() {
            holds.set(*node as usize);
            firsts.entry(*node).or_insert(place as u32);
        }
        Holding {
            graph,
            stale,
            is_sure,
            nodes,
            blocks: blocks.len(),
            holds,
            firsts,
            edges,
        }
    }

    /// Whether a reference that was found in the order of the scan holds nothing.
    #[inline]
    fn is_useless(&self, from: NodeId, to: NodeId) -> bool {
        leads_back(self.graph, from, to, self.is_sure) || self.stale.has(from, to)
    }
}

/// Whether the path to a node begins in memory that may belong to the CUDA driver or to one of its libraries. Longer paths than 64 steps are
/// not followed.
fn is_noted_by_libraries(graph: &Graph, node: NodeId) -> bool {
    let mut near = graph.way_up(node).take(64);
    let root = near.find(|node| graph.kind(*node) == NodeKind::Root);
    let root = root.and_then(|root| graph.root(root));
    matches!(root, Some(Root::Native(root)) if root.sort.is_doubtful())
}

/// What was searched last, such as native stacks and the interpreter's lists of free objects, has many stale words. They mean
/// nothing where they lead to what has a holder. Garbage does not keep that either: the collector frees it.
fn is_late(from: Phase, to: Phase, is_garbage_sure: bool) -> bool {
    let is_garbage = is_garbage_sure && from == Phase::Garbage;
    (from >= Phase::Stacks || is_garbage) && to < from
}

/// Which blocks of a process with Python are held possibly, and freed by nothing for certain: only words that were followed last
/// lead to them, or only the last word of a chunk does and the Python object behind it has a block of its own. Tensors have
/// counts instead, and what begins at the end of a block that the object has is most often its own, too.
fn doubtful(searched: &Findings, blocks: &[Block]) -> Vec<bool> {
    let (graph, found) = (&searched.graph, &searched.found);
    let is_held = |(found, block): &(&Explanation, &Block)| found.class == Class::Held && !block.of_torch;
    let is_possible = |found: &Explanation| found.possibly && (found.phase == Phase::Rest || found.note.is_none());
    let held = || found.iter().zip(blocks).filter(is_held);
    if searched.python.is_none() || !held().any(|(found, _)| is_possible(found)) {
        return vec![false; blocks.len()];
    }
    // The memory of an array is a few steps away from its object; the nodes of a long chain are not.
    let object_behind = |found: &Explanation| {
        let mut near = graph.way_up(found.last.0).take(64);
        near.find(|node| graph.kind(*node) == NodeKind::Python)
    };
    let certain = held().filter(|(found, _)| !found.possibly);
    let owners: Set<NodeId> = certain.filter_map(|(found, _)| object_behind(found)).collect();
    let is_doubtful = |each: (&Explanation, &Block)| {
        let is_second = || object_behind(each.0).is_some_and(|object| owners.contains(&object));
        is_held(&each) && is_possible(each.0) && (each.0.phase == Phase::Rest || is_second())
    };
    found.iter().zip(blocks).map(is_doubtful).collect()
}

/// Whether an edge is of no use by the phases of its ends. Of a Python object, the count shows which words of a stack are stale.
fn leads_back(graph: &Graph, from: NodeId, to: NodeId, is_garbage_sure: bool) -> bool {
    let phase = graph.phase(from);
    let is_counted = phase == Phase::Stacks && graph.kind(to) == NodeKind::Python;
    is_late(phase, graph.phase(to), is_garbage_sure) && !is_counted
}

impl Links for Holding<'_> {
    fn nodes(&self) -> usize {
        self.nodes + self.blocks
    }

    #[inline]
    fn target(&self, node: u32, nth: usize) -> Option<u32> {
        if node as usize >= self.nodes {
            return None;
        }
        let targets = self.graph.targets(NodeId(node));
        if let Some(target) = targets.get(nth) {
            // Such an edge is replaced by one that changes nothing.
            let from = NodeId(node);
            return Some(if self.is_useless(from, *target) { node } else { target.0 });
        }
        if !self.holds.get(node as usize) {
            return None;
        }
        let place = *self.firsts.get(&node)? as usize + nth - targets.len();
        let (from, target) = *self.edges.get(place)?;
        (from == node).then_some(target)
    }

    #[inline]
    fn leads_to(&self, node: u32, wanted: impl Fn(u32) -> bool) -> bool {
        if node as usize >= self.nodes {
            return false;
        }
        // Few targets are wanted, so that is asked first.
        let targets = self.graph.targets(NodeId(node));
        let mut found = targets.iter().filter(|target| wanted(target.0));
        if found.any(|target| !self.is_useless(NodeId(node), *target)) {
            return true;
        }
        let of_node = || (0..).map_while(|nth| self.target(node, targets.len() + nth));
        self.holds.get(node as usize) && of_node().any(wanted)
    }
}
