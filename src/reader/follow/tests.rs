//! After any number of reads, a follower reports the same sums as a single read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use proptest::prelude::*;

use super::super::read;
use super::super::tests::{Folder, Stops, change_places, entry, key, move_places, record};
use super::*;
use crate::analysis::tally::Tally;
use crate::kind::Kind;
use crate::lockfree::table::{Key, Space};
use crate::recording::{ModuleSeen, Recording};
use crate::snapshot::Location;

/// A sum without numbers that depend on the reader: frames of the stack, kind, device, blocks or not.
type Named = (Option<Vec<u64>>, Kind, Option<usize>, bool);
type Sums = BTreeMap<Named, (Tally, u64, u64)>;

/// The stacks of all reads.
#[derive(Default)]
struct Stacks(Vec<Vec<u64>>);

impl Stacks {
    fn sums(&mut self, stack_sums: &StackSums) -> Sums {
        assert_eq!(stack_sums.known_stacks, self.0.len());
        let locations: &[Location] = &stack_sums.snapshot.locations;
        let stacks = stack_sums.snapshot.stacks.iter();
        self.0
            .extend(stacks.map(|stack| stack.frames.iter().map(|&frame| locations[frame].address).collect()));
        let mut sums = Sums::new();
        for sum in &stack_sums.sums {
            let stack = sum.stack.map(|stack| self.0[stack].clone());
            let all = sums
                .entry((stack, sum.kind, sum.device, sum.carries_blocks))
                .or_insert((Tally::default(), u64::MAX, 0));
            all.0.join(sum.tally);
            *all = (all.0, all.1.min(sum.oldest_ns), all.2.max(sum.newest_ns));
        }
        sums
    }
}

fn agrees(follower: &mut Follower, stacks: &mut Stacks, path: &Path) {
    let (ours, theirs) = (follower.read().unwrap(), StackSums::of(read(path).unwrap()));
    assert_eq!(stacks.sums(&ours), Stacks::default().sums(&theirs));
    assert_eq!(ours.watched, theirs.watched);
    assert_eq!(ours.snapshot.counters, theirs.snapshot.counters);
    assert_eq!(ours.snapshot.device_peaks, theirs.snapshot.device_peaks);
    assert_eq!(ours.snapshot.losses.events, theirs.snapshot.losses.events);
}

/// Addresses: mappings and linear memory side by side, with blocks inside them or across the border of two.
const PLACES: u64 = 12;
const KINDS: [(Kind, Space); 6] = [
    (Kind::Device, Space::Pointer),
    (Kind::Async, Space::Pointer),
    (Kind::Mapping, Space::Mapping),
    (Kind::Tensor, Space::Tensor),
    (Kind::Buffer, Space::Buffer),
    (Kind::Block, Space::Block),
];

struct Program {
    recording: &'static Recording,
    stacks: Vec<u32>,
    domain: u8,
    live: BTreeSet<(usize, u64)>,
}

impl Program {
    fn new(path: &Path) -> Program {
        let recording = record(path);
        recording.add_device(0, None, b"GPU");
        recording.add_device(1, None, b"GPU");
        recording.add_thread(4711, b"worker\0\0\0\0\0\0\0\0\0\0");
        let module = recording.add_module(&ModuleSeen {
            path: b"/lib/a.so",
            build_id: &[1],
            bias: 0x1000,
            start: 0x1000,
            end: 0x9000,
        });
        let outer = recording.frame(ROOT, module, 0x10).unwrap();
        let inner = (1..4).map(|nth| recording.frame(outer, module, 0x100 * nth).unwrap());
        Program {
            recording,
            stacks: inner.chain([NONE, outer]).collect(),
            domain: recording.domain(b"my cache").unwrap(),
            live: BTreeSet::new(),
        }
    }

    /// Allocates at the place if it is free, otherwise frees it.
    fn step(&mut self, (kind_number, place, bytes, stack): (usize, u64, u64, usize)) {
        let (kind, space) = KINDS[kind_number];
        let at = 0x7f00_0000_0000 + place * 4096;
        let key = Key {
            space,
            address: match kind {
                Kind::Buffer => place + 1,
                Kind::Block => block_address(self.domain, at).unwrap(),
                _ => at,
            },
        };
        if self.live.remove(&(kind_number, place)) {
            let withdrawn = self.recording.withdraw(key, 0).unwrap();
            match bytes.is_multiple_of(5) {
                true => self.recording.restore(withdrawn, 0),
                false => self.recording.commit(withdrawn, 0),
            }
            if bytes.is_multiple_of(5) {
                self.live.insert((kind_number, place));
            }
            return;
        }
        // Memory of different kinds does not overlap.
        if kind_number < 3 && (0..3).any(|other| self.live.contains(&(other, place))) {
            return;
        }
        let mut entry = entry(self.recording, bytes, self.stacks[stack % self.stacks.len()], 0);
        (entry.attributes.kind, entry.attributes.space, entry.attributes.flags) = (kind, space, 0);
        entry.attributes.device = (place % 3) as u8;
        match kind {
            Kind::Buffer => entry.extra = at + 64,
            Kind::Mapping => entry.bytes = 0,
            // If several blocks share an address, the result depends on which of them reaches further; only buffers do here.
            Kind::Tensor | Kind::Block => entry.bytes = bytes % 4096,
            _ => {}
        }
        assert!(self.recording.allocated(key, &entry));
        self.live.insert((kind_number, place));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 64 }, ..ProptestConfig::default() })]
    #[test]
    fn after_any_events_a_follower_agrees_with_a_full_read(
        rounds in proptest::collection::vec(
            proptest::collection::vec((0..KINDS.len(), 0..PLACES, 1u64..9000, 0usize..5), 0..40), 1..8),
    ) {
        let folder = Folder::new(&format!("follow-{:x}", rand()));
        let path = folder.0.join("a.culeak");
        let mut program = Program::new(&path);
        let (mut follower, mut stacks) = (Follower::new(&path), Stacks::default());
        for round in rounds {
            round.into_iter().for_each(|step| program.step(step));
            agrees(&mut follower, &mut stacks, &path);
        }
        agrees(&mut follower, &mut stacks, &path);
    }
}

