//! The verbs of the function list: what each does to the recording, and in which order around the real call.
//!
//! - *allocates*: call, then record the new allocation or the failed request;
//! - *frees*: withdraw the record, call, then settle: the record goes, or is restored if the free failed;
//! - what frees many records at once (contexts, unmapping, launches): call, then drop what is older than the call.
//!
//! So `cuMemAlloc` is recorded by [`allocates`], and a failed `cuMemFree` restores its record in [`frees`]. A new
//! function needs a row in `culeak::cuda_functions` with one of these verbs; a new kind of effect needs a new verb
//! here.
//!
//! Out-parameters are read only after success. Apart from a few queries ([`crate::resolve::driver`]), the only call of
//! CUDA is `real`: the function that the program called, with the program's own arguments.
//!
//! ```text
//! effects    linear memory, page-locked host memory, and what all verbs share
//! pools      stream-ordered memory and its pools
//! arrays     arrays and their sizes
//! vmm        virtual memory management
//! sharing    memory of other processes and other APIs
//! contexts   contexts, which free what was allocated in them
//! graphs     graphs with memory nodes
//! kernels    names of kernels, as modules are asked for them
//! objects    objects without an address
//! segments   memory that the kernel driver gives to the process
//! ```

pub mod arrays;
mod contexts;
mod graphs;
mod kernels;
mod objects;
mod pools;
pub mod segments;
mod sharing;
mod vmm;

pub use arrays::{creates_array, creates_mipmap, destroys_array};
pub use contexts::*;
pub use graphs::*;
pub use kernels::names_kernel;
pub use objects::*;
pub use pools::*;
pub use sharing::*;
pub use vmm::*;

use std::ptr::NonNull;

use crate::recorder::{self, AllocationEvent, Device};
use culeak::cuda_functions::Api;
use culeak::format::Loss;
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Space, TableIn};
use culeak::recording::Recording;
use culeak::system::cold_path;

/// An address or handle, whatever C type it has.
pub trait Word: Copy {
    fn word(self) -> u64;
}
macro_rules! words {
    ($($type:ty)*) => {$(
        impl Word for $type {
            fn word(self) -> u64 {
                self as u64
            }
        }
    )*};
}
words! { u32 u64 usize }
impl<T> Word for *mut T {
    fn word(self) -> u64 {
        self as u64
    }
}

/// Reads what a successful call wrote; 0 if the program passed a null pointer.
///
/// # Safety
/// `out` is null or was written by the call.
unsafe fn read<T: Word>(out: *mut T) -> u64 {
    // SAFETY: the caller vouches for it.
    NonNull::new(out).map_or(0, |out| unsafe { out.read() }.word())
}

pub fn observes(_: Api, real: impl FnOnce() -> i32) -> i32 {
    real()
}

/// cuInit: starts the recording, so that a process that allocates nothing has one too.
pub fn initializes(_: Api, real: impl FnOnce() -> i32) -> i32 {
    let result = real();
    if result == 0 {
        recorder::quietly(recorder::recording);
    }
    result
}

/// A table of driver functions that have no hooks: each is counted as a loss.
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
        cold_path();
        recorder::failed(result, event);
    }
}

/// As [`record`], with the address that the call wrote to `out` if it succeeded. Returns `result`.
///
/// # Safety
/// `out` is the call's own out-parameter.
unsafe fn record_output<T: Word>(result: i32, out: *mut T, event: &AllocationEvent) -> i32 {
    // SAFETY: read only after success.
    record(result, || unsafe { read(out) }, event);
    result
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
    let mut event = AllocationEvent::new(api, kind, bytes.word());
    // During a capture, the pool is its number: what PyTorch takes then is of the private pool of the graph.
    if kind == Kind::Device
        && let Some(capture) = graphs::nodes::capture()
    {
        (event.pool, event.flags) = (capture, event.flags | Attributes::HAS_POOL);
    }
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
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
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
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

pub fn registers(api: Api, real: impl FnOnce() -> i32, address: impl Word, bytes: impl Word) -> i32 {
    let result = real();
    let event = AllocationEvent::new(api, Kind::HostRegistered, bytes.word()).in_space(Space::Registered);
    record(result, || address.word(), &event);
    result
}

pub fn unregisters(_: Api, real: impl FnOnce() -> i32, address: impl Word) -> i32 {
    frees_in(Space::Registered, address.word(), real)
}

/// Whether a call with this result has read its parameter blocks, so that they can be read again. Any other error may
/// have been detected earlier, when a pointer was invalid.
fn was_read(result: i32) -> bool {
    const OUT_OF_MEMORY: i32 = 2;
    result == 0 || result == OUT_OF_MEMORY
}

/// The 64-bit word at `index` of a parameter block; 0 if the driver did not read the block.
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

/// Where memory is requested: two integers in CUmemPoolProps and CUmemAllocationProp.
struct Location {
    kind: i32,
    id: i32,
}

/// CU_MEM_LOCATION_TYPE_DEVICE.
const ON_DEVICE: i32 = 1;
/// CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN: part of a device's memory. The lowest byte of `id` is the device.
const ON_PART_OF_DEVICE: i32 = 6;

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
        match self.kind {
            ON_DEVICE => Device::Ordinal(self.id),
            ON_PART_OF_DEVICE => Device::Ordinal(self.id & 0xff),
            _ => Device::None,
        }
    }
}

/// Adds a reference to a recorded allocation. False if it is not recorded.
fn add_reference(space: Space, address: u64) -> bool {
    recorder::mark_recorded();
    with_table(|_, table| table.update_extra(recorder::key(space, address), |counts| counts.wrapping_add(1))).is_some()
}

/// Calls `work` with the recording, if it has started, and the table as the calling thread uses it.
fn with_table<R>(work: impl FnOnce(&'static Recording, TableIn<'static>) -> Option<R>) -> Option<R> {
    recorder::quietly(|| {
        let recording = recorder::running()?;
        work(recording, recording.table(recorder::thread_row(recording)))
    })
    .flatten()
}
