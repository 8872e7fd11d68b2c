//! The exact peak of a sum that many threads change, without a word that every thread changes.
//!
//! The peak is the total *credit* ever issued, one unit per byte. An allocation takes credit, a free returns it, and new
//! credit is issued only when no unused credit is left:
//!
//! ```text
//! issued = live + central credit + local credit of shard 0 + local credit of shard 1 + …        and        live ≤ issued
//! ```
//!
//! When credit is issued, only `live` is left on the right: the peak was reached, to the byte. Unused credit is *central*,
//! one word for all threads, or *local*, one word per shard (a thread, or a few).
//!
//! ```text
//! stage      unused credit is       an event changes                     the stage ends when
//! Shared     central                the central word                     the peak was calm for a while
//! Open       central and local      the local word; or, if that is too   neither suffices: every shard must be read before
//!                                   small, the central word              new credit may be issued
//! Freezing   central and local      nothing: threads help to freeze all  … the first of them applies its event to the total,
//!                                   local words                          in the same swap that makes the total central
//! ```
//!
//! A program that fills memory stays in Shared: one swap of one word per event, the cost of a plain sum. A program that
//! allocates and frees below its peak stays in Open: a swap of a word that no other shard touches.
//!
//! Why it is correct:
//! - The central word holds stage and round beside its credit, a local word the stage and round that its credit belongs to.
//!   Credit of another round is void: it was added to the central credit when that round ended. Every event takes effect in
//!   one compare-and-swap of one word.
//! - A local word is loaded before the central word. If the central word then says Open of some round, the local word was not
//!   frozen in that round when it was loaded; if it is frozen by the time of the swap, the swap fails.
//! - In Freezing neither the central word nor a frozen local word changes, so all helpers compute the same total, and one
//!   swap of the central word ends the stage. A helper that is stopped meanwhile fails its swap, since the central word has
//!   changed. No thread waits for another.
//! - No thread holds credit outside these words, so a thread that dies loses none. But `issued` is raised after the swap that
//!   takes effect: until then it is too low by the credit to be issued, and it remains so if the thread dies in between.
//! - A local word that is created while others freeze is either visible to them or sees the new stage: it is created before
//!   the central word is loaded, in one total order of all such steps (SeqCst).
//!
//! `loom_models` checks this in every interleaving, with every ordering weakened and with a thread dying before each of its
//! operations (docs/internals/proofs.md).
//!
//! Most events change two sums, that of a kind and that of a device: one after the other, each exact by itself. An
//! allocation changes the device's sum first and a free the kind's, so at every instant the kinds add up to at most the
//! device, and no kind's peak exceeds the device's (`recording/allocations.rs`).
//!
//! Rounds wrap after 16,384: a thread would have to be stopped for exactly that many rounds, which take more than 200,000
//! events, and then find the same word again. An event is limited to [`LARGEST`] and a word to 2^48 - 1 bytes, more than any
//! machine has. Managed memory and reserved addresses count their virtual size, which may be larger than the machine's memory:
//! a block beyond [`LARGEST`] counts as that, also when it is freed. Their sums stay in a word, since addresses of a process
//! have at most 48 bits unless it asks the kernel for more.

use std::sync::atomic::Ordering::*;

use crate::lockfree::sync::{AtomicU32, AtomicU64};
use crate::system::{aside, cold_path};

/// The largest amount of one event: 16 TiB.
pub const LARGEST: u64 = 1 << 44;

const AMOUNT_BITS: u32 = 48;
const AMOUNT: u64 = (1 << AMOUNT_BITS) - 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Shared = 0,
    Open = 1,
    Freezing = 2,
}

/// A central or local word: stage and round in the upper 16 bits, credit below.
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

    /// Whether the stage is `Open`, the only one with this bit.
    #[inline(always)]
    fn is_open(self) -> bool {
        self.0 & (Stage::Open as u64) << AMOUNT_BITS != 0
    }

    fn round(self) -> u64 {
        self.0 >> (AMOUNT_BITS + 2)
    }

    fn amount(self) -> u64 {
        self.0 & AMOUNT
    }

    /// Another amount in this stage and round.
    fn with(self, amount: u64) -> Word {
        Word(self.0 & !AMOUNT | amount.min(AMOUNT))
    }

    /// Whether both words are of one stage and round.
    fn is_of(self, other: Word) -> bool {
        (self.0 ^ other.0) >> AMOUNT_BITS == 0
    }

    /// The credit of a local word that is valid in this round and stage.
    fn credit(self, round: u64, stage: Stage) -> u64 {
        if self.round() == round && self.stage() == stage {
            self.amount()
        } else {
            0
        }
    }
}

