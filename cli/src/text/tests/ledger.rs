//! Golden texts of the ledger: what the kernel driver gave to a process, with the figures that were measured on an H200.

use culeak::analysis::report::{Options, Report};
use culeak::kind::Kind;
use culeak::snapshot::{OtherProcesses, Snapshot};

use super::{expect_golden, from_file, plain, report_text};
use crate::document::Document;
use crate::options::view::Shape;
use crate::text::report::Extent;
use crate::text::sample::{FrameText, GIB, MAIN, MIB, PYTHON, RUNTIME, Sample};

const KIB: u64 = 1 << 10;
/// The driver's own memory for one context, and for the device.
const OWN: u64 = 8 * MIB + 832 * KIB;
const ALONE: Option<OtherProcesses> = Some(OtherProcesses { bytes: 0, count: 0 });

fn ledger_text(snapshot: &Snapshot) -> String {
    let report = Report::of(snapshot, &Options::default());
    let mut page = Document::default();
    super::super::ledger::write(&report.ledger, &mut page);
    page.plain()
}

/// The first kernel of PyTorch, with tensors, streams, graphs and a neighbour.
fn training() -> Sample {
    const STEP: FrameText = ("step", "/home/me/train.py:212", PYTHON);
    const LOAD: FrameText = ("load", "/home/me/train.py:3", PYTHON);
    let kernel = ("at::native::fill_kernel_cuda", "", "/v/torch/lib/libtorch_cuda.so");
    let mut sample = Sample::new().running();
    sample.takes_context(LOAD, None);
    sample.takes(
        "cuLaunchKernel",
        &[RUNTIME, kernel, STEP],
        &[504 * MIB, 2 * MIB, 10 * MIB],
    );
    let cublas = ("", "", "/v/libcublasLt.so.13");
    sample.takes("cuLibraryGetModule", &[cublas, LOAD], &[2 * MIB; 3]);
    let stack = sample.stack(&[RUNTIME, ("Cache::fill()", "/src/cache.cu:9", "/opt/app"), MAIN]);
    for nth in 0..3 {
        sample.holds(Kind::Device, "cudaMalloc", 300 * KIB, 1, stack);
        sample
            .0
            .allocations
            .change_last(|row, _| row.address = 0x7f00_0000_0000 + nth * 10 * MIB);
    }
    sample.takes("cuMemAlloc_v2", &[RUNTIME, MAIN], &[2 * MIB; 3]);
    sample.holds(Kind::Async, "cudaMallocAsync", MIB, 2, stack);
    sample.takes("cuMemAllocAsync_ptsz", &[RUNTIME, MAIN], &[32 * MIB]);
    sample.takes("cuStreamCreateWithPriority", &[RUNTIME, STEP], &[2 * MIB; 35]);
    sample.takes("cuGraphInstantiateWithFlags", &[RUNTIME, STEP], &[2 * MIB; 110]);
    sample.has_objects(Kind::Stream, 100, 28, stack);
    sample.has_objects(Kind::GraphExec, 1000, 0, stack);
    sample.takes("cuMemsetD8_v2", &[RUNTIME, MAIN], &[2 * MIB]);
    let context = sample.stack(&[("cuDevicePrimaryCtxRetain", "", "/usr/lib/libcuda.so.1"), RUNTIME, MAIN]);
    sample.adds(Kind::HostSegment, &[70 * MIB], context);
    sample.holds(Kind::HostPinned, "cudaMallocHost", GIB, 1, stack);
    let cache = (
        "at::cuda::CachingHostAllocator::allocate",
        "",
        "/v/torch/lib/libtorch_cuda.so",
    );
    let pinned = sample.stack(&[RUNTIME, cache, LOAD]);
    sample.holds(Kind::HostPinned, "cudaHostAlloc", 64 * MIB, 1, pinned);
    sample
}

fn taken(sample: &Sample) -> u64 {
    sample
        .0
        .segments
        .iter()
        .filter(|row| row.kind == Kind::Segment)
        .map(|row| row.bytes)
        .sum()
}

