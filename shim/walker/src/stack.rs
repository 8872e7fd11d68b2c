//! Which memory a walk may read directly, and checked reads of the rest.
//!
//! ```text
//!    low                  rsp                                   top
//!     │ verified, unused   │ frames of this thread               │ thread control block, or the arguments of main
//!  ───┴────────────────────┴─────────────────────────────────────┴───▶ addresses
//! ```
//!
//! The upper end of a thread's stack is known without a system call: the main thread's is in `__libc_stack_end`; every
//! other thread has its control block at the top of its stack block, also of a block that the program supplied. The memory
//! between the stack pointer and that end is the thread's stack only if the thread does not run on a fiber or a signal
//! stack. So the pages in between are probed, once per thread and page; a guard page or a hole reveals a foreign stack.
//! Nothing unmaps memory between a live stack pointer and the top of its stack.
//!
//! Everything else is read with `process_vm_readv` on this process, which returns an error instead of faulting.

use std::cell::Cell;

use crate::machine;

const PAGE: u64 = 4096;
/// Code may keep values this far below its stack pointer.
const RED_ZONE: u64 = 128;
/// Stacks deeper than this are not probed at once; their words are read with checks.
const PROBED_AT_ONCE: u64 = 64 << 20;

/// Addresses that can be read without checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub low: u64,
    pub top: u64,
}

impl Bounds {
    pub const NONE: Bounds = Bounds { low: u64::MAX, top: 0 };

    /// Whether a thread with this stack pointer runs on this stack.
    #[inline(always)]
    pub fn hold(self, sp: u64) -> bool {
        sp < self.top && sp.wrapping_sub(RED_ZONE) >= self.low && sp >= RED_ZONE
    }

    #[inline(always)]
    pub fn contain_word(self, address: u64) -> bool {
        address >= self.low && address < self.top && self.top - address >= 8
    }
}

/// What a thread has found out. Each word is valid by itself, so a signal handler may run between any two accesses. All zeros:
/// nothing yet.
struct Readable {
    /// Everything from here to the thread pointer is readable.
    below_thread: Low,
    /// Everything from here to the end of the main stack is readable.
    below_main: Low,
    /// The end of the main stack, if something below it is known to be readable.
    main_top: Cell<u64>,
    /// A range that is not this thread's stack. A torn pair only makes a walk slower.
    foreign_from: Cell<u64>,
    foreign_to: Cell<u64>,
}

/// A lower end, as its complement: zeros are the highest address.
struct Low(Cell<u64>);

impl Low {
    #[inline(always)]
    fn get(&self) -> u64 {
        !self.0.get()
    }

    fn set(&self, low: u64) {
        self.0.set(!low);
    }
}

crate::thread_variable! {
    // SAFETY: documented: all zeros is a value.
    static KNOWN: unsafe Readable = "culeak_stack_bounds";
}

unsafe extern "C" {
    static __libc_stack_end: u64;
}

#[inline(always)]
fn main_top() -> u64 {
    // SAFETY: the loader writes it before anything else runs.
    unsafe { __libc_stack_end }
}

/// The bounds of the stack that this stack pointer of the calling thread lies on, or `NONE`.
#[inline(always)]
pub fn bounds(sp: u64) -> Bounds {
    KNOWN.with(|known| {
        let thread = Bounds {
            low: known.below_thread.get(),
            top: machine::thread_pointer(),
        };
        if thread.hold(sp) {
            return thread;
        }
        let main = Bounds {
            low: known.below_main.get(),
            top: known.main_top.get(),
        };
        if main.hold(sp) {
            return main;
        }
        probe(known, sp)
    })
}

