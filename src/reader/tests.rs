//! Recordings made by the real writer and read back; damaged and hostile files.

mod odd_files;
mod unknown_stacks;

use super::process::host_name;
use super::*;
use crate::format::*;
use crate::kind::Kind;
use crate::lockfree::table::{Attributes, Entry, Key, Space};
use crate::proc::start_ticks;
use crate::recording::{CodeSeen, ModuleSeen, Recording, Session};
use crate::snapshot::*;
use proptest::prelude::*;
use std::ffi::CString;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("culeak-reader-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn record(path: &Path) -> &'static Recording {
    record_of(path, start_ticks(std::process::id()).unwrap())
}

/// As if by an earlier process with the same pid.
fn record_of_another(path: &Path) -> &'static Recording {
    record_of(path, start_ticks(std::process::id()).unwrap() - 1)
}

fn record_of(path: &Path, process_start_ticks: u64) -> &'static Recording {
    let session = Session {
        pid: std::process::id(),
        parent_pid: 1,
        depth: 128,
        pid_namespace: 0,
        time_namespace: 0,
        process_start_ticks,
        executable: b"/usr/bin/trainer",
        command_line: b"trainer\0--epochs\x003\0",
        host: host_name().unwrap().leak().as_bytes(),
        ranks: [Some(b"3"), None, None, None, None],
    };
    Recording::create(&CString::new(path.as_os_str().as_bytes()).unwrap(), &session).unwrap()
}

pub fn key(address: u64) -> Key {
    Key {
        space: Space::Pointer,
        address,
    }
}

pub fn entry(recording: &Recording, bytes: u64, stack: u32, thread: u32) -> Entry {
    Entry {
        bytes,
        requested: bytes,
        time_ns: recording.now(),
        extra: 0x77,
        pool: 0,
        stack,
        thread,
        attributes: Attributes {
            kind: Kind::Async,
            space: Space::Pointer,
            flags: Attributes::HAS_STREAM,
            device: 0,
            api: 5,
            context: 0,
            raised: 0,
        },
    }
}

fn filled(path: &Path) -> &'static Recording {
    let recording = record(path);
    recording.add_device(0, Some((false, [0xab; 16])), b"Fake H200");
    recording.add_context(0xc0, 0, false);
    let thread = recording.add_thread(4711, b"worker\0\0\0\0\0\0\0\0\0\0");
    let seen = ModuleSeen {
        path: b"/lib/a.so",
        build_id: &[1, 2, 3],
        bias: 0x1000,
        start: 0x1000,
        end: 0x9000,
    };
    let module = recording.add_module(&seen);
    let outer = recording.frame(ROOT, module, 0x10).unwrap();
    let inner = recording.frame(outer, module, 0x20).unwrap();
    for address in 1..=2000 {
        assert!(recording.allocated(key(address), &entry(recording, address, inner, thread)));
    }
    for address in 1..=1500 {
        let withdrawn = recording.withdraw(key(address), 0).unwrap();
        recording.commit(withdrawn, 0);
    }
    recording.failed(&entry(recording, 1 << 40, inner, thread), 2);
    recording.failed(&entry(recording, 1 << 40, inner, thread), 2);
    recording
}

