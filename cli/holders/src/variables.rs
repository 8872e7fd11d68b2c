//! Which variables of native code hold blocks: each becomes a root of its own, by its symbol.
//!
//! Only the symbols of files whose variables hold blocks are read. Without a symbol, words stay parts of the file's memory:
//! it is unknown which of them belong together.

use std::ops::Range;

use crate::bits::Bits;
use crate::copy::{Image, PAGE};
use crate::findings::Findings;
use crate::graph::{Graph, NodeId, NodeKind, Root};
use crate::native::{Native, NativeRoot};
use crate::{Map, Set};

pub(crate) fn split(searched: &mut Findings) {
    let holding = holding(searched);
    let (copy, modules) = (searched.copy, &searched.modules);
    let (native, graph) = (&mut searched.native, &mut searched.graph);
    for (root, addresses) in holding {
        let Some(Root::Native(of)) = graph.root(root).cloned() else {
            continue;
        };
        let limits = of.range.clone();
        let mut parts: Vec<NativeRoot> = Vec::new();
        for address in addresses {
            let last = parts.last().map_or(limits.start, |part| part.range.end);
            if address < last {
                continue;
            }
            if let Some(range) = native.extent(modules, &of, address) {
                let range = range.start.max(last)..range.end.min(limits.end);
                parts.push(NativeRoot { range, ..of.clone() });
            }
        }
        if !parts.is_empty() {
            let words = words(copy, native, graph, root, &limits);
            graph.split(root, parts, &words);
        }
    }
    graph.finish_split();
    for found in &mut searched.found {
        found.last = searched.graph.part_of(found.last);
    }
}

/// The words of this memory that lead to targets of the root, with the targets.
fn words(copy: &Image, native: &Native, graph: &Graph, root: NodeId, range: &Range<u64>) -> Vec<(u64, NodeId)> {
    let late = graph.late.iter().filter(|(from, _)| *from == root).map(|(_, to)| to);
    let targets: Set<NodeId> = graph.targets(root).iter().chain(late).copied().collect();
    let mut found = Vec::new();
    for (at, value) in copy.words(range.clone()).filter(|(_, value)| *value >= PAGE) {
        let chunk = || graph.find(copy, native.chunk(copy, value)?.start);
        let target = graph.find(copy, value).or_else(chunk);
        let target = target.filter(|target| targets.contains(target));
        found.extend(target.map(|target| ((at - range.start) / 8, target)));
    }
    found
}

/// For each root of static or thread-local memory, the addresses of the words that paths to blocks begin with, in order.
fn holding(searched: &Findings) -> Vec<(NodeId, Vec<u64>)> {
    let graph = &searched.graph;
    let mut seen = Bits::new(graph.len());
    let mut holding: Map<NodeId, Vec<u64>> = Map::default();
    for found in &searched.found {
        let (mut node, mut edge) = found.last;
        while !node.is_none() {
            if graph.kind(node) == NodeKind::Root {
                if let Some(start) = start(graph, node) {
                    holding.entry(node).or_default().push(start + edge.index() * 8);
                }
                break;
            }
            match graph.parent(node) {
                Some(parent) if seen.set(node.0 as usize) => (node, edge) = parent,
                _ => break,
            }
        }
    }
    let mut holding: Vec<(NodeId, Vec<u64>)> = holding.into_iter().collect();
    holding.sort_unstable_by_key(|(root, _)| *root);
    for (_, addresses) in &mut holding {
        addresses.sort_unstable();
        addresses.dedup();
    }
    holding
}

/// Where the words of a root with variables begin.
fn start(graph: &Graph, root: NodeId) -> Option<u64> {
    match graph.root(root)? {
        Root::Native(root) if root.sort.is_static() => Some(root.range.start),
        _ => None,
    }
}
