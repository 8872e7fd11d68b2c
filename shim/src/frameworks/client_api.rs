//! The client API (`include/culeak.h`): a program reports the blocks of its own allocator and the pages of its pools, sets marks,
//! names phases, requests snapshots, and measures intervals.
//!
//! The functions are exported under plain names, so that Python finds them too: `ctypes.CDLL(None).culeak_mark(b"…")`.
//! redhook exports them and catches panics; nothing else can unwind out of them, because they call no code of the
//! program. They may be called at any time, on any thread and under any lock. They start the recording if it has not
//! started.

use libc::{c_char, c_int, c_void};
use std::cell::Cell;
use std::ffi::CStr;

use crate::frameworks::{self, bfc, forwarding, phases};
use crate::recorder::{self, AllocationEvent, auto_snapshot};
use culeak::cuda_functions::Api;
use culeak::format::{Loss, block_address};
use culeak::kind::Kind;
use culeak::lockfree::intervals::{ALL, HOST, Reading, slot_of};
use culeak::lockfree::table::{Attributes, Space};
use culeak::recording::PagesId;

/// # Safety
/// `name` is null or a C string.
unsafe fn bytes<'a>(name: *const c_char) -> &'a [u8] {
    if name.is_null() {
        return b"";
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(name) }.to_bytes()
}

/// The address under which a block is recorded. `None` if it cannot be recorded.
fn key(domain: &[u8], address: u64) -> Option<u64> {
    let recording = recorder::recording()?;
    block_address(recording.domain(domain)?, address)
}

/// Blocks that the program has allocated and that cannot be recorded: by their addresses, or since there are too many domains
/// or too many blocks.
fn lost(blocks: u64) {
    recorder::quietly(|| {
        if let Some(recording) = recorder::recording() {
            recording.add(Loss::Allocations, blocks);
        }
    });
}

/// An exported function by which copies of this library recognise each other: its name, and its address in this copy.
pub const EXPORTED: (&CStr, fn() -> *const c_void) = (c"culeak_interval_begin", || {
    culeak_interval_begin::culeak_interval_begin as *const c_void
});

redhook::hook! {
    // The allocator called `domain` has allocated a block.
    //
    // Safety: `domain` is null or a C string. The address is never dereferenced.
    unsafe fn culeak_alloc(domain: *const c_char, address: *const c_void, size: usize, stream: *mut c_void) -> () => alloc_called {
        // SAFETY: the same condition.
        let domain = unsafe { bytes(domain) };
        if let Some(key) = recorder::quietly(|| key(domain, address as u64)).flatten() {
            let event = AllocationEvent {
                space: Space::Block,
                flags: Attributes::HAS_STREAM,
                extra: stream as u64,
                ..AllocationEvent::new(const { Api::of("culeak_alloc") }, Kind::Block, size as u64)
            };
            recorder::allocated(key, &event);
        } else {
            lost(1);
        }
    }
}

redhook::hook! {
    // The allocator called `domain` has freed a block.
    //
    // Safety: As `culeak_alloc`.
    unsafe fn culeak_free(domain: *const c_char, address: *const c_void) -> () => free_called {
        // SAFETY: the same condition.
        let domain = unsafe { bytes(domain) };
        // A forked child that frees blocks of its parent has nothing to record.
        if recorder::running().is_some()
            && let Some(key) = recorder::quietly(|| key(domain, address as u64)).flatten()
        {
            frameworks::freed(Space::Block, key);
        }
    }
}

/// The keys of the blocks, without those whose addresses cannot be recorded.
///
/// # Safety
/// `addresses` is null or valid for `count` of them.
unsafe fn keys<'a>(domain: &[u8], addresses: *const u64, count: usize) -> Option<impl Iterator<Item = u64> + 'a> {
    if addresses.is_null() || count == 0 || count > MOST_TOGETHER {
        return None;
    }
    let domain = recorder::recording()?.domain(domain)?;
    // SAFETY: not null, and the caller vouches for the rest.
    let addresses = unsafe { std::slice::from_raw_parts(addresses, count) };
    Some(
        addresses
            .iter()
            .filter_map(move |&address| block_address(domain, address)),
    )
}

/// More blocks than any call allocates: a larger count is garbage.
const MOST_TOGETHER: usize = 1 << 24;

