//! Verdicts on recordings with sampled stacks.

use super::*;
use crate::analysis::groups::Groups;
use crate::sample::GIB;
use crate::sampling::tests::{MEAN, Sampler};
use crate::snapshot::{Allocation, AtPeak};

const SITES: usize = 4;
const KIB: u64 = 1024;

/// A recording, to which blocks of the functions `site_0` … are added.
struct Recording {
    snapshot: Snapshot,
    stacks: Vec<usize>,
    left_out: usize,
}

impl Recording {
    fn new() -> Recording {
        let mut sample = Sample::new();
        let stacks = sample.sites(SITES);
        let left_out = sample.stack(&[]);
        sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stacks[0]);
        let mut snapshot = sample.finish(0, 0);
        snapshot.allocations.retain(|_| false);
        snapshot.sampling = Some(Sampling {
            bytes: MEAN,
            most_bytes: 0,
            left_out: Some(left_out),
        });
        Recording {
            snapshot,
            stacks,
            left_out,
        }
    }

    /// Blocks of this size at a site, chosen or not.
    fn holds(&mut self, site: usize, bytes: u64, count: u64, is_chosen: impl FnMut() -> bool) -> &mut Recording {
        let mut sample = Sample::new();
        let stack = sample.stack(&[]);
        sample.holds(Kind::Device, "cudaMalloc", bytes, 1, stack);
        let call = sample.0.allocations.at(0).call.clone();
        let mut is_chosen = is_chosen;
        for _ in 0..count {
            let stack = if is_chosen() { self.stacks[site] } else { self.left_out };
            self.snapshot.allocations.push(Allocation {
                address: (self.snapshot.allocations.len() as u64 + 1) << 30,
                bytes,
                requested: bytes,
                time_ns: 0,
                stack: Some(stack),
                call: &call,
            });
        }
        self
    }
}

fn judge(recording: &Recording, suppressions: &str, limits: Limits) -> Outcome {
    verdict(&recording.snapshot, &with(limits, suppressions)).outcome
}

fn most_bytes(limit: u64) -> Limits {
    Limits::from([Limit::bytes(Scope::All, limit)])
}

fn most_blocks(limit: u64) -> Limits {
    Limits::from([Limit::blocks(limit)])
}

#[test]
fn blocks_that_were_not_chosen_count_as_blocks() {
    let mut recording = Recording::new();
    recording.holds(0, 2 * MIB, 1, || true).holds(1, 256, 1000, || false);
    let judge = |limit| judge(&recording, "leak:nowhere", most_blocks(limit));
    assert_eq!(judge(0), Outcome::Failed);
    assert_eq!([judge(1), judge(10), judge(1000)], [Outcome::NoVerdict; 3]);
    assert_eq!(judge(1001), Outcome::Passed);
}

#[test]
fn only_as_many_blocks_are_missing_as_fit_into_the_bytes_that_may_be_unseen() {
    let mut recording = Recording::new();
    recording
        .holds(0, 2 * MIB, 100, || true)
        .holds(1, 2 * MIB, 1, || true)
        .holds(2, 256 * KIB, 1000, || false);
    let judge = |limit| judge(&recording, "leak:site_1", most_blocks(limit));
    // Six times 512 KiB are 12 blocks, and 100 blocks of 2 MiB stand for 101.9 ± 1.4.
    assert_eq!(
        [judge(99), judge(110), judge(120)],
        [Outcome::Failed, Outcome::NoVerdict, Outcome::Passed]
    );
}

