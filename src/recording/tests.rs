//! The private parts of a recording.

use super::Recording;
use crate::format::ROOT;
use crate::lockfree::index::mix;
use crate::lockfree::index::tests::entries;
use crate::reader::tests::{Folder, record};

const STACKS: u64 = 64;

/// As after an unload: the same stacks under other hashes.
fn remember_all(recording: &Recording, generation: u64) {
    for address in 1..=STACKS {
        let stack = recording.frame(ROOT, None, address).unwrap();
        recording.remember_stack(mix(mix(generation) ^ address), stack);
    }
}

#[test]
fn two_thousand_unloads_leave_one_entry_for_each_stack() {
    let folder = Folder::new("unloads");
    let recording = record(&folder.0.join("a.culeak"));
    for generation in 0..2_000 {
        remember_all(recording, generation);
    }
    assert_eq!(entries(&recording.stack_index), STACKS as usize);
    for address in 1..=STACKS {
        let stack = recording.frame(ROOT, None, address);
        assert_eq!(recording.stack(mix(mix(1_999) ^ address)), stack);
        assert_eq!(recording.stack(mix(mix(1_998) ^ address)), None);
    }
}

#[test]
fn threads_that_store_the_same_stacks_after_an_unload_leave_one_entry_for_each() {
    let folder = Folder::new("unloads-threads");
    let recording = record(&folder.0.join("a.culeak"));
    let barrier = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for generation in 0..500 {
                    barrier.wait();
                    remember_all(recording, generation);
                }
            });
        }
    });
    // Once more, by one thread: it replaces what the race left.
    remember_all(recording, 500);
    let entries = entries(&recording.stack_index);
    assert!(entries < 2 * STACKS as usize, "{entries} entries for {STACKS} stacks");
}
