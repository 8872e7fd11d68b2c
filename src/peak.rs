//! The exact peak of a sum that many threads change, without a word that all of them change.
//!
//! The peak is the number of *tokens* ever minted, one a byte. Whoever allocates takes tokens, whoever frees gives them
//! back, and new ones are minted only when no old one is free. So at every instant
//!
//! ```text
//! minted = live + slack + credit of lane 0 + credit of lane 1 + …        and        live ≤ minted
//! ```
//!
//! and at the instant of a minting nothing but `live` is left on the right: the peak was reached, to the byte. Free
//! tokens lie in the *pot*, one word for all, or in *lanes*, a word for a thread or a few.
//!
//! ```text
//! stage      free tokens lie in      take, give                          leaves it when
//! Shared     the pot                 on the pot                          the peak has been calm for a while
//! Open       the pot and the lanes   on the own lane; take also on pot   neither has enough: somebody must look into
//!                                                                        every lane before new tokens may be minted
//! Freezing   the pot and the lanes   help to freeze all lanes, then      … that first one, in the same swap which
//!                                    apply to the sum of all             puts the whole sum into the pot
//! ```
//!
//! A program that fills memory stays in Shared: one swap of one word an event, as a plain sum would cost. One that
//! churns below its peak stays in Open: a swap of a word nobody else touches.
//!
//! Why it is right:
//! - The pot holds stage and round beside its tokens, a lane the stage and round its credit belongs to. Credit of
//!   another round is void: it was added to the pot when that round ended. Every change is one compare-and-swap of one
//!   word, and takes effect there.
//! - A lane is read before the pot. If the pot then says Open of some round, the lane was not frozen in that round when
//!   it was read; if it is by the time of the swap, the swap fails.
//! - In Freezing neither the pot nor a frozen lane changes, so all helpers compute the same sum, and one swap of the pot
//!   ends the stage. A helper that sleeps meanwhile fails its swap: its pot is gone. Nobody holds tokens in hand, so a
//!   thread that dies anywhere loses none, and nobody waits for another.
//! - A lane made while others freeze is seen by them, or sees them: it is made before the pot is read, in one order of
//!   all such steps (SeqCst).
//!
//! `loom_models` tries all of this in every interleaving, with every ordering weakened and with a thread dying before each
//! of its operations (docs/proofs.md).
//!
//! Rounds wrap after 16,384: a thread would have to sleep through exactly that many, each with thousands of events, and
//! find the very same word. Amounts are cut at [`LARGEST`], so that words cannot overflow; no machine holds as much.

use std::sync::atomic::Ordering::*;

use crate::sync::AtomicU64;

/// Largest amount counted: 16 TiB.
pub const LARGEST: u64 = 1 << 44;

const AMOUNT_BITS: u32 = 48;
const AMOUNT: u64 = (1 << AMOUNT_BITS) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Shared = 0,
    Open = 1,
    Freezing = 2,
}

/// A word of the pot or of a lane: stage and round in the upper 16 bits, tokens below.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn new(round: u64, stage: Stage, amount: u64) -> Word {
        Word((round << 2 | stage as u64) << AMOUNT_BITS | amount.min(AMOUNT))
    }

    fn stage(self) -> Stage {
        match self.0 >> AMOUNT_BITS & 3 {
            0 => Stage::Shared,
            1 => Stage::Open,
            _ => Stage::Freezing,
        }
    }

    fn round(self) -> u64 {
        self.0 >> (AMOUNT_BITS + 2)
    }

    fn amount(self) -> u64 {
        self.0 & AMOUNT
    }

    /// The tokens of a lane that count in this stage and round; none if it is from another.
    fn credit(self, round: u64, stage: Stage) -> u64 {
        if self.round() == round && self.stage() == stage {
            self.amount()
        } else {
            0
        }
    }
}

/// What all lanes of one sum share. All zeros is a sum of zero.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Pot {
    word: AtomicU64,
    /// The peak.
    minted: AtomicU64,
}

/// One lane. All zeros is an empty one.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub struct Lane {
    word: AtomicU64,
    /// Events of this lane on the pot since it last saw the peak move; only a hint.
    calm: AtomicU64,
    /// The peak when it last looked.
    seen: AtomicU64,
}

/// After so many events on the pot without a new peak, lanes open.
const CALM: u64 = 16;

/// A sum as one thread sees it: its own lane, and a way to all of them.
pub struct Sum<'a, L> {
    pub pot: &'a Pot,
    pub own: &'a Lane,
    /// Every lane there is, in any order.
    pub lanes: L,
}

