//! The environment variables by which launchers tell a process which part of a job it is, and those with the settings of PyTorch's
//! allocator.
//!
//! One row per variable: what it states, and the launcher that sets it. The recorder stores those that are set, and readers
//! take each statement from the first row that has a usable value, so the order of rows is the order of precedence:
//! `torchrun` below `srun` sets RANK per process, while SLURM_PROCID is that of the node.
//! Deliberately absent: variables that state sizes of parallel groups only, since coordinates do not follow from them.

use crate::named;

/// What a variable states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum States {
    /// That this launcher started the process; its value is not used.
    Launcher,
    /// The rank in the whole job.
    Rank,
    /// The number of ranks of the job.
    World,
    /// The rank on the node.
    LocalRank,
    /// The number of ranks on the node.
    LocalWorld,
    /// The number of the node.
    Node,
    /// The name that the launcher gives to this run of the job, and that all its processes share.
    Job,
    /// The name that the user gave to the job.
    JobName,
    /// What the processes of one launch share, and launches at the same time do not.
    Launch,
    /// How often the launcher has restarted the processes.
    Restart,
    /// The process's coordinate in one dimension of parallelism.
    Group(Dimension),
    /// Settings of PyTorch's allocator. They are no part of what the process is.
    Allocator,
}

named! {
    /// A dimension of parallelism. The name is what comes before `_RANK`, and in titles of processes.
    #[derive(PartialOrd, Ord, Hash)]
    #[cfg_attr(feature = "read", derive(serde::Serialize))]
    #[cfg_attr(all(test, feature = "read"), derive(schemars::JsonSchema))]
    #[cfg_attr(feature = "read", serde(rename_all = "snake_case"))]
    pub enum Dimension {
        Pipeline = "PP",
        Tensor = "TP",
        Expert = "EP",
        Context = "CP",
        Data = "DP",
    }
}

/// A variable.
#[derive(Debug, Clone, Copy)]
pub struct JobVariable {
    pub name: &'static str,
    pub states: States,
    /// The launcher that sets it; empty: several do.
    pub launcher: &'static str,
}

macro_rules! variables {
    ($( $launcher:literal { $( $name:literal $states:expr; )* } )*) => {
        /// All of them, by precedence.
        pub const JOB_VARIABLES: &[JobVariable] = &[$( $( JobVariable { name: $name, states: $states, launcher: $launcher }, )* )*];
    };
}

use Dimension::*;
use States::*;

