//! Wrong usage, wrong variables, and programs that cannot be started.

use super::*;

#[test]
fn a_missing_program_is_127() {
    let output = run(&["--", "no-such-program-anywhere"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("not found in PATH"), "{}", stderr(&output));
    assert_eq!(run(&["--", "./no-such-file"]).status.code(), Some(127));
    let output = run(&["--", ""]);
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).contains("is empty"), "{}", stderr(&output));
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
        &["--record", "everything", "--", "true"],
        &["--snapshot", "oom:1,oom:2", "--", "true"],
        &["--no-such", "--", "true"],
    ] {
        assert_eq!(run(words).status.code(), Some(2), "{words:?}");
    }
}

#[test]
fn a_file_is_not_taken_for_the_folder_of_the_recordings() {
    let folder = folder();
    for name in ["report.html", "app.culeak"] {
        let output = run_in(&folder, &["-o", name, "--", "true"]);
        let expected = format!("{name}: --output is the folder of the recordings");
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
        assert!(output.status.code() == Some(2) && !folder.path().join(name).exists());
    }
    fs::create_dir(folder.path().join("v1.json")).expect("a folder");
    assert_eq!(run_in(&folder, &["-o", "v1.json", "--", "true"]).status.code(), Some(0));
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
        "--snapshot",
        "every:1m",
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
        &["check", "x", "--allow", "much"],
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
            ["live", "1", "--every", "often"],
            "expected a time such as 500ms, 10s, 1m or 2h",
        ),
        (["live", "1", "--every", "1ms"], "expected a time from 50ms to 1h"),
        (
            ["trend", "x", "--every", "3w"],
            "unknown unit \"w\"; use ms, s, m, h or d",
        ),
        (["export", "x", "--kind", "tape"], "--kind tape: no such value; "),
    ] {
        let folder = folder();
        let output = culeak(folder.path()).args(words).output().expect("culeak starts");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(expected), "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn a_wrong_word_is_answered_with_what_to_type() {
    for (words, expected) in [
        (
            &["report", "x", "--top", "-1"][..],
            "-1: no value of an option is below 0",
        ),
        (
            &["report", "x", "--min-bytes", "-1.5"],
            "-1.5: no value of an option is below 0",
        ),
        (&["report", "x", "--top", "abc"], "--top abc: expected a whole number"),
        (
            &["report", "x", "--top", "99999999999999999999"],
            "--top 99999999999999999999: expected a smaller number",
        ),
        (
            &["run", "--depth", "x", "--", "true"],
            "--depth x: expected a whole number",
        ),
        (
            &["run", "--depth", "0", "--", "true"],
            "--depth 0: expected a whole number from 1 to 256",
        ),
        (
            &["no-such-name"],
            "culeak has no command no-such-name; culeak help lists all",
        ),
        (
            &["reprot", "x"],
            "culeak has no command reprot; did you mean report or export?",
        ),
        (
            &["record", "x"],
            "culeak has no command record; did you mean 'culeak run'?",
        ),
        (
            &["report", "x", "--nothing"],
            "culeak report has no --nothing; culeak help report lists all",
        ),
        (
            &["report", "x", "--min-byte", "4"],
            "culeak report has no --min-byte; did you mean --min-bytes? culeak help report lists all",
        ),
        (&["--nothing"], "culeak has no --nothing; culeak help lists all"),
        (
            &["shim-path", "x"],
            "x is one argument too many; type: culeak shim-path",
        ),
        (
            &["help", "reprot"],
            "reprot: neither a command nor a guide; did you mean report or",
        ),
    ] {
        let folder = folder();
        let output = culeak(folder.path()).args(words).output().expect("culeak starts");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let message = stderr(&output).replace("\n       ", " ");
        assert!(
            message.starts_with(&format!("culeak: error: {expected}")),
            "{words:?}: {message}"
        );
    }
}

#[test]
fn help_lists_the_variables() {
    let folder = folder();
    let output = culeak(folder.path()).args(["help", "environment"]).output();
    let output = output.expect("culeak starts");
    assert!(output.status.success());
    for variable in culeak::variables::ALL {
        assert!(stdout(&output).contains(variable.name()), "{}", stdout(&output));
    }
}

#[test]
fn a_folder_that_cannot_be_created_is_reported_before_the_program_runs() {
    let output = run(&["--output", "/proc/nowhere", "--", "echo", "ran"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("--output"), "{}", stderr(&output));
}
