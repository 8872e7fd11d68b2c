//! The index of guarded records against a map, and with what other threads do to the same table.

use std::collections::HashMap;

use super::super::tests::Owned;
use super::*;
use crate::kind::Kind;
use crate::lockfree::table::{Attributes, Space};
use proptest::prelude::*;

fn guarded() -> Guarded {
    // SAFETY: documented: all zeros is one without records.
    let guarded: Guarded = unsafe { std::mem::zeroed() };
    guarded.begin(entry(1, UNSAMPLED).attributes, 0).unwrap();
    guarded
}

fn key(address: u64) -> Key {
    Key {
        space: Space::Tensor,
        address,
    }
}

fn entry(bytes: u64, stack: u32) -> Entry {
    Entry {
        bytes,
        requested: bytes,
        time_ns: 1,
        extra: 0,
        pool: 0,
        stack,
        thread: 6,
        attributes: Attributes {
            kind: Kind::Tensor,
            space: Space::Tensor,
            flags: 0,
            device: 0,
            api: 7,
            context: Attributes::NO_CONTEXT,
            raised: 0,
        },
    }
}

/// As the callers do.
fn insert(guarded: &Guarded, table: &TableIn, key: Key, entry: &Entry) -> bool {
    guarded.insert(table, key, entry)
        || guarded.make_room(table, key.address).is_ok() && guarded.insert(table, key, entry)
}

/// Frees a plain record; its bytes.
fn free(guarded: &Guarded, key: Key) -> Option<u64> {
    let plain = guarded.slots().unwrap().plain(key.address)?;
    let bytes = plain.bytes();
    plain.begin_free();
    let state = State::of(plain.record.state.load(Relaxed)).unwrap();
    assert!(state.status == Status::Withdrawn);
    plain.free();
    Some(bytes)
}

fn live(owned: &Owned) -> HashMap<u64, u64> {
    let table = owned.shard(0);
    let all = (0..owned.fresh.load(Relaxed) as u32).filter_map(|number| table.record(number));
    let live = all.filter(|record| State::of(record.state.load(Relaxed)).unwrap().status == Status::Live);
    live.map(|record| (record.address.load(Relaxed), record.amount.load(Relaxed)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 64 }))]

    /// Few addresses, so that most are used again, in steps of a block and of more than the index has places.
    #[test]
    fn it_finds_what_a_map_finds(
        steps in prop::collection::vec((0u64..700, 1u64..1000, any::<bool>()), 0..if cfg!(miri) { 200 } else { 4000 }),
        unit in prop_oneof![Just(512u64), Just(1 << 33), Just(2 << 20)],
    ) {
        let (owned, guarded) = (Owned::new(), guarded());
        let table = owned.shard(0);
        let mut expected = HashMap::new();
        for (number, bytes, has_stack) in steps {
            let address = 0x7f00_0000_0000 + number * unit;
            let Some((known, had_stack)) = expected.remove(&address) else {
                let stack = if has_stack { 3 } else { UNSAMPLED };
                prop_assert!(insert(&guarded, &table, key(address), &entry(bytes, stack)));
                expected.insert(address, (bytes, has_stack));
                continue;
            };
            prop_assert!(!guarded.insert(&table, key(address), &entry(bytes, 0)), "there is one of this key");
            prop_assert_eq!(free(&guarded, key(address)), (!had_stack).then_some(known));
            if had_stack {
                let withdrawn = guarded.withdraw(&table, address).unwrap();
                prop_assert_eq!(withdrawn.entry().unwrap().bytes, known);
                table.commit(withdrawn);
            }
            prop_assert!(guarded.withdraw(&table, address).is_none());
        }
        let slots = guarded.slots().unwrap();
        prop_assert_eq!(slots.all().count(), expected.len());
        let free = slots.head().free.load(Relaxed).wrapping_neg();
        prop_assert_eq!(slots.head().owned.load(Relaxed), expected.len() as u64 + free);
        let bytes = expected.iter().map(|(&address, &(bytes, _))| (address, bytes)).collect();
        prop_assert_eq!(live(&owned), bytes);
        for &address in expected.keys() {
            prop_assert!(guarded.withdraw(&table, address).is_some());
        }
    }
}

