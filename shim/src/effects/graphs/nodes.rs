//! The memory nodes of CUDA graphs: their memory is live from a launch on, not from the capture.
//!
//! ```text
//! capture / add node     graph ── nodes: (address, bytes, stack) …, freed addresses …
//! instantiate            graph ── exec
//! launch                 every address that the graph allocates and does not free is allocated,
//!                        every address that it frees and does not allocate is freed
//! ```
//!
//! A free node whose allocation is in the same graph removes that allocation's node when it is added, and has none itself:
//! a launch visits only the nodes that change what is live.
//!
//! Nodes that are added after a graph was instantiated are not in its executable.
//!
//! A graph with memory nodes cannot be cloned, cannot have two executables at a time, and is moved when it becomes a
//! child graph, so one row per graph is enough. Such graphs are few and their calls rare: rows are searched one by one.
//! A lock protects them. Its owner cannot be interrupted by a signal handler or cancelled; if it is stuck all the same, a
//! thread stops waiting after [`TIMEOUT_MS`] and counts a loss.
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
use culeak::system::{BlockedSignals, Pauses, Uncancelled, monotonic_ns};

/// One graph that has memory nodes.
#[repr(C)]
struct Graph {
    /// 0: the row is free.
    used: AtomicU64,
    graph: AtomicU64,
    exec: AtomicU64,
    /// Allocations that the graph frees again and that have not been launched.
    freed_again: AtomicU64,
    /// First nodes + 1, by address.
    first: [AtomicU64; LISTS],
}

/// Lists of nodes in a row, so that few nodes are searched for the allocation of a free node.
const LISTS: usize = 16;

impl Graph {
    fn list(&self, address: u64) -> &AtomicU64 {
        // Addresses are multiples of powers of two, so the number of the list is of the product's upper bits.
        let spread = address.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.first[spread as usize % LISTS]
    }
}

/// One memory node without a counterpart in its graph. Plain words, so that zeroed memory is a row.
#[repr(C)]
struct Node {
    /// Next node of the list, or next free one, + 1.
    next: AtomicU64,
    address: AtomicU64,
    bytes: AtomicU64,
    /// `Attributes` as a word; 0 for a free node.
    attributes: AtomicU64,
    /// Stack and thread.
    origin: AtomicU64,
    launched: AtomicU64,
    /// [`Node::IN_GRAPH`] and [`Node::IN_EXEC`].
    in_which: AtomicU64,
}

impl Node {
    const IN_GRAPH: u64 = 1;
    const IN_EXEC: u64 = 2;

    fn is_in(&self, which: u64) -> bool {
        self.in_which.load(Relaxed) & which != 0
    }
}

// SAFETY: atomic words only.
unsafe impl Element for Graph {}
// SAFETY: atomic words only.
unsafe impl Element for Node {}

struct Graphs {
    /// When the lock was taken, in milliseconds, and the epoch of the process whose thread took it; 0: free.
    locked: AtomicU64,
    graphs: SegmentedArray<Graph>,
    graph_count: AtomicU32,
    nodes: SegmentedArray<Node>,
    node_count: AtomicU32,
    free_node: AtomicU64,
    /// Graphs in use: while it is 0, a launch costs one load.
    live: AtomicU32,
    /// Captures that are running.
    captures: AtomicU32,
    /// All that began.
    begun: AtomicU32,
}

// SAFETY: all zeros is an empty array and a zero number.
static GRAPHS: Graphs = unsafe { std::mem::zeroed() };
const GRAPH_ROWS: Backing = Backing::Private(64, 4096);
const NODE_ROWS: Backing = Backing::Private(256, 1 << 14);

/// How long a thread waits for the lock. It does not wait if the owner has had the lock for as long.
const TIMEOUT_MS: i32 = 2000;

/// The exclusive right to read and change the rows.
struct Lock {
    /// A signal handler of the owner could launch a graph and wait for the lock, or leave by a jump.
    _signals: BlockedSignals,
    _uncancelled: Uncancelled,
}

impl Lock {
    /// `None` after a timeout.
    fn take() -> Option<Lock> {
        let (epoch, began, mut pauses) = (recorder::epoch(), now_ms(), Pauses::default());
        loop {
            let (uncancelled, signals) = (Uncancelled::begin(), BlockedSignals::all());
            let held = GRAPHS.locked.load(Relaxed);
            let (now, (since, owner)) = (now_ms(), halves(held));
            // Signed: a time may be later than `now` by a millisecond.
            let is_long_ago = |time: u32| now.wrapping_sub(time) as i32 > TIMEOUT_MS;
            // Free, or held by a thread of the parent at the fork.
            if owner != epoch {
                // Acquire: pairs with the Release in `drop`.
                let taken = GRAPHS.locked.compare_exchange(held, pack(now, epoch), Acquire, Relaxed);
                if taken.is_ok() {
                    return Some(Lock {
                        _signals: signals,
                        _uncancelled: uncancelled,
                    });
                }
            } else if is_long_ago(since) {
                return None;
            }
            if is_long_ago(began) {
                return None;
            }
            drop((signals, uncancelled));
            pauses.pause();
        }
    }

