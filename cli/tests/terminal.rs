//! Claims about terminals: lines fit their width, and a pipe gets them whole.

#[path = "../../tests/support/sample.rs"]
mod sample;
#[path = "../../tests/support/terminal.rs"]
mod terminal;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use culeak::kind::Kind;
use culeak::snapshot::Snapshot;
use sample::{MAIN, MIB, RUNTIME, Sample};
use terminal::on_a_terminal;

const LONG: &str = "at_native_detail::DistributedFusedLayerNormalizationBackwardKernelLauncher::launch_with_workspace";

fn culeak(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_culeak"));
    command
        .env("CULEAK_CACHE_DIR", "")
        .env("NO_COLOR", "1")
        .env_remove("CLICOLOR_FORCE");
    command.current_dir(folder).args(words).stdin(Stdio::null());
    command
}

fn leaking(nth: u64) -> Snapshot {
    let mut sample = Sample::new().running();
    let stack = sample.stack(&[
        RUNTIME,
        (
            LONG,
            "/home/engineer/projects/third_party/kernels/src/normalization_backward.cu:1234",
            "/opt/app",
        ),
        (LONG, "/src/train.cu:212", "/opt/app"),
        MAIN,
    ]);
    sample.holds(Kind::Device, "cudaMalloc", (nth + 1) * MIB, 3, stack);
    let mut snapshot = sample.finish(0, 9);
    snapshot.taken.at_ns += nth * 60_000_000_000;
    snapshot.taken.at_unix_ns += nth * 60_000_000_000;
    snapshot
}

#[test]
fn lines_fit_a_terminal_and_are_whole_in_a_pipe() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for nth in 0..9 {
        let json = serde_json::to_vec(&leaking(nth)).expect("JSON");
        fs::write(folder.path().join(format!("{nth}.json")), json).expect("written");
    }
    let commands: [&[&str]; 8] = [
        &["report", "8.json"],
        &["report", "8.json", "--view", "tree"],
        &["diff", "0.json", "8.json", "--view", "stacks"],
        &["diff", "0.json", "8.json", "--view", "tree"],
        &["trend", "."],
        &["check", "8.json"],
        &["snapshot", "--list"],
        &["doctor"],
    ];
    for words in commands {
        for columns in [60, 80] {
            let shown = on_a_terminal(culeak(folder.path(), words), columns, |command, stdout| {
                command.stdout(stdout);
            });
            assert!(shown.contains("\r\n"), "{words:?}: {shown}");
            expect_fit(&shown, columns);
        }
        let piped = culeak(folder.path(), words).output().expect("culeak starts");
        let piped = String::from_utf8_lossy(&piped.stdout);
        assert!(
            piped.contains(LONG) || ["snapshot", "doctor"].contains(&words[0]),
            "{words:?}: {piped}"
        );
    }
}

/// A single word that is wider than the terminal, such as a path, is whole, so it can be copied; every other line fits.
fn expect_fit(shown: &str, columns: u16) {
    for line in shown.lines().map(str::trim_end) {
        let is_one_word = !line.trim_start().contains(' ');
        assert!(
            line.chars().count() <= columns.into() || is_one_word,
            "{columns} columns: {line:?} in {shown}"
        );
    }
}

#[test]
fn json_on_a_terminal_is_not_wrapped() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(
        folder.path().join("a.json"),
        serde_json::to_vec(&leaking(0)).expect("JSON"),
    )
    .expect("written");
    let shown = on_a_terminal(
        culeak(folder.path(), &["report", "a.json", "--json"]),
        60,
        |command, stdout| {
            command.stdout(stdout);
        },
    );
    let report: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(report["rows"][0]["label"], LONG);
}
