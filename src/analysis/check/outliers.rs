//! Processes of a job that hold more than the others, by the rule of a job's report.
//!
//! Processes are judged one by one before; this adds a breach to the verdicts of those that stand out. What is compared is what was
//! judged: of the selected kinds, and not suppressed. Each is compared with those that do the same work: of the same program, and
//! of the same pipeline stage if stages are known. A process that holds less than the others does not fail.

use std::collections::{BTreeMap, BTreeSet};

use super::{Breach, SiteKey, UnlikeOthers, Unseen, Verdict};
use crate::analysis::estimate::CERTAIN;
use crate::analysis::job::member::Member;
use crate::analysis::job::outliers::{Chance, Example, value};
use crate::analysis::job::parallel::Peers;
use crate::analysis::words;

/// Fails the processes that hold more than those that do the same work at a call site, or in all if no call site explains it.
/// `processes`: of each verdict.
pub fn fail_outliers(verdicts: &mut [&mut Verdict], processes: &[Member]) {
    let numbers = once_each(processes).into_iter();
    let populations = Peers::by_program(numbers.map(|number| (number as u32, &processes[number])));
    let are_all_alone = populations.values().all(|peers| peers.members.len() < 2);
    if are_all_alone {
        let what = match once_each(processes).len() {
            0 | 1 => "there is one process only, and nothing to compare it with",
            _ => "no two of these processes run the same program, so none can be compared with another",
        };
        for verdict in verdicts.iter_mut() {
            verdict.lacks([Unseen::all(
                RULE,
                what,
                "name all processes of the job, or their folder",
            )]);
        }
    }
    for peers in populations.values() {
        let members = &peers.members;
        if let [alone] = members[..]
            && !are_all_alone
        {
            let what = "no other process runs its program, so it is compared with none";
            verdicts[alone as usize].lacks([Unseen::part(RULE, what, ALONE)]);
        }
        let mut of_sites: BTreeMap<SiteKey, BTreeMap<u32, u64>> = BTreeMap::new();
        // Estimates of equal processes differ by chance, and a site may have no block with a stack.
        let is_hidden = |member: &u32| verdicts[*member as usize].hidden.count > 0;
        let are_hidden = members.iter().any(is_hidden);
        for &member in members.iter().filter(|_| !are_hidden) {
            for row in &verdicts[member as usize].rows {
                *of_sites.entry(row.key()).or_default().entry(member).or_default() += row.row.bytes;
            }
        }
        for (key, values) in &of_sites {
            for (member, found) in larger(values, peers).0 {
                let verdict = &mut *verdicts[member as usize];
                let Some(row) = verdict.rows.iter_mut().find(|row| row.key() == *key) else {
                    continue;
                };
                let (site, key) = (Some(row.blame_apart()), Some(*key));
                verdict
                    .breaches
                    .push(Breach::Outlier(UnlikeOthers { site, key, ..found }));
            }
        }
        let held = |member: &u32| (*member, verdicts[*member as usize].judged.bytes);
        let all: BTreeMap<u32, u64> = members.iter().map(held).collect();
        let (of_all, differs, lone) = larger(&all, peers);
        for (member, found) in of_all {
            let verdict = &mut *verdicts[member as usize];
            let error = verdict.judged_estimated.map_or(0, |errors| errors.bytes_error);
            // The error of a difference of two such sums is less than twice that of one.
            if found.found - found.usual < CERTAIN.saturating_mul(2).saturating_mul(error) {
                let what = format!(
                    "it holds about {} and the others {}, a difference that may be chance, because stacks were sampled",
                    words::bytes(found.found),
                    words::bytes(found.usual)
                );
                verdict.lacks([Unseen::part(RULE, what, NEXT)]);
                continue;
            }
            let is_explained = |breach: &Breach| matches!(breach, Breach::Outlier(_));
            if !verdict.breaches.iter().any(is_explained) {
                verdict.breaches.push(Breach::Outlier(found));
            }
        }
        for &member in lone.iter().filter(|_| members.len() > 1) {
            let what = "no other process does its part of the work (pipeline stage …), so it is compared with none";
            verdicts[member as usize].lacks([Unseen::part(RULE, what, ALONE)]);
        }
        for &member in members.iter().filter(|_| differs) {
            let what = "what these processes hold differs so much that none of them is usual";
            verdicts[member as usize].lacks([Unseen::part(RULE, what, "judge them by limits (--allow SIZE)")]);
        }
        // A process without others has nobody to differ from.
        if are_hidden && members.len() > 1 {
            let what = "only the sums of processes are compared with each other, because some memory has no stack";
            for &member in members {
                verdicts[member as usize].lacks([Unseen::part(RULE, what, NEXT)]);
            }
        }
    }
    for verdict in verdicts {
        verdict.settle();
        verdict.rows.sort_by_key(|row| !row.to_blame);
    }
}

