//! Tensors: blocks of PyTorch's caching allocator, recorded through the functions by which it informs the profiler.
//!
//! Two libraries with the same exported names and the same calls through the PLT stand in for PyTorch
//! (`victims/libc10.c`, `victims/libc10_cuda.c`). Claims about the real one are in `gpu/`.

use std::fmt::Debug;
use std::path::PathBuf;

use culeak::kind::Kind::*;
use culeak::snapshot::{Allocation, Counter, Losses, Snapshot};

use crate::support::claims::Claims;
use crate::support::{Profile, fake_driver, library, profile};

/// Paths of libc10_cuda and libc10.
pub fn torch(copy: u32, flags: &[&str]) -> [PathBuf; 2] {
    let copy = format!("-DCOPY={copy}");
    let flags: Vec<&str> = flags.iter().copied().chain([copy.as_str()]).collect();
    let c10 = library("libc10", "libc10.so", &flags, &[]);
    let cuda = library("libc10_cuda", "libc10_cuda.so", &flags, &[c10.clone(), fake_driver()]);
    [cuda, c10]
}

pub fn tensors(behaviour: &str, libraries: &[PathBuf]) -> Profile {
    let profile = profile("tensors").arg(behaviour);
    libraries.iter().fold(profile, |profile, library| profile.arg(library))
}

#[test]
fn live_tensors_are_rows_within_their_segments() {
    for flags in [&[][..], &["-DSIGNED_TOTALS"][..]] {
        let outcome = tensors("leaks", &torch(1, flags)).run();
        outcome.expect_success().expect_same_output_as_bare();
        let snapshot = outcome.symbolized();
        snapshot.expect_nothing_lost();
        snapshot.expect_live(Tensor, 3, 1024 + 2048 + 100_352);
        let segment = snapshot.only(Device);
        for tensor in snapshot.of_kind(Tensor) {
            assert_eq!(tensor.domain.as_deref(), Some("pytorch"));
            assert_eq!(tensor.api, "CUDACachingAllocator");
            assert_eq!((tensor.device, tensor.context), (segment.device, None));
            let within = segment.address..segment.address + segment.bytes;
            assert!(within.contains(&tensor.address), "{tensor:#?} in {segment:#?}");
            let functions = snapshot.functions(tensor);
            assert_eq!(functions[..2], ["stand_in_malloc", "training_step"], "{functions:?}");
        }
        assert_eq!(snapshot.counted(Tensor).total_count, 5);
        assert_eq!(
            snapshot.device_peaks[0].peak_bytes, segment.bytes,
            "tensors are not added to what the driver allocated"
        );
        let [allocator] = &snapshot.allocators[..] else {
            panic!("{:#?}", snapshot.allocators)
        };
        assert_eq!((allocator.domain.as_str(), allocator.device), ("pytorch", Some(0)));
        assert_eq!((allocator.live_bytes, allocator.reserved_bytes), (103_424, 2 << 20));
        assert_eq!(
            (allocator.events, allocator.mismatches, allocator.unseen_bytes),
            (7, 0, 0)
        );
    }
}

#[test]
fn a_request_that_fails_in_pytorch_is_recorded_at_both_levels() {
    let outcome = tensors("runs_out", &torch(1, &[])).run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Tensor, 1, 1024);
    for kind in [Device, Tensor] {
        let failed: Vec<_> = snapshot.failed.iter().filter(|failed| failed.kind == kind).collect();
        let count: u64 = failed.iter().map(|failed| failed.count).sum();
        assert_eq!(count, 2, "{failed:#?}");
        assert!(
            failed
                .iter()
                .all(|r| (r.bytes, r.error, r.device) == (1 << 50, 2, Some(0))),
            "{failed:#?}"
        );
    }
}

#[test]
fn mismatches_between_pytorchs_totals_and_the_record_are_counted() {
    let outcome = tensors("lies", &torch(1, &[])).run();
    let snapshot = outcome.only_snapshot();
    // One wrong event, and one that returns to the right total.
    assert_eq!(snapshot.allocators[0].mismatches, 2);
    assert_eq!(snapshot.losses.unknown_blocks, 1);
    assert_eq!(snapshot.losses.unknown_frees, 0);
}

#[test]
fn no_event_of_eight_threads_is_lost() {
    let outcome = tensors("threads", &torch(1, &[])).run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_nothing_lost().expect_live(Tensor, 9, 9 * 512);
    assert_eq!(snapshot.counted(Tensor).total_count, 8 * 10_001 + 1);
    let allocator = &snapshot.allocators[0];
    assert_eq!((allocator.events, allocator.mismatches), (8 * 20_001 + 1, 0));
    assert_eq!(snapshot.losses.unknown_blocks, 0);
}

#[test]
fn each_copy_of_pytorch_keeps_its_own_profiler_informed() {
    let copies = [torch(1, &[]), torch(2, &[])].concat();
    let outcome = tensors("two_copies", &copies).run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome.only_snapshot().expect_live(Tensor, 3, 3 * 512);
}

#[test]
fn pytorch_unloaded_and_loaded_again_is_recorded() {
    let outcome = tensors("reloaded", &torch(1, &[])).run();
    outcome.expect_success().expect_same_output_as_bare();
    outcome.only_snapshot().expect_live(Tensor, 3, 3 * 512);
}