redhook::hook! {
    // One call of the allocator called `domain` has allocated `count` blocks of `size` bytes each.
    //
    // Safety: `domain` is null or a C string, `addresses` null or valid for `count` numbers.
    unsafe fn culeak_alloc_pages(domain: *const c_char, addresses: *const u64, count: usize, size: usize, stream: *mut c_void) -> () => alloc_pages_called {
        // SAFETY: the same conditions.
        let keys = recorder::quietly(|| unsafe { keys(bytes(domain), addresses, count) }).flatten();
        if let Some(keys) = keys {
            let event = AllocationEvent {
                space: Space::Block,
                flags: Attributes::HAS_STREAM,
                extra: stream as u64,
                ..AllocationEvent::new(const { Api::of("culeak_alloc") }, Kind::Block, size as u64)
            };
            let recorded = Cell::new(0);
            recorder::allocated_together(keys.inspect(|_| recorded.set(recorded.get() + 1)), &event);
            lost((count - recorded.get()) as u64);
        } else if !addresses.is_null() {
            lost(count.min(MOST_TOGETHER) as u64);
        }
    }
}

redhook::hook! {
    // The allocator called `domain` has freed `count` blocks.
    //
    // Safety: As `culeak_alloc_pages`.
    unsafe fn culeak_free_pages(domain: *const c_char, addresses: *const u64, count: usize) -> () => free_pages_called {
        if recorder::running().is_some() {
            // SAFETY: the same conditions.
            let keys = recorder::quietly(|| unsafe { keys(bytes(domain), addresses, count) }).flatten();
            for key in keys.into_iter().flatten() {
                frameworks::freed(Space::Block, key);
            }
        }
    }
}

redhook::hook! {
    // Puts a pair of functions that record before an allocator's own two. Returns 1, or 0 if there is no room for more pairs.
    //
    // Safety: `domain` is null or a C string; `functions` is null or valid for two addresses: of an allocating function
    // and of a freeing one with the signatures of `forwarding`.
    unsafe fn culeak_forward(domain: *const c_char, functions: *mut [*const c_void; 2]) -> c_int => forward_called {
        // SAFETY: the same conditions.
        let found = recorder::quietly(|| unsafe {
            forwarding::pair(bytes(domain), *functions.as_ref()?)
        });
        match found.flatten() {
            Some(pair) => {
                // SAFETY: `functions` is not null, or nothing would have been found.
                unsafe { functions.write(pair) };
                1
            }
            None => 0,
        }
    }
}

redhook::hook! {
    // The same for the methods of TensorFlow's allocator: `AllocateRaw`, `DeallocateRaw`, which are replaced, `AllocatedSize` and
    // `GetMemoryType`. Returns 0 also if those of another library were given before.
    //
    // Safety: `domain` is null or a C string; `methods` is null or valid for the addresses of these four.
    unsafe fn culeak_forward_bfc(domain: *const c_char, methods: *mut bfc::Methods) -> c_int => forward_bfc_called {
        // SAFETY: the same conditions.
        let found = recorder::quietly(|| unsafe {
            bfc::pair(bytes(domain), *methods.as_ref()?)
        });
        match found.flatten() {
            Some(pair) => {
                // SAFETY: `methods` is not null, or nothing would have been found.
                unsafe { methods.cast::<[*const c_void; 2]>().write(pair) };
                1
            }
            None => 0,
        }
    }
}

redhook::hook! {
    // Sets a mark.
    //
    // Safety: `name` is null or a C string.
    unsafe fn culeak_mark(name: *const c_char) -> () => mark_called {
        // SAFETY: the same condition.
        let name = unsafe { bytes(name) };
        recorder::quietly(|| {
            let Some(recording) = recorder::recording() else { return };
            recording.mark(name, recorder::thread_row(recording));
            auto_snapshot::marked(recording, name);
        });
    }
}

redhook::hook! {
    // Begins a phase. Returns its id.
    //
    // Safety: As `culeak_mark`.
    unsafe fn culeak_phase_begin(name: *const c_char) -> u64 => phase_begin_called {
        // SAFETY: the same condition.
        phases::begin(unsafe { bytes(name) })
    }
}

redhook::hook! {
    // Ends a phase, on any thread.
    unsafe fn culeak_phase_end(id: u64) -> () => phase_end_called {
        phases::finish(id);
    }
}

