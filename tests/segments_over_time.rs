//! What the kernel driver had given to the process at earlier times: from the event log, at the peak, at an out-of-memory, in
//! phases. The victim prints the kernel's own sums at each mark.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use culeak::kind::Kind;
use culeak::reader::read_timeline;
use culeak::snapshot::{AtPeak, Counter, Reason, Snapshot, Total};
use serde_json::Value;

use crate::auto_snapshots::snapshots_in;
use crate::segments::victim;
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::{Outcome, culeak};

const LOGGED: (&str, &str) = ("CULEAK_TIMELINE", "64MiB");

/// The process with an event log.
fn logged(behaviour: &str) -> Outcome {
    victim(behaviour).setting(LOGGED.0, LOGGED.1).run()
}

fn recording(outcome: &Outcome) -> PathBuf {
    recordings_in(&outcome.out()).pop().expect("a recording")
}

/// The kernel's own sums of device and host memory, by mark.
fn of_kernel(outcome: &Outcome) -> BTreeMap<String, (u64, u64)> {
    let lines = outcome.stdout.lines().filter_map(|line| line.strip_prefix("AT "));
    let sums: BTreeMap<_, _> = lines
        .map(|line| {
            let mut words = line.rsplitn(3, ' ');
            let mut number = || words.next().expect("a word").parse().expect("a number");
            let (host, device) = (number(), number());
            (words.next().expect("a name").to_owned(), (device, host))
        })
        .collect();
    assert!(sums.len() > 8, "{}", outcome.everything());
    sums
}

