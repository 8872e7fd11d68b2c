//! Replays of events that the real recorder wrote, compared with the snapshots and the peaks of the same recording.

use std::collections::BTreeMap;
use std::sync::Barrier;

use proptest::prelude::*;

use super::*;
use crate::format::{ROOT, block_address};
use crate::lockfree::table::{Attributes, Entry, Key, Space, Withdrawn};
use crate::reader::tests::{Folder, entry, record};
use crate::reader::{read, read_timeline};
use crate::recording::Recording;
use crate::snapshot::{AtPeak, Snapshot};

const SIZE: u64 = 1 << 20;

/// What the program does.
#[derive(Debug, Clone)]
enum Act {
    /// Also at an address that is in use: its free was not observed.
    Allocate {
        slot: u8,
        bytes: u64,
        stack: usize,
    },
    /// Another thread may act before the call of the driver returns.
    BeginFree {
        slot: u8,
    },
    EndFree,
    /// A free that CUDA refuses.
    FailFree {
        slot: u8,
    },
    Snapshot,
    EndScript,
    EndMain,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let bytes = prop_oneof![4 => 1u64..100, 1 => Just(0), 1 => 1u64 << 33..1 << 34];
    let allocate = (0..SLOTS, bytes, 0usize..4).prop_map(|(slot, bytes, stack)| Act::Allocate { slot, bytes, stack });
    let act = prop_oneof![
        8 => allocate,
        5 => (0..SLOTS).prop_map(|slot| Act::BeginFree { slot }),
        4 => Just(Act::EndFree),
        1 => (0..SLOTS).prop_map(|slot| Act::FailFree { slot }),
        1 => Just(Act::Snapshot),
        1 => (0..20).prop_map(|n| match n {
            0 => Act::EndScript,
            1 => Act::EndMain,
            _ => Act::Snapshot,
        }),
    ];
    proptest::collection::vec(act, 1..80)
}

const SLOTS: u8 = 32;

/// A recording with an event log, and how the test writes to it.
struct Program {
    recording: &'static Recording,
    stacks: Vec<u32>,
    threads: [u32; 2],
    domain: u8,
}

impl Program {
    fn new(folder: &Folder, log_bytes: u64) -> Program {
        let recording = record(&folder.0.join("a.culeak"));
        recording.enable_timeline(log_bytes);
        recording.add_device(0, None, b"one");
        recording.add_device(1, None, b"two");
        Program {
            recording,
            stacks: (1..=4)
                .map(|at| recording.frame(ROOT, None, at * 0x10).unwrap())
                .collect(),
            threads: [7, 8].map(|tid| recording.add_thread(tid, b"worker\0\0\0\0\0\0\0\0\0\0")),
            domain: recording.domain(b"arena").unwrap(),
        }
    }

    fn path(&self) -> std::path::PathBuf {
        use std::os::unix::ffi::OsStrExt;
        std::ffi::OsStr::from_bytes(self.recording.path().to_bytes()).into()
    }

    /// Eight kinds, on two devices.
    fn key(&self, slot: u8) -> (Kind, Key) {
        let address = 0x7f00_0000_0000 + u64::from(slot) * 0x1000;
        let (kind, space, address) = match slot % 8 {
            0 => (Kind::Device, Space::Pointer, address),
            1 => (Kind::Async, Space::Pointer, address),
            2 => (Kind::HostPinned, Space::Pointer, address),
            3 => (Kind::Tensor, Space::Tensor, address),
            4 => (Kind::Buffer, Space::Buffer, 0x55_0000 + u64::from(slot)),
            5 => (Kind::Segment, Space::Segment, 0xc1d0_0001 << 32 | address & 0xffff_ffff),
            6 => (Kind::Stream, Space::Stream, address),
            _ => (Kind::Block, Space::Block, block_address(self.domain, address).unwrap()),
        };
        (kind, Key { space, address })
    }

    fn entry(&self, slot: u8, bytes: u64, stack: usize) -> (Key, Entry) {
        let (kind, key) = self.key(slot);
        let thread = self.threads[usize::from(slot) % 2];
        let bytes = if kind == Kind::Stream { 0 } else { bytes };
        let mut entry = entry(self.recording, bytes, self.stacks[stack], thread);
        entry.attributes = Attributes {
            kind,
            space: key.space,
            flags: 0,
            device: slot / 16,
            ..entry.attributes
        };
        entry.extra = match kind {
            Kind::Buffer => 0x7f10_0000_0000 + u64::from(slot) * 0x1000,
            _ => 0,
        };
        (key, entry)
    }

