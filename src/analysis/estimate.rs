//! Estimates from sampled stacks: what the blocks with a stack stand for, and how far that may be from the truth.
//!
//! See [`crate::sampling`] for the weights. Sums over all blocks (by device, kind, stream, thread …) need no estimate, since
//! every block is recorded. Sums by stack do. Deliberately absent: words; a renderer writes `≈ 1.2 GiB ± 0.1`.

use serde::Serialize;

use crate::analysis::words;
use crate::sampling::{self, Weight};
use crate::snapshot::{Call, Sampling};
use crate::tally::Tally;

/// A sum of weights.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    bytes: f64,
    count: f64,
    bytes_variance: f64,
    /// Infinite: not known.
    count_variance: f64,
    /// The least standard errors. Where the distance was raised, the blocks that were chosen before say nothing about how many
    /// were missed afterwards: up to about as much as one with the largest distance stands for.
    least: (f64, f64),
    /// Blocks without a stack that one mean distance of bytes may consist of ([`Unchosen::blocks_in`]).
    missed: f64,
}

/// Standard errors between an estimate and a limit that it breaks, or is certain to keep, and between estimates that differ for
/// certain.
pub const CERTAIN: u64 = 3;

/// The error of a number of blocks is known only if the blocks that a call site may lack are this many times fewer. Small blocks stand
/// for many: of a site with blocks of many sizes, the smallest may not be chosen at all, and then the others say nothing about them.
const FEW: f64 = 16.0;

/// If a call site holds this many times the mean distance between stacks, the chance that none of its blocks was chosen is
/// exp(-6) at most: as small as that of an error beyond [`CERTAIN`] standard errors.
pub const NEVER_UNSEEN: u64 = 6;

/// The standard errors of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Errors {
    pub bytes_error: u64,
    /// `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count_error: Option<u64>,
}

impl Errors {
    /// Of what is exact.
    pub const NONE: Errors = Errors {
        bytes_error: 0,
        count_error: Some(0),
    };

    /// As [`Estimate::scatter`], of an estimate of these bytes.
    pub fn scatter(&self, bytes: u64) -> f64 {
        scatter(bytes as f64, (self.bytes_error as f64).powi(2))
    }

    /// Of the difference of two estimates. If blocks are in both, it is smaller.
    pub fn of_difference(a: Option<Errors>, b: Option<Errors>) -> Option<Errors> {
        if a.is_none() && b.is_none() {
            return None;
        }
        let (a, b) = (a.unwrap_or(Errors::NONE), b.unwrap_or(Errors::NONE));
        let of = |a: u64, b: u64| (a as f64).hypot(b as f64).round() as u64;
        Some(Errors {
            bytes_error: of(a.bytes_error, b.bytes_error),
            count_error: a.count_error.zip(b.count_error).map(|(a, b)| of(a, b)),
        })
    }
}

/// The warning that rows are estimates.
pub fn sampled(of: &str, sampling: Sampling) -> String {
    format!("{}, so sums by stack are estimates", sampled_stacks(of, sampling))
}

/// That not all blocks have a stack.
pub fn sampled_stacks(of: &str, sampling: Sampling) -> String {
    let fewer = match sampling.most() > sampling.bytes {
        true => format!(
            " (down to one for each {} where a thread allocated faster than its limit of stacks)",
            words::bytes(sampling.most())
        ),
        false => String::new(),
    };
    format!(
        "the stacks {of} were sampled, one for each {} on average{fewer}",
        words::bytes(sampling.bytes)
    )
}

fn scatter(bytes: f64, variance: f64) -> f64 {
    if bytes > 0.0 { variance / bytes } else { 0.0 }
}

/// Blocks without a stack, by the number of bits of their sizes.
pub struct Unchosen([Tally; 65]);

impl Default for Unchosen {
    fn default() -> Unchosen {
        Unchosen([Tally::default(); 65])
    }
}

impl Unchosen {
    pub fn add(&mut self, bytes: u64) {
        self.0[(u64::BITS - bytes.leading_zeros()) as usize].add(bytes);
    }

