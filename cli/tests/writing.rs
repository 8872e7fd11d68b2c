//! Claims about every command that writes a file: it replaces no file without --force, writes completely or not at all, and
//! reports why it cannot write. `run --report-file` is with the other claims about `run`.

#[path = "../../tests/support/sample.rs"]
mod sample;

use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::{fs, io};

use nix::sys::resource::{Resource, setrlimit};
use sample::{Sample, held, leaky};
use tempfile::TempDir;

/// Everything that writes to a file it is given, without that file's name, which comes last.
const WRITERS: &[&[&str]] = &[
    &["snapshot", "leaky.json", "-o"],
    &["report", "leaky.json", "-o"],
    &["diff", "clean.json", "leaky.json", "-o"],
    &["trend", "leaky.json", "-o"],
    &["why", "held.json", "-o"],
    &["export", "leaky.json", "--format", "pprof", "-o"],
    &["export", "leaky.json", "--format", "speedscope", "-o"],
    &["export", "leaky.json", "--format", "folded", "-o"],
    &["export", "leaky.json", "--format", "perfetto", "-o"],
    &["export", "leaky.json", "--format", "firefox", "-o"],
    &["export", "leaky.json", "--format", "csv", "-o"],
    #[cfg(feature = "parquet")]
    &["export", "leaky.json", "--format", "parquet", "-o"],
    &["export", "leaky.json", "--format", "memory_viz", "-o"],
    &["check", "leaky.json", "--update-baseline", "--baseline"],
    // Manual pages are written to a folder, under fixed names.
    &["setup", "man", "--out"],
];

/// Commands with long output.
const PRINTERS: [&[&str]; 10] = [
    &["report", "leaky.json"],
    &["report", "leaky.json", "--json"],
    &["report", "leaky.json", "--view", "tree"],
    &["diff", "clean.json", "leaky.json"],
    &["trend", "leaky.json"],
    &["why", "held.json"],
    &["check", "leaky.json", "--format", "junit"],
    &["check", "leaky.json", "--format", "sarif"],
    &["snapshot", "leaky.json", "-o", "-"],
    &["setup", "completions", "bash"],
];

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let clean = Sample::new().finish(0, 9);
    for (name, snapshot) in [("leaky.json", leaky()), ("held.json", held()), ("clean.json", clean)] {
        fs::write(folder.path().join(name), serde_json::to_vec(&snapshot).expect("json")).expect("written");
    }
    folder
}

fn culeak(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_culeak"));
    command.current_dir(folder).args(words).stdin(Stdio::null());
    command.env_remove("LD_PRELOAD");
    command
}

fn output(folder: &TempDir, writer: &[&str], more: &[&str]) -> Output {
    culeak(folder.path(), &[writer, more].concat())
        .output()
        .expect("culeak starts")
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).expect("a folder");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Expects exit code 2, a message that names the file, and an unchanged folder.
fn expect_refused(folder: &TempDir, writer: &[&str], output: &Output, file: &str, before: &[String]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{writer:?} {file}: {message}");
    assert!(message.contains(file), "{writer:?} {file}: {message}");
    assert_eq!(names(folder), before, "{writer:?} {file}: {message}");
}

fn is_man(writer: &[&str]) -> bool {
    writer[0] == "setup"
}

#[test]
fn an_existing_file_is_replaced_only_with_force() {
    for writer in WRITERS.iter().filter(|writer| !is_man(writer)) {
        let folder = folder();
        fs::write(folder.path().join("out"), "precious").expect("written");
        let before = names(&folder);
        let refused = output(&folder, writer, &["out"]);
        expect_refused(&folder, writer, &refused, "--force", &before);
        assert_eq!(
            fs::read(folder.path().join("out")).expect("there"),
            b"precious",
            "{writer:?}"
        );
        let forced = output(&folder, writer, &["out", "--force"]);
        assert_eq!(forced.status.code(), Some(0), "{writer:?}: {forced:?}");
        assert!(
            fs::metadata(folder.path().join("out")).expect("there").len() > 50,
            "{writer:?}"
        );
        assert_eq!(names(&folder), before, "{writer:?} left something behind");
    }
}

