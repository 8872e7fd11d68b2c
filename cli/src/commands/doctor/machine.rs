//! Checks of the machine: CUDA runtimes, output folder, config file, symbols.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs, io};

use culeak::file::spool;
use culeak::system::Descriptor;
use nix::fcntl::posix_fallocate;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::statvfs;

use super::Finding;
use crate::options::config::{self, ConfigArgs};
use crate::probe;
use crate::text::units;

/// Free space below this gives a warning; a recording of a training run takes tens of MiB.
const COMFORTABLE: u64 = 256 << 20;
const PYTHON_LIMIT: Duration = Duration::from_secs(10);

/// The shared CUDA runtimes that programs on this machine may load.
pub fn runtimes() -> Vec<Finding> {
    const SUBJECT: &str = "CUDA runtime";
    let found: BTreeSet<PathBuf> = runtime_folders()
        .iter()
        .flat_map(|folder| runtimes_in(folder))
        .collect();
    if found.is_empty() {
        return vec![Finding::ok(
            SUBJECT,
            "no shared libcudart found; programs linked to the static one do not need it",
        )];
    }
    found.iter().map(|path| Finding::ok(SUBJECT, path.display())).collect()
}

fn runtime_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = env::var_os("LD_LIBRARY_PATH")
        .iter()
        .flat_map(env::split_paths)
        .collect();
    for toolkit in subfolders(Path::new("/usr/local"), "cuda") {
        folders.push(toolkit.join("lib64"));
    }
    folders.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"].map(PathBuf::from));
    for site in python_sites() {
        for package in subfolders(&site.join("nvidia"), "") {
            folders.push(package.join("lib"));
        }
        folders.push(site.join("torchvision.libs"));
    }
    folders.retain(|folder| folder.is_absolute());
    folders
}

/// The package folders of Python, whose packages may contain CUDA runtimes.
fn python_sites() -> Vec<PathBuf> {
    let script = "import site, sys; print('\\n'.join(site.getsitepackages() + [site.getusersitepackages()]))";
    let answer = probe::ask(Command::new("python3").args(["-c", script]), PYTHON_LIMIT);
    let lines = answer
        .ok()
        .filter(|answer| answer.status.success())
        .map(|answer| answer.stdout)
        .unwrap_or_default();
    lines.lines().map(PathBuf::from).collect()
}

fn subfolders(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && file_name(path).starts_with(prefix))
        .collect()
}

fn runtimes_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let libraries = entries.map(|entry| entry.path()).filter(|path| {
        let name = file_name(path);
        name.starts_with("libcudart") && name.contains(".so")
    });
    libraries.filter_map(|path| fs::canonicalize(path).ok()).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The current folder, in which `culeak run` writes recordings by default.
pub fn output_folder() -> Vec<Finding> {
    match env::current_dir() {
        Ok(folder) => recordings_in(&folder),
        Err(error) => vec![Finding::warn(
            SUBJECT,
            format_args!("no current folder: {error}"),
            ELSEWHERE,
        )],
    }
}

const SUBJECT: &str = "output folder";
const ELSEWHERE: &str = "use another folder: culeak run --output DIR";

/// Reserves the space of a small recording, and gives it back.
///
/// # Errors
/// The folder is missing, not writable, or full, or the user's quota is used up.
pub fn reserve(folder: &Path) -> io::Result<()> {
    tempfile::tempfile_in(folder).and_then(|file| posix_fallocate(&file, 0, 1 << 20).map_err(Into::into))
}

/// Says that recordings are elsewhere while they are written, if the recorder knows from its type that the file system cannot hold them.
/// It also finds out by trying, which this does not.
fn spooled(folder: &Path) -> Option<Finding> {
    let file = tempfile::tempfile_in(folder).ok()?;
    let is_suitable = spool::is_suitable(&Descriptor::borrowed(file.as_raw_fd()));
    (!is_suitable).then(|| {
        Finding::warn(
            SUBJECT,
            format_args!(
                "{}: its file system cannot hold a recording that is being written, so each is in a local folder until its process ends",
                folder.display()
            ),
            "use a folder on ext4, XFS or tmpfs for recordings, or name one in CULEAK_SPOOL: culeak help file-systems",
        )
    })
}

/// Whether this process can write recordings into the folder.
pub fn recordings_in(folder: &Path) -> Vec<Finding> {
    let shown = folder.display();
    if let Err(error) = reserve(folder) {
        return vec![Finding::warn(
            SUBJECT,
            format_args!("{shown}: cannot reserve space for a recording: {error}"),
            ELSEWHERE,
        )];
    }
    let mut findings: Vec<Finding> = spooled(folder).into_iter().collect();
    let free = statvfs(folder).map(|found| found.blocks_available().saturating_mul(found.fragment_size()));
    findings.push(match free {
        Ok(free) if free < COMFORTABLE => Finding::warn(
            SUBJECT,
            format_args!("{shown}: only {} free", units::bytes(free)),
            ELSEWHERE,
        ),
        Ok(free) => Finding::ok(SUBJECT, format_args!("{shown}: writable, {} free", units::bytes(free))),
        Err(_) => Finding::ok(SUBJECT, format_args!("{shown}: writable")),
    });
    if let Ok((limit, _)) = getrlimit(Resource::RLIMIT_FSIZE)
        && limit != RLIM_INFINITY
    {
        let text = format_args!("files are limited to {} (ulimit -f)", units::bytes(limit));
        findings.push(Finding::warn(
            SUBJECT,
            text,
            "raise the limit with `ulimit -f unlimited`; records beyond it are lost",
        ));
    }
    findings
}

/// The config file that applies in this folder.
pub fn config_file() -> Vec<Finding> {
    let finding = match config::read(&ConfigArgs::default()) {
        Ok(defaults) => defaults.file().map(|path| Finding::ok("config file", path.display())),
        Err(failure) => Some(Finding::warn(
            "config file",
            failure,
            "correct it, or go without it: --no-config",
        )),
    };
    finding.into_iter().collect()
}

/// Separate debug files; without them, names come from the symbols of the programs.
pub fn symbols() -> Finding {
    let system = Path::new("/usr/lib/debug/.build-id");
    Finding::ok(
        "symbols",
        match system.is_dir() {
            true => "from the programs and from /usr/lib/debug",
            false => "from the programs; /usr/lib/debug has no debug files",
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_with_several_links_is_listed_once() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("libcudart.so.13.0.48"), b"").expect("written");
        for link in ["libcudart.so.13", "libcudart.so"] {
            std::os::unix::fs::symlink("libcudart.so.13.0.48", folder.path().join(link)).expect("linked");
        }
        let found: BTreeSet<PathBuf> = runtimes_in(folder.path()).into_iter().collect();
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
