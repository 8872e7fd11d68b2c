//! What each verb of the function list does to the recording. The order of recording and calling is decided here, once
//! per kind of effect:
//!
//! - *allocates*: call, then record what came out, or record the refusal;
//! - *frees*: forget, then call, then settle: forgotten for good, or restored when the free failed;
//! - what takes many records along (contexts, unmapping, launches): call, then forget what is older than the call.
//!
//! Out-parameters are read only after success. Nothing here calls CUDA except through `real`, the driver's own function
//! with the program's own arguments.

use std::ptr::NonNull;

use crate::arrays::{Descriptor, Shape};
use crate::recorder::{self, Device, Facts, Held, TEARDOWN};
use crate::{context, doors, graphs};
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::layout::{Loss, halves, pack};
use culeak::table::{Key, Link, Space, What};

/// An address or handle, whatever C type it has.
pub trait Word: Copy {
    fn word(self) -> u64;
}
impl Word for u32 {
    fn word(self) -> u64 {
        self.into()
    }
}
impl Word for u64 {
    fn word(self) -> u64 {
        self
    }
}
impl Word for usize {
    fn word(self) -> u64 {
        self as u64
    }
}
impl<T> Word for *mut T {
    fn word(self) -> u64 {
        self as u64
    }
}

/// Reads what a successful call wrote; 0 if it was not given a place to write to.
///
/// # Safety
/// `out` is null or was written by the call.
unsafe fn read<T: Word>(out: *mut T) -> u64 {
    // SAFETY: the caller vouches for it.
    NonNull::new(out).map_or(0, |out| unsafe { out.read() }.word())
}

/// How a function takes stream 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum NullStream {
    Legacy,
    PerThread,
}
pub use NullStream::{Legacy, PerThread};

/// CU_STREAM_PER_THREAD.
const PER_THREAD: u64 = 2;
/// Stands for "no pool named": the device's current one.
pub const CURRENT_POOL: u64 = 0;

fn stream_word(stream: u64, null: NullStream) -> u64 {
    if stream == 0 && null == PerThread {
        PER_THREAD
    } else {
        stream
    }
}

pub fn observes(_: Api, real: impl FnOnce() -> i32) -> i32 {
    real()
}

/// cuInit: the recording begins when the driver does, so that a process which allocates nothing has one too.
pub fn initializes(_: Api, real: impl FnOnce() -> i32) -> i32 {
    let result = real();
    if result == 0 {
        recorder::quietly(recorder::begin);
    }
    result
}

/// # Safety
/// The arguments of cuGetProcAddress.
pub unsafe fn looks_up(
    _: Api,
    real: impl FnOnce() -> i32,
    symbol: *const libc::c_char,
    function: *mut *mut libc::c_void,
) -> i32 {
    let result = real();
    if result == 0 {
        // SAFETY: the call succeeded with these arguments.
        recorder::quietly(|| unsafe { doors::looked_up(symbol, function) });
    }
    result
}

pub fn hands_out_table<T>(_: Api, real: impl FnOnce() -> i32, _id: *const T) -> i32 {
    let result = real();
    if result == 0
        && let Some(recording) = recorder::running()
    {
        recording.add(Loss::ExportTables, 1);
    }
    result
}

fn record(result: i32, address: impl FnOnce() -> u64, facts: &Facts) {
    if result == 0 {
        let address = address();
        if address != 0 {
            recorder::allocated(address, facts);
        }
    } else {
        recorder::refused(result, facts);
    }
}

/// # Safety
/// `out` is the call's own out-parameter (here and below).
pub unsafe fn allocates<T: Word>(
    api: Api,
    real: impl FnOnce() -> i32,
    kind: Kind,
    out: *mut T,
    bytes: impl Word,
) -> i32 {
    let result = real();
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &Facts::new(api, kind, bytes.word()));
    result
}

/// # Safety
/// As `allocates`; `pitch` is an out-parameter too.
pub unsafe fn allocates_pitched<T: Word, P: Word>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    pitch: *mut P,
    width: impl Word,
    height: impl Word,
) -> i32 {
    let result = real();
    let requested = width.word().saturating_mul(height.word());
    let bytes = if result == 0 {
        // SAFETY: read only after success.
        unsafe { read(pitch) }.saturating_mul(height.word())
    } else {
        requested
    };
    let facts = Facts {
        requested,
        ..Facts::new(api, Kind::Pitched, bytes)
    };
    // SAFETY: as above.
    record(result, || unsafe { read(out) }, &facts);
    result
}

