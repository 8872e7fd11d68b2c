//! Estimates from sampled stacks: what the blocks with a stack stand for, and how far that may be from the truth.
//!
//! See [`crate::sampling`] for the weights. Sums over all blocks (by device, kind, stream, thread …) need no estimate, since
//! every block is recorded. Sums by stack do. Deliberately absent: words; a renderer writes `≈ 1.2 GiB ± 0.1`.

use serde::Serialize;

use crate::analysis::tally::Tally;
use crate::analysis::words;
use crate::sampling::{self, Weight};
use crate::snapshot::{Call, Sampling};

/// A sum of weights.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Estimate {
    bytes: f64,
    count: f64,
    bytes_variance: f64,
    /// Infinite: not known.
    count_variance: f64,
}

/// The standard errors of an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
    format!(
        "the stacks {of} were sampled, one for each {} on average, so sums of call sites and totals of them are estimates",
        words::bytes(sampling.bytes)
    )
}

impl Estimate {
    /// Of one block.
    pub fn of_block(sampling: Sampling, call: &Call, bytes: u64) -> Estimate {
        let weight = match sampling::may_be_left_out(call.kind, bytes) {
            true => Weight::of(bytes, sampling.bytes),
            false => Weight::certain(bytes),
        };
        Estimate {
            bytes: weight.bytes,
            count: weight.count,
            bytes_variance: weight.bytes_variance,
            count_variance: weight.count_variance,
        }
    }

    /// Of a sum that the recorder estimated, of blocks of unknown sizes. The variance of the bytes is its upper bound: a block
    /// of `size` bytes adds `size² (1 - p) / p`, which is below `size * SIZE`. That of the count has none, since blocks may be
    /// of any size.
    pub fn of_sum(sampling: Sampling, call: &Call, tally: Tally) -> Estimate {
        let (bytes, count) = (tally.bytes as f64, tally.count as f64);
        let distance = match sampling::may_be_left_out(call.kind, tally.bytes) {
            true => sampling.bytes as f64,
            false => 0.0,
        };
        Estimate {
            bytes,
            count,
            bytes_variance: bytes * distance,
            count_variance: if distance > 0.0 { f64::INFINITY } else { 0.0 },
        }
    }

    pub fn join(&mut self, other: &Estimate) {
        self.bytes += other.bytes;
        self.count += other.count;
        self.bytes_variance += other.bytes_variance;
        self.count_variance += other.count_variance;
    }

    /// Rounded. Casts saturate.
    pub fn tally(&self) -> Tally {
        Tally {
            bytes: self.bytes.round() as u64,
            count: self.count.round() as u64,
        }
    }

    /// `None` if they are 0: every block is large enough to be chosen for certain.
    pub fn errors(&self) -> Option<Errors> {
        let errors = Errors {
            bytes_error: self.bytes_variance.sqrt().round() as u64,
            count_error: (self.count_variance.is_finite()).then(|| self.count_variance.sqrt().round() as u64),
        };
        (errors != Errors::NONE).then_some(errors)
    }
}
