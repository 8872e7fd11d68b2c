//! Domains of framework allocators, the totals they report, and marks.

use std::sync::atomic::Ordering::*;

use super::Recording;
use crate::format::*;
use crate::lockfree::index::mix;

impl Recording {
    /// The number of a domain, which is registered if it is new. `None` if there is no room for another.
    pub fn domain(&self, name: &[u8]) -> Option<u8> {
        let hash = name
            .iter()
            .fold(name.len() as u64, |hash, &byte| mix(hash ^ u64::from(byte)));
        let same = |row: u32| {
            let row = self.domains.get(self.backing(Section::Domains), row);
            row.is_some_and(|row| self.text_is(Text::from_word(row.text.load(Acquire)), name))
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
        // Release: the bytes are written before the row refers to them.
        row.text.store(text.to_word(), Release);
        let number = self.domain_index.intern(hash, number, same).unwrap_or(number);
        u8::try_from(number).ok().filter(|&number| number < DOMAINS)
    }

    /// Adds a mark at the current time.
    pub fn mark(&self, name: &[u8], thread: u32) {
        self.mark_at(self.now(), name, thread);
    }

    /// Adds a mark at a time of the recording's clock.
    pub fn mark_at(&self, time_ns: u64, name: &[u8], thread: u32) {
        let taken = match self.has_room_for_mark() {
            true => self.row(Section::Marks, &self.marks),
            false => None,
        };
        let Some((_, row)) = taken else {
            return self.add(Loss::Marks, 1);
        };
        let text = self.mark_name(name);
        if text == Text::EMPTY && !name.is_empty() {
            // A mark is found by its name.
            self.add(Loss::Marks, 1);
        }
        row.name.store(text.to_word(), Relaxed);
        row.thread.store(thread.into(), Relaxed);
        // Release: pairs with readers, which accept a row with a time.
        row.time_plus_one.store(time_ns + 1, Release);
    }

    /// Stores what PyTorch's allocator of a device reports after an event that changed its live bytes by `change`. Events of
    /// one device never overlap, since the allocator reports them under its lock.
    #[inline]
    pub fn allocator_reported(&self, device: u8, change: i64, live: u64, reserved: u64) {
        // Asked first: this runs at every event, and only the first of a device changes the count.
        let is_counted = self.elements(Section::Allocators).load(Relaxed) > u64::from(device);
        let known = self.allocators.get(self.backing(Section::Allocators), device.into());
        let Some(row) = known.filter(|_| is_counted).or_else(|| self.add_allocator(device)) else {
            return self.add(Loss::Details, 1);
        };
        if !row.report(change, live, reserved) {
            row.correct(change, live);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn add_allocator(&self, device: u8) -> Option<&AllocatorRow> {
        let row = self.allocators.ensure(self.backing(Section::Allocators), device.into());
        let rows = u64::from(device) + 1;
        row.inspect(|_| _ = self.elements(Section::Allocators).fetch_max(rows, Relaxed))
            .ok()
    }

    /// Whether any framework's allocator reports its events.
    pub fn has_allocator_reports(&self) -> bool {
        self.elements(Section::Allocators).load(Relaxed) > 0
    }

    /// Whether a frame of the stack lies in a module whose file name begins with `beginning`.
    pub fn passes_through(&self, stack: u32, beginning: &[u8]) -> bool {
        let mut number = stack;
        while let Some(frame) = self.frames.get(self.backing(Section::Frames), number) {
            let (parent, module_plus_one) = halves(frame.parent_module.load(Relaxed));
            let module = module_plus_one
                .checked_sub(1)
                .and_then(|module| self.modules.get(self.backing(Section::Modules), module));
            if module.is_some_and(|module| self.file_name_begins(Text::from_word(module.path.load(Relaxed)), beginning))
            {
                return true;
            }
            // A parent's row is lower. `ROOT` and `CUT` are higher than any row.
            if parent >= number {
                return false;
            }
            number = parent;
        }
        false
    }

    fn file_name_begins(&self, path: Text, beginning: &[u8]) -> bool {
        let Text { offset, bytes } = path;
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

impl AllocatorRow {
    /// As [`Recording::allocator_reported`]. Plain loads and stores suffice, since events of a device never overlap. False: what the
    /// allocator reports is not what follows from the change: [`AllocatorRow::correct`].
    #[inline(always)]
    pub(super) fn report(&self, change: i64, live: u64, reserved: u64) -> bool {
        let expected = self.live_bytes.load(Relaxed).wrapping_add_signed(change);
        self.live_bytes.store(live, Relaxed);
        self.reserved_bytes.store(reserved, Relaxed);
        self.events.store(self.events.load(Relaxed) + 1, Relaxed);
        expected == live
    }

    #[cold]
    #[inline(never)]
    pub(super) fn correct(&self, change: i64, live: u64) {
        match self.events.load(Relaxed) {
            // There are no records of what it held before its first event.
            1 => self.unseen_bytes.store(live.wrapping_sub(change as u64), Relaxed),
            _ => _ = self.mismatches.fetch_add(1, Relaxed),
        }
    }
}