// Launchers that set RANK stand before those that may have started them.
variables! {
    "accelerate" { "ACCELERATE_MIXED_PRECISION" Launcher; }
    "deepspeed" { "CROSS_RANK" Node; "CROSS_SIZE" Launcher; }
    "torchrun" {
        "TORCHELASTIC_RESTART_COUNT" Restart;
        "GROUP_RANK" Node;
    }
    "" {
        "RANK" Rank;
        "WORLD_SIZE" World;
        "LOCAL_RANK" LocalRank;
        "LOCAL_WORLD_SIZE" LocalWorld;
        "NODE_RANK" Node;
        "MASTER_PORT" Launch;
    }
    "horovod" { "HOROVOD_RANK" Rank; "HOROVOD_SIZE" World; "HOROVOD_LOCAL_RANK" LocalRank; "HOROVOD_LOCAL_SIZE" LocalWorld; }
    "ray" { "RAY_RAYLET_PID" Launcher; }
    "dask" { "DASK_WORKER_NAME" Launcher; "DASK_SCHEDULER_ADDRESS" Launcher; }
    "openmpi" {
        "OMPI_COMM_WORLD_RANK" Rank;
        "OMPI_COMM_WORLD_SIZE" World;
        "OMPI_COMM_WORLD_LOCAL_RANK" LocalRank;
        "OMPI_COMM_WORLD_LOCAL_SIZE" LocalWorld;
    }
    "mvapich" {
        "MV2_COMM_WORLD_RANK" Rank;
        "MV2_COMM_WORLD_SIZE" World;
        "MV2_COMM_WORLD_LOCAL_RANK" LocalRank;
        "MV2_COMM_WORLD_LOCAL_SIZE" LocalWorld;
    }
    "jsrun" {
        "JSM_NAMESPACE_RANK" Rank;
        "JSM_NAMESPACE_SIZE" World;
        "JSM_NAMESPACE_LOCAL_RANK" LocalRank;
    }
    "pals" { "PALS_RANKID" Rank; "PALS_LOCAL_RANKID" LocalRank; "PALS_NODEID" Node; }
    "flux" {
        "FLUX_TASK_RANK" Rank;
        "FLUX_JOB_SIZE" World;
        "FLUX_TASK_LOCAL_ID" LocalRank;
        "FLUX_JOB_ID" Job;
    }
    "mpich" {
        "PMI_RANK" Rank;
        "PMI_SIZE" World;
        "MPI_LOCALRANKID" LocalRank;
        "MPI_LOCALNRANKS" LocalWorld;
        "PMI_LOCAL_RANK" LocalRank;
    }
    "pmix" { "PMIX_RANK" Rank; }
    "slurm" {
        "SLURM_PROCID" Rank;
        "SLURM_NTASKS" World;
        "SLURM_LOCALID" LocalRank;
        "SLURM_NODEID" Node;
        "SLURM_JOB_ID" Job;
        "SLURM_JOB_NAME" JobName;
        "SLURM_STEP_ID" Launch;
    }
    "kubernetes" { "JOB_COMPLETION_INDEX" Rank; }
    "" {
        "PBS_JOBID" Job;
        "PBS_JOBNAME" JobName;
        "LSB_JOBID" Job;
        "LSB_JOBNAME" JobName;
    }
    // Their names are less certain to be unique than those of schedulers.
    "torchrun" { "TORCHELASTIC_RUN_ID" Job; }
    "ray" { "RAY_JOB_ID" Job; }
    "" {
        "PMIX_NAMESPACE" Job;
        "PP_RANK" Group(Pipeline);
        "PIPELINE_PARALLEL_RANK" Group(Pipeline);
        "PIPELINE_MODEL_PARALLEL_RANK" Group(Pipeline);
        "TP_RANK" Group(Tensor);
        "TENSOR_PARALLEL_RANK" Group(Tensor);
        "TENSOR_MODEL_PARALLEL_RANK" Group(Tensor);
        "EP_RANK" Group(Expert);
        "EXPERT_PARALLEL_RANK" Group(Expert);
        "EXPERT_MODEL_PARALLEL_RANK" Group(Expert);
        "CP_RANK" Group(Context);
        "CONTEXT_PARALLEL_RANK" Group(Context);
        "DP_RANK" Group(Data);
        "DATA_PARALLEL_RANK" Group(Data);
        "VLLM_DP_RANK" Group(Data);
        "SGLANG_DP_RANK" Group(Data);
        // PyTorch reads the first one that is set.
        "PYTORCH_CUDA_ALLOC_CONF" Allocator;
        "PYTORCH_ALLOC_CONF" Allocator;
    }
}

/// The name under which settings of PyTorch's allocator are recorded that the program made by a call. Several are separated by `; `.
pub const SET_BY_PROGRAM: &str = "setAllocatorSettings";
/// The most calls that are recorded.
pub const SET_MOST: usize = 16;

/// Whether a recorded variable is one by which the process is known.
pub fn is_of_job(name: &str) -> bool {
    let is_it = |row: &JobVariable| row.name == name && row.states == States::Allocator;
    name != SET_BY_PROGRAM && !JOB_VARIABLES.iter().any(is_it)
}

/// The longest value that is recorded, in bytes.
pub const VALUE_MAX: usize = 128;
/// The longest name.
pub const NAME_MAX: usize = 32;

// The recorder notes in 128 bits which rows it has stored.
const _: () = assert!(JOB_VARIABLES.len() <= 128);
const _: () = {
    let mut at = 0;
    while at < JOB_VARIABLES.len() {
        assert!(JOB_VARIABLES[at].name.len() <= NAME_MAX);
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the table in docs/job.md list the variables in order.
    #[test]
    fn the_documentation_states_the_precedence() {
        let page = include_str!("../docs/job.md");
        let facts = [
            ("rank", Rank),
            ("number of ranks", World),
            ("local rank", LocalRank),
            ("local ranks", LocalWorld),
            ("node", Node),
            ("job", Job),
            ("job's name", JobName),
            ("launch", Launch),
            ("restarts", Restart),
            ("pipeline stage", Group(Pipeline)),
            ("tensor rank", Group(Tensor)),
            ("expert rank", Group(Expert)),
            ("context rank", Group(Context)),
            ("data rank", Group(Data)),
            ("allocator", Allocator),
        ];
        for (fact, states) in facts {
            let start = format!("| {fact} | ");
            let row = page.lines().find(|line| line.starts_with(&start)).expect(fact);
            let listed: Vec<&str> = row.split('`').skip(1).step_by(2).collect();
            let rows = JOB_VARIABLES.iter().filter(|row| row.states == states);
            assert_eq!(listed, rows.map(|row| row.name).collect::<Vec<_>>(), "{fact}");
        }
        let markers = JOB_VARIABLES.iter().filter(|row| row.states == Launcher);
        for row in markers {
            assert!(page.contains(&format!("`{}`", row.name)), "{}", row.name);
        }
    }
}
