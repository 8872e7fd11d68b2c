//! A library to preload into any program: in every `posix_memalign`, and wherever the program calls `oracle_compare`, it
//! takes the stack with the walker and with libgcc and compares them frame by frame.
//!
//! PyTorch and other libraries allocate with `posix_memalign`, from deep stacks; little else does. When the process exits,
//! a line is appended to the file that `ORACLE_REPORT` names: stacks, frames, stacks truncated for both, differences.

#[path = "../tests/support/mod.rs"]
mod support;

use std::cell::Cell;
use std::ffi::c_void;
use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

thread_local! {
    static COMPARING: Cell<bool> = const { Cell::new(false) };
}

#[unsafe(no_mangle)]
pub extern "C" fn oracle_compare() {
    if !COMPARING.replace(true) {
        support::compare();
        COMPARING.set(false);
    }
}

/// # Safety
/// As in the manual page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(memory: *mut *mut c_void, alignment: usize, bytes: usize) -> i32 {
    oracle_compare();
    // SAFETY: the caller's promise; memalign returns null where this function returns an error.
    unsafe {
        let block = libc::memalign(alignment, bytes);
        if block.is_null() {
            return libc::ENOMEM;
        }
        *memory = block;
    }
    0
}

extern "C" fn report() {
    let Ok(path) = std::env::var("ORACLE_REPORT") else {
        return;
    };
    let counts = [
        &support::STACKS,
        &support::FRAMES,
        &support::TRUNCATED,
        &support::DIFFERENT,
    ];
    let counts = counts.map(|count| count.load(Relaxed).to_string());
    let file = std::fs::File::options().append(true).create(true).open(path);
    // An error cannot be reported here: the missing line fails the test.
    let _ = file.and_then(|mut file| writeln!(file, "{}", counts.join(" ")));
}

#[used]
#[unsafe(link_section = ".fini_array")]
static REPORT: extern "C" fn() = report;
