//! `culeak why`, `report --why` and `snapshot --why` of a running process, with its recording.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use culeak_holders::source::live::Process;
use culeak_holders::{Deadline, objects, pytorch};
use serde_json::Value;

use crate::interpreters::recorded;
use crate::support::holders::{Waiting, start};
use crate::support::{culeak, profile, program, sources};

mod unrecorded;

/// A Python program that holds some blocks and waits, its blocks, and their class.
fn quiet() -> (Waiting, Vec<u64>, String) {
    case("quiet")
}

/// A case of `victims/holders/hostile.py`.
fn case(name: &str) -> (Waiting, Vec<u64>, String) {
    let profile = program(&recorded()[0].command);
    let script = sources().join("victims/holders/hostile.py");
    let victim = start(&profile.arg("-B").arg(script).arg(name));
    let (class, blocks) = serde_json::from_str(&victim.printed[0]).expect("a class and addresses");
    (victim, blocks, class)
}

pub fn json(words: &[&str]) -> Value {
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
#[ignore = "needs ptrace"]
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

#[test]
fn the_host_memory_of_holders_is_what_is_freed_with_them() {
    let (victim, ..) = case("host");
    let pid = victim.pid.to_string();
    let why = json(&["why", &pid, "--host", "--json"]);
    let host = |name: &str| {
        let retainers = lists(&why["retainers"]).iter();
        let mut of_name = retainers.filter(|row| row["name"].as_str().is_some_and(|of| of.starts_with(name)));
        let one = of_name.next().map(|row| row["host_bytes"].as_u64().unwrap_or(0));
        assert!(of_name.next().is_none(), "{name}: {}", why["retainers"]);
        one
    };
    // The contents, and at most a twentieth for objects and arrays.
    for (name, bytes) in [
        ("__main__.layers", 4 * 50 * 100_000),
        ("__main__.history", 3000 * 10_000),
        ("__main__.table", 1000 * 8000),
        ("__main__.buffers", 10 << 20),
        ("__main__.pinned", 3 * (2 << 20)),
        ("__main__.registered", 4 << 20),
        ("__main__.views", 2 << 20),
    ] {
        let found = host(name).unwrap_or_else(|| panic!("{name}: {}", why["retainers"]));
        assert!(
            (bytes..bytes + bytes / 20).contains(&found),
            "{name}: {found} of {bytes}"
        );
    }
    // Dropping one of two variables frees nothing.
    let shared = lists(&why["retainers"])
        .iter()
        .find(|row| row["name"] == "__main__.first (list of 1000)");
    let shared = shared.unwrap_or_else(|| panic!("{}", why["retainers"]));
    assert_eq!(shared["also"][0], "__main__.second", "{shared}");
    assert!(shared["host_bytes"].as_u64() > Some(20_000_000), "{shared}");
    let names: Vec<&str> = lists(&why["retainers"])
        .iter()
        .filter_map(|row| row["name"].as_str())
        .collect();
    assert!(names[0].starts_with("__main__.history"), "{names:?}");
    let of = &why["search"]["host"];
    expect_parts_of_resident(of);
    let in_use = of["malloc_bytes"].as_u64().unwrap_or(0) + of["python_bytes"].as_u64().unwrap_or(0);
    assert!(in_use > 80_000_000, "{of}");
    let by_type = |name: &str| {
        let rows = lists(&of["types"]).iter();
        rows.filter(|row| row["name"] == name).map(bytes).sum::<u64>()
    };
    // Of the texts, of the arrays of the lists in a dictionary, and beside an object.
    for (name, bytes) in [("bytes", 70_000_000), ("list", 1000 * 8000), ("bytearray", 10 << 20)] {
        let found = by_type(name);
        assert!(
            (bytes..bytes + bytes / 4).contains(&found),
            "{name}: {found} of {bytes}"
        );
    }
    let typed = sum(&of["types"]);
    assert!(typed <= in_use && typed > in_use / 100 * 95, "{typed} of {in_use}");
    assert_eq!(sum(&of["arenas"]), of["malloc_bytes"].as_u64().expect("bytes"));
    for (by, part) in [
        ("type", "bytearray"),
        ("arena", "malloc: main arena"),
        ("arena", "Python's heap"),
    ] {
        let output = Command::new(culeak())
            .args(["why", &pid, "--host", "--by", by])
            .output();
        let text = String::from_utf8(output.expect("the CLI starts").stdout).expect("text");
        assert!(text.contains(part), "{text}");
    }
    victim.quit();
}

fn expect_parts_of_resident(host: &Value) {
    let all = host.as_object().expect("parts").iter();
    let parts: u64 = all
        .filter(|(name, _)| *name != "resident_bytes")
        .filter_map(|(_, bytes)| bytes.as_u64())
        .sum();
    assert_eq!(host["resident_bytes"].as_u64(), Some(parts), "{host}");
}

#[test]
fn a_process_of_which_no_block_is_known_is_asked_for_its_host_memory() {
    expect_host_memory_of_a_process_without_blocks(&["--host"]);
}

#[test]
#[ignore = "needs ptrace"]
fn a_stopped_process_of_which_no_block_is_known_is_asked_for_its_host_memory() {
    expect_host_memory_of_a_process_without_blocks(&["--host", "--pause"]);
}

fn expect_host_memory_of_a_process_without_blocks(options: &[&str]) {
    let script = "kept = [b'x' * size for size in [10_000] * 3000]\nprint(0, 0)\nprint('ready', flush=True)\ninput()";
    let (mut child, _) = ready(Command::new("python3").args(["-c", script]));
    let pid = child.id().to_string();
    let asked = |options: &[&str]| {
        Command::new(culeak())
            .args(["why", &pid])
            .args(options)
            .output()
            .expect("the CLI starts")
    };
    let refused = asked(&[]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("without a recording"));
    let output = asked(options);
    let (text, said) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        text.contains("no GPU memory is known to be held")
            && text.contains(&format!("next: culeak why {pid} --host --by type"))
            && text.contains("__main__.kept (list of 3000)"),
        "{text}{said}"
    );
    assert!(said.contains("its GPU memory is not known"), "{said}");
    let by = String::from_utf8(asked(&["--by", "type"]).stderr).expect("text");
    assert!(by.contains("add --host"), "{by}");
    drop(child.stdin.take());
    child.wait().expect("ended");
}

