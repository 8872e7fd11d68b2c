use super::*;
use crate::analysis::boundaries::Boundary;
use crate::analysis::suppressions::Pattern;
use crate::kind::Kind;
use crate::sample::{self, MIB, Sample};
use crate::snapshot::{Class, ProcessState, Sampling};
use crate::tally::Tally;

mod baseline;
mod hidden;
mod limits;
mod objects;
mod sampled;
mod unseen;

/// The blocks of the sample's pool were not recorded, which prevents a verdict unless it is accepted.
fn accepting(limits: Limits) -> Limits {
    Limits {
        allow_losses: true,
        ..limits
    }
}

/// A limit on what has this pattern in its stack.
fn in_pattern(text: &str, bytes: u64) -> Limit {
    Limit::bytes(Scope::Pattern(Pattern::parse(text).expect("a pattern")), bytes)
}

fn passes(snapshot: &Snapshot, limits: Limits) -> bool {
    verdict(snapshot, &accepting(limits).into()).passed()
}

#[test]
fn without_limits_any_leak_fails() {
    assert!(!passes(&sample::leaky(), Limits::default()));
    assert!(passes(&Sample::new().finish(0, 12), Limits::default()));
}

#[test]
fn one_limit_disables_the_default_limit() {
    let snapshot = sample::leaky();
    assert!(passes(&snapshot, Limits::from([Limit::blocks(132)])));
    assert!(!passes(&snapshot, Limits::from([Limit::blocks(131)])));
    assert!(passes(&snapshot, Limits::from([Limit::bytes(Scope::All, 2048 * MIB)])));
    assert!(!passes(
        &snapshot,
        Limits::from([Limit::bytes(Scope::All, 2048 * MIB), Limit::blocks(1)])
    ));
}

#[test]
fn memory_that_no_limit_applies_to_is_named_by_kind() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[sample::MAIN]);
    sample.holds(Kind::Device, "cudaMalloc", MIB, 2, stack);
    sample.holds(Kind::HostPinned, "cudaMallocHost", MIB, 1, stack);
    let other = sample.stack(&[("fill", "/src/cache.cu:3", "/opt/app"), sample::MAIN]);
    sample.holds(Kind::Device, "cudaMalloc", MIB, 4, other);
    let snapshot = sample.finish(0, 0);
    let without = |limits: &[Limit]| {
        let given = limits.to_vec();
        let limits = Limits {
            given,
            ..Limits::default()
        };
        let verdict = verdict(&snapshot, &limits.into());
        let of_kind = |of: &WithoutLimit| (of.kind, of.tally.count);
        verdict.without_limit.iter().map(of_kind).collect::<Vec<_>>()
    };
    let (device, pinned) = (Scope::Kind(Kind::Device), Scope::Kind(Kind::HostPinned));
    let of_pinned = Limit::bytes(pinned, 64 * MIB);
    assert_eq!(without(std::slice::from_ref(&of_pinned)), [(Kind::Device, 6)]);
    assert_eq!(
        without(&[Limit::objects(Kind::Stream, 8)]),
        [(Kind::Device, 6), (Kind::HostPinned, 1)]
    );
    assert_eq!(
        without(&[of_pinned.clone(), in_pattern("cache.cu", 64 * MIB)]),
        [(Kind::Device, 2)]
    );
    for all in [
        Limit::bytes(Scope::All, 64 * MIB),
        Limit::blocks(9),
        Limit::bytes(Scope::Site, 64 * MIB),
    ] {
        assert_eq!(without(&[of_pinned.clone(), all]), []);
    }
    assert_eq!(without(&[of_pinned, Limit::bytes(device, 64 * MIB)]), []);
    assert_eq!(without(&[]), []);
}

#[test]
fn the_limit_itself_is_allowed() {
    let snapshot = sample::leaky();
    let leaked = verdict(&snapshot, &Rules::default()).judged.bytes;
    assert!(passes(&snapshot, Limits::from([Limit::bytes(Scope::All, leaked)])));
    assert!(!passes(&snapshot, Limits::from([Limit::bytes(Scope::All, leaked - 1)])));
}

