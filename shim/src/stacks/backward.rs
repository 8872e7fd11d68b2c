//! Where a backward pass was started: the stack that continues those of autograd's threads.
//!
//! PyTorch runs the nodes of a graph on one thread for each device. Such a thread's own stack ends in the engine. The thread that
//! called `backward()` is inside the engine until the last node has run, so its stack is taken once, when it enters:
//!
//! ```text
//! thread that calls backward()                      thread of a device
//! execute_with_graph_task(task) ── begin ─► slot
//! THPEngine_run_backward                     ▲      MmBackward0::apply
//! backward   _tensor.py:631                  │      Engine::thread_main      which task? ─► slot
//! train_step train.py:88                     └───── start_thread             the parent of the outermost frame
//! ```
//!
//! The engine's `get_current_graph_task_exec_info` returns the address of a member of the task that the calling thread works for.
//! Where the member lies is learned from the first task that is alone. A task whose nodes run on the thread that started it is
//! continued by what continued that thread when it did: nothing, or an outer backward pass.
//!
//! A task that was left by an exception keeps its slot until another task has its address, or all slots are in use. It does no
//! harm: a task is found by its exact address, and each one begins before its nodes run.
//!
//! Deliberately absent: passes of the distributed engine, which has no such thread.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence};

use crate::messages;
use crate::resolve::closing;
use culeak::format::{NONE, halves, pack};

/// `Engine::execute_with_graph_task`: up to PyTorch 2.12 a `shared_ptr` refers to a node, and from 2.13 on an `intrusive_ptr`; both are
/// passed by their address.
#[cfg(target_arch = "x86_64")]
pub const NAMES: [&CStr; 2] = [
    c"_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEES2_INS0_4NodeEEONS0_11InputBufferE",
    c"_ZN5torch8autograd6Engine23execute_with_graph_taskERKSt10shared_ptrINS0_9GraphTaskEEN3c1013intrusive_ptrINS0_4NodeENS7_6detail34intrusive_target_default_null_typeIS9_EEEEONS0_11InputBufferE",
];

/// More passes than this rarely run at the same time; of more, the oldest are not continued.
const SLOTS: usize = 32;
/// A task's member is within as many bytes: in PyTorch 2.11 it is at 288.
const TASK_BYTES: u64 = 1024;

struct Slot {
    /// Address of the task; 0: none.
    task: AtomicU64,
    /// The stack of the thread that started the task, and the stack that continues that thread's.
    stacks: AtomicU64,
    thread: AtomicU32,
}

static STARTED: [Slot; SLOTS] = [const {
    Slot {
        task: AtomicU64::new(0),
        stacks: AtomicU64::new(0),
        thread: AtomicU32::new(0),
    }
}; SLOTS];

/// Passes that have begun and not ended. An exception leaves it too high, which costs a call for each stack.
#[unsafe(link_section = ".data.culeak_events")]
static RUNNING: AtomicU32 = AtomicU32::new(0);
/// `get_current_graph_task_exec_info`; 0: not known yet; [`ABSENT`]: this PyTorch has none.
static EXEC_INFO: AtomicUsize = AtomicUsize::new(0);
const ABSENT: usize = 1;
/// Where it points in a task; 0: not known yet.
static OFFSET: AtomicU64 = AtomicU64::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Whether threads of the engine can be asked for their task. `search` looks for the function that is asked, once.
pub fn is_possible(search: impl FnOnce() -> Option<usize>) -> bool {
    if EXEC_INFO.load(Relaxed) == 0 {
        let found = search().unwrap_or(ABSENT);
        EXEC_INFO.store(found, Relaxed);
        if found == ABSENT {
            refuse();
        }
    }
    EXEC_INFO.load(Relaxed) > ABSENT
}

/// Passes of this PyTorch cannot be seen, which is said once.
pub fn refuse() {
    static IS_SAID: AtomicBool = AtomicBool::new(false);
    if !IS_SAID.swap(true, Relaxed) {
        messages::no_backward();
    }
}

