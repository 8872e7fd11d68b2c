//! Which holder alone keeps what alive: the dominator tree of the graph, with the bytes of the blocks below each node.
//!
//! A node dominates a block if every path from a root to the block goes through it. So dropping the node frees exactly the
//! blocks that it dominates. The immediate dominators form a tree.
//!
//! ```text
//! root ─► a ─► b ─► block 1        a dominates b, c and all blocks; b dominates block 1;
//!         └──► c ─┬► block 2       block 2 hangs below a, because b and c hold it
//!              b ─┘
//! ```
//!
//! Only nodes that can reach a block are looked at. The nodes that the graph is entered at are dominated by the virtual root
//! alone, so references back to them are ignored: `function → __globals__` reaches everything, but changes nothing.
//!
//! The algorithm is that of Lengauer and Tarjan with path compression, O(edges × log nodes), without recursion.

use std::ops::Range;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use crate::parallel;

/// A graph whose nodes are numbered from 0.
pub trait Links {
    fn nodes(&self) -> usize;
    /// What the node refers to, one by one; `None` behind the last. Numbers beyond [`Links::nodes`] are ignored.
    fn target(&self, node: u32, nth: usize) -> Option<u32>;
    /// Whether one of its targets is wanted.
    fn leads_to(&self, node: u32, wanted: impl Fn(u32) -> bool) -> bool {
        (0..).map_while(|nth| self.target(node, nth)).any(wanted)
    }
}

/// A node of the tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dominated {
    pub node: u32,
    /// Place of the immediate dominator in the tree; `None`: only the virtual root.
    pub parent: Option<u32>,
    /// Weight of the blocks that the node dominates, itself included.
    pub bytes: u64,
    /// Their number.
    pub count: u64,
    /// Host memory of the nodes that it dominates.
    pub host: u64,
}

/// The dominator tree, and what refers to its nodes.
pub struct Tree {
    /// Each after its dominator.
    pub nodes: Vec<Dominated>,
    /// By place: its number in the order of the tree, and one past that of the last node below it.
    spans: Vec<(u32, u32)>,
    order: Order,
}

impl Tree {
    /// The places that refer to a node from outside of what it dominates; each as often as it does.
    pub fn holders(&self, place: u32) -> impl Iterator<Item = u32> {
        let number = place as usize + 1;
        let sources = self.order.starts[number] as usize..self.order.starts[number + 1] as usize;
        let (first, end) = self.spans[place as usize];
        let is_outside = move |holder: &u32| {
            let at = self.spans[*holder as usize].0;
            at < first || at >= end
        };
        let places = self.order.sources[sources].iter().map(|source| source - 1);
        places.filter(is_outside)
    }
}

/// References back and forth between old and new nodes need one pass each. A graph that needs more is looked at as a whole.
const PASSES: usize = 16;

/// Nodes that a thread looks at in a row.
const PIECE: u32 = 1 << 14;

const NONE: u32 = u32::MAX;

fn targets(graph: &impl Links, node: u32) -> impl Iterator<Item = u32> {
    (0..).map_while(move |nth| graph.target(node, nth))
}

/// The nodes between the entries and the weighted nodes, each after its dominator. Nodes that are not reachable from an
/// entry are left out. `host`: nodes with their bytes of host memory.
pub fn dominators(graph: &(impl Links + Sync), entries: &[u32], weights: &[(u32, u64)], host: &[(u32, u64)]) -> Tree {
    let weighted: Vec<u32> = weights.iter().chain(host).map(|(node, _)| *node).collect();
    let mut is_entry = vec![false; graph.nodes()];
    let entries: Vec<u32> = (entries.iter().copied())
        .filter(|entry| (*entry as usize) < is_entry.len())
        .collect();
    entries.iter().for_each(|entry| is_entry[*entry as usize] = true);
    let relevant = relevant(graph, &is_entry, &weighted);
    let order = Order::find(graph, &entries, &is_entry, &relevant);
    let parents = order.dominators();
    let mut tree: Vec<Dominated> = (order.nodes[1..].iter().zip(&parents[1..]))
        .map(|(&node, &parent)| Dominated {
            node,
            parent: parent.checked_sub(1),
            ..Dominated::default()
        })
        .collect();
    let mut places = vec![NONE; graph.nodes()];
    for (place, entry) in tree.iter().enumerate() {
        places[entry.node as usize] = place as u32;
    }
    let place = |node: u32| places.get(node as usize).copied().unwrap_or(NONE) as usize;
    for &(node, bytes) in weights {
        if let Some(entry) = tree.get_mut(place(node)) {
            entry.bytes += bytes;
            entry.count += 1;
        }
    }
    for &(node, bytes) in host {
        if let Some(entry) = tree.get_mut(place(node)) {
            entry.host += bytes;
        }
    }
    for place in (0..tree.len()).rev() {
        let entry = tree[place];
        if let Some(parent) = entry.parent {
            let parent = &mut tree[parent as usize];
            parent.bytes += entry.bytes;
            parent.count += entry.count;
            parent.host += entry.host;
        }
    }
    Tree {
        spans: spans(&tree),
        nodes: tree,
        order,
    }
}

