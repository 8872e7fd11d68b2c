//! Makes a recording with an event log: a training program on PyTorch with a cache, a leak and a request that failed.
//!
//!     cargo run --release --example timeline_recording -- OUT.culeak [EVENTS [PAUSE_US [LAYERS [CACHED]]]]
//!
//! Filled through the writer's own operations. Each step allocates activations layer by layer, frees them in reverse, and
//! allocates short-lived workspaces in between; the first step allocates the optimizer's state. A cache of CACHED entries frees
//! random ones, and every 16th step leaks a block. After each step it sleeps for PAUSE_US microseconds.

use std::collections::HashMap;
use std::ffi::CString;
use std::time::Duration;

use culeak::cuda_functions::Api;
use culeak::format::{RANK_VARIABLES, ROOT};
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Entry, Key, Space};
use culeak::recording::{CodeSeen, ModuleSeen, Recording, Session};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SEGMENT: u64 = 20 * MIB;
const OUT_OF_MEMORY: i32 = 2;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else {
        eprintln!("usage: timeline_recording OUT.culeak [EVENTS [PAUSE_US [LAYERS [CACHED]]]]");
        std::process::exit(2);
    };
    let mut number = |default: u64| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (events, pause, layers, cached) = (number(100_000), number(0), number(12), number(2000));
    let recording = create(&path);
    recording.enable_timeline(1 << 32);
    let mut program = Program::new(recording, layers);
    let pinned = program.code("load_batch", "/home/me/project/data.py", 12);
    program.plain(Kind::HostPinned, "cuMemHostAlloc", 64 * MIB, pinned);
    program.parameters();
    let mut step = 0;
    while program.events < events {
        program.step(step, cached as usize);
        step += 1;
        if step.is_multiple_of(50) {
            recording.mark(format!("epoch {}", step / 50).as_bytes(), program.thread);
        }
        if pause > 0 {
            std::thread::sleep(Duration::from_micros(pause));
        }
    }
    let evaluate = program.code("evaluate", "/home/me/project/train.py", 77);
    let entry = program.entry(Kind::Device, Space::Pointer, "cudaMalloc", 80 << 30, evaluate);
    recording.failed(&entry, OUT_OF_MEMORY);
    program.evict(0);
    recording.end();
    println!("{} events, {step} steps", program.events);
}

fn create(path: &str) -> &'static Recording {
    let session = Session {
        pid: std::process::id(),
        parent_pid: 1,
        depth: 128,
        pid_namespace: 0,
        time_namespace: 0,
        process_start_ticks: 0,
        executable: b"/usr/bin/python3",
        command_line: b"python3\0train.py\0",
        host: b"imagined",
        ranks: [None; RANK_VARIABLES.len()],
    };
    let name = CString::new(path).expect("a path");
    Recording::create(&name, &session).unwrap_or_else(|error| panic!("{path}: no recording: {error:?}"))
}

/// A tensor: its address and size.
type Tensor = (u64, u64);

struct Program {
    recording: &'static Recording,
    thread: u32,
    layers: u64,
    /// The frames that all stacks begin with.
    step: u32,
    allocator: Option<u32>,
    codes: HashMap<String, u32>,
    /// Free blocks of PyTorch's allocator by size.
    free: HashMap<u64, Vec<u64>>,
    room: Tensor,
    next: u64,
    cache: Vec<Tensor>,
    events: u64,
    random: u64,
}

impl Program {
    fn new(recording: &'static Recording, layers: u64) -> Program {
        recording.add_device(0, Some((false, [1; 16])), b"Imagined GPU");
        recording.add_context(0x5555_0000, 0, true);
        recording.interpreter(0x030c_01f0, None);
        let allocator = recording.add_module(&ModuleSeen {
            path: b"/opt/imagined/torch/lib/libc10_cuda.so",
            build_id: &[0xc1; 20],
            bias: 0x6000_0000_0000,
            start: 0x6000_0000_0000,
            end: 0x6000_0100_0000,
        });
        let mut program = Program {
            recording,
            thread: recording.add_thread(4711, b"python3\0\0\0\0\0\0\0\0\0"),
            layers,
            step: ROOT,
            allocator,
            codes: HashMap::new(),
            free: HashMap::new(),
            room: (0, 0),
            next: 0x7f00_0000_0000,
            cache: Vec::new(),
            events: 0,
            random: 7,
        };
        let main = program.code("main", "/home/me/project/train.py", 90);
        program.step = main;
        program.step = program.code("train_step", "/home/me/project/train.py", 40);
        program
    }

