//! Blocks of a framework's allocator, which are parts of memory that it holds already.
//!
//! The framework reports them under its own locks and from inside its own calls, so nothing here waits, and CUDA is not
//! asked anything. A report that a block was freed cannot fail.

use crate::recorder::{self, AllocationEvent};
use culeak::format::Loss;
use culeak::lockfree::table::Space;

pub fn allocated(address: u64, event: &AllocationEvent) {
    recorder::allocated(address, event);
}

pub fn freed(space: Space, address: u64) {
    let held = recorder::withdraw(space, address);
    if held.is_something() {
        held.settle(0, address);
    } else if let Some(recording) = recorder::running() {
        recording.add(Loss::UnknownBlocks, 1);
    }
}
