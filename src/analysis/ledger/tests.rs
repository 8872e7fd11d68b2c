use proptest::prelude::*;

use super::*;
use crate::kind::Kind;
use crate::sample::{FrameText, GIB, MAIN, MIB, PYTHON, RUNTIME, Sample};
use crate::snapshot::{DeviceUsage, GroupLimits, OtherProcesses};

mod change;
mod segments;

const CACHING: FrameText = (
    "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(int)",
    "",
    "/v/site-packages/torch/lib/libc10_cuda.so",
);
const STEP: FrameText = ("training_step", "/home/me/train.py:212", PYTHON);

/// Adds a PyTorch block at this address.
fn tensor(sample: &mut Sample, address: u64, bytes: u64, stack: usize) {
    sample.holds(Kind::Tensor, "torch", bytes, 1, stack);
    sample.0.allocations.change_last(|block, call| {
        (block.address, block.bytes) = (address, bytes);
        (call.device, call.domain) = (Some(0), Some("pytorch".to_owned()));
    });
}

/// Sets the allocator of the block that was added last.
fn belongs(sample: &mut Sample, kind: Kind, domain: &str) {
    sample.0.allocations.change_last(|_, call| {
        (call.kind, call.domain) = (kind, Some(domain.to_owned()));
    });
}

/// Adds memory of this kind at this address.
fn memory(sample: &mut Sample, kind: Kind, address: u64, bytes: u64, stack: usize) {
    sample.holds(kind, "cudaMalloc", bytes, 1, stack);
    sample.0.allocations.change_last(|record, call| {
        (record.address, call.device) = (address, Some(0));
    });
}

fn usage(used: u64, process: Option<u64>, others: Option<u64>) -> Usage {
    Usage {
        source: "NVML 580".to_owned(),
        devices: vec![DeviceUsage {
            device: 0,
            total_bytes: 140 * GIB,
            used_bytes: used,
            limits: GroupLimits::default(),
            reserved_bytes: MIB,
            process_bytes: process,
            others: others.map(|bytes| OtherProcesses { bytes, count: 1 }),
        }],
        missing: None,
    }
}

fn ledger(snapshot: &Snapshot) -> Ledger<'_> {
    let stacks = CallStacks::of(snapshot);
    Ledger::of(snapshot, &stacks, &Groups::of(snapshot, &stacks))
}

fn lines(ledger: &Ledger) -> Vec<(LineKind, Option<String>, i128)> {
    let lines = ledger.devices[0].lines.iter();
    lines
        .map(|line| (line.what, line.of.map(str::to_owned), line.bytes))
        .collect()
}

fn named(name: &str) -> Option<String> {
    Some(name.to_owned())
}

fn training() -> Sample {
    let mut sample = Sample::new().running();
    let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
    let cublas = sample.stack(&[RUNTIME, ("", "", "/v/libcublas.so.13"), STEP]);
    let own = sample.stack(&[RUNTIME, ("Cache::fill()", "/src/a.cu:1", "/opt/app"), MAIN]);
    memory(&mut sample, Kind::Device, 0x1000_0000, 20 * MIB, pool);
    memory(&mut sample, Kind::Device, 0x3000_0000, 2 * MIB, pool);
    memory(&mut sample, Kind::Device, 0x5000_0000, 32 * MIB, cublas);
    memory(&mut sample, Kind::Device, 0x9000_0000, 5 * MIB, own);
    tensor(&mut sample, 0x1000_0000, 4 * MIB, pool);
    tensor(&mut sample, 0x1000_0000 + 8 * MIB, 2 * MIB, pool);
    tensor(&mut sample, 0x3000_0000, 2 * MIB, pool);
    sample
}

