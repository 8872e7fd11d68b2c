//! Checks of the CUDA driver: the kernel module, libcuda, NVML, the GPUs, and why one of them is missing.
//!
//! The driver is asked in a child process. What the machine says about itself is read below `root`, so that tests can
//! imitate machines.

use std::ops::RangeInclusive;
use std::path::Path;
use std::{env, fs, process};

use super::Finding;
use crate::load::in_folder;
use crate::text::units;
use crate::{probe, usage};
use culeak::{rm, table};
use culeak_driver::{Findings, LIBRARY};

/// The CUDA versions whose functions are compared with those that culeak knows (`src/cuda_functions.rs`).
const KNOWN: RangeInclusive<i32> = 11000..=13059;
/// NVIDIA in the lists of PCI devices.
const VENDOR: &str = "0x10de";

/// The driver and its GPUs.
pub fn driver(root: &Path) -> Vec<Finding> {
    let module = fs::read_to_string(root.join("proc/driver/nvidia/version")).ok();
    let version = module.as_deref().and_then(module_version);
    let mut findings: Vec<Finding> = version.map(kernel_module).into_iter().collect();
    match probe::driver(None) {
        Ok(found) => {
            findings.extend(of_library(&found));
            findings.extend(devices(&found, root));
            let source = usage::ask(process::id(), &[]).map(|usage| usage.source);
            if let (None, Ok(source)) = (version, &source) {
                findings.extend(source.strip_prefix("NVML ").map(kernel_module));
            }
            findings.push(nvml(source));
        }
        Err(reason) => {
            let reason = reason.trim_end_matches("; culeak doctor checks the driver");
            findings.push(Finding::warn(CUDA_DRIVER, reason, remedy(reason, version, root)));
        }
    }
    findings
}

/// The kernel module of this version, and what culeak knows of its branch.
fn kernel_module(version: &str) -> Finding {
    const KERNEL_MODULE: &str = "kernel module";
    const UNKNOWN: &str =
        "requests that culeak does not know are refused: reports then lack what the kernel driver gave (segments)";
    let branch = version.split('.').next().unwrap_or_default();
    let number: u32 = branch.parse().unwrap_or(u32::MAX);
    let text = |known: &str| format!("{version}, branch {branch}, {known}");
    match number {
        rm::TESTED => Finding::ok(KERNEL_MODULE, text("tested with culeak on GPUs")),
        _ if rm::COMPARED.contains(&number) => Finding::ok(
            KERNEL_MODULE,
            text("not tested with culeak on GPUs; its requests were checked against NVIDIA's published sources"),
        ),
        _ if number < rm::COMPARED[0] => Finding::warn(
            KERNEL_MODULE,
            text(&format!("older than culeak knows; {UNKNOWN}")),
            format!(
                "install a driver of branch {}: sudo apt-get install nvidia-driver",
                rm::TESTED
            ),
        ),
        _ => Finding::warn(
            KERNEL_MODULE,
            text(&format!("unknown to culeak; {UNKNOWN}")),
            "install a newer culeak, if there is one: culeak help install",
        ),
    }
}

const CUDA_DRIVER: &str = "CUDA driver";

fn of_library(found: &Findings) -> Vec<Finding> {
    let version = found.cuda_version();
    let mut findings = vec![Finding::ok(CUDA_DRIVER, format!("CUDA {version}, {}", found.file))];
    let newest = format!("{}.{}", KNOWN.end() / 1000, KNOWN.end() % 1000 / 10);
    if found.version > *KNOWN.end() {
        findings.push(Finding::warn(
            CUDA_DRIVER,
            format!("CUDA {version} is newer than {newest}, which this culeak knows: memory from functions that are new is not recorded"),
            "install a newer culeak, if there is one: culeak help install",
        ));
    }
    if found.version < *KNOWN.start() {
        findings.push(Finding::warn(
            CUDA_DRIVER,
            format!(
                "CUDA {version} is older than 11.0, the oldest that culeak knows: functions may have other arguments"
            ),
            "install a driver of branch 450 or newer: sudo apt-get install nvidia-driver",
        ));
    }
    findings
}

fn devices(found: &Findings, root: &Path) -> Vec<Finding> {
    const GPU: &str = "GPU";
    let mut findings: Vec<Finding> = Vec::new();
    for device in &found.devices {
        let size = units::bytes(device.total_bytes);
        let text = format!("{}: {}, {size}, {}", device.ordinal, device.name, device.uuid);
        findings.push(Finding::ok(GPU, text));
    }
    if found.devices.is_empty() {
        findings.push(Finding::warn(GPU, "the driver found no GPU", no_device(root)));
    }
    if found.devices.iter().any(|device| device.uuid.starts_with("MIG-")) {
        findings.push(Finding::ok(
            "MIG",
            "this is a slice of a GPU: capacities are those of the slice, and a process sees one slice at a time",
        ));
    }
    findings
}

