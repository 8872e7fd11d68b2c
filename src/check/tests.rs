use super::*;
use crate::sample::{self, MIB, Sample};

fn passes(snapshot: &Snapshot, limits: Limits) -> bool {
    verdict(snapshot, &limits).passed
}

#[test]
fn without_limits_any_leak_fails() {
    assert!(!passes(&sample::leaky(), Limits::default()));
    assert!(passes(&Sample::new().finish(0, 12), Limits::default()));
}

#[test]
fn one_limit_switches_the_other_off() {
    let snapshot = sample::leaky();
    assert!(passes(
        &snapshot,
        Limits {
            max_count: Some(132),
            ..Limits::default()
        }
    ));
    assert!(!passes(
        &snapshot,
        Limits {
            max_count: Some(131),
            ..Limits::default()
        }
    ));
    assert!(passes(
        &snapshot,
        Limits {
            max_leaked: Some(2048 * MIB),
            ..Limits::default()
        }
    ));
    assert!(!passes(
        &snapshot,
        Limits {
            max_leaked: Some(2048 * MIB),
            max_count: Some(1),
            ..Limits::default()
        }
    ));
}

#[test]
fn the_limit_itself_is_allowed() {
    let snapshot = sample::leaky();
    let leaked = verdict(&snapshot, &Limits::default()).judged.bytes;
    assert!(passes(
        &snapshot,
        Limits {
            max_leaked: Some(leaked),
            ..Limits::default()
        }
    ));
    assert!(!passes(
        &snapshot,
        Limits {
            max_leaked: Some(leaked - 1),
            ..Limits::default()
        }
    ));
}

#[test]
fn claims_fail_only_when_asked_for() {
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
fn pools_are_no_leak_unless_asked_for_and_what_is_left_out_is_told() {
    let snapshot = sample::leaky();
    let of_pools = |judge_pools| {
        let kinds = vec![Kind::Async];
        let limits = Limits {
            judge_pools,
            kinds,
            ..Limits::default()
        };
        verdict(&snapshot, &limits)
    };
    assert!(of_pools(false).passed);
    assert_eq!(of_pools(false).ignored.count, 134);
    assert!(!of_pools(true).passed);
}

#[test]
fn a_recording_with_losses_is_not_clean() {
    let mut snapshot = Sample::new().finish(0, 0);
    snapshot.honesty.lost_allocations = 3;
    let lossy = verdict(&snapshot, &Limits::default());
    assert_eq!(lossy.breaches, [Breach::LostAllocations { count: 3 }]);
    let allowed = verdict(
        &snapshot,
        &Limits {
            allow_losses: true,
            ..Limits::default()
        },
    );
    assert!(allowed.passed && allowed.warnings.len() == 1);
}

#[test]
fn the_worst_site_is_named_first() {
    let snapshot = sample::leaky();
    let verdict = verdict(&snapshot, &Limits::default());
    assert!(verdict.rows[0].label.starts_with("Trainer::step"));
    assert!(verdict.rows.iter().all(|row| row.claims == 0));
}
