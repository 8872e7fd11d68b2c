//! Claims about report, snapshot, diff and check in scripts: exit codes, streams, files; no GPU needed.

#[path = "views/holders.rs"]
mod holders;
#[path = "../../tests/support/sample.rs"]
mod sample;
#[path = "views/suppressions.rs"]
mod suppressions;

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use culeak::kind::Kind;
use culeak::snapshot::Snapshot;
use object::{Object, ObjectSection, ObjectSymbol};
use sample::{GIB, MIB, Sample, held, leaky, leaky_without_pool, modelled};
use serde_json::Value;
use tempfile::TempDir;

const CULEAK: &str = env!("CARGO_BIN_EXE_culeak");

/// A folder with `leaky.json`, `held.json`, `modelled.json`, `clean.json`, and `pool.json`, which leaks the same and has a pool whose use is unknown.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let clean = Sample::new().finish(0, 9);
    for (name, snapshot) in [
        ("leaky.json", leaky_without_pool()),
        ("held.json", held()),
        ("modelled.json", modelled()),
        ("clean.json", clean),
        ("pool.json", leaky()),
    ] {
        fs::write(folder.path().join(name), serde_json::to_vec(&snapshot).expect("json")).expect("written");
    }
    folder
}

fn culeak(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(CULEAK);
    command.env("CULEAK_CACHE_DIR", "");
    command.current_dir(folder).args(words).stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "LD_PRELOAD"] {
        command.env_remove(variable);
    }
    command
}

fn output(words: &[&str]) -> Output {
    culeak(folder().path(), words).output().expect("culeak starts")
}

fn code(words: &[&str]) -> i32 {
    output(words).status.code().expect("no signal")
}

fn stdout(words: &[&str]) -> String {
    String::from_utf8(output(words).stdout).expect("text")
}

fn json(words: &[&str]) -> Value {
    serde_json::from_slice(&output(words).stdout).expect("JSON")
}

#[test]
fn views_are_below_the_headline_in_the_order_asked_for() {
    let order = |words: &[&str]| {
        let text = stdout(&[&["report", "leaky.json"], words].concat());
        let parts = [
            ("headline", "call sites leak"),
            ("row", "in 128 blocks"),
            ("stack", "#1  "),
            ("ledger", "GPU 0  NVIDIA"),
            ("objects", "objects without an address"),
            ("losses", "unknown frees"),
        ];
        let mut found: Vec<_> = parts
            .into_iter()
            .filter_map(|(name, part)| Some((text.find(part)?, name)))
            .collect();
        found.sort_unstable();
        found.into_iter().map(|(_, name)| name).collect::<Vec<_>>().join(" ")
    };
    for (views, expected) in [
        (&["ledger"][..], "headline ledger row losses"),
        (&["objects"], "headline objects row losses"),
        (&["losses"], "headline losses row"),
        (&["stacks"], "headline row stack losses"),
        (&["ledger", "stacks"], "headline ledger row stack losses"),
        (&["stacks", "ledger"], "headline row stack ledger losses"),
        (&["objects", "losses", "ledger"], "headline objects losses ledger row"),
        (&["table", "ledger"], "headline row ledger losses"),
    ] {
        let words: Vec<&str> = views.iter().flat_map(|view| ["--view", view]).collect();
        assert_eq!(order(&words), expected, "{views:?}");
    }
}

#[test]
fn check_returns_its_verdict_as_exit_code() {
    assert_eq!(code(&["check", "clean.json"]), 0);
    assert_eq!(code(&["check", "leaky.json"]), 1);
    assert_eq!(code(&["check", "leaky.json", "--allow", "2GiB"]), 0);
    assert_eq!(
        code(&["check", "leaky.json", "--allow", "2GiB", "--allow", "count=5"]),
        1
    );
    assert_eq!(code(&["check", "leaky.json", "--kind", "array"]), 0);
    assert_eq!(code(&["check", "pool.json", "--allow", "1220MiB"]), 2);
    assert_eq!(code(&["check", "pool.json", "--allow", "1220MiB", "--allow-losses"]), 0);
    assert_eq!(
        code(&["check", "pool.json", "--allow", "1GiB"]),
        1,
        "it leaks too much beside"
    );
    assert_eq!(code(&["check", "pool.json", "--kind", "async"]), 2);
    assert_eq!(code(&["check", "pool.json", "--kind", "async", "--judge-pools"]), 1);
}

