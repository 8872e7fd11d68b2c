//! Stacks made of words, which change at random, in place too: whatever is found is what a walk finds.

use std::collections::HashMap;

use super::*;
use crate::rule::{AT_FRAME, Packed, Rule};

const CODE: u64 = 0x5000_0000;
const PCS: u64 = 60;
/// The words of a stack.
const ROOM: usize = 160;

fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6364136223846793005)
        .wrapping_add(1442695040888963407);
    *state >> 33
}

/// Each code address has one of these.
fn rule_of(pc: u64) -> Rule {
    let rule = |base, offset, fp| Rule::Frame {
        base,
        offset,
        ra: 1,
        fp,
    };
    let number = (pc - CODE) / 16;
    match number % 6 {
        0 => Rule::Root,
        1 => rule(Base::Stack, 16 + 8 * (number as i64 % 5), 0),
        2 | 3 => rule(Base::Stack, 24 + 8 * (number as i64 % 3), 2),
        4 => rule(Base::Frame, 16, 2),
        _ => rule(Base::Saved, -8, AT_FRAME),
    }
}

fn is_known_code(pc: u64) -> bool {
    (CODE..CODE + PCS * 16).contains(&pc) && pc.is_multiple_of(16)
}

#[derive(Clone)]
struct Stack {
    words: [u64; ROOM],
    pc: u64,
    /// Places in `words`, as everything that points into the stack is until it is copied there.
    sp: usize,
    fp: u64,
}

/// Where all stacks lie in turn.
struct Place(Box<[u64; ROOM]>);

impl Place {
    fn base(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    fn top(&self) -> u64 {
        self.base() + 8 * ROOM as u64
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            low: self.base(),
            top: self.top(),
        }
    }

    fn start(&self, stack: &Stack) -> Registers {
        Registers {
            rip: stack.pc,
            rsp: self.base() + 8 * stack.sp as u64,
            rbp: stack.fp,
        }
    }

    /// Makes a random stack, frame by frame outwards.
    fn make(&self, state: &mut u64) -> Stack {
        let at = |place: usize| self.base() + 8 * place as u64;
        let mut words = [0; ROOM];
        for word in &mut words {
            *word = [at(random(state) as usize % ROOM), random(state)][random(state) as usize % 2];
        }
        // The red zone is below.
        let start = 20 + random(state) as usize % 3;
        let first = CODE + 16 * (1 + random(state) % (PCS - 1));
        let mut start_fp = random(state);
        // Where the value of the frame pointer can still be chosen: a word, or None for the register.
        let mut open: Option<Option<usize>> = Some(None);
        let (mut pc, mut sp, mut fp) = (first, start, 0);
        loop {
            let mut wanted = None;
            let cfa = match rule_of(pc) {
                Rule::Frame {
                    base: Base::Stack,
                    offset,
                    ..
                } => sp + offset as usize / 8,
                Rule::Frame { base: Base::Frame, .. } => {
                    wanted = Some(sp + random(state) as usize % 4);
                    wanted.unwrap() + 2
                }
                Rule::Frame { base: Base::Saved, .. } => {
                    wanted = Some(sp + 1 + random(state) as usize % 3);
                    wanted.unwrap() + 2 + random(state) as usize % 3
                }
                _ => break,
            };
            if cfa >= ROOM - 8 {
                break;
            }
            if let Some(wanted) = wanted {
                match open.take() {
                    Some(Some(word)) => words[word] = at(wanted),
                    Some(None) => start_fp = at(wanted),
                    // It has a value; the walk ends here unless that is the right one.
                    None if fp != wanted => break,
                    None => {}
                }
                fp = wanted;
            }
            match rule_of(pc) {
                Rule::Frame { base: Base::Saved, .. } => {
                    words[fp - 1] = at(cfa);
                    open = Some(Some(fp));
                }
                Rule::Frame { fp: 2, .. } => open = Some(Some(cfa - 2)),
                _ => {}
            }
            let mut next = CODE + 16 * (random(state) % PCS);
            if random(state).is_multiple_of(6) {
                next = CODE;
            }
            words[cfa - 1] = next;
            (pc, sp) = (next, cfa);
        }
        Stack {
            words,
            pc: first,
            sp: start,
            fp: start_fp,
        }
    }

    /// The walk by the rules alone; `None` if it does not reach the root.
    fn walk(&self, stack: &Stack) -> Option<Vec<u64>> {
        let mut at = Cursor::at(self.start(stack));
        let mut addresses = vec![];
        while at.pc != 0 {
            addresses.push(at.pc);
            if !is_known_code(at.pc) {
                return None;
            }
            match Packed::of(rule_of(at.pc)).unwrap() {
                root if root.is_root() => break,
                rule => at.step(rule, self.bounds()).then_some(())?,
            }
        }
        Some(addresses)
    }
}

