//! An array that grows without moving and without a lock.
//!
//! ```text
//! extent   0      1          2                    3
//!          ├──┤├──────┤├──────────────┤├──────────────────────────────┤   until the limit, then all equal
//! element  0  n       3n              7n
//! ```
//!
//! Element *i* lies in a place that follows from *i* alone, so a reference stays good for ever. Two threads that need
//! the same new extent at once both make one; the first to publish it wins and the other gives its own back. Nobody
//! waits for ever, and a thread that dies in the middle holds nothing up.
//!
//! Elements begin as zeros. `T` must be valid as zeros and changed through atomics only ([`Element`] says so).

use std::marker::PhantomData;
use std::sync::atomic::Ordering::*;

use crate::file::{Errno, File};
use crate::layout::*;
use crate::sync::{AtomicPtr, AtomicU64, Zeroed, elements, give_back};

/// # Safety
/// All zeros is a valid value, and every field is an atomic.
pub unsafe trait Element: Zeroed {}

macro_rules! are_elements {
    ($($type:ty),*) => { $(
        // SAFETY: declared in `layout.rs` (or below) with atomic fields only.
        unsafe impl Element for $type {}
    )* };
}
are_elements!(AtomicU64, crate::table::Record);
#[cfg(not(loom))]
are_elements!(
    DeviceRow,
    ContextRow,
    ThreadRow,
    ModuleRow,
    FrameRow,
    RefusalRow,
    CounterRow,
    PeakRow,
    TotalRow,
    NameRow,
    MarkRow,
    AllocatorRow,
    CodeRow,
    InterpreterRow,
    std::sync::atomic::AtomicU32,
    std::sync::atomic::AtomicU8
);

/// Enough for 100 million records.
const EXTENTS: usize = if cfg!(loom) { 3 } else { 448 };

/// Where element `index` lies: extent number and place in it. Both sizes are powers of two, so that it takes no division.
#[inline]
pub const fn locate(index: usize, first: usize, limit: usize) -> (usize, usize) {
    debug_assert!(first.is_power_of_two() && limit.is_power_of_two());
    let (first_log, limit_log) = (first.trailing_zeros(), limit.trailing_zeros());
    // Extents 0..=d double from `first` to `limit`; those before extent k hold first * (2^k - 1) elements.
    let doublings = (limit_log - first_log) as usize;
    let doubled = limit - first;
    if index < doubled {
        let extent = (index >> first_log) + 1;
        let extent = (usize::BITS - 1 - extent.leading_zeros()) as usize;
        (extent, index - ((first << extent) - first))
    } else {
        let beyond = index - doubled;
        (doublings + (beyond >> limit_log), beyond & (limit - 1))
    }
}

/// How many elements extent `number` holds.
pub const fn extent_capacity(number: usize, first: usize, limit: usize) -> usize {
    let doublings = (limit / first).ilog2() as usize;
    if number < doublings { first << number } else { limit }
}

/// The array. All zeros is an empty one, so it can lie in fresh memory.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Growing<T> {
    extents: [AtomicPtr<T>; EXTENTS],
    /// The thread that is making an extent of a file; 0: nobody.
    making: AtomicU64,
    kind: PhantomData<T>,
}

/// While it lives, others leave the making of an extent to this thread.
///
/// In a file, a loser's extent stays where it is, unused: of dozens of threads that reach the end of an extent together
/// all but one would only use up the disk. So the others are patient, but not for ever: whoever is making it may be
/// dead, or be the thread that a signal handler has interrupted.
struct Making<'a>(Option<&'a AtomicU64>);

impl<'a> Making<'a> {
    fn begin(making: &'a AtomicU64, done: impl Fn() -> bool) -> Making<'a> {
        const PATIENCE: u32 = 10_000;
        // SAFETY: no preconditions.
        let me = unsafe { libc::pthread_self() } as u64;
        // We ourselves, further out or left by a jump: there is nobody to wait for.
        if making.load(Relaxed) == me {
            return Making(Some(making));
        }
        for _ in 0..PATIENCE {
            if making.compare_exchange(0, me, Relaxed, Relaxed).is_ok() {
                return Making(Some(making));
            }
            if done() {
                break;
            }
            // SAFETY: no preconditions.
            unsafe { libc::sched_yield() };
        }
        Making(None)
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        if let Some(making) = self.0 {
            making.store(0, Relaxed);
        }
    }
}

/// Where new extents come from.
#[derive(Clone, Copy)]
pub enum Backing<'a> {
    /// The recording, under a section.
    File(&'a File, Section),
    /// This process alone: first extent and limit, in elements.
    Private(usize, usize),
}

impl Backing<'_> {
    const fn sizes(self) -> (usize, usize) {
        match self {
            Backing::File(_, section) => extent_sizes(section),
            Backing::Private(first, limit) => (first, limit),
        }
    }
}