#[test]
fn claims_fail_only_if_their_kind_is_selected() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[sample::MAIN]);
    sample.holds(Kind::Reserved, "cuMemAddressReserve", MIB, 2, stack);
    let snapshot = sample.finish(0, 0);
    assert!(passes(&snapshot, Limits::default()));
    assert!(!passes(
        &snapshot,
        Limits {
            kinds: vec![Kind::Reserved],
            ..Limits::default()
        }
    ));
}

#[test]
fn pools_are_judged_only_on_request_and_otherwise_counted_as_ignored() {
    let snapshot = sample::leaky();
    let of_pools = |judge_pools| {
        let kinds = vec![Kind::Async];
        let limits = Limits {
            judge_pools,
            kinds,
            ..Limits::default()
        };
        verdict(&snapshot, &accepting(limits).into())
    };
    assert!(of_pools(false).passed());
    assert_eq!(of_pools(false).ignored.count, 134);
    assert!(!of_pools(true).passed());
}

#[test]
fn a_pool_whose_blocks_are_unknown_prevents_a_verdict_unless_that_is_accepted() {
    let mut sample = Sample::new();
    let cupy = ("", "", "/venv/cupy/cuda/memory.so");
    let pool = sample.stack(&[sample::RUNTIME, cupy, sample::MAIN]);
    sample.holds(Kind::Device, "cudaMalloc", 8 * MIB, 1, pool);
    let snapshot = sample.finish(0, 0);
    let undecided = |rules: &Rules| {
        let verdict = verdict(&snapshot, rules);
        assert!(
            verdict.breaches.is_empty() || rules.limits.judge_pools,
            "{:?}",
            verdict.breaches
        );
        let sentences = verdict.unseen.iter().map(Unseen::sentence);
        sentences
            .filter(|sentence| sentence.contains("pool"))
            .collect::<Vec<String>>()
    };
    let with_limits = |limits: Limits| undecided(&limits.into()).len();
    assert_eq!(
        undecided(&Rules::default()),
        [
            "cannot be judged: 8 MiB in CuPy's pool: which part is in use is unknown; record with CULEAK_ADAPTERS=cupy, which needs \
             culeak's Python package; or judge the whole pool with --judge-pools, or accept it with --allow-losses"
        ]
    );
    let unless = |change: fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        with_limits(limits)
    };
    assert_eq!(unless(|limits| limits.kinds = vec![Kind::Device]), 1);
    assert_eq!(unless(|limits| limits.kinds = vec![Kind::Block]), 1, "its blocks");
    assert_eq!(unless(|limits| limits.kinds = vec![Kind::HostPinned]), 0);
    assert_eq!(unless(|limits| limits.allow_losses = true), 0);
    assert_eq!(unless(|limits| limits.judge_pools = true), 0);
    // Limits that the whole pool would keep.
    assert_eq!(unless(|limits| limits.set(Limit::bytes(Scope::All, 8 * MIB - 1))), 1);
    assert_eq!(unless(|limits| limits.set(Limit::bytes(Scope::All, 8 * MIB))), 0);
    assert_eq!(unless(|limits| limits.set(Limit::bytes(Scope::Site, 8 * MIB - 1))), 1);
    assert_eq!(unless(|limits| limits.set(Limit::bytes(Scope::Site, 8 * MIB))), 0);
    assert_eq!(
        unless(|limits| limits.set(Limit::blocks(1_000_000))),
        1,
        "any number of blocks"
    );
    assert_eq!(
        unless(|limits| limits.set(Limit::bytes(Scope::Kind(Kind::HostPinned), 0))),
        0
    );
    assert_eq!(
        unless(|limits| limits.set(Limit::objects(Kind::Stream, 1))),
        0,
        "no memory is judged"
    );
    assert!(
        undecided(&with(Limits::default(), "leak:cupy/cuda/memory")).is_empty(),
        "suppressed"
    );
}

#[test]
fn the_largest_site_is_first() {
    let snapshot = sample::leaky();
    let verdict = verdict(&snapshot, &Rules::default());
    assert!(verdict.rows[0].row.label.starts_with("Trainer::step"));
    assert!(verdict.rows.iter().all(|row| row.row.claims == 0 && row.to_blame));
}

