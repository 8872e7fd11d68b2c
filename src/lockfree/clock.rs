//! CLOCK_MONOTONIC for the most frequent events: for 250 us after a reading of the real clock, the processor's time stamp counter
//! says how much time has passed since. The counter takes one instruction; the real clock waits until every earlier load is done.
//!
//! ```text
//!  base                          known        an event
//! ──┬──────────────────────────────┬─────────────┬───────► ticks of the counter
//!   └── 10 ms or more: the ratio ──┘             └ known + ticks since × ratio
//!       of nanoseconds to ticks      250 us or less; else the real clock is read and becomes known
//! ```
//!
//! Why its times are true:
//! - It is used only where the kernel itself derives CLOCK_MONOTONIC from the counter, which then runs at one rate on all cores.
//! - It does not drift, since it is never more than 250 us away from a reading. That a daemon adjusts the clock by its fastest rate
//!   (0.05 %) moves an event by 0.1 us.
//! - A counter that was set back, or went on while the machine slept, is too far away from the last reading. If its rate changes by
//!   more than 0.1 % (the process was moved to another machine), it is not used again.
//! - It does not run backwards. All threads use the same reading. If the next one is earlier than what the counter says, which is
//!   less than 0.3 us, the clock is slowed down by 0.1 % until it agrees.
//!
//! Readers take no lock: a reader that meets a writer reads the real clock instead. `loom_models` checks that none sees half a
//! reading.

use std::sync::atomic::Ordering::*;

use crate::lockfree::sync::{AtomicU64, fence};
use crate::system::{cold_path, monotonic_ns};

/// How long after a reading the counter is used.
const WINDOW_NS: u64 = 250_000;
/// The ratio follows from readings that are at least this far apart.
const BASE_NS: u64 = 10_000_000;
/// A base older than this is replaced, so that the ratio follows adjustments of the clock.
const BASE_MAX_NS: u64 = 1_000_000_000;
/// If more ticks pass while the clock is read, it is not known well enough at which of them.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
const EXACT_TICKS: u64 = 500;
/// A clock that is ahead of the real one is slowed down by this part.
const SLOWED: u64 = 1_000;
/// A counter whose rate changes by more than this part is not used.
const CHANGED: u64 = 1_000;
/// Ratios are nanoseconds per tick in units of 2^-32.
const RATIO_SHIFT: u32 = 32;

/// All zeros: the real clock is read.
#[repr(C, align(64))]
#[cfg_attr(loom, derive(Default))]
pub struct Clock {
    /// Odd while a thread changes the others.
    version: AtomicU64,
    known_ticks: AtomicU64,
    known_ns: AtomicU64,
    /// The ratio; less if `known_ns` is ahead of the real clock.
    rate: AtomicU64,
    /// [`WINDOW_NS`] in ticks; 0 as long as the ratio is not known.
    window_ticks: AtomicU64,
    /// 0: not known yet.
    ratio: AtomicU64,
    base_ticks: AtomicU64,
    /// 0: the counter is not used.
    base_ns: AtomicU64,
}

impl Clock {
    /// Begins to compare the counter with the clock, if the counter can be trusted. Opens a file: not for a hook's common path.
    pub fn start(&self) {
        if counter::can_be_trusted() {
            // None is exact where reading the counter is itself slow, as on some virtual machines.
            let first = (0..10).find_map(|_| counter::beside_the_clock().0);
            if let Some((ticks, ns)) = first {
                self.begin(ticks, ns);
            }
        }
    }

