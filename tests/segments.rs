//! Memory that the kernel driver gives to the process: recorded at `ioctl`, with its size and stack, until it is freed.
//!
//! `victims/fake_kernel.c` takes the place of the kernel driver, behind the preload library; the fake driver makes the
//! requests that NVIDIA's makes (`CULEAK_FAKE_KERNEL`), and the victim makes some of its own. At its end the victim prints the
//! kernel's own sum, which must be the recording's.

use std::collections::BTreeMap;

use culeak::kind::Kind;
use culeak::snapshot::{Allocation, Snapshot};

use crate::auto_snapshots::snapshots_in;
use crate::support::claims::Claims;
use crate::support::{Lookup, Outcome, Preload, Profile, library, profile};

const MIB: u64 = 1 << 20;

/// A behaviour of `victims/segments.c`.
pub fn victim(behaviour: &str) -> Profile {
    with_kernel(profile("segments").args(behaviour))
}

/// With the kernel driver's side.
pub fn with_kernel(profile: Profile) -> Profile {
    profile
        .env("CULEAK_FAKE_KERNEL", "1")
        .with_preload(Preload::AfterCuleak, kernel())
}

pub fn kernel() -> std::path::PathBuf {
    library("fake_kernel", "libfake_kernel.so", &["-fvisibility=hidden"], &[])
}

pub fn bytes_of(snapshot: &Snapshot, kind: Kind) -> u64 {
    let segments = snapshot.segments.iter().filter(|segment| segment.kind == kind);
    segments.map(|segment| segment.bytes).sum()
}

/// The kernel's sums of device memory and of host memory are those of the recording.
#[track_caller]
pub fn expect_the_kernels_sums(outcome: &Outcome, snapshot: &Snapshot) {
    let printed = outcome.stdout.lines().find_map(|line| line.strip_prefix("KERNEL "));
    let printed = printed.unwrap_or_else(|| panic!("{}", outcome.everything()));
    let recorded = (bytes_of(snapshot, Kind::Segment), bytes_of(snapshot, Kind::HostSegment));
    assert_eq!(
        printed,
        format!("{} {}", recorded.0, recorded.1),
        "{:#?}",
        snapshot.segments
    );
    assert_eq!(snapshot.losses.lost_segments, 0);
    assert_eq!(snapshot.losses.segments_ended, None);
}

/// Runs a behaviour and compares the sums.
#[track_caller]
fn checked(behaviour: &str) -> Outcome {
    let outcome = victim(behaviour).run();
    expect_the_kernels_sums(&outcome, outcome.only_snapshot());
    outcome
}

/// The segments whose stack has this function, in a snapshot with names.
fn below<'a>(symbolized: &'a Snapshot, function: &str) -> Vec<Allocation<'a>> {
    let has = |segment: &Allocation| symbolized.functions(*segment).iter().any(|name| name == function);
    symbolized.segments.iter().filter(has).collect()
}

#[test]
fn a_context_is_seventeen_segments_with_its_local_memory_last() {
    let outcome = checked("context");
    let snapshot = outcome.only_snapshot();
    let sizes: Vec<u64> = (snapshot.segments.iter())
        .filter(|segment| segment.kind == Kind::Segment)
        .map(|segment| segment.bytes / MIB)
        .collect();
    assert_eq!(sizes, [&[6][..], &[2; 14], &[70, 414]].concat());
    let count = |kind| snapshot.segments.iter().filter(|segment| segment.kind == kind).count();
    assert_eq!((count(Kind::HostSegment), count(Kind::Channel)), (1, 20));
    assert_eq!(bytes_of(snapshot, Kind::HostSegment), 70 * MIB);
    for segment in &snapshot.segments {
        let device = segment.device.map(|device| snapshot.devices[device].ordinal);
        assert_eq!((segment.api(), device), ("NV_ESC_RM_ALLOC", Some(0)), "{segment:?}");
        assert!(segment.stack.is_some() && segment.requested == segment.bytes);
    }
}

#[test]
fn segments_of_a_driver_that_the_program_opens_are_recorded() {
    for lookup in [Lookup::Dlsym, Lookup::ProcV2] {
        let outcome = victim("everything").lookup(lookup).run();
        expect_the_kernels_sums(&outcome, outcome.only_snapshot());
    }
}

