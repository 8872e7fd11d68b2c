//! Files of programs and libraries: their symbols and debug information, and their static variables; and names of generated code.

use std::fs;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

use culeak_holders::copy::Image;
use culeak_holders::modules::Modules;
use culeak_holders::source::{Region, Source, Thread};
use object::Endianness;
use object::elf::{FileHeader64, SectionHeader64};
use object::read::elf::{CompressionHeader, FileHeader, SectionHeader};

use super::mutate::{Form, pack, unpack};
use super::{TOLERATED, Target};
use crate::symbolize;
use crate::symbolize::jit::{Names, tests::dump};

pub const MODULE: Target = Target {
    name: "module",
    form: Form::Words,
    begin: |folder| {
        let path = folder.join("module.so");
        Box::new(move |input| {
            let bytes = unpack(input);
            fs::write(&path, &bytes).expect("written");
            let is_elf = symbolize::has_lines(&path, &[]).is_some();
            // `culeak` reads names in another process (`symbolize/child.rs`), since the libraries that do it panic now and then.
            TOLERATED.set(true);
            let calls: Vec<u64> = (0x1000..0x1400).step_by(13).collect();
            let named = catch_unwind(AssertUnwindSafe(|| match is_huge_unpacked(&bytes) {
                true => Vec::new(),
                false => symbolize::tests::names_of(&path, &calls),
            }));
            TOLERATED.set(false);
            variables(&Loaded {
                path: path.clone(),
                bytes,
            });
            is_elf && named.is_ok_and(|names| !names.is_empty())
        })
    },
    seeds: |folder| {
        WAYS_TO_COMPILE
            .iter()
            .map(|options| pack(&compiled(folder, options)))
            .collect()
    },
};

/// A map or a dump for perf.
pub const GENERATED: Target = Target {
    name: "generated",
    form: Form::Text,
    begin: |_| {
        Box::new(|input| {
            let mut names = Names::of((0x1000..0x2000).step_by(8));
            let read = match input {
                [b'D', ..] => names.read_dump(input, 7),
                _ => names.read_map(input),
            };
            read.is_ok() && names.get(0x1008).is_some()
        })
    },
    seeds: |_| {
        let map = b"1000 10 void Main()\n0x1008 0x100 Lcom/App;::step\n".to_vec();
        vec![map, dump(0, 16 + 40 + 13 + 4)]
    },
};

/// Whether a compressed section says that it has more than 1 GiB. The libraries then allocate that much at once, which can end the
/// process, as it would end the child.
fn is_huge_unpacked(bytes: &[u8]) -> bool {
    let huge = || {
        let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
        let endian = header.endian().ok()?;
        let sections = header.section_headers(endian, bytes).ok()?;
        let unpacked = |section: &SectionHeader64<_>| Some(section.compression(endian, bytes).ok()??.0.ch_size(endian));
        Some(sections.iter().filter_map(unpacked).any(|size| size > 1 << 30))
    };
    huge().unwrap_or(false)
}

/// Looks up all that the search for holders looks up in a module.
fn variables(loaded: &Loaded) {
    let Ok(copy) = Image::take(loaded, &[]) else { return };
    let modules = Modules::find(&copy);
    for module in modules.all() {
        module.address_of(&copy, "work");
        for address in module
            .globals
            .iter()
            .flat_map(|range| range.clone().step_by(16).take(1000))
        {
            modules.variable(address);
        }
    }
    modules.thread_local(0, 8);
    modules.constants(&copy, |_| true);
}

/// A process that has this file mapped, as a whole, and written.
struct Loaded {
    path: PathBuf,
    bytes: Vec<u8>,
}

const START: u64 = 0x7f00_0000_0000;
const PAGE: u64 = 4096;

impl Source for Loaded {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn regions(&self) -> io::Result<Vec<Region>> {
        let end = START + (self.bytes.len() as u64).next_multiple_of(PAGE);
        let region = |range, name| Region {
            range,
            readable: true,
            writable: true,
            executable: true,
            shared: false,
            offset: 0,
            name,
        };
        Ok(vec![
            region(START..end, self.path.display().to_string()),
            region(end..end + PAGE, String::new()),
        ])
    }

    fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
        vec![range]
    }

    fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> usize {
        buffer.fill(0);
        let mut done = 0;
        for range in ranges {
            let bytes = range
                .start
                .checked_sub(START)
                .and_then(|from| self.bytes.get(from as usize..));
            let wanted = (range.end - range.start) as usize;
            if let Some(bytes) = bytes {
                let count = bytes.len().min(wanted);
                buffer[done..done + count].copy_from_slice(&bytes[..count]);
            }
            done += wanted;
        }
        done
    }

    fn threads(&self) -> Vec<Thread> {
        Vec::new()
    }

    fn file(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    fn is_running(&self) -> bool {
        false
    }
}

const WAYS_TO_COMPILE: &[&[&str]] = &[
    &["-g"],
    &["-gdwarf-4", "-O0"],
    &["-g", "-gz"],
    &["-g", "-ffunction-sections", "-fdebug-types-section", "-O2"],
    &["-g0"],
];

const PROGRAM: &str = r#"
struct node { struct node *next; long block; };
static struct node *volatile list;
static __thread volatile long local = 3;
long table[40] = {1, 2};
__attribute__((noinline)) static int leaf(int n) { local += n; return n + (list ? 1 : 0); }
static inline __attribute__((always_inline)) int inner(int n) { return leaf(n) * 3; }
__attribute__((noinline)) int work(int n) { return inner(n) + inner(n + 1); }
int step(int) __asm__("_ZN7TrainerIiSaIiEE4stepERKSt6vectorIiSaIiEE");
__attribute__((noinline)) int step(int n) { return work(n) - 1; }
int grow(int) __asm__("_ZN3app4grow17h0123456789abcdefE");
__attribute__((noinline)) int grow(int n) { return step(n) - table[n % 40]; }
"#;

/// A small library without a build id, so that a changed one is read too.
fn compiled(folder: &Path, options: &[&str]) -> Vec<u8> {
    fs::write(folder.join("module.c"), PROGRAM).expect("written");
    let base = [
        "-O1",
        "-fPIC",
        "-shared",
        "-nostdlib",
        "-Wl,--build-id=none",
        "-o",
        "module.so",
        "module.c",
    ];
    let status = Command::new("cc").args(base).args(options).current_dir(folder).status();
    assert!(status.expect("a C compiler").success());
    fs::read(folder.join("module.so")).expect("built")
}
