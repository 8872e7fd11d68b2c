//! Checks of what surrounds a process: containers, rules on reading other processes, security modules, WSL, integrated GPUs.
//!
//! Recording needs none of these permissions; `culeak why PID` reads the memory of another process and needs them. Everything
//! is read below `root`, so that tests can imitate machines.

use std::path::Path;
use std::{env, fs};

use culeak::proc::words;
use nix::libc;

use super::{Finding, Level};

/// Bits of the capability sets.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// Access to running processes: snapshots need no permission, `culeak why` that of a debugger.
pub fn running_processes(root: &Path, reads_memory: impl Fn() -> bool) -> Vec<Finding> {
    let mut findings = vec![Finding::ok(
        "snapshots",
        "work for your own processes; no permission is needed",
    )];
    findings.push(reading_memory(root));
    let has_filter = field(&status(root), "Seccomp:") == Some("2");
    if has_filter && !reads_memory() {
        findings.push(hint(
            "a seccomp filter refuses process_vm_readv: memory is read through /proc/PID/mem, and threads may not be stopped meanwhile",
            "docker run --cap-add SYS_PTRACE …, whose default filter permits both",
        ));
    }
    findings
}

/// Whether the kernel permits the system call that reads memory, here of this process itself.
pub fn reads_own_memory() -> bool {
    let (from, mut to) = ([1_u8; 8], [0_u8; 8]);
    let remote = libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: from.len(),
    };
    let local = libc::iovec {
        iov_base: to.as_mut_ptr().cast(),
        iov_len: to.len(),
    };
    // SAFETY: both ranges are arrays of this function, of which the first is only read.
    let read = unsafe { libc::process_vm_readv(nix::unistd::getpid().as_raw(), &local, 1, &remote, 1, 0) };
    read == 8 && from == to
}

/// What works otherwise, or for others.
fn hint(text: &str, remedy: &str) -> Finding {
    Finding::new(Level::Ok, WHY, text, Some(remedy.to_owned()))
}

const WHY: &str = "culeak why";

fn reading_memory(root: &Path) -> Finding {
    let scope = fs::read_to_string(root.join("proc/sys/kernel/yama/ptrace_scope")).unwrap_or_default();
    let (scope, status) = (scope.trim(), status(root));
    let is_root = field(&status, "Uid:") == Some("0");
    match scope {
        "3" => Finding::warn(
            WHY,
            "kernel.yama.ptrace_scope is 3: no process may read another until the next boot",
            "record what holds the memory instead: culeak run --why -- PROGRAM",
        ),
        _ if may_trace(&status) => Finding::ok(WHY, "works for every process: CAP_SYS_PTRACE"),
        _ if is_root => hint(
            "root lacks CAP_SYS_PTRACE here, as in most containers, so it cannot read processes of other users",
            "docker run --cap-add SYS_PTRACE …",
        ),
        "1" => hint(
            "kernel.yama.ptrace_scope is 1: culeak why PID may not read a process that it did not start",
            "culeak run --why -- PROGRAM; or for one program: CULEAK_WHY=1; or for all until the next boot: sudo sysctl \
             kernel.yama.ptrace_scope=0",
        ),
        "2" => Finding::warn(
            WHY,
            "kernel.yama.ptrace_scope is 2: only root may read other processes",
            "sudo culeak why PID; or for all until the next boot: sudo sysctl kernel.yama.ptrace_scope=0",
        ),
        _ => Finding::ok(WHY, "works for your own processes"),
    }
}

fn status(root: &Path) -> String {
    fs::read_to_string(root.join("proc/self/status")).unwrap_or_default()
}

/// A field of `/proc/self/status`; of user ids, the effective one.
fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    words(status, name)?.nth(usize::from(name == "Uid:"))
}

fn may_trace(status: &str) -> bool {
    let capabilities = field(status, "CapEff:").and_then(|text| u64::from_str_radix(text, 16).ok());
    capabilities.unwrap_or(0) & CAP_SYS_PTRACE != 0
}

/// Security modules that confine programs.
pub fn security_modules(root: &Path) -> Vec<Finding> {
    const SUBJECT: &str = "security";
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let mut findings = Vec::new();
    if read("sys/fs/selinux/enforce").trim() == "1" {
        findings.push(Finding::ok(
            SUBJECT,
            "SELinux is enforcing: the loader drops LD_PRELOAD in a program whose start changes the domain (compare ls -Z PROGRAM \
             with id -Z); then record a copy: cp PROGRAM . && culeak run -- ./PROGRAM",
        ));
    }
    let profile = match read("proc/self/attr/apparmor/current") {
        profile if profile.is_empty() => read("proc/self/attr/current"),
        profile => profile,
    };
    let profile = profile.trim_end_matches(['\n', '\0']);
    if let Some(name) = profile.strip_suffix(" (enforce)") {
        findings.push(Finding::warn(
            SUBJECT,
            format!(
                "AppArmor confines this process (profile {name}), and may refuse the preload library or the recording"
            ),
            match name {
                "docker-default" => {
                    "if a program is not recorded: docker run --security-opt apparmor=unconfined …".to_owned()
                }
                _ => format!(
                    "if a program is not recorded: sudo aa-complain {name}; journalctl -k shows what was refused"
                ),
            },
        ));
    }
    findings
}

