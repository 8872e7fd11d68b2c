//! An array that grows without moving and without a lock.
//!
//! ```text
//! extent   0      1          2                    3
//!          ├──┤├──────┤├──────────────┤├──────────────────────────────┤   until the limit, then all equal
//! element  0  n       3n              7n
//! ```
//!
//! The place of element *i* follows from *i* alone, so a reference stays valid.
//!
//! Private extents are cheap: if two threads need the same one at once, both map it, the first to publish it wins, and the
//! other unmaps its own. An extent of a file is not cheap: a slow file system takes a second for it, and an unused extent
//! stays in the file. So one thread adds it (`Growth`) and the others wait, for a limited time. A failure is remembered: on
//! a full disk the next attempt is made after a second, not at every event.
//!
//! Elements begin as zeros ([`Element`]).

use std::marker::PhantomData;
use std::sync::atomic::Ordering::*;

use crate::file::File;
use crate::format::Section;
pub use crate::lockfree::sync::Element;
use crate::lockfree::sync::{AtomicPtr, AtomicU64, elements, give_back};
use crate::system::{BlockedSignals, Errno, Pauses, cold_path, monotonic_ns};

/// Enough for 100 million records.
const EXTENTS: usize = if cfg!(loom) { 3 } else { 448 };

/// The place of element `index`: extent number and index in the extent. Both sizes are powers of two, so no division is
/// needed.
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

/// The number of elements of extent `number`.
pub const fn extent_capacity(number: usize, first: usize, limit: usize) -> usize {
    let doublings = (limit / first).ilog2() as usize;
    if number < doublings { first << number } else { limit }
}

/// The array. All zeros is an empty array.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct SegmentedArray<T> {
    extents: [AtomicPtr<T>; EXTENTS],
    growth: Growth,
    kind: PhantomData<T>,
}

/// The growth of an array in a file. All zeros: it is not growing.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
struct Growth {
    /// When a thread began to add an extent; 0: no thread is adding one.
    adding_since: AtomicU64,
    /// When adding an extent last failed; 0: the last attempt succeeded.
    failed_at: AtomicU64,
    /// The errno of that failure.
    error: AtomicU64,
}

/// How long threads wait for an extent that another thread is adding; then they fail with `ETIMEDOUT`.
const PATIENCE_NS: u64 = 2_000_000_000;
/// How long after a failure the next attempt is made.
const RETRY_NS: u64 = 1_000_000_000;

/// While it exists, only this thread adds an extent. Signals of the thread are blocked: a handler could need the same
/// extent, or leave by a jump.
struct Adding<'a> {
    since: &'a AtomicU64,
    _signals: BlockedSignals,
}

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `turn`, so the next thread sees the extent that was added.
        self.since.store(0, Release);
    }
}

impl Growth {
    /// The error of a recent failure: the array cannot grow now.
    fn trouble(&self) -> Option<Errno> {
        let failed = self.failed_at.load(Relaxed);
        let recent = failed != 0 && monotonic_ns().saturating_sub(failed) < RETRY_NS;
        recent.then(|| Errno(self.error.load(Relaxed) as i32))
    }

    fn note(&self, result: Result<(), Errno>) {
        if let Err(error) = result {
            self.error.store(error.0 as u64, Relaxed);
        }
        let failed = if result.is_err() { monotonic_ns().max(1) } else { 0 };
        self.failed_at.store(failed, Relaxed);
    }

    /// The exclusive right to add an extent; `None`: another thread has added it.
    fn turn(&self, exists: impl Fn() -> bool) -> Result<Option<Adding<'_>>, Errno> {
        let mut pauses = Pauses::default();
        loop {
            if let Some(error) = self.trouble() {
                return Err(error);
            }
            let now = monotonic_ns().max(1);
            let signals = BlockedSignals::all();
            // Acquire: pairs with the Release above.
            let taken = self.adding_since.compare_exchange(0, now, Acquire, Relaxed);
            let turn = taken.map(|_| Adding {
                since: &self.adding_since,
                _signals: signals,
            });
            if exists() {
                return Ok(None);
            }
            match turn {
                Ok(turn) => return Ok(Some(turn)),
                Err(since) if now.saturating_sub(since) > PATIENCE_NS => return Err(Errno(libc::ETIMEDOUT)),
                Err(_) => pauses.pause(),
            }
        }
    }
}

