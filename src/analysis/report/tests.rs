use std::collections::BTreeMap;

use super::totals::sum;
use super::*;
use crate::analysis::filter::{Filter, Location};
use crate::analysis::site::Frame;
use crate::analysis::suppressions::Pattern;
use crate::kind::Kind;
use crate::point::Point;
use crate::sample::{self, MAIN, MIB, PYTHON, RUNTIME, Sample, serving};
use crate::snapshot::{Automatic, GroupLimits, ProcessState, Reason};

fn report(snapshot: &Snapshot) -> Report<'_> {
    Report::of(
        snapshot,
        &Options {
            source: "app.culeak".to_owned(),
            ..Options::default()
        },
    )
}

#[test]
fn rows_are_call_sites_of_the_program_then_of_pools_largest_first() {
    let snapshot = sample::leaky();
    let report = report(&snapshot);
    let places: Vec<_> = report
        .rows
        .iter()
        .map(|row| row.site().and_then(Frame::short_place))
        .collect();
    assert_eq!(places[0].as_deref(), Some("train.cu:212"));
    assert_eq!(places[1].as_deref(), Some("weights.cu:40"));
    assert_eq!((report.rows[0].bytes, report.rows[0].count), (128 * 9 * MIB, 128));
    let own = report.rows.iter().take_while(|row| !row.pool).count();
    let (own, others) = report.rows.split_at(own);
    assert!(others.iter().all(|row| row.pool || row.library.is_some()) && !others.is_empty());
    for rows in [own, others] {
        assert!(rows.windows(2).all(|pair| pair[0].bytes >= pair[1].bytes));
    }
}

#[test]
fn the_smallest_block_of_a_row_is_no_claim() {
    let snapshot = sample::leaky();
    let options = Options {
        by: By::Thread,
        ..Options::default()
    };
    let report = Report::of(&snapshot, &options);
    let mixed = report.rows.iter().find(|row| (1..row.count).contains(&row.claims));
    let mixed = mixed.expect("memory and a claim");
    assert_eq!((mixed.smallest, mixed.claims), (4096, 1));
}

#[test]
fn totals_are_per_location_and_claims_have_no_bytes() {
    let snapshot = sample::leaky();
    let totals = report(&snapshot).totals;
    assert_eq!(
        totals.device,
        Tally {
            bytes: (128 * 9 + 40) * MIB,
            count: 130
        }
    );
    assert_eq!(
        totals.managed,
        Tally {
            bytes: 3 * 4096,
            count: 3
        }
    );
    assert_eq!(
        totals.host,
        Tally {
            bytes: 64 * MIB,
            count: 1
        }
    );
    assert_eq!(totals.claims, BTreeMap::from([("mapping", 1)]));
    assert_eq!(
        totals.pool,
        Tally {
            bytes: 40 * MIB,
            count: 2
        }
    );
    assert_eq!(totals.call_sites, 3);
    assert_eq!(totals.held.on_devices().bytes, 128 * 9 * MIB + 3 * 4096);
    assert_eq!(
        totals.failed,
        Tally {
            bytes: 1 << 46,
            count: 1
        }
    );
    assert_eq!((totals.allocated, totals.freed), (635, 500));
}

#[test]
fn equal_failed_requests_count_each_time() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[MAIN]);
    sample.fails(100 * MIB, 2, stack).fails(200 * MIB, 2, stack);
    sample.0.failed[0].count = 3;
    let snapshot = sample.finish(0, 0);
    let failed = report(&snapshot).totals.failed;
    assert_eq!((failed.bytes, failed.count), (500 * MIB, 4));
}

#[test]
fn memory_is_leaked_only_after_the_process_ended() {
    let finished = Sample::new().finish(0, 0);
    let running = Sample::new().running().finish(0, 0);
    assert!(report(&finished).finished);
    assert!(!report(&running).finished);
    assert!(report(&running).is_empty());
}

