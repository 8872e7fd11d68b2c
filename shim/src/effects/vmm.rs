//! Virtual memory management: physical memory lives while a reference to its handle or a mapping of it exists.
//!
//! The record of the memory has both counts. The record of a mapping has a link to the memory's record rather than its
//! handle: a handle that was released while mapped may name other memory later.

use super::{
    Location, ON_DEVICE, ON_PART_OF_DEVICE, Word, add_reference, frees_in, parameter, read, record, record_output,
    with_table,
};
use crate::recorder::{self, AllocationEvent, Device, Held, TEARDOWN, key};
use culeak::cuda_functions::Api;
use culeak::format::{Loss, halves, pack};
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Entry, Key, Link, Space, TableIn};

/// # Safety
/// As `allocates`.
pub unsafe fn reserves<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T, bytes: impl Word) -> i32 {
    let result = real();
    let event = AllocationEvent {
        space: Space::Reserved,
        requested: bytes.word(),
        device: Device::None,
        ..AllocationEvent::new(api, Kind::Reserved, 0)
    };
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
}

pub fn unreserves(_: Api, real: impl FnOnce() -> i32, address: impl Word) -> i32 {
    frees_in(Space::Reserved, address.word(), real)
}

/// # Safety
/// As `allocates`; `properties` is the call's own.
pub unsafe fn creates_physical<T: Word, P>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    bytes: impl Word,
    properties: *const P,
) -> i32 {
    let result = real();
    // SAFETY: CUmemAllocationProp is {type, handle types, location {type, id}, …}.
    let location = unsafe { Location::read(result, properties, 2) };
    let kind = if matches!(location.kind, 0 | ON_DEVICE | ON_PART_OF_DEVICE) {
        Kind::Physical
    } else {
        Kind::HostPhysical
    };
    let event = AllocationEvent {
        device: location.device(),
        ..counted(api, kind, bytes.word())
    };
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
}

/// A VMM handle with one reference and no mapping.
#[inline(always)]
fn counted(api: Api, kind: Kind, bytes: u64) -> AllocationEvent {
    AllocationEvent {
        space: Space::Physical,
        extra: pack(1, 0),
        flags: Attributes::COUNTS,
        ..AllocationEvent::new(api, kind, bytes)
    }
}

/// # Safety
/// As `allocates`; `properties` is the call's own.
pub unsafe fn creates_multicast<T: Word, P>(
    api: Api,
    real: impl FnOnce() -> i32,
    out: *mut T,
    properties: *const P,
) -> i32 {
    let result = real();
    // SAFETY: CUmulticastObjectProp is {number of devices (4 bytes, padded to 8), size, …}.
    let span = unsafe { parameter(result, properties, 1) };
    let event = AllocationEvent {
        requested: span,
        device: Device::None,
        ..counted(api, Kind::Multicast, 0)
    };
    // SAFETY: the same condition.
    unsafe { record_output(result, out, &event) }
}

/// # Safety
/// As `allocates`.
pub unsafe fn imports_physical<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T) -> i32 {
    let result = real();
    // SAFETY: read only after success.
    let handle = if result == 0 { unsafe { read(out) } } else { 0 };
    if result != 0 || !add_reference(Space::Physical, handle) {
        record(result, || handle, &counted(api, Kind::Imported, 0));
    }
    result
}

/// # Safety
/// As `allocates`.
pub unsafe fn retains_physical<T: Word>(_: Api, real: impl FnOnce() -> i32, out: *mut T, _address: impl Word) -> i32 {
    let result = real();
    if result != 0 {
        return result;
    }
    // SAFETY: read only after success.
    let handle = unsafe { read(out) };
    if !add_reference(Space::Physical, handle) {
        with_table(|recording, table| {
            let link = released_but_mapped(&table, handle).unwrap_or(Link::NOWHERE);
            if table.update_extra_of(link, |counts| counts.wrapping_add(1)).is_some() {
                table.rekey(link);
            } else {
                recording.add(Loss::Details, 1);
            }
            Some(())
        });
    }
    result
}

/// The memory of a handle that was released while it is mapped. It can be mapped again, and retained.
fn released_but_mapped(table: &TableIn, handle: u64) -> Option<Link> {
    let key = key(Space::Physical, handle);
    Some(table.scan(|other| other == key).last()?.1)
}

