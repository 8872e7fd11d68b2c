//! Texts of diffs.

use super::*;

#[test]
fn golden_diff() {
    let before = leaky();
    let mut later = Sample::new();
    later.0 = leaky();
    let step = 0;
    later.holds(Kind::Device, "cudaMalloc", 9 * MIB, 64, step);
    let fresh = later.stack(&[
        RUNTIME,
        ("Evaluator::cache(long)", "/src/eval.cu:31", "/opt/app"),
        MAIN,
        START,
    ]);
    later.holds(Kind::Device, "cudaMalloc", MIB, 7, fresh);
    let mut after = later.finish(7 * GIB, 900);
    after
        .allocations
        .retain(|allocation| allocation.kind != Kind::HostPinned);
    after.taken.at_ns += 12_000_000_000;
    let options = culeak::analysis::diff::Options {
        by: By::Stack,
        ..Default::default()
    };
    let diff = Diff::of(&before, &after, &options);
    expect_golden(
        "diff.txt",
        &plain(|out| crate::text::diff::page(&diff, false, false).text(out)),
    );
    let other = Snapshot {
        process: culeak::snapshot::Process {
            pid: 12,
            ..after.process.clone()
        },
        ..after
    };
    let diff = Diff::of(&before, &other, &options);
    expect_golden(
        "diff-two-runs.txt",
        &plain(|out| crate::text::diff::page(&diff, true, false).text(out)),
    );
}

#[test]
fn instances_of_a_template_and_wrappers_are_named_in_reports_verdicts_and_diffs() {
    let mut sample = Sample::new();
    let alloc = ("gpu_alloc(unsigned long)", "/src/alloc.cu:3", "/opt/app");
    let instances = ["void fill<int>(int*)", "void fill<float>(float*)"];
    for function in instances {
        let stack = sample.stack(&[RUNTIME, alloc, (function, "/src/fill.cu:8", "/opt/app"), MAIN]);
        sample.holds(Kind::Device, "cudaMalloc", MIB, 2, stack);
    }
    let snapshot = sample.finish(0, 0);
    let options = culeak::analysis::diff::Options {
        by: By::Stack,
        ..Default::default()
    };
    let mut before = Sample::new().finish(0, 0);
    before.process.pid += 1;
    let diff = Diff::of(&before, &snapshot, &options);
    for text in [
        plain(|out| {
            crate::text::report::page(&Report::of(&snapshot, &Options::default()), Extent::default()).text(out)
        }),
        plain(|out| crate::text::check::page(&verdict(&snapshot, &Rules::default()), "app.culeak").text(out)),
        plain(|out| crate::text::diff::page(&diff, false, false).text(out)),
    ] {
        for part in [instances[0], instances[1], "through gpu_alloc alloc.cu:3"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn what_did_not_change_takes_three_lines_at_most() {
    let mut before = training().finish(0, 0);
    before.process.state = ProcessState::Running;
    let after = before.clone();
    let options = culeak::analysis::diff::Options::default();
    let text = |after: &Snapshot| {
        plain(|out| crate::text::diff::page(&Diff::of(&before, after, &options), false, false).text(out))
    };
    let pool = "1 MiB in PyTorch's pool of host memory: which part is in use is unknown";
    let expected = format!("process 4711: no change in 0 ns\n{pool}\nrecorded in full\n");
    assert_eq!(text(&after), expected);
    let mut lossy = after.clone();
    lossy.losses.unknown_frees = 3;
    let lossy = text(&lossy);
    assert!(lossy.contains("\nnot recorded after  3 unknown frees: "), "{lossy}");
    // The first lines are what grew, and who called it.
    let mut grown = after;
    let is_step = |bytes: u64| bytes == 4 * MIB;
    grown.allocations.change(|_, allocation, _| {
        if is_step(allocation.bytes) {
            allocation.bytes *= 2;
        }
    });
    let grown = text(&grown);
    let lines: Vec<&str> = grown.lines().collect();
    assert!(lines[0].starts_with("process 4711: grew by 8 MiB to "), "{grown}");
    assert!(
        lines[2].starts_with("  grown     training_step  train.py:212: "),
        "{grown}"
    );
    assert_eq!(lines[3].trim(), "from <module>", "{grown}");
    let trend = |after: &Snapshot| {
        let all = (0..12).map(|nth| {
            let mut snapshot = if nth < 11 { before.clone() } else { after.clone() };
            snapshot.taken.at_ns += nth * 1_000_000_000;
            Summary::of(&snapshot, format!("{nth}.json"), &trend::Options::default())
        });
        let trend = Trend::of(&Summary::folded(all), &trend::Options::default());
        plain(|out| crate::text::trend::page(&trend, false, "").text(out))
    };
    let quiet = trend(&before);
    assert!(
        quiet.lines().count() <= 4 && quiet.ends_with(" steady\nrecorded in full\n"),
        "{quiet}"
    );
    let mut lossy = before.clone();
    lossy.losses.lost_stacks = 1;
    let lossy = trend(&lossy);
    let line = "\nnot recorded in full: 1 of 12 snapshots; culeak report 11.json shows what is missing\n";
    assert!(lossy.contains(line), "{lossy}");
}

#[test]
fn a_diff_of_one_kind_names_the_kind() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[MAIN]);
    let before = Sample::new().finish(0, 0);
    sample.holds(Kind::Device, "cudaMalloc", MIB, 3, stack);
    let after = sample.finish(0, 0);
    let options = culeak::analysis::diff::Options {
        filter: Filter::of_kinds(&[Kind::HostPinned]),
        ..culeak::analysis::diff::Options::default()
    };
    let diff = Diff::of(&before, &after, &options);
    let text = plain(|out| crate::text::diff::page(&diff, false, false).text(out));
    assert!(text.starts_with("pinned memory of process 4711: no change"), "{text}");
    assert!(
        text.contains("filter  kind pinned; other memory is not compared"),
        "{text}"
    );
}

#[test]
fn one_row_left_out_is_one_row() {
    let (before, after) = (Sample::new().finish(0, 0), {
        let mut sample = Sample::new();
        for name in ["a", "b"] {
            let stack = sample.stack(&[(name, "/src/app.cu:1", "/opt/app"), MAIN]);
            sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
        }
        sample.finish(0, 0)
    });
    let options = culeak::analysis::diff::Options {
        top: Some(1),
        ..culeak::analysis::diff::Options::default()
    };
    let diff = Diff::of(&before, &after, &options);
    let text = plain(|out| crate::text::diff::page(&diff, false, false).text(out));
    assert!(text.contains("… and 1 more row;"), "{text}");
}
