//! Every interleaving of small pieces of the table: batches and extents of four records, an index of two
//! levels. Every thread may also die before any of its operations.

use super::*;
use crate::format::NONE;
use crate::kind::Kind;
use crate::lockfree::sync::modelled::{Mistake, Proof, dying, explore, models, quiet};
use ::loom::thread::spawn;
use std::cell::Cell;

#[derive(Default)]
struct Owned {
    table: Table,
    fresh: AtomicU64,
}

impl Owned {
    fn new() -> TableIn<'static> {
        let owned: &'static Owned = Box::leak(Box::default());
        TableIn {
            table: &owned.table,
            backing: Backing::Private(4, 8),
            fresh: &owned.fresh,
            shard: Shard::shared(0),
        }
    }
}

const ONE: Key = key(1);
const TWO: Key = key(2);
const THREE: Key = key(3);

const fn key(address: u64) -> Key {
    Key {
        space: Space::Pointer,
        address,
    }
}

/// The entry of a key: every field follows from the address.
fn entry(key: Key) -> Entry {
    Entry {
        bytes: key.address * 100,
        requested: key.address * 100,
        time_ns: key.address,
        extra: key.address,
        pool: key.address,
        stack: NONE,
        thread: 0,
        attributes: Attributes {
            kind: Kind::Device,
            space: key.space,
            flags: 0,
            device: 0,
            api: 0,
            context: 0,
            raised: 0,
        },
    }
}

/// Physical memory, whose key can be removed.
const HANDLE: Key = Key {
    space: Space::Physical,
    address: 1,
};

impl TableIn<'static> {
    /// The table as the thread that owns a shard uses it.
    fn of_owner(self) -> TableIn<'static> {
        TableIn {
            shard: Shard::first_own(),
            ..self
        }
    }

    fn add(&self, key: Key) -> u32 {
        self.insert(key, &entry(key)).unwrap()
    }

    fn free(&self, key: Key) -> bool {
        let Some(withdrawn) = self.withdraw(key) else {
            return false;
        };
        assert_eq!(withdrawn.entry(), Some(entry(key)), "the record of that key");
        self.commit(withdrawn);
        true
    }

    /// The key of a record as a reader in another process sees it: state, fields, state again.
    fn seen_from_outside(&self, number: u32) -> Option<Key> {
        let record = self.record(number)?;
        let before = record.state.load(Acquire);
        // Two fields suffice to detect a torn read, and save steps.
        let (address, bytes) = (record.address.load(Relaxed), record.amount.load(Relaxed));
        // A reader copies with system calls, which order at least as much as a fence.
        ::loom::sync::atomic::fence(Acquire);
        let live = State::of(before)?.status == Status::Live;
        if !live || record.state.load(Relaxed) != before {
            return None;
        }
        assert_eq!(bytes, address * 100, "fields of one entry");
        assert_ne!(address, 0, "no link of a free list");
        Some(key(address))
    }

    /// The keys that a reader finds while no thread changes the table.
    fn contents(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = (0..self.fresh.load(Relaxed) as u32)
            .filter_map(|number| self.seen_from_outside(number))
            .collect();
        keys.sort_by_key(|key| key.address);
        keys
    }

    /// Takes every free record, and checks that none is in the free lists twice and none is live.
    fn expect_sound_free_lists(&self) {
        let live = self.contents().len() as u64;
        let mut taken = Vec::new();
        while let Some((number, record)) = self.take_magazine(self.free_list(0)) {
            assert!(!taken.contains(&number), "record {number} is in the free lists twice");
            assert_eq!(State::of(record.state.load(Relaxed)).unwrap().status, Status::Free);
            taken.push(number);
        }
        assert!(taken.len() as u64 + live <= self.fresh.load(Relaxed));
    }
}

fn of_two_frees_one_wins() {
    let table = Owned::new();
    table.add(ONE);
    let other = spawn(move || table.free(ONE));
    let (mine, other) = (table.free(ONE), other.join().unwrap());
    assert!(mine ^ other);
    assert!(table.contents().is_empty());
}