impl<'a, L, I> Sum<'a, L>
where
    L: Fn() -> I,
    I: Iterator<Item = &'a Lane>,
{
    /// `amount` more are live. Says whether that is a new peak.
    #[inline]
    pub fn take(&self, amount: u64) -> bool {
        amount > 0 && self.apply(amount.min(LARGEST), true)
    }

    /// `amount` fewer are live.
    #[inline]
    pub fn give(&self, amount: u64) {
        if amount > 0 {
            self.apply(amount.min(LARGEST), false);
        }
    }

    #[inline(always)]
    fn apply(&self, amount: u64, take: bool) -> bool {
        loop {
            // Acquire: pairs with the AcqRel of the swap that froze this lane, so the pot below is at least as new.
            let own = Word(self.own.word.load(Acquire));
            let pot = Word(self.pot.word.load(SeqCst));
            let round = pot.round();
            if pot.stage() == Stage::Open
                && let Some(left) = after(own.credit(round, Stage::Open), amount, take)
            {
                if swap(&self.own.word, own, Word::new(round, Stage::Open, left)) {
                    return false;
                }
            } else if let Some(peak) = self.apply_to_pot(pot, amount, take) {
                return peak;
            }
        }
    }

    /// An event that the own lane does not settle. `None`: to be begun anew.
    #[inline(never)]
    fn apply_to_pot(&self, pot: Word, amount: u64, take: bool) -> Option<bool> {
        let round = pot.round();
        match pot.stage() {
            Stage::Open => {
                if let Some(left) = after(pot.amount(), amount, take) {
                    swap(&self.pot.word, pot, Word::new(round, Stage::Open, left)).then_some(false)
                } else {
                    let _ = swap(&self.pot.word, pot, Word::new(round, Stage::Freezing, pot.amount()));
                    None
                }
            }
            Stage::Shared => {
                let left = after(pot.amount(), amount, take);
                swap(&self.pot.word, pot, Word::new(round, Stage::Shared, left.unwrap_or(0)))
                    .then(|| self.settle(pot.amount(), amount, left))
            }
            Stage::Freezing => {
                let tokens = pot.amount() + self.freeze(pot)?;
                let left = after(tokens, amount, take);
                swap(
                    &self.pot.word,
                    pot,
                    Word::new(round + 1, Stage::Shared, left.unwrap_or(0)),
                )
                .then(|| self.settle(tokens, amount, left))
            }
        }
    }

    /// After an event on the pot: mints what was missing, or notes that nothing was.
    fn settle(&self, tokens: u64, amount: u64, left: Option<u64>) -> bool {
        if left.is_none() {
            self.pot.minted.fetch_add(amount - tokens, Relaxed);
            self.own.calm.store(0, Relaxed);
            return true;
        }
        let minted = self.pot.minted.load(Relaxed);
        let calm = if self.own.seen.load(Relaxed) == minted {
            self.own.calm.load(Relaxed) + 1
        } else {
            self.own.seen.store(minted, Relaxed);
            0
        };
        self.own.calm.store(calm, Relaxed);
        if calm >= CALM {
            self.own.calm.store(0, Relaxed);
            let pot = Word(self.pot.word.load(Relaxed));
            if pot.stage() == Stage::Shared {
                let _ = swap(&self.pot.word, pot, Word::new(pot.round(), Stage::Open, pot.amount()));
            }
        }
        false
    }

    /// Freezes every lane while the pot says so; the sum of their credits. `None`: the stage is over.
    #[cold]
    fn freeze(&self, pot: Word) -> Option<u64> {
        let round = pot.round();
        let mut sum = 0u64;
        for lane in (self.lanes)() {
            sum += loop {
                // Acquire, and the lane before the pot: as in `apply`. A lane of a later round must not be touched.
                let seen = Word(lane.word.load(Acquire));
                if Word(self.pot.word.load(SeqCst)) != pot {
                    return None;
                }
                if seen.round() == round && seen.stage() == Stage::Freezing {
                    break seen.amount();
                }
                let credit = seen.credit(round, Stage::Open);
                if swap(&lane.word, seen, Word::new(round, Stage::Freezing, credit)) {
                    break credit;
                }
            };
        }
        Some(sum)
    }
}

/// What is left of `tokens`; `None`: there are not enough.
#[inline(always)]
fn after(tokens: u64, amount: u64, take: bool) -> Option<u64> {
    if take {
        tokens.checked_sub(amount)
    } else {
        Some(tokens.saturating_add(amount))
    }
}

#[inline(always)]
fn swap(word: &AtomicU64, old: Word, new: Word) -> bool {
    // AcqRel: whoever acts on the new word sees all that led to it. SeqCst: one order with the making of lanes.
    word.compare_exchange(old.0, new.0, SeqCst, Relaxed).is_ok()
}

impl Pot {
    /// The largest value the sum ever had.
    pub fn peak(&self) -> u64 {
        self.minted.load(Relaxed)
    }
}

/// What is live at a moment when nobody changes it.
pub fn live<'a>(pot: &Pot, lanes: impl Iterator<Item = &'a Lane>) -> u64 {
    let minted = pot.peak();
    let pot = Word(pot.word.load(Relaxed));
    let credits: u64 = lanes
        .map(|lane| {
            let lane = Word(lane.word.load(Relaxed));
            match pot.stage() {
                Stage::Shared => 0,
                Stage::Open => lane.credit(pot.round(), Stage::Open),
                Stage::Freezing => lane.credit(pot.round(), Stage::Open) + lane.credit(pot.round(), Stage::Freezing),
            }
        })
        .sum();
    minted.saturating_sub(pot.amount().saturating_add(credits))
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