#[test]
fn every_byte_the_driver_counts_has_a_line_or_is_unexplained() {
    let mut sample = training();
    sample.0.usage = Some(usage(700 * MIB, Some(579 * MIB), Some(100 * MIB)));
    let snapshot = sample.finish(0, 0);
    let ledger = ledger(&snapshot);
    let mib = |n: u64| i128::from(n * MIB);
    assert_eq!(
        lines(&ledger),
        [
            (LineKind::Blocks, named("PyTorch"), mib(8)),
            (LineKind::Cached, named("PyTorch"), mib(14)),
            (LineKind::Library, named("cuBLAS"), mib(32)),
            (LineKind::Program, None, mib(5)),
            (LineKind::Context, None, mib(520)),
            (LineKind::OtherProcesses, None, mib(100)),
        ]
    );
    assert_eq!(ledger.devices[0].unexplained, Some(mib(21)));
    assert_eq!((ledger.source, ledger.missing), (Some("NVML 580"), None));
}

#[test]
fn without_the_driver_the_ledger_has_the_records_and_a_reason() {
    let mut sample = training();
    let running = sample.0.clone();
    let ledger_of_running = ledger(&running);
    assert_eq!(ledger_of_running.devices[0].known, i128::from(59 * MIB));
    assert_eq!(ledger_of_running.devices[0].unexplained, None);
    assert!(ledger_of_running.missing.is_some_and(|why| why.contains("not asked")));
    sample.0.process.state = ProcessState::Exited;
    let why = ledger(&sample.0).missing;
    assert!(why.is_some_and(|why| why.contains("the process has ended")));
    sample.0.usage = Some(Usage {
        source: "NVML".to_owned(),
        devices: Vec::new(),
        missing: Some("no such library".to_owned()),
    });
    assert_eq!(ledger(&sample.0).missing.as_deref(), Some("no such library"));
}

#[test]
fn records_beyond_what_the_driver_counts_leave_a_negative_remainder() {
    let mut sample = training();
    sample.0.usage = Some(usage(50 * MIB, Some(40 * MIB), None));
    let ledger = ledger(&sample.0);
    assert_eq!(ledger.devices[0].unexplained, Some(-i128::from(9 * MIB)));
}

#[test]
fn fragmentation_is_the_fraction_of_free_memory_outside_the_largest_run() {
    let snapshot = training().finish(0, 0);
    let ledger = ledger(&snapshot);
    let cache = &ledger.devices[0].caches[0];
    assert_eq!(
        (cache.owner, cache.bytes, cache.live_bytes),
        ("PyTorch", 22 * MIB, 8 * MIB)
    );
    assert_eq!((cache.free_bytes, cache.largest_free_run), (14 * MIB, 10 * MIB));
    assert!((cache.fragmentation - 4.0 / 14.0).abs() < 1e-9);
    assert_eq!(cache.segments[0].blocks, 2);
    assert_eq!(cache.segments[1].largest_free_run, 0);
}

#[test]
fn adjacent_mappings_are_one_segment_and_their_memory_counts_once() {
    let mut sample = Sample::new();
    let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
    for nth in 0..5 {
        memory(&mut sample, Kind::Physical, 0x7700 + nth, 20 * MIB, pool);
        memory(&mut sample, Kind::Mapping, 0x4000_0000 + nth * 20 * MIB, 20 * MIB, pool);
    }
    // Another segment, without blocks; the device of its mapping is unknown.
    memory(&mut sample, Kind::Physical, 0x7800, 2 * MIB, pool);
    memory(&mut sample, Kind::Mapping, 0x9000_0000, 2 * MIB, pool);
    sample.0.allocations.change_last(|_, call| call.device = None);
    // One block over four of the five mappings.
    tensor(&mut sample, 0x4000_0000 + 10 * MIB, 70 * MIB, pool);
    let snapshot = sample.finish(0, 0);
    let ledger = ledger(&snapshot);
    assert_eq!(
        lines(&ledger),
        [
            (LineKind::Blocks, named("PyTorch"), i128::from(70 * MIB)),
            (LineKind::Cached, named("PyTorch"), i128::from(32 * MIB)),
        ]
    );
    let cache = &ledger.devices[0].caches[0];
    assert_eq!((cache.segments.len(), cache.segments[0].bytes), (2, 100 * MIB));
    assert_eq!((cache.segments[1].bytes, cache.segments[1].blocks), (2 * MIB, 0));
    assert!(cache.segments[0].expandable);
    assert_eq!(ledger.pytorch, [Mode::Expandable]);
}

