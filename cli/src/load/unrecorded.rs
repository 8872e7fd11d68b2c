//! A process that was never recorded: the live blocks of PyTorch's allocator in it.
//!
//! They have no call stack, age or peak. What holds them can be searched for as in any other process.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, str};

use culeak::kind::Kind;
use culeak::proc;
use culeak::snapshot::{
    Allocation, BY_READING, Call, Counter, Device, Gathering, Process, ProcessState, Snapshot, Stream, Taken, Thread,
};
use culeak_holders::pytorch::{LiveBlocks, live_blocks};
use culeak_holders::source::live;

use super::Loaded;
use crate::errors::Failure;
use crate::progress;

/// Reads the blocks. `unrecorded`: what to say if the process does not use PyTorch's allocator.
///
/// # Errors
/// There is nothing to read; the message says why and what to do.
pub fn load(pid: u32, unrecorded: Failure) -> Result<Loaded, Failure> {
    let read = live::Process::new(pid)
        .map_err(|error| error.to_string())
        .and_then(|process| live_blocks(&process));
    let live = read.map_err(|why| {
        Failure::new(format!(
            "{}; without a recording, culeak can only read PyTorch's allocator in a process, and {why}",
            unrecorded.message
        ))
    })?;
    if !live.agrees {
        // It is read again after a search.
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            progress::note(format_args!(
                "note: process {pid}: the sum of its blocks was not found among the statistics of PyTorch's allocator: the program \
                 allocates all the time, or has an unknown version of it; blocks may be missing (`culeak why --pause` stops it)"
            ));
        });
    }
    Ok(Loaded {
        root: Some(PathBuf::from(format!("/proc/{pid}/root"))),
        ..Loaded::of(snapshot(pid, &live), pid.to_string())
    })
}

fn snapshot(pid: u32, live: &LiveBlocks) -> Snapshot {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let process = process(pid, now);
    let mut snapshot = Snapshot {
        taken: Taken {
            by: BY_READING.to_owned(),
            at_unix_ns: now,
            ..Taken::default()
        },
        process,
        threads: vec![Thread::default()],
        ..Snapshot::empty()
    };
    let mut ordinals: Vec<i32> = live.blocks.iter().map(|block| i32::from(block.device)).collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    let mut gathering = Gathering::default();
    for block in &live.blocks {
        let device = ordinals.binary_search(&i32::from(block.device)).ok();
        let stream = match block.stream {
            0 => Stream::LegacyDefault,
            handle => Stream::Handle(handle),
        };
        let call = Call {
            stream: Some(stream),
            domain: Some("pytorch".to_owned()),
            ..Call::new(Kind::Tensor, "CUDACachingAllocator", device, 0)
        };
        gathering.add(Allocation {
            address: block.address,
            bytes: block.bytes,
            requested: block.requested,
            time_ns: 0,
            stack: None,
            call: &call,
        });
    }
    snapshot.allocations = gathering.finish();
    for (device, ordinal) in ordinals.iter().enumerate() {
        let of_device = || live.blocks.iter().filter(|block| i32::from(block.device) == *ordinal);
        let (bytes, count) = (
            of_device().fold(0u64, |sum, block| sum.saturating_add(block.bytes)),
            of_device().count() as u64,
        );
        snapshot.devices.push(Device {
            ordinal: *ordinal,
            uuid: String::new(),
            name: String::new(),
        });
        snapshot.counters.push(Counter {
            device: Some(device),
            kind: Kind::Tensor,
            live_bytes: bytes,
            live_count: count,
            peak_bytes: bytes,
            peak_ns: 0,
            total_bytes: bytes,
            total_count: count,
            freed_count: 0,
            failed_count: 0,
        });
    }
    snapshot
}

fn process(pid: u32, now: u64) -> Process {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let own_pid = proc::own_pid(pid).unwrap_or(pid);
    let words = fs::read(folder.join("cmdline")).unwrap_or_default();
    let words = words
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned());
    let mut command_line: Vec<String> = words.collect();
    command_line.pop();
    let executable = fs::read_link(folder.join("exe")).unwrap_or_default();
    Process {
        pid: own_pid,
        pid_here: (own_pid != pid).then_some(pid),
        parent_pid: proc::stat_of(pid).map_or(0, |stat| stat.parent),
        executable: executable.to_string_lossy().into_owned(),
        command_line,
        host: culeak::reader::host_name().unwrap_or_default(),
        started_unix_ns: started(&folder).unwrap_or(now),
        state: ProcessState::Running,
        ..Process::default()
    }
}

/// When a process started, in nanoseconds since 1970.
fn started(folder: &Path) -> Option<u64> {
    let ticks = proc::stat(folder)?.start_ticks;
    let text = fs::read("/proc/stat").ok()?;
    let line = text
        .split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"btime "))?;
    let boot: u64 = str::from_utf8(line).ok()?.trim().parse().ok()?;
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK).ok()??;
    let since_boot = ticks
        .checked_mul(1_000_000_000)?
        .checked_div(u64::try_from(per_second).ok()?)?;
    boot.checked_mul(1_000_000_000)?.checked_add(since_boot)
}
