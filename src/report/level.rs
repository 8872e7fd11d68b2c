//! Two levels in one list: what the driver handed out, and what a framework handed out of that.
//!
//! A reader wants each byte once, at the level that says who holds it. Where a framework's blocks were recorded, they
//! are listed and the pool behind them is not; a pool whose blocks nobody recorded is listed itself, and called cached
//! rather than held, since nobody can tell which part of it is in use.

use crate::framework::{Carriers, Watched};
use crate::kind::{Kind, Place};
use crate::site::{CallStacks, is_pool};
use crate::snapshot::{Allocation, Snapshot};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Somebody holds this memory: leaked, once the process is over.
    Held,
    /// A caching allocator holds it, and what of it is in use is not known.
    Cached,
    /// A caching allocator holds it, and its blocks are listed in its place.
    Behind,
    /// Holds no memory: a mapping, an address range, a pool object.
    Claim,
}

impl Level {
    /// The level of a record of this kind; `in_pool`: a caching allocator stands on its stack; `blocks_are_known`: what
    /// that allocator handed out of it is recorded, too.
    pub fn of(kind: Kind, in_pool: bool, blocks_are_known: bool) -> Level {
        match kind.place() {
            Place::Within => Level::Held,
            // Blocks on the host are nowhere recorded, so there the pool is all there is.
            Place::Device | Place::Managed | Place::Nowhere if blocks_are_known => Level::Behind,
            Place::Nowhere => Level::Claim,
            _ if is_pool(kind, in_pool) => Level::Cached,
            _ => Level::Held,
        }
    }

    /// Whether the record stands in the list that people read.
    pub fn is_listed(self) -> bool {
        self != Level::Behind
    }
}

/// Tells the level of a snapshot's records.
pub struct Levels<'s, 'a> {
    stacks: &'s CallStacks<'a>,
    watched: Watched<'a>,
    carriers: Carriers<'a>,
}

impl<'s, 'a> Levels<'s, 'a> {
    pub fn of(snapshot: &'a Snapshot, stacks: &'s CallStacks<'a>) -> Levels<'s, 'a> {
        Levels {
            stacks,
            watched: Watched::of(snapshot),
            carriers: Carriers::of(snapshot),
        }
    }

    pub fn level(&self, allocation: &Allocation) -> Level {
        let stack = self.stacks.get(allocation.stack);
        let owner = stack.allocator;
        let blocks_are_known =
            owner.is_some_and(|owner| self.watched.contains(owner)) || self.carriers.owner(allocation).is_some();
        Level::of(allocation.kind, stack.pool, blocks_are_known)
    }
}
