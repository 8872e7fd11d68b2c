//! Claims about options: filters, several inputs, colours, the config file, completions and manual pages. Recordings are of
//! the demo program on the built-in fake driver.

#[path = "options/categories.rs"]
mod categories;
#[path = "options/config.rs"]
mod config;
#[path = "options/display.rs"]
mod display;
#[path = "options/features.rs"]
mod features;
#[path = "options/filters.rs"]
mod filters;
#[path = "options/objects.rs"]
mod objects;
#[path = "options/running.rs"]
mod running;
#[path = "../../tests/support/sample.rs"]
mod sample;
#[path = "../../tests/support/terminal.rs"]
mod terminal;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use culeak::snapshot::{Mark, Snapshot};
use sample::{MIB, Sample, leaky, leaky_without_pool, serving};
use serde_json::Value;
use tempfile::TempDir;

const CULEAK: &str = env!("CARGO_BIN_EXE_culeak");

/// A folder with `leaky.json`, `clean.json`, `grown.json` and `early.json` in it, and `pool.json`, which leaks the same and has a pool.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut grown = leaky_without_pool();
    grown.taken.at_ns += 1_000_000_000;
    let mut early = leaky_without_pool();
    early.allocations.truncate(28);
    for (name, snapshot) in [
        ("leaky.json", &leaky_without_pool()),
        ("clean.json", &Sample::new().finish(0, 9)),
        ("grown.json", &grown),
        ("early.json", &early),
        ("pool.json", &leaky()),
    ] {
        fs::write(folder.path().join(name), serde_json::to_vec(snapshot).expect("JSON")).expect("written");
    }
    folder
}

/// The same, and `serving.json`, which has objects.
fn with_objects(folder: TempDir) -> TempDir {
    let json = serde_json::to_vec(&serving()).expect("JSON");
    fs::write(folder.path().join("serving.json"), json).expect("written");
    folder
}

fn culeak(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(CULEAK);
    command.current_dir(folder).args(words).stdin(Stdio::null());
    command.env("CULEAK_CACHE_DIR", "");
    for variable in [
        "NO_COLOR",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "LD_PRELOAD",
        "CULEAK_CONFIG",
        "CULEAK_PAGER",
        "PAGER",
        "LESS",
        "COLUMNS",
        "GITHUB_WORKSPACE",
    ] {
        command.env_remove(variable);
    }
    command
}

fn output(folder: &Path, words: &[&str]) -> Output {
    culeak(folder, words).output().expect("culeak starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn stdout(folder: &Path, words: &[&str]) -> String {
    text(&output(folder, words).stdout)
}

fn stderr(folder: &Path, words: &[&str]) -> String {
    text(&output(folder, words).stderr)
}

fn code(folder: &Path, words: &[&str]) -> i32 {
    output(folder, words).status.code().expect("no signal")
}

fn json(folder: &Path, words: &[&str]) -> Value {
    let output = output(folder, words);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)))
}

/// The folder of the built-in fake driver.
fn fake_driver() -> &'static str {
    static FOLDER: OnceLock<String> = OnceLock::new();
    FOLDER.get_or_init(|| {
        stdout(Path::new("/"), &["shim-path", "--fake-driver"])
            .trim()
            .to_owned()
    })
}

/// `culeak run` with these words and the demo program, which leaks.
fn run(folder: &Path, words: &[&str]) -> Command {
    let mut command = culeak(folder, &[&["run"], words, &["--", CULEAK, "demo-program"]].concat());
    command.env("LD_LIBRARY_PATH", fake_driver());
    command
}

/// A folder with the samples and this config file.
fn project(config: &str) -> TempDir {
    let folder = folder();
    fs::write(folder.path().join("culeak.toml"), config).expect("written");
    folder
}

// ---- several inputs

