//! The memory extension of NVTX: heaps and the regions that a program says it carves out of them, as Compute Sanitizer's
//! users do.
//!
//! A program with NVTX opens the library that `NVTX_INJECTION64_PATH` names and asks for
//! [`InitializeInjectionNvtxExtension`], to which it hands a table of slots. It must be this library, the very copy that is
//! preloaded (`culeak run --nvtx` names it so). Only memory is of interest here; other extensions, ranges and messages
//! find no tool, as without us. Domains are therefore unknown, and a heap's name says whose its regions are.
//!
//! A region is taken back by its address alone, whatever heap it is of. So all of them are keyed as blocks of one domain,
//! and the heap is kept beside. The handle of a region is its address, that of a heap its number and its name's.

use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::frameworks::blocks;
use crate::recorder::{self, AllocationEvent};
use culeak::cuda_functions::Api;
use culeak::format::block_address;
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Key, Space};

/// Whose a region is when its heap has no name, and what all are keyed under.
const NVTX: &[u8] = b"nvtx";
const MEMORY_MODULE: u16 = 1;
const VIRTUAL_ADDRESS: u32 = 1;
const PLAIN_TEXT: u32 = 1;

#[repr(C)]
struct Module {
    version: u16,
    bytes: u16,
    module: u16,
    compatible: u16,
    segment_count: usize,
    segments: *const Segment,
}

#[repr(C)]
struct Segment {
    id: usize,
    slot_count: usize,
    slots: *mut *const c_void,
}

#[repr(C)]
struct HeapDescription {
    compatible: u16,
    bytes: u16,
    reserved: u32,
    usage: u32,
    kind: u32,
    range_bytes: usize,
    range: *const Region,
    category: u32,
    message_kind: u32,
    message: *const libc::c_char,
}
const _: () = assert!(size_of::<HeapDescription>() == 48);

#[repr(C)]
struct Region {
    bytes: usize,
    address: u64,
}

/// nvtxMemRegionsRegisterBatch.
#[repr(C)]
struct NewRegions {
    compatible: u16,
    bytes: u16,
    kind: u32,
    heap: u64,
    count: usize,
    element_bytes: usize,
    elements: *const u8,
    handles: *mut u64,
}

/// nvtxMemRegionsResizeBatch, and with references as elements nvtxMemRegionsUnregisterBatch.
#[repr(C)]
struct Regions {
    compatible: u16,
    bytes: u16,
    kind: u32,
    count: usize,
    element_bytes: usize,
    elements: *const u8,
}

/// Asked for by programs with NVTX; 1: we are a tool for this extension.
///
/// # Safety
/// `module` is null or the caller's description of the extension.
#[unsafe(no_mangle)]
unsafe extern "C" fn InitializeInjectionNvtxExtension(module: *const Module) -> c_int {
    const SLOTS: [(usize, *const c_void); 6] = [
        (0, heap_register as *const c_void),
        (1, heap_unregister as *const c_void),
        (2, heap_reset as *const c_void),
        (3, regions_register as *const c_void),
        (4, regions_resize as *const c_void),
        (5, regions_unregister as *const c_void),
    ];
    // SAFETY: the caller vouches for it.
    let Some(module) = (unsafe { module.as_ref() }) else {
        return 0;
    };
    if module.module != MEMORY_MODULE || module.segment_count == 0 || module.segments.is_null() {
        return 0;
    }
    // SAFETY: it has at least one segment.
    let segment = unsafe { &*module.segments };
    for (slot, function) in SLOTS {
        if slot < segment.slot_count {
            // SAFETY: slots are the caller's to be filled in, so many as it says.
            unsafe { segment.slots.add(slot).write(function) };
        }
    }
    1
}

