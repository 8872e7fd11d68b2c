//! Every format adds up to what the report lists; what other programs make of the files is tested in tests/formats.

use culeak::profile::{Options, Profile};
use culeak::report::{self, Report, Share};
use culeak::snapshot::Snapshot;

use super::folded::{self, Cost};
use super::names::Detail;
use super::*;
use crate::text::sample::{Sample, leaky, training};

const SHORT: Detail = Detail {
    signatures: false,
    lines: true,
};

/// What the report lists of a snapshot.
fn reported(snapshot: &Snapshot) -> Share {
    let report = Report::of(snapshot, &report::Options::default());
    Share::total(report.rows.iter().map(|row| Share {
        bytes: row.bytes,
        count: row.count,
    }))
}

fn samples() -> [Snapshot; 3] {
    [leaky(), training().finish(0, 3), Sample::new().finish(0, 0)]
}

fn written(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out).expect("memory takes everything");
    out
}

fn text(write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> String {
    String::from_utf8(written(write)).expect("text")
}

/// A snapshot in which everything a program can choose tries to break out.
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
    sample.holds(culeak::kind::Kind::Device, "cuda\"Malloc\n", 4096, 2, stack);
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
            let lines = text(|out| folded::write(&profile, SHORT, cost, out));
            let number = |line: &str| -> u64 { line.rsplit(' ').next().expect("a number").parse().expect("a number") };
            assert_eq!(lines.lines().map(number).sum::<u64>(), wanted);
        }
    }
}

#[test]
fn a_folded_line_reads_from_the_device_to_the_kind() {
    let snapshot = leaky();
    let profile = Profile::of(&snapshot, &Options::default());
    let lines = text(|out| folded::write(&profile, SHORT, Cost::Bytes, out));
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
    let lines = text(|out| folded::write(&profile, SHORT, Cost::Bytes, out));
    assert_eq!(lines.lines().count(), 1, "{lines}");
    assert_eq!(lines.matches(';').count(), 3, "{lines}");
    let svg = text(|out| flamegraph::write(&profile, SHORT, Cost::Bytes, out));
    assert!(!svg.contains("<b>") && !svg.contains("</title><script>"));
}

#[test]
fn a_flame_graph_says_how_much_it_shows() {
    for snapshot in samples() {
        let profile = Profile::of(&snapshot, &Options::default());
        let svg = text(|out| flamegraph::write(&profile, SHORT, Cost::Bytes, out));
        let total = crate::text::units::bytes(reported(&snapshot).bytes);
        assert!(svg.contains(&total), "{total}");
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}

#[test]
fn a_flame_graph_of_two_snapshots_is_coloured_by_the_change() {
    let (before, after) = (training().finish(0, 0), leaky());
    let profile = |snapshot| Profile::of(snapshot, &Options::default());
    let svg = text(|out| flamegraph::write_difference(&profile(&before), &profile(&after), SHORT, Cost::Bytes, out));
    assert!(svg.contains("Trainer::step") && !svg.contains("training_step"));
    assert!(svg.contains("in stacks that are gone"), "{svg}");
    let same = text(|out| flamegraph::write_difference(&profile(&after), &profile(&after), SHORT, Cost::Bytes, out));
    assert!(same.contains("in stacks that are gone: 0 B"));
}

#[test]
fn sizes_that_no_machine_has_are_refused_where_they_would_overflow() {
    let mut snapshot = leaky();
    for allocation in &mut snapshot.allocations {
        allocation.bytes = u64::MAX;
    }
    let profile = Profile::of(&snapshot, &Options::default());
    let error = flamegraph::write(&profile, SHORT, Cost::Bytes, &mut Vec::new()).expect_err("too much");
    assert!(error.to_string().contains("damaged snapshot"), "{error}");
}
