//! `check` on sampled recordings: totals are judged exactly, call sites beyond their error, and what is unknown has no verdict.

use std::fs;
use std::process::{Command, Output};

use super::{number, report, run_with, sampled, truth};
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::{Outcome, culeak, profile};

fn check(outcome: &Outcome, options: &[&str]) -> Output {
    let mut command = Command::new(culeak());
    command.arg("check").args(options).args(recordings_in(&outcome.out()));
    command.output().expect("culeak starts")
}

#[test]
fn a_check_judges_totals_exactly_and_sites_beyond_their_error() {
    let outcome = sampled("keep", "512KiB");
    let sites = truth(&outcome);
    let total: u64 = sites.values().map(|site| site[0]).sum();
    // `start_cuda` allocates nothing itself; the fake driver's context may hold memory that the program requested.
    let held = number(&report(&outcome, &[])["totals"]["held"]["device"]["bytes"]);
    assert_eq!(held, total);
    let exact = |limit: u64| check(&outcome, &["--no-builtin-suppressions", "--allow", &limit.to_string()]);
    let below = exact(total - 1);
    assert_eq!(below.status.code(), Some(1), "{below:?}");
    let exact = exact(total);
    assert!(exact.status.success(), "{exact:?}");
    // Suppressions match none of the many chosen blocks, so they match at most what may have no chosen block.
    let unseen = 6 * (512 << 10);
    for (limit, code) in [
        (total, 0),
        (total - 1, 2),
        (total - unseen, 2),
        (total - unseen - 1, 1),
        (0, 1),
    ] {
        let (found, text) = judged(&outcome, &["--allow", &limit.to_string()]);
        assert_eq!(found, Some(code), "{limit}: {text}");
        assert_eq!(text.contains("cannot be judged"), code == 2, "{limit}: {text}");
    }
    let large = sites["large_blocks"][0];
    let far = check(&outcome, &["--allow", &format!("site={}", large / 2)]);
    assert_eq!(far.status.code(), Some(1), "{far:?}");
    let (near, text) = judged(&outcome, &["--allow", &format!("site={large}")]);
    assert!(
        near == Some(2) && text.contains("cannot be judged by --allow site=SIZE: large_blocks"),
        "{text}"
    );
    let (far, text) = judged(&outcome, &["--allow", &format!("site={}", 2 * large)]);
    assert_eq!(far, Some(0), "{text}");
}

/// What `check` says, and its exit code.
fn judged(outcome: &Outcome, options: &[&str]) -> (Option<i32>, String) {
    let output = check(outcome, options);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

#[test]
fn a_limit_that_chosen_blocks_cannot_judge_has_no_verdict() {
    // No block is chosen.
    let outcome = sampled("keep", "1TiB");
    let total: u64 = truth(&outcome).values().map(|site| site[0]).sum();
    for options in [
        vec!["--allow".to_owned(), "0".to_owned()],
        vec!["--allow".to_owned(), (total - 1).to_string()],
        vec!["--allow".to_owned(), "device=0".to_owned()],
        vec![],
    ] {
        let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
        let (code, text) = judged(&outcome, &options);
        let next = text.contains("smaller --sample") && text.contains("--no-builtin-suppressions");
        assert!(
            code == Some(2) && text.contains("cannot be judged") && next,
            "{options:?}: {text}"
        );
        assert!(
            !text.contains("passed") && !text.contains("± 0 B"),
            "{options:?}: {text}"
        );
        options.push("--no-builtin-suppressions");
        assert_eq!(judged(&outcome, &options).0, Some(1), "{options:?}");
    }
    // Suppressions only lower the sum.
    let (code, text) = judged(&outcome, &["--allow", &total.to_string()]);
    assert!(code == Some(0) && text.starts_with("passed: at most "), "{text}");
}

#[test]
fn suppressed_call_sites_leave_an_estimate_that_is_judged_beyond_its_error() {
    let outcome = sampled("keep", "512KiB");
    let sites = truth(&outcome);
    let rules = outcome.out().join("large.supp");
    fs::write(&rules, "leak:large_blocks\n").expect("a file");
    let rules = rules.to_str().expect("UTF-8");
    let rest = sites["small_blocks"][0] + sites["mixed_blocks"][0];
    for (limit, code, part) in [
        (rest / 2, 1, "an estimate from sampled stacks"),
        (rest, 2, "cannot be judged"),
        (2 * rest, 0, "passed: ≈ "),
    ] {
        let (found, text) = judged(&outcome, &["--suppressions", rules, "--allow", &limit.to_string()]);
        assert!(found == Some(code) && text.contains(part), "{limit}: {text}");
    }
}

#[test]
fn a_run_whose_leaks_cannot_be_judged_does_not_succeed() {
    let folder = folder();
    let run = |options: &[&str]| {
        let limits = ["--sample", "1TiB", "--allow", "0"];
        let output = run_with("check", &[&limits, options].concat(), folder.path());
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, text) = run(&[]);
    assert!(code == Some(2) && text.contains("cannot be judged"), "{text}");
    assert_eq!(run(&["--no-builtin-suppressions"]).0, Some(1));
}

/// Marks are compared by call site, so sampled stacks cannot show it. What is held in all is known.
#[test]
fn marks_of_sampled_recordings_are_not_compared_with_each_other() {
    let record = |mean: &str| {
        let outcome = profile("phases")
            .args("rounds 5000")
            .env("CULEAK_SNAPSHOT_AT_MARK", "1")
            .setting("CULEAK_SAMPLE", mean)
            .run();
        outcome.expect_success();
        outcome
    };
    // In the first recording, every block was chosen.
    let (exact, coarse) = (record("1"), record("1MiB"));
    let check = |outcomes: &[&Outcome], options: &[&str]| {
        let mut command = Command::new(culeak());
        command.args(["check", "--at", "mark:asleep"]).args(options);
        for outcome in outcomes {
            command.args(recordings_in(&outcome.out()));
        }
        let output = command.output().expect("culeak starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    for outcomes in [&[&exact][..], &[&coarse], &[&exact, &coarse]] {
        let (code, text) = check(outcomes, &["--same-as-last"]);
        let sentences = text.matches("the stacks were sampled, so a difference may be chance; record without --sample");
        assert_eq!((code, sentences.count()), (Some(2), outcomes.len()), "{text}");
    }
    for (limit, expected) in [("2MiB", 0), ("1MiB", 1)] {
        let (code, text) = check(&[&coarse], &["--no-builtin-suppressions", "--not-above", limit]);
        assert_eq!(code, Some(expected), "{limit}: {text}");
    }
}
