//! What each holder alone keeps alive, from the dominator tree of everything found.
//!
//! A name stands for a reference, the last one of a path. To drop it frees what its object dominates if no other reference leads
//! to the object from outside of it. An object that several refer to is reported with the names of all.

use std::cmp::Reverse;

use culeak::snapshot::{Class, RootKind};

use super::holding::{Holding, explained};
use super::names::{Kind, Names, Part, Place};
use super::shapes::Shortened;
use super::text::{self, Style, Words};
use super::ways::{Shared, Ways};
use crate::graph::dominators::{Dominated, Tree, dominators};
use crate::graph::{Edge, NodeId, NodeKind, Phase, PythonRoot, Root};
use crate::{Block, Set};

/// Holders that are reported.
const REPORTED: usize = 10_000;

/// Holders of less than this part of the memory are left out, unless there are few.
const LEAST: u64 = 1000;

/// References that are looked at for their names.
const BUDGET: usize = 20_000_000;

/// A holder in the tree of one copy.
#[derive(Clone, Default)]
pub(super) struct Holder {
    pub name: String,
    /// What it is: `list of 60`.
    pub detail: String,
    pub root: RootKind,
    pub parent: Option<usize>,
    /// Names of other references to it: it frees its memory only with all of them.
    pub also: Vec<String>,
    /// Those without a name here.
    pub more: u64,
    /// Host memory that it keeps, if that is asked for.
    pub host: u64,
    /// Its number among the holders of all copies, if it was asked for.
    pub retainer: Option<usize>,
}

impl Holder {
    fn called(name: String, detail: String, root: RootKind) -> Holder {
        Holder {
            name,
            detail,
            root,
            ..Holder::default()
        }
    }
}

/// The holders of one copy, parents first, and the innermost one of each block.
/// `host`: sum up host memory, too, also that of these blocks, and add holders of host memory alone behind the others.
pub(super) fn holders(names: &mut Names, blocks: &[Block], host: Option<&[usize]>) -> (Vec<Holder>, Vec<Option<u32>>) {
    let mut weights = Vec::new();
    let nodes = names.searched.graph.len();
    for (block, found) in names.searched.found.iter().enumerate() {
        if found.class != Class::Lost {
            weights.push(((nodes + block) as u32, blocks[block].bytes));
        }
    }
    let entries = entries(names);
    let explained = explained(names.searched);
    let host_weights = match host {
        Some(of_host) => crate::host::weights(names.searched, blocks, of_host),
        None => Vec::new(),
    };
    let holding = Holding::new(names.searched, blocks);
    let tree = dominators(&holding, &entries, &weights, &host_weights);
    let mut kept = choose(names, &tree, &explained, blocks);
    let places: Vec<u32> = kept.iter().map(|(place, _)| *place).collect();
    for (entry, parent) in kept.iter_mut().zip(parents(&tree.nodes, &places)) {
        entry.1.parent = parent;
        entry.1.host = tree.nodes[entry.0 as usize].host;
    }
    let innermost = innermost(&tree.nodes, &places);
    let mut of_blocks = vec![None; blocks.len()];
    for (place, entry) in tree.nodes.iter().enumerate() {
        if let Some(block) = (entry.node as usize).checked_sub(nodes) {
            of_blocks[block] = innermost[place];
        }
    }
    let of_host = match host {
        Some(_) => of_host(names, blocks, &tree, &explained),
        None => Vec::new(),
    };
    let kept = kept.into_iter().map(|(_, holder)| holder);
    (kept.chain(of_host).collect(), of_blocks)
}