/// See [`Tree::spans`].
fn spans(tree: &[Dominated]) -> Vec<(u32, u32)> {
    let mut sizes = vec![1u32; tree.len()];
    for place in (0..tree.len()).rev() {
        if let Some(parent) = tree[place].parent {
            sizes[parent as usize] += sizes[place];
        }
    }
    let mut spans: Vec<(u32, u32)> = Vec::with_capacity(tree.len());
    // Where the next child of each place begins.
    let mut next = vec![0; tree.len()];
    let mut outermost = 0;
    for (place, entry) in tree.iter().enumerate() {
        let at = match entry.parent {
            Some(parent) => &mut next[parent as usize],
            None => &mut outermost,
        };
        let first = *at;
        *at += sizes[place];
        next[place] = first + 1;
        spans.push((first, first + sizes[place]));
    }
    spans
}

/// The nodes that reach a weighted node without passing an entry; and perhaps others.
///
/// The graph has no links back, and making them costs more than this: nodes are marked in passes, forward and backward in
/// turn. Breadth-first numbers rise along most paths, so that few passes are needed.
fn relevant(graph: &(impl Links + Sync), is_entry: &[bool], weighted: &[u32]) -> Vec<bool> {
    let count = graph.nodes();
    // Marks of entries and of other nodes. They are only set, so their order does not matter in the end.
    const ENTRY: u8 = 1;
    const INNER: u8 = 2;
    let marks: Vec<AtomicU8> = (0..count).map(|_| AtomicU8::new(0)).collect();
    let mark = |node: u32| {
        let mark = if is_entry[node as usize] { ENTRY } else { INNER };
        marks[node as usize].store(mark, Relaxed);
    };
    let weighted = weighted.iter().copied();
    weighted.filter(|node| (*node as usize) < count).for_each(mark);
    let see = |node: u32| {
        let is_inner = |target: u32| (marks.get(target as usize)).is_some_and(|mark| mark.load(Relaxed) == INNER);
        let is_new = marks[node as usize].load(Relaxed) == 0 && graph.leads_to(node, is_inner);
        if is_new {
            mark(node);
        }
        is_new
    };
    let firsts = (0..count as u32).step_by(PIECE as usize);
    let mut pieces: Vec<Range<u32>> = firsts.map(|first| first..(count as u32).min(first + PIECE)).collect();
    for pass in 0..PASSES {
        pieces.reverse();
        let changed = parallel::map(&pieces, |piece| match pass % 2 == 0 {
            true => piece.clone().rev().fold(false, |changed, node| changed | see(node)),
            false => piece.clone().fold(false, |changed, node| changed | see(node)),
        });
        if !changed.contains(&true) {
            return marks.into_iter().map(|mark| mark.into_inner() != 0).collect();
        }
    }
    vec![true; count]
}

/// The relevant nodes in the order of a depth-first search; number 0 is the virtual root.
struct Order {
    nodes: Vec<u32>,
    parents: Vec<u32>,
    /// Sources of the references to each number: `sources[starts[n]..starts[n + 1]]`.
    starts: Vec<u32>,
    sources: Vec<u32>,
}

impl Order {
    fn find(graph: &impl Links, entries: &[u32], is_entry: &[bool], relevant: &[bool]) -> Order {
        let mut nodes = vec![NONE];
        let mut parents = vec![0];
        let mut numbers = vec![NONE; graph.nodes()];
        let is_relevant = |node: u32| relevant.get(node as usize) == Some(&true);
        // All entries are numbered as children of the virtual root when their turn comes; until then the mark keeps others
        // from adopting them.
        let mut open: Vec<(u32, usize)> = Vec::new();
        for &entry in entries {
            if !is_relevant(entry) || numbers[entry as usize] != NONE {
                continue;
            }
            numbers[entry as usize] = nodes.len() as u32;
            nodes.push(entry);
            parents.push(0);
            open.push((entry, 0));
            while let Some((node, next)) = open.last_mut() {
                let Some(target) = graph.target(*node, *next) else {
                    open.pop();
                    continue;
                };
                *next += 1;
                if is_relevant(target) && !is_entry[target as usize] && numbers[target as usize] == NONE {
                    numbers[target as usize] = nodes.len() as u32;
                    parents.push(numbers[*node as usize]);
                    nodes.push(target);
                    open.push((target, 0));
                }
            }
        }
        let (starts, sources) = Self::sources(graph, &nodes, &numbers, is_entry);
        Order {
            nodes,
            parents,
            starts,
            sources,
        }
    }