/// A number that is unique in this process.
fn rand() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

#[test]
fn no_record_is_read_when_no_event_was_counted() {
    let folder = Folder::new("follow-quiet");
    let path = folder.0.join("a.culeak");
    let mut program = Program::new(&path);
    let mut follower = Follower::new(&path);
    program.step((0, 1, 8, 0));
    follower.read().unwrap();
    assert!(follower.counted.is_some());
    let withdrawn = program.recording.withdraw(key(0x7f00_0000_1000), 0).unwrap();
    assert!(follower.read().unwrap().sums.is_empty());
    assert!(
        follower.counted.is_none(),
        "it may be restored, and then the counters are as before"
    );
    program.recording.restore(withdrawn, 0);
    assert_eq!(follower.read().unwrap().sums[0].tally.count, 1);
    assert!(follower.counted.is_some());
}

#[test]
fn another_recording_with_the_same_name_starts_over() {
    let folder = Folder::new("follow-other");
    let path = folder.0.join("a.culeak");
    let mut program = Program::new(&path);
    let mut follower = Follower::new(&path);
    let mut stacks = Stacks::default();
    (0..9).for_each(|place| program.step((0, place, 8, place as usize)));
    agrees(&mut follower, &mut stacks, &path);
    let other = folder.0.join("b.culeak");
    Program::new(&other).step((1, 1, 1, 0));
    std::fs::rename(&other, &path).unwrap();
    agrees(&mut follower, &mut stacks, &path);
}

#[test]
fn after_an_error_it_starts_over() {
    let folder = Folder::new("follow-error");
    let (path, copy) = (folder.0.join("a.culeak"), folder.0.join("b.culeak"));
    let mut program = Program::new(&path);
    let (mut follower, mut stacks) = (Follower::new(&copy), Stacks::default());
    (0..9).for_each(|place| program.step((place as usize % 6, place, 8, place as usize)));
    std::fs::copy(&path, &copy).unwrap();
    agrees(&mut follower, &mut stacks, &copy);
    (0..12).for_each(|place| program.step((3, place, 8, 1)));
    let whole = std::fs::read(&path).unwrap();
    // The inode stays the same.
    std::fs::write(&copy, &whole[..whole.len() / 2]).unwrap();
    assert!(follower.read().is_err());
    std::fs::write(&copy, &whole).unwrap();
    agrees(&mut follower, &mut stacks, &copy);
}

#[test]
fn records_swapped_during_a_read_are_never_counted_twice() {
    let folder = Folder::new("follow-moving");
    let path = folder.0.join("a.culeak");
    let recording = record(&path);
    let shards = 2;
    // The records that stay lie between the two records that each shard swaps.
    let stay = |number: u64| key(0x7f00_0000_0000 + number);
    for shard in 0..shards {
        recording.allocated(
            key(move_places(shard)[0]),
            &entry(recording, move_places(shard)[0], NONE, shard),
        );
    }
    (0..5000).for_each(|number| assert!(recording.allocated(stay(number), &entry(recording, 3, NONE, 0))));
    for shard in 0..shards {
        recording.allocated(
            key(move_places(shard)[1]),
            &entry(recording, move_places(shard)[1], NONE, shard),
        );
    }
    let until = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stops = Stops(&until);
        let until = &until;
        (0..shards).for_each(|shard| drop(scope.spawn(move || change_places(recording, shard, until))));
        let mut follower = Follower::new(&path);
        for _ in 0..if cfg!(miri) { 3 } else { 300 } {
            let stack_sums = follower.read().unwrap();
            let tally = Tally::total(stack_sums.sums.iter().map(|sum| sum.tally));
            let moving = tally.count - 5000;
            assert!(moving <= 2 * u64::from(shards), "{moving} of {} that move", 2 * shards);
        }
    });
    let mut follower = Follower::new(&path);
    agrees(&mut follower, &mut Stacks::default(), &path);
}
