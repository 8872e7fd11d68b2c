//! Verdicts of `culeak check` as text.

use super::*;
use crate::text::check;

#[test]
fn a_verdict_names_the_point_that_it_judges() {
    let snapshot = shut_down();
    let limited = Rules::from(Limits::from([Limit::bytes(Scope::All, 40 * MIB)]));
    let text = |rules: &Rules| {
        let view = snapshot.at(&point_of(&snapshot, rules)).expect("a point");
        plain(|out| check::page(&verdict(&view, rules), "train.culeak").text(out))
    };
    let failed = text(&limited);
    assert!(
        failed.starts_with("failed: 42 MiB in 4 blocks held when the script ended, allowed 40 MiB\n"),
        "{failed}"
    );
    assert!(failed.ends_with("next: culeak report train.culeak\n"), "{failed}");
    let failed = text(&Rules::default());
    assert!(
        failed.starts_with("failed: 35 MiB in 3 blocks leaked, allowed none\n"),
        "{failed}"
    );
    assert!(
        failed.ends_with("next: culeak report train.culeak --at exit\n"),
        "{failed}"
    );
}

#[test]
fn golden_check() {
    let snapshot = leaky();
    let mut text = String::new();
    for limits in [
        Limits::default(),
        Limits {
            given: vec![Limit::bytes(Scope::All, 64 * MIB)],
            kinds: vec![Kind::HostPinned],
            ..Limits::default()
        },
        Limits {
            given: vec![Limit::bytes(Scope::All, GIB), Limit::blocks(100)],
            judge_pools: true,
            ..Limits::default()
        },
    ] {
        text.push_str(&plain(|out| {
            check::page(&verdict(&snapshot, &limits.into()), "app.culeak").text(out)
        }));
        text.push('\n');
    }
    let mut lossy = Sample::new().finish(0, 3);
    lossy.losses.lost_allocations = 2;
    text.push_str(&plain(|out| {
        check::page(&verdict(&lossy, &Rules::default()), "lossy.culeak").text(out)
    }));
    expect_golden("check.txt", &text);
}

#[test]
fn golden_check_with_suppressions_and_a_baseline() {
    let mut rules = Rules::default();
    let own = "leak:weights.cu\nleak:no_such_function";
    rules.suppressions.add(own, "app.supp").expect("rules");
    let mut before = leaky();
    before.allocations.truncate(100);
    rules.baseline = Some(baseline_of(&before, &rules));
    let snapshot = leaky();
    let text = plain(|out| check::page(&verdict(&snapshot, &rules), "app.culeak").text(out));
    expect_golden("check-baseline.txt", &text);
}

#[test]
fn a_verdict_names_the_tolerance() {
    let mut rules = Rules::default();
    rules.limits.tolerance = culeak::analysis::check::Tolerance::Bytes(MIB);
    rules.baseline = Some(baseline_of(&leaky(), &rules));
    let snapshot = leaky();
    let text = plain(|out| check::page(&verdict(&snapshot, &rules), "app.culeak").text(out));
    assert!(
        text.contains("allowed what the baseline has with growth up to 1 MiB per call site"),
        "{text}"
    );
}
