//! `culeak doctor --job`: which ranks of a job have no recording, and why.
//!
//! Ranks that were recorded are those of the recordings. The number of ranks is `--ranks`, or what the environment of the ranks
//! says. A missing rank is looked for among the processes of this machine, whose environment, memory map and executable show
//! why it is not recorded; of processes on other machines only the probable host is known. With a launcher's command, a check
//! is started on each rank instead (`launched.rs`). Deliberately absent: repairs, and connections to other machines.

mod cause;
pub mod launched;
mod launcher;
mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use culeak::analysis::job::member::{Member, ranges};
use culeak::analysis::report::shell_word;
use culeak::analysis::whatif::ignored_settings;
use serde::Serialize;

use self::cause::Cause;
use self::processes::{Identity, Process};
use super::{DoctorArgs, Finding, Level, machine};
use crate::document::{Document, counted};
use crate::errors::Failure;
use crate::load::{Sources, packages};
use crate::text::units::plural;

/// Ranges of ranks or process ids that a line shows.
const RANGES: usize = 8;
/// Missing ranks that JSON lists.
const LISTED: usize = 100_000;
/// Unreadable inputs that are shown.
const SHOWN: usize = 5;

/// What was found out about the job as a whole.
#[derive(Debug, Default, Serialize)]
pub struct Summary {
    /// The number of ranks; `None` if nothing names it.
    pub ranks: Option<u32>,
    /// Ranks with a recording; with a launcher's command, ranks that could be recorded.
    pub recorded: u32,
    /// Recordings without a rank.
    pub without_rank: usize,
    pub missing: Vec<u32>,
    #[serde(skip)]
    inputs: Vec<String>,
    #[serde(skip)]
    before: bool,
}

impl Summary {
    /// The last lines of the text.
    pub fn write(&self, failures: u64, page: &mut Document) {
        let what = if self.before { "can be recorded" } else { "recorded" };
        let recorded = u64::from(self.recorded) + self.without_rank as u64;
        page.blank();
        page.line(match self.ranks.map(u64::from) {
            // Ranks beyond those that are expected are of another job, or --ranks is wrong.
            Some(ranks) if recorded > ranks => format!(
                "{} {what}, {} expected; name the job's number of ranks with --ranks, or a folder of this job alone",
                counted(recorded, "rank"),
                plural(ranks, "is", "are")
            ),
            Some(ranks) => format!("{recorded} of {} {what}", counted(ranks, "rank")),
            None => format!("{} {what}", counted(recorded, "process")),
        });
        if failures == 0 && recorded > 0 && !self.before {
            let inputs: Vec<String> = self.inputs.iter().map(|input| shell_word(input)).collect();
            page.next(format!("culeak report {}", inputs.join(" ")));
        }
    }
}

/// A recording, as far as this command needs it.
struct Recorded {
    identity: Option<Identity>,
    host: String,
    path: String,
}

/// # Errors
/// The launcher's command cannot be used.
pub fn check(args: &DoctorArgs) -> Result<(Vec<Finding>, Summary), Failure> {
    let inputs: Vec<OsString> = match args.inputs.is_empty() {
        true => vec![OsString::from(".")],
        false => args.inputs.clone(),
    };
    // Remedies name it for other machines and folders.
    let folder = std::path::absolute(&inputs[0]).unwrap_or_else(|_| PathBuf::from(&inputs[0]));
    // Without a slash at its end, as remedies put one behind it.
    let folder: PathBuf = folder.components().collect();
    let folder = folder.as_path();
    if !args.launcher.is_empty() {
        return launched::check(folder, &args.launcher, args.ranks);
    }
    let mut findings = match folder.is_dir() {
        true => machine::recordings_in(folder),
        false => Vec::new(),
    };
    let recorded = read(&inputs, &mut findings);
    let processes = processes::of_this_machine();
    let job = Job::of(&recorded, &processes, args.ranks, &mut findings);
    findings.extend(job.missing_here(folder));
    findings.extend(job.missing_elsewhere(folder));
    if job.row.is_none() {
        findings.extend(job.too_few());
        findings.extend(job.without_ranks(folder));
    }
    let summary = Summary {
        ranks: job.ranks,
        recorded: job.present.len() as u32,
        without_rank: recorded.iter().filter(|one| one.identity.is_none()).count(),
        missing: job.missing.iter().copied().take(LISTED).collect(),
        inputs: inputs
            .iter()
            .map(|input| input.to_string_lossy().into_owned())
            .collect(),
        before: false,
    };
    Ok((findings, summary))
}

