//! What only refers to itself, and what is counted more often than it is referred to.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::graph::Edge;

/// Python objects that only refer to each other; `gc.collect()` would free them.
#[derive(Default)]
pub struct Garbage {
    members: Vec<u64>,
    places: HashMap<u64, u32, FixedState>,
    /// For each member, where its referrers begin; and the end.
    firsts: Vec<u32>,
    /// Place of the referring member, and by which field it refers.
    referrers: Vec<(u32, Edge)>,
}

impl Garbage {
    /// Addresses of the objects.
    pub fn members(&self) -> &[u64] {
        &self.members
    }

    /// The place of an object in [`Garbage::members`].
    pub fn place(&self, address: u64) -> Option<usize> {
        self.places.get(&address).map(|place| *place as usize)
    }

    /// The members that refer to this member.
    pub fn referrers(&self, place: usize) -> &[(u32, Edge)] {
        &self.referrers[self.firsts[place] as usize..self.firsts[place + 1] as usize]
    }
}
