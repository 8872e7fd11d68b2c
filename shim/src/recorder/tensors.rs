//! Tensors without a stack, if stacks are sampled: a short way into the recording ([`culeak::recording::Reported`]).
//!
//! It does what [`super::allocated_then`] and [`super::freed_then`] do if nothing is rare. What is rare is found out before anything
//! changes, and these two do it: the thread's first event, a tensor that gets a stack, the end of the script, automatic snapshots.
//! Nothing here can panic or changes `errno`.
//!
//! An event asks little, since the caller that reports a device's tensors is *known* only while nothing else is rare: after a fork, an
//! end, or the begin of a `dlclose` it is not, until an event on the usual way finds that all is as usual again ([`learn`]).

use std::ffi::c_void;

use crate::process;
use crate::recorder::thread::{THREAD, ThreadState, quietly};
use crate::recorder::{auto_snapshot, cost, current, hold, sampling, session};
use crate::resolve::closing::Loaded;
use crate::resolve::loader;
use crate::stacks;
use culeak::cuda_functions::Api;
use culeak::lockfree::peak::LARGEST;
use culeak::lockfree::table::Slots;
use culeak::recording::{DEVICES, Outcome, Recording, Reported, TensorEvent};
use culeak::system::cold_path;

/// The library of PyTorch's allocator, which has a lock for each device and holds it while it reports.
const LIBRARY: &[u8] = b"libc10_cuda";

/// The tensors that the code at `caller` reports, if an event of them is to ask nothing more. Then [`Reported::next`] is the function
/// that the report goes on to.
#[inline(always)]
pub fn known(allocates: bool, device: usize, caller: u64) -> Option<&'static Reported> {
    if device >= DEVICES {
        return None;
    }
    let of = process::reported(device);
    of.is_known(allocates, caller).then_some(of)
}

/// As [`known`], for any caller in the library's code.
pub fn known_code(allocates: bool, device: usize, caller: u64) -> Option<&'static Reported> {
    reported_by(device, caller).filter(|of| of.knows_any(allocates))
}

/// Stores what [`known`] finds, unless something is rare. `loaded`: before the next definition was looked up.
#[inline(never)]
pub fn learn(allocates: bool, device: usize, caller: u64, loaded: Loaded, next: *const c_void) {
    if let Some(recording) = session::running()
        && let Some(of) = reported_by(device, caller)
    {
        // Whatever changes one of these calls `forget_known` afterwards.
        let is_so = || {
            loaded.is_settled()
                && Loaded::now().word() == loaded.word()
                && !(recording.has_ended() || session::may_watch_script() || auto_snapshot::is_watching())
        };
        if is_so() {
            of.know(allocates, caller, next as u64, is_so);
        }
    }
}

/// An event without a stack. `Rare` also if it is to be measured, or if the script may have ended: [`aside`].
pub type Event = fn(&Reported, &TensorEvent) -> Outcome;

/// Records a tensor without a stack.
#[inline(always)]
pub fn allocated<const ASIDE: bool>(of: &Reported, event: &TensorEvent) -> Outcome {
    if may_be_ending::<ASIDE>() {
        return Outcome::Rare;
    }
    // Before all else is looked at, since a call needs all registers.
    let now = now();
    THREAD.with(|thread| {
        let bytes = event.change as u64;
        // As in `sampling::chooses`; 0 bytes are no tensor.
        let (left, slots) = (thread.before_stack.get(), of.slots());
        if bytes > left || bytes > LARGEST || is_rare::<ASIDE>(slots, thread) {
            cold_path();
            return Outcome::Rare;
        }
        of.allocated(slots, now, thread.place.get(), event, || {
            thread.before_stack.set(left - bytes);
            thread.recorded.set(true);
        })
    })
}

/// [`monotonic_ns`], whose call changes no register with an argument of its caller.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn now() -> u64 {
    let now;
    // SAFETY: a function without arguments, which changes what is listed and flags, and returns in rax.
    unsafe {
        std::arch::asm!("call {now}", now = sym keeping_arguments, out("rax") now, out("r10") _, out("r11") _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _);
    }
    now
}

