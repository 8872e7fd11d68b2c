//! The address range of this library.

use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::resolve::loader;

/// An address inside this library.
pub fn here() -> u64 {
    static HERE: u8 = 0;
    std::ptr::from_ref(&HERE) as u64
}

/// Lowest and one past the highest address of this library.
#[unsafe(link_section = ".text.culeak_events")]
pub fn bounds() -> (u64, u64) {
    #[unsafe(link_section = ".data.culeak_events")]
    static BOUNDS: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
    // Acquire: pairs with the Release below, so that both bounds are visible.
    if BOUNDS[1].load(Acquire) == 0 {
        let (start, end) = loader::find_containing(here(), |loaded| loaded.bounds()).unwrap_or((0, 1));
        BOUNDS[0].store(start, Relaxed);
        BOUNDS[1].store(end, Release);
    }
    (BOUNDS[0].load(Relaxed), BOUNDS[1].load(Relaxed))
}

#[inline]
pub fn is_ours(address: u64) -> bool {
    let (start, end) = bounds();
    (start..end).contains(&address)
}