/// The outermost holders that keep host memory only.
fn of_host(names: &mut Names, blocks: &[Block], tree: &Tree, explained: &Set<NodeId>) -> Vec<Holder> {
    /// Holders of less than this part of the memory are left out.
    const LEAST: u64 = 100;
    let nodes = names.searched.graph.len();
    let outermost = tree.nodes.iter().filter(|entry| entry.parent.is_none());
    let total: u64 = outermost.map(|entry| entry.host).sum();
    let is_one = |place: &u32| {
        let Dominated { node, count, host, .. } = tree.nodes[*place as usize];
        (node as usize) < nodes && count == 0 && host >= (total / LEAST).max(1)
    };
    let mut places: Vec<u32> = (0..tree.nodes.len() as u32).filter(is_one).collect();
    places.retain(|place| may_have_name(names, NodeId(tree.nodes[*place as usize].node)));
    let is_shared = |place: &u32| tree.holders(*place).nth(1).is_some();
    let shared: Vec<u32> = places.iter().copied().filter(is_shared).collect();
    let mut ways = Ways::find(names, tree, &shared, explained, blocks);
    let above = parents(&tree.nodes, &places);
    let mut is_below = vec![false; places.len()];
    let mut found = Vec::new();
    let mut budget = BUDGET;
    for (nth, &place) in places.iter().enumerate() {
        if above[nth].is_some_and(|above| is_below[above]) {
            is_below[nth] = true;
            continue;
        }
        if let Some(holder) = holder_at(names, tree, &mut ways, place, true, &mut budget) {
            is_below[nth] = true;
            let host = tree.nodes[place as usize].host;
            found.push(Holder { host, ..holder });
        }
    }
    found
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

/// Where the graph is entered: roots, the variables of modules, because a module is no holder that one could drop, and what is not
/// freed with the references to it.
fn entries(names: &mut Names) -> Vec<u32> {
    let graph = &names.searched.graph;
    let mut entries = Vec::new();
    let mut variables: Vec<NodeId> = Vec::new();
    for (node, root) in &graph.roots {
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
            let dictionaries = targets.iter().filter(|target| names.kind(**target) == Kind::Dict);
            entries.extend(dictionaries.map(|target| target.0));
        }
    }
    entries.extend(names.searched.circles.iter().map(|node| node.0));
    entries.sort_unstable();
    entries.dedup();
    entries
}

/// The places of the holders that are reported, with their names.
fn choose(names: &mut Names, tree: &Tree, explained: &Set<NodeId>, blocks: &[Block]) -> Vec<(u32, Holder)> {
    let nodes = names.searched.graph.len();
    let entries = &tree.nodes;
    let bytes = |place: u32| entries[place as usize].bytes;
    let of_blocks = entries.iter().filter(|entry| entry.node as usize >= nodes);
    let total: u64 = of_blocks.map(|entry| entry.bytes).sum();
    let is_of_circle = of_circles(names, tree);
    let mut candidates: Vec<Candidate> = Vec::new();
    for place in 0..entries.len() as u32 {
        let Dominated { node, count, .. } = entries[place as usize];
        if count == 0 || is_of_circle[place as usize] {
            continue;
        }
        let is_shared = tree.holders(place).nth(1).is_some();
        let has_name = match (node as usize).checked_sub(nodes) {
            None => may_have_name(names, NodeId(node)),
            Some(block) => is_of_file(names, names.searched.found[block].last.0),
        };
        let is_shared = is_shared && (has_name || node as usize >= nodes || may_be_shared(names, NodeId(node)));
        if has_name || is_shared {
            candidates.push(Candidate {
                place,
                has_name,
                is_shared,
            });
        }
    }
    if candidates.len() > REPORTED {
        candidates.retain(|candidate| bytes(candidate.place) >= total / LEAST);
    }
    candidates.sort_by_key(|candidate| (Reverse(bytes(candidate.place)), candidate.place));
    // Chains and parts of origins are removed below.
    candidates.truncate(4 * REPORTED);
    candidates.sort_unstable_by_key(|candidate| candidate.place);
    let candidates = ends_of_chains(entries, candidates);
    let shared = candidates.iter().filter(|candidate| candidate.is_shared);
    let shared: Vec<u32> = shared.map(|candidate| candidate.place).collect();
    let mut ways = Ways::find(names, tree, &shared, explained, blocks);
    let mut named: Vec<(u32, Holder)> = Vec::new();
    let mut budget = BUDGET;
    for Candidate { place, has_name, .. } in candidates {
        let holder = holder_at(names, tree, &mut ways, place, has_name, &mut budget);
        named.extend(holder.map(|holder| (place, holder)));
    }
    let mut kept = without_chains(entries, named);
    if kept.len() > REPORTED {
        let mut order: Vec<u32> = kept.iter().map(|(place, _)| *place).collect();
        order.sort_by_key(|&place| (Reverse(bytes(place)), place));
        let last: Set<u32> = order.into_iter().take(REPORTED).collect();
        kept.retain(|(place, _)| last.contains(place));
    }
    kept
}

