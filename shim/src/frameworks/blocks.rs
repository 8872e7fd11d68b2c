//! Blocks that a framework's allocator hands out of memory it already holds, whichever framework it is.
//!
//! They are told under the framework's own locks and from inside its own calls. So nothing here waits, and CUDA is not
//! asked anything. A block is gone when the framework says so; there is no call that could fail.

use crate::recorder::{self, AllocationEvent};
use culeak::format::Loss;
use culeak::lockfree::table::Space;

pub fn handed_out(address: u64, event: &AllocationEvent) {
    recorder::allocated(address, event);
}

pub fn taken_back(space: Space, address: u64) {
    let held = recorder::withdraw(space, address);
    if held.is_something() {
        held.settle(0, address);
    } else if let Some(recording) = recorder::running() {
        recording.add(Loss::UnknownBlocks, 1);
    }
}
