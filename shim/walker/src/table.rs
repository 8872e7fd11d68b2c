//! The table *code address → unwind rule*: every thread reads it without a lock, every thread may add to it.
//!
//! ```text
//!  address (47 bits) ──× odd──▶ ┌ set 12 ┬──── tag 35 ────┐       one set = one cache line = 8 words
//!
//!  word  ┌──── tag 35 ────┬─ rule 29 (not 0) ─┐   an entry
//!        ├── sweep number ┼──────── 0 ────────┤   empty since that sweep (all zeros: since ever)
//!
//!  life of a word:   empty(0) ──insert──▶ entry ──sweep 1──▶ empty(1) ──insert──▶ entry ──sweep 2──▶ …
//!                        └───────────sweep 1───────────────────▲
//! ```
//!
//! **No torn reads, no false hits.** An entry is one word, read by one load. Multiplying by an odd number modulo 2⁴⁷
//! is a bijection, and set and tag together are all 47 bits of the product: two addresses never look alike.
//!
//! **No stale entry.** What a rule says is true as long as the code at its address stays mapped. `dlclose` therefore
//! stands between [`Table::closing_began`] and [`Table::closing_ended`], with [`Table::void`] before the latter, and:
//!
//! 1. While a close is under way, or a sweep is owed, `usable` says no: a walk that begins then believes nothing. So a
//!    stale entry could only be met after the sweep is over (`swept == sweeps`).
//! 2. Whoever computes a rule first sets `used` and then reads `sweeps` (this is its *ticket*). It enters the rule
//!    by a compare-and-swap from `empty(n)` with n ≤ ticket.
//! 3. `void` first counts `sweeps` up to s, and then looks at `used`. In the one total order of these four accesses,
//!    either the inserter's ticket is ≥ s: the rule was computed after the close; or `used` is seen: the sweep runs.
//! 4. A sweep s overwrites every word by empty(s), and the numbers in a word never fall. So a swap of an inserter whose
//!    ticket is < s either fails, because the sweep has passed, or happens before the sweep passes and is undone by it.
//!
//! Only one thread sweeps at a time (`sweeping`); another one that comes meanwhile leaves its number in `sweeps`, which
//! the sweeper finds before it stops, or which it finds itself since the flag was down by then. Nobody ever waits.
//!
//! `tests/models.rs` tries this in every interleaving, with every ordering weakened (docs/proofs.md).
//!
//! A walk that began before a close and ends after it may use entries of either side: its frames are in modules that
//! cannot have been closed, since it runs in them, and for those both sides say the same.
//!
//! **A full set** takes no more entries, which would leave unlucky addresses slow for ever; so after [`CROWD`] refusals
//! everything is swept, and what is still in use comes back. Nothing is ever replaced: point 4 needs that.

use std::sync::atomic::Ordering::*;

use crate::machine::{ADDRESS_BITS, CODE_SHIFT};
use crate::rule::Packed;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64};

pub const PAYLOAD_BITS: u32 = 29;
/// The models of `tests/models.rs` need few words.
const SMALL: bool = cfg!(all(loom, test));
const WAYS: usize = if SMALL { 1 } else { 8 };
const SET_BITS: u32 = if SMALL { 1 } else { 12 };
/// 4,096 sets of 8: 32 Ki entries in 256 KiB, touched where used.
const SETS: usize = 1 << SET_BITS;
/// Refusals for want of room before everything is swept.
const CROWD: u32 = if SMALL { 1 } else { 512 };

const KEY_BITS: u32 = ADDRESS_BITS - CODE_SHIFT;
const _: () = assert!(KEY_BITS - SET_BITS + PAYLOAD_BITS <= 64, "tag and rule fill one word");

#[repr(align(64))]
#[cfg_attr(all(loom, test), derive(Default))]
struct Set([AtomicU64; WAYS]);

const _: () = assert!(size_of::<Set>() == 64, "one set fills one cache line");

/// All zeros is an empty table.
#[cfg_attr(all(loom, test), derive(Default))]
pub struct Table {
    /// How many sweeps were ever asked for, and the number of the last one that is complete.
    sweeps: AtomicU64,
    swept: AtomicU64,
    /// Calls of `dlclose` under way.
    closing: AtomicU32,
    crowded: AtomicU32,
    sweeping: AtomicBool,
    /// Somebody has entered something or is about to.
    used: AtomicBool,
    sets: [Set; SETS],
}

/// The number of sweeps at the time a rule began to be computed.
#[derive(Clone, Copy)]
pub struct Ticket(u64);

