//! Counts events one by one, in the order of their times: each for its row and for the sum of its level.
//!
//! They are no lives (`timeline/lives.rs`), which would take more memory than the log itself: a free repeats the size, the site and the
//! lifetime of its memory, so no event needs the other end of its life.

use foldhash::HashMap;

use super::{Bucket, OfSite, Rows, SECOND, Sums};
use crate::timeline::{Event, Op};

/// The class of a block's site ([`OfSite::class`]), and its address.
type BlockPlace = (u32, u64);

/// Sums while events are counted.
pub(super) struct Counts {
    sums: Sums,
    /// The second of the window that is being counted, and its allocations.
    second: u64,
    in_second: u64,
    /// The most allocations in one second, and this second.
    most: u64,
    busiest: u64,
    /// By the number of bits of the lifetime.
    lifetimes: [u64; 65],
}

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            sums: Sums::default(),
            second: 0,
            in_second: 0,
            most: 0,
            busiest: 0,
            lifetimes: [0; 65],
        }
    }
}

impl Counts {
    pub fn has_events(&self) -> bool {
        self.sums.allocated.count > 0 || self.sums.freed.count > 0
    }

    #[inline]
    fn allocated(&mut self, event: &Event, reused: bool, second: u64) {
        self.sums.allocated.add(event.bytes);
        self.sums.reused += u64::from(reused);
        if second != self.second {
            (self.second, self.in_second) = (second, 0);
        }
        self.in_second += 1;
        if self.in_second > self.most {
            (self.most, self.busiest) = (self.in_second, second);
        }
    }

    #[inline]
    fn freed(&mut self, bytes: u64, lifetime_ns: u64, temporary: bool) {
        self.sums.freed.add(bytes);
        if temporary {
            self.sums.temporary.add(bytes);
        }
        self.lifetimes[bits(lifetime_ns)] += 1;
        self.sums.lifetimes.longest_ns = self.sums.lifetimes.longest_ns.max(lifetime_ns);
    }

    pub fn finish(mut self, from_ns: u64, lasted_ns: u64) -> Sums {
        self.sums.per_second = self.sums.allocated.count as f64 * 1e9 / lasted_ns as f64;
        // If the last second is cut short, no second may reach the average.
        if lasted_ns >= 2 * SECOND && self.most as f64 > self.sums.per_second {
            self.sums.most_per_second = Some(self.most);
            self.sums.most_at_ns = Some(from_ns + self.busiest * SECOND);
        }
        let count = self.lifetimes.iter().sum();
        let used = |bits: &usize| self.lifetimes[*bits] > 0;
        let first = (0..=64).find(used).unwrap_or(0);
        let last = (0..=64).rev().find(used).unwrap_or(0);
        let lifetimes = &mut self.sums.lifetimes;
        lifetimes.count = count;
        if count > 0 {
            let bucket = |bits: usize| Bucket {
                from_ns: if bits == 0 { 0 } else { 1 << (bits - 1) },
                to_ns: 1u64.checked_shl(bits as u32).unwrap_or(u64::MAX),
                count: self.lifetimes[bits],
            };
            lifetimes.histogram = (first..=last).map(bucket).collect();
            lifetimes.median_ns = median(&lifetimes.histogram, count).min(lifetimes.longest_ns);
        }
        self.sums
    }
}

fn bits(ns: u64) -> usize {
    (u64::BITS - ns.leading_zeros()) as usize
}

/// As if the lifetimes of a bucket were spread evenly over it.
fn median(histogram: &[Bucket], count: u64) -> u64 {
    let mut before = 0;
    for bucket in histogram {
        if (before + bucket.count) * 2 >= count {
            let part = (count as f64 / 2.0 - before as f64) / bucket.count as f64;
            return bucket.from_ns + ((bucket.to_ns - bucket.from_ns) as f64 * part) as u64;
        }
        before += bucket.count;
    }
    0
}

/// All sums, and what is known about blocks.
#[derive(Default)]
pub(super) struct Counting {
    /// The beginning of the window.
    from_ns: u64,
    pub rows: Vec<Counts>,
    /// Of the driver's memory, and of blocks within it.
    pub totals: [Counts; 2],
    /// Allocations of each site.
    pub by_site: HashMap<u32, u64>,
    /// The last allocation of each thread, if it is still live.
    last_of_thread: HashMap<u32, BlockPlace>,
    /// The threads whose last allocation is this block.
    last_blocks: HashMap<BlockPlace, u32>,
    /// What was freed last at each place.
    freed: HashMap<BlockPlace, LastFreed>,
}

struct LastFreed {
    row: Option<u32>,
    bytes: u64,
}

impl Counting {
    pub fn new(rows: usize, from_ns: u64) -> Counting {
        Counting {
            from_ns,
            rows: (0..rows).map(|_| Counts::default()).collect(),
            ..Counting::default()
        }
    }

    /// The sums in which events of a row count.
    #[inline]
    fn counts(&mut self, of: OfSite) -> impl Iterator<Item = &mut Counts> {
        let of_row = of.row.map(|row| &mut self.rows[row as usize]);
        let total = &mut self.totals[usize::from(of.within)];
        of_row.map(|row| [row, total]).into_iter().flatten()
    }

    #[inline]
    pub fn count(&mut self, event: &Event, rows: &Rows) {
        let of = rows.of_site[event.site as usize];
        let place = (of.class, event.address);
        match event.op {
            Op::Allocated | Op::Restored => {
                // Also if the filter leaves it out: the thread did allocate.
                if let Some(thread) = event.thread {
                    if let Some(before) = self.last_of_thread.insert(thread, place)
                        && self.last_blocks.get(&before) == Some(&thread)
                    {
                        self.last_blocks.remove(&before);
                    }
                    self.last_blocks.insert(place, thread);
                }
                let same = |last: &LastFreed| last.bytes == event.bytes && last.row == of.row;
                let reused = of.row.is_some() && self.freed.get(&place).is_some_and(same);
                if of.row.is_some() {
                    *self.by_site.entry(event.site).or_default() += 1;
                }
                let second = event.time_ns.saturating_sub(self.from_ns) / SECOND;
                for counts in self.counts(of) {
                    counts.allocated(event, reused, second);
                }
            }
            Op::Freed => {
                let temporary = self.last_blocks.remove(&place).is_some();
                let bytes = event.bytes;
                self.freed.insert(place, LastFreed { row: of.row, bytes });
                for counts in self.counts(of) {
                    counts.freed(bytes, event.lifetime_ns, temporary);
                }
            }
        }
    }
}
