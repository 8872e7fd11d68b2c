//! Each system call of a command fails once: it answers, or says why not.

use std::ffi::OsStr;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::interpreters::interpreters;
use crate::support::holders::start;
use crate::support::profile::fake_driver_folder;
use crate::support::{Lookup, program as program_at};

/// A run of a command.
struct Ran {
    status: std::process::ExitStatus,
    calls: Vec<(c_long, String)>,
    stdout: String,
    stderr: String,
}

/// Runs the command with this input; its system call with this number, from 0 on, fails. The loader's do not, nor do those that give it
/// memory, nor those of a program that it starts. `watch` is ended once it waits.
fn run_command(arguments: &[&OsStr], input: &str, fault: Option<(usize, Fault)>) -> Ran {
    let folder = folder();
    fs::write(folder.path().join("stdin"), input).expect("written");
    let (ends, mut waits) = (arguments[0] == "watch", 0);
    let mut command = std::process::Command::new(crate::support::culeak());
    let file = |name: &str| fs::File::create(folder.path().join(name)).expect("created");
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", folder.path())
        .env("LC_ALL", "C")
        .env("CULEAK_CACHE_DIR", "")
        .env("LD_LIBRARY_PATH", fake_driver_folder())
        .current_dir(folder.path())
        .stdin(fs::File::open(folder.path().join("stdin")).expect("an input"))
        .stdout(file("stdout"))
        .stderr(file("stderr"));
    let memory = [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_madvise];
    let mut calls = Vec::new();
    let status = traced::run(
        &mut command,
        Calls::AllBut(&UNINTERESTING),
        |_| false,
        |at, event| {
            let Event::Entered(call) = event else { return };
            let is_loader = |path: &Path| path.to_string_lossy().contains("/ld-linux");
            let is_command = |path: PathBuf| path == crate::support::culeak();
            if memory.contains(&call.number)
                || faults(call.number).is_empty()
                || at.code().is_none_or(|path| is_loader(&path))
                || !fs::read_link(format!("/proc/{}/exe", at.pid)).is_ok_and(is_command)
            {
                return;
            }
            // The first one is that of Rust's start.
            waits += usize::from(call.number == libc::SYS_poll);
            if ends && waits > 3 {
                let _ = kill(Pid::from_raw(at.pid as i32), Signal::SIGTERM);
            }
            // Closing a folder does not fail, and Rust's standard library panics if it does.
            let of_folder =
                call.number == libc::SYS_close && at.file(call.arguments[0]).is_some_and(|path| path.is_dir());
            if let Some((number, fault)) = fault
                && number == calls.len()
                && faults(call.number).contains(&fault)
                && !of_folder
            {
                fault.apply(call);
            }
            let file = match call.number {
                libc::SYS_openat => at.text(call.arguments[1]),
                _ => at.file(call.arguments[0]).map(|path| path.display().to_string()),
            };
            calls.push((call.number, file.unwrap_or_default()));
        },
    );
    let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    Ran {
        status,
        calls,
        stdout: text("stdout"),
        stderr: text("stderr"),
    }
}

/// The figures that must not change. They are on standard output, or with `run` on standard error.
fn figures(ran: &Ran) -> Vec<&str> {
    let lines = ran.stdout.lines().chain(ran.stderr.lines());
    let is_figure = |line: &&str| line.contains("call site") || line.contains("MiB");
    // How long a search took, and how much it read.
    let is_of_search = |line: &&str| line.starts_with("search ");
    lines.filter(|line| is_figure(line) && !is_of_search(line)).collect()
}

/// How many system calls of a command are left out, as for [`each_fault`].
const STRIDE: [usize; 2] = [31, 7];

/// It answers, or says why not, with one of these exit codes. `after` is called after each run.
fn expect_an_answer(arguments: &[&OsStr], codes: &[i32], stride: [usize; 2], after: impl Fn(&Ran)) {
    expect_an_answer_to(arguments, "", codes, stride, after);
}

fn expect_an_answer_to(arguments: &[&OsStr], input: &str, codes: &[i32], stride: [usize; 2], after: impl Fn(&Ran)) {
    let whole = run_command(arguments, input, None);
    let code = whole.status.code().expect("it ends by itself");
    assert!(codes.contains(&code), "{}{}", whole.stdout, whole.stderr);
    after(&whole);
    let says = |ran: &Ran| {
        let is_message = |line: &str| line.starts_with("culeak: ") || line.contains("not ");
        let is_usual = |line: &str| whole.stdout.contains(line) || whole.stderr.contains(line);
        let mut lines = ran.stdout.lines().chain(ran.stderr.lines());
        lines.any(|line| is_message(line) && !is_usual(line))
    };
    each_fault(&whole.calls, stride, |number, fault| {
        let ran = run_command(arguments, input, Some((number, fault)));
        let what = format!("{:?}\n{}\n{}", ran.status, ran.stdout, ran.stderr);
        let ended = ran.status.code().unwrap_or_else(|| panic!("{what}"));
        assert!(!ran.stderr.contains("panicked"), "{what}");
        assert!(codes.contains(&ended), "{what}");
        let is_the_same = ended == code && figures(&ran) == figures(&whole);
        assert!(is_the_same || says(&ran), "{what}");
        after(&ran);
    });
}

