//! The events of memory: what a hook calls to record one.
//!
//! ```text
//! a hook:   allocated(address, event)           recorded with time, thread, context, device, call and stack
//!           failed(error, event)                the request failed
//!           withdraw(space, address) ─► Held    before the real free; `Held::settle` with its result after it
//! ```
//!
//! A failure in this module loses records, which are counted, and does not affect the program: panics are caught, `errno`
//! is preserved, and no lock is held.
//!
//! ```text
//! session         the recording of this process: its start, a fork, its end
//! create          the recording's file, and the description of the process in it
//! auto_snapshot   snapshots that are taken while the program runs
//! current         the calling thread's current context and device
//! label           the calls that a thread is inside
//! cost            the recorder's own cost
//! hold            waiting for `culeak run --why`
//! job_variables   what launchers tell the process
//! kernel_name     the kernel that a thread is looking up
//! kernel_objects  the kernel driver's objects that segments belong to
//! segment_state   what no record of a segment has
//! thread          what a thread remembers between events
//! call            whether a call has been left without returning
//! unhooked        names of allocator-like functions that have no hook
//! sampling        which blocks get a stack
//! tensors         tensors without one
//! proof           facts about this process that `culeak run` reads
//! ```

pub mod auto_snapshot;
mod call;
mod cost;
mod create;
pub mod current;
mod hold;
pub mod job_variables;
pub mod kernel_name;
pub mod kernel_objects;
mod label;
mod list_search;
pub mod proof;
pub mod sampling;
pub mod segment_state;
mod session;
pub mod tensors;
mod thread;
mod unhooked;

pub use hold::note_main_thread;
pub use label::{FrameWord, Inside, Label, mark_recorded, note_caller, take_caller, take_caller_and_nesting};
pub use session::{is_exiting, note_end, recording, running, watch_exit};
pub use thread::{epoch, note_pool, pool_of_call, quietly, thread_row};

use crate::recorder::sampling::Chosen;
use crate::resolve::driver;
use crate::{messages, stacks};
use cost::Cost;
use culeak::cuda_functions::Api;
use culeak::format::{Loss, UNSAMPLED};
use culeak::kind::Kind;
use culeak::lockfree::shards::Shard;
use culeak::lockfree::table::{Attributes, Entry, Key, Link, Space, Withdrawn};
use culeak::recording::Recording;
use culeak_walker::Registers;
pub use thread::thread_and_shard;

/// What a hook knows about an allocation.
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
    pub device: Device,
    /// The hook's own frame, where the walk of the stack begins. The recorder's frames are not walked.
    pub at: Registers,
}

/// How to determine the device of an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// On the current device of the calling thread.
    Current,
    Ordinal(i32),
    Row(u8),
    /// The ordinal that a framework reports, which may hold locks: CUDA is not asked about it.
    Reported(i32),
    None,
}

impl AllocationEvent {
    /// Call it in a function that returns only after the event is recorded: the stack walk starts at its frame.
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

    #[inline(always)]
    pub fn in_space(self, space: Space) -> AllocationEvent {
        AllocationEvent { space, ..self }
    }
}

/// Adds what the hook does not know: time, thread, context, device, label, stack. For a node of a graph, which each launch
/// allocates again: its stack is sampled with the smallest mean distance, whatever the thread does.
#[inline(never)]
pub fn node_entry(recording: &Recording, event: &AllocationEvent) -> Entry {
    let chosen = sampling::chooses_node(event.bytes);
    entry_inline(recording, event, thread_and_shard(recording), chosen)
}

/// As [`node_entry`], with its stack even if stacks are sampled.
#[inline(never)]
fn entry_with_stack(recording: &Recording, event: &AllocationEvent) -> Entry {
    entry_inline(recording, event, thread_and_shard(recording), Some(Chosen::FOR_CERTAIN))
}

/// As [`node_entry`], for the most frequent event. `chosen`: by sampling; `None`: it gets no stack.
#[inline(always)]
fn entry_inline(recording: &Recording, event: &AllocationEvent, at: (u32, Shard), chosen: Option<Chosen>) -> Entry {
    let (context, device) = match event.device {
        Device::Current => current::context_and_device(recording),
        Device::Reported(ordinal) => (Attributes::NO_CONTEXT, current::reported_device(recording, ordinal)),
        _ => context_and_other_device(recording, event.device),
    };
    let api = label::named(event.api);
    Entry {
        bytes: event.bytes,
        requested: event.requested,
        // Exact without a stack too: the ends of contexts and of the script are compared with it.
        time_ns: recording.now(),
        extra: event.extra,
        pool: event.pool,
        stack: match chosen {
            Some(_) => {
                let is_of_framework = event.kind.is_within();
                stacks::stack(recording, event.at, at, is_of_framework, thread::refresh_name)
            }
            None => UNSAMPLED,
        },
        thread: at.0,
        attributes: Attributes {
            kind: event.kind,
            space: event.space,
            flags: event.flags,
            device,
            api,
            context,
            raised: chosen.map_or(0, |chosen| chosen.raised),
        },
    }
}

