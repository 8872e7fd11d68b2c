//! Random scripts.

use super::{Line, Script};
use crate::support::random::Random;

mod groups;

/// Lines that were generated, by what their value is.
#[derive(Default)]
struct Made {
    all: Vec<(&'static str, u64)>,
}

impl Made {
    fn add(&mut self, what: &'static str, id: u64) {
        self.all.push((what, id));
    }

    /// One of these, mostly a late one; 0: there is none.
    fn one(&self, what: &[&str], random: &Random) -> i64 {
        let fitting: Vec<u64> = self
            .all
            .iter()
            .filter(|(of, _)| what.contains(of))
            .map(|(_, id)| *id)
            .collect();
        let late = if random.one_in(4) {
            fitting.len()
        } else {
            fitting.len().min(6)
        };
        match fitting.len() {
            0 => 0,
            count => fitting[count - 1 - random.below(late)] as i64,
        }
    }

    /// As `one`; mostly it is not returned again.
    fn last_use(&mut self, what: &[&str], random: &Random) -> i64 {
        let id = self.one(what, random);
        if !random.one_in(12) {
            self.all.retain(|(_, other)| *other as i64 != id);
        }
        id
    }
}

const KIB: i64 = 1 << 10;
const GRANULE: i64 = 2 << 20;

/// A random script of about this many lines.
pub fn random(seed: u64, lines: usize) -> Script {
    let random = &Random::new(seed);
    let mut writer = Writer {
        script: Script::default(),
        made: Made::default(),
        next: 1,
        threads: [1, 1, 2, 4][random.below(4)],
        // What a program does: few of the groups below, or all.
        groups: (0..GROUPS.len())
            .map(|_| random.below(2) * 2 + usize::from(random.one_in(3)))
            .collect(),
        captures: Vec::new(),
    };
    writer.settings(random);
    writer.line(random, 0, "primary", "", &[0]);
    for thread in 1..writer.threads {
        writer.on(random, thread, "primary", "", &[0]);
    }
    while writer.script.lines.len() < lines {
        writer.step(random);
    }
    writer.script
}

/// A random script's parts, by what they are about.
const GROUPS: [fn(&mut Writer, &Random); 10] = [
    Writer::linear,
    Writer::host,
    Writer::streams,
    Writer::arrays,
    Writer::virtual_memory,
    Writer::graphs,
    Writer::contexts,
    Writer::client,
    Writer::points,
    Writer::objects,
];

struct Writer {
    script: Script,
    made: Made,
    next: u64,
    threads: usize,
    groups: Vec<usize>,
    captures: Vec<(i64, usize)>,
}

impl Writer {
    fn settings(&mut self, random: &Random) {
        let mut set = |name: &str, value: String| self.script.environment.push((name.to_owned(), value));
        if random.one_in(4) {
            // So little that requests fail.
            set("CULEAK_FAKE_BYTES", (16 << 20).to_string());
        }
        if random.one_in(3) {
            let functions = [
                "cuMemAlloc_v2",
                "cuMemFree_v2",
                "cuMemFreeAsync",
                "cuMemHostAlloc",
                "cuMemFreeHost",
                "cuMemAllocAsync",
                "cuMemRelease",
                "cuMemUnmap",
                "cuMemMap",
                "cuArrayDestroy",
                "cuMemPoolDestroy",
                "cuStreamDestroy_v2",
                "cuCtxDestroy_v2",
                "cuGraphLaunch",
                "cuGraphExecDestroy",
                "cuMemAddressFree",
                "cuMemHostUnregister",
                "cuMemCreate",
                "cuArrayCreate_v2",
                "cuGraphDestroy",
                "cuDevicePrimaryCtxReset_v2",
                "cuDestroyExternalMemory",
                "cuEventDestroy_v2",
            ];
            let failure = |random: &Random| {
                let error = [1, 2, 700, 999][random.below(4)];
                format!(
                    "{}:{}:{error}",
                    functions[random.below(functions.len())],
                    1 + random.below(5)
                )
            };
            let failures: Vec<String> = (0..1 + random.below(4)).map(|_| failure(random)).collect();
            set("CULEAK_FAKE_FAIL", failures.join(","));
        }
    }

