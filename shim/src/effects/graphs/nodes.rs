//! The memory nodes of CUDA graphs: their memory is live from a launch on, not from the capture.
//!
//! ```text
//! capture / add node     graph ── nodes: (address, bytes, stack) …, freed addresses …
//! instantiate            graph ── exec
//! launch                 every address that the graph allocates and does not free is allocated,
//!                        every address that it frees and does not allocate is freed
//! ```
//!
//! A graph with memory nodes cannot be cloned, cannot have two executables at a time, and is moved when it becomes a
//! child graph, so one row per graph is enough. Such graphs are few and their calls rare: rows are searched one by one.
//! A lock protects them. A signal handler may have interrupted its owner, so a thread stops trying after [`ATTEMPTS`] and
//! counts a loss.
//!
//! A forked child inherits all of this, although CUDA does not work there: the lock of a thread of the parent does not
//! count in the child.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::recorder::{self, AllocationEvent, key};
use crate::resolve::driver;
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

/// One memory node. Plain words, so that zeroed memory is a row.
#[repr(C)]
struct Node {
    /// Next node of the graph, or next free one, + 1.
    next: AtomicU64,
    address: AtomicU64,
    bytes: AtomicU64,
    /// `Attributes` as a word; 0 for a free node.
    attributes: AtomicU64,
    /// Stack and thread.
    origin: AtomicU64,
    launched: AtomicU64,
}

// SAFETY: atomic words only.
unsafe impl Element for Graph {}
// SAFETY: atomic words only.
unsafe impl Element for Node {}

struct Graphs {
    /// The epoch of the process whose thread holds the lock; 0: free.
    locked: AtomicU32,
    graphs: SegmentedArray<Graph>,
    graph_count: AtomicU32,
    nodes: SegmentedArray<Node>,
    node_count: AtomicU32,
    free_node: AtomicU64,
    /// Graphs in use: while it is 0, a launch costs one load.
    live: AtomicU32,
    /// Captures that are running.
    captures: AtomicU32,
}

// SAFETY: all zeros is an empty array and a zero number.
static GRAPHS: Graphs = unsafe { std::mem::zeroed() };
const GRAPH_ROWS: Backing = Backing::Private(64, 4096);
const NODE_ROWS: Backing = Backing::Private(256, 1 << 14);

/// How often a thread tries to take the lock.
const ATTEMPTS: u32 = 20_000;

struct Lock;

