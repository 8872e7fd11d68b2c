//! The processes of this machine, as far as they show whether they belong to a job and can be recorded.
//!
//! Everything is read from /proc. Without root, only processes of the same user are visible. Deliberately absent: threads.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use culeak::analysis::job;
use culeak::job_variables::{JOB_VARIABLES, JobVariable, States};
use culeak::proc::{self, Files};

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
        let mut words = self.variable("LD_PRELOAD")?.split([':', ' ', '\t', '\n']);
        words.find(|word| proc::is_preload_library(Path::new(word)))
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
        let mappings = proc::mappings(pid).ok()?;
        // Kernel threads and processes that have ended map nothing.
        if mappings.is_empty() {
            return None;
        }
        let files = Files::of(&mappings);
        let other = |name: &str| {
            let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
            of(&pid.to_string()) != of("self")
        };
        let identity = Identity::of(&variables);
        Some(Process {
            pid,
            parent: proc::stat_of(pid)?.parent,
            name: String::from_utf8_lossy(&bytes(&folder.join("comm"))?)
                .trim_end()
                .to_owned(),
            identity,
            recording: files.recordings.into_iter().next(),
            has_library: files.has_library,
            has_driver: files.driver.is_some(),
            is_contained: other("mnt") && other("pid"),
            variables,
        })
    }
}

/// All processes that can be read, by pid, except this one.
pub fn of_this_machine() -> Vec<Process> {
    let mut pids: Vec<u32> = proc::numbers("/proc").into_iter().flatten().collect();
    pids.sort_unstable();
    let others = pids.into_iter().filter(|pid| *pid != std::process::id());
    others.filter_map(Process::read).collect()
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
