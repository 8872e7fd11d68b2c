//! The search for what keeps the blocks of a snapshot alive: its blocks go to the engine (`culeak_holders`), and the answer
//! becomes [`Snapshot::holders`].
//!
//! ```text
//! snapshot ─► blocks that a report lists ─► search ─► holders ─► without blocks freed meanwhile
//!         └─► device, pinned and managed memory, which is not searched
//! ```
//!
//! A process goes on while its memory is read. The snapshot is taken before, and the recording is read again after: a block
//! that was freed between the two has no holder any more, so it counts as changed. If the process is stopped for the
//! copy, so it is while the snapshot is taken.
//!
//! Deliberately absent: sums by holder; see `culeak::analysis::why`.

mod core_file;
mod mapped;
mod unread;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use culeak::analysis::framework::owner_of_domain;
use culeak::analysis::groups::{Groups, Level};
use culeak::analysis::report::shell_word;
use culeak::analysis::site::CallStacks;
use culeak::kind::{self, Kind};
use culeak::snapshot::{
    Allocation, BY_PYTORCH, Class, HeldBlock, HolderPath, Holders, Process, ProcessState, RootKind, Snapshot,
    change_retained,
};
use culeak::table;
use culeak_holders::copy::Image;
use culeak_holders::source::core::Core;
use culeak_holders::source::{Source, live};
use culeak_holders::{Block, DebugFiles, Error, LIMIT, Options, StillLive, Stopped};

use mapped::Mapped;

use super::process::{expect_permission, is_unrecorded};
use super::{Loaded, NameArgs, Place, unrecorded};
use crate::errors::Failure;
use crate::symbolize::debug_file;

/// How to search.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// The most copies of a process that runs on; `None`: the engine's default.
    pub copies: Option<u32>,
    /// Stop searching after this time; `None`: the engine's default.
    pub limit: Option<Duration>,
    /// No answer after this time, which contains the copies of the memory.
    pub until: Option<Instant>,
    /// Sum up host memory, too.
    pub host: bool,
    /// Blocks whose path is given with indices and keys, by any address in them.
    pub concrete: Vec<u64>,
    /// Where debug files are.
    pub names: NameArgs,
}

/// What was read of a place. With host memory wanted, a process that was never recorded may lack blocks: then its blocks are unknown, which
/// is said.
///
/// # Errors
/// It cannot be read.
pub fn read(
    place: &Place,
    host: bool,
    load: impl FnOnce(&Place) -> Result<Loaded, Failure>,
) -> Result<Loaded, Failure> {
    match (place, load(place)) {
        (Place::Process(pid), Err(failure)) if host && is_unrecorded(*pid) => {
            Ok(unrecorded::without_blocks(*pid, &failure))
        }
        (_, read) => read,
    }
}

/// Searches the memory of a process, which goes on, and stores the holders in the item's snapshot. Names must be looked up
/// before: they decide which memory belongs to a caching allocator.
///
/// # Errors
/// The process cannot be read; the message says what to do.
pub fn of_process(item: &mut Loaded, pid: u32, wanted: &Wanted) -> Result<(), Failure> {
    expect_permission(pid)?;
    let failed = |error| failure(&format!("process {pid}"), &error);
    let mut source = live::Process::new(pid).map_err(failed)?;
    if item.snapshot.taken.is_of_unrecorded() && !still_runs(&item.snapshot.process) {
        return Err(Failure::new(format!(
            "process {pid}: ended, and another process has its number; name the process that runs now"
        )));
    }
    if let Some(until) = wanted.until {
        source = source.until(until);
    }
    attach(&mut item.snapshot, &mut source, wanted)?;
    if source.is_late() {
        let late = std::io::ErrorKind::TimedOut.into();
        return Err(failed(Error::Read("its memory".to_owned(), late)));
    }
    // Of a process without any, the allocators cannot be read.
    if item.snapshot.allocations.iter().next().is_none() {
        return Ok(());
    }
    let now = again(&item.snapshot).load()?;
    if let Some(holders) = &mut item.snapshot.holders {
        drop_all_but(holders, &live_blocks(&now.snapshot));
    }
    Ok(())
}

