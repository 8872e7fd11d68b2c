//! The name of the CUDA driver's function on a stack: the exported one by which the program entered the driver.
//!
//! ```text
//! libcuda.so.1+0x2f1c04
//! libcuda.so.1+0x31d5aa
//! libcuda.so.1+0x1c7d10     the outermost frame of the driver: in cuLaunchKernel
//! fill_kernel_cuda
//! ```
//!
//! It says what memory from the kernel driver is for. The driver's file has the name too, but not on another machine, and not
//! after an update. So it is read from the loaded library, once for each frame.

use super::merge::Frame;
use super::modules;
use crate::resolve::{driver, loader};
use culeak::recording::Recording;

/// Stores the name for the frames of a stack, innermost first, if the driver is on it.
pub fn store_name(recording: &Recording, frames: &[Frame], closing: bool) {
    let in_driver = |frame: &Frame| match frame {
        Frame::Native(address) if driver::contains(*address) => Some(*address),
        _ => None,
    };
    let innermost = frames.iter().position(|frame| in_driver(frame).is_some());
    let within = innermost.map(|first| frames[first..].iter().map_while(in_driver));
    let Some(address) = within.and_then(Iterator::last) else {
        return;
    };
    let Some((module, bias)) = modules::module_of(recording, address, closing) else {
        return;
    };
    let in_file = address.wrapping_sub(bias);
    if recording.is_named(module, in_file) {
        return;
    }
    loader::find_containing(address, |loaded| {
        let tables = loaded.tables()?;
        // The call is before the return address.
        // SAFETY: the driver stays loaded: a thread is inside it.
        let name = unsafe { tables.function_at(address - 1) }?;
        // A private table leads to functions without a name.
        if name.starts_with(b"cu") {
            recording.name_frame(module, in_file, name);
        }
        Some(())
    });
}
