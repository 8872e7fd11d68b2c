//! Every interleaving of small pieces of the index: windows of two words, two levels, one window in the first.

use super::*;
use crate::lockfree::sync::modelled::{Mistake, Proof, models};
use ::loom::thread::spawn;

const VALUE: u64 = 0x7_0000_0000;
const OTHER: u64 = 0x8_0000_0000;

fn leaked<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// An index whose rows are separate words, written before they are inserted.
#[derive(Default)]
struct Rows {
    index: Index,
    rows: [AtomicU64; 4],
}

impl Rows {
    fn intern(&self, hash: u64, row: u32) -> u32 {
        self.rows[row as usize].store(hash, Relaxed);
        let same = |row: u32| self.rows[row as usize].load(Relaxed) == hash;
        self.index.intern(hash, row, same).unwrap()
    }

    fn find(&self, hash: u64) -> Option<u32> {
        let same = |row: u32| self.rows[row as usize].load(Relaxed) == hash;
        self.index.find(hash, same).map(|entry| entry.row)
    }
}

fn two_threads_that_intern_one_value_agree() {
    let shared = leaked(Rows::default());
    let other = spawn(|| shared.intern(VALUE, 0));
    let (mine, other) = (shared.intern(VALUE, 1), other.join().unwrap());
    assert_eq!(mine, other);
    assert_eq!(shared.find(VALUE), Some(mine));
}

/// A row that one thread interned and another finds is complete.
fn a_row_that_is_found_was_written() {
    let shared = leaked(Rows::default());
    // The level exists already: loading its address would add an ordering.
    shared.index.insert(OTHER, 0).unwrap();
    spawn(|| shared.intern(VALUE, 2));
    let found = shared.index.find(VALUE, |_| true);
    if let Some(entry) = found {
        assert_eq!(shared.rows[entry.row as usize].load(Relaxed), VALUE);
    }
}

/// The same of a row that is inserted, into a word that was used before.
fn an_inserted_row_that_is_found_was_written() {
    let shared = leaked(Rows::default());
    shared.index.insert(OTHER, 0).unwrap();
    shared.index.find(OTHER, |_| true).unwrap().remove();
    spawn(|| {
        shared.rows[2].store(VALUE, Relaxed);
        shared.index.insert(VALUE, 2).unwrap();
    });
    if let Some(entry) = shared.index.find(VALUE, |_| true) {
        assert_eq!(shared.rows[entry.row as usize].load(Relaxed), VALUE);
    }
}

/// The window is full, so both threads add a level, and they agree in it.
fn they_agree_while_both_add_a_level() {
    let shared = leaked(Rows::default());
    for row in 0..WINDOW as u32 {
        shared.index.insert(OTHER, row).unwrap();
    }
    let other = spawn(|| shared.intern(VALUE, 2));
    let (mine, other) = (shared.intern(VALUE, 3), other.join().unwrap());
    assert_eq!(mine, other);
    assert_eq!(shared.find(VALUE), Some(mine));
}

/// The thread that inserted an entry finds it, whatever the others do, and so does a thread that synchronized with it.
fn an_entry_is_found_from_its_insertion_on() {
    let index = leaked(Index::default());
    for row in 0..WINDOW as u32 {
        index.insert(OTHER, row).unwrap();
    }
    let insert_and_find = |row: u32| {
        index.insert(VALUE, row).unwrap();
        assert!(index.find(VALUE, |found| found == row).is_some(), "row {row} by itself");
    };
    let first = spawn(move || insert_and_find(10));
    let second = spawn(move || insert_and_find(11));
    assert!(index.find(OTHER, |found| found == 0).is_some(), "no thread removed it");
    second.join().unwrap();
    assert!(index.find(VALUE, |found| found == 11).is_some(), "row 11 by another");
    first.join().unwrap();
    assert!(index.find(VALUE, |found| found == 10).is_some(), "row 10 by another");
}

fn of_two_removals_one_succeeds() {
    let index = leaked(Index::default());
    index.insert(VALUE, 5).unwrap();
    let remove = || index.find(VALUE, |_| true).is_some_and(Entry::remove);
    let other = spawn(remove);
    let (mine, other) = (remove(), other.join().unwrap());
    assert!(mine ^ other);
    assert!(index.find(VALUE, |_| true).is_none());
}

/// The word of a removed entry may hold another one before a late removal, even one with the same row.
fn a_late_removal_spares_the_words_next_entry() {
    let index = leaked(Index::default());
    index.insert(VALUE, 5).unwrap();
    let late = index.find(VALUE, |_| true).unwrap();
    let other = spawn(|| {
        let removed = index.find(VALUE, |row| row == 5).is_some_and(Entry::remove);
        index.insert(OTHER, 5).unwrap();
        removed
    });
    let (mine, other) = (late.remove(), other.join().unwrap());
    assert!(mine ^ other);
    assert!(index.find(OTHER, |row| row == 5).is_some());
}

const PROOF: Proof = Proof {
    files: &["src/lockfree/index.rs"],
    models: models![
        two_threads_that_intern_one_value_agree,
        a_row_that_is_found_was_written,
        an_inserted_row_that_is_found_was_written,
        they_agree_while_both_add_a_level,
        an_entry_is_found_from_its_insertion_on,
        of_two_removals_one_succeeds,
        a_late_removal_spares_the_words_next_entry,
    ],
    harmless: &[
        (
            Mistake::HalfCompared,
            "word.compare_exchange(0, new,",
            "the lower half is the row + 1, which is 0 in an empty word only",
        ),
        (Mistake::HalfCompared, "first.compare_exchange(0, new,", "as above"),
    ],
};

#[test]
fn loom_the_index_holds_and_every_mistake_in_it_is_noticed() {
    PROOF.check();
}
