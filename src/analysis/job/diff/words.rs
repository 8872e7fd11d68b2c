//! Sentences about changes: `only rank 5: +30 MiB, no change in the 7 others`, `all 8 ranks: +10 MiB each`.

use std::collections::BTreeSet;

use super::{Changed, ChangesApart, Judged, Pair, SiteChange, Sums, Unlike};
use crate::analysis::job::change::Range;
use crate::analysis::job::names::{self, Named};
use crate::analysis::job::outliers::Naming;
use crate::analysis::job::parallel;
use crate::analysis::job::sites::Site;
use crate::analysis::program::Program;
use crate::analysis::words;

/// Processes that a row names in JSON.
const NAMED: usize = 64;

/// What sentences need of the pairs.
pub struct Words<'p> {
    pairs: &'p [Pair],
    naming: Naming,
    several_hosts: bool,
}

impl<'p> Words<'p> {
    pub fn of(pairs: &'p [Pair]) -> Words<'p> {
        let hosts: BTreeSet<&str> = pairs.iter().map(|pair| pair.after.member.host.as_str()).collect();
        Words {
            naming: names::naming(pairs.iter().map(named)),
            several_hosts: hosts.len() > 1,
            pairs,
        }
    }

    fn names(&self, members: impl Iterator<Item = u32>) -> String {
        let named: Vec<Named> = members.map(|member| named(&self.pairs[member as usize])).collect();
        names::list(&named, self.naming, self.several_hosts)
    }

    pub fn row(&self, program: &Program, site: Site, sums: &Sums, judged: &Judged, of: u64) -> SiteChange {
        let range = &judged.range;
        let stands_out = self.stands_out(judged);
        let sentence = stands_out.as_ref().map(|apart| apart.sentence.clone());
        SiteChange {
            program: program.clone(),
            site,
            before: sums.all.before,
            after: sums.all.after,
            bytes_delta: range.sum,
            count_delta: sums.all.count(),
            median_delta: range.median,
            min_delta: range.min,
            max_delta: range.max,
            grown: range.grown,
            shrunk: range.shrunk,
            of_processes: of,
            differs: judged.differs && stands_out.is_none(),
            stands_out,
            sentence: sentence.unwrap_or_else(|| self.in_common(sums, range, of)),
        }
    }

    /// The pairs of all groups that changed unlike the others of their group.
    pub fn stands_out(&self, judged: &Judged) -> Option<ChangesApart> {
        let mut order: Vec<&Unlike> = judged.unlike.iter().collect();
        order.sort_by_key(|finding| std::cmp::Reverse(finding.found.0.bytes));
        let mut members: Vec<(u32, i64)> = order.iter().flat_map(|of| of.found.0.members.iter().copied()).collect();
        members.sort_unstable();
        let changed = |&(member, bytes_delta): &(u32, i64)| {
            let pair = &self.pairs[member as usize];
            Changed {
                rank: pair.after.member.rank,
                host: pair.after.member.host.clone(),
                pid: pair.after.member.pid,
                bytes_delta,
                before: pair.before.source.clone(),
                after: pair.after.source.clone(),
            }
        };
        let bytes = order.iter().map(|of| of.found.0.bytes).fold(0, u128::saturating_add);
        (!order.is_empty()).then(|| ChangesApart {
            count: members.len() as u64,
            apart_bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            processes: members.iter().take(NAMED).map(changed).collect(),
            sentence: parallel::sentence(order.iter().map(|finding| self.unlike(finding))),
        })
    }

    /// `only rank 5: +30 MiB, no change in the 7 others of pipeline stage 1`.
    fn unlike(&self, finding: &Unlike) -> String {
        let ((apart, range), scope) = (&finding.found, finding.scope);
        let count = apart.members.len() as u64;
        let who = self.names(apart.members.iter().map(|member| member.0));
        let least = apart.members.iter().map(|member| member.1).min().unwrap_or(0);
        let most = apart.members.iter().map(|member| member.1).max().unwrap_or(0);
        let others = finding.group.len() as u64 - count;
        let other = match others {
            1 => format!("other{scope}"),
            n => format!("{} others{scope}", words::count(n)),
        };
        let value = spread(least, most, count);
        match apart.is_alone {
            true => format!("only {who}: {value}, no change in the {other}"),
            false if others == 1 => {
                let change = if least == range.min { range.max } else { range.min };
                format!("{who}: {value}; the {other} {}", signed(change))
            }
            false if range.median == 0 => format!("{who}: {value}; most of the {other} did not change"),
            false => format!("{who}: {value}; the median{scope} is {}", signed(range.median)),
        }
    }

    /// `all 8 ranks: +10 MiB each`, `6 of 8 ranks: +9 MiB to +11 MiB`.
    fn in_common(&self, sums: &Sums, range: &Range, of: u64) -> String {
        let changed = sums.changes.len() as u64;
        let least = sums.changes.iter().map(|change| change.1).min().unwrap_or(0);
        let most = sums.changes.iter().map(|change| change.1).max().unwrap_or(0);
        let noun = names::noun(self.naming, of);
        let who = match (changed, of) {
            (0, _) => return "the same bytes in another number of blocks".to_owned(),
            (_, 1) => return signed(range.median),
            (changed, of) if changed == of => format!("all {} {noun}", words::count(of)),
            (1..=8, _) => self.names(sums.changes.iter().map(|change| change.0)),
            _ => format!("{} of {} {noun}", words::count(changed), words::count(of)),
        };
        format!("{who}: {}", spread(least, most, changed))
    }
}

fn named(pair: &Pair) -> Named<'_> {
    let member = &pair.after.member;
    Named {
        rank: member.rank,
        host: &member.host,
        pid: member.pid,
    }
}

fn signed(bytes: i64) -> String {
    match bytes {
        0 => "no change".to_owned(),
        bytes => words::signed_bytes(bytes.into()),
    }
}

fn spread(least: i64, most: i64, count: u64) -> String {
    match (least == most, count) {
        (true, 1) => signed(most),
        (true, _) if most == 0 => signed(most),
        (true, _) => format!("{} each", signed(most)),
        (false, _) => format!("{} to {}", signed(least), signed(most)),
    }
}
