//! Memory of CUDA graphs: live from a launch, not from a capture.
//!
//! ```text
//! capture / add node     graph ── nodes: (address, bytes, stack) …, freed addresses …
//! instantiate            graph ── exec
//! launch                 every allocated address that the same graph does not free becomes live,
//!                        every freed address that it did not allocate stops being live
//! ```
//!
//! A graph with memory nodes cannot be cloned, cannot be instantiated twice at a time, and as a child is moved into its
//! parent, so one row per graph says it all. Such graphs are few, and their calls rare: rows are searched one by one,
//! under a lock that gives up (and counts a loss) rather than wait for a thread it may have interrupted.

use libc::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use crate::effects::context::ask;
use crate::recorder::{self, AllocationEvent};
use crate::resolve::real::{self, Query};
use culeak::format::{Loss, halves, pack};
use culeak::kind::Kind;
use culeak::lockfree::segmented::{Backing, Element, SegmentedArray};
use culeak::lockfree::table::{AttributeParts, Attributes, Entry, Key, Space};
use culeak::recording::Recording;

/// One graph that has memory nodes.
#[repr(C)]
struct Graph {
    /// 0: the row is free.
    used: AtomicU64,
    graph: AtomicU64,
    exec: AtomicU64,
    /// First node + 1.
    first: AtomicU64,
}

/// One memory node. Plain words, so that rows can lie in zeroed memory.
#[repr(C)]
struct Node {
    /// Next node of the graph, or next free one, + 1.
    next: AtomicU64,
    address: AtomicU64,
    bytes: AtomicU64,
    /// `Entry::what`; 0 for a free node.
    attributes: AtomicU64,
    /// Stack and thread.
    place: AtomicU64,
    launched: AtomicU64,
}

// SAFETY: atomic words only.
unsafe impl Element for Graph {}
// SAFETY: atomic words only.
unsafe impl Element for Node {}

struct Graphs {
    locked: AtomicBool,
    graphs: SegmentedArray<Graph>,
    graph_count: AtomicU32,
    nodes: SegmentedArray<Node>,
    node_count: AtomicU32,
    free_node: AtomicU64,
    /// Graphs in use: 0 lets every launch pass at the cost of one load.
    live: AtomicU32,
    /// Captures under way.
    captures: AtomicU32,
}

// SAFETY: all zeros is an empty array, a false flag, a zero number.
static GRAPHS: Graphs = unsafe { std::mem::zeroed() };
const GRAPH_ROWS: Backing = Backing::Private(64, 4096);
const NODE_ROWS: Backing = Backing::Private(256, 1 << 14);

struct Lock;

impl Lock {
    fn take(recording: &Recording) -> Option<Lock> {
        for _ in 0..20_000 {
            // Acquire: pairs with the Release in `drop`.
            if GRAPHS.locked.compare_exchange(false, true, Acquire, Relaxed).is_ok() {
                return Some(Lock);
            }
            // SAFETY: no preconditions.
            unsafe { libc::sched_yield() };
        }
        recording.add(Loss::Details, 1);
        None
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        GRAPHS.locked.store(false, Release);
    }
}

/// Forked: CUDA does not work here, and the thread that held the lock may not exist.
pub fn forget() {
    GRAPHS.locked.store(false, Release);
    GRAPHS.captures.store(0, Relaxed);
}

pub fn capture_began() {
    GRAPHS.captures.fetch_add(1, Relaxed);
}

pub fn capture_ended() {
    let _ = GRAPHS
        .captures
        .fetch_update(Relaxed, Relaxed, |captures| captures.checked_sub(1));
}

/// The graph that `stream` is being captured into; asks the driver only while some capture is under way.
pub fn captured_into(stream: u64, per_thread: bool) -> Option<u64> {
    // 1: CU_STREAM_CAPTURE_STATUS_ACTIVE.
    capture_of(stream, per_thread).and_then(|(status, graph)| (status == 1).then_some(graph))
}

/// Whether `stream` is being captured, also in vain: an invalidated capture goes on until it is ended.
pub fn is_captured(stream: u64, per_thread: bool) -> bool {
    capture_of(stream, per_thread).is_some_and(|(status, _)| status != 0)
}

