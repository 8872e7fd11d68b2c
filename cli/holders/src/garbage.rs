//! What only refers to itself, and what is counted more often than it is referred to.
//!
//! ```text
//! objects that no root reaches ─┬─ count > references from the others: something outside Python refers to it
//!                               │     └─► and all that these lead to
//!                               └─ the rest is garbage; read again, and counted again ─► garbage
//! ```
//!
//! This is the arithmetic of CPython's collector: it takes away only the references of objects that it tracks, so an object
//! that a `datetime` refers to is held. What the collector frees releases its references, and what these alone held is freed
//! too. In an inconsistent copy, arrays and objects are of different times, so
//! tens of thousands of living objects may look like garbage. Reading those objects and their arrays again and repeating
//! the arithmetic removes them: garbage does not change, and its counts stay explained. A living object has a reference from
//! outside the set, and that is part of its count.

use std::collections::VecDeque;

use culeak::snapshot::Stop;

use crate::Map;
use crate::budget::{Budget, Deadline};
use crate::copy::Image;
use crate::graph::{Edge, EdgeKind, Graph, NodeId, NodeKind, Root};
use crate::native::{Chunk, Heap, Native};
use crate::python::{IMMORTAL, Python, Reference, Sort};

type Places = Map<u64, u32>;

/// References between objects of a set, by the place of the referring object.
#[derive(Default)]
struct References {
    firsts: Vec<u32>,
    all: Vec<(u32, Edge)>,
    /// The collector tracks the referring object.
    is_tracked: Vec<bool>,
}

impl References {
    fn of(&self, place: usize) -> &[(u32, Edge)] {
        &self.all[self.firsts[place] as usize..self.firsts[place + 1] as usize]
    }

    fn targets(&self, place: usize) -> impl Iterator<Item = usize> {
        self.of(place).iter().map(|(target, _)| *target as usize)
    }

    /// The following references are of the next object.
    fn begin(&mut self, is_tracked: bool) {
        self.firsts.push(self.all.len() as u32);
        self.is_tracked.push(is_tracked);
    }

    fn end(&mut self) {
        self.firsts.push(self.all.len() as u32);
    }

    /// How many there are to each object from those that are counted.
    fn counts(&self, objects: usize, is_counted: impl Fn(usize) -> bool) -> Vec<u64> {
        let mut counts = vec![0; objects];
        for place in (0..objects).filter(|place| is_counted(*place)) {
            self.targets(place).for_each(|target| counts[target] += 1);
        }
        counts
    }
}

/// Python objects that no root of Python reaches.
#[derive(Default)]
pub(crate) struct Unreached {
    objects: Vec<u64>,
    places: Places,
    references: References,
    /// By how much the reference count is higher than the references found; the largest number if that is not known.
    excess: Vec<u64>,
    /// The reference count is the number of references found.
    is_explained: Vec<bool>,
    /// The count is explained, but only by references that the collector does not know.
    is_pinned: Vec<bool>,
    /// The collector would free it.
    is_garbage: Vec<bool>,
}

impl Unreached {
    /// Finds them in the collector's lists and in the heap, and everything that these refer to.
    ///
    /// # Errors
    /// The search stopped: which objects are counted is not known.
    pub fn find(
        copy: &Image,
        python: &mut Python,
        native: &Native,
        graph: &Graph,
        deadline: Deadline,
    ) -> Result<Unreached, Stop> {
        let mut budget = Budget::new(copy, deadline);
        let mut unreached = Unreached::default();
        let is_reached = |address| graph.reached(copy, address).is_some();
        let mut tracked = Vec::new();
        python.tracked(copy, &mut |address| {
            if !is_reached(address) {
                tracked.push(address);
            }
        });
        // Nearly all objects are reached, which several threads find out.
        let may_be_new = |chunk: &Chunk| {
            let mut places = python.places_of_tracked(copy, chunk.start, chunk.bytes);
            places.any(|address| !is_reached(address))
        };
        for chunk in native.chunks_where(copy, &[Heap::Glibc, Heap::Python], may_be_new) {
            if let Some(address) = python.tracked_in(copy, chunk.start, chunk.bytes)
                && !is_reached(address)
            {
                tracked.push(address);
            }
        }
        for address in tracked {
            unreached.add(copy, python, address);
        }
        let mut found = Vec::new();
        let mut place = 0;
        while place < unreached.objects.len() {
            let is_tracked = read(copy, python, unreached.objects[place], &mut found);
            budget.pay(1 + found.len() as u64)?;
            unreached.references.begin(is_tracked);
            for reference in &found {
                if !is_reached(reference.target)
                    && let Some(target) = unreached.add(copy, python, reference.target)
                {
                    unreached.references.all.push((target, reference.edge));
                }
            }
            place += 1;
        }
        unreached.references.end();
        unreached.count(copy, python);
        Ok(unreached)
    }

