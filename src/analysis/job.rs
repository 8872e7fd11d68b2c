//! A job: what its processes hold, by process and by call site, and which of them differ from the others.
//!
//! ```text
//! snapshot of a process ─► sites.rs ───────► population.rs ──► parallel.rs ───────► outliers.rs ──► JobReport
//!                          bytes per call     values of each    groups that do       who stands out
//!                          site and stack     site              the same work        (names.rs: a sentence)
//! ```
//!
//! Processes are added one at a time, in any order, and nothing of a process is kept but its row and what it holds at each call site
//! through each stack, in about 6 bytes, or in none where the process before it holds as much. The result does not
//! depend on the order, unless a program has more than [`population::SITES_MAX`] call sites: those that come first keep their names. Only
//! like is compared with like: processes of the same [`Program`], and of the same group if their launcher names groups.
//!
//! Deliberately absent: time. Several snapshots of one process are one process, and the latest counts.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::estimate::sampled;
use crate::analysis::facts::Instant;
use crate::analysis::filter::Filtered;
use crate::analysis::opaque::OpaquePool;
use crate::analysis::program::Program;
use crate::analysis::report::Cut;
use crate::analysis::suppressions::Used;
use crate::tally::Tally;

pub mod diff;
pub mod identity;
pub mod member;
pub mod names;
pub mod outliers;
pub mod parallel;
pub mod population;
pub mod shared;
pub mod sites;
pub mod trend;
pub mod why;

use names::Names;
pub use names::{Outlier, StandsOut};
use population::{Judging, Population, naming};
pub use population::{Options, ProcessesOut, Quantity, SiteRow};
use shared::{Shared, SharedRow};
use sites::{ProcessSums, Sites};

/// The value of [`JobReport::format`].
pub const FORMAT: &str = "culeak-job";
pub const VERSION: u32 = 2;
/// Processes of a job, added one after the other.
#[derive(Debug, Default)]
pub struct Job {
    populations: BTreeMap<Program, Population>,
    /// By number.
    rows: Vec<Option<Instant>>,
    /// What each rule suppressed.
    suppressions: Vec<Used>,
    shared: Shared,
}

impl Job {
    /// Adds a process. `number` is that of its input; each is used once.
    pub fn add(&mut self, number: u32, sums: ProcessSums) {
        let program = sums.row.member.program.clone();
        self.populations.entry(program).or_default().add(number, &sums);
        self.shared.add(number, &sums.row.member.host, &sums.shared);
        if self.suppressions.is_empty() {
            self.suppressions = sums.suppressions;
        } else {
            // The rules are the same for all processes.
            for (all, own) in self.suppressions.iter_mut().zip(&sums.suppressions) {
                all.suppressed.join(own.suppressed);
                all.objects += own.objects;
            }
        }
        if self.rows.len() <= number as usize {
            self.rows.resize(number as usize + 1, None);
        }
        self.rows[number as usize] = Some(sums.row);
    }

    /// The inputs that are earlier snapshots of a process of which a later one was added.
    pub fn earlier(&self) -> Vec<u32> {
        earlier((0..).zip(&self.rows).filter_map(|(n, row)| Some((row.as_ref()?, n))))
    }

    /// Judges the processes. `sites` has the names of all call sites that were added.
    pub fn finish(self, sites: &Sites, options: &Options) -> JobReport {
        let (mut warnings, mut rows, mut beyond) = (Vec::new(), Vec::new(), Tally::default());
        let mut differing = Vec::new();
        let sampling = self.rows.iter().flatten().filter_map(|row| row.sampling);
        let sampling = sampling.max_by_key(|sampling| sampling.most());
        let mut stands_out: Vec<bool> = vec![false; self.rows.len()];
        let rows_of = self.rows.iter().map(Option::as_ref);
        let mut names = Names::of(rows_of.map(|row| row.map(|row| (&row.member, &*row.source))));
        let peers = names.peers();
        for (program, population) in &self.populations {
            let peers = &peers[program];
            names.naming = naming(program, &peers.members, &self.rows, &mut warnings);
            let mut judging = Judging {
                program,
                peers,
                names: &names,
                sites,
                rows: &self.rows,
                options,
                is_sampled: sampling.is_some(),
                stands_out: &mut stands_out,
            };
            differing.extend(judging.sums());
            rows.extend(judging.sites(population));
            beyond.join(population.beyond);
        }
        warnings.extend(sampling.map(|sampling| sampled("of some or all processes", sampling)));
        rows.sort_by(compare);
        let (shared, beyond_shared) = self.shared.rows(sites, &names);
        if beyond_shared > 0 {
            warnings.push(format!(
                "{} more IPC handles than are kept; their users are not listed",
                crate::analysis::words::count(beyond_shared)
            ));
        }
        let processes = self.rows.into_iter().zip(stands_out);
        let processes = (0..).zip(processes).filter_map(|(number, (row, stands_out))| {
            Some(JobProcess {
                number,
                stands_out,
                row: row?,
            })
        });
        let mut processes: Vec<JobProcess> = processes.collect();
        processes.sort_by_cached_key(|process| process.row.order());
        let enough = |row: &SiteRow| row.range.sum_bytes() >= options.min_bytes;
        let (_, hidden) = Cut::off(&mut rows, enough, options.top);
        let total = |of: fn(&Instant) -> Tally| Tally::total(processes.iter().map(|process| of(&process.row)));
        JobReport {
            format: FORMAT,
            version: VERSION,
            finished: !processes.is_empty() && processes.iter().all(|process| process.row.finished),
            leaked: !processes.is_empty() && processes.iter().all(|process| process.row.leaked()),
            sampled: sampling.is_some(),
            held: total(|row| row.held),
            pools: total(|row| row.pools),
            opaque_pools: {
                let of_processes = processes.iter().flat_map(|process| &process.row.opaque_pools);
                OpaquePool::merged(of_processes.cloned())
            },
            failed: total(|row| row.failed),
            filter: (!options.filter.is_empty()).then(|| Filtered {
                filter: options.filter.clone(),
                left_out: total(|row| row.left_out),
            }),
            suppressed: total(|row| row.suppressed),
            suppressions: self.suppressions,
            elsewhere: 0,
            hosts: member::hosts(processes.iter().map(|process| &process.row.member.host)),
            programs: self.populations.into_keys().collect(),
            stands_out: differing,
            sites: rows,
            shared,
            hidden_sites: hidden.len(),
            hidden: Tally::total(hidden.iter().map(SiteRow::tally)),
            beyond,
            processes,
            earlier_snapshots: 0,
            unreadable: Vec::new(),
            warnings,
        }
    }
}

