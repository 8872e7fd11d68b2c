//! Tests that every format adds up to what the report lists. tests/formats opens the files in other programs.

mod over_time;
mod viewer;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::iter::once;

use culeak::analysis::profile::{Options, Profile};
use culeak::analysis::report::{self, Report, Tally};
use culeak::analysis::site::CallStacks;
use culeak::kind::Kind;
use culeak::snapshot::{Sampling, Snapshot};
use prost::Message;
use serde_json::Value;

use super::folded::{self, Cost};
use super::records::Rows;
use super::*;
use crate::names::Detail;
use crate::pickle;
use crate::text::sample::{MAIN, MIB, RUNTIME, Sample, gradients, leaky, training};

const SHORT: Detail = Detail {
    signatures: false,
    lines: true,
};

fn without_log<'a>(snapshots: &[&'a Snapshot]) -> Vec<perfetto::WithEvents<'a>> {
    snapshots.iter().map(|&snapshot| (snapshot, None)).collect()
}

/// What the report lists of a snapshot.
fn reported(snapshot: &Snapshot) -> Tally {
    let report = Report::of(snapshot, &report::Options::default());
    Tally::total(report.rows.iter().map(|row| Tally {
        bytes: row.bytes,
        count: row.count,
    }))
}

fn samples() -> [Snapshot; 3] {
    [leaky(), training().finish(0, 3), Sample::new().finish(0, 0)]
}

fn written(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).expect("writing to memory succeeds");
    out
}

fn text(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    String::from_utf8(written(write)).expect("text")
}

#[test]
fn forward_lines_are_in_every_form() {
    let snapshot = gradients(0);
    let profile = Profile::of(&snapshot, &Options::default());
    let folded = text(|out| folded::write("", &profile, SHORT, Cost::Bytes, out));
    let pprof = unpacked(&snapshot, &Options::default()).string_table.join("\n");
    let report = Report::of(&snapshot, &report::Options::default());
    let json = serde_json::to_string(&report).expect("JSON");
    for (form, text) in [("folded", folded), ("pprof", pprof), ("JSON", json)] {
        assert!(text.contains("gradient of Net.forward"), "{form}: {text}");
    }
}

/// A snapshot in which all text of the program contains markup and separators.
fn hostile() -> Snapshot {
    let mut sample = Sample::new();
    let stack = sample.stack(&[
        (
            "</script>;\n\"<b>\u{202e}\u{1b}[31m 12 34",
            "/src/;a b\n.cu:1",
            "/opt/a\"b<c>&;.so",
        ),
        ("main", "/src/\u{2028}main.cu:1", "/opt/app"),
    ]);
    sample.holds(Kind::Device, "cuda\"Malloc\n", 4096, 2, stack);
    sample.holds(Kind::Device, "=cuMemAlloc", 4096, 1, stack);
    sample.0.process.command_line = vec!["</title>\u{7}<script>".to_owned()];
    sample.0.threads[0].name = "a;b\n\"c\"".to_owned();
    sample.finish(0, 0)
}

#[test]
fn folded_lines_add_up_to_the_report() {
    for snapshot in samples() {
        for (cost, wanted) in [
            (Cost::Bytes, reported(&snapshot).bytes),
            (Cost::Count, reported(&snapshot).count),
        ] {
            let profile = Profile::of(&snapshot, &Options::default());
            let lines = text(|out| folded::write("", &profile, SHORT, cost, out));
            let number = |line: &str| -> u64 { line.rsplit(' ').next().expect("a number").parse().expect("a number") };
            assert_eq!(lines.lines().map(number).sum::<u64>(), wanted);
        }
    }
}

#[test]
fn a_folded_line_reads_from_the_device_to_the_kind() {
    let snapshot = leaky();
    let profile = Profile::of(&snapshot, &Options::default());
    let lines = text(|out| folded::write("", &profile, SHORT, Cost::Bytes, out));
    assert!(
        lines.contains(
            "GPU 0;main (main.cu:12);Trainer::run (train.cu:90);Trainer::step (train.cu:212);[device] 1207959552\n"
        ),
        "{lines}"
    );
    assert!(lines.contains(";[async, cached by PyTorch] "), "{lines}");
}

#[test]
fn hostile_names_stay_within_their_field() {
    let snapshot = hostile();
    let profile = Profile::of(&snapshot, &Options::default());
    let lines = text(|out| folded::write("", &profile, SHORT, Cost::Bytes, out));
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert_eq!(lines.matches(';').count(), 3, "{lines}");
    let svg = text(|out| flamegraph::write(&profile, SHORT, out));
    assert!(!svg.contains("<b>") && !svg.contains("</title><script>"));
}