/// Stops a process, reads its recording, copies its memory, and lets it go on: the two agree. Then `name` looks up names, and the
/// memory is searched.
///
/// # Errors
/// The process cannot be stopped or read; the message says what to do.
pub fn of_stopped(pid: u32, wanted: &Wanted, name: impl FnOnce(&mut Loaded)) -> Result<Loaded, Failure> {
    expect_permission(pid)?;
    let subject = format!("process {pid}");
    let failed = |error: Error| failure(&subject, &error);
    let place = Place::Process(pid);
    // What cannot be read is noticed before it is stopped. Its files are in memory afterwards.
    read(&place, wanted.host, Place::load)?;
    let source = live::Process::new(pid).map_err(failed)?;
    let began = Instant::now();
    source
        .pause(true)
        .map_err(|error| failed(Error::Read("the process cannot be stopped".to_owned(), error)))?;
    let mut notes = Vec::new();
    let item = read(&place, wanted.host, |place| match super::recording_of(pid) {
        Err(failure) if is_unrecorded(pid) => {
            unrecorded::load_within(wanted.limit.unwrap_or(LIMIT), pid, failure, &mut notes)
        }
        _ => place.load(),
    });
    let read = began.elapsed();
    let copy = item.map(|item| (Image::take(&source, &excluded(&item.snapshot)), item));
    let copied = began.elapsed() - read;
    let _ = source.pause(false);
    let paused = began.elapsed();
    unrecorded::mention(pid, notes);
    let (copy, mut item) = copy?;
    let copy = copy.map_err(failed)?;
    name(&mut item);
    let stopped = Stopped { copy, copied, paused };
    attach_by(&mut item.snapshot, &subject, wanted, |blocks, options| {
        culeak_holders::search_stopped(stopped, blocks, options)
    })?;
    Ok(item)
}

/// Searches a running process for the holders of its memory; other sources must have them. For options that ask for holders.
/// `host`: sum up host memory, too.
///
/// # Errors
/// A process cannot be read, or another source has no holders; the message says what to do.
pub fn of_place(item: &mut Loaded, place: &Place, host: bool) -> Result<(), Failure> {
    let wanted = Wanted {
        host,
        ..Wanted::default()
    };
    match place {
        Place::Process(pid) => of_process(item, *pid, &wanted),
        _ if item.snapshot.holders.is_some() => Ok(()),
        Place::File(_) | Place::Pipe(_) | Place::StandardInput => Err(Failure::new(not_searched(item))),
    }
}

/// Why a snapshot has no holders, and how to get them.
pub fn not_searched(item: &Loaded) -> String {
    let source = &item.source;
    let by = &item.snapshot.taken.by;
    if item.snapshot.taken.is_by_pytorch() {
        let where_else = match by.as_str() {
            BY_PYTORCH => {
                "run the program with `culeak run --why -- PROGRAM`, or search while it runs: `culeak why PID`"
            }
            _ => "culeak searches programs that use CUDA",
        };
        return format!("{source}: recorded by {by}, which does not search for what holds memory; {where_else}");
    }
    match item.snapshot.process.state {
        // A snapshot may be older than the end of its process.
        ProcessState::Running if still_runs(&item.snapshot.process) => {
            let pid = item.snapshot.process.number();
            format!("{source}: what holds its memory was not searched for, but the process runs; name its id, {pid}")
        }
        // A killed program has no end at which `run --why` could search.
        ProcessState::Ended => format!(
            "{source}: what held its memory was not searched for, and the process ended without its exit handlers: it was killed, \
             or called _exit; if it left a core file, use `culeak why --core FILE {}`; otherwise run it again, and search while it \
             runs: `culeak why PID`",
            shell_word(source)
        ),
        ProcessState::Running | ProcessState::Exited | ProcessState::Unknown => format!(
            "{source}: what held its memory was not searched for; run the program again with `culeak run --why -- PROGRAM`, which \
             searches at its end, or search while it runs: `culeak why PID`; if it left a core file, use `culeak why --core FILE {}`",
            shell_word(source)
        ),
    }
}

