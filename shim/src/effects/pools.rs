//! Stream-ordered memory and its pools.
//!
//! During a graph capture the same calls add nodes to a graph instead, and allocate when the graph is launched.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

use super::graphs::nodes;
use super::{Location, ON_DEVICE, Word, frees_in, read, record_output};
use crate::recorder::{self, AllocationEvent, Device, current, key};
use crate::resolve::driver;
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Space};

/// How a function takes stream 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NullStream {
    Legacy,
    PerThread,
}
pub use NullStream::{Legacy, PerThread};

/// CU_STREAM_PER_THREAD.
const PER_THREAD: u64 = 2;
/// CU_MEM_LOCATION_TYPE_HOST, …_HOST_NUMA and …_HOST_NUMA_CURRENT.
const ON_HOST: std::ops::RangeInclusive<i32> = 2..=4;
/// The `extra` of such a pool.
const IN_HOST_MEMORY: u64 = 1;
/// In place of a pool: the current pool of the device.
pub const CURRENT_POOL: u64 = 0;

fn stream_word(stream: u64, null: NullStream) -> u64 {
    if stream == 0 && null == PerThread {
        PER_THREAD
    } else {
        stream
    }
}

/// # Safety
/// As `allocates`.
pub unsafe fn allocates_async<T: Word>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    bytes: impl Word,
    pool: impl Word,
    stream: impl Word,
    null: NullStream,
) -> i32 {
    let graph = nodes::captured_into(stream.word(), null == PerThread);
    let pool = match pool.word() {
        CURRENT_POOL => current_pool(),
        pool => pool,
    };
    recorder::note_pool(pool);
    let result = real();
    recorder::note_pool(CURRENT_POOL);
    let event = AllocationEvent {
        extra: stream_word(stream.word(), null),
        flags: Attributes::HAS_STREAM,
        ..AllocationEvent::new(api, Kind::Async, bytes.word())
    };
    if let (Some(graph), 0) = (graph, result) {
        let event = AllocationEvent {
            kind: Kind::Graph,
            flags: 0,
            extra: 0,
            ..event
        };
        // SAFETY: read only after success.
        nodes::allocation_added(graph, unsafe { read(out) }, &event);
        return result;
    }
    let event = with_pool(event, pool);
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
}

pub fn frees_async(_: Api, real: impl FnOnce() -> i32, address: u64, stream: impl Word, null: NullStream) -> i32 {
    match nodes::captured_into(stream.word(), null == PerThread) {
        Some(graph) => {
            let result = real();
            if result == 0 {
                nodes::free_added(graph, address);
            }
            result
        }
        None => frees_in(Space::Pointer, address, real),
    }
}

/// Adds the pool to an event, and its device; memory of a pool in host memory is pinned.
fn with_pool(event: AllocationEvent, pool: u64) -> AllocationEvent {
    if pool == CURRENT_POOL {
        return event;
    }
    let known = recorder::quietly(|| {
        let recording = recorder::running()?;
        let shard = recorder::thread_row(recording);
        recording.table(shard).get(key(Space::Pool, pool))
    })
    .flatten();
    let device = match known {
        Some(pool) => Device::Row(pool.attributes.device),
        None => device_of_default(pool).map_or(Device::Current, Device::Ordinal),
    };
    AllocationEvent {
        kind: match known {
            Some(pool) if pool.extra == IN_HOST_MEMORY => Kind::HostPinned,
            _ => event.kind,
        },
        pool,
        flags: event.flags | Attributes::HAS_POOL,
        device,
        ..event
    }
}

/// The device whose default pool this is.
fn device_of_default(pool: u64) -> Option<i32> {
    // They are never destroyed.
    static DEFAULTS: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];
    let known = || DEFAULTS.iter().position(|default| default.load(Relaxed) == pool);
    if known().is_none() {
        for (ordinal, default) in DEFAULTS.iter().enumerate() {
            let mut handle = std::ptr::null_mut();
            // SAFETY: a valid out-parameter.
            if unsafe { driver::cuDeviceGetDefaultMemPool(&mut handle, ordinal as i32) } != 0 {
                break;
            }
            default.store(handle as u64, Relaxed);
        }
    }
    known().map(|ordinal| ordinal as i32)
}

