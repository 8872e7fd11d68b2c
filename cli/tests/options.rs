//! Claims about options: filters, several inputs, colours, the config file, completions and manual pages. Recordings are of
//! the demo program on the built-in fake driver.

#[path = "../../tests/support/sample.rs"]
mod sample;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use culeak::snapshot::{Mark, Snapshot};
use sample::{MIB, Sample, leaky, serving};
use serde_json::Value;
use tempfile::TempDir;

const CULEAK: &str = env!("CARGO_BIN_EXE_culeak");

/// A folder with `leaky.json`, `clean.json`, `grown.json` and `early.json` in it.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut grown = leaky();
    grown.taken.at_ns += 1_000_000_000;
    let mut early = leaky();
    early.allocations.truncate(28);
    for (name, snapshot) in [
        ("leaky.json", &leaky()),
        ("clean.json", &Sample::new().finish(0, 9)),
        ("grown.json", &grown),
        ("early.json", &early),
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

// ---- several inputs

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
    assert!(text(&output.stdout).contains("passed"), "{output:?}");
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

// ---- filters

/// `words` for a report of leaky.json.
fn filtered(words: &[&str]) -> Value {
    json(folder().path(), &[&["report", "leaky.json", "--json"], words].concat())
}

fn held(report: &Value) -> u64 {
    let held = &report["totals"]["held"];
    ["blocks", "device", "managed", "host"]
        .iter()
        .map(|place| held[place]["bytes"].as_u64().expect("bytes"))
        .sum()
}

/// Held by leaky.json: 1152 MiB by Trainer::step, 64 MiB pinned, 12 KiB managed; 40 MiB are cached.
const ALL: u64 = (1152 + 64) * MIB + 3 * 4096;

#[test]
fn a_filter_applies_to_rows_and_totals_and_shows_what_it_leaves_out() {
    assert_eq!(held(&filtered(&[])), ALL);
    assert!(filtered(&[])["filter"].is_null());
    for (words, expected) in [
        (&["--kind", "pinned"][..], 64 * MIB),
        (&["--kind", "pinned", "--kind", "managed"], 64 * MIB + 3 * 4096),
        (&["--device", "0"], ALL - 64 * MIB),
        (&["--device", "host"], 64 * MIB),
        (&["--device", "host", "--device", "0"], ALL),
        (&["--focus", "Trainer::step"], 1152 * MIB),
        (&["--focus", "^train.cu$"], 1152 * MIB),
        (&["--focus", "weights.cu", "--focus", "libfancy"], 64 * MIB + 3 * 4096),
        (&["--ignore", "Trainer"], ALL - 1152 * MIB),
        (
            &["--focus", "main", "--ignore", "Trainer", "--kind", "managed"],
            3 * 4096,
        ),
    ] {
        let report = filtered(words);
        assert_eq!(held(&report), expected, "{words:?}");
        let pools = report["totals"]["pool"]["bytes"].as_u64().expect("bytes");
        let left_out = report["filter"]["left_out"]["bytes"].as_u64().expect("bytes");
        assert_eq!(expected + pools + left_out, ALL + 40 * MIB, "{words:?}");
        let rows = report["rows"].as_array().expect("rows").iter();
        let rows: u64 = rows.map(|row| row["bytes"].as_u64().expect("bytes")).sum();
        assert_eq!(rows, expected + pools, "{words:?}");
    }
}

#[test]
fn a_filter_applies_to_rows_by_size() {
    let report = filtered(&["--by", "size", "--kind", "pinned"]);
    assert_eq!(report["rows"].as_array().expect("rows").len(), 1);
    assert_eq!((held(&report), report["hidden_rows"].as_u64()), (64 * MIB, Some(0)));
}

#[test]
fn since_leaves_out_what_was_allocated_before_the_mark() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut snapshot = leaky();
    // Records are made a second apart from second 10 on.
    snapshot.marks.push(Mark {
        time_ns: 20_000_000_000,
        name: "warm".to_owned(),
        thread: 0,
    });
    let json_text = serde_json::to_vec(&snapshot).expect("JSON");
    fs::write(folder.path().join("marked.json"), json_text).expect("written");
    let expected: u64 = snapshot
        .allocations
        .iter()
        .filter(|allocation| allocation.time_ns >= 20_000_000_000)
        .map(|allocation| allocation.bytes)
        .sum();
    for by in ["site", "size", "kind"] {
        let words = ["report", "marked.json", "--json", "--since", "warm", "--by", by];
        let report = json(folder.path(), &words);
        let rows = report["rows"].as_array().expect("rows").iter();
        let rows: u64 = rows.map(|row| row["bytes"].as_u64().expect("bytes")).sum();
        assert_eq!(rows, expected, "by {by}");
        assert!(report["filter"]["left_out"]["bytes"].as_u64() > Some(0));
    }
    let unknown = stdout(folder.path(), &["report", "marked.json", "--since", "tepid"]);
    assert!(unknown.contains("no mark \"tepid\""), "{unknown}");
}