/// Another process may have its number by now, here or on another machine.
fn still_runs(process: &Process) -> bool {
    /// The kernel says in whole seconds when the machine started.
    const ROUNDING_NS: u64 = 2_000_000_000;
    let started = unrecorded::started(Path::new(&format!("/proc/{}", process.number())));
    culeak::reader::host_name().is_some_and(|host| host == process.host)
        && started.is_some_and(|started| started <= process.started_unix_ns.saturating_add(ROUNDING_NS))
}

/// Reads a core file, and the recording of its process: this one, or `*.PID.culeak` beside the core file or in the current
/// folder.
///
/// # Errors
/// A file cannot be read, or there is not exactly one such recording; the message says what to name.
pub fn open_core(path: &Path, recording: Option<&OsStr>) -> Result<(Core, Loaded), Failure> {
    let core = Core::open(path).map_err(|error| failure(&path.display().to_string(), &error))?;
    let place = match recording {
        Some(recording) => super::single(recording)?,
        None => Place::File(core_file::recording_of(core.process_id(), path)?),
    };
    let item = place.load()?;
    core_file::expect_same_process(path, &core, &item)?;
    Ok((core, item))
}

/// Searches this memory for the blocks that a report of the snapshot lists, and stores the holders in the snapshot. Names
/// must be looked up before.
///
/// # Errors
/// The memory cannot be read, or the snapshot has no addresses.
pub fn attach(snapshot: &mut Snapshot, source: &mut dyn Source, wanted: &Wanted) -> Result<(), Failure> {
    let subject = match source.pid() {
        Some(pid) => format!("process {pid}"),
        None => "core file".to_owned(),
    };
    let still_live = source.pid().map(|_| still_live(again(snapshot)));
    attach_by(snapshot, &subject, wanted, |blocks, options| {
        let options = Options {
            still_live,
            ..options.clone()
        };
        culeak_holders::search(source, blocks, &options)
    })
}

fn attach_by(
    snapshot: &mut Snapshot,
    subject: &str,
    wanted: &Wanted,
    search: impl FnOnce(&[Block], &Options) -> Result<Holders, Error>,
) -> Result<(), Failure> {
    if snapshot.allocations.is_summed() {
        return Err(Failure::new(format!(
            "{subject}: the memory at a peak is recorded by stack, without addresses; ask why it is there at another point"
        )));
    }
    let listed = Listed::of(snapshot);
    let defaults = Options::default();
    let debug_dirs = wanted.names.places(None).debug_dirs;
    let find = move |path: &Path, build_id: &str| debug_file(path, build_id, &debug_dirs);
    let options = Options {
        copies: wanted.copies.unwrap_or(defaults.copies),
        limit: wanted.limit.unwrap_or(defaults.limit),
        debug_files: Some(DebugFiles(Arc::new(find))),
        host: wanted.host,
        host_blocks: (listed.records.iter().enumerate())
            .filter_map(|(index, record)| record.is_of_host.then_some(index))
            .collect(),
        excluded: listed.excluded.clone(),
        reserved: listed.reserved.clone(),
        concrete: wanted
            .concrete
            .iter()
            .filter_map(|&address| listed.at(address))
            .collect(),
        ..defaults
    };
    let mut holders = search(&listed.blocks, &options).map_err(|error| failure(subject, &error))?;
    listed.give_back(&mut holders);
    unread::doubt_lost(&mut holders, snapshot, |held| listed.is_of_torch(held));
    if holders.search.at_ns == 0 {
        holders.search.at_ns = snapshot.taken.at_ns;
    }
    snapshot.holders = Some(holders);
    Ok(())
}

