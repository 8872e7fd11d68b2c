use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::time::SystemTime;

use super::*;
use crate::copy::Image;
use crate::modules::Modules;
use crate::process_tests::{Victim, compile};

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;

/// A core file in the making.
#[derive(Default)]
struct Builder {
    segments: Vec<(u64, u64, u32, Vec<u8>)>,
    mapped: Vec<(Range<u64>, u64, String)>,
    notes: Vec<u8>,
    processor: Option<u16>,
    kind: Option<u16>,
    /// Put the number of segments into the first section header.
    many: bool,
}

fn note(kind: u32, content: &[u8]) -> Vec<u8> {
    let mut note = Vec::new();
    for number in [5, content.len() as u32, kind] {
        note.extend(number.to_le_bytes());
    }
    note.extend(b"CORE\0\0\0\0");
    note.extend(content);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Builder {
    /// With one thread and one page of memory.
    fn new() -> Builder {
        let mut core = Builder::default();
        core.notes.extend(status(77, 27, 0x7000_0000));
        let mut info = vec![0; 136];
        info[24..28].copy_from_slice(&77_u32.to_le_bytes());
        info[40..45].copy_from_slice(b"train");
        core.notes.extend(note(3, &info));
        core.segment(0x10000, 4096, READ | WRITE, &[7; 4096])
    }

    fn segment(mut self, start: u64, size: u64, flags: u32, dumped: &[u8]) -> Builder {
        self.segments.push((start, size, flags, dumped.to_vec()));
        self
    }

    fn mapped(mut self, range: Range<u64>, offset: u64, name: &str) -> Builder {
        self.mapped.push((range, offset, name.to_owned()));
        self
    }

    fn note(mut self, kind: u32, content: &[u8]) -> Builder {
        self.notes.extend(note(kind, content));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut notes = self.notes.clone();
        if !self.mapped.is_empty() {
            let mut files = words(&[self.mapped.len() as u64, 4096]);
            for (range, offset, _) in &self.mapped {
                files.extend(words(&[range.start, range.end, offset / 4096]));
            }
            for (_, _, name) in &self.mapped {
                files.extend(name.as_bytes());
                files.push(0);
            }
            notes.extend(note(0x4649_4c45, &files));
        }
        let count = self.segments.len() + 1;
        let table = 64 + count * 56 + if self.many { 64 } else { 0 };
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(64, 0);
        file[16..18].copy_from_slice(&self.kind.unwrap_or(4).to_le_bytes());
        file[18..20].copy_from_slice(&self.processor.unwrap_or(62).to_le_bytes());
        file[32..40].copy_from_slice(&64_u64.to_le_bytes());
        file[54..56].copy_from_slice(&56_u16.to_le_bytes());
        let written = if self.many { 0xffff } else { count as u16 };
        file[56..58].copy_from_slice(&written.to_le_bytes());
        let mut offset = (table + notes.len()).next_multiple_of(4096);
        let mut row = |kind: u32, flags: u32, offset: usize, start: u64, dumped: usize, size: u64| {
            file.extend(words(&[
                u64::from(kind) | u64::from(flags) << 32,
                offset as u64,
                start,
                0,
            ]));
            file.extend(words(&[dumped as u64, size, 0]));
        };
        row(4, 0, table, 0, notes.len(), 0);
        for (start, size, flags, dumped) in &self.segments {
            row(1, *flags, offset, *start, dumped.len(), *size);
            offset += dumped.len();
        }
        if self.many {
            let section = file.len() as u64;
            file[40..48].copy_from_slice(&section.to_le_bytes());
            file.resize(file.len() + 64, 0);
            file[section as usize + 44..][..4].copy_from_slice(&(count as u32).to_le_bytes());
        }
        file.extend(notes);
        file.resize(file.len().next_multiple_of(4096), 0);
        for (_, _, _, dumped) in &self.segments {
            file.extend(dumped);
        }
        file
    }

    fn opened(&self) -> Result<Core, Error> {
        opened(&self.bytes())
    }
}

fn opened(bytes: &[u8]) -> Result<Core, Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("core");
    fs::write(&path, bytes).expect("written");
    Core::open(&path)
}

