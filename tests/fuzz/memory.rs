//! Memory of other processes, for `culeak why`: of a native program in a core file, and of a Python program while it runs.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "ranges of addresses are values here, not sequences"
)]

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use culeak_holders::source::copied::MemoryCopy;
use culeak_holders::source::core::Core;
use culeak_holders::source::live::Process;
use culeak_holders::source::{Region, Source, Thread};
use culeak_holders::{Block, Options, search};
use nix::libc;

use super::Target;
use super::mutate::{Form, pack, unpack};
use super::random::Random;

pub const CORE: Target = Target {
    name: "core",
    form: Form::Words,
    begin: |folder| {
        let path = folder.join("core");
        Box::new(move |input| {
            fs::write(&path, unpack(input)).expect("written");
            Core::open(&path).is_ok_and(|core| finds(&core))
        })
    },
    seeds: |folder| {
        let source = folder.join("holds.c");
        fs::write(&source, NATIVE).expect("written");
        let program = folder.join("holds");
        let status = Command::new("cc")
            .arg("-g")
            .arg("-o")
            .args([&program, &source])
            .status();
        assert!(status.expect("a C compiler").success());
        let waiting = Waiting::start(&mut Command::new(&program));
        vec![pack(&core_of(&waiting))]
    },
};

/// An input is a list of changes to the memory of one program. Which memory has them differs from machine to machine.
pub const PYTHON: Target = Target {
    name: "python",
    form: Form::Words,
    begin: |_| {
        let waiting = Waiting::start(Command::new("python3").args(["-I", "-S", "-c", PYTHON_PROGRAM]));
        let taken = MemoryCopy::of(&waiting.process(), &[]).expect("its memory");
        let pointers = pointers(&taken);
        Box::new(move |input| {
            let is_found = finds(&Changed {
                changes: changes(input, &taken, &pointers),
                taken: &taken,
            });
            // A change may hit what the interpreter is known by.
            is_found || !input.is_empty()
        })
    },
    seeds: |_| {
        let random = Random::new(1);
        let some = |count| (0..2 * count).flat_map(|_| random.next().to_le_bytes()).collect();
        [0, 1, 30].map(some).to_vec()
    },
};

/// Addresses that the programs hold.
const FIRST: u64 = 0x7f12_3410_0000;

const NATIVE: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
struct node { struct node *next; uint64_t block; };
static struct node *volatile list;
static volatile uint64_t global = 0x7f1234100000;
static __thread volatile uint64_t local;
int main(void) {
    for (int n = 1; n < 6; n++) {
        struct node *made = malloc(sizeof *made * n);
        made->next = list, made->block = global + n * 0x100000ull, list = made;
    }
    free(malloc(100)), local = global + 6 * 0x100000ull;
    puts("ready"), fflush(stdout);
    return getchar();
}
"#;

const PYTHON_PROGRAM: &str = r#"
import array, collections, functools, sys, threading, weakref
numbers = iter(range(0x7F1234100000, 0x7F1235100000, 0x100000))
block = lambda: array.array("Q", [next(numbers), 7])
class Model:
    shared = block()
    def __init__(self): self.weight, self.bias = block(), block()
class Slots:
    __slots__ = ("one",)
def generate(kept):
    yield kept
in_list, in_dict, in_set = [block()], {"key": block(), 7: (block(),)}, frozenset([1])
model, slots, later = Model(), Slots(), functools.partial(print, block())
slots.one, running = block(), generate(block())
next(running)
queue = collections.deque([block()])
cycle = Model()
cycle.itself, cycle = cycle, None
weak = weakref.ref(model)
ready = threading.Event()
def work(kept):
    ready.set()
    threading.Event().wait()
threading.Thread(target=work, args=(block(),), daemon=True).start()
ready.wait()
def frame(kept):
    print("ready", flush=True)
    sys.stdin.read()
frame(block())
"#;

/// Searches for the holders of the blocks; false if the memory is refused.
fn finds(source: &dyn Source) -> bool {
    let block = |nth: u64| Block {
        address: FIRST + nth * 0x10_0000,
        bytes: 4096,
        time_ns: 0,
        of_torch: nth.is_multiple_of(2),
        is_handle: false,
    };
    let options = Options {
        copies: 1,
        limit: Duration::from_secs(5),
        host: true,
        concrete: vec![0, 3],
        ..Options::default()
    };
    let found = search(source, &(0..16).map(block).collect::<Vec<_>>(), &options);
    found.is_ok_and(|holders| {
        holders.validate().expect("a valid answer");
        true
    })
}

/// A program that printed a line and waits.
struct Waiting(Child);

impl Waiting {
    fn start(command: &mut Command) -> Waiting {
        // SAFETY: a system call.
        let command = unsafe {
            command.pre_exec(|| {
                // Addresses are the same in each run, unless a sandbox forbids it.
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
                Ok(())
            })
        };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("a line");
        assert_eq!(line, "ready\n");
        Waiting(child)
    }

