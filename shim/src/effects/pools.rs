//! Stream-ordered memory and the pools it comes from.
//!
//! During capture the same calls add nodes to a graph instead, and nothing is allocated until that is launched.

use super::{CURRENT_POOL, Location, NullStream, PerThread, Word, frees_in, read, record, stream_word};
use crate::effects::{context, graph_state};
use crate::recorder::{self, AllocationEvent, Device};
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Key, Space};

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
    let graph = graph_state::captured_into(stream.word(), null == PerThread);
    let result = real();
    let event = AllocationEvent {
        extra: stream_word(stream.word(), null),
        flags: Attributes::HAS_STREAM,
        ..AllocationEvent::new(api, Kind::Async, bytes.word())
    };
    if let (Some(graph), 0) = (graph, result) {
        // SAFETY: read only after success.
        graph_state::allocation_added(
            graph,
            unsafe { read(out) },
            &AllocationEvent {
                kind: Kind::Graph,
                flags: 0,
                extra: 0,
                ..event
            },
        );
        return result;
    }
    let event = match pool.word() {
        CURRENT_POOL => with_pool(event, context::current_pool()),
        pool => with_pool(event, pool),
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &event);
    result
}

/// Names the pool, and with it the device where the program created one.
fn with_pool(event: AllocationEvent, pool: u64) -> AllocationEvent {
    if pool == CURRENT_POOL {
        return event;
    }
    let known = recorder::running().and_then(|recording| {
        let shard = recorder::thread(recording);
        recording.table(shard).get(Key {
            space: Space::Pool,
            address: pool,
        })
    });
    let device = known.map_or(Device::Current, |pool| Device::Row(pool.attributes.device));
    AllocationEvent {
        pool,
        flags: event.flags | Attributes::HAS_POOL,
        device,
        ..event
    }
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
        ..AllocationEvent::new(api, Kind::Pool, 0)
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &event);
    result
}

/// Memory taken from the pool lives on until it is freed: only the pool object goes.
pub fn destroys_pool(_: Api, real: impl FnOnce() -> i32, pool: impl Word) -> i32 {
    frees_in(Space::Pool, pool.word(), real)
}

pub fn sets_pool(_: Api, real: impl FnOnce() -> i32, device: i32, pool: impl Word) -> i32 {
    let result = real();
    if result == 0 {
        context::set_pool(device, pool.word());
    }
    result
}

/// # Safety
/// As `allocates`.
pub unsafe fn imports_pool<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T) -> i32 {
    let result = real();
    // SAFETY: read only after success.
    record(
        result,
        || unsafe { read(out) },
        &AllocationEvent {
            space: Space::Pool,
            ..AllocationEvent::new(api, Kind::PoolImport, 0)
        },
    );
    result
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
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &event);
    result
}
