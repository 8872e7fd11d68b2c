//! The ledger of a running process: the driver's numbers are read from outside, and stored in the snapshot.
//!
//! A library with NVML's name stands in for the driver's side (`victims/nvml.c`).

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use culeak::kind::Kind;
use culeak::reader::read;
use serde_json::Value;

use crate::segments::{victim, with_kernel};
use crate::support::process::Started;
use crate::support::profile::{fake_driver_folder, folder};
use crate::support::{Lookup, Profile, culeak, library, profile, victim as built};

const MIB: i64 = 1 << 20;

/// A process that holds 4096 bytes until its stdin closes.
fn waiting(folder: &Path) -> Started {
    waits(profile("endings").arg("waits"), folder)
}

fn waits(profile: Profile, folder: &Path) -> Started {
    let mut running = profile.start_in(folder);
    let mut line = String::new();
    BufReader::new(running.stdout())
        .read_line(&mut line)
        .expect("the victim prints a line");
    assert_eq!(line, "ready\n");
    running
}

/// `culeak` with the stand-in for NVML in its library path.
fn with_nvml(words: &[&str]) -> Command {
    let nvml = library("nvml", "libnvidia-ml.so.1", &[], &[]);
    let mut command = Command::new(culeak());
    command
        .args(words)
        .env("LD_LIBRARY_PATH", nvml.parent().expect("a folder"));
    command
}