#[test]
fn an_input_is_never_replaced_under_any_name_even_with_force() {
    for writer in WRITERS.iter().filter(|writer| !is_man(writer)) {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        let input = match writer.contains(&"held.json") {
            true => "held.json",
            false => "leaky.json",
        };
        symlink(input, at("link")).expect("a link");
        fs::hard_link(at(input), at("twin")).expect("a second name");
        let (before, content) = (names(&folder), fs::read(at(input)).expect("there"));
        let absolute = at(input).display().to_string();
        for name in [input, &format!("./{input}"), "link", "twin", &absolute] {
            let refused = output(&folder, writer, &[name, "--force"]);
            expect_refused(&folder, writer, &refused, "an input of this command", &before);
            assert!(at("link").is_symlink(), "{writer:?} {name}");
            assert_eq!(fs::read(at(input)).expect("there"), content, "{writer:?} {name}");
        }
    }
    for words in [&["report", "leaky.json"][..], &["snapshot", "leaky.json", "-o", "-"]] {
        let folder = folder();
        let (path, before) = (folder.path().join("leaky.json"), names(&folder));
        let content = fs::read(&path).expect("there");
        let itself = fs::File::options().append(true).open(&path).expect("the file");
        let refused = culeak(folder.path(), words)
            .stdout(itself)
            .output()
            .expect("culeak starts");
        expect_refused(&folder, words, &refused, "standard output: is an input", &before);
        assert_eq!(fs::read(&path).expect("there"), content);
    }
}

#[test]
fn a_forced_symlink_stays_and_its_file_is_replaced() {
    for writer in WRITERS.iter().filter(|writer| !is_man(writer)) {
        let (folder, elsewhere) = (folder(), tempfile::tempdir().expect("a temporary folder"));
        let target = elsewhere.path().join("target");
        fs::write(&target, "precious").expect("written");
        symlink(&target, folder.path().join("out")).expect("a link");
        let forced = output(&folder, writer, &["out", "--force"]);
        assert_eq!(forced.status.code(), Some(0), "{writer:?}: {forced:?}");
        assert!(folder.path().join("out").is_symlink(), "{writer:?}");
        assert!(fs::metadata(&target).expect("there").len() > 50, "{writer:?}");
    }
}

#[test]
fn the_device_of_standard_output_is_written_to_and_stays() {
    let folder = folder();
    let file = fs::File::create(folder.path().join("out")).expect("a file");
    let words = [
        "export",
        "leaky.json",
        "--format",
        "csv",
        "--force",
        "-o",
        "/dev/stdout",
    ];
    let written = culeak(folder.path(), &words)
        .stdout(file)
        .stderr(Stdio::null())
        .status()
        .expect("culeak starts");
    assert!(written.success());
    assert!(Path::new("/dev/stdout").is_symlink());
    assert!(fs::metadata(folder.path().join("out")).expect("there").len() > 50);
}

#[test]
fn suppressions_and_baselines_are_not_replaced() {
    let folder = folder();
    fs::write(folder.path().join("known.txt"), "leak:no_such_function\n").expect("written");
    let before = names(&folder);
    let words = ["report", "leaky.json", "--suppressions", "known.txt", "--force", "-o"];
    let refused = output(&folder, &words, &["known.txt"]);
    expect_refused(&folder, &words, &refused, "an input of this command", &before);
}

#[test]
fn the_ending_of_a_file_chooses_its_format() {
    let folder = folder();
    for (ending, start) in [
        (".html", "<!doctype html>"),
        (".json", "{"),
        (".md", ""),
        (".svg", "<?xml"),
        (".txt", ""),
        ("", ""),
    ] {
        for words in [&["report", "leaky.json"][..], &["diff", "clean.json", "leaky.json"]] {
            let name = format!("out{ending}");
            let written = output(&folder, &[words, &["--force", "-o"]].concat(), &[&name]);
            assert_eq!(written.status.code(), Some(0), "{words:?} {ending}: {written:?}");
            let text = fs::read_to_string(folder.path().join(&name)).expect("text");
            assert!(
                text.len() > 50 && !text.contains('\u{1b}'),
                "{words:?} {ending}: {text}"
            );
            assert!(text.to_lowercase().starts_with(start), "{words:?} {ending}: {text:.80}");
            let printed = output(&folder, words, &["-o", if ending.is_empty() { "-" } else { ending }]);
            assert_eq!(printed.status.code(), Some(0), "{printed:?}");
            if ending == ".json" {
                assert_eq!(printed.stdout, output(&folder, words, &["--json"]).stdout);
            }
        }
    }
    let refused = output(&folder, &["report", "leaky.json", "-o"], &["out.pdf"]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("-o out.pdf: the ending names no format"), "{message}");
}

