//! A process that was never recorded: the live blocks of the allocators of frameworks in it ([`READABLE`]).
//!
//! They have no call stack, age or peak. What holds them can be searched for as in any other process.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fs, io, str};

use culeak::kind::Kind;
use culeak::proc;
use culeak::snapshot::{
    Allocation, BY_HISTORY, BY_READING, Call, Capture, Counter, Device, Gathering, Process, ProcessState, READABLE,
    Snapshot, Stack, Stream, Thread,
};
use culeak_holders::objects::LibraryBlocks;
use culeak_holders::pytorch::{LiveBlock, LiveBlocks};
use culeak_holders::source::{Source, live};
use culeak_holders::{Deadline, LIMIT, objects, pytorch, xla};

use super::process::expect_permission;
use super::{Loaded, memory_viz};
use crate::errors::Failure;
use crate::text::units;
use crate::{progress, usage};

/// The blocks that an allocator gave out.
struct Given {
    call: Call,
    blocks: Vec<LiveBlock>,
}

impl Given {
    fn by(kind: Kind, function: &'static str, domain: &str, blocks: Vec<LiveBlock>) -> Given {
        let call = Call {
            domain: Some(domain.to_owned()),
            ..Call::new(kind, function, None, 0)
        };
        Given { call, blocks }
    }

    /// What PyTorch's allocator has from the driver, and gives out in blocks: segments, and runs of pages.
    fn memory(segments: Vec<LiveBlock>, runs: Vec<LiveBlock>) -> [Given; 3] {
        let call = Call::new(Kind::Device, "CUDACachingAllocator", None, 0);
        let [physical, mapping] = memory_viz::expandable(&call);
        let given = |call, blocks| Given { call, blocks };
        [
            given(call, segments),
            given(physical, runs.clone()),
            given(mapping, runs),
        ]
    }
}

const DISAGREES: &str = "the sum of its blocks was not found among the statistics of PyTorch's allocator: the program allocates all the \
     time, or has an unknown version of it; blocks may be missing (`culeak why --pause` stops it)";
const BY_CLASS: &str =
    "the storages of its tensors were found by their class instead, without segments and what the allocator has cached";
const SEGMENTS: &str = "PyTorch's segments could not all be read: their sum was not found among the statistics of its allocator, so \
     `--view segments` lacks some or all of them";

/// Reads the blocks. `unrecorded`: what to say if the process uses none of these allocators.
///
/// # Errors
/// There is nothing to read; the message says why and what to do.
pub fn load(pid: u32, unrecorded: Failure) -> Result<Loaded, Failure> {
    let mut notes = Vec::new();
    let loaded = load_within(LIMIT, pid, unrecorded, &mut notes).map_err(|failure| match usage::of_process(pid) {
        Some(bytes) => Failure::new(format!(
            "{}; NVML counts {} for it",
            failure.message,
            units::bytes(bytes)
        )),
        None => failure,
    });
    mention(pid, notes);
    loaded
}

/// What is to be said of a process.
pub struct Note {
    text: String,
    /// Bytes that were found; how much NVML counts is added.
    found: Option<u64>,
}

impl Note {
    fn of(text: String) -> Note {
        Note { text, found: None }
    }
}

/// What was read of PyTorch's allocator, and what is to be said of it: why, and how much of what NVML counts was found.
fn of_pytorch(live: LiveBlocks) -> (Vec<Given>, Option<Note>) {
    let bytes = live.blocks.iter().map(|block| block.bytes);
    let found = Some(bytes.fold(0, u64::saturating_add));
    let note = match &live.by_class {
        Some(why) => Some((format!("{why}; {BY_CLASS}"), found)),
        None if !live.agrees => Some((DISAGREES.to_owned(), found)),
        None => (!live.has_all_segments).then(|| (SEGMENTS.to_owned(), None)),
    };
    let note = note.map(|(text, found)| Note { text, found });
    let function = if live.by_class.is_some() {
        "c10::StorageImpl"
    } else {
        "CUDACachingAllocator"
    };
    let tensors = Given::by(Kind::Tensor, function, "pytorch", live.blocks);
    let memory = Given::memory(live.segments, live.runs).into_iter();
    let memory = memory.filter(|given| !given.blocks.is_empty());
    ([tensors].into_iter().chain(memory).collect(), note)
}

