//! Pointers into blocks from memory whose class is not known.
//!
//! Such a word may be what an earlier owner of the memory left there. If another pointer leads to the start of the block, that one
//! holds it, and the others are not counted. In processes without PyTorch or JAX, most memory has no class.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{Kind, Pointer, Walk};
use crate::graph::{BlockEdge, NodeId, NodeKind, Phase};

impl Walk<'_, '_> {
    /// Gives the blocks that were found by such a pointer one to their start, if there is one.
    pub fn prefer_starts(&mut self) {
        if self.unnamed > 1 {
            return;
        }
        let mut starts: HashMap<usize, Option<BlockEdge>, FixedState> = HashMap::default();
        for block in 0..self.found.len() {
            let Some(found) = self.found[block].filter(|found| found.interior) else {
                continue;
            };
            if !self.index.is_of_torch(block) && is_early(found.phase) && self.is_of_unnamed(found.node) {
                starts.insert(block, None);
            }
        }
        if starts.is_empty() {
            return;
        }
        for edge in self.graph.block_edges() {
            let block = edge.block as usize;
            let Some(best) = starts.get_mut(&block) else { continue };
            let order = |edge: BlockEdge| (edge.weak, self.graph.phase(edge.node));
            let may_hold = !edge.interior && !edge.unusual && is_early(self.graph.phase(edge.node));
            if may_hold
                && best.is_none_or(|best| order(*edge) < order(best))
                && !self.may_be_end(edge.node, edge.edge, block)
            {
                *best = Some(*edge);
            }
        }
        starts.retain(|_, best| best.is_some());
        for (block, edge) in &starts {
            self.found[*block] = edge.map(|edge| Pointer {
                node: edge.node,
                edge: edge.edge,
                interior: false,
                phase: self.graph.phase(edge.node),
                weak: edge.weak,
            });
        }
        let into: Vec<usize> = (0..self.graph.block_edges().len())
            .filter(|place| {
                let edge = self.graph.block_edges()[*place];
                edge.interior && starts.contains_key(&(edge.block as usize)) && self.is_of_unnamed(edge.node)
            })
            .collect();
        self.graph.mark_unusual(&into);
    }

    fn is_of_unnamed(&mut self, node: NodeId) -> bool {
        self.graph.kind(node) == NodeKind::Native && self.kind_of(self.graph.address(node)) == Kind::Unnamed
    }
}

fn is_early(phase: Phase) -> bool {
    matches!(phase, Phase::Python | Phase::Globals)
}
