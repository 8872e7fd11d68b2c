//! Rows by exact size. There may be millions of sizes, so only those that are shown become rows.
//!
//! Sizes are counted and ranked first. Then each of the first sizes gets its groups, and all other sizes share theirs.
//! This takes 16 bytes of memory per record in place of a row per size.

use std::cmp::Reverse;

use foldhash::HashSet;

use super::{Cut, Options, Sort};
use crate::analysis::filter::Filtering;
use crate::analysis::groups::Groups;
use crate::analysis::site::CallStacks;
use crate::analysis::suppressions::Sieve;
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::Snapshot;
use crate::snapshot::allocations::in_two_threads;

/// The most sizes that become rows, even without `--top`.
const MOST: usize = if cfg!(test) { 50 } else { 100_000 };

/// The first sizes in the order of `options`, and how many others there are: below `--min-bytes`, and beyond `--top`.
/// `groups`: of all records.
pub(super) fn chosen(
    snapshot: &Snapshot,
    stacks: &CallStacks,
    groups: &Groups,
    options: &Options,
    filtering: &mut Filtering,
) -> (HashSet<u64>, Cut) {
    let mut sizes = listed(snapshot, stacks, groups, options, filtering);
    let all = sizes.len();
    let wanted = |size: &Size| size.bytes() >= u128::from(options.min_bytes);
    sizes.retain(wanted);
    let below_min = all - sizes.len();
    let most = options.top.unwrap_or(MOST).min(MOST);
    if sizes.len() > most {
        // As `Sort` orders rows.
        let order = |size: &Size| {
            let key = match options.sort {
                Sort::Bytes => (size.bytes(), u128::from(size.count)),
                Sort::Count => (size.count.into(), size.bytes()),
                Sort::Age => (u128::from(u64::MAX - size.oldest_ns), size.bytes()),
            };
            Reverse(key)
        };
        sizes.select_nth_unstable_by_key(most, order);
        sizes.truncate(most);
    }
    let chosen: HashSet<u64> = sizes.iter().map(|size| size.size).collect();
    let beyond_top = all - below_min - chosen.len();
    (chosen, Cut { below_min, beyond_top })
}

struct Size {
    size: u64,
    count: u64,
    oldest_ns: u64,
}

impl Size {
    fn bytes(&self) -> u128 {
        u128::from(self.size) * u128::from(self.count)
    }
}

/// Every size among the listed records.
fn listed(
    snapshot: &Snapshot,
    stacks: &CallStacks,
    groups: &Groups,
    options: &Options,
    filtering: &mut Filtering,
) -> Vec<Size> {
    let rows = &snapshot.allocations;
    let mut sieve = Sieve::new(&options.suppressions);
    let mut found: Vec<(u64, u64)> = Vec::with_capacity(rows.len());
    let progress = Progress::over("counting sizes", rows.len() as u64, Unit::Of("records"));
    for (nth, allocation) in rows.iter().enumerate() {
        progress.tick(nth);
        if filtering.passes(allocation.call, allocation.stack, allocation.time_ns, stacks)
            && sieve.rule(allocation.stack, stacks).is_none()
            && groups.level(&allocation, stacks).is_listed()
        {
            found.push((allocation.bytes, allocation.time_ns));
        }
    }
    in_two_threads(&mut found, &|part| part.sort_unstable(), &|all, middle| {
        all.select_nth_unstable(middle);
    });
    let size = |equal: &[(u64, u64)]| Size {
        size: equal[0].0,
        count: equal.len() as u64,
        oldest_ns: equal[0].1,
    };
    found.chunk_by(|a, b| a.0 == b.0).map(size).collect()
}
