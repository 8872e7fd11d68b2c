//! Claims about `culeak trend` in scripts: exit codes, streams, files; no GPU needed.

#[path = "../../tests/support/sample.rs"]
mod sample;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use culeak::kind::Kind;
use culeak::snapshot::{Mark, ProcessState, Snapshot};
use sample::{MAIN, MIB, PYTHON, RUNTIME, Sample, leaky};
use serde_json::Value;
use tempfile::TempDir;

const MINUTE: u64 = 60_000_000_000;

/// A snapshot of a running process after some minutes, with a leak and a model.
fn snapshot_after(minute: u64) -> Snapshot {
    snapshot_with(minute, minute)
}

fn snapshot_with(blocks: u64, minute: u64) -> Snapshot {
    let mut sample = Sample::new().running();
    let leak = sample.stack(&[
        RUNTIME,
        ("step", "/src/train.py:212", PYTHON),
        ("<module>", "/src/train.py:9", PYTHON),
    ]);
    let model = sample.stack(&[RUNTIME, ("load_weights", "/src/weights.cu:40", "/opt/app"), MAIN]);
    if blocks > 0 {
        sample.holds(Kind::Device, "cudaMalloc", 2 * MIB, blocks, leak);
    }
    sample.holds(Kind::Device, "cudaMalloc", 100 * MIB, 3, model);
    sample.0.taken.at_ns = minute * MINUTE;
    sample.finish(0, 0)
}

fn write(folder: &Path, name: &str, snapshot: &Snapshot) {
    fs::write(folder.join(name), serde_json::to_vec(snapshot).expect("json")).expect("written");
}

/// A folder `runs` with this many snapshots, and a JSON file that is not one.
fn folder(snapshots: u64) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(folder.path().join("runs")).expect("a folder");
    for minute in 1..=snapshots {
        // The order of names is not that of time.
        write(
            folder.path(),
            &format!("runs/{}.json", 99 - minute),
            &snapshot_after(minute),
        );
    }
    fs::write(folder.path().join("runs/package.json"), "{\"name\": \"x\"}").expect("written");
    folder
}

