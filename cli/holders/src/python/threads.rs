//! The names that a program gives to its threads: those of `threading.Thread`.

use std::collections::HashMap;

use crate::copy::Copy;
use crate::graph::EdgeKind;
use crate::python::Python;
use crate::python::text::{MOST_CHARACTERS, plain};

/// More threads than that have no names.
const MOST_THREADS: usize = 10_000;

impl Python {
    /// The names of threads, by the number by which roots refer to the thread. Threads that Python did not start have none.
    pub(crate) fn thread_names(&mut self, copy: &Copy) -> HashMap<u64, String> {
        let mut names = HashMap::new();
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
            for (key, thread) in self.entries_of(copy, active).into_iter().take(MOST_THREADS) {
                // The key is what `pthread_self` returned.
                let Some(pthread) = self.integer(copy, key) else {
                    continue;
                };
                let state = threads
                    .iter()
                    .find(|state| copy.word(state.address + self.offsets.thread_id) == pthread);
                if let Some(state) = state
                    && let Some(name) = self.attribute_of(copy, thread, "_name")
                    && let Some(name) = self.text(copy, name, MOST_CHARACTERS)
                    // The name of a thread that other code started.
                    && !name.starts_with("Dummy-")
                {
                    names.insert(state.id, plain(&name));
                }
            }
        }
        names
    }

    /// Keys and values of a dictionary.
    fn entries_of(&mut self, copy: &Copy, dict: u64) -> Vec<(u64, u64)> {
        let Some(of) = self.object(copy, dict).filter(|of| self.type_name(*of) == "dict") else {
            return Vec::new();
        };
        let mut found = Vec::new();
        self.references(copy, dict, of, &mut found);
        let Some(entries) = self.entries(copy, copy.word(dict + self.offsets.dict_keys)) else {
            return Vec::new();
        };
        found.retain(|reference| reference.edge.kind() == EdgeKind::Value);
        let entry =
            |reference: &crate::python::Reference| (entries.key(copy, reference.edge.index()), reference.target);
        found.iter().map(entry).collect()
    }

    /// The value of an attribute of an instance.
    fn attribute_of(&mut self, copy: &Copy, address: u64, name: &str) -> Option<u64> {
        let of = self.object(copy, address)?;
        let mut found = Vec::new();
        self.references(copy, address, of, &mut found);
        let label = format!(".{name}");
        for reference in found {
            match reference.edge.kind() {
                EdgeKind::Dictionary => return self.value_of(copy, reference.target, name),
                EdgeKind::Field if self.label(copy, address, false, reference.edge).hidden => {
                    return self.value_of(copy, reference.target, name);
                }
                EdgeKind::Attribute if self.label(copy, address, false, reference.edge).concrete == label => {
                    return Some(reference.target);
                }
                _ => {}
            }
        }
        None
    }

    fn integer(&mut self, copy: &Copy, address: u64) -> Option<u64> {
        let of = self.object(copy, address)?;
        if self.type_name(of) != "int" {
            return None;
        }
        u64::try_from(self.small_number(copy, address)?).ok()
    }
}
