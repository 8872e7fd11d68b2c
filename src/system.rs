//! System calls inside someone else's process: their side effects on it, and how they are prevented.
//!
//! - *Cancellation*: `open` and others are cancellation points, which the program does not expect in its call
//!   ([`Uncancelled`]).
//! - *Signals*: a write to a broken pipe, beyond the file-size limit or to a background terminal raises a signal that kills
//!   or stops the program ([`without_write_signals`]).
//! - *Descriptors*: numbers below 64 belong to the program ([`Descriptor`]).
//! - *Stack*: the caller may run on the 16 KiB of a thread or of a signal handler; large buffers are mapped ([`Scratch`]).
//!
//! Everything here works in signal handlers and needs no heap.

use std::ffi::CStr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// An errno value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    pub fn last() -> Errno {
        // SAFETY: __errno_location is always valid in the calling thread.
        Errno(unsafe { *libc::__errno_location() })
    }
}

/// Marks the branch in which it is called as rare: its instructions are placed behind the others. `std::hint::cold_path` does the
/// same from Rust 1.95 on.
#[cold]
#[inline(never)]
pub fn cold_path() {}

/// A copy for a call out of line, made where that is: the compiler does not see through it, so the original stays in registers on
/// the path of most events. A reference to it would keep it in memory.
#[inline(always)]
pub fn aside<T: Copy>(value: &T) -> T {
    std::hint::black_box(*value)
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// While it exists, cancellation of the calling thread is deferred: `open` and others are cancellation points, and the
/// watched program expects none inside its call.
pub struct Uncancelled(libc::c_int);

impl Uncancelled {
    pub fn begin() -> Uncancelled {
        const DISABLE: libc::c_int = 1;
        let mut before = 0;
        // SAFETY: changes the state of the calling thread only; `before` is valid.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Uncancelled(before)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: as in `begin`.
        unsafe { pthread_setcancelstate(self.0, std::ptr::null_mut()) };
    }
}

/// While it exists, signals of the calling thread are blocked.
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
        // SAFETY: both sets are valid; changes the mask of the calling thread only.
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

/// The signals that the kernel sends to a thread whose write fails. While SIGTTOU is blocked, the write succeeds.
const WRITE_SIGNALS: [libc::c_int; 3] = [libc::SIGPIPE, libc::SIGXFSZ, libc::SIGTTOU];

/// Runs work that writes. Signals that a failed write raises do not reach the program.
///
/// The kernel sends them to the writing thread, which blocks them here and consumes them afterwards. A signal that was
/// pending before belongs to the program and stays pending.
pub fn without_write_signals<R>(work: impl FnOnce() -> R) -> R {
    let signals = set_of(WRITE_SIGNALS);
    let blocked = BlockedSignals::of(signals);
    let raised = set_of(WRITE_SIGNALS.map(|signal| if is_pending(signal) { 0 } else { signal }));
    let result = work();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    while WRITE_SIGNALS
        .iter()
        // SAFETY: a valid set.
        .any(|&signal| unsafe { libc::sigismember(&raised, signal) == 1 } && is_pending(signal))
    {
        // SAFETY: a valid set and time; no information about the signal is requested.
        if unsafe { libc::sigtimedwait(&raised, std::ptr::null_mut(), &now) } < 0 && Errno::last().0 != libc::EINTR {
            break;
        }
    }
    drop(blocked);
    result
}

/// A set of signals; 0: no signal.
fn set_of(signals: [libc::c_int; 3]) -> libc::sigset_t {
    // SAFETY: all zeros is a value of sigset_t; sigaddset fails for numbers that are no signals.
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

/// The first descriptor that the recorder uses; lower ones belong to the program.
pub const FIRST_OWN: libc::c_int = 64;

/// An open file, closed on drop.
///
/// The kernel opens files at the lowest free number, and programs rely on that: a daemon closes 0 to 2 and opens `/dev/null`
/// three times. So a file is moved to 64 or above at once. For the few microseconds until then another thread may find the
/// low number in use; no system call avoids that. If the number were 0, 1 or 2, text that the program writes there would end
/// up in the file: closed numbers among these are meanwhile filled with descriptors on which reads and writes fail with
/// EBADF, as on a closed one.
pub struct Descriptor {
    number: libc::c_int,
    owned: bool,
}

impl Descriptor {
    /// Opens `path` with the `flags` of `open`, mode 0600 and O_CLOEXEC.
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
        // With a limit of 64 descriptors or fewer the low number is used, for a short time.
        Ok(if low.is_own() {
            low
        } else {
            Descriptor::copy_of(low.number).unwrap_or(low)
        })
    }

    /// A second descriptor of an open file, at 64 or above.
    pub fn copy_of(number: libc::c_int) -> Option<Descriptor> {
        // SAFETY: fcntl accepts any number; the new one belongs to the caller.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, FIRST_OWN) };
        (copy >= 0).then_some(Descriptor {
            number: copy,
            owned: true,
        })
    }

    /// A descriptor that is not closed on drop.
    pub fn borrowed(number: libc::c_int) -> Descriptor {
        Descriptor { number, owned: false }
    }

    pub fn number(&self) -> libc::c_int {
        self.number
    }

    /// Whether the number is 64 or above.
    pub fn is_own(&self) -> bool {
        self.number >= FIRST_OWN
    }

    /// Leaves the file open and returns its number.
    pub fn keep(self) -> libc::c_int {
        let number = self.number;
        std::mem::forget(self);
        number
    }

    /// The result of `fstat`.
    ///
    /// # Errors
    /// As `fstat`; `EBADF` if it is closed.
    pub fn status(&self) -> Result<libc::stat, Errno> {
        // SAFETY: plain integers: all zeros is a value of `stat`.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a valid `stat`; a closed descriptor is an error.
        match unsafe { libc::fstat(self.number, &mut status) } {
            0 => Ok(status),
            _ => Err(Errno::last()),
        }
    }

    /// Reads until the buffer is full or the file ends; returns the part that was read.
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
            match got {
                1.. => length += got as usize,
                _ if got < 0 && Errno::last().0 == libc::EINTR => {}
                _ => break,
            }
        }
        &buffer[..length]
    }
}

