//! One recording per process: the first CUDA event starts it, a forked child gives the parent's up, and it ends with
//! the process.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*, fence};

use crate::process::{self, OWN, forget_known, own, reported};
use crate::recorder::thread::{self, quietly};
use crate::recorder::{auto_snapshot, create, current, hold, kernel_objects, proof, segment_state};
use crate::resolve::{closing, loader, search};
use crate::{messages, settings, stacks};
use culeak::format::{Loss, halves, pack};
use culeak::hold::Moment;
use culeak::recording::{DEVICES, Recording};
use culeak::system::{BlockedSignals, Pauses, Uncancelled, cold_path, monotonic_ns};

/// The recording that [`forget_parent`] gives up.
static RECORDING: AtomicPtr<Recording> = AtomicPtr::new(std::ptr::null_mut());
/// One of the three below. While a thread creates the recording: since when in milliseconds (low half), and in which
/// process (high half, never 0).
static STATE: AtomicU64 = AtomicU64::new(NOT_STARTED);
const NOT_STARTED: u64 = 0;
const RUNNING: u64 = 2;
const OFF: u64 = 3;
/// How long threads wait for the recording that another one is creating.
const TIMEOUT_MS: u32 = 2000;

/// The mark of the process's own pages while a thread of a child is in [`forget_parent`].
const FORGETTING: u32 = 2;
/// This is a child of a process that was recording: locks of libc may be held by threads that do not exist here.
static FORKED: AtomicBool = AtomicBool::new(false);
/// `exit` has begun to run its handlers.
static EXITING: AtomicBool = AtomicBool::new(false);
/// Allocations and other events that timed out while the recording was being created.
static LOST_BEFORE: [(Loss, AtomicU64); 2] = [
    (Loss::Allocations, AtomicU64::new(0)),
    (Loss::Details, AtomicU64::new(0)),
];

/// The recording, if it has started.
#[inline(always)]
pub fn running() -> Option<&'static Recording> {
    // SAFETY: null, or a recording that is never unmapped.
    let recording = unsafe { own().recording.load(Acquire).as_ref() };
    if recording.is_none() {
        forget_parent_once();
    }
    recording
}

/// There is no recording. In a child that was made without the fork handlers: of several threads, one forgets the parent's.
#[cold]
#[inline(never)]
fn forget_parent_once() {
    // First: the page and its mark were stored before what this sees. A page that was loaded earlier may be the one without a mark.
    if RECORDING.load(Acquire).is_null() {
        return;
    }
    let mark = &own().mark;
    if mark.load(Relaxed) == OWN {
        return;
    }
    // A handler that runs now, or a thread that ends here, would leave the others waiting.
    let _uncancelled = Uncancelled::begin();
    let _signals = BlockedSignals::all();
    if mark.compare_exchange(0, FORGETTING, Relaxed, Relaxed).is_ok() {
        forget_parent();
    }
}

/// The recording; starts it if this is the first event. `None` if recording is off or cannot start.
#[inline]
pub fn recording() -> Option<&'static Recording> {
    recording_or_lose(Loss::Details)
}

/// As [`recording`]; an event that comes too early to be recorded counts as `loss`.
#[inline]
pub fn recording_or_lose(loss: Loss) -> Option<&'static Recording> {
    running().or_else(|| start(loss))
}

#[cold]
fn start(loss: Loss) -> Option<&'static Recording> {
    if STATE.load(Acquire) == OFF {
        return None;
    }
    let _uncancelled = Uncancelled::begin();
    // A signal handler that allocates now would wait for this thread: it runs afterwards.
    let mut signals = BlockedSignals::all();
    let mut pauses = Pauses::default();
    let milliseconds = || (monotonic_ns() / 1_000_000) as u32;
    let began = milliseconds();
    loop {
        let now = milliseconds();
        // Signed: the creator may have begun just after `now`.
        let is_long_ago = |time: u32| now.wrapping_sub(time).cast_signed() > TIMEOUT_MS as i32;
        // SAFETY: no preconditions.
        let pid = unsafe { libc::getpid() } as u32;
        match STATE.compare_exchange(NOT_STARTED, pack(now, pid), AcqRel, Acquire) {
            Ok(_) => break,
            Err(RUNNING) => match running() {
                Some(recording) => return Some(recording),
                None if is_long_ago(began) => return give_up(loss),
                // Another thread of this child is forgetting the parent's.
                None => {
                    drop(signals);
                    pauses.pause();
                    signals = BlockedSignals::all();
                }
            },
            Err(OFF) => return None,
            Err(creating) => {
                let (since, creator) = halves(creating);
                if creator != pid {
                    // Forked while the parent was creating its own; the creating thread does not exist here.
                    let _ = STATE.compare_exchange(creating, NOT_STARTED, Relaxed, Relaxed);
                    forget_lost();
                } else if is_long_ago(since) || is_long_ago(began) {
                    return give_up(loss);
                } else {
                    drop(signals);
                    pauses.pause();
                    signals = BlockedSignals::all();
                }
            }
        }
    }
    let recording = if search::is_second_copy() {
        None
    } else {
        create::create()
    };
    let recording = recording.inspect(|_| watch_process());
    match recording {
        Some(recording) => {
            let address = std::ptr::from_ref(recording).cast_mut();
            RECORDING.store(address, Release);
            own().recording.store(address, Release);
            STATE.store(RUNNING, Release);
            count_lost(recording);
        }
        None => STATE.store(OFF, Release),
    }
    drop(signals);
    recording
}

