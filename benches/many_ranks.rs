//! Makes the recordings of a job: by default 500 ranks, 8 on each host, of 2,000 call sites each.
//!
//!     cargo run --release --example many_ranks -- OUT/ [RANKS [SITES]]
//!
//! In the environment: `LEAKING=17,40-47` names ranks that leak 30 MiB more at line 88 of train.py, `NOISE=3` varies all sizes by
//! this percentage, `STAGES=4` divides the ranks into pipeline stages, of which each has more than the one before, and `FIRST=N`
//! makes only the ranks from N on. All other ranks are equal.
//!
//! Written through the writer's own operations, so the files are what the processes of such a job would have written. Half of
//! the memory is tensors in PyTorch's segments, requested from lines of Python. Stacks are 12 to 20 frames deep, and share their outer frames. A
//! process writes at most 250 recordings, since each stays mapped; the program starts itself for the next.

use std::ffi::CString;

use culeak::cuda_functions::Api;
use culeak::format::{RANK_VARIABLES, ROOT};
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Entry, Key, Space};
use culeak::recording::{CodeSeen, ModuleSeen, Recording, Session};

/// Recordings per process.
const AT_ONCE: u64 = 250;
const PER_HOST: u64 = 8;
/// Lines of each function that allocate.
const LINES_PER_CODE: u64 = 10;
const SEGMENT: u64 = 20 << 20;
const LEAK: u64 = 30 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(folder) = arguments.first() else {
        eprintln!("usage: many_ranks OUT/ [RANKS [SITES]]");
        std::process::exit(2);
    };
    let number = |nth: usize, default| {
        arguments
            .get(nth)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (ranks, sites): (u64, u64) = (number(1, 500), number(2, 2000));
    let first: u64 = std::env::var("FIRST").map_or(0, |text| text.parse().expect("a rank"));
    let noise: u64 = std::env::var("NOISE").map_or(0, |text| text.parse().expect("a percentage"));
    let stages: u64 = std::env::var("STAGES").map_or(1, |text| text.parse().expect("a number"));
    let leaking = std::env::var("LEAKING").unwrap_or_default();
    std::fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let last = ranks.min(first + AT_ONCE);
    for rank in first..last {
        let job = Job {
            folder,
            rank,
            ranks,
            sites,
            noise,
            stages,
        };
        job.record(is_among(rank, &leaking));
    }
    if last < ranks {
        let program = std::env::current_exe().expect("this program");
        let error = std::os::unix::process::CommandExt::exec(
            std::process::Command::new(program)
                .args(arguments)
                .env("FIRST", last.to_string()),
        );
        panic!("cannot start itself: {error}");
    }
}

/// Whether a list such as `17,40-47` contains the rank.
fn is_among(rank: u64, list: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().expect("a rank");
    list.split(',')
        .filter(|part| !part.is_empty())
        .any(|part| match part.split_once('-') {
            Some((from, to)) => (number(from)..=number(to)).contains(&rank),
            None => number(part) == rank,
        })
}

struct Job<'a> {
    folder: &'a str,
    rank: u64,
    ranks: u64,
    sites: u64,
    noise: u64,
    stages: u64,
}

