use super::*;

const BEGIN_NS: u64 = 5_000_000_000;
const GHZ: u64 = 2;

/// A clock that has been compared with a counter of 2 GHz for 10 ms, and the ticks at which it was read last.
fn compared() -> (Clock, u64) {
    let clock = zeroed();
    clock.begin(0, BEGIN_NS);
    let ticks = GHZ * BASE_NS;
    clock.learn(ticks, BEGIN_NS + BASE_NS);
    (clock, ticks)
}

fn zeroed() -> Clock {
    // SAFETY: atomics, of which zeros are values.
    unsafe { std::mem::zeroed() }
}

#[test]
fn the_counter_tells_what_has_passed_since_the_last_reading() {
    let (clock, ticks) = compared();
    for passed in [0, 1, 1_000, WINDOW_NS - 1] {
        assert_eq!(clock.at(ticks + GHZ * passed, 1), Some(BEGIN_NS + BASE_NS + passed));
    }
}

#[test]
fn far_from_the_last_reading_the_clock_is_read() {
    let (clock, ticks) = compared();
    for ticks in [ticks + GHZ * WINDOW_NS, ticks - 1, 0, u64::MAX] {
        assert_eq!(clock.at(ticks, 1), None, "{ticks}");
    }
}

#[test]
fn without_a_start_and_until_the_ratio_is_known_the_clock_is_read() {
    let clock = zeroed();
    assert_eq!(clock.at(0, 1), None);
    clock.begin(0, BEGIN_NS);
    assert_eq!(clock.at(1, 1), None);
    clock.learn(GHZ * (BASE_NS - 1), BEGIN_NS + BASE_NS - 1);
    assert_eq!(clock.at(GHZ * (BASE_NS - 1), 1), None);
}

/// A daemon lets the clock run 0.05 % faster or slower than before: each event is less than 0.3 us away from it, none is before the
/// last.
#[test]
fn an_adjusted_clock_is_followed() {
    for real_step in [100_050, 99_950] {
        let (clock, mut ticks) = compared();
        let (mut real_ns, mut last) = (BEGIN_NS + BASE_NS, 0);
        for _ in 0..20_000 {
            ticks += GHZ * 100_000;
            real_ns += real_step;
            let ns = clock.at(ticks, 1).unwrap_or_else(|| clock.learn(ticks, real_ns));
            assert!(ns.abs_diff(real_ns) < 300, "{ns} {real_ns}");
            assert!(ns > last, "{ns} {last}");
            last = ns;
        }
        let learnt = clock.ratio.load(Relaxed) as f64 / (1u64 << RATIO_SHIFT) as f64;
        let wanted = real_step as f64 / (GHZ * 100_000) as f64;
        assert!((learnt / wanted - 1.0).abs() < 1e-5, "{learnt} {wanted}");
    }
}

/// Readings are inexact by 0.1 us, in both directions by turns.
#[test]
fn time_does_not_run_backwards() {
    let (clock, began) = compared();
    let mut last = 0;
    for event in 1..100_000u64 {
        let passed = 90 * event;
        let inexact = BEGIN_NS + BASE_NS + passed + 200 * (event % 2) - 100;
        let ticks = began + GHZ * passed;
        let ns = clock.at(ticks, 1).unwrap_or_else(|| clock.learn(ticks, inexact));
        assert!(ns >= last, "event {event}: {ns} after {last}");
        assert!(ns.abs_diff(BEGIN_NS + BASE_NS + passed) <= 300, "event {event}: {ns}");
        last = ns;
    }
}

#[test]
fn a_counter_with_another_rate_is_not_used_again() {
    let (clock, ticks) = compared();
    // 100 ms at 3 GHz.
    clock.learn(ticks + 3 * 10 * BASE_NS, BEGIN_NS + 11 * BASE_NS);
    assert_eq!(clock.base_ns.load(Relaxed), 0);
    assert_eq!(clock.at(ticks + 30 * BASE_NS, 1), None);
    // Nor if the rate is again what it was.
    clock.learn(ticks + 60 * BASE_NS, BEGIN_NS + 26 * BASE_NS);
    assert_eq!(clock.at(ticks + 60 * BASE_NS, 1), None);
}

#[test]
fn a_counter_that_stands_still_or_runs_backwards_is_not_used() {
    for ticks in [0, u64::MAX - 5, 1] {
        let clock = zeroed();
        clock.begin(0, BEGIN_NS);
        clock.learn(ticks, BEGIN_NS + BASE_NS);
        assert_eq!(clock.base_ns.load(Relaxed), 0, "{ticks}");
        assert_eq!(clock.at(ticks, 1), None, "{ticks}");
    }
}

/// A signal handler, or a thread that was stopped in between: others neither wait nor use half a reading.
#[test]
fn a_writer_that_never_returns_stops_nobody() {
    let (clock, ticks) = compared();
    clock.version.fetch_add(1, Relaxed);
    assert_eq!(clock.at(ticks, 1), None);
    clock.learn(ticks + 2, BEGIN_NS + BASE_NS + 1);
    assert_eq!(clock.at(ticks + 2, 1), None);
    clock.now();
}

/// On this machine's own counter, if it is trusted; else both are the real clock.
#[test]
fn its_times_lie_between_readings_of_the_real_clock() {
    let clock = zeroed();
    clock.start();
    let (mut counted, mut read, mut last) = (0, 0, 0);
    while clock.base_ns.load(Relaxed) != 0 && counted < 1_000 || read < 1_000 {
        let before = monotonic_ns();
        let was_counted = clock.at(counter::ticks(), 1).is_some();
        let ns = clock.now();
        let after = monotonic_ns();
        *(if was_counted { &mut counted } else { &mut read }) += 1;
        assert!(before <= ns + 300 && ns <= after + 300, "{before} {ns} {after}");
        assert!(ns >= last, "{ns} after {last}");
        last = ns;
    }
}
