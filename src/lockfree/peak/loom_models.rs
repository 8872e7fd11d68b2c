//! Every interleaving of two or three threads that take and give tokens, from each stage of the pot, and of a thread that
//! dies in the middle of it.

use super::*;
use crate::lockfree::sync::AtomicPtr;
use crate::lockfree::sync::modelled::{Mistake, Proof, dying, explore, in_one_total_order};
use ::loom::thread::spawn;
use std::cell::Cell;

#[derive(Default)]
struct Shard {
    word: AtomicU64,
    hint: AtomicU32,
}

impl Shard {
    fn own(&self) -> Own<'_> {
        Own {
            word: &self.word,
            hint: &self.hint,
        }
    }

    /// It has seen this peak for so long that it opens the stage next.
    fn is_calm(&self, peak: u64) {
        self.hint.store(sight(peak) | CALM, Relaxed);
    }
}

fn words<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> impl Iterator<Item = &'a AtomicU64> {
    shards.into_iter().map(|shard| &shard.word)
}

#[derive(Default)]
struct Shared {
    pot: CentralCredit,
    shards: [Shard; 2],
}

impl Shared {
    /// In this stage, with `live` live, a peak of `peak`, and `credit` of the free tokens in the second shard.
    fn new(stage: Stage, live: u64, peak: u64, credit: u64) -> &'static Shared {
        let shared: &Shared = Box::leak(Box::default());
        shared.pot.minted.store(peak, Relaxed);
        let free = peak - live - credit;
        shared.pot.word.store(Word::new(0, stage, free).0, Relaxed);
        shared.shards[1]
            .word
            .store(Word::new(0, Stage::Open, credit).0, Relaxed);
        shared
    }

    fn shard(&'static self, shard: usize) -> Sum<'static, impl Fn() -> std::vec::IntoIter<&'static AtomicU64>> {
        Sum {
            pot: &self.pot,
            own: self.shards[shard].own(),
            shards: || words(&self.shards).collect::<Vec<_>>().into_iter(),
        }
    }

    fn live(&self) -> u64 {
        live(&self.pot, words(&self.shards))
    }
}

/// One thread takes and gives back, another takes: the peak is what it was in one order of the three or another.
fn the_peak_is_exact(stage: Stage, peak: u64, credit: u64, mine: u64, theirs: u64) {
    let shared = Shared::new(stage, 0, peak, credit);
    let other = spawn(move || shared.shard(1).take(theirs));
    shared.shard(0).take(mine);
    shared.shard(0).give(mine);
    other.join().unwrap();
    assert_eq!(shared.live(), theirs);
    let highest = shared.pot.peak();
    let possible = [mine.max(theirs).max(peak), (mine + theirs).max(peak)];
    assert!(possible.contains(&highest), "{highest}");
}

/// Both are live at the end, so that moment is the highest there was.
fn both_live(stage: Stage, peak: u64, credit: u64, mine: u64, theirs: u64) {
    let shared = Shared::new(stage, 0, peak, credit);
    let other = spawn(move || shared.shard(1).take(theirs));
    shared.shard(0).take(mine);
    other.join().unwrap();
    assert_eq!(shared.live(), mine + theirs);
    assert_eq!(shared.pot.peak(), peak.max(mine + theirs));
}

fn a_sum_that_only_grows_is_its_own_peak() {
    both_live(Stage::Shared, 0, 0, 3, 5);
}

fn in_an_open_stage_new_tokens_are_minted_only_when_no_shard_has_any() {
    both_live(Stage::Open, 4, 4, 3, 5);
}

fn tokens_in_the_pot_and_in_shards_are_all_used_before_any_is_minted() {
    both_live(Stage::Open, 8, 3, 3, 5);
}

fn the_peak_of_a_shared_pot_is_that_of_some_order() {
    the_peak_is_exact(Stage::Shared, 0, 0, 3, 5);
}

fn the_peak_of_an_open_pot_is_that_of_some_order() {
    the_peak_is_exact(Stage::Open, 4, 2, 3, 4);
}

/// One gives in its own shard while another, who has nothing, looks into all shards.
fn what_is_given_while_shards_freeze_is_not_lost() {
    let shared = Shared::new(Stage::Open, 6, 6, 0);
    let other = spawn(move || shared.shard(1).give(2));
    let minted = shared.shard(0).take(1);
    other.join().unwrap();
    assert_eq!(shared.live(), 5);
    assert_eq!(shared.pot.peak(), 6 + u64::from(minted));
}

/// Two help to freeze at once.
fn two_who_freeze_together_count_every_token_once() {
    let shared = Shared::new(Stage::Open, 6, 8, 2);
    let other = spawn(move || shared.shard(1).take(3));
    shared.shard(0).take(3);
    other.join().unwrap();
    assert_eq!(shared.live(), 12);
    assert_eq!(shared.pot.peak(), 12);
}

/// The stage opens (calm enough) while another event is under way.
fn a_pot_that_opens_meanwhile_loses_nothing() {
    let shared = Shared::new(Stage::Shared, 2, 6, 0);
    shared.shards[0].is_calm(6);
    let other = spawn(move || shared.shard(1).give(2));
    shared.shard(0).take(1);
    shared.shard(0).take(1);
    other.join().unwrap();
    assert_eq!(shared.live(), 2);
    assert_eq!(shared.pot.peak(), 6);
}

