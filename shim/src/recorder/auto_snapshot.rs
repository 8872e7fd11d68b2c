//! Automatic snapshots, taken while the program runs: when memory runs out, at a new peak, at marks, and at intervals.
//! Each is a copy of the recording, which every command reads.
//!
//! A snapshot is taken inside the event that causes it, not by another process: a program that ran out of memory may
//! exit before another process reacts, and with `LD_PRELOAD` alone there is no other process. There is no thread and no
//! timer either. Live memory changes only at events, so a snapshot at the first event after the interval has elapsed
//! shows what a timer would have seen, and that event.
//!
//! One snapshot is taken at a time; an event that would cause another one meanwhile is counted as a loss. Out-of-memory
//! snapshots are limited to one per stack and a few in all, because some programs run out of memory regularly.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use crate::messages;
use crate::recorder::hold;
use crate::settings::{self, Path};
use culeak::cuda_functions::Api;
use culeak::format::{Loss, NONE, Reason};
use culeak::hold::Moment;
use culeak::kind::{Kind, Place};
use culeak::lockfree::table::{Attributes, Entry};
use culeak::recording::Recording;
use culeak::system::{Errno, Scratch, aside, cold_path};
use culeak::variables::{self, Value};

const OUT_OF_MEMORY: i32 = 2;
/// The most snapshots other than peaks: a program may set many marks.
const MAXIMUM: u32 = 1000;
const OOM_DEFAULT: u32 = 3;
const OOM_MOST: usize = 64;

/// Whether allocations may cause a snapshot: at a peak, or by time.
#[unsafe(link_section = ".data.culeak_events")]
static WATCHING: AtomicBool = AtomicBool::new(false);
static AT_MARKS: AtomicBool = AtomicBool::new(false);
/// By how much a peak must have grown; 0: no snapshots of peaks.
static STEP: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds between snapshots; 0: no snapshots by time.
static EVERY: AtomicU64 = AtomicU64::new(0);
/// When the next snapshot is due.
static DUE: AtomicU64 = AtomicU64::new(0);
static OOM_LIMIT: AtomicU32 = AtomicU32::new(OOM_DEFAULT);

/// Stacks (+ 1) on which memory ran out: in driver calls, and in framework allocators.
static STACKS: [[AtomicU32; OOM_MOST]; 2] = [const { [const { AtomicU32::new(0) }; OOM_MOST] }; 2];
const DEVICES: usize = 64;
/// The peak at the last snapshot: of each device, and of the tensors on it.
static PEAKS: [[AtomicU64; DEVICES]; 2] = [const { [const { AtomicU64::new(0) }; DEVICES] }; 2];
static BUSY: AtomicBool = AtomicBool::new(false);
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Reads the settings; called when the recording starts.
pub fn configure() {
    let limit = match settings::value(variables::OOM_SNAPSHOTS) {
        Some(Value::Number(limit)) => limit.min(OOM_MOST as u32),
        _ => OOM_DEFAULT,
    };
    OOM_LIMIT.store(limit, Relaxed);
    let step = match settings::value(variables::SNAPSHOT_AT_PEAK) {
        Some(Value::Bytes(step)) => step,
        _ => 0,
    };
    STEP.store(step, Relaxed);
    AT_MARKS.store(settings::is_set(variables::SNAPSHOT_AT_MARK), Relaxed);
    let every = match settings::value(variables::SNAPSHOT_EVERY) {
        Some(Value::Nanoseconds(every)) => every,
        _ => 0,
    };
    EVERY.store(every, Relaxed);
    DUE.store(every, Relaxed);
    WATCHING.store(STEP.load(Relaxed) > 0 || every > 0, Relaxed);
}

/// In a forked child, which takes its own snapshots.
pub fn forked() {
    BUSY.store(false, Relaxed);
    NUMBER.store(0, Relaxed);
    for word in STACKS.iter().flatten() {
        word.store(0, Relaxed);
    }
    for word in PEAKS.iter().flatten() {
        word.store(0, Relaxed);
    }
}

/// Whether an allocation may cause a snapshot.
#[inline(always)]
pub fn is_watching() -> bool {
    WATCHING.load(Relaxed)
}

/// After each allocation that was recorded.
#[inline]
pub fn allocated(recording: &Recording, entry: &Entry) {
    if is_watching() {
        cold_path();
        take_if_due(recording, &aside(entry));
    }
}

#[cold]
fn take_if_due(recording: &Recording, entry: &Entry) {
    let step = STEP.load(Relaxed);
    if step > 0 && entry.attributes.device != Attributes::NO_DEVICE {
        let device = entry.attributes.device;
        let peak_of = match entry.attributes.kind {
            Kind::Tensor => Some((1, Some(Kind::Tensor), &b"peak-of-tensors"[..])),
            kind if kind.place().on_device() => Some((0, None, &b"peak"[..])),
            _ => None,
        };
        if let Some((place, kind, name)) = peak_of
            && let Some(last) = PEAKS[place].get(device as usize)
        {
            let (peak, before) = (recording.peak_bytes(device, kind), last.load(Relaxed));
            if peak >= before.saturating_add(step)
                && last.compare_exchange(before, peak, Relaxed, Relaxed).is_ok()
                && !keep_newest(recording, name, device)
            {
                // The next event tries again.
                last.store(before, Relaxed);
            }
        }
    }
    let (every, due) = (EVERY.load(Relaxed), DUE.load(Relaxed));
    if every > 0
        && entry.time_ns >= due
        && DUE
            .compare_exchange(due, entry.time_ns + every, Relaxed, Relaxed)
            .is_ok()
    {
        keep(recording, b"every", Reason::Every, b"", NONE);
    }
}

