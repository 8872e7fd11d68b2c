//! The table against a plain map, in one thread and in many.

use super::*;
use crate::layout::NONE;
use proptest::prelude::*;
use std::collections::HashMap;

struct Owned {
    table: Box<Table>,
    fresh: AtomicU64,
}

impl Owned {
    fn new() -> Owned {
        Owned {
            // SAFETY: documented: all zeros is an empty table.
            table: Box::new(unsafe { std::mem::zeroed() }),
            fresh: AtomicU64::new(0),
        }
    }

    fn lane(&self, lane: u32) -> TableIn<'_> {
        TableIn {
            table: &self.table,
            backing: Backing::Private(16, 1024),
            fresh: &self.fresh,
            lane,
        }
    }
}

fn key(address: u64) -> Key {
    Key {
        space: Space::Pointer,
        address,
    }
}

fn entry(bytes: u64) -> Entry {
    Entry {
        bytes,
        requested: bytes,
        time_ns: 1,
        extra: 3,
        pool: 4,
        stack: NONE,
        thread: 6,
        what: What {
            kind: Kind::Device,
            space: Space::Pointer,
            flags: 0,
            device: 0,
            api: 7,
            context: 8,
        },
    }
}

#[test]
fn a_withdrawn_record_can_be_restored_or_committed() {
    let owned = Owned::new();
    let table = owned.lane(0);
    table.insert(key(0x1000), &entry(5)).unwrap();
    assert_eq!(table.get(key(0x1000)), Some(entry(5)));
    let withdrawn = table.withdraw(key(0x1000)).unwrap();
    assert!(table.withdraw(key(0x1000)).is_none(), "one free wins");
    table.restore(withdrawn).unwrap();
    let withdrawn = table.withdraw(key(0x1000)).unwrap();
    assert_eq!(table.commit(withdrawn), entry(5));
    assert!(table.get(key(0x1000)).is_none());
}

#[test]
fn the_same_number_in_two_spaces_is_two_records() {
    let owned = Owned::new();
    let table = owned.lane(0);
    let handle = Key {
        space: Space::Array,
        address: 0x1000,
    };
    let array = Entry {
        what: What {
            space: Space::Array,
            kind: Kind::Array,
            ..entry(1).what
        },
        ..entry(9)
    };
    table.insert(key(0x1000), &entry(5)).unwrap();
    table.insert(handle, &array).unwrap();
    assert_eq!(table.withdraw(handle).unwrap().entry.bytes, 9);
    assert_eq!(table.get(key(0x1000)).unwrap().bytes, 5);
}

#[test]
fn churn_does_not_grow_the_table() {
    let owned = Owned::new();
    for round in 0..100_000u64 {
        let table = owned.lane(round as u32);
        table.insert(key(round), &entry(round)).unwrap();
        let withdrawn = table.withdraw(key(round)).unwrap();
        table.commit(withdrawn);
    }
    assert!(
        owned.fresh.load(Relaxed) <= 16,
        "{} records for one live allocation",
        owned.fresh.load(Relaxed)
    );
}

#[test]
fn threads_inserting_and_freeing_each_others_records_lose_and_invent_none() {
    let owned = Owned::new();
    const PER_THREAD: u64 = 4000;
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            let owned = &owned;
            scope.spawn(move || {
                let table = owned.lane(worker as u32);
                for round in 0..PER_THREAD {
                    table
                        .insert(key(worker * PER_THREAD + round + 1), &entry(worker))
                        .unwrap();
                    // Free the neighbour's allocation of a while ago, if it is there yet.
                    let other = (worker + 1) % 4 * PER_THREAD + round / 2 + 1;
                    if let Some(withdrawn) = table.withdraw(key(other)) {
                        assert_eq!(
                            withdrawn.entry.bytes,
                            (worker + 1) % 4,
                            "the record of that address, not another"
                        );
                        if round % 3 == 0 {
                            table.restore(withdrawn).unwrap();
                        } else {
                            table.commit(withdrawn);
                        }
                    }
                }
            });
        }
    });
    let table = owned.lane(0);
    let mut found = 0;
    table.withdraw_all(
        |_| true,
        |withdrawn| {
            found += 1;
            table.commit(withdrawn);
        },
    );
    let live = (1..=4 * PER_THREAD)
        .filter(|&address| table.get(key(address)).is_some())
        .count();
    assert_eq!(live, 0, "everything was taken out once");
    assert!(found > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_behaves_like_a_plain_map(steps in proptest::collection::vec((0u8..4, 0u64..40, 0u64..1000), 1..400)) {
        let owned = Owned::new();
        let mut model: HashMap<u64, u64> = HashMap::new();
        for (lane, (step, address, bytes)) in steps.into_iter().enumerate() {
            let table = owned.lane(lane as u32);
            match step {
                0 | 1 if !model.contains_key(&address) => {
                    table.insert(key(address), &entry(bytes)).unwrap();
                    model.insert(address, bytes);
                }
                2 => match table.withdraw(key(address)) {
                    Some(withdrawn) => {
                        prop_assert_eq!(Some(withdrawn.entry.bytes), model.remove(&address));
                        table.commit(withdrawn);
                    }
                    None => prop_assert!(!model.contains_key(&address)),
                },
                3 => if let Some(withdrawn) = table.withdraw(key(address)) {
                    table.restore(withdrawn).unwrap();
                },
                _ => {}
            }
            prop_assert_eq!(table.get(key(address)).map(|entry| entry.bytes), model.get(&address).copied());
        }
    }
}

#[test]
fn bytes_request_and_pool_come_back_from_two_words() {
    let owned = Owned::new();
    let table = owned.lane(0);
    // Plain, with a pool, a claim, a claim with a pool, rounded up.
    for (place, numbers) in [(7, 7, 0), (7, 7, 9), (0, 7, 0), (0, 7, 9), (8, 7, 0), (0, 0, 9)]
        .into_iter()
        .enumerate()
    {
        let (bytes, requested, pool) = numbers;
        let key = key(0x1000 + place as u64);
        table
            .insert(
                key,
                &Entry {
                    bytes,
                    requested,
                    pool,
                    ..entry(0)
                },
            )
            .unwrap();
        let found = table.get(key).unwrap();
        assert_eq!((found.bytes, found.requested, found.pool), numbers);
    }
}
