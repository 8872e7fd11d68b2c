//! Where a shard's counter rows lie: pointers, filled on first use.
//!
//! A row costs 64 bytes of the file, and most shards never see most kinds or stacks, so rows are handed out in the order in
//! which they are first needed; these arrays, in private memory and touched only where used, say where they are.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

use crate::format::*;
use crate::kind::Kind;
use crate::lockfree::peak::CentralCredit;
use crate::lockfree::shards::Shard;
use crate::system::anonymous;

/// Private memory of this process that is mapped on first use. `T`: atomics of which all zeros is a value. All zeros:
/// not yet mapped.
#[repr(transparent)]
pub struct Lazy<T>(AtomicPtr<T>);

impl<T> Lazy<T> {
    #[inline]
    fn get(&self) -> Option<&T> {
        let mut base = self.0.load(Acquire);
        if base.is_null() {
            base = self.map()?;
        }
        // SAFETY: mapped with the size of T, zeroed, which is a value, and never unmapped.
        Some(unsafe { &*base })
    }

    #[cold]
    #[inline(never)]
    fn map(&self) -> Option<*mut T> {
        let memory = anonymous(size_of::<T>()).ok()?.cast();
        match self.0.compare_exchange(std::ptr::null_mut(), memory, AcqRel, Acquire) {
            Ok(_) => Some(memory),
            Err(other) => {
                // SAFETY: mapped just now with this length; nobody has seen it.
                unsafe { libc::munmap(memory.cast(), size_of::<T>()) };
                Some(other)
            }
        }
    }
}

/// Devices there can be, and "no device".
const SLOTS: usize = 33;

/// The rows of every kind on every device.
pub type Cells = Lazy<[Cell; SLOTS * COUNTER_STRIDE]>;

const _: () = assert!(
    Kind::from_number(COUNTER_STRIDE as u8).is_none(),
    "every kind has its own place"
);
const _: () = assert!(COUNTER_STRIDE <= 64, "and its own bit");

/// The rows of one kind on one device.
#[repr(C)]
pub struct Cell {
    /// Filled before any of `rows`.
    pub peak: AtomicPtr<PeakRow>,
    /// Of a device as a whole, which has no rows: the kinds that have some, a bit each. Set before there are any.
    pub kinds: AtomicU64,
    pub rows: [AtomicPtr<CounterRow>; SHARDS],
}

impl Cells {
    #[inline]
    pub fn of(&self, sums: Sums) -> Option<&Cell> {
        self.get()?.get(sums.number())
    }

    /// Those of all kinds, from 0 on.
    #[inline]
    pub fn of_device(&self, slot: u32) -> Option<&[Cell]> {
        let first = slot as usize * COUNTER_STRIDE;
        self.get()?.get(first..first + COUNTER_STRIDE)
    }
}

impl Cell {
    /// Those that there are.
    pub fn rows(&self) -> impl Iterator<Item = &CounterRow> {
        // SAFETY: null, or a row in an extent that is never unmapped.
        self.rows.iter().filter_map(|own| unsafe { own.load(SeqCst).as_ref() })
    }

    #[inline]
    pub fn pot(&self) -> Option<&CentralCredit> {
        // Acquire: pairs with the Release of whoever made it.
        // SAFETY: as in `rows`.
        unsafe { self.peak.load(Acquire).as_ref() }.map(|row| &row.pot)
    }
}

/// Per shard; a power of two.
const REMEMBERED: usize = 256;

/// The rows of totals that each shard used last, by hash of what they are about.
pub type LastUsed = Lazy<[[AtomicPtr<TotalRow>; REMEMBERED]; SHARDS]>;

impl LastUsed {
    #[inline]
    pub fn slot(&self, shard: Shard, hash: u64) -> Option<&AtomicPtr<TotalRow>> {
        Some(&self.get()?[shard.number()][hash as usize % REMEMBERED])
    }
}
