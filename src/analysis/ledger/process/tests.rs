//! The figures were measured on one H200 with driver 580.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::analysis::groups::Groups;
use crate::analysis::ledger::{DeviceLedger, Ledger};
use crate::point::Point;
use crate::sample::{FrameText, GIB, MAIN, MIB, PYTHON, RUNTIME, Sample};
use crate::snapshot::{AtPeak, Context, End, EndOf, OtherProcesses, Total};

mod churn;
mod pools;

const KIB: u64 = 1 << 10;
const KERNEL: FrameText = ("at::native::fill_kernel_cuda", "", "/v/torch/lib/libtorch_cuda.so");
const STEP: FrameText = ("step", "/home/me/train.py:212", PYTHON);
/// The driver's own memory for one context, and for the device.
const OWN: u64 = 8 * MIB + 832 * KIB;
const ALONE: Option<OtherProcesses> = Some(OtherProcesses { bytes: 0, count: 0 });

fn ledger<R>(sample: &Sample, check: impl FnOnce(&DeviceLedger) -> R) -> R {
    let stacks = CallStacks::of(&sample.0);
    check(&Ledger::of(&sample.0, &stacks, &Groups::of(&sample.0, &stacks)).devices[0])
}

/// What, bytes and count of each line, and whether it is exact.
fn lines(sample: &Sample) -> Vec<(LineKind, u64, u64, bool)> {
    ledger(sample, |device| {
        let lines = device.lines.iter();
        lines
            .map(|line| {
                let bytes = u64::try_from(line.bytes).expect("not negative");
                (line.what, bytes, line.count, line.exact)
            })
            .collect()
    })
}

#[test]
fn a_process_that_allocates_nothing_has_a_context_and_the_pool_for_local_memory() {
    let mut sample = Sample::new().running();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.uses(518 * MIB + OWN, Some(518 * MIB), ALONE);
    assert_eq!(
        lines(&sample),
        [
            (LineKind::LocalMemory, 414 * MIB, 1, true),
            (LineKind::Context, 104 * MIB, 1, true),
            (LineKind::OtherProcesses, 0, 0, true),
            (LineKind::DriverContexts, 5 * MIB + 576 * KIB, 1, false),
            (LineKind::DriverDevice, 3 * MIB + 256 * KIB, 1, false),
        ]
    );
    ledger(&sample, |device| {
        let process = device.process.as_ref().expect("recorded");
        assert_eq!((process.bytes, process.segments), (i128::from(518 * MIB), 17));
        assert_eq!(process.difference, Some(0));
        assert_eq!(device.unexplained, Some(0));
    });
}

#[test]
fn memory_on_gpus_that_the_program_does_not_use_is_not_on_the_one_that_it_uses() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.takes("cuDevicePrimaryCtxRetain", &[RUNTIME, MAIN], &[2 * MIB]);
    sample.0.segments.change_last(|_, call| call.device = None);
    let bytes = |sample: &Sample| ledger(sample, |device| device.process.as_ref().map(|process| process.bytes));
    assert_eq!(bytes(&sample), Some(i128::from(518 * MIB)));
    // If no device is known, all are on the only one.
    for call in sample.0.segments.calls_mut() {
        call.device = None;
    }
    assert_eq!(bytes(&sample), Some(i128::from(520 * MIB)));
}

#[test]
fn a_heap_of_a_context_that_is_gone_is_no_heap() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    let context = |destroyed_ns| Context {
        handle: 0x6666_0000,
        device: Some(0),
        primary: true,
        first_seen_ns: 1,
        destroyed_ns,
        heap_limit: Some(128 * MIB),
    };
    sample.0.contexts = vec![context(Some(2))];
    assert_eq!(heaps(&sample.0, 0, 2, 1), [DEVICE_HEAP]);
    sample.0.contexts.push(context(None));
    assert_eq!(heaps(&sample.0, 0, 2, 1), [130 * MIB]);
}

