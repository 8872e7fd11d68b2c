//! Every interleaving of two or three threads that change a sum, from each stage; and of a thread that dies in the middle
//! of a change.

use super::*;
use crate::lockfree::sync::AtomicPtr;
use crate::lockfree::sync::modelled::{Mistake, Proof, dying, explore, in_one_total_order, models};
use ::loom::thread::spawn;
use std::cell::Cell;

#[derive(Default)]
struct Shard {
    word: AtomicU64,
    hint: AtomicU32,
}

impl Shard {
    fn local(&self) -> LocalCredit<'_> {
        LocalCredit {
            word: &self.word,
            hint: &self.hint,
        }
    }

    /// Its next event opens the stage.
    fn is_calm(&self, peak: u64) {
        self.hint.store(digest(peak) | CALM, Relaxed);
    }
}

fn words<'a>(shards: impl IntoIterator<Item = &'a Shard>) -> impl Iterator<Item = &'a AtomicU64> {
    shards.into_iter().map(|shard| &shard.word)
}

#[derive(Default)]
struct Shared {
    central: CentralCredit,
    shards: [Shard; 2],
}

impl Shared {
    /// In this stage, with `live` live, a peak of `peak`, and `credit` of the unused credit in the second shard.
    fn new(stage: Stage, live: u64, peak: u64, credit: u64) -> &'static Shared {
        let shared: &Shared = Box::leak(Box::default());
        shared.central.issued.store(peak, Relaxed);
        let free = peak - live - credit;
        shared.central.word.store(Word::new(0, stage, free).0, Relaxed);
        shared.shards[1]
            .word
            .store(Word::new(0, Stage::Open, credit).0, Relaxed);
        shared
    }

    fn shard(&'static self, shard: usize) -> Sum<'static, impl Fn() -> std::vec::IntoIter<&'static AtomicU64> + Copy> {
        Sum {
            central: &self.central,
            local: self.shards[shard].local(),
            shards: || words(&self.shards).collect::<Vec<_>>().into_iter(),
        }
    }

    fn live(&self) -> u64 {
        live(&self.central, words(&self.shards))
    }
}

/// One thread grows and shrinks the sum, another grows it: the peak is that of some order of the three events.
fn the_peak_is_exact(stage: Stage, peak: u64, credit: u64, mine: u64, theirs: u64) {
    let shared = Shared::new(stage, 0, peak, credit);
    let other = spawn(move || shared.shard(1).grow(theirs));
    shared.shard(0).grow(mine);
    shared.shard(0).shrink(mine);
    other.join().unwrap();
    assert_eq!(shared.live(), theirs);
    let highest = shared.central.peak();
    let possible = [mine.max(theirs).max(peak), (mine + theirs).max(peak)];
    assert!(possible.contains(&highest), "{highest}");
}

/// Both are live at the end, so the sum is highest there.
fn both_live(stage: Stage, peak: u64, credit: u64, mine: u64, theirs: u64) {
    let shared = Shared::new(stage, 0, peak, credit);
    let other = spawn(move || shared.shard(1).grow(theirs));
    shared.shard(0).grow(mine);
    other.join().unwrap();
    assert_eq!(shared.live(), mine + theirs);
    assert_eq!(shared.central.peak(), peak.max(mine + theirs));
}

fn a_sum_that_only_grows_is_its_own_peak() {
    both_live(Stage::Shared, 0, 0, 3, 5);
}

fn in_an_open_stage_credit_is_issued_only_when_no_shard_has_any() {
    both_live(Stage::Open, 4, 4, 3, 5);
}

fn central_and_local_credit_is_used_up_before_any_is_issued() {
    both_live(Stage::Open, 8, 3, 3, 5);
}

fn the_peak_of_a_shared_stage_is_that_of_some_order() {
    the_peak_is_exact(Stage::Shared, 0, 0, 3, 5);
}

fn the_peak_of_an_open_stage_is_that_of_some_order() {
    the_peak_is_exact(Stage::Open, 4, 2, 3, 4);
}

/// One thread returns credit in its shard while another thread, which has none, reads all shards.
fn credit_returned_while_shards_freeze_is_not_lost() {
    let shared = Shared::new(Stage::Open, 6, 6, 0);
    let other = spawn(move || shared.shard(1).shrink(2));
    let issued = shared.shard(0).grow(1);
    other.join().unwrap();
    assert_eq!(shared.live(), 5);
    assert_eq!(shared.central.peak(), 6 + u64::from(issued));
}

/// Two threads freeze at once.
fn two_threads_that_freeze_together_count_all_credit_once() {
    let shared = Shared::new(Stage::Open, 6, 8, 2);
    let other = spawn(move || shared.shard(1).grow(3));
    shared.shard(0).grow(3);
    other.join().unwrap();
    assert_eq!(shared.live(), 12);
    assert_eq!(shared.central.peak(), 12);
}

/// The stage opens while another event is under way.
fn a_stage_that_opens_meanwhile_loses_nothing() {
    let shared = Shared::new(Stage::Shared, 2, 6, 0);
    shared.shards[0].is_calm(6);
    let other = spawn(move || shared.shard(1).shrink(2));
    shared.shard(0).grow(1);
    shared.shard(0).grow(1);
    other.join().unwrap();
    assert_eq!(shared.live(), 2);
    assert_eq!(shared.central.peak(), 6);
}

