//! Waiting for `culeak run --why`, which copies this process's memory while it waits (`culeak::hold`).
//!
//! A process waits once at its end, and after each automatic snapshot of a request that failed for lack of memory. It is the
//! only place where this library waits for something outside the process, so it does so only if the user asked for it; the
//! wait ends after the limit, or when `culeak run` is gone. Other threads and signal handlers run on meanwhile, except that
//! `culeak run` stops them for the copy, and no lock of this library is held.
//!
//! The end of a script is the call of a function that is registered with the interpreter's `atexit` callbacks, so that it is called before the others
//! (`culeak_cpython::call_at_end`). It is registered at the first allocation that is recorded.
//! If it could not be registered, the next sign counts: the main thread calls `sigaction` while the interpreter finalizes, to
//! restore its handlers before it collects cycles and clears modules. That function is replaced by a second library (`shim/hold`),
//! which only `run --why` preloads and which calls `session::culeak_hold`. Without handlers, the first event after that counts.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};

use crate::recorder::proof;
use crate::{process, settings, stacks};
use culeak::hold::{Moment, Waiting};
use culeak::recording::Recording;
use culeak::system::monotonic_ns;
use culeak::variables;

/// This process has waited at its end.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);
/// The recording began in the script, so the script's end is in front of its exit callbacks. A program that begins in one of these
/// ends with them.
#[unsafe(link_section = ".data.culeak_events")]
static BEGAN_IN_SCRIPT: AtomicBool = AtomicBool::new(false);
/// The process that has the recording. A child of `vfork` shares this memory.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// A recording is being created. If the user wants it, any process of the same user may read this one: some kernels (Yama)
/// permit it to parents only, as `culeak run --why` is. This replaces a process that the program permitted before.
pub fn prepare() {
    PROCESS.store(pid(), Relaxed);
    HAS_ENDED.store(false, Relaxed);
    stacks::WATCHES_END.store(is_served() || stacks::hides_end(), Relaxed);
    BEGAN_IN_SCRIPT.store(!stacks::has_script_ended(), Relaxed);
    if settings::is_set(variables::WHY) {
        // SAFETY: takes a number; a kernel without Yama refuses it.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
}

fn pid() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() as u32 }
}

/// `pthread_self` of the main thread; 0: not known.
#[unsafe(link_section = ".data.culeak_events")]
static MAIN_THREAD: AtomicUsize = AtomicUsize::new(0);

/// This library was loaded, or the process is a forked child.
pub fn note_main_thread() {
    // SAFETY: no preconditions.
    let (is_main, own) = unsafe { (libc::gettid() == libc::getpid(), libc::pthread_self()) };
    if is_main {
        MAIN_THREAD.store(own as usize, Relaxed);
    }
}

/// Whether this is the thread that ends the interpreter.
fn is_main_thread() -> bool {
    // SAFETY: no preconditions.
    MAIN_THREAD.load(Relaxed) == unsafe { libc::pthread_self() } as usize
}

/// Whether the interpreter finalizes, or the script has ended: the main thread, which other threads may outlive, calls exit callbacks.
#[inline]
pub fn is_script_ending() -> bool {
    let has_ended = || stacks::has_script_ended() && BEGAN_IN_SCRIPT.load(Relaxed) && is_main_thread();
    stacks::may_be_ending() && (stacks::is_interpreter_finalizing() || has_ended())
}

/// Whether `culeak run --why` serves, and this is no child of `vfork`.
pub fn is_served() -> bool {
    proof::holds().is_some_and(|holds| holds.is_served()) && pid() == PROCESS.load(Relaxed)
}

/// The script, `main` or the process ends. Only the first call waits.
#[cold]
pub fn at_end(moment: Moment) {
    if is_served() && !HAS_ENDED.swap(true, Relaxed) {
        hold(moment, 0);
    }
}

/// Waits until the memory is copied.
#[cold]
pub fn hold(moment: Moment, number: u32) {
    let Some(holds) = proof::holds().filter(|_| is_served()) else {
        return;
    };
    let waiting = Waiting {
        pid: pid(),
        moment,
        number: number as u16,
    };
    holds.wait(waiting, monotonic_ns);
}

/// The interpreter finalizes.
#[cold]
pub fn end_script(recording: &Recording) {
    if !recording.has_ended() {
        recording.end_script();
        process::forget_known();
    }
    // Any other thread would wait while the interpreter goes on.
    if is_served() && is_main_thread() {
        at_end(Moment::End);
    }
}
