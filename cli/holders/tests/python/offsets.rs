//! The tables of offsets are those of the headers of the interpreters of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::interpreters::{Python, recorded};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/cpython");

/// The folder with this interpreter's headers, if they are installed.
fn headers(python: &Python) -> Option<PathBuf> {
    let ask = "import sysconfig; print(sysconfig.get_path('include'))";
    let output = Command::new(&python.command).args(["-c", ask]).output().unwrap();
    let folder = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    folder.join("internal/pycore_object.h").exists().then_some(folder)
}

/// What the program prints when it is compiled with these headers.
fn print(headers: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("offsets");
    let mut compiler = Command::new("cc");
    // Some distributions keep a part of the headers beside this folder.
    compiler
        .arg("-w")
        .arg("-I")
        .arg(headers)
        .arg("-I")
        .arg(headers.parent().unwrap());
    let source = Path::new(FOLDER).join("offsets.c");
    let compiled = compiler
        .arg(source)
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C compiler, `cc`, is installed");
    let messages = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{}: {messages}", headers.display());
    String::from_utf8(Command::new(program).output().unwrap().stdout).unwrap()
}

/// The file with the table of this build.
fn table(python: &Python) -> String {
    match &*python.version {
        old @ ("3.14.0" | "3.14.4") => format!("{old}.txt"),
        _ if python.is_free_threaded() => format!("3.{}t.txt", python.minor),
        _ => format!("3.{}.txt", python.minor),
    }
}

#[test]
#[ignore = "needs the headers and the library of Python"]
fn the_tables_are_those_of_the_headers() {
    let mut compared = 0;
    for python in recorded() {
        let Some(headers) = headers(python) else {
            println!("{}: its headers are not installed", python.version);
            continue;
        };
        let path = Path::new(FOLDER).join(table(python));
        let printed = print(&headers);
        if std::env::var_os("CULEAK_BLESS").is_some() {
            std::fs::write(&path, &printed).unwrap();
        }
        let table = std::fs::read_to_string(&path).unwrap();
        for (expected, found) in table.lines().zip(printed.lines()) {
            assert_eq!(expected, found, "Python {}", python.version);
        }
        assert_eq!(table.lines().count(), printed.lines().count());
        compared += 1;
    }
    assert!(
        compared > 0,
        "no interpreter has its headers installed (python3-dev, or pyenv)"
    );
}