fn json(command: &mut Command) -> Value {
    let output = command.output().expect("the CLI starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// `what` and bytes of the only device's lines.
fn lines(ledger: &Value) -> Vec<(&str, i64)> {
    let lines = ledger["devices"][0]["lines"].as_array().expect("lines").iter();
    lines
        .map(|line| {
            (
                line["what"].as_str().expect("a word"),
                line["bytes"].as_i64().expect("bytes"),
            )
        })
        .collect()
}

#[test]
fn the_ledger_lists_the_bytes_that_the_driver_counts_and_the_rest_is_unexplained() {
    let folder = folder();
    let running = waiting(folder.path());
    let pid = running.child.id().to_string();
    let mut report = with_nvml(&["report", &pid, "--json"]);
    report.env("NVML_USED", (700 * MIB).to_string());
    report
        .env("NVML_PID", &pid)
        .env("NVML_OWN", (520 * MIB + 4096).to_string());
    let ledger = json(&mut report)["ledger"].take();
    assert_eq!(
        lines(&ledger),
        [
            ("program", 4096),
            ("context", 520 * MIB),
            ("other_processes", 100 * MIB)
        ]
    );
    assert_eq!(ledger["devices"][0]["unexplained"], 80 * MIB - 4096);
    assert_eq!(ledger["source"], "NVML 580.65.06");
    running.finish();
}

#[test]
fn more_is_unexplained_if_the_driver_does_not_know_the_process() {
    let folder = folder();
    let running = waiting(folder.path());
    let pid = running.child.id().to_string();
    let mut report = with_nvml(&["report", &pid, "--view", "ledger"]);
    report.env("NVML_USED", (700 * MIB).to_string());
    let mut text = String::new();
    for (limit, limits) in [
        ("NVML_LIMIT", "the limit of its control group is 2 GiB\n"),
        (
            "NVML_SOFT_LIMIT",
            "the limit of its control group is 2 GiB, the soft limit 2 GiB\n",
        ),
    ] {
        let output = report.env(limit, (2048 * MIB).to_string()).output();
        text = String::from_utf8(output.expect("the CLI starts").stdout).expect("text");
        let line = format!("700 MiB of 80 GiB used (NVML 580.65.06); {limits}");
        assert!(text.contains(&line), "{text}");
    }
    assert!(
        text.contains("unexplained, contexts and other processes included"),
        "{text}"
    );
    running.finish();
}

#[test]
fn a_snapshot_stores_the_drivers_numbers_for_later_reports() {
    let folder = folder();
    let running = waiting(folder.path());
    let pid = running.child.id().to_string();
    let file = folder.path().join("now.json");
    let file = file.to_str().expect("a plain path");
    let mut snapshot = with_nvml(&["snapshot", &pid, "-o", file]);
    snapshot.env("NVML_USED", (30 * MIB).to_string());
    assert!(snapshot.status().expect("the CLI starts").success());
    running.finish();
    let ledger = json(Command::new(culeak()).args(["report", file, "--json"]))["ledger"].take();
    assert_eq!(ledger["devices"][0]["driver"]["used_bytes"], 30 * MIB);
    assert_eq!(ledger["missing"], Value::Null);
}

#[test]
fn an_out_of_memory_snapshot_names_the_limit_of_the_control_group() {
    let folder = folder();
    let running = waits(profile("endings").arg("waits_without_memory"), folder.path());
    let entries = std::fs::read_dir(folder.path().join("out")).expect("readable");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let snapshot = paths.find(|path| path.to_string_lossy().contains(".out-of-memory-"));
    let snapshot = snapshot.expect("a snapshot").to_string_lossy().into_owned();
    let first_line = || {
        let mut report = with_nvml(&["report", &snapshot]);
        let output = report.env("NVML_SOFT_LIMIT", (2048 * MIB).to_string()).output();
        let text = String::from_utf8(output.expect("the CLI starts").stdout).expect("text");
        text.lines().next().expect("a line").to_owned()
    };
    let limit = "; the soft limit of its control group is 2 GiB";
    let line = first_line();
    assert!(line.starts_with("out of memory: ") && line.ends_with(limit), "{line}");
    running.finish();
    // The group of a process that has ended is not known to a later reader; `culeak run` is in the same one.
    let line = first_line();
    assert!(line.starts_with("out of memory: ") && !line.contains("limit"), "{line}");
    let mut run = with_nvml(&["run", "-o", folder.path().to_str().expect("a path in UTF-8"), "--"]);
    let libraries = [
        library("nvml", "libnvidia-ml.so.1", &[], &[]).with_file_name(""),
        fake_driver_folder(),
    ];
    let output = run
        .arg(built("endings", Lookup::Linked))
        .arg("waits_without_memory")
        .env("LD_LIBRARY_PATH", std::env::join_paths(libraries).expect("paths"))
        .env("NVML_SOFT_LIMIT", (2048 * MIB).to_string())
        .stdin(std::process::Stdio::null())
        .output();
    let said = String::from_utf8(output.expect("the CLI starts").stderr).expect("text");
    let mut notes = said.lines().filter(|line| line.contains("automatic snapshot"));
    assert!(
        notes.any(|line| line.contains(&format!("{limit}; next: culeak report "))),
        "{said}"
    );
}

#[test]
fn of_a_process_that_cannot_be_read_without_a_recording_nvml_knows_the_sum() {
    let mut sleeper = Command::new("sleep").arg("1000").spawn().expect("started");
    let pid = sleeper.id().to_string();
    let mut report = with_nvml(&["report", &pid]);
    let known = report
        .env("NVML_PID", &pid)
        .env("NVML_OWN", (520 * MIB).to_string())
        .output();
    let unknown = with_nvml(&["report", &pid]).output();
    let said = |output: std::io::Result<std::process::Output>| {
        String::from_utf8(output.expect("the CLI starts").stderr).expect("text")
    };
    let (known, unknown) = (said(known), said(unknown));
    sleeper.kill().expect("running");
    sleeper.wait().expect("ended");
    assert!(
        known.contains("it uses none of them; NVML counts 520 MiB for it"),
        "{known}"
    );
    assert!(unknown.contains("it uses none of them\n"), "{unknown}");
}

#[test]
fn without_nvml_the_ledger_lists_the_records_and_gives_the_reason() {
    let folder = folder();
    let running = waiting(folder.path());
    let pid = running.child.id().to_string();
    let nowhere = folder.path().join("nvml-is-not-here");
    let mut report = Command::new(culeak());
    report.args(["report", &pid, "--json"]).env("LD_LIBRARY_PATH", nowhere);
    let ledger = json(&mut report)["ledger"].take();
    assert_eq!(lines(&ledger), [("program", 4096)]);
    let missing = ledger["missing"].as_str().expect("a reason");
    // A machine with a GPU has a real NVML, which does not know the fake driver's device.
    assert!(
        missing.contains("libnvidia-ml.so.1") || missing.contains("nvml"),
        "{missing}"
    );
    running.finish();
}

#[test]
fn tensors_are_listed_and_the_rest_of_their_segment_is_cached_memory() {
    let mut profile = profile("tensors").arg("leaks");
    for library in crate::tensors::torch(1, &[]) {
        profile = profile.arg(library);
    }
    let outcome = profile.run();
    let recording = crate::support::outcome::recordings_in(&outcome.out()).remove(0);
    let report = json(&mut with_nvml(&[
        "report",
        recording.to_str().expect("a plain path"),
        "--json",
    ]));
    let tensors = 1024 + 2048 + 100_352;
    assert_eq!(
        lines(&report["ledger"]),
        [("blocks", tensors), ("cached", 2 * MIB - tensors)]
    );
    assert_eq!(report["totals"]["held"]["blocks"]["bytes"], tensors);
    assert_eq!(
        report["totals"]["device"]["bytes"],
        2 * MIB,
        "what the driver allocated"
    );
    let labels: Vec<_> = report["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| &row["bytes"])
        .collect();
    assert_eq!(labels, [&Value::from(tensors)], "each byte is listed once");
}

#[test]
fn the_ledger_of_a_finished_process_lists_the_records_only() {
    let outcome = profile("endings").arg("frees_in_destructor").run();
    let recording = crate::support::outcome::recordings_in(&outcome.out()).remove(0);
    let mut report = with_nvml(&["report", recording.to_str().expect("a plain path"), "--json"]);
    let ledger = json(&mut report)["ledger"].take();
    assert_eq!(lines(&ledger), [("program", 101)]);
    assert!(
        ledger["missing"]
            .as_str()
            .is_some_and(|why| why.contains("the process has ended")),
        "{ledger}"
    );
}

/// The line of the only device with these words.
fn line<'j>(ledger: &'j Value, what: &str) -> &'j Value {
    let lines = ledger["devices"][0]["lines"].as_array().expect("lines").iter();
    let mut found = lines.filter(|line| line["what"] == what);
    found.next().unwrap_or_else(|| panic!("no line {what} in {ledger:#}"))
}

#[test]
fn what_the_kernel_driver_gave_is_divided_and_the_sum_is_its_own() {
    let outcome = victim("everything").run();
    let printed = outcome.stdout.lines().find_map(|line| line.strip_prefix("KERNEL "));
    let own: i64 = printed
        .and_then(|sums| sums.split(' ').next())
        .expect("a sum")
        .parse()
        .expect("bytes");
    let recording = crate::support::outcome::recordings_in(&outcome.out()).remove(0);
    let recording = recording.to_str().expect("a plain path");
    let ledger = json(&mut with_nvml(&["report", recording, "--json"]))["ledger"].take();
    let linear = 2 * (600 << 10);
    // The two blocks lie in one page or in two.
    let rounding = line(&ledger, "rounding")["bytes"].as_i64().expect("bytes");
    assert!([2 * MIB, 4 * MIB].contains(&(rounding + linear)), "{ledger:#}");
    assert_eq!(
        lines(&ledger),
        [
            ("program", linear + 1000),
            ("rounding", rounding),
            ("cuda_pools", 32 * MIB - 1000),
            ("local_memory", 414 * MIB),
            ("streams", 4 * MIB),
            ("graph_execs", 2 * MIB),
            ("context", 104 * MIB),
        ],
        "{ledger:#}"
    );
    assert_eq!(ledger["devices"][0]["process"]["bytes"], own);
    assert_eq!(ledger["devices"][0]["known"], own);
    let process = &ledger["devices"][0]["process"];
    let at_peak = process["at_peak"].as_array().expect("parts").iter();
    let at_peak: i64 = at_peak.map(|part| part["bytes"].as_i64().expect("bytes")).sum();
    assert_eq!(process["peak_bytes"], at_peak, "{process:#}");
    assert!(at_peak > own, "a block and a module were given back: {process:#}");
    assert_eq!(ledger["segments_missing"], Value::Null);
    let local = &line(&ledger, "local_memory")["parts"][0];
    assert_eq!(local["call"], "cuDevicePrimaryCtxRetain");
    let streams = line(&ledger, "streams");
    assert_eq!(
        (&streams["count"], &streams["destroyed"]),
        (&Value::from(3), &Value::from(1))
    );
    assert_eq!(line(&ledger, "rounding")["parts"][0]["name"], "leak");
    let lines = ledger["devices"][0]["lines"].as_array().expect("lines").iter();
    assert!(lines.into_iter().all(|line| line["exact"] == true), "{ledger:#}");
    let text = Command::new(culeak())
        .args(["report", recording, "--view", "ledger"])
        .output()
        .expect("the CLI starts");
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(
        text.contains("the context itself: cuDevicePrimaryCtxRetain in "),
        "{text}"
    );
}

/// A copy of a recording whose driver is a file that does not exist: as on another machine.
fn without_the_driver(recording: &Path) -> std::path::PathBuf {
    let path = read(recording).expect("a recording").modules;
    let driver = path.iter().find(|module| module.path.ends_with("libcuda.so.1"));
    let path = driver.expect("the driver").path.clone();
    let mut bytes = std::fs::read(recording).expect("the recording");
    let places: Vec<usize> = (0..bytes.len() - path.len())
        .filter(|&at| &bytes[at..at + path.len()] == path.as_bytes())
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + 2].copy_from_slice(b"/-");
    }
    let copy = recording.with_file_name("elsewhere.culeak");
    std::fs::write(&copy, bytes).expect("a copy");
    copy
}