#[test]
fn a_stack_limit_replaces_the_pool_for_local_memory() {
    for pool in [150, 216, 17046] {
        let mut sample = Sample::new();
        sample.takes_context(MAIN, None);
        sample.takes("cuCtxSetLimit", &[RUNTIME, MAIN], &[pool * MIB]);
        assert_eq!(
            lines(&sample),
            [
                (LineKind::LocalMemory, pool * MIB, 1, true),
                (LineKind::Context, 104 * MIB, 1, true)
            ]
        );
    }
}

#[test]
fn a_launch_that_enlarged_local_memory_is_named_and_marked_as_estimated() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, None);
    let launch = [RUNTIME, KERNEL, STEP];
    sample.takes("cuLaunchKernel", &launch, &[4374 * MIB, 2 * MIB, 10 * MIB]);
    assert_eq!(
        lines(&sample),
        [
            (LineKind::LocalMemory, 4374 * MIB, 1, false),
            (LineKind::DeviceHeap, 10 * MIB, 1, false),
            (LineKind::Code, 2 * MIB, 1, false),
            (LineKind::Context, 104 * MIB, 1, true),
        ]
    );
    ledger(&sample, |device| {
        let [local] = &device.lines[0].parts[..] else {
            panic!("{:?}", device.lines[0])
        };
        assert_eq!(
            (local.name.as_str(), local.place.as_deref()),
            ("step", Some("train.py:212"))
        );
        assert_eq!(local.call, Some("cuLaunchKernel"));
        let [code] = &device.lines[2].parts[..] else {
            panic!("{:?}", device.lines[2])
        };
        assert_eq!((code.name.as_str(), code.bytes), ("libtorch_cuda.so", 2 * MIB));
    });
}

/// Sums by stack as a recording has them: the segments that are live, and this one that was given back.
fn totals(sample: &mut Sample, given_back: u64, function: &str) {
    let mut sums: BTreeMap<Option<usize>, Tally> = BTreeMap::new();
    for segment in &sample.0.segments {
        sums.entry(segment.stack).or_default().add(segment.bytes);
    }
    let is_of = |location: &usize| {
        let symbols = &sample.0.locations[*location].symbols;
        symbols.first().is_some_and(|symbol| symbol.function == function)
    };
    let stack = sample.0.stacks.iter().position(|stack| stack.frames.iter().any(is_of));
    sums.entry(stack).or_default().add(given_back);
    let total = |(stack, tally): (_, Tally)| Total {
        stack,
        kind: Kind::Segment,
        device: Some(0),
        bytes: tally.bytes,
        count: tally.count,
    };
    sample.0.segment_totals = sums.into_iter().map(total).collect();
}

#[test]
fn a_pool_that_the_context_gave_back_says_by_how_much_local_memory_grew() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, None);
    sample.takes("cuLaunchKernel", &[RUNTIME, KERNEL, STEP], &[504 * MIB, 2 * MIB]);
    totals(&mut sample, 414 * MIB, "cuDevicePrimaryCtxRetain");
    assert_eq!(
        lines(&sample),
        [
            (LineKind::LocalMemory, 504 * MIB, 1, true),
            (LineKind::Code, 2 * MIB, 1, true),
            (LineKind::Context, 104 * MIB, 1, true),
        ]
    );
    ledger(&sample, |device| {
        assert_eq!(device.lines[0].parts[0].replaced_bytes, Some(414 * MIB))
    });
    // Large globals may be the pool as well.
    sample.takes("cuModuleLoadData", &[RUNTIME, MAIN], &[300 * MIB]);
    totals(&mut sample, 414 * MIB, "cuDevicePrimaryCtxRetain");
    assert_eq!(lines(&sample)[0], (LineKind::LocalMemory, 504 * MIB, 1, false));
}