#[test]
fn wrong_usage_and_unreadable_input_are_2_with_a_message_on_stderr() {
    for words in [
        &["check", "missing.json"][..],
        &["report", "missing.json"],
        &["diff", "leaky.json", "missing.json"],
        &["snapshot", "missing.json", "-o", "x.json"],
        &["check", "leaky.json", "--allow", "much"],
        &["check", "leaky.json", "--kind", "tape"],
        &["report", "leaky.json", "--by", "colour"],
        &["report"],
        &["snapshot", "leaky.json"],
        &["why"],
        &["why", "leaky.json"],
        &["why", "held.json", "--class", "gone"],
        &["why", "held.json", "nowhere.py:1"],
        &["why", "--core", "held.json"],
        &["report", "leaky.json", "--why"],
        &["snapshot", "leaky.json", "--why", "-o", "x.json"],
    ] {
        let output = output(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn inputs_may_be_pipes_and_have_names_that_are_not_utf8() {
    let folder = folder();
    let odd = OsStr::from_bytes(b"l\xff.json");
    fs::rename(folder.path().join("leaky.json"), folder.path().join(odd)).expect("renamed");
    for command in [&["report"][..], &["check"], &["trend", "--all"]] {
        let output = culeak(folder.path(), command).arg(odd).output().expect("culeak starts");
        assert!(matches!(output.status.code(), Some(0 | 1)), "{command:?}: {output:?}");
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("Trainer::step"),
            "{command:?}: {output:?}"
        );
    }
    let script = "cat clean.json | \"$0\" check l*.json --baseline /dev/fd/0";
    let output = Command::new("sh")
        .args(["-c", script, CULEAK])
        .current_dir(folder.path())
        .output();
    assert_eq!(output.expect("sh starts").status.code(), Some(1), "what is new leaks");
    // As a shell writes `culeak diff <(…) <(…)`.
    let script = "cat clean.json | { cat l*.json | \"$0\" diff /dev/fd/3 /dev/fd/0; } 3<&0";
    let output = Command::new("sh")
        .args(["-c", script, CULEAK])
        .env("CULEAK_CACHE_DIR", "")
        .current_dir(folder.path())
        .output()
        .expect("sh starts");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("Trainer::step"),
        "{output:?}"
    );
}

#[test]
fn json_contains_no_active_characters_and_the_same_text() {
    let folder = folder();
    let mut snapshot = leaky();
    let hostile = "a\u{9b}31m\u{7f}\u{202e}b";
    snapshot.process.command_line = vec![hostile.to_owned()];
    for symbol in snapshot.locations.iter_mut().flat_map(|location| &mut location.symbols) {
        symbol.function = format!("{hostile}{}", symbol.function);
    }
    fs::write(
        folder.path().join("hostile.json"),
        serde_json::to_vec(&snapshot).expect("json"),
    )
    .expect("written");
    let output = |words: &[&str]| {
        let output = culeak(folder.path(), words).output().expect("culeak starts");
        String::from_utf8(output.stdout).expect("text")
    };
    for words in [
        &["snapshot", "hostile.json", "-o", "-"][..],
        &["report", "hostile.json", "--json", "--full-stacks"],
        &["report", "hostile.json", "clean.json", "--json", "--per-process"],
        &["report", "hostile.json", "clean.json", "--json"],
        &["check", "hostile.json", "--json"],
        &["check", "hostile.json", "--format", "sarif"],
        &["diff", "clean.json", "hostile.json", "--json"],
        &["trend", "hostile.json", "--json"],
        &["export", "hostile.json", "--format", "speedscope", "-o", "-"],
        &["export", "hostile.json", "--format", "firefox", "-o", "-"],
    ] {
        let text = output(words);
        let active = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!text.is_empty() && !text.contains(active), "{words:?}: {text}");
    }
    let copy: Snapshot = serde_json::from_str(&output(&["snapshot", "hostile.json", "-o", "-"])).expect("a snapshot");
    assert_eq!(copy, snapshot);
}

