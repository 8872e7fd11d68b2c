//! Scripts that `victims/script.c` runs, its transcripts, and random scripts.

use std::fmt;
use std::str::FromStr;

use super::random::Random;

/// One line of a script.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    pub id: u64,
    pub thread: u64,
    pub site: u64,
    pub verb: String,
    /// A domain, a mark or a phase; stands before the other arguments.
    pub name: String,
    pub arguments: Vec<i64>,
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {} {}", self.id, self.thread, self.site, self.verb)?;
        if !self.name.is_empty() {
            write!(out, " {}", self.name)?;
        }
        self.arguments
            .iter()
            .try_for_each(|argument| write!(out, " {argument}"))
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Line, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [id, thread, site, verb, rest @ ..] = &words[..] else {
            return Err(format!("not a line of a script: {text}"));
        };
        let (name, numbers) = match rest.split_first() {
            Some((name, numbers)) if name.parse::<i64>().is_err() => (*name, numbers),
            _ => ("", rest),
        };
        let number = |word: &&str| word.parse().map_err(|_| format!("not a number: {word}"));
        Ok(Line {
            id: number(id)? as u64,
            thread: number(thread)? as u64,
            site: number(site)? as u64,
            verb: (*verb).to_owned(),
            name: name.to_owned(),
            arguments: numbers.iter().map(number).collect::<Result<_, _>>()?,
        })
    }
}

/// A script: the environment that it needs, and its lines.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// `CULEAK_FAKE_…`: failures and sizes.
    pub environment: Vec<(String, String)>,
    pub lines: Vec<Line>,
}

impl fmt::Display for Script {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            writeln!(out, "# {name}={value}")?;
        }
        self.lines.iter().try_for_each(|line| writeln!(out, "{line}"))
    }
}

impl FromStr for Script {
    type Err = String;

    fn from_str(text: &str) -> Result<Script, String> {
        let mut script = Script::default();
        for line in text.lines() {
            match line.strip_prefix('#') {
                Some(setting) => script.environment.extend(
                    setting
                        .trim()
                        .split_once('=')
                        .filter(|(name, _)| name.starts_with("CULEAK_"))
                        .map(|(name, value)| (name.to_owned(), value.to_owned())),
                ),
                None if line.trim().is_empty() => {}
                None => script.lines.push(line.parse()?),
            }
        }
        Ok(script)
    }
}

/// What the driver answered to a line.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    pub pid: u32,
    pub id: u64,
    pub result: i32,
    pub value: u64,
    pub detail: u64,
    /// The current context and device of the thread after the call.
    pub context: u64,
    pub device: Option<i32>,
    pub thread: u32,
}