#[test]
fn the_segments_at_the_peak_are_listed_by_purpose() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.takes("cuMemAlloc_v2", &[RUNTIME, MAIN], &[]);
    let stacks = sample.0.stacks.len();
    let at = |stack, bytes, count| AtPeak {
        stack: Some(stack),
        kind: Kind::Segment,
        device: Some(0),
        domain: None,
        api: "NV_ESC_RM_ALLOC".to_owned(),
        bytes,
        count,
    };
    sample.0.segments_at_peaks = vec![at(stacks - 1, 900 * MIB, 3), at(stacks - 2, 518 * MIB, 17)];
    ledger(&sample, |device| {
        let at_peak = &device.process.as_ref().expect("recorded").at_peak;
        let parts: Vec<_> = at_peak
            .iter()
            .map(|part| (part.purpose, part.bytes, part.count))
            .collect();
        assert_eq!(
            parts,
            [(Purpose::Linear, 900 * MIB, 3), (Purpose::Context, 518 * MIB, 17)]
        );
    });
}

#[test]
fn globals_of_a_module_are_no_local_memory_while_the_context_has_its_own() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.takes("cuModuleLoadData", &[RUNTIME, MAIN], &[600 * MIB]);
    let of = |what| lines(&sample).into_iter().find(|line| line.0 == what);
    assert_eq!(
        of(LineKind::LocalMemory),
        Some((LineKind::LocalMemory, 414 * MIB, 1, true))
    );
    assert_eq!(of(LineKind::Code), Some((LineKind::Code, 600 * MIB, 1, true)));
}

#[test]
fn a_heap_of_a_limit_that_the_program_set_is_neither_code_nor_local_memory() {
    let of_context = |limit| Context {
        handle: 0x6666_0000,
        device: Some(0),
        primary: true,
        first_seen_ns: 2,
        destroyed_ns: None,
        heap_limit: limit,
    };
    let mut sample = Sample::new();
    sample.0.contexts = vec![of_context(Some(128 * MIB))];
    sample.takes_context(MAIN, None);
    sample.takes("cuLaunchKernel", &[RUNTIME, MAIN], &[504 * MIB, 130 * MIB, 2 * MIB]);
    let of = |sample: &Sample, what| lines(sample).into_iter().find(|line| line.0 == what).map(|line| line.1);
    let heap = |sample: &Sample| of(sample, LineKind::DeviceHeap);
    assert_eq!(heap(&sample), Some(130 * MIB));
    assert_eq!(of(&sample, LineKind::LocalMemory), Some(504 * MIB));
    assert_eq!(of(&sample, LineKind::Code), Some(2 * MIB));
    // Any value may be in a file.
    for limit in [1, u64::MAX, u64::MAX - 4 * MIB, 8 * MIB] {
        sample.0.contexts = vec![of_context(Some(limit))];
        assert_eq!(heap(&sample), None, "{limit}");
    }
}

#[test]
fn a_sum_of_segments_has_no_size_by_which_it_could_be_local_memory_or_a_heap() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.takes("cuLaunchKernel", &[RUNTIME, MAIN], &[10 * MIB]);
    let rows: Vec<_> = sample.0.segments.iter().collect();
    let sum =
        |row: &crate::snapshot::Allocation| rows.iter().filter(|of| of.stack == row.stack).map(|of| of.bytes).sum();
    let of_context = crate::snapshot::Allocation {
        bytes: sum(&rows[0]),
        ..rows[0]
    };
    let sums = [(of_context, 17), (rows[17], 2)];
    sample.0.segments = crate::snapshot::Allocations::summed(sums.into_iter());
    let stacks = CallStacks::of(&sample.0);
    let side = ProcessSide::at_peak(&sample.0, 0, &stacks).expect("segments");
    let shown: Vec<_> = side
        .lines
        .iter()
        .map(|line| (line.what, line.bytes / i128::from(MIB), line.count))
        .collect();
    assert_eq!(shown, [(LineKind::Code, 10, 2), (LineKind::Context, 518, 1)]);
    assert_eq!((side.sum.bytes, side.sum.segments), (i128::from(528 * MIB), 19));
}