pub fn frees(_: Api, real: impl FnOnce() -> i32, address: impl Word) -> i32 {
    frees_in(Space::Pointer, address.word(), real)
}

fn frees_in(space: Space, address: u64, real: impl FnOnce() -> i32) -> i32 {
    let held = recorder::withdraw(space, address);
    let result = real();
    held.settle(result, address);
    result
}

pub fn frees_async(_: Api, real: impl FnOnce() -> i32, address: u64, stream: impl Word, null: NullStream) -> i32 {
    match graphs::captured_into(stream.word(), null == PerThread) {
        Some(graph) => {
            let result = real();
            if result == 0 {
                graphs::free_added(graph, address);
            }
            result
        }
        None => frees_in(Space::Pointer, address, real),
    }
}

pub fn registers(api: Api, real: impl FnOnce() -> i32, address: impl Word, bytes: impl Word) -> i32 {
    let result = real();
    let facts = Facts {
        space: Space::Registered,
        ..Facts::new(api, Kind::HostRegistered, bytes.word())
    };
    record(result, || address.word(), &facts);
    result
}

pub fn unregisters(_: Api, real: impl FnOnce() -> i32, address: impl Word) -> i32 {
    frees_in(Space::Registered, address.word(), real)
}

/// # Safety
/// As `allocates`; `descriptor` is the call's own.
pub unsafe fn creates_array<T: Word, D: Descriptor>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    descriptor: *const D,
) -> i32 {
    // SAFETY: the same conditions.
    unsafe { creates_handle(api, Kind::Array, out, descriptor, 1, real) }
}

/// # Safety
/// As `creates_array`.
pub unsafe fn creates_mipmap<T: Word, D: Descriptor>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    descriptor: *const D,
    levels: u32,
) -> i32 {
    // SAFETY: the same conditions.
    unsafe { creates_handle(api, Kind::Mipmapped, out, descriptor, levels, real) }
}

/// # Safety
/// As `creates_array`.
unsafe fn creates_handle<T: Word, D: Descriptor>(
    api: Api,
    kind: Kind,
    out: *mut T,
    descriptor: *const D,
    levels: u32,
    real: impl FnOnce() -> i32,
) -> i32 {
    let result = real();
    // SAFETY: a descriptor that the driver has read just now.
    let shape = (!descriptor.is_null()).then(|| unsafe { D::shape(descriptor) });
    let bytes = shape.map_or(0, |shape: Shape| shape.bytes(levels));
    let facts = Facts {
        space: Space::Array,
        ..Facts::new(api, kind, bytes)
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &facts);
    result
}

pub fn destroys_array(_: Api, real: impl FnOnce() -> i32, array: impl Word) -> i32 {
    frees_in(Space::Array, array.word(), real)
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
    let graph = graphs::captured_into(stream.word(), null == PerThread);
    let result = real();
    let facts = Facts {
        extra: stream_word(stream.word(), null),
        flags: What::HAS_STREAM,
        ..Facts::new(api, Kind::Async, bytes.word())
    };
    if let (Some(graph), 0) = (graph, result) {
        // SAFETY: read only after success.
        graphs::allocation_added(
            graph,
            unsafe { read(out) },
            &Facts {
                kind: Kind::Graph,
                flags: 0,
                extra: 0,
                ..facts
            },
        );
        return result;
    }
    let facts = match pool.word() {
        CURRENT_POOL => with_pool(facts, context::current_pool()),
        pool => with_pool(facts, pool),
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &facts);
    result
}

/// Names the pool, and with it the device where the program created one.
fn with_pool(facts: Facts, pool: u64) -> Facts {
    if pool == CURRENT_POOL {
        return facts;
    }
    let known = recorder::running().and_then(|recording| {
        let lane = recorder::thread(recording);
        recording.table(lane).get(Key {
            space: Space::Pool,
            address: pool,
        })
    });
    let device = known.map_or(Device::Current, |pool| Device::Row(pool.what.device));
    Facts {
        pool,
        flags: facts.flags | What::HAS_POOL,
        device,
        ..facts
    }
}

/// Integers at the start of CUmemPoolProps and CUmemAllocationProp: where the memory shall be.
struct Location {
    kind: i32,
    id: i32,
}

