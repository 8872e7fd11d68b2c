//! Ranks in parallel groups, and call sites of several stacks.

use super::*;
use crate::analysis::filter::Filter;
use crate::job_variables::Dimension;

/// A rank of 4 pipeline stages, 2 tensor ranks and 8 replicas.
fn placed(rank: u32) -> Member {
    let mut member = member(rank);
    let groups = [
        (Dimension::Pipeline, rank / 16),
        (Dimension::Tensor, rank % 2),
        (Dimension::Data, rank / 2 % 8),
    ];
    member.identity.groups = groups.into();
    member
}

fn job_of(bytes: impl Fn(u32) -> Vec<u64>) -> JobReport {
    let mut job = Job::default();
    for rank in 0..64 {
        job.add(rank, process(placed(rank), &bytes(rank)));
    }
    job.finish(&sites(), &Options::default())
}

#[test]
fn a_rank_is_compared_with_its_pipeline_stage() {
    // Stages hold 1, 2, 3 and 4 GiB, so a rank of the first one with 2 GiB is like others of the job.
    let report = job_of(|rank| vec![MIB * 1024 * if rank == 3 { 2 } else { u64::from(rank / 16) + 1 }]);
    let expected = "rank 3 on node0000: 2 GiB, 2.0x as much: the median of pipeline stage 0 is 1 GiB";
    assert!(
        sentences(&report).iter().all(|sentence| *sentence == expected),
        "{report:?}"
    );
    assert_eq!(report.stands_out[0].out.sentence, expected);
    assert_eq!(report.sites[0].stands_out.as_ref().map(|out| out.count), Some(1));
    assert!(!report.sites[0].differs);
    assert_eq!(report.sites[0].range.of_processes, 64);
    let equal = job_of(|rank| vec![MIB * 1024 * (u64::from(rank / 16) + 1)]);
    assert_eq!(sentences(&equal), [""; 0]);
    assert!(!equal.sites[0].differs && equal.stands_out.is_empty());
}

#[test]
fn where_a_stage_has_nothing_in_common_a_rank_is_compared_with_its_replicas() {
    // The tensor ranks of each stage differ.
    let bytes = |rank: u32| vec![MIB * if rank % 2 == 1 { 700 } else { 100 } + if rank == 20 { 30 * MIB } else { 0 }];
    let report = job_of(bytes);
    let expected =
        "rank 20 on node0002: 130 MiB, 1.3x as much: the median of pipeline stage 1, tensor rank 0 is 100 MiB";
    assert_eq!(sentences(&report)[0], expected);
}

#[test]
fn outliers_of_several_stages_are_named_together() {
    let report = job_of(|rank| vec![9 * MIB, if rank == 3 || rank == 40 { 30 * MIB } else { 0 }]);
    let expected = "only rank 3 on node0000: 30 MiB, none in the 15 others of pipeline stage 0; \
                    only rank 40 on node0005: 30 MiB, none in the 15 others of pipeline stage 2";
    assert_eq!(sentences(&report)[0], expected);
    assert_eq!(report.sites[0].stands_out.as_ref().map(|out| out.count), Some(2));
}

#[test]
fn a_stage_is_judged_by_its_own_stacks_and_its_own_chance() {
    // A helper: in stage 0 each rank has 256 MiB through one stack, and rank 3 has 30 MiB more through another one.
    let stacks = |rank: u32| match rank {
        3 => vec![(0, 256 * MIB), (2, 30 * MIB)],
        0..16 => vec![(0, 256 * MIB)],
        _ => (10..10 + PATHS).map(|path| (path, MIB)).collect(),
    };
    const PATHS: u32 = 40;
    let report = |of: &dyn Fn(u32) -> Vec<Row>| {
        let mut job = Job::default();
        for rank in 0..64 {
            let rows = of(rank);
            let total: u64 = rows.iter().map(|row| row.tally.bytes).sum();
            job.add(
                rank,
                ProcessSums {
                    sites: rows,
                    ..process(placed(rank), &[total])
                },
            );
        }
        job.finish(&sites(), &Options::default())
    };
    let stacks = |rank: u32| {
        stacks(rank)
            .into_iter()
            .map(|(path, bytes)| sum(0, Some(path), bytes))
            .collect()
    };
    let sentence = |report: &JobReport| sentences(report)[0].to_owned();
    let found = sentence(&report(&stacks));
    assert!(
        found.contains(
            "only rank 3 on node0000 through main (main.cu:12): 30 MiB, none in the 15 others of pipeline stage 0"
        ),
        "{found}"
    );
    // Stage 1 was sampled, and says nothing about stage 0, which is exact.
    let sampled = |rank: u32| {
        let bytes = MIB * if rank == 3 { 64 } else { 32 };
        let scatter = if rank >= 16 { 1e9 } else { 0.0 };
        vec![Row::at(0, Some(0), Tally { bytes, count: 1 }, scatter)]
    };
    let found = report(&sampled).sites[0]
        .stands_out
        .as_ref()
        .map(|out| out.sentence.clone());
    assert!(
        found
            .as_ref()
            .is_some_and(|found| found.contains("rank 3 on node0000: 64 MiB, 2.0x as much")),
        "{found:?}"
    );
}

#[test]
fn ranks_that_share_a_coordinate_are_named_by_it() {
    let report = job_of(|rank| vec![9 * MIB, if rank / 2 % 8 == 5 { 30 * MIB } else { 0 }]);
    let sentence = sentences(&report)[0];
    assert!(
        sentence.contains("only ranks 10-11 on node0001: 30 MiB each") || sentence.contains("(all of data rank 5)"),
        "{sentence}"
    );
    let mut job = Job::default();
    for rank in 0..64 {
        let mut member = placed(rank);
        member.identity.groups.remove(&Dimension::Pipeline);
        member.identity.groups.remove(&Dimension::Tensor);
        job.add(rank, process(member, &[if rank / 2 % 8 == 5 { 30 * MIB } else { 0 }]));
    }
    let report = job.finish(&sites(), &Options::default());
    assert_eq!(
        sentences(&report)[0],
        "only ranks 10-11, 26-27, 42-43, 58-59 (all of data rank 5): 30 MiB each, none in the 56 others"
    );
}

