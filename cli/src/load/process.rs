//! Process ids to recordings: the memory map of a process names its recording. And whether the memory of processes may be read.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use culeak::proc::{self, Files};

use crate::errors::Failure;
use crate::symbolize::locate::is_same_file;

/// The process id in an argument; `None` if no such process lives and a file has that name.
pub fn as_pid(argument: impl AsRef<OsStr>) -> Option<u32> {
    let argument = argument.as_ref().to_str()?;
    let pid = argument.parse().ok()?;
    (argument.bytes().all(|b| b.is_ascii_digit()) && (process_lives(pid) || !Path::new(argument).exists()))
        .then_some(pid)
}

/// Whether the process lives, its memory map can be read, and it has no recording.
pub fn is_unrecorded(pid: u32) -> bool {
    let own_pid = proc::own_pid(pid).unwrap_or(pid);
    proc::mappings(pid).is_ok_and(|mappings| Files::of(&mappings).recording(own_pid).is_none())
}

/// Whether the process was started without culeak, as far as its memory map can be read.
pub fn has_no_library(pid: u32) -> bool {
    proc::mappings(pid).is_ok_and(|mappings| !Files::of(&mappings).has_library)
}

pub fn process_lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Whether processes may not be searched: `culeak mcp` needs its user's consent.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Forbids to read the memory of processes from now on. Recordings and snapshots remain readable.
pub fn forbid_searches() {
    FORBIDDEN.store(true, Relaxed);
}

/// # Errors
/// [`forbid_searches`] was called.
pub fn expect_permission(pid: u32) -> Result<(), Failure> {
    match FORBIDDEN.load(Relaxed) {
        false => Ok(()),
        true => Err(Failure::new(format!(
            "process {pid}: this server has no consent to read the memory of a process; start it as culeak mcp --allow-snapshots \
             FOLDER, or run culeak why {pid}"
        ))),
    }
}

/// The recording of a process, and the root of the file system as the process sees it.
///
/// # Errors
/// The process does not exist, has no recording, or its memory map cannot be read.
pub fn recording_of(pid: u32) -> Result<(PathBuf, PathBuf), Failure> {
    if !process_lives(pid) {
        return Err(Failure::new(format!(
            "process {pid}: no such process; if it was recorded, name its recording (*.{pid}.culeak)"
        )));
    }
    let mappings =
        proc::mappings(pid).map_err(|error| Failure::new(no_map(pid, &error, nix::unistd::geteuid().is_root())))?;
    // A process in a container names its recording after its id there.
    let own_pid = proc::own_pid(pid).unwrap_or(pid);
    let recording = Files::of(&mappings).recording(own_pid).map(Path::to_path_buf).ok_or_else(|| format!(
            "process {pid}: has no recording (not started with culeak, or no CUDA call yet); start it with `culeak run -- …`"
        ))?;
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let inside = root.join(recording.strip_prefix("/").unwrap_or(&recording));
    // The path is valid in the mount namespace of the process, where it may name another file than here.
    let path = if is_same_file(&inside, &recording) || !inside.exists() {
        recording.clone()
    } else {
        inside
    };
    if !path.exists() {
        return Err(Failure::new(format!(
            "process {pid}: its recording {} was deleted while in use; restart the program",
            recording.display()
        )));
    }
    Ok((path, root))
}

/// Why the memory map of a process cannot be read, and what to do.
pub fn no_map(pid: u32, error: &io::Error, is_root: bool) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied if is_root => format!(
            "process {pid}: its memory map cannot be read, even by root, without CAP_SYS_PTRACE (as in most containers); \
             start the container with --cap-add=SYS_PTRACE or, if it was recorded, name its recording (*.{pid}.culeak)"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "process {pid}: its memory map cannot be read (another user's process?); run culeak as that user or as root"
        ),
        io::ErrorKind::NotFound => {
            format!("process {pid}: ended while it was being read; name its recording (*.{pid}.culeak) instead")
        }
        _ => format!(
            "process {pid}: its memory map cannot be read ({error}); name its recording (*.{pid}.culeak) instead"
        ),
    }
}
