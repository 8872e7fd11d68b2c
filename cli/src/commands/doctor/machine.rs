//! Checks of the machine: driver, GPUs, CUDA runtimes, output folder, symbols.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs, io};

use nix::fcntl::posix_fallocate;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::statvfs::statvfs;

use super::Finding;
use crate::driver::LIBRARY;
use crate::probe;
use crate::text::units;

/// Free space below this gives a warning; a recording of a training run takes tens of MiB.
const COMFORTABLE: u64 = 256 << 20;
const PYTHON_LIMIT: Duration = Duration::from_secs(10);

/// The driver and its GPUs, queried in a child process.
pub fn driver() -> Vec<Finding> {
    let kernel_module = fs::read_to_string("/proc/driver/nvidia/version").ok();
    let mut findings = Vec::new();
    let version = kernel_module.as_deref().and_then(module_version);
    if let Some(version) = version {
        findings.push(Finding::ok("kernel module", version));
    }
    match probe::driver(None) {
        Ok(found) => {
            let text = format!("CUDA {}, {}", found.cuda_version(), found.file);
            findings.push(Finding::ok("CUDA driver", text));
            for device in &found.devices {
                let size = units::bytes(device.total_bytes);
                findings.push(Finding::ok(
                    "GPU",
                    format!("{}: {}, {size}, {}", device.ordinal, device.name, device.uuid),
                ));
            }
            if found.devices.is_empty() {
                findings.push(Finding::warn("GPU", "the driver found no GPU", visible_devices_hint()));
            }
        }
        Err(reason) if version.is_some() => {
            let remedy = format!(
                "the kernel module is loaded, so {LIBRARY} or the devices are missing; start a container with \
                 --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            );
            findings.push(Finding::warn("CUDA driver", reason, remedy));
        }
        Err(reason) => {
            let remedy =
                "without a GPU, culeak still reads recordings, and `culeak demo` uses its built-in fake driver";
            findings.push(Finding::warn("CUDA driver", reason, remedy));
        }
    }
    findings
}

/// `580.65.06` from `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul …`.
fn module_version(text: &str) -> Option<&str> {
    text.lines()
        .next()?
        .split_whitespace()
        .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
}

fn visible_devices_hint() -> String {
    match env::var("CUDA_VISIBLE_DEVICES") {
        Ok(value) => format!("CUDA_VISIBLE_DEVICES is {value:?}; unset it to see all GPUs"),
        Err(_) => "without a GPU, `culeak demo` uses its built-in fake driver".to_owned(),
    }
}

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
    let mut findings = vec![];
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

/// Access to running processes; culeak needs less than a debugger.
pub fn running_processes() -> Vec<Finding> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let scope = match scope.trim() {
        "" => "no Yama".to_owned(),
        scope => format!("ptrace_scope {scope}"),
    };
    vec![Finding::ok(
        "snapshots",
        format!("work for your own processes; no ptrace needed ({scope})"),
    )]
}

/// Separate debug files; without them, names come from the symbols of the programs.
pub fn symbols() -> Vec<Finding> {
    let system = Path::new("/usr/lib/debug/.build-id");
    vec![Finding::ok(
        "symbols",
        match system.is_dir() {
            true => "from the programs and from /usr/lib/debug",
            false => "from the programs; /usr/lib/debug has no debug files",
        },
    )]
}

/// Whether this is a container, whose files may be lost with it.
pub fn container() -> Vec<Finding> {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    let inside = marks.iter().any(|mark| Path::new(mark).exists()) || env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let text =
        "running in a container; write recordings to a volume (--output DIR), or they are lost with the container";
    inside.then(|| Finding::ok("container", text)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_both_kernel_modules_is_found() {
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Thu Feb 1 02:44:18 UTC 2024\nGCC version: …";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build";
        assert_eq!(module_version(closed), Some("535.161.08"));
        assert_eq!(module_version(open), Some("580.65.06"));
        assert_eq!(module_version(""), None);
    }

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