/// The storage of an array.
#[derive(Clone, Copy)]
pub enum Backing<'a> {
    /// A section of the recording.
    File(&'a File, Section),
    /// Private memory: elements of the first extent, and of the largest.
    Private(usize, usize),
}

impl Backing<'_> {
    const fn sizes(self) -> (usize, usize) {
        match self {
            Backing::File(_, section) => section.extent_sizes(),
            Backing::Private(first, limit) => (first, limit),
        }
    }
}

impl<T: Element> SegmentedArray<T> {
    /// The element, if its extent exists.
    #[inline]
    pub fn get(&self, backing: Backing, index: u32) -> Option<&T> {
        self.get_sized(backing.sizes(), index)
    }

    /// As `get`; `sizes`: those of the backing's extents. If they are a constant, so are the shifts that find the extent.
    #[inline(always)]
    pub fn get_sized(&self, sizes: (usize, usize), index: u32) -> Option<&T> {
        let (first, limit) = sizes;
        let (extent, place) = locate(index as usize, first, limit);
        // Acquire: pairs with the Release in `ensure` and `add_extent`, so the extent is mapped before its address is used.
        let base = self.extents.get(extent)?.load(Acquire);
        if base.is_null() {
            cold_path();
            return None;
        }
        // SAFETY: the extent was mapped for its full capacity, `place` is below it, and it is never unmapped.
        Some(unsafe { &*base.add(place) })
    }

    /// The number of an element. Looks at one extent after the other: for rare events.
    pub fn number_of(&self, backing: Backing, element: &T) -> Option<u32> {
        let (first, limit) = backing.sizes();
        let mut before = 0;
        for (number, extent) in self.extents.iter().enumerate() {
            let count = extent_capacity(number, first, limit);
            // Acquire: as in `get`.
            let bytes = std::ptr::from_ref(element)
                .addr()
                .wrapping_sub(extent.load(Acquire).addr());
            if bytes / size_of::<T>() < count {
                return u32::try_from(before + bytes / size_of::<T>()).ok();
            }
            before += count;
        }
        None
    }

    /// Consecutive elements, if their extent exists and contains all of them.
    #[inline]
    pub fn get_all(&self, backing: Backing, index: u32, count: usize) -> Option<&[T]> {
        let (first, limit) = backing.sizes();
        let (extent, place) = locate(index as usize, first, limit);
        if count > extent_capacity(extent, first, limit) - place {
            return None;
        }
        // Acquire: as in `get`.
        let base = self.extents.get(extent)?.load(Acquire);
        if base.is_null() {
            return None;
        }
        // SAFETY: as in `get`; the extent has `count` elements from `place` on.
        Some(unsafe { std::slice::from_raw_parts(base.add(place), count) })
    }

    /// Why element `count` cannot be added now, if adding its extent failed recently. Callers that count elements call this
    /// first: a count must not run ahead of the elements while the disk is full.
    pub fn trouble(&self, backing: Backing, count: &AtomicU64) -> Option<Errno> {
        let Backing::File(..) = backing else { return None };
        match u32::try_from(count.load(Relaxed)) {
            Ok(next) if self.get(backing, next).is_some() => None,
            _ => self.growth.trouble(),
        }
    }

    /// The element; its extent is added if it is missing.
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
                let turn = self.growth.turn(|| !slot.load(Relaxed).is_null());
                if let Some(_adding) = turn.inspect_err(|&error| file.note_trouble(error))? {
                    let added = add_extent(file, section, number, count, slot);
                    self.growth.note(added);
                    added?;
                }
            }
            Backing::Private(..) => {
                let extent = elements(count)?;
                // Release: pairs with the Acquire in `get`.
                if slot
                    .compare_exchange(std::ptr::null_mut(), extent, Release, Relaxed)
                    .is_err()
                {
                    // SAFETY: mapped above with this length; no other thread has its address.
                    unsafe { give_back(extent, count) };
                }
            }
        }
        self.get(backing, index).ok_or(Errno(libc::EFBIG))
    }
}

