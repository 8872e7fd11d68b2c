//! The CPython interpreter of this process, if there is one that [`examine`] accepts, and the calling thread's state in it.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};

use crate::examine::{self, Rejection, Why};
use crate::layout::Layout;

/// An interpreter whose structures are known.
pub struct Interpreter {
    pub layout: Layout,
    pub code_type: u64,
    pub frame_type: u64,
    pub string_type: u64,
    pub bytes_type: u64,
    /// A thread state was found to have the thread's own id where the layout has it.
    pub is_thread_layout_confirmed: AtomicBool,
    pub mismatches: AtomicU32,
    pub this_thread: Getter,
    pub current_thread: Getter,
    pub eval: Range<u64>,
    /// The address of an `int` that is not 0 from the end of the script on; 0: unknown.
    pub script_ended: u64,
    pub version: u32,
}

/// A function of the interpreter that takes no argument, changes nothing and takes no lock.
pub type Getter = unsafe extern "C" fn() -> u64;

/// Whether the process has an interpreter whose frames can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// No interpreter has been found so far.
    Absent,
    /// Its frames can be read. `0x030c01f0` is 3.12.1.
    Ready { version: u32 },
    /// Its frames are not read. Version 0: unknown.
    Unsupported { version: u32, why: &'static str },
}

#[unsafe(link_section = ".data.culeak_events")]
static STATE: AtomicU8 = AtomicU8::new(ABSENT);
const ABSENT: u8 = 0;
const BUSY: u8 = 1;
const READY: u8 = 2;
const UNSUPPORTED: u8 = 3;

/// Written by the thread that changed `STATE` from absent to busy, read when it is ready.
struct Slot(UnsafeCell<MaybeUninit<Interpreter>>);
// SAFETY: written once, before the Release of `STATE` that lets others read it; fields that change later are atomic.
unsafe impl Sync for Slot {}
static SLOT: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));

/// The address of `Py_IsFinalizing`, also of an interpreter whose frames are not read; 0: not found.
#[unsafe(link_section = ".data.culeak_events")]
static IS_FINALIZING: AtomicU64 = AtomicU64::new(0);

/// As [`Interpreter::script_ended`].
#[unsafe(link_section = ".data.culeak_events")]
static SCRIPT_ENDED: AtomicU64 = AtomicU64::new(0);

static UNSUPPORTED_VERSION: AtomicU32 = AtomicU32::new(0);
static UNSUPPORTED_WHY: AtomicU8 = AtomicU8::new(0);

/// The interpreter, if there is one whose frames can be read.
#[inline(always)]
pub fn ready() -> Option<&'static Interpreter> {
    // Acquire: pairs with the Release in `prepare`, so the interpreter is written.
    if STATE.load(Acquire) != READY {
        return None;
    }
    // SAFETY: written before the state became ready, and never borrowed exclusively since.
    Some(unsafe { (*SLOT.0.get()).assume_init_ref() })
}

pub fn status() -> Status {
    match STATE.load(Acquire) {
        READY => ready().map_or(Status::Absent, |interpreter| Status::Ready {
            version: interpreter.version,
        }),
        UNSUPPORTED => Status::Unsupported {
            version: UNSUPPORTED_VERSION.load(Relaxed),
            why: examine::reason(UNSUPPORTED_WHY.load(Relaxed)),
        },
        _ => Status::Absent,
    }
}

/// Looks for an interpreter unless one was found. May wait for the loader's short list lock.
pub fn prepare() -> Status {
    if STATE.compare_exchange(ABSENT, BUSY, Acquire, Relaxed).is_err() {
        return status();
    }
    if let Some(address) = examine::finalizing_address() {
        IS_FINALIZING.store(address, Relaxed);
    }
    let after = match examine::find() {
        None => ABSENT,
        Some(Ok(interpreter)) => {
            SCRIPT_ENDED.store(interpreter.script_ended, Relaxed);
            // SAFETY: no other thread writes while the state is busy, or reads before it is ready.
            unsafe { (*SLOT.0.get()).write(interpreter) };
            READY
        }
        Some(Err(rejection)) => {
            reject(rejection);
            UNSUPPORTED
        }
    };
    STATE.store(after, Release);
    status()
}