#[test]
fn a_check_since_an_unknown_mark_fails_and_names_the_marks() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut snapshot = Sample::new().finish(0, 9);
    let write = |name: &str, snapshot: &Snapshot| {
        fs::write(folder.path().join(name), serde_json::to_vec(snapshot).expect("JSON")).expect("written");
    };
    write("bare.json", &snapshot);
    snapshot.marks = ["warm", "epoch 1", "warm"]
        .into_iter()
        .map(|name| Mark {
            time_ns: 20_000_000_000,
            name: name.to_owned(),
            thread: 0,
        })
        .collect();
    write("marked.json", &snapshot);
    let check = |inputs: &[&str], since: &str| {
        let output = culeak(folder.path(), &[&["check", "--since", since], inputs].concat()).output();
        let output = output.expect("culeak starts");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let (code, message) = check(&["marked.json"], "tepid");
    assert_eq!(code, Some(2), "{message}");
    assert!(
        message.contains("has no mark \"tepid\"; name one that the program set: \"warm\", \"epoch 1\"\n"),
        "{message}"
    );
    let (code, message) = check(&["bare.json", "marked.json"], "warm");
    assert!(
        code == Some(2) && message.contains("bare.json") && message.contains("the program set none"),
        "{message}"
    );
    assert_eq!(check(&["marked.json"], "warm").0, Some(0));
}

#[test]
fn a_peak_that_rises_by_nothing_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = culeak(folder.path(), &["run", "--snapshot-at-peak", "0", "--", "true"]).output();
    let output = output.expect("culeak starts");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("0 takes no snapshot; give the size"), "{message}");
}

#[test]
fn every_form_of_a_report_is_filtered_and_shows_the_filter() {
    let folder = folder();
    let filter_line = "stack does not match Trainer; leaves out 1.1 GiB in 128 blocks";
    let report = |words: &[&str]| {
        stdout(
            folder.path(),
            &[&["report", "leaky.json", "--ignore", "Trainer"], words].concat(),
        )
    };
    let plain = report(&[]);
    assert!(plain.contains(filter_line) && plain.contains("(filtered)"), "{plain}");
    assert!(!plain.contains("Trainer::step"), "{plain}");
    let tree = report(&["--tree"]);
    assert!(tree.contains(filter_line) && !tree.contains("Trainer::step"), "{tree}");
    let graph = report(&["--flamegraph", "-"]);
    assert!(
        graph.contains(filter_line) && !graph.contains("Trainer::step"),
        "{graph}"
    );
    let page = report(&["--html", "-"]);
    // The text for browsers without scripts; the page itself is drawn from the same report.
    assert!(
        page.contains(filter_line) && !page.contains("Trainer::step"),
        "an unfiltered page"
    );
    let whole = stdout(folder.path(), &["report", "leaky.json"]);
    assert!(!whole.contains("filter"), "{whole}");
}

#[test]
fn a_filter_without_matches_is_not_reported_as_a_clean_program() {
    let folder = folder();
    let text = stdout(folder.path(), &["report", "leaky.json", "--kind", "array"]);
    assert!(text.contains("no leaked memory passes the filter"), "{text}");
    assert!(text.contains("next: culeak report leaky.json\n"), "{text}");
}

#[test]
fn an_invalid_filter_is_refused() {
    let folder = folder();
    for words in [
        &["--kind", "tape"][..],
        &["--device", "-1"],
        &["--device", "GPU"],
        &["--focus", "*"],
        &["--ignore", ""],
    ] {
        let words = [&["report", "leaky.json"], words].concat();
        assert_eq!(code(folder.path(), &words), 2, "{words:?}");
    }
}

// ---- diff --tree

