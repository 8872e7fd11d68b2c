//! Processes in containers, that is, in new pid or time namespaces, read from outside.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use culeak::kind::Kind::*;
use culeak::reader;
use culeak::snapshot::{ProcessState, Snapshot};

use crate::support::claims::Claims;
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::{culeak, is_root, profile};

/// Runs a behaviour of `endings` that prints "ready" in new namespaces, calls `look` with its recording while it runs, and
/// returns the snapshot of the recording after the process was killed.
fn in_new(namespaces: &[&str], behaviour: &str, look: impl FnOnce(&Path)) -> Snapshot {
    let mut words = vec!["unshare", "--fork", "--kill-child"];
    if !is_root() {
        words.push("--map-root-user");
    }
    words.extend(namespaces);
    let folder = folder();
    let mut running = profile("endings")
        .arg(behaviour)
        .wrapped_in(&words)
        .start_in(folder.path());
    let mut line = String::new();
    BufReader::new(running.stdout())
        .read_line(&mut line)
        .expect("the victim prints a line");
    if line != "ready\n" {
        let ended = running.finish();
        panic!(
            "no new namespaces: run the tests as root, or allow user namespaces\n{}",
            String::from_utf8_lossy(&ended.stderr)
        );
    }
    let [recording] = &recordings_in(&folder.path().join("out"))[..] else {
        panic!("one recording")
    };
    look(recording);
    running.kill();
    running.finish();
    reader::read(recording).expect("readable")
}

#[test]
fn a_process_in_a_pid_namespace_runs_and_has_a_host_pid() {
    for namespaces in [&["--pid"][..], &["--pid", "--mount-proc"]] {
        let ended = in_new(namespaces, "waits", |recording| {
            let snapshot = reader::read(recording).expect("readable");
            snapshot.expect_live(Device, 1, 4096);
            assert_eq!(
                (snapshot.process.pid, snapshot.process.state),
                (1, ProcessState::Running)
            );
            let here = snapshot.process.pid_here.expect("its pid outside");
            let maps = std::fs::read_to_string(format!("/proc/{here}/maps")).expect("it runs");
            assert!(maps.contains(recording.to_str().expect("a path")), "{here}: {maps}");
            let report = Command::new(culeak()).arg("report").arg(recording).output();
            let report = String::from_utf8_lossy(&report.expect("a report").stdout).into_owned();
            assert!(report.contains(&format!("culeak snapshot {here} -o")), "{report}");
            let by_number = Command::new(culeak())
                .args(["snapshot", &here.to_string(), "-o", "-"])
                .output();
            let by_number = serde_json::from_slice(&by_number.expect("a snapshot").stdout).expect("valid JSON");
            Snapshot::expect_live(&by_number, Device, 1, 4096);
        });
        assert_ne!(ended.process.state, ProcessState::Running);
        assert_eq!(ended.process.pid_here, None);
    }
}

#[test]
fn a_busy_process_in_a_time_namespace_is_read_correctly() {
    // The offsets must leave the clocks above zero.
    for offset in ["1000000", "-1"] {
        let clocks = ["--time", "--monotonic", offset, "--boottime", offset];
        in_new(&clocks, "restless", |recording| {
            for _ in 0..100 {
                let snapshot = reader::read(recording).expect("readable");
                assert_eq!(snapshot.process.state, ProcessState::Running);
                let steady = snapshot.allocations.iter().filter(|a| a.bytes == 12345);
                assert_eq!(steady.count(), 1, "{offset}: {:#?}", snapshot.allocations);
                let hour = 3_600_000_000_000;
                assert!(snapshot.taken.at_ns < hour, "{offset}: {} ns", snapshot.taken.at_ns);
                let once = reader::read_once(recording).expect("readable");
                let bytes: u64 = once.allocations.iter().map(|allocation| allocation.bytes).sum();
                assert!(bytes >= 12345, "{offset}: {:#?}", once.allocations);
            }
        });
    }
}
