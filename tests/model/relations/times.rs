//! Times: two runs, differences between points, windows, snapshots, and a process that is running.

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::*;

/// At the end and at the peak, by anything that is not an address.
pub fn a_program_that_runs_twice_does_not_differ(runs: &Runs) {
    let again = text(runs.again);
    for point in ["exit", "peak"] {
        for by in ["site", "stack"] {
            let diff = json(&["diff", runs.one(), again, "--by", by, "--at", point]);
            let what = format!("diff --by {by} --at {point}");
            alike(&diff["rows"], &value!([]), &what);
            same!(
                (&diff["totals"]["bytes_delta"], &diff["totals"]["count_delta"]),
                (&value!(0), &value!(0)),
                "{what}"
            );
        }
    }
    for by in [
        "site",
        "stack",
        "kind",
        "device",
        "api",
        "file",
        "library",
        "category",
        "size",
        "object-kind",
    ] {
        let [one, other] = [runs.one(), again].map(|path| facts(&json(&["report", path, "--by", by])));
        alike(&one, &other, &format!("report --by {by}"));
    }
}

type Change = (i64, i64);

/// The changes between two points, by row, without rows that did not change, and in all.
fn changes(runs: &Runs, points: [&str; 2], by: &str) -> (BTreeMap<String, Change>, Change) {
    let diff = json(&[
        "diff",
        runs.one(),
        "--at",
        points[0],
        "--at",
        points[1],
        "--by",
        by,
        "--all",
    ]);
    let delta = |row: &Value| {
        (
            row["bytes_delta"].as_i64().expect("bytes"),
            row["count_delta"].as_i64().expect("a count"),
        )
    };
    let fingerprint = if by == "site" {
        "site_fingerprint"
    } else {
        "fingerprint"
    };
    let mut rows = BTreeMap::new();
    for row in list(&diff["rows"]) {
        let of = rows
            .entry(format!(
                "{} {} {}",
                row["label"], row["stack"][fingerprint], row["pool"]
            ))
            .or_insert((0, 0));
        let (bytes, count) = delta(row);
        *of = (of.0 + bytes, of.1 + count);
    }
    rows.retain(|_, of| *of != (0, 0));
    let in_all = delta(&diff["totals"]);
    same!(sum_of(&rows), in_all, "the rows of diff {points:?} --by {by}");
    for (side, point) in ["before", "after"].into_iter().zip(points) {
        let report = json(&["report", runs.one(), "--at", point]);
        let of_side = tally(&diff["totals"][side]);
        same!(
            of_side,
            listed(&report),
            "{side} of diff {points:?} and the report --at {point}"
        );
    }
    (rows, in_all)
}

fn sum_of(rows: &BTreeMap<String, Change>) -> Change {
    rows.values().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
}

/// From A to B and from B to C is from A to C, and from B to A is the opposite.
pub fn diffs_add_up(runs: &Runs) {
    let points = runs.points();
    let [a, b, c] = [0, points.len() / 2, points.len() - 1].map(|nth| &*points[nth]);
    for by in ["site", "stack"] {
        let [first, second, both, back] = [[a, b], [b, c], [a, c], [b, a]].map(|points| changes(runs, points, by));
        let mut sum = first.0.clone();
        for (row, of) in &second.0 {
            let all = sum.entry(row.clone()).or_insert((0, 0));
            *all = (all.0 + of.0, all.1 + of.1);
        }
        sum.retain(|_, of| *of != (0, 0));
        same!(sum, both.0, "--by {by}, {a} to {b} to {c}");
        let opposite: BTreeMap<_, _> = back.0.iter().map(|(row, of)| (row.clone(), (-of.0, -of.1))).collect();
        same!(opposite, first.0, "--by {by}, {b} to {a}");
    }
}

/// What was allocated and freed, and the peaks.
pub fn windows_add_up(runs: &Runs) {
    let mut points = runs.points();
    points.insert(0, "start".to_owned());
    let window = |from: &str, to: &str, words: &[&str]| {
        json(&[&["report", runs.one(), "--between", from, to][..], words].concat())
    };
    let peaks = |report: &Value| -> BTreeMap<i64, u64> {
        let devices = list(&report["devices"]).iter();
        let peak = |device: &Value| {
            (
                device["ordinal"].as_i64().expect("a number"),
                number(&device["peak_bytes"]),
            )
        };
        devices.map(peak).filter(|(_, bytes)| *bytes > 0).collect()
    };
    for nth in 1..points.len() - 1 {
        let [from, at, to] = [&*points[0], &*points[nth], &*points[(nth + 2).min(points.len() - 1)]];
        let what = format!("--between {from} {at} {to}");
        let [first, second, both] = [(from, at), (at, to), (from, to)].map(|(from, to)| window(from, to, &[]));
        for count in ["allocated", "freed"] {
            let of = |report: &Value| number(&report["totals"][count]);
            same!(of(&first) + of(&second), of(&both), "{what}: {count}");
        }
        let mut most = peaks(&first);
        for (device, bytes) in peaks(&second) {
            let of = most.entry(device).or_default();
            *of = bytes.max(*of);
        }
        same!(most, peaks(&both), "{what}: peaks");
        let [first, second, both] =
            [(from, at), (at, to), (from, to)].map(|(from, to)| window(from, to, &["--view", "churn"]));
        for (of, change) in [
            ("driver", "allocated"),
            ("driver", "freed"),
            ("blocks", "allocated"),
            ("blocks", "freed"),
        ] {
            let sum = |report: &Value| tally(&report[of][change]);
            same!(
                add([sum(&first), sum(&second)].into_iter()),
                sum(&both),
                "{what}: {of} {change}"
            );
        }
    }
    let [whole, all] = [
        json(&["report", runs.one(), "--at", "exit"]),
        window("start", "exit", &[]),
    ]
    .map(|report| {
        let mut facts = facts(&report);
        // Failed requests are no events.
        facts["totals"].as_object_mut().expect("totals").remove("failed");
        facts
    });
    alike(&whole["rows"], &all["rows"], "rows between start and exit");
    alike(&whole["totals"], &all["totals"], "totals between start and exit");
    alike(&whole["devices"], &all["devices"], "devices between start and exit");
}