/// As above, for no longer than this. What is to be said is added to the notes, for [`mention`]: the process may be stopped.
pub fn load_within(limit: Duration, pid: u32, unrecorded: Failure, notes: &mut Vec<Note>) -> Result<Loaded, Failure> {
    let failure = |why: String| {
        Failure::new(format!(
            "{}; without a recording, culeak can only read the allocators of {READABLE} in a process, and {why}",
            unrecorded.message
        ))
    };
    expect_permission(pid)?;
    let executable = || fs::read_link(format!("/proc/{pid}/exe")).ok();
    let executed = executable();
    let process = live::Process::new(pid).map_err(|error| failure(error.to_string()))?;
    let deadline = Deadline::after(limit);
    let of_pytorch = pytorch::live_blocks(&process, deadline).map(|live| {
        let (given, note) = of_pytorch(live?);
        notes.extend(note);
        Some(given)
    });
    let of_xla = xla::live_blocks(&process, deadline)
        .map(|live| Some(vec![Given::by(Kind::Buffer, "BFCAllocator", "XLA", live?)]));
    let of_libraries = objects::live_blocks(&process, deadline).into_iter().map(|read| {
        let read = read?;
        notes.extend(left_out(&read).map(Note::of));
        let blocks = Given::by(Kind::Block, read.library.allocator, read.library.name, read.blocks);
        Ok(Some(vec![blocks]))
    });
    let of_libraries: Vec<_> = of_libraries.collect();
    let (mut given, mut unread) = (Vec::new(), Vec::new());
    for read in [of_pytorch, of_xla].into_iter().chain(of_libraries) {
        match read {
            Ok(read) => given.extend(read.into_iter().flatten()),
            Err(why) => unread.push(why),
        }
    }
    if given.is_empty() {
        let map = process.regions().map(|_| ());
        return Err(failure(nothing(map, executable() == executed, &unread)));
    }
    notes.extend(unread.iter().map(|why| Note::of(format!("not read: {why}"))));
    Ok(of_process(pid, snapshot(pid, &given)))
}

/// Why nothing was read. A process that goes away meanwhile leaves anything to read. `map`: whether its memory map can be read now.
fn nothing(map: io::Result<()>, is_same_program: bool, unread: &[String]) -> String {
    match (map, is_same_program, unread) {
        (Err(error), ..) if error.kind() == io::ErrorKind::PermissionDenied => error.to_string(),
        (Err(_), ..) => "it ended while it was read".to_owned(),
        (_, false, _) => "it executed another program while it was read".to_owned(),
        (.., []) => "it uses none of them".to_owned(),
        (.., unread) => unread.join("; "),
    }
}

fn left_out(read: &LibraryBlocks) -> Option<String> {
    let LibraryBlocks {
        library,
        objects,
        others,
        ..
    } = read;
    (*others > 0).then(|| {
        format!(
            "{others} of {objects} objects of {}'s memory are not understood and are left out; how many bytes they have is not known",
            library.name
        )
    })
}

fn of_process(pid: u32, snapshot: Snapshot) -> Loaded {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    Loaded::of(snapshot, pid.to_string()).below(Some(root))
}

/// A process of which no block is known. `failure`: why none can be read.
pub fn without_blocks(pid: u32, failure: &Failure) -> Loaded {
    let why = failure.message.strip_prefix(&format!("process {pid}: "));
    let why = why.unwrap_or(&failure.message);
    mention(pid, vec![Note::of(format!("its GPU memory is not known: {why}"))]);
    of_process(pid, snapshot(pid, &[]))
}

/// A process whose PyTorch wrote what it knows of its blocks, as `torch.cuda.memory._snapshot()` returns it.
pub fn of_history(pid: u32, bytes: &[u8]) -> Result<Loaded, String> {
    let mut snapshot = memory_viz::read(bytes, "")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    snapshot.process = process(pid, now);
    // The times of its events say nothing of the process.
    snapshot.taken = Capture {
        by: BY_HISTORY.to_owned(),
        at_unix_ns: now,
        ..Capture::default()
    };
    // As when its memory is read, which tells what is still live.
    snapshot.allocations.change(|_, block, _| block.time_ns = 0);
    Ok(of_process(pid, snapshot))
}

