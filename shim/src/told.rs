//! What a program tells by itself: blocks of its own allocator, moments that have a name (`include/culeak.h`).
//!
//! The functions are exported under plain names, so that Python finds them too: `ctypes.CDLL(None).culeak_mark(b"…")`.
//! They may be called at any time, on any thread and under any lock. A program that calls them wants to be recorded, so
//! the recording begins here if it has not begun.

use libc::{c_char, c_void};
use std::ffi::CStr;

use crate::recorder::{self, Facts};
use crate::{blocks, pictures};
use culeak::cuda_functions::Api;
use culeak::kind::Kind;
use culeak::layout::block_address;
use culeak::table::{Space, What};

/// # Safety
/// `name` is null or a C string.
unsafe fn bytes<'a>(name: *const c_char) -> &'a [u8] {
    if name.is_null() {
        return b"";
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(name) }.to_bytes()
}

/// The key's address of a block; `None` when it cannot be kept, which is counted.
fn key(domain: &[u8], address: u64) -> Option<u64> {
    let recording = recorder::begin()?;
    block_address(recording.domain(domain)?, address)
}

/// A block was handed out by the allocator called `domain`.
///
/// # Safety
/// `domain` is null or a C string. The address is never followed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn culeak_alloc(domain: *const c_char, address: *const c_void, size: usize, stream: *mut c_void) {
    // SAFETY: passed on.
    let domain = unsafe { bytes(domain) };
    if let Some(key) = recorder::quietly(|| key(domain, address as u64)).flatten() {
        let facts = Facts {
            space: Space::Block,
            flags: What::HAS_STREAM,
            extra: stream as u64,
            ..Facts::new(const { Api::of("culeak_alloc") }, Kind::Block, size as u64)
        };
        blocks::handed_out(key, &facts);
    }
}

/// It was taken back.
///
/// # Safety
/// As `culeak_alloc`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn culeak_free(domain: *const c_char, address: *const c_void) {
    // SAFETY: passed on.
    let domain = unsafe { bytes(domain) };
    // A child that was forked and gives back what its parent had taken has nothing to record.
    if recorder::running().is_some()
        && let Some(key) = recorder::quietly(|| key(domain, address as u64)).flatten()
    {
        blocks::taken_back(Space::Block, key);
    }
}

/// This moment has a name.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn culeak_mark(name: *const c_char) {
    // SAFETY: passed on.
    let name = unsafe { bytes(name) };
    recorder::quietly(|| {
        let Some(recording) = recorder::begin() else { return };
        recording.mark(name, recorder::thread(recording));
        pictures::marked(recording, name);
    });
}

/// Keep a picture of this moment.
///
/// # Safety
/// As `culeak_mark`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn culeak_snapshot(name: *const c_char) {
    // SAFETY: passed on.
    let name = unsafe { bytes(name) };
    recorder::quietly(|| {
        if let Some(recording) = recorder::begin() {
            pictures::requested(recording, name);
        }
    });
}