    /// As `take`. A timeout counts as a lost allocation: what a launch allocates or frees is missing.
    fn take_or_lose(recording: &Recording) -> Option<Lock> {
        let lock = Lock::take();
        if lock.is_none() {
            recording.add(Loss::Allocations, 1);
        }
        lock
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        GRAPHS.locked.store(0, Release);
    }
}

fn now_ms() -> u32 {
    (monotonic_ns() / 1_000_000) as u32
}

pub fn capture_began() {
    GRAPHS.begun.fetch_add(1, Relaxed);
    GRAPHS.captures.fetch_add(1, Relaxed);
}

/// The number of the last capture that began, while one is running on any thread.
pub fn capture() -> Option<u64> {
    is_capturing().then(|| GRAPHS.begun.load(Relaxed).into())
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
    row.freed_again.store(0, Relaxed);
    row.first.iter().for_each(|first| first.store(0, Relaxed));
    row.used.store(1, Relaxed);
    GRAPHS.live.fetch_add(1, Relaxed);
    Some(row)
}

fn node(link: u64) -> Option<&'static Node> {
    GRAPHS.nodes.get(NODE_ROWS, u32::try_from(link.checked_sub(1)?).ok()?)
}

fn nodes(row: &Graph) -> impl Iterator<Item = &'static Node> {
    row.first
        .iter()
        .flat_map(|first| std::iter::successors(node(first.load(Relaxed)), |found| node(found.next.load(Relaxed))))
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
    let Some(_lock) = Lock::take_or_lose(recording) else {
        return;
    };
    if attributes == 0 && free_again(graph, address) {
        return;
    }
    // An address is allocated once in a graph, and freed once: this is the node that a recapture repeats.
    if is_known(graph, address) {
        if attributes != 0 {
            recording.add(Loss::LaunchedNodes, 1);
        }
        return;
    }
    if add_node(graph, address, bytes, attributes, origin).is_none() {
        recording.add(Loss::Allocations, 1);
        crate::messages::loss(recording);
    }
}

fn add_node(graph: u64, address: u64, bytes: u64, attributes: u64, origin: u64) -> Option<()> {
    let row = row_of(graph)?;
    let (link, new) = new_node()?;
    let list = row.list(address);
    new.address.store(address, Relaxed);
    new.bytes.store(bytes, Relaxed);
    new.attributes.store(attributes, Relaxed);
    new.origin.store(origin, Relaxed);
    new.launched.store(0, Relaxed);
    new.in_which.store(Node::IN_GRAPH, Relaxed);
    new.next.store(list.load(Relaxed), Relaxed);
    list.store(link, Relaxed);
    Some(())
}

/// Removes the node of the allocation that a new free node of the same graph frees; `false`: the graph, its child graphs
/// included, does not allocate it.
fn free_again(graph: u64, address: u64) -> bool {
    rows().filter(|row| row.graph.load(Relaxed) == graph).any(|row| {
        let mut link = row.list(address);
        while let Some(found) = node(link.load(Relaxed)) {
            let is_in_graph = found.is_in(Node::IN_GRAPH);
            if is_in_graph && found.address.load(Relaxed) == address && found.attributes.load(Relaxed) != 0 {
                if found.is_in(Node::IN_EXEC) {
                    found.in_which.store(Node::IN_EXEC, Relaxed);
                    return true;
                }
                if found.launched.load(Relaxed) == 0 {
                    row.freed_again.fetch_add(1, Relaxed);
                }
                give_back(link.swap(found.next.load(Relaxed), Relaxed), found);
                return true;
            }
            link = &found.next;
        }
        false
    })
}

/// Whether the graph itself, not only its executable, has a node of this address.
fn is_known(graph: u64, address: u64) -> bool {
    let of_graph = rows().filter(|row| row.graph.load(Relaxed) == graph);
    of_graph
        .flat_map(|row| {
            std::iter::successors(node(row.list(address).load(Relaxed)), |found| {
                node(found.next.load(Relaxed))
            })
        })
        .any(|found| found.is_in(Node::IN_GRAPH) && found.address.load(Relaxed) == address)
}

/// Puts a node into the list of free ones.
fn give_back(link: u64, freed: &Node) {
    freed.next.store(GRAPHS.free_node.load(Relaxed), Relaxed);
    GRAPHS.free_node.store(link, Relaxed);
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
        |row| {
            row.exec.store(exec, Relaxed);
            for node in nodes(row).filter(|node| node.is_in(Node::IN_GRAPH)) {
                node.in_which.store(Node::IN_GRAPH | Node::IN_EXEC, Relaxed);
            }
        },
    );
}

