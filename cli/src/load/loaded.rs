//! A snapshot that was read, with what is known of its source.

use std::path::PathBuf;

use culeak::analysis::check::{self, Rules, Unseen, Verdict};
use culeak::analysis::lives::Logged;
use culeak::analysis::points::Points;
use culeak::snapshot::Snapshot;

/// A snapshot and the name of its source.
#[derive(Clone)]
pub struct Loaded {
    pub snapshot: Snapshot,
    /// The argument, as the user can repeat it.
    pub source: String,
    /// The source is a file that `culeak snapshot` wrote, whatever its name.
    pub is_of_snapshot: bool,
    /// The root of the file system as the process sees it, for a running process: `/proc/PID/root`.
    pub root: Option<PathBuf>,
    /// The points of the whole snapshot, if it was reduced to one of them.
    pub points: Option<Points>,
    /// The events that the snapshot was read with; `None` if they were not requested or not logged.
    pub timeline: Option<Logged>,
    /// What was asked for and is not what the snapshot shows: an older mark, for example.
    pub unseen: Vec<Unseen>,
}

impl Loaded {
    pub fn of(snapshot: Snapshot, source: impl Into<String>) -> Loaded {
        Loaded {
            snapshot,
            source: source.into(),
            is_of_snapshot: false,
            root: None,
            points: None,
            timeline: None,
            unseen: Vec::new(),
        }
    }

    /// The same, of a process that sees its files below this folder.
    pub fn below(self, root: Option<PathBuf>) -> Loaded {
        Loaded { root, ..self }
    }

    /// The verdict on it.
    pub fn verdict(&self, rules: &Rules) -> Verdict<'_> {
        let mut verdict = check::verdict(&self.snapshot, rules);
        verdict.lacks(self.unseen.iter().cloned());
        verdict
    }
}