/// The event has waited long enough for the recording that another thread is creating. It may have started just now.
fn give_up(loss: Loss) -> Option<&'static Recording> {
    if let Some((_, count)) = LOST_BEFORE.iter().find(|(of, _)| *of == loss) {
        count.fetch_add(1, Relaxed);
    }
    // SeqCst, here and in `count_lost`: either this thread sees the recording, or the one that publishes it sees the
    // count.
    fence(SeqCst);
    if let Some(recording) = running() {
        count_lost(recording);
    }
    None
}

/// Adds the events that came too early to the losses of the recording.
fn count_lost(recording: &Recording) {
    // SeqCst: pairs with the fence in `give_up`.
    fence(SeqCst);
    for (loss, count) in &LOST_BEFORE {
        let lost = count.swap(0, Relaxed);
        if lost > 0 {
            recording.add(*loss, lost);
            messages::late(recording);
        }
    }
}

fn forget_lost() {
    for (_, count) in &LOST_BEFORE {
        count.store(0, Relaxed);
    }
}

/// Prepares for the forks and the exit of the process, before its recording is published.
fn watch_process() {
    process::wipe_in_children();
    own().mark.store(OWN, Relaxed);
    static ONCE: AtomicBool = AtomicBool::new(false);
    if !ONCE.swap(true, Relaxed) {
        // SAFETY: this library is never unloaded, and the handler takes no lock that a thread of the parent may hold.
        unsafe { libc::pthread_atfork(None, None, Some(forget_parent)) };
    }
    watch_exit();
}

/// In a forked child: the recording is the parent's, and so is all state that refers to it or to its threads.
extern "C" fn forget_parent() {
    FORKED.store(true, Relaxed);
    thread::forget_rows();
    hold::note_main_thread();
    own().recording.store(std::ptr::null_mut(), Release);
    (0..DEVICES).for_each(|device| reported(device).forked());
    // SAFETY: null, or a recording that is never unmapped.
    if let Some(recording) = unsafe { RECORDING.swap(std::ptr::null_mut(), AcqRel).as_ref() } {
        recording.forked();
    }
    forget_lost();
    messages::forked();
    auto_snapshot::forked();
    EXITING.store(false, Relaxed);
    current::contexts_changed();
    kernel_objects::forked();
    segment_state::forked();
    closing::forked();
    stacks::forked();
    loader::forked();
    // Last: another thread may create a recording now.
    STATE.store(NOT_STARTED, Release);
}

/// Registers a handler of `exit`. Handlers run in reverse order of registration: registered at the first events, this
/// one runs before those that the runtime registered when it was loaded, so that frees by the runtime's teardown are
/// not recorded as the program's.
pub fn watch_exit() {
    extern "C" fn exiting() {
        EXITING.store(true, Relaxed);
        if let Some(recording) = running() {
            // The interpreter may have finalized without a free.
            note_end(recording);
            recording.end_main();
            forget_known();
            quietly(|| hold::at_end(Moment::End));
        }
    }
    // At the first events only: libc's list of handlers must not grow without limit.
    static TIMES: AtomicU32 = AtomicU32::new(0);
    if TIMES.load(Relaxed) >= 4 || FORKED.load(Relaxed) {
        return;
    }
    TIMES.fetch_add(1, Relaxed);
    // SAFETY: this library is never unloaded.
    unsafe { libc::atexit(exiting) };
}

/// Called at each event: the script ends between two of them. Before its exit callbacks are called, only the main thread has ended:
/// the interpreter waits for the others.
#[inline]
pub fn note_end(recording: &Recording) {
    if hold::is_script_ending() {
        cold_path();
        hold::end_script(recording);
    }
}

/// Called at each allocation: the interpreter may have been initialized since the last one.
#[inline]
pub fn watch_script() {
    if stacks::WATCHES_END.load(Relaxed) {
        cold_path();
        stacks::call_at_end((hold::is_served() || stacks::hides_end()).then_some(script_ended));
    }
}

/// Whether [`watch_script`] may do something.
#[inline]
pub fn may_watch_script() -> bool {
    stacks::WATCHES_END.load(Relaxed) && stacks::is_end_wanted()
}

/// The script has ended, and the interpreter calls its exit callbacks.
extern "C" fn script_ended() {
    quietly(|| {
        let Some(recording) = running() else { return };
        recording.end_script();
        forget_known();
        hold::at_end(Moment::End);
    });
}

/// Exported for `shim/hold`: the program calls `sigaction` (0), or `_exit` or `quick_exit` (1).
#[unsafe(no_mangle)]
extern "C" fn culeak_hold(called: libc::c_int) {
    quietly(|| {
        let Some(recording) = running() else { return };
        match called {
            0 => note_end(recording),
            // After the exit handlers there is nothing left to search.
            _ if !recording.has_ended() => hold::at_end(Moment::Exit),
            _ => {}
        }
    });
}

pub fn is_exiting() -> bool {
    EXITING.load(Relaxed)
}

/// After all handlers and destructors, in a process that ends by `exit`.
extern "C" fn at_exit() {
    proof::ended();
    let is_recorded = STATE.load(Acquire) != NOT_STARTED;
    quietly(|| proof::look_for_unseen_use(is_recorded));
    if let Some(recording) = running().filter(|recording| recording.is_of_this_process()) {
        recording.end();
        if let Err(error) = recording.deliver() {
            messages::not_delivered(recording, error);
        }
        if !settings::is_set(culeak::variables::QUIET) {
            messages::summarize(recording);
        }
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
