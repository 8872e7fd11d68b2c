//! Names are looked up in small programs that the tests build; their symbol tables contain the addresses.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use culeak::snapshot::{Location, Module};
use object::{Object, ObjectSymbol};
use tempfile::TempDir;

use super::*;
use crate::text::sample::Sample;

const SOURCE: &str = r#"
int sink;
__attribute__((noinline)) static int leaf(int n) { sink += n; return sink; }
static inline __attribute__((always_inline)) int inner(int n) { return leaf(n) * 3; }
__attribute__((noinline)) int work(int n) { return inner(n) + 1; }
int step(int) __asm__("_ZN7Trainer4stepEi");
__attribute__((noinline)) int step(int n) { return work(n) - 1; }
int grow(int) __asm__("_ZN3app4grow17h0123456789abcdefE");
__attribute__((noinline)) int grow(int n) { return step(n) - 2; }
"#;

/// What the child does with a file, in this process: the names at these addresses, without and with debug information.
pub fn names_of(path: &Path, calls: &[u64]) -> Vec<Symbol> {
    locate::with_companions(path);
    let with_debug_information = match locate::has_unsafe_links(path) {
        Ok(false) => &[false, true],
        Ok(true) | Err(_) => &[false][..],
    };
    let lookup = |debug_info: &bool| Reader::new().lookup(path, *debug_info, calls);
    let found = with_debug_information.iter().filter_map(lookup);
    found.flatten().flatten().collect()
}

/// A folder with `libprobe.so` in it.
struct Probe {
    folder: TempDir,
    /// Its symbols, read before anything was stripped.
    symbols: Vec<(String, u64, u64)>,
    build_id: String,
}

impl Probe {
    /// Builds with these compiler options.
    fn build(options: &[&str]) -> Probe {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("probe.c"), SOURCE).expect("source written");
        let mut probe = Probe {
            folder,
            symbols: Vec::new(),
            build_id: String::new(),
        };
        let base = [
            "-O1",
            "-fPIC",
            "-shared",
            "-Wl,--build-id=sha1",
            "probe.c",
            "-o",
            "libprobe.so",
        ];
        probe.run("cc", &[options, &base].concat());
        let bytes = fs::read(probe.path("libprobe.so")).expect("built");
        let elf = object::File::parse(&*bytes).expect("ELF");
        let named = |symbol: &object::Symbol| Some((symbol.name().ok()?.to_owned(), symbol.address(), symbol.size()));
        probe.symbols = elf.symbols().filter_map(|symbol| named(&symbol)).collect();
        probe.build_id = elf
            .build_id()
            .ok()
            .flatten()
            .expect("a build id")
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        probe
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let status = Command::new(program).args(arguments).current_dir(&self.folder).status();
        assert!(status.is_ok_and(|status| status.success()), "{program} {arguments:?}");
    }

    /// Splits the debug information off into `to`, with a debug link to it.
    fn split(&self, to: &str) {
        self.run("objcopy", &["--only-keep-debug", "libprobe.so", to]);
        self.run(
            "objcopy",
            &["--strip-all", &format!("--add-gnu-debuglink={to}"), "libprobe.so"],
        );
    }

    /// A snapshot with one location per byte of the function, as return addresses.
    fn snapshot(&self, function: &str) -> Snapshot {
        let (_, start, size) = self
            .symbols
            .iter()
            .find(|(name, ..)| name == function)
            .expect("a symbol")
            .clone();
        let mut snapshot = Sample::new().finish(0, 0);
        snapshot.modules.push(Module {
            path: self.path("libprobe.so").display().to_string(),
            build_id: self.build_id.clone(),
            bias: 0x7f00_0000_0000,
            start: 0x7f00_0000_0000,
            end: 0x7f00_0001_0000,
            first_seen_ns: 0,
            unloaded_ns: None,
            bare: false,
        });
        let location = |offset| Location {
            module: Some(0),
            address: start + 1 + offset,
            symbols: Vec::new(),
            language: culeak::snapshot::Language::Native,
        };
        snapshot.locations.extend((0..size).map(location));
        snapshot
    }

    /// The function's name at each of its bytes, and the notes.
    fn names(&self, function: &str, places: &Places) -> (Vec<String>, Vec<String>) {
        let mut snapshot = self.snapshot(function);
        let notes = sentences(symbolize(&mut snapshot, places));
        let name = |location: &Location| {
            location
                .symbols
                .last()
                .map_or(String::new(), |symbol| symbol.function.clone())
        };
        (snapshot.locations.iter().map(name).collect(), notes)
    }

    fn expect_names(&self, function: &str, places: &Places, expected: &str) {
        let (names, notes) = self.names(function, places);
        assert!(names.iter().all(|name| name == expected), "{names:?} {notes:?}");
    }

    /// Whether file and line are found.
    fn has_lines(&self, places: &Places) -> bool {
        let mut snapshot = self.snapshot("work");
        symbolize(&mut snapshot, places);
        let symbol = |location: &Location| location.symbols.last().cloned();
        snapshot
            .locations
            .iter()
            .filter_map(symbol)
            .any(|symbol| symbol.line == Some(5))
    }
}