/// Status and graph of a stream's capture.
fn capture_of(stream: u64, per_thread: bool) -> Option<(i32, u64)> {
    if GRAPHS.captures.load(Relaxed) == 0 {
        return None;
    }
    let query = if per_thread {
        Query::StreamGetCaptureInfoPerThread
    } else {
        Query::StreamGetCaptureInfo
    };
    let (mut status, mut id, mut graph) = (0i32, 0u64, 0u64);
    let asked = ask!(
        query,
        (u64, *mut i32, *mut u64, *mut u64, *mut c_void, *mut c_void),
        (
            stream,
            &mut status,
            &mut id,
            &mut graph,
            std::ptr::null_mut(),
            std::ptr::null_mut()
        )
    );
    (asked == 0).then_some((status, graph))
}

fn rows() -> impl Iterator<Item = &'static Graph> {
    (0..GRAPHS.graph_count.load(Relaxed))
        .filter_map(|row| GRAPHS.graphs.get(GRAPH_ROWS, row))
        .filter(|row| row.used.load(Relaxed) != 0)
}

/// The row of a graph; a new one if it has none.
fn row_of(graph: u64) -> Option<&'static Graph> {
    if let Some(row) = rows().find(|row| row.graph.load(Relaxed) == graph) {
        return Some(row);
    }
    let count = GRAPHS.graph_count.load(Relaxed);
    let free = (0..count)
        .filter_map(|row| GRAPHS.graphs.get(GRAPH_ROWS, row))
        .find(|row| row.used.load(Relaxed) == 0);
    let row = match free {
        Some(row) => row,
        None => {
            let row = GRAPHS.graphs.ensure(GRAPH_ROWS, count).ok()?;
            GRAPHS.graph_count.store(count + 1, Relaxed);
            row
        }
    };
    row.graph.store(graph, Relaxed);
    row.exec.store(0, Relaxed);
    row.first.store(0, Relaxed);
    row.used.store(1, Relaxed);
    GRAPHS.live.fetch_add(1, Relaxed);
    Some(row)
}

fn node(link: u64) -> Option<&'static Node> {
    GRAPHS.nodes.get(NODE_ROWS, u32::try_from(link.checked_sub(1)?).ok()?)
}

fn nodes(row: &Graph) -> impl Iterator<Item = &'static Node> + use<> {
    std::iter::successors(node(row.first.load(Relaxed)), |node_row| {
        node(node_row.next.load(Relaxed))
    })
}

fn new_node() -> Option<(u64, &'static Node)> {
    let free = GRAPHS.free_node.load(Relaxed);
    if let Some(found) = node(free) {
        GRAPHS.free_node.store(found.next.load(Relaxed), Relaxed);
        return Some((free, found));
    }
    let count = GRAPHS.node_count.load(Relaxed);
    let found = GRAPHS.nodes.ensure(NODE_ROWS, count).ok()?;
    GRAPHS.node_count.store(count + 1, Relaxed);
    Some((u64::from(count) + 1, found))
}

fn add(recording: &Recording, graph: u64, address: u64, bytes: u64, attributes: u64, place: u64) {
    let Some(_lock) = Lock::take(recording) else { return };
    let added = row_of(graph).and_then(|row| {
        let (link, new) = new_node()?;
        new.address.store(address, Relaxed);
        new.bytes.store(bytes, Relaxed);
        new.attributes.store(attributes, Relaxed);
        new.place.store(place, Relaxed);
        new.launched.store(0, Relaxed);
        new.next.store(row.first.load(Relaxed), Relaxed);
        row.first.store(link, Relaxed);
        Some(())
    });
    if added.is_none() {
        recording.add(Loss::Details, 1);
    }
}

/// A memory-allocation node was captured or added: 0 bytes until the graph is launched.
pub fn allocation_added(graph: u64, address: u64, event: &AllocationEvent) {
    recorder::mark_recorded();
    recorder::quietly(|| {
        let Some(recording) = recorder::begin() else { return };
        let entry = recorder::entry(recording, event);
        recording.add(Loss::CapturedNodes, 1);
        add(
            recording,
            graph,
            address,
            event.bytes,
            entry.attributes.to_word(),
            pack(entry.stack, entry.thread),
        );
    });
}

/// A memory-free node was captured or added.
pub fn free_added(graph: u64, address: u64) {
    recorder::mark_recorded();
    recorder::quietly(|| {
        let Some(recording) = recorder::begin() else { return };
        add(recording, graph, address, 0, 0, 0);
    });
}

