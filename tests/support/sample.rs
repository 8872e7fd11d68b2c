//! Hand-made snapshots for tests, here and in the CLI.

#![allow(dead_code, unused_imports)]

#[path = "sample/scenes.rs"]
mod scenes;

use std::collections::BTreeMap;

use culeak::kind::Kind;
use culeak::snapshot::*;
pub use scenes::*;

/// One frame as (function, place, module): `("Trainer::step", "/src/train.cu:212", "/opt/app")`; an empty text is
/// unknown.
pub type FrameText<'a> = (&'a str, &'a str, &'a str);

/// The module of a Python line, which has none: `("step", "/src/train.py:212", PYTHON)`.
pub const PYTHON: &str = "(python)";

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000_000;

/// The innermost frame in a program with the shared runtime.
pub const RUNTIME: FrameText = ("", "", "/usr/local/cuda/lib64/libcudart.so.13");
pub const MAIN: FrameText = ("main", "/src/main.cu:12", "/opt/app");
pub const LIBCUDA: &str = "/usr/lib/x86_64-linux-gnu/libcuda.so.1";
pub const START: FrameText = ("__libc_start_call_main", "", "/usr/lib/libc.so.6");

pub struct Sample(pub Snapshot);

impl Sample {
    /// A process on one GPU that ran 60 s, allocated nothing, and exited.
    pub fn new() -> Sample {
        Sample(Snapshot {
            taken: Capture {
                by: "0.1.0".to_owned(),
                at_unix_ns: 1_800_000_060 * SECOND,
                at_ns: 60 * SECOND,
                ..Capture::default()
            },
            process: Process {
                pid: 4711,
                parent_pid: 4700,
                executable: "/opt/app".to_owned(),
                command_line: vec!["/opt/app".to_owned(), "--epochs".to_owned(), "3".to_owned()],
                host: "node7".to_owned(),
                started_unix_ns: 1_800_000_000 * SECOND,
                state: ProcessState::Exited,
                depth: 128,
                recording: "/tmp/app.node7.4711.culeak".to_owned(),
                ..Process::default()
            },
            devices: vec![Device {
                ordinal: 0,
                uuid: "GPU-0000".to_owned(),
                name: "NVIDIA H200".to_owned(),
            }],
            contexts: vec![Context {
                handle: 0x5555_0000,
                device: Some(0),
                primary: true,
                first_seen_ns: SECOND,
                destroyed_ns: None,
                heap_limit: None,
            }],
            threads: vec![Thread {
                tid: 4711,
                name: "app".to_owned(),
                first_seen_ns: SECOND,
            }],
            ..Snapshot::empty()
        })
    }

    /// The process is alive, so its memory is held and not leaked.
    pub fn running(mut self) -> Sample {
        self.0.process.state = ProcessState::Running;
        self
    }

    /// The stacks of this many call sites: `site_0`, `site_1` …
    pub fn sites(&mut self, count: usize) -> Vec<usize> {
        let site = |nth| {
            let (function, place) = (format!("site_{nth}"), format!("/src/app.cu:{}", 10 + nth));
            self.stack(&[RUNTIME, (&function, &place, "/opt/app"), MAIN])
        };
        (0..count).map(site).collect()
    }

    /// A stack of these frames, innermost first.
    pub fn stack(&mut self, frames: &[FrameText]) -> usize {
        let frames = frames.iter().map(|frame| self.location(*frame)).collect();
        self.0.stacks.push(Stack {
            frames,
            truncated: false,
        });
        self.0.stacks.len() - 1
    }

    fn location(&mut self, (function, place, module): FrameText) -> usize {
        let language = if module == PYTHON {
            Language::Python
        } else {
            Language::Native
        };
        let module = (!module.is_empty() && module != PYTHON).then(|| self.module(module));
        let (file, line) = match place.rsplit_once(':') {
            Some((file, line)) => (Some(file.to_owned()), line.parse().ok()),
            None => (None, None),
        };
        let symbol = Symbol {
            function: function.to_owned(),
            file,
            line,
            inlined: false,
        };
        let symbols = if function.is_empty() { Vec::new() } else { vec![symbol] };
        // The address distinguishes frames without a name; it must not matter for others.
        let address = if symbols.is_empty() {
            0x1234
        } else {
            0x1000 + self.0.locations.len() as u64
        };
        self.0.locations.push(Location {
            module,
            address,
            symbols,
            language,
        });
        self.0.locations.len() - 1
    }

