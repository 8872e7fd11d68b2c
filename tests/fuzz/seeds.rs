//! Valid files of each type, small, with everything that the format can contain.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use culeak::cuda_functions::Api;
use culeak::format::{RANK_VARIABLES, ROOT};
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Entry, Key, Space};
use culeak::recording::{CodeSeen, ModuleSeen, Recording, Session};
use culeak::snapshot::{Language, Location, Module, Snapshot};

use crate::sample::{Sample, leaky, training};
use crate::{INPUT, culeak};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    Recording,
    Snapshot,
    Pickle,
    Module,
}

impl Type {
    pub const ALL: [Type; 4] = [Type::Recording, Type::Snapshot, Type::Pickle, Type::Module];
}

pub struct Seed {
    pub of: Type,
    /// Of a module: the file name of the snapshot that refers to it.
    pub name: String,
    pub bytes: Vec<u8>,
}

/// The file name of a valid snapshot, and of the module that is changed.
pub const VALID: &str = "valid.json";
pub const MODULE: &str = "module.so";

/// Makes the seeds, and in the folder the snapshots that are read unchanged.
pub fn all(folder: &Path, more: &[PathBuf]) -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |of, name: &str, bytes: Vec<u8>| {
        assert!(bytes.len() < INPUT, "{name} has {} bytes", bytes.len());
        let name = name.to_owned();
        seeds.push(Seed { of, name, bytes });
    };
    write(folder, VALID, &leaky());
    for (name, snapshot) in [("leaky", leaky()), ("training", training().finish(1 << 30, 3))] {
        let json = serde_json::to_vec(&snapshot).expect("JSON");
        add(Type::Snapshot, name, json);
        add(
            Type::Snapshot,
            name,
            serde_json::to_vec_pretty(&snapshot).expect("JSON"),
        );
        write(folder, "for-pytorch.json", &snapshot);
        add(Type::Pickle, name, pickle(folder));
    }
    add(Type::Recording, "recording", recording(folder));
    for (nth, options) in WAYS_TO_COMPILE.iter().enumerate() {
        let name = format!("module-{nth}.json");
        let bytes = module(folder, options);
        write(folder, &name, &snapshot_of(folder, &bytes));
        add(Type::Module, &name, bytes);
    }
    for path in more {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let of = match bytes.first() {
            Some(b'{') => Type::Snapshot,
            Some(0x80) => Type::Pickle,
            _ => Type::Recording,
        };
        add(of, &path.display().to_string(), bytes);
    }
    seeds
}

/// The snapshots of one folder, rewritten for another.
pub fn snapshots_beside(folder: &Path, there: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).expect("the folder").flatten();
    let json = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "json"));
    let moved = |text: String| text.replace(&folder.display().to_string(), &there.display().to_string());
    json.map(|entry| {
        let text = fs::read_to_string(entry.path()).expect("text");
        (entry.file_name().to_string_lossy().into_owned(), moved(text))
    })
    .collect()
}

fn write(folder: &Path, name: &str, snapshot: &Snapshot) {
    fs::write(folder.join(name), serde_json::to_vec(snapshot).expect("JSON")).expect("written");
}

fn run(folder: &Path, program: impl AsRef<Path>, words: &[&str]) {
    let program = program.as_ref();
    let output = Command::new(program).args(words).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(output.status.success(), "{} {words:?}: {output:?}", program.display());
}

fn pickle(folder: &Path) -> Vec<u8> {
    let words = "export for-pytorch.json --force -o p.pickle --format memory_viz --full-stacks";
    run(folder, culeak(), &words.split(' ').collect::<Vec<_>>());
    fs::read(folder.join("p.pickle")).expect("written")
}

