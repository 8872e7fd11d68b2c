//! Where the blocks of a log lie: the free ranges of segments at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::settings::Settings;

/// A segment, by its start in [`Layout::segments`].
pub struct Segment {
    pub end: u64,
    pub number: u32,
    pub is_small: bool,
    pub is_fresh: bool,
    pub live: u64,
    /// The number of steps before its last block was freed.
    pub idle_since: usize,
}

/// The free ranges of segments at a time.
#[derive(Default)]
pub struct Layout {
    pub segments: BTreeMap<u64, Segment>,
    /// Free ranges: their ends.
    runs: BTreeMap<u64, u64>,
    /// The same by pool and size.
    pub by_size: [BTreeSet<(u64, u64)>; 2],
}

impl Layout {
    pub fn add_segment(&mut self, start: u64, end: u64, number: u32, is_small: bool) {
        let (is_fresh, live, idle_since) = (true, 0, 0);
        let segment = Segment {
            end,
            number,
            is_small,
            is_fresh,
            live,
            idle_since,
        };
        self.segments.insert(start, segment);
        self.add_run(is_small, start, end);
    }

    pub fn segment(&mut self, address: u64) -> Option<(u64, &mut Segment)> {
        let (&start, segment) = self.segments.range_mut(..=address).next_back()?;
        (address < segment.end).then_some((start, segment))
    }

    pub fn add_run(&mut self, is_small: bool, start: u64, end: u64) {
        if start < end {
            self.runs.insert(start, end);
            self.by_size[usize::from(is_small)].insert((end - start, start));
        }
    }

    pub fn remove_run(&mut self, is_small: bool, start: u64) -> Option<u64> {
        let end = self.runs.remove(&start)?;
        self.by_size[usize::from(is_small)].remove(&(end - start, start));
        Some(end)
    }

    /// Takes a block out of its free range. Returns the number of its segment, and whether the segment was new; and the size of the
    /// range.
    pub fn allocate(&mut self, address: u64, bytes: u64) -> Option<(u32, bool, u64)> {
        let (_, segment) = self.segment(address)?;
        let (number, is_small, was_fresh) = (segment.number, segment.is_small, segment.is_fresh);
        (segment.is_fresh, segment.live) = (false, segment.live + 1);
        let before = self.runs.range(..=address).next_back();
        let Some((&start, &end)) = before.filter(|&(_, &end)| address < end) else {
            return Some((number, was_fresh, 0));
        };
        self.remove_run(is_small, start);
        self.add_run(is_small, start, address);
        self.add_run(is_small, address.saturating_add(bytes), end);
        Some((number, was_fresh, end - start))
    }

    /// `step`: the number of steps before.
    pub fn free(&mut self, address: u64, bytes: u64, step: usize) {
        let Some((first, segment)) = self.segment(address) else {
            return;
        };
        (segment.live, segment.idle_since) = (segment.live.saturating_sub(1), step);
        let (is_small, last) = (segment.is_small, segment.end);
        let (mut start, mut end) = (address, address.saturating_add(bytes).min(last));
        let before = self.runs.range(first..address).next_back();
        if let Some((&before, _)) = before.filter(|&(_, &until)| until == address) {
            self.remove_run(is_small, before);
            start = before;
        }
        if end < last
            && let Some(after) = self.remove_run(is_small, end)
        {
            end = after;
        }
        self.add_run(is_small, start, end);
    }

    /// Addresses of idle segments of the large pool that are too small, or too large to be split, for a later request that got new
    /// memory. `new_memory`: the bytes of such requests, with the number of steps before, in order.
    pub fn unfit(&self, new_memory: &[(usize, u64)], own: &Settings) -> Vec<u64> {
        let is_idle = |of: &Segment| of.live == 0 && !of.is_small && !of.is_fresh;
        let mut idle: Vec<(u64, &Segment)> = self.segments.iter().map(|(&start, of)| (start, of)).collect();
        idle.retain(|(_, of)| is_idle(of));
        idle.sort_by_key(|(_, of)| Reverse(of.idle_since));
        // Of the later requests: the largest; the smallest of those that may be split off, and of the others. What accepts the smallest
        // one accepts all that fit.
        let (mut most, mut least) = (0, [None; 2]);
        let mut later = new_memory.iter().rev().peekable();
        idle.retain(|(start, of)| {
            while let Some(&(_, bytes)) = later.next_if(|&&(step, _)| step >= of.idle_since) {
                let least = least[usize::from(bytes < own.max_split)].get_or_insert(bytes);
                (most, *least) = (bytes.max(most), bytes.min(*least));
            }
            let length = of.end - start;
            most > length || least.iter().flatten().any(|bytes| !own.accepts(*bytes, length))
        });
        idle.into_iter().map(|(start, _)| start).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::MIB;

    /// Segments of these sizes, in MiB, each idle since a step.
    fn idle(segments: &[(u64, usize)]) -> Layout {
        let mut layout = Layout::default();
        for (nth, &(size, since)) in (0..).zip(segments) {
            let start = (1 + nth) << 40;
            layout.add_segment(start, start + size * MIB, nth as u32, false);
            layout.allocate(start, size * MIB);
            layout.free(start, size * MIB, since);
        }
        layout
    }

    /// As many segments as requests: if each were compared with each, this would take hours.
    #[test]
    fn many_segments_and_many_requests_are_compared_in_one_pass() {
        const MANY: usize = 1 << 18;
        let requests: Vec<_> = (0..MANY).map(|step| (MANY + step, 20 * MIB)).collect();
        let layout = idle(&(0..MANY).map(|step| (20, step)).collect::<Vec<_>>());
        assert!(layout.unfit(&requests, &Settings::default()).is_empty());
    }

    proptest! {
        #[test]
        fn a_segment_is_unfit_if_it_does_not_serve_each_later_request(
            segments in prop::collection::vec((1u64..60, 0usize..20), 0..12),
            requests in prop::collection::vec((0usize..20, 1u64..60), 0..12),
            split in prop::option::of(1u64..60),
            rounding in 0u64..30,
        ) {
            let mut own = Settings { max_rounding: rounding * MIB, ..Settings::default() };
            own.max_split = split.map_or(own.max_split, |split| split * MIB);
            let mut requests: Vec<_> = requests.into_iter().map(|(step, size)| (step, size * MIB)).collect();
            requests.sort_unstable();
            let mut found = idle(&segments).unfit(&requests, &own);
            found.sort_unstable();
            let is_unfit = |&(_, (size, since)): &(u64, (u64, usize))| {
                let length = size * MIB;
                let mut later = requests.iter().filter(|&&(step, _)| step >= since);
                later.any(|&(_, bytes)| bytes > length || !own.accepts(bytes, length))
            };
            let expected = (1..).zip(segments.iter().copied()).filter(is_unfit);
            prop_assert_eq!(found, expected.map(|(nth, _)| nth << 40).collect::<Vec<u64>>());
        }
    }
}
