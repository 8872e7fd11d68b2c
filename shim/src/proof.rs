//! Facts for `culeak run` (see `culeak::proof`): written by us, read by it. Without `CULEAK_RUN` nothing here happens.
//!
//! Each fact is one `pwrite` into a file that has its size already. The descriptor is closed again at once.

use std::ffi::CStr;

use crate::settings;
use culeak::proof::{Fact, NAME_BYTES};
use culeak::system::{Descriptor, Uncancelled, without_write_signals};

/// The loader has mapped us into a program.
extern "C" fn loaded() {
    if is_started_by_run() {
        let mut name = [0u8; NAME_BYTES];
        // SAFETY: PR_GET_NAME writes at most 16 bytes.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        write(&name, 0);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// The exit handlers run.
pub fn ended() {
    if is_started_by_run() {
        state(Fact::Ended, 1);
    }
}

pub fn state(fact: Fact, value: u8) {
    write(&[value], fact as i64);
}

/// The pid of `culeak run`, and the path of its file.
fn of_run() -> Option<(i32, &'static CStr)> {
    let value = settings::text(c"CULEAK_RUN")?.to_bytes_with_nul();
    let colon = value.iter().position(|&byte| byte == b':')?;
    let pid = std::str::from_utf8(&value[..colon]).ok()?.parse().ok()?;
    Some((pid, CStr::from_bytes_with_nul(&value[colon + 1..]).ok()?))
}

/// Whether this is the very process that `culeak run` started.
fn is_started_by_run() -> bool {
    // SAFETY: getppid has no preconditions.
    of_run().is_some_and(|(pid, _)| pid == unsafe { libc::getppid() })
}

fn write(bytes: &[u8], offset: i64) {
    let Some((_, path)) = of_run() else { return };
    // SAFETY: always valid in the calling thread.
    let errno = unsafe { *libc::__errno_location() };
    let _uncancelled = Uncancelled::new();
    without_write_signals(|| {
        if let Ok(file) = Descriptor::open(path, libc::O_WRONLY | libc::O_NOFOLLOW) {
            // SAFETY: the descriptor is ours; the range is that of `bytes`. A failure leaves the byte at 0, which `culeak
            // run` takes for "not known".
            unsafe { libc::pwrite(file.number(), bytes.as_ptr().cast(), bytes.len(), offset) };
        }
    });
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}