    /// The place of an object, which is added if it is new. `None` if no object is there, or one that holds nothing.
    fn add(&mut self, copy: &Image, python: &mut Python, address: u64) -> Option<u32> {
        if let Some(place) = self.places.get(&address) {
            return Some(*place);
        }
        let of = python.object(copy, address)?;
        if python.is_leaf(of) {
            return None;
        }
        let place = u32::try_from(self.objects.len()).ok()?;
        self.objects.push(address);
        self.places.insert(address, place);
        Some(place)
    }

    fn count(&mut self, copy: &Image, python: &Python) {
        let count = |object: &u64| python.count(copy, *object);
        let counts: Vec<u64> = self.objects.iter().map(count).collect();
        let found = self.references.counts(self.objects.len(), |_| true);
        self.is_garbage = collected(&self.references, &counts);
        self.excess = (counts.iter().zip(&found))
            .map(|(count, found)| match *count {
                IMMORTAL => IMMORTAL,
                count => count.saturating_sub(*found),
            })
            .collect();
        self.is_explained = (counts.iter().zip(&found))
            .map(|(count, found)| count == found)
            .collect();
        // What remains is held by references that the collector does not know.
        let is_counted = |place: &usize| self.excess[*place] > 0;
        let counted = (0..self.objects.len()).filter(is_counted).collect();
        let is_held = flood(vec![false; self.objects.len()], counted, |place| {
            self.references.targets(place)
        });
        let known = (self.references).counts(self.objects.len(), |place| self.references.is_tracked[place]);
        self.is_pinned = (0..self.objects.len())
            .map(|place| {
                let is_open = !is_held[place] && !self.is_garbage[place] && self.references.is_tracked[place];
                is_open && counts[place] > known[place]
            })
            .collect();
    }

    fn place(&self, address: u64) -> Option<usize> {
        self.places.get(&address).map(|place| *place as usize)
    }

    /// Objects to which something outside Python refers, and all others that no root reaches but native words lead to.
    pub fn may_enter(&self, address: u64) -> bool {
        self.place(address)
            .is_none_or(|place| self.excess[place] > 0 || self.is_pinned[place])
    }

    /// Whether the words of unreached objects explain the whole count of `object`, and `from` is one of these unreached objects.
    pub fn explains(&self, from: u64, object: u64) -> bool {
        self.place(object).is_some_and(|place| self.is_explained[place]) && self.places.contains_key(&from)
    }

    /// Whether only references that the collector does not know keep the object from being garbage.
    pub fn is_pinned(&self, address: u64) -> bool {
        self.place(address).is_some_and(|place| self.is_pinned[place])
    }

    /// Objects to which something refers that was not found, also not in the native memory that the walk has reached.
    pub fn counted(&self, graph: &Graph) -> Vec<u64> {
        let mut left = self.excess.clone();
        let is_native = |node: NodeId| match graph.kind(node) {
            NodeKind::Native => true,
            NodeKind::Root => matches!(graph.root(node), Some(Root::Native(_))),
            NodeKind::Python | NodeKind::Frame => false,
        };
        let is_wanted = |(from, to): &(NodeId, NodeId)| is_native(*from) && graph.kind(*to) == NodeKind::Python;
        for (_, to) in graph.references().filter(is_wanted) {
            if let Some(place) = self.place(graph.address(to)) {
                let left = &mut left[place];
                *left -= u64::from((1..u64::MAX).contains(left));
            }
        }
        let is_root = |place: &usize| left[*place] > 0 || self.is_pinned[*place];
        let roots = (0..self.objects.len()).filter(is_root);
        roots.map(|place| self.objects[place]).collect()
    }

    /// The objects that refer to each of these.
    pub fn referrers(&self, wanted: &[u64]) -> Map<u64, Vec<u64>> {
        let wanted: Map<u32, u64> = (wanted.iter())
            .filter_map(|object| Some((*self.places.get(object)?, *object)))
            .collect();
        let mut referrers: Map<u64, Vec<u64>> = Map::default();
        for (place, object) in self.objects.iter().enumerate() {
            for (target, _) in self.references.of(place) {
                if let Some(target) = wanted.get(target) {
                    referrers.entry(*target).or_default().push(*object);
                }
            }
        }
        referrers
    }