#[test]
fn a_python_function_is_described_once_and_its_frames_have_lines() {
    let folder = Folder::new("python");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    recording.add_device(0, None, b"Fake H200");
    let thread = recording.add_thread(1, b"main\0\0\0\0\0\0\0\0\0\0\0\0");
    // Instructions 0 and 1 in the first line, 2 in the one after.
    let table = [0x80 | 13 << 3 | 1, 0, 0x80 | 13 << 3, 2];
    let seen = |line_table| CodeSeen {
        file: "/home/été/train.py".as_bytes(),
        function: b"Trainer.step",
        first_line: 40,
        line_table,
        minor: 12,
    };
    let code = recording.code(7, || Some(seen(Some(&table)))).unwrap();
    assert_eq!(recording.code(7, || unreachable!("it is known")), Some(code));
    let without_table = recording.code(8, || Some(seen(None))).unwrap();
    assert_eq!(recording.code(9, || None), None);
    let outer = recording.python_frame(ROOT, code, 2).unwrap();
    let inner = recording.python_frame(outer, code, 4).unwrap();
    let lineless = recording.python_frame(inner, without_table, 4).unwrap();
    let unknown = recording.python_frame(lineless, 1000, 4).unwrap();
    assert_eq!(recording.python_frame(outer, code, 4), Some(inner));
    recording.interpreter(0, Some("unknown build"));
    recording.interpreter(0x030c_01f0, None);
    recording.allocated(key(1), &entry(recording, 1, unknown, thread));

    let snapshot = read(&path).unwrap();
    let frames: Vec<_> = snapshot.stacks[0]
        .frames
        .iter()
        .map(|&frame| {
            let location = &snapshot.locations[frame];
            assert_eq!((location.language, location.module), (Language::Python, None));
            let [symbol] = &location.symbols[..] else {
                panic!("{location:?}")
            };
            (symbol.function.as_str(), symbol.file.as_deref(), symbol.line)
        })
        .collect();
    let step = |line| ("Trainer.step", Some("/home/été/train.py"), line);
    assert_eq!(frames, [("?", None, None), step(None), step(Some(41)), step(Some(40))]);
    let python = snapshot.process.python.unwrap();
    assert_eq!((python.version.as_str(), python.no_frames), ("3.12.1", None));
}

#[test]
fn what_was_written_is_read_back() {
    let folder = Folder::new("back");
    let path = folder.0.join("a.culeak");
    filled(&path);
    let snapshot = read(&path).unwrap();
    assert_eq!(snapshot.process.command_line, ["trainer", "--epochs", "3"]);
    assert_eq!(snapshot.process.ranks.get("RANK").map(String::as_str), Some("3"));
    assert_eq!(snapshot.process.ranks.len(), 1);
    assert_eq!(snapshot.process.state, ProcessState::Running);
    assert_eq!(snapshot.devices[0].uuid, "GPU-abababab-abab-abab-abab-abababababab");
    assert_eq!(snapshot.allocations.len(), 500);
    let bytes: u64 = snapshot.allocations.iter().map(|a| a.bytes).sum();
    assert_eq!(bytes, (1501..=2000).sum::<u64>());
    let first = snapshot.allocations.at(0);
    assert_eq!(
        (first.stream, first.thread, first.context),
        (Some(Stream::Handle(0x77)), 0, Some(0))
    );
    let stack = &snapshot.stacks[first.stack.unwrap()];
    let addresses: Vec<u64> = stack
        .frames
        .iter()
        .map(|&frame| snapshot.locations[frame].address)
        .collect();
    assert_eq!((addresses, stack.truncated), (vec![0x20, 0x10], false));
    assert_eq!(snapshot.modules[0].build_id, "010203");
    assert_eq!(
        (
            snapshot.failed[0].count,
            snapshot.failed[0].error,
            snapshot.failed.len()
        ),
        (2, 2, 1)
    );
    let counter = snapshot.counters.iter().find(|c| c.kind == Kind::Async).unwrap();
    assert_eq!((counter.live_bytes, counter.live_count), (bytes, 500));
    assert_eq!(
        (counter.total_count, counter.freed_count, counter.failed_count),
        (2000, 1500, 2)
    );
    assert_eq!(counter.peak_bytes, (1..=2000).sum::<u64>());
    assert_eq!(snapshot.device_peaks[0].peak_bytes, counter.peak_bytes);
}

#[test]
fn a_module_that_overlaps_another_marks_it_as_unloaded() {
    let folder = Folder::new("modules");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    let first = ModuleSeen {
        path: b"/p/one.so",
        build_id: &[1],
        bias: 0x1000,
        start: 0x1000,
        end: 0x9000,
    };
    let second = ModuleSeen {
        path: b"/p/two.so",
        build_id: &[2],
        bias: 0x2000,
        start: 0x2000,
        end: 0x8000,
    };
    recording.add_module(&first).unwrap();
    recording.add_module(&second).unwrap();
    assert_eq!(recording.module(&first), None);
    let modules = read(&path).unwrap().modules;
    assert!(modules[0].unloaded_ns.is_some() && modules[1].unloaded_ns.is_none());
}