/// CU_MEM_LOCATION_TYPE_DEVICE.
const ON_DEVICE: i32 = 1;

impl Location {
    /// # Safety
    /// `properties` is null or points to at least `index + 2` integers.
    unsafe fn read<T>(properties: *const T, index: usize) -> Location {
        if properties.is_null() {
            return Location { kind: 0, id: -1 };
        }
        let integers = properties.cast::<i32>();
        // SAFETY: the caller vouches for it.
        unsafe {
            Location {
                kind: integers.add(index).read(),
                id: integers.add(index + 1).read(),
            }
        }
    }

    fn device(&self) -> Device {
        if self.kind == ON_DEVICE {
            Device::Ordinal(self.id)
        } else {
            Device::None
        }
    }
}

/// # Safety
/// As `allocates`; `properties` is the call's own.
pub unsafe fn creates_pool<T: Word, P>(api: Api, real: impl FnOnce() -> i32, out: *mut T, properties: *const P) -> i32 {
    let result = real();
    // SAFETY: CUmemPoolProps is {allocation type, handle types, location {type, id}, …}.
    let location = unsafe { Location::read(properties, 2) };
    let facts = Facts {
        space: Space::Pool,
        device: location.device(),
        ..Facts::new(api, Kind::Pool, 0)
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &facts);
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
        &Facts {
            space: Space::Pool,
            ..Facts::new(api, Kind::PoolImport, 0)
        },
    );
    result
}

/// # Safety
/// As `allocates`.
pub unsafe fn imports_pointer<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T, pool: impl Word) -> i32 {
    let result = real();
    let facts = Facts {
        pool: pool.word(),
        flags: What::HAS_POOL,
        ..Facts::new(api, Kind::PoolImport, 0)
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &facts);
    result
}

/// # Safety
/// As `allocates`.
pub unsafe fn reserves<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T, bytes: impl Word) -> i32 {
    let result = real();
    let facts = Facts {
        space: Space::Reserved,
        requested: bytes.word(),
        device: Device::None,
        ..Facts::new(api, Kind::Reserved, 0)
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &facts);
    result
}

pub fn unreserves(_: Api, real: impl FnOnce() -> i32, address: impl Word) -> i32 {
    frees_in(Space::Reserved, address.word(), real)
}

/// # Safety
/// As `allocates`; `properties` is the call's own.
pub unsafe fn creates_physical<T: Word, P>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    bytes: impl Word,
    properties: *const P,
) -> i32 {
    let result = real();
    // SAFETY: CUmemAllocationProp is {type, handle types, location {type, id}, …}.
    let location = unsafe { Location::read(properties, 2) };
    let kind = if location.kind == ON_DEVICE || location.kind == 0 {
        Kind::Physical
    } else {
        Kind::HostPhysical
    };
    let facts = Facts {
        device: location.device(),
        ..counted(api, kind, bytes.word())
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &facts);
    result
}

/// A VMM handle with one reference and no mapping.
fn counted(api: Api, kind: Kind, bytes: u64) -> Facts {
    Facts {
        space: Space::Physical,
        extra: pack(1, 0),
        flags: What::COUNTS,
        ..Facts::new(api, kind, bytes)
    }
}

/// # Safety
/// As `allocates`; `properties` is the call's own.
pub unsafe fn creates_multicast<T: Word, P>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    properties: *const P,
) -> i32 {
    let result = real();
    let span = if properties.is_null() {
        0
    } else {
        // SAFETY: CUmulticastObjectProp is {number of devices (4 bytes, padded to 8), size, …}.
        unsafe { properties.cast::<u64>().add(1).read() }
    };
    let facts = Facts {
        requested: span,
        device: Device::None,
        ..counted(api, Kind::Multicast, 0)
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &facts);
    result
}

/// # Safety
/// As `allocates`.
pub unsafe fn imports_physical<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T) -> i32 {
    let result = real();
    // SAFETY: read only after success.
    let handle = if result == 0 { unsafe { read(out) } } else { 0 };
    if result != 0 || !add_reference(Space::Physical, handle) {
        record(result, || handle, &counted(api, Kind::Imported, 0));
    }
    result
}