#[test]
fn a_module_is_bare_without_debug_information_of_its_own_or_in_a_debug_file() {
    let is_bare = |probe: &Probe| {
        let mut snapshot = probe.snapshot("work");
        symbolize(&mut snapshot, &Places::default());
        snapshot.modules[0].bare
    };
    assert!(is_bare(&Probe::build(&[])));
    let probe = Probe::build(&["-g"]);
    assert!(!is_bare(&probe));
    probe.split("libprobe.debug");
    assert!(!is_bare(&probe), "the debug file beside it");
    let debug_file = || debug_file(&probe.path("libprobe.so"), &probe.build_id, &[]);
    assert_eq!(
        debug_file().as_deref().and_then(Path::file_name),
        Some("libprobe.debug".as_ref())
    );
    fs::remove_file(probe.path("libprobe.debug")).expect("removed");
    assert!(is_bare(&probe));
    assert_eq!(debug_file(), None);
}

#[test]
fn functions_lines_and_inlined_calls_come_from_dwarf() {
    let probe = Probe::build(&["-g"]);
    let mut snapshot = probe.snapshot("work");
    assert_eq!(symbolize(&mut snapshot, &Places::default()), Vec::new());
    let inlined = snapshot
        .locations
        .iter()
        .map(|l| &l.symbols)
        .find(|symbols| symbols.len() == 2)
        .expect("an inlined call");
    let brief: Vec<_> = inlined
        .iter()
        .map(|s| (s.function.as_str(), s.line, s.inlined))
        .collect();
    assert_eq!(brief, [("inner", Some(4), true), ("work", Some(5), false)]);
    assert!(
        inlined[0]
            .file
            .as_deref()
            .is_some_and(|file| file.ends_with("/probe.c"))
    );
}

#[test]
fn names_are_demangled() {
    let probe = Probe::build(&["-g0"]);
    probe.expect_names("_ZN7Trainer4stepEi", &Places::default(), "Trainer::step(int)");
    probe.expect_names("_ZN3app4grow17h0123456789abcdefE", &Places::default(), "app::grow");
}

#[test]
fn existing_names_are_kept() {
    let probe = Probe::build(&["-g"]);
    let mut snapshot = probe.snapshot("work");
    let own = Symbol {
        function: "mine".to_owned(),
        file: None,
        line: None,
        inlined: false,
    };
    for location in &mut snapshot.locations {
        location.symbols = vec![own.clone()];
    }
    symbolize(&mut snapshot, &Places::default());
    assert!(
        snapshot
            .locations
            .iter()
            .all(|location| location.symbols == [own.clone()])
    );
}

#[test]
fn a_stripped_library_has_names_only_for_exported_symbols() {
    let probe = Probe::build(&["-g0"]);
    probe.run("objcopy", &["--strip-all", "libprobe.so"]);
    probe.expect_names("work", &Places::default(), "work");
    probe.expect_names("leaf", &Places::default(), "");
}

#[test]
fn cached_names_are_used_for_the_same_files_only() {
    let probe = Probe::build(&["-g"]);
    let cache = probe.path("cache");
    let places = || Places {
        cache: Some(cache.clone()),
        ..Places::default()
    };
    probe.expect_names("work", &places(), "work");
    // This name can come only from the cache.
    let file = fs::read_dir(&cache)
        .expect("a folder")
        .next()
        .expect("one file")
        .expect("an entry")
        .path();
    let text = fs::read_to_string(&file).expect("the file");
    let (_, json) = text.split_once('\n').expect("two lines");
    let json = json.replace("\"work\"", "\"cached\"");
    let line = format!("culeak-symbols-3 {:08x}", crc32fast::hash(json.as_bytes()));
    fs::write(&file, format!("{line}\n{json}")).expect("written");
    probe.expect_names("work", &places(), "cached");
    // Another function of the same file is added, and the known names stay.
    probe.expect_names("leaf", &places(), "leaf");
    probe.expect_names("work", &places(), "cached");
    probe.run("objcopy", &["--strip-debug", "libprobe.so"]);
    probe.expect_names("work", &places(), "work");
}

