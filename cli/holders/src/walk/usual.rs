//! Where pointers to the memory of blocks usually are.
//!
//! A framework refers to each of its buffers in the same way: a class has the pointer at one offset, the owner of that class
//! at another, and so on up to a Python object. Words that a chunk has left from its previous owner point to the same
//! memory, but each from another place.
//!
//! ```text
//! ArrayImpl +112 ─► PjRtArray +152 ─► Buffer +16 ─► Memory +8 ─► block      38 of 38
//! CacheEntry +248 ────────────────────────────────► Memory                   1 of 38
//! ```
//!
//! So, for each memory that a pointer leads to, places are compared by how many memories of its role they lead to. One that
//! leads to half as many as the best place or fewer is *unusual*: it is followed only after everything else. A place in memory without a
//! class is known better if objects with a class have that memory: see [`Fields`]. Memory that
//! has unusual places only loses none of them, but it is not known what frees it.

use std::ops::Range;

use super::fields::{Fields, Words};
use super::rules::object_in;
use crate::blocks::BlockIndex;
use crate::copy::{Image, PAGE};
use crate::native::{Chunk, ClassId, Heap, Native};
use crate::python::{Python, TypeId};
use crate::{Map, Set};

/// Owners above a block that are looked at.
const LEVELS: usize = 8;
/// A place that leads to fewer is no evidence against others.
const LEAST: u32 = 4;
/// Pointers that are looked at per level. The memory of a hostile process consists of them.
const MOST: usize = 1 << 20;

/// What memory is used for: that of one class, or that with the same pointer to memory of one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Role(u32);

const BLOCK: Role = Role(0);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Owner {
    Object(TypeId),
    Class(ClassId),
    Unnamed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum RoleKey {
    Class(ClassId),
    Leads(u64, Role),
}

/// A pointer of one owner, by its offset in words, to memory of a role.
type Place = (Owner, u64, Role);

/// A pointer that was found: its owner, and the memory that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Hit {
    place: Place,
    target: u64,
    owner: u64,
}

/// Where pointers to the memory of blocks usually are.
#[derive(Default)]
pub(crate) struct UsualPlaces {
    /// To how many memories each place leads.
    counts: Map<Place, u32>,
    /// By the start of the chunk, or by the index of the block: the largest such number of its places.
    best: Map<(Role, u64), u32>,
    roles: Map<u64, Role>,
    /// Chunks that are arrays of pointers to memory of a role.
    arrays: Set<(u64, Role)>,
    pub(super) fields: Fields,
    /// By block: the largest number of pieces of memory that lead to blocks like one of its words.
    alike: Map<usize, u32>,
}

impl UsualPlaces {
    /// Blocks of PyTorch's allocator are left out: only classes that are known hold these.
    pub fn find(copy: &Image, python: &mut Python, native: &mut Native, index: &BlockIndex) -> UsualPlaces {
        let mut usual = UsualPlaces::default();
        if index.of_driver().len() < LEAST as usize {
            return usual;
        }
        let mut names: Map<RoleKey, Role> = Map::default();
        let mut all = Words::default();
        let mut of_blocks: Vec<Hit> = Vec::new();
        let mut hits = words(copy, index.span(), |value| {
            let (block, _) = index.find(value)?;
            (!index.is_of_torch(block)).then_some((BLOCK, block as u64))
        });
        for _ in 0..LEVELS {
            let mut found = Vec::new();
            for (address, role, target) in hits {
                if let Some((owner, chunk)) = owner_of(copy, python, native, address)
                    && chunk.start != target
                {
                    let place = (owner, (address - chunk.start) / 8, role);
                    let owner = chunk.start;
                    found.push(Hit { place, target, owner });
                }
            }
            let next = usual.add(&mut found, &mut names);
            if of_blocks.is_empty() {
                of_blocks.clone_from(&found);
            }
            for Hit { place, target, owner } in found {
                match place.0 {
                    Owner::Object(_) => {}
                    Owner::Class(class) => all.add(owner, Some(class), place.1, target),
                    Owner::Unnamed => all.add(owner, None, place.1, target),
                }
            }
            if next.is_empty() {
                break;
            }
            hits = usual.pointers_to(copy, native, &next);
        }
        usual.fields = all.count();
        for Hit { place, target, owner } in of_blocks {
            let alike = usual.alike(place, owner);
            let known = usual.alike.entry(target as usize).or_default();
            *known = alike.max(*known);
        }
        usual
    }