    /// The most of them that these bytes may consist of, but for the spread of sizes with the same number of bits.
    pub fn blocks_in(&self, bytes: u64) -> f64 {
        let (mut rest, mut blocks) = (bytes as f64, 0.0);
        for of in self.0.iter().filter(|of| of.bytes > 0) {
            let part = (rest / of.bytes as f64).min(1.0);
            blocks += part * of.count as f64;
            rest -= part * of.bytes as f64;
        }
        blocks
    }
}

impl Estimate {
    /// That a call site may lack this many blocks ([`Unchosen::blocks_in`]).
    pub fn lacks(&mut self, missed: f64) {
        self.missed = missed;
    }

    /// Of one block.
    pub fn of_block(sampling: Sampling, call: &Call, bytes: u64) -> Estimate {
        let weight = match sampling::may_be_left_out(call.kind, bytes) {
            true => Weight::of(bytes, sampling.of(call)),
            false => Weight::certain(bytes),
        };
        let is_raised = sampling.most() > sampling.bytes && sampling::may_be_left_out(call.kind, bytes);
        let least = is_raised.then(|| Weight::of(bytes, sampling.most()));
        // What the largest distance chooses for certain, too, is not missed.
        let least = least.filter(|one| one.bytes_variance >= 0.25);
        Estimate {
            bytes: weight.bytes,
            count: weight.count,
            bytes_variance: weight.bytes_variance,
            count_variance: weight.count_variance,
            least: least.map_or((0.0, 0.0), |one| (one.bytes, one.count)),
            missed: 0.0,
        }
    }

    /// Of a sum that the recorder estimated, of blocks of unknown sizes. The variance of the bytes is its upper bound: a block
    /// of `size` bytes adds `size² (1 - p) / p`, which is below `size * SIZE`. That of the count has none, since blocks may be
    /// of any size.
    pub fn of_sum(sampling: Sampling, call: &Call, tally: Tally) -> Estimate {
        let (bytes, count) = (tally.bytes as f64, tally.count as f64);
        let distance = match sampling::may_be_left_out(call.kind, tally.bytes) {
            // Of each block at most the largest.
            true => sampling.most() as f64,
            false => 0.0,
        };
        Estimate {
            bytes,
            count,
            bytes_variance: bytes * distance,
            count_variance: if distance > 0.0 { f64::INFINITY } else { 0.0 },
            least: (0.0, 0.0),
            missed: 0.0,
        }
    }

    pub fn join(&mut self, other: &Estimate) {
        self.bytes += other.bytes;
        self.count += other.count;
        self.bytes_variance += other.bytes_variance;
        self.count_variance += other.count_variance;
        self.least.0 = self.least.0.max(other.least.0);
        self.least.1 = self.least.1.max(other.least.1);
        self.missed = self.missed.max(other.missed);
    }

    /// Rounded so that the sum over many parts is the rounded sum: a block that stands for 1.3 blocks is most often one and sometimes
    /// two. `before`: the sum of the parts before this one, to which it is added.
    pub fn part(&self, before: &mut Estimate) -> Tally {
        let until_now = before.tally();
        before.join(self);
        let Tally { bytes, count } = before.tally();
        Tally::new(bytes - until_now.bytes, count - until_now.count)
    }

    /// Rounded. Casts saturate.
    pub fn tally(&self) -> Tally {
        Tally::new(self.bytes.round() as u64, self.count.round() as u64)
    }

    /// The variance for each byte, from which the error of a larger or smaller sum of such blocks follows. 0: it is exact.
    pub fn scatter(&self) -> f64 {
        scatter(self.bytes, self.bytes_variance)
    }