impl Answer {
    pub fn all(transcript: &str) -> Vec<Answer> {
        let answer = |line: &str| -> Option<Answer> {
            let words: Vec<&str> = line.split_whitespace().collect();
            Some(Answer {
                pid: words.first()?.parse().ok()?,
                id: words.get(1)?.parse().ok()?,
                result: words.get(2)?.parse().ok()?,
                value: words.get(3)?.parse().ok()?,
                detail: words.get(4)?.parse().ok()?,
                context: words.get(5)?.parse().ok()?,
                device: words.get(6)?.parse().ok().filter(|device| *device >= 0),
                thread: words.get(7)?.parse().ok()?,
            })
        };
        transcript
            .lines()
            .map(|line| answer(line).unwrap_or_else(|| panic!("{line}")))
            .collect()
    }
}

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

    fn linear(&mut self, random: &Random) {
        match random.below(9) {
            0..4 => {
                let verb = if random.one_in(10) { "alloc32" } else { "alloc" };
                let id = self.add(random, verb, &[Writer::size(random).min(1 << 31)]);
                self.made.add("device", id);
            }
            4 => {
                let arguments = [
                    1 + random.below(3000) as i64,
                    random.below(60) as i64,
                    [4, 8, 16, 5][random.below(4)],
                ];
                let id = self.add(random, "pitch", &arguments);
                self.made.add("device", id);
            }
            5 => {
                let id = self.add(random, "managed", &[Writer::size(random)]);
                self.made.add("managed", id);
            }
            _ => {
                let address = self
                    .made
                    .last_use(&["device", "managed", "async", "node", "external_map"], random);
                let offset = if random.one_in(15) { 512 } else { 0 };
                self.add(
                    random,
                    if random.one_in(20) { "freehost" } else { "free" },
                    &[address, offset],
                );
            }
        }
    }

    fn host(&mut self, random: &Random) {
        match random.below(6) {
            0 | 1 => {
                let verb = if random.one_in(2) { "host" } else { "hostv2" };
                let size = Writer::size(random).min(1 << 24);
                let id = self.add(random, verb, &[size]);
                self.made.add("host", id);
            }
            2 | 3 => {
                let address = self.made.last_use(&["host"], random);
                self.add(random, "freehost", &[address]);
            }
            4 => {
                let arguments = [random.below(32) as i64 * 4096, (1 + random.below(4) as i64) * 4096];
                let id = self.add(random, "register", &arguments);
                self.made.add("registered", id);
            }
            _ => {
                let address = self.made.last_use(&["registered"], random);
                self.add(random, "unregister", &[address]);
            }
        }
    }

    fn stream(&mut self, random: &Random) -> i64 {
        if random.one_in(3) {
            0
        } else {
            self.made.one(&["stream"], random)
        }
    }

    fn streams(&mut self, random: &Random) {
        let stream = self.stream(random);
        match random.below(12) {
            0 => {
                let id = self.add(random, "stream", &[random.below(2) as i64]);
                self.made.add("stream", id);
            }
            1..4 => {
                let verb = if random.one_in(4) { "asyncptsz" } else { "async" };
                let id = self.add(random, verb, &[Writer::size(random), stream]);
                self.made.add("async", id);
            }
            4..6 => {
                let pool = self.made.one(&["pool"], random);
                if pool != 0 {
                    let id = self.add(random, "frompool", &[Writer::size(random), stream, pool]);
                    self.made.add("async", id);
                }
            }
            6..9 => {
                let address = self.made.last_use(&["async", "async", "node", "device"], random);
                self.add(random, "freeasync", &[address, stream]);
            }
            9 => {
                let id = self.add(random, "pool", &[random.below(2) as i64]);
                self.made.add("pool", id);
            }
            10 => {
                let pool = self.made.one(&["pool"], random);
                self.add(random, "setpool", &[random.below(2) as i64, pool]);
            }
            _ if random.one_in(2) => {
                let pool = self.made.last_use(&["pool"], random);
                self.add(random, "freepool", &[pool]);
            }
            _ if random.one_in(2) => {
                let pool = self.made.one(&["pool"], random);
                self.add(random, "trim", &[pool]);
            }
            _ => {
                let stream = self.made.last_use(&["stream"], random);
                self.add(random, "freestream", &[stream]);
            }
        }
    }

    fn arrays(&mut self, random: &Random) {
        let side = |random: &Random| 1 + random.below(80) as i64;
        match random.below(6) {
            0 => {
                let arguments = [side(random), side(random) - 1, [1, 2, 4][random.below(3)]];
                let id = self.add(random, "array", &arguments);
                self.made.add("array", id);
            }
            1 => {
                let arguments = [side(random), side(random), side(random) - 1];
                let id = self.add(random, "array3d", &arguments);
                self.made.add("array", id);
            }
            2 => {
                let arguments = [side(random), side(random), 1 + random.below(9) as i64];
                let id = self.add(random, "mipmap", &arguments);
                self.made.add("mipmap", id);
            }
            3 | 4 => {
                let array = self.made.last_use(&["array", "array", "mipmap"], random);
                self.add(random, "freearray", &[array]);
            }
            _ => {
                let array = self.made.last_use(&["mipmap", "mipmap", "array"], random);
                self.add(random, "freemipmap", &[array]);
            }
        }
    }

    fn virtual_memory(&mut self, random: &Random) {
        let granules = |random: &Random| (1 + random.below(4) as i64) * GRANULE;
        let offset = |random: &Random| random.below(4) as i64 * GRANULE;
        match random.below(16) {
            0 => {
                let id = self.add(random, "reserve", &[8 * GRANULE]);
                self.made.add("range", id);
            }
            1..4 => {
                let place = if random.one_in(5) { 2 } else { 1 };
                let arguments = [granules(random), place, random.below(2) as i64];
                let id = self.add(random, "physical", &arguments);
                self.made.add("physical", id);
            }
            4..8 => {
                let (range, physical) = (
                    self.made.one(&["range"], random),
                    self.made.one(&["physical", "multicast"], random),
                );
                let arguments = [range, offset(random), [1, 1, 2][random.below(3)] * GRANULE, physical];
                self.add(random, "map", &arguments);
            }
            8..10 => {
                let arguments = [self.made.one(&["range"], random), offset(random), granules(random)];
                self.add(random, "unmap", &arguments);
            }
            10..12 => {
                // It stays: a released handle may be mapped, and may be retained.
                let physical = match random.one_in(2) {
                    true => self.made.last_use(&["physical", "multicast", "retained"], random),
                    false => self.made.one(&["physical", "retained"], random),
                };
                self.add(random, "release", &[physical]);
            }
            12 => {
                let within = [0, 0, 100][random.below(3)];
                let arguments = [self.made.one(&["range"], random), offset(random) + within];
                let id = self.add(random, "retain", &arguments);
                self.made.add("retained", id);
            }
            13 => {
                let physical = self.made.one(&["physical"], random);
                let id = self.add(random, "import", &[physical]);
                self.made.add("physical", id);
            }
            14 => match random.below(4) {
                0 => {
                    let id = self.add(random, "multicast", &[GRANULE]);
                    self.made.add("multicast", id);
                }
                1 => {
                    let id = self.add(random, "external", &[64 * KIB]);
                    self.made.add("external", id);
                }
                2 => {
                    let external = self.made.one(&["external"], random);
                    let id = self.add(random, "external_map", &[external, 4 * KIB]);
                    self.made.add("external_map", id);
                }
                _ => {
                    let external = self.made.last_use(&["external"], random);
                    self.add(random, "freeexternal", &[external]);
                }
            },
            _ => {
                let range = self.made.last_use(&["range"], random);
                self.add(random, "unreserve", &[range, 8 * GRANULE]);
            }
        }
    }

    fn graphs(&mut self, random: &Random) {
        let stream = self.stream(random);
        match random.below(20) {
            0 => {
                let id = self.add(random, "graph", &[]);
                self.made.add("graph", id);
            }
            1..5 => {
                let graph = self.made.one(&["graph"], random);
                let arguments = [graph, 1 + random.below(100_000) as i64, random.below(2) as i64];
                let id = self.add(random, "node", &arguments);
                self.made.add("node", id);
            }
            5 | 6 => {
                let arguments = [
                    self.made.one(&["graph"], random),
                    self.made.one(&["node", "node", "async"], random),
                ];
                self.add(random, "freenode", &arguments);
            }
            7 => {
                let arguments = [self.made.one(&["graph"], random), self.made.one(&["graph"], random), 1];
                if arguments[0] != arguments[1] {
                    self.add(random, "child", &arguments);
                }
            }
            8 | 9 => {
                let stream = self.made.one(&["stream"], random);
                let thread = random.below(self.threads);
                self.on(random, thread, "capture", "", &[stream, random.below(3) as i64]);
                self.captures.push((stream, thread));
                for _ in 0..random.below(5) {
                    let verb = if random.one_in(3) { "freeasync" } else { "async" };
                    if verb == "async" {
                        let id = self.on(random, thread, verb, "", &[1 + random.below(100_000) as i64, stream]);
                        self.made.add("node", id);
                    } else {
                        let address = self.made.one(&["node", "async"], random);
                        self.on(random, thread, verb, "", &[address, stream]);
                    }
                }
                if random.one_in(8) {
                    self.step(random);
                }
                let id = self.on(random, thread, "endcapture", "", &[stream]);
                self.made.add("graph", id);
            }
            10..12 => {
                let graph = self.made.one(&["graph"], random);
                let id = self.add(random, "instantiate", &[graph, random.below(2) as i64]);
                self.made.add("exec", id);
            }
            12..17 => {
                let exec = self.made.one(&["exec"], random);
                self.add(random, "launch", &[exec, stream]);
            }
            17 => {
                let exec = self.made.last_use(&["exec"], random);
                self.add(random, "freeexec", &[exec]);
            }
            18 => {
                let graph = self.made.last_use(&["graph"], random);
                self.add(random, "freegraph", &[graph]);
            }
            _ => {
                let address = self.made.one(&["node"], random);
                let verb = if random.one_in(2) { "free" } else { "freeasync" };
                self.add(random, verb, &[address, 0]);
            }
        }
    }

    fn contexts(&mut self, random: &Random) {
        let thread = random.below(self.threads);
        match random.below(24) {
            0..3 => {
                let id = self.on(random, thread, "context", "", &[random.below(2) as i64]);
                self.made.add("context", id);
            }
            3 => {
                let context = self.made.last_use(&["context"], random);
                self.on(random, thread, "freecontext", "", &[context]);
                if !random.one_in(4) {
                    self.on(random, thread, "primary", "", &[random.below(2) as i64]);
                }
            }
            4..7 => {
                let context = self.made.one(&["context"], random);
                self.on(random, thread, "current", "", &[context]);
            }
            7 if random.one_in(3) => {
                self.on(random, thread, "reset", "", &[random.below(2) as i64]);
                self.on(random, thread, "primary", "", &[random.below(2) as i64]);
            }
            8 if random.one_in(3) => {
                self.on(random, thread, "releaseprimary", "", &[random.below(2) as i64]);
            }
            9 if random.one_in(2) => {
                let id = self.on(random, thread, "attach", "", &[]);
                self.made.add("context", id);
            }
            10 if random.one_in(2) => {
                let context = self.made.one(&["context"], random);
                self.on(random, thread, "detach", "", &[context]);
            }
            11..14 => {
                self.on(random, thread, "primary", "", &[random.below(2) as i64]);
            }
            _ => self.linear(random),
        }
    }

    fn client(&mut self, random: &Random) {
        let domain = ["cache", "arena", "pages"][random.below(3)];
        let base = self.made.one(&["device", "async", "managed"], random);
        if base == 0 {
            return self.linear(random);
        }
        let offset = random.below(8) as i64 * 512;
        match random.below(7) {
            0..3 => {
                self.named(random, "block", domain, &[base, offset, 1 + random.below(4096) as i64]);
            }
            3 => {
                self.named(random, "blocks", domain, &[base, 1 + random.below(9) as i64, 512]);
            }
            4..6 => {
                self.named(random, "freeblock", domain, &[base, offset]);
            }
            _ => {
                self.named(random, "freeblocks", domain, &[base, 1 + random.below(9) as i64]);
            }
        }
    }

    fn points(&mut self, random: &Random) {
        match random.below(8) {
            0 | 1 => {
                let name = ["loaded", "asleep", "epoch", "step"][random.below(4)];
                self.named(random, "mark", name, &[]);
            }
            2 | 3 => {
                let name = ["load", "train", "step", "evaluate"][random.below(4)];
                let id = self.named(random, "begin", name, &[]);
                self.made.add("phase", id);
            }
            4 | 5 => {
                let phase = self.made.last_use(&["phase"], random);
                if phase != 0 {
                    self.add(random, "end", &[phase]);
                }
            }
            6 if random.one_in(3) => {
                let id = self.named(random, "interval", "interval", &[]);
                self.made.add("interval", id);
            }
            7 => {
                let interval = self.made.one(&["interval"], random);
                if interval != 0 {
                    self.add(random, "measure", &[interval, random.below(4) as i64 - 2]);
                }
            }
            6 if random.one_in(6) => {
                let name = format!("s{}", self.next);
                self.named(random, "snapshot", &name, &[]);
            }
            _ => self.linear(random),
        }
    }

    fn user_objects(&mut self, random: &Random) {
        let object = self.made.one(&["userobject"], random);
        let count = 1 + random.below(3) as i64;
        match random.below(6) {
            0 | 1 => {
                let id = self.add(random, "userobject", &[count]);
                self.made.add("userobject", id);
            }
            2 => {
                self.add(random, "retainobject", &[object, count]);
            }
            3 | 4 => {
                self.add(random, "releaseobject", &[object, count]);
            }
            _ => {
                let graph = self.made.one(&["graph"], random);
                self.add(random, "giveobject", &[graph, object, count, random.below(2) as i64]);
            }
        }
    }

    fn objects(&mut self, random: &Random) {
        if random.one_in(4) {
            return self.user_objects(random);
        }
        let (making, ending) = [
            ("event", "freeevent"),
            ("module", "unload"),
            ("library", "unloadlibrary"),
            ("texture", "freetexture"),
            ("stream", "freestream"),
        ][random.below(5)];
        if random.one_in(2) {
            let arguments: &[i64] = if making == "stream" { &[0] } else { &[] };
            let id = self.add(random, making, arguments);
            self.made.add(making, id);
        } else {
            let object = self.made.last_use(&[making], random);
            if object != 0 {
                self.add(random, ending, &[object]);
            }
        }
    }

    fn children(&mut self, random: &Random) {
        let verb = if random.one_in(2) { "fork" } else { "spawn" };
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
            let group = GROUPS[random.below(GROUPS.len())];
            group(self, random);
        }
        if random.one_in(3) {
            self.on(random, 0, "quit", "", &[random.below(3) as i64]);
        }
        (self.made, self.threads, self.groups) = (before, threads, groups);
        self.on(random, 0, "done", "", &[]);
    }
}
