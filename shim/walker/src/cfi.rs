//! The slow path: unwind information is read where the loader has mapped it and interpreted by gimli in fixed storage.
//!
//! A rule that fits the table is computed once per address. Others (other registers, expressions: less than 0.3 % of the
//! code in every CUDA library examined) are evaluated each time, as far as their registers are known.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EndianSlice, NativeEndian, Operation, Reader, Register, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindExpression, UnwindSection, UnwindTableRow,
};

use crate::machine::{self, FP, RA, REGISTERS, RULES, SP};
use crate::modules::Module;
use crate::rule::{AT_FRAME, Base, Rule};
use crate::stack::{self, Memory};

type Bytes = EndianSlice<'static, NativeEndian>;
type Registers = UnwindTableRow<usize, OnStack>;

struct OnStack;

impl UnwindContextStorage<usize> for OnStack {
    type Rules = [(Register, RegisterRule<usize>); RULES];
    type Stack = [UnwindTableRow<usize, Self>; 4];
}

/// A signal stack may be small.
const _: () = assert!(
    size_of::<UnwindContext<usize, OnStack>>() <= 4096,
    "the interpreter's state fits one page"
);

const ENCODING: gimli::Encoding = gimli::Encoding {
    address_size: 8,
    format: gimli::Format::Dwarf32,
    version: 4,
};

/// One row of a function's unwind table.
pub struct Row<'a> {
    registers: &'a Registers,
    section: &'a EhFrame<Bytes>,
    pub signal: bool,
}

/// Calls `then` with the row for an address of a module; `None` if the module's tables do not cover the address.
pub fn with_row<R>(module: &Module, address: u64, then: impl FnOnce(&Row) -> R) -> Option<R> {
    if module.index == 0 || !(module.start..module.end).contains(&module.index) {
        return None;
    }
    // SAFETY: a module's tables are mapped and constant while it is loaded, and this one is: it has a frame on this stack.
    // Parsing follows the sections' own lengths and so stays in their segment.
    let mapped = |from: u64| unsafe {
        EndianSlice::new(
            std::slice::from_raw_parts(from as *const u8, (module.end - from) as usize),
            NativeEndian,
        )
    };
    let bases = BaseAddresses::default().set_eh_frame_hdr(module.index);
    let index = EhFrameHdr::from(mapped(module.index)).parse(&bases, 8).ok()?;
    let frames_at = index
        .eh_frame_ptr()
        .direct()
        .ok()
        .filter(|at| (module.start..module.end).contains(at))?;
    let bases = bases.set_eh_frame(frames_at);
    let mut section = EhFrame::from(mapped(frames_at));
    section.set_vendor(machine::INSTRUCTIONS);
    let at = index
        .table()?
        .lookup(address, &bases)
        .ok()?
        .direct()
        .ok()?
        .checked_sub(frames_at)?;
    let function = section
        .fde_from_offset(&bases, (at as usize).into(), EhFrame::cie_from_offset)
        .ok()?;
    if !function.contains(address) {
        return None;
    }
    let mut context = UnwindContext::<usize, OnStack>::new_in();
    let registers = function
        .unwind_info_for_address(&section, &bases, &mut context, address)
        .ok()?;
    Some(then(&Row {
        registers,
        section: &section,
        signal: function.is_signal_trampoline(),
    }))
}

/// Whether the code at this address, which no table covers, is the system call that returns from a signal handler.
pub fn returns_from_signal(pc: u64) -> bool {
    let mut code = machine::SIGNAL_RETURN;
    stack::read(pc, &mut code) && code == machine::SIGNAL_RETURN
}

