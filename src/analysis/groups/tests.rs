use super::*;
use crate::sample::{leaky, training};

#[test]
fn a_group_is_all_records_of_one_stack_and_call() {
    let snapshot = leaky();
    let stacks = CallStacks::of(&snapshot);
    let groups = Groups::of(&snapshot, &stacks);
    let counts: Vec<u64> = groups.all.iter().map(|group| group.count).collect();
    assert_eq!(counts.iter().sum::<u64>(), snapshot.allocations.len() as u64);
    let first = &groups.all[0];
    assert_eq!((first.count, first.smallest, first.largest), (128, 9 << 20, 9 << 20));
    assert!(first.oldest_ns < first.newest_ns);
}

#[test]
fn a_stack_with_many_calls_has_a_group_for_each() {
    let mut snapshot = leaky();
    let (mut nth, kinds) = (0, 40);
    snapshot.allocations.change(|_, allocation, call| {
        (allocation.stack, allocation.bytes, call.pool) = (Some(0), nth, Some(nth % kinds));
        nth += 1;
    });
    let stacks = CallStacks::of(&snapshot);
    let calls: std::collections::HashSet<_> = snapshot.allocations.iter().map(|a| a.call).collect();
    let groups = Groups::of(&snapshot, &stacks);
    assert!(calls.len() > 4 * CHAIN && groups.all.len() == calls.len());
    for group in &groups.all {
        let members: Vec<_> = snapshot.allocations.iter().filter(|a| a.call == group.call).collect();
        let bytes = members.iter().map(|a| u128::from(a.bytes)).sum::<u128>();
        assert_eq!((group.count, group.bytes), (members.len() as u64, bytes));
    }
    assert_eq!(Groups::with_sizes_apart(&snapshot, &stacks, 0).all.len() as u64, nth);
}

#[test]
fn two_threads_count_the_same_as_one() {
    let mut snapshot = training().finish(0, 0);
    let few = snapshot.allocations.clone();
    while snapshot.allocations.len() < 2 * MANY {
        snapshot.allocations.rows.extend_from_slice(&few.rows);
    }
    let times = (snapshot.allocations.len() / few.len()) as u64;
    let stacks = CallStacks::of(&snapshot);
    let many = Groups::of(&snapshot, &stacks).all;
    let once = training().finish(0, 0);
    let one = Groups::of(&once, &stacks).all;
    assert_eq!(one.len(), many.len());
    for (one, many) in one.iter().zip(many) {
        let (bytes, count) = (one.bytes * u128::from(times), one.count * times);
        assert_eq!(many, Group { bytes, count, ..*one });
    }
}
