//! The line of a gradient: the stack that ran the forward operator whose node runs now.
//!
//! Each node of PyTorch's graph has a number, which a counter of the thread that made it gives out, and the number of that thread:
//!
//! ```text
//! forward    node 41 is made (counter: 42)   its operator allocates ── note ─► [thread, 41] = stack
//! backward   node 41 runs on autograd's thread, and allocates ── of_gradient ─► [thread, 41]
//! ```
//!
//! The first stack of a number counts, so what the program allocates between two operators does not replace it. An operator that
//! allocates nothing, such as a view, is near the next stack of its thread, at most [`VIEWS`] nodes later. Numbers beyond the last [`SLOTS`] are
//! forgotten.
//!
//! PyTorch is asked through its exported functions. The two numbers are read where they are in a node since PyTorch 1.13, and in one that
//! counts its own references, since 2.13; a node that cannot be one ends this.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::*};

use crate::messages;
use crate::resolve::closing;
#[cfg(target_arch = "x86_64")]
use crate::stacks::backward;
use culeak::format::{NEAR, NONE};
use culeak::lockfree::index::mix;

/// More nodes than the graphs of most steps have.
const SLOTS: usize = 1 << 16;

/// Views that are made one after the other: of the parts of a projection, for each of them and for each head of attention.
const VIEWS: u64 = 16;

/// A stack's number + 1, and the key mixed with it: a torn entry has no key. Zeroed memory, so that unused ones take none.
static NOTED: [(AtomicU64, AtomicU64); SLOTS] = [const { (AtomicU64::new(0), AtomicU64::new(0)) }; SLOTS];

/// Functions of libtorch_cpu, all or none; 0: none.
#[unsafe(link_section = ".data.culeak_events")]
static PEEK: AtomicUsize = AtomicUsize::new(0);
static THREAD_ID: AtomicUsize = AtomicUsize::new(0);
static NODE: AtomicUsize = AtomicUsize::new(0);
/// Nodes have another layout.
static IS_OFF: AtomicBool = AtomicBool::new(false);
/// Changes in a forked child, whose stacks are its own.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// Looks for PyTorch's functions, and says so if its engine is none of those that are known. `search` returns a function's address.
pub fn prepare(search: impl Fn(&CStr) -> Option<usize>) {
    if PEEK.load(Relaxed) != 0 || IS_OFF.load(Relaxed) {
        return;
    }
    let found = (
        search(c"_ZN2at14RecordFunction15currentThreadIdEv"),
        search(c"_ZN5torch8autograd16get_current_nodeEv"),
        search(c"_ZN2at15sequence_number4peekEv"),
    );
    if let (Some(thread_id), Some(node), Some(peek)) = found {
        THREAD_ID.store(thread_id, Relaxed);
        NODE.store(node, Relaxed);
        // Release: pairs with `note`.
        PEEK.store(peek, Release);
        #[cfg(target_arch = "x86_64")]
        if !backward::NAMES.iter().any(|name| search(name).is_some()) {
            backward::refuse();
        }
    }
}

fn slot(thread: u64, number: u64) -> (&'static (AtomicU64, AtomicU64), u64) {
    let key = mix(mix(thread.wrapping_add(EPOCH.load(Relaxed) << 32)).wrapping_add(number));
    // The numbers of a thread are neighbours, which share cache lines.
    let at = number.wrapping_add(thread.wrapping_mul(4099)) as usize % SLOTS;
    (&NOTED[at], key)
}

fn noted((check, value): &(AtomicU64, AtomicU64), key: u64) -> Option<u32> {
    let value = value.load(Relaxed);
    (value != 0 && check.load(Relaxed) ^ value == key).then(|| value as u32 - 1)
}

/// The calling thread, which runs PyTorch's code, allocates on this stack.
#[inline]
#[unsafe(link_section = ".text.culeak_events")]
pub fn note(stack: u32) {
    // Acquire: pairs with `prepare`.
    let peek = PEEK.load(Acquire);
    if peek == 0 || stack == NONE || closing::is_running() {
        return;
    }
    // SAFETY: functions without arguments that read a variable of the thread; `unloaded` forgets them.
    let (next, thread) = unsafe {
        type Read = unsafe extern "C" fn() -> u64;
        let of = |function: usize| std::mem::transmute::<usize, Read>(function)();
        (of(peek), of(THREAD_ID.load(Relaxed)))
    };
    if next == 0 {
        return;
    }
    let (entry, key) = slot(thread, next - 1);
    if noted(entry, key).is_none() {
        let value = u64::from(stack) + 1;
        entry.1.store(value, Relaxed);
        entry.0.store(value ^ key, Relaxed);
    }
}

/// The stack of the forward operator of the node that the calling thread runs, or one near it, as the address of a row; 0 if it is not
/// known.
pub fn of_gradient() -> u64 {
    // Acquire: pairs with `prepare`.
    if PEEK.load(Acquire) == 0 || IS_OFF.load(Relaxed) || closing::is_running() {
        return 0;
    }
    type Node = unsafe extern "C" fn(*mut [u64; 2]) -> u64;
    let mut shared = [0u64; 2];
    // SAFETY: `get_current_node`, whose result C++ returns in memory: a shared pointer, which is two words.
    unsafe { std::mem::transmute::<usize, Node>(NODE.load(Relaxed))(&raw mut shared) };
    let [node, count] = shared;
    if node == 0 {
        return 0;
    }
    // SAFETY: the thread runs the node, so it exists; a node has a mutex and more behind these words.
    let words = unsafe { (node as *const [u64; 7]).read() };
    let [number, _, has_parent, thread] = match (count, words) {
        (0, [_, _, of_node @ .., _]) | (_, [_, _, _, of_node @ ..]) => of_node,
    };
    // Of a shared pointer `_Sp_counted_base` has the count behind the vtable, of an intrusive one, which is one word, the node does.
    let counted = if count == 0 { node } else { count };
    // SAFETY: as above.
    let uses = unsafe { &*((counted + 8) as *const AtomicI32) };
    // Leaves, which no operator made, have the last number.
    let is_number = number < 1 << 48 || number == u64::MAX;
    // At least the engine's reference and this copy. What cannot be their count is not written to, so the copy stays.
    if uses.load(Relaxed) < 2 || !is_number || has_parent as u8 > 1 || !(1..1 << 32).contains(&thread) {
        if !IS_OFF.swap(true, Relaxed) {
            messages::no_forward();
        }
        return 0;
    }
    // The copy of the pointer goes, and the engine's stay.
    uses.fetch_sub(1, Release);
    let found = (0..=VIEWS).find_map(|views| {
        let (entry, key) = slot(thread, number.checked_add(views)?);
        let address = u64::from(noted(entry, key)?) + 1;
        Some(if views == 0 { address } else { address | NEAR })
    });
    found.unwrap_or(0)
}

/// Something was unloaded, which may be PyTorch.
pub fn unloaded() {
    PEEK.store(0, Relaxed);
}

pub fn forked() {
    EPOCH.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_slot_has_no_stack_whatever_the_key() {
        for key in [0, 1, u64::MAX] {
            assert_eq!(noted(&(AtomicU64::new(0), AtomicU64::new(0)), key), None);
        }
        assert_eq!(noted(&(AtomicU64::new(42 ^ 8), AtomicU64::new(8)), 42), Some(7));
    }
}