#[cold]
fn probe(known: &Readable, sp: u64) -> Bounds {
    if (known.foreign_from.get()..known.foreign_to.get()).contains(&sp) || sp < PAGE {
        return Bounds::NONE;
    }
    let foreign = |from, to| {
        known.foreign_from.set(from);
        known.foreign_to.set(to);
    };
    if let Some((from, to)) = signal_stack(sp) {
        foreign(from, to);
        return Bounds::NONE;
    }
    let from = (sp - RED_ZONE) & !(PAGE - 1);
    let below_thread = (machine::thread_pointer(), &known.below_thread);
    let below_main = (main_top(), &known.below_main);
    let mut nearest_first = [below_thread, below_main];
    if below_main.0 < below_thread.0 {
        nearest_first.swap(0, 1);
    }
    // As below: `below_main` holds for this end only.
    known.main_top.set(main_top());
    let mut hole = 0;
    for (top, low) in nearest_first {
        let verified = low.get().min(top);
        if sp >= top || verified.saturating_sub(from) > PROBED_AT_ONCE {
            continue;
        }
        match (from..verified).step_by(PAGE as usize).find(|&page| !readable(page)) {
            None => {
                low.set(from.min(low.get()));
                return Bounds { low: from, top };
            }
            // The nearest top decides: the other one lies above the same hole.
            Some(page) => {
                hole = page;
                break;
            }
        }
    }
    if hole > sp {
        foreign(from, hole);
    }
    Bounds::NONE
}

/// The thread's alternate signal stack, if the stack pointer is on it.
fn signal_stack(sp: u64) -> Option<(u64, u64)> {
    // SAFETY: all zeros is a valid stack_t; a query changes nothing.
    let stack = unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        if libc::sigaltstack(std::ptr::null(), &mut stack) != 0 {
            return None;
        }
        stack
    };
    let (from, size) = (stack.ss_sp as u64, stack.ss_size as u64);
    (stack.ss_flags & libc::SS_DISABLE == 0 && sp.wrapping_sub(from) < size).then_some((from, from + size))
}

/// Whether a load from this page would succeed now.
pub fn readable(page: u64) -> bool {
    let errno = Errno::keep();
    // SAFETY: the kernel copies the mask before it checks the operation, and -1 is not a valid operation. So the call always
    // fails, with EFAULT if the page is not readable.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, -1, page, 0, 8) };
    errno.now() != libc::EFAULT
}

/// Restores errno when it is dropped.
struct Errno(i32);

impl Errno {
    fn keep() -> Errno {
        Errno(Errno::get().get())
    }

    fn get() -> &'static Cell<i32> {
        // SAFETY: the calling thread's errno, which lives as long as the thread; Cell<i32> has the layout of an int.
        unsafe { &*libc::__errno_location().cast() }
    }

    fn now(&self) -> i32 {
        Errno::get().get()
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        Errno::get().set(self.0);
    }
}

/// Reads words at any address without faulting.
pub struct Memory {
    pub bounds: Bounds,
    /// The last words read with checks: the next read is usually nearby.
    window: [u64; WINDOW],
    window_at: u64,
}

const WINDOW: usize = 16;

impl Memory {
    pub fn new(bounds: Bounds) -> Memory {
        Memory {
            bounds,
            window: [0; WINDOW],
            window_at: u64::MAX,
        }
    }

    pub fn word(&mut self, address: u64) -> Option<u64> {
        if self.bounds.contain_word(address) {
            // SAFETY: within the pages that `probe` found readable; see the module's drawing.
            return Some(unsafe { (address as *const u64).read_unaligned() });
        }
        if !address.is_multiple_of(8) {
            let mut word = [0];
            return read(address, &mut word).then_some(word[0]);
        }
        let start = address & !(WINDOW as u64 * 8 - 1);
        if start != self.window_at {
            self.window_at = u64::MAX;
            // A window never crosses a page boundary, so it is readable as a whole or not at all.
            if !read(start, &mut self.window) {
                return None;
            }
            self.window_at = start;
        }
        self.window.get(((address - start) / 8) as usize).copied()
    }
}

/// Fills `words` from this process's memory; false if not all of it is readable.
pub fn read<T: Copy>(address: u64, words: &mut [T]) -> bool {
    let _errno = Errno::keep();
    let length = size_of_val(words);
    let local = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: length,
    };
    let remote = libc::iovec {
        iov_base: address as *mut _,
        iov_len: length,
    };
    // SAFETY: writes within `words`; the kernel checks the source.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    got == length as isize || (got < 0 && is_forbidden() && copy(address, words))
}

/// Containers may forbid `process_vm_readv`.
#[cold]
fn is_forbidden() -> bool {
    matches!(Errno::get().get(), libc::EPERM | libc::ENOSYS | libc::EACCES)
}

