//! The kernel driver's objects that segments belong to: clients, devices, subdevices and groups of channels.
//!
//! They are remembered in order to know the device of a segment, and what a free of one of them frees implicitly. A process
//! has some tens of them. A slot's fields change only while its birth is [`BUSY`], and no two objects have one birth.
//!
//! A device of the kernel driver has a number of that driver's own, in the parameters of its object. Which of CUDA's devices it
//! is, is learned when a context is created: the context is on the device that gave most of the memory in the meantime, and
//! other devices give a little to it if they are its peers. Before the creation has ended that is provisional. Segments of a
//! process with several devices are on none if their device has had no context yet.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence};

use crate::recorder::call::{Call, FrameWord};
use crate::recorder::thread::THREAD;
use crate::resolve::own;
use culeak::lockfree::table::Attributes;
use culeak::recording::Recording;
use culeak::rm::Object;
use culeak_walker::{End, Registers};

const CAPACITY: usize = 2048;
/// More than any driver nests them.
const DEPTH: usize = 8;

struct Slot {
    /// The number of the object in the order in which they came into being; 0: unused, [`BUSY`]: being written.
    birth: AtomicU64,
    /// [`Object::to_word`].
    object: AtomicU64,
    parent: AtomicU32,
    /// The kernel driver's number of the device + 1; 0: unknown.
    device: AtomicU32,
    /// Live segments directly below.
    segments: AtomicU32,
}

const BUSY: u64 = u64::MAX;

static SLOTS: [Slot; CAPACITY] = [const {
    Slot {
        birth: AtomicU64::new(0),
        object: AtomicU64::new(0),
        parent: AtomicU32::new(0),
        device: AtomicU32::new(0),
        segments: AtomicU32::new(0),
    }
}; CAPACITY];
/// Slots from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
static NEXT_BIRTH: AtomicU64 = AtomicU64::new(1);

/// The kernel driver supports 32 devices.
const DEVICES: usize = 32;
/// Row + 1 of each device of the kernel driver.
static ROWS: [AtomicU8; DEVICES] = [const { AtomicU8::new(0) }; DEVICES];
/// The devices of the kernel driver that were seen, one bit each.
static SEEN: AtomicU64 = AtomicU64::new(0);

/// The contents of a slot.
#[derive(Clone, Copy)]
struct Contents {
    slot: &'static Slot,
    birth: u64,
    object: Object,
    parent: Object,
    device: Option<u32>,
}

impl Slot {
    fn contents(&'static self) -> Option<Contents> {
        // Acquire: pairs with the Release in `add`, so the fields belong to this birth or to a later one.
        let birth = self.birth.load(Acquire);
        if birth == 0 || birth == BUSY {
            return None;
        }
        let object = Object::from_word(self.object.load(Relaxed));
        let known = Contents {
            slot: self,
            birth,
            object,
            parent: Object {
                handle: self.parent.load(Relaxed),
                ..object
            },
            device: self.device.load(Relaxed).checked_sub(1),
        };
        // They belong to this birth if it has not changed. Acquire: pairs with the Release fence in `add`.
        fence(Acquire);
        (self.birth.load(Relaxed) == birth).then_some(known)
    }
}

impl Contents {
    /// Empties the slot, unless another object has taken it.
    fn forget(self) {
        // Release: pairs with the Acquire in `add`.
        let _ = self.slot.birth.compare_exchange(self.birth, 0, Release, Relaxed);
    }
}

fn used() -> &'static [Slot] {
    &SLOTS[..USED.load(Acquire).min(CAPACITY)]
}

fn find(object: Object) -> Option<Contents> {
    let word = object.to_word();
    let of_name = used().iter().filter(|slot| slot.object.load(Relaxed) == word);
    of_name
        .filter_map(Slot::contents)
        .find(|known| known.object.to_word() == word)
}