    /// Some shards are owned by one thread, others are shared.
    fn allocate(&self, slot: u8, bytes: u64, stack: usize) {
        let (key, entry) = self.entry(slot, bytes, stack);
        assert!(self.recording.allocated_at(u32::from(slot % 3).into(), key, &entry));
    }

    /// A time after all events so far, and before all later ones.
    fn pause(&self) -> u64 {
        let now = self.recording.now();
        while self.recording.now() <= now | UNIT {}
        now
    }
}

/// The rows of a snapshot and its sums, without the numbers of stacks and without what is not in an event.
#[derive(Debug, PartialEq)]
struct Comparable {
    rows: Vec<Row>,
    freed_after_end: Vec<Row>,
    counters: Vec<String>,
    peaks: Vec<(usize, u64, u64)>,
    at_peaks: Vec<Peaking>,
    beside: Beside,
}

/// Objects and segments. Of those that ended later, times are not exact and threads not known.
#[derive(Debug, PartialEq)]
struct Beside {
    rows: Vec<(u64, u64, String, Kind, Option<usize>)>,
    counters: Vec<String>,
    at_peaks: Vec<Peaking>,
    totals: Vec<(String, Option<usize>, u64, u64)>,
}

impl Beside {
    fn of(snapshot: &Snapshot) -> Beside {
        let rows = snapshot.objects.iter().chain(&snapshot.segments);
        let mut rows: Vec<_> = rows
            .map(|row| {
                let stack = frames(snapshot, row.stack);
                (row.address & ADDRESS, row.bytes, stack, row.kind, row.device)
            })
            .collect();
        rows.sort();
        let counters = snapshot.object_counters.iter().map(|counter| {
            let mut counter = counter.clone();
            // Of nothing, no time is the peak's.
            counter.peak_ns = if counter.peak_bytes == 0 {
                0
            } else {
                counter.peak_ns & !UNIT
            };
            format!("{counter:?}")
        });
        let mut counters: Vec<String> = counters.collect();
        counters.sort();
        let totals = snapshot.segment_totals.iter();
        let mut totals: Vec<_> = totals
            .map(|total| (frames(snapshot, total.stack), total.device, total.bytes, total.count))
            .collect();
        totals.sort();
        // Memory of no bytes is in no peak.
        let mut at_peaks = at_peaks(snapshot, &snapshot.segments_at_peaks);
        at_peaks.iter_mut().for_each(|sum| sum.5 = 0);
        at_peaks.retain(|sum| sum.4 > 0);
        Beside {
            rows,
            counters,
            at_peaks,
            totals,
        }
    }
}

type Row = (u64, u64, u64, String, Kind, Option<usize>, Option<String>, usize);

fn comparable(snapshot: &Snapshot) -> Comparable {
    let rows = |rows: &crate::snapshot::Allocations| {
        let mut rows: Vec<Row> = rows
            .iter()
            .map(|row| {
                let domain = row.call.domain.clone();
                let time = row.time_ns & !UNIT;
                let stack = frames(snapshot, row.stack);
                (
                    time,
                    row.address,
                    row.bytes,
                    stack,
                    row.kind,
                    row.device,
                    domain,
                    row.thread,
                )
            })
            .collect();
        rows.sort();
        rows
    };
    let counters = snapshot.counters.iter().map(|counter| {
        let mut counter = counter.clone();
        counter.peak_ns &= !UNIT;
        format!("{counter:?}")
    });
    let peaks = snapshot.device_peaks.iter();
    Comparable {
        rows: rows(&snapshot.allocations),
        freed_after_end: rows(&snapshot.freed_after_end),
        counters: counters.collect(),
        peaks: peaks
            .map(|peak| (peak.device, peak.peak_bytes, peak.time_ns & !UNIT))
            .collect(),
        at_peaks: at_peaks(snapshot, &snapshot.at_peaks),
        beside: Beside::of(snapshot),
    }
}

/// Frames of the stack, kind, device, domain, bytes and count.
type Peaking = (String, Kind, Option<usize>, Option<String>, u64, u64);

fn at_peaks(snapshot: &Snapshot, rows: &[AtPeak]) -> Vec<Peaking> {
    let mut rows: Vec<_> = rows
        .iter()
        .map(|at| {
            let stack = frames(snapshot, at.stack);
            (stack, at.kind, at.device, at.domain.clone(), at.bytes, at.count)
        })
        .collect();
    rows.sort();
    rows
}

fn frames(snapshot: &Snapshot, stack: Option<usize>) -> String {
    let frames = stack.iter().flat_map(|&stack| &snapshot.stacks[stack].frames);
    let addresses: Vec<u64> = frames.map(|&frame| snapshot.locations[frame].address).collect();
    format!("{addresses:x?}")
}

