//! From hook to recording: decides whether there is one, who the thread is, and fills in an entry.
//!
//! The recording begins with the first CUDA event of a process (inert until then) and ends with the process. A forked
//! child begins its own with its own first event. Whatever goes wrong here costs records, which are counted, and never
//! the program: nothing panics out of this module, `errno` leaves as it came, and no lock is held anywhere.

pub mod auto_snapshot;
pub mod proof;
pub mod session;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*, fence};

use crate::effects::context;
use crate::resolve::search;
use crate::{messages, settings, stacks};
use culeak::cuda_functions::Api;
use culeak::format::{Loss, NONE, halves, pack};
use culeak::kind::Kind;
use culeak::lockfree::shards::Shard;
use culeak::lockfree::table::{Attributes, Entry, Key, Link, Space, Withdrawn};
use culeak::recording::Recording;
use culeak::system::Uncancelled;
use culeak::system::{BlockedSignals, Pauses, monotonic_ns};
use culeak_walker::Registers;

static RECORDING: AtomicPtr<Recording> = AtomicPtr::new(std::ptr::null_mut());
/// One of the three below; or, while a thread creates the recording, since when (in milliseconds, in the low half) and in
/// which process (in the high half, never 0).
static STATE: AtomicU64 = AtomicU64::new(UNBORN);
const UNBORN: u64 = 0;
const RUNNING: u64 = 2;
const OFF: u64 = 3;
/// How long threads wait for the recording that another one is creating.
const PATIENCE_MS: u32 = 2000;

/// A word in a page that the kernel wipes in every child, also one whose parent skipped the fork handlers.
static SAME_PROCESS: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
/// Changes in a forked child, so that threads know their row is the parent's.
static EPOCH: AtomicU32 = AtomicU32::new(1);
/// A child of a process that was recording: locks of libc may be held by threads that do not exist here.
static FORKED: AtomicBool = AtomicBool::new(false);
/// `exit` has begun to run its handlers.
static EXITING: AtomicBool = AtomicBool::new(false);
/// Allocations and other events that came while the recording was being created, and did not wait for it any longer.
static LOST_BEFORE: [(Loss, AtomicU64); 2] = [
    (Loss::Allocations, AtomicU64::new(0)),
    (Loss::Details, AtomicU64::new(0)),
];

/// What a thread remembers. Constant and without a destructor: touching it never allocates.
struct ThreadState {
    epoch: Cell<u32>,
    row: Cell<u32>,
    shard: Cell<Shard>,
    /// The runtime function this thread is inside, + 1.
    label: Cell<u16>,
    /// The driver layer recorded something since the label was set.
    recorded: Cell<bool>,
    /// The call that set the label.
    label_call: Cell<Call>,
    /// The call of another interposer's driver function that this thread is inside.
    inside_call: Cell<Call>,
    /// Numbers calls.
    calls: Cell<u64>,
    /// What the entry of a hook has noted for its body: the caller's address.
    caller: Cell<u64>,
    /// Picks the events whose cost is measured.
    tick: Cell<u32>,
}

thread_local! {
    static THREAD: ThreadState = const {
        ThreadState {
            epoch: Cell::new(0),
            row: Cell::new(NONE),
            shard: Cell::new(Shard::shared(0)),
            label: Cell::new(0),
            recorded: Cell::new(false),
            label_call: Cell::new(Call::NONE),
            inside_call: Cell::new(Call::NONE),
            calls: Cell::new(0),
            caller: Cell::new(0),
            tick: Cell::new(0),
        }
    };
}

/// The recording, if one has begun.
#[inline]
pub fn running() -> Option<&'static Recording> {
    let recording = RECORDING.load(Acquire);
    // SAFETY: set once to a recording that is never given back.
    let recording = unsafe { recording.as_ref() }?;
    let mark = SAME_PROCESS.load(Relaxed);
    // SAFETY: the page is mapped before the recording is set and never unmapped.
    if !mark.is_null() && unsafe { (*mark).load(Relaxed) } == 0 {
        forget_parent();
        return None;
    }
    Some(recording)
}

