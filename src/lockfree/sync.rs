//! The atomics and the zeroed memory of the lock-free parts: those of the standard library and the kernel, or those of loom
//! and the heap if `--cfg loom` builds the models. The source that is modelled is the source that ships.
//!
//! Under loom the constants of the lock-free parts are small, and at every atomic operation a model may let a thread die or
//! plant a mistake (`modelled`).

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence};

#[cfg(loom)]
pub mod modelled;
#[cfg(loom)]
pub use modelled::{AtomicPtr, AtomicU32, AtomicU64, fence};

/// Prefetches the cache line of a value that will soon be written.
#[inline]
pub fn prefetch<T>(value: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: a hint.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = value;
}

/// Changes of a word that only one thread writes, including its signal handlers. Each is one unlocked instruction: a handler
/// runs before it or after it, and no other thread writes.
pub trait Alone {
    fn add_alone(&self, amount: u64);

    /// # Errors
    /// The current value, if it is not `seen`.
    fn swap_alone(&self, seen: u64, new: u64) -> Result<(), u64>;
}

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
impl Alone for AtomicU64 {
    #[inline]
    fn add_alone(&self, amount: u64) {
        // SAFETY: a valid, aligned word; other threads only load it.
        unsafe {
            std::arch::asm!("add qword ptr [{word}], {amount}", word = in(reg) self.as_ptr(), amount = in(reg) amount,
                options(nostack));
        }
    }

    #[inline]
    fn swap_alone(&self, seen: u64, new: u64) -> Result<(), u64> {
        let now;
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("cmpxchg qword ptr [{word}], {new}", word = in(reg) self.as_ptr(), new = in(reg) new,
                inout("rax") seen => now, options(nostack));
        }
        if now == seen { Ok(()) } else { Err(now) }
    }
}

/// Other architectures use ordinary atomic operations.
#[cfg(all(any(not(target_arch = "x86_64"), miri), not(loom)))]
impl Alone for AtomicU64 {
    #[inline]
    fn add_alone(&self, amount: u64) {
        self.fetch_add(amount, std::sync::atomic::Ordering::Relaxed);
    }

    #[inline]
    fn swap_alone(&self, seen: u64, new: u64) -> Result<(), u64> {
        use std::sync::atomic::Ordering::Relaxed;
        self.compare_exchange(seen, new, Relaxed, Relaxed).map(|_| ())
    }
}

/// In a model, which has no signal handlers, a load and a store.
#[cfg(loom)]
impl Alone for AtomicU64 {
    fn add_alone(&self, amount: u64) {
        use std::sync::atomic::Ordering::Relaxed;
        self.store(self.load(Relaxed).wrapping_add(amount), Relaxed);
    }

    fn swap_alone(&self, seen: u64, new: u64) -> Result<(), u64> {
        use std::sync::atomic::Ordering::{Relaxed, Release};
        let now = self.load(Relaxed);
        if now == seen {
            // Release: what x86-64's stores are, and what a read-modify-write continues on other architectures.
            self.store(new, Release);
            return Ok(());
        }
        Err(now)
    }
}

/// An element of an array.
///
/// # Safety
/// All zeros is a valid value, and every field is an atomic.
pub unsafe trait Element: Zeroed {}

// SAFETY: an atomic, of which 0 is a value.
unsafe impl Element for AtomicU64 {}
// SAFETY: as above.
#[cfg(not(loom))]
unsafe impl Element for std::sync::atomic::AtomicU8 {}

#[cfg(loom)]
pub use heap::{Zeroed, elements, give_back};
#[cfg(not(loom))]
pub use mapped::{Zeroed, elements, give_back};

/// Memory of this process, without the heap.
#[cfg(not(loom))]
mod mapped {
    use crate::system::{Errno, anonymous};

    /// A type whose memory begins as zeros.
    pub trait Zeroed {}
    impl<T> Zeroed for T {}

    /// `count` elements of zeros.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is used up.
    pub fn elements<T>(count: usize) -> Result<*mut T, Errno> {
        anonymous(count * size_of::<T>()).map(<*mut u8>::cast)
    }

    /// Releases elements that lost the race to be published.
    ///
    /// # Safety
    /// Returned by `elements` with this count, and not shared with another thread.
    pub unsafe fn give_back<T>(elements: *mut T, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(elements.cast(), count * size_of::<T>()) };
    }
}

/// The heap, for models.
#[cfg(loom)]
mod heap {
    use crate::system::Errno;

    /// A type whose memory begins as zeros.
    pub trait Zeroed: Default {}
    impl<T: Default> Zeroed for T {}

    /// `count` empty elements.
    ///
    /// # Errors
    /// None: the heap of a test is large.
    pub fn elements<T: Zeroed>(count: usize) -> Result<*mut T, Errno> {
        let elements: Box<[T]> = (0..count).map(|_| T::default()).collect();
        Ok(Box::leak(elements).as_mut_ptr())
    }

    /// Releases elements that lost the race to be published.
    ///
    /// # Safety
    /// Returned by `elements` with this count, and not shared with another thread.
    pub unsafe fn give_back<T>(elements: *mut T, count: usize) {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(elements, count)) });
    }
}