#[test]
fn segments_are_in_no_sum_of_the_programs_memory() {
    let outcome = checked("context");
    let snapshot = outcome.only_snapshot();
    snapshot.expect_clean();
    let peaks: Vec<_> = snapshot.device_peaks.iter().map(|peak| peak.peak_bytes).collect();
    assert!(peaks.iter().all(|&peak| peak == 0), "{peaks:?}");
    assert!(snapshot.counters.iter().all(|counter| counter.kind.place().is_memory()));
    let counter = snapshot
        .object_counters
        .iter()
        .find(|counter| counter.kind == Kind::Segment);
    let counter = counter.expect("a counter of segments");
    assert_eq!(
        (counter.live_bytes, counter.live_count, counter.peak_bytes),
        (518 * MIB, 17, 518 * MIB)
    );
}

#[test]
fn the_drivers_own_function_and_the_programs_line_are_on_the_stack() {
    let snapshot = checked("everything").symbolized();
    for (function, bytes) in [
        ("cuDevicePrimaryCtxRetain", 518 * MIB),
        ("cuMemAlloc_v2", 2 * MIB),
        ("cuStreamCreate", 2 * 2 * MIB),
        ("cuModuleLoadData", 0),
        ("cuGraphInstantiateWithFlags", 2 * MIB),
        ("cuMemAllocAsync", 32 * MIB),
    ] {
        let found: u64 = (below(&snapshot, function).iter())
            .filter(|segment| segment.kind == Kind::Segment)
            .map(|segment| segment.bytes)
            .sum();
        assert_eq!(found, bytes, "{function}");
    }
    let leaks = below(&snapshot, "leak");
    assert!(
        !leaks.is_empty() && leaks.iter().all(|segment| segment.bytes == 2 * MIB),
        "{leaks:?}"
    );
}

#[test]
fn linear_memory_takes_the_pages_that_live_blocks_touch() {
    let outcome = checked("linear");
    let snapshot = outcome.only_snapshot();
    let page = 2 * MIB;
    let pages: std::collections::BTreeSet<u64> = (snapshot.allocations.iter())
        .flat_map(|block| block.address / page..=(block.address + block.bytes - 1) / page)
        .collect();
    assert!(snapshot.allocations.len() > 20);
    assert_eq!(bytes_of(snapshot, Kind::Segment), 518 * MIB + pages.len() as u64 * page);
}

#[test]
fn each_context_has_segments_on_its_device_until_it_is_destroyed() {
    let outcome = checked("contexts");
    let snapshot = outcome.only_snapshot();
    let mut by_device: BTreeMap<Option<i32>, u64> = BTreeMap::new();
    for segment in snapshot.segments.iter().filter(|segment| segment.kind == Kind::Segment) {
        *by_device
            .entry(segment.device.map(|device| snapshot.devices[device].ordinal))
            .or_default() += segment.bytes;
    }
    // The primary context and two others on device 0; that of device 1 was destroyed.
    assert_eq!(by_device, BTreeMap::from([(Some(0), 3 * 518 * MIB + 2 * 4 * MIB)]));
    let on_1 = snapshot.object_counters.iter().find(|counter| {
        counter.kind == Kind::Segment
            && counter
                .device
                .is_some_and(|device| snapshot.devices[device].ordinal == 1)
    });
    assert_eq!(
        on_1.map(|counter| (counter.live_bytes, counter.peak_bytes)),
        Some((0, 522 * MIB))
    );
}