/// The numbers of the processes; of several inputs that show one process, the first.
pub fn once_each(processes: &[Member]) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let mut is_new = |process: &Member| {
        // Snapshots that PyTorch took of itself have no pid.
        process.pid == 0 || seen.insert((process.host.clone(), process.pid, process.started_unix_ns))
    };
    (0..processes.len())
        .filter(|&number| is_new(&processes[number]))
        .collect()
}

const RULE: &str = "--fail-on outlier";
const NEXT: &str = "record without --sample";
const ALONE: &str = "judge it by limits, in a check of its own";

/// The processes that stand out because they have more; whether a group has no usual value; and the processes that are compared with
/// none. `values`: of those that have any.
fn larger(values: &BTreeMap<u32, u64>, peers: &Peers) -> (Vec<(u32, UnlikeOthers)>, bool, Vec<u32>) {
    let all: Vec<Example> = values.iter().map(|(&member, &bytes)| (member, value(bytes))).collect();
    let judged = peers.judge(&all, Chance::default());
    let larger = judged.unlike.into_iter().flat_map(|finding| {
        let usual = finding.outcome.median.unsigned_abs();
        let members = finding.outcome.values.into_iter();
        members.filter_map(move |(member, _)| {
            let found = values.get(&member).copied().filter(|bytes| *bytes > usual)?;
            let others = finding.group.iter().filter(|other| **other != member);
            let have_any = others.filter(|other| values.get(other).is_some_and(|bytes| *bytes > 0));
            let unlike = UnlikeOthers {
                others_with_any: have_any.count() as u64,
                site: None,
                found,
                usual,
                of: finding.group.len() as u64,
                group: finding.scope.names(),
                key: None,
            };
            Some((member, unlike))
        })
    });
    (larger.collect(), judged.differs, judged.alone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::check::{Rules, verdict};
    use crate::job_variables::Dimension;
    use crate::kind::Kind;
    use crate::sample::{self, MIB, Sample};
    use crate::snapshot::Snapshot;

    /// The breaches of ranks that hold so many blocks of 1 MiB in these stages.
    fn breaches(ranks: &[(u64, Option<u32>)]) -> Vec<Vec<Breach>> {
        judged(ranks).into_iter().map(|(breaches, _)| breaches).collect()
    }

    /// The breaches, and what was not seen.
    fn judged(ranks: &[(u64, Option<u32>)]) -> Vec<(Vec<Breach>, Vec<Unseen>)> {
        let snapshots: Vec<Snapshot> = ranks
            .iter()
            .map(|&(blocks, _)| {
                let mut sample = Sample::new();
                let stack = sample.stack(&[sample::MAIN]);
                sample.holds(Kind::Device, "cuMemAlloc_v2", MIB, blocks, stack);
                sample.finish(0, 0)
            })
            .collect();
        let rules = Rules::default();
        let members = (1..).zip(ranks).zip(&snapshots).map(|((pid, &(_, stage)), snapshot)| {
            let mut member = Member {
                pid,
                ..Member::of(snapshot)
            };
            let stage = stage.map(|stage| (Dimension::Pipeline, stage));
            member.identity.groups = stage.into_iter().collect();
            member
        });
        let members: Vec<Member> = members.collect();
        let mut verdicts: Vec<Verdict> = snapshots.iter().map(|snapshot| verdict(snapshot, &rules)).collect();
        for verdict in &mut verdicts {
            verdict.breaches.clear();
        }
        fail_outliers(&mut verdicts.iter_mut().collect::<Vec<_>>(), &members);
        verdicts
            .into_iter()
            .map(|verdict| (verdict.breaches, verdict.unseen))
            .collect()
    }

    fn failed(ranks: &[(u64, Option<u32>)]) -> Vec<usize> {
        let breaches = breaches(ranks).into_iter().enumerate();
        breaches
            .filter(|(_, breaches)| !breaches.is_empty())
            .map(|(rank, _)| rank)
            .collect()
    }

    #[test]
    fn ranks_are_compared_within_their_stage() {
        let stages = |leaking: usize| -> Vec<(u64, Option<u32>)> {
            // The second stage has two ranks, and ten times as much.
            (0..10)
                .map(|rank| {
                    let stage = u32::from(rank >= 8);
                    let usual = 10 + 90 * u64::from(stage);
                    (usual * if rank == leaking { 3 } else { 1 }, Some(stage))
                })
                .collect()
        };
        assert_eq!(failed(&stages(usize::MAX)), [0_usize; 0]);
        assert_eq!(failed(&stages(3)), [3]);
        let breaches = breaches(&stages(3));
        assert!(
            matches!(
                &breaches[3][..],
                [Breach::Outlier(UnlikeOthers { group, of: 8, usual, .. })] if group == "pipeline stage 0" && *usual == 10 * MIB
            ),
            "{:?}",
            breaches[3]
        );
    }

    #[test]
    fn copies_of_a_recording_are_one_process() {
        let mut sample = Sample::new();
        let stack = sample.stack(&[sample::MAIN]);
        sample.holds(Kind::Device, "cuMemAlloc_v2", MIB, 1, stack);
        let one = Member::of(&sample.finish(0, 0));
        let other = Member {
            pid: one.pid + 1,
            ..one.clone()
        };
        let unknown = Member { pid: 0, ..one.clone() };
        let processes = [one.clone(), one, other, unknown.clone(), unknown];
        assert_eq!(once_each(&processes), [0, 2, 3, 4]);
    }

    #[test]
    fn without_stages_all_are_compared() {
        let ranks: Vec<(u64, Option<u32>)> = (0..10).map(|rank| (if rank >= 9 { 100 } else { 10 }, None)).collect();
        assert_eq!(failed(&ranks), [9]);
    }

    /// What each rank lacks, if none fails.
    fn unseen(ranks: &[(u64, Option<u32>)]) -> Vec<Vec<String>> {
        assert_eq!(failed(ranks), [0_usize; 0]);
        let judged = judged(ranks).into_iter();
        judged
            .map(|(_, unseen)| unseen.iter().map(Unseen::sentence).collect())
            .collect()
    }

    #[test]
    fn a_rank_that_is_alone_in_its_stage_does_not_pass() {
        let unseen = unseen(&[(10, Some(0)), (10, Some(0)), (900, Some(1))]);
        assert!(unseen[0].is_empty() && unseen[1].is_empty(), "{unseen:?}");
        assert!(unseen[2][0].contains("compared with none"), "{unseen:?}");
    }

    #[test]
    fn ranks_that_have_nothing_in_common_do_not_pass() {
        for unseen in unseen(&[(10, None), (100, None), (500, None), (1000, None)]) {
            assert!(unseen[0].contains("none of them is usual"), "{unseen:?}");
        }
        assert!(unseen(&[(10, None), (11, None), (12, None)]).iter().all(Vec::is_empty));
    }
}
