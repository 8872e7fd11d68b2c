//! The words of native memory.

use std::ops::Range;

use super::rules::{STORAGE_BYTES, is_short_text};
use super::{Tail, WORD, Walk};
use crate::copy::PAGE;
use crate::graph::{BlockEdge, Edge, EdgeKind, NodeId};
use crate::native::Chunk;

impl Walk<'_, '_> {
    /// Where the last words of chunks lead to: half of them are stale, so they come after all that is certain. What they lead
    /// to belongs to the phase in which the chunk was reached.
    pub fn search_tails(&mut self) {
        while !self.tails.is_empty() && self.stopped().is_none() {
            let mut tails = std::mem::take(&mut self.tails);
            tails.sort_by_key(|(Tail::Block(from, ..) | Tail::Node(from, ..))| self.graph.phase(*from));
            for tail in tails {
                let (Tail::Block(from, ..) | Tail::Node(from, ..)) = tail;
                let phase = self.graph.phase(from);
                if phase != self.phase {
                    self.run();
                    self.phase = phase;
                }
                match tail {
                    Tail::Block(from, edge, block, interior) if self.found[block].is_none() => {
                        self.block(from, edge, block, interior);
                        if let Some(pointer) = &mut self.found[block] {
                            pointer.weak = true;
                        }
                    }
                    Tail::Block(from, edge, block, interior) => self.tail_to_block(from, edge, block, interior),
                    // A stale word that leads to the driver's memory would lead to every block.
                    Tail::Node(_, _, id, _) if self.native.is_driver(self.copy, self.graph.address(id)) => {}
                    Tail::Node(from, edge, id, unnamed) => self.offer(id, from, edge, WORD, true, unnamed),
                }
            }
            self.run();
        }
    }

    /// Adds what remains: blocks that have a holder, to which the last words of chunks point, too.
    pub fn keep_tails(&mut self) {
        for tail in std::mem::take(&mut self.tails) {
            if let Tail::Block(from, edge, block, interior) = tail {
                self.tail_to_block(from, edge, block, interior);
            }
        }
    }

    /// The word may be a second holder, without which the first one does not retain the block.
    fn tail_to_block(&mut self, from: NodeId, edge: Edge, block: usize, interior: bool) {
        self.add_block_edge(BlockEdge {
            block: block as u32,
            node: from,
            edge,
            interior,
            weak: true,
        });
    }

    /// malloc rounds up to 8 more than a multiple of 16: the last word may be what its previous owner left there.
    pub(super) fn unnamed_words(&mut self, from: NodeId, chunk: Chunk) {
        let has_tail = chunk.bytes % 16 == 8 && chunk.bytes > 8;
        let tail = chunk.start + chunk.bytes - if has_tail { 8 } else { 0 };
        self.words(from, chunk.start..tail);
        if has_tail {
            self.is_tail = true;
            self.behind = 0;
            let edge = Edge::new(EdgeKind::Word, (tail - chunk.start) / 8);
            self.word(from, edge, self.copy.word(tail));
            self.is_tail = false;
        }
    }

    pub(super) fn storage(&mut self, from: NodeId, chunk: Chunk) {
        for place in 0..chunk.bytes.min(STORAGE_BYTES) / 8 {
            if let Some((block, interior)) = self.index.find(self.copy.word(chunk.start + place * 8)) {
                self.block(from, Edge::new(EdgeKind::Word, place), block, interior);
            }
        }
    }

    pub(super) fn words(&mut self, from: NodeId, range: Range<u64>) {
        let copy = self.copy;
        let start = range.start.next_multiple_of(8);
        let mut page = start & !(PAGE - 1);
        while page < range.end {
            if let Some(words) = copy.page(page) {
                let first = (start.max(page) - page) / 8;
                let last = (range.end.min(page + PAGE) - page) / 8;
                for place in first..last {
                    let value = words[place as usize];
                    if value >= PAGE {
                        let at = page + place * 8;
                        if is_short_text(words, place as usize, page) {
                            continue;
                        }
                        self.behind = match words.get(place as usize + 1) {
                            Some(behind) => *behind,
                            None => copy.word(at + 8),
                        };
                        self.word(from, Edge::new(EdgeKind::Word, (at - start) / 8), value);
                    }
                }
            }
            page += PAGE;
        }
    }
}
