//! Sampled stacks (`--sample`): totals stay exact, call sites are estimates, and what needs every stack says so.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use culeak::kind::Kind;
use culeak::snapshot::Snapshot;
use serde_json::Value;

use crate::support::claims::Claims;
use crate::support::outcome::recordings_in;
use crate::support::profile::fake_driver_folder;
use crate::support::profile::folder;
use crate::support::{Lookup, Outcome, culeak, profile, shim, victim};
use crate::tensors::{tensors, torch};

mod verdicts;

/// Live bytes and blocks, then allocated bytes and blocks.
type Figures = [u64; 4];

/// With a choice that a fixed seed decides: the rate of stacks, which depends on the time, has no limit.
fn sampled(behaviour: &str, mean: &str) -> Outcome {
    let outcome = profile("samples")
        .arg(behaviour)
        .setting("CULEAK_SAMPLE", mean)
        .setting("CULEAK_STACK_RATE", "0")
        .env("CULEAK_SAMPLE_SEED", "1")
        .run();
    outcome.expect_success();
    outcome
}

/// `culeak run` with these options, which records the same program in this folder.
fn run_with(command: &str, options: &[&str], out: &Path) -> Output {
    Command::new(culeak())
        .arg(command)
        .args(options)
        .arg("-o")
        .arg(out)
        .arg("--")
        .arg(victim("samples", Lookup::Linked))
        .arg("keep")
        .env("LD_LIBRARY_PATH", fake_driver_folder())
        .env("CULEAK_SHIM", shim())
        .output()
        .expect("culeak starts")
}

/// What the program printed of each of its call sites.
fn truth(outcome: &Outcome) -> BTreeMap<String, Figures> {
    let sites = outcome.stdout.lines().filter_map(|line| {
        let (name, figures) = line.strip_prefix("site ")?.split_once(": ")?;
        let mut numbers = figures.split(' ').filter_map(|word| word.parse().ok());
        let figures = std::array::from_fn(|_| numbers.next().expect("a number"));
        Some((name.to_owned(), figures))
    });
    sites.collect()
}

fn report(outcome: &Outcome, options: &[&str]) -> Value {
    let output = Command::new(culeak())
        .args(["report", "--json", "--top", "0"])
        .args(options)
        .args(recordings_in(&outcome.out()))
        .output()
        .expect("culeak starts");
    let text = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Every total of the recording is the program's own.
fn expect_exact_totals(snapshot: &Snapshot, sites: &BTreeMap<String, Figures>) {
    let sum = |names: &[&str], figure: usize| -> u64 { names.iter().map(|name| sites[*name][figure]).sum() };
    for (kind, names) in [
        (Kind::Device, &["small_blocks", "mixed_blocks"][..]),
        (Kind::Async, &["large_blocks"]),
    ] {
        let counted = snapshot.counted(kind);
        let live = (counted.live_bytes, counted.live_count);
        let all = (counted.total_bytes, counted.total_count);
        assert_eq!(live, (sum(names, 0), sum(names, 1)), "{kind:?}");
        assert_eq!(all, (sum(names, 2), sum(names, 3)), "{kind:?}");
        assert_eq!(counted.freed_count, all.1 - live.1, "{kind:?}");
    }
}

/// Each call site's estimate is within this number of standard errors of the truth.
fn expect_near(report: &Value, sites: &BTreeMap<String, Figures>, errors: u64) {
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), sites.len(), "{rows:#?}");
    for row in rows {
        let site = &sites[row["label"].as_str().expect("a label")];
        for (figure, error, truth) in [("bytes", "bytes_error", site[0]), ("count", "count_error", site[1])] {
            let (found, error) = (number(&row[figure]), number(&row["estimated"][error]));
            assert!(
                found.abs_diff(truth) <= errors * error && error < truth,
                "{}: {found} ± {error} {figure}, and {truth} in truth",
                row["label"]
            );
        }
    }
}