/// Reads the recordings; those that cannot be read become findings.
fn read(inputs: &[OsString], findings: &mut Vec<Finding>) -> Vec<Recorded> {
    let mut found = Sources::each(inputs);
    let mut ignored: BTreeMap<String, u64> = BTreeMap::new();
    let recorded = found.read(|place| {
        let mut item = place.load_without_peaks()?;
        packages::add(&mut item.snapshot, item.root.as_deref());
        for setting in ignored_settings(&item.snapshot) {
            *ignored.entry(setting).or_default() += 1;
        }
        Ok(Recorded {
            identity: Identity::of(&item.snapshot.process.ranks),
            host: Member::of(&item.snapshot).host,
            path: item.snapshot.process.recording,
        })
    });
    findings.extend(ignored.into_iter().map(|(setting, processes)| {
        let text = format!("{setting}, in {}", counted(processes, "process"));
        let remedy = "look for a warning of PyTorch at its start, and for a program that changes its settings later";
        Finding::warn("settings", text, remedy)
    }));
    for failure in found.failures.iter().take(SHOWN) {
        let remedy = "an empty or cut file comes from a full disk or a quota; free space and start the job again";
        findings.push(match recorded.is_empty() {
            true => Finding::fail(
                "recordings",
                failure,
                "start the job with culeak; culeak help launchers has the command for each launcher",
            ),
            false => Finding::warn("recordings", failure, remedy),
        });
    }
    if found.failures.len() > SHOWN {
        let more = format!("{} more inputs cannot be read", found.failures.len() - SHOWN);
        findings.push(Finding::warn("recordings", more, "culeak report lists them"));
    }
    recorded
}

/// The ranks of the job, and the processes of this machine that may be among them.
struct Job<'a> {
    /// The row in `JOB_VARIABLES` of the variable that names the ranks; `None`: none does.
    row: Option<usize>,
    ranks: Option<u32>,
    present: BTreeSet<u32>,
    missing: BTreeSet<u32>,
    recorded: &'a [Recorded],
    processes: &'a [Process],
}