#[test]
fn framework_blocks_have_a_domain_and_lie_within_other_memory() {
    let folder = Folder::new("blocks");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    recording.add_device(0, None, b"");
    let thread = recording.add_thread(4711, b"worker\0\0\0\0\0\0\0\0\0\0");
    let (cache, other) = (
        recording.domain(b"my cache").unwrap(),
        recording.domain(b"other").unwrap(),
    );
    assert_eq!(recording.domain(b"my cache"), Some(cache));
    let hold = |kind: Kind, space: Space, address: u64, extra: u64| {
        let mut entry = entry(recording, 512, NONE, thread);
        (
            entry.attributes.kind,
            entry.attributes.space,
            entry.attributes.flags,
            entry.extra,
        ) = (kind, space, 0, extra);
        assert!(recording.allocated(Key { space, address }, &entry));
    };
    let at = 0x7f00_0000_0000;
    hold(Kind::Device, Space::Pointer, at, 0);
    hold(Kind::Tensor, Space::Tensor, at, 0);
    hold(Kind::Buffer, Space::Buffer, 0x5555, at);
    for domain in [cache, other] {
        hold(Kind::Block, Space::Block, block_address(domain, at).unwrap(), 0);
    }
    assert_eq!(block_address(cache, u64::MAX), None);
    recording.allocator_reported(0, 512, 512, 4096);
    recording.allocator_reported(0, 512, 1024, 4096);
    recording.allocator_reported(0, -512, 1000, 4096);
    recording.mark(b"epoch 3", thread);

    let snapshot = read(&path).unwrap();
    let domains: Vec<_> = snapshot.allocations.iter().map(|a| (a.address, a.domain())).collect();
    let expected = [None, Some("pytorch"), Some("xla"), Some("my cache"), Some("other")];
    assert_eq!(domains, expected.map(|domain| (at, domain)));
    assert_eq!(
        snapshot.device_peaks[0].peak_bytes, 512,
        "blocks are part of the memory they lie in"
    );
    let tensors = snapshot
        .counters
        .iter()
        .find(|counter| counter.kind == Kind::Tensor)
        .unwrap();
    assert_eq!(
        (tensors.live_bytes, tensors.peak_bytes, tensors.total_count),
        (512, 512, 1)
    );
    assert_eq!(snapshot.domains, ["my cache", "other"]);
    let allocator = &snapshot.allocators[0];
    assert_eq!(
        (allocator.live_bytes, allocator.reserved_bytes, allocator.events),
        (1000, 4096, 3)
    );
    assert_eq!((allocator.mismatches, allocator.unseen_bytes), (1, 0));
    assert_eq!(
        (snapshot.marks[0].name.as_str(), snapshot.marks[0].thread),
        ("epoch 3", 0)
    );
}

/// Two allocations that swap their records until stopped: both are freed, and each gets the record that the other had.
/// Their records lie at the two ends of the file.
pub fn change_places(recording: &Recording, shard: u32, until: &std::sync::atomic::AtomicBool) {
    let all = move_places(shard);
    while !until.load(std::sync::atomic::Ordering::Relaxed) {
        for address in all {
            let gone = recording.withdraw(key(address), shard).unwrap();
            recording.commit(gone, shard);
        }
        for address in all {
            recording.allocated(key(address), &entry(recording, address, NONE, shard));
        }
    }
}

/// Stops the other threads even if an assertion fails: the scope would otherwise wait for them.
pub struct Stops<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

pub fn move_places(shard: u32) -> [u64; 2] {
    [1, 2].map(|place| 0x100_0000 * u64::from(shard + 1) + place)
}