#[test]
fn a_recording_is_divided_where_the_drivers_library_is_missing() {
    let outcome = victim("everything").run();
    let recording = crate::support::outcome::recordings_in(&outcome.out()).remove(0);
    let of = |recording: &Path| {
        let recording = recording.to_str().expect("a plain path");
        json(&mut with_nvml(&["report", recording, "--json"]))["ledger"]["devices"].take()
    };
    let elsewhere = without_the_driver(&recording);
    let (here, there) = (of(&recording), of(&elsewhere));
    assert_eq!(here, there);
    let lines = there[0]["lines"].as_array().expect("lines");
    assert!(lines.iter().any(|line| line["what"] == "streams"), "{there:#}");
    let snapshot = read(&elsewhere).expect("a recording");
    let calls: std::collections::BTreeSet<&str> = (snapshot.locations.iter())
        .filter(|location| location.language.is_native())
        .flat_map(|location| &location.symbols)
        .map(|symbol| symbol.function.as_str())
        .collect();
    assert_eq!(
        calls.into_iter().collect::<Vec<_>>(),
        [
            "cuDevicePrimaryCtxRetain",
            "cuGraphInstantiateWithFlags",
            "cuMemAllocAsync",
            "cuMemAlloc_v2",
            "cuMemHostAlloc",
            "cuModuleLoadData",
            "cuStreamCreate",
        ]
    );
}