#[test]
fn each_grouping_accounts_for_every_byte() {
    let snapshot = sample::leaky();
    let whole = report(&snapshot);
    let all = whole.totals.held.total().bytes + whole.totals.pool.bytes;
    for &by in By::ALL {
        assert_eq!(By::from_name(by.name()), Some(by));
        if by == By::ObjectKind {
            continue;
        }
        let report = Report::of(
            &snapshot,
            &Options {
                by,
                ..Options::default()
            },
        );
        assert_eq!(report.rows.iter().map(|row| row.bytes).sum::<u64>(), all, "{by:?}");
        assert_eq!(report.rows.iter().map(|row| row.count).sum::<u64>(), 135, "{by:?}");
        for row in &report.rows {
            for tallies in [&row.devices, &row.streams, &row.threads] {
                assert_eq!(tallies.values().map(|tally| tally.bytes).sum::<u64>(), row.bytes);
            }
        }
    }
}

#[test]
fn rows_cut_off_by_top_and_min_bytes_are_counted() {
    let snapshot = sample::leaky();
    let report = Report::of(
        &snapshot,
        &Options {
            top: Some(1),
            min_bytes: MIB,
            ..Options::default()
        },
    );
    assert_eq!(report.rows.len(), 1);
    assert_eq!(report.hidden_rows, 4);
    let cut = Cut {
        below_min: 2,
        beyond_top: 2,
    };
    assert_eq!(report.cut, cut);
    assert_eq!(
        report.hidden,
        Tally {
            bytes: 104 * MIB + 3 * 4096,
            count: 7
        }
    );
}

#[test]
fn host_memory_counts_against_no_device() {
    let mut snapshot = sample::leaky();
    snapshot.allocations.change(|_, _, call| call.device = Some(0));
    let report = Report::of(
        &snapshot,
        &Options {
            by: By::Device,
            ..Options::default()
        },
    );
    let bytes = |label: &str| report.rows.iter().find(|row| row.label == label).map(|row| row.bytes);
    assert_eq!(bytes("host memory"), Some(report.totals.host.bytes));
    assert_eq!(
        bytes("GPU 0"),
        Some(report.totals.device.bytes + report.totals.managed.bytes)
    );
    assert_eq!(bytes("GPU 0"), Some(report.devices[0].live.bytes));
    for row in &report.rows {
        assert_eq!(row.devices.keys().collect::<Vec<_>>(), [&row.label]);
    }
}

#[test]
fn blocks_that_a_static_destructor_may_have_freed_are_counted_separately() {
    let cudart = ("libcudart_static_0123", "", "/opt/app");
    let constructor = ("_GLOBAL__sub_I_cache", "", "/opt/app");
    let own = ("Cache::Cache()", "/src/cache.cu:8", "/opt/app");
    let mut sample = Sample::new();
    let stacks = [
        sample.stack(&[cudart, own, constructor]),
        sample.stack(&[cudart, own, MAIN]),
        sample.stack(&[RUNTIME, own, MAIN]),
        sample.stack(&[own, MAIN]),
    ];
    for (stack, api) in stacks
        .into_iter()
        .zip(["cuMemAlloc_v2", "cuMemAlloc_v2", "cudaMalloc", "cuMemAlloc_v2"])
    {
        sample.holds(Kind::Device, api, MIB, 1, stack);
    }
    let mut snapshot = sample.finish(0, 0);
    let counted = |snapshot: &Snapshot| {
        let totals = report(snapshot).totals;
        // They are still leaks.
        assert_eq!(totals.held.total().count, 4);
        (totals.alive_at_shutdown.count, totals.from_static_constructors.count)
    };
    assert_eq!(counted(&snapshot), (2, 1));
    // No destructor ran.
    snapshot.process.state = ProcessState::Ended;
    assert_eq!(counted(&snapshot), (0, 0));
}

#[test]
fn ages_are_measured_from_the_time_of_the_snapshot() {
    let snapshot = sample::leaky();
    let report = report(&snapshot);
    assert_eq!(report.rows[0].oldest_age_ns, 50_000_000_000);
    assert_eq!(report.rows[0].newest_age_ns, 1_000_000_000);
    let oldest_first = Report::of(
        &snapshot,
        &Options {
            sort: Sort::Age,
            ..Options::default()
        },
    );
    assert!(
        oldest_first
            .rows
            .windows(2)
            .all(|pair| pair[0].oldest_age_ns >= pair[1].oldest_age_ns)
    );
}

