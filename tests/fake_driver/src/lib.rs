//! A fake `libcuda.so.1`: the behaviour of the CUDA driver that a leak profiler can observe, without a GPU.
//!
//! ```text
//! program or cudart ─► exported function ─► gate ─► Driver (one lock) ─► tables of objects, arenas of addresses
//!                      verbs.rs, *.rs       gate.rs  driver.rs
//! ```
//! Used by tests and by `culeak demo`: a folder with a link `libcuda.so.1 -> libculeak_fake_driver.so` comes first in
//! `LD_LIBRARY_PATH`. The functions that affect memory come from culeak's own list (`verbs.rs`), so that a new row is
//! implemented by its verb; those around them (devices, streams, copies, modules) are written out here.
//!
//! `kernel.rs` makes the requests by which NVIDIA's CUDA driver obtains memory from the kernel driver, if a test wants them.
//!
//! Memory is address space: a gibibyte on the fake device uses no host memory until it is touched. Kernels are
//! accepted and not run.

mod arena;
mod arguments;
mod arrays;
mod contexts;
mod copies;
mod devices;
mod driver;
mod exports;
mod gate;
mod graphs;
mod kernel;
mod lookups;
mod memory;
mod modules;
mod names;
mod pools;
mod settings;
mod sharing;
mod streams;
mod tables;
mod verbs;
mod vmm;
