//! The library that is preloaded into CUDA programs.
//!
//! ```text
//! program ─► doors    exported symbols, dlsym, cuGetProcAddress: how a call gets to us
//!            hooks    one per function, generated from the list; each is one verb
//!            effects  what the verb does to the recording, and in which order around the real call
//!            recorder is there a recording, which thread, what does the entry say
//!            capture  where the call came from
//!            real     the function that the call goes on to: the next definition, or the driver's own
//!            search   the next definition in the caller's search order, out of the loaded objects' tables
//! ```
//!
//! It lives in a stranger's process: nothing allocates from the heap once a recording has begun, nothing panics across the
//! boundary, `errno` leaves as it came, and CUDA is asked for the current context and device only. Nothing waits, but for
//! a part of the file that another thread is making, and for that two seconds at most. Signals, descriptors below 64 and
//! all but 16 KiB of the stack stay the program's (`culeak::system`).
//! It needs libc and the loader alone, is never unloaded, and does nothing at all until the process uses CUDA.
#![recursion_limit = "512"]

mod effects;
mod frameworks;
mod hooks;
mod messages;
mod recorder;
mod resolve;
mod settings;
mod stacks;