/// One more reference to something already recorded.
fn add_reference(space: Space, address: u64) -> bool {
    recorder::mark_recorded();
    recorder::quietly(|| {
        let recording = recorder::running()?;
        let table = recording.table(recorder::thread(recording));
        table.update_extra(Key { space, address }, |counts| counts.wrapping_add(1))
    })
    .flatten()
    .is_some()
}

/// # Safety
/// As `allocates`.
pub unsafe fn retains_physical<T: Word>(_: Api, real: impl FnOnce() -> i32, out: *mut T, address: impl Word) -> i32 {
    let result = real();
    if result != 0 {
        return result;
    }
    // SAFETY: read only after success.
    let handle = unsafe { read(out) };
    if !add_reference(Space::Physical, handle) {
        // The handle was released while its mapping lived on: the mapping still knows the memory.
        recorder::quietly(|| {
            let recording = recorder::running()?;
            let table = recording.table(recorder::thread(recording));
            let mapping = table.get(Key {
                space: Space::Mapping,
                address: address.word(),
            });
            let link = Link::from_word(mapping.map_or(Link::NOWHERE.to_word(), |mapping| mapping.pool));
            if table.update_extra_of(link, |counts| counts.wrapping_add(1)).is_some() {
                table.rekey(link);
            } else {
                recording.add(Loss::Details, 1);
            }
            Some(())
        });
    }
    result
}

/// One reference less. The last one frees the memory, unless a mapping keeps it.
pub fn releases_physical(_: Api, real: impl FnOnce() -> i32, handle: u64) -> i32 {
    let key = Key {
        space: Space::Physical,
        address: handle,
    };
    // Before the call, since afterwards the handle may name something else.
    let known = recorder::quietly(|| {
        let recording = recorder::running()?;
        let table = recording.table(recorder::thread(recording));
        let link = table.link(key)?;
        let counts = table.update_extra_of(link, |counts| {
            pack(halves(counts).0.saturating_sub(1), halves(counts).1)
        })?;
        let held = match halves(counts) {
            (0, 0) => recorder::withdraw_linked(link),
            (0, _) => {
                table.unkey(key);
                Held::NOTHING
            }
            _ => Held::NOTHING,
        };
        Some((link, halves(counts), held))
    })
    .flatten();
    let result = real();
    let Some((link, counts, held)) = known else {
        Held::NOTHING.settle(result, handle);
        return result;
    };
    let freed = held.is_something();
    if freed {
        held.settle(result, handle);
    }
    if result != 0 && result != TEARDOWN {
        recorder::quietly(|| {
            let recording = recorder::running()?;
            let table = recording.table(recorder::thread(recording));
            table.update_extra_of(link, |counts| counts.wrapping_add(1));
            if counts.0 == 0 && !freed {
                table.rekey(link);
            }
            if !freed {
                recording.add(Loss::FailedFrees, 1);
            }
            Some(())
        });
    }
    result
}

pub fn maps(api: Api, real: impl FnOnce() -> i32, address: u64, bytes: impl Word, handle: u64) -> i32 {
    let result = real();
    if result != 0 {
        return result;
    }
    let link = recorder::quietly(|| {
        let recording = recorder::begin()?;
        let table = recording.table(recorder::thread(recording));
        let link = table.link(Key {
            space: Space::Physical,
            address: handle,
        })?;
        table.update_extra_of(link, |counts| pack(halves(counts).0, halves(counts).1.wrapping_add(1)))?;
        Some(link)
    })
    .flatten();
    // The mapping's `pool` word holds the link to its memory; the flag that would show it is not set.
    let facts = Facts {
        space: Space::Mapping,
        requested: bytes.word(),
        pool: link.unwrap_or(Link::NOWHERE).to_word(),
        ..Facts::new(api, Kind::Mapping, 0)
    };
    recorder::allocated(address, &facts);
    result
}

