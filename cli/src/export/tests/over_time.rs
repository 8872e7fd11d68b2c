//! Tests of formats that show a timeline.

use std::collections::BTreeMap;

use culeak::point::Point;
use proptest::prelude::*;

use super::super::memory_viz;
use super::super::perfetto::{self, Data, Trace};
use super::super::window;
use super::*;
use crate::text::sample::MIB;
use crate::text::timeline::{Running, SECOND, training_over_time};
use culeak::analysis::lives::Logged;

fn viz(snapshot: &Snapshot, logged: &Logged) -> Value {
    let timeline = Some(&logged.timeline);
    let bytes = written(|out| memory_viz::write(snapshot, timeline, &Options::default(), SHORT, out).map(drop));
    as_json(&bytes)
}

fn as_json(bytes: &[u8]) -> Value {
    let pickle = pickle::read(bytes).expect("a pickle");
    json_of(&pickle, pickle.root())
}

/// The parts of a file that have these names, or are lists of them.
fn json_of(pickle: &pickle::Pickle, id: pickle::Id) -> Value {
    const NAMES: &[&str] = &[
        "segments",
        "device_traces",
        "blocks",
        "address",
        "total_size",
        "size",
        "state",
        "action",
        "addr",
        "time_us",
        "device_free",
        "frames",
        "name",
    ];
    if let Some(items) = pickle.items(id) {
        return items.iter().map(|&item| json_of(pickle, item)).collect();
    }
    if let Some(text) = pickle.text(id) {
        return text.into();
    }
    if let Some(number) = pickle.number(id) {
        return number.into();
    }
    let known = NAMES
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), json_of(pickle, pickle.get(id, name)?))));
    Value::Object(known.collect())
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} of {value}"))
}

/// Undoes the trace from its end, as the viewer does. After each step, every block lies in a segment. Returns the bytes in
/// blocks after each event, the last first.
fn undone(file: &Value) -> Vec<u64> {
    let (mut segments, mut blocks) = (BTreeMap::new(), BTreeMap::new());
    for segment in file["segments"].as_array().expect("segments") {
        segments.insert(number(segment, "address"), number(segment, "total_size"));
        for block in segment["blocks"].as_array().expect("blocks") {
            if block["state"] == "active_allocated" {
                blocks.insert(number(block, "address"), number(block, "size"));
            }
        }
    }
    let mut sums = Vec::new();
    let trace = file["device_traces"][0].as_array().cloned().unwrap_or_default();
    let mut requested = None;
    for event in trace.iter().rev() {
        sums.push(blocks.values().sum());
        for (address, size) in &blocks {
            let around = segments.range(..=*address).next_back();
            assert!(
                around.is_some_and(|(start, length)| address + size <= start + length),
                "{event}"
            );
        }
        let action = event["action"].as_str().expect("an action");
        if action == "oom" {
            continue;
        }
        let (address, size) = (number(event, "addr"), number(event, "size"));
        match action {
            "alloc" => assert_eq!(blocks.remove(&address), Some(size), "{event}"),
            "free_completed" => {
                assert_eq!(blocks.insert(address, size), None, "{event}");
                requested = Some(address);
            }
            "free_requested" => assert_eq!(requested.take(), Some(address), "right before its completion"),
            "segment_alloc" => assert_eq!(segments.remove(&address), Some(size), "{event}"),
            "segment_free" => assert_eq!(segments.insert(address, size), None, "{event}"),
            "segment_map" => {
                let (&start, &length) = segments.range(..=address).next_back().expect("a segment");
                assert!(address + size <= start + length, "{event}");
                segments.remove(&start);
                let parts = [
                    (start, address - start),
                    (address + size, start + length - address - size),
                ];
                segments.extend(parts.into_iter().filter(|(_, length)| *length > 0));
            }
            "segment_unmap" => {
                let mut part = (address, size);
                if let Some(length) = segments.remove(&(address + size)) {
                    part.1 += length;
                }
                let before = segments
                    .range(..address)
                    .next_back()
                    .map(|(start, length)| (*start, *length));
                if let Some((start, length)) = before.filter(|(start, length)| start + length == address) {
                    part = (start, length + part.1);
                }
                segments.insert(part.0, part.1);
            }
            other => panic!("{other}"),
        }
    }
    sums.push(blocks.values().sum());
    sums
}