fn reason(bytes: &[u8]) -> String {
    match opened(bytes) {
        Ok(_) => panic!("it is damaged"),
        Err(error) => error.to_string(),
    }
}

/// The status of a thread: its id at 32, its registers at 112, numbered, with this stack pointer.
fn status(id: u32, registers: u64, pointer: u64) -> Vec<u8> {
    let mut content = vec![0; 112];
    content[32..36].copy_from_slice(&id.to_le_bytes());
    let place = if registers == 27 { 19 } else { 31 };
    let value = |nth| if nth == place { pointer } else { 1000 + nth };
    content.extend(words(&(0..registers).map(value).collect::<Vec<_>>()));
    content.extend([0; 8]);
    note(1, &content)
}

#[test]
fn threads_and_the_process_are_read() {
    let mut core = Builder::new();
    core.notes.extend(status(78, 27, 0x8000_0000));
    let core = core.opened().expect("a core file");
    assert_eq!((core.process_id(), core.command()), (77, "train"));
    assert_eq!((core.pid(), core.is_running()), (None, false));
    let threads = core.threads();
    assert_eq!(threads.len(), 2);
    assert_eq!((threads[0].id, threads[0].name.as_str()), (77, "train"));
    assert_eq!((threads[1].id, threads[1].name.as_str()), (78, ""));
    assert_eq!(threads[1].stack_pointer, Some(0x8000_0000));
    assert_eq!(threads[0].thread_pointer, Some(1021));
    assert_eq!(threads[0].registers, (1000..1015).collect::<Vec<_>>());
}

#[test]
fn a_core_of_aarch64_is_read() {
    let mut core = Builder::default().segment(0x10000, 4096, READ | WRITE, &[7; 4096]);
    core.processor = Some(183);
    core.notes.extend(status(5, 34, 0x9000));
    let core = core.opened().expect("a core file");
    let threads = core.threads();
    assert_eq!(threads[0].stack_pointer, Some(0x9000));
    assert_eq!(threads[0].registers, (1000..1031).collect::<Vec<_>>());
    assert_eq!(core.process_id(), 5);
}

#[test]
fn memory_is_read_from_the_core_and_from_mapped_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let constants = folder.path().join("constants");
    let content: Vec<u8> = (0..10_000).map(|at| (at % 251) as u8).collect();
    fs::write(&constants, &content).expect("written");
    let name = constants.display().to_string();
    let core = Builder::new()
        .segment(0x20000, 0x3000, READ, &[])
        .segment(0x30000, 0x2000, READ | WRITE, &[8; 8192])
        .mapped(0x20000..0x23000, 0, &name)
        .mapped(0x40000..0x41000, 4096, &name)
        .opened()
        .expect("a core file");
    let mut buffer = vec![99; 8192];
    let read = |range: Range<u64>, buffer: &mut [u8]| core.read(&[range], buffer);
    assert_eq!(read(0x10ffe..0x11000, &mut buffer), 2);
    assert_eq!(read(0x10ffe..0x12000, &mut buffer), 2, "up to the end");
    assert_eq!(read(0x12000..0x13000, &mut buffer), 0);
    assert_eq!(read(0x20010..0x21010, &mut buffer), 4096);
    assert_eq!(&buffer[..4096], &content[16..4112]);
    assert_eq!(
        read(0x22000..0x23000, &mut buffer),
        4096,
        "the end of a file is filled up"
    );
    assert_eq!(&buffer[..1808], &content[8192..]);
    assert!(buffer[1808..4096].iter().all(|&byte| byte == 0));
    assert_eq!(read(0x40000..0x41000, &mut buffer), 4096, "a mapping without a segment");
    assert_eq!(&buffer[..4096], &content[4096..8192]);
    let ranges = [0x10000..0x10001, 0x30000..0x30001, 0x50000..0x50001, 0x10000..0x10001];
    assert_eq!(core.read(&ranges, &mut buffer), 2);
    assert_eq!(buffer[..2], [7, 8]);

    let regions = core.regions().expect("known");
    let starts: Vec<u64> = regions.iter().map(|region| region.range.start).collect();
    assert_eq!(starts, [0x10000, 0x20000, 0x30000, 0x40000]);
    assert_eq!((regions[1].name.as_str(), regions[1].writable), (name.as_str(), false));
    assert_eq!((regions[3].offset, regions[3].writable), (4096, false));
    assert_eq!(core.limits(), Vec::<String>::new());

    let copy = Image::take(&core, &[]).expect("readable");
    assert_eq!(copy.copied_bytes(), 4096 + 8192);
    assert_eq!(
        (copy.byte(0x31fff), copy.byte(0x20001), copy.byte(0x40000)),
        (8, 1, content[4096])
    );
}