#[test]
fn reports_list_segments_by_driver_function_and_line() {
    let outcome = checked("everything");
    let recording = outcome.only_snapshot().process.recording.clone();
    let command = |words: &[&str]| {
        let mut command = std::process::Command::new(crate::support::culeak());
        command.args(&words[..1]).arg(&recording).args(&words[1..]);
        let output = command.arg("--no-symbol-cache").output().expect("culeak runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let json = |words: &[&str]| -> serde_json::Value { serde_json::from_str(&command(words)).expect("JSON") };
    let segments = bytes_of(outcome.only_snapshot(), Kind::Segment);
    let report = json(&["report", "--kind", "segment", "--by", "api", "--json"]);
    let rows = report["rows"].as_array().expect("rows");
    let found = |api: &str| {
        rows.iter()
            .find(|row| row["label"] == api)
            .map(|row| row["bytes"].as_u64())
    };
    assert_eq!(found("cuDevicePrimaryCtxRetain"), Some(Some(518 * MIB)), "{report:#}");
    assert_eq!(found("cuStreamCreate"), Some(Some(4 * MIB)));
    let sum: u64 = rows.iter().filter_map(|row| row["bytes"].as_u64()).sum();
    assert_eq!(sum, segments);
    assert_eq!(report["totals"]["held"]["device"]["bytes"], segments);
    assert_eq!(report["devices"][0]["live"]["bytes"], segments);
    let text = command(&["report", "--kind", "segment", "--view", "stacks"]);
    assert!(text.contains("segments") && text.contains("segments.c:"), "{text}");
    assert!(
        text.contains("by cuStreamCreate") && text.contains("call sites held"),
        "{text}"
    );
    assert!(!text.contains("leaked"), "{text}");
    let host = json(&["report", "--kind", "host-segment", "--json"]);
    assert_eq!(
        host["totals"]["held"]["host"]["bytes"],
        bytes_of(outcome.only_snapshot(), Kind::HostSegment)
    );
    let peak = json(&["report", "--kind", "segment", "--at", "peak", "--json"]);
    assert!(peak["totals"]["held"]["device"]["bytes"].as_u64() >= Some(segments));
    let plain = json(&["report", "--json"]);
    assert!(plain["totals"]["held"]["device"]["bytes"].as_u64() < Some(segments));
}

#[test]
fn a_reset_device_has_no_segments() {
    let outcome = checked("reset");
    assert!(outcome.only_snapshot().segments.is_empty());
    let outcome = checked("reset vmm");
    let snapshot = outcome.only_snapshot();
    let left: Vec<u64> = snapshot.segments.iter().map(|segment| segment.bytes).collect();
    assert_eq!(left, [6 * MIB], "physical memory outlives its context");
}

#[test]
fn sizes_are_exact_in_both_forms_of_the_request() {
    let snapshot = checked("sizes").symbolized();
    let take = below(&snapshot, "take");
    let small = below(&snapshot, "take_small");
    let of = |segments: &[Allocation]| -> Vec<(Kind, u64)> { segments.iter().map(|s| (s.kind, s.bytes)).collect() };
    assert_eq!(of(&take), [(Kind::Segment, 1234 * 4096), (Kind::HostSegment, 999)]);
    assert_eq!(of(&small), [(Kind::Segment, 7 * MIB)]);
    // Client and handle, as the kernel driver assigned them.
    assert!(take.iter().all(|segment| segment.address >> 32 >= 0xc1d0_0001));
}

#[test]
fn failed_requests_change_nothing() {
    let outcome = checked("failures");
    let snapshot = outcome.only_snapshot();
    assert_eq!(bytes_of(snapshot, Kind::Segment), 519 * MIB);
    assert_eq!((snapshot.losses.failed_frees, snapshot.failed.len()), (0, 0));
}

#[test]
fn freeing_a_client_or_a_device_frees_what_is_below_it() {
    let outcome = checked("parents");
    // What is below the second device of the first client is left.
    assert_eq!(bytes_of(outcome.only_snapshot(), Kind::Segment), 523 * MIB);
}

#[test]
fn duplicated_memory_counts_once_until_its_last_handle_is_freed() {
    for (freed, live) in [
        ("", 4),
        (" original", 4),
        (" original copy", 4),
        (" original copy third", 0),
        (" copy", 4),
        (" copy original", 4),
        (" copy original third", 0),
        (" client", 4),
        (" client copy", 4),
        (" client third", 4),
        (" client copy third", 0),
    ] {
        let outcome = checked(&format!("duplicates{freed}"));
        let snapshot = outcome.only_snapshot();
        assert_eq!(bytes_of(snapshot, Kind::Segment), (518 + live) * MIB, "freed{freed}");
        let duplicates = snapshot
            .segments
            .iter()
            .filter(|segment| segment.api() == "NV_ESC_RM_DUP_OBJECT");
        let imported = duplicates.filter(|segment| segment.requested == 0).count();
        // It lies below the client.
        let expected = usize::from(!freed.contains("client"));
        assert_eq!(imported, expected, "another process's memory has no size here");
        let mut counters = snapshot.object_counters.iter();
        let counter = counters
            .find(|counter| counter.kind == Kind::Segment)
            .expect("a counter");
        assert_eq!(counter.total_bytes, (518 + 4) * MIB, "given once; freed{freed}");
        assert_eq!(counter.total_count, 17 + 1 + 3, "freed{freed}");
        assert_eq!(
            counter.total_count,
            counter.live_count + counter.freed_count,
            "freed{freed}"
        );
        assert_eq!(counter.peak_bytes, (518 + 4) * MIB, "freed{freed}");
    }
}

#[test]
fn an_object_whose_name_was_given_again_before_its_free_returned_is_another_one() {
    let outcome = checked("reused_name");
    assert_eq!(bytes_of(outcome.only_snapshot(), Kind::Segment), (518 + 3) * MIB);
    let outcome = checked("reused_name again");
    assert_eq!(bytes_of(outcome.only_snapshot(), Kind::Segment), 518 * MIB);
}

#[test]
fn memory_whose_free_fails_while_another_thread_frees_its_parent_or_others_counts_once() {
    for behaviour in ["fails_meanwhile", "fails_meanwhile other"] {
        let outcome = checked(behaviour);
        let bytes = bytes_of(outcome.only_snapshot(), Kind::Segment);
        assert_eq!(bytes, (518 + 4) * MIB, "{behaviour}");
    }
}

#[test]
fn clients_and_their_devices_that_two_threads_free_leave_nothing() {
    let outcome = checked("freed_twice");
    let snapshot = outcome.only_snapshot();
    assert_eq!(bytes_of(snapshot, Kind::Segment), 518 * MIB);
    snapshot.expect_nothing_lost();
}

#[test]
fn a_segment_is_on_the_device_that_gave_it_whichever_device_the_context_is_on() {
    let outcome = victim("peers").env("CULEAK_FAKE_KERNEL", "peers").run();
    let snapshot = outcome.only_snapshot();
    expect_the_kernels_sums(&outcome, snapshot);
    let on = |ordinal: i32| -> u64 {
        let segments = (snapshot.segments.iter()).filter(|segment| segment.kind == Kind::Segment);
        let of = |device: Option<usize>| device.map(|device| snapshot.devices[device].ordinal);
        segments
            .filter(|segment| of(segment.device) == Some(ordinal))
            .map(|s| s.bytes)
            .sum()
    };
    // Of two contexts, each takes 2 MiB on the other's device.
    assert_eq!((on(0), on(1)), ((518 + 2) * MIB, (518 + 2 + 4) * MIB));
}

#[test]
fn a_creation_of_a_context_that_was_left_by_a_jump_is_over() {
    let leaves = library("leaves", "libleaves.so", &[], &[]);
    let outcome = victim("left_creation")
        .leaving_hooks_halfway()
        .with_preload(Preload::AfterCuleak, leaves)
        .run();
    let snapshot = outcome.only_snapshot();
    expect_the_kernels_sums(&outcome, snapshot);
    let later: Vec<_> = (snapshot.segments.iter())
        .filter(|segment| segment.bytes == MIB)
        .collect();
    // Segments that a creation takes have no context yet.
    let primary = later[0].context.map(|context| snapshot.contexts[context].primary);
    assert_eq!((later.len(), primary), (1, Some(true)), "{later:#?}");
}

#[test]
fn an_argument_that_ends_behind_the_end_of_a_stack_is_forwarded() {
    let outcome = checked("stack_end");
    outcome.expect_success();
    assert_eq!(bytes_of(outcome.only_snapshot(), Kind::Segment), 519 * MIB);
}

#[test]
fn a_chunk_names_the_pool_that_the_program_created() {
    let outcome = checked("pools");
    let snapshot = outcome.only_snapshot();
    let pool = snapshot.only(Kind::Pool);
    let mut chunks: BTreeMap<Option<u64>, u64> = BTreeMap::new();
    for segment in (snapshot.segments.iter()).filter(|segment| segment.bytes == 32 * MIB) {
        *chunks.entry(segment.pool).or_default() += 1;
    }
    let destroyed = chunks.keys().flatten().find(|&&handle| handle != pool.address).copied();
    assert!(destroyed.is_some());
    assert_eq!(
        chunks,
        BTreeMap::from([(None, 1), (Some(pool.address), 2), (destroyed, 1)])
    );
}

#[test]
fn a_descriptor_that_was_closed_and_reused_is_that_of_its_new_file() {
    let outcome = checked("foreign");
    outcome.expect_same_output_as_bare();
    assert_eq!(bytes_of(outcome.only_snapshot(), Kind::Segment), (518 + 9) * MIB);
}

#[test]
fn an_unknown_layout_ends_the_level_by_name() {
    let outcome = victim("unknown_layout").run();
    let snapshot = outcome.only_snapshot();
    assert!(snapshot.segments.is_empty());
    assert!(
        snapshot
            .object_counters
            .iter()
            .all(|counter| counter.kind != Kind::Segment)
    );
    assert_eq!(
        snapshot.losses.segments_ended.as_deref(),
        Some("NV_ESC_RM_ALLOC has an argument of 56 bytes, where 32 and 48 are known; culeak knows drivers 535 to 595")
    );
}

#[test]
fn memory_from_a_request_that_is_not_recorded_is_a_loss() {
    let outcome = victim("heap").run();
    let snapshot = outcome.only_snapshot();
    assert_eq!(
        (bytes_of(snapshot, Kind::Segment), snapshot.losses.lost_segments),
        (519 * MIB, 1)
    );
}

#[test]
fn sizes_that_cannot_be_are_losses_and_many_of_them_end_the_level() {
    let few = victim("hostile_sizes").run();
    let snapshot = few.only_snapshot();
    assert_eq!(
        (snapshot.losses.lost_segments, &snapshot.losses.segments_ended),
        (7, &None)
    );
    assert_eq!(bytes_of(snapshot, Kind::Segment), 520 * MIB);
    let many = victim("hostile_sizes many").run();
    let snapshot = many.only_snapshot();
    assert!(snapshot.segments.is_empty());
    let why = snapshot.losses.segments_ended.as_deref();
    assert_eq!(
        why,
        Some(
            "NV_ESC_RM_ALLOC reports memory of 28673 bytes, which cannot be or is not what its limit says; culeak knows \
             drivers 535 to 595"
        )
    );
}

#[test]
fn arguments_that_cannot_be_read_are_forwarded() {
    let outcome = checked("hostile_pointers");
    outcome.expect_success();
    assert_eq!(bytes_of(outcome.only_snapshot(), Kind::Segment), 519 * MIB);
}

#[test]
fn requests_of_many_threads_are_all_recorded() {
    let outcome = checked("threads");
    let snapshot = outcome.only_snapshot();
    assert_eq!(bytes_of(snapshot, Kind::HostSegment), 70 * MIB + 8 * 4096);
    assert_eq!(bytes_of(snapshot, Kind::Segment), (518 + 13) * MIB);
    snapshot.expect_nothing_lost();
}

#[test]
fn a_forked_childs_requests_are_not_its_parents() {
    let outcome = checked("forks");
    assert_eq!(outcome.snapshots.len(), 1);
    assert_eq!(bytes_of(outcome.only_snapshot(), Kind::Segment), 521 * MIB);
}

#[test]
fn a_child_that_starts_cuda_has_segments_of_its_own() {
    let outcome = victim("forks_first").run();
    let snapshot = outcome.only_snapshot();
    expect_the_kernels_sums(&outcome, snapshot);
    assert_eq!(bytes_of(snapshot, Kind::Segment), 522 * MIB);
}

#[test]
fn a_request_at_the_end_of_a_thread_is_recorded() {
    let outcome = checked("thread_exit");
    assert_eq!(bytes_of(outcome.only_snapshot(), Kind::Segment), 529 * MIB);
}

#[test]
fn every_other_call_of_ioctl_behaves_as_without_the_recorder() {
    let outcome = profile("segments").arg("forwards").run();
    outcome.expect_success().expect_same_output_as_bare();
    assert!(
        outcome.stdout.contains("FIONREAD 0 7\nFIONBIO 0\nFIOCLEX 0 55\n"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn another_interposer_of_ioctl_sees_the_same_calls_on_either_side() {
    let other = library("ioctl_preload", "libioctl_preload.so", &["-fvisibility=hidden"], &[]);
    for place in [Preload::BeforeCuleak, Preload::AfterCuleak] {
        let outcome = profile("segments")
            .arg("forwards")
            .with_preload(place, other.clone())
            .run();
        outcome.expect_success().expect_same_output_as_bare();
        for line in [
            "constructor: 0, 4 bytes\n",
            "preload: 0xc01c4634 0x123456789abcdef0\n-77: -7 77\n",
        ] {
            assert!(outcome.stdout.contains(line), "{place:?}: {}", outcome.stdout);
        }
    }
}

#[test]
fn segments_are_recorded_beside_another_interposer() {
    for place in [Preload::BeforeCuleak, Preload::AfterCuleak] {
        let other = library("ioctl_preload", "libioctl_preload.so", &["-fvisibility=hidden"], &[]);
        let outcome = victim("everything").with_preload(place, other).run();
        expect_the_kernels_sums(&outcome, outcome.only_snapshot());
    }
}

#[test]
fn a_snapshot_taken_while_the_program_runs_has_the_segments_of_that_time() {
    let outcome = victim("snapshots").run();
    outcome.expect_success();
    let sums: Vec<(Option<String>, u64)> = (snapshots_in(&outcome.out()).iter())
        .map(|(_, snapshot)| {
            let taken = snapshot.taken.automatic.as_ref().expect("an automatic snapshot");
            (taken.name.clone(), bytes_of(snapshot, Kind::Segment) / MIB)
        })
        .collect();
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(sums, [(named("context"), 518), (named("leak"), 524)]);
}

#[test]
fn a_killed_process_has_its_segments() {
    let outcome = victim("killed").run();
    expect_the_kernels_sums(&outcome, outcome.only_recording());
    assert_eq!(bytes_of(outcome.only_recording(), Kind::Segment), 524 * MIB);
}

#[test]
fn segments_without_room_in_the_recording_are_counted() {
    let shell = "ulimit -f 1500; exec \"$@\"";
    let outcome = victim("many").wrapped_in(&["bash", "-c", shell, "bash"]).run();
    let snapshot = outcome.only_snapshot();
    assert!(outcome.stdout.contains("recorded"), "{}", outcome.everything());
    let kept = snapshot.segments.iter().filter(|segment| segment.bytes == 4096).count() as u64;
    assert_eq!(kept + snapshot.losses.lost_segments, 20000);
    assert_eq!(snapshot.losses.lost_allocations, 0);
    assert!(snapshot.losses.lost_segments > 0 && kept > 0, "{kept} kept");
}

#[test]
fn a_segment_names_its_context_if_the_device_has_only_one() {
    let two = checked("contexts");
    let named = two
        .only_snapshot()
        .segments
        .iter()
        .filter(|segment| segment.context.is_some());
    assert_eq!(named.count(), 0, "the second context exists before the first leak");
    let snapshot = checked("everything").symbolized();
    let graphs = below(&snapshot, "cuGraphInstantiateWithFlags");
    assert!(
        !graphs.is_empty() && graphs.iter().all(|segment| segment.context == Some(0)),
        "{graphs:#?}"
    );
}

#[test]
fn segments_are_no_events_of_the_programs_memory() {
    let outcome = victim("everything").setting("CULEAK_TIMELINE", "1MiB").run();
    let (snapshot, timeline) = culeak::reader::read_timeline(&outcome.recordings[0]).expect("a recording");
    let timeline = timeline.expect("an event log");
    assert_eq!(snapshot.losses.lost_events, 0);
    assert!(
        timeline
            .memory
            .sites
            .iter()
            .all(|site| site.kind.place() != culeak::kind::Place::Segment)
    );
}

#[test]
fn segments_that_come_and_go_do_not_let_the_recording_grow() {
    let size = |turns: &str| {
        let outcome = checked(&format!("churn {turns}"));
        let recording = &outcome.only_snapshot().process.recording;
        std::fs::metadata(recording).expect("the recording").len()
    };
    assert_eq!(size("10"), size("5000"));
}

#[test]
fn without_the_kernels_side_there_are_no_segments() {
    let outcome = profile("objects").arg("stream").run();
    let snapshot = outcome.only_snapshot();
    assert!(snapshot.segments.is_empty() && snapshot.losses.segments_ended.is_none());
}