/// A thread is stopped while it freezes. Meanwhile the round ends, the stage opens again, and a shard of the new round has
/// credit, which must not be frozen.
fn a_late_freezer_leaves_shards_of_the_next_round_alone() {
    let shared = Shared::new(Stage::Freezing, 0, 10, 0);
    shared.shards[1].is_calm(10);
    let other = spawn(move || {
        shared.shard(1).grow(2);
        shared.shard(1).shrink(1);
    });
    shared.shard(0).grow(3);
    other.join().unwrap();
    assert_eq!(shared.live(), 4);
    assert_eq!(shared.central.peak(), 10);
}

/// A shard is created while others freeze.
fn a_new_shard_is_visible_to_freezing_threads_or_sees_the_stage() {
    #[derive(Default)]
    struct Cells {
        central: CentralCredit,
        rows: [Shard; 2],
        cells: [AtomicPtr<Shard>; 2],
    }
    fn shard(
        shared: &'static Cells,
        shard: usize,
    ) -> Sum<'static, impl Fn() -> std::vec::IntoIter<&'static AtomicU64> + Copy> {
        let row = &shared.rows[shard];
        let made = std::ptr::from_ref(row).cast_mut();
        let _ = shared.cells[shard].compare_exchange(std::ptr::null_mut(), made, SeqCst, SeqCst);
        Sum {
            central: &shared.central,
            local: row.local(),
            shards: || {
                // SAFETY: null, or one of the rows, which are leaked.
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
    shared.central.issued.store(6, Relaxed);
    shared.central.word.store(Word::new(0, Stage::Open, 0).0, Relaxed);
    let other = spawn(|| shard(shared, 1).shrink(2));
    shard(shared, 0).grow(1);
    other.join().unwrap();
    assert_eq!(live(&shared.central, words(&shared.rows)), 5);
}

/// As a caller that tries its own word alone first.
fn alone(shared: &'static Shared, shard: usize, amount: u64, grows: bool) {
    let sum = shared.shard(shard);
    if !sum.local.change_alone(amount, grows) {
        sum.change(amount, grows);
    }
}

/// A thread changes nothing but its own word while another one, which lacks credit, reads all shards.
fn credit_that_a_shard_takes_alone_while_others_freeze_is_not_counted() {
    let shared = Shared::new(Stage::Open, 4, 6, 2);
    let other = spawn(move || alone(shared, 1, 2, true));
    shared.shard(0).grow(1);
    other.join().unwrap();
    assert_eq!(shared.live(), 7);
    assert_eq!(shared.central.peak(), 7);
}

fn credit_that_a_shard_returns_alone_while_others_freeze_is_not_lost() {
    let shared = Shared::new(Stage::Open, 6, 6, 0);
    let other = spawn(move || alone(shared, 1, 2, false));
    let issued = shared.shard(0).grow(1);
    other.join().unwrap();
    assert_eq!(shared.live(), 5);
    assert_eq!(shared.central.peak(), 6 + u64::from(issued));
}

const PROOF: Proof = Proof {
    files: &["src/lockfree/peak.rs"],
    models: models![
        a_sum_that_only_grows_is_its_own_peak,
        in_an_open_stage_credit_is_issued_only_when_no_shard_has_any,
        central_and_local_credit_is_used_up_before_any_is_issued,
        the_peak_of_a_shared_stage_is_that_of_some_order,
        the_peak_of_an_open_stage_is_that_of_some_order,
        credit_returned_while_shards_freeze_is_not_lost,
        two_threads_that_freeze_together_count_all_credit_once,
        a_stage_that_opens_meanwhile_loses_nothing,
        a_late_freezer_leaves_shards_of_the_next_round_alone,
        a_new_shard_is_visible_to_freezing_threads_or_sees_the_stage,
        credit_that_a_shard_takes_alone_while_others_freeze_is_not_counted,
        credit_that_a_shard_returns_alone_while_others_freeze_is_not_lost,
    ],
    harmless: &[(
        Mistake::Relaxed,
        "if Word(self.central.word.load(SeqCst)) != central {",
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

/// A thread dies anywhere in an event that freezes the shards: the others continue, and its event is counted or not.
#[test]
fn loom_a_thread_may_die_anywhere_while_it_freezes_the_shards() {
    for at in 0.. {
        AT.set(at);
        DIED.set(false);
        explore(
            || {
                let shared = Shared::new(Stage::Open, 6, 8, 2);
                let at = AT.get();
                let dead = spawn(move || dying(at, || shared.shard(1).grow(3)).is_none());
                shared.shard(0).grow(4);
                shared.shard(0).shrink(1);
                let dead = dead.join().unwrap();
                // A thread that dies between the swap that takes effect and issuing leaves both too low by 1 to 3.
                let (peak, live) = (shared.central.peak(), shared.live());
                assert!(if dead { (9..=12).contains(&live) } else { live == 12 }, "{live}");
                assert!((if dead { 10 } else { 12 }..=13).contains(&peak), "{peak}");
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