#[test]
fn the_index_grows_and_churn_uses_the_same_records() {
    const MOST: u64 = if cfg!(miri) { 1_500 } else { 50_000 };
    let (owned, guarded) = (Owned::new(), guarded());
    let table = owned.shard(0);
    let address = |number: u64| 0x7f00_0000_0000 + 512 * number;
    for number in 0..MOST {
        assert!(insert(
            &guarded,
            &table,
            key(address(number)),
            &entry(number + 1, UNSAMPLED)
        ));
    }
    assert!(guarded.slots().unwrap().has_room_for(0));
    let records = owned.fresh.load(Relaxed);
    for number in 0..MOST {
        assert_eq!(free(&guarded, key(address(number))), Some(number + 1));
        assert!(
            guarded.insert(&table, key(address(number + MOST)), &entry(1, UNSAMPLED)),
            "at once"
        );
    }
    assert_eq!(owned.fresh.load(Relaxed), records);
    assert_eq!(live(&owned).len() as u64, MOST);
}

/// Two devices, each with its own lock, and a third thread that uses the table as most memory does.
#[test]
fn records_are_nobody_elses() {
    const ROUNDS: u64 = if cfg!(miri) { 30 } else { 20_000 };
    let (owned, devices) = (Owned::new(), [guarded(), guarded()]);
    std::thread::scope(|scope| {
        for (number, guarded) in devices.iter().enumerate() {
            let table = owned.shard(number as u32);
            scope.spawn(move || {
                let address = |round: u64| ((number as u64 + 1) << 40) + 512 * (round % 100);
                for round in 0..ROUNDS {
                    if round >= 100 {
                        assert_eq!(free(guarded, key(address(round))), Some(round - 99));
                    }
                    assert!(insert(
                        guarded,
                        &table,
                        key(address(round)),
                        &entry(round + 1, UNSAMPLED)
                    ));
                }
            });
        }
        let table = owned.shard(2);
        scope.spawn(move || {
            for round in 0..ROUNDS {
                table.insert(key(round), &entry(round, 0)).unwrap();
                let withdrawn = table.withdraw(key(round)).unwrap();
                assert_eq!(withdrawn.entry().unwrap().bytes, round);
                table.commit(withdrawn);
            }
        });
    });
    let expected = 2 * ROUNDS.min(100);
    assert_eq!(live(&owned).len() as u64, expected);
}

/// Few first places, so that the last slots are full: the index is enlarged, and nothing is lost.
#[test]
fn where_the_last_slots_are_full_the_index_grows() {
    let (owned, guarded) = (Owned::new(), guarded());
    let table = owned.shard(0);
    let last = (0u64..).map(|number| 0x7f00_0000_0000 + 512 * number);
    let last: Vec<u64> = last
        .filter(|&address| hash(address) / 16 % FIRST as u64 >= FIRST as u64 - 4)
        .take(BEYOND + 20)
        .collect();
    for (number, &address) in last.iter().enumerate() {
        assert!(insert(
            &guarded,
            &table,
            key(address),
            &entry(number as u64 + 1, UNSAMPLED)
        ));
    }
    assert!(guarded.slots().unwrap().head().most.load(Relaxed).wrapping_neg() > FIRST as u64 / 2);
    for (number, &address) in last.iter().enumerate() {
        assert_eq!(free(&guarded, key(address)), Some(number as u64 + 1));
    }
}

/// Also where each event calls only this.
#[test]
fn one_event_in_many_is_to_be_measured() {
    let guarded = guarded();
    let slots = guarded.slots().unwrap();
    let ends: Vec<bool> = (0..9).map(|_| slots.has_counted_down(2)).collect();
    assert_eq!(ends, [true, false, false].repeat(3));
    let ends: Vec<bool> = (0..9)
        .map(|_| slots.counts_down() && slots.has_counted_down(2))
        .collect();
    assert_eq!(ends, [true, false, false].repeat(3));
}

/// Neither address is one of a block, and both are those of slots.
#[test]
fn the_addresses_of_slots_without_a_record_have_none() {
    let (owned, guarded) = (Owned::new(), guarded());
    let table = owned.shard(0);
    for address in [0, END] {
        assert!(!insert(&guarded, &table, key(address), &entry(1, UNSAMPLED)));
        assert!(!insert(&guarded, &table, key(address), &entry(1, 3)));
        assert!(guarded.slots().unwrap().plain(address).is_none());
        assert!(guarded.withdraw(&table, address).is_none());
    }
}
