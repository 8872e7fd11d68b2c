//! Real interpreters that hold stand-ins of tensors in known ways, searched while they run.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use culeak::snapshot::{Class, HolderPath, Holders};
use culeak_holders::copy::Image;
use culeak_holders::source::live::Process;
use culeak_holders::source::{Region, Source, Thread};
use culeak_holders::{Block, Options, StillLive, Stopped, search, search_stopped};

#[allow(dead_code)]
#[path = "../../../shim/cpython/tests/support/mod.rs"]
mod interpreters;

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
                is_handle: false,
            });
        }
        blocks.sort_by_key(|block| block.address);
        let program = Program {
            child,
            blocks,
            expected,
        };
        assert!(is_ready, "{command:?} ended early");
        program
    }

    /// The program has printed its last line, and is about to wait.
    fn wait_until_asleep(&self) {
        let path = format!("/proc/{}/stat", self.child.id());
        while !std::fs::read_to_string(&path).unwrap().contains(") S ") {
            std::thread::yield_now();
        }
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

/// The commands of all interpreters.
fn interpreters() -> impl Iterator<Item = &'static PathBuf> {
    interpreters::recorded().iter().map(|python| &python.command)
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
        let running = Program::start(Command::new(python).arg(program("stand_ins.py")).arg(&library));
        let holders = running.search();
        for mistake in running.mistakes(&holders) {
            mistakes.push(format!("{} ({:?}): {mistake}", python.display(), holders.search.python));
        }
        for label in ["leaked-chunk", "lost"] {
            let path = running.path(&holders, label);
            let answer = (path.class, path.note.as_deref());
            assert_eq!(
                answer,
                (Class::Lost, None),
                "{}, {label}: {:?}",
                python.display(),
                holders.search
            );
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

/// A process of which some memory cannot be read.
struct Partial(Process);

impl Source for Partial {
    fn pid(&self) -> Option<u32> {
        self.0.pid()
    }

    fn regions(&self) -> io::Result<Vec<Region>> {
        self.0.regions()
    }

    fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.0.present(range)
    }

    fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> usize {
        self.0.read(ranges, buffer)
    }

    fn threads(&self) -> Vec<Thread> {
        self.0.threads()
    }

    fn file(&self, path: &Path) -> PathBuf {
        self.0.file(path)
    }

    fn limits(&self) -> Vec<String> {
        vec!["8 KiB could not be read".to_owned()]
    }
}

#[test]
fn no_reference_is_said_to_be_left_over_for_certain_if_its_owner_may_not_have_been_searched() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libholds.so");
    compile(&library, "holds.c", &["-shared", "-fPIC"]);
    let python = interpreters().next().unwrap();
    let running = Program::start(Command::new(python).arg(program("stand_ins.py")).arg(&library));
    let process = || Process::new(running.child.id()).unwrap();
    let sources: [(&dyn Source, _); 2] = [
        (&process(), (false, None)),
        (
            &Partial(process()),
            (true, Some("memory that was not searched may refer to it")),
        ),
    ];
    for (source, expected) in sources {
        let holders = search(source, &running.blocks, &Options::default()).unwrap();
        for label in ["over-counted", "over-counted-itself"] {
            let path = running.path(&holders, label);
            assert_eq!(path.class, Class::OverCounted, "{label}");
            assert_eq!((path.possibly, path.note.as_deref()), expected, "{label}");
        }
        assert!(!running.path(&holders, "global-object").possibly);
    }
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
    for (label, possibly) in [("interior", false), ("wide-interior", true)] {
        assert_eq!(running.path(&holders, label).possibly, possibly, "{label}");
    }
    for label in ["leaked-chunk", "freed-chunk", "forgotten"] {
        assert_eq!(running.path(&holders, label).note, None, "{label}");
    }
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
        is_handle: false,
    };
    let copies = |options: &Options| search(&source, &[freed], options).unwrap().search.copies;
    let default = Options::default();
    // If the program is not scheduled meanwhile, one copy is as good.
    assert!((0..20).any(|_| copies(&default) == default.copies));
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
        let running = Program::start(Command::new(python).arg(program("collector.py")).arg(&library));
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
fn pointers_outside_private_writable_memory_hold() {
    let folder = tempfile::tempdir().unwrap();
    let executable = folder.path().join("elsewhere");
    compile(&executable, "elsewhere.c", &[]);
    let running = Program::start(Command::new(&executable).arg(folder.path()));
    running.wait_until_asleep();
    let holders = running.search();
    let mistakes = running.mistakes(&holders);
    assert!(mistakes.is_empty(), "{}\n{:?}", mistakes.join("\n"), holders.search);
    let path = |label| running.path(&holders, label);
    let note = |label| path(label).note.as_deref();
    for label in [
        "shared",
        "memory-file",
        "posix-shared",
        "shared-file",
        "behind-shared",
        "shared-behind-shared",
    ] {
        assert_eq!(note(label), Some("in memory shared with other processes"), "{label}");
        assert!(path(label).possibly, "{label}");
        assert!(
            path(label).origin.starts_with("pages in elsewhere"),
            "{:?}",
            path(label)
        );
    }
    for label in ["read-only", "read-only-global", "read-only-in-chunk", "read-only-chain"] {
        assert_eq!(note(label), None, "{label}");
    }
    assert_eq!(
        note("unreachable-shared"),
        Some("only shared memory that nothing points to has a pointer to it")
    );
    assert_eq!(note("forgotten"), None);
    assert_eq!(holders.search.limits, Vec::<String>::new());
}

