//! The offsets in the structures of each CPython version.
//!
//! Taken from the headers of the versions named below, for 64-bit builds with the GIL. CPython does not change these
//! structures within a minor version; [`examine`](crate::examine) checks that.

/// How frames are linked, and how an interpreter call is recognized among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chain {
    /// Frame objects on the heap, one interpreter call each, without a record on the C stack.
    Objects,
    /// The same with a `CFrame` record on the C stack for each call.
    ObjectsWithRecords,
    /// `_PyInterpreterFrame`s; a flag marks the first one of a call, and the call has a `_PyCFrame` record on the C stack.
    EntryFlag,
    /// `_PyInterpreterFrame`s; those of a call are followed by one on the C stack that runs no code.
    EntryFrame,
}

/// Offsets in bytes unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub minor: u32,
    pub chain: Chain,
    pub thread: Thread,
    pub frame: Frame,
    pub code: Code,
    pub string: Str,
    /// `PyCode_Type.tp_basicsize` and `PyFrame_Type.tp_basicsize`.
    pub code_basic_size: u64,
    pub frame_basic_size: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thread {
    /// A pointer to the innermost frame, or to the C frame record whose `current` points to it.
    pub frame: u64,
    /// In a C frame record: the innermost frame, and the previous record.
    pub current: u64,
    pub previous: u64,
    /// A pointer to the innermost record.
    pub c_frame: u64,
    /// The value of `pthread_self`.
    pub thread_id: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    pub code: u64,
    pub previous: u64,
    /// A pointer to the current instruction, or its offset (3.8, 3.9) or number (3.10).
    pub instruction: u64,
    /// 3 and larger: not a Python frame.
    pub owner: u64,
    /// 3.11: set in the first frame of an interpreter call.
    pub is_entry: u64,
    /// Bytes read of a frame.
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    pub file: u64,
    pub name: u64,
    /// The qualified name if there is one.
    pub function: u64,
    pub first_line: u64,
    pub line_table: u64,
    /// The instructions, or a pointer to them ([`Chain::Objects`] and [`Chain::ObjectsWithRecords`]).
    pub instructions: u64,
    /// The number of the first instruction of the function's own text, 3.11 and later.
    pub first_traceable: u64,
    /// 3.12 and later; 0: none.
    pub version: u64,
    /// Bytes read of a code object.
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Str {
    /// The characters if all are ASCII, and if not.
    pub ascii: u64,
    pub compact: u64,
}

/// The contents of a bytes object; the same in all versions.
pub const BYTES_CONTENT: u64 = 32;
pub const OBJECT_TYPE: u64 = 8;
pub const OBJECT_SIZE: u64 = 16;
pub const STRING_LENGTH: u64 = 16;
/// -1 if it was never computed.
pub const STRING_HASH: u64 = 24;
pub const STRING_STATE: u64 = 32;
/// `tp_basicsize` and `tp_members` of a type.
pub const TYPE_BASIC_SIZE: u64 = 32;
pub const TYPE_MEMBERS: u64 = 240;

const WIDE_STRING: Str = Str { ascii: 48, compact: 72 };
const STRING: Str = Str { ascii: 40, compact: 56 };

/// 3.8 and 3.9 (3.8.18, 3.9.18).
const fn objects(minor: u32) -> Layout {
    Layout {
        minor,
        chain: Chain::Objects,
        thread: Thread {
            frame: 24,
            current: 0,
            previous: 0,
            c_frame: 0,
            thread_id: 176,
        },
        frame: Frame {
            code: 32,
            previous: 24,
            instruction: 104,
            owner: 0,
            is_entry: 0,
            bytes: 112,
        },
        code: Code {
            file: 104,
            name: 112,
            function: 112,
            first_line: 40,
            line_table: 120,
            instructions: 48,
            first_traceable: 0,
            version: 0,
            bytes: 128,
        },
        string: WIDE_STRING,
        code_basic_size: 176,
        frame_basic_size: 368,
    }
}

/// 3.10.13.
const fn objects_with_records() -> Layout {
    let mut layout = objects(10);
    layout.chain = Chain::ObjectsWithRecords;
    layout.thread.c_frame = 48;
    layout.thread.previous = 8;
    layout.frame.instruction = 96;
    layout.frame_basic_size = 360;
    layout
}

/// 3.11.7.
const fn entry_flag() -> Layout {
    Layout {
        minor: 11,
        chain: Chain::EntryFlag,
        thread: Thread {
            frame: 56,
            current: 8,
            previous: 16,
            c_frame: 56,
            thread_id: 152,
        },
        frame: Frame {
            code: 32,
            previous: 48,
            instruction: 56,
            owner: 69,
            is_entry: 68,
            bytes: 72,
        },
        code: Code {
            file: 112,
            name: 120,
            function: 128,
            first_line: 72,
            line_table: 136,
            instructions: 184,
            first_traceable: 168,
            version: 0,
            bytes: 176,
        },
        string: WIDE_STRING,
        code_basic_size: 184,
        frame_basic_size: 120,
    }
}

/// 3.12.1.
const fn entry_frame() -> Layout {
    Layout {
        minor: 12,
        chain: Chain::EntryFrame,
        thread: Thread {
            frame: 56,
            current: 0,
            previous: 8,
            c_frame: 56,
            thread_id: 136,
        },
        frame: Frame {
            code: 0,
            previous: 8,
            instruction: 56,
            owner: 70,
            is_entry: 0,
            bytes: 72,
        },
        code: Code {
            file: 112,
            name: 120,
            function: 128,
            first_line: 68,
            line_table: 136,
            instructions: 192,
            first_traceable: 176,
            version: 92,
            bytes: 184,
        },
        string: STRING,
        code_basic_size: 192,
        frame_basic_size: 120,
    }
}

/// 3.13.0, 3.14.10, 3.15.2: the offsets that the interpreter does not describe, and the expected values of those it does.
const fn described(minor: u32, thread_id: u64, owner: u64, code_basic_size: u64, frame_basic_size: u64) -> Layout {
    let mut layout = entry_frame();
    layout.minor = minor;
    // The thread state points to the innermost frame directly.
    layout.thread.frame = 72;
    layout.thread.c_frame = 0;
    layout.thread.thread_id = thread_id;
    layout.frame.owner = owner;
    layout.frame.bytes = (owner + 8) & !7;
    layout.code.instructions = code_basic_size;
    layout.code.first_traceable = code_basic_size - 16;
    layout.code.bytes = code_basic_size - 8;
    layout.code_basic_size = code_basic_size;
    layout.frame_basic_size = frame_basic_size;
    layout
}

pub const OLDEST: u32 = 8;
pub static LAYOUTS: [Layout; 8] = [
    objects(8),
    objects(9),
    objects_with_records(),
    entry_flag(),
    entry_frame(),
    described(13, 152, 70, 200, 136),
    described(14, 152, 74, 208, 152),
    described(15, 176, 74, 208, 152),
];

/// Positions, in words, in `_Py_DebugOffsets`, with which `_PyRuntime` begins from 3.13 on. Every minor version has moved
/// them.
pub struct DebugOffsets {
    pub current_frame: u64,
    pub thread_id: u64,
    /// `previous`, `executable`, `instr_ptr` follow each other; `owner` comes two later.
    pub frame_previous: u64,
    /// `size`, `filename`, `name`, `qualname`, `linetable`, `firstlineno` follow each other; `co_code_adaptive` comes four
    /// later.
    pub code_size: u64,
}

/// From 3.13 on.
pub static DEBUG_OFFSETS: [DebugOffsets; 3] = [
    DebugOffsets {
        current_frame: 23,
        thread_id: 24,
        frame_previous: 29,
        code_size: 34,
    },
    DebugOffsets {
        current_frame: 26,
        thread_id: 27,
        frame_previous: 32,
        code_size: 39,
    },
    DebugOffsets {
        current_frame: 26,
        thread_id: 30,
        frame_previous: 40,
        code_size: 47,
    },
];
pub const OLDEST_DESCRIBED: u32 = 13;
/// Enough words for all of the above.
pub const DEBUG_OFFSETS_WORDS: usize = 64;
pub const DEBUG_VERSION: usize = 1;
pub const DEBUG_FREE_THREADED: usize = 2;

/// The layout of a minor version, if it is known.
pub fn of(minor: u32) -> Option<&'static Layout> {
    LAYOUTS.get(minor.checked_sub(OLDEST)? as usize)
}

/// The positions for a minor version, if it describes its offsets.
pub fn debug_offsets(minor: u32) -> Option<&'static DebugOffsets> {
    DEBUG_OFFSETS.get(minor.checked_sub(OLDEST_DESCRIBED)? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_its_own_layout() {
        for (place, layout) in LAYOUTS.iter().enumerate() {
            assert_eq!(layout.minor, OLDEST + place as u32);
            assert_eq!(of(layout.minor), Some(layout));
            assert_eq!(layout.frame.bytes % 8, 0);
            assert_eq!(layout.code.bytes % 8, 0);
            let last = [layout.code.line_table, layout.code.first_traceable, layout.code.version];
            assert!(last.iter().all(|offset| offset + 8 <= layout.code.bytes), "{layout:?}");
            assert!(layout.frame.instruction + 8 <= layout.frame.bytes && layout.frame.owner < layout.frame.bytes);
        }
        assert_eq!(of(OLDEST - 1), None);
        assert_eq!(of(OLDEST + LAYOUTS.len() as u32), None);
    }
}
