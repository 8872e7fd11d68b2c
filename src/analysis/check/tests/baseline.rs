//! Checks beside a baseline.

use super::*;

fn against(before: &Snapshot, limits: Limits) -> Rules {
    let mut rules = Rules::from(limits);
    rules.baseline = Some(baseline_of(before, &rules));
    rules
}

#[test]
fn against_a_baseline_only_new_and_grown_sites_fail() {
    let before = holding(4, 8, false);
    let standing = |after: &Snapshot, limits: Limits| {
        let verdict = verdict(after, &against(&before, limits));
        let rows = verdict
            .rows
            .iter()
            .map(|row| (row.standing.expect("a baseline"), row.to_blame));
        (verdict.passed(), rows.collect::<Vec<_>>())
    };
    let tolerance = |tolerance| Limits {
        tolerance,
        ..Limits::default()
    };
    let fail_on = |fail_on| Limits {
        fail_on,
        ..Limits::default()
    };
    use Standing::*;
    assert_eq!(
        standing(&holding(4, 19, false), Limits::default()),
        (true, vec![(Known, false)])
    );
    assert_eq!(
        standing(&holding(3, 8, false), Limits::default()),
        (true, vec![(Known, false)])
    );
    assert_eq!(
        standing(&holding(5, 8, false), Limits::default()),
        (false, vec![(Grown, true)])
    );
    let passes = |after: &Snapshot, limits: Limits| standing(after, limits).0;
    assert!(passes(&holding(5, 8, false), tolerance(Tolerance::Bytes(MIB))));
    assert!(passes(&holding(5, 8, false), tolerance(Tolerance::Percent(25.0))));
    assert!(!passes(&holding(5, 8, false), tolerance(Tolerance::Percent(20.0))));
    assert!(passes(&holding(5, 8, false), fail_on(FailOn::New)));
    assert!(!passes(&holding(4, 8, true), fail_on(FailOn::New)));
    assert!(!passes(&holding(4, 8, false), fail_on(FailOn::Any)));
    // A limit excuses nothing then.
    let limited = Limits {
        given: vec![Limit::bytes(Scope::All, 1 << 40)],
        ..fail_on(FailOn::Any)
    };
    assert!(!passes(&holding(4, 8, false), limited));
    let limited = Limits::from([Limit::bytes(Scope::All, MIB)]);
    assert!(
        !passes(&holding(4, 8, false), limited),
        "a limit on the whole holds beside a baseline"
    );
}

#[test]
fn a_renamed_function_is_new_and_the_baseline_has_its_old_name() {
    let holding = |name, blocks| {
        let mut sample = Sample::new();
        let stack = sample.stack(&[sample::RUNTIME, (name, "/src/cache.cu:8", "/opt/app"), sample::MAIN]);
        sample.holds(Kind::Device, "cudaMalloc", MIB, blocks, stack);
        sample.finish(0, 0)
    };
    let rules = against(&holding("fill(int)", 4), Limits::default());
    let renamed = |snapshot: &Snapshot| {
        let verdict = verdict(snapshot, &rules);
        assert!(!verdict.passed());
        verdict.warnings.iter().any(|warning| {
            warning.starts_with("refill cache.cu:8 holds as much as fill cache.cu:8 of the baseline")
                && warning.ends_with("--update-baseline")
        })
    };
    assert!(renamed(&holding("refill(int)", 4)));
    assert!(!renamed(&holding("refill(int)", 3)) && !renamed(&holding("fill(int)", 5)));
}

#[test]
fn a_tolerance_lets_known_sites_grow_but_admits_no_new_site() {
    let before = holding(4, 8, false);
    for fail_on in [FailOn::New, FailOn::Grown] {
        for tolerance in [Tolerance::Bytes(1 << 40), Tolerance::Percent(1e9)] {
            let limits = Limits {
                tolerance,
                fail_on,
                ..Limits::default()
            };
            let of = |after: &Snapshot| verdict(after, &against(&before, limits.clone())).passed();
            assert!(of(&holding(9, 8, false)) && !of(&holding(9, 8, true)), "{limits:?}");
        }
    }
}