/// What to do if the driver works and lists no device.
fn no_device(root: &Path) -> String {
    if let Ok(value) = env::var("CUDA_VISIBLE_DEVICES") {
        return format!("CUDA_VISIBLE_DEVICES is {value:?}; to see all GPUs: unset CUDA_VISIBLE_DEVICES");
    }
    if has_mig(root) {
        return "if nvidia-smi -L lists a GPU in MIG mode without MIG devices, create one: sudo nvidia-smi mig -cgi 0 -C".to_owned();
    }
    NO_GPU.to_owned()
}

const NO_GPU: &str = "without a GPU, culeak still reads recordings; `culeak demo` and the examples of `culeak help quickstart` run on its built-in \
                      fake driver";

/// Whether the kernel module offers MIG on a GPU.
fn has_mig(root: &Path) -> bool {
    let gpus = in_folder(&root.join("proc/driver/nvidia/capabilities"), |_| true);
    gpus.iter().any(|gpu| gpu.join("mig").is_dir())
}

/// NVML, which reports the driver's figures; `answer` is its version, or the reason why it has none.
fn nvml(answer: Result<String, String>) -> Finding {
    const NVML: &str = "NVML";
    match answer {
        Ok(source) => Finding::ok(NVML, source),
        Err(reason) => Finding::warn(
            NVML,
            format!("{reason}; without it, the ledger lacks the driver's own figures"),
            "in a container: docker run -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …; otherwise: sudo apt-get install libnvidia-ml1",
        ),
    }
}

/// What to do about an error of the driver, by its code.
const REMEDIES: [(&str, &str); 3] = table! {
    "802", "the NVSwitch fabric is not ready: sudo systemctl start nvidia-fabricmanager";
    "804", "the compatibility package does not support this GPU: remove its folder (cuda/compat) from LD_LIBRARY_PATH";
    "999", "reload the module of unified memory, as after suspend: sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm";
};