#[test]
fn each_of_cudas_pools_has_a_row_with_the_line_that_created_it() {
    let outcome = victim("pools").run();
    let recording = crate::support::outcome::recordings_in(&outcome.out()).remove(0);
    let recording = recording.to_str().expect("a plain path");
    let ledger = json(&mut with_nvml(&["report", recording, "--json"]))["ledger"].take();
    let pools = line(&ledger, "cuda_pools")["pools"].as_array().expect("pools");
    let row = |pool: &Value| {
        let number = |name: &str| pool[name].as_i64().expect("a number");
        let of = pool["of"].as_str().expect("a word").to_owned();
        let name = pool["name"].as_str().map(str::to_owned);
        (of, name, number("bytes"), number("live_bytes"), number("blocks"))
    };
    let mut rows: Vec<_> = pools.iter().map(row).collect();
    rows.sort_by_key(|row| std::cmp::Reverse((row.2, row.3)));
    let named = |of: &str, name: Option<&str>| (of.to_owned(), name.map(str::to_owned));
    let expected = [
        (named("program", Some("make_pool")), 64 * MIB, 40 * MIB + 1000, 2),
        (named("program", None), 32 * MIB, 2000, 1),
        (named("device", None), 32 * MIB, 330, 2),
    ];
    let expected: Vec<_> = (expected.into_iter())
        .map(|((of, name), bytes, live, blocks)| (of, name, bytes, live, blocks))
        .collect();
    assert_eq!(rows, expected, "{ledger:#}");
    let report = Command::new(culeak())
        .args(["report", recording, "--view", "ledger"])
        .output();
    let text = String::from_utf8(report.expect("the CLI starts").stdout).expect("text");
    let kept = pools.iter().find(|pool| pool["name"] == "make_pool").expect("a pool");
    let handle = kept["handle"].as_u64().expect("a handle");
    let expected = format!("24 MiB  pool {handle:#x} of make_pool  segments.c:");
    assert!(text.contains(&expected), "{text}");
    assert!(text.contains(": 64 MiB in 2 chunks, 40 MiB in 2 live blocks"), "{text}");
    assert!(
        text.contains("32 MiB  default pool: 32 MiB in 1 chunk, 330 B in 2 live blocks"),
        "{text}"
    );
    assert!(text.contains("32 MiB  destroyed pool 0x"), "{text}");
}

