//! Growth of a real process, from automatic snapshots at its marks and from snapshots taken while it runs.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use crate::support::outcome::recordings_in;
use crate::support::process::Started;
use crate::support::profile::folder;
use crate::support::{culeak, profile};

fn json(command: &mut Command) -> Value {
    let output = command.output().expect("culeak starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The class of every call site, by the function that called `leak`.
fn classes(trend: &Value) -> BTreeMap<&str, &str> {
    let rows = trend["rows"].as_array().expect("rows");
    let classes = rows.iter().map(|row| {
        let function = row["site"]["stack"][1]["function"].as_str().expect("a caller");
        (function, row["class"].as_str().expect("a class"))
    });
    classes.collect()
}

#[test]
fn snapshots_at_marks_distinguish_leaks_from_caches_and_periodic_use() {
    let outcome = profile("grows")
        .arg("steps")
        .setting("CULEAK_SNAPSHOT_AT_MARK", "1")
        .run();
    outcome.expect_success();
    let trend = json(
        Command::new(culeak())
            .args(["trend", "--by", "stack", "--against", "marks", "--all", "--json"])
            .arg(outcome.out()),
    );
    assert_eq!(
        trend["points"].as_array().map(Vec::len),
        Some(25),
        "24 marks and the end"
    );
    assert_eq!(trend["against"], "marks");
    assert_eq!(
        classes(&trend),
        BTreeMap::from([
            ("batch", "periodic"),
            ("cached", "grew_then_bounded"),
            ("forgotten", "growing"),
            ("model", "steady"),
            ("tidied", "freed_only_at_exit"),
        ])
    );
    let growing = trend["rows"]
        .as_array()
        .and_then(|rows| rows.iter().find(|row| row["class"] == "growing"))
        .expect("a growing site");
    assert_eq!(growing["bytes"]["pace"], f64::from(1 << 20), "a mark");
    assert_eq!(growing["bytes"]["at_end"], 24 << 20);
    assert_eq!(growing["bytes"]["steps"]["up"], 23);
}

#[test]
fn a_recording_includes_the_automatic_snapshots_beside_it() {
    let outcome = profile("grows")
        .arg("steps")
        .setting("CULEAK_SNAPSHOT_AT_MARK", "1")
        .run();
    let trend = json(
        Command::new(culeak())
            .args(["trend", "--json"])
            .arg(&recordings_in(&outcome.out())[0]),
    );
    assert_eq!(trend["points"].as_array().map(Vec::len), Some(25));
}

/// Starts to watch, and returns after the first snapshot: the watcher then prints a line and waits for the second.
fn watch(victim: &Started, options: &[&str]) -> (Child, ChildStderr) {
    let mut watcher = Command::new(culeak())
        .arg("trend")
        .args(options)
        .args(["--pid", &victim.child.id().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("culeak starts");
    let mut stderr = watcher.stderr.take().expect("a pipe");
    let mut byte = [0];
    while byte != *b"\n" {
        stderr.read_exact(&mut byte).expect("it prints a line");
    }
    (watcher, stderr)
}

#[test]
fn a_running_process_is_watched_from_outside_to_its_end() {
    let folder = folder();
    let mut victim = profile("grows").arg("on_and_on").start_in(folder.path());
    let mut stdout = victim.stdout();
    let mut step = |victim: &mut Started| {
        victim
            .child
            .stdin
            .as_mut()
            .expect("a pipe")
            .write_all(b"x")
            .expect("its stdin is open");
        stdout.read_exact(&mut [0]).expect("the victim answers");
    };
    step(&mut victim);
    let (watcher, mut stderr) = watch(&victim, &["--every", "1ms", "--json", "--by", "stack"]);
    for _ in 0..200 {
        step(&mut victim);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // The victim ends at the end of its input.
    victim.finish();
    let output = watcher.wait_with_output().expect("it ends");
    let mut stderr_text = String::new();
    stderr.read_to_string(&mut stderr_text).expect("text");
    assert!(stderr_text.contains("has ended"), "{stderr_text}");
    let trend: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr_text}"));
    let row = &trend["rows"][0];
    assert_eq!(
        (&row["site"]["stack"][1]["function"], &row["bytes"]["steps"]["down"]),
        (&Value::from("forgotten"), &Value::from(0))
    );
    assert_eq!(trend["processes"][0]["finished"], true);
    assert_eq!(
        row["bytes"]["at_end"],
        Value::from(202_u64 << 20),
        "the snapshot at its end"
    );
}

#[test]
fn a_process_that_can_no_longer_be_read_is_an_error_with_its_reason_beside_the_trend_so_far() {
    let folder = folder();
    let mut victim = profile("grows").arg("on_and_on").start_in(folder.path());
    victim.stdout().read_exact(&mut [0]).expect("it has started");
    let (watcher, mut stderr) = watch(&victim, &["--every", "1ms"]);
    let recording = recordings_in(&folder.path().join("out")).remove(0);
    std::fs::remove_file(&recording).expect("removed");
    let output = watcher.wait_with_output().expect("it ends");
    let mut said = String::new();
    stderr.read_to_string(&mut said).expect("text");
    assert_eq!(output.status.code(), Some(2), "{said}");
    for expected in [
        "culeak: error: snapshot ".to_owned(),
        format!(
            " cannot be taken: process {}: its recording {}",
            victim.child.id(),
            recording.display()
        ),
        " was deleted while in use; restart the program; the trend ends with the ".to_owned(),
    ] {
        assert!(said.contains(&expected), "{expected}: {said}");
    }
    assert!(!said.contains("has ended"), "{said}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("snapshot"),
        "the trend so far"
    );
    victim.kill();
    victim.finish();
}

#[test]
fn ctrl_c_prints_the_report_so_far() {
    let folder = folder();
    let mut victim = profile("grows").arg("on_and_on").start_in(folder.path());
    let mut stdout = victim.stdout();
    stdout.read_exact(&mut [0]).expect("it has started");
    let (watcher, _stderr) = watch(&victim, &["--every", "1h"]);
    let id = nix::unistd::Pid::from_raw(watcher.id().cast_signed());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGINT).expect("it lives");
    let output = watcher.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 snapshot over") && text.contains("too few snapshots"),
        "{text}"
    );
    victim.kill();
    victim.finish();
}
