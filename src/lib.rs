//! culeak: a leak profiler for CUDA memory.
#![recursion_limit = "256"]
pub mod cuda_functions;
pub mod kind;
#[cfg(feature = "read")]
pub mod snapshot;