fn json(words: &[&str], file: &Path) -> Value {
    let mut command = Command::new(culeak());
    command.args(&words[..1]).arg(file).args(&words[1..]);
    let output = command
        .args(["--json", "--no-symbol-cache"])
        .output()
        .expect("the command starts");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn text(words: &[&str], file: &Path) -> String {
    let mut command = Command::new(culeak());
    command.args(&words[..1]).arg(file).args(&words[1..]);
    let output = command.arg("--no-symbol-cache").output().expect("the command starts");
    String::from_utf8(output.stdout).expect("text")
}

/// Bytes by `what` of the only device's lines; lines of objects have how many exist and were destroyed.
fn lines(ledger: &Value) -> BTreeMap<String, (i64, u64, Option<u64>)> {
    let lines = ledger["devices"][0]["lines"].as_array().expect("lines").iter();
    lines
        .map(|line| {
            let of = line["of"].as_str().map_or(String::new(), |of| format!(" {of}"));
            let name = format!("{}{of}", line["what"].as_str().expect("a word"));
            let numbers = (
                line["bytes"].as_i64().expect("bytes"),
                line["count"].as_u64().expect("a count"),
                line["destroyed"].as_u64(),
            );
            (name, numbers)
        })
        .collect()
}

fn sums(snapshot: &Snapshot) -> (u64, u64) {
    let of = |kind: Kind| snapshot.segments.iter().filter(move |row| row.kind == kind);
    (
        of(Kind::Segment).map(|row| row.bytes).sum(),
        of(Kind::HostSegment).map(|row| row.bytes).sum(),
    )
}

const MIB: i64 = 1 << 20;

#[test]
fn the_ledger_of_every_mark_adds_up_to_what_the_kernel_driver_counted_then() {
    for behaviour in ["marks", "marks killed", "marks reset"] {
        let outcome = logged(behaviour);
        let file = recording(&outcome);
        for (name, (device, _)) in of_kernel(&outcome) {
            let ledger = json(&["report", "--at", &format!("mark:{name}")], &file)["ledger"].take();
            if device == 0 {
                assert_eq!(behaviour, "marks reset");
                let lines = lines(&ledger);
                assert!(lines.values().all(|line| line.0 == 0), "{lines:?}");
                continue;
            }
            let process = &ledger["devices"][0]["process"];
            assert_eq!(process["bytes"], device, "{behaviour}, {name}: {ledger:#}");
            assert_eq!(ledger["devices"][0]["known"], device, "{behaviour}, {name}");
            let sum: i64 = lines(&ledger).values().map(|line| line.0).sum();
            assert_eq!(sum as u64, device);
            assert_eq!(ledger["segments_missing"], Value::Null);
        }
    }
}

#[test]
fn what_the_lines_gained_between_two_marks_is_what_the_kernel_driver_gave() {
    let outcome = logged("marks");
    let file = recording(&outcome);
    let marks: Vec<_> = of_kernel(&outcome).into_iter().collect();
    for [(a, (before, _)), (b, (after, _))] in marks.array_windows() {
        let points = [format!("mark:{a}"), format!("mark:{b}")];
        let change = json(
            &["diff", "--at", &points[0], "--at", &points[1], "--view", "ledger"],
            &file,
        );
        let device = &change["devices"][0];
        assert_eq!(
            device["process"],
            serde_json::json!([before, after]),
            "{a} to {b}: {change:#}"
        );
        let lines = device["lines"].as_array().expect("lines").iter();
        let gained: i64 = lines.map(|line| line["bytes_delta"].as_i64().expect("bytes")).sum();
        assert_eq!(gained, *after as i64 - *before as i64, "{a} to {b}");
        for (side, point) in ["before", "after"].into_iter().zip(&points) {
            let report = json(&["report", "--at", point], &file);
            for line in report["ledger"]["devices"][0]["lines"].as_array().expect("lines") {
                let mut changes = device["lines"].as_array().expect("lines").iter();
                assert!(changes.any(|change| change[side] == *line), "{a} to {b}: {line}");
            }
        }
    }
    let page = text(
        &["diff", "--at", "mark:context", "--at", "mark:most", "--view", "ledger"],
        &file,
    );
    assert!(
        page.starts_with("ledger of process ") && page.contains(": grew by "),
        "{page}"
    );
    for line in ["executable graphs", "contexts", "this process"] {
        assert!(page.lines().any(|found| found.ends_with(line)), "{line}: {page}");
    }
    let points = [
        "diff",
        "--at",
        "mark:context",
        "--at",
        "mark:most",
        "--view",
        "ledger",
        "-o",
        ".html",
    ];
    let html = text(&points, &file);
    assert!(
        html.starts_with("<!doctype html>") && html.contains("executable graphs"),
        "{html}"
    );
}

#[test]
fn lines_objects_and_peaks_are_those_of_the_time() {
    let outcome = logged("marks");
    let file = recording(&outcome);
    let at = |name: &str| json(&["report", "--at", &format!("mark:{name}")], &file)["ledger"].take();
    let snapshot = outcome.only_snapshot();
    assert_eq!(snapshot.contexts[0].heap_limit, Some(64 << 20));
    let objects = lines(&at("objects"));
    assert_eq!(objects["streams"], (4 * MIB, 4, Some(0)));
    assert_eq!(objects["cuda_pools"].0, 32 * MIB - 1000);
    assert_eq!(objects["code"].0, 2 * MIB);
    assert_eq!(objects["local_memory"].0, 414 * MIB);
    let freed = lines(&at("freed"));
    assert_eq!(freed["streams"], (4 * MIB, 3, Some(1)));
    assert!(freed["local_memory"].0 > 1000 * MIB && !freed.contains_key("code"));
    // A peak of later is not known yet.
    let peak = |name: &str| at(name)["devices"][0]["process"]["peak_bytes"].as_u64();
    let kernel = of_kernel(&outcome);
    assert_eq!(peak("blocks"), Some(kernel["blocks"].0));
    assert_eq!(peak("most"), Some(kernel["most"].0));
    assert_eq!(peak("freed"), Some(kernel["most"].0));
    let shown = text(&["report", "--at", "mark:objects", "--view", "ledger"], &file);
    assert!(
        shown.contains("4 streams") && shown.contains("= 566 MiB  this process"),
        "{shown}"
    );
    let page = file.with_extension("html");
    let page = page.to_str().expect("a plain path");
    text(&["report", "--at", "mark:objects", "-o", page], &file);
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("4 streams"), "the page has the ledger");
}

/// Kind, handle, bytes, device, and addresses of frames.
type ComparedRow = (Kind, u64, u64, Option<usize>, Vec<usize>);

/// What an automatic snapshot and the log must agree on.
#[derive(Debug, PartialEq)]
struct Compared {
    rows: Vec<ComparedRow>,
    counters: Vec<(Option<usize>, Kind, [u64; 6])>,
    totals: Vec<(u64, u64)>,
    at_peaks: Vec<(u64, u64)>,
}

