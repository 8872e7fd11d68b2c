//! Graphs with memory nodes: a node is recorded when it is added or captured, and its memory counts from the launch on.

pub(super) mod nodes;

use super::objects::{created, destroys_object, instantiated};
use super::{Location, NullStream, PerThread, Word, read};
use crate::recorder::{self, AllocationEvent};
use culeak::cuda_functions::Api;
use culeak::kind::Kind;

/// # Safety
/// `params` is the call's own.
pub unsafe fn adds_alloc_node<P>(api: Api, real: impl FnOnce() -> i32, graph: impl Word, params: *mut P) -> i32 {
    let result = real();
    if result == 0 && !params.is_null() {
        // SAFETY: CUDA_MEM_ALLOC_NODE_PARAMS: location at 8, size at byte 104, address (written by the call) at 112.
        let (location, bytes, address) = unsafe {
            let words = params.cast::<u64>();
            (
                Location::read(result, params.cast_const(), 2),
                words.add(13).read(),
                words.add(14).read(),
            )
        };
        let event = AllocationEvent {
            device: location.device(),
            ..AllocationEvent::new(api, Kind::Graph, bytes)
        };
        nodes::allocation_added(graph.word(), address, &event);
    }
    result
}

pub fn adds_free_node(_: Api, real: impl FnOnce() -> i32, graph: impl Word, address: u64) -> i32 {
    let result = real();
    if result == 0 {
        nodes::free_added(graph.word(), address);
    }
    result
}

/// # Safety
/// `params` is the call's own.
pub unsafe fn adds_node<P>(api: Api, real: impl FnOnce() -> i32, graph: impl Word, params: *mut P) -> i32 {
    const CHILD: i32 = 4;
    const ALLOCATION: i32 = 10;
    const FREE: i32 = 11;
    let result = real();
    if result != 0 || params.is_null() {
        return result;
    }
    let words = params.cast::<u64>();
    // SAFETY: CUgraphNodeParams: type at 0, then at 16 a union: allocation {…, size at 120, address at 128},
    // free {address at 16}, child {graph at 16, ownership at 24}.
    unsafe {
        match params.cast::<i32>().read() {
            ALLOCATION => {
                let location = Location::read(result, params.cast_const(), 6);
                let event = AllocationEvent {
                    device: location.device(),
                    ..AllocationEvent::new(api, Kind::Graph, words.add(15).read())
                };
                nodes::allocation_added(graph.word(), words.add(16).read(), &event);
            }
            FREE => nodes::free_added(graph.word(), words.add(2).read()),
            CHILD if words.add(3).cast::<i32>().read() == 1 => {
                nodes::child_moved(graph.word(), words.add(2).read());
            }
            _ => {}
        }
    }
    result
}

/// Clones the child. A graph with memory nodes cannot be cloned, so nothing is recorded.
pub fn adds_child(_: Api, real: impl FnOnce() -> i32, _graph: impl Word, _child: impl Word) -> i32 {
    real()
}

/// # Safety
/// As `allocates`.
pub unsafe fn instantiates<T: Word>(api: Api, real: impl FnOnce() -> i32, out: *mut T, graph: impl Word) -> i32 {
    let result = real();
    if result == 0 && nodes::exist() {
        // SAFETY: read only after success.
        nodes::instantiated(unsafe { read(out) }, graph.word());
    }
    // SAFETY: the same condition.
    unsafe { instantiated(api, result, out, graph.word()) };
    result
}

pub fn launches(_: Api, real: impl FnOnce() -> i32, exec: impl Word, _stream: impl Word, _null: NullStream) -> i32 {
    if !nodes::exist() {
        return real();
    }
    let before = recorder::running().map_or(0, |recording| recording.now());
    let result = real();
    if result == 0 {
        nodes::launched(exec.word(), before);
    }
    result
}

pub fn destroys_exec(_: Api, real: impl FnOnce() -> i32, exec: impl Word) -> i32 {
    let result = destroys_object(Kind::GraphExec, exec.word(), real);
    if result == 0 {
        nodes::exec_destroyed(exec.word());
    }
    result
}

pub fn destroys_graph(_: Api, real: impl FnOnce() -> i32, graph: impl Word) -> i32 {
    let result = destroys_object(Kind::GraphObject, graph.word(), real);
    if result == 0 {
        nodes::graph_destroyed(graph.word());
    }
    result
}

/// The new graph may have the handle of one that an invalidated capture left, which the driver has destroyed without a call.
pub fn begins_capture(api: Api, real: impl FnOnce() -> i32, stream: impl Word, null: NullStream) -> i32 {
    let result = begins_capture_to_graph(api, real);
    if result == 0
        && nodes::exist()
        && let Some(graph) = nodes::captured_into(stream.word(), null == PerThread)
    {
        nodes::graph_destroyed(graph);
    }
    result
}

pub fn begins_capture_to_graph(_: Api, real: impl FnOnce() -> i32) -> i32 {
    let result = real();
    if result == 0 {
        nodes::capture_began();
    }
    result
}

/// A failed call ends the capture if it was invalidated, and does nothing on a stream that is not being captured, so
/// the driver is asked before and after.
///
/// # Safety
/// As `allocates`.
pub unsafe fn ends_capture<T: Word>(
    api: Api,
    real: impl FnOnce() -> i32,
    stream: impl Word,
    out: *mut T,
    null: NullStream,
) -> i32 {
    let is_captured = || nodes::is_captured(stream.word(), null == PerThread);
    let before = is_captured();
    let result = real();
    if result == 0 || (before && !is_captured()) {
        nodes::capture_ended();
    }
    // SAFETY: the same condition.
    unsafe { created(api, result, Kind::GraphObject, out) };
    result
}