    /// What remains garbage when it is read again.
    ///
    /// # Errors
    /// The search stopped.
    pub fn garbage(
        &self,
        copy: &Image,
        python: &mut Python,
        may_change: bool,
        deadline: Deadline,
    ) -> Result<Garbage, Stop> {
        let mut is_stable = !may_change;
        let mut members: Vec<u64> = (self.objects.iter().zip(&self.is_garbage))
            .filter_map(|(object, is_garbage)| is_garbage.then_some(*object))
            .collect();
        for _ in 0..if may_change { LOOKS } else { 0 } {
            let Ok(newer) = Image::newer(copy) else { break };
            let before = members.len();
            members = still_garbage(&newer, python, members, &mut Budget::new(copy, deadline))?;
            let is_same = members.len() == before;
            // Without room, the rest was compared with itself.
            is_stable = is_same && newer.has_room();
            if is_same {
                break;
            }
        }
        let mut garbage = Garbage::new(copy, python, members, &mut Budget::new(copy, deadline))?;
        garbage.is_stable = is_stable;
        Ok(garbage)
    }
}

/// How often objects that look like garbage are read again, at most.
const LOOKS: u32 = 4;

/// The counted references of an object, and words that may be some. Returns whether the collector tracks it.
fn read(copy: &Image, python: &mut Python, address: u64, found: &mut Vec<Reference>) -> bool {
    found.clear();
    let Some(of) = python.object(copy, address) else {
        return false;
    };
    python.references(copy, address, of, found);
    found.retain(|reference| reference.sort != Sort::Possible);
    python.is_tracked(copy, address, of)
}

/// Collections after which the rest is taken for held: each may release objects that keep others from being freed.
const COLLECTIONS: u32 = 8;

/// The objects that the collector frees, with everything that they alone hold.
fn collected(references: &References, counts: &[u64]) -> Vec<bool> {
    let mut left = counts.to_vec();
    let mut is_freed = vec![false; counts.len()];
    for _ in 0..COLLECTIONS {
        let candidates: Vec<bool> = (references.is_tracked.iter().zip(&is_freed))
            .map(|(is_tracked, is_freed)| *is_tracked && !is_freed)
            .collect();
        let mut freed = unreachable(references, &left, &candidates);
        if freed.is_empty() {
            break;
        }
        freed.iter().for_each(|place| is_freed[*place] = true);
        while let Some(place) = freed.pop() {
            for target in references.targets(place) {
                left[target] = left[target].saturating_sub(1);
                if left[target] == 0 && !std::mem::replace(&mut is_freed[target], true) {
                    freed.push(target);
                }
            }
        }
    }
    is_freed
}

/// Of these objects, those whose counts are explained by references among them, and that no other of them leads to.
fn unreachable(references: &References, counts: &[u64], candidates: &[bool]) -> Vec<usize> {
    let places = || (0..counts.len()).filter(|place| candidates[*place]);
    let mut left = counts.to_vec();
    for place in places() {
        for target in references.targets(place) {
            left[target] = left[target].saturating_sub(1);
        }
    }
    let others = candidates.iter().map(|is_candidate| !is_candidate).collect();
    let counted = places().filter(|place| left[*place] > 0).collect();
    let is_held = flood(others, counted, |place| references.targets(place));
    places().filter(|place| !is_held[*place]).collect()
}

/// Marks these, and all that they lead to past what is marked.
pub(crate) fn flood<T: Iterator<Item = usize>>(
    mut marked: Vec<bool>,
    mut open: Vec<usize>,
    targets: impl Fn(usize) -> T,
) -> Vec<bool> {
    open.iter().for_each(|place| marked[*place] = true);
    while let Some(place) = open.pop() {
        for target in targets(place) {
            if !std::mem::replace(&mut marked[target], true) {
                open.push(target);
            }
        }
    }
    marked
}

/// The shortest way from a place to one that is wanted, both included; the place itself counts if a way leads back to it. `None`: there is
/// none, or the budget is spent. `enter`: whether the step from one place to another may be on it.
pub(crate) fn way<T: Iterator<Item = u32>>(
    from: u32,
    budget: &mut u64,
    next: impl Fn(u32) -> T,
    enter: impl Fn(u32, u32) -> bool,
    mut is_wanted: impl FnMut(u32) -> bool,
) -> Option<Vec<u32>> {
    let mut before: Map<u32, u32> = Map::default();
    let mut open = VecDeque::from([from]);
    while let Some(place) = open.pop_front() {
        for to in next(place) {
            *budget = budget.checked_sub(1)?;
            if !enter(place, to) || before.contains_key(&to) {
                continue;
            }
            before.insert(to, place);
            if is_wanted(to) {
                let mut way = vec![to, place];
                while let Some(&last) = way.last().filter(|last| **last != from) {
                    way.push(before[&last]);
                }
                way.reverse();
                return Some(way);
            }
            open.push_back(to);
        }
    }
    None
}

fn places_of(objects: &[u64]) -> Places {
    (objects.iter().enumerate())
        .map(|(place, object)| (*object, place as u32))
        .collect()
}

