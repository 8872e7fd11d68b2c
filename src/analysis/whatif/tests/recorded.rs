//! What the recording of a run tells: settings that the program makes, private pools, memory of other allocators, lower bounds.

use super::*;
use crate::job_variables::{SET_BY_PROGRAM, SET_MOST};
use crate::sample::FrameText;
use crate::snapshot::{Allocation, Call, Counter};

#[test]
fn settings_that_the_program_makes_stand_in_the_place_of_those_of_the_environment() {
    let mut snapshot = process();
    let stated = |snapshot: &Snapshot| {
        let Stated {
            source,
            text,
            is_changed,
            ..
        } = Stated::of(snapshot);
        (source, text, is_changed)
    };
    let environment = "expandable_segments:True,max_split_size_mb:64";
    snapshot
        .process
        .ranks
        .insert(VARIABLE.to_owned(), environment.to_owned());
    let mut called = |lines: &str| {
        snapshot
            .process
            .ranks
            .insert(SET_BY_PROGRAM.to_owned(), lines.to_owned());
        stated(&snapshot)
    };
    // PyTorch reads the variable by the same function.
    assert_eq!(called(environment), (Some(VARIABLE), environment.to_owned(), false));
    // A call sets the threshold, the divisions and the largest size that is split to their defaults, and nothing else.
    let text = "expandable_segments:True,garbage_collection_threshold:0.8".to_owned();
    let called_once = called(&format!("{environment}; garbage_collection_threshold:0.8"));
    assert_eq!(called_once, (Some(CALL), text, false));
    let changed = called("expandable_segments:False; roundup_power2_divisions:4");
    assert_eq!(
        changed,
        (
            Some(CALL),
            "expandable_segments:False,roundup_power2_divisions:4".to_owned(),
            true
        )
    );
    let found = streams().on_device(&snapshot, &Question::default());
    assert_eq!(
        (found.variable.as_deref(), found.no_advice, found.ignored),
        (Some(CALL), None, None)
    );
    // PyTorch's own call is one of those that are recorded; further ones may lack.
    let many = [environment; SET_MOST].join("; ");
    (snapshot.process.ranks).insert(SET_BY_PROGRAM.to_owned(), many);
    let found = streams().on_device(&snapshot, &Question::default());
    assert!(found.no_advice.is_some_and(|why| why.contains("16 times")));
}

#[test]
fn blocks_in_memory_of_another_allocator_are_left_out_and_counted() {
    let log = Log::default().segment(A, 20).block(A, 2).block(D, 30).free(D, 30);
    let found = log.block(A + 2 * MIB, 4).on_device(&process(), &Question::default());
    assert_eq!((found.of.allocations, found.of.elsewhere), (2, 1));
    assert_eq!((found.of.recorded_peak_bytes, found.error_bytes), (20 * MIB, 0));
    assert_eq!((found.of.peak_live_bytes, found.no_advice), (6 * MIB, None));
}

#[test]
fn segments_taken_while_a_graph_is_captured_serve_no_other_requests() {
    let call = Call {
        pool: Some(1),
        ..Call::new(Kind::Device, "", Some(0), 0)
    };
    let mut last = Allocations::default();
    last.push(Allocation {
        address: A,
        bytes: 40 * MIB,
        requested: 40 * MIB,
        time_ns: 1000,
        stack: None,
        call: &call,
    });
    // The graph's segment is idle when the program needs as much, of the same line.
    let log = || {
        Log::default()
            .segment(A, 40)
            .block(A, 40)
            .free(A, 40)
            .segment(B, 20)
            .block(B, 2)
    };
    let (snapshot, timeline) = (process(), log().timeline());
    let (stacks, question) = (CallStacks::of(&snapshot), Question::default());
    let of = |last: &Allocations| {
        let own = Settings::default();
        let traces = Trace::of_devices(&snapshot, last, &timeline, &stacks, &own, u64::MAX);
        let classes = traces.expect("a whole log")[0].classes(Conflicts::None);
        let whatif = WhatIf::of(&snapshot, last, &timeline, &stacks, &question).expect("a whole log");
        (
            classes,
            whatif.devices[0].error_bytes,
            whatif.devices[0].no_advice.is_none(),
        )
    };
    assert_eq!(of(&last), (vec![1, 0], 0, true));
    // Without the capture, two streams may explain it, as they may any run with two segments.
    assert_eq!(of(&Allocations::default()), (vec![0, 0], 0, false));
}