    fn module(&mut self, path: &str) -> usize {
        let known = self.0.modules.iter().position(|module| module.path == path);
        known.unwrap_or_else(|| {
            let bias = 0x7f00_0000_0000 + 0x100_0000 * self.0.modules.len() as u64;
            self.0.modules.push(Module {
                path: path.to_owned(),
                build_id: "0123456789abcdef".to_owned(),
                bias,
                start: bias,
                end: bias + 0x10_0000,
                first_seen_ns: 0,
                unloaded_ns: None,
                bare: false,
            });
            self.0.modules.len() - 1
        })
    }

    /// `count` live records of one stack, made one second apart from second 10 on.
    pub fn holds(&mut self, kind: Kind, api: &str, bytes: u64, count: u64, stack: usize) -> &mut Sample {
        for nth in 0..count {
            let number = self.0.allocations.len() as u64 + 1;
            let physical = kind.place() != culeak::kind::Place::Nowhere;
            let call = Call {
                context: Some(0),
                stream: (kind == Kind::Async).then_some(Stream::LegacyDefault),
                ..Call::new(kind, api, kind.place().on_device().then_some(0), 0)
            };
            self.0.allocations.push(Allocation {
                address: 0x7f5a_0000_0000 + number * 0x1000_0000,
                bytes: if physical { bytes } else { 0 },
                requested: bytes,
                time_ns: (10 + nth % 50) * SECOND,
                stack: Some(stack),
                call: &call,
            });
        }
        self
    }

    /// `count` live objects of one stack, made one second apart from second 10 on.
    pub fn makes(&mut self, kind: Kind, api: &str, count: u64, stack: usize) -> &mut Sample {
        for nth in 0..count {
            let call = Call {
                kind,
                domain: None,
                api: api.to_owned(),
                device: Some(0),
                context: Some(0),
                stream: None,
                pool: None,
                thread: 0,
                sample_bytes: None,
                references: 0,
                mappings: 0,
                nodes: (kind == Kind::GraphExec).then_some(48 + nth % 5),
                shared: None,
                kernel: (kind == Kind::Module).then(|| format!("kernel_{}", nth % 2)),
            };
            self.0.objects.push(Allocation {
                address: 0x5555_1000_0000 + (self.0.objects.len() as u64 + 1) * 0x100,
                bytes: 0,
                requested: 0,
                time_ns: (10 + nth % 50) * SECOND,
                stack: Some(stack),
                call: &call,
            });
        }
        self.0.objects_known = true;
        self
    }

    /// Memory that the kernel driver gave, or objects, from one stack.
    pub fn adds(&mut self, kind: Kind, sizes: &[u64], stack: usize) -> &mut Sample {
        self.holds(kind, "NV_ESC_RM_ALLOC", 0, 1, stack);
        let mut call = self.0.allocations.at(self.0.allocations.len() - 1).call.clone();
        self.0.allocations.truncate(self.0.allocations.len() - 1);
        (call.device, call.context) = (Some(0), None);
        let is_object = kind.place() == culeak::kind::Place::Object;
        let table = if is_object {
            &mut self.0.objects
        } else {
            &mut self.0.segments
        };
        for &bytes in sizes {
            table.push(Allocation {
                address: table.len() as u64 + 1,
                bytes,
                requested: bytes,
                time_ns: SECOND + table.len() as u64,
                stack: Some(stack),
                call: &call,
            });
        }
        self
    }

    /// Segments that this function of the driver took, called from these frames.
    pub fn takes(&mut self, function: &str, callers: &[FrameText], sizes: &[u64]) -> &mut Sample {
        let mut frames = vec![("", "", LIBCUDA), ("", "", LIBCUDA), (function, "", LIBCUDA)];
        frames.extend(callers);
        let stack = self.stack(&frames);
        self.adds(Kind::Segment, sizes, stack)
    }

