//! The private parts of a recording.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use super::{CodeSeen, ModuleSeen, Outcome, Recording, Reported, TensorEvent};
use crate::cuda_functions::Api;
use crate::format::{FRAME_NAME_BYTES, FRAME_NAMES_MAX, Loss, NONE, ROOT, Section, Text, UNSAMPLED, pack};
use crate::kind::Kind;
use crate::lockfree::index::mix;
use crate::lockfree::index::tests::entries;
use crate::lockfree::shards::Shard;
use crate::lockfree::table::{Attributes, Entry, Key, Space};
use crate::reader::tests::{Folder, entry, key, record};
use crate::reader::{read, read_with_totals};
use crate::snapshot::Snapshot;
use crate::snapshot::allocations::Allocations;

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

#[test]
fn a_frame_has_the_name_that_the_recorder_stored() {
    let folder = Folder::new("names");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    let modules = [0x1000, 0x9000].map(|start| {
        let seen = ModuleSeen {
            path: b"/usr/lib/libcuda.so.1",
            build_id: &[],
            bias: start,
            start,
            end: start + 0x1000,
        };
        recording.add_module(&seen).unwrap()
    });
    let mut stack = ROOT;
    for module in modules {
        for address in [0x10, 0x20, 0x30] {
            stack = recording.frame(stack, Some(module), address).unwrap();
        }
    }
    assert!(recording.allocated(key(1), &entry(recording, 1, stack, 0)));
    assert!(!recording.is_named(modules[1], 0x20));
    recording.name_frame(modules[1], 0x20, b"cuLaunchKernel");
    recording.name_frame(modules[0], 0x30, &[b'c'; FRAME_NAME_BYTES + 1]);
    assert!(recording.is_named(modules[1], 0x20) && !recording.is_named(modules[0], 0x20));
    assert_eq!(recording.loss(Loss::Details), 1, "a name that is too long");
    let snapshot = read(&path).unwrap();
    let named: Vec<_> = (snapshot.locations.iter())
        .flat_map(|at| {
            at.symbols
                .iter()
                .map(|symbol| (at.module, at.address, symbol.function.as_str()))
        })
        .collect();
    assert_eq!(named, [(Some(1), 0x20, "cuLaunchKernel")]);
    for address in 0..2 * FRAME_NAMES_MAX as u64 {
        recording.name_frame(modules[0], address, b"cuInit");
    }
    assert_eq!(recording.loss(Loss::Details), 2 + FRAME_NAMES_MAX as u64);
    assert_eq!(read(&path).unwrap().locations.len(), 6);
}

/// Changed by another thread than the one that allocated it.
#[test]
fn a_changed_record_is_neither_freed_nor_allocated_again() {
    let folder = Folder::new("changed");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    for ordinal in 0..2 {
        recording.add_device(ordinal, None, b"");
    }
    let stack = recording.frame(ROOT, None, 0x10).unwrap();
    for (address, bytes) in [(1, 100), (2, 20), (3, 3)] {
        assert!(recording.allocated(key(address), &entry(recording, bytes, stack, 1)));
    }
    // One moves to another device, one gets other bytes.
    recording.change_all(
        2,
        |entry| entry.bytes == 100,
        |_, entry| {
            let mut moved = *entry;
            moved.attributes.device = 1;
            moved.time_ns = recording.now();
            moved
        },
    );
    recording.change_all(
        2,
        |entry| entry.bytes == 20,
        |_, entry| {
            let mut grown = *entry;
            (grown.bytes, grown.requested, grown.time_ns) = (25, 25, recording.now());
            grown
        },
    );
    // What was live at the end is known as it was then.
    recording.end_main();
    recording.change_all(
        2,
        |entry| entry.bytes == 3,
        |_, entry| Entry {
            bytes: 4,
            requested: 4,
            time_ns: recording.now(),
            ..*entry
        },
    );
    let snapshot = read_with_totals(&path).unwrap();
    let at_end: Vec<_> = (snapshot.freed_after_end.iter()).map(|row| row.bytes).collect();
    assert_eq!(at_end, [3]);
    let of_counters = snapshot.counters.iter().map(|of| {
        let counts = (of.total_count, of.freed_count, of.live_count);
        (of.device, counts, of.live_bytes)
    });
    let expected = [(Some(0), (2, 0, 2), 29), (Some(1), (1, 0, 1), 100)];
    assert_eq!(of_counters.collect::<Vec<_>>(), expected);
    let totals = snapshot.totals.iter().map(|of| (of.device, of.bytes, of.count));
    assert_eq!(totals.collect::<Vec<_>>(), [(Some(1), 100, 1), (Some(0), 29, 2)]);
    let peaks: Vec<_> = snapshot.device_peaks.iter().map(|of| of.peak_bytes).collect();
    assert_eq!(peaks, [123, 100]);
    assert_eq!((snapshot.losses.vanished, snapshot.losses.implicit_frees), (0, 0));
}

