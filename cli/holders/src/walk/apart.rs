//! Memory that is searched apart from the copy, for blocks that nothing in the copy holds.
//!
//! ```text
//! word of a reached object ─► area ─► block, chunk, other area
//! ```
//!
//! An area counts as reached if a word that was followed points into it; the first such word holds it. All of its words count then,
//! because its allocator is not known, so what they lead to is possibly held. The CUDA driver has shared memory, too: a pointer on
//! a stack does not count if the driver's own memory points to the area as well.

use std::ops::Range;

use super::Walk;
use crate::copy::Image;
use crate::copy::apart::{Area, is_apart};
use crate::copy::selection::containing;
use crate::graph::{Edge, NodeId, NodeKind, Phase, State};
use crate::{Map, Set};

/// Memory that is searched apart, and what was found in it.
#[derive(Default)]
pub(crate) struct InApart {
    /// The mappings, by address.
    ranges: Vec<Range<u64>>,
    /// The first word that leads to each of them, by where the mapping begins: its node, and when it was followed.
    holders: Map<u64, (NodeId, Edge, Phase)>,
    /// The nodes of those that were reached.
    pub entered: Set<NodeId>,
    /// Indices of blocks to which a pointer lies in an area that nothing leads to.
    pub pointed: Set<usize>,
    /// Bytes that were not searched.
    pub left_out: u64,
}

impl InApart {
    pub fn new(copy: &Image) -> InApart {
        let regions = copy.regions().iter().filter(|region| is_apart(region));
        InApart {
            ranges: regions.map(|region| region.range.clone()).collect(),
            ..InApart::default()
        }
    }

    /// Notes a word that leads out of the copy.
    pub fn note(&mut self, from: NodeId, edge: Edge, phase: Phase, value: u64) {
        if let Some(range) = containing(&self.ranges, value, Range::clone) {
            self.holders.entry(range.start).or_insert((from, edge, phase));
        }
    }
}

impl Walk<'_, '_> {
    /// Searches memory apart from the copy. What it leads to may be stale.
    pub fn search_apart(&mut self) {
        self.phase = Phase::Rest;
        let apart = self.copy.apart();
        self.apart.left_out = apart.bytes_left_out();
        let of_driver = self.areas_of_driver(&apart.areas);
        let (of_driver, mut open): (Vec<&Area>, Vec<&Area>) =
            (apart.areas.iter()).partition(|area| of_driver.contains(&area.range.start));
        // Those that are entered lead to others.
        let is_reached = |walk: &Self, area: &Area| walk.apart.holders.contains_key(&area.range.start);
        while let Some(place) = open.iter().position(|area| is_reached(self, area))
            && self.budget.has_time()
        {
            self.enter(open.remove(place));
            self.run();
        }
        self.search_late();
        for area in open.into_iter().chain(of_driver) {
            area.read(self.copy.source(), &mut |_, words| {
                let blocks = words.filter_map(|value| self.index.find(value));
                self.apart.pointed.extend(blocks.map(|(block, _)| block));
                self.budget.has_time()
            });
        }
    }

    /// Whether memory apart from the copy may hold a block that nothing else does. Those of PyTorch are held by objects only.
    pub fn may_be_apart(&self) -> bool {
        (0..self.index.asked().len()).any(|block| {
            let is_explained =
                self.found[block].is_some() || self.numbers[block].is_some() || self.ends[block].is_some();
            !is_explained && !self.index.is_of_torch(block)
        })
    }

    /// Where the areas begin to which only stacks and memory of the CUDA driver lead.
    fn areas_of_driver(&mut self, areas: &[Area]) -> Set<u64> {
        let of_stack = |range: &Range<u64>| {
            let holder = self.apart.holders.get(&range.start);
            holder.is_some_and(|holder| holder.2 >= Phase::Stacks && self.graph.kind(holder.0) == NodeKind::Root)
        };
        let ranges = areas.iter().map(|area| area.range.clone());
        let ranges: Vec<Range<u64>> = ranges.filter(of_stack).collect();
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
            return Set::default();
        };
        if !self.budget.has_time() {
            return Set::default();
        }
        let span = first.start..last.end;
        let (copy, native, graph) = (self.copy, &*self.native, &self.graph);
        let owned = |at: u64| {
            let start = native.around(copy, at).map_or(at, |chunk| chunk.start);
            graph.reached(copy, start).is_none() && native.is_driver(copy, start)
        };
        let words = copy.search(
            |value| span.contains(&value),
            |at, value| {
                let range = containing(&ranges, value, Range::clone)?;
                owned(at).then_some(range.start)
            },
        );
        words.into_iter().collect()
    }

    /// Follows the words of an area that was reached.
    fn enter(&mut self, area: &Area) {
        let (parent, edge, _) = self.apart.holders[&area.range.start];
        let Some(id) = self.graph.add(self.copy, area.range.start, NodeKind::Native) else {
            return;
        };
        self.graph.add_target(parent, id);
        let state = State {
            phase: self.phase,
            is_weak: true,
            cost: self.cost,
            unnamed: 1,
            ..State::default()
        };
        self.graph.place(id, parent, edge, state);
        self.apart.entered.insert(id);
        self.graph.begin_scan(id);
        self.behind = 0;
        area.read(self.copy.source(), &mut |start, words| {
            for (place, value) in ((start - area.range.start) / 8..).zip(words) {
                self.word(id, Edge::word(place), value);
            }
            self.budget.has_time()
        });
        self.graph.end_scan(id);
    }
}
