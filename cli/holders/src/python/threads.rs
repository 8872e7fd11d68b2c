//! The names that a program gives to its threads: those of `threading.Thread`.

use crate::Map;
use crate::copy::Image;
use crate::graph::EdgeKind;
use crate::python::text::{MOST_CHARACTERS, plain};
use crate::python::{Python, Reference};

/// More threads than that have no names.
const MOST_THREADS: usize = 10_000;

impl Python {
    /// The names of threads, by the number by which roots refer to the thread. Threads that Python did not start have none.
    pub(crate) fn thread_names(&mut self, copy: &Image) -> Map<u64, String> {
        let mut names = Map::default();
        let interpreters = self.interpreters(copy);
        let threads = self.threads(copy, &interpreters);
        for &interpreter in &interpreters {
            let modules = copy.word(interpreter + self.offsets.interpreter_modules);
            let Some(module) = self.value_of(copy, modules, "threading") else {
                continue;
            };
            let variables = copy.word(module + self.offsets.module_dict);
            let Some(active) = self.value_of(copy, variables, "_active") else {
                continue;
            };
            let mut references = self.references_of(copy, active, false);
            references.retain(|reference| reference.edge.kind() == EdgeKind::Value);
            for Reference { edge, target, .. } in references.into_iter().take(MOST_THREADS) {
                // The key is what `pthread_self` returned.
                let key = self.key_of(copy, active, edge.index());
                let Some(pthread) = key.and_then(|key| self.integer(copy, key)) else {
                    continue;
                };
                let state = (threads.iter()).find(|state| copy.word(state.address + self.offsets.thread_id) == pthread);
                let Some(state) = state else { continue };
                let attributes = self.values_by_name(copy, target);
                let name = attributes.into_iter().find(|(name, _)| name == "_name");
                // The name of a thread that other code started.
                if let Some(name) = name.and_then(|(_, name)| self.text(copy, name, MOST_CHARACTERS))
                    && !name.starts_with("Dummy-")
                {
                    names.insert(state.id, plain(&name));
                }
            }
        }
        names
    }

    fn integer(&mut self, copy: &Image, address: u64) -> Option<u64> {
        let of = self.object(copy, address)?;
        if self.type_name(of) != "int" {
            return None;
        }
        self.natural_number(copy, address)
    }
}