#[test]
fn executable_graphs_and_streams_have_lines_with_what_is_kept() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.takes("cuGraphInstantiateWithFlags", &[RUNTIME, MAIN], &[2 * MIB; 110]);
    sample.takes("cuStreamCreateWithPriority", &[RUNTIME, MAIN], &[2 * MIB; 273]);
    sample.takes("cuGreenCtxCreate", &[RUNTIME, MAIN], &[4 * MIB; 27]);
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.has_objects(Kind::GraphExec, 1000, 0, stack);
    sample.has_objects(Kind::Stream, 0, 1000, stack);
    assert_eq!(
        lines(&sample)[1..4],
        [
            (LineKind::Streams, 546 * MIB, 0, true),
            (LineKind::GraphExecs, 220 * MIB, 1000, true),
            (LineKind::GreenContexts, 108 * MIB, 0, true),
        ]
    );
    ledger(&sample, |device| {
        let destroyed: Vec<_> = device.lines[1..4].iter().map(|line| line.destroyed).collect();
        assert_eq!(destroyed, [Some(1000), Some(0), Some(0)]);
    });
}

/// A program that makes green contexts current has a row of each among its contexts; at the peak, objects are not known.
#[test]
fn green_contexts_are_no_contexts_of_their_own_at_the_peak_either() {
    let mut sample = Sample::new();
    let context = |handle, primary| Context {
        heap_limit: None,
        handle,
        device: Some(0),
        primary,
        first_seen_ns: 2,
        destroyed_ns: None,
    };
    let seen = [(0x10, true), (0x20, true), (0x30, true), (0x40, false)];
    sample.0.contexts = seen.map(|(handle, primary)| context(handle, primary)).into();
    assert_eq!(
        contexts(&sample.0, 0, 5),
        2,
        "the primary one and the one that was created"
    );
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.has_objects(Kind::GreenContext, 2, 0, stack);
    let peak = sample.0.at(&Point::Peak).expect("a peak");
    for snapshot in [&sample.0, &peak] {
        assert_eq!(contexts(snapshot, 0, 5), 2);
    }
    assert_eq!(contexts(&sample.0, 0, 1), 1, "before any was seen");
}

/// 613.7 MiB beyond the tensors of a PyTorch process: 104 + 504 + 4 + 1.7 MiB.
#[test]
fn what_pytorch_takes_beyond_its_tensors_is_divided() {
    let mut sample = Sample::new().running();
    sample.takes_context(MAIN, None);
    let launch = [RUNTIME, KERNEL, STEP];
    sample.takes("cuLaunchKernel", &launch, &[504 * MIB, 2 * MIB]);
    let cublas = ("", "", "/v/libcublasLt.so.13");
    sample.takes("cuLibraryGetModule", &[cublas, STEP], &[2 * MIB]);
    sample.takes("cuMemAlloc_v2", &[RUNTIME, MAIN], &[2 * MIB]);
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::Device, "cudaMalloc", 300 * KIB, 1, stack);
    sample
        .0
        .allocations
        .change_last(|row, _| row.address = 0x7f00_0000_0000);
    let process = 614 * MIB;
    sample.uses(process + OWN + MIB, Some(process), ALONE);
    assert_eq!(
        lines(&sample)[..5],
        [
            (LineKind::Program, 300 * KIB, 1, true),
            (LineKind::Rounding, 2 * MIB - 300 * KIB, 1, true),
            (LineKind::LocalMemory, 504 * MIB, 1, false),
            (LineKind::Code, 4 * MIB, 2, false),
            (LineKind::Context, 104 * MIB, 1, true),
        ]
    );
    ledger(&sample, |device| {
        let code: Vec<_> = device.lines[3].parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(code, ["libcublasLt.so.13", "libtorch_cuda.so"]);
        assert_eq!(device.process.as_ref().and_then(|process| process.difference), Some(0));
        assert_eq!(device.unexplained, Some(i128::from(MIB)));
    });
}