pub fn exec_destroyed(exec: u64) {
    with_rows(
        |row| row.exec.load(Relaxed) == exec,
        |row| {
            row.exec.store(0, Relaxed);
            for node in nodes(row) {
                node.in_which.fetch_and(!Node::IN_EXEC, Relaxed);
            }
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
        let Some(_lock) = Lock::take_or_lose(recording) else {
            return;
        };
        rows().filter(|row| wanted(row)).for_each(&then);
    });
}

/// Frees a row and its nodes if neither the graph nor its executable exists.
fn release(row: &Graph) {
    if row.graph.load(Relaxed) != 0 || row.exec.load(Relaxed) != 0 {
        return;
    }
    for first in &row.first {
        let mut link = first.swap(0, Relaxed);
        while let Some(freed) = node(link) {
            let next = freed.next.load(Relaxed);
            give_back(link, freed);
            link = next;
        }
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
        let Some(_lock) = Lock::take_or_lose(recording) else {
            return;
        };
        let shard = recorder::thread_row(recording);
        for row in rows().filter(|row| row.exec.load(Relaxed) == exec) {
            let freed_again = row.freed_again.swap(0, Relaxed);
            if freed_again != 0 {
                recording.add(Loss::LaunchedNodes, freed_again);
            }
            // First what it allocates, since it usually frees what that replaces: the peak includes both.
            let is_free = |node: &&Node| node.attributes.load(Relaxed) == 0;
            let in_exec = || nodes(row).filter(|node| node.is_in(Node::IN_EXEC));
            for node in in_exec().filter(|node| !is_free(node)) {
                let key = key(Space::Pointer, node.address.load(Relaxed));
                if node.launched.swap(1, Relaxed) == 0 {
                    recording.add(Loss::LaunchedNodes, 1);
                }
                // Relaunched with auto-free: the driver freed the memory of the last launch first.
                if free_if_older(recording, key, shard, before) {
                    recording.add(Loss::ImplicitFrees, 1);
                }
                allocate(recording, key, node);
            }
            for node in in_exec().filter(is_free) {
                free_if_older(
                    recording,
                    key(Space::Pointer, node.address.load(Relaxed)),
                    shard,
                    before,
                );
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Tests change the same rows and the same lock.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    #[test]
    fn a_lock_is_not_waited_for_if_its_owner_is_stuck_or_in_the_parent_process() {
        let _alone = ONE_AT_A_TIME.lock();
        let held = |since: u32, epoch: u32| GRAPHS.locked.store(pack(since, epoch), Relaxed);
        let epoch = recorder::epoch();
        held(now_ms().wrapping_sub(TIMEOUT_MS as u32 + 1000), epoch);
        assert!(Lock::take().is_none());
        held(now_ms(), epoch + 1);
        assert!(Lock::take().is_some());
        assert_eq!(GRAPHS.locked.load(Relaxed), 0);
    }

    #[test]
    fn a_launch_visits_only_the_nodes_without_a_counterpart() {
        let _alone = ONE_AT_A_TIME.lock();
        let row = || rows().find(|row| row.graph.load(Relaxed) == 7).unwrap();
        let address = |block: u64| 0x7000_0000 + (block << 9);
        (0..1000).for_each(|block| add_node(7, address(block), 512, 1, 0).unwrap());
        assert_eq!(nodes(row()).count(), 1000);
        let longest = row().first.iter().map(|first| length(first.load(Relaxed))).max();
        assert!(
            longest < Some(2 * 1000 / LISTS),
            "{longest:?} of 1,000 nodes are in one list"
        );

        assert!(
            (0..1000)
                .filter(|block| block % 10 != 0)
                .all(|block| free_again(7, address(block)))
        );
        assert!(!free_again(7, address(1)), "it is freed again already");
        assert!(!free_again(8, address(0)), "another graph allocates it");
        assert_eq!(nodes(row()).count(), 100);
        assert_eq!(row().freed_again.load(Relaxed), 900);

        // The memory of an address that was freed may be allocated again in the same graph.
        let rows_of_nodes = GRAPHS.node_count.load(Relaxed);
        add_node(7, address(1), 512, 1, 0).unwrap();
        assert_eq!(nodes(row()).count(), 101);
        assert_eq!(GRAPHS.node_count.load(Relaxed), rows_of_nodes, "rows are used again");
        row().graph.store(0, Relaxed);
        rows().for_each(release);
        assert_eq!(length(GRAPHS.free_node.load(Relaxed)), rows_of_nodes as usize);
    }

    fn length(link: u64) -> usize {
        std::iter::successors(node(link), |found| node(found.next.load(Relaxed))).count()
    }
}
