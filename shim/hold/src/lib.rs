//! The library that `culeak run --why` preloads beside the preload library: it passes calls of `sigaction`, `_exit`, `_Exit`
//! and `quick_exit` on, and informs the preload library before.
//!
//! A process that leaves by `_exit` runs no exit handlers, and one that leaves by `quick_exit` other ones. A Python interpreter that
//! finalizes calls `sigaction` to restore the handlers that it installed: after the last `atexit` callback, and before it
//! collects cycles and clears modules. That is the last instant at which the holders of memory are nearly as the script left them; it
//! counts if the preload library could not register a callback. These functions are replaced here and not in the preload library,
//! which replaces functions of CUDA and look-ups only.
//!
//! `sigaction` and `_exit` may be called in a signal handler, and in a child of `vfork`: here are only atomics and look-ups of
//! names, which are done when the library is loaded. It needs glibc, whose `__sigaction` is called if there is no next `sigaction`.
//! Deliberately absent: the decision whether to wait (`shim/src/recorder/hold.rs`); `abort` and signals that kill a process; `exec`; a
//! process that calls the kernel's `exit_group` by itself.

use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// A function that is looked up once.
struct Function {
    name: &'static CStr,
    handle: *mut c_void,
    address: AtomicPtr<c_void>,
}

// SAFETY: the handle is a constant of the loader.
unsafe impl Sync for Function {}

impl Function {
    const fn new(name: &'static CStr, handle: *mut c_void) -> Function {
        Function {
            name,
            handle,
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Null if there is no such function.
    fn address(&self) -> *mut c_void {
        let known = self.address.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: a handle of the loader and a C string.
        let found = unsafe { libc::dlsym(self.handle, self.name.as_ptr()) };
        self.address.store(found, Relaxed);
        found
    }
}

static HOLD: Function = Function::new(c"culeak_hold", libc::RTLD_DEFAULT);
static SIGACTION: Function = Function::new(c"sigaction", libc::RTLD_NEXT);
static EXIT: Function = Function::new(c"_exit", libc::RTLD_NEXT);
static QUICK_EXIT: Function = Function::new(c"quick_exit", libc::RTLD_NEXT);

extern "C" fn at_start() {
    for function in [&HOLD, &SIGACTION, &EXIT, &QUICK_EXIT] {
        function.address();
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = at_start;

/// What the program calls.
#[derive(Clone, Copy)]
enum Called {
    Sigaction = 0,
    Exit = 1,
}

/// Informs the preload library, which may wait. It preserves `errno`.
fn inform(called: Called) {
    // Not looked up here: without the preload library, each call would.
    let hold = HOLD.address.load(Relaxed);
    if !hold.is_null() {
        // SAFETY: the preload library's function of this name has this type.
        let hold: extern "C" fn(c_int) = unsafe { std::mem::transmute(hold) };
        hold(called as c_int);
    }
}

unsafe extern "C" {
    fn __sigaction(signal: c_int, action: *const c_void, before: *mut c_void) -> c_int;
}

/// # Safety
/// As `sigaction` of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(signal: c_int, action: *const c_void, before: *mut c_void) -> c_int {
    inform(Called::Sigaction);
    let next = SIGACTION.address();
    if next.is_null() {
        // SAFETY: the same arguments.
        return unsafe { __sigaction(signal, action, before) };
    }
    // SAFETY: the next definition of `sigaction` has this type; the arguments are the same.
    unsafe {
        let next: unsafe extern "C" fn(c_int, *const c_void, *mut c_void) -> c_int = std::mem::transmute(next);
        next(signal, action, before)
    }
}

/// Ends the process.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    inform(Called::Exit);
    let next = EXIT.address();
    if !next.is_null() {
        // SAFETY: the next definition of `_exit` has this type.
        let next: extern "C" fn(c_int) -> ! = unsafe { std::mem::transmute(next) };
        next(status);
    }
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// Ends the process; another name of `_exit`.
#[unsafe(no_mangle)]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// Ends the process after the handlers of `at_quick_exit`.
#[unsafe(no_mangle)]
pub extern "C" fn quick_exit(status: c_int) -> ! {
    inform(Called::Exit);
    let next = QUICK_EXIT.address();
    if !next.is_null() {
        // SAFETY: the next definition of `quick_exit` has this type.
        let next: extern "C" fn(c_int) -> ! = unsafe { std::mem::transmute(next) };
        next(status);
    }
    _exit(status)
}
