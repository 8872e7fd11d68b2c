//! Whether a `dlclose` is running, and how many of them have unloaded something.
//!
//! While one is running, an address may belong to a library that is being unmapped, so no answer that is cached by
//! address is used.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Calls of `dlclose` that are running, in all threads.
#[unsafe(link_section = ".data.culeak_events")]
static RUNNING: AtomicU32 = AtomicU32::new(0);

culeak_walker::thread_variable! {
    /// Calls of `dlclose` that the calling thread is inside.
    // SAFETY: an integer.
    static RUNNING_HERE: unsafe Cell<u32> = "culeak_closing";
}

/// Changes when a `dlclose` unloads something: answers that were cached by address before are void.
#[unsafe(link_section = ".data.culeak_events")]
pub static GENERATION: AtomicU64 = AtomicU64::new(1);

pub fn began() {
    // AcqRel: pairs with the Acquire in `is_running`: what starts after this sees it.
    RUNNING.fetch_add(1, AcqRel);
    RUNNING_HERE.with(|here| here.set(here.get() + 1));
}

pub fn ended() {
    RUNNING_HERE.with(|here| here.set(here.get().saturating_sub(1)));
    RUNNING.fetch_sub(1, AcqRel);
}

#[inline]
pub fn is_running() -> bool {
    RUNNING.load(Acquire) != 0
}

/// Whether the calling thread is inside a `dlclose`, as in a signal handler or a destructor: an object may be unmapped
/// while the loader's list still has it, and the list's lock does not exclude the thread that holds it.
pub fn is_running_here() -> bool {
    RUNNING_HERE.with(|here| here.get() != 0)
}