/// Where the memory of a running process can be read again: its recording, or the process itself.
fn again(snapshot: &Snapshot) -> Place {
    match snapshot.taken.is_of_unrecorded() {
        true => Place::Process(snapshot.process.number()),
        false => Place::File(PathBuf::from(&snapshot.process.recording)),
    }
}

/// Reads the recording again to find the blocks that were not freed since. If that fails, all count as live.
fn still_live(again: Place) -> StillLive {
    StillLive(Arc::new(move |blocks| match again.load() {
        Ok(now) => {
            let live = live_blocks(&now.snapshot);
            let is_live = |block: &Block| live.contains(&(block.address, block.time_ns));
            blocks.iter().map(is_live).collect()
        }
        Err(_) => vec![true; blocks.len()],
    }))
}

/// Address and time of each block.
pub fn live_blocks(snapshot: &Snapshot) -> HashSet<(u64, u64)> {
    snapshot
        .allocations
        .iter()
        .map(|row| (row.address, row.time_ns))
        .collect()
}

fn failure(subject: &str, error: &Error) -> Failure {
    use std::io::ErrorKind;
    Failure::new(match error {
        Error::Read(_, cause) if cause.kind() == ErrorKind::PermissionDenied => format!(
            "{subject}: its memory cannot be read ({error}); run culeak as the same user with CAP_SYS_PTRACE or as root, or start \
             the program with CULEAK_WHY=1 in its environment, which permits it if the kernel lets only parents read a process"
        ),
        Error::Read(_, cause) if cause.kind() == ErrorKind::NotFound && subject.starts_with("process") => {
            format!("{subject}: ended while its memory was being read ({error}); record it with `culeak run --why`")
        }
        Error::Unsupported(_) => format!("{subject}: {error}; reports still show which line allocated the memory"),
        Error::Read(..) | Error::Core(_) => format!("{subject}: its memory cannot be searched ({error})"),
    })
}

/// What the engine is asked about.
struct Listed {
    /// By address, without overlaps.
    blocks: Vec<Block>,
    /// The records of `blocks`.
    records: Vec<Record>,
    excluded: Vec<Range<u64>>,
    reserved: Vec<Range<u64>>,
    limits: Vec<String>,
}

/// The record that a block stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    address: u64,
    bytes: u64,
    /// Memory of a caching allocator whose blocks were not recorded.
    cached: bool,
    /// A module or library of kernels: the runtime's own tables contain those that it loads.
    is_code: bool,
    /// Physical memory, which is mapped into a reserved range of addresses.
    is_mapped: bool,
    /// Pinned or registered host memory.
    is_of_host: bool,
}

/// Objects of one call and stack that are searched for.
const OBJECTS_OF_STACK: u32 = 32;

/// Lowest and one past the highest address of user space.
const POINTERS: Range<u64> = 0x1_0000..0x8000_0000_0000;