#[test]
fn a_deleted_file_that_is_still_open_has_lines() {
    let probe = Probe::build(&["-g"]);
    let file = File::open(probe.path("libprobe.so")).expect("built");
    fs::remove_file(probe.path("libprobe.so")).expect("removed");
    let mut snapshot = probe.snapshot("work");
    snapshot.modules[0].path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let notes = sentences(symbolize(&mut snapshot, &Places::default()));
    assert!(notes.is_empty(), "{notes:?}");
    assert!(snapshot.locations[0].symbols[0].line.is_some());
}

#[test]
fn debug_files_are_found_by_build_id() {
    let probe = Probe::build(&["-g"]);
    probe.split("far.debug");
    let folder = probe.path("dbg").join(".build-id").join(&probe.build_id[..2]);
    fs::create_dir_all(&folder).expect("a folder");
    fs::rename(
        probe.path("far.debug"),
        folder.join(format!("{}.debug", &probe.build_id[2..])),
    )
    .expect("moved");
    assert!(!probe.has_lines(&Places::default()));
    let places = Places {
        debug_dirs: vec![probe.path("dbg")],
        root: None,
        cache: None,
    };
    assert!(probe.has_lines(&places));
    // The module itself may be gone.
    fs::remove_file(probe.path("libprobe.so")).expect("removed");
    assert!(probe.has_lines(&places));
}

#[test]
fn debug_links_are_followed_beside_the_module_in_dot_debug_and_below_debug_folders() {
    let probe = Probe::build(&["-g"]);
    probe.split("probe.debug");
    let here = probe.path("probe.debug");
    assert!(probe.has_lines(&Places::default()));
    fs::create_dir(probe.path(".debug")).expect("a folder");
    fs::rename(&here, probe.path(".debug/probe.debug")).expect("moved");
    assert!(probe.has_lines(&Places::default()));
    let folder = probe.folder.path().canonicalize().expect("a path");
    let below = probe.path("dbg").join(folder.strip_prefix("/").expect("absolute"));
    fs::create_dir_all(&below).expect("a folder");
    fs::rename(probe.path(".debug/probe.debug"), below.join("probe.debug")).expect("moved");
    assert!(!probe.has_lines(&Places::default()));
    assert!(probe.has_lines(&Places {
        debug_dirs: vec![probe.path("dbg")],
        root: None,
        cache: None,
    }));
}

#[test]
fn a_debug_file_of_another_build_is_ignored() {
    let probe = Probe::build(&["-g"]);
    let other = Probe::build(&["-g", "-DOTHER=1", "-O0"]);
    probe.split("probe.debug");
    other.split("probe.debug");
    fs::copy(other.path("probe.debug"), probe.path("probe.debug")).expect("copied");
    assert!(!probe.has_lines(&Places::default()));
    probe.expect_names("work", &Places::default(), "work");
}

#[test]
fn a_module_that_changed_is_reported_and_not_read() {
    let probe = Probe::build(&["-g"]);
    let mut snapshot = probe.snapshot("work");
    snapshot.modules[0].build_id = "00112233".to_owned();
    let notes = sentences(symbolize(&mut snapshot, &Places::default()));
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("libprobe.so: changed since recorded"), "{notes:?}");
    assert!(snapshot.locations.iter().all(|location| location.symbols.is_empty()));
}

#[test]
fn a_module_that_is_missing_or_not_an_elf_file_is_reported_once() {
    let probe = Probe::build(&["-g"]);
    fs::write(probe.path("libprobe.so"), "no longer a library").expect("written");
    assert!(probe.names("work", &Places::default()).1[0].contains("cannot be read"));
    fs::remove_file(probe.path("libprobe.so")).expect("removed");
    let (_, notes) = probe.names("work", &Places::default());
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("not on this machine"), "{notes:?}");
}

#[test]
fn code_without_a_file_needs_no_note() {
    let mut snapshot = Probe::build(&[]).snapshot("work");
    snapshot.modules[0].path = "[vdso]".to_owned();
    assert_eq!(symbolize(&mut snapshot, &Places::default()), Vec::new());
}