#[test]
fn the_sum_of_a_running_process_is_the_drivers_figure_and_nothing_is_unexplained() {
    let folder = folder();
    let running = waits(with_kernel(profile("endings").arg("waits")), folder.path());
    let pid = running.child.id().to_string();
    let mut report = with_nvml(&["report", &pid, "--json"]);
    let own = 14 * MIB + 384 * 1024;
    report.env("NVML_USED", (620 * MIB + own).to_string());
    report.env("NVML_PID", &pid).env("NVML_OWN", (520 * MIB).to_string());
    let ledger = json(&mut report)["ledger"].take();
    assert_eq!(
        lines(&ledger),
        [
            ("program", 4096),
            ("rounding", 2 * MIB - 4096),
            ("local_memory", 414 * MIB),
            ("context", 104 * MIB),
            ("other_processes", 100 * MIB),
            ("driver_contexts", 11 * MIB + 128 * 1024),
            ("driver_device", 3 * MIB + 256 * 1024),
        ]
    );
    assert_eq!(ledger["devices"][0]["process"]["difference"], 0);
    assert_eq!(ledger["devices"][0]["unexplained"], 0);
    running.finish();
}

#[test]
fn code_is_divided_by_the_kernel_that_needed_it_first() {
    let outcome = victim("kernels").run();
    let recording = crate::support::outcome::recordings_in(&outcome.out()).remove(0);
    let recording = recording.to_str().expect("a plain path");
    let ledger = json(&mut with_nvml(&["report", recording, "--json"]))["ledger"].take();
    let code = line(&ledger, "code");
    assert_eq!(code["bytes"], 12 * MIB, "{ledger:#}");
    let parts: Vec<_> = (code["parts"].as_array().expect("parts").iter())
        .map(|part| {
            (
                part["name"].as_str().expect("a name"),
                part["call"].as_str(),
                &part["bytes"],
            )
        })
        .collect();
    let long = "x".repeat(256);
    let of_kernel = |name| (name, Some("cuModuleGetFunction"), 2 * MIB);
    let mut expected = vec![("segments", None, 6 * MIB)];
    expected.extend(["add_kernel", "edge", &*long].map(of_kernel));
    assert_eq!(parts.len(), expected.len());
    for (found, (name, call, bytes)) in parts.iter().zip(expected) {
        assert_eq!(*found, (name, call, &Value::from(bytes)));
    }
    assert!(
        code["parts"][1]["place"]
            .as_str()
            .is_some_and(|place| place.starts_with("segments.c:"))
    );
    let text = Command::new(culeak())
        .args(["report", recording, "--view", "objects", "--view", "ledger"])
        .output()
        .expect("the CLI starts");
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(text.contains("kernel add_kernel  segments.c:"), "{text}");
    assert!(text.contains("kernels add_kernel, edge, xxx"), "{text}");
}

#[test]
fn blocks_after_thousands_of_allocations_and_frees_lie_in_pages_with_no_byte_left_over() {
    let outcome = victim("linear").run();
    let recording = crate::support::outcome::recordings_in(&outcome.out()).remove(0);
    let ledger = json(&mut with_nvml(&[
        "report",
        recording.to_str().expect("a plain path"),
        "--json",
    ]))["ledger"]
        .take();
    let named: Vec<_> = lines(&ledger).into_iter().map(|(what, _)| what).collect();
    assert_eq!(named, ["program", "rounding", "local_memory", "context"], "{ledger:#}");
    let sum: i64 = lines(&ledger).iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(ledger["devices"][0]["process"]["bytes"], sum);
}

#[test]
fn memory_that_was_given_back_is_known_by_the_stack_that_took_it() {
    let outcome = victim("everything").run();
    let snapshot = outcome.only_snapshot();
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.sum::<u64>();
    let taken = sum(&mut snapshot.segment_totals.iter().map(|total| total.bytes));
    let counter = snapshot
        .object_counters
        .iter()
        .find(|counter| counter.kind == Kind::Segment);
    assert_eq!(Some(taken), counter.map(|counter| counter.total_bytes));
    let live = sum(&mut (snapshot.segments.iter().filter(|row| row.kind == Kind::Segment)).map(|row| row.bytes));
    assert_eq!(taken - live, 8 << 20, "the large block and the module");
}
