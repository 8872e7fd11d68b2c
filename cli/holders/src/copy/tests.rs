use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::*;
use crate::process_tests::{Victim, pages};
use crate::source::Thread;

fn address(words: &[u64]) -> u64 {
    words.as_ptr() as u64
}

#[test]
fn the_words_of_another_process_are_read_at_their_addresses() {
    let memory = pages(4);
    for (place, word) in memory.iter_mut().enumerate().take(1024 + 512) {
        *word = 0x0101_0101_0101_0101 * (place as u64 % 251 + 1);
    }
    let start = address(memory);
    let victim = Victim::fork();
    let process = victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    for place in 0..1536 {
        assert_eq!(copy.word(start + place * 8), memory[place as usize]);
    }
    assert!(copy.has(start) && copy.has(start + 2 * PAGE) && !copy.has(start + 3 * PAGE));
    assert_eq!(copy.word(start + 3 * PAGE), 0, "never touched");
    assert_eq!(copy.page(start + PAGE + 100).expect("copied")[..], memory[512..1024]);
    assert!(copy.page(start + 3 * PAGE).is_none());
    // Unaligned, and across two pages.
    let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_le_bytes()).collect();
    for place in (0..24).chain(4080..4110) {
        let expected = u64::from_le_bytes(bytes[place..place + 8].try_into().expect("8 bytes"));
        let place = place as u64;
        assert_eq!(copy.word(start + place), expected, "at {place}");
        assert_eq!(copy.byte(start + place), bytes[place as usize]);
    }
    assert_eq!(copy.half(start + 12), (memory[1] >> 32) as u32);
    let range = start + 4000..start + 9000;
    assert_eq!(copy.bytes(range).expect("present"), &bytes[4000..9000]);
    assert_eq!(copy.bytes(start + 9000..start + 13000), None, "the end is absent");
    assert!(copy.runs().iter().any(|run| run.contains(&start)));
}

#[test]
fn impossible_addresses_are_absent() {
    let victim = Victim::fork();
    let process = victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    for address in [
        0,
        1,
        7,
        4095,
        1 << 30,
        (1 << 47) - 8,
        1 << 47,
        (1 << 48) - 4,
        1 << 63,
        u64::MAX - 7,
        u64::MAX,
    ] {
        assert_eq!(copy.word(address), 0, "{address:#x}");
        assert_eq!(copy.half(address), 0);
        assert_eq!(copy.byte(address), 0);
        assert!(!copy.has(address) && copy.page(address).is_none() && copy.granule(address).is_none());
        assert_eq!(copy.text(address, 10), "");
        assert!(
            copy.bytes(address..address.saturating_add(1))
                .unwrap_or_default()
                .is_empty()
        );
    }
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = 5000..400;
    assert_eq!(copy.bytes(reversed), None);
    assert_eq!(copy.bytes(0..u64::MAX), None);
}

#[test]
fn read_only_memory_is_read_when_it_is_needed() {
    static TEXT: &std::ffi::CStr = c"a text in read-only memory, \xc3\xa9";
    let victim = Victim::fork();
    let process = victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    let start = TEXT.as_ptr() as u64;
    assert!(!copy.has(start));
    assert_eq!(copy.text(start, 100), "a text in read-only memory, é");
    assert_eq!(copy.text(start + 2, 4), "text");
    assert_eq!(
        copy.text(start, 29),
        "a text in read-only memory, ",
        "cut inside a character"
    );
    assert_eq!(copy.byte(start + 1), b' ');
    assert!(!copy.has(start) && copy.granule(start).is_none());
}

#[test]
fn a_text_with_control_characters_is_none() {
    static BYTES: [u8; 4] = *b"a\x07b\0";
    static LATIN: [u8; 3] = *b"a\xe9\0";
    let victim = Victim::fork();
    let process = victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    assert_eq!(copy.text(BYTES.as_ptr() as u64, 10), "");
    assert_eq!(copy.text(BYTES.as_ptr() as u64, 1), "a");
    assert_eq!(copy.text(LATIN.as_ptr() as u64, 10), "");
}

#[test]
fn excluded_memory_is_absent() {
    let memory = pages(6);
    memory.fill(7);
    let start = address(memory);
    let victim = Victim::fork();
    let process = victim.process();
    let half = start + 3 * PAGE + 8..start + 5 * PAGE - 8;
    let copy = Image::take(&process, &[start + PAGE..start + 2 * PAGE, half]).expect("readable");
    let seen: Vec<bool> = (0..6).map(|page| copy.word(start + page * PAGE) == 7).collect();
    assert_eq!(
        seen,
        [true, false, true, true, true, true],
        "partly excluded pages are searched"
    );
}

#[test]
fn each_16_bytes_have_a_number_of_their_own() {
    let memory = pages(2);
    memory.fill(1);
    let start = address(memory);
    let victim = Victim::fork();
    let process = victim.process();
    let copy = Image::take(&process, &[]).expect("readable");
    let first = copy.granule(start).expect("copied");
    assert_eq!(copy.granule(start + 15), Some(first));
    assert_eq!(copy.granule(start + 16), Some(first + 1));
    assert_eq!(copy.granule(start + PAGE), Some(first + 256));
    let bytes: u64 = copy.runs().iter().map(|run| run.end - run.start).sum();
    assert_eq!(bytes, copy.copied_bytes());
    let mut last = None;
    for run in copy.runs() {
        let granule = copy.granule(run.end - 1).expect("copied");
        assert!(Some(granule) > last && granule < copy.granules());
        last = Some(granule);
    }
}

