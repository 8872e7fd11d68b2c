//! Golden texts of objects without an address.

use culeak::analysis::diff;
use culeak::analysis::trend::{self, Summary, Trend};
use culeak::snapshot::Allocations;

use super::*;

fn with_objects(snapshot: &Snapshot, options: &Options) -> String {
    let extent = Extent {
        objects: true,
        ..Extent::default()
    };
    plain(|out| crate::text::report::write(&Report::of(snapshot, options), extent, out))
}

#[test]
fn golden_report_of_objects() {
    let snapshot = serving();
    let mut text = report_text(&snapshot, &from_file("serve.node7.4711.culeak"), false);
    text += "\n==== --objects\n";
    let few = Options {
        top_objects: Some(2),
        ..from_file("serve.node7.4711.culeak")
    };
    text += &with_objects(&snapshot, &few);
    text += "\n==== --by object-kind\n";
    let by_kind = Options {
        by: By::ObjectKind,
        ..from_file("serve.node7.4711.culeak")
    };
    text += &report_text(&snapshot, &by_kind, false);
    expect_golden("report-objects.txt", &text);
}

fn with_peak() -> Snapshot {
    let mut snapshot = shut_down();
    (snapshot.objects, snapshot.objects_known) = (serving().objects, true);
    snapshot
}

#[test]
fn objects_that_are_not_known_are_not_none() {
    let peak = with_peak().at(&Point::Peak).expect("a peak");
    let text = with_objects(&peak, &from_file("a.culeak"));
    assert!(
        text.contains("objects without an address\n  not known at this point\n"),
        "{text}"
    );
    let text = with_objects(&leaky(), &from_file("a.culeak"));
    assert!(text.contains("  not recorded\n"), "{text}");
    let mut none = leaky();
    none.objects_known = true;
    let text = with_objects(&none, &from_file("a.culeak"));
    assert!(text.contains("  none was created\n"), "{text}");
}

/// The process after `requests` requests.
fn after(requests: u64) -> Snapshot {
    let mut sample = Sample::new().running();
    sample.0 = serving();
    sample.0.process.state = ProcessState::Running;
    sample.0.taken.at_ns += requests * 1_000_000_000;
    let decode = 0;
    sample.makes(Kind::GraphExec, "cudaGraphInstantiateWithFlags", requests, decode);
    sample.0.validate().expect("valid");
    sample.0
}

#[test]
fn golden_diff_of_objects() {
    let (before, mut later) = (serving(), after(28));
    later.objects.retain(|object| object.kind != Kind::Event);
    let options = diff::Options::default();
    let mut text = plain(|out| crate::text::diff::write(&Diff::of(&before, &later, &options), false, false, out));
    let few = diff::Options {
        top: Some(1),
        kinds: vec![Kind::GraphExec, Kind::Event],
        ..diff::Options::default()
    };
    text += "\n==== --top 1\n";
    text += &plain(|out| crate::text::diff::write(&Diff::of(&before, &later, &few), false, false, out));
    expect_golden("diff-objects.txt", &text);
}

#[test]
fn a_side_without_objects_is_not_compared() {
    let (before, mut later) = (serving(), after(3));
    (later.objects, later.objects_known) = (Allocations::default(), false);
    assert_eq!(Diff::of(&before, &later, &diff::Options::default()).objects, None);
}

#[test]
fn golden_check_of_objects() {
    let snapshot = serving();
    let mut text = String::new();
    for (kind, limit) in [(Kind::GraphExec, 8), (Kind::Stream, 64), (Kind::Stream, 11)] {
        let mut rules = Rules::from(Limits {
            max_objects: [(kind, limit)].into(),
            ..Limits::default()
        });
        rules.suppressions.add_built_in();
        text += &plain(|out| crate::text::check::write(&verdict(&snapshot, &rules), "app.culeak", out));
        text.push('\n');
    }
    expect_golden("check-objects.txt", &text);
}

#[test]
fn golden_trend_of_objects() {
    let options = trend::Options::default();
    let summaries: Vec<Summary> = (0..12)
        .map(|nth| Summary::of(&after(nth * 5), format!("{nth}.json"), &options))
        .collect();
    let trend = Trend::of(&summaries, &options);
    assert!(trend.is_growing());
    let text = plain(|out| crate::text::trend::write(&trend, out));
    expect_golden("trend-objects.txt", &text);
}
