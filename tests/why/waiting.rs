//! A program waits at its end until culeak has copied its memory, and goes on if culeak does not.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use culeak::hold::{Moment, SLOTS, SLOTS_AT, State};
use culeak::proof::HOLDS;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::{FOR_EVER, native, run};
use crate::support::process::{self, Started};
use crate::support::profile::folder;

/// A program that waits for its input before it ends, under culeak.
struct Waiting {
    culeak: Started,
    program: Pid,
    stdout: std::process::ChildStdout,
    facts: PathBuf,
    folder: TempDir,
}

impl Waiting {
    fn start(limit: &str, case: &str) -> Waiting {
        use std::io::Read;
        let folder = folder();
        let mut command = run(
            &["--why-limit", limit, "--no-report"],
            folder.path(),
            &[&native(), case],
        );
        let mut culeak = process::start(&mut command);
        let mut stdout = culeak.stdout();
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            stdout.read_exact(&mut byte).expect("the program prints its id");
            line.push(byte[0]);
        }
        let pid: i32 = String::from_utf8_lossy(&line).trim().parse().expect("a pid");
        let environment = fs::read(format!("/proc/{pid}/environ")).expect("its environment");
        let environment = String::from_utf8_lossy(&environment).into_owned();
        let setting = environment
            .split('\0')
            .find_map(|entry| entry.strip_prefix("CULEAK_RUN="));
        let facts = setting
            .and_then(|setting| setting.split_once(':'))
            .expect("a file")
            .1
            .into();
        Waiting {
            culeak,
            program: Pid::from_raw(pid),
            stdout,
            facts,
            folder,
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.culeak.child.id() as i32), signal).expect("culeak runs");
    }

    /// Stops all threads of culeak, so that it serves nothing.
    fn stop_culeak(&self) {
        self.signal(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.culeak.child.id());
        let is_stopped = |task: PathBuf| {
            let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        };
        until("culeak stops", || {
            let tasks = fs::read_dir(&tasks).expect("culeak runs").flatten();
            tasks.into_iter().all(|task| is_stopped(task.path()))
        });
    }

    /// Lets the program end.
    fn end_input(&mut self) {
        drop(self.culeak.child.stdin.take());
    }

    /// Returns when the program waits.
    fn until_it_waits(&self) {
        until("the program waits", || {
            let bytes = fs::read(&self.facts).expect("the file");
            let slots = bytes[HOLDS + SLOTS_AT..].chunks_exact(8).take(SLOTS);
            let waits = |slot: &[u8]| slot[0] == State::Waiting as u8 && slot[1] == Moment::End as u8;
            slots.into_iter().any(waits)
        });
    }

    /// Reads as much output as is expected, since culeak, which may be stopped, has the same.
    #[track_caller]
    fn expect_output(&mut self, expected: &str) {
        let mut found = vec![0; expected.len()];
        std::io::Read::read_exact(&mut self.stdout, &mut found).expect("output");
        assert_eq!(String::from_utf8_lossy(&found), expected);
    }

    /// The rest of the program's output, after it and culeak have ended.
    fn rest(&mut self) -> String {
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.stdout, &mut rest).expect("text");
        rest
    }

    fn finish(self) -> (Option<i32>, String, TempDir) {
        let ended = self.culeak.finish();
        let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
        (ended.status.code(), stderr, self.folder)
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("never: {what}");
}

#[test]
fn a_program_goes_on_when_culeak_is_killed_while_it_waits() {
    let mut waiting = Waiting::start(FOR_EVER, "asks_before");
    waiting.stop_culeak();
    waiting.end_input();
    waiting.until_it_waits();
    waiting.signal(Signal::SIGKILL);
    assert_eq!(waiting.rest(), "done\ndestroyed\n");
}

#[test]
fn a_program_goes_on_after_the_limit() {
    let mut waiting = Waiting::start("1ms", "asks_before");
    waiting.stop_culeak();
    waiting.end_input();
    // Culeak is stopped and copies nothing.
    waiting.expect_output("done\ndestroyed\n");
    waiting.signal(Signal::SIGCONT);
    let (code, stderr, folder) = waiting.finish();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("went on before its memory was copied"), "{stderr}");
    let names = fs::read_dir(folder.path()).expect("the folder").flatten();
    assert!(
        names
            .into_iter()
            .all(|entry| !entry.file_name().to_string_lossy().ends_with("-why"))
    );
}

#[test]
fn signals_are_handled_while_a_program_waits() {
    let mut waiting = Waiting::start(FOR_EVER, "handles_signals");
    waiting.stop_culeak();
    waiting.end_input();
    waiting.until_it_waits();
    kill(waiting.program, Signal::SIGUSR1).expect("it runs");
    waiting.expect_output("noticed\n");
    waiting.signal(Signal::SIGCONT);
    assert_eq!(waiting.rest(), "done\ndestroyed\n");
    let (code, stderr, _folder) = waiting.finish();
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn a_program_that_dies_while_it_waits_does_not_stop_culeak() {
    let mut waiting = Waiting::start(FOR_EVER, "asks_before");
    waiting.stop_culeak();
    waiting.end_input();
    waiting.until_it_waits();
    kill(waiting.program, Signal::SIGKILL).expect("it runs");
    // A process is dead some time after the signal was sent; until then its memory can be copied.
    let stat = format!("/proc/{}/stat", waiting.program);
    until("the program is dead", || {
        let stat = fs::read_to_string(&stat).expect("culeak, which is stopped, has not waited for it");
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'))
    });
    waiting.signal(Signal::SIGCONT);
    let (code, stderr, _folder) = waiting.finish();
    assert_eq!(code, Some(137), "{stderr}");
    assert!(stderr.contains("--why: process"), "{stderr}");
}
