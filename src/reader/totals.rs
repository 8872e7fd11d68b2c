//! The total allocations of every stack, added up over the shards.

use std::collections::BTreeMap;

use super::decode::Renumbered;
use super::stacks::Stacks;
use super::{RawSnapshot, ReadError};
use crate::analysis::tally::Tally;
use crate::format::{Section, TotalKey, TotalRow};
use crate::kind::Kind;
use crate::snapshot::{Allocation, Total};

impl RawSnapshot {
    /// Largest first. `live`: live allocations are part of the totals even if a thread was stopped before it counted them.
    pub fn totals<'a>(
        &self,
        devices: &Renumbered,
        stacks: &mut Stacks,
        live: impl Iterator<Item = Allocation<'a>>,
    ) -> Result<Vec<Total>, ReadError> {
        let rows = self.section(Section::Totals).rows::<TotalRow>();
        let mut tallies: BTreeMap<(Option<usize>, Kind, Option<usize>), Tally> = BTreeMap::new();
        for row in rows.filter(|row| row.key_plus_one != 0) {
            let of = TotalKey::from_word(row.key_plus_one - 1);
            let tally = Tally {
                bytes: row.bytes,
                count: row.count,
            };
            let (Some(kind), true) = (Kind::from_number(of.kind), tally.count > 0) else {
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
}
