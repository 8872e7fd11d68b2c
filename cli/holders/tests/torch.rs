//! Objects like those of PyTorch, without PyTorch: what the counts of C++ objects say about stale words, and which pointers to
//! the blocks of the caching allocator are its own.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use culeak::snapshot::{Class, HeldBlock, HolderPath, Holders, OwnerModule};
use culeak_holders::source::Source;
use culeak_holders::source::live::Process;
use culeak_holders::{Block, Options, search};

/// A running program, its blocks, and the global that holds each; `None`: it is lost.
struct Program {
    child: Child,
    blocks: Vec<Block>,
    holders: HashMap<u64, Option<String>>,
    _folder: tempfile::TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn compile(folder: &Path, name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native/torch.cpp");
    let mut command = Command::new("c++");
    command
        .args(["-std=c++17", "-O1", "-g", "-w", "-o", name])
        .arg(source)
        .args(options);
    assert!(
        command.current_dir(folder).status().expect("a C++ compiler").success(),
        "{command:?}"
    );
    folder.join(name)
}

impl Program {
    fn start(options: &[&str]) -> Program {
        let folder = tempfile::tempdir().expect("a folder");
        let library = ["-DALLOCATOR", "-shared", "-fPIC"];
        compile(folder.path(), "libc10_cuda.so", &[options, &library].concat());
        let linked = ["-L.", "-l:libc10_cuda.so", "-Wl,-rpath,$ORIGIN", "-Wl,-z,now"];
        let program = compile(folder.path(), "program", &[options, &linked].concat());
        let mut child = Command::new(program).stdout(Stdio::piped()).spawn().expect("started");
        let (mut blocks, mut holders) = (Vec::new(), HashMap::new());
        for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
            let line = line.expect("text");
            if line == "ready" {
                break;
            }
            let [address, bytes, expected @ ..] = &line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}");
            };
            let address = u64::from_str_radix(address, 16).expect("hexadecimal");
            holders.insert(address, expected.get(1).map(|name| (*name).to_owned()));
            blocks.push(Block {
                address,
                bytes: bytes.parse().expect("a number"),
                time_ns: 0,
                of_torch: true,
                is_handle: false,
            });
        }
        blocks.sort_by_key(|block| block.address);
        Program {
            child,
            blocks,
            holders,
            _folder: folder,
        }
    }

    fn search(&self) -> Holders {
        let process = Process::new(self.child.id()).expect("our child");
        while process
            .threads()
            .first()
            .is_some_and(|thread| thread.stack_pointer.is_none())
        {
            std::thread::yield_now();
        }
        search(&process, &self.blocks, &Options::default()).expect("searched")
    }

    fn bytes_of(&self, global: &str) -> u64 {
        let is_of = |block: &&Block| self.holders[&block.address].as_deref() == Some(global);
        self.blocks.iter().filter(is_of).map(|block| block.bytes).sum()
    }
}

/// With counts in the nodes of the graph, and with shared pointers to them.
const KINDS: [&[&str]; 2] = [&[], &["-DSHARED"]];

#[test]
#[ignore = "needs g++"]
fn stale_words_do_not_lower_what_a_tensor_retains() {
    for options in KINDS {
        let program = Program::start(options);
        let holders = program.search();
        for global in [
            "long_graph",
            "other_graph",
            "shared_graph",
            "saving_graph",
            "with_gradient",
        ] {
            let name = format!("{global} in program");
            let found = holders
                .retainers
                .iter()
                .find(|retainer| retainer.name.starts_with(&name));
            let found = found.unwrap_or_else(|| panic!("{name} is not in {:#?}", holders.retainers));
            assert_eq!(found.bytes, program.bytes_of(global), "{name}, {options:?}");
        }
    }
}

#[test]
#[ignore = "needs g++"]
fn an_object_that_only_weak_pointers_refer_to_holds_nothing() {
    let program = Program::start(&["-DSHARED"]);
    let holders = program.search();
    let retained: Vec<u64> = (holders.retainers.iter())
        .filter(|retainer| retainer.name.starts_with("parameters in program"))
        .map(|retainer| retainer.bytes)
        .collect();
    assert_eq!(retained, [program.bytes_of("parameters")], "{:#?}", holders.retainers);
}

#[test]
#[ignore = "needs g++"]
fn no_reference_frees_objects_that_own_each_other() {
    for options in KINDS {
        let program = Program::start(options);
        let holders = program.search();
        let is_of = |name: &str| name.starts_with("circular in program");
        assert!(
            !holders.retainers.iter().any(|retainer| is_of(&retainer.name)),
            "{options:?}: {:#?}",
            holders.retainers
        );
        let paths: Vec<&HolderPath> = (holders.blocks.iter())
            .map(|block| &holders.paths[block.path])
            .filter(|path| is_of(&path.origin))
            .collect();
        assert_eq!(paths.len(), 3, "{options:?}");
        let is_said = |path: &&HolderPath| path.note.as_deref().is_some_and(|note| note.contains("own each other"));
        let said = paths.iter().filter(|path| is_said(path)).count();
        assert_eq!(said, 2, "{options:?}: {paths:#?}");
    }
}

