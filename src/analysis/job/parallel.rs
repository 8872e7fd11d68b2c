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

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use super::identity::Identity;
use super::outliers::{Chance, Example, Outliers, Range, judge_each};
use crate::analysis::words;
use crate::job_variables::Dimension;

/// The most exact groups of a program, and the most stages: reports keep sums for each.
pub const GROUPS_MAX: usize = 64;
pub const STAGES_MAX: usize = 256;

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

/// How finely processes are told apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Grain {
    #[default]
    Exact,
    Stage,
    Whole,
}

impl Grain {
    pub fn of(self, exact: &Coordinates) -> Coordinates {
        match self {
            Grain::Exact => *exact,
            Grain::Stage => [exact[0], None, None, None],
            Grain::Whole => [None; 4],
        }
    }

    /// The next coarser one, if there are more groups than are kept.
    pub fn too_many(self, groups: usize) -> Option<Grain> {
        match self {
            Grain::Exact if groups > GROUPS_MAX => Some(Grain::Stage),
            Grain::Stage if groups > STAGES_MAX => Some(Grain::Whole),
            _ => None,
        }
    }
}

/// Processes that are compared with each other, and the finer groups among them.
#[derive(Debug, Clone)]
pub struct Compared<T> {
    pub scope: Scope,
    pub all: T,
    pub exact: Vec<(Scope, T)>,
}

impl<T> Compared<T> {
    /// With something else in the place of each group.
    pub fn map<U>(self, all: impl FnOnce(T) -> U, exact: impl Fn(T) -> U) -> Compared<U> {
        Compared {
            scope: self.scope,
            all: all(self.all),
            exact: self.exact.into_iter().map(|(scope, of)| (scope, exact(of))).collect(),
        }
    }
}

/// What is compared, given the number of processes in each group: the whole program if no stage has two processes, otherwise
/// each stage. The grain is that of [`Compared::all`].
pub fn plan(sizes: &BTreeMap<Coordinates, usize>) -> (Grain, Vec<Compared<Coordinates>>) {
    let mut stages: BTreeMap<Coordinates, usize> = BTreeMap::new();
    for (at, size) in sizes {
        *stages.entry(Grain::Stage.of(at)).or_default() += size;
    }
    let exact = |stage: Option<&Coordinates>| {
        let of_stage = sizes
            .iter()
            .filter(|(at, _)| stage.is_none_or(|stage| Grain::Stage.of(at) == *stage));
        let all: Vec<(&Coordinates, usize)> = of_stage.map(|(at, size)| (at, *size)).collect();
        // One alone has nothing to be compared with.
        match all.len() > 1 && all.iter().any(|(_, size)| *size > 1) {
            true => all.into_iter().map(|(at, _)| (scope(at), *at)).collect(),
            false => Vec::new(),
        }
    };
    if stages.len() == 1 || stages.values().all(|size| *size < 2) {
        let whole = Compared {
            scope: Scope::default(),
            all: Grain::Whole.of(&[None; 4]),
            exact: exact(None),
        };
        return (Grain::Whole, vec![whole]);
    }
    let compared = |at: &Coordinates| Compared {
        scope: scope(at),
        all: *at,
        exact: exact(Some(at)),
    };
    (Grain::Stage, stages.keys().map(compared).collect())
}

