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
#[unsafe(link_section = ".data.culeak_events")]
pub static MEAN: AtomicU64 = AtomicU64::new(0);
/// The most stacks a second that a thread takes before its mean distance is raised; 0: as many as there are.
static RATE: AtomicU64 = AtomicU64::new(0);
/// Differs from thread to thread, and from run to run unless the user sets it.
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
    SEED.store(settings::sample_seed().unwrap_or_else(monotonic_ns), Relaxed);
    recording.enable_sampling(mean);
    RATE.store(settings::stack_rate(), Relaxed);
    MEAN.store(mean, Relaxed);
}

/// Whether some blocks get no stack.
#[inline(always)]
pub fn is_on() -> bool {
    MEAN.load(Relaxed) != 0
}

/// A block that gets a stack.
#[derive(Clone, Copy)]
pub struct Chosen {
    /// How often the mean distance was raised when it was chosen; its record says so.
    pub raised: u8,
}

impl Chosen {
    pub const FOR_CERTAIN: Chosen = Chosen { raised: 0 };
}

/// Whether a block of this size gets a stack. What holds no bytes always does.
#[inline(always)]
pub fn chooses(recording: &Recording, bytes: u64) -> Option<Chosen> {
    let mean = MEAN.load(Relaxed);
    if mean == 0 {
        return Some(Chosen::FOR_CERTAIN);
    }
    THREAD.with(|thread| {
        let left = thread.before_stack.get();
        // 0 bytes wrap to more than any distance.
        if bytes.wrapping_sub(1) < left {
            thread.before_stack.set(left - bytes);
            return None;
        }
        match bytes {
            0 => Some(Chosen::FOR_CERTAIN),
            _ => reaches(recording, thread, bytes, mean),
        }
    })
}

/// As [`chooses`], with the smallest mean distance, and without a change of what the thread's other blocks get.
pub fn chooses_node(bytes: u64) -> Option<Chosen> {
    let mean = MEAN.load(Relaxed);
    let is_chosen = mean == 0
        || bytes == 0
        || THREAD.with(|thread| {
            begin(thread);
            // The chance that a distance ends within the block.
            draw(thread, mean) <= bytes
        });
    is_chosen.then_some(Chosen::FOR_CERTAIN)
}

/// The distance is used up, or the thread has none yet.
#[cold]
#[inline(never)]
fn reaches(recording: &Recording, thread: &ThreadState, bytes: u64, mean: u64) -> Option<Chosen> {
    if !thread.has_distance.replace(true) {
        begin(thread);
        let first = draw(thread, mean);
        if bytes < first {
            thread.before_stack.set(first - bytes - 1);
            return None;
        }
    }
    let chosen = Chosen {
        raised: thread.raised.get(),
    };
    if chosen.raised > 0 {
        // A forked child goes on with its parent's distance, and its recording does not know it yet.
        recording.sampling_raised(chosen.raised);
    }
    let rate = RATE.load(Relaxed);
    if rate > 0 {
        regulate(recording, thread, rate);
    }
    // The distribution has no memory, so neither what the block exceeds the distance by matters, nor that the mean may be
    // another one from here on.
    let mean = sampling::mean_of(mean, thread.raised.get());
    thread.before_stack.set(draw(thread, mean) - 1);
    Some(chosen)
}

/// Raises or lowers the thread's mean distance by the rate at which it takes stacks. Only what has happened decides, so each
/// block is still chosen with the probability that its record states.
fn regulate(recording: &Recording, thread: &ThreadState, rate: u64) {
    let now = recording.now();
    let taken = thread.taken.get() + 1;
    thread.taken.set(taken);
    let elapsed = now.saturating_sub(thread.window_ns.get());
    if let Some(raised) = sampling::regulated(thread.raised.get(), taken, elapsed, rate) {
        if raised > thread.raised.get() {
            recording.sampling_raised(raised);
        }
        thread.raised.set(raised);
        thread.taken.set(0);
        thread.window_ns.set(now);
    }
}

/// Seeds the thread's generator, once. Each thread takes the next number.
fn begin(thread: &ThreadState) {
    if thread.random.get() == 0 {
        let seed = SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        thread.random.set(mix(seed) | 1);
    }
}

fn draw(thread: &ThreadState, mean: u64) -> u64 {
    let state = sampling::next(thread.random.get());
    thread.random.set(state);
    sampling::distance(state, mean)
}