#[test]
#[ignore = "needs g++"]
fn a_stale_word_is_no_shortcut_through_a_graph() {
    for options in KINDS {
        let program = Program::start(options);
        let holders = program.search();
        let steps: Vec<String> = (holders.paths.iter())
            .filter(|path| path.origin.starts_with("long_graph"))
            .map(|path| {
                path.steps
                    .iter()
                    .map(|step| format!("{} → {}", step.via, step.holder))
                    .collect()
            })
            .collect();
        assert!(
            steps.iter().any(|steps| steps.contains("60 × MulBackward0")),
            "{options:?}: {steps:#?}"
        );
    }
}

#[test]
#[ignore = "needs g++"]
fn whatever_has_a_pointer_to_a_block_holds_it_but_the_records_of_the_allocator() {
    for options in KINDS {
        let program = Program::start(options);
        let holders = program.search();
        let mut mistakes = Vec::new();
        for block in &holders.blocks {
            let path = &holders.paths[block.path];
            let is_right = match &program.holders[&block.address] {
                Some(name) if name == "destructor" => path.class == Class::Held,
                Some(global) => path.class == Class::Held && path.origin.starts_with(&format!("{global} in ")),
                None => path.class == Class::Lost && path.note.as_deref().is_some_and(|note| note.contains("records")),
            };
            // A variable of a function has a longer name.
            let is_static = path.origin.contains("all");
            if !is_right && !is_static {
                mistakes.push(format!("{:?}: {path:?}", program.holders[&block.address]));
            }
        }
        assert!(mistakes.is_empty(), "{options:?}: {mistakes:#?}");
        assert_eq!(holders.blocks.len(), program.blocks.len());
        // One that has the function that frees it is no stale word.
        let is_sure = |name: &str| {
            let mut paths = holders.paths.iter();
            !paths.any(|path| path.origin.starts_with(name) && path.possibly)
        };
        for name in ["workspace in ", "workspaces in "] {
            assert!(is_sure(name), "{name}, {options:?}");
        }
    }
}

/// A program with PyTorch itself, its blocks by address, and what it says of each. It answers questions.
struct Real {
    child: Child,
    lines: Box<dyn Iterator<Item = String>>,
    blocks: Vec<Block>,
    said: HashMap<u64, String>,
}

impl Real {
    fn start(script: &str) -> Real {
        let python = std::env::var_os("TORCH_PYTHON");
        let python = python.expect("TORCH_PYTHON is an interpreter with PyTorch");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch").join(script);
        let mut command = Command::new(python);
        let command = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut lines = lines.map(|line| line.expect("text"));
        let (mut blocks, mut said) = (Vec::new(), HashMap::new());
        for line in lines.by_ref().take_while(|line| line != "ready") {
            let (block, text) = line.split_once('\t').unwrap_or((&line, ""));
            let (address, bytes) = block.split_once(' ').expect("two words");
            let address = u64::from_str_radix(address, 16).expect("hexadecimal");
            said.insert(address, text.to_owned());
            blocks.push(Block {
                address,
                bytes: bytes.parse().expect("a number"),
                time_ns: 0,
                of_torch: true,
                is_handle: false,
            });
        }
        blocks.sort_by_key(|block| block.address);
        Real {
            child,
            lines: Box::new(lines),
            blocks,
            said,
        }
    }
}

