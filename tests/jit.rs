//! Frames in code that a program generates have the names that it writes for perf, if the file is certainly its own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::support::outcome::Outcome;
use crate::support::profile::folder;
use crate::support::{culeak, fake_driver, library, profile, program, sources};

const STEP: &str = "instance void [App] Trainer::Step(int32)[Tier1]";

fn report(input: &str) -> Output {
    let mut command = Command::new(culeak());
    command.args(["report", "--json", input]).env("CULEAK_CACHE_DIR", "");
    command.output().expect("culeak starts")
}

/// The call site of the only row, and what was said.
fn site(input: &str) -> (String, String) {
    let output = report(input);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 1, "{rows:?}");
    (rows[0]["label"].as_str().expect("a label").to_owned(), said)
}

/// The map of a process; it is removed at the end of the test.
struct Map(PathBuf);

impl Map {
    fn of(pid: u32) -> Map {
        Map(format!("/tmp/perf-{pid}.map").into())
    }

    fn written(&self, time: SystemTime) {
        let file = File::options().write(true).open(&self.0).expect("the map");
        file.set_modified(time).expect("its time is set");
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn with_map() -> (Outcome, Map) {
    let outcome = profile("jit").arg("map").run();
    let map = Map::of(outcome.only_snapshot().process.pid);
    (outcome, map)
}

#[test]
fn generated_code_is_named_by_the_map_that_the_program_wrote_for_perf() {
    let (outcome, map) = with_map();
    let recording = outcome.recordings[0].display().to_string();
    assert_eq!(site(&recording).0, STEP);
    let text = Command::new(culeak())
        .args(["report", &recording])
        .output()
        .expect("culeak starts");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("3 MiB  in 1 block   Trainer::Step\n"), "{text}");
    drop(map);
    let (label, said) = site(&recording);
    assert!(label.starts_with("0x"), "{label}");
    assert!(!said.contains("perf-"), "{said}");
}

#[test]
fn a_map_that_may_be_of_another_process_names_nothing() {
    let (outcome, map) = with_map();
    let recording = outcome.recordings[0].display().to_string();
    let hour = Duration::from_secs(3600);
    let refused = |why: &str| {
        let (label, said) = site(&recording);
        assert!(label.starts_with("0x"), "{label}");
        let note = format!("{}: {why}, so it may not name all generated code", map.0.display());
        assert!(said.contains(&note), "{said}");
    };
    let now = SystemTime::now();
    map.written(now - hour);
    refused("is older than the process");
    map.written(now + hour);
    refused("was written after the recording ended");
    map.written(now);
    assert_eq!(site(&recording).0, STEP);
    let elsewhere = outcome.folder().join("elsewhere");
    fs::rename(&map.0, &elsewhere)
        .or_else(|_| fs::copy(&map.0, &elsewhere).and_then(|_| fs::remove_file(&map.0)))
        .expect("moved");
    symlink(&elsewhere, &map.0).expect("a link");
    refused("is a symbolic link");
}

#[test]
#[ignore = "needs root"]
fn a_map_of_another_user_names_nothing() {
    let (outcome, map) = with_map();
    std::os::unix::fs::chown(&map.0, Some(12345), None).expect("root");
    let (label, said) = site(&outcome.recordings[0].display().to_string());
    assert!(label.starts_with("0x"), "{label}");
    assert!(said.contains("has another owner than the recording"), "{said}");
}

#[test]
fn the_dump_that_a_running_program_has_mapped_names_its_code() {
    let folder = folder();
    let mut started = profile("jit").args("dump wait").start_in(folder.path());
    let mut pid = String::new();
    let mut output = BufReader::new(started.stdout());
    output.read_line(&mut pid).expect("its pid");
    let pid = pid.trim();
    assert!(Path::new(&folder.path().join(format!("work/jit-{pid}.dump"))).exists());
    assert_eq!(site(pid).0, STEP);
    assert!(started.finish().status.success());
}

#[test]
#[ignore = "needs Java"]
fn a_method_of_java_is_named_by_the_map_that_its_runtime_writes_on_request() {
    let folder = folder();
    let native = library("java_native", "libjava_native.so", &[], &[fake_driver()]);
    // Interpreted methods are in no map.
    let compiled =
        "-Xcomp -XX:CompileCommand=quiet -XX:CompileCommand=compileonly,Trainer::* -XX:+PreserveFramePointer";
    let program = program("java").args(compiled);
    let program = program.arg(sources().join("victims/Trainer.java")).arg(native);
    let mut started = program.start_in(folder.path());
    let mut pid = String::new();
    let mut output = BufReader::new(started.stdout());
    output.read_line(&mut pid).expect("its pid");
    let pid: u32 = pid.trim().parse().expect("a number");
    let map = Map::of(pid);
    let report = || {
        let report = Command::new(culeak()).args(["report", &pid.to_string()]).output();
        String::from_utf8_lossy(&report.expect("culeak starts").stdout).into_owned()
    };
    let text = report();
    assert!(
        text.contains("3 MiB  in 2 blocks  Java_Trainer_allocate  java_native.c:"),
        "{text}"
    );
    assert!(!text.contains("Trainer.allocate"), "{text}");
    let mut asked = Command::new("jcmd");
    let asked = asked.arg(pid.to_string()).arg("Compiler.perfmap").output();
    assert!(asked.expect("jcmd starts").status.success());
    let text = report();
    assert!(text.contains("from Trainer.allocate"), "{text}");
    assert!(started.finish().status.success());
    drop(map);
}
