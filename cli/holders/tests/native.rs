//! C++ programs whose memory is known: every chunk is found where malloc says it is, and blocks are reached from exactly the
//! roots that keep them.

use std::collections::HashMap;
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use culeak::snapshot::Class;
use culeak_holders::copy::Image;
use culeak_holders::modules::Modules;
use culeak_holders::native::vectors::bytes_of_vector;
use culeak_holders::native::{Chunk, Heap, Native};
use culeak_holders::source::Source;
use culeak_holders::source::live::Process;
use culeak_holders::{Block, Options, search};

/// A program that waits until its input ends.
struct Program {
    child: Child,
    /// What it printed before `ready`.
    lines: Vec<String>,
}

impl Program {
    fn start(command: &mut Command) -> Program {
        let mut child = (command.stdin(Stdio::piped()).stdout(Stdio::piped()))
            .spawn()
            .expect("started");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let lines = output.lines().map(|line| line.expect("text"));
        let lines = lines.take_while(|line| line != "ready").collect();
        assert!(child.try_wait().expect("our child").is_none(), "{command:?} ended");
        Program { child, lines }
    }

    /// Its memory, once its first thread waits: the stack of one that runs is searched as a whole.
    fn process(&self) -> Process {
        let process = Process::new(self.child.id()).expect("our child");
        while process
            .threads()
            .first()
            .is_some_and(|thread| thread.stack_pointer.is_none())
        {
            std::thread::yield_now();
        }
        process
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn compile(folder: &Path, source: &str, to: &str, options: &[&str]) -> PathBuf {
    let to = folder.join(to);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native").join(source);
    let mut command = Command::new("c++");
    command
        .args(["-std=c++17", "-O1", "-g", "-w", "-o"])
        .args([&to, &source])
        .args(options);
    assert!(command.status().expect("a C++ compiler").success(), "{command:?}");
    to
}

fn program(folder: &Path) -> PathBuf {
    let plugin = compile(folder, "plugin.cpp", "libplugin.so", &["-shared", "-fPIC"]);
    compile(
        folder,
        "driver.cpp",
        "libcuda.so.1",
        &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"],
    );
    let options = [
        &format!("-DPLUGIN=\"{}\"", plugin.display()),
        &format!("-L{}", folder.display()),
        &format!("-Wl,-rpath,{}", folder.display()),
        // The lazy resolver saves vector registers on the stack, which may contain blocks that were copied before.
        "-Wl,-z,now",
        "-l:libcuda.so.1",
        "-pthread",
        "-ldl",
    ];
    compile(
        folder,
        "program.cpp",
        "program",
        &options.map(String::from).each_ref().map(String::as_str),
    )
}

/// How a block is reached: the name of the root, and the class of the last object.
type Reached = HashMap<u64, (String, Option<String>)>;

/// A walk from the native roots, without any preference among them.
fn walk(copy: &Image, modules: &Modules, native: &mut Native, blocks: &[u64]) -> Reached {
    let mut found = Reached::new();
    let mut seen = HashMap::new();
    for root in native.roots(modules) {
        let words = root.range.clone().step_by(8).map(|at| (at, copy.word(at)));
        let registers = root.values.iter().map(|value| (0, *value));
        for (place, word) in words.chain(registers) {
            // Where each word is, and the chunk around it.
            let mut open = vec![(place, word, None)];
            while let Some((at, word, holder)) = open.pop() {
                if blocks.contains(&word) && !found.contains_key(&word) {
                    let class = holder.and_then(|holder: Chunk| Some(native.class(copy, holder.start)?.to_owned()));
                    found.insert(word, (native.describe(modules, &root, place), class));
                }
                let Some(chunk) = native.chunk(copy, word) else {
                    continue;
                };
                if seen.insert(chunk.start, ()).is_none() {
                    let used = bytes_of_vector(copy, at, &chunk).unwrap_or(chunk.bytes);
                    let words = (chunk.start..chunk.start + used).step_by(8);
                    open.extend(words.map(|at| (at, copy.word(at), Some(chunk))));
                }
            }
        }
    }
    found
}

#[test]
#[ignore = "needs g++"]
fn blocks_are_reached_from_exactly_the_roots_that_keep_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = Program::start(&mut Command::new(program(folder.path())));
    let process = program.process();
    let copy = Image::take(&process, &[]).expect("copied");
    let modules = Modules::find(&copy);
    let mut native = Native::find(&copy, &modules, None);
    let mut expected: HashMap<u64, String> = HashMap::new();
    for line in &program.lines {
        let (address, text) = line.split_once(' ').expect("an address and what is expected");
        expected.insert(u64::from_str_radix(address, 16).expect("an address"), text.to_owned());
    }
    let blocks: Vec<u64> = expected.keys().copied().collect();
    native.find_records(&copy, &blocks);
    let found = walk(&copy, &modules, &mut native, &blocks);
    let mut in_chunks: HashMap<u64, Chunk> = HashMap::new();
    for chunk in native.chunks_where(&copy, &[Heap::Glibc, Heap::Python], |_| true) {
        for at in (chunk.start..chunk.start + chunk.bytes).step_by(8) {
            in_chunks.insert(copy.word(at), chunk);
        }
    }
    let mut wrong = String::new();
    for (block, expected) in &expected {
        let words: Vec<&str> = expected.split(' ').collect();
        let held = found.get(block);
        let right = match (words[0], held) {
            ("held", Some((root, class))) => {
                let place = match words[1] {
                    "stack" => root.starts_with("stack of thread ") && root.ends_with(" (loader)"),
                    // In `t_vector`, or set with `pthread_setspecific`.
                    "thread-local" => [
                        "thread-specific data, perhaps of CUDA's runtime, of thread ",
                        "thread-local variable of thread ",
                        "thread-local variable t_vector in program of thread ",
                    ]
                    .iter()
                    .any(|start| root.starts_with(start)),
                    name => *root == format!("{name} in program"),
                };
                place && words.get(2).is_none_or(|name| class.as_deref() == Some(*name))
            }
            ("unreached", None) => in_chunks.contains_key(block),
            ("lost", None) => !in_chunks.contains_key(block),
            ("driver", None) => in_chunks
                .get(block)
                .is_none_or(|chunk| native.is_driver(&copy, chunk.start)),
            _ => false,
        };
        if !right {
            let _ = writeln!(
                wrong,
                "{block:x}: expected {expected}, found {held:?}, in {:?}",
                in_chunks.get(block)
            );
        }
    }
    assert!(expected.len() > 130, "{}", expected.len());
    assert_eq!(wrong, "", "{:?}", native.limits);
    assert!(native.limits.is_empty(), "{:?}", native.limits);
}

/// Compares all chunks with what the program knows about its memory.
fn compare(mut command: Command, list: &Path) {
    let program = Program::start(&mut command);
    let process = program.process();
    let copy = Image::take(&process, &[]).expect("copied");
    let modules = Modules::find(&copy);
    let native = Native::find(&copy, &modules, None);
    let text = std::fs::read_to_string(list).expect("written by the program");
    // An address can be allocated many times.
    let (mut used, mut free) = (HashMap::new(), Vec::new());
    for line in text.lines() {
        let mut numbers = line
            .split(' ')
            .map(|number| u64::from_str_radix(number, 16).expect("a number"));
        let (start, bytes) = (numbers.next().expect("an address"), numbers.next().expect("a size"));
        match numbers.next() {
            Some(1) => assert_eq!(used.insert(start, bytes), None),
            _ => free.push(start),
        }
    }
    free.sort_unstable();
    free.dedup();
    free.retain(|start| !used.contains_key(start));
    let mut wrong = String::new();
    for (&start, &bytes) in &used {
        for inside in [start, start + 8, start + bytes / 2, start + bytes - 9] {
            let inside = inside.clamp(start, start + bytes - 1);
            let found = native.chunk(&copy, inside);
            let heap = Heap::Glibc;
            if found != Some(Chunk { start, bytes, heap }) && copy.has(inside) {
                let _ = writeln!(wrong, "{inside:x} is in {start:x}, {bytes} bytes, not {found:?}");
            }
        }
    }
    // glibc's own cache of a thread, which may be where the program freed something.
    let is_cache = |chunk: &Chunk| (640..=672).contains(&chunk.bytes);
    for start in &free {
        if let Some(chunk) = native
            .chunk(&copy, *start)
            .filter(|chunk| !used.contains_key(&chunk.start) && !is_cache(chunk))
        {
            let _ = writeln!(wrong, "{start:x} is free, not {chunk:?}");
        }
    }
    let (used, free) = (used.len(), free.len());
    assert!(used > 1000 && free > 1000, "{used} {free}");
    let count = wrong.lines().count();
    let first: Vec<&str> = wrong.lines().take(10).collect();
    assert_eq!(count, 0, "of {used} used and {free} free pieces:\n{}", first.join("\n"));
    assert!(native.limits.is_empty(), "{:?}", native.limits);
}

#[test]
#[ignore = "needs g++"]
fn every_chunk_of_glibc_is_found_and_no_free_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let shared = compile(folder.path(), "churn.cpp", "shared", &["-pthread"]);
    let list = folder.path().join("list");
    // Without caches, small chunks are in fastbins; with larger ones, no chunk is.
    for tunables in [
        "",
        "glibc.malloc.tcache_count=0",
        "glibc.malloc.tcache_count=500",
        "glibc.malloc.arena_max=1",
    ] {
        let mut command = Command::new(&shared);
        command.arg("50000").arg(&list).env("GLIBC_TUNABLES", tunables);
        compare(command, &list);
    }
}

