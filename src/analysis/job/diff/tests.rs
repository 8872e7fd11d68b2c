//! Two states of jobs made in memory: the process that changed unlike the others is named.

use super::*;
use crate::analysis::job::member::Member;
use crate::analysis::job::tests::{MIB, member, process, sites};
use crate::job_variables::Dimension;

/// A side whose rank N holds `bytes(N)`; processes of the second run have other ids and times.
fn side(run: u32, ranks: u32, bytes: impl Fn(u32) -> Vec<u64>) -> Side {
    let of = |rank: u32| {
        let own = Member {
            pid: 1000 * run + rank,
            started_unix_ns: u64::from(run),
            ..member(rank)
        };
        process(own, &bytes(rank))
    };
    Side {
        processes: (0..ranks).map(of).collect(),
        ..Side::default()
    }
}

fn compared(before: Side, after: Side) -> JobDiff {
    diff(before, after, &sites(), &Options::default())
}

#[test]
fn call_sites_of_the_program_are_before_pools_that_changed_more() {
    let with = |run, own: u64, pool: u64| {
        let mut side = side(run, 8, |_| vec![own]);
        for sums in &mut side.processes {
            let tally = Tally::new(pool, 1);
            sums.sites.push(crate::analysis::facts::Row::at(1, Some(9), tally, 0.0));
        }
        side
    };
    let diff = compared(with(1, MIB, MIB), with(2, 3 * MIB, 90 * MIB));
    let rows = diff.sites.iter().map(|row| (row.site.pool, row.range.sum));
    let mib = i128::from(MIB);
    assert_eq!(rows.collect::<Vec<_>>(), [(false, 16 * mib), (true, 712 * mib)]);
}

#[test]
fn the_rank_that_grew_is_named_first() {
    let before = side(1, 64, |_| vec![9 * MIB, 100 * MIB]);
    let after = side(2, 64, |rank| {
        vec![9 * MIB + if rank == 17 { 30 * MIB } else { 0 }, 100 * MIB]
    });
    let diff = compared(before, after);
    assert_eq!(diff.sites.len(), 1);
    assert_eq!(diff.unchanged_sites, 1);
    let row = &diff.sites[0];
    assert_eq!(
        row.sentence,
        "only rank 17 on node0002: +30 MiB, no change in the 63 others"
    );
    assert_eq!(
        (row.range.sum, row.range.median, row.range.above),
        (i128::from(30 * MIB), 0, 1)
    );
    assert!(
        diff.pairs
            .iter()
            .all(|pair| pair.by == By::Rank && !diff.same_processes)
    );
    let out: Vec<u32> = diff
        .pairs
        .iter()
        .filter(|pair| pair.stands_out)
        .map(|pair| pair.after.member.pid)
        .collect();
    assert_eq!(out, [2017]);
    assert_eq!(diff.stands_out[0].sentence, row.sentence);
}

#[test]
fn a_rank_whose_estimate_changed_by_chance_is_not_named() {
    let of = |scatter: f64| {
        let sampled = |run: u32, bytes: &dyn Fn(u32) -> Vec<u64>| {
            let mut side = side(run, 64, bytes);
            let sums = side.processes.iter_mut().flat_map(|process| &mut process.sites);
            sums.for_each(|sum| sum.scatter = scatter);
            side
        };
        let before = sampled(1, &|_| vec![100 * MIB]);
        let after = sampled(2, &|rank| vec![if rank == 17 { 130 * MIB } else { 100 * MIB }]);
        compared(before, after).sites[0].stands_out.is_some()
    };
    // 230 MiB with an error of sqrt(230 MiB * scatter), and 30 MiB apart.
    assert!(of(100.0 * 1024.0));
    assert!(!of(MIB as f64));
}

#[test]
fn what_all_ranks_gained_is_said_once() {
    let before = side(1, 8, |_| vec![9 * MIB]);
    let after = side(2, 8, |rank| vec![19 * MIB, if rank < 3 { 5000 } else { 0 }]);
    let diff = compared(before, after);
    let sentences: Vec<&str> = diff.sites.iter().map(|row| row.sentence.as_str()).collect();
    assert_eq!(sentences, ["all 8 ranks: +10 MiB each", "ranks 0-2: +4.9 KiB each"]);
    assert!(diff.sites.iter().all(|row| row.stands_out.is_none()));
}

#[test]
fn processes_of_one_side_are_listed_and_their_memory_is_no_change() {
    let mut before = side(1, 8, |_| vec![9 * MIB]);
    let after = side(2, 6, |_| vec![9 * MIB]);
    let diff = compared(std::mem::take(&mut before), after);
    assert_eq!(
        (diff.pairs.len(), diff.only_before.len(), diff.only_after.len()),
        (6, 2, 0)
    );
    assert!(diff.sites.is_empty());
    assert_eq!(diff.held_before, diff.held_after);
}

