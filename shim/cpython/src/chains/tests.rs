//! Chains in synthetic memory, whose words change at random, in place too: frames that hold are those that a walk finds.

use super::*;
use crate::chain::tests::{THREAD, WORDS, intact, interpreter, random};
use crate::chain::{End, Seen, walk};
use crate::layout::{self, Layout};

/// Depths of at most 100 frames are walked.
fn walked(interpreter: &Interpreter) -> (Vec<Seen>, End) {
    let mut seen = Vec::new();
    let end = walk(interpreter, 100, |what| seen.push(what));
    (seen, end)
}

fn layouts(has_versions: bool) -> impl Iterator<Item = Layout> {
    let all = layout::LAYOUTS.iter().copied();
    all.filter(move |layout| (layout.code.version != 0) == has_versions)
}

/// Makes another chain of some frames in the same place: code objects, instructions and frames that run no code are random.
fn make(memory: &mut [u64], layout: &Layout, state: &mut u64) -> u64 {
    memory.fill(0);
    let depth = 1 + random(state) % 8;
    let thread = intact(memory, layout, depth);
    let base = memory.as_ptr() as u64;
    for code in 1..3 {
        memory.copy_within(256..320, 256 + 64 * code);
    }
    let mut put = |at: u64, value: u64, bits: u32| {
        let (place, shift) = ((at / 8) as usize, at % 8 * 8);
        memory[place] = memory[place] & !((u64::MAX >> (64 - bits)) << shift) | value << shift;
    };
    for code in 0..3 {
        let at = 8 * (256 + 64 * code);
        put(at + layout.code.version, 1 + random(state) % 2, 32);
        put(at + layout.code.first_line, 7 + random(state) % 2, 32);
        put(at + layout.code.first_traceable, random(state) % 2 * 45, 32);
    }
    for number in 0..depth {
        let (frame, code) = (8 * (1024 + 32 * (depth - number)), 8 * (256 + 64 * (random(state) % 3)));
        put(frame + layout.frame.code, base + code, 64);
        let instruction = base + code + layout.code.instructions + 60 + 20 * (random(state) % 3);
        put(frame + layout.frame.instruction, instruction, 64);
        put(
            frame + layout.frame.owner,
            [0, 0, 0, 1, 3][random(state) as usize % 5],
            8,
        );
    }
    thread
}

#[test]
fn frames_that_hold_are_those_that_a_walk_finds() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for layout in layouts(true) {
        let chains = Chains::none();
        let mut memory = vec![0; WORDS];
        let interpreter = interpreter(layout, true);
        let mut known = Vec::new();
        let [mut held, mut held_after_change, mut changed] = [0; 3];
        for round in 0..6000 {
            let thread = make(&mut memory, &layout, &mut state);
            THREAD.set(thread);
            if round % 50 == 0 {
                // SAFETY: this thread's alone.
                if let Some(chain) = unsafe { chains.remember_in(&interpreter) } {
                    // SAFETY: as above, and remembered.
                    assert!(unsafe { chains.hold_in(&interpreter, chain) });
                    known.push((chain, walked(&interpreter), memory.clone()));
                }
            }
            // What one of them was remembered with, and perhaps a change.
            let (_, before, words) = &known[random(&mut state) as usize % known.len()];
            memory.copy_from_slice(words);
            let is_changed = round % 4 != 0;
            if is_changed {
                let place = (random(&mut state) % 12) as usize;
                let place = match random(&mut state) % 4 {
                    0 => place * 2,
                    1 => 256 + 64 * (place % 3) + random(&mut state) as usize % 24,
                    _ => 1024 + 32 * (place % 9) + random(&mut state) as usize % 10,
                };
                let base = memory.as_ptr() as u64;
                memory[place] = match random(&mut state) % 6 {
                    0 => random(&mut state),
                    1 => base + 8 * (random(&mut state) % (WORDS as u64 - 64)),
                    2 => memory[place] ^ 1 << (random(&mut state) % 64),
                    3 => memory[place].wrapping_add(8),
                    4 => memory[random(&mut state) as usize % 1400],
                    _ => 0,
                };
            }
            let now = walked(&interpreter);
            for (chain, then, _) in &known {
                // SAFETY: as above.
                if unsafe { chains.hold_in(&interpreter, *chain) } {
                    assert_eq!(now, *then, "3.{} {}, round {round}", layout.minor, layout.head);
                    *(if is_changed { &mut held_after_change } else { &mut held }) += 1;
                }
            }
            changed += u32::from(now != *before);
        }
        assert!(
            held >= 1400 && held_after_change > 1000 && changed > 100 && known.len() > 100,
            "3.{} {}: {held} {held_after_change} {changed} {}",
            layout.minor,
            layout.head,
            known.len()
        );
    }
}

#[test]
fn code_without_a_version_is_not_remembered() {
    for layout in layouts(false).chain(layouts(true)) {
        let mut memory = vec![0; WORDS];
        THREAD.set(intact(&mut memory, &layout, 3));
        // SAFETY: this thread's alone.
        assert_eq!(unsafe { Chains::none().remember_in(&interpreter(layout, true)) }, None);
    }
}

#[test]
fn chains_are_refused_when_no_more_nodes_fit_until_they_are_cleared() {
    let layout = *layout::of(12, false).expect("a layout");
    let (chains, interpreter) = (Chains::none(), interpreter(layout, true));
    let mut memory = vec![0; WORDS];
    for _ in 0..2 {
        let mut remembered = 0;
        for number in 0.. {
            THREAD.set(intact(&mut memory, &layout, 2));
            memory[256 + layout.code.version as usize / 8] |= 1 << 32 | 1;
            memory[1024 + 64 + layout.frame.instruction as usize / 8] += 2 * (number % 10);
            memory[256 + layout.code.first_line as usize / 8] += (number / 10) << 8;
            // SAFETY: this thread's alone.
            match unsafe { chains.remember_in(&interpreter) } {
                Some(_) => remembered += 1,
                None => break,
            }
        }
        // SAFETY: as above; no chain is used again.
        unsafe {
            assert!(chains.is_full() && remembered > 1300, "{remembered}");
            chains.clear();
            assert!(!chains.is_full());
        }
    }
}
