//! aarch64. Written from the ABI and tested in an emulator only.

use super::Registers;

/// DWARF numbers.
pub const FP: u16 = 29;
pub const SP: u16 = 31;
pub const RA: u16 = 30;
pub const REGISTERS: usize = 32;
/// The vendor's extra call frame instructions: return addresses may be signed.
pub const INSTRUCTIONS: gimli::Vendor = gimli::Vendor::AArch64;
/// The most registers in one row of an unwind table: x19 to x30, d8 to d15, the signing state of the return address.
pub const RULES: usize = 12 + 8 + 1 + 3;

/// Addresses of user space have this many bits.
pub const ADDRESS_BITS: u32 = 48;
/// Instructions are four bytes.
pub const CODE_SHIFT: u32 = 2;

/// The pair x29/x30 may be saved anywhere in the frame.
pub const RA_BITS: u32 = 7;
pub const FP_BITS: u32 = 7;
pub const CFA_BITS: u32 = 13;

/// Offsets of the interrupted registers in the kernel's signal frame: after the 128 bytes of `siginfo_t`, the 176 before
/// `uc_mcontext` and the fault address come x0 to x30, the stack pointer and the program counter.
pub const SIGNAL_FP: u64 = 128 + 176 + 8 + 8 * 29;
pub const SIGNAL_SP: u64 = 128 + 176 + 8 + 8 * 31;
pub const SIGNAL_PC: u64 = 128 + 176 + 8 + 8 * 32;

/// `mov x8, 139; svc 0`: the only way to recognize the return trampoline of kernels since 5.8. The stack ends with
/// `End::Lost` at a leaf function that a signal interrupted: its return address is in x30, which `Cursor` does not keep.
pub const SIGNAL_RETURN: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// The instruction that reads the thread pointer.
macro_rules! read_thread_pointer {
    () => {
        "mrs {}, tpidr_el0"
    };
}
pub(super) use read_thread_pointer;

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

/// The registers that a callee must preserve: values by DWARF number, and the set of known ones as bits.
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

/// The code address in a saved return address: without its authentication code.
#[inline(always)]
pub fn code_address(word: u64) -> u64 {
    word & ((1 << ADDRESS_BITS) - 1)
}
