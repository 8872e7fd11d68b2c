//! Where a process waits until `culeak run --why` has copied its memory: a part of the file of facts ([`crate::proof`]).
//!
//! ```text
//! the process                                  culeak run
//! Free ─► Waiting, rings the bell       ─────►  wakes up
//!             │  waits on its slot              Waiting ─► Copying, and copies
//!             │                                 Copying ─► Done, wakes the process
//! Free ◄──────┴─ Done
//! Left ◄──────── the limit, or `culeak run` is gone; it frees the slot
//! ```
//!
//! A slot is one word, so a process claims it in one step: no state is left behind by a process that dies in between. Several
//! processes wait at a time, each in its own slot; further ones wait for a free slot. A process that has none until its limit
//! adds itself to the number of those, and its pid to a list, which has room for a few. While `culeak run` serves, the area contains the id of its
//! thread, on the thread's list of robust futexes: the kernel marks it when the thread dies in any way. So a process sees that
//! `culeak run` is gone without its pid, which may be reused or not visible. Deliberately absent: any wait if `culeak run` was started without `--why`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use crate::numbered::numbered;

/// The most processes that wait for a copy at a time.
pub const SLOTS: usize = 64;
/// How many pids of processes that had no slot are kept.
const PIDS: usize = 16;
/// How often a waiting process looks whether `culeak run` is alive.
const LOOK_MS: u32 = 100;

/// The area in the file. All zeros: nothing is served.
#[repr(C)]
pub struct Holds {
    /// The id of the thread that serves, as a robust futex has it. 0 means that no thread serves.
    pub owner: AtomicU32,
    /// How long a process waits at most. 0 means that it does not wait.
    pub limit_ms: AtomicU32,
    /// Changes with each process that begins to wait.
    pub bell: AtomicU32,
    /// How many processes had no slot until their limit.
    without_slot: AtomicU32,
    slots: [Slot; SLOTS],
    /// The first ones of them. 0 means that the place is free.
    pids_without_slot: [AtomicU32; PIDS],
}

/// Offset of the slots.
pub const SLOTS_AT: usize = std::mem::offset_of!(Holds, slots);

const _: () = assert!(size_of::<Holds>() == 16 + 8 * SLOTS + 4 * PIDS && align_of::<Holds>() == 8);

/// `FUTEX_TID_MASK` and `FUTEX_OWNER_DIED`.
const OWNER: u32 = 0x3fff_ffff;
const OWNER_DIED: u32 = 0x4000_0000;

numbered! {
    /// When a process waits.
    pub enum Moment: u8 {
        /// The script or `main` has ended.
        End = 1,
        /// The program calls `_exit` or `quick_exit`.
        Exit = 2,
        /// A request failed for lack of memory; the number is that of the automatic snapshot.
        OutOfMemory = 3,
    }
}

numbered! {
    pub enum State: u8 {
        Free = 0,
        Waiting = 1,
        Copying = 2,
        Done = 3,
        /// The process went on before its memory was copied.
        Left = 4,
    }
}

/// A process that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// In the process's own namespace.
    pub pid: u32,
    pub moment: Moment,
    pub number: u16,
}

/// `pid << 32 | number << 16 | moment << 8 | state`; 0 if it is free.
#[repr(transparent)]
pub struct Slot(AtomicU64);

impl Holds {
    /// Whether `culeak run` serves, and has not died.
    pub fn is_served(&self) -> bool {
        let owner = self.owner.load(Relaxed);
        self.limit_ms.load(Relaxed) > 0 && owner & OWNER != 0 && owner & OWNER_DIED == 0
    }