/// Runs the program, and returns the snapshots that were taken meanwhile, with their times.
fn run(program: &Program, acts: &[Act]) -> Vec<(u64, Snapshot)> {
    let mut taken = Vec::new();
    let mut freeing: Option<(u8, Withdrawn)> = None;
    for act in acts {
        match *act {
            // The driver may give the address to another thread only if the free succeeds.
            Act::Allocate { slot, .. } if freeing.as_ref().is_some_and(|(freed, _)| *freed == slot) => {}
            Act::Allocate { slot, bytes, stack } => program.allocate(slot, bytes, stack),
            Act::BeginFree { slot } if freeing.is_none() => {
                let withdrawn = program.recording.withdraw(program.key(slot).1, u32::from(slot % 2));
                freeing = withdrawn.map(|withdrawn| (slot, withdrawn));
            }
            Act::BeginFree { .. } => {}
            Act::EndFree => {
                if let Some((slot, withdrawn)) = freeing.take() {
                    program.recording.commit(withdrawn, u32::from(slot % 2));
                }
            }
            Act::FailFree { slot } => {
                if let Some(withdrawn) = program.recording.withdraw(program.key(slot).1, u32::from(slot % 2)) {
                    program.recording.restore(withdrawn, u32::from(slot % 2));
                }
            }
            Act::Snapshot => {
                let now = program.pause();
                taken.push((now, read(&program.path()).unwrap()));
            }
            Act::EndScript => {
                program.pause();
                program.recording.end_script();
                program.pause();
            }
            Act::EndMain => {
                program.pause();
                program.recording.end_main();
                program.pause();
            }
        }
    }
    if let Some((slot, withdrawn)) = freeing {
        program.recording.commit(withdrawn, u32::from(slot % 2));
    }
    taken
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn the_state_rebuilt_from_the_log_equals_every_snapshot_taken_meanwhile(acts in acts()) {
        let folder = Folder::new("replay");
        let program = Program::new(&folder, SIZE);
        let taken = run(&program, &acts);
        let (end, timeline) = read_timeline(&program.path()).unwrap();
        let timeline = timeline.unwrap();
        prop_assert_eq!((timeline.since_ns, timeline.lost), (0, 0));
        let last = timeline.state_at(&end, timeline.until_ns).unwrap();
        prop_assert_eq!(comparable(&last), comparable(&end));
        prop_assert_eq!(last.validate(), Ok(()));
        for (time_ns, snapshot) in taken {
            let rebuilt = timeline.state_at(&end, time_ns).unwrap();
            prop_assert_eq!(rebuilt.validate(), Ok(()));
            let (mut found, expected) = (comparable(&rebuilt), comparable(&snapshot));
            if rebuilt.end != snapshot.end || snapshot.taken.in_flight > 0 {
                // Of two ends, the first counts; a record that was being freed is in no table.
                prop_assert!(rebuilt.end.is_none() || end.end == rebuilt.end);
                found.freed_after_end = comparable(&snapshot).freed_after_end;
            }
            if snapshot.taken.in_flight > 0 {
                // Objects and segments exist until they are freed for good.
                found.beside = comparable(&snapshot).beside;
            }
            prop_assert_eq!(found, expected, "at {} ns", time_ns);
        }
    }

    #[test]
    fn the_peak_of_a_replay_is_the_recorded_peak(acts in acts()) {
        let folder = Folder::new("replay-peak");
        let program = Program::new(&folder, SIZE);
        run(&program, &acts);
        let (end, timeline) = read_timeline(&program.path()).unwrap();
        let timeline = timeline.unwrap();
        let window = timeline.window(&end, 0, timeline.until_ns).unwrap();
        let mut sets = Vec::new();
        for sum in &window.sums {
            sets.extend(sum.at_peak.iter().cloned());
            let (peak_bytes, peak_ns) = match sum.kind {
                Some(kind) => {
                    let same = |counter: &&crate::snapshot::Counter| (counter.device, counter.kind) == (sum.device, kind);
                    let counter = end.counters.iter().find(same).unwrap();
                    prop_assert_eq!((sum.end.bytes, sum.end.count), (counter.live_bytes, counter.live_count));
                    prop_assert_eq!(sum.allocated.count, counter.total_count);
                    prop_assert_eq!(sum.freed.count, counter.freed_count);
                    (counter.peak_bytes, counter.peak_ns)
                }
                None => {
                    let peak = end.device_peaks.iter().find(|peak| Some(peak.device) == sum.device);
                    peak.map_or((0, 0), |peak| (peak.peak_bytes, peak.time_ns))
                }
            };
            prop_assert_eq!((sum.peak_bytes, if sum.peak_bytes > 0 { sum.peak_ns } else { 0 }), (peak_bytes, peak_ns & !UNIT));
        }
        prop_assert_eq!(at_peaks(&end, &sets), at_peaks(&end, &end.at_peaks));
    }

    /// The window that ends where another begins joins it: what one leaves, the other begins with.
    #[test]
    fn windows_add_up(acts in acts()) {
        let folder = Folder::new("replay-window");
        let program = Program::new(&folder, SIZE);
        let times: Vec<u64> = run(&program, &acts).into_iter().map(|(time_ns, _)| time_ns).collect();
        let (end, timeline) = read_timeline(&program.path()).unwrap();
        let timeline = timeline.unwrap();
        let whole = timeline.window(&end, 0, timeline.until_ns).unwrap();
        for &middle in &times {
            let (first, second) =
                (timeline.window(&end, 0, middle).unwrap(), timeline.window(&end, middle, timeline.until_ns).unwrap());
            for sum in &whole.sums {
                let same = |window: &window::Window| {
                    let mut sums = window.sums.iter().filter(|other| (other.device, other.kind) == (sum.device, sum.kind));
                    sums.next().cloned()
                };
                let (before, after) = (same(&first), same(&second));
                let peak = |part: &Option<window::WindowSum>| part.as_ref().map_or(0, |part| part.peak_bytes);
                prop_assert_eq!(sum.peak_bytes, peak(&before).max(peak(&after)));
                let allocated = |part: &Option<window::WindowSum>| part.as_ref().map_or(0, |part| part.allocated.bytes);
                prop_assert_eq!(sum.allocated.bytes, allocated(&before) + allocated(&after));
                if let (Some(before), Some(after)) = (before, after) {
                    prop_assert_eq!(before.end, after.begin);
                }
            }
            let left = timeline.left_by(&end, middle, timeline.until_ns).unwrap();
            let expected = end.allocations.iter().filter(|row| row.time_ns > middle | UNIT).count();
            prop_assert_eq!(left.allocations.len(), expected);
        }
    }
}

