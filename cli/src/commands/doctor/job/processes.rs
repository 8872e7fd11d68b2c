//! The processes of this machine, as far as they show whether they belong to a job and can be recorded.
//!
//! Everything is read from /proc. Without root, only processes of the same user are visible. Deliberately absent: threads.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use culeak::analysis::job;
use culeak::analysis::site::file_name;
use culeak::job_variables::{JOB_VARIABLES, JobVariable, States};

/// The most that is read of a file in /proc.
const LIMIT: u64 = 64 << 20;

/// Which rank a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The row in [`JOB_VARIABLES`] of the variable that names the rank.
    pub row: usize,
    pub rank: u32,
    /// The number of ranks.
    pub ranks: Option<u32>,
}

impl Identity {
    /// `None` if no variable names a rank.
    pub fn of(variables: &BTreeMap<String, String>) -> Option<Identity> {
        let whole = job::identity::Identity::of(&culeak::snapshot::Process {
            ranks: variables.clone(),
            ..Default::default()
        });
        let rank = whole.rank?;
        let names_it = |row: &JobVariable| {
            let value = variables.get(row.name).and_then(|value| value.trim().parse().ok());
            row.states == States::Rank && value == Some(rank)
        };
        Some(Identity {
            row: JOB_VARIABLES.iter().position(names_it)?,
            rank,
            ranks: whole.world.filter(|ranks| *ranks <= MOST_RANKS),
        })
    }
}

/// A larger number of ranks is a mistake.
pub const MOST_RANKS: u32 = 1_000_000;

/// A process of this machine.
#[derive(Debug, Clone, Default)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
    /// As in /proc/PID/comm.
    pub name: String,
    /// The environment with which its program was started; values that are not UTF-8 are changed to it.
    pub variables: BTreeMap<String, String>,
    pub identity: Option<Identity>,
    /// The recording that it maps.
    pub recording: Option<PathBuf>,
    /// It maps culeak's library.
    pub has_library: bool,
    /// It maps the CUDA driver.
    pub has_driver: bool,
    /// It has other namespaces of mounts and processes than this command.
    pub is_contained: bool,
}

impl Process {
    /// The process's value of a variable, if it is not empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    pub fn uses_cuda(&self) -> bool {
        self.has_driver || self.recording.is_some()
    }

    /// culeak's library in `LD_PRELOAD`.
    pub fn preloaded(&self) -> Option<&str> {
        self.variable("LD_PRELOAD")?
            .split([':', ' ', '\t', '\n'])
            .find(|word| is_library(word))
    }

    /// A file or folder of /proc/PID.
    pub fn at(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    /// This process.
    pub fn of_self() -> Process {
        Process::read(std::process::id()).unwrap_or_default()
    }

    /// `None` if it has ended, or belongs to another user.
    fn read(pid: u32) -> Option<Process> {
        let folder = Path::new("/proc").join(pid.to_string());
        let environ = bytes(&folder.join("environ"))?;
        let variables: BTreeMap<String, String> = environ
            .split(|&byte| byte == 0)
            .filter_map(|entry| {
                let entry = String::from_utf8_lossy(entry);
                let (name, value) = entry.split_once('=')?;
                Some((name.to_owned(), value.to_owned()))
            })
            .collect();
        let maps = String::from_utf8_lossy(&bytes(&folder.join("maps"))?).into_owned();
        // Kernel threads and processes that have ended map nothing.
        if maps.is_empty() {
            return None;
        }
        let mapped = || {
            maps.lines()
                .filter_map(|line| Some(line[line.find('/')?..].trim_end_matches(" (deleted)")))
        };
        let other = |name: &str| {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
            of(&pid.to_string()) != of("self")
        };
        let identity = Identity::of(&variables);
        Some(Process {
            pid,
            parent: parent(pid)?,
            name: String::from_utf8_lossy(&bytes(&folder.join("comm"))?)
                .trim_end()
                .to_owned(),
            identity,
            recording: mapped().find(|path| path.ends_with(".culeak")).map(PathBuf::from),
            has_library: mapped().any(is_library),
            has_driver: mapped().any(|path| file_name(path).starts_with("libcuda.so")),
            is_contained: other("mnt") && other("pid"),
            variables,
        })
    }
}

/// Whether the path is that of culeak's library, as far as its name shows.
fn is_library(path: &str) -> bool {
    let name = file_name(path);
    let is_other = ["hold", "fake_driver"].iter().any(|other| name.contains(other));
    name.starts_with("libculeak") && name.ends_with(".so") && !is_other
}

/// All processes that can be read, by pid, except this one.
pub fn of_this_machine() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut all: Vec<Process> = pids
        .filter(|pid| *pid != std::process::id())
        .filter_map(Process::read)
        .collect();
    all.sort_by_key(|process| process.pid);
    all
}

/// Field 4 of /proc/PID/stat.
fn parent(pid: u32) -> Option<u32> {
    let stat = bytes(&Path::new("/proc").join(pid.to_string()).join("stat"))?;
    // The name in parentheses may contain anything, so fields are counted from its end.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    std::str::from_utf8(&stat[end + 1..])
        .ok()?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

fn bytes(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LIMIT).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_of_the_process_counts_before_that_of_the_node() {
        let of = |all: &[(&str, &str)]| {
            let variables = all
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Identity::of(&variables.collect())
        };
        let node = of(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")]).expect("a rank");
        assert_eq!(
            (JOB_VARIABLES[node.row].name, node.rank, node.ranks),
            ("SLURM_PROCID", 1, Some(2))
        );
        let process = of(&[
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("RANK", "9"),
            ("WORLD_SIZE", "16"),
        ]);
        let process = process.expect("a rank");
        assert_eq!(
            (JOB_VARIABLES[process.row].name, process.rank, process.ranks),
            ("RANK", 9, Some(16))
        );
        assert!(process.row < node.row);
        assert_eq!(of(&[("RANK", "nine")]), None);
        assert_eq!(
            of(&[("RANK", "3"), ("WORLD_SIZE", "4000000000")]).and_then(|identity| identity.ranks),
            None
        );
    }

    #[test]
    fn the_library_is_recognized_by_its_name() {
        assert!(is_library("/root/.cache/culeak/0.1.0-abc/libculeak.so") && is_library("/culeak/libculeak.so"));
        assert!(!is_library("/root/.cache/culeak/0.1.0-abc/libculeak-hold.so") && !is_library("/lib/libc.so.6"));
    }

    #[test]
    fn this_machine_has_processes_with_parents() {
        let own = Process::read(std::process::id()).expect("this process");
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(own.recording.is_none() && !own.has_library && !own.is_contained);
        assert!(
            of_this_machine()
                .iter()
                .all(|process| process.pid != std::process::id())
        );
    }
}