/// What a place of the tree is called, by one reference to it or by several.
fn holder_at(
    names: &mut Names,
    tree: &Tree,
    ways: &mut Ways,
    place: u32,
    has_name: bool,
    budget: &mut usize,
) -> Option<Holder> {
    let node = tree.nodes[place as usize].node;
    let block = (node as usize).checked_sub(names.searched.graph.len());
    match (ways.shared(names, tree, place, budget), block) {
        (Some(shared), _) if shared.names.len() > 1 || shared.more > 0 || !has_name => {
            of_shared(names, tree, place, shared)
        }
        (_, None) if has_name => name(names, NodeId(node), budget),
        (_, Some(block)) if has_name => name_of_block(names, block),
        (_, _) => None,
    }
}

/// Whether objects of C++ that own each other hold this place through native memory. Parents come first in a tree.
fn of_circles(names: &Names, tree: &Tree) -> Vec<bool> {
    let (graph, circles) = (&names.searched.graph, &names.searched.circles);
    let mut found = vec![false; tree.nodes.len()];
    if circles.is_empty() {
        return found;
    }
    for place in 0..found.len() {
        let Dominated { node, parent, .. } = tree.nodes[place];
        let is_native = node as usize >= graph.len() || graph.kind(NodeId(node)) == NodeKind::Native;
        let has_parent = || parent.is_some_and(|parent| found[parent as usize]);
        let has_holder = || tree.holders(place as u32).any(|holder| found[holder as usize]);
        found[place] = circles.contains(&NodeId(node)) || is_native && (has_parent() || has_holder());
    }
    found
}

/// A place that may be reported.
struct Candidate {
    place: u32,
    has_name: bool,
    /// Several references lead to it.
    is_shared: bool,
}

/// Of many holders that retain the same, the first few and the last: most of a list of a million objects needs no name.
fn ends_of_chains(tree: &[Dominated], candidates: Vec<Candidate>) -> Vec<Candidate> {
    /// The first ones may be parts of an origin, which have no name of their own.
    const FIRST: u32 = 4;
    let places: Vec<u32> = candidates.iter().map(|candidate| candidate.place).collect();
    let mut depths = vec![0; places.len()];
    let mut is_last = vec![true; places.len()];
    for (nth, parent) in same_parents(tree, &places).into_iter().enumerate() {
        if let Some(parent) = parent {
            depths[nth] = depths[parent] + 1;
            is_last[parent] = false;
        }
    }
    let keep = |nth: usize, candidate: &Candidate| candidate.is_shared || is_last[nth] || depths[nth] < FIRST;
    let all = candidates.into_iter().enumerate();
    all.filter_map(|(nth, candidate)| keep(nth, &candidate).then_some(candidate))
        .collect()
}

/// As [`parents`], if the holder above retains the same.
fn same_parents(tree: &[Dominated], places: &[u32]) -> Vec<Option<usize>> {
    let retained = |place: u32| (tree[place as usize].bytes, tree[place as usize].count);
    let is_same = |parent: &usize, place: u32| retained(places[*parent]) == retained(place);
    let all = parents(tree, places).into_iter().zip(places);
    all.map(|(parent, place)| parent.filter(|parent| is_same(parent, *place)))
        .collect()
}

/// Of holders that retain the same, the first and the last remain, and those that share.
fn without_chains(tree: &[Dominated], named: Vec<(u32, Holder)>) -> Vec<(u32, Holder)> {
    let places: Vec<u32> = named.iter().map(|(place, _)| *place).collect();
    let same = same_parents(tree, &places);
    let mut has_same_child = vec![false; named.len()];
    same.iter().flatten().for_each(|parent| has_same_child[*parent] = true);
    let is_inner = |(nth, (_, holder)): &(usize, (u32, Holder))| {
        same[*nth].is_some() && has_same_child[*nth] && holder.also.is_empty() && holder.more == 0
    };
    let all = named.into_iter().enumerate();
    all.filter(|entry| !is_inner(entry)).map(|(_, entry)| entry).collect()
}

