//! What is particular to aarch64. Written from the ABI and run in an emulator only: no machine with a GPU has run it.

use crate::Registers;

/// DWARF numbers.
pub const FP: u16 = 29;
pub const SP: u16 = 31;
pub const RA: u16 = 30;
pub const REGISTERS: usize = 32;
/// Whose call frame instructions there are besides the common ones: return addresses may be signed.
pub const INSTRUCTIONS: gimli::Vendor = gimli::Vendor::AArch64;
/// Registers that one line of an unwind table may speak of: x19 to x30, d8 to d15, the signing state of the return address.
pub const RULES: usize = 12 + 8 + 1 + 3;

/// Addresses of user space have this many bits.
pub const ADDRESS_BITS: u32 = 48;
/// Instructions are four bytes.
pub const CODE_SHIFT: u32 = 2;

/// The pair x29/x30 may be saved anywhere in the frame.
pub const RA_BITS: u32 = 7;
pub const FP_BITS: u32 = 7;
pub const CFA_BITS: u32 = 13;

/// Where the kernel's signal frame has them: behind the 128 bytes of `siginfo_t`, the 176 before `uc_mcontext` and the
/// fault address come x0 to x30, the stack pointer and the program counter.
pub const SIGNAL_FP: u64 = 128 + 176 + 8 + 8 * 29;
pub const SIGNAL_SP: u64 = 128 + 176 + 8 + 8 * 31;
pub const SIGNAL_PC: u64 = 128 + 176 + 8 + 8 * 32;

/// `mov x8, 139; svc 0`: kernels since 5.8 say nothing else about their trampoline. A leaf function that a signal has
/// interrupted ends the stack, marked: its return address is in x30, which a step here does not keep.
pub const SIGNAL_RETURN: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// glibc keeps the thread's control block at the top of the thread's stack block.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: reads a register that user space may read.
    unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem)) };
    pointer
}

#[inline(always)]
pub fn registers() -> Registers {
    let (rip, rsp, rbp);
    // SAFETY: reads registers. `adr` gives the address behind itself, like a return address.
    unsafe {
        std::arch::asm!(
            "adr {pc}, . + 4",
            "mov {sp}, sp",
            "mov {fp}, x29",
            pc = out(reg) rip,
            sp = out(reg) rsp,
            fp = out(reg) rbp,
            options(nostack, nomem, preserves_flags)
        );
    }
    Registers { rip, rsp, rbp }
}

/// Everything that a callee has to preserve: (values by DWARF number, which of them are known).
#[inline(always)]
pub fn preserved() -> ([u64; REGISTERS], u64) {
    let mut values = [0; REGISTERS];
    // SAFETY: stores registers in the array, which is large enough; `adr` as above.
    unsafe {
        std::arch::asm!(
            "stp x19, x20, [{to}, 8 * 19]",
            "stp x21, x22, [{to}, 8 * 21]",
            "stp x23, x24, [{to}, 8 * 23]",
            "stp x25, x26, [{to}, 8 * 25]",
            "stp x27, x28, [{to}, 8 * 27]",
            "mov {scratch}, sp",
            "str x29, [{to}, 8 * 29]",
            "str {scratch}, [{to}, 8 * 31]",
            "adr {scratch}, . + 4",
            "str {scratch}, [{to}, 8 * 30]",
            to = in(reg) values.as_mut_ptr(),
            scratch = out(reg) _,
            options(nostack, preserves_flags)
        );
    }
    (values, (19..=31).fold(0, |known, register| known | 1 << register))
}

/// A return address as it stands in memory, without its authentication code.
#[inline(always)]
pub fn code_address(word: u64) -> u64 {
    word & ((1 << ADDRESS_BITS) - 1)
}
