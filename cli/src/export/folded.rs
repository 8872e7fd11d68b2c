//! Folded stacks for `flamegraph.pl`, inferno and speedscope: one line per stack, `outermost;…;innermost NUMBER`.
//!
//! The format has one number without a unit: bytes, or another [`Cost`]. Lines with 0 are left out.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::ValueEnum;
use culeak::analysis::profile::{Profile, Sample};

use super::Input;
use crate::names::{self, Detail};

/// The quantity of a stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Cost {
    /// Live bytes
    #[default]
    Bytes,
    /// Live allocations
    Count,
    /// Bytes of all allocations, freed or not
    MadeBytes,
    /// All allocations, freed or not
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

    /// The name of the unit.
    pub fn unit(self) -> &'static str {
        match self {
            Cost::Bytes | Cost::MadeBytes => "bytes",
            Cost::Count | Cost::MadeCount => "allocations",
        }
    }

    /// Whether freed memory counts.
    pub fn is_made(self) -> bool {
        matches!(self, Cost::MadeBytes | Cost::MadeCount)
    }
}

/// Distinct stacks as text, in alphabetical order.
pub fn stacks(profile: &Profile, detail: Detail, cost: Cost) -> BTreeMap<String, u64> {
    let mut lines = BTreeMap::new();
    for sample in &profile.samples {
        let stack: Vec<String> = names::stack(profile, sample, detail).collect();
        let sum: &mut u64 = lines.entry(stack.join(";")).or_default();
        *sum = sum.saturating_add(cost.of(sample));
    }
    lines
}

pub fn export(input: &Input, out: &mut dyn Write) -> io::Result<()> {
    let cost = if input.objects { Cost::Count } else { input.cost };
    input.profiles().try_for_each(|(name, profile)| {
        // A frame for the process below all others; semicolons separate frames.
        let below = name.map_or_else(String::new, |name| format!("{};", name.replace(';', ":")));
        write(&below, &profile, input.detail_of_graph(), cost, out)
    })
}

/// `below`: what each stack begins with.
pub fn write(below: &str, profile: &Profile, detail: Detail, cost: Cost, out: &mut dyn Write) -> io::Result<()> {
    let mut stacks = stacks(profile, detail, cost).into_iter().filter(|(_, sum)| *sum > 0);
    stacks.try_for_each(|(stack, sum)| writeln!(out, "{below}{stack} {sum}"))
}