fn with(limits: Limits, suppressions: &str) -> Rules {
    let mut rules = Rules::from(limits);
    rules.suppressions.add(suppressions, "my.supp").expect("rules");
    rules
}

#[test]
fn suppressed_records_are_not_judged_and_each_rule_counts_its_own() {
    let snapshot = sample::leaky();
    let rules = with(Limits::default(), "leak:Trainer::step\nleak:nowhere\nleak:train.cu");
    let verdict = verdict(&snapshot, &rules);
    assert_eq!(verdict.judged.count, 4);
    let used: Vec<_> = verdict
        .suppressions
        .iter()
        .map(|used| (used.line, used.suppressed.count))
        .collect();
    assert_eq!(
        used,
        [(1, 128), (2, 0), (3, 0)],
        "the first rule that matches takes the record"
    );
    assert_eq!(verdict.suppressed, verdict.suppressions[0].suppressed);
    let all = with(
        accepting(Limits::default()),
        "leak:train.cu\nleak:weights\nleak:libfancy.so",
    );
    assert!(super::verdict(&snapshot, &all).passed());
}

#[test]
fn limits_apply_to_a_site_a_kind_and_a_pattern_separately() {
    let snapshot = sample::leaky();
    let fails = |limits: Limits| verdict(&snapshot, &limits.into()).breaches;
    let site = |max_per_site| Limits::from([Limit::bytes(Scope::Site, max_per_site)]);
    assert_eq!(fails(site(128 * 9 * MIB)), []);
    assert_eq!(fails(site(100 * MIB)).len(), 1);
    let kind = |bytes| Limits::from([Limit::bytes(Scope::Kind(Kind::HostPinned), bytes)]);
    assert_eq!(fails(kind(64 * MIB)), []);
    let over = Breach::Total(OverLimit {
        limit: Limit::bytes(Scope::Kind(Kind::HostPinned), MIB),
        found: 64 * MIB,
        site: None,
        of_site: None,
    });
    assert_eq!(fails(kind(MIB)), [over]);
    let budget = |bytes| Limits::from([in_pattern("weights.cu", bytes)]);
    assert_eq!(fails(budget(64 * MIB)), []);
    assert_eq!(fails(budget(63 * MIB)).len(), 1);
    let blamed = verdict(&snapshot, &budget(0).into());
    let blamed: Vec<_> = blamed
        .rows
        .iter()
        .filter(|row| row.to_blame)
        .map(|row| row.row.label.as_str())
        .collect();
    assert_eq!(blamed, ["load_weights(std::string const&)"]);
}

/// A program whose `fill` holds this number of MiB on this line, and another function 1 MiB if `more`.
fn holding(blocks: u64, line: u32, more: bool) -> Snapshot {
    let mut sample = Sample::new();
    let place = format!("/src/cache.cu:{line}");
    let stack = sample.stack(&[sample::RUNTIME, ("Cache::fill()", &place, "/opt/app"), sample::MAIN]);
    sample.holds(Kind::Device, "cudaMalloc", MIB, blocks, stack);
    if more {
        let stack = sample.stack(&[
            sample::RUNTIME,
            ("Eval::keep()", "/src/eval.cu:3", "/opt/app"),
            sample::MAIN,
        ]);
        sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
    }
    sample.finish(0, 0)
}

#[test]
fn since_a_mark_only_later_allocations_are_judged() {
    let mut snapshot = holding(3, 31, true);
    let first = snapshot.allocations.at(0).time_ns;
    snapshot
        .allocations
        .change(|number, allocation, _| allocation.time_ns = first + number as u64);
    for time_ns in [first, first + 2] {
        snapshot.marks.push(crate::snapshot::Mark {
            time_ns,
            thread: 0,
            name: "test 7".to_owned(),
        });
    }
    let since = |name: &str| Limits {
        since: Some(name.to_owned()),
        ..Limits::default()
    };
    let of = |limits: Limits| verdict(&snapshot, &limits.into()).judged.count;
    assert_eq!(of(since("test 7")), 2, "the last mark of that name");
    assert_eq!(verdict(&snapshot, &since("test 7").into()).ignored.count, 2);
    assert_eq!(of(since("test 8")), 0, "without the mark there is nothing to judge");
    let rules = since("test 8").into();
    let unseen = verdict(&snapshot, &rules).unseen;
    assert!(unseen[0].sentence().contains("test 8"), "{unseen:?}");
}