/// Fills the buffer from a place in a file; with zeros where the file has ended.
///
/// # Errors
/// The errno of `pread`.
pub fn read_at(file: i32, mut bytes: &mut [u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: the buffer has this length; `file` is open.
        let got = unsafe { libc::pread(file, bytes.as_mut_ptr().cast(), bytes.len(), at as libc::off_t) };
        match got {
            1.. => {
                bytes = &mut bytes[got as usize..];
                at += got as u64;
            }
            // A copy lacks the pages of zeros at its end.
            0 => {
                bytes.fill(0);
                return Ok(());
            }
            _ if Errno::last().0 == libc::EINTR => {}
            _ => return Err(Errno::last()),
        }
    }
    Ok(())
}

/// Writes the buffer to a place in a file.
///
/// # Errors
/// The errno of `pwrite`.
pub fn write_at(file: i32, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        // SAFETY: as in `read_at`.
        let put = unsafe { libc::pwrite(file, bytes.as_ptr().cast(), bytes.len(), at as libc::off_t) };
        match put {
            1.. => {
                bytes = &bytes[put as usize..];
                at += put as u64;
            }
            0 => return Err(Errno(libc::ENOSPC)),
            _ if Errno::last().0 == libc::EINTR => {}
            _ => return Err(Errno::last()),
        }
    }
    Ok(())
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: owned by this value alone.
            unsafe { libc::close(self.number) };
        }
    }
}

/// Occupies the numbers among 0 to 2 that the program has closed.
struct Placeholders([libc::c_int; 3]);