impl<'a> Job<'a> {
    fn of(
        recorded: &'a [Recorded],
        processes: &'a [Process],
        ranks: Option<u32>,
        findings: &mut Vec<Finding>,
    ) -> Job<'a> {
        let of_recordings = || recorded.iter().filter_map(|one| one.identity);
        let of_processes = || processes.iter().filter_map(|process| process.identity);
        // A launcher below another one names the ranks of processes; the outer one's numbers are those of nodes.
        let outermost = |identities: &mut dyn Iterator<Item = Identity>| identities.map(|identity| identity.row).min();
        let row = outermost(&mut of_recordings()).or_else(|| outermost(&mut of_processes()));
        let ours = |identity: &Identity| Some(identity.row) == row;
        let sizes = |identities: &mut dyn Iterator<Item = Identity>| -> BTreeSet<u32> {
            identities.filter(ours).filter_map(|identity| identity.ranks).collect()
        };
        let wrote_one = |process: &&Process| {
            let path = process.recording.as_deref().map(Path::to_string_lossy);
            path.is_some_and(|path| recorded.iter().any(|one| one.path == path))
        };
        let of_writers = || {
            processes
                .iter()
                .filter(wrote_one)
                .filter_map(|process| process.identity)
        };
        // Other jobs may run here, too.
        let named = [
            sizes(&mut of_recordings()),
            sizes(&mut of_writers()),
            sizes(&mut of_processes()),
        ];
        let named = named.into_iter().find(|sizes| !sizes.is_empty()).unwrap_or_default();
        let present: BTreeSet<u32> = of_recordings().filter(ours).map(|identity| identity.rank).collect();
        let listed = shown(&named);
        match ranks {
            None if named.len() > 1 => findings.push(Finding::warn(
                "ranks",
                format!("processes of jobs with {listed} ranks are here"),
                "name the number of ranks of this job: --ranks N",
            )),
            Some(ranks) if !named.is_empty() && !named.contains(&ranks) => findings.push(Finding::warn(
                "ranks",
                format!("the processes here are of jobs with {listed} ranks, not {ranks}, and are not considered"),
                "name the number of ranks that the processes were started with: --ranks N",
            )),
            _ => {}
        }
        let ranks = ranks.or_else(|| named.last().copied());
        let last = ranks.or_else(|| present.last().map(|last| last + 1)).unwrap_or(0);
        // Recordings without ranks can only be counted.
        let last = if row.is_none() && !recorded.is_empty() { 0 } else { last };
        if ranks.is_none() && row.is_some() {
            findings.push(Finding::warn(
                "ranks",
                "nothing names the number of ranks, so ranks after the last one with a recording are not noticed",
                "name it: --ranks N",
            ));
        }
        Job {
            row,
            ranks,
            missing: (0..last).filter(|rank| !present.contains(rank)).collect(),
            present,
            recorded,
            processes,
        }
    }

    /// Missing ranks that have a process on this machine, with the same cause in one finding.
    fn missing_here(&self, folder: &Path) -> Vec<Finding> {
        let mut causes: BTreeMap<Cause, [BTreeSet<u32>; 2]> = BTreeMap::new();
        for &rank in &self.missing {
            for process in self.of_rank(rank) {
                let [ranks, pids] = causes.entry(self.cause(process, folder)).or_default();
                ranks.insert(rank);
                pids.insert(process.pid);
            }
        }
        let mut causes: Vec<_> = causes.into_iter().collect();
        causes.sort_by_key(|(_, [ranks, _])| ranks.first().copied());
        let finding = |(cause, [ranks, pids]): (Cause, [BTreeSet<u32>; 2])| {
            let level = if cause.is_harmless { Level::Warn } else { Level::Fail };
            Finding::new(level, named(&ranks), said(&pids, &cause), Some(cause.remedy))
        };
        causes.into_iter().map(finding).collect()
    }

    fn cause(&self, process: &Process, folder: &Path) -> Cause {
        let known: Vec<&str> = self.recorded.iter().map(|one| one.path.as_str()).collect();
        Cause::of(process, self.processes, &known, folder)
    }

    /// The processes of this machine with this rank that show why it is not recorded: those that use CUDA, else those that
    /// started no other process of the rank.
    fn of_rank(&self, rank: u32) -> Vec<&Process> {
        let has_rank = |process: &&Process| {
            let identity = process.identity.filter(|identity| Some(identity.row) == self.row);
            // With another number of ranks it belongs to another job; with a recording elsewhere and no number, probably.
            let is_ours = |ranks: Option<u32>| match ranks {
                None => process.recording.is_none(),
                Some(_) => self.ranks.is_none() || ranks == self.ranks,
            };
            identity.is_some_and(|identity| identity.rank == rank && is_ours(identity.ranks))
        };
        let all: Vec<&Process> = self.processes.iter().filter(has_rank).collect();
        let using: Vec<&Process> = all.iter().copied().filter(|process| process.uses_cuda()).collect();
        if !using.is_empty() {
            return using;
        }
        let parents: BTreeSet<u32> = all.iter().map(|process| process.parent).collect();
        all.into_iter()
            .filter(|process| !parents.contains(&process.pid))
            .collect()
    }

    /// Missing ranks without a process here, by the host on which they probably ran.
    fn missing_elsewhere(&self, folder: &Path) -> Vec<Finding> {
        let hosts: BTreeMap<u32, &str> = self
            .recorded
            .iter()
            .filter_map(|one| {
                let identity = one.identity.filter(|identity| Some(identity.row) == self.row)?;
                Some((identity.rank, one.host.as_str()))
            })
            .collect();
        let mut groups: BTreeMap<Option<&str>, BTreeSet<u32>> = BTreeMap::new();
        for &rank in self.missing.iter().filter(|&&rank| self.of_rank(rank).is_empty()) {
            let below = hosts.range(..rank).next_back();
            let above = hosts.range(rank..).next();
            // Launchers give neighbouring ranks to a host, as a rule.
            let host = match (below, above) {
                (Some((_, below)), Some((_, above))) if below == above => Some(*below),
                _ => None,
            };
            groups.entry(host).or_default().insert(rank);
        }
        let here = host();
        groups
            .into_iter()
            .map(|(host, ranks)| {
                let shown = folder.display();
                let (text, remedy) = match host {
                    Some(host) if host == here => (
                        format!("no recording, and no process with this rank runs on this machine ({host}) now"),
                        format!(
                            "the process has ended, or never used CUDA; run this command while the job runs, or \
                             `culeak doctor --job {shown} -- LAUNCHER` with the job's launcher"
                        ),
                    ),
                    Some(host) => (
                        format!("no recording; the ranks beside it ran on {host}"),
                        format!("run `culeak doctor --job {shown}` on {host} while the job runs"),
                    ),
                    None => (
                        format!("no recording, and no process here; {}", machine_of(folder)),
                        format!(
                            "if whole hosts are missing, use a folder that all of them share, and pass LD_PRELOAD and CULEAK_OUTPUT to \
                             them; `culeak doctor --job {shown} -- LAUNCHER` with the job's launcher checks both"
                        ),
                    ),
                };
                Finding::fail(named(&ranks), text, remedy)
            })
            .collect()
    }

    /// Fewer recordings than expected, none of which has a rank.
    fn too_few(&self) -> Option<Finding> {
        let (ranks, found) = (self.ranks?, self.recorded.len());
        let text = format!("{found} recorded, {ranks} expected; they have no ranks, so none can be named");
        let remedy = "set RANK in the environment of each process before it uses CUDA; reports name it then";
        (found > 0 && found < ranks as usize).then(|| Finding::fail("processes", text, remedy))
    }

    /// Processes that use CUDA and are not recorded, of launchers that set no rank.
    fn without_ranks(&self, folder: &Path) -> Vec<Finding> {
        let mut causes: BTreeMap<Cause, BTreeSet<u32>> = BTreeMap::new();
        let unrecorded = |process: &&Process| process.uses_cuda() && process.recording.is_none();
        for process in self.processes.iter().filter(unrecorded) {
            causes
                .entry(self.cause(process, folder))
                .or_default()
                .insert(process.pid);
        }
        let finding = |(cause, pids)| Finding::warn("not recorded", said(&pids, &cause), cause.remedy);
        causes.into_iter().map(finding).collect()
    }
}

