//! Every interleaving of two threads of a shared shard that write to a segment, and one that reuses it.

use super::*;
use crate::format::Op;
use crate::lockfree::sync::AtomicPtr;
use crate::lockfree::sync::modelled::{Mistake, Proof, models};
use ::loom::thread::spawn;

/// A shard's segments, and the one that it writes to.
struct Shards {
    segments: [EventSegment; 6],
    /// The first segment that was never used; not part of the model.
    fresh: std::sync::atomic::AtomicUsize,
    open: AtomicPtr<EventSegment>,
}

fn shards() -> &'static Shards {
    let shards: &'static Shards = Box::leak(Box::new(Shards {
        segments: Default::default(),
        fresh: 1.into(),
        open: AtomicPtr::default(),
    }));
    shards.segments[0].open(8);
    let first = std::ptr::from_ref(&shards.segments[0]).cast_mut();
    let none = std::ptr::null_mut();
    shards
        .open
        .compare_exchange(none, first, Release, Relaxed)
        .expect("nothing is open");
    shards
}

fn event(bytes: u64) -> StoredEvent {
    StoredEvent {
        op: Op::Allocated,
        time_ns: 8 * bytes,
        address: 64,
        bytes,
        site: 0,
        detail: 0,
    }
}

impl Shards {
    /// Writes an event. If the segment is full, the shard goes on with a fresh one.
    fn write(&self, bytes: u64) {
        loop {
            let at = self.open.load(Acquire);
            // SAFETY: one of the segments, which are never freed.
            let segment = unsafe { &*at };
            if segment.write(Shard::shared(0), &event(bytes), || self.open.load(SeqCst) == at) {
                return;
            }
            let fresh = &self.segments[self.fresh.fetch_add(1, Relaxed)];
            fresh.open(8);
            let new = std::ptr::from_ref(fresh).cast_mut();
            match self.open.compare_exchange(at, new, Release, Relaxed) {
                Ok(_) => segment.close(),
                Err(_) => fresh.close(),
            }
        }
    }

    fn written(&self) -> Vec<u64> {
        self.segments.iter().flat_map(decoded).collect()
    }
}

/// The bytes of a segment's events, which identify them.
fn decoded(segment: &EventSegment) -> Vec<u64> {
    let words = segment
        .events
        .iter()
        .map(|slot| [0, 1, 2].map(|word| slot[word].load(Acquire)));
    words
        .filter_map(|words| Some(StoredEvent::from_words(words, 8)?.bytes))
        .collect()
}

/// A third thread reuses the first segment as soon as it is closed: the events in it are written, and none is lost.
fn a_segment_is_emptied_only_after_its_events_are_written() {
    let shards = shards();
    shards.write(1);
    let writers = [2, 3].map(|bytes| spawn(move || shards.write(bytes)));
    let emptied = spawn(move || {
        let first = &shards.segments[0];
        let latest = first.claim()?;
        let found = decoded(first);
        assert_eq!(latest, 8 * found.iter().max().copied().unwrap_or(1), "{found:?}");
        first.empty();
        first.open(80);
        Some(found)
    });
    for writer in writers {
        writer.join().unwrap();
    }
    let mut all = emptied.join().unwrap().unwrap_or_default();
    all.extend(shards.written());
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3]);
}

/// A thread is stopped between finding its shard's segment and taking a slot. Meanwhile the segment is filled, emptied, and
/// opened for a shard with an owner: it holds the owner's events alone.
fn a_late_writer_leaves_the_events_of_a_new_owner_alone() {
    let shards = shards();
    shards.write(1);
    let late = spawn(move || shards.write(9));
    let others = spawn(move || {
        shards.write(2);
        shards.write(3);
        let first = &shards.segments[0];
        let found = first.claim().map(|_| decoded(first));
        if found.is_some() {
            first.empty();
            first.open(80);
            for bytes in [4, 5] {
                first.write(Shard::first_own(), &event(bytes), || true);
            }
            assert!(!decoded(first).contains(&9));
        }
        found
    });
    late.join().unwrap();
    let mut all = others.join().unwrap().unwrap_or_default();
    all.extend(shards.written());
    all.retain(|bytes| ![4, 5].contains(bytes));
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3, 9]);
}

const PROOF: Proof = Proof {
    files: &["src/lockfree/event_segment.rs"],
    models: models![
        a_segment_is_emptied_only_after_its_events_are_written,
        a_late_writer_leaves_the_events_of_a_new_owner_alone,
    ],
    harmless: &[
        (
            Mistake::Relaxed,
            "self.state.store(open.to_word(), Release);",
            "threads find the segment through its shard; readers in another process pair with it",
        ),
        (
            Mistake::HalfCompared,
            "slot[0].compare_exchange(0, VOID, Relaxed, Relaxed)",
            "the lower half of a written event holds its op",
        ),
        (
            Mistake::Relaxed,
            "let words = [slot[0].load(Acquire), slot[1].load(Relaxed), slot[2].load(Relaxed)];",
            "loom orders the stores of a word as it executes them; without that, the other words of an event could be stored \
             after those of the slot's next event",
        ),
        (
            Mistake::HalfCompared,
            ".compare_exchange(closed.to_word(), emptying.to_word(), Relaxed, Relaxed)",
            "takes a claim that is stopped while the segment is emptied, opened, filled and closed again: more preemptions \
             than the bound",
        ),
    ],
};

#[test]
fn loom_event_segments_hold_and_every_mistake_in_them_is_noticed() {
    PROOF.check();
}
