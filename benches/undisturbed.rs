//! How long something takes when the machine does nothing else. Shared by the benches of this repository.

use std::time::Duration;

/// Times `rounds` rounds of what `take` does so many times and times itself: the median of chunks short enough that most
/// are not interrupted. With others at work on the machine, means are two to three times too long and repeat badly.
pub fn undisturbed(rounds: u64, chunk: u64, mut take: impl FnMut(u64) -> Duration) -> Duration {
    let mut each: Vec<f64> = (0..rounds.div_ceil(chunk))
        .map(|_| take(chunk).as_secs_f64() / chunk as f64)
        .collect();
    each.sort_by(f64::total_cmp);
    Duration::from_secs_f64(each[each.len() / 2] * rounds as f64)
}