#[test]
fn the_drivers_own_memory_includes_that_for_other_processes_and_page_tables() {
    let mut sample = Sample::new().running();
    sample.takes_context(MAIN, Some(414 * MIB));
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::HostPinned, "cudaMallocHost", 3 * GIB, 1, stack);
    let others = OtherProcesses {
        bytes: 518 * MIB,
        count: 1,
    };
    // 14.375 MiB beside two processes, and the page tables.
    let used = 2 * 518 * MIB + 14 * MIB + 384 * KIB + 6 * MIB;
    sample.uses(used, Some(518 * MIB), Some(others));
    assert_eq!(
        lines(&sample)[2..],
        [
            (LineKind::OtherProcesses, 518 * MIB, 1, true),
            (LineKind::DriverContexts, 11 * MIB + 128 * KIB, 2, false),
            (LineKind::DriverDevice, 3 * MIB + 256 * KIB, 1, false),
            (LineKind::PageTables, 6 * MIB, 3, false),
        ]
    );
    ledger(&sample, |device| assert_eq!(device.unexplained, Some(0)));
}

#[test]
fn estimates_never_exceed_what_is_used() {
    let mut sample = Sample::new().running();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.uses(519 * MIB, None, None);
    ledger(&sample, |device| {
        assert_eq!(device.unexplained, Some(0));
        assert_eq!(device.process.as_ref().and_then(|process| process.difference), None);
        assert_eq!(
            device.lines.last().map(|line| (line.what, line.bytes)),
            Some((LineKind::DriverContexts, i128::from(MIB)))
        );
    });
}

#[test]
fn memory_of_another_process_is_beside_the_sum() {
    let mut sample = Sample::new().running();
    sample.takes_context(MAIN, Some(414 * MIB));
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::Ipc, "cudaIpcOpenMemHandle", 300 * MIB, 1, stack);
    sample.0.allocations.change_last(|_, call| call.device = Some(0));
    sample.takes("cuIpcOpenMemHandle_v2", &[RUNTIME, MAIN], &[0]);
    sample.uses(818 * MIB + OWN, Some(818 * MIB), ALONE);
    ledger(&sample, |device| {
        let process = device.process.as_ref().expect("recorded");
        let imported = Tally::new(300 * MIB, 1);
        assert_eq!((process.bytes, process.imported), (i128::from(518 * MIB), imported));
        assert_eq!(process.difference, Some(i128::from(300 * MIB)));
    });
}

#[test]
fn a_duplicate_within_the_process_counts_once() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.takes("cuMemExportToShareableHandle", &[RUNTIME, MAIN], &[20 * MIB]);
    sample.0.segments.change_last(|row, _| row.bytes = 0);
    ledger(&sample, |device| {
        let process = device.process.as_ref().expect("recorded");
        assert_eq!(
            (process.bytes, process.imported),
            (i128::from(518 * MIB), Tally::default())
        );
    });
}

#[test]
fn channels_are_counted_where_they_are_recorded() {
    for (channels, own) in [(4, 7 * MIB + 832 * KIB), (128, 15 * MIB + 576 * KIB)] {
        let mut sample = Sample::new().running();
        sample.takes_context(MAIN, Some(414 * MIB));
        let stack = sample.stack(&[RUNTIME, MAIN]);
        sample.adds(Kind::Channel, &vec![0; channels], stack);
        sample.uses(518 * MIB + own, Some(518 * MIB), ALONE);
        ledger(&sample, |device| {
            assert_eq!(device.unexplained, Some(0), "{channels} channels")
        });
    }
}

