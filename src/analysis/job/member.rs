//! Which process of a job this is: its rank, its place on the host, and how it is called in sentences.
//!
//! Launchers put the rank into the environment, and the recorder keeps these variables. If several are set, the variable that
//! stands first in [`RANKS`] counts: `torchrun` below `srun` sets RANK per process, while SLURM_PROCID is that of the node.
//! Deliberately absent: other ways to recognize a process; without a variable it is known by host and pid.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::analysis::program::Program;
use crate::analysis::words;
use crate::snapshot::Snapshot;

/// Variables that contain the rank in the whole job, first those that are set for the process itself.
const RANKS: [&str; 4] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];

/// A process of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    pub rank: Option<u32>,
    pub local_rank: Option<u32>,
    pub host: String,
    pub pid: u32,
    pub started_unix_ns: u64,
    pub program: Program,
}

/// The rank in the whole job, from the recorded variables of a process.
pub fn rank_of(variables: &BTreeMap<String, String>) -> Option<u32> {
    RANKS.iter().find_map(|name| number(variables, name))
}

fn number(variables: &BTreeMap<String, String>, name: &str) -> Option<u32> {
    variables.get(name)?.trim().parse().ok()
}

impl Member {
    pub fn of(snapshot: &Snapshot) -> Member {
        let process = &snapshot.process;
        Member {
            rank: rank_of(&process.ranks),
            local_rank: number(&process.ranks, "LOCAL_RANK"),
            host: process.host.clone(),
            pid: process.pid,
            started_unix_ns: process.started_unix_ns,
            program: Program::of(snapshot),
        }
    }

    /// Whether both are the same process.
    pub fn is_same_process(&self, other: &Member) -> bool {
        let key = |member: &Member| (member.pid, member.started_unix_ns);
        // Snapshots that PyTorch took of itself have neither.
        key(self) == key(other) && self.host == other.host && self.pid != 0
    }
}

/// `3`, `0, 8-15`, `0, 1, 2 and 5 more`: numbers in ascending order, neighbours as ranges, at most `most` of them. There are
/// `beyond` more numbers, which are not known.
pub fn ranges(numbers: &[u32], beyond: u64, most: usize) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut shown = 0;
    for run in numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        if parts.len() == most {
            break;
        }
        shown += run.len();
        parts.push(match run {
            [one] => one.to_string(),
            [first, .., last] => format!("{first}-{last}"),
            [] => continue,
        });
    }
    match (numbers.len() - shown) as u64 + beyond {
        0 => parts.join(", "),
        more => format!("{} and {} more", parts.join(", "), words::count(more)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::leaky;

    #[test]
    fn the_rank_of_the_process_counts_before_that_of_the_node() {
        let mut snapshot = leaky();
        assert_eq!(Member::of(&snapshot).rank, None);
        let ranks = &mut snapshot.process.ranks;
        ranks.insert("SLURM_PROCID".to_owned(), "1".to_owned());
        ranks.insert("RANK".to_owned(), "9".to_owned());
        assert_eq!(Member::of(&snapshot).rank, Some(9));
        snapshot.process.ranks.insert("RANK".to_owned(), "nine".to_owned());
        assert_eq!(Member::of(&snapshot).rank, Some(1));
    }

    #[test]
    fn neighbouring_ranks_are_a_range() {
        assert_eq!(ranges(&[3], 0, 4), "3");
        assert_eq!(ranges(&[0, 8, 9, 10], 0, 4), "0, 8-10");
        assert_eq!(ranges(&[1, 3, 5, 7], 1000, 2), "1, 3 and 1,002 more");
        assert_eq!(ranges(&[u32::MAX], 0, 2), u32::MAX.to_string());
    }
}