    /// The frame of a function, called by the frames so far.
    fn code(&mut self, function: &str, file: &str, line: u32) -> u32 {
        let recording = self.recording;
        let next = self.codes.len() as u64 + 1;
        let parent = self.step;
        *self.codes.entry(format!("{file}:{function}")).or_insert_with(|| {
            let seen = CodeSeen {
                file: file.as_bytes(),
                function: function.as_bytes(),
                first_line: line,
                // One instruction, in the first line.
                line_table: Some(&[0x80 | 13 << 3, 0]),
                minor: 12,
            };
            let code = recording.code(next, || Some(seen)).expect("room for a code");
            recording.python_frame(parent, code, 0).expect("room for a frame")
        })
    }

    fn model(&mut self, layer: u64, function: &str, line: u32) -> u32 {
        let name = format!("Block{layer}.{function}");
        self.code(&name, "/home/me/project/model.py", 100 * layer as u32 + line)
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn entry(&self, kind: Kind, space: Space, api: &str, bytes: u64, stack: u32) -> Entry {
        Entry {
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
        }
    }

    fn plain(&mut self, kind: Kind, api: &str, bytes: u64, stack: u32) -> u64 {
        let address = self.next;
        self.next += bytes.next_multiple_of(MIB);
        let entry = self.entry(kind, Space::Pointer, api, bytes, stack);
        let space = Space::Pointer;
        assert!(
            self.recording.allocated(Key { space, address }, &entry),
            "no room: is the disk full?"
        );
        self.events += 1;
        address
    }

    fn tensor(&mut self, bytes: u64, stack: u32) -> Tensor {
        let known = self.free.get_mut(&bytes).and_then(Vec::pop);
        let address = known.unwrap_or_else(|| {
            if self.room.1 < bytes {
                let segment = SEGMENT.max(bytes.next_multiple_of(2 * MIB));
                let inner = self
                    .recording
                    .frame(stack, self.allocator, 0x1234)
                    .expect("room for a frame");
                self.room = (self.plain(Kind::Device, "cudaMalloc", segment, inner), segment);
            }
            let address = self.room.0;
            self.room = (address + bytes, self.room.1 - bytes);
            address
        });
        let entry = self.entry(Kind::Tensor, Space::Tensor, "CUDACachingAllocator", bytes, stack);
        let space = Space::Tensor;
        assert!(
            self.recording.allocated(Key { space, address }, &entry),
            "no room: is the disk full?"
        );
        self.events += 1;
        (address, bytes)
    }

    fn drop(&mut self, (address, bytes): Tensor) {
        let space = Space::Tensor;
        if let Some(withdrawn) = self.recording.withdraw(Key { space, address }, self.thread) {
            self.recording.commit(withdrawn, self.thread);
        }
        self.free.entry(bytes).or_default().push(address);
        self.events += 1;
    }

    fn parameters(&mut self) {
        for layer in 0..self.layers {
            let stack = self.model(layer, "__init__", 10);
            for _ in 0..4 {
                self.tensor(4 * MIB, stack);
            }
        }
    }

    fn step(&mut self, step: u64, cached: usize) {
        let mut activations = Vec::new();
        for layer in 0..self.layers {
            for (line, function, bytes) in [(30, "attention", MIB), (50, "mlp", 2 * MIB), (70, "norm", 256 * KIB)] {
                let stack = self.model(layer, function, line);
                let workspace = self.tensor(bytes / 2, stack);
                activations.push(self.tensor(bytes, stack));
                self.drop(workspace);
            }
            let remember = self.model(layer, "remember", 90);
            let bytes = 512 << (self.random() % 7);
            let entry = self.tensor(bytes, remember);
            self.cache.push(entry);
        }
        while let Some(activation) = activations.pop() {
            let backward = self.code("backward", "/home/me/project/train.py", 52);
            let gradient = self.tensor(512 * KIB, backward);
            self.drop(activation);
            self.drop(gradient);
        }
        if step == 0 {
            let optimizer = self.code("Adam.step", "/home/me/project/optim.py", 20);
            for _ in 0..8 * self.layers {
                self.tensor(4 * MIB, optimizer);
            }
        }
        if step.is_multiple_of(16) {
            let leak = self.code("log_loss", "/home/me/project/train.py", 61);
            self.tensor(MIB, leak);
        }
        self.evict(cached);
    }

    /// Frees random entries of the cache until there are at most `most`.
    fn evict(&mut self, most: usize) {
        while self.cache.len() > most {
            let nth = self.random() as usize % self.cache.len();
            let entry = self.cache.swap_remove(nth);
            self.drop(entry);
        }
    }
}
