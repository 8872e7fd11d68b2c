//! Every rule, and everything that it may not have seen of a recording.

use super::*;
use crate::analysis::job::member::Member;
use crate::sample::GIB;
use crate::snapshot::{End, EndOf, HeldBlock, HolderPath, Holders, Mark, Stack};

/// Rules that the recording keeps.
fn rules() -> Vec<(&'static str, Rules)> {
    let snapshot = whole();
    let limits = |change: &dyn Fn(&mut Limits)| {
        let mut limits = Limits::default();
        change(&mut limits);
        Rules::from(limits)
    };
    let budget = |bytes| in_pattern("Cache::fill", bytes);
    let mut baseline = Rules::default();
    baseline.baseline = Some(baseline_of(&snapshot, &baseline));
    let mut at_mark = limits(&|limits| limits.set(Limit::bytes(Scope::All, GIB)));
    at_mark.at = Some(Point::Mark("m".to_owned()));
    let boundary = Boundary {
        mark: "m".to_owned(),
        number: 2,
        count: 2,
        time_ns: 40,
        previous_ns: None,
        held: Vec::new(),
    };
    let not_above = Rules {
        boundary: Some(boundary.clone()),
        ..at_mark.clone()
    };
    let previous = Some(judged_by_site(&snapshot, &Rules::default()));
    let same_as_last = Rules {
        boundary: Some(Boundary {
            previous_ns: Some(20),
            ..boundary
        }),
        previous,
        at: at_mark.at.clone(),
        ..Rules::default()
    };
    vec![
        (
            "--allow SIZE",
            limits(&|limits| limits.set(Limit::bytes(Scope::All, GIB))),
        ),
        ("--allow count=N", limits(&|limits| limits.set(Limit::blocks(1000)))),
        (
            "--allow site=SIZE",
            limits(&|limits| limits.set(Limit::bytes(Scope::Site, 4 * MIB))),
        ),
        (
            "--allow KIND=SIZE",
            limits(&|limits| limits.set(Limit::bytes(Scope::Kind(Kind::Device), GIB))),
        ),
        (
            "--allow OBJECT=N",
            limits(&|limits| limits.set(Limit::objects(Kind::Stream, 9))),
        ),
        (
            "--allow leak:PATTERN=SIZE",
            limits(&|limits| limits.set(budget(4 * MIB))),
        ),
        ("--baseline", baseline),
        (
            "--fail-on lost",
            limits(&|limits| limits.classes = [Class::Lost].into()),
        ),
        (
            "--since",
            limits(&|limits| {
                limits.since = Some("m".to_owned());
                limits.set(Limit::bytes(Scope::All, GIB));
            }),
        ),
        ("--at mark", at_mark),
        ("--not-above", not_above),
        ("--same-as-last", same_as_last),
    ]
}

/// A recording that keeps every rule.
fn whole() -> Snapshot {
    let mut snapshot = holding(4, 8, true);
    for time_ns in [20, 40] {
        let name = "m".to_owned();
        snapshot.marks.push(Mark {
            time_ns,
            name,
            thread: 0,
        });
    }
    snapshot.objects_known = true;
    let blocks = snapshot.allocations.iter().map(|row| HeldBlock {
        address: row.address,
        time_ns: row.time_ns,
        bytes: row.bytes,
        ..HeldBlock::default()
    });
    snapshot.holders = Some(Holders {
        blocks: blocks.collect(),
        paths: vec![HolderPath {
            class: Class::Held,
            changed: false,
            ..HolderPath::unknown()
        }],
        ..Holders::default()
    });
    snapshot
}

/// Takes something away from what was seen.
type Way = fn(&mut Snapshot);

/// The rules that have no verdict then; all others are kept.
const WAYS: [(&str, Way, &[&str]); 13] = [
    ("lost allocations", |of| of.losses.lost_allocations = 1, &ALL),
    ("a row that is missing", |of| of.counters[0].total_count += 1, LAST),
    (
        "a free in flight",
        |of| {
            of.counters[0].total_count += 1;
            of.taken.in_flight = 1;
        },
        LAST,
    ),
    ("another host", |of| of.process.state = ProcessState::Unknown, &ALL),
    (
        "lost marks",
        |of| of.losses.lost_marks = 1,
        &["--since", "--at mark", "--not-above", "--same-as-last"],
    ),
    (
        "lost events",
        |of| of.losses.lost_events = 1,
        &["--at mark", "--not-above", "--same-as-last"],
    ),
    ("no mark", |of| of.marks.clear(), &["--since"]),
    (
        "no objects",
        |of| of.objects_known = false,
        &["--allow OBJECT=N", "--baseline"],
    ),
    ("no holders", |of| of.holders = None, &["--fail-on lost"]),
    (
        "a holder that changed",
        |of| of.holders.as_mut().expect("searched").paths[0].changed = true,
        &["--fail-on lost"],
    ),
    (
        "lost stacks",
        lose_a_stack,
        &[
            "--allow site=SIZE",
            "--allow leak:PATTERN=SIZE",
            "--baseline",
            "--same-as-last",
        ],
    ),
    (
        "a stack that was cut off",
        |of| of.stacks[1].truncated = true,
        &["--allow leak:PATTERN=SIZE"],
    ),
    (
        "sampled stacks",
        leave_out_a_stack,
        &[
            "--allow site=SIZE",
            "--allow leak:PATTERN=SIZE",
            "--baseline",
            "--same-as-last",
        ],
    ),
];

