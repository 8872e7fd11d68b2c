//! culeak: a leak profiler for CUDA memory.
#![recursion_limit = "256"]
pub mod cuda_functions;
pub mod file;
pub mod growing;
pub mod index;
pub mod kind;
pub mod layout;
#[cfg(feature = "read")]
pub mod snapshot;
#[cfg(feature = "read")]
pub mod function_name;
#[cfg(feature = "read")]
pub mod error_name;
#[cfg(feature = "read")]
pub mod site;
#[cfg(feature = "read")]
pub mod report;
#[cfg(feature = "read")]
pub mod diff;
#[cfg(feature = "read")]
pub mod check;
#[cfg(feature = "read")]
pub mod reader;
pub mod recording;
pub mod table;

#[cfg(test)]
extern crate self as culeak;
#[cfg(test)]
mod sample;