    /// The segments of a context as measured, without or with its pool for local memory.
    pub fn takes_context(&mut self, caller: FrameText, local: Option<u64>) -> &mut Sample {
        let mut sizes = vec![6 * MIB];
        sizes.extend([2 * MIB; 14]);
        sizes.push(70 * MIB);
        sizes.extend(local);
        self.takes("cuDevicePrimaryCtxRetain", &[RUNTIME, caller], &sizes)
    }

    /// Objects of a kind, and a counter with those that were destroyed.
    pub fn has_objects(&mut self, kind: Kind, live: usize, destroyed: u64, stack: usize) -> &mut Sample {
        self.adds(kind, &vec![0; live], stack);
        self.0.object_counters.push(Counter {
            device: Some(0),
            kind,
            live_bytes: 0,
            live_count: live as u64,
            peak_bytes: 0,
            peak_ns: 0,
            total_bytes: 0,
            total_count: live as u64 + destroyed,
            freed_count: destroyed,
            failed_count: 0,
        });
        self
    }

    /// The driver's figures.
    pub fn uses(&mut self, used: u64, process: Option<u64>, others: Option<OtherProcesses>) -> &mut Sample {
        self.0.usage = Some(Usage {
            source: "NVML 580.65.06".to_owned(),
            devices: vec![DeviceUsage {
                device: 0,
                total_bytes: 140 * GIB,
                used_bytes: used,
                limits: GroupLimits::default(),
                reserved_bytes: 615 * MIB,
                process_bytes: process,
                others,
            }],
            missing: None,
        });
        self
    }

    /// An allocation call that failed.
    pub fn fails(&mut self, bytes: u64, error: i32, stack: usize) -> &mut Sample {
        self.0.failed.push(Failed {
            bytes,
            count: 1,
            kind: Kind::Device,
            api: "cudaMalloc".to_owned(),
            device: Some(0),
            error,
            thread: 0,
            stack: Some(stack),
            stream: None,
            first_ns: 20 * SECOND,
            last_ns: 20 * SECOND,
        });
        self
    }

    /// Adds counters that match the rows, plus `freed` records that were freed.
    pub fn finish(mut self, peak: u64, freed: u64) -> Snapshot {
        let mut counters: BTreeMap<Kind, Counter> = BTreeMap::new();
        for allocation in &self.0.allocations {
            let counter = counters.entry(allocation.kind).or_insert(Counter {
                device: allocation.device,
                kind: allocation.kind,
                live_bytes: 0,
                live_count: 0,
                peak_bytes: 0,
                peak_ns: 0,
                total_bytes: 0,
                total_count: 0,
                freed_count: 0,
                failed_count: 0,
            });
            counter.live_bytes += allocation.bytes;
            counter.live_count += 1;
            counter.peak_bytes += allocation.bytes;
            counter.total_bytes += allocation.bytes;
            counter.total_count += 1;
        }
        let counter = counters.entry(Kind::Device).or_insert(Counter {
            device: Some(0),
            kind: Kind::Device,
            live_bytes: 0,
            live_count: 0,
            peak_bytes: 0,
            peak_ns: 0,
            total_bytes: 0,
            total_count: 0,
            freed_count: 0,
            failed_count: 0,
        });
        counter.total_count += freed;
        counter.freed_count += freed;
        counter.failed_count = self.0.failed.len() as u64;
        counter.peak_bytes = counter.peak_bytes.max(peak);
        self.0.counters = counters.into_values().collect();
        let mut made: BTreeMap<Kind, u64> = BTreeMap::new();
        for object in &self.0.objects {
            *made.entry(object.kind).or_default() += 1;
        }
        let of_kind = |(kind, live_count)| Counter {
            device: Some(0),
            kind,
            live_bytes: 0,
            live_count,
            peak_bytes: 0,
            peak_ns: 0,
            total_bytes: 0,
            total_count: live_count + freed,
            freed_count: freed,
            failed_count: 0,
        };
        self.0.object_counters = made.into_iter().map(of_kind).collect();
        self.0.device_peaks = if peak > 0 {
            vec![DevicePeak {
                device: 0,
                peak_bytes: peak,
                time_ns: SECOND,
            }]
        } else {
            Vec::new()
        };
        self.0.losses.events = self.0.allocations.len() as u64 + 2 * freed;
        self.0.losses.recorder_ns = self.0.losses.events * 500;
        self.0.validate().expect("a sample is valid");
        self.0
    }
}