/// The domain number of a heap's name, above which the heap's own number stands; as a handle it is never 0, which is the
/// heap of the whole process.
unsafe extern "C" fn heap_register(_domain: *mut c_void, description: *const HeapDescription) -> u64 {
    static HEAPS: AtomicU64 = AtomicU64::new(1);
    recorder::quietly(|| {
        // SAFETY: null or a description.
        let description = unsafe { description.as_ref() }?;
        let recording = recorder::begin()?;
        let named = description.message_kind == PLAIN_TEXT && !description.message.is_null();
        let name = if named {
            // SAFETY: this kind of message is a C string.
            unsafe { CStr::from_ptr(description.message) }.to_bytes()
        } else {
            NVTX
        };
        Some(HEAPS.fetch_add(1, Relaxed) << 8 | u64::from(recording.domain(name)?))
    })
    .flatten()
    .unwrap_or(0)
}

unsafe extern "C" fn heap_unregister(_domain: *mut c_void, heap: u64) {
    empty(|of| of == heap && heap != 0);
}

/// The heap of the whole process is all of them.
unsafe extern "C" fn heap_reset(_domain: *mut c_void, heap: u64) {
    empty(|of| of == heap || heap == 0);
}

/// Takes back all regions of the heaps that are meant.
fn empty(meant: impl Fn(u64) -> bool) {
    recorder::quietly(|| {
        let Some(recording) = recorder::running() else { return };
        recording.free_all(recorder::thread(recording), |entry| {
            entry.attributes.space == Space::Block
                && entry.attributes.flags & Attributes::IN_HEAP != 0
                && meant(entry.pool)
        });
    });
}

unsafe extern "C" fn regions_register(_domain: *mut c_void, batch: *const NewRegions) {
    // SAFETY: null or a batch.
    let Some(batch) = (unsafe { batch.as_ref() }) else {
        return;
    };
    if batch.kind != VIRTUAL_ADDRESS {
        return;
    }
    for number in 0..batch.count {
        // SAFETY: a batch of this kind has so many elements of that size, each of which begins with a region.
        let region = unsafe { &*batch.elements.add(number * batch.element_bytes).cast::<Region>() };
        hold(region, batch.heap);
        if !batch.handles.is_null() {
            // SAFETY: a place for each handle.
            unsafe { batch.handles.add(number).write(region.address) };
        }
    }
}

unsafe extern "C" fn regions_resize(_domain: *mut c_void, batch: *const Regions) {
    // SAFETY: null or a batch.
    let Some(batch) = (unsafe { batch.as_ref() }) else {
        return;
    };
    if batch.kind != VIRTUAL_ADDRESS {
        return;
    }
    for number in 0..batch.count {
        // SAFETY: as above.
        let region = unsafe { &*batch.elements.add(number * batch.element_bytes).cast::<Region>() };
        let heap = key(region.address).and_then(|address| {
            let recording = recorder::running()?;
            let key = Key {
                space: Space::Block,
                address,
            };
            recording.table(0).get(key)
        });
        drop_region(region.address);
        hold(region, heap.map_or(0, |entry| entry.pool));
    }
}

unsafe extern "C" fn regions_unregister(_domain: *mut c_void, batch: *const Regions) {
    // SAFETY: null or a batch.
    let Some(batch) = (unsafe { batch.as_ref() }) else {
        return;
    };
    for number in 0..batch.count {
        // SAFETY: elements are references: an address, or a handle, which with us is the address.
        let address = unsafe { batch.elements.add(number * batch.element_bytes).cast::<u64>().read() };
        drop_region(address);
    }
}

fn key(address: u64) -> Option<u64> {
    recorder::quietly(|| block_address(recorder::begin()?.domain(NVTX)?, address)).flatten()
}

fn hold(region: &Region, heap: u64) {
    if let Some(key) = key(region.address) {
        let nvtx = recorder::running().and_then(|recording| recording.domain(NVTX));
        let event = AllocationEvent {
            space: Space::Block,
            flags: Attributes::IN_HEAP,
            pool: if heap == 0 { nvtx.unwrap_or(0).into() } else { heap },
            ..AllocationEvent::new(
                const { Api::of("nvtxMemRegionsRegister") },
                Kind::Block,
                region.bytes as u64,
            )
        };
        blocks::handed_out(key, &event);
    }
}

fn drop_region(address: u64) {
    if recorder::running().is_some()
        && let Some(key) = key(address)
    {
        blocks::taken_back(Space::Block, key);
    }
}
