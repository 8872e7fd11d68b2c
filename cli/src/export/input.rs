//! What an export is made of.

use culeak::analysis::job::member::Member;
use culeak::analysis::profile::{Options, Profile};
use culeak::snapshot::Snapshot;

use super::folded::Cost;
use super::records::Rows;
use crate::load::Loaded;
use crate::names::Detail;

/// What is written, and how.
pub struct Input<'a> {
    pub items: &'a [Loaded],
    pub options: Options,
    /// Objects are in the place of memory.
    pub objects: bool,
    pub cost: Cost,
    /// Graphs have one frame for each line, not for each function.
    pub lines: bool,
}

impl<'a> Input<'a> {
    /// How frames are named in tables.
    pub fn detail(&self) -> Detail {
        Detail {
            signatures: self.options.full_stacks,
            lines: true,
        }
    }

    /// How frames are named in graphs.
    pub fn detail_of_graph(&self) -> Detail {
        Detail {
            lines: self.lines,
            ..self.detail()
        }
    }

    /// The snapshots; each has a name if there are several.
    pub fn snapshots(&self) -> impl Iterator<Item = (Option<String>, &'a Snapshot)> {
        let is_one = self.items.len() == 1;
        let snapshots = self.items.iter().map(|item| &item.snapshot);
        snapshots.map(move |snapshot| ((!is_one).then(|| called(snapshot)), snapshot))
    }

    /// The stacks of each snapshot, with all that they ever allocated.
    pub fn profiles(&self) -> impl Iterator<Item = (Option<String>, Profile<'a>)> {
        let options = Options {
            made: true,
            ..self.options.clone()
        };
        self.snapshots()
            .map(move |(name, snapshot)| (name, Profile::of(snapshot, &options)))
    }

    /// The records of each snapshot.
    pub fn tables(&self) -> impl Iterator<Item = Rows<'a>> {
        self.snapshots()
            .map(|(_, snapshot)| Rows::of(snapshot, &self.options, self.detail()))
    }
}

/// The name of a process among several: `rank 5`, or `node1:4711`.
pub fn called(snapshot: &Snapshot) -> String {
    let member = Member::of(snapshot);
    match member.rank {
        Some(rank) => format!("rank {rank}"),
        None => format!("{}:{}", member.host, member.pid),
    }
}
