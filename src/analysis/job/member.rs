//! A process of a job, and how processes are called in sentences.

use std::collections::BTreeSet;
use std::ops::Deref;

use serde::Serialize;

use super::identity::Identity;
use crate::analysis::program::Program;
use crate::analysis::words;
use crate::snapshot::Snapshot;

/// Rank, host and pid of a process.
pub type ProcessName<'a> = (Option<u32>, &'a str, u32);

/// A process of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Member {
    #[serde(flatten)]
    pub identity: Identity,
    pub host: String,
    pub pid: u32,
    pub started_unix_ns: u64,
    /// How long it ran, or had run when its snapshot was taken.
    #[serde(skip)]
    pub lasted_ns: u64,
    pub program: Program,
}

impl Deref for Member {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}

impl Member {
    pub fn of(snapshot: &Snapshot) -> Member {
        let process = &snapshot.process;
        Member {
            identity: Identity::of(process),
            host: process.host.clone(),
            pid: process.pid,
            started_unix_ns: process.started_unix_ns,
            lasted_ns: snapshot.taken.lasted_ns.unwrap_or(snapshot.taken.at_ns),
            program: Program::of(snapshot),
        }
    }

    pub fn name(&self) -> ProcessName<'_> {
        (self.rank, &self.host, self.pid)
    }

    /// Whether both are the same process.
    pub fn is_same_process(&self, other: &Member) -> bool {
        let key = |member: &Member| (member.pid, member.started_unix_ns);
        // Snapshots that PyTorch took of itself have neither.
        key(self) == key(other) && self.host == other.host && self.pid != 0
    }
}

/// A process in a list of a document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ProcessRef {
    pub rank: Option<u32>,
    pub host: String,
    pub pid: u32,
    /// The input as named on the command line.
    pub source: String,
}

impl ProcessRef {
    pub fn new(member: &Member, source: &str) -> ProcessRef {
        ProcessRef {
            rank: member.rank,
            host: member.host.clone(),
            pid: member.pid,
            source: source.to_owned(),
        }
    }

    pub fn name(&self) -> ProcessName<'_> {
        (self.rank, &self.host, self.pid)
    }
}

/// The number of different hosts.
pub fn hosts<'h>(all: impl Iterator<Item = &'h String>) -> usize {
    all.collect::<BTreeSet<&String>>().len()
}

/// `3`, `0, 8-15`, `0, 1, 2 and 5 more`: numbers in ascending order, neighbours as ranges, at most `most` of them.
pub fn ranges(numbers: &[u32], most: usize) -> String {
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
    match (numbers.len() - shown) as u64 {
        0 => parts.join(", "),
        more => format!("{} and {} more", parts.join(", "), words::count(more)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_ranks_are_a_range() {
        assert_eq!(ranges(&[3], 4), "3");
        assert_eq!(ranges(&[0, 8, 9, 10], 4), "0, 8-10");
        assert_eq!(ranges(&[1, 3, 5, 7], 2), "1, 3 and 2 more");
        assert_eq!(ranges(&[u32::MAX], 2), u32::MAX.to_string());
    }
}
