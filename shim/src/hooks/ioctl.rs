//! `ioctl`, by which the CUDA driver requests memory from the kernel driver.
//!
//! The entry compares the low 16 bits of the request and jumps to the next definition for all but five requests: it
//! uses no stack, makes no call and changes no argument. What remains is a hundred calls in a process, whose file is checked
//! by `fstat` each time, since a descriptor may be closed and used again.

use libc::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::*};

use crate::effects::segments;
use crate::resolve::loader;
use culeak::rm;

/// The next definition in the loader's order, to which the entry jumps.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(early as *mut c_void);

type Ioctl = unsafe extern "C-unwind" fn(c_int, c_ulong, u64) -> c_int;

/// The call of a library that is initialized before this one: finds the next definition. If there is none, the system call.
unsafe extern "C-unwind" fn early(fd: c_int, request: c_ulong, argument: u64) -> c_int {
    find_next();
    let next = NEXT.load(Relaxed);
    if next == early as *mut c_void {
        // SAFETY: the caller's own arguments.
        return unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) as c_int };
    }
    // SAFETY: `ioctl` of this name, with the caller's own arguments.
    unsafe { std::mem::transmute::<*mut c_void, Ioctl>(next)(fd, request, argument) }
}

/// Finds the next definition, without calling anything.
pub fn find_next() {
    if let Some(next) = loader::definition_after(c"ioctl", ioctl as *const c_void) {
        NEXT.store(next.cast_mut(), Relaxed);
    }
}

// As offsets from the lowest, FREE. TRANSFER is the highest: requests above it are compared with no other.
const ALLOC: u16 = rm::ALLOC - rm::FREE;
const DUPLICATE: u16 = rm::DUPLICATE - rm::FREE;
const HEAP: u16 = rm::HEAP - rm::FREE;
const TRANSFER: u16 = rm::TRANSFER - rm::FREE;

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
        "cmp r11d, {transfer}",
        "je {body}",
        "ja 2f",
        "cmp r11d, {alloc}",
        "je {body}",
        "cmp r11d, {duplicate}",
        "je {body}",
        "cmp r11d, {heap}",
        "je {body}",
        "2:",
        "jmp qword ptr [rip + {next}]",
        free = const rm::FREE,
        alloc = const ALLOC,
        duplicate = const DUPLICATE,
        heap = const HEAP,
        transfer = const TRANSFER,
        body = sym body,
        next = sym NEXT,
    )
}

// Run in an emulator only (tests/aarch64/).
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
        heap = const HEAP,
        transfer = const TRANSFER,
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
