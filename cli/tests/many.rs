//! Claims about many inputs: they are read one at a time, and how far that is, is shown on a terminal and nowhere else.

#[path = "../../src/sample.rs"]
mod sample;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::FromRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sample::leaky;
use tempfile::TempDir;

const CULEAK: &str = env!("CARGO_BIN_EXE_culeak");

/// A folder with so many snapshots of one process, one after the other.
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

/// With few open files allowed.
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
fn thousands_of_inputs_are_reported_judged_and_followed() {
    const COUNT: usize = 1_000;
    let folder = folder(COUNT);
    let output = |words: &[&str]| culeak(folder.path(), words).output().expect("culeak starts");
    let report = output(&["report", "."]);
    let text = String::from_utf8_lossy(&report.stdout);
    assert_eq!(text.matches("3 call sites leak").count(), COUNT, "{:?}", report.status);
    assert!(text.starts_with("== ./00000.culeak ==") && text.contains("\n\n== ./00999.culeak ==\n"));
    let reports = output(&["report", ".", "--json"]);
    let reports: serde_json::Value = serde_json::from_slice(&reports.stdout).expect("JSON");
    assert_eq!(reports.as_array().map(Vec::len), Some(COUNT));
    assert_eq!(output(&["check", ".", "--max-leaked", "2GiB"]).status.code(), Some(0));
    assert_eq!(output(&["check", "."]).status.code(), Some(1));
    let trend = output(&["trend", "."]);
    assert!(
        String::from_utf8_lossy(&trend.stdout).contains("1,000 snapshots"),
        "{trend:?}"
    );
    fs::write(folder.path().join("00007.culeak"), "nonsense").expect("written");
    let report = output(&["report", "."]);
    assert_eq!(report.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&report.stderr).contains("00007.culeak: not a culeak recording"));
    let text = String::from_utf8_lossy(&report.stdout);
    assert_eq!(text.matches("3 call sites leak").count(), COUNT - 1);
}

/// What a command writes to standard error when that is a terminal, and how long it takes.
fn on_a_terminal(mut command: Command) -> (String, Duration) {
    let (mut ours, mut theirs) = (0, 0);
    let size = nix::libc::winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the places to write to are two numbers, the size is read, and what is null may be.
    let opened = unsafe { nix::libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size) };
    assert_eq!(opened, 0, "a terminal");
    // SAFETY: both were opened just now, and belong to nobody else.
    let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
    command.env("TERM", "xterm").stdout(Stdio::null()).stderr(theirs);
    let began = Instant::now();
    let mut child = command.spawn().expect("culeak starts");
    // Else our end of theirs keeps it open.
    drop(command);
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    // The end of a terminal is an error.
    while let Ok(count @ 1..) = ours.read(&mut piece) {
        text.extend_from_slice(&piece[..count]);
    }
    child.wait().expect("its end");
    (String::from_utf8_lossy(&text).into_owned(), began.elapsed())
}

#[test]
fn what_takes_long_shows_how_far_it_is_on_a_terminal_and_leaves_no_trace() {
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
    // The line is cleared when all is done.
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