#[test]
fn a_file_that_is_newer_than_the_core_is_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let constants = folder.path().join("constants");
    fs::write(&constants, [1; 4096]).expect("written");
    let later = SystemTime::now() + std::time::Duration::from_secs(1000);
    File::options()
        .write(true)
        .open(&constants)
        .and_then(|file| file.set_modified(later))
        .expect("a time");
    let name = constants.display().to_string();
    let core = Builder::new()
        .segment(0x20000, 0x1000, READ, &[])
        .mapped(0x20000..0x21000, 0, &name)
        .opened()
        .expect("a core file");
    assert_eq!(core.read(&[0x20000..0x20008], &mut [0; 8]), 0);
    let limits = core.limits();
    assert!(limits.len() == 1 && limits[0].starts_with(&name), "{limits:?}");
}

#[test]
fn memory_that_was_not_dumped_is_reported() {
    let core = Builder::new().segment(0x20000, 0x100_0000, READ | WRITE, &[1; 4096]);
    let core = core.opened().expect("a core file");
    assert_eq!(core.present(0..u64::MAX), [0x10000..0x11000, 0x20000..0x21000]);
    assert_eq!(core.read(&[0x20ff8..0x21008], &mut [0; 16]), 8);
    let limits = core.limits();
    assert!(limits[0].starts_with("16380 KiB of private memory"), "{limits:?}");
}

/// Before it was mended, the search took 32 GiB for the first segment, and an hour for the second.
#[test]
fn memory_that_a_core_file_claims_and_does_not_contain_costs_nothing() {
    let core = Builder::new()
        .segment(0x1000_0000_0000, 1 << 45, READ | WRITE, &[0; 4096])
        .segment(0x7000_0000_0000, 1 << 43, READ | WRITE, &[0; 4096])
        .note(6, &words(&[25, 0x7000_0000_0800, 0, 0]))
        .opened()
        .expect("a core file");
    assert_eq!(core.regions().expect("known")[2].name, "[stack]");
    let block = crate::Block {
        address: 0x7f00_0000_0000,
        bytes: 4096,
        time_ns: 0,
        of_torch: false,
        is_handle: false,
    };
    let found = crate::search(&core, &[block], &crate::Options::default()).expect("searched");
    // The file has no registers, so no thread's stack was found, which might hold the block.
    assert_eq!(
        (found.search.stopped, found.blocks.len()),
        (Some(culeak::snapshot::Stop::Stack), 0)
    );
}

#[test]
fn holes_are_not_present() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("core");
    const SIZE: u64 = 64 << 20;
    let mut bytes = Builder::new().segment(0x100_0000, SIZE, READ | WRITE, &[]).bytes();
    let row = 64 + 2 * 56;
    bytes[row + 32..row + 40].copy_from_slice(&SIZE.to_le_bytes());
    let start = bytes.len() as u64;
    let mut file = File::create(&path).expect("created");
    file.write_all(&bytes).expect("written");
    file.set_len(start + SIZE).expect("a hole");
    file.seek(SeekFrom::Start(start + (32 << 20))).expect("seekable");
    file.write_all(&[5; 4096]).expect("written");
    let core = Core::open(&path).expect("a core file");
    let page = 0x100_0000 + (32 << 20);
    let present = core.present(0x100_0000..0x100_0000 + SIZE);
    assert!(present.iter().any(|range| range.contains(&page)));
    let bytes: u64 = present.iter().map(|range| range.end - range.start).sum();
    // Not all file systems have holes of a single page.
    assert!(bytes <= 4 << 20, "{present:x?}");
    let copy = Image::take(&core, &[]).expect("readable");
    assert_eq!((copy.byte(page), copy.byte(page + 4096), copy.byte(0x10000)), (5, 0, 7));
}

