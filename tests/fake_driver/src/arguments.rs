//! Pointers from C, made safe to use by one check each.

use crate::gate::Outcome;
use cudarc::driver::sys::CUresult;
use std::ffi::{CStr, c_char, c_uint, c_void};

/// A pointer to write a result to. Part of exported signatures, hence transparent.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// # Safety
    /// The pointer is null, or a caller in C promises that a `T` may be written there during this call.
    pub unsafe fn new(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Fails where the real driver reports a null result pointer.
    pub fn check(self) -> Outcome {
        if self.0.is_null() {
            Err(CUresult::CUDA_ERROR_INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    pub fn put(self, value: T) -> Outcome {
        self.check()?;
        // SAFETY: not null, and the caller of the exported function provides room for one `T`, aligned or not.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// For optional results: does nothing if the pointer is null.
    pub fn put_if_wanted(self, value: T) {
        let _ = self.put(value);
    }

    /// The same pointer as another type, for results whose type depends on another argument.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }

    pub fn at(self, index: usize) -> Out<T> {
        Out(self.0.wrapping_add(index))
    }

    /// A field of the struct behind the pointer, which is never read as a whole: its enums may hold values unknown to Rust.
    pub fn field<U>(self, offset: usize) -> Out<U> {
        Out(if self.0.is_null() {
            std::ptr::null_mut()
        } else {
            self.0.wrapping_byte_add(offset).cast()
        })
    }

    pub fn get(self) -> Outcome<T> {
        In(self.0.cast_const()).get()
    }
}

/// A pointer to read an argument from.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T> In<T> {
    /// # Safety
    /// The pointer is null, or a caller in C promises that a `T` may be read there during this call.
    pub unsafe fn new(pointer: *const T) -> In<T> {
        In(pointer)
    }

    pub fn get(self) -> Outcome<T> {
        if self.0.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the exported function passed a `T`; it is copied bit by bit, as C would.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub fn field<U>(self, offset: usize) -> In<U> {
        In(if self.0.is_null() {
            std::ptr::null()
        } else {
            self.0.wrapping_byte_add(offset).cast()
        })
    }

    pub fn at(self, index: usize) -> In<T> {
        In(self.0.wrapping_add(index))
    }

    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }
}

impl In<c_char> {
    pub fn text(self) -> Outcome<String> {
        if self.0.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the exported function passed a NUL-terminated string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// An address, as wide as in a function's ABI.
pub trait AddressWidth: Sized {
    /// Whether addresses must lie below 4 GiB.
    const NARROW: bool;
    fn from_address(address: u64) -> Self;
}

impl AddressWidth for c_uint {
    const NARROW: bool = true;
    fn from_address(address: u64) -> Self {
        address as c_uint
    }
}

impl AddressWidth for u64 {
    const NARROW: bool = false;
    fn from_address(address: u64) -> Self {
        address
    }
}

impl AddressWidth for *mut c_void {
    const NARROW: bool = false;
    fn from_address(address: u64) -> Self {
        address as *mut c_void
    }
}

/// A size, as wide as in a function's ABI.
pub trait SizeWidth: Sized {
    fn from_size(size: u64) -> Self;
}

impl SizeWidth for c_uint {
    fn from_size(size: u64) -> Self {
        size as c_uint
    }
}

impl SizeWidth for usize {
    fn from_size(size: u64) -> Self {
        size as usize
    }
}
