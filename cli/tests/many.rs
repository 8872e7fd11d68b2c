//! Claims about many inputs: they are read one at a time, and progress is shown on a terminal only.

#[path = "../../tests/support/sample.rs"]
mod sample;
#[path = "../../tests/support/terminal.rs"]
mod terminal;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sample::{Sample, leaky};
use tempfile::TempDir;

const CULEAK: &str = env!("CARGO_BIN_EXE_culeak");

/// A folder with this many consecutive snapshots of one process.
fn folder(count: usize) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut snapshot = leaky();
    for nth in 0..count {
        snapshot.taken.at_ns += 1_000_000_000;
        snapshot.taken.at_unix_ns += 1_000_000_000;
        let json = serde_json::to_vec(&snapshot).expect("JSON");
        fs::write(folder.path().join(format!("{nth:05}.culeak")), json).expect("written");
    }
    folder
}

/// `culeak` with a limit of 32 open files.
fn culeak(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -n 32; exec \"$0\" \"$@\"", CULEAK])
        .args(words)
        .env("CULEAK_CACHE_DIR", "")
        .env_remove("LD_PRELOAD")
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

#[test]
fn hundreds_of_inputs_are_reported_and_judged() {
    const COUNT: usize = 300;
    let folder = folder(COUNT);
    let output = |words: &[&str]| culeak(folder.path(), words).output().expect("culeak starts");
    let report = output(&["report", ".", "--per-process"]);
    let text = String::from_utf8_lossy(&report.stdout);
    // Once in each report.
    assert_eq!(text.matches("3 call sites leak").count(), COUNT, "{:?}", report.status);
    assert!(text.starts_with("== ./00000.culeak ==") && text.contains("\n\n== ./00299.culeak ==\n"));
    let reports = output(&["report", ".", "--json", "--per-process"]);
    let reports: serde_json::Value = serde_json::from_slice(&reports.stdout).expect("JSON");
    assert_eq!(reports.as_array().map(Vec::len), Some(COUNT));
    assert_eq!(output(&["check", ".", "--allow", "2GiB"]).status.code(), Some(0));
    assert_eq!(output(&["check", "."]).status.code(), Some(1));
    let trend = output(&["trend", "."]);
    assert!(
        String::from_utf8_lossy(&trend.stdout).contains("300 snapshots"),
        "{trend:?}"
    );
    fs::write(folder.path().join("00007.culeak"), "nonsense").expect("written");
    let report = output(&["report", ".", "--per-process"]);
    assert_eq!(report.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&report.stderr).contains("00007.culeak: not a culeak recording"));
    let text = String::from_utf8_lossy(&report.stdout);
    assert_eq!(text.matches("3 call sites leak").count(), COUNT - 1);
}

#[test]
fn unreadable_files_in_a_folder_are_reported_and_skipped() {
    let folder = folder(3);
    let at = |name: &str| folder.path().join(name);
    let whole = fs::read(at("00000.culeak")).expect("a snapshot");
    fs::write(at("cut.culeak"), &whole[..whole.len() / 2]).expect("written");
    fs::create_dir(at("x.culeak")).expect("a folder");
    fs::write(
        at("clean.culeak"),
        serde_json::to_vec(&Sample::new().finish(0, 0)).expect("JSON"),
    )
    .expect("written");
    let cases: [(&[&str], &str, i32); 8] = [
        // A leak that was seen is one, whatever cannot be read.
        (&["check", "."], "== ./00002.culeak ==", 1),
        (&["check", ".", "--allow", "9GiB"], "== ./clean.culeak ==", 2),
        (&["check", ".", "--format", "junit"], "<testcase", 1),
        (&["report", ".", "--per-process"], "== ./clean.culeak ==", 2),
        (&["report", "."], "not read: 2 inputs", 2),
        (&["report", ".", "-o", ".html"], "</html>", 2),
        (&["export", ".", "--format", "perfetto", "-o", "-"], "still live", 2),
        (&["trend", ".", "--force", "--all"], "Trainer::step", 2),
    ];
    for (words, shown, code) in cases {
        let output = culeak(folder.path(), words).output().expect("culeak starts");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {message}");
        assert!(
            message.contains("./cut.culeak: ") && message.contains("./x.culeak: is a folder"),
            "{words:?}: {message}"
        );
        assert!(
            String::from_utf8_lossy(&output.stdout).contains(shown),
            "{words:?}: {message}"
        );
    }
    let words = ["check", ".", "--baseline", "known.json", "--update-baseline"];
    let refused = culeak(folder.path(), &words).output().expect("culeak starts");
    assert_eq!(refused.status.code(), Some(2));
    assert!(!at("known.json").exists(), "a baseline that lacks a process");
}