impl Lock {
    fn take(recording: &Recording) -> Option<Lock> {
        let epoch = recorder::epoch();
        for _ in 0..ATTEMPTS {
            // Acquire: pairs with the Release in `drop`.
            match GRAPHS.locked.compare_exchange(0, epoch, Acquire, Relaxed) {
                Ok(_) => return Some(Lock),
                // A thread of the parent held it at the fork.
                Err(other) if other != epoch => {
                    let _ = GRAPHS.locked.compare_exchange(other, 0, Relaxed, Relaxed);
                }
                Err(_) => {}
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
        GRAPHS.locked.store(0, Release);
    }
}

pub fn capture_began() {
    GRAPHS.captures.fetch_add(1, Relaxed);
}

/// Whether some stream is being captured, on any thread.
pub fn is_capturing() -> bool {
    GRAPHS.captures.load(Relaxed) != 0
}

pub fn capture_ended() {
    let _ = GRAPHS
        .captures
        .fetch_update(Relaxed, Relaxed, |captures| captures.checked_sub(1));
}

/// The graph that `stream` is being captured into; asks the driver only while some capture is running.
pub fn captured_into(stream: u64, per_thread: bool) -> Option<u64> {
    // 1: CU_STREAM_CAPTURE_STATUS_ACTIVE.
    capture_of(stream, per_thread).and_then(|(status, graph)| (status == 1).then_some(graph))
}

/// Whether `stream` is being captured; an invalidated capture continues until it is ended.
pub fn is_captured(stream: u64, per_thread: bool) -> bool {
    capture_of(stream, per_thread).is_some_and(|(status, _)| status != 0)
}

/// Status and graph of a stream's capture.
fn capture_of(stream: u64, per_thread: bool) -> Option<(u32, u64)> {
    if GRAPHS.captures.load(Relaxed) == 0 {
        return None;
    }
    let get = if per_thread {
        driver::cuStreamGetCaptureInfo_v2_ptsz
    } else {
        driver::cuStreamGetCaptureInfo_v2
    };
    let (mut status, mut id, mut graph) = (0, 0, std::ptr::null_mut());
    let (stream, unwanted) = (stream as *mut _, std::ptr::null_mut());
    // SAFETY: valid out-parameters; null for those that are not wanted.
    let result = unsafe { get(stream, &mut status, &mut id, &mut graph, unwanted, std::ptr::null_mut()) };
    (result == 0).then_some((status, graph as u64))
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

fn add(recording: &Recording, graph: u64, address: u64, bytes: u64, attributes: u64, origin: u64) {
    let Some(_lock) = Lock::take(recording) else { return };
    let added = row_of(graph).and_then(|row| {
        let (link, new) = new_node()?;
        new.address.store(address, Relaxed);
        new.bytes.store(bytes, Relaxed);
        new.attributes.store(attributes, Relaxed);
        new.origin.store(origin, Relaxed);
        new.launched.store(0, Relaxed);
        new.next.store(row.first.load(Relaxed), Relaxed);
        row.first.store(link, Relaxed);
        Some(())
    });
    if added.is_none() {
        recording.add(Loss::Details, 1);
    }
}

/// An allocation node was captured or added. It counts 0 bytes until the graph is launched.
pub fn allocation_added(graph: u64, address: u64, event: &AllocationEvent) {
    recorder::mark_recorded();
    recorder::quietly(|| {
        let Some(recording) = recorder::recording() else { return };
        let entry = recorder::node_entry(recording, event);
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

/// A free node was captured or added.
pub fn free_added(graph: u64, address: u64) {
    recorder::mark_recorded();
    recorder::quietly(|| {
        let Some(recording) = recorder::recording() else { return };
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

/// Frees a row and its nodes if neither the graph nor its executable exists.
fn release(row: &Graph) {
    if row.graph.load(Relaxed) != 0 || row.exec.load(Relaxed) != 0 {
        return;
    }
    let mut link = row.first.swap(0, Relaxed);
    while let Some(freed) = node(link) {
        let next = freed.next.swap(GRAPHS.free_node.load(Relaxed), Relaxed);
        GRAPHS.free_node.store(link, Relaxed);
        link = next;
    }
    row.used.store(0, Relaxed);
    GRAPHS.live.fetch_sub(1, Relaxed);
}

/// Whether any graph with memory nodes exists: only then a launch may allocate or free.
pub fn exist() -> bool {
    GRAPHS.live.load(Relaxed) != 0
}

/// An executable graph was launched; `before` is the time before the call.
pub fn launched(exec: u64, before: u64) {
    recorder::quietly(|| {
        let Some(recording) = recorder::running() else { return };
        let Some(_lock) = Lock::take(recording) else { return };
        let shard = recorder::thread_row(recording);
        for row in rows().filter(|row| row.exec.load(Relaxed) == exec) {
            let has_node = |address: u64, freed: bool| {
                nodes(row)
                    .any(|node| node.address.load(Relaxed) == address && (node.attributes.load(Relaxed) == 0) == freed)
            };
            for node in nodes(row) {
                let address = node.address.load(Relaxed);
                let key = key(Space::Pointer, address);
                if node.attributes.load(Relaxed) == 0 {
                    if !has_node(address, false) {
                        free_if_older(recording, key, shard, before);
                    }
                    continue;
                }
                if node.launched.swap(1, Relaxed) == 0 {
                    recording.add(Loss::LaunchedNodes, 1);
                }
                if !has_node(address, true) {
                    // Relaunched with auto-free: the driver freed the memory of the last launch first.
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
    recorder::note_end(recording);
    let older = recording
        .table(shard)
        .get(key)
        .is_some_and(|entry| entry.time_ns <= before);
    if older && let Some(withdrawn) = recording.withdraw_out_of_line(key, shard) {
        recording.commit(withdrawn, shard);
    }
    older
}

fn allocate(recording: &Recording, key: Key, node: &Node) {
    let AttributeParts {
        device, api, context, ..
    } = Attributes::parts(node.attributes.load(Relaxed));
    let (stack, thread) = halves(node.origin.load(Relaxed));
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
            raised: 0,
        },
    };
    if !recording.allocated(key, &entry) {
        crate::messages::loss(recording);
    }
}
