//! Why a process of this machine has no recording in the job's folder.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use culeak::proc::words;
use culeak::variables::{DISABLE, PARENT, Value, Variable};
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

/// Why a process has no recording: a sentence without the process, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    pub text: String,
    pub remedy: String,
    /// The process had nothing to record so far.
    pub is_harmless: bool,
}

impl Cause {
    fn new(text: impl Into<String>, remedy: impl Into<String>) -> Cause {
        Cause {
            text: text.into(),
            remedy: remedy.into(),
            is_harmless: false,
        }
    }

    fn harmless(text: &str, remedy: &str) -> Cause {
        Cause {
            is_harmless: true,
            ..Cause::new(text, remedy)
        }
    }

    /// `LD_PRELOAD` is not in its environment; `at`: where it was lost.
    pub fn dropped(launcher: &Launcher, at: Option<String>, folder: &Path) -> Cause {
        let at = at.map_or_else(String::new, |at| format!("; {at}"));
        let text = format!(
            "LD_PRELOAD is not in its environment (started by {}){at}",
            launcher.name
        );
        Cause::new(text, launcher.remedy(folder))
    }

    /// `LD_PRELOAD` names a file that the process does not see.
    pub fn no_file(library: &str, launcher: &Launcher, folder: &Path) -> Cause {
        let text = format!("LD_PRELOAD names {library}, which the process does not see");
        Cause::new(text, match launcher.is_contained() {
            true => launcher.remedy(folder),
            false => "put the library where every host sees it: copy $(culeak shim-path) to a shared folder, and name that file in \
                      LD_PRELOAD"
                .to_owned(),
        })
    }

    pub fn not_loaded(library: &str) -> Cause {
        Cause::new(
            format!("LD_PRELOAD names {library}, but the loader did not load it"),
            format!(
                "look at the program's stderr for the loader's message, or try: LD_PRELOAD={library} /bin/true; a library from a newer \
                 glibc needs the portable build"
            ),
        )
    }

    /// Its output folder cannot hold a recording.
    pub fn unwritable(folder: &Path, reason: impl fmt::Display) -> Cause {
        Cause::new(
            format!(
                "its output folder {} cannot hold a recording: {reason}",
                folder.display()
            ),
            "choose a folder that exists on each host and that the process can write: CULEAK_OUTPUT=DIR/, --output DIR",
        )
    }

    /// `all`: the processes of the machine; `known`: the recordings of the job; `folder`: where they are.
    pub fn of(process: &Process, all: &[Process], known: &[&str], folder: &Path) -> Cause {
        if let Some(recording) = &process.recording
            && !known.iter().any(|path| Path::new(path) == recording)
        {
            let (other, shown) = (recording.parent().unwrap_or(Path::new("/")).display(), folder.display());
            return Cause::new(
                format!("its recording is in another folder, {other}"),
                format!(
                    "name that folder too: culeak report {shown} {other}; or set CULEAK_OUTPUT={shown}/ for all ranks"
                ),
            );
        }
        match process.has_library {
            true => loaded(process),
            false => not_loaded(process, all, folder),
        }
    }
}

/// The library is in the process, but no recording that belongs to the job.
fn loaded(process: &Process) -> Cause {
    let set = |variable: &Variable| variable.values.read(process.variable(variable.name())?.as_bytes());
    if set(DISABLE) == Some(Value::Switch(true)) {
        return Cause::new("CULEAK_DISABLE is set", "unset CULEAK_DISABLE");
    }
    if !process.has_driver {
        return Cause::harmless(
            "the library is loaded, but the process has not used CUDA",
            "nothing, if it needs no GPU; else wait until it does, and run this again",
        );
    }
    let executable = fs::read_link(process.at("exe")).unwrap_or_default();
    let name = executable.file_name().unwrap_or_default();
    if let Some(pattern) = process.variable("CULEAK_ONLY")
        && !wildcard::matches(pattern.as_bytes(), name.as_bytes())
    {
        return Cause::new(
            format!("CULEAK_ONLY={pattern} excludes {}", name.display()),
            "change the pattern of --only (CULEAK_ONLY), or leave it out",
        );
    }
    if set(PARENT).is_some_and(|parent| parent != Value::Number(process.parent)) {
        return Cause::new(
            "CULEAK_PARENT excludes it: it is not the program itself, but a child",
            "leave out --no-follow-children (CULEAK_PARENT)",
        );
    }
    if is_privileged(process) {
        return privileged();
    }
    if let Some(limit) = file_size_limit(process).filter(|limit| *limit < FIRST) {
        let limit = crate::text::units::bytes(limit);
        return Cause::new(
            format!("its files are limited to {limit} (ulimit -f), less than a recording needs"),
            "raise the limit where the job starts: ulimit -f unlimited",
        );
    }
    let folder = output_folder(process);
    match try_as_owner(process, &folder) {
        Err(error) => Cause::unwritable(&folder, error),
        Ok(()) => Cause::harmless(
            "the library is loaded and CUDA too, but nothing was allocated yet",
            "a recording begins with the first call that culeak records; wait, and run this again",
        ),
    }
}

fn privileged() -> Cause {
    Cause::new(
        "the program runs with raised privileges, so the loader ignores LD_PRELOAD",
        "record a copy of the program without these privileges",
    )
}

fn not_loaded(process: &Process, all: &[Process], folder: &Path) -> Cause {
    let launcher = Launcher::of(process);
    let program = preload::examine(process.at("exe").as_os_str(), &[]).ok();
    if let Some(obstacle) = program.and_then(|program| program.obstacles.into_iter().next()) {
        let text = format!("the program {obstacle}");
        return Cause::new(text, "record another build of the program, or start culeak inside");
    }
    match process.preloaded() {
        None => Cause::dropped(launcher, dropped_at(process, all), folder),
        Some(_) if is_privileged(process) => privileged(),
        Some(path) if seen_by(process, Path::new(path)).exists() => Cause::not_loaded(path),
        Some(path) => Cause::no_file(path, launcher, folder),
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
    // Real, effective, saved and that of file systems.
    let id = |name: &str| -> Option<u32> { words(&status, name)?.nth(3)?.parse().ok() };
    let (Some(user), Some(group)) = (id("Uid:"), id("Gid:")) else {
        return machine::reserve(&seen);
    };
    // The other user may be unable to pass through /proc/PID/root, which belongs to the process.
    let path = match process.is_contained {
        true => fs::canonicalize(&seen).map(|_| seen)?,
        false => folder.to_owned(),
    };
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
    words(&limits, "Max file size")?.next()?.parse().ok()
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
        assert!(launcher.name.starts_with("Slurm"));
        assert!(
            text.contains("--export=ALL,LD_PRELOAD=$(culeak shim-path),CULEAK_OUTPUT=runs/"),
            "{text}"
        );
        let (launcher, text) = remedy(&[("OMPI_COMM_WORLD_RANK", "0"), ("SLURM_JOB_ID", "7")]);
        assert!(launcher.name.starts_with("mpirun"));
        assert!(text.starts_with("mpirun -x LD_PRELOAD="), "{text}");
        let name = |variables: &[(&str, &str)]| remedy(variables).0.name;
        assert_eq!(
            name(&[("RANK", "0"), ("SUDO_COMMAND", "/bin/python3")]),
            "sudo, which removes it"
        );
        assert_eq!(name(&[("RANK", "0"), ("TORCHELASTIC_RUN_ID", "x")]), "torchrun");
        assert_eq!(name(&[]), "an unknown launcher");
    }
}