#[test]
fn what_grew_in_a_process_that_was_never_recorded_is_named_by_holder_type_and_arena() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = sources().join("victims/unrecorded_rmm.py");
    let mut program = Command::new("python3");
    program
        .arg(script)
        .arg(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = program.spawn().expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut until = |wanted: &str| while lines.next().expect("a line").expect("text") != wanted {};
    until("ready");
    let (pid, before) = (child.id().to_string(), folder.path().join("before.json"));
    let before = before.to_str().expect("a path in UTF-8");
    let output = Command::new(culeak())
        .args(["snapshot", &pid, "--why", "--host", "-o", before])
        .output();
    assert!(output.expect("the CLI starts").status.success());
    child
        .stdin
        .as_mut()
        .expect("piped")
        .write_all(b"grow\n")
        .expect("written");
    until("grown");
    let diff = json(&["diff", before, &pid, "--host", "--json"]);
    let grown = lists(&diff["rows"]).iter().filter(|row| row["state"] != "unchanged");
    let grown: Vec<String> = grown
        .map(|row| format!("{}: {}", row["label"].as_str().expect("a label"), row["bytes_delta"]))
        .collect();
    assert_eq!(grown, ["__main__.kept: 20480"]);
    // A part of the new objects may lie in memory that the arena had, free but resident.
    for (list, name, least) in [
        ("holders", "__main__.history", 30_000_000),
        ("types", "bytes", 30_000_000),
        ("arenas", "malloc: main arena", 20_000_000),
    ] {
        let row = &diff["host"][list][0];
        let delta = row["bytes_delta"].as_u64().unwrap_or(0);
        assert!(
            row["name"] == name && (least..33_000_000).contains(&delta),
            "{list}: {}",
            diff["host"][list]
        );
    }
    let text = Command::new(culeak()).args(["diff", before, &pid, "--host"]).output();
    let text = String::from_utf8(text.expect("the CLI starts").stdout).expect("text");
    assert!(
        text.contains("host memory grew by") && text.contains("by arena"),
        "{text}"
    );
    drop(child.stdin.take());
    child.wait().expect("ended");
}

