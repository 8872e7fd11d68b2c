//! The compared ways of taking a stack. Each writes return addresses, innermost first, and returns their number.

#[cfg(target_arch = "x86_64")]
mod hop;

use super::support::DEPTH;
use culeak_walker::{ReadSets, Registers, walk};
use std::cell::Cell;
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

type Take = fn(&mut [u64; DEPTH], usize) -> usize;

pub struct Way {
    pub name: &'static str,
    pub take: Take,
}

/// The ways that need no frame pointers; the first is the reference for the others.
pub const UNWINDERS: &[Way] = &[
    Way {
        name: "libgcc",
        take: libgcc,
    },
    Way {
        name: "walker",
        take: walker,
    },
    Way {
        name: "backtrace",
        take: backtrace_crate,
    },
    #[cfg(target_arch = "x86_64")]
    Way {
        name: "framehop",
        take: hop::framehop,
    },
];

/// The walker with the thread's read sets. It returns no addresses but the number of the whole stack, including the
/// frames of the bench that called the C++ code.
pub const READ_SETS: Way = Way {
    name: "read sets",
    take: read_sets,
};

pub const FLOOR: Way = Way {
    name: "frame pointers",
    take: frame_pointers,
};

/// The cost of the clock readings.
pub const CLOCK: Way = Way {
    name: "clock",
    take: |_, limit| limit,
};

/// Prepares the ways that need it. Called when all libraries are loaded.
pub fn prepare() {
    #[cfg(target_arch = "x86_64")]
    hop::prepare();
}

#[inline(never)]
fn walker(addresses: &mut [u64; DEPTH], limit: usize) -> usize {
    walk(Registers::here(), &mut addresses[..limit]).count
}

pub static FOUND: AtomicU64 = AtomicU64::new(0);
pub static NOT_FOUND: AtomicU64 = AtomicU64::new(0);

/// As the recorder does it: a stack that is not found is walked and remembered.
#[inline(never)]
fn read_sets(addresses: &mut [u64; DEPTH], limit: usize) -> usize {
    static ONE_THREAD: ReadSets = ReadSets::new();
    let start = Registers::here();
    // SAFETY: the bench has one thread.
    let found = unsafe { ONE_THREAD.find(start, |_| false, || 0) };
    let count = if found.is_some() { &FOUND } else { &NOT_FOUND };
    count.store(count.load(Relaxed) + 1, Relaxed);
    if black_box(found).is_none() {
        walk(start, &mut addresses[..]);
        // SAFETY: as above.
        if let Some(kept) = unsafe { ONE_THREAD.walk(start, |_| true) } {
            kept.remember(0, 1, 0);
        }
    }
    limit
}

#[repr(C)]
struct Trace<'a> {
    addresses: &'a mut [u64; DEPTH],
    count: usize,
    limit: usize,
}

unsafe extern "C" {
    fn _Unwind_Backtrace(each: extern "C" fn(*mut c_void, &mut Trace) -> i32, trace: &mut Trace) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> u64;
}

/// The unwinder of the language runtime, called directly.
#[inline(never)]
fn libgcc(addresses: &mut [u64; DEPTH], limit: usize) -> usize {
    extern "C" fn each(context: *mut c_void, trace: &mut Trace) -> i32 {
        const CONTINUE: i32 = 0;
        const END_OF_STACK: i32 = 5;
        // SAFETY: the context that the unwinder passes is valid during the call.
        trace.addresses[trace.count] = unsafe { _Unwind_GetIP(context) };
        trace.count += 1;
        if trace.count < trace.limit {
            CONTINUE
        } else {
            END_OF_STACK
        }
    }
    let mut trace = Trace {
        addresses,
        count: 0,
        limit,
    };
    // SAFETY: `each` has the expected type and does not unwind.
    unsafe { _Unwind_Backtrace(each, &mut trace) };
    trace.count
}

#[inline(never)]
fn backtrace_crate(addresses: &mut [u64; DEPTH], limit: usize) -> usize {
    let mut count = 0;
    // SAFETY: the trace keeps no shared state.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            addresses[count] = frame.ip() as u64;
            count += 1;
            count < limit
        });
    }
    count
}

thread_local! {
    /// The frame pointer at which the walk begins.
    pub static START: Cell<u64> = const { Cell::new(0) };
}

#[inline(never)]
fn frame_pointers(addresses: &mut [u64; DEPTH], limit: usize) -> usize {
    let mut frame = START.get();
    let mut count = 0;
    while count < limit {
        // SAFETY: code with frame pointers keeps the caller's frame pointer and the return address there; the limit
        // ends the walk before code without frame pointers.
        let (next, address) = unsafe { (*(frame as *const u64), *(frame as *const u64).add(1)) };
        addresses[count] = address;
        count += 1;
        if next <= frame {
            break;
        }
        frame = next;
    }
    count
}