#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(link_section = ".text.culeak_events")]
unsafe extern "C" fn keeping_arguments() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "push rdi", ".cfi_adjust_cfa_offset 8",
        "push rsi", ".cfi_adjust_cfa_offset 8",
        "push rdx", ".cfi_adjust_cfa_offset 8",
        "push rcx", ".cfi_adjust_cfa_offset 8",
        "push r8", ".cfi_adjust_cfa_offset 8",
        "push r9", ".cfi_adjust_cfa_offset 8",
        // A timespec of 0, if the call fails; and the stack is aligned for the call.
        "sub rsp, 8", ".cfi_adjust_cfa_offset 8",
        "push 0", ".cfi_adjust_cfa_offset 8",
        "push 0", ".cfi_adjust_cfa_offset 8",
        "mov edi, {monotonic}",
        "mov rsi, rsp",
        "call qword ptr [rip + {clock_gettime}@GOTPCREL]",
        "imul rax, qword ptr [rsp], 1000000000",
        "add rax, qword ptr [rsp + 8]",
        "add rsp, 24", ".cfi_adjust_cfa_offset -24",
        "pop r9", ".cfi_adjust_cfa_offset -8",
        "pop r8", ".cfi_adjust_cfa_offset -8",
        "pop rcx", ".cfi_adjust_cfa_offset -8",
        "pop rdx", ".cfi_adjust_cfa_offset -8",
        "pop rsi", ".cfi_adjust_cfa_offset -8",
        "pop rdi", ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        monotonic = const libc::CLOCK_MONOTONIC,
        clock_gettime = sym libc::clock_gettime,
    )
}

#[cfg(not(target_arch = "x86_64"))]
use culeak::system::monotonic_ns as now;

/// Records the free of a tensor without a stack.
#[inline(always)]
pub fn freed<const ASIDE: bool>(of: &Reported, event: &TensorEvent) -> Outcome {
    THREAD.with(|thread| {
        let slots = of.slots();
        if may_be_ending::<ASIDE>() || is_rare::<ASIDE>(slots, thread) {
            cold_path();
            return Outcome::Rare;
        }
        thread.recorded.set(true);
        of.freed(slots, event)
    })
}

#[inline(always)]
fn is_rare<const ASIDE: bool>(slots: Slots, thread: &ThreadState) -> bool {
    !thread.is_known() || !ASIDE && slots.counts_down()
}

/// Before CPython 3.12 at each event of a script: [`aside`] asks the interpreter.
#[inline(always)]
fn may_be_ending<const ASIDE: bool>() -> bool {
    !ASIDE && stacks::may_be_ending()
}

/// Does an event that [`known`] tensors have had no short way for, unless it is to take the usual one (`Rare`).
#[inline(always)]
pub fn aside(of: &Reported, event: &TensorEvent, work: Event) -> Outcome {
    let mut outcome = Outcome::Rare;
    if let Some(recording) = session::running().filter(|_| !hold::is_script_ending()) {
        // Known callers do not ask whether it is wanted again.
        if event.change > 0 && session::may_watch_script() {
            quietly(session::watch_script);
        }
        let mut work = || {
            outcome = work(of, event);
            outcome != Outcome::Rare
        };
        match of.slots().has_counted_down((cost::SAMPLE - 1).into()) {
            true => cost::measure(recording, work),
            false => _ = work(),
        }
    }
    outcome
}

/// Does what is left of an event.
pub fn finish(device: usize, event: &TensorEvent, outcome: Outcome) -> &'static Reported {
    let of = process::reported(device);
    if let Some(recording) = session::running() {
        recording.finish_tensor(of, device as u8, event, outcome);
    }
    of
}

/// The tensors of the device that the code at `caller` reports.
#[inline(always)]
fn reported_by(device: usize, caller: u64) -> Option<&'static Reported> {
    let of = (device < DEVICES).then(|| process::reported(device));
    of.filter(|of| of.is_of(caller))
}

/// The tensors that a report of the code at `caller` belongs to; `None`: they are as all other memory.
#[inline(always)]
pub fn reported(recording: &Recording, api: Api, device: i32, caller: u64) -> Option<&'static Reported> {
    if !sampling::is_on() {
        return None;
    }
    reported_by(device as usize, caller).or_else(|| begin(recording, api, device, caller))
}

/// Not the tensors of this code, or the first report of the device. Nothing on it was recorded before as a tensor, unless this process
/// began to record in between.
#[cold]
#[inline(never)]
fn begin(recording: &Recording, api: Api, device: i32, caller: u64) -> Option<&'static Reported> {
    let row = current::reported_device(recording, device);
    // Otherwise a child could take the parent's for its own.
    if i32::from(row) != device || usize::from(row) >= DEVICES || !process::is_wiped_in_children() {
        return None;
    }
    let of = process::reported(row.into());
    if of.may_begin() {
        let code = loader::find_containing(caller, |loaded| {
            loaded.file_name().starts_with(LIBRARY).then(|| loaded.bounds())
        });
        recording.begin_reported(of, row, api, code.flatten());
        // The first events are slow: they count for no others.
        return reported_by(row.into(), caller)
            .inspect(|of| _ = of.slots().has_counted_down((cost::SAMPLE - 1).into()));
    }
    reported_by(row.into(), caller)
}
