//! One reading of one process's recording: everything the view shows of it except names, as plain data.

use std::collections::BTreeMap;
use std::path::PathBuf;

use culeak::analysis::report::{self, Tally};
use culeak::kind::{Kind, Place};
use culeak::snapshot::{Losses, Process, Snapshot};

use super::sums::{LiveSums, StackKey};

#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    /// Identifies the process.
    pub recording: PathBuf,
    pub process: Process,
    /// On the recording's clock.
    pub at_ns: u64,
    /// The process has ended, so live memory is leaked.
    pub finished: bool,
    /// In order of CUDA's ordinal.
    pub devices: Vec<DeviceReading>,
    pub sums: LiveSums,
    pub failed: Tally,
    pub allocated: u64,
    pub freed: u64,
    /// Objects without an address that exist, most first.
    pub objects: Vec<(Kind, u64)>,
    /// The mean distance of sampled stacks; `None`: rows are exact.
    pub sample_bytes: Option<u64>,
    pub losses: Losses,
    pub events_during_read: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DeviceReading {
    pub ordinal: i32,
    pub name: String,
    pub uuid: String,
    pub live: Tally,
    pub peak_bytes: u64,
}

impl Reading {
    /// `keys`: of the snapshot's stacks.
    pub fn of(snapshot: &Snapshot, keys: &[StackKey], recording: PathBuf) -> Reading {
        let sums = LiveSums::of(snapshot, keys);
        let peak = |device: usize| {
            let of_device = snapshot.device_peaks.iter().find(|peak| peak.device == device);
            of_device.map_or(0, |peak| peak.peak_bytes)
        };
        let mut devices: Vec<DeviceReading> = snapshot
            .devices
            .iter()
            .enumerate()
            .map(|(index, device)| DeviceReading {
                ordinal: device.ordinal,
                name: device.name.clone(),
                uuid: device.uuid.clone(),
                live: sums.devices[index],
                peak_bytes: peak(index),
            })
            .collect();
        devices.sort_by_key(|device| device.ordinal);
        let failed = snapshot
            .failed
            .iter()
            .map(|failed| Tally::new(failed.bytes, failed.count));
        let mut objects: BTreeMap<Kind, u64> = BTreeMap::new();
        let counters = snapshot.object_counters.iter();
        for counter in counters.filter(|counter| counter.kind.place() == Place::Object && counter.live_count > 0) {
            *objects.entry(counter.kind).or_default() += counter.live_count;
        }
        let mut objects: Vec<(Kind, u64)> = objects.into_iter().collect();
        objects.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        let sum = |numbers: &mut dyn Iterator<Item = u64>| numbers.fold(0, u64::saturating_add);
        Reading {
            recording,
            at_ns: snapshot.taken.at_ns,
            finished: report::is_finished(snapshot),
            devices,
            failed: Tally::total(failed),
            allocated: sum(&mut snapshot.counters.iter().map(|counter| counter.total_count)),
            freed: sum(&mut snapshot.counters.iter().map(|counter| counter.freed_count)),
            objects,
            sample_bytes: snapshot.sampling.map(|sampling| sampling.bytes),
            losses: snapshot.losses.clone(),
            events_during_read: snapshot.taken.events_during_read,
            process: snapshot.process.clone(),
            sums,
        }
    }
}