    fn process(&self) -> Process {
        Process::new(self.0.id()).expect("our child")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn note(kind: u32, content: &[u8]) -> Vec<u8> {
    let header = [5, content.len() as u32, kind].map(u32::to_le_bytes).concat();
    let mut note = [&header, b"CORE\0\0\0\0".as_slice(), content].concat();
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// A core file as the kernel writes it: writable memory whole, of files only the first page.
fn core_of(waiting: &Waiting) -> Vec<u8> {
    const LOAD: u64 = 1;
    let process = waiting.process();
    let regions = process.regions().expect("readable").into_iter();
    let regions: Vec<Region> = regions
        .filter(|region| region.readable && !region.name.starts_with("[v"))
        .collect();
    let mut status = vec![0; 112];
    status[32..36].copy_from_slice(&waiting.0.id().to_le_bytes());
    let stack = regions.iter().find(|region| region.name == "[stack]");
    let pointer = stack.map_or(0, |stack| stack.range.end - 4096);
    status.extend(words(&[[7; 19].as_slice(), &[pointer], &[0; 8]].concat()));
    let mapped: Vec<&Region> = regions.iter().filter(|region| region.name.starts_with('/')).collect();
    let mut files = words(&[mapped.len() as u64, 4096]);
    mapped
        .iter()
        .for_each(|of| files.extend(words(&[of.range.start, of.range.end, of.offset / 4096])));
    mapped
        .iter()
        .for_each(|of| files.extend(format!("{}\0", of.name).bytes()));
    let auxiliary = fs::read(format!("/proc/{}/auxv", waiting.0.id())).expect("its auxiliary vector");
    let notes = [
        note(1, &status),
        note(3, &[0; 136]),
        note(0x4649_4c45, &files),
        note(6, &auxiliary),
    ]
    .concat();

    let table = 64 + 56 * (regions.len() + 1);
    let mut file = [
        b"\x7fELF\x02\x01\x01".as_slice(),
        &[0; 9],
        &4_u16.to_le_bytes(),
        &62_u16.to_le_bytes(),
    ]
    .concat();
    file.resize(64, 0);
    file[32..40].copy_from_slice(&64_u64.to_le_bytes());
    file[54..56].copy_from_slice(&56_u16.to_le_bytes());
    file[56..58].copy_from_slice(&(regions.len() as u16 + 1).to_le_bytes());
    file.extend(words(&[4, table as u64, 0, 0, notes.len() as u64, 0, 0]));
    let (mut at, mut memory) = ((table + notes.len()).next_multiple_of(4096), Vec::new());
    for region in &regions {
        let size = region.range.end - region.range.start;
        let dumped = match (region.writable, region.offset) {
            (true, _) => size,
            (_, 0) if region.name.starts_with('/') => 4096,
            _ => 0,
        };
        let flags = 4 | u64::from(region.writable) << 1 | u64::from(region.executable);
        file.extend(words(&[
            LOAD | flags << 32,
            at as u64,
            region.range.start,
            0,
            dumped,
            size,
            0,
        ]));
        let mut bytes = vec![0; dumped as usize];
        process.read(&[region.range.start..region.range.start + dumped], &mut bytes);
        at += bytes.len();
        memory.extend(bytes);
    }
    file.extend(notes);
    file.resize(file.len().next_multiple_of(4096), 0);
    file.extend(memory);
    file
}

/// Where the memory has pointers into itself.
fn pointers(taken: &MemoryCopy) -> Vec<u64> {
    let regions = taken.regions().expect("known");
    let writable = regions.iter().filter(|region| region.writable);
    let mut found = Vec::new();
    for run in writable.flat_map(|region| taken.present(region.range.clone())) {
        let mut bytes = vec![0; (run.end - run.start) as usize];
        taken.read(std::slice::from_ref(&run), &mut bytes);
        for (address, word) in run.step_by(8).zip(bytes.chunks_exact(8)) {
            let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
            let place = regions.partition_point(|region| region.range.end <= word);
            if regions.get(place).is_some_and(|region| region.range.contains(&word)) {
                found.push(address);
            }
        }
    }
    found
}

/// An address and its new value for each two words of the input: the place of a pointer, the distance from it, what happens to the
/// word there, and a number.
fn changes(input: &[u8], taken: &MemoryCopy, pointers: &[u64]) -> Vec<(u64, u64)> {
    let word_at = |address| {
        let mut bytes = [0; 8];
        taken.read(&[address..address + 8], &mut bytes);
        u64::from_le_bytes(bytes)
    };
    let place = |number: u64| pointers[(number as u32 as usize) % pointers.len()];
    let change = |two: &[u8]| {
        let [first, number] = [0, 8].map(|at| u64::from_le_bytes(two[at..at + 8].try_into().expect("8 bytes")));
        let address = place(first).wrapping_add_signed(8 * (first >> 32 & 7) as i64 - 16);
        let value = match first >> 40 & 3 {
            0 => number,
            1 => word_at(place(number)),
            2 => word_at(address).wrapping_add_signed(i64::from(number as i8)),
            _ => word_at(address) ^ 1 << (number & 63),
        };
        (address, value)
    };
    input.chunks_exact(16).map(change).collect()
}

/// The copied memory with other words at these addresses.
struct Changed<'t> {
    taken: &'t MemoryCopy,
    changes: Vec<(u64, u64)>,
}

impl Source for Changed<'_> {
    fn pid(&self) -> Option<u32> {
        self.taken.pid()
    }

    fn regions(&self) -> io::Result<Vec<Region>> {
        self.taken.regions()
    }

    fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.taken.present(range)
    }

    fn written(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.taken.written(range)
    }

    fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> usize {
        let read = self.taken.read(ranges, buffer);
        let mut start = 0;
        for range in ranges {
            for (address, value) in self.changes.iter().filter(|(address, _)| range.contains(address)) {
                let at = start + (address - range.start) as usize;
                if let Some(word) = buffer.get_mut(at..at + 8) {
                    word.copy_from_slice(&value.to_le_bytes());
                }
            }
            start += (range.end - range.start) as usize;
        }
        read
    }

    fn threads(&self) -> Vec<Thread> {
        self.taken.threads()
    }

    fn file(&self, path: &Path) -> PathBuf {
        self.taken.file(path)
    }

    fn is_running(&self) -> bool {
        false
    }
}