    /// How many pieces of memory lead to blocks like this word, in memory with a class or of an object with one.
    fn alike(&self, place: Place, owner: u64) -> u32 {
        match place.0 {
            Owner::Object(_) => 0,
            Owner::Class(_) => self.counts.get(&place).copied().unwrap_or(0),
            Owner::Unnamed => self.fields.alike(owner, place.1),
        }
    }

    /// Counts these pointers, and returns the chunks that usually have them and were not known.
    fn add(&mut self, hits: &mut Vec<Hit>, names: &mut Map<RoleKey, Role>) -> Vec<u64> {
        hits.sort_unstable();
        hits.dedup();
        for hits in hits.chunk_by(|a, b| (a.place, a.target) == (b.place, b.target)) {
            *self.counts.entry(hits[0].place).or_default() += 1;
        }
        for Hit { place, target, .. } in &*hits {
            let best = self.best.entry((place.2, *target)).or_default();
            *best = self.counts[place].max(*best);
        }
        hits.sort_unstable_by_key(|hit| (hit.owner, hit.place.2, hit.place.1));
        for hits in hits.chunk_by(|a, b| (a.owner, a.place.2) == (b.owner, b.place.2)) {
            let words = hits[hits.len() - 1].place.1 - hits[0].place.1 + 1;
            if hits.len() >= LEAST as usize && hits.len() as u64 * 3 >= words {
                self.arrays.insert((hits[0].owner, hits[0].place.2));
            }
        }
        let mut next = Vec::new();
        for Hit { place, target, owner } in &*hits {
            let named = match place.0 {
                Owner::Object(_) => continue,
                Owner::Class(class) => RoleKey::Class(class),
                Owner::Unnamed => RoleKey::Leads(place.1, place.2),
            };
            let count = self.counts[place];
            if count >= LEAST && !is_less_usual(count, self.best[&(place.2, *target)]) {
                let number = names.len() as u32 + 1;
                let role = *names.entry(named).or_insert(Role(number));
                if !self.roles.contains_key(owner) {
                    self.roles.insert(*owner, role);
                    next.push(*owner);
                }
            }
        }
        next.sort_unstable();
        next
    }

    /// Words that point to these chunks or into them.
    fn pointers_to(&self, copy: &Image, native: &Native, starts: &[u64]) -> Vec<(u64, Role, u64)> {
        let limits = |start: &u64| Some((*start, native.chunk(copy, *start)?.bytes));
        let (first, last) = (starts.first().and_then(limits), starts.last().and_then(limits));
        let (Some((from, _)), Some((last, bytes))) = (first, last) else {
            return Vec::new();
        };
        let to = last + bytes;
        words(copy, from..to, |value| {
            if value & 7 != 0 {
                return None;
            }
            let place = starts.partition_point(|start| *start <= value).checked_sub(1)?;
            let start = starts[place];
            (value - start < native.chunk(copy, value)?.bytes && native.chunk(copy, value)?.start == start)
                .then(|| (self.roles[&start], start))
        })
    }

    /// Whether other pointers to this chunk are more usual than one at this offset, in words.
    pub fn is_unusual(&self, owner: u64, class: Option<ClassId>, offset: u64, chunk: u64) -> bool {
        match self.roles.get(&chunk) {
            Some(role) => self.is_less(owner, class, offset, *role, chunk),
            None => false,
        }
    }

