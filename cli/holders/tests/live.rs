//! Real interpreters that hold stand-ins of tensors in known ways, searched while they run.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use culeak::snapshot::{Class, HolderPath, Holders};
use culeak_holders::source::live::Process;
use culeak_holders::{Block, Options, StillLive, search};

/// A running program that printed its blocks.
struct Program {
    child: Child,
    blocks: Vec<Block>,
    /// Label and expected class, by address.
    expected: HashMap<u64, (String, String)>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    fn start(command: &mut Command) -> Program {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (mut blocks, mut expected) = (Vec::new(), HashMap::new());
        let mut is_ready = false;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            is_ready = line == "ready";
            if is_ready {
                break;
            }
            let [address, bytes, label, class] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let address = u64::from_str_radix(address, 16).unwrap();
            expected.insert(address, (label.to_owned(), class.to_owned()));
            blocks.push(Block {
                address,
                bytes: bytes.parse().unwrap(),
                time_ns: 0,
                of_torch: false,
            });
        }
        let program = Program {
            child,
            blocks,
            expected,
        };
        assert!(is_ready, "{command:?} ended early");
        program
    }

    fn search(&self) -> Holders {
        let source = Process::new(self.child.id()).unwrap();
        search(&source, &self.blocks, &Options::default()).unwrap()
    }

    /// What differs from the expected classes.
    fn mistakes(&self, holders: &Holders) -> Vec<String> {
        assert_eq!(holders.blocks.len(), self.blocks.len());
        let wrong = |(address, path): (u64, &HolderPath)| {
            let (label, expected) = &self.expected[&address];
            let class = format!("{:?}", path.class);
            (class != *expected).then(|| format!("{label} is {class}, not {expected}: {path:?}"))
        };
        let paths = holders
            .blocks
            .iter()
            .map(|block| (block.address, &holders.paths[block.path]));
        paths.filter_map(wrong).collect()
    }

    fn path<'h>(&self, holders: &'h Holders, label: &str) -> &'h HolderPath {
        let block = holders
            .blocks
            .iter()
            .find(|block| self.expected[&block.address].0 == label);
        &holders.paths[block.unwrap_or_else(|| panic!("no block {label}")).path]
    }
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
}

