//! A profile as a tree: each frame with the memory that it and its callees requested.
//!
//! The first level is the location (a device, the host), because a sum over several locations is of no use. A frame
//! with a single child shares a node with it. What `top` and `min_bytes` cut off still counts in the parents, and each
//! parent states how much of its memory is not shown.
//!
//! If stacks were sampled, frames have estimates, and the root and the locations have the exact sums where no filter selects stacks:
//! then the children of a location need not add up to it.
//!
//! A tree may also be the difference to an earlier profile: each node then has both tallies, and the largest changes
//! come first. The tree of one profile is the difference to an empty one.
//!
//! Nodes are in a list and refer to each other by index. The stacks of a file may have any depth, so nothing here
//! recurses. Deliberately absent: text.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::{Profile, Sums};
use crate::analysis::report::Tally;
use crate::analysis::site::Frame;

#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// The most stacks to include; the largest are included.
    pub top: Option<usize>,
    /// Nodes with fewer bytes are cut off; in a difference, nodes that changed by fewer bytes.
    pub min_bytes: u64,
    /// In a difference, include unchanged stacks.
    pub all: bool,
}

#[derive(Debug, Clone)]
pub struct Tree {
    /// A parent precedes its children. The first node is the root.
    pub nodes: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub step: Step,
    /// Memory requested here or below.
    pub sums: Both,
    /// Indices into [`Tree::nodes`], largest first.
    pub children: Vec<usize>,
    /// The memory and the number of its children that were cut off.
    pub hidden: Both,
    pub hidden_children: usize,
}

/// The step from a node's parent to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The root: everything.
    All,
    /// `GPU 0`, `host memory`.
    Place(String),
    /// Indices into the profile's frames, outermost first.
    Frames(Vec<usize>),
    /// The outer frames of these stacks are missing.
    Cut,
    /// Recorded without a stack.
    NoStack,
}

#[derive(Debug, PartialEq, Eq, Hash, Clone)]
enum Edge {
    Place(String),
    Frame(usize),
    Cut,
    NoStack,
}

/// Memory in the later and in the earlier profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Both {
    pub now: Tally,
    pub before: Tally,
    /// One of the two is an estimate from sampled stacks.
    pub is_estimate: bool,
}

impl Both {
    /// The change in bytes and records, by which nodes are ranked.
    fn change(self) -> (u64, u64) {
        let Both { now, before, .. } = self;
        (now.bytes.abs_diff(before.bytes), now.count.abs_diff(before.count))
    }

    fn is_empty(self) -> bool {
        self.now.count == 0 && self.before.count == 0
    }

    fn total(all: impl Iterator<Item = Both> + Clone) -> Both {
        Both {
            now: Tally::total(all.clone().map(|both| both.now)),
            before: Tally::total(all.clone().map(|both| both.before)),
            is_estimate: all.clone().any(|both| both.is_estimate),
        }
    }
}

/// The whole tree, with one frame per node.
struct Grown {
    edges: Vec<Option<Edge>>,
    /// Memory requested in each node or below.
    tallies: Vec<Both>,
    /// Memory requested in each node itself.
    own: Vec<Both>,
    known: HashMap<(usize, Edge), usize>,
    parents: Vec<usize>,
    children: Vec<Vec<usize>>,
    /// Locations whose sums are exact although call sites are estimates. They are shown even if no stack there is known.
    exact: Vec<usize>,
}

impl Tree {
    pub fn of(profile: &Profile, limits: &Limits) -> Tree {
        let mut grown = Grown::new();
        grown.add(profile, |frame| frame, |both| &mut both.now);
        let kept = grown.kept(limits);
        grown.folded(&kept)
    }

    /// The difference between two profiles. Frames with equal names are merged; nodes refer to the returned frames, not
    /// to those of a profile.
    pub fn of_difference<'a>(
        before: &Profile<'a>,
        after: &Profile<'a>,
        name: impl Fn(&Frame<'a>) -> String,
        limits: &Limits,
    ) -> (Tree, Vec<Frame<'a>>) {
        let mut frames = Vec::new();
        let mut numbers: HashMap<String, usize> = HashMap::new();
        let mut number = |frame: &Frame<'a>| {
            *numbers.entry(name(frame)).or_insert_with(|| {
                frames.push(*frame);
                frames.len() - 1
            })
        };
        // Added first, so a frame of the later profile represents equal names.
        let of_after: Vec<usize> = after.frames.iter().map(&mut number).collect();
        let of_before: Vec<usize> = before.frames.iter().map(&mut number).collect();
        let mut grown = Grown::new();
        grown.add(after, |frame| of_after[frame], |both| &mut both.now);
        grown.add(before, |frame| of_before[frame], |both| &mut both.before);
        let kept = grown.kept(limits);
        (grown.folded(&kept), frames)
    }

    pub fn root(&self) -> &Node {
        &self.nodes[0]
    }
}

impl Grown {
    fn new() -> Grown {
        Grown {
            edges: vec![None],
            tallies: vec![Both::default()],
            own: vec![Both::default()],
            known: HashMap::new(),
            parents: vec![0],
            children: vec![Vec::new()],
            exact: Vec::new(),
        }
    }