/// What was said about each process, by the text of the note.
static SAID: Mutex<BTreeMap<(u32, String), String>> = Mutex::new(BTreeMap::new());

/// What was said about a process.
pub fn noted(pid: u32) -> Vec<String> {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let of_process = said.iter().filter(|((of, _), _)| *of == pid);
    of_process.map(|(_, note)| note.clone()).collect()
}

/// As [`super::names::forget_notes`].
pub fn forget_notes() {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Says each note once. The process is read again after a search, when other bytes may be found. It must run: NVML is asked about it.
pub fn mention(pid: u32, notes: Vec<Note>) {
    for Note { text, found } in notes {
        let note = match found.map(|found| (units::bytes(found), usage::of_process(pid))) {
            None => text.clone(),
            Some((found, Some(all))) => format!(
                "{text}; found: {found} of {} that NVML counts for the process",
                units::bytes(all)
            ),
            Some((found, None)) => format!("{text}; found: {found}; NVML does not say how much the process has"),
        };
        let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
        if said.insert((pid, text), note.clone()).is_none() {
            progress::note(format_args!("note: process {pid}: {note}"));
        }
    }
}

fn snapshot(pid: u32, given: &[Given]) -> Snapshot {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let process = process(pid, now);
    let mut snapshot = Snapshot {
        taken: Capture {
            by: BY_READING.to_owned(),
            at_unix_ns: now,
            ..Capture::default()
        },
        process,
        threads: vec![Thread::default()],
        // Of segments.
        locations: vec![memory_viz::named(memory_viz::CACHE, "", 0)],
        stacks: vec![Stack {
            frames: vec![0],
            truncated: false,
        }],
        ..Snapshot::empty()
    };
    let device_of = |block: &LiveBlock| i32::from(block.device);
    let mut ordinals: Vec<i32> = given.iter().flat_map(|given| &given.blocks).map(device_of).collect();
    ordinals.sort_unstable();
    ordinals.dedup();
    let mut gathering = Gathering::default();
    for Given { call, blocks } in given {
        for block in blocks {
            let stream = match block.stream {
                0 => Stream::LegacyDefault,
                handle => Stream::Handle(handle),
            };
            let call = Call {
                device: ordinals.binary_search(&device_of(block)).ok(),
                // CuPy's objects do not have it.
                stream: (call.kind == Kind::Tensor || call.domain.is_none()).then_some(stream),
                ..call.clone()
            };
            gathering.add(Allocation {
                address: block.address,
                bytes: block.bytes,
                requested: block.requested,
                time_ns: 0,
                stack: call.domain.is_none().then_some(0),
                call: &call,
            });
        }
    }
    snapshot.allocations = gathering.finish();
    for (device, ordinal) in ordinals.iter().enumerate() {
        snapshot.devices.push(Device {
            ordinal: *ordinal,
            uuid: String::new(),
            name: String::new(),
        });
        for Given { call, blocks } in given {
            let of_device = || blocks.iter().filter(|block| device_of(block) == *ordinal);
            let bytes = of_device().fold(0u64, |sum, block| sum.saturating_add(block.bytes));
            let count = of_device().count() as u64;
            snapshot.counters.push(Counter {
                device: Some(device),
                kind: call.kind,
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
pub fn started(folder: &Path) -> Option<u64> {
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

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::nothing;

    #[test]
    fn a_process_that_goes_away_is_not_said_to_have_an_unknown_layout() {
        let unread = ["its layout is not understood".to_owned()];
        assert_eq!(nothing(Ok(()), true, &unread), unread[0]);
        assert_eq!(nothing(Ok(()), true, &[]), "it uses none of them");
        let ended = || Err(ErrorKind::NotFound.into());
        assert!(nothing(ended(), false, &unread).starts_with("it ended"));
        assert!(nothing(Ok(()), false, &unread).starts_with("it executed another program"));
        let refused = Error::new(ErrorKind::PermissionDenied, "access is refused");
        assert_eq!(nothing(Err(refused), false, &unread), "access is refused");
    }
}