#[test]
fn memory_mapped_by_the_program_under_a_frameworks_blocks_is_the_frameworks() {
    let mut sample = Sample::new();
    let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
    let own = sample.stack(&[RUNTIME, MAIN]);
    // PyTorch's memory, unmapped and mapped again by the program: from the program's own stack, at the same address.
    for nth in 0..2 {
        memory(&mut sample, Kind::Physical, 0x7700 + nth, 20 * MIB, own);
        sample.0.allocations.change_last(|_, call| call.mappings = 1);
        memory(&mut sample, Kind::Mapping, 0x4000_0000 + nth * 64 * MIB, 20 * MIB, own);
    }
    // The program's own memory, mapped and unmapped, without blocks.
    memory(&mut sample, Kind::Physical, 0x7800, 6 * MIB, own);
    sample.0.allocations.change_last(|_, call| call.mappings = 1);
    memory(&mut sample, Kind::Mapping, 0x9000_0000, 6 * MIB, own);
    memory(&mut sample, Kind::Physical, 0x7801, MIB, own);
    // The same memory mapped again, with blocks there too: it still counts once.
    memory(&mut sample, Kind::Mapping, 0xa000_0000, 20 * MIB, own);
    for at in [0x4000_0000, 0x4000_0000 + 64 * MIB, 0xa000_0000] {
        tensor(&mut sample, at, 5 * MIB, pool);
    }
    let snapshot = sample.finish(0, 0);
    let ledger = ledger(&snapshot);
    assert_eq!(
        lines(&ledger),
        [
            (LineKind::Blocks, named("PyTorch"), i128::from(15 * MIB)),
            (LineKind::Cached, named("PyTorch"), i128::from(25 * MIB)),
            (LineKind::Program, None, i128::from(7 * MIB)),
        ]
    );
    assert_eq!(ledger.devices[0].known, i128::from(47 * MIB));
}

/// Physical memory, mapped at this address by a thread with this current device.
fn granule(sample: &mut Sample, address: u64, bytes: u64, device: Option<usize>, stack: usize) {
    memory(sample, Kind::Physical, address >> 20, bytes, stack);
    memory(sample, Kind::Mapping, address, bytes, stack);
    sample.0.allocations.change_last(|_, call| call.device = device);
}

const GRANULE: u64 = 20 * MIB;
const SEGMENT: u64 = 0x4000_0000;

#[test]
fn a_block_counts_completely_whichever_thread_mapped_its_memory() {
    let mut sample = Sample::new();
    let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
    // The autograd thread maps before it has a context, and mappings are not made in the order of addresses.
    for nth in [3, 0, 4, 1, 2] {
        let device = if nth == 1 || nth == 2 { None } else { Some(0) };
        granule(&mut sample, SEGMENT + nth * GRANULE, GRANULE, device, pool);
    }
    tensor(&mut sample, SEGMENT, 10 * MIB, pool);
    // From the middle of the first, over the second, to the middle of the third.
    tensor(&mut sample, SEGMENT + 12 * MIB, 40 * MIB, pool);
    tensor(&mut sample, SEGMENT + 55 * MIB, 10 * MIB, pool);
    let snapshot = sample.finish(0, 0);
    let ledger = ledger(&snapshot);
    assert_eq!(
        lines(&ledger),
        [
            (LineKind::Blocks, named("PyTorch"), i128::from(60 * MIB)),
            (LineKind::Cached, named("PyTorch"), i128::from(40 * MIB)),
        ]
    );
    assert_eq!(ledger.devices[0].outside, Tally::default());
    let [segment] = &ledger.devices[0].caches[0].segments[..] else {
        panic!("one segment, not {:?}", ledger.devices[0].caches)
    };
    assert_eq!((segment.address, segment.bytes), (SEGMENT, 100 * MIB));
    assert_eq!((segment.live_bytes, segment.blocks), (60 * MIB, 3));
    assert_eq!(segment.largest_free_run, 35 * MIB);
}

