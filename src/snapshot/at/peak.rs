//! A snapshot at the peak: a row for each sum of what was live then.

use std::collections::HashMap;

use super::{PointError, unknown_thread};
use crate::kind::{Kind, Place};
use crate::snapshot::{Allocation, Allocations, AtPeak, Call, Snapshot};

impl Snapshot {
    pub(super) fn go_to_peak(&mut self) -> Result<(), PointError> {
        if self.at_peaks.is_empty() && self.counters.iter().any(|counter| counter.peak_bytes > 0) {
            return Err(match self.sampling {
                Some(_) => PointError::NoneChosen,
                None => PointError::NoPeak,
            });
        }
        // Rows are sums over all threads.
        let thread = unknown_thread(&mut self.threads);
        let calls: Vec<Call> = self.at_peaks.iter().map(|sum| call_of(sum, thread)).collect();
        let rows = self.at_peaks.iter().zip(&calls).map(|(sum, call)| {
            let row = Allocation {
                address: 0,
                bytes: sum.bytes,
                requested: sum.bytes,
                time_ns: 0,
                stack: sum.stack,
                call,
            };
            (row, sum.count)
        });
        self.allocations = Allocations::summed(rows);
        self.freed_after_end = Allocations::default();
        self.forget_objects();
        self.page_pools.clear();
        self.segments = self.segments_at_peak(thread);
        self.segments_freed_after_end = Allocations::default();
        self.segment_totals.clear();
        self.count_rows();
        Ok(())
    }

    /// What the kernel driver had given when the process had most of each device. `thread` stands for all threads.
    ///
    /// Memory that is live in the last state, and was taken before the peak, was there at the peak: it is a row each. What is
    /// missing to a stack's sum at the peak was given back since, and is one row.
    fn segments_at_peak(&self, thread: usize) -> Allocations {
        // Stack, device and function.
        type Site<'a> = (Option<usize>, Option<usize>, &'a str);
        let mut live: HashMap<Site, Vec<Allocation>> = HashMap::new();
        let counters = self.object_counters.iter().filter(|of| of.kind == Kind::Segment);
        let peaks: HashMap<Option<usize>, u64> = counters.map(|of| (of.device, of.peak_ns)).collect();
        let peak_ns = |device| peaks.get(&device).copied().unwrap_or(0);
        for row in self.segments.iter().chain(&self.segments_freed_after_end) {
            if row.kind == Kind::Segment && row.time_ns <= peak_ns(row.device) {
                live.entry((row.stack, row.device, row.api())).or_default().push(row);
            }
        }
        let calls: Vec<Call> = (self.segments_at_peaks.iter())
            .map(|sum| call_of(sum, thread))
            .collect();
        let mut rows: Vec<(Allocation, u64)> = Vec::new();
        for (sum, call) in self.segments_at_peaks.iter().zip(&calls) {
            let known = live.remove(&(sum.stack, sum.device, &*sum.api)).unwrap_or_default();
            let bytes = known.iter().fold(0, |sum: u64, row| sum.saturating_add(row.bytes));
            let count = known.len() as u64;
            let is_part = bytes <= sum.bytes && count <= sum.count && (bytes == sum.bytes || count < sum.count);
            let known = if is_part { known } else { Vec::new() };
            let (bytes, count) = if is_part { (bytes, count) } else { (0, 0) };
            rows.extend(known.into_iter().map(|row| (row, 1)));
            if (bytes, count) != (sum.bytes, sum.count) {
                let bytes = sum.bytes - bytes;
                let rest = Allocation {
                    address: 0,
                    bytes,
                    requested: bytes,
                    time_ns: 0,
                    stack: sum.stack,
                    call,
                };
                rows.push((rest, sum.count - count));
            }
        }
        Allocations::summed(rows.into_iter())
    }

    /// The objects of this point are not known.
    fn forget_objects(&mut self) {
        self.objects_known = false;
        self.objects = Allocations::default();
        self.objects_freed_after_end = Allocations::default();
        self.object_counters
            .retain(|counter| counter.kind.place() != Place::Object);
    }
}