#[test]
fn a_module_deleted_while_mapped_is_found_at_its_path() {
    let probe = Probe::build(&["-g"]);
    let mut snapshot = probe.snapshot("work");
    snapshot.modules[0].path.push_str(" (deleted)");
    assert_eq!(symbolize(&mut snapshot, &Places::default()), Vec::new());
    assert!(snapshot.locations.iter().all(|location| !location.symbols.is_empty()));
}

#[test]
fn a_file_below_a_folder_whose_name_has_line_breaks_or_bytes_that_are_not_utf_8_is_found() {
    let probe = Probe::build(&["-g"]);
    let folder = probe.folder.path().join(OsStr::from_bytes(b"a\xff\nb"));
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::rename(probe.path("libprobe.so"), folder.join("libprobe.so")).expect("moved");
    let mut snapshot = probe.snapshot("work");
    snapshot.modules[0].path = probe.path("a\u{fffd}\\012b/libprobe.so").display().to_string();
    assert_eq!(symbolize(&mut snapshot, &Places::default()), Vec::new());
    assert!(snapshot.locations.iter().all(|location| !location.symbols.is_empty()));
}

#[test]
fn files_are_located_in_the_root_of_the_process() {
    let probe = Probe::build(&["-g"]);
    let mut snapshot = probe.snapshot("work");
    snapshot.modules[0].path = "/libprobe.so".to_owned();
    let places = Places {
        debug_dirs: Vec::new(),
        root: Some(probe.folder.path().to_owned()),
        cache: None,
    };
    assert_eq!(symbolize(&mut snapshot, &places), Vec::new());
    assert!(snapshot.locations.iter().all(|location| !location.symbols.is_empty()));
}

/// Builds a program from one file; returns a snapshot with the addresses of the wanted functions.
fn program(compiler: &str, source: (&str, &str), options: &[&str], wanted: &[&str]) -> (TempDir, Snapshot) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join(source.0), source.1).expect("source written");
    let mut command = Command::new(compiler);
    command.args(options).args([source.0, "-o", "program"]);
    let status = command.current_dir(&folder).status();
    assert!(status.is_ok_and(|status| status.success()), "{compiler} {options:?}");
    let path = folder.path().join("program");
    let bytes = fs::read(&path).expect("built");
    let elf = object::File::parse(&*bytes).expect("ELF");
    let build_id = elf.build_id().ok().flatten().unwrap_or_default();
    let mut snapshot = Sample::new().finish(0, 0);
    snapshot.modules.push(Module {
        path: path.display().to_string(),
        build_id: build_id.iter().map(|byte| format!("{byte:02x}")).collect(),
        bias: 0x7f00_0000_0000,
        start: 0x7f00_0000_0000,
        end: 0x7f00_0100_0000,
        first_seen_ns: 0,
        unloaded_ns: None,
        bare: false,
    });
    let functions = elf.symbols().filter(|symbol| {
        let name = symbol.name().unwrap_or_default();
        symbol.is_definition() && wanted.iter().any(|wanted| name.contains(wanted))
    });
    for symbol in functions {
        snapshot.locations.extend((0..symbol.size()).map(|offset| Location {
            module: Some(0),
            address: symbol.address() + 1 + offset,
            symbols: Vec::new(),
            language: culeak::snapshot::Language::Native,
        }));
    }
    (folder, snapshot)
}