#[test]
fn stack_and_heap_have_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("program");
    fs::write(&program, [0; 4096]).expect("written");
    let page = [0; 4096];
    let core = Builder::new()
        .segment(0x50_0000, 0x1000, READ | EXECUTE, &[])
        .segment(0x50_1000, 0x1000, READ | WRITE, &page)
        .segment(0x50_2000, 0x1000, READ | WRITE, &page)
        .segment(0x60_0000, 0x1000, READ | WRITE, &page)
        .segment(0x7fff_0000, 0x1000, READ | WRITE, &page)
        .mapped(0x50_0000..0x50_2000, 0, &program.display().to_string())
        .note(6, &words(&[3, 0x50_0040, 25, 0x7fff_0800, 0, 0]))
        .opened()
        .expect("a core file");
    let named = |start| {
        let regions = core.regions().expect("known");
        let region = regions.into_iter().find(|region| region.range.start == start);
        region.expect("a region").name
    };
    assert_eq!(named(0x50_2000), "", "the end of .bss");
    assert_eq!(named(0x60_0000), "[heap]");
    assert_eq!(named(0x7fff_0000), "[stack]");
}

#[test]
fn shared_memory_is_not_copied() {
    let core = Builder::new()
        .segment(0x20000, 0x1000, READ | WRITE, &[1; 4096])
        .mapped(0x20000..0x21000, 0, "/dev/zero (deleted)")
        .opened()
        .expect("a core file");
    assert!(core.regions().expect("known")[1].shared);
    assert_eq!(Image::take(&core, &[]).expect("readable").byte(0x20000), 0);
}

#[test]
fn the_number_of_segments_may_exceed_16_bits() {
    let mut core = Builder::new();
    core.many = true;
    for nth in 0..70_000 {
        core = core.segment(0x100_0000 + nth * 8192, 4096, READ | WRITE, &[]);
    }
    let core = core.opened().expect("a core file");
    assert_eq!(core.regions().expect("known").len(), 70_001);
}

#[test]
fn unusable_files_have_clear_errors() {
    let builder = Builder::new();
    let core = builder.bytes();
    assert!(reason(b"").ends_with("not a core file"));
    assert!(reason(&core[..63]).ends_with("not a core file"));
    assert!(reason(b"\x28\xb5\x2f\xfd....").contains("zstd -d"));
    assert!(reason(&core[..core.len() - 1]).contains("truncated: it has 7 KiB of 8 KiB; remove the limit"));
    assert!(reason(&core[..100]).contains("truncated"));
    let library = Builder {
        kind: Some(3),
        ..Builder::new()
    };
    assert!(reason(&library.bytes()).contains("a program or library"));
    let other = Builder {
        processor: Some(243),
        ..Builder::new()
    };
    assert!(reason(&other.bytes()).contains("processor 243"));
    let overlapping = Builder::new().segment(0x10000, 4096, READ, &[]);
    assert!(reason(&overlapping.bytes()).contains("two segments contain 0x10000"));
    let odd = Builder::new().segment(0x20010, 4096, READ, &[]);
    assert!(reason(&odd.bytes()).contains("is not made of pages"));
    let endless = Builder::new().segment(u64::MAX - 4095, 8192, READ, &[]);
    assert!(reason(&endless.bytes()).contains("impossible address"));
    let no_memory = Builder {
        segments: Vec::new(),
        ..Builder::new()
    };
    assert!(reason(&no_memory.bytes()).contains("coredump_filter"));
    let no_threads = Builder {
        notes: Vec::new(),
        ..Builder::new()
    };
    assert!(reason(&no_threads.bytes()).contains("no threads"));
    assert!(Core::open(Path::new("/no/such/core")).is_err());
    assert!(Core::open(Path::new("/dev/zero")).is_err(), "not a regular file");
}

