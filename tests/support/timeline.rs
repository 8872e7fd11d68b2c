//! Hand-made timelines for tests: a training program on PyTorch that frees most of what it allocates.

use culeak::analysis::lives::Logged;
use culeak::kind::Kind;
use culeak::point::Point;
use culeak::snapshot::{Allocation, Mark, Phase, Snapshot};
use culeak::timeline::{Event, Op, Site, Timeline};

use super::sample::{MAIN, MIB, Sample};

pub const SECOND: u64 = 1_000_000_000;

/// A program as it runs: events, and what is live.
pub struct Running {
    sample: Sample,
    pub sites: Vec<Site>,
    pub events: Vec<Event>,
    /// Address, site, bytes, time.
    live: Vec<(u64, u32, u64, u64)>,
    pub now_ns: u64,
}

impl Running {
    pub fn new() -> Running {
        Running {
            sample: Sample::new(),
            sites: Vec::new(),
            events: Vec::new(),
            live: Vec::new(),
            now_ns: 0,
        }
    }

    /// A call site with a stack of its own.
    pub fn site(&mut self, kind: Kind, function: &str) -> u32 {
        let library = ("", "", "/venv/torch/lib/libc10_cuda.so");
        let line = (function, "/src/train.cu:212", "/opt/app");
        let caching = (
            "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_block(int)",
            "",
            "/venv/torch/lib/libc10_cuda.so",
        );
        let stack = match kind {
            Kind::Tensor => self.sample.stack(&[library, line, MAIN]),
            Kind::Mapping | Kind::Physical => self.sample.stack(&[caching, line, MAIN]),
            Kind::Device if function == "segment" => self.sample.stack(&[caching, line, MAIN]),
            _ => self.sample.stack(&[line, MAIN]),
        };
        self.sites.push(Site {
            stack: Some(stack),
            kind,
            device: (kind != Kind::HostPinned).then_some(0),
            domain: (kind == Kind::Tensor).then(|| "pytorch".to_owned()),
            api: "cudaMalloc".to_owned(),
        });
        self.sites.len() as u32 - 1
    }

    pub fn allocate(&mut self, site: u32, address: u64, bytes: u64) {
        self.now_ns += SECOND / 10;
        self.live.push((address, site, bytes, self.now_ns));
        self.event(Op::Allocated, site, address, bytes, 0);
    }

    pub fn free(&mut self, site: u32, address: u64) {
        self.now_ns += SECOND / 10;
        let found = self.live.iter().position(|live| (live.0, live.1) == (address, site));
        let (_, _, bytes, since) = self.live.remove(found.expect("a live block"));
        self.event(Op::Freed, site, address, bytes, self.now_ns - since);
    }

    fn event(&mut self, op: Op, site: u32, address: u64, bytes: u64, lifetime_ns: u64) {
        let holds = self.sites[site as usize].kind != Kind::Mapping;
        self.events.push(Event {
            time_ns: self.now_ns,
            op,
            address,
            bytes: if holds { bytes } else { 0 },
            site,
            lifetime_ns,
            thread: (op == Op::Allocated).then_some(0),
        });
    }

    pub fn mark(&mut self, name: &str) {
        self.sample.0.marks.push(Mark {
            time_ns: self.now_ns,
            name: name.to_owned(),
            thread: 0,
        });
    }

    pub fn phase(&mut self, name: &str, begin_ns: u64, parent: Option<usize>) -> usize {
        self.sample.0.phases.push(Phase {
            name: name.to_owned(),
            domain: None,
            thread: 0,
            begin_ns,
            end_ns: Some(self.now_ns),
            parent,
        });
        self.sample.0.phases.len() - 1
    }

    pub fn fails(&mut self, bytes: u64) {
        self.sample.fails(bytes, 2, 0);
        let failed = self.sample.0.failed.last_mut().expect("a failed request");
        (failed.first_ns, failed.last_ns) = (self.now_ns, self.now_ns);
    }

    /// The final state and the log without its first events.
    pub fn finish(mut self, lacking: usize) -> (Snapshot, Logged) {
        for &(address, site, bytes, time_ns) in &self.live {
            let site = &self.sites[site as usize];
            let call = site.call(0);
            let holds = site.kind != Kind::Mapping;
            self.sample.0.allocations.push(Allocation {
                address,
                bytes: if holds { bytes } else { 0 },
                requested: bytes,
                time_ns,
                stack: site.stack,
                call: &call,
            });
        }
        let since = lacking.checked_sub(1).map_or(0, |last| self.events[last].time_ns);
        let until = self.now_ns + SECOND / 10;
        let mut snapshot = self.sample.finish(0, 0);
        snapshot.taken.at_ns = until;
        snapshot.taken.point = None::<Point>;
        // Tensors were recorded, even if none is live.
        if self.sites.iter().any(|site| site.kind == Kind::Tensor)
            && let Some(counter) = snapshot.counters.first().cloned()
        {
            snapshot.counters.push(culeak::snapshot::Counter {
                kind: Kind::Tensor,
                total_count: 1,
                live_bytes: 0,
                live_count: 0,
                ..counter
            });
        }
        let events = self.events.split_off(lacking);
        let logged = Logged {
            timeline: Timeline::new(since, until, self.sites, events),
            last: snapshot.allocations.clone(),
        };
        (snapshot, logged)
    }
}

/// Two segments with tensors, memory of the program itself, a mark, phases and a failed request.
pub fn training_over_time() -> Running {
    let mut program = Running::new();
    let segment = program.site(Kind::Device, "segment");
    let weights = program.site(Kind::Tensor, "load_weights");
    let activation = program.site(Kind::Tensor, "forward");
    let own = program.site(Kind::Device, "make_table");
    let base = 0x7f00_0000_0000;
    program.allocate(own, 0x7e00_0000_0000, 3 * MIB);
    program.allocate(segment, base, 20 * MIB);
    program.allocate(weights, base, 8 * MIB);
    program.mark("loaded");
    let begin = program.now_ns;
    for step in 0..10 {
        let from = program.now_ns;
        program.allocate(activation, base + 8 * MIB, 2 * MIB);
        program.allocate(activation, base + 10 * MIB, 4 * MIB);
        if step == 5 {
            program.allocate(segment, base + 64 * MIB, 40 * MIB);
            program.allocate(activation, base + 64 * MIB, 30 * MIB);
            program.fails(1 << 40);
            program.free(activation, base + 64 * MIB);
            program.free(segment, base + 64 * MIB);
        }
        program.free(activation, base + 8 * MIB);
        program.free(activation, base + 10 * MIB);
        if step == 0 {
            program.phase("epoch", begin, None);
        }
        program.phase("step", from, Some(0));
    }
    let end = program.now_ns;
    program.sample.0.phases[0].end_ns = Some(end);
    program.allocate(activation, base + 8 * MIB, MIB);
    program
}
