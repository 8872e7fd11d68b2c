//! Which counter row a lane uses for a kind on a device: an array of pointers, filled on first use.
//!
//! A row costs 64 bytes of the file, and most lanes never see most kinds, so rows are handed out in the order in which
//! they are first needed; this array, in private memory and touched only where used, says where they are.

use std::sync::atomic::{AtomicPtr, Ordering::*};

use crate::file::anonymous;
use crate::layout::*;

/// Devices there can be, and "no device".
const SLOTS: usize = 33;
const BYTES: usize = SLOTS * COUNTER_STRIDE * LANES * size_of::<AtomicPtr<CounterRow>>();

/// All zeros is an empty one.
#[repr(C)]
pub struct Cells(AtomicPtr<AtomicPtr<CounterRow>>);

impl Cells {
    /// The pointers of all lanes to their rows for these sums.
    pub fn of(&self, sums: Sums) -> Option<&[AtomicPtr<CounterRow>; LANES]> {
        if sums.slot as usize >= SLOTS || sums.kind as usize >= COUNTER_STRIDE {
            return None;
        }
        let mut base = self.0.load(Acquire);
        if base.is_null() {
            base = self.map()?;
        }
        // SAFETY: mapped for BYTES, zeroed and never unmapped; the number is below SLOTS * COUNTER_STRIDE.
        Some(unsafe { &*base.add(sums.number() * LANES).cast() })
    }

    #[cold]
    fn map(&self) -> Option<*mut AtomicPtr<CounterRow>> {
        let memory = anonymous(BYTES).ok()?;
        match self
            .0
            .compare_exchange(std::ptr::null_mut(), memory.cast(), AcqRel, Acquire)
        {
            Ok(_) => Some(memory.cast()),
            Err(other) => {
                // SAFETY: mapped just now with this length; nobody has seen it.
                unsafe { libc::munmap(memory.cast(), BYTES) };
                Some(other)
            }
        }
    }
}