/// The recording; begins it if this is the first event.
#[inline]
pub fn begin() -> Option<&'static Recording> {
    begin_for(Loss::Details)
}

/// The same; `loss` is what an event counts as that comes too early to be recorded.
#[inline]
fn begin_for(loss: Loss) -> Option<&'static Recording> {
    running().or_else(|| begin_now(loss))
}

#[cold]
fn begin_now(loss: Loss) -> Option<&'static Recording> {
    if STATE.load(Acquire) == OFF {
        return None;
    }
    let _uncancelled = Uncancelled::new();
    // A signal handler that allocates now would wait for us: let it come afterwards.
    let mut signals = BlockedSignals::all();
    let mut pauses = Pauses::default();
    loop {
        let now = (monotonic_ns() / 1_000_000) as u32;
        // SAFETY: no preconditions.
        let pid = unsafe { libc::getpid() } as u32;
        match STATE.compare_exchange(UNBORN, pack(now, pid), AcqRel, Acquire) {
            Ok(_) => break,
            Err(RUNNING) => return running(),
            Err(OFF) => return None,
            Err(creating) => {
                let (since, creator) = halves(creating);
                if creator != pid {
                    // Forked while the parent was creating its own; the thread that did is not here.
                    let _ = STATE.compare_exchange(creating, UNBORN, Relaxed, Relaxed);
                    forget_lost();
                } else if now.wrapping_sub(since) > PATIENCE_MS {
                    return lost_before(loss);
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
        session::create()
    };
    let recording = recording.inspect(|_| prepare_process());
    match recording {
        Some(recording) => {
            RECORDING.store(std::ptr::from_ref(recording).cast_mut(), Release);
            STATE.store(RUNNING, Release);
            count_lost(recording);
        }
        None => STATE.store(OFF, Release),
    }
    drop(signals);
    recording
}

/// An event does not wait any longer for the recording that is being created. It may be there just now.
fn lost_before(loss: Loss) -> Option<&'static Recording> {
    if let Some((_, count)) = LOST_BEFORE.iter().find(|(of, _)| *of == loss) {
        count.fetch_add(1, Relaxed);
    }
    // SeqCst, here and in `count_lost`: either we see the recording, or the one that publishes it sees our count.
    fence(SeqCst);
    if let Some(recording) = running() {
        count_lost(recording);
    }
    None
}

/// Events that came too early are losses of the recording that there is now.
fn count_lost(recording: &Recording) {
    fence(SeqCst);
    for (loss, count) in &LOST_BEFORE {
        let lost = count.swap(0, Relaxed);
        if lost > 0 {
            recording.add(*loss, lost);
            messages::say_late(recording);
        }
    }
}

fn forget_lost() {
    for (_, count) in &LOST_BEFORE {
        count.store(0, Relaxed);
    }
}

/// Once per process: marks it, so that children notice, and asks to be told of its exit.
fn prepare_process() {
    if SAME_PROCESS.load(Relaxed).is_null()
        && let Ok(page) = culeak::system::anonymous(4096)
    {
        // SAFETY: the page was mapped just now; older kernels refuse, and then the fork handler alone must do.
        if unsafe { libc::madvise(page.cast(), 4096, libc::MADV_WIPEONFORK) } == 0 {
            SAME_PROCESS.store(page.cast(), Release);
        }
    }
    let mark = SAME_PROCESS.load(Acquire);
    if !mark.is_null() {
        // SAFETY: mapped above or by an earlier call, and never unmapped.
        unsafe { (*mark).store(1, Relaxed) };
    }
    static ONCE: AtomicBool = AtomicBool::new(false);
    if !ONCE.swap(true, Relaxed) {
        // SAFETY: the handler only changes atomics.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
    watch_exit();
}

extern "C" fn forked() {
    forget_parent();
}

/// In a forked child: the recording and the rows are the parent's.
fn forget_parent() {
    FORKED.store(true, Relaxed);
    EPOCH.fetch_add(1, Relaxed);
    // SAFETY: null, or a recording that is never given back.
    if let Some(recording) = unsafe { RECORDING.swap(std::ptr::null_mut(), AcqRel).as_ref() } {
        recording.forked();
    }
    STATE.store(UNBORN, Release);
    forget_lost();
    messages::forget();
    auto_snapshot::forget();
    EXITING.store(false, Relaxed);
    context::forget();
    culeak_walker::forked();
    stacks::forked();
    crate::resolve::loader::forked();
    crate::effects::graph_state::forget();
}

/// Handlers of `exit` run last-registered first: registered at our first events, ours runs before those that the
/// runtime registered when it was loaded, so what the runtime tears down is not taken for the program's own frees.
pub fn watch_exit() {
    extern "C" fn exiting() {
        EXITING.store(true, Relaxed);
    }
    // At the first events only: libc's list of handlers is not meant to grow for ever.
    static TIMES: AtomicU32 = AtomicU32::new(0);
    if TIMES.load(Relaxed) >= 4 || FORKED.load(Relaxed) {
        return;
    }
    TIMES.fetch_add(1, Relaxed);
    // SAFETY: the handler only sets a flag, and this library is never unloaded.
    unsafe { libc::atexit(exiting) };
}

pub fn is_exiting() -> bool {
    EXITING.load(Relaxed)
}

/// After all handlers and destructors: the end of a process that ends by `exit`.
extern "C" fn at_exit() {
    crate::recorder::proof::ended();
    if let Some(recording) = running() {
        recording.end();
        if !settings::is_set(culeak::variables::QUIET) {
            messages::summarize(recording);
        }
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

/// The calling thread's row.
pub fn thread(recording: &Recording) -> u32 {
    me(recording).0
}

/// The calling thread's row, and the shard that it works at.
#[inline]
pub fn me(recording: &Recording) -> (u32, Shard) {
    THREAD.with(|thread| {
        if thread.epoch.get() != EPOCH.load(Relaxed) || thread.row.get() == NONE {
            introduce(thread, recording);
        }
        (thread.row.get(), thread.shard.get())
    })
}

/// A thread's first event. Its handlers wait, so that none of them is introduced as another thread meanwhile.
#[cold]
#[inline(never)]
fn introduce(thread: &ThreadState, recording: &Recording) {
    without_signals(|| {
        let epoch = EPOCH.load(Relaxed);
        // SAFETY: no preconditions.
        let (pid, tid) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid) as u32) };
        // Only ESRCH means that the thread is gone: a filter of system calls may refuse the question.
        let is_alive = |tid: u32| {
            // SAFETY: signal 0 is none: the kernel only looks for the thread.
            let asked = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) };
            // SAFETY: always valid in the calling thread.
            asked == 0 || unsafe { *libc::__errno_location() } != libc::ESRCH
        };
        thread.row.set(recording.add_thread(tid, &thread_name()));
        thread.shard.set(recording.shard_of(tid, thread.row.get(), is_alive));
        thread.epoch.set(epoch);
    });
}