/// What each global retains is freed when it is deleted: the program says how much that is.
#[test]
#[ignore = "needs PyTorch"]
fn deleting_a_global_of_a_program_with_pytorch_frees_what_it_retains() {
    let Real {
        mut child,
        mut lines,
        blocks,
        ..
    } = Real::start("holders.py");
    let process = Process::new(child.id()).expect("our child");
    let holders = search(&process, &blocks, &Options::default()).expect("searched");
    let mut input = child.stdin.take().expect("piped");
    let mut mistakes = Vec::new();
    const GLOBALS: [&str; 11] = [
        "a_list",
        "a_dict",
        "a_view",
        "loss",
        "losses",
        "long_graph",
        "retained",
        "model",
        "optimizer",
        "with_context",
        "leaf",
    ];
    for global in GLOBALS {
        let name = format!("__main__.{global} (");
        let found = holders
            .retainers
            .iter()
            .find(|retainer| retainer.name.starts_with(&name));
        let retained = found.map_or(0, |retainer| retainer.bytes);
        writeln!(input, "drop {global}").expect("written");
        let freed: u64 = lines.next().expect("an answer").parse().expect("a number");
        if freed != retained {
            mistakes.push(format!("{global} retains {retained} bytes, {freed} were freed"));
        }
    }
    drop(input);
    child.wait().expect("ended");
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

/// Which cycles PyTorch's objects are on, and whether Python's collector frees them: it is run, and the memory is searched again.
#[test]
#[ignore = "needs PyTorch"]
fn cycles_through_python_and_cpp_are_told_and_freed_as_it_is_said() {
    let Real {
        mut child,
        mut lines,
        blocks,
        said,
    } = Real::start("cycles.py");
    let parts = said.into_iter().map(|(address, said)| {
        let (cycle, note) = said.split_once('\t').expect("two parts");
        (address, (cycle.to_owned(), note.to_owned()))
    });
    let expected: HashMap<u64, (String, String)> = parts.collect();
    let process = Process::new(child.id()).expect("our child");
    let search = || search(&process, &blocks, &Options::default()).expect("searched");
    let before = search();
    let mut input = child.stdin.take().expect("piped");
    writeln!(input).expect("written");
    assert_eq!(lines.next().as_deref(), Some("collected"));
    let after = search();
    let mut mistakes = Vec::new();
    for (before, after) in before
        .blocks
        .iter()
        .map(|block| &before.paths[block.path])
        .zip(after.blocks.iter().map(|block| &after.paths[block.path]))
        .zip(&blocks)
        .map(|((before, after), block)| ((block, before), after))
    {
        let (block, before) = before;
        let (cycle, note) = &expected[&block.address];
        let said = before.note.as_deref().unwrap_or_default();
        let is_right = match cycle.as_str() {
            "-" => before.class != Class::Cycle,
            cycle => {
                let begins = before
                    .origin
                    .strip_prefix("cycle ")
                    .is_some_and(|text| text.starts_with(cycle));
                // Its address may be left somewhere.
                let is_freed = after.class != Class::Cycle;
                before.class == Class::Cycle
                    && begins
                    && said.contains(note.as_str())
                    && is_freed != said.contains("does not free it")
            }
        };
        if !is_right {
            mistakes.push(format!(
                "{cycle} {note}: {before:?}, after the collection {:?}",
                after.class
            ));
        }
    }
    drop(input);
    child.wait().expect("ended");
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

/// Modules own parameters, buffers, gradients, the state of optimizers, and what is in their attributes: the program says which.
#[test]
#[ignore = "needs PyTorch"]
fn each_storage_has_the_module_that_owns_it() {
    let Real {
        mut child,
        blocks,
        said: expected,
        ..
    } = Real::start("modules.py");
    let process = Process::new(child.id()).expect("our child");
    let holders = search(&process, &blocks, &Options::default()).expect("searched");
    drop(child.stdin.take());
    child.wait().expect("ended");
    assert_eq!(holders.blocks.len(), blocks.len());
    let name = |module: usize| holders.modules[module].name.as_str();
    let mut mistakes = Vec::new();
    for block in &holders.blocks {
        let around = std::iter::successors(block.module, |module| holders.modules[*module].parent);
        let mut names: Vec<&str> = around.map(name).collect();
        names.reverse();
        let found = if names.is_empty() {
            "-".to_owned()
        } else {
            names.join(".")
        };
        if found != expected[&block.address] {
            mistakes.push(format!(
                "{} is {found}: {:?}",
                expected[&block.address], holders.paths[block.path]
            ));
        }
    }
    assert!(mistakes.is_empty(), "{mistakes:#?}");
    let is_embedding = |module: &&OwnerModule| module.name == "embed" && module.class == "Embedding";
    let embedding = holders.modules.iter().find(is_embedding).expect("it owns blocks");
    assert_eq!(embedding.also, 1, "the weights are tied");
}

/// The type and the sizes of the tensor that leads to each storage: the program says which. Nothing is said of one that has more
/// elements than its storage.
#[test]
#[ignore = "needs PyTorch"]
fn each_storage_has_the_type_and_the_sizes_of_its_tensor() {
    let Real {
        mut child,
        blocks,
        said: expected,
        ..
    } = Real::start("tensors.py");
    let process = Process::new(child.id()).expect("our child");
    let holders = search(&process, &blocks, &Options::default()).expect("searched");
    drop(child.stdin.take());
    child.wait().expect("ended");
    assert_eq!(holders.blocks.len(), blocks.len());
    let tensor = |block: &HeldBlock| block.tensor.map(|tensor| holders.tensors[tensor].to_string());
    let mistakes: Vec<String> = (holders.blocks.iter())
        .map(|block| {
            (
                &expected[&block.address],
                tensor(block).unwrap_or("-".to_owned()),
                block,
            )
        })
        .filter(|(expected, found, _)| expected.split('\t').all(|expected| expected != found))
        .map(|(expected, found, block)| format!("{expected} is {found}: {:?}", holders.paths[block.path]))
        .collect();
    assert!(mistakes.is_empty(), "{mistakes:#?}");
}

/// The nodes of a hash table end with the pointer, where the last word of memory is left over more often than not.
#[test]
#[ignore = "needs PyTorch"]
fn a_dual_tensor_holds_its_tangent() {
    let Real { mut child, blocks, .. } = Real::start("forward.py");
    let process = Process::new(child.id()).expect("our child");
    let holders = search(&process, &blocks, &Options::default()).expect("searched");
    drop(child.stdin.take());
    child.wait().expect("ended");
    assert_eq!(holders.blocks.len(), 4);
    for block in &holders.blocks {
        let path = &holders.paths[block.path];
        let answer = (path.class, path.origin.as_str(), path.possibly);
        assert_eq!(answer, (Class::Held, "__main__.duals", true), "{path:#?}");
    }
}
