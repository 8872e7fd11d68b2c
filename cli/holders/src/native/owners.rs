//! Whose memory pages are, and how much of it is resident.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Native;
use super::pages::{Chunk, Heap, Owner};
use crate::copy::{Image, PAGE};

impl Native {
    /// The resident bytes of a chunk of glibc or of Python's allocator, with its header.
    pub fn resident(&self, chunk: &Chunk) -> u64 {
        let header = if chunk.heap == Heap::Glibc { 8 } else { 0 };
        let whole = chunk.start - header..chunk.start + chunk.bytes;
        match chunk.bytes > PAGE {
            true => (self.pages.present(whole.clone()))
                .map(|part| part.end.min(whole.end) - part.start.max(whole.start))
                .sum(),
            false => whole.end - whole.start,
        }
    }

    /// The chunks in use that begin in pages of this kind in these ranges, whole pages; the CUDA driver's included.
    pub fn chunks_in(&self, copy: &Image, ranges: &[Range<u64>], of: Heap) -> Vec<Chunk> {
        let mut found = Vec::new();
        self.pages.each_start_in(copy, ranges, of, &mut |start| {
            found.push(self.starting(copy, start, of))
        });
        found
    }

    /// Whose memory the page with this address is, if it is Python's or malloc's.
    pub fn owner(&self, copy: &Image, address: u64) -> Option<Owner> {
        match self.pages.kind_at(copy, address) {
            Heap::Python => Some(Owner::Python),
            Heap::Glibc => Some(self.heaps.arena(address).map_or(Owner::Mapped, Owner::Arena)),
            Heap::None | Heap::Unknown => None,
        }
    }

    /// The bytes of the copied pages of a range by owner. Stacks contain the thread-local memory of their threads.
    pub fn owners(&self, copy: &Image, range: &Range<u64>) -> BTreeMap<Owner, u64> {
        let mut found = BTreeMap::new();
        for page in self.pages.addresses(range.clone()) {
            if let Some(owner) = self.owner(copy, page) {
                *found.entry(owner).or_default() += PAGE;
            }
        }
        let stacks = self.stacks.iter().filter_map(|stack| stack.whole.clone());
        let common = stacks.map(|stack| stack.start.max(range.start)..stack.end.min(range.end));
        let parts = common.filter(|part| !part.is_empty());
        let bytes: u64 = parts.map(|part| self.pages.bytes(part)).sum();
        if bytes > 0 {
            found.insert(Owner::Stack, bytes);
        }
        found
    }
}