/// A recording with one of everything.
fn recording(folder: &Path) -> Vec<u8> {
    let path = folder.join("seed.culeak");
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let session = Session {
        pid: 4711,
        parent_pid: 1,
        depth: 128,
        process_start_ticks: 1,
        executable: b"/usr/bin/python3",
        command_line: b"python3\0train.py\0",
        host: b"node7",
        pid_namespace: 0,
        time_namespace: 0,
        ranks: [Some(b"3".as_slice()); RANK_VARIABLES.len()],
    };
    let Ok(recording) = Recording::create(&name, &session) else {
        panic!("{}: no recording", path.display());
    };
    let threads = [7, 8].map(|tid| recording.add_thread(tid, b"worker\0\0\0\0\0\0\0\0\0\0"));
    for device in 0..2 {
        recording.add_device(i32::from(device), Some((device == 1, [device; 16])), b"Imagined GPU");
        let context = recording.add_context(0x5555_0000 + u64::from(device), device, device == 1);
        if device == 1 {
            recording.context_destroyed(context);
        }
    }
    let modules = ["/opt/app", "/opt/lib.so"].map(|path| {
        let start = 0x5000_0000_0000 + path.len() as u64 * 0x1_0000_0000;
        recording.add_module(&ModuleSeen {
            path: path.as_bytes(),
            build_id: &[7; 20],
            bias: start,
            start,
            end: start + 0x10_0000,
        })
    });
    recording.interpreter(0x030c_01f0, None);
    let code = recording.code(1, || {
        Some(CodeSeen {
            file: b"/src/train.py",
            function: b"Trainer.step",
            first_line: 11,
            // Two instructions per line, as Python 3.12 encodes it.
            line_table: Some(&[0x80 | 13 << 3, 2, 0x80 | 13 << 3, 2]),
            minor: 12,
        })
    });
    let code = code.expect("room for a code");
    let mut stacks = Vec::new();
    for nth in 0..8 {
        let outer = recording.frame(ROOT, modules[0], 0x1000 + nth).expect("room");
        let middle = recording.python_frame(outer, code, 2).expect("room");
        stacks.push(recording.frame(middle, modules[1], 0x2000 + nth % 3).expect("room"));
    }
    recording.domain(b"framework");
    let kinds = [
        (Kind::Device, Space::Pointer, "cuMemAlloc_v2"),
        (Kind::Async, Space::Pointer, "cuMemAllocAsync"),
        (Kind::HostPinned, Space::Pointer, "cuMemHostAlloc"),
        (Kind::Managed, Space::Pointer, "cuMemAllocManaged"),
        (Kind::Tensor, Space::Tensor, "CUDACachingAllocator"),
    ];
    for nth in 0..40 {
        let (kind, space, api) = kinds[nth % kinds.len()];
        let thread = threads[nth % 2];
        let entry = Entry {
            bytes: 4096 << (nth % 5),
            requested: 4000,
            time_ns: recording.now(),
            extra: nth as u64,
            pool: 0,
            stack: stacks[nth % stacks.len()],
            thread,
            attributes: Attributes {
                kind,
                space,
                flags: if kind == Kind::Async { Attributes::HAS_STREAM } else { 0 },
                device: (nth % 2) as u8,
                api: Api::of(api).0,
                context: 0,
            },
        };
        let key = Key {
            space,
            address: 0x7f00_0000_0000 + 0x100_0000 * nth as u64,
        };
        assert!(recording.allocated(key, &entry));
        match nth % 8 {
            0 => {
                let withdrawn = recording.withdraw(key, thread).expect("it is there");
                recording.commit(withdrawn, thread);
            }
            1 => drop(recording.failed(&entry, 2)),
            2 => recording.mark(b"epoch", thread),
            _ => {}
        }
    }
    recording.allocator_reported(0, 4096, 4096, 1 << 21);
    recording.unhooked(b"cuMemSomething");
    recording.end();
    fs::read(path).expect("written")
}

const WAYS_TO_COMPILE: &[&[&str]] = &[
    &["-g"],
    &["-gdwarf-4", "-O0"],
    &["-g", "-gz"],
    &["-g", "-ffunction-sections", "-fdebug-types-section"],
    &["-g0"],
    &["-g", "-Wl,-s"],
];

const PROGRAM: &str = r#"
#include <map>
#include <string>
#include <vector>
namespace app {
template <class T> struct Cache {
    std::map<std::string, std::vector<T>> kept;
    template <class F> T grow(const std::string &name, F f) { auto &v = kept[name]; v.push_back(f(v.size())); return v.back(); }
};
static inline __attribute__((always_inline)) int inner(int n) { return n * 3; }
__attribute__((noinline)) int leaf(int n) { return inner(n) + inner(n + 1); }
}
extern "C" int step(int n) {
    static app::Cache<int> cache;
    return cache.grow("batch", [n](unsigned long size) { return app::leaf(n) + static_cast<int>(size); });
}
"#;

/// A library without a build id, so that a changed one is read too.
fn module(folder: &Path, options: &[&str]) -> Vec<u8> {
    fs::write(folder.join("module.cc"), PROGRAM).expect("written");
    let base = [
        "-O1",
        "-fPIC",
        "-shared",
        "-Wl,--build-id=none",
        "module.cc",
        "-o",
        MODULE,
    ];
    run(folder, "c++", &[&base, options].concat());
    fs::read(folder.join(MODULE)).expect("built")
}

/// A snapshot with addresses throughout the module.
fn snapshot_of(folder: &Path, module: &[u8]) -> Snapshot {
    let mut sample = Sample::new();
    let stack = sample.stack(&[("", "", "")]);
    sample.holds(Kind::Device, "cudaMalloc", 4096, 3, stack);
    let mut snapshot = sample.finish(0, 0);
    // Later than the file's time, so that there is no warning about its age.
    snapshot.process.started_unix_ns = u64::MAX;
    snapshot.modules = vec![Module {
        path: folder.join(MODULE).display().to_string(),
        build_id: String::new(),
        bias: 0x7f00_0000_0000,
        start: 0x7f00_0000_0000,
        end: 0x7f00_0010_0000,
        first_seen_ns: 0,
        unloaded_ns: None,
    }];
    snapshot.locations = (0x1000..module.len().min(0x8000) as u64)
        .step_by(13)
        .map(|address| Location {
            module: Some(0),
            address,
            symbols: Vec::new(),
            language: Language::Native,
        })
        .collect();
    snapshot.stacks[stack].frames = (0..snapshot.locations.len()).collect();
    snapshot
}