#[test]
fn a_gpu_that_was_never_used_and_a_mark_that_was_never_set_are_refused_with_those_that_there_are() {
    let folder = with_objects(folder());
    let refused = |words: &[&str]| {
        let output = output(folder.path(), words);
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(2), &b""[..]),
            "{words:?}"
        );
        text(&output.stderr)
    };
    let unused = "leaky.json: the process used no memory on GPU 7; it used GPU 0";
    for words in [
        &["report", "leaky.json", "--device", "7"][..],
        &["report", "leaky.json", "--device", "7", "--json"],
    ] {
        let message = refused(words);
        assert!(message.contains(unused), "{words:?}: {message}");
    }
    let mut marked = leaky();
    for (name, time_ns) in [("asleep", 1), ("awake", 2), ("asleep", 3)] {
        marked.marks.push(Mark {
            name: name.to_owned(),
            time_ns,
            thread: 0,
        });
    }
    fs::write(
        folder.path().join("marked.json"),
        serde_json::to_vec(&marked).expect("JSON"),
    )
    .expect("written");
    let message = refused(&["report", "marked.json", "--at", "mark:nope"]);
    assert!(
        message.contains("the program set no mark \"nope\"; it set \"asleep\", \"awake\""),
        "{message}"
    );
    let message = refused(&["run", "--sample", "512KiB", "--timeline", "--", "true"]);
    assert!(
        message.contains("--sample: --timeline needs the stack of every block; leave out one of the two"),
        "{message}"
    );
}

#[test]
fn an_input_that_is_named_again_is_read_once() {
    let folder = folder();
    let report = output(folder.path(), &["report", "leaky.json", "./leaky.json"]);
    let (text, notes) = (text(&report.stdout), text(&report.stderr));
    assert!(
        notes.contains("note: ./leaky.json: named again; it is read once"),
        "{notes}"
    );
    assert_eq!(
        text,
        stdout(folder.path(), &["report", "leaky.json"]),
        "the report of one process"
    );
    let check = stdout(folder.path(), &["check", "leaky.json", "./leaky.json"]);
    assert!(check.starts_with("failed: 1.2 GiB in 132 blocks leaked"), "{check}");
}

#[test]
fn check_judges_every_input_and_all_must_pass() {
    let folder = folder();
    let code = |words: &[&str]| code(folder.path(), words);
    assert_eq!(code(&["check", "clean.json", "clean.json"]), 0);
    assert_eq!(code(&["check", "clean.json", "leaky.json"]), 1);
    let text = stdout(folder.path(), &["check", "clean.json", "leaky.json"]);
    assert!(
        text.contains("== clean.json ==") && text.contains("== leaky.json =="),
        "{text}"
    );
    let verdicts = json(folder.path(), &["check", "clean.json", "leaky.json", "--json"]);
    let passed: Vec<_> = verdicts
        .as_array()
        .expect("a list")
        .iter()
        .map(|verdict| &verdict["passed"])
        .collect();
    assert_eq!(passed, [true, false]);
}

