//! Jobs made in memory: planted outliers are found, and equal processes have none.

use super::identity::Identity;
use super::member::Member;
use super::*;
use crate::analysis::facts::{Instant, Row, SiteId};
use crate::analysis::job::sites::Keys;
use crate::sample::leaky;

mod groups;
mod sampled;

pub const MIB: u64 = 1 << 20;

pub fn member(rank: u32) -> Member {
    Member {
        identity: Identity {
            rank: Some(rank),
            local_rank: Some(rank % 8),
            ..Identity::default()
        },
        host: format!("node{:04}", rank / 8),
        pid: 1000 + rank,
        started_unix_ns: 7,
        lasted_ns: 0,
        program: Program {
            executable: "python".to_owned(),
            script: Some("train.py".to_owned()),
        },
    }
}

fn scattered(seed: u64) -> u64 {
    crate::lockfree::index::mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

fn sum(site: SiteId, path: Option<u32>, bytes: u64) -> Row {
    Row::at(site, path, Tally { bytes, count: 1 }, 0.0)
}

/// A process that holds these bytes at sites 0, 2, 4 …
pub fn process(member: Member, bytes: &[u64]) -> ProcessSums {
    let tally = |bytes: u64| Tally { bytes, count: 1 };
    let held = Tally::total(bytes.iter().map(|&bytes| tally(bytes)));
    let snapshot = leaky();
    let row = Instant {
        source: format!("{}.culeak", member.pid),
        member,
        held,
        peak_bytes: held.bytes,
        failed: Tally::default(),
        at_unix_ns: 0,
        ..Instant::of(&snapshot, String::new())
    };
    let sites = (0..).zip(bytes).filter(|(_, bytes)| **bytes > 0);
    ProcessSums {
        shared: Vec::new(),
        row,
        sites: sites.map(|(site, &bytes)| sum(2 * site, Some(site), bytes)).collect(),
        suppressions: Vec::new(),
    }
}

/// Names of at least three sites.
pub fn sites() -> Sites {
    let (snapshot, mut sites) = (leaky(), Sites::default());
    let keys = Keys::of(&snapshot);
    sites.learn(&snapshot, &keys);
    sites
}

/// The report of a job whose rank N holds `bytes(N)`.
fn job(ranks: u32, bytes: impl Fn(u32) -> Vec<u64>) -> JobReport {
    let mut job = Job::default();
    for rank in 0..ranks {
        job.add(rank, process(member(rank), &bytes(rank)));
    }
    job.finish(&sites(), &Options::default())
}

fn sentences(report: &JobReport) -> Vec<&str> {
    let of_sites = report.sites.iter().filter_map(|row| row.stands_out.as_ref());
    let of_sums = report.stands_out.iter().map(|out| &out.out);
    of_sites.chain(of_sums).map(|out| out.sentence.as_str()).collect()
}

#[test]
fn a_leak_in_one_rank_is_named() {
    let report = job(64, |rank| vec![9 * MIB, if rank == 17 { 30 * MIB } else { 0 }]);
    assert_eq!(
        sentences(&report)[0],
        "only rank 17 on node0002: 30 MiB, none in the 63 others"
    );
    let first = &report.sites[0];
    assert_eq!(
        (
            first.processes,
            first.range.of_processes,
            first.range.median,
            first.range.max
        ),
        (1, 64, 0, 30 * MIB as i64)
    );
    let out: Vec<u32> = report
        .processes
        .iter()
        .filter(|process| process.stands_out)
        .map(|process| process.row.member.pid)
        .collect();
    assert_eq!(out, [1017]);
    assert!(report.sites[1].stands_out.is_none());
    assert_eq!(report.sites[1].range.sum_bytes(), 64 * 9 * MIB);
}

#[test]
fn a_leak_on_one_host_is_named_by_the_host() {
    let report = job(64, |rank| vec![9 * MIB, if rank / 8 == 3 { 30 * MIB } else { 0 }]);
    let expected = "only ranks 24-31 (all on node0003): 30 MiB each, none in the 56 others";
    assert_eq!(sentences(&report)[0], expected);
}

#[test]
fn a_rank_that_lacks_memory_is_named() {
    let report = job(64, |rank| vec![if rank == 5 { 0 } else { 9 * MIB }, 4 * MIB]);
    assert_eq!(sentences(&report)[0], "rank 5 on node0000: none; the median is 9 MiB");
}

#[test]
fn a_rank_with_more_is_named_with_its_factor() {
    let report = job(64, |rank| {
        vec![MIB * if rank == 5 { 20 } else { 10 } + scattered(rank.into()) % 65536]
    });
    let sentence = sentences(&report)[0];
    assert!(
        sentence.starts_with("rank 5 on node0000: 20") && sentence.contains("2.0x as much"),
        "{sentence}"
    );
}

#[test]
fn of_two_ranks_the_larger_is_named_and_a_single_one_never() {
    let two = job(2, |rank| vec![9 * MIB, u64::from(rank) * 30 * MIB]);
    assert_eq!(sentences(&two)[0], "only rank 1: 30 MiB, none in the other");
    let more = job(2, |rank| vec![(9 + 11 * u64::from(rank)) * MIB]);
    assert_eq!(sentences(&more)[0], "rank 1: 20 MiB, 2.2x as much: the other has 9 MiB");
    assert!(sentences(&job(1, |_| vec![MIB])).is_empty());
    let three = job(3, |rank| vec![9 * MIB, u64::from(rank == 2) * MIB]);
    assert_eq!(sentences(&three)[0], "only rank 2: 1 MiB, none in the 2 others");
    let none = Job::default().finish(&Sites::default(), &Options::default());
    assert!(none.processes.is_empty() && !none.finished);
}

/// Chance puts one of few values far from the others.
#[test]
fn of_few_ranks_one_is_named_only_by_a_factor_of_two() {
    for ranks in 2..6 {
        let last = |bytes: u64| job(ranks, move |rank| vec![if rank + 1 == ranks { bytes } else { 9 * MIB }]);
        assert_eq!(sentences(&last(17 * MIB)), [""; 0], "{ranks}");
        assert!(!sentences(&last(18 * MIB)).is_empty(), "{ranks}");
    }
    assert!(!sentences(&job(6, |rank| vec![if rank == 5 { 12 * MIB } else { 9 * MIB }])).is_empty());
}

#[test]
fn few_noisy_ranks_seldom_have_outliers() {
    let named = |ranks: u32, seed: u64| {
        let noisy = |rank: u32| scattered(seed << 8 | u64::from(rank)) % (40 * MIB / 10);
        let report = job(ranks, |rank| vec![8 * MIB + noisy(rank)]);
        !report.stands_out.is_empty()
    };
    for ranks in [2, 3, 4, 5, 6, 8, 11, 16] {
        let wrong = (0..200).filter(|&seed| named(ranks, seed)).count();
        assert!(wrong <= 4, "{wrong} of 200 jobs of {ranks} ranks");
    }
}

#[test]
fn all_ranks_with_an_unusual_sum_are_marked() {
    let report = job(128, |rank| vec![MIB * if rank % 4 == 0 { 20 } else { 10 }]);
    let marked = report.processes.iter().filter(|process| process.stands_out);
    assert_eq!(marked.count(), 32);
    assert_eq!(report.stands_out[0].out.count, 32);
    assert_eq!(report.stands_out[0].out.processes.len(), 32);
}

#[test]
fn of_many_ranks_without_memory_some_are_listed() {
    let report = job(400, |rank| vec![MIB, if rank % 4 == 0 { 0 } else { 10 * MIB }]);
    let out = report.sites[0].stands_out.as_ref().expect("outliers");
    assert_eq!((out.count, out.processes.len()), (100, names::LISTED));
}

#[test]
fn processes_of_several_hosts_are_named_by_host_and_pid() {
    let report = |out: [u32; 2]| {
        let mut job = Job::default();
        for number in 0..24 {
            let mut member = member(number);
            member.identity.rank = None;
            job.add(
                number,
                process(member, &[if out.contains(&number) { 30 * MIB } else { 0 }, MIB]),
            );
        }
        job.finish(&sites(), &Options::default())
    };
    let expected = "only processes node0000:1006, node0002:1017: 30 MiB each, none in the 22 others";
    assert_eq!(sentences(&report([6, 17]))[0], expected);
    let expected = "only processes 1006-1007 on node0000: 30 MiB each, none in the 22 others";
    assert_eq!(sentences(&report([6, 7]))[0], expected);
}

#[test]
fn without_a_common_value_no_rank_is_named() {
    let halves = job(64, |rank| vec![if rank % 2 == 0 { 30 * MIB } else { 0 }]);
    assert_eq!(sentences(&halves), [""; 0]);
    assert!(halves.sites[0].differs);
    let own = job(64, |rank| vec![MIB << (rank % 16)]);
    assert_eq!(sentences(&own), [""; 0]);
}

/// Equal, noisy, and skewed values.
#[test]
fn ten_thousand_equal_or_noisy_ranks_have_no_outliers() {
    for noise in [0, 3, 20] {
        let report = job(10_000, |rank| {
            let noisy = |site: u64| {
                let random = scattered(u64::from(rank) << 8 | site) % (2 * noise + 1);
                (100 - noise + random) * MIB * (site + 1) / 100
            };
            (0..3).map(noisy).collect()
        });
        assert_eq!(sentences(&report), [""; 0], "{noise} %");
        assert!(report.processes.iter().all(|process| !process.stands_out));
    }
}

#[test]
fn a_leak_is_found_among_ten_thousand_noisy_ranks() {
    let report = job(10_000, |rank| {
        let noise = scattered(rank.into()) % MIB;
        vec![
            20 * MIB + noise + if rank == 4711 { 30 * MIB } else { 0 },
            if rank < 40 { MIB } else { 0 },
        ]
    });
    let found = sentences(&report);
    assert!(
        found
            .iter()
            .any(|sentence| sentence.starts_with("rank 4711 on node0588: 50")),
        "{found:?}"
    );
    assert!(
        found.contains(&"only ranks 0-39: 1 MiB each, none in the 9,960 others"),
        "{found:?}"
    );
}

#[test]
fn other_programs_are_judged_apart() {
    let mut job = Job::default();
    for rank in 0..16 {
        let mut member = member(rank);
        if rank == 3 {
            member.program.script = Some("logger.py".to_owned());
        }
        job.add(rank, process(member, &[if rank == 3 { 700 * MIB } else { MIB }]));
    }
    let report = job.finish(&sites(), &Options::default());
    assert_eq!((sentences(&report).len(), report.programs.len()), (0, 2));
}

#[test]
fn processes_are_named_by_pid_if_ranks_are_missing_or_not_unique() {
    for (ranks, warned) in [
        ([None; 8], 0),
        (
            [Some(0), Some(1), Some(2), Some(3), Some(0), Some(1), Some(2), Some(3)],
            1,
        ),
    ] {
        let mut job = Job::default();
        for (number, rank) in (0..).zip(ranks) {
            let mut member = member(number);
            member.identity.rank = rank;
            job.add(number, process(member, &[if number == 6 { 30 * MIB } else { 0 }, MIB]));
        }
        let report = job.finish(&sites(), &Options::default());
        assert_eq!(sentences(&report)[0], "only process 1006: 30 MiB, none in the 7 others");
        assert_eq!(report.warnings.len(), warned);
    }
}

#[test]
fn the_order_of_adding_does_not_matter() {
    let bytes = |rank: u32| vec![MIB + scattered(rank.into()) % MIB, if rank == 9 { 30 * MIB } else { 0 }];
    let forward = job(2000, bytes);
    let mut backward = Job::default();
    for rank in (0..2000).rev() {
        backward.add(rank, process(member(rank), &bytes(rank)));
    }
    assert_eq!(forward, backward.finish(&sites(), &Options::default()));
}

#[test]
fn earlier_snapshots_of_a_process_are_recognized() {
    let mut job = Job::default();
    for (number, time) in [(0, 5), (1, 9), (2, 7), (3, 1)] {
        let mut sums = process(member(if number == 3 { 8 } else { 4 }), &[MIB]);
        sums.row.at_unix_ns = time;
        job.add(number, sums);
    }
    let mut earlier = job.earlier();
    earlier.sort_unstable();
    assert_eq!(earlier, [0, 2]);
}

#[test]
fn sites_are_ordered_by_what_stands_out_and_cut_with_their_sum() {
    let mut job = Job::default();
    for rank in 0..8 {
        job.add(
            rank,
            process(member(rank), &[900 * MIB, if rank == 1 { MIB } else { 0 }, 5 * MIB]),
        );
    }
    let report = job.finish(
        &sites(),
        &Options {
            top: Some(1),
            ..Options::default()
        },
    );
    assert_eq!(report.sites.len(), 1);
    assert_eq!(report.sites[0].range.sum_bytes(), MIB);
    assert_eq!((report.hidden_sites, report.hidden.bytes), (2, 8 * 905 * MIB));
}