    /// As above, of a block.
    pub fn is_unusual_of_block(&self, owner: u64, class: Option<ClassId>, offset: u64, block: usize) -> bool {
        let place = (class.map_or(Owner::Unnamed, Owner::Class), offset, BLOCK);
        let most = self.alike.get(&block).copied().unwrap_or(0);
        self.is_less(owner, class, offset, BLOCK, block as u64)
            || is_less_usual(self.alike(place, owner), most) && !self.arrays.contains(&(owner, BLOCK))
    }

    fn is_less(&self, owner: u64, class: Option<ClassId>, offset: u64, role: Role, target: u64) -> bool {
        let Some(best) = self.best.get(&(role, target)) else {
            return false;
        };
        let place = (class.map_or(Owner::Unnamed, Owner::Class), offset, role);
        let count = self.counts.get(&place).copied().unwrap_or(0);
        is_less_usual(count, *best) && !self.arrays.contains(&(owner, role))
    }
}

pub(super) fn is_less_usual(count: u32, best: u32) -> bool {
    best >= LEAST && count <= best / 2
}

fn owner_of(copy: &Image, python: &mut Python, native: &mut Native, address: u64) -> Option<(Owner, Chunk)> {
    let chunk = native
        .around(copy, address)
        .filter(|chunk| chunk.heap != Heap::Unknown)?;
    if native.is_driver(copy, chunk.start) {
        return None;
    }
    let owner = match object_in(copy, python, chunk) {
        Some(object) => Owner::Object(python.object(copy, object)?),
        None => native
            .classes
            .chunk(copy, chunk.start)
            .map_or(Owner::Unnamed, Owner::Class),
    };
    Some((owner, chunk))
}

/// The words of the copy that lead to what is wanted, which is in this span: address, and what `wanted` says of the value.
fn words(copy: &Image, span: Range<u64>, wanted: impl Fn(u64) -> Option<(Role, u64)> + Sync) -> Vec<(u64, Role, u64)> {
    let bytes = span.end.saturating_sub(span.start);
    let is_near = |value: u64| value.wrapping_sub(span.start) < bytes;
    let wanted = |address: u64, value: u64| {
        let (role, target) = wanted(value).filter(|_| value >= PAGE)?;
        Some((address, role, target))
    };
    let mut found = copy.search(is_near, wanted);
    found.truncate(MOST);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(offset: u64, target: u64, owner: u64) -> Hit {
        Hit {
            place: (Owner::Unnamed, offset, BLOCK),
            target,
            owner,
        }
    }

    #[test]
    fn a_place_that_leads_to_few_is_unusual_if_another_leads_to_many() {
        let mut usual = UsualPlaces::default();
        // Eight blocks have a pointer at word 1 of an own chunk; word 30 of a large chunk leads to one of them, and is all that
        // leads to another one.
        let mut hits: Vec<Hit> = (0..8).map(|block| hit(1, block, 1000 + block * 64)).collect();
        hits.extend([hit(30, 7, 9000), hit(40, 8, 9000)]);
        let owners = usual.add(&mut hits, &mut Map::default());
        assert_eq!(owners.len(), 8);
        assert!(!usual.is_unusual_of_block(1000, None, 1, 0));
        assert!(usual.is_unusual_of_block(9000, None, 30, 7));
        assert!(!usual.is_unusual_of_block(9000, None, 40, 8));
    }

    #[test]
    fn an_array_of_pointers_has_them_at_all_offsets() {
        let mut usual = UsualPlaces::default();
        let mut hits: Vec<Hit> = (0..8).map(|block| hit(1, block, 1000 + block * 64)).collect();
        hits.extend((0..8).map(|block| hit(10 + block, block, 9000)));
        usual.add(&mut hits, &mut Map::default());
        assert!(!usual.is_unusual_of_block(9000, None, 12, 2));
        assert!(usual.is_unusual_of_block(9999, None, 12, 2));
    }
}