impl Listed {
    fn of(snapshot: &Snapshot) -> Listed {
        let stacks = CallStacks::of(snapshot);
        let groups = Groups::of(snapshot, &stacks);
        let mapped = Mapped::of(snapshot);
        let mut found: Vec<(Block, Record)> = Vec::new();
        let (mut not_addresses, mut unmapped) = (0, 0);
        for allocation in snapshot.allocations.iter().filter(|allocation| allocation.bytes > 0) {
            let level = groups.level(&allocation, &stacks);
            if !level.is_counted() {
                continue;
            }
            let range = match allocation.kind {
                Kind::Physical | Kind::HostPhysical => mapped.range(&allocation),
                Kind::Array | Kind::Mipmapped => handle(allocation.address),
                _ => Some(allocation.address..allocation.address.saturating_add(allocation.bytes)),
            };
            let Some(range) = range.filter(|range| !range.is_empty()) else {
                match allocation.kind {
                    Kind::Physical | Kind::HostPhysical => unmapped += 1,
                    _ => not_addresses += 1,
                }
                continue;
            };
            let block = Block {
                address: range.start,
                bytes: range.end - range.start,
                time_ns: allocation.time_ns,
                of_torch: is_of_torch(&allocation, stacks.get(allocation.stack).allocator),
                is_handle: false,
            };
            let record = Record {
                address: allocation.address,
                bytes: allocation.bytes,
                cached: level == Level::Cached,
                is_code: false,
                is_mapped: matches!(allocation.kind, Kind::Physical | Kind::HostPhysical),
                is_of_host: allocation.kind.place() == kind::Place::Host,
            };
            found.push((block, record));
        }
        found.extend(handles(snapshot));
        // Of two blocks that overlap, the outer one is searched for; of two at one address, the newer one.
        found.sort_by_key(|(block, _)| (block.address, u64::MAX - block.bytes, u64::MAX - block.time_ns));
        let (mut end, before) = (0, found.len());
        found.retain(|(block, _)| {
            let is_apart = block.address >= end;
            if is_apart {
                end = block.address.saturating_add(block.bytes);
            }
            is_apart
        });
        let within = before - found.len();
        let limits = table! {
            within, "blocks lie within other blocks, whose holders are shown instead";
            unmapped, "blocks of virtual memory management were not searched for: the recording does not say where they are mapped";
            not_addresses, "blocks were not searched for: their handles are not addresses";
        };
        let limits = limits.into_iter().filter(|(count, _)| *count > 0);
        let reserved = reserved(snapshot, &found);
        let (blocks, records) = found.into_iter().unzip();
        Listed {
            blocks,
            records,
            excluded: excluded(snapshot),
            reserved,
            limits: limits.map(|(count, what)| format!("{count} {what}")).collect(),
        }
    }

    /// The index of the block that contains this address.
    fn at(&self, address: u64) -> Option<usize> {
        let index = self
            .blocks
            .partition_point(|block| block.address <= address)
            .checked_sub(1)?;
        let block = &self.blocks[index];
        (address - block.address < block.bytes || self.records[index].address == address).then_some(index)
    }

    /// Whether this block of an answer is of PyTorch's allocator.
    fn is_of_torch(&self, held: &HeldBlock) -> bool {
        self.at(held.address).is_some_and(|index| self.blocks[index].of_torch)
    }

    /// Names the blocks of an answer as the snapshot does, and adds what was not searched.
    fn give_back(&self, holders: &mut Holders) {
        let Holders {
            blocks,
            objects,
            retainers,
            ..
        } = holders;
        let records: HashMap<(u64, u64), (&Block, &Record)> = (self.blocks.iter().zip(&self.records))
            .map(|(block, record)| ((block.address, block.time_ns), (block, record)))
            .collect();
        blocks.retain_mut(|held| {
            let Some(&(block, record)) = records.get(&(held.address, held.time_ns)) else {
                return false;
            };
            let class = holders.paths.get(held.path).map(|path| path.class);
            // A cached block without a pointer to it is free, and not lost.
            if record.cached && class.is_none_or(|class| class == Class::Lost) {
                return false;
            }
            let counted = i128::from(record.bytes) - i128::from(block.bytes);
            change_retained(retainers, held.retainer, counted, -i64::from(block.is_handle));
            (held.address, held.bytes) = (record.address, record.bytes);
            // The driver's own lists contain all handles.
            let of_program = |path: &&HolderPath| {
                let is_own = path.origin.contains("libcuda.so") || record.is_code && path.root == RootKind::Global;
                path.class == Class::Held && !path.possibly && !is_own
            };
            if block.is_handle && holders.paths.get(held.path).filter(of_program).is_some() {
                objects.push(*held);
            }
            !block.is_handle
        });
        objects.sort_unstable_by_key(|held| (held.address, held.time_ns));
        blocks.sort_unstable_by_key(|held| (held.address, held.time_ns));
        holders.search.limits.extend(self.limits.iter().cloned());
    }
}

