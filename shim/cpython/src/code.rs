//! The file, function and line table of a code object.
//!
//! Read once per code object, always with checked reads. Names are converted to UTF-8; bytes of a file name that are not
//! text, which Python keeps as lone surrogates, become the original bytes.

use crate::interpreter::Interpreter;
use crate::layout::*;
use crate::memory::{Gathered, Memory};
use crate::{BEFORE_FIRST, Frame};
use culeak_walker::read;

pub struct Described<'a> {
    pub file: &'a [u8],
    /// Qualified from 3.11 on.
    pub function: &'a [u8],
    pub first_line: u32,
    /// In the interpreter's format, which may differ between minor versions. `None`: too long for the buffer.
    pub line_table: Option<&'a [u8]>,
    /// The interpreter's minor version: 12 for 3.12.
    pub minor: u32,
}

/// Each object is read alone.
type One = Gathered<0>;

/// Names are cut after this many bytes.
const FILE_MAX: usize = 4096;
const FUNCTION_MAX: usize = 1024;
/// Replaces a name that cannot be read.
const UNKNOWN: &[u8] = b"?";

pub fn describe<'a>(interpreter: &Interpreter, frame: Frame, buffer: &'a mut [u8]) -> Option<Described<'a>> {
    let layout = &interpreter.layout;
    let mut memory = One::new();
    let code = memory.object(frame.code, layout.code.bytes)?;
    if code.word(OBJECT_TYPE + layout.head) != interpreter.code_type {
        return None;
    }
    let first_line = code.half(layout.code.first_line);
    let (file, function) = (code.word(layout.code.file), code.word(layout.code.function));
    let line_table = code.word(layout.code.line_table);
    let (file_room, rest) = buffer.split_at_mut_checked(FILE_MAX)?;
    let (function_room, table_room) = rest.split_at_mut_checked(FUNCTION_MAX)?;
    Some(Described {
        file: text(interpreter, file, file_room),
        function: text(interpreter, function, function_room),
        first_line,
        line_table: bytes(interpreter, line_table, table_room),
        minor: layout.minor,
    })
}

/// The contents of a `bytes` object, if they fit.
fn bytes<'a>(interpreter: &Interpreter, address: u64, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut memory = One::new();
    let head = interpreter.layout.head;
    let object = memory.object(address, BYTES_CONTENT + head)?;
    if object.word(OBJECT_TYPE + head) != interpreter.bytes_type {
        return None;
    }
    let length = usize::try_from(object.word(OBJECT_SIZE + head)).ok()?;
    let room = room.get_mut(..length)?;
    read(address + BYTES_CONTENT + head, room).then_some(&*room)
}

/// The contents of a `str` object, cut at the end of the buffer.
fn text<'a>(interpreter: &Interpreter, address: u64, room: &'a mut [u8]) -> &'a [u8] {
    match encode(interpreter, address, room) {
        Some(length) => &room[..length],
        None => UNKNOWN,
    }
}

/// Characters read at a time.
const PIECE: usize = 256;

fn encode(interpreter: &Interpreter, address: u64, room: &mut [u8]) -> Option<usize> {
    let mut memory = One::new();
    let (head, layout) = (interpreter.layout.head, &interpreter.layout.string);
    let object = memory.object(address, layout.compact)?;
    if object.word(OBJECT_TYPE + head) != interpreter.string_type {
        return None;
    }
    let length = usize::try_from(object.word(STRING_LENGTH + head)).ok()?;
    // Bits from the lowest: kind 3, compact 1, ascii 1.
    let state = object.half(STRING_STATE + head) >> layout.kind_bit;
    let (width, compact, ascii) = ((state & 7) as usize, state >> 3 & 1 == 1, state >> 4 & 1 == 1);
    if !compact || !matches!(width, 1 | 2 | 4) {
        return None;
    }
    let mut at = address + if ascii { layout.ascii } else { layout.compact };
    let (mut left, mut used) = (length, 0);
    while left > 0 {
        let mut piece = [0u8; PIECE * 4];
        let count = left.min(PIECE);
        let piece = &mut piece[..count * width];
        if !read(at, piece) {
            return None;
        }
        for unit in piece.chunks_exact(width) {
            let mut value = [0; 4];
            value[..width].copy_from_slice(unit);
            let mut encoded = [0; 4];
            let encoded = utf8(u32::from_le_bytes(value), &mut encoded);
            let Some(place) = room.get_mut(used..used + encoded.len()) else {
                return Some(used);
            };
            place.copy_from_slice(encoded);
            used += encoded.len();
        }
        (at, left) = (at + piece.len() as u64, left - count);
    }
    Some(used)
}

fn utf8(value: u32, room: &mut [u8; 4]) -> &[u8] {
    match (char::from_u32(value), value) {
        (Some(character), _) => character.encode_utf8(room).as_bytes(),
        // `surrogateescape` maps a byte that is not text to this range.
        (None, 0xdc80..=0xdcff) => {
            room[0] = value as u8;
            &room[..1]
        }
        (None, _) => UNKNOWN,
    }
}

const _: () = assert!(BEFORE_FIRST == u32::MAX, "the recording format defines this value");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_encoded() {
        let encoded = |value| utf8(value, &mut [0; 4]).to_vec();
        assert_eq!(encoded(0x61), b"a");
        assert_eq!(encoded(0xe9), "é".as_bytes());
        assert_eq!(encoded(0x4e2d), "中".as_bytes());
        assert_eq!(encoded(0x1f40d), "🐍".as_bytes());
        assert_eq!(encoded(0xdc80), [0x80]);
        assert_eq!(encoded(0xdcff), [0xff]);
        assert_eq!(encoded(0xd800), b"?");
        assert_eq!(encoded(u32::MAX), b"?");
    }
}
