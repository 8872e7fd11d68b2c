//! Every interleaving of threads that read their frames directly and of the end of the script, over the source of the gate
//! itself (docs/internals/proofs.md).
#![cfg(loom)]

#[path = "../../cpython/src/direct.rs"]
#[allow(dead_code)]
mod direct;
#[path = "../../../src/lockfree/sync/modelled.rs"]
#[allow(dead_code, unused_imports, unused_macros)]
mod modelled;

mod sync {
    pub use crate::modelled::{AtomicBool, AtomicU32};

    pub fn pause() {
        loom::thread::yield_now();
    }
}

use direct::Gate;
use loom::cell::UnsafeCell;
use loom::thread::spawn;
use modelled::{Proof, in_one_total_order};

/// A process: its gate, and the state of a thread, which is `None` when the interpreter has deleted it.
struct Process {
    gate: Gate,
    state: UnsafeCell<Option<u32>>,
}

// SAFETY: loom checks that no access races with a change.
unsafe impl Sync for Process {}

impl Process {
    fn new() -> &'static Process {
        in_one_total_order();
        let process = Process {
            gate: Gate::new(),
            state: UnsafeCell::new(Some(1)),
        };
        process.gate.permit();
        Box::leak(Box::new(process))
    }

    fn walk(&self) {
        if let Some(_walk) = self.gate.enter(0) {
            // SAFETY: loom checks that nothing changes it meanwhile.
            let state = self.state.with(|state| unsafe { *state });
            assert_eq!(state, Some(1), "a deleted thread state is read");
        }
    }

    fn end(&self) {
        self.gate.forbid();
        // SAFETY: loom checks that nothing reads it meanwhile.
        self.state.with_mut(|state| unsafe { *state = None });
    }
}

fn a_walk_never_reads_what_the_end_deletes() {
    let process = Process::new();
    let walks = spawn(|| process.walk());
    process.end();
    process.walk();
    walks.join().unwrap();
}

fn of_two_walks_none_reads_what_the_end_deletes() {
    let process = Process::new();
    let walks = spawn(|| process.walk());
    let others = spawn(|| process.walk());
    process.end();
    walks.join().unwrap();
    others.join().unwrap();
}

fn a_walk_after_the_end_does_not_read_directly() {
    let process = Process::new();
    process.end();
    assert!(process.gate.enter(0).is_none());
    // In a forked child the walks of other threads do not exist.
    process.gate.permit();
    std::mem::forget(process.gate.enter(0));
    process.gate.forked();
    process.end();
}

const PROOF: Proof = Proof {
    files: &["../cpython/src/direct.rs"],
    models: &[
        (
            "a walk never reads what the end deletes",
            a_walk_never_reads_what_the_end_deletes,
        ),
        (
            "of two walks none reads what the end deletes",
            of_two_walks_none_reads_what_the_end_deletes,
        ),
        (
            "a walk after the end does not read directly",
            a_walk_after_the_end_does_not_read_directly,
        ),
    ],
    harmless: &[],
};

#[test]
fn loom_the_gate_is_right_and_every_planted_mistake_is_noticed() {
    PROOF.check();
}