/// # Safety
/// As `allocates`; `properties` is the call's own.
pub unsafe fn creates_pool<T: Word, P>(api: Api, real: impl FnOnce() -> i32, out: *mut T, properties: *const P) -> i32 {
    let result = real();
    // SAFETY: CUmemPoolProps is {allocation type, handle types, location {type, id}, …}.
    let location = unsafe { Location::read(result, properties, 2) };
    let event = AllocationEvent {
        space: Space::Pool,
        device: location.device(),
        extra: if ON_HOST.contains(&location.kind) {
            IN_HOST_MEMORY
        } else {
            0
        },
        ..AllocationEvent::new(api, Kind::Pool, 0)
    };
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
}

/// Memory of the pool stays allocated until it is freed: this frees the pool object alone.
pub fn destroys_pool(_: Api, real: impl FnOnce() -> i32, pool: impl Word) -> i32 {
    let result = frees_in(Space::Pool, pool.word(), real);
    if result == 0 && POOL_WAS_SET.load(Relaxed) {
        // The device's default pool becomes current.
        for current in &POOLS {
            let _ = current.compare_exchange(pool.word(), CURRENT_POOL, Relaxed, Relaxed);
        }
    }
    result
}

pub fn sets_pool(_: Api, real: impl FnOnce() -> i32, device: i32, pool: impl Word) -> i32 {
    let result = real();
    if result == 0 {
        set_current_pool(device, pool.word());
    }
    result
}

/// The pool of device memory is the current pool of the device. cuMemAllocAsync uses no other location's.
///
/// # Safety
/// `location` is the call's own.
pub unsafe fn sets_pool_of<P>(
    _: Api,
    real: impl FnOnce() -> i32,
    location: *mut P,
    kind: impl Word,
    pool: impl Word,
) -> i32 {
    const PINNED: u64 = 1;
    let result = real();
    // SAFETY: CUmemLocation is {type, id}.
    let location = unsafe { Location::read(result, location.cast_const(), 0) };
    if result == 0 && location.kind == ON_DEVICE && kind.word() == PINNED {
        set_current_pool(location.id, pool.word());
    }
    result
}

/// # Safety
/// As `allocates`.
pub unsafe fn imports_pool<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T) -> i32 {
    let result = real();
    let event = AllocationEvent::new(api, Kind::PoolImport, 0).in_space(Space::Pool);
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
}

/// # Safety
/// As `allocates`.
pub unsafe fn imports_pointer<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T, pool: impl Word) -> i32 {
    let result = real();
    let event = AllocationEvent {
        pool: pool.word(),
        flags: Attributes::HAS_POOL,
        ..AllocationEvent::new(api, Kind::PoolImport, 0)
    };
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
}

const DEVICES: usize = 64;
/// The current pool of each device, once the program has set one; 0: the default pool.
static POOLS: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];
static POOL_WAS_SET: AtomicBool = AtomicBool::new(false);

fn pool_of(ordinal: i32) -> Option<&'static AtomicU64> {
    POOLS.get(usize::try_from(ordinal).ok()?)
}

fn set_current_pool(ordinal: i32, pool: u64) {
    if let Some(slot) = pool_of(ordinal) {
        slot.store(pool, Relaxed);
        POOL_WAS_SET.store(true, Relaxed);
    }
}

/// The pool that was set for the calling thread's device; [`CURRENT_POOL`] if none was.
fn current_pool() -> u64 {
    if !POOL_WAS_SET.load(Relaxed) {
        return CURRENT_POOL;
    }
    let pool = current::ordinal().and_then(pool_of);
    pool.map_or(CURRENT_POOL, |pool| pool.load(Relaxed))
}
