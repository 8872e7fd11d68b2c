//! The Python interpreters that the tests run with: those that `CULEAK_PYTHONS` names, separated by colons, else the first
//! `python3`. `CULEAK_PYTHONS=all` are those of this machine: `python3`, the system's, its debug build and pyenv's.
//! Their versions are printed on stderr. The tests fail if there is none.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub struct Python {
    pub command: PathBuf,
    pub minor: u32,
    pub version: String,
}

impl Python {
    #[allow(dead_code)]
    pub fn is_free_threaded(&self) -> bool {
        self.version.ends_with('t')
    }

    /// The variable that has objects freed by libc; free-threaded builds, whose only allocator is mimalloc, give freed pages back.
    #[allow(dead_code)]
    pub fn frees_at_once(&self) -> (&'static str, &'static str) {
        match self.is_free_threaded() {
            true => ("MIMALLOC_PURGE_DELAY", "0"),
            false => ("PYTHONMALLOC", "malloc"),
        }
    }
}

/// Release builds with the GIL.
#[allow(dead_code)]
pub fn interpreters() -> &'static [Python] {
    static FOUND: OnceLock<Vec<Python>> = OnceLock::new();
    FOUND.get_or_init(|| some(examine_all(|minor, flags| is_known(minor) && flags.is_empty())))
}

/// Release builds whose frames and objects are read: also free-threaded ones.
#[allow(dead_code)]
pub fn recorded() -> &'static [Python] {
    static FOUND: OnceLock<Vec<Python>> = OnceLock::new();
    FOUND.get_or_init(|| some(examine_all(is_recorded)))
}

fn is_recorded(minor: u32, flags: &str) -> bool {
    match flags {
        "" => is_known(minor),
        "t" => matches!(minor, 13 | 14),
        _ => false,
    }
}

fn is_known(minor: u32) -> bool {
    (8..=15).contains(&minor)
}

fn some(found: Vec<Python>) -> Vec<Python> {
    assert!(
        !found.is_empty(),
        "no Python from 3.8 to 3.15 was found: install python3, or name one in CULEAK_PYTHONS"
    );
    found
}

/// Debug builds, and free-threaded ones of other versions: there may be none.
#[allow(dead_code)]
pub fn other_builds() -> Vec<Python> {
    examine_all(|minor, flags| is_known(minor) && !is_recorded(minor, flags))
}

/// One interpreter of each version whose minor version and `sys.abiflags` are wanted.
fn examine_all(is_wanted: impl Fn(u32, &str) -> bool) -> Vec<Python> {
    let named = std::env::var("CULEAK_PYTHONS").unwrap_or_default();
    let commands: Vec<PathBuf> = match named.as_str() {
        "all" => all_commands(),
        "" => ["python3", "/usr/bin/python3"].map(PathBuf::from).into(),
        names => names.split(':').map(PathBuf::from).collect(),
    };
    let mut found: Vec<Python> = Vec::new();
    for command in commands {
        let Some(python) = examine(&command, &is_wanted) else {
            continue;
        };
        if found.iter().all(|known| known.version != python.version) {
            // The harness hides what passing tests print by macros; which interpreters they ran must be seen.
            let _ = writeln!(
                std::io::stderr(),
                "Python {}: {}",
                python.version,
                python.command.display()
            );
            found.push(python);
        }
        if named.is_empty() && !found.is_empty() {
            break;
        }
    }
    found
}

fn all_commands() -> Vec<PathBuf> {
    let mut commands = ["python3", "/usr/bin/python3", "python3-dbg"]
        .map(PathBuf::from)
        .to_vec();
    let home = PathBuf::from(std::env::var("HOME").unwrap_or_default());
    let versions = std::fs::read_dir(home.join(".pyenv/versions"));
    let mut versions: Vec<PathBuf> = versions
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    versions.sort();
    commands.extend(versions.into_iter().map(|version| version.join("bin/python3")));
    commands
}

/// The version, with `sys.abiflags` behind it, and command, if it is a CPython that is wanted.
fn examine(command: &Path, is_wanted: &dyn Fn(u32, &str) -> bool) -> Option<Python> {
    let ask = "import sys; \
               print(sys.implementation.name, sys.version_info[1], sys.executable, sys.version.split()[0], sys.abiflags)";
    let output = Command::new(command).args(["-c", ask]).output().ok()?;
    let output = String::from_utf8(output.stdout).ok()?;
    let mut words = output.split_whitespace();
    let (name, minor) = (words.next()?, words.next()?.parse().ok()?);
    let (executable, version, flags) = (words.next()?, words.next()?, words.next().unwrap_or_default());
    (name == "cpython" && is_wanted(minor, flags)).then(|| Python {
        // A relative name may find another interpreter later, with another PATH.
        command: if command.is_absolute() {
            command.to_owned()
        } else {
            executable.into()
        },
        minor,
        version: format!("{version}{flags}"),
    })
}
