//! Reads of memory that belongs to the interpreter.
//!
//! On the main thread, and on any thread that holds the GIL (in a free-threaded build: is attached, which the interpreter waits for
//! before it deletes thread states), the objects of the thread's chain cannot be freed during a
//! walk, so plain loads suffice ([`Direct`]). The chain itself may still be inconsistent, if a signal handler interrupted a
//! change to it. So an address must be plausible, and its page must have been found readable before. That costs a look-up
//! per frame; a system call each time would cost more than the walk.
//!
//! Any other thread reads so too while it is permitted ([`crate::direct`]). Else it may be a daemon thread while the main thread finalizes the interpreter: its thread state, frames and
//! code objects can be freed and unmapped between any two loads, and no check beforehand can prevent that. There the
//! kernel copies the memory and returns an error instead of faulting. Each system call is slow, so each one reads as much
//! as possible ([`Window`], [`Gathered`]).

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::*};

use culeak_walker::{ADDRESS_BITS, read, read_each, readable};

const PAGE: u64 = 4096;

pub trait Memory {
    /// The first `bytes` bytes of an object; `None` if they cannot be read.
    fn object(&mut self, address: u64, bytes: u64) -> Option<View<'_>>;

    /// Announces that these objects, of `bytes` bytes each, will be read next.
    fn expect(&mut self, _addresses: &[u64], _bytes: u64) {}
}

/// Readable bytes.
#[derive(Clone, Copy)]
pub struct View<'a> {
    at: u64,
    bytes: u64,
    lender: PhantomData<&'a ()>,
}

impl View<'_> {
    #[inline(always)]
    fn load<T: Copy>(self, offset: u64) -> T {
        debug_assert!(offset + size_of::<T>() as u64 <= self.bytes);
        // SAFETY: the bytes are readable, offsets come from a layout whose sizes cover them (a test checks that), and only
        // integers are loaded, unaligned.
        unsafe { ((self.at + offset) as *const T).read_unaligned() }
    }

    #[inline(always)]
    pub fn word(self, offset: u64) -> u64 {
        self.load(offset)
    }

    #[inline(always)]
    pub fn half(self, offset: u64) -> u32 {
        self.load(offset)
    }

    #[inline(always)]
    pub fn byte(self, offset: u64) -> u8 {
        self.load(offset)
    }
}

/// Objects lie at multiples of eight in user space.
#[inline(always)]
fn is_plausible(address: u64) -> bool {
    address & 7 == 0 && address >= PAGE && address >> ADDRESS_BITS == 0
}

/// Pages found readable: eight per set, which is one cache line. With smaller sets, the pages of one deep stack would often
/// compete for a set, depending on the addresses of the interpreter's heap, and each walk would probe them again. A page
/// that was unmapped since is still in the table; only an inconsistent chain could lead there.
static PAGES: [Set; SETS] = [const { Set([const { AtomicU64::new(0) }; 8]) }; SETS];
const SETS: usize = 512;

#[repr(align(64))]
struct Set([AtomicU64; 8]);

#[inline(always)]
fn is_readable(page: u64) -> bool {
    let set = &PAGES[(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SETS.ilog2())) as usize];
    set.0.iter().any(|known| known.load(Relaxed) == page) || probe(set, page)
}

#[cold]
#[inline(never)]
fn probe(set: &Set, page: u64) -> bool {
    let found = readable(page);
    if found {
        // Replaces the oldest entry.
        set.0.iter().fold(page, |newer, slot| slot.swap(newer, Relaxed));
    }
    found
}

/// Plain loads, from pages that were found readable.
pub struct Direct {
    page: u64,
}

impl Direct {
    pub fn new() -> Direct {
        Direct { page: 0 }
    }
}

impl Memory for Direct {
    #[inline(always)]
    fn object(&mut self, address: u64, bytes: u64) -> Option<View<'_>> {
        if !is_plausible(address) {
            return None;
        }
        let (first, last) = (address & !(PAGE - 1), (address + bytes - 1) & !(PAGE - 1));
        if (first != self.page && !is_readable(first)) || (last != first && !is_readable(last)) {
            return None;
        }
        self.page = last;
        Some(View {
            at: address,
            bytes,
            lender: PhantomData,
        })
    }
}

/// # Safety
/// [`Direct`] has lent as many bytes at this address before, and their owner has not freed them.
#[inline(always)]
pub unsafe fn read_before(address: u64, bytes: u64) -> View<'static> {
    View {
        at: address,
        bytes,
        lender: PhantomData,
    }
}

/// Copies made by the kernel. From 3.11 on a thread's frames lie one below the other, so the memory below the requested
/// frame is copied with it.
pub struct Window {
    copy: [u64; COPIED / 8],
    start: u64,
    end: u64,
}

const COPIED: usize = 2048;

impl Window {
    pub fn new() -> Window {
        Window {
            copy: [0; COPIED / 8],
            start: 0,
            end: 0,
        }
    }
}

impl Memory for Window {
    fn object(&mut self, address: u64, bytes: u64) -> Option<View<'_>> {
        if !is_plausible(address) || bytes > COPIED as u64 {
            return None;
        }
        let end = address + bytes;
        if address < self.start || end > self.end {
            // Does not reach into the page below, which may not be mapped.
            let start = (end - COPIED as u64).max(address & !(PAGE - 1)).min(address);
            let words = ((end - start).div_ceil(8)) as usize;
            (self.start, self.end) = (0, 0);
            if !read(start, &mut self.copy[..words]) {
                return None;
            }
            (self.start, self.end) = (start, end);
        }
        Some(View {
            at: self.copy.as_ptr() as u64 + (address - self.start),
            bytes,
            lender: PhantomData,
        })
    }
}