#[test]
fn host_memory_is_read_from_a_process_or_a_core_file() {
    let recorded = profile("threads").arg("created_and_gone").run();
    let recording = recorded.recordings[0].to_str().expect("a path in UTF-8");
    let output = Command::new(culeak()).args(["why", recording, "--host"]).output();
    let said = String::from_utf8_lossy(&output.expect("the CLI starts").stderr).into_owned();
    assert!(said.contains("name the process id"), "{said}");
}

fn count(value: &Value) -> u64 {
    value["count"].as_u64().unwrap_or_else(|| panic!("no count in {value}"))
}

#[test]
fn a_failed_check_of_a_running_process_names_what_holds_the_memory() {
    let (victim, ..) = quiet();
    let pid = victim.pid.to_string();
    let check = |words: &[&str]| {
        let output = Command::new(culeak()).args(["check", &pid]).args(words).output();
        let output = output.expect("the CLI starts");
        (
            output.status.code(),
            String::from_utf8(output.stdout).expect("text"),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let report = json(&["report", &pid, "--why", "--json"]);
    let holder = report["held_by"][0]["holders"][0]["origin"].as_str().expect("a holder");
    let (code, text, messages) = check(&["--allow", "1"]);
    assert!(code == Some(1) && text.contains(holder), "{holder}\n{text}{messages}");
    let (code, text, messages) = check(&["--allow", "1TiB", "--json"]);
    assert!(code == Some(0), "{text}{messages}");
    let passed: Value = serde_json::from_str(&text).expect("JSON");
    assert!(passed.get("held_by").is_none(), "it is not searched: {text}");
}

fn lists(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

#[test]
fn every_block_is_in_exactly_one_row_of_every_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["quiet", "steps", "shared", "moving"] {
        let (victim, ..) = case(name);
        let pid = victim.pid.to_string();
        let stored = folder.path().join(format!("{name}.json"));
        let stored = stored.to_str().expect("a path in UTF-8");
        let output = Command::new(culeak())
            .args(["snapshot", &pid, "--why", "-o", stored])
            .env("CULEAK_CACHE_DIR", "")
            .output();
        assert!(output.expect("the CLI starts").status.success(), "{name}");
        // All surfaces read this one answer.
        let why = json(&["why", stored, "--json"]);
        let report = json(&["report", stored, "--json"]);
        let rows = lists(&report["rows"]).iter();
        assert_eq!(
            count(&why["total"]),
            rows.map(count).sum::<u64>(),
            "{name}: what a report lists"
        );
        let of_list = |key: &str| lists(&why[key]).iter().map(count).sum::<u64>();
        let pools = why["pools"].as_object().expect("pools").values();
        let pools: u64 = pools.map(|pool| count(&pool["unknown"])).sum();
        let rest = count(&why["changed"]) + count(&why["not_searched"]) + pools;
        assert_eq!(of_list("classes") + rest, count(&why["total"]), "{name}: classes");
        assert_eq!(of_list("origins") + rest, count(&why["total"]), "{name}: origins");
        assert_eq!(sum(&report["held_by"]), bytes(&why["total"]), "{name}: call sites");
        let outermost = lists(&why["retainers"]).iter().filter(|node| node["depth"] == 0);
        let retained: u64 = outermost.map(count).sum::<u64>() + count(&why["unretained"]);
        let classes = lists(&why["classes"]).iter();
        let in_tree = classes.filter(|class| ["held", "cycle"].contains(&class["class"].as_str().expect("a class")));
        assert_eq!(retained, in_tree.map(count).sum::<u64>(), "{name}: the tree");
        victim.kill();
    }
}

#[test]
fn what_two_variables_hold_is_said_to_be_freed_by_both() {
    let (victim, ..) = case("shared");
    let output = Command::new(culeak())
        .args(["why", &victim.pid.to_string()])
        .env("CULEAK_CACHE_DIR", "")
        .output();
    let text = String::from_utf8(output.expect("the CLI starts").stdout).expect("text");
    for part in [
        "__main__.first (list of 8); dropping it alone frees nothing",
        "also held by __main__.second",
        "held by 2, only with all of them: __main__.first (list of 8), __main__.second",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    victim.quit();
}

/// Starts a program that was never recorded, and reads the count and the bytes of its blocks.
fn ready(command: &mut Command) -> (std::process::Child, [u64; 2]) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let numbers = lines.next().expect("a line").expect("text");
    let numbers: Vec<u64> = (numbers.split(' '))
        .map(|number| number.parse().expect("a number"))
        .collect();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    (child, [numbers[0], numbers[1]])
}
