//! Pointers to the counter rows of each shard, filled on first use.
//!
//! A row takes 64 bytes of the file, and most shards never use most kinds or stacks, so rows are allocated when they are
//! first needed. These arrays, in private memory that is touched only where used, hold their addresses.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

use crate::format::*;
use crate::kind::Kind;
use crate::lockfree::peak::CentralCredit;
use crate::lockfree::shards::Shard;
use crate::system::anonymous;

/// Private memory of this process, mapped on first use. All zeros must be a valid `T`. All zeros: not mapped yet.
#[repr(transparent)]
pub struct Lazy<T>(AtomicPtr<T>);

impl<T> Lazy<T> {
    #[inline]
    fn get(&self) -> Option<&T> {
        let mut base = self.0.load(Acquire);
        if base.is_null() {
            base = self.map()?;
        }
        // SAFETY: mapped with the size of T, zeroed, which is a valid T, and never unmapped.
        Some(unsafe { &*base })
    }

    #[cold]
    #[inline(never)]
    fn map(&self) -> Option<*mut T> {
        let memory = anonymous(size_of::<T>()).ok()?.cast();
        match self.0.compare_exchange(std::ptr::null_mut(), memory, AcqRel, Acquire) {
            Ok(_) => Some(memory),
            Err(other) => {
                // SAFETY: mapped above with this length; no other thread has its address.
                unsafe { libc::munmap(memory.cast(), size_of::<T>()) };
                Some(other)
            }
        }
    }
}

/// The largest number of devices, plus one for "no device".
const SLOTS: usize = 33;

/// The rows of every kind on every device.
pub type Cells = Lazy<[[Cell; COUNTER_STRIDE]; SLOTS]>;

const _: () = assert!(
    Kind::from_number(COUNTER_STRIDE as u8).is_none(),
    "every kind has its own cell"
);
const _: () = assert!(COUNTER_STRIDE <= 64, "and its own bit");

/// The rows of one kind on one device.
#[repr(C)]
pub struct Cell {
    /// Filled before any of `rows`.
    pub peak: AtomicPtr<PeakRow>,
    /// In the cell of a device as a whole (kind 0), which has no rows: one bit for each kind that has rows, set before the
    /// first of them.
    pub kinds: AtomicU64,
    /// By shard; the last one is that of [`super::reported`].
    pub rows: [AtomicPtr<CounterRow>; SHARDS + 1],
}

impl Cells {
    #[inline]
    pub fn of(&self, key: CounterKey) -> Option<&Cell> {
        self.of_device(key.slot)?.get(key.kind as usize)
    }

    /// The cells of all kinds of a device, kind 0 first.
    #[inline]
    pub fn of_device(&self, slot: u32) -> Option<&[Cell; COUNTER_STRIDE]> {
        self.get()?.get(slot as usize)
    }
}

impl Cell {
    /// The existing rows.
    pub fn rows(&self) -> impl Iterator<Item = &CounterRow> {
        // SAFETY: null, or a row in an extent that is never unmapped.
        self.rows.iter().filter_map(|row| unsafe { row.load(SeqCst).as_ref() })
    }

    /// The sum has reached a new peak. Threads that reach peaks at the same time may call this in any order.
    #[inline]
    pub fn peak_reached(&self, time_ns: u64) {
        // Acquire: as in `central`.
        // SAFETY: as in `rows`.
        if let Some(row) = unsafe { self.peak.load(Acquire).as_ref() } {
            row.time_ns.fetch_max(time_ns, Relaxed);
        }
    }

    #[inline]
    pub fn central(&self) -> Option<&CentralCredit> {
        // Acquire: pairs with the Release in `add_counter`.
        // SAFETY: as in `rows`.
        unsafe { self.peak.load(Acquire).as_ref() }.map(|row| &row.credit)
    }
}

/// Slots per shard; a power of two.
const REMEMBERED: usize = 1024;

/// The rows of totals that each shard used last, by their stack.
pub type LastUsed = Lazy<[[AtomicPtr<TotalRow>; REMEMBERED]; SHARDS]>;

impl LastUsed {
    #[inline]
    pub fn slot(&self, shard: Shard, stack: u32) -> Option<&AtomicPtr<TotalRow>> {
        Some(&self.get()?[shard.number()][stack as usize % REMEMBERED])
    }
}
