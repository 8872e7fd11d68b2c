//! What differs between processors: DWARF register numbers, widths of packed rules, the kernel's signal frame, and the
//! instructions that read registers.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(target_arch = "aarch64")]
use aarch64::read_thread_pointer;
#[cfg(target_arch = "x86_64")]
use x86_64::read_thread_pointer;

/// Where a walk begins: the registers of a function at one of its calls. On aarch64: pc, sp and x29.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// A return address, or another address behind an instruction that was executed with these registers.
    pub rip: u64,
    /// The stack pointer after that call has returned.
    pub rsp: u64,
    pub rbp: u64,
}

impl Registers {
    /// The registers of the function that this is inlined into, which becomes the innermost frame.
    #[inline(always)]
    pub fn here() -> Registers {
        registers()
    }
}

/// The thread pointer. glibc keeps the thread's control block at the top of the thread's stack block.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: reads a register, or the copy of it that the ABI keeps at offset 0 of the segment.
    unsafe { std::arch::asm!(read_thread_pointer!(), out(reg) pointer, options(nostack, preserves_flags, readonly)) };
    pointer
}
