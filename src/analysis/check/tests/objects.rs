//! Objects without an address: limits by kind, and baselines.

use super::*;

#[test]
fn objects_fail_only_if_their_kind_has_a_limit() {
    let snapshot = crate::sample::serving();
    let with = |limits: &[(Kind, u64)]| Limits {
        given: limits.iter().map(|&(kind, most)| Limit::objects(kind, most)).collect(),
        ..Limits::default()
    };
    let judge = |limits: &[(Kind, u64)]| {
        let rules = Rules::from(with(limits));
        let verdict = verdict(&snapshot, &rules);
        let rows = verdict.objects.iter();
        let rows: Vec<_> = rows
            .map(|of| {
                (
                    of.row.kind_of_objects().map_or("", Kind::name),
                    of.row.label.clone(),
                    of.row.count,
                    of.to_blame,
                )
            })
            .collect();
        (verdict.passed(), verdict.breaches.clone(), rows)
    };
    let (passed, breaches, rows) = judge(&[(Kind::GraphExec, 8)]);
    assert!(!passed);
    let breach = Breach::Total(OverLimit {
        limit: Limit::objects(Kind::GraphExec, 8),
        found: 40,
        site: Some("Server::decode server.cu:88".to_owned()),
        of_site: Some(40),
    });
    assert_eq!(breaches, [breach]);
    assert_eq!(
        rows,
        [("graph-exec", "Server::decode(Request const&)".to_owned(), 40, true)]
    );
    assert!(judge(&[(Kind::GraphExec, 40), (Kind::Stream, 16)]).0);
    assert!(judge(&[(Kind::Module, 0)]).0, "there are none");
    // Memory fails without a limit, objects do not.
    let without = verdict(&snapshot, &Rules::default());
    assert!(without.objects.is_empty() && !without.passed());
    let mut rules = Rules::from(with(&[(Kind::Stream, 12)]));
    rules.suppressions.add_built_in();
    let verdict = verdict(&snapshot, &rules);
    assert!(verdict.passed(), "the library's streams are not the program's");
    assert_eq!((verdict.objects.len(), verdict.objects_ignored), (1, 4));
    assert_eq!((verdict.suppressed_objects, verdict.objects_before_mark), (4, 0));
    assert!(verdict.suppressions.iter().any(|used| used.objects == 4));
    assert!(verdict.judges_only_objects());
    assert_eq!(verdict.objects_found().collect::<Vec<_>>(), [("stream", 12)]);
}

#[test]
fn against_a_baseline_objects_fail_that_are_new_or_more() {
    let mut snapshot = crate::sample::serving();
    snapshot.objects_known = true;
    // What the program had before: a number of executable graphs, and all of the rest.
    let before = |graphs: usize| {
        let mut before = snapshot.clone();
        let left = std::cell::Cell::new(graphs);
        before.objects.retain(|row| {
            let is_graph = row.kind == Kind::GraphExec;
            let stays = !is_graph || left.get() > 0;
            left.set(left.get() - usize::from(stays && is_graph));
            stays
        });
        let baseline = baseline_of(&before, &Rules::default());
        // As it is read from its file.
        let file = serde_json::to_string(&baseline).expect("json");
        serde_json::from_str::<Baseline>(&file).expect("a baseline")
    };
    let judge = |baseline: Baseline, limits: Limits| {
        let rules = Rules {
            baseline: Some(baseline),
            ..Rules::from(limits)
        };
        let verdict = verdict(&snapshot, &rules);
        assert_eq!(verdict.passed(), verdict.breaches.is_empty());
        (verdict.breaches, verdict.warnings)
    };
    let none = Limits::default;
    let breaches = |graphs: usize, limits: Limits| judge(before(graphs), limits).0;
    assert_eq!(breaches(40, none()), []);
    let breach = |known, limit| {
        Breach::Baseline(BeyondBaseline {
            site: "Server::decode server.cu:88".to_owned(),
            measure: Measure::Objects,
            kind: Some(Kind::GraphExec),
            known,
            limit,
            found: 40,
        })
    };
    let grown = |known, limit| breach(Some(known), limit);
    assert_eq!(breaches(30, none()), [grown(30, 30)]);
    let new = breach(None, 0);
    assert_eq!(breaches(0, none()), std::slice::from_ref(&new));
    let with = |tolerance, fail_on| Limits {
        tolerance,
        fail_on,
        ..none()
    };
    let percent = Tolerance::Percent;
    assert_eq!(breaches(30, with(percent(10.0), FailOn::Grown)), [grown(30, 33)]);
    assert_eq!(breaches(30, with(percent(50.0), FailOn::Grown)), []);
    assert_eq!(
        breaches(30, with(Tolerance::Bytes(MIB), FailOn::Grown)),
        [grown(30, 30)]
    );
    assert_eq!(breaches(30, with(percent(0.0), FailOn::New)), []);
    assert_eq!(breaches(0, with(percent(0.0), FailOn::New)), std::slice::from_ref(&new));
    // Memory fails then as without a baseline.
    let any = breaches(0, with(percent(0.0), FailOn::Any));
    let of_baseline = any.iter().filter(|breach| matches!(breach, Breach::Baseline(_)));
    assert_eq!(of_baseline.collect::<Vec<_>>(), [&new]);
    // A baseline of several processes has the most that one of them had.
    let both = Baseline::most_of([before(40), before(10)].into_iter());
    assert_eq!(judge(both, none()).0, []);
    // One of an older version has no objects.
    let without = Baseline {
        objects: None,
        ..before(0)
    };
    assert_eq!(judge(without.clone(), none()).0, []);
    assert_eq!(Baseline::most_of([before(40), without].into_iter()).objects, None);
}

#[test]
fn objects_that_are_not_known_are_not_compared_and_the_verdict_says_so() {
    let mut snapshot = crate::sample::serving();
    snapshot.objects_known = true;
    let baseline = baseline_of(&snapshot, &Rules::default());
    snapshot.objects_known = false;
    assert_eq!(baseline_of(&snapshot, &Rules::default()).objects, None);
    let rules = Rules {
        baseline: Some(baseline),
        ..Rules::default()
    };
    let unseen = verdict(&snapshot, &rules).unseen;
    assert_eq!((unseen.len(), &*unseen[0].rule), (1, "--baseline"), "{unseen:?}");
}
