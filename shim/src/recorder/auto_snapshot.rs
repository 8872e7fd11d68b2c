//! Snapshots kept on disk while the program runs: when memory runs out, at a new peak, at moments the program names, and
//! from time to time. Each is a copy of the recording (`culeak::recording::frozen`), which every command reads.
//!
//! They are made here, inside the event that gives the occasion, and not by somebody outside who is asked to: a program
//! that ran out of memory may be gone before anybody looks, and `LD_PRELOAD` alone has nobody outside. There is no thread
//! and no timer either. What is live changes at events only, so a snapshot at the first event after the time has come
//! shows what a timer would have seen, and that event.
//!
//! One snapshot is made at a time; an occasion that comes meanwhile is passed over and counted. Memory that ran out is
//! worth a snapshot once per stack, and a few times in all: programs may live with it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use crate::messages;
use crate::settings::{self, Path};
use culeak::cuda_functions::Api;
use culeak::format::Reason;
use culeak::format::{Loss, NONE};
use culeak::kind::{Kind, Place};
use culeak::lockfree::table::{Attributes, Entry};
use culeak::recording::Recording;
use culeak::system::Errno;
use culeak::system::Scratch;
use culeak::variables::{self, Value};

const OUT_OF_MEMORY: i32 = 2;
/// Of any sort but peaks: a program may name many moments.
const MOST: u32 = 1000;
const OOM_DEFAULT: u32 = 3;
const OOM_MOST: usize = 64;

/// Whether allocations are looked at: for peaks, or for the time.
static WATCHING: AtomicBool = AtomicBool::new(false);
static AT_MARKS: AtomicBool = AtomicBool::new(false);
/// By how much a peak must have grown; 0: peaks are not of interest.
static STEP: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds between snapshots; 0: none by time.
static EVERY: AtomicU64 = AtomicU64::new(0);
/// When the next snapshot is due.
static DUE: AtomicU64 = AtomicU64::new(0);
static OOM_LIMIT: AtomicU32 = AtomicU32::new(OOM_DEFAULT);

/// Stacks (+ 1) on which memory ran out: at the driver level, and at that of frameworks.
static STACKS: [[AtomicU32; OOM_MOST]; 2] = [const { [const { AtomicU32::new(0) }; OOM_MOST] }; 2];
const DEVICES: usize = 64;
/// The peak at the last snapshot: of a device, and of tensors there.
static PEAKS: [[AtomicU64; DEVICES]; 2] = [const { [const { AtomicU64::new(0) }; DEVICES] }; 2];
static BUSY: AtomicBool = AtomicBool::new(false);
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// When the recording begins.
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

/// Forked: the child has snapshots of its own to make, beside a recording of its own.
pub fn forget() {
    BUSY.store(false, Relaxed);
    NUMBER.store(0, Relaxed);
    for word in STACKS.iter().flatten() {
        word.store(0, Relaxed);
    }
    for word in PEAKS.iter().flatten() {
        word.store(0, Relaxed);
    }
}

/// After each allocation that was recorded.
#[inline]
pub fn allocated(recording: &Recording, entry: &Entry) {
    if WATCHING.load(Relaxed) {
        look(recording, entry);
    }
}

#[cold]
fn look(recording: &Recording, entry: &Entry) {
    let step = STEP.load(Relaxed);
    if step > 0 && entry.attributes.device != Attributes::NO_DEVICE {
        let device = entry.attributes.device;
        let level = match entry.attributes.kind {
            Kind::Tensor => Some((1, Some(Kind::Tensor), &b"peak-of-tensors"[..])),
            kind if kind.place().on_device() => Some((0, None, &b"peak"[..])),
            _ => None,
        };
        if let Some((level, kind, name)) = level
            && let Some(last) = PEAKS[level].get(device as usize)
        {
            let (peak, before) = (recording.peak_bytes(device, kind), last.load(Relaxed));
            if peak >= before.saturating_add(step)
                && last.compare_exchange(before, peak, Relaxed, Relaxed).is_ok()
                && !keep_newest(recording, name, device)
            {
                // Another chance at the next event.
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

/// After each request that was refused; `row` is where it was recorded.
#[cold]
pub fn failed(recording: &Recording, entry: &Entry, error: i32, row: u32) {
    let limit = OOM_LIMIT.load(Relaxed) as usize;
    if error != OUT_OF_MEMORY || limit == 0 || entry.attributes.kind.place() == Place::Nowhere {
        return;
    }
    let within = entry.attributes.kind.place() == Place::Within;
    // PyTorch's allocator gives back what it has cached and asks again, and says so if that was in vain.
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
        messages::say_out_of_memory(Api(entry.attributes.api).name(), entry.bytes, path);
    }
}

/// Takes the first free place for a number that has none yet.
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

/// The program has named a moment.
pub fn marked(recording: &Recording, name: &[u8]) {
    if AT_MARKS.load(Relaxed) {
        keep(recording, b"mark", Reason::Mark, name, NONE);
    }
}

/// An interval has just needed more than it may.
#[cold]
pub fn exceeded(recording: &Recording) {
    keep(recording, b"exceeded", Reason::Requested, b"limit exceeded", NONE);
}

/// The program wants a snapshot.
pub fn requested(recording: &Recording, name: &[u8]) {
    keep(recording, b"snapshot", Reason::Requested, name, NONE);
}

/// Names of files, too long for a small stack. All zeros is a value.
struct Paths {
    path: Path,
    unfinished: Path,
}

/// Keeps a snapshot under a name of its own.
fn keep(recording: &Recording, what: &[u8], reason: Reason, name: &[u8], refusal: u32) -> Option<Scratch<Paths>> {
    alone(recording, |mut paths| {
        loop {
            let number = NUMBER.load(Relaxed) + 1;
            if number > MOST {
                return Err(Errno(libc::EFBIG));
            }
            NUMBER.store(number, Relaxed);
            paths.path.set_kept(recording.path(), what, Some(number));
            let result = match paths.path.as_c_str() {
                Some(path) => recording.dump(path, reason, name, refusal),
                None => Err(Errno(libc::ENAMETOOLONG)),
            };
            match result {
                // Left by an earlier process of this number.
                Err(Errno(libc::EEXIST)) => {}
                result => return result.map(|()| paths),
            }
        }
    })
}

/// Keeps a snapshot in place of the one before.
fn keep_newest(recording: &Recording, what: &[u8], device: u8) -> bool {
    let kept = alone(recording, |mut paths| {
        let Paths { path, unfinished } = &mut *paths;
        path.set_kept(recording.path(), what, Some(device.into()));
        unfinished.set_kept(recording.path(), b"unfinished-peak", Some(device.into()));
        let (Some(path), Some(unfinished)) = (path.as_c_str(), unfinished.as_c_str()) else {
            return Err(Errno(libc::ENAMETOOLONG));
        };
        // SAFETY: C strings. A file of this name was left by a process that died while it made it.
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

/// Does it unless a snapshot is being made already; what fails is counted.
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
