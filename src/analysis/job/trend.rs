//! Trends of a job: which call sites grow, on how many of its processes, and which processes grow alone.
//!
//! Each process is judged by itself ([`crate::analysis::trend`]); its judged call sites are added up here and its trend can be
//! dropped. A process that was restarted is one process.
//!
//! Deliberately absent: the series of each process; `--per-process` shows them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Options;
use super::member::{Member, ProcessRef, hosts};
use super::names::Names;
use super::parallel::{Compared, groups};
use super::sites::Site;
use crate::analysis::facts::rank;
use crate::analysis::opaque::OpaquePool;
use crate::analysis::program::Program;
use crate::analysis::site::Fingerprint;
use crate::analysis::trend::{Against, Class, Classes, Measure, POINTS_NEEDED, Trend};
use crate::analysis::words;
use crate::tally::Tally;

/// The value of [`JobTrend::format`].
pub const FORMAT: &str = "culeak-job-trend";
pub const VERSION: u32 = 1;
/// Processes that a row lists.
const NAMED: usize = 64;
/// A warning for each of a thousand processes does not help.
const WARNINGS: usize = 10;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct JobTrend {
    pub format: &'static str,
    pub version: u32,
    pub program: Program,
    pub against: Against,
    /// By rank, host and pid.
    pub processes: Vec<ProcessTrend>,
    pub hosts: usize,
    /// The number of snapshots of one process that a judgement needs.
    pub points_needed: usize,
    /// The number of processes that could be judged.
    pub judged: usize,
    /// Number of call sites by class: the most suspicious one in any process.
    pub classes: Classes,
    /// Number of call sites that grow until the end of a process, as in the trend of one.
    pub growing: usize,
    /// Most suspicious first; then those that grow most in all processes together.
    pub sites: Vec<SiteTrend>,
    pub hidden_sites: usize,
    /// Pools whose blocks were not recorded, in all processes.
    pub opaque_pools: Vec<OpaquePool>,
    pub warnings: Vec<String>,
}

/// A process, restarts included.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessTrend {
    #[serde(flatten)]
    pub member: Member,
    /// The last of its snapshots.
    pub source: String,
    pub points: usize,
    /// The number of times it was started.
    pub runs: usize,
    pub finished: bool,
    /// It has enough snapshots, and enough marks if growth is measured against them.
    pub judged: bool,
    pub first: Tally,
    /// At the last snapshot before it ended, with which the call sites end too.
    pub last: Tally,
    /// What was left at exit, if that is known besides.
    pub at_exit: Option<Tally>,
    /// The number of its call sites that grow.
    pub growing: usize,
    /// What they grow by, per unit.
    pub pace: f64,
    /// Units until a device is full at that pace: the soonest.
    pub full_after: Option<f64>,
    /// Nothing that a report counts is missing in any of its snapshots.
    #[serde(skip)]
    pub is_complete: bool,
}

/// A call site over all processes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SiteTrend {
    pub site: Site,
    /// The most suspicious one in any process.
    pub class: Class,
    pub judged_by: Measure,
    /// Processes by the class of this call site; one without the site, or in which it never changed, is in none.
    pub classes: Classes,
    /// Processes with this class, and all that were judged.
    pub agreeing: usize,
    pub judged: usize,
    /// Some of the processes with this class, those that grow most first.
    pub processes: Vec<Growing>,
    /// The sum of the paces of the processes with this class, in bytes, or in objects if the row is of objects.
    pub pace: f64,
    /// In all processes together.
    pub first: Tally,
    pub last: Tally,
    /// The most bytes that one process held.
    #[serde(skip)]
    pub most: u64,
    /// Units until the device of one of them is full.
    pub full_after: Option<f64>,
    /// Who grows by how much, in words.
    pub sentence: String,
}

/// A process whose call site has the row's class.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Growing {
    #[serde(flatten)]
    pub process: ProcessRef,
    pub pace: f64,
    pub first: u64,
    pub last: u64,
}

/// Trends of processes, added one after the other.
#[derive(Debug, Default)]
pub struct Job {
    /// Without its call sites.
    trend: JobTrend,
    sites: BTreeMap<SiteKey, (Site, Vec<OfProcess>)>,
}

