//! Which blocks get a stack if stacks are sampled (`culeak::sampling`): a count of bytes per thread.

use std::sync::atomic::{AtomicU64, Ordering::*};

use crate::messages;
use crate::recorder::thread::{THREAD, ThreadState};
use crate::settings;
use culeak::lockfree::index::mix;
use culeak::recording::Recording;
use culeak::sampling;
use culeak::system::monotonic_ns;
use culeak::variables;

/// The mean distance in bytes; 0: each block gets its stack.
static MEAN: AtomicU64 = AtomicU64::new(0);
/// Differs from thread to thread, and from run to run unless a test sets it.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Reads the settings of a new recording.
pub fn configure(recording: &Recording) {
    let mean = settings::sample();
    let needs_all = [
        (variables::TIMELINE, settings::timeline().is_some()),
        (variables::INTERVALS, settings::is_set(variables::INTERVALS)),
    ];
    let conflict = needs_all.iter().find(|(_, is_set)| *is_set && mean > 0);
    if let Some((variable, _)) = conflict {
        messages::sampling_is_ignored(variable);
    }
    let mean = if conflict.is_some() { 0 } else { mean };
    SEED.store(settings::sampling_seed().unwrap_or_else(monotonic_ns), Relaxed);
    recording.enable_sampling(mean);
    MEAN.store(mean, Relaxed);
}

/// Whether a block of this size gets a stack. What holds no bytes always does.
#[inline(always)]
pub fn chooses(bytes: u64) -> bool {
    let mean = MEAN.load(Relaxed);
    mean == 0
        || THREAD.with(|thread| {
            let left = thread.until_stack.get();
            // `left` is at least 1, and 0 bytes wrap to more than any distance.
            if bytes.wrapping_sub(1) < left - 1 {
                thread.until_stack.set(left - bytes);
                return false;
            }
            bytes == 0 || reaches(thread, bytes, mean)
        })
}

/// The distance is used up, or the thread has none yet.
#[cold]
#[inline(never)]
fn reaches(thread: &ThreadState, bytes: u64, mean: u64) -> bool {
    if thread.random.get() == 0 {
        // Each thread takes the next number.
        let seed = SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        thread.random.set(mix(seed) | 1);
        let first = draw(thread, mean);
        if bytes < first {
            thread.until_stack.set(first - bytes);
            return false;
        }
    }
    // The distribution has no memory, so what the block exceeds the distance by does not matter.
    thread.until_stack.set(draw(thread, mean));
    true
}

fn draw(thread: &ThreadState, mean: u64) -> u64 {
    let state = sampling::next(thread.random.get());
    thread.random.set(state);
    sampling::distance(state, mean)
}
