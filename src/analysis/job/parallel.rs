//! Which processes of a program do the same work, so that like is compared with like.
//!
//! ```text
//! program ── pipeline stage ── exact group: the same stage, tensor, expert and context rank
//!               judged first      judged where the stage has no common value
//! ```
//!
//! Ranks of one pipeline stage run the same layers, so each is compared with those of its stage. Where these differ, as the
//! tensor or expert ranks of a stage may, each is compared with its data-parallel replicas. The report, the diff, `why` and
//! `check --fail-on outlier` all use this rule.

use std::collections::BTreeMap;
use std::fmt;

use super::identity::Identity;
use super::member::Member;
use super::outliers::{Chance, Example, Outliers, Range, judge};
use crate::analysis::program::Program;
use crate::analysis::words;
use crate::job_variables::Dimension;

/// The most exact groups of a program that are judged each by itself, and the most stages.
const GROUPS_MAX: usize = 64;
const STAGES_MAX: usize = 256;

/// Ranks in parallel groups without the data-parallel one, in the order of [`DIMENSIONS`].
pub type Coordinates = [Option<u32>; 4];
const DIMENSIONS: [Dimension; 4] = [
    Dimension::Pipeline,
    Dimension::Tensor,
    Dimension::Expert,
    Dimension::Context,
];

pub fn coordinates(identity: &Identity) -> Coordinates {
    DIMENSIONS.map(|dimension| identity.groups.get(&dimension).copied())
}

/// Where a group of processes is in the job: coordinates in dimensions of parallelism. Empty: it is the whole job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope(Vec<(Dimension, u32)>);

impl Scope {
    /// `pipeline stage 1, tensor rank 0`; empty if it is the whole job.
    pub fn names(&self) -> String {
        let names = self.0.iter().map(|(dimension, at)| coordinate(*dimension, *at));
        names.collect::<Vec<String>>().join(", ")
    }
}

/// With ` of ` before it, for the end of a sentence.
impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.is_empty() {
            true => Ok(()),
            false => write!(out, " of {}", self.names()),
        }
    }
}

pub fn coordinate(dimension: Dimension, at: u32) -> String {
    let name = match dimension {
        Dimension::Pipeline => "pipeline stage",
        Dimension::Tensor => "tensor rank",
        Dimension::Expert => "expert rank",
        Dimension::Context => "context rank",
        Dimension::Data => "data rank",
    };
    format!("{name} {at}")
}

fn scope(at: &Coordinates) -> Scope {
    let known = DIMENSIONS
        .iter()
        .zip(at)
        .filter_map(|(dimension, at)| Some((*dimension, (*at)?)));
    Scope(known.collect())
}

/// Processes that are compared with each other, and the finer groups among them. Members are ascending.
#[derive(Debug, Clone)]
pub struct Compared {
    pub scope: Scope,
    pub all: Vec<u32>,
    pub exact: Vec<(Scope, Vec<u32>)>,
}

type Groups = BTreeMap<Coordinates, Vec<u32>>;

/// The groups of processes of one program: the whole program if no stage has two processes, otherwise each stage.
pub fn groups<'m>(members: impl Iterator<Item = (u32, &'m Identity)>) -> Vec<Compared> {
    let mut members: Vec<(u32, Coordinates)> = members.map(|(member, of)| (member, coordinates(of))).collect();
    members.sort_unstable_by_key(|(member, _)| *member);
    let by = |grain: fn(Coordinates) -> Coordinates| {
        let mut all = Groups::new();
        for (member, at) in &members {
            all.entry(grain(*at)).or_default().push(*member);
        }
        all
    };
    let mut stages = by(stage_of);
    if stages.len() > STAGES_MAX {
        stages = by(|_| [None; 4]);
    }
    let mut exact = by(|at| at);
    if exact.len() > GROUPS_MAX {
        exact = stages.clone();
    }
    if stages.len() == 1 || stages.values().all(|members| members.len() < 2) {
        return vec![Compared {
            scope: Scope::default(),
            all: members.into_iter().map(|(member, _)| member).collect(),
            exact: finer(exact.iter()),
        }];
    }
    let stages = stages.into_iter().map(|(at, all)| Compared {
        scope: scope(&at),
        all,
        exact: finer(exact.iter().filter(|(exact, _)| stage_of(**exact) == at)),
    });
    stages.collect()
}

fn stage_of([stage, ..]: Coordinates) -> Coordinates {
    [stage, None, None, None]
}

/// The groups within one, unless there is nothing to compare in them: one alone has none beside it.
fn finer<'g>(groups: impl Iterator<Item = (&'g Coordinates, &'g Vec<u32>)>) -> Vec<(Scope, Vec<u32>)> {
    let all: Vec<(Scope, Vec<u32>)> = groups.map(|(at, members)| (scope(at), members.clone())).collect();
    match all.len() > 1 && all.iter().any(|(_, members)| members.len() > 1) {
        true => all,
        false => Vec::new(),
    }
}

/// Processes of a group that stand out in it.
pub struct Finding<'g> {
    pub outcome: Outliers,
    pub scope: &'g Scope,
    pub group: &'g [u32],
}

/// The processes of a program, and the groups in which they are compared.
pub struct Peers {
    /// Ascending.
    pub members: Vec<u32>,
    groups: Vec<Compared>,
}