#[test]
fn a_forked_child_that_drops_inherited_tensors_records_nothing() {
    let outcome = tensors("forks", &torch(1, &[])).run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Tensor, 1, 512);
}

#[test]
fn tensors_of_the_cpu_leave_no_recording() {
    let outcome = tensors("cpu_only", &torch(1, &[])).run();
    outcome.expect_success().expect_same_output_as_bare().expect_no_file();
}

/// What is known of the tensors of a process, in an order of their own.
fn facts(snapshot: &Snapshot) -> impl PartialEq + Debug + use<> {
    let counter = Counter {
        device: None,
        ..snapshot.counted(Tensor)
    };
    let segments = snapshot.of_kind(Device);
    let row = |row: &Allocation| {
        let segment = segments
            .iter()
            .position(|of| (of.address..of.address + of.bytes).contains(&row.address));
        let at = segment.map(|segment| row.address - segments[segment].address);
        (
            row.bytes,
            row.requested,
            segment,
            at,
            row.device,
            row.thread,
            row.api.clone(),
            row.domain.clone(),
        )
    };
    let mut rows: Vec<_> = snapshot.of_kind(Tensor).iter().map(row).collect();
    rows.sort();
    let losses = Losses {
        recorder_ns: 0,
        ..snapshot.losses.clone()
    };
    (counter, rows, snapshot.allocators.clone(), losses)
}

/// All of them, none of them, and some of them have a stack.
#[test]
fn a_tensor_without_a_stack_is_recorded_as_one_with_it() {
    let unsigned = [torch(1, &[]), torch(2, &[])].concat();
    let signed = torch(1, &["-DSIGNED_TOTALS"]).to_vec();
    let on_two_devices = [torch(1, &[]), torch(2, &["-DGPU=1"])].concat();
    for (behaviour, libraries) in [
        ("leaks", &unsigned[..2]),
        ("leaks", &signed),
        ("lies", &unsigned[..2]),
        ("runs_out", &unsigned[..2]),
        ("two_copies", &unsigned),
        ("two_copies", &on_two_devices),
        ("reloaded", &unsigned[..2]),
        ("forks", &unsigned[..2]),
    ] {
        let all = tensors(behaviour, libraries).run();
        for mean in ["1TiB", "2KiB"] {
            let sampled = tensors(behaviour, libraries).setting("CULEAK_SAMPLE", mean).run();
            sampled.expect_success().expect_same_output_as_bare();
            assert_eq!(
                facts(sampled.only_snapshot()),
                facts(all.only_snapshot()),
                "{behaviour}, {mean}"
            );
        }
    }
}

#[test]
fn the_peak_of_tensors_without_stacks_is_that_of_the_allocator() {
    for mean in ["0", "4KiB", "1MiB", "1TiB"] {
        let outcome = tensors("peaks", &torch(1, &[])).setting("CULEAK_SAMPLE", mean).run();
        outcome.expect_success();
        let counted: Vec<u64> = outcome
            .stdout
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let snapshot = outcome.only_snapshot();
        let tensor = snapshot.counted(Tensor);
        assert_eq!(counted[..2], [tensor.peak_bytes, tensor.live_bytes], "{mean}");
        assert_eq!(tensor.total_count, tensor.freed_count + tensor.live_count, "{mean}");
        assert_eq!(snapshot.allocators[0].mismatches, 0, "{mean}");
        snapshot.expect_nothing_lost();
    }
}

#[test]
fn tensors_without_stacks_are_there_after_a_kill() {
    let outcome = tensors("dies", &torch(1, &[])).setting("CULEAK_SAMPLE", "1TiB").run();
    outcome.expect_signal(9);
    let snapshot = outcome.only_recording();
    snapshot.expect_live(Tensor, 1000, 1000 * 512);
    let counter = snapshot.counted(Tensor);
    assert_eq!((counter.total_count, counter.freed_count), (2000, 1000));
}

#[test]
fn a_forked_child_records_tensors_of_its_own_without_stacks() {
    for mean in ["0", "1TiB"] {
        let outcome = tensors("forks_and_goes_on", &torch(1, &[]))
            .setting("CULEAK_SAMPLE", mean)
            .run();
        outcome.expect_success();
        let mut live: Vec<_> = outcome
            .snapshots
            .iter()
            .map(|of| {
                (
                    of.counted(Tensor).live_bytes,
                    of.counted(Tensor).total_count,
                    of.losses.unknown_blocks,
                )
            })
            .collect();
        live.sort();
        assert_eq!(live, [(1024 + 4096, 4, 0), (3 * 2048, 3, 1)], "{mean}");
    }
}

#[test]
fn an_interval_counts_tensors_and_not_their_segments() {
    let outcome = tensors("intervals", &torch(1, &[])).env("CULEAK_INTERVALS", "1").run();
    outcome.expect_success();
    let expected = "\
read 1: left 512 in 1, needed 4608, holds 512
read 1: left 512 in 1, needed 4608, holds 1024
done
";
    assert_eq!(outcome.stdout, expected);
    outcome.only_snapshot().expect_live(Device, 1, 2 << 20);
}