#[test]
fn totals_are_exact_and_sites_are_within_their_errors() {
    let outcome = sampled("keep", "512KiB");
    let sites = truth(&outcome);
    let snapshot = outcome.only_snapshot();
    expect_exact_totals(snapshot, &sites);
    // One thread and a fixed seed: the same blocks are chosen in each run.
    expect_near(&report(&outcome, &[]), &sites, 4);
    let sampling = snapshot.sampling.expect("stacks were sampled");
    let without = snapshot.allocations.iter().filter(|row| row.stack == sampling.left_out);
    let (without, all) = (without.count(), snapshot.allocations.len());
    assert!(
        without > all / 10 && without < all,
        "{without} of {all} without a stack"
    );
    assert!(
        snapshot.allocations.iter().all(|row| row.stack.is_some()),
        "no stack was lost"
    );
    let peaks: u64 = sites.values().map(|site| site[0]).sum();
    assert!(snapshot.device_peaks[0].peak_bytes >= peaks);
}

#[test]
fn threads_sample_apart_and_their_totals_are_exact() {
    let outcome = sampled("threads", "512KiB");
    let sites = truth(&outcome);
    expect_exact_totals(outcome.only_snapshot(), &sites);
    // Threads take their seeds in any order. An estimate is 6 standard errors off once in 10^8 runs.
    expect_near(&report(&outcome, &[]), &sites, 6);
}

#[test]
fn a_thread_that_allocates_fast_takes_few_stacks_and_estimates_say_so() {
    let outcome = profile("samples")
        .arg("keep")
        .setting("CULEAK_SAMPLE", "4KiB")
        .setting("CULEAK_STACK_RATE", "16")
        .run();
    outcome.expect_success();
    let sites = truth(&outcome);
    let snapshot = outcome.only_snapshot();
    expect_exact_totals(snapshot, &sites);
    let sampling = snapshot.sampling.expect("stacks were sampled");
    assert!(sampling.most() > sampling.bytes, "{sampling:?}");
    let chosen = snapshot.allocations.iter().filter(|row| row.stack != sampling.left_out);
    let raised = chosen.clone().filter(|row| row.sample_bytes.is_some()).count();
    // Windows of 8 stacks, at 7 levels of which the program leaves one as soon as it took 8 in less than half a second.
    assert!(raised > 0 && chosen.count() < 20_000, "{raised} by a raised distance");
    // Which blocks are chosen depends on the time. An estimate is 6 standard errors off once in 10^8 runs.
    let report = report(&outcome, &[]);
    for row in report["rows"].as_array().expect("rows") {
        let site = &sites[row["label"].as_str().expect("a label")];
        let (found, error) = (number(&row["bytes"]), number(&row["estimated"]["bytes_error"]));
        assert!(
            found.abs_diff(site[0]) <= 6 * error,
            "{}: {found} ± {error} bytes, and {} in truth",
            row["label"],
            site[0]
        );
    }
    let largest = &report["rows"][0];
    assert_eq!(largest["label"], "large_blocks");
    let (found, error) = (number(&largest["bytes"]), number(&largest["estimated"]["bytes_error"]));
    assert!(2 * error < found, "{found} ± {error}");
    let text = Command::new(culeak())
        .arg("report")
        .args(recordings_in(&outcome.out()))
        .output()
        .expect("culeak starts");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("down to one for each"), "{text}");
}