/// Drops a reference. The last one frees the memory unless a mapping exists.
pub fn releases_physical(_: Api, real: impl FnOnce() -> i32, handle: u64) -> i32 {
    let key = key(Space::Physical, handle);
    // Before the call, since the handle may name other memory after it.
    let known = with_table(|_, table| {
        let link = table.link(key)?;
        let counts = table.update_extra_of(link, |counts| {
            pack(halves(counts).0.saturating_sub(1), halves(counts).1)
        })?;
        let held = match halves(counts) {
            (0, 0) => recorder::withdraw_linked(link),
            (0, _) => {
                table.unkey(key);
                Held::NOTHING
            }
            _ => Held::NOTHING,
        };
        Some((link, halves(counts), held))
    });
    let result = real();
    if result != 0 && result != TEARDOWN {
        recorder::quietly(|| recorder::running().map(|recording| recording.add(Loss::FailedReleases, 1)));
    }
    let Some((link, counts, held)) = known else {
        Held::NOTHING.settle(result, handle);
        return result;
    };
    let freed = held.is_something();
    if freed {
        held.settle(result, handle);
    }
    if result != 0 && result != TEARDOWN {
        with_table(|recording, table| {
            table.update_extra_of(link, |counts| counts.wrapping_add(1));
            if counts.0 == 0 && !freed {
                table.rekey(link);
            }
            if !freed {
                recording.add(Loss::FailedFrees, 1);
            }
            Some(())
        });
    }
    result
}

pub fn maps(api: Api, real: impl FnOnce() -> i32, address: u64, bytes: impl Word, handle: u64) -> i32 {
    let result = real();
    if result != 0 {
        return result;
    }
    let memory = recorder::quietly(|| {
        let recording = recorder::recording()?;
        let table = recording.table(recorder::thread_row(recording));
        let key = key(Space::Physical, handle);
        // A handle that was released while it is mapped can be mapped again.
        let link = table
            .link(key)
            .or_else(|| Some(table.scan(|other| other == key).last()?.1))?;
        table.update_extra_of(link, |counts| pack(halves(counts).0, halves(counts).1.wrapping_add(1)))?;
        // Mapping needs no context, and the calling thread's context may be on another device than the memory.
        let device = table
            .get_linked(link)
            .map_or(Device::Current, |memory| Device::Row(memory.attributes.device));
        Some((link, device))
    })
    .flatten();
    let (link, device) = memory.unwrap_or((Link::NOWHERE, Device::Current));
    // The `pool` word of a mapping holds the link to its memory; without HAS_POOL it is not reported as a pool.
    let event = AllocationEvent {
        space: Space::Mapping,
        requested: bytes.word(),
        pool: link.to_word(),
        device,
        ..AllocationEvent::new(api, Kind::Mapping, 0)
    };
    recorder::allocated(address, &event);
    result
}

/// Unmaps any number of whole mappings, with gaps between them; the last mapping of a released handle frees the memory.
pub fn unmaps(_: Api, real: impl FnOnce() -> i32, address: u64, bytes: impl Word) -> i32 {
    let before = recorder::running().map_or(0, |recording| recording.now());
    let result = real();
    if result != 0 {
        return result;
    }
    recorder::quietly(|| {
        let recording = recorder::running()?;
        let shard = recorder::thread_row(recording);
        let table = recording.table(shard);
        let end = address.saturating_add(bytes.word());
        recorder::note_end(recording);
        let mut at = address;
        let mut found = false;
        while at < end {
            let mut key = key(Space::Mapping, at);
            let is_older = |mapping: &Entry| mapping.time_ns <= before;
            let mapping = table.get(key).filter(is_older).or_else(|| {
                // The next one after a gap.
                let later = |other: Key| other.space == Space::Mapping && (at..end).contains(&other.address);
                let next = table
                    .scan(later)
                    .filter_map(|(key, _)| Some((key, table.get(key).filter(is_older)?)));
                let (next, mapping) = next.min_by_key(|(key, _)| key.address)?;
                key = next;
                Some(mapping)
            });
            let Some(mapping) = mapping else { break };
            found = true;
            if let Some(withdrawn) = recording.withdraw_out_of_line(key, shard) {
                recording.commit(withdrawn, shard);
            }
            let link = Link::from_word(mapping.pool);
            let counts = table.update_extra_of(link, |counts| {
                pack(halves(counts).0, halves(counts).1.saturating_sub(1))
            });
            if counts == Some(pack(0, 0))
                && let Some(withdrawn) = recording.withdraw_linked(link, shard)
            {
                recording.commit(withdrawn, shard);
            }
            at = key.address.saturating_add(mapping.requested.max(1));
        }
        recording.add(Loss::UnknownFrees, u64::from(!found));
        Some(())
    });
    result
}
