//! Takes the calling thread's native stack for the price of a few loads a frame.
//!
//! ```text
//!            registers of the caller
//!                  │
//!   ┌──────▶ code address ──▶ table: rule? ──yes──▶ CFA = rsp+n, rbp+n or *(rbp+n), within the stack? ──▶ load the return
//!   │                              │ no                        │ no                                       address and rbp
//!   │                              ▼                           ▼                                               │
//!   │                  loader ─▶ .eh_frame ─▶ rule ──▶ checked reads, other stacks, expressions                │
//!   └──────────────────────────────┴───────────────────────────┴───────────────────────────────────────────────┘
//! ```
//!
//! The result of interpreting a function's unwind table depends only on the code address, and nearly always has one of
//! three shapes that fit half a word. So each address is interpreted once and its rule is kept in a lock-free table; a
//! warm walk never reads an unwind table.
//!
//! The walker runs inside other programs: it takes no lock, allocates nothing, never panics, preserves `errno`, and may
//! run in signal handlers and while the loader holds its locks. Only the thread's own stack is read without checks.
//! Whatever the unwind tables claim, the worst outcome is a stack that ends with [`End::Lost`].
//!
//! * [`walk`], [`walk_each`]: the loop above
//! * [`cursor`]: one step, by a rule of the table or by interpreting the unwind tables
//! * [`all_registers`]: the rare walk that needs every register
//! * [`rule`], [`table`]: a step packed in one word, and the lock-free cache of such words
//! * [`cfi`]: unwind tables interpreted by gimli
//! * [`stack`]: which memory may be read, and checked reads of the rest
//! * [`sync`]: the atomics of the table
//! * [`modules`]: which module contains an address
//! * [`read_sets`]: knows a thread's stacks again by the words that their walks loaded
//! * [`machine`]: what differs between processors
//! * [`thread_variable!`]: thread-local variables
//!
//! The addresses are those that libgcc's `_Unwind_Backtrace` reports, with these differences:
//!
//! * libgcc reports the missing caller of the outermost function as a last address 0; here that is [`End::Root`].
//! * If a rule leads off the stack, down the stack or to an unaligned address, libgcc follows it and may fault. Here the
//!   stack ends with [`End::Lost`]. The only known case: while libgcc jumps to a landing pad it has already overwritten
//!   its own frame, and a signal handler at that point sees wrong unwind information.
//! * Code registered with `__register_frame` (by some just-in-time compilers) is known only to libgcc. Here the stack ends
//!   at such code with [`End::Lost`], as it does with both unwinders at unregistered code.
//! * In modules with an `.eh_frame` section but no sorted index, libgcc searches linearly. Here they count as having no
//!   unwind information. Linkers have written the index by default for twenty years.
//!
//! The tests compare every stack with libgcc's unwinder, called through the `backtrace` crate. The shim contains that
//! crate too, for `CULEAK_UNWINDER=libgcc`. Hooks do not use it by default: libgcc searches and interprets the unwind
//! tables of every frame in every walk, takes the loader's list lock for each frame with glibc before 2.35, may take a
//! lock of its own and allocate once code was registered, and may fault on a damaged stack.
//!
//! Deliberately absent: guessing by frame pointers in code without unwind information; unwinding of other threads.

mod all_registers;
mod cfi;
mod cursor;
mod machine;
mod modules;
mod read_sets;
mod rule;
mod stack;
mod sync;
mod table;
mod thread_variable;

pub use machine::{ADDRESS_BITS, Registers};
pub use modules::exported;
pub use read_sets::{Kept, ReadSets, mapped};
pub use stack::{Bounds, bounds as stack_bounds, read, read_each, readable};

use cfi::Step;
use cursor::{Cursor, TABLE};

/// Adds a word to a hash, such as the code address of a frame.
#[inline(always)]
pub const fn mix_in(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Why a walk ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The outermost function was reached.
    Root,
    /// The caller's slice is full.
    Full,
    /// The last frame has no unwind information, or the stack contradicts it: only the innermost frames are known.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Walked {
    pub count: usize,
    pub end: End,
}

/// Writes the code addresses of a stack, innermost first: return addresses, and the exact address of code that a signal
/// interrupted.
pub fn walk(start: Registers, addresses: &mut [u64]) -> Walked {
    walk_each(start, |place, pc, _| match addresses.get_mut(place) {
        Some(address) => {
            *address = pc;
            true
        }
        None => false,
    })
}

/// Calls `keep` with the place, code address and stack pointer of each frame, innermost first, until it returns false. The
/// walk may restart: at place 0 the caller discards the frames it has received.
#[inline(always)]
pub fn walk_each(start: Registers, mut keep: impl FnMut(usize, u64, u64) -> bool) -> Walked {
    let use_table = TABLE.usable();
    let mut at = Cursor::at(start);
    let mut bounds = stack::bounds(at.sp);
    let mut count = 0;
    loop {
        if at.pc == 0 {
            return Walked { count, end: End::Root };
        }
        if !keep(count, at.pc, at.sp) {
            return Walked { count, end: End::Full };
        }
        count += 1;
        if use_table && at.is_code() && at.quick(bounds) {
            continue;
        }
        match at.careful(&mut bounds, use_table) {
            Step::Caller => {}
            Step::Root => return Walked { count, end: End::Root },
            Step::Lost => return Walked { count, end: End::Lost },
            Step::Unknown => {
                return all_registers::walk(start, &mut keep).unwrap_or(Walked { count, end: End::Lost });
            }
        }
    }
}

/// A module was unloaded: everything cached about addresses is invalid. Called between [`closing_began`] and
/// [`closing_ended`].
pub fn generation_changed() {
    modules::changed();
    TABLE.void();
}

/// A `dlclose` begins: until it ends, walks do not use the table.
pub fn closing_began() {
    TABLE.closing_began();
}

pub fn closing_ended() {
    TABLE.closing_ended();
}

/// Called in a forked child: other threads of the parent may have been in the middle of any operation.
pub fn forked() {
    TABLE.forked();
    modules::forked();
}

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

#[cfg(test)]
extern crate self as culeak_walker;

#[cfg(test)]
mod tests;