#[test]
fn a_recording_that_began_late_is_a_warning() {
    let mut snapshot = Sample::new().finish(0, 12);
    let warnings_of = |snapshot: &Snapshot| verdict(snapshot, &Rules::default()).warnings;
    assert_eq!(warnings_of(&snapshot), Vec::<String>::new());
    snapshot.losses.unknown_frees = 1;
    let warnings = warnings_of(&snapshot);
    assert!(
        warnings.len() == 1 && warnings[0].starts_with("1 free was for memory whose allocation was not recorded"),
        "{warnings:?}"
    );
}

#[test]
fn a_budget_that_matches_no_stack_is_a_warning() {
    let snapshot = sample::leaky();
    let warnings = |text: &str| {
        let limits = Limits::from([in_pattern(text, MIB << 20)]);
        let mut warnings = verdict(&snapshot, &limits.into()).warnings;
        warnings.retain(|warning| warning.starts_with("the budget of"));
        warnings
    };
    assert_eq!(warnings("Trainer::step"), Vec::<String>::new());
    let warnings = warnings("loadbatch");
    assert!(
        warnings.len() == 1 && warnings[0].starts_with("the budget of 1 TiB for loadbatch matches no stack"),
        "{warnings:?}"
    );
}

#[test]
fn ignored_memory_is_counted_by_reason() {
    let mut snapshot = sample::leaky();
    let ignored = |snapshot: &Snapshot, limits: Limits| {
        let Ignored {
            before_mark,
            other_kinds,
            cached,
        } = verdict(snapshot, &limits.into()).ignored_as;
        [before_mark.count, other_kinds.count, cached.count]
    };
    assert_eq!(ignored(&snapshot, Limits::default()), [0, 0, 2]);
    let pinned = Limits {
        kinds: vec![Kind::HostPinned],
        ..Limits::default()
    };
    assert_eq!(ignored(&snapshot, pinned), [0, 133, 0]);
    snapshot.marks.push(crate::snapshot::Mark {
        time_ns: u64::MAX - 1,
        thread: 0,
        name: "warm".to_owned(),
    });
    let since = Limits {
        since: Some("warm".to_owned()),
        ..Limits::default()
    };
    assert_eq!(ignored(&snapshot, since), [134, 0, 0]);
}

#[test]
fn since_a_mark_a_finished_script_is_judged_at_its_end() {
    let mut snapshot = sample::leaky();
    let first = snapshot.allocations.at(0).time_ns;
    snapshot
        .allocations
        .change(|_, allocation, _| allocation.time_ns = first);
    std::mem::swap(&mut snapshot.allocations, &mut snapshot.freed_after_end);
    snapshot.end = Some(crate::snapshot::End {
        time_ns: first + 8,
        of: crate::snapshot::EndOf::Script,
    });
    let mark = |name: &str, time_ns| crate::snapshot::Mark {
        time_ns,
        thread: 0,
        name: name.to_owned(),
    };
    snapshot.marks = vec![mark("early", first), mark("late", first + 4)];
    let since = |name: &str| {
        Rules::from(accepting(Limits {
            since: Some(name.to_owned()),
            ..Limits::default()
        }))
    };
    assert_eq!(point_of(&snapshot, &Rules::default()), Point::Exit);
    assert_eq!(point_of(&snapshot, &since("early")), Point::End);
    let at_end = snapshot.at(&Point::End).expect("an end");
    let passed = |name: &str| verdict(&at_end, &since(name)).passed();
    assert!(!passed("early") && passed("late"));
    let freed = |rules: &Rules| verdict(&snapshot, rules).freed_at_shutdown.count;
    assert!(freed(&since("early")) > 0);
    assert_eq!(freed(&since("early")), freed(&Rules::default()));
    assert_eq!(freed(&since("late")), 0, "all of it was allocated before the mark");
}

