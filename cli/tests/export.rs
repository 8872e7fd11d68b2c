//! Claims about trees, flame graphs and exported files in scripts; `tests/formats/run.sh` tests whether other programs read
//! the files.

#[path = "../../tests/support/sample.rs"]
mod sample;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use sample::{Sample, leaky, training};
use tempfile::TempDir;

/// Every format.
const FORMATS: &[&str] = &[
    "pprof",
    "speedscope",
    "folded",
    "perfetto",
    "firefox",
    "csv",
    #[cfg(feature = "parquet")]
    "parquet",
    "memory_viz",
];

const CULEAK: &str = env!("CARGO_BIN_EXE_culeak");

fn write_samples(folder: &Path) {
    let samples = [
        ("leaky.json", leaky()),
        ("training.json", training().finish(0, 3)),
        ("clean.json", Sample::new().finish(0, 9)),
    ];
    for (name, snapshot) in samples {
        let json = serde_json::to_vec(&snapshot).expect("json");
        fs::write(folder.join(name), json).expect("written");
    }
}

/// Runs `culeak WORDS` in a folder.
fn culeak(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(CULEAK);
    command.env("CULEAK_CACHE_DIR", "");
    command.current_dir(folder).args(words).stdin(Stdio::null());
    for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "LD_PRELOAD"] {
        command.env_remove(variable);
    }
    command.output().expect("culeak starts")
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_samples(folder.path());
    folder
}

fn stdout(words: &[&str]) -> String {
    let output = culeak(folder().path(), words);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{words:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

#[test]
#[ignore = "run by tests/formats/run.sh: CULEAK_SAMPLES=FOLDER"]
fn samples_for_other_programs() {
    let folder = std::env::var_os("CULEAK_SAMPLES").expect("CULEAK_SAMPLES names a folder");
    write_samples(Path::new(&folder));
}

#[test]
fn graphs_have_a_frame_for_each_function_and_one_for_each_line_on_request() {
    const CALLS: usize = 50;
    let folder = folder();
    let mut sample = sample::Sample::new();
    for line in 0..CALLS {
        let place = format!("/src/main.cu:{}", 100 + line);
        let stack = sample.stack(&[sample::RUNTIME, ("main", &place, "/opt/app"), sample::START]);
        sample.holds(culeak::kind::Kind::Device, "cudaMalloc", 1 << 20, 1, stack);
    }
    let snapshot = sample.finish(0, 0);
    fs::write(
        folder.path().join("calls.json"),
        serde_json::to_vec(&snapshot).expect("JSON"),
    )
    .expect("written");
    let written = |words: &[&str]| {
        let output = culeak(folder.path(), words);
        assert!(
            output.status.success(),
            "{words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("text")
    };
    // A frame of a function, and that of one of its lines.
    let commands: [(&[&str], &str, &str); 4] = [
        (
            &["export", "calls.json", "-f", "folded", "-o", "-"],
            ";main;",
            ";main (main.cu:1",
        ),
        (
            &["export", "calls.json", "-f", "speedscope", "-o", "-"],
            "\"name\":\"main\"",
            "\"line\":1",
        ),
        (
            &["export", "calls.json", "-f", "firefox", "-o", "-"],
            "\"main\"",
            "\"main (main.cu:1",
        ),
        (
            &["report", "calls.json", "-o", ".svg"],
            "<title>main ",
            "<title>main (main.cu:1",
        ),
    ];
    for (words, function, line) in commands {
        let counts = |text: &str| [function, line].map(|frame| text.matches(frame).count());
        assert_eq!(counts(&written(words)), [1, 0], "{words:?}");
        assert_eq!(counts(&written(&[words, &["--lines"]].concat()))[1], CALLS, "{words:?}");
    }
}

#[test]
fn a_tree_reads_from_the_device_inwards() {
    let tree = stdout(&["report", "leaky.json", "--view", "tree"]);
    let expected = "
    bytes        blocks
  1.2 GiB 100.0%    135  all
  1.2 GiB  94.9%    133  ├─ GPU 0
";
    assert!(tree.starts_with(&expected[1..]), "{tree}");
}

#[test]
fn a_limited_tree_shows_how_much_is_missing() {
    let tree = stdout(&["report", "leaky.json", "--view", "tree", "--top", "1"]);
    assert!(tree.contains("… and 2 more branches"), "{tree}");
    let tree = stdout(&["report", "leaky.json", "--view", "tree", "--min-bytes", "1GiB"]);
    assert!(tree.contains("… and 2 more branches"), "{tree}");
}

#[test]
fn exports_without_allocations_are_valid() {
    let folder = folder();
    let mut commands = vec![
        vec!["report", "clean.json", "-o", ".svg"],
        vec!["report", "clean.json", "--view", "tree"],
    ];
    let export = |format| vec!["export", "clean.json", "--format", format, "-o", "-"];
    commands.extend(FORMATS.iter().copied().map(export));
    for words in commands {
        assert_eq!(culeak(folder.path(), &words).status.code(), Some(0), "{words:?}");
    }
}

#[test]
fn several_inputs_require_a_format_that_can_hold_them() {
    let folder = folder();
    let export = |format| {
        let words = ["export", "leaky.json", "training.json", "--format", format, "-o", "-"];
        culeak(folder.path(), &words).status.code()
    };
    for &format in FORMATS {
        assert_eq!(
            export(format),
            Some(if format == "perfetto" { 0 } else { 2 }),
            "{format}"
        );
    }
}

#[test]
fn the_name_of_the_file_chooses_the_format_where_it_is_unambiguous() {
    let folder = folder();
    for (name, format) in [
        ("a.csv", "csv"),
        ("a.pb.gz", "pprof"),
        ("a.pftrace", "perfetto"),
        ("a.speedscope.json", "speedscope"),
    ] {
        let by_name = culeak(folder.path(), &["export", "leaky.json", "-o", name]);
        assert_eq!(
            by_name.status.code(),
            Some(0),
            "{name}: {}",
            String::from_utf8_lossy(&by_name.stderr)
        );
        let named = culeak(folder.path(), &["export", "leaky.json", "-f", format, "-o", "-"]);
        assert_eq!(
            std::fs::read(folder.path().join(name)).expect("a file"),
            named.stdout,
            "{name}"
        );
    }
    for name in ["a.json", "a", "-"] {
        let output = culeak(folder.path(), &["export", "leaky.json", "-o", name]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {message}");
        assert!(
            message.contains("add --format with one of pprof, speedscope"),
            "{name}: {message}"
        );
    }
}

/// `openmetrics` and `dataset`, which have tests with a Prometheus and with DuckDB.
const FIGURES_AND_DATASET: usize = 2;

#[test]
fn every_format_that_help_names_is_tested() {
    let help = culeak(folder().path(), &["export", "--help"]);
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let of_format = help.split("-f, --format <FORMAT>").nth(1).expect("the option");
    let of_format = of_format.split("-o, --output").next().expect("the next option");
    let named = of_format.matches("\n          - ").count();
    // Without the feature, help still names parquet, and the command explains how to get it.
    let missing = usize::from(!cfg!(feature = "parquet"));
    assert_eq!(named, FORMATS.len() + missing + FIGURES_AND_DATASET, "{of_format}");
}
