//! Claims about `culeak run` itself and how it treats the program; none needs a GPU or a compiler.

#[path = "run/checks.rs"]
mod checks;
#[path = "run/leaks.rs"]
mod leaks;
#[path = "run/mistakes.rs"]
mod mistakes;
#[path = "../../tests/support/sample.rs"]
mod sample;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{SigHandler, Signal, signal};
use tempfile::TempDir;

const CULEAK: &str = env!("CARGO_BIN_EXE_culeak");

/// `culeak run` with these words, in a temporary folder.
fn run(words: &[&str]) -> Output {
    run_in(&folder(), words)
}

fn run_in(folder: &TempDir, words: &[&str]) -> Output {
    culeak(folder.path())
        .arg("run")
        .args(words)
        .output()
        .expect("culeak starts")
}

fn check_in(folder: &TempDir, words: &[&str]) -> Output {
    culeak(folder.path())
        .arg("check")
        .args(words)
        .output()
        .expect("culeak starts")
}

fn culeak(folder: &Path) -> Command {
    let mut command = Command::new(CULEAK);
    command.env("CULEAK_CACHE_DIR", "");
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .env_remove("LD_PRELOAD");
    // SAFETY: signal(2) is async-signal-safe, and nothing else happens between fork and exec.
    unsafe { command.pre_exec(no_signal_ignored) };
    command
}

