use super::*;
use crate::sample::{MAIN, MIB, Sample};
use crate::snapshot::{Failed, Mark};
use crate::timeline::{Event, Op, Site};

mod recorded;

/// Sites of a log: segments, blocks, blocks of an arena of the program; memory of GPU 1.
const SEGMENT: u32 = 0;
const BLOCK: u32 = 1;
const ARENA: u32 = 2;
const ON_OTHER: u32 = 3;

const OTHER_BLOCK: u32 = 4;

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
        let site = |kind, domain: Option<&str>, device| Site {
            stack: None,
            kind,
            device: Some(device),
            domain: domain.map(str::to_owned),
            api: String::new(),
        };
        let sites = vec![
            site(Kind::Device, None, 0),
            site(Kind::Tensor, Some("pytorch"), 0),
            site(Kind::Block, Some("arena"), 0),
            site(Kind::Device, None, 1),
            site(Kind::Tensor, Some("pytorch"), 0),
        ];
        Timeline::new(0, 1 << 40, sites, self.0)
    }

    fn trace(self, snapshot: &Snapshot) -> Trace {
        let (timeline, stacks, own) = (self.timeline(), CallStacks::of(snapshot), Settings::default());
        let traces = Trace::of_devices(snapshot, &Allocations::default(), &timeline, &stacks, &own, u64::MAX);
        traces.expect("a whole log").remove(0)
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

/// A request to the driver or to the allocator that failed just before the event of this number.
fn failed(kind: Kind, mib: u64, before_event: u64) -> Failed {
    Failed {
        bytes: mib * MIB,
        count: 1,
        kind,
        api: String::new(),
        device: Some(0),
        error: 2,
        thread: 0,
        stack: None,
        stream: None,
        first_ns: 1000 * before_event - 500,
        last_ns: 1000 * before_event - 500,
    }
}

const A: u64 = 0x1000_0000;
const B: u64 = 0x8000_0000;
const C: u64 = 0x9000_0000;
const D: u64 = 0xa000_0000;

fn peak(found: &OnDevice, label: &str) -> Option<u64> {
    let of_label = found.predictions.iter().find(|of| of.label == label);
    of_label.map(|of| of.peak_reserved_bytes / MIB)
}

/// Two streams that need 40 MiB in turns, and then 60.
fn streams() -> Log {
    let turn = |log: Log, at, mib| log.segment(at, mib).block(at, mib).free(at, mib);
    let log = turn(turn(Log::default(), A, 40), B, 40);
    turn(turn(log, C, 60), D, 60)
}

#[test]
fn a_segment_that_did_not_serve_a_request_for_which_it_had_room_is_of_another_stream() {
    let (snapshot, question) = (process(), Question::default());
    let trace = streams().trace(&snapshot);
    assert!(trace.passed_over.contains(&A));
    assert_eq!(
        (trace.classes(Conflicts::None), trace.classes(Conflicts::NewSegments)),
        (vec![0, 0, 0, 0], vec![0, 1, 0, 1])
    );
    let found = streams().on_device(&snapshot, &question);
    assert_eq!((found.error_bytes, found.pools, &found.no_advice), (0, 2, &None));
    assert_eq!(
        (peak(&found, "as recorded"), peak(&found, "all requests on one stream")),
        (Some(200), Some(100))
    );
    // A block that lies in it later: it waited, and the stream may be the same.
    let used = streams().block(A, 40).block(C, 60).trace(&snapshot);
    assert!(used.passed_over.is_empty());
}

#[test]
fn pools_that_would_explain_any_run_prove_nothing() {
    // Each segment is a pool of its own.
    let log = |turns: u64| {
        (0..turns).fold(Log::default(), |log, nth| {
            let at = A + nth * 64 * MIB;
            log.segment(at, 40).block(at, 40).free(at, 40)
        })
    };
    for turns in [2, 17] {
        let found = log(turns).on_device(&process(), &Question::default());
        assert_eq!((found.error_bytes, u64::from(found.pools)), (0, turns));
        assert!(
            found
                .no_advice
                .is_some_and(|why| why.contains("would reproduce any run"))
        );
        assert!(found.predictions.is_empty());
    }
}

#[test]
fn the_explanation_that_needs_least_is_taken() {
    // A request is served from 60 MiB although 40 are free. Nothing reserved tells that these are of two pools.
    let log = Log::default().segment(A, 40).block(A, 40).segment(B, 60).block(B, 60);
    let log = log.free(A, 40).free(B, 60).block(B, 30);
    assert_eq!(log.on_device(&process(), &Question::default()).pools, 1);
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
fn segments_with_blocks_of_one_line_are_of_one_stream() {
    // Two lines, each on a stream of its own. Only the segments of 40 MiB show that these are two.
    let at = |nth: u64| A + nth * 0x1000_0000;
    let turn = |log: Log, nth, site, mib| {
        let log = log.segment(at(nth), mib).event(Op::Allocated, site, at(nth), mib * MIB);
        log.event(Op::Freed, site, at(nth), mib * MIB)
    };
    let lines = [BLOCK, OTHER_BLOCK];
    let log = turn(turn(Log::default(), 0, BLOCK, 40), 1, OTHER_BLOCK, 40);
    let log = (2..8).fold(log, |log, nth| {
        turn(log, nth, lines[nth as usize / 2 % 2], 40 + 10 * nth)
    });
    let trace = log.trace(&process());
    assert_eq!(trace.classes(Conflicts::NewSegments), [0, 1, 1, 1, 0, 0, 1, 1]);
}

#[test]
fn a_block_that_fills_its_range_may_be_just_too_small_to_be_left_whole() {
    // Two blocks of 32 MiB in turns. With requests of 31.5 MiB, max_split_size_mb:32 never uses the first segment again.
    let log = Log::default().segment(A, 32).block(A, 32).free(A, 32);
    let found = log.block(A, 32).free(A, 32).on_device(&process(), &Question::default());
    assert_eq!(
        (peak(&found, "as recorded"), peak(&found, "max_split_size_mb:32")),
        (Some(32), Some(64))
    );
    let unsplit = found.predictions.iter().find(|of| of.label == "max_split_size_mb:32");
    assert_eq!(unsplit.map(|of| of.least_peak_reserved_bytes), Some(32 * MIB));
    // The rest of the range was split off, so the size is that of the request.
    let log = Log::default()
        .segment(A, 64)
        .block(A, 64)
        .free(A, 64)
        .block(A, 32)
        .free(A, 32);
    let found = log.block(A, 32).free(A, 32).on_device(&process(), &Question::default());
    assert_eq!(peak(&found, "max_split_size_mb:32"), Some(96));
    // Once the size was split off, blocks of this size that fill a range are of such requests too.
    let rest = A + 32 * MIB;
    let log = Log::default().segment(A, 64).block(A, 64).free(A, 64).block(A, 32);
    let log = log.block(rest, 32).free(rest, 32).block(rest, 32);
    let found = log.on_device(&process(), &Question::default());
    assert_eq!(peak(&found, "max_split_size_mb:32"), Some(128));
}

#[test]
fn segments_given_back_by_the_program_are_given_back_under_each_setting() {
    let log = Log::default().segment(A, 40).block(A, 40).free(A, 40).give_back(A, 40);
    let found = log
        .segment(B, 80)
        .block(B, 80)
        .on_device(&process(), &Question::default());
    assert_eq!((found.error_bytes, found.of.recorded_peak_bytes), (0, 80 * MIB));
    let all = &found.predictions;
    assert!(all.iter().all(|of| of.peak_reserved_bytes == 80 * MIB), "{all:#?}");
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
    snapshot.failed.push(failed(Kind::Device, 80, 4));
    let trace = log().trace(&snapshot);
    assert!(trace.was_forced);
    let found = log().on_device(&snapshot, &Question::default());
    assert_eq!(found.error_bytes, 0);
    let all = &found.predictions;
    assert!(all.iter().all(|of| of.peak_reserved_bytes == 80 * MIB), "{all:#?}");
    assert!(
        all.iter()
            .any(|of| of.label.starts_with("garbage_collection_threshold"))
    );
}

#[test]
fn between_equal_requests_that_failed_only_what_is_followed_by_one_is_given_back_by_force() {
    // The program empties the cache before event 4; equal requests failed before event 1 and after the last one.
    let log = || {
        let log = Log::default().segment(A, 40).block(A, 40).free(A, 40).give_back(A, 40);
        log.segment(B, 80).block(B, 80).free(B, 80).give_back(B, 80)
    };
    let trace_of = |count, mib, last| {
        let mut snapshot = process();
        snapshot.failed.push(Failed {
            count,
            last_ns: last,
            ..failed(Kind::Device, mib, 1)
        });
        log().trace(&snapshot)
    };
    assert!(!trace_of(3, 100, 100_000).was_forced);
    // The call is made again after the cache was given back.
    assert!(trace_of(3, 80, 100_000).was_forced);
    // The times of both failures are known.
    assert!(!trace_of(2, 80, 100_000).was_forced);
    // Its last failure is that before event 8.
    assert!(trace_of(2, 100, 7_500).was_forced);
}

#[test]
fn memory_of_an_arena_of_the_program_is_no_segment() {
    let log = Log::default().segment(A, 40).event(Op::Allocated, ARENA, A, MIB);
    let found = log
        .segment(B, 20)
        .block(B, 2)
        .on_device(&process(), &Question::default());
    assert_eq!(
        (found.of.recorded_peak_bytes, found.error_bytes, found.no_advice),
        (20 * MIB, 0, None)
    );
}

#[test]
fn requests_after_a_segment_is_gone_with_its_blocks_are_left_out() {
    let log = Log::default().segment(A, 20).block(A, 2).give_back(A, 20);
    let found = log.segment(B, 20).block(B, 4).block(B + 4 * MIB, 4);
    let found = found.on_device(&process(), &Question::default());
    assert_eq!((found.of.allocations, found.of.cut_off_ns), (1, Some(3000)));
}

#[test]
fn what_the_driver_gives_beside_segments_is_known_at_each_time_even_without_a_device() {
    let (snapshot, log) = (process(), streams());
    let events: Vec<Event> = log.0.iter().filter(|event| event.site == SEGMENT).copied().collect();
    let mut timeline = log.timeline();
    // The driver has its memory before the allocator has its segment, and a context of 100 MiB.
    let context = Event {
        time_ns: 8,
        bytes: 100 * MIB,
        ..events[0]
    };
    let before = events.iter().map(|event| Event {
        time_ns: event.time_ns - 8,
        ..*event
    });
    let site = Site {
        kind: Kind::Segment,
        device: None,
        ..timeline.memory.sites[0].clone()
    };
    timeline.segments = Timeline::new(0, 0, vec![site], [context].into_iter().chain(before)).memory;
    let (stacks, question) = (CallStacks::of(&snapshot), Question::default());
    let whatif = WhatIf::of(&snapshot, &Allocations::default(), &timeline, &stacks, &question);
    let found = whatif.expect("a whole log").devices.remove(0);
    assert_eq!(
        (found.of.other_peak_bytes, found.of.other_is_complete),
        (100 * MIB, true)
    );
}

#[test]
fn a_device_needs_room_for_the_segments_and_everything_else_at_each_time() {
    // 100 MiB of the program are gone when the segment of 80 is taken.
    let log = || {
        let log = Log::default().event(Op::Allocated, ON_OTHER, A, 900 * MIB);
        let log = log.segment(A, 100).segment(C, 20).block(C, 2).give_back(A, 100);
        log.segment(B, 80).block(B, 80)
    };
    let mut snapshot = process();
    snapshot.devices.push(Sample::new().finish(0, 0).devices[0].clone());
    let fits = |mib| {
        let question = Question {
            device_memory: Some(mib * MIB),
            ..Question::default()
        };
        let found = log().on_device(&snapshot, &question);
        assert_eq!(
            (found.of.other_peak_bytes, found.of.other_is_complete),
            (100 * MIB, false)
        );
        found.predictions[0].fits_device
    };
    assert_eq!((fits(120), fits(119)), (Some(true), Some(false)));
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
    // The driver's call that failed, and then the request.
    snapshot.failed.push(failed(Kind::Device, 60, 30));
    snapshot.failed.push(failed(Kind::Tensor, 60, 30));
    let question = Question {
        failed_request: true,
        ..Question::default()
    };
    let found = log.on_device(&snapshot, &question);
    assert_eq!(
        (found.error_bytes, found.failed_bytes, found.no_advice.as_deref()),
        (0, Some(60 * MIB), None)
    );
    let fit = |settings: &str| {
        let mut all = found.predictions.iter();
        all.find(|of| of.settings.as_deref() == Some(settings))?.failed_request
    };
    assert_eq!(found.predictions[0].failed_request, Some(FailedRequest::Fails));
    // Pages of 20 MiB of which 30 are free: one each is given back, and three serve the request.
    assert_eq!(fit("expandable_segments:True"), Some(FailedRequest::Fits));
    assert_eq!(
        found.predictions[found.recommended[0]].settings.as_deref(),
        Some("expandable_segments:True")
    );
}

#[test]
fn the_cache_can_be_given_back_at_the_marks_where_this_gives_most() {
    let mut snapshot = process();
    for (time_ns, name) in [
        (500, "begin"),
        (3500, "first"),
        (6500, "second"),
        (9500, "third"),
        (12_500, "end"),
    ] {
        let (name, thread) = (name.to_owned(), 0);
        snapshot.marks.push(Mark { time_ns, name, thread });
    }
    let found = streams().block(A, 40).on_device(&snapshot, &Question::default());
    let labels: Vec<&str> = found
        .predictions
        .iter()
        .filter_map(|of| of.label.strip_prefix("empty_cache() at mark:"))
        .collect();
    assert_eq!((labels, found.marks_left_out), (vec!["end", "third", "second"], 2));
    assert_eq!(peak(&found, "empty_cache() at mark:third"), Some(140));
}

#[test]
fn settings_that_are_tried_have_one_row_each() {
    let tried = [
        "max_split_size_mb:32",
        "roundup_power2_divisions:2",
        "roundup_power2_divisions:2",
        "",
    ];
    let question = Question {
        settings: tried.map(str::to_owned).into(),
        ..Question::default()
    };
    let found = streams().on_device(&process(), &question);
    for (text, rows) in [
        ("max_split_size_mb:32", 1),
        ("roundup_power2_divisions:2", 1),
        ("default", 0),
    ] {
        let with_it = found.predictions.iter().filter(|of| of.label == text);
        assert_eq!(with_it.count(), rows, "{text}");
    }
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
    assert!(found.no_advice.is_some_and(|why| why.contains("not modelled")));
    assert!(found.predictions.is_empty());
    let found = with("expandable_segments:True");
    assert_eq!(
        (found.ignored.as_deref(), found.no_advice),
        (Some("expandable_segments:True"), None)
    );
}

#[test]
fn a_setting_without_which_alone_the_run_is_reproduced_was_ignored() {
    let mut snapshot = process();
    let settings = "max_split_size_mb:32".to_owned();
    snapshot.process.ranks.insert(VARIABLE.to_owned(), settings);
    let whole = || Log::default().segment(A, 80).block(A, 80).free(A, 80);
    // The block of 80 MiB is split, as it is by default.
    let found = whole().block(A, 40).on_device(&snapshot, &Question::default());
    assert_eq!(
        (found.ignored.as_deref(), found.error_bytes, found.no_advice.as_deref()),
        (Some("max_split_size_mb:32"), 0, None)
    );
    assert_eq!(peak(&found, "max_split_size_mb:32"), None, "it was tried already");
    let found = whole()
        .segment(B, 40)
        .block(B, 40)
        .on_device(&snapshot, &Question::default());
    assert_eq!((found.ignored, found.error_bytes), (None, 0));
    let found = whole()
        .segment(B, 60)
        .block(B, 40)
        .on_device(&snapshot, &Question::default());
    assert_eq!(
        (found.ignored, found.no_advice.is_some()),
        (None, true),
        "neither explains it"
    );
}

#[test]
fn a_threshold_without_a_limit_is_reported() {
    let mut sample = Sample::new().running();
    let stack = sample.stack(&[MAIN]);
    sample.holds(Kind::Tensor, "CUDACachingAllocator", MIB, 1, stack);
    let mut snapshot = sample.finish(0, 0);
    let mut said = |settings: &str| {
        snapshot.process.ranks.insert(VARIABLE.to_owned(), settings.to_owned());
        without_limit(&snapshot)
    };
    let threshold = "garbage_collection_threshold:0.6";
    let part =
        "garbage_collection_threshold:0.6 in PYTORCH_CUDA_ALLOC_CONF has no effect unless the program sets a limit";
    let found = said(threshold).expect("a sentence");
    assert!(found.starts_with(part), "{found}");
    assert_eq!(said(&format!("{threshold},per_process_memory_fraction:0.9")), None);
    assert_eq!(said(""), None);
}

/// vLLM#41268: converting the weights of experts leaves a free segment of 530 MiB, in which a weight of 270 MiB is placed for good.
#[test]
fn weights_placed_in_segments_of_temporary_copies_get_a_setting_that_avoids_it() {
    const LAYERS: u64 = 8;
    let log = (0..LAYERS).fold(Log::default(), |log, layer| {
        let copy = A + layer * 0x1_0000_0000;
        let weight = copy + 0x8000_0000;
        let log = log
            .segment(copy, 530)
            .block(copy, 530)
            .segment(weight, 530)
            .block(weight, 530);
        log.free(copy, 530).block(copy, 270)
    });
    let found = log.on_device(&process(), &Question::default());
    assert_eq!((found.error_bytes, &found.no_advice), (0, &None));
    // 260 MiB of each segment are too small for anything.
    assert_eq!(found.of.recorded_peak_bytes / MIB, LAYERS * (530 + 270 + 260));
    assert_eq!(peak(&found, "max_split_size_mb:32"), Some(LAYERS * (530 + 270) + 530));
    // As vLLM does since then. The 260 MiB are as useless in an expandable segment.
    let best = &found.predictions[found.recommended[0]].label;
    assert!(best.starts_with("max_split_size_mb"), "{best}");
}

#[test]
fn the_version_decides_which_variable_is_read_and_is_said() {
    let mut snapshot = process();
    let settings = "expandable_segments:True".to_owned();
    snapshot
        .process
        .ranks
        .insert("PYTORCH_ALLOC_CONF".to_owned(), settings.clone());
    let mut of = |version: &str| {
        snapshot.process.packages.insert("torch".to_owned(), version.to_owned());
        let (timeline, stacks) = (streams().timeline(), CallStacks::of(&snapshot));
        let whatif = WhatIf::of(
            &snapshot,
            &Allocations::default(),
            &timeline,
            &stacks,
            &Question::default(),
        );
        let whatif = whatif.expect("a whole log");
        (whatif.devices[0].settings.clone(), whatif.modelled_as, whatif.notes)
    };
    let (read, _, notes) = of("2.10.0");
    assert!(read.starts_with(&settings) && notes.is_empty(), "{read} {notes:?}");
    assert_eq!(of("2.9.1+cu128").0, "");
    let (_, treated_as, notes) = of("2.15.0");
    assert_eq!(treated_as, "2.12");
    assert!(notes[0].contains("2.15.0 is treated as 2.12"), "{notes:?}");
    // A key that the run's version does not know cannot be tried.
    snapshot
        .process
        .packages
        .insert("torch".to_owned(), "2.10.0".to_owned());
    let question = Question {
        settings: vec!["large_segment_size_mb:64".to_owned()],
        ..Question::default()
    };
    let (timeline, stacks) = (streams().timeline(), CallStacks::of(&snapshot));
    let refused = WhatIf::of(&snapshot, &Allocations::default(), &timeline, &stacks, &question);
    assert!(refused.is_err_and(|why| why.contains("PyTorch 2.10 does not know large_segment_size_mb")));
}