#[test]
fn without_chosen_blocks_of_a_suppression_the_total_is_judged_but_for_what_may_be_unseen() {
    let mut recording = Recording::new();
    // A block of site_1 of twice the distance is not chosen in 13 of 100 runs.
    recording.holds(0, 64 * MIB, 60, || true).holds(1, MIB, 1, || false);
    let total = (64 * 60 + 1) * MIB;
    let judge = |limit| judge(&recording, "leak:site_1", most_bytes(limit));
    assert_eq!(judge(total), Outcome::Passed);
    // The judged sum keeps this limit.
    assert_eq!(judge(total - MIB), Outcome::NoVerdict);
    assert_eq!(judge(total - MIB - 1), Outcome::Failed, "the chosen blocks alone");
    let mut small = Recording::new();
    let mut sampler = Sampler::new(1);
    small.holds(0, 64 * KIB, 60_000, || sampler.chooses(64 * KIB));
    let total = 60_000 * 64 * KIB;
    let judge = |limits| super::sampled::judge(&small, "leak:site_1", limits);
    assert_eq!(judge(most_bytes(total)), Outcome::Passed);
    assert_eq!(judge(most_bytes(total - 1)), Outcome::NoVerdict);
    assert_eq!(judge(most_bytes(total - 6 * MEAN)), Outcome::NoVerdict);
    assert_eq!(judge(most_bytes(total - 6 * MEAN - 1)), Outcome::Failed);
    assert_eq!(judge(most_blocks(60_000 - 48)), Outcome::NoVerdict);
    assert_eq!(judge(most_blocks(60_000 - 49)), Outcome::Failed);
}

/// Of 200 leaks of which few blocks are chosen, none exceeds a limit and passes.
#[test]
fn estimates_from_few_blocks_do_not_let_leaks_pass() {
    const RUNS: u64 = 200;
    for (size, count) in [(64 * KIB, 20), (64 * KIB, 80), (256 * KIB, 10), (256 * KIB, 20)] {
        let mut passed = 0;
        for seed in 0..RUNS {
            let mut sampler = Sampler::new(seed);
            let mut recording = Recording::new();
            recording
                .holds(1, 2 * MIB, 1, || true)
                .holds(2, 2 * MIB, 1, || true)
                // Left out, and suppressed: what may be judged is no bound.
                .holds(2, 100 * MIB, 1, || false)
                .holds(0, size, count, || sampler.chooses(size));
            let limit = size * count + 2 * MIB - 1;
            passed += u64::from(judge(&recording, "leak:site_2", most_bytes(limit)) == Outcome::Passed);
        }
        assert!(passed == 0, "{passed} of {RUNS} with {count} blocks of {size}");
    }
}

#[test]
fn a_peak_of_which_no_block_was_chosen_is_not_known_to_keep_a_limit() {
    let mut recording = Recording::new();
    recording.snapshot.sampling.as_mut().expect("sampled").bytes = GIB;
    // What holds no memory always has a row.
    recording.snapshot.at_peaks = vec![AtPeak {
        stack: Some(recording.stacks[0]),
        kind: Kind::Mapping,
        device: Some(0),
        domain: None,
        api: "cuMemMap".to_owned(),
        bytes: 0,
        count: 1,
    }];
    for counter in &mut recording.snapshot.counters {
        counter.peak_bytes = if counter.kind == Kind::Device { 40 * MIB } else { 0 };
    }
    recording.snapshot = recording.snapshot.at(&Point::Peak).expect("a peak");
    let judge = |limits| super::sampled::judge(&recording, "leak:nowhere", limits);
    assert_eq!(judge(most_bytes(0)), Outcome::NoVerdict);
    assert_eq!(judge(most_bytes(40 * MIB - 1)), Outcome::NoVerdict);
    assert_eq!(judge(most_bytes(40 * MIB)), Outcome::Passed);
    assert_eq!(judge(most_blocks(1000)), Outcome::NoVerdict);
    let of_kind = |limit| Limits::from([Limit::bytes(Scope::Kind(Kind::Device), limit)]);
    assert_eq!(judge(of_kind(0)), Outcome::NoVerdict);
    assert_eq!(judge(of_kind(40 * MIB)), Outcome::Passed);
    let stacks = CallStacks::of(&recording.snapshot);
    let (total, errors) = Groups::of(&recording.snapshot, &stacks).total(|_| true);
    assert_eq!((total.bytes, errors.map(|of| of.bytes_error)), (0, Some(40 * MIB)));
}

#[test]
fn a_budget_for_a_pattern_without_chosen_blocks_has_no_verdict() {
    let mut recording = Recording::new();
    recording.holds(0, 256 * KIB, 1000, || false);
    for suppressions in ["", "leak:nowhere"] {
        let judge = |bytes| {
            let limits = [in_pattern("site_0", bytes)].into();
            super::sampled::judge(&recording, suppressions, limits)
        };
        assert_eq!(judge(6 * MEAN - 1), Outcome::NoVerdict, "{suppressions}");
        assert_eq!(judge(6 * MEAN), Outcome::Passed, "{suppressions}");
    }
}