#[test]
fn a_difference_is_shown_as_a_tree() {
    let folder = folder();
    let tree = stdout(folder.path(), &["diff", "early.json", "leaky.json", "--tree"]);
    let line = |name: &str| {
        let line = tree.lines().find(|line| line.contains(name));
        line.unwrap_or_else(|| panic!("no {name} in:\n{tree}")).to_owned()
    };
    assert!(line("Trainer::step").contains("train.cu:212"), "{tree}");
    let grown = line("Trainer::run");
    let numbers: Vec<&str> = grown.split_whitespace().collect();
    assert_eq!(&numbers[..5], ["+900", "MiB", "+100", "1.1", "GiB"], "{tree}");
    assert!(tree.contains("grew by") && tree.contains("total "), "{tree}");
    let same = stdout(folder.path(), &["diff", "leaky.json", "grown.json", "--tree"]);
    assert!(same.contains("no change") && !same.contains("Trainer"), "{same}");
    let all = stdout(folder.path(), &["diff", "leaky.json", "grown.json", "--tree", "--all"]);
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
    assert_eq!(code(folder.path(), &with("sometimes")), 2);
}

// ---- run

#[test]
fn run_writes_a_page_and_a_verdict_for_another_tool() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let words = [
        "--html",
        "page.html",
        "--check",
        "--format",
        "junit",
        "--verdict-file",
        "leaks.xml",
        "--no-report",
    ];
    let ended = run(folder.path(), &words).output().expect("culeak starts");
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    let page = fs::read_to_string(folder.path().join("page.html")).expect("a page");
    assert!(page.contains("forget_weights"), "the page is of another program");
    let verdict = fs::read_to_string(folder.path().join("leaks.xml")).expect("a verdict");
    assert!(
        verdict.starts_with("<?xml") && verdict.contains("forget_weights"),
        "{verdict}"
    );
    assert!(!text(&ended.stderr).contains("<?xml"), "{}", text(&ended.stderr));
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
fn run_writes_a_verdict_in_another_format_after_the_report() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let words = ["--check", "--format", "markdown", "--report-file", "report.md"];
    let ended = run(folder.path(), &words).output().expect("culeak starts");
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    let written = fs::read_to_string(folder.path().join("report.md")).expect("a report");
    let (report, verdict) = written.split_once("\nnext: ").expect("a report first");
    assert!(report.contains("call sites leak"), "{written}");
    assert!(verdict.contains("| "), "a table of Markdown: {written}");
    let words = ["run", "--format", "junit", "--", "true"];
    assert_eq!(code(folder.path(), &words), 2, "a format without --check");
}

#[test]
fn a_check_without_a_recording_writes_no_page_and_no_verdict() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let words = [
        "run",
        "--check",
        "--require-recording",
        "--html",
        "page.html",
        "--verdict-file",
        "leaks.txt",
        "--",
        "true",
    ];
    let ended = output(folder.path(), &words);
    assert_eq!(ended.status.code(), Some(2));
    let message = text(&ended.stderr);
    assert!(message.contains("no verdict, since there is no recording"), "{message}");
    for file in ["page.html", "leaks.txt"] {
        assert!(!folder.path().join(file).exists(), "{file}");
    }
}

// ---- processes that run

/// The demo program between its rounds, with its process id.
struct Running {
    child: Child,
    pid: String,
    _folder: TempDir,
}

