//! The walk that keeps every register and does not use the table: for a frame whose CFA is computed from a register that
//! [`Cursor`] does not keep (the loader's lazy binding, prologues that realign the stack).
//!
//! The values are in the registers now, or saved in the walker's own frames. So this walk begins with those frames and
//! reports frames from `start` on.

use crate::cfi::{self, Frame, Step};
use crate::cursor::Cursor;
use crate::machine::{self, ADDRESS_BITS, FP, RA, SP};
use crate::rule::Rule;
use crate::stack::{self, Memory};
use crate::{End, Registers, Walked, modules};

/// `None` if the frame of `start` is not reached.
#[cold]
#[inline(never)]
pub fn walk(start: Registers, keep: &mut impl FnMut(usize, u64, u64) -> bool) -> Option<Walked> {
    let (values, known) = machine::preserved();
    let mut frame = Frame {
        values,
        known,
        interrupted: false,
    };
    let mut memory = Memory::new(stack::bounds(frame.get(SP)?));
    while frame.get(SP)? < start.rsp {
        if step(&mut frame, &mut memory) != Step::Caller {
            return None;
        }
    }
    if frame.get(SP)? != start.rsp {
        return None;
    }
    frame.set(RA, Some(start.rip));
    frame.set(FP, Some(start.rbp));
    let mut count = 0;
    loop {
        let pc = frame.get(RA)?;
        if pc == 0 {
            return Some(Walked { count, end: End::Root });
        }
        if !keep(count, pc, frame.get(SP)?) {
            return Some(Walked { count, end: End::Full });
        }
        count += 1;
        match step(&mut frame, &mut memory) {
            Step::Caller => {}
            Step::Root => return Some(Walked { count, end: End::Root }),
            Step::Lost | Step::Unknown => return Some(Walked { count, end: End::Lost }),
        }
    }
}

fn step(frame: &mut Frame, memory: &mut Memory) -> Step {
    let Some(pc) = frame.get(RA).filter(|pc| pc >> ADDRESS_BITS == 0) else {
        return Step::Lost;
    };
    let address = pc.wrapping_sub(u64::from(!frame.interrupted));
    let described = modules::containing(address, true)
        .and_then(|module| cfi::with_row(&module, address, |row| frame.step(row, memory)));
    let step = match described {
        Some(step) => step,
        // Restores only the three registers that `Rule::Signal` reads: no table describes where the kernel saved the others.
        None if cfi::returns_from_signal(pc) => {
            let mut at = Cursor {
                pc,
                sp: frame.get(SP).unwrap_or(0),
                fp: 0,
                back: 1,
            };
            let step = at.follow(Rule::Signal, memory);
            *frame = at.frame();
            step
        }
        None => Step::Lost,
    };
    let Some(sp) = frame.get(SP) else { return Step::Unknown };
    if !memory.bounds.hold(sp) {
        memory.bounds = stack::bounds(sp);
    }
    step
}
