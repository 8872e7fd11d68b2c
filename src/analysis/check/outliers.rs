//! Processes of a job that hold more than the others, by the rule of a job's report.
//!
//! Processes are judged one by one before; this adds a breach to the verdicts of those that stand out. What is compared is what was
//! judged: of the selected kinds, and not suppressed. A process that holds less than the others does not fail.

use std::collections::BTreeMap;

use super::{Breach, SiteKey, Verdict, site_name};
use crate::analysis::job::outliers::{self, judge_each};
use crate::analysis::job::spread::{Example, Spread};
use crate::analysis::program::Program;

/// Fails the processes that hold more than those of the same program at a call site, or in all if no call site explains it.
/// `programs`: of each verdict.
pub fn fail_outliers(verdicts: &mut [&mut Verdict], programs: &[Program]) {
    let mut populations: BTreeMap<&Program, Vec<u32>> = BTreeMap::new();
    for (number, program) in (0..).zip(programs) {
        populations.entry(program).or_default().push(number);
    }
    for members in populations.values() {
        let mut of_sites: BTreeMap<SiteKey, Vec<Example>> = BTreeMap::new();
        for &member in members {
            for row in &verdicts[member as usize].rows {
                if let Some(key) = row.key() {
                    of_sites.entry(key).or_default().push((member, row.row.bytes));
                }
            }
        }
        for (key, values) in &of_sites {
            for (member, found, usual) in larger(values, members) {
                let verdict = &mut *verdicts[member as usize];
                let Some(row) = verdict.rows.iter_mut().find(|row| row.key() == Some(*key)) else {
                    continue;
                };
                row.only_by_class |= !row.to_blame;
                row.to_blame = true;
                let site = site_name(&row.row);
                verdict.breaches.push(Breach::Outlier {
                    site: Some(site),
                    found,
                    usual,
                    of: members.len() as u64,
                    key: Some(*key),
                });
            }
        }
        let held = |member: &u32| (*member, verdicts[*member as usize].judged.bytes);
        let all: Vec<Example> = members.iter().map(held).collect();
        for (member, found, usual) in larger(&all, members) {
            let verdict = &mut *verdicts[member as usize];
            let is_explained = |breach: &Breach| matches!(breach, Breach::Outlier { .. });
            if !verdict.breaches.iter().any(is_explained) {
                verdict.breaches.push(Breach::Outlier {
                    site: None,
                    found,
                    usual,
                    of: members.len() as u64,
                    key: None,
                });
            }
        }
    }
    for verdict in verdicts {
        verdict.passed = verdict.breaches.is_empty();
        verdict.rows.sort_by_key(|row| !row.to_blame);
    }
}

/// The processes that stand out because they have more, with their bytes and the median. `values`: of those that have any.
fn larger(values: &[Example], members: &[u32]) -> Vec<(u32, u64, u64)> {
    let mut spread = Spread::default();
    values.iter().for_each(|&(member, bytes)| spread.add(member, bytes));
    let known: BTreeMap<u32, u64> = values.iter().copied().collect();
    let bytes = |member: &u32| known.get(member).copied().unwrap_or(0);
    let all: Vec<Example> = members.iter().map(|member| (*member, bytes(member))).collect();
    let outliers::Verdict::StandOut(out) = judge_each(&spread, &all) else {
        return Vec::new();
    };
    let more = out.members.iter().filter(|member| bytes(member) > out.median);
    more.map(|member| (*member, bytes(member), out.median)).collect()
}
