//! Statistics of hand-made timelines.

use proptest::prelude::*;

use super::*;
use crate::kind::Kind;
use crate::sample::{Sample, busy};
use crate::timeline::{Event, Op, Site};

const AT: u64 = 0x7f00_0000_0000;

fn snapshot() -> Snapshot {
    Sample::new().finish(0, 0)
}

fn sites() -> Vec<Site> {
    let site = |kind| Site {
        stack: None,
        kind,
        device: Some(0),
        domain: None,
        api: "cudaMalloc".to_owned(),
    };
    vec![site(Kind::Device), site(Kind::Tensor)]
}

fn allocated(time_ns: u64, address: u64, bytes: u64, site: u32, thread: u32) -> Event {
    Event {
        time_ns,
        op: Op::Allocated,
        address,
        bytes,
        site,
        lifetime_ns: 0,
        thread: Some(thread),
    }
}

fn freed(time_ns: u64, address: u64, bytes: u64, site: u32, lifetime_ns: u64) -> Event {
    Event {
        op: Op::Freed,
        lifetime_ns,
        thread: None,
        ..allocated(time_ns, address, bytes, site, 0)
    }
}

fn sums_of(events: Vec<Event>) -> (Sums, Sums) {
    let snapshot = snapshot();
    let timeline = Timeline::new(0, 10 * SECOND, sites(), events);
    let stats = Stats::of(&snapshot, &timeline, &Options::default()).unwrap();
    (stats.driver.clone(), stats.blocks.clone())
}

#[test]
fn an_allocation_is_temporary_if_its_thread_frees_it_before_it_allocates_again() {
    let (driver, _) = sums_of(vec![
        allocated(8, AT, 100, 0, 0),
        freed(16, AT, 100, 0, 8),
        // The second of two blocks is temporary.
        allocated(24, AT + 1, 100, 0, 0),
        allocated(32, AT + 2, 10, 0, 0),
        freed(40, AT + 2, 10, 0, 8),
        freed(48, AT + 1, 100, 0, 24),
    ]);
    assert_eq!(driver.temporary, Tally { bytes: 110, count: 2 });
    assert_eq!(driver.freed, Tally { bytes: 210, count: 3 });
}

#[test]
fn allocations_of_other_threads_do_not_matter() {
    let (driver, _) = sums_of(vec![
        allocated(8, AT, 100, 0, 0),
        allocated(16, AT + 1, 100, 0, 1),
        freed(24, AT, 100, 0, 16),
    ]);
    assert_eq!(driver.temporary.count, 1);
}

#[test]
fn a_block_is_reused_if_the_same_site_gets_the_same_address_and_size_again() {
    let reuse = |bytes, site| {
        let (driver, blocks) = sums_of(vec![
            allocated(8, AT, 100, 0, 0),
            freed(16, AT, 100, 0, 8),
            allocated(24, AT, bytes, site, 0),
        ]);
        driver.reused + blocks.reused
    };
    assert_eq!((reuse(100, 0), reuse(101, 0), reuse(100, 1)), (1, 0, 0));
}

#[test]
fn a_free_that_failed_does_not_count() {
    let restored = Event {
        op: Op::Restored,
        ..allocated(24, AT, 100, 0, 0)
    };
    let (driver, _) = sums_of(vec![allocated(8, AT, 100, 0, 0), freed(16, AT, 100, 0, 8), restored]);
    assert_eq!((driver.freed, driver.temporary), (Tally::default(), Tally::default()));
    assert_eq!(driver.lifetimes.count, 0);
}

#[test]
fn the_busiest_second_is_found() {
    let times = [0, 1, 2, 900].map(|ms| 2 * SECOND + ms * 1_000_000);
    let more = [4 * SECOND, 5 * SECOND - 8, 5 * SECOND];
    let events = times.into_iter().chain(more).zip(0..);
    let (driver, _) = sums_of(events.map(|(time, nth)| allocated(time, AT + nth, 1, 0, 0)).collect());
    assert_eq!((driver.most_per_second, driver.most_at_ns), (Some(4), Some(2 * SECOND)));
    assert_eq!(driver.per_second, 0.7);
}

#[test]
fn the_busiest_second_lies_within_the_window_and_has_more_than_the_average() {
    let snapshot = snapshot();
    // 4 at 1.6 s, 2.6 s, …; and 9 at 3.8 s.
    let steady = (1..10).flat_map(|second| [(second * 10 + 6) * SECOND / 10; 4]);
    let mut times: Vec<u64> = steady.chain([38 * SECOND / 10; 9]).collect();
    times.sort_unstable();
    let events = times
        .iter()
        .zip(0..)
        .map(|(&time, nth)| allocated(time, AT + nth, 1, 0, 0));
    let timeline = Timeline::new(0, 10 * SECOND, sites(), events);
    let most = |from_ns, to_ns| {
        let options = Options {
            between: Some((from_ns, to_ns)),
            ..Options::default()
        };
        let sums = Stats::of(&snapshot, &timeline, &options).unwrap().driver;
        let more = sums.most_per_second.is_none_or(|most| most as f64 > sums.per_second);
        assert!(more, "{sums:?}");
        (sums.most_per_second, sums.most_at_ns)
    };
    let half = SECOND / 2;
    assert_eq!(most(0, 10 * SECOND), (Some(13), Some(3 * SECOND)));
    assert_eq!(most(3 * SECOND + half, 7 * SECOND), (Some(13), Some(3 * SECOND + half)));
    assert_eq!(most(3 * SECOND + half, 5 * SECOND), (None, None));
    assert_eq!(most(5 * SECOND, 8 * SECOND), (None, None));
}