#[test]
fn a_plan_that_knows_all_lives_places_the_largest_blocks_first() {
    // 10 and 30 MiB, of which the larger one is freed; in its place, 20 and 10; an allocator that has placed 10 after 10 does worse.
    let log = Log::default()
        .segment(A, 80)
        .block(A, 10)
        .block(A + 10 * MIB, 30)
        .free(A, 10);
    let log = log
        .block(A + 40 * MIB, 20)
        .free(A + 10 * MIB, 30)
        .block(A + 10 * MIB, 25);
    let found = log.on_device(&process(), &Question::default());
    assert_eq!((found.of.peak_live_bytes / MIB, found.of.planned_bytes / MIB), (50, 50));
    // Largest first is not always best: 10 fits only above the second 20, which is above the first.
    let log = Log::default()
        .segment(A, 80)
        .block(A, 20)
        .block(A + 20 * MIB, 20)
        .free(A, 20);
    let log = log.block(A, 10).free(A + 20 * MIB, 20).block(A + 20 * MIB, 25);
    let found = log.on_device(&process(), &Question::default());
    assert_eq!((found.of.peak_live_bytes / MIB, found.of.planned_bytes / MIB), (40, 50));
}

#[test]
fn a_request_that_failed_although_the_driver_refused_nothing_shows_a_limit_of_the_program() {
    let log = || Log::default().segment(A, 40).block(A, 40).free(A, 40);
    let question = Question {
        failed_request: true,
        ..Question::default()
    };
    let mut snapshot = process();
    snapshot.failed.push(failed(Kind::Tensor, 60, 4));
    assert!(log().on_device(&snapshot, &question).of.limited_by_program);
    let mut driver = failed(Kind::Device, 60, 4);
    (driver.first_ns, driver.last_ns) = (driver.first_ns - 100, driver.last_ns - 100);
    snapshot.failed.push(driver);
    assert!(!log().on_device(&snapshot, &question).of.limited_by_program);
}

#[test]
fn of_three_pools_the_two_that_gain_most_as_one_have_a_row() {
    // Three streams in turns: 100, 100 and 20 MiB, each of which needs its memory alone.
    let at = |nth: u64| A + nth * 0x1000_0000;
    let turn = |log: Log, nth, mib| log.segment(at(nth), mib).block(at(nth), mib).free(at(nth), mib);
    let sizes = [100, 100, 100, 120, 120, 120];
    let log = (0..6).fold(Log::default(), |log, nth| turn(log, nth, sizes[nth as usize]));
    let found = log.on_device(&process(), &Question::default());
    assert_eq!((found.pools, &found.no_advice), (3, &None));
    let pair = found
        .predictions
        .iter()
        .find(|of| of.label.starts_with("one pool for two"));
    assert_eq!(pair.map(|of| of.peak_reserved_bytes / MIB), Some(440));
    assert_eq!(peak(&found, "all requests on one stream"), Some(220));
}

#[test]
fn blocks_of_expandable_segments_are_known_by_the_range_of_addresses_before_them() {
    const RUNTIME: FrameText = ("cuMemCreate", "", "/usr/lib/libcuda.so.1");
    const CACHING: FrameText = (
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long)",
        "",
        "/v/torch/lib/libc10_cuda.so",
    );
    const NCCL: FrameText = ("ncclMemAlloc", "", "/v/nccl/lib/libnccl.so.2");
    let mut sample = Sample::new().running();
    let [ours, of_nccl] = [
        sample.stack(&[RUNTIME, CACHING]),
        sample.stack(&[RUNTIME, NCCL, CACHING]),
    ];
    let mut snapshot = sample.finish(0, 0);
    snapshot.devices.truncate(1);
    (snapshot.failed, snapshot.marks) = (Vec::new(), Vec::new());
    // Address ranges have no bytes. NCCL's memory is of a MemPool.
    let log = Log::default()
        .event(Op::Allocated, 0, A, 0)
        .event(Op::Allocated, 1, 7, 20 * MIB)
        .block(A, 12);
    let log = log
        .event(Op::Allocated, 3, C, 0)
        .event(Op::Allocated, 4, 8, 40 * MIB)
        .block(C, 30);
    let log = log.block(A + 12 * MIB, 4);
    let tensors = Log::default().timeline().memory.sites[1].clone();
    let site = |kind, stack| Site {
        kind,
        stack: Some(stack),
        domain: None,
        ..tensors.clone()
    };
    let sites = vec![
        site(Kind::Reserved, ours),
        site(Kind::Physical, ours),
        tensors.clone(),
        site(Kind::Reserved, of_nccl),
        site(Kind::Physical, of_nccl),
    ];
    // Blocks have the number of another site above.
    let number = |event: &Event| {
        if event.site == BLOCK && event.address >= A {
            2
        } else {
            event.site
        }
    };
    let events: Vec<Event> = log
        .0
        .iter()
        .map(|event| Event {
            site: number(event),
            ..*event
        })
        .collect();
    let timeline = Timeline::new(0, 1 << 40, sites, events);
    let (stacks, question) = (CallStacks::of(&snapshot), Question::default());
    let whatif = WhatIf::of(&snapshot, &Allocations::default(), &timeline, &stacks, &question);
    let found = whatif.expect("a whole log").devices.remove(0);
    assert_eq!((found.of.allocations, found.of.elsewhere), (2, 1));
    assert_eq!(
        (found.of.recorded_peak_bytes, found.error_bytes, found.no_advice),
        (20 * MIB, 0, None)
    );
}

