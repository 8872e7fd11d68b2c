//! Parts of a native root that become roots of their own.
//!
//! The walk looks at the static memory of a file as one root, because it cannot know which of a million variables matter.
//! Those that hold blocks are separated afterwards: what a variable holds is held by all of its words together, such as
//! the three pointers of a `std::map` into its tree.
//!
//! ```text
//! root:   │ word 0 │ … │ word 20 │ word 21 │ word 22 │ … │
//! part:                └──── variable `cache` ───────┘     a root whose word 0 is word 20
//! ```

use std::ops::Range;

use super::{Edge, EdgeKind, Graph, NodeId, Root};
use crate::native::NativeRoot;
use crate::{Map, Set};

/// Words of a native root that have become a root.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// Numbers of words.
    words: Range<u64>,
    root: NodeId,
}

/// The part with this word.
fn part(parts: &[Part], word: u64) -> Option<&Part> {
    let place = parts.partition_point(|part| part.words.end <= word);
    parts.get(place).filter(|part| part.words.contains(&word))
}

impl Graph {
    /// Whether the root consists of one variable.
    pub fn is_variable(&self, root: NodeId) -> bool {
        self.variables.binary_search(&root).is_ok()
    }

    /// Makes a root of each of these parts of a native root. They are sorted by address and do not overlap. `words`: those that lead to
    /// targets of the root, in order.
    pub(crate) fn split(&mut self, root: NodeId, variables: Vec<NativeRoot>, words: &[(u64, NodeId)]) {
        let Some(Root::Native(of)) = self.root(root) else {
            return;
        };
        let start = of.range.start;
        let (phase, is_weak) = (self.phase(root), self.is_weak(root));
        let mut parts: Vec<Part> = Vec::new();
        for variable in variables {
            let range = variable.range.start.next_multiple_of(8).max(start)..variable.range.end;
            let of = NativeRoot {
                range: range.clone(),
                ..variable
            };
            let id = self.add_root(Root::Native(of), phase);
            if is_weak {
                self.mark_weak(id);
            }
            self.variables.push(id);
            parts.push(Part {
                words: (range.start - start) / 8..(range.end.saturating_sub(start)).div_ceil(8),
                root: id,
            });
        }
        self.share_targets(root, &parts, words);
        self.parts.insert(root, parts);
    }

    /// Gives each part its targets; the rest stays with the root.
    fn share_targets(&mut self, root: NodeId, parts: &[Part], words: &[(u64, NodeId)]) {
        let of_root = self.late.iter().filter(|(from, _)| *from == root);
        let late = of_root.map(|(_, target)| target);
        let children: Vec<NodeId> = self.targets(root).iter().chain(late).copied().collect();
        let mut lists: Map<NodeId, Vec<NodeId>> = Map::default();
        for &(word, target) in words {
            let of = part(parts, word).map_or(root, |part| part.root);
            lists.entry(of).or_default().push(target);
        }
        let found: Set<NodeId> = words.iter().map(|(_, target)| *target).collect();
        self.late
            .retain(|(from, target)| *from != root || !found.contains(target));
        for of in parts.iter().map(|part| part.root).chain([root]) {
            let list = lists.remove(&of).unwrap_or_default();
            if self.targets.len() + list.len() >= u32::MAX as usize {
                continue;
            }
            let node = &mut self.nodes[of.place()];
            (node.first, node.count) = (self.targets.len() as u32, list.len() as u32);
            self.targets.extend(list);
        }
        self.share_doubts(root, parts);
        for child in children {
            self.move_child(root, parts, child);
        }
    }

    /// A part's references that may be stale are those of the root to the same objects.
    fn share_doubts(&mut self, root: NodeId, parts: &[Part]) {
        let of_root = self.doubtful.iter().filter(|(from, _)| *from == root);
        let doubtful: Set<NodeId> = of_root.map(|(_, target)| *target).collect();
        if doubtful.is_empty() {
            return;
        }
        for part in parts {
            let targets: Vec<NodeId> = self.targets(part.root).to_vec();
            let shared = targets.into_iter().filter(|target| doubtful.contains(target));
            self.doubtful.extend(shared.map(|target| (part.root, target)));
        }
    }

    fn move_child(&mut self, root: NodeId, parts: &[Part], child: NodeId) {
        let node = &mut self.nodes[child.place()];
        if node.parent == root
            && node.edge.kind() == EdgeKind::Word
            && let Some(part) = part(parts, node.edge.index())
        {
            node.parent = part.root;
            node.edge = Edge::word(node.edge.index() - part.words.start);
        }
    }

    /// The edges to blocks are those of the parts, too. Called once after all roots have been split.
    pub(crate) fn finish_split(&mut self) {
        let mut edges = std::mem::take(&mut self.block_edges);
        for edge in &mut edges {
            (edge.node, edge.edge) = self.part_of((edge.node, edge.edge));
        }
        self.block_edges = edges;
    }

    /// The reference as one of a part, if the root was split there.
    pub(crate) fn part_of(&self, (node, edge): (NodeId, Edge)) -> (NodeId, Edge) {
        let found = self.parts.get(&node).and_then(|parts| part(parts, edge.index()));
        match found {
            Some(part) if edge.kind() == EdgeKind::Word => (part.root, Edge::word(edge.index() - part.words.start)),
            _ => (node, edge),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BlockEdge, Phase, State};
    use super::*;
    use crate::native::RootSort;

    fn globals(range: Range<u64>) -> NativeRoot {
        NativeRoot {
            sort: RootSort::Globals,
            thread: 0,
            name: "program".into(),
            range,
            values: Vec::new(),
        }
    }

    #[test]
    fn a_variable_takes_its_words_with_all_that_they_lead_to() {
        let mut graph = Graph {
            nodes: vec![Default::default()],
            states: vec![Default::default()],
            ..Graph::default()
        };
        let root = graph.add_root(Root::Native(globals(0x1000..0x2000)), Phase::Globals);
        let [a, b, c, d] = [0; 4].map(|_| graph.add_root(Root::Heap, Phase::None));
        graph.begin_scan(root);
        for (word, target) in [(1, a), (4, b), (5, c)] {
            let edge = Edge::word(word);
            graph.add_target(root, target);
            let state = State {
                phase: Phase::Globals,
                ..State::default()
            };
            graph.place(target, root, edge, state);
        }
        graph.end_scan(root);
        graph.add_target(root, d);
        let edge = |word| BlockEdge {
            block: 0,
            node: root,
            edge: Edge::word(word),
            interior: false,
            weak: false,
            unusual: false,
        };
        graph.add_block_edge(edge(6));
        graph.add_block_edge(edge(9));
        // Words 4 to 6.
        let range = 0x1020..0x1038;
        graph.split(root, vec![globals(range)], &[(1, a), (4, b), (5, c), (6, d)]);
        graph.finish_split();
        let (variable, _) = *graph.roots.last().expect("a root");
        assert!(graph.is_variable(variable) && !graph.is_variable(root));
        assert_eq!(graph.targets(root), [a]);
        assert_eq!(graph.targets(variable), [b, c, d]);
        assert_eq!(graph.late, []);
        assert_eq!(graph.parent(a), Some((root, Edge::word(1))));
        assert_eq!(graph.parent(c), Some((variable, Edge::word(1))));
        let places: Vec<(NodeId, u64)> = (graph.block_edges.iter())
            .map(|edge| (edge.node, edge.edge.index()))
            .collect();
        assert_eq!(places, [(variable, 2), (root, 9)]);
    }
}
