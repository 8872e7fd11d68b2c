//! What of a process's memory is copied.

use std::ops::Range;
use std::path::Path;

use culeak::proc::is_preload_library;

use crate::modules::headers::{Headers, RELOCATED};
use crate::source::PAGE;
use crate::source::{Region, Source};

/// The given ranges and the recorder's own memory, as whole pages in order. A page that is excluded in part is searched.
pub fn excluded(source: &dyn Source, regions: &[Region], given: &[Range<u64>]) -> Vec<Range<u64>> {
    let inner = |range: &Range<u64>| {
        let start = range.start.checked_next_multiple_of(PAGE)?;
        let end = range.end & !(PAGE - 1);
        (start < end).then_some(start..end)
    };
    let mut ranges: Vec<_> = given.iter().filter_map(inner).collect();
    ranges.extend(recorder(source, regions));
    merged(ranges)
}

/// The static memory of the preload library. The rest of its memory is shared, or contains no addresses of blocks.
fn recorder(source: &dyn Source, regions: &[Region]) -> Vec<Range<u64>> {
    let first = |region: &&Region| {
        let name = region.name.strip_suffix(" (deleted)").unwrap_or(&region.name);
        region.offset == 0 && is_preload_library(Path::new(name))
    };
    let mut found = Vec::new();
    for region in regions.iter().filter(first) {
        let Some((headers, bias)) = headers(source, region) else {
            continue;
        };
        let writable = headers.loaded().filter(|segment| segment.is_writable());
        found.extend(writable.map(|segment| whole_pages(segment.memory(bias))));
    }
    found
}

/// Those of a file whose beginning is mapped here, and what to add to their addresses.
fn headers(source: &dyn Source, region: &Region) -> Option<(Headers, u64)> {
    let read = |offset: u64, buffer: &mut [u8]| {
        let start = region.range.start.saturating_add(offset);
        let range = start..start + buffer.len() as u64;
        source.read(std::slice::from_ref(&range), buffer) == buffer.len()
    };
    let headers = Headers::read(&read)?;
    let bias = headers.bias(region.range.start);
    Some((headers, bias))
}

/// Memory of a device, or of the kernel, in which no pointers are searched for.
pub(crate) fn is_special(region: &Region) -> bool {
    let name = region.name.as_str();
    (name.starts_with("/dev/") && !name.starts_with("/dev/zero"))
        || name.starts_with("[vvar")
        || name == "[vsyscall]"
        || name.strip_suffix(" (deleted)").unwrap_or(name).ends_with(".culeak")
}

/// The existing pages of private memory that the program has written, in order: also those that it made read-only
/// afterwards.
pub fn written(source: &dyn Source, regions: &[Region], excluded: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut wanted: Vec<Range<u64>> = Vec::new();
    for region in regions.iter().filter(|region| is_own(region)) {
        let is_frozen_file = !region.writable && !is_anonymous(region);
        let excluded = match is_frozen_file {
            true if source.written(region.range.clone()).is_empty() => continue,
            true => &with_relocated(source, regions, region, excluded)[..],
            false => excluded,
        };
        for part in without(&region.range, excluded) {
            let present = match is_frozen_file {
                true => source.written(part.clone()),
                false => source.present(part.clone()),
            };
            for run in present {
                // Whatever the source says, pages stay in order.
                let last = wanted.last().map_or(0, |last| last.end);
                let run = run.start.max(part.start).max(last)..run.end.min(part.end);
                append(&mut wanted, run.start & !(PAGE - 1)..run.end & !(PAGE - 1));
            }
        }
    }
    wanted
}

/// Memory that may contain what the program wrote.
fn is_own(region: &Region) -> bool {
    let may_be_frozen = || is_anonymous(region) || !region.executable && region.name.starts_with('/');
    region.readable && !region.shared && !is_special(region) && (region.writable || may_be_frozen())
}

pub fn is_anonymous(region: &Region) -> bool {
    region.name.is_empty() || region.name.starts_with("[anon:") || region.name == "[heap]"
}

/// The excluded ranges, and what the loader wrote in this region of a file and made read-only: it is no data of the program.
fn with_relocated(
    source: &dyn Source,
    regions: &[Region],
    region: &Region,
    excluded: &[Range<u64>],
) -> Vec<Range<u64>> {
    let inside = |range: &&Range<u64>| range.start < region.range.end && region.range.start < range.end;
    let mut ranges: Vec<Range<u64>> = excluded.iter().filter(inside).cloned().collect();
    let before = regions.partition_point(|other| other.range.start <= region.range.start);
    let first = (regions[..before].iter().rev()).find(|other| other.offset == 0 && other.name == region.name);
    if let Some((headers, bias)) = first.and_then(|first| headers(source, first)) {
        let relocated = headers.segments.iter().filter(|segment| segment.kind == RELOCATED);
        ranges.extend(relocated.map(|segment| whole_pages(segment.memory(bias))));
        ranges = merged(ranges);
    }
    ranges
}

