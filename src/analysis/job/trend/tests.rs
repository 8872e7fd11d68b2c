//! Trends of jobs whose processes were photographed ten times: the rank that grows is named.

use super::*;
use crate::analysis::trend::{self, Summary, lineages};
use crate::sample::leaky;

const MINUTE: u64 = 60_000_000_000;

/// The trend of a job of which each rank has `points` snapshots, with `factor(rank, point)` times the memory.
fn job(ranks: u32, points: u64, factor: impl Fn(u32, u64) -> u64) -> JobTrend {
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
    assert_eq!((first.agreeing, first.processes[0].rank), (1, Some(5)));
    let growing: Vec<Option<u32>> = trend
        .processes
        .iter()
        .filter(|of| of.growing > 0)
        .map(|of| of.rank)
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