    fn sources(graph: &impl Links, nodes: &[u32], numbers: &[u32], is_entry: &[bool]) -> (Vec<u32>, Vec<u32>) {
        let mut starts = vec![0u32; nodes.len() + 1];
        let each = |see: &mut dyn FnMut(u32, u32)| {
            for (number, &node) in nodes.iter().enumerate().skip(1) {
                for target in targets(graph, node) {
                    let to = numbers.get(target as usize).copied().unwrap_or(NONE);
                    if to != NONE && !is_entry[target as usize] {
                        see(number as u32, to);
                    }
                }
            }
        };
        each(&mut |_, to| starts[to as usize] += 1);
        let mut sum = 0;
        for start in &mut starts {
            sum += *start;
            *start = sum;
        }
        let mut sources = vec![0u32; sum as usize];
        each(&mut |from, to| {
            starts[to as usize] -= 1;
            sources[starts[to as usize] as usize] = from;
        });
        (starts, sources)
    }

    /// The number of the immediate dominator of each number.
    fn dominators(&self) -> Vec<u32> {
        let count = self.nodes.len();
        let mut forest = Forest::new(count);
        let mut dominators = vec![0u32; count];
        // The nodes whose semidominator is a number, as a list through `next`.
        let mut first = vec![NONE; count];
        let mut next = vec![NONE; count];
        for number in (1..count).rev() {
            let parent = self.parents[number];
            let mut semi = parent;
            let sources = self.starts[number] as usize..self.starts[number + 1] as usize;
            for &source in &self.sources[sources] {
                let best = forest.best(source);
                semi = semi.min(forest.semi[best as usize]);
            }
            forest.semi[number] = semi;
            next[number] = first[semi as usize];
            first[semi as usize] = number as u32;
            forest.ancestors[number] = parent;
            let mut waiting = std::mem::replace(&mut first[parent as usize], NONE);
            while waiting != NONE {
                let best = forest.best(waiting);
                let is_lower = forest.semi[best as usize] < forest.semi[waiting as usize];
                dominators[waiting as usize] = if is_lower { best } else { parent };
                waiting = next[waiting as usize];
            }
        }
        for number in 1..count {
            if dominators[number] != forest.semi[number] {
                dominators[number] = dominators[dominators[number] as usize];
            }
        }
        dominators
    }
}

/// The linked part of the search tree, with compressed paths.
struct Forest {
    ancestors: Vec<u32>,
    /// On the path to the ancestor, the node with the least semidominator.
    best: Vec<u32>,
    semi: Vec<u32>,
    path: Vec<u32>,
}

impl Forest {
    fn new(count: usize) -> Forest {
        Forest {
            ancestors: vec![NONE; count],
            best: (0..count as u32).collect(),
            semi: (0..count as u32).collect(),
            path: Vec::new(),
        }
    }

