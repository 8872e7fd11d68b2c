//! The exact peak of a sum that many threads change, without a word that all of them change.
//!
//! The peak is the number of *tokens* ever minted, one a byte. Whoever allocates takes tokens, whoever frees gives them
//! back, and new ones are minted only when no old one is free. So at every instant
//!
//! ```text
//! minted = live + slack + credit of shard 0 + credit of shard 1 + …        and        live ≤ minted
//! ```
//!
//! and at the instant of a minting nothing but `live` is left on the right: the peak was reached, to the byte. Free
//! tokens lie in the *pot*, one word for all, or in *shards*, a word for a thread or a few.
//!
//! ```text
//! stage      free tokens lie in      take, give                          leaves it when
//! Shared     the pot                 on the pot                          the peak has been calm for a while
//! Open       the pot and the shards   on the own shard; take also on pot   neither has enough: somebody must look into
//!                                                                        every shard before new tokens may be minted
//! Freezing   the pot and the shards   help to freeze all shards, then      … that first one, in the same swap which
//!                                    apply to the sum of all             puts the whole sum into the pot
//! ```
//!
//! A program that fills memory stays in Shared: one swap of one word an event, as a plain sum would cost. One that
//! churns below its peak stays in Open: a swap of a word nobody else touches.
//!
//! Why it is right:
//! - The pot holds stage and round beside its tokens, a shard the stage and round its credit belongs to. Credit of
//!   another round is void: it was added to the pot when that round ended. Every change is one compare-and-swap of one
//!   word, and takes effect there.
//! - A shard is read before the pot. If the pot then says Open of some round, the shard was not frozen in that round when
//!   it was read; if it is by the time of the swap, the swap fails.
//! - In Freezing neither the pot nor a frozen shard changes, so all helpers compute the same sum, and one swap of the pot
//!   ends the stage. A helper that sleeps meanwhile fails its swap: its pot is gone. Nobody holds tokens in hand, so a
//!   thread that dies anywhere loses none, and nobody waits for another.
//! - A shard made while others freeze is seen by them, or sees them: it is made before the pot is read, in one order of
//!   all such steps (SeqCst).
//!
//! `loom_models` tries all of this in every interleaving, with every ordering weakened and with a thread dying before each
//! of its operations (docs/proofs.md).
//!
//! Most events change two sums, that of a kind and that of a device: one after the other, each exact by itself.
//!
//! Rounds wrap after 16,384: a thread would have to sleep through exactly that many, each with thousands of events, and
//! find the very same word. Amounts are cut at [`LARGEST`], so that words cannot overflow; no machine holds as much.

use std::sync::atomic::Ordering::*;

use crate::lockfree::sync::{AtomicU32, AtomicU64};

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

/// A word of the pot or of a shard: stage and round in the upper 16 bits, tokens below.
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

    /// The tokens of a shard that count in this stage and round; none if it is from another.
    fn credit(self, round: u64, stage: Stage) -> u64 {
        if self.round() == round && self.stage() == stage {
            self.amount()
        } else {
            0
        }
    }
}

/// What all shards of one sum share. All zeros is a sum of zero.
#[repr(C)]
#[cfg_attr(test, derive(Default))]
pub struct CentralCredit {
    word: AtomicU64,
    /// The peak.
    minted: AtomicU64,
}

/// After so many events on the pot without a new peak, shards open.
const CALM: u32 = 16;

/// What a shard remembers of the pot: events on it since the shard last saw the peak move (lowest 8 bits), and what of the
/// peak it saw then. Only a hint.
const COUNT: u32 = 0xff;

/// A piece of the peak, to be compared.
fn sight(peak: u64) -> u32 {
    ((peak ^ peak >> 24) as u32) << 8
}

/// The own shard of a thread.
#[derive(Clone, Copy)]
pub struct Own<'a> {
    /// Its free tokens. 0: an empty shard.
    pub word: &'a AtomicU64,
    /// Starts as 0.
    pub hint: &'a AtomicU32,
}

/// A sum as one thread sees it: its own shard, and a way to all of them.
pub struct Sum<'a, L> {
    pub pot: &'a CentralCredit,
    pub own: Own<'a>,
    /// The words of all shards there are, in any order.
    pub shards: L,
}

impl<'a, L, I> Sum<'a, L>
where
    L: Fn() -> I,
    I: Iterator<Item = &'a AtomicU64>,
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
            // Acquire: pairs with the AcqRel of the swap that froze this shard, so the pot below is at least as new.
            let own = Word(self.own.word.load(Acquire));
            let pot = Word(self.pot.word.load(SeqCst));
            let round = pot.round();
            if pot.stage() == Stage::Open
                && let Some(left) = after(own.credit(round, Stage::Open), amount, take)
            {
                if swap(self.own.word, own, Word::new(round, Stage::Open, left)) {
                    return false;
                }
            } else if let Some(peak) = self.apply_to_pot(pot, amount, take) {
                return peak;
            }
        }
    }

    /// An event that the own shard does not settle. `None`: to be begun anew.
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
        let hint = self.own.hint;
        if left.is_none() {
            self.pot.minted.fetch_add(amount - tokens, Relaxed);
            hint.store(hint.load(Relaxed) & !COUNT, Relaxed);
            return true;
        }
        let seen = hint.load(Relaxed);
        let now = sight(self.pot.minted.load(Relaxed));
        let calm = if seen & !COUNT == now { (seen & COUNT) + 1 } else { 0 };
        if calm < CALM {
            hint.store(now | calm, Relaxed);
            return false;
        }
        hint.store(now, Relaxed);
        let pot = Word(self.pot.word.load(Relaxed));
        if pot.stage() == Stage::Shared {
            let _ = swap(&self.pot.word, pot, Word::new(pot.round(), Stage::Open, pot.amount()));
        }
        false
    }

    /// Freezes every shard while the pot says so; the sum of their credits. `None`: the stage is over.
    #[cold]
    fn freeze(&self, pot: Word) -> Option<u64> {
        let round = pot.round();
        let mut sum = 0u64;
        for shard in (self.shards)() {
            sum += loop {
                // Acquire, and the shard before the pot: as in `apply`. A shard of a later round must not be touched.
                let seen = Word(shard.load(Acquire));
                if Word(self.pot.word.load(SeqCst)) != pot {
                    return None;
                }
                if seen.round() == round && seen.stage() == Stage::Freezing {
                    break seen.amount();
                }
                let credit = seen.credit(round, Stage::Open);
                if swap(shard, seen, Word::new(round, Stage::Freezing, credit)) {
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
    // AcqRel: whoever acts on the new word sees all that led to it. SeqCst: one order with the making of shards.
    word.compare_exchange(old.0, new.0, SeqCst, Relaxed).is_ok()
}

impl CentralCredit {
    /// The largest value the sum ever had.
    pub fn peak(&self) -> u64 {
        self.minted.load(Relaxed)
    }
}

/// What is live at a moment when nobody changes it.
pub fn live<'a>(pot: &CentralCredit, shards: impl Iterator<Item = &'a AtomicU64>) -> u64 {
    let minted = pot.peak();
    let pot = Word(pot.word.load(Relaxed));
    let credits: u64 = shards
        .map(|shard| {
            let shard = Word(shard.load(Relaxed));
            match pot.stage() {
                Stage::Shared => 0,
                Stage::Open => shard.credit(pot.round(), Stage::Open),
                Stage::Freezing => shard.credit(pot.round(), Stage::Open) + shard.credit(pot.round(), Stage::Freezing),
            }
        })
        .sum();
    minted.saturating_sub(pot.amount().saturating_add(credits))
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