/// The part of a sum that all shards share. All zeros is a sum of zero.
#[repr(C)]
#[cfg_attr(test, derive(Default))]
pub struct CentralCredit {
    word: AtomicU64,
    /// All credit ever issued: the peak.
    issued: AtomicU64,
}

/// The stage opens after this number of events on the central word without a new peak.
const CALM: u32 = 16;

/// The part of a shard's hint (lowest 8 bits) that counts its events on the central word since it last saw the peak change.
/// The rest is a digest of the peak that it saw then.
const COUNT: u32 = 0xff;

/// A digest of the peak, for comparison.
fn digest(peak: u64) -> u32 {
    ((peak ^ peak >> 24) as u32) << 8
}

/// The calling thread's shard of a sum.
#[derive(Clone, Copy)]
pub struct LocalCredit<'a> {
    /// 0: no credit.
    pub word: &'a AtomicU64,
    /// Starts as 0. Decides only when the stage opens, so any value is safe.
    pub hint: &'a AtomicU32,
}

impl LocalCredit<'_> {
    /// As [`Sum::change`], if this word has credit of an open stage, and enough. False: nothing has changed. `amount` is at most
    /// [`LARGEST`], and not 0.
    ///
    /// The word alone decides. One of an open stage is frozen before that stage ends, and the swap fails if it was frozen
    /// meanwhile; so the event takes effect while the stage is open, or while threads freeze it and have not come to this word.
    #[inline(always)]
    pub fn change_alone(&self, amount: u64, grows: bool) -> bool {
        // Relaxed: nothing else is read, and the swap decides.
        let local = Word(self.word.load(Relaxed));
        let new = match grows {
            true => local.0.wrapping_sub(amount),
            false => local.0.wrapping_add(amount),
        };
        // The amount has neither borrowed from stage and round nor changed them.
        Word(new).is_of(local) && local.is_open() && swap(self.word, local, Word(new))
    }
}

/// A sum as one thread sees it.
#[derive(Clone, Copy)]
pub struct Sum<'a, L> {
    pub central: &'a CentralCredit,
    pub local: LocalCredit<'a>,
    /// The local words of all shards, in any order.
    pub shards: L,
}