fn trend(folder: &TempDir, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_culeak"));
    command
        .current_dir(folder)
        .arg("trend")
        .args(words)
        .stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "LD_PRELOAD"] {
        command.env_remove(variable);
    }
    command.output().expect("culeak starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_folder_of_snapshots_is_a_trend_with_a_sentence_per_growing_site() {
    let output = trend(&folder(12), &["runs"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        text.starts_with("app: 12 snapshots over 11 m 0 s, from 302 MiB in 4 blocks to 324 MiB in 15 blocks\n"),
        "{text}"
    );
    assert!(text.contains("2 call sites: 1 growing, 1 steady"), "{text}");
    let sentence = "step train.py:212 has grown in 11 of 11 steps by about 120 MiB an hour and has not slowed";
    assert!(text.contains(sentence), "{text}");
    assert!(
        text.contains("▁▂▂▃▃▄▅▅▆▆▇█") && text.contains("next: culeak diff runs/98.json runs/87.json"),
        "{text}"
    );
    assert!(!text.contains("load_weights") && stdout(&trend(&folder(12), &["runs", "--all"])).contains("load_weights"));
}

#[test]
fn fail_on_fails_on_growth_and_without_a_judgement() {
    assert_eq!(
        trend(&folder(12), &["runs", "--fail-on", "growing"]).status.code(),
        Some(1)
    );
    assert_eq!(
        trend(&folder(12), &["runs", "--fail-on", "growing", "--kind", "pinned"])
            .status
            .code(),
        Some(0)
    );
    let few = trend(&folder(4), &["runs", "--fail-on", "growing"]);
    assert_eq!(few.status.code(), Some(2));
    assert!(
        stderr(&few).contains("--fail-on needs 8 snapshots of a process, but no process has more than 4"),
        "{}",
        stderr(&few)
    );
    // What is left at the end is none of them.
    let ended = folder(7);
    let mut left = snapshot_after(32);
    left.process.state = ProcessState::Exited;
    write(ended.path(), "runs/left.json", &left);
    let few = trend(&ended, &["runs", "--fail-on", "growing"]);
    assert!(
        stderr(&few).contains("needs 8 snapshots of a process, but no process has more than 7"),
        "{}",
        stderr(&few)
    );
    // Before the process is looked for.
    let short = trend(&folder(0), &["--pid", "1", "--every", "1s", "--for", "6s"]);
    let expected = "--for 6 s: takes 7 snapshots at one each 1 s, but judging growth needs 8";
    assert!(
        short.status.code() == Some(2) && stderr(&short).contains(expected),
        "{}",
        stderr(&short)
    );
    let text = stdout(&trend(&folder(4), &["runs"]));
    assert!(
        text.contains("has grown in 3 of 3 steps to 8 MiB; 4 snapshots are too few to judge; at least 8 are needed"),
        "{text}"
    );
    assert!(text.contains("next: culeak trend --pid 4711 --every 30s"), "{text}");
    let over = folder(0);
    let mut left = snapshot_after(32);
    left.process.state = ProcessState::Exited;
    write(over.path(), "runs/left.json", &left);
    let text = stdout(&trend(&over, &["runs"]));
    assert!(
        text.contains("next: culeak run -o runs --snapshot every:120s -- /opt/app --epochs 3; culeak trend runs"),
        "{text}"
    );
}

#[test]
fn fail_on_does_not_pass_on_what_was_not_judged_unless_that_is_accepted() {
    let passes = |folder: &TempDir, what: &str| {
        let judged = |more: &[&str]| trend(folder, &[&["runs", "--fail-on", "growing"], more].concat());
        let refused = judged(&[]);
        assert_eq!(refused.status.code(), Some(2), "{what}: {}", stdout(&refused));
        let said = stderr(&refused);
        assert!(
            said.contains(what) && said.contains("or accept it with --allow-losses"),
            "{what}: {said}"
        );
        let accepted = judged(&["--allow-losses"]);
        assert_eq!(accepted.status.code(), Some(0), "{what}: {}", stderr(&accepted));
        assert!(stderr(&accepted).contains(what), "{what}: {}", stderr(&accepted));
    };
    let steady = |minute| snapshot_with(0, minute);
    // A rank with too few snapshots, which leaks in each of them.
    let job = folder(0);
    for minute in 1..=12 {
        write(job.path(), &format!("runs/{minute}.json"), &steady(minute));
        let mut rank = snapshot_after(minute);
        rank.process.pid = 4712;
        rank.process.ranks.insert("RANK".to_owned(), "1".to_owned());
        if minute <= 5 {
            write(job.path(), &format!("runs/rank1-{minute}.json"), &rank);
        }
    }
    passes(&job, "1 of 2 processes have fewer than 8 snapshots");
    // A call site that leaks since it appeared.
    let late = folder(0);
    for minute in 1..=12_u64 {
        let snapshot = snapshot_with(minute.saturating_sub(8), minute);
        write(late.path(), &format!("runs/{minute}.json"), &snapshot);
    }
    passes(
        &late,
        "1 call site may still grow, but too few snapshots show it (step train.py:212)",
    );
    let lossy = folder(0);
    for minute in 1..=12 {
        let mut snapshot = steady(minute);
        snapshot.losses.lost_allocations = 7;
        write(lossy.path(), &format!("runs/{minute}.json"), &snapshot);
    }
    passes(&lossy, "7 allocations could not be recorded");
    let whole = folder(0);
    (1..=12).for_each(|minute| write(whole.path(), &format!("runs/{minute}.json"), &steady(minute)));
    assert_eq!(trend(&whole, &["runs", "--fail-on", "growing"]).status.code(), Some(0));
}

#[test]
fn of_many_processes_that_were_not_judged_ten_have_a_sentence_and_the_rest_is_counted() {
    let folder = folder(0);
    for rank in 0..13 {
        for minute in 1..=8 {
            let mut snapshot = snapshot_with(0, minute);
            snapshot.process.pid = 4711 + rank;
            snapshot.process.ranks.insert("RANK".to_owned(), rank.to_string());
            snapshot.losses.lost_allocations = 7;
            write(folder.path(), &format!("runs/{rank}-{minute}.json"), &snapshot);
        }
    }
    for more in [&[][..], &["--allow-losses"]] {
        let output = trend(&folder, &[&["runs", "--fail-on", "growing"], more].concat());
        let said = stderr(&output);
        assert_eq!(
            said.matches("7 allocations could not be recorded").count(),
            10,
            "{said}"
        );
        assert!(said.contains("3 more sentences of this kind are not shown"), "{said}");
    }
}

#[test]
fn fail_on_against_marks_fails_without_marks() {
    let folder = folder(12);
    let output = trend(&folder, &["runs", "--against", "marks", "--fail-on", "growing"]);
    assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
    assert!(
        stderr(&output).contains("--fail-on with --against marks needs snapshots after 8 different marks"),
        "{}",
        stderr(&output)
    );
    let text = stdout(&output);
    assert!(text.contains("nothing to judge: the program set no marks"), "{text}");
    assert!(!text.contains("without a trend"), "{text}");
}

#[test]
fn growth_that_is_freed_at_exit_is_growth_in_the_text_in_json_and_for_the_exit_code() {
    let folder = folder(12);
    let mut left = snapshot_with(0, 13);
    left.process.state = ProcessState::Exited;
    write(folder.path(), "runs/left.json", &left);
    let output = trend(&folder, &["runs", "--fail-on", "growing"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("\n2 call sites: 1 freed only at exit, 1 steady\n"),
        "{text}"
    );
    let json: Value = serde_json::from_slice(&trend(&folder, &["runs", "--json"]).stdout).expect("JSON");
    assert_eq!(
        (&json["growing"], &json["classes"]["growing"]),
        (&Value::from(1), &Value::from(0))
    );
    let text = stdout(&trend(&folder, &["runs", "--focus", "step"]));
    assert!(
        text.contains("next: culeak diff runs/98.json runs/left.json --focus step --view stacks\n"),
        "{text}"
    );
    // Where nothing grew, the text says so.
    let text = stdout(&trend(&folder, &["runs", "--focus", "load_weights"]));
    assert!(text.contains("\n1 call site: 0 growing, 1 steady\n"), "{text}");
}

#[test]
fn a_trend_by_marks_is_over_as_many_marks_as_the_program_set() {
    let folder = folder(0);
    for minute in 1..=9 {
        let mut snapshot = snapshot_after(minute);
        let set = (1..=minute).map(|nth| Mark {
            name: format!("epoch {nth}"),
            time_ns: nth * MINUTE,
            thread: 0,
        });
        snapshot.marks = set.collect();
        write(folder.path(), &format!("runs/{minute}.json"), &snapshot);
    }
    let text = stdout(&trend(&folder, &["runs", "--against", "marks"]));
    assert!(text.starts_with("app: 9 snapshots over 9 marks, "), "{text}");
    // The process may have run for long before the first snapshot, and before the first mark.
    fs::remove_file(folder.path().join("runs/1.json")).expect("removed");
    let text = stdout(&trend(&folder, &["runs", "--against", "marks"]));
    assert!(text.starts_with("app: 8 snapshots over 8 marks, "), "{text}");
    write(folder.path(), "runs/0.json", &snapshot_after(0));
    let text = stdout(&trend(&folder, &["runs", "--against", "marks"]));
    assert!(text.starts_with("app: 9 snapshots over 9 marks, "), "{text}");
}

#[test]
fn the_next_command_compares_snapshots_of_one_process() {
    let folder = folder(4);
    for minute in 10..=20 {
        let mut restarted = snapshot_after(minute - 9);
        restarted.process.pid = 4712;
        restarted.process.started_unix_ns += 9 * MINUTE;
        write(folder.path(), &format!("runs/second-{minute}.json"), &restarted);
    }
    let text = stdout(&trend(&folder, &["runs"]));
    assert!(
        text.contains("next: culeak diff runs/second-10.json runs/second-20.json --view stacks"),
        "{text}"
    );
}

#[test]
fn json_contains_everything_in_the_text() {
    let value: Value = serde_json::from_slice(&trend(&folder(12), &["runs", "--json"]).stdout).expect("JSON");
    assert_eq!(
        (&value["format"], &value["version"]),
        (&Value::from("culeak-trend"), &Value::from(2))
    );
    let row = &value["rows"][0];
    assert_eq!(row["class"], "growing");
    assert_eq!(row["series"]["counts"], Value::from((1..=12).collect::<Vec<u64>>()));
    assert_eq!(value["points"][11]["held"]["count"], 15);
    assert_eq!(row["bytes"]["r_squared"], 1.0);
}

#[test]
fn different_programs_are_refused_by_name_unless_one_is_chosen_or_forced() {
    let folder = folder(8);
    let mut other = snapshot_after(9);
    other.process.executable = "/opt/serve".to_owned();
    write(folder.path(), "runs/other.json", &other);
    let refused = trend(&folder, &["runs"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = stderr(&refused);
    assert!(
        message.contains("app, serve; choose one with --only app") && message.contains("--force"),
        "{message}"
    );
    for pattern in ["app", "a*"] {
        let chosen = trend(&folder, &["runs", "--only", pattern]);
        assert!(stdout(&chosen).starts_with("app: 8 snapshots"), "{}", stdout(&chosen));
    }
    let unmatched = trend(&folder, &["runs", "--only", "train"]);
    assert_eq!(unmatched.status.code(), Some(2));
    let message = stderr(&unmatched);
    assert!(
        message.contains("--only train: no such program; the snapshots are from app, serve"),
        "{message}"
    );
    let forced = trend(&folder, &["runs", "--force"]);
    assert!(
        forced.status.success() && stdout(&forced).contains("9 snapshots"),
        "{}",
        stdout(&forced)
    );
}

#[test]
fn concurrent_processes_are_judged_separately() {
    let folder = folder(8);
    for minute in 1..=8 {
        let mut rank = snapshot_after(minute);
        rank.process.pid = 4712;
        rank.process.ranks.insert("RANK".to_owned(), "1".to_owned());
        write(folder.path(), &format!("runs/rank1-{minute}.json"), &rank);
    }
    let each = trend(&folder, &["runs", "--json", "--per-process"]);
    let value: Value = serde_json::from_slice(&each.stdout).expect("JSON");
    let points: Vec<_> = value
        .as_array()
        .expect("two")
        .iter()
        .map(|trend| trend["points"].as_array().map(Vec::len))
        .collect();
    assert_eq!(points, [Some(8), Some(8)]);
    assert!(stdout(&trend(&folder, &["runs", "--per-process"])).contains("RANK 1"));
    let job: Value = serde_json::from_slice(&trend(&folder, &["runs", "--json"]).stdout).expect("JSON");
    let points = job["processes"].as_array().expect("two").iter();
    assert_eq!(points.map(|process| &process["points"]).collect::<Vec<_>>(), [8, 8]);
    assert_eq!(job["judged"], 2);
    let text = stdout(&trend(&folder, &["runs"]));
    assert!(text.starts_with("2 processes of "), "{text}");
}

#[test]
fn unreadable_inputs_are_reported_and_the_rest_is_judged() {
    let folder = folder(9);
    fs::write(folder.path().join("runs/torn.culeak-snapshot"), "torn").expect("written");
    let output = trend(&folder, &["runs", "runs/98.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("torn.culeak-snapshot"), "{}", stderr(&output));
    assert!(
        stdout(&output).contains("9 snapshots"),
        "one snapshot named twice is one: {}",
        stdout(&output)
    );
    write(folder.path(), "leaky.json", &leaky());
    for words in [
        &["missing.json"][..],
        &["."],
        &["runs/torn.culeak-snapshot"],
        &[],
        &["--pid", "1", "runs"],
        &["runs", "--every", "1s"],
        &["--pid", "0"],
        &["--pid", "4711", "--every", "never"],
        &["runs", "--against", "tides"],
    ] {
        let folder = if words == ["."] {
            tempfile::tempdir().expect("empty")
        } else {
            tempfile::tempdir_in(folder.path()).expect("a folder")
        };
        let output = trend(&folder, words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn a_thousand_snapshots_are_read_one_by_one() {
    let folder = folder(0);
    let mut snapshot = snapshot_after(1);
    for minute in 1..=1000 {
        snapshot.taken.at_ns = minute * MINUTE;
        write(folder.path(), &format!("runs/{minute}.json"), &snapshot);
    }
    let names: Vec<String> = (1..=1000).map(|minute| format!("runs/{minute}.json")).collect();
    let words: Vec<&str> = names.iter().map(String::as_str).collect();
    let text = stdout(&trend(&folder, &words));
    assert!(text.starts_with("app: 1,000 snapshots over"), "{text}");
}
