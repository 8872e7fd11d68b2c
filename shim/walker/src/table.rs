//! The table *code address → unwind rule*: every thread reads it and adds to it without a lock.
//!
//! ```text
//!  address (47 bits) ──× odd──▶ ┌ set 12 ┬──── tag 35 ────┐       one set = one cache line = 8 words
//!
//!  word  ┌──── tag 35 ────┬─ rule 29 (not 0) ─┐   an entry
//!        ├── sweep number ┼──────── 0 ────────┤   empty since that sweep (all zeros: from the start)
//!
//!  life of a word:   empty(0) ──insert──▶ entry ──sweep 1──▶ empty(1) ──insert──▶ entry ──sweep 2──▶ …
//!                        └───────────sweep 1───────────────────▲
//! ```
//!
//! **No torn reads, no false hits.** An entry is one word, read by one load. Multiplying by an odd number modulo 2⁴⁷
//! is a bijection, and set and tag together are all 47 bits of the product: no two addresses share both.
//!
//! **No stale entry.** A rule is valid as long as the code at its address stays mapped. So `dlclose` runs between
//! [`Table::closing_began`] and [`Table::closing_ended`], with [`Table::void`] before the latter:
//!
//! 1. While a close is in progress or a sweep is pending, `usable` returns false: a walk that begins then uses no entry.
//!    So a walk could only meet a stale entry after the sweep has finished (`swept == sweeps`).
//! 2. A thread that computes a rule first sets `used` and then reads `sweeps` (its *ticket*). It inserts the rule with a
//!    compare-and-swap from `empty(n)` with n ≤ ticket.
//! 3. `void` first increments `sweeps` to s, and then reads `used`. In the single total order of these four accesses,
//!    either the inserter's ticket is ≥ s: the rule was computed after the close; or `void` reads `used` as true: the
//!    sweep runs.
//! 4. Sweep s overwrites every word with empty(s), and the sweep number of a word never decreases. So the swap of an
//!    inserter whose ticket is < s either fails, because the sweep has passed the word, or succeeds before the sweep
//!    reaches the word and is overwritten by it.
//!
//! One thread sweeps at a time (`sweeping`). Another thread that calls `void` meanwhile leaves its number in `sweeps`:
//! either the sweeper reads it before it stops, or the flag is clear by then and the other thread sweeps. Nothing waits.
//!
//! `tests/models.rs` checks this in every interleaving, with every ordering weakened (docs/internals/proofs.md).
//!
//! A walk that began before a close and ends after it may use entries from before and after: its frames are in modules
//! that cannot have been closed, since it runs in them, and their rules are the same on both sides.
//!
//! **A full set** takes no more entries, which would leave its other addresses slow forever. So after [`CROWD`] failed
//! insertions the whole table is swept, and rules still in use are inserted again. No entry is ever replaced: point 4
//! needs that.

use std::sync::atomic::Ordering::*;

use crate::machine::{ADDRESS_BITS, CODE_SHIFT};
use crate::rule::{PAYLOAD_BITS, Packed};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64};

/// The models of `tests/models.rs` use a small table.
const SMALL: bool = cfg!(all(loom, test));
const WAYS: usize = if SMALL { 1 } else { 8 };
const SET_BITS: u32 = if SMALL { 1 } else { 12 };
/// 4,096 sets of 8: 32 Ki entries in 256 KiB; pages are touched when they are used.
const SETS: usize = 1 << SET_BITS;
/// Insertions that fail because a set is full, before the table is swept.
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
    /// The number of sweeps ever requested, and the number of the last complete one.
    sweeps: AtomicU64,
    swept: AtomicU64,
    /// Calls of `dlclose` in progress.
    closing: AtomicU32,
    crowded: AtomicU32,
    sweeping: AtomicBool,
    /// A thread has inserted an entry or is about to.
    used: AtomicBool,
    sets: [Set; SETS],
}

/// The number of sweeps when the computation of a rule began.
#[derive(Clone, Copy)]
pub struct Ticket(u64);

