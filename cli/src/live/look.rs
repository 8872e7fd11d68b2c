//! One look at one process: everything the view shows of it but names, as plain data.

use std::path::PathBuf;

use culeak::reader::Sight;
use culeak::report::{self, Share};
use culeak::snapshot::{Honesty, Process};

use super::tally::{StackKey, Tally};

#[derive(Debug, Clone, PartialEq)]
pub struct Look {
    /// Which process this is of.
    pub recording: PathBuf,
    pub process: Process,
    /// On the recording's clock.
    pub at_ns: u64,
    /// The process is over, so what is left is leaked.
    pub finished: bool,
    /// By CUDA's ordinal.
    pub devices: Vec<DeviceLook>,
    pub tally: Tally,
    pub refused: Share,
    pub allocated: u64,
    pub freed: u64,
    pub honesty: Honesty,
    pub events_during_read: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DeviceLook {
    pub ordinal: i32,
    pub name: String,
    pub live: Share,
    pub peak_bytes: u64,
}

impl Look {
    /// `keys`: of all stacks that this sight and those before told of.
    pub fn of(sight: &Sight, keys: &[StackKey], recording: PathBuf) -> Look {
        let tally = Tally::of(sight, keys);
        let snapshot = &sight.snapshot;
        let peak = |device: usize| {
            let of_device = snapshot.device_peaks.iter().find(|peak| peak.device == device);
            of_device.map_or(0, |peak| peak.peak_bytes)
        };
        let mut devices: Vec<DeviceLook> = snapshot
            .devices
            .iter()
            .enumerate()
            .map(|(index, device)| DeviceLook {
                ordinal: device.ordinal,
                name: device.name.clone(),
                live: tally.devices[index],
                peak_bytes: peak(index),
            })
            .collect();
        devices.sort_by_key(|device| device.ordinal);
        let refused = snapshot.refused.iter().map(|refused| Share {
            bytes: refused.bytes,
            count: refused.count,
        });
        let sum = |numbers: &mut dyn Iterator<Item = u64>| numbers.fold(0, u64::saturating_add);
        Look {
            recording,
            at_ns: snapshot.taken.at_ns,
            finished: report::is_finished(snapshot),
            devices,
            refused: Share::total(refused),
            allocated: sum(&mut snapshot.counters.iter().map(|counter| counter.total_count)),
            freed: sum(&mut snapshot.counters.iter().map(|counter| counter.freed_count)),
            honesty: snapshot.honesty.clone(),
            events_during_read: snapshot.taken.events_during_read,
            process: snapshot.process.clone(),
            tally,
        }
    }
}