#[test]
fn separately_reserved_ranges_are_separate_segments_and_a_block_across_them_counts_in_both() {
    let mut sample = Sample::new();
    let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
    let second = SEGMENT + 2 * GRANULE;
    for address in [second, SEGMENT] {
        memory(&mut sample, Kind::Reserved, address, 2 * GRANULE, pool);
    }
    for nth in [2, 1, 0, 3] {
        granule(&mut sample, SEGMENT + nth * GRANULE, GRANULE, Some(0), pool);
    }
    tensor(&mut sample, SEGMENT + 30 * MIB, 25 * MIB, pool);
    tensor(&mut sample, second + 20 * MIB, 5 * MIB, pool);
    let snapshot = sample.finish(0, 0);
    let ledger = ledger(&snapshot);
    assert_eq!(
        lines(&ledger)[0],
        (LineKind::Blocks, named("PyTorch"), i128::from(30 * MIB))
    );
    assert_eq!(
        lines(&ledger)[1],
        (LineKind::Cached, named("PyTorch"), i128::from(50 * MIB))
    );
    let segments = ledger.devices[0].caches[0].segments.iter();
    let seen: Vec<_> = segments
        .map(|segment| {
            (
                segment.address,
                segment.bytes,
                segment.live_bytes,
                segment.largest_free_run,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (SEGMENT, 40 * MIB, 10 * MIB, 30 * MIB),
            (second, 40 * MIB, 20 * MIB, 15 * MIB),
        ]
    );
}

#[test]
fn the_part_of_a_block_after_the_last_mapping_counts_as_outside() {
    let mut sample = Sample::new();
    let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
    granule(&mut sample, SEGMENT, GRANULE, Some(0), pool);
    granule(&mut sample, SEGMENT + 2 * GRANULE, GRANULE, Some(0), pool);
    tensor(&mut sample, SEGMENT + 15 * MIB, 30 * MIB, pool);
    let snapshot = sample.finish(0, 0);
    let ledger = ledger(&snapshot);
    assert_eq!(
        lines(&ledger)[0],
        (LineKind::Blocks, named("PyTorch"), i128::from(5 * MIB))
    );
    assert_eq!(ledger.devices[0].outside.bytes, 25 * MIB);
}

#[test]
fn memory_mapped_at_several_addresses_counts_once() {
    let mut sample = Sample::new();
    let pool = sample.stack(&[RUNTIME, CACHING, STEP]);
    granule(&mut sample, SEGMENT, GRANULE, Some(0), pool);
    // A ring buffer: the same memory again after its end, and once more elsewhere.
    memory(&mut sample, Kind::Mapping, SEGMENT + GRANULE, GRANULE, pool);
    memory(&mut sample, Kind::Mapping, SEGMENT + 9 * GRANULE, GRANULE, pool);
    tensor(&mut sample, SEGMENT + 10 * MIB, 15 * MIB, pool);
    let snapshot = sample.finish(0, 0);
    let within = ledger(&snapshot);
    assert_eq!(
        lines(&within),
        [
            (LineKind::Blocks, named("PyTorch"), i128::from(15 * MIB)),
            (LineKind::Cached, named("PyTorch"), i128::from(5 * MIB)),
        ]
    );
    // More blocks than memory: the rest counts as outside.
    let mut snapshot = snapshot.clone();
    snapshot.allocations.change_last(|block, _| {
        (block.address, block.bytes) = (SEGMENT, 2 * GRANULE);
    });
    let beyond = ledger(&snapshot);
    assert_eq!(lines(&beyond)[0].2, i128::from(GRANULE));
    assert_eq!(beyond.devices[0].outside.bytes, GRANULE);
}

#[test]
fn a_mapping_in_the_middle_of_a_block_is_its_owners() {
    let mut sample = Sample::new();
    let arena = sample.stack(&[RUNTIME, ("Arena::grow()", "/src/arena.cu:9", "/opt/app"), MAIN]);
    for nth in 0..3 {
        memory(&mut sample, Kind::Mapping, SEGMENT + nth * GRANULE, GRANULE, arena);
    }
    tensor(&mut sample, SEGMENT + MIB, 50 * MIB, arena);
    belongs(&mut sample, Kind::Block, "arena");
    let snapshot = sample.finish(0, 0);
    let cache = &ledger(&snapshot).devices[0].caches[0];
    assert_eq!((cache.segments.len(), cache.live_bytes), (1, 50 * MIB));
}

#[test]
fn a_pool_whose_blocks_are_unknown_is_one_line() {
    let mut sample = Sample::new();
    let slab = sample.stack(&[
        ("tsl::BFCAllocator::Extend(unsigned long)", "", "/v/xla_cuda_plugin.so"),
        STEP,
    ]);
    memory(&mut sample, Kind::Device, 0x1000, 100 * GIB, slab);
    let snapshot = sample.finish(0, 0);
    let ledger = ledger(&snapshot);
    assert_eq!(lines(&ledger), [(LineKind::Pool, named("XLA"), i128::from(100 * GIB))]);
    assert!(ledger.devices[0].caches.is_empty());
}

#[test]
fn memory_that_contains_blocks_is_their_owners_pool_whatever_its_stack() {
    let mut sample = Sample::new();
    let arena = sample.stack(&[RUNTIME, ("Arena::grow()", "/src/arena.cu:9", "/opt/app"), MAIN]);
    memory(&mut sample, Kind::Device, 0x1000_0000, 20 * MIB, arena);
    memory(&mut sample, Kind::Device, 0x3000_0000, 2 * MIB, arena);
    tensor(&mut sample, 0x1000_0000 + 512, MIB, arena);
    belongs(&mut sample, Kind::Block, "arena");
    let snapshot = sample.finish(0, 0);
    let ledger = ledger(&snapshot);
    assert_eq!(
        lines(&ledger),
        [
            (LineKind::Blocks, named("arena"), i128::from(MIB)),
            (LineKind::Cached, named("arena"), i128::from(19 * MIB)),
            (LineKind::Program, None, i128::from(2 * MIB)),
        ]
    );
    assert_eq!(ledger.devices[0].caches[0].segments.len(), 1);
    let report = crate::analysis::report::Report::of(&snapshot, &crate::analysis::report::Options::default());
    assert_eq!(
        report.totals.held.total().bytes,
        3 * MIB,
        "the arena itself is not held twice"
    );
}

#[test]
fn blocks_of_unknown_address_lie_in_their_owners_pool_which_has_no_segments() {
    let mut sample = Sample::new();
    let slab = sample.stack(&[
        ("tsl::BFCAllocator::Extend(unsigned long)", "", "/v/xla_cuda_plugin.so"),
        STEP,
    ]);
    memory(&mut sample, Kind::Device, 0x7000_0000_0000, 100 * GIB, slab);
    tensor(&mut sample, 0x5555_0000_0000, 2 * GIB, slab);
    belongs(&mut sample, Kind::Buffer, "xla");
    let snapshot = sample.finish(0, 0);
    let ledger = ledger(&snapshot);
    assert_eq!(
        lines(&ledger),
        [
            (LineKind::Blocks, named("XLA"), i128::from(2 * GIB)),
            (LineKind::Cached, named("XLA"), i128::from(98 * GIB)),
        ]
    );
    assert_eq!(ledger.devices[0].outside.count, 0);
    assert!(ledger.devices[0].caches.is_empty());
}

#[test]
fn host_and_managed_memory_have_their_own_totals() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[RUNTIME, MAIN]);
    sample.holds(Kind::HostPinned, "cudaMallocHost", MIB, 2, stack);
    sample.holds(Kind::Managed, "cudaMallocManaged", MIB, 3, stack);
    let snapshot = sample.finish(0, 0);
    let ledger = ledger(&snapshot);
    assert_eq!(ledger.devices[0].known, 0);
    assert_eq!(ledger.devices[0].managed.bytes, 3 * MIB);
    assert_eq!(
        ledger.host["pinned"],
        Tally {
            bytes: 2 * MIB,
            count: 2
        }
    );
}