/// Whether a node has a name that tells where to drop it.
pub(super) fn may_have_name(names: &mut Names, node: NodeId) -> bool {
    match names.searched.graph.kind(node) {
        NodeKind::Root => names.searched.graph.is_variable(node),
        NodeKind::Frame => false,
        // Of native memory, a program can only drop what its variables hold.
        NodeKind::Native => {
            let parent = names.searched.graph.parent(node);
            parent.is_some_and(|(parent, _)| is_of_file(names, parent))
        }
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

/// Whether this is a native root of several variables. One variable has a name of its own, which is that of all it holds.
fn is_of_file(names: &Names, root: NodeId) -> bool {
    let graph = &names.searched.graph;
    !graph.is_variable(root) && matches!(graph.root(root), Some(Root::Native(_)))
}

/// Whether what several refer to is of use to a reader, although it has no name. Many refer to classes and frames, which the
/// interpreter keeps. The functions that share a cell share one variable.
fn may_be_shared(names: &mut Names, node: NodeId) -> bool {
    match names.searched.graph.kind(node) {
        NodeKind::Root | NodeKind::Frame => false,
        NodeKind::Native => true,
        NodeKind::Python => names.kind(node) == Kind::Function,
    }
}

/// What several references lead to. They may be words of one variable of native code, which is not the same object.
fn of_shared(names: &mut Names, tree: &Tree, place: u32, mut shared: Shared) -> Option<Holder> {
    let Dominated { node, parent, .. } = tree.nodes[place as usize];
    let around = parent.map(|parent| NodeId(tree.nodes[parent as usize].node));
    let is_outermost = around.is_none_or(|around| is_of_file(names, around));
    let name = shared.names.remove(0);
    (!shared.names.is_empty() || is_outermost).then(|| Holder {
        also: shared.names,
        more: shared.more,
        ..Holder::called(name, detail(names, node), shared.root)
    })
}

/// What a node of the tree is: `list of 60`.
fn detail(names: &mut Names, node: u32) -> String {
    let is_node = (node as usize) < names.searched.graph.len();
    match is_node && names.searched.graph.kind(NodeId(node)) == NodeKind::Python {
        true => names.detail(NodeId(node)),
        false => String::new(),
    }
}

/// The name of the variable of native code that points to a block.
fn name_of_block(names: &mut Names, block: usize) -> Option<Holder> {
    let parts = names.parts(&[names.searched.found[block].last], &[]);
    let words = text::words(&parts, Style::default());
    (!words.origin.is_empty()).then(|| Holder::called(words.origin, words.origin_type, words.root))
}

/// The name of a holder: `trainer.history (list of 12)`. `None`: it is a part of an origin, or of the garbage.
pub(super) fn name(names: &mut Names, node: NodeId, budget: &mut usize) -> Option<Holder> {
    let graph = &names.searched.graph;
    if graph.is_variable(node) {
        let (name, detail, root) = names.variable(node)?;
        return Some(Holder::called(name, detail, root));
    }
    let is_reached = graph.phase(node) != Phase::None;
    let mut path = names.path(node, budget);
    let root = names.searched.graph.root(path.first()?.0)?;
    if !is_reached || root == &Root::Garbage {
        return None;
    }
    path.push((node, Edge::default()));
    let last = path.len() - 1;
    let (parts, words) = words_of(names, path, true);
    let is_inner = |part: &Part| matches!(part.place, Place::Attributes | Place::Threads);
    let is_dictionary = parts.last().is_some_and(is_inner);
    if is_dictionary || words.origin_part >= parts.len() || last == 0 {
        return None;
    }
    let mut text = words.origin;
    let detail = if words.origin_part + 1 == parts.len() {
        words.origin_type
    } else {
        text::append(&mut text, &words.steps);
        parts.last().map(|part| part.detail.clone()).unwrap_or_default()
    };
    Some(Holder::called(text, detail, words.root))
}

/// The parts and words of a path to an object, or to a block; without what the last reference leads to.
pub(super) fn words_of(names: &mut Names, path: Vec<(NodeId, Edge)>, to_object: bool) -> (Vec<Part>, Words) {
    let path = Shortened::bounded(path);
    let parts = names.parts(&path.nodes, &path.omitted);
    let style = Style {
        concrete: true,
        to_object,
        ..Style::default()
    };
    let mut words = text::words(&parts, style);
    if let Some(step) = words.steps.last_mut() {
        step.holder.clear();
    }
    (parts, words)
}