/// Signals of this thread come afterwards.
fn without_signals<R>(work: impl FnOnce() -> R) -> R {
    let _signals = BlockedSignals::all();
    work()
}

/// Programs often name a thread after its first allocation.
pub fn refresh_thread_name(recording: &Recording) {
    let row = thread(recording);
    if row != NONE {
        recording.rename_thread(row, &thread_name());
    }
}

fn thread_name() -> [u8; 16] {
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Runs recorder code so that neither `errno` nor a panic gets out.
#[inline]
pub fn quietly<R>(work: impl FnOnce() -> R) -> Option<R> {
    // SAFETY: always valid in the calling thread, and the same place as long as that runs.
    let (errno, before) = unsafe {
        let errno = libc::__errno_location();
        (errno, *errno)
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// Measures the recorder's own cost: a thread's first events each, later ones by sample, which then counts for all.
struct Cost<'a> {
    recording: &'a Recording,
    began: u64,
    /// Events this one stands for; 0: not measured.
    stands_for: u64,
}

/// How many events of a thread are measured each.
const COST_EACH: u32 = 16;
/// Of the later ones, one in so many; odd, since allocations and frees often alternate.
const COST_SAMPLE: u32 = 61;

impl<'a> Cost<'a> {
    #[inline]
    fn of(recording: &'a Recording) -> Cost<'a> {
        let tick = THREAD.with(|thread| thread.tick.replace(thread.tick.get().wrapping_add(1)));
        let stands_for = match tick {
            0..COST_EACH => 1,
            _ if tick.is_multiple_of(COST_SAMPLE) => COST_SAMPLE.into(),
            _ => 0,
        };
        Cost {
            recording,
            began: if stands_for > 0 { monotonic_ns() } else { 0 },
            stands_for,
        }
    }
}

impl Drop for Cost<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.stands_for > 0 {
            let spent = monotonic_ns().saturating_sub(self.began);
            self.recording.add(Loss::RecorderNs, spent * self.stands_for);
        }
    }
}

/// What a hook knows of an allocation.
#[derive(Clone, Copy)]
pub struct AllocationEvent {
    pub api: Api,
    pub kind: Kind,
    pub space: Space,
    pub bytes: u64,
    pub requested: u64,
    pub extra: u64,
    pub pool: u64,
    pub flags: u8,
    /// Where it lives, when the call says so; otherwise the current device.
    pub device: Device,
    /// The hook's own frame, where its stack begins: what the recorder calls from there on is never walked.
    pub at: Registers,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Current,
    Ordinal(i32),
    Row(u8),
    /// Told by a framework, which may be holding locks: CUDA is not asked about it.
    Reported(i32),
    None,
}

impl AllocationEvent {
    /// To be called by a function that outlives the recording of the event: its frame is the innermost one.
    #[inline(always)]
    pub fn new(api: Api, kind: Kind, bytes: u64) -> AllocationEvent {
        AllocationEvent {
            api,
            kind,
            space: Space::Pointer,
            bytes,
            requested: bytes,
            extra: 0,
            pool: 0,
            flags: 0,
            device: Device::Current,
            at: Registers::here(),
        }
    }
}

/// Fills in what the hook does not know: time, thread, context, device, label, stack.
pub fn entry(recording: &Recording, event: &AllocationEvent) -> Entry {
    let (context, current) = match event.device {
        Device::Reported(ordinal) => (Attributes::NO_CONTEXT, context::reported_device(recording, ordinal)),
        _ => context::current(recording),
    };
    let device = match event.device {
        Device::Current | Device::Reported(_) => current,
        Device::Ordinal(ordinal) => context::device_row(recording, ordinal),
        Device::Row(row) => row,
        Device::None => Attributes::NO_DEVICE,
    };
    let (thread, shard) = me(recording);
    let label = THREAD.with(|thread| {
        forget_left_label(thread);
        thread.label.get()
    });
    let api = if label != 0 && event.api.is_driver() {
        label - 1
    } else {
        event.api.0
    };
    Entry {
        bytes: event.bytes,
        requested: event.requested,
        time_ns: recording.now(),
        extra: event.extra,
        pool: event.pool,
        stack: stacks::stack(recording, event.at, shard),
        thread,
        attributes: Attributes {
            kind: event.kind,
            space: event.space,
            flags: event.flags,
            device,
            api,
            context,
        },
    }
}

/// An allocation succeeded.
pub fn allocated(address: u64, event: &AllocationEvent) {
    mark_recorded();
    quietly(|| {
        let Some(recording) = begin_for(Loss::Allocations) else {
            return;
        };
        let cost = Cost::of(recording);
        let key = Key {
            space: event.space,
            address,
        };
        let (_, shard) = me(recording);
        recording.prepare(shard, key);
        let entry = entry(recording, event);
        if !recording.allocated_at(shard, key, &entry) {
            messages::say_loss(recording);
        }
        drop(cost);
        auto_snapshot::allocated(recording, &entry);
        if recording.intervals().was_exceeded() {
            auto_snapshot::exceeded(recording);
        }
    });
}

/// An allocation failed; `facts.bytes` is what was asked for.
pub fn failed(error: i32, event: &AllocationEvent) {
    mark_recorded();
    quietly(|| {
        // Our own answer where there is no driver: a process without CUDA is none of our business.
        if !crate::resolve::real::driver_is_loaded() {
            return;
        }
        let Some(recording) = begin() else { return };
        let entry = entry(recording, event);
        if let Some(row) = recording.failed(&entry, error) {
            auto_snapshot::failed(recording, &entry, error, row);
        }
    });
}

/// A free that is about to happen; settle it with its result. One that is never settled, since an exception, a jump or the
/// end of the thread passed through the hook, stays withdrawn and is reported as a call in flight.
pub struct Held(Option<Withdrawn<'static>>);

/// Forgets an allocation before it is freed.
pub fn withdraw(space: Space, address: u64) -> Held {
    mark_recorded();
    Held(
        quietly(|| {
            let recording = running()?;
            let _cost = Cost::of(recording);
            recording.withdraw(Key { space, address }, me(recording).1)
        })
        .flatten(),
    )
}

pub fn withdraw_linked(link: Link) -> Held {
    mark_recorded();
    Held(
        quietly(|| {
            let recording = running()?;
            recording.withdraw_linked(link, me(recording).1)
        })
        .flatten(),
    )
}

/// CUDA_ERROR_DEINITIALIZED, and the runtime's cudaErrorCudartUnloading: the driver is gone and the memory with it.
pub const TEARDOWN: i32 = 4;

impl Held {
    pub const NOTHING: Held = Held(None);

    pub fn is_something(&self) -> bool {
        self.0.is_some()
    }

    /// The driver's answer to the free of `address`.
    #[inline]
    pub fn settle(self, result: i32, address: u64) {
        quietly(|| {
            let Some(recording) = running() else { return };
            let (_, shard) = me(recording);
            match (self.0, result) {
                (Some(withdrawn), 0) => recording.commit(withdrawn, shard),
                (Some(withdrawn), TEARDOWN) => {
                    recording.commit(withdrawn, shard);
                    recording.add(Loss::TeardownFrees, 1);
                }
                (Some(withdrawn), _) => {
                    recording.restore(withdrawn, shard);
                    recording.add(Loss::FailedFrees, 1);
                }
                (None, 0) if address != 0 => recording.add(Loss::UnknownFrees, 1),
                (None, TEARDOWN | 0) => {}
                (None, _) => recording.add(Loss::FailedFrees, 1),
            }
        });
    }
}

/// The driver layer saw the event: the runtime function around it need not record anything.
pub fn mark_recorded() {
    THREAD.with(|thread| thread.recorded.set(true));
}

/// The naked entries of hooks leave their caller's address here.
pub extern "C" fn note_caller(caller: u64) {
    THREAD.with(|thread| thread.caller.set(caller));
}

/// What the entry has noted; 0: the hook was entered through a pointer to its body.
#[inline]
pub fn take_caller() -> u64 {
    THREAD.with(|thread| thread.caller.replace(0))
}

/// A word in the frame of a hook. While the hook runs it holds a number that no other call has.
pub struct Place(u64);

impl Place {
    pub fn new() -> Place {
        Place(0)
    }
}

/// A call that this thread is inside, known by the word in its frame.
///
/// Its end is no destructor's work: a hook's frame that has none is passed by exceptions and cancellations without being
/// entered. (It could not be: they may be raised by another copy of libgcc's unwinder than the one in this library.) So
/// a call may be left without its noticing, by those as well as by a jump or a switch of stacks, and [`Call::is_on_stack`]
/// finds that out.
#[derive(Clone, Copy)]
struct Call {
    place: *const u64,
    number: u64,
}

impl Call {
    const NONE: Call = Call {
        place: std::ptr::null(),
        number: 0,
    };

    #[inline]
    fn begin(thread: &ThreadState, place: &mut Place) -> Call {
        let number = thread.calls.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        thread.calls.set(number);
        let place = &raw mut place.0;
        // SAFETY: a word of the caller's. Volatile: it is read through the address alone.
        unsafe { place.write_volatile(number) };
        Call { place, number }
    }

    #[inline]
    fn end(place: &mut Place) {
        // SAFETY: as above.
        unsafe { (&raw mut place.0).write_volatile(0) };
    }

    /// Asked from a frame that would lie within that of the call.
    #[inline]
    fn is_on_stack(self) -> bool {
        /// More than CUDA's libraries and other interposers ever put between a call of theirs and the driver's.
        const DEEPEST: usize = 1 << 20;
        /// As much as most of them put there. Further up, another stack may have been, which is gone.
        const NEAR: usize = 8 << 10;
        let here = 0u8;
        let above = (self.place as usize).wrapping_sub(std::ptr::from_ref(&here) as usize);
        let mut found = [0];
        match above {
            // SAFETY: a little above a frame of this thread: its own stack, where a frame is or was.
            0..NEAR => unsafe { self.place.read_volatile() == self.number },
            NEAR..DEEPEST => culeak_walker::read(self.place as u64, &mut found) && found == [self.number],
            _ => false,
        }
    }
}

/// What the entry of a driver hook has noted, as [`take_caller`], and whether this thread is inside another interposer's
/// driver function that a hook has called.
#[inline]
pub fn take_way() -> (u64, bool) {
    THREAD.with(|thread| {
        let inside = thread.inside_call.get();
        let is_inside = !inside.place.is_null() && inside.is_on_stack();
        (thread.caller.replace(0), is_inside)
    })
}

/// This thread is inside another interposer's driver function, until [`Inside::leave`].
pub struct Inside {
    before: Call,
}

impl Inside {
    #[inline]
    pub fn enter(place: &mut Place) -> Inside {
        THREAD.with(|thread| Inside {
            before: thread.inside_call.replace(Call::begin(thread, place)),
        })
    }

    #[inline]
    pub fn leave(self, place: &mut Place) {
        Call::end(place);
        THREAD.with(|thread| thread.inside_call.set(self.before));
    }
}

/// This thread is inside a runtime function, until [`Label::end`].
pub struct Label {
    before: (u16, bool, Call),
}

impl Label {
    /// The outermost label stays: a runtime function that calls another is what the program called.
    #[inline]
    pub fn set(api: Api, place: &mut Place) -> Label {
        THREAD.with(|thread| {
            forget_left_label(thread);
            let before = (thread.label.get(), thread.recorded.get(), thread.label_call.get());
            if before.0 == 0 {
                thread.label.set(api.0 + 1);
                thread.label_call.set(Call::begin(thread, place));
            }
            thread.recorded.set(false);
            Label { before }
        })
    }

    /// Whether the driver layer recorded an event since this label was set.
    pub fn was_recorded(&self) -> bool {
        THREAD.with(|thread| thread.recorded.get())
    }

    #[inline]
    pub fn end(self, place: &mut Place) {
        Call::end(place);
        THREAD.with(|thread| {
            thread.label.set(self.before.0);
            thread.recorded.set(thread.recorded.get() | self.before.1);
            thread.label_call.set(self.before.2);
        });
    }
}

/// A runtime function that was left otherwise than by returning has not taken its label back.
#[inline]
fn forget_left_label(thread: &ThreadState) {
    if thread.label.get() != 0 && !thread.label_call.get().is_on_stack() {
        thread.label.set(0);
        thread.recorded.set(false);
    }
}

/// An allocator-like function left our doors unhooked; kept until there is a recording.
pub fn handed_out_unhooked(name: &[u8]) {
    quietly(|| match running() {
        Some(recording) => recording.unhooked(name),
        None => crate::hooks::unhooked::keep(name),
    });
}