    /// `None` if they are 0: every block is large enough to be chosen for certain.
    pub fn errors(&self) -> Option<Errors> {
        let is_certain = self.bytes_variance == 0.0 && self.least.1 == 0.0;
        let has_many = is_certain || self.missed * FEW <= self.count;
        let errors = Errors {
            bytes_error: self.bytes_variance.sqrt().max(self.least.0).round() as u64,
            count_error: (self.count_variance.is_finite() && has_many)
                .then(|| self.count_variance.sqrt().max(self.least.1).round() as u64),
        };
        (errors != Errors::NONE).then_some(errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lockfree::index::mix;
    use crate::sample::{GIB, MIB, Sample};
    use crate::sampling::tests::{MEAN, Sampler};

    fn estimate(bytes: u64, most_bytes: u64) -> Estimate {
        let mut sample = Sample::new();
        sample.holds(crate::kind::Kind::Device, "cudaMalloc", bytes, 1, 0);
        let sampling = Sampling {
            bytes: MIB / 2,
            most_bytes,
            left_out: None,
        };
        Estimate::of_block(sampling, sample.0.allocations.at(0).call, bytes)
    }

    #[test]
    fn where_the_distance_was_raised_an_estimate_may_lack_a_block_chosen_by_the_largest_one() {
        // Chosen for certain before, and once in 256 times afterwards.
        let raised = estimate(32 * MIB, 8 * GIB).errors().expect("an error");
        assert!(raised.bytes_error > 8 * GIB, "{raised:?}");
        assert!(raised.count_error.is_some_and(|count| count > 250), "{raised:?}");
        assert_eq!(estimate(32 * MIB, 0).errors(), None);
        assert_eq!(estimate(1024 * GIB, 8 * GIB).errors(), None);
    }

    /// Of call sites with blocks of these sizes: in how many of the runs the error of their number is known, and in how many of these
    /// the truth is within two of them.
    fn known_and_right(sizes: impl Fn(u64) -> u64, blocks: u64) -> (u64, u64) {
        const RUNS: u64 = 200;
        let sampling = Sampling {
            bytes: MEAN,
            most_bytes: 0,
            left_out: None,
        };
        let call = Call::new(crate::kind::Kind::Device, "cudaMalloc", Some(0), 0);
        let (mut known, mut right) = (0, 0);
        for seed in 0..RUNS {
            let mut sampler = Sampler::new(seed);
            let (mut estimate, mut unchosen) = (Estimate::default(), Unchosen::default());
            for number in 0..blocks {
                let bytes = sizes(mix(seed << 32 | number));
                match sampler.chooses(bytes) {
                    true => estimate.join(&Estimate::of_block(sampling, &call, bytes)),
                    false => unchosen.add(bytes),
                }
            }
            estimate.lacks(unchosen.blocks_in(MEAN));
            if let Some(error) = estimate.errors().and_then(|errors| errors.count_error) {
                known += 1;
                right += u64::from(estimate.tally().count.abs_diff(blocks) <= 2 * error + 1);
            }
        }
        (known, right)
    }

    #[test]
    fn the_error_of_a_number_of_blocks_is_given_only_where_it_is_right() {
        let log = |random: u64| 1 + (random >> 8) % (1 << (random % 20));
        let (known, _) = known_and_right(log, 2000);
        assert!(known <= 4, "blocks of 1 B to 512 KiB: {known} of 200");
        let two = |random: u64| if random.is_multiple_of(31) { MIB } else { 16 };
        assert_eq!(known_and_right(two, 31_000).0, 0, "many small blocks, few large ones");
        assert_eq!(known_and_right(|_| 512, 2000).0, 0, "two chosen blocks");
        for (bytes, blocks) in [(4096, 5000), (64 << 10, 1200), (MIB, 100)] {
            let (known, right) = known_and_right(|_| bytes, blocks);
            assert!(
                known == 200 && right >= 180,
                "{blocks} of {bytes} B: {right} of {known}"
            );
        }
        let (known, right) = known_and_right(|random| 512 * (1 + random % 200), 6000);
        assert!(known > 150 && right * 10 >= known * 9, "{right} of {known}");
    }

    #[test]
    fn that_error_does_not_grow_with_the_sum() {
        let (as_is, raised) = (estimate(MIB / 4, 0), estimate(MIB / 4, 32 * MIB));
        assert_eq!(as_is.scatter(), raised.scatter());
        assert!(as_is.errors().map(|e| e.bytes_error) < raised.errors().map(|e| e.bytes_error));
    }
}
