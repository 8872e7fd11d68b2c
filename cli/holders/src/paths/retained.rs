//! What each holder alone keeps alive, from the dominator tree of everything found.

use std::cmp::Reverse;
use std::collections::HashMap;

use culeak::snapshot::{Class, Retainer, RootKind};
use foldhash::fast::FixedState;

use super::names::{Kind, Names, Part, Place};
use super::text::{self, Style};
use crate::Block;
use crate::classes::Found;
use crate::graph::dominators::{Dominated, Links, dominators};
use crate::graph::{BlockEdge, Edge, Graph, NodeId, NodeKind, Phase, Root};
use crate::python::PythonRoot;

/// Holders that are reported.
const REPORTED: usize = 10_000;

/// Holders of less than this part of the memory are left out, unless there are few.
const LEAST: u64 = 1000;

/// References that are looked at for their names.
const BUDGET: usize = 20_000_000;

const UNCOLLECTED: &str = "uncollected cycles";

/// The retainers, parents first, and the innermost one of each block.
pub(super) fn retainers(names: &mut Names, blocks: &[Block]) -> (Vec<Retainer>, Vec<Option<usize>>) {
    let mut weights = Vec::new();
    let nodes = names.searched.graph.len();
    for (block, found) in names.searched.found.iter().enumerate() {
        if found.class != Class::Lost {
            weights.push(((nodes + block) as u32, blocks[block].bytes));
        }
    }
    let entries = entries(names);
    let holding = Holding::new(&names.searched.graph, &names.searched.found, blocks);
    let tree = dominators(&holding, &entries, &weights);
    let kept = choose(names, &tree, nodes);
    let places: Vec<u32> = kept.iter().map(|(place, ..)| *place).collect();
    let parents = parents(&tree, &places);
    let retainers = (kept.into_iter().zip(parents))
        .map(|((place, name, root), parent)| Retainer {
            name,
            root,
            parent,
            bytes: tree[place as usize].bytes,
            count: tree[place as usize].count,
        })
        .collect();
    let innermost = innermost(&tree, &places);
    let mut of_blocks = vec![None; blocks.len()];
    for (place, entry) in tree.iter().enumerate() {
        if let Some(block) = (entry.node as usize).checked_sub(nodes) {
            of_blocks[block] = innermost[place].map(|retainer| retainer as usize);
        }
    }
    (retainers, of_blocks)
}

/// For each place, the index of the innermost of these at or above it. They are places in order.
fn innermost(tree: &[Dominated], of: &[u32]) -> Vec<Option<u32>> {
    let mut all: Vec<Option<u32>> = Vec::with_capacity(tree.len());
    let mut next = 0;
    for (place, entry) in tree.iter().enumerate() {
        let is_one = of.get(next) == Some(&(place as u32));
        all.push(match is_one {
            true => Some(next as u32),
            false => entry.parent.and_then(|parent| all[parent as usize]),
        });
        next += usize::from(is_one);
    }
    all
}

/// The index of the innermost of these above each of them.
fn parents(tree: &[Dominated], of: &[u32]) -> Vec<Option<usize>> {
    let innermost = innermost(tree, of);
    let above = |place: u32| innermost[tree[place as usize].parent? as usize];
    of.iter().map(|&place| above(place).map(|nth| nth as usize)).collect()
}

/// Where the graph is entered: roots, and the variables of modules, because a module is no holder that one could drop.
fn entries(names: &mut Names) -> Vec<u32> {
    let graph = &names.searched.graph;
    let mut entries = Vec::new();
    let mut variables: Vec<NodeId> = Vec::new();
    for (node, root) in graph.roots() {
        match root {
            Root::Heap => continue,
            Root::Python(PythonRoot::Interpreter("sys.modules")) => {
                let all = graph.targets(*node);
                variables.extend(all);
                variables.extend(all.iter().flat_map(|modules| graph.targets(*modules)));
            }
            Root::Python(PythonRoot::Interpreter("sys" | "builtins")) => variables.extend(graph.targets(*node)),
            _ => {}
        }
        entries.push(node.0);
    }
    for node in variables {
        entries.push(node.0);
        if names.kind(node) == Kind::Module {
            let targets = names.searched.graph.targets(node).to_vec();
            entries.extend(
                targets
                    .iter()
                    .filter(|target| names.kind(**target) == Kind::Dict)
                    .map(|target| target.0),
            );
        }
    }
    entries.sort_unstable();
    entries.dedup();
    entries
}