/// A thread finds a record, and is stopped. Meanwhile the record is freed and used for another key.
fn a_late_free_spares_the_records_next_owner() {
    let table = Owned::new();
    table.add(ONE);
    let other = spawn(move || {
        let freed = table.free(ONE);
        table.add(TWO);
        freed
    });
    let mine = table.free(ONE);
    assert!(mine ^ other.join().unwrap());
    assert_eq!(table.contents(), [TWO]);
}

fn two_threads_insert_and_both_are_found() {
    let table = Owned::new();
    let other = spawn(move || table.add(TWO));
    table.add(ONE);
    assert_eq!(table.get(ONE), Some(entry(ONE)));
    other.join().unwrap();
    assert_eq!(table.get(TWO), Some(entry(TWO)));
    assert_eq!(table.contents(), [ONE, TWO]);
}

/// Another thread, which does not synchronize otherwise, finds the record complete or not at all.
fn what_another_thread_finds_is_complete() {
    let table = Owned::new();
    table.add(ONE);
    table.free(ONE);
    spawn(move || table.add(TWO));
    if let Some(found) = table.get(TWO) {
        assert_eq!(found, entry(TWO));
    }
}

fn what_another_thread_withdraws_is_complete() {
    let table = Owned::new();
    table.add(ONE);
    table.free(ONE);
    spawn(move || table.add(TWO));
    table.free(TWO);
}

/// A thread reads the head of a list and its successor, and is stopped. Meanwhile the head and its successor are taken, and
/// the head is released: it is the head again, with another successor (ABA).
fn a_record_is_never_taken_twice() {
    let table = Owned::new();
    for key in [ONE, TWO] {
        table.add(key);
    }
    for key in [ONE, TWO] {
        table.free(key);
    }
    let other = spawn(move || table.take().unwrap().0);
    let (head, record) = table.take().unwrap();
    let (successor, _) = table.take().unwrap();
    table.release(head, record, 7);
    let theirs = other.join().unwrap();
    assert_ne!(theirs, successor, "this thread has that record");
    assert_ne!(table.take().unwrap().0, successor, "and it is in no list");
}

/// An owner frees three records, of which its local list holds two: it shares a magazine, from which another thread takes.
fn records_of_a_shared_magazine_are_taken_once() {
    let table = Owned::new();
    let owner = table.of_owner();
    for key in [ONE, TWO, THREE] {
        owner.add(key);
    }
    // Records 0 to 2; one is left of the batch.
    let other = spawn(move || {
        let found = table.take_magazine(table.free_list(1));
        let rest = table.take_magazine(table.free_list(0));
        [found, rest].into_iter().flatten().map(|(number, _)| number).collect()
    });
    for key in [ONE, TWO, THREE] {
        assert!(owner.free(key));
    }
    let mut taken: Vec<u32> = std::iter::from_fn(|| {
        owner
            .take_local(owner.free_list(0))
            .or_else(|| owner.take_magazine(owner.free_list(0)))
    })
    .map(|(number, _)| number)
    .collect();
    let theirs: Vec<u32> = other.join().unwrap();
    taken.extend(theirs);
    taken.extend(std::iter::from_fn(|| table.take_magazine(table.free_list(0))).map(|(number, _)| number));
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 2], "each once");
}

/// A thread finds an entry, and is stopped. Meanwhile the key is freed, another key takes the entry's word, and the first
/// key is inserted again, with the same record, in another word.
fn a_late_free_spares_the_new_entry_in_the_word_of_its_old_one() {
    let table = Owned::new();
    table.add(ONE);
    // A free record of another shard, so that the first key gets its old record again.
    table.of_owner().add(THREE);
    table.of_owner().free(THREE);
    let other = spawn(move || {
        let freed = table.free(ONE);
        table.of_owner().add(TWO);
        table.add(ONE);
        freed
    });
    let mine = table.free(ONE);
    let theirs = other.join().unwrap();
    assert_eq!(table.get(ONE).is_some(), !(mine && theirs));
    assert!(table.free(TWO), "it is still in the index");
}

