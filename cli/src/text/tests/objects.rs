//! Golden texts of objects without an address.

use culeak::analysis::diff;
use culeak::analysis::filter::Filter;
use culeak::analysis::suppressions::Pattern;
use culeak::analysis::trend::{self, Summary, Trend};
use culeak::snapshot::Allocations;

use super::*;

fn with_objects(snapshot: &Snapshot, options: &Options) -> String {
    let extent = Extent {
        views: &[Shape::Objects],
        ..Extent::default()
    };
    plain(|out| crate::text::report::page(&Report::of(snapshot, options), extent).text(out))
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

#[test]
fn golden_report_of_a_part_of_the_objects() {
    let snapshot = serving();
    let mut text = String::new();
    for (title, filter) in [
        (
            "--kind stream",
            Filter {
                kinds: vec![Kind::Stream],
                ..Filter::default()
            },
        ),
        (
            "--focus connect",
            Filter {
                focus: vec![Pattern::parse("connect").expect("a pattern")],
                ..Filter::default()
            },
        ),
        (
            "--kind texture",
            Filter {
                kinds: vec![Kind::Texture],
                ..Filter::default()
            },
        ),
    ] {
        let options = Options {
            filter,
            ..from_file("a.culeak")
        };
        text += &format!("==== {title}\n{}\n", with_objects(&snapshot, &options));
    }
    let mut options = from_file("a.culeak");
    let rules = "leak:Server::decode\nleak:Server::forgotten\n";
    options.suppressions.add(rules, "app.supp").expect("rules");
    text += &format!("==== --suppressions\n{}", with_objects(&snapshot, &options));
    options.by = By::ObjectKind;
    text += &format!(
        "\n==== --suppressions --by object-kind\n{}",
        report_text(&snapshot, &options, false)
    );
    expect_golden("report-objects-part.txt", &text);
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
    // They are of the end.
    sample.0.object_counters.clear();
    sample.0.validate().expect("valid");
    sample.0
}

#[test]
fn golden_diff_of_objects() {
    let (before, mut later) = (serving(), after(28));
    later.objects.retain(|object| object.kind != Kind::Event);
    let options = diff::Options::default();
    let mut text = plain(|out| crate::text::diff::page(&Diff::of(&before, &later, &options), false, false).text(out));
    let few = diff::Options {
        top: Some(1),
        filter: Filter::of_kinds(&[Kind::GraphExec, Kind::Event]),
        ..diff::Options::default()
    };
    text += "\n==== --top 1\n";
    text += &plain(|out| crate::text::diff::page(&Diff::of(&before, &later, &few), false, false).text(out));
    expect_golden("diff-objects.txt", &text);
}

#[test]
fn a_side_without_objects_is_not_compared() {
    let (before, mut later) = (serving(), after(3));
    (later.objects, later.objects_known) = (Allocations::default(), false);
    let diff = |before: &Snapshot, after: &Snapshot, kinds: &[Kind]| {
        let options = diff::Options {
            filter: Filter::of_kinds(kinds),
            ..diff::Options::default()
        };
        let diff = Diff::of(before, after, &options);
        assert_eq!(diff.objects, None);
        plain(|out| crate::text::diff::page(&diff, false, false).text(out))
    };
    let sentence = |which: &str| format!("objects without an address are not compared, because {which} contain");
    for (text, which) in [
        (diff(&before, &later, &[]), "the second snapshot does not"),
        (diff(&later, &before, &[]), "the first snapshot does not"),
        (diff(&later, &later, &[Kind::Stream]), "neither snapshot does"),
    ] {
        assert!(text.contains(&sentence(which)), "{text}");
    }
    assert!(diff(&later, &before, &[Kind::Stream]).starts_with("stream objects of process 4711: not compared"));
    // They are not selected.
    assert!(!diff(&later, &later, &[]).contains("objects"));
    assert!(!diff(&before, &later, &[Kind::Device]).contains("objects"));
}

#[test]
fn stacks_of_one_call_site_are_told_apart_in_a_diff() {
    let with = |first: u64, second: u64| {
        let mut sample = Sample::new().running();
        let connect = ("connect()", "/src/server.cu:61", "/opt/app");
        for (line, count) in [("/src/server.cu:140", first), ("/src/server.cu:155", second)] {
            let stack = sample.stack(&[RUNTIME, connect, ("serve()", line, "/opt/app"), MAIN]);
            sample.makes(Kind::Stream, "cudaStreamCreate", count, stack);
        }
        sample.finish(0, 0)
    };
    let (before, after) = (with(2, 3), with(5, 9));
    let options = diff::Options {
        by: By::Stack,
        ..diff::Options::default()
    };
    let text = plain(|out| crate::text::diff::page(&Diff::of(&before, &after, &options), false, false).text(out));
    for line in [
        "count=9 (+6)\n            from serve server.cu:155 < main main.cu:12\n",
        "count=5 (+3)\n            from serve server.cu:140 < main main.cu:12\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn golden_check_of_objects() {
    let snapshot = serving();
    let mut text = String::new();
    for (kind, limit) in [(Kind::GraphExec, 8), (Kind::Stream, 64), (Kind::Stream, 11)] {
        let mut rules = Rules::from(Limits::from([Limit::objects(kind, limit)]));
        rules.suppressions.add_built_in();
        text += &plain(|out| crate::text::check::page(&verdict(&snapshot, &rules), "app.culeak").text(out));
        text.push('\n');
    }
    expect_golden("check-objects.txt", &text);
}

#[test]
fn golden_trend_of_objects() {
    let options = trend::Options::default();
    let summaries = (0..12).map(|nth| Summary::of(&after(nth * 5), format!("{nth}.json"), &options));
    let trend = Trend::of(&Summary::folded(summaries), &options);
    assert!(trend.is_growing());
    let text = plain(|out| crate::text::trend::page(&trend, false, "").text(out));
    expect_golden("trend-objects.txt", &text);
}

#[test]
fn modules_rank_by_the_memory_that_their_call_site_took() {
    let reload = ("reload", "/src/main.cu:30", "/opt/app");
    let mut sample = Sample::new();
    sample.takes_context(MAIN, Some(414 * MIB));
    sample.takes("cuModuleLoadData", &[RUNTIME, reload, MAIN], &[8 * MIB; 10]);
    sample.takes("cuLaunchKernel", &[RUNTIME, reload, MAIN], &[2 * MIB]);
    let stack = sample.stack(&[RUNTIME, reload, MAIN]);
    sample.has_objects(Kind::Module, 10, 0, stack);
    let text = report_text(&sample.0, &from_file("a.culeak"), false);
    assert!(text.contains("80 MiB  in 10 modules  reload  main.cu:30"), "{text}");
    assert!(text.contains("2 MiB code"), "the rest is beside it: {text}");
}

#[test]
fn claims_are_no_blocks_of_a_row() {
    let snapshot = leaky();
    let text = |by| {
        let options = Options {
            by,
            ..from_file("app.culeak")
        };
        report_text(&snapshot, &options, false)
    };
    let blocks = |text: &str| -> u64 {
        let counts = text
            .lines()
            .filter_map(|line| line.split_once("  in ")?.1.split_once(" block"));
        counts
            .map(|(count, _)| count.trim().parse::<u64>().expect("a number"))
            .sum()
    };
    // One row has a mapping besides its blocks.
    assert!(text(By::Thread).contains("  in 134 blocks"), "{}", text(By::Thread));
    for by in [By::Kind, By::Site, By::Device, By::Api] {
        assert_eq!(blocks(&text(by)), 134, "{}", text(by));
    }
}