/// All names, without duplicates.
fn all_names(snapshot: &mut Snapshot) -> Vec<String> {
    symbolize(snapshot, &Places::default());
    let symbols = snapshot.locations.iter().flat_map(|location| &location.symbols);
    let mut names: Vec<String> = symbols.map(|symbol| symbol.function.clone()).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn rust_functions_with_line_tables_only_have_one_qualified_name_each() {
    let source = "
mod inner {
    #[inline(never)]
    pub fn leaf(n: &mut i32) { *n += 1; std::hint::black_box(n); }
    #[inline(always)]
    pub fn small(n: &mut i32) { leaf(n); std::hint::black_box(()); }
    #[inline(never)]
    pub fn outer(n: &mut i32) { small(n); std::hint::black_box(()); }
    pub static SMALL: fn(&mut i32) = small;
}
fn main() { let mut n = 1; inner::outer(&mut n); std::hint::black_box(inner::SMALL)(&mut n); }
";
    let options = [
        "-O",
        "-C",
        "debuginfo=line-tables-only",
        "-C",
        "codegen-units=1",
        "--crate-name",
        "app",
    ];
    let (_folder, mut snapshot) = program("rustc", ("app.rs", source), &options, &["5inner"]);
    let mut names = all_names(&mut snapshot);
    names.retain(|name| ["leaf", "small", "outer"].iter().any(|part| name.contains(part)));
    assert_eq!(names, ["app::inner::leaf", "app::inner::outer", "app::inner::small"]);
}

#[test]
#[ignore = "needs g++"]
fn lambdas_are_named_with_their_function() {
    let source = "
static int sink;
__attribute__((noinline)) void fill() {
    auto one = [](int n) __attribute__((noinline)) { sink += n; };
    one(3);
}
int main() {
    auto two = [](int n) __attribute__((noinline)) { sink -= n; };
    two(4);
    fill();
}
";
    let (_folder, mut snapshot) = program("c++", ("app.cpp", source), &["-g", "-O1"], &["UliE", "4fillv"]);
    let names = all_names(&mut snapshot);
    assert_eq!(
        names,
        [
            "fill()",
            "fill()::{lambda(int)#1}::operator()(int) const",
            "main::{lambda(int)#1}::operator()(int) const"
        ]
    );
}

/// Creates a FIFO, calls `act`, and returns whether the FIFO was opened for reading meanwhile. An `open` that waits for a
/// writer gets one, so that the test fails instead of hanging.
pub fn opens_fifo(path: &Path, act: impl FnOnce()) -> bool {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !over.load(Relaxed) {
                let mut options = File::options();
                // Fails until there is a reader.
                if options
                    .write(true)
                    .custom_flags(nix::libc::O_NONBLOCK)
                    .open(path)
                    .is_ok()
                {
                    return true;
                }
                thread::sleep(Duration::from_millis(1));
            }
            false
        });
        act();
        over.store(true, Relaxed);
        writer.join().expect("a thread that ends")
    })
}

#[test]
fn a_fifo_in_place_of_a_module_is_not_opened() {
    let probe = Probe::build(&["-g"]);
    fs::remove_file(probe.path("libprobe.so")).expect("removed");
    let opened = opens_fifo(&probe.path("libprobe.so"), || {
        let (_, notes) = probe.names("work", &Places::default());
        assert!(notes[0].contains("cannot be read (not a regular file)"), "{notes:?}");
    });
    assert!(!opened);
    let mut device = probe.snapshot("work");
    device.modules[0].path = "/dev/zero".to_owned();
    assert!(sentences(symbolize(&mut device, &Places::default()))[0].contains("not a regular file"));
}

#[test]
fn a_fifo_that_a_module_links_to_is_not_opened() {
    // The package beside it, the supplementary file, the debug link.
    let probe = Probe::build(&["-g"]);
    let opened = opens_fifo(&probe.path("libprobe.so.dwp"), || {
        probe.expect_names("work", &Places::default(), "work");
    });
    assert!(!opened, "package");
    fs::remove_file(probe.path("libprobe.so.dwp")).expect("removed");
    for (section, before) in [(".gnu_debugaltlink", &b""[..]), (".debug_sup", b"\x05\0\0")] {
        let probe = Probe::build(&["-g"]);
        let target = probe.path("fifo");
        let content = [before, target.as_os_str().as_encoded_bytes(), b"\0\x04abcdefgh"].concat();
        fs::write(probe.path("link"), content).expect("written");
        probe.run("objcopy", &["--add-section", &format!("{section}=link"), "libprobe.so"]);
        let opened = opens_fifo(&target, || probe.expect_names("work", &Places::default(), "work"));
        assert!(!opened, "{section}");
    }
    let probe = Probe::build(&["-g"]);
    probe.split("probe.debug");
    fs::remove_file(probe.path("probe.debug")).expect("removed");
    let opened = opens_fifo(&probe.path("probe.debug"), || {
        probe.expect_names("work", &Places::default(), "work");
    });
    assert!(!opened, "debug link");
    let folder = probe.path("dbg").join(".build-id").join(&probe.build_id[..2]);
    fs::create_dir_all(&folder).expect("a folder");
    let places = Places {
        debug_dirs: vec![probe.path("dbg")],
        ..Places::default()
    };
    let opened = opens_fifo(&folder.join(format!("{}.debug", &probe.build_id[2..])), || {
        probe.expect_names("work", &places, "work");
    });
    assert!(!opened, "build id");
}
