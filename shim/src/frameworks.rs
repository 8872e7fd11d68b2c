//! Blocks of a framework's allocator, which are parts of memory that the framework holds already, and phases that programs name.
//!
//! All but XLA report them under their own locks and from inside their own calls, so nothing here waits, and CUDA is not
//! asked anything.
//!
//! ```text
//! client_api   the functions of culeak.h, which programs call
//! bfc          functions that record and go on to TensorFlow's allocator
//! forwarding   functions that record and go on to a program's own allocator
//! pytorch      PyTorch's caching allocator
//! allocator_settings  its settings that a program makes by a call
//! autograd     backward passes of PyTorch
//! nvtx         NVTX heaps and regions, ranges and marks
//! phases       the phases that a thread is inside
//! names        names that live as long as the process
//! xla          XLA buffers
//! ```

mod allocator_settings;
pub mod autograd;
mod bfc;
pub mod client_api;
mod forwarding;
mod names;
mod nvtx;
mod phases;
pub mod pytorch;
pub mod xla;

use crate::recorder;
use culeak::lockfree::table::Space;
use culeak::recording::Recording;

/// A framework freed a block, which cannot fail.
#[unsafe(link_section = ".text.culeak_events")]
fn freed(space: Space, address: u64) {
    recorder::freed_then(space, address, Recording::withdraw, |_| ());
}