#[test]
fn the_next_command_shows_the_same_events_by_stack() {
    let (snapshot, timeline) = busy();
    let next = |options: &Options| Stats::of(&snapshot, &timeline, options).unwrap().next;
    let options = Options {
        source: "my app.culeak".to_owned(),
        ..Options::default()
    };
    assert_eq!(
        next(&options).as_deref(),
        Some("culeak report 'my app.culeak' --view churn --by stack")
    );
    let window = Options {
        between: Some((1_500_000_008, 40 * SECOND)),
        sort: Sort::Bytes,
        filter: Filter {
            kinds: vec![Kind::Device],
            ..Filter::default()
        },
        ..options.clone()
    };
    assert_eq!(
        next(&window).as_deref(),
        Some(
            "culeak report 'my app.culeak' --view churn --between 1.500000008s 40s --kind device --sort bytes --by stack"
        )
    );
    let by_stack = Options {
        by_stack: true,
        ..options
    };
    assert_eq!(next(&by_stack), None);
}

#[test]
fn the_shutdown_is_counted_unless_the_window_ends_before() {
    let (mut snapshot, timeline) = busy();
    snapshot.end = Some(crate::snapshot::End {
        of: crate::snapshot::EndOf::Script,
        time_ns: 50 * SECOND,
    });
    let end = |between| {
        let options = Options {
            between,
            ..Options::default()
        };
        Stats::of(&snapshot, &timeline, &options).unwrap().end_ns
    };
    assert_eq!(end(None), Some(50 * SECOND));
    assert_eq!(end(Some((0, 50 * SECOND))), None);
}

#[test]
fn a_window_and_a_filter_leave_events_out() {
    let snapshot = snapshot();
    let events = (1..10).map(|second| allocated(second * SECOND, AT + second, 1, second as u32 % 2, 0));
    let timeline = Timeline::new(0, 10 * SECOND, sites(), events);
    let options = Options {
        between: Some((2 * SECOND, 5 * SECOND)),
        filter: Filter {
            kinds: vec![Kind::Tensor],
            ..Filter::default()
        },
        ..Options::default()
    };
    let stats = Stats::of(&snapshot, &timeline, &options).unwrap();
    assert_eq!((stats.blocks.allocated.count, stats.driver.allocated.count), (2, 0));
    assert_eq!(stats.rows.len(), 1);
    let reversed = Options {
        between: Some((5 * SECOND, 2 * SECOND)),
        ..Options::default()
    };
    assert!(Stats::of(&snapshot, &timeline, &reversed).is_err());
}

#[test]
fn every_order_puts_its_own_rows_first() {
    let (snapshot, timeline) = busy();
    let first = |sort| {
        let options = Options {
            sort,
            ..Options::default()
        };
        Stats::of(&snapshot, &timeline, &options).unwrap().rows[0].label.clone()
    };
    assert!(Sort::ALL.iter().all(|&sort| first(sort) == "workspace"));
    let options = Options {
        top: Some(1),
        ..Options::default()
    };
    let stats = Stats::of(&snapshot, &timeline, &options).unwrap();
    assert_eq!((stats.rows.len(), stats.hidden_rows, stats.hidden.count), (1, 1, 20));
    let row = &stats.rows[0].sums;
    assert_eq!(
        (row.allocated.count, row.temporary.count, row.reused),
        (1000, 1000, 999)
    );
    assert_eq!(row.most_per_second, Some(50));
}

#[test]
fn a_log_without_its_oldest_events_is_reported_with_a_warning() {
    let (snapshot, mut timeline) = busy();
    timeline.since_ns = 20 * SECOND;
    timeline.lost = 3;
    let stats = Stats::of(&snapshot, &timeline, &Options::default()).unwrap();
    assert_eq!(stats.from_ns, 20 * SECOND);
    assert!(
        stats.warnings[0].contains("complete only from 20 s on"),
        "{:?}",
        stats.warnings
    );
    assert!(
        stats.warnings[1].starts_with("3 events could not be logged"),
        "{:?}",
        stats.warnings
    );
}

proptest! {
    #[test]
    fn the_median_lies_within_the_middle_of_the_lifetimes(mut lifetimes in proptest::collection::vec(0u64..1 << 40, 1..200)) {
        let events = lifetimes.iter().zip(0..).map(|(&lifetime, nth)| freed(8, AT + nth, 1, 0, lifetime));
        let (driver, _) = sums_of(events.collect());
        lifetimes.sort_unstable();
        // Lifetimes are stored to 0.1 %, and the histogram doubles with each bucket.
        let middle = lifetimes[(lifetimes.len() - 1) / 2];
        let found = driver.lifetimes.median_ns;
        prop_assert!(found / 2 <= middle + 1 && found * 2 + 1 >= middle / 1000 * 999, "{} for {}", found, middle);
        let counted: u64 = driver.lifetimes.histogram.iter().map(|bucket| bucket.count).sum();
        prop_assert_eq!(counted, lifetimes.len() as u64);
    }

    #[test]
    fn any_events_can_be_counted(events in proptest::collection::vec((0u8..3, 0u64..50, 0u64..6, any::<u64>(), 0u32..2), 0..100)) {
        let events = events.into_iter().map(|(op, time, address, bytes, site)| Event {
            op: [Op::Allocated, Op::Freed, Op::Restored][usize::from(op)],
            ..freed(time * 8, address, bytes, site, bytes >> 3)
        });
        let (driver, blocks) = sums_of(events.collect());
        for sums in [driver, blocks] {
            prop_assert!(sums.temporary.count <= sums.freed.count && sums.reused <= sums.allocated.count);
        }
    }
}