impl Placeholders {
    fn fill() -> Placeholders {
        Placeholders([0, 1, 2].map(|number| {
            // SAFETY: reads flags only; fcntl accepts any number.
            if unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0 {
                return -1;
            }
            // SAFETY: a constant path. O_PATH opens nothing that could be read or written.
            let held = unsafe { libc::open(c"/".as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
            if held > 2 {
                // SAFETY: opened above; another thread took the free number first.
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
            // Another thread may have replaced it by dup2.
            // SAFETY: reads flags only.
            let flags = unsafe { libc::fcntl(held, libc::F_GETFL) };
            if flags >= 0 && flags & libc::O_PATH != 0 {
                // SAFETY: opened by `fill`.
                unsafe { libc::close(held) };
            }
        }
    }
}

/// Temporary memory, neither on the stack nor on the heap.
pub struct Scratch<T>(*mut T);

impl<T> Scratch<T> {
    /// Maps a zeroed `T`.
    ///
    /// # Safety
    /// All zeros is a valid `T`.
    ///
    /// # Errors
    /// `ENOMEM` if the address space is used up.
    pub unsafe fn zeroed() -> Result<Scratch<T>, Errno> {
        Ok(Scratch(anonymous(size_of::<T>())?.cast()))
    }
}

impl<T> Deref for Scratch<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: mapped with the size of T, valid as zeros by the contract of `zeroed`, and owned by this value.
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

/// Temporary memory that is mapped once and stays for the next user: mapping, faulting in and unmapping a few pages takes longer
/// than most uses. Up to `N` users at a time have it, further ones map [`Scratch`] memory.
///
/// In a forked child, what other threads were using is lost, and mapped again.
pub struct Spares<T, const N: usize>([AtomicPtr<T>; N]);

impl<T, const N: usize> Spares<T, N> {
    #[allow(clippy::new_without_default, reason = "only statics have it")]
    pub const fn new() -> Spares<T, N> {
        Spares([const { AtomicPtr::new(std::ptr::null_mut()) }; N])
    }

    /// Memory with what its last user has left there; zeros at first.
    ///
    /// # Safety
    /// All zeros is a valid `T`.
    ///
    /// # Errors
    /// `ENOMEM` if the address space is used up.
    pub unsafe fn take(&self) -> Result<Spare<'_, T, N>, Errno> {
        // Acquire: pairs with the Release in `drop`, so that what the last user wrote is seen.
        let mut swapped = self.0.iter().map(|place| place.swap(std::ptr::null_mut(), Acquire));
        let memory = match swapped.find(|memory| !memory.is_null()) {
            Some(memory) => Scratch(memory),
            // SAFETY: by the contract of this function.
            None => unsafe { Scratch::zeroed()? },
        };
        Ok(Spare {
            memory: std::mem::ManuallyDrop::new(memory),
            spares: self,
        })
    }
}

/// Memory of a [`Spares`], which is given back on drop.
pub struct Spare<'s, T, const N: usize> {
    memory: std::mem::ManuallyDrop<Scratch<T>>,
    spares: &'s Spares<T, N>,
}

impl<T, const N: usize> Deref for Spare<'_, T, N> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.memory
    }
}

impl<T, const N: usize> DerefMut for Spare<'_, T, N> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.memory
    }
}

impl<T, const N: usize> Drop for Spare<'_, T, N> {
    fn drop(&mut self) {
        // SAFETY: not used after this.
        let memory = unsafe { std::mem::ManuallyDrop::take(&mut self.memory) };
        // Release: pairs with the Acquire in `take`.
        let put = |place: &AtomicPtr<T>| {
            let null = std::ptr::null_mut();
            place.compare_exchange(null, memory.0, Release, Relaxed).is_ok()
        };
        if self.spares.0.iter().any(put) {
            // Another thread may be using it already.
            std::mem::forget(memory);
        }
    }
}

/// Miri does not support this flag.
const RESERVE_NOTHING: i32 = if cfg!(miri) { 0 } else { libc::MAP_NORESERVE };

/// Maps zeroed private memory, without the heap.
///
/// # Errors
/// `ENOMEM` if the address space is used up.
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

/// How long this machine has been suspended since it booted, in nanoseconds: for so long [`monotonic_ns`] stood still.
pub fn suspended_ns() -> u64 {
    let since_boot = clock_ns(libc::CLOCK_BOOTTIME);
    since_boot.saturating_sub(monotonic_ns())
}

fn clock_ns(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec.
    unsafe { libc::clock_gettime(which, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Pauses while waiting for another thread: yields at first, then sleeps of a millisecond.
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
        let _uncancelled = Uncancelled::begin();
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        };
        // SAFETY: a valid time. After a signal the pause is shorter.
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
    fn a_failed_write_raises_no_signal_and_leaves_one_that_was_pending() {
        // SAFETY: changes the mask and the pending signals of this thread only.
        unsafe {
            let before = libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            let pipe = broken_pipe();
            assert_eq!(without_write_signals(|| write_to(pipe)), -1);
            assert!(!is_pending(libc::SIGPIPE));

            let blocked = BlockedSignals::of(set(libc::SIGPIPE));
            libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE);
            assert_eq!(without_write_signals(|| write_to(pipe)), -1);
            assert!(is_pending(libc::SIGPIPE), "a signal of the program stays pending");
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
    fn spare_memory_is_used_again_by_one_user_at_a_time() {
        static SPARES: Spares<u64, 2> = Spares::new();
        // SAFETY: zeros are an integer.
        let take = || unsafe { SPARES.take() }.unwrap();
        let mut taken = [take(), take(), take()];
        for (number, spare) in (1..).zip(&mut taken) {
            assert_eq!(**spare, 0);
            **spare = number;
        }
        drop(taken);
        // The third had no place to go back to.
        let taken = [take(), take(), take()];
        assert_eq!(taken.each_ref().map(|spare| **spare), [1, 2, 0]);
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