/// A child graph was moved into its parent.
pub fn child_moved(parent: u64, child: u64) {
    with_rows(
        |row| row.graph.load(Relaxed) == child,
        |row| row.graph.store(parent, Relaxed),
    );
}

pub fn instantiated(exec: u64, graph: u64) {
    with_rows(
        |row| row.graph.load(Relaxed) == graph,
        |row| row.exec.store(exec, Relaxed),
    );
}

pub fn exec_destroyed(exec: u64) {
    with_rows(
        |row| row.exec.load(Relaxed) == exec,
        |row| {
            row.exec.store(0, Relaxed);
            release(row);
        },
    );
}

pub fn graph_destroyed(graph: u64) {
    with_rows(
        |row| row.graph.load(Relaxed) == graph,
        |row| {
            row.graph.store(0, Relaxed);
            release(row);
        },
    );
}

fn with_rows(wanted: impl Fn(&Graph) -> bool, then: impl Fn(&'static Graph)) {
    if GRAPHS.live.load(Relaxed) == 0 {
        return;
    }
    recorder::quietly(|| {
        let Some(recording) = recorder::running() else { return };
        let Some(_lock) = Lock::take(recording) else { return };
        rows().filter(|row| wanted(row)).for_each(&then);
    });
}

/// Gives a row and its nodes back once neither the graph nor its executable exists.
fn release(row: &Graph) {
    if row.graph.load(Relaxed) != 0 || row.exec.load(Relaxed) != 0 {
        return;
    }
    let mut link = row.first.swap(0, Relaxed);
    while let Some(gone) = node(link) {
        let next = gone.next.swap(GRAPHS.free_node.load(Relaxed), Relaxed);
        GRAPHS.free_node.store(link, Relaxed);
        link = next;
    }
    row.used.store(0, Relaxed);
    GRAPHS.live.fetch_sub(1, Relaxed);
}

/// Whether any graph with memory nodes exists, so that its launch must be looked at.
pub fn exist() -> bool {
    GRAPHS.live.load(Relaxed) != 0
}

/// An executable graph was launched; `before` is the time just before.
pub fn launched(exec: u64, before: u64) {
    recorder::quietly(|| {
        let Some(recording) = recorder::running() else { return };
        let Some(_lock) = Lock::take(recording) else { return };
        let shard = recorder::thread(recording);
        for row in rows().filter(|row| row.exec.load(Relaxed) == exec) {
            let is_here = |address: u64, freed: bool| {
                nodes(row)
                    .any(|node| node.address.load(Relaxed) == address && (node.attributes.load(Relaxed) == 0) == freed)
            };
            for node in nodes(row) {
                let address = node.address.load(Relaxed);
                let key = Key {
                    space: Space::Pointer,
                    address,
                };
                let what = node.attributes.load(Relaxed);
                if what == 0 {
                    if !is_here(address, false) {
                        free_if_older(recording, key, shard, before);
                    }
                    continue;
                }
                if node.launched.swap(1, Relaxed) == 0 {
                    recording.add(Loss::LaunchedNodes, 1);
                }
                if !is_here(address, true) {
                    // Relaunched with auto-free: the driver freed the last launch's memory first.
                    if free_if_older(recording, key, shard, before) {
                        recording.add(Loss::ImplicitFrees, 1);
                    }
                    allocate(recording, key, node);
                }
            }
        }
    });
}

fn free_if_older(recording: &Recording, key: Key, shard: u32, before: u64) -> bool {
    let older = recording
        .table(shard)
        .get(key)
        .is_some_and(|entry| entry.time_ns <= before);
    if older && let Some(withdrawn) = recording.withdraw(key, shard) {
        recording.commit(withdrawn, shard);
    }
    older
}

fn allocate(recording: &Recording, key: Key, node: &Node) {
    let AttributeParts {
        device, api, context, ..
    } = Attributes::parts(node.attributes.load(Relaxed));
    let (stack, thread) = halves(node.place.load(Relaxed));
    let bytes = node.bytes.load(Relaxed);
    let entry = Entry {
        bytes,
        requested: bytes,
        time_ns: recording.now(),
        extra: 0,
        pool: 0,
        stack,
        thread,
        attributes: Attributes {
            kind: Kind::Graph,
            space: Space::Pointer,
            flags: 0,
            device,
            api,
            context,
        },
    };
    if !recording.allocated(key, &entry) {
        crate::messages::say_loss(recording);
    }
}