/// One thread takes a batch, and others of its shard use it: each of its records is handed out once.
fn every_fresh_record_is_handed_out_once() {
    let table = Owned::new();
    let take = move || table.take_fresh(table.free_list(0)).map(|(number, _)| number);
    let others = [spawn(take), spawn(take)];
    let (first, _) = table.take().unwrap();
    let mut taken: Vec<u32> = others.into_iter().filter_map(|other| other.join().unwrap()).collect();
    taken.push(first);
    taken.extend(std::iter::from_fn(take));
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 2, 3]);
}

/// A record is freed and used again while a reader copies it.
fn a_reader_takes_all_of_a_record_or_nothing() {
    let table = Owned::new();
    let number = table.add(ONE);
    let writer = spawn(move || {
        table.free(ONE);
        table.add(TWO)
    });
    if let Some(key) = table.seen_from_outside(number) {
        assert!(key == ONE || key == TWO, "{key:?}");
    }
    assert_eq!(writer.join().unwrap(), number, "the record was used again");
}

/// The same, with one thread that frees the record and another that uses it again.
fn a_reader_is_not_misled_by_two_threads_either() {
    let table = Owned::new();
    let number = table.add(ONE);
    let free = spawn(move || table.free(ONE));
    let reader = spawn(move || table.seen_from_outside(number));
    if halves(table.free_list(0).magazines.load(Relaxed)).0 != 0 {
        // Already freed: the same record, with another key.
        assert_eq!(table.add(TWO), number);
    }
    if let Some(key) = reader.join().unwrap() {
        assert!(key == ONE || key == TWO, "{key:?}");
    }
    free.join().unwrap();
}

/// A reader finds a record that was restored by a thread which did not write it.
fn a_restored_record_is_complete() {
    let table = Owned::new();
    let number = table.add(ONE);
    table.free(ONE);
    spawn(move || table.add(TWO));
    spawn(move || {
        if let Some(withdrawn) = table.withdraw(TWO) {
            table.restore(withdrawn).unwrap();
        }
    });
    if let Some(key) = table.seen_from_outside(number) {
        assert_eq!(key, TWO);
    }
}

/// The same for a thread of the process, which reads with `get`.
fn get_returns_all_of_a_record_or_nothing() {
    let table = Owned::new();
    table.add(ONE);
    spawn(move || {
        table.free(ONE);
        table.add(TWO)
    });
    if let Some(found) = table.get(ONE) {
        assert_eq!(found, entry(ONE));
    }
}

fn a_link_to_a_reused_record_is_dangling() {
    let table = Owned::new();
    let number = table.add(ONE);
    let link = table.link(ONE).unwrap();
    let other = spawn(move || {
        let freed = table.free(ONE);
        table.add(TWO);
        freed
    });
    let mine = table.withdraw_linked(link).map(|withdrawn| {
        assert_eq!(withdrawn.entry(), Some(entry(ONE)));
        table.commit(withdrawn);
    });
    assert!(mine.is_some() ^ other.join().unwrap());
    assert_eq!(table.get(TWO), Some(entry(TWO)));
    assert_eq!(table.contents(), [TWO]);
    let _ = number;
}

fn a_restored_record_can_be_freed_again() {
    let table = Owned::new();
    table.add(ONE);
    let other = spawn(move || table.free(ONE));
    if let Some(withdrawn) = table.withdraw(ONE) {
        table.restore(withdrawn).unwrap();
    }
    let freed = other.join().unwrap();
    assert_eq!(table.get(ONE).is_some(), !freed);
    assert_eq!(table.free(ONE), !freed);
    assert!(table.contents().is_empty());
}