    /// Nanoseconds of CLOCK_MONOTONIC, some instructions earlier or later.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        if !counter::EXISTS {
            return monotonic_ns();
        }
        match self.at(counter::ticks(), 1) {
            Some(ns) => ns,
            None => {
                cold_path();
                self.read()
            }
        }
    }

    /// As [`Clock::now`], after everything that the thread has seen.
    pub fn now_in_order(&self) -> u64 {
        counter::wait_for_loads();
        self.now()
    }

    /// The time at a number of ticks, if that is within so many windows of the last reading.
    #[inline(always)]
    fn at(&self, ticks: u64, windows: u64) -> Option<u64> {
        let version = self.version.load(Acquire);
        let passed = ticks.wrapping_sub(self.known_ticks.load(Relaxed));
        let ns = self.known_ns.load(Relaxed);
        let rate = self.rate.load(Relaxed);
        let window = self.window_ticks.load(Relaxed);
        fence(Acquire);
        let whole = version.is_multiple_of(2) && self.version.load(Relaxed) == version;
        (whole && passed < windows * window).then(|| ns + (passed.wrapping_mul(rate) >> RATIO_SHIFT))
    }

    /// Reads the real clock.
    #[cold]
    #[inline(never)]
    fn read(&self) -> u64 {
        if self.base_ns.load(Relaxed) == 0 {
            return monotonic_ns();
        }
        let (both, now) = counter::beside_the_clock();
        both.map_or(now, |(ticks, ns)| self.learn(ticks, ns))
    }

    fn begin(&self, ticks: u64, ns: u64) {
        self.base_ticks.store(ticks, Relaxed);
        self.base_ns.store(ns, Relaxed);
    }

    /// The real clock shows `ns` at `ticks`. Only one thread at a time stores that. Returns `ns`, or what an event before this may
    /// have got already.
    fn learn(&self, ticks: u64, ns: u64) -> u64 {
        let shown_ns = self.at(ticks, 2).map_or(ns, |shown| shown.max(ns));
        let version = self.version.load(Relaxed);
        if !version.is_multiple_of(2)
            || self
                .version
                .compare_exchange(version, version + 1, Acquire, Relaxed)
                .is_err()
        {
            return shown_ns;
        }
        fence(Release);
        match self.ratio_at(ticks, ns) {
            // A reading that was delayed is not worth more than a later one.
            Ratio::Known(ratio) if self.known_ns.load(Relaxed) <= shown_ns => {
                self.known_ticks.store(ticks, Relaxed);
                self.known_ns.store(shown_ns, Relaxed);
                self.ratio.store(ratio, Relaxed);
                self.rate
                    .store(if shown_ns > ns { ratio - ratio / SLOWED } else { ratio }, Relaxed);
                self.window_ticks.store((WINDOW_NS << RATIO_SHIFT) / ratio, Relaxed);
                if ns.saturating_sub(self.base_ns.load(Relaxed)) >= BASE_MAX_NS {
                    self.begin(ticks, ns);
                }
            }
            Ratio::Known(_) | Ratio::Unknown => {}
            Ratio::Changed => {
                self.window_ticks.store(0, Relaxed);
                self.base_ns.store(0, Relaxed);
            }
        }
        self.version.store(version + 2, Release);
        shown_ns
    }

    /// To be called by the thread that changes the clock.
    fn ratio_at(&self, ticks: u64, ns: u64) -> Ratio {
        let (base_ticks, base_ns) = (self.base_ticks.load(Relaxed), self.base_ns.load(Relaxed));
        let before = self.ratio.load(Relaxed);
        // Another thread found that the counter cannot be used.
        if base_ns == 0 {
            return Ratio::Unknown;
        }
        let passed_ns = ns.saturating_sub(base_ns);
        if passed_ns < BASE_NS {
            return if before == 0 {
                Ratio::Unknown
            } else {
                Ratio::Known(before)
            };
        }
        let passed_ticks = ticks.wrapping_sub(base_ticks);
        let ratio = (u128::from(passed_ns) << RATIO_SHIFT) / u128::from(passed_ticks.max(1));
        match u64::try_from(ratio) {
            // Between 0.1 and 64 GHz.
            Ok(ratio) if !(1 << (RATIO_SHIFT - 6)..10 << RATIO_SHIFT).contains(&ratio) => Ratio::Changed,
            Ok(ratio) if before != 0 && ratio.abs_diff(before) > before / CHANGED => Ratio::Changed,
            Ok(ratio) => Ratio::Known(ratio),
            Err(_) => Ratio::Changed,
        }
    }
}

enum Ratio {
    /// In the unit of [`RATIO_SHIFT`].
    Known(u64),
    /// The base is too young.
    Unknown,
    /// The counter does not run at the rate at which it ran.
    Changed,
}

/// The processor's time stamp counter.
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod counter {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};

    use super::EXACT_TICKS;
    use crate::system::{Descriptor, monotonic_ns};

    pub const EXISTS: bool = true;

    #[inline(always)]
    pub fn ticks() -> u64 {
        // SAFETY: `can_be_trusted` found that the instruction is permitted; the clock of the C library uses it too.
        unsafe { _rdtsc() }
    }

    /// Until all earlier loads are done.
    pub fn wait_for_loads() {
        // SAFETY: no preconditions.
        unsafe { _mm_lfence() };
    }

    /// Whether the kernel uses the counter for its own clocks, and lets this process read it.
    pub fn can_be_trusted() -> bool {
        let mut permission = 0;
        // SAFETY: writes one int.
        let asked = unsafe { libc::prctl(libc::PR_GET_TSC, std::ptr::from_mut::<libc::c_int>(&mut permission)) };
        if asked != 0 || permission != libc::PR_TSC_ENABLE {
            return false;
        }
        let path = c"/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let mut buffer = [0; 8];
        Descriptor::open(path, libc::O_RDONLY).is_ok_and(|file| file.read(&mut buffer) == b"tsc\n")
    }

    /// Ticks and nanoseconds of one instant, unless too much time passed in between; and the nanoseconds alone.
    pub fn beside_the_clock() -> (Option<(u64, u64)>, u64) {
        let before = ticks();
        let ns = monotonic_ns();
        wait_for_loads();
        let passed = ticks().wrapping_sub(before);
        let both = (passed < EXACT_TICKS).then_some((before.wrapping_add(passed / 2), ns));
        (both, ns)
    }
}

/// On aarch64 the clock of the C library is hardly more expensive than the counter.
#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
mod counter {
    use crate::system::monotonic_ns;

    pub const EXISTS: bool = false;

    pub fn ticks() -> u64 {
        0
    }

    pub fn wait_for_loads() {}

    pub fn can_be_trusted() -> bool {
        false
    }

    pub fn beside_the_clock() -> (Option<(u64, u64)>, u64) {
        (None, monotonic_ns())
    }
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
