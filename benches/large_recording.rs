//! Makes a very large recording: by default 10 million live allocations from 50,000 stacks.
//!
//!     cargo run --release --example large_recording -- OUT.culeak [ALLOCATIONS [STACKS [MODULE…]]]
//!
//! With `STAY=idle` or `STAY=busy` in the environment it does not end then: it prints its pid and waits for the end of its
//! input, with all allocations live like a running program; busy, with ten thousand allocations and frees a second.
//!
//! With `EVENTS=N` in the environment it has an event log: that of all allocations and then of N more events, which free random
//! tensors of a thousand that are live and allocate others.
//!
//! Filled through the writer's own operations, so it is what a program would have written. Stacks are 20 to 40 frames deep,
//! share their outer frames as call trees do, and consist of 10,000 locations, half of them lines of Python. Native locations
//! are in the ELF files named as MODULE, else in files that do not exist. Three fifths of the allocations are tensors within
//! PyTorch's segments, the rest is memory of all kinds. 16 threads, 8 streams, 2 devices; each stack is used by three threads.

use std::ffi::CString;

use culeak::cuda_functions::Api;
use culeak::format::{RANK_VARIABLES, ROOT, TIMELINE_MAX};
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Entry, Key, Space};
use culeak::recording::{CodeSeen, ModuleSeen, Recording, Session};

const PLACES: u64 = 10_000;
const THREADS: u64 = 16;
const SEGMENT: u64 = 20 << 20;
const TENSOR: u64 = 512;
const DEVICES: u64 = 2;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let Some(path) = arguments.next() else {
        eprintln!("usage: large_recording OUT.culeak [ALLOCATIONS [STACKS [MODULE…]]]");
        std::process::exit(2);
    };
    let mut number = |default| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (allocations, stacks) = (number(10_000_000), number(50_000));
    let modules: Vec<String> = arguments.collect();
    let recording = create(&path);
    let events: u64 = std::env::var("EVENTS").map_or(0, |text| text.parse().expect("a number of events"));
    if events > 0 {
        recording.enable_timeline(TIMELINE_MAX);
    }
    let mut random = Random(7);
    let places = places(recording, &modules, &mut random);
    let stacks = make_stacks(recording, stacks, &places, &mut random);
    let segment_stack = caching_stack(recording, stacks[0]);
    let threads: Vec<u32> = (0..THREADS)
        .map(|thread| recording.add_thread(5000 + thread as u32, &name_of(thread)))
        .collect();
    for device in 0..DEVICES {
        recording.add_device(device as i32, Some((false, [device as u8 + 1; 16])), b"Imagined GPU");
        recording.add_context(0x5555_0000 + device, device as u8, false);
    }
    let mut memory = Memory {
        recording,
        segment_stack,
        next: [0x7f00_0000_0000, 0x7e00_0000_0000],
        room: [(0, 0); DEVICES as usize],
        live: [0; DEVICES as usize],
        reserved: [0; DEVICES as usize],
        made: 0,
    };
    while memory.made < allocations {
        let nth = random.next() % stacks.len() as u64;
        // The stack determines what is allocated; a few threads of a pool use the same stack.
        let thread = threads[((nth + random.next() % 3) % THREADS) as usize];
        memory.one(nth, stacks[nth as usize], thread, &mut random);
    }
    memory.churn(events, &stacks, &threads, &mut random);
    if let Ok(how) = std::env::var("STAY") {
        stay(&mut memory, stacks[0], threads[0], how == "busy");
    }
    recording.end();
}

