//! The end of the program's own work: the Python interpreter began to finalize, or `main` returned.
//!
//! Memory that is live at the end stays known. Nothing is copied: from then on, a free of memory that was live at the end
//! leaves its record where it is, marked as freed after the end, instead of making it free. Memory that is allocated after
//! the end is recorded as before, so the records never exceed those live at the end and those live now.

use std::sync::atomic::{AtomicU64, Ordering::*};

use super::Recording;
use crate::format::*;
use crate::lockfree::table::{Status, Withdrawn};

impl Recording {
    /// Whether the end of a script, or that of `main`, is noted.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.often.ended.load(Relaxed) != 0
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
        header.script_end_allocations.fetch_max(allocations, Relaxed);
        self.end_at(&header.script_end_plus_one, Status::FreedAfterScript);
    }

    /// The handlers of `exit` have begun to run. Only the first call counts.
    pub fn end_main(&self) {
        self.end_at(&self.file.header().main_end_plus_one, Status::FreedAfterMain);
    }

    /// Every thread that notes an end completes it, since the first one may be stopped in between.
    fn end_at(&self, time_plus_one: &AtomicU64, status: Status) {
        let now = self.now() + 1;
        let _ = time_plus_one.compare_exchange(0, now, Relaxed, Relaxed);
        // Release: pairs with the Acquire in `freed_after`, after which the time is loaded. The end of `main` has the higher number.
        self.often.ended.fetch_max(status as u64, Release);
    }

    /// How the record of memory that was freed is marked, if it stays: if the memory was live at the end.
    #[inline]
    pub(super) fn freed_after(&self, withdrawn: &Withdrawn) -> Option<Status> {
        // Acquire: pairs with the Release that set it, after the time of the end.
        let status = self.often.ended.load(Acquire);
        if status == 0 {
            return None;
        }
        self.freed_after_end(withdrawn.record(), status)
    }

    #[cold]
    #[inline(never)]
    fn freed_after_end(&self, withdrawn: &Record, status: u64) -> Option<Status> {
        let header = self.file.header();
        let (status, end_plus_one) = match status == Status::FreedAfterMain as u64 {
            true => (Status::FreedAfterMain, &header.main_end_plus_one),
            false => (Status::FreedAfterScript, &header.script_end_plus_one),
        };
        let entry = withdrawn.entry()?;
        (entry.time_ns < end_plus_one.load(Relaxed)).then_some(status)
    }
}