impl Row<'_> {
    /// The rule, if the table can hold it.
    pub fn rule(&self) -> Option<Rule> {
        let ra = match self.registers.register(Register(RA)) {
            Some(RegisterRule::Undefined) => return Some(Rule::Root),
            Some(RegisterRule::Offset(offset)) => words_below(offset)?,
            Some(RegisterRule::Expression(_)) if self.signal => return self.kernel_frame().then_some(Rule::Signal),
            _ => return None,
        };
        if self.signal
            || !matches!(
                self.registers.register(Register(SP)),
                None | Some(RegisterRule::ValOffset(0))
            )
        {
            return None;
        }
        let fp = match self.registers.register(Register(FP)) {
            None | Some(RegisterRule::Undefined | RegisterRule::SameValue) => 0,
            Some(RegisterRule::Offset(offset)) => words_below(offset)?,
            Some(RegisterRule::Expression(saved)) if self.register_offset(saved) == Some((FP, 0, false)) => AT_FRAME,
            _ => return None,
        };
        let (base, offset) = match *self.registers.cfa() {
            CfaRule::RegisterAndOffset {
                register: Register(SP),
                offset,
            } => (Base::Stack, offset),
            CfaRule::RegisterAndOffset {
                register: Register(FP),
                offset,
            } => (Base::Frame, offset),
            CfaRule::RegisterAndOffset { .. } => return None,
            CfaRule::Expression(expression) => match self.register_offset(expression)? {
                (FP, offset, true) => (Base::Saved, offset),
                _ => return None,
            },
        };
        Some(Rule::Frame { base, offset, ra, fp })
    }

    /// Parses an expression of the form register + offset; the flag is set if the result is dereferenced.
    fn register_offset(&self, expression: UnwindExpression<usize>) -> Option<(u16, i64, bool)> {
        let mut code = expression.get(self.section).ok()?.0;
        let (register, offset) = match Operation::parse(&mut code, ENCODING).ok()? {
            Operation::RegisterOffset { register, offset, .. } => (register.0, offset),
            _ => return None,
        };
        if code.is_empty() {
            return Some((register, offset, false));
        }
        match Operation::parse(&mut code, ENCODING).ok()? {
            Operation::Deref { size: 8, .. } if code.is_empty() => Some((register, offset, true)),
            _ => None,
        }
    }

    /// Whether the row describes exactly the signal frame that `Rule::Signal` assumes.
    fn kernel_frame(&self) -> bool {
        let saved_at = |register, offset: u64| match self.registers.register(Register(register)) {
            Some(RegisterRule::Expression(expression)) => {
                self.register_offset(expression) == Some((SP, offset as i64, false))
            }
            _ => false,
        };
        let cfa = match *self.registers.cfa() {
            CfaRule::Expression(expression) => self.register_offset(expression),
            CfaRule::RegisterAndOffset { .. } => None,
        };
        cfa == Some((SP, machine::SIGNAL_SP as i64, true))
            && saved_at(RA, machine::SIGNAL_PC)
            && saved_at(SP, machine::SIGNAL_SP)
            && saved_at(FP, machine::SIGNAL_FP)
    }
}

fn words_below(offset: i64) -> Option<u32> {
    if offset >= 0 || offset % 8 != 0 {
        None
    } else {
        u32::try_from(-offset / 8).ok()
    }
}

/// A frame's known registers, by DWARF number.
#[derive(Clone, Copy)]
pub struct Frame {
    pub values: [u64; REGISTERS],
    pub known: u64,
    /// The address in `RA` is that of an interrupted instruction, not a return address.
    pub interrupted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Caller,
    Root,
    /// The memory contradicts the rule, or the rule is not supported.
    Lost,
    /// The rule needs a register whose value is not known.
    Unknown,
}

impl Frame {
    pub fn get(&self, register: u16) -> Option<u64> {
        let value = self.values.get(usize::from(register))?;
        (self.known >> register & 1 == 1).then_some(*value)
    }

    pub fn set(&mut self, register: u16, value: Option<u64>) {
        let Some(at) = self.values.get_mut(usize::from(register)) else {
            return;
        };
        *at = value.unwrap_or(0);
        self.known = self.known & !(1 << register) | u64::from(value.is_some()) << register;
    }

