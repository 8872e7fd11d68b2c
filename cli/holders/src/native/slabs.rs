//! The pieces of allocators that divide runs of pages into pieces of one size: jemalloc and tcmalloc.
//!
//! ```text
//! slab: │ piece │ piece │ piece │ … │ unused │     one bit per piece: it is in use
//! ```
//!
//! A large piece is the only one of its slab. The pieces have no headers, so a pointer to the end of one is a pointer to the
//! next one.

use std::ops::Range;

use super::pages::{Kind, Pages};
use crate::copy::Copy;

const GRANULES: usize = 256;

/// A run of pages.
#[derive(Debug, Clone, Copy)]
pub struct Slab {
    /// Of the first piece.
    pub start: u64,
    /// Of each piece.
    pub bytes: u64,
    pub count: u64,
    /// Of a piece: what the program requested at least. What follows may be left from an earlier owner.
    pub requested: u64,
}

impl Slab {
    pub fn end(&self) -> u64 {
        self.start + self.bytes * self.count
    }
}

/// A piece of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub start: u64,
    pub bytes: u64,
    pub requested: u64,
    pub is_used: bool,
}

/// All slabs of a copy.
#[derive(Default)]
pub struct Slabs {
    /// By address, each with the number of its first bit.
    all: Vec<(Slab, usize)>,
    used: Vec<u64>,
    /// By page of the copy: the number of its slab, plus 1.
    of_page: Vec<u32>,
    /// Static memory with pointers to pieces that hold nothing.
    pub records: Vec<Range<u64>>,
    /// The allocators that were recognised.
    pub names: Vec<&'static str>,
}

impl Slabs {
    /// Adds slabs, all of whose pieces are in use. Of those that overlap, which a torn copy may have, only one counts.
    pub fn add(&mut self, copy: &Copy, pages: &mut Pages, slabs: &[Slab]) {
        let known = self.used.len();
        self.all.extend(slabs.iter().map(|slab| (*slab, usize::MAX)));
        self.all.sort_by_key(|(slab, _)| slab.start);
        let mut end = 0;
        self.all.retain(|(slab, _)| {
            let is_apart = slab.start >= end;
            end = end.max(slab.end());
            is_apart
        });
        let mut words = known;
        for (slab, first) in self.all.iter_mut().filter(|(_, first)| *first == usize::MAX) {
            *first = words * 64;
            words += slab.count.div_ceil(64) as usize;
        }
        self.used.resize(words, u64::MAX);
        self.of_page = vec![0; copy.granules() / GRANULES];
        for (number, (slab, _)) in self.all.iter().enumerate() {
            pages.set_kind(copy, slab.start..slab.end(), Kind::Extent);
            for page in pages.addresses(slab.start..slab.end()) {
                if let Some(granule) = copy.granule(page) {
                    self.of_page[granule / GRANULES] = number as u32 + 1;
                }
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn slab(&self, copy: &Copy, address: u64) -> Option<&(Slab, usize)> {
        let place = match copy.granule(address) {
            Some(granule) => *self.of_page.get(granule / GRANULES)? as usize,
            // Most of a large piece may never have been used.
            None => self.all.partition_point(|(slab, _)| slab.start <= address),
        };
        self.all.get(place.checked_sub(1)?)
    }

    /// The piece that contains this address, in use or not, and the number of its bit.
    fn find(&self, copy: &Copy, address: u64) -> Option<(Piece, usize)> {
        let (slab, first) = self.slab(copy, address)?;
        let number = address.checked_sub(slab.start)? / slab.bytes;
        if number >= slab.count {
            return None;
        }
        let bit = first + number as usize;
        let piece = Piece {
            start: slab.start + number * slab.bytes,
            bytes: slab.bytes,
            requested: slab.requested,
            is_used: self.used[bit / 64] >> (bit % 64) & 1 != 0,
        };
        Some((piece, bit))
    }

    /// The piece in use that contains this address.
    #[inline]
    pub fn piece(&self, copy: &Copy, address: u64) -> Option<Piece> {
        let (piece, _) = self.find(copy, address)?;
        piece.is_used.then_some(piece)
    }

    /// The piece that starts here is free. Returns it if it counted as used.
    pub fn free(&mut self, copy: &Copy, start: u64) -> Option<Piece> {
        let (piece, bit) = self.find(copy, start)?;
        if piece.start != start || !piece.is_used {
            return None;
        }
        self.used[bit / 64] &= !(1 << (bit % 64));
        Some(piece)
    }

    /// Calls `see` with each piece in use, by address.
    pub fn each(&self, see: &mut dyn FnMut(u64, u64)) {
        for (slab, first) in &self.all {
            for number in 0..slab.count as usize {
                let bit = first + number;
                if self.used[bit / 64] >> (bit % 64) & 1 != 0 {
                    see(slab.start + number as u64 * slab.bytes, slab.bytes);
                }
            }
        }
    }
}
