//! Damaged memory costs time and precision; it causes no panic, no endless loop and no large allocation.

use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use culeak_holders::Error;
use culeak_holders::copy::Image;
use culeak_holders::graph::PythonRoot;
use culeak_holders::modules::Modules;
use culeak_holders::python::Python;
use culeak_holders::source::live::Process;
use culeak_holders::source::{Region, Source, Thread};

use crate::Waiting;
use crate::interpreters::{other_builds, recorded as interpreters};

/// A process whose memory reads differently than it is.
struct Damaged {
    process: Process,
    /// Words with another value.
    patches: Vec<(u64, u64)>,
    /// One word in this many is replaced; 0: no word is.
    rate: u64,
    random: AtomicU64,
}

impl Damaged {
    fn new(program: &Waiting) -> Damaged {
        let random = AtomicU64::new(0x9e37_79b9_7f4a_7c15);
        Damaged {
            process: program.process(),
            patches: Vec::new(),
            rate: 0,
            random,
        }
    }

    fn next(&self) -> u64 {
        let mut value = self.random.load(Relaxed);
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
        self.random.store(value, Relaxed);
        value
    }

    fn damage(&self, buffer: &mut [u8]) {
        let mut previous = 0;
        let mut gap = 0;
        for word in buffer.chunks_exact_mut(8) {
            let old = u64::from_le_bytes(word.try_into().unwrap());
            if gap > 0 {
                gap -= 1;
            } else {
                gap = self.next() % (2 * self.rate);
                let value = match self.next() % 8 {
                    0 => 0,
                    1 => u64::MAX,
                    2 => u64::MAX - 7,
                    3 => self.next(),
                    4 => self.next() % 1000,
                    // Another pointer of the process.
                    5 => previous,
                    6 => old ^ 1 << (self.next() % 48),
                    _ => 1 << (self.next() % 64),
                };
                word.copy_from_slice(&value.to_le_bytes());
            }
            if old > 1 << 20 {
                previous = old;
            }
        }
    }
}

impl Source for Damaged {
    fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    fn regions(&self) -> io::Result<Vec<Region>> {
        self.process.regions()
    }

    fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
        self.process.present(range)
    }

    fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> usize {
        let bytes = self.process.read(ranges, buffer);
        let mut start = 0;
        for range in ranges {
            for &(at, value) in &self.patches {
                if range.contains(&at) {
                    let place = start + (at - range.start) as usize;
                    buffer[place..place + 8].copy_from_slice(&value.to_le_bytes());
                }
            }
            start += (range.end - range.start) as usize;
        }
        if self.rate > 0 {
            self.damage(buffer);
        }
        bytes
    }

    fn threads(&self) -> Vec<Thread> {
        self.process.threads()
    }

    fn file(&self, path: &Path) -> PathBuf {
        self.process.file(path)
    }

    fn is_running(&self) -> bool {
        true
    }
}

/// Asks for everything about an address.
fn examine(reader: &mut Python, copy: &Image, address: u64) -> usize {
    let mut found = Vec::new();
    reader.frame_references(copy, address, &mut found);
    let _ = (
        reader.frame_name(copy, address),
        reader.tracked_in(copy, address, 1 << 20),
    );
    let _ = reader.count(copy, address);
    let Some(of) = reader.object(copy, address) else {
        return 0;
    };
    reader.references(copy, address, of, &mut found);
    let _ = (reader.arrays(copy, address, of), reader.extent(copy, address, of));
    assert!(reader.name(copy, address, of).len() < 2500);
    for reference in found.iter().take(20) {
        let label = reader.label(copy, address, false, reference.edge);
        assert!(label.concrete.len() < 1000, "{label:?}");
    }
    assert!(found.len() as u64 <= copy.copied_bytes() / 8);
    found.len()
}

#[test]
fn damaged_memory_is_survived() {
    for (number, python) in interpreters().iter().enumerate() {
        let mut program = Waiting::start(&python.command, "labels.py");
        program.line();
        let rate = [8, 100, 2000][number % 3];
        let mut source = Damaged::new(&program);
        // The interpreter is found in sound memory; otherwise little would be read.
        let sound = Damaged::new(&program);
        let whole = Image::take(&sound, &[]).unwrap();
        let mut reader = crate::read(&whole);
        let mut addresses = Vec::new();
        reader.tracked(&whole, &mut |address| addresses.push(address));
        addresses.truncate(4000);
        source.rate = rate;
        let copy = Image::take(&source, &[]).unwrap();
        let _ = Python::find(&copy, &Modules::find(&copy));
        reader.roots(&copy, &mut |_, rooted| addresses.push(rooted.target));
        reader.tracked(&copy, &mut |address| addresses.push(address));
        addresses.extend([0, 1, 8, 4096, 1 << 46, 1 << 47, u64::MAX - 7, u64::MAX - 4095, u64::MAX]);
        let found: usize = addresses
            .iter()
            .map(|address| examine(&mut reader, &copy, *address))
            .sum();
        println!("{} at 1 in {rate}: {found} references", python.version);
        assert!(rate == 8 || found > 1000, "{found}");
    }
}

