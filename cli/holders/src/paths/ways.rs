//! The references to what several refer to, and their names: `__main__.keep` and `__main__.cache['last']`.
//!
//! The graph has only the shortest path to each node. So what refers to a shared node is read again here.
//!
//! ```text
//! optimizer ─┬─ state ──► parameter       named: optimizer.state and optimizer.groups[0]. That both are attributes of one
//!            └─ groups ─►     │           object does not say why to drop it frees nothing, so the holder of `groups`
//! sys.kept ────── groups ─► ──┘           from outside is named, too
//! ```

use std::ops::Range;

use culeak::snapshot::RootKind;

use super::names::{Names, Place};
use super::retained::{may_have_name, words_of};
use super::text;
use super::trees::UNCOLLECTED;
use crate::counted;
use crate::graph::dominators::Tree;
use crate::graph::{Edge, EdgeKind, NodeId, NodeKind, Root};
use crate::native::RootSort;
use crate::python::Sort;
use crate::{Block, Map, Set};

/// References to one node that are looked at.
const LOOKED_AT: usize = 32;
/// Names of references to one node that are reported.
const NAMED: usize = 4;
/// Names of holders from outside, besides those.
const OUTSIDE: usize = 2;
/// Shared holders of one node that are looked at.
const BETWEEN: usize = 64;
/// References, and words of roots, that are read again.
const BUDGET: usize = 20_000_000;

/// The references to shared places of the tree, the shortest path first.
#[derive(Default)]
pub(super) struct Ways {
    by_place: Map<u32, Vec<(NodeId, Edge)>>,
    /// The addresses of the shared nodes and blocks, and their places; by address.
    wanted: Vec<(Range<u64>, u32)>,
    /// What was looked at.
    steps: usize,
}

/// What refers to a shared object.
pub(super) struct Shared {
    /// Different names, at least one.
    pub names: Vec<String>,
    pub root: RootKind,
    /// How many more there are.
    pub more: u64,
}

impl Ways {
    /// Finds the references to these places.
    pub fn find(names: &mut Names, tree: &Tree, places: &[u32], explained: &Set<NodeId>, blocks: &[Block]) -> Ways {
        let nodes = names.searched.graph.len();
        let mut ways = Ways::default();
        // Each source with what it refers to.
        let mut sources: Vec<(NodeId, u32)> = Vec::new();
        for &place in places {
            let node = tree.nodes[place as usize].node;
            let (range, first) = match (node as usize).checked_sub(nodes) {
                Some(block) => {
                    let Block { address, bytes, .. } = blocks[block];
                    let last = names.searched.found[block].last;
                    (address..address.saturating_add(bytes), Some(last))
                }
                None => (range_of(names, NodeId(node)), names.searched.graph.parent(NodeId(node))),
            };
            ways.wanted.push((range, place));
            ways.by_place.insert(place, first.into_iter().collect());
            let holders = tree.holders(place).take(LOOKED_AT);
            sources.extend(holders.map(|holder| (NodeId(tree.nodes[holder as usize].node), place)));
        }
        ways.wanted.sort_unstable_by_key(|(range, _)| range.start);
        sources.sort_unstable();
        sources.dedup();
        for group in sources.chunk_by(|a, b| a.0 == b.0) {
            ways.source(names, group, explained, tree);
        }
        ways
    }

    /// The different names of the references to a place; `None` if none has a name.
    pub fn shared(&mut self, names: &mut Names, tree: &Tree, place: u32, budget: &mut usize) -> Option<Shared> {
        let node = tree.nodes[place as usize].node;
        let nodes = names.searched.graph.len();
        let object = ((node as usize) < nodes).then_some(NodeId(node));
        let object = object.filter(|node| names.searched.graph.kind(*node) == NodeKind::Python);
        let mut shared = Shared {
            names: Vec::new(),
            root: RootKind::None,
            more: 0,
        };
        // The nodes on the paths of all references with a name.
        let mut on_paths: Set<NodeId> = Set::default();
        for &(from, edge) in self.by_place.get(&place)? {
            let Some((name, root)) = name(names, from, edge, object, budget) else {
                continue;
            };
            let path = names.path(from, budget);
            on_paths.extend(path.into_iter().map(|(node, _)| node));
            on_paths.insert(from);
            // A variable of native code has several words.
            if shared.names.contains(&name) {
                continue;
            }
            if shared.names.len() < NAMED {
                shared.names.push(name);
            } else {
                shared.more += 1;
            }
            if shared.names.len() == 1 {
                shared.root = root;
            }
        }
        if shared.names.is_empty() {
            return None;
        }
        let all = tree.holders(place).count();
        if all > LOOKED_AT {
            shared.more = shared.more.max((all - shared.names.len()) as u64);
        }
        let most = shared.names.len() + OUTSIDE;
        for (holder, at) in outside(tree, place, nodes, &on_paths) {
            match name_outside(names, holder, at, budget, &mut self.steps) {
                Some(name) if shared.names.contains(&name) => {}
                Some(name) if shared.names.len() < most => shared.names.push(name),
                _ => shared.more += 1,
            }
        }
        Some(shared)
    }
}

