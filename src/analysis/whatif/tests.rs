use super::*;
use crate::sample::{MIB, Sample};
use crate::snapshot::Mark;
use crate::timeline::{Event, Op, Site};

/// Sites of a log: segments, blocks.
const SEGMENT: u32 = 0;
const BLOCK: u32 = 1;

/// A log of PyTorch's allocator. Each event is a microsecond after the one before.
#[derive(Default)]
struct Log(Vec<Event>);

impl Log {
    fn event(mut self, op: Op, site: u32, address: u64, bytes: u64) -> Log {
        let time_ns = 1000 * (self.0.len() as u64 + 1);
        let allocated = self
            .0
            .iter()
            .rev()
            .find(|event| (event.address, event.site) == (address, site));
        self.0.push(Event {
            time_ns,
            op,
            address,
            bytes,
            site,
            lifetime_ns: allocated
                .filter(|_| op == Op::Freed)
                .map_or(0, |event| time_ns - event.time_ns),
            thread: None,
        });
        self
    }

    fn segment(self, address: u64, mib: u64) -> Log {
        self.event(Op::Allocated, SEGMENT, address, mib * MIB)
    }

    fn give_back(self, address: u64, mib: u64) -> Log {
        self.event(Op::Freed, SEGMENT, address, mib * MIB)
    }

    fn block(self, address: u64, mib: u64) -> Log {
        self.event(Op::Allocated, BLOCK, address, mib * MIB)
    }

    fn free(self, address: u64, mib: u64) -> Log {
        self.event(Op::Freed, BLOCK, address, mib * MIB)
    }

    fn timeline(self) -> Timeline {
        let site = |kind, api: &str| Site {
            stack: None,
            kind,
            device: Some(0),
            domain: (kind == Kind::Tensor).then(|| "pytorch".to_owned()),
            api: api.to_owned(),
        };
        let sites = vec![
            site(Kind::Device, "cuMemAlloc_v2"),
            site(Kind::Tensor, "CUDACachingAllocator"),
        ];
        Timeline::new(0, 1 << 40, sites, self.0)
    }

    fn trace(self, snapshot: &Snapshot) -> Trace {
        let (timeline, stacks) = (self.timeline(), CallStacks::of(snapshot));
        Trace::of(
            snapshot,
            &Allocations::default(),
            &timeline,
            &stacks,
            0,
            &Settings::default(),
            None,
        )
        .expect("a whole log")
    }

    fn on_device(self, snapshot: &Snapshot, question: &Question) -> OnDevice {
        let (timeline, stacks) = (self.timeline(), CallStacks::of(snapshot));
        let whatif = WhatIf::of(snapshot, &Allocations::default(), &timeline, &stacks, question);
        whatif.expect("a whole log").devices.remove(0)
    }
}

fn process() -> Snapshot {
    let mut snapshot = Sample::new().running().finish(0, 0);
    snapshot.devices.truncate(1);
    snapshot.failed.clear();
    snapshot.marks.clear();
    snapshot
}

/// A request for memory that was refused by the driver, or to the allocator, just before the event of this number.
fn refused(kind: Kind, mib: u64, before_event: u64) -> Failed {
    Failed {
        bytes: mib * MIB,
        count: 1,
        kind,
        api: String::new(),
        device: Some(0),
        error: 2,
        thread: 0,
        stack: None,
        first_ns: 1000 * before_event - 500,
        last_ns: 1000 * before_event - 500,
    }
}

const A: u64 = 0x1000_0000;
const B: u64 = 0x8000_0000;

/// Two streams that need 40 MiB in turns.
fn streams() -> Log {
    let log = Log::default().segment(A, 40).block(A, 40).free(A, 40);
    log.segment(B, 40).block(B, 40).free(B, 40)
}

#[test]
fn a_segment_that_did_not_serve_a_request_for_which_it_had_room_is_of_another_stream() {
    let (snapshot, question) = (process(), Question::default());
    let trace = streams().trace(&snapshot);
    assert!(trace.passed_over.contains(&A));
    assert_eq!(
        (trace.classes(Conflicts::None), trace.classes(Conflicts::NewSegments)),
        (vec![0, 0], vec![0, 1])
    );
    let found = streams().on_device(&snapshot, &question);
    assert_eq!((found.error_bytes, found.pools, found.refusal), (0, 2, None));
    let peak = |label: &str| {
        found
            .rows
            .iter()
            .find(|row| row.label == label)
            .map(|row| row.peak_reserved_bytes / MIB)
    };
    assert_eq!(
        (peak("as recorded"), peak("all requests on one stream")),
        (Some(80), Some(40))
    );
    // A block that lies in it later: it waited, and the stream may be the same.
    let used = streams().block(A, 40).trace(&snapshot);
    assert!(used.passed_over.is_empty());
}

#[test]
fn a_smaller_range_that_did_not_serve_a_request_is_of_another_stream() {
    // Each stream has a segment. A request is served from 60 MiB although 40 are free: they are of the other stream.
    let log = Log::default()
        .segment(A, 40)
        .block(A, 40)
        .segment(B, 60)
        .block(B, 60)
        .free(A, 40)
        .free(B, 60);
    let trace = log.block(B, 30).trace(&process());
    assert_eq!(
        (trace.classes(Conflicts::NewSegments), trace.classes(Conflicts::All)),
        (vec![0, 0], vec![0, 1])
    );
}