/// Every byte of the headers and notes, with several values.
#[test]
fn damaged_files_cause_no_panic_and_take_no_memory() {
    let core = Builder::new()
        .segment(0x20000, 0x3000, READ | WRITE, &[3; 8192])
        .mapped(0x20000..0x22000, 0, "/usr/lib/x.so")
        .mapped(0x22000..0x23000, 4096, "/usr/lib/x.so")
        .note(6, &words(&[3, 0x20000, 25, 0x10000]))
        .bytes();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("core");
    let headers = core[..4096].iter().rposition(|&byte| byte != 0).expect("notes");
    let mut opened = 0;
    for place in 0..headers {
        for value in [0, 0x81, 0xff] {
            let mut damaged = core.clone();
            if damaged[place] == value {
                continue;
            }
            damaged[place] = value;
            fs::write(&path, &damaged).expect("written");
            let Ok(core) = Core::open(&path) else { continue };
            opened += 1;
            let Ok(copy) = Image::take(&core, &[]) else { continue };
            assert!(copy.copied_bytes() <= 1 << 20);
            copy.word(0x20000);
            copy.bytes(0x21ff0..0x22010);
            Modules::find(&copy);
        }
    }
    assert!(opened > 300, "most bytes matter little: {opened}");
}

#[test]
fn modules_of_a_dead_process_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = r#"
#include <stdio.h>
static long table[4] = {5, 6};
int main(void) { printf("%p\n", (void *)table); fflush(stdout); return getchar(); }
"#;
    let program = compile(folder.path(), "program", source, &[]);
    let victim = Victim::start(&program);
    let process = victim.process();
    // As the kernel does: writable memory whole, of files only the first page.
    let mut core = Builder::new();
    for region in process.regions().expect("readable") {
        if !region.readable || region.name == "[vvar]" || region.name == "[vsyscall]" {
            continue;
        }
        let bytes = match (region.writable, region.offset) {
            (true, _) => region.range.end - region.range.start,
            (_, 0) if region.name.starts_with('/') => 4096,
            _ => 0,
        };
        let mut dumped = vec![0; bytes as usize];
        process.read(&[region.range.start..region.range.start + bytes], &mut dumped);
        let flags = READ | if region.writable { WRITE } else { 0 } | u32::from(region.executable);
        let size = region.range.end - region.range.start;
        core = core.segment(region.range.start, size, flags, &dumped);
        if region.name.starts_with('/') {
            core = core.mapped(region.range.clone(), region.offset, &region.name);
        }
    }
    let core_path = folder.path().join("core");
    fs::write(&core_path, core.bytes()).expect("written");
    let table = u64::from_str_radix(victim.line.trim_start_matches("0x"), 16).expect("an address");
    drop(victim);
    let core = Core::open(&core_path).expect("a core file");
    assert_eq!(core.limits(), Vec::<String>::new());
    let copy = Image::take(&core, &[]).expect("readable");
    assert_eq!((copy.word(table), copy.word(table + 8)), (5, 6));
    let modules = Modules::find(&copy);
    assert_eq!(modules.variable_at(table + 8), Some(("table".to_owned(), 8)));
    let libc = modules.all().iter().find(|module| module.file_name() == "libc.so.6");
    assert!(libc.expect("loaded").address_of(&copy, "malloc").is_some());

    // The program was compiled again since.
    let other = source.replace("table[4]", "before[100], table[4]");
    compile(folder.path(), "program", &other, &[]);
    let core = Core::open(&core_path).expect("a core file");
    let limits = core.limits();
    assert!(
        limits.len() == 1 && limits[0].contains("/program is missing here or is another file"),
        "{limits:?}"
    );
    let copy = Image::take(&core, &[]).expect("readable");
    let modules = Modules::find(&copy);
    assert_eq!(modules.variable_at(table), None);
    assert!(
        modules.with_global(table).is_some(),
        "the module is known by its first page"
    );
}
