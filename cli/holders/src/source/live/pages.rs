//! Which pages of a process exist, from `/proc/PID/pagemap`.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::copy::selection::append;

/// The pages that are in memory or swapped out. `None` if the kernel does not say.
pub fn present(pagemap: &File, range: &Range<u64>) -> Option<Vec<Range<u64>>> {
    scanned(pagemap, range, IS_ZERO_PAGE).or_else(|| listed(pagemap, range, false))
}

/// As above, without pages of files and shared memory.
pub fn written(pagemap: &File, range: &Range<u64>) -> Option<Vec<Range<u64>>> {
    scanned(pagemap, range, IS_ZERO_PAGE | IS_FILE).or_else(|| listed(pagemap, range, true))
}

/// `struct pm_scan_arg` of `PAGEMAP_SCAN`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct PageRange {
    start: u64,
    end: u64,
    categories: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: libc::c_ulong =
    3 << 30 | (size_of::<Scan>() as libc::c_ulong) << 16 | (b'f' as libc::c_ulong) << 8 | 16;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO_PAGE: u64 = 1 << 5;

/// Asks for ranges (Linux 6.7): reservations of terabytes cost nothing, and pages that were only ever read, so contain
/// zeros, are left out, as are those of the other categories in `without`.
fn scanned(pagemap: &File, range: &Range<u64>, without: u64) -> Option<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut pieces = [PageRange::default(); 512];
    let mut start = range.start;
    while start < range.end {
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start,
            end: range.end,
            vec: pieces.as_mut_ptr() as u64,
            vec_len: pieces.len() as u64,
            category_inverted: without,
            category_mask: without,
            category_anyof_mask: IS_PRESENT | IS_SWAPPED,
            return_mask: IS_PRESENT,
            ..Scan::default()
        };
        // SAFETY: `scan` has the layout and the size that it states, and `pieces` the stated length.
        let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut scan) };
        let count = usize::try_from(count).ok()?;
        for piece in &pieces[..count.min(512)] {
            append(&mut found, piece.start..piece.end);
        }
        if scan.walk_end <= start {
            return None;
        }
        start = scan.walk_end;
    }
    Some(found)
}

/// The size of the kernel's pages, which is 64 KiB on some aarch64 machines.
fn kernel_page() -> u64 {
    // SAFETY: sysconf has no preconditions.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// Reads the entry of each page, 8 bytes: bit 63 says that it is in memory, bit 62 that it is swapped out, bit 61 that it
/// belongs to a file or is shared.
fn listed(pagemap: &File, range: &Range<u64>, is_written: bool) -> Option<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut entries = vec![0; 8 << 14];
    let page = kernel_page();
    // A range may begin or end inside of a large page.
    let mut address = range.start / page * page;
    while address < range.end {
        let pages = (range.end - address).div_ceil(page).min(1 << 14);
        let entries = &mut entries[..pages as usize * 8];
        pagemap.read_exact_at(entries, address / page * 8).ok()?;
        for entry in entries.chunks_exact(8) {
            if entry[7] >> 6 != 0 && !(is_written && entry[7] >> 5 & 1 != 0) {
                append(&mut found, address.max(range.start)..(address + page).min(range.end));
            }
            address += page;
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_to_ask_agree_and_leave_out_untouched_pages() {
        let size = kernel_page();
        let start = culeak::system::anonymous(64 * size as usize).expect("mapped");
        for page in [1, 2, 3, 9, 63] {
            // SAFETY: inside the mapping.
            unsafe { start.add(page * size as usize).write(1) };
        }
        let start = start as u64;
        let range = start..start + 64 * size;
        let pagemap = File::open("/proc/self/pagemap").expect("procfs");
        let expected: Vec<_> = [1..4, 9..10, 63..64]
            .map(|pages: Range<u64>| start + pages.start * size..start + pages.end * size)
            .into();
        assert_eq!(listed(&pagemap, &range, false), Some(expected.clone()));
        assert_eq!(listed(&pagemap, &range, true), Some(expected.clone()));
        // Kernels before 6.7 cannot scan.
        for without in [IS_ZERO_PAGE, IS_ZERO_PAGE | IS_FILE] {
            if let Some(scanned) = scanned(&pagemap, &range, without) {
                assert_eq!(scanned, expected);
            }
        }
        assert_eq!(present(&pagemap, &range), Some(expected));
    }

    #[test]
    fn pages_of_a_file_are_written_once_the_process_has_changed_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let size = kernel_page();
        std::fs::write(&path, vec![7; 4 * size as usize]).expect("written");
        let file = File::open(&path).expect("opened");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new private mapping of a file of this length.
        let start = unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                4 * size as usize,
                access,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            start.cast::<u8>()
        };
        // SAFETY: inside the mapping.
        unsafe {
            assert_eq!(start.read_volatile(), 7);
            start.add(2 * size as usize).write_volatile(1);
        }
        let start = start as u64;
        let range = start..start + 4 * size;
        let pagemap = File::open("/proc/self/pagemap").expect("procfs");
        let expected = Some(vec![start + 2 * size..start + 3 * size]);
        assert_eq!(listed(&pagemap, &range, true), expected);
        assert_eq!(written(&pagemap, &range), expected);
        assert_eq!(present(&pagemap, &range).expect("known")[0].start, start);
    }
}