/// Appends a range to those before it, or extends the last one if they touch.
pub(crate) fn append(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        _ if next.is_empty() => {}
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// The one whose range contains this address, of some that are in order.
#[inline]
pub(crate) fn containing<T>(all: &[T], address: u64, range: impl Fn(&T) -> Range<u64>) -> Option<&T> {
    let place = all.partition_point(|one| range(one).end <= address);
    all.get(place).filter(|one| range(one).start <= address)
}

/// The pages around a range.
fn whole_pages(range: Range<u64>) -> Range<u64> {
    range.start & !(PAGE - 1)..range.end.saturating_add(PAGE - 1) & !(PAGE - 1)
}

/// In order, without overlaps.
pub fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let joined = next.start <= last.end;
        if joined {
            last.end = last.end.max(next.end);
        }
        joined
    });
    ranges
}

/// The parts of a range outside the excluded ranges, which are [`merged`].
pub fn without(range: &Range<u64>, excluded: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut start = range.start;
    let first = excluded.partition_point(|excluded| excluded.end <= range.start);
    let inside = (excluded[first..].iter()).take_while(|excluded| excluded.start < range.end);
    for excluded in inside {
        if start < excluded.start {
            parts.push(start..excluded.start);
        }
        start = start.max(excluded.end);
    }
    if start < range.end {
        parts.push(start..range.end);
    }
    parts
}

/// Whether a page that was not copied at once may be read when it is needed: a read-only page, or a page of a file's data
/// that the process never touched.
pub fn read_singly(source: &dyn Source, region: &Region, page: &Range<u64>, excluded: &[Range<u64>]) -> bool {
    let of_file = region.name.starts_with('/');
    if !region.readable || region.shared || is_special(region) || (region.writable && !of_file) {
        return false;
    }
    // Reading a page of a file creates nothing but an entry in the page table.
    !is_excluded(page, excluded) && (of_file || !source.present(page.clone()).is_empty())
}

/// Whether a page of a private writable mapping exists now that did not when the mapping was copied.
pub fn became_present(source: &dyn Source, region: &Region, page: &Range<u64>, excluded: &[Range<u64>]) -> bool {
    let is_private = region.readable && region.writable && !region.shared && !is_special(region);
    is_private && !is_excluded(page, excluded) && !source.present(page.clone()).is_empty()
}

/// The pages that are read with this one, because the next ones that are needed are often beside it: names and virtual tables
/// of a file. Pages of code are read one by one: few are needed, and the process may never have loaded them.
pub fn around(region: &Region, page: &Range<u64>, excluded: &[Range<u64>]) -> Range<u64> {
    const BYTES: u64 = 8 * PAGE;
    let start = (page.start & !(BYTES - 1)).max(region.range.start);
    let end = (start - start % BYTES + BYTES).min(region.range.end);
    let is_read_only = region.name.starts_with('/') && !region.writable && !region.executable;
    match is_read_only && without(&(start..end), excluded) == [start..end] {
        true => start..end,
        false => page.clone(),
    }
}

fn is_excluded(page: &Range<u64>, excluded: &[Range<u64>]) -> bool {
    containing(excluded, page.start, Range::clone).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excluded_ranges_are_cut_out() {
        assert_eq!(without(&(10..90), &[]), [10..90]);
        assert_eq!(
            without(&(10..90), &[0..10, 20..30, 40..50, 90..99]),
            [10..20, 30..40, 50..90]
        );
        assert_eq!(without(&(10..90), &[0..20, 80..100]), [20..80]);
        assert_eq!(without(&(10..90), &[0..100]), []);
    }

    #[test]
    fn only_pages_of_read_only_data_are_read_with_those_beside_them() {
        let region = Region {
            range: 3 * PAGE..100 * PAGE,
            readable: true,
            writable: false,
            executable: false,
            shared: false,
            offset: 0,
            name: "/lib/libm.so".to_owned(),
        };
        let page = |number: u64| number * PAGE..(number + 1) * PAGE;
        assert_eq!(around(&region, &page(12), &[]), 8 * PAGE..16 * PAGE);
        assert_eq!(around(&region, &page(4), &[]), 3 * PAGE..8 * PAGE);
        assert_eq!(around(&region, &page(99), &[]), 96 * PAGE..100 * PAGE);
        assert_eq!(around(&region, &page(12), &[page(14)]), page(12));
        let code = Region {
            executable: true,
            ..region.clone()
        };
        assert_eq!(around(&code, &page(12), &[]), page(12));
    }
}