impl Running {
    fn start() -> Running {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = run(folder.path(), &["--no-report"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("culeak starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let round = lines.find_map(|line| line.ok().filter(|line| line.starts_with("round")));
        let round = round.expect("a round ends");
        // Closing the pipe early would end the program by SIGPIPE.
        std::thread::spawn(move || lines.count());
        Running {
            child,
            pid: round.rsplit(' ').next().expect("a word").to_owned(),
            _folder: folder,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut input) = self.child.stdin.take() {
            let _ = writeln!(input);
        }
        let _ = self.child.wait();
    }
}

#[test]
fn running_processes_are_shown_listed_and_written_with_all() {
    let running = Running::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pid = running.pid.as_str();
    // No terminal is needed.
    let once = output(folder.path(), &["live", pid, "--once"]);
    let screen = text(&once.stdout);
    assert_eq!(once.status.code(), Some(0), "{}", text(&once.stderr));
    assert!(
        screen.starts_with(&format!("culeak: {pid} ")) && screen.contains("running for"),
        "{screen}"
    );
    assert!(
        screen.contains("forget_weights") && screen.contains("not recorded:"),
        "{screen}"
    );
    assert!(!screen.contains("q quit") && !screen.contains('\u{1b}'), "{screen}");

    let list = json(folder.path(), &["snapshot", "--list", "--json"]);
    assert_eq!(list["format"], "culeak-processes");
    let ours = |process: &&Value| process["pid"].as_u64() == pid.parse().ok();
    let process = list["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .find(ours)
        .expect("ours");
    assert_eq!(process["state"], "recorded");
    assert!(process["device_bytes"].as_u64() > Some(0), "{process}");

    // Other tests may start and end processes meanwhile, so only this process is checked.
    let all = output(folder.path(), &["snapshot", "--all", "-o", "deep/all"]);
    let names = || {
        fs::read_dir(folder.path().join("deep/all"))
            .expect("a folder")
            .flatten()
    };
    let files: Vec<PathBuf> = names().map(|entry| entry.path()).collect();
    let ending = format!(".{pid}.json");
    let file = files.iter().find(|path| path.to_string_lossy().ends_with(&ending));
    let file = file.unwrap_or_else(|| panic!("{files:?} {}", text(&all.stderr)));
    let snapshot = fs::read(file).expect("a snapshot");
    let snapshot: Value = serde_json::from_slice(&snapshot).expect("JSON");
    assert_eq!(snapshot["process"]["pid"].to_string(), pid);
    let again = text(&output(folder.path(), &["snapshot", "--all", "-o", "deep/all"]).stderr);
    assert!(again.contains(&format!("{ending}: already exists")), "{again}");
}

#[test]
fn once_without_a_recording_reports_what_is_missing() {
    let folder = folder();
    let missing = output(folder.path(), &["live", "missing.culeak", "--once"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        text(&missing.stderr).contains("missing.culeak, which does not exist"),
        "{missing:?}"
    );
    assert_eq!(code(folder.path(), &["live", "--once", "--", "true"]), 2);
}

#[test]
fn the_doctor_prints_json() {
    let doctor = json(folder().path(), &["doctor", "--json"]);
    assert_eq!(
        (&doctor["format"], &doctor["version"]),
        (&"culeak-doctor".into(), &1.into())
    );
    let findings = doctor["findings"].as_array().expect("a list");
    let of_level = |level: &str| findings.iter().filter(|finding| finding["level"] == level).count() as u64;
    assert!(of_level("ok") > 0, "{doctor}");
    assert_eq!(doctor["failures"].as_u64(), Some(of_level("fail")));
    assert_eq!(doctor["warnings"].as_u64(), Some(of_level("warn")));
}

// ---- the config file

/// A folder with the samples and this config file.
fn project(config: &str) -> TempDir {
    let folder = folder();
    fs::write(folder.path().join("culeak.toml"), config).expect("written");
    folder
}

#[test]
fn limits_come_from_the_config_file_unless_the_command_line_sets_them() {
    let folder = project("[check]\nmax-leaked = \"2GiB\"\n");
    let code = |words: &[&str]| code(folder.path(), words);
    assert_eq!(code(&["check", "leaky.json"]), 0);
    assert_eq!(code(&["check", "leaky.json", "--max-leaked", "1MiB"]), 1);
    assert_eq!(code(&["check", "leaky.json", "--max-count", "3"]), 1, "both apply");
    assert_eq!(code(&["check", "leaky.json", "--no-config"]), 1);
}

#[test]
fn every_key_of_the_config_file_has_an_effect() {
    for (config, passes) in [
        ("max-leaked = 0", false),
        ("max-leaked = 2147483648", true),
        ("max-count = 3", false),
        ("max-count = 1000", true),
        ("max-per-site = \"1MiB\"", false),
        ("max-per-site = \"2GiB\"", true),
        ("max-kind = { pinned = \"1MiB\" }", false),
        ("max-kind = { pinned = \"64MiB\", managed = 12288 }", true),
        ("budget = { \"train.cu\" = \"1MiB\" }", false),
        ("budget = { \"train.cu\" = \"2GiB\" }", true),
        ("suppressions = [\"own.supp\"]", true),
        ("baseline = \"known.json\"", true),
        ("baseline = \"early.json\"", false),
        ("baseline = \"early.json\"\ntolerance = \"2GiB\"", false),
        ("baseline = \"early.json\"\nsuppressions = [\"new.supp\"]", false),
        (
            "baseline = \"early.json\"\nsuppressions = [\"new.supp\"]\ntolerance = \"2GiB\"",
            true,
        ),
        ("baseline = \"early.json\"\nfail-on = \"any\"", false),
    ] {
        let folder = project(&format!("[check]\n{config}\n"));
        fs::write(folder.path().join("own.supp"), "leak:main\n").expect("written");
        let new = "leak:load_weights\nleak:libfancy.so\n";
        fs::write(folder.path().join("new.supp"), new).expect("written");
        fs::copy(folder.path().join("leaky.json"), folder.path().join("known.json")).expect("copied");
        let output = output(folder.path(), &["check", "leaky.json"]);
        let expected = Some(i32::from(!passes));
        assert_eq!(
            output.status.code(),
            expected,
            "{config}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
    }
}

#[test]
fn rules_for_objects_are_generated_used_and_hide_them() {
    let folder = with_objects(project(""));
    let output = |words: &[&str]| output(folder.path(), words);
    let check = ["check", "serving.json", "--max-objects", "graph-exec=8"];
    let generated = output(&[&check[..], &["--gen-suppressions"]].concat());
    let rules = text(&generated.stdout);
    assert_eq!(
        rules,
        "# 40 graph-exec objects, server.cu:88\nsite:^Server::decode(Request const&)$ in ^server.cu$\n"
    );
    fs::write(folder.path().join("own.supp"), &rules).expect("written");
    let passed = output(&[&check[..], &["--suppressions", "own.supp"]].concat());
    let verdict = text(&passed.stdout);
    assert_eq!(passed.status.code(), Some(0), "{verdict}");
    assert!(
        verdict.starts_with("passed: 0 graph-exec objects left, allowed 8 graph-exec\nsuppressed: 40 objects\n"),
        "{verdict}"
    );
    assert!(!verdict.contains("never matched"), "{verdict}");
    let report = output(&["report", "serving.json", "--objects", "--suppressions", "own.supp"]);
    let report = text(&report.stdout);
    assert!(report.contains("destroyed  40 suppressed\n"), "{report}");
    assert!(!report.contains("40 graph-exec  Server::decode"), "{report}");
    let exported = output(&[
        "export",
        "serving.json",
        "--objects",
        "--suppressions",
        "own.supp",
        "-o",
        "objects.folded",
    ]);
    let notes = text(&exported.stderr);
    assert!(notes.contains("suppressed: 4") && notes.contains(" objects"), "{notes}");
}

#[test]
fn segments_and_objects_are_refused_with_a_reason_where_they_cannot_be_shown() {
    let folder = with_objects(project(""));
    for (words, part) in [
        (
            &["report", "serving.json", "--kind", "segment"][..],
            "has no record of memory from the kernel driver (segments)",
        ),
        (
            &["report", "serving.json", "--kind", "segment", "--kind", "device"],
            "name them without other kinds",
        ),
        (
            &["report", "serving.json", "--kind", "segment", "--objects"],
            "--objects does not apply to memory from the kernel driver",
        ),
        (
            &["report", "serving.json", "--kind", "stream", "--tree"],
            "which objects without an address do not have",
        ),
        (
            &["diff", "serving.json", "serving.json", "--kind", "stream", "--tree"],
            "which objects without an address do not have",
        ),
        (
            &["export", "serving.json", "--kind", "stream", "-o", "a.folded"],
            "add --objects to export them",
        ),
        (
            &["trend", "serving.json", "--kind", "host-segment"],
            "culeak trend does not show memory from the kernel driver; use culeak report --kind host-segment",
        ),
        (
            &["export", "serving.json", "--kind", "segment", "-o", "a.pftrace"],
            "this format does not show memory from the kernel driver",
        ),
        (
            &[
                "check",
                "serving.json",
                "--max-objects",
                "graph-exec=8",
                "--kind",
                "segment",
            ],
            "invalid value 'segment'",
        ),
    ] {
        let refused = output(folder.path(), words);
        let reason = text(&refused.stderr).replace("\n       ", " ");
        assert_eq!(refused.status.code(), Some(2), "{words:?}: {reason}");
        assert!(reason.contains(part), "{words:?}: {reason}");
    }
}

#[test]
fn objects_are_limited_on_the_command_line_and_in_the_config_file() {
    let folder = with_objects(project("[check]\nmax-objects = { graph-exec = 40, stream = 16 }\n"));
    let code = |words: &[&str]| code(folder.path(), words);
    assert_eq!(code(&["check", "serving.json"]), 0);
    assert_eq!(
        code(&["check", "serving.json", "--no-config"]),
        1,
        "memory fails without a limit"
    );
    assert_eq!(code(&["check", "serving.json", "--max-objects", "graph-exec=39"]), 1);
    assert_eq!(
        code(&[
            "check",
            "serving.json",
            "--max-objects",
            "event=12",
            "--max-leaked",
            "1GiB"
        ]),
        0
    );
    let output = |words: &[&str]| output(folder.path(), words);
    let unknown = output(&["check", "leaky.json"]);
    assert_eq!(unknown.status.code(), Some(2));
    let reason = text(&unknown.stderr);
    assert!(
        reason.contains("leaky.json: cannot be judged by --max-objects, because it has no record of objects"),
        "{reason}"
    );
    for (option, part) in [
        (
            "tape=1",
            "unknown kind of object; expected one of: pool, external, multicast, stream, event",
        ),
        (
            "device=1",
            "device is memory, whose limit is a size: --max-kind device=SIZE",
        ),
        ("stream=many", "expected a number of objects after stream="),
    ] {
        let refused = output(&["check", "serving.json", "--max-objects", option]);
        assert_eq!(refused.status.code(), Some(2), "{option}");
        assert!(
            text(&refused.stderr).contains(part),
            "{option}: {}",
            text(&refused.stderr)
        );
    }
    let refused = output(&["check", "serving.json", "--max-kind", "stream=1"]);
    assert!(
        text(&refused.stderr).contains("--max-objects stream=N"),
        "{}",
        text(&refused.stderr)
    );
    for format in ["github", "sarif", "junit", "markdown", "json"] {
        let words = [
            "check",
            "serving.json",
            "--max-objects",
            "graph-exec=8",
            "--format",
            format,
        ];
        let failed = output(&words);
        assert_eq!(failed.status.code(), Some(1), "{format}");
        let text = text(&failed.stdout);
        assert!(
            text.contains("Server::decode") || text.contains("Server\\:\\:decode"),
            "{format}: {text}"
        );
        assert!(text.contains("40"), "{format}: {text}");
    }
}

#[test]
fn objects_are_exported_where_a_format_can_hold_a_count() {
    let folder = with_objects(folder());
    let export = |words: &[&str]| {
        output(
            folder.path(),
            &[&["export", "serving.json", "--objects"], words].concat(),
        )
    };
    let folded = export(&["-o", "-", "--format", "folded"]);
    let lines = text(&folded.stdout);
    assert!(
        lines
            .lines()
            .any(|line| line.contains("Server::decode") && line.ends_with(" 40")),
        "{lines}"
    );
    let csv = text(&export(&["-o", "-", "--format", "csv"]).stdout);
    assert_eq!(csv.matches(",graph-exec,").count(), 40, "{csv}");
    let refused = export(&["-o", "x.pftrace"]);
    assert!(
        text(&refused.stderr).contains("use pprof, folded, csv or parquet"),
        "{}",
        text(&refused.stderr)
    );
    let unknown = output(folder.path(), &["export", "leaky.json", "--objects", "-o", "x.csv"]);
    assert!(
        text(&unknown.stderr).contains("has no record of objects at this point"),
        "{}",
        text(&unknown.stderr)
    );
}

#[test]
fn mistakes_in_the_config_file_are_reported_with_their_line() {
    for (config, expected) in [
        (
            "[check]\nmax-leeked = 1\n",
            "culeak.toml:2:1: unknown field `max-leeked`",
        ),
        ("[chekc]\n", "culeak.toml:1:2: unknown field `chekc`"),
        ("output = \"runs\"\n", "culeak.toml:1:1: unknown field `output`"),
        ("[run]\n\noutput = 3\n", "culeak.toml:3:10: invalid type"),
        ("[check]\nmax-leaked = \"much\"\n", "culeak.toml:2:14: \"much\""),
        ("[check]\nmax-leaked = -1\n", "culeak.toml:2:14: expected a size"),
        (
            "[check]\n\nmax-kind = { tape = 1 }\n",
            "culeak.toml:3:12: \"tape\": unknown kind of memory",
        ),
        (
            "[check]\nmax-objects = { device = 1 }\n",
            "culeak.toml:2:15: \"device\": device is memory, whose limit is a size: --max-kind device=SIZE",
        ),
        (
            "[check]\nmax-objects = { stream = \"1MiB\" }\n",
            "culeak.toml:2:26: invalid type",
        ),
        ("[check]\nbudget = { \"*\" = 1 }\n", "culeak.toml:2:10: \"*\""),
        (
            "[check]\nfail-on = \"old\"\n",
            "culeak.toml:2:11: expected one of new, grown, any, lost, cycle, native-holder, over-counted",
        ),
        ("[check\n", "culeak.toml:1:"),
    ] {
        let output = output(project(config).path(), &["check", "clean.json"]);
        assert_eq!(output.status.code(), Some(2), "{config}");
        assert!(
            text(&output.stderr).contains(expected),
            "{config}: {}",
            text(&output.stderr)
        );
        assert_eq!(output.stdout, b"", "{config}");
    }
}

#[test]
fn the_config_file_is_found_up_to_the_root_of_the_repository_and_no_further() {
    let folder = project("[check]\nmax-leaked = \"2GiB\"\n");
    let inside = folder.path().join("build/tests");
    fs::create_dir_all(&inside).expect("made");
    let check = ["check", "../../leaky.json"];
    assert_eq!(code(&inside, &check), 1, "no repository, no parent");
    fs::create_dir(folder.path().join(".git")).expect("made");
    assert_eq!(code(&inside, &check), 0, "the root's file");
    fs::create_dir(folder.path().join("build/.git")).expect("made");
    assert_eq!(code(&inside, &check), 1, "a repository in the repository");
    let named = [&check[..], &["--config", "../../culeak.toml"]].concat();
    assert_eq!(code(&inside, &named), 0);
    let mut by_variable = culeak(&inside, &check);
    by_variable.env("CULEAK_CONFIG", "../../culeak.toml");
    assert_eq!(by_variable.status().expect("culeak starts").code(), Some(0));
    by_variable.arg("--no-config");
    assert_eq!(by_variable.status().expect("culeak starts").code(), Some(1));
    let missing = stderr(&inside, &[&check[..], &["--config", "other.toml"]].concat());
    assert!(
        missing.contains("other.toml: the config file cannot be read"),
        "{missing}"
    );
}

#[test]
fn paths_in_the_config_file_are_relative_to_it() {
    let folder = project("[run]\noutput = \"runs\"\n[check]\nsuppressions = [\"own.supp\"]\n");
    fs::write(folder.path().join("own.supp"), "leak:main\n").expect("written");
    fs::create_dir(folder.path().join(".git")).expect("made");
    let inside = folder.path().join("build");
    fs::create_dir(&inside).expect("made");
    assert_eq!(code(&inside, &["check", "../leaky.json"]), 0);
    let ended = run(&inside, &["--no-report"]).output().expect("culeak starts");
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let recordings = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.path().extension().is_some_and(|e| e == "culeak"))
            .count()
    };
    assert_eq!((recordings(&folder.path().join("runs")), recordings(&inside)), (1, 0));
    let ended = run(&inside, &["--no-report", "-o", "."])
        .output()
        .expect("culeak starts");
    assert_eq!((ended.status.code(), recordings(&inside)), (Some(0), 1));
}

#[test]
fn options_for_baselines_require_a_baseline_from_any_source() {
    let folder = folder();
    for words in [
        &["--tolerance", "5%"][..],
        &["--fail-on", "new"],
        &["--update-baseline"],
    ] {
        let output = output(folder.path(), &[&["check", "leaky.json"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(
            text(&output.stderr).contains("--baseline FILE"),
            "{words:?}: {}",
            text(&output.stderr)
        );
    }
    let folder = project("[check]\nbaseline = \"known.json\"\n");
    assert_eq!(code(folder.path(), &["check", "leaky.json", "--update-baseline"]), 0);
    assert_eq!(code(folder.path(), &["check", "leaky.json", "--tolerance", "5%"]), 0);
}

// ---- completions and manual pages

#[test]
fn completions_offer_the_values_of_options() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(folder().path(), &["completions", shell]);
        for value in ["host-physical", "host-physical=", "grown", "sarif"] {
            assert!(script.contains(value), "{shell}: no {value}");
        }
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
                code(folder.path(), &["completions", shell, "--out", "share/it"]),
                0,
                "{shell}"
            );
        }
        let script = fs::read(folder.path().join("share/it").join(file)).expect(file);
        assert_eq!(text(&script), stdout(folder.path(), &["completions", shell]));
    }
    fs::write(folder.path().join("share/it/culeak"), "something else").expect("written");
    let refused = stderr(folder.path(), &["completions", "bash", "--out", "share/it"]);
    assert!(refused.contains("already exists"), "{refused}");
}

#[test]
fn manual_pages_are_replaced_but_other_files_are_not() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let man = ["man", "--out", "share/man/man1"];
    assert_eq!((code(folder.path(), &man), code(folder.path(), &man)), (0, 0));
    let page = folder.path().join("share/man/man1/culeak-run.1");
    fs::write(&page, "notes of mine").expect("written");
    assert_eq!(code(folder.path(), &man), 2);
    assert_eq!(fs::read_to_string(&page).expect("a file"), "notes of mine");
    assert_eq!(code(folder.path(), &[&man[..], &["--force"]].concat()), 0);
}

// ---- first steps

#[test]
fn a_second_demo_in_the_same_folder_works() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for _ in 0..2 {
        let mut demo = culeak(folder.path(), &["demo", "--fake", "-o", "tour"]);
        let demo = demo.output().expect("culeak starts");
        assert_eq!(
            demo.status.code(),
            Some(0),
            "{}{}",
            text(&demo.stdout),
            text(&demo.stderr)
        );
    }
    assert!(folder.path().join("tour/before-2.json").exists());
}

#[test]
fn commands_of_other_tools_get_a_hint() {
    for (word, expected) in [
        (
            "attach",
            "cannot attach to a running program; start it with 'culeak run",
        ),
        ("top", "'culeak live'"),
    ] {
        let output = output(folder().path(), &[word, "4711"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn categories_are_grouped_filtered_and_overridden() {
    let folder = folder();
    fs::write(
        folder.path().join("mine.txt"),
        "# ours\nkv-cache: load_weights in weights.cu\n",
    )
    .expect("written");
    let report = json(folder.path(), &["report", "leaky.json", "--by", "category", "--json"]);
    let labels = |report: &Value| -> Vec<String> {
        let rows = report["rows"].as_array().expect("rows");
        rows.iter()
            .map(|row| row["label"].as_str().expect("a label").to_owned())
            .collect()
    };
    assert_eq!(labels(&report), ["other"]);
    let own = [
        "report",
        "leaky.json",
        "--by",
        "category",
        "--categories",
        "mine.txt",
        "--json",
    ];
    let report = json(folder.path(), &own);
    assert_eq!(labels(&report), ["other", "kv-cache"]);
    let kept = &report["categories"][0];
    assert_eq!(
        (kept["category"].as_str(), kept["memory"]["bytes"].as_u64()),
        (Some("kv-cache"), Some(64 * MIB))
    );
    assert_eq!(
        (kept["rules"][0]["source"].as_str(), kept["rules"][0]["line"].as_u64()),
        (Some("mine.txt"), Some(2))
    );
    let filtered = json(folder.path(), &[&own[..], &["--category", "kv-cache"]].concat());
    assert_eq!(labels(&filtered), ["kv-cache"]);
    assert_eq!(filtered["filter"]["categories"][0], "kv-cache");
    let words = [
        "report",
        "leaky.json",
        "--category",
        "kv-cache",
        "--categories",
        "mine.txt",
    ];
    assert!(
        stdout(folder.path(), &words).contains("category kv-cache"),
        "the text names the filter"
    );
    let table = [
        "export",
        "leaky.json",
        "-f",
        "csv",
        "-o",
        "-",
        "--categories",
        "mine.txt",
    ];
    assert_eq!(stdout(folder.path(), &table).matches(",kv-cache,").count(), 1);
    // The printed rules are a file of rules.
    fs::write(folder.path().join("all.txt"), stdout(folder.path(), &["categories"])).expect("written");
    let printed = [
        "report",
        "leaky.json",
        "--categories",
        "all.txt",
        "--no-builtin-categories",
        "--by",
        "category",
        "--json",
    ];
    let printed = json(folder.path(), &printed);
    assert_eq!(labels(&printed), ["other"]);
}

#[test]
fn wrong_rules_for_categories_are_reported_with_line_and_column() {
    let folder = folder();
    fs::write(folder.path().join("bad.txt"), "# fine\n  weights: x\n").expect("written");
    for (words, expected) in [
        (
            ["--categories", "bad.txt"],
            "bad.txt:2:3: no such category: \"weights\"",
        ),
        (
            ["--categories", "absent.txt"],
            "absent.txt: the rules for categories cannot be read",
        ),
        (
            ["--category", "weights"],
            "invalid value 'weights' for '--category <CATEGORY>'",
        ),
        (["--no-builtin-categories", "--losses"], "--categories <FILE>"),
    ] {
        let words = [&["report", "leaky.json"][..], &words].concat();
        assert_eq!(code(folder.path(), &words), 2, "{words:?}");
        let message = stderr(folder.path(), &words);
        assert!(message.contains(expected), "{message}");
    }
}
