//! Blocks that a framework's allocator handed out: what PyTorch, XLA, NVTX and the client API report.

pub mod blocks;
pub mod client_api;
pub mod nvtx;
pub mod pytorch;
pub mod xla;
