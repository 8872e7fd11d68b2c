//! Contexts, which take what was allocated in them along when they go.

use super::{Word, read};
use crate::effects::context;
use crate::recorder;
use culeak::cuda_functions::Api;

/// # Safety
/// As `allocates`.
pub unsafe fn creates_context<T: Word>(_: Api, real: impl FnOnce() -> i32, out: *mut T, device: i32) -> i32 {
    let result = real();
    if result == 0 {
        // SAFETY: read only after success.
        let handle = unsafe { read(out) };
        recorder::quietly(|| {
            if let Some(recording) = recorder::begin() {
                context::created(recording, handle, device);
            }
        });
    }
    result
}

pub fn destroys_context(_: Api, real: impl FnOnce() -> i32, handle: impl Word) -> i32 {
    let known = recorder::quietly(|| {
        let recording = recorder::running()?;
        recording.context(handle.word())?;
        Some((recording, recording.now()))
    })
    .flatten();
    let result = real();
    if result == 0
        && let Some((recording, before)) = known
    {
        recorder::quietly(|| context::destroyed(recording, recorder::thread(recording), handle.word(), before));
    }
    result
}

/// # Safety
/// As `allocates`.
pub unsafe fn attaches_context<T: Word>(_: Api, real: impl FnOnce() -> i32, out: *mut T) -> i32 {
    let result = real();
    if result == 0 {
        // SAFETY: read only after success.
        context::attached(unsafe { read(out) });
    }
    result
}

/// Destroys the context when nothing but its creation held it.
pub fn detaches_context(api: Api, real: impl FnOnce() -> i32, handle: impl Word) -> i32 {
    if context::detached(handle.word()) {
        real()
    } else {
        destroys_context(api, real, handle)
    }
}

/// # Safety
/// As `allocates`.
pub unsafe fn retains_primary<T: Word>(_: Api, real: impl FnOnce() -> i32, out: *mut T, device: i32) -> i32 {
    let result = real();
    if result == 0 {
        // SAFETY: read only after success.
        let handle = unsafe { read(out) };
        recorder::quietly(|| {
            if let Some(recording) = recorder::begin() {
                context::primary_seen(recording, handle, device);
                recorder::watch_exit();
            }
        });
    }
    result
}

/// The last release resets the primary context. During `exit` it is the runtime tidying up after the program, whose
/// leaks are then as leaked as ever.
pub fn releases_primary(_: Api, real: impl FnOnce() -> i32, device: i32) -> i32 {
    let before = recorder::running().map_or(0, |recording| recording.now());
    let result = real();
    if result == 0 && !recorder::is_exiting() && !context::primary_is_active(device) {
        primary_gone(device, before);
    }
    result
}

pub fn resets_primary(_: Api, real: impl FnOnce() -> i32, device: i32) -> i32 {
    let before = recorder::running().map_or(0, |recording| recording.now());
    let result = real();
    if result == 0 {
        primary_gone(device, before);
    }
    result
}

fn primary_gone(device: i32, before: u64) {
    recorder::quietly(|| {
        if let Some(recording) = recorder::running() {
            context::primary_reset(recording, recorder::thread(recording), device, before);
        }
    });
}
