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

/// The thread pointer. glibc keeps the thread's control block at the top of the thread's stack block.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: reads a register, or the copy of it that the ABI keeps at offset 0 of the segment.
    unsafe { std::arch::asm!(read_thread_pointer!(), out(reg) pointer, options(nostack, preserves_flags, readonly)) };
    pointer
}
