//! What belongs to this process alone: it is in two pages, of which the kernel wipes the first in every child, also in one whose parent
//! skipped the fork handlers. So an event asks nothing else to know that there is a recording and that it is not the parent's.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use culeak::recording::{DEVICES, PAGE, Recording, Reported};
use culeak::system::anonymous;

#[repr(C)]
pub struct Own {
    /// Null: there is none, or this is a child.
    pub recording: AtomicPtr<Recording>,
    /// [`OWN`] while this process records.
    pub mark: AtomicU32,
    /// Where the tensors of a device begin, by device, if stacks are sampled: [`reported`].
    lines: [Line; LINES],
}

#[repr(C, align(64))]
struct Line {
    _words: [AtomicU64; 8],
}

const LINES: usize = 2 * PAGE / size_of::<Line>() - 1;
const _: () = assert!(size_of::<Own>() == 2 * PAGE, "two pages");
const _: () = assert!(DEVICES < PAGE / size_of::<Line>(), "each begins in the first page");

/// [`NOT_WIPED`] before there is a page, and where the kernel refuses to wipe one: then only the fork handler detects a child.
#[unsafe(link_section = ".data.culeak_events")]
static OWN_PAGES: AtomicPtr<Own> = AtomicPtr::new((&raw const NOT_WIPED).cast_mut());
// SAFETY: zeros are values of all fields.
static NOT_WIPED: Own = unsafe { std::mem::zeroed() };
pub const OWN: u32 = 1;

pub fn own() -> &'static Own {
    // SAFETY: a static, or a page that is mapped before this refers to it and never unmapped.
    unsafe { &*OWN_PAGES.load(Acquire) }
}

/// The tensors on a device of this process, whose number is below [`DEVICES`].
#[inline(always)]
pub fn reported(device: usize) -> &'static Reported {
    assert!(device < DEVICES);
    let begin = size_of::<Line>() * device + std::mem::offset_of!(Own, lines);
    // SAFETY: it ends in the second page, a line and `PAGE` bytes behind its begin; zeros are valid, and devices have no word in common.
    unsafe { &*OWN_PAGES.load(Acquire).byte_add(begin).cast() }
}

/// Something is rare from now on that an event of known tensors does not ask for.
pub fn forget_known() {
    (0..DEVICES).for_each(|device| reported(device).forget());
}

/// Whether the kernel wipes what belongs to this process alone in every child.
pub fn is_wiped_in_children() -> bool {
    !std::ptr::eq(own(), &NOT_WIPED)
}

/// Lets the kernel wipe it, before the process records.
pub fn wipe_in_children() {
    if !is_wiped_in_children()
        && let Ok(pages) = anonymous(2 * PAGE)
    {
        // SAFETY: the first of the pages that were mapped just now. Older kernels refuse.
        if unsafe { libc::madvise(pages.cast(), PAGE, libc::MADV_WIPEONFORK) } == 0 {
            OWN_PAGES.store(pages.cast(), Release);
        }
    }
}