fn reject((version, why): Rejection) {
    UNSUPPORTED_VERSION.store(version, Relaxed);
    UNSUPPORTED_WHY.store(why as u8, Relaxed);
}

/// An address in the code of the interpreter; `None` if there is none.
pub fn code_address() -> Option<u64> {
    let found = Some(IS_FINALIZING.load(Relaxed)).filter(|&address| address != 0);
    found.or_else(|| ready().map(|interpreter| interpreter.this_thread as usize as u64))
}

/// Whether an interpreter of this process has begun to finalize, or has been finalized. One load more than
/// `Py_IsFinalizing` takes; the caller keeps the interpreter loaded.
#[inline]
pub fn is_finalizing() -> bool {
    let address = IS_FINALIZING.load(Relaxed);
    if address == 0 {
        return false;
    }
    // SAFETY: `Py_IsFinalizing`, which takes no argument and reads a variable; its result is an int.
    unsafe { examine::as_getter(address)() as u32 != 0 }
}

/// Whether the interpreter has run its script and waits for other threads, calls its exit callbacks or finalizes. Other threads
/// may still run the script's code. Known in 3.8 and from 3.12 on.
#[inline]
pub fn has_script_ended() -> bool {
    let address = SCRIPT_ENDED.load(Relaxed);
    if address == 0 {
        return false;
    }
    // SAFETY: in a static object of libpython: in 3.8 the runtime, from 3.12 on the state of the main interpreter; the caller keeps
    // it loaded. A thread with the GIL writes it.
    unsafe { (*(address as usize as *const AtomicU32)).load(Relaxed) != 0 }
}

/// Whether there is an interpreter that shows the end of its script only when it finalizes, after the exit callbacks: 3.9 to 3.11.
#[inline]
pub fn hides_end() -> bool {
    STATE.load(Acquire) == READY && SCRIPT_ENDED.load(Relaxed) == 0
}

/// False if no script has ended and no interpreter finalizes. In 3.8 and from 3.12 on, loads answer that, without a call of the
/// interpreter: the script ends before it begins to finalize.
#[inline]
pub fn may_be_ending() -> bool {
    IS_FINALIZING.load(Relaxed) != 0 && (SCRIPT_ENDED.load(Relaxed) == 0 || has_script_ended())
}

/// In a forked child: a thread that was in `prepare` does not exist here.
pub fn forked() {
    let _ = STATE.compare_exchange(BUSY, ABSENT, Relaxed, Relaxed);
}

/// The code of the function that runs Python code: recognizes interpreter calls where there is no address for
/// [`Boundary`](crate::Seen::Boundary).
pub fn native_eval() -> Range<u64> {
    ready().map_or(0..0, |interpreter| interpreter.eval.clone())
}

impl Interpreter {
    /// The calling thread's state; 0: none.
    #[inline(always)]
    pub fn this_thread(&self) -> u64 {
        // SAFETY: `PyGILState_GetThisThreadState`, which reads a thread-specific value.
        unsafe { (self.this_thread)() }
    }

    /// Whether the calling thread, whose state is `thread`, holds the GIL. `PyGILState_Check` returns true for every thread
    /// once the process has made a sub-interpreter or finalized the interpreter, so it is not used.
    #[inline(always)]
    pub fn holds_lock(&self, thread: u64) -> bool {
        // SAFETY: `_PyThreadState_UncheckedGet`, which reads a variable.
        unsafe { (self.current_thread)() == thread }
    }

    /// Checks whether a thread state contains the id of the calling thread. A program may create a thread state on another
    /// thread, so the interpreter is rejected only after several mismatches.
    #[cold]
    pub fn confirm_thread_layout(&self, thread_id: u64) -> bool {
        const MISMATCHES_MAX: u32 = 32;
        // SAFETY: no preconditions.
        if thread_id == unsafe { libc::pthread_self() } as u64 {
            self.is_thread_layout_confirmed.store(true, Relaxed);
            return true;
        }
        if self.mismatches.fetch_add(1, Relaxed) == MISMATCHES_MAX {
            reject((self.version, Why::Threads));
            STATE.store(UNSUPPORTED, Release);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_python_has_no_interpreter() {
        assert_eq!(prepare(), Status::Absent);
        assert!(ready().is_none());
        assert_eq!(crate::walk(10, |_| panic!("a frame")), crate::End::Nothing);
    }
}
