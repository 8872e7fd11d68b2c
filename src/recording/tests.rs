//! The private parts of a recording.

use super::Recording;
use crate::format::{NONE, ROOT};
use crate::kind::Kind;
use crate::lockfree::index::mix;
use crate::lockfree::index::tests::entries;
use crate::reader::tests::{Folder, entry, key, record};

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

/// Blocks grow with every round, so the peaks rise until the end.
#[test]
fn no_kind_has_a_higher_peak_than_its_device() {
    let folder = Folder::new("kind-and-device");
    let recording = record(&folder.0.join("a.culeak"));
    for device in 0..32 {
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                scope.spawn(move || {
                    for round in 1..1_000 {
                        let mut entry = entry(recording, round << 10 | u64::from(thread), NONE, thread);
                        entry.attributes.device = device;
                        let key = key(u64::from(thread) + 1);
                        assert!(recording.allocated(key, &entry));
                        let withdrawn = recording.withdraw(key, thread).unwrap();
                        recording.commit(withdrawn, thread);
                    }
                });
            }
        });
        let [kind, all] = [Some(Kind::Async), None].map(|kind| recording.peak_bytes(device, kind));
        assert!(kind <= all, "a peak of {kind} bytes, that of device {device} is {all}");
    }
}