/// Remembers an object. False if there is no room.
pub fn add(object: Object, parent: u32, device: Option<u32>) -> bool {
    if let Some(gone) = find(object) {
        gone.forget();
    }
    let place = SLOTS.iter().position(|slot| {
        // Acquire: the slot's previous contents are no longer read.
        slot.birth.compare_exchange(0, BUSY, Acquire, Relaxed).is_ok()
    });
    let Some(place) = place else { return false };
    let slot = &SLOTS[place];
    // Release fence: a reader that sees any field written below also sees that the birth has changed.
    fence(Release);
    slot.object.store(object.to_word(), Relaxed);
    slot.parent.store(parent, Relaxed);
    slot.device
        .store(device.map_or(0, |device| device.wrapping_add(1)), Relaxed);
    slot.segments.store(0, Relaxed);
    // Taken after the slot: it is higher than what `births` returned while the slot held another object.
    let birth = NEXT_BIRTH.fetch_add(1, AcqRel);
    // Release: pairs with the Acquire in `contents`.
    slot.birth.store(birth, Release);
    USED.fetch_max(place + 1, Release);
    if let Some(device) = device.filter(|&device| (device as usize) < DEVICES) {
        SEEN.fetch_or(1 << device, Relaxed);
    }
    true
}

/// Whether no object was ever remembered.
pub fn are_none_known() -> bool {
    used().is_empty()
}

pub fn is_known(object: Object) -> bool {
    find(object).is_some()
}

/// The number of the next object: those that exist now have lower ones.
pub fn births() -> u64 {
    NEXT_BIRTH.load(Acquire)
}

/// Whether `object` is `above` or below it.
pub fn is_below(object: Object, above: Object) -> bool {
    if object.client != above.client {
        return false;
    }
    if above.handle == above.client {
        return true;
    }
    let mut next = object;
    for _ in 0..DEPTH {
        if next == above {
            return true;
        }
        let Some(known) = find(next) else { return false };
        next = known.parent;
    }
    false
}

/// Whether segments are live below an object.
pub fn has_segments(object: Object) -> bool {
    let mut known = used().iter().filter_map(Slot::contents);
    known.any(|known| known.slot.segments.load(Relaxed) > 0 && is_below(known.object, object))
}

/// Forgets an object that was freed, and all below it. Objects whose number is `births` or higher are others: the kernel driver
/// gave the same names again.
pub fn forget(object: Object, births: u64) {
    let older = |slot: &'static Slot| slot.contents().filter(|known| known.birth < births);
    // All are marked first: they are found through their parents.
    let mut marked = [0u64; CAPACITY / 64];
    for (number, slot) in used().iter().enumerate() {
        if older(slot).is_some_and(|known| is_below(known.object, object)) {
            marked[number / 64] |= 1 << (number % 64);
        }
    }
    for (number, slot) in used().iter().enumerate() {
        if marked[number / 64] >> (number % 64) & 1 != 0
            && let Some(known) = older(slot)
        {
            known.forget();
        }
    }
}

/// A segment below this object came into being, or ended. One below an unknown object counts for its client.
pub fn count_segment(parent: Object, is_new: bool) {
    let client = Object {
        handle: parent.client,
        ..parent
    };
    if let Some(known) = find(parent).or_else(|| find(client)) {
        let _ = known
            .slot
            .segments
            .fetch_update(Relaxed, Relaxed, |count| match is_new {
                true => count.checked_add(1),
                false => count.checked_sub(1),
            });
    }
}

/// The kernel driver's number of the device that an object belongs to.
fn device_of(object: Object) -> Option<u32> {
    let mut next = object;
    for _ in 0..DEPTH {
        let known = find(next)?;
        if known.device.is_some() {
            return known.device;
        }
        next = known.parent;
    }
    None
}

/// The row of a device of the kernel driver, once it is learned.
fn learned(device: u32) -> Option<u8> {
    ROWS.get(device as usize)?.load(Relaxed).checked_sub(1)
}

fn has_several_devices() -> bool {
    SEEN.load(Relaxed).count_ones() > 1
}

/// The row of the device of a segment below this object, or `NO_DEVICE`.
pub fn device_row(recording: &Recording, parent: Object) -> u8 {
    let device = device_of(parent);
    let row = device.and_then(learned).or_else(|| match creating() {
        Some(row) => has_given_most(device, row).then_some(row),
        None if has_several_devices() => None,
        None => recording.only_device(),
    });
    row.unwrap_or(Attributes::NO_DEVICE)
}

/// Whether it is likely that a device of the kernel driver is the one of this row, for which the calling thread is creating a
/// context.
fn has_given_most(device: Option<u32>, row: u8) -> bool {
    let Some(device) = device else {
        return !has_several_devices();
    };
    let is_anothers = ROWS.iter().any(|other| other.load(Relaxed) == row.wrapping_add(1));
    !is_anothers
        && CREATION.with(|creation| {
            let pages = creation.pages.get(device as usize).map_or(0, Cell::get);
            creation.pages.iter().all(|other| other.get() <= pages)
        })
}

