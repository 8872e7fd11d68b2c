//! A fake `libcuda.so.1`: what a leak profiler can see of the CUDA driver, without a GPU.
//!
//! ```text
//! program or cudart ─► exported function ─► gate ─► Driver (one lock) ─► tables of objects, arenas of addresses
//!                      verbs.rs, *.rs       gate.rs  driver.rs
//! ```
//! Used by tests and by `culeak demo`: a folder with a link `libcuda.so.1 -> libculeak_fake_driver.so` stands first in
//! `LD_LIBRARY_PATH`. The functions that touch memory come from culeak's own list (`verbs.rs`), so that a new row is
//! imitated by its verb; those around them (devices, streams, copies, modules) are written out here.
//!
//! Memory is address space: a gibibyte on the fake device costs no host memory until it is touched. Kernels are
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
