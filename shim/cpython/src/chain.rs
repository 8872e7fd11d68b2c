//! The walk along a thread's frames.
//!
//! Whatever the memory says, the walk ends: after so many steps, at the first thing that is no frame or whose code is no
//! code object, or at an instruction that the code does not have.

use std::sync::atomic::Ordering::*;

use crate::interpreter::Interpreter;
use crate::layout::*;
use crate::memory::{EXPECTED, Gathered, Memory, Trusting, View, Window, on_main_thread};
use crate::{BEFORE_FIRST, End, Frame, Seen};

/// How much of a thread state is read, and of a C frame record.
const THREAD_BYTES: u64 = 192;
const RECORD_BYTES: u64 = 24;
/// `owner` of a frame that a generator keeps, and the least of those that run no Python code.
const GENERATOR: u8 = 1;
const NO_PYTHON: u8 = 3;
/// The greatest that any version has.
const LAST_OWNER: u8 = 4;
/// Instructions have this many bytes; since 3.6.
const UNIT: u64 = 2;
/// Only in a function's first instructions can it not have begun yet: a frame further on need not be asked.
const PROLOGUE: u64 = 64;

#[inline]
pub fn walk(interpreter: &Interpreter, limit: usize, see: impl FnMut(Seen)) -> End {
    let thread = interpreter.this_thread();
    if thread == 0 {
        return End::Nothing;
    }
    if on_main_thread() || interpreter.holds_lock(thread) {
        let memory = (Trusting::new(), Trusting::new(), Trusting::new());
        return walk_in::<_, _, _, 1>(interpreter, thread, memory, limit, see);
    }
    walk_with_care(interpreter, thread, limit, see)
}

/// On a thread whose state, frames and code objects may be freed and unmapped at any moment, also before the first load.
#[inline(never)]
fn walk_with_care(interpreter: &Interpreter, thread: u64, limit: usize, see: impl FnMut(Seen)) -> End {
    if interpreter.is_finalizing() {
        return End::Nothing;
    }
    let memory = (Window::new(), Gathered::<400>::new(), Gathered::<240>::new());
    walk_in::<_, _, _, 16>(interpreter, thread, memory, limit, see)
}

#[inline(always)]
fn walk_in<F: Memory, C: Memory, T: Memory, const AHEAD: usize>(
    interpreter: &Interpreter,
    thread: u64,
    mut memory: (F, C, T),
    limit: usize,
    see: impl FnMut(Seen),
) -> End {
    match Start::of(interpreter, thread, &mut memory.0) {
        None => End::Lost,
        Some(start) if start.frame == 0 => End::Nothing,
        Some(start) => follow::<_, _, _, AHEAD>(interpreter, start, &mut memory, limit, see).unwrap_or(End::Lost),
    }
}

/// Where a thread's chain begins.
struct Start {
    frame: u64,
    /// The innermost C frame record, of versions that have them.
    record: u64,
}

impl Start {
    #[inline(always)]
    fn of(interpreter: &Interpreter, thread: u64, memory: &mut impl Memory) -> Option<Start> {
        let layout = &interpreter.layout.thread;
        let state = memory.object(thread, THREAD_BYTES)?;
        let (mut frame, record) = (state.word(layout.frame), state.word(layout.c_frame));
        if !interpreter.proven.load(Relaxed) && !interpreter.prove(state.word(layout.thread_id)) {
            return None;
        }
        if layout.frame == layout.c_frame {
            // In the thread state itself, or on the thread's own stack.
            frame = memory.object(record, RECORD_BYTES)?.word(layout.current);
        }
        Some(Start { frame, record })
    }
}

/// A frame as it lies in memory.
#[derive(Clone, Copy)]
struct Link {
    frame: u64,
    code: u64,
    previous: u64,
    instruction: u64,
    owner: u8,
    is_entry: bool,
}

impl Link {
    const NONE: Link = Link {
        frame: 0,
        code: 0,
        previous: 0,
        instruction: 0,
        owner: NO_PYTHON,
        is_entry: false,
    };

    /// `None`: what lies there is no frame.
    #[inline(always)]
    fn of(interpreter: &Interpreter, memory: &mut impl Memory, frame: u64) -> Option<Link> {
        let layout = &interpreter.layout.frame;
        let here = memory.object(frame, layout.bytes)?;
        let (mut owner, mut is_entry, mut last_owner) = (0, false, LAST_OWNER);
        match interpreter.layout.chain {
            Chain::Objects | Chain::ObjectsWithMarks if here.word(OBJECT_TYPE) != interpreter.frame_type => {
                return None;
            }
            Chain::Objects | Chain::ObjectsWithMarks => {}
            Chain::EntryFlag => {
                (owner, is_entry) = (here.byte(layout.owner), here.byte(layout.is_entry) != 0);
                last_owner = NO_PYTHON - 1;
            }
            Chain::EntryFrame => owner = here.byte(layout.owner),
        }
        (owner <= last_owner).then(|| Link {
            frame,
            // The low bits are marks of the interpreter's.
            code: here.word(layout.code) & !3,
            previous: here.word(layout.previous),
            instruction: here.word(layout.instruction),
            owner,
            is_entry,
        })
    }

