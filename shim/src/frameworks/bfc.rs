//! Functions that record and go on to TensorFlow's allocator, `tsl::BFCAllocator`.
//!
//! Its methods are virtual. The adapter for TensorFlow (`cli/python/culeak/adapters/tensorflow.py`) puts the two functions of
//! this module into the virtual tables, in place of `AllocateRaw` and `DeallocateRaw`. Nothing here is in use before that.
//!
//! TensorFlow makes the device's context current only while it calls the driver, so the calling thread's device is not that of
//! the block. An allocator belongs to one device: that of the memory which it takes from the driver inside `AllocateRaw`.
//!
//! Deliberately absent: blocks in host memory, since blocks count as memory of a device; and failed calls. TensorFlow asks for memory that it can do without (a faster algorithm's workspace), and
//! waits and asks again; a request that the driver refuses is recorded as such.

use libc::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

use crate::frameworks::names;
use crate::recorder::{self, AllocationEvent, Device, current};
use crate::resolve::memo::Memo;
use culeak::cuda_functions::Api;
use culeak::format::block_address;
use culeak::kind::Kind;
use culeak::lockfree::index::mix;
use culeak::lockfree::table::Space;

/// `void *AllocateRaw(size_t alignment, size_t num_bytes, const AllocationAttributes &)`. The overload without attributes calls
/// this one.
type Allocate = unsafe extern "C-unwind" fn(*mut c_void, usize, usize, *const c_void) -> *mut c_void;
/// `void DeallocateRaw(void *)`
type Deallocate = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void);
/// `size_t AllocatedSize(const void *) const`: the size of the chunk.
type AllocatedSize = unsafe extern "C-unwind" fn(*const c_void, *const c_void) -> usize;
/// `AllocatorMemoryType GetMemoryType() const`
type MemoryType = unsafe extern "C-unwind" fn(*const c_void) -> c_int;

/// `AllocatorMemoryType`: kDevice, kHostPageable and kHostPinned.
const ON_DEVICE: c_int = 1;
const ON_HOST: [c_int; 2] = [2, 3];

/// The addresses of the four, in this order.
pub type Methods = [*const c_void; 4];

/// Those of the first library that was given. A second TensorFlow in a process has none.
static METHODS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
/// A number of `names`.
static DOMAIN: AtomicU32 = AtomicU32::new(0);
/// The row of an allocator's device + 1, by the allocator's address.
static DEVICES: Memo<256> = Memo::new();

/// Functions for the place of the first two. `None` if an address is null, or if there are others already.
pub fn pair(domain: &[u8], methods: Methods) -> Option<[*const c_void; 2]> {
    let given = methods.map(|method| method as usize);
    if given.contains(&0) {
        return None;
    }
    if let Err(present) = METHODS[0].compare_exchange(0, given[0], Relaxed, Relaxed)
        && present != given[0]
    {
        return None;
    }
    // Code that calls the pair was given its addresses by this thread, after these stores.
    DOMAIN.store(names::number(domain), Relaxed);
    for (known, given) in METHODS.iter().zip(given) {
        known.store(given, Relaxed);
    }
    Some([allocate as *const c_void, deallocate as *const c_void])
}

fn key(address: u64) -> Option<u64> {
    let recording = recorder::recording()?;
    let domain = recording.domain(names::name(DOMAIN.load(Relaxed))?)?;
    block_address(domain, address)
}

/// The device of an allocator's blocks; `None` if they are in host memory.
fn device_of(allocator: u64, memory_type: c_int) -> Option<Device> {
    if ON_HOST.contains(&memory_type) {
        return None;
    }
    match DEVICES.get(allocator) {
        Some(row) => Some(Device::Row((row - 1) as u8)),
        // It has not grown since the adapter was switched on.
        None if memory_type == ON_DEVICE => {
            let only = recorder::recording()?.only_device();
            Some(only.map_or(Device::None, Device::Row))
        }
        None => None,
    }
}

unsafe extern "C-unwind" fn allocate(
    this: *mut c_void,
    alignment: usize,
    bytes: usize,
    attributes: *const c_void,
) -> *mut c_void {
    // SAFETY: addresses of functions of these types, stored before the caller could know this function.
    let (real, allocated_size, memory_type) = unsafe {
        (
            std::mem::transmute::<usize, Allocate>(METHODS[0].load(Relaxed)),
            std::mem::transmute::<usize, AllocatedSize>(METHODS[2].load(Relaxed)),
            std::mem::transmute::<usize, MemoryType>(METHODS[3].load(Relaxed)),
        )
    };
    // SAFETY: the caller's own arguments.
    let (address, grown_on) = current::device_used_in(|| unsafe { real(this, alignment, bytes, attributes) });
    let allocator = mix(this as u64).max(1);
    if let Some(row) = grown_on {
        DEVICES.put(allocator, u64::from(row) + 1);
    }
    if address.is_null() {
        return address;
    }
    // SAFETY: a method without arguments, of the same object.
    let memory_type = unsafe { memory_type(this) };
    let found = recorder::quietly(|| {
        let device = device_of(allocator, memory_type)?;
        Some((key(address as u64)?, device))
    });
    if let Some((key, device)) = found.flatten() {
        // SAFETY: a block of this object that nothing can have freed, since its address has not been returned yet.
        let chunk = unsafe { allocated_size(this, address) };
        let event = AllocationEvent {
            space: Space::Block,
            device,
            requested: bytes as u64,
            ..AllocationEvent::new(const { Api::of("culeak_alloc") }, Kind::Block, chunk as u64)
        };
        recorder::allocated(key, &event);
    }
    address
}

unsafe extern "C-unwind" fn deallocate(this: *mut c_void, address: *mut c_void) {
    // Withdrawn first: the allocator may give the address to another thread before its function returns.
    let key = recorder::quietly(|| {
        recorder::running()?;
        key(address as u64)
    });
    let held = key.flatten().map(|key| (recorder::withdraw(Space::Block, key), key));
    // SAFETY: the address of a `Deallocate`, stored before the caller could know this function.
    let real: Deallocate = unsafe { std::mem::transmute(METHODS[1].load(Relaxed)) };
    // SAFETY: the caller's own arguments.
    unsafe { real(this, address) };
    // A block from before the adapter has no record, which is no loss.
    if let Some((held, key)) = held.filter(|(held, _)| held.is_something()) {
        held.settle(0, key);
    }
}