/// Where an address belongs: its set, and its tag above a rule of 0.
#[derive(Clone, Copy)]
struct Place {
    set: usize,
    tag: u64,
}

impl Place {
    /// The address has at most `ADDRESS_BITS` bits.
    #[inline(always)]
    fn of(address: u64) -> Place {
        // Fibonacci hashing. Done at the upper end of the word: what overflows is the modulo.
        let product = (address >> CODE_SHIFT << (64 - KEY_BITS)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Place {
            set: (product >> (64 - SET_BITS)) as usize,
            tag: product << SET_BITS,
        }
    }
}

/// The rule in a word, if the word is an entry with this tag.
#[inline(always)]
fn rule_in(word: u64, tag: u64) -> Option<Packed> {
    let rule = word ^ tag;
    // One comparison for both: the upper bits agree, and the rule is not 0.
    if rule.wrapping_sub(1) < (1 << PAYLOAD_BITS) - 1 {
        Some(Packed(rule as u32))
    } else {
        None
    }
}

/// The sweep since which a word is empty, if it is.
fn empty_since(word: u64) -> Option<u64> {
    (word & ((1 << PAYLOAD_BITS) - 1) == 0).then_some(word >> PAYLOAD_BITS)
}

impl Table {
    #[cfg(not(all(loom, test)))]
    pub const fn new() -> Table {
        Table {
            sweeps: AtomicU64::new(0),
            swept: AtomicU64::new(0),
            closing: AtomicU32::new(0),
            crowded: AtomicU32::new(0),
            sweeping: AtomicBool::new(false),
            used: AtomicBool::new(false),
            sets: [const { Set([const { AtomicU64::new(0) }; WAYS]) }; SETS],
        }
    }

    /// Whether entries can be believed by a walk that begins now.
    #[inline(always)]
    pub fn usable(&self) -> bool {
        // Acquire: pair with the Release in `closing_ended` and `void`, so the emptied words are seen with them, and the
        // sweeps that are owed. The order matters: `swept` first, for it may only grow towards `sweeps`.
        let swept = self.swept.load(Acquire);
        self.closing.load(Acquire) == 0 && self.sweeps.load(Relaxed) == swept
    }

    /// Changes when entries that were found may no longer be true; `None` while they may not be believed.
    #[inline(always)]
    pub fn epoch(&self) -> Option<u64> {
        // Acquire, and the order: as in `usable`.
        let swept = self.swept.load(Acquire);
        (self.closing.load(Acquire) == 0 && self.sweeps.load(Acquire) == swept).then_some(swept)
    }

    #[inline(always)]
    pub fn find(&self, address: u64) -> Option<Packed> {
        let place = Place::of(address);
        // Relaxed here and in `insert`: a word refers to nothing but itself.
        for word in &self.sets[place.set].0 {
            let rule = rule_in(word.load(Relaxed), place.tag);
            if rule.is_some() {
                return rule;
            }
        }
        None
    }

    /// To be taken before a rule is computed.
    pub fn ticket(&self) -> Ticket {
        // SeqCst, here and in `void`: point 3.
        if !self.used.load(SeqCst) {
            self.used.store(true, SeqCst);
        }
        Ticket(self.sweeps.load(SeqCst))
    }

    pub fn insert(&self, address: u64, rule: Packed, ticket: Ticket) {
        let place = Place::of(address);
        for word in &self.sets[place.set].0 {
            let seen = word.load(Relaxed);
            match empty_since(seen) {
                // The rule may be older than the sweep.
                Some(sweep) if sweep > ticket.0 => return,
                Some(_) => {
                    let entry = place.tag | u64::from(rule.0);
                    match word.compare_exchange(seen, entry, Relaxed, Relaxed) {
                        Ok(_) => return,
                        Err(other) if rule_in(other, place.tag).is_some() => return,
                        Err(_) => {}
                    }
                }
                None if rule_in(seen, place.tag).is_some() => return,
                None => {}
            }
        }
        if self.crowded.fetch_add(1, Relaxed) + 1 >= CROWD {
            self.crowded.store(0, Relaxed);
            self.void();
        }
    }

    /// Forgets everything.
    pub fn void(&self) {
        self.sweeps.fetch_add(1, SeqCst);
        // Ends when nothing is owed, or when another thread is at it: that one looks at `sweeps` after its flag is down.
        while !self.sweeping.swap(true, AcqRel) {
            let number = self.sweeps.load(Relaxed);
            if self.used.load(SeqCst) {
                self.sweep(number);
            }
            self.swept.store(number, Release);
            // A swap, not a store: it acquires the number of whoever found the flag up.
            self.sweeping.swap(false, AcqRel);
            if self.sweeps.load(Relaxed) == number {
                break;
            }
        }
    }