#[test]
fn stages_of_one_rank_each_are_compared_as_one_group() {
    let mut job = Job::default();
    for rank in 0..8 {
        let mut member = member(rank);
        member.identity.groups = [(Dimension::Pipeline, rank)].into();
        job.add(rank, process(member, &[MIB, if rank == 5 { 30 * MIB } else { 0 }]));
    }
    let report = job.finish(&sites(), &Options::default());
    assert_eq!(sentences(&report)[0], "only rank 5: 30 MiB, none in the 7 others");
}

/// Memory is bounded: with more groups than are kept, stages remain.
#[test]
fn very_many_groups_are_joined_and_the_order_does_not_matter() {
    let of = |order: &mut dyn Iterator<Item = u32>| {
        let mut job = Job::default();
        for rank in order {
            let mut member = member(rank);
            member.identity.groups = [(Dimension::Pipeline, rank % 4), (Dimension::Tensor, rank / 4 % 100)].into();
            let bytes = MIB * (u64::from(rank % 4) + 1) + if rank == 99 { 30 * MIB } else { 0 };
            job.add(rank, process(member, &[bytes]));
        }
        job.finish(&sites(), &Options::default())
    };
    let report = of(&mut (0..800));
    assert_eq!(
        sentences(&report)[0],
        "rank 99 on node0012: 34 MiB, 8.5x as much: the median of pipeline stage 3 is 4 MiB"
    );
    assert_eq!(report, of(&mut (0..800).rev()));
}

/// All memory goes through one helper, called from two lines.
fn through_a_helper(bytes: impl Fn(u32) -> Vec<Row>) -> JobReport {
    let mut job = Job::default();
    for rank in 0..8 {
        let mut sums = process(member(rank), &[]);
        sums.sites = bytes(rank);
        sums.row.held = Tally::total(sums.sites.iter().map(|sum| sum.tally));
        job.add(rank, sums);
    }
    job.finish(&sites(), &Options::default())
}

#[test]
fn a_rank_is_told_apart_by_stack_behind_a_common_helper() {
    let report = through_a_helper(|rank| {
        let mut sums = vec![sum(0, Some(0), 4096 * MIB)];
        sums.extend((rank == 5).then(|| sum(0, Some(1), 30 * MIB)));
        sums
    });
    let sentence = sentences(&report)[0];
    assert!(
        sentence.starts_with("only rank 5 through ") && sentence.ends_with(": 30 MiB, none in the 7 others"),
        "{sentence}"
    );
    assert!(
        report
            .processes
            .iter()
            .all(|process| process.stands_out == (process.row.member.rank == Some(5)))
    );
}

/// The first thread to arrive allocates: equal memory, another stack.
#[test]
fn memory_that_only_went_another_way_is_no_outlier() {
    let report = through_a_helper(|rank| match rank {
        5 => vec![sum(0, Some(0), 4066 * MIB), sum(0, Some(1), 30 * MIB)],
        _ => vec![sum(0, Some(0), 4096 * MIB)],
    });
    assert_eq!(sentences(&report), [""; 0]);
}

#[test]
fn a_recording_counts_in_place_of_its_automatic_snapshots() {
    let mut job = Job::default();
    for (number, time, is_automatic) in [(0, 5, false), (1, 9, true), (2, 7, true)] {
        let mut sums = process(member(4), &[MIB]);
        (sums.row.at_unix_ns, sums.row.is_automatic) = (time, is_automatic);
        job.add(number, sums);
    }
    let mut earlier = job.earlier();
    earlier.sort_unstable();
    assert_eq!(earlier, [1, 2]);
}

#[test]
fn what_was_filtered_suppressed_and_refused_is_summed_up() {
    let mut job = Job::default();
    for rank in 0..4 {
        let mut sums = process(member(rank), &[MIB]);
        let tally = |bytes: u64| Tally { bytes, count: 1 };
        (sums.row.failed, sums.row.suppressed, sums.row.left_out) = (tally(1), tally(10), tally(100));
        job.add(rank, sums);
    }
    let filter = Filter {
        since: Some("warm".to_owned()),
        ..Filter::default()
    };
    let options = Options {
        filter,
        ..Options::default()
    };
    let report = job.finish(&sites(), &options);
    assert_eq!((report.failed.bytes, report.suppressed.bytes), (4, 40));
    assert_eq!(report.filter.map(|filtered| filtered.left_out.bytes), Some(400));
}

/// Peaks are of all memory, so they say nothing about what the filter selects.
#[test]
fn peaks_are_not_compared_behind_a_filter() {
    let report = |filter: Filter| {
        let mut job = Job::default();
        for rank in 0..8 {
            let mut sums = process(member(rank), &[MIB]);
            sums.row.peak_bytes = if rank == 5 { 90 * MIB } else { 10 * MIB };
            job.add(rank, sums);
        }
        let options = Options {
            filter,
            ..Options::default()
        };
        job.finish(&sites(), &options)
    };
    assert_eq!(report(Filter::default()).stands_out.len(), 1);
    let filter = Filter {
        kinds: vec![crate::kind::Kind::Array],
        ..Filter::default()
    };
    let filtered = report(filter);
    assert!(filtered.stands_out.is_empty() && filtered.processes.iter().all(|process| !process.stands_out));
}
