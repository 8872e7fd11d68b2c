//! A Perfetto trace, for <https://ui.perfetto.dev>: counter tracks per device and kind, and instants.
//!
//! With an event log, the trace is a history (over_time.rs): `GPU 0 device` is all live memory of a kind over time, the largest
//! blocks of each call site are slices, and phases are slices. Without one, it shows:
//!
//! - `GPU 0 device, still live`: live allocations, added up in order of allocation time; the last point is all live
//!   memory. Freed memory is absent.
//! - `GPU 0 device, in snapshots`: all live memory at each of several snapshots (automatic ones too) of one process.
//! - Instants: marks of the program, failed requests, and automatic snapshots with their reason.
//!
//! All processes are on one clock, so that the ranks of a job compare. A track has at most
//! [`POINTS`](super::curve::POINTS) points; if points are dropped, the others are exact.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};

use culeak::analysis::diff::same_process;
use culeak::analysis::lives::Logged;
use culeak::analysis::report::device_name;
use culeak::kind::{Kind, Place};
use culeak::snapshot::{Call, Reason, Snapshot};
use prost::{Message, Oneof};

use super::Input;
use super::curve::Curve;
use super::protobuf::messages;
use crate::escape::Escaped;
use crate::progress::{Progress, Unit};
use crate::text::units;

mod over_time;

// The parts of Perfetto's `trace.proto` that are written here, with its field numbers.
messages! {
    Trace { packet: Vec<Packet> = 1 message repeated; }
}

#[derive(Clone, PartialEq, Message)]
pub struct Packet {
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    #[prost(oneof = "Data", tags = "6, 11, 60")]
    pub data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Data {
    #[prost(message, tag = "6")]
    ClockSnapshot(ClockSnapshot),
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
}

messages! {
    ClockSnapshot { clocks: Vec<Clock> = 1 message repeated; }
    #[derive(Copy)]
    Clock { clock_id: Option<u32> = 1 uint32 optional; timestamp: Option<u64> = 2 uint64 optional; }
    TrackDescriptor {
        uuid: Option<u64> = 1 uint64 optional;
        name: Option<String> = 2 string optional;
        process: Option<ProcessDescriptor> = 3 message optional;
        parent_uuid: Option<u64> = 5 uint64 optional;
        counter: Option<CounterDescriptor> = 8 message optional;
    }
    ProcessDescriptor {
        pid: Option<i32> = 1 int32 optional;
        cmdline: Vec<String> = 2 string repeated;
        process_name: Option<String> = 6 string optional;
    }
    #[derive(Copy)]
    CounterDescriptor { unit: Option<i32> = 3 int32 optional; }
    TrackEvent {
        debug_annotations: Vec<DebugAnnotation> = 4 message repeated;
        r#type: Option<i32> = 9 int32 optional;
        track_uuid: Option<u64> = 11 uint64 optional;
        name: Option<String> = 23 string optional;
        counter_value: Option<i64> = 30 int64 optional;
    }
    DebugAnnotation { string_value: Option<String> = 6 string optional; name: Option<String> = 10 string optional; }
}

const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const INSTANT: i32 = 3;
const COUNTER: i32 = 4;
const BYTES: i32 = 3;
/// Perfetto's numbers of clocks: the trace's clock, and the time of day.
const BOOT_TIME: u32 = 6;
const REAL_TIME: u32 = 1;
/// All packets have one writer.
const SEQUENCE: u32 = 1;

pub fn export(input: &Input, out: &mut dyn Write) -> io::Result<()> {
    let items = input.items.iter().map(|item| (&item.snapshot, item.timeline.as_ref()));
    write(&items.collect::<Vec<_>>(), &input.options.filter.kinds, out)
}

/// A snapshot, and the events of its process if they were logged.
pub type WithEvents<'a> = (&'a Snapshot, Option<&'a Logged>);

/// Writes one trace of several snapshots, of one process or of many.
pub fn write(snapshots: &[WithEvents], kinds: &[Kind], out: &mut dyn Write) -> io::Result<()> {
    let mut trace = Writer {
        out,
        uuids: 0,
        several: false,
        pids: HashSet::new(),
        zero: snapshots
            .iter()
            .map(|(snapshot, _)| snapshot.process.started_unix_ns)
            .min()
            .unwrap_or(0),
    };
    let clock = |clock_id, timestamp| Clock {
        clock_id: Some(clock_id),
        timestamp: Some(timestamp),
    };
    let clocks = vec![clock(BOOT_TIME, 0), clock(REAL_TIME, trace.zero)];
    trace.packet(None, Data::ClockSnapshot(ClockSnapshot { clocks }))?;
    let mut left: Vec<WithEvents> = snapshots.to_vec();
    let first = snapshots.first().map(|input| input.0);
    trace.several = snapshots
        .iter()
        .any(|input| first.is_some_and(|first| !same_process(first, input.0)));
    while !left.is_empty() {
        // `same_process` is false for a snapshot of an unknown process, even with itself, so take it out first.
        let first = left.remove(0);
        let (mut own, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|other| same_process(first.0, other.0));
        own.insert(0, first);
        own.sort_by_key(|(snapshot, _)| snapshot.taken.at_ns);
        trace.process(&own, kinds)?;
        left = others;
    }
    Ok(())
}

struct Writer<'o> {
    out: &'o mut dyn Write,
    uuids: u64,
    /// There is more than one process.
    several: bool,
    /// The processes so far.
    pids: HashSet<u32>,
    /// The start of the first process, where the trace begins.
    zero: u64,
}