#[test]
fn a_diff_without_a_change_names_processes_of_one_side_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut snapshot = leaky();
    for (side, pid) in [("before", 1), ("after", 1), ("after", 2)] {
        fs::create_dir_all(folder.path().join(side)).expect("made");
        snapshot.process.pid = pid;
        let json = serde_json::to_vec(&snapshot).expect("JSON");
        fs::write(folder.path().join(format!("{side}/{pid}.json")), json).expect("written");
    }
    let output = culeak(folder.path(), &["diff", "before", "after"])
        .output()
        .expect("culeak starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.lines().next().unwrap_or_default();
    assert!(
        first.contains(": no change, from ") && first.contains("; 1 process with "),
        "{text}"
    );
    assert!(
        first.ends_with(" only after") && text.contains("next: culeak report after/2.json"),
        "{text}"
    );
}

#[test]
fn one_recording_does_not_hide_those_in_the_folders_below_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let below = folder.path().join("nest/rank0");
    fs::create_dir_all(&below).expect("made");
    let write = |path: &Path, snapshot: &culeak::snapshot::Snapshot| {
        fs::write(path, serde_json::to_vec(snapshot).expect("JSON")).expect("written");
    };
    write(&folder.path().join("nest/clean.culeak"), &Sample::new().finish(0, 9));
    let run = |words: &[&str]| {
        let output = culeak(folder.path(), words).output().expect("culeak starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    assert_eq!(run(&["check", "nest"]).0, Some(0));
    write(&below.join("leak.culeak"), &leaky());
    let (code, said) = run(&["check", "nest"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("nest: has recordings or snapshots itself, so those in the folders below it are left out")
            && said.contains("nest/rank0/leak.culeak"),
        "{said}"
    );
    assert_eq!(run(&["check", "nest/*.culeak"]), (Some(0), String::new()), "as it says");
    assert_eq!(run(&["check", "nest/*.culeak", "nest/rank0"]).0, Some(1));
    let (code, said) = run(&["report", "nest"]);
    assert!(code == Some(0) && said.contains("are left out"), "{said}");
    // A missing rank may be accepted, and does not hide what may not.
    let mut clean = Sample::new().finish(0, 9);
    clean.process.ranks = [
        ("RANK".to_owned(), "0".to_owned()),
        ("WORLD_SIZE".to_owned(), "2".to_owned()),
    ]
    .into();
    write(&folder.path().join("nest/clean.culeak"), &clean);
    let update = [
        "check",
        "nest",
        "--allow-losses",
        "--baseline",
        "known.json",
        "--update-baseline",
    ];
    let (code, said) = run(&update);
    assert!(
        code == Some(2) && said.contains("no baseline written: these inputs"),
        "{said}"
    );
}

#[test]
fn many_verdicts_are_summed_up_with_the_ranks_that_failed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for rank in 0..12_u32 {
        let mut snapshot = leaky();
        snapshot.process.pid = 100 + rank;
        snapshot.process.ranks.insert("RANK".to_owned(), rank.to_string());
        if [3, 8, 9].contains(&rank) {
            snapshot.allocations.change(|_, allocation, _| allocation.bytes *= 2);
        }
        let path = folder.path().join(format!("{rank:02}.culeak"));
        fs::write(path, serde_json::to_vec(&snapshot).expect("JSON")).expect("written");
    }
    let output = |words: &[&str]| culeak(folder.path(), words).output().expect("culeak starts");
    let failed = output(&["check", ".", "--allow", "2GiB"]);
    let text = String::from_utf8_lossy(&failed.stdout);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(
        text.starts_with("failed: 3 of 12 processes, with ") && text.contains("\n  failed: ranks 3, 8-9\n"),
        "{text}"
    );
    assert_eq!(text.matches("== ./").count(), 3, "{text}");
    let passed = output(&["check", ".", "--allow", "9GiB"]);
    let text = String::from_utf8_lossy(&passed.stdout);
    assert!(
        text.starts_with("passed: all of 12 processes, with ") && text.lines().count() == 2,
        "{text}"
    );
    let warning = text.lines().nth(1).unwrap_or_default();
    assert!(
        warning.starts_with("warning: 40 frees were for") && warning.ends_with("(12 processes that passed)"),
        "{text}"
    );
    let report = String::from_utf8_lossy(&output(&["report", "."]).stdout).into_owned();
    assert!(
        report.lines().take(10).any(|line| line.contains("ranks 3, 8-9: ")),
        "{report}"
    );
    fs::remove_file(folder.path().join("05.culeak")).expect("removed");
    let lacking = output(&["check", ".", "--allow", "9GiB"]);
    let text = String::from_utf8_lossy(&lacking.stdout);
    assert!(
        lacking.status.code() == Some(2) && text.contains("cannot be judged: rank 5 has no recording here; "),
        "{text}"
    );
    for accepted in [
        &["check", ".", "--allow-losses", "--allow", "9GiB"][..],
        &["check", "00.culeak", "--allow", "9GiB"],
    ] {
        assert_eq!(output(accepted).status.code(), Some(0), "{accepted:?}");
    }
}

#[test]
fn a_folder_of_snapshots_is_read_like_one_of_recordings() {
    let folder = folder(2);
    fs::rename(folder.path().join("00000.culeak"), folder.path().join("00000.json")).expect("renamed");
    fs::rename(
        folder.path().join("00001.culeak"),
        folder.path().join("app.peak-1.culeak-snapshot"),
    )
    .expect("renamed");
    let cases: [(&[&str], i32); 5] = [
        (&["report", "."], 0),
        (&["check", "."], 1),
        (&["report", ".", "-o", ".html"], 0),
        (&["export", ".", "--format", "perfetto", "-o", "-"], 0),
        (&["trend", "."], 0),
    ];
    for (words, code) in cases {
        let output = culeak(folder.path(), words).output().expect("culeak starts");
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {message}");
    }
}

/// What a command writes to standard error on a terminal, and how long it takes.
fn on_a_terminal(command: Command) -> (String, Duration) {
    let began = Instant::now();
    let text = terminal::on_a_terminal(command, 80, |command, stderr| {
        command.stdout(Stdio::null()).stderr(stderr);
    });
    (text, began.elapsed())
}

#[test]
fn long_work_shows_a_bar_on_a_terminal_and_removes_it() {
    let mut count = 500;
    let (folder, shown) = loop {
        let folder = folder(count);
        let (shown, time) = on_a_terminal(culeak(folder.path(), &["trend", "."]));
        if time > Duration::from_secs(2) {
            break (folder, shown);
        }
        assert_eq!(shown.matches("snapshots").count() > 0, shown.contains('█'), "{shown}");
        count *= 2;
    };
    assert!(
        shown.contains("reading") && shown.contains(&with_commas(count)),
        "{shown}"
    );
    // The line is cleared at the end.
    let last = shown.rfind('█').expect("a bar");
    assert!(shown[last..].contains("\u{1b}[2K"), "{shown:?}");
    let piped = culeak(folder.path(), &["trend", "."]).output().expect("culeak starts");
    let stderr = String::from_utf8_lossy(&piped.stderr);
    assert!(
        !stderr.contains('█') && !stderr.contains("reading") && !stderr.contains('\u{1b}'),
        "{stderr}"
    );
}

/// `2,000`, for numbers below a million.
fn with_commas(count: usize) -> String {
    match count {
        0..1000 => count.to_string(),
        _ => format!("{},{:03}", count / 1000, count % 1000),
    }
}

/// Several snapshots of one process make the job read its inputs again.
#[test]
fn standard_input_is_read_once_if_a_process_has_several_snapshots() {
    let folder = folder(2);
    let mut other = leaky();
    other.process.pid += 1;
    let piped = folder.path().join("other");
    fs::write(&piped, serde_json::to_vec(&other).expect("JSON")).expect("written");
    let output = culeak(
        folder.path(),
        &["report", "00000.culeak", "00001.culeak", "-", "--json"],
    )
    .stdin(fs::File::open(&piped).expect("a file"))
    .output()
    .expect("culeak starts");
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let job: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(job["earlier_snapshots"], 1);
    assert_eq!(job["processes"].as_array().map(Vec::len), Some(2));
}
