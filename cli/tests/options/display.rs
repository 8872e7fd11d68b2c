//! The pager, quiet and verbose messages, the width of the terminal, guides.

use super::terminal::on_a_terminal;
use super::*;

/// What a shell script shows on a terminal of 24 rows and 80 columns. `culeak` in it is the program under test.
fn shown(folder: &Path, variables: &[(&str, &str)], script: &str) -> String {
    let mut command = culeak(folder, &[]);
    let words = ["-c", &format!("culeak() {{ {CULEAK} \"$@\"; }}; {script}")];
    let mut shell = Command::new("/bin/sh");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
        .current_dir(folder)
        .args(words)
        .env("NO_COLOR", "1")
        .envs(variables.iter().copied());
    command = shell;
    on_a_terminal(command, 80, |command, terminal| {
        let another = || terminal.try_clone().expect("a descriptor");
        command.stdin(another()).stdout(another());
    })
}

/// Each line that the pager shows begins with `paged:`.
const MARKS: (&str, &str) = ("CULEAK_PAGER", "sed 's/^/paged: /'");

#[test]
fn a_text_longer_than_the_terminal_is_paged_and_the_exit_code_stays() {
    let folder = folder();
    let shown = |variables: &[(&str, &str)], script: &str| shown(folder.path(), variables, script);
    let paged = shown(
        &[MARKS],
        "culeak report leaky.json --view stacks --view ledger; echo code $?",
    );
    assert!(
        paged.contains("paged: process 4711") && paged.contains("\ncode 0"),
        "{paged}"
    );
    let paged = shown(
        &[MARKS],
        "culeak check leaky.json --allow site=1KiB --format markdown; echo code $?",
    );
    assert!(paged.contains("\ncode 1"), "{paged}");
    let general = shown(&[("PAGER", MARKS.1)], "culeak help config");
    assert!(general.contains("paged: Config"), "{general}");
    let own = shown(
        &[("PAGER", "false"), MARKS],
        "culeak report leaky.json --view stacks --view ledger",
    );
    assert!(own.contains("paged: process 4711"), "CULEAK_PAGER wins: {own}");
    let options = shown(&[MARKS], "culeak report --help; echo code $?");
    assert!(
        options.contains("paged: Usage: culeak report") && options.contains("\ncode 0"),
        "{options}"
    );
}

#[test]
fn what_fits_or_is_not_for_a_terminal_is_not_paged() {
    let folder = folder();
    let shown = |variables: &[(&str, &str)], script: &str| shown(folder.path(), variables, script);
    let not_paged = |text: String, part: &str| assert!(text.contains(part) && !text.contains("paged:"), "{text}");
    not_paged(shown(&[MARKS], "culeak report clean.json"), "nothing");
    not_paged(shown(&[MARKS], "culeak report leaky.json --no-pager"), "GPU 0");
    not_paged(shown(&[MARKS], "culeak report leaky.json | cat"), "GPU 0");
    not_paged(shown(&[MARKS], "culeak report leaky.json </dev/null"), "GPU 0");
    not_paged(shown(&[MARKS], "TERM=dumb culeak report leaky.json"), "GPU 0");
    not_paged(
        shown(&[("CULEAK_PAGER", ""), ("PAGER", MARKS.1)], "culeak report leaky.json"),
        "GPU 0",
    );
    not_paged(shown(&[("PAGER", "cat")], "culeak report leaky.json"), "GPU 0");
    not_paged(
        shown(&[MARKS], "culeak report --help --no-pager"),
        "Usage: culeak report",
    );
    fs::write(folder.path().join("culeak.toml"), "[display]\npager = false\n").expect("written");
    not_paged(shown(&[MARKS], "culeak report leaky.json"), "GPU 0");
}

#[test]
fn a_pager_that_is_missing_or_quits_early_is_no_error() {
    let folder = folder();
    let with = |pager: &str| {
        shown(
            folder.path(),
            &[("CULEAK_PAGER", pager)],
            "culeak report leaky.json --view stacks --view ledger; echo code $?",
        )
    };
    let missing = with("no-such-pager");
    assert!(missing.contains("GPU 0") && missing.contains("\ncode 0"), "{missing}");
    for pager in ["true", "false", "head -n 1"] {
        let early = with(pager);
        assert!(early.contains("code 0") && !early.contains("error"), "{pager}: {early}");
    }
    // Without less, the text is printed, and nothing is said about it.
    let path = tempfile::tempdir().expect("a temporary folder");
    let path = path.path().display().to_string();
    let without = shown(
        folder.path(),
        &[("PATH", &path)],
        "culeak report leaky.json --view stacks --view ledger; echo code $?",
    );
    assert!(
        without.contains("GPU 0") && without.contains("\ncode 0") && !without.contains("pager"),
        "{without}"
    );
}

