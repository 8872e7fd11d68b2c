//! The recorder's own cost: each of a thread's first events is measured, and then a sample.

use crate::recorder::thread::THREAD;
use culeak::format::Loss;
use culeak::recording::Recording;
use culeak::system::monotonic_ns;

/// Measures from its creation until it is dropped.
pub struct Cost<'a> {
    recording: &'a Recording,
    began: u64,
    /// How many events this one represents; 0: not measured.
    weight: u64,
}

/// How many events of a thread are measured before sampling begins.
const EACH: u32 = 16;
/// After those, one in this many is measured. Odd, since allocations and frees often alternate.
const SAMPLE: u32 = 61;

impl<'a> Cost<'a> {
    #[inline]
    pub fn of(recording: &'a Recording) -> Cost<'a> {
        let event = THREAD.with(|thread| thread.events.replace(thread.events.get().wrapping_add(1)));
        let weight = match event {
            0..EACH => 1,
            _ if event.is_multiple_of(SAMPLE) => SAMPLE.into(),
            _ => 0,
        };
        Cost {
            recording,
            began: if weight > 0 { now() } else { 0 },
            weight,
        }
    }
}

impl Drop for Cost<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.weight > 0 {
            self.add();
        }
    }
}

impl Cost<'_> {
    #[cold]
    #[inline(never)]
    fn add(&self) {
        let spent = now().saturating_sub(self.began);
        self.recording.add(Loss::RecorderNs, spent * self.weight);
    }
}

#[cold]
#[inline(never)]
fn now() -> u64 {
    monotonic_ns()
}