#[test]
fn only_its_owner_can_read_a_snapshot() {
    let folder = folder();
    let written = output(&folder, &["snapshot", "leaky.json", "-o"], &["out"]);
    assert_eq!(written.status.code(), Some(0), "{written:?}");
    let mode = fs::metadata(folder.path().join("out")).expect("there").mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn folders_and_missing_folders_are_reported() {
    for writer in WRITERS.iter().filter(|writer| !is_man(writer)) {
        let folder = folder();
        fs::create_dir(folder.path().join("taken")).expect("a folder");
        let before = names(&folder);
        for force in [&[][..], &["--force"]] {
            for file in ["taken", "no/such/file"] {
                let refused = output(&folder, writer, &[&[file], force].concat());
                expect_refused(&folder, writer, &refused, file, &before);
            }
        }
    }
}

#[test]
fn a_folder_without_write_permission_is_reported() {
    for writer in WRITERS {
        let folder = folder();
        let before = names(&folder);
        // Even root cannot create a file there.
        let refused = output(&folder, writer, &["/proc/self/out"]);
        expect_refused(&folder, writer, &refused, "/proc/self/out", &before);
    }
}

#[test]
fn a_disk_that_becomes_full_leaves_nothing_behind() {
    for writer in WRITERS {
        let folder = folder();
        fs::create_dir(folder.path().join("pages")).expect("a folder");
        let before = names(&folder);
        let file = if is_man(writer) { "pages" } else { "out" };
        let mut command = culeak(folder.path(), &[*writer, &[file]].concat());
        // SAFETY: it is a system call, and nothing else happens between fork and exec.
        unsafe { command.pre_exec(files_end_after_100_bytes) };
        let refused = command.output().expect("culeak starts");
        expect_refused(&folder, writer, &refused, file, &before);
        assert!(
            fs::read_dir(folder.path().join("pages"))
                .expect("there")
                .next()
                .is_none(),
            "{writer:?}"
        );
    }
}

/// Limits files to 100 bytes. A write beyond the limit raises SIGXFSZ, which ends a program by default.
fn files_end_after_100_bytes() -> io::Result<()> {
    Ok(setrlimit(Resource::RLIMIT_FSIZE, 100, 100)?)
}

#[test]
fn a_full_device_is_reported() {
    for writer in WRITERS.iter().filter(|writer| !is_man(writer)) {
        let folder = folder();
        let before = names(&folder);
        let refused = output(&folder, writer, &["/dev/full"]);
        expect_refused(&folder, writer, &refused, "/dev/full", &before);
    }
    for printer in PRINTERS {
        let folder = folder();
        let full = fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("every Linux has it");
        let refused = culeak(folder.path(), printer)
            .stdout(full)
            .output()
            .expect("culeak starts");
        expect_refused(&folder, printer, &refused, "standard output", &names(&folder));
    }
}

#[test]
fn thousands_of_inputs_are_read_and_every_bad_one_is_reported() {
    let folder = folder();
    let clean = fs::read(folder.path().join("clean.json")).expect("readable");
    let copies: Vec<String> = (0..3000).map(|nth| format!("{nth}.json")).collect();
    for copy in &copies {
        fs::write(folder.path().join(copy), &clean).expect("written");
    }
    let mut words = vec!["report", "--per-process"];
    words.extend(copies[..2000].iter().map(String::as_str));
    words.push("missing.json");
    words.extend(copies[2000..].iter().map(String::as_str));
    let reported = culeak(folder.path(), &words).output().expect("culeak starts");
    let text = String::from_utf8_lossy(&reported.stdout);
    assert_eq!(text.matches("nothing leaked").count(), 3000);
    assert_eq!(reported.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&reported.stderr).starts_with("culeak: error: missing.json: no such file"));
}
