//! From a process id to the recording that the process maps.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use culeak::reader;

use crate::errors::Failure;

/// A number names a process unless a file of that name lies here and no such process lives.
pub fn as_pid(argument: impl AsRef<OsStr>) -> Option<u32> {
    let argument = argument.as_ref().to_str()?;
    let pid = argument.parse().ok()?;
    (argument.bytes().all(|b| b.is_ascii_digit()) && (process_lives(pid) || !Path::new(argument).exists()))
        .then_some(pid)
}

pub fn process_lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// A process's recording, and where it sees its files.
///
/// # Errors
/// There is no such process, it has no recording, or it may not be looked at.
pub fn recording_of(pid: u32) -> Result<(PathBuf, PathBuf), Failure> {
    if !process_lives(pid) {
        return Err(Failure::new(format!(
            "process {pid}: no such process; its recording stays behind as *.{pid}.culeak where it ran"
        )));
    }
    let maps = fs::read(format!("/proc/{pid}/maps"))
        .map_err(|error| Failure::new(no_map(pid, &error, nix::unistd::geteuid().is_root())))?;
    // In a container it has another number, by which it named its recording.
    let own_pid = reader::own_pid(pid).unwrap_or(pid);
    let recording = mapped_recording(&maps, own_pid).ok_or_else(|| {
        Failure::new(format!(
            "process {pid}: has no recording (not started under culeak, or no CUDA call yet); start it with `culeak run -- …`"
        ))
    })?;
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let inside = root.join(recording.strip_prefix("/").unwrap_or(&recording));
    // The path means what the process meant by it, which in another mount namespace is not our file of that name.
    let path = if same_file(&inside, &recording) || !inside.exists() {
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

/// Why a process's memory map, which names its recording, cannot be read.
pub fn no_map(pid: u32, error: &io::Error, is_root: bool) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied if is_root => format!(
            "process {pid}: its memory map may not be read even by root (without CAP_SYS_PTRACE, as in most containers), so \
             whether it is recorded is unknown; if it is, name its recording (*.{pid}.culeak)"
        ),
        io::ErrorKind::PermissionDenied => format!(
            "process {pid}: its memory map may not be read (another user's process?); run culeak as that user or as root"
        ),
        io::ErrorKind::NotFound => {
            format!("process {pid}: it ended while it was being read; name its recording (*.{pid}.culeak) instead")
        }
        _ => format!(
            "process {pid}: its memory map cannot be read ({error}); name its recording (*.{pid}.culeak) instead"
        ),
    }
}

fn same_file(a: &Path, b: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    matches!((identity(a), identity(b)), (Ok(a), Ok(b)) if a == b)
}

/// The recording among the files a process maps: its own by name, else any.
pub fn mapped_recording(maps: &[u8], pid: u32) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for line in maps.split(|&byte| byte == b'\n') {
        let Some(start) = line.iter().position(|&byte| byte == b'/') else {
            continue;
        };
        let path = line[start..].strip_suffix(b" (deleted)").unwrap_or(&line[start..]);
        let path = with_line_breaks(path);
        if path.as_os_str().as_bytes().ends_with(b".culeak") && !found.contains(&path) {
            found.push(path);
        }
    }
    let own = format!(".{pid}.culeak");
    let position = found
        .iter()
        .position(|path| path.as_os_str().as_bytes().ends_with(own.as_bytes()))
        .unwrap_or(0);
    (!found.is_empty()).then(|| found.swap_remove(position))
}

/// A path as the kernel writes it in a memory map: a line break in it is `\012`.
fn with_line_breaks(path: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, behind @ ..] = rest {
        let escaped = rest.strip_prefix(b"\\012");
        plain.push(if escaped.is_some() { b'\n' } else { *first });
        rest = escaped.unwrap_or(behind);
    }
    PathBuf::from(OsString::from_vec(plain))
}