fn insert_rules() {
    for number in 0..PCS {
        let pc = CODE + 16 * number;
        TABLE.insert(pc - 1, Packed::of(rule_of(pc)).unwrap(), TABLE.ticket());
    }
}

/// Plays `rounds` rounds with `kept` stacks. Returns how often a stack was found, found after a change, walked, and
/// walked and found by its value.
fn play(rounds: u64, kept: usize, seed: u64) -> [u64; 4] {
    let sets = ReadSets::new();
    let mut place = Place(Box::new([0; ROOM]));
    let mut state = seed;
    let mut stacks: Vec<Stack> = vec![];
    let mut numbers = HashMap::new();
    let mut counts = [0; 4];
    let mut epoch = 1;
    for round in 0..rounds {
        // Other tests of this process void the table.
        if round % 64 == 0 {
            insert_rules();
        }
        if round % 5000 == 4999 {
            epoch += 1;
        }
        let which = random(&mut state) as usize % kept;
        if which >= stacks.len() {
            stacks.push(place.make(&mut state));
        }
        let which = which.min(stacks.len() - 1);
        let mut stack = stacks[which].clone();
        let is_changed = random(&mut state).is_multiple_of(2);
        if is_changed {
            match random(&mut state) % 12 {
                0 => stack.fp = random(&mut state),
                1 => stack.fp += 8,
                2 => stack.pc = CODE + 16 * (random(&mut state) % PCS),
                _ => {
                    let word = stack.sp + random(&mut state) as usize % (ROOM - stack.sp);
                    stack.words[word] = match random(&mut state) % 4 {
                        0 => random(&mut state),
                        1 => CODE + 16 * (random(&mut state) % PCS),
                        2 => stack.words[word] ^ 1 << 63,
                        _ => stack.words[word].wrapping_add(8),
                    };
                }
            }
        }
        if random(&mut state).is_multiple_of(200) {
            stacks[which] = stack.clone();
        }
        *place.0 = stack.words;
        let key = random(&mut state) % 2;
        let expected = place.walk(&stack).map(|addresses| {
            let next = numbers.len() as u32;
            *numbers.entry((addresses, key)).or_insert(next)
        });
        let start = place.start(&stack);
        let mut taken = sets.take().unwrap();
        match taken
            .state()
            .find(start, place.top(), epoch, |beside| beside == key as u32 + 1, || key)
        {
            Some(found) => {
                assert_eq!(Some(found), expected, "round {round} of {seed}");
                counts[usize::from(is_changed)] += 1;
                assert_eq!(
                    taken.state().find(start, place.top() + 8, epoch, |_| true, || key),
                    None
                );
            }
            None => {
                if let Some(value) = expected
                    && taken.state().found_again(start, key, place.top(), epoch, value)
                {
                    counts[3] += 1;
                    continue;
                }
                let mut addresses = vec![];
                let walked = taken.state().walk(start, place.bounds(), epoch, |pc| {
                    addresses.push(pc);
                    true
                });
                if let Some(head) = walked {
                    let value = numbers[&(addresses, key)];
                    assert_eq!(Some(value), expected, "round {round} of {seed}");
                    let beside = if random(&mut state).is_multiple_of(4) {
                        0
                    } else {
                        key as u32 + 1
                    };
                    taken.state().insert(Head {
                        key,
                        value,
                        beside,
                        ..head
                    });
                }
                counts[2] += 1;
            }
        }
    }
    // SAFETY: mapped by these read sets, which end here.
    unsafe { libc::munmap((*sets.state.get()).ring.cast(), size_of::<Ring>()) };
    counts
}

#[test]
fn whatever_is_found_is_what_a_walk_finds() {
    let (rounds, plays) = if cfg!(miri) { (150, 1) } else { (100_000, 8) };
    for seed in 0..plays {
        let counts = play(rounds, if seed % 2 == 0 { 40 } else { 300 }, seed);
        let [found, after_a_change, walked, again] = counts;
        // Junk in words that no rule uses is no change; all other changes lead to a walk.
        assert!(
            found * 20 > rounds && after_a_change * 100 > rounds && (walked + again) * 100 > rounds,
            "{counts:?}"
        );
    }
}

/// The ring holds fewer than these, and each of its places is used again and again.
#[test]
#[cfg_attr(miri, ignore = "fills half a megabyte several times")]
fn more_stacks_than_fit_are_found_or_walked_but_never_mistaken() {
    let [found, after_a_change, walked, _] = play(400_000, 20_000, 77);
    assert!(
        found + after_a_change > 5_000 && walked > 100_000,
        "{found} {after_a_change} {walked}"
    );
}
