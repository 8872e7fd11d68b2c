//! The Python interpreters of this machine: `python3`, the system's and pyenv's, and the commands in `CULEAK_PYTHONS`,
//! separated by colons. The tests fail if there is none.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub struct Python {
    pub command: PathBuf,
    pub minor: u32,
    pub version: String,
}

pub fn interpreters() -> &'static [Python] {
    static FOUND: OnceLock<Vec<Python>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let named = std::env::var("CULEAK_PYTHONS").unwrap_or_default();
        let mut commands: Vec<PathBuf> = named
            .split(':')
            .filter(|name| !name.is_empty())
            .map(PathBuf::from)
            .collect();
        commands.extend(["python3", "/usr/bin/python3"].map(PathBuf::from));
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
        let mut found: Vec<Python> = Vec::new();
        for command in commands {
            let Some(python) = examine(&command) else { continue };
            if found.iter().all(|known| known.version != python.version) {
                println!("{}: {}", python.command.display(), python.version);
                found.push(python);
            }
        }
        assert!(
            !found.is_empty(),
            "no Python from 3.8 to 3.15 was found: install python3, or name one in CULEAK_PYTHONS"
        );
        found
    })
}

/// The version and command, if it is a CPython of a supported version.
fn examine(command: &Path) -> Option<Python> {
    let ask = "import sys; print(sys.implementation.name, sys.version_info[1], sys.executable, sys.version.split()[0])";
    let output = Command::new(command).args(["-c", ask]).output().ok()?;
    let output = String::from_utf8(output.stdout).ok()?;
    let mut words = output.split_whitespace();
    let (name, minor) = (words.next()?, words.next()?.parse().ok()?);
    let (executable, version) = (words.next()?, words.next()?);
    (name == "cpython" && (8..=15).contains(&minor)).then(|| Python {
        // A relative name may find another interpreter later, with another PATH.
        command: if command.is_absolute() {
            command.to_owned()
        } else {
            executable.into()
        },
        minor,
        version: version.to_owned(),
    })
}