/// The groups of processes of one program, each with its members in ascending order.
pub fn groups<'m>(members: impl Iterator<Item = (u32, &'m Identity)>) -> Vec<Compared<Vec<u32>>> {
    let mut members: Vec<(u32, Coordinates)> = members.map(|(member, of)| (member, coordinates(of))).collect();
    members.sort_unstable_by_key(|(member, _)| *member);
    let by = |grain: Grain| {
        let mut all: BTreeMap<Coordinates, Vec<u32>> = BTreeMap::new();
        for (member, at) in &members {
            all.entry(grain.of(at)).or_default().push(*member);
        }
        all
    };
    let mut grain = Grain::Exact;
    let mut finest = by(grain);
    while let Some(coarser) = grain.too_many(finest.len()) {
        (grain, finest) = (coarser, by(coarser));
    }
    let (grain, planned) = plan(&finest.iter().map(|(at, members)| (*at, members.len())).collect());
    let coarse = by(grain);
    let of = |all: &BTreeMap<Coordinates, Vec<u32>>, at: Coordinates| all.get(&at).cloned().unwrap_or_default();
    let groups = planned.into_iter();
    groups
        .map(|group| group.map(|at| of(&coarse, at), |at| of(&finest, at)))
        .collect()
}

/// The outcome of a look at a group.
pub struct Finding<'g, T, F> {
    pub outcome: F,
    pub scope: &'g Scope,
    pub group: &'g T,
}

/// Looks at each group, and where it has no common value at the finer groups in it. `look` returns what it finds, and whether
/// the values have something in common. Returns whether a group has no common value, too.
pub fn look_at<'g, T, F>(
    groups: &'g [Compared<T>],
    mut look: impl FnMut(&'g T) -> (Option<F>, bool),
) -> (Vec<Finding<'g, T, F>>, bool) {
    let (mut all, mut differs) = (Vec::new(), false);
    let mut add = |scope, group, (outcome, has_common_value): (Option<F>, bool)| {
        differs |= !has_common_value && outcome.is_none();
        all.extend(outcome.map(|outcome| Finding { outcome, scope, group }));
    };
    for compared in groups {
        let of_all = look(&compared.all);
        match of_all.1 || compared.exact.is_empty() {
            true => add(&compared.scope, &compared.all, of_all),
            false => {
                for (scope, group) in &compared.exact {
                    let of_group = look(group);
                    add(scope, group, of_group);
                }
            }
        }
    }
    (all, differs)
}

/// The processes of a program, and the groups in which they are compared.
pub struct Peers {
    /// Ascending.
    pub members: Vec<u32>,
    groups: Vec<Compared<Vec<u32>>>,
}

/// How a quantity is spread over the processes of a program, and who stands out in which group.
pub struct Judged<'g> {
    pub range: Range,
    pub unlike: Vec<Finding<'g, Vec<u32>, Outliers>>,
    /// The values of a group differ too widely for a common one.
    pub differs: bool,
}

impl Judged<'_> {
    pub fn members(&self) -> impl Iterator<Item = u32> {
        self.unlike.iter().flat_map(|finding| &finding.outcome.members).copied()
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

    /// `values`: ascending by process; one without a value has 0.
    pub fn judge(&self, values: &[Example], chance: Chance) -> Judged<'_> {
        let mut of_all = None;
        let (unlike, differs) = look_at(&self.groups, |members| {
            let is_all = members.len() == self.members.len();
            let own = match is_all {
                true => Cow::Borrowed(values),
                false => Cow::Owned(within(values, members)),
            };
            let (range, verdict) = judge_each(&own, members, chance);
            of_all = is_all.then_some(range).or(of_all);
            verdict.parts()
        });
        Judged {
            range: of_all.unwrap_or_else(|| judge_each(values, &self.members, chance).0),
            unlike,
            differs,
        }
    }
}

/// The values of these members.
fn within(values: &[Example], members: &[u32]) -> Vec<Example> {
    let value = |member: &u32| values.binary_search_by_key(member, |value| value.0).ok();
    members.iter().filter_map(value).map(|at| values[at]).collect()
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

    fn of(groups: &[Compared<Vec<u32>>]) -> Vec<(String, Vec<u32>, usize)> {
        let shown = groups.iter();
        shown
            .map(|group| (group.scope.to_string(), group.all.clone(), group.exact.len()))
            .collect()
    }

    fn ranks(count: u32, place: impl Fn(u32) -> Vec<(Dimension, u32)>) -> Vec<Compared<Vec<u32>>> {
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