/// Events of PyTorch's allocator, recorded in the short way where that is possible, or in the usual one. `is_crowded`: the index of all other
/// memory has so many levels that it does not say what it lacks.
fn tensors(path: &std::path::Path, is_short: bool, is_crowded: bool) -> Snapshot {
    let recording = record(path);
    recording.enable_sampling(1 << 20);
    recording.add_device(0, None, b"");
    let thread = recording.add_thread(1, &[0; 16]);
    let stack = recording.frame(ROOT, None, 0x10).unwrap();
    let of = is_short.then(|| reported(recording));
    let lacks = |number: u64| {
        let (space, address) = (Space::Tensor, (1 << 40) + number);
        !recording.table(0).may_contain(Key { space, address })
    };
    let mut others = 0;
    while is_crowded && (0..8).any(lacks) {
        let entry = entry(recording, 1, stack, thread);
        let (space, address) = (entry.attributes.space, (1 << 30) + (others << 9));
        assert!(recording.allocated_at(Shard::first_own(), Key { space, address }, &entry));
        others += 1;
    }
    let (mut live, mut taken) = (0, 0);
    let mut change = |address: u64, change: i64, stack: u32| {
        live = u64::wrapping_add_signed(live, change);
        let event = TensorEvent {
            address,
            change,
            live,
            reserved: 1 << 20,
        };
        let key = Key {
            space: Space::Tensor,
            address,
        };
        let shard = Shard::first_own();
        let has_taken = match of {
            Some(of) if change > 0 && stack == UNSAMPLED => allocate(recording, of, thread, &event),
            Some(of) if change < 0 => free(recording, of, &event),
            _ => false,
        };
        taken += u32::from(has_taken);
        if has_taken {
            return;
        }
        if change > 0 {
            let entry = tensor(recording, change as u64, stack, thread);
            assert!(match of {
                Some(of) => recording.any_tensor_allocated(of, shard, key, &entry),
                None => recording.allocated_at(shard, key, &entry),
            });
        } else {
            let withdrawn = match of {
                Some(of) => recording.withdraw_any_tensor(of, key, shard),
                None => recording.withdraw(key, shard),
            };
            recording.commit(withdrawn.expect("it is live"), shard);
        }
        recording.allocator_reported(0, change, live, 1 << 20);
    };
    for number in 1..=100 {
        change(
            number << 9,
            512 * (1 + number as i64 % 5),
            if number % 10 == 0 { stack } else { UNSAMPLED },
        );
    }
    for number in (1..=100).step_by(3) {
        change(number << 9, -512 * (1 + number as i64 % 5), UNSAMPLED);
    }
    // Its free was not seen.
    change(2 << 9, 4096, UNSAMPLED);
    change(5 << 9, 4096, stack);
    recording.end_main();
    for number in (3..=90).step_by(3) {
        change(number << 9, -512 * (1 + number as i64 % 5), UNSAMPLED);
    }
    change(1 << 20, 512, UNSAMPLED);
    assert_eq!(taken > 100, is_short, "{taken} in the short way");
    read_with_totals(path).unwrap()
}

fn tensor(recording: &Recording, bytes: u64, stack: u32, thread: u32) -> Entry {
    let mut entry = entry(recording, bytes, stack, thread);
    entry.extra = 0;
    entry.attributes = Attributes {
        kind: Kind::Tensor,
        space: Space::Tensor,
        flags: 0,
        context: Attributes::NO_CONTEXT,
        ..entry.attributes
    };
    entry
}

/// Tensors of device 0 that code from 100 to 199 reports.
fn reported(recording: &Recording) -> &'static Reported {
    // SAFETY: documented: zeros are valid.
    let of: &Reported = Box::leak(Box::new(unsafe { std::mem::zeroed() }));
    assert!(of.may_begin() && !of.is_of(100));
    recording.begin_reported(of, 0, Api(5), Some((100, 200)));
    assert!(of.is_of(100) && of.is_of(199) && !of.is_of(99) && !of.is_of(200) && !of.may_begin());
    of
}

/// As the hook does.
fn allocate(recording: &Recording, of: &Reported, thread: u32, event: &TensorEvent) -> bool {
    let place = pack(UNSAMPLED, thread);
    let outcome = of.allocated(of.slots(), super::monotonic_ns(), place, event, || ());
    finish(recording, of, event, outcome)
}

fn free(recording: &Recording, of: &Reported, event: &TensorEvent) -> bool {
    !recording.has_ended() && finish(recording, of, event, of.freed(of.slots(), event))
}

fn finish(recording: &Recording, of: &Reported, event: &TensorEvent, outcome: Outcome) -> bool {
    if !matches!(outcome, Outcome::Rare | Outcome::Recorded) {
        recording.finish_tensor(of, 0, event, outcome);
    }
    outcome != Outcome::Rare
}