#[test]
fn unknown_and_unsupported_builds_are_refused_by_name() {
    for python in interpreters() {
        let mut program = Waiting::start(&python.command, "labels.py");
        program.line();
        let mut source = Damaged::new(&program);
        let (runtime, version, dict) = {
            let copy = Image::take(&source, &[]).unwrap();
            let modules = Modules::find(&copy);
            let find = |name: &str| modules.all().iter().find_map(|module| module.address_of(&copy, name));
            (
                find("_PyRuntime").unwrap(),
                find("Py_Version"),
                find("PyDict_Type").unwrap(),
            )
        };
        let mut refused = |at: u64, value: u64, expected: &str| {
            source.patches = vec![(at & !7, value << ((at & 7) * 8))];
            let copy = Image::take(&source, &[]).unwrap();
            match Python::find(&copy, &Modules::find(&copy)) {
                Err(Error::Unsupported(text)) => assert!(text.contains(expected), "{}: {text}", python.version),
                Err(other) => panic!("{other}"),
                Ok(found) => panic!("{} is accepted: {}, not {expected}", python.version, found.is_some()),
            }
        };
        let basic_bytes = if python.is_free_threaded() { 48 } else { 32 };
        refused(dict + basic_bytes, 56, "has dictionaries elsewhere");
        if let Some(version) = version {
            refused(version, 0x0310_00f0, "Python 3.16 is not supported");
            refused(version, 0x0307_00f0, "Python 3.7 is not supported");
        }
        if python.minor >= 13 {
            // The build says that it is of the other kind.
            let expected = if python.minor == 15 {
                "is not supported"
            } else {
                "describes its structures differently"
            };
            refused(runtime + 16, u64::from(!python.is_free_threaded()), expected);
            refused(runtime, 7, "does not describe its structures");
        }
    }
}

#[test]
fn debug_builds_and_unknown_free_threaded_ones_are_refused_by_name() {
    let builds = other_builds();
    for python in &builds {
        let mut program = Waiting::start(&python.command, "interpreters.py");
        assert_eq!(program.line(), "ready");
        let process = program.process();
        let copy = Image::take(&process, &[]).unwrap();
        let expected = match python.version.contains('d') {
            true => "a debug build of Python keeps other structures and is not supported",
            false => "is not supported (3.8 to 3.15 are, and free-threaded 3.13 and 3.14)",
        };
        match Python::find(&copy, &Modules::find(&copy)) {
            Err(Error::Unsupported(text)) => assert!(text.contains(expected), "{}: {text}", python.version),
            Err(other) => panic!("{}: {other}", python.version),
            Ok(found) => panic!("{} is accepted: {}", python.version, found.is_some()),
        }
    }
    println!("{} such builds", builds.len());
}

#[test]
fn every_interpreter_of_a_process_is_searched() {
    for python in interpreters() {
        let mut program = Waiting::start(&python.command, "interpreters.py");
        assert_eq!(program.line(), "ready");
        let process = program.process();
        let copy = Image::take(&process, &[]).unwrap();
        let mut modules = 0;
        let mut reader = crate::read(&copy);
        reader.roots(&copy, &mut |root, _| {
            modules += usize::from(*root == PythonRoot::Interpreter("sys.modules"))
        });
        assert_eq!(modules, 3, "{}", python.version);
        assert_eq!(reader.states(&copy).len(), 3);
    }
}

#[test]
fn a_process_without_python_has_none() {
    let mut program = Waiting::spawn(&mut Command::new("cat"));
    program.child.stdin.as_mut().unwrap().write_all(b"ready\n").unwrap();
    // The child has replaced its own image.
    assert_eq!(program.line(), "ready");
    let process = program.process();
    let copy = Image::take(&process, &[]).unwrap();
    assert!(Python::find(&copy, &Modules::find(&copy)).unwrap().is_none());
}
