//! Tensors without a stack, if stacks are sampled: a short way into the recording ([`culeak::recording::Reported`]).
//!
//! It does what [`super::allocated_then`] and [`super::freed_then`] do if nothing is rare. What is rare is found out before anything
//! changes, and these two do it: the thread's first event, a tensor that gets a stack, the end of the script, automatic snapshots.
//! Nothing here can panic or changes `errno`.

use crate::recorder::cost::Cost;
use crate::recorder::thread::{THREAD, ThreadState};
use crate::recorder::{auto_snapshot, current, hold, sampling, session};
use crate::resolve::loader;
use culeak::cuda_functions::Api;
use culeak::recording::{Recording, Reported, TensorEvent};
use culeak::system::{cold_path, monotonic_ns};

/// The library of PyTorch's allocator, which has a lock for each device and holds it while it reports.
const LIBRARY: &[u8] = b"libc10_cuda";

/// Records a tensor that the code at `caller` reports. `None`: nothing was recorded, and the usual way is to be taken.
#[inline(always)]
pub fn allocated(api: Api, device: i32, caller: u64, event: &TensorEvent) -> Option<&'static Reported> {
    // First, since a call needs all registers.
    let cost = Cost::begin();
    let now = monotonic_ns();
    recorded(device, caller, cost, |recording, of, thread, row| {
        let (bytes, left) = (event.change as u64, thread.before_stack.get());
        // As in `sampling::chooses`; 0 bytes are no tensor.
        let is_rare = bytes.wrapping_sub(1) >= left || hold::may_watch_script() || auto_snapshot::is_watching();
        let is_recorded = !is_rare && recording.tensor_allocated(of, device as u8, api, row, now, event);
        if is_recorded {
            thread.before_stack.set(left - bytes);
        }
        is_recorded
    })
}

/// Records the free of a tensor. As [`allocated`].
#[inline(always)]
pub fn freed(device: i32, caller: u64, event: &TensorEvent) -> Option<&'static Reported> {
    recorded(device, caller, Cost::begin(), |recording, of, _, _| {
        recording.tensor_freed(of, device as u8, event)
    })
}

#[inline(always)]
fn recorded(
    device: i32,
    caller: u64,
    cost: Cost,
    work: impl FnOnce(&Recording, &Reported, &ThreadState, u32) -> bool,
) -> Option<&'static Reported> {
    let recording = session::running()?;
    let of = recording.reported(device, caller)?;
    let is_recorded = THREAD.with(|thread| {
        let row = thread.known_row().filter(|_| !hold::is_script_ending());
        let is_recorded = row.is_some_and(|row| work(recording, of, thread, row));
        if is_recorded {
            thread.recorded.set(true);
        }
        is_recorded
    });
    if !is_recorded {
        cold_path();
        return None;
    }
    cost.end(recording);
    Some(of)
}

/// The tensors that a report of the code at `caller` belongs to; `None`: they are as all other memory.
#[inline(always)]
pub fn reported(recording: &Recording, device: i32, caller: u64) -> Option<&Reported> {
    if !sampling::is_on() {
        return None;
    }
    match recording.reported(device, caller) {
        None if recording.may_begin_reported(device) => begin(recording, device, caller),
        of => of,
    }
}

/// The first report of the device. Nothing on it was recorded before as a tensor, unless this process began to record in between.
#[cold]
#[inline(never)]
fn begin(recording: &Recording, device: i32, caller: u64) -> Option<&Reported> {
    let row = current::reported_device(recording, device);
    let code = loader::find_containing(caller, |loaded| {
        loaded.file_name().starts_with(LIBRARY).then(|| loaded.bounds())
    });
    if i32::from(row) == device {
        recording.begin_reported(row, code.flatten());
    }
    recording.reported(device, caller)
}