#[test]
fn a_flame_graph_names_its_total() {
    for snapshot in samples() {
        let profile = Profile::of(&snapshot, &Options::default());
        let svg = text(|out| flamegraph::write(&profile, SHORT, out));
        let total = crate::text::units::bytes(reported(&snapshot).bytes);
        assert!(svg.contains(&total), "{total}");
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}

#[test]
fn a_flame_graph_of_two_snapshots_is_coloured_by_the_change() {
    let (before, after) = (training().finish(0, 0), leaky());
    let profile = |snapshot| Profile::of(snapshot, &Options::default());
    let svg = text(|out| flamegraph::write_difference(&profile(&before), &profile(&after), SHORT, out));
    assert!(svg.contains("Trainer::step") && !svg.contains("training_step"));
    assert!(svg.contains("in stacks that are gone"), "{svg}");
    let same = text(|out| flamegraph::write_difference(&profile(&after), &profile(&after), SHORT, out));
    assert!(same.contains("in stacks that are gone: 0 B"));
}

#[test]
fn impossible_sizes_are_refused_where_they_would_overflow() {
    let mut snapshot = leaky();
    snapshot
        .allocations
        .change(|_, allocation, _| allocation.bytes = u64::MAX);
    let profile = Profile::of(&snapshot, &Options::default());
    let error = flamegraph::write(&profile, SHORT, &mut Vec::new()).expect_err("too much");
    assert!(error.to_string().contains("snapshot is damaged"), "{error}");
}

fn json(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> Value {
    serde_json::from_slice(&written(write)).expect("JSON")
}

/// The sum over an array of numbers.
fn sum(numbers: &Value) -> u64 {
    let numbers = numbers.as_array().expect("an array").iter();
    numbers.map(|number| number.as_u64().expect("a number")).sum()
}

fn unpacked(snapshot: &Snapshot, options: &Options) -> pprof::ProfileMessage {
    let packed = written(|out| pprof::write(&[snapshot], options, out));
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed.as_slice())
        .read_to_end(&mut bytes)
        .expect("gzip");
    pprof::ProfileMessage::decode(bytes.as_slice()).expect("a profile")
}

#[test]
fn pprofs_values_add_up_to_the_report() {
    for snapshot in samples() {
        let profile = unpacked(&snapshot, &Options::default());
        let value = |column: usize| -> i64 { profile.sample.iter().map(|sample| sample.value[column]).sum() };
        let reported = reported(&snapshot);
        assert_eq!((value(0) as u64, value(1) as u64), (reported.bytes, reported.count));
        let text = |number: i64| profile.string_table[number as usize].as_str();
        let types: Vec<&str> = profile.sample_type.iter().map(|value| text(value.r#type)).collect();
        assert_eq!(types, ["inuse_space", "inuse_objects"]);
    }
}

/// Blocks of many sizes at one call site, half of them chosen.
fn sampled() -> Snapshot {
    let mut sample = Sample::new();
    let stack = sample.stack(&[RUNTIME, ("load", "/src/app.cu:3", "/opt/app"), MAIN]);
    let left_out = sample.stack(&[]);
    for nth in 0..1000 {
        sample.holds(Kind::Device, "cudaMalloc", (300 << 10) + 512 * nth, 1, stack);
        sample.holds(Kind::Device, "cudaMalloc", (300 << 10) + 512 * nth, 1, left_out);
    }
    let mut snapshot = sample.finish(0, 0);
    snapshot.sampling = Some(Sampling {
        bytes: 512 << 10,
        most_bytes: 0,
        left_out: Some(left_out),
    });
    snapshot
}

#[test]
fn a_pprof_of_sampled_stacks_has_their_period_and_whole_weights() {
    let snapshot = sampled();
    let profile = unpacked(&snapshot, &Options::default());
    let text = |number: i64| profile.string_table[number as usize].as_str();
    let period_type = profile.period_type.expect("a type");
    assert_eq!(
        (text(period_type.r#type), text(period_type.unit), profile.period),
        ("inuse_space", "bytes", 512 << 10)
    );
    assert!(
        profile
            .comment
            .iter()
            .any(|comment| text(*comment).contains("sampled, one for each 512 KiB"))
    );
    let value = |column: usize| -> i64 { profile.sample.iter().map(|sample| sample.value[column]).sum() };
    let reported = reported(&snapshot);
    // A block of 300 KiB stands for 2.26 blocks, one of 800 KiB for 1.27.
    assert!(reported.count > 1400, "{reported:?}");
    assert_eq!((value(0) as u64, value(1) as u64), (reported.bytes, reported.count));
    assert_eq!(unpacked(&training().finish(0, 3), &Options::default()).period, 1);
}

#[test]
fn objects_are_exported_as_counts() {
    use crate::text::sample::serving;
    let objects = serving().into_objects();
    let profile = unpacked(&objects, &Options::default());
    let count: i64 = profile.sample.iter().map(|sample| sample.value[1]).sum();
    assert_eq!(count, serving().objects.len() as i64);
    assert!(profile.sample.iter().all(|sample| sample.value[0] == 0));
    let default = &profile.string_table[profile.default_sample_type as usize];
    assert_eq!(default, "inuse_objects");
}

#[test]
fn every_id_in_pprofs_tables_is_valid() {
    for snapshot in [leaky(), training().finish(0, 0), hostile()] {
        let full = Options {
            full_stacks: true,
            ..Options::default()
        };
        for options in [Options::default(), full] {
            let profile = unpacked(&snapshot, &options);
            let texts = profile.string_table.len() as i64;
            assert_eq!(profile.string_table[0], "");
            for (nth, location) in profile.location.iter().enumerate() {
                assert_eq!(location.id, nth as u64 + 1);
                assert!(location.mapping_id <= profile.mapping.len() as u64);
                for line in &location.line {
                    assert!((1..=profile.function.len() as u64).contains(&line.function_id));
                }
                if let Some(mapping) = (location.mapping_id as usize).checked_sub(1) {
                    let mapping = &profile.mapping[mapping];
                    assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address));
                }
            }
            for function in &profile.function {
                assert!(function.name < texts && function.filename < texts);
            }
            for sample in &profile.sample {
                let known = 1..=profile.location.len() as u64;
                assert!(sample.location_id.iter().all(|id| known.contains(id)));
                assert!(sample.label.iter().all(|label| label.key < texts && label.str < texts));
                let mut keys = sample
                    .label
                    .iter()
                    .map(|label| &profile.string_table[label.key as usize]);
                assert!(keys.any(|key| key == "host") && keys.any(|key| key == "pid"));
            }
        }
    }
}

#[test]
fn pprof_shows_inlined_calls_as_lines_of_one_address() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[
        ("outer", "/src/a.cu:9", "/opt/app"),
        ("main", "/src/a.cu:20", "/opt/app"),
    ]);
    sample.holds(Kind::Device, "cudaMalloc", 4096, 1, stack);
    let mut snapshot = sample.finish(0, 0);
    let inlined = culeak::snapshot::Symbol {
        function: "inner".to_owned(),
        file: Some("/src/a.cu".to_owned()),
        line: Some(3),
        inlined: true,
    };
    snapshot.locations[0].symbols.insert(0, inlined);
    let profile = unpacked(&snapshot, &Options::default());
    let lines: Vec<usize> = profile.location.iter().map(|location| location.line.len()).collect();
    assert_eq!(lines, [2, 1]);
}

#[test]
fn speedscopes_weights_add_up_to_the_report() {
    for snapshot in samples() {
        let profile = Profile::of(&snapshot, &Options::default());
        let file = json(|out| speedscope::write(std::iter::once((None, profile)), SHORT, out));
        let profiles = file["profiles"].as_array().expect("profiles");
        let weights = |unit: &str| -> u64 {
            let wanted = profiles.iter().filter(|profile| profile["unit"] == unit);
            wanted.map(|profile| sum(&profile["weights"])).sum()
        };
        let reported = reported(&snapshot);
        assert_eq!((weights("bytes"), weights("none")), (reported.bytes, reported.count));
        let frames = file["shared"]["frames"].as_array().expect("frames").len() as u64;
        for profile in profiles {
            let samples = profile["samples"]
                .as_array()
                .expect("samples")
                .iter()
                .flat_map(|s| s.as_array().expect("a stack"));
            assert!(
                samples
                    .into_iter()
                    .all(|frame| frame.as_u64().is_some_and(|frame| frame < frames))
            );
        }
    }
}

#[test]
fn firefoxes_allocations_add_up_to_the_report() {
    for snapshot in samples() {
        let file = json(|out| firefox::write(&[(None, &snapshot)], &Options::default(), SHORT, out));
        let thread = &file["threads"][0];
        let reported = reported(&snapshot);
        let allocations = &thread["nativeAllocations"];
        if reported.count == 0 {
            assert!(allocations.is_null(), "{allocations}");
            continue;
        }
        assert_eq!(sum(&allocations["weight"]), reported.bytes);
        assert_eq!(allocations["length"].as_u64(), Some(reported.count));
    }
}

#[test]
fn the_last_point_of_every_track_is_what_is_live() {
    let (early, late) = (training().running(), training().running());
    let (mut early, late) = (early.finish(0, 0), late.finish(0, 3));
    early.taken.at_ns /= 2;
    for snapshots in [vec![&late], vec![&early, &late], vec![&late, &early]] {
        let bytes = written(|out| perfetto::write(&without_log(&snapshots), &[], out));
        let trace = perfetto::Trace::decode(bytes.as_slice()).expect("a trace");
        let mut names = BTreeMap::new();
        let mut last = BTreeMap::new();
        let mut instants = Vec::new();
        for packet in &trace.packet {
            match &packet.data {
                Some(perfetto::Data::TrackDescriptor(track)) => {
                    names.insert(track.uuid, track.name.clone().unwrap_or_default());
                }
                Some(perfetto::Data::TrackEvent(event)) => match event.counter_value {
                    Some(value) => drop(last.insert(names[&event.track_uuid].clone(), value as u64)),
                    None => instants.push(event.name.clone().unwrap_or_default()),
                },
                _ => {}
            }
        }
        for counter in late.counters.iter().filter(|counter| counter.live_bytes > 0) {
            let name = match counter.device {
                Some(_) => format!("GPU 0 {}", counter.kind.name()),
                None => counter.kind.name().to_owned(),
            };
            assert_eq!(
                last.get(&format!("{name}, still live")),
                Some(&counter.live_bytes),
                "{name}: {last:?}"
            );
            let in_snapshots = last.get(&format!("{name}, in snapshots"));
            assert_eq!(
                in_snapshots,
                (snapshots.len() > 1).then_some(&counter.live_bytes),
                "{name}"
            );
        }
        assert_eq!(instants, ["epoch 3"]);
    }
}

#[test]
fn a_trace_of_unknown_processes_has_each_once_and_ends() {
    let mut unknown = leaky();
    unknown.process.pid = 0;
    for snapshots in [vec![&unknown], vec![&unknown, &unknown]] {
        let bytes = written(|out| perfetto::write(&without_log(&snapshots), &[], out));
        let trace = perfetto::Trace::decode(bytes.as_slice()).expect("a trace");
        let processes = trace.packet.iter().filter(
            |packet| matches!(&packet.data, Some(perfetto::Data::TrackDescriptor(track)) if track.process.is_some()),
        );
        assert_eq!(processes.count(), snapshots.len());
    }
}

fn rows(snapshot: &Snapshot) -> Rows<'_> {
    Rows::of(snapshot, &Options::default(), SHORT)
}