/// The set of an address, and its tag above a rule of 0.
#[derive(Clone, Copy)]
struct Place {
    set: usize,
    tag: u64,
}

impl Place {
    /// The address has at most `ADDRESS_BITS` bits.
    #[inline(always)]
    fn of(address: u64) -> Place {
        // Fibonacci hashing in the upper bits of the word: the overflow is the modulo.
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
    // One comparison checks both that the upper bits agree and that the rule is not 0.
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

    /// Whether a walk that begins now may use entries.
    #[inline(always)]
    pub fn usable(&self) -> bool {
        // Acquire: pair with the Release in `closing_ended` and `void`, so that the emptied words and the pending sweeps are
        // visible. `swept` is read first, because it only grows towards `sweeps`.
        let swept = self.swept.load(Acquire);
        self.closing.load(Acquire) == 0 && self.sweeps.load(Relaxed) == swept
    }

    /// Changes when entries may become invalid; `None` while entries must not be used.
    #[inline(always)]
    pub fn epoch(&self) -> Option<u64> {
        // Acquire, and the order of reads: as in `usable`.
        let swept = self.swept.load(Acquire);
        (self.closing.load(Acquire) == 0 && self.sweeps.load(Acquire) == swept).then_some(swept)
    }

    #[inline(always)]
    pub fn find(&self, address: u64) -> Option<Packed> {
        let place = Place::of(address);
        // Relaxed here and in `insert`: an entry is complete in its word and refers to no other memory.
        for word in &self.sets[place.set].0 {
            let rule = rule_in(word.load(Relaxed), place.tag);
            if rule.is_some() {
                return rule;
            }
        }
        None
    }

    /// Taken before a rule is computed.
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

    /// Removes all entries.
    pub fn void(&self) {
        self.sweeps.fetch_add(1, SeqCst);
        // Ends when no sweep is pending, or when another thread is sweeping: that thread reads `sweeps` after it has cleared
        // the flag.
        while !self.sweeping.swap(true, AcqRel) {
            let number = self.sweeps.load(Relaxed);
            if self.used.load(SeqCst) {
                self.sweep(number);
            }
            self.swept.store(number, Release);
            // A swap, not a store: it acquires the number of a thread that found the flag set.
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
        // AcqRel: walks that begin after this see it.
        self.closing.fetch_add(1, AcqRel);
    }

    pub fn closing_ended(&self) {
        self.closing.fetch_sub(1, AcqRel);
    }

    /// In a forked child: threads that were closing or sweeping do not exist here.
    pub fn forked(&self) {
        // An unfinished close may already have unmapped its library.
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
    fn only_inserted_entries_are_found() {
        let table = table();
        let mut inserted = HashMap::new();
        for i in 0..if cfg!(miri) { 200 } else { 10_000u64 } {
            let address = 0x7f00_0000_0000 + i * 8 * 13 + (i << 30) % (1 << 40);
            table.insert(address, rule_of(address), table.ticket());
            inserted.insert(address, rule_of(address));
        }
        let mut found = 0;
        for (&address, &rule) in &inserted {
            match table.find(address) {
                Some(seen) => {
                    assert_eq!(seen, rule);
                    found += 1;
                }
                None => assert!(table.crowded.load(Relaxed) > 0),
            }
            let step = 1 << CODE_SHIFT;
            for near in [address + step, address - step, address ^ 1 << 46, address ^ 1 << 20] {
                assert_eq!(table.find(near), inserted.get(&near).copied());
            }
        }
        assert!(found * 100 > inserted.len() * 99, "{found} of {}", inserted.len());
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
    fn the_table_is_not_usable_during_a_close() {
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
    fn a_crowded_table_is_swept() {
        let table = table();
        for i in 0..200_000u64 {
            let address = i * 0x51;
            table.insert(address, rule_of(address), table.ticket());
        }
        assert!(table.sweeps.load(Relaxed) > 0);
        assert!(table.usable());
    }

    /// One closer and two inserters. An inserter computes the rule of an address from a shared version, as it would from a
    /// mapped module; after every close no entry of an older version may be left.
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
