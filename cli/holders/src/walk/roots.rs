//! Where the search begins, in the order of its phases.

use std::ops::Range;

use super::Walk;
use crate::copy::selection::without;
use crate::graph::{Edge, EdgeKind, Phase, PythonRoot, Root};
use crate::native::{NativeRoot, RootSort};
use crate::python::{Rooted, Sort};

/// The largest range whose word offsets fit in an edge.
const ROOT_BYTES: u64 = 1 << 30;

impl Walk<'_, '_> {
    /// Everything that Python's roots lead to.
    pub fn search_python(&mut self) {
        self.phase = Phase::Python;
        let mut roots: Vec<(PythonRoot, Vec<Rooted>)> = Vec::new();
        let Some(python) = self.python.as_deref_mut() else {
            return;
        };
        self.thread_states = python.thread_states(self.copy);
        self.thread_states.sort_by_key(|state| state.start);
        python.roots(self.copy, &mut |root, rooted| match roots.last_mut() {
            Some((last, all)) if last == root => all.push(rooted),
            _ => roots.push((root.clone(), vec![rooted])),
        });
        for (root, targets) in roots {
            let id = self.graph.add_root(Root::Python(root), self.phase);
            self.graph.begin_scan(id);
            for (place, rooted) in targets.iter().enumerate() {
                let edge = Edge::new(EdgeKind::Root, place as u64);
                if rooted.is_frame {
                    self.frame(id, edge, rooted.target);
                } else {
                    self.refer(id, edge, rooted.target, rooted.sort);
                }
            }
            self.graph.end_scan(id);
        }
        self.run();
        self.search_records();
    }

    /// What words that may be stale lead to, if the count of the object says that they are not.
    pub fn search_entries(&mut self) {
        for (object, from, edge, sort) in std::mem::take(&mut self.entries) {
            self.refer(from, edge, object, sort);
        }
        self.run();
    }

    /// Everything that these native roots lead to, without the words of `left_out`.
    pub fn search_native(&mut self, phase: Phase, roots: &[NativeRoot], left_out: &[Range<u64>]) {
        self.phase = phase;
        for root in roots {
            // Variables come first, then what may belong to the CUDA driver or one of its libraries.
            if root.sort.is_doubtful() {
                self.run();
            }
            match root.sort {
                sort if sort.is_static() => {
                    for part in without(&root.range, left_out) {
                        self.root_words(root, part);
                    }
                }
                RootSort::Stack | RootSort::WholeStack => self.root_words(root, root.range.clone()),
                _ => {
                    let id = self.graph.add_root(Root::Native(root.clone()), phase);
                    self.graph.begin_scan(id);
                    for (number, value) in root.values.iter().enumerate() {
                        self.behind = 0;
                        self.word(id, Edge::word(number as u64), *value);
                    }
                    self.graph.end_scan(id);
                }
            }
        }
        self.run();
    }

    fn root_words(&mut self, root: &NativeRoot, range: Range<u64>) {
        let mut start = range.start.next_multiple_of(8);
        // A core file may claim any number of parts that it does not contain.
        while let Some(copied) = self.copy.next_copied(start).filter(|copied| *copied < range.end) {
            start += (copied - start) / ROOT_BYTES * ROOT_BYTES;
            let end = range.end.min(start + ROOT_BYTES);
            let part = NativeRoot {
                range: start..end,
                ..root.clone()
            };
            let id = self.graph.add_root(Root::Native(part), self.phase);
            if root.sort == RootSort::WholeStack || root.sort.is_doubtful() {
                self.graph.mark_weak(id);
            }
            self.graph.begin_scan(id);
            self.words(id, start..end);
            self.graph.end_scan(id);
            start = end;
        }
    }

    /// Everything that these Python objects lead to.
    pub fn search_objects(&mut self, phase: Phase, root: Root, objects: &mut dyn Iterator<Item = u64>) {
        self.phase = phase;
        let id = self.graph.add_root(root, phase);
        self.graph.begin_scan(id);
        for (place, object) in objects.enumerate() {
            self.refer(id, Edge::new(EdgeKind::Root, place as u64), object, Sort::Named);
        }
        self.graph.end_scan(id);
        self.run();
    }

    /// The state of the interpreter, word by word: some of its caches are stale.
    pub fn search_states(&mut self, states: &[Range<u64>]) {
        self.phase = Phase::Rest;
        for state in states {
            let root = Root::Python(PythonRoot::Interpreter("interpreter state"));
            let id = self.graph.add_root(root, self.phase);
            self.graph.mark_weak(id);
            self.graph.begin_scan(id);
            self.words(id, state.clone());
            self.graph.end_scan(id);
        }
        self.run();
    }
}