impl Job<'_> {
    fn record(&self, leaks: bool) {
        let recording = self.create();
        let mut random = Random(0x9e37_79b9 + self.rank);
        let thread = recording.add_thread(1000 + self.rank as u32, b"python\0\0\0\0\0\0\0\0\0\0");
        recording.add_device(0, Some((false, [1; 16])), b"Imagined GPU");
        recording.add_context(0x5555_0000, 0, false);
        let mut memory = Memory {
            recording,
            thread,
            next: 0x7f00_0000_0000,
            segment: (0, 0),
        };
        let modules = modules(recording, self.rank);
        let main = self.python(recording, ROOT, 0, 0);
        let segment_stack = native(recording, main, &modules, &[0, 1, 2, 3]);
        for site in 0..self.sites {
            let stack = self.stack(recording, &modules, main, site);
            let bytes = (512 << (site % 12)) * (1 + self.stage()) * self.factor(&mut random) / 100;
            match site % 2 {
                0 => memory.tensor(bytes, stack, segment_stack),
                _ => {
                    memory.plain(bytes, stack);
                }
            }
        }
        if leaks {
            let step = self.python(recording, main, 1 << 20, 0);
            memory.plain(LEAK, native(recording, step, &modules, &[0, 1, 3]));
        }
        recording.end();
    }

    fn stage(&self) -> u64 {
        self.rank * self.stages / self.ranks.max(1)
    }

    /// 100, or a number that differs by at most the noise.
    fn factor(&self, random: &mut Random) -> u64 {
        100 - self.noise + random.next() % (2 * self.noise + 1)
    }

    fn create(&self) -> &'static Recording {
        let host = format!("node{:04}", self.rank / PER_HOST);
        let pid = 1000 + self.rank as u32;
        let path = format!("{}/python3.{host}.{pid}.culeak", self.folder);
        let name = CString::new(path.as_str()).expect("a path");
        let (rank, local) = (self.rank.to_string(), (self.rank % PER_HOST).to_string());
        let mut ranks = [None; RANK_VARIABLES.len()];
        for (name, value) in RANK_VARIABLES.iter().zip(&mut ranks) {
            *value = match *name {
                "RANK" => Some(rank.as_bytes()),
                "LOCAL_RANK" => Some(local.as_bytes()),
                _ => None,
            };
        }
        let session = Session {
            pid,
            parent_pid: 1,
            depth: 128,
            pid_namespace: 0,
            time_namespace: 0,
            process_start_ticks: 0,
            executable: b"/opt/imagined/python3",
            command_line: b"python3\0train.py\0",
            host: host.as_bytes(),
            ranks,
        };
        debug_assert!(self.rank < self.ranks);
        let recording = Recording::create(&name, &session);
        let recording = recording.unwrap_or_else(|error| panic!("{path}: no recording: {error:?}"));
        if self.stages > 1 {
            recording.variable(b"PP_RANK", self.stage().to_string().as_bytes());
        }
        recording
    }

    /// A frame at a line of a function.
    fn python(&self, recording: &Recording, parent: u32, function: u64, line: u64) -> u32 {
        let seen = || {
            let (file, name, first_line) = match function {
                0 => ("/home/me/train.py".to_owned(), "main".to_owned(), 10),
                0x10_0000 => ("/home/me/train.py".to_owned(), "step".to_owned(), 87),
                nth => (
                    format!("/home/me/model/part{}.py", nth % 50),
                    format!("Part{nth}.forward"),
                    10 * nth as u32,
                ),
            };
            CodeSeen {
                file: file.leak().as_bytes(),
                function: name.leak().as_bytes(),
                first_line,
                line_table: Some(LINES),
                minor: 12,
            }
        };
        let code = recording.code(function + 1, || Some(seen())).expect("room for a code");
        recording
            .python_frame(parent, code, 2 * line as u32)
            .expect("room for a frame")
    }

    /// Stacks branch at their fourth frame from outside.
    fn stack(&self, recording: &Recording, modules: &[u32], main: u32, site: u64) -> u32 {
        let function = 1 + site / LINES_PER_CODE;
        let mut frame = main;
        for level in 0..3 {
            frame = self.python(recording, frame, 1 + (function / 8 + level) % 64, level);
        }
        frame = native(recording, frame, modules, &[0, 0, 1, 1]);
        frame = self.python(recording, frame, function, site % LINES_PER_CODE);
        let own: &[usize] = if site.is_multiple_of(2) {
            &[0, 0, 1, 1]
        } else {
            &[0, 0, 1, 1, 1, 1, 3, 3]
        };
        native(recording, frame, modules, own)
    }
}

/// Two Python instructions for each of ten lines.
const LINES: &[u8] = &[
    0xe8, 2, 0xe8, 2, 0xe8, 2, 0xe8, 2, 0xe8, 2, 0xe8, 2, 0xe8, 2, 0xe8, 2, 0xe8, 2, 0xe8, 2,
];

/// Each process has its libraries at other addresses.
fn modules(recording: &Recording, rank: u64) -> Vec<u32> {
    const NAMES: [&str; 4] = [
        "libtorch_python.so",
        "libtorch_cuda.so",
        "libc10_cuda.so",
        "libcudart.so.12",
    ];
    let add = |(nth, name): (u64, &&str)| {
        let bias = 0x6000_0000_0000 + (rank << 32) + (nth << 30);
        let seen = ModuleSeen {
            path: format!("/opt/imagined/torch/lib/{name}").leak().as_bytes(),
            build_id: &[nth as u8 + 1; 20],
            bias,
            start: bias,
            end: bias + (64 << 20),
        };
        recording.add_module(&seen).expect("room for a module")
    };
    (0..).zip(&NAMES).map(add).collect()
}

/// Frames in these modules, outermost first.
fn native(recording: &Recording, mut frame: u32, modules: &[u32], path: &[usize]) -> u32 {
    for (level, &module) in (0..).zip(path) {
        let address = 0x1000 + 0x40 * level;
        frame = recording
            .frame(frame, Some(modules[module]), address)
            .expect("room for a frame");
    }
    frame
}

struct Memory {
    recording: &'static Recording,
    thread: u32,
    next: u64,
    /// Address and size of the unused rest of PyTorch's segment.
    segment: (u64, u64),
}

impl Memory {
    fn plain(&mut self, bytes: u64, stack: u32) -> u64 {
        let address = self.next;
        self.next += bytes.next_multiple_of(512);
        self.record(Kind::Device, Space::Pointer, "cuMemAlloc_v2", address, bytes, stack);
        address
    }

    fn tensor(&mut self, bytes: u64, stack: u32, segment_stack: u32) {
        let bytes = bytes.next_multiple_of(512);
        if self.segment.1 < bytes {
            self.segment = (self.plain(SEGMENT, segment_stack), SEGMENT);
        }
        let (address, left) = self.segment;
        self.segment = (address + bytes, left - bytes);
        self.record(
            Kind::Tensor,
            Space::Tensor,
            "CUDACachingAllocator",
            address,
            bytes,
            stack,
        );
    }

    fn record(&self, kind: Kind, space: Space, api: &str, address: u64, bytes: u64, stack: u32) {
        let entry = Entry {
            bytes,
            requested: bytes,
            time_ns: self.recording.now(),
            extra: 0,
            pool: 0,
            stack,
            thread: self.thread,
            attributes: Attributes {
                kind,
                space,
                flags: 0,
                device: 0,
                api: Api::of(api).0,
                context: 0,
                raised: 0,
            },
        };
        let recorded = self.recording.allocated(Key { space, address }, &entry);
        assert!(recorded, "no room: is the disk full?");
    }
}

/// The same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