/// The fallback: checks that the pages are readable, then copies. Safe unless another thread unmaps them in between.
#[cold]
fn copy<T: Copy>(address: u64, words: &mut [T]) -> bool {
    let length = size_of_val(words);
    let Some(end) = address.checked_add(length as u64) else {
        return false;
    };
    // For page 0 the kernel sees a null pointer and does not read it.
    let is_readable = address >= PAGE && (address & !(PAGE - 1)..end).step_by(PAGE as usize).all(readable);
    if is_readable {
        // SAFETY: every page of the source was readable just now; the destination is `words`, which may be on the stack that is read.
        unsafe { std::ptr::copy(address as *const u8, words.as_mut_ptr().cast::<u8>(), length) };
    }
    is_readable
}

/// Reads pieces of equal size from many addresses into `words`, one after the other. Returns the number of whole pieces
/// before the first unreadable one.
pub fn read_each(addresses: &[u64], piece: usize, words: &mut [u64]) -> usize {
    const AT_ONCE: usize = 64;
    let _errno = Errno::keep();
    let count = addresses
        .len()
        .min(AT_ONCE)
        .min(size_of_val(words).checked_div(piece).unwrap_or(0));
    let mut remote = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: piece,
    }; AT_ONCE];
    for (place, address) in remote.iter_mut().zip(addresses) {
        place.iov_base = *address as *mut _;
    }
    let local = libc::iovec {
        iov_base: words.as_mut_ptr().cast(),
        iov_len: count * piece,
    };
    // SAFETY: writes within `words`; the kernel checks the sources.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, remote.as_ptr(), count as u64, 0) };
    if got < 0 && is_forbidden() {
        let pieces = words.chunks_exact_mut(piece.max(8) / 8).zip(addresses);
        return pieces
            .map(|(words, address)| copy(*address, words))
            .take_while(|&copied| copied)
            .count();
    }
    usize::try_from(got).unwrap_or(0).checked_div(piece).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_up_to_the_first_unreadable_one() {
        let memory: Vec<u64> = (0..64).collect();
        let at = |place: usize| std::ptr::from_ref(&memory[place]) as u64;
        let mut words = [0; 6];
        assert_eq!(read_each(&[at(10), at(3), at(40)], 16, &mut words), 3);
        assert_eq!(words, [10, 11, 3, 4, 40, 41]);
        assert_eq!(read_each(&[at(20), 1 << 46, at(3)], 16, &mut words), 1);
        assert_eq!(words[..2], [20, 21]);
        assert_eq!(read_each(&[at(1); 100], 16, &mut words), 3, "as many as fit");
        assert_eq!(read_each(&[8], 16, &mut words), 0);
        assert_eq!(read_each(&[], 16, &mut words), 0);
    }

    #[test]
    fn only_readable_pages_are_copied() {
        let memory: Vec<u64> = (0..2048).collect();
        let mut words = [0u64; 2000];
        assert!(copy(std::ptr::from_ref(&memory[7]) as u64, &mut words));
        assert!(words.iter().copied().eq(7..2007));
        for unmapped in [0, 8, 1 << 46, u64::MAX - 7, u64::MAX] {
            assert!(!copy(unmapped, &mut words));
        }
    }

    #[test]
    fn every_kind_of_thread_knows_its_own_stack() {
        let check = || {
            let local = 1u64;
            let sp = std::ptr::from_ref(&local) as u64;
            let found = bounds(sp);
            assert!(found.hold(sp) && found.contain_word(sp), "{found:x?}");
            assert_eq!(bounds(sp), found);
        };
        check();
        std::thread::spawn(check).join().unwrap();
    }

    #[test]
    fn unreadable_memory_is_an_error_not_a_fault() {
        let mut memory = Memory::new(Bounds::NONE);
        let here = [7u64, 8];
        let at = here.as_ptr() as u64;
        assert_eq!(memory.word(at), Some(7));
        assert_eq!(memory.word(at + 8), Some(8));
        for unmapped in [0, 8, 0x1001, 1 << 46, u64::MAX - 7, u64::MAX] {
            assert_eq!(memory.word(unmapped), None);
        }
        assert_eq!(memory.word(at), Some(7));
    }

    #[test]
    fn a_heap_block_is_a_foreign_stack() {
        let block = vec![0u64; 1 << 16];
        assert_eq!(bounds(block.as_ptr() as u64 + 4096), Bounds::NONE);
    }

    #[test]
    fn errno_is_preserved() {
        Errno::get().set(77);
        assert!(!readable(1 << 46));
        assert!(!read(1 << 46, &mut [0u64]));
        assert_eq!(Errno::get().get(), 77);
    }
}
