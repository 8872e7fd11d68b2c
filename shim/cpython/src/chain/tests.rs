//! Intact and damaged chains in synthetic memory: every walk must end, and none may fault.

use super::*;
use crate::layout;
use std::cell::Cell;

pub const WORDS: usize = 4096;
const CODE_TYPE: u64 = 0x1111_1110;
const FRAME_TYPE: u64 = 0x2222_2220;

thread_local!(pub static THREAD: Cell<u64> = const { Cell::new(0) });

extern "C" fn this_thread() -> u64 {
    THREAD.get()
}

extern "C" fn no() -> u64 {
    0
}

/// With only what a walk needs.
pub fn interpreter(layout: Layout, holds_lock: bool) -> Interpreter {
    Interpreter {
        script_ended: 0,
        layout,
        code_type: CODE_TYPE,
        frame_type: FRAME_TYPE,
        string_type: 0,
        bytes_type: 0,
        is_thread_layout_confirmed: true.into(),
        mismatches: 0.into(),
        this_thread,
        current_thread: if holds_lock { this_thread } else { no },
        eval: 0..0,
        version: 0,
    }
}

pub fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// The reported frames, and how the walk ended.
fn walked(interpreter: &Interpreter, thread: u64) -> (Vec<Frame>, End) {
    THREAD.set(thread);
    let mut frames = Vec::new();
    let end = walk(interpreter, 100, |seen| {
        if let Seen::Frame(frame) = seen {
            frames.push(frame);
        }
    });
    (frames, end)
}

/// Writes an intact chain of `depth` frames of one code object to `memory`; returns the address of its thread state. Frames
/// lie one below the other from word 1024 on.
pub fn intact(memory: &mut [u64], layout: &Layout, depth: u64) -> u64 {
    let base = memory.as_ptr() as u64;
    let at = |word: u64| base + word * 8;
    let mut put = |address: u64, offset: u64, value: u64| {
        let place = (address + offset - base) as usize;
        memory[place / 8] = match place % 8 {
            0 => value,
            shift => memory[place / 8] & !(u64::MAX << (shift * 8)) | value << (shift * 8),
        };
    };
    let (thread, record, code, text) = (at(0), at(128), at(256), at(512));
    let frame = |number: u64| at(1024 + 32 * (depth - number));
    put(code, OBJECT_TYPE + layout.head, CODE_TYPE);
    put(code, OBJECT_SIZE + layout.head, 50);
    let code_of = layout.code;
    for part in [code_of.file, code_of.name, code_of.function, code_of.line_table] {
        put(code, part, text);
    }
    put(thread, layout.thread.c_frame, record);
    put(record, layout.thread.previous, record);
    if layout.thread.frame == layout.thread.c_frame {
        put(record, layout.thread.current, frame(0));
    } else {
        put(thread, layout.thread.frame, frame(0));
    }
    for number in 0..depth {
        let here = frame(number);
        put(
            here,
            layout.frame.previous,
            if number + 1 < depth { frame(number + 1) } else { 0 },
        );
        put(here, layout.frame.code, code);
        match layout.chain {
            Chain::Objects | Chain::ObjectsWithRecords => {
                put(here, OBJECT_TYPE, FRAME_TYPE);
                put(here, layout.frame.instruction, 4);
            }
            _ => put(here, layout.frame.instruction, code + layout.code.instructions + 80),
        }
    }
    thread
}

#[test]
fn an_intact_chain_is_walked_to_its_end() {
    for layout in &layout::LAYOUTS {
        for holds_lock in [false, true] {
            let mut memory = vec![0; WORDS];
            let thread = intact(&mut memory, layout, 60);
            let interpreter = interpreter(*layout, holds_lock);
            let (frames, end) = walked(&interpreter, thread);
            assert_eq!(
                (frames.len(), end),
                (60, End::Root),
                "3.{} {}",
                layout.minor,
                layout.head
            );
            assert!(frames.iter().all(|frame| *frame == frames[0]));
        }
    }
}

/// A new code object at the address of a freed one, with its names and its line table at theirs.
#[test]
fn code_objects_without_a_version_differ_if_their_line_tables_do() {
    for layout in layout::LAYOUTS.iter().filter(|layout| layout.code.version == 0) {
        // All bytes of short tables, and some of long ones.
        let long = [(1001, 0), (1001, 504), (1001, 990), (1001, 1000)];
        let short = if layout.minor == 11 { 64 } else { 256 };
        let changes = [3, 8, 60, 61, short].map(|length| (0..length).map(move |at| (length, at)));
        for (length, changed) in changes.into_iter().flatten().chain(long) {
            for holds_lock in [false, true] {
                let mut memory = vec![0; WORDS];
                let thread = intact(&mut memory, layout, 1);
                memory[256 + layout.code.line_table as usize / 8] = memory.as_ptr() as u64 + 640 * 8;
                memory[640 + OBJECT_SIZE as usize / 8] = length as u64;
                let content = 640 * 8 + BYTES_CONTENT as usize;
                let interpreter = interpreter(*layout, holds_lock);
                let before = walked(&interpreter, thread);
                assert_eq!(before.1, End::Root);
                memory[(content + length) / 8] ^= 1 << ((content + length) % 8 * 8);
                assert_eq!(
                    walked(&interpreter, thread),
                    before,
                    "3.{}: behind the end",
                    layout.minor
                );
                memory[(content + changed) / 8] ^= 1 << ((content + changed) % 8 * 8);
                assert_ne!(
                    walked(&interpreter, thread),
                    before,
                    "3.{}: byte {changed} of {length}",
                    layout.minor
                );
            }
        }
    }
}