/// Cached memory is apart from held memory, and each kind of object.
type SiteKey = (Fingerprint, bool, Option<&'static str>);

/// A call site in a process that was judged.
#[derive(Debug, Clone, Copy)]
struct OfProcess {
    process: u32,
    class: Class,
    judged_by: Measure,
    /// In bytes, or in objects.
    pace: f64,
    first: Tally,
    last: Tally,
    most: u64,
    full_after: Option<f64>,
}

impl Job {
    /// Adds the trend of a process, all of whose rows that change must be in it.
    pub fn add(&mut self, trend: &Trend) {
        let Some((span, (last, at_exit))) = trend.processes.last().zip(trend.end()) else {
            return;
        };
        let process = self.trend.processes.len() as u32;
        if process == 0 {
            (self.trend.program, self.trend.against) = (trend.program.clone(), trend.against);
        }
        let judged = !(trend.too_few || trend.no_marks || trend.too_few_marks);
        let rows = || trend.rows.iter().filter(|_| judged);
        let growing = || rows().filter(|row| row.class.is_growth());
        let of_memory = growing().filter(|row| row.site.object.is_none());
        let mut points = trend.points.iter();
        let first = points.find(|point| point.process + 1 == trend.processes.len());
        let full = trend.devices.iter().filter_map(|device| device.full_after);
        self.trend.processes.push(ProcessTrend {
            member: span.member.clone(),
            source: at_exit.unwrap_or(last).source.clone(),
            points: trend.points.len(),
            runs: trend.processes.len(),
            finished: span.finished,
            judged,
            first: first.map_or_else(Tally::default, |point| point.held),
            last: last.held,
            at_exit: at_exit.map(|point| point.held),
            growing: growing().count(),
            pace: total(of_memory.map(|row| row.bytes.pace)),
            full_after: full.min_by(f64::total_cmp),
            is_complete: trend.points.iter().all(|point| point.is_complete),
        });
        self.trend.opaque_pools.extend_from_slice(&trend.opaque_pools);
        for warning in &trend.warnings {
            if self.trend.warnings.len() < WARNINGS && !self.trend.warnings.contains(warning) {
                self.trend.warnings.push(warning.clone());
            }
        }
        for row in rows() {
            let key = (row.site.fingerprint, row.site.pool, row.site.object);
            let (_, all) = (self.sites.entry(key)).or_insert_with(|| (row.site.clone(), Vec::new()));
            all.push(OfProcess {
                process,
                class: row.class,
                judged_by: row.judged_by,
                // Bytes say more to the reader, even if the number of blocks decided.
                pace: row.shown().pace,
                first: Tally::new(row.bytes.first, row.count.first),
                last: Tally::new(row.bytes.last, row.count.last),
                most: row.bytes.most,
                full_after: row.full_after,
            });
        }
    }

    /// The trend of the job.
    pub fn finish(self, options: &Options) -> JobTrend {
        let Job { mut trend, sites } = self;
        let words = Words::of(&trend);
        let judged = words.judged;
        let mut rows: Vec<SiteTrend> = sites.into_values().map(|(site, all)| words.row(site, all)).collect();
        rows.iter().for_each(|row| trend.classes.add(row.class));
        let order = |a: &SiteTrend, b: &SiteTrend| {
            (a.class.cmp(&b.class))
                .then_with(|| a.site.is_of_library().cmp(&b.site.is_of_library()))
                .then_with(|| b.pace.total_cmp(&a.pace))
                .then_with(|| b.last.bytes.cmp(&a.last.bytes))
                .then_with(|| a.site.order().cmp(&b.site.order()))
        };
        let wanted = |row: &SiteTrend| row.most >= options.min_bytes || row.site.object.is_some();
        let hidden_sites = rank(&mut rows, order, wanted, options.top);
        trend.processes.sort_by_cached_key(|process| {
            let (rank, host, pid) = process.member.name();
            (rank.unwrap_or(u32::MAX), host.to_owned(), pid, process.source.clone())
        });
        JobTrend {
            format: FORMAT,
            version: VERSION,
            hosts: hosts(trend.processes.iter().map(|process| &process.member.host)),
            points_needed: POINTS_NEEDED,
            judged,
            growing: trend.classes.growing(),
            hidden_sites,
            sites: rows,
            opaque_pools: OpaquePool::merged(std::mem::take(&mut trend.opaque_pools)),
            ..trend
        }
    }
}

impl JobTrend {
    pub fn is_growing(&self) -> bool {
        self.growing > 0
    }
}

/// The sum of paces; 0.0 of none, where `sum` returns -0.0.
fn total(paces: impl Iterator<Item = f64>) -> f64 {
    paces.fold(0.0, |sum, pace| sum + pace)
}

fn soonest(of: &[OfProcess]) -> Option<f64> {
    of.iter().filter_map(|of| of.full_after).min_by(f64::total_cmp)
}

/// What rows need of the processes.
struct Words<'p> {
    names: Names<'p>,
    judged: usize,
    /// Of the judged ones.
    groups: Vec<Compared>,
    against: Against,
}

