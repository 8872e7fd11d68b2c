//! Which variables of native code hold blocks: each becomes a root of its own, by its symbol.
//!
//! Only the symbols of files whose variables hold blocks are read. Without a symbol, words stay parts of the file's memory:
//! it is unknown which of them belong together.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::FixedState;

use crate::classes::Searched;
use crate::graph::{Graph, NodeId, NodeKind, Root};
use crate::native::NativeRoot;
use crate::native::pages::Bits;

pub(crate) fn split(searched: &mut Searched) {
    let holding = holding(searched);
    let Searched {
        modules, native, graph, ..
    } = searched;
    for (root, addresses) in holding {
        let Some(Root::Native { root: of, .. }) = graph.root(root) else {
            continue;
        };
        let (of, limits) = (of.clone(), of.range().unwrap_or_default());
        let mut parts: Vec<(Range<u64>, NativeRoot)> = Vec::new();
        for address in addresses {
            let last = parts.last().map_or(limits.start, |(range, _)| range.end);
            if address < last {
                continue;
            }
            if let Some(range) = native.extent(modules, &of, address) {
                let range = range.start.max(last)..range.end.min(limits.end);
                parts.push((range.clone(), of.part(range)));
            }
        }
        if !parts.is_empty() {
            graph.split(root, parts);
        }
    }
    graph.finish_split();
    for found in &mut searched.found {
        found.last = searched.graph.part_of(found.last);
    }
}

/// For each root of static or thread-local memory, the addresses of the words that paths to blocks begin with, in order.
fn holding(searched: &Searched) -> Vec<(NodeId, Vec<u64>)> {
    let graph = &searched.graph;
    let mut seen = Bits::new(graph.len());
    let mut holding: HashMap<NodeId, Vec<u64>, FixedState> = HashMap::default();
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
        Root::Native {
            root: NativeRoot::Globals { .. } | NativeRoot::ThreadLocals { .. },
            start,
        } => Some(start.next_multiple_of(8)),
        _ => None,
    }
}