/// What to do if the driver cannot be used; `reason` is the loader's or the driver's message.
fn remedy(reason: &str, module: Option<&str>, root: &Path) -> String {
    let code = reason
        .split_once(" returned ")
        .and_then(|(_, rest)| rest.split(' ').next());
    if let Some((_, remedy)) = REMEDIES.iter().find(|(known, _)| code == Some(*known)) {
        return (*remedy).to_owned();
    }
    match code {
        Some("803") => {
            let version = module.unwrap_or("of another version");
            return format!(
                "{LIBRARY} and the kernel module ({version}) are of different versions, as after an update: sudo reboot, or in a \
                 container use the host's {LIBRARY}"
            );
        }
        Some("100") => return no_device(root),
        _ => {}
    }
    if root.join("usr/lib/wsl/lib").join(LIBRARY).exists() {
        return "the driver of WSL 2 is not in the loader's path: export LD_LIBRARY_PATH=/usr/lib/wsl/lib".to_owned();
    }
    if module.is_some() {
        let mut text = format!(
            "the kernel module is loaded, so {LIBRARY} or the devices are missing; start a container with \
             --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        );
        if !root.join("dev/nvidiactl").exists() {
            text.push_str("; outside of a container, create the devices: sudo nvidia-modprobe -c 0 -u");
        }
        return text;
    }
    match has_gpu(root) {
        true => "this machine has an NVIDIA GPU without a driver; load it: sudo modprobe nvidia; or install it: sudo apt-get \
                 install nvidia-driver (Debian), sudo ubuntu-drivers install (Ubuntu)"
            .to_owned(),
        false => NO_GPU.to_owned(),
    }
}

/// Whether a PCI device is an NVIDIA GPU (class 0x03: display).
fn has_gpu(root: &Path) -> bool {
    let devices = in_folder(&root.join("sys/bus/pci/devices"), |_| true);
    let says = |device: &Path, file: &str, start: &str| {
        fs::read_to_string(device.join(file)).is_ok_and(|text| text.starts_with(start))
    };
    devices
        .iter()
        .any(|device| says(device, "vendor", VENDOR) && says(device, "class", "0x03"))
}

/// `580.65.06` from `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul …`.
fn module_version(text: &str) -> Option<&str> {
    text.lines()
        .next()?
        .split_whitespace()
        .find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{machine, text_of};
    use super::*;
    use culeak_driver::Device;

    fn found(version: i32, uuids: &[&str]) -> Findings {
        let device = |uuid: &&str| Device {
            ordinal: 0,
            name: "NVIDIA H200".to_owned(),
            uuid: (*uuid).to_owned(),
            total_bytes: 1 << 30,
        };
        Findings {
            file: "/usr/lib/libcuda.so.1".to_owned(),
            version,
            devices: uuids.iter().map(device).collect(),
        }
    }

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
    fn each_branch_says_whether_culeak_was_tested_with_it() {
        let says = |version: &str| text_of(&[kernel_module(version)]);
        assert_eq!(
            says("580.65.06"),
            "Ok kernel module: 580.65.06, branch 580, tested with culeak on GPUs → \n"
        );
        for branch in rm::COMPARED.into_iter().filter(|&branch| branch != rm::TESTED) {
            let text = says(&format!("{branch}.12"));
            assert!(
                text.starts_with(&format!("Ok kernel module: {branch}.12, branch {branch}, not tested")),
                "{text}"
            );
        }
        assert!(says("470.256.02").starts_with("Warn kernel module: 470.256.02, branch 470, older than culeak knows"));
        for version in ["540.1", "700.10", "1000.2"] {
            assert!(says(version).contains("unknown to culeak"), "{}", says(version));
        }
    }

    #[test]
    fn drivers_older_and_newer_than_the_known_ones_are_named() {
        assert_eq!(of_library(&found(13000, &[])).len(), 1);
        assert!(text_of(&of_library(&found(14010, &[]))).contains("CUDA 14.1 is newer than 13.5"));
        assert!(text_of(&of_library(&found(10020, &[]))).contains("CUDA 10.2 is older than 11.0"));
    }

    #[test]
    fn a_slice_is_named_and_a_gpu_without_slices_has_a_remedy() {
        let none = machine(&[]);
        assert!(text_of(&devices(&found(13000, &["MIG-1"]), none.path())).contains("a slice of a GPU"));
        assert!(!text_of(&devices(&found(13000, &["GPU-1"]), none.path())).contains("slice"));
        let mig = machine(&[("proc/driver/nvidia/capabilities/gpu0/mig/config", "")]);
        assert!(no_device(mig.path()).contains("sudo nvidia-smi mig -cgi 0 -C"));
        assert_eq!(no_device(none.path()), NO_GPU);
    }

    #[test]
    fn without_nvml_the_ledger_lacks_figures() {
        let finding = nvml(Err("NVML is not available".to_owned()));
        assert!(text_of(&[finding]).contains("NVIDIA_DRIVER_CAPABILITIES=compute,utility"));
        assert!(text_of(&[nvml(Ok("NVML 580.65".to_owned()))]).starts_with("Ok NVML: NVML 580.65"));
    }

    #[test]
    fn each_reason_for_a_missing_driver_has_its_command() {
        const NOT_FOUND: &str = "libcuda.so.1: cannot open shared object file: No such file or directory";
        let says = |reason: &str, module: Option<&str>, files: &[(&str, &str)], command: &str| {
            let text = remedy(reason, module, machine(files).path());
            assert!(text.contains(command), "{reason}: {text}");
        };
        let gpu = [
            ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n"),
            ("sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n"),
        ];
        says(NOT_FOUND, None, &[], "culeak demo");
        says(NOT_FOUND, None, &gpu, "sudo modprobe nvidia");
        // Sound of the same vendor.
        says(
            NOT_FOUND,
            None,
            &[gpu[0], ("sys/bus/pci/devices/0000:01:00.0/class", "0x040300\n")],
            "culeak demo",
        );
        says(NOT_FOUND, Some("580.1"), &[("dev/nvidiactl", "")], "--gpus all");
        says(NOT_FOUND, Some("580.1"), &[], "sudo nvidia-modprobe -c 0 -u");
        says(
            NOT_FOUND,
            None,
            &[("usr/lib/wsl/lib/libcuda.so.1", "")],
            "export LD_LIBRARY_PATH=/usr/lib/wsl/lib",
        );
        says(
            "cuInit returned 802 (CUDA_ERROR_SYSTEM_NOT_READY)",
            None,
            &[],
            "sudo systemctl start nvidia-fabricmanager",
        );
        says(
            "cuInit returned 803 (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)",
            Some("580.1"),
            &[],
            "580.1",
        );
        says("cuInit returned 804 (X)", None, &[], "remove its folder (cuda/compat)");
        says(
            "cuInit returned 999 (CUDA_ERROR_UNKNOWN)",
            None,
            &[],
            "sudo modprobe nvidia_uvm",
        );
        says("cuInit returned 100 (CUDA_ERROR_NO_DEVICE)", None, &[], "culeak demo");
    }
}