/// What the sites of the stacks 0, 1 … hold: bytes of each block, and whether it was allocated before the previous mark.
fn holding_at_mark(sites: &[&[(u64, bool)]]) -> Snapshot {
    let mut sample = Sample::new();
    let mut old = Vec::new();
    for (number, blocks) in sites.iter().enumerate() {
        let function = format!("site_{number}()");
        let stack = sample.stack(&[(&function, "/src/train.cu:7", "/opt/app"), sample::MAIN]);
        for &(bytes, is_old) in *blocks {
            sample.holds(Kind::Device, "cudaMalloc", bytes, 1, stack);
            old.push(is_old);
        }
    }
    let mut snapshot = sample.finish(0, 0);
    snapshot
        .allocations
        .change(|number, allocation, _| allocation.time_ns = if old[number] { 10 } else { 30 });
    snapshot
}

#[test]
fn a_boundary_judges_what_each_site_holds_above_the_previous_one() {
    let before = holding_at_mark(&[&[(10, true)], &[(5, true)], &[(7, true), (7, true)], &[(3, true)]]);
    // Replaced; one more; larger; replaced by a smaller one and kept by none.
    let now = holding_at_mark(&[
        &[(10, false)],
        &[(5, true), (4, false)],
        &[(20, false)],
        &[(2, false), (1, false)],
    ]);
    let boundary = Boundary {
        mark: "asleep".to_owned(),
        number: 2,
        count: 2,
        time_ns: 40,
        previous_ns: Some(20),
        held: Vec::new(),
    };
    let judge = |now: &Snapshot, limits: Limits| {
        let mut rules = Rules::from(limits);
        rules.previous = Some(judged_by_site(&before, &rules));
        rules.boundary = Some(boundary.clone());
        let verdict = verdict(now, &rules);
        let rows: Vec<(u64, u64)> = verdict.rows.iter().map(|row| (row.row.bytes, row.row.count)).collect();
        (verdict.passed(), rows, verdict.ignored.bytes)
    };
    let none = Limits::default();
    assert_eq!(
        judge(&now, none.clone()),
        (false, vec![(6, 1), (4, 1), (0, 1)], 10 + 5 + 14 + 3),
        "more blocks of as many bytes are growth, too"
    );
    let replaced = holding_at_mark(&[&[(10, false)], &[(5, false)], &[(14, false)], &[(3, false)]]);
    assert_eq!(judge(&replaced, none), (true, Vec::new(), 32));
    let limited = Limits::from([Limit::bytes(Scope::All, 10)]);
    assert!(judge(&now, limited).0);
}

#[test]
fn a_check_warns_of_a_killed_process_as_a_report_does() {
    let mut snapshot = sample::leaky();
    snapshot.process.state = crate::snapshot::ProcessState::Ended;
    let report = crate::analysis::report::Report::of(&snapshot, &crate::analysis::report::Options::default());
    let caveat = |warnings: &[String]| {
        let ended = |warning: &&String| warning.starts_with("the process ended without running exit handlers");
        warnings.iter().find(ended).cloned()
    };
    let killed = verdict(&snapshot, &Rules::default());
    for (finished, when) in [(report.finished, &report.when), (killed.finished, &killed.when)] {
        assert_eq!(
            (finished, when.as_deref()),
            (false, Some("when the process ended")),
            "what it held is not leaked"
        );
    }
    let warning = caveat(&killed.warnings);
    assert!(warning.is_some() && warning == caveat(&report.warnings), "{warning:?}");
    assert_eq!(caveat(&verdict(&sample::leaky(), &Rules::default()).warnings), None);
}