/// Builds a library whose compressed debug information claims to be larger than any memory, and a snapshot that refers to it.
fn library_that_crashes_its_reader(folder: &Path) {
    fs::write(folder.join("leak.c"), "int leak(int n) { return n + 1; }").expect("written");
    let words = [
        "-g",
        "-gz",
        "-shared",
        "-fPIC",
        "-Wl,--build-id=none",
        "leak.c",
        "-o",
        "lib.so",
    ];
    let status = Command::new("cc").args(words).current_dir(folder).status();
    assert!(status.is_ok_and(|status| status.success()), "cc {words:?}");
    let mut bytes = fs::read(folder.join("lib.so")).expect("built");
    let elf = object::File::parse(&*bytes).expect("ELF");
    let section = elf.section_by_name(".debug_info").expect("debug information");
    let (at, _) = section.file_range().expect("in the file");
    let address = elf.symbol_by_name("leak").expect("a symbol").address();
    // The second word of the section is its uncompressed size.
    let size = at as usize + 8;
    bytes[size..size + 8].copy_from_slice(&(u64::MAX / 4).to_le_bytes());
    fs::write(folder.join("lib.so"), bytes).expect("written");
    let mut sample = Sample::new();
    let stack = sample.stack(&[("", "", "/lib.so")]);
    sample.holds(Kind::Device, "cudaMalloc", 4096, 1, stack);
    let mut snapshot = sample.finish(0, 0);
    snapshot.process.started_unix_ns = u64::MAX;
    snapshot.modules[0].path = folder.join("lib.so").display().to_string();
    snapshot.modules[0].build_id = String::new();
    snapshot.locations[0].address = address + 1;
    fs::write(
        folder.join("damaged.json"),
        serde_json::to_vec(&snapshot).expect("json"),
    )
    .expect("written");
}

#[test]
fn a_module_that_crashes_its_reader_loses_only_its_lines() {
    let folder = folder();
    library_that_crashes_its_reader(folder.path());
    let output = culeak(
        folder.path(),
        &["report", "damaged.json", "leaky.json", "--per-process"],
    )
    .output()
    .expect("culeak starts");
    let (text, message) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(0), "{message}");
    // The symbol table has the function's name.
    assert!(
        text.contains("1 block   leak") && text.contains("Trainer::step"),
        "{text}"
    );
    assert!(
        message.contains("lib.so: is damaged") && !message.contains("panicked"),
        "{message}"
    );
}