    /// Adds a profile to one side. `number` maps its frames to those of the tree.
    fn add(&mut self, profile: &Profile, number: impl Fn(usize) -> usize, side: fn(&mut Both) -> &mut Tally) {
        let exact = match &profile.sampled {
            Some(Sums::Exact(sums)) => Some(sums),
            _ => None,
        };
        for (place, sum) in exact.into_iter().flatten() {
            let edge = Edge::Place(place.clone());
            let node = match self.known.get(&(0, edge.clone())) {
                Some(&known) => known,
                None => self.add_node(0, edge),
            };
            for node in [0, node] {
                side(&mut self.tallies[node]).join(*sum);
            }
            self.exact.push(node);
        }
        for sample in &profile.samples {
            let path = &profile.paths[sample.path];
            let first = [
                Some(Edge::Place(profile.place(sample))),
                path.truncated.then_some(Edge::Cut),
            ];
            let nothing = path.frames.is_empty().then_some(Edge::NoStack);
            let frames = path.frames.iter().map(|&frame| Edge::Frame(number(frame)));
            let mut at = 0;
            let join = |tallies: &mut Vec<Both>, at: usize, is_place: bool| {
                if !(is_place && exact.is_some()) {
                    side(&mut tallies[at]).join(sample.live);
                    tallies[at].is_estimate |= sample.is_estimate;
                }
            };
            join(&mut self.tallies, at, true);
            for edge in first.into_iter().flatten().chain(nothing).chain(frames) {
                at = match self.known.get(&(at, edge.clone())) {
                    Some(&known) => known,
                    None => self.add_node(at, edge.clone()),
                };
                join(&mut self.tallies, at, matches!(edge, Edge::Place(_)));
            }
            side(&mut self.own[at]).join(sample.live);
        }
        // An estimate may be above the exact sum of its location. A node follows its parent.
        for node in (1..self.tallies.len()).filter(|_| exact.is_some()) {
            let most = *side(&mut self.tallies[self.parents[node]]);
            let of_node = side(&mut self.tallies[node]);
            *of_node = of_node.within(most);
        }
    }

    fn add_node(&mut self, parent: usize, edge: Edge) -> usize {
        let node = self.edges.len();
        self.edges.push(Some(edge.clone()));
        self.known.insert((parent, edge), node);
        self.tallies.push(Both::default());
        self.own.push(Both::default());
        self.parents.push(parent);
        self.children.push(Vec::new());
        self.children[parent].push(node);
        node
    }

    /// The nodes on the paths to the largest stacks that are large enough.
    fn kept(&self, limits: &Limits) -> Vec<bool> {
        let is_end = |&node: &usize| {
            let own = self.own[node];
            !own.is_empty() && (limits.all || own.now != own.before)
        };
        let mut ends: Vec<usize> = (0..self.own.len()).filter(is_end).collect();
        ends.sort_by_key(|&node| (Reverse(self.own[node].change()), node));
        ends.truncate(limits.top.unwrap_or(usize::MAX));
        let mut kept = vec![false; self.edges.len()];
        kept[0] = true;
        for end in ends {
            let mut at = end;
            while !kept[at] {
                kept[at] = true;
                at = self.parents[at];
            }
        }
        self.exact.iter().for_each(|&node| kept[node] = true);
        for (node, kept) in kept.iter_mut().enumerate().skip(1) {
            *kept &= self.tallies[node].change().0 >= limits.min_bytes;
        }
        kept
    }

    /// The kept nodes, with chains of single children merged.
    fn folded(&self, kept: &[bool]) -> Tree {
        let mut tree = Tree { nodes: Vec::new() };
        // Nodes of `self` to convert, each with its parent in the new tree.
        let mut waiting = vec![(0, None)];
        while let Some((start, parent)) = waiting.pop() {
            let mut at = start;
            let mut step = match &self.edges[at] {
                None => Step::All,
                Some(Edge::Place(place)) => Step::Place(place.clone()),
                Some(Edge::Frame(frame)) => Step::Frames(vec![*frame]),
                Some(Edge::Cut) => Step::Cut,
                Some(Edge::NoStack) => Step::NoStack,
            };
            if let Step::Frames(frames) = &mut step {
                while let [only] = self.children[at][..]
                    && self.own[at].is_empty()
                    && kept[only]
                    && let Some(Edge::Frame(frame)) = self.edges[only]
                {
                    frames.push(frame);
                    at = only;
                }
            }
            let (mut shown, cut): (Vec<usize>, Vec<usize>) = self.children[at].iter().partition(|&&child| kept[child]);
            shown.sort_by_key(|&child| (Reverse(self.tallies[child].change()), child));
            let node = tree.nodes.len();
            tree.nodes.push(Node {
                step,
                sums: self.tallies[at],
                children: Vec::new(),
                hidden: Both::total(cut.iter().map(|&child| self.tallies[child])),
                hidden_children: cut.len(),
            });
            if let Some(parent) = parent {
                let parent: &mut Node = &mut tree.nodes[parent];
                parent.children.push(node);
            }
            waiting.extend(shown.into_iter().rev().map(|child| (child, Some(node))));
        }
        tree
    }
}
