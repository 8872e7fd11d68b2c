//! Growth from one boundary to the next: what each call site holds above what it held at the previous boundary.
//!
//! A block that is freed and allocated again each round is another block of the same size, so blocks cannot be compared; sums
//! of call sites can. A site grew if it holds more bytes, or more blocks of no fewer bytes. Kinds of memory are compared apart.

use foldhash::HashMap;

use crate::analysis::groups::Group;
use crate::analysis::site::{CallStacks, Fingerprint};
use crate::kind::Kind;
use crate::tally::Tally;

type Site = (Fingerprint, Kind);

/// Memory by call site and kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BySite(HashMap<Site, Tally>);

impl BySite {
    pub(super) fn of<'a>(groups: impl Iterator<Item = &'a Group<'a>>, stacks: &CallStacks) -> BySite {
        let mut sites = BySite::default();
        for group in groups {
            sites.0.entry(site(group, stacks)).or_default().join(group.tally());
        }
        sites
    }

    /// Reduces groups to what their sites hold above this. `others`: what the same sites hold besides the groups. Returns what
    /// is taken away; the largest groups of a site are reduced last.
    pub(super) fn reduce(&self, groups: &mut Vec<Group>, others: &BySite, stacks: &CallStacks) -> Tally {
        let now = BySite::of(groups.iter(), stacks);
        let mut excess: HashMap<Site, Tally> = HashMap::default();
        for (site, &mut new) in now.0.clone().iter_mut() {
            let known = self.0.get(site).copied().unwrap_or_default();
            let mut held = new;
            held.join(others.0.get(site).copied().unwrap_or_default());
            let grown = match held > known {
                true => Tally {
                    bytes: (held.bytes.saturating_sub(known.bytes)).min(new.bytes),
                    // More bytes are at least one other block.
                    count: held.count.saturating_sub(known.count).clamp(1, new.count.max(1)),
                },
                false => Tally::default(),
            };
            excess.insert(*site, new.less(grown));
        }
        let mut taken = Tally::default();
        let mut order: Vec<usize> = (0..groups.len()).collect();
        order.sort_by_key(|&number| groups[number].bytes);
        for number in order {
            let group = &mut groups[number];
            let Some(excess) = excess.get_mut(&site(group, stacks)) else {
                continue;
            };
            let tally = group.tally();
            let less = tally.within(*excess);
            group.bytes -= u128::from(less.bytes);
            group.count -= less.count;
            *excess = excess.less(less);
            taken.join(less);
        }
        groups.retain(|group| group.bytes > 0 || group.count > 0);
        taken
    }
}

fn site(group: &Group, stacks: &CallStacks) -> Site {
    (stacks.get(group.stack).site_fingerprint, group.call.kind)
}
