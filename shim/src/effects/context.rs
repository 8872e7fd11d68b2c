//! The current context and device of a thread, and what a context takes with it when it goes.
//!
//! Reading them is the only thing this library ever asks of CUDA: `cuCtxGetCurrent` at every allocation, the rest once
//! per context or device. None of it touches a stream, so it is allowed during capture.

use libc::c_void;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use crate::resolve::real::{self, Query};
use culeak::kind::Kind;
use culeak::lockfree::table::Attributes;
use culeak::recording::Recording;

/// Changes when a context goes: its handle may come back as another one's.
static CHANGES: AtomicU32 = AtomicU32::new(1);
const DEVICES: usize = 64;
/// The pool a device takes stream-ordered memory from, once a program has set one.
static POOLS: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];
static POOL_WAS_SET: AtomicBool = AtomicBool::new(false);
/// Usage counts of created contexts would be needed for cuCtxDetach alone; contexts attached to are remembered here.
static ATTACHED: [(AtomicU64, AtomicU32); 32] = [const { (AtomicU64::new(0), AtomicU32::new(0)) }; 32];

struct Seen {
    changes: Cell<u32>,
    handle: Cell<u64>,
    row: Cell<u16>,
    device: Cell<u8>,
}

thread_local! {
    static SEEN: Seen = const {
        Seen { changes: Cell::new(0), handle: Cell::new(0), row: Cell::new(Attributes::NO_CONTEXT), device: Cell::new(Attributes::NO_DEVICE) }
    };
}

/// Calls a driver function that the shim looked up itself; -1 when the driver has none.
macro_rules! ask {
    ($query:expr, ($($type:ty),*), ($($value:expr),*)) => {{
        let function = real::query($query);
        if function.is_null() {
            -1
        } else {
            // SAFETY: the driver's function of that name, with its documented signature.
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> i32>(function)($($value),*) }
        }
    }};
}
pub(crate) use ask;

/// Row and device of the calling thread's current context.
#[inline]
pub fn current(recording: &Recording) -> (u16, u8) {
    let mut handle = 0u64;
    if ask!(Query::CtxGetCurrent, (*mut u64), (&mut handle)) != 0 || handle == 0 {
        return (Attributes::NO_CONTEXT, Attributes::NO_DEVICE);
    }
    SEEN.with(|seen| {
        let changes = CHANGES.load(Acquire);
        if seen.handle.get() != handle || seen.changes.get() != changes {
            let row = recording.context(handle).unwrap_or_else(|| {
                let mut ordinal = -1;
                let known = ask!(Query::CtxGetDevice, (*mut i32), (&mut ordinal)) == 0;
                let device = if known {
                    device_row(recording, ordinal)
                } else {
                    Attributes::NO_DEVICE
                };
                recording.add_context(handle, device, false)
            });
            seen.handle.set(handle);
            seen.changes.set(changes);
            seen.row.set(row);
            seen.device.set(recording.context_device(row));
        }
        (seen.row.get(), seen.device.get())
    })
}

/// Forked: rows are the parent's.
pub fn forget() {
    CHANGES.fetch_add(1, AcqRel);
}

/// The row of a device, which is described on first sight.
pub fn device_row(recording: &Recording, ordinal: i32) -> u8 {
    if ordinal < 0 {
        return Attributes::NO_DEVICE;
    }
    recording.device(ordinal).unwrap_or_else(|| {
        let (mut plain, mut precise) = ([0u8; 16], [0u8; 16]);
        let uuid = (ask!(Query::DeviceGetUuid, (*mut u8, i32), (plain.as_mut_ptr(), ordinal)) == 0).then_some(plain);
        // On a MIG device the second version names the instance, the first the whole GPU.
        let mig =
            (ask!(Query::DeviceGetUuidV2, (*mut u8, i32), (precise.as_mut_ptr(), ordinal)) == 0).then_some(precise);
        let uuid = match (uuid, mig) {
            (Some(plain), Some(precise)) => Some((plain != precise, precise)),
            (one, other) => one.or(other).map(|uuid| (false, uuid)),
        };
        let mut name = [0u8; 104];
        ask!(
            Query::DeviceGetName,
            (*mut u8, i32, i32),
            (name.as_mut_ptr(), 103, ordinal)
        );
        recording.add_device(ordinal, uuid, &name);
        recording.device(ordinal).unwrap_or(Attributes::NO_DEVICE)
    })
}

