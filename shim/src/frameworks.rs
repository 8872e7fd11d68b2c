//! Blocks of a framework's allocator, which are parts of memory that the framework holds already.
//!
//! ```text
//! client_api   the functions of culeak.h, which programs call
//! pytorch      PyTorch's caching allocator
//! nvtx         NVTX heaps and regions
//! xla          XLA buffers
//! blocks       how all but XLA record a block
//! ```

mod blocks;
pub mod client_api;
mod nvtx;
pub mod pytorch;
pub mod xla;
