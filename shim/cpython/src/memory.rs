//! Reading memory that belongs to the interpreter.
//!
//! On the main thread, and wherever the caller holds the GIL, nothing of the thread's chain can go away under our hands:
//! loads do ([`Trusting`]). What is left to fear there is a chain that is no chain, because a signal handler came in the
//! middle of a change. So an address must be plausible, and its page must have been found readable once. That costs a
//! look-up a frame; asking the kernel each time would cost more than the walk.
//!
//! Any other thread may be a daemon thread in a process whose main thread is taking the interpreter down: its thread
//! state, its frames and its code objects can be freed and unmapped between any two loads, and no flag that is looked at
//! before can prevent that. There the kernel copies: an error instead of a fault. It takes its time for every request, so
//! as much as possible is asked for at once ([`Window`], [`Gathered`]).

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering::*};

use culeak_walker::{read, read_each, readable};

const PAGE: u64 = 4096;

pub trait Memory {
    /// So many bytes of an object, or `None` where there is none.
    fn object(&mut self, address: u64, bytes: u64) -> Option<View<'_>>;

    /// These, of so many bytes each, will be asked for next.
    fn expect(&mut self, _addresses: &[u64], _bytes: u64) {}
}

/// Some bytes that can be read.
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
        // SAFETY: offsets come from a layout, whose sizes cover them (a test says so), and the bytes are readable. Plain
        // integers only, wherever they lie.
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

/// Objects lie at multiples of eight in the lower half of the address space.
#[inline(always)]
fn plausible(address: u64) -> bool {
    address & 7 == 0 && address >= PAGE && address >> 47 == 0
}

/// Pages found readable: eight to a set, which is one cache line. With fewer, three pages of one deep stack would often
/// share a set, depending on where the interpreter's heap lies, and each walk would ask the kernel about them again. A
/// page that was unmapped since is still believed in; only a chain that is none could lead there.
static PAGES: [Set; SETS] = [const { Set([const { AtomicU64::new(0) }; 8]) }; SETS];
const SETS: usize = 512;

#[repr(align(64))]
struct Set([AtomicU64; 8]);

#[inline(always)]
fn known(page: u64) -> bool {
    let set = &PAGES[(page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SETS.ilog2())) as usize];
    set.0.iter().any(|known| known.load(Relaxed) == page) || probe(set, page)
}

#[cold]
#[inline(never)]
fn probe(set: &Set, page: u64) -> bool {
    let found = readable(page);
    if found {
        // The oldest makes room.
        set.0.iter().fold(page, |newer, slot| slot.swap(newer, Relaxed));
    }
    found
}

/// Loads, from pages that are there.
pub struct Trusting {
    page: u64,
}

impl Trusting {
    pub fn new() -> Trusting {
        Trusting { page: 0 }
    }
}

impl Memory for Trusting {
    #[inline(always)]
    fn object(&mut self, address: u64, bytes: u64) -> Option<View<'_>> {
        if !plausible(address) {
            return None;
        }
        let (first, last) = (address & !(PAGE - 1), (address + bytes - 1) & !(PAGE - 1));
        if (first != self.page && !known(first)) || (last != first && !known(last)) {
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

/// Copies made by the kernel. A thread's frames lie one below the other from 3.11 on, so what lies below the one asked
/// for comes with it.
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
        if !plausible(address) || bytes > COPIED as u64 {
            return None;
        }
        let end = address + bytes;
        if address < self.start || end > self.end {
            // Not into the page below, which may not be there.
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

/// Copies of the objects that were expected, made at once; of any other, one by one.
pub struct Gathered<const WORDS: usize> {
    copies: [u64; WORDS],
    addresses: [u64; EXPECTED],
    count: usize,
    bytes: u64,
    other: [u64; 32],
}

/// As many objects are gathered at most.
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
        if !plausible(address) {
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

thread_local! {
    // Constant and without a destructor: touching it never calls the loader or malloc. 0: not asked yet.
    static THREAD_KIND: Cell<u8> = const { Cell::new(0) };
}

/// Whether this is the thread the process began with. In a forked child the answer may be the parent's: on the careful
/// side, since only that thread of the parent's said yes.
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
        let (mut trusting, mut window, mut gathered) = (Trusting::new(), Window::new(), Gathered::<400>::new());
        check(&mut |address, bytes| Some(trusting.object(address, bytes)?.word(bytes - 8)));
        check(&mut |address, bytes| Some(window.object(address, bytes)?.word(bytes - 8)));
        check(&mut |address, bytes| Some(gathered.object(address, bytes)?.word(bytes - 8)));
        let mut last = 0;
        check(&mut |address, bytes| {
            // Every object is expected together with the one before.
            gathered.expect(&[address, last], bytes);
            last = address;
            Some(gathered.object(address, bytes)?.word(bytes - 8))
        });
    }

    #[test]
    fn memory_that_is_there_is_read() {
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
    fn what_is_no_object_is_none() {
        let words = [0u64; 64];
        let at = words.as_ptr() as u64;
        all(|last| {
            for nowhere in [0, 8, at + 1, at + 4, 1 << 46, 1 << 47, u64::MAX - 7, u64::MAX] {
                assert_eq!(last(nowhere, 80), None, "{nowhere:x}");
            }
        });
    }

    /// The last page before a hole: what lies in it is read, what reaches into the hole is not.
    #[test]
    fn objects_that_end_in_a_hole_are_none() {
        // SAFETY: fresh pages, of which the last is given back at once.
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
    fn pages_of_a_deep_stack_are_asked_about_once() {
        // As many pages as the frames and code objects of a deep stack lie in, anywhere in a heap of 64 MiB.
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
    fn one_thread_is_the_main_one() {
        let others = std::thread::spawn(on_main_thread).join().unwrap();
        assert!(!others);
    }
}