impl<T: Element> Growing<T> {
    /// The element, if its extent exists.
    #[inline]
    pub fn get(&self, backing: Backing, index: u32) -> Option<&T> {
        let (first, limit) = backing.sizes();
        let (extent, place) = locate(index as usize, first, limit);
        // Acquire: pairs with the Release in `ensure`, so the mapping is there before its address is used.
        let base = self.extents.get(extent)?.load(Acquire);
        if base.is_null() {
            return None;
        }
        // SAFETY: the extent was mapped for its full capacity, `place` is below it, and it is never unmapped.
        Some(unsafe { &*base.add(place) })
    }

    /// The element, after adding its extent where that is missing.
    ///
    /// # Errors
    /// Why the extent could not be added.
    pub fn ensure(&self, backing: Backing, index: u32) -> Result<&T, Errno> {
        if let Some(element) = self.get(backing, index) {
            return Ok(element);
        }
        let (first, limit) = backing.sizes();
        let (number, _) = locate(index as usize, first, limit);
        let slot = self.extents.get(number).ok_or(Errno(libc::EFBIG))?;
        let count = extent_capacity(number, first, limit);
        match backing {
            Backing::File(file, section) => {
                let _making = Making::begin(&self.making, || !slot.load(Relaxed).is_null());
                if let Some(element) = self.get(backing, index) {
                    return Ok(element);
                }
                // Announced first: whatever is written into a published extent, a reader can find. A loser's extent
                // that was announced and not yet withdrawn holds zeros only, which readers take for absent.
                let extent = file.extend(count * size_of::<T>())?;
                let row = match file.announce(&extent, section, number as u32, size_of::<T>()) {
                    Ok(row) => row,
                    Err(error) => {
                        extent.unmap();
                        return Err(error);
                    }
                };
                // Release: pairs with the Acquire in `get`.
                if slot
                    .compare_exchange(std::ptr::null_mut(), extent.address.cast(), Release, Relaxed)
                    .is_err()
                {
                    row.section.store(0, Relaxed);
                    extent.unmap();
                }
            }
            Backing::Private(..) => {
                let extent = elements(count)?;
                // Release: as above.
                if slot
                    .compare_exchange(std::ptr::null_mut(), extent, Release, Relaxed)
                    .is_err()
                {
                    // SAFETY: made just now with this length; nobody has seen it.
                    unsafe { give_back(extent, count) };
                }
            }
        }
        self.get(backing, index).ok_or(Errno(libc::EFBIG))
    }
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_its_own_place_and_extents_are_filled_in_order() {
        for (first, limit) in [(4, 64), (64, 64), (256, 1 << 12)] {
            let mut expected = (0, 0);
            for index in 0..if cfg!(miri) { 500 } else { 20_000 } {
                assert_eq!(
                    locate(index, first, limit),
                    expected,
                    "element {index} of {first}..{limit}"
                );
                expected.1 += 1;
                if expected.1 == extent_capacity(expected.0, first, limit) {
                    expected = (expected.0 + 1, 0);
                }
            }
        }
    }

    #[test]
    fn an_element_stays_where_it_is_while_the_array_grows() {
        let array: Box<Growing<AtomicU64>> = Box::new(empty());
        let backing = Backing::Private(4, 64);
        let early: *const AtomicU64 = array.ensure(backing, 3).unwrap();
        array.ensure(backing, 3).unwrap().store(7, Relaxed);
        array.ensure(backing, 1000).unwrap().store(9, Relaxed);
        assert!(std::ptr::eq(array.get(backing, 3).unwrap(), early));
        assert_eq!(array.get(backing, 3).unwrap().load(Relaxed), 7);
        assert!(
            array.get(backing, 500).is_none(),
            "extents in between are made when needed"
        );
    }

    fn empty() -> Growing<AtomicU64> {
        // SAFETY: documented: all zeros is an empty array.
        unsafe { std::mem::zeroed() }
    }
}
