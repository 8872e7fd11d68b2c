//! Distinguishes a code object from another one that had its address before.

use crate::interpreter::Interpreter;
use crate::layout::*;
use crate::memory::{Memory, View};
use culeak_walker::mix_in;

/// The parts of a code object that identify it.
pub struct Code {
    pub version: u32,
    pub first_line: u32,
    /// The qualified name, which is shown, if there is one.
    pub name: u64,
    pub file: u64,
    pub line_table: u64,
}

impl Code {
    #[inline(always)]
    pub fn of(interpreter: &Interpreter, object: View) -> Code {
        let layout = &interpreter.layout.code;
        Code {
            version: if layout.version == 0 {
                0
            } else {
                object.half(layout.version)
            },
            first_line: object.half(layout.first_line),
            name: object.word(layout.function),
            file: object.word(layout.file),
            line_table: object.word(layout.line_table),
        }
    }
}

/// The code object's version, or a digest if it has none. `last_file` caches the digest of the last file name: a frame's
/// caller is often in the same file.
#[inline(always)]
pub fn stamp(
    interpreter: &Interpreter,
    memory: &mut impl Memory,
    code: &Code,
    last_file: &mut (u64, u64),
) -> Option<u64> {
    // 0: the interpreter has no versions, or has used all numbers.
    if code.version != 0 {
        return Some(u64::from(code.version) << 32 | u64::from(code.first_line));
    }
    digest(interpreter, memory, code, last_file)
}

/// A digest of the contents of the names and the line table. Their addresses do not suffice: they are freed together with
/// the code object and reused together. Two functions with the same name, file and first line have the same digest if
/// their line tables have the same address and length, and differ only in what [`table_digest`] leaves out.
#[inline(never)]
fn digest(interpreter: &Interpreter, memory: &mut impl Memory, code: &Code, last_file: &mut (u64, u64)) -> Option<u64> {
    let table = table_digest(interpreter, memory, code.line_table)?;
    let name = text_digest(interpreter, memory, code.name)?;
    if last_file.0 != code.file {
        *last_file = (code.file, text_digest(interpreter, memory, code.file)?);
    }
    Some(fold(&[
        u64::from(code.first_line),
        code.line_table,
        table[0],
        table[1],
        name,
        last_file.1,
    ]))
}

/// Two hashes of a line table's length and bytes: of all, or of the start, the middle and the end of a long one. In 3.11,
/// tables have several times as many bytes per line, so that more of them are long.
#[inline(always)]
fn table_digest(interpreter: &Interpreter, memory: &mut impl Memory, address: u64) -> Option<[u64; 2]> {
    let layout = &interpreter.layout;
    let (most, part) = match layout.chain {
        Chain::EntryFlag => (64, 16),
        _ => (256, 64),
    };
    let content = BYTES_CONTENT + layout.head;
    let object = memory.object(address, content + 8)?;
    let (length, start) = (object.word(OBJECT_SIZE + layout.head), object.word(content));
    let mut add = |hashes, from: u64, bytes| bytes_digest(hashes, memory, address.wrapping_add(content + from), bytes);
    match length {
        0..8 => Some([length, start & ((1 << (length * 8)) - 1)]),
        8 => Some([length, start]),
        _ if length <= most => add([length, start], 8, length - 8),
        // A view begins at a multiple of eight.
        _ => {
            let middle = add([length, start], (length / 2) & !7, part)?;
            let last = (length - part) & !7;
            add(middle, last, length - last)
        }
    }
}

/// Adds bytes to one hash and to the other in turn.
#[inline(always)]
fn bytes_digest(hashes: [u64; 2], memory: &mut impl Memory, address: u64, bytes: u64) -> Option<[u64; 2]> {
    let block = memory.object(address, bytes.next_multiple_of(8))?;
    let add = |[first, second]: [u64; 2], word| [second, mix_in(first, word)];
    let whole = (0..bytes / 8).fold(hashes, |hashes, place| add(hashes, block.word(place * 8)));
    Some(match bytes % 8 {
        0 => whole,
        // A zero follows, and then undefined bytes.
        rest => add(whole, block.word(bytes & !7) & ((1 << (rest * 8)) - 1)),
    })
}

/// The hash that the string object caches; if it has none yet, a hash of the string's length and its end, where file names
/// differ.
#[inline(always)]
fn text_digest(interpreter: &Interpreter, memory: &mut impl Memory, address: u64) -> Option<u64> {
    let head = interpreter.layout.head;
    let text = memory.object(address, STRING_STATE + head)?;
    let (cached, length) = (text.word(STRING_HASH + head), text.word(STRING_LENGTH + head));
    if cached != u64::MAX {
        return Some(cached);
    }
    // Assumes one byte per character: of a wider string this is not the end, but still within the string.
    let end = length.min(1 << 20).next_multiple_of(8);
    let bytes = end.min(TEXT_END);
    let tail = memory.object(address + interpreter.layout.string.ascii + end - bytes, bytes)?;
    Some((0..bytes / 8).fold(length, |digest, place| fold(&[digest, tail.word(place * 8)])))
}

/// Bytes of a string's end that are hashed.
const TEXT_END: u64 = 64;

#[inline(always)]
fn fold(parts: &[u64]) -> u64 {
    parts
        .iter()
        .fold(0x9e37_79b9_7f4a_7c15, |digest, &part| mix_in(digest, part))
}