fn references_between(
    copy: &Image,
    python: &mut Python,
    objects: &[u64],
    places: &Places,
    budget: &mut Budget,
) -> Result<References, Stop> {
    let mut references = References::default();
    let mut found = Vec::new();
    for object in objects {
        let is_tracked = read(copy, python, *object, &mut found);
        budget.pay(1 + found.len() as u64)?;
        references.begin(is_tracked);
        let inside = |reference: &Reference| Some((*places.get(&reference.target)?, reference.edge));
        references.all.extend(found.iter().filter_map(inside));
    }
    references.end();
    Ok(references)
}

/// The objects whose counts are explained by the references among them, as far as they are not reached from others.
fn still_garbage(copy: &Image, python: &mut Python, objects: Vec<u64>, budget: &mut Budget) -> Result<Vec<u64>, Stop> {
    let references = references_between(copy, python, &objects, &places_of(&objects), budget)?;
    let counts: Vec<u64> = (objects.iter())
        .map(|object| match python.object(copy, *object) {
            Some(_) => python.count(copy, *object),
            None => IMMORTAL,
        })
        .collect();
    let is_garbage = collected(&references, &counts);
    Ok((objects.into_iter().zip(is_garbage))
        .filter_map(|(object, is_garbage)| is_garbage.then_some(object))
        .collect())
}

/// Python objects that only refer to each other; `gc.collect()` would free them.
#[derive(Default)]
pub struct Garbage {
    /// Addresses of the objects.
    pub members: Vec<u64>,
    places: Places,
    /// For each member, where its referrers begin; and the end.
    firsts: Vec<u32>,
    /// Place of the referring member, and by which field it refers.
    referrers: Vec<(u32, Edge)>,
    /// It was the same when it was read again; otherwise some of it may be alive.
    pub is_stable: bool,
}

impl Garbage {
    fn new(copy: &Image, python: &mut Python, members: Vec<u64>, budget: &mut Budget) -> Result<Garbage, Stop> {
        let places = places_of(&members);
        let references = references_between(copy, python, &members, &places, budget)?;
        let mut firsts = vec![0u32; members.len() + 1];
        for (target, _) in &references.all {
            firsts[*target as usize + 1] += 1;
        }
        for place in 0..members.len() {
            firsts[place + 1] += firsts[place];
        }
        let mut next = firsts.clone();
        let mut referrers = vec![(0, Edge::default()); references.all.len()];
        for from in 0..members.len() {
            for (target, edge) in references.of(from) {
                let place = &mut next[*target as usize];
                referrers[*place as usize] = (from as u32, *edge);
                *place += 1;
            }
        }
        Ok(Garbage {
            members,
            places,
            firsts,
            referrers,
            is_stable: true,
        })
    }

    /// Members whose counts are explained only by words of unknown meaning, although native memory points to them: one of
    /// those words may be no counted reference, and the native pointer may be.
    pub fn doubtful(&self, copy: &Image, python: Option<&Python>, refused: &mut dyn Iterator<Item = u64>) -> Vec<u64> {
        let Some(python) = python else { return Vec::new() };
        let is_doubtful = |object: &u64| {
            self.place(*object).is_some_and(|place| {
                let named = |referrer: &&(u32, Edge)| referrer.1.kind() != EdgeKind::Word;
                let found = self.referrers(place).iter().filter(named).count();
                python.count(copy, *object) > found as u64
            })
        };
        let mut objects: Vec<u64> = refused.filter(is_doubtful).collect();
        objects.sort_unstable();
        objects.dedup();
        objects
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

#[cfg(test)]
mod tests {
    use super::*;

    fn between(objects: usize, all: &[(usize, u32)]) -> References {
        let mut references = References::default();
        for object in 0..objects {
            references.begin(true);
            for (from, target) in all {
                if *from == object {
                    references.all.push((*target, Edge::default()));
                }
            }
        }
        references.end();
        references
    }

    #[test]
    fn what_a_counted_object_leads_to_is_no_garbage() {
        // 0 ⇄ 1, 2 → 3 ⇄ 4, and something outside refers to 2.
        let references = between(5, &[(0, 1), (1, 0), (2, 3), (3, 4), (4, 3)]);
        assert_eq!(references.counts(5, |_| true), [1, 1, 0, 2, 1]);
        let is_held = flood(vec![false; 5], vec![2], |place| references.targets(place));
        assert_eq!(is_held, [false, false, true, true, true]);
    }

    #[test]
    fn references_of_untracked_objects_hold_until_those_are_freed() {
        // 0 ⇄ 1, where 1 is not tracked; 2 ⇄ 3 → 4, which is not tracked, → 5 → 6.
        let mut references = between(7, &[(0, 1), (1, 0), (2, 3), (3, 2), (3, 4), (4, 5), (5, 6)]);
        references.is_tracked[1] = false;
        references.is_tracked[4] = false;
        let is_freed = collected(&references, &[1; 7]);
        assert_eq!(is_freed, [false, false, true, true, true, true, true]);
    }
}