#[test]
fn held_and_cached_rows_add_up_to_the_report() {
    for snapshot in samples() {
        let table = text(|out| csv::write_all(once(rows(&snapshot)), out));
        let mut reader = ::csv::Reader::from_reader(table.as_bytes());
        let header = reader.headers().expect("a header").clone();
        let column = |name: &str| header.iter().position(|column| column == name).expect("a column");
        let (bytes, level) = (column("bytes"), column("level"));
        let process = [column("host"), column("pid"), column("rank")];
        let mut listed = Tally::default();
        let mut all = 0;
        for row in reader.records() {
            let row = row.expect("a row");
            all += 1;
            let expected = [snapshot.process.host.as_str(), &snapshot.process.pid.to_string(), ""];
            assert_eq!(process.map(|column| &row[column]), expected);
            if &row[level] != "behind" {
                listed.add(row[bytes].parse().expect("a number"));
            }
        }
        assert_eq!(listed, reported(&snapshot));
        assert_eq!(all, snapshot.allocations.len());
    }
}

#[cfg(feature = "parquet")]
#[test]
fn csv_and_parquet_have_equal_rows() {
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use ::parquet::record::Field;

    for snapshot in [leaky(), training().finish(0, 3), Sample::new().finish(0, 0), hostile()] {
        let table = text(|out| csv::write_all(once(rows(&snapshot)), out));
        let mut reader = ::csv::Reader::from_reader(table.as_bytes());
        let texts: Vec<Vec<String>> = reader
            .records()
            .map(|row| row.expect("a row").iter().map(str::to_owned).collect())
            .collect();
        let file = bytes::Bytes::from(written(|out| parquet::write_all(once(rows(&snapshot)), out)));
        let file = SerializedFileReader::new(file).expect("a file");
        let text_of = |field: &Field| match field {
            Field::ULong(number) => number.to_string(),
            // Parquet has no apostrophe before formulas.
            Field::Str(text) => match text.starts_with('=') {
                true => format!("'{text}"),
                false => text.clone(),
            },
            Field::Null => String::new(),
            other => panic!("{other:?}"),
        };
        let typed: Vec<Vec<String>> = file
            .get_row_iter(None)
            .expect("rows")
            .map(|row| {
                row.expect("a row")
                    .get_column_iter()
                    .map(|(_, field)| text_of(field))
                    .collect()
            })
            .collect();
        assert_eq!(typed, texts);
    }
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_has_null_for_fields_that_do_not_apply() {
    use ::parquet::file::reader::{FileReader, SerializedFileReader};
    use ::parquet::record::Field;

    let snapshot = leaky();
    let rows = rows(&snapshot);
    let file = bytes::Bytes::from(written(|out| parquet::write_all(once(rows), out)));
    let file = SerializedFileReader::new(file).expect("a file");
    let mut nulls = BTreeSet::new();
    for row in file.get_row_iter(None).expect("rows") {
        for (name, field) in row.expect("a row").get_column_iter() {
            match field {
                Field::Null => drop(nulls.insert(name.clone())),
                Field::Str(text) => assert!(!text.is_empty(), "{name}"),
                _ => {}
            }
        }
    }
    assert!(nulls.contains("pool") && !nulls.contains("kind"), "{nulls:?}");
}

#[test]
fn no_cell_of_a_table_is_a_formula_to_a_spreadsheet() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[
        ("@SUM(1)", "", "/opt/app"),
        ("=HYPERLINK(1)", "/src/a.cu:1", "/opt/app"),
        ("main", "", "/opt/app"),
    ]);
    sample.holds(Kind::Device, "=cmd|' /C calc'!A0", 4096, 1, stack);
    let snapshot = sample.finish(0, 0);
    let table = text(|out| csv::write_all(once(rows(&snapshot)), out));
    for separator in [b',', b';'] {
        let mut reader = ::csv::ReaderBuilder::new();
        let mut reader = reader.delimiter(separator).flexible(true).from_reader(table.as_bytes());
        for row in reader.records() {
            let row = row.expect("a row");
            assert!(
                row.iter().all(|cell| !cell.starts_with(['=', '+', '-', '@'])),
                "{row:?}"
            );
        }
    }
    assert!(
        table.contains(",'=cmd|' /C calc'!A0,") && table.contains(";'=HYPERLINK (a.cu:1);'@SUM"),
        "{table}"
    );
}