impl<'a, L, I> Sum<'a, L>
where
    L: Fn() -> I + Copy,
    I: Iterator<Item = &'a AtomicU64>,
{
    /// Adds `amount` to the sum. Returns whether that is a new peak.
    #[inline]
    pub fn grow(&self, amount: u64) -> bool {
        self.change(amount, true)
    }

    /// Subtracts `amount` from the sum.
    #[inline]
    pub fn shrink(&self, amount: u64) {
        self.change(amount, false);
    }

    /// `grow` or `shrink`.
    #[inline(always)]
    pub fn change(&self, amount: u64, grows: bool) -> bool {
        let amount = amount.min(LARGEST);
        if amount == 0 {
            cold_path();
            return false;
        }
        match self.change_locally(amount, grows) {
            Ok(()) => false,
            Err(central) => aside(self).change_slowly(central, amount, grows),
        }
    }

    /// An event for which the local credit suffices. Otherwise returns the central word, or `None` if the words have changed meanwhile.
    #[inline(always)]
    fn change_locally(&self, amount: u64, grows: bool) -> Result<(), Option<Word>> {
        // Acquire: pairs with the `swap` that froze this word, so the central word below is at least as new.
        let local = Word(self.local.word.load(Acquire));
        let central = Word(self.central.word.load(SeqCst));
        // Credit of another stage or round is void.
        let credit = if local.is_of(central) { local.amount() } else { 0 };
        if central.stage() != Stage::Open {
            return Err(Some(central));
        }
        let left = after(credit, amount, grows).ok_or(Some(central))?;
        if swap(self.local.word, local, central.with(left)) {
            Ok(())
        } else {
            Err(None)
        }
    }

    #[inline(never)]
    fn change_slowly(&self, mut central: Option<Word>, amount: u64, grows: bool) -> bool {
        loop {
            if let Some(peak) = central.and_then(|central| self.change_centrally(central, amount, grows)) {
                return peak;
            }
            match self.change_locally(amount, grows) {
                Ok(()) => return false,
                Err(other) => central = other,
            }
        }
    }

    /// An event for which the local credit does not suffice. `None`: retry it.
    fn change_centrally(&self, central: Word, amount: u64, grows: bool) -> Option<bool> {
        let round = central.round();
        match central.stage() {
            Stage::Open => {
                if let Some(left) = after(central.amount(), amount, grows) {
                    swap(&self.central.word, central, Word::new(round, Stage::Open, left)).then_some(false)
                } else {
                    let freezing = Word::new(round, Stage::Freezing, central.amount());
                    let _ = swap(&self.central.word, central, freezing);
                    None
                }
            }
            Stage::Shared => {
                let left = after(central.amount(), amount, grows);
                let new = Word::new(round, Stage::Shared, left.unwrap_or(0));
                swap(&self.central.word, central, new).then(|| self.settle(central.amount(), amount, left))
            }
            Stage::Freezing => {
                let credit = central.amount() + self.freeze(central)?;
                let left = after(credit, amount, grows);
                let new = Word::new(round + 1, Stage::Shared, left.unwrap_or(0));
                swap(&self.central.word, central, new).then(|| self.settle(credit, amount, left))
            }
        }
    }

    /// After an event on the central word: issues the credit that was missing, or counts the event towards opening the stage.
    fn settle(&self, credit: u64, amount: u64, left: Option<u64>) -> bool {
        let hint = self.local.hint;
        if left.is_none() {
            self.central.issued.fetch_add(amount - credit, Relaxed);
            hint.store(hint.load(Relaxed) & !COUNT, Relaxed);
            return true;
        }
        let seen = hint.load(Relaxed);
        let now = digest(self.central.issued.load(Relaxed));
        let calm = if seen & !COUNT == now { (seen & COUNT) + 1 } else { 0 };
        if calm < CALM {
            hint.store(now | calm, Relaxed);
            return false;
        }
        hint.store(now, Relaxed);
        let central = Word(self.central.word.load(Relaxed));
        if central.stage() == Stage::Shared {
            let open = Word::new(central.round(), Stage::Open, central.amount());
            let _ = swap(&self.central.word, central, open);
        }
        false
    }

    /// Freezes every local word while the central word is `central`; returns the sum of their credit. `None`: the stage is
    /// over.
    #[cold]
    fn freeze(&self, central: Word) -> Option<u64> {
        let round = central.round();
        let mut sum = 0u64;
        for shard in (self.shards)() {
            sum += loop {
                // Acquire, and the local word first: as in `change_locally`. A word of a later round must not be changed.
                let seen = Word(shard.load(Acquire));
                if Word(self.central.word.load(SeqCst)) != central {
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

/// The credit that is left after an event; `None`: there is not enough.
#[inline(always)]
fn after(credit: u64, amount: u64, grows: bool) -> Option<u64> {
    if grows {
        credit.checked_sub(amount)
    } else {
        Some(credit.saturating_add(amount))
    }
}

#[inline(always)]
fn swap(word: &AtomicU64, old: Word, new: Word) -> bool {
    // AcqRel: a thread that acts on the new word sees everything that led to it. SeqCst: one total order with the creation of
    // local words.
    word.compare_exchange(old.0, new.0, SeqCst, Relaxed).is_ok()
}

impl CentralCredit {
    /// The largest value the sum ever had.
    pub fn peak(&self) -> u64 {
        self.issued.load(Relaxed)
    }
}

/// The value of the sum while no thread changes it.
pub fn live<'a>(central: &CentralCredit, shards: impl Iterator<Item = &'a AtomicU64>) -> u64 {
    let issued = central.peak();
    let central = Word(central.word.load(Relaxed));
    let credits: u64 = shards
        .map(|shard| {
            let local = Word(shard.load(Relaxed));
            let open = local.credit(central.round(), Stage::Open);
            match central.stage() {
                Stage::Shared => 0,
                Stage::Open => open,
                Stage::Freezing => open + local.credit(central.round(), Stage::Freezing),
            }
        })
        .sum();
    issued.saturating_sub(central.amount().saturating_add(credits))
}

#[cfg(all(test, loom))]
mod loom_models;
#[cfg(all(test, not(loom)))]
mod tests;