#[test]
fn a_block_outside_recorded_memory_counts_as_outside() {
    let mut sample = training();
    tensor(&mut sample, 0xf000_0000, MIB, 0);
    let ledger_before = ledger(&training().0).devices[0].known;
    let ledger = ledger(&sample.0);
    assert_eq!(ledger.devices[0].outside, Tally { bytes: MIB, count: 1 });
    assert_eq!(ledger.devices[0].known, ledger_before);
}

#[test]
fn the_modes_of_pytorch_are_distinguished() {
    let of = |frame: FrameText, kind: Kind, tensors: bool| {
        let mut sample = Sample::new();
        let stack = sample.stack(&[RUNTIME, frame, STEP]);
        memory(&mut sample, kind, 0x1000, MIB, stack);
        if tensors {
            tensor(&mut sample, 0x1000, 512, stack);
        }
        ledger(&sample.0).pytorch
    };
    let module = CACHING.2;
    let (uncached, ordered) = (
        (
            "c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)",
            "",
            module,
        ),
        (
            "c10::cuda::CUDACachingAllocator::CudaMallocAsync::CudaMallocAsyncAllocator::malloc(int)",
            "",
            module,
        ),
    );
    assert_eq!(of(CACHING, Kind::Device, true), [Mode::Caching]);
    assert_eq!(of(CACHING, Kind::Device, false), [Mode::NoTensorEvents]);
    assert_eq!(of(uncached, Kind::Device, false), [Mode::Uncached]);
    assert_eq!(of(ordered, Kind::Async, false), [Mode::Ordered]);
    assert_eq!(of(RUNTIME, Kind::Device, false), []);
}

