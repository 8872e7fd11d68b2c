//! All sections of a recording, as they are in the file, and when to read them again.

use std::collections::HashMap;
use std::path::Path;

use super::elapsed::Elapsed;
use super::records::Records;
use super::{Bytes, ReadError, Source};
use crate::format::*;

/// The most reads of a process that keeps changing.
const ATTEMPTS: u32 = 5;
/// With more records than this a read takes so long that another one would not be exact either.
const MANY: usize = 1 << 20;

/// All sections, with the header as it was afterwards.
pub(super) struct RawSnapshot {
    pub header: Bytes,
    pub sections: HashMap<u32, Bytes>,
    pub records: Records,
    /// When the read began, on the recording's clock; `u64::MAX` if the clocks cannot be compared.
    pub began_ns: u64,
    pub events_during_read: u64,
}

impl RawSnapshot {
    pub fn section(&self, section: Section) -> &Bytes {
        &self.sections[&(section as u32)]
    }

    /// The published rows of a section with their numbers: those that `published` accepts.
    pub fn rows<R: Row>(
        &self,
        section: Section,
        published: impl Fn(&R::Values) -> bool,
    ) -> impl Iterator<Item = (u32, R::Values)> {
        let rows = (0..).zip(self.section(section).rows::<R>());
        rows.filter(move |(_, row)| published(row))
    }

    pub fn text(&self, text: Text) -> String {
        String::from_utf8_lossy(self.bytes(text)).into_owned()
    }

    pub fn bytes(&self, text: Text) -> &[u8] {
        let (start, length) = (text.offset as usize, text.bytes as usize);
        let bytes = &self.section(Section::Text).bytes;
        bytes.get(start..start + length).unwrap_or_default()
    }

    /// Drops rows that are newer than the beginning of the read, if the snapshot is not exact.
    fn drop_late_rows(&mut self) {
        if self.events_during_read > 0 {
            let began_ns = self.began_ns;
            self.records.rows.retain(|row| row.time_ns <= began_ns);
        }
    }
}

pub(super) fn read_until_still(path: &Path) -> Result<RawSnapshot, ReadError> {
    read_sections_until_still(path, |_| true)
}

/// Sections that are not wanted are empty.
pub(super) fn read_sections_until_still(path: &Path, wanted: fn(Section) -> bool) -> Result<RawSnapshot, ReadError> {
    let source = Source::open(path)?;
    let mut raw = source.raw(wanted)?;
    for _ in 1..ATTEMPTS {
        if raw.events_during_read == 0 || raw.records.rows.len() > MANY {
            break;
        }
        raw = source.raw(wanted)?;
    }
    Ok(raw)
}

/// The sections that are read whole. Events are read on request.
pub(super) fn sections_except_records() -> impl Iterator<Item = Section> {
    let all = Section::ALL.iter().copied();
    all.filter(|section| !matches!(section, Section::Records | Section::Events))
}

impl Source<'_> {
    pub fn raw(&self, wanted: fn(Section) -> bool) -> Result<RawSnapshot, ReadError> {
        let header = self.header()?;
        self.refuse_other_length(&header)?;
        let began_ns = Elapsed::since_start(&header).latest_ns();
        let events_before = events(&self.section(&header, Section::Counters)?);
        let lost = |header: &Bytes| header.loss(Loss::Allocations);
        let pieces = self.pieces(&header, Section::Records)?;
        let mut records = Records::read(self, &pieces)?;
        let mut sections = HashMap::new();
        for section in sections_except_records() {
            let bytes = match wanted(section) {
                // A fresh header for each section: rows that the records refer to may have been added meanwhile.
                true => self.section(&self.header()?, section)?,
                false => Bytes::none(section),
            };
            sections.insert(section as u32, bytes);
        }
        let mut after = self.header()?;
        let counted = |header: &Bytes| Ok::<_, ReadError>(events(&self.section(header, Section::Counters)?));
        // Each shard's counts only rise (a failed free subtracts what it added itself), so equal sums mean that no event was
        // counted in between. An event that was under way during the whole read may be in the rows or not: each is the
        // state at some instant. Lost allocations are compared too, since each occupied a record before it was lost.
        if counted(&after)? == events_before && lost(&after) == lost(&header) {
            records.forget_generations();
        } else {
            records.verify(self, &pieces)?;
            after = self.header()?;
        }
        let mut raw = RawSnapshot {
            events_during_read: counted(&after)?.wrapping_sub(events_before),
            header: after,
            sections,
            records,
            began_ns,
        };
        raw.drop_late_rows();
        Ok(raw)
    }
}

/// How many allocations, frees and failed requests the counters count.
pub fn events(counters: &Bytes) -> u64 {
    let of = |row: CounterValues| {
        [row.total_count, row.freed_count, row.failed_count]
            .into_iter()
            .fold(0, u64::wrapping_add)
    };
    counters.rows::<CounterRow>().map(of).fold(0, u64::wrapping_add)
}
