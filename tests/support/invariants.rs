//! Invariants of every recording, whatever the program did. Checked on each one that the tests read.

use std::collections::{BTreeMap, HashSet};

use culeak::kind::Kind;
use culeak::snapshot::{AtPeak, ProcessState, Snapshot};

/// `hooks_returned`: no hook was left by a jump or by a cancelled thread.
pub fn check(snapshot: &Snapshot, hooks_returned: bool) {
    snapshot.validate().expect("every index is in range");
    oldest_first(snapshot);
    addresses_are_unique(snapshot);
    times_fit(snapshot);
    // A killed process may have been between a record and its counter.
    if snapshot.process.state == ProcessState::Exited && hooks_returned {
        counters_agree_with_rows(snapshot);
        peaks_agree_with_stacks(snapshot);
    }
    rows_after_the_end_fit(snapshot);
}

fn oldest_first(snapshot: &Snapshot) {
    assert!(
        snapshot
            .allocations
            .iter()
            .is_sorted_by_key(|allocation| allocation.time_ns)
    );
}

/// An address has at most one live record of a kind and allocator.
fn addresses_are_unique(snapshot: &Snapshot) {
    let mut seen = HashSet::new();
    for a in &snapshot.allocations {
        assert!(
            seen.insert((a.kind, &a.call.domain, a.address)),
            "two live records of {:?} at {:#x}",
            a.kind,
            a.address
        );
    }
}

fn times_fit(snapshot: &Snapshot) {
    for a in &snapshot.allocations {
        assert!(
            a.time_ns <= snapshot.taken.at_ns,
            "allocated at {} ns, read at {} ns",
            a.time_ns,
            snapshot.taken.at_ns
        );
    }
    for failed in &snapshot.failed {
        assert!(failed.first_ns <= failed.last_ns && failed.count > 0);
    }
}

fn counters_agree_with_rows(snapshot: &Snapshot) {
    let mut rows: BTreeMap<(Option<usize>, Kind), (u64, u64)> = BTreeMap::new();
    for a in &snapshot.allocations {
        let row = rows.entry((a.device, a.kind)).or_default();
        row.0 += a.bytes;
        row.1 += 1;
    }
    for counter in &snapshot.counters {
        let (bytes, count) = rows.remove(&(counter.device, counter.kind)).unwrap_or_default();
        assert_eq!((counter.live_bytes, counter.live_count), (bytes, count), "{counter:?}");
        assert!(counter.peak_bytes >= counter.live_bytes, "{counter:?}");
        assert!(counter.total_bytes >= counter.peak_bytes, "{counter:?}");
        assert_eq!(
            counter.total_count,
            counter.live_count + counter.freed_count,
            "{counter:?}"
        );
    }
    assert!(rows.is_empty(), "live rows without a counter: {rows:?}");
    for peak in &snapshot.device_peaks {
        let live: u64 = snapshot
            .allocations
            .iter()
            .filter(|a| a.device == Some(peak.device) && a.kind.place().on_device())
            .map(|a| a.bytes)
            .sum();
        assert!(
            peak.peak_bytes >= live,
            "peak {} of device {}, live {live}",
            peak.peak_bytes,
            peak.device
        );
    }
}

/// The stacks' memory at a peak is the peak: exactly, if one thread made all events. With several threads, events in progress at
/// that instant may be missing or too many, and no claim is made here.
fn peaks_agree_with_stacks(snapshot: &Snapshot) {
    let lost = &snapshot.losses;
    // With sampled stacks they are estimates.
    if snapshot.threads.len() > 1 || lost.lost_details > 0 || snapshot.sampling.is_some() {
        return;
    }
    let at = |wanted: &dyn Fn(&AtPeak) -> bool| -> u64 {
        let rows = snapshot.at_peaks.iter().filter(|at| wanted(at));
        rows.map(|at| at.bytes).sum()
    };
    for peak in &snapshot.device_peaks {
        let bytes = at(&|at| at.device == Some(peak.device) && at.kind.place().on_device());
        assert_eq!(bytes, peak.peak_bytes, "stacks at the peak of device {}", peak.device);
    }
    for counter in snapshot
        .counters
        .iter()
        .filter(|counter| !counter.kind.place().on_device())
    {
        let bytes = at(&|at| (at.device, at.kind) == (counter.device, counter.kind));
        assert_eq!(bytes, counter.peak_bytes, "stacks at the peak of {counter:?}");
    }
}

fn rows_after_the_end_fit(snapshot: &Snapshot) {
    let Some(end) = snapshot.end else {
        assert!(snapshot.freed_after_end.is_empty());
        return;
    };
    assert!(end.time_ns <= snapshot.taken.at_ns);
    for a in &snapshot.freed_after_end {
        assert!(a.time_ns <= end.time_ns, "{a:?}");
    }
}