#[test]
fn pytorchs_viewer_can_undo_every_event() {
    let (snapshot, logged) = training_over_time().finish(0);
    let file = viz(&snapshot, &logged);
    let sums = undone(&file);
    assert_eq!(sums.last(), Some(&0), "before all events nothing is live");
    // The peak: the table, the weights, and the activations of step 5.
    assert_eq!(sums.iter().max(), Some(&((3 + 8 + 6 + 30) * MIB)));
    let trace = file["device_traces"][0].as_array().expect("a trace");
    let times: Vec<u64> = trace.iter().map(|event| number(event, "time_us")).collect();
    assert!(times.is_sorted());
    let oom = trace
        .iter()
        .find(|event| event["action"] == "oom")
        .expect("a failed request");
    assert_eq!((number(oom, "size"), number(oom, "device_free")), (1 << 40, 0));
    let alloc = trace
        .iter()
        .find(|event| number(event, "size") == 30 * MIB)
        .expect("the peak");
    assert_eq!(alloc["frames"][0]["name"], "forward");
}

#[test]
fn a_log_without_its_beginning_leads_back_to_its_first_state() {
    let lacking = 20;
    let (snapshot, logged) = training_over_time().finish(lacking);
    let sums = undone(&viz(&snapshot, &logged));
    let program = training_over_time();
    let live = program.events[..lacking].iter().fold(0, |sum, event| {
        let counts = program.sites[event.site as usize].stack != program.sites[0].stack;
        match event.op {
            culeak::timeline::Op::Freed if counts => sum - event.bytes,
            _ if counts => sum + event.bytes,
            _ => sum,
        }
    });
    assert_eq!(sums.last(), Some(&live));
}

#[test]
fn mapped_segments_grow_and_shrink() {
    let mut program = Running::new();
    let physical = program.site(Kind::Physical, "grow");
    let mapping = program.site(Kind::Mapping, "grow");
    let tensor = program.site(Kind::Tensor, "forward");
    let base = 0x7f00_0000_0000;
    for nth in 0..4 {
        program.allocate(physical, 0x1000 + nth, 2 * MIB);
        program.allocate(mapping, base + nth * 2 * MIB, 2 * MIB);
    }
    // Across two mappings.
    program.allocate(tensor, base + MIB, 2 * MIB);
    program.allocate(tensor, base + 5 * MIB, 2 * MIB);
    program.free(tensor, base + 5 * MIB);
    program.free(mapping, base + 6 * MIB);
    program.free(physical, 0x1003);
    let (snapshot, logged) = program.finish(0);
    let sums = undone(&viz(&snapshot, &logged));
    assert_eq!(
        (sums[0], sums.iter().max(), sums.last()),
        (2 * MIB, Some(&(4 * MIB)), Some(&0))
    );
}

#[test]
fn blocks_disappear_with_their_segment_and_those_in_no_memory_are_left_out() {
    let mut program = Running::new();
    let segment = program.site(Kind::Device, "segment");
    let tensor = program.site(Kind::Tensor, "forward");
    program.allocate(tensor, 0x7f00_0000_0000, MIB);
    program.allocate(segment, 0x7f00_0000_0000, 2 * MIB);
    program.allocate(tensor, 0x7f00_0010_0000, MIB);
    program.free(segment, 0x7f00_0000_0000);
    program.free(tensor, 0x7f00_0000_0000);
    program.allocate(tensor, 0x7e00_0000_0000, MIB);
    let (snapshot, logged) = program.finish(0);
    let mut left_out = 0;
    let bytes = written(|out| {
        left_out = memory_viz::write(&snapshot, Some(&logged.timeline), &Options::default(), SHORT, out)?.1;
        Ok(())
    });
    let sums = undone(&as_json(&bytes));
    assert_eq!((sums.iter().max(), left_out), (Some(&(2 * MIB)), 1));
}

proptest! {
    #[test]
    fn no_program_makes_a_trace_that_the_viewer_cannot_undo(
        steps in prop::collection::vec((0..6u8, 0..6u64, 1..5u64), 1..80), lacking in 0..20usize,
    ) {
        let mut program = Running::new();
        let segment = program.site(Kind::Device, "segment");
        let own = program.site(Kind::Device, "make_table");
        let tensor = program.site(Kind::Tensor, "forward");
        let mut live: Vec<(u32, u64, u64)> = Vec::new();
        for (what, place, size) in steps {
            let (site, address, bytes) = match what {
                0 => (segment, 0x7f00_0000_0000 + place * 64 * MIB, 10 * MIB),
                1 => (own, 0x7e00_0000_0000 + place * 64 * MIB, size * MIB),
                // Tensors may come before their segment and outlive it.
                2 | 3 => (tensor, 0x7f00_0000_0000 + place * 64 * MIB + (size - 1) * 2 * MIB, 2 * MIB),
                _ => {
                    if !live.is_empty() {
                        let (site, address, _) = live.remove(place as usize % live.len());
                        program.free(site, address);
                    }
                    continue;
                }
            };
            if !live.iter().any(|known| (known.0, known.1) == (site, address)) {
                program.allocate(site, address, bytes);
                live.push((site, address, bytes));
            }
        }
        let lacking = lacking.min(program.events.len());
        let (snapshot, logged) = program.finish(lacking);
        undone(&viz(&snapshot, &logged));
    }
}

