//! Objects without an address: streams, events, modules, graphs and others, by their handles.
//!
//! They take 0 bytes here. What the driver allocates for them is in segments that objects share, and some of it stays when
//! they are destroyed.

use std::cell::Cell;

use super::graphs::nodes;
use super::{Word, read, with_table};
use crate::recorder::{self, AllocationEvent, Device, Held, key};
use crate::resolve::driver;
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::lockfree::table::{Attributes, Space};

/// CUDA_ERROR_OUT_OF_MEMORY. Other errors of these functions are answers: an image is for another device, for example.
const OUT_OF_MEMORY: i32 = 2;

/// An object of this kind.
#[inline(always)]
fn object(api: Api, kind: Kind) -> AllocationEvent {
    AllocationEvent::new(api, kind, 0).in_space(Space::of_object(kind))
}

/// # Safety
/// `out` is the call's own out-parameter.
#[inline(always)]
unsafe fn record_object<T: Word>(result: i32, out: *mut T, event: &AllocationEvent) -> i32 {
    match result {
        0 => {
            // SAFETY: read only after success.
            let handle = unsafe { read(out) };
            if handle != 0 {
                recorder::allocated(handle, event);
            }
        }
        OUT_OF_MEMORY => recorder::failed(result, event),
        _ => {}
    }
    result
}

/// # Safety
/// `out` is the call's own out-parameter (here and below).
pub unsafe fn creates<T: Word>(api: Api, real: impl FnOnce() -> i32, kind: Kind, out: *mut T) -> i32 {
    let result = real();
    if result == 0 && kind == Kind::GraphObject && nodes::exist() {
        // Its handle may be that of one which an invalidated capture left. SAFETY: read only after success.
        nodes::graph_destroyed(unsafe { read(out) });
    }
    // SAFETY: the same condition.
    unsafe { record_object(result, out, &object(api, kind)) }
}

/// # Safety
/// As `creates`.
pub unsafe fn creates_on<T: Word>(api: Api, real: impl FnOnce() -> i32, kind: Kind, out: *mut T, device: i32) -> i32 {
    let result = real();
    let event = AllocationEvent {
        device: Device::Ordinal(device),
        ..object(api, kind)
    };
    // SAFETY: the same condition.
    unsafe { record_object(result, out, &event) }
}

/// As [`creates`], unless the handle is that of an object which exists: a capture into a graph of the program returns it.
///
/// # Safety
/// As `creates`.
pub(super) unsafe fn created<T: Word>(api: Api, result: i32, kind: Kind, out: *mut T) {
    // SAFETY: read only after success.
    let handle = if result == 0 { unsafe { read(out) } } else { 0 };
    let is_known = || with_table(|_, table| table.link(key(Space::of_object(kind), handle))).is_some();
    if result != 0 || !is_known() {
        // SAFETY: the same condition.
        unsafe { record_object(result, out, &object(api, kind)) };
    }
}

/// An executable of this graph, with the number of its nodes. Those of child graphs are not counted. While a stream is being
/// captured, nothing is asked: some queries of the driver break a capture.
///
/// # Safety
/// As `creates`.
pub(super) unsafe fn instantiated<T: Word>(api: Api, result: i32, out: *mut T, graph: u64) {
    let mut event = object(api, Kind::GraphExec);
    let mut count = 0;
    if result == 0 && !nodes::is_capturing() {
        // SAFETY: the driver has just read this graph, on this thread; the out-parameter is valid.
        let asked = unsafe { driver::cuGraphGetNodes(graph as *mut _, std::ptr::null_mut(), &mut count) };
        if asked == 0 {
            (event.extra, event.flags) = (count as u64, Attributes::COUNTS);
        }
    }
    // SAFETY: the same condition.
    unsafe { record_object(result, out, &event) };
}

pub fn destroys(_: Api, real: impl FnOnce() -> i32, kind: Kind, handle: impl Word) -> i32 {
    destroys_object(kind, handle.word(), real)
}

/// An unknown handle is no loss: private tables of the driver create objects too.
pub(super) fn destroys_object(kind: Kind, handle: u64, real: impl FnOnce() -> i32) -> i32 {
    let held = recorder::withdraw(Space::of_object(kind), handle);
    let result = real();
    if held.is_something() {
        held.settle(result, handle);
    }
    result
}

/// The references of the program itself; those of graphs are not counted.
///
/// # Safety
/// As `creates`.
pub unsafe fn creates_user_object<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T, count: u32) -> i32 {
    let result = real();
    let event = AllocationEvent {
        extra: count.into(),
        flags: Attributes::COUNTS,
        ..object(api, Kind::UserObject)
    };
    // SAFETY: the same condition.
    unsafe { record_object(result, out, &event) }
}

pub fn retains_user_object(_: Api, real: impl FnOnce() -> i32, handle: impl Word, count: u32) -> i32 {
    let result = real();
    if result == 0 {
        change_references(Space::UserObject, handle.word(), |references| {
            references.saturating_add(count.into())
        });
    }
    result
}

pub fn releases_user_object(_: Api, real: impl FnOnce() -> i32, handle: impl Word, count: u32) -> i32 {
    give_up(Space::UserObject, handle.word(), count, real)
}

/// A graph retains the object. With CU_GRAPH_USER_OBJECT_MOVE the references are those that the program had.
pub fn gives_user_object(_: Api, real: impl FnOnce() -> i32, handle: impl Word, count: u32, flags: u32) -> i32 {
    const MOVE: u32 = 1;
    if flags & MOVE == 0 {
        return real();
    }
    give_up(Space::UserObject, handle.word(), count, real)
}

/// The program gives up references. With the last one, the object or the opened memory is no longer its own.
pub(super) fn give_up(space: Space, handle: u64, count: u32, real: impl FnOnce() -> i32) -> i32 {
    // The program may give up more than it has, which the driver refuses.
    let taken = Cell::new(0);
    let left = change_references(space, handle, |references| {
        taken.set(references.min(count.into()));
        references - taken.get()
    });
    let held = match left {
        Some(0) => recorder::withdraw(space, handle),
        _ => Held::NOTHING,
    };
    let result = real();
    if held.is_something() {
        held.settle(result, handle);
    }
    if result != 0 && left.is_some() {
        change_references(space, handle, |references| references.saturating_add(taken.get()));
    }
    result
}

fn change_references(space: Space, handle: u64, change: impl Fn(u64) -> u64) -> Option<u64> {
    recorder::mark_recorded();
    with_table(|_, table| table.update_extra(key(space, handle), &change))
}