#[test]
fn one_process_at_two_times_is_itself_whatever_its_rank() {
    let unranked = |mut side: Side| {
        side.processes
            .iter_mut()
            .for_each(|sums| sums.row.member.identity.rank = None);
        side
    };
    let before = unranked(side(1, 4, |_| vec![9 * MIB]));
    let after = unranked(side(1, 4, |rank| vec![9 * MIB + u64::from(rank == 3) * 30 * MIB]));
    let diff = compared(before, after);
    assert!(diff.same_processes);
    assert_eq!(
        diff.sites[0].sentence,
        "only process 1003: +30 MiB, no change in the 3 others"
    );
}

#[test]
fn processes_without_ranks_are_compared_by_the_names_of_their_files() {
    let named = |mut side: Side, folder: &str| {
        for (nth, sums) in side.processes.iter_mut().enumerate() {
            sums.row.member.identity.rank = None;
            sums.row.source = format!("{folder}/worker{nth}.culeak");
        }
        side
    };
    let before = named(side(1, 3, |_| vec![9 * MIB]), "a");
    let mut after = named(side(2, 3, |rank| vec![(9 + u64::from(rank)) * MIB]), "b");
    after.processes.reverse();
    let diff = compared(before, after);
    let pairs: Vec<(&str, &str)> = diff
        .pairs
        .iter()
        .map(|pair| (pair.before.source.as_str(), pair.after.source.as_str()))
        .collect();
    assert_eq!(pairs[2], ("a/worker2.culeak", "b/worker2.culeak"));
    assert!(diff.pairs.iter().all(|pair| pair.by == By::Name));
    // Strangers are not compared: nothing says which belongs to which.
    let strangers = |run| {
        let mut side = side(run, 2, |_| vec![MIB]);
        side.processes
            .iter_mut()
            .for_each(|sums| sums.row.member.identity.rank = None);
        side
    };
    let diff = compared(strangers(1), strangers(2));
    assert_eq!(
        (diff.pairs.len(), diff.only_before.len(), diff.only_after.len()),
        (0, 2, 2)
    );
}

#[test]
fn two_jobs_in_one_folder_are_not_compared_by_rank() {
    let mut before = side(1, 4, |_| vec![MIB]);
    before.processes.extend(side(3, 4, |_| vec![MIB]).processes);
    let diff = compared(before, side(2, 4, |_| vec![MIB]));
    assert_eq!(diff.pairs.len(), 0);
    assert_eq!(diff.warnings.len(), 1, "{:?}", diff.warnings);
}

#[test]
fn rows_are_cut_by_their_change_and_the_order_of_inputs_does_not_matter() {
    let sides = || {
        let before = side(1, 8, |_| vec![9 * MIB, 5 * MIB, MIB]);
        (
            before,
            side(2, 8, |rank| {
                vec![10 * MIB, if rank == 2 { 60 * MIB } else { 5 * MIB }, MIB + 1]
            }),
        )
    };
    let (before, after) = sides();
    let forward = compared(before, after);
    let (mut before, mut after) = sides();
    before.processes.reverse();
    after.processes.reverse();
    assert_eq!(forward, compared(before, after));
    assert_eq!(
        forward.sites[0].sentence,
        "only rank 2: +55 MiB, no change in the 7 others"
    );
    let (before, after) = sides();
    let options = Options {
        top: Some(1),
        min_bytes: 100,
        ..Options::default()
    };
    let cut = diff(before, after, &sites(), &options);
    assert_eq!((cut.sites.len(), cut.hidden_sites), (1, 2));
}

#[test]
fn a_rank_is_compared_with_its_pipeline_stage() {
    let staged = |mut side: Side| {
        for sums in &mut side.processes {
            let stage = sums.row.member.rank.map_or(0, |rank| rank / 8);
            sums.row.member.identity.groups = [(Dimension::Pipeline, stage)].into();
        }
        side
    };
    let before = || staged(side(1, 16, |_| vec![9 * MIB]));
    // The second stage grows more, which is no fault of its ranks.
    let by_stage = |rank: u32| 9 * MIB + u64::from(rank / 8) * 40 * MIB;
    let usual = compared(before(), staged(side(2, 16, |rank| vec![by_stage(rank)])));
    assert!(
        usual.sites[0].stands_out.is_none() && !usual.sites[0].differs,
        "{usual:?}"
    );
    assert!(usual.stands_out.is_empty() && usual.pairs.iter().all(|pair| !pair.stands_out));
    let leaking = |rank: u32| by_stage(rank) + u64::from(rank == 3) * 40 * MIB;
    let diff = compared(before(), staged(side(2, 16, |rank| vec![leaking(rank)])));
    let expected = "only rank 3: +40 MiB, no change in the 7 others of pipeline stage 0";
    assert_eq!(diff.sites[0].sentence, expected);
    assert_eq!(diff.stands_out[0].sentence, expected);
    let row = &diff.sites[0];
    assert_eq!((row.range.of_processes, row.range.max), (16, 40 * MIB as i64));
    let out = diff.pairs.iter().filter(|pair| pair.stands_out);
    assert_eq!(out.map(|pair| pair.after.member.rank).collect::<Vec<_>>(), [Some(3)]);
}