#[test]
fn the_end_of_a_block_is_not_for_certain_the_start_of_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let executable = folder.path().join("spans");
    compile(&executable, "spans.c", &[]);
    let running = Program::start(&mut Command::new(&executable));
    let holders = running.search();
    let mistakes = running.mistakes(&holders);
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    let possibly = |label| {
        running.path(&holders, label).note.as_deref() == Some("the pointer may be the end of the block before it")
    };
    // A variable is named before a stack with the same pointer.
    for label in ["span-end", "full-end", "cursor-end", "stale-end"] {
        assert!(possibly(label), "{:?}", running.path(&holders, label));
        assert!(running.path(&holders, label).possibly);
    }
    for label in [
        "span-begin",
        "full-begin",
        "cursor-begin",
        "known-begin",
        "known-end",
        "stale-begin",
    ] {
        assert!(!possibly(label), "{:?}", running.path(&holders, label));
    }
    let of_array =
        |address: &u64| ["array", "vector", "sized", "timed"].contains(&running.expected[address].0.as_str());
    let blocks = holders.blocks.iter().filter(|block| of_array(&block.address));
    for block in blocks {
        let label = &running.expected[&block.address].0;
        assert_eq!(holders.paths[block.path].note, None, "{label}");
    }
}

#[test]
fn a_pointer_to_a_reserved_range_holds_what_is_mapped_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let executable = folder.path().join("reserved");
    compile(&executable, "reserved.c", &[]);
    let running = Program::start(&mut Command::new(&executable));
    let range = |number: u64| {
        let start = (0x7f << 40) + number * 0x100_0000;
        start..start + 0x40_0000
    };
    let options = Options {
        reserved: (0..5).map(range).collect(),
        ..Options::default()
    };
    let process = Process::new(running.child.id()).unwrap();
    let holders = search(&process, &running.blocks, &options).unwrap();
    let mistakes = running.mistakes(&holders);
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
    for block in &holders.blocks {
        let (label, path) = (&running.expected[&block.address].0, &holders.paths[block.path]);
        let by_range = path.steps.last().is_some_and(|step| step.holder == "reservation");
        assert_eq!(
            by_range,
            ["arena", "late", "beside"].contains(&label.as_str()),
            "{label}: {path:?}"
        );
        // The range is not freed by an address in it.
        assert_eq!(path.possibly, label == "beside", "{label}: {path:?}");
        assert_eq!(path.interior, label == "inside", "{label}: {path:?}");
    }
    for (name, count) in [("arena", 3), ("late", 2), ("both", 2)] {
        let mut of = holders.retainers.iter().filter(|one| one.name.starts_with(name));
        assert!(of.any(|one| one.count == count), "{name}: {:?}", holders.retainers);
    }
}

