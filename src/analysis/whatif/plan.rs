//! The lower bound that knows the future: where blocks would lie if it were known when each is freed.

use std::cmp::Reverse;
use std::ops::Range;

use foldhash::HashMap;

use super::trace::Step;

/// The largest blocks, which are planned.
const PLANNED: usize = 5000;

/// What a plan needs that knows when each block is freed: the largest blocks first, each at the lowest address that is free all its
/// life. Blocks that are not among the largest ones fill gaps.
pub fn planned(steps: &[(Step, u64)]) -> u64 {
    let (mut lives, mut numbers) = (Vec::new(), HashMap::default());
    for (nth, &(step, _)) in steps.iter().enumerate() {
        if let Step::Allocate(of) = step {
            numbers.insert(of.block, lives.len());
            lives.push((of.bytes, nth..steps.len()));
        } else if let Step::Free(block) = step
            && let Some(&life) = numbers.get(&block)
        {
            lives[life].1.end = nth;
        }
    }
    lives.sort_by_key(|of| Reverse(of.0));
    lives.truncate(PLANNED);
    let mut placed: Vec<(Range<u64>, Range<usize>)> = Vec::new();
    for (bytes, life) in lives {
        let mut at = 0_u64;
        for (of, _) in placed
            .iter()
            .filter(|of| of.1.start < life.end && life.start < of.1.end)
        {
            if of.start >= at.saturating_add(bytes) {
                break;
            }
            at = at.max(of.end);
        }
        let place = placed.partition_point(|of| of.0.start < at);
        placed.insert(place, (at..at.saturating_add(bytes), life));
    }
    placed.iter().map(|of| of.0.end).max().unwrap_or(0)
}
