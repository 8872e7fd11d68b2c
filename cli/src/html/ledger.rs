//! The ledger for the page: the lines of the text report, with numbers for the bars.

use culeak::analysis::ledger::{CacheSegment, DeviceLedger, Ledger, LineKind};
use serde::Serialize;

use crate::escape::Escaped;
use crate::text::ledger::{self, EntryOf};
use crate::text::units;

/// Segments with a separate bar, per allocator.
const SEGMENTS_SHOWN: usize = 200;

#[derive(Default, Serialize)]
pub struct Shown {
    devices: Vec<Device>,
    /// Host memory, and how PyTorch works.
    beside: Vec<(&'static str, String)>,
    missing: Option<String>,
}

#[derive(Serialize)]
struct Device {
    ordinal: i32,
    name: String,
    title: String,
    lines: Vec<Line>,
    caches: Vec<Cache>,
}

#[derive(Serialize)]
struct Line {
    bytes: i128,
    size: String,
    text: String,
    details: Vec<String>,
    /// The class that gives the line its colour.
    what: &'static str,
    in_sum: bool,
}

#[derive(Serialize)]
struct Cache {
    owner: String,
    bytes: u64,
    segments: Vec<Part>,
    hidden: usize,
}

#[derive(Serialize)]
struct Part {
    bytes: u64,
    live_bytes: u64,
    blocks: u64,
    largest_free_run: u64,
    expandable: bool,
}

pub fn of(ledger: &Ledger) -> Shown {
    let devices: Vec<_> = ledger::known_devices(ledger).map(|of| device(of, ledger)).collect();
    Shown {
        beside: ledger::beside_devices(ledger),
        missing: ledger
            .missing
            .as_ref()
            .filter(|_| !devices.is_empty())
            .map(|why| Escaped(why).to_string()),
        devices,
    }
}

fn device(device: &DeviceLedger, ledger: &Ledger) -> Device {
    let lines = ledger::entries(device, ledger).into_iter().map(|entry| Line {
        bytes: entry.bytes,
        size: ledger::large(entry.bytes),
        text: entry.text,
        details: (entry.details.iter())
            .map(|(bytes, text)| format!("{}  {text}", units::bytes(*bytes)))
            .collect(),
        what: match entry.of {
            EntryOf::Line(what) => class(what),
            EntryOf::Process => "process",
            EntryOf::Rest | EntryOf::Beside => "unexplained",
        },
        in_sum: entry.of.in_sum(),
    });
    let caches = device.caches.iter().filter(|cache| !cache.segments.is_empty());
    Device {
        ordinal: device.ordinal,
        name: Escaped(device.name).to_string(),
        title: ledger::title_of(device, ledger),
        lines: lines.collect(),
        caches: caches
            .map(|cache| Cache {
                owner: Escaped(cache.owner).to_string(),
                bytes: cache.bytes,
                segments: cache.segments.iter().take(SEGMENTS_SHOWN).map(part).collect(),
                hidden: cache.segments.len().saturating_sub(SEGMENTS_SHOWN),
            })
            .collect(),
    }
}

fn part(segment: &CacheSegment) -> Part {
    Part {
        bytes: segment.bytes,
        live_bytes: segment.live_bytes,
        blocks: segment.blocks,
        largest_free_run: segment.largest_free_run,
        expandable: segment.expandable,
    }
}

fn class(what: LineKind) -> &'static str {
    match what {
        LineKind::Blocks => "blocks",
        LineKind::Cached => "cached",
        LineKind::Pool => "pool",
        LineKind::Library => "library",
        LineKind::Program => "program",
        LineKind::Context => "context",
        LineKind::Rounding
        | LineKind::Arrays
        | LineKind::DeviceHeap
        | LineKind::OtherCalls
        | LineKind::UnnamedCalls
        | LineKind::Unrecorded => "rounding",
        LineKind::CudaPools | LineKind::ForBlocks => "pool",
        LineKind::LocalMemory => "local",
        LineKind::Code => "code",
        LineKind::Streams | LineKind::GraphExecs | LineKind::GreenContexts => "objects",
        LineKind::OtherProcesses => "others",
        LineKind::DriverContexts | LineKind::DriverDevice | LineKind::PageTables => "driver",
    }
}
