//! Native roots: variables of several words, thread-local variables, and stacks that a program made itself.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use culeak::snapshot::{Class, HolderPath, Holders};
use culeak_holders::source::Source;
use culeak_holders::source::copied::MemoryCopy;
use culeak_holders::source::live::Process;
use culeak_holders::{Block, Error, Options, search};

/// A program that printed its blocks with what is expected of each, and waits.
struct Program {
    child: Child,
    expected: Vec<(u64, String)>,
    _folder: tempfile::TempDir,
}

impl Program {
    fn start(source: &str, options: &[&str], arguments: &[&str]) -> Program {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("program");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native").join(source);
        let mut compiler = Command::new("c++");
        // The lazy resolver saves registers on the stack, which may contain blocks that were copied before.
        compiler.args(["-std=c++17", "-O1", "-w", "-pthread", "-Wl,-z,now", "-o"]);
        compiler.args([&program, &source]).args(options);
        assert!(compiler.status().expect("a C++ compiler").success(), "{compiler:?}");
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut expected = Vec::new();
        for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
            let line = line.expect("text");
            let Some((address, text)) = line.split_once(' ') else {
                assert_eq!(line, "ready");
                break;
            };
            let address = u64::from_str_radix(address, 16).expect("an address");
            expected.push((address, text.to_owned()));
        }
        Program {
            child,
            expected,
            _folder: folder,
        }
    }

    fn search(&self) -> Holders {
        self.search_in(|process, blocks| search(process, blocks, &Options::default()))
    }

    /// As after `culeak run --why`.
    fn search_copied(&self) -> Holders {
        self.search_in(|process, blocks| {
            let copied = MemoryCopy::of(process, &[]).expect("copied");
            search(&copied, blocks, &Options::default())
        })
    }

    fn search_in(&self, search: impl Fn(&Process, &[Block]) -> Result<Holders, Error>) -> Holders {
        let process = Process::new(self.child.id()).expect("our child");
        // The stack of a thread that runs is searched as a whole.
        while process.threads().iter().any(|thread| thread.stack_pointer.is_none()) {
            std::thread::yield_now();
        }
        let block = |(address, _): &(u64, String)| Block {
            address: *address,
            bytes: 4096,
            time_ns: 0,
            of_torch: false,
            is_handle: false,
        };
        let blocks: Vec<Block> = self.expected.iter().map(block).collect();
        search(&process, &blocks).expect("an answer")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn path_of(holders: &Holders, address: u64) -> &HolderPath {
    let block = holders.blocks.iter().find(|block| block.address == address);
    &holders.paths[block.expect("each block is in the answer").path]
}

/// The number of blocks that a holder frees; its name begins with this.
fn freed(holders: &Holders, name: &str) -> Vec<(String, u64)> {
    let of = holders
        .retainers
        .iter()
        .filter(|retainer| retainer.name.starts_with(name));
    of.map(|retainer| (retainer.name.clone(), retainer.count)).collect()
}

#[test]
#[ignore = "needs g++"]
fn a_variable_frees_all_that_its_words_hold_and_has_one_name() {
    let program = Program::start("variables.cpp", &[], &[]);
    let holders = program.search();
    let names: Vec<_> = holders.retainers.iter().map(|one| (&one.name, one.count)).collect();
    for (variable, count) in [
        ("app::tree in program", 16),
        ("g_hash in program", 16),
        ("g_list in program", 16),
        ("g_deque in program", 16),
        ("g_cache in program", 16),
        ("g_array in program", 8),
    ] {
        let found = freed(&holders, variable);
        assert_eq!(found.len(), 1, "{variable}: {names:?}");
        assert_eq!(found[0].1, count, "{variable}: {names:?}");
    }
    let thread = freed(&holders, "thread-local variable t_tree in program of thread ");
    assert_eq!(thread.len(), 1, "{names:?}");
    assert!(thread[0].0.contains("(worker)") && thread[0].1 == 16, "{names:?}");
    for (address, name) in &program.expected {
        let path = path_of(&holders, *address);
        assert_eq!(path.class, Class::Held, "{name}: {path:?}");
        let expected = match name.as_str() {
            "shared" => "g_o",
            name => name,
        };
        let expected = match expected.starts_with("t_") {
            true => format!("thread-local variable {expected} in program of thread "),
            false => expected.to_owned(),
        };
        assert!(path.origin.starts_with(&expected), "{name}: {path:?}");
    }
    // Two variables hold these.
    let shared: Vec<_> = holders
        .retainers
        .iter()
        .filter(|one| one.name.starts_with("g_o"))
        .collect();
    assert!(shared.len() == 1 && shared[0].also.len() == 1, "{shared:?}");
}

#[test]
#[ignore = "needs g++"]
fn without_symbols_words_of_different_variables_stay_apart() {
    let program = Program::start("variables.cpp", &["-s"], &[]);
    let holders = program.search();
    for retainer in &holders.retainers {
        assert!(retainer.count <= 16, "{:?}", holders.retainers);
    }
    for (address, name) in &program.expected {
        let path = path_of(&holders, *address);
        assert_eq!(path.class, Class::Held, "{name}: {path:?}");
    }
}

#[test]
#[ignore = "needs g++"]
fn what_stacks_that_a_program_made_hold_is_not_lost() {
    // With "stays", a thread runs on such a stack.
    for arguments in [&[][..], &["stays"]] {
        let program = Program::start("coroutines.cpp", &[], arguments);
        assert!(program.expected.len() > 160, "{}", program.expected.len());
        for holders in [program.search(), program.search_copied()] {
            for (address, expected) in program.expected.iter().filter(|(_, expected)| expected != "lost") {
                let path = path_of(&holders, *address);
                assert_eq!(path.class, Class::Held, "{address:x} {expected}: {path:?}");
            }
        }
    }
}