    fn sweep(&self, number: u64) {
        for word in self.sets.iter().flat_map(|set| &set.0) {
            word.store(number << PAYLOAD_BITS, Relaxed);
        }
    }

    pub fn closing_began(&self) {
        // AcqRel: walks that begin from now on see it.
        self.closing.fetch_add(1, AcqRel);
    }

    pub fn closing_ended(&self) {
        self.closing.fetch_sub(1, AcqRel);
    }

    /// In the child of a fork: threads that were closing or sweeping are not there to finish.
    pub fn forked(&self) {
        // A close that nobody finishes may have unmapped its library already.
        let closing = self.closing.swap(0, AcqRel) != 0;
        self.sweeping.store(false, SeqCst);
        if closing || self.sweeps.load(SeqCst) != self.swept.load(SeqCst) {
            self.void();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn table() -> Box<Table> {
        Box::new(Table::new())
    }

    /// A different rule for every address, never 0.
    fn rule_of(address: u64) -> Packed {
        Packed(((address >> 3) as u32 & 0x0fff_ffff) | 1 << 28)
    }

    #[test]
    fn finds_what_was_entered_and_nothing_else() {
        let table = table();
        let mut entered = HashMap::new();
        for i in 0..if cfg!(miri) { 200 } else { 10_000u64 } {
            let address = 0x7f00_0000_0000 + i * 8 * 13 + (i << 30) % (1 << 40);
            table.insert(address, rule_of(address), table.ticket());
            entered.insert(address, rule_of(address));
        }
        let mut found = 0;
        for (&address, &rule) in &entered {
            match table.find(address) {
                Some(seen) => {
                    assert_eq!(seen, rule);
                    found += 1;
                }
                None => assert!(table.crowded.load(Relaxed) > 0),
            }
            let step = 1 << CODE_SHIFT;
            for near in [address + step, address - step, address ^ 1 << 46, address ^ 1 << 20] {
                assert_eq!(table.find(near), entered.get(&near).copied());
            }
        }
        assert!(found * 100 > entered.len() * 99, "{found} of {}", entered.len());
    }

    #[test]
    fn a_rule_older_than_a_sweep_is_dropped() {
        let table = table();
        let late = table.ticket();
        table.insert(0x1000, rule_of(0x1000), late);
        table.void();
        assert_eq!(table.find(0x1000), None);
        table.insert(0x2000, rule_of(0x2000), late);
        assert_eq!(table.find(0x2000), None);
        table.insert(0x2000, rule_of(0x2000), table.ticket());
        assert_eq!(table.find(0x2000), Some(rule_of(0x2000)));
    }

    #[test]
    fn nothing_is_believed_while_a_close_is_under_way() {
        let table = table();
        assert!(table.usable());
        table.closing_began();
        assert!(!table.usable());
        table.void();
        assert!(!table.usable());
        table.closing_ended();
        assert!(table.usable());
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes hundreds of thousands of entries")]
    fn a_crowded_table_starts_afresh() {
        let table = table();
        for i in 0..200_000u64 {
            let address = i * 0x51;
            table.insert(address, rule_of(address), table.ticket());
        }
        assert!(table.sweeps.load(Relaxed) > 0);
        assert!(table.usable());
    }

    /// Two closers and two inserters. An inserter computes "the rule" of an address from a shared version, as it would
    /// from a mapped module; after every close no entry of an older version may be left.
    #[test]
    #[cfg_attr(miri, ignore = "sweeps 32,768 words at a time")]
    fn no_entry_survives_the_close_of_its_module() {
        let table = table();
        let version = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2u64 {
                let (table, version, stop) = (&table, &version, &stop);
                scope.spawn(move || {
                    for i in 0.. {
                        if stop.load(Relaxed) {
                            break;
                        }
                        let ticket = table.ticket();
                        let rule = Packed(version.load(SeqCst) as u32 | 1 << 28);
                        table.insert(((i * 2 + thread) % 997) << 12, rule, ticket);
                    }
                });
            }
            for _ in 0..1_000 {
                table.closing_began();
                let now = version.fetch_add(1, SeqCst) + 1;
                table.void();
                table.closing_ended();
                for i in 0..997u64 {
                    if let Some(rule) = table.find(i << 12) {
                        assert_eq!(rule.0 & !(1 << 28), now as u32);
                    }
                }
            }
            stop.store(true, Relaxed);
        });
    }
}
