//! The end of the program's own work, and the memory that was freed after it.

use std::mem::offset_of;

use super::RawSnapshot;
use super::records::Records;
use crate::format::{CounterRow, Header, Section};
use crate::lockfree::table::Status;
use crate::snapshot::allocations::Row;
use crate::snapshot::{End, EndOf};

/// A program that allocates more often than this after its interpreter was finalized embeds Python, and goes on.
const ALLOCATIONS_OF_SHUTDOWN: u64 = 100;

impl RawSnapshot {
    pub fn end(&self, records: &Records) -> Option<End> {
        let time = |offset: usize| self.header.field::<u64>(offset).checked_sub(1);
        let script = time(offset_of!(Header, script_end_plus_one)).filter(|&end| !self.went_on(end, records));
        let script = script.map(|time_ns| End {
            of: EndOf::Script,
            time_ns,
        });
        script.or_else(|| {
            let time_ns = time(offset_of!(Header, main_end_plus_one))?;
            Some(End {
                of: EndOf::Main,
                time_ns,
            })
        })
    }

    /// Whether the program went on after its Python interpreter was finalized: it allocated often, or more memory that it still
    /// holds than the script held.
    fn went_on(&self, end_ns: u64, records: &Records) -> bool {
        let counters = self.section(Section::Counters).rows::<CounterRow>();
        let allocations = counters.fold(0u64, |sum, row| sum.wrapping_add(row.total_count));
        let before: u64 = self.header.field(offset_of!(Header, script_end_allocations));
        let freed = records.freed_after.iter().map(|(_, row)| row);
        let (mut held, mut later) = (0u128, 0u128);
        for row in records.rows.iter().chain(freed) {
            let sum = if row.time_ns <= end_ns { &mut held } else { &mut later };
            *sum += u128::from(row.bytes);
        }
        allocations.saturating_sub(before) > ALLOCATIONS_OF_SHUTDOWN || later > held
    }
}

/// The memory, of that which was freed after an end, that was live at this end.
pub fn live_at(end: Option<End>, freed_after: &[(Status, Row)]) -> Vec<Row> {
    let Some(end) = end else { return Vec::new() };
    let was_live = |status: Status, row: &Row| {
        let freed_later = match end.of {
            EndOf::Script => true,
            EndOf::Main => status == Status::FreedAfterMain,
        };
        freed_later && row.time_ns <= end.time_ns
    };
    let rows = freed_after.iter().filter(|(status, row)| was_live(*status, row));
    rows.map(|(_, row)| *row).collect()
}