const ALL: [&str; 12] = [
    "--allow SIZE",
    "--allow count=N",
    "--allow site=SIZE",
    "--allow KIND=SIZE",
    "--allow OBJECT=N",
    "--allow leak:PATTERN=SIZE",
    "--baseline",
    "--fail-on lost",
    "--since",
    "--at mark",
    "--not-above",
    "--same-as-last",
];

/// The rules that judge the last state.
const LAST: &[&str] = ALL.split_at(9).0;

/// The last block has this stack: its call site is allowed what it holds, but the other one is not.
fn replace_a_stack(snapshot: &mut Snapshot, stack: Option<usize>) {
    let last = snapshot.allocations.len() - 1;
    snapshot.allocations.change(|number, allocation, _| {
        if number == last {
            allocation.stack = stack;
        }
    });
}

fn lose_a_stack(snapshot: &mut Snapshot) {
    snapshot.losses.lost_stacks = 1;
    replace_a_stack(snapshot, None);
}

fn leave_out_a_stack(snapshot: &mut Snapshot) {
    snapshot.stacks.push(Stack {
        frames: Vec::new(),
        truncated: false,
    });
    let left_out = snapshot.stacks.len() - 1;
    snapshot.sampling = Some(Sampling {
        bytes: GIB,
        most_bytes: GIB,
        left_out: Some(left_out),
    });
    replace_a_stack(snapshot, Some(left_out));
}

#[test]
fn a_rule_passes_only_if_all_that_it_speaks_of_was_seen() {
    let named: Vec<&str> = rules().iter().map(|(name, _)| *name).collect();
    assert_eq!(named, ALL);
    for (way, take_away, unseen) in WAYS {
        for (name, mut rules) in rules() {
            let mut snapshot = at_point(&rules);
            let passed = verdict(&snapshot, &rules);
            assert_eq!(
                passed.outcome,
                Outcome::Passed,
                "{name}: {:?} {:?}",
                passed.breaches,
                passed.unseen
            );
            take_away(&mut snapshot);
            let found = verdict(&snapshot, &rules);
            let shown = format!("{name}, {way}: {:?} {:?}", found.breaches, found.unseen);
            assert_eq!(!found.passed(), unseen.contains(&name), "{shown}");
            assert_eq!(found.outcome == Outcome::Failed, !found.breaches.is_empty(), "{shown}");
            // What is left is judged, if there is anything.
            let is_part = found.unseen.iter().all(|unseen| unseen.acceptable);
            rules.limits.allow_losses = true;
            let accepted = verdict(&snapshot, &rules);
            assert_eq!(accepted.passed(), is_part && found.breaches.is_empty(), "{shown}");
        }
    }
}

#[test]
fn a_lost_block_does_not_pass_because_its_stack_was_left_out() {
    let (_, rules) = rules().swap_remove(7);
    assert_eq!(rules.limits.classes, [Class::Lost].into());
    let mut snapshot = whole();
    leave_out_a_stack(&mut snapshot);
    let holders = snapshot.holders.as_mut().expect("searched");
    holders.paths.push(HolderPath {
        class: Class::Lost,
        possibly: false,
        ..holders.paths[0].clone()
    });
    holders.blocks.last_mut().expect("blocks").path = 1;
    let found = verdict(&snapshot, &rules);
    assert_eq!(found.outcome, Outcome::NoVerdict, "{:?}", found.unseen);
    assert!(
        found.unseen[0].what.contains("left out their stacks"),
        "{:?}",
        found.unseen
    );
}

#[test]
fn a_block_that_is_possibly_lost_neither_passes_nor_fails() {
    let (_, rules) = rules().swap_remove(7);
    let lost = |possibly, state| {
        let mut snapshot = whole();
        snapshot.process.state = state;
        let holders = snapshot.holders.as_mut().expect("searched");
        holders.search.limits = vec!["2 MiB of managed memory".to_owned()];
        holders.paths.push(HolderPath {
            class: Class::Lost,
            possibly,
            ..holders.paths[0].clone()
        });
        holders.blocks.last_mut().expect("blocks").path = 1;
        snapshot
    };
    for state in [whole().process.state, ProcessState::Running] {
        let [surely, possibly] = [false, true].map(|possibly| lost(possibly, state));
        assert_eq!(verdict(&surely, &rules).outcome, Outcome::Failed, "{state:?}");
        let found = verdict(&possibly, &rules);
        assert_eq!(found.outcome, Outcome::NoVerdict, "{state:?}");
        let is_said = |unseen: &Unseen| unseen.what.contains("1 block is not known (2 MiB of managed memory)");
        assert!(found.unseen.iter().any(is_said), "{state:?}: {:?}", found.unseen);
    }
}