    /// Moves to the caller, as the row describes.
    pub fn step(&mut self, row: &Row, memory: &mut Memory) -> Step {
        if row.registers.register(Register(RA)) == Some(RegisterRule::Undefined) {
            return Step::Root;
        }
        let cfa = match *row.registers.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => match self.get(register.0) {
                Some(value) => value.wrapping_add_signed(offset),
                None => return Step::Unknown,
            },
            CfaRule::Expression(expression) => match self.evaluate(row, expression, None, memory) {
                Ok(value) => value,
                Err(step) => return step,
            },
        };
        let mut caller = *self;
        caller.set(SP, Some(cfa));
        let mut returns_to = Err(Step::Lost);
        for (register, rule) in row.registers.registers() {
            let value = match *rule {
                RegisterRule::Undefined | RegisterRule::SameValue => continue,
                RegisterRule::Offset(offset) => memory.word(cfa.wrapping_add_signed(offset)).ok_or(Step::Lost),
                RegisterRule::ValOffset(offset) => Ok(cfa.wrapping_add_signed(offset)),
                RegisterRule::Register(from) => self.get(from.0).ok_or(Step::Unknown),
                RegisterRule::Expression(expression) => self
                    .evaluate(row, expression, Some(cfa), memory)
                    .and_then(|address| memory.word(address).ok_or(Step::Lost)),
                RegisterRule::ValExpression(expression) => self.evaluate(row, expression, Some(cfa), memory),
                _ => Err(Step::Lost),
            };
            if register.0 == RA {
                returns_to = value;
            }
            caller.set(register.0, value.ok());
        }
        // A leaf function whose return address is still in a register (not on x86-64, where calls push it).
        if RA == 30
            && row
                .registers
                .register(Register(RA))
                .is_none_or(|rule| rule == RegisterRule::SameValue)
        {
            returns_to = self.get(RA).ok_or(Step::Unknown);
        }
        let returns_to = match returns_to {
            Ok(word) => machine::code_address(word),
            Err(step) => return step,
        };
        let (Some(here), Some(there)) = (self.get(SP), caller.get(SP)) else {
            return Step::Unknown;
        };
        // Only a signal handler may run on another stack than the code it interrupted. libffi's call on aarch64 describes its
        // frame as above its CFA, which equals its stack pointer if it passes nothing on the stack. Then the frame pointer
        // grows: a walk that could stay at one stack pointer for ever would load the same frame pointer again.
        let is_ffi_call = || there == here && caller.get(FP) > self.get(FP);
        if !row.signal && !is_above(here, there, memory) && !is_ffi_call() {
            return Step::Lost;
        }
        caller.set(RA, Some(returns_to));
        caller.interrupted = row.signal;
        *self = caller;
        Step::Caller
    }

    fn evaluate(
        &self,
        row: &Row,
        expression: UnwindExpression<usize>,
        pushed: Option<u64>,
        memory: &mut Memory,
    ) -> Result<u64, Step> {
        let code = expression.get(row.section).map_err(|_| Step::Lost)?.0;
        evaluate(
            code,
            pushed,
            |register| self.get(register),
            |address| memory.word(address),
        )
    }
}

/// Whether `there` can be the stack pointer of the caller of a frame with stack pointer `here`.
pub fn is_above(here: u64, there: u64, memory: &Memory) -> bool {
    let top = if memory.bounds.hold(here) {
        memory.bounds.top
    } else {
        u64::MAX
    };
    there > here && there <= top && there.is_multiple_of(8)
}

