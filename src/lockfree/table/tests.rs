//! The table against a plain map, in one thread and in many.

use super::*;
use crate::format::NONE;
use crate::kind::Kind;
use proptest::prelude::*;
use std::collections::HashMap;

pub struct Owned {
    table: Box<Table>,
    pub fresh: AtomicU64,
}

impl Owned {
    pub fn new() -> Owned {
        Owned {
            // SAFETY: documented: all zeros is an empty table.
            table: Box::new(unsafe { std::mem::zeroed() }),
            fresh: AtomicU64::new(0),
        }
    }

    pub fn shard(&self, shard: impl Into<Shard>) -> TableIn<'_> {
        TableIn {
            table: &self.table,
            backing: Backing::Private(16, 1024),
            fresh: &self.fresh,
            shard: shard.into(),
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
        attributes: Attributes {
            kind: Kind::Device,
            space: Space::Pointer,
            flags: 0,
            device: 0,
            api: 7,
            context: 8,
            raised: 0,
        },
    }
}

#[test]
fn a_withdrawn_record_can_be_restored_or_committed() {
    let owned = Owned::new();
    let table = owned.shard(0);
    table.insert(key(0x1000), &entry(5)).unwrap();
    assert_eq!(table.get(key(0x1000)), Some(entry(5)));
    let withdrawn = table.withdraw(key(0x1000)).unwrap();
    assert!(table.withdraw(key(0x1000)).is_none(), "one free wins");
    table.restore(withdrawn).unwrap();
    let withdrawn = table.withdraw(key(0x1000)).unwrap();
    assert_eq!(withdrawn.entry(), Some(entry(5)));
    table.commit(withdrawn);
    assert!(table.get(key(0x1000)).is_none());
}

#[test]
fn the_same_number_in_two_spaces_is_two_records() {
    let owned = Owned::new();
    let table = owned.shard(0);
    let handle = Key {
        space: Space::Array,
        address: 0x1000,
    };
    let array = Entry {
        attributes: Attributes {
            space: Space::Array,
            kind: Kind::Array,
            ..entry(1).attributes
        },
        ..entry(9)
    };
    table.insert(key(0x1000), &entry(5)).unwrap();
    table.insert(handle, &array).unwrap();
    assert_eq!(table.withdraw(handle).unwrap().entry().unwrap().bytes, 9);
    assert_eq!(table.get(key(0x1000)).unwrap().bytes, 5);
}

