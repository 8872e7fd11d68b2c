//! Wrappers: the call site of what `gpu_alloc` requests is its caller, in every view, and in each recording alike.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::interpreters::interpreters;
use crate::support::compile::executable;
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::{Profile, culeak, fake_driver, profile, program, sources};

const MIB: u64 = 1 << 20;

/// Runs the program, and returns its recording and the folder that it lies in.
fn recorded(program: &Profile) -> (PathBuf, TempDir) {
    let folder = folder();
    let ended = program.start_in(folder.path()).finish();
    assert!(ended.status.success(), "{:?}", ended.status);
    let recordings = recordings_in(&folder.path().join("out"));
    let [recording] = &recordings[..] else {
        panic!("one recording: {recordings:?}")
    };
    (recording.clone(), folder)
}

fn wrapped(behaviour: &str) -> (PathBuf, TempDir) {
    recorded(&profile("wrapped").arg(behaviour))
}

fn run(words: &[&str], inputs: &[&Path]) -> Output {
    let mut command = Command::new(culeak());
    let command = command.args(words).args(inputs).env("CULEAK_CACHE_DIR", "");
    command.output().expect("culeak starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(words: &[&str], inputs: &[&Path]) -> Value {
    let output = run(&[words, &["--json"]].concat(), inputs);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Bytes by call site.
fn sites(recording: &Path) -> BTreeMap<String, u64> {
    let report = json(&["report"], &[recording]);
    let rows = report["rows"].as_array().expect("rows").iter();
    let row = |row: &Value| (row["label"].as_str().map(str::to_owned), row["bytes"].as_u64());
    rows.map(row)
        .map(|(label, bytes)| (label.expect("a label"), bytes.expect("bytes")))
        .collect()
}

fn expected(sites: &[(&str, u64)]) -> BTreeMap<String, u64> {
    sites
        .iter()
        .map(|(name, mib)| ((*name).to_owned(), mib * MIB))
        .collect()
}

const USUAL: [(&str, u64); 6] = [
    ("keeps_batch", 8),
    ("keeps_metrics", 1),
    ("loads_weights", 64),
    ("makes_cache", 32),
    ("makes_layer", 8),
    ("plans_graph", 2),
];

#[test]
fn the_callers_of_a_wrapper_are_the_call_sites_however_many_there_are() {
    let (usual, _folder) = wrapped("usual");
    assert_eq!(sites(&usual), expected(&USUAL));
    let (few, _folder) = wrapped("few");
    assert_eq!(sites(&few), expected(&[("keeps_batch", 8)]));
    // Where the stacks of a call site part, each caller has its share.
    let report = text(&run(&["report", "--top", "0"], &[&usual]));
    for caller in ["← encodes", "← decodes"] {
        let share = report.lines().find(|line| line.contains(caller));
        assert!(share.is_some_and(|line| line.contains("4 MiB")), "{report}");
    }
    // The wrappers are named below the rows alone.
    let below = report.lines().filter(|line| line.contains("gpu_alloc"));
    let through = |line: &str| {
        line.trim_start()
            .starts_with("through checked_malloc wrapped.c:6 < gpu_alloc wrapped.c:12")
    };
    assert!(below.clone().count() > 0 && below.clone().all(through), "{report}");
    assert_eq!(report.matches("gpu_alloc").count(), below.count(), "{report}");
}

#[test]
fn a_diff_has_a_row_for_the_caller_that_grew_and_none_for_the_wrapper() {
    let ((before, _first), (after, _second)) = (wrapped("usual"), wrapped("leaking"));
    let diff = json(&["diff", "--by", "site"], &[&before, &after]);
    let rows = diff["rows"].as_array().expect("rows");
    let changes: Vec<_> = rows.iter().map(|row| (&row["label"], &row["bytes_delta"])).collect();
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!(
        (changes[0].0.as_str(), changes[0].1.as_u64()),
        (Some("keeps_batch"), Some(32 * MIB))
    );
    assert_eq!(
        (changes[1].0.as_str(), changes[1].1.as_u64()),
        (Some("makes_layer"), Some(16 * MIB))
    );
    // One of its two callers grew, and the shares are of both sides together.
    let callers = rows[1]["callers"].as_array().expect("callers").iter();
    let callers: Vec<_> = callers
        .map(|of| (&of["caller"]["function"], &of["before"]["bytes"], &of["after"]["bytes"]))
        .map(|(name, before, after)| (name.as_str(), before.as_u64(), after.as_u64()))
        .collect();
    assert_eq!(
        callers,
        [
            (Some("decodes"), Some(4 * MIB), Some(20 * MIB)),
            (Some("encodes"), Some(4 * MIB), Some(4 * MIB))
        ]
    );
    let page = text(&run(&["diff", "--by", "site"], &[&before, &after]));
    assert!(page.contains("← decodes") && !page.contains("← encodes"), "{page}");
    // By stack, no row and no chain has a wrapper either: the line below a row begins with those that it was requested through.
    let page = text(&run(&["diff", "--all"], &[&before, &after]));
    let is_through = |line: &str| line.trim_start().starts_with("through ");
    let rest = |line: &str| {
        line.split_once(", from ")
            .map_or(String::new(), |(_, callers)| callers.to_owned())
    };
    let mut shown = page
        .lines()
        .map(|line| if is_through(line) { rest(line) } else { line.to_owned() });
    let is_named = |line: String| line.contains("gpu_alloc") || line.contains("checked_malloc");
    assert!(!shown.any(is_named), "{page}");
}

#[test]
fn a_baseline_of_all_callers_knows_those_of_a_run_with_one() {
    let folder = folder();
    let baseline = folder.path().join("known.json");
    let check = |recording: &Path, more: &[&str]| {
        let baseline = baseline.to_str().expect("a path");
        run(&[&["check", "--baseline", baseline], more].concat(), &[recording])
    };
    let (usual, _usual) = wrapped("usual");
    let (few, _few) = wrapped("few");
    let (leaking, _leaking) = wrapped("leaking");
    assert_eq!(check(&usual, &["--update-baseline"]).status.code(), Some(0));
    assert_eq!(check(&few, &[]).status.code(), Some(0), "{}", text(&check(&few, &[])));
    let failed = check(&leaking, &["--json"]);
    assert_eq!(failed.status.code(), Some(1));
    let told = text(&failed);
    assert!(
        told.contains("keeps_batch") && !told.contains("\"gpu_alloc\",\n      \"bytes\""),
        "{told}"
    );
    // And the other way round: the one caller is known, the others are new.
    assert_eq!(check(&few, &["--update-baseline"]).status.code(), Some(0));
    let grown = check(&usual, &[]);
    assert_eq!(grown.status.code(), Some(1));
    assert!(
        !text(&grown).contains("keeps_batch  wrapped.c:23  [new]"),
        "{}",
        text(&grown)
    );
}

#[test]
fn a_suppression_names_one_caller_of_a_wrapper() {
    let (few, folder) = wrapped("few");
    let rules = text(&run(&["check", "--gen-suppressions"], &[&few]));
    assert!(rules.contains("site:^keeps_batch$ in ^wrapped.c:24$"), "{rules}");
    let file = folder.path().join("known.supp");
    fs::write(&file, rules).expect("written");
    let file = file.to_str().expect("a path");
    let code = |recording: &Path| run(&["check", "--suppressions", file], &[recording]).status.code();
    assert_eq!(code(&few), Some(0));
    let (usual, _usual) = wrapped("usual");
    assert_eq!(code(&usual), Some(1));
    let report = json(&["report", "--suppressions", file], &[&usual]);
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), USUAL.len() - 1);
    assert_eq!(report["suppressed"]["bytes"].as_u64(), Some(8 * MIB));
}