fn a_record_without_its_key_is_reached_by_links_and_found_again_with_it() {
    let table = Owned::new();
    table.add(HANDLE);
    let link = table.link(HANDLE).unwrap();
    let other = spawn(move || table.free(HANDLE));
    let unkeyed = table.unkey(HANDLE);
    if unkeyed {
        table.rekey(link);
    }
    let freed = other.join().unwrap();
    assert_eq!(table.get(HANDLE).is_some(), !freed);
    assert_eq!(table.withdraw_linked(link).is_some(), !freed);
}

/// Several threads change the counts of a live record.
fn counts_in_a_record_are_changed_one_by_one() {
    let table = Owned::new();
    table.add(ONE);
    let other = spawn(move || table.update_extra(ONE, |extra| extra + (1 << 32)));
    table.update_extra(ONE, |extra| extra + 1);
    other.join().unwrap();
    assert_eq!(table.get(ONE).unwrap().extra, 1 + 1 + (1 << 32));
}

/// The work of a thread that may die in it.
type Deed = fn(TableIn<'static>);

/// A thread dies before its operation `at`, in every interleaving with another thread, which continues undisturbed and whose
/// changes are complete. Returns whether the thread died.
fn dies(at: u32, deed: Deed) -> bool {
    let table = Owned::new();
    table.add(ONE);
    table.add(THREE);
    table.free(THREE);
    let dead = spawn(move || dying(at, || deed(table)).is_none());
    table.add(TWO);
    assert!(table.free(TWO));
    table.add(TWO);
    let dead = dead.join().unwrap();
    assert_eq!(table.get(TWO), Some(entry(TWO)));
    let contents = table.contents();
    assert!(contents.contains(&TWO));
    assert!(
        contents.iter().all(|key| [ONE, TWO, THREE].contains(key)),
        "{contents:?}"
    );
    // At most the one record that the dead thread was changing is lost.
    let in_flight = (0..table.fresh.load(Relaxed) as u32)
        .filter_map(|number| State::of(table.record(number)?.state.load(Relaxed)))
        .filter(|state| matches!(state.status, Status::Writing | Status::Withdrawn))
        .count();
    assert!(in_flight <= 1);
    table.expect_sound_free_lists();
    dead
}

thread_local! {
    /// The operation before which the thread dies, in the executions that are being explored.
    static AT: Cell<u32> = const { Cell::new(0) };
    /// Whether it died in any of them.
    static DIED: Cell<bool> = const { Cell::new(false) };
}

/// Tries a death before every operation of a deed.
fn tries_every_death_in(deed: Deed) {
    thread_local! {
        static DEED: Cell<Option<Deed>> = const { Cell::new(None) };
    }
    DEED.set(Some(deed));
    for at in 0.. {
        AT.set(at);
        DIED.set(false);
        explore(
            || {
                let deed = DEED.get().expect("set above");
                DIED.set(dies(AT.get(), deed) || DIED.get());
            },
            1,
        );
        if !DIED.get() {
            println!("{at} deaths");
            assert!(at > 5, "the thread never died: the test is void");
            return;
        }
    }
}

#[test]
fn loom_a_thread_may_die_anywhere_in_an_insertion() {
    tries_every_death_in(|table| {
        table.add(THREE);
    });
}

#[test]
fn loom_a_thread_may_die_anywhere_in_a_free() {
    tries_every_death_in(|table| {
        table.free(ONE);
    });
}

#[test]
fn loom_a_thread_may_die_anywhere_in_a_free_that_fails() {
    tries_every_death_in(|table| {
        if let Some(withdrawn) = table.withdraw(ONE) {
            table.restore(withdrawn).unwrap();
        }
    });
}

#[test]
fn loom_a_thread_may_die_anywhere_while_it_changes_a_key() {
    tries_every_death_in(|table| {
        table.add(HANDLE);
        if let Some(link) = table.link(HANDLE) {
            table.unkey(HANDLE);
            table.rekey(link);
        }
    });
}

#[test]
fn loom_a_thread_may_die_anywhere_while_it_uses_its_local_list_and_shares_a_magazine() {
    tries_every_death_in(|table| {
        let owner = table.of_owner();
        owner.free(ONE);
        owner.add(THREE);
        owner.free(THREE);
    });
}

/// Shows that the models of deaths can fail: a thread releases a record before it withdraws it.
#[test]
fn loom_a_death_in_the_wrong_order_is_noticed() {
    quiet(|| {
        tries_every_death_in(|table| {
            let link = table.link(ONE).unwrap();
            let record = table.record(link.number).unwrap();
            record.address.store(0, Relaxed);
            let (first, tag) = halves(table.free_list(0).magazines.load(Relaxed));
            record.address.store(pack(0, first), Relaxed);
            table
                .free_list(0)
                .magazines
                .store(pack(link.number + 1, tag + 1), Relaxed);
            table.withdraw(ONE);
        });
    })
    .expect_err("no model noticed");
}

const PROOF: Proof = Proof {
    files: &["src/lockfree/table.rs", "src/lockfree/table/free_list.rs"],
    models: models![
        of_two_frees_one_wins,
        a_late_free_spares_the_records_next_owner,
        two_threads_insert_and_both_are_found,
        what_another_thread_finds_is_complete,
        what_another_thread_withdraws_is_complete,
        a_record_is_never_taken_twice,
        records_of_a_shared_magazine_are_taken_once,
        a_late_free_spares_the_new_entry_in_the_word_of_its_old_one,
        every_fresh_record_is_handed_out_once,
        a_reader_takes_all_of_a_record_or_nothing,
        a_reader_is_not_misled_by_two_threads_either,
        a_restored_record_is_complete,
        get_returns_all_of_a_record_or_nothing,
        a_link_to_a_reused_record_is_dangling,
        a_restored_record_can_be_freed_again,
        a_record_without_its_key_is_reached_by_links_and_found_again_with_it,
        counts_in_a_record_are_changed_one_by_one,
    ],
    harmless: &[
        (
            Mistake::Relaxed,
            ".compare_exchange(state.word(), gone.word(), Acquire, Relaxed)",
            "`is` has just acquired the same state",
        ),
        (
            Mistake::Relaxed,
            ".compare_exchange(live.word(), gone.word(), Acquire, Relaxed)",
            "`linked` has just acquired the same state",
        ),
        (
            Mistake::Relaxed,
            "(State::of(record.state.load(Acquire)) == Some(live)).then_some(record)",
            "a thread with a link has it from a thread that saw the record live",
        ),
        (
            Mistake::Relaxed,
            ".fetch_update(AcqRel, Acquire, |extra| Some(change(extra)))",
            "nothing is published by the counts",
        ),
        (
            Mistake::RelaxedOnFailure,
            ".fetch_update(AcqRel, Acquire, |extra| Some(change(extra)))",
            "nothing is published by the counts",
        ),
        (
            Mistake::Relaxed,
            "pack(next_magazine, tag.wrapping_add(1)), AcqRel, Acquire)",
            "the head was acquired when it was loaded, and a swap hands on what others have released",
        ),
        (
            Mistake::Relaxed,
            "list.batch.compare_exchange_weak(batch, left, AcqRel, Acquire)",
            "the batch was acquired when it was loaded, and a swap hands on what others have released",
        ),
        (
            Mistake::Relaxed,
            "let mut batch = list.batch.load(Acquire);",
            "the swap acquires it too",
        ),
        (
            Mistake::RelaxedOnFailure,
            "list.batch.compare_exchange_weak(batch, left, AcqRel, Acquire)",
            "the swap that succeeds acquires it too",
        ),
        (
            Mistake::HalfCompared,
            "list.batch.compare_exchange_weak(batch, left, AcqRel, Acquire)",
            "no two batches hold the same number",
        ),
        (
            Mistake::HalfCompared,
            "pack(link, tag.wrapping_add(1)), Release, Relaxed)",
            "a record may be pushed as long as the head is the one it links to, whatever happened meanwhile",
        ),
    ],
};

#[test]
fn loom_the_table_holds_and_every_mistake_in_it_is_noticed() {
    PROOF.check();
}
