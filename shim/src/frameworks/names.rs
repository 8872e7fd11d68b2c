//! Names that live as long as the process, by number: NVTX domains and registered strings, and the names of ranges that began
//! before the recording.
//!
//! A forked child has no recording of its parent, but it has its parent's numbers. So these names are kept in memory of the
//! process: one mapping of a fixed size, of which only used pages exist. Each distinct name is stored once.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

use culeak::lockfree::index::Index;
use culeak::recording::{PHASE_NAME_MAX, beginning, hash_of};
use culeak::system::anonymous;

/// Bytes for all names.
const ROOM: usize = 4 << 20;
/// The bytes of a name's length, which precede it.
const LENGTH: usize = 2;

struct Names {
    base: AtomicPtr<u8>,
    used: AtomicUsize,
    index: Index,
}

static NAMES: Names = Names {
    base: AtomicPtr::new(std::ptr::null_mut()),
    used: AtomicUsize::new(0),
    // SAFETY: all zeros is an empty index.
    index: unsafe { std::mem::zeroed() },
};

/// The number of a name; 0 if there is no room.
pub fn number(name: &[u8]) -> u32 {
    NAMES.number(name).unwrap_or(0)
}

/// The name with a number from [`number`]. `None` for 0, and for numbers that no name has.
pub fn name(number: u32) -> Option<&'static [u8]> {
    NAMES.at(number.checked_sub(1)? as usize)
}

impl Names {
    fn number(&self, name: &[u8]) -> Option<u32> {
        let name = beginning(name, PHASE_NAME_MAX);
        let hash = hash_of(name);
        let same = |row: u32| self.at(row as usize) == Some(name);
        if let Some(known) = self.index.find(hash, same) {
            return Some(known.row + 1);
        }
        let base = self.base()?;
        let bytes = LENGTH + name.len();
        let take = |used: usize| used.checked_add(bytes).filter(|&end| end <= ROOM);
        let start = self.used.fetch_update(Relaxed, Relaxed, take).ok()?;
        let length = (name.len() as u16).to_ne_bytes();
        // SAFETY: the mapping has room for both at `start`, which no other thread was given.
        unsafe {
            base.add(start).copy_from_nonoverlapping(length.as_ptr(), LENGTH);
            base.add(start + LENGTH)
                .copy_from_nonoverlapping(name.as_ptr(), name.len());
        }
        let row = self.index.intern(hash, start as u32, same).unwrap_or(start as u32);
        Some(row + 1)
    }

    fn base(&self) -> Option<*mut u8> {
        // Acquire: pairs with the Release below, so the memory is mapped.
        let base = self.base.load(Acquire);
        if !base.is_null() {
            return Some(base);
        }
        let fresh = anonymous(ROOM).ok()?;
        match self
            .base
            .compare_exchange(std::ptr::null_mut(), fresh, Release, Acquire)
        {
            Ok(_) => Some(fresh),
            Err(other) => {
                // SAFETY: mapped above with this length; no other thread has its address.
                unsafe { libc::munmap(fresh.cast(), ROOM) };
                Some(other)
            }
        }
    }

    /// The name at this offset. A program may pass any number, so nothing beyond the used part is read.
    fn at(&self, offset: usize) -> Option<&'static [u8]> {
        let used = self.used.load(Relaxed);
        let base = self.base.load(Acquire);
        let text = offset.checked_add(LENGTH).filter(|&text| text <= used)?;
        if base.is_null() {
            return None;
        }
        let mut length = [0; LENGTH];
        // SAFETY: both bytes are below `used`, so they are mapped, and they are never unmapped.
        unsafe { base.add(offset).copy_to_nonoverlapping(length.as_mut_ptr(), LENGTH) };
        let length = usize::from(u16::from_ne_bytes(length));
        text.checked_add(length).filter(|&end| end <= used)?;
        // SAFETY: as above. A name does not change once it has a number.
        Some(unsafe { std::slice::from_raw_parts(base.add(text), length) })
    }
}
