//! A leak among churn, seen through sampled stacks alone.

use super::*;
use crate::analysis::report::Options as ReportOptions;
use crate::sample::GIB;
use crate::sampling::tests::{MEAN, Sampler};
use crate::snapshot::{Allocation, Sampling};

/// A block, and whether its stack was taken.
struct Held {
    bytes: u64,
    time_ns: u64,
    has_stack: bool,
}

/// A program with 12 call sites that hold about 33 GiB in blocks of 16 KiB to 256 MiB, a fifth of which it replaces every two
/// minutes, and one that never frees: 1 % of that memory within an hour, in blocks of 256 KiB.
struct Churning {
    random: Random,
    sampler: Sampler,
    sites: Vec<Vec<Held>>,
}

const SITES: usize = 12;
const LEAKING: usize = SITES;
const BLOCKS: usize = 100;
const MEMORY: u64 = 33 * GIB;
const LEAKED: u64 = 256 << 10;
const POINTS: u64 = 30;

impl Churning {
    fn new(seed: u64) -> Churning {
        let mut program = Churning {
            random: Random::new(seed),
            sampler: Sampler::new(seed),
            sites: (0..=SITES).map(|_| Vec::new()).collect(),
        };
        for site in 0..SITES {
            (0..BLOCKS).for_each(|_| program.allocate(site, 0));
        }
        program
    }

    fn allocate(&mut self, site: usize, time_ns: u64) {
        let bytes = match site {
            LEAKING => LEAKED,
            // As many blocks of each order of magnitude: 28 MiB on average.
            _ => self.random.between(14.0, 28.0).exp2() as u64,
        };
        let has_stack = self.sampler.chooses(bytes);
        let held = Held {
            bytes,
            time_ns,
            has_stack,
        };
        self.sites[site].push(held);
    }

    fn step(&mut self, time_ns: u64) {
        for site in 0..SITES {
            for _ in 0..BLOCKS / 5 {
                let freed = self.random.whole(0, BLOCKS - 1);
                self.sites[site].swap_remove(freed);
                self.allocate(site, time_ns);
            }
        }
        for _ in 0..MEMORY / 100 / POINTS / LEAKED {
            self.allocate(LEAKING, time_ns);
        }
    }

    fn snapshot(&self, at_ns: u64) -> Snapshot {
        let mut sample = Sample::new().running();
        let stacks = sample.sites(SITES + 1);
        let left_out = sample.stack(&[]);
        sample.holds(Kind::Device, "cudaMalloc", 0, 1, stacks[0]);
        let mut snapshot = sample.0;
        let call = snapshot.allocations.at(0).call.clone();
        snapshot.allocations.truncate(0);
        for (site, blocks) in self.sites.iter().enumerate() {
            for held in blocks {
                let stack = if held.has_stack { stacks[site] } else { left_out };
                snapshot.allocations.push(Allocation {
                    address: (snapshot.allocations.len() as u64 + 1) << 21,
                    bytes: held.bytes,
                    requested: held.bytes,
                    time_ns: held.time_ns,
                    stack: Some(stack),
                    call: &call,
                });
            }
        }
        snapshot.sampling = Some(Sampling {
            bytes: MEAN,
            most_bytes: MEAN,
            left_out: Some(left_out),
        });
        snapshot.taken.at_ns = at_ns;
        snapshot
    }
}

#[test]
fn a_leak_of_one_per_cent_in_an_hour_is_found_at_its_line_in_each_of_10_runs() {
    let mut others = 0;
    for seed in 0..10 {
        let mut program = Churning::new(seed);
        let summaries: Vec<Summary> = (1..=POINTS)
            .map(|point| {
                program.step(2 * point * MINUTE);
                let snapshot = program.snapshot(2 * point * MINUTE);
                Summary::of(&snapshot, String::new(), &all())
            })
            .collect();
        let trend = Trend::of(&Summary::folded(summaries), &all());
        let growing = trend.rows.iter().filter(|row| row.class == Class::Growing);
        let places: Vec<&str> = growing.filter_map(|row| row.site.place.as_deref()).collect();
        let line = format!("app.cu:{}", 10 + LEAKING);
        let leak = trend.rows.iter().find(|row| row.site.place.as_deref() == Some(&line));
        assert!(places.contains(&line.as_str()), "seed {seed}: {places:?}, {leak:?}");
        others += places.len() - 1;
        assert!(
            trend.warnings.iter().any(|warning| warning.contains("sampled")),
            "{:?}",
            trend.warnings
        );
    }
    // Of 120 series of other sites, whose memory itself goes up and down, 2 % at most.
    assert!(others <= 2, "{others} other sites are called growing");
}

#[test]
fn reports_of_sampled_stacks_have_exact_totals_and_estimated_sites() {
    let mut program = Churning::new(7);
    (1..=POINTS).for_each(|point| program.step(point * MINUTE));
    let snapshot = program.snapshot(POINTS * MINUTE);
    snapshot.validate().expect("indices in range");
    let report = crate::analysis::report::Report::of(&snapshot, &ReportOptions::default());
    let sum = |blocks: &[Held]| blocks.iter().map(|held| held.bytes).sum::<u64>();
    let all: u64 = program.sites.iter().map(|blocks| sum(blocks)).sum();
    assert_eq!(report.totals.held.total().bytes, all);
    assert!(!report.totals_estimated);
    for row in &report.rows {
        let site: usize = row
            .label
            .strip_prefix("site_")
            .and_then(|site| site.parse().ok())
            .expect("a site");
        let errors = row.estimated.expect("an estimate");
        let truth = sum(&program.sites[site]);
        let distance = row.bytes.abs_diff(truth);
        assert!(
            distance < 4 * errors.bytes_error,
            "{}: {} of {truth}, {errors:?}",
            row.label,
            row.bytes
        );
    }
    let by_kind = ReportOptions {
        by: crate::analysis::report::By::Kind,
        ..ReportOptions::default()
    };
    let report = crate::analysis::report::Report::of(&snapshot, &by_kind);
    assert_eq!((report.rows[0].bytes, report.rows[0].estimated), (all, None));
}