#[test]
fn an_automatic_snapshot_is_the_recording_at_that_time() {
    let folder = Folder::new("dump");
    let path = folder.0.join("a.culeak");
    let recording = filled(&path);
    let dump = folder.0.join("a.peak-1.culeak-snapshot");
    let as_c = CString::new(dump.as_os_str().as_bytes()).unwrap();
    recording.mark(b"epoch 3", 0);
    let failed_row = recording.failed(&entry(recording, 1 << 50, NONE, 0), 2).unwrap();
    recording
        .dump(&as_c, Reason::OutOfMemory, b"why not", failed_row)
        .unwrap();
    let before = read(&path).unwrap();
    recording.allocated(key(1), &entry(recording, 5, NONE, 0));
    let copied = read(&dump).unwrap();
    assert_eq!(copied.allocations, before.allocations);
    assert_eq!(
        (&copied.stacks, &copied.failed, &copied.counters),
        (&before.stacks, &before.failed, &before.counters)
    );
    assert_eq!(copied.process.state, ProcessState::Running);
    assert_eq!(copied.taken.events_during_read, 0);
    let why = copied.taken.automatic.clone().unwrap();
    assert_eq!(
        (why.reason, why.name.as_deref()),
        (Reason::OutOfMemory, Some("why not"))
    );
    assert_eq!(copied.failed[why.failed.unwrap()].bytes, 1 << 50);
    assert!(copied.taken.at_ns <= before.taken.at_ns);
    assert_eq!(before.taken.automatic, None);
    let blocks = |path: &Path| std::fs::metadata(path).unwrap().blocks();
    assert!(
        blocks(&dump) < blocks(&path),
        "pages of zeros take no space: {} of {}",
        blocks(&dump),
        blocks(&path)
    );
    assert_eq!(
        recording.dump(&as_c, Reason::Peak, b"", NONE),
        Err(crate::system::Errno(libc::EEXIST))
    );
}

#[test]
fn a_killed_process_lived_at_least_until_its_last_mark() {
    let folder = Folder::new("last-mark");
    let path = folder.0.join("a.culeak");
    let recording = record_of_another(&path);
    recording.allocated(key(1), &entry(recording, 5, NONE, 0));
    recording.mark(b"epoch 3", 0);
    let mut snapshot = read(&path).unwrap();
    assert_ne!(snapshot.process.state, ProcessState::Running);
    let mark = snapshot.marks.remove(0);
    assert!(
        snapshot.taken.at_ns >= mark.time_ns,
        "{} < {}",
        snapshot.taken.at_ns,
        mark.time_ns
    );
}

#[test]
fn an_automatic_snapshot_made_while_records_are_swapped_has_no_duplicates() {
    const STILL: u64 = 20_000;
    let folder = Folder::new("places");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    let allocate = |address: u64, shard: u32| {
        assert!(recording.allocated(key(address), &entry(recording, address, NONE, shard)));
    };
    let shards = 0..2;
    shards.clone().for_each(|shard| allocate(move_places(shard)[0], shard));
    (1..=STILL).for_each(|address| allocate(address, (address % 2) as u32));
    shards.clone().for_each(|shard| allocate(move_places(shard)[1], shard));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for shard in shards {
            let stop = &stop;
            scope.spawn(move || change_places(recording, shard, stop));
        }
        let _stops = Stops(&stop);
        // On a busy machine the other threads may not run during one copy.
        let mut moved = 0;
        for number in 0.. {
            let dump = folder.0.join(format!("{number}.culeak-snapshot"));
            let as_c = CString::new(dump.as_os_str().as_bytes()).unwrap();
            recording.dump(&as_c, Reason::Requested, b"", NONE).unwrap();
            let copied = read(&dump).unwrap();
            let mut seen = std::collections::HashSet::new();
            for a in &copied.allocations {
                assert!(seen.insert(a.address), "{:#x} is there twice", a.address);
                assert_eq!(
                    (a.bytes, a.requested),
                    (a.address, a.address),
                    "fields of different records"
                );
                assert!(a.time_ns <= copied.taken.at_ns);
            }
            assert_eq!(
                copied.allocations.iter().filter(|a| a.address <= STILL).count() as u64,
                STILL
            );
            moved += u32::from(copied.taken.events_during_read > 0);
            std::fs::remove_file(&dump).unwrap();
            if moved == 4 {
                break;
            }
            assert!(number < 500, "no event during a copy: the test is void");
        }
    });
}