#[test]
#[ignore = "needs ptrace"]
fn a_command_that_fails_in_any_system_call_answers_or_says_why_not() {
    let first = run(&busy(), Mode::Plain, None);
    let second = run(&busy(), Mode::Plain, None);
    let recording = |of: &Run| recordings_in(&of.folder.path().join("out")).remove(0);
    let (first, second) = (recording(&first), recording(&second));
    let [first, second] = [first.as_os_str(), second.as_os_str()];
    expect_an_answer(&["report".as_ref(), first], &[0, 2], STRIDE, |_| ());
    expect_an_answer(&["diff".as_ref(), first, second], &[0, 2], STRIDE, |_| ());
    // It leaks: no error makes it pass.
    expect_an_answer(&["check".as_ref(), first], &[1, 2], STRIDE, |_| ());
    // It makes 6,000 calls.
    expect_an_answer(&["trend".as_ref(), first, second], &[0, 2], [211, 31], |_| ());
    let (_grows, logged) = crate::whatif::logged("grows", &[]);
    expect_an_answer(&["whatif".as_ref(), logged.as_os_str()], &[0, 2], STRIDE, |_| ());
}

#[test]
#[ignore = "needs ptrace"]
fn servers_and_a_check_of_the_machine_answer_or_say_why_not_whichever_system_call_fails() {
    let recorded = run(&busy(), Mode::Plain, None);
    let recording = recordings_in(&recorded.folder.path().join("out")).remove(0);
    let folder = recording.parent().expect("a folder").as_os_str();
    let stride = [997, 31];
    expect_an_answer(&["doctor".as_ref()], &[0, 1, 2], stride, |_| ());
    for options in [
        &["--listen", "0"][..],
        &["--dataset", "data"],
        &["--textfile", "figures.prom"],
    ] {
        let words: Vec<&OsStr> = ["watch"]
            .iter()
            .chain(options)
            .map(OsStr::new)
            .chain([folder])
            .collect();
        expect_an_answer(&words, &[0, 2], stride, |_| ());
    }
    let requests = [
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{}}}"#
            .to_owned(),
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#.to_owned(),
        format!(
            r#"{{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{{"name":"report","arguments":{{"inputs":[{recording:?}]}}}}}}"#
        ),
        String::new(),
    ];
    expect_an_answer_to(&["mcp".as_ref()], &requests.join("\n"), &[0, 2], stride, |_| ());
}

#[test]
#[ignore = "needs ptrace"]
fn a_file_that_a_command_writes_is_whole_whichever_system_call_fails() {
    let recorded = run(&busy(), Mode::Plain, None);
    let recording = recordings_in(&recorded.folder.path().join("out")).remove(0);
    let folder = folder();
    // What is left in it if no names can be read.
    let blocks = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(folder.path().join(name)).expect("a file");
        if name.ends_with(".json") {
            let snapshot: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            return vec![snapshot["allocations"].to_string()];
        }
        assert!(text.ends_with('\n'), "{text}");
        let columns = |line: &str| line.split(',').take(3).collect();
        text.lines().map(columns).collect()
    };
    for (command, name) in [("snapshot", "out.json"), ("export", "out.csv")] {
        let (file, usual) = (folder.path().join(name), std::cell::OnceCell::new());
        let words = [command, "--force", "-o"].map(OsStr::new);
        let words = [&words[..], &[file.as_os_str(), recording.as_os_str()]].concat();
        // If the file cannot be replaced, the old one stays.
        expect_an_answer(&words, &[0, 2], STRIDE, |ran| {
            let (found, usual) = (blocks(name), usual.get_or_init(|| blocks(name)));
            assert!(found == *usual, "{command}: {found:?}\n{}", ran.stderr);
        });
    }
}

#[test]
#[ignore = "needs ptrace"]
fn a_program_runs_as_usual_whichever_system_call_of_culeak_run_fails_or_is_not_started() {
    let folder = folder();
    let [text, transcript] = ["script", "transcript"].map(|name| folder.path().join(name));
    fs::write(&text, busy().to_string()).expect("the script is written");
    let script = crate::support::victim("script", Lookup::Linked);
    let words = ["run", "-o", "out", "--"].map(OsStr::new);
    let words = [
        &words[..],
        &[script.as_os_str(), text.as_os_str(), transcript.as_os_str()],
    ]
    .concat();
    let answered = || fs::read_to_string(&transcript).map(|text| Answer::all(&text).len());
    let usual = std::cell::OnceCell::new();
    // 126: the program cannot be started.
    expect_an_answer(&words, &[0, 2, 126], STRIDE, |ran| {
        let Ok(answers) = answered() else {
            assert!(ran.status.code() != Some(0), "it was not started\n{}", ran.stderr);
            return;
        };
        let usual = usual.get_or_init(|| answers);
        assert!(*usual > 10 && answers == *usual, "{answers} answers\n{}", ran.stderr);
        fs::remove_file(&transcript).expect("removed");
    });
}

#[test]
#[ignore = "needs ptrace"]
fn a_search_that_fails_in_any_system_call_answers_or_says_why_not_and_lets_the_process_go_on() {
    let python = program_at(&interpreters()[0].command);
    let hostile = crate::support::sources().join("victims/holders/hostile.py");
    let victim = start(&python.arg("-B").arg(hostile).arg("quiet"));
    let (pid, stat) = (victim.pid.to_string(), format!("/proc/{}/stat", victim.pid));
    let goes_on = |ran: &Ran| {
        let stat = fs::read_to_string(&stat).expect("it runs");
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        assert!(
            state != Some('T') && state != Some('t'),
            "it is stopped: {stat}\n{}",
            ran.stderr
        );
    };
    // It reads 10,000 times, mostly /proc.
    let (stride, words) = ([311, 31], ["why", &pid, "--pause"].map(OsStr::new));
    expect_an_answer(&words[..2], &[0, 2], stride, goes_on);
    expect_an_answer(&words, &[0, 2], stride, goes_on);
    victim.quit();
}
