//! Reads the objects on the paths again, and checks that each reference is still there.
//!
//! A path may join objects of different times, because a process goes on while its memory is copied. What is still there when
//! it is read again existed as a whole at the time between the two.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

use super::names::Names;
use crate::copy::{Copy, PAGE};
use crate::graph::{Edge, EdgeKind, NodeId, NodeKind, Root};
use crate::native::NativeRoot;

/// Nodes that are read again.
const NODES: usize = 500_000;

/// Pages that are read again: 512 MiB.
const PAGES: usize = 1 << 17;

/// The pages that some paths are read from.
#[derive(Default)]
pub(super) struct Pages {
    pages: HashSet<u64, FixedState>,
    nodes: HashSet<NodeId, FixedState>,
}

impl Pages {
    /// Whether more paths can be added.
    pub fn has_room(&self) -> bool {
        self.nodes.len() < NODES && self.pages.len() < PAGES
    }

    pub fn add(&mut self, names: &mut Names, path: &[(NodeId, Edge)]) {
        // From the block on: what is known already has been added with all above it.
        for &(node, edge) in path.iter().rev() {
            let is_new = self.nodes.insert(node);
            let address = names.searched.graph.address(node);
            let copy = names.searched.copy;
            match names.searched.graph.kind(node) {
                NodeKind::Root => match names.searched.graph.root(node) {
                    Some(Root::Native { start, .. }) => self.range(copy, start + edge.index() * 8, 8),
                    _ => {}
                },
                NodeKind::Frame if is_new => self.range(copy, address, FRAME),
                NodeKind::Native => {
                    self.range(copy, address, 16);
                    self.range(copy, address + edge.index() * 8, 16);
                }
                NodeKind::Python if is_new => self.object(names, node),
                _ if !is_new => break,
                _ => {}
            }
        }
    }

    fn object(&mut self, names: &mut Names, node: NodeId) {
        let address = names.searched.graph.address(node);
        let copy = names.searched.copy;
        let of = names.type_of(node);
        if let (Some(python), Some(of)) = (&mut names.searched.python, of) {
            let extent = python.extent(copy, address, of);
            let mut ranges = python.arrays(copy, address, of);
            ranges.push(extent);
            for range in ranges {
                self.range(copy, range.start, range.end.saturating_sub(range.start));
            }
        }
    }

    fn range(&mut self, copy: &Copy, start: u64, bytes: u64) {
        let mut page = start & !(PAGE - 1);
        let end = start.saturating_add(bytes);
        while page < end && self.pages.len() < PAGES {
            if copy.has(page) {
                self.pages.insert(page);
            }
            page += PAGE;
        }
    }

    pub fn sorted(&self) -> Vec<u64> {
        let mut pages: Vec<u64> = self.pages.iter().copied().collect();
        pages.sort_unstable();
        pages
    }
}

/// Bytes of a frame that are read again: its locals lie behind its head.
const FRAME: u64 = 2048;

/// Compares paths with memory that was read again.
pub(super) struct Check<'n, 'c> {
    newer: &'n Copy<'c>,
    /// What objects refer to now.
    targets: HashMap<NodeId, HashSet<u64, FixedState>, FixedState>,
    /// By node: the reference to it is still there, and all before it.
    known: HashMap<NodeId, bool, FixedState>,
    references: Vec<crate::python::Reference>,
}

impl<'n, 'c> Check<'n, 'c> {
    pub fn new(newer: &'n Copy<'c>) -> Check<'n, 'c> {
        Check {
            newer,
            targets: HashMap::default(),
            known: HashMap::default(),
            references: Vec::new(),
        }
    }

    /// Whether all references of a path to a block are still there.
    pub fn holds(&mut self, names: &mut Names, last: (NodeId, Edge), block: u64) -> bool {
        if !self.refers(names, last.0, last.1, block) {
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
                    self.refers(names, parent, edge, target)
                };
            }
            self.known.insert(node, holds);
        }
        holds
    }

    fn refers(&mut self, names: &mut Names, from: NodeId, edge: Edge, target: u64) -> bool {
        let address = names.searched.graph.address(from);
        match names.searched.graph.kind(from) {
            NodeKind::Root => match names.searched.graph.root(from) {
                Some(Root::Native {
                    root: NativeRoot::Registers { .. },
                    ..
                }) => true,
                Some(Root::Native { start, .. }) => self.same_word(names, start + edge.index() * 8),
                _ => true,
            },
            NodeKind::Native => self.is_allocated(names, address) && self.same_word(names, address + edge.index() * 8),
            NodeKind::Python | NodeKind::Frame if edge.kind() == EdgeKind::Word => {
                self.same_word(names, address + edge.index() * 8)
            }
            NodeKind::Python | NodeKind::Frame => {
                if !self.targets.contains_key(&from) {
                    let targets = self.read(names, from);
                    self.targets.insert(from, targets);
                }
                self.targets[&from].contains(&target)
            }
        }
    }

    fn read(&mut self, names: &mut Names, node: NodeId) -> HashSet<u64, FixedState> {
        let address = names.searched.graph.address(node);
        let is_frame = names.searched.graph.kind(node) == NodeKind::Frame;
        self.references.clear();
        if let Some(python) = &mut names.searched.python {
            if is_frame {
                python.frame_references(self.newer, address, &mut self.references);
            } else if let Some(of) = python.object(self.newer, address) {
                python.references(self.newer, address, of, &mut self.references);
            }
        }
        self.references.iter().map(|reference| reference.target).collect()
    }

    fn same_word(&self, names: &Names, address: u64) -> bool {
        self.newer.word(address) == names.searched.copy.word(address)
    }

    /// Freeing a chunk changes its first two words. Both change rarely while it is in use.
    fn is_allocated(&self, names: &Names, address: u64) -> bool {
        self.same_word(names, address) || self.same_word(names, address + 8)
    }
}
