//! How long something takes without interruptions. Shared by the benches of this repository.

use std::time::Duration;

/// Times `rounds` rounds in chunks; `take` runs the given number of rounds and times itself. The result is the median of
/// chunks so short that most are not interrupted: on a busy machine, means are two to three times too long and not repeatable.
pub fn undisturbed(rounds: u64, chunk: u64, mut take: impl FnMut(u64) -> Duration) -> Duration {
    let mut each: Vec<f64> = (0..rounds.div_ceil(chunk))
        .map(|_| take(chunk).as_secs_f64() / chunk as f64)
        .collect();
    each.sort_by(f64::total_cmp);
    Duration::from_secs_f64(each[each.len() / 2] * rounds as f64)
}