#[test]
fn check_judges_readable_inputs_and_fails_because_of_the_others() {
    let folder = folder();
    let output = output(folder.path(), &["check", "missing.json", "clean.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("missing.json"), "{output:?}");
    let verdict = text(&output.stdout);
    assert!(
        verdict.contains("no verdict") && verdict.contains("1 other input"),
        "{output:?}"
    );
    let baseline = [
        "check",
        "clean.json",
        "missing.json",
        "--baseline",
        "b.json",
        "--update-baseline",
    ];
    assert_eq!(code(folder.path(), &baseline), 2);
    assert!(!folder.path().join("b.json").exists(), "a baseline of half the inputs");
}

#[test]
fn a_diff_in_which_memory_grew_ends_with_the_command_that_shows_its_stacks() {
    let folder = folder();
    let grown = stdout(folder.path(), &["diff", "early.json", "leaky.json", "--top", "1"]);
    let next = "next: culeak diff early.json leaky.json --top 1 --view stacks\n";
    assert!(grown.ends_with(next), "{grown}");
    let stacks = stdout(folder.path(), &["diff", "early.json", "leaky.json", "--view", "stacks"]);
    assert!(
        !stacks.contains("next: ") && stacks.contains("/src/train.cu"),
        "{stacks}"
    );
    let shrunk = stdout(folder.path(), &["diff", "leaky.json", "early.json"]);
    assert!(!shrunk.contains("next: "), "{shrunk}");
}

// ---- diff --tree

#[test]
fn a_difference_is_shown_as_a_tree() {
    let folder = folder();
    let tree = stdout(folder.path(), &["diff", "early.json", "leaky.json", "--view", "tree"]);
    let line = |name: &str| {
        let line = tree.lines().find(|line| line.contains(name));
        line.unwrap_or_else(|| panic!("no {name} in:\n{tree}")).to_owned()
    };
    assert!(line("Trainer::step").contains("train.cu:212"), "{tree}");
    let grown = line("Trainer::run");
    let numbers: Vec<&str> = grown.split_whitespace().collect();
    assert_eq!(&numbers[..5], ["+900", "MiB", "+100", "1.1", "GiB"], "{tree}");
    assert!(tree.contains(": grew by 964 MiB to 1.2 GiB"), "{tree}");
    let same = stdout(folder.path(), &["diff", "leaky.json", "grown.json", "--view", "tree"]);
    assert!(same.contains("no change") && !same.contains("Trainer"), "{same}");
    let all = stdout(
        folder.path(),
        &["diff", "leaky.json", "grown.json", "--view", "tree", "--all"],
    );
    assert!(all.contains("Trainer::step"), "{all}");
}

// ---- colours

#[test]
fn color_overrides_the_environment() {
    let folder = folder();
    let coloured = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = culeak(folder.path(), words);
        command.envs(variables.iter().copied());
        text(&command.output().expect("culeak starts").stdout).contains('\u{1b}')
    };
    let report = ["report", "leaky.json"];
    let with = |when| [&report[..], &["--color", when]].concat();
    assert!(!coloured(&report, &[]), "in a pipe");
    assert!(coloured(&with("always"), &[]));
    assert!(coloured(&with("always"), &[("NO_COLOR", "1")]));
    assert!(!coloured(&with("never"), &[("CLICOLOR_FORCE", "1")]));
    assert!(coloured(&with("auto"), &[("CLICOLOR_FORCE", "1")]));
    assert!(
        coloured(&["--color", "always", "report", "leaky.json"], &[]),
        "before the command too"
    );
    // A dumb terminal is no terminal, unless colours are forced.
    let dumb = [("TERM", "dumb"), ("CLICOLOR_FORCE", "1")];
    assert!(coloured(&report, &dumb) && !coloured(&report, &dumb[..1]));
    assert_eq!(code(folder.path(), &with("sometimes")), 2);
}

// ---- run

#[test]
fn run_writes_a_page() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let words = ["--html", "page.html", "--no-report"];
    let ended = run(folder.path(), &words).output().expect("culeak starts");
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let page = fs::read_to_string(folder.path().join("page.html")).expect("a page");
    assert!(page.contains("forget_weights"), "the page is of another program");
    assert!(!text(&ended.stderr).contains("forget_weights"), "no report");
    // A mistake is reported before the program runs.
    let again = run(folder.path(), &words).output().expect("culeak starts");
    assert_eq!(again.status.code(), Some(2));
    assert!(
        text(&again.stderr).contains("page.html: already exists"),
        "{}",
        text(&again.stderr)
    );
    assert!(!text(&again.stdout).contains("round"), "the program ran");
}

#[test]
fn a_check_of_a_program_writes_a_verdict_for_another_tool_and_prints_it_as_text() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let check = |words: &[&str]| {
        let mut command = culeak(
            folder.path(),
            &[&["check"], words, &["--", CULEAK, "demo-program"]].concat(),
        );
        let output = command.env("LD_LIBRARY_PATH", fake_driver()).output();
        output.expect("culeak starts")
    };
    let words = ["--format", "junit", "--verdict-file", "leaks.xml"];
    let ended = check(&words);
    let shown = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{shown}");
    let verdict = fs::read_to_string(folder.path().join("leaks.xml")).expect("a verdict");
    assert!(
        verdict.starts_with("<?xml") && verdict.contains("forget_weights"),
        "{verdict}"
    );
    assert!(!shown.contains("<?xml") && shown.contains("failed: "), "{shown}");
    assert!(
        text(&ended.stdout).contains("round") && !text(&ended.stdout).contains("failed: "),
        "standard output is the program's"
    );
    // The verdict of an earlier check is replaced; another file is a mistake, which is reported before the program runs.
    assert_eq!(check(&words).status.code(), Some(1));
    fs::write(folder.path().join("leaks.xml"), "<notes/>").expect("written");
    let again = check(&words);
    assert_eq!(
        (again.status.code(), again.stdout.len()),
        (Some(2), 0),
        "{}",
        text(&again.stderr)
    );
    let shown = text(&check(&["--format", "markdown"]).stderr);
    assert!(shown.contains("| "), "a table of Markdown: {shown}");
    // The recordings are judged as when they are inputs.
    let later = output(folder.path(), &["check", "."]);
    assert_eq!(later.status.code(), Some(1));
}