#[test]
fn churn_does_not_grow_the_table() {
    let owned = Owned::new();
    for round in 0..if cfg!(miri) { 100 } else { 100_000u64 } {
        let table = owned.shard(round as u32);
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
    const PER_THREAD: u64 = if cfg!(miri) { 40 } else { 4000 };
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            let owned = &owned;
            scope.spawn(move || {
                let table = owned.shard(worker as u32);
                for round in 0..PER_THREAD {
                    table
                        .insert(key(worker * PER_THREAD + round + 1), &entry(worker))
                        .unwrap();
                    // Free the neighbour's allocation of a while ago, if it is there yet.
                    let other = (worker + 1) % 4 * PER_THREAD + round / 2 + 1;
                    if let Some(withdrawn) = table.withdraw(key(other)) {
                        assert_eq!(
                            withdrawn.entry().unwrap().bytes,
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
    let table = owned.shard(0);
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
    assert_eq!(live, 0, "every record was withdrawn once");
    assert!(found > 0);
}

/// A live record of the model.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Modelled {
    bytes: u64,
    extra: u64,
    link: Link,
    /// Reached by its key, not by links alone.
    keyed: bool,
}

#[derive(Debug, Clone)]
enum Step {
    Insert(u64, u64),
    Free(u64),
    FailToFree(u64),
    FreeByLink(u64),
    Change(u64, u64),
    Unkey(u64),
    Rekey(u64),
    FreeAllAbove(u64),
}

fn steps() -> impl Strategy<Value = Vec<(u32, Step)>> {
    let key = 0u64..12;
    let step = prop_oneof![
        4 => (key.clone(), 0u64..1000).prop_map(|(key, bytes)| Step::Insert(key, bytes)),
        3 => key.clone().prop_map(Step::Free),
        1 => key.clone().prop_map(Step::FailToFree),
        1 => key.clone().prop_map(Step::FreeByLink),
        1 => (key.clone(), 0u64..9).prop_map(|(key, by)| Step::Change(key, by)),
        1 => key.clone().prop_map(Step::Unkey),
        1 => key.prop_map(Step::Rekey),
        1 => (900u64..1000).prop_map(Step::FreeAllAbove),
    ];
    proptest::collection::vec((0u32..200, step), 1..if cfg!(miri) { 30 } else { 400 })
}

/// Live records as a reader finds them: by looking at all of them.
fn contents(owned: &Owned) -> HashMap<u64, u64> {
    let table = owned.shard(0);
    (0..owned.fresh.load(Relaxed) as u32)
        .filter_map(|number| {
            let record = table.record(number)?;
            let live = State::of(record.state.load(Relaxed))?.status == Status::Live;
            live.then(|| (record.address.load(Relaxed), record.amount.load(Relaxed)))
        })
        .collect()
}

/// For `tests/tsan.sh`, which must see this one fail.
#[cfg(planted_race)]
#[test]
fn a_planted_race() {
    let owned = Owned::new();
    owned.shard(0).insert(key(1), &entry(1)).unwrap();
    std::thread::scope(|scope| {
        for bytes in 0..2 {
            let record = owned.shard(0).record(0).unwrap();
            // SAFETY: none. A store that is not atomic, from two threads.
            scope.spawn(move || unsafe { record.amount.as_ptr().write(bytes) });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 128 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn it_behaves_like_a_plain_map(steps in steps()) {
        let owned = Owned::new();
        let mut model: HashMap<u64, Modelled> = HashMap::new();
        let mut dead_links: Vec<Link> = Vec::new();
        for (shard, step) in steps {
            let table = owned.shard(shard);
            match step {
                Step::Insert(address, bytes) if !model.contains_key(&address) => {
                    table.insert(key(address), &entry(bytes)).unwrap();
                    let link = table.link(key(address)).unwrap();
                    model.insert(address, Modelled { bytes, extra: 3, link, keyed: true });
                }
                Step::Free(address) | Step::FailToFree(address) => {
                    let reached = model.get(&address).filter(|known| known.keyed).copied();
                    let withdrawn = table.withdraw(key(address));
                    prop_assert_eq!(withdrawn.as_ref().and_then(Withdrawn::entry).map(|entry| (entry.bytes, entry.extra)),
                        reached.map(|known| (known.bytes, known.extra)));
                    if let (Some(withdrawn), Some(known)) = (withdrawn, reached) {
                        if matches!(step, Step::Free(_)) {
                            table.commit(withdrawn);
                            dead_links.push(known.link);
                            model.remove(&address);
                        } else {
                            table.restore(withdrawn).unwrap();
                        }
                    }
                }
                Step::FreeByLink(address) => if let Some(known) = model.remove(&address) {
                    let withdrawn = table.withdraw_linked(known.link).unwrap();
                    let entry = withdrawn.entry().unwrap();
                    prop_assert_eq!((entry.bytes, entry.extra), (known.bytes, known.extra));
                    table.commit(withdrawn);
                    dead_links.push(known.link);
                },
                Step::Change(address, by) => if let Some(known) = model.get_mut(&address) {
                    known.extra += by;
                    prop_assert_eq!(table.update_extra_of(known.link, |extra| extra + by), Some(known.extra));
                },
                Step::Unkey(address) => {
                    let reached = model.get_mut(&address).filter(|known| known.keyed);
                    prop_assert_eq!(table.unkey(key(address)), reached.is_some());
                    if let Some(known) = reached {
                        known.keyed = false;
                    }
                }
                Step::Rekey(address) => if let Some(known) = model.get_mut(&address) {
                    table.rekey(known.link);
                    known.keyed = true;
                },
                Step::FreeAllAbove(limit) => {
                    let mut gone = Vec::new();
                    table.withdraw_all(|entry| entry.bytes > limit, |withdrawn| {
                        gone.push(withdrawn.entry().unwrap().bytes);
                        table.commit(withdrawn);
                    });
                    gone.sort_unstable();
                    // By key: records without a key stay.
                    let mut expected = Vec::new();
                    model.retain(|_, known| {
                        let freed = known.keyed && known.bytes > limit;
                        if freed {
                            expected.push(known.bytes);
                            dead_links.push(known.link);
                        }
                        !freed
                    });
                    expected.sort_unstable();
                    prop_assert_eq!(gone, expected);
                }
                Step::Insert(..) => {}
            }
            for address in 0..12 {
                let reached = model.get(&address).filter(|known| known.keyed);
                prop_assert_eq!(
                    table.get(key(address)).map(|entry| (entry.bytes, entry.extra)),
                    reached.map(|known| (known.bytes, known.extra))
                );
            }
        }
        let table = owned.shard(0);
        for link in dead_links {
            prop_assert!(table.withdraw_linked(link).is_none(), "a dangling link reaches no record");
        }
        let expected: HashMap<u64, u64> = model.iter().map(|(&address, known)| (address, known.bytes)).collect();
        prop_assert_eq!(contents(&owned), expected);
    }

    /// Threads with disjoint keys each see a plain map, and a reader sees all of them.
    #[test]
    fn threads_on_keys_of_their_own_see_plain_maps(
        steps in proptest::collection::vec((0u64..8, any::<bool>(), 0u64..1000), 4..if cfg!(miri) { 20 } else { 300 })
    ) {
        let owned = Owned::new();
        let maps: Vec<HashMap<u64, u64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u64).map(|thread| {
                let (owned, steps) = (&owned, &steps);
                scope.spawn(move || {
                    // Two to a shard.
                    let table = owned.shard(thread as u32 / 2);
                    let mut model = HashMap::new();
                    for &(step, free, bytes) in steps {
                        let address = (step * 7 + thread * 3) % 8 * 4 + thread + 1;
                        if let Some(expected) = model.get(&address).copied() {
                            let withdrawn = table.withdraw(key(address)).expect("no other thread frees it");
                            assert_eq!(withdrawn.entry().unwrap().bytes, expected);
                            if free {
                                table.commit(withdrawn);
                                model.remove(&address);
                            } else {
                                table.restore(withdrawn).unwrap();
                            }
                        } else {
                            table.insert(key(address), &entry(bytes)).unwrap();
                            model.insert(address, bytes);
                        }
                    }
                    model
                })
            }).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        prop_assert_eq!(contents(&owned), maps.into_iter().flatten().collect::<HashMap<_, _>>());
    }
}

#[test]
fn bytes_request_and_pool_come_back_from_two_words() {
    let owned = Owned::new();
    let table = owned.shard(0);
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

#[test]
fn the_word_of_attributes_has_all_of_them() {
    let all = Attributes {
        kind: Kind::HostPinned,
        space: Space::Physical,
        flags: 0x2a,
        device: 0xa5,
        api: 0x1234,
        context: 0xabcd,
        raised: 5,
    };
    let word = all.to_word();
    let parts = AttributeParts {
        kind: Kind::HostPinned as u8,
        space: Space::Physical as u8,
        flags: 0x2a,
        device: 0xa5,
        api: 0x1234,
        context: 0xabcd,
        raised: 5,
    };
    assert_eq!(Attributes::parts(word), parts);
}

#[test]
fn records_that_one_thread_freed_are_used_by_others_before_fresh_ones() {
    const COUNT: u64 = 96;
    let owned = Owned::new();
    let first = owned.shard(Shard::first_own());
    for address in 0..COUNT {
        first.insert(key(address), &entry(1)).expect("room");
    }
    for address in 0..COUNT {
        first.commit(first.withdraw(key(address)).expect("it is live"));
    }
    let fresh = owned.fresh.load(Relaxed);
    assert_eq!(fresh, COUNT);
    // The owner keeps at most one magazine for itself, of 32.
    let other = owned.shard(Shard::shared(0));
    for address in 0..COUNT - 32 {
        other.insert(key(1000 + address), &entry(2)).expect("room");
    }
    assert_eq!(owned.fresh.load(Relaxed), fresh);
    for address in 0..32 {
        first.insert(key(address), &entry(3)).expect("room");
    }
    assert_eq!(owned.fresh.load(Relaxed), fresh);
}

#[test]
fn handles_of_each_kind_of_object_have_a_space_of_their_own() {
    use crate::kind::Place;
    let kinds: Vec<Kind> = (0..=u8::MAX).filter_map(Kind::from_number).collect();
    let objects: Vec<_> = kinds.into_iter().filter(|kind| kind.place() == Place::Object).collect();
    assert!(objects.len() > 10);
    let spaces: std::collections::HashSet<_> = objects.iter().map(|kind| Space::of_object(*kind)).collect();
    assert_eq!(spaces.len(), objects.len());
}
