//! What frameworks tell of their own allocators: whose blocks, their own sums, and moments that the program named.

use std::sync::atomic::Ordering::*;

use super::Recording;
use crate::format::*;
use crate::lockfree::index::mix;

impl Recording {
    /// The number of a domain, which is registered on first sight. `None` when there is no room for another.
    pub fn domain(&self, name: &[u8]) -> Option<u8> {
        let hash = name
            .iter()
            .fold(name.len() as u64, |hash, &byte| mix(hash ^ u64::from(byte)));
        let same = |row: u32| {
            let row = self.domains.get(self.backing(Section::Domains), row);
            row.is_some_and(|row| self.text_is(row.text.load(Acquire), name))
        };
        if let Some(known) = self.domain_index.find(hash, same) {
            return u8::try_from(known.row).ok();
        }
        if self.elements(Section::Domains).load(Relaxed) >= u64::from(DOMAINS) {
            self.add(Loss::Details, 1);
            return None;
        }
        let (number, row) = self.row(Section::Domains, &self.domains)?;
        let text = self.text(name);
        // Release: the bytes are there before the row points to them.
        row.text.store(pack(text.offset, text.bytes), Release);
        let number = self.domain_index.intern(hash, number, same).unwrap_or(number);
        u8::try_from(number).ok().filter(|&number| number < DOMAINS)
    }

    /// Keeps this moment under a name.
    pub fn mark(&self, name: &[u8], thread: u32) {
        self.mark_at(self.now(), name, thread);
    }

    /// Keeps a moment under a name.
    pub fn mark_at(&self, time_ns: u64, name: &[u8], thread: u32) {
        let text = self.text(name);
        let Some((_, row)) = self.row(Section::Marks, &self.marks) else {
            self.add(Loss::Details, 1);
            return;
        };
        row.name.store(pack(text.offset, text.bytes), Relaxed);
        row.thread.store(thread.into(), Relaxed);
        // Release: pairs with the reader's Acquire.
        row.time_plus_one.store(time_ns + 1, Release);
    }

    /// PyTorch's allocator of a device says what it holds after an event that changed its live bytes by `change`. Events
    /// of one device come one at a time, since the allocator reports them under its lock.
    pub fn allocator_reported(&self, device: u8, change: i64, live: u64, reserved: u64) {
        let Ok(row) = self.allocators.ensure(self.backing(Section::Allocators), device.into()) else {
            self.add(Loss::Details, 1);
            return;
        };
        // Looked at before it is changed: every event comes through here, and rarely is it the first of its device.
        let rows = u64::from(device) + 1;
        if self.elements(Section::Allocators).load(Relaxed) < rows {
            self.elements(Section::Allocators).fetch_max(rows, Relaxed);
        }
        // Plain stores do, since nobody else is here.
        let expected = row.live_bytes.load(Relaxed).wrapping_add_signed(change);
        row.live_bytes.store(live, Relaxed);
        row.reserved_bytes.store(reserved, Relaxed);
        let events = row.events.load(Relaxed);
        row.events.store(events + 1, Relaxed);
        if events == 0 {
            // What it held before us, we have no records of.
            row.unseen_bytes.store(live.wrapping_sub(change as u64), Relaxed);
        } else if expected != live {
            row.mismatches.fetch_add(1, Relaxed);
        }
    }

    /// Whether any framework tells of its blocks.
    pub fn frameworks_tell(&self) -> bool {
        self.elements(Section::Allocators).load(Relaxed) > 0
    }

    /// Whether a stack leads through a module whose file name begins so.
    pub fn passes_through(&self, stack: u32, beginning: &[u8]) -> bool {
        let mut number = stack;
        while let Some(frame) = self.frames.get(self.backing(Section::Frames), number) {
            let (parent, module_plus_one) = halves(frame.parent_module.load(Relaxed));
            let module = module_plus_one
                .checked_sub(1)
                .and_then(|module| self.modules.get(self.backing(Section::Modules), module));
            if module.is_some_and(|module| self.file_name_begins(module.path.load(Relaxed), beginning)) {
                return true;
            }
            // Parents were there first. Anything else is the end, or not to be followed.
            if parent >= number {
                return false;
            }
            number = parent;
        }
        false
    }

    fn file_name_begins(&self, path: u64, beginning: &[u8]) -> bool {
        let (offset, bytes) = halves(path);
        let byte = |place: u32| {
            let element = self.text.get(self.backing(Section::Text), offset.wrapping_add(place));
            element.map_or(0, |element| element.load(Relaxed))
        };
        let name = (0..bytes)
            .rev()
            .find(|&place| byte(place) == b'/')
            .map_or(0, |slash| slash + 1);
        (bytes - name) as usize >= beginning.len()
            && (name..).zip(beginning).all(|(place, &wanted)| byte(place) == wanted)
    }
}