/// A snapshot that was taken at a mark, or that the program asked for, by the log and without one.
pub fn a_snapshot_shows_what_the_log_shows_at_its_time(script: &Script) {
    let folders = [folder(), folder()];
    let at_marks = [("CULEAK_SNAPSHOT_AT_MARK", "1")];
    let logged = record(script, Mode::Logged, &at_marks, folders[0].path());
    let plain = record(script, Mode::Plain, &at_marks, folders[1].path());
    same!(logged.len(), plain.len(), "processes");
    for (logged, plain) in logged.iter().zip(&plain) {
        for (path, snapshot) in snapshots(logged) {
            let ns = number(&snapshot["taken"]["at_ns"]);
            let time = format!("{}.{:09}s", ns / 1_000_000_000, ns % 1_000_000_000);
            let at = json(&["report", text(logged), "--at", &time]);
            alike(
                &facts(&snapshot),
                &facts(&at),
                &format!("{} and --at {time}", path.display()),
            );
        }
        // The mark at which an interval begins has no snapshot.
        let is_kept = |point: &&String| point.starts_with("mark:") && *point != "mark:interval";
        for point in points(text(logged)).iter().filter(is_kept) {
            let [log, snapshot] = [logged, plain].map(|path| facts(&json(&["report", text(path), "--at", point])));
            alike(&log, &snapshot, &format!("--at {point}, with a log and without"));
        }
    }
}

/// The automatic snapshots beside a recording, and their reports.
fn snapshots(recording: &Path) -> Vec<(PathBuf, Value)> {
    let beside = fs::read_dir(recording.parent().expect("a folder")).expect("readable");
    let start = recording
        .file_stem()
        .and_then(OsStr::to_str)
        .expect("a name")
        .to_owned()
        + ".";
    let own = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).expect("a name");
        name.starts_with(&start) && name.ends_with(".culeak-snapshot")
    };
    let paths = beside.flatten().map(|entry| entry.path()).filter(own);
    paths
        .map(|path| (path.clone(), json(&["report", text(&path)])))
        .collect()
}

/// The program stops itself at its end.
pub fn a_running_process_is_what_its_snapshot_shows(script: &Script) {
    let folder = folder();
    let mut script = script.clone();
    script.lines.retain(|line| line.verb != "quit");
    let id = script.lines.last().map_or(1, |line| line.id + 1);
    script.lines.push(format!("{id} 0 0 quit 3").parse().expect("a line"));
    let started = program(&script, Mode::Logged, folder.path()).start_in(folder.path());
    let pid = Pid::from_raw(started.child.id() as i32);
    waitpid(pid, Some(WaitPidFlag::WUNTRACED)).expect("it stops");
    let (process, file) = (pid.to_string(), folder.path().join("snapshot.json"));
    commands::text(&["snapshot", &process, "-o", text(&file)]);
    let recordings = recordings_in(&folder.path().join("out"));
    let own = recordings
        .iter()
        .find(|path| text(path).ends_with(&format!(".{process}.culeak")));
    let mut seen = Vec::new();
    for by in ["site", "stack", "kind", "thread", "stream", "size", "object-kind"] {
        let inputs = [&*process, text(&file)].into_iter().chain(own.map(|path| text(path)));
        let reports: Vec<Value> = inputs
            .map(|input| facts(&json(&["report", input, "--by", by])))
            .collect();
        for report in &reports[1..] {
            alike(
                &reports[0],
                report,
                &format!("--by {by}: a process, its snapshot, its recording"),
            );
        }
        seen.extend(reports.into_iter().next());
    }
    kill(pid, Signal::SIGCONT).expect("it goes on");
    assert!(started.finish().status.success());
    // Nothing is freed at its end, but the stacks are named by a process that has ended.
    if let Some(own) = own {
        let ended = facts(&json(&["report", text(own), "--at", "exit"]));
        alike(
            &seen[0]["totals"]["held"],
            &ended["totals"]["held"],
            "held while it ran, and at exit",
        );
        alike(&seen[0]["rows"], &ended["rows"], "rows while it ran, and at exit");
    }
}
