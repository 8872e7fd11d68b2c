//! One step of a walk, with the three registers that nearly every rule needs.

use crate::cfi::{self, Frame, Step};
use crate::machine::{self, ADDRESS_BITS, FP, RA, SP};
use crate::rule::{AT_FRAME, Base, Packed, Rule};
use crate::stack::{self, Bounds, Memory};
use crate::table::Table;
use crate::{Registers, modules};

pub static TABLE: Table = Table::new();

/// The registers of a frame that the rules of the table use.
#[derive(Clone, Copy)]
pub struct Cursor {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
    /// Subtracted from `pc` before the look-up. 1 for a return address, whose call may be the last instruction of its
    /// function; 0 for an interrupted address.
    pub back: u64,
}

impl Cursor {
    #[inline(always)]
    pub fn at(start: Registers) -> Cursor {
        Cursor {
            pc: start.rip,
            sp: start.rsp,
            fp: start.rbp,
            back: 1,
        }
    }

    #[inline(always)]
    pub fn is_code(&self) -> bool {
        self.pc >> ADDRESS_BITS == 0
    }

    /// A step by an ordinary rule of the table on the thread's own stack. Returns false and changes nothing if that is not
    /// possible.
    #[inline(always)]
    pub fn quick(&mut self, bounds: Bounds) -> bool {
        TABLE
            .find(self.pc - self.back)
            .is_some_and(|rule| self.step(rule, bounds))
    }

    /// The same with a known rule.
    #[inline(always)]
    pub fn step(&mut self, rule: Packed, bounds: Bounds) -> bool {
        let offset = rule.offset() as u64;
        let mut fp_at = None;
        let cfa = match rule.base() {
            Some(Base::Stack) => self.sp.wrapping_add(offset),
            Some(Base::Frame) => self.fp.wrapping_add(offset),
            Some(Base::Saved) => {
                let saved = self.fp.wrapping_add(offset);
                if !bounds.contain_word(saved) {
                    return false;
                }
                if rule.is_fp_at_frame() {
                    if !bounds.contain_word(self.fp) {
                        return false;
                    }
                    fp_at = Some(self.fp);
                }
                // SAFETY: a word within the stack.
                unsafe { load(saved) }
            }
            None => return false,
        };
        let returns_at = cfa.wrapping_sub(rule.ra() * 8);
        let fp_at = fp_at.unwrap_or_else(|| cfa.wrapping_sub(rule.fp() * 8));
        // `Bounds::NONE` has top 0: no CFA passes.
        if cfa <= self.sp || cfa > bounds.top || cfa % 8 != 0 || returns_at < bounds.low || fp_at < bounds.low {
            return false;
        }
        // SAFETY: at least one word below the CFA, which is at most the top, and not below `low`.
        self.pc = machine::code_address(unsafe { load(returns_at) });
        if rule.fp() != 0 {
            // SAFETY: as above, or checked there.
            self.fp = unsafe { load(fp_at) };
        }
        self.sp = cfa;
        self.back = 1;
        true
    }

    /// A step of any kind, on any stack.
    #[cold]
    #[inline(never)]
    pub fn careful(&mut self, bounds: &mut Bounds, use_table: bool) -> Step {
        if !self.is_code() {
            return Step::Lost;
        }
        let address = self.pc - self.back;
        let mut memory = Memory::new(*bounds);
        let step = match TABLE.find(address).filter(|_| use_table) {
            Some(known) => self.follow(known.rule(), &mut memory),
            None => self.look_up(address, &mut memory, use_table),
        };
        if !bounds.hold(self.sp) {
            *bounds = stack::bounds(self.sp);
        }
        step
    }

    fn look_up(&mut self, address: u64, memory: &mut Memory, use_table: bool) -> Step {
        let ticket = TABLE.ticket();
        let module = modules::containing(address, !use_table);
        let described = module.and_then(|module| {
            cfi::with_row(&module, address, |row| match row.rule() {
                Some(rule) => {
                    if use_table && let Some(packed) = Packed::of(rule) {
                        TABLE.insert(address, packed, ticket);
                    }
                    self.follow(rule, memory)
                }
                None => {
                    let mut frame = self.frame();
                    let step = frame.step(row, memory);
                    if step == Step::Caller { self.go_to(&frame) } else { step }
                }
            })
        });
        match described {
            Some(step) => step,
            // Not cached: code outside of any module may change at any time.
            None if cfi::returns_from_signal(self.pc) => self.follow(Rule::Signal, memory),
            None => Step::Lost,
        }
    }

    pub fn follow(&mut self, rule: Rule, memory: &mut Memory) -> Step {
        match self.caller(rule, memory) {
            Ok(caller) => {
                *self = caller;
                Step::Caller
            }
            Err(step) => step,
        }
    }

    fn caller(&self, rule: Rule, memory: &mut Memory) -> Result<Cursor, Step> {
        let mut word = |address| memory.word(address).ok_or(Step::Lost);
        match rule {
            Rule::Root => Err(Step::Root),
            Rule::Signal => {
                let at = |offset| self.sp.wrapping_add(offset);
                let (pc, fp) = (word(at(machine::SIGNAL_PC))?, word(at(machine::SIGNAL_FP))?);
                Ok(Cursor {
                    pc,
                    fp,
                    sp: word(at(machine::SIGNAL_SP))?,
                    back: 0,
                })
            }
            Rule::Frame { base, offset, ra, fp } => {
                let cfa = match base {
                    Base::Stack => self.sp.wrapping_add_signed(offset),
                    Base::Frame => self.fp.wrapping_add_signed(offset),
                    Base::Saved => word(self.fp.wrapping_add_signed(offset))?,
                };
                let below = |words: u32| cfa.wrapping_sub(u64::from(words) * 8);
                let pc = machine::code_address(word(below(ra))?);
                let fp = match fp {
                    0 => self.fp,
                    AT_FRAME => word(self.fp)?,
                    _ => word(below(fp))?,
                };
                if cfi::is_above(self.sp, cfa, memory) {
                    Ok(Cursor {
                        pc,
                        sp: cfa,
                        fp,
                        back: 1,
                    })
                } else {
                    Err(Step::Lost)
                }
            }
        }
    }

    pub fn frame(&self) -> Frame {
        let mut frame = Frame {
            values: [0; machine::REGISTERS],
            known: 0,
            interrupted: self.back == 0,
        };
        frame.set(RA, Some(self.pc));
        frame.set(SP, Some(self.sp));
        frame.set(FP, Some(self.fp));
        frame
    }

    fn go_to(&mut self, frame: &Frame) -> Step {
        let (Some(pc), Some(sp), Some(fp)) = (frame.get(RA), frame.get(SP), frame.get(FP)) else {
            return Step::Unknown;
        };
        *self = Cursor {
            pc,
            sp,
            fp,
            back: u64::from(!frame.interrupted),
        };
        Step::Caller
    }
}

/// # Safety
/// Eight bytes are readable at `address`.
#[inline(always)]
pub unsafe fn load(address: u64) -> u64 {
    // SAFETY: the caller's promise; the address may be unaligned.
    unsafe { (address as *const u64).read_unaligned() }
}