impl<'p> Words<'p> {
    fn of(trend: &'p JobTrend) -> Words<'p> {
        let processes = &trend.processes;
        let judged = (0..).zip(processes).filter(|(_, process)| process.judged);
        Words {
            names: Names::of((processes.iter()).map(|process| Some((&process.member, &*process.source)))),
            judged: judged.clone().count(),
            groups: groups(judged.map(|(number, process)| (number, &process.member.identity))),
            against: trend.against,
        }
    }

    fn row(&self, site: Site, all: Vec<OfProcess>) -> SiteTrend {
        let mut classes = Classes::default();
        all.iter().for_each(|of| classes.add(of.class));
        let class = all.iter().map(|of| of.class).min().unwrap_or(Class::TooFew);
        let (first, last) = (all.iter().map(|of| of.first), all.iter().map(|of| of.last));
        let (first, last) = (Tally::total(first), Tally::total(last));
        let most = all.iter().map(|of| of.most).max().unwrap_or(0);
        let mut same: Vec<OfProcess> = all.into_iter().filter(|of| of.class == class).collect();
        same.sort_by(|a, b| b.pace.total_cmp(&a.pace).then(a.process.cmp(&b.process)));
        let shown = |tally: Tally| match site.object {
            Some(_) => tally.count,
            None => tally.bytes,
        };
        let growing = same.iter().take(NAMED).filter_map(|of| {
            Some(Growing {
                process: self.names.process(of.process)?,
                pace: of.pace,
                first: shown(of.first),
                last: shown(of.last),
            })
        });
        SiteTrend {
            class,
            judged_by: same.first().map_or(Measure::Bytes, |of| of.judged_by),
            classes,
            agreeing: same.len(),
            judged: self.judged,
            processes: growing.collect(),
            pace: total(same.iter().map(|of| of.pace)),
            first,
            last,
            most,
            full_after: soonest(&same),
            sentence: self.sentence(&site, &same),
            site,
        }
    }

    /// `only rank 5 of 8: +30 MiB per hour, full in 3 h`, `all 8 ranks: +9 MiB to +11 MiB per hour each`.
    fn sentence(&self, site: &Site, same: &[OfProcess]) -> String {
        let names = || self.names.list(same.iter().map(|of| of.process));
        // Where stages are known, the processes of one are compared with each other.
        let has_all = |group: &&Compared| same.iter().all(|of| group.all.contains(&of.process));
        let stage = self.groups.iter().filter(|group| group.all.len() > 1).find(has_all);
        let (of, scope) = stage.map_or((self.judged, String::new()), |group| {
            (group.all.len(), group.scope.to_string())
        });
        let all = format!("{} {}", words::count(of as u64), self.names.naming.noun(of as u64));
        let (only, each) = match same.len() {
            1 => ("only ", ""),
            _ => ("", " each"),
        };
        let who = match (same.len(), of) {
            (1, 1) => names(),
            (n, of) if n == of => format!("all {all}{scope}"),
            _ if !scope.is_empty() => format!("{only}{} of the {all}{scope}", names()),
            _ => format!("{only}{} of {}", names(), words::count(of as u64)),
        };
        let pace = |of: Option<&OfProcess>| match (of.map_or(0.0, |of| of.pace), site.object) {
            (pace, Some(_)) => format!("{pace:+.1}"),
            (pace, None) => words::signed_bytes(pace as i128),
        };
        let (most, least) = (pace(same.first()), pace(same.last()));
        let paces = if most == least {
            most
        } else {
            format!("{least} to {most}")
        };
        let full = soonest(same).map(|after| format!(", a device is full in {}", self.against.span(after)));
        let (unit, full) = (self.against.unit(), full.unwrap_or_default());
        format!("{who}: {paces} per {unit}{each}{full}")
    }
}

#[cfg(test)]
mod tests;
