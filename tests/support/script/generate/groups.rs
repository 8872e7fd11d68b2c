//! The parts of a random script, by what they are about.

use super::{GRANULE, KIB, Writer};
use crate::support::random::Random;

impl Writer {
    pub(super) fn linear(&mut self, random: &Random) {
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

    pub(super) fn host(&mut self, random: &Random) {
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

    pub(super) fn stream(&mut self, random: &Random) -> i64 {
        if random.one_in(3) {
            0
        } else {
            self.made.one(&["stream"], random)
        }
    }

    pub(super) fn streams(&mut self, random: &Random) {
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

    pub(super) fn arrays(&mut self, random: &Random) {
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

    pub(super) fn virtual_memory(&mut self, random: &Random) {
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

    pub(super) fn graphs(&mut self, random: &Random) {
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

    pub(super) fn contexts(&mut self, random: &Random) {
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

    pub(super) fn client(&mut self, random: &Random) {
        if random.one_in(4) {
            return self.pages(random);
        }
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

    fn pages(&mut self, random: &Random) {
        match random.below(8) {
            0 => {
                let id = self.named(random, "pagepool", ["kv", "blocks"][random.below(2)], &[4 * KIB]);
                self.made.add("pagepool", id);
            }
            1..4 => {
                let pool = self.made.one(&["pagepool", "pagepool", "owner"], random);
                let id = self.named(random, "owner", ["request", "batch"][random.below(2)], &[pool]);
                self.made.add("owner", id);
            }
            4..6 => {
                let id = self.made.one(&["owner", "pagepool"], random);
                let pages = [(); 4].map(|()| random.below(3) as i64);
                self.add(random, "setpages", &[id, pages[0], pages[1], 0, pages[3]]);
            }
            6 => {
                let id = self.made.last_use(&["owner", "owner", "pagepool"], random);
                self.add(random, "endowner", &[id]);
            }
            _ => {
                self.add(random, "lookup", &[random.below(9) as i64, 1 + random.below(3) as i64]);
            }
        }
    }

    pub(super) fn points(&mut self, random: &Random) {
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

    pub(super) fn user_objects(&mut self, random: &Random) {
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

    pub(super) fn objects(&mut self, random: &Random) {
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
}