/// Runs until standard input ends.
fn stay(memory: &mut Memory, stack: u32, thread: u32, busy: bool) {
    println!("{}", std::process::id());
    let waiting = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    while !waiting.is_finished() {
        if busy {
            let address = memory.plain(Kind::Device, Api::of("cuMemAlloc_v2"), 0, 512, stack, thread);
            let space = Space::Pointer;
            if let Some(withdrawn) = memory.recording.withdraw(Key { space, address }, thread) {
                memory.recording.commit(withdrawn, thread);
            }
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

fn create(path: &str) -> &'static Recording {
    let name = CString::new(path).expect("a path");
    let stays = std::env::var_os("STAY").is_some();
    let pid = std::process::id();
    let here = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let beginning = Session {
        pid,
        parent_pid: 1,
        depth: 128,
        pid_namespace: 0,
        time_namespace: 0,
        process_start_ticks: if stays {
            culeak::proc::start_ticks(pid).unwrap_or(0)
        } else {
            0
        },
        executable: b"/opt/imagined/python3",
        command_line: b"python3\0train.py\0",
        host: if stays { here.trim_end().as_bytes() } else { b"imagined" },
        ranks: [None; RANK_VARIABLES.len()],
    };
    Recording::create(&name, &beginning).unwrap_or_else(|error| panic!("{path}: no recording: {error:?}"))
}

fn name_of(thread: u64) -> [u8; 16] {
    let mut name = [0; 16];
    let text = format!("worker-{thread}");
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
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

/// Where a frame can be.
#[derive(Clone, Copy)]
enum Place {
    Native(Option<u32>, u64),
    /// A code and the offset of an instruction in it.
    Python(u32, u32),
}

impl Place {
    fn frame(self, recording: &Recording, parent: u32) -> u32 {
        let frame = match self {
            Place::Native(module, address) => recording.frame(parent, module, address),
            Place::Python(code, offset) => recording.python_frame(parent, code, offset),
        };
        frame.expect("room for a frame")
    }
}

fn places(recording: &Recording, modules: &[String], random: &mut Random) -> Vec<Place> {
    let mut places = Vec::new();
    let files: Vec<(Option<u32>, Elf)> = if modules.is_empty() {
        let imagined = (0..20).map(|nth| Elf {
            path: format!("/opt/imagined/lib{nth}.so"),
            build_id: vec![nth; 20],
            text: (0x1000, 40 << 20),
        });
        imagined.map(|elf| (elf.add(recording), elf)).collect()
    } else {
        let elves = modules.iter().map(|path| Elf::read(path));
        elves.map(|elf| (elf.add(recording), elf)).collect()
    };
    let native = if modules.is_empty() { PLACES / 2 } else { PLACES };
    for nth in 0..native {
        let (module, elf) = &files[nth as usize % files.len()];
        places.push(Place::Native(*module, elf.text.0 + random.next() % elf.text.1));
    }
    for nth in 0..PLACES / 20 {
        let seen = || CodeSeen {
            file: format!("/home/me/project/part{}.py", nth % 50).leak().as_bytes(),
            function: format!("Part{nth}.forward").leak().as_bytes(),
            first_line: 10 * nth as u32 + 1,
            line_table: Some(LINES),
            minor: 12,
        };
        let code = recording.code(nth + 1, || Some(seen())).expect("room for a code");
        places.extend((0..10).map(|line| Place::Python(code, 2 * line)));
    }
    places
}

/// One instruction per line, ten lines, as Python 3.12 encodes it.
const LINES: &[u8] = &[
    0x80 | 13 << 3,
    2,
    0x80 | 13 << 3,
    2,
    0x80 | 13 << 3,
    2,
    0x80 | 13 << 3,
    2,
    0x80 | 13 << 3,
    2,
    0x80 | 13 << 3,
    2,
    0x80 | 13 << 3,
    2,
    0x80 | 13 << 3,
    2,
    0x80 | 13 << 3,
    2,
    0x80 | 13 << 3,
    2,
];

/// Each new stack branches off an earlier one at a random frame.
fn make_stacks(recording: &Recording, count: u64, places: &[Place], random: &mut Random) -> Vec<u32> {
    let mut chains: Vec<Vec<u32>> = Vec::new();
    let mut leaves = Vec::new();
    while (leaves.len() as u64) < count {
        let depth = 20 + (random.next() % 21) as usize;
        let mut chain = match chains.len() as u64 {
            0 => Vec::new(),
            known => {
                let other = &chains[(random.next() % known) as usize];
                let shared = (random.next() % (other.len() as u64 - 2)) as usize + 2;
                other[..shared.min(depth - 1)].to_vec()
            }
        };
        while chain.len() < depth {
            let place = places[(random.next() % places.len() as u64) as usize];
            chain.push(place.frame(recording, chain.last().copied().unwrap_or(ROOT)));
        }
        leaves.extend(chain.last());
        chains.push(chain);
    }
    leaves
}

/// The same stack, continued into PyTorch's allocator.
fn caching_stack(recording: &Recording, caller: u32) -> u32 {
    let library = recording.add_module(&ModuleSeen {
        path: b"/opt/imagined/torch/lib/libc10_cuda.so",
        build_id: &[0xc1; 20],
        bias: 0x6000_0000_0000,
        start: 0x6000_0000_0000,
        end: 0x6000_0100_0000,
    });
    recording.frame(caller, library, 0x1234).expect("room for a frame")
}

struct Memory {
    recording: &'static Recording,
    segment_stack: u32,
    /// The next unused address.
    next: [u64; DEVICES as usize],
    /// The unused rest of the segment from which tensors are allocated.
    room: [(u64, u64); DEVICES as usize],
    live: [i64; DEVICES as usize],
    reserved: [u64; DEVICES as usize],
    made: u64,
}

impl Memory {
    fn one(&mut self, nth: u64, stack: u32, thread: u32, random: &mut Random) {
        let device = (nth / 20 % DEVICES) as u8;
        let size = 256 << (random.next() % 8);
        match nth % 20 {
            0..12 => self.tensor(device, stack, thread, random),
            12..16 => {
                self.plain(Kind::Device, Api::of("cuMemAlloc_v2"), device, size, stack, thread);
            }
            16..18 => {
                self.plain(Kind::Async, Api::of("cuMemAllocAsync"), device, size, stack, thread);
            }
            18 => {
                self.plain(Kind::HostPinned, Api::of("cuMemHostAlloc"), device, size, stack, thread);
            }
            _ => {
                self.plain(Kind::Managed, Api::of("cuMemAllocManaged"), device, size, stack, thread);
            }
        }
    }

    /// Frees and allocates tensors at the addresses of one segment.
    fn churn(&mut self, events: u64, stacks: &[u32], threads: &[u32], random: &mut Random) {
        const LIVE: u64 = 1000;
        if events == 0 {
            return;
        }
        let segment = self.plain(
            Kind::Device,
            Api::of("cudaMalloc"),
            0,
            SEGMENT,
            self.segment_stack,
            threads[0],
        );
        let mut live = vec![false; LIVE as usize];
        for _ in 0..events {
            let slot = random.next() % LIVE;
            let address = segment + slot * 16 * TENSOR;
            let thread = threads[(slot % THREADS) as usize];
            if std::mem::replace(&mut live[slot as usize], false) {
                let key = Key {
                    space: Space::Tensor,
                    address,
                };
                if let Some(withdrawn) = self.recording.withdraw(key, thread) {
                    self.recording.commit(withdrawn, thread);
                }
                continue;
            }
            live[slot as usize] = true;
            // A call site allocates blocks of one size.
            let nth = random.next() % stacks.len() as u64;
            let api = Api::of("CUDACachingAllocator");
            let stack = stacks[nth as usize];
            self.record(
                Kind::Tensor,
                Space::Tensor,
                api,
                address,
                0,
                TENSOR << (nth % 4),
                stack,
                thread,
            );
        }
    }

    fn plain(&mut self, kind: Kind, api: Api, device: u8, bytes: u64, stack: u32, thread: u32) -> u64 {
        let next = &mut self.next[device as usize];
        let address = *next;
        *next += bytes.next_multiple_of(512);
        self.record(kind, Space::Pointer, api, address, device, bytes, stack, thread);
        address
    }

    fn tensor(&mut self, device: u8, stack: u32, thread: u32, random: &mut Random) {
        let index = device as usize;
        let bytes = TENSOR << (random.next() % 4);
        if self.room[index].1 < bytes {
            let segment = self.plain(
                Kind::Device,
                Api::of("cudaMalloc"),
                device,
                SEGMENT,
                self.segment_stack,
                thread,
            );
            self.room[index] = (segment, SEGMENT);
            self.reserved[index] += SEGMENT;
        }
        let (address, left) = self.room[index];
        // Some blocks are free, so that segments are partly used.
        let gap = TENSOR * u64::from(random.next().is_multiple_of(8) && left > bytes + TENSOR);
        self.room[index] = (address + gap + bytes, left - gap - bytes);
        self.record(
            Kind::Tensor,
            Space::Tensor,
            Api::of("CUDACachingAllocator"),
            address + gap,
            device,
            bytes,
            stack,
            thread,
        );
        self.live[index] += bytes as i64;
        self.recording
            .allocator_reported(device, bytes as i64, self.live[index] as u64, self.reserved[index]);
    }

    #[allow(clippy::too_many_arguments)]
    fn record(
        &mut self,
        kind: Kind,
        space: Space,
        api: Api,
        address: u64,
        device: u8,
        bytes: u64,
        stack: u32,
        thread: u32,
    ) {
        let ordered = kind == Kind::Async;
        let entry = Entry {
            bytes,
            requested: bytes,
            time_ns: self.recording.now(),
            extra: if ordered { 0x1000 * u64::from(1 + thread % 8) } else { 0 },
            pool: 0,
            stack,
            thread,
            attributes: Attributes {
                kind,
                space,
                flags: if ordered { Attributes::HAS_STREAM } else { 0 },
                device,
                api: api.0,
                context: device.into(),
                raised: 0,
            },
        };
        assert!(
            self.recording.allocated(Key { space, address }, &entry),
            "no room: is the disk full?"
        );
        self.made += 1;
    }
}

/// The properties of an ELF file that a module's record contains.
struct Elf {
    path: String,
    build_id: Vec<u8>,
    /// Begin and length of its code, as addresses in the file.
    text: (u64, u64),
}

impl Elf {
    fn add(&self, recording: &Recording) -> Option<u32> {
        // Any address will do, as long as no other module is there.
        let bias = self.path.bytes().fold(0x5000_0000_0000, |sum: u64, byte| {
            sum.wrapping_mul(31).wrapping_add(byte.into()) & 0x7fff_0000_0000
        });
        recording.add_module(&ModuleSeen {
            path: self.path.as_bytes(),
            build_id: &self.build_id,
            bias,
            start: bias,
            end: bias + self.text.0 + self.text.1,
        })
    }

    fn read(path: &str) -> Elf {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let number = |at: usize, size: usize| {
            let mut eight = [0; 8];
            eight[..size].copy_from_slice(&bytes[at..at + size]);
            u64::from_le_bytes(eight) as usize
        };
        assert!(bytes.starts_with(b"\x7fELF\x02\x01"), "{path}: no 64-bit ELF file");
        let mut elf = Elf {
            path: path.to_owned(),
            build_id: Vec::new(),
            text: (0, 1),
        };
        let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
        for header in (0..count).map(|nth| table + nth * size) {
            let (kind, flags) = (number(header, 4), number(header + 4, 4));
            let (offset, address, length) = (number(header + 8, 8), number(header + 16, 8), number(header + 32, 8));
            const LOAD: usize = 1;
            const NOTE: usize = 4;
            const EXECUTABLE: usize = 1;
            if kind == LOAD && flags & EXECUTABLE != 0 {
                elf.text = (address as u64, length as u64);
            }
            let mut note = offset;
            while kind == NOTE && note + 16 <= offset + length {
                let (name, length, what) = (number(note, 4), number(note + 4, 4), number(note + 8, 4));
                let content = note + 12 + name.next_multiple_of(4);
                if what == 3 && &bytes[note + 12..note + 16] == b"GNU\0" {
                    elf.build_id = bytes[content..content + length].to_vec();
                }
                note = content + length.next_multiple_of(4);
            }
        }
        elf
    }
}
