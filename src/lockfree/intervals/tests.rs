use super::*;

fn zeroed() -> Box<Intervals> {
    // SAFETY: documented to be valid as zeros.
    unsafe { Box::new(std::mem::zeroed()) }
}

fn on_device(row: u8, time_ns: u64, bytes: u64) -> Event {
    Event {
        slot: slot_of(row),
        time_ns,
        bytes,
        on_device: true,
    }
}

#[test]
fn whether_tensors_are_reported_is_what_the_recording_said_at_its_beginning() {
    for reported in [false, true] {
        let intervals = zeroed();
        assert!(!intervals.watching());
        intervals.watch(reported);
        assert!(intervals.watching());
        assert_eq!(intervals.tensors_reported(), reported);
    }
}

#[test]
fn an_interval_in_which_an_allocation_was_lost_cannot_be_read() {
    let intervals = zeroed();
    let number = intervals.begin(20, 0);
    assert!(intervals.read(number, ALL).is_some());
    intervals.lose();
    assert_eq!(intervals.read(number, ALL), None);
    let next = intervals.begin(30, 0);
    assert!(intervals.read(next, ALL).is_some());
}

#[test]
fn an_interval_counts_its_own_allocations_and_what_is_left_of_them() {
    let intervals = zeroed();
    let older = on_device(0, 10, 1000);
    intervals.allocated(&older);
    let number = intervals.begin(20, 0);
    let (left, freed) = (on_device(0, 20, 300), on_device(1, 21, 500));
    intervals.allocated(&left);
    intervals.allocated(&freed);
    intervals.freed(&freed);
    intervals.freed(&older);
    let all = intervals.read(number, ALL).expect("it is the last one");
    let expected = Reading {
        left_bytes: 300,
        left_count: 1,
        peak_bytes: 800,
        held_bytes: 300,
    };
    assert_eq!(all, expected);
    assert_eq!(intervals.read(number, 1).map(|of| of.peak_bytes), Some(300));
    assert_eq!(
        intervals.read(number, 2).map(|of| (of.left_bytes, of.peak_bytes)),
        Some((0, 500))
    );
}

#[test]
fn an_interval_is_gone_once_another_has_begun() {
    let intervals = zeroed();
    let first = intervals.begin(1, 0);
    let second = intervals.begin(2, 0);
    assert_eq!(intervals.read(first, ALL), None);
    assert_eq!(intervals.read(second, ALL), Some(Reading::default()));
    assert_eq!(intervals.read(0, ALL), None);
}

#[test]
fn numbers_of_intervals_are_never_0() {
    let intervals = zeroed();
    intervals.allocated(&on_device(0, 5, 7));
    assert_eq!(intervals.read(0, ALL), None);
    for _ in 0..2 * ROUNDS {
        assert_ne!(intervals.begin(1, 0), 0);
    }
}

#[test]
fn host_memory_is_in_no_sum_of_devices() {
    let intervals = zeroed();
    let number = intervals.begin(1, 0);
    intervals.allocated(&Event {
        slot: Some(HOST),
        time_ns: 2,
        bytes: 64,
        on_device: false,
    });
    assert_eq!(intervals.read(number, HOST).map(|host| host.left_bytes), Some(64));
    assert_eq!(intervals.read(number, ALL).map(|all| all.left_count), Some(0));
}

#[test]
fn a_limit_is_exceeded_once_an_interval() {
    let intervals = zeroed();
    intervals.watch(true);
    for _ in 0..2 {
        intervals.begin(1, 100);
        intervals.allocated(&on_device(0, 1, 100));
        assert!(!intervals.was_exceeded(), "as much as allowed");
        intervals.allocated(&on_device(0, 1, 1));
        assert!(intervals.was_exceeded());
        intervals.allocated(&on_device(0, 1, 1));
        assert!(!intervals.was_exceeded(), "it was already reported");
    }
}

#[test]
fn the_peak_of_many_threads_is_that_of_a_sum_that_rises_and_falls() {
    let intervals = &*zeroed();
    let number = intervals.begin(1, 0);
    std::thread::scope(|scope| {
        for row in 0..4 {
            scope.spawn(move || {
                for _ in 0..10_000 {
                    let event = on_device(row, 1, 3);
                    intervals.allocated(&event);
                    intervals.freed(&event);
                }
                intervals.allocated(&on_device(row, 1, 1));
            });
        }
    });
    let all = intervals.read(number, ALL).expect("the last one");
    assert_eq!((all.left_bytes, all.left_count, all.held_bytes), (4, 4, 4));
    assert!((4..=12).contains(&all.peak_bytes), "{all:?}");
    for slot in 1..=4 {
        assert_eq!(intervals.read(number, slot).map(|of| of.peak_bytes), Some(3));
    }
}