/// The references by which a shared place is held from outside of the holders that are on these paths: the node that refers,
/// and the node that it refers to.
fn outside(tree: &Tree, place: u32, nodes: usize, on_paths: &Set<NodeId>) -> Vec<(NodeId, NodeId)> {
    let node = |place: u32| NodeId(tree.nodes[place as usize].node);
    let around = tree.nodes[place as usize].parent;
    let mut open = vec![place];
    let mut seen: Set<u32> = open.iter().copied().collect();
    let mut found = Vec::new();
    let mut next = 0;
    while let Some(&at) = open.get(next) {
        next += 1;
        for holder in tree.holders(at).take(LOOKED_AT) {
            if Some(holder) == around {
                // A reference to the place itself has been read.
                if at != place && !on_paths.contains(&node(at)) {
                    found.push((node(holder), node(at)));
                }
                continue;
            }
            let mut outermost = holder;
            while let Some(parent) = tree.nodes[outermost as usize].parent
                && Some(parent) != around
            {
                outermost = parent;
            }
            if seen.len() > BETWEEN || !seen.insert(outermost) {
                continue;
            }
            if tree.holders(outermost).next().is_some() {
                open.push(outermost);
            } else if !on_paths.contains(&node(outermost)) {
                found.push((node(holder), node(at)));
            }
        }
    }
    // A block is no node.
    found.retain(|(holder, _)| (holder.0 as usize) < nodes);
    found
}

/// What to call the reference of a holder from outside. `None`: it has no name.
fn name_outside(
    names: &mut Names,
    holder: NodeId,
    at: NodeId,
    budget: &mut usize,
    steps: &mut usize,
) -> Option<String> {
    let path = names.path(holder, budget);
    let graph = &names.searched.graph;
    let is_node = (at.0 as usize) < graph.len();
    let is_object = |node: NodeId| graph.kind(node) == NodeKind::Python;
    match graph.root(path.first().map_or(holder, |(root, _)| *root))? {
        Root::Garbage => return Some(UNCOLLECTED.to_owned()),
        Root::Counted => {
            let mut objects = path.iter().skip(1).map(|(node, _)| *node).chain([holder, at]);
            let object = objects.find(|node| (node.0 as usize) < graph.len() && is_object(*node))?;
            return Some(format!("references to {} that were not found", names.detail(object)));
        }
        _ => {}
    }
    let parent = if is_node { graph.parent(at) } else { None };
    let (to, (from, edge)) = match parent.filter(|(parent, _)| *parent == holder) {
        Some(reference) => (at, reference),
        // The shortest path to it is another one.
        None => match is_node.then(|| edge_to(names, holder, at, steps)).flatten() {
            Some(edge) => (at, (holder, edge)),
            None => (holder, names.searched.graph.parent(holder)?),
        },
    };
    let object = Some(to).filter(|to| names.searched.graph.kind(*to) == NodeKind::Python);
    name(names, from, edge, object, budget).map(|(name, _)| name)
}

fn edge_to(names: &mut Names, from: NodeId, to: NodeId, steps: &mut usize) -> Option<Edge> {
    let mut left = BUDGET.checked_sub(*steps).filter(|left| *left > 0)? as u64;
    let is_root = names.searched.graph.kind(from) == NodeKind::Root;
    let edge = (!is_root).then(|| counted::edge(names.searched, from, to, &mut left));
    *steps = BUDGET - left as usize;
    edge.flatten()
}

impl Ways {
    fn add(&mut self, place: u32, from: NodeId, edge: Edge) {
        let ways = self.by_place.entry(place).or_default();
        if ways.len() < LOOKED_AT && !ways.contains(&(from, edge)) {
            ways.push((from, edge));
        }
    }

