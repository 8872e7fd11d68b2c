//! Fuzz targets: everything in culeak that reads bytes of strangers, each as a function of some bytes.
//!
//!     tests/fuzz/run.sh [TARGET …]      # libFuzzer, guided by coverage; needs g++
//!     cargo test -p culeak-cli --bin culeak fuzz::
//!
//! The targets are tests of the command, so they reach all of it and add nothing to it. `run.sh` builds these tests with LLVM's coverage
//! counters and `--cfg culeak_fuzz`, which also makes libFuzzer a dependency ([`engine`]). `cargo test` reads each seed, and each file of
//! `tests/fuzz/inputs/TARGET`: inputs that failed once.
//!
//! A target may answer or refuse. It must not panic, and `run.sh` limits its time and memory.

mod commands;
#[cfg(culeak_fuzz)]
mod engine;
mod memory;
mod module;
mod mutate;
#[path = "../support/random.rs"]
mod random;
mod recording;

use std::cell::Cell;
use std::path::{Path, PathBuf};
#[cfg(not(culeak_fuzz))]
use std::process::Command;
use std::{env, fs};

/// Reads an input; false if it is refused.
type Read = Box<dyn FnMut(&[u8]) -> bool>;

struct Target {
    name: &'static str,
    /// How inputs are changed.
    form: mutate::Form,
    /// Prepares what inputs need in an empty folder.
    begin: fn(&Path) -> Read,
    /// Valid inputs. They may use the folder.
    seeds: fn(&Path) -> Vec<Vec<u8>>,
}

const TARGETS: &[Target] = &[
    commands::RECORDING,
    commands::SNAPSHOT,
    commands::PICKLE,
    commands::CONFIG,
    commands::SUPPRESSIONS,
    commands::BASELINE,
    commands::MESSAGES,
    commands::REQUESTS,
    memory::CORE,
    memory::PYTHON,
    module::MODULE,
    module::GENERATED,
];

thread_local! {
    /// Set while something may panic that the command runs in a process of its own.
    static TOLERATED: Cell<bool> = const { Cell::new(false) };
}

/// Names a target, for the process that reads its inputs.
const CHOSEN: &str = "FUZZ_TARGET";

fn chosen() -> &'static Target {
    let name = env::var(CHOSEN).unwrap_or_else(|_| panic!("{CHOSEN} names a target"));
    let target = TARGETS.iter().find(|target| target.name == name);
    target.unwrap_or_else(|| panic!("{CHOSEN}={name}: the targets are {:?}", names()))
}

fn names() -> Vec<&'static str> {
    TARGETS.iter().map(|target| target.name).collect()
}

/// Inputs that failed once, and the names of their files.
fn inputs_of(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fuzz/inputs")
        .join(target.name);
    let files = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|file| file.path());
    files
        .map(|path| (path.clone(), fs::read(path).expect("a file")))
        .collect()
}

/// The process of one target: libFuzzer's with `run.sh`, otherwise that of the next test.
#[test]
#[ignore = "run by another test"]
fn reads() {
    let target = chosen();
    let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let mut read = (target.begin)(folders[0].path());
    let seeds = (target.seeds)(folders[1].path());
    for (nth, seed) in seeds.iter().enumerate() {
        assert!(read(seed), "{} refuses seed {nth}", target.name);
    }
    #[cfg(culeak_fuzz)]
    engine::run(target, read, &seeds);
    #[cfg(not(culeak_fuzz))]
    {
        for (nth, seed) in seeds.iter().enumerate() {
            read(&mutate::changed(target.form, seed, nth as u64));
        }
        for (path, input) in inputs_of(target) {
            eprintln!("{}", path.display());
            read(&input);
        }
        eprintln!("{} seeds of {}", seeds.len(), target.name);
    }
}

#[test]
#[cfg(not(culeak_fuzz))]
fn seeds_are_read_and_inputs_that_failed_once_do_no_harm() {
    let (_, module) = module_path!().split_once("::").expect("a module");
    for target in TARGETS {
        let mut command = Command::new(env::current_exe().expect("this test"));
        command.args(["--ignored", "--exact", "--nocapture", &format!("{module}::reads")]);
        let output = command.env(CHOSEN, target.name).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        let all = said.contains(&format!("seeds of {}", target.name));
        assert!(
            output.status.success() && all,
            "{}: {}\n{said}",
            target.name,
            output.status
        );
    }
}