#[test]
fn rows_behind_a_missing_extent_are_read() {
    let folder = Folder::new("gap");
    let path = folder.0.join("a.culeak");
    filled(&path);
    let whole = read(&path).unwrap().allocations.len();
    let mut bytes = std::fs::read(&path).unwrap();
    let row = (0..DIRECTORY_CAPACITY)
        .map(|row| DIRECTORY_OFFSET + row * size_of::<Extent>())
        .find(|&at| bytes[at..at + 8] == [Section::Records as u8, 0, 0, 0, 0, 0, 0, 0])
        .expect("the first extent of the records");
    bytes[row] = 0;
    let copy = folder.0.join("b.culeak");
    std::fs::write(&copy, bytes).unwrap();
    let left = read(&copy).unwrap().allocations.len();
    // The first extent has room for 256 rows, and all of those were freed.
    assert_eq!(left, whole);
}

#[test]
fn totals_of_a_stack_include_freed_memory_and_add_up_over_threads() {
    let folder = Folder::new("totals");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    recording.add_device(0, None, b"Fake H200");
    let here = recording.frame(ROOT, None, 0x10).unwrap();
    let there = recording.frame(here, None, 0x20).unwrap();
    std::thread::scope(|scope| {
        for shard in 0..8u32 {
            scope.spawn(move || {
                for round in 0..100 {
                    for (stack, bytes) in [(here, 1000), (there, 24)] {
                        let place = key(u64::from(shard) << 32 | round << 12 | bytes);
                        assert!(recording.allocated(place, &entry(recording, bytes, stack, shard)));
                        let withdrawn = recording.withdraw(place, shard).unwrap();
                        recording.commit(withdrawn, shard);
                    }
                }
            });
        }
    });
    assert!(recording.allocated(key(1), &entry(recording, 7, NONE, 3)));
    let snapshot = read_with_totals(&path).unwrap();
    let totals: Vec<_> = snapshot.totals.iter().map(|total| (total.bytes, total.count)).collect();
    assert_eq!(totals, [(800_000, 800), (19_200, 800), (7, 1)]);
    assert_eq!(snapshot.totals[2].stack, None);
    let frames = |total: &Total| snapshot.stacks[total.stack.unwrap()].frames.len();
    assert_eq!((frames(&snapshot.totals[0]), frames(&snapshot.totals[1])), (1, 2));
    assert_eq!(snapshot.totals[0].device, Some(0));
    let without = read(&path).unwrap();
    assert!(without.totals.is_empty());
}

#[test]
fn more_stacks_than_a_shard_has_slots_are_counted_exactly() {
    let folder = Folder::new("many-totals");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    for address in 1..=3 {
        for stack in 1..=2000 {
            let stack = recording.frame(ROOT, None, stack << 8).unwrap();
            let place = key(u64::from(stack) << 8 | address);
            assert!(recording.allocated(place, &entry(recording, address, stack, 0)));
        }
    }
    let snapshot = read_with_totals(&path).unwrap();
    assert_eq!(snapshot.totals.len(), 2000);
    assert!(snapshot.totals.iter().all(|total| (total.bytes, total.count) == (6, 3)));
}

#[test]
fn the_number_of_domains_is_limited_and_excess_ones_are_counted() {
    let folder = Folder::new("domains");
    let recording = record(&folder.0.join("a.culeak"));
    let numbers: Vec<_> = (0..200)
        .map(|number| recording.domain(format!("d{number}").as_bytes()))
        .collect();
    assert_eq!(numbers.iter().flatten().count(), usize::from(DOMAINS));
    assert_eq!(recording.loss(Loss::Details), 200 - u64::from(DOMAINS));
    assert_eq!(recording.domain(b"d5"), numbers[5]);
}