    fn best(&mut self, number: u32) -> u32 {
        let mut at = number;
        while self.ancestors[at as usize] != NONE && self.ancestors[self.ancestors[at as usize] as usize] != NONE {
            self.path.push(at);
            at = self.ancestors[at as usize];
        }
        while let Some(below) = self.path.pop() {
            let above = self.ancestors[below as usize] as usize;
            if self.semi[self.best[above] as usize] < self.semi[self.best[below as usize] as usize] {
                self.best[below as usize] = self.best[above];
            }
            self.ancestors[below as usize] = self.ancestors[above];
        }
        self.best[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lists(Vec<Vec<u32>>);

    impl Links for Lists {
        fn nodes(&self) -> usize {
            self.0.len()
        }

        fn target(&self, node: u32, nth: usize) -> Option<u32> {
            self.0[node as usize].get(nth).copied()
        }
    }

    fn bytes_of(tree: &[Dominated], node: u32) -> Option<u64> {
        tree.iter().find(|entry| entry.node == node).map(|entry| entry.bytes)
    }

    #[test]
    fn a_block_with_two_holders_hangs_below_what_holds_both() {
        // 0 → 1, 2; 1 → 3, 4; 2 → 4. Blocks: 3 and 4.
        let graph = Lists(vec![vec![1, 2], vec![3, 4], vec![4], vec![], vec![]]);
        let tree = dominators(&graph, &[0], &[(3, 100), (4, 10)], &[(4, 7)]).nodes;
        let retained = [0, 1, 2, 3, 4].map(|node| bytes_of(&tree, node));
        assert_eq!(retained, [Some(110), Some(100), Some(0), Some(100), Some(10)]);
        let host = |node: u32| tree.iter().find(|entry| entry.node == node).map(|entry| entry.host);
        assert_eq!([0, 1, 4].map(host), [Some(7), Some(0), Some(7)]);
    }

    #[test]
    fn references_to_an_entry_do_not_change_what_it_retains() {
        // Two modules (0, 1); a function (2) of module 1 refers to module 0.
        let graph = Lists(vec![vec![3], vec![2], vec![0], vec![]]);
        let tree = dominators(&graph, &[0, 1], &[(3, 7)], &[]).nodes;
        assert_eq!(
            tree.iter()
                .map(|entry| (entry.node, entry.parent, entry.bytes))
                .collect::<Vec<_>>(),
            [(0, None, 7), (3, Some(0), 7)]
        );
    }

    #[test]
    fn holders_are_the_references_from_outside() {
        // 0 → 1 twice; 1 → 2; 2 → 1; 0 → 3, 4; 3 → 5; 4 → 5.
        let graph = Lists(vec![vec![1, 1, 3, 4], vec![2], vec![1], vec![5], vec![5], vec![]]);
        let tree = dominators(&graph, &[0], &[(2, 1), (5, 1)], &[]);
        let place = |node: u32| {
            tree.nodes
                .iter()
                .position(|entry| entry.node == node)
                .expect("in the tree") as u32
        };
        let holders = |node: u32| {
            let mut nodes: Vec<u32> = tree
                .holders(place(node))
                .map(|at| tree.nodes[at as usize].node)
                .collect();
            nodes.sort_unstable();
            nodes
        };
        assert_eq!(holders(1), [0, 0], "2 is below 1");
        assert_eq!((holders(2), holders(5)), (vec![1], vec![3, 4]));
        assert!(holders(0).is_empty(), "an entry");
    }

    /// What becomes unreachable when a node is removed.
    fn naive(graph: &Lists, entries: &[u32], weights: &[(u32, u64)], removed: Option<u32>) -> u64 {
        let mut reached = vec![false; graph.0.len()];
        let mut open: Vec<u32> = entries.to_vec();
        while let Some(node) = open.pop() {
            if Some(node) != removed && !std::mem::replace(&mut reached[node as usize], true) {
                open.extend(&graph.0[node as usize]);
            }
        }
        weights
            .iter()
            .filter(|(node, _)| reached[*node as usize])
            .map(|(_, bytes)| bytes)
            .sum()
    }

    #[test]
    fn what_a_node_retains_is_what_its_removal_makes_unreachable() {
        let mut state = 1u64;
        let mut random = move |below: usize| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        let mut checked = 0;
        for round in 0..3000 {
            let nodes = 2 + random(24);
            let edges = random(nodes * 3);
            let mut graph = Lists(vec![Vec::new(); nodes]);
            for _ in 0..edges {
                let (from, to) = (random(nodes), random(nodes) as u32);
                graph.0[from].push(to);
            }
            let entries: Vec<u32> = (0..1 + random(3)).map(|_| random(nodes) as u32).collect();
            let weights: Vec<(u32, u64)> = (0..random(6)).map(|bit| (random(nodes) as u32, 1 << bit)).collect();
            let all = naive(&graph, &entries, &weights, None);
            let tree = dominators(&graph, &entries, &weights, &[]).nodes;
            for entry in &tree {
                // An entry that other nodes refer to stays an entry: its removal is the removal of the node as well.
                let lost = all - naive(&graph, &entries, &weights, Some(entry.node));
                assert_eq!(
                    entry.bytes, lost,
                    "round {round}, node {}: {:?}, {entries:?}",
                    entry.node, graph.0
                );
                checked += usize::from(lost > 0);
            }
            for node in 0..nodes as u32 {
                let lost = all - naive(&graph, &entries, &weights, Some(node));
                assert_eq!(
                    bytes_of(&tree, node).unwrap_or(0),
                    lost,
                    "round {round}, node {node} is missing"
                );
            }
        }
        assert!(checked > 3000, "{checked}");
    }

    #[test]
    fn a_list_of_a_million_nodes_needs_no_stack() {
        let count = 1_000_000u32;
        let graph = Lists(
            (0..count)
                .map(|node| vec![node.saturating_sub(1), (node + 1).min(count - 1)])
                .collect(),
        );
        let tree = dominators(&graph, &[0], &[(count - 1, 5)], &[]).nodes;
        assert_eq!(tree.len(), count as usize);
        assert!(tree.iter().all(|entry| entry.bytes == 5));
    }
}
