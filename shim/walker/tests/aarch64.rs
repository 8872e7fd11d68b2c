//! Frames that only aarch64 has. Each stack equals libgcc's.
#![cfg(target_arch = "aarch64")]

mod support;

use std::sync::atomic::Ordering::Relaxed;
use support::{STACKS, compare, expect_no_difference};

std::arch::global_asm!(
    // calls_in_place(next: x0): provides the frame of `ffi_call`, directly below its own.
    ".globl calls_in_place",
    "calls_in_place:",
    ".cfi_startproc",
    "hint #25", // paciasp
    ".cfi_negate_ra_state",
    "stp x29, x30, [sp, #-16]!",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset x29, -16",
    ".cfi_offset x30, -8",
    "mov x29, sp",
    ".cfi_def_cfa x29, 16",
    "sub sp, sp, #32",
    "mov x1, sp",
    "bl ffi_call",
    "add sp, sp, #32",
    "ldp x29, x30, [sp], #16",
    ".cfi_def_cfa sp, 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "hint #29", // autiasp
    ".cfi_negate_ra_state",
    "ret",
    ".cfi_endproc",
    // ffi_call(next: x0, frame: x1): as libffi's ffi_call_SYSV without arguments on the stack. The CFA is the frame's lower
    // end, where the frame pointer and the signed return address are stored, and equals the stack pointer. `next` gets the
    // address of the frame.
    "ffi_call:",
    ".cfi_startproc",
    "hint #25",
    ".cfi_negate_ra_state",
    "stp x29, x30, [x1]",
    ".cfi_def_cfa x1, 0",
    ".cfi_offset x29, 0",
    ".cfi_offset x30, 8",
    "mov x29, x1",
    ".cfi_def_cfa_register x29",
    "mov x9, x0",
    "mov x0, x29",
    "blr x9",
    "ldp x29, x30, [x29]",
    ".cfi_def_cfa sp, 0",
    ".cfi_restore x29",
    ".cfi_restore x30",
    "hint #29",
    ".cfi_negate_ra_state",
    "ret",
    ".cfi_endproc",
);

unsafe extern "C" {
    safe fn calls_in_place(next: extern "C" fn(*mut u64));
}

/// ctypes, cffi and JNA call and are called through such frames.
#[test]
fn a_frame_above_its_cfa() {
    extern "C" fn one(_: *mut u64) {
        compare();
    }
    extern "C" fn two(_: *mut u64) {
        calls_in_place(one);
        compare();
    }
    extern "C" fn three(_: *mut u64) {
        calls_in_place(two);
        calls_in_place(one);
    }
    let before = STACKS.load(Relaxed);
    for _ in 0..20 {
        calls_in_place(three);
    }
    assert!(STACKS.load(Relaxed) - before >= 60);
    expect_no_difference();
}

/// Damaged memory must not keep the walk at one stack pointer.
#[test]
fn a_frame_that_is_its_own_caller_ends_the_stack() {
    extern "C" fn inside(frame: *mut u64) {
        let mut addresses = [0; 64];
        let mut walk = || culeak_walker::walk(culeak_walker::Registers::here(), &mut addresses).end;
        assert_eq!(walk(), culeak_walker::End::Root);
        // SAFETY: the saved frame pointer of `ffi_call`, which is restored before anything but the walker uses it.
        unsafe {
            let saved = frame.read_volatile();
            frame.write_volatile(frame as u64);
            let end = walk();
            frame.write_volatile(saved);
            assert_eq!(end, culeak_walker::End::Lost);
        }
    }
    calls_in_place(inside);
}
