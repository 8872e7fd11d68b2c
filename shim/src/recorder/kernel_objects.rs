//! The kernel driver's objects that segments belong to: clients, devices, subdevices and groups of channels.
//!
//! They are remembered in order to know the device of a segment, and what a free of one of them frees implicitly. A process
//! has some tens of them. Which of CUDA's devices an object of the kernel driver means is learned when a context is created:
//! its first segment is on the context's device.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use culeak::lockfree::table::Attributes;
use culeak::recording::Recording;
use culeak::rm::Object;

const CAPACITY: usize = 2048;
/// More than any driver nests them.
const DEPTH: usize = 8;

struct Slot {
    /// [`Object::to_word`]; 0: unused, [`BUSY`]: being written.
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
        object: AtomicU64::new(0),
        parent: AtomicU32::new(0),
        device: AtomicU32::new(0),
        segments: AtomicU32::new(0),
    }
}; CAPACITY];
/// Slots from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

const DEVICES: usize = 64;
/// Row + 1 of each device of the kernel driver.
static ROWS: [AtomicU8; DEVICES] = [const { AtomicU8::new(0) }; DEVICES];
/// The devices of the kernel driver that were seen, one bit each.
static SEEN: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Row + 1 of the device for which this thread is creating a context; 0: none.
    static CREATING: Cell<u16> = const { Cell::new(0) };
}

fn used() -> &'static [Slot] {
    &SLOTS[..USED.load(Acquire).min(CAPACITY)]
}

fn find(object: Object) -> Option<&'static Slot> {
    // Acquire: pairs with the Release in `add`, so the fields belong to this object.
    used().iter().find(|slot| slot.object.load(Acquire) == object.to_word())
}

fn parent_of(object: Object, slot: &Slot) -> Object {
    Object {
        handle: slot.parent.load(Relaxed),
        ..object
    }
}

/// Remembers an object. False if there is no room.
pub fn add(object: Object, parent: u32, device: Option<u32>) -> bool {
    remove(object);
    let place = SLOTS.iter().position(|slot| {
        // Acquire: the slot's previous contents are no longer read.
        slot.object.compare_exchange(0, BUSY, Acquire, Relaxed).is_ok()
    });
    let Some(place) = place else { return false };
    let slot = &SLOTS[place];
    slot.parent.store(parent, Relaxed);
    slot.device
        .store(device.map_or(0, |device| device.wrapping_add(1)), Relaxed);
    slot.segments.store(0, Relaxed);
    // Release: pairs with the Acquire in `find`.
    slot.object.store(object.to_word(), Release);
    USED.fetch_max(place + 1, Release);
    if let Some(device) = device.filter(|&device| (device as usize) < DEVICES) {
        SEEN.fetch_or(1 << device, Relaxed);
    }
    true
}

fn remove(object: Object) {
    if let Some(slot) = find(object) {
        slot.object.store(0, Release);
    }
}

pub fn is_known(object: Object) -> bool {
    find(object).is_some()
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
        let Some(slot) = find(next) else { return false };
        next = parent_of(next, slot);
    }
    false
}

/// Whether segments are live below an object.
pub fn has_segments(object: Object) -> bool {
    used()
        .iter()
        .any(|slot| slot.segments.load(Relaxed) > 0 && named(slot).is_some_and(|name| is_below(name, object)))
}

/// Forgets an object that was freed, and all below it.
pub fn forget(object: Object) {
    // All are marked first: they are found through their parents.
    let mut marked = [0u64; CAPACITY / 64];
    for (number, slot) in used().iter().enumerate() {
        if named(slot).is_some_and(|name| is_below(name, object)) {
            marked[number / 64] |= 1 << (number % 64);
        }
    }
    for (number, slot) in used().iter().enumerate() {
        if marked[number / 64] >> (number % 64) & 1 != 0 {
            slot.object.store(0, Release);
        }
    }
}

/// The object that a slot holds.
fn named(slot: &Slot) -> Option<Object> {
    // Acquire: as in `find`.
    let word = slot.object.load(Acquire);
    (word != 0 && word != BUSY).then(|| Object::from_word(word))
}

/// A segment below this object came into being, or ended. One below an unknown object counts for its client.
pub fn count_segment(parent: Object, is_new: bool) {
    let client = Object {
        handle: parent.client,
        ..parent
    };
    if let Some(slot) = find(parent).or_else(|| find(client)) {
        let _ = slot.segments.fetch_update(Relaxed, Relaxed, |count| match is_new {
            true => count.checked_add(1),
            false => count.checked_sub(1),
        });
    }
}

/// The kernel driver's number of the device that an object belongs to.
pub fn device_of(object: Object) -> Option<u32> {
    let mut next = object;
    for _ in 0..DEPTH {
        let slot = find(next)?;
        if let Some(device) = slot.device.load(Relaxed).checked_sub(1) {
            return Some(device);
        }
        next = parent_of(next, slot);
    }
    None
}

/// The row of the device of a segment below this object, or `NO_DEVICE`.
pub fn device_row(recording: &Recording, parent: Object) -> u8 {
    let device = device_of(parent);
    let row = device.and_then(|device| ROWS.get(device as usize));
    let known = row.and_then(|row| row.load(Relaxed).checked_sub(1));
    if let Some(known) = known {
        return known;
    }
    if let Some(creating) = CREATING.with(|creating| creating.get().checked_sub(1)) {
        let creating = creating as u8;
        if let Some(row) = row {
            // Another device of the kernel driver is this one: the segment is not on the context's device.
            if ROWS.iter().any(|other| other.load(Relaxed) == creating + 1) {
                return Attributes::NO_DEVICE;
            }
            row.store(creating + 1, Relaxed);
        }
        return creating;
    }
    // A process with one device.
    let is_only = SEEN.load(Relaxed).count_ones() <= 1;
    recording
        .only_device()
        .filter(|_| is_only)
        .unwrap_or(Attributes::NO_DEVICE)
}

/// The calling thread creates a context on the device of this row, until [`end_context`].
pub fn begin_context(row: Option<u8>) -> u16 {
    CREATING.with(|creating| creating.replace(row.map_or(0, |row| u16::from(row) + 1)))
}

pub fn is_creating_context() -> bool {
    CREATING.with(|creating| creating.get() != 0)
}

pub fn end_context(before: u16) {
    CREATING.with(|creating| creating.set(before));
}

/// In a forked child: the objects are the parent's.
pub fn forked() {
    // Also those that another thread was about to use.
    for slot in &SLOTS[..(USED.load(Relaxed) + 64).min(CAPACITY)] {
        slot.object.store(0, Relaxed);
    }
    USED.store(0, Relaxed);
    ROWS.iter().for_each(|row| row.store(0, Relaxed));
    SEEN.store(0, Relaxed);
    end_context(0);
}
