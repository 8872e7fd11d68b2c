//! What ends to be live: frees, launches, releases, and contexts that end.

use culeak::kind::{Kind, Place};

use super::verbs::is_freed_with_context;
use super::{Change, Model, Record, Space, Step};
use crate::support::script::Line;

impl Model {
    pub(super) fn free_block(&mut self, domain: &str, address: u64) {
        match self.find(&Space::Block(domain.to_owned()), address) {
            Some(live) => self.end(live),
            None => self.losses.unknown_blocks += u64::from(self.is_recording),
        }
    }

    pub(super) fn end(&mut self, index: usize) {
        let record = self.live.remove(index);
        let sums = self.sums.entry((record.device, record.kind)).or_default();
        sums.freed_count += 1;
        sums.live_bytes -= record.bytes;
        sums.live_count -= 1;
        if let Some(device) = record.device.filter(|_| record.kind.place().on_device()) {
            self.devices.entry(device).or_default().0 -= record.bytes;
        }
        self.changes.push(Change { is_free: true, record });
    }

    pub(super) fn free(&mut self, space: Space, address: u64, succeeded: bool) {
        let is_object = matches!(space, Space::Object(_));
        match (self.find(&space, address), succeeded) {
            (Some(live), true) => self.end(live),
            _ if !self.is_recording => {}
            (Some(_), false) => self.losses.failed_frees += 1,
            // Objects are created by private tables, too.
            (None, _) if is_object => {}
            (None, true) if address != 0 => self.losses.unknown_frees += 1,
            (None, true) => {}
            (None, false) => self.losses.failed_frees += 1,
        }
    }

    pub(super) fn free_async(&mut self, line: &Line, succeeded: bool) {
        let (address, stream) = (self.value(line, 0), self.value(line, 1));
        match self.captures.get_mut(&stream) {
            Some(steps) if succeeded && address != 0 => steps.push(Step::Frees(address)),
            Some(_) => {}
            None => self.free(Space::Pointer, address, succeeded),
        }
    }

    pub(super) fn add_step(&mut self, graph: u64, step: Step) {
        self.graphs.entry(graph).or_default().steps.push(step);
    }

    /// What the graph allocates and does not free is allocated, then what it frees and does not allocate is freed.
    pub(super) fn launch(&mut self, exec: u64) {
        let steps = self.execs.get(&exec).cloned().unwrap_or_default();
        let mut left: Vec<Record> = Vec::new();
        let mut freed: Vec<u64> = Vec::new();
        for step in steps {
            match step {
                Step::Allocates(record) => left.push(record),
                Step::Frees(address) => match left.iter().position(|record| record.address == address) {
                    Some(own) => drop(left.remove(own)),
                    None => freed.push(address),
                },
            }
        }
        for record in left {
            // A relaunch frees what the last one left.
            if let Some(live) = self.find(&Space::Pointer, record.address) {
                self.end(live);
                self.losses.implicit_frees += 1;
            }
            self.begin(Record {
                made: self.line,
                ..record
            });
        }
        for address in freed {
            if let Some(live) = self.find(&Space::Pointer, address) {
                self.end(live);
            }
        }
    }

    pub(super) fn release(&mut self, handle: u64, succeeded: bool) {
        match (self.physical(handle), succeeded) {
            (Some(memory), true) => {
                self.live[memory].references -= 1;
                self.end_unused(memory);
            }
            _ if !self.is_recording => {}
            (_, false) => self.losses.failed_frees += 1,
            (None, true) => self.losses.unknown_frees += 1,
        }
    }

    /// Memory of another process is closed as often as it was opened.
    pub(super) fn close(&mut self, address: u64, succeeded: bool) {
        let opened = self.find(&Space::Pointer, address);
        match opened.filter(|opened| succeeded && self.live[*opened].references > 1) {
            Some(opened) => self.live[opened].references -= 1,
            None => self.free(Space::Pointer, address, succeeded),
        }
    }

    /// The program gives up references to a user object.
    pub(super) fn give_up(&mut self, handle: u64, count: u64, succeeded: bool) {
        let Some(object) = self.find(&Space::Object(Kind::UserObject), handle) else {
            return;
        };
        let left = self.live[object].references.saturating_sub(count as u32);
        if succeeded && left > 0 {
            self.live[object].references = left;
        } else if left == 0 {
            self.free(Space::Object(Kind::UserObject), handle, succeeded);
        }
    }

    pub(super) fn retain(&mut self, handle: u64) {
        if let Some(memory) = self.mapped(handle) {
            self.live[memory].references += 1;
        }
    }

    pub(super) fn unmap(&mut self, address: u64, bytes: u64) {
        let range = address..address + bytes;
        let fits = |record: &Record| record.space == Space::Mapping && range.contains(&record.address);
        if !self.live.iter().any(fits) {
            self.losses.unknown_frees += 1;
        }
        while let Some(mapping) = self.live.iter().position(fits) {
            let behind = self.live[mapping].behind;
            self.end(mapping);
            if let Some(memory) = self.live.iter().position(|record| Some(record.made) == behind) {
                self.live[memory].mappings -= 1;
                self.end_unused(memory);
            }
        }
    }

    pub(super) fn end_unused(&mut self, memory: usize) {
        if self.live[memory].references == 0 && self.live[memory].mappings == 0 {
            self.end(memory);
        }
    }

    pub(super) fn destroy_context(&mut self, context: u64, succeeded: bool) {
        self.free(Space::Object(Kind::Context), context, succeeded);
        if succeeded {
            self.attached.remove(&context);
            self.end_context(context);
        }
    }

    /// The references of the primary context stay.
    pub(super) fn reset(&mut self, device: i32) {
        if let Some(&context) = self.primaries.get(&device) {
            self.end_context(context);
        }
    }

    pub(super) fn end_context(&mut self, context: u64) {
        let fits = |record: &Record| record.context == context && is_freed_with_context(record.kind);
        while let Some(live) = self.live.iter().position(fits) {
            self.losses.implicit_frees += u64::from(self.live[live].kind.place() != Place::Object);
            self.end(live);
        }
    }
}