#[test]
fn addresses_that_python_keeps_as_values_hold() {
    let mut mistakes = Vec::new();
    for python in interpreters() {
        let running = Program::start(Command::new(python).arg(program("numbers.py")));
        let holders = running.search();
        for mistake in running.mistakes(&holders) {
            mistakes.push(format!("{}: {mistake}", python.display()));
        }
        let path = |label| running.path(&holders, label);
        for label in [
            "int",
            "float",
            "own-int",
            "bytes",
            "unaligned",
            "long-bytes",
            "own-bytes",
            "bytearray",
            "range",
        ] {
            let found = path(label);
            if found.note.as_deref() != Some("held as a number") || !found.possibly {
                mistakes.push(format!("{}: {label}: {found:?}", python.display()));
            }
        }
        for (label, origin) in [
            ("bytes", "__main__.packed"),
            ("mmap", "__main__.mapping"),
            ("range", "__main__.span"),
            ("stacked", "__main__.stacked"),
        ] {
            if path(label).origin != origin {
                mistakes.push(format!("{}: {label}: {:?}", python.display(), path(label)));
            }
        }
        let strange = path("strange-name");
        if !strange.steps.iter().any(|step| step.via == ".'a b'") {
            mistakes.push(format!("{}: {strange:?}", python.display()));
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
#[ignore = "needs ptrace"]
fn a_register_of_a_running_thread_holds_if_the_process_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let executable = folder.path().join("registers");
    compile(&executable, "registers.c", &["-pthread"]);
    let running = Program::start(&mut Command::new(&executable));
    let source = Process::new(running.child.id()).unwrap();
    source.pause(true).unwrap();
    let copy = Image::take(&source, &[]).unwrap();
    source.pause(false).unwrap();
    let copy = Stopped {
        copy,
        copied: Duration::ZERO,
        paused: Duration::ZERO,
    };
    let stopped = search_stopped(copy, &running.blocks, &Options::default()).unwrap();
    let path = running.path(&stopped, "register");
    assert_eq!(path.class, Class::Held, "{path:?}");
    assert!(path.origin.starts_with("registers of thread"), "{path:?}");
    assert_eq!(stopped.search.limits, Vec::<String>::new());
    let not_stopped = running.search();
    assert_eq!(running.path(&not_stopped, "register").class, Class::Lost);
    let limits = not_stopped.search.limits;
    let expected = "1 thread was running, and its registers were not read";
    assert!(limits.iter().any(|limit| limit.starts_with(expected)), "{limits:?}");
}

#[test]
fn finalizers_and_tables_hold_what_their_objects_hold() {
    let mut mistakes = Vec::new();
    for python in interpreters() {
        let running = Program::start(Command::new(python).arg(program("records.py")));
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

/// As in a process with PyTorch, where chains of memory without a class are stale more often than not.
#[test]
fn raw_memory_of_pythons_allocator_is_a_part_of_the_object_that_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libc10.so");
    compile(&library, "holds.c", &["-shared", "-fPIC"]);
    let mut mistakes = Vec::new();
    for python in interpreters() {
        let running = Program::start(Command::new(python).arg(program("memo.py")).arg(&library));
        let holders = running.search();
        for mistake in running.mistakes(&holders) {
            mistakes.push(format!("{}: {mistake}", python.display()));
        }
        for (label, origin, possibly) in [
            ("small", "__main__.small", false),
            ("large", "__main__.large", false),
            ("raw", "Tensor", true),
        ] {
            let path = running.path(&holders, label);
            if (&*path.origin, path.possibly) != (origin, possibly) {
                mistakes.push(format!("{}: {label}: {path:?}", python.display()));
            }
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn a_path_through_python_objects_is_named_before_a_shorter_one_through_words_of_a_library() {
    let mut mistakes = Vec::new();
    for python in interpreters() {
        let running = Program::start(Command::new(python).arg(program("certain.py")));
        let holders = running.search();
        for label in ["a_list", "another"] {
            let path = running.path(&holders, label);
            if path.origin != format!("__main__.{label}") || path.possibly || path.interior || path.class != Class::Held
            {
                mistakes.push(format!("{}: {label}: {path:?}", python.display()));
            }
        }
        // A word that leads into the block frees nothing; one that equals its start may be a pointer.
        let names: Vec<&str> = holders.retainers.iter().map(|retainer| &*retainer.name).collect();
        if !names.contains(&"__main__.another (list of 1)") {
            mistakes.push(format!("{}: {names:?}", python.display()));
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

/// An array owns one block; what else its memory has a pointer to may be stale. So it is not said to be freed with the array.
#[test]
#[ignore = "needs g++"]
fn a_stale_word_in_the_memory_of_an_array_adds_nothing_to_what_the_array_retains() {
    let folder = tempfile::tempdir().unwrap();
    // By this name, the classes of JAX are expected.
    let library = folder.path().join("_jax.so");
    let options = ["-std=c++17", "-shared", "-fPIC", "-Wl,--no-as-needed", "-lstdc++"];
    compile(&library, "arrays.cpp", &options);
    let mut mistakes = Vec::new();
    for python in interpreters() {
        let running = Program::start(Command::new(python).arg(program("arrays.py")).arg(&library));
        let holders = running.search();
        for mistake in running.mistakes(&holders) {
            mistakes.push(format!("{}: {mistake}", python.display()));
        }
        let mut expected: HashMap<&str, u64> = HashMap::new();
        for held in &holders.blocks {
            let (label, path) = (&*running.expected[&held.address].0, &holders.paths[held.path]);
            *expected.entry(label).or_default() += held.bytes;
            let is_right = match label {
                "unknown" => path.possibly && held.retainer.is_none(),
                _ => path.origin == format!("__main__.{label}") && !path.possibly,
            };
            if !is_right {
                mistakes.push(format!("{}: {label}: {held:?} {path:?}", python.display()));
            }
        }
        expected.remove("unknown");
        let outermost = (holders.retainers.iter()).filter(|retainer| retainer.parent.is_none());
        let (alone, shared): (Vec<_>, Vec<_>) =
            outermost.partition(|retainer| retainer.also.is_empty() && retainer.also_unnamed == 0);
        let retained: HashMap<&str, u64> = (alone.iter())
            .map(|retainer| {
                let (name, _) = retainer.name.split_once(' ').unwrap_or((&retainer.name, ""));
                (name.trim_start_matches("__main__."), retainer.bytes)
            })
            .collect();
        if retained != expected || !shared.is_empty() {
            mistakes.push(format!(
                "{}: {retained:?} {shared:?}, not {expected:?}",
                python.display()
            ));
        }
    }
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}