#[test]
#[ignore = "needs g++"]
fn every_chunk_of_a_static_program_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "churn.cpp", "static", &["-pthread", "-static"]);
    let list = folder.path().join("list");
    let mut command = Command::new(&program);
    command.arg("20000").arg(&list);
    compare(command, &list);
}

#[test]
#[ignore = "needs g++"]
fn the_heap_of_an_unknown_allocator_is_followed_from_exact_addresses() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "own_allocator.cpp", "own_allocator", &[]);
    let program = Program::start(&mut Command::new(program));
    let process = program.process();
    let copy = Image::take(&process, &[]).expect("copied");
    let modules = Modules::find(&copy);
    let mut native = Native::find(&copy, &modules, None);
    let number = |line: &String| u64::from_str_radix(line, 16).expect("a number");
    let numbers: Vec<u64> = program.lines.iter().map(number).collect();
    let [object, held, far] = numbers[..] else {
        panic!("{numbers:x?}")
    };
    let chunk = native.chunk(&copy, object).expect("anonymous memory");
    assert_eq!((chunk.start, chunk.bytes, chunk.heap), (object, 256, Heap::Unknown));
    assert_eq!(
        native.chunk(&copy, object + 3),
        None,
        "no object starts at an odd address"
    );
    let found = walk(&copy, &modules, &mut native, &[held, far]);
    assert_eq!(
        found.get(&held).map(|(root, _)| root.as_str()),
        Some("g_object in own_allocator")
    );
    assert_eq!(found.get(&far), None, "behind the window");
}

