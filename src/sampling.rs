//! Sampling: which blocks get a stack, and what those stand for.
//!
//! With `--sample SIZE` a stack is taken once every SIZE bytes on average. The distance to the next one is drawn from an
//! exponential distribution, so each block is chosen or not as a whole, independently of all others:
//!
//! ```text
//! bytes allocated by a thread  ──────────────────────────────────────────────►
//! distances                    ├────────────┤├──┤├───────────────────────┤├───
//! blocks                       ▐█▌▐▌▐█▌▐████████▌▐▌▐█▌▐▌▐▌▐█▌▐▌▐▌▐█▌▐▌▐▌▐▌▐█▌
//! chosen                                    ▲                              ▲
//!
//! p(size) = 1 - exp(-size / SIZE)           a chosen block stands for 1 / p blocks of its size
//! ```
//!
//! A chosen block thus contributes `size / p` bytes and `1 / p` blocks to the sums of its stack (Horvitz and Thompson). These
//! sums are unbiased. Their variance is estimated from the same blocks: the sum of `size² (1 - p) / p²`, and of
//! `(1 - p) / p²` for the number of blocks. A weight follows from the size of the block and from SIZE, which the header of the
//! recording has, so no record stores it.
//!
//! Where a thread would take more stacks a second than a limit, SIZE grows for it by factors of four ([`regulated`]). A record
//! has the number of these factors ([`mean_of`]). What the thread did before decides it, never the block itself, so the sums
//! stay unbiased.
//!
//! Everything here is plain arithmetic: the library must not need libm, and writer and reader must compute the same weights.
//! Both functions have a relative error below 1e-13 (`tests.rs` measures it).

/// Whether a record of this kind may lack its stack: objects, segments, and whatever holds no memory always have one.
pub const fn may_be_left_out(kind: crate::kind::Kind, bytes: u64) -> bool {
    use crate::kind::Place;
    bytes > 0 && !matches!(kind.place(), Place::Segment | Place::Object)
}

/// The mean distance after `raised` steps, each of which multiplies it by four; at most [`LARGEST`].
pub const fn mean_of(mean: u64, raised: u8) -> u64 {
    let by = 1 << (2 * raised as u32);
    let product = mean.saturating_mul(by);
    if product > LARGEST { LARGEST } else { product }
}

/// How often a mean distance can be raised: three bits of a record.
pub const RAISED_MAX: u8 = 7;

/// Unless the user sets another: the most stacks a second that a thread takes before its mean distance is raised.
pub const RATE: u64 = 1000;

/// The largest such limit.
pub const RATE_MAX: u32 = 1_000_000;

/// The next value of `raised` for a thread that has taken `taken` stacks in the `elapsed_ns` since the last decision; `None`:
/// none yet, go on counting. `rate`: its limit of stacks a second.
///
/// Raised once the stacks of a 16th of a second took less time than that, so a burst takes few of them. Lowered when they come
/// at less than an eighth of the rate, by as much as leaves them below half of it: the thread may have paused for long.
pub fn regulated(raised: u8, taken: u32, elapsed_ns: u64, rate: u64) -> Option<u8> {
    const SECOND: u128 = 1_000_000_000;
    let window = (rate / 16).max(8);
    // Both in units of 1e-9 stacks.
    let allowed = u128::from(elapsed_ns) * u128::from(rate);
    let counted = u128::from(taken) * SECOND;
    let is_full = u64::from(taken) >= window;
    if is_full && counted > allowed {
        return Some((raised + 1).min(RAISED_MAX));
    }
    // A step is a factor of four.
    let steps = (0..raised)
        .take_while(|step| allowed > counted * (8 << (2 * step)))
        .count() as u8;
    let is_over = allowed > u128::from(window) * SECOND;
    (is_full || is_over && steps > 0).then(|| raised - steps)
}

/// The smallest and the largest mean distance.
pub const SMALLEST: u64 = 1;
pub const LARGEST: u64 = 1 << 40;

