//! Trends of jobs whose processes were photographed ten times: the rank that grows is named.

use std::collections::BTreeSet;

use super::*;
use crate::analysis::trend::{self, Summary, lineages};
use crate::sample::leaky;

const MINUTE: u64 = 60_000_000_000;

/// The trend of a job of which each rank has `points` snapshots, with `factor(rank, point)` times the memory.
fn job(ranks: u32, points: u64, factor: impl Fn(u32, u64) -> u64) -> JobTrend {
    job_of(ranks, points, factor, |_, _, _| ())
}

/// As [`job`], with snapshots as `change` leaves them.
fn job_of(
    ranks: u32,
    points: u64,
    factor: impl Fn(u32, u64) -> u64,
    change: impl Fn(&mut crate::snapshot::Snapshot, u32, u64),
) -> JobTrend {
    let options = trend::Options::default();
    let mut summaries = Vec::new();
    for rank in 0..ranks {
        for point in 0..points {
            let mut snapshot = leaky();
            snapshot.process.pid = 1000 + rank;
            snapshot.process.state = crate::snapshot::ProcessState::Running;
            snapshot.process.ranks.insert("RANK".to_owned(), rank.to_string());
            snapshot.taken.at_ns += point * MINUTE;
            let times = factor(rank, point);
            snapshot
                .allocations
                .change(|_, allocation, _| allocation.bytes *= times);
            change(&mut snapshot, rank, point);
            summaries.push(Summary::of(&snapshot, format!("{rank}-{point}"), &options));
        }
    }
    let mut job = Job::default();
    for lineage in lineages(summaries) {
        job.add(&Trend::of(&lineage, &options));
    }
    job.finish(&Options::default())
}

#[test]
fn the_rank_that_grows_alone_is_named() {
    let trend = job(8, 12, |rank, point| if rank == 5 { 10 + point } else { 10 });
    assert!(trend.is_growing());
    assert_eq!((trend.judged, trend.processes.len()), (8, 8));
    let first = &trend.sites[0];
    assert_eq!(first.class, Class::Growing);
    assert!(first.sentence.starts_with("only rank 5 of 8: +"), "{}", first.sentence);
    assert!(first.sentence.contains(" per hour"), "{}", first.sentence);
    assert_eq!((first.agreeing, first.processes[0].process.rank), (1, Some(5)));
    let growing: Vec<Option<u32>> = trend
        .processes
        .iter()
        .filter(|of| of.growing > 0)
        .map(|of| of.member.rank)
        .collect();
    assert_eq!(growing, [Some(5)]);
    assert!(trend.sites.iter().all(|row| row.agreeing == 1));
    let sites: BTreeSet<_> = trend
        .sites
        .iter()
        .map(|row| (row.site.fingerprint, row.site.pool, row.site.object))
        .collect();
    assert_eq!(sites.len(), trend.sites.len(), "one row for a call site of all ranks");
}

#[test]
fn what_grows_in_all_ranks_is_said_once() {
    let trend = job(8, 12, |_, point| 10 + point);
    assert!(
        trend.sites.iter().all(|row| row.sentence.starts_with("all 8 ranks: +")),
        "{:?}",
        trend.sites
    );
    assert!(
        trend.sites[0].sentence.ends_with(" per hour each"),
        "{}",
        trend.sites[0].sentence
    );
}

#[test]
fn too_few_snapshots_judge_nothing() {
    let trend = job(8, 2, |_, point| 10 + point);
    assert_eq!((trend.judged, trend.sites.len(), trend.is_growing()), (0, 0, false));
    assert_eq!(trend.processes.len(), 8);
}

#[test]
fn ranks_that_grow_are_named_with_their_stage() {
    let staged = |growing: fn(u32) -> bool| {
        let factor = |rank, point| if growing(rank) { 10 + point } else { 10 };
        let trend = job_of(8, 12, factor, |snapshot, rank, _| {
            let variables = &mut snapshot.process.ranks;
            variables.insert("PP_RANK".to_owned(), (rank / 4).to_string());
        });
        trend.sites[0].sentence.clone()
    };
    let whole = staged(|rank| rank >= 4);
    assert!(whole.starts_with("all 4 ranks of pipeline stage 1: +"), "{whole}");
    let one = staged(|rank| rank == 5);
    assert!(
        one.starts_with("only rank 5 of the 4 ranks of pipeline stage 1: +"),
        "{one}"
    );
    let both = staged(|rank| rank == 1 || rank == 5);
    assert!(both.starts_with("ranks 1, 5 of 8: +"), "{both}");
}

/// Call sites end before exit, and so do the sums of processes.
#[test]
fn what_was_left_at_exit_is_apart() {
    let ended = |snapshot: &mut crate::snapshot::Snapshot, _, point| {
        if point == 11 {
            snapshot.process.state = crate::snapshot::ProcessState::Exited;
        }
    };
    let factor = |_, point| if point == 11 { 1 } else { 10 + point };
    let trend = job_of(2, 12, factor, ended);
    let process = &trend.processes[0];
    let left = process.at_exit.expect("known");
    assert_eq!(process.last.bytes, 20 * left.bytes);
    let of_sites: u64 = trend.sites.iter().map(|row| row.last.bytes).sum();
    let of_processes: u64 = trend.processes.iter().map(|process| process.last.bytes).sum();
    assert_eq!(of_sites, of_processes);
    assert!(process.finished && process.source.ends_with("-11"), "{process:?}");
    let running = job(2, 12, |_, point| 10 + point);
    assert_eq!(running.processes[0].at_exit, None);
}

#[test]
fn the_pace_of_nothing_is_not_negative() {
    let trend = job(2, 12, |_, _| 10);
    assert!(trend.processes.iter().all(|process| process.pace.is_sign_positive()));
}
