//! The recorder's own cost: each of a thread's first events is measured, and then a sample.

use crate::recorder::thread::{THREAD, ThreadState};
use culeak::format::Loss;
use culeak::recording::Recording;
use culeak::system::monotonic_ns;

/// When the event began; 0: it is not measured.
pub struct Cost(u64);

/// How many events of a thread are measured before sampling begins.
const EACH: u32 = 16;
const LAST: u32 = EACH - 1;
/// After those, one in this many is measured. Odd, since allocations and frees often alternate.
pub const SAMPLE: u32 = 61;

impl Cost {
    #[inline(always)]
    pub fn begin() -> Cost {
        THREAD.with(|thread| match thread.unmeasured.get() {
            0 => Cost(begin(thread)),
            left => {
                thread.unmeasured.set(left - 1);
                Cost(0)
            }
        })
    }

    #[inline(always)]
    pub fn end(self, recording: &Recording) {
        if self.0 > 0 {
            end(recording, self.0);
        }
    }
}

/// Does work that is one event of [`SAMPLE`]. False: it did nothing, and is not measured.
pub fn measure(recording: &Recording, work: impl FnOnce() -> bool) {
    let began = monotonic_ns();
    if work() {
        let spent = monotonic_ns().saturating_sub(began);
        recording.add(Loss::RecorderNs, spent * u64::from(SAMPLE));
    }
}

#[cold]
#[inline(never)]
fn begin(thread: &ThreadState) -> u64 {
    thread.unmeasured.set(match thread.measured.get() {
        0..LAST => 0,
        LAST => SAMPLE - EACH,
        _ => SAMPLE - 1,
    });
    thread.measured.set((thread.measured.get() + 1).min(EACH + 1));
    monotonic_ns()
}

#[cold]
#[inline(never)]
fn end(recording: &Recording, began: u64) {
    let spent = monotonic_ns().saturating_sub(began);
    // How many events this one represents.
    let weight = THREAD.with(|thread| if thread.measured.get() > EACH { SAMPLE } else { 1 });
    recording.add(Loss::RecorderNs, spent * u64::from(weight));
}