/// How a quantity is spread over the processes of a program, and who stands out in which group.
pub struct Judged<'g> {
    pub range: Range,
    pub unlike: Vec<Finding<'g>>,
    /// The values of a group differ too widely for a common one.
    pub differs: bool,
    /// Processes that are alone in their group, so that they are compared with none.
    pub alone: Vec<u32>,
}

impl Judged<'_> {
    pub fn members(&self) -> impl Iterator<Item = u32> {
        self.unlike.iter().flat_map(|finding| finding.outcome.members())
    }
}

impl Peers {
    /// The processes with these numbers, ascending.
    pub fn of<'m>(members: impl Iterator<Item = (u32, &'m Identity)>) -> Peers {
        let members: Vec<(u32, &Identity)> = members.collect();
        Peers {
            members: members.iter().map(|(member, _)| *member).collect(),
            groups: groups(members.into_iter()),
        }
    }

    /// By program. Numbers ascend.
    pub fn by_program<'m>(members: impl Iterator<Item = (u32, &'m Member)>) -> BTreeMap<&'m Program, Peers> {
        let mut programs: BTreeMap<&Program, Vec<(u32, &Identity)>> = BTreeMap::new();
        for (number, member) in members {
            let of_program = programs.entry(&member.program).or_default();
            of_program.push((number, &member.identity));
        }
        let peers = |(program, members): (_, Vec<_>)| (program, Peers::of(members.into_iter()));
        programs.into_iter().map(peers).collect()
    }

    /// `values`: ascending by process; one without a value has 0.
    pub fn judge(&self, values: &[Example], chance: Chance) -> Judged<'_> {
        self.judge_closer(values, |_| chance, |_, _, _| None)
    }

    /// As [`Peers::judge`], with the chance of each group. Where no value of a group stands out, `closer` may find who does in part of it; it gets the group, its
    /// values, and whether these have something in common. A group whose values have nothing in common is judged by its finer groups.
    pub fn judge_closer(
        &self,
        values: &[Example],
        chance: impl Fn(&[u32]) -> Chance,
        closer: impl Fn(&[u32], &Range, bool) -> Option<Outliers>,
    ) -> Judged<'_> {
        let mut of_all = None;
        let mut judged = |members: &[u32]| {
            let (range, out, is_alike) = judge(values, members, chance(members));
            of_all = (members.len() == self.members.len()).then_some(range).or(of_all);
            (out.or_else(|| closer(members, &range, is_alike)), is_alike)
        };
        let (mut unlike, mut differs, mut alone) = (Vec::new(), false, Vec::new());
        for Compared { scope, all, exact } in &self.groups {
            let of_all = judged(all);
            let of_groups = match of_all.1 || exact.is_empty() {
                true => vec![(scope, all, of_all)],
                false => exact
                    .iter()
                    .map(|(scope, group)| (scope, group, judged(group)))
                    .collect(),
            };
            for (scope, group, (outcome, is_alike)) in of_groups {
                differs |= !is_alike && outcome.is_none();
                alone.extend(group.first().filter(|_| group.len() == 1));
                unlike.extend(outcome.map(|outcome| Finding { outcome, scope, group }));
            }
        }
        Judged {
            range: of_all.unwrap_or_else(|| judge(values, &self.members, chance(&self.members)).0),
            unlike,
            differs,
            alone,
        }
    }
}

/// Sentences about several groups as one: the first of them, and the number of the others.
pub fn sentence(each: impl ExactSizeIterator<Item = String>) -> String {
    const NAMED: usize = 3;
    let more = each.len().saturating_sub(NAMED);
    let named = each.take(NAMED).collect::<Vec<_>>().join("; ");
    match more {
        0 => named,
        more => format!("{named}; and in {} more groups", words::count(more as u64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(groups: &[Compared]) -> Vec<(String, Vec<u32>, usize)> {
        let shown = groups.iter();
        shown
            .map(|group| (group.scope.to_string(), group.all.clone(), group.exact.len()))
            .collect()
    }

    fn ranks(count: u32, place: impl Fn(u32) -> Vec<(Dimension, u32)>) -> Vec<Compared> {
        let identities: Vec<Identity> = (0..count)
            .map(|rank| Identity {
                groups: place(rank).into_iter().collect(),
                ..Identity::default()
            })
            .collect();
        groups((0..).zip(&identities))
    }

    #[test]
    fn ranks_are_compared_within_their_stage_and_its_finer_groups() {
        let staged = ranks(8, |rank| {
            vec![(Dimension::Pipeline, rank / 4), (Dimension::Tensor, rank % 2)]
        });
        let stage = |at: u32, first: u32| (format!(" of pipeline stage {at}"), (first..first + 4).collect(), 2);
        assert_eq!(of(&staged), [stage(0, 0), stage(1, 4)]);
        assert_eq!(staged[1].exact[0].1, [4, 6]);
        let alone = ranks(4, |rank| vec![(Dimension::Pipeline, rank)]);
        assert_eq!(of(&alone), [(String::new(), vec![0, 1, 2, 3], 0)]);
        assert_eq!(of(&ranks(2, |_| Vec::new())), [(String::new(), vec![0, 1], 0)]);
    }

    #[test]
    fn with_very_many_groups_stages_remain() {
        let many = ranks(800, |rank| {
            vec![(Dimension::Pipeline, rank % 4), (Dimension::Tensor, rank / 4 % 100)]
        });
        assert_eq!(many.len(), 4);
        assert!(
            many.iter()
                .all(|stage| stage.all.len() == 200 && stage.exact.is_empty())
        );
    }
}
