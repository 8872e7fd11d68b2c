//! culeak: a leak profiler for CUDA memory.
pub mod kind;
#[cfg(feature = "read")]
pub mod snapshot;
