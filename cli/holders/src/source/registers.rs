//! The general registers in the layout of `NT_PRSTATUS`.

use super::Thread;

/// The processor that a process runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    pub const HERE: Machine = if cfg!(target_arch = "aarch64") {
        Machine::Aarch64
    } else {
        Machine::X86_64
    };

    /// The number of words in a register set.
    pub fn words(self) -> usize {
        match self {
            Machine::X86_64 => 27,
            Machine::Aarch64 => 34,
        }
    }

    /// Stores the registers in the thread; nothing if the set is too short. The thread pointer of aarch64 is in another set, and not used.
    pub fn store(self, words: &[u64], thread: &mut Thread) {
        if words.len() < self.words() {
            return;
        }
        match self {
            // r15 to rdi, then orig_rax, rip, cs, eflags, rsp, ss, fs_base.
            Machine::X86_64 => {
                thread.registers = words[..15].to_vec();
                thread.stack_pointer = Some(words[19]);
                thread.thread_pointer = Some(words[21]).filter(|&base| base != 0);
            }
            // x0 to x30, sp, pc, pstate.
            Machine::Aarch64 => {
                thread.registers = words[..31].to_vec();
                thread.stack_pointer = Some(words[31]);
            }
        }
    }
}
