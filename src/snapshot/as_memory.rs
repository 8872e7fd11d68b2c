//! Objects or segments in the place of the memory, for reports and formats that list either.

use super::{Allocations, DevicePeak, Snapshot};
use crate::kind::{Kind, Place};

impl Snapshot {
    /// The objects without an address in the place of the memory, for formats that list either.
    pub fn into_objects(self) -> Snapshot {
        Snapshot {
            allocations: self.objects,
            counters: self.object_counters,
            objects: Allocations::default(),
            objects_known: false,
            objects_freed_after_end: Allocations::default(),
            object_counters: Vec::new(),
            segments: Allocations::default(),
            freed_after_end: Allocations::default(),
            holders: None,
            totals: Vec::new(),
            at_peaks: Vec::new(),
            device_peaks: Vec::new(),
            allocators: Vec::new(),
            page_pools: Vec::new(),
            domains: Vec::new(),
            ..self
        }
    }

    /// The device of segments whose device is not known. If that of others is known, they are on GPUs that the program does not
    /// use: the driver takes some memory on each GPU that it sees.
    pub(crate) fn device_of_segments(&self) -> Option<usize> {
        let counters = self
            .object_counters
            .iter()
            .map(|counter| (counter.kind, counter.device));
        let rows = self.segments.calls().iter().map(|call| (call.kind, call.device));
        let is_known = |(kind, device): (Kind, Option<usize>)| kind == Kind::Segment && device.is_some();
        (self.devices.len() == 1 && !counters.chain(rows).any(is_known)).then_some(0)
    }

    /// What the kernel driver gave to the process in the place of the memory, for reports of it.
    pub fn into_segments(self) -> Snapshot {
        let only = self.device_of_segments();
        let mut counters = self.object_counters;
        counters.retain(|counter| counter.kind.place() == Place::Segment && counter.total_count > 0);
        let peaks = counters.iter().filter(|counter| counter.kind == Kind::Segment);
        let device_peaks = peaks.filter_map(|counter| {
            Some(DevicePeak {
                device: counter.device.or(only)?,
                peak_bytes: counter.peak_bytes,
                time_ns: counter.peak_ns,
            })
        });
        Snapshot {
            device_peaks: device_peaks.collect(),
            allocations: self.segments,
            freed_after_end: self.segments_freed_after_end,
            totals: self.segment_totals,
            at_peaks: self.segments_at_peaks,
            counters,
            segments: Allocations::default(),
            segments_freed_after_end: Allocations::default(),
            segment_totals: Vec::new(),
            segments_at_peaks: Vec::new(),
            objects: Allocations::default(),
            objects_known: false,
            objects_freed_after_end: Allocations::default(),
            object_counters: Vec::new(),
            holders: None,
            allocators: Vec::new(),
            page_pools: Vec::new(),
            domains: Vec::new(),
            usage: None,
            ..self
        }
    }
}