/// The reserved ranges of addresses, sorted, in which several of these blocks are mapped, or one that begins elsewhere. Not those that
/// an allocator divides: a pointer to one block does not hold the others.
fn reserved(snapshot: &Snapshot, found: &[(Block, Record)]) -> Vec<Range<u64>> {
    let before = |address: u64| found.partition_point(|(block, _)| block.address < address);
    let has_several = |range: &Range<u64>| match &found[before(range.start)..before(range.end)] {
        [] => false,
        [(only, _)] if only.address == range.start => false,
        within => (within.iter()).all(|(block, record)| record.is_mapped && !record.cached && !block.of_torch),
    };
    let rows = snapshot.allocations.iter().filter(|row| row.kind == Kind::Reserved);
    let ranges = rows.map(|row| row.address..row.address.saturating_add(row.requested));
    let mut ranges: Vec<Range<u64>> = ranges.collect();
    ranges.sort_unstable_by_key(|range| range.start);
    // The driver's do not overlap.
    ranges.dedup_by(|next, before| next.start < before.end);
    ranges.retain(has_several);
    ranges
}

/// Some objects of each call and stack, as blocks of one byte.
fn handles(snapshot: &Snapshot) -> Vec<(Block, Record)> {
    let mut counts: HashMap<(usize, Option<usize>), u32> = HashMap::new();
    let objects = snapshot.objects.iter().enumerate();
    let some = objects.filter(|(index, object)| {
        let count = counts
            .entry((snapshot.objects.call_of(*index), object.stack))
            .or_default();
        *count += 1;
        *count <= OBJECTS_OF_STACK
    });
    let handles = some.filter_map(|(_, object)| {
        let range = handle(object.address)?;
        let block = Block {
            address: range.start,
            bytes: 1,
            time_ns: object.time_ns,
            of_torch: false,
            is_handle: true,
        };
        let record = Record {
            address: range.start,
            bytes: 0,
            cached: false,
            is_code: matches!(object.kind, Kind::Module | Kind::Library),
            is_mapped: false,
            is_of_host: false,
        };
        Some((block, record))
    });
    handles.collect()
}

/// A handle that is a pointer, as a block of one byte.
fn handle(address: u64) -> Option<Range<u64>> {
    POINTERS.contains(&address).then(|| address..address + 1)
}

/// Whether PyTorch's caching allocator keeps pointers to the memory.
fn is_of_torch(allocation: &Allocation, allocator: Option<&str>) -> bool {
    let owner = allocation.domain().map(owner_of_domain);
    allocation.kind == Kind::Tensor || owner == Some("PyTorch") || owner.is_none() && allocator == Some("PyTorch")
}

/// Device, pinned and managed memory, and everything that is mapped or reserved for it; merged, by address.
pub fn excluded(snapshot: &Snapshot) -> Vec<Range<u64>> {
    use Kind::*;
    let has_addresses = |kind| {
        let is_handle = matches!(
            kind,
            Array | Mipmapped | Physical | HostPhysical | Pool | Imported | External | Multicast
        );
        // Registered memory is the program's own, and may contain pointers.
        !is_handle && kind != HostRegistered && kind.place() != kind::Place::Within
    };
    let rows = snapshot.allocations.iter().filter(|row| has_addresses(row.kind));
    let ranges = rows.map(|row| row.address..row.address.saturating_add(row.bytes.max(row.requested)));
    let mut ranges: Vec<Range<u64>> = ranges.filter(|range| !range.is_empty()).collect();
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Takes the paths away of the blocks that are not among these live ones, by address and time.
pub fn drop_all_but(holders: &mut Holders, live: &HashSet<(u64, u64)>) {
    holders.change(|held| !live.contains(&(held.address, held.time_ns)));
}

#[cfg(test)]
mod tests;
