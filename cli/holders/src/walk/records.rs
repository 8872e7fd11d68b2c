//! References that last only as long as another object lives.
//!
//! ```text
//! finalize._registry ─► _Info ─► function, arguments        until the watched object is freed
//! WeakKeyDictionary ─► value                                until the key's object is freed
//! {address: memory} ─► memory, which has a finalizer        until the finalizer takes it out: an allocator's table
//! SingleDeviceMemoryPool ─► chunks                          until CuPy's pool gets them back; it has the free ones, too
//! ```
//!
//! So these are followed once the other object is reached, as part of what reached it: behind garbage they lead to what
//! `gc.collect()` frees. Tables of allocators, and what remains, are followed last, and only to blocks that nothing else
//! leads to.

use super::{EdgeKind, NodeId, Phase, Reference, Sort, Walk};
use crate::Set;
use crate::python::TypeId;

/// What a reference waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// This object is reached.
    Reached(u64),
    /// It is known whether this value of a table has a finalizer.
    HasFinalizer(u64),
    /// All else is found.
    End,
}

#[derive(Default)]
pub(crate) struct Records {
    references: Vec<(NodeId, Reference, Until)>,
    /// Objects with a finalizer.
    watched: Set<u64>,
}

/// The type of CuPy's objects that have all memory of an allocator, used or free.
const POOL: &str = "SingleDeviceMemoryPool";
/// Finalizers whose arguments have finalizers, and so on.
const ROUNDS: usize = 32;

impl Walk<'_, '_> {
    /// Takes those references out that wait for something.
    pub(super) fn keep_records(&mut self, node: NodeId, of: TypeId, references: &mut Vec<Reference>) {
        let Some(python) = self.python.as_deref_mut() else {
            return;
        };
        let until = if python.is_finalizer(of) {
            let referent = |reference: &Reference| python.referent(self.copy, reference.target);
            let watched = references.iter().find_map(referent);
            self.waiting.watched.extend(watched);
            watched.map(Until::Reached)
        } else {
            (python.type_name(of) == POOL).then_some(Until::End)
        };
        if let Some(until) = until {
            let waiting = references.extract_if(.., |reference| reference.edge.kind() != EdgeKind::Class);
            (self.waiting.references).extend(waiting.map(|reference| (node, reference, until)));
        } else if python.is_dict(of) {
            // Keys are there in general dictionaries only.
            let is_key = |reference: &Reference| reference.edge.kind() == EdgeKind::Key;
            if !references.iter().any(is_key) {
                return;
            }
            let mut kept = Vec::with_capacity(references.len());
            let mut waits = None;
            for place in 0..references.len() {
                let reference = references[place];
                if is_key(&reference) {
                    let value = references.get(place + 1).map_or(0, |value| value.target);
                    waits = self.waits_for(reference.target, value);
                }
                let is_of_entry = is_key(&reference) || reference.edge.kind() == EdgeKind::Value;
                match waits.filter(|_| is_of_entry) {
                    Some(until) => self.waiting.references.push((node, reference, until)),
                    None => kept.push(reference),
                }
            }
            *references = kept;
        }
    }

    fn waits_for(&mut self, key: u64, value: u64) -> Option<Until> {
        let python = self.python.as_deref_mut()?;
        if let Some(referent) = python.referent(self.copy, key) {
            return Some(Until::Reached(referent));
        }
        let of = python.object(self.copy, key)?;
        let index = self.index;
        let is_block = |address: u64| index.find(address).is_some_and(|(_, interior)| !interior);
        let has_address = match python.is_leaf(of) {
            true => python.type_name(of) == "int" && python.natural_number(self.copy, key).is_some_and(is_block),
            false => python.words_of(self.copy, key, of).any(is_block),
        };
        has_address.then_some(Until::HasFinalizer(value))
    }

    /// Follows the references whose objects were reached meanwhile.
    pub fn search_records(&mut self) {
        for _ in 0..ROUNDS {
            let mut ready = Vec::new();
            for (node, reference, until) in std::mem::take(&mut self.waiting.references) {
                match self.reached_in(until) {
                    Some(phase) => ready.push((phase, node, reference)),
                    None => self.waiting.references.push((node, reference, until)),
                }
            }
            if ready.is_empty() {
                break;
            }
            ready.sort_by_key(|(phase, ..)| *phase);
            let after = self.phase;
            for ready in ready.chunk_by(|a, b| a.0 == b.0) {
                self.phase = ready[0].0;
                for (_, node, reference) in ready {
                    self.refer(*node, reference.edge, reference.target, reference.sort);
                }
                self.run();
            }
            self.phase = after;
        }
    }

    fn reached_in(&mut self, until: Until) -> Option<Phase> {
        match until {
            Until::End => None,
            Until::HasFinalizer(value) => (!self.waiting.watched.contains(&value)).then_some(Phase::Python),
            Until::Reached(object) => {
                let python = self.python.as_deref_mut()?;
                match python.object(self.copy, object) {
                    Some(of) if !python.is_leaf(of) => {
                        let node = self.graph.reached(self.copy, object)?;
                        Some(self.graph.phase(node))
                    }
                    _ => Some(Phase::Python),
                }
            }
        }
    }

    /// Objects that only references which still wait are known to hold.
    pub fn recorded(&self) -> Set<u64> {
        let references = self.waiting.references.iter();
        references.map(|(_, reference, _)| reference.target).collect()
    }

    /// Follows the rest, to blocks that nothing else leads to.
    pub fn search_remaining_records(&mut self) {
        let after = std::mem::replace(&mut self.phase, Phase::Python);
        self.only_missing = true;
        for _ in 0..ROUNDS {
            if self.waiting.references.is_empty() {
                break;
            }
            for (node, reference, _) in std::mem::take(&mut self.waiting.references) {
                let sort = match reference.sort {
                    Sort::Named => Sort::Context,
                    sort => sort,
                };
                self.refer(node, reference.edge, reference.target, sort);
            }
            self.run();
        }
        self.only_missing = false;
        self.phase = after;
    }
}