#[test]
fn threads_that_pause_together_leave_a_log_of_every_state_between() {
    const THREADS: u8 = 6;
    const ROUNDS: usize = 12;
    let folder = Folder::new("replay-threads");
    let program = Program::new(&folder, 64 << 20);
    let barrier = Barrier::new(usize::from(THREADS) + 1);
    let mut taken = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (program, barrier) = (&program, &barrier);
            scope.spawn(move || {
                let mut seed = u64::from(thread) + 1;
                for _ in 0..ROUNDS {
                    barrier.wait();
                    for _ in 0..500 {
                        seed = crate::lockfree::index::mix(seed);
                        // Slots of this thread; any thread frees them, and some frees fail.
                        let slot = thread + THREADS * (seed as u8 % (SLOTS / THREADS));
                        let shard = u32::from(thread);
                        match program.recording.withdraw(program.key(slot).1, shard) {
                            None => program.allocate(slot, seed >> 50, seed as usize >> 8 & 3),
                            Some(withdrawn) if seed >> 20 & 7 == 0 => program.recording.restore(withdrawn, shard),
                            Some(withdrawn) => program.recording.commit(withdrawn, shard),
                        }
                    }
                    barrier.wait();
                }
            });
        }
        for _ in 0..ROUNDS {
            barrier.wait();
            barrier.wait();
            // The threads wait for this one.
            let now = program.pause();
            taken.push((now, read(&program.path()).unwrap()));
        }
    });
    let (end, timeline) = read_timeline(&program.path()).unwrap();
    let timeline = timeline.unwrap();
    assert_eq!(timeline.lost, 0);
    for (time_ns, snapshot) in taken {
        let (rebuilt, expected) = (
            comparable(&timeline.state_at(&end, time_ns).unwrap()),
            comparable(&snapshot),
        );
        assert_eq!(rebuilt.rows, expected.rows);
    }
    // The order in which threads changed a sum and that of their clocks differ by the events that were under way.
    let window = timeline.window(&end, 0, timeline.until_ns).unwrap();
    let under_way = u64::from(THREADS) * (1 << 14);
    for sum in &window.sums {
        let peak = match sum.kind {
            Some(kind) => {
                end.counters
                    .iter()
                    .find(|c| (c.device, c.kind) == (sum.device, kind))
                    .unwrap()
                    .peak_bytes
            }
            None => {
                end.device_peaks
                    .iter()
                    .find(|p| Some(p.device) == sum.device)
                    .unwrap()
                    .peak_bytes
            }
        };
        assert!(sum.peak_bytes.abs_diff(peak) <= under_way, "{sum:?}, recorded {peak}");
        let held: u64 = sum.at_peak.iter().map(|at| at.bytes).sum();
        if sum.kind.is_none_or(|kind| !kind.place().on_device()) {
            assert_eq!(held, sum.peak_bytes, "the set of a replay adds up to its peak");
        }
    }
    let mut recorded: BTreeMap<Option<usize>, u64> = BTreeMap::new();
    for at in end.at_peaks.iter().filter(|at| at.kind.place().on_device()) {
        *recorded.entry(at.device).or_default() += at.bytes;
    }
    for peak in &end.device_peaks {
        let set = recorded.get(&Some(peak.device)).copied().unwrap_or(0);
        assert!(set.abs_diff(peak.peak_bytes) <= under_way, "{set}, recorded {peak:?}");
    }
}