/// The next number of a generator (xorshift64*). `state` must not be 0.
#[inline]
pub const fn next(state: u64) -> u64 {
    let state = state ^ (state >> 12);
    let state = state ^ (state << 25);
    state ^ (state >> 27)
}

/// The distance in bytes to the next stack: exponentially distributed with this mean, rounded up. At least 1.
///
/// `state` is a state of the generator.
pub fn distance(state: u64, mean: u64) -> u64 {
    // Uniform in (0, 1): 53 bits, in the middle of their interval.
    let random = state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
    let uniform = (random as f64 + 0.5) * (1.0 / (1u64 << 53) as f64);
    let drawn = minus_ln(uniform) * mean as f64;
    let whole = drawn as u64;
    whole + u64::from((whole as f64) < drawn).max(u64::from(whole == 0))
}

/// `-ln(x)` for a normal x in (0, 1].
fn minus_ln(x: f64) -> f64 {
    use std::f64::consts::{LN_2, SQRT_2};
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    let (mantissa, exponent) = match mantissa > SQRT_2 {
        true => (mantissa / 2.0, exponent + 1),
        false => (mantissa, exponent),
    };
    // ln m = 2 artanh z for z = (m - 1) / (m + 1), which is below 0.172.
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let square = z * z;
    let (mut sum, mut power) = (0.0, z);
    let mut odd = 1.0;
    while odd < 22.0 {
        sum += power / odd;
        power *= square;
        odd += 2.0;
    }
    -(2.0 * sum + exponent as f64 * LN_2)
}

/// `1 - exp(-x)` for x >= 0, without cancellation for a small x.
fn one_minus_exp(x: f64) -> f64 {
    use std::f64::consts::LN_2;
    if x > 50.0 {
        return 1.0;
    }
    // exp(-x) = 2^-n exp(-rest) with rest below ln 2.
    let n = (x / LN_2) as u64;
    let rest = x - n as f64 * LN_2;
    // 1 - exp(-rest), from its smallest term to its largest.
    let mut nested = 1.0;
    let mut divisor = 20.0;
    while divisor > 1.0 {
        nested = 1.0 - rest / divisor * nested;
        divisor -= 1.0;
    }
    let of_rest = rest * nested;
    let scale = 1.0 / (1u64 << n.min(63)) as f64;
    // 1 - 2^-n (1 - of_rest).
    (1.0 - scale) + scale * of_rest
}

/// The chance that a block of this size is chosen.
#[inline]
pub fn probability(bytes: u64, mean: u64) -> f64 {
    one_minus_exp(bytes as f64 / mean.max(1) as f64)
}

/// What a chosen block stands for: bytes, and blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weight {
    pub bytes: f64,
    pub count: f64,
    pub bytes_variance: f64,
    pub count_variance: f64,
}

impl Weight {
    /// A block that is always recorded with its stack.
    pub fn certain(bytes: u64) -> Weight {
        Weight {
            bytes: bytes as f64,
            count: 1.0,
            bytes_variance: 0.0,
            count_variance: 0.0,
        }
    }

    pub fn of(bytes: u64, mean: u64) -> Weight {
        let p = probability(bytes, mean);
        let size = bytes as f64;
        let variance = (1.0 - p) / (p * p);
        Weight {
            bytes: size / p,
            count: 1.0 / p,
            bytes_variance: size * size * variance,
            count_variance: variance,
        }
    }
}

/// The weight of a block in whole bytes and blocks, for sums of integers. The fraction of a block is rounded by chance,
/// which depends on `key` alone: the free of a block subtracts what its allocation added.
pub fn whole_weight(bytes: u64, mean: u64, key: u64) -> (u64, u64) {
    let Weight { bytes, count, .. } = Weight::of(bytes, mean);
    let chance = (crate::lockfree::index::mix(key) >> 11) as f64 * (1.0 / (1u64 << 53) as f64);
    ((bytes + 0.5) as u64, (count + chance) as u64)
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
