//! The offsets in the structures of each CPython version.
//!
//! They are those of [`culeak::cpython`], for 64-bit builds. CPython does not change these structures within a minor version;
//! [`examine`](crate::examine) checks that.

use culeak::cpython::{ABSENT, FREE_THREADED, NEWEST, OLDEST, Offsets, newest};

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
    /// Bytes that each object has in front of its type besides those of a build with the GIL: free-threaded builds.
    pub head: u64,
    pub chain: Chain,
    pub thread: Thread,
    pub frame: Frame,
    pub code: Code,
    pub string: Str,
    /// `PyCode_Type.tp_basicsize` and `PyFrame_Type.tp_basicsize`.
    pub code_basic_size: u64,
    pub frame_basic_size: u64,
    /// An `int` in the main interpreter's state that is not 0 from the end of its script on, before any exit callback is called;
    /// [`ABSENT`] before 3.12. In 3.8 it is elsewhere.
    pub script_ended: u64,
    /// Where the interpreter describes its own offsets; 3.13 and later.
    pub described: Option<DebugOffsets>,
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
    /// Which of [`Code::copies`] the thread executes; 0: the version has no copies.
    pub copy: u64,
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
    /// A pointer to a list of copies of the instructions, one for each thread: its length, then their addresses. Free-threaded
    /// builds from 3.14 on; 0: none.
    pub copies: u64,
    /// Bytes read of a code object.
    pub bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Str {
    /// The lowest bit of the kind of characters in the string's state.
    pub kind_bit: u64,
    /// The characters if all are ASCII, and if not.
    pub ascii: u64,
    pub compact: u64,
}

/// The contents of a bytes object; like the offsets below, the same in all builds with the GIL. Others add [`Layout::head`].
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

/// The value of an offset; 0 if the version has none.
const fn or_none(offset: u64) -> u64 {
    if offset == ABSENT { 0 } else { offset }
}

impl Layout {
    pub const fn is_free_threaded(&self) -> bool {
        self.head != 0
    }

    const fn of(table: &Offsets) -> Layout {
        let minor = table.minor();
        let chain = match minor {
            8 | 9 => Chain::Objects,
            10 => Chain::ObjectsWithRecords,
            11 => Chain::EntryFlag,
            _ => Chain::EntryFrame,
        };
        let is_object = minor < 11;
        let frame = Frame {
            code: if is_object {
                table.frame_object_code
            } else {
                table.frame_code
            },
            previous: if is_object {
                table.frame_object_back
            } else {
                table.frame_previous
            },
            instruction: if is_object {
                table.frame_object_instruction
            } else {
                table.frame_instruction
            },
            owner: or_none(table.frame_owner),
            is_entry: or_none(table.frame_is_entry),
            copy: or_none(table.frame_copy),
            bytes: if is_object { 112 } else { (table.frame_owner + 8) & !7 },
        };
        Layout {
            minor,
            head: table.text_length - STRING_LENGTH,
            chain,
            thread: Thread {
                frame: if table.thread_frame == ABSENT {
                    table.thread_c_frame
                } else {
                    table.thread_frame
                },
                current: or_none(table.c_frame_current),
                previous: or_none(table.c_frame_previous),
                c_frame: or_none(table.thread_c_frame),
                thread_id: table.thread_id,
            },
            frame,
            code: Code {
                file: table.code_file,
                name: table.code_name,
                function: if is_object {
                    table.code_name
                } else {
                    table.code_qualified_name
                },
                first_line: table.code_first_line,
                line_table: table.code_lines,
                instructions: table.code_instructions,
                first_traceable: or_none(table.code_first_traceable),
                version: or_none(table.code_version),
                copies: or_none(table.code_copies),
                bytes: if is_object {
                    table.code_lines + 8
                } else {
                    table.code_bytes - 8
                },
            },
            string: Str {
                kind_bit: table.text_kind_bit,
                ascii: table.text_ascii,
                compact: table.text_compact,
            },
            code_basic_size: table.code_bytes,
            frame_basic_size: table.frame_object_bytes,
            script_ended: table.interpreter_finalizing,
            described: match table.described_thread_frame {
                ABSENT => None,
                current_frame => Some(DebugOffsets {
                    current_frame: current_frame / 8,
                    thread_id: table.described_thread_id / 8,
                    frame_previous: table.described_frame_previous / 8,
                    code_size: table.described_code_bytes / 8,
                }),
            },
        }
    }
}

const VERSIONS: usize = (NEWEST - OLDEST + 1) as usize;
/// Those with the GIL, then the free-threaded ones.
pub static LAYOUTS: [Layout; VERSIONS + FREE_THREADED.len()] = {
    let mut layouts = [Layout::of(&newest(OLDEST)); VERSIONS + FREE_THREADED.len()];
    let mut nth = 1;
    while nth < VERSIONS {
        layouts[nth] = Layout::of(&newest(OLDEST + nth as u32));
        nth += 1;
    }
    while nth < layouts.len() {
        layouts[nth] = Layout::of(&FREE_THREADED[nth - VERSIONS]);
        nth += 1;
    }
    layouts
};

/// Positions, in words, in `_Py_DebugOffsets`, with which `_PyRuntime` begins from 3.13 on. Every minor version has moved
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DebugOffsets {
    pub current_frame: u64,
    pub thread_id: u64,
    /// `previous`, `executable`, `instr_ptr` follow each other; `owner` comes two later, `tlbc_index` four.
    pub frame_previous: u64,
    /// `size`, `filename`, `name`, `qualname`, `linetable`, `firstlineno` follow each other; `co_code_adaptive` comes four
    /// later, then `co_tlbc`.
    pub code_size: u64,
}

/// Enough words for all of the above.
pub const DEBUG_OFFSETS_WORDS: usize = 64;
pub const DEBUG_VERSION: usize = 1;
pub const DEBUG_FREE_THREADED: usize = 2;

/// The layout of a minor version's build, if it is known.
pub fn of(minor: u32, is_free_threaded: bool) -> Option<&'static Layout> {
    LAYOUTS
        .iter()
        .find(|layout| layout.minor == minor && layout.is_free_threaded() == is_free_threaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_its_own_layout() {
        for layout in &LAYOUTS {
            assert_eq!(of(layout.minor, layout.is_free_threaded()), Some(layout));
            assert_eq!(layout.frame.bytes % 8, 0);
            assert_eq!(layout.code.bytes % 8, 0);
            let last = [layout.code.line_table, layout.code.first_traceable, layout.code.version];
            assert!(last.iter().all(|offset| offset + 8 <= layout.code.bytes), "{layout:?}");
            assert!(layout.frame.instruction + 8 <= layout.frame.bytes && layout.frame.owner < layout.frame.bytes);
            assert!(layout.frame.copy + 4 <= layout.frame.bytes);
        }
        let known = |is_free_threaded| (0..100).filter(move |&minor| of(minor, is_free_threaded).is_some());
        assert!(known(false).eq(OLDEST..=NEWEST) && known(true).eq(13..=14));
    }
}
