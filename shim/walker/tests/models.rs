//! Every interleaving of threads that insert rules, close libraries and use the rules they find, over the source of the
//! table itself, with two words and addresses of 30 bits (docs/internals/proofs.md).
#![cfg(loom)]

#[path = "../../../src/lockfree/sync/modelled.rs"]
#[allow(dead_code)]
mod modelled;
#[path = "../src/table.rs"]
#[allow(dead_code)]
mod table;

mod sync {
    pub use crate::modelled::{AtomicBool, AtomicU32, AtomicU64};
}
mod machine {
    pub const ADDRESS_BITS: u32 = 30;
    pub const CODE_SHIFT: u32 = 0;
}
mod rule {
    pub const PAYLOAD_BITS: u32 = 29;
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Packed(pub u32);
}

use std::cell::Cell;
use std::sync::atomic::Ordering::*;

use loom::thread::spawn;
use modelled::{Mistake, Proof, dying, explore, in_one_total_order, with_stores_in_order};
use rule::Packed;
use sync::AtomicU64;
use table::Table;

/// The code address that the walks look up.
const HERE: u64 = 0x1234;
/// Another address in the same set.
const ALSO: u64 = 0x1234 + 3;

/// A process: its table, and the number of the module that is mapped at the address; 0: none. The rule for an address is
/// the number of the module that was mapped when the rule was computed.
struct Process {
    table: Table,
    mapped: AtomicU64,
}

impl Process {
    fn new() -> &'static Process {
        with_stores_in_order();
        Box::leak(Box::new(Process {
            table: Table::default(),
            mapped: AtomicU64::new(1),
        }))
    }

    /// A walk that meets the address for the first time.
    fn insert(&self, address: u64) {
        let ticket = self.table.ticket();
        let module = self.mapped.load(Acquire);
        if module != 0 {
            self.table.insert(address, Packed(module as u32), ticket);
        }
    }

    /// `dlclose` with the notifications to the walker, and the module that `dlopen` then maps there.
    fn close(&self, next: u64) {
        self.table.closing_began();
        self.mapped.store(0, Release);
        self.table.void();
        self.table.closing_ended();
        self.mapped.store(next, Release);
    }

    /// Opens another library if the address is free, and walks there.
    fn open_and_walk(&self) {
        if self.mapped.compare_exchange(0, 3, AcqRel, Relaxed).is_ok() {
            self.walk();
        }
    }

    /// A walk through the code that is mapped now.
    fn walk(&self) {
        let module = self.mapped.load(Acquire);
        // Code that runs is mapped.
        if module != 0 && self.table.usable() {
            if let Some(rule) = self.table.find(HERE) {
                assert!(
                    u64::from(rule.0) >= module,
                    "a rule of module {}, in module {module}",
                    rule.0
                );
            }
        }
    }
}

fn no_rule_of_a_closed_module_is_used() {
    in_one_total_order();
    let process = Process::new();
    let inserts = spawn(|| process.insert(HERE));
    process.close(2);
    process.walk();
    inserts.join().unwrap();
    process.walk();
}

fn no_rule_inserted_before_the_close_is_used() {
    let process = Process::new();
    process.insert(HERE);
    let walks = spawn(|| process.walk());
    process.close(2);
    process.walk();
    walks.join().unwrap();
}

fn no_rule_is_used_after_two_threads_have_closed() {
    let process = Process::new();
    process.insert(HERE);
    let closes = spawn(|| {
        process.table.closing_began();
        process.table.void();
        process.table.closing_ended();
        process.walk();
    });
    process.close(2);
    process.walk();
    closes.join().unwrap();
    process.walk();
}

/// The walker may find the entry that was inserted after the sweep.
fn an_inserter_a_closer_and_a_walker() {
    in_one_total_order();
    let process = Process::new();
    let inserts = spawn(|| process.insert(HERE));
    let walks = spawn(|| process.walk());
    process.close(2);
    inserts.join().unwrap();
    walks.join().unwrap();
    process.walk();
}

/// The thread that finds a set full sweeps the table.
fn a_sweep_of_a_full_set_is_complete() {
    in_one_total_order();
    let process = Process::new();
    process.insert(HERE);
    let inserts = spawn(|| {
        process.insert(ALSO);
        process.insert(HERE);
    });
    process.close(2);
    process.walk();
    inserts.join().unwrap();
    process.walk();
}

