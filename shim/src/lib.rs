//! The library that is preloaded into CUDA programs.
//!
//! It runs inside the user's process: once a recording has started it allocates nothing from the heap, no panic crosses
//! its boundary, `errno` is preserved, and the only calls of CUDA besides the program's own are a few queries
//! (`resolve::driver`). Waiting for another thread ends after two seconds at most, and then counts as a loss; waiting for
//! `culeak run --why` (`recorder::hold`) happens only if the user asked for it. Signals,
//! descriptors below 64 and all but 16 KiB of the stack are left to the program (`culeak::system`). The library needs
//! libc and the loader alone, is never unloaded, and does nothing until the process uses CUDA.
//!
//! # Where a call goes
//!
//! ```text
//! cuMemAlloc_v2(out, bytes)
//!   hooks      the exported symbol, generated from the row `cuMemAlloc_v2 … => allocates(Device, out, bytes)`
//!   resolve      next::definition, driver::function: the real function
//!   effects    allocates: call the real function, then record
//!   recorder     allocated: the recording, the thread, the current context and device, the name of the call
//!   stacks         stack: native and Python frames
//!   culeak::recording                            src/recording/allocations.rs: allocated_at
//!     culeak::lockfree::table                      src/lockfree/table.rs: insert writes the record into the file
//! ```
//!
//! `cuMemFree_v2` takes the same path through `effects::frees`, which withdraws the record before the real call and
//! restores it if the call fails (`recorder::Held::settle`). To add a CUDA function, add a row to
//! `culeak::cuda_functions`.
//!
//! # Cache lines
//!
//! The driver evicts this library's cache lines between two events, so what counts is how many an event touches. Static words that
//! most events read are in a section of their own, `.data.culeak_events`, and share two lines. The thread's words
//! (`recorder::thread`) share one, and so do the recording's (`culeak::recording::Often`). The functions that most events call are in
//! `.text.culeak_events`, on adjacent pages, and what they rarely do is behind the rest (`culeak::system::cold_path`).
//!
//! # The modules
//!
//! Each uses only those below it, and starts with a map of its own.
//!
//! ```text
//! hooks        the exported functions, generated from the function list, and the look-ups that return them
//! frameworks   blocks that PyTorch, XLA, NVTX and programs report
//! effects      what each verb of the function list does to the recording, and in which order around the real call
//! recorder     the events of memory, and the recording that they go to
//! stacks       the calling thread's stack
//! resolve      the functions that a hook's call goes on to
//! messages     lines on stderr
//! settings     the variables of the environment
//! process      what belongs to this process alone, and not to its children
//! ```
#![recursion_limit = "512"]

mod effects;
mod frameworks;
mod hooks;
mod messages;
mod process;
mod recorder;
mod resolve;
mod settings;
mod stacks;

/// In a forked child. A process without CUDA has this handler too, so it makes no system call.
extern "C" fn forked_child() {
    resolve::closing::forget_parents_calls();
    recorder::proof::forked();
}

/// Before the program starts: finds the loader's functions and other copies of this library in the process, and reads what is
/// needed before there is a recording.
extern "C" fn at_start() {
    resolve::dl::ensure();
    hooks::find_next_ioctl();
    recorder::note_main_thread();
    // SAFETY: this library is never unloaded; the handler changes atomics and a variable of the thread.
    unsafe { libc::pthread_atfork(None, None, Some(forked_child)) };
    let (name, address) = frameworks::client_api::EXPORTED;
    resolve::search::look_for_other_copies(name, address());
    hooks::announce_to_audit();
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;