#[test]
fn what_cudas_libraries_note_holds_nothing_for_certain() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native/libraries.c");
    let made = |name: &str, options: &[&str]| {
        let to = folder.path().join(name);
        let mut command = Command::new("cc");
        command.arg("-g").args(options).arg("-o").args([&to, &source]);
        assert!(command.status().expect("a C compiler").success(), "{command:?}");
        to
    };
    let mut command = Command::new(made("program", &["-ldl"]));
    command.arg(made("libcupti.so.13", &["-shared", "-fPIC", "-DLOCAL"]));
    command.arg(made("libcublas.so.13", &["-shared", "-fPIC", "-DGLOBAL"]));
    let program = Program::start(&mut command);
    let block = |address| Block {
        address,
        bytes: 1 << 20,
        time_ns: 0,
        of_torch: false,
        is_handle: false,
    };
    let blocks = [
        0x3_0210_0000,
        0x3_0220_0000,
        0x5000_0000_0000,
        0x5001_0000_0000,
        0x5002_0000_0000,
    ]
    .map(block);
    let holders = search(&program.process(), &blocks, &Options::default()).expect("an answer");
    let said = |address| {
        let found = holders.blocks.iter().find(|found| found.address == address);
        let path = &holders.paths[found.expect("one of them").path];
        (path.class, path.possibly)
    };
    assert_eq!(said(0x5000_0000_0000), (Class::Lost, false), "noted by a thread");
    assert_eq!(said(0x5001_0000_0000), (Class::Held, true), "noted by a library");
    assert_eq!(said(0x3_0210_0000), (Class::Held, true), "two numbers");
    assert_eq!(said(0x3_0220_0000), (Class::Held, false), "a variable");
    let of_variable = holders.retainers.iter().find(|one| one.name.starts_with("given"));
    let of_variable = of_variable.unwrap_or_else(|| panic!("{:?}", holders.retainers));
    assert!(
        of_variable.bytes == 1 << 20 && !of_variable.is_shared(),
        "noted, too: {of_variable:?}"
    );
}

