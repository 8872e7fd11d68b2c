//! What every stack asked for, added up over the lanes.

use std::collections::BTreeMap;

use super::picture::Renumbered;
use super::stacks::Stacks;
use super::{Picture, ReadError};
use crate::kind::Kind;
use crate::layout::{Section, TotalOf};
use crate::quick::Quick;
use crate::share::Share;
use crate::snapshot::{Allocation, Total};

impl Picture {
    /// Largest first. `live`: what is there now was asked for, even if a thread was stopped before it had counted it.
    pub fn totals<'a>(
        &self,
        devices: &Renumbered,
        stacks: &mut Stacks,
        live: impl Iterator<Item = Allocation<'a>>,
    ) -> Result<Vec<Total>, ReadError> {
        let rows = self.rows(Section::Totals);
        let mut shares: BTreeMap<(Option<usize>, Kind, Option<usize>), Share> = BTreeMap::new();
        for row in 0..rows.len() {
            let Some(of) = rows.word(row, 0).checked_sub(1) else {
                continue;
            };
            let of = TotalOf::from_word(of);
            let share = Share {
                bytes: rows.word(row, 1),
                count: rows.word(row, 2),
            };
            let (Some(kind), true) = (Kind::from_number(of.kind), share.count > 0) else {
                continue;
            };
            let device = of.slot.checked_sub(1).and_then(|row| devices.get(&row.into()).copied());
            let key = (stacks.of(of.stack)?, kind, device);
            shares.entry(key).or_default().join(share);
        }
        // Millions of records, but few keys.
        let mut there: Quick<_, Share> = Quick::default();
        for allocation in live {
            let key = (allocation.stack, allocation.kind, allocation.device);
            there.entry(key).or_default().add(allocation.bytes);
        }
        for (key, least) in there {
            let share = shares.entry(key).or_default();
            (share.bytes, share.count) = (share.bytes.max(least.bytes), share.count.max(least.count));
        }
        let total = |((stack, kind, device), share): (_, Share)| Total {
            stack,
            kind,
            device,
            bytes: share.bytes,
            count: share.count,
        };
        let mut totals: Vec<_> = shares.into_iter().map(total).collect();
        totals.sort_by_key(|total| std::cmp::Reverse((total.bytes, total.count)));
        Ok(totals)
    }
}