/// The context of an allocation on another device than the current one, and that device.
#[inline(never)]
#[unsafe(link_section = ".text.culeak_events")]
fn context_and_other_device(recording: &Recording, device: Device) -> (u16, u8) {
    let context = || current::context_and_device(recording).0;
    match device {
        Device::Current => current::context_and_device(recording),
        Device::Reported(ordinal) => (Attributes::NO_CONTEXT, current::reported_device(recording, ordinal)),
        Device::Ordinal(ordinal) => (context(), current::device_row(recording, ordinal)),
        Device::Row(row) => (context(), row),
        Device::None => (context(), Attributes::NO_DEVICE),
    }
}

/// The entry of a segment. The driver holds its locks meanwhile, so CUDA is not asked for anything; the context is known if the
/// device has only one.
pub fn segment_entry(recording: &Recording, event: &AllocationEvent, device: u8) -> Entry {
    let thread = thread_and_shard(recording);
    Entry {
        bytes: event.bytes,
        requested: event.requested,
        time_ns: recording.now(),
        extra: event.extra,
        pool: 0,
        stack: stacks::stack(recording, event.at, thread, false, thread::refresh_name),
        thread: thread.0,
        attributes: Attributes {
            kind: event.kind,
            space: Space::Segment,
            flags: 0,
            device,
            api: event.api.0,
            context: match kernel_objects::is_creating_context() {
                true => Attributes::NO_CONTEXT,
                false => recording.only_context(device).unwrap_or(Attributes::NO_CONTEXT),
            },
            raised: 0,
        },
    }
}

/// The calling thread starts a backward pass, in the hook whose frame is `at`.
pub fn begin_backward(recording: &Recording, task: u64, at: Registers) {
    let thread = thread_and_shard(recording);
    let stack = stacks::stack(recording, at, thread, true, thread::refresh_name);
    stacks::backward::begin(task, stack, thread.0);
}

#[inline]
pub fn key(space: Space, address: u64) -> Key {
    Key { space, address }
}

/// An allocation succeeded.
#[unsafe(link_section = ".text.culeak_events")]
pub fn allocated(address: u64, event: &AllocationEvent) {
    allocated_then(address, event, Recording::allocated_at, |_, _| ());
}

/// As [`allocated`], compiled into its caller. `insert` publishes the record; `then` gets the device's row when all else is recorded.
#[inline(always)]
pub fn allocated_then(
    address: u64,
    event: &AllocationEvent,
    insert: impl FnOnce(&Recording, Shard, Key, &Entry) -> bool,
    then: impl FnOnce(&Recording, u8),
) {
    mark_recorded();
    quietly(|| {
        let Some(recording) = session::recording_or_lose(Loss::Allocations) else {
            return;
        };
        // It may wait, which is not the recorder's cost.
        note_end(recording);
        session::watch_script();
        let cost = Cost::begin();
        let key = key(event.space, address);
        let at = thread_and_shard(recording);
        let (_, shard) = at;
        let chosen = sampling::chooses(recording, event.bytes);
        // Without a stack to take there is no time in which to fetch anything.
        if chosen.is_some() {
            recording.prepare(shard, key);
        }
        let entry = entry_inline(recording, event, at, chosen);
        if !insert(recording, shard, key, &entry) {
            messages::loss(recording);
        }
        cost.end(recording);
        auto_snapshot::allocated(recording, &entry);
        if recording.interval_was_exceeded() {
            auto_snapshot::exceeded(recording);
        }
        then(recording, entry.attributes.device);
    });
}

