//! Which part of which job a process is, from the variables that its launcher set.
//!
//! Each fact comes from the first variable of [`JOB_VARIABLES`] that has a usable value. Ranks in groups also come from the
//! title of a process, since inference servers put them there (`sglang::scheduler_TP1_PP0`).
//! Deliberately absent: ranks computed from sizes of groups, whose order the environment does not state.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::job_variables::{Dimension, JOB_VARIABLES, States};
use crate::snapshot::Process;

/// The part of a process in a job. What the environment does not state is `None` or empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Identity {
    /// The name that the scheduler or launcher gave to this run.
    pub job: Option<String>,
    /// The name that the user gave to the job.
    pub job_name: Option<String>,
    pub launcher: Option<&'static str>,
    /// The rank in the whole job.
    pub rank: Option<u32>,
    /// The number of ranks, larger than the rank.
    pub world: Option<u32>,
    /// The rank on the node.
    pub local_rank: Option<u32>,
    /// The number of ranks on the node.
    pub local_world: Option<u32>,
    pub node: Option<u32>,
    /// What tells launches at the same time apart, by variable.
    #[serde(skip)]
    pub launch: BTreeMap<&'static str, String>,
    /// How often the launcher has restarted the job's processes; `None` if it does not count.
    pub restart: Option<u32>,
    /// Ranks in parallel groups.
    pub groups: BTreeMap<Dimension, u32>,
}

impl Identity {
    pub fn of(process: &Process) -> Identity {
        Identity::stated_by(&process.ranks, &process.command_line)
    }

    /// What the recorded variables and the title of a process state.
    pub fn stated_by(variables: &BTreeMap<String, String>, command_line: &[String]) -> Identity {
        let rank = rank_of(variables);
        let groups = Dimension::ALL.iter().filter_map(|&dimension| {
            let stated = number(variables, States::Group(dimension));
            Some((dimension, stated.or_else(|| in_title(command_line, dimension))?))
        });
        let of_launch = JOB_VARIABLES.iter().filter(|row| row.states == States::Launch);
        let launchers = JOB_VARIABLES.iter().filter(|row| !row.launcher.is_empty());
        Identity {
            job: texts(variables, States::Job).next().map(str::to_owned),
            job_name: texts(variables, States::JobName).next().map(str::to_owned),
            launcher: launchers
                .filter(|row| variables.contains_key(row.name))
                .map(|row| row.launcher)
                .next(),
            rank,
            world: number(variables, States::World).filter(|world| Some(*world) > rank),
            local_rank: number(variables, States::LocalRank),
            local_world: number(variables, States::LocalWorld),
            node: number(variables, States::Node),
            launch: of_launch
                .filter_map(|row| Some((row.name, variables.get(row.name)?.clone())))
                .collect(),
            restart: number(variables, States::Restart),
            groups: groups.collect(),
        }
    }
}

/// The rank in the whole job, from the recorded variables of a process.
pub fn rank_of(variables: &BTreeMap<String, String>) -> Option<u32> {
    number(variables, States::Rank)
}

fn number(variables: &BTreeMap<String, String>, states: States) -> Option<u32> {
    texts(variables, states).find_map(|text| text.parse().ok())
}

/// The values of variables that state this, by precedence. torchrun calls a run without a name `none`.
fn texts(variables: &BTreeMap<String, String>, states: States) -> impl Iterator<Item = &str> {
    let rows = JOB_VARIABLES.iter().filter(move |row| row.states == states);
    let values = rows.filter_map(|row| Some(variables.get(row.name)?.trim()));
    values.filter(|text| !text.is_empty() && *text != "none")
}