/// As [`device_row`], for a segment that was recorded with a row before all was learned: `None` if nothing more is known.
pub fn learned_row(parent: Object) -> Option<u8> {
    let device = device_of(parent)?;
    let row = learned(device);
    row.or_else(|| has_several_devices().then_some(Attributes::NO_DEVICE))
}

/// The context that a thread is creating.
struct Creation {
    /// Row + 1 of its device; 0: none.
    row: Cell<u8>,
    /// The call that creates it, which may be left without returning, and the stack pointer in its frame.
    call: Cell<Call>,
    sp: Cell<u64>,
    /// Pages of 4 KiB that each device of the kernel driver gave meanwhile.
    pages: [Cell<u32>; DEVICES],
}

culeak_walker::thread_variable! {
    // SAFETY: zeros are a null pointer and integers.
    static CREATION: unsafe Creation = "culeak_context_creation";
}

/// Row of the device for which the calling thread is creating a context.
fn creating() -> Option<u8> {
    CREATION.with(|creation| creation.row.get().checked_sub(1))
}

/// Ends a creation that was left without returning: by an exception, a cancellation or a jump. Call it before the functions that
/// depend on a creation. The word in its frame may outlive the frame, so the frame is looked for too.
pub fn end_left_creation() {
    CREATION.with(|creation| {
        if creation.row.get() != 0 && !(creation.call.get().is_on_stack() && has_frame(creation.sp.get())) {
            creation.row.set(0);
        }
    });
}

/// Whether a frame of this library with this stack pointer is on the stack.
fn has_frame(sp: u64) -> bool {
    let mut is_found = false;
    let walked = culeak_walker::walk_each(Registers::here(), |place, address, at| {
        is_found = (is_found && place > 0) || (at == sp && own::is_ours(address));
        !is_found
    });
    // Of a stack that cannot be walked the word alone is known.
    is_found || walked.end == End::Lost
}

pub fn is_creating_context() -> bool {
    creating().is_some()
}

/// A segment of this size came into being below this object.
pub fn note_size(parent: Object, bytes: u64) {
    if creating().is_some()
        && let Some(device) = device_of(parent)
    {
        CREATION.with(|creation| {
            if let Some(pages) = creation.pages.get(device as usize) {
                let more = u32::try_from(bytes >> 12).unwrap_or(u32::MAX);
                pages.set(pages.get().saturating_add(more));
            }
        });
    }
}

/// The calling thread creates a context on the device of this row, until [`end_context`]. `word` and `at` are in the frame of the
/// call. False if it did so already, or if the device is unknown.
pub fn begin_context(row: Option<u8>, word: &mut FrameWord, at: Registers) -> bool {
    end_left_creation();
    let Some(row) = row.filter(|_| creating().is_none()) else {
        return false;
    };
    let call = THREAD.with(|thread| Call::begin(&thread.calls, word));
    CREATION.with(|creation| {
        creation.pages.iter().for_each(|pages| pages.set(0));
        creation.call.set(call);
        creation.sp.set(at.rsp);
        creation.row.set(row.wrapping_add(1));
    });
    true
}

/// Ends it. If the context exists now, its device is that which gave most; returns whether that is news.
pub fn end_context(word: &mut FrameWord, exists: bool) -> bool {
    Call::end(word);
    CREATION.with(|creation| {
        let row = creation.row.replace(0);
        let pages = creation.pages.iter().map(Cell::get).zip(&ROWS);
        let most = pages.max_by_key(|(pages, _)| *pages).filter(|(pages, _)| *pages > 0);
        let is_taken = || ROWS.iter().any(|other| other.load(Relaxed) == row);
        match most {
            Some((_, of_device)) if exists && row != 0 && !is_taken() => {
                of_device.compare_exchange(0, row, Relaxed, Relaxed).is_ok()
            }
            _ => false,
        }
    })
}

/// In a forked child: the objects are the parent's.
pub fn forked() {
    // Also those that another thread was about to use.
    for slot in &SLOTS[..(USED.load(Relaxed) + 64).min(CAPACITY)] {
        slot.birth.store(0, Relaxed);
    }
    USED.store(0, Relaxed);
    ROWS.iter().for_each(|row| row.store(0, Relaxed));
    SEEN.store(0, Relaxed);
    CREATION.with(|creation| creation.row.set(0));
}