/// One call allocated several blocks of `event.bytes` each: they share the stack and the time, which are taken once.
pub fn allocated_together(addresses: impl Iterator<Item = u64>, event: &AllocationEvent) {
    mark_recorded();
    quietly(|| {
        let Some(recording) = session::recording_or_lose(Loss::Allocations) else {
            return;
        };
        note_end(recording);
        session::watch_script();
        let cost = Cost::begin();
        let (_, shard) = thread_and_shard(recording);
        let entry = entry_with_stack(recording, event);
        let mut was_lost = false;
        for address in addresses {
            let key = key(event.space, address);
            recording.prepare(shard, key);
            // Each block is chosen or not by itself; the stack was taken once.
            let chosen = sampling::chooses(recording, event.bytes);
            let entry = Entry {
                stack: chosen.map_or(UNSAMPLED, |_| entry.stack),
                attributes: Attributes {
                    raised: chosen.map_or(0, |chosen| chosen.raised),
                    ..entry.attributes
                },
                ..entry
            };
            was_lost |= !recording.allocated_out_of_line(shard, key, &entry);
        }
        if was_lost {
            messages::loss(recording);
        }
        cost.end(recording);
        auto_snapshot::allocated(recording, &entry);
        if recording.interval_was_exceeded() {
            auto_snapshot::exceeded(recording);
        }
    });
}

/// An allocation failed; `event.bytes` is the size of the request.
pub fn failed(error: i32, event: &AllocationEvent) {
    mark_recorded();
    quietly(|| {
        // Without a driver the error comes from the hook, and a process without CUDA has no recording.
        if !driver::is_loaded() {
            return;
        }
        let Some(recording) = recording() else { return };
        let entry = entry_with_stack(recording, event);
        if let Some(row) = recording.failed(&entry, error) {
            auto_snapshot::failed(recording, &entry, error, row);
        }
    });
}

/// A free that is about to happen; settle it with its result. If an exception, a jump or the end of the thread passes
/// through the hook, it is never settled: the allocation stays withdrawn and is reported as a call in flight.
pub struct Held(Option<Withdrawn<'static>>);

/// Removes an allocation from the recording before it is freed.
#[unsafe(link_section = ".text.culeak_events")]
pub fn withdraw(space: Space, address: u64) -> Held {
    mark_recorded();
    Held(
        quietly(|| {
            let recording = running()?;
            note_end(recording);
            let cost = Cost::begin();
            let withdrawn = recording.withdraw(key(space, address), thread_and_shard(recording).1);
            cost.end(recording);
            withdrawn
        })
        .flatten(),
    )
}

/// A free that cannot fail, so nothing is held; compiled into its caller. `withdraw` finds the record; `then` runs when all else is
/// recorded.
#[inline(always)]
pub fn freed_then(
    space: Space,
    address: u64,
    withdraw: impl FnOnce(&'static Recording, Key, Shard) -> Option<Withdrawn<'static>>,
    then: impl FnOnce(&Recording),
) {
    mark_recorded();
    quietly(|| {
        let Some(recording) = running() else { return };
        note_end(recording);
        let cost = Cost::begin();
        let (_, shard) = thread_and_shard(recording);
        match withdraw(recording, key(space, address), shard) {
            Some(withdrawn) => recording.commit(withdrawn, shard),
            None => recording.add(Loss::UnknownBlocks, 1),
        }
        cost.end(recording);
        then(recording);
    });
}

pub fn withdraw_linked(link: Link) -> Held {
    mark_recorded();
    Held(
        quietly(|| {
            let recording = running()?;
            note_end(recording);
            recording.withdraw_linked(link, thread_and_shard(recording).1)
        })
        .flatten(),
    )
}

/// CUDA_ERROR_DEINITIALIZED and cudaErrorCudartUnloading: the driver has shut down, and its memory is gone.
pub const TEARDOWN: i32 = 4;

impl Held {
    pub const NOTHING: Held = Held(None);

    pub fn is_something(&self) -> bool {
        self.0.is_some()
    }

    /// Ends the free of `address` by the driver's result: the record goes, or is restored if the free failed.
    #[inline(never)]
    #[unsafe(link_section = ".text.culeak_events")]
    pub fn settle(self, result: i32, address: u64) {
        quietly(|| {
            let Some(recording) = running() else { return };
            let (_, shard) = thread_and_shard(recording);
            match self.0 {
                Some(withdrawn) if result == 0 => recording.commit(withdrawn, shard),
                held => Held(held).settle_rarely(recording, shard, result, address),
            }
        });
    }

    /// Of a free that failed, or of an address without a record.
    #[cold]
    #[inline(never)]
    fn settle_rarely(self, recording: &Recording, shard: Shard, result: i32, address: u64) {
        match (self.0, result) {
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
    }
}

/// The driver returned an allocator-like function that has no hook. The name is kept until there is a recording.
pub fn returned_unhooked(name: &[u8]) {
    quietly(|| match running() {
        Some(recording) => recording.unhooked(name),
        None => unhooked::keep(name),
    });
}
