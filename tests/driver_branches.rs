//! Requests to the kernel driver in the layout of each branch of NVIDIA's driver, and in layouts that no branch has: they are read
//! exactly, or nothing is recorded and the recording says why.
//!
//! `data/driver-branches.txt` has the layouts, and says where they come from. `victims/layouts.c` makes its requests in the layout
//! of its arguments, and `victims/fake_kernel.c` answers in it.

use std::collections::BTreeMap;

use culeak::kind::Kind;
use culeak::rm::{self, class};
use culeak::snapshot::Snapshot;

use crate::segments::{bytes_of, expect_the_kernels_sums, kernel};
use crate::support::{Outcome, Preload, profile, sources};

const MIB: u64 = 1 << 20;
/// The rows that are the victim's arguments.
const FIRST: &str = "NV_ESC_RM_ALLOC";
const LAST: &str = "NV_MEMORY_ALLOCATION_PARAMS.limit";

/// The columns of the table: a branch, and its figures by name, in order.
fn branches() -> Vec<(u32, Vec<(String, u32)>)> {
    let text = std::fs::read_to_string(sources().join("data/driver-branches.txt")).expect("the table");
    let mut rows = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let numbers = rows.next().expect("a header").split_whitespace().skip(1);
    let mut branches: Vec<_> = numbers
        .map(|number| (number.parse().expect("a branch"), Vec::new()))
        .collect();
    for row in rows {
        let mut words = row.split_whitespace();
        let name = words.next().expect("a name");
        let values: Vec<&str> = words.collect();
        assert_eq!(values.len(), branches.len(), "{row}");
        for (value, (_, figures)) in values.into_iter().zip(&mut branches) {
            let number = match value.strip_prefix("0x") {
                Some(digits) => u32::from_str_radix(digits, 16),
                None if value == "-" => continue,
                None => value.parse(),
            };
            figures.push((name.to_owned(), number.expect("a number")));
        }
    }
    branches
}

/// The victim's arguments.
fn layout(figures: &[(String, u32)]) -> Vec<(String, u32)> {
    let place = |wanted: &str| figures.iter().position(|(name, _)| name == wanted).expect("a row");
    figures[place(FIRST)..=place(LAST)].to_vec()
}

fn run(behaviour: &str, layout: &[(String, u32)]) -> Outcome {
    let words: Vec<String> = layout.iter().map(|(_, number)| number.to_string()).collect();
    profile("layouts")
        .arg(behaviour)
        .args(&words.join(" "))
        .with_preload(Preload::AfterCuleak, kernel())
        .run()
}

#[track_caller]
fn expect_nothing_but(outcome: &Outcome, reason: &str) {
    outcome.expect_success();
    let snapshot = outcome.only_snapshot();
    assert!(snapshot.segments.is_empty(), "{:#?}", snapshot.segments);
    let is_of_memory = |kind: Kind| kind.place() != culeak::kind::Place::Segment;
    assert!(
        snapshot
            .object_counters
            .iter()
            .all(|counter| is_of_memory(counter.kind))
    );
    assert!(snapshot.segment_totals.is_empty() && snapshot.segments_at_peaks.is_empty());
    let why = snapshot.losses.segments_ended.as_deref().unwrap_or_default();
    assert!(
        why.contains(reason) && why.ends_with("; culeak knows drivers 535 to 595"),
        "{why:?}, wanted {reason}"
    );
}

/// In the victim's replay, three forms keep 1, 2 and 3 MiB, 32 MiB by a duplicate, a page each, and 999 bytes of the host.
fn expect_all(outcome: &Outcome) {
    outcome.expect_success();
    let snapshot: &Snapshot = outcome.only_snapshot();
    expect_the_kernels_sums(outcome, snapshot);
    assert_eq!(bytes_of(snapshot, Kind::Segment), (1 + 2 + 3 + 3 * 32) * MIB + 3 * 4096);
    assert_eq!(bytes_of(snapshot, Kind::HostSegment), 3 * 999);
    assert_eq!((snapshot.losses.failed_frees, snapshot.failed.len()), (0, 0));
}

#[test]
fn requests_of_each_branch_are_recorded_exactly_or_refused_by_name() {
    // Branches of one layout are run once.
    let mut layouts: BTreeMap<Vec<u32>, Vec<u32>> = BTreeMap::new();
    let mut named = Vec::new();
    for (branch, figures) in branches() {
        named = layout(&figures);
        let numbers = named.iter().map(|(_, number)| *number).collect();
        layouts.entry(numbers).or_default().push(branch);
    }
    let mut read: Vec<u32> = Vec::new();
    for (numbers, branches) in &layouts {
        let layout: Vec<(String, u32)> = named
            .iter()
            .map(|(name, _)| name.clone())
            .zip(numbers.iter().copied())
            .collect();
        let outcome = run("replay", &layout);
        if rm::COMPARED.contains(&branches[0]) {
            expect_all(&outcome);
            read.extend(branches);
        } else {
            expect_nothing_but(
                &outcome,
                "NV_ESC_RM_ALLOC has an argument of 40 bytes, where 32 and 48 are known",
            );
        }
    }
    read.sort_unstable();
    assert_eq!(read, rm::COMPARED, "the branches that are said to be known");
    assert!(rm::COMPARED.contains(&rm::TESTED));
}

