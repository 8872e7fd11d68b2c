//! Reads the objects on the paths again, and checks that each reference is still there.
//!
//! A path may join objects of different times, because a process goes on while its memory is copied. What is still there when
//! it is read again existed as a whole at the time between the two.

use super::names::Names;
use crate::copy::Image;
use crate::graph::{Edge, EdgeKind, NodeId, NodeKind, PythonRoot, Root, ThreadPart};
use crate::native::RootSort;
use crate::{Map, Set};

/// Nodes that are read again.
const NODES: usize = 500_000;

/// Compares paths with memory that was read again.
pub(super) struct Check<'n, 'c> {
    newer: &'n Image<'c>,
    /// What objects refer to now.
    targets: Map<NodeId, Targets>,
    /// By node: the reference to it is still there, and all before it.
    known: Map<NodeId, bool>,
    /// What the roots of Python lead to now.
    rooted: Option<Set<u64>>,
}

/// What an object refers to.
#[derive(Default)]
struct Targets {
    objects: Set<u64>,
    by_edge: Map<Edge, u64>,
}

impl<'n, 'c> Check<'n, 'c> {
    pub fn new(newer: &'n Image<'c>) -> Check<'n, 'c> {
        Check {
            newer,
            targets: Map::default(),
            known: Map::default(),
            rooted: None,
        }
    }

    /// Whether more paths can be read again.
    pub fn has_room(&self) -> bool {
        self.known.len() < NODES && self.newer.has_room()
    }

    /// Whether all references of a path to a block are still there.
    pub fn holds(&mut self, names: &mut Names, last: (NodeId, Edge), block: u64) -> bool {
        if !self.refers(names, last.0, last.1, block, true) {
            return false;
        }
        let mut open = Vec::new();
        let mut at = last.0;
        let base = loop {
            if let Some(known) = self.known.get(&at) {
                break *known;
            }
            open.push(at);
            match names.searched.graph.parent(at) {
                Some((parent, _)) if open.len() <= names.searched.graph.len() => at = parent,
                _ => break true,
            }
        };
        let mut holds = base;
        while let Some(node) = open.pop() {
            if let Some((parent, edge)) = names.searched.graph.parent(node) {
                holds = holds && {
                    let target = names.searched.graph.address(node);
                    self.refers(names, parent, edge, target, false)
                };
            }
            self.known.insert(node, holds);
        }
        holds
    }

    fn refers(&mut self, names: &mut Names, from: NodeId, edge: Edge, target: u64, is_block: bool) -> bool {
        let address = names.searched.graph.address(from);
        match names.searched.graph.kind(from) {
            NodeKind::Root => match names.searched.graph.root(from) {
                Some(Root::Native(root)) if root.sort == RootSort::Registers => true,
                Some(Root::Native(root)) => self.same_word(names, root.range.start + edge.index() * 8),
                Some(Root::Python(root)) if is_of_thread(root) => self.is_rooted(names, target),
                _ => true,
            },
            NodeKind::Native => self.is_allocated(names, address) && self.same_word(names, address + edge.index() * 8),
            NodeKind::Python | NodeKind::Frame => {
                if !self.targets.contains_key(&from) {
                    let targets = read(names, self.newer, from);
                    self.targets.insert(from, targets);
                }
                let now = &self.targets[&from];
                if edge.kind() != EdgeKind::Word && now.objects.contains(&target) {
                    return true;
                }
                // A word may point into something, and a number may be an address.
                let copy = names.searched.copy;
                match read(names, copy, from).by_edge.get(&edge) {
                    Some(before) if edge.kind() == EdgeKind::Word => now.by_edge.get(&edge) == Some(before),
                    Some(before) => is_block && now.objects.contains(before),
                    None => false,
                }
            }
        }
    }

    fn is_rooted(&mut self, names: &mut Names, target: u64) -> bool {
        let newer = self.newer;
        let rooted = self.rooted.get_or_insert_with(|| {
            let mut rooted = Set::default();
            if let Some(python) = &mut names.searched.python {
                python.roots(newer, &mut |_, root| {
                    rooted.insert(root.target);
                });
            }
            rooted
        });
        rooted.contains(&target)
    }

    fn same_word(&self, names: &Names, address: u64) -> bool {
        self.newer.word(address) == names.searched.copy.word(address)
    }

    /// Freeing a chunk changes its first two words. Both change rarely while it is in use.
    fn is_allocated(&self, names: &Names, address: u64) -> bool {
        self.same_word(names, address) || self.same_word(names, address + 8)
    }
}

/// Frames end, and exceptions are handled.
fn is_of_thread(root: &PythonRoot) -> bool {
    matches!(root, PythonRoot::Thread { part, .. } if !matches!(part, ThreadPart::State | ThreadPart::Hook(_)))
}

fn read(names: &mut Names, copy: &Image, node: NodeId) -> Targets {
    let address = names.searched.graph.address(node);
    let is_frame = names.searched.graph.kind(node) == NodeKind::Frame;
    let python = names.searched.python.as_mut();
    let references = python.map(|python| python.references_of(copy, address, is_frame));
    let mut targets = Targets::default();
    for reference in references.unwrap_or_default() {
        if reference.edge.kind() != EdgeKind::Word {
            targets.objects.insert(reference.target);
        }
        targets.by_edge.insert(reference.edge, reference.target);
    }
    targets
}
