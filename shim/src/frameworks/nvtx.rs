//! The memory extension of NVTX: heaps, and the regions of them that a program reports, as for Compute Sanitizer.
//!
//! A program with NVTX opens the library that `NVTX_INJECTION64_PATH` names and passes a table of slots to its
//! [`InitializeInjectionNvtxExtension`]. That must be the copy of this library that is preloaded, as `culeak run
//! --record nvtx` arranges. Only the memory extension is filled in; other extensions find no tool, as without culeak. Regions are
//! attributed to the name of their heap. Ranges and marks are in `ranges`.
//!
//! A region is unregistered by its address alone, whatever its heap. So all regions are recorded as blocks of one
//! domain, with the heap as an attribute. The handle of a region is its address; that of a heap combines its number and
//! its name's.

mod ranges;

use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::frameworks;
use crate::recorder::{self, AllocationEvent};
use culeak::cuda_functions::Api;
use culeak::format::block_address;
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Space};

/// The domain of all regions, and the name of heaps that have none.
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

/// nvtxMemRegionsResizeBatch; nvtxMemRegionsUnregisterBatch has the same fields and references as elements.
#[repr(C)]
struct Regions {
    compatible: u16,
    bytes: u16,
    kind: u32,
    count: usize,
    element_bytes: usize,
    elements: *const u8,
}

/// NVTX calls it for each extension. Returns 1 for the memory extension, else 0.
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
            // SAFETY: the caller provides this many slots.
            unsafe { segment.slots.add(slot).write(function) };
        }
    }
    1
}

/// Returns the heap's number shifted by 8 bits, plus the domain number of its name. It is never 0, the handle of the
/// heap of the whole process.
unsafe extern "C" fn heap_register(_domain: *mut c_void, description: *const HeapDescription) -> u64 {
    static HEAPS: AtomicU64 = AtomicU64::new(1);
    recorder::quietly(|| {
        // SAFETY: null or a description.
        let description = unsafe { description.as_ref() }?;
        let recording = recorder::recording()?;
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

/// The heap of the whole process contains all heaps.
unsafe extern "C" fn heap_reset(_domain: *mut c_void, heap: u64) {
    empty(|of| of == heap || heap == 0);
}

/// Frees all regions of the heaps that `is_meant` selects.
fn empty(is_meant: impl Fn(u64) -> bool) {
    recorder::quietly(|| {
        let Some(recording) = recorder::running() else { return };
        recorder::note_end(recording);
        recording.free_all(recorder::thread_row(recording), |entry| {
            entry.attributes.space == Space::Block
                && entry.attributes.flags & Attributes::IN_HEAP != 0
                && is_meant(entry.pool)
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
        // SAFETY: a batch of this kind has `count` elements of `element_bytes` bytes, each of which begins with a
        // region.
        let region = unsafe { &*batch.elements.add(number * batch.element_bytes).cast::<Region>() };
        allocated(region, batch.heap);
        if !batch.handles.is_null() {
            // SAFETY: the array has one element per region.
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
            recording.table(0).get(recorder::key(Space::Block, address))
        });
        freed(region.address);
        allocated(region, heap.map_or(0, |entry| entry.pool));
    }
}

unsafe extern "C" fn regions_unregister(_domain: *mut c_void, batch: *const Regions) {
    // SAFETY: null or a batch.
    let Some(batch) = (unsafe { batch.as_ref() }) else {
        return;
    };
    for number in 0..batch.count {
        // SAFETY: elements are references: an address, or a handle, which is the address here.
        let address = unsafe { batch.elements.add(number * batch.element_bytes).cast::<u64>().read() };
        freed(address);
    }
}

fn key(address: u64) -> Option<u64> {
    recorder::quietly(|| block_address(recorder::recording()?.domain(NVTX)?, address)).flatten()
}

fn allocated(region: &Region, heap: u64) {
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
        recorder::allocated(key, &event);
    }
}

fn freed(address: u64) {
    if recorder::running().is_some()
        && let Some(key) = key(address)
    {
        frameworks::freed(Space::Block, key);
    }
}
