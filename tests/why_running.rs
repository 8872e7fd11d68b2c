//! `culeak why`, `report --why` and `snapshot --why` of a running process, with its recording.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::interpreters::interpreters;
use crate::support::holders::{Waiting, start};
use crate::support::{culeak, profile, program, sources};

/// A Python program that holds some blocks and waits, its blocks, and their class.
fn quiet() -> (Waiting, Vec<u64>, String) {
    let profile = program(&interpreters()[0].command);
    let script = sources().join("victims/holders/hostile.py");
    let victim = start(&profile.arg("-B").arg(script).arg("quiet"));
    let (class, blocks) = serde_json::from_str(&victim.printed[0]).expect("a class and addresses");
    (victim, blocks, class)
}

fn json(words: &[&str]) -> Value {
    let output = Command::new(culeak())
        .args(words)
        .env("CULEAK_CACHE_DIR", "")
        .stdin(Stdio::null())
        .output()
        .expect("the CLI starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}\n{said}"))
}

fn bytes(value: &Value) -> u64 {
    value["bytes"].as_u64().unwrap_or_else(|| panic!("no bytes in {value}"))
}

fn sum(list: &Value) -> u64 {
    list.as_array().expect("a list").iter().map(bytes).sum()
}

#[test]
fn every_command_has_the_same_answer_for_a_running_process() {
    let (victim, blocks, class) = quiet();
    let pid = victim.pid.to_string();
    let why = json(&["why", &pid, "--json"]);
    let report = json(&["report", &pid, "--why", "--json"]);
    assert_eq!(bytes(&why["total"]), sum(&report["rows"]), "every byte of the report");
    assert_eq!(sum(&why["origins"]), bytes(&why["total"]), "every byte has an answer");
    assert_eq!(sum(&report["held_by"]), bytes(&why["total"]));
    let folder = tempfile::tempdir().expect("a folder");
    let stored = folder.path().join("why.json");
    let stored = stored.to_str().expect("a path in UTF-8");
    let output = Command::new(culeak())
        .args(["snapshot", &pid, "--why", "-o", stored])
        .output();
    assert!(output.expect("the CLI starts").status.success());
    let later = json(&["why", stored, "--json"]);
    assert_eq!(later["origins"], why["origins"], "the snapshot has the answer");
    let address = format!("{:#x}", blocks[0]);
    for source in [&*pid, stored] {
        let one = json(&["why", source, &address, "--json"]);
        assert_eq!(one["block"]["address"].as_u64(), Some(blocks[0]));
        assert_eq!(one["block"]["held"]["class"].as_str(), Some(&*class));
    }
    victim.quit();
}

#[test]
fn a_stopped_process_agrees_with_its_recording() {
    let victim = start(&profile("why").arg("replaces_until_input_ends"));
    let pid = victim.pid.to_string();
    for _ in 0..3 {
        let why = json(&["why", &pid, "--pause", "--json"]);
        assert!(why["search"]["paused_ns"].as_u64() > Some(0), "{}", why["search"]);
        assert_eq!(why["search"]["changed"].as_u64().unwrap_or(0), 0, "{}", why["search"]);
        assert_eq!(why["not_searched"]["bytes"].as_u64().unwrap_or(0), 0);
        assert!(bytes(&why["total"]) >= 60 * 5000);
        assert_eq!(sum(&why["origins"]), bytes(&why["total"]), "every byte has an answer");
        for class in why["classes"].as_array().expect("classes") {
            assert_eq!(class["class"], "held", "{}", why["origins"]);
        }
    }
    victim.kill();
}