/// `TP1` in `sglang::scheduler_DP0_TP1` or `VLLM::Worker_TP1`.
fn in_title(command_line: &[String], dimension: Dimension) -> Option<u32> {
    let title = command_line.first()?;
    if !["sglang::", "VLLM::"].iter().any(|server| title.starts_with(server)) {
        return None;
    }
    let mut words = title.split(['_', ' ']).skip(1);
    words.find_map(|word| word.strip_prefix(dimension.name())?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::leaky;

    fn identity(variables: &[(&str, &str)]) -> Identity {
        let mut process = leaky().process;
        let variables = variables.iter();
        process.ranks = variables
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Identity::of(&process)
    }

    /// As these launchers set them.
    #[test]
    fn every_launcher_is_recognized() {
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODEID", "1"),
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_JOB_NAME", "train"),
        ];
        let torchrun = [
            ("RANK", "9"),
            ("WORLD_SIZE", "16"),
            ("LOCAL_RANK", "1"),
            ("GROUP_RANK", "2"),
            ("TORCHELASTIC_RUN_ID", "none"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
        ];
        let deepspeed = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("CROSS_RANK", "1"),
        ];
        let openmpi = [
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("PMIX_RANK", "2"),
            ("PMIX_NAMESPACE", "123@1"),
        ];
        let mpich = [("PMI_RANK", "6"), ("PMI_SIZE", "7"), ("MPI_LOCALRANKID", "2")];
        let kubernetes = [("JOB_COMPLETION_INDEX", "12")];
        let ray = [
            ("RAY_JOB_ID", "01000000"),
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "1"),
        ];
        let under_slurm = [&torchrun[..], &slurm].concat();
        let accelerated = [&torchrun[..], &[("ACCELERATE_MIXED_PRECISION", "no")]].concat();
        type Facts = (
            Option<&'static str>,
            u32,
            Option<u32>,
            Option<u32>,
            Option<u32>,
            Option<&'static str>,
        );
        let cases: [(&[(&str, &str)], Facts); 9] = [
            (&torchrun, (Some("torchrun"), 9, Some(16), Some(1), Some(2), None)),
            (&accelerated, (Some("accelerate"), 9, Some(16), Some(1), Some(2), None)),
            (
                &under_slurm,
                (Some("torchrun"), 9, Some(16), Some(1), Some(2), Some("4711")),
            ),
            (&slurm, (Some("slurm"), 3, Some(8), Some(1), Some(1), Some("4711"))),
            (&deepspeed, (Some("deepspeed"), 5, Some(8), Some(1), Some(1), None)),
            (&openmpi, (Some("openmpi"), 2, Some(4), Some(0), None, Some("123@1"))),
            (&mpich, (Some("mpich"), 6, Some(7), Some(2), None, None)),
            (&kubernetes, (Some("kubernetes"), 12, None, None, None, None)),
            (&ray, (Some("ray"), 1, Some(2), Some(1), None, Some("01000000"))),
        ];
        for (variables, expected) in cases {
            let found = identity(variables);
            let job = found.job.as_deref();
            let facts = (
                found.launcher,
                found.rank,
                found.world,
                found.local_rank,
                found.node,
                job,
            );
            let expected = (
                expected.0,
                Some(expected.1),
                expected.2,
                expected.3,
                expected.4,
                expected.5,
            );
            assert_eq!(facts, expected, "{variables:?}");
        }
        assert_eq!(identity(&torchrun).restart, Some(1));
        assert_eq!(identity(&slurm).job_name.as_deref(), Some("train"));
    }

    #[test]
    fn a_value_that_is_no_number_leaves_the_statement_to_the_next_variable() {
        let found = identity(&[
            ("RANK", "nine"),
            ("SLURM_PROCID", " 1 "),
            ("WORLD_SIZE", "1"),
            ("LOCAL_RANK", "-1"),
        ]);
        assert_eq!((found.rank, found.world, found.local_rank), (Some(1), None, None));
        assert_eq!(identity(&[]), Identity::default());
    }

    #[test]
    fn groups_come_from_variables_and_from_titles_of_inference_servers() {
        let groups = |found: Identity| found.groups.into_iter().collect::<Vec<_>>();
        let found = identity(&[("PP_RANK", "1"), ("TENSOR_PARALLEL_RANK", "3"), ("VLLM_DP_RANK", "0")]);
        let expected = [(Dimension::Pipeline, 1), (Dimension::Tensor, 3), (Dimension::Data, 0)];
        assert_eq!(groups(found), expected);
        let titled = |title: &str| {
            let mut process = leaky().process;
            process.command_line = vec![title.to_owned()];
            groups(Identity::of(&process))
        };
        assert_eq!(
            titled("sglang::scheduler_TP1_PP2"),
            [(Dimension::Pipeline, 2), (Dimension::Tensor, 1)]
        );
        assert_eq!(
            titled("VLLM::Worker_DP0_EP12"),
            [(Dimension::Expert, 12), (Dimension::Data, 0)]
        );
        assert_eq!(titled("my_TP1"), []);
    }
}
