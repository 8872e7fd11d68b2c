//! The end of the program's own work: the Python interpreter began to finalize, or `main` returned.
//!
//! Memory that is live at the end stays known. Nothing is copied: from then on, a free of memory that was live at the end
//! leaves its record where it is, marked as freed after the end, instead of making it free. Memory that is allocated after
//! the end is recorded as before, so the records never exceed those live at the end and those live now.

use std::sync::atomic::Ordering::*;

use super::Recording;
use crate::format::*;
use crate::lockfree::table::{Status, Withdrawn};

impl Recording {
    /// Whether the Python interpreter has begun to finalize.
    #[inline]
    pub fn script_has_ended(&self) -> bool {
        self.file.header().script_end_plus_one.load(Relaxed) != 0
    }

    /// The Python interpreter has begun to finalize. Only the first call counts.
    #[cold]
    pub fn end_script(&self) {
        let header = self.file.header();
        let counters = self.elements(Section::Counters).load(Relaxed) as u32;
        let rows = (0..counters).filter_map(|number| self.counters.get(self.backing(Section::Counters), number));
        let allocations = rows.fold(0u64, |sum, row: &CounterRow| {
            sum.wrapping_add(row.total_count.load(Relaxed))
        });
        let now = self.now() + 1;
        if header
            .script_end_plus_one
            .compare_exchange(0, now, Relaxed, Relaxed)
            .is_ok()
        {
            header.script_end_allocations.store(allocations, Relaxed);
            self.ended.store(Status::FreedAfterScript as u64, Release);
        }
    }

    /// The handlers of `exit` have begun to run. Only the first call counts.
    pub fn end_main(&self) {
        let now = self.now() + 1;
        let end = &self.file.header().main_end_plus_one;
        if end.compare_exchange(0, now, Relaxed, Relaxed).is_ok() {
            self.ended.store(Status::FreedAfterMain as u64, Release);
        }
    }

    /// How the record of memory that was freed is marked, if it stays: if the memory was live at the end.
    #[inline]
    pub(super) fn freed_after(&self, withdrawn: &Withdrawn) -> Option<Status> {
        // Acquire: pairs with the Release that set it, after the time of the end.
        let status = self.ended.load(Acquire);
        if status == 0 {
            return None;
        }
        let header = self.file.header();
        let (status, end_plus_one) = match status == Status::FreedAfterMain as u64 {
            true => (Status::FreedAfterMain, &header.main_end_plus_one),
            false => (Status::FreedAfterScript, &header.script_end_plus_one),
        };
        let entry = withdrawn.entry()?;
        (entry.time_ns < end_plus_one.load(Relaxed)).then_some(status)
    }
}