/// The caller of a report is known until something is rare, and not if that becomes known meanwhile.
#[test]
fn a_caller_is_known_until_it_is_to_be_forgotten() {
    let folder = Folder::new("known");
    let recording = record(&folder.0.join("a.culeak"));
    let of = reported(recording);
    assert!(!of.is_known(true, 100) && !of.knows_any(true));
    of.know(true, 100, 7, || true);
    assert!(of.is_known(true, 100) && !of.is_known(true, 101) && !of.knows_any(false));
    assert_eq!(of.next(), 7);
    of.forget();
    assert!(!of.knows_any(true));
    of.know(false, 100, 7, || false);
    assert!(!of.knows_any(false));
}

#[test]
fn the_short_way_of_tensors_leaves_what_the_usual_one_leaves() {
    let folder = Folder::new("reported");
    for is_crowded in [false, true] {
        let path = |is_short: bool| folder.0.join(format!("{is_short}-{is_crowded}.culeak"));
        let [short, usual] = [true, false].map(|is_short| tensors(&path(is_short), is_short, is_crowded));
        expect_equal(&short, &usual);
    }
}

fn expect_equal(short: &Snapshot, usual: &Snapshot) {
    let facts = |snapshot: &Snapshot| {
        let rows = |rows: &Allocations| {
            let rows = rows
                .iter()
                .map(|row| (row.address, row.bytes, row.requested, row.stack, row.call.clone()));
            let mut rows: Vec<_> = rows.collect();
            rows.sort_by_key(|row| (row.0, row.1));
            rows
        };
        let mut counters = snapshot.counters.clone();
        counters.iter_mut().for_each(|counter| counter.peak_ns = 0);
        let mut totals: Vec<_> = snapshot.totals.iter().map(|of| of.stack).collect();
        totals.sort();
        (
            rows(&snapshot.allocations),
            rows(&snapshot.freed_after_end),
            counters,
            snapshot.allocators.clone(),
            totals,
            snapshot.losses.clone(),
        )
    };
    let (short, usual) = (facts(short), facts(usual));
    assert_eq!(short, usual);
    assert!(!short.0.is_empty() && !short.1.is_empty() && short.5.vanished == 2);
}

/// A removed file takes the place of a full disk, as below.
#[test]
fn tensors_that_do_not_fit_are_lost_and_the_others_are_not() {
    let folder = Folder::new("tensors-full-disk");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    recording.enable_sampling(1 << 40);
    recording.add_device(0, None, b"");
    let of = reported(recording);
    let event = |number: u64, change: i64| TensorEvent {
        address: number << 9,
        change,
        live: 0,
        reserved: 0,
    };
    let is_stored = |&number: &u64| {
        let event = event(number, 512);
        let key = Key {
            space: Space::Tensor,
            address: event.address,
        };
        let entry = tensor(recording, 512, UNSAMPLED, 0);
        allocate(recording, of, 0, &event) || recording.any_tensor_allocated(of, Shard::first_own(), key, &entry)
    };
    assert!(is_stored(&0));
    std::fs::remove_file(&path).unwrap();
    const ALL: u64 = 1000;
    let stored: Vec<u64> = (1..=ALL).filter(is_stored).collect();
    assert!(stored.len() > 16 && stored.len() < ALL as usize, "{}", stored.len());
    assert_eq!(recording.loss(Loss::Allocations), ALL - stored.len() as u64);
    for round in 0..2 {
        assert!(stored.iter().all(|&number| free(recording, of, &event(number, -512))));
        assert!(stored.iter().all(is_stored), "round {round}");
    }
    assert!(!free(recording, of, &event(ALL, -512)));
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

/// A removed file takes the place of a full disk: it cannot be extended either.
#[test]
fn texts_that_do_not_fit_use_up_no_room() {
    let folder = Folder::new("texts-full-disk");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    std::fs::remove_file(&path).unwrap();
    let text = [b'x'; 8 << 10];
    let stored = (0..60_000).filter(|_| recording.text(&text) != Text::EMPTY).count();
    let lost = 60_000 - stored as u64;
    assert!(lost > 0, "the extents that exist have room for all texts");
    assert_eq!(recording.loss(Loss::Details), lost);
    let last = recording.elements(Section::Text).load(Relaxed) - 1;
    let exists = (recording.text).get(recording.backing(Section::Text), last as u32);
    assert!(exists.is_some(), "{} bytes are counted", last + 1);
}

#[test]
fn a_code_without_a_row_stores_no_text_and_is_not_described_again() {
    let folder = Folder::new("codes-full-disk");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    let described = Cell::new(0);
    let code = |number: u64| {
        let seen = CodeSeen {
            file: b"f",
            function: b"g",
            first_line: 1,
            line_table: None,
            minor: 12,
        };
        recording.code(mix(number), || {
            described.set(described.get() + 1);
            Some(seen)
        })
    };
    code(1).expect("a row");
    std::fs::remove_file(&path).unwrap();
    let first = (2..).find(|&number| code(number).is_none()).unwrap();
    let texts = || recording.elements(Section::Text).load(Relaxed);
    let stored = texts();
    described.set(0);
    assert!((0..1000).all(|_| code(first).is_none()));
    assert_eq!(texts(), stored);
    // Once a second.
    assert!(described.get() < 500, "described {} times", described.get());
}
