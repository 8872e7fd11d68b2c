//! The Firefox Profiler's processed profile, for <https://profiler.firefox.com>: native allocations with their stacks.
//!
//! Each live allocation is one sample at its allocation time, so the viewer's retained memory is what the report lists,
//! and a selected time range shows the live memory that was allocated in it. Freed memory has no stack in a recording and
//! is absent. A counter track for each device and for the host adds up the same allocations over time, in at most
//! [`POINTS`](super::curve::POINTS) points. Marks of the program are markers. Frames are labels with their source lines;
//! the viewer looks up no symbols. Several processes are on one clock, named by rank.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use culeak::analysis::profile::{Options, Profile};
use culeak::analysis::site::file_name;
use culeak::snapshot::{Call, Snapshot};
use fxprof_processed_profile::{
    CategoryHandle, Frame, FrameFlags, FrameInfo, MarkerTiming, Profile as File, ReferenceTimestamp, SamplingInterval,
    StackHandle, StaticSchemaMarker, StringHandle, Timestamp,
};

use super::Input;
use super::curve::{Curve, Point};
use crate::escape::Escaped;
use crate::names::{self, Detail};
use crate::progress::{Progress, Unit};

pub fn export(input: &Input, out: &mut dyn Write) -> io::Result<()> {
    let processes: Vec<_> = input.snapshots().collect();
    write(&processes, &input.options, input.detail_of_graph(), out)
}

/// Writes several processes into one file, on one clock. Each has a name if there are several.
pub fn write(
    processes: &[(Option<String>, &Snapshot)],
    options: &Options,
    detail: Detail,
    out: &mut dyn Write,
) -> io::Result<()> {
    let zero = processes
        .iter()
        .map(|(_, snapshot)| snapshot.process.started_unix_ns)
        .min()
        .unwrap_or(0);
    let began = ReferenceTimestamp::from_duration_since_unix_epoch(Duration::from_nanos(zero));
    let mut file = File::new("culeak", began, SamplingInterval::from_millis(1));
    file.set_os_name("Linux");
    file.set_symbolicated(true);
    for (name, snapshot) in processes {
        add_process(&mut file, name.as_deref(), snapshot, options, detail, zero);
    }
    crate::json::write(&mut *out, &file)?;
    writeln!(out)
}

fn add_process(file: &mut File, rank: Option<&str>, snapshot: &Snapshot, options: &Options, detail: Detail, zero: u64) {
    // The records of the file, in order of time, each with its path in the profile.
    let mut listed: Vec<(u32, u32)> = Vec::new();
    let profile = Profile::visiting(snapshot, options, |_, seen| {
        if seen.level.is_listed() {
            listed.push((seen.index as u32, seen.path as u32));
        }
    });
    let time = |(record, _): &(u32, u32)| snapshot.allocations.at(*record as usize).time_ns;
    if !listed.is_sorted_by_key(time) {
        listed.sort_by_key(time);
    }
    // The file counts time from `zero`, the process from its start.
    let offset = snapshot.process.started_unix_ns.saturating_sub(zero);
    let clock = |time_ns: u64| Timestamp::from_nanos_since_reference(offset.saturating_add(time_ns));
    let process = &snapshot.process;
    let name = Escaped(file_name(&process.executable)).to_string();
    let name = match rank {
        Some(rank) => format!("{}: {name}", Escaped(rank)),
        None => name,
    };
    let (start, end) = (clock(0), clock(snapshot.taken.at_ns));
    let owner = file.add_process(&name, process.pid, start);
    file.set_process_end_time(owner, end);
    // The viewer reads allocations from one thread.
    let thread = file.add_thread(owner, process.pid, start, true);
    file.set_thread_name(thread, "GPU memory, all threads");
    file.set_thread_end_time(thread, end);

    let frames: Vec<StringHandle> = profile
        .frames
        .iter()
        .map(|frame| file.intern_string(&names::frame(frame, detail)))
        .collect();
    let no_stack = file.intern_string(names::NO_STACK);
    let cut = file.intern_string(names::CUT);
    let info = |text: StringHandle| FrameInfo {
        frame: Frame::Label(text),
        category_pair: CategoryHandle::OTHER.into(),
        flags: FrameFlags::empty(),
    };
    let mut stacks: Vec<Option<StackHandle>> = Vec::with_capacity(profile.paths.len());
    for path in &profile.paths {
        let missing = match (path.frames.is_empty(), path.truncated) {
            (true, _) => Some(no_stack),
            (_, true) => Some(cut),
            _ => None,
        };
        let texts = missing
            .into_iter()
            .chain(path.frames.iter().map(|&frame| frames[frame]));
        stacks.push(file.intern_stack_frames(thread, texts.map(info)));
    }
    let place = |call: &Call| profile.place_of(call.kind, call.device);
    let places: Vec<String> = snapshot.allocations.calls().iter().map(place).collect();
    let mut curves: BTreeMap<&str, Curve> = BTreeMap::new();
    let progress = Progress::over("placing in time", listed.len() as u64, Unit::Of("records"));
    for (nth, &(record, path)) in listed.iter().enumerate() {
        progress.tick(nth);
        let allocation = snapshot.allocations.at(record as usize);
        let at = clock(allocation.time_ns);
        let bytes = i64::try_from(allocation.bytes).unwrap_or(i64::MAX);
        file.add_allocation_sample(thread, at, stacks[path as usize], allocation.address, bytes);
        let place = &places[snapshot.allocations.call_of(record as usize)];
        let curve = curves.entry(place.as_str()).or_insert_with(|| Curve::of(listed.len()));
        curve.add(allocation.time_ns, allocation.bytes);
    }
    for (place, curve) in curves {
        let counter = file.add_counter(owner, place, "Memory", "Live allocations by allocation time");
        file.add_counter_sample(counter, start, 0.0, 0);
        let mut before = Point::default();
        for point in curve.points() {
            let at = clock(point.time_ns);
            let (bytes, count) = (point.bytes - before.bytes, point.count - before.count);
            file.add_counter_sample(counter, at, bytes as f64, u32::try_from(count).unwrap_or(u32::MAX));
            before = point;
        }
    }
    for mark in &snapshot.marks {
        let at = clock(mark.time_ns);
        let name = file.intern_string(&Escaped(&mark.name).to_string());
        file.add_marker(thread, MarkerTiming::Instant(at), Mark(name));
    }
}

/// A mark of the program, as a marker.
struct Mark(StringHandle);

impl StaticSchemaMarker for Mark {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "culeak mark";
    const FIELDS: &'static [fxprof_processed_profile::StaticSchemaMarkerField] = &[];

    fn name(&self, _: &mut File) -> StringHandle {
        self.0
    }

    fn category(&self, _: &mut File) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, _: u32) -> StringHandle {
        self.0
    }

    fn number_field_value(&self, _: u32) -> f64 {
        0.0
    }
}