#[test]
fn the_walk_of_a_cyclic_chain_ends() {
    for layout in &layout::LAYOUTS {
        let mut memory = vec![0; WORDS];
        let thread = intact(&mut memory, layout, 10);
        let base = memory.as_ptr() as u64;
        // The caller of the outermost frame is now the innermost one.
        let outermost = 1024 + 32;
        memory[outermost + layout.frame.previous as usize / 8] = base + (1024 + 320) * 8;
        let (frames, end) = walked(&interpreter(*layout, true), thread);
        assert_eq!(
            (frames.len(), end),
            (100, End::Full),
            "3.{} {}",
            layout.minor,
            layout.head
        );
    }
}

#[test]
fn any_word_of_a_chain_may_have_any_value() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let mut ends = [0; 4];
    for layout in &layout::LAYOUTS {
        let interpreters = [interpreter(*layout, false), interpreter(*layout, true)];
        for round in 0..3000 {
            let mut memory = vec![0; WORDS];
            let base = memory.as_ptr() as u64;
            let thread = intact(&mut memory, layout, 12);
            for _ in 0..1 + round % 4 {
                let place = match random(&mut state) % 4 {
                    0 => random(&mut state) as usize % 320,
                    _ => 1024 + random(&mut state) as usize % 420,
                };
                memory[place] = match random(&mut state) % 6 {
                    0 => random(&mut state),
                    1 => base + random(&mut state) % (WORDS as u64 * 8 - 256),
                    2 => (base + random(&mut state) % (WORDS as u64 * 8 - 256)) & !7,
                    3 => (random(&mut state) % (1 << 47)) & !7,
                    4 => u64::MAX,
                    _ => 0xdbdb_dbdb_dbdb_dbdb,
                };
            }
            let (frames, end) = walked(&interpreters[round % 2], thread);
            assert!(frames.len() <= 100);
            ends[end as usize] += 1;
        }
    }
    // The test is void unless both cases occur often.
    assert!(
        ends[End::Lost as usize] > 3000 && ends[End::Root as usize] > 3000,
        "{ends:?}"
    );
}

#[test]
fn an_unmapped_thread_state_causes_no_fault() {
    for layout in &layout::LAYOUTS {
        for holds_lock in [false, true] {
            let interpreter = interpreter(*layout, holds_lock);
            for unmapped in [8, 4096, 1 << 46, u64::MAX, u64::MAX - 7] {
                assert_eq!(walked(&interpreter, unmapped), (Vec::new(), End::Lost));
            }
            assert_eq!(walked(&interpreter, 0), (Vec::new(), End::Nothing));
        }
    }
}

/// Pages that are no longer readable, as after `free` in an allocator that returns memory to the system. They stay
/// reserved, so that no other test receives them.
#[test]
fn a_thread_state_that_became_unreadable_causes_no_fault() {
    for layout in &layout::LAYOUTS {
        let bytes = WORDS * 8;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(mapped, libc::MAP_FAILED);
        // SAFETY: mapped just now with this length, zeroed, and borrowed until it is protected below.
        let memory = unsafe { std::slice::from_raw_parts_mut(mapped.cast::<u64>(), WORDS) };
        let thread = intact(memory, layout, 60);
        // A walk that holds the lock enters the pages in the table of readable ones.
        assert_eq!(walked(&interpreter(*layout, true), thread).1, End::Root);
        // SAFETY: mapped above; nothing refers to it any more.
        assert_eq!(unsafe { libc::mprotect(mapped, bytes, libc::PROT_NONE) }, 0);
        let unlocked = interpreter(*layout, false);
        assert_eq!(
            walked(&unlocked, thread),
            (Vec::new(), End::Lost),
            "3.{} {}",
            layout.minor,
            layout.head
        );
    }
}

/// Free-threaded builds from 3.14 on: the place of an instruction is that in the thread's own copy of the code.
#[test]
fn an_instruction_is_found_in_the_copy_that_its_frame_executes() {
    let layout = layout::of(14, true).expect("a free-threaded build with copies");
    for holds_lock in [false, true] {
        let mut memory = vec![0; WORDS];
        let thread = intact(&mut memory, layout, 3);
        let at = |word: u64| memory.as_ptr() as u64 + word * 8;
        let (list, own, copy, innermost) = (at(3000), at(256) + layout.code.instructions, at(3500), 1024 + 32 * 3);
        let (instruction, number) = (layout.frame.instruction / 8, layout.frame.copy / 8);
        let list_of_code = 256 + layout.code.copies / 8;
        let sound = [
            (list_of_code, list),
            (3000, 2),
            (3001, own),
            (3002, copy),
            (innermost + instruction, copy + 40),
            (innermost + number, 1),
        ];
        let mut walk_with = |damage: Option<(u64, u64)>| {
            for (word, value) in sound.into_iter().chain(damage) {
                memory[word as usize] = value;
            }
            walked(&interpreter(*layout, holds_lock), thread)
        };
        let (frames, end) = walk_with(None);
        let offsets: Vec<u32> = frames.iter().map(|frame| frame.offset).collect();
        assert_eq!((&offsets[..], end), (&[40, 80, 80][..], End::Root));
        // An instruction that is not in that copy; no such copy; no list.
        for damage in [
            (innermost + instruction, own + 40),
            (innermost + number, 7),
            (list_of_code, 4096),
        ] {
            assert_eq!(walk_with(Some(damage)), (Vec::new(), End::Lost));
        }
        // Of code with a version, the copy is looked up again only if the instruction is elsewhere.
        assert_eq!(layout.code.version % 8, 4);
        walk_with(Some((256 + layout.code.version / 8, 5 << 32)));
        assert_eq!(walk_with(Some((list_of_code, 4096))).1, End::Root);
        let moved = (innermost + instruction, copy + 4096 + 40);
        assert_eq!(walk_with(Some(moved)).1, End::Lost);
    }
}