    #[inline(always)]
    fn is_python(&self) -> bool {
        self.owner < NO_PYTHON
    }
}

/// Frames, code objects and what hangs on those lie in different places: three memories. `AHEAD` frames are read before
/// their code objects, so that those can be asked for at once. `None`: the chain leads to something else.
#[inline(always)]
fn follow<F: Memory, C: Memory, T: Memory, const AHEAD: usize>(
    interpreter: &Interpreter,
    Start { mut frame, mut record }: Start,
    (frames, codes, texts): &mut (F, C, T),
    limit: usize,
    mut see: impl FnMut(Seen),
) -> Option<End> {
    let layout = &interpreter.layout;
    let (mut count, mut since_mark, mut files) = (0, false, (0, 0));
    // At most one of CPython's own frames comes with each of Python's.
    let mut patience = 2 * limit + 16;
    while frame != 0 {
        let mut links = [Link::NONE; AHEAD];
        let mut ahead = 0;
        while ahead < AHEAD && frame != 0 {
            let Some(link) = Link::of(interpreter, frames, frame) else {
                // What stands before it is good.
                frame = 8;
                break;
            };
            links[ahead] = link;
            ahead += 1;
            frame = link.previous;
        }
        if ahead == 0 {
            return None;
        }
        patience = patience.checked_sub(ahead)?;
        if AHEAD > 1 {
            ask_for_all(interpreter, &links[..ahead], codes, texts);
        }
        for link in &links[..ahead] {
            if !link.is_python() {
                if since_mark {
                    see(Seen::Mark(link.frame));
                    since_mark = false;
                }
                continue;
            }
            let object = codes.object(link.code, layout.code.bytes)?;
            if object.word(OBJECT_TYPE) != interpreter.code_type {
                return None;
            }
            let code = Code::of(interpreter, object);
            if let Some(offset) = executing(interpreter, object, link)? {
                if count == limit {
                    return Some(End::Full);
                }
                let stamp = stamp(interpreter, texts, &code, &mut files)?;
                see(Seen::Frame(Frame {
                    code: link.code,
                    stamp,
                    offset,
                }));
                count += 1;
                since_mark = true;
            }
            match layout.chain {
                Chain::EntryFrame => {}
                Chain::Objects => see(Seen::Mark(0)),
                Chain::EntryFlag if !link.is_entry => {}
                Chain::ObjectsWithMarks | Chain::EntryFlag => {
                    if since_mark {
                        see(Seen::Mark(record));
                        since_mark = false;
                    }
                    record = texts.object(record, RECORD_BYTES)?.word(layout.thread.previous);
                }
            }
        }
    }
    Some(End::Root)
}

/// One request for the code objects, and where they have no versions, one for their names and tables.
fn ask_for_all(interpreter: &Interpreter, links: &[Link], codes: &mut impl Memory, texts: &mut impl Memory) {
    let layout = &interpreter.layout.code;
    let mut addresses = [0; EXPECTED];
    let mut count = 0;
    for link in links.iter().filter(|link| link.is_python()) {
        addresses[count] = link.code;
        count += 1;
    }
    codes.expect(&addresses[..count], layout.bytes);
    if layout.version != 0 {
        return;
    }
    let (wanted, mut parts) = (addresses, [0; EXPECTED]);
    for (code, parts) in wanted[..count].iter().zip(parts.chunks_exact_mut(3)) {
        if let Some(object) = codes.object(*code, layout.bytes) {
            let code = Code::of(interpreter, object);
            parts.copy_from_slice(&[code.name, code.file, code.line_table]);
        }
    }
    texts.expect(&parts[..count * 3], BYTES_CONTENT + 8);
}

/// What is needed of a code object beyond its instructions.
struct Code {
    version: u32,
    first_line: u32,
    name: u64,
    file: u64,
    line_table: u64,
}

impl Code {
    #[inline(always)]
    fn of(interpreter: &Interpreter, object: View) -> Code {
        let layout = &interpreter.layout.code;
        Code {
            version: if layout.version == 0 {
                0
            } else {
                object.half(layout.version)
            },
            first_line: object.half(layout.first_line),
            name: object.word(layout.name),
            file: object.word(layout.file),
            line_table: object.word(layout.line_table),
        }
    }
}

