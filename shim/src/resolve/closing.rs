//! Whether a `dlclose` is running, and how many of them have unloaded something.
//!
//! While one is running, an address may belong to a library that is being unmapped, so no answer that is cached by
//! address is used. Calls are counted before the process uses CUDA too, so no system call is made here: a forked child forgets the
//! calls of its parent in a handler of `fork`. (Of a child that is made without the handlers, the recording notices it.)

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::process;
use culeak::format::{halves, pack};

/// Calls of `dlclose` that are running, in all threads, and how many have unloaded something, + 1 (high half): an event asks for both
/// at once.
#[unsafe(link_section = ".data.culeak_events")]
static STATE: AtomicU64 = AtomicU64::new(pack(0, 1));

culeak_walker::thread_variable! {
    /// Calls of `dlclose` that the calling thread is inside.
    // SAFETY: an integer.
    static RUNNING_HERE: unsafe Cell<u32> = "culeak_closing";
}

/// What answers that are cached by address depend on. It changes when a `dlclose` begins, ends or unloads something.
#[derive(Clone, Copy)]
pub struct Loaded(u64);

impl Loaded {
    #[inline(always)]
    pub fn now() -> Loaded {
        Loaded(STATE.load(Acquire))
    }

    /// Whether answers may be stored: nothing is being unloaded. The others have keys that are looked up only while something is.
    #[inline(always)]
    pub fn is_settled(self) -> bool {
        self.0 as u32 == 0
    }

    /// The same word as long as nothing is unloaded; never 0.
    #[inline(always)]
    pub fn word(self) -> u64 {
        self.0
    }

    /// A key for the answer about this place.
    #[inline(always)]
    pub fn key(self, name: u64, place: u64) -> u64 {
        // Mixed first, since a state and a name that differ in few bits each must not cancel out.
        let state = culeak_walker::mix_in(0, self.0);
        let key = culeak_walker::mix_in(culeak_walker::mix_in(state, name), place);
        (key ^ key >> 32).max(1)
    }
}

/// Changes when a `dlclose` unloads something: answers that were cached by address before are void.
#[inline(always)]
pub fn generation() -> u64 {
    STATE.load(Acquire) >> 32
}

/// A `dlclose` has unloaded something.
pub fn unloaded() {
    STATE.fetch_add(pack(0, 1), AcqRel);
}

pub fn began() {
    // AcqRel: pairs with the Acquire in `Loaded::now`: what starts after this sees it.
    STATE.fetch_add(1, AcqRel);
    process::forget_known();
    RUNNING_HERE.with(|here| here.set(here.get() + 1));
    culeak_walker::closing_began();
}

pub fn ended() {
    RUNNING_HERE.with(|here| here.set(here.get().saturating_sub(1)));
    // 0 if another thread of a forked child has forgotten this call with those of the parent.
    let was_counted = STATE.fetch_update(AcqRel, Relaxed, |state| (state as u32 != 0).then(|| state - 1));
    if was_counted.is_ok() {
        culeak_walker::closing_ended();
    }
}

/// In every forked child, whether there is a recording or not. Pages that need no change stay the parent's.
pub fn forget_parents_calls() {
    if is_running() {
        forked();
    }
}

/// In a forked child: the calls of the parent's other threads never end here.
pub fn forked() {
    let here = RUNNING_HERE.with(Cell::get);
    let _ = STATE.fetch_update(AcqRel, Relaxed, |state| Some(pack(here, halves(state).1)));
    culeak_walker::forked();
    for _ in 0..here {
        culeak_walker::closing_began();
    }
}

#[inline]
pub fn is_running() -> bool {
    !Loaded::now().is_settled()
}

/// Whether the calling thread is inside a `dlclose`, as in a signal handler or a destructor: an object may be unmapped
/// while the loader's list still has it, and the list's lock does not exclude the thread that holds it.
pub fn is_running_here() -> bool {
    RUNNING_HERE.with(|here| here.get() != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// What a forked child finds.
    fn in_a_child(finds: impl Fn() -> bool) -> bool {
        // SAFETY: the child changes atomics and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            forget_parents_calls();
            // SAFETY: no preconditions.
            unsafe { libc::_exit(i32::from(finds())) };
        }
        let mut status = 0;
        // SAFETY: writes one int.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "{status:#x}");
        libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn a_forked_child_inherits_only_the_calls_of_the_forking_thread() {
        let (inside, is_inside) = channel();
        let (leave, may_leave) = channel();
        let other = std::thread::spawn(move || {
            began();
            inside.send(()).unwrap();
            may_leave.recv().unwrap();
            ended();
        });
        is_inside.recv().unwrap();
        assert!(is_running());
        assert!(!in_a_child(is_running));
        began();
        assert!(in_a_child(is_running));
        let ends_both = || {
            ended();
            is_running()
        };
        assert!(!in_a_child(ends_both));
        ended();
        leave.send(()).unwrap();
        other.join().unwrap();
        assert!(!is_running());
    }
}
