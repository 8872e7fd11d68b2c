//! Native and Python frames as one stack: Python frames take the place of the interpreter's frame that ran them.
//!
//! ```text
//! native                        Python                 merged
//! cuMemAlloc_v2                                        cuMemAlloc_v2
//! at::empty                                            at::empty
//! _PyEval_EvalFrameDefault ◀─── step, epoch            step, epoch
//! PyObject_Call                                        PyObject_Call
//! _PyEval_EvalFrameDefault ◀─── <module>               <module>
//! main                                                 main
//! ```
//!
//! The arrows need no symbols: each interpreter call has an object in its C frame, whose address lies between the stack
//! pointers of that frame and of its caller. (Before Python 3.10 there is no such object, and the code address
//! decides.) Python frames without a native frame keep their order: they precede the next Python frames that have one,
//! or are outermost.

use culeak_walker::{self as walker, End, Registers};

use super::native::unwind;
use super::python;
use crate::resolve::own;
use crate::settings::DEPTH_MAX;

/// A frame of the merged stack.
#[derive(Clone, Copy)]
#[repr(u64)]
pub enum Frame {
    Native(u64),
    Python(culeak_cpython::Frame),
}

/// A native frame: its code address and its part of the stack.
#[derive(Clone, Copy)]
struct Native {
    address: u64,
    low: u64,
    high: u64,
}

/// All zeros is an empty one.
pub struct Merged {
    native: [Native; DEPTH_MAX],
    native_count: usize,
    /// The caller of the last frame is not known yet.
    is_open: bool,
    frames: [Frame; DEPTH_MAX],
    count: usize,
    /// There are more frames, or a walk failed.
    pub cut: bool,
}

impl Merged {
    pub fn clear(&mut self) {
        (self.native_count, self.count) = (0, 0);
        (self.is_open, self.cut) = (false, false);
    }

    /// Collects the native frames without our own.
    pub fn walk(&mut self, at: Registers, depth: usize) {
        let walked = walker::walk_each(at, |index, address, sp| {
            if index == 0 {
                (self.native_count, self.is_open) = (0, false);
            }
            self.add(address, sp, depth)
        });
        self.end(walked.end == End::Root);
    }

    /// As `walk`, by libgcc. It starts at this function: frames inside `at` are skipped.
    pub fn unwind(&mut self, at: Registers, depth: usize) {
        let stopped = unwind(|address, sp| sp < at.rsp || self.add(address, sp, depth));
        self.end(!stopped);
    }

    /// Return addresses of the native frames, innermost first.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        self.native[..self.native_count].iter().map(|native| native.address)
    }

    fn add(&mut self, address: u64, sp: u64, depth: usize) -> bool {
        if self.is_open {
            self.native[self.native_count - 1].high = sp;
            self.is_open = false;
        }
        if own::is_ours(address) {
            return true;
        }
        let Some(slot) = self.native[..depth].get_mut(self.native_count) else {
            return false;
        };
        *slot = Native {
            address,
            low: sp,
            high: sp,
        };
        self.native_count += 1;
        self.is_open = true;
        true
    }

    /// The upper bound of the last frame is unknown unless it is the outermost.
    fn end(&mut self, complete: bool) {
        if self.is_open && complete {
            self.native[self.native_count - 1].high = u64::MAX;
        }
        self.cut = !complete;
    }

    /// Inserts the Python frames.
    pub fn merge(&mut self, python: &python::Frames, depth: usize) {
        let eval = culeak_cpython::native_eval();
        let mut calls = python.calls();
        for index in 0..self.native_count {
            let Native { address, low, high } = self.native[index];
            let runs = |mark: u64| match mark {
                0 => eval.contains(&address.wrapping_sub(1)),
                _ => (low..high).contains(&mark),
            };
            // Usually the next call, or none.
            let Some(last) = calls.clone().position(|call| runs(call.mark)) else {
                self.push(Frame::Native(address), depth);
                continue;
            };
            for call in calls.by_ref().take(last + 1) {
                self.push_all(call.frames, depth);
            }
        }
        for call in calls {
            self.push_all(call.frames, depth);
        }
        self.cut |= python.cut;
    }

    fn push_all(&mut self, frames: &[culeak_cpython::Frame], depth: usize) {
        for &frame in frames {
            self.push(Frame::Python(frame), depth);
        }
    }

    fn push(&mut self, frame: Frame, depth: usize) {
        match self.frames[..depth].get_mut(self.count) {
            Some(slot) => {
                *slot = frame;
                self.count += 1;
            }
            None => self.cut = true,
        }
    }

    /// Innermost first.
    pub fn frames(&self) -> &[Frame] {
        &self.frames[..self.count]
    }
}
