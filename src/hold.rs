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
//! processes wait at a time, each in its own slot. While `culeak run` serves, the area contains the id of its
//! thread, on the thread's list of robust futexes: the kernel marks it when the thread dies in any way. So a process sees that
//! `culeak run` is gone without its pid, which may be reused or not visible. Deliberately absent: any wait if `culeak run` was started without `--why`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The most processes that wait at a time; others go on at once.
pub const SLOTS: usize = 64;
/// How often a waiting process looks whether `culeak run` is alive.
const LOOK_MS: u32 = 100;

/// The area in the file. All zeros: nothing is served.
#[repr(C)]
pub struct Holds {
    /// The id of the thread that serves, as a robust futex has it; 0: none.
    pub owner: AtomicU32,
    /// How long a process waits at most; 0: it does not wait.
    pub limit_ms: AtomicU32,
    /// Changes with each process that begins to wait.
    pub bell: AtomicU32,
    unused: u32,
    slots: [Slot; SLOTS],
}

const _: () = assert!(size_of::<Holds>() == 16 + 8 * SLOTS && align_of::<Holds>() == 8);

/// `FUTEX_TID_MASK` and `FUTEX_OWNER_DIED`.
const OWNER: u32 = 0x3fff_ffff;
const OWNER_DIED: u32 = 0x4000_0000;

/// When a process waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Moment {
    /// The script or `main` has ended.
    End = 1,
    /// The program calls `_exit`.
    Exit = 2,
    /// A request failed for lack of memory; the number is that of the automatic snapshot.
    OutOfMemory = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    Free = 0,
    Waiting = 1,
    Copying = 2,
    Done = 3,
    /// The process went on before its memory was copied.
    Left = 4,
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

    /// Claims a slot and rings the bell. `None` if all are taken.
    pub fn wait(&self, waiting: Waiting) -> Option<&Slot> {
        let word = pack(waiting, State::Waiting);
        // Release: pairs with the Acquire in `Slot::read`, so what the process wrote before is in its memory.
        let claims = |slot: &&Slot| slot.0.compare_exchange(0, word, Release, Relaxed).is_ok();
        let slot = self.slots.iter().find(claims)?;
        self.bell.fetch_add(1, Release);
        wake(&self.bell);
        Some(slot)
    }

    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

impl Slot {
    /// `None` if the slot is free.
    pub fn read(&self) -> Option<(Waiting, State)> {
        // Acquire: pairs with the Release in `Holds::wait`.
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
    let state = match word as u8 {
        1 => State::Waiting,
        2 => State::Copying,
        3 => State::Done,
        4 => State::Left,
        _ => return None,
    };
    let moment = match (word >> 8) as u8 {
        1 => Moment::End,
        2 => Moment::Exit,
        3 => Moment::OutOfMemory,
        _ => return None,
    };
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
        let slot = holds.wait(WHO).expect("a free slot");
        assert_eq!(slot.read(), Some((WHO, State::Waiting)));
        assert_eq!(holds.bell.load(Relaxed), 1);
        assert!(slot.change(WHO, State::Waiting, State::Copying));
        assert!(!slot.change(WHO, State::Waiting, State::Left), "it is being copied");
        assert!(slot.change(WHO, State::Copying, State::Done) && slot.change(WHO, State::Done, State::Free));
        assert_eq!(slot.read(), None);
    }

    #[test]
    fn the_process_that_finds_no_slot_does_not_wait() {
        let holds = area();
        for pid in 1..=SLOTS as u32 {
            assert!(holds.wait(Waiting { pid, ..WHO }).is_some());
        }
        assert!(holds.wait(WHO).is_none());
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
        let slot = holds.wait(WHO).expect("a free slot");
        assert!(slot.change(WHO, State::Waiting, State::Copying) && slot.change(WHO, State::Copying, State::Done));
        // `culeak run` does not find the process and frees its slot, which another process claims.
        assert!(slot.change(WHO, State::Done, State::Free));
        let other = Waiting { pid: 7, ..WHO };
        let claimed = holds.wait(other).expect("a free slot");
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
            let slot = holds.wait(WHO).expect("a free slot");
            assert!(state == Waiting || slot.change(WHO, Waiting, state));
            slot.wait_until_copied(WHO, || true);
            assert_eq!(slot.read(), after.map(|after| (WHO, after)), "from {state:?}");
        }
    }

    #[test]
    fn a_state_that_changes_while_the_limit_passes_is_left_too() {
        use State::*;
        let holds = area();
        let slot = holds.wait(WHO).expect("a free slot");
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
