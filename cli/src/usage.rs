//! The driver's own account of the devices, read through NVML from outside the process.
//!
//! NVML needs no context, so asking changes nothing on the device; `cuMemGetInfo` would need one, which takes about 500
//! MiB and would be part of the answer. The library is opened at run time, in a child process with a time limit (a GPU
//! that fell off the bus can hang whoever asks for it). Devices are matched by UUID, since ordinals mean something else
//! in every process. Deliberately absent: anything about processes that are over.

use std::env;
use std::process::{Command, ExitCode};
use std::time::Duration;

use culeak::snapshot::{DeviceUsage, OtherProcesses, ProcessState, Usage};
use serde::Serialize;

use crate::errors::Failure;
use crate::load::Loaded;
use crate::nvml::{Error, Nvml};
use crate::probe;

const LIMIT: Duration = Duration::from_secs(20);

/// Asks about the devices of a process that runs here, and writes the answer into its snapshot.
pub fn ask_driver(item: &mut Loaded) {
    let snapshot = &mut item.snapshot;
    // A snapshot kept while it ran shows a moment that is over, whatever the process does now.
    let present = snapshot.process.state == ProcessState::Running && snapshot.taken.automatic.is_none();
    if !present || snapshot.usage.is_some() || snapshot.devices.is_empty() {
        return;
    }
    // A process in a container knows itself by another number than we and the driver do.
    let pid = item.source.parse().unwrap_or_else(|_| snapshot.process.number());
    let uuids: Vec<&str> = snapshot.devices.iter().map(|device| device.uuid.as_str()).collect();
    snapshot.usage = Some(ask(pid, &uuids).unwrap_or_else(|why| Usage {
        source: "NVML".to_owned(),
        devices: Vec::new(),
        missing: Some(why),
    }));
}

/// What NVML says of these devices, told by their number in the list, and of this process on them.
///
/// # Errors
/// Why nobody answered, in words.
pub fn ask(pid: u32, uuids: &[&str]) -> Result<Usage, String> {
    let program = env::current_exe().map_err(|error| format!("cannot find this program's own file: {error}"))?;
    let mut command = Command::new(program);
    command.arg(crate::args::PROBE_USAGE).arg(pid.to_string());
    command.args(uuids);
    command.env_remove("LD_PRELOAD");
    let answer = probe::ask(&mut command, LIMIT).map_err(|error| format!("asking NVML failed: {error}"))?;
    if !answer.status.success() {
        let said = answer.stderr.trim();
        return Err(if said.is_empty() {
            format!("NVML ended its process ({})", answer.status)
        } else {
            said.to_owned()
        });
    }
    let usage: Usage =
        serde_json::from_str(&answer.stdout).map_err(|error| format!("NVML's process answered strangely: {error}"))?;
    let known = usage.devices.iter().all(|device| device.device < uuids.len());
    known
        .then_some(usage)
        .ok_or_else(|| "the NVML helper process answered for devices that were not asked about".to_owned())
}

/// What the child is asked.
#[derive(Debug, clap::Args)]
pub struct ProbeUsageArgs {
    pid: u32,
    /// In the order of the snapshot's devices.
    uuids: Vec<String>,
}

/// The other side of [`ask`].
pub fn answer(args: &ProbeUsageArgs) -> Result<ExitCode, Failure> {
    fn print(usage: &impl Serialize) -> Result<ExitCode, Failure> {
        crate::text::print_json(usage).map(|()| ExitCode::SUCCESS)
    }
    match gather(args) {
        Ok(usage) => print(&usage),
        Err(error) => {
            eprintln!("{error}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn gather(args: &ProbeUsageArgs) -> Result<Usage, Error> {
    let nvml = Nvml::init()?;
    let source = nvml
        .driver_version()
        .map_or_else(|_| "NVML".to_owned(), |version| format!("NVML {version}"));
    let mut usage = Usage {
        source,
        devices: Vec::new(),
        missing: None,
    };
    for (device, uuid) in args.uuids.iter().enumerate() {
        match device_usage(&nvml, device, uuid, args.pid) {
            Ok(found) => usage.devices.push(found),
            Err(error) => usage.missing = Some(format!("{error}, asked for {uuid}")),
        }
    }
    Ok(usage)
}

fn device_usage(nvml: &Nvml, device: usize, uuid: &str, pid: u32) -> Result<DeviceUsage, Error> {
    let found = nvml.device(uuid)?;
    let memory = nvml.memory(found)?;
    let processes = nvml.processes(found);
    let own = processes.iter().find(|process| process.pid == pid);
    let others: Vec<_> = processes.iter().filter(|process| process.pid != pid).collect();
    let sum: Option<u64> = others.iter().map(|process| process.used_bytes).sum();
    Ok(DeviceUsage {
        device,
        total_bytes: memory.total,
        used_bytes: memory.used,
        reserved_bytes: memory.reserved,
        process_bytes: own.and_then(|process| process.used_bytes),
        // A list without the process itself is no list of the others: inside a container it is empty.
        others: own.and(sum).map(|bytes| OtherProcesses {
            bytes,
            count: others.len() as u64,
        }),
    })
}
