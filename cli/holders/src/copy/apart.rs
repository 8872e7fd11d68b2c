//! Memory that is searched only for blocks which nothing else holds: memory that is shared with other processes.
//!
//! It is not part of the copy, because it may be larger than all other memory, and is rarely where pointers are.
//! Small areas come first, so that a large one does not take the room of all others.

use std::ops::Range;

use super::selection::{append, is_special, without};
use crate::source::PAGE;
use crate::source::{Region, Source};
use crate::starts_with_one;

/// Bytes that are searched at most.
pub const MOST: u64 = 2 << 30;
/// Bytes that are read at a time.
const PIECE: u64 = 1 << 20;

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    pub range: Range<u64>,
    /// What exists of it and is searched, whole pages in order.
    pub present: Vec<Range<u64>>,
}

/// By address.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Apart {
    pub areas: Vec<Area>,
    /// What is not searched: where it begins and ends, and how many bytes of it exist.
    pub left_out: Vec<(Range<u64>, u64)>,
}

impl Apart {
    /// `most`: bytes that are searched at most.
    pub fn find(source: &dyn Source, regions: &[Region], excluded: &[Range<u64>], most: u64) -> Apart {
        let (mut areas, mut left_out) = (Vec::new(), Vec::new());
        for region in regions.iter().filter(|region| is_apart(region)) {
            let (mut present, mut unreadable) = (Vec::new(), 0);
            for part in without(&region.range, excluded) {
                unreadable += source.left_out(&part);
                for run in source.present(part) {
                    append(&mut present, run.start.next_multiple_of(PAGE)..run.end & !(PAGE - 1));
                }
            }
            left_out.push((region.range.clone(), unreadable));
            if !present.is_empty() && !is_recording(source, region, &present) {
                areas.push(Area {
                    range: region.range.clone(),
                    present,
                });
            }
        }
        areas.sort_by_key(Area::bytes);
        let mut room = most & !(PAGE - 1);
        for area in &mut areas {
            let before = area.bytes();
            for run in &mut area.present {
                run.end = run.end.min(run.start + room);
                room -= run.end - run.start;
            }
            area.present.retain(|run| !run.is_empty());
            left_out.push((area.range.clone(), before - area.bytes()));
        }
        areas.retain(|area| !area.present.is_empty());
        areas.sort_by_key(|area| area.range.start);
        left_out.retain(|(_, bytes)| *bytes > 0);
        Apart { areas, left_out }
    }

    /// Bytes that exist and are not searched.
    pub fn bytes_left_out(&self) -> u64 {
        self.left_out.iter().map(|(_, bytes)| bytes).sum()
    }
}

impl Area {
    pub fn bytes(&self) -> u64 {
        self.present.iter().map(|run| run.end - run.start).sum()
    }

    /// Reads it piece by piece: the address and the words of each, until `see` returns false. Pages that cannot be read are left
    /// out.
    pub fn read(&self, source: &dyn Source, see: &mut dyn FnMut(u64, &mut dyn Iterator<Item = u64>) -> bool) {
        let mut buffer = vec![0; PIECE.min(self.bytes()) as usize];
        for run in &self.present {
            let mut at = run.start;
            while at < run.end {
                let wanted = (run.end - at).min(PIECE) as usize;
                let read = source.read(&[at..at + wanted as u64], &mut buffer[..wanted]) & !7;
                let word = |word: &[u8]| u64::from_le_bytes(word.try_into().unwrap_or_default());
                if read > 0 && !see(at, &mut buffer[..read].chunks_exact(8).map(word)) {
                    return;
                }
                at += read as u64;
                if read < wanted {
                    at = (at / PAGE + 1) * PAGE;
                }
            }
        }
    }
}

/// Whether this mapping is searched apart, as far as it exists.
pub fn is_apart(region: &Region) -> bool {
    let name = region.name.as_str();
    let is_memory = starts_with_one(name, &["/dev/zero", "/dev/shm/", "/memfd:", "/SYSV"]);
    // A file that the process can only read contains nothing of it.
    let is_data = is_memory || region.writable && name.starts_with('/') && !is_special(region);
    // The segments by which the CUDA driver shares memory with other processes.
    region.shared
        && is_data
        && !starts_with_one(name, &["/dmabuf", "/dev/shm/cuda.shm"])
        && !name.contains(".culeak")
        && !name.contains("culeak-run-")
}

/// Whether it is a recording of this program, under any name.
fn is_recording(source: &dyn Source, region: &Region, present: &[Range<u64>]) -> bool {
    let mut magic = [0; culeak::format::MAGIC.len()];
    let range = region.range.start..region.range.start + magic.len() as u64;
    let is_first = region.offset == 0 && present.first().is_some_and(|run| run.start == range.start);
    is_first && source.read(&[range], &mut magic) == magic.len() && magic == culeak::format::MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_tests::{Victim, compile};

    const SOURCE: &str = r#"
        #define _GNU_SOURCE
        #include <stdio.h>
        #include <sys/mman.h>
        #include <unistd.h>
        static char *mapped(int pages, int flags) {
            return mmap(0, pages * 4096L, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
        }
        int main(void) {
            char *large = mapped(1000, MAP_SHARED), *small = mapped(3, MAP_SHARED), *private = mapped(2, MAP_PRIVATE);
            for (int page = 0; page < 10; page++) large[page * 4096] = 1;
            small[8] = small[8192] = private[0] = 1;
            printf("%p %p\n", (void *)large, (void *)small);
            fflush(stdout);
            for (;;) pause();
        }
    "#;

    #[test]
    fn small_areas_come_first_and_what_is_left_out_is_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let victim = Victim::start(&compile(folder.path(), "areas", SOURCE, &[]));
        let process = victim.process();
        let regions = process.regions().expect("readable");
        let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address");
        let addresses: Vec<u64> = victim.line.split(' ').map(number).collect();
        let [large, small] = addresses[..] else {
            panic!("{}", victim.line)
        };
        let found = |most, excluded: &[Range<u64>]| {
            let mut apart = Apart::find(&process, &regions, excluded, most);
            let left_out = apart.bytes_left_out();
            apart
                .areas
                .sort_by_key(|area| addresses.iter().position(|address| *address == area.range.start));
            let parts = |area: Area| (area.range.start, area.present);
            (apart.areas.into_iter().map(parts).collect::<Vec<_>>(), left_out)
        };
        let of_small = (small, vec![small..small + PAGE, small + 2 * PAGE..small + 3 * PAGE]);
        let of_large = |pages: u64| (large, vec![large..large + pages * PAGE]);
        assert_eq!(found(MOST, &[]), (vec![of_large(10), of_small.clone()], 0));
        assert_eq!(found(4 * PAGE, &[]), (vec![of_large(2), of_small.clone()], 8 * PAGE));
        let excluded = [large..large + 1000 * PAGE];
        assert_eq!(found(MOST, &excluded), (vec![of_small], 0));
    }
}
