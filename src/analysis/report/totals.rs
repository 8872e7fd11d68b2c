//! Totals of a report: memory in use by place, that of pools and devices, and memory of static constructors.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::is_leaked;
use crate::analysis::groups::{Group, Level};
use crate::analysis::site::CallStacks;
use crate::cuda_functions::Api;
use crate::kind::{Kind, Place};
use crate::snapshot::{Counter, Device, Snapshot};
use crate::tally::Tally;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Totals {
    /// Memory in use, without pools. It is leaked if the process has ended.
    pub held: Held,
    /// Memory that the driver handed out, including pools.
    pub device: Tally,
    pub managed: Tally,
    pub host: Tally,
    /// The part of these three that caching allocators hold.
    pub pool: Tally,
    /// The part of `held` that a static destructor may have tried to free after CUDA had shut down. A statically linked
    /// runtime rejects such frees itself, so they cannot be observed.
    pub alive_at_shutdown: Tally,
    /// The part of `alive_at_shutdown` that static constructors requested.
    pub from_static_constructors: Tally,
    /// Number of records that hold no memory (mappings, address ranges, pools, imports), by kind.
    pub claims: BTreeMap<&'static str, u64>,
    /// Number of call sites that hold memory.
    pub call_sites: usize,
    pub failed: Tally,
    /// Allocations since the recording began.
    pub allocated: u64,
    /// The number of these that were freed.
    pub freed: u64,
}

/// Memory in use, each byte counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Held {
    /// Tensors and buffers of frameworks.
    pub blocks: Tally,
    pub device: Tally,
    pub managed: Tally,
    pub host: Tally,
}

impl Held {
    /// Lowers what is estimated at a peak to the exact peaks.
    fn limit(&mut self, counters: &[Counter]) {
        for (place, tally) in [
            (Place::Within, &mut self.blocks),
            (Place::Device, &mut self.device),
            (Place::Managed, &mut self.managed),
            (Place::Host, &mut self.host),
        ] {
            let of_place = counters.iter().filter(|counter| counter.kind.place() == place);
            tally.bytes = tally.bytes.min(sum(of_place.map(|counter| counter.peak_bytes)));
        }
    }

    pub fn on_devices(&self) -> Tally {
        Tally::total([self.blocks, self.device, self.managed])
    }

    pub fn total(&self) -> Tally {
        Tally::total([self.on_devices(), self.host])
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct DeviceTotal<'a> {
    pub ordinal: i32,
    pub name: &'a str,
    pub uuid: &'a str,
    pub live: Tally,
    pub peak_bytes: u64,
}

pub(super) fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

pub(super) fn totals(snapshot: &Snapshot, stacks: &CallStacks, groups: &[&Group]) -> Totals {
    let mut totals = Totals::default();
    let mut sites = BTreeSet::new();
    let ended_by_exit = is_leaked(snapshot);
    let has_runtime = snapshot.losses.export_tables > 0;
    for group in groups {
        let kind = group.call.kind;
        let (driver, held) = match kind.place() {
            Place::Device => (&mut totals.device, &mut totals.held.device),
            Place::Managed => (&mut totals.managed, &mut totals.held.managed),
            Place::Host => (&mut totals.host, &mut totals.held.host),
            // Reports of segments have them in the place of the memory.
            Place::Segment if kind == Kind::Segment => (&mut totals.device, &mut totals.held.device),
            Place::Segment if kind == Kind::HostSegment => (&mut totals.host, &mut totals.held.host),
            Place::Nowhere | Place::Segment | Place::Object => {
                *totals.claims.entry(kind.name()).or_default() += group.count;
                continue;
            }
            Place::Within => (&mut Tally::default(), &mut totals.held.blocks),
        };
        driver.join(group.tally());
        if group.level == Level::Held {
            held.join(group.tally());
            let stack = stacks.get(group.stack);
            if !group.is_left_out {
                sites.insert(stack.site_fingerprint);
            }
            let by_driver = Api::find(group.call.api.as_bytes()).is_some_and(Api::is_driver);
            if ended_by_exit && by_driver && stack.is_of_static_runtime(has_runtime) {
                totals.alive_at_shutdown.join(group.tally());
                if stack.is_of_static_constructor() {
                    totals.from_static_constructors.join(group.tally());
                }
            }
        } else {
            totals.pool.join(group.tally());
        }
    }
    let is_segment = |group: &Group| group.call.kind.place() == Place::Segment;
    if snapshot.sampling.is_some() && snapshot.allocations.is_summed() && !groups.iter().copied().any(is_segment) {
        totals.held.limit(&snapshot.counters);
    }
    totals.call_sites = sites.len();
    totals.failed = Tally::total(snapshot.failed.iter().map(Tally::from));
    totals.allocated = sum(snapshot.counters.iter().map(|counter| counter.total_count));
    totals.freed = sum(snapshot.counters.iter().map(|counter| counter.freed_count));
    totals
}

pub(super) fn device_totals<'a>(snapshot: &'a Snapshot, groups: &[&Group]) -> Vec<DeviceTotal<'a>> {
    let mut live = vec![Tally::default(); snapshot.devices.len()];
    for group in groups {
        if let Some(device) = group.call.device
            && (group.call.kind.place().on_device() || group.call.kind == Kind::Segment)
        {
            live[device].join(group.tally());
        }
    }
    let mut peaks = vec![0; snapshot.devices.len()];
    for peak in &snapshot.device_peaks {
        peaks[peak.device] = peak.peak_bytes;
    }
    let devices = snapshot.devices.iter().zip(live.into_iter().zip(peaks));
    let total = |(device, (live, peak_bytes)): (&'a Device, _)| DeviceTotal {
        ordinal: device.ordinal,
        name: &device.name,
        uuid: &device.uuid,
        live,
        peak_bytes,
    };
    let mut totals: Vec<_> = devices.map(total).collect();
    totals.sort_by_key(|total| total.ordinal);
    totals
}