/// A thread that finds another one sweeping leaves the work to it, and must not use entries too early.
fn entries_are_not_used_before_another_threads_sweep_ends() {
    let process = Process::new();
    process.insert(HERE);
    let sweeps = spawn(|| process.table.void());
    process.close(2);
    process.walk();
    sweeps.join().unwrap();
    process.walk();
}

/// One inserter finds `used` already set by the other.
fn two_inserters_and_a_closer() {
    in_one_total_order();
    let process = Process::new();
    let first = spawn(|| process.table.ticket());
    let second = spawn(|| process.insert(HERE));
    process.close(2);
    first.join().unwrap();
    second.join().unwrap();
    process.walk();
}

/// The address is free before `dlclose` has returned.
fn a_library_opened_in_place_of_one_that_is_being_closed() {
    let process = Process::new();
    process.insert(HERE);
    let opens = spawn(|| process.open_and_walk());
    process.table.closing_began();
    process.mapped.store(0, Release);
    process.table.void();
    process.table.closing_ended();
    opens.join().unwrap();
}

/// When all threads are done, the table is usable and accepts entries.
fn the_table_is_usable_in_the_end() {
    let process = Process::new();
    let closes = spawn(|| {
        process.table.closing_began();
        process.table.void();
        process.table.closing_ended();
    });
    process.close(2);
    closes.join().unwrap();
    assert!(process.table.usable());
    process.insert(HERE);
    assert_eq!(process.table.find(HERE), Some(Packed(2)));
}

const PROOF: Proof = Proof {
    files: &["src/table.rs"],
    models: &[
        ("no rule of a closed module is used", no_rule_of_a_closed_module_is_used),
        (
            "no rule inserted before the close is used",
            no_rule_inserted_before_the_close_is_used,
        ),
        (
            "no rule is used after two threads have closed",
            no_rule_is_used_after_two_threads_have_closed,
        ),
        ("an inserter, a closer and a walker", an_inserter_a_closer_and_a_walker),
        ("a sweep of a full set is complete", a_sweep_of_a_full_set_is_complete),
        (
            "entries are not used before another thread's sweep ends",
            entries_are_not_used_before_another_threads_sweep_ends,
        ),
        ("two inserters and a closer", two_inserters_and_a_closer),
        (
            "a library opened in place of one that is being closed",
            a_library_opened_in_place_of_one_that_is_being_closed,
        ),
        ("the table is usable in the end", the_table_is_usable_in_the_end),
    ],
    harmless: &[
        (
            Mistake::Relaxed,
            "self.closing.fetch_add(1, AcqRel);",
            "a thread that maps another library there is ordered after it by the loader's lock",
        ),
        (
            Mistake::Relaxed,
            "self.used.store(true, SeqCst);",
            "the memory model needs it, but the model of one total order has a fence there in any case",
        ),
        (
            Mistake::HalfCompared,
            "word.compare_exchange(seen, entry, Relaxed, Relaxed)",
            "the lower half holds the rule, which is 0 only in an empty word, and the low bits of the sweep number",
        ),
    ],
};

#[test]
fn loom_the_table_is_right_and_every_planted_mistake_is_noticed() {
    PROOF.check();
}

thread_local! {
    static AT: Cell<u32> = const { Cell::new(0) };
    static DIED: Cell<bool> = const { Cell::new(false) };
}

/// In a forked child every other thread is gone, wherever it was: here one in the middle of a close.
#[test]
fn loom_a_child_uses_no_rule_of_a_module_that_its_parent_was_closing() {
    for at in 0.. {
        AT.set(at);
        DIED.set(false);
        explore(
            || {
                let process = Process::new();
                process.insert(HERE);
                let at = AT.get();
                let dead = spawn(move || dying(at, || process.close(2)).is_none());
                process.insert(ALSO);
                DIED.set(dead.join().unwrap() || DIED.get());
                process.table.forked();
                // If the module was already unmapped, the child may map another one in its place.
                if process.mapped.load(Relaxed) == 0 {
                    process.mapped.store(3, Release);
                }
                assert!(process.table.usable());
                process.walk();
            },
            1,
        );
        if !DIED.get() {
            println!("{at} deaths");
            assert!(at > 5, "no thread died, so nothing was tested");
            return;
        }
    }
}