    fn on(&mut self, random: &Random, thread: usize, verb: &str, name: &str, arguments: &[i64]) -> u64 {
        let id = self.next;
        self.next += 1;
        self.script.lines.push(Line {
            id,
            thread: thread as u64,
            site: random.below(12) as u64,
            verb: verb.to_owned(),
            name: name.to_owned(),
            arguments: arguments.to_vec(),
        });
        id
    }

    fn line(&mut self, random: &Random, thread: usize, verb: &str, name: &str, arguments: &[i64]) -> u64 {
        self.on(random, thread, verb, name, arguments)
    }

    /// A line on any thread.
    fn add(&mut self, random: &Random, verb: &str, arguments: &[i64]) -> u64 {
        let thread = random.below(self.threads);
        self.on(random, thread, verb, "", arguments)
    }

    fn named(&mut self, random: &Random, verb: &str, name: &str, arguments: &[i64]) -> u64 {
        let thread = random.below(self.threads);
        self.on(random, thread, verb, name, arguments)
    }

    fn step(&mut self, random: &Random) {
        let all: usize = self.groups.iter().sum::<usize>() + 2;
        let mut chosen = random.below(all);
        for (group, weight) in GROUPS.iter().zip(self.groups.clone()) {
            if chosen < weight {
                return group(self, random);
            }
            chosen -= weight;
        }
        match random.below(60) {
            0 => self.children(random),
            2 if random.one_in(3) => {
                self.add(random, "quit", &[random.below(3) as i64]);
            }
            1 if self.threads > 1 => {
                let thread = 1 + random.below(self.threads - 1);
                self.on(random, thread, "ends", "", &[]);
                self.on(random, thread, "primary", "", &[0]);
            }
            _ => self.linear(random),
        }
    }

    fn size(random: &Random) -> i64 {
        match random.below(12) {
            0 => 0,
            1 => 1 << 40,
            2 => 1,
            3..6 => [512, 513, 4096, 65536, 1 << 20][random.below(5)],
            _ => 1 + random.below(200_000) as i64,
        }
    }

    fn children(&mut self, random: &Random) {
        let verb = if random.one_in(2) { "fork" } else { "spawn" };
        let exported: Vec<i64> = (0..random.below(4))
            .map(|_| {
                let address = self.made.one(&["device"], random);
                self.on(random, 0, "export", "", &[address]) as i64
            })
            .collect();
        self.on(random, 0, verb, "", &[]);
        // A forked child has the addresses of its parent.
        let before = match verb {
            "fork" => Made {
                all: self.made.all.clone(),
            },
            _ => std::mem::take(&mut self.made),
        };
        let (threads, groups) = (std::mem::replace(&mut self.threads, 1), self.groups.clone());
        if verb == "spawn" {
            self.on(random, 0, "primary", "", &[0]);
        }
        for _ in 0..random.below(40) {
            match exported.len() {
                count if count > 0 && random.one_in(4) => {
                    let id = self.on(random, 0, "open", "", &[exported[random.below(count)]]);
                    self.made.add("opened", id);
                }
                count if count > 0 && random.one_in(6) => {
                    let address = self.made.last_use(&["opened"], random);
                    self.on(random, 0, "close", "", &[address]);
                }
                _ => GROUPS[random.below(GROUPS.len())](self, random),
            }
        }
        if random.one_in(3) {
            self.on(random, 0, "quit", "", &[random.below(3) as i64]);
        }
        (self.made, self.threads, self.groups) = (before, threads, groups);
        self.on(random, 0, "done", "", &[]);
    }
}
