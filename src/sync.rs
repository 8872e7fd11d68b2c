//! What the lock-free parts are made of: atomics and memory that begins as zeros. The standard library's and the
//! kernel's, or loom's and the heap's where `--cfg loom` asks for models of every interleaving: the source that is
//! modelled is the source that ships.
//!
//! Under loom the constants of the lock-free parts are small, and every atomic operation is a place where a model may
//! let a thread die or plant a mistake (`modelled`).

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, fence};

#[cfg(loom)]
pub mod modelled;
#[cfg(loom)]
pub use modelled::{AtomicPtr, AtomicU32, AtomicU64, fence};

#[cfg(loom)]
pub use heap::{Zeroed, elements, give_back};
#[cfg(not(loom))]
pub use mapped::{Zeroed, elements, give_back};

/// Memory of this process, without the heap.
#[cfg(not(loom))]
mod mapped {
    use crate::file::{Errno, anonymous};

    /// What begins as zeros.
    pub trait Zeroed {}
    impl<T> Zeroed for T {}

    /// `count` elements of zeros.
    ///
    /// # Errors
    /// `ENOMEM` when the address space is used up.
    pub fn elements<T>(count: usize) -> Result<*mut T, Errno> {
        anonymous(count * size_of::<T>()).map(<*mut u8>::cast)
    }

    /// For the loser of a race to add the same elements.
    ///
    /// # Safety
    /// Made by `elements` with this count, and nobody else has seen them.
    pub unsafe fn give_back<T>(elements: *mut T, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(elements.cast(), count * size_of::<T>()) };
    }
}

/// Memory of a model.
#[cfg(loom)]
mod heap {
    use crate::file::Errno;

    /// What begins as zeros.
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

    /// For the loser of a race to add the same elements.
    ///
    /// # Safety
    /// Made by `elements` with this count, and nobody else has seen them.
    pub unsafe fn give_back<T>(elements: *mut T, count: usize) {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(elements, count)) });
    }
}