/// The numbers of earlier snapshots of a process of which there is a later one.
pub fn earlier<'r>(rows: impl Iterator<Item = (&'r Instant, u32)>) -> Vec<u32> {
    let mut order: Vec<(&Instant, u32)> = rows.collect();
    let key = |row: &Instant| (row.member.host.clone(), row.member.pid, row.member.started_unix_ns);
    // A recording shows more than the automatic snapshots beside it.
    order.sort_by_cached_key(|(row, number)| (key(row), !row.is_automatic, row.at_unix_ns, *number));
    let pairs = order.windows(2);
    let same = pairs.filter(|pair| pair[0].0.member.is_same_process(&pair[1].0.member));
    same.map(|pair| pair[0].1).collect()
}

/// Sites with outliers first; in each part, the program's own sites before pools, by the bytes that stand out; then by sum. Equal ones by text, so that the order is
/// deterministic.
fn compare(a: &SiteRow, b: &SiteRow) -> std::cmp::Ordering {
    let apart = |row: &SiteRow| row.stands_out.as_ref().map(|out| out.apart_bytes);
    let group = |row: &SiteRow| (row.stands_out.is_none(), row.site.is_of_library());
    (group(a).cmp(&group(b)))
        .then_with(|| apart(b).cmp(&apart(a)))
        .then_with(|| (b.range.sum, b.sum_count).cmp(&(a.range.sum, a.sum_count)))
        .then_with(|| a.site.order().cmp(&b.site.order()))
        .then_with(|| a.program.cmp(&b.program))
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobReport {
    pub format: &'static str,
    pub version: u32,
    /// All processes have ended, and what they held then is shown.
    pub finished: bool,
    /// All processes have exited and never freed what is shown.
    #[serde(skip)]
    pub leaked: bool,
    /// Stacks of some or all processes were sampled, so sums of call sites are estimates.
    #[serde(skip)]
    pub sampled: bool,
    /// Memory in use in all processes, without pools.
    pub held: Tally,
    /// Requests that CUDA refused.
    pub failed: Tally,
    /// The filter, if there is one. It does not apply to peaks and failed requests.
    pub filter: Option<Filtered>,
    /// The memory that suppressions removed from the call sites, in total and by rule; no rules unless requested.
    pub suppressed: Tally,
    pub suppressions: Vec<Used>,
    /// Processes without any use of the devices that the filter selects, which are left out.
    pub elsewhere: usize,
    /// Memory of caching allocators.
    pub pools: Tally,
    /// The part of it whose blocks were not recorded, in all processes.
    pub opaque_pools: Vec<OpaquePool>,
    pub hosts: usize,
    pub programs: Vec<Program>,
    /// By program, rank, host and pid.
    pub processes: Vec<JobProcess>,
    /// Processes whose sums are far from those of the others.
    pub stands_out: Vec<ProcessesOut>,
    /// Sites at which processes stand out first; in each part, the program's own sites first, then by bytes.
    pub sites: Vec<SiteRow>,
    /// Memory that several processes have open, largest first.
    pub shared: Vec<SharedRow>,
    /// Call sites that `--top` or `--min-bytes` cut off.
    pub hidden_sites: usize,
    pub hidden: Tally,
    /// Memory of call sites beyond the most that a job keeps.
    pub beyond: Tally,
    /// Snapshots that were left out, because there is a later one of the same process.
    pub earlier_snapshots: usize,
    pub unreadable: Vec<Unreadable>,
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobProcess {
    /// That of its input.
    #[serde(skip)]
    pub number: u32,
    /// Its memory, or that of one of its call sites, is far from that of the other processes.
    pub stands_out: bool,
    #[serde(flatten)]
    pub row: Instant,
}

/// An input that could not be read.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Unreadable {
    pub source: String,
    pub reason: String,
}

#[cfg(test)]
pub mod tests;
