//! Counters and peaks: what was allocated of each kind on each device, added up over the shards.

use std::collections::{BTreeMap, HashMap};

use super::RawSnapshot;
use super::details::Renumbered;
use crate::format::*;
use crate::kind::Kind;
use crate::snapshot::{Allocations, Counter, DevicePeak};

/// Count and bytes of live records, by device and kind.
pub type Places = HashMap<(Option<usize>, Kind), (u64, u64)>;

impl RawSnapshot {
    pub fn counters(&self, devices: &Renumbered) -> (Vec<Counter>, Vec<DevicePeak>) {
        let peaks = self.section(Section::Peaks);
        let peak = |key: CounterKey| {
            let row = peaks.row::<PeakRow>(key.number());
            (row.credit.peak, row.time_ns)
        };
        let device = |key: CounterKey| key.slot.checked_sub(1).and_then(|row| devices.get(&row).copied());
        let mut counters: BTreeMap<(u32, u32), Counter> = BTreeMap::new();
        for (_, row) in self.rows::<CounterRow>(Section::Counters, |row| row.key_plus_one != 0) {
            let key = CounterKey::from_word(row.key_plus_one - 1);
            let Some(kind) = u8::try_from(key.kind).ok().and_then(Kind::from_number) else {
                continue;
            };
            let (peak_bytes, peak_ns) = peak(key);
            let counter = counters.entry((key.slot, key.kind)).or_insert_with(|| Counter {
                device: device(key),
                kind,
                live_bytes: 0,
                live_count: 0,
                peak_bytes,
                peak_ns,
                total_bytes: 0,
                total_count: 0,
                freed_count: 0,
                failed_count: 0,
            });
            for (sum, more) in [
                (&mut counter.total_bytes, row.total_bytes),
                (&mut counter.total_count, row.total_count),
                (&mut counter.freed_count, row.freed_count),
                (&mut counter.failed_count, row.failed_count),
            ] {
                *sum = sum.wrapping_add(more);
            }
        }
        let of_devices = (0..peaks.len().div_ceil(COUNTER_STRIDE)).filter_map(|slot| {
            let key = CounterKey {
                slot: slot as u32,
                kind: 0,
            };
            let (peak_bytes, time_ns) = peak(key);
            let device = device(key).filter(|_| peak_bytes > 0)?;
            Some(DevicePeak {
                device,
                peak_bytes,
                time_ns,
            })
        });
        let counted = counters.into_values();
        let counted = counted.filter(|c| (c.peak_bytes, c.total_count, c.failed_count) != (0, 0, 0));
        (counted.collect(), of_devices.collect())
    }

    pub fn has_tensors(&self, devices: &Renumbered) -> bool {
        let (counters, _) = self.counters(devices);
        counters
            .iter()
            .any(|counter| counter.kind == Kind::Tensor && counter.total_count > 0)
    }
}

/// Corrects the counters by the records, which are authoritative: a thread that was stopped between publishing a record and
/// counting it leaves the counters too low.
pub fn agree(counters: &mut [Counter], live: &Places) {
    for counter in counters {
        let place = (counter.device, counter.kind);
        (counter.live_count, counter.live_bytes) = live.get(&place).copied().unwrap_or_default();
        counter.total_count = counter
            .total_count
            .max(counter.live_count.saturating_add(counter.freed_count));
        counter.peak_bytes = counter.peak_bytes.max(counter.live_bytes);
        counter.total_bytes = counter.total_bytes.max(counter.peak_bytes);
    }
}

pub fn live_by_place(tables: &[&Allocations]) -> Places {
    let mut by_place = Places::new();
    for allocations in tables {
        let mut by_call = vec![(0, 0); allocations.calls.len()];
        for row in &allocations.rows {
            let (count, bytes): &mut (u64, u64) = &mut by_call[row.call as usize];
            *count += 1;
            *bytes = bytes.saturating_add(row.bytes);
        }
        for (call, sums) in allocations.calls.iter().zip(by_call) {
            let place = by_place.entry((call.device, call.kind)).or_default();
            *place = (place.0 + sums.0, place.1.saturating_add(sums.1));
        }
    }
    by_place
}