#[test]
fn one_unreadable_input_does_not_hide_the_others() {
    let output = output(&["report", "leaky.json", "missing.json", "clean.json", "--per-process"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("3 call sites leak") && text.contains("nothing leaked"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("culeak: error: missing.json: no such file"));
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn json_is_one_document_with_format_and_version() {
    let report = json(&["report", "pool.json", "--json"]);
    assert_eq!(
        (report["format"].as_str(), report["version"].as_u64()),
        (Some("culeak-report"), Some(3))
    );
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(5));
    assert_eq!(
        report["rows"][0]["stacks"][0]["fingerprint"].as_str().map(str::len),
        Some(16)
    );
    assert_eq!(
        json(&["report", "pool.json", "clean.json", "--json", "--per-process"])
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert_eq!(json(&["diff", "clean.json", "pool.json", "--json"])["totals"]["new"], 5);
    let verdict = json(&["check", "pool.json", "--json"]);
    assert_eq!(verdict["passed"], false);
    assert_eq!(verdict["breaches"][0]["reason"], "total");
    assert_eq!(verdict["breaches"][0]["measure"], "blocks");
}

#[test]
fn colours_are_used_on_terminals_and_on_request_only() {
    assert!(!stdout(&["report", "leaky.json"]).contains('\x1b'));
    let folder = folder();
    let forced = |name, value| {
        let mut command = culeak(folder.path(), &["report", "leaky.json"]);
        let output = command
            .env("CLICOLOR_FORCE", "1")
            .env(name, value)
            .output()
            .expect("culeak starts");
        output.stdout.contains(&0x1b)
    };
    assert!(forced("TERM", "xterm"));
    assert!(!forced("NO_COLOR", "1"));
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let folder = folder();
    let mut sample = Sample::new();
    for nth in 0..3000 {
        let name: &'static str = Box::leak(format!("function_{nth}").into_boxed_str());
        let stack = sample.stack(&[(name, "/src/a.cu:1", "/opt/app")]);
        sample.holds(culeak::kind::Kind::Device, "cudaMalloc", 1, 1, stack);
    }
    let json = serde_json::to_vec(&sample.finish(GIB, 0)).expect("json");
    fs::write(folder.path().join("long.json"), json).expect("written");
    let mut command = culeak(folder.path(), &["report", "long.json", "--top", "0"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("culeak starts");
    let mut first = [0; 10];
    let mut pipe = child.stdout.take().expect("a pipe");
    pipe.read_exact(&mut first).expect("a line");
    drop(pipe);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_snapshot_can_be_piped_from_one_culeak_to_the_next() {
    let folder = folder();
    let mut first = culeak(folder.path(), &["snapshot", "leaky.json", "-o", "-", "--no-symbols"]);
    let mut first = first.stdout(Stdio::piped()).spawn().expect("culeak starts");
    let mut second = culeak(folder.path(), &["report", "-"]);
    let output = second
        .stdin(first.stdout.take().expect("a pipe"))
        .output()
        .expect("culeak starts");
    assert!(first.wait().expect("it ends").success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("3 call sites leak 1.1 GiB on GPU 0"));
}

#[test]
fn a_snapshot_replaces_its_file_completely_or_not_at_all() {
    let folder = folder();
    let read = |name: &str| fs::read(folder.path().join(name)).expect("readable");
    let write = |words: &[&str]| culeak(folder.path(), words).status().expect("culeak starts").code();
    let before = read("clean.json");
    let onto = ["snapshot", "pool.json", "-o", "clean.json", "--no-symbols"];
    assert_eq!(write(&onto), Some(2), "replaced without --force");
    assert_eq!(read("clean.json"), before);
    assert_eq!(write(&[&onto[..], &["--force"]].concat()), Some(0));
    let copy: Snapshot = serde_json::from_slice(&read("clean.json")).expect("a snapshot");
    assert_eq!(copy, leaky());
    assert_eq!(
        write(&["snapshot", "missing.json", "-o", "clean.json", "--force"]),
        Some(2)
    );
    assert_eq!(
        read("clean.json"),
        [serde_json::to_vec(&leaky()).expect("json"), b"\n".to_vec()].concat()
    );
    assert_eq!(
        write(&["snapshot", "pool.json", "-o", "no/such/folder/x.json"]),
        Some(2)
    );
    assert_eq!(write(&["snapshot", "pool.json", "-o", "/dev/null"]), Some(0));
    assert!(!Path::new("/dev/null").is_file());
    let left: Vec<_> = fs::read_dir(folder.path())
        .expect("a folder")
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(left.len(), 5, "{left:?}");
}

#[test]
fn every_format_has_the_same_verdict_and_exit_code() {
    for format in ["text", "json", "junit", "sarif", "github", "markdown"] {
        assert_eq!(code(&["check", "leaky.json", "--format", format]), 1, "{format}");
        assert_eq!(code(&["check", "clean.json", "--format", format]), 0, "{format}");
        assert!(
            !stdout(&["check", "clean.json", "--format", format]).is_empty(),
            "{format}"
        );
    }
    assert_eq!(json(&["check", "leaky.json", "--format", "sarif"])["version"], "2.1.0");
    assert_eq!(
        json(&["check", "leaky.json", "--format", "json"]),
        json(&["check", "leaky.json", "--json"])
    );
}

#[test]
fn different_programs_are_compared_only_with_force() {
    let folder = folder();
    let mut other = leaky_without_pool();
    other.process.pid = 4712;
    other.process.executable = "/usr/bin/python3.12".to_owned();
    other.process.command_line = vec!["python".to_owned(), "serve.py".to_owned()];
    fs::write(
        folder.path().join("other.json"),
        serde_json::to_vec(&other).expect("json"),
    )
    .expect("written");
    let run = |words: &[&str]| culeak(folder.path(), words).output().expect("culeak starts");
    let refused = run(&["diff", "leaky.json", "other.json"]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        message.contains("leaky.json is from app, but other.json is from python serve.py")
            && message.contains("--force"),
        "{message}"
    );
    let forced = run(&["diff", "leaky.json", "other.json", "--force"]);
    let text = String::from_utf8_lossy(&forced.stdout);
    assert!(
        forced.status.success() && text.contains("different programs: app and python serve.py"),
        "{text}"
    );

    let update = run(&["check", "leaky.json", "--baseline", "base.json", "--update-baseline"]);
    assert!(update.status.success());
    assert_eq!(
        run(&["check", "leaky.json", "--baseline", "base.json"]).status.code(),
        Some(0)
    );
    let refused = run(&["check", "other.json", "--baseline", "base.json"]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        message.contains("the baseline is from app") && message.contains("python serve.py"),
        "{message}"
    );
    let forced = run(&["check", "other.json", "--baseline", "base.json", "--force"]);
    assert_ne!(forced.status.code(), Some(2));
}

#[test]
fn snapshots_of_two_culeak_versions_are_compared_with_a_note() {
    let folder = folder();
    let mut newer = leaky();
    newer.taken.by = "0.2.0".to_owned();
    fs::write(
        folder.path().join("newer.json"),
        serde_json::to_vec(&newer).expect("json"),
    )
    .expect("written");
    let output = culeak(folder.path(), &["diff", "leaky.json", "newer.json"])
        .output()
        .expect("culeak starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("made by culeak 0.1.0, the second by culeak 0.2.0"),
        "{text}"
    );
}

#[test]
fn who_recorded_a_snapshot_of_pytorch_is_said() {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/memory_viz");
    let by = "recorded by torch_npu, without native stacks";
    for words in [
        &["report", "npu.pickle"][..],
        &["diff", "npu.pickle", "xpu.pickle", "--force"],
        &["trend", "npu.pickle", "xpu.pickle", "neuron.pickle", "--force"],
        &["why", "npu.pickle"],
    ] {
        let output = culeak(&files, words).output().expect("culeak starts");
        let texts = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&texts);
        assert!(text.contains(by), "{words:?}: {text}");
        assert!(!text.contains("--pid 0"), "{words:?}: {text}");
    }
}

#[test]
fn only_a_baseline_is_updated_without_force() {
    let folder = folder();
    let before = fs::read(folder.path().join("clean.json")).expect("read");
    let update = |force: &[&str]| {
        let words = [
            &["check", "leaky.json", "--baseline", "clean.json", "--update-baseline"],
            force,
        ]
        .concat();
        culeak(folder.path(), &words).output().expect("culeak starts")
    };
    let refused = update(&[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("is not a culeak baseline"),
        "{refused:?}"
    );
    assert_eq!(fs::read(folder.path().join("clean.json")).expect("read"), before);
    assert!(update(&["--force"]).status.success());
    assert!(update(&[]).status.success(), "now it is one");
}
