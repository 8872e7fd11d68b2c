//! The total allocations of every stack, added up over the shards.

use std::collections::BTreeMap;

use super::details::Renumbered;
use super::stacks::Stacks;
use super::{RawSnapshot, ReadError};
use crate::format::{CounterKey, NameRow, PeakRow, Section, TotalKey, TotalRow};
use crate::kind::Kind;
use crate::snapshot::{Allocation, AtPeak, Total};
use crate::tally::Tally;
use crate::timeline::BLOCK_API;

impl RawSnapshot {
    /// Largest first. `live`: live allocations are part of the totals even if a thread was stopped before it counted them.
    pub fn totals<'a>(
        &self,
        devices: &Renumbered,
        stacks: &mut Stacks,
        wanted: fn(Kind) -> bool,
        live: impl Iterator<Item = Allocation<'a>>,
    ) -> Result<Vec<Total>, ReadError> {
        let rows = self.section(Section::Totals).rows::<TotalRow>();
        // The sums of shards wrap: one may undo what another one has counted.
        let mut sums: foldhash::HashMap<TotalKey, (u64, u64)> = foldhash::HashMap::default();
        for row in rows.filter(|row| row.key_plus_one != 0) {
            let key = TotalKey::from_word(row.key_plus_one - 1);
            let sum = sums.entry(TotalKey { shard: 0, ..key }).or_default();
            *sum = (sum.0.wrapping_add(row.bytes), sum.1.wrapping_add(row.count));
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(key, _)| key.to_word());
        let mut tallies: BTreeMap<(Option<usize>, Kind, Option<usize>), Tally> = BTreeMap::new();
        for (of, (bytes, count)) in sums {
            let tally = Tally { bytes, count };
            let kind = Kind::from_number(of.kind).filter(|&kind| wanted(kind));
            let (Some(kind), true) = (kind, tally.count as i64 > 0) else {
                continue;
            };
            let device = of.slot.checked_sub(1).and_then(|row| devices.get(&row.into()).copied());
            let key = (stacks.of(of.stack)?, kind, device);
            tallies.entry(key).or_default().join(tally);
        }
        // Millions of records, but few keys.
        let mut live_tallies: foldhash::HashMap<_, Tally> = foldhash::HashMap::default();
        for allocation in live {
            let key = (allocation.stack, allocation.kind, allocation.device);
            live_tallies.entry(key).or_default().add(allocation.bytes);
        }
        for (key, least) in live_tallies {
            let tally = tallies.entry(key).or_default();
            (tally.bytes, tally.count) = (tally.bytes.max(least.bytes), tally.count.max(least.count));
        }
        let total = |((stack, kind, device), tally): (_, Tally)| Total {
            stack,
            kind,
            device,
            bytes: tally.bytes,
            count: tally.count,
        };
        let mut totals: Vec<_> = tallies.into_iter().map(total).collect();
        totals.sort_by_key(|total| std::cmp::Reverse((total.bytes, total.count)));
        Ok(totals)
    }

    /// What was live at the peaks, largest first.
    pub fn at_peaks(
        &self,
        devices: &Renumbered,
        stacks: &mut Stacks,
        wanted: fn(Kind) -> bool,
    ) -> Result<Vec<AtPeak>, ReadError> {
        let peaks = self.section(Section::Peaks);
        // Live bytes and counts wrap: a shard may free what another one allocated.
        let mut sums: foldhash::HashMap<TotalKey, (u64, u32)> = foldhash::HashMap::default();
        for row in self.section(Section::Totals).rows::<TotalRow>() {
            let Some(key) = row.key_plus_one.checked_sub(1).map(TotalKey::from_word) else {
                continue;
            };
            let Some(kind) = Kind::from_number(key.kind).filter(|&kind| wanted(kind)) else {
                continue;
            };
            let of_sum = CounterKey {
                slot: key.slot.into(),
                kind: if kind.place().on_device() { 0 } else { key.kind.into() },
            };
            let peak = peaks.row::<PeakRow>(of_sum.number()).credit.peak;
            let (bytes, count) = match row.saved_peak == peak {
                true => (row.saved_bytes, row.saved_count),
                false => (
                    row.bytes.wrapping_sub(row.freed_bytes),
                    row.count.wrapping_sub(row.freed_count) as u32,
                ),
            };
            let sum = sums.entry(TotalKey { shard: 0, ..key }).or_default();
            *sum = (sum.0.wrapping_add(bytes), sum.1.wrapping_add(count));
        }
        let mut live = Vec::new();
        for (key, (bytes, count)) in sums {
            let (Some(kind), true) = (Kind::from_number(key.kind), (count as i32) > 0 && (bytes as i64) > 0) else {
                continue;
            };
            let (domain, api) = self.domain_and_api(kind, key.name);
            live.push(AtPeak {
                stack: stacks.of(key.stack)?,
                kind,
                device: key
                    .slot
                    .checked_sub(1)
                    .and_then(|row| devices.get(&row.into()).copied()),
                domain,
                api,
                bytes,
                count: count.into(),
            });
        }
        live.sort_by(AtPeak::by_size);
        Ok(live)
    }

    /// The domain and the function of memory, from [`TotalKey::name`].
    pub fn domain_and_api(&self, kind: Kind, name: u16) -> (Option<String>, String) {
        match kind {
            Kind::Block => {
                let domain = self.section(Section::Domains).row::<NameRow>(name.into()).text;
                (Some(self.text(domain)), BLOCK_API.to_owned())
            }
            _ => (framework_of(kind).map(str::to_owned), self.api(name)),
        }
    }
}

/// The framework whose allocator hands out memory of this kind.
pub fn framework_of(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Tensor => Some("pytorch"),
        Kind::Buffer => Some("xla"),
        _ => None,
    }
}