#[test]
fn perfettos_counters_and_slices_are_those_of_the_log() {
    let (snapshot, logged) = training_over_time().finish(0);
    let bytes = written(|out| perfetto::write(&[(&snapshot, Some(&logged))], &[], out));
    let trace = Trace::decode(bytes.as_slice()).expect("a trace");
    let (mut names, mut counters) = (BTreeMap::new(), BTreeMap::new());
    let mut open: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut slices: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
    for packet in trace.packet {
        let time = packet.timestamp.unwrap_or(0);
        match packet.data {
            Some(Data::TrackDescriptor(track)) => {
                names.insert(track.uuid.unwrap_or(0), track.name.unwrap_or_default());
            }
            Some(Data::TrackEvent(event)) => {
                let track = event.track_uuid.unwrap_or(0);
                match (event.counter_value, event.r#type) {
                    (Some(value), _) => counters
                        .entry(names[&track].clone())
                        .or_insert_with(Vec::new)
                        .push((time, value)),
                    (None, Some(1)) => {
                        let (open, name) = (open.entry(track).or_default(), event.name.unwrap_or_default());
                        let is_phase = names[&track].starts_with("phases");
                        assert!(is_phase || open.is_empty(), "blocks on one track do not overlap");
                        open.push(time);
                        slices.entry(names[&track].clone()).or_default().push((name, time));
                    }
                    (None, Some(2)) => {
                        let begin = open.get_mut(&track).and_then(Vec::pop);
                        assert!(begin.is_some_and(|begin| begin <= time), "an end belongs to a begin");
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let highest = |name: &str| counters[name].iter().map(|(_, bytes)| *bytes as u64).max();
    assert_eq!(highest("GPU 0 tensor"), Some((8 + 6 + 30) * MIB));
    assert_eq!(highest("GPU 0 device"), Some((3 + 20 + 40) * MIB));
    assert_eq!(
        counters["GPU 0 tensor"].last().map(|(_, bytes)| *bytes as u64),
        Some(9 * MIB)
    );
    assert!(
        counters
            .values()
            .all(|points| points.is_sorted_by_key(|(time, _)| *time))
    );
    assert_eq!(slices["forward (train.cu:212) [GPU 0 tensor]"].len(), 22);
    assert_eq!(
        slices["load_weights (train.cu:212) [GPU 0 tensor]"],
        [("8 MiB".to_owned(), 300_000_000)]
    );
    let phases = &slices["phases of thread 4711 app"];
    assert_eq!((phases.len(), phases[0].0.as_str()), (11, "epoch"));
    // What never ended has no end: the table, the segment, the weights and the last activation.
    assert_eq!(open.values().map(Vec::len).sum::<usize>(), 4);
}

#[test]
fn a_window_has_what_was_allocated_in_it_and_is_alive_at_its_end() {
    let (snapshot, logged) = training_over_time().finish(0);
    let seconds = |tenths: u64| Point::Time(tenths * SECOND / 10);
    let window = |from: Point, to: Point| window::of(&snapshot, &logged.timeline, [&from, &to]);
    let sums = |snapshot: &Snapshot| {
        let live: u64 = snapshot.allocations.iter().map(|row| row.bytes).sum();
        let made: u64 = snapshot.totals.iter().map(|total| total.bytes).sum();
        (live / MIB, made / MIB)
    };
    assert_eq!(
        sums(&window(seconds(0), Point::Exit).expect("a window")),
        (32, 3 + 20 + 8 + 60 + 70 + 1)
    );
    // From the mark on: two steps, with two activations each; the second half-finished.
    let steps = window(Point::Mark("loaded".to_owned()), seconds(3 + 4 + 2)).expect("a window");
    assert_eq!(sums(&steps), (6, 12));
    let profile = unpacked(&steps, &Options::default());
    let column = |nth: usize| {
        profile
            .sample
            .iter()
            .map(|sample| sample.value[nth] as u64)
            .sum::<u64>()
            / MIB
    };
    assert_eq!([column(0), column(2)], [6, 12]);
    assert!(
        window(seconds(5), seconds(4))
            .expect_err("reversed")
            .contains("before it begins")
    );
    let unknown = window(Point::Mark("no".to_owned()), Point::Exit).expect_err("no such mark");
    assert!(unknown.contains("set no mark \"no\""), "{unknown}");
    let (snapshot, logged) = training_over_time().finish(10);
    let early = window::of(&snapshot, &logged.timeline, [&seconds(2), &Point::Exit]).expect_err("before the log");
    assert!(early.contains("is not known"), "{early}");
}
