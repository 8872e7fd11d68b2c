//! Tensors without a stack, if stacks are sampled: a short way into the recording ([`culeak::recording::Reported`]).
//!
//! It does what [`super::allocated_then`] and [`super::freed_then`] do if nothing is rare. What is rare is found out before anything
//! changes, and these two do it: the thread's first event, a tensor that gets a stack, the end of the script, automatic snapshots.
//! Nothing here can panic or changes `errno`.

use crate::recorder::cost::Cost;
use crate::recorder::thread::THREAD;
use crate::recorder::{auto_snapshot, current, hold, sampling, session};
use crate::resolve::loader;
use culeak::cuda_functions::Api;
use culeak::recording::{Recording, Reported, TensorEvent};
use culeak::system::cold_path;

/// The library of PyTorch's allocator, which has a lock for each device and holds it while it reports.
const LIBRARY: &[u8] = b"libc10_cuda";

/// Records a report of the code at `caller`. `None`: nothing was recorded, and the usual way is to be taken.
#[inline(always)]
pub fn recorded(api: Api, device: i32, caller: u64, event: &TensorEvent) -> Option<&'static Reported> {
    let recording = session::running()?;
    let of = recording.reported(device, caller)?;
    if hold::is_script_ending() {
        cold_path();
        return None;
    }
    THREAD.with(|thread| {
        let row = thread.known_row()?;
        let cost = Cost::begin();
        let device = device as u8;
        let is_recorded = if event.change > 0 {
            let (bytes, left) = (event.change as u64, thread.before_stack.get());
            let is_rare = bytes > left || hold::may_watch_script() || auto_snapshot::is_watching();
            let is_recorded = !is_rare && recording.tensor_allocated(of, device, api, row, event);
            if is_recorded {
                thread.before_stack.set(left - bytes);
            }
            is_recorded
        } else {
            event.change < 0 && recording.tensor_freed(of, device, event)
        };
        if !is_recorded {
            cold_path();
            return None;
        }
        thread.recorded.set(true);
        cost.end(recording);
        Some(of)
    })
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
