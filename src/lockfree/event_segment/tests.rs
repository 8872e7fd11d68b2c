//! One segment, in one thread: what it takes, when it is full, too old or another shard's, and how it is reused.

use super::*;
use crate::format::Op;

fn segment(opened_ns: u64) -> Box<EventSegment> {
    // SAFETY: documented: all zeros is a segment that was never used.
    let segment: Box<EventSegment> = Box::new(unsafe { std::mem::zeroed() });
    segment.open(opened_ns);
    segment
}

fn event(time_ns: u64, bytes: u64) -> StoredEvent {
    StoredEvent {
        op: Op::Allocated,
        time_ns,
        address: 64,
        bytes,
        site: 5,
        detail: 6,
    }
}

fn written(segment: &EventSegment) -> Vec<StoredEvent> {
    let opened = segment.opened_ns.load(Relaxed);
    let words = |slot: &[AtomicU64; 3]| [0, 1, 2].map(|word: usize| slot[word].load(Relaxed));
    let events = segment.events.iter();
    events
        .filter_map(|slot| StoredEvent::from_words(words(slot), opened))
        .collect()
}

#[test]
fn a_segment_takes_as_many_events_as_it_has_room_for_and_keeps_their_order() {
    for shard in [Shard::first_own(), Shard::shared(0)] {
        let segment = segment(800);
        segment.set_number(7);
        let events: Vec<_> = (0..EVENTS as u64).map(|bytes| event(800 + 8 * bytes, bytes)).collect();
        for event in &events {
            assert!(segment.write(shard, event, || true), "{event:?}");
        }
        assert!(!segment.write(shard, &events[0], || true), "it is full");
        assert!(!segment.write(shard, &events[0], || true), "and stays full");
        assert_eq!(written(&segment), events);
        assert_eq!(segment.number(), 7, "no event is written over the header");
    }
}

#[test]
fn an_event_that_is_too_late_or_comes_when_the_segment_is_another_shards_is_not_written() {
    let segment = segment(800);
    let days = |days: u64| 800 + days * 86_400 * 1_000_000_000;
    let shard = Shard::first_own();
    // Threads that share a shard may be a little earlier than the opening.
    for time_ns in [0, 800, days(19), days(20)] {
        assert!(segment.write(shard, &event(time_ns, 1), || true), "{time_ns}");
    }
    for time_ns in [days(20) + 8, days(21)] {
        assert!(!segment.write(shard, &event(time_ns, 2), || true), "{time_ns}");
    }
    assert!(!segment.write(shard, &event(800, 3), || false));
    assert!(segment.write(shard, &event(800, 4), || true));
    let bytes: Vec<u64> = written(&segment).iter().map(|event| event.bytes).collect();
    assert_eq!(bytes, [1, 1, 1, 1, 4], "the slot of the refused event is void");
}

#[test]
fn a_closed_segment_is_claimed_once_and_says_when_its_latest_event_was() {
    let segment = segment(800);
    let shard = Shard::first_own();
    for time_ns in [800, 4000, 1600] {
        segment.write(shard, &event(time_ns, 1), || true);
    }
    assert_eq!(segment.claim(), None, "it is open");
    assert!(!segment.is_closed());
    segment.close();
    assert!(segment.is_closed());
    assert_eq!(segment.claim(), Some(4000));
    assert_eq!(segment.claim(), None, "it is claimed");
    segment.close();
    assert!(!segment.is_closed(), "only an open segment is closed");
    let round = |segment: &EventSegment| segment.state().expect("known").round;
    let before = round(&segment);
    segment.empty();
    segment.open(8000);
    assert_eq!((written(&segment), round(&segment)), (Vec::new(), before + 1));
    segment.close();
    assert_eq!(segment.claim(), Some(8000), "without an event, when it was opened");
}

#[test]
fn a_segment_with_a_slot_that_is_not_written_yet_is_not_claimed() {
    let segment = segment(800);
    let shard = Shard::shared(0);
    assert!(segment.write(shard, &event(1600, 1), || true));
    let slot = segment.take(shard).expect("room");
    segment.close();
    assert_eq!(segment.claim(), None);
    slot[0].store(VOID, Relaxed);
    assert_eq!(segment.claim(), Some(1600));
}