impl Writer<'_> {
    fn packet(&mut self, timestamp: Option<u64>, data: Data) -> io::Result<()> {
        let packet = Packet {
            timestamp,
            trusted_packet_sequence_id: Some(SEQUENCE),
            data: Some(data),
        };
        // Concatenated traces are a trace.
        let trace = Trace { packet: vec![packet] };
        self.out.write_all(&trace.encode_to_vec())
    }

    fn track(&mut self, descriptor: TrackDescriptor) -> io::Result<u64> {
        self.uuids += 1;
        let descriptor = TrackDescriptor {
            uuid: Some(self.uuids),
            ..descriptor
        };
        self.packet(None, Data::TrackDescriptor(descriptor))?;
        Ok(self.uuids)
    }

    fn counter(&mut self, owner: u64, name: String) -> io::Result<u64> {
        self.track(TrackDescriptor {
            name: Some(name),
            parent_uuid: Some(owner),
            counter: Some(CounterDescriptor { unit: Some(BYTES) }),
            ..TrackDescriptor::default()
        })
    }

    fn value(&mut self, track: u64, time: u64, value: u64) -> io::Result<()> {
        let event = TrackEvent {
            r#type: Some(COUNTER),
            track_uuid: Some(track),
            counter_value: Some(i64::try_from(value).unwrap_or(i64::MAX)),
            ..TrackEvent::default()
        };
        self.packet(Some(time), Data::TrackEvent(event))
    }

    /// An instant, or the beginning of a slice.
    fn named(&mut self, r#type: i32, track: u64, time: u64, name: &str, notes: &[(&str, String)]) -> io::Result<()> {
        let note = |(name, text): &(&str, String)| DebugAnnotation {
            name: Some((*name).to_owned()),
            string_value: Some(Escaped(text).to_string()),
        };
        let event = TrackEvent {
            r#type: Some(r#type),
            track_uuid: Some(track),
            name: Some(Escaped(name).to_string()),
            debug_annotations: notes.iter().map(note).collect(),
            ..TrackEvent::default()
        };
        self.packet(Some(time), Data::TrackEvent(event))
    }

    /// Snapshots of one process, earliest first.
    fn process(&mut self, inputs: &[WithEvents], kinds: &[Kind]) -> io::Result<()> {
        let snapshots: Vec<&Snapshot> = inputs.iter().map(|(snapshot, _)| *snapshot).collect();
        let Some(&last) = snapshots.last() else { return Ok(()) };
        let logged = inputs
            .iter()
            .rev()
            .find_map(|(snapshot, logged)| Some((*snapshot, (*logged)?)));
        let offset = last.process.started_unix_ns.saturating_sub(self.zero);
        let executable = Escaped(&last.process.executable).to_string();
        let name = match self.several {
            true => format!("{}: {executable}", Escaped(&super::called(last))),
            false => executable,
        };
        // The viewer takes equal pids of two hosts for one process. Snapshots that PyTorch took of itself have none.
        let is_new = last.process.pid == 0 || self.pids.insert(last.process.pid);
        let owner = self.track(TrackDescriptor {
            name: (!is_new).then(|| format!("{name} (process {})", last.process.pid)),
            process: is_new.then(|| ProcessDescriptor {
                pid: i32::try_from(last.process.pid).ok(),
                cmdline: last
                    .process
                    .command_line
                    .iter()
                    .map(|word| Escaped(word).to_string())
                    .collect(),
                process_name: Some(name.clone()),
            }),
            ..TrackDescriptor::default()
        })?;
        let wanted = |kind: Kind| kinds.is_empty() || kinds.contains(&kind);
        if let Some((snapshot, logged)) = logged {
            self.over_time(owner, offset, snapshot, logged, &wanted)?;
        }
        let without_log = if logged.is_none() {
            still_live(last, &wanted)
        } else {
            Tracks::new()
        };
        for (name, points) in without_log {
            let track = self.counter(owner, format!("{name}, still live"))?;
            self.value(track, offset, 0)?;
            for (time, bytes) in points {
                self.value(track, offset.saturating_add(time), bytes)?;
            }
        }
        if snapshots.len() > 1 {
            for (name, points) in in_snapshots(&snapshots, &wanted) {
                let track = self.counter(owner, format!("{name}, in snapshots"))?;
                for (time, bytes) in points {
                    self.value(track, offset.saturating_add(time), bytes)?;
                }
            }
        }
        self.instants(owner, offset, &snapshots, last)
    }

    fn instants(&mut self, owner: u64, offset: u64, snapshots: &[&Snapshot], last: &Snapshot) -> io::Result<()> {
        let mut instant = |time: u64, name: &str, notes: &[(&str, String)]| {
            self.named(INSTANT, owner, offset.saturating_add(time), name, notes)
        };
        for mark in &last.marks {
            instant(mark.time_ns, &mark.name, &[])?;
        }
        for failed in &last.failed {
            let name = format!("failed: {} of {}", failed.api, units::bytes(failed.bytes));
            let notes = [("error", failed.error.to_string()), ("times", failed.count.to_string())];
            instant(failed.first_ns, &name, &notes)?;
            if failed.last_ns != failed.first_ns {
                instant(failed.last_ns, &name, &notes)?;
            }
        }
        for snapshot in snapshots {
            let Some(automatic) = &snapshot.taken.automatic else {
                continue;
            };
            let why = match automatic.reason {
                Reason::OutOfMemory => "out of memory",
                Reason::Peak => "peak",
                Reason::Mark => "mark",
                Reason::Requested => "requested",
                Reason::Every => "interval",
            };
            let notes = [("name", automatic.name.clone().unwrap_or_default())];
            instant(snapshot.taken.at_ns, &format!("automatic snapshot: {why}"), &notes)?;
        }
        Ok(())
    }
}