/// Offset of the instruction that is being executed; `Some(None)`: a frame being set up, which Python does not show
/// either; `None`: the code has no such instruction.
#[inline(always)]
fn executing(interpreter: &Interpreter, code: View, link: &Link) -> Option<Option<u32>> {
    let Link { instruction, owner, .. } = *link;
    let layout = &interpreter.layout;
    match layout.chain {
        // 3.8 and 3.9 count in bytes.
        Chain::Objects | Chain::ObjectsWithMarks => match instruction as i32 {
            -1 => Some(Some(BEFORE_FIRST)),
            number if number < 0 => None,
            number if layout.chain == Chain::Objects => Some(Some(number as u32)),
            number => Some(u32::try_from(number as u64 * UNIT).ok()),
        },
        Chain::EntryFlag | Chain::EntryFrame => {
            let offset = instruction.wrapping_sub(link.code + layout.code.instructions);
            if offset == UNIT.wrapping_neg() {
                // Not begun: Python shows a generator so, and nothing else.
                return Some((owner == GENERATOR).then_some(BEFORE_FIRST));
            }
            if offset >= code.word(OBJECT_SIZE).wrapping_mul(UNIT) || offset > u64::from(u32::MAX) {
                return None;
            }
            let first = || u64::from(code.half(layout.code.first_traceable)).wrapping_mul(UNIT);
            let incomplete = offset < PROLOGUE && owner != GENERATOR && offset < first();
            Some((!incomplete).then_some(offset as u32))
        }
    }
}

/// What tells this code object from another that had its address: the version, or else a digest. `files` remembers the
/// digest of the last file name: callers often stand in the same file.
#[inline(always)]
fn stamp(interpreter: &Interpreter, memory: &mut impl Memory, code: &Code, files: &mut (u64, u64)) -> Option<u64> {
    // 0: no versions in this interpreter, or more code objects than numbers.
    if code.version != 0 {
        return Some(u64::from(code.version) << 32 | u64::from(code.first_line));
    }
    digest(interpreter, memory, code, files)
}

/// Of what the names and the line table hold: addresses would not do, since all parts of a code object are freed, and
/// then taken again, together with it. What is left are functions of the same name, file and first line whose line
/// tables begin alike and are equally long.
#[inline(never)]
fn digest(interpreter: &Interpreter, memory: &mut impl Memory, code: &Code, files: &mut (u64, u64)) -> Option<u64> {
    let table = memory.object(code.line_table, BYTES_CONTENT + 8)?;
    let (length, start) = (table.word(OBJECT_SIZE), table.word(BYTES_CONTENT));
    // An empty table is followed by a zero, and then by anything.
    let start = if length < 8 {
        start & ((1 << (length * 8)) - 1)
    } else {
        start
    };
    let name = text_digest(interpreter, memory, code.name)?;
    if files.0 != code.file {
        *files = (code.file, text_digest(interpreter, memory, code.file)?);
    }
    Some(fold(&[
        u64::from(code.first_line),
        code.line_table,
        length,
        start,
        name,
        files.1,
    ]))
}

/// The hash that the string itself keeps; if it was never asked for one, ours of its length and its end, where file names
/// differ.
#[inline(always)]
fn text_digest(interpreter: &Interpreter, memory: &mut impl Memory, address: u64) -> Option<u64> {
    let head = memory.object(address, STRING_STATE)?;
    let (kept, length) = (head.word(STRING_HASH), head.word(STRING_LENGTH));
    if kept != u64::MAX {
        return Some(kept);
    }
    // As if all characters were one byte wide: of wider ones it is not the end, but within the string all the same.
    let end = length.min(1 << 20).next_multiple_of(8);
    let bytes = end.min(TEXT_END);
    let tail = memory.object(address + interpreter.layout.string.ascii + end - bytes, bytes)?;
    Some((0..bytes / 8).fold(length, |digest, place| fold(&[digest, tail.word(place * 8)])))
}

/// So much of the end of a text is taken.
const TEXT_END: u64 = 64;

#[inline(always)]
fn fold(parts: &[u64]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |digest: u64, part: &u64| (digest.rotate_left(29) ^ part).wrapping_mul(ODD);
    parts.iter().fold(ODD, step)
}

#[cfg(test)]
mod tests {
    //! Chains that are none, in memory that is made up: every walk must end, and none may fault.

    use super::*;
    use crate::layout;
    use std::cell::Cell;

    const WORDS: usize = 4096;
    const CODE_TYPE: u64 = 0x1111_1110;
    const FRAME_TYPE: u64 = 0x2222_2220;

    thread_local!(static THREAD: Cell<u64> = const { Cell::new(0) });