/// As `device_row`, without asking CUDA: memory of that device was recorded before, unless it came past us.
pub fn reported_device(recording: &Recording, ordinal: i32) -> u8 {
    recording
        .device(ordinal)
        .unwrap_or_else(|| recording.add_device(ordinal, None, b""))
}

pub fn set_pool(ordinal: i32, pool: u64) {
    if let Some(slot) = usize::try_from(ordinal).ok().and_then(|ordinal| POOLS.get(ordinal)) {
        slot.store(pool, Relaxed);
        POOL_WAS_SET.store(true, Relaxed);
    }
}

/// The pool the calling thread's device was set to; 0 for its default pool.
pub fn current_pool() -> u64 {
    let mut ordinal = -1;
    if !POOL_WAS_SET.load(Relaxed) || ask!(Query::CtxGetDevice, (*mut i32), (&mut ordinal)) != 0 {
        return 0;
    }
    usize::try_from(ordinal)
        .ok()
        .and_then(|ordinal| POOLS.get(ordinal))
        .map_or(0, |pool| pool.load(Relaxed))
}

pub fn created(recording: &Recording, handle: u64, ordinal: i32) {
    let device = device_row(recording, ordinal);
    recording.add_context(handle, device, true);
    CHANGES.fetch_add(1, AcqRel);
}

/// A primary context was handed out: first sight of it tells which device it belongs to.
pub fn primary_seen(recording: &Recording, handle: u64, ordinal: i32) {
    if recording.context(handle).is_none() {
        recording.add_context(handle, device_row(recording, ordinal), false);
    }
}

pub fn attached(handle: u64) {
    let slot = ATTACHED
        .iter()
        .find(|(of, count)| of.load(Relaxed) == handle || count.load(Relaxed) == 0);
    if let Some((of, count)) = slot {
        of.store(handle, Relaxed);
        count.fetch_add(1, Relaxed);
    }
}

/// Whether this cuCtxDetach only took back a cuCtxAttach.
pub fn detached(handle: u64) -> bool {
    let slot = ATTACHED
        .iter()
        .find(|(of, count)| of.load(Relaxed) == handle && count.load(Relaxed) > 0);
    slot.is_some_and(|(_, count)| count.fetch_sub(1, Relaxed) > 0)
}

/// What belongs to a context and goes with it. Pool, VMM and graph memory does not.
fn goes_with_context(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Device
            | Kind::Pitched
            | Kind::Array
            | Kind::Mipmapped
            | Kind::Managed
            | Kind::HostPinned
            | Kind::HostRegistered
            | Kind::Ipc
            | Kind::External
            | Kind::ExternalMapping
    )
}

/// A context is gone: so is what was allocated in it until `before`. Another thread may have a new one under the same
/// handle already, which goes on.
pub fn destroyed(recording: &Recording, shard: u32, handle: u64, before: u64) {
    for context in recording.contexts_until(handle, before) {
        end(recording, shard, context, before);
    }
}

fn end(recording: &Recording, shard: u32, context: u16, before: u64) {
    recording.context_destroyed(context);
    CHANGES.fetch_add(1, AcqRel);
    // By handle: what another thread allocated in the new context before this one's end was noted may name this one's row,
    // and goes when the new context goes.
    let handle = recording.context_handle(context);
    recording.free_all(shard, |entry| {
        goes_with_context(entry.attributes.kind)
            && entry.time_ns <= before
            && recording.context_handle(entry.attributes.context) == handle
    });
}

/// The primary context of a device was reset.
pub fn primary_reset(recording: &Recording, shard: u32, ordinal: i32, before: u64) {
    let device = device_row(recording, ordinal);
    for context in recording.primary_contexts_until(device, before) {
        end(recording, shard, context, before);
    }
}

/// Whether the primary context of a device still exists.
pub fn primary_is_active(ordinal: i32) -> bool {
    let (mut flags, mut active) = (0u32, 1i32);
    let asked = ask!(
        Query::PrimaryCtxGetState,
        (i32, *mut u32, *mut i32),
        (ordinal, &mut flags, &mut active)
    );
    asked != 0 || active != 0
}