/// Times and bytes.
type Points = Vec<(u64, u64)>;
fn points(curve: Curve) -> Points {
    let points = curve.points().into_iter();
    points.map(|point| (point.time_ns, point.bytes)).collect()
}

/// Points by the name of their track.
type Tracks = BTreeMap<String, Points>;

/// Host memory has one track, independent of the device.
fn track(kind: Kind, device: Option<usize>) -> (Kind, Option<usize>) {
    (kind, kind.place().counts_against(device))
}

fn track_name(snapshot: &Snapshot, device: Option<usize>, kind: Kind) -> String {
    match device {
        None => kind.name().to_owned(),
        device => format!("{} {}", device_name(snapshot, device), kind.name()),
    }
}

fn still_live(snapshot: &Snapshot, wanted: &dyn Fn(Kind) -> bool) -> Tracks {
    let all = &snapshot.allocations;
    let calls = all.calls();
    let mut curves: BTreeMap<(Kind, Option<usize>), Curve> = BTreeMap::new();
    let shown = |call: &Call| wanted(call.kind) && has_bytes(call.kind);
    // Creates the curves; `place` below finds a call's curve by index.
    for call in calls.iter().filter(|call| shown(call)) {
        let curve = || Curve::of(all.len());
        curves.entry(track(call.kind, call.device)).or_insert_with(curve);
    }
    let tracks: Vec<(Kind, Option<usize>)> = curves.keys().copied().collect();
    let place = |call: &Call| tracks.binary_search(&track(call.kind, call.device)).ok();
    let place_of: Vec<Option<usize>> = calls.iter().map(place).collect();
    let mut curves: Vec<Curve> = curves.into_values().collect();
    let progress = Progress::over("placing in time", all.len() as u64, Unit::Of("records"));
    for (nth, index) in all.order_of_time().enumerate() {
        progress.tick(nth);
        if let Some(place) = place_of[all.call_of(index)] {
            let allocation = all.at(index);
            curves[place].add(allocation.time_ns, allocation.bytes);
        }
    }
    let name =
        |((kind, device), curve): ((Kind, Option<usize>), Curve)| (track_name(snapshot, device, kind), points(curve));
    let curves = tracks.into_iter().zip(curves);
    // A call may have no live allocation.
    curves
        .map(name)
        .filter(|(_, points): &(_, Points)| !points.is_empty())
        .collect()
}

fn in_snapshots(snapshots: &[&Snapshot], wanted: &dyn Fn(Kind) -> bool) -> Tracks {
    let mut tracks = Tracks::new();
    for snapshot in snapshots {
        let counters = snapshot.counters.iter();
        let mut sums: BTreeMap<(Kind, Option<usize>), u64> = BTreeMap::new();
        for counter in counters.filter(|counter| wanted(counter.kind) && has_bytes(counter.kind)) {
            let sum = sums.entry(track(counter.kind, counter.device)).or_default();
            *sum = sum.saturating_add(counter.live_bytes);
        }
        for ((kind, device), bytes) in sums {
            let name = track_name(snapshot, device, kind);
            tracks.entry(name).or_default().push((snapshot.taken.at_ns, bytes));
        }
    }
    tracks
}

/// Claims hold no memory, so they have no track.
fn has_bytes(kind: Kind) -> bool {
    kind.place() != Place::Nowhere
}