/// The graph with the blocks behind its nodes.
struct Holding<'g> {
    graph: &'g Graph,
    nodes: usize,
    blocks: usize,
    holds: Vec<u64>,
    /// For a node, where its part of the edges begins.
    firsts: HashMap<u32, u32, FixedState>,
    /// Blocks, and what was followed late; sorted by node.
    edges: Vec<(u32, u32)>,
}

impl<'g> Holding<'g> {
    fn new(graph: &'g Graph, found: &[Found], blocks: &[Block]) -> Holding<'g> {
        let nodes = graph.len();
        let mut holds = vec![0; nodes.div_ceil(64)];
        // The records of an allocator point to all of its blocks.
        let is_record = |edge: &BlockEdge| edge.weak && blocks[edge.block as usize].of_torch;
        let is_stale =
            |edge: &BlockEdge| graph.phase(edge.node) == Phase::Rest && found[edge.block as usize].phase < Phase::Rest;
        let counts = |edge: &&BlockEdge| !is_record(edge) && !is_stale(edge);
        let mut edges: Vec<(u32, u32)> = graph
            .block_edges()
            .iter()
            .filter(counts)
            .map(|edge| (edge.node.0, nodes as u32 + edge.block))
            .collect();
        let is_stale = |from: NodeId, to: NodeId| graph.phase(from) == Phase::Rest && graph.phase(to) < Phase::Rest;
        let late = graph.late_targets().iter().filter(|(from, to)| !is_stale(*from, *to));
        edges.extend(late.map(|(from, to)| (from.0, to.0)));
        edges.sort_unstable();
        edges.dedup();
        let mut firsts = HashMap::default();
        for (place, (node, _)) in edges.iter().enumerate() {
            holds[*node as usize / 64] |= 1 << (node % 64);
            firsts.entry(*node).or_insert(place as u32);
        }
        Holding {
            graph,
            nodes,
            blocks: blocks.len(),
            holds,
            firsts,
            edges,
        }
    }
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
            // What was searched last, such as the interpreter's lists of free objects, has many stale words. Where they lead
            // to an object that has a holder, the edge is replaced by one that changes nothing.
            let is_stale = self.graph.phase(NodeId(node)) == Phase::Rest && self.graph.phase(*target) < Phase::Rest;
            return Some(if is_stale { node } else { target.0 });
        }
        if self.holds[node as usize / 64] >> (node % 64) & 1 == 0 {
            return None;
        }
        let place = *self.firsts.get(&node)? as usize + nth - targets.len();
        let (from, target) = *self.edges.get(place)?;
        (from == node).then_some(target)
    }
}

/// The places of the holders that are reported, with their names.
fn choose(names: &mut Names, tree: &[Dominated], nodes: usize) -> Vec<(u32, String, RootKind)> {
    let total: u64 = tree
        .iter()
        .filter(|entry| entry.node as usize >= nodes)
        .map(|entry| entry.bytes)
        .sum();
    let mut candidates: Vec<u32> = (0..tree.len() as u32)
        .filter(|&place| {
            let Dominated { node, count, .. } = tree[place as usize];
            (node as usize) < nodes && count > 0 && may_have_name(names, NodeId(node))
        })
        .collect();
    if candidates.len() > REPORTED {
        candidates.retain(|&place| tree[place as usize].bytes >= total / LEAST);
    }
    candidates.sort_by_key(|&place| (Reverse(tree[place as usize].bytes), place));
    // Chains and parts of origins are removed below.
    candidates.truncate(4 * REPORTED);
    candidates.sort_unstable();
    let mut named: Vec<(u32, String, RootKind)> = Vec::new();
    let mut budget = BUDGET;
    for place in ends_of_chains(tree, candidates) {
        if let Some((name, root)) = name(names, NodeId(tree[place as usize].node), &mut budget) {
            named.push((place, name, root));
        }
    }
    let mut kept = without_chains(tree, named);
    if kept.len() > REPORTED {
        let mut order: Vec<u32> = kept.iter().map(|(place, ..)| *place).collect();
        order.sort_by_key(|&place| (Reverse(tree[place as usize].bytes), place));
        let last: std::collections::HashSet<u32> = order.into_iter().take(REPORTED).collect();
        kept.retain(|(place, ..)| last.contains(place));
    }
    kept
}