    /// Waits until the process's memory is copied, or the limit has passed, or nothing is served any more.
    pub fn wait(&self, waiting: Waiting, now_ns: impl Fn() -> u64) {
        let limit = u64::from(self.limit_ms.load(Relaxed)) * 1_000_000;
        let began = now_ns();
        let is_over = || now_ns().saturating_sub(began) >= limit || !self.is_served();
        loop {
            let bell = self.bell.load(Acquire);
            if let Some(slot) = self.claim(waiting) {
                return slot.wait_until_copied(waiting, is_over);
            }
            if is_over() {
                return self.go_without_slot(waiting.pid);
            }
            // A slot that becomes free rings no bell.
            pause(&self.bell, bell, LOOK_MS);
        }
    }

    /// Claims a slot and rings the bell. `None` if all are taken.
    pub fn claim(&self, waiting: Waiting) -> Option<&Slot> {
        let word = pack(waiting, State::Waiting);
        // Release: pairs with the Acquire in `Slot::read`, so what the process wrote before is in its memory.
        let claims = |slot: &&Slot| slot.0.compare_exchange(0, word, Release, Relaxed).is_ok();
        let slot = self.slots.iter().find(claims)?;
        self.bell.fetch_add(1, Release);
        wake(&self.bell);
        Some(slot)
    }

    fn go_without_slot(&self, pid: u32) {
        let is_stored = |place: &AtomicU32| place.compare_exchange(0, pid, Relaxed, Relaxed).is_ok();
        self.pids_without_slot.iter().any(is_stored);
        // Release: pairs with the Acquire in `without_slot`, so the pid is there.
        self.without_slot.fetch_add(1, Release);
    }

    /// How many processes had no slot until their limit, and the first of their pids.
    pub fn without_slot(&self) -> (u32, Vec<u32>) {
        // Acquire: pairs with the Release in `go_without_slot`.
        let count = self.without_slot.load(Acquire);
        let pids = self.pids_without_slot.iter().map(|pid| pid.load(Relaxed));
        (count, pids.filter(|&pid| pid != 0).collect())
    }

    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

impl Slot {
    /// `None` if the slot is free.
    pub fn read(&self) -> Option<(Waiting, State)> {
        // Acquire: pairs with the Release in `Holds::claim`.
        unpack(self.0.load(Acquire))
    }

    /// Changes the state. False if it is another one meanwhile.
    pub fn change(&self, waiting: Waiting, from: State, to: State) -> bool {
        let after = if to == State::Free { 0 } else { pack(waiting, to) };
        // Release: pairs with the Acquire in `read`: a process that sees `Done` does so after its memory was copied.
        let changed = self
            .0
            .compare_exchange(pack(waiting, from), after, AcqRel, Acquire)
            .is_ok();
        if changed {
            wake(self.low());
        }
        changed
    }

    /// Waits until the process's memory is copied, or `is_over`, and gives the slot back. Ends at once if another process has
    /// the slot: `culeak run` frees the slot of a process that it does not find, and then any process may claim it.
    pub fn wait_until_copied(&self, waiting: Waiting, is_over: impl Fn() -> bool) {
        while let Some((who, state)) = self.read()
            && who == waiting
            && state != State::Left
        {
            if state == State::Done || is_over() {
                return self.leave(waiting);
            }
            self.pause(waiting, state, LOOK_MS);
        }
    }

    /// The process goes on. The states only follow each other in this order, so one of the changes succeeds as long as the
    /// process has the slot.
    fn leave(&self, waiting: Waiting) {
        use State::*;
        for (from, to) in [(Waiting, Left), (Copying, Left), (Done, Free)] {
            if self.change(waiting, from, to) {
                return;
            }
        }
    }

    /// Waits until the state has changed, or for this time, or for a signal.
    pub fn pause(&self, waiting: Waiting, state: State, milliseconds: u32) {
        pause(self.low(), pack(waiting, state) as u32, milliseconds);
    }