    extern "C" fn this_thread() -> u64 {
        THREAD.get()
    }

    extern "C" fn no() -> u64 {
        0
    }

    fn interpreter(layout: Layout, holds_lock: bool) -> Interpreter {
        let current = if holds_lock { this_thread } else { no };
        Interpreter::pretended(layout, this_thread, current, no, CODE_TYPE, FRAME_TYPE)
    }

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// Seen frames, and how it ended.
    fn seen(interpreter: &Interpreter, thread: u64) -> (Vec<Frame>, End) {
        THREAD.set(thread);
        let mut frames = Vec::new();
        let end = walk(interpreter, 100, |seen| {
            if let Seen::Frame(frame) = seen {
                frames.push(frame);
            }
        });
        (frames, end)
    }

    /// A sound chain of `depth` frames of one code object in `memory`; the address of its thread state. Frames lie one
    /// below the other from word 1024 on.
    fn sound(memory: &mut [u64], layout: &Layout, depth: u64) -> u64 {
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
        put(code, OBJECT_TYPE, CODE_TYPE);
        put(code, OBJECT_SIZE, 50);
        for part in [layout.code.file, layout.code.name, layout.code.line_table] {
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
                Chain::Objects | Chain::ObjectsWithMarks => {
                    put(here, OBJECT_TYPE, FRAME_TYPE);
                    put(here, layout.frame.instruction, 4);
                }
                _ => put(here, layout.frame.instruction, code + layout.code.instructions + 80),
            }
        }
        thread
    }

    #[test]
    fn a_sound_chain_is_seen_whole() {
        for layout in &layout::LAYOUTS {
            for careful in [false, true] {
                let mut memory = vec![0; WORDS];
                let thread = sound(&mut memory, layout, 60);
                let interpreter = interpreter(*layout, !careful);
                let (frames, end) = seen(&interpreter, thread);
                assert_eq!((frames.len(), end), (60, End::Root), "3.{}", layout.minor);
                assert!(frames.iter().all(|frame| *frame == frames[0]));
            }
        }
    }

    #[test]
    fn a_chain_that_bites_its_tail_ends() {
        for layout in &layout::LAYOUTS {
            let mut memory = vec![0; WORDS];
            let thread = sound(&mut memory, layout, 10);
            let base = memory.as_ptr() as u64;
            // The outermost frame, whose caller is now the innermost.
            let outermost = 1024 + 32;
            memory[outermost + layout.frame.previous as usize / 8] = base + (1024 + 320) * 8;
            let (frames, end) = seen(&interpreter(*layout, true), thread);
            assert_eq!((frames.len(), end), (100, End::Full), "3.{}", layout.minor);
        }
    }

    #[test]
    fn any_word_of_a_chain_may_be_anything() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        let mut ends = [0; 4];
        for layout in &layout::LAYOUTS {
            let holds_lock = [interpreter(*layout, false), interpreter(*layout, true)];
            for round in 0..3000 {
                let mut memory = vec![0; WORDS];
                let base = memory.as_ptr() as u64;
                let thread = sound(&mut memory, layout, 12);
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
                let (frames, end) = seen(&holds_lock[round % 2], thread);
                assert!(frames.len() <= 100);
                ends[end as usize] += 1;
            }
        }
        // The test is none unless both happen often.
        assert!(
            ends[End::Lost as usize] > 3000 && ends[End::Root as usize] > 3000,
            "{ends:?}"
        );
    }

    #[test]
    fn a_thread_state_that_is_not_there_is_no_fault() {
        for layout in &layout::LAYOUTS {
            for holds_lock in [false, true] {
                let interpreter = interpreter(*layout, holds_lock);
                for nowhere in [8, 4096, 1 << 46, u64::MAX, u64::MAX - 7] {
                    assert_eq!(seen(&interpreter, nowhere), (Vec::new(), End::Lost));
                }
                assert_eq!(seen(&interpreter, 0), (Vec::new(), End::Nothing));
            }
        }
    }
    /// Pages that were readable once and no longer are, as after `free` of an allocator that gives memory back. They stay
    /// reserved, so that no other test gets them.
    #[test]
    fn a_thread_state_that_became_unreadable_is_no_fault() {
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
            let thread = sound(memory, layout, 60);
            // A walk of the thread that holds the lock makes the pages known.
            assert_eq!(seen(&interpreter(*layout, true), thread).1, End::Root);
            // SAFETY: mapped above; nothing refers to it any more.
            assert_eq!(unsafe { libc::mprotect(mapped, bytes, libc::PROT_NONE) }, 0);
            let careful = interpreter(*layout, false);
            assert_eq!(seen(&careful, thread), (Vec::new(), End::Lost), "3.{}", layout.minor);
        }
    }
}