impl Compared {
    fn of(snapshot: &Snapshot) -> Compared {
        // Numbers of stacks depend on the file.
        let frames = |stack: Option<usize>| {
            let stack = stack.map_or(&[][..], |stack| &snapshot.stacks[stack].frames);
            let address = |&frame: &usize| snapshot.locations[frame].address as usize;
            stack.iter().map(address).collect::<Vec<_>>()
        };
        let mut rows: Vec<_> = (snapshot.segments.iter())
            .filter(|row| row.api() != "NV_ESC_RM_DUP_OBJECT" || row.bytes > 0)
            .map(|row| {
                (
                    row.kind,
                    row.address & ((1 << 48) - 1),
                    row.bytes,
                    row.device,
                    frames(row.stack),
                )
            })
            .collect();
        rows.sort();
        let mut counters: Vec<_> = (snapshot.object_counters.iter())
            .map(|of: &Counter| {
                let sums = [
                    of.live_bytes,
                    of.live_count,
                    of.total_bytes,
                    of.total_count,
                    of.freed_count,
                    of.peak_bytes,
                ];
                (of.device, of.kind, sums)
            })
            .collect();
        counters.sort_by_key(|counter| (counter.0, counter.1));
        let mut totals: Vec<_> = (snapshot.segment_totals.iter())
            .map(|total: &Total| (total.bytes, total.count))
            .filter(|total| total.0 > 0)
            .collect();
        totals.sort_unstable();
        let mut at_peaks: Vec<_> = (snapshot.segments_at_peaks.iter())
            .map(|sum: &AtPeak| (sum.bytes, sum.count))
            .filter(|sum| sum.0 > 0)
            .collect();
        at_peaks.sort_unstable();
        Compared {
            rows,
            counters,
            totals,
            at_peaks,
        }
    }
}

#[test]
fn segments_rebuilt_from_the_log_are_those_of_every_automatic_snapshot() {
    let outcome = victim("marks")
        .setting(LOGGED.0, LOGGED.1)
        .setting("CULEAK_SNAPSHOT_AT_MARK", "1")
        .run();
    let (end, timeline) = read_timeline(&recording(&outcome)).expect("readable");
    let timeline = timeline.expect("a log");
    let kernel = of_kernel(&outcome);
    let kept = snapshots_in(&outcome.out());
    assert_eq!(kept.len(), kernel.len());
    for (_, kept) in kept {
        let name = kept
            .taken
            .automatic
            .as_ref()
            .and_then(|automatic| automatic.name.clone());
        let name = name.expect("the mark's name");
        let rebuilt = timeline.state_at(&end, kept.taken.at_ns).expect("it is in the log");
        rebuilt.validate().expect("every index is in range");
        assert_eq!(sums(&rebuilt), kernel[&name], "{name}");
        assert_eq!(sums(&kept), kernel[&name], "{name}");
        let (mut rebuilt, kept) = (Compared::of(&rebuilt), Compared::of(&kept));
        if name == "heir" {
            // What an heir has is in the total of its original's stack; a snapshot adds what lives to that of its own, too.
            assert_eq!(rebuilt.totals.len() + 1, kept.totals.len());
            rebuilt.totals.clone_from(&kept.totals);
        }
        assert_eq!(rebuilt, kept, "{name}");
    }
}

#[test]
fn at_the_peak_the_ledger_has_what_the_kernel_driver_had_given_most() {
    // With and without a log.
    for outcome in [
        victim("marks").run(),
        logged("marks killed"),
        victim("marks reset").run(),
    ] {
        let most = of_kernel(&outcome)["most"].0;
        let file = recording(&outcome);
        let report = json(&["report", "--at", "peak"], &file);
        let ledger = &report["ledger"];
        let process = &ledger["devices"][0]["process"];
        assert_eq!(
            (&process["bytes"], &process["peak_bytes"]),
            (&Value::from(most), &Value::from(most))
        );
        assert_eq!(process["is_peak"], true);
        let lines = lines(ledger);
        let sum: i64 = lines.values().map(|line| line.0).sum();
        assert_eq!(sum as u64, most, "{ledger:#}");
        assert_eq!(lines["for_blocks cuMemAlloc"].0, 108 * MIB, "{ledger:#}");
        // Also of a context that is gone: the limit took one piece.
        assert!(lines["local_memory"].0 > 1000 * MIB, "{ledger:#}");
        assert_eq!((lines["for_blocks pools"].0, lines["streams"].0), (32 * MIB, 4 * MIB));
        let shown = text(&["report", "--at", "peak", "--view", "ledger"], &file);
        assert!(
            shown.contains("this process when it had most of the device, after "),
            "{shown}"
        );
        assert!(shown.contains("blocks of cuMemAlloc, in 3 pieces"), "{shown}");
    }
}