#[test]
fn columns_replaces_the_width_of_the_terminal_and_a_pipe_has_none() {
    let folder = folder();
    let widest = |columns: &str, script: &str| {
        let text = shown(folder.path(), &[("COLUMNS", columns)], script);
        text.lines()
            .map(|line| line.trim_end().chars().count())
            .max()
            .expect("lines")
    };
    let (narrow, wide) = (
        widest("50", "culeak help exit-codes --no-pager"),
        widest("90", "culeak help exit-codes --no-pager"),
    );
    assert!(narrow < wide, "{narrow} {wide}");
    let report = "culeak report leaky.json --no-pager";
    assert!(widest("50", report) <= 50);
    assert_eq!(widest("nonsense", report), widest("80", report));
    let piped = format!("{report} | cat");
    assert_eq!(widest("50", &piped), widest("120", &piped));
}

#[test]
fn quiet_leaves_errors_warnings_and_results_and_verbose_adds_what_is_used() {
    let folder = project("[run]\noutput = \"recordings\"\n");
    let message = |words: &[&str]| {
        let ended = run(folder.path(), words).output().expect("culeak starts");
        text(&ended.stderr)
    };
    assert!(message(&["--no-report"]).contains("culeak: recorded "));
    assert!(!message(&["--no-report", "-q"]).contains("culeak: recorded "));
    let report = message(&["--quiet"]);
    assert!(report.contains("call sites leak"), "{report}");
    let verbose = message(&["--no-report", "-v"]);
    for part in [
        "culeak: config file: culeak.toml",
        "culeak: LD_PRELOAD=",
        "culeak: CULEAK_OUTPUT=",
    ] {
        assert!(verbose.contains(part), "{part}: {verbose}");
    }
    let stderr = |words: &[&str]| stderr(folder.path(), words);
    assert!(stderr(&["check", "leaky.json", "--baseline", "b.json", "--update-baseline"]).contains("baseline written"));
    let again = ["check", "leaky.json", "--baseline", "c.json", "--update-baseline", "-q"];
    assert_eq!(stderr(&again), "");
    assert!(
        stderr(&["report", "missing.json", "-q"]).contains("error"),
        "errors remain"
    );
    assert_eq!(code(folder.path(), &["report", "leaky.json", "-q", "-v"]), 2);
}

#[test]
fn a_program_without_run_gets_the_command_that_records_it() {
    let folder = folder();
    for (program, is_one) in [("ls", true), ("/bin/sh", true), ("./missing", false), ("runn", false)] {
        let ended = output(folder.path(), &[program, "-c", ":"]);
        assert_eq!(ended.status.code(), Some(2));
        let expected = format!("culeak run -- {program} …");
        assert_eq!(
            text(&ended.stderr).contains(&expected),
            is_one,
            "{}",
            text(&ended.stderr)
        );
    }
    let nothing = stderr(folder.path(), &[]);
    assert!(nothing.starts_with("Find the GPU memory"), "{nothing}");
}

#[test]
fn help_shows_options_guides_and_their_list() {
    let folder = folder();
    let list = stdout(folder.path(), &["help"]);
    assert!(list.contains("\nRead:\n") && list.contains("\nGuides:\n"), "{list}");
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        list.lines()
            .any(|line| words(line).starts_with("ci fail") && line.ends_with("(sections: exit-codes, pytest)")),
        "{list}"
    );
    let guide = stdout(folder.path(), &["help", "exit-codes"]);
    assert!(
        guide.starts_with("Exit codes\n") && !guide.contains("Output formats"),
        "{guide}"
    );
    // A table of two columns that do not fit.
    let sampling = stdout(folder.path(), &["help", "sampling"]);
    assert!(
        sampling.contains("\nexact\n") && sampling.contains("    estimated, marked ≈: sums by call site"),
        "{sampling}"
    );
    let by_file = stdout(folder.path(), &["help", "frameworks"]);
    assert_eq!(by_file, stdout(folder.path(), &["help", "python"]));
    let slurm = stdout(folder.path(), &["help", "slurm"]);
    assert!(
        slurm.starts_with("Slurm\n") && !slurm.contains("jupyter lab"),
        "{slurm}"
    );
    let both = stdout(folder.path(), &["help", "trend"]);
    assert!(
        both.contains("Usage: culeak trend") && both.contains("--fail-on"),
        "{both}"
    );
    assert!(
        both.contains("\nLeaks and caches") || both.len() > 6000,
        "the guide follows: {both}"
    );
    let unknown = output(folder.path(), &["help", "nonsense"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(
        text(&unknown.stderr).contains("neither a command nor a guide"),
        "{unknown:?}"
    );
}
