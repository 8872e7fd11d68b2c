//! System calls inside a process that is not ours: what they must not do to it, and how that is prevented.
//!
//! - *Cancellation*: `open` and the like are cancellation points, and the program expects none in its call ([`Uncancelled`]).
//! - *Signals*: a write to a broken pipe, beyond the file-size limit or to another terminal raises a signal that kills or
//!   stops the program ([`without_write_signals`]).
//! - *Descriptors*: numbers below 64 belong to the program ([`Descriptor`]).
//! - *Stack*: the caller may run on the 16 KiB of a thread or of a signal handler; large buffers are mapped ([`Scratch`]).
//!
//! Everything here works in signal handlers and needs no heap.

use std::ffi::CStr;
use std::ops::{Deref, DerefMut};

/// An errno value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub fn last() -> Errno {
        // SAFETY: __errno_location is always valid in the calling thread.
        Errno(unsafe { *libc::__errno_location() })
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// While it lives, `pthread_cancel` waits: `open` and the like are cancellation points, and the watched program does
/// not expect any inside its call.
pub struct Uncancelled(libc::c_int);

impl Uncancelled {
    pub fn new() -> Uncancelled {
        const DISABLE: libc::c_int = 1;
        let mut before = 0;
        // SAFETY: changes the calling thread's own state; `before` is valid.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Uncancelled(before)
    }
}