#[test]
fn what_is_freed_leaves_nothing_behind() {
    let outcome = sampled("churn", "64KiB");
    let snapshot = outcome.only_snapshot();
    expect_exact_totals(snapshot, &truth(&outcome));
    snapshot.expect_live(Kind::Device, 0, 0);
    snapshot.expect_live(Kind::Async, 0, 0);
    let output = Command::new(culeak())
        .args(["check"])
        .args(recordings_in(&outcome.out()))
        .output()
        .expect("culeak starts");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn blocks_larger_than_the_distance_are_exact() {
    // The chance that one of 4 KiB is left out is exp(-4096).
    let outcome = sampled("keep", "1");
    let sites = truth(&outcome);
    let report = report(&outcome, &[]);
    for row in report["rows"].as_array().expect("rows") {
        let site = &sites[row["label"].as_str().expect("a label")];
        assert_eq!((number(&row["bytes"]), number(&row["count"])), (site[0], site[1]));
        assert!(row.get("estimated").is_none(), "{row}");
    }
}

#[test]
fn what_holds_no_memory_keeps_its_stack() {
    for behaviour in ["reserved", "pool", "multicast"] {
        let outcome = profile("kinds").arg(behaviour).setting("CULEAK_SAMPLE", "1TiB").run();
        outcome.expect_success();
        let snapshot = outcome.only_snapshot();
        let left_out = snapshot.sampling.expect("stacks were sampled").left_out;
        for row in snapshot.allocations.iter().filter(|row| row.bytes == 0) {
            assert!(row.stack.is_some() && row.stack != left_out, "{row:?}");
        }
        let objects = snapshot.objects.iter().chain(snapshot.segments.iter());
        objects.for_each(|row| assert!(row.stack.is_some() && row.stack != left_out, "{row:?}"));
    }
}

#[test]
fn tensors_are_counted_exactly_without_any_stack() {
    let outcome = tensors("leaks", &torch(1, &[])).setting("CULEAK_SAMPLE", "1TiB").run();
    outcome.expect_success().expect_same_output_as_bare();
    let snapshot = outcome.only_snapshot();
    snapshot.expect_live(Kind::Tensor, 3, 1024 + 2048 + 100_352);
    assert_eq!(snapshot.counted(Kind::Tensor).total_count, 5);
    let left_out = snapshot.sampling.expect("stacks were sampled").left_out;
    assert!(left_out.is_some() && snapshot.of_kind(Kind::Tensor).iter().all(|row| row.stack == left_out));
    // The segment is recognized by the tensors in it.
    let report = report(&outcome, &[]);
    assert_eq!(number(&report["totals"]["held"]["blocks"]["bytes"]), 103_424);
    assert_eq!(number(&report["totals"]["held"]["device"]["bytes"]), 0);
}

/// What a command prints of these recordings; it succeeds.
fn printed(outcomes: &[&Outcome], command: &[&str]) -> String {
    let recordings = outcomes.iter().flat_map(|outcome| recordings_in(&outcome.out()));
    let output = Command::new(culeak())
        .args(command)
        .args(recordings)
        .output()
        .expect("culeak starts");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn totals_of_diffs_trends_and_trees_are_exact() {
    // The same memory, of which nothing is chosen in the second recording.
    let (many, none) = (sampled("keep", "512KiB"), sampled("keep", "1TiB"));
    let total: u64 = truth(&many).values().map(|site| site[0]).sum();
    let json = |text: String| -> Value { serde_json::from_str(&text).expect("JSON") };
    let diff = json(printed(&[&many, &none], &["diff", "--json"]));
    let totals = &diff["totals"];
    assert_eq!(
        (number(&totals["before"]["bytes"]), number(&totals["after"]["bytes"])),
        (total, total),
        "{totals}"
    );
    assert_eq!(
        (&totals["bytes_delta"], totals.get("estimated")),
        (&Value::from(0), None)
    );
    let trend = json(printed(&[&many, &none], &["trend", "--json"]));
    for point in trend["points"].as_array().expect("points") {
        assert_eq!(number(&point["held"]["bytes"]), total, "{point}");
    }
    let text = printed(&[&many, &none], &["trend"]);
    let row = text.lines().find(|line| line.contains('→')).expect("a row");
    assert!(row.contains("≈ "), "{text}");

    let exact = culeak::analysis::words::bytes(total);
    for outcome in [&many, &none] {
        let tree = printed(&[outcome], &["report", "--view", "tree"]);
        let all = tree.lines().find(|line| line.ends_with(" all")).expect("the root");
        let place = tree.lines().find(|line| line.ends_with(" GPU 0")).expect("the GPU");
        assert!(
            all.contains(&exact) && !all.contains('≈') && !place.contains('≈'),
            "{tree}"
        );
    }
    let tree = printed(&[&many], &["report", "--view", "tree"]);
    let site = tree.lines().find(|line| line.contains("─ main")).expect("a frame");
    assert!(site.trim_start().starts_with("≈ "), "{tree}");
    let focused = printed(&[&many], &["report", "--view", "tree", "--focus", "large_blocks"]);
    let all = focused.lines().find(|line| line.ends_with(" all")).expect("the root");
    assert!(all.contains('≈') && focused.contains(" ± "), "{focused}");
}

#[test]
fn a_report_without_any_stack_does_not_count_call_sites() {
    let outcome = sampled("keep", "1TiB");
    let text = printed(&[&outcome], &["report"]);
    assert!(text.contains(" leaked; no stack of it was taken"), "{text}");
    assert!(!text.contains("0 call sites"), "{text}");
}

#[test]
fn sampling_together_with_what_needs_every_stack_is_refused() {
    let run = |options: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(culeak());
        command
            .arg("run")
            .args(options)
            .args(["--", "true"])
            .envs(variables.iter().copied());
        let output = command.output().expect("culeak starts");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    for (options, variables, named) in [
        (&["--sample", "1MiB", "--timeline"][..], &[][..], "--timeline"),
        (&["--sample", "1MiB"], &[("CULEAK_TIMELINE", "8MiB")], "CULEAK_TIMELINE"),
        (&["--timeline"], &[("CULEAK_SAMPLE", "1MiB")], "--timeline"),
        (&["--sample", "1MiB"], &[("CULEAK_INTERVALS", "1")], "CULEAK_INTERVALS"),
    ] {
        let (code, text) = run(options, variables);
        assert!(
            code == Some(2) && text.contains(named),
            "{options:?} {variables:?}: {code:?} {text}"
        );
    }
    // Without the command line, the library says so and records every stack.
    let outcome = profile("samples")
        .arg("keep")
        .setting("CULEAK_SAMPLE", "1MiB")
        .setting("CULEAK_TIMELINE", "8MiB")
        .run();
    outcome.expect_success();
    let lines = outcome.our_lines();
    assert!(
        lines.iter().any(|line| line.contains("CULEAK_SAMPLE is ignored")),
        "{lines:?}"
    );
    assert_eq!(outcome.only_snapshot().sampling, None);
}

#[test]
fn the_config_file_sets_the_distance() {
    let folder = folder();
    let config = folder.path().join("culeak.toml");
    fs::write(&config, "[run]\nsample = \"2MiB\"\n").expect("a file");
    let config = config.to_str().expect("UTF-8");
    let run = |options: &[&str], out: &str| {
        let out = folder.path().join(out);
        let output = run_with("run", &[&["--config", config], options].concat(), &out);
        assert!(output.status.success(), "{output:?}");
        let recordings = recordings_in(&out);
        let snapshot = crate::support::outcome::read(&recordings[0]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (snapshot.sampling.map(|sampling| sampling.bytes), text)
    };
    let (bytes, text) = run(&[], "file");
    assert_eq!(bytes, Some(2 << 20));
    assert!(
        text.contains("≈") && text.contains("sampled, one for each 2 MiB"),
        "{text}"
    );
    assert_eq!(run(&["--sample", "0"], "none").0, None);
    assert_eq!(run(&["--sample", "1MiB"], "option").0, Some(1 << 20));
}

#[test]
fn exports_weigh_the_blocks() {
    let outcome = sampled("keep", "512KiB");
    let output = Command::new(culeak())
        .args(["export", "--format", "folded", "-o", "-"])
        .args(recordings_in(&outcome.out()))
        .output()
        .expect("culeak starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let sites = truth(&outcome);
    let truth: u64 = sites.values().map(|site| site[0]).sum();
    let sum: u64 = text
        .lines()
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum();
    // 3.6 GiB, whose standard error is 1 %.
    assert!(sum.abs_diff(truth) < truth / 20, "{sum} of {truth}: {text} {output:?}");
}