#[test]
fn a_script_that_ended_has_the_segments_of_its_end_and_no_ledger_at_other_times() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    let snapshot = &mut sample.0;
    snapshot.segments_freed_after_end = std::mem::take(&mut snapshot.segments);
    snapshot.end = Some(End {
        of: EndOf::Script,
        time_ns: 50_000_000_000,
    });
    // Taken by an exit handler.
    sample.takes("cuStreamCreate", &[RUNTIME, MAIN], &[2 * MIB]);
    sample.0.segments.change_last(|row, _| row.time_ns = 55_000_000_000);
    let at = |point| Sample(sample.0.at(&point).expect("a point"));
    assert_eq!(lines(&at(Point::Exit)), [(LineKind::Streams, 2 * MIB, 0, true)]);
    assert_eq!(
        lines(&at(Point::End)),
        [
            (LineKind::LocalMemory, 414 * MIB, 1, true),
            (LineKind::Context, 104 * MIB, 1, true)
        ]
    );
    assert!(at(Point::Peak).0.segments.is_empty());
}

/// A process that had 518 MiB of the device and has none now.
fn without_segments() -> Sample {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.0.segments = Default::default();
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.has_objects(Kind::Stream, 0, 1, stack);
    let counter = sample.0.object_counters.last_mut().expect("a counter");
    (counter.kind, counter.peak_bytes, counter.peak_ns) = (Kind::Segment, 518 * MIB, 7);
    sample
}

#[test]
fn the_largest_sum_is_known_after_everything_was_given_back() {
    let sample = without_segments();
    ledger(&sample, |device| {
        let process = device.process.as_ref().expect("recorded");
        assert_eq!((process.bytes, process.peak_bytes, process.peak_ns), (0, 518 * MIB, 7));
        assert!(device.lines.is_empty());
    });
}

#[test]
fn blocks_of_a_checkpointed_process_are_on_the_host() {
    let mut sample = without_segments();
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::Device, "cuMemAlloc_v2", 100 * MIB, 1, stack);
    let only = |sample: &Sample| {
        let mut only = None;
        ledger(sample, |device| {
            only = device.lines.last().map(|line| (line.what, line.bytes))
        });
        only.expect("a line")
    };
    let unrecorded = (LineKind::Unrecorded, -i128::from(100 * MIB));
    sample.0.process.state = ProcessState::Ended;
    assert_eq!(only(&sample), unrecorded);
    // Before its end, the driver has not given back everything yet.
    sample.0.taken.at_ns = 5;
    sample.0.taken.point = Some(Point::Time(5));
    assert_eq!(only(&sample), (LineKind::Checkpointed, -i128::from(100 * MIB)));
    sample.0.end = Some(End {
        time_ns: 4,
        of: EndOf::Script,
    });
    assert_eq!(only(&sample), unrecorded);
    (sample.0.taken.point, sample.0.end) = (None, None);
    sample.0.process.state = ProcessState::Running;
    assert_eq!(only(&sample), (LineKind::Checkpointed, -i128::from(100 * MIB)));
    sample.0.losses.lost_segments = 1;
    assert_eq!(only(&sample), unrecorded);
    sample.0.losses.lost_segments = 0;
    // It never had as much, so its memory was not recorded.
    sample.holds(Kind::Device, "cuMemAlloc_v2", 500 * MIB, 1, stack);
    assert_eq!(only(&sample), (LineKind::Unrecorded, -i128::from(600 * MIB)));
}

#[test]
fn what_a_restored_process_took_again_is_not_divided() {
    let mut sample = without_segments();
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::Device, "cuMemAlloc_v2", 100 * MIB, 1, stack);
    // In a thread of the driver.
    sample.takes("", &[], &[100 * MIB, 518 * MIB]);
    let lines = |sample: &Sample| {
        let mut lines = Vec::new();
        ledger(sample, |device| {
            lines = device
                .lines
                .iter()
                .skip(1)
                .map(|line| (line.what, line.bytes))
                .collect()
        });
        lines
    };
    let mib = |bytes: i128| bytes * i128::from(MIB);
    assert_eq!(lines(&sample), [(LineKind::UnnamedCalls, mib(518))]);
    sample.holds(Kind::Device, "cuMemAlloc_v2", 4 * MIB, 1, stack);
    sample.takes("cuMemAlloc_v2", &[RUNTIME, MAIN], &[4 * MIB]);
    assert_eq!(
        lines(&sample),
        [(LineKind::OtherCalls, mib(618)), (LineKind::Unrecorded, mib(-100))]
    );
}