    /// Adds the references of one node to these places.
    fn source(&mut self, names: &mut Names, group: &[(NodeId, u32)], explained: &Set<NodeId>, tree: &Tree) {
        let from = group[0].0;
        let is_wanted = |place: u32| group.binary_search(&(from, place)).is_ok();
        match names.searched.graph.kind(from) {
            NodeKind::Native => {
                for &(_, place) in group {
                    self.add(place, from, Edge::word(0));
                }
            }
            NodeKind::Root => {
                let root = names.searched.graph.root(from).cloned();
                let range = match root {
                    Some(Root::Native(root)) if root.sort != RootSort::Registers => Some(root.range),
                    _ => None,
                };
                let Some(range) = range else {
                    for &(_, place) in group {
                        let node = NodeId(tree.nodes[place as usize].node);
                        let graph = &names.searched.graph;
                        let is_node = (node.0 as usize) < graph.len();
                        if !is_node || graph.parent(node).is_none_or(|(parent, _)| parent != from) {
                            self.add(place, from, Edge::new(EdgeKind::Root, 0));
                        }
                    }
                    return;
                };
                for (nth, at) in range.step_by(8).enumerate() {
                    self.steps += 1;
                    if self.steps > BUDGET {
                        return;
                    }
                    let word = names.searched.copy.word(at);
                    if let Some(place) = self.place_of(word).filter(|place| is_wanted(*place)) {
                        self.add(place, from, Edge::word(nth as u64));
                    }
                }
            }
            kind @ (NodeKind::Python | NodeKind::Frame) => {
                let address = names.searched.graph.address(from);
                let copy = names.searched.copy;
                let python = names.searched.python.as_mut();
                let references = python.map(|python| python.references_of(copy, address, kind == NodeKind::Frame));
                let references = references.unwrap_or_default();
                self.steps += references.len();
                if self.steps > BUDGET {
                    return;
                }
                for reference in references {
                    let place = self.place_of(reference.target);
                    let Some(place) = place.filter(|place| is_wanted(*place)) else {
                        continue;
                    };
                    let node = tree.nodes[place as usize].node;
                    let is_doubtful = matches!(reference.sort, Sort::Word | Sort::Possible);
                    if !is_doubtful || !explained.contains(&NodeId(node)) {
                        self.add(place, from, reference.edge);
                    }
                }
            }
        }
    }

    /// The shared place that a word points to.
    fn place_of(&self, word: u64) -> Option<u32> {
        let after = self.wanted.partition_point(|(range, _)| range.start <= word);
        let (range, place) = &self.wanted[after.checked_sub(1)?];
        (word < range.end).then_some(*place)
    }
}

/// The addresses at which a node is pointed to.
fn range_of(names: &Names, node: NodeId) -> Range<u64> {
    let (graph, copy) = (&names.searched.graph, names.searched.copy);
    let address = graph.address(node);
    let chunk = match graph.kind(node) {
        NodeKind::Native => names.searched.native.chunk(copy, address),
        _ => None,
    };
    let end = chunk.map_or(address, |chunk| chunk.start.saturating_add(chunk.bytes));
    address..end.max(address + 1)
}

/// What to call a reference to a Python object, or to native memory or a block: then without the native memory before it.
fn name(
    names: &mut Names,
    from: NodeId,
    edge: Edge,
    object: Option<NodeId>,
    budget: &mut usize,
) -> Option<(String, RootKind)> {
    let mut path = names.path(from, budget);
    path.push((from, edge));
    if object.is_none() {
        while path.len() > 1 && path.last().is_some_and(|(node, _)| is_native(names, *node)) {
            path.pop();
        }
        // An object of its own that has only the pointer is no name: the reference to it is.
        while path.len() > 2 && path.last().is_some_and(|(node, edge)| is_plain(names, *node, *edge)) {
            path.pop();
        }
    }
    if matches!(
        names.searched.graph.root(path.first()?.0)?,
        Root::Garbage | Root::Counted
    ) {
        return None;
    }
    if let Some(object) = object {
        path.push((object, Edge::default()));
    }
    let (parts, words) = words_of(names, path, object.is_some());
    let mut text = words.origin;
    if words.origin_part + 1 < parts.len() || object.is_none() && words.origin_part < parts.len() {
        text::append(&mut text, &words.steps);
    }
    let is_detail = parts.last().is_some_and(|part| matches!(part.place, Place::Threads));
    (!text.is_empty() && !is_detail).then_some((text, words.root))
}

fn is_native(names: &Names, node: NodeId) -> bool {
    names.searched.graph.kind(node) == NodeKind::Native
}

/// Whether the last reference of a path is a word of an object, which has no name.
fn is_plain(names: &mut Names, node: NodeId, edge: Edge) -> bool {
    edge.kind() == EdgeKind::Word && names.searched.graph.kind(node) == NodeKind::Python && may_have_name(names, node)
}