#[test]
#[ignore = "needs musl-gcc"]
fn what_programs_with_musl_hold_is_not_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    for linked in ["-static", "-no-pie"] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/native/musl.c");
        let program = folder.path().join("program");
        let status = Command::new("musl-gcc")
            .args(["-O1", linked, "-o"])
            .args([&program, &source])
            .status();
        let status = status.expect("this claim needs musl-gcc: .ci/run installs it");
        assert!(status.success(), "{linked}");
        let program = Program::start(&mut Command::new(program));
        let address = |line: &String| u64::from_str_radix(line, 16).expect("an address");
        let block = |address| Block {
            address,
            bytes: 4096,
            time_ns: 0,
            of_torch: false,
            is_handle: false,
        };
        let blocks: Vec<Block> = program.lines.iter().map(address).map(block).collect();
        assert_eq!(blocks.len(), 11);
        let holders = search(&program.process(), &blocks, &Options::default()).expect("an answer");
        for found in &holders.blocks {
            let path = &holders.paths[found.path];
            assert_eq!(path.class, Class::Held, "{linked} {:x} {path:?}", found.address);
            assert!(path.possibly || found.address == blocks[1].address, "{linked} {path:?}");
        }
        let limits = &holders.search.limits;
        assert!(
            limits.iter().any(|limit| limit.contains("only those of glibc")),
            "{limits:?}"
        );
    }
}

#[test]
#[ignore = "needs g++"]
fn a_damaged_heap_costs_its_damaged_part_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile(folder.path(), "damaged.cpp", "damaged", &[]);
    let program = Program::start(&mut Command::new(program));
    let process = program.process();
    let copy = Image::take(&process, &[]).expect("copied");
    let native = Native::find(&copy, &Modules::find(&copy), None);
    let number = |line: &String| u64::from_str_radix(line, 16).expect("a number");
    let numbers: Vec<u64> = program.lines.iter().map(number).collect();
    let [before, inside, after] = numbers[..] else {
        panic!("{numbers:x?}")
    };
    let heap = |address| native.chunk(&copy, address).map(|chunk| (chunk.start, chunk.heap));
    assert_eq!(heap(before), Some((before, Heap::Glibc)));
    assert_eq!(heap(inside), Some((inside, Heap::Unknown)));
    assert_eq!(heap(after), Some((after, Heap::Glibc)));
    assert_eq!(native.limits.len(), 1, "{:?}", native.limits);
    assert!(
        native.limits[0].contains("malloc's heaps are damaged"),
        "{:?}",
        native.limits
    );
}

#[test]
fn blocks_of_pythons_pools_are_found_unless_they_are_free() {
    const SCRIPT: &str = "
import sys, ctypes
kept = [bytes([i % 256]) * (i % 460 + 1) + b'x' for i in range(20000)]
freed = [bytes([i % 256]) * (i % 460 + 1) + b'y' for i in range(20000)]
where = [id(x) for x in freed]
del freed
for x in kept:
    print('%x %x' % (id(x), sys.getsizeof(x)))
# Memory of the freed ones that nothing took since: their counts are gone, and their text is still there.
print('freed')
for at in where[::7]:
    print('%x' % at)
print('ready', flush=True)
sys.stdin.read()
";
    let mut command = Command::new("python3");
    let program = Program::start(command.args(["-c", SCRIPT]));
    let process = program.process();
    let copy = Image::take(&process, &[]).expect("copied");
    let version = Command::new("python3").arg("-V").output().expect("python3");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse().ok());
    let minor: u32 = minor.expect("Python 3.x");
    let pool = if minor >= 10 { 16 << 10 } else { 4 << 10 };
    let native = Native::find(&copy, &Modules::find(&copy), Some(pool));
    let (used, freed) = program
        .lines
        .split_at(program.lines.iter().position(|line| line == "freed").expect("a line"));
    assert!(used.len() == 20_000 && freed.len() > 2000);
    let mut right = 0;
    for line in used {
        let (at, bytes) = line.split_once(' ').expect("two numbers");
        let (at, bytes) = (
            u64::from_str_radix(at, 16).unwrap(),
            u64::from_str_radix(bytes, 16).unwrap(),
        );
        let chunk = native.chunk(&copy, at).expect("an object");
        assert_eq!((chunk.start, chunk.heap), (at, Heap::Python));
        assert_eq!(chunk.bytes, bytes.next_multiple_of(16));
        assert_eq!(native.chunk(&copy, at + 8), None, "not at its start");
        assert_eq!(native.around(&copy, at + bytes - 1), Some(chunk));
        right += 1;
    }
    let still = freed[1..].iter().map(|line| u64::from_str_radix(line, 16).unwrap());
    let free = still.filter(|at| native.chunk(&copy, *at).is_none()).count();
    assert!(free * 10 > freed.len() * 8, "{free} of {}", freed.len());
    assert_eq!(right, 20_000);
}
