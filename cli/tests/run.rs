//! Claims about `culeak run` itself and how it treats the program; none needs a GPU or a compiler.

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
fn a_missing_program_is_127() {
    let output = run(&["--", "no-such-program-anywhere"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("not found in PATH"), "{}", stderr(&output));
    assert_eq!(run(&["--", "./no-such-file"]).status.code(), Some(127));
}

#[test]
fn a_program_that_cannot_be_executed_is_126() {
    let folder = folder();
    script(&folder, "data", "not executable", 0o644);
    for program in ["./data", "/"] {
        let output = run_in(&folder, &["--", program]);
        assert_eq!(output.status.code(), Some(126), "{program}: {}", stderr(&output));
    }
}

#[test]
fn wrong_usage_is_2() {
    for words in [
        &[][..],
        &["--depth", "0", "--", "true"],
        &["--max-count", "1", "--", "true"],
        &["--no-such", "--", "true"],
    ] {
        assert_eq!(run(words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn a_wrong_variable_is_an_error_before_the_program_runs() {
    for (name, value, expected) in [
        (
            "CULEAK_DEPTH",
            "abc",
            "CULEAK_DEPTH=abc: expected a whole number from 1 to 256",
        ),
        (
            "CULEAK_SNAPSHOT_AT_PEAK",
            "1 parsec",
            "CULEAK_SNAPSHOT_AT_PEAK=1 parsec: expected a size such as",
        ),
        (
            "CULEAK_SNAPSHOT_EVERY",
            "often",
            "CULEAK_SNAPSHOT_EVERY=often: expected a time such as 500ms",
        ),
        ("CULEAK_QUIET", "perhaps", "CULEAK_QUIET=perhaps: expected 1 or 0"),
        (
            "CULEAK_OUTPUTT",
            "x",
            "CULEAK_OUTPUTT: unknown variable; did you mean CULEAK_OUTPUT?",
        ),
        (
            "CULEAK_WEATHER",
            "x",
            "CULEAK_WEATHER: unknown variable; `culeak help environment` lists them",
        ),
    ] {
        let folder = folder();
        let mut command = culeak(folder.path());
        let output = command.args(["run", "--", "echo", "ran"]).env(name, value).output();
        let output = output.expect("culeak starts");
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(2), ""),
            "{name}={value}"
        );
        let message = stderr(&output);
        assert!(
            message.starts_with("culeak: error: environment: ") && message.contains(expected),
            "{message}"
        );
    }
}

#[test]
fn variables_accept_the_units_of_options() {
    let folder = folder();
    let mut command = culeak(folder.path());
    command.args([
        "run",
        "--snapshot-every",
        "1m",
        "--",
        "sh",
        "-c",
        "echo $CULEAK_SNAPSHOT_AT_PEAK,$CULEAK_SNAPSHOT_EVERY",
    ]);
    let output = command
        .env("CULEAK_SNAPSHOT_AT_PEAK", "1MiB")
        .output()
        .expect("culeak starts");
    assert_eq!(stdout(&output), "1MiB,60\n", "{}", stderr(&output));
}

#[test]
fn every_error_has_the_same_prefix() {
    for words in [
        &["run"][..],
        &["report", "no-such-file"],
        &["check", "x", "--max-leaked", "much"],
        &["report", "x", "--min-bytes", "1 parsec"],
        &["no-such-command"],
        &["run", "--", "./no-such-program"],
        &["trend", "no-such-folder"],
    ] {
        let folder = folder();
        let output = culeak(folder.path()).args(words).output().expect("culeak starts");
        assert!(
            stderr(&output).starts_with("culeak: error: "),
            "{words:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn a_wrong_size_or_time_is_reported_with_what_is_expected() {
    for (words, expected) in [
        (
            ["report", "x", "--min-bytes", "much"],
            "expected a size such as 4096, 64MiB or 1.5GB",
        ),
        (["report", "x", "--min-bytes", "1QB"], "unknown unit \"QB\"; use B, KiB"),
        (
            ["live", "1", "--interval", "often"],
            "expected a time such as 500ms, 10s, 1m or 2h",
        ),
        (["live", "1", "--interval", "1ms"], "expected a time from 50ms to 1h"),
        (
            ["trend", "x", "--every", "3w"],
            "unknown unit \"w\"; use ms, s, m, h or d",
        ),
        (
            ["export", "x", "--kind", "tape"],
            "[possible values: device, pitched, array",
        ),
    ] {
        let folder = folder();
        let output = culeak(folder.path()).args(words).output().expect("culeak starts");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(expected), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn help_lists_the_variables() {
    let folder = folder();
    let output = culeak(folder.path()).args(["help", "environment"]).output();
    let output = output.expect("culeak starts");
    assert!(
        output.status.success() && stdout(&output).contains("\n  CULEAK_SNAPSHOT_EVERY\n"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn a_folder_that_cannot_be_created_is_reported_before_the_program_runs() {
    let output = run(&["--output", "/proc/nowhere", "--", "echo", "ran"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("--output"), "{}", stderr(&output));
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
    let output = run_in(&folder, &["--check", "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
}

#[test]
fn children_without_the_library_are_mentioned() {
    let output = run(&["--check", "--", "sh", "-c", "env -u LD_PRELOAD true; :"]);
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
        2,
        "{help}"
    );
}

#[test]
fn a_recording_can_be_required_even_of_a_program_without_cuda() {
    let output = run(&["--check", "--", "true"]);
    assert!(
        stderr(&output).contains("no process with the preload library requested memory from CUDA; child processes without LD_PRELOAD are not recorded"),
        "{}",
        stderr(&output)
    );
    for words in [
        &["--require-recording", "--", "true"][..],
        &["--check", "--require-recording", "--", "true"],
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
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

/// Checks a shell script on the fake driver; `$0` is a program that uses CUDA.
fn check_of_script(options: &[&str], script: &str) -> Output {
    let folder = folder();
    let driver = culeak(folder.path())
        .args(["shim-path", "--fake-driver"])
        .output()
        .expect("culeak starts");
    let mut command = culeak(folder.path());
    command.args(["run", "--check", "--max-leaked", "1GiB", "-o", "out"]);
    command.args(options).args(["--", "sh", "-c", script, CULEAK]);
    command.env("LD_LIBRARY_PATH", stdout(&driver).trim());
    command.output().expect("culeak starts")
}

#[test]
fn a_check_fails_if_a_process_that_used_cuda_was_not_recorded() {
    let recorded = check_of_script(&[], "$0 demo-program; exit 0");
    assert_eq!(recorded.status.code(), Some(0), "{}", stderr(&recorded));
    let unrecorded: [(&[&str], &str, &str); 10] = [
        (&[], "exec env -u LD_PRELOAD \"$0\" demo-program", "keep LD_PRELOAD"),
        (&[], "rm -r out; $0 demo-program; exit 0", "could not be created in"),
        // One process has a recording, another has none.
        (
            &[],
            "$0 demo-program; mv out moved; ln -s out out; $0 demo-program; rm out; mv moved out",
            "since a process was not recorded",
        ),
        (&["--only", "other*"], "$0 demo-program; exit 0", "--only"),
        (
            &["--no-follow-children"],
            "$0 demo-program; exit 0",
            "--no-follow-children",
        ),
        (&[], "CULEAK_DISABLE=1 $0 demo-program; exit 0", "CULEAK_DISABLE"),
        (
            &[],
            "$0 demo-program; CULEAK_DISABLE=1 $0 demo-program; exit 0",
            "since a process was not recorded",
        ),
        (&[], "$0 demo-program; rm out/*; exit 0", "removed, moved"),
        (
            &[],
            "$0 demo-program; CULEAK_OUTPUT=$PWD/elsewhere.culeak $0 demo-program; exit 0",
            "since a process was not recorded",
        ),
        // It changes its user before its first CUDA call; needs root.
        (
            &[],
            "python3 -c 'import ctypes, os; cuda = ctypes.CDLL(\"libcuda.so.1\"); os.setuid(12345); cuda.cuInit(0)'; exit 0",
            "could not be created in",
        ),
    ];
    for (options, script, reason) in unrecorded {
        let output = check_of_script(options, script);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{script}: {message}");
        assert!(
            message.contains("no verdict") && message.contains(reason),
            "{script}: {message}"
        );
    }
}

#[test]
fn a_check_fails_if_the_library_does_not_load() {
    let folder = folder();
    let mut command = culeak(folder.path());
    // The loader warns that it cannot preload this, and continues without it.
    fs::write(folder.path().join("broken.so"), "no library").expect("written");
    command.env("CULEAK_SHIM", folder.path().join("broken.so"));
    let output = command
        .args(["run", "--check", "--", "true"])
        .output()
        .expect("culeak starts");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("was not loaded into the program"),
        "{}",
        stderr(&output)
    );
}

/// The number of recordings in a folder, without automatic snapshots.
fn recordings(folder: &Path) -> usize {
    let names = fs::read_dir(folder)
        .expect("made")
        .flatten()
        .map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".culeak")).count()
}

/// `culeak run` with the demo program and the fake driver.
fn run_leaking(folder: &TempDir, words: &[&str]) -> Output {
    let driver = culeak(folder.path())
        .args(["shim-path", "--fake-driver"])
        .output()
        .expect("culeak starts");
    let mut command = culeak(folder.path());
    command.arg("run").args(words).args(["--", CULEAK, "demo-program"]);
    command
        .env("LD_LIBRARY_PATH", stdout(&driver).trim())
        .output()
        .expect("culeak starts")
}

#[test]
fn a_check_since_a_mark_that_the_program_did_not_set_fails() {
    let folder = folder();
    let output = run_leaking(&folder, &["--check", "--max-leaked", "1GiB", "--since", "warm"]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("has no mark \"warm\"; the program set none"),
        "{message}"
    );
}

#[test]
fn the_next_command_after_automatic_snapshots_reads_the_last_one_at_which_memory_ran_out() {
    let folder = folder();
    let output = run_leaking(&folder, &["--no-report", "-o", "runs", "--snapshot-at-peak", "1"]);
    let message = stderr(&output);
    let next = message.split("next: culeak report ").nth(1).expect("a command").trim();
    assert!(
        next.contains(".out-of-memory-") && Path::new(next).exists(),
        "{message}"
    );
    let output = run_leaking(
        &folder,
        &[
            "--no-report",
            "-o",
            "peaks",
            "--snapshot-at-peak",
            "1",
            "--oom-snapshots",
            "0",
        ],
    );
    let message = stderr(&output);
    let next = message.split("next: culeak report ").nth(1).expect("a command").trim();
    assert!(next.ends_with(".culeak") && Path::new(next).exists(), "{message}");
}

#[test]
fn a_leaking_program_is_reported_on_stderr_and_keeps_its_exit_code() {
    let folder = folder();
    let output = run_leaking(&folder, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("forget_weights"), "{}", stderr(&output));
    assert!(!stdout(&output).contains("call sites leak"), "{}", stdout(&output));
}

#[test]
fn the_check_turns_a_leak_into_exit_code_1() {
    let folder = folder();
    assert_eq!(run_leaking(&folder, &["--check"]).status.code(), Some(1));
    let lenient = run_leaking(&folder, &["--check", "--max-leaked", "1GiB"]);
    assert_eq!(lenient.status.code(), Some(0), "{}", stderr(&lenient));
}

#[test]
fn rules_apply_to_a_run_and_mistakes_in_them_are_reported_before_it() {
    let folder = folder();
    fs::write(folder.path().join("demo.supp"), "leak:demo_program\n").expect("written");
    let suppressed = run_leaking(&folder, &["--check", "--no-report", "--suppressions", "demo.supp"]);
    assert_eq!(suppressed.status.code(), Some(0), "{}", stderr(&suppressed));
    assert!(
        stderr(&suppressed).contains("by leak:demo_program (demo.supp:1)"),
        "{}",
        stderr(&suppressed)
    );
    fs::write(folder.path().join("bad.supp"), "demo_program\n").expect("written");
    let bad = run_in(&folder, &["--check", "--suppressions", "bad.supp", "--", "echo", "ran"]);
    assert_eq!((bad.status.code(), stdout(&bad).as_str()), (Some(2), ""));
    assert!(stderr(&bad).contains("bad.supp:1:1:"), "{}", stderr(&bad));
}

#[test]
fn runs_share_a_folder_without_mixing_their_recordings() {
    let folder = folder();
    run_leaking(&folder, &["-o", "runs", "--no-report"]);
    let second = run_leaking(&folder, &["-o", "runs", "--no-report"]);
    assert_eq!(recordings(&folder.path().join("runs")), 2);
    assert_eq!(stderr(&second).matches(".culeak\n").count(), 1, "{}", stderr(&second));
}

#[test]
fn a_report_can_go_to_a_file() {
    let folder = folder();
    let output = run_leaking(&folder, &["--report-file", "leaks.txt"]);
    let report = fs::read_to_string(folder.path().join("leaks.txt")).expect("written");
    assert!(
        report.contains("forget_weights") && !report.contains('\u{1b}'),
        "{report}"
    );
    assert!(!stderr(&output).contains("forget_weights"), "{}", stderr(&output));
    // Reported before the program runs, which may take days.
    let again = run_in(&folder, &["--report-file", "leaks.txt", "--", "echo", "ran"]);
    assert_eq!((again.status.code(), stdout(&again).as_str()), (Some(2), ""));
    assert!(stderr(&again).contains("--force"), "{}", stderr(&again));
    assert_eq!(
        fs::read_to_string(folder.path().join("leaks.txt")).expect("there"),
        report
    );
    let forced = run_leaking(&folder, &["--report-file", "leaks.txt", "--force"]);
    assert!(forced.status.success(), "{}", stderr(&forced));
}

#[test]
fn only_and_no_follow_children_select_processes() {
    let folder = folder();
    let driver = culeak(folder.path())
        .args(["shim-path", "--fake-driver"])
        .output()
        .expect("culeak starts");
    // The shell has another command, so it runs the program as a child.
    let nested = format!("{CULEAK} demo-program; exit 0");
    let choices = [
        ("none", "--no-follow-children", 0),
        ("other", "--only=other*", 0),
        ("ours", "--only=cul?ak", 1),
        ("all", "--follow-children", 1),
    ];
    for (runs, option, expected) in choices {
        let mut command = culeak(folder.path());
        command.args(["run", "-o", runs, option, "--no-report", "--", "sh", "-c", &nested]);
        let output = command
            .env("LD_LIBRARY_PATH", stdout(&driver).trim())
            .output()
            .expect("culeak starts");
        let found = recordings(&folder.path().join(runs));
        assert_eq!(found, expected, "{option}: {}", stderr(&output));
    }
    let direct = run_leaking(&folder, &["-o", "direct", "--no-follow-children"]);
    assert_eq!(recordings(&folder.path().join("direct")), 1, "{}", stderr(&direct));
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
