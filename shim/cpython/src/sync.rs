//! Atomics and the pause of [`crate::direct`]. Its model (`shim/walker/tests/python_gate.rs`) replaces them by loom's.

pub use std::sync::atomic::{AtomicBool, AtomicU32};

pub fn pause() {
    // SAFETY: no preconditions.
    unsafe { libc::usleep(50) };
}