/// The recording at the point that the rules judge.
fn at_point(rules: &Rules) -> Snapshot {
    let mut snapshot = whole();
    snapshot.taken.point = rules.at.clone();
    snapshot
}

#[test]
fn what_was_seen_fails_whatever_else_was_not() {
    let mut snapshot = holding(4, 8, false);
    snapshot.losses.lost_allocations = 3;
    let verdict = verdict(&snapshot, &Rules::default());
    assert_eq!((verdict.outcome, verdict.unseen.len()), (Outcome::Failed, 1));
    let outcomes = [Outcome::Failed, Outcome::NoVerdict, Outcome::Passed];
    assert_eq!(Outcome::of_all(outcomes.into_iter()), Outcome::Failed);
    assert_eq!(Outcome::of_all(outcomes[1..].iter().copied()), Outcome::NoVerdict);
    assert_eq!(Outcome::of_all(outcomes[2..].iter().copied()), Outcome::Passed);
}

#[test]
fn on_another_host_the_end_of_a_script_and_the_last_known_state_can_be_judged() {
    let mut snapshot = Sample::new().finish(0, 0);
    snapshot.process.state = ProcessState::Unknown;
    let mut rules = Rules::from(Limits::default());
    assert_eq!(verdict(&snapshot, &rules).outcome, Outcome::NoVerdict);
    rules.at = Some(Point::Exit);
    assert_eq!(verdict(&snapshot, &rules).outcome, Outcome::Passed);
    rules.at = None;
    snapshot.end = Some(End {
        time_ns: 5,
        of: EndOf::Script,
    });
    let at_end = snapshot.at(&Point::End).expect("an end");
    assert_eq!(verdict(&at_end, &rules).outcome, Outcome::Passed);
    // Its last state is judged, which is no end.
    assert_eq!(verdict(&snapshot, &rules).outcome, Outcome::NoVerdict);
}

#[test]
fn blocks_that_have_no_row_were_being_freed_or_the_recording_is_damaged() {
    let said = |missing: u64, in_flight: u64| {
        let mut snapshot = holding(4, 8, false);
        snapshot.counters[0].total_count += missing;
        snapshot.taken.in_flight = in_flight;
        let rules = Rules::from(Limits::from([Limit::blocks(99)]));
        let unseen = verdict(&snapshot, &rules).unseen;
        unseen
            .into_iter()
            .map(|unseen| unseen.what)
            .collect::<Vec<_>>()
            .join("; ")
    };
    assert_eq!(said(0, 1), "");
    assert!(said(1, 1).contains("ended while it freed 1 block"), "{}", said(1, 1));
    assert!(said(1, 2).contains("ended while it freed 1 block"), "{}", said(1, 2));
    assert!(
        said(2, 1).contains("counts 2 blocks more than it has"),
        "{}",
        said(2, 1)
    );
}

#[test]
fn sums_of_sampled_processes_that_differ_by_chance_have_no_verdict() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[sample::MAIN]);
    sample.holds(Kind::Device, "cuMemAlloc_v2", MIB, 4, stack);
    let mut snapshot = sample.finish(0, 0);
    let rules = Rules::from(Limits {
        outliers: true,
        ..Limits::default()
    });
    let outcomes = |snapshot: &Snapshot| {
        let member = |pid| Member {
            pid,
            ..Member::of(snapshot)
        };
        let members: Vec<Member> = (1..4).map(member).collect();
        let mut verdicts: Vec<Verdict> = (0..3).map(|_| verdict(snapshot, &rules)).collect();
        fail_outliers(&mut verdicts.iter_mut().collect::<Vec<_>>(), &members);
        verdicts.into_iter().map(|verdict| verdict.outcome).collect::<Vec<_>>()
    };
    assert_eq!(outcomes(&snapshot), [Outcome::Passed; 3]);
    leave_out_a_stack(&mut snapshot);
    assert_eq!(outcomes(&snapshot), [Outcome::NoVerdict; 3]);
    // Sums are compared, since call sites are not known; they are exact.
    let mut larger = snapshot.clone();
    larger.allocations.change(|_, allocation, _| allocation.bytes *= 100);
    let snapshots = [&snapshot, &snapshot, &larger];
    let members: Vec<Member> = (1..)
        .zip(snapshots)
        .map(|(pid, snapshot)| Member {
            pid,
            ..Member::of(snapshot)
        })
        .collect();
    let mut verdicts = snapshots.map(|snapshot| verdict(snapshot, &rules));
    fail_outliers(&mut verdicts.iter_mut().collect::<Vec<_>>(), &members);
    assert_eq!(verdicts.map(|verdict| verdict.breaches.len()), [0, 0, 1]);
}
