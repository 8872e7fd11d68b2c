use super::*;
use crate::kind::Kind;
use crate::sample::{FrameText, MAIN, MIB, PYTHON, RUNTIME, Sample, gradients};

fn frame(name: &'static str) -> [FrameText<'static>; 3] {
    [RUNTIME, (name, "/src/a.cu:1", "/opt/app"), MAIN]
}

/// A process that holds these numbers of blocks of 100 bytes at these sites.
fn holding(sites: &[(&'static str, u64)]) -> Snapshot {
    let mut sample = Sample::new().running();
    for (name, count) in sites {
        let stack = sample.stack(&frame(name));
        sample.holds(Kind::Device, "cudaMalloc", 100, *count, stack);
    }
    sample.finish(1000, 0)
}

fn states(diff: &Diff) -> Vec<(State, String, i128)> {
    diff.rows
        .iter()
        .map(|row| (row.state, row.label.clone(), row.bytes_delta))
        .collect()
}

#[test]
fn methods_match_although_one_interpreter_does_not_know_their_classes() {
    let holding = |names: [&'static str; 2], line: &'static str| {
        let mut sample = Sample::new();
        let stack = sample.stack(&[RUNTIME, (names[0], line, PYTHON), (names[1], "/src/train.py:9", PYTHON)]);
        sample.holds(Kind::Device, "cudaMalloc", 100, 1, stack);
        sample.finish(1000, 0)
    };
    let old = holding(["step", "<module>"], "/src/train.py:212");
    for line in ["/src/train.py:212", "/src/train.py:215"] {
        let mut new = holding(["Trainer.step", "<module>"], line);
        new.process.pid += 1;
        for by in [By::Stack, By::Site] {
            for (before, after) in [(&old, &new), (&new, &old)] {
                let diff = Diff::of(
                    before,
                    after,
                    &Options {
                        by,
                        ..Options::default()
                    },
                );
                assert_eq!((diff.totals.unchanged, diff.rows.len()), (1, 0), "{by:?} {line}");
            }
        }
    }
}

#[test]
fn rows_are_new_grown_shrunk_gone_or_unchanged() {
    let before = holding(&[("same", 5), ("grows", 1), ("shrinks", 4), ("goes", 3)]);
    let after = holding(&[("comes", 2), ("shrinks", 1), ("grows", 6), ("same", 5)]);
    let diff = Diff::of(
        &before,
        &after,
        &Options {
            by: By::Stack,
            ..Options::default()
        },
    );
    assert_eq!(
        states(&diff),
        [
            (State::Grown, "grows".to_owned(), 500),
            (State::New, "comes".to_owned(), 200),
            (State::Shrunk, "shrinks".to_owned(), -300),
            (State::Gone, "goes".to_owned(), -300),
        ]
    );
    assert_eq!(
        (diff.totals.bytes_delta, diff.totals.count_delta, diff.totals.unchanged),
        (100, 1, 1)
    );
    let all = Diff::of(
        &before,
        &after,
        &Options {
            by: By::Stack,
            all: true,
            ..Options::default()
        },
    );
    assert_eq!(all.rows.len(), 5);
}

#[test]
fn what_grew_at_the_programs_own_lines_is_first_and_memory_of_libraries_last() {
    let cublas = ("cublasCreate_v2", "", "/usr/lib/libcublas.so.13");
    let with = |own: u64, cache: u64, of_cublas: u64| {
        let mut sample = Sample::new().running();
        let library = sample.stack(&[RUNTIME, cublas, frame("gemm")[1], MAIN]);
        sample.holds(Kind::Device, "cudaMalloc", 100, of_cublas, library);
        for (name, count) in [("cache", cache), ("step", own)] {
            let stack = sample.stack(&frame(name));
            sample.holds(Kind::Device, "cudaMalloc", 100, count, stack);
        }
        sample.finish(1000, 0)
    };
    let (before, after) = (with(1, 9, 1), with(2, 1, 99));
    let diff = Diff::of(&before, &after, &Options::default());
    let rows = states(&diff).into_iter().map(|(_, label, delta)| (label, delta));
    let expected = [("step", 100), ("cache", -800), ("gemm", 9800)];
    let expected = expected.map(|(label, delta)| (label.to_owned(), delta));
    assert_eq!(rows.collect::<Vec<_>>(), expected);
}

#[test]
fn a_snapshot_does_not_differ_from_itself() {
    let snapshot = crate::sample::leaky();
    let diff = Diff::of(
        &snapshot,
        &snapshot,
        &Options {
            by: By::Stack,
            ..Options::default()
        },
    );
    assert!(diff.rows.is_empty() && diff.same_process && diff.warnings.is_empty());
    assert_eq!(diff.totals.bytes_delta, 0);
}

#[test]
fn another_start_time_is_another_process() {
    let before = holding(&[("a", 1)]);
    let mut after = holding(&[("a", 1)]);
    after.process.started_unix_ns += 1;
    assert!(!Diff::of(&before, &after, &Options::default()).same_process);
}

#[test]
fn snapshots_in_the_wrong_order_are_a_warning() {
    let mut before = holding(&[("a", 1)]);
    let after = holding(&[("a", 1)]);
    before.taken.at_ns += 1;
    assert_eq!(Diff::of(&before, &after, &Options::default()).warnings.len(), 1);
}

#[test]
fn peaks_have_no_time_and_points_are_named() {
    let (mut before, mut after) = (holding(&[("a", 1)]), holding(&[("a", 2)]));
    before.taken.point = Some(Point::Time(5));
    (before.taken.at_ns, after.taken.at_ns) = (5, 20);
    after.taken.point = Some(Point::Mark("b".to_owned()));
    let diff = Diff::of(&before, &after, &Options::default());
    assert_eq!((diff.elapsed_ns, diff.before.point), (Some(15), Some(&Point::Time(5))));
    assert_eq!(diff.after.point, Some(&Point::Mark("b".to_owned())));
    // Its snapshot was taken later, when the process had ended.
    before.taken = after.taken.clone();
    before.taken.point = Some(Point::Peak);
    before.taken.at_ns = 30;
    let diff = Diff::of(&before, &after, &Options::default());
    assert_eq!((diff.elapsed_ns, diff.warnings.len()), (None, 0));
}

#[test]
fn kinds_top_and_min_bytes_select_rows() {
    let (before, after) = (holding(&[]), holding(&[("a", 3), ("b", 2), ("c", 1)]));
    let with = |options: Options| Diff::of(&before, &after, &options).rows.len();
    assert_eq!(
        with(Options {
            filter: Filter::of_kinds(&[Kind::Managed]),
            ..Options::default()
        }),
        0
    );
    assert_eq!(
        with(Options {
            top: Some(2),
            ..Options::default()
        }),
        2
    );
    assert_eq!(
        with(Options {
            min_bytes: 150,
            ..Options::default()
        }),
        2
    );
}

#[test]
fn forward_lines_match_after_they_moved_whichever_line_ran_backward() {
    let before = gradients(0);
    let mut after = gradients(5);
    after.process.pid += 1;
    // Of the second line that ran backward.
    after
        .allocations
        .change(|nth, allocation, _| allocation.bytes += MIB * u64::from(nth == 1));
    let options = Options {
        by: By::Forward,
        all: true,
        ..Options::default()
    };
    let diff = Diff::of(&before, &after, &options);
    assert_eq!(
        states(&diff),
        [
            (State::Grown, "Net.forward model.py:36".to_owned(), i128::from(MIB)),
            (State::Unchanged, "Net.forward model.py:37".to_owned(), 0),
            (State::Unchanged, "(no forward line)".to_owned(), 0),
        ]
    );
    assert!(
        diff.rows
            .iter()
            .all(|row| row.site().is_none() && row.callers.is_empty())
    );
}
