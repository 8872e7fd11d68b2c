//! `ioctl`, by which the CUDA driver requests memory from the kernel driver.
//!
//! The entry compares the low 16 bits of the request and jumps to the next definition for all but three requests: it
//! uses no stack, makes no call and changes no argument. What remains is a hundred calls in a process, whose file is checked
//! by `fstat` each time, since a descriptor may be closed and used again.

use libc::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::*};

use crate::effects::segments;
use crate::resolve::loader;
use culeak::rm;

/// The next definition in the loader's order, to which the entry jumps. Until it is found, the system call.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(system_call as *mut c_void);

type Ioctl = unsafe extern "C-unwind" fn(c_int, c_ulong, u64) -> c_int;

/// For libraries that are initialized before this one.
unsafe extern "C-unwind" fn system_call(fd: c_int, request: c_ulong, argument: u64) -> c_int {
    // SAFETY: the caller's own arguments.
    unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int }
}

/// Finds the next definition, once, at start-up.
pub fn find_next() {
    if let Some(next) = loader::definition_after(c"ioctl", ioctl as *const c_void) {
        // Release: pairs with nothing, since the function exists already.
        NEXT.store(next.cast_mut(), Relaxed);
    }
}

// As offsets from the lowest: FREE, ALLOC, DUPLICATE.
const ALLOC: u16 = rm::ALLOC - rm::FREE;
const DUPLICATE: u16 = rm::DUPLICATE - rm::FREE;

/// # Safety
/// As the libc function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl() {
    std::arch::naked_asm!(
        "endbr64",
        // r11 is free at the entry of a function; al is not, if it is variadic.
        "movzx r11d, si",
        "sub r11d, {free}",
        "je {body}",
        "cmp r11d, {alloc}",
        "je {body}",
        "cmp r11d, {duplicate}",
        "je {body}",
        "jmp qword ptr [rip + {next}]",
        free = const rm::FREE,
        alloc = const ALLOC,
        duplicate = const DUPLICATE,
        body = sym body,
        next = sym NEXT,
    )
}

// Written from the ABI; CI assembles it, but it has never run.
/// # Safety
/// As the libc function.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl() {
    std::arch::naked_asm!(
        include_str!("aarch64/ioctl.s"),
        free = const rm::FREE,
        alloc = const ALLOC,
        duplicate = const DUPLICATE,
        body = sym body,
        next = sym NEXT,
    )
}

unsafe extern "C-unwind" fn body(fd: c_int, request: c_ulong, argument: u64) -> c_int {
    let real = || {
        // SAFETY: `ioctl` of this name.
        let next = unsafe { std::mem::transmute::<*mut c_void, Ioctl>(NEXT.load(Relaxed)) };
        // SAFETY: the caller's own arguments.
        unsafe { next(fd, request, argument) }
    };
    segments::requests(fd, request as u32, argument, real)
}
