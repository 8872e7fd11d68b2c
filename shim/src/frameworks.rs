//! Blocks that a framework's allocator hands out of memory that it holds already.

/// How all but XLA record a block.
mod blocks;
/// The client API of `culeak.h`.
pub mod client_api;
/// NVTX heaps and regions.
mod nvtx;
/// PyTorch's caching allocator.
pub mod pytorch;
/// XLA buffers.
pub mod xla;
