//! Native and Python frames as one stack: Python's stand where the interpreter's own frame stood that ran them.
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
//! The arrows need no symbol: an interpreter call leaves an object in its C frame, and the address of that lies between
//! the stack pointers of the frame and of its caller. (Before 3.10 it leaves none, so there the arrow is the code
//! address.) Python frames for which no native frame is found keep their order, and stand before the next that are, or
//! outermost.

use culeak_walker::{self as walker, End, Registers};

use super::{python, unwind};
use crate::resolve::real;
use crate::settings::DEPTH_MAX;

/// A frame of the merged stack.
#[derive(Clone, Copy)]
#[repr(u64)]
pub enum Frame {
    Native(u64),
    Python(culeak_cpython::Frame),
}

/// A native frame: code address, and where on the stack it lies.
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
    /// The caller of the last one is not known yet.
    is_open: bool,
    frames: [Frame; DEPTH_MAX],
    count: usize,
    /// There were more, or the walk could not go on.
    pub cut: bool,
}

impl Merged {
    /// The native frames, without our own.
    pub fn walk(&mut self, at: Registers, depth: usize) {
        let walked = walker::walk_each(at, |place, address, sp| {
            if place == 0 {
                (self.native_count, self.is_open) = (0, false);
            }
            self.add(address, sp, depth)
        });
        self.end(walked.end == End::Root);
    }

    /// The same by libgcc, which begins in here; nothing within `at` is of interest.
    pub fn unwind(&mut self, at: Registers, depth: usize) {
        let refused = unwind(|address, sp| sp < at.rsp || self.add(address, sp, depth));
        self.end(!refused);
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
        if real::is_ours(address) {
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

    /// Of the last frame nothing is known above its stack pointer, unless it is the outermost.
    fn end(&mut self, complete: bool) {
        if self.is_open && complete {
            self.native[self.native_count - 1].high = u64::MAX;
        }
        self.cut = !complete;
    }

    /// Puts Python's frames in.
    pub fn merge(&mut self, python: &python::Frames, depth: usize) {
        let eval = culeak_cpython::native_eval();
        let mut calls = python.calls();
        for place in 0..self.native_count {
            let Native { address, low, high } = self.native[place];
            let runs = |mark: u64| match mark {
                0 => eval.contains(&address.wrapping_sub(1)),
                _ => (low..high).contains(&mark),
            };
            // Usually the next one, or none.
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