/// Unmaps whole mappings, possibly several; the last mapping of a released handle frees its memory.
pub fn unmaps(_: Api, real: impl FnOnce() -> i32, address: u64, bytes: impl Word) -> i32 {
    let before = recorder::running().map_or(0, |recording| recording.next_sequence());
    let result = real();
    if result != 0 {
        return result;
    }
    recorder::quietly(|| {
        let recording = recorder::running()?;
        let lane = recorder::thread(recording);
        let table = recording.table(lane);
        let end = address.saturating_add(bytes.word());
        let mut at = address;
        while at < end {
            let key = Key {
                space: Space::Mapping,
                address: at,
            };
            let Some(mapping) = table.get(key).filter(|mapping| mapping.sequence < before) else {
                if at == address {
                    recording.add(Loss::UnknownFrees, 1);
                }
                break;
            };
            if let Some(withdrawn) = recording.withdraw(key, lane) {
                recording.commit(withdrawn, lane);
            }
            let link = Link::from_word(mapping.pool);
            let counts = table.update_extra_of(link, |counts| {
                pack(halves(counts).0, halves(counts).1.saturating_sub(1))
            });
            if counts == Some(pack(0, 0))
                && let Some(withdrawn) = recording.withdraw_linked(link, lane)
            {
                recording.commit(withdrawn, lane);
            }
            at = at.saturating_add(mapping.requested.max(1));
        }
        Some(())
    });
    result
}

/// # Safety
/// As `allocates`.
pub unsafe fn opens_ipc<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T) -> i32 {
    let result = real();
    // SAFETY: read only after success.
    let address = if result == 0 { unsafe { read(out) } } else { 0 };
    // Opened again, a handle gives the same pointer.
    if result != 0 || !add_reference(Space::Pointer, address) {
        record(
            result,
            || address,
            &Facts {
                extra: pack(1, 0),
                flags: What::COUNTS,
                ..Facts::new(api, Kind::Ipc, 0)
            },
        );
    }
    result
}

pub fn closes_ipc(_: Api, real: impl FnOnce() -> i32, address: u64) -> i32 {
    let key = Key {
        space: Space::Pointer,
        address,
    };
    let left = recorder::quietly(|| {
        let recording = recorder::running()?;
        let table = recording.table(recorder::thread(recording));
        table.update_extra(key, |counts| pack(halves(counts).0.saturating_sub(1), 0))
    })
    .flatten();
    let held = match left {
        Some(counts) if halves(counts).0 > 0 => {
            let result = real();
            if result != 0 {
                add_reference(Space::Pointer, address);
            }
            return result;
        }
        _ => recorder::withdraw(Space::Pointer, address),
    };
    let result = real();
    held.settle(result, address);
    if result != 0 && result != TEARDOWN {
        add_reference(Space::Pointer, address);
    }
    result
}

/// # Safety
/// As `allocates`; `descriptor` is the call's own.
pub unsafe fn imports_external<T: Word, D>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    descriptor: *const D,
) -> i32 {
    let result = real();
    let span = if descriptor.is_null() {
        0
    } else {
        // SAFETY: CUDA_EXTERNAL_MEMORY_HANDLE_DESC has its size at byte 24.
        unsafe { descriptor.cast::<u64>().add(3).read() }
    };
    let facts = Facts {
        space: Space::External,
        requested: span,
        ..Facts::new(api, Kind::External, 0)
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &facts);
    result
}

/// # Safety
/// As `allocates`; `descriptor` is the call's own.
pub unsafe fn maps_external<T: Word, D>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    descriptor: *const D,
) -> i32 {
    let result = real();
    let span = if descriptor.is_null() {
        0
    } else {
        // SAFETY: CUDA_EXTERNAL_MEMORY_BUFFER_DESC has its size at byte 8.
        unsafe { descriptor.cast::<u64>().add(1).read() }
    };
    let facts = Facts {
        requested: span,
        ..Facts::new(api, Kind::ExternalMapping, 0)
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &facts);
    result
}

/// # Safety
/// As `allocates`.
pub unsafe fn maps_external_mipmap<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T) -> i32 {
    let result = real();
    let facts = Facts {
        space: Space::Array,
        ..Facts::new(api, Kind::ExternalMapping, 0)
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &facts);
    result
}

/// What was mapped from it lives on until freed itself.
pub fn destroys_external(_: Api, real: impl FnOnce() -> i32, external: impl Word) -> i32 {
    frees_in(Space::External, external.word(), real)
}

/// # Safety
/// `params` is the call's own.
pub unsafe fn adds_alloc_node<P>(api: Api, real: impl FnOnce() -> i32, graph: impl Word, params: *mut P) -> i32 {
    let result = real();
    if result == 0 && !params.is_null() {
        // SAFETY: CUDA_MEM_ALLOC_NODE_PARAMS: location at 8, size at byte 104, address (written by the call) at 112.
        let (location, bytes, address) = unsafe {
            let words = params.cast::<u64>();
            (
                Location::read(params.cast_const(), 2),
                words.add(13).read(),
                words.add(14).read(),
            )
        };
        let facts = Facts {
            device: location.device(),
            ..Facts::new(api, Kind::Graph, bytes)
        };
        graphs::allocation_added(graph.word(), address, &facts);
    }
    result
}

