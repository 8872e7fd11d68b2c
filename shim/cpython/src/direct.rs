//! When a thread without the GIL may read its own frames by plain loads.
//!
//! ```text
//! thread without the GIL    walking += 1    is it permitted?  ──► plain loads ──► walking -= 1
//! end of the script         permitted = false    wait until walking = 0    (then the interpreter deletes thread states)
//! ```
//!
//! A thread's state, its frames and their code objects are changed by that thread alone, until the interpreter finalizes and
//! deletes them under daemon threads. A walk counts itself and then asks, and the end forbids and then reads the count, all in one total order. So either the walk sees that it is not
//! permitted any more, or the end sees the walk and waits for it. Reading is permitted only while the interpreter is certain
//! to announce its end, by the callback of [`crate::ending`]. Otherwise the kernel reads ([`crate::memory`]).
//!
//! Deliberately absent: a thread state that another thread deletes while the interpreter runs. CPython has no such call that a
//! program may make while its owner is in a CUDA call.

use crate::sync::{AtomicBool, AtomicU32, pause};
use std::sync::atomic::Ordering::*;

/// A power of two.
const LINES: usize = if cfg!(loom) { 1 } else { 16 };
/// A walk takes less than 0.1 ms. The end waits 0.1 s at most, for a thread that was stopped in one or cancelled.
const PAUSES: u32 = if cfg!(loom) { u32::MAX } else { 2000 };

/// Few threads share a line, which is one of the cache.
#[repr(align(64))]
struct Line(AtomicU32);

pub struct Gate {
    permitted: AtomicBool,
    walking: [Line; LINES],
}

/// A walk that the end of the script waits for.
pub struct Walk<'a>(&'a AtomicU32);

impl Gate {
    /// Called by the thread whose state this is.
    #[inline(always)]
    pub fn enter(&self, thread: u64) -> Option<Walk<'_>> {
        let line = &self.walking[(thread >> 8) as usize & (LINES - 1)].0;
        line.fetch_add(1, SeqCst);
        let walk = Walk(line);
        self.permitted.load(SeqCst).then_some(walk)
    }

    pub fn permit(&self) {
        self.permitted.store(true, Relaxed);
    }

    /// Returns when no thread reads directly.
    #[cold]
    pub fn forbid(&self) {
        if !self.permitted.swap(false, SeqCst) {
            return;
        }
        for line in &self.walking {
            for _ in 0..PAUSES {
                if line.0.load(SeqCst) == 0 {
                    break;
                }
                pause();
            }
        }
    }

    /// In a forked child, where no other thread exists. Callbacks that are registered stay so.
    pub fn forked(&self) {
        for line in &self.walking {
            line.0.store(0, Relaxed);
        }
    }
}

impl Drop for Walk<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: what was read was read before.
        self.0.fetch_sub(1, Release);
    }
}

impl Gate {
    #[cfg(not(loom))]
    const fn new() -> Gate {
        Gate {
            permitted: AtomicBool::new(false),
            walking: [const { Line(AtomicU32::new(0)) }; LINES],
        }
    }

    #[cfg(loom)]
    pub fn new() -> Gate {
        Gate {
            permitted: AtomicBool::new(false),
            walking: std::array::from_fn(|_| Line(AtomicU32::new(0))),
        }
    }
}

/// The interpreter's.
#[cfg(not(loom))]
#[unsafe(link_section = ".data.culeak_events")]
pub static GATE: Gate = Gate::new();
