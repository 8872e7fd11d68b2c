//! What no recording can contain: a damaged file must not look like one of a process that leaked nothing.
//!
//! Fields of a damaged file have any value. References are checked where they are followed; here are times, sizes and counts that contradict
//! each other. Deliberately absent: damage that leaves a possible recording, which only a checksum would show.

use std::collections::BTreeMap;
use std::mem::offset_of;

use super::RawSnapshot;
use super::raw::events;
use crate::format::{Header, Loss, Section};
use crate::kind::{Kind, Place};
use crate::snapshot::allocations::Allocations;
use crate::snapshot::{Counter, DevicePeak};

/// Longer than any process runs.
const LONGEST_NS: u64 = 20 * 365 * DAY_NS;
const DAY_NS: u64 = 24 * 60 * 60 * 1_000_000_000;
/// A peak may exceed what was counted until then, but not by that much.
const UNCOUNTED_MAX: u64 = 1 << 40;

impl RawSnapshot {
    /// Why the file is damaged, if it is. `latest_ns`: the latest time of an event; `counters`: before they are corrected by the rows.
    pub(super) fn damage(
        &self,
        latest_ns: u64,
        counters: &[Counter],
        peaks: &[DevicePeak],
        live: &Allocations,
    ) -> Option<String> {
        let word = |offset: usize| self.header.field::<u64>(offset);
        let ended_ns = word(offset_of!(Header, ended_ns));
        let of_counters = counters.iter().map(|counter| counter.peak_ns);
        let latest_ns = of_counters
            .chain(peaks.iter().map(|peak| peak.time_ns))
            .fold(latest_ns, u64::max);
        // Other threads may go on while the handlers of `exit` run.
        let last_ns = if ended_ns == 0 {
            LONGEST_NS
        } else {
            ended_ns.saturating_add(DAY_NS)
        };
        if latest_ns > last_ns || ended_ns > LONGEST_NS {
            return Some(format!(
                "an event at {latest_ns} ns, its end at {ended_ns} ns (0: unknown)"
            ));
        }
        let total = |of: &dyn Fn(&Counter) -> bool| {
            let totals = counters
                .iter()
                .filter(|counter| of(counter))
                .map(|counter| counter.total_bytes);
            totals.fold(UNCOUNTED_MAX, u64::saturating_add)
        };
        for counter in counters {
            if counter.peak_bytes > total(&|other| std::ptr::eq(other, counter)) {
                return Some(format!(
                    "a peak of {} bytes, of {} bytes in all",
                    counter.peak_bytes, counter.total_bytes
                ));
            }
        }
        for peak in peaks {
            if peak.peak_bytes > total(&|counter| counter.device == Some(peak.device)) {
                return Some(format!("a peak of {} bytes on device {}", peak.peak_bytes, peak.device));
            }
        }
        if let Some((kind, bytes)) = by_kind(live).find(|(kind, bytes)| *bytes > total(&|of| of.kind == *kind).into()) {
            return Some(format!(
                "{bytes} bytes of {} memory, more than was ever allocated",
                kind.name()
            ));
        }
        let records = word(offset_of!(Header, counts) + Section::Records as usize * 8);
        // Events without a counter are lost details.
        let lost = |of| self.header.loss(of) > 0;
        let has_events = lost(Loss::Allocations) || lost(Loss::Details) || events(self.section(Section::Counters)) > 0;
        (ended_ns != 0 && records > 0 && !has_events).then(|| format!("{records} records, but no event is counted"))
    }
}

/// The bytes of each kind of memory. The fields of a record have any value, so their sum may exceed 64 bits.
fn by_kind(live: &Allocations) -> impl Iterator<Item = (Kind, u128)> {
    let mut by_call = vec![0; live.calls.len()];
    live.rows
        .iter()
        .for_each(|row| by_call[row.call as usize] += u128::from(row.bytes));
    let mut kinds: BTreeMap<Kind, u128> = BTreeMap::new();
    for (call, bytes) in live.calls.iter().zip(by_call) {
        *kinds.entry(call.kind).or_default() += bytes;
    }
    kinds
        .into_iter()
        .filter(|(kind, _)| kind.place().is_memory() && kind.place() != Place::Nowhere)
}
