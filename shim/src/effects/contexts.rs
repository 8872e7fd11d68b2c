//! Contexts, which free what was allocated in them when they are destroyed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use super::objects::{creates_on, destroys_object};
use super::{Word, read, segments};
use crate::recorder::{self, current};
use crate::resolve::driver;
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::lockfree::table::Attributes;
use culeak::recording::Recording;

/// # Safety
/// As `allocates`.
pub unsafe fn creates_context<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T, device: i32) -> i32 {
    let result = segments::in_context_of(device, real);
    if result == 0 {
        // SAFETY: read only after success.
        let handle = unsafe { read(out) };
        recorder::quietly(|| {
            if let Some(recording) = recorder::recording() {
                let device = current::device_row(recording, device);
                current::add_context(recording, handle, device, true);
                current::contexts_changed();
            }
        });
    }
    // SAFETY: the same condition.
    unsafe { creates_on(api, || result, Kind::Context, out, device) }
}

/// A limit of the current context. That of the heap of `malloc` in kernels is the size of what a launch takes for it later.
pub fn sets_limit(_: Api, real: impl FnOnce() -> i32, limit: u32, value: usize) -> i32 {
    const MALLOC_HEAP_SIZE: u32 = 2;
    let result = real();
    if result == 0 && limit == MALLOC_HEAP_SIZE {
        recorder::quietly(|| {
            if let Some(recording) = recorder::running() {
                let (context, _) = current::context_and_device(recording);
                recording.set_heap_limit(context, value as u64);
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
    // Before the call, since the handle may name another context after it.
    let attaches = take_attaches(handle.word());
    let result = destroys_object(Kind::Context, handle.word(), real);
    if result != 0 {
        add_attaches(handle.word(), attaches);
    }
    if result == 0
        && let Some((recording, before)) = known
    {
        recorder::quietly(|| {
            // Another thread may already have a new context under the same handle, which stays.
            for context in recording.contexts_until(handle.word(), before) {
                destroyed(recording, context, before);
            }
        });
    }
    result
}

/// Contexts that `cuCtxAttach` was called on, with a count: `cuCtxDetach` destroys a context whose count is 0.
static ATTACHED: [(AtomicU64, AtomicU32); 32] = [const { (AtomicU64::new(0), AtomicU32::new(0)) }; 32];

/// # Safety
/// As `allocates`.
pub unsafe fn attaches_context<T: Word>(_: Api, real: impl FnOnce() -> i32, out: *mut T) -> i32 {
    let result = real();
    if result == 0 {
        // SAFETY: read only after success.
        let handle = unsafe { read(out) };
        add_attaches(handle, 1);
    }
    result
}

fn add_attaches(handle: u64, attaches: u32) {
    // Its own slot, or a free one, which another thread may claim meanwhile.
    let claimed = |of: &AtomicU64| of.compare_exchange(0, handle, Relaxed, Relaxed).unwrap_or_else(|of| of);
    let slot = || ATTACHED.iter().find(|(of, _)| [0, handle].contains(&claimed(of)));
    if attaches > 0
        && let Some((_, count)) = slot()
    {
        count.fetch_add(attaches, Relaxed);
    }
}

/// Undoes a `cuCtxAttach`, or destroys the context if there was none.
pub fn detaches_context(api: Api, real: impl FnOnce() -> i32, handle: impl Word) -> i32 {
    if undo_attach(handle.word()) {
        real()
    } else {
        destroys_context(api, real, handle)
    }
}

/// Takes one from the count of a context. False: it is 0.
fn undo_attach(handle: u64) -> bool {
    let mut of_handle = ATTACHED.iter().filter(|(of, _)| of.load(Relaxed) == handle);
    // In one step: another thread may take the last one meanwhile.
    let take = |count: &AtomicU32| count.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
    of_handle.any(|(_, count)| take(count).is_ok())
}

/// Takes all from the count of a context, whose slot is free then.
fn take_attaches(handle: u64) -> u32 {
    let mut of_handle = ATTACHED.iter().filter(|(of, _)| of.load(Relaxed) == handle);
    of_handle.next().map_or(0, |(of, count)| {
        let taken = count.swap(0, Relaxed);
        of.store(0, Relaxed);
        taken
    })
}

/// # Safety
/// As `allocates`.
pub unsafe fn retains_primary<T: Word>(_: Api, real: impl FnOnce() -> i32, out: *mut T, device: i32) -> i32 {
    let result = segments::in_context_of(device, real);
    if result == 0 {
        // SAFETY: read only after success.
        let handle = unsafe { read(out) };
        recorder::quietly(|| {
            if let Some(recording) = recorder::recording() {
                if recording.context(handle).is_none() {
                    let device = current::device_row(recording, device);
                    current::add_context(recording, handle, device, false);
                }
                recorder::watch_exit();
            }
        });
    }
    result
}

/// The last release resets the primary context. During `exit` the runtime releases it on the program's behalf, and what
/// the program has leaked stays leaked.
pub fn releases_primary(_: Api, real: impl FnOnce() -> i32, device: i32) -> i32 {
    let before = recorder::running().map_or(0, |recording| recording.now());
    let result = real();
    if result == 0 && !recorder::is_exiting() && !primary_is_active(device) {
        primary_was_reset(device, before);
    }
    result
}

pub fn resets_primary(_: Api, real: impl FnOnce() -> i32, device: i32) -> i32 {
    let before = recorder::running().map_or(0, |recording| recording.now());
    let result = real();
    if result == 0 {
        primary_was_reset(device, before);
    }
    result
}

/// Whether the primary context of a device still exists.
fn primary_is_active(device: i32) -> bool {
    let (mut flags, mut active) = (0, 1);
    // SAFETY: valid out-parameters.
    let result = unsafe { driver::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) };
    result != 0 || active != 0
}

fn primary_was_reset(device: i32, before: u64) {
    recorder::quietly(|| {
        if let Some(recording) = recorder::running() {
            let device = current::device_row(recording, device);
            for context in recording.primary_contexts_until(device, before) {
                destroyed(recording, context, before);
            }
        }
    });
}

/// A context was destroyed, and with it what was allocated in it until `before`.
fn destroyed(recording: &Recording, context: u16, before: u64) {
    let shard = recorder::thread_row(recording);
    recorder::note_end(recording);
    recording.context_destroyed(context);
    current::contexts_changed();
    // Compares handles, not rows: an allocation in a new context names the row of an old one with the same handle if the
    // end of the old one was not recorded yet. It is freed with the new context.
    let handle = recording.context_handle(context);
    recording.free_all(shard, |entry| {
        is_freed_with_context(&entry.attributes)
            && entry.time_ns <= before
            && recording.context_handle(entry.attributes.context) == handle
    });
}

/// Memory of pools, VMM and graphs does not belong to a context, nor do libraries, executable graphs and linkers: the driver
/// still destroys them without an error when their context is gone.
fn is_freed_with_context(of: &Attributes) -> bool {
    match of.kind {
        // With a stream it is memory of a pool, which stays.
        Kind::HostPinned => of.flags & Attributes::HAS_STREAM == 0,
        Kind::Device
        | Kind::Pitched
        | Kind::Array
        | Kind::Mipmapped
        | Kind::Managed
        | Kind::HostRegistered
        | Kind::Ipc
        | Kind::External
        | Kind::ExternalMapping
        | Kind::Stream
        | Kind::Event
        | Kind::Module
        | Kind::GreenContext
        | Kind::Texture
        | Kind::Surface
        | Kind::ExternalSemaphore
        | Kind::GraphicsResource => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn no_more_attaches_are_undone_than_there_were() {
        const CONTEXT: u64 = 0x7700;
        const ATTACHES: usize = 2_000_000;
        let is_attaching = AtomicBool::new(true);
        // The count is often 1 when both look at it.
        let detach = || {
            let mut undone = 0;
            while is_attaching.load(Relaxed) {
                undone += usize::from(undo_attach(CONTEXT));
            }
            undone
        };
        let undone = std::thread::scope(|scope| {
            let others = [(); 2].map(|()| scope.spawn(detach));
            for _ in 0..ATTACHES {
                // SAFETY: a valid place for the handle.
                unsafe { attaches_context(Api(0), || 0, &mut { CONTEXT }) };
            }
            is_attaching.store(false, Relaxed);
            others.map(|thread| thread.join().expect("it ends"))
        });
        let left = (0..=ATTACHES).filter(|_| undo_attach(CONTEXT)).count();
        assert_eq!(undone[0] + undone[1] + left, ATTACHES);
    }
}
