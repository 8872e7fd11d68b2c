//! What of a process's memory is copied.

use std::ops::Range;

use super::PAGE;
use crate::modules::headers::Headers;
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

/// Whether the file is the preload library, under the names that it has when it is unpacked and when it is built.
fn is_recorder(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    matches!(name, "libculeak.so" | "libculeak_shim.so")
}

/// The static memory of the preload library. The rest of its memory is shared, or contains no addresses of blocks.
fn recorder(source: &dyn Source, regions: &[Region]) -> Vec<Range<u64>> {
    let first = |region: &&Region| region.offset == 0 && is_recorder(&region.name);
    let mut found = Vec::new();
    for region in regions.iter().filter(first) {
        let read = |offset: u64, buffer: &mut [u8]| {
            let start = region.range.start.saturating_add(offset);
            let range = start..start + buffer.len() as u64;
            source.read(std::slice::from_ref(&range), buffer) == buffer.len()
        };
        let Some(headers) = Headers::read(&read) else { continue };
        let bias = headers.bias(region.range.start);
        for segment in headers.loaded().filter(|segment| segment.is_writable()) {
            let range = segment.memory(bias);
            found.push(range.start & !(PAGE - 1)..range.end.saturating_add(PAGE - 1) & !(PAGE - 1));
        }
    }
    found
}

/// Memory of a device, or of the kernel, in which no pointers are searched for.
fn is_special(region: &Region) -> bool {
    let name = region.name.as_str();
    (name.starts_with("/dev/") && !name.starts_with("/dev/zero"))
        || name.starts_with("[vvar")
        || name == "[vsyscall]"
        || name.ends_with(".culeak")
}

/// The existing pages of private writable memory, in order.
pub fn writable(source: &dyn Source, regions: &[Region], excluded: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut wanted: Vec<Range<u64>> = Vec::new();
    let copied = |region: &&Region| region.readable && region.writable && !region.shared && !is_special(region);
    for region in regions.iter().filter(copied) {
        for part in without(&region.range, excluded) {
            for run in source.present(part.clone()) {
                // Whatever the source says, pages stay in order.
                let last = wanted.last().map_or(0, |last| last.end);
                let run = run.start.max(part.start).max(last)..run.end.min(part.end);
                let run = run.start & !(PAGE - 1)..run.end & !(PAGE - 1);
                match wanted.last_mut() {
                    _ if run.start >= run.end => {}
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => wanted.push(run),
                }
            }
        }
    }
    wanted
}

/// The parts of a range outside the excluded ranges.
pub fn without(range: &Range<u64>, excluded: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut parts = Vec::new();
    let mut start = range.start;
    let first = excluded.partition_point(|excluded| excluded.end <= range.start);
    for excluded in excluded[first..]
        .iter()
        .take_while(|excluded| excluded.start < range.end)
    {
        if start < excluded.start {
            parts.push(start..excluded.start);
        }
        start = excluded.end;
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

fn is_excluded(page: &Range<u64>, excluded: &[Range<u64>]) -> bool {
    let next = excluded.partition_point(|range| range.end <= page.start);
    excluded.get(next).is_some_and(|range| range.contains(&page.start))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "ranges of addresses are values")]
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
}