/// The same memory, allocated three times.
fn asked_for_thrice() -> Snapshot {
    let mut snapshot = leaky();
    let mut totals: BTreeMap<_, Tally> = BTreeMap::new();
    for allocation in &snapshot.allocations {
        let key = (allocation.stack, allocation.kind, allocation.device);
        totals.entry(key).or_default().add(allocation.bytes);
    }
    let total = |((stack, kind, device), tally): (_, Tally)| culeak::snapshot::Total {
        stack,
        kind,
        device,
        bytes: 3 * tally.bytes,
        count: 3 * tally.count,
    };
    snapshot.totals = totals.into_iter().map(total).collect();
    snapshot
}

#[test]
fn all_allocations_are_exported_where_they_are_counted() {
    let snapshot = asked_for_thrice();
    let live = reported(&snapshot);
    let wanted = [live.bytes, live.count, 3 * live.bytes, 3 * live.count];
    let profile = unpacked(&snapshot, &Options::default());
    let types = profile
        .sample_type
        .iter()
        .map(|value| profile.string_table[value.r#type as usize].as_str());
    let types: Vec<&str> = types.collect();
    assert_eq!(types, ["inuse_space", "inuse_objects", "alloc_space", "alloc_objects"]);
    for (column, wanted) in wanted.into_iter().enumerate() {
        let sum: i64 = profile.sample.iter().map(|sample| sample.value[column]).sum();
        assert_eq!(sum as u64, wanted, "{}", types[column]);
    }
    let made = Options {
        made: true,
        ..Options::default()
    };
    let profile = Profile::of(&snapshot, &made);
    for (cost, wanted) in [Cost::Bytes, Cost::Count, Cost::MadeBytes, Cost::MadeCount]
        .into_iter()
        .zip(wanted)
    {
        let sum: u64 = folded::stacks(&profile, SHORT, cost).values().sum();
        assert_eq!(sum, wanted, "{cost:?}");
    }
    let file = json(|out| speedscope::write(std::iter::once((None, profile)), SHORT, out));
    let bytes: u64 = file["profiles"]
        .as_array()
        .expect("profiles")
        .iter()
        .filter(|profile| {
            profile["name"]
                .as_str()
                .is_some_and(|name| name.ends_with("bytes, freed or not"))
        })
        .map(|profile| sum(&profile["weights"]))
        .sum();
    assert_eq!(bytes, 3 * live.bytes);
}
