//! culeak, a leak profiler for CUDA memory: the parts that are plain data.
//!
//! One allocation, from the call to the report:
//!
//! ```text
//! cudaMalloc(&p, 4 << 20)                      the program
//!   └─ hook          shim/src/hooks.rs         one per row of cuda_functions.rs
//!      └─ effect     shim/src/effects.rs       "allocates": call the driver first, then record
//!         └─ entry   shim/src/recorder.rs      time, thread, context, device, label
//!            ├─ stack   shim/src/capture.rs    return addresses, each tied to its module, and Python's frames in between
//!            └─ record  recording.rs, lockfree/table.rs 64 bytes in the mapped file, found again by address
//! ```
//!
//! ```text
//! recording ─► reader ─► snapshot ─► (symbols: cli) ─► site ────► groups ────► ledger ────► report | diff | trend | check ─► (text: cli)
//!   layout.rs   reader.rs  snapshot.rs                 whose line  added up    where it is  what is left, changed, allowed
//! ```
//!
//! The decisions behind it, and what would change them:
//!
//! - **Recorded at the driver layer, once.** Every runtime allocation reaches exactly one public driver function (seen on
//!   driver 580 with cudart 13, shared and static). Runtime hooks only add the name of the call the program wrote, and
//!   record themselves if the driver layer saw nothing.
//! - **Three doors**: exported symbols, `dlsym`/`dlvsym`, and `cuGetProcAddress`. cudart comes through the last two only.
//!   What is handed out is decided by the address the real resolver returned: no table of ABI versions.
//! - **Frees first**: a record is withdrawn before the real free and restored if that fails ([`table`]).
//! - **One file per process, complete at every instant** ([`layout`], [`file`]): nothing has to be flushed, so a killed
//!   process loses nothing. It is allocated before it is touched, so a full disk costs records and never a signal.
//! - **Stacks on allocations only**, stored once as a trie of (module, address), named later, in another process.
//!   Python's frames are read out of the interpreter's memory, without the GIL and without asking it to do anything, and
//!   stand where the interpreter's own frames stood; each function is described once.
//! - **A leak** is memory still live at exit whose context nobody destroyed. Destroying a context frees linear, host and
//!   managed memory and arrays, but no pool and no VMM memory. VMM memory lives while a handle or a mapping does. An
//!   opened IPC handle is a window, not memory. Graph memory is live from a launch to its free, not from its capture.
//! - **Every report ends with what it could not see** ([`snapshot::Losses`]).
//!
//! This crate knows no hooks, no symbol files and no terminal. The shim uses it without the `read` feature.
#![recursion_limit = "256"]

pub mod cuda_functions;
pub mod kind;
mod numbered;
pub mod quantities;
pub mod system;
pub mod variables;

pub mod file;
pub mod format;
pub mod lockfree;
pub mod proof;
#[cfg(not(loom))]
pub mod recording;

#[cfg(feature = "read")]
pub mod analysis;
#[cfg(feature = "read")]
pub mod reader;
#[cfg(feature = "read")]
pub mod snapshot;

/// Hand-made snapshots, shared with the tests of the CLI, where `culeak` is another crate.
#[cfg(all(test, feature = "read"))]
#[path = "../tests/support/sample.rs"]
mod sample;
#[cfg(test)]
extern crate self as culeak;
