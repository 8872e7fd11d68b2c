use super::*;
use crate::kind::Kind;
use crate::sample::{FrameText, MAIN, MIB, PYTHON, RUNTIME, Sample, gradients};
use crate::snapshot::{Holders, HostMemory, HostRow, Python};

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
        let of = |snapshot: &Snapshot, version: &str| {
            let mut known = snapshot.clone();
            known.process.python = Some(Python {
                version: version.to_owned(),
                no_frames: None,
            });
            known
        };
        let known = [of(&old, "3.10.14"), of(&new, "3.12.1")];
        for by in [By::Stack, By::Site] {
            for (before, after) in [
                (&old, &new),
                (&new, &old),
                (&known[0], &known[1]),
                (&known[1], &known[0]),
            ] {
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

/// A training script with CPython and PyTorch of these versions, which holds this much at the lines of the script.
fn training(python: &str, torch: &str, lines: &[(&str, u64, u64)]) -> Snapshot {
    let packages = format!("/venv-{torch}/lib/python{python}/site-packages");
    let is_new = torch == "2.10";
    let (linear, step) = match is_new {
        true => (
            format!("{packages}/torch/nn/functional.py:40"),
            "Optimizer.profiled_step",
        ),
        false => (format!("{packages}/torch/nn/modules/linear.py:125"), "Optimizer.step"),
    };
    let library = format!("{packages}/torch/lib/libtorch_cuda.so");
    let mut sample = Sample::new();
    for (function, line, blocks) in lines {
        let place = format!("/src/train.py:{line}");
        let caller = ("Trainer.step", "/src/train.py:90", PYTHON);
        let comprehension = format!("{function}.<locals>.<listcomp>");
        let mut frames = vec![
            RUNTIME,
            ("at::native::empty_cuda(long)", "", library.as_str()),
            (step, linear.as_str(), PYTHON),
        ];
        match python == "3.11" && *function == "load" {
            true => frames.extend([
                (comprehension.as_str(), place.as_str(), PYTHON),
                (*function, "/src/train.py:7", PYTHON),
            ]),
            false => frames.push((*function, place.as_str(), PYTHON)),
        }
        frames.push(caller);
        let stack = sample.stack(&frames);
        sample.holds(Kind::Device, "cudaMalloc", MIB, *blocks, stack);
    }
    // Nothing of the program: a thread of the library.
    let thread = match is_new {
        true => "at::native::Cache<long>::grow(long, bool)",
        false => "at::native::Cache<int>::grow(int)",
    };
    let stack = sample.stack(&[RUNTIME, (thread, "", library.as_str())]);
    sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
    let mut snapshot = sample.finish(1000, 0);
    snapshot.process.pid = if is_new { 2 } else { 1 };
    snapshot.process.python = Some(Python {
        version: python.to_owned(),
        no_frames: None,
    });
    snapshot.process.packages = [("torch".to_owned(), torch.to_owned())].into();
    snapshot
}

#[test]
fn rows_of_other_versions_of_libraries_match_by_the_programs_own_lines() {
    // `Loss.forward` is new; the other lines are where they were. Of two lines of one function, one holds nothing any more.
    let before = training(
        "3.11",
        "2.9",
        &[("load", 8, 4), ("Net.forward", 30, 2), ("Net.forward", 31, 5)],
    );
    let after = training(
        "3.12",
        "2.10",
        &[("load", 8, 4), ("Net.forward", 31, 9), ("Loss.forward", 50, 1)],
    );
    for by in [By::Stack, By::Site] {
        let options = Options {
            by,
            all: true,
            ..Options::default()
        };
        let diff = Diff::of(&before, &after, &options);
        let libraries = diff.libraries.iter().map(|library| library.name.as_str());
        assert_eq!(libraries.collect::<Vec<_>>(), ["CPython", "torch"]);
        let rows = diff.rows.iter().map(|row| {
            let place = row.stack.site().and_then(|site| site.line);
            (row.state, place, row.bytes_delta / i128::from(MIB))
        });
        let mut rows: Vec<_> = rows.collect();
        rows.sort_unstable_by_key(|row| row.1);
        let expected = [
            (State::Unchanged, None, 0),
            (State::Unchanged, Some(8), 0),
            (State::Gone, Some(30), -2),
            (State::Grown, Some(31), 4),
            (State::New, Some(50), 1),
        ];
        assert_eq!(rows, expected, "{by:?}");
    }
    // Moved lines.
    let moved = training(
        "3.12",
        "2.10",
        &[("load", 9, 4), ("Net.forward", 32, 2), ("Net.forward", 33, 5)],
    );
    let diff = Diff::of(&before, &moved, &Options::default());
    assert_eq!((diff.rows.len(), diff.totals.unchanged), (0, 4));
}

#[test]
fn rows_of_host_memory_that_are_cut_off_are_counted() {
    let with = |types: &[(&str, u64)]| {
        let mut snapshot = holding(&[("load", 1)]);
        let mut holders = Holders::default();
        let row = |(name, bytes): &(&str, u64)| HostRow {
            name: (*name).to_owned(),
            bytes: *bytes,
            count: 1,
            free_bytes: 0,
        };
        holders.search.host = Some(HostMemory {
            types: types.iter().map(row).collect(),
            ..HostMemory::default()
        });
        snapshot.holders = Some(holders);
        snapshot
    };
    let before = with(&[("dict", 1000), ("list", 1000), ("str", 1000), ("int", 1000)]);
    let after = with(&[("dict", 2000), ("list", 3000), ("str", 1001), ("int", 1000)]);
    let counted = |options: &Options| {
        let host = Diff::of(&before, &after, options).host.expect("host memory");
        let names: Vec<String> = host.types.into_iter().map(|row| row.name).collect();
        (
            names,
            host.hidden_types,
            host.hidden_holders + host.hidden_arenas,
            host.cut,
        )
    };
    let options = |top, min_bytes| Options {
        top,
        min_bytes,
        ..Options::default()
    };
    let cut = |below_min, beyond_top| Cut { below_min, beyond_top };
    let name = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        counted(&options(None, 0)),
        (name(&["list", "dict", "str"]), 0, 0, cut(0, 0))
    );
    assert_eq!(counted(&options(Some(1), 0)), (name(&["list"]), 2, 0, cut(0, 2)));
    assert_eq!(counted(&options(Some(1), 10)), (name(&["list"]), 2, 0, cut(1, 1)));
}

#[test]
fn rows_are_call_sites_only_across_other_versions_of_libraries() {
    let of = |python, torch| training(python, torch, &[("load", 8, 4)]);
    let before = of("3.11", "2.9");
    let by = |after: &Snapshot, sites_across_libraries| {
        let options = Options {
            by: By::Stack,
            sites_across_libraries,
            ..Options::default()
        };
        Diff::of(&before, after, &options).by
    };
    assert_eq!(by(&of("3.12", "2.10"), true), By::Site);
    assert_eq!(by(&of("3.12", "2.10"), false), By::Stack);
    // The same process, and another with the same libraries.
    assert_eq!(by(&before, true), By::Stack);
    let mut again = of("3.11", "2.9");
    again.process.pid += 1;
    assert_eq!(by(&again, true), By::Stack);
}

#[test]
fn claims_are_no_blocks_of_a_row_or_its_callers() {
    let of = |blocks, mappings| {
        let mut sample = Sample::new();
        let site = ("map(int)", "/src/vmm.cu:7", "/opt/app");
        let callers = [
            ("load()", "/src/a.cu:1", "/opt/app"),
            ("plan()", "/src/a.cu:2", "/opt/app"),
            ("keep()", "/src/a.cu:3", "/opt/app"),
        ];
        let [load, plan, keep] = callers.map(|caller| sample.stack(&[RUNTIME, site, caller, MAIN]));
        sample.holds(Kind::Device, "cudaMalloc", 100, blocks, load);
        sample.holds(Kind::Mapping, "cuMemMap", 2 * MIB, mappings, load);
        sample.holds(Kind::Device, "cudaMalloc", 100, blocks / 3, plan);
        sample.holds(Kind::Mapping, "cuMemMap", 2 * MIB, mappings, keep);
        sample.finish(0, 0)
    };
    let counts = |before: &Snapshot, after: &Snapshot| {
        let diff = Diff::of(before, after, &Options::default());
        let row = &diff.rows[0];
        let callers = row
            .callers
            .iter()
            .map(|of| (of.change.before.count, of.change.after.count));
        (row.blocks().map(|side| side.count), callers.collect::<Vec<_>>())
    };
    assert_eq!(counts(&of(3, 1), &of(6, 5)), ([4, 8], vec![(3, 6), (1, 2)]));
    // Blocks on one side alone, and on none.
    assert_eq!(counts(&of(0, 1), &of(3, 1)), ([0, 4], vec![(0, 3), (0, 1)]));
    assert_eq!(counts(&of(0, 1), &of(0, 3)), ([2, 6], vec![(1, 3), (1, 3)]));
}