#[test]
fn memory_without_a_recorded_block_has_a_line() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.takes("cuMemAlloc_v2", &[RUNTIME, MAIN], &[4 * MIB]);
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::Physical, "cuMemCreate", 20 * MIB, 1, stack);
    ledger(&sample, |device| {
        let last = device.lines.last().expect("lines");
        assert_eq!((last.what, last.bytes), (LineKind::Unrecorded, -i128::from(16 * MIB)));
        assert_eq!(device.process.as_ref().expect("recorded").bytes, i128::from(522 * MIB));
    });
}

#[test]
fn where_the_drivers_functions_have_no_names_its_memory_is_not_divided() {
    let mut sample = Sample::new();
    sample.takes("", &[RUNTIME, MAIN], &[6 * MIB, 414 * MIB]);
    sample.takes("", &[RUNTIME, MAIN], &[2 * MIB]);
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::Device, "cuMemAlloc_v2", MIB, 1, stack);
    assert_eq!(
        lines(&sample),
        [
            (LineKind::Program, MIB, 1, true),
            (LineKind::UnnamedCalls, 421 * MIB, 3, true)
        ]
    );
    ledger(&sample, |device| {
        assert_eq!(device.process.as_ref().expect("recorded").bytes, i128::from(422 * MIB));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_lines_of_the_process_add_up_to_its_segments(
        segments in proptest::collection::vec((0..9usize, any::<u64>(), any::<bool>()), 1..40),
        blocks in proptest::collection::vec((1..=23u8, prop_oneof![0..1u64 << 24, any::<u64>()], any::<u64>()), 0..20),
    ) {
        let functions = ["cuCtxCreate_v4", "cuCtxSetLimit", "cuMemAlloc_v2", "cuMemCreate", "cuMemAllocAsync", "cuLaunchKernel",
            "cuGraphLaunch", "cuArrayCreate_v2", "", ];
        let mut sample = Sample::new();
        for &(function, bytes, coarse) in &segments {
            let bytes = if coarse { bytes % 64 * 32 * MIB } else { bytes };
            sample.takes(functions[function], &[RUNTIME, MAIN], &[bytes]);
        }
        let stack = sample.stack(&[RUNTIME, MAIN]);
        for (kind, address, bytes) in blocks {
            let kind = Kind::from_number(kind).expect("a kind");
            sample.holds(kind, "any", 0, 1, stack);
            sample.0.allocations.change_last(|row, call| {
                (row.address, row.bytes) = (address, bytes);
                call.device = Some(0);
            });
        }
        ledger(&sample, |device| {
            let sum: i128 = device.lines.iter().filter(|line| line.what.is_of_process()).map(|line| line.bytes).sum();
            prop_assert_eq!(sum, device.process.as_ref().expect("recorded").bytes);
            prop_assert_eq!(device.known, sum);
            Ok(())
        })?;
    }
}

#[test]
fn segments_of_unknown_stacks_and_devices_are_refused() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    let valid = sample.0;
    assert_eq!(valid.validate(), Ok(()));
    let mut unknown_stack = valid.clone();
    unknown_stack.segments.change_last(|row, _| row.stack = Some(99));
    let mut unknown_device = valid.clone();
    unknown_device.segments.change_last(|_, call| call.device = Some(99));
    let mut at_end = valid.clone();
    at_end.segments_freed_after_end = unknown_stack.segments.clone();
    let mut totals = valid;
    totals.segment_totals.push(Total {
        stack: Some(99),
        kind: Kind::Segment,
        device: None,
        bytes: 1,
        count: 1,
    });
    for snapshot in [unknown_stack, unknown_device, at_end, totals] {
        assert!(snapshot.validate().is_err());
    }
}