/// After each failed request; `row` is its row in the recording.
#[cold]
pub fn failed(recording: &Recording, entry: &Entry, error: i32, row: u32) {
    let limit = OOM_LIMIT.load(Relaxed) as usize;
    if error != OUT_OF_MEMORY || limit == 0 || entry.attributes.kind.place() == Place::Nowhere {
        return;
    }
    let within = entry.attributes.kind.place() == Place::Within;
    // PyTorch's allocator frees its cache and retries; it reports a second failure itself.
    if !within && recording.has_allocator_reports() && recording.passes_through(entry.stack, b"libc10_cuda") {
        return;
    }
    if !is_new(
        &STACKS[usize::from(within)][..limit],
        entry.stack.wrapping_add(1).max(1),
    ) {
        return;
    }
    if let Some(paths) = keep(recording, b"out-of-memory", Reason::OutOfMemory, b"", row)
        && let Some(path) = paths.path.as_c_str()
    {
        messages::out_of_memory(Api(entry.attributes.api).name(), entry.bytes, path);
        hold::hold(Moment::OutOfMemory, paths.number);
    }
}

/// Adds a number to a set. False if the set has it already or is full.
fn is_new(places: &[AtomicU32], number: u32) -> bool {
    for place in places {
        match place.compare_exchange(0, number, Relaxed, Relaxed) {
            Ok(_) => return true,
            Err(seen) if seen == number => return false,
            Err(_) => {}
        }
    }
    false
}

/// The program has set a mark.
pub fn marked(recording: &Recording, name: &[u8]) {
    if AT_MARKS.load(Relaxed) {
        keep(recording, b"mark", Reason::Mark, name, NONE);
    }
}

/// The program needed more memory in an interval than it allowed when it began the interval: that is a request, too.
#[cold]
pub fn exceeded(recording: &Recording) {
    keep(recording, b"exceeded", Reason::Requested, b"limit exceeded", NONE);
}

/// The program requests a snapshot.
pub fn requested(recording: &Recording, name: &[u8]) {
    keep(recording, b"snapshot", Reason::Requested, name, NONE);
}

/// File names, too large for a small stack. All zeros is a value.
struct Paths {
    number: u32,
    path: Path,
    unfinished: Path,
}

/// Takes a snapshot under a new name.
fn keep(recording: &Recording, what: &[u8], reason: Reason, name: &[u8], failure: u32) -> Option<Scratch<Paths>> {
    alone(recording, |mut paths| {
        loop {
            let number = NUMBER.load(Relaxed) + 1;
            if number > MAXIMUM {
                return Err(Errno(libc::EFBIG));
            }
            NUMBER.store(number, Relaxed);
            paths.number = number;
            paths.path.set_snapshot(recording.path(), what, Some(number));
            let result = match paths.path.as_c_str() {
                Some(path) => recording.dump(path, reason, name, failure),
                None => Err(Errno(libc::ENAMETOOLONG)),
            };
            match result {
                // Left by an earlier process with the same pid.
                Err(Errno(libc::EEXIST)) => {}
                result => return result.map(|()| paths),
            }
        }
    })
}

/// Takes a snapshot that replaces the previous one.
fn keep_newest(recording: &Recording, what: &[u8], device: u8) -> bool {
    let kept = alone(recording, |mut paths| {
        let Paths { path, unfinished, .. } = &mut *paths;
        path.set_snapshot(recording.path(), what, Some(device.into()));
        unfinished.set_snapshot(recording.path(), b"unfinished-peak", Some(device.into()));
        let (Some(path), Some(unfinished)) = (path.as_c_str(), unfinished.as_c_str()) else {
            return Err(Errno(libc::ENAMETOOLONG));
        };
        // SAFETY: a C string. A file of this name was left by a process that died while it took a snapshot.
        unsafe { libc::unlink(unfinished.as_ptr()) };
        recording.dump(unfinished, Reason::Peak, b"", NONE)?;
        // SAFETY: C strings.
        match unsafe { libc::rename(unfinished.as_ptr(), path.as_ptr()) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    });
    kept.is_some()
}

/// Runs `work` unless a snapshot is being taken already; that and a failure count as losses.
fn alone<R>(recording: &Recording, work: impl FnOnce(Scratch<Paths>) -> Result<R, Errno>) -> Option<R> {
    if BUSY.swap(true, Acquire) {
        recording.add(Loss::Snapshots, 1);
        return None;
    }
    // SAFETY: bytes and integers: all zeros is a value.
    let result = unsafe { Scratch::zeroed() }.and_then(work);
    BUSY.store(false, Release);
    result.inspect_err(|_| recording.add(Loss::Snapshots, 1)).ok()
}
