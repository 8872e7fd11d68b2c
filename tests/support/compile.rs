//! Compiles victims with `cc` or `c++`, each variant once per test run, into a folder of that run.
//!
//! No file is reused by a later run, so none can be stale; folders of finished runs are removed.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use nix::unistd::{SysconfVar, sysconf};

use super::{fake_driver, sources};

/// How a victim finds the driver's functions; see `tests/victims/cuda.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lookup {
    Linked,
    Dlsym,
    ProcV1,
    ProcV2,
    ProcPtsz,
}

impl Lookup {
    pub const ALL: [Lookup; 5] = [
        Lookup::Linked,
        Lookup::Dlsym,
        Lookup::ProcV1,
        Lookup::ProcV2,
        Lookup::ProcPtsz,
    ];

    fn flag(self) -> &'static str {
        match self {
            Lookup::Linked => "-DLOOKUP_LINKED",
            Lookup::Dlsym => "-DLOOKUP_DLSYM",
            Lookup::ProcV1 => "-DLOOKUP_PROC_V1",
            Lookup::ProcV2 => "-DLOOKUP_PROC_V2",
            Lookup::ProcPtsz => "-DLOOKUP_PROC_PTSZ",
        }
    }
}

/// The folder of this test run.
pub fn run_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
        for entry in fs::read_dir(all).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let finished = name
                .strip_prefix("run-")
                .is_some_and(|pid| !Path::new("/proc").join(pid).exists());
            if finished {
                // Another run may be removing it at the same time.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let folder = all.join(format!("run-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for this run");
        folder
    })
}

/// The victim `tests/victims/<name>.c`, compiled for one lookup.
pub fn victim(name: &str, lookup: Lookup) -> PathBuf {
    let driver = if lookup == Lookup::Linked {
        vec![fake_driver()]
    } else {
        vec![]
    };
    executable(name, &[lookup.flag()], &driver)
}

/// An executable compiled with `flags` and linked with `libraries` in this order.
pub fn executable(name: &str, flags: &[&str], libraries: &[PathBuf]) -> PathBuf {
    compile(name, name, flags, libraries)
}

/// A shared library from `tests/victims/<source>.c` or `.cpp`, in its own folder, since its file name is its soname.
pub fn library(source: &str, file: &str, flags: &[&str], libraries: &[PathBuf]) -> PathBuf {
    let soname = format!("-Wl,-soname,{file}");
    let mut all = vec!["-shared", "-fPIC", soname.as_str()];
    all.extend(flags);
    compile(source, file, &all, libraries)
}

/// A shared library that the loader maps at the same address again after it was closed, while the program and the recorder
/// keep mapping memory.
///
/// Its segments are aligned to this machine's pages. Linkers align them to 64 KiB on aarch64: the loader then maps more
/// than the library needs and unmaps the rest, and what is mapped there later leaves too little room.
pub fn reopened_library(source: &str, file: &str, flags: &[&str], libraries: &[PathBuf]) -> PathBuf {
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().expect("the page size");
    let alignment = format!("-Wl,-z,max-page-size={page}");
    let mut all = vec![alignment.as_str()];
    all.extend(flags);
    library(source, file, &all, libraries)
}

fn compile(source: &str, file: &str, flags: &[&str], libraries: &[PathBuf]) -> PathBuf {
    type Built = Arc<OnceLock<PathBuf>>;
    static BUILT: Mutex<Option<HashMap<String, Built>>> = Mutex::new(None);

    let key = format!("{source} {file} {flags:?} {libraries:?}");
    let (slot, number) = {
        let mut built = BUILT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let built = built.get_or_insert_default();
        let number = built.len();
        (built.entry(key).or_default().clone(), number)
    };
    slot.get_or_init(|| {
        let folder = run_folder().join("built").join(number.to_string());
        fs::create_dir_all(&folder).expect("a folder for one compiled file");
        let output = folder.join(Path::new(file).file_name().expect("a name"));
        let c = sources().join("victims").join(format!("{source}.c"));
        let (compiler, source) = if c.exists() {
            ("cc", c)
        } else {
            ("c++", c.with_extension("cpp"))
        };
        let mut cc = Command::new(compiler);
        cc.args(["-g", "-O1", "-Wall", "-pthread", "-D_GNU_SOURCE"])
            .args(flags)
            .arg("-o")
            .arg(&output);
        cc.arg(source);
        for library in libraries {
            cc.arg(library);
            if let Some(folder) = library.parent().filter(|folder| folder.starts_with(run_folder())) {
                cc.arg(format!("-Wl,-rpath,{}", folder.display()));
            }
        }
        cc.arg("-ldl");
        let result = cc
            .output()
            .expect("the victims need a C and a C++ compiler: install gcc and g++");
        assert!(
            result.status.success(),
            "{cc:?}\n{}",
            String::from_utf8_lossy(&result.stderr)
        );
        output
    })
    .clone()
}