/// The system's interpreter, and those that pyenv installed.
fn interpreters() -> Vec<PathBuf> {
    let mut all = vec![PathBuf::from("python3")];
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    for version in std::fs::read_dir(home.join(".pyenv/versions"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let name = version.file_name().into_string().unwrap_or_default();
        let minor = name
            .strip_prefix("3.")
            .and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        if minor.is_some_and(|minor| (8..=15).contains(&minor)) {
            all.push(version.path().join("bin/python3"));
        }
    }
    all
}

fn compile(to: &Path, source: &str, options: &[&str]) {
    let mut command = Command::new("cc");
    command.arg("-O1").args(options).arg("-o").arg(to).arg(program(source));
    assert!(command.status().expect("a C compiler").success(), "{command:?}");
}

#[test]
fn each_block_gets_the_class_of_its_holder() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libholds.so");
    compile(&library, "holds.c", &["-shared", "-fPIC"]);
    let mut mistakes = Vec::new();
    for python in interpreters() {
        let running = Program::start(Command::new(&python).arg(program("stand_ins.py")).arg(&library));
        let holders = running.search();
        for mistake in running.mistakes(&holders) {
            mistakes.push(format!("{} ({:?}): {mistake}", python.display(), holders.search.python));
        }
        let leaked = running.path(&holders, "leaked-chunk");
        let note = leaked.note.as_deref();
        let python = python.display();
        assert_eq!(
            note,
            Some("only unreachable heap memory points to it"),
            "{python}: {leaked:?} {:?}",
            holders.search
        );
        assert!(running.path(&holders, "lost").note.is_none());
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn a_program_without_python_holds_by_globals_stacks_and_chains() {
    let folder = tempfile::tempdir().unwrap();
    let executable = folder.path().join("native");
    compile(&executable, "native.c", &["-pthread"]);
    let running = Program::start(&mut Command::new(&executable));
    let holders = running.search();
    let mistakes = running.mistakes(&holders);
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    assert_eq!(holders.search.python, None);
    assert!(running.path(&holders, "interior").interior);
    assert!(!running.path(&holders, "global").interior);
    let note = |label| running.path(&holders, label).note.as_deref();
    assert_eq!(note("leaked-chunk"), Some("only unreachable heap memory points to it"));
    assert_eq!((note("freed-chunk"), note("forgotten")), (None, None));
}

#[test]
fn moving_blocks_are_held_and_cycles_beside_them_are_found() {
    let running = Program::start(Command::new("python3").arg(program("moves.py")));
    let holders = running.search();
    let mistakes = running.mistakes(&holders);
    assert!(mistakes.is_empty(), "{}\n{:?}", mistakes.join("\n"), holders.search);
}

#[test]
fn no_block_needs_no_copy() {
    let running = Program::start(Command::new("python3").args(["-c", "print('ready', flush=True); input()"]));
    let holders = running.search();
    assert_eq!((holders.blocks.len(), holders.search.copies), (0, 0));
    assert_eq!(holders.paths.iter().filter(|path| path.class == Class::Held).count(), 0);
}

#[test]
fn deep_wide_cyclic_and_damaged_heaps_are_searched() {
    let running = Program::start(Command::new("python3").arg(program("hostile.py")));
    let holders = running.search();
    let mistakes = running.mistakes(&holders);
    assert!(mistakes.is_empty(), "{}\n{:?}", mistakes.join("\n"), holders.search);
}

#[test]
fn blocks_that_were_freed_cost_no_further_copy() {
    let running = Program::start(Command::new("python3").arg(program("moves.py")));
    let source = Process::new(running.child.id()).unwrap();
    let freed = Block {
        address: 0x7e00_0000_0000,
        bytes: 4096,
        time_ns: 0,
        of_torch: false,
    };
    let copies = |options: &Options| search(&source, &[freed], options).unwrap().search.copies;
    let default = Options::default();
    assert_eq!(copies(&default), default.copies);
    let asked = Options {
        still_live: Some(StillLive(Arc::new(|blocks| vec![false; blocks.len()]))),
        ..default
    };
    assert_eq!(copies(&asked), 1);
}

#[test]
fn a_cycle_is_what_the_collector_frees() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libholds.so");
    compile(&library, "holds.c", &["-shared", "-fPIC"]);
    let mut mistakes = Vec::new();
    for python in interpreters() {
        let running = Program::start(Command::new(&python).arg(program("collector.py")).arg(&library));
        let holders = running.search();
        for mistake in running.mistakes(&holders) {
            mistakes.push(format!("{}: {mistake}", python.display()));
        }
        let note = |label| running.path(&holders, label).note.as_deref();
        let untracked = note("untracked-in-circle").unwrap_or_default();
        assert!(
            untracked.contains("does not track"),
            "{}: {untracked}",
            python.display()
        );
        let frozen = note("frozen").unwrap_or_default();
        assert!(frozen.contains("gc.unfreeze()"), "{}: {frozen}", python.display());
        let possibly = |label| running.path(&holders, label).possibly;
        assert!(possibly("borrowed") && !possibly("ordinary"), "{}", python.display());
        assert_eq!(note("ordinary"), Some("gc is disabled"), "{}", python.display());
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn finalizers_and_tables_hold_what_their_objects_hold() {
    let mut mistakes = Vec::new();
    for python in interpreters() {
        let running = Program::start(Command::new(&python).arg(program("records.py")));
        let holders = running.search();
        for mistake in running.mistakes(&holders) {
            mistakes.push(format!("{}: {mistake}", python.display()));
        }
        for (label, origin) in [
            ("owned", "__main__.kept"),
            ("by-address", "__main__.by_address"),
            ("pooled", "__main__.array"),
            ("pool-free", "__main__.pool"),
        ] {
            let path = running.path(&holders, label);
            if path.origin != origin {
                mistakes.push(format!("{}: {label}: {path:?}", python.display()));
            }
        }
        let retained: u64 = (holders.retainers.iter())
            .filter(|retainer| retainer.name.starts_with("__main__.kept"))
            .map(|retainer| retainer.bytes)
            .max()
            .unwrap_or(0);
        assert_eq!(retained, 4096, "{}", python.display());
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}