/// Evaluates the DWARF expressions that occur in unwind tables: no jumps, no types.
fn evaluate(
    mut code: Bytes,
    pushed: Option<u64>,
    register: impl Fn(u16) -> Option<u64>,
    mut word: impl FnMut(u64) -> Option<u64>,
) -> Result<u64, Step> {
    let mut values = Values {
        words: [0; 16],
        count: 0,
    };
    if let Some(value) = pushed {
        values.push(value)?;
    }
    while !code.is_empty() {
        let value = match Operation::parse(&mut code, ENCODING).map_err(|_| Step::Lost)? {
            Operation::UnsignedConstant { value } => value,
            Operation::SignedConstant { value } => value as u64,
            Operation::RegisterOffset {
                register: number,
                offset,
                ..
            } => register(number.0).ok_or(Step::Unknown)?.wrapping_add_signed(offset),
            Operation::Deref {
                size: 8, space: false, ..
            } => word(values.pop()?).ok_or(Step::Lost)?,
            Operation::PlusConstant { value } => values.pop()?.wrapping_add(value),
            Operation::Pick { index } => values.pick(index)?,
            Operation::Drop => {
                values.pop()?;
                continue;
            }
            Operation::Nop => continue,
            Operation::Swap => {
                let (upper, lower) = (values.pop()?, values.pop()?);
                values.push(upper)?;
                lower
            }
            Operation::Neg => values.pop()?.wrapping_neg(),
            Operation::Not => !values.pop()?,
            operation => {
                let (right, left) = (values.pop()?, values.pop()?);
                let (signed_left, signed_right) = (left as i64, right as i64);
                match operation {
                    Operation::Plus => left.wrapping_add(right),
                    Operation::Minus => left.wrapping_sub(right),
                    Operation::Mul => left.wrapping_mul(right),
                    Operation::And => left & right,
                    Operation::Or => left | right,
                    Operation::Xor => left ^ right,
                    Operation::Shl => left.checked_shl(right as u32).unwrap_or(0),
                    Operation::Shr => left.checked_shr(right as u32).unwrap_or(0),
                    Operation::Shra => (signed_left >> right.min(63)) as u64,
                    Operation::Eq => (left == right).into(),
                    Operation::Ne => (left != right).into(),
                    Operation::Ge => (signed_left >= signed_right).into(),
                    Operation::Gt => (signed_left > signed_right).into(),
                    Operation::Le => (signed_left <= signed_right).into(),
                    Operation::Lt => (signed_left < signed_right).into(),
                    _ => return Err(Step::Lost),
                }
            }
        };
        values.push(value)?;
    }
    values.pop()
}

/// The operand stack of an expression.
struct Values {
    words: [u64; 16],
    count: usize,
}

impl Values {
    fn push(&mut self, value: u64) -> Result<(), Step> {
        *self.words.get_mut(self.count).ok_or(Step::Lost)? = value;
        self.count += 1;
        Ok(())
    }

    fn pop(&mut self) -> Result<u64, Step> {
        self.count = self.count.checked_sub(1).ok_or(Step::Lost)?;
        self.words.get(self.count).copied().ok_or(Step::Lost)
    }

    fn pick(&self, index: u8) -> Result<u64, Step> {
        let at = self.count.checked_sub(usize::from(index) + 1).ok_or(Step::Lost)?;
        self.words.get(at).copied().ok_or(Step::Lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expression_of_a_procedure_linkage_table_is_evaluated() {
        // breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus
        static CODE: [u8; 11] = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        for (pc, cfa) in [(0x1000, 0x7008), (0x100a, 0x7008), (0x100b, 0x7010), (0x100f, 0x7010)] {
            let register = |number| match number {
                7 => Some(0x7000),
                16 => Some(pc),
                _ => None,
            };
            assert_eq!(
                evaluate(EndianSlice::new(&CODE, NativeEndian), None, register, |_| None),
                Ok(cfa)
            );
        }
    }

    #[test]
    fn a_hostile_expression_is_an_error() {
        static UNDERFLOW: [u8; 1] = [0x22];
        static OVERFLOW: [u8; 40] = [0x31; 40];
        static JUMP_BACK: [u8; 3] = [0x2f, 0xfd, 0xff];
        static UNKNOWN: [u8; 2] = [0x73, 0];
        static EMPTY: [u8; 0] = [];
        let run = |code: &'static [u8]| evaluate(EndianSlice::new(code, NativeEndian), None, |_| None, |_| None);
        assert_eq!(run(&UNDERFLOW), Err(Step::Lost));
        assert_eq!(run(&OVERFLOW), Err(Step::Lost));
        assert_eq!(run(&JUMP_BACK), Err(Step::Lost));
        assert_eq!(run(&UNKNOWN), Err(Step::Unknown));
        assert_eq!(run(&EMPTY), Err(Step::Lost));
    }
}
