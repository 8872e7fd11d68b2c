//! Memory of other processes and other APIs: a mapping of it counts 0 bytes.

use super::{Word, add_reference, frees_in, parameter, read, record, record_output, with_table};
use crate::recorder::{self, AllocationEvent, TEARDOWN, key};
use crate::resolve::driver;
use culeak::cuda_functions::Api;
use culeak::format::{halves, pack};
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Space};

/// # Safety
/// As `allocates`.
pub unsafe fn opens_ipc<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T) -> i32 {
    let result = real();
    // SAFETY: read only after success.
    let address = if result == 0 { unsafe { read(out) } } else { 0 };
    // A handle that is opened again yields the same pointer.
    if result != 0 || !add_reference(Space::Pointer, address) {
        let event = AllocationEvent {
            extra: pack(1, 0),
            flags: Attributes::COUNTS,
            requested: if result == 0 { size_at(address) } else { 0 },
            ..AllocationEvent::new(api, Kind::Ipc, 0)
        };
        record(result, || address, &event);
    }
    result
}

/// The bytes of the block that begins there; 0 if the driver does not say.
fn size_at(address: u64) -> u64 {
    let mut bytes = 0;
    // SAFETY: the size is a valid out-parameter, and the driver does not write the start if it is null.
    let result = unsafe { driver::cuMemGetAddressRange_v2(std::ptr::null_mut(), &mut bytes, address) };
    if result == 0 { bytes as u64 } else { 0 }
}

pub fn closes_ipc(_: Api, real: impl FnOnce() -> i32, address: u64) -> i32 {
    let key = key(Space::Pointer, address);
    let left = with_table(|_, table| table.update_extra(key, |counts| pack(halves(counts).0.saturating_sub(1), 0)));
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
    // SAFETY: CUDA_EXTERNAL_MEMORY_HANDLE_DESC has its size at byte 24.
    let span = unsafe { parameter(result, descriptor, 3) };
    let event = AllocationEvent {
        space: Space::External,
        requested: span,
        ..AllocationEvent::new(api, Kind::External, 0)
    };
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
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
    // SAFETY: CUDA_EXTERNAL_MEMORY_BUFFER_DESC has its size at byte 8.
    let span = unsafe { parameter(result, descriptor, 1) };
    let event = AllocationEvent {
        requested: span,
        ..AllocationEvent::new(api, Kind::ExternalMapping, 0)
    };
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
}

/// # Safety
/// As `allocates`.
pub unsafe fn maps_external_mipmap<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T) -> i32 {
    let result = real();
    let event = AllocationEvent::new(api, Kind::ExternalMapping, 0).in_space(Space::Array);
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
}

/// What was mapped from it stays mapped until it is freed itself.
pub fn destroys_external(_: Api, real: impl FnOnce() -> i32, external: impl Word) -> i32 {
    frees_in(Space::External, external.word(), real)
}
