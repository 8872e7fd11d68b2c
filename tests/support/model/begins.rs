//! What begins to be live: a record of what the driver answered, or a request that failed.

use culeak::kind::{Kind, Place};

use super::verbs::{OUT_OF_MEMORY, PER_THREAD, STEP};
use super::{Change, Graph, Model, Record, Space, Step};
use crate::support::script::{Answer, Line};

impl Model {
    pub(super) fn record(
        &self,
        line: &Line,
        answer: Answer,
        (kind, space, api): (Kind, Space, &'static str),
        bytes: u64,
        requested: u64,
    ) -> Record {
        Record {
            made: self.line,
            space,
            address: answer.value,
            kind,
            bytes,
            requested,
            device: answer.device,
            // A context that was destroyed may still be current.
            context: answer.device.map_or(0, |_| answer.context),
            site: line.site,
            thread: answer.thread,
            api,
            domain: None,
            is_of_several: line.verb == "blocks",
            stream: None,
            pool: None,
            references: 0,
            mappings: 0,
            behind: None,
        }
    }

    pub(super) fn allocate(&mut self, line: &Line, answer: Answer, what: (Kind, Space, &'static str)) {
        let number = |index: usize| line.arguments.get(index).copied().unwrap_or(0) as u64;
        let succeeded = answer.result == 0;
        let known = succeeded || answer.result == OUT_OF_MEMORY;
        let texels = |levels: u64| -> u64 {
            let at = |size: u64, level: u64| (size >> level).max(1);
            let longest = number(0).max(number(1)).max(1);
            let levels = levels.clamp(1, u64::from(longest.ilog2()) + 1);
            (0..levels)
                .map(|level| at(number(0), level) * at(number(1), level))
                .sum()
        };
        let (bytes, requested) = match &*line.verb {
            "pitch" if succeeded => (answer.detail * number(1), number(0) * number(1)),
            "pitch" => (number(0) * number(1), number(0) * number(1)),
            "array" if known => (texels(1) * 4 * number(2), texels(1) * 4 * number(2)),
            "array3d" if known => {
                let bytes = [number(0), number(1), number(2)]
                    .map(|side| side.max(1))
                    .iter()
                    .product();
                (bytes, bytes)
            }
            "mipmap" if known => (texels(number(2)) * 4, texels(number(2)) * 4),
            "array" | "array3d" | "mipmap" => (0, 0),
            "reserve" | "multicast" if known => (0, number(0)),
            "external" if known => (0, number(0)),
            "open" if succeeded => (0, answer.detail),
            "external_map" if known => (0, number(1)),
            "map" => (0, number(2)),
            "register" => (number(1), number(1)),
            "alloc" | "alloc32" | "deep" | "pass" | "managed" | "host" | "hostv2" | "async" | "asyncptsz"
            | "frompool" | "physical" => (number(0), number(0)),
            _ => (0, 0),
        };
        let (kind, space, api) = what;
        let kind = match kind {
            Kind::Physical if known && number(1) != 1 => Kind::HostPhysical,
            kind => kind,
        };
        let mut record = self.record(line, answer, (kind, space, api), bytes, requested);
        match &*line.verb {
            "reserve" | "multicast" => record.device = None,
            "physical" => record.device = (known && number(1) == 1).then_some(number(2) as i32),
            "pool" => record.device = known.then_some(number(0) as i32),
            "context" => record.device = Some(number(0) as i32),
            "async" | "asyncptsz" | "frompool" => {
                let stream = self.value(line, 1);
                record.stream = Some(if stream == 0 && line.verb == "asyncptsz" {
                    PER_THREAD
                } else {
                    stream
                });
                let pool = match &*line.verb {
                    "frompool" => self.value(line, 2),
                    _ => answer
                        .device
                        .and_then(|device| self.pools.get(&device).copied())
                        .unwrap_or(0),
                };
                record.pool = Some(pool).filter(|pool| *pool != 0);
                let of_pool = self.find(&Space::Pool, pool);
                if let Some(of_pool) = of_pool {
                    record.device = self.live[of_pool].device;
                }
                if let Some(steps) = self
                    .captures
                    .get_mut(&stream)
                    .filter(|_| succeeded && answer.value != 0)
                {
                    let record = Record {
                        kind: Kind::Graph,
                        stream: None,
                        pool: None,
                        device: answer.device,
                        ..record
                    };
                    steps.push(Step::Allocates(record));
                    return;
                }
            }
            // What is taken meanwhile is of the graph's private pool, which has the number of its capture.
            "alloc" | "alloc32" | "deep" | "pass" if kind == Kind::Device && !self.captures.is_empty() => {
                record.pool = Some(self.captured);
            }
            _ => {}
        }
        if !succeeded {
            if line.verb == "endcapture" {
                self.captures.remove(&self.value(line, 0));
            }
            // The detail of an import: nothing was exported, so nothing was to be imported.
            if line.verb != "map"
                && answer.detail == 0
                && (kind.place() != Place::Object || answer.result == OUT_OF_MEMORY)
            {
                self.is_recording = true;
                *self
                    .failed
                    .entry((record.site, kind, record.device, bytes, answer.result))
                    .or_default() += 1;
                self.sums.entry((record.device, kind)).or_default().failed_count += 1;
            }
            return;
        }
        if answer.value == 0 {
            return;
        }
        match &*line.verb {
            "physical" | "multicast" => record.references = 1,
            // A handle that is opened again leads to the same address.
            "open" => {
                let opened = self.find(&Space::Pointer, answer.value);
                if let Some(opened) = opened.filter(|opened| self.live[*opened].kind == Kind::Ipc) {
                    self.live[opened].references += 1;
                    return;
                }
                record.references = 1;
            }
            "userobject" => record.references = number(0) as u32,
            "import" => {
                if let Some(known) = self.physical(answer.value) {
                    self.live[known].references += 1;
                    return;
                }
                record.references = 1;
            }
            "map" => {
                if let Some(memory) = self.mapped(self.value(line, 3)) {
                    self.live[memory].mappings += 1;
                    record.device = self.live[memory].device;
                    record.behind = Some(self.live[memory].made);
                }
            }
            "endcapture" => {
                let steps = self.captures.remove(&self.value(line, 0)).unwrap_or_default();
                self.graphs.insert(answer.value, Graph { steps });
            }
            "instantiate" => {
                let graph = self.graphs.get(&self.value(line, 0));
                self.execs
                    .insert(answer.value, graph.map_or(Vec::new(), |graph| graph.steps.clone()));
            }
            "graph" => drop(self.graphs.insert(answer.value, Graph::default())),
            _ => {}
        }
        self.begin(record);
    }

    pub(super) fn allocate_blocks(&mut self, line: &Line, answer: Answer) {
        let number = |index: usize| line.arguments.get(index).copied().unwrap_or(0) as u64;
        let (count, bytes) = if line.verb == "blocks" {
            (number(1), number(2))
        } else {
            (1, number(2))
        };
        for nth in 0..count {
            let address = answer.value + nth * STEP;
            let space = Space::Block(line.name.clone());
            // The allocator handed it out again: it was freed before.
            if let Some(stale) = self.find(&space, address) {
                self.end(stale);
                self.losses.vanished += 1;
            }
            let record = self.record(line, answer, (Kind::Block, space, "culeak_alloc"), bytes, bytes);
            self.begin(Record {
                address,
                domain: Some(line.name.clone()),
                stream: Some(0),
                ..record
            });
        }
    }

    /// A record of this address.
    pub fn find(&self, space: &Space, address: u64) -> Option<usize> {
        self.live
            .iter()
            .position(|record| record.space == *space && record.address == address)
    }

    /// Physical memory whose handle the program may use.
    pub(super) fn physical(&self, handle: u64) -> Option<usize> {
        let fits =
            |record: &Record| record.space == Space::Physical && record.address == handle && record.references > 0;
        self.live.iter().position(fits)
    }

    /// Physical memory with this handle, which may have been released while it is mapped.
    pub(super) fn mapped(&self, handle: u64) -> Option<usize> {
        self.find(&Space::Physical, handle)
    }

    pub(super) fn begin(&mut self, record: Record) {
        // Private tables of the driver destroy objects too, so a handle that is handed out again is that of another object.
        let is_object = matches!(record.space, Space::Object(_));
        if let Some(gone) = self.find(&record.space, record.address).filter(|_| is_object) {
            self.end(gone);
        }
        let sums = self.sums.entry((record.device, record.kind)).or_default();
        sums.total_bytes += record.bytes;
        sums.total_count += 1;
        sums.live_bytes += record.bytes;
        sums.live_count += 1;
        sums.peak_bytes = sums.peak_bytes.max(sums.live_bytes);
        let on_device = record.device.filter(|_| record.kind.place().on_device());
        self.changes.push(Change {
            is_free: false,
            record: record.clone(),
        });
        let bytes = record.bytes;
        self.live.push(record);
        if let Some(device) = on_device {
            let (live, peak) = self.devices.entry(device).or_default();
            *live += bytes;
            if *live > *peak {
                *peak = *live;
                self.at_peaks.insert(device, self.live.clone());
            }
        }
    }
}