impl Default for Uncancelled {
    fn default() -> Uncancelled {
        Uncancelled::new()
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// While it lives, signals of the calling thread wait.
pub struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub fn all() -> BlockedSignals {
        // SAFETY: all zeros is a value of sigset_t, which sigfillset sets.
        BlockedSignals::of(unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&mut all);
            all
        })
    }

    fn of(signals: libc::sigset_t) -> BlockedSignals {
        // SAFETY: both sets are valid; changes the calling thread's own mask.
        unsafe {
            let mut before = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, &signals, &mut before);
            BlockedSignals(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the mask that `of` found.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// What the kernel sends to a thread whose write it refuses. SIGTTOU is only blocked: the kernel then lets the write pass.
const WRITE_SIGNALS: [libc::c_int; 3] = [libc::SIGPIPE, libc::SIGXFSZ, libc::SIGTTOU];

/// Does work that writes; the signals that a refused write raises do not reach the program.
///
/// The kernel sends them to the writing thread, which blocks them here and takes them back afterwards. One that was
/// pending before is the program's own and stays.
pub fn without_write_signals<R>(work: impl FnOnce() -> R) -> R {
    let signals = set_of(WRITE_SIGNALS);
    let blocked = BlockedSignals::of(signals);
    let ours = set_of(WRITE_SIGNALS.map(|signal| if is_pending(signal) { 0 } else { signal }));
    let result = work();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    while WRITE_SIGNALS
        .iter()
        // SAFETY: a valid set.
        .any(|&signal| unsafe { libc::sigismember(&ours, signal) == 1 } && is_pending(signal))
    {
        // SAFETY: a valid set and time; no information about the signal is asked for.
        if unsafe { libc::sigtimedwait(&ours, std::ptr::null_mut(), &now) } < 0 && Errno::last().0 != libc::EINTR {
            break;
        }
    }
    drop(blocked);
    result
}

/// A set of signals; 0 is none.
fn set_of(signals: [libc::c_int; 3]) -> libc::sigset_t {
    // SAFETY: all zeros is a value of sigset_t; sigaddset refuses numbers that are no signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

fn is_pending(signal: libc::c_int) -> bool {
    // SAFETY: all zeros is a value of sigset_t.
    unsafe {
        let mut pending = std::mem::zeroed();
        libc::sigpending(&mut pending) == 0 && libc::sigismember(&pending, signal) == 1
    }
}

/// Descriptors from here on are ours to use; those below are the program's.
pub const FIRST_OWN: libc::c_int = 64;

/// An open file, closed when it goes.
///
/// The kernel opens files at the lowest free number, and programs count on which one that is: a daemon closes 0 to 2 and
/// opens `/dev/null` three times. So a file is moved to 64 or above at once. For the few microseconds until then another
/// thread may see the low number taken; no system call avoids that. Were it one of 0 to 2, text that the program goes on
/// writing there would land in the file: they are filled meanwhile by descriptors that refuse reads and writes with
/// EBADF, as a closed one does.
pub struct Descriptor {
    number: libc::c_int,
    owned: bool,
}

impl Descriptor {
    /// Opens `path`; `flags` as for `open`, mode 0600. It is closed by exec.
    ///
    /// # Errors
    /// The errno of `open`.
    pub fn open(path: &CStr, flags: libc::c_int) -> Result<Descriptor, Errno> {
        let _standard = Placeholders::fill();
        // SAFETY: `path` is a C string.
        let number = unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o600 as libc::c_uint) };
        if number < 0 {
            return Err(Errno::last());
        }
        let low = Descriptor { number, owned: true };
        // A limit of 64 descriptors or less leaves no other number: then it is used where it is, and not kept.
        Ok(if low.is_own() {
            low
        } else {
            Descriptor::copy_of(low.number).unwrap_or(low)
        })
    }

    /// A second descriptor of an open file, at 64 or above.
    pub fn copy_of(number: libc::c_int) -> Option<Descriptor> {
        // SAFETY: any number may be asked about; the new one is ours.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, FIRST_OWN) };
        (copy >= 0).then_some(Descriptor {
            number: copy,
            owned: true,
        })
    }

    /// For a descriptor that is not to be closed here.
    pub fn borrowed(number: libc::c_int) -> Descriptor {
        Descriptor { number, owned: false }
    }

    pub fn number(&self) -> libc::c_int {
        self.number
    }

    /// Whether the number is one that the program does not use.
    pub fn is_own(&self) -> bool {
        self.number >= FIRST_OWN
    }

    /// It stays open.
    pub fn keep(self) -> libc::c_int {
        let number = self.number;
        std::mem::forget(self);
        number
    }

    /// # Errors
    /// As `fstat`; `EBADF` for a closed one.
    pub fn status(&self) -> Result<libc::stat, Errno> {
        // SAFETY: plain integers: all zeros is a value of `stat`.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a valid `stat`; a closed descriptor is an error.
        match unsafe { libc::fstat(self.number, &mut status) } {
            0 => Ok(status),
            _ => Err(Errno::last()),
        }
    }

    /// Reads until the buffer is full or the file ends; what was read.
    pub fn read<'a>(&self, buffer: &'a mut [u8]) -> &'a [u8] {
        let mut length = 0;
        while length < buffer.len() {
            // SAFETY: the range lies within the buffer.
            let got = unsafe {
                libc::read(
                    self.number,
                    buffer.as_mut_ptr().add(length).cast(),
                    buffer.len() - length,
                )
            };
            if got <= 0 {
                break;
            }
            length += got as usize;
        }
        &buffer[..length]
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: opened by us, and the number is known here alone.
            unsafe { libc::close(self.number) };
        }
    }
}

/// What holds those of the numbers 0 to 2 that the program has closed.
struct Placeholders([libc::c_int; 3]);

impl Placeholders {
    fn fill() -> Placeholders {
        Placeholders([0, 1, 2].map(|number| {
            // SAFETY: asks for flags only; any number may be asked about.
            if unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0 {
                return -1;
            }
            // SAFETY: a constant path. O_PATH opens nothing that could be read or written.
            let held = unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
            if held > 2 {
                // SAFETY: opened just now; another thread has taken the number that was free.
                unsafe { libc::close(held) };
                return -1;
            }
            held
        }))
    }
}

impl Drop for Placeholders {
    fn drop(&mut self) {
        for held in self.0.into_iter().filter(|&held| held >= 0) {
            // Another thread may have put another file there meanwhile, by dup2.
            // SAFETY: asks for flags only.
            let flags = unsafe { libc::fcntl(held, libc::F_GETFL) };
            if flags >= 0 && flags & libc::O_PATH != 0 {
                // SAFETY: opened by `fill`.
                unsafe { libc::close(held) };
            }
        }
    }
}

