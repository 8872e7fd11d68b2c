//! A call that a thread is inside, and whether it has been left without returning.
//!
//! No destructor ends a call. The frame of a hook must have none, because an exception may be raised by another copy of
//! libgcc's unwinder than the one in this library. So an exception or a cancellation passes a hook's frame without running
//! any of its code, as a `longjmp` or a switch of stacks does. [`Call::is_on_stack`] detects all of these.

use std::cell::Cell;

/// A word in the frame of a hook. While the hook runs it holds a number that no other call has.
pub struct FrameWord(u64);

impl FrameWord {
    pub fn new() -> FrameWord {
        FrameWord(0)
    }
}

/// A call that a thread is inside, identified by the word in its frame. All zeros: none.
#[derive(Clone, Copy)]
pub struct Call {
    word: *const u64,
    number: u64,
}

impl Call {
    /// `numbers` is the thread's counter of calls.
    #[inline]
    pub fn begin(numbers: &Cell<u64>, word: &mut FrameWord) -> Call {
        let number = numbers.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        numbers.set(number);
        let word = &raw mut word.0;
        // SAFETY: a word of the caller's. Volatile, because it is read through its address alone.
        unsafe { word.write_volatile(number) };
        Call { word, number }
    }

    #[inline]
    pub fn end(word: &mut FrameWord) {
        // SAFETY: as above.
        unsafe { (&raw mut word.0).write_volatile(0) };
    }

    #[inline]
    pub fn is_none(self) -> bool {
        self.word.is_null()
    }

    /// Whether the call has not been left. In that case the caller of this function must run inside the call.
    #[inline]
    pub fn is_on_stack(self) -> bool {
        /// More than CUDA's libraries and other interposers ever put between a call of theirs and the driver's.
        const DEEPEST: usize = 1 << 20;
        /// As much as most of them put there. Beyond that, the address may be on another stack, which may be unmapped.
        const NEAR: usize = 8 << 10;
        let here = 0u8;
        let above = (self.word as usize).wrapping_sub(std::ptr::from_ref(&here) as usize);
        let mut found = [0];
        match above {
            // SAFETY: a little above a frame of this thread: its own stack, where a frame is or was.
            0..NEAR => unsafe { self.word.read_volatile() == self.number },
            NEAR..DEEPEST => culeak_walker::read(self.word as u64, &mut found) && found == [self.number],
            _ => false,
        }
    }
}
