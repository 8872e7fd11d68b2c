//! How to step from a frame to its caller, packed so that it fits one word of the table together with its key.

use crate::machine::{CFA_BITS, FP_BITS, RA_BITS};

/// What the canonical frame address (CFA) is computed from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// CFA = rsp + n.
    Stack = 1,
    /// CFA = rbp + n.
    Frame = 2,
    /// CFA = *(rbp + n): a frame that realigned the stack keeps its CFA in memory.
    Saved = 3,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// An ordinary frame. The return address and the caller's frame pointer lie `ra` and `fp` words below the CFA. `fp`
    /// 0: the frame pointer is still in its register. [`AT_FRAME`]: it lies where the frame pointer points.
    Frame { base: Base, offset: i64, ra: u32, fp: u32 },
    /// The kernel's signal frame: the interrupted registers lie at known offsets above the stack pointer.
    Signal,
    /// The outermost frame: it has no return address.
    Root,
}

/// ```text
/// ┌ kind 2 ┬ cfa offset / 8, signed ┬ ra ┬ fp ┐      kind 0: the rest is 0 (none), 1 (Root) or 2 (Signal)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed(pub u32);

pub const PAYLOAD_BITS: u32 = 2 + CFA_BITS + RA_BITS + FP_BITS;

/// A value of `fp`: a frame that realigned the stack saves the caller's frame pointer below the gap, so its distance
/// from the CFA varies. Packed only with [`Base::Saved`].
pub const AT_FRAME: u32 = u32::MAX;
/// The same in a packed rule.
const PACKED_AT_FRAME: u32 = (1 << FP_BITS) - 1;

const ROOT: u32 = 1;
const SIGNAL: u32 = 2;

impl Packed {
    #[inline(always)]
    pub fn is_root(self) -> bool {
        self.0 == ROOT
    }

    /// `None` if the rule does not fit. It is not remembered then: a walk interprets it each time, and read sets do not keep that
    /// stack. A table entry that said so would spare neither, since the step needs the rule.
    pub fn of(rule: Rule) -> Option<Packed> {
        let (base, offset, ra, fp) = match rule {
            Rule::Root => return Some(Packed(ROOT)),
            Rule::Signal => return Some(Packed(SIGNAL)),
            Rule::Frame { base, offset, ra, fp } => (base, offset, ra, fp),
        };
        let words = offset / 8;
        let limit = 1 << (CFA_BITS - 1);
        let fp = match fp {
            AT_FRAME if base == Base::Saved => PACKED_AT_FRAME,
            PACKED_AT_FRAME.. => return None,
            _ => fp,
        };
        if offset % 8 != 0 || !(-limit..limit).contains(&words) {
            return None;
        }
        let ra = match RA_BITS {
            0 if ra == 1 => 0,
            0 => return None,
            _ if ra == 0 || ra >> RA_BITS != 0 => return None,
            _ => ra,
        };
        let words = words as u32 & ((1 << CFA_BITS) - 1);
        Some(Packed(
            (base as u32) << (PAYLOAD_BITS - 2) | words << (RA_BITS + FP_BITS) | ra << FP_BITS | fp,
        ))
    }

    /// `None`: one of the special rules.
    #[inline(always)]
    pub fn base(self) -> Option<Base> {
        match self.0 >> (PAYLOAD_BITS - 2) {
            1 => Some(Base::Stack),
            2 => Some(Base::Frame),
            3 => Some(Base::Saved),
            _ => None,
        }
    }

    #[inline(always)]
    pub fn offset(self) -> i64 {
        // The kind is shifted out at the top, `ra` and `fp` at the bottom; the second shift extends the sign.
        let words = (self.0 << (34 - PAYLOAD_BITS)) as i32 >> (32 - CFA_BITS);
        i64::from(words) * 8
    }

    /// Words from the CFA down to the return address.
    #[inline(always)]
    pub fn ra(self) -> u64 {
        if RA_BITS == 0 {
            1
        } else {
            u64::from(self.0 >> FP_BITS) & ((1 << RA_BITS) - 1)
        }
    }

    /// Words from the CFA down to the saved frame pointer; 0 if it is still in its register. Not of a rule that
    /// is [`is_fp_at_frame`](Packed::is_fp_at_frame).
    #[inline(always)]
    pub fn fp(self) -> u64 {
        u64::from(self.0) & ((1 << FP_BITS) - 1)
    }

    /// Whether the caller's frame pointer lies where the frame pointer points.
    #[inline(always)]
    pub fn is_fp_at_frame(self) -> bool {
        self.fp() == u64::from(PACKED_AT_FRAME)
    }

    pub fn rule(self) -> Rule {
        match self.base() {
            Some(base) => Rule::Frame {
                base,
                offset: self.offset(),
                ra: self.ra() as u32,
                fp: if self.is_fp_at_frame() {
                    AT_FRAME
                } else {
                    self.fp() as u32
                },
            },
            None if self.0 == SIGNAL => Rule::Signal,
            None => Rule::Root,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_rule_unpacks_to_itself() {
        for base in [Base::Stack, Base::Frame, Base::Saved] {
            for offset in [-1024, -8, 0, 8, 16, 208, 4096, 30_000] {
                for fp in [0, 1, 2, 7, 100, AT_FRAME] {
                    if fp == AT_FRAME && base != Base::Saved {
                        continue;
                    }
                    let rule = Rule::Frame {
                        base,
                        offset: offset / 8 * 8,
                        ra: 1,
                        fp,
                    };
                    assert_eq!(Packed::of(rule).unwrap().rule(), rule);
                }
            }
        }
        for rule in [Rule::Root, Rule::Signal] {
            assert_eq!(Packed::of(rule).unwrap().rule(), rule);
        }
    }

    #[test]
    fn a_rule_that_does_not_fit_is_not_packed() {
        let rule = |offset, ra, fp| Rule::Frame {
            base: Base::Stack,
            offset,
            ra,
            fp,
        };
        assert_eq!(Packed::of(rule(12, 1, 0)), None);
        assert_eq!(Packed::of(rule(1 << 40, 1, 0)), None);
        assert_eq!(Packed::of(rule(-(1 << 40), 1, 0)), None);
        assert_eq!(Packed::of(rule(16, 1, 1 << FP_BITS)), None);
        assert_eq!(Packed::of(rule(16, 1, AT_FRAME)), None);
        assert_eq!(Packed::of(rule(16, 0, 0)), None);
        assert_eq!(Packed::of(rule(16, 1 << 20, 0)), None);
    }
}