pub fn adds_free_node(_: Api, real: impl FnOnce() -> i32, graph: impl Word, address: u64) -> i32 {
    let result = real();
    if result == 0 {
        graphs::free_added(graph.word(), address);
    }
    result
}

/// # Safety
/// `params` is the call's own.
pub unsafe fn adds_node<P>(api: Api, real: impl FnOnce() -> i32, graph: impl Word, params: *mut P) -> i32 {
    const CHILD: i32 = 4;
    const ALLOCATION: i32 = 10;
    const FREE: i32 = 11;
    let result = real();
    if result != 0 || params.is_null() {
        return result;
    }
    let words = params.cast::<u64>();
    // SAFETY: CUgraphNodeParams: type at 0, then at 16 a union: allocation {…, size at 120, address at 128},
    // free {address at 16}, child {graph at 16, ownership at 24}.
    unsafe {
        match params.cast::<i32>().read() {
            ALLOCATION => {
                let location = Location::read(params.cast_const(), 6);
                let facts = Facts {
                    device: location.device(),
                    ..Facts::new(api, Kind::Graph, words.add(15).read())
                };
                graphs::allocation_added(graph.word(), words.add(16).read(), &facts);
            }
            FREE => graphs::free_added(graph.word(), words.add(2).read()),
            CHILD if words.add(3).cast::<i32>().read() == 1 => {
                graphs::child_moved(graph.word(), words.add(2).read());
            }
            _ => {}
        }
    }
    result
}

/// Clones the child; a graph with memory nodes cannot be cloned, so there is nothing to note.
pub fn adds_child(_: Api, real: impl FnOnce() -> i32, _graph: impl Word, _child: impl Word) -> i32 {
    real()
}

/// # Safety
/// As `allocates`.
pub unsafe fn instantiates<T: Word>(_: Api, real: impl FnOnce() -> i32, out: *mut T, graph: impl Word) -> i32 {
    let result = real();
    if result == 0 && graphs::exist() {
        // SAFETY: read only after success.
        graphs::instantiated(unsafe { read(out) }, graph.word());
    }
    result
}

pub fn launches(_: Api, real: impl FnOnce() -> i32, exec: impl Word, _stream: impl Word, _null: NullStream) -> i32 {
    if !graphs::exist() {
        return real();
    }
    let before = recorder::running().map_or(0, |recording| recording.next_sequence());
    let result = real();
    if result == 0 {
        graphs::launched(exec.word(), before);
    }
    result
}

pub fn destroys_exec(_: Api, real: impl FnOnce() -> i32, exec: impl Word) -> i32 {
    let result = real();
    if result == 0 {
        graphs::exec_destroyed(exec.word());
    }
    result
}

pub fn destroys_graph(_: Api, real: impl FnOnce() -> i32, graph: impl Word) -> i32 {
    let result = real();
    if result == 0 {
        graphs::graph_destroyed(graph.word());
    }
    result
}

pub fn begins_capture(_: Api, real: impl FnOnce() -> i32) -> i32 {
    let result = real();
    if result == 0 {
        graphs::capture_began();
    }
    result
}

pub fn ends_capture(_: Api, real: impl FnOnce() -> i32) -> i32 {
    let result = real();
    graphs::capture_ended();
    result
}

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
        Some((recording, recording.context(handle.word())?, recording.next_sequence()))
    })
    .flatten();
    let result = real();
    if result == 0
        && let Some((recording, context, before)) = known
    {
        recorder::quietly(|| context::destroyed(recording, recorder::thread(recording), context, before));
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
    let before = recorder::running().map_or(0, |recording| recording.next_sequence());
    let result = real();
    if result == 0 && !recorder::is_exiting() && !context::primary_is_active(device) {
        primary_gone(device, before);
    }
    result
}

pub fn resets_primary(_: Api, real: impl FnOnce() -> i32, device: i32) -> i32 {
    let before = recorder::running().map_or(0, |recording| recording.next_sequence());
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
