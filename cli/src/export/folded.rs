//! Folded stacks: one line per stack, `outermost;…;innermost NUMBER`, as `flamegraph.pl`, inferno and speedscope read them.
//!
//! The format has one number and no unit; the number is bytes unless [`Cost`] says otherwise. Lines with 0 are left out,
//! since no reader draws them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::ValueEnum;
use culeak::analysis::profile::{Profile, Sample};

use crate::text::names::{self, Detail};

/// What the width of a stack means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Cost {
    /// Live bytes
    #[default]
    Bytes,
    /// Live allocations
    Count,
    /// Bytes ever asked for, freed or not
    MadeBytes,
    /// Allocations ever made, freed or not
    MadeCount,
}

impl Cost {
    pub fn of(self, sample: &Sample) -> u64 {
        let made = sample.made.unwrap_or_default();
        match self {
            Cost::Bytes => sample.live.bytes,
            Cost::Count => sample.live.count,
            Cost::MadeBytes => made.bytes,
            Cost::MadeCount => made.count,
        }
    }

    /// What one of it is called.
    pub fn unit(self) -> &'static str {
        match self {
            Cost::Bytes | Cost::MadeBytes => "bytes",
            Cost::Count | Cost::MadeCount => "allocations",
        }
    }

    /// Whether freed memory counts too.
    pub fn is_made(self) -> bool {
        matches!(self, Cost::MadeBytes | Cost::MadeCount)
    }
}

/// Stacks as text, each once, in alphabetical order.
pub fn stacks(profile: &Profile, detail: Detail, cost: Cost) -> BTreeMap<String, u64> {
    let mut lines = BTreeMap::new();
    for sample in &profile.samples {
        let stack: Vec<String> = names::stack(profile, sample, detail).collect();
        let sum: &mut u64 = lines.entry(stack.join(";")).or_default();
        *sum = sum.saturating_add(cost.of(sample));
    }
    lines
}

pub fn write(profile: &Profile, detail: Detail, cost: Cost, out: &mut dyn Write) -> io::Result<()> {
    for (stack, sum) in stacks(profile, detail, cost) {
        if sum > 0 {
            writeln!(out, "{stack} {sum}")?;
        }
    }
    Ok(())
}