#[test]
fn a_site_with_two_stacks_is_one_row() {
    let mut sample = Sample::new();
    let site = ("grab", "/src/a.cu:5", "/opt/app");
    let first = sample.stack(&[RUNTIME, site, ("left", "/src/a.cu:20", "/opt/app"), MAIN]);
    let second = sample.stack(&[RUNTIME, site, ("right", "/src/a.cu:30", "/opt/app"), MAIN]);
    sample
        .holds(Kind::Device, "cudaMalloc", 100, 1, first)
        .holds(Kind::Device, "cudaMalloc", 100, 2, second);
    let snapshot = sample.finish(300, 0);
    let by_site = report(&snapshot);
    assert_eq!((by_site.rows.len(), by_site.rows[0].stacks_in_all), (1, 2));
    assert_eq!(by_site.rows[0].stacks[0].tally.bytes, 200);
    let by_stack = Report::of(
        &snapshot,
        &Options {
            by: By::Stack,
            ..Options::default()
        },
    );
    assert_eq!(by_stack.rows.len(), 2);
}

#[test]
fn an_allocation_without_a_stack_has_a_row() {
    let mut sample = Sample::new();
    sample.holds(Kind::Device, "cuMemAlloc_v2", 8, 1, 0);
    sample
        .0
        .allocations
        .change_last(|allocation, _| allocation.stack = None);
    let snapshot = sample.finish(8, 0);
    assert_eq!(report(&snapshot).rows[0].label, "(no stack)");
}

#[test]
fn sums_that_overflow_saturate() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[MAIN]);
    sample.holds(Kind::Device, "cudaMalloc", 1, 3, stack);
    let mut snapshot = sample.finish(0, 0);
    snapshot
        .allocations
        .change(|_, allocation, _| allocation.bytes = u64::MAX);
    for counter in &mut snapshot.counters {
        counter.total_count = u64::MAX;
    }
    snapshot.counters.push(snapshot.counters[0].clone());
    let report = report(&snapshot);
    assert_eq!(report.totals.held.total().bytes, u64::MAX);
    assert_eq!(report.rows[0].bytes, u64::MAX);
}

#[test]
fn warnings_advise() {
    let snapshot = sample::leaky();
    let report = report(&snapshot);
    assert!(
        report
            .warnings
            .iter()
            .any(|w| w.contains("40 frees") && w.contains("culeak run")),
        "{:?}",
        report.warnings
    );
    assert!(report.next.starts_with("culeak "));
}

#[test]
fn the_next_command_can_be_pasted() {
    let snapshot = Sample::new().finish(0, 0);
    let report = Report::of(
        &snapshot,
        &Options {
            source: "my run's.culeak".to_owned(),
            ..Options::default()
        },
    );
    assert_eq!(report.next, r"culeak check 'my run'\''s.culeak'");
    // By default it would show the end of the script.
    let mut at_exit = Sample::new().finish(0, 0);
    at_exit.taken.point = Some(Point::Exit);
    let next = |snapshot: &Snapshot| {
        let source = "a.culeak".to_owned();
        let options = Options {
            source,
            ..Options::default()
        };
        Report::of(snapshot, &options).next
    };
    assert_eq!(next(&at_exit), "culeak check a.culeak");
    at_exit.end = Some(crate::snapshot::End {
        of: crate::snapshot::EndOf::Script,
        time_ns: 1,
    });
    assert_eq!(next(&at_exit), "culeak check a.culeak --at exit");
}

