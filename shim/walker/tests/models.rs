//! Every interleaving of threads that enter rules, close libraries and believe what they find, over the source of the
//! table itself, with two words and addresses of 30 bits (docs/proofs.md).
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

/// The code at this address is looked at.
const HERE: u64 = 0x1234;
/// Another one, in the same set.
const ALSO: u64 = 0x1234 + 3;

/// A process: its table, and which module is mapped at the address; 0: none. The rule for an address is the number of
/// the module that was mapped when the rule was computed.
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
    fn enter(&self, address: u64) {
        let ticket = self.table.ticket();
        let module = self.mapped.load(Acquire);
        if module != 0 {
            self.table.insert(address, Packed(module as u32), ticket);
        }
    }

    /// `dlclose`, as the walker is told of it, and what `dlopen` then maps there.
    fn close(&self, next: u64) {
        self.table.closing_began();
        self.mapped.store(0, Release);
        self.table.void();
        self.table.closing_ended();
        self.mapped.store(next, Release);
    }

    /// A thread that opens another library as soon as there is room for it, and walks there.
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

fn no_rule_of_a_closed_module_is_believed() {
    in_one_total_order();
    let process = Process::new();
    let enters = spawn(|| process.enter(HERE));
    process.close(2);
    process.walk();
    enters.join().unwrap();
    process.walk();
}

fn nor_one_that_was_there_before() {
    let process = Process::new();
    process.enter(HERE);
    let walks = spawn(|| process.walk());
    process.close(2);
    process.walk();
    walks.join().unwrap();
}

fn nor_after_two_threads_have_closed() {
    let process = Process::new();
    process.enter(HERE);
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

/// Whoever believes that its own entry is there, since everything before it was swept.
fn an_entrant_a_closer_and_a_walker() {
    in_one_total_order();
    let process = Process::new();
    let enters = spawn(|| process.enter(HERE));
    let walks = spawn(|| process.walk());
    process.close(2);
    enters.join().unwrap();
    walks.join().unwrap();
    process.walk();
}

/// A full set is swept by whoever finds it full.
fn a_sweep_for_want_of_room_is_no_less_thorough() {
    in_one_total_order();
    let process = Process::new();
    process.enter(HERE);
    let enters = spawn(|| {
        process.enter(ALSO);
        process.enter(HERE);
    });
    process.close(2);
    process.walk();
    enters.join().unwrap();
    process.walk();
}

/// Whoever finds that another one is sweeping leaves the work to that one, and must not believe too early.
fn a_sweep_by_another_thread_is_waited_for_or_seen() {
    let process = Process::new();
    process.enter(HERE);
    let sweeps = spawn(|| process.table.void());
    process.close(2);
    process.walk();
    sweeps.join().unwrap();
    process.walk();
}

/// One takes the other's word for it that the table is in use.
fn two_entrants_and_a_closer() {
    in_one_total_order();
    let process = Process::new();
    let first = spawn(|| process.table.ticket());
    let second = spawn(|| process.enter(HERE));
    process.close(2);
    first.join().unwrap();
    second.join().unwrap();
    process.walk();
}

/// Its place is free before `dlclose` has returned.
fn a_library_opened_in_place_of_one_that_is_being_closed() {
    let process = Process::new();
    process.enter(HERE);
    let opens = spawn(|| process.open_and_walk());
    process.table.closing_began();
    process.mapped.store(0, Release);
    process.table.void();
    process.table.closing_ended();
    opens.join().unwrap();
}

/// All have done what they had to: the table can be used again, and keeps what is entered.
fn in_the_end_the_table_serves_again() {
    let process = Process::new();
    let closes = spawn(|| {
        process.table.closing_began();
        process.table.void();
        process.table.closing_ended();
    });
    process.close(2);
    closes.join().unwrap();
    assert!(process.table.usable());
    process.enter(HERE);
    assert_eq!(process.table.find(HERE), Some(Packed(2)));
}

const PROOF: Proof = Proof {
    files: &["src/table.rs"],
    models: &[
        (
            "no rule of a closed module is believed",
            no_rule_of_a_closed_module_is_believed,
        ),
        ("nor one that was there before", nor_one_that_was_there_before),
        ("nor after two threads have closed", nor_after_two_threads_have_closed),
        ("an entrant, a closer and a walker", an_entrant_a_closer_and_a_walker),
        (
            "a sweep for want of room is no less thorough",
            a_sweep_for_want_of_room_is_no_less_thorough,
        ),
        (
            "a sweep by another thread is waited for or seen",
            a_sweep_by_another_thread_is_waited_for_or_seen,
        ),
        ("two entrants and a closer", two_entrants_and_a_closer),
        (
            "a library opened in place of one that is being closed",
            a_library_opened_in_place_of_one_that_is_being_closed,
        ),
        ("in the end the table serves again", in_the_end_the_table_serves_again),
    ],
    harmless: &[
        (
            Mistake::Relaxed,
            "self.closing.fetch_add(1, AcqRel);",
            "who maps another library there comes later by the loader's own lock",
        ),
        (
            Mistake::Relaxed,
            "self.used.store(true, SeqCst);",
            "the language needs it, but loom's stand-in for one total order puts a fence there in any case",
        ),
        (
            Mistake::HalfCompared,
            "word.compare_exchange(seen, entry, Relaxed, Relaxed)",
            "the lower half holds the rule, which is 0 in an empty word only, and the end of the sweep's number",
        ),
    ],
};

#[test]
fn loom_the_rules_hold_and_every_mistake_in_them_is_noticed() {
    PROOF.check();
}

thread_local! {
    static AT: Cell<u32> = const { Cell::new(0) };
    static DIED: Cell<bool> = const { Cell::new(false) };
}

/// A fork stops every other thread where it is: in the child, one is dead in the middle of a close.
#[test]
fn loom_a_child_believes_no_rule_of_a_module_that_its_parent_was_closing() {
    for at in 0.. {
        AT.set(at);
        DIED.set(false);
        explore(
            || {
                let process = Process::new();
                process.enter(HERE);
                let at = AT.get();
                let dead = spawn(move || dying(at, || process.close(2)).is_none());
                process.enter(ALSO);
                DIED.set(dead.join().unwrap() || DIED.get());
                process.table.forked();
                // If the module was gone by then, the child may map another one in its place.
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
            assert!(at > 5, "nobody died: nothing was tried");
            return;
        }
    }
}
