//! Memory that is searched apart from the copy, for blocks that nothing in the copy holds.
//!
//! ```text
//! word of a reached object ─► area ─► block, chunk, other area
//! ```
//!
//! An area counts as reached if the word of something that was reached points into it. All of its words count then, because
//! its allocator is not known, so what they lead to is possibly held. The CUDA driver has shared memory, too: a pointer on a
//! stack does not count if the driver's own memory points to the area as well.

use super::{Walk, object_in};
use crate::copy::apart::{Apart, Area};
use crate::graph::{Edge, NodeId, NodeKind, Phase, Placement, Root};

/// Words of the copy that point to one area and are looked at.
const POINTERS: usize = 1 << 16;

/// What was found in memory that is searched apart.
#[derive(Default)]
pub(crate) struct InApart {
    /// The nodes of the areas that were reached, in order, and whether each is shared.
    pub entered: Vec<(NodeId, bool)>,
    /// By the index of the block: a pointer to it lies in an area that nothing leads to, and whether that is shared.
    pub pointed: Vec<Option<bool>>,
    /// Bytes that were not searched.
    pub left_out: u64,
}

/// What contains a word that was reached. Better ones are smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Static,
    Object,
    Chunk,
    Stack,
}

impl Walk<'_, '_> {
    /// Searches memory apart from the copy. What it leads to may be stale.
    pub fn search_apart(&mut self) {
        self.phase = Phase::Rest;
        let apart = self.copy.apart();
        self.apart.pointed = vec![None; self.index.len()];
        self.apart.left_out = apart.bytes_left_out();
        let pointers = self.pointers_to(&apart);
        let mut waiting: Vec<(usize, NodeId, Edge)> = (pointers.into_iter().enumerate())
            .filter_map(|(area, words)| self.holder_of(&words).map(|(node, edge)| (area, node, edge)))
            .collect();
        // The last one is entered first.
        waiting.reverse();
        let mut is_reached = vec![false; apart.areas.len()];
        for (area, ..) in &waiting {
            is_reached[*area] = true;
        }
        while let Some((number, from, edge)) = waiting.pop() {
            let area = &apart.areas[number];
            let Some(id) = self.enter(area, from, edge) else {
                continue;
            };
            self.graph.begin_scan(id);
            area.read(self.copy.source(), &mut |start, words| {
                for (place, value) in words.enumerate() {
                    let word = (start - area.range.start) / 8 + place as u64;
                    let edge = Edge::word(word);
                    match apart.at(value) {
                        Some(other) if !std::mem::replace(&mut is_reached[other], true) => {
                            waiting.push((other, id, edge))
                        }
                        Some(_) => {}
                        None => self.word_apart(id, edge, value),
                    }
                }
                self.budget.has_time()
            });
            self.graph.end_scan(id);
            self.run();
        }
        self.apart.entered.sort_unstable_by_key(|entered| entered.0);
        self.search_late();
        let areas = apart.areas.iter().zip(is_reached);
        for (area, _) in areas.filter(|(_, is_reached)| !is_reached) {
            area.read(self.copy.source(), &mut |_, words| {
                for (block, _) in words.filter_map(|value| self.index.find(value)) {
                    self.apart.pointed[block].get_or_insert(area.shared);
                }
                self.budget.has_time()
            });
        }
    }

    /// Whether memory apart from the copy may hold a block that nothing else does. Those of PyTorch are held by objects only.
    pub fn may_be_apart(&self) -> bool {
        (0..self.index.len()).any(|block| {
            let is_explained =
                self.found[block].is_some() || self.numbers[block].is_some() || self.ends[block].is_some();
            !is_explained && !self.index.is_of_torch(block)
        })
    }

    /// A node for an area that this reference leads to; `None` if there is one, or no room or time.
    fn enter(&mut self, area: &Area, from: NodeId, edge: Edge) -> Option<NodeId> {
        if !self.budget.has_time() || self.graph.find(self.copy, area.range.start).is_some() {
            return None;
        }
        let id = self.graph.add(self.copy, area.range.start, NodeKind::Native)?;
        self.graph.add_target(from, id);
        let at = Placement {
            parent: from,
            edge,
            phase: self.phase,
            weak: true,
            cost: self.cost,
            unnamed: 1,
        };
        self.graph.place(id, at);
        self.apart.entered.push((id, area.shared));
        Some(id)
    }

    /// Only what nothing else leads to: all other holders remain as they are.
    fn word_apart(&mut self, from: NodeId, edge: Edge, value: u64) {
        if let Some((block, interior)) = self.index.find(value) {
            if self.found[block].is_none() && self.numbers[block].is_none() && self.ends[block].is_none() {
                self.block(from, edge, block, interior);
            }
            return;
        }
        let is_copied = self.copied.contains(&value) && self.copy.granule(value).is_some();
        if is_copied && self.graph.reached(self.copy, value).is_none() && self.budget.spend(1) {
            self.behind = 0;
            self.word(from, edge, value);
        }
    }

    /// The words of the copy that point into each area.
    fn pointers_to(&mut self, apart: &Apart) -> Vec<Vec<u64>> {
        let mut pointers = vec![Vec::new(); apart.areas.len()];
        let span = apart.span();
        if apart.areas.is_empty() {
            return pointers;
        }
        for run in self.copy.runs() {
            if !self.budget.has_time() {
                break;
            }
            for (at, value) in self.copy.words(run) {
                if span.contains(&value)
                    && let Some(area) = apart.at(value)
                    && pointers[area].len() < POINTERS
                {
                    pointers[area].push(at);
                }
            }
        }
        pointers
    }

    /// The best of the nodes that contain these words and were reached.
    fn holder_of(&mut self, words: &[u64]) -> Option<(NodeId, Edge)> {
        let mut best: Option<(Rank, NodeId, Edge)> = None;
        let mut is_of_driver = false;
        for &address in words {
            match self.container(address) {
                Ok((rank, node, edge)) if best.is_none_or(|best| rank < best.0) => best = Some((rank, node, edge)),
                Ok(_) => {}
                Err(owned) => is_of_driver |= owned,
            }
        }
        best.filter(|(rank, ..)| !(is_of_driver && *rank == Rank::Stack))
            .map(|(_, node, edge)| (node, edge))
    }

    /// What contains this word, if it was reached. Otherwise whether it is the CUDA driver's.
    fn container(&mut self, address: u64) -> Result<(Rank, NodeId, Edge), bool> {
        if let Some(found) = self.root_at(address) {
            return Ok(found);
        }
        let Some(chunk) = self.native.around(self.copy, address) else {
            return Err(self.native.is_driver(self.copy, address));
        };
        let object = self
            .python
            .as_deref_mut()
            .and_then(|python| object_in(self.copy, python, chunk));
        let (rank, start) = match object {
            Some(object) if object <= address => (Rank::Object, object),
            Some(_) => return Err(false),
            None => (Rank::Chunk, chunk.start),
        };
        match self.graph.reached(self.copy, start) {
            Some(node) => Ok((rank, node, Edge::word((address - start) / 8))),
            None => Err(self.native.is_driver(self.copy, chunk.start)),
        }
    }

    /// The root that this word belongs to.
    fn root_at(&self, address: u64) -> Option<(Rank, NodeId, Edge)> {
        let (id, root) = (self.graph.roots().iter()).find_map(|(id, root)| match root {
            Root::Native(root) if root.range.contains(&address) => Some((*id, root)),
            _ => None,
        })?;
        let rank = if root.sort.is_static() {
            Rank::Static
        } else {
            Rank::Stack
        };
        Some((rank, id, Edge::word((address - root.range.start) / 8)))
    }
}