#[test]
fn the_next_command_selects_what_the_report_shows() {
    let mut snapshot = sample::leaky();
    snapshot.taken.point = Some(Point::Mark("warm up".to_owned()));
    let next = |snapshot: &Snapshot, by| {
        let filter = Filter {
            kinds: vec![Kind::Device],
            devices: vec![Location::Gpu(0)],
            focus: vec![Pattern::parse("Trainer::*").expect("a pattern")],
            ..Filter::default()
        };
        let source = "a.culeak".to_owned();
        let options = Options {
            source,
            filter,
            by,
            ..Options::default()
        };
        let report = Report::of(snapshot, &options);
        (report.next, report.selected)
    };
    let selected = " --at 'mark:warm up' --kind device --device 0 --focus 'Trainer::*'";
    let by_stack = format!("culeak report a.culeak{selected} --by stack");
    assert_eq!(next(&snapshot, By::Site), (by_stack.clone(), selected.to_owned()));
    // The point may be that of an automatic snapshot.
    snapshot.taken.automatic = Some(Automatic {
        reason: Reason::Mark,
        name: None,
        failed: None,
        limits: GroupLimits::default(),
    });
    assert_eq!(next(&snapshot, By::Site).0, by_stack);
    assert_eq!(
        next(&snapshot, By::Stack).0,
        "culeak report a.culeak --at 'mark:warm up'"
    );
}

#[test]
fn callers_have_blocks_without_the_claims_beside_them() {
    let of = |blocks_of_plan| {
        let mut sample = Sample::new();
        let site = ("map(int)", "/src/vmm.cu:7", "/opt/app");
        let callers = [
            ("load()", "/src/a.cu:1", "/opt/app"),
            ("plan()", "/src/a.cu:2", "/opt/app"),
        ];
        let [load, plan] = callers.map(|caller| sample.stack(&[RUNTIME, site, caller, MAIN]));
        sample.holds(Kind::Device, "cudaMalloc", 100, 3, load);
        sample.holds(Kind::Mapping, "cuMemMap", 2 * MIB, 2, load);
        sample.holds(Kind::Mapping, "cuMemMap", 2 * MIB, 4, plan);
        sample.holds(Kind::Device, "cudaMalloc", 100, blocks_of_plan, plan);
        let snapshot = sample.finish(0, 0);
        let callers = report(&snapshot).rows[0].callers.clone();
        callers
            .iter()
            .map(|of| (of.tally.bytes, of.tally.count))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(1), [(300, 3), (100, 1)]);
    assert_eq!(of(0), []);
}

#[test]
fn tensors_are_listed_instead_of_their_segments() {
    let snapshot = sample::training().finish(0, 0);
    let report = report(&snapshot);
    let rows: Vec<_> = report
        .rows
        .iter()
        .map(|row| (row.label.as_str(), row.bytes / MIB, row.count, row.pool))
        .collect();
    // The same line requested the pinned buffer and the program's own memory; the buffer is cached.
    let step = "training_step";
    assert_eq!(
        rows,
        [
            (step, 8, 2, false),
            ("load", 2, 1, false),
            (step, 32, 1, false),
            ("load", 1, 1, true)
        ]
    );
    assert_eq!(report.rows[2].library, Some("cuBLAS"));
    assert_eq!(report.pools.iter().map(|row| row.bytes / MIB).collect::<Vec<_>>(), [20]);
    assert_eq!(report.totals.held.blocks.bytes, 8 * MIB);
    assert_eq!(report.totals.held.total().bytes, 42 * MIB);
    assert_eq!(report.totals.pool.bytes, 21 * MIB);
    assert_eq!(
        report.totals.device.bytes,
        54 * MIB,
        "what the driver handed out, tensors not added"
    );
    assert_eq!(report.devices[0].live.bytes, 54 * MIB);
}

#[test]
fn rows_can_be_python_lines_and_libraries() {
    let snapshot = sample::training().finish(0, 0);
    let labels = |by| -> Vec<String> {
        let options = Options {
            by,
            ..Options::default()
        };
        Report::of(&snapshot, &options)
            .rows
            .into_iter()
            .map(|row| row.label)
            .collect()
    };
    assert_eq!(
        labels(By::PythonLine),
        ["training_step train.py:212", "load data.py:31"]
    );
    assert_eq!(labels(By::Library), ["cuBLAS", "PyTorch", "(the program itself)"]);
    assert_eq!(labels(By::Forward), ["(no forward line)"]);
}

