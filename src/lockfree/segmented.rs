//! An array that grows without moving and without a lock.
//!
//! ```text
//! extent   0      1          2                    3
//!          ├──┤├──────┤├──────────────┤├──────────────────────────────┤   until the limit, then all equal
//! element  0  n       3n              7n
//! ```
//!
//! Element *i* lies in a place that follows from *i* alone, so a reference stays good for ever.
//!
//! Private extents are cheap: two threads that need the same one at once both make it, the first to publish it wins, and
//! the other gives its own back. An extent of a file is not: a slow file system takes a second for it, and what is not
//! used stays in the file. So one thread makes it ([`Growth`]) and the others wait, for a limited time. A failure is
//! remembered: a full disk is tried again after a second, not at every event.
//!
//! Elements begin as zeros ([`Element`]).

use std::marker::PhantomData;
use std::sync::atomic::Ordering::*;

use crate::file::File;
use crate::format::Section;
pub use crate::lockfree::sync::Element;
use crate::lockfree::sync::{AtomicPtr, AtomicU64, elements, give_back};
use crate::system::{BlockedSignals, Errno, Pauses, monotonic_ns};

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
pub struct SegmentedArray<T> {
    extents: [AtomicPtr<T>; EXTENTS],
    growth: Growth,
    kind: PhantomData<T>,
}

/// How an array in a file is growing. All zeros: it is not.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
struct Growth {
    /// When the thread that is making an extent began; 0: no thread is.
    making_since: AtomicU64,
    /// When an extent could last not be made; 0: it could.
    failed_at: AtomicU64,
    /// The errno of that.
    error: AtomicU64,
}

/// How long threads wait for an extent that another one is making; after that they go without.
const PATIENCE_NS: u64 = 2_000_000_000;
/// How long after a failure the next attempt is made.
const RETRY_NS: u64 = 1_000_000_000;

/// While it lives, other threads leave the making of an extent to this one. Its signals wait: a handler could need the
/// same extent, or leave by a jump.
struct Making<'a> {
    since: &'a AtomicU64,
    _signals: BlockedSignals,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `turn`: the next one sees the extent that was made.
        self.since.store(0, Release);
    }
}

impl Growth {
    /// Why the array cannot grow now.
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

    /// The right to make an extent; `None`: another thread has made it.
    fn turn(&self, is_made: impl Fn() -> bool) -> Result<Option<Making<'_>>, Errno> {
        let mut pauses = Pauses::default();
        loop {
            if let Some(error) = self.trouble() {
                return Err(error);
            }
            let now = monotonic_ns().max(1);
            let signals = BlockedSignals::all();
            // Acquire: pairs with the Release above.
            let taken = self.making_since.compare_exchange(0, now, Acquire, Relaxed);
            let turn = taken.map(|_| Making {
                since: &self.making_since,
                _signals: signals,
            });
            if is_made() {
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
            Backing::File(_, section) => section.extent_sizes(),
            Backing::Private(first, limit) => (first, limit),
        }
    }
}

impl<T: Element> SegmentedArray<T> {
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

    /// Why no more elements than `count` can be had now, if the next extent could not be made a moment ago. Callers that
    /// count elements ask first: a count must not run ahead of the elements while the disk is full.
    pub fn trouble(&self, backing: Backing, count: &AtomicU64) -> Option<Errno> {
        let Backing::File(..) = backing else { return None };
        match u32::try_from(count.load(Relaxed)) {
            Ok(next) if self.get(backing, next).is_some() => None,
            _ => self.growth.trouble(),
        }
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
                let turn = self.growth.turn(|| !slot.load(Relaxed).is_null());
                if let Some(_making) = turn.inspect_err(|&error| file.note_trouble(error))? {
                    let made = add_extent(file, section, number, count, slot);
                    self.growth.note(made);
                    made?;
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

/// Adds an extent to the file and publishes it.
fn add_extent<T>(file: &File, section: Section, number: usize, count: usize, slot: &AtomicPtr<T>) -> Result<(), Errno> {
    // Announced first: whatever is written into a published extent, a reader can find. Until then it holds zeros only,
    // which readers take for absent.
    let extent = file.extend(count * size_of::<T>())?;
    if let Err(error) = file.announce(&extent, section, number as u32, size_of::<T>()) {
        extent.unmap();
        return Err(error);
    }
    // Release: pairs with the Acquire in `get`. The place is empty, since this thread alone makes extents now.
    let _ = slot.compare_exchange(std::ptr::null_mut(), extent.address.cast(), Release, Relaxed);
    Ok(())
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
        let array: Box<SegmentedArray<AtomicU64>> = Box::new(empty());
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

    fn empty() -> SegmentedArray<AtomicU64> {
        // SAFETY: documented: all zeros is an empty array.
        unsafe { std::mem::zeroed() }
    }
}
