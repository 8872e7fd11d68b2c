//! Claims about features of the build: what works in each, and the one line that installs all of them.

use std::process::Command;
use std::{env, fs};

use crate::CULEAK;

/// As in `cli/src/errors.rs`, which this test cannot use.
const INSTALL: &str = "cargo install --locked --path cli --features full";

#[cfg_attr(
    all(feature = "parquet", feature = "push"),
    allow(dead_code, reason = "a build with all features lacks no command")
)]
fn output(words: &[&str]) -> (i32, String, String) {
    let done = Command::new(CULEAK).args(words).output().expect("culeak");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        done.status.code().expect("a code"),
        text(done.stdout),
        text(done.stderr),
    )
}

#[test]
#[cfg(not(feature = "parquet"))]
fn commands_for_parquet_name_the_line_that_installs_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("dataset").display().to_string();
    for words in [
        ["export", ".", "-f", "dataset", "-o", &to].as_slice(),
        &["export", ".", "--format", "parquet", "-o", &to],
    ] {
        let (code, _, message) = output(words);
        assert_eq!(code, 2, "{message}");
        assert!(
            message.contains("this build cannot write Parquet") && message.contains(INSTALL),
            "{message}"
        );
    }
}

#[test]
#[cfg(not(feature = "push"))]
fn sending_names_the_line_that_installs_it() {
    let (code, _, message) = output(&["export", ".", "--to", "http://127.0.0.1:1"]);
    assert_eq!(code, 2, "{message}");
    assert!(
        message.contains("this build cannot send to servers") && message.contains(INSTALL),
        "{message}"
    );
}

#[test]
fn the_documentation_has_one_line_to_install_from_a_clone() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let docs = fs::read_dir(format!("{root}/docs")).expect("the documentation");
    let mut pages: Vec<String> = docs
        .map(|entry| entry.expect("a file").path().display().to_string())
        .filter(|path| path.ends_with(".md"))
        .collect();
    pages.push(format!("{root}/README.md"));
    pages.push(format!("{root}/cli/src/errors.rs"));
    let mut lines = 0;
    for page in &pages {
        let text = fs::read_to_string(page).expect("text");
        assert!(
            !text.contains("--features parquet") && !text.contains("--features push"),
            "{page}"
        );
        for line in text
            .lines()
            .filter(|line| line.contains("cargo install") && line.contains("--path"))
        {
            assert!(line.contains(INSTALL), "{page}: {line}");
            lines += 1;
        }
    }
    assert!(
        lines >= 4,
        "the README, install.md, quickstart.md and errors.rs have it, found {lines}"
    );
}