#[test]
fn an_idle_segment_that_is_too_small_or_too_large_to_be_split_for_a_later_request_is_unfit() {
    let log = || {
        Log::default()
            .segment(A, 40)
            .block(A, 40)
            .free(A, 40)
            .segment(B, 60)
            .block(B, 60)
    };
    let unfit = |log: Log, own: &str| {
        let (snapshot, timeline) = (process(), log.timeline());
        let (stacks, own) = (
            CallStacks::of(&snapshot),
            Settings::parse(own, version::NEWEST).expect("settings"),
        );
        let traces = Trace::of_devices(&snapshot, &Allocations::default(), &timeline, &stacks, &own, u64::MAX);
        let trace = traces.expect("a whole log").remove(0);
        assert!(trace.passed_over.is_empty());
        trace.unfit.into_iter().collect::<Vec<u64>>()
    };
    assert_eq!(unfit(log(), ""), [A]);
    // Requests before it was idle, or that needed no new memory, or one that it served since.
    assert_eq!(unfit(log().free(B, 60).block(B, 50), ""), [A]);
    assert_eq!(unfit(log().free(B, 60), ""), [A]);
    assert!(unfit(log().block(A, 40), "").is_empty());
    // Of 40 MiB, nothing is split off for 30.
    let small = || {
        Log::default()
            .segment(A, 40)
            .block(A, 40)
            .free(A, 40)
            .segment(B, 30)
            .block(B, 30)
    };
    assert_eq!(unfit(small(), "max_split_size_mb:32"), [A]);
}

#[test]
fn segments_that_differ_are_an_error_even_if_they_have_as_many_bytes() {
    // PyTorch takes segments of 20 MiB for both requests: as many bytes after the second one.
    let log = Log::default().segment(A, 10).block(A, 5).segment(B, 30).block(B, 20);
    let found = log.on_device(&process(), &Question::default());
    assert_eq!((found.of.recorded_peak_bytes, found.error_bytes), (40 * MIB, 40 * MIB));
    assert!(found.no_advice.is_some());
}

#[test]
fn other_pools_of_the_run_are_named_as_not_modelled() {
    let notes = |snapshot: &Snapshot| {
        let (timeline, stacks) = (streams().timeline(), CallStacks::of(snapshot));
        let (last, question) = (Allocations::default(), Question::default());
        WhatIf::of(snapshot, &last, &timeline, &stacks, &question)
            .expect("a whole log")
            .notes
    };
    let mut snapshot = process();
    // Pages of vLLM lie in blocks of PyTorch.
    snapshot.domains.push("vLLM".to_owned());
    assert!(notes(&snapshot).is_empty());
    snapshot.domains.extend(["rmm".to_owned(), "cupy".to_owned()]);
    assert_eq!(notes(&snapshot), ["not modelled: the pools of CuPy, RMM"]);
    let counter = Counter {
        kind: Kind::Async,
        total_count: 1,
        ..snapshot.counters[0].clone()
    };
    snapshot.counters.push(counter);
    assert_eq!(
        notes(&snapshot),
        ["not modelled: the pools of CUDA (cudaMallocAsync), CuPy, RMM"]
    );
}
