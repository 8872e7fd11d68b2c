//! What each verb of the function list does to the recording. The order of recording and calling is decided here, once
//! per kind of effect:
//!
//! - *allocates*: call, then record what came out, or record the refusal;
//! - *frees*: forget, then call, then settle: forgotten for good, or restored when the free failed;
//! - what takes many records along (contexts, unmapping, launches): call, then forget what is older than the call.
//!
//! Out-parameters are read only after success. Nothing here calls CUDA except through `real`, the driver's own function
//! with the program's own arguments.

pub mod arrays;
pub mod context;
mod contexts;
mod graph;
pub mod graph_state;
mod pools;
mod sharing;
mod vmm;

pub use contexts::*;
pub use graph::*;
pub use pools::*;
pub use sharing::*;
pub use vmm::*;

use std::ptr::NonNull;

use crate::effects::arrays::{Descriptor, Shape};
use crate::hooks::lookup;
use crate::recorder::{self, AllocationEvent, Device};
use culeak::cuda_functions::Api;
use culeak::format::Loss;
use culeak::kind::Kind;
use culeak::lockfree::table::{Key, Space};

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
        recorder::quietly(|| unsafe { lookup::looked_up(symbol, function) });
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

fn record(result: i32, address: impl FnOnce() -> u64, event: &AllocationEvent) {
    if result == 0 {
        let address = address();
        if address != 0 {
            recorder::allocated(address, event);
        }
    } else {
        recorder::failed(result, event);
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
    record(
        result,
        || unsafe { read(out) },
        &AllocationEvent::new(api, kind, bytes.word()),
    );
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
    let event = AllocationEvent {
        requested,
        ..AllocationEvent::new(api, Kind::Pitched, bytes)
    };
    // SAFETY: as above.
    record(result, || unsafe { read(out) }, &event);
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
    match graph_state::captured_into(stream.word(), null == PerThread) {
        Some(graph) => {
            let result = real();
            if result == 0 {
                graph_state::free_added(graph, address);
            }
            result
        }
        None => frees_in(Space::Pointer, address, real),
    }
}

pub fn registers(api: Api, real: impl FnOnce() -> i32, address: impl Word, bytes: impl Word) -> i32 {
    let result = real();
    let event = AllocationEvent {
        space: Space::Registered,
        ..AllocationEvent::new(api, Kind::HostRegistered, bytes.word())
    };
    record(result, || address.word(), &event);
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
    let shape = (was_read(result) && !descriptor.is_null()).then(|| unsafe { D::shape(descriptor) });
    let bytes = shape.map_or(0, |shape: Shape| shape.bytes(levels));
    let event = AllocationEvent {
        space: Space::Array,
        ..AllocationEvent::new(api, kind, bytes)
    };
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, &event);
    result
}

pub fn destroys_array(_: Api, real: impl FnOnce() -> i32, array: impl Word) -> i32 {
    frees_in(Space::Array, array.word(), real)
}

/// Whether a call with this result has read its parameter blocks, so that they can be read again. Any other error may
/// come from before that, with a pointer that leads nowhere.
fn was_read(result: i32) -> bool {
    const OUT_OF_MEMORY: i32 = 2;
    result == 0 || result == OUT_OF_MEMORY
}

/// The 64-bit word at `index` of a parameter block, 0 where the driver did not read it.
///
/// # Safety
/// `block` is the call's own, and has that word.
unsafe fn parameter<T>(result: i32, block: *const T, index: usize) -> u64 {
    if !was_read(result) || block.is_null() {
        return 0;
    }
    // SAFETY: the driver has just read the block.
    unsafe { block.cast::<u64>().add(index).read() }
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
    unsafe fn read<T>(result: i32, properties: *const T, index: usize) -> Location {
        if !was_read(result) || properties.is_null() {
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
