//! Memory of other processes and other APIs: a mapping of it counts 0 bytes.

use super::objects::give_up;
use super::{Word, add_reference, frees_in, parameter, read, record, record_output, with_table};
use crate::recorder::{AllocationEvent, key};
use crate::resolve::driver;
use culeak::cuda_functions::Api;
use culeak::format::pack;
use culeak::kind::Kind;
use culeak::lockfree::index::mix;
use culeak::lockfree::table::{Attributes, Space};

/// A handle that another process opens. The block remembers it, so that reports of several processes know whose memory was opened.
///
/// # Safety
/// `handle` is the call's own out-parameter.
pub unsafe fn exports_ipc<H: Copy>(_: Api, real: impl FnOnce() -> i32, handle: *mut H, address: impl Word) -> i32 {
    let result = real();
    if result == 0 && !handle.is_null() {
        // SAFETY: the driver has just written it.
        let shared = number_of(unsafe { handle.read_unaligned() });
        with_table(|_, table| {
            let is_plain = |address: &u64| {
                let entry = table.get(key(Space::Pointer, *address));
                entry.is_some_and(|entry| {
                    matches!(entry.attributes.kind, Kind::Device | Kind::Pitched)
                        && entry.attributes.flags & (Attributes::HAS_STREAM | Attributes::COUNTS) == 0
                })
            };
            let own = Some(address.word()).filter(is_plain);
            // An address within the block.
            let block = own.or_else(|| Some(block_at(address.word()).0).filter(is_plain))?;
            table.update_extra(key(Space::Pointer, block), |_| shared)
        });
    }
    result
}

/// The number of the memory of a handle, which is the same in all processes; never 0.
fn number_of<H: Copy>(handle: H) -> u64 {
    const WORDS: usize = 8;
    let mut words = [0_u64; WORDS];
    let bytes = size_of::<H>().min(size_of_val(&words));
    // SAFETY: both are plain bytes, and `bytes` is the length of the shorter one.
    unsafe { std::ptr::copy_nonoverlapping((&raw const handle).cast::<u8>(), words.as_mut_ptr().cast(), bytes) };
    words
        .iter()
        .fold(1, |number: u64, word| mix(number.rotate_left(7) ^ word))
        | 1
}

/// # Safety
/// As `allocates`.
pub unsafe fn opens_ipc<T: Word, H: Copy>(api: Api, real: impl FnOnce() -> i32, out: *mut T, handle: H) -> i32 {
    let result = real();
    // SAFETY: read only after success.
    let address = if result == 0 { unsafe { read(out) } } else { 0 };
    // A handle that is opened again yields the same pointer.
    if result != 0 || !add_reference(Space::Pointer, address) {
        let event = AllocationEvent {
            extra: pack(1, 0),
            flags: Attributes::COUNTS,
            requested: if result == 0 { block_at(address).1 } else { 0 },
            pool: number_of(handle),
            ..AllocationEvent::new(api, Kind::Ipc, 0)
        };
        record(result, || address, &event);
    }
    result
}

/// Start and bytes of the block that contains an address; zeros if the driver does not say.
fn block_at(address: u64) -> (u64, u64) {
    let (mut start, mut bytes) = (0, 0);
    // SAFETY: both are valid out-parameters.
    let result = unsafe { driver::cuMemGetAddressRange_v2(&mut start, &mut bytes, address) };
    if result == 0 { (start, bytes as u64) } else { (0, 0) }
}

pub fn closes_ipc(_: Api, real: impl FnOnce() -> i32, address: u64) -> i32 {
    let flags = with_table(|_, table| Some(table.get(key(Space::Pointer, address))?.attributes.flags));
    match flags.is_some_and(|flags| flags & Attributes::COUNTS != 0) {
        true => give_up(Space::Pointer, address, 1, real),
        // It was opened before the recording, or it is other memory, which the driver refuses to close.
        false => frees_in(Space::Pointer, address, real),
    }
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
