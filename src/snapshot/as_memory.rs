//! Objects or segments in the place of the memory, for reports and formats that list either.

use super::{Allocations, DevicePeak, Snapshot};
use crate::kind::{Kind, Place};

impl Snapshot {
    /// The objects without an address in the place of the memory, for formats that list either.
    pub fn into_objects(mut self) -> Snapshot {
        Snapshot {
            allocations: std::mem::take(&mut self.objects),
            counters: std::mem::take(&mut self.object_counters),
            freed_after_end: Allocations::default(),
            totals: Vec::new(),
            at_peaks: Vec::new(),
            device_peaks: Vec::new(),
            ..self.of_one_table()
        }
    }

    /// Without the tables beside that of the memory, and what is known of its blocks alone.
    fn of_one_table(self) -> Snapshot {
        Snapshot {
            objects: Allocations::default(),
            objects_known: false,
            objects_freed_after_end: Allocations::default(),
            object_counters: Vec::new(),
            segments: Allocations::default(),
            holders: None,
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
    pub fn into_segments(mut self) -> Snapshot {
        let only = self.device_of_segments();
        let mut counters = std::mem::take(&mut self.object_counters);
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
            allocations: std::mem::take(&mut self.segments),
            freed_after_end: std::mem::take(&mut self.segments_freed_after_end),
            totals: std::mem::take(&mut self.segment_totals),
            at_peaks: std::mem::take(&mut self.segments_at_peaks),
            counters,
            usage: None,
            ..self.of_one_table()
        }
    }
}
