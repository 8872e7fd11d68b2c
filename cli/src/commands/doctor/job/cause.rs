//! Why a process of this machine has no recording in the job's folder.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use culeak::variables::{DISABLE, PARENT, Value};
use culeak::wildcard;
use nix::unistd::{Gid, Uid, geteuid, setfsgid, setfsuid};

use super::launcher::Launcher;
use super::processes::Process;
use crate::commands::doctor::machine;
use crate::launch::preload;

/// The steps from a process to its ancestors, at most.
const ANCESTORS: usize = 64;
/// A recording begins with this many bytes.
const FIRST: u64 = 1 << 20;

/// Why a process has no recording; a sentence without the process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Its recording is in another folder.
    Elsewhere(PathBuf),
    Disabled,
    /// `CULEAK_ONLY` excludes the program.
    NotChosen {
        pattern: String,
        name: String,
    },
    /// `CULEAK_PARENT` excludes children.
    Child,
    /// Its output folder cannot hold a recording.
    Folder {
        folder: PathBuf,
        reason: String,
    },
    FileSize(u64),
    /// The library is loaded, and so is the driver, but no recording was created.
    NoAllocation,
    NoCuda,
    /// No library can be preloaded into the program.
    Obstacle(String),
    Privileged,
    /// `LD_PRELOAD` is not in its environment.
    Dropped {
        at: Option<String>,
        launcher: Launcher,
    },
    /// `LD_PRELOAD` names a file that the process does not see.
    NoFile {
        path: String,
        launcher: Launcher,
    },
    NotLoaded(String),
}

impl Cause {
    /// `all`: the processes of the machine; `known`: the recordings of the job.
    pub fn of(process: &Process, all: &[Process], known: &[&str]) -> Cause {
        if let Some(recording) = &process.recording {
            let is_known = known.iter().any(|path| Path::new(path) == recording);
            let folder = recording.parent().unwrap_or(Path::new("/"));
            if !is_known {
                return Cause::Elsewhere(folder.to_owned());
            }
        }
        match process.has_library {
            true => loaded(process),
            false => not_loaded(process, all),
        }
    }

    /// The process had nothing to record so far.
    pub fn is_harmless(&self) -> bool {
        matches!(self, Cause::NoCuda | Cause::NoAllocation)
    }

    pub fn remedy(&self, folder: &Path) -> String {
        let shown = folder.display();
        match self {
            Cause::Elsewhere(other) => format!(
                "name that folder too: culeak report {shown} {}; or set CULEAK_OUTPUT={shown}/ for all ranks",
                other.display()
            ),
            Cause::Disabled => "unset CULEAK_DISABLE".to_owned(),
            Cause::NotChosen { .. } => "change the pattern of --only (CULEAK_ONLY), or leave it out".to_owned(),
            Cause::Child => "leave out --no-follow-children (CULEAK_PARENT)".to_owned(),
            Cause::Folder { .. } => {
                "choose a folder that exists on each host and that the process can write: CULEAK_OUTPUT=DIR/, --output DIR".to_owned()
            }
            Cause::FileSize(_) => "raise the limit where the job starts: ulimit -f unlimited".to_owned(),
            Cause::NoAllocation => "a recording begins with the first call that culeak records; wait, and run this again".to_owned(),
            Cause::NoCuda => "nothing, if it needs no GPU; else wait until it does, and run this again".to_owned(),
            Cause::Obstacle(_) => "record another build of the program, or start culeak inside".to_owned(),
            Cause::Privileged => "record a copy of the program without these privileges".to_owned(),
            Cause::Dropped { launcher, .. } => launcher.remedy(folder),
            Cause::NoFile { launcher: launcher @ (Launcher::Container | Launcher::Kubernetes), .. } => launcher.remedy(folder),
            Cause::NoFile { .. } => {
                "put the library where every host sees it: copy $(culeak shim-path) to a shared folder, and name that file in LD_PRELOAD"
                    .to_owned()
            }
            Cause::NotLoaded(path) => format!(
                "look at the program's stderr for the loader's message, or try: LD_PRELOAD={path} /bin/true; a library from a newer \
                 glibc needs the portable build"
            ),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Elsewhere(folder) => write!(out, "its recording is in another folder, {}", folder.display()),
            Cause::Disabled => out.write_str("CULEAK_DISABLE is set"),
            Cause::NotChosen { pattern, name } => write!(out, "CULEAK_ONLY={pattern} excludes {name}"),
            Cause::Child => out.write_str("CULEAK_PARENT excludes it: it is not the program itself, but a child"),
            Cause::Folder { folder, reason } => {
                write!(
                    out,
                    "its output folder {} cannot hold a recording: {reason}",
                    folder.display()
                )
            }
            Cause::FileSize(limit) => write!(
                out,
                "its files are limited to {} (ulimit -f), less than a recording needs",
                crate::text::units::bytes(*limit)
            ),
            Cause::NoAllocation => out.write_str("the library is loaded and CUDA too, but nothing was allocated yet"),
            Cause::NoCuda => out.write_str("the library is loaded, but the process has not used CUDA"),
            Cause::Obstacle(obstacle) => write!(out, "the program {obstacle}"),
            Cause::Privileged => {
                out.write_str("the program runs with raised privileges, so the loader ignores LD_PRELOAD")
            }
            Cause::Dropped { at, launcher } => {
                write!(out, "LD_PRELOAD is not in its environment (started by {launcher})")?;
                match at {
                    Some(at) => write!(out, "; {at}"),
                    None => Ok(()),
                }
            }
            Cause::NoFile { path, .. } => write!(out, "LD_PRELOAD names {path}, which the process does not see"),
            Cause::NotLoaded(path) => write!(out, "LD_PRELOAD names {path}, but the loader did not load it"),
        }
    }
}