#[test]
fn blocks_of_backward_are_grouped_by_the_forward_line_whichever_line_ran_backward() {
    let snapshot = sample::gradients(0);
    let options = Options {
        by: By::Forward,
        ..Options::default()
    };
    let report = Report::of(&snapshot, &options);
    let rows = report.rows.iter().map(|row| (row.label.as_str(), row.bytes / MIB));
    assert_eq!(
        rows.collect::<Vec<_>>(),
        [
            ("Net.forward model.py:31", 7),
            ("Net.forward model.py:32", 2),
            ("(no forward line)", 1)
        ]
    );
}

#[test]
fn the_failed_request_that_caused_the_snapshot_is_first() {
    let mut sample = Sample::new();
    let step = sample.stack(&[RUNTIME, ("training_step", "/home/me/train.py:212", PYTHON)]);
    sample.fails(7, 2, step).fails(1 << 40, 2, step);
    let mut snapshot = sample.finish(0, 0);
    assert!(report(&snapshot).trigger.is_none());
    snapshot.taken.automatic = Some(crate::snapshot::Automatic {
        reason: crate::snapshot::Reason::OutOfMemory,
        name: None,
        failed: Some(0),
        limits: GroupLimits::default(),
    });
    let report = report(&snapshot);
    let failed = report.trigger.expect("the request is known");
    assert_eq!((failed.bytes, failed.device.as_str()), (7, "GPU 0"));
    assert_eq!(
        failed.stack.python_line().and_then(Frame::short_place).as_deref(),
        Some("train.py:212")
    );
}

#[test]
fn of_many_sizes_the_first_become_rows_and_the_others_are_counted() {
    let mut snapshot = sample::leaky();
    let few = snapshot.allocations.clone();
    let mut nth = 0;
    while snapshot.allocations.len() < 1000 {
        snapshot.allocations.rows.extend_from_slice(&few.rows);
    }
    // Each size twice.
    snapshot.allocations.rows.iter_mut().for_each(|row| {
        nth += 1;
        row.bytes = 1 + nth / 2;
    });
    let by = |sort, top, min_bytes| {
        let options = Options {
            by: By::Size,
            sort,
            top,
            min_bytes,
            ..Options::default()
        };
        Report::of(&snapshot, &options)
    };
    let whole = report(&snapshot);
    let held = |report: &Report| {
        let rows = report.rows.iter().map(|row| row.bytes);
        sum(rows) + report.hidden.bytes
    };
    let sizes = |report: &Report| report.rows.iter().map(|row| row.largest).collect::<Vec<_>>();
    for sort in [Sort::Bytes, Sort::Count, Sort::Age] {
        let all = by(sort, None, 0);
        assert!(all.rows.len() == 50 && all.hidden_rows > 400, "{}", all.hidden_rows);
        assert_eq!(held(&all), held(&whole), "no byte is lost");
        let three = by(sort, Some(3), 0);
        assert_eq!(sizes(&three), sizes(&all)[..3], "{sort:?}");
        assert_eq!(three.hidden_rows, all.hidden_rows + 47);
        assert!(three.rows.iter().all(|row| row.smallest == row.largest));
        let large = by(sort, Some(3), 600);
        assert!(large.rows.iter().all(|row| row.bytes >= 600));
        assert_eq!(held(&large), held(&whole));
    }
}

#[test]
fn a_program_that_leaks_only_objects_is_shown_them_next() {
    let mut sample = Sample::new();
    let serve = sample.stack(&[RUNTIME, ("serve()", "/src/serve.cu:8", "/opt/app"), MAIN]);
    sample.makes(Kind::Stream, "cudaStreamCreate", 3, serve);
    let next = |snapshot: &Snapshot| {
        let options = Options {
            source: "a.culeak".to_owned(),
            ..Options::default()
        };
        Report::of(snapshot, &options).next
    };
    assert_eq!(next(&sample.finish(0, 0)), "culeak report a.culeak --view objects");
    assert_eq!(next(&Sample::new().finish(0, 0)), "culeak check a.culeak");
    assert_eq!(next(&serving()), "culeak check a.culeak", "memory comes first");
}
