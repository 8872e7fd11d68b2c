//! Phases, in the order of their begin.

use super::RawSnapshot;
use crate::format::{PhaseRow, Section};
use crate::snapshot::Phase;

impl RawSnapshot {
    pub fn phases(&self, mut thread_of: impl FnMut(u32) -> usize) -> Vec<Phase> {
        let rows = (0u32..).zip(self.section(Section::Phases).rows::<PhaseRow>());
        let mut rows: Vec<_> = rows.filter(|(_, row)| row.begin_plus_one != 0).collect();
        // A parent has a lower row than its children, and begins no later.
        rows.sort_by_key(|(_, row)| row.begin_plus_one);
        let mut numbers = vec![None; self.section(Section::Phases).len()];
        let mut phases = Vec::with_capacity(rows.len());
        for (number, row) in rows {
            let parent = row.parent_plus_one.checked_sub(1);
            // A damaged file may name a later row, which has no number yet.
            let parent = parent.and_then(|parent| numbers.get(parent as usize).copied().flatten());
            numbers[number as usize] = Some(phases.len());
            let begin_ns = row.begin_plus_one - 1;
            phases.push(Phase {
                name: self.text(row.name),
                domain: row.domain.present().map(|domain| self.text(domain)),
                thread: thread_of(row.thread),
                begin_ns,
                end_ns: row.end_plus_one.checked_sub(1).map(|end| end.max(begin_ns)),
                parent,
            });
        }
        phases
    }
}