/// Whether this is a container, whose files may be lost with it.
pub fn container(root: &Path) -> Vec<Finding> {
    let marks = [".dockerenv", "run/.containerenv"];
    let inside = marks.iter().any(|mark| root.join(mark).exists()) || env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let text =
        "running in a container; write recordings to a volume (--output DIR), or they are lost with the container";
    inside.then(|| Finding::ok("container", text)).into_iter().collect()
}

/// Platforms whose drivers differ: WSL and integrated GPUs.
pub fn platform(root: &Path) -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let mut findings = Vec::new();
    let kernel = read("proc/sys/kernel/osrelease");
    // WSL 1 is called Microsoft, WSL 2 microsoft-standard-WSL2.
    if kernel.contains("microsoft") {
        findings.push(Finding::ok(
            "WSL 2",
            "the driver is that of Windows: it does not count memory per process, so the ledger has no figure of the driver for one \
             process",
        ));
    } else if kernel.contains("Microsoft") {
        findings.push(Finding::warn(
            "WSL 1",
            "CUDA does not work in WSL 1",
            "in Windows: wsl --set-version DISTRIBUTION 2",
        ));
    }
    let model = read("proc/device-tree/model");
    let model = model.trim_end_matches(['\n', '\0']);
    if root.join("etc/nv_tegra_release").exists() || model.contains("Jetson") {
        let name = if model.is_empty() { "Tegra" } else { model };
        findings.push(Finding::warn(
            "integrated GPU",
            format!(
                "{name}: CPU and GPU share memory, so the used and free memory of the device are those of the whole machine; culeak \
                 was not tested on such a machine"
            ),
            "verify reports against known leaks: culeak demo",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tests::{machine, text_of};
    use super::*;

    const NONE: &str = "Uid:\t1000\t1000\nCapEff:\t0000000000000000\nSeccomp:\t0\n";
    const ROOT: &str = "Uid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n";
    const FULL: &str = "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\nSeccomp:\t2\n";

    #[test]
    fn each_rule_on_reading_processes_has_its_command() {
        for (scope, status, level, part) in [
            ("0", NONE, "Ok", "works for your own processes"),
            ("1", NONE, "Ok", "sudo sysctl kernel.yama.ptrace_scope=0"),
            ("2", NONE, "Warn", "sudo culeak why PID"),
            ("3", FULL, "Warn", "culeak run --why"),
            ("1", FULL, "Ok", "CAP_SYS_PTRACE"),
            ("1", ROOT, "Ok", "docker run --cap-add SYS_PTRACE"),
        ] {
            let root = machine(&[
                ("proc/sys/kernel/yama/ptrace_scope", scope),
                ("proc/self/status", status),
            ]);
            let text = text_of(&[reading_memory(root.path())]);
            assert!(
                text.starts_with(&format!("{level} culeak why: ")) && text.contains(part),
                "{scope}: {text}"
            );
        }
        assert!(
            text_of(&[reading_memory(machine(&[]).path())]).starts_with("Ok"),
            "no Yama"
        );
    }

    #[test]
    fn a_filter_of_system_calls_matters_if_it_refuses_to_read_memory() {
        let says = |status, reads: bool| {
            let root = machine(&[("proc/self/status", status)]);
            text_of(&running_processes(root.path(), || reads))
        };
        assert!(says(ROOT, false).contains("seccomp"), "{}", says(ROOT, false));
        assert!(!says(ROOT, true).contains("seccomp") && !says(NONE, false).contains("seccomp"));
        let own = std::fs::read_to_string("/proc/self/status").expect("readable");
        assert!(reads_own_memory() || own.contains("Seccomp:\t2"), "{own}");
    }

    #[test]
    fn security_modules_are_named_if_they_confine() {
        let says = |files: &[(&str, &str)]| text_of(&security_modules(machine(files).path()));
        assert_eq!(says(&[]), "");
        assert_eq!(says(&[("sys/fs/selinux/enforce", "0")]), "");
        assert!(says(&[("sys/fs/selinux/enforce", "1")]).contains("ls -Z"));
        assert_eq!(says(&[("proc/self/attr/current", "unconfined\n")]), "");
        assert!(says(&[("proc/self/attr/current", "docker-default (enforce)\n")]).contains("apparmor=unconfined"));
        let other = says(&[
            ("proc/self/attr/apparmor/current", "trainer (enforce)\n"),
            ("proc/self/attr/current", "unconfined\n"),
        ]);
        assert!(other.contains("sudo aa-complain trainer"), "{other}");
    }

    #[test]
    fn containers_and_platforms_are_recognized() {
        assert!(text_of(&container(machine(&[(".dockerenv", "")]).path())).contains("a volume"));
        let says = |files: &[(&str, &str)]| text_of(&platform(machine(files).path()));
        assert_eq!(says(&[("proc/sys/kernel/osrelease", "6.12.1-amd64\n")]), "");
        assert!(says(&[("proc/sys/kernel/osrelease", "5.15.1-microsoft-standard-WSL2\n")]).starts_with("Ok WSL 2"));
        assert!(says(&[("proc/sys/kernel/osrelease", "4.4.0-19041-Microsoft\n")]).contains("wsl --set-version"));
        let jetson = [("proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0")];
        assert!(says(&jetson).contains("NVIDIA Jetson AGX Orin Developer Kit: CPU and GPU share memory"));
        assert!(says(&[("etc/nv_tegra_release", "# R36")]).contains("Tegra"));
    }
}