#[test]
fn golden_ledger_of_a_process_that_allocated_nothing() {
    let mut sample = Sample::new().running();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.uses(518 * MIB + OWN, Some(518 * MIB), ALONE);
    let report = Report::of(&sample.0, &Options::default());
    let text = plain(|out| crate::text::report::page(&report, Default::default()).text(out));
    expect_golden("ledger-idle.txt", &text);
}

#[test]
fn a_clean_run_takes_three_lines_whatever_its_context_took() {
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    let clean = sample.finish(64 * MIB, 12);
    let report = Report::of(&clean, &Options::default());
    let text = |extent| plain(|out| crate::text::report::page(&report, extent).text(out));
    let short = text(Extent::default());
    assert!(
        short.lines().count() == 3 && short.contains("; recorded in full\nnext: "),
        "{short}"
    );
    let all = Extent {
        views: &[Shape::Ledger],
        ..Extent::default()
    };
    assert!(text(all).contains("414 MiB"), "{}", text(all));
    // A loss has a line of its own.
    let mut lossy = clean.clone();
    lossy.losses.unknown_frees = 1;
    let report = Report::of(&lossy, &Options::default());
    let lossy = plain(|out| crate::text::report::page(&report, Extent::default()).text(out));
    assert!(lossy.contains("\nnot recorded  1 unknown free: "), "{lossy}");
}

#[test]
fn golden_ledger_with_every_line_of_a_training_program() {
    let mut sample = training();
    let own = taken(&sample);
    let others = OtherProcesses {
        bytes: 518 * MIB,
        count: 1,
    };
    sample.uses(own + 518 * MIB + 20 * MIB, Some(own), Some(others));
    expect_golden("ledger-training.txt", &ledger_text(&sample.0));
}

#[test]
fn golden_ledger_of_a_finished_process_and_where_the_driver_disagrees() {
    let mut sample = training();
    let own = taken(&sample);
    let finished = ledger_text(&Sample(sample.0.clone()).0);
    sample.uses(own + 3 * GIB, None, None);
    let unknown = ledger_text(&sample.0);
    sample.uses(own + 2 * MIB + OWN, Some(own + 2 * MIB), ALONE);
    let more = ledger_text(&sample.0);
    sample.0.segments = Default::default();
    sample.0.losses.segments_ended = Some(
        "NV_ESC_RM_ALLOC has an argument of 56 bytes, where 32 and 48 are known; culeak knows drivers 535 to 595"
            .to_owned(),
    );
    let ended = ledger_text(&sample.0);
    expect_golden("ledger-partial.txt", &format!("{finished}{unknown}{more}{ended}"));
}

#[test]
fn a_few_bytes_of_a_pool_in_host_memory_are_beside_the_answer() {
    let with = |own: u64| {
        let mut sample = Sample::new();
        let inside = (
            "at::CachingHostAllocatorImpl<int>::allocate(unsigned long)",
            "",
            "/libtorch_cuda.so",
        );
        let (pool, line) = (sample.stack(&[RUNTIME, inside, MAIN]), sample.stack(&[RUNTIME, MAIN]));
        sample.holds(Kind::HostPinned, "cudaHostAlloc", 4, 1, pool);
        sample.holds(Kind::Device, "cudaMalloc", MIB, own, line);
        let options = Options {
            without_minor_rows: true,
            ..from_file("train.culeak")
        };
        report_text(&sample.finish(own * MIB, 7), &options, false)
    };
    let clean = with(0);
    assert_eq!(clean.lines().count(), 3, "{clean}");
    assert!(
        clean.contains("\nnothing leaked: ") && clean.contains("; pools hold 4 B"),
        "{clean}"
    );
    let leaky = with(1);
    assert!(
        leaky.contains("\nbesides, 4 B of host memory in PyTorch's pool\n"),
        "{leaky}"
    );
}