/// Adds an extent to the file and publishes it.
fn add_extent<T>(file: &File, section: Section, number: usize, count: usize, slot: &AtomicPtr<T>) -> Result<(), Errno> {
    // Announced first, so that readers find everything that is written into a published extent. Until then it holds only
    // zeros, which readers treat as absent.
    let extent = file.extend(count * size_of::<T>())?;
    if let Err(error) = file.announce(&extent, section, number as u32, size_of::<T>()) {
        extent.unmap();
        return Err(error);
    }
    // Release: pairs with the Acquire in `get`. The slot is null, since only this thread adds extents now.
    let _ = slot.compare_exchange(std::ptr::null_mut(), extent.address.cast(), Release, Relaxed);
    Ok(())
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_a_distinct_place_and_extents_are_filled_in_order() {
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
        let array: Box<SegmentedArray<AtomicU64>> = Box::new(empty());
        let backing = Backing::Private(4, 64);
        let early: *const AtomicU64 = array.ensure(backing, 3).unwrap();
        array.ensure(backing, 3).unwrap().store(7, Relaxed);
        array.ensure(backing, 1000).unwrap().store(9, Relaxed);
        assert!(std::ptr::eq(array.get(backing, 3).unwrap(), early));
        assert_eq!(array.get(backing, 3).unwrap().load(Relaxed), 7);
        for number in [0, 3, 999, 1000] {
            let element = array.ensure(backing, number).unwrap();
            assert_eq!(array.number_of(backing, element), Some(number));
        }
        assert_eq!(array.number_of(backing, &AtomicU64::new(0)), None);
        assert!(
            array.get(backing, 500).is_none(),
            "extents in between are added when needed"
        );
    }

    #[test]
    fn consecutive_elements_are_those_of_one_extent() {
        let array: Box<SegmentedArray<AtomicU64>> = Box::new(empty());
        let backing = Backing::Private(4, 64);
        for (number, value) in [(0, 10), (2, 12), (4, 14)] {
            array.ensure(backing, number).unwrap().store(value, Relaxed);
        }
        let values = |index, count| {
            let all = array.get_all(backing, index, count)?;
            Some(all.iter().map(|value| value.load(Relaxed)).collect::<Vec<_>>())
        };
        assert_eq!(values(0, 4), Some(vec![10, 0, 12, 0]));
        assert_eq!(values(2, 1), Some(vec![12]));
        assert_eq!(values(2, 3), None, "the third is in the next extent");
        assert_eq!(values(4, 2), Some(vec![14, 0]));
        assert_eq!(values(12, 1), None, "there is no such extent");
    }

    #[test]
    fn a_failure_is_remembered_for_a_second_and_forgotten_after_a_success() {
        let growth = empty().growth;
        assert_eq!(growth.trouble(), None);
        growth.note(Err(Errno(libc::ENOSPC)));
        // Later than now: this test may be stopped for longer than a second.
        growth.failed_at.store(monotonic_ns() + 1_000_000 * RETRY_NS, Relaxed);
        assert_eq!(growth.trouble(), Some(Errno(libc::ENOSPC)));
        growth.failed_at.store(monotonic_ns() - 2 * RETRY_NS, Relaxed);
        assert_eq!(growth.trouble(), None, "two seconds ago");
        growth.note(Err(Errno(libc::EIO)));
        assert!(growth.failed_at.load(Relaxed) > 0);
        growth.note(Ok(()));
        assert_eq!((growth.trouble(), growth.failed_at.load(Relaxed)), (None, 0));
    }

    fn empty() -> SegmentedArray<AtomicU64> {
        // SAFETY: documented: all zeros is an empty array.
        unsafe { std::mem::zeroed() }
    }
}