#[test]
fn classes_of_objects_are_those_of_each_branch() {
    for (branch, figures) in branches() {
        let number = |wanted: &str| {
            figures
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, number)| *number)
        };
        let clients = ["NV01_ROOT", "NV01_ROOT_NON_PRIV", "NV01_ROOT_CLIENT"].map(number);
        assert_eq!(clients, class::CLIENTS.map(Some), "{branch}");
        for (name, class) in [
            ("NV01_DEVICE_0", class::DEVICE),
            ("NV20_SUBDEVICE_0", class::SUBDEVICE),
            ("NV01_MEMORY_SYSTEM", class::SYSTEM_MEMORY),
            ("NV01_MEMORY_LOCAL_USER", class::LOCAL_MEMORY),
            ("KEPLER_CHANNEL_GROUP_A", class::CHANNEL_GROUP),
            // The number of a device is the first word of its parameters.
            ("NV0080_ALLOC_PARAMETERS.deviceId", 0),
        ] {
            assert_eq!(number(name), Some(class), "{branch} {name}");
        }
        let channels = figures.iter().filter(|(name, _)| name.contains("_CHANNEL_GPFIFO"));
        let channels: Vec<u32> = channels.map(|(_, number)| *number).collect();
        assert!(
            channels.len() >= 9 && channels.iter().all(|&class| class::is_channel(class)),
            "{branch} {channels:x?}"
        );
    }
}

/// The layout of the tested branch, with these figures instead.
fn altered(changes: &[(&str, u32)]) -> Vec<(String, u32)> {
    let branches = branches();
    let tested = branches
        .iter()
        .find(|(branch, _)| *branch == rm::TESTED)
        .expect("a column");
    let mut layout = layout(&tested.1);
    for (name, number) in changes {
        layout.iter_mut().find(|(known, _)| known == name).expect("a row").1 = *number;
    }
    layout
}

#[test]
fn a_layout_that_no_branch_has_is_refused_by_name() {
    const BYTES: &str = "NV_MEMORY_ALLOCATION_PARAMS.size";
    const LIMIT: &str = "NV_MEMORY_ALLOCATION_PARAMS.limit";
    for (changes, reason) in [
        (
            &[("NVOS64_PARAMETERS", 56)][..],
            "NV_ESC_RM_ALLOC has an argument of 56 bytes",
        ),
        (
            &[("NVOS21_PARAMETERS", 40)],
            "NV_ESC_RM_ALLOC has an argument of 40 bytes",
        ),
        (
            &[("NVOS00_PARAMETERS", 24)],
            "NV_ESC_RM_FREE has an argument of 24 bytes",
        ),
        (
            &[("NVOS55_PARAMETERS", 32)],
            "NV_ESC_RM_DUP_OBJECT has an argument of 32 bytes",
        ),
        (
            &[("NVOS32_PARAMETERS", 192)],
            "NV_ESC_RM_VID_HEAP_CONTROL has an argument of 192 bytes",
        ),
        (
            &[("nv_ioctl_xfer_t", 24)],
            "NV_ESC_IOCTL_XFER_CMD has an argument of 24 bytes",
        ),
        // Other fields are where the size and the limit were: the victim fills them with a size that can be.
        (
            &[(BYTES, 72), (LIMIT, 96)],
            "NV_ESC_RM_ALLOC reports memory of 2097152 bytes",
        ),
        (
            &[(BYTES, 56), (LIMIT, 80)],
            "NV_ESC_RM_ALLOC reports memory of 2097152 bytes",
        ),
        (&[(LIMIT, 80)], "which cannot be or is not what its limit says"),
    ] {
        expect_nothing_but(&run("replay", &altered(changes)), reason);
    }
    let one_way = run("one_way", &altered(&[]));
    expect_nothing_but(&one_way, "NV_ESC_RM_ALLOC does not both read and write its argument");
}

#[test]
fn an_argument_with_its_fields_elsewhere_is_not_taken_for_memory() {
    let shifted = [
        ("NVOS64_PARAMETERS.hRoot", 4),
        ("NVOS64_PARAMETERS.hObjectParent", 8),
        ("NVOS64_PARAMETERS.hObjectNew", 12),
        ("NVOS64_PARAMETERS.hClass", 16),
        ("NVOS64_PARAMETERS.pAllocParms", 24),
        ("NVOS64_PARAMETERS.pRightsRequested", 32),
        ("NVOS64_PARAMETERS.status", 44),
        ("NVOS21_PARAMETERS.hRoot", 4),
        ("NVOS21_PARAMETERS.hObjectParent", 0),
        ("NVOS21_PARAMETERS.hObjectNew", 12),
        ("NVOS21_PARAMETERS.hClass", 8),
    ];
    let outcome = run("replay", &altered(&shifted));
    outcome.expect_success();
    assert!(outcome.stdout.contains("KERNEL 1"), "{}", outcome.stdout);
    // Duplicates of what was not seen have no bytes, as those of another process's memory.
    let snapshot = outcome.only_snapshot();
    let bytes = [Kind::Segment, Kind::HostSegment].map(|kind| bytes_of(snapshot, kind));
    assert_eq!(bytes, [0, 0], "{:#?}", snapshot.segments);
}

#[test]
fn a_failed_request_of_a_driver_with_its_status_elsewhere_is_no_memory() {
    let older = branches().into_iter().filter(|(branch, _)| *branch < rm::COMPARED[0]);
    for (branch, figures) in older {
        let outcome = run("short_form", &layout(&figures));
        outcome.expect_success();
        let snapshot = outcome.only_snapshot();
        assert!(
            outcome.stdout.ends_with("KERNEL 3145728 0\n"),
            "{branch}: {}",
            outcome.stdout
        );
        assert_eq!(bytes_of(snapshot, Kind::Segment), 3 * MIB, "{branch}");
        assert_eq!(
            snapshot.losses.lost_segments, 1,
            "{branch}: the failed one may be memory"
        );
    }
}