/// Bits of an id of pages that are 0 in a [`PagesId`]: the process it belongs to, since a forked child may use an id of its parent.
fn pages_epoch() -> u64 {
    u64::from(recorder::epoch() & 0xffff) << 16
}

/// `None`: there is no such id in this process.
fn pages_id(id: u64) -> Option<PagesId> {
    (id & 0xffff_0000 == pages_epoch()).then_some(PagesId(id & !0xffff_0000))
}

/// Begins a pool or an owner. Returns its id, or 0 if there is none.
fn begin_pages(pool: Option<PagesId>, name: &[u8], page_bytes: u64) -> u64 {
    let begun = recorder::quietly(|| recorder::recording()?.begin_pages(pool, name, page_bytes));
    begun.flatten().map_or(0, |id| id.0 | pages_epoch())
}

redhook::hook! {
    // Begins a pool of pages. Returns its id, or 0 if there is no room.
    //
    // Safety: `domain` is null or a C string.
    unsafe fn culeak_pool_begin(domain: *const c_char, page_bytes: usize) -> u64 => pool_begin_called {
        // SAFETY: the same condition.
        begin_pages(None, unsafe { bytes(domain) }, page_bytes as u64)
    }
}

redhook::hook! {
    // Begins an owner of pages in a pool. Returns its id, or 0 if there is no room or no pool.
    //
    // Safety: `name` is null or a C string.
    unsafe fn culeak_owner_begin(pool: u64, name: *const c_char) -> u64 => owner_begin_called {
        match pages_id(pool) {
            // SAFETY: the same condition.
            Some(pool) if pool.0 != 0 => begin_pages(Some(pool), unsafe { bytes(name) }, 0),
            _ => 0,
        }
    }
}

redhook::hook! {
    // Stores how many pages an owner or a pool has.
    //
    // Safety: `pages` is null or valid for the counts of live, reclaimable, waiting and free pages.
    unsafe fn culeak_set_pages(id: u64, pages: *const [u64; 4]) -> () => set_pages_called {
        // SAFETY: the same condition.
        if let (Some(id), Some(pages)) = (pages_id(id), unsafe { pages.as_ref() }) {
            recorder::quietly(|| recorder::running().map(|recording| recording.set_pages(id, *pages)));
        }
    }
}

redhook::hook! {
    // Ends an owner or a pool.
    unsafe fn culeak_owner_end(id: u64) -> () => owner_end_called {
        if let Some(id) = pages_id(id) {
            recorder::quietly(|| recorder::running().map(|recording| recording.end_pages(id)));
        }
    }
}

redhook::hook! {
    // Takes a snapshot.
    //
    // Safety: As `culeak_mark`.
    unsafe fn culeak_snapshot(name: *const c_char) -> () => snapshot_called {
        // SAFETY: the same condition.
        let name = unsafe { bytes(name) };
        recorder::quietly(|| {
            if let Some(recording) = recorder::recording() {
                auto_snapshot::requested(recording, name);
            }
        });
    }
}

const ALL_DEVICES: c_int = -1;
const ON_THE_HOST: c_int = -2;

redhook::hook! {
    // Begins an interval and sets a mark. Returns the interval's number, or 0 if intervals are off.
    //
    // Safety: As `culeak_mark`.
    unsafe fn culeak_interval_begin(name: *const c_char, limit: u64) -> u32 => interval_begin_called {
        // SAFETY: the same condition.
        let name = unsafe { bytes(name) };
        let begun = recorder::quietly(|| {
            let recording = recorder::recording().filter(|recording| recording.intervals().watching())?;
            let now = recording.now();
            recording.mark_at(now, name, recorder::thread_row(recording));
            Some(recording.intervals().begin(now, limit) as u32)
        });
        begun.flatten().unwrap_or(0)
    }
}

redhook::hook! {
    // Reads an interval of a device. Returns 1, or 0 if the interval has ended or no memory of the device was recorded.
    //
    // Safety: `out` is null or valid for one interval.
    unsafe fn culeak_interval_read(number: u32, device: c_int, out: *mut Reading) -> c_int => interval_read_called {
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
                // SAFETY: not null, and so valid for one interval.
                unsafe { out.write(reading) };
                1
            }
            _ => 0,
        }
    }
}