fn most_per_site(limit: u64) -> Limits {
    Limits::from([Limit::bytes(Scope::Site, limit)])
}

#[test]
fn memory_without_a_stack_may_be_of_any_call_site() {
    let mut recording = Recording::new();
    recording.holds(1, 4096, 15_000, || false);
    let judge = |recording: &Recording, limit| super::sampled::judge(recording, "", most_per_site(limit));
    let all = 15_000 * 4096;
    // Of more than six times the distance at one call site, a block was chosen.
    assert_eq!(judge(&recording, 6 * MEAN), Outcome::Passed);
    assert_eq!(judge(&recording, 6 * MEAN - 1), Outcome::NoVerdict);
    // Where a thread was too fast, the distance was larger.
    recording.snapshot.sampling.as_mut().expect("sampled").most_bytes = 1024 * MEAN;
    assert_eq!(judge(&recording, all), Outcome::Passed);
    assert_eq!(judge(&recording, all - 1), Outcome::NoVerdict);
    // A call site with chosen blocks may hold all of it, too.
    recording.holds(0, 64 * MIB, 1, || true);
    assert_eq!(judge(&recording, 64 * MIB + all), Outcome::Passed);
    assert_eq!(judge(&recording, 64 * MIB + all - 1), Outcome::NoVerdict);
    recording.snapshot.sampling.as_mut().expect("sampled").most_bytes = 0;
    assert_eq!(judge(&recording, 64 * MIB - 1), Outcome::Failed);
}

#[test]
fn a_baseline_needs_the_stack_of_every_block() {
    let mut before = Recording::new();
    before.holds(0, 64 * MIB, 2, || true);
    let outcome = |now: &Recording, limits: Limits| {
        let mut rules = Rules::from(limits);
        rules.baseline = Some(baseline_of(&before.snapshot, &rules));
        verdict(&now.snapshot, &rules).outcome
    };
    let mut now = Recording::new();
    now.holds(0, 64 * MIB, 2, || true);
    assert_eq!(outcome(&now, Limits::default()), Outcome::Passed);
    now.holds(3, 4096, 1, || false);
    for fail_on in [FailOn::New, FailOn::Grown] {
        let limits = Limits {
            fail_on,
            ..Limits::default()
        };
        assert_eq!(outcome(&now, limits), Outcome::NoVerdict);
    }
    let accepted = Limits {
        allow_losses: true,
        ..Limits::default()
    };
    assert_eq!(outcome(&now, accepted), Outcome::Passed);
    now.holds(1, 64 * MIB, 1, || true);
    assert_eq!(
        outcome(&now, Limits::default()),
        Outcome::Failed,
        "a new call site was seen"
    );
}

#[test]
fn exact_totals_do_not_contain_pools_that_chosen_blocks_show() {
    let mut recording = Recording::new();
    let mut sample = Sample(recording.snapshot);
    let pool = sample.stack(&[
        sample::RUNTIME,
        (
            "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc",
            "",
            "/opt/libc10_cuda.so",
        ),
        sample::MAIN,
    ]);
    recording = Recording {
        snapshot: sample.0,
        ..recording
    };
    recording
        .holds(0, 64 * KIB, 100, || false)
        .holds(0, 20 * MIB, 1, || true);
    let rules = Rules::from(most_bytes(20 * MIB));
    let passes = |recording: &Recording| {
        let verdict = verdict(&recording.snapshot, &rules);
        verdict.outcome
    };
    assert_eq!(passes(&recording), Outcome::Failed, "all is held");
    recording.stacks[0] = pool;
    recording.holds(0, 20 * MIB, 1, || true);
    // Blocks without a stack may be of the pool, too.
    assert_eq!(passes(&recording), Outcome::NoVerdict);
    let devices = |kinds: Vec<Kind>| {
        let limits = Limits {
            kinds,
            ..most_bytes(20 * MIB)
        };
        let rules = Rules::from(limits);
        verdict(&recording.snapshot, &rules).outcome
    };
    assert_eq!(devices(vec![Kind::Device]), Outcome::NoVerdict);
    assert_eq!(devices(vec![Kind::Managed]), Outcome::Passed);
}