/// Restores default actions: under nohup or `&` signals are ignored, and a shell cannot trap a signal ignored at its start.
fn no_signal_ignored() -> io::Result<()> {
    for ignored in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        // SAFETY: the default action installs no handler.
        unsafe { signal(ignored, SigHandler::SigDfl) }?;
    }
    Ok(())
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn script(folder: &TempDir, name: &str, text: &str, mode: u32) {
    let path = folder.path().join(name);
    fs::write(&path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_exit_code_is_the_programs_own() {
    for code in [0, 1, 7, 255] {
        let output = run(&["--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
    }
}

#[test]
fn messages_that_nothing_reads_do_not_change_the_exit_code() {
    let folder = folder();
    let full = || {
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("/dev/full")
    };
    for (words, code) in [(&["sh", "-c", "exit 7"][..], 7), (&["./no-such-program"][..], 127)] {
        let status = culeak(folder.path())
            .args(["run", "--"])
            .args(words)
            .stderr(full())
            .status();
        assert_eq!(status.expect("culeak starts").code(), Some(code), "{words:?}");
    }
}

#[test]
fn death_by_signal_has_the_exit_code_of_a_shell() {
    for (signal, code) in [("KILL", 137), ("SEGV", 139), ("TERM", 143)] {
        assert_eq!(
            run(&["--", "sh", "-c", &format!("kill -{signal} $$")]).status.code(),
            Some(code)
        );
    }
}

#[test]
fn a_signal_sent_to_culeak_reaches_the_program() {
    for signal in ["USR1", "TERM", "HUP", "INT", "QUIT"] {
        let script = format!("trap 'exit 42' {signal}; kill -{signal} $PPID; while :; do sleep 0.01; done");
        assert_eq!(run(&["--", "sh", "-c", &script]).status.code(), Some(42), "SIG{signal}");
    }
}

#[test]
fn signal_dispositions_and_mask_are_passed_on_unchanged() {
    let output = run(&["--", "grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]);
    let mut plain = Command::new("grep");
    plain.args(["-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"]);
    // SAFETY: as above.
    unsafe { plain.pre_exec(no_signal_ignored) };
    let plain = plain.output().expect("grep starts");
    assert_eq!(stdout(&output), stdout(&plain));
}

/// Services ignore SIGPIPE, and a program that inherits that gets an error instead of its end.
#[test]
fn what_was_ignored_stays_ignored_in_the_program() {
    let of = |start: &str| {
        let script = format!("trap '' PIPE CHLD; {start}grep ^SigIgn /proc/self/status");
        let mut command = Command::new("sh");
        command.args(["-c", &script, CULEAK]).env_remove("LD_PRELOAD");
        let folder = folder();
        command.current_dir(folder.path()).env("CULEAK_CACHE_DIR", "");
        stdout(&command.output().expect("sh starts"))
    };
    let bare = of("");
    assert!(!bare.is_empty());
    assert_eq!(of("\"$0\" run -q --no-report -- "), bare);
}

/// Rust's runtime opens /dev/null in place of closed descriptors.
#[test]
fn a_closed_standard_descriptor_stays_closed_in_the_program() {
    for (closing, script, bare) in [
        ("<&-", "cat", 1),
        (">&-", "echo x", 1),
        ("2>&-", "echo x >&2", 1),
        (">&-", "exec true", 0),
        ("<&- >&- 2>&-", "test -e /proc/self/fd/1", 1),
    ] {
        for run in ["", "\"$0\" run -q --no-report -- "] {
            let folder = folder();
            let mut command = Command::new("sh");
            command.args(["-c", &format!("{run}sh -c '{script}' {closing}"), CULEAK]);
            command.current_dir(folder.path()).env("CULEAK_CACHE_DIR", "");
            let status = command.stderr(Stdio::null()).status().expect("sh starts");
            let code = status.code().map(|code| code.min(1));
            assert_eq!(code, Some(bare), "{run}{script} {closing}");
        }
    }
}

#[test]
fn input_and_output_belong_to_the_program() {
    let folder = folder();
    let mut child = culeak(folder.path())
        .args(["run", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("culeak starts");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(b"some input")
        .expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(stdout(&output), "some input");
    assert!(stderr(&output).contains("nothing recorded"), "{}", stderr(&output));
}

#[test]
fn options_after_the_program_belong_to_the_program() {
    let output = run(&["sh", "-c", "echo $1", "name", "--check"]);
    assert_eq!(stdout(&output), "--check\n");
}

#[test]
fn the_library_is_preloaded_before_others() {
    let folder = folder();
    let print = [
        "run",
        "--depth",
        "7",
        "--only",
        "py*",
        "--",
        "sh",
        "-c",
        "echo $LD_PRELOAD; echo $CULEAK_DEPTH,$CULEAK_ONLY",
    ];
    let path = culeak(folder.path()).arg("shim-path").output().expect("culeak starts");
    let path = stdout(&path).trim().to_owned();
    assert!(Path::new(&path).is_file(), "{path}");
    let mut command = culeak(folder.path());
    // A library that always exists and changes nothing.
    let output = command
        .args(print)
        .env("LD_PRELOAD", "libc.so.6")
        .output()
        .expect("culeak starts");
    assert_eq!(
        stdout(&output),
        format!("{path}:libc.so.6\n7,py*\n"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_script_runs_as_without_culeak() {
    let folder = folder();
    script(&folder, "job", "#!/bin/sh\necho \"job $1\"\nexit 3\n", 0o755);
    let output = run_in(&folder, &["--", "./job", "one"]);
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("job one\n", Some(3)));
    assert!(!stderr(&output).contains("warning"), "{}", stderr(&output));
}

#[test]
fn a_program_without_cuda_passes_the_check_and_leaves_no_file() {
    let folder = folder();
    let output = check_in(&folder, &["--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
}

#[test]
fn children_without_the_library_are_mentioned() {
    let output = check_in(&folder(), &["--", "sh", "-c", "env -u LD_PRELOAD true; :"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let message = stderr(&output);
    assert!(
        message.contains("child processes without LD_PRELOAD are not recorded"),
        "{message}"
    );
    let help = stdout(&run(&["--help"]));
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        help.matches("child processes without the preload library").count(),
        1,
        "{help}"
    );
}

#[test]
fn a_recording_can_be_required_even_of_a_program_without_cuda() {
    let output = check_in(&folder(), &["--", "true"]);
    assert!(
        stderr(&output).contains("no process with the preload library requested memory from CUDA; child processes without LD_PRELOAD are not recorded"),
        "{}",
        stderr(&output)
    );
    let required = ["--require-recording", "--", "true"];
    for output in [run(&required), check_in(&folder(), &required)] {
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}

#[test]
fn a_folder_that_cannot_hold_a_recording_is_reported_before_the_program_runs() {
    let folder = folder();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 1; exec \"$0\" run -- echo ran", CULEAK]);
    let limited = limited.current_dir(&folder).output().expect("sh starts");
    // Even root cannot create files there.
    let read_only = run(&["-o", "/sys", "--", "echo", "ran"]);
    for output in [limited, read_only] {
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(2), ""),
            "{}",
            stderr(&output)
        );
        let message = stderr(&output);
        assert!(
            message.contains("cannot hold a recording") && message.contains("--output"),
            "{message}"
        );
    }
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
}

#[test]
fn the_demo_finds_what_it_planted() {
    let folder = folder();
    let output = culeak(folder.path())
        .args(["demo", "--fake"])
        .output()
        .expect("culeak starts");
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    assert!(
        stdout(&output).contains("exactly the 10 planted leaks"),
        "{}",
        stdout(&output)
    );
    // Its files are removed, so no message names one to read later.
    assert!(!stderr(&output).contains("culeak report"), "{}", stderr(&output));
}

#[test]
fn the_doctor_reports_no_failure_on_this_machine() {
    let folder = folder();
    let output = culeak(folder.path()).arg("doctor").output().expect("culeak starts");
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
}

#[test]
fn a_recording_with_any_name_is_reported_and_its_name_escaped() {
    let folder = folder();
    // Replaces the library: a snapshot is read like a recording.
    let json = serde_json::to_vec(&sample::leaky()).expect("JSON");
    fs::write(folder.path().join("snapshot"), json).expect("written");
    let text = "odd=$(printf 'a\\033[31m\\377b')\n\
                name=$(echo \"$CULEAK_OUTPUT\" | sed 's/%e/app/; s/%h/host/; s/%p/1/')\n\
                cp snapshot \"${name%/*}/$odd${name##*/}\"\n";
    script(&folder, "app", text, 0o700);
    let output = run_in(&folder, &["--no-report", "-o", "runs", "--", "./app"]);
    let message = stderr(&output);
    assert!(message.contains("culeak: recorded runs/a\\u{1b}[31m"), "{message:?}");
    let output = run_in(&folder, &["-o", "runs", "--", "./app"]);
    let message = stderr(&output);
    assert!(
        message.contains("3 call sites leak") && !message.contains('\u{1b}'),
        "{message:?}"
    );
}
