//! The memory in use on each device according to the driver, queried through NVML.
//!
//! NVML needs no context, so a query does not change the result; `cuMemGetInfo` needs one, which takes about 500 MiB. The
//! library is opened at run time in a child process with a time limit, since a GPU that has fallen off the bus can hang its
//! callers. Devices are matched by UUID, since ordinals differ between processes. Deliberately absent: processes that have
//! ended.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use culeak::snapshot::{DeviceUsage, GroupLimits, OtherProcesses, ProcessState, Snapshot, Usage};

use crate::errors::Failure;
use crate::load::{Loaded, recording_of};
use crate::nvml::{Error, Nvml};
use crate::probe;

/// The hidden command that runs [`answer`] in the child.
pub const COMMAND: &str = "__probe-usage";
const LIMIT: Duration = Duration::from_secs(20);

/// Queries the devices of a process that runs on this machine, and stores the answer in its snapshot.
pub fn ask_driver(item: &mut Loaded) {
    let snapshot = &mut item.snapshot;
    if let Some(limits) = lives(snapshot).and_then(|pid| limits(snapshot, pid))
        && let Some(automatic) = &mut snapshot.taken.automatic
    {
        automatic.limits = limits;
    }
    // An automatic snapshot shows the past, so current usage does not belong to it.
    let present = snapshot.process.state == ProcessState::Running && snapshot.taken.automatic.is_none();
    if !present || snapshot.usage.is_some() || snapshot.devices.is_empty() {
        return;
    }
    // A process in a container has another process id here, which the driver uses too.
    let pid = item.source.parse().unwrap_or_else(|_| snapshot.process.number());
    let uuids: Vec<&str> = snapshot.devices.iter().map(|device| device.uuid.as_str()).collect();
    snapshot.usage = Some(of_devices(pid, &uuids));
}

/// Asks NVML about these devices; without an answer, [`Usage::missing`] says why.
pub fn of_devices(pid: u32, uuids: &[&str]) -> Usage {
    ask(pid, uuids).unwrap_or_else(|why| Usage {
        source: "NVML".to_owned(),
        missing: Some(why),
        ..Usage::default()
    })
}

/// The process of an automatic snapshot, if it still runs under its id.
fn lives(snapshot: &Snapshot) -> Option<u32> {
    snapshot.taken.automatic.as_ref()?.failed?;
    let pid = snapshot.process.pid;
    let (recording, _) = recording_of(pid).ok()?;
    // NAME.out-of-memory-N.culeak-snapshot is beside NAME.culeak.
    let name = format!("{}.", recording.file_stem()?.to_str()?);
    let file = Path::new(&snapshot.process.recording).file_name()?.to_str()?;
    file.starts_with(&name).then_some(pid)
}

/// What the control group of a process may have of the device of the request for which a snapshot was taken.
pub fn limits(snapshot: &Snapshot, pid: u32) -> Option<GroupLimits> {
    let failed = snapshot.failed.get(snapshot.taken.automatic.as_ref()?.failed?)?;
    let device = snapshot.devices.get(failed.device?)?;
    let usage = ask(pid, &[&device.uuid]).ok()?;
    usage.devices.first().map(|device| device.limits)
}

/// Queries NVML about these devices, identified by their index in the list, and about this process on them.
///
/// # Errors
/// Why there is no answer, as a sentence.
pub fn ask(pid: u32, uuids: &[&str]) -> Result<Usage, String> {
    let usage: Usage = probe::ask_self("NVML", LIMIT, |command| {
        command.arg(COMMAND).arg(pid.to_string()).args(uuids);
    })?;
    let known = usage.devices.iter().all(|device| device.device < uuids.len());
    known
        .then_some(usage)
        .ok_or_else(|| "the process that queries NVML returned unknown devices; please report a bug".to_owned())
}

/// What NVML counts for a process on all devices; `None`: it does not know the process, or there is no NVML.
pub fn of_process(pid: u32) -> Option<u64> {
    const LIMIT: Duration = Duration::from_secs(3);
    probe::ask_self("NVML", LIMIT, |command| {
        command.arg(COMMAND).arg(pid.to_string()).arg("--sum");
    })
    .ok()?
}

/// The arguments of the child.
#[derive(Debug, clap::Args)]
pub struct ProbeUsageArgs {
    pid: u32,
    /// The bytes of the process on all devices instead.
    #[arg(long)]
    sum: bool,
    /// UUIDs in the order of the snapshot's devices.
    uuids: Vec<String>,
}

/// The child's part of [`ask`].
pub fn answer(args: &ProbeUsageArgs) -> Result<ExitCode, Failure> {
    match args.sum {
        true => probe::print(sum(args.pid)),
        false => probe::print(gather(args)),
    }
}

fn sum(pid: u32) -> Result<Option<u64>, Error> {
    let nvml = Nvml::init()?;
    let processes = nvml
        .devices()?
        .iter()
        .flat_map(|device| device.processes())
        .collect::<Vec<_>>();
    let own = processes.iter().filter(|process| process.pid == pid);
    Ok(own
        .filter_map(|process| process.used_bytes())
        .reduce(u64::saturating_add))
}

fn gather(args: &ProbeUsageArgs) -> Result<Usage, Error> {
    let nvml = Nvml::init()?;
    let source = nvml
        .driver_version()
        .map_or_else(|_| "NVML".to_owned(), |version| format!("NVML {version}"));
    let mut usage = Usage {
        source,
        ..Usage::default()
    };
    for (device, uuid) in args.uuids.iter().enumerate() {
        match device_usage(&nvml, device, uuid, args.pid) {
            Ok(found) => usage.devices.push(found),
            Err(error) => usage.missing = Some(format!("{error}, queried for {uuid}")),
        }
    }
    Ok(usage)
}

fn device_usage(nvml: &Nvml, device: usize, uuid: &str, pid: u32) -> Result<DeviceUsage, Error> {
    let found = nvml.device(uuid)?;
    let memory = found.memory()?;
    let processes = found.processes();
    let own = processes.iter().find(|process| process.pid == pid);
    let others: Vec<_> = processes.iter().filter(|process| process.pid != pid).collect();
    let sum: Option<u64> = others.iter().map(|process| process.used_bytes()).sum();
    let limits: Vec<GroupLimits> = groups(pid).iter().map(|group| found.limits(group)).collect();
    Ok(DeviceUsage {
        device,
        total_bytes: memory.total,
        used_bytes: memory.used,
        reserved_bytes: memory.reserved,
        process_bytes: own.and_then(|process| process.used_bytes()),
        // A list without this process is incomplete: inside a container it is empty.
        others: own.and(sum).map(|bytes| OtherProcesses {
            bytes,
            count: others.len() as u64,
        }),
        limits: GroupLimits {
            limit_bytes: limits.iter().filter_map(|limits| limits.limit_bytes).min(),
            soft_limit_bytes: limits.iter().filter_map(|limits| limits.soft_limit_bytes).min(),
        },
    })
}

/// The folders of the control group of a process and of those around it (version 2).
fn groups(pid: u32) -> Vec<CString> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let own = text.lines().find_map(|line| line.strip_prefix("0::/"));
    let all = Path::new(own.unwrap_or_default()).ancestors();
    let folders = all.map(|group| Path::new("/sys/fs/cgroup").join(group).into_os_string());
    folders
        .filter_map(|folder| CString::new(folder.into_vec()).ok())
        .collect()
}