    /// The half with the state, on which the kernel waits.
    fn low(&self) -> &AtomicU32 {
        const { assert!(cfg!(target_endian = "little")) };
        // SAFETY: the first half of a word that is accessed atomically only; the kernel reads this half.
        unsafe { AtomicU32::from_ptr(self.0.as_ptr().cast()) }
    }
}

fn pack(waiting: Waiting, state: State) -> u64 {
    u64::from(waiting.pid) << 32
        | u64::from(waiting.number) << 16
        | u64::from(waiting.moment as u8) << 8
        | u64::from(state as u8)
}

/// `None` for 0, and for a word that no process of this version writes.
fn unpack(word: u64) -> Option<(Waiting, State)> {
    let state = State::from_number(word as u8).filter(|&state| state != State::Free)?;
    let moment = Moment::from_number((word >> 8) as u8)?;
    let waiting = Waiting {
        pid: (word >> 32) as u32,
        moment,
        number: (word >> 16) as u16,
    };
    Some((waiting, state))
}

/// Waits until the word changes, or for this time, or for a signal.
pub fn pause(word: &AtomicU32, seen: u32, milliseconds: u32) {
    let limit = libc::timespec {
        tv_sec: (milliseconds / 1000).into(),
        tv_nsec: (milliseconds % 1000 * 1_000_000).into(),
    };
    // SAFETY: a valid word and time; the kernel only reads them.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit) };
}

/// Wakes everything that waits on the word.
pub fn wake(word: &AtomicU32) {
    // SAFETY: a valid address, by which the kernel finds the waiting threads.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> Box<Holds> {
        // SAFETY: integers: all zeros is a value.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    const WHO: Waiting = Waiting {
        pid: 4_194_303,
        moment: Moment::OutOfMemory,
        number: 1000,
    };

    #[test]
    fn a_slot_states_who_waits_and_why() {
        let holds = area();
        let slot = holds.claim(WHO).expect("a free slot");
        assert_eq!(slot.read(), Some((WHO, State::Waiting)));
        assert_eq!(holds.bell.load(Relaxed), 1);
        assert!(slot.change(WHO, State::Waiting, State::Copying));
        assert!(!slot.change(WHO, State::Waiting, State::Left), "it is being copied");
        assert!(slot.change(WHO, State::Copying, State::Done) && slot.change(WHO, State::Done, State::Free));
        assert_eq!(slot.read(), None);
    }

    #[test]
    fn a_slot_is_claimed_by_one_process() {
        let holds = area();
        for pid in 1..=SLOTS as u32 {
            assert!(holds.claim(Waiting { pid, ..WHO }).is_some());
        }
        assert!(holds.claim(WHO).is_none());
    }

    /// A clock on which each look takes 4 s, so that no test waits for a limit.
    fn clock() -> impl Fn() -> u64 {
        let looks = std::cell::Cell::new(0);
        move || {
            looks.set(looks.get() + 1);
            looks.get() * 4_000_000_000
        }
    }

    fn served(limit_ms: u32) -> Box<Holds> {
        let holds = area();
        holds.limit_ms.store(limit_ms, Relaxed);
        holds.owner.store(77, Relaxed);
        holds
    }

    #[test]
    fn a_process_whose_memory_is_never_copied_goes_on_after_the_limit() {
        let holds = served(10_000);
        holds.wait(WHO, clock());
        assert_eq!(holds.slots[0].read(), Some((WHO, State::Left)));
        assert_eq!(holds.without_slot(), (0, Vec::new()));
    }

    #[test]
    fn a_process_goes_on_as_soon_as_nothing_is_served() {
        let holds = served(u32::MAX);
        holds.owner.fetch_or(OWNER_DIED, Relaxed);
        holds.wait(WHO, || 0);
        assert_eq!(holds.slots[0].read(), Some((WHO, State::Left)));
    }

