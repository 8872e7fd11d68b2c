//! Heaps of versions that are not installed.

use super::*;
use crate::process_tests::{Victim, pages as fresh_pages};

const KEY: u64 = 0xdead_beef_1234_5678;

fn address(words: &[u64]) -> u64 {
    words.as_ptr() as u64
}

/// A chunk of this size at the byte `at`, after one in use. Returns the byte at which its memory starts.
fn chunk(words: &mut [u64], at: usize, size: u64) -> usize {
    words[at / 8 + 1] = size | 1;
    at + 16
}

#[test]
fn freed_chunks_in_a_cache_of_2_42_and_later_are_not_in_use() {
    // What a list can still take at most: 2.42, 2.43.
    for most in [7_u64, 16] {
        let words = fresh_pages(8);
        let (base, end) = (address(words), 8 * PAGE as usize);
        let cache = chunk(words, 0, 0x300);
        let small: Vec<usize> = (0..4).map(|number| chunk(words, 0x300 + number * 0x20, 0x20)).collect();
        let large = chunk(words, 0x380, 0x1010);
        let used = chunk(words, 0x1390, 0x40);
        chunk(words, 0x13d0, end as u64 - 0x13d0);
        let mut put = |at: usize, value: u64| words[at / 8] = value;
        let free_slots = |list: u64| match list {
            0 => most - 2,
            65 => most - 1,
            _ => most,
        };
        for four in 0..19 {
            let slots = (0..4).map(|part| free_slots(four * 4 + part) << (16 * part));
            put(cache + four as usize * 8, slots.sum());
        }
        // Two of the smallest size, the second of which is last, and a large one.
        let linked = |from: usize, to: u64| (base + from as u64) >> 12 ^ to;
        for (list, head) in [(0, small[0]), (65, large)] {
            put(cache + 76 * 2 + list * 8, base + head as u64);
        }
        for (from, to) in [(small[0], base + small[2] as u64), (small[2], 0), (large, 0)] {
            put(from, linked(from, to));
            put(from + 8, KEY);
        }
        let victim = Victim::fork();
        let process = victim.process();
        let copy = Image::take(&process, &[]).unwrap();
        let mut pages = Pages::new(&copy);
        let heap = base..base + end as u64;
        find(&copy, &Modules::find(&copy), &mut pages, &[], &[heap]);
        let is_used = |at: usize| pages.is_start(copy.granule(base + at as u64).unwrap());
        for at in [cache, small[1], small[3], used] {
            assert!(is_used(at), "{at:x}");
        }
        for at in [small[0], small[2], large] {
            assert!(!is_used(at), "{at:x}");
        }
    }
}

#[test]
fn mappings_of_their_own_are_found_as_each_version_lays_them_out() {
    let words = fresh_pages(12);
    let base = address(words);
    let page = |number: u64| (number * PAGE / 8) as usize;
    // Before 2.43: the chunk ends with its mapping.
    words[page(0) + 1] = (2 * PAGE) | 2;
    // 2.43, plain, and aligned in huge pages.
    words[page(2) + 1] = (2 * PAGE - 16) | 2;
    words[page(4) + 6] = 48 | 1;
    words[page(4) + 7] = (2 * PAGE - 48 - 16) | 2;
    // No chunk: its size does not end with a page.
    words[page(6) + 1] = (2 * PAGE - 32) | 2;
    let victim = Victim::fork();
    let process = victim.process();
    let copy = Image::take(&process, &[]).unwrap();
    let mut pages = Pages::new(&copy);
    let memory = base..base + 12 * PAGE;
    pages.set_kind(&copy, memory.clone(), Heap::Unknown);
    find_mapped(&copy, &mut pages, &[memory]);
    let found = |at: u64| {
        pages
            .is_start(copy.granule(base + at).unwrap())
            .then(|| usable(&copy, base + at))
    };
    assert_eq!(found(16), Some(2 * PAGE - 16));
    assert_eq!(found(2 * PAGE + 16), Some(2 * PAGE - 16 - 8));
    assert_eq!(found(4 * PAGE + 64), Some(2 * PAGE - 64 - 8));
    assert_eq!(found(6 * PAGE + 16), None);
    assert_eq!(pages.kind_at(&copy, base + 4 * PAGE), Heap::Glibc);
    assert_eq!(pages.kind_at(&copy, base + 6 * PAGE), Heap::Unknown);
}