/// Memory that a test changes, at an address of its choice.
struct Made {
    memory: Mutex<Vec<u8>>,
    unreadable: Vec<u64>,
}

const BASE: u64 = 0x7000_0000_0000;

impl Made {
    fn new(pages: u64, unreadable: &[u64]) -> Made {
        let memory = (0..pages * PAGE)
            .map(|at| ((at / PAGE) as u8).wrapping_add(1))
            .collect();
        Made {
            memory: Mutex::new(memory),
            unreadable: unreadable.to_vec(),
        }
    }

    fn set(&self, page: u64, value: u8) {
        let start = (page * PAGE) as usize;
        self.memory.lock().expect("unpoisoned")[start..start + PAGE as usize].fill(value);
    }
}

impl Source for Made {
    fn pid(&self) -> Option<u32> {
        None
    }

    fn regions(&self) -> io::Result<Vec<Region>> {
        let end = BASE + self.memory.lock().expect("unpoisoned").len() as u64;
        Ok(vec![Region {
            range: BASE..end,
            readable: true,
            writable: true,
            executable: false,
            shared: false,
            offset: 0,
            name: String::new(),
        }])
    }

    fn present(&self, range: Range<u64>) -> Vec<Range<u64>> {
        vec![range]
    }

    fn read(&self, ranges: &[Range<u64>], buffer: &mut [u8]) -> usize {
        let memory = self.memory.lock().expect("unpoisoned");
        let mut done = 0;
        for page in ranges.iter().flat_map(|range| range.clone().step_by(PAGE as usize)) {
            if self.unreadable.contains(&((page - BASE) / PAGE)) {
                break;
            }
            let start = (page - BASE) as usize;
            buffer[done..done + PAGE as usize].copy_from_slice(&memory[start..start + PAGE as usize]);
            done += PAGE as usize;
        }
        done
    }

    fn threads(&self) -> Vec<Thread> {
        Vec::new()
    }

    fn file(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    fn is_running(&self) -> bool {
        false
    }
}

#[test]
fn pages_that_cannot_be_read_are_left_out_singly() {
    let made = Made::new(40, &[0, 7, 8, 20, 39]);
    let copy = Image::take(&made, &[]).expect("readable");
    for page in 0..40 {
        let expected = !made.unreadable.contains(&page);
        assert_eq!(copy.has(BASE + page * PAGE), expected, "page {page}");
        assert_eq!(
            copy.byte(BASE + page * PAGE + 9),
            if expected { page as u8 + 1 } else { 0 }
        );
    }
    let runs: Vec<_> = copy
        .runs()
        .into_iter()
        .map(|run| (run.start - BASE) / PAGE..(run.end - BASE) / PAGE)
        .collect();
    assert_eq!(runs, [1..7, 9..20, 21..39]);
    assert_eq!(copy.copied_bytes(), 35 * PAGE);
}

#[test]
fn a_process_of_which_nothing_can_be_read_is_an_error() {
    let made = Made::new(3, &[0, 1, 2]);
    let Err(error) = Image::take(&made, &[]) else {
        panic!("nothing was read")
    };
    assert!(error.to_string().contains("no page of it can be read"), "{error}");
}

#[test]
fn a_large_copy_is_the_same_with_several_threads() {
    let made = Made::new(20_000, &[5, 4095, 4096, 12_000]);
    let copy = Image::take(&made, &[]).expect("readable");
    for page in 0..20_000 {
        let expected = if made.unreadable.contains(&page) {
            0
        } else {
            (page as u8).wrapping_add(1)
        };
        assert_eq!(copy.byte(BASE + page * PAGE), expected, "page {page}");
    }
}

#[test]
fn a_newer_copy_reads_pages_again_once_when_they_are_asked_for() {
    let made = Made::new(10, &[]);
    let older = Image::take(&made, &[]).expect("readable");
    let newer = Image::newer(&older).expect("room");
    made.set(3, 99);
    made.set(4, 99);
    let bytes = || -> Vec<u8> { (0..10).map(|page| newer.byte(BASE + page * PAGE)).collect() };
    assert_eq!(bytes(), [1, 2, 3, 99, 99, 6, 7, 8, 9, 10]);
    made.set(5, 98);
    assert_eq!(bytes()[5], 6);
    assert_eq!(older.byte(BASE + 3 * PAGE), 4, "the older copy stays");
    let across = newer.word(BASE + 3 * PAGE - 4);
    assert_eq!(across, 0x6363_6363_0303_0303);
    assert_eq!(newer.bytes(BASE + 3 * PAGE - 1..BASE + 3 * PAGE + 1), Some(vec![3, 99]));
    assert!(newer.has_room());
    for place in [0, 3 * PAGE, 9 * PAGE + 16] {
        assert_eq!(newer.granule(BASE + place), older.granule(BASE + place));
        assert!(newer.has(BASE + place));
    }
    assert_eq!(newer.granules(), older.granules());
    assert_eq!(newer.runs(), older.runs());
}
