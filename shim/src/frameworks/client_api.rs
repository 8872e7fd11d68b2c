//! What a program tells by itself: blocks of its own allocator, moments that have a name; and what it may ask: how much
//! was allocated since such a moment (`include/culeak.h`).
//!
//! The functions are exported under plain names, so that Python finds them too: `ctypes.CDLL(None).culeak_mark(b"…")`.
//! redhook exports them: they call nothing, so a panic is all that could leave them, and it catches panics.
//! They may be called at any time, on any thread and under any lock. A program that calls them wants to be recorded, so
//! the recording begins here if it has not begun.

use libc::{c_char, c_int, c_void};
use std::ffi::CStr;

use crate::frameworks::blocks;
use crate::recorder::auto_snapshot;
use crate::recorder::{self, AllocationEvent};
use culeak::cuda_functions::Api;
use culeak::format::block_address;
use culeak::kind::Kind;
use culeak::lockfree::intervals::{ALL, HOST, slot_of};
use culeak::lockfree::table::{Attributes, Space};

/// # Safety
/// `name` is null or a C string.
unsafe fn bytes<'a>(name: *const c_char) -> &'a [u8] {
    if name.is_null() {
        return b"";
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(name) }.to_bytes()
}

/// The key's address of a block; `None` when it cannot be kept, which is counted.
fn key(domain: &[u8], address: u64) -> Option<u64> {
    let recording = recorder::begin()?;
    block_address(recording.domain(domain)?, address)
}

/// The address of our own `culeak_interval_begin`.
pub fn exported_address() -> *const c_void {
    culeak_interval_begin::culeak_interval_begin as *const c_void
}

redhook::hook! {
    // A block was handed out by the allocator called `domain`.
    //
    // Safety: `domain` is null or a C string. The address is never followed.
    unsafe fn culeak_alloc(domain: *const c_char, address: *const c_void, size: usize, stream: *mut c_void) -> () => alloc_called {
        // SAFETY: passed on.
        let domain = unsafe { bytes(domain) };
        if let Some(key) = recorder::quietly(|| key(domain, address as u64)).flatten() {
            let event = AllocationEvent {
                space: Space::Block,
                flags: Attributes::HAS_STREAM,
                extra: stream as u64,
                ..AllocationEvent::new(const { Api::of("culeak_alloc") }, Kind::Block, size as u64)
            };
            blocks::handed_out(key, &event);
        }
    }
}

redhook::hook! {
    // It was taken back.
    //
    // Safety: As `culeak_alloc`.
    unsafe fn culeak_free(domain: *const c_char, address: *const c_void) -> () => free_called {
        // SAFETY: passed on.
        let domain = unsafe { bytes(domain) };
        // A child that was forked and gives back what its parent had taken has nothing to record.
        if recorder::running().is_some()
            && let Some(key) = recorder::quietly(|| key(domain, address as u64)).flatten()
        {
            blocks::taken_back(Space::Block, key);
        }
    }
}

redhook::hook! {
    // This moment has a name.
    //
    // Safety: `name` is null or a C string.
    unsafe fn culeak_mark(name: *const c_char) -> () => mark_called {
        // SAFETY: passed on.
        let name = unsafe { bytes(name) };
        recorder::quietly(|| {
            let Some(recording) = recorder::begin() else { return };
            recording.mark(name, recorder::thread(recording));
            auto_snapshot::marked(recording, name);
        });
    }
}

redhook::hook! {
    // Keep a snapshot of this moment.
    //
    // Safety: As `culeak_mark`.
    unsafe fn culeak_snapshot(name: *const c_char) -> () => snapshot_called {
        // SAFETY: passed on.
        let name = unsafe { bytes(name) };
        recorder::quietly(|| {
            if let Some(recording) = recorder::begin() {
                auto_snapshot::requested(recording, name);
            }
        });
    }
}

/// `struct culeak_interval` of the header.
#[repr(C)]
pub struct Interval {
    left_bytes: u64,
    left_count: u64,
    peak_bytes: u64,
    held_bytes: u64,
}
const _: () = assert!(size_of::<Interval>() == 32);

const ALL_DEVICES: c_int = -1;
const ON_THE_HOST: c_int = -2;

redhook::hook! {
    // An interval begins at this moment, which has a name from now on. Its number, or 0 where nobody watches intervals.
    //
    // Safety: As `culeak_mark`.
    unsafe fn culeak_interval_begin(name: *const c_char, limit: u64) -> u32 => interval_begin_called {
        // SAFETY: passed on.
        let name = unsafe { bytes(name) };
        let begun = recorder::quietly(|| {
            let recording = recorder::begin().filter(|recording| recording.intervals().watching())?;
            let now = recording.now();
            recording.mark_at(now, name, recorder::thread(recording));
            Some(recording.intervals().begin(now, limit) as u32)
        });
        begun.flatten().unwrap_or(0)
    }
}

redhook::hook! {
    // What it says of a device. 1, or 0 where there is no such interval any more or no memory of that device was seen.
    //
    // Safety: `out` is null or has room for one.
    unsafe fn culeak_interval_read(number: u32, device: c_int, out: *mut Interval) -> c_int => interval_read_called {
        let read = recorder::quietly(|| {
            let recording = recorder::running()?;
            let slot = match device {
                ALL_DEVICES => ALL,
                ON_THE_HOST => HOST,
                ordinal => slot_of(recording.device(ordinal)?)?,
            };
            recording.intervals().read(number.into(), slot)
        });
        match (read.flatten(), out.is_null()) {
            (Some(reading), false) => {
                let interval = Interval {
                    left_bytes: reading.left_bytes,
                    left_count: reading.left_count,
                    peak_bytes: reading.peak_bytes,
                    held_bytes: reading.held_bytes,
                };
                // SAFETY: not null, so there is room.
                unsafe { out.write(interval) };
                1
            }
            _ => 0,
        }
    }
}