/// The library is in the process, but no recording that belongs to the job.
fn loaded(process: &Process) -> Cause {
    let switch = |name: &str| {
        process
            .variable(name)
            .and_then(|value| DISABLE.values.read(value.as_bytes()))
    };
    if switch("CULEAK_DISABLE") == Some(Value::Switch(true)) {
        return Cause::Disabled;
    }
    if !process.has_driver {
        return Cause::NoCuda;
    }
    let executable = fs::read_link(process.at("exe")).unwrap_or_default();
    let name = executable.file_name().unwrap_or_default();
    if let Some(pattern) = process.variable("CULEAK_ONLY")
        && !wildcard::matches(pattern.as_bytes(), name.as_bytes())
    {
        return Cause::NotChosen {
            pattern: pattern.to_owned(),
            name: name.to_string_lossy().into_owned(),
        };
    }
    let parent = process
        .variable("CULEAK_PARENT")
        .and_then(|value| PARENT.values.read(value.as_bytes()));
    if parent.is_some_and(|parent| parent != Value::Number(process.parent)) {
        return Cause::Child;
    }
    if is_privileged(process) {
        return Cause::Privileged;
    }
    if let Some(limit) = file_size_limit(process).filter(|limit| *limit < FIRST) {
        return Cause::FileSize(limit);
    }
    let folder = output_folder(process);
    match try_as_owner(process, &folder) {
        Err(error) => Cause::Folder {
            folder,
            reason: error.to_string(),
        },
        Ok(()) => Cause::NoAllocation,
    }
}

fn not_loaded(process: &Process, all: &[Process]) -> Cause {
    let launcher = Launcher::of(process);
    let obstacle = preload::examine(process.at("exe").as_os_str(), &[])
        .ok()
        .and_then(|program| program.obstacles.into_iter().next());
    if let Some(obstacle) = obstacle {
        return Cause::Obstacle(obstacle.to_string());
    }
    let Some(path) = process.preloaded() else {
        return Cause::Dropped {
            at: dropped_at(process, all),
            launcher,
        };
    };
    let path = path.to_owned();
    if is_privileged(process) {
        return Cause::Privileged;
    }
    match seen_by(process, Path::new(&path)).exists() {
        true => Cause::NotLoaded(path),
        false => Cause::NoFile { path, launcher },
    }
}

/// Where `LD_PRELOAD` was lost: the nearest ancestor that has it, and its child that has not.
fn dropped_at(process: &Process, all: &[Process]) -> Option<String> {
    let mut below = process;
    for _ in 0..ANCESTORS {
        let nth = all.binary_search_by_key(&below.parent, |process| process.pid).ok()?;
        let parent = &all[nth];
        if parent.preloaded().is_some() {
            return Some(match below.pid == process.pid {
                true => format!("its parent {} ({}) has it", parent.pid, parent.name),
                false => format!(
                    "{} ({}) has it, its child {} ({}) has not",
                    parent.pid, parent.name, below.pid, below.name
                ),
            });
        }
        below = parent;
    }
    None
}

/// The path as the process sees it.
fn seen_by(process: &Process, path: &Path) -> PathBuf {
    match path.is_absolute() {
        true => process.at("root").join(path.strip_prefix("/").unwrap_or(path)),
        false => process.at("cwd").join(path),
    }
}