    #[test]
    fn processes_that_find_no_slot_wait_for_one() {
        let holds = served(u32::MAX);
        for pid in 1..=SLOTS as u32 {
            assert!(holds.claim(Waiting { pid, ..WHO }).is_some());
        }
        let first = Waiting { pid: 1, ..WHO };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| holds.wait(WHO, || 0));
            assert!(holds.slots[0].change(first, State::Waiting, State::Left));
            assert!(holds.slots[0].change(first, State::Left, State::Free));
            while !holds.slots[0].change(WHO, State::Waiting, State::Copying) {
                std::thread::yield_now();
            }
            assert!(holds.slots[0].change(WHO, State::Copying, State::Done));
            waits.join().expect("it goes on");
        });
        assert_eq!(holds.slots[0].read(), None);
        assert_eq!(holds.without_slot(), (0, Vec::new()));
    }

    #[test]
    fn processes_without_a_slot_go_on_after_the_limit_and_are_counted() {
        let holds = served(10_000);
        for pid in 1..=SLOTS as u32 {
            assert!(holds.claim(Waiting { pid, ..WHO }).is_some());
        }
        for pid in 1000..1020 {
            holds.wait(Waiting { pid, ..WHO }, clock());
        }
        assert_eq!(holds.without_slot(), (20, (1000..1016).collect()));
    }

    #[test]
    fn nothing_is_served_without_an_owner_or_after_its_death() {
        let holds = area();
        assert!(!holds.is_served());
        holds.limit_ms.store(10_000, Relaxed);
        assert!(!holds.is_served(), "no owner");
        holds.owner.store(77, Relaxed);
        assert!(holds.is_served());
        holds.owner.store(77 | OWNER_DIED, Relaxed);
        assert!(!holds.is_served(), "the owner has died");
    }

    #[test]
    fn a_process_whose_slot_another_one_has_goes_on() {
        let holds = area();
        let slot = holds.claim(WHO).expect("a free slot");
        assert!(slot.change(WHO, State::Waiting, State::Copying) && slot.change(WHO, State::Copying, State::Done));
        // `culeak run` does not find the process and frees its slot, which another process claims.
        assert!(slot.change(WHO, State::Done, State::Free));
        let other = Waiting { pid: 7, ..WHO };
        let claimed = holds.claim(other).expect("a free slot");
        assert!(std::ptr::eq(slot, claimed));
        let steps = [State::Waiting, State::Copying, State::Done];
        for (nth, &state) in steps.iter().enumerate() {
            slot.wait_until_copied(WHO, || panic!("it waits for another process's copy"));
            assert_eq!(slot.read(), Some((other, state)), "the slot is the other process's");
            assert!(slot.change(other, state, *steps.get(nth + 1).unwrap_or(&State::Free)));
        }
        slot.wait_until_copied(WHO, || panic!("it waits on a free slot"));
    }

    #[test]
    fn after_the_limit_a_process_goes_on_in_every_state() {
        use State::*;
        for (state, after) in [
            (Waiting, Some(Left)),
            (Copying, Some(Left)),
            (Done, None),
            (Left, Some(Left)),
        ] {
            let holds = area();
            let slot = holds.claim(WHO).expect("a free slot");
            assert!(state == Waiting || slot.change(WHO, Waiting, state));
            slot.wait_until_copied(WHO, || true);
            assert_eq!(slot.read(), after.map(|after| (WHO, after)), "from {state:?}");
        }
    }

    #[test]
    fn a_state_that_changes_while_the_limit_passes_is_left_too() {
        use State::*;
        let holds = area();
        let slot = holds.claim(WHO).expect("a free slot");
        // Between the read and the change, the copy begins and ends.
        slot.wait_until_copied(WHO, || {
            slot.change(WHO, Waiting, Copying) && slot.change(WHO, Copying, Done)
        });
        assert_eq!(slot.read(), None);
    }

    #[test]
    fn a_damaged_word_is_a_free_slot() {
        for word in [5, 0x0101_0101_0101_0900, u64::MAX, 1, 0x0405] {
            assert_eq!(unpack(word), None, "{word:x}");
        }
    }
}