/// Of many holders that retain the same, the first few and the last: most of a list of a million objects needs no name.
fn ends_of_chains(tree: &[Dominated], places: Vec<u32>) -> Vec<u32> {
    /// The first ones may be parts of an origin, which have no name of their own.
    const FIRST: u32 = 4;
    let parents = parents(tree, &places);
    let mut depths = vec![0; places.len()];
    let mut is_last = vec![true; places.len()];
    for (nth, &place) in places.iter().enumerate() {
        if let Some(parent) = parents[nth].filter(|&parent| is_same(tree, places[parent], place)) {
            depths[nth] = depths[parent] + 1;
            is_last[parent] = false;
        }
    }
    let keep = |nth: &usize| is_last[*nth] || depths[*nth] < FIRST;
    (0..places.len()).filter(keep).map(|nth| places[nth]).collect()
}

fn is_same(tree: &[Dominated], a: u32, b: u32) -> bool {
    let (a, b) = (&tree[a as usize], &tree[b as usize]);
    (a.bytes, a.count) == (b.bytes, b.count)
}

/// Of holders that retain the same, the first and the last remain.
fn without_chains(tree: &[Dominated], named: Vec<(u32, String, RootKind)>) -> Vec<(u32, String, RootKind)> {
    let places: Vec<u32> = named.iter().map(|(place, ..)| *place).collect();
    let parents = parents(tree, &places);
    let mut has_same_child = vec![false; named.len()];
    for (nth, (place, ..)) in named.iter().enumerate() {
        if let Some(parent) = parents[nth].filter(|&parent| is_same(tree, named[parent].0, *place)) {
            has_same_child[parent] = true;
        }
    }
    let is_inner = |nth: usize| {
        let has_same_parent = parents[nth].is_some_and(|parent| is_same(tree, named[parent].0, named[nth].0));
        has_same_parent && has_same_child[nth]
    };
    let keep: Vec<bool> = (0..named.len()).map(|nth| !is_inner(nth)).collect();
    named
        .into_iter()
        .zip(keep)
        .filter_map(|(entry, keep)| keep.then_some(entry))
        .collect()
}

fn may_have_name(names: &mut Names, node: NodeId) -> bool {
    match names.searched.graph.kind(node) {
        NodeKind::Root => matches!(names.searched.graph.root(node), Some(Root::Garbage)),
        NodeKind::Frame => false,
        // Of native memory, a program can only drop what its variables hold.
        NodeKind::Native => names
            .searched
            .graph
            .parent(node)
            .is_some_and(|(parent, _)| matches!(names.searched.graph.root(parent), Some(Root::Native { .. }))),
        NodeKind::Python => match names.kind(node) {
            Kind::Module
            | Kind::Class
            | Kind::Function
            | Kind::Wrapper
            | Kind::Cell
            | Kind::Frame
            | Kind::Traceback
            | Kind::CacheLink => false,
            // Not the inner parts of these.
            kind @ (Kind::Context | Kind::ThreadLocal) => {
                ["Context", "threading.local"].contains(&names.name(node, kind).as_str())
            }
            _ => true,
        },
    }
}

/// The name of a holder: `trainer.history (list of 12)`. `None`: it is a part of an origin, or of the garbage.
fn name(names: &mut Names, node: NodeId, budget: &mut usize) -> Option<(String, RootKind)> {
    let graph = &names.searched.graph;
    if graph.kind(node) == NodeKind::Root {
        return Some((UNCOLLECTED.to_owned(), RootKind::None));
    }
    let is_reached = graph.phase(node) != Phase::None;
    let mut path = names.path(node, *budget);
    *budget = budget.saturating_sub(path.len());
    let root = names.searched.graph.root(path.first()?.0)?;
    if !is_reached || root == &Root::Garbage {
        return None;
    }
    path.push((node, Edge::default()));
    let last = path.len() - 1;
    let path = super::bounded(path);
    let parts = names.parts(&path.nodes, &path.omitted);
    let is_inner = |part: &Part| matches!(part.place, Place::Attributes | Place::Threads);
    let is_dictionary = parts.last().is_some_and(is_inner);
    let style = Style {
        concrete: true,
        to_object: true,
        ..Style::default()
    };
    let mut words = text::words(&parts, style);
    if is_dictionary || words.origin_part >= parts.len() || last == 0 {
        return None;
    }
    let mut text = words.origin;
    let detail = if words.origin_part + 1 == parts.len() {
        words.origin_type
    } else {
        if let Some(step) = words.steps.last_mut() {
            step.holder.clear();
        }
        text::append(&mut text, &words.steps);
        parts.last().map(|part| part.detail.clone()).unwrap_or_default()
    };
    let named = if detail.is_empty() {
        text
    } else {
        format!("{text} ({detail})")
    };
    Some((named, words.root))
}