/// Any record, with addresses so close together that blocks and memory overlap in all ways.
fn any_record() -> impl Strategy<Value = (u8, u64, u64, Option<usize>, usize)> {
    let size = prop_oneof![0..64u64, Just(u64::MAX), any::<u64>()];
    let address = prop_oneof![0..128u64, Just(u64::MAX - 3), any::<u64>()];
    (
        1..=23u8,
        address,
        size,
        prop_oneof![Just(None), Just(Some(0)), Just(Some(1))],
        0..4usize,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_sum_is_always_exact(
        records in proptest::collection::vec(any_record(), 0..40),
        used in any::<u64>(),
        process in any::<Option<u64>>(),
        others in any::<Option<u64>>(),
    ) {
        let mut sample = Sample::new();
        let second = sample.0.devices[0].clone();
        sample.0.devices.push(second);
        let stacks = [
            sample.stack(&[RUNTIME, CACHING, STEP]),
            sample.stack(&[RUNTIME, ("", "", "/v/libcublas.so.13"), STEP]),
            sample.stack(&[RUNTIME, MAIN]),
            sample.stack(&[("tsl::BFCAllocator::Extend(unsigned long)", "", "/v/xla_cuda_plugin.so"), STEP]),
        ];
        for (number, address, bytes, device, stack) in records {
            let kind = Kind::from_number(number).expect("a kind");
            sample.holds(kind, "any", 0, 1, stacks[stack]);
            sample.0.allocations.change_last(|record, call| {
                (record.address, record.bytes, record.requested) = (address, bytes, bytes);
                call.device = device;
            });
        }
        sample.0.usage = Some(usage(used, process, others));
        let ledger = ledger(&sample.0);
        for (index, device) in ledger.devices.iter().enumerate() {
            let sum: i128 = device.lines.iter().map(|line| line.bytes).sum();
            prop_assert_eq!(sum, device.known);
            prop_assert!(device.lines.iter().all(|line| line.bytes >= 0), "{:?}", device.lines);
            if let Some(driver) = device.driver {
                prop_assert_eq!(device.known + device.unexplained.expect("asked"), i128::from(driver.used_bytes));
            }
            let from_records = device.lines.iter().filter(|line| line.what < LineKind::Context);
            let recorded = sample.0.allocations.iter().filter(|record| {
                record.device == Some(index) && record.kind.place() == Place::Device
            });
            prop_assert_eq!(
                from_records.map(|line| line.bytes).sum::<i128>(),
                recorded.map(|record| i128::from(record.bytes)).sum::<i128>()
            );
            for cache in &device.caches {
                prop_assert!((0.0..=1.0).contains(&cache.fragmentation));
                for segment in &cache.segments {
                    prop_assert!(segment.live_bytes + segment.largest_free_run <= segment.bytes);
                }
            }
        }
    }
}
