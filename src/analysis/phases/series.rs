//! Series: the sums over time of which a phase has figures, and the sites that count in each.
//!
//! Memory of a caching allocator appears twice in a timeline: as the segment that the driver handed out, and as the blocks that
//! the allocator hands out from it. *Held* counts each byte once, at the level that reports list (`groups`); *blocks* and
//! *driver* are the two levels themselves. *Process* is what the kernel driver gave, in which all of it lies. Its sites follow
//! those of memory.
//!
//! A level belongs to a site here and not, as in a snapshot, to a record: if blocks were ever allocated within memory of a
//! site, all memory of this site counts as behind them.

use std::collections::HashMap;

use serde::Serialize;

use crate::analysis::filter::{Filter, Filtering, Location};
use crate::analysis::groups::Level;
use crate::analysis::lives::levels;
use crate::analysis::site::CallStacks;
use crate::kind::{Kind, Place};
use crate::snapshot::Snapshot;
use crate::timeline::lives::Lives;

/// What a series adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    /// Memory in use, each byte once, and memory that caching allocators keep, if their blocks are not known.
    Held,
    /// Tensors, buffers and blocks of frameworks.
    Blocks,
    /// What the driver handed out.
    Driver,
    /// What the kernel driver gave to the process, as NVML counts it.
    Process,
}

/// A sum over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Series {
    pub layer: Layer,
    /// `None`: all GPUs and the host together.
    #[serde(rename = "place")]
    pub location: Option<Location>,
}

/// The most series in which a site counts.
const SERIES_OF_SITE: usize = 3;

/// All series, and those in which each site counts.
pub struct SeriesOfSites {
    /// The first is all memory held.
    pub all: Vec<Series>,
    of_site: Vec<[u16; SERIES_OF_SITE]>,
}

/// No further series.
const END: u16 = u16::MAX;

impl SeriesOfSites {
    pub fn of(
        snapshot: &Snapshot,
        memory: &Lives,
        segments: &Lives,
        stacks: &CallStacks,
        filter: &Filter,
    ) -> SeriesOfSites {
        let mut filtering = Filtering::new(filter, snapshot);
        let everything = Series {
            layer: Layer::Held,
            location: None,
        };
        let mut series = SeriesOfSites {
            all: vec![everything],
            of_site: Vec::with_capacity(memory.sites.len() + segments.sites.len()),
        };
        let mut known: HashMap<(Layer, Option<usize>), u16> = HashMap::new();
        let mut at = |all: &mut Vec<Series>, layer: Layer, device: Option<usize>| {
            *known.entry((layer, device)).or_insert_with(|| {
                let location = device.map_or(Location::Host, |device| {
                    Location::Gpu(snapshot.devices.get(device).map_or(-1, |device| device.ordinal))
                });
                let location = Some(location);
                all.push(Series { layer, location });
                all.len() as u16 - 1
            })
        };
        for (site, [_, blocks_are_known]) in memory.sites.iter().zip(levels(memory)) {
            let mut wanted = [END; SERIES_OF_SITE];
            let mut used = 0;
            let mut count = |series: u16| {
                wanted[used] = series;
                used += 1;
            };
            let allocator = stacks.get(site.stack).allocator;
            let level = Level::of(site.kind, allocator.is_some(), blocks_are_known);
            let place = site.kind.place();
            let device = place.counts_against(site.device);
            let mut at = |layer: Layer| at(&mut series.all, layer, device);
            // A site may be that of several threads.
            if filtering.passes_site(site, None, stacks) {
                if level.is_counted() {
                    count(0);
                    count(at(Layer::Held));
                }
                match place {
                    Place::Within => count(at(Layer::Blocks)),
                    Place::Device | Place::Managed => count(at(Layer::Driver)),
                    Place::Host | Place::Nowhere | Place::Segment | Place::Object => {}
                }
            }
            series.of_site.push(wanted);
        }
        let only = snapshot.device_of_segments();
        for site in &segments.sites {
            let mut wanted = [END; SERIES_OF_SITE];
            if let Some(device) = site.device.or(only)
                && site.kind == Kind::Segment
                && filtering.passes_at_any_time(site.kind.into(), Some(device), site.stack, stacks)
            {
                wanted[0] = at(&mut series.all, Layer::Process, Some(device));
            }
            series.of_site.push(wanted);
        }
        series
    }

    /// The series in which a site counts.
    pub fn of_site(&self, site: u32) -> impl Iterator<Item = usize> + use<> {
        let none = [END; SERIES_OF_SITE];
        let series = self.of_site.get(site as usize).copied().unwrap_or(none);
        series.into_iter().filter(|&each| each != END).map(usize::from)
    }

    /// Leaves only the first series: with very many phases, the figures of all series would take gigabytes.
    pub fn keep_first(&mut self) {
        self.all.truncate(1);
        let others = self.of_site.iter_mut().flatten();
        others.filter(|series| **series != 0).for_each(|series| *series = END);
    }

    /// Whether the site's memory is held.
    pub fn is_held(&self, site: u32) -> bool {
        self.of_site(site).next() == Some(0)
    }
}