#[test]
fn blocks_fail_by_their_class_and_no_others_do() {
    let snapshot = sample::held();
    let judge = |classes: &[Class], suppressions: &str| {
        let mut rules = Rules::from(Limits {
            classes: classes.iter().copied().collect(),
            ..Limits::default()
        });
        rules.suppressions.add(suppressions, "test").expect("rules");
        let verdict = verdict(&snapshot, &rules);
        let found = verdict.breaches.iter().map(|breach| match breach {
            Breach::Class(of) => (of.class, of.site.clone(), of.found, of.count),
            other => panic!("{other:?}"),
        });
        let found: Vec<_> = found.collect();
        assert_eq!(verdict.passed(), found.is_empty());
        let blamed = verdict.rows.iter().filter(|row| row.to_blame);
        assert!(blamed.clone().all(|row| row.only_by_class));
        assert_eq!(blamed.count(), found.len(), "each at another call site");
        found
    };
    let cycle = (Class::Cycle, "cycle train.py:29".to_owned(), 8 * MIB, 2);
    let lost = (Class::Lost, "fill_pool pool.cu:77".to_owned(), MIB, 1);
    assert_eq!(judge(&[Class::Lost], ""), std::slice::from_ref(&lost));
    assert_eq!(judge(&[Class::Lost, Class::Cycle], ""), [cycle.clone(), lost]);
    assert_eq!(judge(&[Class::Lost, Class::Cycle], "leak:pool.cu"), [cycle]);
    let rest = judge(&[Class::NativeHolder, Class::OverCounted], "");
    assert_eq!(rest.len(), 2, "{rest:?}");
}

#[test]
fn memory_without_a_class_is_unseen_and_limits_of_the_search_are_warnings() {
    let mut snapshot = sample::held();
    snapshot.process.state = ProcessState::Ended;
    let lost = |allow_losses| {
        Rules::from(Limits {
            classes: [Class::Lost].into(),
            allow_losses,
            ..Limits::default()
        })
    };
    let unknown = "128 KiB in 1 block";
    let found = verdict(&snapshot, &lost(false));
    assert_eq!(found.outcome, Outcome::Failed, "lost memory was found");
    assert!(found.unseen[0].what.contains(unknown), "{:?}", found.unseen);
    let holders = snapshot.holders.as_mut().expect("searched");
    for path in &mut holders.paths {
        path.class = Class::Held;
    }
    (holders.search.changed, holders.search.limits) = (2, vec!["the stacks of 3 threads were not found".to_owned()]);
    let outcome = |snapshot: &Snapshot, allow_losses| {
        let rules = lost(allow_losses);
        let verdict = verdict(snapshot, &rules);
        for expected in ["2 blocks changed", "stacks of 3 threads"] {
            let is_warned = verdict.warnings.iter().any(|warning| warning.contains(expected));
            assert!(is_warned, "{expected}: {:?}", verdict.warnings);
        }
        let is_warned = verdict.warnings.iter().any(|warning| warning.contains(unknown));
        (verdict.outcome, is_warned)
    };
    assert_eq!(outcome(&snapshot, false), (Outcome::NoVerdict, false));
    assert_eq!(outcome(&snapshot, true), (Outcome::Passed, true));
    snapshot.process.state = ProcessState::Running;
    assert_eq!(
        outcome(&snapshot, false),
        (Outcome::Passed, true),
        "freed during the search"
    );
    let mut stopped = snapshot.clone();
    stopped.holders.as_mut().expect("searched").search.stopped = Some(crate::snapshot::Stop::Time);
    assert_eq!(outcome(&stopped, false).0, Outcome::NoVerdict, "the search stopped");
    stopped = snapshot.clone();
    stopped.holders.as_mut().expect("searched").blocks.clear();
    assert_eq!(outcome(&stopped, false).0, Outcome::NoVerdict, "nothing has an answer");
    let others = verdict(&snapshot, &Rules::default()).warnings;
    assert!(!others.iter().any(|warning| warning.contains("search")), "{others:?}");
}

#[test]
fn classes_need_holders_and_are_judged_where_these_were_found() {
    let limits = Limits {
        classes: [Class::Lost].into(),
        ..Limits::default()
    };
    let rules = limits.into();
    assert!(!lacks_holders(&sample::held(), &rules) && lacks_holders(&sample::leaky(), &rules));
    assert!(!lacks_holders(&sample::leaky(), &Rules::default()));
    assert_eq!(point_of(&sample::shut_down(), &rules), Point::End);
}