fn call_of(sum: &AtPeak, thread: usize) -> Call {
    Call {
        domain: sum.domain.clone(),
        ..Call::new(sum.kind, &*sum.api, sum.device, thread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::Point;
    use crate::sample::{MAIN, MIB, Sample, shut_down};
    use crate::snapshot::at::tests::assert_counters_agree;
    use crate::snapshot::streaming;

    #[test]
    fn the_peak_has_a_row_for_each_sum() {
        let mut snapshot = shut_down();
        let peak = snapshot.at(&Point::Peak).expect("a peak");
        peak.validate().expect("valid");
        assert_counters_agree(&peak);
        assert_eq!(peak.allocations.len(), snapshot.at_peaks.len());
        for (index, (row, sum)) in peak.allocations.iter().zip(&snapshot.at_peaks).enumerate() {
            assert_eq!((row.bytes, row.stack, row.kind), (sum.bytes, sum.stack, sum.kind));
            assert_eq!(peak.allocations.count(index), sum.count);
        }
        let json = serde_json::to_vec(&peak).expect("json");
        assert_eq!(serde_json::from_slice::<Snapshot>(&json).ok().as_ref(), Some(&peak));
        assert_eq!(streaming::read(&*json).expect("read"), Some(peak));
        snapshot.at_peaks.clear();
        assert_eq!(snapshot.at(&Point::Peak), Err(PointError::NoPeak));
        snapshot.sampling = Some(crate::snapshot::Sampling {
            bytes: MIB,
            most_bytes: 0,
            left_out: None,
        });
        assert_eq!(snapshot.at(&Point::Peak), Err(PointError::NoneChosen));
        assert!(
            Sample::new().finish(0, 0).at(&Point::Peak).is_ok(),
            "nothing was allocated"
        );
    }

    #[test]
    fn segments_at_the_peak_are_those_that_live_and_sums_of_the_others() {
        let mut sample = Sample::new();
        sample.takes_context(MAIN, Some(414 * MIB));
        let context = sample.0.segments.at(0).stack;
        let later = sample.stack(&[("cuMemAlloc_v2", "", "libcuda.so.1"), MAIN]);
        let gone = sample.stack(&[("cuLaunchKernel", "", "libcuda.so.1"), MAIN]);
        sample.adds(Kind::Segment, &[2 * MIB, 2 * MIB], later);
        sample.0.segments.change_last(|row, _| row.time_ns = u64::MAX);
        sample.has_objects(Kind::Segment, 0, 0, gone);
        let mut counters = sample.0.object_counters.clone();
        (counters[0].peak_bytes, counters[0].peak_ns) = (622 * MIB, u64::MAX - 1);
        let api = "NV_ESC_RM_ALLOC".to_owned();
        let at_peak = |stack, bytes, count| AtPeak {
            stack,
            kind: Kind::Segment,
            device: Some(0),
            domain: None,
            api: api.clone(),
            bytes,
            count,
        };
        sample.0.segments_at_peaks = vec![
            at_peak(context, 518 * MIB, 17),
            at_peak(Some(gone), 102 * MIB, 3),
            at_peak(Some(later), 2 * MIB, 1),
        ];
        let snapshot = Snapshot {
            object_counters: counters,
            ..sample.finish(0, 0)
        };
        let peak = snapshot.at(&Point::Peak).expect("a peak");
        peak.validate().expect("valid");
        let rows = peak.segments.iter().enumerate();
        let rows: Vec<_> = rows
            .map(|(index, row)| (row.bytes / MIB, peak.segments.count(index)))
            .collect();
        let context = [&[(6, 1)][..], &[(2, 1); 14], &[(70, 1), (414, 1)]].concat();
        assert_eq!(rows, [&context[..], &[(102, 3), (2, 1)]].concat());
        let json = serde_json::to_vec(&peak).expect("json");
        assert_eq!(streaming::read(&*json).expect("read"), Some(peak));
        // Rows that contradict their sum are not used.
        for (bytes, count) in [
            (517 * MIB, 17),
            (518 * MIB, 16),
            (519 * MIB, 17),
            (1, u64::MAX),
            (u64::MAX, 1),
        ] {
            let mut damaged = snapshot.clone();
            damaged.segments_at_peaks.truncate(1);
            (damaged.segments_at_peaks[0].bytes, damaged.segments_at_peaks[0].count) = (bytes, count);
            let peak = damaged.at(&Point::Peak).expect("a peak");
            assert_eq!((peak.segments.len(), peak.segments.count(0)), (1, count));
            assert_eq!(peak.segments.at(0).bytes, bytes);
        }
    }

    #[test]
    fn damaged_counts_are_refused() {
        let mut peak = shut_down().at(&Point::Peak).expect("a peak");
        let json = serde_json::to_string(&peak).expect("json");
        let first = peak.allocations.count(0);
        let last = format!(",{first}]");
        let without = json.replacen(&last, "]", 1);
        assert_ne!(json, without);
        assert!(serde_json::from_str::<Snapshot>(&without).is_err());
        assert_eq!(streaming::read(without.as_bytes()).expect("read"), None);
        peak.allocations.counts[0] = u64::MAX;
        assert!(peak.validate().unwrap_err().contains("64 bits"));
    }
}
