//! Which launcher started a process, and how it passes on the variables that recording needs.

use std::fmt;
use std::path::Path;

use super::processes::Process;

/// How a process was started, as its environment shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Launcher {
    Sudo,
    Kubernetes,
    Container,
    Slurm,
    OpenMpi,
    Hydra,
    Ray,
    Dask,
    Spark,
    Torchrun,
    Jupyter,
    Systemd,
    Ssh,
    Unknown,
}

impl Launcher {
    pub fn of(process: &Process) -> Launcher {
        let has = |name: &str| process.variable(name).is_some();
        match () {
            () if has("SUDO_COMMAND") => Launcher::Sudo,
            () if has("KUBERNETES_SERVICE_HOST") => Launcher::Kubernetes,
            () if process.is_contained => Launcher::Container,
            () if has("OMPI_COMM_WORLD_RANK") => Launcher::OpenMpi,
            () if has("SLURM_PROCID") => Launcher::Slurm,
            () if has("PMI_RANK") => Launcher::Hydra,
            () if has("RAY_RAYLET_PID") || has("RAY_JOB_ID") => Launcher::Ray,
            () if has("DASK_INTERNAL_INHERIT_CONFIG") => Launcher::Dask,
            () if has("PYTHON_WORKER_FACTORY_PORT") || has("SPARK_ENV_LOADED") => Launcher::Spark,
            () if has("TORCHELASTIC_RUN_ID") => Launcher::Torchrun,
            () if has("JPY_PARENT_PID") => Launcher::Jupyter,
            () if has("SSH_CONNECTION") => Launcher::Ssh,
            () if has("INVOCATION_ID") => Launcher::Systemd,
            () => Launcher::Unknown,
        }
    }

    /// How to start the job so that the variables arrive; `folder` is that of the recordings.
    pub fn remedy(self, folder: &Path) -> String {
        let folder = folder.display();
        let library = "LD_PRELOAD=$(culeak shim-path)";
        match self {
            Launcher::Sudo => format!("start culeak inside sudo: sudo culeak run -o {folder} -- PROGRAM"),
            Launcher::Kubernetes => {
                "add the init container, the volumes and the variables of `culeak help kubernetes` to the pod"
                    .to_owned()
            }
            Launcher::Container => format!(
                "mount the library and the folder into the container and set LD_PRELOAD and CULEAK_OUTPUT there: docker run -v \
                 $(culeak shim-path):/libculeak.so:ro -e LD_PRELOAD=/libculeak.so -v {folder}:/runs -e CULEAK_OUTPUT=/runs/ …"
            ),
            Launcher::Slurm => format!(
                "srun --export=ALL,{library},CULEAK_OUTPUT={folder}/ …, or srun … culeak run -o {folder} -- PROGRAM"
            ),
            Launcher::OpenMpi => format!(
                "mpirun -x {library} -x CULEAK_OUTPUT={folder}/ …, or mpirun … culeak run -o {folder} -- PROGRAM"
            ),
            Launcher::Hydra => format!(
                "mpiexec -genv LD_PRELOAD $(culeak shim-path) -genv CULEAK_OUTPUT {folder}/ …, or mpiexec … culeak run -o {folder} -- PROGRAM"
            ),
            Launcher::Ray => format!(
                "culeak run -o {folder} -- ray start …, or set both variables in runtime_env={{\"env_vars\": …}} (culeak help ray)"
            ),
            Launcher::Dask => format!("start the workers with culeak: culeak run -o {folder} -- dask worker …"),
            Launcher::Spark => {
                format!("--conf spark.executorEnv.{library} --conf spark.executorEnv.CULEAK_OUTPUT={folder}/")
            }
            Launcher::Torchrun => {
                format!("start the launcher with culeak, on each node: culeak run -o {folder} -- torchrun …")
            }
            Launcher::Jupyter => format!(
                "start the server with culeak: culeak run -o {folder} -- jupyter lab; or set the variables in the kernel's kernel.json"
            ),
            Launcher::Systemd => {
                format!("set Environment=LD_PRELOAD=… and Environment=CULEAK_OUTPUT={folder}/ in the unit")
            }
            Launcher::Ssh => format!(
                "ssh passes no environment; start culeak on that side: ssh HOST culeak run -o {folder} -- PROGRAM"
            ),
            Launcher::Unknown => format!("start it with culeak: culeak run -o {folder} -- PROGRAM"),
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Launcher::Sudo => "sudo, which removes it",
            Launcher::Kubernetes => "a Kubernetes pod",
            Launcher::Container => "a container",
            Launcher::Slurm => "Slurm; srun --export=NONE passes no variables",
            Launcher::OpenMpi => "mpirun, which passes variables to other hosts only with -x",
            Launcher::Hydra => "mpiexec",
            Launcher::Ray => "Ray",
            Launcher::Dask => "Dask",
            Launcher::Spark => "Spark",
            Launcher::Torchrun => "torchrun",
            Launcher::Jupyter => "Jupyter",
            Launcher::Systemd => "systemd",
            Launcher::Ssh => "ssh, which passes no variables",
            Launcher::Unknown => "an unknown launcher",
        })
    }
}
