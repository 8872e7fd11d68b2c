//! The calling thread's current context and device, and their rows in the recording.
//!
//! CUDA is asked: `cuCtxGetCurrent` at every allocation, the rest once per context or device. None of these calls touches a
//! stream, so they are permitted during a graph capture.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

use crate::recorder::job_variables;
use crate::recorder::thread::THREAD;
use crate::resolve::driver;
use cudarc::driver::sys::CUuuid;
use culeak::lockfree::table::Attributes;
use culeak::recording::Recording;
use culeak::system::cold_path;

/// Changes when a context is created or destroyed: its handle may return as another context's.
#[unsafe(link_section = ".data.culeak_events")]
static CHANGES: AtomicU32 = AtomicU32::new(1);

/// The context that a thread saw last. All zeros: none, which no handle and no number of changes equals.
pub struct Seen {
    changes: Cell<u32>,
    handle: Cell<u64>,
    row: Cell<u16>,
    device: Cell<u8>,
}

impl Seen {
    /// Another context than the last one. False: it was destroyed, and has no row. Its handle may return, as that of a primary context
    /// does when it is retained again.
    #[cold]
    #[inline(never)]
    fn set(&self, recording: &Recording, handle: u64, changes: u32) -> bool {
        let add = || Some(add_context(recording, handle, device_row(recording, ordinal()?), false));
        let Some(row) = recording.context(handle).or_else(add) else {
            return false;
        };
        self.handle.set(handle);
        self.changes.set(changes);
        self.row.set(row);
        self.device.set(recording.context_device(row));
        true
    }
}

/// Registers a context. At the first one, variables that the process has set for itself are there.
pub fn add_context(recording: &Recording, handle: u64, device: u8, created: bool) -> u16 {
    job_variables::record_later(recording);
    recording.add_context(handle, device, created)
}

/// Voids what threads know about their contexts.
pub fn contexts_changed() {
    CHANGES.fetch_add(1, AcqRel);
}

/// Rows of the calling thread's current context and device.
#[inline(always)]
pub fn context_and_device(recording: &Recording) -> (u16, u8) {
    let mut context = std::ptr::null_mut();
    // SAFETY: a valid out-parameter.
    if unsafe { driver::cuCtxGetCurrent(&mut context) } != 0 || context.is_null() {
        cold_path();
        return (Attributes::NO_CONTEXT, Attributes::NO_DEVICE);
    }
    let handle = context as u64;
    THREAD.with(|thread| {
        let seen = &thread.seen;
        let changes = CHANGES.load(Acquire);
        let is_new = seen.handle.get() != handle || seen.changes.get() != changes;
        if is_new && !seen.set(recording, handle, changes) {
            return (Attributes::NO_CONTEXT, Attributes::NO_DEVICE);
        }
        (seen.row.get(), seen.device.get())
    })
}

/// Calls `work`. Also returns the row of the device on which the calling thread last allocated inside it; `None` if it recorded no
/// allocation there.
pub fn device_used_in<R>(work: impl FnOnce() -> R) -> (R, Option<u8>) {
    let handle = || THREAD.with(|thread| thread.seen.handle.replace(0));
    handle();
    let result = work();
    let device = THREAD.with(|thread| thread.seen.device.get());
    // The next allocation looks up the context again.
    (result, (handle() != 0).then_some(device))
}

/// The current device of the calling thread.
pub fn ordinal() -> Option<i32> {
    let mut ordinal = -1;
    // SAFETY: a valid out-parameter.
    (unsafe { driver::cuCtxGetDevice(&mut ordinal) } == 0).then_some(ordinal)
}

/// The row of a device; its UUID and name are stored when it is first seen.
pub fn device_row(recording: &Recording, ordinal: i32) -> u8 {
    if ordinal < 0 {
        return Attributes::NO_DEVICE;
    }
    recording.device(ordinal).unwrap_or_else(|| {
        let uuid = |get: unsafe fn(*mut CUuuid, i32) -> i32| {
            let mut uuid = CUuuid { bytes: [0; 16] };
            // SAFETY: a valid out-parameter.
            (unsafe { get(&mut uuid, ordinal) } == 0).then(|| uuid.bytes.map(|byte| byte as u8))
        };
        // On a MIG device the second version names the instance, the first the whole GPU.
        let uuid = match (uuid(driver::cuDeviceGetUuid), uuid(driver::cuDeviceGetUuid_v2)) {
            (Some(whole), Some(instance)) => Some((whole != instance, instance)),
            (one, other) => one.or(other).map(|uuid| (false, uuid)),
        };
        let mut name = [0u8; 104];
        // SAFETY: the buffer has room for 103 bytes and a zero.
        unsafe { driver::cuDeviceGetName(name.as_mut_ptr().cast(), 103, ordinal) };
        recording.add_device(ordinal, uuid, &name);
        recording.device(ordinal).unwrap_or(Attributes::NO_DEVICE)
    })
}

/// As `device_row`, for an ordinal that the program passes and that may be invalid.
pub fn valid_device_row(recording: &Recording, ordinal: i32) -> Option<u8> {
    let exists = || {
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: a valid out-parameter.
        unsafe {
            driver::cuDeviceGetUuid(&mut uuid, ordinal) == 0 || driver::cuDeviceGetUuid_v2(&mut uuid, ordinal) == 0
        }
    };
    let row = recording
        .device(ordinal)
        .or_else(|| (ordinal >= 0 && exists()).then(|| device_row(recording, ordinal)));
    row.filter(|&row| row != Attributes::NO_DEVICE)
}

/// As `device_row`, without asking CUDA: memory of that device was recorded before, unless it escaped the hooks.
pub fn reported_device(recording: &Recording, ordinal: i32) -> u8 {
    recording
        .device(ordinal)
        .unwrap_or_else(|| recording.add_device(ordinal, None, b""))
}