#[test]
fn an_out_of_memory_has_the_ledger_of_its_instant() {
    let outcome = victim("marks full").run();
    let printed = outcome.stdout.lines().find_map(|line| line.strip_prefix("KERNEL "));
    let own: u64 = printed
        .and_then(|sums| sums.split(' ').next())
        .expect("a sum")
        .parse()
        .expect("bytes");
    let kept = snapshots_in(&outcome.out());
    let mut full = kept.iter().filter(|(_, kept)| {
        kept.taken
            .automatic
            .as_ref()
            .is_some_and(|automatic| automatic.reason == Reason::OutOfMemory)
    });
    let (_, snapshot) = full.next().expect("an automatic snapshot");
    assert_eq!(sums(snapshot).0, own);
    let is_it = |path: &PathBuf| path.to_string_lossy().contains(".out-of-memory");
    let files = std::fs::read_dir(outcome.out()).expect("readable");
    let path = files
        .map(|file| file.expect("an entry").path())
        .find(is_it)
        .expect("its file");
    let ledger = json(&["report"], &path)["ledger"].take();
    assert_eq!(ledger["devices"][0]["process"]["bytes"], own);
    let sum: i64 = lines(&ledger).values().map(|line| line.0).sum();
    assert_eq!(sum as u64, own);
}

#[test]
fn earlier_segments_of_a_process_are_known_while_it_takes_and_gives_back_others() {
    let folder = folder();
    let mut running = victim("changes").setting(LOGGED.0, LOGGED.1).start_in(folder.path());
    let mut output = BufReader::new(running.stdout());
    let mut lines = Vec::new();
    while lines.last().is_none_or(|line| line != "ready\n") {
        let mut line = String::new();
        assert!(output.read_line(&mut line).expect("a line") > 0, "{lines:?}");
        lines.push(line);
    }
    let at_mark = lines
        .iter()
        .find_map(|line| line.strip_prefix("AT steady "))
        .expect("the sums at the mark");
    let device: u64 = at_mark
        .split(' ')
        .next()
        .and_then(|sum| sum.parse().ok())
        .expect("bytes");
    let file = recordings_in(&folder.path().join("out")).pop().expect("a recording");
    // How often the process had taken memory at each reading.
    let mut counts = BTreeSet::new();
    for _ in 0..1000 {
        let (end, timeline) = read_timeline(&file).expect("readable");
        let timeline = timeline.expect("a log");
        let state = timeline.state_at(&end, end.marks[0].time_ns).expect("it is in the log");
        assert_eq!(sums(&state).0, device);
        let counter = end.object_counters.iter().find(|counter| counter.kind == Kind::Segment);
        counts.insert(counter.expect("a counter").total_count);
        if counts.len() == 20 {
            break;
        }
    }
    assert_eq!(counts.len(), 20, "the process changed from one reading to the next");
    running.finish();
}

#[test]
fn phases_have_what_the_kernel_driver_had_given() {
    let outcome = logged("marks");
    let file = recording(&outcome);
    let kernel = of_kernel(&outcome);
    let phases = json(&["report", "--view", "phases:work"], &file);
    let series = phases["series"].as_array().expect("series");
    let process = series
        .iter()
        .position(|series| series["layer"] == "process")
        .expect("a series");
    let figures = &phases["chosen"][0]["figures"][process];
    assert_eq!(figures["held_at_begin"], kernel["context"].0);
    assert_eq!(figures["held_at_end"], kernel["freed"].0);
    assert_eq!(figures["high_water"], kernel["most"].0);
    let shown = text(&["report", "--view", "phases"], &file);
    assert!(shown.contains("process at most"), "{shown}");
    let only_blocks = json(&["report", "--view", "phases:work", "--kind", "device"], &file);
    let mut series = only_blocks["series"].as_array().expect("series").iter();
    assert!(
        series.all(|series| series["layer"] != "process"),
        "a filter of memory leaves it out"
    );
}
