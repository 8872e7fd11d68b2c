//! Functions that record and go on to a program's own allocator.
//!
//! PyTorch's pluggable allocators are two C functions, which PyTorch calls under its own locks. A function of Python must not
//! stand between them: it would wait for the interpreter's lock, whose holder may wait for PyTorch's. So the functions are
//! here. A pair is compiled for each slot, because the functions get no argument that tells one allocator from another.
//! Slots are never given back: a program may call their functions until it ends.

use libc::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

use crate::frameworks::names;
use crate::recorder::{self, AllocationEvent, Device};
use culeak::cuda_functions::Api;
use culeak::format::{Loss, block_address};
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Space};

/// `void *alloc(size_t bytes, int device, void *stream)`
type Alloc = unsafe extern "C-unwind" fn(usize, c_int, *mut c_void) -> *mut c_void;
/// `void free(void *address, size_t bytes, int device, void *stream)`
type Free = unsafe extern "C-unwind" fn(*mut c_void, usize, c_int, *mut c_void);

const SLOTS: usize = 8;

struct Slot {
    /// A number of `names`.
    domain: AtomicU32,
    /// Addresses of an [`Alloc`] and a [`Free`].
    alloc: AtomicUsize,
    free: AtomicUsize,
}

static TAKEN: [Slot; SLOTS] = [const {
    Slot {
        domain: AtomicU32::new(0),
        alloc: AtomicUsize::new(0),
        free: AtomicUsize::new(0),
    }
}; SLOTS];
static USED: AtomicUsize = AtomicUsize::new(0);

const PAIRS: [(Alloc, Free); SLOTS] = [
    (alloc::<0>, free::<0>),
    (alloc::<1>, free::<1>),
    (alloc::<2>, free::<2>),
    (alloc::<3>, free::<3>),
    (alloc::<4>, free::<4>),
    (alloc::<5>, free::<5>),
    (alloc::<6>, free::<6>),
    (alloc::<7>, free::<7>),
];

/// The pair that goes on to these two functions. `None` if one of them is null or all slots are in use.
pub fn pair(domain: &[u8], functions: [*const c_void; 2]) -> Option<[*const c_void; 2]> {
    if functions.iter().any(|function| function.is_null()) {
        return None;
    }
    let next = |used: usize| (used < SLOTS).then_some(used + 1);
    let number = USED.fetch_update(Relaxed, Relaxed, next).ok()?;
    let slot = &TAKEN[number];
    slot.domain.store(names::number(domain), Relaxed);
    // Whoever calls the pair was given its addresses by this thread, after these stores.
    slot.alloc.store(functions[0] as usize, Relaxed);
    slot.free.store(functions[1] as usize, Relaxed);
    let (alloc, free) = PAIRS[number];
    Some([alloc as *const c_void, free as *const c_void])
}

impl Slot {
    fn key(&self, address: u64) -> Option<u64> {
        let recording = recorder::recording()?;
        let domain = recording.domain(names::name(self.domain.load(Relaxed))?)?;
        block_address(domain, address)
    }
}

unsafe extern "C-unwind" fn alloc<const SLOT: usize>(bytes: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let slot = &TAKEN[SLOT];
    // SAFETY: the address of an `Alloc`, stored before the caller could know this function.
    let real: Alloc = unsafe { std::mem::transmute(slot.alloc.load(Relaxed)) };
    // SAFETY: the caller's own arguments.
    let address = unsafe { real(bytes, device, stream) };
    if !address.is_null()
        && let Some(key) = recorder::quietly(|| slot.key(address as u64)).flatten()
    {
        let event = AllocationEvent {
            space: Space::Block,
            flags: Attributes::HAS_STREAM,
            extra: stream as u64,
            device: Device::Reported(device),
            ..AllocationEvent::new(const { Api::of("culeak_alloc") }, Kind::Block, bytes as u64)
        };
        recorder::allocated(key, &event);
    }
    address
}

unsafe extern "C-unwind" fn free<const SLOT: usize>(
    address: *mut c_void,
    bytes: usize,
    device: c_int,
    stream: *mut c_void,
) {
    let slot = &TAKEN[SLOT];
    // Withdrawn first: the allocator may give the address to another thread before its function returns.
    let key = recorder::quietly(|| {
        recorder::running()?;
        slot.key(address as u64)
    });
    let held = key.flatten().map(|key| (recorder::withdraw(Space::Block, key), key));
    // SAFETY: the address of a `Free`, stored before the caller could know this function.
    let real: Free = unsafe { std::mem::transmute(slot.free.load(Relaxed)) };
    // SAFETY: the caller's own arguments.
    unsafe { real(address, bytes, device, stream) };
    match held {
        Some((held, key)) if held.is_something() => held.settle(0, key),
        Some(_) if !address.is_null() => {
            if let Some(recording) = recorder::running() {
                recording.add(Loss::UnknownBlocks, 1);
            }
        }
        _ => {}
    }
}