/// Copies made by the kernel: of the expected objects together, of any other object alone.
pub struct Gathered<const WORDS: usize> {
    copies: [u64; WORDS],
    addresses: [u64; EXPECTED],
    count: usize,
    bytes: u64,
    other: [u64; 32],
}

/// The most objects that are copied together.
pub const EXPECTED: usize = 48;

impl<const WORDS: usize> Gathered<WORDS> {
    pub fn new() -> Self {
        Gathered {
            copies: [0; WORDS],
            addresses: [0; EXPECTED],
            count: 0,
            bytes: 0,
            other: [0; 32],
        }
    }
}

impl<const WORDS: usize> Memory for Gathered<WORDS> {
    fn object(&mut self, address: u64, bytes: u64) -> Option<View<'_>> {
        if !is_plausible(address) {
            return None;
        }
        let known = self.addresses[..self.count].iter().position(|&known| known == address);
        let at = match known.filter(|_| bytes <= self.bytes) {
            Some(place) => self.copies.as_ptr() as u64 + place as u64 * self.bytes,
            None => {
                let words = self.other.get_mut(..bytes.div_ceil(8) as usize)?;
                if !read(address, words) {
                    return None;
                }
                words.as_ptr() as u64
            }
        };
        Some(View {
            at,
            bytes,
            lender: PhantomData,
        })
    }

    fn expect(&mut self, addresses: &[u64], bytes: u64) {
        let count = addresses.len().min(EXPECTED).min(WORDS * 8 / bytes as usize);
        self.addresses[..count].copy_from_slice(&addresses[..count]);
        self.count = read_each(&addresses[..count], bytes as usize, &mut self.copies);
        self.bytes = bytes;
    }
}

culeak_walker::thread_variable! {
    /// 1: the main thread; 2: another one; 0: not known yet.
    // SAFETY: an integer.
    static THREAD_KIND: unsafe Cell<u8> = "culeak_thread_kind";
}

/// Whether this is the process's main thread. In a forked child the cached answer may be that of the parent's thread: still
/// safe, since it is true only for the parent's main thread.
#[inline]
pub fn on_main_thread() -> bool {
    THREAD_KIND.with(|kind| {
        if kind.get() == 0 {
            // SAFETY: both have no preconditions.
            let main = unsafe { libc::getpid() == libc::syscall(libc::SYS_gettid) as i32 };
            kind.set(if main { 1 } else { 2 });
        }
        kind.get() == 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(check: impl Fn(&mut dyn FnMut(u64, u64) -> Option<u64>)) {
        let (mut direct, mut window, mut gathered) = (Direct::new(), Window::new(), Gathered::<400>::new());
        check(&mut |address, bytes| Some(direct.object(address, bytes)?.word(bytes - 8)));
        check(&mut |address, bytes| Some(window.object(address, bytes)?.word(bytes - 8)));
        check(&mut |address, bytes| Some(gathered.object(address, bytes)?.word(bytes - 8)));
        let mut last = 0;
        check(&mut |address, bytes| {
            // Every object is expected together with the previous one.
            gathered.expect(&[address, last], bytes);
            last = address;
            Some(gathered.object(address, bytes)?.word(bytes - 8))
        });
    }

    #[test]
    fn mapped_memory_is_read() {
        let words: Vec<u64> = (0..4096).collect();
        all(|last| {
            for place in (0..4000).rev() {
                let at = std::ptr::from_ref(&words[place]) as u64;
                assert_eq!(last(at, 80), Some(place as u64 + 9));
            }
            assert_eq!(last(words.as_ptr() as u64, 256), Some(31));
        });
    }

    #[test]
    fn implausible_and_unmapped_addresses_are_none() {
        let words = [0u64; 64];
        let at = words.as_ptr() as u64;
        all(|last| {
            for address in [0, 8, at + 1, at + 4, 1 << 46, 1 << ADDRESS_BITS, u64::MAX - 7, u64::MAX] {
                assert_eq!(last(address, 80), None, "{address:x}");
            }
        });
    }

    #[test]
    fn all_of_user_space_is_plausible() {
        // On aarch64 the kernel maps libraries and large blocks right below 2^48.
        assert!(is_plausible((1 << ADDRESS_BITS) - PAGE));
        assert!(!is_plausible(1 << ADDRESS_BITS));
    }

    /// A page between holes: objects inside it are read, objects that reach into a hole are not.
    #[test]
    fn objects_that_reach_into_a_hole_are_none() {
        // SAFETY: new pages, of which the first and the last are unmapped at once.
        let page = unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                3 * PAGE as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            ) as u64;
            libc::munmap(start as *mut _, PAGE as usize);
            libc::munmap((start + 2 * PAGE) as *mut _, PAGE as usize);
            start + PAGE
        };
        all(|last| {
            assert_eq!(last(page, 80), Some(0));
            assert_eq!(last(page + PAGE - 80, 80), Some(0));
            assert_eq!(last(page + PAGE - 72, 80), None);
            assert_eq!(last(page - 8, 80), None);
        });
    }

    #[test]
    fn pages_of_a_deep_stack_fit_their_sets() {
        // As many pages as the frames and code objects of a deep stack use, anywhere in a heap of 64 MiB.
        let mut random = 1u64;
        for layout in 0..2000 {
            let mut sets = [0; SETS];
            for _ in 0..100 {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let page = 0x7f00_0000_0000 + (layout << 26) + (random >> 50) * PAGE;
                sets[(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SETS.ilog2())) as usize] += 1;
            }
            assert!(sets.iter().all(|&pages| pages <= 8), "layout {layout}");
        }
    }

    #[test]
    fn another_thread_is_not_the_main_one() {
        let others = std::thread::spawn(on_main_thread).join().unwrap();
        assert!(!others);
    }
}