/// The folder of the recording that the process would create.
fn output_folder(process: &Process) -> PathBuf {
    let current = || fs::read_link(process.at("cwd")).unwrap_or_default();
    let Some(output) = process.variable("CULEAK_OUTPUT") else {
        return current();
    };
    let path = Path::new(output);
    let is_folder = output.ends_with('/') || seen_by(process, path).is_dir();
    let folder = match is_folder {
        true => path,
        false => path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new(".")),
    };
    match folder.is_absolute() {
        true => folder.to_owned(),
        false => current().join(folder),
    }
}

/// Reserves space for a recording as the owner of the process: permissions and quotas are theirs.
fn try_as_owner(process: &Process, folder: &Path) -> io::Result<()> {
    let seen = seen_by(process, folder);
    if !geteuid().is_root() {
        return machine::reserve(&seen);
    }
    let status = fs::read_to_string(process.at("status"))?;
    let id = |name: &str| -> Option<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        // Real, effective, saved and that of file systems.
        line.split_whitespace().nth(3)?.parse().ok()
    };
    let (Some(user), Some(group)) = (id("Uid:"), id("Gid:")) else {
        return machine::reserve(&seen);
    };
    // The other user may be unable to pass through /proc/PID/root, which belongs to the process.
    let here = fs::canonicalize(&seen)?;
    let same = !process.is_contained;
    let (here, seen) = (if same { folder.to_owned() } else { here }, seen);
    let path = if same { here } else { seen };
    std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            // These identities are those of this thread alone.
            setfsgid(Gid::from_raw(group));
            setfsuid(Uid::from_raw(user));
            machine::reserve(&path)
        });
        tried
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the attempt failed")))
    })
}

/// AT_SECURE in the auxiliary vector.
fn is_privileged(process: &Process) -> bool {
    const AT_SECURE: u64 = 23;
    let vector = fs::read(process.at("auxv")).unwrap_or_default();
    let mut words = vector.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        if key == AT_SECURE {
            return value != 0;
        }
    }
    false
}

/// `ulimit -f` of the process, in bytes; `None`: unlimited.
fn file_size_limit(process: &Process) -> Option<u64> {
    let limits = fs::read_to_string(process.at("limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file size"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, name: &str, variables: &[(&str, &str)]) -> Process {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Process {
            pid,
            parent,
            name: name.to_owned(),
            variables: variables.collect(),
            ..Process::default()
        }
    }

    const PRELOADED: (&str, &str) = ("LD_PRELOAD", "/opt/libculeak.so");

    #[test]
    fn the_process_that_lost_the_variable_is_named() {
        let all = [
            process(10, 1, "mpirun", &[PRELOADED]),
            process(20, 10, "ssh", &[]),
            process(30, 20, "orted", &[]),
            process(40, 30, "python3", &[]),
        ];
        assert_eq!(
            dropped_at(&all[3], &all).as_deref(),
            Some("10 (mpirun) has it, its child 20 (ssh) has not")
        );
        assert_eq!(
            dropped_at(&all[1], &all).as_deref(),
            Some("its parent 10 (mpirun) has it")
        );
        assert_eq!(dropped_at(&all[0], &all), None);
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let all = [process(10, 20, "a", &[]), process(20, 10, "b", &[])];
        assert_eq!(dropped_at(&all[0], &all), None);
    }

    #[test]
    fn the_launcher_of_the_process_gives_the_remedy() {
        let remedy = |variables: &[(&str, &str)]| {
            let launcher = Launcher::of(&process(1, 0, "python3", variables));
            (launcher, launcher.remedy(Path::new("runs")))
        };
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")];
        let (launcher, text) = remedy(&slurm);
        assert_eq!(launcher, Launcher::Slurm);
        assert!(
            text.contains("--export=ALL,LD_PRELOAD=$(culeak shim-path),CULEAK_OUTPUT=runs/"),
            "{text}"
        );
        let (launcher, text) = remedy(&[("OMPI_COMM_WORLD_RANK", "0"), ("SLURM_JOB_ID", "7")]);
        assert_eq!(launcher, Launcher::OpenMpi);
        assert!(text.starts_with("mpirun -x LD_PRELOAD="), "{text}");
        assert_eq!(
            remedy(&[("RANK", "0"), ("SUDO_COMMAND", "/bin/python3")]).0,
            Launcher::Sudo
        );
        assert_eq!(
            remedy(&[("RANK", "0"), ("TORCHELASTIC_RUN_ID", "x")]).0,
            Launcher::Torchrun
        );
        assert_eq!(remedy(&[]).0, Launcher::Unknown);
    }
}
