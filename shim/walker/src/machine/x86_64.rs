//! x86-64.

use super::Registers;

/// DWARF numbers.
pub const FP: u16 = 6;
pub const SP: u16 = 7;
pub const RA: u16 = 16;
pub const REGISTERS: usize = 17;
/// The vendor's extra call frame instructions: none.
pub const INSTRUCTIONS: gimli::Vendor = gimli::Vendor::Default;
/// The most registers in one row of an unwind table: a signal frame lists all.
pub const RULES: usize = REGISTERS + 3;

/// Addresses of user space have this many bits.
pub const ADDRESS_BITS: u32 = 47;
/// Instructions may begin at every byte.
pub const CODE_SHIFT: u32 = 0;

/// The return address always lies one word below the CFA, so a rule does not store its place.
pub const RA_BITS: u32 = 0;
pub const FP_BITS: u32 = 11;
pub const CFA_BITS: u32 = 16;

/// Offsets of the interrupted registers in the kernel's signal frame, from the stack pointer at the return trampoline.
pub const SIGNAL_FP: u64 = 120;
pub const SIGNAL_SP: u64 = 160;
pub const SIGNAL_PC: u64 = 168;

/// `mov rax, 15; syscall`: a return trampoline without unwind information.
pub const SIGNAL_RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];

/// The instruction that reads the thread pointer.
macro_rules! read_thread_pointer {
    () => {
        "mov {}, fs:0"
    };
}
pub(super) use read_thread_pointer;

#[inline(always)]
pub fn registers() -> Registers {
    let (rip, rsp, rbp);
    // SAFETY: reads registers. `rip` is the address behind the first instruction, like a return address.
    unsafe {
        std::arch::asm!(
            "lea {rip}, [rip]",
            "mov {rsp}, rsp",
            "mov {rbp}, rbp",
            rip = out(reg) rip,
            rsp = out(reg) rsp,
            rbp = out(reg) rbp,
            options(nostack, nomem, preserves_flags)
        );
    }
    Registers { rip, rsp, rbp }
}

/// The registers that a callee must preserve: values by DWARF number, and the set of known ones as bits.
#[inline(always)]
pub fn preserved() -> ([u64; REGISTERS], u64) {
    let mut values = [0; REGISTERS];
    // SAFETY: stores registers in the array, which is large enough; `lea` as above.
    unsafe {
        std::arch::asm!(
            "mov [{to} + 8 * 3], rbx",
            "mov [{to} + 8 * 6], rbp",
            "mov [{to} + 8 * 7], rsp",
            "mov [{to} + 8 * 12], r12",
            "mov [{to} + 8 * 13], r13",
            "mov [{to} + 8 * 14], r14",
            "mov [{to} + 8 * 15], r15",
            "lea {pc}, [rip]",
            "mov [{to} + 8 * 16], {pc}",
            to = in(reg) values.as_mut_ptr(),
            pc = out(reg) _,
            options(nostack, preserves_flags)
        );
    }
    (
        values,
        [3, 6, 7, 12, 13, 14, 15, 16]
            .iter()
            .fold(0, |known, register| known | 1 << register),
    )
}

/// The code address in a saved return address.
#[inline(always)]
pub fn code_address(word: u64) -> u64 {
    word
}