#[test]
fn segments_given_back_by_the_program_are_given_back_under_each_setting() {
    let log = Log::default().segment(A, 40).block(A, 40).free(A, 40).give_back(A, 40);
    let found = log
        .segment(B, 80)
        .block(B, 80)
        .on_device(&process(), &Question::default());
    assert_eq!((found.error_bytes, found.recorded_peak_bytes), (0, 80 * MIB));
    assert!(
        found.rows.iter().all(|row| row.peak_reserved_bytes == 80 * MIB),
        "{:#?}",
        found.rows
    );
    assert!(found.recommended.is_empty());
}

#[test]
fn segments_given_back_because_the_driver_had_no_more_limit_all_settings() {
    // 40 MiB are free when 80 are requested, and the driver has less than 120.
    let log = || {
        Log::default()
            .segment(A, 40)
            .block(A, 40)
            .free(A, 40)
            .give_back(A, 40)
            .segment(B, 80)
            .block(B, 80)
    };
    let mut snapshot = process();
    snapshot.failed.push(refused(Kind::Device, 80, 4));
    let trace = log().trace(&snapshot);
    assert!(trace.was_forced);
    let found = log().on_device(&snapshot, &Question::default());
    assert_eq!(found.error_bytes, 0);
    assert!(
        found.rows.iter().all(|row| row.peak_reserved_bytes == 80 * MIB),
        "{:#?}",
        found.rows
    );
    assert!(
        found
            .rows
            .iter()
            .any(|row| row.label.starts_with("garbage_collection_threshold"))
    );
}

#[test]
fn a_request_that_failed_fits_where_free_memory_is_in_one_range() {
    // Segments of 40 MiB, each with a free range of 30 and a block that stays: 60 MiB do not fit.
    let mut log = Log::default();
    for nth in 0..4 {
        let at = A + nth * 0x1000_0000;
        log = log
            .segment(at, 40)
            .block(at, 40)
            .free(at, 40)
            .block(at, 10)
            .block(at + 10 * MIB, 30);
    }
    for nth in 0..4 {
        log = log.free(A + nth * 0x1000_0000 + 10 * MIB, 30);
    }
    let mut snapshot = process();
    snapshot.failed.push(refused(Kind::Tensor, 60, 30));
    let question = Question {
        failed_request: true,
        ..Question::default()
    };
    let found = log.on_device(&snapshot, &question);
    assert_eq!(
        (found.error_bytes, found.failed_bytes, found.refusal.as_deref()),
        (0, Some(60 * MIB), None)
    );
    let fit = |settings: &str| {
        let row = found.rows.iter().find(|row| row.settings.as_deref() == Some(settings));
        row.and_then(|row| row.failed_request_fits)
    };
    assert_eq!(found.rows[0].failed_request_fits, Some(Fit::No));
    // Pages of 20 MiB of which 30 are free: one each is given back, and three serve the request.
    assert_eq!(fit("expandable_segments:True"), Some(Fit::Yes));
    assert_eq!(
        found.rows[found.recommended[0]].settings.as_deref(),
        Some("expandable_segments:True")
    );
}

#[test]
fn the_cache_can_be_given_back_at_marks() {
    let mut snapshot = process();
    snapshot.marks.push(Mark {
        time_ns: 3500,
        name: "epoch".to_owned(),
        thread: 0,
    });
    let found = streams().on_device(&snapshot, &Question::default());
    let row = found
        .rows
        .iter()
        .find(|row| row.label == "empty_cache() at mark:epoch")
        .expect("a row");
    assert_eq!(row.peak_reserved_bytes, 40 * MIB);
}

#[test]
fn a_log_without_its_oldest_events_gives_no_answer() {
    let snapshot = process();
    let (stacks, mut timeline) = (CallStacks::of(&snapshot), streams().timeline());
    timeline.since_ns = 5;
    let found = WhatIf::of(
        &snapshot,
        &Allocations::default(),
        &timeline,
        &stacks,
        &Question::default(),
    );
    assert!(found.is_err_and(|why| why.contains("a larger log")));
    let none = Log::default().timeline();
    let none = WhatIf::of(&snapshot, &Allocations::default(), &none, &stacks, &Question::default());
    assert!(none.is_err(), "{none:?}");
}

#[test]
fn settings_of_the_run_that_are_not_understood_give_no_advice() {
    let mut snapshot = process();
    let mut with = |settings: &str| {
        snapshot.process.ranks.insert(VARIABLE.to_owned(), settings.to_owned());
        streams().on_device(&snapshot, &Question::default())
    };
    let found = with("backend:cudaMallocAsync");
    assert!(found.refusal.is_some_and(|why| why.contains("not modelled")));
    assert!(found.rows.is_empty());
    let found = with("expandable_segments:True");
    assert_eq!(
        (found.ignored.as_deref(), found.refusal),
        (Some("expandable_segments:True"), None)
    );
    let wrong = Question {
        settings: vec!["max_split_size_mb:many".to_owned()],
        ..Question::default()
    };
    snapshot.process.ranks.clear();
    let (timeline, stacks) = (streams().timeline(), CallStacks::of(&snapshot));
    assert!(WhatIf::of(&snapshot, &Allocations::default(), &timeline, &stacks, &wrong).is_err());
}
