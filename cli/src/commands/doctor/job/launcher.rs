//! Which launcher started a process, and how it passes on the variables that recording needs.

use std::path::Path;

use super::processes::Process;

/// A launcher: what names it to a user, and how to start a job so that the variables arrive.
#[derive(Debug, PartialEq, Eq)]
pub struct Launcher {
    pub name: &'static str,
    /// Its processes have one of these variables.
    variables: &'static [&'static str],
    /// `DIR` stands for the folder of the recordings.
    remedy: &'static str,
}

macro_rules! launchers {
    ($($name:literal, $variables:expr, $remedy:literal;)+) => {
        [$(Launcher { name: $name, variables: &$variables, remedy: $remedy }),+]
    };
}

/// A process in a container has no variable of its own; [`Launcher::of`] recognizes it by its namespaces.
const CONTAINER: usize = 2;

/// The first one that matches counts: a launcher within another one comes before it. The last one is unknown.
pub const LAUNCHERS: [Launcher; 14] = launchers! {
    "sudo, which removes it", ["SUDO_COMMAND"],
        "start culeak inside sudo: sudo culeak run -o DIR -- PROGRAM";
    "a Kubernetes pod", ["KUBERNETES_SERVICE_HOST"],
        "add the init container, the volumes and the variables of `culeak help kubernetes` to the pod";
    "a container", [],
        "mount the library and the folder into the container and set LD_PRELOAD and CULEAK_OUTPUT there: docker run -v $(culeak \
         shim-path):/libculeak.so:ro -e LD_PRELOAD=/libculeak.so -v DIR:/runs -e CULEAK_OUTPUT=/runs/ …";
    "mpirun, which passes variables to other hosts only with -x", ["OMPI_COMM_WORLD_RANK"],
        "mpirun -x LD_PRELOAD=$(culeak shim-path) -x CULEAK_OUTPUT=DIR/ …, or mpirun … culeak run -o DIR -- PROGRAM";
    "Slurm; srun --export=NONE passes no variables", ["SLURM_PROCID"],
        "srun --export=ALL,LD_PRELOAD=$(culeak shim-path),CULEAK_OUTPUT=DIR/ …, or srun … culeak run -o DIR -- PROGRAM";
    "mpiexec", ["PMI_RANK"],
        "mpiexec -genv LD_PRELOAD $(culeak shim-path) -genv CULEAK_OUTPUT DIR/ …, or mpiexec … culeak run -o DIR -- PROGRAM";
    "Ray", ["RAY_RAYLET_PID", "RAY_JOB_ID"],
        "culeak run -o DIR -- ray start …, or set both variables in runtime_env={\"env_vars\": …} (culeak help ray)";
    "Dask", ["DASK_INTERNAL_INHERIT_CONFIG"],
        "start the workers with culeak: culeak run -o DIR -- dask worker …";
    "Spark", ["PYTHON_WORKER_FACTORY_PORT", "SPARK_ENV_LOADED"],
        "--conf spark.executorEnv.LD_PRELOAD=$(culeak shim-path) --conf spark.executorEnv.CULEAK_OUTPUT=DIR/";
    "torchrun", ["TORCHELASTIC_RUN_ID"],
        "start the launcher with culeak, on each node: culeak run -o DIR -- torchrun …";
    "Jupyter", ["JPY_PARENT_PID"],
        "start the server with culeak: culeak run -o DIR -- jupyter lab; or set the variables in the kernel's kernel.json";
    "ssh, which passes no variables", ["SSH_CONNECTION"],
        "ssh passes no environment; start culeak on that side: ssh HOST culeak run -o DIR -- PROGRAM";
    "systemd", ["INVOCATION_ID"],
        "set Environment=LD_PRELOAD=… and Environment=CULEAK_OUTPUT=DIR/ in the unit";
    "an unknown launcher", [],
        "start it with culeak: culeak run -o DIR -- PROGRAM";
};

impl Launcher {
    /// How a process was started, as its environment shows.
    pub fn of(process: &Process) -> &'static Launcher {
        let has_one = |launcher: &Launcher| launcher.variables.iter().any(|name| process.variable(name).is_some());
        let is_it =
            |(nth, launcher): &(usize, &Launcher)| has_one(launcher) || *nth == CONTAINER && process.is_contained;
        let found = LAUNCHERS.iter().enumerate().find(is_it);
        found.map_or(&LAUNCHERS[LAUNCHERS.len() - 1], |(_, launcher)| launcher)
    }

    /// Whether the process has another file system.
    pub fn is_contained(&self) -> bool {
        LAUNCHERS[1..=CONTAINER].contains(self)
    }

    /// How to start the job so that the variables arrive.
    pub fn remedy(&self, folder: &Path) -> String {
        self.remedy.replace("DIR", &folder.to_string_lossy())
    }
}
