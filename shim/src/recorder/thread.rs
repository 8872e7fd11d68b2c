//! What a thread remembers between events: its row and shard in the recording, and the calls it is inside.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering::*};

use crate::recorder::call::Call;
use crate::recorder::current::Seen;
use culeak::format::{NONE, UNSAMPLED, pack};
use culeak::lockfree::shards::Shard;
use culeak::recording::Recording;
use culeak::system::{BlockedSignals, Errno, cold_path};

/// Changes in a forked child: rows and shards of earlier epochs are the parent's.
#[unsafe(link_section = ".data.culeak_events")]
static EPOCH: AtomicU32 = AtomicU32::new(1);

/// All zeros: a thread without events. What every event reads is in the first cache line.
#[repr(C)]
#[cfg_attr(target_arch = "x86_64", repr(align(64)))]
pub struct ThreadState {
    epoch: Cell<u32>,
    /// Valid in this epoch, like `shard`.
    row: Cell<u32>,
    /// Events of this thread until the next one whose cost is measured.
    pub unmeasured: Cell<u32>,
    /// The runtime function that this thread is inside, + 1; 0: none.
    pub label: Cell<u16>,
    shard: Cell<Shard>,
    /// The driver layer recorded something since the label was set.
    pub recorded: Cell<bool>,
    /// The caller's address, which the entry of a hook leaves for the hook's body.
    pub caller: Cell<u64>,
    /// The call of another interposer's driver function that this thread is inside.
    pub inside_call: Cell<Call>,
    /// The context that this thread saw last.
    pub seen: Seen,
    /// Where the thread's errno is; null: not known yet.
    errno: Cell<*mut libc::c_int>,
    /// One less than the bytes until the next sampled stack; unused unless stacks are sampled.
    pub before_stack: Cell<u64>,
    /// What the records of this thread's blocks without a stack have in `place`. Valid in this epoch.
    pub place: Cell<u64>,
    /// State of the generator of these distances; 0: not seeded.
    pub random: Cell<u64>,
    /// `before_stack` was drawn.
    pub has_distance: Cell<bool>,
    /// How often the mean distance is raised.
    pub raised: Cell<u8>,
    /// Stacks taken since `window_ns`, for the rate at which they are.
    pub taken: Cell<u32>,
    pub window_ns: Cell<u64>,
    /// The memory pool that this thread is allocating from; 0: the device's own, or none.
    pub pool: Cell<u64>,
    /// The call that set the label.
    pub label_call: Cell<Call>,
    /// Numbers calls.
    pub calls: Cell<u64>,
    /// Stacks that this thread found to be new.
    new_stacks: Cell<u32>,
    /// Events of this thread whose cost was measured.
    pub measured: Cell<u32>,
}

const _: () = assert!(std::mem::offset_of!(ThreadState, before_stack) == 64);

culeak_walker::thread_variable! {
    // SAFETY: zeros are values of all fields: integers, a shard, null pointers.
    pub static THREAD: unsafe ThreadState = "culeak_thread_state";
}

/// Runs recorder code; restores `errno` and stops panics. `None` after a panic.
#[inline(always)]
pub fn quietly<R>(work: impl FnOnce() -> R) -> Option<R> {
    let errno = errno();
    // SAFETY: the calling thread's errno.
    let before = unsafe { *errno };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// Where the calling thread's errno is: the same address as long as the thread runs.
#[inline(always)]
fn errno() -> *mut libc::c_int {
    THREAD.with(|thread| {
        if thread.errno.get().is_null() {
            cold_path();
            // SAFETY: always valid in the calling thread.
            thread.errno.set(unsafe { libc::__errno_location() });
        }
        thread.errno.get()
    })
}

/// The calling thread begins to allocate from this pool; 0: it has ended. A call that is left without returning does not end,
/// and its pool is that of the thread's later driver calls until the next such call: only chunks of pools may use it.
#[inline]
pub fn note_pool(pool: u64) {
    THREAD.with(|thread| thread.pool.set(pool));
}

/// The pool of the call that the calling thread is inside.
pub fn pool_of_call() -> Option<u64> {
    THREAD.with(|thread| Some(thread.pool.get()).filter(|&pool| pool != 0))
}

/// Number of the process among its ancestors since the library was loaded; never 0.
pub fn epoch() -> u32 {
    EPOCH.load(Relaxed)
}

/// In a forked child: the rows of all threads are the parent's.
pub fn forget_rows() {
    EPOCH.fetch_add(1, Relaxed);
}

/// The calling thread's row.
pub fn thread_row(recording: &Recording) -> u32 {
    thread_and_shard(recording).0
}

/// The calling thread's row, and its shard of the recording.
#[inline]
pub fn thread_and_shard(recording: &Recording) -> (u32, Shard) {
    THREAD.with(|thread| {
        if !thread.is_known() {
            cold_path();
            register(thread, recording);
        }
        (thread.row.get(), thread.shard.get())
    })
}

impl ThreadState {
    /// Whether the thread has a row in this process.
    #[inline(always)]
    pub fn is_known(&self) -> bool {
        self.epoch.get() == EPOCH.load(Relaxed)
    }
}

/// A thread's first event. Signals are blocked, so that no handler registers the thread a second time meanwhile.
#[cold]
#[inline(never)]
fn register(thread: &ThreadState, recording: &Recording) {
    let _signals = BlockedSignals::all();
    let epoch = EPOCH.load(Relaxed);
    // SAFETY: no preconditions.
    let (pid, tid) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid) as u32) };
    // Only ESRCH means that the thread is gone: a filter of system calls may deny the call.
    let is_alive = |tid: u32| {
        // SAFETY: signal 0 is not sent: the kernel only looks for the thread.
        let asked = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) };
        asked == 0 || Errno::last() != Errno(libc::ESRCH)
    };
    thread.row.set(recording.add_thread(tid, &thread_name()));
    thread.place.set(pack(UNSAMPLED, thread.row.get()));
    thread.shard.set(recording.shard_of(tid, thread.row.get(), is_alive));
    // A forked child counts stacks from its own beginning.
    thread.taken.set(0);
    thread.window_ns.set(recording.now());
    // Without a row, the next event tries again.
    thread.epoch.set(if thread.row.get() == NONE { 0 } else { epoch });
}

/// Stores the thread's name again: programs often name a thread after its first allocation. Called before each new stack, but it is a
/// system call: a thread with many of them is asked for its name less often.
pub fn refresh_name(recording: &Recording) {
    const EACH: u32 = 256;
    const ONE_OF: u32 = 16;
    let row = thread_row(recording);
    let number = THREAD.with(|thread| thread.new_stacks.replace(thread.new_stacks.get().wrapping_add(1)));
    if row != NONE && (number < EACH || number.is_multiple_of(ONE_OF)) {
        recording.rename_thread(row, &thread_name());
    }
}

fn thread_name() -> [u8; 16] {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}