/// Memory of this process for the duration of one piece of work: neither on the stack nor on the heap.
pub struct Scratch<T>(*mut T);

impl<T> Scratch<T> {
    /// Begins as zeros.
    ///
    /// # Safety
    /// All zeros is a valid `T`.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is used up.
    pub unsafe fn zeroed() -> Result<Scratch<T>, Errno> {
        Ok(Scratch(anonymous(size_of::<T>())?.cast()))
    }
}

impl<T> Deref for Scratch<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped with the size of T, valid as zeros by the promise made to `zeroed`, and ours alone.
        unsafe { &*self.0 }
    }
}

impl<T> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.0 }
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `zeroed` with this length; nothing borrows it any more.
        unsafe { libc::munmap(self.0.cast(), size_of::<T>()) };
    }
}

/// Miri knows no such flag, and needs none.
const RESERVE_NOTHING: i32 = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };

/// Zeroed private memory that is never given back, without the heap.
///
/// # Errors
/// `ENOMEM` when the address space is used up.
pub fn anonymous(bytes: usize) -> Result<*mut u8, Errno> {
    // SAFETY: a new private mapping at an address of the kernel's choice.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | RESERVE_NOTHING,
            -1,
            0,
        )
    };
    if address == libc::MAP_FAILED {
        Err(Errno::last())
    } else {
        Ok(address.cast())
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME in nanoseconds.
pub fn unix_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

fn clock_ns(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec.
    unsafe { libc::clock_gettime(which, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Pauses between looks at what another thread is doing: short ones first, none longer than a millisecond.
#[derive(Default)]
pub struct Pauses(u32);

impl Pauses {
    pub fn pause(&mut self) {
        self.0 += 1;
        if self.0 < 100 {
            // SAFETY: no preconditions.
            unsafe { libc::sched_yield() };
            return;
        }
        let _uncancelled = Uncancelled::new();
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        // SAFETY: a valid time. Woken early by a signal, the caller looks early.
        unsafe { libc::nanosleep(&time, std::ptr::null_mut()) };
    }
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    fn set(signal: libc::c_int) -> libc::sigset_t {
        set_of([signal, 0, 0])
    }

    /// A pipe without a reader.
    fn broken_pipe() -> libc::c_int {
        let mut ends = [0; 2];
        // SAFETY: room for two numbers; the reading end is closed once.
        unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            libc::close(ends[0]);
        }
        ends[1]
    }

    fn write_to(number: libc::c_int) -> isize {
        // SAFETY: one valid byte.
        unsafe { libc::write(number, b"x".as_ptr().cast(), 1) }
    }

    #[test]
    fn a_refused_write_raises_no_signal_and_leaves_one_that_was_pending() {
        // SAFETY: the default action of SIGPIPE would end this process; the mask and signals are this thread's own.
        unsafe {
            let before = libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            let pipe = broken_pipe();
            assert_eq!(without_write_signals(|| write_to(pipe)), -1);
            assert!(!is_pending(libc::SIGPIPE));

            let blocked = BlockedSignals::of(set(libc::SIGPIPE));
            libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE);
            assert_eq!(without_write_signals(|| write_to(pipe)), -1);
            assert!(is_pending(libc::SIGPIPE), "the program's own signal stays");
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            assert_eq!(
                libc::sigtimedwait(&set(libc::SIGPIPE), std::ptr::null_mut(), &now),
                libc::SIGPIPE
            );
            drop(blocked);
            libc::signal(libc::SIGPIPE, before);
            libc::close(pipe);
        }
    }

    #[test]
    fn files_are_opened_from_64_on() {
        let opened = Descriptor::open(c"/proc/self/stat", libc::O_RDONLY).unwrap();
        assert!(opened.is_own());
        assert!(opened.read(&mut [0; 64]).contains(&b'('));
        assert_eq!(
            Descriptor::open(c"/not/here", libc::O_RDONLY).err(),
            Some(Errno(libc::ENOENT))
        );
    }
}