/// A thread is held up while it freezes. Meanwhile the round ends, the pot opens again, and a shard of the new round has
/// credit, which must not be frozen away.
fn a_late_freezer_leaves_the_next_rounds_shards_alone() {
    let shared = Shared::new(Stage::Freezing, 0, 10, 0);
    shared.shards[1].is_calm(10);
    let other = spawn(move || {
        shared.shard(1).take(2);
        shared.shard(1).give(1);
    });
    shared.shard(0).take(3);
    other.join().unwrap();
    assert_eq!(shared.live(), 4);
    assert_eq!(shared.pot.peak(), 10);
}

/// A shard comes into being while others freeze.
fn a_new_shard_is_seen_by_those_who_freeze_or_sees_them() {
    #[derive(Default)]
    struct Cells {
        pot: CentralCredit,
        rows: [Shard; 2],
        cells: [AtomicPtr<Shard>; 2],
    }
    fn shard(
        shared: &'static Cells,
        shard: usize,
    ) -> Sum<'static, impl Fn() -> std::vec::IntoIter<&'static AtomicU64>> {
        let row = &shared.rows[shard];
        let made = std::ptr::from_ref(row).cast_mut();
        let _ = shared.cells[shard].compare_exchange(std::ptr::null_mut(), made, SeqCst, SeqCst);
        Sum {
            pot: &shared.pot,
            own: row.own(),
            shards: || {
                // SAFETY: null, or one of the rows, which are never given back.
                let shards = shared
                    .cells
                    .iter()
                    .filter_map(|cell| unsafe { cell.load(SeqCst).as_ref() });
                words(shards).collect::<Vec<_>>().into_iter()
            },
        }
    }
    in_one_total_order();
    let shared: &Cells = Box::leak(Box::default());
    shared.pot.minted.store(6, Relaxed);
    shared.pot.word.store(Word::new(0, Stage::Open, 0).0, Relaxed);
    let other = spawn(|| shard(shared, 1).give(2));
    shard(shared, 0).take(1);
    other.join().unwrap();
    assert_eq!(live(&shared.pot, words(&shared.rows)), 5);
}

const PROOF: Proof = Proof {
    files: &["src/lockfree/peak.rs"],
    models: &[
        (
            "a sum that only grows is its own peak",
            a_sum_that_only_grows_is_its_own_peak,
        ),
        (
            "in an open stage new tokens are minted only when no shard has any",
            in_an_open_stage_new_tokens_are_minted_only_when_no_shard_has_any,
        ),
        (
            "tokens in the pot and in shards are all used before any is minted",
            tokens_in_the_pot_and_in_shards_are_all_used_before_any_is_minted,
        ),
        (
            "the peak of a shared pot is that of some order",
            the_peak_of_a_shared_pot_is_that_of_some_order,
        ),
        (
            "the peak of an open pot is that of some order",
            the_peak_of_an_open_pot_is_that_of_some_order,
        ),
        (
            "what is given while shards freeze is not lost",
            what_is_given_while_shards_freeze_is_not_lost,
        ),
        (
            "two who freeze together count every token once",
            two_who_freeze_together_count_every_token_once,
        ),
        (
            "a pot that opens meanwhile loses nothing",
            a_pot_that_opens_meanwhile_loses_nothing,
        ),
        (
            "a late freezer leaves the next round's shards alone",
            a_late_freezer_leaves_the_next_rounds_shards_alone,
        ),
        (
            "a new shard is seen by those who freeze, or sees them",
            a_new_shard_is_seen_by_those_who_freeze_or_sees_them,
        ),
    ],
    harmless: &[(
        Mistake::Relaxed,
        "if Word(self.pot.word.load(SeqCst)) != pot {",
        "as new as the shard: that follows from having acquired the shard",
    )],
};

#[test]
fn loom_the_peak_holds_and_every_mistake_in_it_is_noticed() {
    PROOF.check();
}

thread_local! {
    static AT: Cell<u32> = const { Cell::new(0) };
    static DIED: Cell<bool> = const { Cell::new(false) };
}

/// A thread dies anywhere in an event that freezes the shards: the others go on, and its event is counted or not.
#[test]
fn loom_a_thread_may_die_anywhere_while_it_freezes_the_shards() {
    for at in 0.. {
        AT.set(at);
        DIED.set(false);
        explore(
            || {
                let shared = Shared::new(Stage::Open, 6, 8, 2);
                let at = AT.get();
                let dead = spawn(move || dying(at, || shared.shard(1).take(3)).is_none());
                shared.shard(0).take(4);
                shared.shard(0).give(1);
                let dead = dead.join().unwrap();
                // Minting is a step of its own after the swap that takes effect: who dies between them leaves the
                // peak too low by what it would have minted.
                let (peak, live) = (shared.pot.peak(), shared.live());
                assert!(dead || live == 12, "{live}");
                assert!(dead || (12..=13).contains(&peak), "{peak}");
                DIED.set(DIED.get() || dead);
            },
            1,
        );
        if !DIED.get() {
            println!("{at} deaths");
            assert!(at > 5);
            return;
        }
    }
}