#[test]
fn no_estimate_is_above_the_exact_sum_that_it_is_a_part_of() {
    use crate::analysis::profile::tree::{self, Tree};
    use crate::analysis::profile::{self, Profile};
    use crate::analysis::report::{Options, Report, RowsOfKinds};
    let mut recording = Recording::new();
    // Each of these small blocks happens to be chosen, and stands for many.
    recording.holds(0, 64 * KIB, 10, || true).holds(1, 64 * KIB, 2, || true);
    let snapshot = &recording.snapshot;
    let report = Report::of(snapshot, &Options::default());
    let exact = report.totals.held.total();
    assert_eq!((exact.bytes, exact.count), (12 * 64 * KIB, 12));
    let tree = Tree::of(
        &Profile::of(snapshot, &profile::Options::default()),
        &tree::Limits::default(),
    );
    assert!(
        tree.nodes.len() > 2 && tree.nodes.iter().all(|node| node.sums.now.bytes <= exact.bytes),
        "{tree:?}"
    );
    let stacks = CallStacks::of(snapshot);
    let of_kinds = RowsOfKinds::of(snapshot, &stacks, &Options::default().filter, By::Stack);
    let verdict = verdict(snapshot, &Rules::default());
    let judged: Vec<&crate::analysis::report::Row> = verdict.rows.iter().map(|judged| &judged.row).collect();
    let rows = report.rows.iter().chain(&of_kinds.rows).chain(judged);
    let mut seen = 0;
    for row in rows {
        let parts = [row.stacks[0].tally, row.kinds["device"], row.tally()];
        assert!(
            row.estimated.is_some()
                && parts
                    .iter()
                    .all(|part| part.bytes <= exact.bytes && part.count <= exact.count),
            "{row:?}"
        );
        seen += 1;
    }
    assert_eq!(seen, 6);
}

#[test]
fn no_estimate_at_the_peak_is_above_the_exact_peak() {
    use crate::analysis::report::{Options, Report};
    let mut recording = Recording::new();
    recording.snapshot.at_peaks = vec![AtPeak {
        stack: Some(recording.stacks[0]),
        kind: Kind::Device,
        device: Some(0),
        domain: None,
        api: "cudaMalloc".to_owned(),
        bytes: 64 * MIB,
        count: 9,
    }];
    for counter in &mut recording.snapshot.counters {
        counter.peak_bytes = if counter.kind == Kind::Device { 40 * MIB } else { 0 };
    }
    let peak = recording.snapshot.at(&Point::Peak).expect("a peak");
    let report = Report::of(&peak, &Options::default());
    assert_eq!(
        (report.totals.held.total().bytes, report.rows[0].bytes),
        (40 * MIB, 40 * MIB)
    );
}

/// By the scope and the measure of what is over its limit.
#[test]
fn figures_of_call_sites_and_patterns_are_estimates_and_those_of_totals_and_objects_are_not() {
    let mut snapshot = crate::sample::serving();
    snapshot.objects_known = true;
    let limits = Limits {
        given: vec![
            Limit::bytes(Scope::All, 0),
            Limit::bytes(Scope::Site, 0),
            Limit::objects(Kind::GraphExec, 0),
        ],
        ..accepting(Limits::default())
    };
    let estimates = |snapshot: &Snapshot| {
        let verdict = verdict(snapshot, &limits.clone().into());
        let of = |breach: &Breach| match breach {
            Breach::Total(of) => (of.limit.spelling(), verdict.is_estimate(breach)),
            other => panic!("{other:?}"),
        };
        verdict
            .breaches
            .iter()
            .map(of)
            .collect::<std::collections::BTreeSet<_>>()
    };
    let [all, of_objects, of_sites] = [0, 3, 5];
    let exact = estimates(&snapshot);
    assert!(exact.iter().all(|(_, is_estimate)| !is_estimate), "{exact:?}");
    snapshot.sampling = Some(Sampling {
        bytes: MEAN,
        most_bytes: 0,
        left_out: None,
    });
    let sampled = estimates(&snapshot);
    assert_eq!(sampled, [(all, false), (of_objects, false), (of_sites, true)].into());
}