#[test]
fn the_rank_that_leaks_through_a_wrapper_is_named_with_the_caller() {
    let folder = folder();
    for rank in 0..6 {
        let behaviour = if rank == 4 { "leaking" } else { "usual" };
        let process = profile("wrapped").arg(behaviour).env("RANK", rank.to_string());
        assert!(process.start_in(folder.path()).finish().status.success());
    }
    let report = text(&run(&["report"], &[&folder.path().join("out")]));
    let named = report.lines().find(|line| line.contains("keeps_batch  wrapped.c"));
    assert!(
        named.is_some_and(|line| line.contains("rank 4: 40 MiB, 5.0x as much")),
        "{report}"
    );
    assert!(
        !report.contains(" gpu_alloc") || report.contains("through gpu_alloc"),
        "{report}"
    );
}

#[test]
fn wrappers_in_python_are_passed_over_too() {
    for python in interpreters() {
        let script = |behaviour: &str| {
            let victim = sources().join("victims/wrapped.py");
            recorded(&program(&python.command).arg("-B").arg(victim).arg(behaviour))
        };
        let (usual, _usual) = script("usual");
        let (leaking, _leaking) = script("leaking");
        // Before 3.11 a method has no class, so that it may be anybody's.
        let cache = if python.minor >= 11 { "make_cache" } else { "__init__" };
        let wanted = [("keep_batch", 8), (cache, 32), ("load_weights", 64)];
        assert_eq!(sites(&usual), expected(&wanted), "{}", python.version);
        let diff = json(&["diff"], &[&usual, &leaking]);
        let rows = diff["rows"].as_array().expect("rows");
        assert_eq!(
            (rows.len(), rows[0]["label"].as_str()),
            (1, Some("keep_batch")),
            "{}",
            python.version
        );
    }
}

#[test]
#[ignore = "needs g++"]
fn containers_in_cpp_are_passed_over_and_stacks_that_differ_in_them_alone_are_one() {
    let victim = executable("containers", &["-std=c++17"], &[fake_driver()]);
    let (recording, _folder) = recorded(&program(victim).arg("usual"));
    let found = sites(&recording);
    let names: Vec<&str> = found
        .keys()
        .map(|name| name.split('(').next().unwrap_or_default())
        .collect();
    assert_eq!(names, ["grows", "model::Cache::put", "steps"], "{found:?}");
    let stacks = json(&["report", "--by", "stack"], &[&recording]);
    assert_eq!(stacks["rows"].as_array().map(Vec::len), Some(3), "{stacks:#}");
}