fn said(pids: &BTreeSet<u32>, cause: &Cause) -> String {
    let noun = if pids.len() == 1 { "process" } else { "processes" };
    format!("{noun} {}: {}", shown(pids), cause.text)
}

/// `rank 3`, `ranks 0-2, 5`.
fn named(ranks: &BTreeSet<u32>) -> String {
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{noun} {}", shown(ranks))
}

fn shown(numbers: &BTreeSet<u32>) -> String {
    ranges(&numbers.iter().copied().collect::<Vec<_>>(), RANGES)
}

/// The name of this host, as recordings have it.
fn host() -> String {
    let names = nix::sys::utsname::uname();
    names
        .map(|names| names.nodename().to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// `runs is on ext4, a file system of this machine alone`.
fn machine_of(folder: &Path) -> String {
    const SHARED: &str = "nfs nfs4 lustre gpfs beegfs ceph fuse.weka wekafs cifs smb3 9p virtiofs";
    let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let shown = folder.display();
    match file_system(&mounts, &folder) {
        Some(kind) if SHARED.split(' ').any(|shared| shared == kind) => {
            format!("{shown} is on {kind}, which hosts can share")
        }
        Some(kind) if kind.starts_with("fuse") => format!("{shown} is on {kind}"),
        Some(kind) => format!("{shown} is on {kind}, a file system of this machine alone"),
        None => format!("the file system of {shown} is unknown"),
    }
}

/// The type of the file system that contains the folder, from the lines of /proc/self/mountinfo.
fn file_system<'m>(mounts: &'m str, folder: &Path) -> Option<&'m str> {
    let parsed = mounts.lines().filter_map(|line| {
        let (mount, rest) = line.split_once(" - ")?;
        Some((mount.split(' ').nth(4)?, rest.split(' ').next()?))
    });
    let containing = parsed.filter(|(point, _)| folder.starts_with(point));
    // Of mounts at one place the last one counts.
    containing.max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_has_the_folder() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      23 22 0:30 / /home rw,nosuid shared:7 - nfs4 server:/home rw\n\
                      24 22 0:31 / /home/old rw - tmpfs tmpfs rw\n";
        let of = |path: &str| file_system(mounts, Path::new(path));
        assert_eq!(of("/home/me/runs"), Some("nfs4"));
        assert_eq!(of("/home/old/runs"), Some("tmpfs"));
        assert_eq!(of("/homes"), Some("ext4"));
        assert_eq!(file_system("", Path::new("/")), None);
    }

    fn recorded(rank: u32, host: &str) -> Recorded {
        Recorded {
            identity: Some(Identity {
                row: 0,
                rank,
                ranks: None,
            }),
            host: host.to_owned(),
            path: format!("/runs/{rank}.culeak"),
        }
    }

    #[test]
    fn the_host_of_a_missing_rank_is_that_of_its_neighbours() {
        let all: Vec<Recorded> = [0, 1, 3].map(|rank| recorded(rank, "a")).into_iter().collect();
        let mut findings = Vec::new();
        let job = Job::of(&all, &[], Some(8), &mut findings);
        assert!(findings.is_empty());
        let found = job.missing_elsewhere(Path::new("runs"));
        let lines: Vec<String> = found
            .iter()
            .map(|one| format!("{}: {}", one.subject, one.text))
            .collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].starts_with("ranks 4-7: no recording, and no process here"),
            "{lines:?}"
        );
        assert_eq!(lines[1], "rank 2: no recording; the ranks beside it ran on a");
    }

    #[test]
    fn without_a_number_of_ranks_gaps_are_missing_and_the_end_is_open() {
        let all: Vec<Recorded> = [0, 2].map(|rank| recorded(rank, "a")).into_iter().collect();
        let mut findings = Vec::new();
        let job = Job::of(&all, &[], None, &mut findings);
        assert_eq!(job.missing, BTreeSet::from([1]));
        assert!(
            findings[0]
                .remedy
                .as_deref()
                .is_some_and(|remedy| remedy.contains("--ranks N"))
        );
    }

    #[test]
    fn a_million_ranks_without_recordings_are_one_line() {
        let all = [recorded(0, "a")];
        let job = Job::of(&all, &[], Some(1_000_000), &mut Vec::new());
        let found = job.missing_elsewhere(Path::new("runs"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].subject, "ranks 1-999999");
        let none = Job::of(&[], &[], Some(4), &mut Vec::new());
        assert_eq!(none.missing_elsewhere(Path::new("runs"))[0].subject, "ranks 0-3");
    }

    #[test]
    fn recordings_without_ranks_are_counted() {
        let all = [Recorded {
            identity: None,
            ..recorded(0, "a")
        }];
        let job = Job::of(&all, &[], Some(2), &mut Vec::new());
        assert!(job.missing.is_empty());
        assert!(
            job.too_few()
                .is_some_and(|finding| finding.text.starts_with("1 recorded, 2 expected"))
        );
        assert!(Job::of(&all, &[], Some(1), &mut Vec::new()).too_few().is_none());
    }
}
