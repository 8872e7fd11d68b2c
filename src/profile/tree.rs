//! A profile as a tree: every frame with what was asked for below it.
//!
//! The first level is where memory lies (a device, the host), since bytes of the two do not add up to anything a reader
//! could use. Frames that lead nowhere but to one next frame stand in one node with it. What `top` and `min_bytes` cut off
//! is still counted in the nodes above, and each of those says how much of its own is not shown.
//!
//! The nodes lie in a list and refer to each other by number: stacks out of a file may be of any depth, and nothing here
//! may recurse. Deliberately absent: text.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Profile;
use crate::report::Share;

#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// At most this many stacks, the largest.
    pub top: Option<usize>,
    /// Nodes below this are cut.
    pub min_bytes: u64,
}

#[derive(Debug, Clone)]
pub struct Tree {
    /// A parent stands before its children; the first is the root, which has a label and no parent.
    pub nodes: Vec<Node>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub step: Step,
    /// Asked for here or below.
    pub share: Share,
    /// Largest first; indices into [`Tree::nodes`].
    pub children: Vec<usize>,
    /// What its own children hold that were cut off, and how many those are.
    pub hidden: Share,
    pub hidden_children: usize,
}

/// What leads from a node's parent to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The root: everything.
    All,
    /// `GPU 0`, `host memory`.
    Place(String),
    /// Indices into the profile's frames, outermost first.
    Frames(Vec<usize>),
    /// The outer end of these stacks is not known.
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

/// The whole tree, one frame a node.
struct Grown {
    edges: Vec<Option<Edge>>,
    shares: Vec<Share>,
    /// What was asked for right here, not below.
    own: Vec<Share>,
    parents: Vec<usize>,
    children: Vec<Vec<usize>>,
}

impl Tree {
    pub fn of(profile: &Profile, limits: &Limits) -> Tree {
        let grown = Grown::of(profile);
        let kept = grown.kept(limits);
        grown.folded(&kept)
    }

    pub fn root(&self) -> &Node {
        &self.nodes[0]
    }
}

impl Grown {
    fn of(profile: &Profile) -> Grown {
        let mut grown = Grown {
            edges: vec![None],
            shares: vec![Share::default()],
            own: vec![Share::default()],
            parents: vec![0],
            children: vec![Vec::new()],
        };
        let mut known: HashMap<(usize, Edge), usize> = HashMap::new();
        for sample in &profile.samples {
            let path = &profile.paths[sample.path];
            let first = [
                Some(Edge::Place(profile.place(sample))),
                path.truncated.then_some(Edge::Cut),
            ];
            let nothing = path.frames.is_empty().then_some(Edge::NoStack);
            let frames = path.frames.iter().map(|&frame| Edge::Frame(frame));
            let mut at = 0;
            grown.shares[at].join(sample.live);
            for edge in first.into_iter().flatten().chain(nothing).chain(frames) {
                at = *known
                    .entry((at, edge))
                    .or_insert_with_key(|(parent, edge)| grown.sprout(*parent, edge));
                grown.shares[at].join(sample.live);
            }
            grown.own[at].join(sample.live);
        }
        grown
    }

    fn sprout(&mut self, parent: usize, edge: &Edge) -> usize {
        let node = self.edges.len();
        self.edges.push(Some(edge.clone()));
        self.shares.push(Share::default());
        self.own.push(Share::default());
        self.parents.push(parent);
        self.children.push(Vec::new());
        self.children[parent].push(node);
        node
    }

    /// The nodes on the way to the largest stacks, those large enough.
    fn kept(&self, limits: &Limits) -> Vec<bool> {
        let mut ends: Vec<usize> = (0..self.own.len()).filter(|&node| self.own[node].count > 0).collect();
        ends.sort_by_key(|&node| (Reverse((self.own[node].bytes, self.own[node].count)), node));
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
        for (node, kept) in kept.iter_mut().enumerate().skip(1) {
            *kept &= self.shares[node].bytes >= limits.min_bytes;
        }
        kept
    }

    /// Takes the kept nodes over, each with the single file of frames behind it.
    fn folded(&self, kept: &[bool]) -> Tree {
        let mut tree = Tree { nodes: Vec::new() };
        // Where a node comes from, and where it is linked in.
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
                    && self.own[at].count == 0
                    && kept[only]
                    && let Some(Edge::Frame(frame)) = self.edges[only]
                {
                    frames.push(frame);
                    at = only;
                }
            }
            let (mut shown, cut): (Vec<usize>, Vec<usize>) = self.children[at].iter().partition(|&&child| kept[child]);
            shown.sort_by_key(|&child| (Reverse((self.shares[child].bytes, self.shares[child].count)), child));
            let node = tree.nodes.len();
            tree.nodes.push(Node {
                step,
                share: self.shares[at],
                children: Vec::new(),
                hidden: Share::total(cut.iter().map(|&child| self.shares[child])),
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