/// The smallest log, so that every segment is reused many times.
#[test]
fn a_log_that_is_reused_has_every_event_since_its_beginning_exactly_once() {
    const THREADS: u64 = 16;
    const PAIRS: u64 = 32_000;
    let folder = Folder::new("replay-reuse");
    let program = Program::new(&folder, 0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let program = &program;
            scope.spawn(move || {
                for pair in 0..PAIRS {
                    // An address is used once, so it identifies its events.
                    let key = Key {
                        space: Space::Pointer,
                        address: ((thread << 32) | (pair + 1)) << 4,
                    };
                    let mut entry = entry(program.recording, pair + 1, program.stacks[0], program.threads[0]);
                    entry.attributes.kind = Kind::Device;
                    // Half of the threads own their shard, the others share four.
                    let number = if thread < THREADS / 2 { thread } else { 48 + thread % 4 };
                    let shard = || crate::lockfree::shards::Shard::for_test(number as u8);
                    assert!(program.recording.allocated_at(shard(), key, &entry));
                    let withdrawn = program.recording.withdraw(key, shard()).unwrap();
                    program.recording.commit(withdrawn, shard());
                }
            });
        }
    });
    let (_, timeline) = read_timeline(&program.path()).unwrap();
    let timeline = timeline.unwrap();
    assert_eq!(timeline.lost, 0, "no event was lost");
    assert!(timeline.since_ns > 0, "the log was reused");
    let mut seen: BTreeMap<u64, Vec<Event>> = BTreeMap::new();
    for event in timeline.memory.events() {
        assert!(event.time_ns >= timeline.since_ns);
        seen.entry(event.address).or_default().push(event);
    }
    for thread in 0..THREADS {
        let of_thread = (1..=PAIRS).map(|pair| (thread << 32 | pair) << 4);
        let first = of_thread.clone().find(|address| seen.contains_key(address));
        let Some(first) = first else { continue };
        for address in of_thread.filter(|&address| address > first) {
            let events = seen.get(&address).map_or(&[][..], Vec::as_slice);
            let [allocated, freed] = events else {
                panic!("{address:#x} of thread {thread}: {events:?}");
            };
            assert_eq!((allocated.op, freed.op), (Op::Allocated, Op::Freed));
            assert_eq!(
                (allocated.bytes, freed.bytes),
                (address >> 4 & 0xffff_ffff, allocated.bytes)
            );
        }
    }
    // 128 segments, of which those that are open may be almost empty.
    assert!(
        timeline.memory.len() > 64 * crate::format::EVENTS,
        "{} events",
        timeline.memory.len()
    );
}

#[test]
fn a_time_that_the_log_does_not_cover_is_an_error_that_says_what_to_do() {
    let timeline = Timeline::new(5_000_000_000, 9_000_000_000, Vec::new(), []);
    let snapshot = Snapshot::empty();
    let error = |time_ns| timeline.state_at(&snapshot, time_ns).unwrap_err().to_string();
    assert_eq!(
        error(1_000_000_000),
        "the state at 1s is not known: the event log is complete from 5s on; choose a later time, or record again with a \
         larger log (culeak run --timeline=SIZE)"
    );
    assert_eq!(
        error(10_000_000_000),
        "10s is after the last recorded moment, 9s; choose an earlier time"
    );
    assert!(
        timeline.state_at(&snapshot, 9_050_000_000).is_ok(),
        "a report shows 9.0 s as 9.1 s"
    );
    let reversed = timeline.window(&snapshot, 8_000_000_000, 6_000_000_000).unwrap_err();
    assert_eq!(
        reversed.to_string(),
        "the window ends at 6s, before it begins at 8s; name the earlier time first"
    );
}