/// The calling thread, whose row is `thread`, starts a task on this stack.
pub fn begin(task: u64, stack: u32, thread: u32) {
    let of_this = |slot: &&Slot| slot.task.load(Relaxed) == task;
    STARTED
        .iter()
        .filter(of_this)
        .for_each(|slot| slot.task.store(0, Relaxed));
    let below = continuing(thread).unwrap_or(NONE);
    let free = |slot: &&Slot| slot.task.compare_exchange(0, 1, Acquire, Relaxed).is_ok();
    let slot = STARTED.iter().find(free).unwrap_or_else(|| {
        let oldest = &STARTED[NEXT.fetch_add(1, Relaxed) % SLOTS];
        oldest.task.store(1, Relaxed);
        oldest
    });
    // Release: pairs with the fence in `find`, so that what follows is not seen under the task before.
    fence(Release);
    slot.stacks.store(pack(stack, below), Relaxed);
    slot.thread.store(thread, Relaxed);
    // Release: pairs with `find`.
    slot.task.store(task, Release);
    RUNNING.fetch_add(1, Relaxed);
}

/// All nodes of the task have run.
pub fn end(task: u64) {
    let own = |slot: &&Slot| slot.task.compare_exchange(task, 0, Relaxed, Relaxed).is_ok();
    STARTED.iter().find(own);
    let _ = RUNNING.fetch_update(Relaxed, Relaxed, |running| running.checked_sub(1));
}

/// Of the pass that the calling thread works for, whose row is `thread`: the stack that continues the thread's, or `NONE` if its
/// own is complete. `None`: no pass is known.
#[inline(always)]
pub fn continuing(thread: u32) -> Option<u32> {
    match RUNNING.load(Relaxed) {
        0 => None,
        _ => find(thread),
    }
}

#[inline(never)]
fn find(thread: u32) -> Option<u32> {
    let exec_info = EXEC_INFO.load(Relaxed);
    if exec_info <= ABSENT || closing::is_running() {
        return None;
    }
    // SAFETY: the engine's function, which reads a variable of the thread, and `unloaded` forgets it. On a thread that has never run
    // PyTorch's code the loader may allocate that variable, as it does for the driver's own in the same call.
    let member = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn() -> u64>(exec_info)() };
    if member == 0 {
        return None;
    }
    let task = member - offset_of(member)?;
    // Acquire: pairs with the Release in `begin`.
    let slot = STARTED.iter().find(|slot| slot.task.load(Acquire) == task)?;
    let (stacks, owner) = (slot.stacks.load(Relaxed), slot.thread.load(Relaxed));
    // Acquire: if another task has the slot meanwhile, its address is seen.
    fence(Acquire);
    let (stack, below) = halves(stacks);
    (slot.task.load(Relaxed) == task).then_some(if owner == thread { below } else { stack })
}

/// Where the member lies in its task: known, or learned if it can be in one task only.
fn offset_of(member: u64) -> Option<u64> {
    let known = OFFSET.load(Relaxed);
    if known != 0 {
        return Some(known);
    }
    let distance = |slot: &Slot| member.checked_sub(slot.task.load(Relaxed));
    let mut possible = STARTED.iter().filter_map(distance).filter(|&at| at < TASK_BYTES);
    let found = possible.next().filter(|at| *at > 0 && at % 8 == 0)?;
    if possible.next().is_some() {
        return None;
    }
    OFFSET.store(found, Relaxed);
    Some(found)
}

/// Something was unloaded, which may be PyTorch.
pub fn unloaded() {
    EXEC_INFO.store(0, Relaxed);
    OFFSET.store(0, Relaxed);
}

/// In a forked child, whose threads and stacks are its own.
pub fn forked() {
    STARTED.iter().for_each(|slot| slot.task.store(0, Relaxed));
    RUNNING.store(0, Relaxed);
}
