//! Checks and reports of what a program left.

use super::*;

/// The number of recordings in a folder, without automatic snapshots.
pub fn recordings(folder: &Path) -> usize {
    let names = fs::read_dir(folder)
        .expect("made")
        .flatten()
        .map(|entry| entry.file_name());
    names.filter(|name| name.to_string_lossy().ends_with(".culeak")).count()
}

/// `culeak run` with the demo program and the fake driver.
fn run_leaking(folder: &TempDir, words: &[&str]) -> Output {
    leaking(folder, &[&["run"], words].concat())
}

/// This command with the demo program and the fake driver.
fn leaking(folder: &TempDir, words: &[&str]) -> Output {
    let driver = culeak(folder.path())
        .args(["shim-path", "--fake-driver"])
        .output()
        .expect("culeak starts");
    let mut command = culeak(folder.path());
    command.args(words).args(["--", CULEAK, "demo-program"]);
    command
        .env("LD_LIBRARY_PATH", stdout(&driver).trim())
        .output()
        .expect("culeak starts")
}

#[test]
fn a_check_since_a_mark_that_the_program_did_not_set_fails() {
    let folder = folder();
    let output = leaking(&folder, &["check", "--allow", "1GiB", "--since", "warm"]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("cannot be judged by --since: the program set no mark \"warm\", and no others"),
        "{message}"
    );
}

#[test]
fn the_next_command_after_automatic_snapshots_reads_the_last_one_at_which_memory_ran_out() {
    let folder = folder();
    let output = run_leaking(&folder, &["--no-report", "-o", "runs", "--snapshot", "peak:1"]);
    let message = stderr(&output);
    let next = message.split("next: culeak report ").nth(1).expect("a command").trim();
    assert!(
        next.contains(".out-of-memory-") && Path::new(next).exists(),
        "{message}"
    );
    let output = run_leaking(&folder, &["--no-report", "-o", "peaks", "--snapshot", "peak:1,oom:0"]);
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
    assert_eq!(leaking(&folder, &["check"]).status.code(), Some(1));
    let lenient = leaking(&folder, &["check", "--allow", "1GiB"]);
    assert_eq!(lenient.status.code(), Some(0), "{}", stderr(&lenient));
}

#[test]
fn rules_apply_to_a_run_and_mistakes_in_them_are_reported_before_it() {
    let folder = folder();
    fs::write(folder.path().join("demo.supp"), "leak:demo_program\n").expect("written");
    let suppressed = leaking(&folder, &["check", "--suppressions", "demo.supp"]);
    assert_eq!(suppressed.status.code(), Some(0), "{}", stderr(&suppressed));
    assert!(
        stderr(&suppressed).contains("by leak:demo_program (demo.supp:1)"),
        "{}",
        stderr(&suppressed)
    );
    fs::write(folder.path().join("bad.supp"), "demo_program\n").expect("written");
    let bad = check_in(&folder, &["--suppressions", "bad.supp", "--", "echo", "ran"]);
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
        ("all", "--no-pool", 1),
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