/// Of a program that failed, the rest is not known; and an older verdict does not pass for one that there is not.
#[test]
fn no_document_says_passed_unless_the_check_passed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("verdict.json");
    let words = ["--allow", "1GiB", "--format", "json", "--verdict-file", "verdict.json"];
    let check = |words: &[&str], script: &str| {
        let words = [&["check"], words, &["--", "sh", "-c", script, CULEAK]].concat();
        let output = culeak(folder.path(), &words)
            .env("LD_LIBRARY_PATH", fake_driver())
            .output();
        output.expect("culeak starts").status.code()
    };
    assert_eq!(check(&words, "$0 demo-program; exit 0"), Some(0));
    assert!(
        fs::read_to_string(&file)
            .expect("a verdict")
            .contains("\"passed\": true")
    );
    assert_eq!(check(&words, "$0 demo-program; exit 3"), Some(3));
    assert!(
        !fs::read_to_string(&file)
            .expect("a verdict")
            .contains("\"passed\": true")
    );
    assert_eq!(check(&words, "CULEAK_DISABLE=1 $0 demo-program; exit 0"), Some(2));
    assert!(!file.exists(), "the verdict of an earlier check");
    assert_eq!(check(&words, "$0 demo-program; exit 0"), Some(0));
    fs::write(folder.path().join("culeak.toml"), "[check]\nunknown = 1\n").expect("written");
    assert_eq!(check(&words, "$0 demo-program; exit 0"), Some(2));
    assert!(!file.exists(), "nothing was judged");
}

#[test]
fn the_file_of_the_verdict_replaces_no_input_and_no_text_of_others() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let words = [
        "check",
        "leaky.json",
        "--allow",
        "1TiB",
        "--allow-losses",
        "--verdict-file",
    ];
    let check = |more: &[&str]| code(folder.path(), &[&words[..], more].concat());
    let before = fs::read(at("leaky.json")).expect("a snapshot");
    assert_eq!(check(&["leaky.json", "--force"]), 2);
    assert_eq!(fs::read(at("leaky.json")).expect("a snapshot"), before);
    fs::write(at("mine"), "passed: my own tests\n").expect("written");
    assert_eq!(check(&["mine"]), 2);
    assert!(fs::read_to_string(at("mine")).expect("a file").contains("my own tests"));
    for format in ["text", "json", "junit", "sarif", "github", "markdown"] {
        for _ in 0..2 {
            assert_eq!(check(&[format, "--format", format]), 0, "{format}");
        }
        let failed = [
            &["check", "leaky.json", "--format", format, "--verdict-file", format][..],
            &["--allow", "1KiB"],
        ];
        for _ in 0..2 {
            assert_eq!(code(folder.path(), &failed.concat()), 1, "{format}");
        }
    }
}

#[test]
fn a_check_without_a_recording_writes_no_verdict() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let words = [
        "check",
        "--require-recording",
        "--verdict-file",
        "leaks.txt",
        "--",
        "true",
    ];
    let ended = output(folder.path(), &words);
    assert_eq!(ended.status.code(), Some(2));
    let message = text(&ended.stderr);
    assert!(message.contains("no verdict, since there is no recording"), "{message}");
    assert!(!folder.path().join("leaks.txt").exists());
}

// ---- completions and manual pages

#[test]
fn completions_offer_the_values_of_options() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(folder().path(), &["setup", "completions", shell]);
        for value in ["host-physical", "host-physical=", "grown", "sarif"] {
            assert!(script.contains(value), "{shell}: no {value}");
        }
    }
}

#[test]
fn completions_offer_the_values_of_arguments() {
    let fish = stdout(folder().path(), &["setup", "completions", "fish"]);
    let of = |command: &str| {
        let condition = format!("-n \"__fish_culeak_using_subcommand {command}\" -f -a \"");
        let line = fish.lines().find(|line| line.contains(&condition));
        line.unwrap_or_else(|| panic!("fish: no values for {command}"))
            .to_owned()
    };
    for subject in ["quickstart", "exit-codes", "report"] {
        assert!(of("help").contains(subject), "{}", of("help"));
    }
}

