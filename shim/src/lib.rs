//! The library that is preloaded into CUDA programs.
//!
//! It runs inside the user's process: once a recording has started it allocates nothing from the heap, no panic crosses
//! its boundary, `errno` is preserved, and CUDA is asked for nothing but the current context and device. Nothing waits,
//! except for a part of the file that another thread is creating, and then for two seconds at most. Signals, descriptors
//! below 64 and all but 16 KiB of the stack are left to the program (`culeak::system`). The library needs libc and the
//! loader alone, is never unloaded, and does nothing until the process uses CUDA.
//!
//! # Where a call goes
//!
//! ```text
//! cuMemAlloc_v2(out, bytes)
//!   hooks       the exported symbol `cuMemAlloc_v2`, generated from its row: `allocates(Device, out, bytes)`
//!   effects     `allocates`: call the real function, then record
//!   resolve       `next::definition`, `driver::function`: the real function
//!   recorder    `allocated`: the recording, the thread, the current context and device, the name of the call
//!   stacks        `stack`: native and Python frames
//!   culeak::recording::Recording::allocated_at
//! ```
//!
//! `cuMemFree_v2` takes the same way through `effects::frees`, which withdraws the record before the real call and restores
//! it if the call fails (`recorder::Held::settle`). A new CUDA function is a new row in `culeak::cuda_functions`.
//!
//! Every module uses only modules that come after it in the list below.
#![recursion_limit = "512"]

/// What each verb of the function list does to the recording, and in which order around the real call.
mod effects;
/// What PyTorch, XLA, NVTX and programs report about blocks of their allocators.
mod frameworks;
/// The exported functions, generated from the function list.
mod hooks;
/// Lines on stderr.
mod messages;
/// The events of memory, and the recording they go to.
mod recorder;
/// The functions that a hook's call goes on to.
mod resolve;
/// The variables of the environment.
mod settings;
/// The stack of the calling thread.
mod stacks;

/// Asks the loader while no other thread runs, so that no hook has to.
extern "C" fn at_start() {
    resolve::dl::ensure();
    let (name, address) = frameworks::client_api::EXPORTED;
    resolve::search::look_for_other_copies(name, address());
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;
