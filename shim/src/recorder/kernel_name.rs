//! The name of the kernel that the calling thread is looking up.
//!
//! The driver reads the name during that call. A call that was left without returning is detected, since its name may be gone.

use std::cell::Cell;

use super::call::{Call, FrameWord};
use super::thread::THREAD;
use culeak::format::Text;
use culeak::recording::{KERNEL_NAME_MAX, Recording};

culeak_walker::thread_variable! {
    /// The call, and the address of the name. All zeros: none.
    // SAFETY: zeros are a null pointer and integers.
    static LOOKING_UP: unsafe Cell<(Call, u64)> = "culeak_kernel_name";
}

/// The calling thread looks up the kernel with the name at this address, until [`end`].
pub fn begin(name: u64, word: &mut FrameWord) -> (Call, u64) {
    let call = THREAD.with(|thread| Call::begin(&thread.calls, word));
    LOOKING_UP.with(|looking_up| looking_up.replace((call, name)))
}

pub fn end(before: (Call, u64), word: &mut FrameWord) {
    Call::end(word);
    LOOKING_UP.with(|looking_up| looking_up.set(before));
}

/// The name of the kernel that the calling thread is looking up.
pub fn current(recording: &Recording) -> Option<Text> {
    let (call, name) = LOOKING_UP.with(Cell::get);
    if call.is_none() || !call.is_on_stack() {
        return None;
    }
    text(recording, name)
}

/// The name at this address, stored. `None` if it is empty, cannot be read, or if there are too many names.
pub fn text(recording: &Recording, address: u64) -> Option<Text> {
    let mut name = [0u8; KERNEL_NAME_MAX];
    let length = read_name(address, &mut name)?;
    Some(recording.kernel_name(&name[..length])).filter(|text| *text != Text::EMPTY)
}

/// The length of the name, which is cut if it is longer than the buffer. Reads no piece beyond the end of the name.
fn read_name(address: u64, name: &mut [u8; KERNEL_NAME_MAX]) -> Option<usize> {
    /// Pieces at multiples of this lie in one page.
    const PIECE: usize = 64;
    let mut length = 0;
    while length < KERNEL_NAME_MAX {
        let from = address.checked_add(length as u64)?;
        let wanted = (PIECE - from as usize % PIECE).min(KERNEL_NAME_MAX - length);
        let piece = &mut name[length..length + wanted];
        if !culeak_walker::read(from, piece) {
            return None;
        }
        match piece.iter().position(|&byte| byte == 0) {
            Some(end) => return Some(length + end),
            None => length += wanted,
        }
    }
    Some(length)
}