#[test]
fn completions_are_written_to_a_folder_and_replaced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (shell, file) in [
        ("bash", "culeak"),
        ("zsh", "_culeak"),
        ("fish", "culeak.fish"),
        ("elvish", "culeak.elv"),
        ("powershell", "_culeak.ps1"),
    ] {
        for _ in 0..2 {
            assert_eq!(
                code(folder.path(), &["setup", "completions", shell, "--out", "share/it"]),
                0,
                "{shell}"
            );
        }
        let script = fs::read(folder.path().join("share/it").join(file)).expect(file);
        assert_eq!(text(&script), stdout(folder.path(), &["setup", "completions", shell]));
    }
    fs::write(folder.path().join("share/it/culeak"), "something else").expect("written");
    let refused = stderr(folder.path(), &["setup", "completions", "bash", "--out", "share/it"]);
    assert!(refused.contains("already exists"), "{refused}");
}

#[test]
fn manual_pages_are_replaced_but_other_files_are_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let man = ["setup", "man", "--out", "share/man/man1"];
    assert_eq!((code(folder.path(), &man), code(folder.path(), &man)), (0, 0));
    let page = folder.path().join("share/man/man1/culeak-run.1");
    fs::write(&page, "notes of mine").expect("written");
    assert_eq!(code(folder.path(), &man), 2);
    assert_eq!(fs::read_to_string(&page).expect("a file"), "notes of mine");
    assert_eq!(code(folder.path(), &[&man[..], &["--force"]].concat()), 0);
}

#[test]
fn the_headers_are_those_of_the_packages_and_only_headers_are_replaced() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let packaged = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shim/include").join(name);
        fs::read_to_string(path).expect("a header")
    };
    assert_eq!(stdout(folder.path(), &["setup", "header"]), packaged("culeak.h"));
    let write = ["setup", "header", "--out", "include"];
    assert_eq!((code(folder.path(), &write), code(folder.path(), &write)), (0, 0));
    let written = |name: &str| fs::read_to_string(folder.path().join("include").join(name)).expect("a header");
    for name in ["culeak.h", "culeak_rmm.hpp"] {
        assert_eq!(written(name), packaged(name));
    }
    fs::write(folder.path().join("include/culeak.h"), "mine").expect("written");
    assert_eq!(
        (code(folder.path(), &write), written("culeak.h")),
        (2, "mine".to_owned())
    );
}

// ---- first steps

#[test]
fn a_second_demo_in_the_same_folder_works() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for _ in 0..2 {
        let mut demo = culeak(folder.path(), &["demo", "--fake", "-o", "tour"]);
        let demo = demo.output().expect("culeak starts");
        let said = text(&demo.stdout);
        let mut typed = said.lines().filter(|line| line.starts_with("$ culeak "));
        assert!(
            typed.all(|line| line.contains(" tour")),
            "as it can be typed here: {said}"
        );
        assert_eq!(
            demo.status.code(),
            Some(0),
            "{}{}",
            text(&demo.stdout),
            text(&demo.stderr)
        );
    }
    let names = fs::read_dir(folder.path().join("tour")).expect("a folder").flatten();
    let snapshots = names.filter(|entry| entry.file_name().to_string_lossy().starts_with("before."));
    let snapshots: Vec<PathBuf> = snapshots.map(|entry| entry.path()).collect();
    assert_eq!(snapshots.len(), 2);
    // Its process has ended since.
    let report = output(folder.path(), &["report", &snapshots[0].display().to_string()]);
    let next = text(&report.stdout);
    let next = next.lines().find(|line| line.starts_with("next: ")).unwrap_or_default();
    assert!(
        next.starts_with("next: culeak diff ") && next.ends_with(".culeak"),
        "{next}"
    );
}

#[test]
fn commands_of_other_tools_get_a_hint() {
    for (word, expected) in [
        (
            "attach",
            "cannot attach to a running program; start it with 'culeak run",
        ),
        ("top", "'culeak live'"),
        ("quickstart", "culeak help quickstart"),
    ] {
        let output = output(folder().path(), &[word, "4711"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}
