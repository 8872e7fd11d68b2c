//! The walk along a thread's frames.
//!
//! Whatever the memory says, the walk ends: after so many steps, at the first thing that is no frame or whose code is no
//! code object, or at an instruction that the code does not have.

use std::sync::atomic::Ordering::*;

use crate::interpreter::Interpreter;
use crate::layout::*;
use crate::memory::{Careful, Memory, Trusting, View, on_main_thread};
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
const PROLOGUE: u64 = 512;

#[inline]
pub fn walk(interpreter: &Interpreter, limit: usize, see: impl FnMut(Seen)) -> End {
    let thread = interpreter.this_thread();
    if thread == 0 {
        return End::Nothing;
    }
    if on_main_thread() || interpreter.holds_lock() {
        return follow(interpreter, thread, &mut Trusting::new(), limit, see).unwrap_or(End::Lost);
    }
    walk_with_care(interpreter, thread, limit, see)
}

#[inline(never)]
fn walk_with_care(interpreter: &Interpreter, thread: u64, limit: usize, see: impl FnMut(Seen)) -> End {
    if interpreter.is_finalizing() {
        return End::Nothing;
    }
    follow(interpreter, thread, &mut Careful::new(), limit, see).unwrap_or(End::Lost)
}

/// `None`: the chain leads to something else.
#[inline(always)]
fn follow<M: Memory>(
    interpreter: &Interpreter,
    thread: u64,
    memory: &mut M,
    limit: usize,
    mut see: impl FnMut(Seen),
) -> Option<End> {
    let layout = &interpreter.layout;
    let state = memory.object(thread, THREAD_BYTES)?;
    let mut frame = state.word(layout.thread.frame);
    // Unused where a layout has none.
    let mut record = state.word(layout.thread.c_frame);
    if !interpreter.proven.load(Relaxed) && !interpreter.prove(state.word(layout.thread.thread_id)) {
        return None;
    }
    if layout.thread.frame == layout.thread.c_frame {
        frame = memory.object(record, RECORD_BYTES)?.word(layout.thread.current);
    }
    if frame == 0 {
        return Some(End::Nothing);
    }
    let mut count = 0;
    let mut since_mark = false;
    // At most one of CPython's own frames comes with each of Python's.
    for _ in 0..2 * limit + 16 {
        if frame == 0 {
            return Some(End::Root);
        }
        let here = memory.object(frame, layout.frame.bytes)?;
        let (code, previous) = (here.word(layout.frame.code) & !3, here.word(layout.frame.previous));
        let instruction = here.word(layout.frame.instruction);
        let mut owner = 0;
        let mut is_entry = false;
        match layout.chain {
            Chain::Objects | Chain::ObjectsWithMarks if here.word(OBJECT_TYPE) != interpreter.frame_type => {
                return None;
            }
            Chain::Objects | Chain::ObjectsWithMarks => {}
            Chain::EntryFlag => {
                (owner, is_entry) = (here.byte(layout.frame.owner), here.byte(layout.frame.is_entry) != 0);
                if owner >= NO_PYTHON {
                    return None;
                }
            }
            Chain::EntryFrame => {
                owner = here.byte(layout.frame.owner);
                if owner > LAST_OWNER {
                    return None;
                }
                if owner >= NO_PYTHON {
                    if since_mark {
                        see(Seen::Mark(frame));
                        since_mark = false;
                    }
                    frame = previous;
                    continue;
                }
            }
        }
        let object = memory.object(code, layout.code.bytes)?;
        if object.word(OBJECT_TYPE) != interpreter.code_type {
            return None;
        }
        let parts = Code::of(interpreter, object);
        if let Some(offset) = executing(interpreter, object, code, instruction, owner)? {
            if count == limit {
                return Some(End::Full);
            }
            let stamp = stamp(interpreter, memory, &parts)?;
            see(Seen::Frame(Frame { code, stamp, offset }));
            count += 1;
            since_mark = true;
        }
        match layout.chain {
            Chain::EntryFrame => {}
            Chain::Objects => see(Seen::Mark(0)),
            Chain::ObjectsWithMarks => {
                see(Seen::Mark(record));
                record = memory.object(record, RECORD_BYTES)?.word(layout.thread.previous);
            }
            Chain::EntryFlag if is_entry => {
                if since_mark {
                    see(Seen::Mark(record));
                    since_mark = false;
                }
                record = memory.object(record, RECORD_BYTES)?.word(layout.thread.previous);
            }
            Chain::EntryFlag => {}
        }
        frame = previous;
    }
    None
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
fn executing(interpreter: &Interpreter, code: View, address: u64, instruction: u64, owner: u8) -> Option<Option<u32>> {
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
            let offset = instruction.wrapping_sub(address + layout.code.instructions);
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

/// What tells this code object from another that had its address: the version, or else a digest.
#[inline(always)]
fn stamp<M: Memory>(interpreter: &Interpreter, memory: &mut M, code: &Code) -> Option<u64> {
    // 0: no versions in this interpreter, or more code objects than numbers.
    if code.version != 0 {
        return Some(u64::from(code.version) << 32 | u64::from(code.first_line));
    }
    digest(interpreter, memory, code)
}

/// Of what the names and the line table hold: addresses would not do, since all parts of a code object are freed, and
/// then taken again, together with it. What is left are functions of the same name, file and first line whose line
/// tables begin alike and are equally long.
#[inline(never)]
fn digest<M: Memory>(interpreter: &Interpreter, memory: &mut M, code: &Code) -> Option<u64> {
    let table = memory.object(code.line_table, BYTES_CONTENT + 8)?;
    let (length, start) = (table.word(OBJECT_SIZE), table.word(BYTES_CONTENT));
    // An empty table is followed by a zero, and then by anything.
    let start = if length < 8 {
        start & ((1 << (length * 8)) - 1)
    } else {
        start
    };
    let name = text_digest(interpreter, memory, code.name)?;
    let file = text_digest(interpreter, memory, code.file)?;
    Some(fold(&[
        u64::from(code.first_line),
        code.line_table,
        length,
        start,
        name,
        file,
    ]))
}

/// The hash that the string itself keeps, or one of ours if it was never asked for one.
#[inline(always)]
fn text_digest<M: Memory>(interpreter: &Interpreter, memory: &mut M, address: u64) -> Option<u64> {
    let head = memory.object(address, STRING_STATE)?;
    let (kept, length) = (head.word(STRING_HASH), head.word(STRING_LENGTH));
    if kept != u64::MAX {
        return Some(kept);
    }
    let layout = &interpreter.layout.string;
    let first = address + layout.ascii;
    let mut digest = length;
    // Every eighth byte of the first ones at least is a character's, however wide they are.
    for place in 0..(length / 8).min(32) {
        digest = fold(&[digest, memory.object(first + place * 8, 8)?.word(0)]);
    }
    Some(digest)
}

#[inline(always)]
fn fold(parts: &[u64]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |digest: u64, part: &u64| (digest.rotate_left(29) ^ part).wrapping_mul(ODD);
    parts.iter().fold(ODD, step)
}
