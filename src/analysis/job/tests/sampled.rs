//! Ranks with sampled stacks: equal ones of which other blocks were chosen, and one that leaks.

use super::*;
use crate::kind::Kind;
use crate::sample::Sample;
use crate::sampling::tests::{MEAN, Sampler};
use crate::snapshot::{Allocation, Sampling, Snapshot};

const RANKS: u32 = 8;
const LEAKING: u32 = 5;
const SEEDS: u64 = 60;

/// The number and the size of a call site's blocks. Of the first site, most ranks have no chosen block at all.
const USUAL: [(u64, u64); 4] = [(16, 4 << 10), (600, 4 << 10), (100, 100 << 10), (20, 1 << 20)];

/// What a rank holds, of which the generator chooses some.
fn snapshot(sites: &[(u64, u64)], sampler: &mut Sampler) -> Snapshot {
    let mut sample = Sample::new();
    let stacks = sample.sites(sites.len());
    let left_out = sample.stack(&[]);
    sample.holds(Kind::Device, "cudaMalloc", 0, 1, stacks[0]);
    let mut snapshot = sample.finish(0, 0);
    let call = snapshot.allocations.at(0).call.clone();
    snapshot.allocations.truncate(0);
    for (&(blocks, bytes), &stack) in sites.iter().zip(&stacks) {
        for _ in 0..blocks {
            let is_chosen = sampler.chooses(bytes);
            snapshot.allocations.push(Allocation {
                address: (snapshot.allocations.len() as u64 + 1) << 21,
                bytes,
                requested: bytes,
                time_ns: 1,
                stack: Some(if is_chosen { stack } else { left_out }),
                call: &call,
            });
        }
    }
    snapshot.sampling = Some(Sampling {
        bytes: MEAN,
        most_bytes: 0,
        left_out: Some(left_out),
    });
    snapshot
}

/// Jobs with different choices. `leak`: what rank 5 holds at one of the call sites instead.
fn jobs(leak: Option<(usize, (u64, u64))>) -> Vec<JobReport> {
    let job = |seed: u64| {
        let (mut job, mut names, mut sampler) = (Job::default(), Sites::default(), Sampler::new(seed));
        for number in 0..RANKS {
            let mut sites = USUAL;
            if let Some((site, blocks)) = leak.filter(|_| number == LEAKING) {
                sites[site] = blocks;
            }
            let snapshot = snapshot(&sites, &mut sampler);
            let keys = Keys::of(&snapshot);
            names.learn(&snapshot, &keys);
            let mut sums = ProcessSums::of(&snapshot, &names.named(&keys), number.to_string());
            sums.row.member = member(number);
            job.add(number, sums);
        }
        job.finish(&names, &Options::default())
    };
    (1..=SEEDS).map(job).collect()
}

#[test]
fn equal_ranks_do_not_stand_out_because_other_blocks_were_chosen() {
    for report in jobs(None) {
        assert!(report.sampled && report.sites.len() >= 3, "{:#?}", report.sites);
        assert_eq!(sentences(&report), [""; 0]);
        assert!(report.sites.iter().all(|site| !site.differs), "{:#?}", report.sites);
    }
}

#[test]
fn a_rank_that_leaks_stands_out_by_call_site() {
    // 29 MiB of small blocks where the others hold 64 KiB, and 80 MiB of large ones where they hold 20 MiB.
    for (site, blocks) in [(0, (7500, 4 << 10)), (3, (80, 1 << 20))] {
        for report in jobs(Some((site, blocks))) {
            let name = format!("site_{site}");
            let row = report.sites.iter().find(|row| row.site.label == name);
            let out = row.and_then(|row| row.stands_out.as_ref());
            let sentence = &out.unwrap_or_else(|| panic!("{name}: {:#?}", report.sites)).sentence;
            assert!(sentence.contains("rank 5"), "{sentence}");
            assert!(
                report
                    .sites
                    .iter()
                    .all(|row| row.site.label == name || row.stands_out.is_none())
            );
        }
    }
}
